"""Index files: a head, slots by the hash of a key, and entries that each slot chains from the newest on."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_HEAD = struct.Struct(">qqqqii")
_ENTRY = struct.Struct(">iqii")


class JudgedEntry(NamedTuple):
    """One key of a message."""

    number: int
    key_hash: int
    physical_offset: int
    seconds: int
    previous: int


class JudgedIndex(NamedTuple):
    """One file: what its head says, its slots, and the entries in use."""

    name: str
    begin_timestamp: int
    end_timestamp: int
    begin_physical_offset: int
    end_physical_offset: int
    slot_count: int
    next_number: int
    slots: tuple[int, ...]
    entries: list[JudgedEntry]

    def find(self, key_hash: int) -> list[int]:
        """Return the addresses that the chain of a key leads to, newest first."""
        found = []
        number, seen = self.slots[key_hash % len(self.slots)], 0
        while 0 < number < self.next_number and seen <= self.next_number:
            entry = self.entries[number - 1]
            if entry.key_hash == key_hash:
                found.append(entry.physical_offset)
            if entry.previous == number:
                break
            number, seen = entry.previous, seen + 1
        return found

    def chained(self) -> Iterator[JudgedEntry]:
        """Yield the entries that chains lead to."""
        seen: set[int] = set()
        for number in self.slots:
            while 0 < number < self.next_number and number not in seen and number <= len(self.entries):
                seen.add(number)
                yield self.entries[number - 1]
                number = self.entries[number - 1].previous


def read_index(folder: Path, slot_count: int, most: int) -> list[JudgedIndex]:
    """Return the index files in the order of their names; those of another length are left out.

    Args:
        folder: the folder ``index`` of a store.
        slot_count: ``maxHashSlotNum``.
        most: ``maxIndexNum``.
    """
    if not folder.is_dir():
        return []
    size = _HEAD.size + 4 * slot_count + _ENTRY.size * most
    return [
        _read(path, slot_count, most)
        for path in sorted(folder.iterdir())
        if path.name.isdecimal() and path.stat().st_size == size
    ]


def _read(path: Path, slot_count: int, most: int) -> JudgedIndex:
    data = path.read_bytes()
    begin, end, first_address, last_address, used, following = _HEAD.unpack_from(data)
    slots = struct.unpack_from(f">{slot_count}i", data, _HEAD.size)
    first = _HEAD.size + 4 * slot_count
    room = min(most, (len(data) - first) // _ENTRY.size)
    entries = [
        JudgedEntry(number, *_ENTRY.unpack_from(data, first + number * _ENTRY.size))
        for number in range(1, max(1, min(following, room)))
    ]
    return JudgedIndex(path.name, begin, end, first_address, last_address, used, following, slots, entries)


def key_hash(topic: str, key: str) -> int:
    """Return the hash of a key in the index: Java's of the text, made positive."""
    found = 0
    units = f"{topic}#{key}".encode("utf-16-be")
    for (unit,) in struct.iter_unpack(">H", units):
        found = (31 * found + unit) & 0xFFFFFFFF
    found = found - (1 << 32) if found >> 31 else found
    return abs(found) if found != -(1 << 31) else 0
