"""Which file of a commit log is which segment, according to its records.

A record holds its own address, so the records of a segment show its name. ``place`` compares them with the names of the
files: a few records of each file, all records if these are inconclusive. It returns the log as it
should be named; ``recover`` plans with that, ``verify`` reports the difference. (Rules: store.md 1, 2.)
"""

import collections
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mqtool.engine.store.commit_log import ROWS, SLACK, CommitLog, heads_in
from mqtool.engine.store.file_queue import is_segment_name, segment_name
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.packed import is_packed_name
from mqtool.engine.store.reader import StoreReader
from mqtool.engine.store.remote import RemotePath
from mqtool.errors import NotPermittedError
from mqtool.formats import consume_queue, scan
from mqtool.formats import kernels as plain
from mqtool.formats.scan import MessageTable

_SAMPLE = 8
_NEAR = 256 << 10
_SAMPLED = 8 << 20
"""Bytes searched for so many records from a few places of a file: first the near ones, then two of the longest."""
_AT_ONCE = 12
"""Files that are looked at in parallel where each answer is waited for: in object storage or HDFS."""
_FAR = 16
"""If more segments than this, and than exist, were missing between a log and a file, it is of another log."""


@dataclasses.dataclass(frozen=True)
class Renamed:
    """A segment whose name contradicts its records, or those of another file."""

    path: Path
    start_offset: int
    has_records: bool  # else it yields its name to another file

    @property
    def target(self) -> Path:
        """Its path with the correct name."""
        return self.path.with_name(segment_name(self.start_offset))


@dataclasses.dataclass(frozen=True)
class Removed:
    """A file to be removed from the folder of the log; ``donor``: whether it holds records of some log."""

    path: Path
    size: int
    reason: str
    donor: bool
    is_named: bool  # its name is that of a segment


@dataclasses.dataclass
class Placement:
    """The log as it should be named, and the changes for that; ``is_as_named``: there are none."""

    log: CommitLog
    """Every segment at the address that its records state, and not too long."""
    renamed: list[Renamed] = dataclasses.field(default_factory=list)
    removed: list[Removed] = dataclasses.field(default_factory=list)
    too_long: list[MappedFile] = dataclasses.field(default_factory=list)
    """Segments at their actual length, at the address that their records state."""
    is_whole_in_doubt: bool = False
    """Whether records of one segment are in another, so that no part of the log may be skipped."""
    lost_first: list[int] = dataclasses.field(default_factory=list)
    """Addresses of segments with which the log began, and which are gone: files with their names held others."""

    @property
    def of_wrong_length(self) -> list[MappedFile]:
        """Segments that are too long or too short, at their actual length."""
        return [*self.too_long, *(segment for segment in self.log.segments if segment.size < self.log.file_size)]

    def keep_beginning(self, starts: Sequence[int]) -> None:
        """Keep files that are not segments by their records, but have names at which the log began.

        Without them their messages would seem to have expired.

        Args:
            starts: addresses to which the first units of queues lead.
        """
        size = self.log.file_size
        for removed_file in self.removed:
            base = int(removed_file.path.name) if removed_file.is_named else -1
            is_before = 0 <= base <= self.log.min_offset - size and base % size == 0
            if is_before and any(base <= start < base + size for start in starts):
                self.removed = [other for other in self.removed if other is not removed_file]
                self.is_whole_in_doubt = True
                kept = MappedFile(removed_file.path, base, min(removed_file.size, size))
                self.log = self.log.with_segments([kept, *self.log.segments])
                if removed_file.size > size:
                    self.too_long.append(MappedFile(removed_file.path, base, removed_file.size))
        for file in self.renamed:
            base = int(file.path.name) if is_segment_name(file.path.name) else -1
            is_before = 0 <= base <= self.log.min_offset - size and base % size == 0
            if is_before and any(base <= start < base + size for start in starts):
                self.is_whole_in_doubt = True
                self.lost_first.append(base)

    def carried_out(self, log: CommitLog) -> None:
        """Note, here and in a log derived from this one, that the files have their new names."""
        targets = {file.path: file.target for file in self.renamed}
        for segment in {*self.log.segments, *self.too_long, *log.segments}:
            segment.path = targets.get(segment.path, segment.path)


def first_addresses(reader: StoreReader) -> list[int]:
    """Return the address to which the first unit of each queue leads."""
    queues = [*reader.consume_queues.values()]
    firsts = [unit for queue in queues for unit in queue.units(queue.first_offset, queue.first_offset + 1)]
    firsts += [unit for batch_queue in reader.batch_consume_queues.values() for unit in batch_queue.units(0, 1)]
    return [int(unit["physical_offset"]) for unit in firsts if 0 < unit["size"] < consume_queue.PRE_BLANK_SIZE]


