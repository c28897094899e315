"""The holes of a commit log, and the plan to bridge them with well-formed records.

``survey`` walks over all records and collects what is not sound: holes, with the heads that can still be read in them.
``plan_log`` finds the end of the log and puts placeholders into the holes before it, so that a broker walks over them
and every sound message keeps its place in its queue. (Rules: store.md 3, 4.2, 7.)

Cost: linear in the log; memory holds some bytes for each queue, hole and lost message.
"""

import bisect
import collections
import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mqtool.engine.repair.checks import finding
from mqtool.engine.repair.findings import Finding, Severity
from mqtool.engine.repair.losses import LossCollector
from mqtool.engine.repair.parts import (
    Part,
    PartReport,
    Progress,
    Span,
    in_order,
    part_size,
    parts_apart,
    parts_of,
    spans_of,
    walk_part,
)
from mqtool.engine.repair.recover.bridges import (
    Bridges,
    Hole,
    HoleContents,
    Light,
    LostMessage,
    QueueGap,
    QueueOrder,
    RecordColumns,
    by_queue,
    find_lost,
    lay_out,
    light_key,
    rising,
)
from mqtool.engine.repair.recover.record_editor import Patch, RecordEditor, kinds_of, without_places
from mqtool.engine.repair.recover.torn_batches import repaired_batches, with_addresses, with_records
from mqtool.engine.repair.row_findings import FindingsOfRows
from mqtool.engine.repair.verify.log import TIME_ORDER, Run
from mqtool.engine.repair.verify.records import (
    check_records,
    ends_like_crc,
    has_crc_property,
    is_repairable_crc,
    right_flags,
    states_crc_property,
)
from mqtool.engine.repair.verify.store_times import Samples, TimeOrder
from mqtool.engine.store.commit_log import Gap
from mqtool.engine.store.dispatch import (
    Dispatch,
    IndexEntries,
    QueueKey,
    UnitRange,
    Units,
    dispatch,
    inner_batch_topics,
    no_entries,
    properties_of,
    property_crcs,
)
from mqtool.engine.store.fast_path import FastPath, take_fast_path
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import MqtoolError
from mqtool.formats import commit_log as layout
from mqtool.formats import consume_queue, placeholder, scan
from mqtool.formats import kernels as plain
from mqtool.formats.placeholder import RecordTemplate
from mqtool.formats.properties import CRC_SIZE, are_readable, parse_properties
from mqtool.formats.property_names import (
    CRC32,
    INNER_BASE,
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    INNER_NUM,
    INNER_PREFIX,
)
from mqtool.formats.record_head import read_start
from mqtool.formats.scan import Ints, MessageTable
from mqtool.formats.topics import SCHEDULE_TOPIC, is_possible

Bools = npt.NDArray[np.bool_]
_INNER = INNER_PREFIX.encode()
_NO = np.empty((2, 0), np.int64)
_PART = 64 << 20  # large, so that work per queue and part weighs little
UNKNOWN = "the contents of these bytes of the log are unknown"
GIVEN_UP = "its messages fail their checks or are missing"
OF_CRC = "it does not match its CRC"
BEHIND = "they are beyond the end of the log"
UNFIT = "left in the log, but in no queue: its queue offset cannot be right"
IN_LIGHT_QUEUE = "messages listed above, which this light queue also refers to"
_MAX_TOLD = 5
"""How many records of one kind get a sentence of their own."""
_MAX_HELD = 4
"""How many messages of a queue in a row may have damaged numbers."""


class Bad(NamedTuple):
    """A record whose checks fail."""

    start: int  # position in the segment
    end: int
    reason: str
    known: LostMessage | None
    after: tuple[int, int] | None  # of the sound record before it, of the same piece: address and store time
    is_alone: bool = False  # it is at its stated address, and no other record can begin within it

    @property
    def misplaced(self) -> bool:
        """Whether only its stated address is wrong."""
        return self.known is not None and self.known.misplaced


class Misplaced(NamedTuple):
    """Records that are sound except for their addresses, and what else is wrong with those that stay in their place."""

    positions: Ints  # their actual addresses
    times: Ints  # when they were stored
    flags: dict[int, int]  # as in ``RecordRun``
    repaired: dict[int, bytes]
    doubtful: list[int]  # addresses
    found: list[Finding]


@dataclasses.dataclass
class RecordRun:
    """Records that follow each other, of one table."""

    segment: MappedFile
    start: int
    end: int
    bad: list[Bad]
    spans: list[Span]
    topics: dict[str, int]  # sound messages
    last_start: int  # of the last sound record, -1 without one
    like: RecordTemplate
    inner_batches: set[str]  # topics of sound inner batches
    repaired: dict[int, bytes]  # corrected inner batches whose numbers were wrong, by address
    doubtful: list[int]  # positions of sound messages whose CRC property does not match: their bodies do
    samples: Samples  # of the store times of sound messages
    flags: dict[int, int]  # what flags of sound messages should be, by address
    found: list[Finding]  # in sound messages
    run: Run | None  # the sound records, where there are some
    units: Units | None  # theirs
    misplaced: Misplaced | None = None


@dataclasses.dataclass
class LogPlan:
    """The changes to the log."""

    end_offset: int  # of the last record
    last_start: int  # address of the last sound record, -1 without one
    last_timestamp: int  # when it was stored
    holes: list[Hole]  # before the end
    patches: list[Patch] = dataclasses.field(default_factory=list)
    losses: LossCollector = dataclasses.field(default_factory=LossCollector)
    """Messages in holes, and those beyond the end, which are given up too."""
    is_cut: bool = False
    """Sound messages are among those beyond the end."""
    kept: "collections.Counter[str]" = dataclasses.field(default_factory=collections.Counter)
    remarks: list[str] = dataclasses.field(default_factory=list)
    odd: frozenset[tuple[str, int]] = frozenset()
    """Topics or light queues, and addresses of messages whose queue offset there is impossible: they get no unit."""
    unplaced: list[QueueGap] = dataclasses.field(default_factory=list)
    """Messages that cannot get a placeholder."""
    left: list[Finding] = dataclasses.field(default_factory=list)
    """Findings in messages that remain."""
    starts: list[int] = dataclasses.field(default_factory=list)
    """Addresses of some sound messages, in order, at which independent reads may begin."""
    bridges: Bridges | None = None
    """The records that bridge the holes; patches are applied over them."""

    def note_lost(self, messages: Iterable[LostMessage], reason: str) -> None:
        """Note messages that are given up."""
        for known in messages:
            if known.has_unit:
                start = known.queue_offset
                self.losses.add(known.queue, start, start + known.batch_size, known.size, reason)
            else:
                self.losses.add_elsewhere(known.topic, 1, known.size, reason)

    def note_bridged(self, rows: RecordColumns, keys: list[QueueKey], light: list[Light]) -> None:
        """Note messages that get a placeholder in their place."""
        queued = rows.where(rows.has_unit)
        order = by_queue(queued.queue)
        edges = np.flatnonzero(np.diff(queued.queue[order])) + 1
        for group in np.split(order, edges) if len(order) else ():
            starts = queued.queue_offset[group]
            stops = starts + queued.batch_size[group]
            self.losses.add_many(keys[queued.queue[group[0]]], starts, stops, queued.size[group], GIVEN_UP)
        for row in np.flatnonzero(~rows.has_unit & (rows.queue >= 0)).tolist():
            self.losses.add_elsewhere(keys[rows.queue[row]][0], 1, int(rows.size[row]), GIVEN_UP)
        for row in np.flatnonzero(rows.light >= 0).tolist():
            for name, offset in light[rows.light[row]]:
                self.losses.add(light_key(keys, rows, row, name), offset, offset + 1, 0, IN_LIGHT_QUEUE)

    def note_cut_off(self, units: Units, stretches: list[UnitRange], topics: dict[str, int]) -> None:
        """Note sound messages that are given up: ranges of their units, and their number by topic.

        Messages in no range are noted without a place.
        """
        left = collections.Counter(topics)
        for queue, first, last in stretches:
            start, stop = int(units.queue_offset[first]), units.after(last - 1)
            self.losses.add(queue, start, stop, int(units.size[first:last].sum()), BEHIND)
            left[queue[0]] -= last - first
        for topic, count in left.items():
            if count > 0:
                self.losses.add_elsewhere(topic, count, 0, BEHIND)


