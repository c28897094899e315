"""The table of damages: what can happen to a store, each kind drawn at random places with random values.

A damage is a list of operations as ``tests/damage.py`` carries them out; everything random is drawn here, so that a
case is told by its operations alone.
"""

import functools
import random
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.damage import Operation
from tests.golden import GOLDEN_NAMES, golden_store, manifest
from tests.judge.log import JudgedRecord
from tests.judge.store import JudgedStore

BASES = {
    name: {"timer": 1, "rocksdb": 1, "many": 1, "mixed": 2, "multipath": 2}.get(name.partition("-")[0], 3)
    for name in GOLDEN_NAMES
    if not name.startswith("dledger")
}
"""Golden stores and how often each is damaged; a DLedger log is left to its peers by every repair."""

_PAGES = (16, 64, 512, 4096, 4096, 16384)
_UNIT, _BATCH_UNIT = 20, 46
_INDEX_HEAD, _ENTRY = 40, 20

Ops = list[Operation]
Kind = Callable[["Base", random.Random], Ops]


class Base:
    """A golden store that is to be damaged: what there is in it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.root = golden_store(name)
        self.config = manifest(name)["config"]
        self.judged = JudgedStore(self.root, self.config)
        self.records = sorted(self.judged.records.values())
        self.segments = [(one.start or 0, one.path) for one in self.judged.segments]
        self.segment_size = self.judged.segment_size
        self.end = self.judged.end_offset

    @functools.cached_property
    def by_queue(self) -> list[list[JudgedRecord]]:
        """The records of each queue."""
        found: dict[tuple[str, int], list[JudgedRecord]] = {}
        for record in self.records:
            if record.is_queued:
                found.setdefault((record.topic, record.queue_id), []).append(record)
        return list(found.values())

    def files(self, *patterns: str) -> list[str]:
        """Return files, relative to the store, by patterns."""
        paths = {path for pattern in patterns for path in self.root.glob(pattern) if path.is_file()}
        return sorted(str(path.relative_to(self.root)) for path in paths)

    def size(self, file: str) -> int:
        return (self.root / file).stat().st_size

    def read(self, file: str, at: int = 0, size: int = -1) -> bytes:
        with (self.root / file).open("rb") as stream:
            stream.seek(at)
            return stream.read(size)

    def place(self, address: int) -> tuple[str, int]:
        """Return the segment that holds an address, and the byte in it."""
        start, file = max(one for one in self.segments if one[0] <= address)
        return file, address - start

    def used_segments(self) -> list[tuple[int, str]]:
        return [one for one in self.segments if one[0] < self.end]


@functools.cache
def base_of(name: str) -> Base:
    return Base(name)


# Places


def _record(base: Base, chance: random.Random) -> JudgedRecord:
    """Draw a record, those in special places as often as all others together."""
    role = chance.choice(("any", "any", "any", "first", "last", "only", "segment first", "segment last", "odd"))
    queues = base.by_queue
    if role == "only":
        queues = [queue for queue in queues if len(queue) == 1] or queues
    if role in ("first", "last", "only"):
        return chance.choice(queues)[-1 if role == "last" else 0]
    if role.startswith("segment"):
        start, _ = chance.choice(base.used_segments())
        inside = [one for one in base.records if start <= one.position < start + base.segment_size] or base.records
        return inside[0 if role.endswith("first") else -1]
    if role == "odd":  # light queues, transactions, batches, delayed
        odd = [one for one in base.records if len(one.keys) != 1 or one.sys_flag & 0xCC or one.topic[0] in "%RS"]
        return chance.choice(odd or base.records)
    return chance.choice(base.records)


def _file(base: Base, chance: random.Random, *patterns: str) -> str | None:
    found = [one for one in base.files(*patterns) if base.size(one)]
    return chance.choice(found) if found else None


def _page(base: Base, chance: random.Random) -> tuple[str, int, int]:
    """Draw a page of the log in use: file, byte, size."""
    size = chance.choice(_PAGES)
    file, at = base.place(chance.randrange(base.end) // size * size)
    return file, at, min(size, base.size(file) - at)


# Values


def _write(file: str, at: int, data: bytes) -> Operation:
    return {"op": "write", "file": file, "at": at, "hex": data.hex()}


def _zero(file: str, at: int, size: int) -> Operation:
    return {"op": "zero", "file": file, "at": at, "len": size}


def _number(base: Base, file: str, at: int, width: int, chance: random.Random, others: list[int]) -> Ops:
    """Write a number over another: one that could be, or one that could never be.

    ``others`` are places of the same field elsewhere in the file.
    """
    old = int.from_bytes(base.read(file, at, width), "big", signed=True)
    most = (1 << 8 * width - 1) - 1
    if others and chance.random() < 0.3:
        value = int.from_bytes(base.read(file, chance.choice(others), width), "big", signed=True)
    else:
        value = chance.choice(
            (
                0, 1, -1, old + 1, old - 1, old + chance.randrange(2, 100), old ^ 1 << chance.randrange(8 * width),
                -old, most, most - 1, -most - 1, 1 << chance.randrange(8 * width - 1), chance.randrange(most), old * 2,
            )
        )  # fmt: skip
    data = (value & (1 << 8 * width) - 1).to_bytes(width, "big")
    return [_write(file, at, data)]


def _flip(base: Base, file: str, at: int, chance: random.Random) -> Ops:
    value = base.read(file, at, 1)[0]
    return [_write(file, at, bytes([value ^ 1 << chance.randrange(8)]))]


# Records


def _fields(record: JudgedRecord, start: int) -> dict[str, tuple[int, int]]:
    """Return place and width of each number of a record that begins at a byte of a file."""
    born, stored = (20 if record.sys_flag & bit else 8 for bit in (0x10, 0x20))
    fields = {}
    at = start
    for name, width in (
        ("total_size", 4), ("magic", 4), ("body_crc", 4), ("queue_id", 4), ("flag", 4), ("queue_offset", 8),
        ("physical_offset", 8), ("sys_flag", 4), ("born_timestamp", 8), ("born_host", born), ("store_timestamp", 8),
        ("store_host", stored), ("reconsume_times", 4), ("prepared_offset", 8), ("body_size", 4),
        ("body", len(record.body)),
    ):  # fmt: skip
        fields[name] = (at, width)
        at += width
    texts = len(record.topic.encode()), len(record.text)
    width = start + record.size - at - 2 - sum(texts)
    fields["topic_size"] = (at, width)
    fields["topic"] = (at + width, texts[0])
    fields["properties_size"] = (at + width + texts[0], 2)
    fields["properties"] = (at + width + texts[0] + 2, texts[1])
    return fields


def record_number(base: Base, chance: random.Random) -> Ops:
    record = _record(base, chance)
    file, at = base.place(record.position)
    numbers = {name: place for name, place in _fields(record, at).items() if place[1] in (1, 2, 4, 8)}
    for name in ("body", "topic", "properties", "born_host", "store_host"):
        numbers.pop(name, None)
    name = chance.choice(list(numbers))
    other = chance.choice(base.records)
    other_file, other_at = base.place(other.position)
    others = [_fields(other, other_at)[name][0]] if other_file == file else []
    return _number(base, file, *numbers[name], chance, others)


def record_flip(base: Base, chance: random.Random) -> Ops:
    record = _record(base, chance)
    file, at = base.place(record.position)
    start, size = chance.choice([place for place in _fields(record, at).values() if place[1]])
    return _flip(base, file, start + chance.randrange(size), chance)


def record_part_zeroed(base: Base, chance: random.Random) -> Ops:
    """Zero a record, or one of its parts: its head, body, topic or properties."""
    record = _record(base, chance)
    file, at = base.place(record.position)
    fields = _fields(record, at)
    parts = [(at, record.size), (at, 88), *(fields[name] for name in ("body", "topic", "properties")), (at, 8)]
    start, size = chance.choice([part for part in parts if part[1]])
    return [_zero(file, start, size)]


def records_zeroed(base: Base, chance: random.Random) -> Ops:
    """Zero some records that follow each other."""
    number = base.records.index(_record(base, chance))
    run = base.records[number : number + chance.choice((2, 3, 10))]
    return [_zero(*base.place(one.position), one.size) for one in run]


def record_torn(base: Base, chance: random.Random) -> Ops:
    record = _record(base, chance)
    file, at = base.place(record.position)
    kept = chance.randrange(record.size)
    return [_zero(file, at + kept, record.size - kept)]


def record_copied(base: Base, chance: random.Random) -> Ops:
    """Copy a record over another, or behind the end of the log."""
    source, target = _record(base, chance), _record(base, chance)
    file, at = base.place(source.position)
    to, to_at = base.place(chance.choice((target.position, target.position, base.end)))
    size = min(source.size, base.size(to) - to_at)
    return [{"op": "copy", "file": file, "at": at, "len": size, "to": to, "to_at": to_at}] if size else []


def records_swapped(base: Base, chance: random.Random) -> Ops:
    one = _record(base, chance)
    like = [other for other in base.records if other.size == one.size and other is not one]
    other = chance.choice(like or base.records)
    (file, at), (to, to_at) = base.place(one.position), base.place(other.position)
    if one is other or abs(one.position - other.position) < max(one.size, other.size):
        return []
    size = min(one.size, other.size)
    return [{"op": "swap bytes", "file": file, "at": at, "len": size, "to": to, "to_at": to_at}]


# Properties: names end in \x01, values in \x02


def _properties(base: Base, record: JudgedRecord) -> tuple[str, int]:
    """Return where the properties of a record begin: file and byte."""
    file, at = base.place(record.position)
    return file, _fields(record, at)["properties"][0]


def _pairs(record: JudgedRecord) -> list[tuple[int, int, int]]:
    """Return each property of a record: where its name, its value and the next property begin in its text."""
    pairs = []
    start = 0
    while (middle := record.text.find(b"\x01", start)) >= 0:
        stop = record.text.find(b"\x02", middle) + 1 or len(record.text)
        pairs.append((start, middle + 1, stop))
        start = stop
    return pairs


def property_name_flip(base: Base, chance: random.Random) -> Ops:
    record = _record(base, chance)
    file, at = _properties(base, record)
    if not (pairs := _pairs(record)):
        return []
    start, value, _ = chance.choice(pairs)
    return _flip(base, file, at + chance.randrange(start, value - 1), chance) if value - 1 > start else []


def property_separator(base: Base, chance: random.Random) -> Ops:
    """Write another byte over what separates names and values, or over what stands beside it."""
    record = _record(base, chance)
    file, at = _properties(base, record)
    separators = [place for place, byte in enumerate(record.text) if byte in b"\x01\x02"]
    if not separators:
        return []
    place = chance.choice(separators)
    if chance.random() < 0.3:  # one more
        return [_write(file, at + max(0, place - chance.randrange(1, 8)), chance.choice((b"\x01", b"\x02")))]
    return [_write(file, at + place, chance.choice((b"\x01", b"\x02", b"\0", b" ", b"\xff", b"a")))]


def property_doubled(base: Base, chance: random.Random) -> Ops:
    """Write one property of a record over another, as far as that goes without making its text longer."""
    record = _record(base, chance)
    file, at = _properties(base, record)
    pairs = _pairs(record)
    if len(pairs) < 2:
        return []
    (start, _, stop), (to, _, to_stop) = chance.sample(pairs, 2)
    size = min(stop - start, chance.choice((to_stop, len(record.text))) - to)
    return [_write(file, at + to, record.text[start : start + size])]


def properties_of_another(base: Base, chance: random.Random) -> Ops:
    """Write the properties of another record over those of a record; of the same length, where there is one."""
    record = _record(base, chance)
    like = [other for other in base.records if len(other.text) == len(record.text) and other.text != record.text]
    other = chance.choice(like if like and chance.random() < 0.7 else base.records)
    size = min(len(record.text), len(other.text))
    file, at = _properties(base, record)
    return [_write(file, at, other.text[:size])] if size and other.text[:size] != record.text[:size] else []


def property_crc(base: Base, chance: random.Random) -> Ops:
    """Damage the property that holds a record's checksum: its name, its digits, or the bytes around."""
    with_crc = [one for one in base.records if b"__CRC32#\x01" in one.text]
    if not with_crc:
        return []
    record = chance.choice(with_crc)
    file, at = _properties(base, record)
    at += record.text.rindex(b"__CRC32#\x01")
    parts = ((0, 8), (8, 1), (9, 10), (19, 1), (0, 20))  # name, separator, digits, separator, all of it
    start, size = chance.choice(parts)
    if chance.random() < 0.3:
        return [_zero(file, at + start, size)]
    if size == 10 and chance.random() < 0.5:
        return [_write(file, at + start, b"%010d" % chance.randrange(1 << 31))]
    return _flip(base, file, at + start + chance.randrange(size), chance)


