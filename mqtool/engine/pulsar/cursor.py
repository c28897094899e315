"""The messages of a queue that a subscription has acknowledged.

Everything before ``next_offset``, RocketMQ's consumer offset of a group, is acknowledged; after it there are spans of
acknowledged messages, and batches of which some messages are acknowledged. Both are bounded: an acknowledgement for
which there is no room is ignored, and its messages are delivered again. (Rules: pulsar.md 6.1.)
"""

import bisect
from collections.abc import Callable, Iterable, Iterator

MAX_GAPS = 100_000
MAX_LEFT_BYTES = 4 << 20
"""Size of the bits that say which messages of batches are acknowledged."""
_LEFT_OVERHEAD = 100


class Spans:
    """Offsets as spans that neither touch nor overlap. Cost: logarithmic in their number, except for moving a list."""

    def __init__(self, spans: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in spans:
            self.add(start, end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def end(self) -> int:
        """Where the last span ends, 0 if there is none."""
        return self._ends[-1] if self._ends else 0

    def add(self, start: int, end: int) -> None:
        """Add the offsets from ``start`` to before ``end``."""
        if start >= end:
            return
        first = bisect.bisect_left(self._ends, start)
        last = bisect.bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def touches(self, start: int, end: int) -> bool:
        """Tell whether offsets overlap with a span or are adjacent to one."""
        return bisect.bisect_left(self._ends, start) < bisect.bisect_right(self._starts, end)

    def end_at(self, offset: int) -> int:
        """Return the end of the span that contains an offset, or the offset itself if no span does."""
        at = bisect.bisect_right(self._starts, offset) - 1
        return max(self._ends[at], offset) if at >= 0 else offset

    def cut_before(self, offset: int) -> None:
        """Drop everything before an offset."""
        at = bisect.bisect_right(self._ends, offset)
        del self._starts[:at], self._ends[:at]
        if self._starts and self._starts[0] < offset:
            self._starts[0] = offset

    def cut_from(self, offset: int) -> None:
        """Drop everything from an offset on."""
        at = bisect.bisect_left(self._starts, offset)
        del self._starts[at:], self._ends[at:]
        if self._ends and self._ends[-1] > offset:
            self._ends[-1] = offset

    def count_before(self, offset: int) -> int:
        """Return how many offsets before this one are in spans. Cost: linear in these spans."""
        at = bisect.bisect_left(self._starts, offset)
        return sum(self._ends[:at]) - sum(self._starts[:at]) - (max(self._ends[at - 1] - offset, 0) if at else 0)


class Cursor:
    """The position of a subscription in a queue; ``is_changed`` until it is written to disk."""

    def __init__(
        self, next_offset: int, spans: Iterable[tuple[int, int]] = (), left: Iterable[tuple[int, int]] = ()
    ) -> None:
        """Make one.

        Args:
            next_offset: of the first message that is not acknowledged.
            spans: of the acknowledged messages after it.
            left: by the offset of a batch, its messages that are not acknowledged, as bits.
        """
        self.next_offset = next_offset
        self.spans = Spans(spans)
        self.left = dict(left)
        self._left_bytes = sum(map(_bytes_of, self.left.values()))
        self.is_changed = False
        self._settle()
        self._drop_left()

    def next_open(self, offset: int) -> int:
        """Return the first unacknowledged offset at or after this one."""
        return self.spans.end_at(max(offset, self.next_offset))

    def ack(self, offset: int, size: int) -> None:
        """Acknowledge an entry of ``size`` messages of the queue."""
        if not self.has_room_for(offset, size):
            return
        self._forget_left(offset)
        if offset + size > self.next_offset:
            self.spans.add(max(offset, self.next_offset), offset + size)
            self._settle()
        self.is_changed = True

    def has_room_for(self, offset: int, size: int, most: int | None = None) -> bool:
        """Return whether an entry can be acknowledged with at most ``most`` spans, None for the general limit."""
        is_new_gap = offset > self.next_offset and not self.spans.touches(offset, offset + size)
        return not is_new_gap or len(self.spans) < (MAX_GAPS if most is None else most)

    @property
    def size(self) -> int:
        """How much is kept about messages after the next offset: spans, and words of bits."""
        return len(self.spans) + self._left_bytes // 64

    def ack_until(self, offset: int) -> None:
        """Acknowledge everything before an offset."""
        if offset > self.next_offset:
            self.next_offset = offset
            self._settle()
            self._drop_left()
            self.is_changed = True

    def open_before(self, offset: int) -> int:
        """Return how many messages before an offset are not acknowledged."""
        return max(offset - self.next_offset - self.spans.count_before(offset), 0)

    def skip(self, count: int) -> int:
        """Return the offset before which there are ``count`` unacknowledged messages."""
        at = self.next_offset
        for start, end in self.spans:
            if start - at >= count:
                break
            count -= start - at
            at = end
        return at + count

    def cut_from(self, offset: int) -> None:
        """Forget acknowledgements from an offset on: the log ends there, and other messages will get these offsets."""
        if max(self.next_offset, self.spans.end, *(first + 1 for first in self.left)) <= offset:
            return
        self.spans.cut_from(offset)
        self._keep_left(lambda first: first < offset)
        self.next_offset = min(self.next_offset, offset)
        self.is_changed = True

    def ack_some(self, offset: int, size: int, messages: int, left: int) -> int:
        """Acknowledge the messages of an entry whose bits are not set, and return the bits of those still left."""
        before = self.left.get(offset, (1 << messages) - 1)
        after = before & left
        if not after:
            self.ack(offset, size)
        elif after != before:
            size_before = _bytes_of(before) if offset in self.left else 0
            if self._left_bytes + _bytes_of(after) - size_before > MAX_LEFT_BYTES:
                return before
            self._left_bytes += _bytes_of(after) - size_before
            self.left[offset] = after
            self.is_changed = True
        return after

    def seek(self, offset: int, left: int | None = None) -> None:
        """Continue at an offset, with nothing after it acknowledged, and only ``left`` of the entry there open."""
        self.next_offset = offset
        self.spans = Spans()
        self.left = {} if left is None else {offset: left}
        self._left_bytes = sum(map(_bytes_of, self.left.values()))
        self.is_changed = True

    def _settle(self) -> None:
        self.next_offset = self.spans.end_at(self.next_offset)
        self.spans.cut_before(self.next_offset)

    def _drop_left(self) -> None:
        """Drop the bits of batches that are now entirely before the next offset."""
        if self.left:
            self._keep_left(lambda offset: offset >= self.next_offset)

    def _keep_left(self, is_kept: Callable[[int], bool]) -> None:
        self.left = {offset: bits for offset, bits in self.left.items() if is_kept(offset)}
        self._left_bytes = sum(map(_bytes_of, self.left.values()))

    def _forget_left(self, offset: int) -> None:
        if (bits := self.left.pop(offset, None)) is not None:
            self._left_bytes -= _bytes_of(bits)


def _bytes_of(bits: int) -> int:
    return bits.bit_length() // 8 + _LEFT_OVERHEAD
