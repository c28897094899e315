"""The commit log on disk: its segments, and walks over them that continue after damage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mqtool.engine.store.file_queue import FileQueue, Stray
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.mapping import reading
from mqtool.engine.store.packed import READ_PACKED, PackedPath, is_packed_name, plain_name
from mqtool.errors import MqtoolError, NotFoundError, UsageError
from mqtool.formats import commit_log, scan
from mqtool.formats import kernels as plain
from mqtool.formats.columns import distinct
from mqtool.formats.record_head import read_start
from mqtool.late import np

STEP = 32 << 20
SIZE_BYTES = 8
"""A record starts with its size and its magic code, which is not zero."""
ROWS = 60_000
"""Most bytes and most messages of a table: its columns stay in the processor's cache.

Not a power of two, or all columns would share a few sets of the cache.
"""

SLACK = 64 << 10
"""Bytes after a range that are also loaded: few records extend further."""
_ROWS_AGAIN = 8
"""Messages in the first tables after a record that misled a walk: others may follow, and each means another walk."""


class Gap(NamedTuple):
    """A range of a segment without a record that is neither blank nor the unused end."""

    segment: MappedFile
    start: int  # position in the segment
    end: int
    stop: scan.Stop

    @property
    def start_offset(self) -> int:
        """Its address."""
        return self.segment.start_offset + self.start


class CommitLog(FileQueue):
    """All messages, in order of arrival.

    With ``unpacks`` a compressed segment is read if there is no plain one; they are ``packed``.

    Raises:
        UsageError: there is such a segment, or one whose plain form is empty, and ``unpacks`` is not set.
    """

    envelope: scan.Envelope = scan.BARE

    def __init__(
        self, folders: Iterable[Path], file_size: int | None = None, only: Path | None = None, unpacks: bool = False
    ) -> None:
        self._unpacks = unpacks
        self.packed: list[Path] = []
        self.passed_over: list[Path] = []
        """Compressed segments that are not read, as there is another copy."""
        self.empty: list[Path] = []
        """Empty segments whose messages are in a compressed one that is not read."""
        super().__init__(folders, file_size, only)

    def _listed(self, only: Path | None) -> tuple[list[MappedFile], list[Stray]]:
        segments, strays = super()._listed(only)
        plain_segments = {segment.start_offset: segment for segment in segments}
        starts = {*plain_segments}
        self.packed, self.passed_over, self.empty = [], [], []
        for stray in sorted(strays, key=lambda file: file.path):
            if stray.is_folder or not is_packed_name(stray.path.name):
                continue
            start = int(plain_name(stray.path.name))
            if start in starts:
                self.passed_over.append(stray.path)
                if self._is_in_place_of(stray.path, plain_segments.get(start)):
                    self.empty.append(plain_segments[start].path)
                continue
            if not self._unpacks:
                raise UsageError(f"{stray.path} is compressed: unpack it first; {READ_PACKED}")
            strays.remove(stray)
            starts.add(start)
            self.packed.append(stray.path)
            with reading(stray.path):
                path = PackedPath.of(stray.path)
                segments.append(MappedFile(path, start, path.entry().size))
        if self.empty and not self._unpacks:
            raise UsageError(
                f"{self.empty[0]} is empty, but a compressed copy beside it is not: unpack that first, over the empty "
                "one, or move it away if its messages are to be given up"
            )
        return segments, strays

    @staticmethod
    def _is_in_place_of(packed: Path, segment: MappedFile | None) -> bool:
        """Return whether a compressed segment has messages, and the plain one of the same name is empty."""
        if segment is None or any(segment.stretch(*part).any() for part in with_data(segment, 0, segment.size)):
            return False
        try:
            with reading(packed):
                path = PackedPath.of(packed)
                return any(MappedFile(path, segment.start_offset, path.entry().size).read(0, commit_log.MIN_SIZE))
        except MqtoolError:
            return False  # a damaged one

    def buffer(self, segment: MappedFile, kernels: Any) -> Any:
        """Return the bytes of a segment in the form that the kernels expect."""
        return memoryview(segment.bytes) if kernels is plain else segment.bytes

    def buffer_of(self, segment: MappedFile, kernels: Any, start: int, stop: int) -> tuple[Any, int]:
        """Return the same for a range and the records that start in it; and up to where it is readable."""
        data, until = segment.reach(start, stop + SLACK)
        return memoryview(data) if kernels is plain else data, until

    def is_there(self, segment: MappedFile, kernels: Any = plain) -> bool:
        """Map a segment; return False, and note it, if retention deleted it in the meantime."""
        try:
            self.buffer_of(segment, kernels, 0, -SLACK)
        except NotFoundError:
            self.let_go(segment)
            return False
        return True

    def walk(
        self, segment: MappedFile, start: int, stop: int, kernels: Any, limit: int | None = None, ahead: bool = True
    ) -> Iterator[scan.MessageTable | Gap]:
        """Yield the messages that start in a range of a segment, and each gap between them.

        The end of the range does not influence what is yielded before it.

        Args:
            segment: one of ``segments``.
            start: position of a record, or of anything.
            stop: records that start here or later are left out.
            kernels: ``scan.kernels_for(..)``.
            limit: most messages in one table.
            ahead: whether bytes after the range may be read; otherwise the last messages may have misled the walk.
        """
        if not self.is_there(segment, kernels):
            return
        most = rows = limit or ROWS
        at = settled = start
        while at < stop:
            buffer, result = self.scanned(segment, at, min(at + STEP, stop), kernels, rows)
            table, at, why = result.table, result.end, result.stop
            row = self._misled_by(buffer, segment, table)
            rows = min(most, 2 * rows)
            if row is not None:
                rows = min(most, _ROWS_AGAIN)
            elif why is scan.Stop.END or (why is scan.Stop.BLANK and self.is_blank(segment, at)):
                if len(table):
                    yield table
                return
            elif why is not scan.Stop.PART:
                row = _torn_end(table)
            elif at > settled and (torn := _torn_end(table)) is not None:
                # Only what follows shows whether these misled the walk, even if it is after the stretch.
                place = self._settle(segment, at, segment.size if ahead else stop, kernels)
                row, settled = (torn, settled) if place is None else (None, place)
            if row is not None:
                at, why = int(table.starts[row]) - self.envelope.size, scan.Stop.SIZE
                table = table.where(slice(row))
            if len(table):
                yield table
            if why is scan.Stop.PART:
                continue
            again = self.resync(segment, at + 1, stop, kernels)
            yield Gap(segment, at, stop if again is None else again, why)
            if again is None:
                return
            at = again

    def scanned(self, segment: MappedFile, at: int, stop: int, kernels: Any, rows: int) -> tuple[Any, scan.Scan]:
        """Return the bytes of a segment, and the complete records that start in a range."""
        reach = stop
        while True:
            buffer, until = self.buffer_of(segment, kernels, at, reach)
            result = scan.scan(buffer, segment.start_offset, at, stop, self.envelope, kernels, rows)
            last = result.table.starts[-1:]
            end = int(last[0]) + int(result.table.column("size")[-1]) if len(last) else at
            if end + commit_log.MIN_SIZE <= until or until >= segment.size:
                return buffer, result
            reach = end

    def resync(self, segment: MappedFile, start: int, stop: int, kernels: Any) -> int | None:
        """Return the first position of a range where a walk can start (again), None if there is none."""
        for low, high in with_data(segment, start, stop):
            buffer, _ = self.buffer_of(segment, kernels, low, high)
            position = scan.resync(buffer, segment.start_offset, low, high, self.envelope)
            if position is not None:
                return position
            segment.let_go(low, high)
        return None

    def _settle(self, segment: MappedFile, at: int, stop: int, kernels: Any) -> int | None:
        """Return a place up to ``stop`` that a walk reaches after faulty records, None if they misled it.

        Up to there no other faulty records have to be checked.
        """
        rows = _ROWS_AGAIN
        while at < stop:
            buffer, result = self.scanned(segment, at, min(at + STEP, stop), kernels, rows)
            table, at, why = result.table, result.end, result.stop
            sound = np.flatnonzero(table.faults == 0)
            row = self._misled_by(buffer, segment, table if not len(sound) else table.where(slice(sound[0])))
            if row is not None or len(sound):
                return int(table.starts[sound[0] if row is None else row])
            if why is scan.Stop.END or (why is scan.Stop.BLANK and self.is_blank(segment, at)):
                return segment.size
            if why is not scan.Stop.PART:
                return None
            rows = min(ROWS, 2 * rows)
        return at

    def _misled_by(self, buffer: Any, segment: MappedFile, table: scan.MessageTable) -> int | None:
        """Return the first record within which another record starts in its place: it misled the walk past that one.

        A faulty record may do so by its size, and a displaced one by lying over the head of another.
        """
        ends = table.starts + table.column("size")
        faulty = table.faults != 0
        for row in np.flatnonzero(faulty).tolist():
            at = int(table.starts[row]) - self.envelope.size
            if scan.resync(buffer, segment.start_offset, at + 1, int(ends[row]), self.envelope) is not None:
                return self._astray(buffer, segment, table.where(slice(row)), ends, row)
        return self._astray(buffer, segment, table, ends, None)

    def _astray(
        self, buffer: Any, segment: MappedFile, table: scan.MessageTable, ends: scan.Ints, otherwise: int | None
    ) -> int | None:
        """Return the first displaced record that contains another one; linear in those."""
        astray = (table.faults == 0) & (table.column("position") != table.column("physical_offset"))
        edges = np.flatnonzero(np.diff(np.r_[False, astray, False].astype(np.int8))).tolist()
        for first, last in zip(edges[::2], edges[1::2], strict=True):
            start = int(table.starts[first]) - self.envelope.size + 1
            position = scan.resync(buffer, segment.start_offset, start, int(ends[last - 1]), self.envelope)
            if position is not None:
                return int(np.searchsorted(table.starts, position, "right")) - 1
        return otherwise

    def begins(self, segment: MappedFile, at: int, magics: Sequence[int] = scan.MAGICS) -> bool:
        """Return whether a record with one of these magic codes seems to start at a position, in its envelope."""
        return read_start(segment.read(at + self.envelope.size, commit_log.BLANK_SIZE))[1] in magics

    def is_blank(self, segment: MappedFile, at: int) -> bool:
        """Return whether the blank record at a position is as long as the rest of its segment."""
        if self.envelope is not scan.BARE:
            return True
        size, _ = read_start(segment.read(at, commit_log.BLANK_SIZE))
        return 0 < size == segment.size - at

    def tables_at(self, offsets: scan.Ints, kernels: Any) -> Iterator[scan.MessageTable]:
        """Yield the messages that start at given addresses, in the order of the log."""
        offsets = distinct(offsets)
        segments = self.segments
        starts_of_segments = [segment.start_offset for segment in segments]
        numbers = distinct(np.searchsorted(starts_of_segments, offsets, "right") - 1)
        for segment in [segments[number] for number in numbers[numbers >= 0].tolist()]:
            low, high = np.searchsorted(offsets, (segment.start_offset, segment.end_offset - commit_log.MIN_SIZE + 1))
            all_starts = offsets[low:high] - segment.start_offset
            if not len(all_starts) or not self.is_there(segment, kernels):
                continue
            for first in range(0, len(all_starts), ROWS):
                starts = all_starts[first : first + ROWS]
                span = int(starts[0]), int(starts[-1])
                data = segment.reach_all(starts.tolist(), [commit_log.BLANK_SIZE] * len(starts))
                heads = data[starts[:, None] + np.arange(commit_log.BLANK_SIZE)]
                blanks = heads.view(commit_log.BLANK.dtype)[:, 0]
                sizes = blanks["size"].astype(np.int64)
                whole = np.isin(blanks["magic_code"], commit_log.MESSAGE_MAGICS) & (sizes >= commit_log.MIN_SIZE)
                whole &= starts + sizes <= segment.size
                starts = starts[whole]
                data = segment.reach_all(starts.tolist(), sizes[whole].tolist())
                table = scan.gather(
                    memoryview(data) if kernels is plain else data, segment.start_offset, starts, kernels
                )
                yield table.where(table.faults == 0)
                if span[1] - span[0] >= STEP:
                    segment.let_go(*span)

    def tables(self, start_offset: int, stop_offset: int, kernels: Any) -> Iterator[scan.MessageTable | Gap]:
        """Yield messages and gaps of an address range, segment by segment."""
        for segment in self.segments:
            yield from self.tables_of(segment, start_offset, stop_offset, kernels)

    def tables_of(
        self, segment: MappedFile, start_offset: int, stop_offset: int, kernels: Any
    ) -> Iterator[scan.MessageTable | Gap]:
        """Yield messages and gaps of one segment in an address range."""
        if segment.end_offset <= start_offset or segment.start_offset >= stop_offset:
            return
        start = max(0, start_offset - segment.start_offset)
        stop = min(segment.size, stop_offset - segment.start_offset)
        if start:
            if not self.is_there(segment, kernels):
                return
            position = self.resync(segment, start, stop, kernels)
            if position is None:
                return
            start = position
        for piece in self.walk(segment, start, stop, kernels):
            yield piece
            done = piece.end if isinstance(piece, Gap) else int(piece.starts[-1])
            segment.let_go(start, done)
            start = done


def with_data(file: MappedFile, start: int, stop: int, step: int = STEP) -> Iterator[tuple[int, int]]:
    """Yield ranges of limited size in which records may start, without holes of the file."""
    at = start
    while at < stop and (data := file.data_from(at, stop)) is not None:
        # A record begins with its size, whose first bytes may be zero and so are in a hole.
        low = max(at, data - SIZE_BYTES)
        at = min(low + step, stop)
        yield low, at


def is_unused(gap: Gap) -> bool:
    """Return whether a gap holds nothing but zeros, as the unused end of the log does; linear in its data."""
    return not any(gap.segment.stretch(*part).any() for part in with_data(gap.segment, gap.start, gap.end))


def heads_in(file: MappedFile, start: int, stop: int) -> Iterator[int]:
    """Yield each position of a range at which a message record may start, whatever address it states."""
    for low, high in with_data(file, start, stop):
        yield from scan.candidates(memoryview(file.reach(low, high + SLACK)[0]), None, low, high)
        file.let_go(low, high)


def is_whole(table: scan.MessageTable, row: int) -> bool:
    """Return whether a record is complete, and not just being written by a broker."""
    record = table.where(np.array([row]))
    if record.faults[0] or record.column("physical_offset")[0] != record.column("position")[0]:
        return False
    if record.sizes(plain.BODY)[0] and record.body_crcs()[0] != record.column("body_crc")[0]:
        return False
    # Bytes are written in order: the last byte of the properties, or of the topic, comes last.
    return (record.bytes_of(plain.PROPERTIES, 0) or record.bytes_of(plain.TOPIC, 0) or b"x")[-1] != 0


def settled(log: CommitLog, pieces: Iterator[scan.MessageTable | Gap]) -> Iterator[scan.MessageTable | Gap]:
    """Yield the pieces of a walk to the end of a log that a broker may be writing to.

    An incomplete last record and what follows are left out; gaps before messages are examined again.
    """
    gaps: list[Gap] = []
    unfinished: scan.MessageTable | None = None
    for piece in pieces:
        if isinstance(piece, Gap):
            gaps.append(piece)
            continue
        if not len(piece):
            continue
        if unfinished is not None:
            yield unfinished
            unfinished = None
        for gap in gaps:
            yield from log.walk(gap.segment, gap.start, gap.end, plain)
        gaps.clear()
        if is_whole(piece, len(piece) - 1):
            yield piece
        else:
            rows = np.arange(len(piece))
            unfinished = piece.where(rows[-1:])
            yield piece.where(rows[:-1])


def is_torn(log: CommitLog) -> bool:
    """Return whether the log ends in a message that a broker is writing; walks over the last segment in use."""
    for segment in reversed(log.segments):
        if not any(segment.read(0, log.envelope.size + SIZE_BYTES)):
            continue
        last: scan.MessageTable | None = None
        behind: Gap | None = None
        for piece in log.walk(segment, 0, segment.size, scan.kernels_for(segment.size)):
            if not isinstance(piece, Gap):
                last, behind = piece, None
            elif behind is None:
                behind = piece
        if behind and segment.stretch(behind.start, behind.start + log.envelope.size + SIZE_BYTES).any():
            return True
        if last is not None:
            return not is_whole(last, len(last) - 1)
    return False


def _torn_end(table: scan.MessageTable) -> int | None:
    """Return the first of the faulty records right before the place where a walk lost its way: they misled it."""
    sound = np.flatnonzero(table.faults == 0)
    count = int(sound[-1]) + 1 if len(sound) else 0
    return count if count < len(table) else None