def bytes_inserted(base: Base, chance: random.Random) -> Ops:
    record = _record(base, chance)
    file, at = base.place(record.position)
    at += chance.choice((0, chance.randrange(record.size)))
    data = chance.choice((bytes(chance.choice((1, 4, 100, 4096))), chance.randbytes(chance.choice((1, 8, 200)))))
    return [{"op": "insert", "file": file, "at": at, "hex": data.hex(), "keep": chance.random() < 0.8}]


def bytes_cut_out(base: Base, chance: random.Random) -> Ops:
    record = _record(base, chance)
    file, at = base.place(record.position)
    at += chance.choice((0, chance.randrange(record.size)))
    size = chance.choice((record.size, 1, 4, 100, 4096))
    return [{"op": "excise", "file": file, "at": at, "len": size, "keep": chance.random() < 0.8}]


def page_zeroed(base: Base, chance: random.Random) -> Ops:
    return [_zero(*_page(base, chance))]


def page_garbled(base: Base, chance: random.Random) -> Ops:
    file, at, size = _page(base, chance)
    data = chance.choice((chance.randbytes(size), b"\xff" * size, b"\xaa" * size))
    return [_write(file, at, data)]


def page_repeated(base: Base, chance: random.Random) -> Ops:
    file, at, size = _page(base, chance)
    to, to_at, other = _page(base, chance)
    return [{"op": "copy", "file": file, "at": at, "len": min(size, other), "to": to, "to_at": to_at}]


