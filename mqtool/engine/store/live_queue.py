"""The consume queues of a running broker: appends units at their ends, reads anywhere.

New units wait in memory, where they can be read, too, until the owner calls ``write``, which writes those of each
queue to its file at once: the log has all that is needed to rebuild them.
(Rules: store.md 4.2, 4.5, 4.7, 4.9. RocketMQ: ``ConsumeQueue``, ``BatchConsumeQueue``.)
"""

import bisect
import functools
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mqtool.engine.store.disk import chunks
from mqtool.engine.store.file_queue import is_segment_name, segment_name
from mqtool.engine.store.time_search import Boundary, TimeSearch
from mqtool.errors import RecoveryNeededError, StoreChangedError
from mqtool.formats import batch_consume_queue, consume_queue, consume_queue_ext
from mqtool.formats.new_message import topic_field

if TYPE_CHECKING:
    from mqtool.engine.store.live_log import LiveLog
    from mqtool.engine.store.mapped_file import MappedFile
    from mqtool.engine.store.queue_files import QueueFiles

QueueKey = tuple[str, int]

_UNIT = consume_queue.UNIT.packer
_FILLER = _UNIT.pack(0, consume_queue.PRE_BLANK_SIZE, 0)
_BATCH_UNIT = batch_consume_queue.UNIT.packer
_EXT_HEAD = consume_queue_ext.HEAD.packer
_LOOK_BEHIND = 1000
"""Units after the last one that are examined when a queue is opened."""


@functools.lru_cache(maxsize=256)  # making a path takes longer than reading a unit
def _path_in(folder: Path, start: int) -> Path:
    return folder / segment_name(start)


class Unit(NamedTuple):
    """The unit of one record in a queue."""

    queue_offset: int  # of its first message
    physical_offset: int
    size: int
    tags_code: int
    batch_size: int  # how many messages it holds


