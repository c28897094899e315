"""Entries of Pulsar as RocketMQ messages, and RocketMQ messages as entries.

An entry is the content of one SEND. It is stored in one of three forms:

- *single*: one message with the decompressed body; ``PULSAR`` holds the metadata that has no place in RocketMQ.
- *batch*: each of its messages separately, one after the other; ``PULSAR_I`` is ``i/n``, ``PULSAR`` the metadata of
  the message, and ``PULSAR_B`` of the first one that of the entry.
- *raw*: one message whose body is the payload as received, ``PULSAR_RAW``: if it is encrypted, is a chunk of a message,
  or does not fit into properties.

A message without these properties is from a RocketMQ client. Cost: linear in the bytes of an entry.
(Rules: pulsar.md 8.3, 8.4.)
"""

import base64
import binascii
import functools
import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mqtool.engine.pulsar import compression
from mqtool.engine.pulsar.frames import (
    CHECKSUM_MARK,
    PADDING,
    Payload,
    build_batch_body,
    build_payload,
    split_batch_body,
    split_payload,
    varint,
    with_size,
    without_size,
)
from mqtool.engine.pulsar.wire import classes, parse, text_of
from mqtool.errors import FormatError
from mqtool.formats.commit_log import COMPRESSED
from mqtool.formats.compression import decompress
from mqtool.formats.new_message import MAX_PROPERTIES
from mqtool.formats.properties import pairs_of
from mqtool.formats.property_names import KEYS, OF_ROCKETMQ, SHARDING_KEY, TAGS, UNIQ_KEY
from mqtool.formats.stored_message import Parts, StoredMessage, stored_of

SINGLE, INDEX, OF_BATCH, RAW = b"PULSAR", b"PULSAR_I", b"PULSAR_B", b"PULSAR_RAW"
_OURS = frozenset((SINGLE, INDEX, OF_BATCH, RAW))
_KEYS, _TAGS, _SHARDING_KEY, _UNIQUE_KEY = KEYS.encode(), TAGS.encode(), SHARDING_KEY.encode(), UNIQ_KEY.encode()
_RESERVED = (frozenset(name.encode() for name in OF_ROCKETMQ) | _OURS) - {_TAGS}
_OF_BROKERS = _RESERVED - {INDEX, SINGLE}
_SEPARATORS = (b"\0", b"\1", b"\2")
_ROOM = 1024
"""Bytes of properties that a broker adds to a message."""
_ONLY_SINGLE = b"%b\1%%b\2" % SINGLE
_MEMBER_START = b"%b\1%%d/%%d\2%b\1" % (INDEX, SINGLE)
_MEMBER = _MEMBER_START + b"%b\2"
"""The properties that each message of a batch has."""
_PRODUCER_NAME, _LONGEST_NAME = 0x0A, 0x7F
_USUAL = re.compile(rb"\x10[\x80-\xff]{0,8}[\0-\x7f]\x18([\x80-\xff]{0,8}[\0-\x7f])(?:\x48[\x80-\xff]{0,3}[\0-\x7f])?")
"""``sequence_id`` and ``publish_time`` of metadata, and ``uncompressed_size``, which Java sends of all bodies."""
_new_tuple = tuple.__new__  # creates a named tuple in a third of the time
_base64 = functools.partial(binascii.b2a_base64, newline=False)
_from_base64 = functools.partial(binascii.a2b_base64, strict_mode=True)
_ELEMENT = struct.Struct(">iiiii")
_SHORT = struct.Struct(">h")
_PRODUCER = "rocketmq"
_OF_SINGLE = (
    "partition_key", "partition_key_b64_encoded", "ordering_key", "event_time", "null_value", "null_partition_key",
)  # fmt: skip
"""What a message of a batch and one outside a batch have in common."""
MAX_OF_BATCH = 1 << 15
"""Messages of a batch; one with more is stored raw."""
ROOM = 1 << 16
"""How much longer a message of the store may be than a Pulsar message: its properties take room."""
_COMMAND = 1024
"""Bytes of a frame outside its payload."""
_MOST_USUAL = 4096
"""Messages of a batch whose properties are compared with a list."""
_MAX_MESSAGES = 1 << 17
"""Of an entry of any form: their acknowledgements are kept as bits."""


class Record(NamedTuple):
    """Body and properties of a message to be stored."""

    body: bytes
    properties: bytes


