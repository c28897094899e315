"""Checks of the consume queues: their files, each unit against its message, each message against its unit.

Cost: linear in units and messages.
"""

import bisect
import collections
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mqtool.engine.repair.checks import finding
from mqtool.engine.repair.findings import Finding, Rest
from mqtool.engine.repair.rebuild.plan import batch_topics_of
from mqtool.engine.repair.verify.log import Compared, LogVerifier, QueueStretch, stretches
from mqtool.engine.store.consume_queue import BatchConsumeQueue, ConsumeQueue, are_empty
from mqtool.engine.store.dispatch import QueueKey, UnitRange, Units
from mqtool.engine.store.file_queue import FileQueue
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.reader import StoreReader
from mqtool.engine.store.remote import is_folder
from mqtool.formats import batch_consume_queue, consume_queue, consume_queue_ext

STEP = 1 << 18
_TORN = "a unit that was not written completely"
_BEYOND = "the unit points beyond the end of the log: its message is lost"
_DANGLING = "no message of this queue starts where the unit points: it is lost or damaged"
_FIELDS = (
    ("physical_offset", "QUEUE-POSITION", "the unit points elsewhere"),
    ("size", "QUEUE-LENGTH", "the size in the unit is not that of its message"),
    ("tags_code", "QUEUE-TAGS", "the tags code is not that of its message: a filter would miss it"),
)

_BATCH_FIELDS = (
    *_FIELDS,
    ("store_timestamp", "QUEUE-TIME", "the store time in the unit is not that of its message"),
    ("batch_size", "QUEUE-BATCH", "the message count in the unit is not that of its record"),
)


class IntervalSet:
    """A set of numbers as disjoint ranges: a sound queue needs few, however many units it has."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def add(self, start: int, stop: int) -> None:
        """Add a range."""
        first = bisect.bisect_left(self._stops, start)
        last = bisect.bisect_right(self._starts, stop)
        if first < last:
            start, stop = min(start, self._starts[first]), max(stop, self._stops[last - 1])
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]

    def all(self) -> list[tuple[int, int]]:
        """Return the ranges in order."""
        return list(zip(self._starts, self._stops, strict=True))

    def has(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Return, for each number of a range, whether it is in the set."""
        numbers = np.arange(start, stop)
        return np.searchsorted(self._starts, numbers, "right") > np.searchsorted(self._stops, numbers, "right")


