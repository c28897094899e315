"""``salvage --merge``: one new store of two copies of a log; what is damaged in one is taken from the other.

First each is examined separately, as ``plan_salvage`` does: displaced records are put back, and
wrong places in queues or system flags are corrected as ``recover`` would. Then the logs are
compared (``compare_logs``), which shows whether they are copies of one log and which is the base. Then
both are walked again in parallel: for each address the sound record is taken, the base's if both are, the one that
is original if the other was put back or corrected, and the
result is handled like any salvage. Cost: that of ``compare_logs`` and ``plan_salvage``.

What counts as copies of one log: some records are the same byte for byte at the same address. Before the last of these
a record may be damaged in one, and even seem sound, as no CRC covers its head: it differs at the same address and has
the same length. Anything else there means that two logs were mixed, and is refused. After the last common record both
may have different messages, as after a failover between a master and a slave that was behind. Then only
the base is followed, the one with the newer last message; messages of the other are left out and listed: messages
with the same queue offset are never mixed. Those that the base has at other addresses, as a log that was salvaged with
losses does, are not listed. (Memory: 16 bytes for each message after that point.)
"""

import bisect
import collections
import dataclasses
import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mqtool.engine.repair.compare.aligned import NO_END, SIDES, Bools, Records, Slice, Step, aligned, doubts
from mqtool.engine.repair.compare.stores import Logs, better_base, compare_logs
from mqtool.engine.repair.parts import Progress
from mqtool.engine.repair.placement import Placement, first_addresses, place
from mqtool.engine.repair.rebuild.plan import batch_topics_of
from mqtool.engine.repair.recover.displaced import DisplacedRecords, PutBack, stands
from mqtool.engine.repair.recover.log import SurveyRules, survey_records
from mqtool.engine.repair.salvage.plan import (
    CopySource,
    Edit,
    Salvage,
    Survey,
    named_otherwise,
    read_tables,
    refuse_live_or_empty,
    repaired,
    told_back,
    told_by_units,
)
from mqtool.engine.repair.salvage.queue_order import Order
from mqtool.engine.store.commit_log import Gap
from mqtool.engine.store.dispatch import QueueKey, dispatch
from mqtool.engine.store.file_queue import FileQueue
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import BadDataError, UsageError
from mqtool.formats import scan
from mqtool.formats.identity import Words, record_identities
from mqtool.formats.scan import Ints, MessageTable

Interval = tuple[int, int]
_NO_WORDS = np.empty(0, np.uint64)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class Merge(NamedTuple):
    """A salvage of two stores, and the result of their comparison."""

    plan: Salvage
    logs: Logs
    base: int
    reason: str  # why it is


class _Aside(NamedTuple):
    """Places in a queue, in the order of a log, of messages that may be left out."""

    starts: Ints
    stops: Ints
    messages: Words


class _MergeSide(NamedTuple):
    """One of the two stores."""

    reader: StoreReader  # its log changed by ``back`` and ``edits``
    edits: dict[int, Edit]  # by address
    back: PutBack


