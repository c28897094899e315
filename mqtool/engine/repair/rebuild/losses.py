"""What a rebuild of queues gives up: queue offsets that have units now, and will not have any.

Their messages are no longer in the log; but then consumers that ask for them do not notice it. ``recover`` keeps
their places by placeholders. (Cost: linear in the units that go.)
"""

import bisect
import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from mqtool.engine.repair.plan import Loss
from mqtool.engine.repair.rebuild.queues import QueueRange
from mqtool.engine.store.consume_queue import BatchConsumeQueue, ConsumeQueue
from mqtool.engine.store.dispatch import QueueKey
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import commit_log as layout
from mqtool.formats import consume_queue, placeholder

_UNITS_AT_ONCE = 1 << 18
_NO_END = (1 << 63) - 1
_REASON = "the log no longer contains this message: `mqtool recover` keeps its place"


def given_up(
    reader: StoreReader,
    rebuilt: Mapping[QueueKey, QueueRange],
    gaps: Mapping[QueueKey, list[tuple[int, int]]],
    topics: Collection[str] | None,
    log_end: int | None = None,
) -> Iterator[Loss]:
    """Yield the queue offsets that lose their units, range by range, with empty units between them.

    Args:
        reader: of the store, with the queues that must be replaced.
        rebuilt: what the new queues hold.
        gaps: queue offsets in them without a message, in order.
        topics: of the queues that are rebuilt; None for all.
        log_end: beyond it a broker is just writing.
    """
    log = reader.commit_log.min_offset, _NO_END if log_end is None else log_end
    length = reader.commit_log.end_offset - log[0]
    for key in sorted({*reader.consume_queues, *gaps} - reader.batch_consume_queues.keys()):
        if topics is None or key[0] in topics:
            queue, new, lacking = reader.consume_queues.get(key), rebuilt.get(key), gaps.get(key, ())
            outside = _outside(queue.first_offset, queue.max_offset(), new, lacking) if queue else ()
            losses = [loss for start, stop in outside if queue for loss in _told_by(key, queue, start, stop, log)]
            yield from _with_holes(key, losses, new, lacking, length // layout.MIN_SIZE)
    for key, batch_queue in sorted(reader.batch_consume_queues.items()):
        if topics is None or key[0] in topics:
            new, lacking = rebuilt.get(key), gaps.get(key, ())
            losses = sorted(_told_by_batches(key, batch_queue, new, lacking, log), key=_place)
            yield from _with_holes(key, losses, new, lacking, length // placeholder.ELEMENT_SIZE)


def _with_holes(
    key: QueueKey, losses: Sequence[Loss], rebuilt: QueueRange | None, gaps: Sequence[tuple[int, int]], most: int
) -> Iterator[Loss]:
    """Yield the losses shown by units, and those between them and the new queue: these were messages of the log, too.

    Args:
        key: of the queue.
        losses: shown by units, in order.
        rebuilt: the new queue.
        gaps: queue offsets that it lacks, in order.
        most: messages that fit in the log: a longer hole is just a wrong number.
    """
    edges = [] if rebuilt is None else [rebuilt.first, *(edge for gap in gaps for edge in gap), rebuilt.next]
    kept = [(start, stop, None) for start, stop in zip(edges[::2], edges[1::2], strict=True)]
    at: int | None = None
    for start, stop, loss in heapq.merge(kept, ((*_place(loss), loss) for loss in losses), key=lambda row: row[0]):
        if at is not None and 0 < start - at <= most:
            yield Loss(key[0], start - at, 0, _REASON, key[1], at, start)
        if loss:
            yield loss
        at = stop if at is None else max(at, stop)


def _place(loss: Loss) -> tuple[int, int]:
    return loss.queue_offset or 0, loss.end_queue_offset or 0


def _told_by(key: QueueKey, queue: ConsumeQueue, start: int, stop: int, log: tuple[int, int]) -> Iterator[Loss]:
    """Yield the messages of the log that units of a range show."""
    for low, units in queue.windows(start, stop):
        at, size = units["physical_offset"].astype(np.int64), units["size"].astype(np.int64)
        mask = (
            (size >= layout.MIN_SIZE) & (size < consume_queue.PRE_BLANK_SIZE) & (at >= log[0]) & (at <= log[1] - size)
        )
        yield from _runs(key, np.flatnonzero(mask) + low, size[mask])


def _told_by_batches(
    key: QueueKey,
    queue: BatchConsumeQueue,
    rebuilt: QueueRange | None,
    gaps: Sequence[tuple[int, int]],
    log: tuple[int, int],
) -> Iterator[Loss]:
    """Yield the messages of the log that units of a batch queue show and that the new queue lacks."""
    for low in range(0, queue.used_count, _UNITS_AT_ONCE):
        for unit in queue.units(low, min(low + _UNITS_AT_ONCE, queue.used_count)):
            address, size = int(unit["physical_offset"]), int(unit["size"])
            start, stop = int(unit["queue_offset"]), int(unit["queue_offset"]) + int(unit["batch_size"])
            if log[0] <= address <= log[1] - size and size >= layout.MIN_SIZE:
                for first, last in _outside(start, stop, rebuilt, gaps):
                    yield Loss(key[0], last - first, size, _REASON, key[1], first, last)


def _outside(
    start: int, stop: int, rebuilt: QueueRange | None, gaps: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range of queue offsets that a new queue lacks."""
    if rebuilt is None:
        yield start, stop
        return
    near = bisect.bisect_right(gaps, start, key=lambda gap: gap[1]), bisect.bisect_left(gaps, (stop,))
    for low, high in ((start, rebuilt.first), *gaps[slice(*near)], (rebuilt.next, stop)):
        low, high = max(low, start), min(high, stop)
        if low < high:
            yield low, high


def _runs(key: QueueKey, offsets: "np.ndarray[tuple[int], np.dtype[np.int64]]", sizes: np.ndarray) -> Iterator[Loss]:
    """Yield a loss for each range of consecutive offsets."""
    if not len(offsets):
        return
    starts = np.flatnonzero(np.diff(offsets, prepend=offsets[0] - 2) != 1)
    for first, last in zip(starts.tolist(), [*starts[1:].tolist(), len(offsets)], strict=True):
        size = int(sizes[first:last].sum())
        low = int(offsets[first])
        yield Loss(key[0], last - first, size, _REASON, key[1], low, low + last - first)