@dataclasses.dataclass(frozen=True)
class SurveyRules:
    """What a survey needs to know about the store."""

    reader: StoreReader
    kernels: Any
    delay_levels: list[int]
    property_crc: bool  # a broker of this store checks the CRC property (forceVerifyPropCRC)
    tags_in_index: bool


def survey(
    reader: StoreReader,
    start_offset: int,
    jobs: int,
    progress: Progress,
    tags_in_index: bool = False,
    apart_at: int | None = None,
) -> Iterator[RecordRun | Gap]:
    """Yield the contents of the log from an address on, in order: records and gaps of each segment.

    Args:
        reader: of the store.
        start_offset: first byte of a segment.
        jobs: threads.
        progress: called with the number of bytes done so far.
        tags_in_index: also derive the entries by tag.
        apart_at: address of a record that is not in one piece with those before it.
    """
    log = reader.commit_log
    parts = [part for part in parts_of(log, part_size(_PART, jobs)) if part.segment.start_offset >= start_offset]
    if apart_at is not None:
        parts = parts_apart(parts, apart_at)
    total = sum(part.stop - part.start for part in parts)
    forced = reader.config.flag("forceVerifyPropCRC")
    rules = SurveyRules(reader, scan.kernels_for(total), reader.delay_levels, forced, tags_in_index)
    done = 0
    with ThreadPoolExecutor(jobs) as pool:
        for report in in_order(pool, functools.partial(_check_part, rules), parts, jobs + 2):
            yield from report.runs
            done += report.part.stop - report.part.start
            progress(done)


def _check_part(rules: SurveyRules, part: Part, start: int | None) -> PartReport[RecordRun]:
    log = rules.reader.commit_log
    survey_table = functools.partial(survey_records, rules, part.segment)
    return walk_part(log, rules.kernels, part, start, survey_table, functools.partial(_fast_path, rules, part, True))


def derived_part(rules: SurveyRules, part: Part, start: int) -> PartReport[RecordRun]:
    """Return units and entries of the messages of a stretch that is known to be sound, without checks.

    Args:
        rules: of the store.
        part: the stretch.
        start: where its first record begins.
    """

    def survey_table(table: MessageTable) -> list[RecordRun]:
        none = np.zeros(len(table), np.bool_)
        return [_piece(rules, part.segment, table, none, none, none)]

    log = rules.reader.commit_log
    return walk_part(log, rules.kernels, part, start, survey_table, functools.partial(_fast_path, rules, part, False))


def _fast_path(rules: SurveyRules, part: Part, with_bodies: bool, start: int) -> Iterator[RecordRun]:
    log = rules.reader.commit_log
    for stretch in take_fast_path(log, part.segment, start, part.stop, rules.kernels, with_bodies, rules.tags_in_index):
        yield _fast_path_records(rules, part.segment, stretch)


def _fast_path_records(rules: SurveyRules, segment: MappedFile, stretch: FastPath) -> RecordRun:
    buffer = rules.reader.commit_log.buffer(segment, rules.kernels)
    last = scan.gather(buffer, segment.start_offset, np.array([stretch.last_start]), rules.kernels)
    unsound = scan.gather(buffer, segment.start_offset, stretch.unsound, rules.kernels)
    before = np.searchsorted(stretch.positions, unsound.column("position")) - 1
    bad = []
    for row, sound in enumerate(before.tolist()):
        after = (int(stretch.positions[sound]), int(stretch.timestamps[sound])) if sound >= 0 else None
        start, known = int(unsound.starts[row]), known_of(unsound, row, False)
        end = start + known.size
        bad.append(Bad(start, end, OF_CRC, known, after, not scan.may_begin_records(buffer, start + 1, end)))
    return RecordRun(
        segment=segment,
        start=stretch.start,
        end=stretch.end,
        bad=bad,
        spans=spans_of(stretch.units),
        topics=stretch.topics,
        last_start=stretch.last_start,
        like=RecordTemplate.of(last, 0, has_crc=False),
        inner_batches=set(),
        repaired={},
        doubtful=[],
        samples=Samples.of(stretch.positions, stretch.timestamps),
        flags={},
        found=[],
        run=Run(
            segment=segment,
            start=stretch.start,
            end=stretch.end,
            in_place=True,
            stated_offset=segment.start_offset + stretch.start,
            count=stretch.count,
            first_timestamp=stretch.first_timestamp,
            last_timestamp=stretch.last_timestamp,
            findings=[],
            spans=[],
            entries=no_entries() if bad else stretch.entries,  # as in ``_piece``
        ),
        units=stretch.units,
    )


def survey_records(rules: SurveyRules, segment: MappedFile, table: MessageTable) -> list[RecordRun]:
    """Separate sound records from others; those before the first unsound one are a piece of their own."""
    faulty = table.faults != 0
    misplaced = ~faulty & (table.column("position") != table.column("physical_offset"))
    broken = ~faulty & table.broken()
    if rules.property_crc:
        broken |= _property_crc_fails(table, ~faulty)
    broken |= _lost_crc(table, ~faulty)
    bad = faulty | misplaced | broken
    first = int(bad.argmax()) if bad.any() else len(table)
    pieces = []
    for rows in (slice(first), slice(first, None)):
        part = table.where(rows)
        if len(part):
            pieces.append(_piece(rules, segment, part, faulty[rows], misplaced[rows], broken[rows]))
    return pieces


