"""Copies of waiting messages: recognized, as they are stored again at intervals with a counter; and refused.

The unique key is not sufficient: a producer that resends a message, perhaps to another topic, repeats the key.
"""

import logging
from collections.abc import Collection

from mqtool.engine.store.append_result import PutStatus
from mqtool.formats.new_message import NewMessage
from mqtool.formats.properties import parse_properties

log = logging.getLogger(__name__)

CopyKey = tuple[bytes, int, frozenset[tuple[str, str]]]


def copy_key(message: NewMessage, changed: Collection[str]) -> CopyKey:
    """Return what a message and its copies have in common: body, born time and host, and properties not ``changed``.

    Two messages have it in common only if they are interchangeable.
    """
    pairs = parse_properties(message.properties).items()
    return message.body, message.born_timestamp, frozenset(pair for pair in pairs if pair[0] not in changed)


def is_for_later(status: PutStatus, message: NewMessage, physical_offset: int) -> bool:
    """Return whether the copy of a waiting message can be stored later; a refusal for good is logged.

    Args:
        status: of the attempt to store it.
        message: the copy.
        physical_offset: where the message waits in the log.
    """
    if status not in (PutStatus.PUT_OK, PutStatus.SERVICE_NOT_AVAILABLE):
        log.error(
            "a message is not delivered to the topic %.127r: %s; it is in the log at %d",
            message.topic,
            status,
            physical_offset,
        )
    return status is PutStatus.SERVICE_NOT_AVAILABLE
