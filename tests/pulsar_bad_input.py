"""Commands of Pulsar's protocol that no honest client sends: fields with any value, payloads that lie, broken frames.

Everything comes from a ``random.Random``, so that hypothesis can shrink it and a campaign can run quickly.
"""

import random
import struct
import zlib
from typing import Any

import lz4.block
import zstandard

from mqtool.engine.pulsar.compression import LZ4, NONE, SNAPPY, ZLIB, ZSTD
from mqtool.engine.pulsar.frames import Payload, build_batch_body, build_frame, build_message_frame, build_payload
from mqtool.engine.pulsar.wire import command
from mqtool.engine.pulsar.wire_classes import BaseCommand, MessageMetadata, SingleMetadata
from mqtool.engine.pulsar.wire_messages import TYPES

TOPICS = (
    *("persistent://public/default/a", "persistent://public/default/b", "persistent://public/default/wide-partition-1"),
    *("a", "persistent://public/default/none-partition-7", "non-persistent://public/default/n", "persistent://x/y/z"),
    *("", "/", "persistent://", "persistent://public/default/a b", "persistent://public/default/" + "x" * 300),
    *("persistent://public/default/SCHEDULE_TOPIC_XXXX", "persistent://public/default/%25RETRY%25s", "x" * 5000),
)
TEXTS = (
    *("", "s", "t", "s", "t", "public/default", "public/default/.*", "persistent://public/default/a.*", "x/y", "\0"),
    *("mqtool.tags", "mqtool.sql", "\U0001f600", "x" * 256, "x" * 40_000, "a.*" * 300, "(" * 900, "none", "token"),
)
DATA = (
    b"",
    b"k",
    b"TagA || TagB",
    b"a > 5 AND (",
    b"\xff\xfe",
    bytes(8),
    b"\0" * 7 + b"\1",
    b'{"type":"string"}',
    b"[" * 5000,
)
SMALL = (0, 0, 0, 1, 1, 2, 3)
LARGE = (10, 64, 100, 1000, 65_535, 65_536, (1 << 31) - 1)
HUGE = (1 << 31, (1 << 32) - 1)
VAST = (1 << 32, (1 << 63) - 1)
_ENUMS = ("subType", "ack_type", "producer_access_mode", "keySharedMode", "initialPosition", "type", "mode")
_IDS = ("consumer_id", "producer_id", "watcher_id")
OF_CLIENTS = (
    *("producer", "send", "send", "send", "send", "subscribe", "subscribe", "flow", "flow", "ack", "ack", "ack"),
    *("redeliver", "seek", "unsubscribe", "close_consumer", "close_producer", "get_last_message_id", "get_topics"),
    *("consumer_stats", "get_schema", "get_or_create_schema", "watch_topics", "watch_topics_close", "lookup"),
    *("partitioned_metadata", "ping", "pong", "new_transaction", "connect_coordinator", "end_transaction"),
)
_PLAIN = {"none": NONE, "lz4": LZ4, "zlib": ZLIB, "zstd": ZSTD, "snappy": SNAPPY, "unknown": 17}


def opening(chance: random.Random) -> bytes:
    """Return the frames that a connection begins with: mostly producers, and consumers that may be sent messages."""
    frames = [_frame("connect", client_version="hostile", protocol_version=21)]
    for number in range(chance.choice((0, *[2, 4] * 10))):
        topic = TOPICS[chance.randrange(3)]
        frames.append(_frame("producer", topic=topic, producer_id=number, request_id=number))
        kind = chance.randrange(4)
        subscription = f"of type {kind}"
        fields = {"topic": topic, "subscription": subscription, "subType": kind, "initialPosition": 1}
        frames.append(_frame("subscribe", **fields, consumer_id=number, request_id=number))
        frames.append(_frame("flow", consumer_id=number, messagePermits=chance.choice((1, 20, 1 << 31))))
    return b"".join(frames)


def _frame(name: str, **fields: Any) -> bytes:
    return build_frame(command(name, **fields))


def frame(chance: random.Random) -> bytes:
    """Return a frame: of a command that a client may send, with sensible values more often than with others."""
    if chance.random() < 0.004:
        return _broken(chance)
    name = chance.choice(OF_CLIENTS) if chance.random() < 0.995 else chance.choice([*TYPES])
    base = BaseCommand(type=TYPES[name])
    body = getattr(base, name)
    body.SetInParent()
    _fill(body, chance)
    if name == "send" and chance.random() < 0.97:
        body.producer_id = chance.randrange(2)
    made = b"".join(build_message_frame(base, payload(chance))) if name == "send" else build_frame(base)
    if chance.random() < 0.005:
        at = chance.randrange(4, len(made))  # its size stays
        made = made[:at] + bytes([chance.randrange(256)]) + made[at + 1 :]
    return made


