"""Serialized reports of stretches that are checked in other processes or on other machines.

A report does not contain what can be rebuilt: instead of the index entries of a run it has the result of the
search for them in the index, a ``Claim``; the joining process rebuilds entries in the rare case that it needs them.

Cost: linear in the messages of a stretch; a report takes some bytes for each queue and run in it.
"""

import dataclasses
import pickle
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from mqtool.engine.repair.parts import Part, PartReport
from mqtool.engine.repair.verify.index import Claim, IndexVerifier, joined_runs
from mqtool.engine.repair.verify.log import Run, VerifyRules, check_part
from mqtool.engine.store.commit_log import CommitLog, Gap
from mqtool.engine.store.dispatch import IndexEntries, dispatch, no_entries
from mqtool.engine.store.file_queue import segment_name
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.errors import StoreChangedError
from mqtool.formats import scan


@dataclasses.dataclass
class DistributedRun(Run):
    """A run without its index entries."""

    claim: Claim


class StretchBounds(NamedTuple):
    """A stretch of a log, by addresses: the task of the process that checks it."""

    segment: int  # start address of its segment
    start: int  # positions in the segment
    stop: int

    @classmethod
    def of(cls, part: Part) -> "StretchBounds":
        """Return the stretch of a part."""
        return cls(part.segment.start_offset, part.start, part.stop)

    @property
    def address(self) -> int:
        """Address of its first byte."""
        return self.segment + self.start

    def cut(self, size: int) -> "Iterator[StretchBounds]":
        """Yield it in stretches of at most ``size`` bytes."""
        for start in range(self.start, self.stop, size):
            yield StretchBounds(self.segment, start, min(start + size, self.stop))


class DistributedReport(NamedTuple):
    """The serialized contents of one stretch."""

    stretch: StretchBounds
    start: int | None
    end: int
    runs: list[dict[str, Any] | tuple[int, int, scan.Stop]]  # of each run or gap its fields, without the segment


FIELDS = [field.name for field in dataclasses.fields(DistributedRun) if field.name not in ("segment", "entries")]


def verify_distributed(rules: VerifyRules, index: IndexVerifier, stretch: StretchBounds) -> bytes:
    """Check the messages that begin in a stretch; return a ``DistributedReport``, pickled.

    Args:
        rules: of the store.
        index: of the same; not live, and used in any order.
        stretch: to check.

    Raises:
        StoreChangedError: its segment is gone.
        NotFoundError: it is deleted in the meantime.
    """
    report = check_part(rules, Part(segment_of(rules.reader.commit_log, stretch), stretch.start, stretch.stop))
    runs: list[dict[str, Any] | tuple[int, int, scan.Stop]] = []
    for piece in report.runs:
        if isinstance(piece, Gap):
            runs.append((piece.start, piece.end, piece.stop))
        else:
            far = DistributedRun(**{**vars(piece), "entries": no_entries()}, claim=index.claim(piece))
            runs.append({name: getattr(far, name) for name in FIELDS})
    return pickle.dumps(DistributedReport(stretch, report.start, report.end, runs))


def report_of(log: CommitLog, far: DistributedReport) -> PartReport[Run]:
    """Return the report for a serialized one of ``verify_distributed``.

    Raises:
        StoreChangedError: the segment is gone in the meantime.
    """
    segment = segment_of(log, far.stretch)
    runs: list[Run | Gap] = []
    for piece in far.runs:
        if isinstance(piece, dict):
            runs.append(DistributedRun(segment=segment, entries=no_entries(), **piece))
        else:
            runs.append(Gap(segment, *piece))
    return PartReport(Part(segment, far.stretch.start, far.stretch.stop), far.start, far.end, runs)


def segment_of(log: CommitLog, stretch: StretchBounds) -> MappedFile:
    """Return the segment of a stretch.

    Raises:
        StoreChangedError: there is none of this length.
    """
    segment = log.segment_at(stretch.segment)
    if segment is None or segment.start_offset != stretch.segment or segment.size < stretch.stop:
        raise StoreChangedError(
            f"{segment_name(stretch.segment)} is gone or was truncated: another process is changing it; try again"
        )
    return segment


def with_entries(rules: VerifyRules, runs: Sequence[Run]) -> Run:
    """Return the runs of a block as one, with missing index entries derived again."""
    return joined_runs(
        [
            dataclasses.replace(run, entries=entries_of(rules, run)) if isinstance(run, DistributedRun) else run
            for run in runs
        ]
    )


def entries_of(rules: VerifyRules, run: Run) -> IndexEntries:
    """Derive the index entries of a run again."""
    log = rules.reader.commit_log
    buffer, _ = log.buffer_of(run.segment, rules.kernels, run.start, run.end)
    base = run.segment.start_offset
    table = scan.scan(buffer, base, run.start, run.end, log.envelope, rules.kernels, run.count).table
    sound = table if not table.faults.any() else table.where(table.faults == 0)
    return dispatch(sound, rules.delay_levels, rules.tags_in_index).entries if len(sound) else no_entries()