def plan_merge(left: StoreReader, right: StoreReader, jobs: int = 1, progress: Progress = lambda _: None) -> Merge:
    """Examine every record of two stores, and decide which is taken and where it goes.

    Args:
        left: one store, which is only read.
        right: another copy of its log, damaged or not.
        jobs: threads for each.
        progress: called with the number of bytes done so far, of both logs three times.

    Raises:
        BadDataError: they are not copies of one log.
        NotFoundError: one has no log.
        StoreInUseError: a broker writes to one.
        UsageError: both are the same.
    """
    for reader in (left, right):
        refuse_live_or_empty(reader)
    placements = [place(reader.commit_log) for reader in (left, right)]
    for reader, placement in zip((left, right), placements, strict=True):
        placement.keep_beginning(first_addresses(reader))
    readers = left, right = left.with_log(placements[0].log), right.with_log(placements[1].log)
    if {segment.path.resolve() for segment in left.commit_log.segments} & {
        segment.path.resolve() for segment in right.commit_log.segments
    }:
        raise UsageError("both stores have the same commit log: give two copies of it")
    size, total = left.commit_log.total_size, left.commit_log.total_size + right.commit_log.total_size
    looked = (
        _look_at(left, placements[0], jobs, progress),
        _look_at(right, placements[1], jobs, lambda done: progress(size + done)),
    )
    logs = Logs()
    for _ in compare_logs(left, right, logs, jobs, lambda done: progress(total + done)):
        pass
    _refuse_others(readers, logs)
    chosen, reason = better_base(logs)
    base = SIDES.index(chosen) if chosen else 0
    look = _Merged(looked, base, logs)
    for step in aligned(looked[0].reader, looked[1].reader, jobs, lambda done: progress(2 * total + done)):
        look.take_step(step)
    look.skip_left(_left_in_both(looked))
    plan = look.finish()
    remarks = [
        f"{reader.root}: {remark}"
        for reader, placement, side in zip(readers, placements, looked, strict=True)
        for remark in (*named_otherwise(reader, placement), *told_back(side.back))
    ]
    return Merge(dataclasses.replace(plan, remarks=[*plan.remarks, *remarks]), logs, base, reason)


def _look_at(reader: StoreReader, placement: Placement, jobs: int, progress: Progress) -> _MergeSide:
    outcome = repaired(reader, placement, jobs, progress)
    return _MergeSide(reader.with_log(outcome.log), {edit.patch.position: edit for edit in outcome.edits}, outcome.back)


def _left_in_both(looked: tuple[_MergeSide, _MergeSide]) -> Iterator[DisplacedRecords]:
    """Yield the displaced sound records that neither store has at the stated address.

    Those that both have in the same place are yielded once.
    """
    reported = set()
    for side in looked:
        for records in side.back.left:
            place = records.source.file.start_offset, int(records.table.starts[0]), records.start
            if place not in reported and not any(stands(two.reader.commit_log, records) for two in looked):
                yield records
                reported.add(place)


def _refuse_others(readers: tuple[StoreReader, StoreReader], logs: Logs) -> None:
    left, right = (reader.root for reader in readers)
    for reader, side in zip(readers, logs.sides, strict=True):
        if not side.message_count:
            raise BadDataError(
                f"no message in {reader.root} can be read, so nothing shows that it is a copy of the other: salvage "
                "the other one alone"
            )
    if not logs.common:
        raise BadDataError(
            f"{left} and {right} are not copies of one log: no record is the same at the same address; `mqtool "
            "compare --by key` shows what each contains"
        )
    if logs.overlap_at is not None:
        raise BadDataError(
            f"{left} and {right} are not copies of one log: at {logs.overlap_at:,} they have different messages, "
            "followed by the same ones; `mqtool compare` shows where"
        )


