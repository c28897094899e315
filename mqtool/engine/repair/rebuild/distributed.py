"""A distributed rebuild, whose stretches are walked in other processes or on other machines.

Units and index entries of a stretch are kept by the process that walked it. It sends a report without them to the one
that takes stretches in the order of the log, which answers with a ``Verdict``: which runs belong to the log, how
many holes are before them, and where each index file begins. With that, the units of a queue or the entries of an index
file can be collected and written anywhere, just as one walk over the whole log would.

Cost: linear in the log; a report takes some bytes for each queue of its stretch.
"""

import bisect
import dataclasses
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from mqtool.engine.repair.parts import Part, PartReport, joined
from mqtool.engine.repair.rebuild.index import LastEntry
from mqtool.engine.repair.rebuild.plan import Derived, RebuildRules, in_turn, walk_stretch
from mqtool.engine.repair.verify.distributed import StretchBounds, segment_of
from mqtool.engine.repair.verify.log import LogVerifier, Run
from mqtool.engine.store.commit_log import CommitLog, Gap
from mqtool.engine.store.dispatch import IndexEntries, no_entries
from mqtool.engine.store.index_file import Shape
from mqtool.formats import scan


@dataclasses.dataclass
class DistributedDerived(Derived):
    """A run without its units and entries."""

    stretch: StretchBounds
    entry_count: int
    first_entry: int  # store time of its message
    last_entry: LastEntry | None


_LEFT_OUT = ("segment", "pieces", "entries", "findings", "stretch")
_FIELDS = [field.name for field in dataclasses.fields(DistributedDerived) if field.name not in _LEFT_OUT]


class Walked(NamedTuple):
    """A stretch that was walked elsewhere: its serialized report, and its runs with units and entries."""

    report: bytes
    runs: list[Derived]


def walk_distributed(rules: RebuildRules, stretch: StretchBounds) -> Walked:
    """Derive units and entries of the messages that begin in a stretch.

    Raises:
        StoreChangedError: its segment is gone.
        NotFoundError: it is deleted in the meantime.
    """
    segment = segment_of(rules.reader.commit_log, stretch)
    report = walk_stretch(rules, Part(segment, stretch.start, stretch.stop))
    pieces: list[Any] = []
    runs = []
    for run in report.runs:
        if isinstance(run, Gap):
            pieces.append((run.start, run.end, run.stop))
        elif isinstance(run, Derived):
            runs.append(run)
            far = _without_load(run, stretch)
            pieces.append({name: getattr(far, name) for name in _FIELDS})
    return Walked(pickle.dumps((stretch, report.start, report.end, pieces)), runs)


def _without_load(run: Derived, stretch: StretchBounds) -> DistributedDerived:
    entries = run.entries
    count = len(entries.rows)
    load: dict[str, Any] = {"pieces": [], "entries": no_entries()}
    return DistributedDerived(
        **{**vars(run), **load},
        stretch=stretch,
        entry_count=count,
        first_entry=int(entries.store_timestamp[0]) if count else 0,
        last_entry=last_entry(entries),
    )


def last_entry(entries: IndexEntries) -> LastEntry | None:
    """Return what the next file takes over from some entries."""
    if not len(entries.rows):
        return None
    return LastEntry(int(entries.store_timestamp[-1]), int(entries.physical_offset[-1]))


def _report_of(log: CommitLog, data: bytes) -> PartReport[Run]:
    stretch, start, end, pieces = pickle.loads(data)
    segment = segment_of(log, stretch)
    load: dict[str, Any] = {"segment": segment, "pieces": [], "entries": no_entries(), "findings": []}
    load["stretch"] = stretch
    runs: list[Run | Gap] = [
        DistributedDerived(**load, **piece)
        if isinstance(piece, dict)
        else Gap(segment, piece[0], piece[1], scan.Stop(piece[2]))
        for piece in pieces
    ]
    return PartReport(Part(segment, stretch.start, stretch.stop), start, end, runs)


class FileStart(NamedTuple):
    """Where an index file begins."""

    address: int  # of the run whose entries come first
    skipped: int  # of that run's entries, those in the file before
    timestamp: int | None  # that names it; None: of its first entry
    before: LastEntry | None  # last entry of the file before; None also where that is among those skipped