@dataclasses.dataclass
class _PlacedFile:
    path: Path
    size: int
    named: int | None  # the address by its name, None if the file is not named like a segment
    order: int
    segment: MappedFile | None = None  # of the log
    votes: "collections.Counter[int]" = dataclasses.field(default_factory=collections.Counter)
    """How many records state an address in the segment that begins at an address."""
    is_counted: bool = False  # all of its records were counted were counted

    def mapped(self) -> MappedFile:
        """Return the file; if it is fetched or unpacked its bytes stay with the log, which is read next."""
        if self.segment is not None and isinstance(self.path, RemotePath):
            return self.segment
        return MappedFile(self.path, 0, self.size)

    @property
    def claim(self) -> int | None:
        """The segment to which most of its records belong; on a tie, that of its name."""
        return max(self.votes, key=lambda base: (self.votes[base], base == self.named), default=None)


def place(log: CommitLog) -> Placement:
    """Return which file is which segment. Cost: a few pages of each file, all pages of inconclusive files."""
    size = log.file_size
    if log.envelope is not scan.BARE:
        return Placement(log)
    files = _files(log)
    if not size or not log.segments:
        return Placement(log, removed=[_removed(file, {}) for file in files if file.named is None])
    _count(files, size)
    keepers = _keepers(files, size)
    names = _names(files, keepers, size)
    return _placement(log, files, names)


def _files(log: CommitLog) -> list[_PlacedFile]:
    folders = {folder: number for number, folder in enumerate(log.folders)}
    placed = [
        _PlacedFile(segment.path, segment.size, segment.start_offset, folders.get(segment.path.parent, 0), segment)
        for segment in log.segments
    ]
    placed += [_PlacedFile(stray.path, stray.size, None, len(folders)) for stray in log.strays if not stray.is_folder]
    return placed


def _count(files: list[_PlacedFile], size: int) -> None:
    """Count votes of a few records of each file; of all if these are inconclusive."""
    shared = collections.Counter(file.named for file in files)
    is_waited_for = any(type(file.path) is RemotePath for file in files)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        sampled = (pool.map if is_waited_for else map)(functools.partial(_sampled, size=size), files)
        for file, votes in zip(files, sampled, strict=True):
            with contextlib.suppress(NotPermittedError):
                if votes.keys() != {file.named} or shared[file.named] > 1:
                    file.is_counted = True
                    votes = _all_votes(file.mapped(), min(file.size, size), size)
                file.votes = votes
    claims = collections.Counter(file.claim for file in files)
    for file in files:
        if claims[file.claim] > 1 and file.claim is not None and not file.is_counted:
            file.votes = _all_votes(file.mapped(), min(file.size, size), size)
            file.is_counted = True


def _sampled(file: _PlacedFile, size: int) -> "collections.Counter[int]":
    """Return the votes of a few records at three places of a file; none if it must not be read."""
    end = min(file.size, size)
    with contextlib.suppress(NotPermittedError):
        mapped = file.mapped()
        places = dict.fromkeys((0, end // 2, end * 3 // 4))
        return sum((_first_votes(mapped, at, min(at + _SAMPLED, end), size) for at in places), collections.Counter())
    return collections.Counter()


def _first_votes(mapped: MappedFile, start: int, stop: int, size: int) -> "collections.Counter[int]":
    for end in (min(start + _NEAR, stop), stop):
        table = next(records_in(mapped, start, end, _SAMPLE), None)
        if table is not None and len(table) == _SAMPLE:
            break
    return collections.Counter() if table is None else _votes(table, size)


def _all_votes(mapped: MappedFile, stop: int, size: int) -> "collections.Counter[int]":
    return sum((_votes(table, size) for table in records_in(mapped, 0, stop)), collections.Counter())


def _votes(table: MessageTable, size: int) -> "collections.Counter[int]":
    """Return how many records belong to which segment by their addresses, whether their bodies are sound or not."""
    bases = table.column("physical_offset") - table.starts
    values, counts = np.unique(bases[(bases >= 0) & (bases % size == 0)], return_counts=True)
    return collections.Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))


def records_in(
    mapped: MappedFile,
    start: int,
    stop: int,
    limit: int = ROWS,
    is_sound: Callable[[MessageTable], npt.NDArray[np.bool_]] | None = None,
) -> Iterator[MessageTable]:
    """Yield the records with consistent sizes that begin in a stretch of a file, whatever address they state.

    Args:
        mapped: the file, at the address from which positions count.
        start: position in the file.
        stop: records that begin here or later are left out.
        limit: most records in one table.
        is_sound: further condition for a record; if it fails, others may begin inside of it.
    """
    kernels = scan.kernels_for(stop - start if limit == ROWS else 0)
    at = start
    while at < stop:
        first = next(heads_in(mapped, at, stop), None)
        if first is None:
            return
        buffer, table = _scanned(mapped, first, stop, kernels, limit)
        wrong = table.faults != 0
        if is_sound is not None:
            wrong[~wrong] = ~is_sound(table.where(~wrong))
        done, at = 0, first + 1
        for row in [*np.flatnonzero(wrong).tolist(), len(table)]:
            if done < row:
                yield table.where(slice(done, row))
                at = int(table.starts[row - 1]) + int(table.column("size")[row - 1])
            if row == len(table):
                break
            # Another record may begin within a wrong one; else the next follows directly.
            done, at = row + 1, int(table.starts[row]) + 1
            behind = int(table.starts[done]) if done < len(table) else at
            if done == len(table) or next(scan.candidates(buffer, None, at, behind), None) is not None:
                break