def pages_swapped(base: Base, chance: random.Random) -> Ops:
    file, at, size = _page(base, chance)
    to, to_at, other = _page(base, chance)
    size = min(size, other)
    if file == to and abs(at - to_at) < size:
        return []
    return [{"op": "swap bytes", "file": file, "at": at, "len": size, "to": to, "to_at": to_at}]


def log_tail_zeroed(base: Base, chance: random.Random) -> Ops:
    first = chance.choice((chance.randrange(base.end), _record(base, chance).position))
    return [
        _zero(file, max(first - start, 0), base.size(file) - max(first - start, 0))
        for start, file in base.segments
        if start + base.size(file) > first
    ]


def blank_changed(base: Base, chance: random.Random) -> Ops:
    blanks = manifest(base.name)["blanks"]
    if not blanks:
        return []
    file, at = base.place(chance.choice(blanks)[0])
    if chance.random() < 0.3:
        return [_zero(file, at, 8)]
    return _number(base, file, at + chance.choice((0, 4)), 4, chance, [])


# Segments


def _next_name(base: Base, file: str, count: int = 1) -> str:
    return str(Path(file).with_name(f"{int(Path(file).name) + count * base.segment_size:020}"))


def segment_missing(base: Base, chance: random.Random) -> Ops:
    return [{"op": "delete", "path": file} for _, file in _some(base.segments, chance)]


