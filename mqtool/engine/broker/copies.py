"""Recognizes copies: a waiting message is stored again at intervals, with a counter.

The unique key is not sufficient: a producer that resends a message, perhaps to another topic, repeats the key.
"""

from collections.abc import Collection

from mqtool.formats.new_message import NewMessage
from mqtool.formats.properties import parse_properties

CopyKey = tuple[bytes, int, frozenset[tuple[str, str]]]


def copy_key(message: NewMessage, changed: Collection[str]) -> CopyKey:
    """Return what a message and its copies have in common: body, born time and host, and properties not ``changed``.

    Two messages have it in common only if they are interchangeable.
    """
    pairs = parse_properties(message.properties).items()
    return message.body, message.born_timestamp, frozenset(pair for pair in pairs if pair[0] not in changed)
