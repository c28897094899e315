"""Two commit logs side by side: which records each has at the same addresses.

A master and its slaves, and a store and its backups, have the same bytes at the same addresses, however long their
files are. Both logs are walked as ``verify`` walks one; a ``Step`` holds what each has in a range of addresses.
Cost: linear in the messages of both; memory holds a few stretches of 32 MiB of each.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from mqtool.engine.repair.parts import PART, Part, PartReport, Progress, in_order, part_size, parts_of, walk_part
from mqtool.engine.store.commit_log import CommitLog, Gap
from mqtool.engine.store.dispatch import properties_of, property_crcs
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import kernels as plain
from mqtool.formats import placeholder, scan
from mqtool.formats.properties import PAIR_SEPARATOR
from mqtool.formats.scan import Ints, MessageTable

Bools = npt.NDArray[np.bool_]

NO_END = 1 << 63
SIDES = ("left", "right")


@dataclasses.dataclass
class Records:
    """Records that follow each other in a segment, and which of them are sound."""

    segment: MappedFile
    end: int  # position in the segment
    table: MessageTable
    sound: Bools
    crcs: Ints  # of the whole record where it is sound

    def where(self, rows: "slice | Ints") -> "Records":
        """Return some of them."""
        return dataclasses.replace(self, table=self.table.where(rows), sound=self.sound[rows], crcs=self.crcs[rows])


def check_records(segment: MappedFile, table: MessageTable) -> Records:
    """Return which records of a table are sound, and the CRCs of these."""
    sound = are_sound(table)
    crcs = np.zeros(len(table), np.int64)
    rows = np.flatnonzero(sound)
    crcs[rows] = table.crcs(table.starts[rows], table.column("size")[rows].astype(np.int64))
    return Records(segment, int(table.starts[-1]) + int(table.column("size")[-1]), table, sound, crcs)


def are_sound(table: MessageTable) -> Bools:
    """Return which records of a table are sound: sizes, address, body and properties; placeholders are not."""
    sound: Bools = (table.faults == 0) & (table.column("position") == table.column("physical_offset"))
    sound &= table.properties([placeholder.LOST])[1][0] == 0
    return sound & ~table.broken()


def doubts(table: MessageTable) -> Ints:
    """Count signs of damage in records that pass ``check_records``: a wrong CRC property, text that is not UTF-8.

    For few records: each is examined by itself.
    """
    count = np.zeros(len(table), np.int64)
    rows, stated, should = property_crcs(table, properties_of(table))
    count[rows[stated != should]] += 1
    for row in range(len(table)):
        topic, properties = table.bytes_of(plain.TOPIC, row), table.bytes_of(plain.PROPERTIES, row)
        pairs = properties.split(PAIR_SEPARATOR.encode())
        count[row] += not _is_text(topic) or min(topic, default=0) < ord(" ")
        count[row] += not _is_text(properties) or 0 in properties or any(pair.find(b"\1") < 1 for pair in pairs if pair)
    return count


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@dataclasses.dataclass
class Slice:
    """What one log holds in a range of addresses, in order."""

    runs: list[Records]
    gaps: list[tuple[int, int]]  # addresses without any record

    @functools.cached_property
    def positions(self) -> Ints:
        """The address of each record."""
        return self._joined([run.table.column("position") for run in self.runs], np.int64)

    @functools.cached_property
    def sizes(self) -> Ints:
        """The length of each record."""
        return self._joined([run.table.column("size") for run in self.runs], np.int64)

    @functools.cached_property
    def sound(self) -> Bools:
        """Whether its checks hold."""
        return self._joined([run.sound for run in self.runs], np.bool_)

    @functools.cached_property
    def crcs(self) -> Ints:
        """The CRC of the whole record."""
        return self._joined([run.crcs for run in self.runs], np.int64)

    def tables(self, rows: Ints) -> Iterator[MessageTable]:
        """Yield some of the records, in order."""
        first = 0
        for run in self.runs:
            low, high = np.searchsorted(rows, (first, first + len(run.table)))
            if low < high:
                yield run.table.where(rows[low:high] - first)
            first += len(run.table)

    @staticmethod
    def _joined(columns: list[npt.NDArray[Any]], dtype: Any) -> npt.NDArray[Any]:
        return np.concatenate([np.empty(0, dtype), *columns]).astype(dtype, copy=False)


@dataclasses.dataclass
class Step:
    """What two logs hold below an address, and above that of the step before."""

    left: Slice
    right: Slice
    stop: int


def log_parts(log: CommitLog, size: int) -> list[Part]:
    """Return the stretches of a log, each address once.

    The end of a log in use is not a record yet: it is after the last sound one, where nothing counts as damage.
    """
    ends = {segment.start_offset: other.start_offset for segment, other in itertools.pairwise(log.segments)}
    cut = []
    for part in parts_of(log, size):
        start = part.segment.start_offset
        stop = min(part.stop, ends.get(start, NO_END) - start)  # a file may be too long
        if part.start < stop:
            cut.append(dataclasses.replace(part, stop=stop))
    return cut


class _Side:
    """One log, read as far as it is asked for."""

    def __init__(self, reader: StoreReader, pool: ThreadPoolExecutor, jobs: int) -> None:
        self.log = reader.commit_log
        parts = log_parts(self.log, part_size(PART, jobs))
        self.total = sum(part.stop - part.start for part in parts)
        check = functools.partial(_check, self.log, scan.kernels_for(self.total))
        self._starts = [part.segment.start_offset + part.start for part in parts]
        self._reports = in_order(pool, check, parts, jobs + 1)
        self._number = 0
        self.known = self._starts[0] if parts else NO_END  # all that begins below has been read
        self.done = 0
        self._pieces: list[Records | Gap] = []

    def advance(self) -> list[Records | Gap]:
        """Read the next stretch and return what is in it."""
        report: PartReport[Records] = next(self._reports)
        self._number += 1
        self.known = self._starts[self._number] if self._number < len(self._starts) else NO_END
        self.done += report.part.stop - report.part.start
        return report.runs

    def keep(self, pieces: list[Records | Gap]) -> None:
        """Hold what was read until it is taken."""
        self._pieces += pieces

    def take(self, stop: int) -> Slice:
        """Return what begins below an address and has not been taken yet."""
        result = Slice([], [])
        rest: list[Records | Gap] = []
        for piece in self._pieces:
            if isinstance(piece, Gap):
                start, end = piece.start_offset, piece.segment.start_offset + piece.end
                if start < stop:
                    result.gaps.append((start, min(end, stop)))
                if end > stop:
                    cut = max(piece.start, stop - piece.segment.start_offset)
                    rest.append(piece._replace(start=cut))
                continue
            count = int(np.searchsorted(piece.table.column("position"), stop))
            if count == len(piece.table):
                result.runs.append(piece)
            else:
                if count:
                    result.runs.append(piece.where(slice(count)))
                rest.append(piece.where(slice(count, None)))
        self._pieces = rest
        return result


def walk(reader: StoreReader, jobs: int, progress: Progress) -> Iterator[Records | Gap]:
    """Yield the records of one log, and the gaps between them.

    Args:
        reader: of the store; it may be in use.
        jobs: threads.
        progress: called with the number of bytes done so far.
    """
    with ThreadPoolExecutor(jobs) as pool:
        side = _Side(reader, pool, jobs)
        while side.known != NO_END:
            yield from side.advance()
            progress(side.done)


def _check(log: CommitLog, kernels: Any, part: Part, start: int | None) -> PartReport[Records]:
    return walk_part(log, kernels, part, start, lambda table: [check_records(part.segment, table)])


def aligned(
    left: StoreReader, right: StoreReader, jobs: int = 1, progress: Progress = lambda _: None
) -> Iterator[Step]:
    """Yield what two logs hold, range of addresses by range of addresses.

    Args:
        left: one store; it may be in use.
        right: the other.
        jobs: threads for each.
        progress: called with the number of bytes of both logs done so far.
    """
    with ThreadPoolExecutor(jobs) as pool, ThreadPoolExecutor(jobs) as other:
        sides = _Side(left, pool, jobs), _Side(right, other, jobs)
        while True:
            behind = min(sides, key=lambda side: side.known)
            if behind.known == NO_END:
                break
            behind.keep(behind.advance())
            stop = min(side.known for side in sides)
            yield Step(sides[0].take(stop), sides[1].take(stop), stop)
            progress(sum(side.done for side in sides))
