"""A queue as a broker reads it, whatever keeps its units: consume queue files, batch files, or RocksDB.

The ends are those that RocketMQ tells its clients: ``min_offset`` leaves out units that were made to fill a file and
units whose message is no longer in the log, ``max_offset`` is one past the last unit. They are taken when a view is
made, before the log is examined, so that on a live store every unit below ``max_offset`` has its message.
"""

from __future__ import annotations

import abc
import bisect
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from mqtool.engine.store import rocksdb
from mqtool.engine.store.consume_queue import (
    MAX_OFFSET,
    BatchConsumeQueue,
    ConsumeQueue,
    ConsumeQueueExt,
    Units,
)
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.mapping import reading
from mqtool.engine.store.reader import QueueKey, StoreReader
from mqtool.engine.store.time_search import TimeSearch
from mqtool.formats import consume_queue, consume_queue_ext
from mqtool.formats.record_head import STORE_TIMESTAMP_END, store_timestamp
from mqtool.late import np, npt

if TYPE_CHECKING:
    from mqtool.formats.rocksdb import StoredQueueEnds

Ints: TypeAlias = "npt.NDArray[np.int64]"
_STEP = 1 << 16  # units examined together in search of a time


class UnitTable(NamedTuple):
    """Units of one queue in queue order, as columns of equal length."""

    queue_offset: Ints
    physical_offset: Ints
    size: Ints
    tags_code: Ints
    has_code: npt.NDArray[np.bool_]  # False: it names a place in the extension where none is
    batch_size: Ints

    def __len__(self) -> int:
        """Return the number of units."""
        return len(self.queue_offset)

    @property
    def next_offset(self) -> Ints:
        """The queue offset that follows each unit."""
        return self.queue_offset + self.batch_size

    def where(self, rows: npt.NDArray[Any]) -> UnitTable:
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
        head = log.read(physical_offset, STORE_TIMESTAMP_END)
        return store_timestamp(head) if len(head) == STORE_TIMESTAMP_END else -1


class FileQueueView(QueueView):
    """A queue in files of 20-byte units."""

    def __init__(self, reader: StoreReader, queue: ConsumeQueue, ext: ConsumeQueueExt | None) -> None:
        super().__init__(reader, queue.topic, queue.queue_id)
        self._queue = queue
        self._ext = ext
        self.max_offset = queue.find_max_offset()
        self.min_offset = self._first_kept(queue.first_offset, self.max_offset, self._kept_offset)
        self.min_offset = min(max(self.min_offset, queue.gone_offset), self.max_offset)

    def _kept_offset(self, offset: int) -> int:
        """Return the address that a unit names; -1 for a filler, and no end for a place without a unit."""
        physical_offset, size = self._unit(offset)
        if size == consume_queue.PRE_BLANK_SIZE:
            return -1
        return MAX_OFFSET if size <= 0 else physical_offset

    def newest(self) -> int | None:
        """Return the address of the last message, None for an empty queue; no file is mapped for it."""
        return self._unit(self.max_offset - 1)[0] if self.max_offset > self.min_offset else None

    def units(self, start: int, limit: int) -> UnitTable:
        """Return up to ``limit`` units; places that no file has are skipped."""
        size = consume_queue.UNIT_SIZE
        segments = self._queue.hold().segments
        first = bisect.bisect_right(segments, start * size, key=lambda segment: segment.start_offset)
        for segment in segments[max(0, first - 1) :]:
            # Where a file is missing a broker continues with the next one.
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
        for segment in self._ext.hold().segments if self._ext else ():
            low, high = segment.start_offset, segment.end_offset - consume_queue_ext.MIN_SIZE
            rows = np.flatnonzero((positions >= low) & (positions <= high))
            if len(rows):
                at = (positions[rows] - low)[:, None] + np.arange(consume_queue_ext.MIN_SIZE)
                units = np.ascontiguousarray(segment.stretch(0, segment.size)[at]).view(consume_queue_ext.HEAD.dtype)[
                    :, 0
                ]
                codes[rows] = units["tags_code"]
                known[rows] = units["size"] >= consume_queue_ext.MIN_SIZE
        return codes, known

    def offset_at(self, timestamp: int) -> int:
        """Return the first queue offset whose message was stored at a time or later."""
        return self._clamp(self._search(timestamp))

    def _search(self, timestamp: int) -> int:
        return self._time_search().offset_at(timestamp)

    def _time_search(self) -> TimeSearch:
        files = [self._places(segment) for segment in self._queue.segments]
        return TimeSearch(files, self._unit, self._store_time, self.min_offset, self._reader.commit_log.min_offset)

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
        hits = self._time_search().bisect(timestamp, max(first, self.min_offset), last)
        if hits is None:
            return 0
        if hits.exact is not None:
            return hits.exact
        left, right = hits.left, hits.right
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
        physical_offset, size, _ = consume_queue.UNIT.packer.unpack(data)
        return physical_offset, size


