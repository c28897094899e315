"""Consume queues after a recovery: missing and surplus units of their files.

``QueueRepairer`` compares the units that the messages of the log should have with the files, and passes differences
to a sink: one that counts, for the plan, and one that writes. (Rules: store.md 4.)

Cost: linear in the units of the queues and of the messages.
"""

import collections
import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from mqtool.engine.repair.journal import Journal
from mqtool.engine.repair.rebuild.queues import Packed, Sizes
from mqtool.engine.repair.recover.log import BEHIND, LogPlan
from mqtool.engine.repair.verify.log import stretches
from mqtool.engine.store.consume_queue import BatchConsumeQueue, ConsumeQueue, are_fillers, used_units
from mqtool.engine.store.dispatch import QueueKey, UnitRange, Units, dispatch
from mqtool.engine.store.file_queue import segment_name
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import FormatError, NotFoundError
from mqtool.formats import commit_log as layout
from mqtool.formats import consume_queue, consume_queue_ext, scan
from mqtool.formats.scan import Ints

SIZE = consume_queue.UNIT_SIZE
KEPT = 32 << 20
"""Bytes of units that a plan keeps in memory."""
_STEP = 1 << 18
_AT_ONCE = 64
_ELSEWHERE = "their units do not lead to their messages"
_SEGMENT_GONE = "the segment that contained them is missing"
_NO_END = (1 << 63) - 1
_PRE_BLANK = consume_queue.UNIT.packer.pack(0, consume_queue.PRE_BLANK_SIZE, 0)


class DifferenceSink(Protocol):
    """Takes differences."""

    def write(self, key: QueueKey, queue_offset: int, units: bytes) -> None:
        """Put units at a queue offset."""

    def trim(self, key: QueueKey, queue_offset: int) -> None:
        """Remove all units from a queue offset on."""


