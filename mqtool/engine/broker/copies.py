"""Copies of waiting messages: recognized, as they are stored again at intervals with a counter; and refused.

The unique key is not sufficient: a producer that resends a message, perhaps to another topic, repeats the key.
"""

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from mqtool.engine.store.append_result import PutStatus
from mqtool.formats.new_message import NewMessage
from mqtool.formats.properties import parse_properties
from mqtool.formats.property_names import CLUSTER, MSG_REGION, TRACE_ON

if TYPE_CHECKING:
    from mqtool.engine.store.message_store import MessageStore

log = logging.getLogger(__name__)

BROKER_MARKS = (MSG_REGION, TRACE_ON, CLUSTER)
"""Properties that a broker adds for information."""

CopyKey = tuple[bytes, int, frozenset[tuple[str, str]]]


def copy_key(message: NewMessage, changed: Collection[str]) -> CopyKey:
    """Return what a message and its copies have in common: body, born time and host, and properties not ``changed``.

    Two messages have it in common only if they are interchangeable.
    """
    pairs = parse_properties(message.properties).items()
    return message.body, message.born_timestamp, frozenset(pair for pair in pairs if pair[0] not in changed)


def deliver_copy(
    store: "MessageStore", message: NewMessage, now: int, physical_offset: int, unmarked: bytes | None = None
) -> bool:
    """Store the copy of a waiting message, and return whether to try again later; a refusal for good is logged.

    Args:
        store: where it waits.
        message: the copy.
        now: the time, in ms.
        physical_offset: where the message waits in the log.
        unmarked: its properties without the marks of its delivery, for which there may be no room.
    """
    status = store.append(message, now, is_again=True).status
    if status is PutStatus.PROPERTIES_SIZE_EXCEEDED and unmarked is not None:
        message.properties = unmarked
        status = store.append(message, now, is_again=True).status
    if status not in (PutStatus.PUT_OK, PutStatus.SERVICE_NOT_AVAILABLE):
        log.error(
            "a message is not delivered to the topic %.127r: %s; it is in the log at %d",
            message.topic,
            status,
            physical_offset,
        )
    return status is PutStatus.SERVICE_NOT_AVAILABLE
