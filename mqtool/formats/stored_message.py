"""A record of the commit log as a message that a broker can store once more: for another topic, or at another time.

``MESSAGE.parse`` of the schema takes fifty times as long; tests hold the two equal.
(RocketMQ: ``MessageDecoder.decode``.)
"""

import struct
from typing import NamedTuple

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


def parse_stored(record: bytes | memoryview) -> StoredMessage:
    """Return the message of one whole record.

    Raises:
        FormatError: the bytes are no message record.
    """
    try:
        return _parse(bytes(record))
    except (struct.error, UnicodeDecodeError) as error:
        raise FormatError("a message record whose parts do not fit together", offset=0) from error


def _parse(record: bytes) -> StoredMessage:
    head = _HEADS[commit_log.head_form(_INT.unpack_from(record, _SYS_FLAG_AT)[0])]
    (
        size,
        magic_code,
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
        body_size,
    ) = head.unpack_from(record)
    topic_at = head.size + body_size
    if magic_code == commit_log.MAGIC_V2:
        (topic_size,) = _SHORT.unpack_from(record, topic_at)
        topic_at += _SHORT.size
    else:
        topic_size = record[topic_at] if topic_at < len(record) else -1
        topic_at += 1
    properties_at = topic_at + topic_size
    (properties_size,) = _SHORT.unpack_from(record, properties_at)
    properties_at += _SHORT.size
    if min(body_size, topic_size, properties_size) < 0 or not size == len(record) == properties_at + properties_size:
        raise FormatError("a message record whose sizes do not add up", offset=0)
    message = NewMessage(
        topic=record[topic_at : topic_at + topic_size].decode("utf-8", "surrogateescape"),
        queue_id=queue_id,
        body=record[head.size : head.size + body_size],
        properties=record[properties_at:],
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp=born_timestamp,
        born_host=(born_address, born_port),
        store_host=(store_address, store_port),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
    )
    return StoredMessage(message, size, queue_offset, physical_offset, store_timestamp)