def _property_crc_fails(table: MessageTable, whole: Bools) -> Bools:
    """Return which records do not match the CRC property that they end in."""
    fails = np.zeros(len(table), np.bool_)
    places = np.flatnonzero(whole)
    sound = table.where(places)
    rows, stated, should = property_crcs(sound, dispatch(sound, []).properties)
    fails[places[rows[stated != should]]] = True
    return fails


def _lost_crc(table: MessageTable, whole: Bools) -> Bools:
    """Return which records between two with a CRC property lack one, as foreign bytes overwrote it.

    Except for fillers without room for one; but with those that end in a damaged one and cannot be read because of it.
    """
    lost = np.zeros(len(table), np.bool_)
    rows = np.flatnonzero(whole)
    sound = table.where(rows)
    properties = properties_of(sound)
    if states_crc_property(properties).any():
        has = has_crc_property(sound, properties)
        has_room = sound.sizes(plain.BODY) + sound.sizes(plain.PROPERTIES) >= CRC_SIZE
        ends_like = ends_like_crc(sound)
        # What bridges damage behind the last one has a CRC property, too.
        has_after = np.r_[has[1:], rows[-1] < len(table) - 1 or _is_before_damage(sound)]
        lost[rows[1:]] = (has_room & ~has & ~ends_like)[1:] & has[:-1] & has_after[1:]
        damaged = np.flatnonzero(~has & ends_like)
        lost[rows[damaged]] |= ~is_repairable_crc(sound.where(damaged))
    return lost


def _is_before_damage(table: MessageTable) -> bool:
    """Return whether something is behind the last record that is neither a record nor a blank."""
    size, magic_code = read_start(table.buffer, int(table.starts[-1] + table.column("size")[-1]))
    return bool(size or magic_code) and magic_code not in (*layout.MESSAGE_MAGICS, layout.MAGIC_BLANK)


def _piece(
    rules: SurveyRules, segment: MappedFile, table: MessageTable, faulty: Bools, misplaced: Bools, broken: Bools
) -> RecordRun:
    bad = faulty | misplaced | broken
    sound = table if not bad.any() else table.where(~bad)
    # After damage no entries are needed: the repaired log has others.
    with_entries = not bad.any()
    derived = dispatch(sound, rules.delay_levels, rules.tags_in_index, with_entries) if len(sound) else None
    has_crc, has_crc_beside, doubtful, inner_batches = False, False, [], set[str]()
    findings = FindingsOfRows(sound, rules.reader.paths.relative(segment.path), None)
    flags: dict[int, int] = {}
    repaired: dict[int, bytes] = {}
    if derived is not None:
        check_records(findings, derived)
        records = repaired_batches(rules.reader, sound, derived.properties)
        if records:
            repaired = {int(sound.column("position")[row]): record for row, record in records.items()}
            sound = with_records(sound, records)
            derived = dispatch(sound, rules.delay_levels, rules.tags_in_index, with_entries)
        flags = {int(sound.column("position")[row]): flag for row, flag in right_flags(sound, derived).items()}
        has_crc = bool(derived.properties.at(CRC32)[1][-1] > 0)
        has_crc_beside = bool(has_crc_property(sound, derived.properties).any())
        doubtful = (sound.column("position")[_doubtful(sound, derived)] - segment.start_offset).tolist()
        inner_batches = inner_batch_topics(sound, derived.properties)
    units = derived.units.of_possible() if derived else None
    starts, sizes = table.starts, table.column("size")
    positions, times = table.column("position"), table.column("store_timestamp")
    before = np.maximum.accumulate(np.where(bad, -1, np.arange(len(table))))  # the sound record before each
    listed = []
    for row in np.flatnonzero(bad).tolist():
        start, end = int(starts[row]), int(starts[row]) + int(sizes[row])
        known = (
            None
            if faulty[row] or not is_possible(table.bytes_of(plain.TOPIC, row))
            else known_of(table, row, bool(misplaced[row] and not broken[row]))
        )
        reason = (
            "its sizes do not add up"
            if faulty[row]
            else "no broker can have a topic of this name"
            if known is None
            else "its properties are damaged"
            if not are_readable(table.bytes_of(plain.PROPERTIES, row))
            else OF_CRC
            if broken[row]
            else "it belongs elsewhere"
        )
        last = int(before[row])
        after = (int(positions[last]), int(times[last])) if last >= 0 else None
        listed.append(Bad(start, end, reason, known, after))
    counts: dict[str, int] = {}
    if len(sound):
        ids, names = sound.topics()
        for name, count in zip(names, np.bincount(ids, minlength=len(names)).tolist(), strict=True):
            counts[name.decode("utf-8", "replace")] = count
    own = np.flatnonzero(misplaced & ~broken)
    sound_before = np.cumsum(~bad, dtype=np.int64)[own]
    return RecordRun(
        segment=segment,
        start=int(starts[0]),
        end=int(starts[-1]) + int(sizes[-1]),
        bad=listed,
        spans=spans_of(units) if units else [],
        topics=counts,
        last_start=int(sound.column("position")[-1]) - segment.start_offset if len(sound) else -1,
        like=RecordTemplate.of(sound, len(sound) - 1, has_crc) if len(sound) else placeholder.PLAIN,
        inner_batches=inner_batches,
        repaired=repaired,
        doubtful=doubtful,
        samples=Samples.of(positions[~bad], times[~bad], sound_before),
        flags=flags,
        found=_listed(findings),
        run=run_of(segment, sound, derived.entries) if derived else None,
        units=units,
        misplaced=_misplaced(rules, segment, table.where(own), has_crc_beside) if len(own) else None,
    )


def _misplaced(rules: SurveyRules, segment: MappedFile, table: MessageTable, has_crc_beside: bool) -> Misplaced:
    """Return what is wrong with misplaced records if they are where they belong.

    Args:
        rules: of the store.
        segment: that contains them.
        table: of them.
        has_crc_beside: sound records around them end in a CRC property.
    """
    positions = table.column("position")
    findings = FindingsOfRows(table, rules.reader.paths.relative(segment.path), None)
    check_records(findings, dispatch(table, rules.delay_levels))
    in_place = with_addresses(table)
    derived = dispatch(in_place, rules.delay_levels)
    records = repaired_batches(rules.reader, in_place, derived.properties)
    if records:
        in_place = with_records(in_place, records)
        derived = dispatch(in_place, rules.delay_levels)
    return Misplaced(
        positions,
        table.column("store_timestamp"),
        {int(positions[row]): flag for row, flag in right_flags(in_place, derived).items()},
        {int(positions[row]): record for row, record in records.items()},
        positions[_doubtful(in_place, derived, has_crc_beside)].tolist(),
        _listed(findings),
    )