def payload(chance: random.Random) -> bytes:
    """Return the payload of a SEND."""
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    if chance.random() < 0.5:
        _fill(metadata, chance)
    count = chance.choice((0, 0, 0, 1, 3, 40))
    body = bytes(chance.choice((0, 1, 100, 5000)))
    if count:
        metadata.num_messages_in_batch = count if chance.random() < 0.9 else chance.choice((-1, 0, 1 << 15, 1 << 17))
        singles = [
            SingleMetadata(payload_size=len(body) if chance.random() < 0.95 else _number(chance, 31))
            for _ in range(count)
        ]
        body = build_batch_body([Payload(single.SerializeToString(), body) for single in singles])
    if chance.random() < 0.4:
        metadata.compression = chance.choice([*_PLAIN.values()])
        metadata.uncompressed_size = len(body) if chance.random() < 0.7 else chance.choice((*LARGE, *HUGE))
        body = _compressed(body, metadata.compression)
    made = build_payload(metadata.SerializeToString(), body)
    if chance.random() < 0.03:
        at = chance.randrange(len(made))
        made = made[:at] + bytes([chance.randrange(256)]) + made[at + 1 :]
    return made if chance.random() < 0.97 else made[: chance.randrange(len(made))]


def _compressed(body: bytes, kind: int) -> bytes:
    if kind == LZ4:
        return bytes(lz4.block.compress(body, store_size=False))
    if kind == ZSTD:
        return zstandard.ZstdCompressor().compress(body)
    return zlib.compress(body) if kind == ZLIB else body


def _fill(message: Any, chance: random.Random, depth: int = 0) -> None:
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated:
            for _ in range(chance.choice((0, 0, 1, 2, 2, 70))):
                if field.message_type is not None:
                    _fill(getattr(message, field.name).add(), chance, depth + 1)
                else:
                    getattr(message, field.name).append(_value(field, chance))
        elif field.is_required or chance.random() < 0.3:
            if field.message_type is not None:
                part = getattr(message, field.name)
                part.SetInParent()
                _fill(part, chance, depth + 1)
            else:
                setattr(message, field.name, _value(field, chance))


def _value(field: Any, chance: random.Random) -> Any:
    if field.name == "topic":
        return chance.choice(TOPICS[: 3 if chance.random() < 0.8 else None])
    if field.type == field.TYPE_STRING:
        return chance.choice(TEXTS[: 6 if chance.random() < 0.8 else None])
    if field.name in _ENUMS and field.name != "ack_type":
        return chance.choice((0, 1, 2, 3)) if chance.random() < 0.99 else chance.choice((-1, 4, 99))
    if field.name == "ack_type" and chance.random() < 0.99:
        return chance.choice((0, 0, 1))
    if field.name == "messagePermits" and chance.random() < 0.98:
        return chance.choice((1, 10, 1000, (1 << 32) - 1))
    if field.name in _IDS and chance.random() < 0.95:
        return chance.choice(SMALL)
    if field.name == "ledgerId" and chance.random() < 0.8:
        return 1
    if field.type == field.TYPE_BYTES:
        return chance.choice(DATA)
    if field.type == field.TYPE_BOOL:
        return chance.random() < 0.5
    if field.type == field.TYPE_UINT64:
        return _number(chance, 64)
    if field.type == field.TYPE_UINT32:
        return _number(chance, 32)
    return _number(chance, 63 if field.type == field.TYPE_INT64 else 31) * chance.choice((1, 1, 1, -1))


def _number(chance: random.Random, bits: int) -> int:
    """Return a number that is not negative and has at most so many bits."""
    pool: tuple[int, ...] = SMALL
    if chance.random() > 0.7:
        pool = (*LARGE, *(HUGE if bits >= 32 else ()), *(VAST if bits >= 63 else ()), (1 << bits) - 1)
    return chance.choice(pool)


def _broken(chance: random.Random) -> bytes:
    """Return bytes after which a connection has to end."""
    kind = chance.randrange(4)
    if kind == 0:
        return struct.pack(">I", chance.choice((1 << 31, 5 << 20, (1 << 32) - 1)))
    if kind == 1:
        return struct.pack(">II", 8, 1 << 30) + bytes(4)
    if kind == 2:
        return struct.pack(">I", chance.randrange(4)) + bytes(4)
    data = chance.randbytes(chance.randrange(1, 60))
    return struct.pack(">II", 4 + len(data), len(data)) + data
