"""Checks of the commit log: its files, each record, and what is between and after the records.

``check_part`` checks one stretch of a segment on its own, so that stretches can be checked in parallel; ``LogVerifier``
takes the results in order and checks what needs the whole log: holes, the end of the log, the order of queues.

Cost: linear in the bytes of the log; memory holds some bytes for each queue.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from mqtool.engine.repair.checks import finding
from mqtool.engine.repair.findings import Finding, Rest, Severity
from mqtool.engine.repair.parts import Part, PartReport, Span, spans_of, walk_part
from mqtool.engine.repair.placement import place
from mqtool.engine.repair.row_findings import MAX_LISTED, FindingsOfRows, Found
from mqtool.engine.repair.verify import records
from mqtool.engine.repair.verify.store_times import steps_back
from mqtool.engine.store.commit_log import CommitLog, Gap, with_data
from mqtool.engine.store.disk import LOST_AND_FOUND
from mqtool.engine.store.dispatch import Dispatch, IndexEntries, QueueKey, Units, dispatch, no_entries, property_crcs
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.reader import CLOCK_STEP_MS, StoreReader
from mqtool.errors import NotFoundError
from mqtool.formats import scan
from mqtool.formats.commit_log import MESSAGE_MAGICS
from mqtool.formats.scan import MessageTable

_NONE = np.empty(0, np.int64)
_NO_UNITS = Units([], *[_NONE] * 7)
BLOCK = 16 << 20
"""Bytes of a segment whose messages are processed together, wherever else the log is split."""
TIME_ORDER = "stored more than ten minutes before the preceding message"


class QueueStretch(NamedTuple):
    """Consecutive units of a queue with the same problem."""

    code: str  # QUEUE-MISSING, QUEUE-POSITION
    queue: QueueKey
    start: int  # queue offsets
    stop: int
    physical_offset: int  # of the first message, where its unit should point
    found: int  # where it points instead


@dataclasses.dataclass
class Compared:
    """Units that messages should have, compared with those in the files."""

    found: Found = dataclasses.field(default_factory=list)
    stretches: list[QueueStretch] = dataclasses.field(default_factory=list)
    claimed: list[tuple[QueueKey, int, int]] = dataclasses.field(default_factory=list)
    """Places of batch queues whose units belong to these messages."""


@dataclasses.dataclass
class Run:
    """Messages without a gap between them, and the findings in them.

    All of them begin in one block (``BLOCK``) of their segment.
    """

    segment: MappedFile
    start: int  # positions in the segment
    end: int
    in_place: bool  # whether the records are at their stated addresses
    stated_offset: int  # the address that the first one states
    count: int
    first_timestamp: int
    last_timestamp: int
    findings: Found
    spans: list[Span]
    entries: IndexEntries
    lost: list[int] = dataclasses.field(default_factory=list, kw_only=True)
    """Positions of messages that are in no queue, as the queue they state is impossible."""
    compared: Compared = dataclasses.field(default_factory=Compared, kw_only=True)
    edges: records.Edges | None = dataclasses.field(default=None, kw_only=True)
    too_early: Finding | None = dataclasses.field(default=None, kw_only=True)
    """The finding to report if the first was stored too long before the previous message."""

    @property
    def start_offset(self) -> int:
        """Address of its first byte."""
        return self.segment.start_offset + self.start

    @property
    def end_offset(self) -> int:
        """One past the address of its last byte."""
        return self.segment.start_offset + self.end


@dataclasses.dataclass(frozen=True)
class VerifyRules:
    """What checks of a stretch need to know about the store."""

    reader: StoreReader
    kernels: Any
    delay_levels: list[int]
    tags_in_index: bool
    check_units: Callable[[Units], Compared]
    most: int | None = MAX_LISTED  # most findings of one code that will be listed


def last_start(log: CommitLog, kernels: Any) -> int:
    """Return the address of the last record, or where the log begins."""
    for segment in reversed(log.segments):
        position = None
        for piece in log.walk(segment, 0, segment.size, kernels):
            if not isinstance(piece, Gap):
                position = int(piece.starts[-1])
        if position is not None:
            return segment.start_offset + position - log.envelope.size
    return log.min_offset


def check_part(rules: VerifyRules, part: Part, start: int | None = None) -> PartReport[Run]:
    """Check the messages that begin in a stretch; ``start``: of its first record, None to search for it."""
    log = rules.reader.commit_log
    return walk_part(log, rules.kernels, part, start, lambda table: _runs(rules, part.segment, table))


def _runs(rules: VerifyRules, segment: MappedFile, table: MessageTable) -> Iterator[Run]:
    """Split a table where records in place and displaced records meet, and at blocks."""
    placed = table.column("position") == table.column("physical_offset")
    blocks = table.starts // BLOCK
    edges = [0, *(np.flatnonzero((placed[1:] != placed[:-1]) | (blocks[1:] != blocks[:-1])) + 1).tolist(), len(table)]
    for first, last in itertools.pairwise(edges):
        whole = first == 0 and last == len(table)
        yield _run(rules, segment, table if whole else table.where(slice(first, last)), bool(placed[first]))


def _run(rules: VerifyRules, segment: MappedFile, table: MessageTable, in_place: bool) -> Run:
    file = rules.reader.paths.relative(segment.path)
    findings = FindingsOfRows(table, file, rules.most)
    head = rules.reader.commit_log.envelope.size
    start = int(table.starts[0]) - head
    end = int(table.starts[-1]) + int(table.column("size")[-1])

    findings.rows("LOG-SIZES", table.faults != 0, "the sizes in this record do not add up to its total size")
    sound = table if not table.faults.any() else table.where(table.faults == 0)
    derived, units = _no_dispatch(), _NO_UNITS
    lost = table.starts[table.faults != 0] - head
    edges = None
    compared = Compared()
    timestamps = table.column("store_timestamp")
    if len(sound):
        derived = dispatch(sound, rules.delay_levels, rules.tags_in_index)
        of_sound = FindingsOfRows(sound, file, rules.most, findings.all)
        _check_bodies(of_sound, derived)
        nameless = sound.nameless()
        of_sound.rows("LOG-TOPIC", nameless, "no broker can have a topic of this name: no queue leads to the message")
        lost = np.r_[lost, sound.starts[nameless] - head]
        units = derived.units.of_possible()
        of_sound.rows("LOG-PROPERTY-TEXT", derived.properties.damaged, "its properties are damaged: Java drops some")
        records.check_records(of_sound, derived)
        records.check_entries(of_sound, rules.reader.commit_log.envelope, segment.start_offset)
        edges = records.edges_of(of_sound, derived, rules.reader.commit_log.envelope)
        early = np.zeros(len(table), np.bool_)
        early[steps_back(timestamps)] = True
        findings.rows(
            "LOG-TIME-ORDER",
            early,
            TIME_ORDER,
            found_in=timestamps,
        )
    if in_place:
        compared = rules.check_units(units)
        findings.all += compared.found
        compared.found = []
    return Run(
        segment=segment,
        start=start,
        end=end,
        in_place=in_place,
        stated_offset=int(table.column("physical_offset")[0]),
        count=len(table),
        first_timestamp=int(timestamps[0]),
        last_timestamp=int(timestamps[-1]),
        findings=findings.all,
        spans=spans_of(units),
        entries=derived.entries,
        lost=np.sort(lost).tolist(),
        compared=compared,
        edges=edges,
        too_early=findings.finding("LOG-TIME-ORDER", 0, TIME_ORDER, None, int(timestamps[0])),
    )


def _no_dispatch() -> Dispatch:
    return Dispatch(Any, _NO_UNITS, no_entries())  # type: ignore[arg-type]


def _check_bodies(findings: FindingsOfRows, derived: Dispatch) -> None:
    table = findings.table
    stored = table.column("body_crc")
    computed = table.body_crcs()
    findings.rows("LOG-CRC", stored != computed, "the body does not match its CRC", computed, stored)
    rows, stated, should = property_crcs(table, derived.properties)
    if len(rows):
        wrong = np.zeros(len(table), np.bool_)
        expected, value = np.zeros(len(table), np.int64), np.zeros(len(table), np.int64)
        wrong[rows] = stated != should
        expected[rows], value[rows] = should, stated
        findings.rows("LOG-PROPERTY-CRC", wrong, "the record does not match its CRC property", expected, value)


def stretches(mask: Any) -> list[tuple[int, int]]:
    """Return start and stop of each stretch of true values."""
    edged = np.zeros(len(mask) + 2, np.bool_)
    edged[1:-1] = mask
    edges = np.flatnonzero(edged[1:] != edged[:-1])
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def check_files(reader: StoreReader) -> Iterator[Finding]:
    """Check names, lengths and gaps of the segments."""
    log = reader.commit_log
    if not reader.paths.commit_log:
        yield finding("LOG-MISSING", "there is no commit log", file="commitlog")
    for stray in log.strays:
        if stray.is_folder and stray.path.name == LOST_AND_FOUND:
            text = "a folder of the file system: 4.9 refuses to start with it, 5.3 skips it"
            note = finding("LOG-STRAY", text, file=reader.paths.relative(stray.path))
            yield dataclasses.replace(note, severity=Severity.NOTE)
            continue
        text = f"a file of {stray.size:,} bytes that is not a segment: brokers refuse to start"
        if stray.is_folder:
            text = "a folder that is not a segment: 4.9 refuses to start, 5.3 skips it"
        elif stray.leads_nowhere:
            text = "a link that leads nowhere: it was not checked; brokers take it for an empty file"
        yield finding("LOG-STRAY", text, file=reader.paths.relative(stray.path))
    previous: MappedFile | None = None
    for segment in log.segments:
        file = reader.paths.relative(segment.path)
        if not segment.size and segment is log.segments[-1]:
            if reader.is_live:
                continue  # just made
            text = "the last segment is empty: brokers before 5.1.3 refuse to start"
            yield finding("LOG-EMPTY-FILE", text, file=file, expected=log.file_size, found=0)
        elif segment.size != log.file_size:
            yield finding(
                "LOG-FILE-SIZE",
                f"a segment of {segment.size:,} bytes, expected {log.file_size:,}",
                file=file,
                offset=min(segment.size, log.file_size),
                expected=log.file_size,
                found=segment.size,
            )
        if previous and segment.start_offset > previous.start_offset + log.file_size:
            start = previous.start_offset + log.file_size
            yield finding(
                "LOG-GAP",
                f"{segment.start_offset - start:,} bytes of the log are missing before this segment",
                file=file,
                offset=0,
                expected=start,
                found=segment.start_offset,
                physical_offset=start,
            )
        previous = segment
    if not reader.is_live:
        yield from _check_names(reader)


def _check_names(reader: StoreReader) -> Iterator[Finding]:
    """Check the names of segments against their records."""
    log = reader.commit_log
    try:
        placement = place(log)
    except NotFoundError:  # retention is deleting files
        for segment in log.segments:
            if not segment.path.exists():
                log.let_go(segment)
        placement = place(log)
    for renamed in placement.renamed:
        yield finding(
            "LOG-NAME",
            "its records say that it is another segment than its name says"
            if renamed.has_records
            else "it has no records, and another file is the segment of this name by its records",
            file=reader.paths.relative(renamed.path),
            expected=renamed.target.name,
            found=renamed.path.name,
        )
    for gone in placement.removed:
        if gone.is_named:
            yield finding("LOG-NAME", gone.reason, file=reader.paths.relative(gone.path), found=gone.path.name)


@dataclasses.dataclass
class _Hole:
    """A stretch of the log without a record, and the messages that were there according to the queues."""

    file: str
    offset: int
    physical_offset: int
    lost: list[tuple[QueueKey, int]] = dataclasses.field(default_factory=list)  # the first of each queue
    count: int = 0


@dataclasses.dataclass(frozen=True)
class _Outlier:
    """Messages out of order in their queue; the next one may continue where the queue was."""

    expected: int  # the expected offset
    count: int
    jump: int | None  # index of their jump, if it was one forward

    def ends_at(self, offset: int) -> bool:
        """Return whether a message with this queue offset continues where the queue was."""
        return offset in (self.expected, self.expected + self.count)


def _place(item: tuple[int, Finding | Rest]) -> tuple[int, str, str]:
    """Return the sort key of the findings of a run."""
    position, entry = item
    return position, entry.code, "" if isinstance(entry, Rest) else entry.message


def _follows(before: Run, after: Run) -> bool:
    """Return whether a run begins exactly where another ends."""
    return before.segment is after.segment and before.end == after.start


def _groups(pieces: list[Run | Gap]) -> list[list[Run | Gap]]:
    """Join adjacent runs of one kind."""
    groups: list[list[Run | Gap]] = []
    for piece in pieces:
        last = groups[-1][-1] if groups else None
        if (
            isinstance(piece, Run)
            and isinstance(last, Run)
            and piece.in_place == last.in_place
            and _follows(last, piece)
        ):
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return groups


class LogVerifier:
    """Takes the stretches of a log in order; checks holes, misplaced records, queue order and the end.

    ``end_offset`` is one past the last message that is in place and not left over from before a truncation,
    ``first_offsets`` and ``next_offsets`` are the first and one past the last queue offset of each queue,
    ``first_addresses`` the address of its first message.
    """

    def __init__(self, reader: StoreReader, live: bool) -> None:
        self.reader = reader
        self.live = live
        self.end_offset = reader.commit_log.min_offset
        self.next_offsets: dict[QueueKey, int] = {}
        self.first_offsets: dict[QueueKey, int] = {}
        self.first_addresses: dict[QueueKey, int] = {}
        self._jumps: dict[int, tuple[QueueKey, int | None, int]] = {}
        self._jump_numbers = itertools.count()
        self.count = 0
        self._pending: list[Run | Gap] = []
        self._stale: set[QueueKey] | None = None  # queues of the consecutive messages at the end of those
        self._beside = records.Beside()
        self._holes: list[_Hole] = []
        self._hole_offsets: list[int] = []  # their addresses
        self._holes_before: dict[QueueKey, int] = {}  # how many are before a queue's last message
        self._outliers: dict[QueueKey, _Outlier] = {}
        self._segment: MappedFile | None = None
        self._accepted: Run | None = None
        self._held: Found = []
        """The last findings of that run: the next one may show more about the same record."""
        self.last_timestamp = 0

    def take(self, report: PartReport[Run]) -> Iterator[Finding | Rest | Run]:
        """Check a stretch; yields findings, and each run that belongs to the log.

        The findings do not depend on where the log was split into stretches and runs.
        """
        for piece in report.runs:
            if isinstance(piece, Gap):
                self._add_gap(piece)
                continue
            if not piece.in_place:
                self._pending.append(piece)
                continue
            if self.in_doubt and self._is_stale(piece):
                self._pending.append(piece)
                continue
            pending, self._pending = self._pending, []
            # Runs that seemed stale are not if one follows that is not.
            last = pending[-1] if pending else None
            count = len(pending)
            if self._stale is not None and isinstance(last, Run) and last.in_place and _follows(last, piece):
                while count and isinstance(pending_run := pending[count - 1], Run) and pending_run.in_place:
                    count -= 1
            self._stale = None
            if count:
                yield from self._let_go()
            yield from self._between(pending[:count])
            for pending_run in pending[count:]:
                assert isinstance(pending_run, Run)
                yield from self._accept(pending_run)
            yield from self._accept(piece)

    @property
    def in_doubt(self) -> bool:
        """Whether the next messages may not belong to the log: a gap is before them."""
        return any(isinstance(pending, Gap) for pending in self._pending)

    def _add_gap(self, gap: Gap) -> None:
        last = self._pending[-1] if self._pending else None
        if isinstance(last, Gap) and last.segment is gap.segment and last.end == gap.start:
            self._pending[-1] = last._replace(end=gap.end)
        else:
            self._pending.append(gap)

    def _is_stale(self, run: Run) -> bool:
        """Return whether messages after a gap are left over from before the log was truncated there.

        They are if they go back in time, and the first message of each queue in its offsets.
        """
        last = self._pending[-1]
        if self._stale is None or not isinstance(last, Run) or not _follows(last, run):
            if run.first_timestamp >= self.last_timestamp:
                return False
            self._stale = set()
        news = {span.queue: span for span in reversed(run.spans) if span.queue not in self._stale}
        self._stale |= set(news)
        return all(span.start < self.next_offsets.get(queue, 0) for queue, span in news.items())

    def _accept(self, run: Run) -> Iterator[Finding | Rest | Run]:
        if not self._accepted or not _follows(self._accepted, run):
            yield from self._let_go()
            self._beside.part()
        placed = [*self._held, *run.findings]
        if run.edges:
            placed += [(item.physical_offset or 0, item) for item in self._beside.join(run.edges)]
        self._accepted = run
        if run.too_early and run.first_timestamp < self.last_timestamp - CLOCK_STEP_MS:
            placed.append((run.start_offset, run.too_early))
        if self._segment and self._segment is not run.segment and self._segment.end_offset != run.segment.start_offset:
            log = self.reader.commit_log
            if log.gone_until and run.segment.start_offset <= log.min_offset:
                # Retention deleted what was between while the log was read.
                self.next_offsets.clear()
                self._outliers.clear()
            else:
                self._add_hole(run.segment, 0, self._segment.end_offset)
        self._segment = run.segment
        for start in run.lost:
            self._add_hole(run.segment, start, run.segment.start_offset + start)
        placed += [(item.physical_offset or 0, item) for item in self._order(run)]
        placed.sort(key=_place)
        done = bisect.bisect_left(placed, placed[-1][0], key=lambda item: item[0]) if placed else 0
        self._held = placed[done:]
        yield from (item for _, item in placed[:done])
        self.count += run.count
        self.end_offset = run.end_offset
        self.last_timestamp = run.last_timestamp
        yield run

    def _let_go(self) -> Iterator[Finding | Rest]:
        held, self._held = self._held, []
        yield from (item for _, item in held)

    def _order(self, run: Run) -> Iterator[Finding]:
        for span in run.spans:
            expected = self.next_offsets.get(span.queue)
            holes = bisect.bisect_left(self._hole_offsets, span.physical_offset)
            outlier = self._outliers.pop(span.queue, None)
            if outlier and span.start != expected and outlier.ends_at(span.start):
                if outlier.jump is not None:
                    del self._jumps[outlier.jump]
                if span.start > outlier.expected:
                    self._note_jump(span.queue, outlier.expected, span.start)
            elif span.start != expected:
                jump = None
                if expected is None or span.start > expected:
                    jump = self._note_jump(span.queue, expected, span.start)
                if expected is None:
                    self.first_offsets[span.queue] = span.start
                    self.first_addresses[span.queue] = span.physical_offset
                else:
                    self._outliers[span.queue] = _Outlier(expected, span.stop - span.start, jump)
                if expected is not None and span.start > expected and self._holes_before.get(span.queue, 0) < holes:
                    self._holes[holes - 1].lost.append((span.queue, expected))
                    self._holes[holes - 1].count += span.start - expected
                elif expected is not None:
                    yield self._out_of_order(run, span, expected)
            elif outlier:
                self._outliers[span.queue] = dataclasses.replace(outlier, count=outlier.count + span.stop - span.start)
            self.next_offsets[span.queue] = span.stop
            if self._holes:
                self._holes_before[span.queue] = bisect.bisect_left(self._hole_offsets, span.last_physical_offset)

    def _note_jump(self, queue: QueueKey, expected: int | None, start: int) -> int:
        number = next(self._jump_numbers)
        self._jumps[number] = queue, expected, start
        return number

    @property
    def jumps(self) -> list[tuple[QueueKey, int | None, int]]:
        """The queue offsets without a message; from None: below the first message of the queue."""
        return list(self._jumps.values())

    def _add_hole(self, segment: MappedFile, offset: int, physical_offset: int) -> None:
        self._hole_offsets.append(physical_offset)
        self._holes.append(_Hole(self.reader.paths.relative(segment.path), offset, physical_offset))

    def _losses(self) -> Iterator[Finding]:
        """Report what was in each hole, as far as the queue offsets of the messages around it show."""
        for hole in self._holes:
            place = {"file": hole.file, "offset": hole.offset, "physical_offset": hole.physical_offset}
            if len(hole.lost) == 1:
                (topic, queue_id), offset = hole.lost[0]
                place |= {"topic": topic, "queue_id": queue_id, "queue_offset": offset}
            if hole.count:
                queues = "" if len(hole.lost) == 1 else f" of {len(hole.lost):,} queues"
                text = "one message was" if hole.count == 1 else f"{hole.count:,} messages{queues} were"
                yield finding("LOG-QUEUE-ORDER", f"{text} lost here", **place)

    def _out_of_order(self, run: Run, span: Span, expected: int) -> Finding:
        if span.start > expected:
            missing = span.start - expected
            subject = "one message" if missing == 1 else f"{missing:,} messages"
            text = f"{subject} of its queue {'is' if missing == 1 else 'are'} missing before it"
        else:
            text = "the preceding message of its queue has the same queue offset or a later one"
        return finding(
            "LOG-QUEUE-ORDER",
            text,
            file=self.reader.paths.relative(run.segment.path),
            offset=span.physical_offset - run.segment.start_offset,
            expected=expected,
            found=span.start,
            topic=span.queue[0],
            queue_id=span.queue[1],
            queue_offset=span.start,
            physical_offset=span.physical_offset,
        )

    def _between(self, pieces: list[Run | Gap]) -> Iterator[Finding | Rest | Run]:
        """Check what is between messages of the log."""
        for group in _groups(pieces):
            first = group[0]
            if isinstance(first, Gap):
                self._add_hole(first.segment, first.start, first.start_offset)
                yield self._hole(first)
            elif first.in_place:
                yield self._finding("LOG-STALE", "messages from an earlier life of the log", first)
            else:
                runs = [piece for piece in group if isinstance(piece, Run)]
                count = sum(run.count for run in runs)
                text = "this record claims" if count == 1 else f"{count:,} records from here on claim"
                problem = self._finding(
                    "LOG-POSITION", f"{text} to be at another address", first, expected=first.start_offset
                )
                yield dataclasses.replace(problem, found=first.stated_offset)
                for run in runs:
                    yield from self._accept(run)

    def _hole(self, gap: Gap) -> Finding:
        size = gap.end - gap.start
        reasons = {
            scan.Stop.MAGIC: ("LOG-MAGIC", "no record starts here"),
            scan.Stop.SIZE: ("LOG-SIZES", "a record with an impossible size"),
            scan.Stop.BLANK: ("LOG-BLANK", "a blank record that does not fill its segment"),
            scan.Stop.END: ("LOG-BLANK", "the segment ends without a blank record"),
        }
        code, text = reasons.get(gap.stop, reasons[scan.Stop.MAGIC])
        return self._finding(code, f"{text}: {size:,} bytes are skipped, messages follow after them", gap)

    def finish(self) -> Iterator[Finding | Rest]:
        """Check what is after the last message."""
        yield from self._let_go()
        yield from self._losses()
        pending, self._pending = self._pending, []
        if self.live:
            return
        reported: set[str] = set()
        stale = sum(piece.count for piece in pending if isinstance(piece, Run))
        for piece in pending:
            if isinstance(piece, Run):
                subject = "a whole record is" if stale == 1 else f"{stale:,} whole records are"
                code, text = "LOG-STALE", f"{subject} beyond the end of the log: brokers may adopt them"
            else:
                content = self._first_content(piece)
                if content is None:
                    continue
                if piece.stop is scan.Stop.BLANK:
                    code, text = "LOG-BLANK", "a blank record that does not fill its segment"
                elif self.reader.commit_log.begins(piece.segment, piece.start, MESSAGE_MAGICS):
                    code, text = "LOG-TORN", "a record that was not written completely"
                else:
                    code, text = "LOG-NOISE", "bytes after the end of the log that are not a record"
                    piece = piece._replace(start=content)
            if code not in reported:
                reported.add(code)
                yield self._finding(code, text, piece)

    def _first_content(self, gap: Gap) -> int | None:
        """Return the position of the first byte of a gap that is not zero."""
        for low, high in with_data(gap.segment, gap.start, gap.end, 1 << 20):
            content = np.flatnonzero(gap.segment.stretch(low, high) != 0)
            if len(content):
                return low + int(content[0])
        return None

    def _finding(self, code: str, text: str, piece: Run | Gap, expected: int | None = None) -> Finding:
        return finding(
            code,
            text,
            file=self.reader.paths.relative(piece.segment.path),
            offset=piece.start,
            expected=expected,
            physical_offset=piece.start_offset,
        )
