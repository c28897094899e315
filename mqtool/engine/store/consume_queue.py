"""The consume queues on disk."""

from __future__ import annotations

import bisect
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from mqtool.engine.store.file_queue import FileQueue
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.mapping import data_ranges, reading
from mqtool.engine.store.remote import RemotePath
from mqtool.errors import NotFoundError
from mqtool.formats import batch_consume_queue, consume_queue, consume_queue_ext
from mqtool.late import np, npt

MAX_OFFSET = 1 << 62
"""Far above the queue offsets of real queues."""
_WINDOW = 4096
_AT_ONCE = 1 << 18
Units: TypeAlias = "npt.NDArray[np.void]"
Ints: TypeAlias = "npt.NDArray[np.int64]"


class ConsumeQueue(FileQueue):
    """The units of one queue of one topic; ``max_offset`` is one past the last non-empty unit."""

    may_go_whole = True

    def __init__(self, topic: str, queue_id: int, folder: Path, file_size: int | None = None) -> None:
        super().__init__([folder], file_size)
        self.topic = topic
        self.queue_id = queue_id
        self._max_offset: int | None = None

    @property
    def first_offset(self) -> int:
        """Queue offset of the first place for a unit."""
        return -(-self.min_offset // consume_queue.UNIT_SIZE)

    @property
    def gone_offset(self) -> int:
        """Queue offset before which retention deleted the files while they were read."""
        return self.gone_until // consume_queue.UNIT_SIZE

    def units(self, start: int, stop: int) -> Units:
        """Return the units of a range of queue offsets, zeros for places without a file."""
        self.hold()
        size = consume_queue.UNIT_SIZE
        start = max(0, start)
        stop = max(start, stop)
        if self.segments:
            segment = self.segment_at(start * size)
            if segment and stop * size <= segment.end_offset:
                at = start * size - segment.start_offset
                return segment.stretch(at, at + (stop - start) * size).view(consume_queue.UNIT.dtype)
        out = np.zeros((stop - start) * size, np.uint8)
        for segment in self.segments:
            low = max(segment.start_offset, start * size)
            high = min(segment.end_offset, stop * size)
            if low < high:
                at = low - segment.start_offset
                out[low - start * size : high - start * size] = segment.stretch(at, at + high - low)
        return out.view(consume_queue.UNIT.dtype)

    def address_at(self, queue_offset: int) -> int | None:
        """Return the address to which the unit of a place leads; None if there is none, or it is empty or filler."""
        if not self.first_offset <= queue_offset < self.max_offset():
            return None
        units = self.units(queue_offset, queue_offset + 1)
        return None if are_empty(units)[0] else int(units["physical_offset"][0])

    def windows(self, start: int, stop: int) -> Iterator[tuple[int, Units]]:
        """Yield the units of a range of queue offsets in blocks, each with the offset of its first unit.

        Places without a file are skipped: a misnamed file may be at any distance.
        """
        runs: list[tuple[int, int]] = []  # of adjacent files
        for segment in self.segments:
            joins = runs and runs[-1][1] == segment.start_offset
            begin = runs.pop()[0] if joins else segment.start_offset
            runs.append((begin, segment.end_offset))
        for begin, end in runs:
            low, high = begin // consume_queue.UNIT_SIZE, -(-end // consume_queue.UNIT_SIZE)
            for at in range(max(start, low), min(stop, high), _AT_ONCE):
                yield at, self.units(at, min(at + _AT_ONCE, stop, high))

    def max_offset(self) -> int:
        """Return one past the last non-empty unit, which a broker calls the maximum of the queue."""
        if self._max_offset is None:
            self._max_offset = self.find_max_offset()
        return self._max_offset

    def find_max_offset(self) -> int:
        """Return the current ``max_offset``."""
        for segment in reversed(self.segments):
            try:
                used = used_units(segment, consume_queue.UNIT.dtype)
            except NotFoundError:
                self.let_go(segment)
                break
            if used:
                return segment.start_offset // consume_queue.UNIT_SIZE + used
        return self.first_offset


class BatchConsumeQueue(FileQueue):
    """The units of one queue whose records hold several messages.

    A place is the number of a unit, counted through the concatenated files. A unit is in line if its queue
    offset is between those of its neighbours or adjacent to one of them: a damaged one would mislead a search.
    """

    may_go_whole = True

    def __init__(self, topic: str, queue_id: int, folder: Path, file_size: int | None = None) -> None:
        super().__init__([folder], file_size)
        self.topic = topic
        self.queue_id = queue_id

    @functools.cached_property
    def first_places(self) -> list[int]:
        """The first place of each file, and one past the last place of all."""
        counts = (segment.size // batch_consume_queue.UNIT_SIZE for segment in self.hold().segments)
        return list(itertools.accumulate(counts, initial=0))

    @functools.cached_property
    def unit_count(self) -> int:
        """The number of units before the first empty one."""
        for start in range(0, self.first_places[-1], _WINDOW):
            empty = np.flatnonzero(self.units(start, start + _WINDOW)["size"] <= 0)
            if len(empty):
                return start + int(empty[0])
        return self.first_places[-1]

    @functools.cached_property
    def used_count(self) -> int:
        """One past the last non-empty unit: more than ``unit_count`` if empty ones are between others."""
        for number in reversed(range(len(self.segments))):
            used = used_units(self.segments[number], batch_consume_queue.UNIT.dtype)
            if used:
                return self.first_places[number] + used
        return 0

    @property
    def first_offset(self) -> int:
        """Queue offset of the first unit in line, 0 if there is none."""
        return self.offset_from(0) if self.max_offset() else 0

    def max_offset(self) -> int:
        """Return one past the last queue offset of the last unit in line, 0 if there is none."""
        last = self.last_in_line(self.unit_count)
        if last is None:
            return 0
        unit = self.units(last, last + 1)[0]
        return int(unit["queue_offset"]) + max(1, int(unit["batch_size"]))

    def units(self, start: int, stop: int) -> Units:
        """Return the units of a range of places, including empty ones; a view if one file holds them."""
        start, stop = max(0, start), min(stop, self.first_places[-1])
        parts = []
        while start < stop:
            number = bisect.bisect_right(self.first_places, start) - 1
            first, end = self.first_places[number], min(stop, self.first_places[number + 1])
            size = batch_consume_queue.UNIT_SIZE
            parts.append(self.segments[number].stretch((start - first) * size, (end - first) * size))
            start = end
        # Joined as bytes: numpy would turn units to native byte order.
        raw = parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.uint8), *parts])
        return raw.view(batch_consume_queue.UNIT.dtype)

    def units_in_line(self, start: int, stop: int) -> Units:
        """Return a copy of the units of a range of places that are in line; empty ones are not."""
        return self.units(start, stop)[self._in_line(start, stop)]

    def next_in_line(self, place: int) -> int:
        """Return the first place from ``place`` on whose unit is in line, ``unit_count`` if there is none."""
        step = 1
        while place < self.unit_count:
            places = np.flatnonzero(self._in_line(place, min(place + step, self.unit_count)))
            if len(places):
                return place + int(places[0])
            place, step = place + step, min(2 * step, _WINDOW)
        return self.unit_count

    def last_in_line(self, stop: int) -> int | None:
        """Return the last place before ``stop`` whose unit is in line, None if there is none."""
        step = 1
        while stop > 0:
            start = max(0, stop - step)
            places = np.flatnonzero(self._in_line(start, stop))
            if len(places):
                return start + int(places[-1])
            stop, step = start, min(2 * step, _WINDOW)
        return None

    def offset_from(self, place: int) -> int:
        """Return the queue offset of the first unit in line from ``place`` on, ``MAX_OFFSET`` if there is none."""
        place = self.next_in_line(place)
        return int(self.units(place, place + 1)["queue_offset"][0]) if place < self.unit_count else MAX_OFFSET

    def place_of(self, queue_offset: int) -> int:
        """Return the place of the first unit whose queue offset is not smaller; one out of line counts as the next."""
        return bisect.bisect_left(range(self.unit_count), queue_offset, key=self.offset_from)

    def offset_at(self, physical_offset: int, size: int | None = None) -> int | None:
        """Return the queue offset of the unit that leads to an address of the log, None if there is none.

        Binary searches: units before the first empty one are in the order of the log, those after it are sorted.

        Args:
            physical_offset: the address.
            size: of the record there; the unit must have the same.
        """

        def leads_to(place: int) -> int:
            return int(self.units(place, place + 1)["physical_offset"][0])

        place = bisect.bisect_left(range(self.unit_count), physical_offset, key=leads_to)
        addresses, behind = self._behind_empty
        low, high = (int(np.searchsorted(addresses, physical_offset, side)) for side in ("left", "right"))
        for units in (self.units(place, min(place + 1, self.unit_count)), behind[low:high]):
            for unit in units[units["physical_offset"] == physical_offset]:
                if size in (None, int(unit["size"])):
                    return int(unit["queue_offset"])
        return None

    @functools.cached_property
    def _behind_empty(self) -> tuple[Ints, Units]:
        """The units after the first empty one, sorted by address, and their addresses."""
        units = self.units(self.unit_count, self.used_count)
        units = units[units["size"] > 0]
        addresses = units["physical_offset"].astype(np.int64)
        order = np.argsort(addresses, kind="stable")
        return addresses[order], units[order]

    def address_of(self, place: int) -> int:
        """Return the address where a unit starts."""
        number = bisect.bisect_right(self.first_places, place) - 1
        at = (place - self.first_places[number]) * batch_consume_queue.UNIT_SIZE
        return self.segments[number].start_offset + at

    def address_before(self, place: int) -> int:
        """Return the address after the message of the units before a place, where a missing one should start."""
        return self.address_of(place - 1) + batch_consume_queue.UNIT_SIZE if place else self.min_offset

    def _in_line(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Return for each unit of a range of places whether it is in line."""
        low = max(0, start - 1)
        units = self.units(low, stop + 1)
        first = units["queue_offset"].astype(np.int64)
        sane = (first >= 0) & (first < MAX_OFFSET) & (units["size"] > 0)
        ordered, joined = np.ones(len(units), np.bool_), np.zeros(len(units), np.bool_)
        follows = first[:-1] + units["batch_size"][:-1] == first[1:]
        joined[:-1] |= follows
        joined[1:] |= follows
        precedes = (first[:-1] < first[1:]) | ~(sane[:-1] & sane[1:])
        ordered[:-1] &= precedes
        ordered[1:] &= precedes
        return (sane & (ordered | joined))[start - low : stop - low]


class ConsumeQueueExt(FileQueue):
    """The extension of one queue."""

    may_go_whole = True

    def __init__(self, topic: str, queue_id: int, folder: Path, file_size: int | None = None) -> None:
        super().__init__([folder], file_size)
        self.topic = topic
        self.queue_id = queue_id

    def unit_at(self, tags_code: int) -> npt.NDArray[np.void] | None:
        """Return the head of the unit at the address that a tags code stands for, None if it cannot be one."""
        position = consume_queue_ext.position_of(tags_code)
        head = self.read(position, consume_queue_ext.MIN_SIZE)
        if len(head) < consume_queue_ext.MIN_SIZE:
            return None
        unit = np.frombuffer(head, consume_queue_ext.HEAD.dtype)
        return unit if int(unit["size"][0]) >= consume_queue_ext.MIN_SIZE else None


def are_fillers(units: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Return which units are pre-blank ones; those with an address are of messages, with a damaged size."""
    fillers: npt.NDArray[np.bool_] = (units["size"] == consume_queue.PRE_BLANK_SIZE) & (units["physical_offset"] == 0)
    return fillers


def are_empty(units: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Return which units lead to no message: zeros and pre-blank ones, although a message may be at address 0."""
    empty: npt.NDArray[np.bool_] = (units["physical_offset"] == 0) & (units["size"] == 0)
    return empty | are_fillers(units)


def used_units(segment: MappedFile, dtype: np.dtype[np.void]) -> int:
    """Return one past the number of the last non-empty unit of a file; holes of the file are not read."""
    size = dtype.itemsize
    whole = segment.size // size * size
    if isinstance(segment.path, RemotePath):
        return _last_used_in([(0, whole)], segment.read, dtype)
    with reading(segment.path):
        descriptor = os.open(segment.path, os.O_RDONLY)
        try:
            ranges = data_ranges(descriptor, whole)
            return _last_used_in(ranges, lambda at, count: os.pread(descriptor, count, at), dtype)
        finally:
            os.close(descriptor)


def _last_used_in(
    ranges: Sequence[tuple[int, int]], read: Callable[[int, int], bytes], dtype: np.dtype[np.void]
) -> int:
    """Return one past the number of the last non-empty unit in some ranges of a file, in order; 0 if there is none."""
    size = dtype.itemsize
    for low, high in reversed(ranges):
        first, stop = low // size, -(-high // size)
        while stop > first:
            start = max(first, stop - _WINDOW)
            if used := _last_used(read(start * size, (stop - start) * size), dtype):
                return start + used
            stop = start
    return 0


def _last_used(data: bytes, dtype: np.dtype[np.void]) -> int:
    """Return one past the number of the last non-empty unit, 0 if there is none."""
    if data == bytes(len(data)):
        return 0
    units = np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype)
    used = np.flatnonzero((units["size"] != 0) | (units["physical_offset"] != 0))
    return int(used[-1]) + 1 if len(used) else 0
