"""What is lost in a commit log, and the well-formed records that bridge it.

``survey`` walks over all records and keeps what is not sound: holes, each with the heads that can still be read in it.
``plan_log`` finds the end of the log and lays placeholders into the holes before it, so that a broker walks over them
and every message that checks out keeps its place in its queue. (Rules: store.md 3, 4.2, 7.)
"""

import collections
import dataclasses
import functools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mqtool.engine.repair.losses import Losses
from mqtool.engine.repair.parts import (
    Part,
    PartReport,
    Progress,
    Span,
    in_order,
    part_size,
    parts_of,
    spans_of,
    walk_part,
)
from mqtool.engine.repair.verify_log import Run
from mqtool.engine.store.commit_log import Gap
from mqtool.engine.store.dispatch import CRC_PROPERTY, IndexEntries, QueueKey, Units, dispatch, property_crcs
from mqtool.engine.store.express import Express, express
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import BadDataError
from mqtool.formats import commit_log as layout
from mqtool.formats import consume_queue, placeholder, scan
from mqtool.formats import kernels as plain
from mqtool.formats.message import message_at, message_of
from mqtool.formats.placeholder import Likeness
from mqtool.formats.scan import MessageTable
from mqtool.formats.topics import LIGHT_QUEUE_PREFIX

Bools = npt.NDArray[np.bool_]
_PART = 64 << 20  # what is done once for each queue of a part weighs less the larger it is
_UNITS_AT_ONCE = 1 << 18
GIVEN_UP = "its messages fail their checks or are gone"
BEHIND = "they lie behind the end of the log"
IN_LIGHT_QUEUE = "messages told above, which this light queue has too"
_WITHOUT_UNIT = (layout.TRANSACTION_PREPARED, layout.TRANSACTION_ROLLBACK)


class Known(NamedTuple):
    """A lost message of which something is known: from its head, or from a unit."""

    position: int  # address
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    transaction: int = 0
    batch_size: int = 1
    light: tuple[tuple[str, int], ...] = ()  # further queues, light ones, and the offsets there


class Bad(NamedTuple):
    """A record whose checks fail."""

    start: int  # position in the segment
    end: int
    reason: str
    known: Known | None
    misplaced: bool  # all that is wrong is where it says that it lies


@dataclasses.dataclass
class Piece:
    """Records that follow each other, of one table."""

    segment: MappedFile
    start: int
    end: int
    bad: list[Bad]
    spans: list[Span]
    topics: dict[str, int]  # sound messages
    last_start: int  # of the last sound record, -1 without one
    like: Likeness
    doubtful: int  # sound messages whose CRC property does not match: their bodies do
    run: Run | None  # the sound records, where there are some
    units: Units | None  # theirs


@dataclasses.dataclass
class Hole:
    """A stretch of one segment, or of where one is missing, without a sound record."""

    segment_offset: int
    start: int  # addresses
    end: int
    reasons: list[str]
    known: list[Known]
    misplaced: int  # how many records are merely misplaced
    like: Likeness  # of the last sound record before it
    is_end: bool = False  # it reaches to the end of its segment

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start


class Patch(NamedTuple):
    """Bytes to write into the log."""

    segment_offset: int
    position: int  # address
    data: bytes