class ToStore(NamedTuple):
    """An entry as it is to be stored: one record, or those of a batch."""

    records: list[Record]
    is_batch: bool
    publish_time: int  # ms
    is_plain: bool  # its only property is one of ours


def _usual_time(metadata: bytes) -> int | None:
    """Return the publish time of metadata that name producer, sequence id and time, as most do; None for others.

    That takes a fifth of the time of parsing them.
    """
    if len(metadata) < 2 or metadata[0] != _PRODUCER_NAME or metadata[1] > _LONGEST_NAME:
        return None
    name_end = 2 + metadata[1]
    usual = _USUAL.fullmatch(metadata, name_end)
    return varint(usual[1]) if usual and metadata[2:name_end].isascii() else None


def to_store(payload: bytes, most: int) -> ToStore:
    """Return an entry as it is to be stored.

    Args:
        payload: as the producer sent it.
        most: the maximum size of a body in the store. A decompressed body may be as long as clients accept.

    Raises:
        ChecksumError: the checksum is wrong.
        FormatError: it has no metadata, or claims an impossible number of messages.
    """
    raw, body = split_payload(payload)
    if (usual_time := _usual_time(raw)) is not None and len(raw) + len(body) <= longest_payload(most):
        record = _new_tuple(Record, (body, _ONLY_SINGLE % _base64(raw)))
        return _new_tuple(ToStore, ([record], False, usual_time, True))
    metadata = parse(classes.MessageMetadata, raw)
    _check_count(metadata)
    time = metadata.publish_time if metadata.publish_time < 1 << 63 else 0
    is_opaque = (
        metadata.HasField("marker_type")
        or metadata.HasField("chunk_id")
        or metadata.num_chunks_from_msg > 1
        or metadata.encryption_keys
    )
    if not is_opaque:
        is_batch = metadata.HasField("num_messages_in_batch")
        try:
            plain = compression.decompress(body, metadata.compression, metadata.uncompressed_size, most - ROOM)
            records = _batch(metadata, plain) if is_batch else [_single(metadata, raw, plain)]
            if len(raw) + len(plain) <= longest_payload(most) and _fit(records, most if is_batch else None):
                return ToStore(records, is_batch, time, False)
        except (FormatError, ImportError):
            pass  # its consumer may be able to
    if payload[:2] != CHECKSUM_MARK:
        payload = build_payload(raw, body)
    return ToStore([Record(payload, _joined([(RAW, b"1")]))], False, time, True)


def longest_payload(most: int) -> int:
    """Return the maximum size of a payload for clients, given the maximum size of a body in the store."""
    return most - ROOM + PADDING - _COMMAND


def _fit(records: Sequence[Record], most: int | None) -> bool:
    """Tell whether the properties of messages fit into the store, and all together into ``most`` bytes."""
    largest = size = 0
    for body, properties in records:
        largest = max(largest, len(properties))
        size += _ELEMENT.size + _SHORT.size + len(body) + len(properties) + _ROOM
    return largest + _ROOM <= MAX_PROPERTIES and (most is None or size <= most)


def _check_count(metadata: Any) -> None:
    if metadata.num_messages_in_batch > _MAX_MESSAGES:
        raise FormatError(f"a batch of {metadata.num_messages_in_batch:,} messages", 0)


def batch_body(records: Iterable[Record]) -> bytes:
    """Return the body of a batch as RocketMQ clients send it."""
    parts: list[bytes] = []
    for body, properties in records:
        size = _ELEMENT.size + len(body) + _SHORT.size + len(properties)
        parts += (_ELEMENT.pack(size, 0, 0, 0, len(body)), body, _SHORT.pack(len(properties)), properties)
    return b"".join(parts)


def _single(metadata: Any, raw: bytes, body: bytes) -> Record:
    """Return a message as it is stored; this modifies the metadata, of which ``raw`` is the text."""
    if not (metadata.compression or metadata.properties or metadata.HasField("partition_key")):  # most messages
        return Record(body, _ONLY_SINGLE % _base64(raw))
    metadata.ClearField("compression")
    metadata.ClearField("uncompressed_size")
    pairs = _visible(metadata)
    return Record(body, _joined([*pairs, (SINGLE, _text(metadata))]))


