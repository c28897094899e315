"""``dump consumequeue`` and its siblings: the units of queues."""

import dataclasses
import fnmatch
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mqtool.commands._dump.request import DumpRequest, records, runs, single_segment
from mqtool.commands._options import matching
from mqtool.commands._output import Row
from mqtool.engine.store import rocksdb
from mqtool.engine.store.consume_queue import are_fillers
from mqtool.engine.store.file_queue import FileQueue
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.reader import QueueKey, StoreReader
from mqtool.errors import NotFoundError, UsageError
from mqtool.formats import batch_consume_queue, consume_queue, consume_queue_ext
from mqtool.formats import kernels as plain
from mqtool.formats.rocksdb import StoredQueueEnds

_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True)
class DumpedQueue:
    """The files of one queue; topic and queue id are unknown for a lone file."""

    topic: str | None
    queue_id: int | None
    segments: list[MappedFile]


def units(ask: DumpRequest) -> Iterator[Row]:
    """Yield the units of the ordinary consume queues, from RocksDB where they are there."""
    store = ask.store
    if store.paths.single is None and not store.consume_queues and store.rocksdb_queues:
        yield from rocksdb_units(ask)
        return
    if store.rocksdb_queues and not ask.follow:
        ask.remark("queues are in RocksDB too: mqtool dump rocksdbconsumequeue lists those")
    if ask.follow:
        yield from _follow(ask)
    for queue in _queues(ask, store.consume_queues, store.paths.consume_queue):
        for segment, first, array in _arrays(ask, queue, consume_queue.UNIT.dtype):
            used = (array["size"] != 0) | (array["physical_offset"] != 0)
            filler = are_fillers(array)
            stop = _stop(ask, queue, segment, used)
            if filler.any() and not ask.start:
                ask.remark(f"{int(filler.sum()):,} filler units before the first of {_name(queue)} are left out")
            mask = used & ~filler & ask.in_range(np.arange(first, first + len(array)))
            for number, unit in records(array[:stop], mask[:stop]):
                ask.reached = f"queue offset {first + number:,} of {_name(queue)}"
                yield {"topic": queue.topic, "queue_id": queue.queue_id, "queue_offset": first + number, **unit}


def batch_units(ask: DumpRequest) -> Iterator[Row]:
    """Yield the units of the queues of inner batches."""
    for queue in _queues(ask, ask.store.batch_consume_queues, ask.store.paths.batch_consume_queue):
        for segment, _, array in _arrays(ask, queue, batch_consume_queue.UNIT.dtype):
            used = array["size"] != 0
            stop = _stop(ask, queue, segment, used)
            mask = used & ask.in_time(array["store_timestamp"])
            if ask.start is not None:
                # A record belongs to the range with any of its messages.
                mask &= array["queue_offset"] + np.maximum(array["batch_size"], 1) > ask.start
            if ask.stop is not None:
                mask &= array["queue_offset"] < ask.stop
            for _, unit in records(array[:stop], mask[:stop]):
                yield {"topic": queue.topic, "queue_id": queue.queue_id, **unit}


def ext_units(ask: DumpRequest) -> Iterator[Row]:
    """Yield the units of the extensions of queues."""
    for queue in _queues(ask, ask.store.consume_queue_exts, ask.store.paths.consume_queue_ext):
        for segment in queue.segments:
            for at, unit in _ext_units(ask, segment):
                position = segment.start_offset + at
                in_time = (ask.since is None or unit["store_timestamp"] >= ask.since) and (
                    ask.until is None or unit["store_timestamp"] < ask.until
                )
                if in_time and ask.has(position):
                    address = consume_queue_ext.address_of(position)
                    yield {
                        "topic": queue.topic,
                        "queue_id": queue.queue_id,
                        "position": position,
                        "address": address,
                        **unit,
                    }


def _ext_units(ask: DumpRequest, segment: MappedFile) -> Iterator[tuple[int, dict[str, Any]]]:
    data: Any = memoryview(segment.bytes)
    names = consume_queue_ext.HEAD.names
    at = 0
    while at + consume_queue_ext.MIN_SIZE <= len(data):
        size = plain.int16(data, at)
        if size == consume_queue_ext.END:
            return
        head = np.frombuffer(data[at : at + consume_queue_ext.MIN_SIZE], consume_queue_ext.HEAD.dtype)
        unit = dict(zip(names, head[0].tolist(), strict=True))
        end = at + size
        fits = unit["bit_map_size"] == size - consume_queue_ext.MIN_SIZE and end <= len(data)
        if size < consume_queue_ext.MIN_SIZE or not fits:
            if segment.bytes[at:].any():
                place = ask.place(segment.path, at)
                ask.damage(f"{len(data) - at:,} bytes at {place} are skipped: a size there is impossible")
            return
        yield at, {**unit, "bit_map": bytes(data[at + consume_queue_ext.MIN_SIZE : end]).hex()}
        at = end