def _scanned(mapped: MappedFile, start: int, stop: int, kernels: Any, limit: int) -> tuple[Any, MessageTable]:
    """Return the bytes of a file, and the complete records that begin in a stretch of it."""
    reach = stop + SLACK
    while True:
        data, until = mapped.reach(start, reach)
        buffer = memoryview(data) if kernels is plain else data
        table = scan.scan(buffer, mapped.start_offset, start, stop, kernels=kernels, limit=limit).table
        reach = int(table.starts[-1]) + int(table.column("size")[-1]) if len(table) else until
        if reach <= until or until >= mapped.size:
            return buffer, table


def _keepers(files: list[_PlacedFile], size: int) -> dict[int, _PlacedFile]:
    """Return the file to be used for each segment.

    The file of that name, if most of its records agree: others may be of another log. Else that with most records.
    """
    claims = [
        (base == file.named == file.claim, count, file.named is not None, -file.order, -number, base)
        for number, file in enumerate(files)
        for base, count in file.votes.items()
        if file.named is not None or base == file.claim
    ]
    best: dict[int, _PlacedFile] = {}
    used_numbers: set[int] = set()
    for *_, number, base in sorted(claims, reverse=True):
        if base not in best and number not in used_numbers:
            best[base] = files[-number]
            used_numbers.add(number)
    sure = {base for base, file in best.items() if file.named == base}
    sure = sure or {base for base, file in best.items() if file.named is not None} or set(best)
    # A file that continues the existing log belongs to it, whatever its name.
    pending = set(best) - sure
    while near := {base for base in pending if sure and min(sure) - size <= base <= max(sure) + size}:
        sure |= near
        pending -= near
    for base in pending:
        apart = max(min(sure) - base, base - max(sure)) // size
        if best[base].named is not None and apart <= max(_FAR, len(files)):
            sure.add(base)
    return {base: best[base] for base in sure}


def _names(files: list[_PlacedFile], keepers: dict[int, _PlacedFile], size: int) -> dict[Path, int]:
    """Return the address of each file that stays."""
    names = {file.path: base for base, file in keepers.items()}
    used_bases = set(keepers)
    for file in files:
        base = file.named
        if file.claim is not None or base is None:
            continue
        # A file without a record, created ahead or damaged: it yields its name, and gets the one that becomes free.
        seen: set[int | None] = set()
        while base in keepers and base not in seen:
            seen.add(base)
            base = keepers[base].named
        if base is not None and not base % size and base not in used_bases:
            names[file.path] = base
            used_bases.add(base)
    return names


def _placement(log: CommitLog, files: list[_PlacedFile], names: dict[Path, int]) -> Placement:
    placement = Placement(log)
    segments = []
    holders = {base: path for path, base in names.items()}
    for file in files:
        base = names.get(file.path)
        if base is None:
            placement.removed.append(_removed(file, holders))
            continue
        if base != file.named:
            placement.renamed.append(Renamed(file.path, base, has_records=file.claim is not None))
        segments.append(MappedFile(file.path, base, min(file.size, log.file_size)))
        if file.size > log.file_size:
            placement.too_long.append(MappedFile(file.path, base, file.size))
    placement.log = log.with_segments(segments)
    placement.is_whole_in_doubt = any(removed_file.donor for removed_file in placement.removed)
    return placement


def _removed(file: _PlacedFile, holders: dict[int, Path]) -> Removed:
    claim = file.claim
    is_named = file.named is not None
    if claim is None and not is_named:
        what = (
            "a compressed copy of a segment, which is not read" if is_packed_name(file.path.name) else "not a segment"
        )
        reason = f"{what}: brokers refuse to start with it"
    elif claim is None:
        reason = "no record in it shows which segment it is, and it cannot be the one that its name says"
    elif claim in holders:
        reason = f"its records belong to segment {segment_name(claim)}, more of which are in {holders[claim].name}"
        if holders[claim].name == segment_name(claim):
            reason = f"a second file of segment {segment_name(claim)}"
    else:
        reason = f"its records belong to segment {segment_name(claim)} of another log, far from this one"
    return Removed(file.path, file.size, reason, claim is not None, is_named)