class QueueChecker:
    """Compares units and messages.

    On a live store the ends of all queues are read at creation: before the log is examined, so that nothing is
    checked that the broker is still about to write.
    """

    def __init__(self, reader: StoreReader, live: bool) -> None:
        self.reader = reader
        self.live = live
        self.queues: Mapping[QueueKey, ConsumeQueue] = reader.consume_queues
        self.batch_queues: Mapping[QueueKey, BatchConsumeQueue] = reader.batch_consume_queues
        self._claimed: dict[QueueKey, IntervalSet] = collections.defaultdict(IntervalSet)  # places of batch queues
        self._wrong: list[QueueStretch] = []
        self._listed: collections.Counter[str] = collections.Counter()
        self._last: dict[tuple[str, QueueKey], tuple[int, int | None]] = {}
        self._rest: collections.Counter[tuple[str, str]] = collections.Counter()
        self.rocksdb = reader.rocksdb_queues is not None
        if live:
            for queue in self.queues.values():
                queue.max_offset()
            for batch_queue in self.batch_queues.values():
                batch_queue.max_offset()

    def take(self, compared: Compared, most: int | None) -> None:
        """Note the findings on the next messages of the log; ``most`` of each code are listed, None for all."""
        for key, start, stop in compared.claimed:
            self._claimed[key].add(start, stop)
        for stretch in sorted(compared.stretches, key=lambda stretch: stretch.physical_offset):
            last = self._last.get((stretch.code, stretch.queue))
            place: int | None = None
            if last and last[0] == stretch.start:  # it continues with the one before it
                place = last[1]
                if place is not None:
                    self._wrong[place] = self._wrong[place]._replace(stop=stretch.stop)
            elif most is None or self._listed[stretch.code] < most:
                self._listed[stretch.code] += 1
                place = len(self._wrong)
                self._wrong.append(stretch)
            else:
                folder = self.reader.paths.relative(self.queues[stretch.queue].folders[0])
                self._rest[stretch.code, folder] += 1
            self._last[stretch.code, stretch.queue] = stretch.stop, place

    def wrong_units(self) -> Iterator[Finding | Rest]:
        """Report units that are missing or point elsewhere, in the order of their messages."""
        for stretch in self._wrong:
            queue, count = self.queues[stretch.queue], stretch.stop - stretch.start
            if stretch.code == "QUEUE-MISSING":
                yield self._missing(queue, stretch.start, stretch.stop)
            else:
                text = "the unit points elsewhere" + (f" ({count:,} units from here on)" if count > 1 else "")
                expected = stretch.physical_offset
                yield self._unit(stretch.code, text, queue, stretch.start, expected, stretch.found, expected)
        for (code, folder), count in self._rest.items():
            yield Rest(code, folder, count)

    def end_of_dispatch(self) -> int | None:
        """Return an address below which all messages existed when the ends were read, None without a queue."""
        ends = []
        for key, queue in self.queues.items():
            stop = self._max_offset(key)
            if stop > queue.first_offset:
                unit = queue.units(stop - 1, stop)[0]
                if 0 < unit["size"] < consume_queue.PRE_BLANK_SIZE:
                    ends.append(int(unit["physical_offset"]) + int(unit["size"]))
        for batch_queue in self.batch_queues.values():
            last = batch_queue.units(batch_queue.unit_count - 1, batch_queue.unit_count)
            ends += last["physical_offset"].tolist()
        return max(ends, default=None)

    def _max_offset(self, key: QueueKey) -> int:
        # The last unit of a queue in use may be only partly written.
        return self.queues[key].max_offset() - self.live

    def compare(self, units: Units) -> Compared:
        """Compare the units that messages should have with those in the files."""
        compared = Compared()
        for stretch in units.stretches:
            if stretch.queue in self.queues:
                self._compare_stretch(self.queues[stretch.queue], units, stretch, compared)
            elif stretch.queue in self.batch_queues:
                self._compare_batch(units, stretch, compared)
        return compared

    def _compare_stretch(self, queue: ConsumeQueue, units: Units, stretch: UnitRange, compared: Compared) -> None:
        def note(code: str, first: int, last: int, actual: int = 0) -> None:
            address = int(units.physical_offset[stretch.first + first - start])
            compared.stretches.append(QueueStretch(code, stretch.queue, first, last, address, actual))

        start = int(units.queue_offset[stretch.first])
        stop = start + stretch.last - stretch.first
        high = min(stop, self._max_offset(stretch.queue))
        low = max(start, queue.hold().first_offset, queue.gone_offset)
        first = max(start, queue.gone_offset)
        if first < min(low, stop):
            note("QUEUE-MISSING", first, min(low, stop))
        if low >= high:
            return
        stored = queue.units(low, high)
        rows = slice(stretch.first + low - start, stretch.first + high - start)
        wanted = units.packed[rows]
        if stored.tobytes() == wanted.tobytes():
            return
        sizes = stored["size"]
        empty = are_empty(stored)
        for begin, end in stretches(empty):
            note("QUEUE-MISSING", low + begin, low + end)
        elsewhere = ~empty & (sizes > 0) & (stored["physical_offset"] != wanted["physical_offset"])
        for begin, end in stretches(elsewhere):
            note("QUEUE-POSITION", low + begin, low + end, int(stored["physical_offset"][begin]))
        for at in np.flatnonzero((stored != wanted) & ~empty & ~elsewhere).tolist():
            row = rows.start + at
            address = int(units.physical_offset[row])
            compared.found += [
                (address, difference) for difference in self._differences(queue, units, row, low + at, stored[at])
            ]

    def _differences(
        self, queue: ConsumeQueue, units: Units, row: int, offset: int, stored: npt.NDArray[np.void]
    ) -> Iterator[Finding]:
        if stored["size"] <= 0:
            yield self._unit("QUEUE-TORN", _TORN, queue, offset)
            return
        for name, code, text in _FIELDS:
            expected, value = int(getattr(units, name)[row]), int(stored[name])
            if name == "tags_code" and consume_queue_ext.is_address(value):
                yield from self._ext_difference(queue, units, row, offset, value)
            elif value != expected:
                yield self._unit(code, text, queue, offset, expected, value, int(units.physical_offset[row]))

    def _ext_difference(
        self, queue: ConsumeQueue, units: Units, row: int, offset: int, address: int
    ) -> Iterator[Finding]:
        key = (queue.topic, queue.queue_id)
        if self.reader.is_left_out(self.reader.paths.consume_queue_ext / key[0] / str(key[1])):
            return
        ext = self.reader.consume_queue_exts.get(key)
        unit = ext.unit_at(address) if ext else None
        if unit is None and ext and consume_queue_ext.position_of(address) < ext.gone_until:
            return
        if unit is None:
            text = "the unit refers to a place in the extension where there is no unit"
            place = consume_queue_ext.position_of(address)
            yield self._unit("QUEUE-EXT", text, queue, offset, None, place, int(units.physical_offset[row]))
            return
        for name in ("tags_code", "store_timestamp"):
            expected, value = int(getattr(units, name)[row]), int(unit[name][0])
            if value != expected:
                text = f"the extension has another {name.replace('_', ' ')} than the message"
                yield self._unit("QUEUE-EXT", text, queue, offset, expected, value, int(units.physical_offset[row]))

    def _compare_batch(self, units: Units, stretch: UnitRange, compared: Compared) -> None:
        queue = self.batch_queues[stretch.queue]
        offsets = units.queue_offset[stretch.first : stretch.last]
        behind = np.flatnonzero(offsets >= queue.max_offset())  # checked at the end
        offsets = offsets[: behind[0]] if len(behind) else offsets
        at = 0
        while at < len(offsets):
            offset = int(offsets[at])
            place = queue.place_of(offset)
            # A unit with exactly this queue offset suffices, in order or not.
            in_line = queue.next_in_line(place)
            near = queue.units(place, in_line + 1)["queue_offset"]
            exact = np.flatnonzero(near == offset)
            first = place + int(exact[0]) if len(exact) else in_line
            stored = queue.units(first, min(first + len(offsets) - at, queue.unit_count))
            elsewhere = np.flatnonzero(stored["queue_offset"] != offsets[at : at + len(stored)])
            count = int(elsewhere[0]) if len(elsewhere) else len(stored)
            if count:
                compared.claimed.append((stretch.queue, first, first + count))
                self._compare_batch_units(queue, units, stretch.first + at, first, stored[:count], compared)
            else:
                lost = offsets[at:][: max(1, int(np.searchsorted(offsets[at:], queue.offset_from(place))))]
                count = max(1, int(np.argmax([*np.isin(lost, near), True])))
                # Its place is after the preceding units that are in order.
                last = int(queue.units(place - 1, place)["queue_offset"][0]) if place else -1
                back = np.flatnonzero(np.diff(near, prepend=last) <= 0)
                before = np.searchsorted(near[: back[0]] if len(back) else near, lost[:count])
                for i, missed in enumerate(lost[:count].tolist()):
                    address = queue.address_before(place + int(before[i]))
                    problem = self._batch_unit("QUEUE-MISSING", "the message has no unit", queue, address, missed)
                    compared.found.append((int(units.physical_offset[stretch.first + at + i]), problem))
            at += count

    def _compare_batch_units(
        self,
        queue: BatchConsumeQueue,
        units: Units,
        row: int,
        place: int,
        stored: npt.NDArray[np.void],
        compared: Compared,
    ) -> None:
        """Compare the units from ``row`` on with those stored from ``place`` on."""
        wanted = {name: getattr(units, name)[row : row + len(stored)] for name, _, _ in _BATCH_FIELDS}
        differs = np.any([stored[name] != column for name, column in wanted.items()], axis=0)
        for i in np.flatnonzero(differs).tolist():
            for name, code, text in _BATCH_FIELDS:
                expected, value = int(wanted[name][i]), int(stored[name][i])
                if expected != value:
                    address, offset = queue.address_of(place + i), int(stored["queue_offset"][i])
                    problem = self._batch_unit(code, text, queue, address, offset, expected, value)
                    compared.found.append((int(units.physical_offset[row + i]), problem))

    def finish(self, verifier: LogVerifier) -> Iterator[Finding | Rest]:
        """Check the units without a message, and the messages that no queue reaches."""
        yield from self.wrong_units()
        log_start, log_end = self.reader.commit_log.min_offset, verifier.end_offset
        for key, start, stop in sorted(verifier.jumps, key=lambda jump: (jump[0], jump[1] or -1, jump[2])):
            queue = self.queues.get(key)
            if queue:
                stop = min(stop, self._max_offset(key))
                yield from self._unclaimed(
                    queue, queue.first_offset if start is None else start, stop, log_start, log_end
                )
        for key, queue in self.queues.items():
            claimed = verifier.next_offsets.get(key, queue.first_offset)
            yield from self._unclaimed(queue, claimed, self._max_offset(key), log_start, log_end)
        for key, batch_queue in self.batch_queues.items():
            yield from self._unclaimed_batch(batch_queue, self._claimed[key], log_start, log_end)
        if not self.live and not self.rocksdb:
            yield from self._behind(verifier)

    def check_ends(self, verifier: LogVerifier) -> Iterator[Finding | Rest]:
        """Check only the end of each queue: whether it is within the log, and has the last messages of the log."""
        yield from self.wrong_units()
        for key, queue in self.queues.items():
            stop = self._max_offset(key)
            start = max(stop - 1, queue.first_offset, verifier.next_offsets.get(key, 0))
            for problem in self._unclaimed(queue, start, stop, 0, verifier.end_offset):
                if problem.code == "QUEUE-BEYOND":
                    yield problem
        if not self.live and not self.rocksdb:
            yield from self._behind(verifier)

    def _behind(self, verifier: LogVerifier) -> Iterator[Finding]:
        lost: dict[str, list[QueueKey]] = {}
        for key, stop in sorted(verifier.next_offsets.items()):
            if key in self.queues:
                if stop > max(self._max_offset(key), self.queues[key].gone_offset):
                    first = self._max_offset(key)
                    yield self._missing(self.queues[key], max(first, verifier.first_offsets[key]), stop)
            elif key in self.batch_queues:
                queue = self.batch_queues[key]
                end = queue.max_offset()
                if stop > end:
                    text = f"{stop - end:,} messages at the end of the queue have no unit"
                    yield self._batch_unit("QUEUE-MISSING", text, queue, queue.address_before(queue.unit_count), end)
            elif not self.reader.lacks_queue(key):
                lost.setdefault(self._lost_folder(key), []).append(key)
        for folder, keys in lost.items():
            subject = "the queue is" if len(keys) == 1 else f"{len(keys):,} queues are"
            text = f"{subject} missing, although the log contains messages of {'it' if len(keys) == 1 else 'them'}"
            first = min(verifier.first_addresses[key] for key in keys)
            place: dict[str, Any] = {"file": folder, "physical_offset": first}
            if len({topic for topic, _ in keys}) == 1:
                place["topic"] = keys[0][0]
            if len(keys) == 1:
                place |= {"queue_id": keys[0][1], "queue_offset": verifier.first_offsets[keys[0]]}
            yield finding("QUEUE-MISSING", text, **place)

    @functools.cached_property
    def _batch_topics(self) -> set[str]:
        return batch_topics_of(self.reader)

    def _lost_folder(self, key: QueueKey) -> str:
        """Return the topmost missing folder of a missing queue."""
        is_batch = key[0] in self._batch_topics
        root = self.reader.paths.batch_consume_queue if is_batch else self.reader.paths.consume_queue
        topic = root / key[0]
        # A damaged name may be too long for any file system.
        folder = topic / str(key[1]) if is_folder(topic) else topic if root.is_dir() else root
        return self.reader.paths.relative(folder)

    def _unclaimed(self, queue: ConsumeQueue, start: int, stop: int, log_start: int, log_end: int) -> Iterator[Finding]:
        """Check units that belong to no message of the log."""
        for at, units in queue.windows(max(start, queue.first_offset), stop):  # a damaged message may claim any offset
            offsets = units["physical_offset"].astype(np.int64)
            sizes = units["size"].astype(np.int64)
            filler = (offsets == 0) & ((sizes == 0) | (sizes == consume_queue.PRE_BLANK_SIZE))
            left = ~filler & ~((sizes > 0) & (offsets >= 0) & (offsets < log_start))
            torn = left & ((sizes <= 0) | (offsets < 0))
            beyond = left & ~torn & (offsets + sizes > log_end)
            for code, text, mask in (
                ("QUEUE-TORN", _TORN, torn),
                ("QUEUE-BEYOND", _BEYOND, beyond),
                ("QUEUE-DANGLING", _DANGLING, left & ~torn & ~beyond),
            ):
                if code == "QUEUE-BEYOND" and self.live:
                    continue
                for begin, end in stretches(mask):
                    count = end - begin
                    yield self._unit(
                        code,
                        text if count == 1 else f"{text} ({count:,} units from here on)",
                        queue,
                        at + begin,
                        physical_offset=int(offsets[begin]),
                    )

    def _unclaimed_batch(
        self, queue: BatchConsumeQueue, claimed: IntervalSet, log_start: int, log_end: int
    ) -> Iterator[Finding]:
        for at in range(0, queue.unit_count, STEP):
            units = queue.units(at, min(at + STEP, queue.unit_count))
            offsets = units["physical_offset"].astype(np.int64)
            beyond = offsets + units["size"] > log_end
            dangling = ~claimed.has(at, at + len(units)) & ~beyond & (offsets >= log_start)
            if self.live:
                beyond[:] = False
            for code, text, mask in (("QUEUE-BEYOND", _BEYOND, beyond), ("QUEUE-DANGLING", _DANGLING, dangling)):
                for i in np.flatnonzero(mask).tolist():
                    yield self._batch_unit(code, text, queue, queue.address_of(at + i), int(units["queue_offset"][i]))

    def _missing(self, queue: ConsumeQueue, start: int, stop: int) -> Finding:
        count = stop - start
        text = "the message has no unit" if count == 1 else f"{count:,} messages from here on have no unit"
        if start >= 0 and queue.units(start, start + 1)["size"][0] == consume_queue.PRE_BLANK_SIZE:
            text += ", only filler that a broker wrote when it started the queue here"
        return self._unit("QUEUE-MISSING", text, queue, start)

    def _unit(
        self,
        code: str,
        text: str,
        queue: ConsumeQueue,
        offset: int,
        expected: int | None = None,
        actual: int | None = None,
        physical_offset: int | None = None,
    ) -> Finding:
        file, at = _place(self.reader, queue, offset * consume_queue.UNIT_SIZE)
        return finding(
            code,
            text,
            file=file,
            offset=at,
            expected=expected,
            found=actual,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            physical_offset=physical_offset,
        )

    def _batch_unit(
        self,
        code: str,
        text: str,
        queue: BatchConsumeQueue,
        address: int,
        offset: int,
        expected: int | None = None,
        actual: int | None = None,
    ) -> Finding:
        file, at = _place(self.reader, queue, address)
        return finding(
            code,
            text,
            file=file,
            offset=at,
            expected=expected,
            found=actual,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
        )


