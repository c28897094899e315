"""The queue offset of each message of a damaged log in a new one.

Most keep theirs. In each queue the longest series of messages with ascending offsets stays; any other message
goes where one of its topic is missing, else to the end of its queue. What is then still missing between two
messages is returned, to be filled by placeholders.

Cost: n log n in the runs of messages with ascending offsets.
"""

import bisect
import collections
import dataclasses
import heapq
import itertools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mqtool.engine.store.dispatch import QueueKey
from mqtool.formats.consume_queue import OFFSET_END
from mqtool.formats.scan import Ints
from mqtool.formats.topics import MAX_QUEUES

_WINDOW = 64


class OffsetRun(NamedTuple):
    """Messages of one queue with consecutive offsets, in the order of the log."""

    position: int  # address of the first
    start: int  # queue offsets
    stop: int
    misplaced: bool = False  # a single record that states another address

    @property
    def length(self) -> int:
        """The number of messages."""
        return self.stop - self.start


class Missing(NamedTuple):
    """Queue offsets that no message has."""

    queue: QueueKey
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class Moves:
    """New offsets of a queue of which some messages move, run by run in the order of the log."""

    positions: Ints  # address of each run's first message
    shifts: Ints  # what is added to their queue offsets
    queue_ids: Ints
    late: npt.NDArray[np.bool_]  # they go after everything else
    kept: npt.NDArray[np.bool_]


@dataclasses.dataclass
class Order:
    """The changes that make the offsets of every queue consecutive."""

    missing: dict[int, list[Missing]] = dataclasses.field(default_factory=lambda: collections.defaultdict(list))
    """By the address of the message before which they are missing."""
    moves: dict[QueueKey, Moves] = dataclasses.field(default_factory=dict)
    found: set[int] = dataclasses.field(default_factory=set)
    """Addresses of misplaced records that have their place in a queue."""
    moved: list[tuple[QueueKey, OffsetRun, QueueKey, int]] = dataclasses.field(default_factory=list)
    """Queue and messages that move, with the new queue and the new offset of the first."""
    left_out: list[tuple[QueueKey, OffsetRun]] = dataclasses.field(default_factory=list)
    """Messages of impossible queues that no queue of their topic lacks."""
    ranges: dict[QueueKey, tuple[int, int]] = dataclasses.field(default_factory=dict)
    """First queue offset, and one past the last."""

    @property
    def has_late(self) -> bool:
        """Whether messages go after everything else."""
        return any(bool(moves.late.any()) for moves in self.moves.values())


def arrange(
    queues: Mapping[QueueKey, list[OffsetRun]],
    most_missing: Callable[[OffsetRun], int],
    is_fixed: Callable[[QueueKey], bool],
) -> Order:
    """Find a place for every message.

    Args:
        queues: the messages of the log, in its order.
        most_missing: how many messages may be missing before a run.
        is_fixed: returns whether the messages of a queue must keep their offsets.
    """
    order = Order()
    chains: dict[QueueKey, list[OffsetRun]] = {}  # runs with a place, in the order of the log and of the queue
    left: list[tuple[OffsetRun, QueueKey]] = []
    for queue, runs in queues.items():
        if not _can_be(queue):
            # Impossible queue: the messages are of another one, if it lacks them.
            left += [(run, queue) for run in runs]
            continue
        # What is not at the address it states has no place in a queue if it states an impossible one, too.
        possible = [run for run in runs if not run.misplaced or 0 <= run.start < run.stop <= OFFSET_END]
        if not possible:
            continue
        chosen = set(_chain(possible, most_missing))
        chains[queue] = [run for number, run in enumerate(possible) if number in chosen]
        left += [(run, queue) for number, run in enumerate(possible) if number not in chosen]
        order.found.update(run.position for run in chains[queue] if run.misplaced)
    lacking = _Lacking(chains)
    placed: dict[tuple[QueueKey, int], tuple[QueueKey, int]] = {}
    late: list[tuple[OffsetRun, QueueKey]] = []
    for run, queue in sorted(left):
        if run.misplaced or (is_fixed(queue) and _can_be(queue)):
            continue
        target = _place(chains, lacking.at(queue[0], run.position), queue, run)
        if target is None and not _can_be(queue):
            order.left_out.append((queue, run))
        elif target is None:
            late.append((run, queue))
        else:
            placed[queue, run.position] = target
            order.moved.append((queue, run, *target))
    is_late = {(queue, run.position) for run, queue in late}
    for run, queue in late:
        end = chains[queue][-1].stop
        chains[queue].append(OffsetRun(1 << 63, end, end + run.length))
        placed[queue, run.position] = queue, end
        order.moved.append((queue, run, queue, end))
    is_out = {(queue, run.position) for queue, run in order.left_out}
    for queue in {queue for queue, _ in (*placed, *is_out)}:
        runs = [run for run in queues[queue] if not run.misplaced]
        targets = [placed.get((queue, run.position), (queue, run.start)) for run in runs]
        order.moves[queue] = Moves(
            np.array([run.position for run in runs]),
            np.array([_shift(run.start, offset) for (_, offset), run in zip(targets, runs, strict=True)], np.int64),
            np.array([queue_id for (_, queue_id), _ in targets]),
            np.array([(queue, run.position) in is_late for run in runs]),
            np.array([(queue, run.position) not in is_out for run in runs]),
        )
    for queue, chain in chains.items():
        order.ranges[queue] = chain[0].start, chain[-1].stop
        for before, after in itertools.pairwise(chain):
            if before.stop < after.start:
                order.missing[after.position].append(Missing(queue, before.stop, after.start))
    return order