def rocksdb_units(ask: DumpRequest) -> Iterator[Row]:
    """Yield the units of the queues that are in RocksDB."""
    folder = ask.store.rocksdb_queues
    if ask.follow:
        raise UsageError("--follow does not work for queues in RocksDB: the database is read only once")
    if folder is None:
        raise NotFoundError(f"{ask.store.root} has no queues in RocksDB")
    ends = rocksdb.read_ends(folder).queues
    chosen = set(_chosen(ask, ends)) if ask.topics or ask.queues else None
    for topic, queue_id, array in rocksdb.read_units(folder):
        if chosen is not None and (topic, queue_id) not in chosen:
            continue
        offsets = array["queue_offset"]
        end = ends.get((topic, queue_id), StoredQueueEnds(0, 0)).max_offset
        left_over = offsets >= end
        if left_over.any():
            ask.remark(
                f"{int(left_over.sum()):,} units of {topic} {queue_id} from offset {end:,} on are leftovers: "
                "a broker drops them"
            )
        mask = ask.in_range(offsets) & ask.in_time(array["store_timestamp"])
        for _, unit in records(array, mask):
            yield {"topic": topic, "queue_id": queue_id, **unit}


def _queues(ask: DumpRequest, queues: Mapping[QueueKey, FileQueue], folder: Path) -> Iterator[DumpedQueue]:
    """Yield the queues that are asked for, or the one file that was given as the store."""
    single = ask.store.paths.single
    if single:
        topic, queue_id = _owner(single)
        known: dict[QueueKey, DumpedQueue] = {}
        if topic is not None and queue_id is not None:
            known[topic, queue_id] = DumpedQueue(topic, queue_id, [single_segment(single)])
        elif ask.topics or ask.queues:
            raise UsageError(f"{single} does not show its topic and queue: leave out --topic and --queue")
        for key in _chosen(ask, known):
            yield known[key]
        if not known:
            yield DumpedQueue(None, None, [single_segment(single)])
        return
    if not queues and not folder.is_dir():
        raise NotFoundError(f"{ask.store.root} has no {ask.store.paths.relative(folder)}")
    for key in _chosen(ask, queues):
        # A folder's name may be no text: what is not is shown as such.
        yield DumpedQueue(os.fsencode(key[0]).decode("utf-8", "replace"), key[1], queues[key].hold().segments)


def _owner(path: Path) -> tuple[str | None, int | None]:
    """Return topic and queue id that the folders of a queue's file name."""
    *_, kind, topic, queue_id, _name = ("", "", "", *path.absolute().parts)
    if kind in ("consumequeue", "consumequeue_ext", "batchconsumequeue") and queue_id.isascii() and queue_id.isdigit():
        return topic, int(queue_id)
    return None, None


def _chosen(ask: DumpRequest, known: Mapping[QueueKey, Any]) -> list[QueueKey]:
    """Return the queues that the patterns select, in order.

    Raises:
        NotFoundError: a pattern selects nothing.
    """
    keys = sorted(known)
    if ask.topics:
        topics = matching(ask.topics, (topic for topic, _ in keys), "topic")
        keys = [key for key in keys if key[0] in topics]
    if ask.queues:
        ids = matching(ask.queues, (str(queue_id) for _, queue_id in keys), "queue id")
        keys = [key for key in keys if str(key[1]) in ids]
    return keys


def _name(queue: DumpedQueue) -> str:
    return "this queue" if queue.topic is None else f"{queue.topic} {queue.queue_id}"


def _arrays(ask: DumpRequest, queue: DumpedQueue, dtype: "np.dtype[np.void]") -> Iterator[tuple[MappedFile, int, Any]]:
    """Yield each file of a queue, the number of its first unit, and its units; says what does not fit."""
    before = None
    for segment in queue.segments:
        if before and before.end_offset < segment.start_offset:
            ask.damage(
                f"no file holds the {(segment.start_offset - before.end_offset) // dtype.itemsize:,} units "
                f"of {_name(queue)} before {ask.place(segment.path)}"
            )
        before = segment
        # Units are at multiples of their size, whatever a file's name says.
        skip = -segment.start_offset % dtype.itemsize
        room = max(0, segment.size - skip) // dtype.itemsize
        array = segment.bytes[skip : skip + room * dtype.itemsize].view(dtype)
        rest = segment.bytes[skip + room * dtype.itemsize :]
        if skip or rest.any():
            ask.damage(f"{skip + len(rest)} bytes of {ask.place(segment.path)} are not a whole unit")
        yield segment, (segment.start_offset + skip) // dtype.itemsize, array