class _Merged(Survey):
    """Takes two logs step by step, as a survey takes one."""

    def __init__(self, looked: tuple[_MergeSide, _MergeSide], base: int, logs: Logs) -> None:
        readers = looked[0].reader, looked[1].reader
        super().__init__(readers[base])
        self.readers = readers
        self.looked = looked
        self._edited: list[Ints] = [np.array(sorted(side.edits), np.int64) for side in looked]
        self._put_back = [
            _joined([(patch.position, patch.position + len(patch.data)) for patch in each.back.patches])
            for each in looked
        ]
        self._taken_edits: tuple[set[int], set[int]] = set(), set()
        self.base = base
        self.batch_topics |= batch_topics_of(readers[1 - base])
        self.limit = NO_END if logs.parted_at is None else logs.parted_at
        kernels = scan.kernels_for(self.log_size())
        levels = self.reader.delay_levels
        self.rules = [SurveyRules(reader, kernels, levels, False, False) for reader in readers]
        self.left_out: list[dict[str, Any]] = []
        self.lost_of_other: collections.Counter[str] = collections.Counter()
        self.from_each: tuple[collections.Counter[str], collections.Counter[str]] = (
            collections.Counter(),
            collections.Counter(),
        )
        self.sources: list[CopySource] = []
        self._last_side = -1
        self._reach = 0  # one past the last record that was taken
        self._begin = min(reader.commit_log.min_offset for reader in readers)
        self._stop = max(reader.commit_log.end_offset for reader in readers)
        self._at = self._begin
        self._files = [_intervals(reader.commit_log) for reader in readers]
        self._aside: dict[QueueKey, list[_Aside]] = collections.defaultdict(list)
        self._aside_by_topic: dict[str, list[Words]] = collections.defaultdict(list)
        self._followed: list[Words] = []  # of the base after the point where they diverge

    # What a survey of one log provides

    def log_size(self) -> int:
        """Return how many bytes of log there are."""
        return sum(reader.commit_log.total_size for reader in self.readers)

    def first_offset(self) -> int:
        """Return the address at which the log begins."""
        return self._begin

    def tables(self) -> tuple[dict[str, bytes], list[str]]:
        """Return the tables of config/: the base's, those of the other that it lacks, and remarks."""
        tables, remarks = read_tables(self.reader)
        other = self.readers[1 - self.base]
        for name, text in read_tables(other)[0].items():
            if name not in tables:
                tables[name] = text
                remarks = [remark for remark in remarks if not remark.startswith(f"config/{name} ")]
                remarks.append(f"config/{name} is taken from {other.root}")
        return tables, remarks

    def told_by_units(self, order: Order) -> dict[QueueKey, tuple[int, int]]:
        """Return, for each queue, how many messages units of either store show before and after those copied."""
        counts = told_by_units(self.reader, order, self.log.min_offset)
        if self.limit == NO_END:
            other = self.readers[1 - self.base]
            for key, (before, behind) in told_by_units(other, order, other.commit_log.min_offset).items():
                old = counts.get(key, (0, 0))
                counts[key] = max(before, old[0]), max(behind, old[1])
        return counts

    def enter(self, segment: MappedFile) -> None:
        """Enter a segment of either log; ``take_step`` lists what neither has."""
        self.segment = segment

    def take_end(self) -> None:
        """List what follows the last message, except for zeros."""
        self.take_last_gaps()

    # Both logs

    def take_step(self, step: Step) -> None:
        """Take what both logs hold in a range of addresses."""
        slices = step.left, step.right
        other = 1 - self.base
        masks = [part.sound.copy() for part in slices]
        ours = [np.ones(len(part.positions), np.bool_) for part in slices]
        behind = slices[other].positions >= self.limit
        self._set_aside(slices[other], np.flatnonzero(behind & slices[other].sound))
        ours[other] = ~behind
        masks[other] &= ours[other]
        self._prefer_in_place(slices, masks)
        self._choose(slices, masks)
        self._drop_inner(slices, masks)
        followed = np.flatnonzero(masks[self.base] & (slices[self.base].positions >= self.limit))
        self._followed += map(_messages_of, slices[self.base].tables(followed)) if len(followed) else ()
        for part, mask, edited, noted in zip(slices, masks, self._edited, self._taken_edits, strict=True):
            noted.update(np.intersect1d(part.positions[mask], edited, assume_unique=True).tolist())
        intervals = _stretches(slices, masks)
        bad = self._bad(slices, ours, intervals)
        covered = sorted([*intervals, *(interval for side in bad for interval in side.values())])
        pieces: list[tuple[int, int, Any]] = []
        for side, part in enumerate(slices):
            mask = masks[side].copy()
            mask[list(bad[side])] = True
            pieces += ((address, side, run) for address, run in _runs(part, mask))
        stop = min(step.stop, self._stop)
        for start, end in self._holes(slices, stop, covered):
            pieces += ((address, -1, piece) for address, piece in self._files_of(start, end))
        for address, side, piece in sorted(pieces, key=lambda piece: piece[:2]):
            self._take_piece(address, side, piece)
        self._at = max(self._at, stop)
        if intervals:
            self._reach = max(self._reach, intervals[-1][1])

    def _prefer_in_place(self, slices: tuple[Slice, Slice], masks: list[Bools]) -> None:
        """Leave out what was put back in one store if the other has a sound record in that place."""
        is_back = [_lies_in(part.positions, back) for part, back in zip(slices, self._put_back, strict=True)]
        for side in (0, 1):
            part, other = slices[side], slices[1 - side]
            in_place = np.flatnonzero(masks[1 - side] & ~is_back[1 - side])
            rows = np.flatnonzero(masks[side] & is_back[side])
            if not len(in_place) or not len(rows):
                continue
            starts, ends = other.positions[in_place], (other.positions + other.sizes)[in_place]
            number = np.minimum(np.searchsorted(ends, part.positions[rows], "right"), len(in_place) - 1)
            meets = (starts[number] < (part.positions + part.sizes)[rows]) & (ends[number] > part.positions[rows])
            for row, theirs in zip(rows[meets].tolist(), in_place[number[meets]].tolist(), strict=True):
                masks[side][row] = False
                if (part.positions[row], part.crcs[row]) != (other.positions[theirs], other.crcs[theirs]):
                    both = [next(each.tables(np.array([at]))) for each, at in ((part, row), (other, theirs))]
                    self._leave_out(both if side == 0 else both[::-1], 1 - side, was_there=True)

    def _choose(self, slices: tuple[Slice, Slice], masks: list[Bools]) -> None:
        """Take one of the two records at each address at which both have a sound one."""
        rows = [np.flatnonzero(mask) for mask in masks]
        starts = [part.positions[chosen] for part, chosen in zip(slices, rows, strict=True)]
        addresses, in_left, in_right = np.intersect1d(starts[0], starts[1], assume_unique=True, return_indices=True)
        pairs = rows[0][in_left], rows[1][in_right]
        masks[1 - self.base][pairs[1 - self.base]] = False
        is_edited = [np.isin(addresses, edited) for edited in self._edited]
        better = is_edited[self.base] & ~is_edited[1 - self.base]
        for number in (0, 1):
            masks[number][pairs[number][better]] = number != self.base
        left, right = slices
        differ = (left.crcs[pairs[0]] != right.crcs[pairs[1]]) | (left.sizes[pairs[0]] != right.sizes[pairs[1]])
        for pair in np.flatnonzero(differ).tolist():
            both = [next(part.tables(np.array([row[pair]]))) for part, row in zip(slices, pairs, strict=True)]
            wrong = [int(doubts(table)[0]) + int(edited[pair]) for table, edited in zip(both, is_edited, strict=True)]
            unit_counts = [sum(_has_unit(reader, table) for reader in self.readers) for table in both]
            if wrong[0] != wrong[1]:
                side = int(wrong[1] < wrong[0])
            else:
                side = int(unit_counts[1] > unit_counts[0]) if unit_counts[0] != unit_counts[1] else self.base
                # If no queue leads to a record, only its own head says that it existed.
                self._leave_out(both, side, was_there=bool(unit_counts[1 - side]) or not unit_counts[side])
            for number in (0, 1):
                masks[number][pairs[number][pair]] = number == side

    def _leave_out(self, both: list[MessageTable], side: int, was_there: bool) -> None:
        """List a sound record that is not taken, as the other store has a different one in its place."""
        other = both[1 - side]
        topic, queue_id, queue_offset = _place(other)
        row = {"kind": "left out", "store": str(self.readers[1 - side].root), "topic": topic, "queue_id": queue_id}
        row |= {"physical_offset": int(other.column("position")[0]), "queue_offset": queue_offset, "count": 1}
        is_same = _place(both[0]) == _place(both[1]) and (
            (record_identities(both[0]) == record_identities(both[1])).all()
        )
        reason = (
            "the other store has this message with other bytes" if is_same else "the other store has another message"
        )
        self.left_out.append(row | {"reason": f"{reason} at this address, which is used instead"})
        if was_there and not is_same:
            self.lost_of_other[topic] += 1

    def _leave_out_edits(self) -> None:
        """List records with impossible contents that the other store has with different ones."""
        for side, taken_edits in zip(self.looked, self._taken_edits, strict=True):
            for address, edit in sorted(side.edits.items()):
                if address not in taken_edits:
                    stated = edit.said
                    row: dict[str, Any] = {"kind": "left out", "store": str(side.reader.root), "topic": stated.topic}
                    row |= {
                        "queue_id": stated.queue_id,
                        "physical_offset": address,
                        "queue_offset": stated.queue_offset,
                    }
                    text = f"{edit.reason}, and what the other store has is used instead"
                    self.left_out.append(row | {"count": stated.batch_size, "reason": text})

    def _drop_inner(self, slices: tuple[Slice, Slice], masks: list[Bools]) -> None:
        """Leave out what is within a sound record of the other log: a body may contain what looks like a record."""
        rows = [np.flatnonzero(mask) for mask in masks]
        starts = np.concatenate([part.positions[chosen] for part, chosen in zip(slices, rows, strict=True)])
        sizes = np.concatenate([part.sizes[chosen] for part, chosen in zip(slices, rows, strict=True)])
        sides = np.repeat([0, 1], [len(chosen) for chosen in rows])
        numbers = np.concatenate(rows)
        order = np.argsort(starts, kind="stable")
        reach = np.maximum.accumulate(np.r_[self._reach, (starts + sizes)[order]])[:-1]
        for at in order[starts[order] < reach].tolist():
            side, row = int(sides[at]), int(numbers[at])
            masks[side][row] = False
            table = next(slices[side].tables(np.array([row])))
            self._leave_out([table, table], 1 - side, was_there=False)
            topic = _place(table)[0]
            self.left_out[-1]["reason"] = "it is inside a record of the other store"
            self.lost_of_other[topic] += 1

    def _set_aside(self, part: Slice, rows: Ints) -> None:
        """Note the messages of the other store after the point where they diverge."""
        if not len(rows):
            return
        for table in part.tables(rows):
            messages = _messages_of(table)
            units = dispatch(table, self.reader.delay_levels).units
            for queue, first, last in units.stretches:
                starts, counts = units.queue_offset[first:last], units.batch_size[first:last]
                self._aside[queue].append(_Aside(starts, starts + counts, messages[units.rows[first:last]]))
            ids, names = table.topics()
            for number, name in enumerate(names):
                self._aside_by_topic[name.decode("utf-8", "replace")].append(messages[ids == number])

    def _tell_aside(self) -> Iterator[str]:
        """List the messages that were set aside and that the base does not have, maybe at other addresses."""
        followed = np.unique(np.concatenate([_NO_WORDS, *self._followed]))
        count = 0
        for topic, pieces in self._aside_by_topic.items():
            lacks = ~np.isin(np.concatenate(pieces), followed)
            self.lost_of_other[topic] += int(lacks.sum())
            count += int((~lacks).sum())
        root = str(self.readers[1 - self.base].root)
        for (topic, queue_id), ranges in sorted(self._aside.items()):
            starts, stops, messages = (np.concatenate(column) for column in zip(*ranges, strict=True))
            lacks = ~np.isin(messages, followed)
            for start, stop in _joined_in_line(starts[lacks], stops[lacks]):
                row = {"kind": "left out", "store": root, "topic": topic, "queue_id": queue_id}
                row |= {"physical_offset": None, "queue_offset": start, "count": stop - start}
                self.left_out.append(
                    row | {"reason": f"the stores diverge at {self.limit}, and the other store is followed"}
                )
        if count:
            yield (
                f"the stores diverge at {self.limit:,}; {count:,} messages after that are in both, at other addresses, "
                "and count as copied"
            )

    def _bad(
        self, slices: tuple[Slice, Slice], ours: list[Bools], intervals: list[Interval]
    ) -> list[dict[int, Interval]]:
        """Return the rows of broken records where nothing else is: they may show what was lost there."""
        used = list(intervals)
        rows_of_side: list[dict[int, Interval]] = [{}, {}]
        for side in (self.base, 1 - self.base):
            part = slices[side]
            for row in np.flatnonzero(~part.sound & ours[side]).tolist():
                start = int(part.positions[row])
                end = start + int(part.sizes[row])
                number = bisect.bisect_left(used, (end, 0))
                if start >= self._reach and (not number or used[number - 1][1] <= start):
                    bisect.insort(used, (start, end))
                    rows_of_side[side][row] = start, end
        return rows_of_side

    def _holes(self, slices: tuple[Slice, Slice], stop: int, covered: list[Interval]) -> list[Interval]:
        """Return the addresses of this step at which neither log has a record, not even a blank one."""
        empty: list[list[Interval]] = []
        for side, part in enumerate(slices):
            lost = part.positions[~part.sound], (part.positions + part.sizes)[~part.sound]
            intervals = [*part.gaps, *zip(*(column.tolist() for column in lost), strict=True)]
            intervals += _without([(self._at, stop)], self._files[side])
            if side != self.base and stop > self.limit:
                intervals.append((max(self._at, self.limit), stop))
            empty.append(_joined(intervals))
        both = _common(*empty)
        return _without(_without(both, [(0, self._reach)]), covered)

    def _files_of(self, start: int, end: int) -> Iterator[tuple[int, Gap | Interval]]:
        """Yield the parts of a hole, split at segments: gaps, or intervals for which neither log has a file."""
        rest = [(start, end)]
        for side in (self.base, 1 - self.base):
            for segment in self.readers[side].commit_log.segments_between(start, end):
                for low, high in _common(rest, [(segment.start_offset, segment.end_offset)]):
                    base = segment.start_offset
                    yield low, Gap(segment, low - base, high - base, scan.Stop.MAGIC)
            rest = _without(rest, self._files[side])
        yield from ((low, (low, high)) for low, high in rest)

    def _take_piece(self, address: int, side: int, piece: Any) -> None:
        if isinstance(piece, Gap):
            self.take(piece)
        elif isinstance(piece, tuple):
            self.miss(None, address, piece[1] - piece[0], "neither store has the segment")
        else:
            assert isinstance(piece, Records)
            for records in survey_records(self.rules[side], piece.segment, piece.table):
                before = self.kept.total()
                self.take(records)
                piece.segment.release(records.start, records.end)
                if self.kept.total() > before:
                    self.from_each[side].update(records.topics)
                    self._note_source(
                        side, piece.segment.start_offset + records.start, records.end - records.start, records.topics
                    )

    def _note_source(self, side: int, address: int, size: int, topics: dict[str, int]) -> None:
        count = sum(topics.values())
        if side == self._last_side:
            last = self.sources[-1]
            size = address + size - last.physical_offset
            self.sources[-1] = last._replace(size=size, message_count=last.message_count + count)
        else:
            self.sources.append(CopySource(self.readers[side].root, address, size, count))
            self._last_side = side

    def finish(self) -> Salvage:
        """Make all decisions."""
        edits = [
            edit
            for side, noted in zip(self.looked, self._taken_edits, strict=True)
            for at, edit in side.edits.items()
            if at in noted
        ]
        self.edits = sorted(edits, key=lambda edit: edit.now.position)
        plan = super().finish()
        self._leave_out_edits()
        remarks = [*plan.remarks, *self._tell_aside()]
        return dataclasses.replace(
            plan,
            remarks=remarks,
            lost=plan.lost + self.lost_of_other,
            from_each=self.from_each,
            sources=self.sources,
            left_out=self.left_out,
        )


