"""Which consumer a key belongs to: murmur hashes, and three ways to share the slots among consumers.

(Rules: pulsar.md 5.3, 5.5. Pulsar: ``ConsistentHashingStickyKeyConsumerSelector`` and its siblings.)
"""

import bisect
import functools
import itertools
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

_BLOCK = struct.Struct("<I")
_MASK = 0xFFFFFFFF
SLOTS = 1 << 16
_RING_SLOTS = SLOTS - 1
_POINTS = 100

Member = TypeVar("Member")


def murmur(data: bytes) -> int:
    """Return MurmurHash3 (x86, 32 bits, seed 0) of some bytes without its highest bit.

    >>> murmur(b"key1")
    462881061
    """
    h, size = 0, len(data)
    end = size & ~3
    for at in range(0, end, 4):
        h ^= _mixed(_BLOCK.unpack_from(data, at)[0])
        h = (h << 13 | h >> 19) & _MASK
        h = (h * 5 + 0xE6546B64) & _MASK
    if size > end:
        h ^= _mixed(int.from_bytes(data[end:], "little"))
    h ^= size
    h = (h ^ h >> 16) * 0x85EBCA6B & _MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & _MASK
    return (h ^ h >> 16) & 0x7FFFFFFF


def _mixed(k: int) -> int:
    k = k * 0xCC9E2D51 & _MASK
    return (k << 15 | k >> 17) * 0x1B873593 & _MASK


def range_slot(key: bytes) -> int:
    """Return the slot of a key if consumers have sticky ranges.

    >>> range_slot(b"key1")
    293
    """
    return murmur(key) % SLOTS or 1


def ring_slot(key: bytes) -> int:
    """Return the slot of a key on the ring.

    >>> ring_slot(b"key1")
    7357
    """
    return murmur(key) % _RING_SLOTS + 1


class Ring(Generic[Member]):
    """Slots shared by consistent hashing: 100 points for each consumer, which has the slots up to each of them.

    Cost: constant for a consumer that joins or leaves; the first selection after that sorts all points.
    """

    slot = staticmethod(ring_slot)

    def __init__(self, name_of: Callable[[Member], str]) -> None:
        self._name_of = name_of
        self._indexes: dict[Member, int] = {}
        self._used: dict[str, set[int]] = {}  # indexes of members of the same name
        self._at: dict[int, list[Member]] = {}  # a later member of a point waits for it
        self._points: list[int] = []
        self._is_in_order = True

    def add(self, member: Member) -> None:
        """Add a consumer."""
        name = self._name_of(member)
        used = self._used.setdefault(name, set())
        self._indexes[member] = next(index for index in range(len(used) + 1) if index not in used)
        used.add(self._indexes[member])
        for point in {*self._points_of(member)}:
            self._at.setdefault(point, []).append(member)
        self._is_in_order = False

    def remove(self, member: Member) -> None:
        """Remove a consumer."""
        for point in {*self._points_of(member)}:
            members = self._at[point]
            members.remove(member)
            if not members:
                del self._at[point]
        used = self._used[self._name_of(member)]
        used.discard(self._indexes.pop(member))
        if not used:
            del self._used[self._name_of(member)]
        self._is_in_order = False

    def _points_of(self, member: Member) -> list[int]:
        name, index = self._name_of(member), self._indexes[member]
        return [ring_slot(f"{name}\0{index}\0{number}".encode()) for number in range(_POINTS)]

    def select(self, slot: int) -> Member | None:
        """Return the owner of a slot."""
        if not self._is_in_order:
            self._points, self._is_in_order = sorted(self._at), True
        if not self._points:
            return None
        at = bisect.bisect_left(self._points, slot)
        return self._at[self._points[at % len(self._points)]][0]


class StickyHashRanges(Generic[Member]):
    """Slots that consumers have chosen as ranges."""

    slot = staticmethod(range_slot)

    def __init__(self, members: Iterable[tuple[Member, Iterable[tuple[int, int]]]] = ()) -> None:
        self._ranges: list[tuple[int, int, Member]] = []
        self._add((start, end, member) for member, ranges in members for start, end in ranges)

    def fault_of(self, ranges: Sequence[tuple[int, int]]) -> str | None:
        """Return why a consumer cannot have these ranges, whose ends are inclusive; None if it can."""
        if not ranges:
            return "Ranges for KeyShared policy must not be empty."
        for start, end in ranges:
            if not 0 <= start <= end < SLOTS:
                return f"Range [{start}, {end}] is not within [0, {SLOTS - 1}]"
        all_ranges = sorted([*ranges, *((start, end) for start, end, _ in self._ranges)])
        for (_, before), (start, end) in itertools.pairwise(all_ranges):
            if start <= before:
                return f"Range [{start}, {end}] overlaps with another"
        return None

    def add(self, member: Member, ranges: Iterable[tuple[int, int]]) -> None:
        """Add a consumer with its ranges."""
        self._add((start, end, member) for start, end in ranges)

    def _add(self, ranges: Iterable[tuple[int, int, Member]]) -> None:
        self._ranges += ranges
        self._ranges.sort(key=lambda range_of_member: range_of_member[0])

    def remove(self, member: Member) -> None:
        """Remove a consumer."""
        self._ranges = [range_of_member for range_of_member in self._ranges if range_of_member[2] is not member]

    def select(self, slot: int) -> Member | None:
        """Return the owner of a slot, None if it has none."""
        at = bisect.bisect_right(self._ranges, slot, key=lambda range_of_member: range_of_member[0]) - 1
        return self._ranges[at][2] if at >= 0 and self._ranges[at][1] >= slot else None


def active_of(names: Sequence[str], topic: str) -> int:
    """Return the index of the consumer that is active on a topic without partitions.

    Each has 100 points on a ring, the topic one: the next point decides, of equal points that of the last consumer.
    Cost: linear in the consumers.
    """
    return min(range(len(names)), key=lambda number: (_distance(names[number], topic), -number))


@functools.lru_cache(1 << 14)
def _distance(name: str, topic: str) -> int:
    """Return how far the nearest point of a consumer is after that of a topic."""
    start = murmur(topic.encode())
    return min((murmur(f"{name}{point}".encode()) - start) % (1 << 31) for point in range(_POINTS))