def _doubtful(table: MessageTable, derived: Dispatch, has_crc_beside: bool = False) -> Ints:
    """Return the rows of records whose CRC property does not match, or is damaged."""
    rows, stated, should = property_crcs(table, derived.properties)
    wrong: Ints = rows[stated != should]
    has = has_crc_property(table, derived.properties)
    if (states_crc_property(derived.properties).any() or has_crc_beside) and not has.all():
        wrong = np.union1d(wrong, np.flatnonzero(~has & ends_like_crc(table)))
    return wrong


def _listed(findings: FindingsOfRows) -> list[Finding]:
    return [item for _, item in findings.all if isinstance(item, Finding) and item.severity is not Severity.NOTE]


def run_of(segment: MappedFile, table: MessageTable, entries: IndexEntries) -> Run:
    """Return sound messages in the form in which an index is checked."""
    times, positions = table.column("store_timestamp"), table.column("position")
    return Run(
        segment=segment,
        start=int(positions[0]) - segment.start_offset,
        end=int(positions[-1]) + int(table.column("size")[-1]) - segment.start_offset,
        in_place=True,
        stated_offset=int(positions[0]),
        count=len(table),
        first_timestamp=int(times[0]),
        last_timestamp=int(times[-1]),
        findings=[],
        spans=[],
        entries=entries,
    )


def known_of(table: MessageTable, row: int, misplaced: bool) -> LostMessage:
    """Return what a record says about itself; ``misplaced``: only its address is wrong."""
    text = table.bytes_of(plain.PROPERTIES, row)
    properties = parse_properties(text) if _INNER in text else {}
    inner, base = properties.get(INNER_NUM, ""), properties.get(INNER_BASE, "")
    batch = inner.isdecimal() and base.isdecimal()
    size, queue_id, flag = (int(table.column(name)[row]) for name in ("size", "queue_id", "sys_flag"))
    return LostMessage(
        table.base + int(table.starts[row]),
        size,
        table.bytes_of(plain.TOPIC, row).decode("utf-8", "replace"),
        queue_id,
        int(base) if batch else int(table.column("queue_offset")[row]),
        flag & layout.TRANSACTION_MASK,
        int(inner) if batch else 1,
        tuple(_light_queues(properties)) if properties else (),
        misplaced,
    )


def _light_queues(properties: dict[str, str]) -> Iterator[tuple[str, int]]:
    names = properties.get(INNER_MULTI_DISPATCH, "").split(",")
    offsets = properties.get(INNER_MULTI_QUEUE_OFFSET, "").split(",")
    for name, offset in zip(names, offsets, strict=False):
        if name and is_possible(name.encode()) and offset.isascii() and offset.isdecimal() and len(offset) < 19:
            yield name, int(offset)


# The plan.


def plan_log(
    reader: StoreReader,
    pieces: Iterable[RecordRun | Gap],
    start_offset: int,
    cut: bool,
    batch_topics: set[str],
    cut_at: int | None = None,
) -> LogPlan:
    """Find the end of the log and bridge the holes before it.

    Args:
        reader: of the store.
        pieces: by ``survey``.
        start_offset: first byte of the segment to begin with.
        cut: end the log at the first hole.
        batch_topics: that keep several messages in a unit; those of which the records say so are added.
        cut_at: end it here, where a piece begins.
    """
    builder = _Builder(reader, start_offset, cut, batch_topics, cut_at)
    for piece in pieces:
        builder.take(piece)
    return builder.finish()


def edited_records(reader: StoreReader, pieces: Iterable[RecordRun | Gap], batch_topics: set[str]) -> list[Patch]:
    """Return the records of a whole log that ``plan_log`` rewrites, without those that bridge its holes.

    They do not state impossible places in light queues, which a log that is repaired in place keeps.

    Args:
        reader: of the store.
        pieces: by ``survey``, from the beginning of the log on.
        batch_topics: that keep several messages in a unit.
    """
    builder = _Builder(reader, reader.commit_log.min_offset, False, set(batch_topics))
    for piece in pieces:
        builder.take(piece)
    editor, _ = builder.edit()
    editor.drop_light()
    return editor.patches()


