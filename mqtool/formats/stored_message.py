"""A record of the commit log as a message that a broker can store once more: for another topic, or at another time.

``MESSAGE.parse`` of the schema takes fifty times as long; tests hold the two equal.
(RocketMQ: ``MessageDecoder.decode``.)
"""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from mqtool.errors import FormatError
from mqtool.formats import commit_log
from mqtool.formats.new_message import NewMessage
from mqtool.formats.record_head import HEADS

# Names of this module are found sooner than attributes: clients take all their messages apart here.
_FORMS = tuple((head.unpack_from, head.size) for head in HEADS)
_LOW_FLAGS_AT = commit_log.offset_in_head("sys_flag") + 3
_MAGIC_V2 = commit_log.MAGIC_V2
_SIZE, _unpack_short = struct.Struct(">i"), struct.Struct(">h").unpack_from


class StoredMessage(NamedTuple):
    """A message, and what storing it added."""

    message: NewMessage
    size: int
    queue_offset: int
    physical_offset: int
    store_timestamp: int


Parts = tuple[tuple[Any, ...], bytes, str, bytes]
"""Head (the numbers and hosts before the body, in the order of the schema), body, topic, properties."""


def take_apart(data: bytes) -> Iterator[Parts]:
    """Yield the parts of consecutive records.

    Raises:
        FormatError: the bytes are not whole message records.
    """
    at, size_of_all = 0, len(data)
    try:
        while at < size_of_all:
            unpack_head, head_size = _FORMS[data[at + _LOW_FLAGS_AT] >> 4 & 3]  # as ``commit_log.head_form``
            head = unpack_head(data, at)
            body_at = at + head_size
            body_end = body_at + head[-1]
            if head[1] == _MAGIC_V2:
                topic_at = body_end + 2
                topic_end = topic_at + _unpack_short(data, body_end)[0]
            else:
                topic_at = body_end + 1
                topic_end = topic_at + data[body_end]
            properties_at = topic_end + 2
            end = properties_at + _unpack_short(data, topic_end)[0]
            if not (body_at <= body_end and topic_at <= topic_end and properties_at <= end == at + head[0]):
                raise FormatError("a message record whose sizes do not add up", offset=at)
            if end > size_of_all:
                raise FormatError("a message record is truncated", offset=at)
            topic = data[topic_at:topic_end].decode("utf-8", "surrogateescape")
            yield head, data[body_at:body_end], topic, data[properties_at:end]
            at = end
    except (struct.error, IndexError) as error:
        raise FormatError("a message record whose parts do not fit together", offset=at) from error


def take_one_apart(record: bytes) -> Parts:
    """Return the parts of one whole record; raises what ``take_apart`` does, also for more than one."""
    parts = next(take_apart(record), None)
    if parts is None or parts[0][0] != len(record):
        raise FormatError("not one message record", offset=0)
    return parts


def record_ends(data: bytes | memoryview) -> Iterator[tuple[int, int]]:
    """Yield where each consecutive record of an answer to a pull starts and ends.

    Raises:
        FormatError: a record is cut off.
    """
    at, size_of_all = 0, len(data)
    while at < size_of_all:
        size = _SIZE.unpack_from(data, at)[0] if at + commit_log.MIN_SIZE <= size_of_all else 0
        if not commit_log.MIN_SIZE <= size <= size_of_all - at:
            raise FormatError("a record of a reply is truncated", offset=at)
        yield at, at + size
        at += size


def parse_stored(record: bytes | memoryview) -> StoredMessage:
    """Return the message of one whole record.

    Raises:
        FormatError: the bytes are not a message record.
    """
    return stored_of(take_one_apart(bytes(record)))


def stored_of(parts: Parts) -> StoredMessage:
    """Return the message that was taken apart."""
    head, body, topic, properties = parts
    (
        size,
        _,
        _,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
        born_address,
        born_port,
        store_timestamp,
        store_address,
        store_port,
        reconsume_times,
        prepared_transaction_offset,
        _,
    ) = head
    message = NewMessage(
        topic=topic,
        queue_id=queue_id,
        body=body,
        properties=properties,
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp=born_timestamp,
        born_host=(born_address, born_port),
        store_host=(store_address, store_port),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
    )
    return StoredMessage(message, size, queue_offset, physical_offset, store_timestamp)