def _stop(ask: DumpRequest, queue: DumpedQueue, segment: MappedFile, used: Any) -> int:
    """Return one past the last unit of a file that is not empty; says where empty ones come before it."""
    last = np.flatnonzero(used)
    stop = int(last[-1]) + 1 if len(last) else 0
    for begin, end in runs(~used[:stop]):
        name = f"{_name(queue)} in {ask.place(segment.path)}"
        ask.damage(f"{end - begin:,} empty units of {name} come before others, from its unit {begin:,} on")
    return stop


def _follow(ask: DumpRequest) -> Iterator[Row]:
    """Yield the units that are there and each that is appended; never returns."""
    from mqtool.commands._dump.follow import FollowWait, reopened

    _chosen(ask, _names(ask.store))
    waiting = FollowWait(ask)
    followed: dict[QueueKey, _QueueFollower] = {}
    while True:
        began = time.monotonic()
        for key, queue in _names(reopened(ask.store)).items():
            if key not in followed and not _is_wanted(ask, key):
                continue
            follower = followed.setdefault(key, _QueueFollower(ask, key))
            yield from follower.rows(queue)
        waiting.pause(time.monotonic() - began)


def _names(store: StoreReader) -> Mapping[QueueKey, FileQueue]:
    single = store.paths.single
    if single is None:
        return store.consume_queues
    topic, queue_id = _owner(single)
    return {(topic or "", queue_id or 0): FileQueue([single.parent], None, single)}


def _is_wanted(ask: DumpRequest, key: QueueKey) -> bool:
    """Tell whether a queue is asked for; its topic may have come later than the question."""
    return all(
        not patterns or any(name == pattern or fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        for name, patterns in ((key[0], ask.topics), (str(key[1]), ask.queues))
    )


class _QueueFollower:
    """Reads one queue without mapping what may yet change.

    A unit counts when another one follows or when two looks have seen the same.
    """

    def __init__(self, ask: DumpRequest, key: QueueKey) -> None:
        self.ask = ask
        self.key = key
        self._next_offset = ask.start or 0
        self._last: tuple[int, bytes] | None = None

    def rows(self, queue: FileQueue) -> Iterator[Row]:
        """Yield the units that are whole by now."""
        size = consume_queue.UNIT_SIZE
        before, self._last = self._last, None
        while True:
            self._next_offset = at = max(self._next_offset, -(-queue.min_offset // size))
            data = queue.read(at * size, _AT_ONCE * size)
            array = np.frombuffer(data[: len(data) // size * size], consume_queue.UNIT.dtype)
            used = np.flatnonzero(array["size"])
            if not len(used):
                if not self._enter_next(queue):
                    return
                continue
            stop = int(used[-1])
            last = at + stop, data[stop * size : (stop + 1) * size]
            if last == before:
                stop += 1
            else:
                self._last = last
            if not stop:
                return
            yield from self._take(array[:stop], at)
            self._next_offset = at + stop

    def _take(self, array: Any, at: int) -> Iterator[Row]:
        empty = array["size"] == 0
        if empty.any():
            name = f"{self.key[0]} {self.key[1]}"
            self.ask.damage(f"{int(empty.sum()):,} empty units of {name} come before others, after {at:,}")
        filler = are_fillers(array)
        keep = self.ask.in_range(np.arange(at, at + len(array))) & ~empty & ~filler
        for number, unit in records(array, keep):
            self.ask.reached = f"queue offset {at + number:,} of {self.key[0]} {self.key[1]}"
            yield {"topic": self.key[0] or None, "queue_id": self.key[1], "queue_offset": at + number, **unit}

    def _enter_next(self, queue: FileQueue) -> bool:
        """Go to the next file with units; empty room before it is a hole."""
        size = consume_queue.UNIT_SIZE
        for segment in queue.segments:
            if segment.start_offset > self._next_offset * size and any(segment.read(0, size)):
                self.ask.damage(
                    f"units of {self.key[0]} {self.key[1]} from {self._next_offset:,} on are missing before "
                    f"{segment.path.name}"
                )
                self._next_offset = -(-segment.start_offset // size)
                return True
        return False
