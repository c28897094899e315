"""Units and index entries of the messages of a planned log, before anything is written.

Cost: linear in the log, in one pass if its messages are of the most common kind. The bytes of long holes are not built:
their units follow from what is known about their placeholders.
"""

import bisect
import collections
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from mqtool.engine.repair.parts import Part
from mqtool.engine.repair.recover.bridges import Hole
from mqtool.engine.repair.recover.displaced import PatchedFile
from mqtool.engine.repair.recover.log import LogPlan, SurveyRules, derived_part, run_of
from mqtool.engine.repair.recover.record_editor import Patch
from mqtool.engine.repair.verify.log import Run
from mqtool.engine.store.commit_log import ROWS, Gap
from mqtool.engine.store.dispatch import Units, dispatch
from mqtool.engine.store.file_queue import segment_name
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import kernels as plain
from mqtool.formats import scan

Derived = tuple[Units, Run | None]
"""Units of consecutive messages, and the run with their entries if they may have some."""
_LONG = 1 << 20
"""Bytes from which on a hole is handled separately."""
_PART = 32 << 20


def derive(reader: StoreReader, plan: LogPlan, start_offset: int, tags_in_index: bool, jobs: int) -> Iterator[Derived]:
    """Yield units and entries of all messages, placeholders included, in the order of the log.

    Args:
        reader: of the store, its log as the plan found it.
        plan: the changes to that log.
        start_offset: address to begin at, where a segment begins.
        tags_in_index: also derive the entries by tag.
        jobs: threads.
    """
    waiting: collections.deque[Future[list[Derived]] | Iterator[Derived]] = collections.deque()
    with ThreadPoolExecutor(jobs) as pool:
        for step in _steps(reader, plan, start_offset, tags_in_index):
            waiting.append(step if isinstance(step, Iterator) else pool.submit(step))
            if len(waiting) > jobs + 1:
                yield from _found(waiting.popleft())
        while waiting:
            yield from _found(waiting.popleft())


def _found(step: Future[list[Derived]] | Iterator[Derived]) -> Iterable[Derived]:
    return step.result() if isinstance(step, Future) else step


Step = Iterator[Derived] | Callable[[], list[Derived]]
"""Units and entries of a stretch, or a function that returns them: several run in parallel."""


def _steps(reader: StoreReader, plan: LogPlan, start_offset: int, tags_in_index: bool) -> Iterator[Step]:
    log = reader.commit_log
    rules = SurveyRules(reader, scan.kernels_for(log.total_size), reader.delay_levels, False, tags_in_index)
    segments = {segment.start_offset: segment for segment in log.segments}
    holes: dict[int, list[Hole]] = {}
    patches: dict[int, list[Patch]] = {}
    for hole in plan.holes:
        holes.setdefault(hole.segment_offset, []).append(hole)
    for patch in plan.patches:
        patches.setdefault(patch.segment_offset, []).append(patch)
    for base in sorted({*segments, *holes}):
        if base < start_offset:
            continue
        segment = segments.get(base) or MappedFile(log.folders[0] / segment_name(base), base, 0)
        apart: list[Hole] = []
        within: list[Hole] = []
        for placed_hole in holes.get(base, ()):
            (apart if placed_hole.size >= _LONG or placed_hole.end > segment.end_offset else within).append(placed_hole)
        view = _as_planned(segment, plan, within, patches.get(base, [])) if within or base in patches else segment
        at = base
        for hole in apart:
            yield from _parts(rules, view, plan, at, hole.start)
            yield _bridged(rules, segment, plan, hole)
            at = hole.end
        yield from _parts(rules, view, plan, at, min(segment.end_offset, plan.end_offset))


class _Planned(PatchedFile):
    """A planned segment, which is read once: changes need not be kept in memory."""

    def release(self, start: int, stop: int) -> None:
        MappedFile.release(self, start, stop)


def _as_planned(segment: MappedFile, plan: LogPlan, holes: list[Hole], patches: list[Patch]) -> MappedFile:
    """Return a segment with patches, and with the essentials of the records that bridge some of its holes."""
    view = _Planned(segment, segment.size)
    base = segment.start_offset
    if plan.bridges and holes:
        plan.bridges.outline(view.bytes, base, holes)
    for patch in patches:
        data = np.frombuffer(patch.data, np.uint8)
        view.bytes[patch.position - base : patch.position - base + len(data)] = data
    return view


def _parts(rules: SurveyRules, segment: MappedFile, plan: LogPlan, start: int, stop: int) -> Iterator[Step]:
    """Yield steps for the messages between two addresses; each begins where a message is known to begin."""
    low, high = bisect.bisect(plan.starts, start), bisect.bisect_left(plan.starts, stop)
    begins = [start]
    for address in plan.starts[low:high]:
        if address - begins[-1] >= _PART:
            begins.append(address)
    for begin, end in itertools.pairwise([*begins, stop]):
        yield functools.partial(_messages, rules, segment, begin - segment.start_offset, end - segment.start_offset)


def _messages(rules: SurveyRules, segment: MappedFile, start: int, stop: int) -> list[Derived]:
    """Return units and entries of the messages of a stretch, which are sound and consecutive."""
    derived: list[Derived] = []
    while start < stop:
        part = Part(segment, start, min(start + _PART, stop))
        report = derived_part(rules, part, start)
        pieces = (piece for piece in report.runs if not isinstance(piece, Gap))
        derived += [(piece.units, piece.run) for piece in pieces if piece.units is not None]
        segment.release(start, part.stop)
        start = max(report.end, part.stop)
    return derived


def _bridged(rules: SurveyRules, segment: MappedFile, plan: LogPlan, hole: Hole) -> Iterator[Derived]:
    """Yield units and entries of the placeholders of a hole."""
    for piece in plan.bridges.derived(hole.start, hole.end) if plan.bridges else ():
        if isinstance(piece, Units):
            yield piece, None
            continue
        position, data = piece
        at, stop = 0, scan.Stop.PART
        while stop is scan.Stop.PART and at < len(data):
            buffer = memoryview(data) if rules.kernels is plain else data
            part = scan.scan(buffer, position, at, kernels=rules.kernels, limit=ROWS)
            at, stop = part.end, part.stop
            if len(part.table):
                derived = dispatch(part.table, rules.delay_levels, rules.tags_in_index)
                yield derived.units, run_of(segment, part.table, derived.entries)
