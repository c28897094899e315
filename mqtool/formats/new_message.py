"""A message to be stored, and its record: what a broker puts into its commit log, one message at a time.

``MESSAGE.build`` of the schema takes fifty times as long; tests hold the two equal.
(Rules: store.md 2. RocketMQ: ``MessageExtEncoder``, ``DefaultAppendMessageCallback``.)
"""

import dataclasses
import struct
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from mqtool.errors import FormatError
from mqtool.formats import commit_log
from mqtool.formats.properties import CRC_SIZE, NAME_SEPARATOR, PAIR_SEPARATOR, crc_digits, pairs_of
from mqtool.formats.property_names import CRC32
from mqtool.formats.record_head import HEADS

Host = tuple[bytes, int]
"""Address, of 4 or 16 bytes, and port; ``message.parse_host`` makes it of a text."""

MAX_SHORT_TOPIC = 127
"""Bytes of a topic that a record of the first kind can have."""
MAX_TOPIC = 255
MAX_PROPERTIES = 32767

_NOBODY: Host = (bytes(4), 0)
_PACK_HEAD = tuple(head.pack for head in HEADS)
_SHORT = struct.Struct(">h")
_ELEMENT = struct.Struct(">iiiii")  # CLIENT_BATCH_ELEMENT up to its body
_PAIR = PAIR_SEPARATOR.encode()
_CRC_HEAD = f"{CRC32}{NAME_SEPARATOR}".encode()


@dataclasses.dataclass(slots=True)
class NewMessage:
    """A message on its way into the store; the fields are those of its record.

    ``properties`` is the text that is stored. Bits of ``sys_flag`` that tell the width of hosts are set by whoever
    builds the record.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: Host = _NOBODY
    store_host: Host = _NOBODY
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    _pairs: Any = dataclasses.field(default=None, init=False, repr=False, compare=False)
    _pairs_of: Any = dataclasses.field(default=None, init=False, repr=False, compare=False)

    @property
    def pairs(self) -> dict[bytes, bytes]:
        """Its properties by name: parsed once, as long as ``properties`` do not change; nobody modifies them."""
        if self._pairs_of is not self.properties:
            self._pairs_of, self._pairs = self.properties, pairs_of(self.properties)
        pairs: dict[bytes, bytes] = self._pairs
        return pairs

    def add_pairs(self, properties: bytes, pairs: dict[bytes, bytes]) -> None:
        """Take these properties, which are its own followed by a few that are known."""
        self.pairs.update(pairs)
        self._pairs_of = self.properties = properties


class TopicField(NamedTuple):
    """What a topic makes of a record."""

    magic_code: int
    field: bytes  # its length and itself


def topic_field(topic: str) -> TopicField:
    r"""Return the topic part of a record: a topic of more than 127 bytes needs a v2 record.

    >>> topic_field("T")
    TopicField(magic_code=-626843481, field=b'\x01T')
    """
    raw = topic.encode("utf-8", "surrogateescape")
    if len(raw) > MAX_SHORT_TOPIC:
        return TopicField(commit_log.MAGIC_V2, _SHORT.pack(len(raw)) + raw)
    return TopicField(commit_log.MAGIC_V1, bytes([len(raw)]) + raw)


def host_bits(born_host: Host, store_host: Host) -> int:
    """Return the bits of ``sys_flag`` for hosts that have IPv6 addresses."""
    bits = commit_log.BORN_HOST_V6 if len(born_host[0]) == 16 else 0
    return bits | commit_log.STORE_HOST_V6 if len(store_host[0]) == 16 else bits


def record_size(message: NewMessage, topic: TopicField, properties_size: int) -> int:
    """Return how long a record will be; ``properties_size`` includes a CRC property."""
    addresses = len(message.born_host[0]) + len(message.store_host[0])
    return _FIXED_SIZE + addresses + len(message.body) + len(topic.field) + properties_size


_FIXED_SIZE: int = commit_log.HEADS[0].size - 8 + _SHORT.size


def build_record(
    message: NewMessage,
    topic: TopicField,
    properties: bytes,
    size: int,
    queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
) -> bytes:
    """Return the record of a message.

    Args:
        message: all but its properties are taken.
        topic: of the message.
        properties: the text, without a CRC property.
        size: by ``record_size``.
        queue_offset: its place in its queue.
        physical_offset: where the record goes.
        store_timestamp: when it is stored, in ms.
    """
    body, born_host, store_host = message.body, message.born_host, message.store_host
    sys_flag = message.sys_flag & ~_HOST_BITS
    if len(born_host[0]) > 4 or len(store_host[0]) > 4:
        sys_flag |= host_bits(born_host, store_host)
    head = _PACK_HEAD[sys_flag >> 4 & 3](
        size,
        topic.magic_code,
        zlib.crc32(body) & 0x7FFFFFFF,
        message.queue_id,
        message.flag,
        queue_offset,
        physical_offset,
        sys_flag,
        message.born_timestamp,
        *born_host,
        store_timestamp,
        *store_host,
        message.reconsume_times,
        message.prepared_transaction_offset,
        len(body),
    )
    return b"".join((head, body, topic.field, _SHORT.pack(len(properties)), properties))


_HOST_BITS = commit_log.BORN_HOST_V6 | commit_log.STORE_HOST_V6


def with_crc_place(properties: bytes) -> bytes:
    """Return properties that end in a CRC property still without its digits, which ``fill_crc`` puts there."""
    if properties and not properties.endswith(_PAIR):
        properties += _PAIR
    return properties + _CRC_HEAD + bytes(CRC_SIZE - len(_CRC_HEAD) - 1) + _PAIR


def fill_crc(record: bytes) -> bytes:
    """Return a record whose properties were made ``with_crc_place`` with the CRC of all before that property."""
    crc = zlib.crc32(memoryview(record)[:-CRC_SIZE]) & 0x7FFFFFFF
    return record[: -CRC_SIZE + len(_CRC_HEAD)] + crc_digits(crc) + _PAIR


class BatchElement(NamedTuple):
    """What a message of a batch has of its own; everything else is the batch's."""

    flag: int
    body: bytes
    properties: bytes
    born_timestamp: int