def _messages_of(table: MessageTable) -> Words:
    """Return what is the same for a message in its place in a queue, wherever in a log it is stored: 64 bits."""
    identities = record_identities(table)
    words: Words = identities[:, 0].copy()
    for column in (table.column("queue_id"), table.column("queue_offset")):
        words ^= column.astype(np.int64).astype(np.uint64)
        words *= _FACTOR
        words ^= words >> np.uint64(32)
    return words ^ identities[:, 1]


def _joined_in_line(starts: Ints, stops: Ints) -> Iterator[Interval]:
    """Yield the union of intervals that follow each other, in the given order."""
    edges = np.flatnonzero(np.r_[True, starts[1:] != stops[:-1]]) if len(starts) else starts
    for first, last in zip(edges.tolist(), [*(edges[1:] - 1).tolist(), len(starts) - 1], strict=False):
        yield int(starts[first]), int(stops[last])


def _place(table: MessageTable) -> tuple[str, int, int]:
    topic = table.bytes_of(1, 0).decode("utf-8", "replace")
    return topic, int(table.column("queue_id")[0]), int(table.column("queue_offset")[0])


def _has_unit(reader: StoreReader, table: MessageTable) -> bool:
    """Return whether the unit of a message leads to it."""
    topic, queue_id, offset = _place(table)
    queue = reader.consume_queues.get((topic, queue_id))
    if queue is None or not queue.first_offset <= offset < queue.max_offset():
        return False
    unit = queue.units(offset, offset + 1)[0]
    place = int(table.column("position")[0]), int(table.column("size")[0])
    return (int(unit["physical_offset"]), int(unit["size"])) == place