def _some(segments: list[tuple[int, str]], chance: random.Random) -> list[tuple[int, str]]:
    first = chance.randrange(len(segments))
    return segments[first : first + chance.choice((1, 1, 1, 2))]


def segment_length(base: Base, chance: random.Random) -> Ops:
    _, file = chance.choice(base.segments)
    size = base.size(file)
    sizes = (0, 0, 1, chance.randrange(size), size - 1, size + 1, size + 4096, 2 * size, size - 4096)
    return [{"op": "resize", "file": file, "size": max(0, chance.choice(sizes))}]


def segments_swapped(base: Base, chance: random.Random) -> Ops:
    if len(base.segments) < 2:
        return []
    (_, one), (_, other) = chance.sample(base.segments, 2)
    return [{"op": "swap", "path": one, "to": other}]


def segment_renamed(base: Base, chance: random.Random) -> Ops:
    _, file = chance.choice(base.segments)
    path = Path(file)
    last = base.segments[-1][1]
    names = (
        f"{path.name}.bak", path.name[1:], "x" * 20, f"{int(path.name) + 1:020}", _next_name(base, last, 1),
        _next_name(base, last, 2), _next_name(base, last, 1000), f"{int(path.name) + base.segment_size // 2:020}",
    )  # fmt: skip
    return [{"op": "rename", "path": file, "to": str(path.with_name(Path(chance.choice(names)).name))}]