def _can_be(queue: QueueKey) -> bool:
    return 0 <= queue[1] < MAX_QUEUES


def _shift(old: int, new: int) -> int:
    """Return the difference of two 64-bit numbers, wrapping around."""
    return (new - old + (1 << 63)) % (1 << 64) - (1 << 63)


def _chain(runs: list[OffsetRun], most_missing: Callable[[OffsetRun], int]) -> list[int]:
    """Return which runs stay: an ascending series with the most messages, then the fewest missing."""
    best: list[tuple[int, int, int]] = []  # messages, missing ones (negative), the run before
    for number, run in enumerate(runs):
        ways = [(run.length, 0, -1)]
        for before in range(max(0, number - _WINDOW), number):
            missing = run.start - runs[before].stop
            if missing == 0 or 0 < missing <= most_missing(run):
                ways.append((best[before][0] + run.length, best[before][1] - missing, before))
        best.append(max(ways, key=lambda way: way[:2]))
    number = max(range(len(best)), key=lambda number: best[number][:2])
    chosen = []
    while number >= 0:
        chosen.append(number)
        number = best[number][2]
    return chosen[::-1]


class _Lacking:
    """Which queues of a topic lack messages around an address; queried in the order of the log."""

    def __init__(self, chains: Mapping[QueueKey, list[OffsetRun]]) -> None:
        self._ahead: dict[str, list[tuple[int, int, QueueKey]]] = collections.defaultdict(list)
        self._open: dict[str, list[tuple[int, QueueKey]]] = collections.defaultdict(list)
        for queue, chain in chains.items():
            for before, after in itertools.pairwise(chain):
                if before.stop < after.start:
                    self._ahead[queue[0]].append((before.position, after.position, queue))
        for gaps in self._ahead.values():
            gaps.sort(reverse=True)

    def at(self, topic: str, position: int) -> list[QueueKey]:
        """Return the queues that lack messages between their two messages around an address."""
        ahead, opened = self._ahead[topic], self._open[topic]
        while ahead and ahead[-1][0] < position:
            _, end, queue = ahead.pop()
            heapq.heappush(opened, (end, queue))
        while opened and opened[0][0] <= position:
            heapq.heappop(opened)
        return [queue for _, queue in opened]


def _place(
    chains: dict[QueueKey, list[OffsetRun]], siblings: list[QueueKey], queue: QueueKey, run: OffsetRun
) -> tuple[QueueKey, int] | None:
    """Put a run into a chain and return its place; None: after everything else.

    First where exactly this message of its topic is missing, then anywhere that its queue lacks enough, then at the end
    of its queue.
    """
    for other in siblings:
        if other != queue and (run.length == 1 or not _can_be(queue)):
            number, start, stop = _gap(chains[other], run)
            if start <= run.start and run.stop <= stop:
                chains[other].insert(number, run)
                return other, run.start
    if not _can_be(queue):
        return None
    number, start, stop = _gap(chains[queue], run)
    if stop - start >= run.length:
        chains[queue].insert(number, OffsetRun(run.position, start, start + run.length))
        return queue, start
    if number == len(chains[queue]):
        end = chains[queue][-1].stop
        chains[queue].append(OffsetRun(run.position, end, end + run.length))
        return queue, end
    return None


def _gap(chain: list[OffsetRun], run: OffsetRun) -> tuple[int, int, int]:
    """Return where a run belongs in a chain by its address, and which offsets are missing there (from, to)."""
    number = bisect.bisect(chain, (run.position,))
    if 0 < number < len(chain):
        return number, chain[number - 1].stop, chain[number].start
    return number, 0, 0
