"""The queues of a starting broker: recovered, truncated and filled like by its own code (spec 4.2 to 4.5, 4.9).

Cost: linear in the number of queues and in the units that the broker would read or write.
"""

import bisect
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mqtool.engine.repair.group_effects import Moved
from mqtool.engine.repair.java_recovery.files import (
    DraftSegment,
    EndlessError,
    Scratch,
    StartRefusedError,
    VersionRules,
    cut_segments,
)
from mqtool.engine.repair.java_recovery.queue_ext import BrokerExt
from mqtool.engine.store.dispatch import QueueKey
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.formats import batch_consume_queue, consume_queue, consume_queue_ext
from mqtool.formats.scan import Ints

Units = npt.NDArray[np.void]
_WINDOW = 16_384


class BrokerQueue:
    """One queue of ordinary units.

    ``max_physical_offset`` is what the broker considers the end of this queue's messages, -1 for a queue that never had
    a unit; ``min_position`` is its minimum in bytes. Both are as wrong as in the broker.
    """

    dtype = consume_queue.UNIT.dtype

    def __init__(self, key: QueueKey, folder: Path, file_size: int, scratch: Scratch, rules: VersionRules) -> None:
        self.key = key
        self.folder = folder
        self.file_size = file_size
        self.segments: list[DraftSegment] = []
        self.removed: list[DraftSegment] = []
        self.ext: BrokerExt | None = None
        self.max_physical_offset = -1
        self.min_position = 0
        self.moved: list[Moved] = []
        """Messages at another queue offset than they state."""
        self._scratch = scratch
        self._rules = rules

    def load(self, files: list[MappedFile]) -> None:
        """Load the existing files, each as completely full."""
        self.segments = [DraftSegment(file.path, file.start_offset, file.size, file, self._scratch) for file in files]

    @property
    def min_offset(self) -> int:
        """The first queue offset that a consumer may read."""
        return self.min_position // self.dtype.itemsize

    @property
    def max_offset(self) -> int:
        """One past the last queue offset."""
        return self.segments[-1].used_offset // self.dtype.itemsize if self.segments else 0

    def units(self, segment: DraftSegment, start: int = 0, stop: int | None = None) -> Units:
        """Return units of a segment by their numbers in it, the unused ones too."""
        size = self.dtype.itemsize
        stop = segment.size // size if stop is None else stop
        return np.frombuffer(segment.read(start * size, (stop - start) * size), self.dtype)

    def in_use(self) -> Iterator[tuple[int, Units]]:
        """Yield the units from the minimum on, in windows, each with the queue offset of the first one.

        Ends at the maximum, or at a missing file: a sequential reader gets no further.
        """
        size = self.dtype.itemsize
        for number, segment in enumerate(self.segments):
            if number and segment.start_offset != self.segments[number - 1].start_offset + self.file_size:
                return
            first = max(0, self.min_position - segment.start_offset) // size
            for start in range(first, segment.used // size, _WINDOW):
                stop = min(start + _WINDOW, segment.used // size)
                yield segment.start_offset // size + start, self.units(segment, start, stop)

    def physical_offsets(self, offsets: Ints) -> Ints:
        """Return the addresses in the units of ascending queue offsets, -1 where a consumer finds none."""
        size = self.dtype.itemsize
        out = np.full(len(offsets), -1, np.int64)
        number = bisect.bisect_right(self.segments, int(offsets[0]) * size, key=lambda segment: segment.start_offset)
        for segment in itertools.islice(self.segments, max(0, number - 1), None):
            first = segment.start_offset // size
            if first > offsets[-1]:
                break
            low, high = np.searchsorted(offsets, (max(self.min_offset, first), segment.used_offset // size))
            if low < high:
                units = self.units(segment, int(offsets[low]) - first, int(offsets[high - 1]) + 1 - first)
                units = units[offsets[low:high] - offsets[low]]
                used = (units["size"] != consume_queue.PRE_BLANK_SIZE) & (units["size"] > 0)
                out[low:high] = np.where(used, units["physical_offset"], -1)
        return out

    def recover(self) -> None:
        """Find the end in the last three segments, at the first invalid unit, and drop what follows."""
        index = max(0, len(self.segments) - 3)
        address: int | None = None
        while index < len(self.segments):
            segment = self.segments[index]
            units = self.units(segment)
            count = _leading(self._valid(units))
            if count:
                self.max_physical_offset = int(self._ends(units[count - 1 : count])[0])
            addresses = units["tags_code"][:count][consume_queue_ext.is_address(units["tags_code"][:count])]
            address = int(addresses[-1]) if len(addresses) else address
            end = segment.start_offset + count * self.dtype.itemsize
            index += 1
            if count * self.dtype.itemsize != self.file_size or index == len(self.segments):
                self.removed += cut_segments(self.segments, end, self.file_size)
                if self.ext:
                    self.ext.recover(address)
                return

    def cut(self, end_offset: int) -> None:
        """Drop the units of messages at or beyond the end of the log, the last segment first.

        A segment is read beyond its previously found end: old units there come back. Its first unit is
        always accepted.

        Raises:
            EndlessError: segments of one unit.
        """
        if self.segments and self.file_size == self.dtype.itemsize:
            raise EndlessError("a queue segment has room for only one unit: truncating a queue never ends")
        self._begin_cut(end_offset)
        while self.segments:
            segment = self.segments[-1]
            units = self.units(segment)
            good = self._valid(units) & (units["physical_offset"] < end_offset)
            if units["physical_offset"][0] >= end_offset:
                self.removed.append(self.segments.pop())
                continue
            good[0] = True
            count = _leading(good)
            segment.used = count * self.dtype.itemsize
            self.max_physical_offset = int(self._ends(units[count - 1 : count])[0])
            break
        self._end_cut()

    def clear(self) -> None:
        """Drop everything, as a broker without a log does."""
        self.removed += self.segments
        self.segments = []
        if self.ext:
            self.ext.clear()
        self.max_physical_offset = -1
        self.min_position = 0

    def put(self, units: Units, first_offset: int) -> None:
        """Add units of consecutive queue offsets, by the broker's own idea of what it already has."""
        ends = self._ends(units)
        if len(units) > 1 and (ends[1:] <= ends[:-1]).any():
            for number in range(len(units)):
                self.put(units[number : number + 1], first_offset + number)
            return
        if first_offset < 0:
            return
        known = int(np.searchsorted(ends, self.max_physical_offset, "right"))
        units, first_offset = units[known:], first_offset + known
        if len(units) and first_offset == 0:  # the position of the first unit of a queue is not examined
            last = self._last(0)
            self._note_place(0, last, 1)
            self._append(units[:1], last)
            units, first_offset = units[1:], 1
        if not len(units):
            return
        expected = first_offset * self.dtype.itemsize
        last = self._last(expected)
        if last.is_first and not last.used:
            self.min_position = expected
            self._fill(last, expected % self.file_size)
        repeated = max(0, last.used_offset - expected) // self.dtype.itemsize
        self._note_place(first_offset + repeated, last, len(units) - repeated)
        self._append(units[repeated:], last)  # where the queue ends, even if they belong further on

    def _note_place(self, belongs: int, last: DraftSegment, count: int) -> None:
        lies = last.used_offset // self.dtype.itemsize
        if lies == belongs or count <= 0:
            return
        before = self.moved[-1] if self.moved else None
        if before and (before.belongs + before.messages, before.lies + before.messages) == (belongs, lies):
            self.moved[-1] = before._replace(messages=before.messages + count)
        else:
            self.moved.append(Moved(belongs, lies, count))

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Move the minimum to the first unit of a message that is still in the log."""
        if self._rules.dispatches_at_start:
            self._search_min_plainly(min_physical_offset)
        else:
            self._search_min(min_physical_offset)

    def _valid(self, units: Units) -> npt.NDArray[np.bool_]:
        valid: npt.NDArray[np.bool_] = (units["physical_offset"] >= 0) & (units["size"] > 0)
        return valid

    def _ends(self, units: Units) -> Ints:
        ends: Ints = units["physical_offset"].astype(np.int64) + units["size"]
        return ends

    def _begin_cut(self, end_offset: int) -> None:
        self.max_physical_offset = end_offset

    def _end_cut(self) -> None:
        """Do nothing more; batch queues note their bounds."""

    def _last(self, wanted: int) -> DraftSegment:
        """Return the segment to write to, a new one if there is none or the last is full."""
        if not self.segments:
            segment = DraftSegment.new(self.folder, wanted - wanted % self.file_size, self.file_size, self._scratch)
            segment.is_first = True
            self.segments.append(segment)
        elif self.segments[-1].used == self.file_size:
            start = self.segments[-1].start_offset + self.file_size
            self.segments.append(DraftSegment.new(self.folder, start, self.file_size, self._scratch))
        return self.segments[-1]

    def _fill(self, segment: DraftSegment, until: int) -> None:
        blank = np.zeros(until // self.dtype.itemsize, self.dtype)
        blank["size"] = consume_queue.PRE_BLANK_SIZE
        segment.write(0, blank.tobytes())
        segment.used = len(blank) * self.dtype.itemsize

    def _append(self, units: Units, segment: DraftSegment) -> None:
        size = self.dtype.itemsize
        while len(units):
            room = (self.file_size - segment.used) // size
            part = units[:room]
            segment.write(segment.used, part.tobytes())
            segment.used += len(part) * size
            self.max_physical_offset = int(self._ends(part[-1:])[0])
            units = units[room:]
            if len(units):
                segment = self._last(0)

    def _search_min_plainly(self, min_physical_offset: int) -> None:
        if self.segments:
            first = self.segments[0]
            units = self.units(first, 0, first.used // self.dtype.itemsize)
            places = np.flatnonzero(units["physical_offset"] >= min_physical_offset)
            if len(places):
                self._set_min(first, int(places[0]))

    def _search_min(self, min_physical_offset: int) -> None:
        size = self.dtype.itemsize
        if not self.segments or self.min_position >= self.segments[-1].used_offset:
            return
        last, first = self.segments[-1], self.segments[0]
        if not last.used and self._rules.trips_over_empty_files:
            raise StartRefusedError(
                f"the last file of queue {self.key[1]} of {self.key[0]} is empty, and the broker's code fails on it"
            )
        if last.used:
            count = last.used // size
            if self.units(last, count - 1, count)["physical_offset"][0] < min_physical_offset:
                self.min_position = last.used_offset
                return
        start = max(0, self.min_position - first.start_offset)
        if start >= first.used:
            return
        offsets = self.units(first, start // size, first.used // size)["physical_offset"]
        if self.min_position >= first.start_offset and offsets[0] >= min_physical_offset:
            return
        low, high = 0, len(offsets) - 1
        while high - low > 1:
            middle = (low + high) // 2
            if offsets[middle] == min_physical_offset:
                low = high = middle
            elif offsets[middle] > min_physical_offset:
                high = middle
            else:
                low = middle
        for number in range(low, high + 1):
            if offsets[number] >= min_physical_offset:
                self._set_min(first, start // size + number)
                return

    def _set_min(self, segment: DraftSegment, number: int) -> None:
        self.min_position = segment.start_offset + number * self.dtype.itemsize
        tags_code = int(self.units(segment, number, number + 1)["tags_code"][0])
        if self.ext and consume_queue_ext.is_address(tags_code):
            self.ext.drop_before(tags_code)


class BrokerBatchQueue(BrokerQueue):
    """One queue of batch units (5.x), whose bounds are read from the units."""

    dtype = batch_consume_queue.UNIT.dtype

    def __init__(self, key: QueueKey, folder: Path, file_size: int, scratch: Scratch, rules: VersionRules) -> None:
        super().__init__(key, folder, file_size, scratch, rules)
        self._min_offset = -1
        self._max_offset = 0

    @property
    def min_offset(self) -> int:
        """The first queue offset that a consumer may read, -1 for none."""
        return self._min_offset

    @property
    def max_offset(self) -> int:
        """One past the last queue offset."""
        return self._max_offset

    def recover(self) -> None:
        """Find the end and the bounds."""
        super().recover()
        if self.segments:
            self._note_bounds()

    def put(self, units: Units, first_offset: int) -> None:  # noqa: ARG002  the units say where they belong
        """Add units of records after the last that the queue has."""
        for number in range(len(units)):
            unit = units[number : number + 1]
            if unit["physical_offset"][0] > self.max_physical_offset:
                last = self._last(self.segments[-1].used_offset if self.segments else 0)
                self._append(unit, last)
                self._max_offset = int(unit["queue_offset"][0]) + int(unit["batch_size"][0])
                if last.is_first and self._min_offset == -1:
                    self._note_min()

    def in_use(self) -> Iterator[tuple[int, Units]]:
        """Yield the units until one reaches the maximum; the number with each window is meaningless."""
        if self._max_offset <= self._min_offset:
            return
        for number, units in super().in_use():
            # A unit that a truncation accepts may hold no message: after the last one that does nobody reads it.
            ends = units["queue_offset"] + units["batch_size"]
            before = _leading(ends < self._max_offset)
            yield number, units[: before + 1]
            if before < len(units):
                return

    @functools.cached_property
    def addresses(self) -> Ints:
        """Addresses in the units in use from which a message can be read, in order; used once the broker has started.

        8 bytes per unit. A truncation accepts the first unit of a segment whatever it holds.
        """
        columns = [units["physical_offset"][self._valid(units)] for _, units in self.in_use()]
        return np.sort(np.concatenate([np.empty(0, np.int64), *columns]))

    def clear(self) -> None:
        """Drop everything."""
        super().clear()
        self._min_offset, self._max_offset = -1, 0

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Move the minimum past the units of the first segment whose messages are gone."""
        self._note_min()
        if self.segments:
            units = self.units(self.segments[0], 0, self.segments[0].used // self.dtype.itemsize)
            gone = _leading(units["physical_offset"] < min_physical_offset)
            if gone:
                self._min_offset = _next_offset(units[gone - 1])

    def _valid(self, units: Units) -> npt.NDArray[np.bool_]:
        return super()._valid(units) & (units["queue_offset"] >= 0) & (units["batch_size"] > 0)

    def _ends(self, units: Units) -> Ints:
        return units["physical_offset"].astype(np.int64)

    def _begin_cut(self, end_offset: int) -> None:
        self.max_physical_offset = end_offset - 1

    def _end_cut(self) -> None:
        self._note_bounds()

    def _note_min(self) -> None:
        if not self.segments:
            self._max_offset = 0
        used = bool(self.segments) and self.segments[0].used >= self.dtype.itemsize
        self._min_offset = int(self.units(self.segments[0], 0, 1)["queue_offset"][0]) if used else -1

    def _note_bounds(self) -> None:
        self._note_min()
        self._max_offset = 0
        for segment in reversed(self.segments[-2:]):
            count = segment.used // self.dtype.itemsize
            if count:
                self._max_offset = _next_offset(self.units(segment, count - 1, count)[0])
                return


def _next_offset(unit: Any) -> int:
    return int(unit["queue_offset"]) + int(unit["batch_size"])


def _leading(good: npt.NDArray[np.bool_]) -> int:
    """Return the number of leading true values."""
    return len(good) if good.all() else int(np.argmin(good))
