"""A queue as a broker reads it, whatever keeps its units: consume queue files, batch files, or RocksDB.

The ends are those that RocketMQ tells its clients: ``min_offset`` leaves out units that were made to fill a file and
units whose message is no longer in the log, ``max_offset`` is one past the last unit. They are taken when a view is
made, before the log is looked at, so that on a live store every unit below ``max_offset`` has its message.
"""

import abc
import bisect
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mqtool.engine.store import rocksdb
from mqtool.engine.store.consume_queue import BatchConsumeQueue, ConsumeQueue, ConsumeQueueExt, used_units
from mqtool.engine.store.mapped_file import MappedFile, reading
from mqtool.engine.store.reader import QueueKey, StoreReader
from mqtool.formats import batch_consume_queue, commit_log, consume_queue, consume_queue_ext
from mqtool.formats import kernels as plain
from mqtool.formats import rocksdb as rocksdb_layout

Ints = npt.NDArray[np.int64]
_SYS_FLAG_AT = int(commit_log.HEAD_DTYPES[0].fields["sys_flag"][1])  # type: ignore[index]
_TIMESTAMP_AT = [int(dtype.fields["store_timestamp"][1]) for dtype in commit_log.HEAD_DTYPES]  # type: ignore[index]
_TIMESTAMP_END = max(_TIMESTAMP_AT) + 8
_MOST = 1 << 62  # no queue offset of a real queue comes near


class UnitTable(NamedTuple):
    """Units of one queue in queue order, as columns of equal length."""

    queue_offset: Ints
    physical_offset: Ints
    size: Ints
    tags_code: Ints
    has_code: npt.NDArray[np.bool_]  # False: it names a place in the extension where none is
    batch_size: Ints

    def __len__(self) -> int:
        """Return how many units there are."""
        return len(self.queue_offset)

    @property
    def next_offset(self) -> Ints:
        """The queue offset that follows each unit."""
        return self.queue_offset + self.batch_size

    def where(self, rows: npt.NDArray[Any]) -> "UnitTable":
        """Return some of the units."""
        return UnitTable(*(column[rows] for column in self))


