"""Finding the queue offset that belongs to a time, by the store times of messages, as RocketMQ does.

(Rules: store.md 4.6. RocketMQ: ``ConsumeQueue.getOffsetInQueueByTime``.)
"""

import enum
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Boundary(enum.Enum):
    """Which message is meant where several, or none, were stored at a time."""

    LOWER = "lower"
    """The first of them, or the next that was stored later."""
    UPPER = "upper"
    """The last of them, or the one before."""


class Hits(NamedTuple):
    """Where a search in one file ended: at an exact hit, or between two neighbours with their times."""

    exact: int | None
    left: tuple[int, int | None] | None
    right: tuple[int, int] | None


class TimeSearch(NamedTuple):
    """One queue, as far as a search must know it."""

    files: Sequence[tuple[int, int]]
    """The queue offsets of the first and last unit of each file."""
    unit: Callable[[int], tuple[int, int]]
    """Gives address and size of the message at a queue offset."""
    store_time: Callable[[int, int], int]
    """Gives the store time (ms) of the message at an address with a size, below 0 where it cannot be read."""
    min_offset: int
    log_start: int

    def offset_at(self, timestamp: int, boundary: Boundary = Boundary.LOWER) -> int:
        """Return the queue offset that RocketMQ 5 finds for a time; it may be outside of the queue."""
        if not self.files:
            return 0
        is_lower = boundary is Boundary.LOWER
        if is_lower:
            first, last = next((file for file in self.files if self._time(file[1]) >= timestamp), self.files[-1])
        else:
            begun = [file for file in self.files if self._time(max(file[0], self.min_offset)) <= timestamp]
            first, last = begun[-1] if begun else self.files[0]
        floor = max(first, self.min_offset)
        if self._time(last) < timestamp:
            return last + is_lower
        if self._time(floor) > timestamp:
            return first if is_lower else 0
        hits = self.bisect(timestamp, floor, last)
        if hits is None:
            return 0
        if hits.exact is None:
            if is_lower:
                return first - 1 if hits.right is None else hits.right[0]
            return 0 if hits.left is None else hits.left[0]
        step, end = (-1, floor) if is_lower else (1, last)
        at = hits.exact
        while at != end and self._time(at + step) == timestamp:
            at += step
        return at

    def bisect(self, timestamp: int, low: int, high: int) -> Hits | None:
        """Search the units of one file as RocketMQ does; None if a message cannot be read."""
        left: tuple[int, int | None] | None = None
        right: tuple[int, int] | None = None
        left_time = None
        while high >= low:
            middle = (low + high) // 2
            physical_offset, size = self.unit(middle)
            if physical_offset < self.log_start:
                low, left = middle + 1, (middle, left_time)
                continue
            time = self.store_time(physical_offset, size)
            if time < 0:
                return None
            if time == timestamp:
                return Hits(middle, left, right)
            if time > timestamp:
                high, right = middle - 1, (middle, time)
            else:
                left_time = time
                low, left = middle + 1, (middle, time)
        return Hits(None, left, right)

    def _time(self, offset: int) -> int:
        return self.store_time(*self.unit(offset))