@dataclasses.dataclass
class LogPlan:
    """What is to be done to the log."""

    end_offset: int  # of the last record
    last_start: int  # address of the last sound record, -1 without one
    last_timestamp: int  # when it was stored
    holes: list[Hole]  # before the end
    patches: list[Patch] = dataclasses.field(default_factory=list)
    losses: Losses = dataclasses.field(default_factory=Losses)
    """Messages in holes, and those behind the end, which are given up too."""
    is_cut: bool = False
    """Sound messages are among those behind the end."""
    kept: "collections.Counter[str]" = dataclasses.field(default_factory=collections.Counter)
    remarks: list[str] = dataclasses.field(default_factory=list)
    unplaced: list[tuple[QueueKey, int]] = dataclasses.field(default_factory=list)

    def note_lost(self, messages: Iterable[Known], reason: str) -> None:
        """Tell of messages that are given up."""
        for known in messages:
            if known.transaction in _WITHOUT_UNIT:
                self.losses.add_elsewhere(known.topic, 1, known.size, reason)
                continue
            start = known.queue_offset
            self.losses.add((known.topic, known.queue_id), start, start + known.batch_size, known.size, reason)
            for name, offset in known.light:
                queue_id = 0 if name.startswith(LIGHT_QUEUE_PREFIX) else known.queue_id
                self.losses.add((name, queue_id), offset, offset + 1, 0, IN_LIGHT_QUEUE)

    def note_cut_off(self, units: Units, topics: dict[str, int]) -> None:
        """Tell of sound messages that are given up: their units, and how many there are of each topic."""
        left = collections.Counter(topics)
        for queue, first, last in units.stretches:
            start, stop = int(units.queue_offset[first]), int(units.next_offset[last - 1])
            self.losses.add(queue, start, stop, int(units.size[first:last].sum()), BEHIND)
            left[queue[0]] -= last - first
        for topic, count in left.items():
            if count > 0:
                self.losses.add_elsewhere(topic, count, 0, BEHIND)


@dataclasses.dataclass(frozen=True)
class Rules:
    """What a survey needs to know about the store."""

    reader: StoreReader
    kernels: Any
    delay_levels: list[int]
    property_crc: bool  # a broker of this store checks the CRC property (forceVerifyPropCRC)
    tags_in_index: bool


def survey(
    reader: StoreReader, start_offset: int, jobs: int, progress: Progress, tags_in_index: bool = False
) -> Iterator[Piece | Gap]:
    """Yield what the log holds from an address on, in order; records and gaps of each segment.

    Args:
        reader: of the store.
        start_offset: first byte of a segment.
        jobs: threads.
        progress: is told how many bytes are done.
        tags_in_index: also derive the entries by tag.
    """
    log = reader.commit_log
    parts = [part for part in parts_of(log, part_size(_PART, jobs)) if part.segment.start_offset >= start_offset]
    total = sum(part.stop - part.start for part in parts)
    forced = reader.config.flag("forceVerifyPropCRC")
    rules = Rules(reader, scan.kernels_for(total), reader.delay_levels, forced, tags_in_index)
    done = 0
    with ThreadPoolExecutor(jobs) as pool:
        for report in in_order(pool, functools.partial(_check_part, rules), parts, jobs + 2):
            yield from report.runs
            done += report.part.stop - report.part.start
            progress(done)


def _check_part(rules: Rules, part: Part, start: int | None) -> PartReport[Piece]:
    log = rules.reader.commit_log

    def quick(start: int) -> Iterator[Piece]:
        found = express(log, part.segment, start, part.stop, rules.kernels, True, rules.tags_in_index)
        return (_express_piece(rules, part.segment, one) for one in found)

    return walk_part(log, rules.kernels, part, start, lambda table: _judge(rules, part.segment, table), quick)


def _express_piece(rules: Rules, segment: MappedFile, found: Express) -> Piece:
    buffer = rules.reader.commit_log.buffer(segment, rules.kernels)
    last = scan.gather(buffer, segment.start_offset, np.array([found.last_start]), rules.kernels)
    return Piece(
        segment=segment,
        start=found.start,
        end=found.end,
        bad=[],
        spans=spans_of(found.units),
        topics=found.topics,
        last_start=found.last_start,
        like=Likeness.of(last, 0, has_crc=False),
        doubtful=0,
        run=Run(
            segment=segment,
            start=found.start,
            end=found.end,
            in_place=True,
            stated_offset=segment.start_offset + found.start,
            count=found.count,
            first_timestamp=found.first_timestamp,
            last_timestamp=found.last_timestamp,
            findings=[],
            spans=[],
            entries=found.entries,
        ),
        units=found.units,
    )


def _judge(rules: Rules, segment: MappedFile, table: MessageTable) -> list[Piece]:
    """Tell sound records from others; what lies before the first that is not sound is a piece by itself."""
    faulty = table.faults != 0
    misplaced = ~faulty & (table.column("position") != table.column("physical_offset"))
    with_body = ~faulty & (table.sizes(plain.BODY) > 0)
    broken = with_body & (table.body_crcs() != table.column("body_crc"))
    if rules.property_crc:
        broken |= _property_crc_fails(table, ~faulty)
    bad = faulty | misplaced | broken
    first = int(bad.argmax()) if bad.any() else len(table)
    pieces = []
    for rows in (slice(first), slice(first, None)):
        part = table.where(rows)
        if len(part):
            pieces.append(_piece(rules, segment, part, faulty[rows], misplaced[rows], broken[rows]))
    return pieces