def _place(reader: StoreReader, queue: FileQueue, address: int) -> tuple[str, int | None]:
    """Return the file that holds, or should hold, an address of a queue, and where."""
    segment: MappedFile | None = queue.segment_at(address)
    if segment is None and queue.segments:
        segment = min(queue.segments, key=lambda candidate: abs(candidate.start_offset - address))
    if segment is None:
        return reader.paths.relative(queue.folders[0]), None
    return reader.paths.relative(segment.path), address - segment.start_offset


def check_files(reader: StoreReader) -> Iterator[Finding]:
    """Check names, lengths and gaps of the files of all queues."""
    kinds: list[tuple[Mapping[QueueKey, Any], int]] = [
        (reader.consume_queues, consume_queue.UNIT_SIZE),
        (reader.batch_consume_queues, batch_consume_queue.UNIT_SIZE),
        (reader.consume_queue_exts, 1),
    ]
    live = reader.is_live
    for queues, unit_size in kinds:
        common = _common_size(queues)
        for queue in queues.values():
            yield from _check_queue_files(reader, queue, unit_size, common, live)


def _common_size(queues: Mapping[QueueKey, Any]) -> int:
    """Return the length of most queues' files: one setting applies to all of them."""
    sizes = [queue.file_size for queue in queues.values() if queue.file_size]
    return max(set(sizes), key=sizes.count) if sizes else 0


