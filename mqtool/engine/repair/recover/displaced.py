"""Records that are in the wrong place of the log, and how they are put back.

Pages of two segments that were swapped, a run of records that was copied or shifted, a segment that was appended to
another: every record still states its address. Stretches without a sound record (``Unsound``) are searched for
records of other places; if such a place is unsound, too, they are put there (``put_back``). A record that only parts
of two pages make whole is joined from them if that makes it sound: sizes, address and CRC.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import itertools
import mmap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mqtool.engine.repair.parts import spans_of
from mqtool.engine.repair.placement import Placement, records_in
from mqtool.engine.repair.recover.log import LogPlan, RecordRun
from mqtool.engine.repair.recover.record_editor import Patch
from mqtool.engine.repair.recover.shifted import Ways
from mqtool.engine.store.commit_log import STEP, CommitLog, Gap, heads_in
from mqtool.engine.store.dispatch import dispatch, property_crcs
from mqtool.engine.store.file_queue import segment_name
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.mapping import Bytes, reading
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import commit_log as layout
from mqtool.formats import kernels as plain
from mqtool.formats import scan
from mqtool.formats.property_names import INNER_NUM
from mqtool.formats.record_head import physical_offset, read_start
from mqtool.formats.scan import Ints, MessageTable

_GRIDS = (4096, 512)
"""Misplaced parts of files consist of pages or sectors."""
OF_ANOTHER = "they claim an address that another message has, or one in another log"
_STEP = 1 << 20  # bytes of a copy that are compared at once
_LONG = 1 << 16
_OUTSIDE = -1
"""The start of a file whose bytes have no address in the log."""
_NEAR = 1 << 16
_MAX_MIDDLES = 16
_MAX_SOURCES = 6
_LONGEST_SHIFTED = 1 << 12
_MAX_BEHIND = 16
"""Records after one whose end was shifted, which show what such records look like."""
_END = 1 << 63
_CONTROLS = frozenset(map(chr, range(32))) - frozenset("\t\n\r")
_MAX_JOINED = 1 << 30
"""Bytes that are examined to join one record; for longer records fewer joints are tried."""
_ADDRESS_AT = layout.offset_in_head("physical_offset")
_HEAD = _ADDRESS_AT + 8
"""Where the address in a record ends; its system flag follows."""


class ShiftedSource(NamedTuple):
    """A source for some addresses: the byte of an address is at ``address - shift`` of a file."""

    file: MappedFile
    shift: int

    def read(self, address: int, size: int) -> bytes:
        """Return the bytes of an address, zeros beyond the file."""
        at = address - self.shift
        before = min(size, max(0, -at))
        data = self.file.read(at + before, size - before) if before < size else b""
        return (bytes(before) + data).ljust(size, b"\0")


class DisplacedRecords(NamedTuple):
    """Sound records that follow each other in a file and belong elsewhere by their addresses."""

    source: ShiftedSource
    starts: Ints  # addresses
    sizes: Ints
    table: MessageTable

    @property
    def start(self) -> int:
        """Address of the first."""
        return int(self.starts[0])

    @property
    def end(self) -> int:
        """One past the last."""
        return int(self.starts[-1]) + int(self.sizes[-1])  # may be beyond what 64 bits hold

    def part(self, rows: slice) -> DisplacedRecords:
        """Return some of them."""
        return DisplacedRecords(self.source, self.starts[rows], self.sizes[rows], self.table.where(rows))


class PatchedFile(MappedFile):
    """A segment as it will be; what is written to ``bytes`` stays in memory."""

    def __init__(self, segment: MappedFile, size: int) -> None:
        super().__init__(segment.path, segment.start_offset, size)
        self.original = segment

    @property
    def on_disk(self) -> MappedFile:
        """The segment as it is."""
        file = self.original
        while isinstance(file, PatchedFile):
            file = file.original
        return file

    def map(self) -> Bytes:
        """Return a private copy of the bytes; memory holds only what was changed."""
        on_disk = self.on_disk
        if on_disk.size == self.size:
            with reading(self.path), self.path.open("rb") as file:
                view = np.frombuffer(mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_COPY), np.uint8)
            if isinstance(self.original, PatchedFile):
                for at in range(0, self.size, _STEP):
                    patched, original = view[at : at + _STEP], self.original.bytes[at : at + _STEP]
                    if not np.array_equal(patched, original):
                        patched[:] = original
            return view
        copy = np.frombuffer(mmap.mmap(-1, self.size), np.uint8)
        copy[: self.original.size] = self.original.bytes
        return copy

    def read(self, at: int, size: int) -> bytes:
        """Return ``size`` bytes at position ``at``, fewer at the end."""
        return self.bytes[at : at + size].tobytes()

    def data_from(self, start: int, _stop: int) -> int | None:
        """Return the beginning: patches may be in a hole of the file."""
        return start

    def release(self, start: int, stop: int) -> None:
        """Keep everything: the changes exist only in memory."""

    def unmap(self) -> None:
        """Keep everything."""


class Unsound:
    """The stretches of a log without a sound record, collected during a survey."""

    def __init__(self, log: CommitLog, start_offset: int) -> None:
        self.log = log
        self.starts: list[int] = []  # addresses, in order; no stretch crosses the border of a segment
        self.ends: list[int] = []
        self.are_alone: list[bool] = []  # the stretch has only damaged records in their own places
        self.due: set[int] = set()  # addresses where a record is expected and none is sound
        self.filler: list[tuple[MappedFile, int]] = []  # segments, and where what no walk looks at begins in them
        self._at = start_offset  # where the segment after those that were taken begins
        if start_offset == log.min_offset >= log.file_size:  # there may have been one more
            self._add(start_offset - log.file_size, start_offset)

    def watch(self, pieces: Iterable[RecordRun | Gap]) -> Iterator[RecordRun | Gap]:
        """Observe what a survey yields, and pass it on."""
        segment: MappedFile | None = None
        for piece in pieces:
            base = piece.segment.start_offset
            if piece.segment is not segment:
                self._leave(segment, base)
                segment = piece.segment
                self.filler.append((segment, 0))
            for bad in [piece] if isinstance(piece, Gap) else piece.bad:
                self._add(base + bad.start, base + bad.end, not isinstance(bad, Gap) and bad.is_alone)
                self.due.add(base + bad.start)
            self.filler[-1:] = [(piece.segment, piece.end)]
            yield piece
        self._leave(segment, self.log.segments[-1].start_offset + 2 * self.log.file_size if self.log.segments else 0)

    def _leave(self, segment: MappedFile | None, next_offset: int) -> None:
        """Add what is missing between the end of a segment and the next that holds anything."""
        size = self.log.file_size
        if segment is not None:
            self._at = segment.start_offset + size
            self._add(segment.end_offset, self._at)
        while self._at < next_offset:
            self._add(self._at, self._at + size)
            self._at += size

    def _add(self, start: int, end: int, is_alone: bool = False) -> None:
        if self.ends and self.ends[-1] == start and start % self.log.file_size:
            self.ends[-1] = end
            self.are_alone[-1] &= is_alone
        elif start < end:
            self.starts.append(start)
            self.ends.append(end)
            self.are_alone.append(is_alone)

    def around(self, starts: Ints, sizes: Ints | int) -> Ints:
        """Return the number of the stretch that each range of addresses is in, -1 for none."""
        numbers = np.searchsorted(np.array(self.starts, np.int64), starts, "right") - 1
        room = np.array([*self.ends, 0], np.int64)[numbers] - starts  # the end of an absurd address has no number
        inside = (numbers >= 0) & (sizes <= room)
        result: Ints = np.where(inside, numbers, -1)
        return result


@dataclasses.dataclass
class PutBack:
    """The records that are put back in their places, and those that cannot be."""

    log: CommitLog  # with it
    patches: list[Patch] = dataclasses.field(default_factory=list)
    created: list[MappedFile] = dataclasses.field(default_factory=list)  # segments that are not there
    told: list[tuple[MappedFile, int, int, int]] = dataclasses.field(default_factory=list)
    """Segment, position and size of each stretch that is written, and its number of records."""
    left: list[DisplacedRecords] = dataclasses.field(default_factory=list)
    """Single sound records that are not at their stated address, where there is no copy of them either."""
    differing: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    """Addresses of those whose messages do, with the same body and place, but with other flags, times or properties.

    Each with the name of the file that contains the copy; there may be many.
    """

    def tell_left(self, plan: LogPlan) -> None:
        """Add to the losses of a plan the records that it does not keep where they are; tell of copies that differ."""
        text = "the message at {:,} is kept: a copy of it, in {}, has other flags, times or properties"
        # Each by its address: what only the copy said is given up.
        plan.remarks += [text.format(position, name) for position, name in self.differing]
        kept = {patch.position: patch.data for patch in plan.patches}
        own = set(plan.bridges.rows.where(plan.bridges.rows.own).start.tolist()) if plan.bridges else set()
        for displaced in self.left:
            base = displaced.source.file.start_offset
            position = base + int(displaced.table.starts[0])
            record = displaced.table.record(0)
            if kept.get(displaced.start) == record:
                continue  # the one that is there becomes it again
            is_kept = position in own or _but_address(kept.get(position, b"")) == _but_address(record)
            if base != _OUTSIDE and is_kept:
                continue
            for span in spans_of(dispatch(displaced.table, []).units):
                plan.losses.add(span.queue, span.start, span.stop, len(record), OF_ANOTHER)

    def without(self, removed: Collection[MappedFile]) -> PutBack:
        """Return what is left of this if some segments are removed."""
        bases = {segment.start_offset for segment in removed}
        return dataclasses.replace(
            self,
            patches=[patch for patch in self.patches if patch.segment_offset not in bases],
            created=[segment for segment in self.created if segment.start_offset not in bases],
            told=[restored for restored in self.told if restored[0].start_offset not in bases],
        )

    def before(self, end: int) -> PutBack:
        """Return what is left of this if the log ends at an address."""
        restored = []
        for segment, start, size, count in self.told:
            room = end - segment.start_offset - start
            if 0 < room < size:
                inside = memoryview(self.log.read(segment.start_offset + start, room))
                restored.append((segment, start, room, len(scan.scan(inside, segment.start_offset + start).table)))
            elif room > 0:
                restored.append((segment, start, size, count))
        return dataclasses.replace(
            self,
            patches=[
                patch._replace(data=patch.data[: end - patch.position])
                for patch in self.patches
                if patch.position < end
            ],
            told=restored,
        )


def put_back(reader: StoreReader, placement: Placement, unsound: Unsound) -> PutBack:
    """Return the log with displaced records put back. Cost: linear in what is unsound.

    Args:
        reader: of the store, with the log of ``placement``.
        placement: by ``place``; surplus and removed files are searched, too.
        unsound: what a survey of that log has found.
    """
    log = placement.log
    displaced, heads = _elsewhere(placement, unsound)
    foreign = _of_other_logs(placement, displaced, unsound)
    heads = [(address, source) for address, source in heads if source.file.path not in foreign]
    wanted: dict[int, list[DisplacedRecords]] = collections.defaultdict(list)
    moved: list[DisplacedRecords] = []  # not what is in its place, and states another
    left: list[tuple[DisplacedRecords, bool]] = []
    for records in displaced:
        numbers = unsound.around(records.starts, records.sizes)
        for first, last in _stretches(numbers):
            part = records.part(slice(first, last))
            is_credible = part.source.file.path not in foreign and _is_credible(reader, part, unsound)
            if is_credible:
                moved.append(part)
            if is_credible and numbers[first] >= 0:
                wanted[int(numbers[first])].append(part)
            else:
                left.append((part, bool(numbers[first] < 0)))
    pieces: list[_Records] = []
    moves = _moves(log, moved, heads, unsound)
    for number in sorted({*wanted, *(key for key in moves if key >= 0)}):
        start = _start_of_unreadable(log, unsound, number)
        end_before = unsound.starts[number] - 1
        sources = [
            *(records.source for records in wanted.get(number, [])),
            *(source for _, source in moves.get(number, [])),
        ]
        if start <= end_before and not any(_is_free(log, unsound, end_before, source) for source in sources):
            start = unsound.starts[number]
        parts = wanted.get(number, [])
        pieces += _Joiner(reader, unsound, start, unsound.ends[number], parts, moves.get(number, [])).join()
    back = _written(log, pieces)
    for records, is_place_sound in left:
        for record in _not_same(back.log, records):
            if not stands(back.log, record):
                back.left.append(record)
            elif is_place_sound:
                back.differing.append((record.start, record.source.file.path.name))
    return back


def _of_other_logs(placement: Placement, displaced: Iterable[DisplacedRecords], unsound: Unsound) -> set[Path]:
    """Return the removed files of which more records differ from those at their addresses than are the same.

    Two logs that the same clients filled may have records of the same sizes at the same addresses. Cost: linear in
    these files.
    """
    removed = {removed_file.path for removed_file in placement.removed}
    excess: collections.Counter[Path] = collections.Counter()
    for records in displaced:
        if (path := records.source.file.path) not in removed:
            continue
        numbers = unsound.around(records.starts, records.sizes)
        for first, last in _stretches(numbers):
            if numbers[first] < 0:
                part = records.part(slice(first, last))
                differing = sum(1 for _ in _not_same(placement.log, part))
                excess[path] += 2 * differing - len(part.starts)
    return {path for path, count in excess.items() if count > 0}


def _elsewhere(
    placement: Placement, unsound: Unsound
) -> tuple[list[DisplacedRecords], list[tuple[int, ShiftedSource]]]:
    """Return the sound records that belong elsewhere, from everything that is unsound, surplus or removed.

    For other records, which may be joined from parts of two places, their stated addresses and where these are.
    """
    log = placement.log
    places = []
    for start, end, is_alone in zip(unsound.starts, unsound.ends, unsound.are_alone, strict=True):
        segment = log.segment_at(start)
        if segment is not None and not is_alone:
            places.append((segment, start - segment.start_offset, min(end - segment.start_offset, segment.size)))
    places += [(segment, end, segment.size) for segment, end in unsound.filler if end < segment.size]
    places += [
        (MappedFile(segment.path, _OUTSIDE, segment.size), log.file_size, segment.size)
        for segment in placement.too_long
    ]
    places += [
        (MappedFile(removed_file.path, _OUTSIDE, removed_file.size), 0, removed_file.size)
        for removed_file in placement.removed
        if removed_file.donor
    ]
    displaced: list[DisplacedRecords] = []
    heads: list[tuple[int, ShiftedSource]] = []
    seen: MappedFile | None = None
    since = 0
    for file, start, stop in places:
        if file is not seen:
            if seen is not None:
                seen.let_go(since, seen.size)
            seen, since = file, start
        elif start - since >= STEP:  # short stretches far apart take much memory, too
            file.let_go(since, start)
            since = start
        if _is_in_place(file, start, stop):
            continue
        at = start
        for table in records_in(file, start, stop, is_sound=lambda table: ~table.broken()):
            displaced += _found_in(file, table)
            heads += _heads_in(file, at, int(table.starts[0]))
            at = int(table.starts[-1] + table.column("size")[-1])
        heads += _heads_in(file, at, stop)
    return displaced, heads


def _is_in_place(file: MappedFile, start: int, stop: int) -> bool:
    """Return whether a stretch has just one head, that of a record at its stated address."""
    view = memoryview(file.bytes)
    # There may be many short ones: not worth asking for holes of the file.
    candidates = heads_in(file, start, stop) if stop - start >= _LONG else scan.candidates(view, None, start, stop)
    heads = list(itertools.islice(candidates, 2))
    return len(heads) < 2 and all(physical_offset(view, at) == file.start_offset + at for at in heads)


def _heads_in(file: MappedFile, start: int, stop: int) -> Iterator[tuple[int, ShiftedSource]]:
    """Yield the stated addresses of heads of records that are displaced by whole sectors."""
    view = memoryview(file.bytes)
    for at in heads_in(file, start, stop):
        stated = physical_offset(view, at)
        if file.start_offset == _OUTSIDE or (stated != file.start_offset + at and not (stated - at) % _GRIDS[-1]):
            yield stated, ShiftedSource(file, stated - at)


def _found_in(file: MappedFile, table: MessageTable) -> Iterator[DisplacedRecords]:
    shifts = table.column("physical_offset") - table.starts
    for first, last in _stretches(shifts):
        part = table.where(slice(first, last))
        if shifts[first] != file.start_offset and part.column("physical_offset")[0] >= 0:
            sizes = part.column("size").astype(np.int64)
            yield DisplacedRecords(ShiftedSource(file, int(shifts[first])), part.column("physical_offset"), sizes, part)


def _stretches(values: Ints) -> list[tuple[int, int]]:
    """Return start and stop of each stretch of equal values."""
    edges = [0, *(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist(), len(values)]
    return list(itertools.pairwise(edges)) if len(values) else []


def _is_credible(reader: StoreReader, records: DisplacedRecords, unsound: Unsound) -> bool:
    """Return whether records were moved; a single one may be in its place and only its address damaged."""
    if len(records.starts) > 1 or records.source.file.start_offset == _OUTSIDE:
        return True
    address = records.start - records.source.shift + records.source.file.start_offset
    topic = records.table.bytes_of(plain.TOPIC, 0).decode("utf-8", "replace")
    queue = reader.consume_queues.get((topic, int(records.table.column("queue_id")[0])))
    offset = int(records.table.column("queue_offset")[0])
    stated = None if queue is None else queue.address_at(offset)
    if stated in (records.start, address):
        return stated == records.start
    return address not in unsound.due


_Move = tuple[int, ShiftedSource]
"""An address, and where the bytes around it may be."""


def _moves(
    log: CommitLog, displaced: Sequence[DisplacedRecords], heads: Sequence[_Move], unsound: Unsound
) -> dict[int, list[_Move]]:
    """Return, by stretch, the possible moves: what belongs there, and what it was exchanged with."""
    all_moves = [*((records.start, records.source) for records in displaced), *heads]
    for address, source in [*all_moves]:
        other = log.segment_at(address)
        if source.file.start_offset != _OUTSIDE and other is not None:
            place = address - source.shift + source.file.start_offset
            all_moves.append((place, ShiftedSource(other, place - address + other.start_offset)))
    moves: dict[int, list[_Move]] = collections.defaultdict(list)
    starts = np.array([address for address, _ in all_moves], np.int64)
    for number, move in zip(unsound.around(starts, 1).tolist(), all_moves, strict=True):
        moves[number].append(move)
    return moves


def _start_of_unreadable(log: CommitLog, unsound: Unsound, number: int) -> int:
    """Return where a stretch starts, with the record before it if that cannot be read beyond its body.

    But not if the head of a record at its stated address follows: up to there nothing has moved.
    """
    start = unsound.starts[number]
    segment = log.segment_at(start)
    if segment is None:
        return start
    head = log.read(start, _HEAD) if start + _HEAD <= segment.end_offset else bytes(_HEAD)
    if read_start(head)[1] in layout.MESSAGE_MAGICS and physical_offset(head) == start:
        return start
    begin = max(segment.start_offset, unsound.ends[number - 1] if number else 0) - segment.start_offset
    last = None
    for table in log.walk(segment, begin, start - segment.start_offset, plain):
        if not isinstance(table, Gap) and len(table):
            last = table.where(slice(len(table) - 1, None))
    if last is None or last.faults[0] or _reads_well(last):
        return start
    before = int(last.column("position")[0])
    return before if before + int(last.column("size")[0]) == start else start


def _is_free(log: CommitLog, unsound: Unsound, address: int, source: ShiftedSource) -> bool:
    """Return whether a source's bytes for an address are not part of a record that is whole where it lies."""
    if source.file.start_offset == _OUTSIDE:
        return True
    place = address - source.shift + source.file.start_offset
    number = bisect.bisect_right(unsound.starts, place) - 1
    if number >= 0 and place < unsound.ends[number]:
        return True
    return number + 1 < len(unsound.starts) and _start_of_unreadable(log, unsound, number + 1) <= place