def _batch(metadata: Any, body: bytes) -> list[Record]:
    count = metadata.num_messages_in_batch
    if not 0 < count <= MAX_OF_BATCH:
        raise FormatError(f"a batch of {count} messages", 0)
    metadata.ClearField("compression")
    metadata.ClearField("uncompressed_size")
    records = []
    for number, (raw, payload) in enumerate(split_batch_body(body, count)):
        visible, rest = b"", without_size(raw)
        if rest is None:
            single = parse(classes.SingleMetadata, raw)
            visible = _joined(_visible(single))
            single.payload_size = 0  # known from the body
            rest = single.SerializeToString()
        records.append(Record(payload, visible + _MEMBER % (number, count, _base64(rest))))
    first = records[0]
    records[0] = first._replace(properties=first.properties + _joined([(OF_BATCH, _text(metadata))]))
    return records


def _visible(metadata: Any) -> list[tuple[bytes, bytes]]:
    """Return key and properties in RocketMQ's form; those that it can represent fully are removed from the metadata."""
    pairs, names = [], set()
    is_whole = True
    for pair in metadata.properties:
        if _fits(pair.key) and _fits(pair.value) and pair.key not in _RESERVED and pair.key not in names:
            pairs.append((pair.key, pair.value))
            names.add(pair.key)
        else:
            is_whole = False
    if is_whole:
        metadata.ClearField("properties")
    if metadata.partition_key and _fits(metadata.partition_key):
        pairs.append((_KEYS, metadata.partition_key))
    return pairs


def _fits(text: bytes) -> bool:
    if not text or any(separator in text for separator in _SEPARATORS):
        return False
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _text(message: Any) -> bytes:
    return _base64(message.SerializeToString())