def _check_queue_files(reader: StoreReader, queue: Any, unit_size: int, size: int, live: bool) -> Iterator[Finding]:
    place = {"topic": queue.topic, "queue_id": queue.queue_id}
    for stray in queue.strays:
        text = "a link that leads nowhere: it was not checked" if stray.leads_nowhere else "not a queue file"
        yield finding("QUEUE-STRAY", text, file=reader.paths.relative(stray.path), **place)
    previous = None
    for segment in queue.segments:
        file = reader.paths.relative(segment.path)
        if not segment.size and segment is queue.segments[-1] and live:
            continue  # just made
        if segment.size != size:
            text = f"a queue file of {segment.size:,} bytes, expected {size:,}: brokers refuse to start"
            yield finding(
                "QUEUE-FILE-SIZE",
                text,
                file=file,
                offset=min(size, segment.size),
                expected=size,
                found=segment.size,
                **place,
            )
        if segment.start_offset % unit_size or (size and segment.start_offset % size):
            yield finding("QUEUE-NAME", f"its name is not a multiple of {size:,}", file=file, **place)
        if previous and segment.start_offset > previous.start_offset + size:
            missing = segment.start_offset - previous.start_offset - size
            text = f"{missing:,} bytes of the queue are missing before this file"
            yield finding("QUEUE-GAP", text, file=file, offset=0, **place)
        previous = segment