def _runs(part: Slice, mask: Bools) -> Iterator[tuple[int, Records]]:
    """Yield the chosen records of a slice with the address of the first, consecutive ones together."""
    first = 0
    for run in part.runs:
        chosen = mask[first : first + len(run.table)]
        first += len(run.table)
        edges = np.flatnonzero(np.diff(np.r_[False, chosen, False].astype(np.int8)))
        for low, high in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            yield int(run.table.column("position")[low]), run.where(slice(low, high))


def _stretches(slices: tuple[Slice, Slice], masks: list[Bools]) -> list[Interval]:
    """Return the addresses of chosen records, consecutive ones joined."""
    starts = np.concatenate([part.positions[mask] for part, mask in zip(slices, masks, strict=True)])
    ends = starts + np.concatenate([part.sizes[mask] for part, mask in zip(slices, masks, strict=True)])
    starts, ends = np.sort(starts), np.sort(ends)
    begins, stops = np.r_[True, starts[1:] != ends[:-1]], np.r_[starts[1:] != ends[:-1], True]
    return list(zip(starts[begins[: len(starts)]].tolist(), ends[stops[: len(ends)]].tolist(), strict=True))


def _intervals(log: FileQueue) -> list[Interval]:
    """Return the addresses that files cover."""
    return _joined([(segment.start_offset, segment.end_offset) for segment in log.segments])


