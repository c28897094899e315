"""Stretches of a commit log, walked in parallel and taken in order.

A check of all records of a log (``verify``, ``recover``) supplies a function for one table of them.

Cost: linear in the log; memory holds a few stretches for each thread.
"""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from mqtool.engine.store.commit_log import CommitLog, Gap
from mqtool.engine.store.dispatch import QueueKey, Units
from mqtool.engine.store.mapped_file import MappedFile, WalkedInParts
from mqtool.formats import scan
from mqtool.formats.scan import MessageTable


class LogRun(Protocol):
    """The result of such a function for consecutive records."""

    end: int  # position in the segment


Run = TypeVar("Run", bound=LogRun)
Item = TypeVar("Item")
Progress = Callable[[int], object]
"""Called with the number of bytes done so far."""

PART = 16 << 20
"""Bytes of the log that are checked at once: bounds the memory of a thread."""


def part_size(most: int, jobs: int) -> int:
    """Return how many bytes each thread takes at once, ``most`` at most."""
    return max(1, min(most, 2 * most // jobs))


@dataclasses.dataclass(frozen=True)
class Part:
    """A stretch of a segment."""

    segment: MappedFile
    start: int
    stop: int
    walked: WalkedInParts | None = None
    """What is read instead of a remote segment."""

    def leave(self) -> None:
        """Release what was read of it: no thread reads it, or what is before it, any more."""
        if self.walked:
            self.walked.leave(self.stop)


class Span(NamedTuple):
    """Consecutive queue offsets in a run."""

    queue: QueueKey
    start: int
    stop: int
    physical_offset: int  # of the first message
    last_physical_offset: int  # of the last

    @property
    def is_one_record(self) -> bool:
        """Whether it is a single record: a message, or an inner batch."""
        return self.physical_offset == self.last_physical_offset


@dataclasses.dataclass
class PartReport(Generic[Run]):
    """The contents of one stretch, in order, and where the walk over it ended."""

    part: Part
    start: int | None  # where its first record or gap begins; None when none begins in it
    end: int
    runs: list[Run | Gap]


def parts_of(log: CommitLog, size: int) -> Iterator[Part]:
    """Cut the log into stretches."""
    for segment in log.segments:
        for start in range(0, segment.size, size):
            yield Part(segment, start, min(start + size, segment.size))


def to_walk(parts: list[Part]) -> list[Part]:
    """Return stretches of which remote ones are read into memory, for who calls ``leave`` for each, in order.

    Small segments are not: what was fetched of them before, to tell their names, is all of them.
    """
    large = {id(part.segment): part.segment for part in parts if part.segment.size > PART}
    walked = {number: segment.to_walk_in_parts() for number, segment in large.items()}
    return [dataclasses.replace(part, walked=walked.get(id(part.segment))) for part in parts]


def parts_apart(parts: list[Part], address: int) -> list[Part]:
    """Split stretches so that one begins at an address."""
    cut: list[Part] = []
    for part in parts:
        at = address - part.segment.start_offset
        is_within = part.start < at < part.stop
        cut += [dataclasses.replace(part, stop=at), dataclasses.replace(part, start=at)] if is_within else [part]
    return cut


def parts_below(parts: list[Part], end_offset: int) -> list[Part]:
    """Leave out what is at ``end_offset`` or after it."""
    cut = [dataclasses.replace(part, stop=min(part.stop, end_offset - part.segment.start_offset)) for part in parts]
    return [part for part in cut if part.start < part.stop]


def walk_part(
    log: CommitLog,
    kernels: Any,
    part: Part,
    start: int | None,
    make_runs: Callable[[MessageTable], Iterable[Run]],
    quick: Callable[[int], Iterable[Run]] = lambda _: (),
) -> PartReport[Run]:
    """Check the messages that begin in a stretch.

    Args:
        log: of the stretch.
        kernels: ``scan.kernels_for(..)``.
        part: the stretch.
        start: where its first record begins; None to search for it.
        make_runs: makes runs of a table, in order, the last of which ends where the table ends.
        quick: makes runs of the messages from a position on, as far as they are of the most common kind.
    """
    segment = part.walked or part.segment
    if start is None:
        if not log.is_there(segment, kernels):
            return PartReport(part, None, segment.size, [])
        start = 0 if part.start == 0 else log.resync(segment, part.start, part.stop, kernels)
        if start is None:
            segment.release(part.start, part.stop)
            return PartReport(part, None, part.start, [])
    report: PartReport[Run] = PartReport(part, start, start, [])
    for run in quick(start):
        report.runs.append(run)
        report.end = run.end
    for piece in log.walk(segment, report.end, part.stop, kernels):
        if isinstance(piece, Gap):
            report.runs.append(piece._replace(segment=part.segment))
            report.end = piece.end
        else:
            report.runs += make_runs(piece)
            last = report.runs[-1]
            report.end = last.end
    if report.end < part.stop:  # a blank record
        report.end = segment.size
    if report.runs:
        segment.release(part.start, part.stop)
    return report


def in_order(
    pool: ThreadPoolExecutor,
    check: Callable[[Part, int | None], PartReport[Run]],
    parts: list[Part],
    ahead: int,
) -> Iterator[PartReport[Run]]:
    """Check stretches in parallel; yield them in order, each beginning where the one before it ended."""
    return joined(_side_by_side(pool, check, parts, ahead), check)


def _side_by_side(
    pool: ThreadPoolExecutor,
    check: Callable[[Part, int | None], PartReport[Run]],
    parts: list[Part],
    ahead: int,
) -> Iterator[PartReport[Run]]:
    waiting: collections.deque[Future[PartReport[Run]]] = collections.deque()
    queue = iter(parts)
    while True:
        for part in itertools.islice(queue, ahead - len(waiting)):
            waiting.append(pool.submit(check, part, None))
        if not waiting:
            return
        yield waiting.popleft().result()


def joined(
    reports: Iterable[PartReport[Run]], check: Callable[[Part, int | None], PartReport[Run]]
) -> Iterator[PartReport[Run]]:
    """Yield reports of stretches that were checked each by itself so that each begins where the one before it ended.

    Args:
        reports: in the order of the log.
        check: checks a stretch again, from where its first record begins.
    """
    segment, end, in_gap = None, 0, False
    for report in reports:
        part = report.part
        if part.segment is segment and report.start != end:
            if end >= part.stop:
                report = PartReport(part, None, end, [])
            elif end == part.start and in_gap:
                # Bytes there that are not a record continue here.
                start = part.stop if report.start is None else report.start
                gap = Gap(part.segment, part.start, start, scan.Stop.MAGIC)
                report = PartReport(part, part.start, max(start, report.end), [gap, *report.runs])
            else:
                # A record that begins before this stretch ends elsewhere: its body contains what looks like a record.
                report = check(part, end)
        end = max(report.end, end if part.segment is segment else 0)
        segment = part.segment
        in_gap = bool(report.runs) and isinstance(report.runs[-1], Gap)
        yield report


def one_ahead(items: Iterable[Item]) -> Iterator[Item]:
    """Yield items while a thread prepares the next one."""
    source = iter(items)
    with ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(next, source, None)
        while (item := waiting.result()) is not None:
            waiting = beside.submit(next, source, None)
            yield item


def spans_of(units: Units) -> list[Span]:
    """Return where each stretch of queue offsets begins and ends."""
    return [
        Span(
            queue,
            int(units.queue_offset[first]),
            units.after(last - 1),
            int(units.physical_offset[first]),
            int(units.physical_offset[last - 1]),
        )
        for queue, first, last in units.stretches
    ]
