"""Comparison of two stores.

``compare_logs`` compares the records at equal addresses, for copies of one log: a master and its
slave, yesterday's backup. It reports damage and gaps in either, where they diverge, and which is the better base for
a repair. ``compare_files`` does the same with queues and tables. (By identity: ``compare_keys``.)

Cost: linear in the bytes of both stores.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mqtool.engine.repair.compare.aligned import SIDES, Bools, Slice, Step, aligned, doubts
from mqtool.engine.repair.parts import Progress
from mqtool.engine.store import rocksdb
from mqtool.engine.store.consume_queue import BatchConsumeQueue, ConsumeQueue, are_fillers
from mqtool.engine.store.dispatch import QueueKey
from mqtool.engine.store.holes import holes_of
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import BadDataError, MqtoolError
from mqtool.formats.identity import record_identities
from mqtool.formats.scan import Ints, MessageTable

SAME, DIFFERS, OTHER = "same", "differs", "other message"
DAMAGED, NO_FILE, EXPIRED, BEHIND, IN_BOTH = "damaged", "no file", "before its log", "behind its end", "damaged in both"
_COMMON = (SAME, DIFFERS, OTHER)
_ABSENT = (DAMAGED, NO_FILE, EXPIRED)
_CODES = (*_COMMON, *((side, reason) for side in (0, 1) for reason in _ABSENT))
Intervals = collections.deque[tuple[int, int]]
_PLACE = ("queue_id", "queue_offset", "size")
_UNITS_AT_ONCE = 1 << 16
_OF_ONE_BROKER = "mqtool"
"""Prefix of the tables in which an mqtool broker keeps its role, which its slaves do not copy."""
_LISTED_KEYS = 10


@dataclasses.dataclass
class Range:
    """Addresses at which two logs differ in one way.

    ``side`` is which of the two lacks the records or has them damaged; "both" where each has another, or none.
    """

    difference: str
    side: str
    physical_offset: int
    size: int  # from the first byte to one past the last
    message_count: int
    topic: str | None = None  # of the first message
    queue_id: int | None = None
    queue_offset: int | None = None

    @property
    def end_offset(self) -> int:
        """One past its last address."""
        return self.physical_offset + self.size


@dataclasses.dataclass
class QueueCount:
    """Messages of one queue that only one of two logs has, or that differ."""

    only_left: int = 0
    only_right: int = 0
    differ: int = 0
    first_offset: int = 1 << 63
    last_offset: int = -1


@dataclasses.dataclass
class LogSide:
    """What was seen in one of two logs."""

    message_count: int = 0
    only: int = 0  # messages that the other lacks
    unreadable_count: int = 0  # ranges of addresses before its last message
    unreadable_size: int = 0
    end_offset: int = 0
    last_timestamp: int = 0
    since_common: int = 0  # messages after the last that both have


@dataclasses.dataclass
class Logs:
    """The result of a comparison of two logs."""

    sides: tuple[LogSide, LogSide] = dataclasses.field(default_factory=lambda: (LogSide(), LogSide()))
    common: int = 0  # records that are the same byte for byte
    differ: int = 0
    ranges: int = 0
    first_difference: int | None = None
    queues: dict[QueueKey, QueueCount] = dataclasses.field(default_factory=dict)
    parted_at: int | None = None
    """One past the last common record, where both have other messages after it."""
    contradictions: int = 0
    """Other messages at one address, with common ones after them."""
    overlap_at: int | None = None
    """A record with common ones after it that begins within another of the other log."""

    @property
    def is_equal(self) -> bool:
        """Whether both logs hold the same messages."""
        return not self.ranges or (not self.differ and not any(side.only for side in self.sides))


def compare_logs(
    left: StoreReader,
    right: StoreReader,
    logs: Logs,
    jobs: int = 1,
    progress: Progress = lambda _: None,
) -> Iterator[Range]:
    """Yield the ranges of addresses at which two logs differ, in order.

    Args:
        left: one store; it may be damaged, or in use.
        right: the other.
        logs: collects the totals.
        jobs: threads for each.
        progress: called with the number of bytes of both logs done so far.

    Raises:
        BadDataError: only one of them is a DLedger log, so their addresses mean different things.
    """
    check_same_kind(left, right)
    walk = _LogComparison(left, right, logs)
    for step in aligned(left, right, jobs, progress):
        yield from walk.take(step)
    yield from walk.finish()


def check_same_kind(left: StoreReader, right: StoreReader) -> None:
    """Make sure that addresses mean the same in both logs.

    Raises:
        BadDataError: only one of them is a DLedger log.
    """
    if left.commit_log.envelope.size != right.commit_log.envelope.size:
        raise BadDataError(
            "only one of the two is a DLedger log, so their addresses do not correspond: compare them --by key"
        )


class _LogComparison:
    """Compares two logs step by step, in order."""

    def __init__(self, left: StoreReader, right: StoreReader, logs: Logs) -> None:
        self.logs = logs
        self.readers = left, right
        self.files = [
            (
                np.array([segment.start_offset for segment in reader.commit_log.segments], np.int64),
                np.array([segment.end_offset for segment in reader.commit_log.segments], np.int64),
            )
            for reader in self.readers
        ]
        # What only a later record settles:
        self._open: list[Range] = []
        self._holes: list[Intervals] = [
            collections.deque(hole[:2] for hole in holes_of(reader.commit_log)) for reader in self.readers
        ]
        self._unreadable: list[Intervals] = [collections.deque(), collections.deque()]
        self._settled: list[Intervals] = [collections.deque(), collections.deque()]
        self._covered = 0  # up to where records have been seen
        self._common_end = 0
        self._others: list[tuple[int, int]] = []  # since the last common record: address, whether it overlaps

    def take(self, step: Step) -> Iterator[Range]:
        """Take a step and yield the ranges that are final."""
        self._note_unreadable(step)
        rows = [np.flatnonzero(part.sound) for part in (step.left, step.right)]
        starts = [part.positions[chosen] for part, chosen in zip((step.left, step.right), rows, strict=True)]
        for side, part, chosen in zip(self.logs.sides, (step.left, step.right), rows, strict=True):
            _note(side, part, chosen)
        both, in_left, in_right = np.intersect1d(starts[0], starts[1], assume_unique=True, return_indices=True)
        pair = rows[0][in_left], rows[1][in_right]
        sizes = step.left.sizes[pair[0]], step.right.sizes[pair[1]]
        differ = (sizes[0] != sizes[1]) | (step.left.crcs[pair[0]] != step.right.crcs[pair[1]])
        codes = np.full(len(both), _CODES.index(SAME), np.int64)
        columns = np.stack(pair)
        if differ.any():
            self._compare_pairs(step, codes, columns, differ)
        events = [_Events(both, np.maximum(*sizes), codes, columns, sizes[0] != sizes[1])]
        for number, part in enumerate((step.left, step.right)):
            alone = np.setdiff1d(np.arange(len(rows[number])), (in_left, in_right)[number], assume_unique=True)
            at, chosen = starts[number][alone], rows[number][alone]
            columns = np.full((2, len(at)), -1, np.int64)
            columns[number] = chosen
            codes = self._absent_codes(at, part.sizes[chosen], number)
            events.append(_Events(at, part.sizes[chosen], codes, columns, np.zeros(len(at), np.bool_)))
        yield from self._take_events(_Events.joined(events), step)
        yield from self._in_both()

    def _compare_pairs(self, step: Step, codes: Ints, rows: Ints, differ: Bools) -> None:
        """Note how sound records at one address differ; the one that passes fewer checks is damaged."""
        left, right = rows[0][differ], rows[1][differ]
        apart = _are_others(step, left, right)
        new_codes = np.where(apart, _CODES.index(OTHER), _CODES.index(DIFFERS))
        wrong = [
            np.concatenate([doubts(table) for table in part.tables(chosen)])
            for part, chosen in ((step.left, left), (step.right, right))
        ]
        for side in (0, 1):
            worse = wrong[side] > wrong[1 - side]
            new_codes[worse] = _CODES.index((side, DAMAGED))
            rows[side][np.flatnonzero(differ)[worse]] = -1
        codes[differ] = new_codes

    def _absent_codes(self, starts: Ints, sizes: Ints, side: int) -> Ints:
        """Return, for records of one log, why the other lacks them."""
        begins, ends = self.files[1 - side]
        reasons = np.full(len(starts), _ABSENT.index(NO_FILE), np.int64)
        if len(begins):
            which = np.searchsorted(begins, starts, "right") - 1
            covered = (which >= 0) & (ends[np.maximum(which, 0)] >= starts + sizes)
            reasons[covered] = _ABSENT.index(DAMAGED)
            reasons[starts < begins[0]] = _ABSENT.index(EXPIRED)
        return len(_COMMON) + (1 - side) * len(_ABSENT) + reasons

    def _take_events(self, events: "_Events", step: Step) -> Iterator[Range]:
        count = len(events.starts)
        if not count:
            return
        ends = events.starts + events.sizes
        reach = np.maximum.accumulate(np.r_[self._covered, ends])
        overlaps = events.starts < reach[:-1]
        self._covered = int(reach[-1])
        events.codes[overlaps] = _CODES.index(OTHER)
        strict = events.strict | (overlaps & (ends > reach[:-1]))
        kinds = 4 * events.codes + 2 * (events.rows[0] >= 0) + (events.rows[1] >= 0)
        edges = np.flatnonzero(kinds[1:] != kinds[:-1]) + 1
        for first, stop in itertools.pairwise([0, *edges.tolist(), count]):
            group = slice(first, stop)
            code, start, end = _CODES[int(events.codes[first])], int(events.starts[first]), int(ends[group].max())
            rows = events.rows[:, group]
            present = tuple(side for side in (0, 1) if rows[side, 0] >= 0)
            yield from self._settle(present, start, code == OTHER)
            if code == SAME:
                self.logs.common += stop - first
                for each in self.logs.sides:
                    each.since_common = 0
                self._note_common(end)
                continue
            if code == OTHER:
                self._others += zip(events.starts[group].tolist(), strict[group].tolist(), strict=True)
            for side in present:
                self.logs.sides[side].since_common += stop - first
                self._count(code, side, (step.left, step.right)[side], rows[side])
            table = next((step.left, step.right)[present[0]].tables(rows[present[0], :1]))
            self._add(self._range(code, start, end, stop - first, table))

    def _range(self, code: Any, start: int, end: int, count: int, table: MessageTable) -> Range:
        place = (
            table.bytes_of(1, 0).decode("utf-8", "replace"),
            int(table.column("queue_id")[0]),
            int(table.column("queue_offset")[0]),
        )
        if code in _COMMON:
            return Range(str(code), "both", start, end - start, count, *place)
        lacking, reason = code
        return Range(reason, SIDES[lacking], start, end - start, count, *place)

    def _add(self, new_range: Range) -> None:
        """Keep a range until it is clear whether it is beyond the end of a log; join it to the one before."""
        before = self._open[-1] if self._open else None
        alike = before is not None and (before.difference, before.side) == (new_range.difference, new_range.side)
        if before is not None and alike:
            before.size = new_range.end_offset - before.physical_offset
            before.message_count += new_range.message_count
        else:
            self._open.append(new_range)

    def _settle(self, present: tuple[int, ...], address: int, is_other: bool) -> Iterator[Range]:
        """Yield ranges that a sound record at an address makes final: they are not beyond the end of these sides."""
        kept: list[Range] = []
        for open_range in self._open:
            goes_on = is_other and open_range.difference == OTHER
            if (open_range.side == "both" and not goes_on) or (
                open_range.side != "both" and SIDES.index(open_range.side) in present
            ):
                yield self._told(open_range)
            else:
                kept.append(open_range)
        self._open = kept
        for side in present:
            self._add_unreadable(side, [], address)
            pending = self._unreadable[side]
            while pending and pending[0][0] < address:
                start, end = pending.popleft()
                self.logs.sides[side].unreadable_count += 1
                self.logs.sides[side].unreadable_size += end - start
                self._settled[side].append((start, end))

    def _in_both(self) -> Iterator[Range]:
        """Yield the ranges that neither log has, of those that are final in both."""
        left, right = self._settled
        while left and right:
            start, end = max(left[0][0], right[0][0]), min(left[0][1], right[0][1])
            if start < end:
                yield self._told(Range(IN_BOTH, "both", start, end - start, 0))
            (left if left[0][1] <= right[0][1] else right).popleft()

    def _told(self, settled: Range) -> Range:
        self.logs.ranges += 1
        first = self.logs.first_difference
        self.logs.first_difference = settled.physical_offset if first is None else min(first, settled.physical_offset)
        return settled

    def _note_common(self, end: int) -> None:
        for address, overlaps in self._others:
            self.logs.contradictions += 1
            if overlaps and self.logs.overlap_at is None:
                self.logs.overlap_at = address
        self._others.clear()
        self._common_end = end

    def _count(self, code: Any, side: int, part: Slice, rows: Ints) -> None:
        if code == DIFFERS:
            self.logs.differ += len(rows) * (side == 0)
        else:
            self.logs.sides[side].only += len(rows)
        for table in part.tables(rows):
            ids, names = table.topics()
            queues = np.stack([ids.astype(np.int64), table.column("queue_id").astype(np.int64)])
            kinds, which = np.unique(queues, axis=1, return_inverse=True)
            for number, (topic, queue_id) in enumerate(kinds.T.tolist()):
                queue = self.logs.queues.setdefault((names[topic].decode("utf-8", "replace"), queue_id), QueueCount())
                offsets = table.column("queue_offset")[which.reshape(-1) == number]
                queue.first_offset = min(queue.first_offset, int(offsets.min()))
                queue.last_offset = max(queue.last_offset, int(offsets.max()))
                if code == DIFFERS:
                    queue.differ += len(offsets) * (side == 0)
                elif side == 0:
                    queue.only_left += len(offsets)
                else:
                    queue.only_right += len(offsets)

    def _note_unreadable(self, step: Step) -> None:
        for side, part in enumerate((step.left, step.right)):
            bad = np.flatnonzero(~part.sound)
            unreadable = [
                *part.gaps,
                *zip(part.positions[bad].tolist(), (part.positions + part.sizes)[bad].tolist(), strict=True),
            ]
            self._add_unreadable(side, unreadable, step.stop)

    def _add_unreadable(self, side: int, intervals: list[tuple[int, int]], stop: int) -> None:
        """Add intervals to those that are not final yet, and the holes of the log that start before an address."""
        pending, holes = self._unreadable[side], self._holes[side]
        added = [*intervals]
        while holes and holes[0][0] < stop:
            added.append(holes.popleft())
        first = min((start for start, _ in added), default=stop)
        while added and pending and pending[-1][1] >= first:
            added.append(pending.pop())
        pending.extend(_union(added))

    def finish(self) -> Iterator[Range]:
        """Yield what is left."""
        for stretch in self._open:
            if stretch.side != "both":
                stretch.difference = EXPIRED if stretch.difference == EXPIRED else BEHIND
        joined: list[Range] = []
        for stretch in sorted(self._open, key=lambda stretch: stretch.physical_offset):
            last = joined[-1] if joined else None
            if last and (last.difference, last.side) == (stretch.difference, stretch.side):
                last.size = stretch.end_offset - last.physical_offset
                last.message_count += stretch.message_count
            else:
                joined.append(stretch)
        for stretch in joined:
            yield self._told(stretch)
        if self._others and self.logs.common:
            self.logs.parted_at = self._common_end


@dataclasses.dataclass
class _Events:
    """Sound records of either log: where they are, and what they mean."""

    starts: Ints
    sizes: Ints  # the larger one
    codes: Ints
    rows: Ints  # (side, record): in which row of its slice, -1 where a side has none
    strict: Bools  # no damage to one record explains it

    @classmethod
    def joined(cls, parts: "list[_Events]") -> "_Events":
        columns = [
            np.concatenate([getattr(part, column.name) for part in parts], axis=-1)
            for column in dataclasses.fields(cls)
        ]
        order = np.argsort(columns[0], kind="stable")
        return cls(*(column[..., order] for column in columns))


def _note(side: LogSide, part: Slice, rows: Ints) -> None:
    side.message_count += len(rows)
    if len(rows):
        last = int(rows[-1])
        side.end_offset = int(part.positions[last] + part.sizes[last])
        *_, table = part.tables(rows[-1:])
        side.last_timestamp = int(table.column("store_timestamp")[0])


def _are_others(step: Step, left: Ints, right: Ints) -> Bools:
    """Return which pairs of records are different messages, rather than one message with damaged bytes."""
    columns_of_each: list[Ints] = []
    for part, rows in ((step.left, left), (step.right, right)):
        columns = [
            np.stack([*(table.column(name) for name in _PLACE), *record_identities(table).view(np.int64).T])
            for table in part.tables(rows)
        ]
        columns_of_each.append(np.concatenate(columns, axis=1))
    return np.asarray((columns_of_each[0] != columns_of_each[1]).any(axis=0), np.bool_)


def _union(intervals: list[tuple[int, int]]) -> Intervals:
    """Join intervals that touch, in order."""
    joined: Intervals = collections.deque()
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


# Which is better


def better_base(logs: Logs) -> tuple[str | None, str]:
    """Return which of two logs a repair should begin with, None for either, and why."""
    left, right = logs.sides
    names = SIDES
    if logs.parted_at is not None:
        if left.last_timestamp == right.last_timestamp and left.since_common != right.since_common:
            # As after a salvage of one copy, with placeholders for what it had lost.
            more = int(right.since_common > left.since_common)
            return names[more], "both continued as long, and it has more messages there"
        newer = int(right.last_timestamp > left.last_timestamp)
        return names[newer], "it continued longer: its newest message is more recent"
    if left.only != right.only:
        more = int(right.only > left.only)
        few, many = logs.sides[1 - more].only, logs.sides[more].only
        return names[
            more
        ], f"it has {_messages(many)} that the other lacks; the other has {f'{few:,}' if few else 'none'}"
    if left.unreadable_size != right.unreadable_size:
        less = int(right.unreadable_size < left.unreadable_size)
        return names[less], "fewer of its bytes are unreadable"
    return None, "neither has more messages than the other"


def _messages(count: int) -> str:
    return f"{count:,} message{'' if count == 1 else 's'}"


# Other files


@dataclasses.dataclass
class FileDifference:
    """A queue or a table in which two stores differ."""

    name: str
    message: str
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None  # of the first unit that differs


def compare_files(left: StoreReader, right: StoreReader, same_log: bool) -> Iterator[FileDifference]:
    """Yield the queues and tables in which two stores differ.

    Args:
        left: one store.
        right: the other.
        same_log: their logs are the same, so their queues should reach as far; else only units that both have count.
    """
    yield from _compare_queues(left, right, same_log)
    yield from _compare_batch_queues(left, right, same_log)
    yield from _compare_tables(left, right)


def not_compared(left: StoreReader, right: StoreReader) -> Iterator[str]:
    """Yield the parts that two stores have and that ``compare_logs`` and ``compare_files`` do not compare."""
    yield "index, checkpoint and timer, which each broker creates itself"
    readers = dict(zip(SIDES, (left, right), strict=True))
    for subject, sides in (
        (
            "queue extensions (consumequeue_ext)",
            [side for side, reader in readers.items() if reader.consume_queue_exts],
        ),
        ("queues in RocksDB", [side for side, reader in readers.items() if reader.rocksdb_queues]),
        ("tables in RocksDB", [side for side, reader in readers.items() if _has_rocksdb_tables(reader)]),
        ("compacted topics", [side for side, reader in readers.items() if _has_compacted(reader)]),
        ("the role in replication", [side for side, reader in readers.items() if _has_role(reader)]),
    ):
        if sides:
            yield f"{subject} of {' and '.join(sides)}"


def _has_role(reader: StoreReader) -> bool:
    return any(reader.paths.config.glob(f"{_OF_ONE_BROKER}*.json"))


def _has_compacted(reader: StoreReader) -> bool:
    return any((reader.paths.compaction / "compactionLog").glob("*/*/*"))


def _has_rocksdb_tables(reader: StoreReader) -> bool:
    return any(rocksdb.is_rocksdb(reader.paths.config / name) for name in rocksdb.CONFIG_DATABASES)


def _compare_queues(left: StoreReader, right: StoreReader, same_log: bool) -> Iterator[FileDifference]:
    live = left.is_live, right.is_live
    for key in sorted(left.consume_queues.keys() | right.consume_queues.keys()):
        name = f"consumequeue/{key[0]}/{key[1]}"
        queues = [reader.consume_queues.get(key) for reader in (left, right)]
        # The last unit of a queue in use may be only partly written.
        ends = [queue.max_offset() - is_live if queue else 0 for queue, is_live in zip(queues, live, strict=True)]
        firsts = [queue.first_offset if queue else 0 for queue in queues]
        units = [max(0, end - first) for end, first in zip(ends, firsts, strict=True)]
        start, stop = max(firsts), min(ends)
        if same_log and not any(live) and (ends[0] != ends[1] or (not units[0]) != (not units[1])):
            text = f"it ends at {ends[0]:,} in left, at {ends[1]:,} in right"
            yield FileDifference(name, text, *key, min(ends))
        if not all(units):
            continue
        log_starts = [reader.commit_log.min_offset for reader in (left, right)]
        differing = _first_differing([*zip(filter(None, queues), log_starts, strict=True)], start, stop)
        if differing is not None:
            yield FileDifference(name, "its units differ", *key, differing)


def _first_differing(queues: list[tuple[ConsumeQueue, int]], start: int, stop: int) -> int | None:
    """Return the first place at which two queues have different units; places without files in both are skipped.

    So are those where one has a filler for a message before the start of its log: its log never had that message.

    Args:
        queues: each with the start of its log.
        start: the first place.
        stop: the place after the last one.
    """
    first = []
    for (queue, log_start), (other, other_start) in itertools.permutations(queues):
        for at, units in queue.windows(start, stop):
            others = other.units(at, at + len(units))
            never_had = are_fillers(units) & (others["physical_offset"] < log_start)
            never_had |= are_fillers(others) & (units["physical_offset"] < other_start)
            differ = np.flatnonzero((units != others) & ~never_had)
            if len(differ):
                first.append(at + int(differ[0]))
                break
    return min(first, default=None)


def _compare_batch_queues(left: StoreReader, right: StoreReader, same_log: bool) -> Iterator[FileDifference]:
    is_live = left.is_live or right.is_live
    for key in sorted(left.batch_consume_queues.keys() | right.batch_consume_queues.keys()):
        name = f"batchconsumequeue/{key[0]}/{key[1]}"
        queues = [reader.batch_consume_queues.get(key) for reader in (left, right)]
        ends = [queue.max_offset() if queue else 0 for queue in queues]
        if same_log and not is_live and ends[0] != ends[1]:
            yield FileDifference(name, f"it ends at {ends[0]:,} in left, at {ends[1]:,} in right", *key, min(ends))
        if not all(ends):
            continue
        place = _common_places([queue for queue in queues if queue])
        for at in range(0, place.length, _UNITS_AT_ONCE):
            count = min(_UNITS_AT_ONCE, place.length - at)
            units = [queue.units(first + at, first + at + count) for queue, first in place.firsts]
            differ = np.flatnonzero(units[0] != units[1])
            if len(differ):
                yield FileDifference(name, "its units differ", *key, int(units[0]["queue_offset"][differ[0]]))
                break
        else:
            if place.is_uneven:
                yield FileDifference(name, "one has more units for the same messages", *key)


class _Common(NamedTuple):
    """The places in two batch queues of the queue offsets that both have."""

    firsts: list[tuple[BatchConsumeQueue, int]]
    length: int
    is_uneven: bool


def _common_places(queues: list[BatchConsumeQueue]) -> _Common:
    start, stop = max(queue.first_offset for queue in queues), min(queue.max_offset() for queue in queues)
    firsts = [(queue, queue.place_of(start)) for queue in queues]
    counts = [queue.place_of(stop) - first for queue, first in firsts]
    return _Common(firsts, max(0, min(counts)), counts[0] != counts[1])


def _compare_tables(left: StoreReader, right: StoreReader) -> Iterator[FileDifference]:
    names = {
        path.name.removesuffix(".bak")
        for reader in (left, right)
        for pattern in ("*.json", "*.json.bak")
        for path in reader.paths.config.glob(pattern)
        if not path.name.startswith(_OF_ONE_BROKER)
    }
    for name in sorted(names):
        tables: list[Any] = []
        for reader in (left, right):
            try:
                tables.append(reader.config_table(name))
            except MqtoolError as error:
                tables.append(str(error))
        unread = [table for table in tables if isinstance(table, str)]
        lacking = [side for side, table in zip(SIDES, tables, strict=True) if table is None]
        if unread:
            yield FileDifference(f"config/{name}", unread[0])
        elif lacking:
            # A broker writes some tables only once there is something in them, and copies them empty to its slave.
            if any(any(_differing(table, {})) for table in tables if table is not None):
                yield FileDifference(f"config/{name}", f"{lacking[0]} has none")
        else:
            keys = list(_differing(*tables))
            if keys:
                more = f" and {len(keys) - _LISTED_KEYS:,} more" if len(keys) > _LISTED_KEYS else ""
                listed = ", ".join(keys[:_LISTED_KEYS])
                yield FileDifference(f"config/{name}", f"they differ on {listed}{more}")


def _differing(left: Any, right: Any) -> Iterator[str]:
    """Yield the keys of two tables, and of their tables, whose values differ, without versions and empty values."""
    for key in sorted(left.keys() | right.keys(), key=str):
        left_value, right_value = left.get(key), right.get(key)
        if key == "dataVersion" or left_value == right_value or not (left_value or right_value):
            continue
        if isinstance(left_value, dict) and isinstance(right_value, dict) and str(key).endswith("Table"):
            yield from _differing(left_value, right_value)
        else:
            yield str(key)