class _Records(NamedTuple):
    """Records that follow each other, for an address."""

    address: int
    data: bytes
    messages: int


class _Joiner:
    """Fills one stretch with records from elsewhere, and with those joined from parts of two places."""

    def __init__(
        self,
        reader: StoreReader,
        unsound: Unsound,
        start: int,
        end: int,
        parts: list[DisplacedRecords],
        moves: list[_Move],
    ) -> None:
        log = reader.commit_log
        self.reader = reader
        self.unsound = unsound
        self.start = start
        self.end = end
        self.parts = sorted(parts, key=lambda part: part.start)
        self.moves = sorted(moves, key=lambda move: move[0])
        self.segment_end = start - start % log.file_size + log.file_size
        segment = log.segment_at(start)
        self.in_place = [ShiftedSource(segment, segment.start_offset)] if segment else []
        # Sectors move as a whole, so those at the edges show where the rest of them is.
        self.sectors: dict[int, ShiftedSource] = {}
        if segment:
            self._note(start - 1, start - 1, self.in_place[0])
            self._note(end, end, self.in_place[0])

    def _note(self, first: int, last: int, source: ShiftedSource) -> None:
        """Note where the sectors of the first and the last byte of a stretch are from."""
        self.sectors[first // _GRIDS[-1]] = self.sectors[last // _GRIDS[-1]] = source

    def join(self) -> Iterator[_Records]:
        """Yield what belongs here, in order."""
        at = self.start
        known: list[ShiftedSource] = []
        for part in self.parts:
            # The end of the last record may or may not be where its beginning went.
            rows = slice(int(np.searchsorted(part.starts, at)), len(part.starts) - 1)
            if rows.start < rows.stop:
                whole = part.part(rows)
                self._note(whole.start, whole.start, part.source)
                yield from self._between(at, whole.start, [*known, part.source])
                self._note(whole.end - 1, whole.end - 1, part.source)
                yield _Records(whole.start, part.source.read(whole.start, whole.end - whole.start), len(whole.starts))
                at, known = whole.end, []
            known.append(part.source)
        yield from self._between(at, self.end, known)

    def _between(self, at: int, stop: int, known: Sequence[ShiftedSource]) -> Iterator[_Records]:
        first = bisect.bisect_left(self.moves, at - _NEAR, key=lambda move: move[0])
        last = bisect.bisect_left(self.moves, stop + _NEAR, key=lambda move: move[0])
        near = list(dict.fromkeys([*known, *(source for _, source in self.moves[first:last])]))
        sources = list(dict.fromkeys([*self.in_place, *near[:_MAX_SOURCES]]))
        while at < stop:
            joined = _joined(self.reader, self.unsound, at, stop, self.segment_end, sources, self.sectors)
            if joined is not None:
                record, source = joined
                yield _Records(at, record, 1)
                at += len(record)
                self._note(at - 1, at - 1, source)
            else:
                at = min((next(_heads(source, at + 1, stop), stop) for source in sources), default=stop)


def _heads(source: ShiftedSource, start: int, stop: int) -> Iterator[int]:
    """Yield the addresses in a range for which a source has the head of a record that states them."""
    first, last = max(0, start - source.shift), min(stop - source.shift, source.file.size)
    if first < last:
        for at in scan.candidates(memoryview(source.file.bytes), source.shift, first, last):
            yield at + source.shift


_Mix = list[tuple[int, ShiftedSource]]
"""Parts of a record: where each ends, and its source."""


def _joined(
    reader: StoreReader,
    unsound: Unsound,
    at: int,
    stop: int,
    segment_end: int,
    sources: Sequence[ShiftedSource],
    sectors: Mapping[int, ShiftedSource],
) -> tuple[bytes, ShiftedSource] | None:
    """Return the record that begins at an address, joined from the sources, and the source of its last byte.

    None if they make none. The first of the sources is the place itself, if that is there.
    """
    segment_start = segment_end - reader.commit_log.file_size
    for grid in _GRIDS:
        moved = [source for source in sources if not (source.shift - segment_start) % grid]
        for start in _beginnings(at, moved, grid):
            head = _read(at, start, at + _HEAD)
            size, magic = read_start(head)
            if magic == layout.MAGIC_BLANK and size == segment_end - at and stop == segment_end:
                return _read(at, start, stop), start[-1][1]
            if magic not in layout.MESSAGE_MAGICS or not layout.MIN_SIZE <= size <= stop - at:
                continue
            if physical_offset(head) == at:
                for mix in _mixes(at, at + size, start, grid, moved):
                    record = _read(at, mix, at + size) if _agrees(at, at + size, mix, sectors) else b""
                    if record and _is_sound(record, at) and _are_free(reader.commit_log, unsound, at, at + size, mix):
                        return record, mix[-1][1]
    for source in sources:  # moved bytes may not have been whole sectors
        size, _ = read_start(source.read(at, layout.BLANK_SIZE))
        record = source.read(at, size) if layout.MIN_SIZE <= size <= stop - at else b""
        if record and _is_sound(record, at):
            return record, source
    return _shifted(reader, at, stop, sources)


def _shifted(
    reader: StoreReader, at: int, stop: int, sources: Sequence[ShiftedSource]
) -> tuple[bytes, ShiftedSource] | None:
    """Return the record whose end was shifted by inserted bytes; bytes cut out of a record are gone."""
    for in_place, source in itertools.product(sources[:1], sources[1:]):
        if source.file is in_place.file and source.shift > in_place.shift:
            continue
        head = in_place.read(at, _HEAD)
        size, _ = read_start(head)
        if not layout.MIN_SIZE <= size <= min(stop - at, _LONGEST_SHIFTED) or physical_offset(head) != at:
            continue
        begun, ended = in_place.read(at, size), source.read(at, size)
        cuts = [cut for cut in range(size - 1, _HEAD, -1) if cut == size - 1 or begun[cut] != ended[cut]]
        sound = [rejoined for cut in cuts if _is_sound(rejoined := begun[:cut] + ended[cut:], at)]
        behind = scan.scan(memoryview(source.read(at + size, _NEAR)), at + size, limit=_MAX_BEHIND).table
        record = Ways(reader, at, behind.where((behind.faults == 0) & ~behind.broken())).decided(sound)
        if record is not None:
            return record, source
    return None


def _beginnings(at: int, sources: Sequence[ShiftedSource], grid: int) -> Iterator[_Mix]:
    """Yield possible sources of the head of a record: one, or two that meet in it."""
    border = at - at % grid + grid
    for first in sources:
        yield [(_END, first)]
    if border < at + _HEAD:
        for first, second in itertools.permutations(sources, 2):
            yield [(border, first), (_END, second)]


def _mixes(at: int, stop: int, start: _Mix, grid: int, sources: Sequence[ShiftedSource]) -> Iterator[_Mix]:
    """Yield a record with its end or middle from other sources; the place itself comes first."""
    begin = at if len(start) == 1 else start[0][0]
    most = max(1, _MAX_JOINED // ((stop - at) * len(sources) ** 2))
    borders = range(begin - begin % grid + grid, stop, grid)[:most]
    *before, (_, last) = start
    other_sources = [source for source in sources if source != last]
    yield start
    yield from ([*before, (cut, last), (_END, other)] for other in other_sources[:1] for cut in borders)
    for first, second in itertools.combinations(borders[:_MAX_MIDDLES], 2):
        for middle, end in itertools.product(other_sources, [last, *other_sources]):
            if middle != end:
                yield [*before, (first, last), (second, middle), (_END, end)]
    yield from ([*before, (cut, last), (_END, other)] for other in other_sources[1:] for cut in borders)


def _read(at: int, mix: _Mix, stop: int) -> bytes:
    data = b""
    for end, source in mix:
        data += source.read(at + len(data), max(0, min(end, stop) - at - len(data)))
    return data


def _agrees(at: int, stop: int, mix: _Mix, sectors: Mapping[int, ShiftedSource]) -> bool:
    """Return whether the sectors at the edges of a record are from where they are known to be."""
    for address, source in ((at, mix[0][1]), (stop - 1, mix[-1][1])):
        sector = address // _GRIDS[-1]
        if sectors.get(sector, source) != source:
            return False
    return True


def _are_free(log: CommitLog, unsound: Unsound, at: int, stop: int, mix: _Mix) -> bool:
    """Return whether no part of a joined record belongs to a record that is whole where it lies.

    Such a part may happen to read well: no CRC covers topic and properties.
    """
    begins = [at, *(end for end, _ in mix)]
    return all(
        _is_free(log, unsound, edge, source)
        for begin, (end, source) in zip(begins, mix, strict=False)
        for edge in (begin, min(end, stop) - 1)
    )


def _is_sound(record: bytes, at: int) -> bool:
    """Return whether the record of an address passes all checks."""
    table = scan.scan(memoryview(record), at, limit=1).table
    if not len(table) or table.faults[0] or table.column("size")[0] != len(record):
        return False
    if table.column("physical_offset")[0] != at or table.broken()[0] or not _reads_well(table):
        return False
    _, stated, should = property_crcs(table, dispatch(table, []).properties)
    return bool((stated == should).all())


def _reads_well(table: MessageTable) -> bool:
    """Return whether topic and properties of a record, which the CRC of the body does not cover, are well-formed.

    And whether the properties of an inner batch, and of no other record, state its number of messages.
    """
    try:
        topic = table.bytes_of(plain.TOPIC, 0).decode()
        text = table.bytes_of(plain.PROPERTIES, 0).decode()
    except UnicodeDecodeError:
        return False
    pairs = [pair.split("\1") for pair in text.split("\2") if pair]
    names = {pair[0] for pair in pairs}
    is_batch = bool(table.column("sys_flag")[0] & layout.INNER_BATCH)
    return (
        is_batch == (INNER_NUM in names)
        and _CONTROLS.isdisjoint("".join([topic, *itertools.chain(*pairs)]))
        and all(len(pair) == 2 and pair[0] for pair in pairs)
        and len(names) == len(pairs)
    )


def with_edits(log: CommitLog, patches: Iterable[Patch]) -> CommitLog:
    """Return a log with records patched in memory; the patches are in its order."""
    segments = {segment.start_offset: segment for segment in log.segments}
    for base, group in itertools.groupby(patches, lambda patch: patch.segment_offset):
        view = PatchedFile(segments[base], segments[base].size)
        for patch in group:
            at = patch.position - base
            view.bytes[at : at + len(patch.data)] = np.frombuffer(patch.data, np.uint8)
        segments[base] = view
    return log.with_segments(segments.values())


def _written(log: CommitLog, pieces: Sequence[_Records]) -> PutBack:
    """Return the log with records written into it."""
    back = PutBack(log)
    size = log.file_size
    segments = {segment.start_offset: segment for segment in log.segments}
    for base, group in itertools.groupby(pieces, lambda piece: piece.address - piece.address % size):
        segment = segments.get(base)
        if segment is None:
            segment = MappedFile(log.folders[0] / segment_name(base), base, 0)
            back.created.append(segment)
        patched = PatchedFile(segment, size)
        segments[base] = patched
        for address, data, count in group:
            at = address - base
            if patched.read(at, len(data)) == data:
                continue
            patched.bytes[at : at + len(data)] = np.frombuffer(data, np.uint8)
            back.patches.append(Patch(base, address, data, "records that belong here are elsewhere"))
            if back.told and back.told[-1][0] is segment and sum(back.told[-1][1:3]) == at:
                _, start, length, records = back.told.pop()
                back.told.append((segment, start, length + len(data), records + count))
            else:
                back.told.append((segment, at, len(data), count))
    back.log = log.with_segments(segments.values())
    return back


def _but_address(record: bytes) -> bytes:
    return record[:_ADDRESS_AT] + record[_HEAD:]


def _not_same(log: CommitLog, records: DisplacedRecords) -> Iterator[DisplacedRecords]:
    """Yield the records, each by itself, of which no equal one lies where they say."""
    if _is_same(log, records):
        return
    for row in range(len(records.starts)):
        single = records.part(slice(row, row + 1))
        if not _is_same(log, single):
            yield single


def _is_same(log: CommitLog, records: DisplacedRecords) -> bool:
    size = records.end - records.start
    return log.read(records.start, size) == records.source.read(records.start, size)


def stands(log: CommitLog, records: DisplacedRecords) -> bool:
    """Return whether equal records, or at least equal heads (with the CRCs of bodies), are at the stated address."""
    size = records.end - records.start if len(records.starts) > 1 else _HEAD
    return log.read(records.start, size) == records.source.read(records.start, size)