class _Builder:
    """Builds the plan from what a survey yields."""

    def __init__(
        self, reader: StoreReader, start_offset: int, cut: bool, batch_topics: set[str], cut_at: int | None = None
    ) -> None:
        self.reader = reader
        self.log = reader.commit_log
        self.cut = cut
        self.cut_at = cut_at
        self.batch_topics = batch_topics
        self.plan = LogPlan(start_offset, -1, 0, [])
        self.holes: list[Hole] = []
        most = self.log.total_size // layout.MIN_SIZE
        self.order = QueueOrder({}, {}, [], most, start_offset == self.log.min_offset == 0, start_offset)
        self.held: dict[QueueKey, list[Span]] = {}  # what does not fit after the last message of its queue
        self.doubtful: list[int] = []
        self.repaired: dict[int, bytes] = {}
        self.alone: dict[QueueKey, Span] = {}  # the only message of their queue
        self.latest: dict[QueueKey, tuple[Span, tuple[int, int] | None]] = {}
        """The last message of a queue that fit, alone in its span, and the previous ``order.next``."""
        self.rivals: list[tuple[Span, Span]] = []
        """Two messages that state one place, either of which may be wrong: the second, which is odd, and the first."""
        self.ends: dict[QueueKey, int] = {}  # one past the last message that is cut off
        self.twice: dict[QueueKey, Span] = {}  # the first whose queue offsets others have before them
        self.odd: list[Span] = []  # messages whose queue or offset cannot be right
        self.start = self.at = start_offset  # of the first segment; one past what has been taken
        self.like = placeholder.PLAIN
        self.like_at = -1  # address of that record
        self.times = TimeOrder()
        self.times_of_own: dict[int, int] = {}
        """The new times of records that keep their places but state another address."""
        self.flags: dict[int, int] = {}
        self.found: list[Finding] = []
        self.misplaced: list[Misplaced] = []
        self.segment: MappedFile | None = None

    def take(self, piece: RecordRun | Gap) -> None:
        """Take records or a gap; they come in the order of the log."""
        base = piece.segment.start_offset
        if self.cut_at is not None and base + piece.start >= self.cut_at:
            if isinstance(piece, RecordRun) and piece.last_start >= 0:
                self._cut_off(piece)
            return
        self._enter(piece.segment)
        if isinstance(piece, Gap):
            self._hole(base, piece.start_offset, base + piece.end, "there is no record", None)
            self.at = base + piece.end
            return
        for bad in piece.bad:
            hole = self._hole(base, base + bad.start, base + bad.end, bad.reason, bad.known)
            if bad.after is not None and hole.start == base + bad.start:
                hole.after = bad.after[0]
                hole.like = self.like._replace(store_timestamp=bad.after[1])
        self.at = base + piece.end
        if piece.misplaced is not None:
            self.misplaced.append(piece.misplaced)
        if piece.last_start < 0:
            return
        if self.like is placeholder.PLAIN:
            first_timestamp = int(piece.samples.times[0])
            for hole in self.holes:  # in front of the first sound message
                timestamp = first_timestamp if hole.after < 0 else hole.like.store_timestamp
                hole.like = piece.like._replace(store_timestamp=timestamp)
        self.like, self.like_at = piece.like, base + piece.last_start
        if self.cut and self.holes and self.holes[0].start < base + piece.last_start:
            self._cut_off(piece)
            return
        if not piece.bad or piece.bad[0].start > piece.start:
            self.plan.starts.append(base + piece.start)
        self.plan.kept.update(piece.topics)
        self.batch_topics |= piece.inner_batches
        self.doubtful += [base + start for start in piece.doubtful]
        self.repaired |= piece.repaired
        self.times.take(piece.samples)
        self.flags |= piece.flags
        self.found += piece.found
        self.plan.last_start = base + piece.last_start
        self.plan.last_timestamp = piece.like.store_timestamp
        size, _ = read_start(self.log.read(self.plan.last_start, layout.BLANK_SIZE))
        self.plan.end_offset = self.plan.last_start + size
        for span in self._apart(piece):
            self._follow(span)

    def _cut_off(self, piece: RecordRun) -> None:
        """Give up sound messages."""
        if piece.units is not None:
            self._note_jumps(piece.spans)
            self.plan.note_cut_off(piece.units, [*self._with_place(piece.units)], piece.topics)
        self.plan.is_cut = True

    def _with_place(self, units: Units) -> Iterator[UnitRange]:
        """Yield the ranges of units without single messages that claim the place of a kept one."""
        for stretch in units.stretches:
            offset = int(units.queue_offset[stretch.first])
            if stretch.last - stretch.first > 1 or not self._is_of_kept_message(stretch.queue, offset):
                yield stretch

    def _is_of_kept_message(self, queue: QueueKey, queue_offset: int) -> bool:
        """Return whether the unit at an offset of a queue leads to a message of it before the end of the log."""
        consume_queue = self.reader.consume_queues.get(queue)
        if consume_queue is None or queue_offset >= self.order.next.get(queue, (0, -1))[0]:
            return False
        address = consume_queue.address_at(queue_offset)
        if address is not None and address < self.plan.end_offset:
            with contextlib.suppress(MqtoolError):
                message = self.reader.message_at(address)
                return ((message.topic, message.queue_id), message.queue_offset) == (queue, queue_offset)
        return False

    def _apart(self, piece: RecordRun) -> Iterator[Span]:
        """Yield the offsets of each queue, with a few misfits one by one.

        So are two that say the same offset, the last before it and the first of others after it, and messages that
        lead on to those that are due.
        """
        if piece.units is None:
            return
        units = piece.units
        behind = [*piece.spans, None][1:]
        for span, (_, first, last), following in zip(piece.spans, units.stretches, behind, strict=True):
            after = self.order.next.get(span.queue, (0, -1))[0]
            latest, _ = self.latest.get(span.queue, (None, None))
            if span.is_one_record:
                yield span
            elif span.start != after and last - first <= _MAX_HELD:
                yield from _spans_of(span.queue, units, [*range(first, last + 1)])
            else:
                edges = {first, last}
                if latest is not None and latest.start == span.start:
                    edges.add(first + 1)
                if span.start < after < span.stop:
                    row = first + int(np.searchsorted(units.queue_offset[first:last], after))
                    is_in_line = row < last and units.queue_offset[row] == after and row - first <= _MAX_HELD
                    edges |= {*range(first, row + 1)} if is_in_line else set()
                last_place = span.queue, int(units.queue_offset[last - 1])
                if following is not None and (following.queue, following.start) == last_place:
                    edges.add(last - 1)
                yield from _spans_of(span.queue, units, sorted(edges)) if len(edges) > 2 else [span]

    def _follow(self, span: Span) -> None:
        """Take the next offsets of a queue; misfits wait until later messages show why they do not fit."""
        before = self.order.next.get(span.queue)
        if before is not None and span.queue not in self.held and span.queue not in self.alone:
            is_next = before[0] == span.start
            if (is_next or (before[0] < span.start and not span.is_one_record)) and not self._is_absurd(span):
                self._go_on(span, before)
                return
        held = self.held.pop(span.queue, [])
        if self._is_absurd(span):
            if span.is_one_record and len(held) < _MAX_HELD:
                held.append(span)
            else:
                self.odd.append(span)
            self.held[span.queue] = held
            return
        held = self._in_place_of_latest(held, span)
        first = self.alone.pop(span.queue, None)
        if first is not None and self._is_of_another_place(first, span):
            self._take_back(first, None)
        is_new = span.queue not in self.order.next
        after = self.order.next.get(span.queue, (0, -1))[0]
        stop = after + sum(waiting.stop - waiting.start for waiting in held)
        if after <= span.start <= stop and (not is_new or self.order.from_zero):
            self.odd += held
            if held and span.start == stop and not is_new:
                self._note_places(held, span)
        elif len(held) < _MAX_HELD and span.is_one_record and not self._is_confirmed(span):
            self.held[span.queue] = [*held, span]
            return
        else:
            self._settle(held, span)
        if is_new and span.is_one_record and not held:
            self.alone[span.queue] = span
        self._go_on(span, self.order.next.get(span.queue))

    def _go_on(self, span: Span, before: tuple[int, int] | None) -> None:
        """Take offsets that fit; ``before`` is the previous next offset of their queue."""
        self._jump(span)
        if span.is_one_record and (before is None or before[0] == span.start):
            self.latest[span.queue] = span, before
        else:
            self.latest.pop(span.queue, None)

    def _in_place_of_latest(self, held: list[Span], span: Span) -> list[Span]:
        """Replace the latest message by ones that state its offset, if the next message continues only after these.

        Returns those that keep waiting. If the next also continues after the latest, either may be wrong.
        """
        latest, before = self.latest.get(span.queue, (None, None))
        if not held or latest is None or held[0].start != latest.start or self._is_confirmed(latest):
            return held
        if any(waiting.stop != other.start for waiting, other in itertools.pairwise([*held, span])):
            return held
        if span.start == latest.stop:
            self.rivals.append((held[0], latest))
            return held
        self._take_back(latest, before)
        for waiting in held:
            self._jump(waiting)
        return []

    def _take_back(self, latest: Span, before: tuple[int, int] | None) -> None:
        """Treat the latest message of a queue as a misfit."""
        queue = latest.queue
        self.odd.append(latest)
        self.alone.pop(queue, None)
        self.latest.pop(queue, None)
        if before is None:
            del self.order.next[queue], self.order.first[queue]
        else:
            self.order.next[queue] = before

    def _is_absurd(self, span: Span) -> bool:
        """Return whether no message of this log can have these offsets."""
        after = self.order.next.get(span.queue, (span.start, -1))[0]
        return not 0 <= span.start < consume_queue.OFFSET_END or span.start - after > self.order.most

    def _note_places(self, held: list[Span], span: Span) -> None:
        """Note the places of messages with damaged offsets, one each, before the next message of their queue."""
        places = [*_in_line(held, *self.order.next[span.queue], span.physical_offset)]
        self.order.gaps += places
        self.order.next[span.queue] = places[-1].stop, held[-1].physical_offset

    def _settle(self, held: list[Span], span: Span) -> None:
        """Take the waiting messages of a queue whose offsets ascend to those of the next."""
        if not held:
            return
        after = self.order.next.get(span.queue, (0, -1))[0]
        stop = span.start if span.start > after else consume_queue.OFFSET_END
        lengths = [waiting.stop - waiting.start for waiting in held]
        fits = []
        for number, waiting in enumerate(held):
            places = after + sum(lengths[:number]), stop - sum(lengths[number:])
            is_elsewhere = any(self._is_confirmed(waiting._replace(start=place)) for place in places)
            if after <= waiting.start and waiting.stop <= stop and not is_elsewhere and not self._is_absurd(waiting):
                fits.append(waiting)
        chosen = [
            fits[number] for number in rising([waiting.start for waiting in fits], [waiting.stop for waiting in fits])
        ]
        for waiting in chosen:
            self._jump(waiting)
        self.odd += [waiting for waiting in held if waiting not in chosen]

    def _note_jumps(self, spans: list[Span]) -> None:
        """Note the messages that are missing before or between those that are cut off."""
        for span in spans:
            self._settle(self.held.pop(span.queue, []), span)
            first = 0 if self.order.from_zero else span.start
            after = self.ends.get(span.queue) or self.order.next.get(span.queue, (first, -1))[0]
            if 0 <= span.start - after <= self.order.most:  # else the number is damaged
                self.ends[span.queue] = span.stop
                if span.start > after:
                    self.plan.losses.add(span.queue, after, span.start, 0, BEHIND)

    def _is_of_another_place(self, first: Span, after: Span) -> bool:
        """Return whether the next message shows that the first message of a queue claims a wrong place."""
        if first.start >= after.start:
            is_due = first.start == 0 and self.order.from_zero
            return not is_due and not self._is_confirmed(first)
        before = first._replace(start=after.start - (first.stop - first.start))
        return before.start > first.start and self._is_confirmed(before)

    def _is_confirmed(self, span: Span) -> bool:
        """Return whether the unit of a message's place leads to it."""
        batches = self.reader.batch_consume_queues.get(span.queue)
        if batches is not None:
            return batches.offset_at(span.physical_offset) == span.start
        queue = self.reader.consume_queues.get(span.queue)
        return queue is not None and queue.address_at(span.start) == span.physical_offset

    def _jump(self, span: Span) -> int:
        """Accept offsets as they are; return the next of the queue."""
        after, address = self.order.next.get(span.queue, (span.start, -1))
        if span.start < after and span.queue not in self.twice:
            self.twice[span.queue] = span
        self.order.first.setdefault(span.queue, (span.start, span.physical_offset))
        if span.start > after:
            self.order.gaps.append(QueueGap(span.queue, after, span.start, address, span.physical_offset))
        after = max(after, span.stop)
        self.order.next[span.queue] = after, span.last_physical_offset
        return after

    def _enter(self, segment: MappedFile) -> None:
        """Note what is missing between the previous segment and this one."""
        if segment is self.segment:
            return
        size = self.log.file_size
        if self.segment is not None:
            self._end_segment(self.segment)
        while self.at < segment.start_offset:  # also before the first, where that is empty
            self._hole(self.at, self.at, min(self.at + size, segment.start_offset), "the segment is missing", None)
            self.at += size
        self.segment = segment
        self.at = segment.start_offset

    def _end_segment(self, segment: MappedFile) -> None:
        end = segment.start_offset + self.log.file_size
        if segment.size < self.log.file_size:
            start, left = segment.end_offset, segment.end_offset - self.at
            tail = segment.stretch(segment.size - left, segment.size) if left > 0 else np.empty(0, np.uint8)
            if left < layout.BLANK_SIZE or not tail.any():  # too little for a record to be found in it
                start = min(self.at, start)
            self._hole(segment.start_offset, start, end, "the file is too short", None)
        self.at = end

    def _hole(self, segment_offset: int, start: int, end: int, reason: str, known: LostMessage | None) -> Hole:
        last = self.holes[-1] if self.holes else None
        if last is None or last.end != start or last.segment_offset != segment_offset:
            last = Hole(segment_offset, start, end, [], self.like, [], self.like_at)
            self.holes.append(last)
        last.end = end
        last.is_end = end == segment_offset + self.log.file_size
        if reason not in last.reasons:
            last.reasons.append(reason)
        if known:
            last.known.append(known)
        return last

    def edit(self) -> tuple[RecordEditor, HoleContents]:
        """Return the records that are rewritten, and what is lost besides."""
        plan = self.plan
        plan.holes = [hole for hole in self.holes if hole.start < plan.end_offset]
        for hole in self.holes:
            if hole.start >= plan.end_offset:  # what is misplaced there is left over
                for message in hole.known:
                    if not message.misplaced and self._is_of_kept_message(message.queue, message.queue_offset):
                        plan.losses.add_elsewhere(message.topic, 1, message.size, BEHIND)
                    elif not message.misplaced:
                        plan.note_lost([message], BEHIND)
        editor = RecordEditor(self.reader, plan.end_offset, self.like.has_crc)
        waiting = [span.physical_offset for held in (self.odd, *self.held.values()) for span in held]
        led_to = {position for _, position in editor.led_to(waiting, self.order.next)}
        strange = sorted([*waiting, *(span.physical_offset for span in self.alone.values())])
        for queue, held in self.held.items():
            if queue not in self.order.next and len(held) == 1 and not self._is_absurd(held[0]):
                self.alone[queue] = held[0]
                self._jump(held[0])
                continue
            before = 0
            for span, behind in itertools.zip_longest(held, held[1:]):
                is_confirmed = behind is not None and behind.start == span.stop
                is_too_far = not is_confirmed and self._is_too_far(span, strange, before)
                is_behind = span.start < self.order.next.get(queue, (span.start, -1))[0]
                if span.physical_offset in led_to or self._is_absurd(span) or is_too_far or is_behind:
                    self.odd.append(span)
                    before += 1
                else:
                    self._jump(span)
                    before = 0
        known = self.reader.consume_queues.keys() | self.reader.batch_consume_queues.keys()
        self.order.strange = self.alone.keys() - known
        lost = find_lost(self.reader, plan.holes, self.order)
        editor.take_batches(self.repaired)
        editor.repair_flags(self.flags)
        alone = list(self.alone.values())
        open_ends = [*self._fronts(lost.gaps), *self._ends(led_to)]
        lost.gaps = editor.put_right(lost.gaps, plan.holes, self.odd, alone, self.order.next, open_ends, self.rivals)
        plan.odd = frozenset((span.queue[0], span.physical_offset) for span in editor.unfit)
        self._repair_times(editor, lost.rows.start[lost.rows.own])
        editor.repair_delay_levels(_without_level(self.found))
        editor.repair_crcs(self.doubtful)
        return editor, lost

    def finish(self) -> LogPlan:
        """Fill the holes."""
        editor, lost = self.edit()
        plan = self.plan
        plan.bridges, stood, placed, unplaced, without_crc = lay_out(self.reader, lost, plan.holes, self.batch_topics)
        plan.unplaced = list(self._without_late(unplaced))
        self._repair_own(editor, plan.bridges)
        plan.left += [item for item in self.found if editor.still_finds(item)]
        patches = editor.patches()
        plan.patches = [patch for patch in patches if patch.position not in editor.own]
        plan.bridges.corrected = {patch.position: patch.data for patch in patches if patch.position in editor.own}
        plan.remarks += [*editor.remarks(), *self._told_twice()]
        plan.note_bridged(stood, lost.keys.all, lost.light)
        self._keep_own(plan.bridges)
        for start in without_crc:
            plan.remarks.append(
                f"left unchanged (LOG-PROPERTY-CRC): what bridges the gap at {start:,} has no room for a CRC "
                "property; brokers with forceVerifyPropCRC=true end the log there"
            )
        for gap in (*placed, *plan.unplaced):
            plan.losses.add(gap.queue, gap.start, gap.stop, 0, GIVEN_UP)
        self._note_unfit()
        for hole in plan.holes:
            if not hole.lost and not hole.is_end and not hole.own:
                plan.losses.add_elsewhere(None, 0, hole.size, UNKNOWN)
        return plan

    def _note_unfit(self) -> None:
        """Note messages that get no unit, at offsets that no other message of their queue has."""
        for span in self.odd:
            if (span.queue[0], span.physical_offset) not in self.plan.odd:
                continue
            first = self.order.first.get(span.queue, (span.stop, -1))[0]
            after = self.order.next.get(span.queue, (span.stop, -1))[0]
            if self._is_absurd(span):
                self.plan.losses.add_elsewhere(span.queue[0], span.stop - span.start, 0, UNFIT)
            elif span.start < first:
                self.plan.losses.add(span.queue, span.start, min(first, span.stop), 0, UNFIT)
            elif span.stop > after:
                self.plan.losses.add(span.queue, max(after, span.start), span.stop, 0, UNFIT)

    def _fronts(self, gaps: list[QueueGap]) -> Iterator[QueueGap]:
        """Yield the places at the beginning of queues that misfits leave free, as many as there are."""
        if not self.order.from_zero or not self.odd:
            return
        known = {gap.queue for gap in gaps if not gap.start}
        odd: dict[QueueKey, list[Span]] = collections.defaultdict(list)
        addresses: dict[Any, list[int]] = collections.defaultdict(list)
        rivals_by_address = {other.physical_offset: span.physical_offset for span, other in self.rivals}
        for span in sorted([*self.odd, *(other for _, other in self.rivals)], key=_address_of):
            if span.is_one_record:
                for kind in kinds_of(span):
                    addresses[kind].append(span.physical_offset)
                if span.physical_offset not in rivals_by_address:
                    odd[span.queue].append(span)
        for queue, (start, address) in self.order.first.items():
            if not start or queue in known:
                continue
            own = [span for span in odd.get(queue, ()) if span.physical_offset < address]
            gap = QueueGap(queue, 0, start, -1, address)
            if start == sum(span.stop - span.start for span in own):
                yield from _in_line(own, 0, -1, address)
                continue
            fits = {
                candidate for kind in kinds_of(gap) for candidate in addresses.get(kind, [])[:3] if candidate < address
            }
            if len({rivals_by_address.get(candidate, candidate) for candidate in fits}) == 1:
                yield gap

    def _ends(self, led_to: set[int]) -> Iterator[QueueGap]:
        """Yield the places of misfits after the last message of a queue to which no unit leads.

        A record that states the next offset of just one other queue of its topic belongs there; others to their own.
        """
        odd: dict[QueueKey, list[Span]] = collections.defaultdict(list)
        topics = {span.queue[0] for span in self.odd}
        due: dict[tuple[str, int], list[QueueKey]] = collections.defaultdict(list)
        for queue, (start, _) in self.order.next.items():
            if queue[0] in topics:
                due[queue[0], start].append(queue)
        for span in sorted(self.odd, key=_address_of):
            if span.physical_offset in led_to:
                continue
            _, address = self.order.next.get(span.queue, (0, 1 << 62))
            other_queues = [queue for queue in due.get((span.queue[0], span.start), ()) if queue != span.queue]
            if (
                len(other_queues) == 1
                and span.is_one_record
                and self.order.next[other_queues[0]][1] < span.physical_offset
            ):
                yield QueueGap(other_queues[0], span.start, span.stop, self.order.next[other_queues[0]][1], 1 << 62)
            elif address < span.physical_offset and not self._is_torn(address, span):
                odd[span.queue].append(span)
        for queue, spans in odd.items():
            if all(span.is_one_record for span in spans):
                yield from _in_line(spans, *self.order.next[queue], 1 << 62)

    def _is_too_far(self, span: Span, strange: list[int], before: int) -> bool:
        """Return whether a message jumps ahead of its queue though nothing can have been between it and the one before.

        Args:
            span: the message.
            strange: addresses of all that do not fit; those may be of this queue.
            before: how many of them come before it and say so.
        """
        after, address = self.order.next.get(span.queue, (span.start, -1))
        between = bisect.bisect(strange, span.physical_offset - 1) - bisect.bisect(strange, address)
        return span.start > after and between <= before and not self._is_torn(address, span)

    def _is_torn(self, address: int, span: Span) -> bool:
        """Return whether a hole, or a bridge of an earlier repair, is between an address and a message."""
        number = bisect.bisect(self.holes, address, key=lambda hole: hole.start)
        if number < len(self.holes) and self.holes[number].start < span.physical_offset:
            return True
        number = bisect.bisect(self._bridged, address)
        return number < len(self._bridged) and self._bridged[number] < span.physical_offset

    @functools.cached_property
    def _bridged(self) -> list[int]:
        """Addresses of existing placeholders, in order. Cost: one more walk over the log."""
        kernels = scan.kernels_for(self.log.total_size)
        positions: list[int] = []
        for segment in self.log.segments:
            pieces = self.log.walk(segment, 0, segment.size, kernels) if segment.start_offset >= self.start else ()
            for piece in pieces:
                if not isinstance(piece, Gap):
                    sound = piece.where(piece.faults == 0)
                    positions += sound.column("position")[placeholder.placeholders(sound)].tolist()
            segment.release(0, segment.size)
        return positions

    def _repair_own(self, editor: RecordEditor, bridges: Bridges) -> None:
        """Correct what is wrong with records that are in their place besides the address that they state."""
        rows = bridges.rows.where(bridges.rows.own)
        all_places = zip(rows.start.tolist(), rows.size.tolist(), rows.queue_offset.tolist(), strict=True)
        places = {start: (size, offset) for start, size, offset in all_places}
        repaired: dict[int, bytes] = {}
        flags: dict[int, int] = {}
        doubtful: list[int] = []
        findings: list[Finding] = []
        for misplaced in self.misplaced:
            repaired |= {position: data for position, data in misplaced.repaired.items() if position in places}
            flags |= {position: flag for position, flag in misplaced.flags.items() if position in places}
            doubtful += [position for position in misplaced.doubtful if position in places]
            findings += [item for item in misplaced.found if item.physical_offset in places]
        times = {position: time for position, time in self.times_of_own.items() if position in places}
        wrong = {*repaired, *flags, *times, *doubtful, *_without_level(findings)}
        editor.own = {position: places[position] for position in wrong}
        editor.take_batches(repaired)
        editor.repair_flags(flags)
        editor.repair_times(times)
        editor.repair_delay_levels(_without_level(findings))
        editor.repair_crcs(doubtful)
        self.found += findings

    def _repair_times(self, editor: RecordEditor, own: Ints) -> None:
        """Correct store times of messages that cannot be right, and note those that stay.

        Args:
            editor: to correct them with.
            own: addresses of the records in holes that keep their places; their times are noted for later.
        """
        columns = [(misplaced.positions, misplaced.times) for misplaced in self.misplaced]
        positions, store_times = (np.concatenate(column) for column in zip(*columns, strict=True)) if columns else _NO
        stays = np.isin(positions, own)
        times, left = self.times.finish(positions[stays], store_times[stays])
        self.times_of_own = {int(at): times.pop(at) for at in positions[stays].tolist() if at in times}
        editor.repair_times(times)
        self.plan.last_timestamp = times.get(self.plan.last_start, self.plan.last_timestamp)
        for hole in self.holes:
            if hole.after in times:
                hole.like = hole.like._replace(store_timestamp=times[hole.after])
        for position in left:
            segment = self.log.segment_at(position)
            assert segment is not None
            place = {"file": self.reader.paths.relative(segment.path), "offset": position - segment.start_offset}
            self.plan.left.append(finding("LOG-TIME-ORDER", TIME_ORDER, **place, physical_offset=position))

    def _without_late(self, gaps: list[QueueGap]) -> Iterator[QueueGap]:
        """Yield what remains of gaps without messages to which their queues lead: behind later ones, of another log."""
        late: dict[QueueKey, dict[int, tuple[int, int]]] = collections.defaultdict(dict)
        for gap in gaps:
            queue = self.reader.consume_queues.get(gap.queue)
            if queue is not None:
                low, high = max(gap.start, queue.first_offset), min(gap.stop, queue.max_offset())
                addresses = queue.units(low, max(low, high))["physical_offset"].astype(np.int64)
                for row in np.flatnonzero((addresses > gap.before) & (addresses < self.plan.end_offset)).tolist():
                    if self._is_of_kept_message(gap.queue, low + row):
                        late[gap.queue][low + row] = 1, int(addresses[row])
        return without_places(gaps, late)

    def _told_twice(self) -> Iterator[str]:
        """Yield a sentence about messages with queue offsets of others: two logs were mixed."""
        for (topic, queue_id), span in itertools.islice(sorted(self.twice.items()), _MAX_TOLD):
            yield (
                "left unchanged (LOG-QUEUE-ORDER, QUEUE-POSITION, QUEUE-DANGLING, QUEUE-MISSING): messages of "
                f"{topic} {queue_id} from {span.physical_offset:,} on have queue offsets, from {span.start:,} on, "
                "that earlier messages already have or have passed; they get no unit, but keep one that leads to them: "
                "`mqtool salvage` gives them places of their own"
            )
        if len(self.twice) > _MAX_TOLD:
            yield f"the same applies to {len(self.twice) - _MAX_TOLD:,} more queues"

    def _keep_own(self, bridges: Bridges) -> None:
        """Note records that are in their place but state another address."""
        rows = bridges.rows.where(bridges.rows.own)
        for queue, count in zip(
            *(column.tolist() for column in np.unique(rows.queue, return_counts=True)), strict=True
        ):
            self.plan.kept[bridges.keys[queue][0]] += count
        for start in rows.start[:_MAX_TOLD].tolist():
            self.plan.remarks.append(f"the record at {start:,} is intact: its own address is written into it again")
        if len(rows) > _MAX_TOLD:
            self.plan.remarks.append(f"the same applies to {len(rows) - _MAX_TOLD:,} more records")


def _spans_of(queue: QueueKey, units: Units, edges: list[int]) -> Iterator[Span]:
    """Yield the spans of consecutive units of one queue, from each edge to the next."""
    for first, last in itertools.pairwise(edges):
        start, stop = int(units.queue_offset[first]), units.after(last - 1)
        yield Span(queue, start, stop, int(units.physical_offset[first]), int(units.physical_offset[last - 1]))


def _without_level(findings: Iterable[Finding]) -> Iterator[int]:
    """Yield the addresses of delayed messages whose delay level is not a number."""
    for item in findings:
        if item.code == "LOG-PROPERTIES" and item.topic == SCHEDULE_TOPIC and item.physical_offset is not None:
            yield item.physical_offset


def _address_of(span: Span) -> int:
    return span.physical_offset


def _in_line(spans: list[Span], start: int, address: int, before: int) -> Iterator[QueueGap]:
    """Yield the place of each of some messages that follow each other in a queue, between two addresses."""
    for span, end in zip(spans, [*(later.physical_offset for later in spans[1:]), before], strict=True):
        yield QueueGap(span.queue, start, start + span.stop - span.start, address, end)
        start, address = start + span.stop - span.start, span.physical_offset