def segment_duplicated(base: Base, chance: random.Random) -> Ops:
    _, file = chance.choice(base.segments)
    last = base.segments[-1][1]
    targets = [_next_name(base, last), f"{file}.bak", chance.choice(base.segments)[1]]
    others = {str(Path(one).parent) for _, one in base.segments} - {str(Path(file).parent)}
    targets += [f"{folder}/{Path(file).name}" for folder in others]
    target = chance.choice(targets)
    return [{"op": "duplicate", "path": file, "to": target}] if target != file else []


def segment_moved(base: Base, chance: random.Random) -> Ops:
    """Into another folder of the log, or out of it."""
    _, file = chance.choice(base.segments)
    folders = {str(Path(one).parent) for _, one in base.segments} - {str(Path(file).parent)}
    return [{"op": "rename", "path": file, "to": f"{chance.choice([*sorted(folders), '.'])}/{Path(file).name}"}]


def segment_added(base: Base, chance: random.Random) -> Ops:
    last = base.segments[-1][1]
    name = chance.choice((_next_name(base, last), _next_name(base, last), _next_name(base, last, 2), f"{last}.swp"))
    size = chance.choice((0, 1, base.segment_size, base.segment_size))
    return [{"op": "create", "file": name, "size": size}]


def folder_added(base: Base, chance: random.Random) -> Ops:
    parent = Path(chance.choice(base.segments)[1]).parent
    return [{"op": "mkdir", "path": f"{parent}/{chance.choice(('old', 'lost+found', '0' * 20 + 'x'))}"}]


def log_missing(base: Base, chance: random.Random) -> Ops:
    folders = sorted({str(Path(file).parent) for _, file in base.segments})
    return [{"op": "delete", "path": chance.choice(folders)}]


# Queues


_QUEUES = ("consumequeue/*/*/*", "batchconsumequeue/*/*/*")


