"""The messages that a repair gives up: each reported once, by topic, queue and range of queue offsets."""

import collections
from typing import Any, NamedTuple

import numpy as np

from mqtool.engine.repair.plan import Loss
from mqtool.engine.store.commit_log import CommitLog
from mqtool.engine.store.dispatch import QueueKey
from mqtool.formats.scan import Ints


class _LostRanges(NamedTuple):
    """Ranges of queue offsets, as columns of equal length."""

    starts: Any
    stops: Any
    sizes: Any
    reason: str


class LossCollector:
    """Collects lost messages in any order, and returns them as rows.

    Several sources may report the same message, as a head and a unit do: it counts once, as reported first.
    Cost: n log n in the ranges that were added.
    """

    def __init__(self) -> None:
        self._ranges: dict[QueueKey, list[_LostRanges]] = collections.defaultdict(list)
        self._elsewhere: dict[tuple[str | None, str], list[int]] = {}

    def add(self, queue: QueueKey, start: int, stop: int, size: int, reason: str) -> None:
        """Add consecutive queue offsets, and the bytes of their messages."""
        self._ranges[queue].append(_LostRanges([start], [stop], [size], reason))

    def add_many(self, queue: QueueKey, starts: Ints, stops: Ints, sizes: Ints, reason: str) -> None:
        """Add several ranges of one queue at once."""
        if len(starts):
            self._ranges[queue].append(_LostRanges(starts, stops, sizes, reason))

    def add_elsewhere(self, topic: str | None, count: int, size: int, reason: str) -> None:
        """Add messages without a place in a queue, or bytes of unknown contents (no topic)."""
        counted = self._elsewhere.setdefault((topic, reason), [0, 0])
        counted[0] += count
        counted[1] += size

    def __bool__(self) -> bool:
        """Whether anything was added."""
        return bool(self._ranges or self._elsewhere)

    def rows(self) -> tuple[Loss, ...]:
        """Return everything that was added, queue by queue in order, and last what is in no queue."""
        rows = [row for queue in sorted(self._ranges) for row in self._rows_of(queue)]
        elsewhere = sorted(self._elsewhere.items(), key=lambda item: (item[0][0] is None, item[0][0] or "", item[0][1]))
        rows += [Loss(topic, count, size, reason) for (topic, reason), (count, size) in elsewhere if count or size]
        return tuple(rows)

    def _rows_of(self, queue: QueueKey) -> list[Loss]:
        added = self._ranges[queue]
        reasons = list(dict.fromkeys(ranges.reason for ranges in added))
        starts, stops, sizes = (np.concatenate([np.asarray(batch[i], np.int64) for batch in added]) for i in range(3))
        numbers = np.concatenate([np.full(len(batch.starts), reasons.index(batch.reason)) for batch in added])
        order = np.argsort(starts, kind="stable")
        starts, stops, sizes, numbers = (column[order] for column in (starts, stops, sizes, numbers))
        reached = np.maximum.accumulate(np.r_[np.iinfo(np.int64).min, stops[:-1]])  # covered by the ranges before
        new = stops > reached
        starts, stops, sizes, numbers = np.maximum(starts, reached)[new], stops[new], sizes[new], numbers[new]
        if not new.any():  # only damaged numbers, which are no place of a message
            return []
        begins = np.flatnonzero(np.r_[True, (starts[1:] != stops[:-1]) | (numbers[1:] != numbers[:-1])])
        ends = np.r_[begins[1:], len(starts)] - 1
        columns = starts[begins], stops[ends], np.add.reduceat(sizes, begins), numbers[begins]
        return [
            Loss(queue[0], stop - start, size, reasons[number], queue[1], start, stop)
            for start, stop, size, number in zip(*(column.tolist() for column in columns), strict=True)
        ]


def untold_of_rocksdb(log: CommitLog) -> str:
    """Return the remark of a repair that does not read the units of queues in RocksDB: what it does not report."""
    text = "lost messages are not reported if only the units in RocksDB are left of them"
    if log.min_offset > 0:
        text += (
            f"; it cannot be determined whether those before {log.min_offset:,}, where the log begins, have expired "
            "or are lost"
        )
    return text