class QueueRepairer:
    """Takes the units of all messages in the order of the log."""

    def __init__(
        self,
        reader: StoreReader,
        start_offset: int,
        sink: DifferenceSink,
        batch_topics: Collection[str],
        began_at: int | None = None,
    ) -> None:
        self.reader = reader
        self.start_offset = start_offset
        """Address from which on messages are taken."""
        self.began_at = reader.commit_log.min_offset if began_at is None else began_at
        """Where the log began before its first segments were lost: messages before that have expired."""
        self.sink = sink
        self.batch_topics = batch_topics
        """Topics that keep several messages in a unit."""
        self.others: set[QueueKey] = set()
        """Batch queues whose units differ."""
        self.odd: Mapping[str, Ints] = {}
        """Messages whose queue offset cannot be right, for ``Units.without``: they get no unit."""
        self.is_short = False
        """Whether older messages have to be taken as well.

        A queue lacks units before the first that was taken, or older messages have the places of those that were.
        """
        self.leads_nowhere = False
        """Whether the unit before the first that was taken leads to no message of a queue."""
        self._first: dict[QueueKey, int] = {}
        self._next: dict[QueueKey, int] = {}
        self._before: list[tuple[int, QueueKey, int]] = []  # where the units before the first that were taken lead
        self._places: dict[QueueKey, int] = {}  # one past the last unit that was taken, of batch queues
        self._trimmed: dict[QueueKey, int] = {}
        self._most = reader.commit_log.total_size // layout.MIN_SIZE
        self._file_units = Sizes.of(reader).queue // SIZE

    def take(self, units: Units) -> None:
        """Compare units with the files."""
        for stretch in map(functools.partial(self._with_place, units), units.without(self.odd)):
            if stretch.first < stretch.last:
                compare = self._compare_batch if stretch.queue[0] in self.batch_topics else self._compare
                compare(units, stretch)

    def _compare(self, units: Units, stretch: UnitRange) -> None:
        start = int(units.queue_offset[stretch.first])
        stop = start + stretch.last - stretch.first
        wanted = units.packed[stretch.first : stretch.last]
        queue = self.reader.consume_queues.get(stretch.queue)
        if self._first.setdefault(stretch.queue, start) == start > 0:
            before = queue.units(start - 1, start)[0] if queue else None
            if before is not None and 0 < before["size"] < consume_queue.PRE_BLANK_SIZE:
                self._before.append((int(before["physical_offset"]), stretch.queue, start - 1))
            else:
                self.is_short = True
        self._fill_gap(stretch.queue, queue, self._next.get(stretch.queue, start), start)
        self._next[stretch.queue] = max(stop, self._next.get(stretch.queue, 0))
        if queue is None or not queue.segments:
            self.sink.write(stretch.queue, start, wanted.tobytes())
            return
        stored = queue.units(start, stop)
        if stored.tobytes() == wanted.tobytes():
            return
        differs = stored != wanted
        self.is_short |= self._leads_before(stored[differs])
        for row in np.flatnonzero(differs & consume_queue_ext.is_address(stored["tags_code"])).tolist():
            differs[row] = not self._says_the_same(stretch.queue, stored[row], units, stretch.first + row)
        for first, last in stretches(differs):
            self.sink.write(stretch.queue, start + first, wanted[first:last].tobytes())

    def _leads_before(self, units: Packed) -> bool:
        """Return whether units lead to messages that the log has before the first that was taken."""
        addresses = units["physical_offset"].astype(np.int64)
        is_there = (addresses >= self.reader.commit_log.min_offset) & (addresses < self.start_offset)
        return bool((is_there & (units["size"] > 0) & (units["size"] < consume_queue.PRE_BLANK_SIZE)).any())

    def _with_place(self, units: Units, stretch: UnitRange) -> UnitRange:
        """Return the part of a stretch whose messages can have the queue offsets that they state.

        Damaged offsets are taken or impossible; if two logs were mixed, others have the first ones.
        """
        if stretch.first == stretch.last:
            return stretch
        start = int(units.queue_offset[stretch.first])
        after = self._next.get(stretch.queue, start)
        if not 0 <= start < consume_queue.OFFSET_END or start - after > self._most:
            return stretch._replace(first=stretch.last)
        skipped = int(np.searchsorted(units.queue_offset[stretch.first : stretch.last], after))
        return stretch._replace(first=stretch.first + skipped)

    def _says_the_same(self, key: QueueKey, stored: np.void, units: Units, row: int) -> bool:
        """Return whether a unit, with its extension, has the expected contents."""
        ext = self.reader.consume_queue_exts.get(key)
        unit = ext.unit_at(int(stored["tags_code"])) if ext else None
        return (
            unit is not None
            and (stored["physical_offset"], stored["size"]) == (units.physical_offset[row], units.size[row])
            and (unit["tags_code"][0], unit["store_timestamp"][0]) == (units.tags_code[row], units.store_timestamp[row])
        )

    def _compare_batch(self, units: Units, stretch: UnitRange) -> None:
        key, rows, count = stretch.queue, slice(stretch.first, stretch.last), stretch.last - stretch.first
        start, is_first = int(units.queue_offset[stretch.first]), key not in self._next
        self._first.setdefault(key, start)
        self._next[key] = int(units.queue_offset[stretch.last - 1] + units.batch_size[stretch.last - 1])
        queue = self.reader.batch_consume_queues.get(key)
        if queue is None:
            self.others.add(key)
            return
        place = queue.place_of(start)
        if is_first:
            before = queue.units(place - 1, place)
            if start > 0 and (before["queue_offset"] + before["batch_size"]).tolist() == [start]:
                self._before.append((int(before["physical_offset"][0]), key, start - 1))
            else:
                self.is_short |= start > 0
        stored = queue.units(place, min(place + count, queue.unit_count))
        names = ("queue_offset", "physical_offset", "size", "tags_code", "store_timestamp", "batch_size")
        if (
            place != self._places.get(key, place)
            or len(stored) < count
            or any((stored[name] != getattr(units, name)[rows]).any() for name in names)
        ):
            self.others.add(key)
        self._places[key] = place + count

    def finish(self, plan: LogPlan) -> None:
        """Trim what is after the last message; units that point beyond the end of the log are messages lost.

        These are noted in the plan of the log.
        """
        min_offset = self.reader.commit_log.min_offset
        start = max(self.start_offset, min_offset)
        self.leads_nowhere = not self._is_sound_before(min_offset)
        for key, queue in self._queues.items():
            last = queue.max_offset()
            end = self._next.get(key)
            if end is None:
                end = _first_at_or_behind(queue, start if start > min_offset else 0, last)
            if last > end:
                # What is behind a message of the log has not expired, wherever its unit leads.
                least = self.began_at if key in self._next else 0
                self._tell_units(key, queue, end, last, plan, least=least, address=plan.end_offset)
                self.sink.trim(key, end)
                self._trimmed[key] = end
            self._fill_front(key, queue, start)
            self._tell_lost_first(key, queue, self._first.get(key, end), plan)
        for key, batch in self._batch_queues.items():
            self._finish_batch(key, batch, start, plan)

    def _is_sound_before(self, min_offset: int) -> bool:
        """Return whether the last message of each queue before those that were taken is where its unit leads.

        If one is not, more of what is before may be damaged. Those before ``min_offset`` have expired.
        """
        before = sorted(place for place in self._before if min_offset <= place[0] < self.start_offset)
        for places in (before[n : n + _AT_ONCE] for n in range(0, len(before), _AT_ONCE)):
            addresses = [address for address, _, _ in places]
            try:
                records = [self.reader.record_at(address) for address in addresses]
            except (FormatError, NotFoundError):
                return False
            sizes = np.array([len(record) for record in records], np.int64)
            table = scan.gather(memoryview(b"".join(records)), 0, np.cumsum(sizes) - sizes)
            if table.faults.any() or table.column("physical_offset").tolist() != addresses:
                return False
            units = dispatch(table, self.reader.delay_levels, with_entries=False).units
            ranges = {
                (addresses[units.rows[number]], queue): range(int(units.queue_offset[number]), units.after(number))
                for queue, first, last in units.stretches
                for number in range(first, last)
            }
            if not all(offset in ranges.get((address, queue), ()) for address, queue, offset in places):
                return False
        return True

    def _tell_units(
        self,
        key: QueueKey,
        queue: ConsumeQueue,
        start: int,
        stop: int,
        plan: LogPlan,
        *,
        before: int = _NO_END,
        least: int = 0,
        address: int,
    ) -> tuple[int, int]:
        """Note the messages of the units in a range of queue offsets that lead before an address, and those between.

        Returns one past the last unit that is not empty, and its address. Units that lead before ``least`` are damaged;
        ``address`` stands for that of those at the start.
        """
        after = start
        for low, units in queue.windows(start, stop):
            used = np.flatnonzero(units["size"] != 0)
            offsets = low + used
            # Empty units, or units of missing files, were between those of messages.
            begins = np.r_[after, offsets[:-1] + 1][: len(offsets)]
            addresses = _addresses(units[used], least, address)
            # As many as the log holds, or held between their messages: the log may have become short.
            most = np.maximum(self._most, np.diff(addresses, prepend=address) // layout.MIN_SIZE)
            begins = np.where(offsets - begins <= most, begins, offsets)
            self._tell(key, begins, offsets + 1, units[used], addresses, plan, before)
            if len(offsets):
                after, address = int(offsets[-1]) + 1, int(addresses[-1])
        return after, address

    def _tell_lost_first(self, key: QueueKey, queue: ConsumeQueue, stop: int, plan: LogPlan) -> None:
        """Note the messages before an offset of a queue whose segments are lost, with which the log began."""
        if not self._is_first_lost:
            return
        before = self.reader.commit_log.min_offset
        first = queue.first_offset
        after, address = self._tell_units(key, queue, first, stop, plan, before=before, address=self.began_at)
        if self.began_at <= address < before and 0 < stop - after <= self._most:
            plan.losses.add(key, after, stop, 0, _SEGMENT_GONE)  # behind the last unit that is left of them

    @property
    def _is_first_lost(self) -> bool:
        """Whether the log began with segments that are lost, and does so no more."""
        return self.began_at < min(self.start_offset, self.reader.commit_log.min_offset)

    def _finish_batch(self, key: QueueKey, queue: BatchConsumeQueue, start_offset: int, plan: LogPlan) -> None:
        count = queue.used_count
        units = queue.units(0, count)
        place = self._places.get(key, int(np.argmax(np.r_[units["physical_offset"] >= start_offset, True])))
        if count > place:
            self.others.add(key)
        last = units[min(place, count) - 1] if place and count else None
        end = queue.first_offset if last is None else int(last["queue_offset"]) + int(last["batch_size"])
        end = self._trimmed[key] = self._next.get(key, end)
        units = queue.units_in_line(0, count)
        firsts = units["queue_offset"].astype(np.int64)
        stops = firsts + units["batch_size"]
        addresses = _addresses(units, 0, plan.end_offset)
        self._tell(key, np.maximum(firsts, end), stops, units, addresses, plan)
        if self._is_first_lost:
            stops = np.minimum(stops, self._first.get(key, end))
            self._tell(key, firsts, stops, units, addresses, plan, self.reader.commit_log.min_offset)

    def _tell(
        self,
        key: QueueKey,
        starts: Ints,
        stops: Ints,
        units: Packed,
        addresses: Ints,
        plan: LogPlan,
        before: int = _NO_END,
    ) -> None:
        """Note the messages of units that lead before an address, except for expired ones."""
        sizes = units["size"].astype(np.int64)
        mask = (sizes > 0) & (sizes < consume_queue.PRE_BLANK_SIZE) & (stops > starts)
        mask &= (addresses >= self.began_at) & (addresses < before)
        is_behind = addresses >= plan.end_offset
        is_before = addresses < min(self.start_offset, self.reader.commit_log.min_offset)
        reasons = ((is_before, _SEGMENT_GONE), (is_behind, BEHIND), (~is_before & ~is_behind, _ELSEWHERE))
        for which, reason in reasons:
            told = mask & which
            plan.losses.add_many(key, starts[told], stops[told], sizes[told], reason)

    @property
    def _queues(self) -> dict[QueueKey, ConsumeQueue]:
        return {key: queue for key, queue in self.reader.consume_queues.items() if key[0] not in self.batch_topics}

    @property
    def _batch_queues(self) -> dict[QueueKey, BatchConsumeQueue]:
        return {key: queue for key, queue in self.reader.batch_consume_queues.items() if key[0] in self.batch_topics}

    def ends(self) -> dict[QueueKey, int]:
        """Return one past the last queue offset of each queue, as it becomes; known once ``finish`` was called."""
        ends = {key: queue.max_offset() for key, queue in self._queues.items()}
        ends |= {key: queue.max_offset() for key, queue in self._batch_queues.items()}
        return ends | self._trimmed | self._next

    def _fill_front(self, key: QueueKey, queue: ConsumeQueue, start_offset: int) -> None:
        """Replace empty or foreign units before the first message by pre-blank ones: else a queue ends there."""
        first = self._first.get(key, queue.first_offset)  # may be beyond the end of what is left of the queue
        if first - queue.first_offset > self._most + self._file_units:
            return  # a misnamed file
        for low in range(queue.first_offset, first, _STEP):
            units = queue.units(low, min(low + _STEP, first))
            # All messages from there on were taken: no earlier unit of this queue leads there.
            is_wrong = (units["physical_offset"] >= start_offset) & ~are_fillers(units)
            for begin, end in stretches((units["size"] <= 0) | is_wrong):
                self.is_short = True  # unless the whole log was taken
                self.sink.write(key, low + begin, _PRE_BLANK * (end - begin))

    def _fill_gap(self, key: QueueKey, queue: ConsumeQueue | None, start: int, stop: int) -> None:
        """Replace empty units between two messages, whose own are lost without a placeholder, or a queue ends there."""
        for low in range(start, stop, _STEP):
            high = min(low + _STEP, stop)
            units = queue.units(low, high) if queue else np.zeros(high - low, consume_queue.UNIT.dtype)
            for begin, end in stretches(units["size"] <= 0):
                self.sink.write(key, low + begin, _PRE_BLANK * (end - begin))


def _addresses(units: Packed, least: int, address: int) -> Ints:
    """Return where units lead: those to before ``least``, which are damaged, to where the one before them leads.

    Those at the start lead to ``address``.
    """
    addresses = units["physical_offset"].astype(np.int64)
    is_message = (units["size"] > 0) & (units["size"] < consume_queue.PRE_BLANK_SIZE)
    is_damaged = is_message & (addresses < least)
    if not is_damaged.any():
        return addresses
    last = np.maximum.accumulate(np.where(is_message & ~is_damaged, np.arange(len(units)), -1))
    return np.where(is_damaged, np.where(last < 0, address, addresses[last]), addresses)


def _first_at_or_behind(queue: ConsumeQueue, offset: int, last: int) -> int:
    """Return the first unit of a message at or after an address, of a queue none of whose messages was found."""
    for low, units in queue.windows(queue.first_offset, last):
        later = np.flatnonzero((units["physical_offset"] >= offset) & ~are_fillers(units))
        if len(later):
            return low + int(later[0])
    return last


@dataclasses.dataclass
class DifferenceCounter:
    """Counts differences, and keeps them while they are few."""

    written: "collections.Counter[QueueKey]" = dataclasses.field(default_factory=collections.Counter)
    trimmed: dict[QueueKey, int] = dataclasses.field(default_factory=dict)
    units: dict[QueueKey, list[tuple[int, bytes]]] | None = dataclasses.field(default_factory=dict)
    """The units to write, by queue; None if they are too many for memory."""
    _size: int = 0

    def write(self, key: QueueKey, queue_offset: int, units: bytes) -> None:
        """Count units."""
        self.written[key] += len(units) // SIZE
        self._size += len(units)
        if self._size > KEPT:
            self.units = None
        if self.units is not None:
            self.units.setdefault(key, []).append((queue_offset, units))

    def trim(self, key: QueueKey, queue_offset: int) -> None:
        """Note the end."""
        self.trimmed[key] = queue_offset

    def tell(self, sink: DifferenceSink) -> bool:
        """Pass everything to another sink; return False if it was not kept."""
        if self.units is None:
            return False
        for key, differences in self.units.items():
            for queue_offset, units in _joined(differences):
                sink.write(key, queue_offset, units)
        for trim in self.trimmed.items():
            sink.trim(*trim)
        return True


def _joined(differences: list[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Yield the differences of a queue, consecutive ones joined."""
    first = stop = 0
    parts: list[bytes] = []
    for queue_offset, units in differences:
        if parts and queue_offset != stop:
            yield first, b"".join(parts)
            parts = []
        first = first if parts else queue_offset
        parts.append(units)
        stop = queue_offset + len(units) // SIZE
    if parts:
        yield first, b"".join(parts)


class QueueWriter:
    """Writes differences into the files of the store."""

    def __init__(self, reader: StoreReader, journal: Journal) -> None:
        self.reader = reader
        self.journal = journal
        self.file_size = Sizes.of(reader).queue
        self._made: set[Path] = set()
        self._files: dict[tuple[QueueKey, int], Path] = {}  # those that are there

    def write(self, key: QueueKey, queue_offset: int, units: bytes) -> None:
        """Write units at a queue offset; creates files as needed."""
        at = queue_offset * SIZE
        while units:
            start = at // self.file_size * self.file_size
            path = self._files.get((key, start))
            if path is None:
                path = self.reader.paths.consume_queue / key[0] / str(key[1]) / segment_name(start)
                if not path.exists():
                    self._make(path, at - start)
                self._files[key, start] = path
            count = min(len(units), start + self.file_size - at)
            if path in self._made:
                self.journal.fill(path, at - start, units[:count])
            else:
                self.journal.write(path, at - start, units[:count])
            at, units = at + count, units[count:]

    def _make(self, path: Path, blank: int) -> None:
        """Create a file; the first of a queue is filled with pre-blank units up to its first unit, as by a broker."""
        is_first = not path.parent.exists() or not any(path.parent.iterdir())
        for folder in (path.parent.parent.parent, path.parent.parent, path.parent):
            if not folder.exists():
                self.journal.make_folder(folder)
        self.journal.create(path, self.file_size)
        if is_first and blank:
            self.journal.fill(path, 0, _PRE_BLANK * (blank // SIZE))
        self._made.add(path)

    def trim(self, key: QueueKey, queue_offset: int) -> None:
        """Clear units; files that lie wholly beyond are removed."""
        queue = self.reader.consume_queues[key]
        end = queue_offset * SIZE
        for segment in reversed(queue.segments):
            if segment.start_offset >= end and segment is not queue.segments[0]:
                self.journal.remove(segment.path)
                self._files.pop((key, segment.start_offset), None)
            elif segment.end_offset > end:
                at = max(0, end - segment.start_offset)
                used = used_units(segment, consume_queue.UNIT.dtype) * SIZE
                if used > at:
                    self.journal.write(segment.path, at, bytes(used - at))