def _queue_file(base: Base, chance: random.Random) -> tuple[str, int, int] | None:
    """Draw a file of a queue: its units' size, and how many are in use."""
    file = _file(base, chance, *_QUEUES)
    if file is None:
        return None
    unit = _BATCH_UNIT if file.startswith("batch") else _UNIT
    return file, unit, -(-len(base.read(file).rstrip(b"\0")) // unit)


def unit_number(base: Base, chance: random.Random) -> Ops:
    found = _queue_file(base, chance)
    if not found or not found[2]:
        return []
    file, size, units = found
    fields = ((0, 8), (8, 4), (12, 8), (20, 8), (28, 8), (36, 2), (38, 4))[: 3 if size == _UNIT else None]
    at, width = chance.choice(fields)
    number = chance.choice((0, units - 1, chance.randrange(units)))
    return _number(base, file, number * size + at, width, chance, [chance.randrange(units) * size + at])


def units_zeroed(base: Base, chance: random.Random) -> Ops:
    found = _queue_file(base, chance)
    if not found or not found[2]:
        return []
    file, size, units = found
    first = chance.choice((0, units - 1, chance.randrange(units)))
    return [_zero(file, first * size, size * chance.choice((1, 1, min(3, units - first))))]


def queue_tail_zeroed(base: Base, chance: random.Random) -> Ops:
    found = _queue_file(base, chance)
    if not found or not found[2]:
        return []
    file, size, units = found
    at = chance.randrange(units) * size + chance.choice((0, 0, chance.randrange(size)))
    later = [one for one in base.files(f"{Path(file).parent}/*") if one > file]
    return [_zero(file, at, base.size(file) - at), *({"op": "delete", "path": one} for one in later)]


def queue_end_garbled(base: Base, chance: random.Random) -> Ops:
    """Write something that looks like units, or nothing like it, behind the last unit of a file."""
    found = _queue_file(base, chance)
    if not found:
        return []
    file, size, units = found
    if (units + 1) * size > base.size(file):
        return []
    record = chance.choice(base.records)
    last = struct.pack(">qiq", chance.choice((base.end, record.position)), record.size, 0).ljust(size, b"\0")
    return [_write(file, units * size, chance.choice((last, chance.randbytes(size))))]


def units_copied(base: Base, chance: random.Random) -> Ops:
    found, other = _queue_file(base, chance), _queue_file(base, chance)
    if not found or not other or not found[2] or not other[2] or found[1] != other[1]:
        return []
    size = found[1]
    place = {"file": found[0], "at": chance.randrange(found[2]) * size, "len": size}
    to = {"to": other[0], "to_at": chance.randrange(other[2]) * size}
    return [{"op": chance.choice(("copy", "swap bytes")), **place, **to}]


def queue_file_changed(base: Base, chance: random.Random) -> Ops:
    file = _file(base, chance, *_QUEUES)
    return _file_changed(base, file, chance) if file else []


def queue_folder_missing(base: Base, chance: random.Random) -> Ops:
    file = _file(base, chance, *_QUEUES)
    if file is None:
        return []
    path = Path(file)
    return [{"op": "delete", "path": str(chance.choice((path.parent, path.parent, path.parent.parent)))}]


def queues_missing(base: Base, chance: random.Random) -> Ops:
    there = [name for name in ("consumequeue", "batchconsumequeue", "consumequeue_ext") if (base.root / name).exists()]
    return [{"op": "delete", "path": name} for name in chance.choice((there, there[:1]))]


def ext_changed(base: Base, chance: random.Random) -> Ops:
    file = _file(base, chance, "consumequeue_ext/*/*/*")
    if file is None:
        return []
    used = len(base.read(file).rstrip(b"\0"))
    if chance.random() < 0.4 or not used:
        return _file_changed(base, file, chance)
    at = chance.randrange(used)
    return chance.choice(([_zero(file, at, min(20, used - at))], _flip(base, file, at, chance)))


# Index


def index_head(base: Base, chance: random.Random) -> Ops:
    file = _file(base, chance, "index/*")
    if file is None:
        return []
    if chance.random() < 0.2:
        return [_zero(file, 0, _INDEX_HEAD)]
    at, width = chance.choice(((0, 8), (8, 8), (16, 8), (24, 8), (32, 4), (36, 4)))
    return _number(base, file, at, width, chance, [])


def index_slot(base: Base, chance: random.Random) -> Ops:
    file = _file(base, chance, "index/*")
    if file is None:
        return []
    slots = int(base.config["maxHashSlotNum"])
    at = _INDEX_HEAD + 4 * chance.randrange(slots)
    return _number(base, file, at, 4, chance, [_INDEX_HEAD + 4 * chance.randrange(slots)])


def index_entry(base: Base, chance: random.Random) -> Ops:
    file = _file(base, chance, "index/*")
    if file is None:
        return []
    first = _INDEX_HEAD + 4 * int(base.config["maxHashSlotNum"])
    count = struct.unpack_from(">i", base.read(file, 36, 4))[0]
    number = chance.choice((1, max(1, count - 1), chance.randrange(1, max(2, count)), count, 0))
    at = first + _ENTRY * number
    if chance.random() < 0.2:
        return [_zero(file, at, _ENTRY)]
    where, width = chance.choice(((0, 4), (4, 8), (12, 4), (16, 4)))
    return _number(base, file, at + where, width, chance, [])


def index_file(base: Base, chance: random.Random) -> Ops:
    file = _file(base, chance, "index/*")
    if file is None:
        return []
    if chance.random() < 0.2:
        return [{"op": "delete", "path": "index"}]
    return _file_changed(base, file, chance)


# Other files


def _file_changed(base: Base, file: str, chance: random.Random) -> Ops:
    """Do to a file what can be done to any."""
    size, path = base.size(file), Path(file)
    used = len(base.read(file).rstrip(b"\0")) if size < 1 << 20 else size
    siblings = [one for one in base.files(f"{path.parent}/*") if one != file]
    kind = chance.choice(("missing", "length", "length", "flip", "zero", "garbage", "renamed", "swapped", "twice"))
    if kind == "missing":
        return [{"op": "delete", "path": file}]
    if kind == "length":
        sizes = (0, 0, chance.randrange(size + 1), max(0, size - 1), size + 1, used // 2, 2 * size)
        return [{"op": "resize", "file": file, "size": chance.choice(sizes)}]
    if kind == "flip" and used:
        return _flip(base, file, chance.randrange(used), chance)
    if kind == "zero" and used:
        at = chance.choice((0, chance.randrange(used)))
        return [_zero(file, at, min(chance.choice((8, 40, 4096, used)), used - at))]
    if kind == "garbage" and used:
        at = chance.choice((0, chance.randrange(used)))
        return [_write(file, at, chance.randbytes(min(chance.choice((4, 40, 1000)), used - at)))]
    if kind == "renamed":
        return [{"op": "rename", "path": file, "to": f"{file}{chance.choice(('.bak', '.tmp', '0'))}"}]
    if siblings:
        return [{"op": "duplicate" if kind == "twice" else "swap", "path": file, "to": chance.choice(siblings)}]
    return []


def checkpoint_changed(base: Base, chance: random.Random) -> Ops:
    if chance.random() < 0.3:
        return _file_changed(base, "checkpoint", chance)
    at = 8 * chance.randrange(6)
    if chance.random() < 0.5:
        return _number(base, "checkpoint", at, 8, chance, [8 * chance.randrange(6)])
    record = _record(base, chance)
    value = record.store_timestamp + chance.choice((0, 1, 3000, 3001)) if at < 24 else record.position
    return [_write("checkpoint", at, value.to_bytes(8, "big"))]


def abort_changed(base: Base, chance: random.Random) -> Ops:
    if (base.root / "abort").exists():
        return [{"op": "delete", "path": "abort"}]
    return [{"op": "create", "file": "abort", "size": chance.choice((0, 4))}]


def small_file_changed(base: Base, chance: random.Random) -> Ops:
    file = chance.choice(base.files("lock", "abort.bak", "compaction/*"))
    return [chance.choice(({"op": "delete", "path": file}, {"op": "resize", "file": file, "size": 1}))]


def table_changed(base: Base, chance: random.Random) -> Ops:
    file = _file(base, chance, "config/*.json", "config/*.json", "config/*.bak", "config/*")
    if file is None:
        return []
    if chance.random() < 0.3 and (base.root / f"{file}.bak").exists():
        return [change for one in (file, f"{file}.bak") for change in _file_changed(base, one, chance)][:2]
    if chance.random() < 0.4 and file.endswith(".json"):  # another digit: an offset, a count of queues, a permission
        digits = [at for at, byte in enumerate(base.read(file)) if 0x30 <= byte <= 0x39]
        if digits:
            return [_write(file, chance.choice(digits), b"%d" % chance.randrange(10))]
    if chance.random() < 0.1:
        return [{"op": "delete", "path": "config"}]
    return _file_changed(base, file, chance)


def timer_changed(base: Base, chance: random.Random) -> Ops:
    file = _file(base, chance, "timerlog/*", "timerlog/*", "timerwheel", "config/timercheck", "config/timermetrics")
    if file is None:
        return []
    if file.startswith("timerlog") and chance.random() < 0.5:
        used = len(base.read(file).rstrip(b"\0"))
        return _number(base, file, chance.randrange(max(1, used // 4)) * 4, 4, chance, [])
    return _file_changed(base, file, chance)


def rocksdb_changed(base: Base, chance: random.Random) -> Ops:
    file = _file(base, chance, "consumequeue/*", "config/topics/*", "config/subscriptionGroups/*")
    return _file_changed(base, file, chance) if file else []


# Two stores mixed


def grafted(base: Base, chance: random.Random) -> Ops:
    """Put a part of another store into this one; of its own kind, where there is another."""
    kind = base.name.partition("-")[0]
    likes = [name for name in BASES if name != base.name and name.partition("-")[0] == kind]
    other = base_of(chance.choice(likes or [name for name in BASES if name != base.name]))
    what = chance.choice(("segment", "segment", "queue", "queues", "index", "checkpoint", "table"))
    if what == "segment":
        source = chance.choice(other.used_segments())[1]
        target = chance.choice([file for _, file in base.segments])
    elif what == "queue":
        source = _file(other, chance, *_QUEUES) or "checkpoint"
        target = _file(base, chance, *_QUEUES) or source
    elif what == "table":
        source = target = _file(other, chance, "config/*.json") or "checkpoint"
    else:
        source = target = {"queues": "consumequeue"}.get(what, what)
    if not (other.root / source).exists():
        return []
    return [{"op": "graft", "base": other.name, "path": source, "to": target}]


DAMAGES: dict[Kind, int] = {
    record_number: 10,
    record_flip: 6,
    record_part_zeroed: 8,
    records_zeroed: 4,
    record_torn: 3,
    record_copied: 4,
    records_swapped: 3,
    bytes_inserted: 4,
    bytes_cut_out: 4,
    page_zeroed: 5,
    page_garbled: 3,
    page_repeated: 3,
    pages_swapped: 3,
    log_tail_zeroed: 5,
    blank_changed: 3,
    segment_missing: 4,
    segment_length: 6,
    segments_swapped: 3,
    segment_renamed: 4,
    segment_duplicated: 3,
    segment_moved: 2,
    segment_added: 2,
    folder_added: 1,
    log_missing: 1,
    unit_number: 7,
    units_zeroed: 4,
    queue_tail_zeroed: 5,
    queue_end_garbled: 3,
    units_copied: 3,
    queue_file_changed: 5,
    queue_folder_missing: 3,
    queues_missing: 2,
    ext_changed: 3,
    index_head: 4,
    index_slot: 3,
    index_entry: 4,
    index_file: 4,
    checkpoint_changed: 5,
    abort_changed: 5,
    small_file_changed: 1,
    table_changed: 6,
    timer_changed: 4,
    rocksdb_changed: 4,
    grafted: 5,
}
"""Each kind of damage and how often it is tried; of a store without such files another is drawn."""

WITH_PROPERTIES = {
    **DAMAGES,
    property_name_flip: 6,
    property_separator: 6,
    property_doubled: 6,
    properties_of_another: 6,
    property_crc: 30,
}
"""All kinds, those of properties among them: for seeds of their own, so that earlier ones stay the cases they were."""

KINDS = {one.__name__: one for one in WITH_PROPERTIES}


def draw(base: Base, chance: random.Random, kinds: Mapping[Kind, int] = WITH_PROPERTIES) -> tuple[str, Ops]:
    """Draw a damage: the name of its kind, and what is done."""
    while True:
        kind = chance.choices(list(kinds), weights=list(kinds.values()))[0]
        if ops := kind(base, chance):
            return kind.__name__, ops


def redraw(base: Base, kind: str, chance: random.Random) -> list[dict[str, Any]]:
    """Draw another damage of one kind, which may come out as nothing."""
    return KINDS[kind](base, chance)