def _joined(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join([b"%b\1%b\2" % pair for pair in pairs])


class Entry(NamedTuple):
    """An entry as it is sent to consumers."""

    offset: int
    """Of its first message in the queue."""
    size: int
    """How many messages of the queue it is."""
    messages: int
    """How many Pulsar messages it contains, which differs from ``size`` for raw ones."""
    is_batch: bool
    payload: bytes
    key: bytes
    """The key by which Key_Shared assigns it to a consumer."""
    deliver_at: int
    """ms since 1970, 0: at once."""
    is_marker: bool
    """Not a message, or an unreadable one: it is never delivered to consumers."""
    chunk_of: str
    """The id that the chunks of a message share, empty for a whole message."""
    length: int
    """Its size on the wire, in bytes."""
    properties: tuple[bytes, ...] = ()
    """The properties of each of its messages, as stored; empty for a raw one."""
    is_slow: bool = False
    """It was too long for clients and had to be compressed, which takes milliseconds."""

    @property
    def end(self) -> int:
        """The offset after it."""
        return self.offset + self.size


def place_in_batch(pairs: Mapping[bytes, bytes]) -> tuple[int, int]:
    """Return the index of a stored message in its batch, and the batch's size; (0, 1) without a batch."""
    number, _, count = pairs.get(INDEX, b"").partition(b"/")
    if not (number.isdigit() and count.isdigit() and len(number) < 7 and len(count) < 7):
        return 0, 1
    place = int(number), int(count)
    return place if place[0] < place[1] <= MAX_OF_BATCH else (0, 1)


def entry_of(records: Sequence[StoredMessage], most: int) -> Entry:
    """Return the entry of one message, or of all messages of a batch in their order.

    Args:
        records: of the store.
        most: the maximum size of a body in the store. A payload that is too long for clients is compressed; if that
            is not enough, the entry is a marker without a payload.
    """
    entry = _entry_of(records, most)
    if len(entry.payload) <= longest_payload(most):
        return entry
    raw, body = split_payload(entry.payload)
    metadata = parse(classes.MessageMetadata, raw)
    if not metadata.compression:
        metadata.compression, metadata.uncompressed_size = compression.ZLIB, len(body)
        payload = build_payload(metadata.SerializeToString(), zlib.compress(body, 1))
        if len(payload) <= longest_payload(most):
            return entry._replace(payload=payload, length=len(payload), is_slow=True)
    return _nothing(records)._replace(is_slow=True)


def _nothing(records: Sequence[StoredMessage]) -> Entry:
    return Entry(records[0].queue_offset, len(records), 1, False, b"", b"", 0, True, "", 0)


def _entry_of(records: Sequence[StoredMessage], most: int) -> Entry:
    first = records[0]
    pairs = first.message.pairs
    try:
        if len(records) > 1 or OF_BATCH in pairs:
            return _stored_batch(records, pairs, most)
        if INDEX in pairs:
            return _stored_apart(first, pairs, most)
        if RAW in pairs:
            return _stored_raw(first, most)
        if SINGLE in pairs:
            metadata = parse(classes.MessageMetadata, _from_base64(pairs[SINGLE]))
            _restore_properties(metadata, pairs)
            return _entry(records, metadata, _plain_body(first, most))
    except (FormatError, binascii.Error):
        if RAW in pairs:  # there is nothing else to send
            return _nothing(records)
    return _of_rocketmq(first, pairs, most)


def usual_batch(parts: Sequence[Parts], most: int) -> Entry | None:
    """Return what ``entry_of`` returns for the messages of a batch that have no key or property, as most have none.

    That takes half the time.

    Args:
        parts: of records that follow each other in the log.
        most: the maximum size of a body in the store.

    Returns:
        The entry; None if this is anything else, or anything about it is unusual.
    """
    first, count = stored_of(parts[0]), len(parts)
    pairs, message, at = first.message.pairs, first.message, first.queue_offset
    if place_in_batch(pairs) != (0, count) or count > _MOST_USUAL or message.sys_flag & COMPRESSED:
        return None
    same = message.sys_flag, message.born_timestamp, first.store_timestamp
    messages: list[tuple[bytes, bytes]] = []
    for number, (start, (head, body, _, properties)) in enumerate(zip(_starts_of(count), parts, strict=True)):
        if head[5] != at + number or (head[7], head[8], head[11]) != same or not properties.startswith(start):
            return None
        single, _, others = properties[len(start) :].partition(b"\2")
        if not single or not _are_usual(others):
            return None
        try:
            text = with_size(_from_base64(single), len(body))
        except binascii.Error:
            return None
        if text is None:
            return None
        messages.append((text, body))
    try:
        metadata = parse(classes.MessageMetadata, _from_base64(pairs.get(OF_BATCH, b"")))
        metadata.num_messages_in_batch = count
        entry = _entry_at(at, [properties for *_, properties in parts], metadata, build_batch_body(messages))
    except (FormatError, binascii.Error):
        return None
    return entry if len(entry.payload) <= longest_payload(most) else None


@functools.lru_cache(16)
def _starts_of(count: int) -> list[bytes]:
    """Return how the properties of the messages of a batch begin."""
    return [_MEMBER_START % (number, count) for number in range(count)]


@functools.lru_cache(64)
def _are_usual(properties: bytes) -> bool:
    """Return whether these properties of a message of a batch, behind its own, have no meaning for consumers."""
    return _OF_BROKERS.issuperset(pairs_of(properties))


def _entry(records: Sequence[StoredMessage], metadata: Any, body: bytes, payload: bytes = b"") -> Entry:
    properties = [record.message.properties for record in records]
    return _entry_at(records[0].queue_offset, properties, metadata, body, payload)


def _entry_at(offset: int, properties: Sequence[bytes], metadata: Any, body: bytes, payload: bytes = b"") -> Entry:
    _check_count(metadata)
    is_raw = bool(payload)
    payload = payload or build_payload(metadata.SerializeToString(), body)
    is_batch = metadata.HasField("num_messages_in_batch")
    return Entry(
        offset,
        len(properties),
        max(metadata.num_messages_in_batch, 1) if is_batch else 1,
        is_batch,
        payload,
        sticky_key(metadata),
        metadata.deliver_at_time,
        metadata.HasField("marker_type"),
        text_of(metadata.uuid) if metadata.HasField("chunk_id") else "",
        len(payload),
        () if is_raw else tuple(properties),
    )


def sticky_key(metadata: Any) -> bytes:
    """Return the key by which the messages of an entry are kept in order."""
    if metadata.HasField("ordering_key"):
        return bytes(metadata.ordering_key)
    if metadata.HasField("partition_key"):
        key = bytes(metadata.partition_key)
        if metadata.partition_key_b64_encoded:
            try:
                return base64.b64decode(key)
            except binascii.Error:
                return key
        return key
    return f"{text_of(metadata.producer_name)}-{metadata.sequence_id}".encode()


def sender_of(entry: Entry) -> tuple[str, int] | None:
    """Return the producer of an entry and its highest sequence id, None if there is none.

    RocketMQ messages, markers, and messages that are separated from their batch have none. All chunks of a message
    have the same sequence id: it is returned for the last one only.
    """
    if entry.is_marker:
        return None
    if entry.properties:
        pairs = pairs_of(entry.properties[0])
        if SINGLE not in pairs or (INDEX in pairs and OF_BATCH not in pairs):
            return None
    metadata = metadata_of(entry.payload)
    if is_followed_by_chunks(metadata):
        return None
    return text_of(metadata.producer_name), max(signed(metadata.sequence_id), signed(metadata.highest_sequence_id))


def metadata_of(payload: bytes) -> Any:
    """Return the metadata of a payload; raises ``FormatError``."""
    return parse(classes.MessageMetadata, split_payload(payload).metadata)


def is_followed_by_chunks(metadata: Any) -> bool:
    """Tell whether a payload is a chunk of a message, and not the last one."""
    return bool(metadata.HasField("chunk_id") and metadata.chunk_id != metadata.num_chunks_from_msg - 1)


def signed(number: int) -> int:
    """Return an unsigned 64-bit number as clients interpret it, which is signed."""
    return number - (1 << 64) if number >> 63 else number


def _restore_properties(metadata: Any, pairs: Mapping[bytes, bytes]) -> None:
    if not metadata.properties:
        for name, value in pairs.items():
            if name not in _RESERVED:
                metadata.properties.add(key=name, value=value)


def _stored_batch(records: Sequence[StoredMessage], pairs: Mapping[bytes, bytes], most: int) -> Entry:
    metadata = parse(classes.MessageMetadata, _from_base64(pairs.get(OF_BATCH, b"")))
    messages = []
    for record in records:
        of_one, body = record.message.pairs, _plain_body(record, most)
        raw = _from_base64(of_one.get(SINGLE, b""))
        text = with_size(raw, len(body)) if _RESERVED.issuperset(of_one) else None
        if text is None:
            single = parse(classes.SingleMetadata, raw)
            _restore_properties(single, of_one)
            single.payload_size = len(body)
            text = single.SerializeToString()
        messages.append(Payload(text, body))
    metadata.num_messages_in_batch = len(records)
    return _entry(records, metadata, build_batch_body(messages))


def _stored_apart(record: StoredMessage, pairs: Mapping[bytes, bytes], most: int) -> Entry:
    """Return a message of a batch without the first one, which has their common metadata: a resent dead letter."""
    single = parse(classes.SingleMetadata, _from_base64(pairs.get(SINGLE, b"")))
    _restore_properties(single, pairs)
    metadata = _metadata_of_rocketmq(record)
    metadata.properties.extend(single.properties)
    for field in _OF_SINGLE:
        if single.HasField(field):
            setattr(metadata, field, getattr(single, field))
    return _entry([record], metadata, _plain_body(record, most))


def _stored_raw(record: StoredMessage, most: int) -> Entry:
    payload = _plain_body(record, most)  # of a copy that a RocketMQ client has made, it may be compressed
    metadata = parse(classes.MessageMetadata, split_payload(payload).metadata)
    return _entry([record], metadata, b"", payload)


def _of_rocketmq(record: StoredMessage, pairs: Mapping[bytes, bytes], most: int) -> Entry:
    metadata = _metadata_of_rocketmq(record)
    words = pairs.get(_KEYS, b"").split()
    if key := pairs.get(_SHARDING_KEY) or (words[0] if words else b""):
        metadata.partition_key = key
    for name, value in pairs.items():
        if name not in _RESERVED or name == _UNIQUE_KEY:
            metadata.properties.add(key=name, value=value)
    return _entry([record], metadata, _plain_body(record, most))


def _metadata_of_rocketmq(record: StoredMessage) -> Any:
    return classes.MessageMetadata(
        producer_name=_PRODUCER, sequence_id=record.queue_offset, publish_time=max(record.store_timestamp, 0)
    )


def _plain_body(record: StoredMessage, most: int) -> bytes:
    """Return the body of a message, decompressed if a RocketMQ client has compressed it.

    A body that cannot be decompressed, or would be longer than a stored body may be, is returned unchanged.
    """
    try:
        return decompress(record.message.body, record.message.sys_flag, most)
    except FormatError:
        return record.message.body