def _lies_in(positions: Ints, intervals: list[Interval]) -> Bools:
    """Return which addresses are in ordered, disjoint intervals."""
    if not intervals:
        return np.zeros(len(positions), np.bool_)
    starts, ends = np.array(intervals, np.int64).T
    number = np.maximum(np.searchsorted(starts, positions, "right") - 1, 0)
    inside: Bools = (starts[number] <= positions) & (positions < ends[number])
    return inside


def _joined(intervals: list[Interval]) -> list[Interval]:
    """Return the union of intervals, in order."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        elif start < end:
            joined.append((start, end))
    return joined


def _common(first: list[Interval], second: list[Interval]) -> list[Interval]:
    """Return the intersection of two lists of intervals, each ordered and disjoint."""
    common = []
    i = j = 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if start < end:
            common.append((start, end))
        if first[i][1] <= second[j][1]:
            i += 1
        else:
            j += 1
    return common


def _without(first: list[Interval], second: list[Interval]) -> list[Interval]:
    """Return the difference of two such lists: the first without the second, of which only what meets it is visited."""
    if not first:
        return []
    gaps, at = [], first[0][0]
    low = bisect.bisect_right(second, at, key=operator.itemgetter(1))
    for start, end in second[low : bisect.bisect_left(second, first[-1][1], key=operator.itemgetter(0))]:
        if start > at:
            gaps.append((at, start))
        at = max(at, end)
    gaps.append((at, max(at, first[-1][1])))
    return _common(first, gaps)