def _property_crc_fails(table: MessageTable, whole: Bools) -> Bools:
    """Tell which records do not match the CRC property that they end in."""
    fails = np.zeros(len(table), np.bool_)
    places = np.flatnonzero(whole)
    sound = table.where(places)
    rows, said, should = property_crcs(sound, dispatch(sound, []).properties)
    fails[places[rows[said != should]]] = True
    return fails


def _piece(
    rules: Rules, segment: MappedFile, table: MessageTable, faulty: Bools, misplaced: Bools, broken: Bools
) -> Piece:
    bad = faulty | misplaced | broken
    sound = table if not bad.any() else table.where(~bad)
    derived = dispatch(sound, rules.delay_levels, rules.tags_in_index) if len(sound) else None
    has_crc, doubtful = False, 0
    if derived is not None:
        has_crc = bool(derived.properties.at(CRC_PROPERTY)[1][-1] > 0)
        _, said, should = property_crcs(sound, derived.properties)
        doubtful = int(np.count_nonzero(said != should))
    starts, sizes = table.starts, table.column("size")
    listed = []
    for row in np.flatnonzero(bad).tolist():
        start, end = int(starts[row]), int(starts[row]) + int(sizes[row])
        known = None if faulty[row] else _known(table, row)
        reason = (
            "its sizes do not add up"
            if faulty[row]
            else "it does not match its CRC"
            if broken[row]
            else "it belongs elsewhere"
        )
        listed.append(Bad(start, end, reason, known, bool(misplaced[row] and not broken[row])))
    counts: dict[str, int] = {}
    if len(sound):
        ids, names = sound.topics()
        for name, count in zip(names, np.bincount(ids, minlength=len(names)).tolist(), strict=True):
            counts[name.decode("utf-8", "replace")] = count
    return Piece(
        segment=segment,
        start=int(starts[0]),
        end=int(starts[-1]) + int(sizes[-1]),
        bad=listed,
        spans=spans_of(derived.units) if derived else [],
        topics=counts,
        last_start=int(sound.starts[-1]) if len(sound) else -1,
        like=Likeness.of(sound, len(sound) - 1, has_crc) if len(sound) else placeholder.PLAIN,
        doubtful=doubtful,
        run=run_of(segment, sound, derived.entries) if derived else None,
        units=derived.units if derived else None,
    )


def run_of(segment: MappedFile, table: MessageTable, entries: IndexEntries) -> Run:
    """Return sound messages as those who judge an index take them."""
    times = table.column("store_timestamp")
    return Run(
        segment=segment,
        start=int(table.starts[0]),
        end=int(table.starts[-1]) + int(table.column("size")[-1]),
        in_place=True,
        stated_offset=int(table.column("position")[0]),
        count=len(table),
        first_timestamp=int(times[0]),
        last_timestamp=int(times[-1]),
        findings=[],
        spans=[],
        entries=entries,
    )


def _known(table: MessageTable, row: int) -> Known:
    message = message_at(table, row)
    inner = message.properties.get("INNER_NUM", "")
    base = message.properties.get("INNER_BASE", "")
    batch = inner.isdecimal() and base.isdecimal()
    return Known(
        message.position,
        message.size,
        message.topic,
        message.queue_id,
        int(base) if batch else message.queue_offset,
        message.sys_flag & layout.TRANSACTION_MASK,
        int(inner) if batch else 1,
        tuple(_light_queues(message.properties)),
    )


def _light_queues(properties: dict[str, str]) -> Iterator[tuple[str, int]]:
    names = properties.get("INNER_MULTI_DISPATCH", "").split(",")
    offsets = properties.get("INNER_MULTI_QUEUE_OFFSET", "").split(",")
    for name, offset in zip(names, offsets, strict=False):
        if name and offset.isdecimal():
            yield name, int(offset)


# The plan.