@dataclasses.dataclass
class Verdict:
    """Which runs belong to the log, and what is needed to write the units and entries of each."""

    holes: list[int] = dataclasses.field(default_factory=list)
    """Address of the first run after each hole."""
    torn: set[int] = dataclasses.field(default_factory=set)
    """Addresses of runs with records that cannot be read, .."""
    torn_ends: list[int] = dataclasses.field(default_factory=list)
    """.. and where each of them ends."""
    elsewhere: set[int] = dataclasses.field(default_factory=set)
    """Addresses of runs whose records state other addresses."""
    left_out: set[tuple[int, int]] = dataclasses.field(default_factory=set)
    """Addresses of a stretch and of a run that was found in it and does not belong to the log."""
    files: list[FileStart] = dataclasses.field(default_factory=list)
    entries: int = 0
    messages: int = 0
    end_offset: int = 0
    inner_batches: set[str] = dataclasses.field(default_factory=set)

    def holes_before(self, run: int) -> int:
        """Return how many holes are before the run at an address, torn runs included."""
        return bisect.bisect_right(self.holes, run) + bisect.bisect_right(self.torn_ends, run)

    def slices(self, address: int, entries: IndexEntries) -> Iterator[tuple[int, slice, LastEntry | None]]:
        """Yield which entries of the run at an address belong to which index file, and how that file begins."""
        count = len(entries.rows)
        number = bisect.bisect_right(self.files, (address, 0), key=lambda file: (file.address, file.skipped)) - 1
        done = 0
        while done < count:
            following = self.files[number + 1] if number + 1 < len(self.files) else None
            stop = following.skipped if following and following.address == address else count
            start = self.files[number]
            before = start.before
            if start.address == address and start.skipped and start.skipped == done:
                before = LastEntry(int(entries.store_timestamp[done - 1]), int(entries.physical_offset[done - 1]))
            if done < stop:
                yield number, slice(done, stop), before
            done, number = stop, number + 1


class _IndexFileStarts:
    """Predicts where index files begin from the number of entries of each run, as ``IndexBuilder`` will do."""

    def __init__(self, shape: Shape) -> None:
        self.starts: list[FileStart] = []
        self._room = shape.entries - 1
        self._left = 0
        self._last: LastEntry | None = None

    def add(self, run: Run, count: int, first: int, last: LastEntry | None, more: bool) -> None:
        """Take the next run, with its number of entries, the first and the last of them."""
        done = 0
        while done < count:
            if not self._left:
                inside = done > 0
                self._begin(run.start_offset, done, None if inside else first, None if inside else self._last)
            step = min(count - done, self._left)
            self._left -= step
            done += step
        self._last = last or self._last
        if more and not self._left:
            self._begin(run.end_offset, 0, run.last_timestamp, self._last)

    def _begin(self, address: int, skipped: int, timestamp: int | None, before: LastEntry | None) -> None:
        self.starts.append(FileStart(address, skipped, timestamp, before if self.starts else None))
        self._left = self._room


def decide(
    rules: RebuildRules, shape: Shape | None, reports: Iterable[bytes], surplus: Callable[[Derived], None]
) -> Verdict:
    """Take the reports of stretches in the order of the log, and decide which runs belong to it.

    Args:
        rules: that the stretches were walked by.
        shape: of index files, None if no index is made.
        reports: in the order of the log.
        surplus: called with runs that no other process has: of a stretch that had to be walked again, as a record that
            begins before it does not end where it seemed to.
    """
    reader = rules.reader
    log = LogVerifier(reader, live=False)
    verdict = Verdict()
    files = _IndexFileStarts(shape) if shape else None

    def known() -> Iterator[PartReport[Run]]:
        for data in reports:
            report = _report_of(reader.commit_log, data)
            runs = (run for run in report.runs if isinstance(run, DistributedDerived))
            verdict.left_out.update((run.stretch.address, run.start_offset) for run in runs)
            yield report

    def walk(part: Part, start: int | None) -> PartReport[Run]:
        return walk_stretch(rules, part, start)

    lost = 0
    for run in in_turn(log, joined(known(), walk)):
        if run is None:
            lost += 1
            continue
        verdict.holes += [run.start_offset] * lost
        lost = 0
        if run.faulty:
            verdict.torn.add(run.start_offset)
            verdict.torn_ends.append(run.end_offset)
        if not run.in_place:
            verdict.elsewhere.add(run.start_offset)
        verdict.inner_batches |= run.inner_batches
        if isinstance(run, DistributedDerived):
            verdict.left_out.discard((run.stretch.address, run.start_offset))
            count, first, last = run.entry_count, run.first_entry, run.last_entry
        else:
            surplus(run)
            count, last = len(run.entries.rows), last_entry(run.entries)
            first = int(run.entries.store_timestamp[0]) if count else 0
        verdict.entries += count
        if files:
            files.add(run, count, first, last, run.more)
    verdict.files = files.starts if files else []
    verdict.messages, verdict.end_offset = log.count, log.end_offset
    return verdict
