"""A record of the commit log as a message that a broker can store once more: for another topic, or at another time.

``MESSAGE.parse`` of the schema takes fifty times as long; tests hold the two equal.
(RocketMQ: ``MessageDecoder.decode``.)
"""

import struct
from typing import Any, NamedTuple

from mqtool.errors import FormatError
from mqtool.formats import commit_log
from mqtool.formats.layout import packer_of
from mqtool.formats.new_message import NewMessage

_HEADS = tuple(packer_of(head) for head in commit_log.HEADS)
_SYS_FLAG_AT = int(commit_log.HEAD_DTYPES[0].fields["sys_flag"][1])  # type: ignore[index]
_INT, _SHORT = struct.Struct(">i"), struct.Struct(">h")


class StoredMessage(NamedTuple):
    """A message, and what storing it added."""

    message: NewMessage
    size: int
    queue_offset: int
    physical_offset: int
    store_timestamp: int


class Parts(NamedTuple):
    """A record taken apart; ``head`` has the numbers and hosts before the body, in the order of the schema."""

    head: tuple[Any, ...]
    body: bytes
    topic: str
    properties: bytes


def take_apart(data: bytes, at: int, end: int) -> Parts:
    """Return the parts of the record that lies in ``data`` between two places.

    Raises:
        FormatError: the bytes are no message record.
    """
    try:
        return _take_apart(data, at, end)
    except (struct.error, UnicodeDecodeError) as error:
        raise FormatError("a message record whose parts do not fit together", offset=0) from error


def _take_apart(data: bytes, at: int, end: int) -> Parts:
    form = _HEADS[commit_log.head_form(_INT.unpack_from(data, at + _SYS_FLAG_AT)[0])]
    head = form.unpack_from(data, at)
    size, magic_code, body_size = head[0], head[1], head[-1]
    body_at = at + form.size
    topic_at = body_end = body_at + body_size
    if magic_code == commit_log.MAGIC_V2:
        (topic_size,) = _SHORT.unpack_from(data, topic_at)
        topic_at += _SHORT.size
    else:
        topic_size = data[topic_at] if topic_at < end else -1
        topic_at += 1
    properties_at = topic_at + topic_size
    (properties_size,) = _SHORT.unpack_from(data, properties_at)
    properties_at += _SHORT.size
    if min(body_size, topic_size, properties_size) < 0 or not at + size == end == properties_at + properties_size:
        raise FormatError("a message record whose sizes do not add up", offset=at)
    topic = data[topic_at : topic_at + topic_size].decode("utf-8", "surrogateescape")
    return Parts(head, data[body_at:body_end], topic, data[properties_at:end])


def parse_stored(record: bytes | memoryview) -> StoredMessage:
    """Return the message of one whole record.

    Raises:
        FormatError: the bytes are no message record.
    """
    head, body, topic, properties = take_apart(bytes(record), 0, len(record))
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