class QueueView(abc.ABC):
    """One queue; see the head of this file."""

    def __init__(self, reader: StoreReader, topic: str, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.min_offset = 0
        self.max_offset = 0
        self._reader = reader

    @abc.abstractmethod
    def units(self, start: int, limit: int) -> UnitTable:
        """Return up to ``limit`` units from the one that holds ``start`` on, or from the next; none at the end."""

    @abc.abstractmethod
    def offset_at(self, timestamp: int) -> int:
        """Return the queue offset from which messages stored at a time (ms) or later lie, as RocketMQ 5 finds it."""

    def newest(self) -> int | None:
        """Return the address of the last message, None for an empty queue."""
        if self.max_offset <= self.min_offset:
            return None
        last = self.units(self.max_offset - 1, 1).physical_offset
        return int(last[0]) if len(last) else None

    def _clamp(self, offset: int) -> int:
        return min(max(offset, self.min_offset), self.max_offset)

    def _first_kept(self, start: int, stop: int, physical_offset: Callable[[int], int]) -> int:
        """Return the first place whose message may still be in the log: the log offsets of a queue only grow."""
        log_start = self._reader.commit_log.min_offset
        if start >= stop or physical_offset(start) >= log_start:
            return start
        return bisect.bisect_left(range(stop), True, start, key=lambda place: physical_offset(place) >= log_start)

    def _store_time(self, physical_offset: int, size: int) -> int:
        """Return the store time of the message at an address, -1 where the log does not reach."""
        log = self._reader.commit_log
        if not log.min_offset <= physical_offset <= log.end_offset - size:
            return -1
        head = log.read(physical_offset, _TIMESTAMP_END)
        if len(head) < _TIMESTAMP_END:
            return -1
        form = commit_log.head_form(plain.int32(head, _SYS_FLAG_AT))
        return plain.int64(head, _TIMESTAMP_AT[form])


class FileQueueView(QueueView):
    """A queue in files of 20-byte units."""

    def __init__(self, reader: StoreReader, queue: ConsumeQueue, ext: ConsumeQueueExt | None) -> None:
        super().__init__(reader, queue.topic, queue.queue_id)
        self._queue = queue
        self._ext = ext
        self.max_offset = self._find_max_offset()
        self.min_offset = self._first_kept(queue.first_offset, self.max_offset, self._kept_offset)

    def _find_max_offset(self) -> int:
        for segment in reversed(self._queue.segments):
            used = used_units(segment, consume_queue.UNIT_DTYPE)
            if used:
                return int(segment.start_offset // consume_queue.UNIT_SIZE) + used
        return self._queue.first_offset

    def _kept_offset(self, offset: int) -> int:
        """Return the address that a unit names; -1 for a filler, and no end for a place without a unit."""
        physical_offset, size = self._unit(offset)
        if size == consume_queue.PRE_BLANK_SIZE:
            return -1
        return _MOST if size <= 0 else physical_offset

    def newest(self) -> int | None:
        """Return the address of the last message, None for an empty queue; no file is mapped for it."""
        return self._unit(self.max_offset - 1)[0] if self.max_offset > self.min_offset else None

    def units(self, start: int, limit: int) -> UnitTable:
        """Return up to ``limit`` units; places that no file has are passed over."""
        size = consume_queue.UNIT_SIZE
        segments = self._queue.segments
        first = bisect.bisect_right(segments, start * size, key=lambda segment: segment.start_offset)
        for segment in segments[max(0, first - 1) :]:
            # Where a file is missing a broker goes on with the next one.
            low = max(start, -(-segment.start_offset // size))
            high = min(low + limit, segment.end_offset // size, self.max_offset)
            if low < high:
                return self._table(low, high)
        return self._table(0, 0)

    def _table(self, start: int, stop: int) -> UnitTable:
        units = self._queue.units(start, stop)
        codes: Any = units["tags_code"].astype(np.int64)
        known = np.ones(len(units), np.bool_)
        addresses: Any = consume_queue_ext.is_address(codes)
        if addresses.any():
            codes[addresses], known[addresses] = self._ext_codes(codes[addresses])
        return UnitTable(
            np.arange(start, stop, dtype=np.int64),
            units["physical_offset"].astype(np.int64),
            units["size"].astype(np.int64),
            codes,
            known,
            np.ones(len(units), np.int64),
        )

    def _ext_codes(self, addresses: Any) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Return the tags codes kept in the extension, and which of them are there."""
        codes, known = addresses.copy(), np.zeros(len(addresses), np.bool_)
        positions: Any = consume_queue_ext.position_of(addresses)
        for segment in self._ext.segments if self._ext else ():
            low, high = segment.start_offset, segment.end_offset - consume_queue_ext.MIN_SIZE
            rows = np.flatnonzero((positions >= low) & (positions <= high))
            if len(rows):
                at = (positions[rows] - low)[:, None] + np.arange(consume_queue_ext.MIN_SIZE)
                units = np.ascontiguousarray(segment.bytes[at]).view(consume_queue_ext.HEAD_DTYPE)[:, 0]
                codes[rows] = units["tags_code"]
                known[rows] = units["size"] >= consume_queue_ext.MIN_SIZE
        return codes, known

    def offset_at(self, timestamp: int) -> int:
        """Return the first queue offset whose message was stored at a time or later."""
        return self._clamp(self._search(timestamp))

    def _search(self, timestamp: int) -> int:
        segment = None
        for segment in self._queue.segments:
            _, last = self._places(segment)
            if segment is self._queue.segments[-1] or self._time_of(last) >= timestamp:
                break
        if segment is None:
            return 0
        first, last = self._places(segment)
        floor = max(first, self.min_offset)
        if self._time_of(last) < timestamp:
            return last + 1
        if self._time_of(floor) > timestamp:
            return first
        found = self._bisect(timestamp, floor, last)
        if found is None:
            return 0
        exact, _, right = found
        if exact is None:
            return first - 1 if right is None else right[0]
        while exact > floor and self._time_of(exact - 1) == timestamp:
            exact -= 1
        return exact

    def offset_at_4(self, timestamp: int) -> int:
        """Return the offset that RocketMQ 4 finds for a time: file by modification time, in it the nearest message."""
        segment = None
        for segment in self._queue.segments:
            with reading(segment.path):
                if segment.path.stat().st_mtime_ns // 1_000_000 >= timestamp:
                    break
        if segment is None:
            return 0
        first, last = self._places(segment)
        found = self._bisect(timestamp, max(first, self.min_offset), last)
        if found is None:
            return 0
        exact, left, right = found
        if exact is not None:
            return exact
        if left and right and left[1] is not None:
            return right[0] if abs(timestamp - left[1]) > abs(timestamp - right[1]) else left[0]
        # Without a message on one side, whatever is on the other; -1 byte is RocketMQ's "nothing there".
        nearest = right if left is None or left[1] is None else left
        return nearest[0] if nearest else max(first - 1, 0)

    def _places(self, segment: MappedFile) -> tuple[int, int]:
        """Return the queue offsets of the first and last unit of a file."""
        size = consume_queue.UNIT_SIZE
        return -(-segment.start_offset // size), min(segment.end_offset // size, self.max_offset) - 1

    def _unit(self, offset: int) -> tuple[int, int]:
        data = self._queue.read(offset * consume_queue.UNIT_SIZE, consume_queue.UNIT_SIZE)
        if len(data) < consume_queue.UNIT_SIZE:
            return -1, 0
        unit = consume_queue.UNIT.parse(data)
        return unit.physical_offset, unit.size

    def _time_of(self, offset: int) -> int:
        return self._store_time(*self._unit(offset))

    def _bisect(
        self, timestamp: int, low: int, high: int
    ) -> tuple[int | None, tuple[int, int | None] | None, tuple[int, int] | None] | None:
        """Search the units of one file as RocketMQ does.

        Returns:
            An exact hit, and the neighbours of the time with their times; None where a message cannot be read.
        """
        log_start = self._reader.commit_log.min_offset
        left: tuple[int, int | None] | None = None
        right: tuple[int, int] | None = None
        left_time = None
        while high >= low:
            middle = (low + high) // 2
            physical_offset, size = self._unit(middle)
            if physical_offset < log_start:
                low, left = middle + 1, (middle, left_time)
                continue
            time = self._store_time(physical_offset, size)
            if time < 0:
                return None
            if time == timestamp:
                return middle, left, right
            if time > timestamp:
                high, right = middle - 1, (middle, time)
            else:
                left_time = time
                low, left = middle + 1, (middle, time)
        return None, left, right


class _ListedQueueView(QueueView):
    """A queue whose units give their own queue offsets; all of them are kept in memory."""

    _units: npt.NDArray[np.void]
    _batch_size: Ints
    _ends: Ints

    def _take(self, units: npt.NDArray[np.void], batch_size: Ints) -> None:
        """Keep the units whose queue offsets go up."""
        start = units["queue_offset"].astype(np.int64)
        sane = (units["size"] > 0) & (batch_size > 0) & (start >= 0) & (start < _MOST)
        units, batch_size, start = units[sane], batch_size[sane], start[sane]
        stop = start + batch_size
        if (start[1:] < stop[:-1]).any():
            # A unit that fits neither of its neighbours is damaged; its offset would hide all that follow.
            fits = np.zeros(len(units) + 1, np.bool_)
            fits[1:-1] = start[1:] == stop[:-1]
            sane = fits[:-1] | fits[1:]
            sane[sane] = start[sane] >= np.r_[0, np.maximum.accumulate(stop[sane])[:-1]]
            units, batch_size, stop = units[sane], batch_size[sane], stop[sane]
        self._units, self._batch_size, self._ends = units, batch_size, stop

    def _find_ends(self) -> None:
        self.max_offset = int(self._ends[-1]) if len(self._ends) else 0
        place = self._first_kept(0, len(self._units), lambda place: int(self._units["physical_offset"][place]))
        kept = place < len(self._units)
        self.min_offset = int(self._units["queue_offset"][place]) if kept else self.max_offset

    def units(self, start: int, limit: int) -> UnitTable:
        """Return up to ``limit`` units from the one that holds ``start`` on."""
        first = int(np.searchsorted(self._ends, start, "right"))
        stop = int(np.searchsorted(self._units["queue_offset"].astype(np.int64), self.max_offset))
        rows = slice(first, min(first + limit, stop))
        units = self._units[rows]
        return UnitTable(
            units["queue_offset"].astype(np.int64),
            units["physical_offset"].astype(np.int64),
            units["size"].astype(np.int64),
            units["tags_code"].astype(np.int64),
            np.ones(len(units), np.bool_),
            self._batch_size[rows],
        )


class BatchQueueView(_ListedQueueView):
    """A queue of inner batches, in files of 46-byte units."""

    def __init__(self, reader: StoreReader, queue: BatchConsumeQueue) -> None:
        super().__init__(reader, queue.topic, queue.queue_id)
        self._queue = queue
        units = queue.units()
        self._take(units, units["batch_size"].astype(np.int64))
        self._find_ends()

    def offset_at(self, timestamp: int) -> int:
        """Return where the unit begins that RocketMQ finds for a time."""
        return self._clamp(self._search(timestamp))

    def _search(self, timestamp: int) -> int:
        times, offsets = self._units["store_timestamp"], self._units["queue_offset"]
        if not len(times):
            return -1
        # The last file that begins at the time or before; there the first unit at the time or later, else the last.
        counts = [segment.size // batch_consume_queue.UNIT_SIZE for segment in self._queue.segments]
        edges = [edge for edge in itertools.accumulate(counts, initial=0) if edge < len(times)]
        file = max((i for i, edge in enumerate(edges) if times[edge] <= timestamp), default=0)
        stop = edges[file + 1] if file + 1 < len(edges) else len(times)
        later = np.flatnonzero(times[edges[file] : stop] >= timestamp)
        if timestamp >= times[stop - 1] or not len(later):
            return int(offsets[stop - 1])
        return int(offsets[edges[file] + int(later[0])])


class RocksdbQueueView(_ListedQueueView):
    """A queue in a RocksDB database.

    Raises:
        MqtoolError: the database cannot be read, or the extra is missing.
    """

    def __init__(self, reader: StoreReader, topic: str, queue_id: int) -> None:
        super().__init__(reader, topic, queue_id)
        folder = reader.rocksdb_queues
        assert folder is not None
        ends = rocksdb.read_ends(folder).queues.get((topic, queue_id))
        pieces = [units for name, number, units in rocksdb.read_units(folder) if (name, number) == (topic, queue_id)]
        units: npt.NDArray[np.void] = np.concatenate(pieces) if pieces else np.empty(0, rocksdb_layout.UNIT_DTYPE)
        self._take(units, np.ones(len(units), np.int64))
        self._find_ends()
        if ends:
            self.max_offset = ends.max_offset
            self.min_offset = min(max(self.min_offset, ends.min_offset), self.max_offset)

    def offset_at(self, timestamp: int) -> int:
        """Return the first queue offset whose message was stored at a time or later."""
        offsets = self._units["queue_offset"].astype(np.int64)
        rows = (offsets >= self.min_offset) & (offsets < self.max_offset)
        later = offsets[rows][self._units["store_timestamp"][rows] >= timestamp]
        return int(later[0]) if len(later) else self.max_offset


def queue_keys(reader: StoreReader) -> set[QueueKey]:
    """Return topic and queue id of each queue of the store; those in RocksDB only where the extra is installed."""
    found = {*reader.consume_queues, *reader.batch_consume_queues}
    if reader.rocksdb_queues:
        found.update(rocksdb.read_ends(reader.rocksdb_queues).queues)
    return found


def open_queue(reader: StoreReader, topic: str, queue_id: int) -> QueueView | None:
    """Return a queue, None where the store has none of that name.

    Raises:
        MqtoolError: it cannot be read.
    """
    key = (topic, queue_id)
    if key in reader.consume_queues:
        return FileQueueView(reader, reader.consume_queues[key], reader.consume_queue_exts.get(key))
    if key in reader.batch_consume_queues:
        return BatchQueueView(reader, reader.batch_consume_queues[key])
    if reader.rocksdb_queues and key in rocksdb.read_ends(reader.rocksdb_queues).queues:
        return RocksdbQueueView(reader, topic, queue_id)
    return None
