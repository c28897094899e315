"""Records of a commit log.

A record is sound when its sizes add up, its body matches its CRC (and its CRC property, where it has one), and topic
and properties can be read. It is in place when the address that it states is the one where it lies.
"""

import hashlib
import re
import struct
import zlib
from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import NamedTuple

MAGICS = {0xDAA320A7: 1, 0xDAA320AB: 2}
"""Magic codes of messages, and the bytes of their topic's length."""
BLANK = 0xCBD43194
LOST = "MQTOOL_LOST"
"""The property of placeholders, which says what was lost."""
UNDECIDED = (0x4, 0xC)
"""Transaction bits of records that lie in no queue: prepared and rolled back."""

_FIRST = struct.Struct(">IIiiiqqiq")  # up to the host of the producer
_MIDDLE = struct.Struct(">q")  # store timestamp
_LAST = struct.Struct(">iqi")  # behind the host of the broker
_LEAST = 91
_MAX_BATCH = (1 << 15) - 1
_ANY_MAGIC = re.compile(rb"\xda\xa3\x20[\xa7\xab]")
_PAIR = re.compile(rb"[^\x00\x01]+\x01(?:[^\x00\x01]*\x01)*[^\x01]*")
_CRC_PROPERTY = b"__CRC32#\x01"
_CRC_SIZE = 20


class JudgedRecord(NamedTuple):
    """One sound record; ``position`` is the address where it lies."""

    position: int
    size: int
    stated: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    flag: int
    born_timestamp: int
    store_timestamp: int
    reconsume_times: int
    body: bytes
    text: bytes  # of the properties

    @property
    def in_place(self) -> bool:
        return self.position == self.stated

    @property
    def is_queued(self) -> bool:
        return self.sys_flag & 0xC not in UNDECIDED

    @property
    def properties(self) -> dict[str, str]:
        return _properties(self.text)

    @property
    def is_placeholder(self) -> bool:
        return LOST.encode() + b"\1" in self.text

    @property
    def batch_size(self) -> int:
        """How many queue offsets it takes; an inner batch takes several."""
        found = self.properties if self.sys_flag & 0x80 else {}
        said = found.get("INNER_NUM", "")
        return min(int(said), _MAX_BATCH) if said.isascii() and said.isdecimal() else 1

    @property
    def first_offset(self) -> int:
        """The queue offset that brokers give it: an inner batch's stands in a property, whatever its head says."""
        return _first_offset(self.queue_offset, self.sys_flag, self.text)

    @property
    def keys(self) -> list[tuple[str, int, int]]:
        """Topic, queue and queue offset of each place where queues lead to it: its own and its light queues'."""
        return [*_keys(self.topic, self.queue_id, self.queue_offset, self.sys_flag, self.text)]

    def digest(self) -> bytes:
        """Return a hash of what an application sees: no addresses, no times of the broker, no CRC property."""
        return _digest(
            self.sys_flag & ~0x30, self.flag, self.born_timestamp, self.reconsume_times, self.text, self.body
        )


# The same records are judged again and again: before a damage, after it, and after its repair.


def _properties(text: bytes) -> dict[str, str]:
    pairs = (chunk.partition("\1") for chunk in text.decode("utf-8", "replace").split("\2"))
    return {name: value for name, _, value in pairs if name and value}


def _first_offset(queue_offset: int, sys_flag: int, text: bytes) -> int:
    base = _properties(text).get("INNER_BASE", "") if sys_flag & 0x80 else ""
    return int(base) if base.isascii() and base.isdecimal() else queue_offset


@lru_cache(1 << 14)
def _keys(topic: str, queue_id: int, queue_offset: int, sys_flag: int, text: bytes) -> tuple[tuple[str, int, int], ...]:
    if sys_flag & 0xC in UNDECIDED:
        return ()
    found = [(topic, queue_id, _first_offset(queue_offset, sys_flag, text))]
    if b"INNER_MULTI_DISPATCH" in text:
        properties = _properties(text)
        names = properties.get("INNER_MULTI_DISPATCH", "").split(",")
        offsets = properties.get("INNER_MULTI_QUEUE_OFFSET", "").split(",")
        for name, offset in zip(names, offsets, strict=False):
            if name.startswith("%LMQ%") and offset.isdecimal():
                found.append((name, 0, int(offset)))
    return tuple(found)


@lru_cache(1 << 14)
def _digest(sys_flag: int, flag: int, born_timestamp: int, reconsume_times: int, text: bytes, body: bytes) -> bytes:
    pairs = sorted((name, value) for name, value in _properties(text).items() if name != "__CRC32#")
    what = repr((sys_flag, flag, born_timestamp, reconsume_times, pairs))
    return hashlib.blake2b(what.encode() + b"\0" + body, digest_size=10).digest()


