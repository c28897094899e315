"""What a rebuild of queues gives up: queue offsets that units lead to now, and none will.

Their messages have gone from the log before; but a consumer that asks for them is told so no more. ``recover`` keeps
their places by placeholders. (Cost: linear in the units that go.)
"""

import bisect
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from mqtool.engine.repair.plan import Loss
from mqtool.engine.repair.rebuild_queues import QueueRange
from mqtool.engine.store.consume_queue import ConsumeQueue
from mqtool.engine.store.dispatch import QueueKey
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import commit_log as layout
from mqtool.formats import consume_queue

_UNITS_AT_ONCE = 1 << 18
_NO_END = (1 << 63) - 1
_REASON = "the log holds no such message any more: `mqtool recover` keeps its place"


def given_up(
    reader: StoreReader,
    made: Mapping[QueueKey, QueueRange],
    gaps: Mapping[QueueKey, list[tuple[int, int]]],
    topics: Collection[str] | None,
    log_end: int | None = None,
) -> Iterator[Loss]:
    """Yield the queue offsets to which no unit will lead, range by range; empty units between these had messages, too.

    Args:
        reader: of the store, with the queues that are to be replaced.
        made: what the new queues hold.
        gaps: queue offsets in them without a message, in order.
        topics: whose queues are made again; None for all.
        log_end: what lies behind it a broker is just writing.
    """
    end = log_end or _NO_END
    for key in sorted({*reader.consume_queues, *gaps} - reader.batch_consume_queues.keys()):
        queue = reader.consume_queues.get(key)
        if topics is None or key[0] in topics:
            first, last = (queue.first_offset, queue.max_offset()) if queue else (0, 0)
            yield from _without_units(key, gaps.get(key, ()), first, last)
            if queue is None:
                continue
            for start, stop in _outside(first, last, made.get(key), gaps.get(key, ())):
                yield from _lost_of(key, queue, start, stop, made.get(key), (reader.commit_log.min_offset, end))
    for key, batch_queue in sorted(reader.batch_consume_queues.items()):
        if topics is None or key[0] in topics:
            for low in range(0, batch_queue.unit_count, _UNITS_AT_ONCE):
                units = batch_queue.units(low, min(low + _UNITS_AT_ONCE, batch_queue.unit_count))
                for unit in units:
                    address, length = int(unit["physical_offset"]), int(unit["size"])
                    start, stop = int(unit["queue_offset"]), int(unit["queue_offset"]) + int(unit["batch_size"])
                    if reader.commit_log.min_offset <= address <= end - length and length >= layout.MIN_SIZE:
                        for first, last in _outside(start, stop, made.get(key), gaps.get(key, ())):
                            yield Loss(key[0], last - first, length, _REASON, key[1], first, last)


def _without_units(key: QueueKey, gaps: Sequence[tuple[int, int]], first: int, last: int) -> Iterator[Loss]:
    """Yield the parts of gaps of which the old queue, from its first offset to its last, has no units."""
    for start, stop in gaps:
        for low, high in ((start, min(stop, first)), (max(start, last), stop)):
            if low < high:
                yield Loss(key[0], high - low, 0, _REASON, key[1], low, high)


def _lost_of(
    key: QueueKey, queue: ConsumeQueue, start: int, stop: int, made: QueueRange | None, log: tuple[int, int]
) -> Iterator[Loss]:
    """Yield the messages of a range of units; of empty ones where messages are in front of them and behind them."""
    is_between = made is not None and start >= made.first
    empty: list[Loss] = []
    for low, units in queue.windows(start, stop):
        at, size = units["physical_offset"].astype(np.int64), units["size"].astype(np.int64)
        told = (
            (size >= layout.MIN_SIZE) & (size < consume_queue.PRE_BLANK_SIZE) & (at >= log[0]) & (at <= log[1] - size)
        )
        lost = [(loss, True) for loss in _runs(key, np.flatnonzero(told) + low, size[told])]
        lost += [(loss, False) for loss in _runs(key, np.flatnonzero(size == 0) + low, size[size == 0])]
        for loss, is_told in sorted(lost, key=lambda one: one[0].queue_offset or 0):
            if is_told:
                yield from empty
                yield loss
                empty, is_between = [], True
            elif is_between:
                empty.append(loss)
    if made is not None and is_between and stop < made.next:
        yield from empty


def _outside(
    start: int, stop: int, made: QueueRange | None, gaps: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield what of a range of queue offsets a new queue lacks."""
    if made is None:
        yield start, stop
        return
    near = bisect.bisect_right(gaps, start, key=lambda gap: gap[1]), bisect.bisect_left(gaps, (stop,))
    for low, high in ((start, made.first), *gaps[slice(*near)], (made.next, stop)):
        low, high = max(low, start), min(high, stop)
        if low < high:
            yield low, high


def _runs(key: QueueKey, offsets: "np.ndarray[tuple[int], np.dtype[np.int64]]", sizes: np.ndarray) -> Iterator[Loss]:
    """Yield a loss for each range of offsets that follow each other."""
    if not len(offsets):
        return
    starts = np.flatnonzero(np.diff(offsets, prepend=offsets[0] - 2) != 1)
    for first, last in zip(starts.tolist(), [*starts[1:].tolist(), len(offsets)], strict=True):
        size = int(sizes[first:last].sum())
        low = int(offsets[first])
        yield Loss(key[0], last - first, size, _REASON, key[1], low, low + last - first)