def one_of(batch: NewMessage, element: BatchElement) -> NewMessage:
    """Return a message of a batch as one of its own."""
    flag, body, properties, born_timestamp = element
    return NewMessage(
        batch.topic,
        batch.queue_id,
        body,
        properties,
        flag,
        batch.sys_flag,
        born_timestamp,
        batch.born_host,
        batch.store_host,
        batch.reconsume_times,
        batch.prepared_transaction_offset,
    )


MAX_OF_BATCH = 16_384
"""Messages of a batch: all of them are stored before anything else is."""


def split_batch(batch: NewMessage, most_bytes: int = 1 << 24) -> list[BatchElement]:
    """Return the messages of a batch, whose body is what ``CLIENT_BATCH`` describes.

    The properties of the batch are added to those of each.

    Args:
        batch: the batch.
        most_bytes: of its messages with their properties, in total.

    Raises:
        FormatError: the body is not a batch, or one of too many messages or bytes.
    """
    body, at = batch.body, 0
    elements: list[BatchElement] = []
    left = most_bytes - len(body)
    while at < len(body):
        try:
            size, _, _, flag, body_size = _ELEMENT.unpack_from(body, at)
            properties_at = at + _ELEMENT.size + body_size
            (properties_size,) = _SHORT.unpack_from(body, properties_at)
        except struct.error:
            size, body_size, properties_at, properties_size = 0, -1, 0, -1
        end = properties_at + _SHORT.size + properties_size
        if body_size < 0 or properties_size < 0 or end != at + size or end > len(body):
            raise FormatError("no message of a batch starts here", at)
        left -= len(batch.properties)
        if left < 0 or len(elements) == MAX_OF_BATCH:
            raise FormatError("the batch is too large from here on", at)
        properties = body[end - properties_size : end]
        if batch.properties:
            if properties and not properties.endswith(_PAIR):
                properties += _PAIR
            properties += batch.properties
        elements.append(BatchElement(flag, body[at + _ELEMENT.size : properties_at], properties, batch.born_timestamp))
        at = end
    return elements


def build_batch(
    batch: NewMessage,
    elements: Sequence[BatchElement],
    topic: TopicField,
    first_queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
) -> list[bytes]:
    """Return the records of messages that have most in common, end to end; the arguments are those of ``build_record``.

    Raises:
        struct.error: a number is too large for its field.
    """
    born_host, store_host = batch.born_host, batch.store_host
    sys_flag = batch.sys_flag & ~_HOST_BITS | host_bits(born_host, store_host)
    pack_head, pack_short, crc32 = _PACK_HEAD[sys_flag >> 4 & 3], _SHORT.pack, zlib.crc32
    other_size = record_size(batch, topic, 0) - len(batch.body)
    records, at = [], physical_offset
    for queue_offset, (flag, body, properties, born_timestamp) in enumerate(elements, first_queue_offset):
        size = other_size + len(body) + len(properties)
        head = pack_head(
            size,
            topic.magic_code,
            crc32(body) & 0x7FFFFFFF,
            batch.queue_id,
            flag,
            queue_offset,
            at,
            sys_flag,
            born_timestamp,
            *born_host,
            store_timestamp,
            *store_host,
            batch.reconsume_times,
            0,
            len(body),
        )
        records.append(b"".join((head, body, topic.field, pack_short(len(properties)), properties)))
        at += size
    return records
