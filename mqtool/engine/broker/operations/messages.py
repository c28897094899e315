"""Queries for messages by key or by address.

(Rules: remoting.md 3.2; changes_5_5.md 10.2. RocketMQ: ``QueryMessageProcessor``.)
"""

import enum
from typing import TYPE_CHECKING

from mqtool.engine.broker.operations.refusal import OperationRefusedError, Reason
from mqtool.engine.broker.operations.steps import Steps
from mqtool.errors import FormatError, NotFoundError
from mqtool.formats.properties import find_property, probe_of
from mqtool.formats.property_names import KEYS, TAGS, UNIQ_KEY
from mqtool.formats.stored_message import parse_stored

if TYPE_CHECKING:
    from mqtool.engine.store.message_store import MessageStore

MAX_BY_UNIQUE_KEY = 32
MAX_BY_KEY = 64
"""The maximum number of messages that a query returns, whatever it requests."""

_READ_AT_ONCE = 8 << 20
"""Bytes of messages that a query reads before others get their turn: other keys may have the same hash."""
_UNIQ_KEY, _KEYS, _TAGS = probe_of(UNIQ_KEY), probe_of(KEYS), probe_of(TAGS)


class KeyKind(enum.Enum):
    """What kind of key messages are queried by."""

    UNIQUE_KEY = enum.auto()
    KEY = enum.auto()  # one of the keys set by the producer
    TAG = enum.auto()
    UNIQUE_KEY_OR_KEY = enum.auto()


def messages_by_key(
    store: "MessageStore", topic: str, key: str, kind: KeyKind, start: int, end: int, most: int, most_bytes: int
) -> Steps[list[memoryview]]:
    """Return the records with a key, stored within a time range (ms), in the order in which they were stored.

    Args:
        store: of the messages.
        topic: of the messages.
        key: of the messages.
        kind: of the key.
        start: of the range.
        end: of the range.
        most: the maximum number of records.
        most_bytes: their maximum total size.

    Raises:
        OperationRefusedError: there is none.
    """
    in_index, wanted = f"T#{key}" if kind is KeyKind.TAG else key, key.encode("utf-8", "replace")
    records, total, read_size = list[memoryview](), 0, 0
    for offset in sorted((yield from store.index.find_in_pieces(topic, in_index, start, end, most))):
        if read_size > _READ_AT_ONCE:
            read_size = 0
            yield
        try:
            record = store.log.record(offset)
            read_size += len(record)
            message = parse_stored(record).message
        except (NotFoundError, FormatError):  # deleted since, or not what the index says
            continue
        if message.topic != topic or not _has_key(message.properties, kind, wanted):
            continue
        total += len(record)
        if total > most_bytes:
            break
        records.append(record)
    if not records:
        raise OperationRefusedError(Reason.NOT_FOUND, "can not find message, maybe time range not correct")
    return records


def _has_key(properties: bytes, kind: KeyKind, key: bytes) -> bool:
    if kind is KeyKind.TAG:
        return find_property(properties, _TAGS) == key
    if kind is not KeyKind.KEY and find_property(properties, _UNIQ_KEY) == key:
        return True
    return kind is not KeyKind.UNIQUE_KEY and key in find_property(properties, _KEYS).split(b" ")


def message_at(store: "MessageStore", physical_offset: int) -> memoryview:
    """Return the record at an address.

    Raises:
        OperationRefusedError: there is none.
    """
    try:
        record = store.log.record(physical_offset)
        parse_stored(record)
    except (NotFoundError, FormatError):
        text = f"can not find message by the offset, {physical_offset}"
        raise OperationRefusedError(Reason.NOT_POSSIBLE, text) from None
    return record