class BatchQueueView(QueueView):
    """A queue of inner batches, in files of 46-byte units; units out of line are skipped."""

    def __init__(self, reader: StoreReader, queue: BatchConsumeQueue) -> None:
        super().__init__(reader, queue.topic, queue.queue_id)
        self._queue = queue
        self.max_offset = queue.max_offset()
        place = self._first_kept(0, queue.unit_count, self._address_from)
        self.min_offset = min(queue.offset_from(place), self.max_offset)

    def _address_from(self, place: int) -> int:
        """Return the address that the first unit in line from a place on names, no end without one."""
        place = self._queue.next_in_line(place)
        return int(self._unit(place)["physical_offset"]) if place < self._queue.unit_count else MAX_OFFSET

    def _unit(self, place: int) -> Any:
        return self._queue.units(place, place + 1)[0]

    def units(self, start: int, limit: int) -> UnitTable:
        """Return up to ``limit`` units from the one that holds ``start`` on."""
        place = max(0, self._queue.place_of(start + 1) - 1)
        parts = [self._queue.units(0, 0)]
        wanted = limit + 2  # one that may end in front of ``start``, and one after that says where the last ends
        while wanted > 0 and place < self._queue.unit_count:
            parts.append(self._queue.units_in_line(place, min(place + limit + 2, self._queue.unit_count)))
            wanted -= len(parts[-1])
            place += limit + 2
        units = np.concatenate(parts)
        first = units["queue_offset"].astype(np.int64)
        rises = first > np.r_[-1, np.maximum.accumulate(first)[:-1]]
        units, first = units[rises], first[rises]
        batch_size = np.maximum(1, np.minimum(units["batch_size"], np.diff(first, append=self.max_offset)))
        rows = np.flatnonzero((first + batch_size > start) & (first < self.max_offset))[:limit]
        return _table(units[rows], batch_size[rows])

    def offset_at(self, timestamp: int) -> int:
        """Return where the unit starts that RocketMQ finds for a time."""
        return self._clamp(self._search(timestamp))

    def _search(self, timestamp: int) -> int:
        count = self._queue.unit_count
        # The last file that begins at the time or before; there the first unit at the time or later, else the last.
        edges = [place for place in self._queue.first_places if place < count]
        begun = [i for i, place in enumerate(edges) if self._unit(place)["store_timestamp"] <= timestamp]
        file = max(begun, default=0)
        stop = edges[file + 1] if file + 1 < len(edges) else count
        last = self._queue.last_in_line(stop)
        if last is None:
            return -1
        if timestamp < self._unit(last)["store_timestamp"]:
            for place in range(edges[file], stop, _STEP):
                units = self._queue.units_in_line(place, min(place + _STEP, stop))
                later = np.flatnonzero(units["store_timestamp"] >= timestamp)
                if len(later):
                    return int(units["queue_offset"][later[0]])
        return int(self._unit(last)["queue_offset"])


class RocksdbQueueView(QueueView):
    """A queue in a RocksDB database, which is opened for each question; what was read last is kept for the next.

    Raises:
        MqtoolError: the database cannot be read, or the extra is missing.
    """

    def __init__(self, reader: StoreReader, topic: str, queue_id: int, ends: StoredQueueEnds) -> None:
        super().__init__(reader, topic, queue_id)
        self.max_offset = min(ends.max_offset, MAX_OFFSET)
        from mqtool.formats.rocksdb import UNIT

        self._kept = (0, np.empty(0, UNIT.dtype))
        with self._opened() as queue:
            place = self._first_kept(
                ends.min_offset, self.max_offset, lambda offset: self._first(queue, offset, "physical_offset")
            )
            self.min_offset = min(self._first(queue, place, "queue_offset"), self.max_offset)

    def _opened(self) -> contextlib.AbstractContextManager[rocksdb.OpenedQueue]:
        folder = self._reader.rocksdb_queues
        assert folder is not None
        return rocksdb.opened_queue(folder, self.topic, self.queue_id)

    def _first(self, queue: rocksdb.OpenedQueue, offset: int, field: str) -> int:
        """Return a field of the first unit from a queue offset on, no end without one."""
        units = queue.units(offset, self.max_offset, 1)
        return int(units[field][0]) if len(units) else MAX_OFFSET

    def units(self, start: int, limit: int) -> UnitTable:
        """Return up to ``limit`` units from ``start`` on."""
        low, units = self._kept
        if not (low <= start and len(units) and start <= units["queue_offset"][-1]):
            with self._opened() as queue:
                units = queue.units(start, self.max_offset, limit)
            self._kept = start, units
        first = int(np.searchsorted(units["queue_offset"], start))
        units = units[first : first + limit]
        return _table(units, np.ones(len(units), np.int64))

    def offset_at(self, timestamp: int) -> int:
        """Return the first queue offset whose message was stored at a time or later."""
        with self._opened() as queue:
            offset = bisect.bisect_left(
                range(self.max_offset),
                timestamp,
                self.min_offset,
                key=lambda offset: self._first(queue, offset, "store_timestamp"),
            )
            return min(self._first(queue, offset, "queue_offset"), self.max_offset)


def _table(units: Units, batch_size: npt.NDArray[Any]) -> UnitTable:
    """Return units that tell their queue offsets as columns."""
    return UnitTable(
        units["queue_offset"].astype(np.int64),
        units["physical_offset"].astype(np.int64),
        units["size"].astype(np.int64),
        units["tags_code"].astype(np.int64),
        np.ones(len(units), np.bool_),
        batch_size.astype(np.int64),
    )


def queue_keys(reader: StoreReader) -> set[QueueKey]:
    """Return topic and queue id of each queue of the store; those in RocksDB only where the extra is installed."""
    keys = {*reader.consume_queues, *reader.batch_consume_queues}
    if reader.rocksdb_queues:
        keys.update(rocksdb.read_ends(reader.rocksdb_queues).queues)
    return keys


def open_queue(reader: StoreReader, topic: str, queue_id: int) -> QueueView | None:
    """Return a queue, None if the store has none of that name.

    Raises:
        MqtoolError: it cannot be read.
    """
    key = (topic, queue_id)
    if key in reader.consume_queues:
        return FileQueueView(reader, reader.consume_queues[key], reader.consume_queue_exts.get(key))
    if key in reader.batch_consume_queues:
        return BatchQueueView(reader, reader.batch_consume_queues[key])
    if reader.rocksdb_queues:
        ends = rocksdb.read_queue_ends(reader.rocksdb_queues, topic, queue_id)
        if ends:
            return RocksdbQueueView(reader, topic, queue_id, ends)
    return None