class LiveQueue:
    """One queue with a unit of 20 bytes a message: the queue offset of a message is the place of its unit."""

    __slots__ = (
        "_files",
        "_kept_since",
        "_min_offset",
        "_starts",
        "_tail",
        "file_size",
        "folder",
        "key",
        "next_offset",
        "topic",
        "written",
    )
    is_batch = False
    unit: struct.Struct = _UNIT
    _empty = bytes(_UNIT.size)

    def __init__(self, key: QueueKey, folder: Path, files: "QueueFiles") -> None:
        """Open a queue.

        Args:
            key: topic and queue id.
            folder: of its files, which need not exist yet.
            files: of all queues.

        Raises:
            RecoveryNeededError: its files are not what a broker starts with.
        """
        self.key = key
        self.topic = topic_field(key[0])
        self.folder = folder
        self.file_size = files.batch_queue_size if self.is_batch else files.queue_size
        self.next_offset = 0
        """One past the queue offset of the last message, which a broker calls the maximum."""
        self._files = files
        self._starts: list[int] = []  # of its files, in bytes
        self._tail = bytearray()  # units that are not in a file yet
        self.written = 0
        """Position in bytes up to which units are in files."""
        self._min_offset = 0
        self._kept_since = -1  # log address to which the minimum belongs

    def load(self) -> None:
        """Find the files and the last unit."""
        first = self._find_files()
        if first is None:
            return
        end = bisect.bisect_left(range(self.place_stop), True, first, key=lambda place: self._unit(place)[1] <= 0)
        if any(self._bytes(end, _LOOK_BEHIND)):
            raise RecoveryNeededError(f"there is data after the last unit in {self.folder}")
        self.written = end * self.unit.size
        self._take_end(first, end)

    def load_until(self, last_start: int) -> None:
        """Find the files, and keep the units of messages up to an address; clears what follows."""
        first = self._find_files()
        if first is None:
            return
        # What follows may be partly zero or torn, but no unit names an earlier message.
        end = bisect.bisect_left(
            range(self.place_stop),
            True,
            first,
            key=lambda place: self._unit(place)[1] <= 0 or self._unit(place)[0] > last_start,
        )
        self.written = end * self.unit.size
        self._take_end(first, end)
        if self._clear_behind():
            # The files of these units may not be on the disk.
            self._files.note_write(self._path(self._starts[-1]))
            for folder in (self.folder, self.folder.parent, self.folder.parent.parent):
                self._files.note_write(folder)

    def _clear_behind(self) -> bool:
        """Clear the files after the last unit, and return whether there was anything to clear."""
        is_changed = False
        while len(self._starts) > 1 and self._starts[-1] > self.written:
            self._files.remove(self._path(self._starts[-1]))
            del self._starts[-1]
            is_changed = True
        path = self._path(self._starts[-1])
        for at, data in chunks(path, max(0, self.written - self._starts[-1]), self.file_size):
            if data.count(0) != len(data):
                self._files.get(path).write(at, bytes(len(data)))
                is_changed = True
        return is_changed

    def _find_files(self) -> int | None:
        """Find the files and return the place of the first unit, None if there is none."""
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if not is_segment_name(entry.name) or entry.stat().st_size != self.file_size:
                    raise RecoveryNeededError(f"{entry.path} is not a queue file of {self.file_size:,} bytes")
                self._starts.append(int(entry.name))
        self._starts.sort()
        if not self._starts:
            return None
        if self._starts != list(range(self._starts[0], self._starts[-1] + 1, self.file_size)):
            raise RecoveryNeededError(f"files are missing in {self.folder}")
        self.written = self._starts[-1] + self.file_size  # as if all were full
        return self._starts[0] // self.unit.size

    def _take_end(self, first: int, end: int) -> None:  # noqa: ARG002
        self.next_offset = end

    # Adding

    def begin_at(self, queue_offset: int) -> None:
        """Start in the middle, as in a log that starts there.

        The places before its unit in the same file are filler, as written by RocketMQ.
        """
        stop = queue_offset * self.unit.size
        self.written = stop // self.file_size * self.file_size
        self._tail += _FILLER * ((stop - self.written) // self.unit.size)
        self.next_offset = queue_offset

    def append(
        self,
        physical_offset: int,
        size: int,
        tags_code: int,
        store_timestamp: int,  # noqa: ARG002 - siblings keep it
        batch_size: int = 1,  # noqa: ARG002
    ) -> None:
        """Add the unit of a record."""
        self._tail += _UNIT.pack(physical_offset, size, tags_code)
        self.next_offset += 1

    def write(self, *, at_once: bool) -> bool:
        """Write the units that wait, and return whether all are written.

        With ``at_once`` they are; otherwise another thread may have to create a file first.

        Raises:
            WriteError: the disk is full, or fails; unwritten units keep waiting.
        """
        while self._tail:
            start = self.written // self.file_size * self.file_size
            path = self._path(start)
            if not self._starts or start > self._starts[-1]:
                if not self._files.make(path, self.file_size, at_once=at_once):
                    return False
                self._starts.append(start)
            count = min(len(self._tail), start + self.file_size - self.written)
            self._files.get(path).write(self.written - start, self._tail[:count])
            self._files.note_write(path)
            self.written += count
            del self._tail[:count]
        return True

    # Reading

    def min_offset(self, log_start: int) -> int:
        """Return the queue offset of the first message that is still in the log, which starts at ``log_start``."""
        if self._kept_since != log_start:
            first, stop = self._first_place(), self.place_stop
            if first < stop and not self._is_kept(first, log_start):
                first = bisect.bisect_left(range(stop), True, first, key=lambda place: self._is_kept(place, log_start))
            self._min_offset = self._offset_of(first)
            self._kept_since = log_start
        return self._min_offset

    def _is_kept(self, place: int, log_start: int) -> bool:
        physical_offset, size, *_ = self._unit(place)
        return size != consume_queue.PRE_BLANK_SIZE and bool(physical_offset >= log_start)

    def _offset_of(self, place: int) -> int:
        return place

    def _first_place(self) -> int:
        return (self._starts[0] if self._starts else self.written) // self.unit.size

    @property
    def place_stop(self) -> int:
        """One past the place of the last unit."""
        return (self.written + len(self._tail)) // self.unit.size

    def units(self, start: int, limit: int) -> list[Unit]:
        """Return up to ``limit`` units from queue offset ``start`` on; fewer at the end of a file.

        Raises:
            StoreChangedError: another process has emptied some of them.
        """
        units = self.unit.iter_unpack(self._written(start, limit))
        first = max(start, self._first_place())
        return [Unit(place, at, size, code, 1) for place, (at, size, code) in enumerate(units, first)]

    def files(self) -> list[tuple[int, int]]:
        """Return the first and last place of each file, including files that do not exist yet."""
        step, stop = self.file_size // self.unit.size, self.place_stop
        return [(first, min(first + step, stop) - 1) for first in range(self._first_place(), stop, step)]

    def offset_of_time(self, timestamp: int, boundary: Boundary, log: "LiveLog") -> int:
        """Return the queue offset for a time (ms), as RocketMQ finds it; it may be outside of the queue."""
        search = TimeSearch(
            self.files(),
            lambda offset: self._unit(offset)[:2],
            lambda offset, _: log.store_timestamp(offset),
            self.min_offset(log.min_offset),
            log.min_offset,
        )
        return search.offset_at(timestamp, boundary)

    def _written(self, place: int, limit: int) -> bytes | bytearray:
        """Return the bytes of units from a place on, each of which was written; raises ``StoreChangedError``."""
        data = self._bytes(place, limit)
        # Each unit has a size, so that many zeros do not cross units. A file that was truncated has them where it grew.
        if self._empty in data:
            path = self._path(place * self.unit.size)
            raise StoreChangedError(f"{path} has lost units: another process is changing it")
        return data

    def _unit(self, place: int) -> Any:
        """Return the unit at a place; its first two numbers are address and size of the message."""
        return self.unit.unpack(self._bytes(place, 1))

    def _bytes(self, place: int, limit: int) -> bytes | bytearray:
        """Return the bytes of units from a place on, from one file or from memory."""
        size = self.unit.size
        at = max(place * size, self._starts[0] if self._starts else self.written)
        if at >= self.written:
            return self._tail[at - self.written : at - self.written + limit * size]
        start = at // self.file_size * self.file_size
        count = min(limit * size, start + self.file_size - at, self.written - at)
        return self._files.get(self._path(start)).read(at - start, count)

    def _path(self, at: int) -> Path:
        return _path_in(self.folder, at // self.file_size * self.file_size)

    # Removing

    def remove_expired(self, log_start: int) -> list[Callable[[], None]]:
        """Release the files whose messages have all been deleted from the log, except for the last file.

        Returns:
            Functions that remove them, one per file.
        """
        expired = []
        while len(self._starts) > 1:
            last = (self._starts[0] + self.file_size) // self.unit.size - 1
            if last >= self.place_stop or self._is_kept(last, log_start):
                break
            expired.append(self._files.let_go(self._path(self._starts[0])))
            del self._starts[0]
        return expired

    def let_go(self) -> list[Callable[[], None]]:
        """Release all files, and return functions that remove them, one per file; then call ``remove_folders``."""
        wanted = self._path(self.written)  # it may be under construction
        gone = [self._files.let_go(path) for path in {wanted, *map(self._path, self._starts)}]
        self._starts.clear()
        return gone

    def remove_folders(self) -> None:
        """Remove the folder of a queue whose files were removed."""
        if self.folder.exists():
            self._files.disk.remove_folder(self.folder)


class LiveExtendedQueue(LiveQueue):
    """A queue that RocketMQ has extended (``enableConsumeQueueExt``): some units have the place of their tags code.

    The extension serves SQL filters, which are applied to the messages here, so it does not grow: new units have
    their own tags code, as RocketMQ writes them if an extension fails. Its files are removed with their units.
    """

    __slots__ = ("_extension", "_folders")

    def __init__(self, key: QueueKey, folder: Path, files: "QueueFiles", extension: "Sequence[MappedFile]") -> None:
        """Open a queue whose extension has these files, in order."""
        super().__init__(key, folder, files)
        self._extension = list(extension)
        self._folders: set[Path] = set()

    def units(self, start: int, limit: int) -> list[Unit]:
        """Return up to ``limit`` units from queue offset ``start`` on, with their tags codes."""
        return [
            unit._replace(tags_code=self._code(unit.tags_code)) if _is_address(unit.tags_code) else unit
            for unit in super().units(start, limit)
        ]

    def _code(self, address: int) -> int:
        """Return the tags code at an address; if there is none the address, which may be an ordinary code."""
        position = consume_queue_ext.position_of(address)
        number = bisect.bisect_right(self._extension, position, key=lambda file: file.start_offset) - 1
        file = self._extension[number] if number >= 0 else None
        if file is None or position + _EXT_HEAD.size > file.end_offset:
            return address
        head = self._files.get(file.path).read(position - file.start_offset, _EXT_HEAD.size)
        size, tags_code, *_ = _EXT_HEAD.unpack(head)
        return tags_code if size >= _EXT_HEAD.size else address

    def remove_expired(self, log_start: int) -> list[Callable[[], None]]:
        """Release the files of deleted messages, and those of the extension to which only their units point."""
        expired = super().remove_expired(log_start)
        kept = super().units(self.min_offset(log_start), 1)
        if kept and _is_address(kept[0].tags_code):
            position = consume_queue_ext.position_of(kept[0].tags_code)
            while self._extension[1:] and self._extension[0].end_offset <= position:
                expired.append(self._files.let_go(self._extension.pop(0).path))
        return expired

    def let_go(self) -> list[Callable[[], None]]:
        """Release all files, including those of the extension."""
        self._folders = {file.path.parent for file in self._extension}
        gone = [self._files.let_go(file.path) for file in self._extension]
        self._extension.clear()
        return super().let_go() + gone

    def remove_folders(self) -> None:
        """Remove the folders of a queue whose files were removed."""
        super().remove_folders()
        for folder in self._folders:
            self._files.disk.remove_folder(folder)


def _is_address(tags_code: int) -> bool:
    return bool(consume_queue_ext.is_address(tags_code))


class LiveBatchQueue(LiveQueue):
    """One queue with a unit of 46 bytes a record, which may hold several messages."""

    __slots__ = ()
    is_batch = True
    unit = _BATCH_UNIT
    _empty = bytes(_BATCH_UNIT.size)

    def begin_at(self, queue_offset: int) -> None:
        """Start in the middle: units state their offsets, so no filler is needed."""
        self.next_offset = queue_offset

    def _take_end(self, first: int, end: int) -> None:
        if end > first:
            *_, queue_offset, batch_size, _, _ = self._unit(end - 1)
            self.next_offset = queue_offset + batch_size

    def append(
        self, physical_offset: int, size: int, tags_code: int, store_timestamp: int, batch_size: int = 1
    ) -> None:
        """Add the unit of a record that holds ``batch_size`` messages."""
        self._tail += _BATCH_UNIT.pack(
            physical_offset, size, tags_code, store_timestamp, self.next_offset, batch_size, -1, 0
        )
        self.next_offset += batch_size

    def _offset_of(self, place: int) -> int:
        return self._unit(place)[4] if place < self.place_stop else self.next_offset

    def units(self, start: int, limit: int) -> list[Unit]:
        """Return up to ``limit`` units from the one with queue offset ``start`` on."""
        first = self._first_place()
        place = bisect.bisect_right(range(self.place_stop), start, first, key=self._offset_of) - 1
        return [
            Unit(offset, physical_offset, size, code, count)
            for physical_offset, size, code, _, offset, count, _, _ in self.unit.iter_unpack(
                self._written(max(place, first), limit)
            )
            if offset + count > start
        ]

    def offset_of_time(self, timestamp: int, boundary: Boundary, log: "LiveLog") -> int:  # noqa: ARG002
        """Return the first offset of the record for a time (ms), as RocketMQ finds it for such queues."""
        files = [range(first, last + 1) for first, last in self.files()]
        if not files:
            return 0
        file = next((file for file in reversed(files) if self._time(file[0]) <= timestamp), files[0])
        place = file[-1]
        if timestamp < self._time(place):
            place = bisect.bisect_left(file, timestamp, key=self._time) + file[0]
        return self._offset_of(place)

    def _time(self, place: int) -> int:
        timestamp: int = self._unit(place)[3]
        return timestamp