@dataclasses.dataclass
class _Missing:
    """Queue offsets that no sound record has, between two that do."""

    queue: QueueKey
    start: int
    stop: int
    after: int  # addresses of the neighbours
    before: int


def plan_log(reader: StoreReader, pieces: Iterable[Piece | Gap], start_offset: int, cut: bool) -> LogPlan:
    """Find the end of the log and bridge the holes before it.

    Args:
        reader: of the store.
        pieces: by ``survey``.
        start_offset: first byte of the segment to begin with.
        cut: end the log at the first hole.
    """
    builder = _Builder(reader, start_offset, cut)
    for piece in pieces:
        builder.take(piece)
    return builder.finish()


class _Builder:
    """Takes what a survey yields and makes the plan of it."""

    def __init__(self, reader: StoreReader, start_offset: int, cut: bool) -> None:
        self.reader = reader
        self.log = reader.commit_log
        self.cut = cut
        self.plan = LogPlan(start_offset, -1, 0, [])
        self.holes: list[Hole] = []
        self.missing: list[_Missing] = []
        self.next: dict[QueueKey, tuple[int, int]] = {}  # queue offset, address of the last message
        self.first: dict[QueueKey, tuple[int, int]] = {}  # those of the first message
        self.held: dict[QueueKey, Span] = {}
        self.doubtful = 0
        self.most = self.log.total_size // layout.MIN_SIZE  # messages that the log can hold
        self.alone: dict[QueueKey, Span] = {}  # the only message of their queue
        self.odd: list[Span] = []  # messages whose queue or offset cannot be right
        self.at = start_offset  # one past what has been taken
        self.like = placeholder.PLAIN
        self.segment: MappedFile | None = None

    def take(self, piece: Piece | Gap) -> None:
        """Take records or a gap; they come in the order of the log."""
        self._enter(piece.segment)
        base = piece.segment.start_offset
        if isinstance(piece, Gap):
            self._hole(base, piece.start_offset, base + piece.end, "no record is there", None)
            self.at = base + piece.end
            return
        for bad in piece.bad:
            hole = self._hole(base, base + bad.start, base + bad.end, bad.reason, bad.known)
            hole.misplaced += bad.misplaced
        self.at = base + piece.end
        if piece.last_start < 0:
            return
        self.like = piece.like
        for hole in self.holes:
            if hole.like is placeholder.PLAIN:
                hole.like = piece.like
        if self.cut and self.holes and self.holes[0].start < base + piece.last_start:
            if piece.units is not None:
                self.plan.note_cut_off(piece.units, piece.topics)
            self.plan.is_cut = True
            return
        self.plan.kept.update(piece.topics)
        self.doubtful += piece.doubtful
        self.plan.last_start = base + piece.last_start
        self.plan.last_timestamp = piece.like.store_timestamp
        size = plain.int32(self.log.read(self.plan.last_start, 4), 0)
        self.plan.end_offset = self.plan.last_start + size
        for span in piece.spans:
            self._follow(span)

    def _follow(self, span: Span) -> None:
        """Take the next offsets of a queue; a message alone that does not fit waits for the next to show why."""
        if span.queue not in self.next and span.stop - span.start == 1:
            self.alone[span.queue] = span
        else:
            self.alone.pop(span.queue, None)
        held = self.held.pop(span.queue, None)
        after = self.next.get(span.queue, (span.start, -1))[0]
        if span.start < 0 or span.start - after > self.most:
            self.odd.append(span)
            return
        if held is not None:
            if span.start in (after, after + 1):
                self.odd.append(held)
            else:
                after = self._jump(held)
        if span.start != after and span.stop - span.start == 1 and held is None:
            self.held[span.queue] = span
        else:
            self._jump(span)

    def _jump(self, span: Span) -> int:
        """Take offsets as they are; returns the next of the queue."""
        after, address = self.next.get(span.queue, (span.start, -1))
        self.first.setdefault(span.queue, (span.start, span.physical_offset))
        if span.start > after:
            self.missing.append(_Missing(span.queue, after, span.start, address, span.physical_offset))
        after = max(after, span.stop)
        self.next[span.queue] = after, span.physical_offset
        return after

    def _enter(self, segment: MappedFile) -> None:
        """Note what is missing between the segment before and this one."""
        if segment is self.segment:
            return
        size = self.log.file_size
        if self.segment is not None:
            self._end_segment(self.segment)
        while self.segment is not None and self.at < segment.start_offset:
            self._hole(self.at, self.at, min(self.at + size, segment.start_offset), "the segment is missing", None)
            self.at += size
        self.segment = segment
        self.at = segment.start_offset

    def _end_segment(self, segment: MappedFile) -> None:
        end = segment.start_offset + self.log.file_size
        if segment.size < self.log.file_size:
            self._hole(segment.start_offset, segment.end_offset, end, "the file is too short", None)
        self.at = end

    def _hole(self, segment_offset: int, start: int, end: int, reason: str, known: Known | None) -> Hole:
        last = self.holes[-1] if self.holes else None
        if last is None or last.end != start or last.segment_offset != segment_offset:
            last = Hole(segment_offset, start, end, [], [], 0, self.like)
            self.holes.append(last)
        last.end = end
        last.is_end = end == segment_offset + self.log.file_size
        if reason not in last.reasons:
            last.reasons.append(reason)
        if known:
            last.known.append(known)
        return last

    def finish(self) -> LogPlan:
        """Fill the holes."""
        plan = self.plan
        plan.holes = [hole for hole in self.holes if hole.start < plan.end_offset]
        for hole in self.holes:
            if hole.start >= plan.end_offset and not hole.misplaced:  # what is misplaced there is left over
                plan.note_lost(hole.known, BEHIND)
        for span in self.held.values():
            self._jump(span)
        self._add_units()
        self._assign_missing()
        for hole in plan.holes:
            self._fill(hole)
        self._put_right()
        if self.doubtful:
            text = "records do not match their CRC property, but their bodies are whole: they stay as they are"
            plan.remarks.append(f"{self.doubtful:,} {text} (forceVerifyPropCRC gives them up)")
        plan.holes.sort(key=lambda hole: hole.start)
        return plan

    def _put_right(self) -> None:
        """Give messages whose topic, queue or offset cannot be right those of the one message that is missing there."""
        for span in [*self.odd, *self.alone.values()]:
            fits = [
                one
                for one in self.missing
                if one.stop - one.start == 1 and one.after < span.physical_offset < one.before and _could_be(span, one)
            ]
            if len(fits) == 1 and span.physical_offset < self.plan.end_offset:
                self._rewrite(span.physical_offset, *fits[0].queue, fits[0].start)
            elif span in self.odd:
                text = "has a queue offset that its queue has elsewhere: it gets no unit where the place is taken"
                self.plan.remarks.append(f"the message at {span.physical_offset:,} {text}")

    def _rewrite(self, position: int, topic: str, queue_id: int, queue_offset: int) -> None:
        """Plan to write topic, queue and offset into a record that is whole but for these."""
        record = bytearray(self.reader.record_at(position))
        table = scan.gather(memoryview(bytes(record)), position, np.zeros(1, np.int64))
        fields = layout.HEAD_DTYPES[0].fields
        assert fields is not None
        for at, data in (
            (int(fields["queue_id"][1]), queue_id.to_bytes(4, "big")),
            (int(fields["queue_offset"][1]), queue_offset.to_bytes(8, "big")),
            (int(table.offsets(plain.TOPIC)[0]), topic.encode()),
        ):
            record[at : at + len(data)] = data
        segment = self.log.segment_at(position)
        assert segment is not None
        base, end = segment.start_offset, position + len(record)
        reason = "its topic, queue and offset cannot be right"
        self.plan.holes.append(Hole(base, position, end, [reason], [], 1, placeholder.PLAIN))
        self.plan.patches.append(Patch(base, position, bytes(record)))
        self.plan.remarks.append(
            f"the message at {position:,} is whole: it becomes {topic} {queue_id} {queue_offset} again"
        )

    def _add_units(self) -> None:
        """Add what queue units tell of the messages that lay in holes."""
        if not self.plan.holes:
            return
        starts = np.array([hole.start for hole in self.plan.holes])
        ends = np.array([hole.end for hole in self.plan.holes])
        for (topic, queue_id), queue in self.reader.consume_queues.items():
            first, last = queue.first_offset, queue.max_offset()
            for low in range(first, last, _UNITS_AT_ONCE):
                units = queue.units(low, min(low + _UNITS_AT_ONCE, last))
                positions = units["physical_offset"].astype(np.int64)
                sizes = units["size"].astype(np.int64)
                which = np.searchsorted(starts, positions, "right") - 1
                inside = (which >= 0) & (sizes > 0) & (sizes < consume_queue.PRE_BLANK_SIZE)
                inside &= positions + sizes <= ends[np.maximum(which, 0)]
                for row in np.flatnonzero(inside).tolist():
                    known = Known(int(positions[row]), int(sizes[row]), topic, queue_id, low + row)
                    self._add(self.plan.holes[int(which[row])], known)

        for (topic, queue_id), batch_queue in self.reader.batch_consume_queues.items():
            for low in range(0, batch_queue.unit_count, _UNITS_AT_ONCE):
                for unit in batch_queue.units(low, min(low + _UNITS_AT_ONCE, batch_queue.unit_count)):
                    position, size = int(unit["physical_offset"]), int(unit["size"])
                    number = int(np.searchsorted(starts, position, "right")) - 1
                    if number >= 0 and position + size <= ends[number]:
                        offset, count = int(unit["queue_offset"]), max(1, int(unit["batch_size"]))
                        known = Known(position, size, topic, queue_id, offset, batch_size=count)
                        self._add(self.plan.holes[number], known)

    def _add(self, hole: Hole, unit: Known) -> None:
        """Add a unit to what the heads in a hole tell; where they contradict each other the unit wins."""
        for head in hole.known:
            if (head.position, head.size) != (unit.position, unit.size):
                continue
            one, other = (unit, head) if _is_light(head) else (head, unit)
            if _is_light(other):
                light = dict(other.light) | dict(one.light) | {other.topic: other.queue_offset}
                hole.known[hole.known.index(head)] = one._replace(light=tuple(light.items()))
                return
            if (head.topic, head.queue_id) == (unit.topic, unit.queue_id):
                return
            hole.known.remove(head)
            break
        end = unit.position + unit.size
        if all(one.position + one.size <= unit.position or one.position >= end for one in hole.known):
            hole.known.append(unit)

    def _assign_missing(self) -> None:
        """Give each queue offset that is missing a hole, where neither a head nor a unit tells one."""
        for hole in self.plan.holes:
            hole.known = sorted(known for known in hole.known if self._is_free(known))
        for missing in self.missing:
            topic, queue_id = missing.queue
            left = set(range(missing.start, missing.stop)) if missing.stop - missing.start <= 1 << 20 else set()
            between = [hole for hole in self.plan.holes if missing.after < hole.start < missing.before]
            for hole in between:
                for known in hole.known:
                    if (known.topic, known.queue_id) == missing.queue:
                        left.difference_update(range(known.queue_offset, known.queue_offset + known.batch_size))
                    left.difference_update(offset for name, offset in known.light if (name, 0) == missing.queue)
            if (topic, queue_id) in self.reader.batch_consume_queues:
                continue  # its units name their offsets themselves
            for offset in sorted(left):
                if between:
                    hole = max(between, key=lambda one: _room(one))
                    hole.known.append(Known(-1, 0, topic, queue_id, offset))

    def _is_free(self, known: Known) -> bool:
        """Tell whether no sound message has the queue offset of a lost one: a copy of another message is none."""
        if known.transaction in _WITHOUT_UNIT:
            return True
        queue = known.topic, known.queue_id
        after = self.next.get(queue, (0, -1))[0]
        first, address = self.first.get(queue, (0, -1))
        if known.queue_offset < first and known.position < address:
            return True
        return known.queue_offset >= after or any(
            one.queue == queue
            and one.start <= known.queue_offset < one.stop
            and one.after < known.position < one.before
            for one in self.missing
        )

    def _fill(self, hole: Hole) -> None:
        """Lay placeholders, fillers or a blank record into a hole."""
        plan = self.plan
        if hole.misplaced == 1 and len(hole.known) == 1 and self._is_itself(hole):
            record = bytearray(self.log.read(hole.start, hole.size))
            at = int(layout.HEAD_DTYPES[0].fields["physical_offset"][1])  # type: ignore[index]
            record[at : at + 8] = hole.start.to_bytes(8, "big")
            plan.patches.append(Patch(hole.segment_offset, hole.start, bytes(record)))
            plan.kept[hole.known[0].topic] += 1
            plan.remarks.append(f"the record at {hole.start:,} is whole: its own address is written into it again")
            return
        why = f"{hole.size} bytes at {hole.start}: {', '.join(hole.reasons)}"
        at = hole.start
        placed = [known for known in hole.known if known.position >= 0]
        loose = [known for known in hole.known if known.position < 0]
        records: list[tuple[int, int, Known | None]] = []
        for known in [*placed, None]:
            free = (known.position if known else hole.end) - at
            is_end = known is None and hole.is_end
            at, loose = self._fill_free(records, at, free, loose, hole, is_end)
            if known:
                start = at
                if start + known.size > known.position + known.size:
                    continue
                records.append((start, known.position + known.size - start, known))
                at = known.position + known.size
        if at < hole.end:
            raise BadDataError(
                f"the {hole.size:,} bytes at {hole.start:,} cannot be bridged, no record is so small: "
                "`recover --cut` ends the log there"
            )
        for left in loose:
            plan.unplaced.append(((left.topic, left.queue_id), left.queue_offset))
        for start, size, known in records:
            plan.patches.append(Patch(hole.segment_offset, start, _record(start, size, known, why, hole.like)))
        plan.note_lost(hole.known, GIVEN_UP)

    def _is_itself(self, hole: Hole) -> bool:
        """Tell whether the one misplaced record in a hole is the message that was lost there, no copy of another."""
        (known,) = hole.known
        if known.size != hole.size:
            return False
        message = message_of(self.reader.record_at(hole.start), hole.start)
        return (message.topic, message.queue_id, message.queue_offset) == known[2:5]

    def _fill_free(
        self,
        records: list[tuple[int, int, Known | None]],
        at: int,
        free: int,
        loose: list[Known],
        hole: Hole,
        is_end: bool,
    ) -> tuple[int, list[Known]]:
        """Use a stretch without a known message; returns where the next record must begin."""
        least = placeholder.filler_size(hole.like)
        rest = list(loose)
        while rest:
            size = placeholder.min_size(rest[0].topic.encode(), hole.like)
            if free - size < (layout.BLANK_SIZE if is_end else 0):
                break
            records.append((at, size, rest.pop(0)))
            at, free = at + size, free - size
        if is_end:
            if free:
                self.plan.patches.append(Patch(hole.segment_offset, at, placeholder.blank(free)))
            return at + free, rest
        while free >= 2 * placeholder.MOST:
            records.append((at, placeholder.MOST, None))
            at, free = at + placeholder.MOST, free - placeholder.MOST
        if free >= least:
            records.append((at, free, None))
            at, free = at + free, 0
        elif free and records:
            start, size, known = records.pop()
            records.append((start, size + free, known))
            at, free = at + free, 0
        return at, rest  # what is left is too small for a record: the next one begins earlier


def _could_be(span: Span, missing: _Missing) -> bool:
    """Tell whether a message could be the one that is missing: one of its topic, its queue and offset is wrong."""
    (topic, queue_id), (other, other_id) = span.queue, missing.queue
    if topic == other:
        return True
    return (queue_id, span.start) == (other_id, missing.start) and _length(topic) == _length(other)


def _length(topic: str) -> int:
    return len(topic) if "\ufffd" in topic else len(topic.encode())


def _is_light(known: Known) -> bool:
    return known.topic.startswith(LIGHT_QUEUE_PREFIX)


def _room(hole: Hole) -> int:
    return hole.size - sum(known.size or 1000 for known in hole.known)


def _record(position: int, size: int, known: Known | None, why: str, like: Likeness) -> bytes:
    if known is None:
        return placeholder.filler(size, position, why, like)
    offset = 0 if known.transaction in _WITHOUT_UNIT else known.queue_offset
    properties = placeholder.needed(known.topic, known.queue_id, known.queue_offset, known.batch_size, known.light)
    return placeholder.build(
        size,
        position,
        known.topic.encode(),
        known.queue_id,
        offset,
        why,
        like,
        known.transaction,
        properties,
        known.batch_size,
    )