@lru_cache(64)
def _records(data: bytes, start: int | None, size: int) -> tuple[JudgedRecord, ...]:
    return tuple(_walk(data, start, size))


class JudgedSegment:
    """One file of a log: its name's number, None where the name is none, and its bytes."""

    def __init__(self, path: str, start: int | None, data: bytes, size: int) -> None:
        self.path = path
        self.start = start
        self.data = data
        self.size = size  # of a segment of this store

    @cached_property
    def records(self) -> list[JudgedRecord]:
        """All sound records, in the order in which they lie; what is not sound is stepped over byte by byte."""
        return [*_records(self.data, self.start, self.size)]

    def covers(self, address: int) -> bool:
        return self.start is not None and self.start <= address < self.start + self.size

    @property
    def in_place(self) -> Iterator[JudgedRecord]:
        limit = (self.start or 0) + self.size
        return (one for one in self.records if one.in_place and one.position + one.size <= limit)


def _walk(data: bytes, start: int | None, segment_size: int) -> Iterator[JudgedRecord]:
    base = start if start is not None else -1 << 60
    at, end = 0, len(data.rstrip(b"\0"))
    while at + 8 <= end:
        record = record_at(data, at, base)
        if record is not None:
            yield record
            at += record.size
            continue
        size, magic = struct.unpack_from(">II", data, at)
        if magic == BLANK and at + size == segment_size:
            at += size  # left-overs of its writer's buffer may follow; a file that is too long goes on
            continue
        found = _ANY_MAGIC.search(data, at + 5)
        if found is None:
            return
        at = found.start() - 4


def record_at(
    data: bytes, at: int, base: int = 0, with_doubtful: bool = False, with_bad_body: bool = False
) -> JudgedRecord | None:
    """Return the sound record at a place of a segment that starts at the address ``base``, None where there is none.

    ``with_doubtful``: also one of which only the properties cannot be read, or match no CRC.
    ``with_bad_body``: also one of which the body does not match its CRC.
    """
    if at + _LEAST > len(data):
        return None
    size, magic, body_crc, queue_id, flag, queue_offset, stated, sys_flag, born = _FIRST.unpack_from(data, at)
    if magic not in MAGICS or size < _LEAST or at + size > len(data):
        return None
    end = at + size
    here = at + _FIRST.size + (20 if sys_flag & 0x10 else 8)
    after = here + 8 + (20 if sys_flag & 0x20 else 8)
    if after + _LAST.size > end:
        return None
    (stored,) = _MIDDLE.unpack_from(data, here)
    reconsumed, _, body_size = _LAST.unpack_from(data, after)
    here = after + _LAST.size
    width = MAGICS[magic]
    if body_size < 0 or here + body_size + width + 2 > end:
        return None
    body = data[here : here + body_size]
    here += body_size
    topic_size = int.from_bytes(data[here : here + width], "big", signed=True)
    here += width
    if topic_size <= 0 or here + topic_size + 2 > end:
        return None
    topic = data[here : here + topic_size]
    here += topic_size
    text_size = int.from_bytes(data[here : here + 2], "big", signed=True)
    here += 2
    if text_size < 0 or here + text_size != end:
        return None
    text = data[here:end]
    if body and not with_bad_body and zlib.crc32(body) & 0x7FFFFFFF != body_crc:
        return None
    if not _can_be_read(topic, b"" if with_doubtful else text):
        return None
    if not with_doubtful and not _matches_property(data[at:end], text):
        return None
    name = topic.decode()
    return JudgedRecord(
        base + at, size, stated, name, queue_id, queue_offset, sys_flag, flag, born, stored, reconsumed, body, text
    )


def _can_be_read(topic: bytes, text: bytes) -> bool:
    """Tell whether the topic is text, and the properties are pairs without zeros where only a name can be.

    A broker delivers a value whatever its bytes are; so two pairs without their separator are one.
    """
    try:
        topic.decode()
    except UnicodeDecodeError:
        return False
    if any(byte < 0x20 or byte == 0x7F for byte in topic) or text[-1:] == b"\0":
        return False
    return all(_PAIR.fullmatch(chunk) for chunk in text.split(b"\2") if chunk)


def _matches_property(record: bytes, text: bytes) -> bool:
    if text[-_CRC_SIZE:-11] != _CRC_PROPERTY:
        return True
    digits = text[-11:-1]
    return digits.isdigit() and int(digits[::-1]) == zlib.crc32(record[:-_CRC_SIZE]) & 0x7FFFFFFF
