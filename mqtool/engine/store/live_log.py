"""The commit log of a running broker: its end is written, all of it is read.

Bytes are written and read with plain calls of the system, nothing is mapped: a disk that is full or fails, or a file
that somebody cut short, is then an error of one request, and not the end of the process. Segments are as long as
configured from the start, sparse; the next one may be made ahead, since a disk may be slow in that. (Rules: store.md
1.6, 2.7. RocketMQ: ``CommitLog``, ``MappedFileQueue``, ``AllocateMappedFileService``.)
"""

import collections
import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mqtool.engine.store.commit_log import CommitLog
from mqtool.engine.store.file_queue import segment_name
from mqtool.engine.store.mapping import reading
from mqtool.errors import BadDataError, FormatError, MqtoolError, NotFoundError, RecoveryNeededError, StoreChangedError
from mqtool.formats import commit_log, record_head

if TYPE_CHECKING:
    from mqtool.engine.store.disk import Disk, OpenFile
    from mqtool.engine.store.log_reader import LogReader

_ROOM = commit_log.BLANK_SIZE
_MAX_OPEN = 8
"""Segments that stay open for readers."""
_LIKELY_SIZE = 4096
"""So much is read of a record whose size is not known yet."""


class Segment:
    """One file of the log."""

    def __init__(self, path: Path, start_offset: int) -> None:
        self.path = path
        self.start_offset = start_offset
        self.file: OpenFile | None = None  # while bytes are written, and until they are on the disk
        self.is_named = False  # on the disk, as far as is known
        self.descriptor: int | None = None  # while it is open for readers


class LiveLog:
    """All messages, in order of arrival, and the place for the next.

    One thread appends and reads; ``flush`` may be called in another, by one at a time.
    """

    def __init__(self, disk: "Disk", folders: Sequence[Path], file_size: int, log: CommitLog) -> None:
        """Continue an existing log.

        Args:
            disk: through which everything is written.
            folders: new segments go to these in turn.
            file_size: bytes of a segment.
            log: the existing segments.

        Raises:
            RecoveryNeededError: the files are not what a broker starts with.
        """
        for before, segment in zip([None, *log.segments], log.segments, strict=False):
            wrong = segment.size != file_size or segment.start_offset % file_size
            if wrong or (before and before.end_offset != segment.start_offset):
                raise RecoveryNeededError(f"{segment.path} does not have the place or the length of a segment")
        if log.strays:
            raise RecoveryNeededError(f"{log.strays[0].path} is not a segment")
        self.file_size = file_size
        self.segments: dict[int, Segment] = {
            segment.start_offset: Segment(segment.path, segment.start_offset) for segment in log.segments
        }
        self.min_offset = log.min_offset
        self.end_offset = log.min_offset
        self.last_start = -1
        """Where the last record starts, -1 without any."""
        self.last_timestamp = 0
        """When it was stored."""
        self.flushed_offset = log.min_offset
        self.flushed_timestamp = 0
        self.confirmed_offset: int | None = None
        """Up to where others have it as well, None if nobody has to."""
        self.readers: set[LogReader] = set()
        """Who is reading it on."""
        self.on_little_room: Callable[[], None] | None = None
        """Called with the write that leaves half of a segment or less, in its thread: ``make_ahead`` is due."""
        self._disk = disk
        self._folders = list(folders)
        self._written: Segment | None = None  # the last segment
        self._ahead: Segment | None = None  # the next one, if it is there already
        self._making = threading.Lock()
        self._look_at = 0  # when the log has come to here there may be little room, or somebody to be told
        self._told_of_growth: Callable[[], None] | None = None
        self._open: collections.OrderedDict[int, Segment] = collections.OrderedDict()  # for readers

    def take_up(self, end_offset: int, last_start: int, flushed_offset: int, flushed_start: int) -> None:
        """Go on at the end that was found (``log_end``).

        Args:
            end_offset: where the next record goes.
            last_start: where the last one starts, -1 without any.
            flushed_offset: up to where all is on the disk.
            flushed_start: where the last record starts that is, -1 without any.
        """
        self.end_offset, self.last_start, self.flushed_offset = end_offset, last_start, flushed_offset
        self._written = self.segments.get(end_offset // self.file_size * self.file_size)
        if last_start >= 0:
            self.last_timestamp = self.store_timestamp(last_start)
        if flushed_start >= 0:
            self.flushed_timestamp = self.store_timestamp(flushed_start)

    # Writing

    def place(self, size: int) -> int:
        """Return the address for ``size`` bytes that stay together; a segment without room for them is ended.

        Raises:
            WriteError: the disk is full, or fails.
        """
        at = self.end_offset
        position = at % self.file_size
        if position + size + _ROOM > self.file_size:
            self._write(position, record_head.blank(self.file_size - position))
            at += self.file_size - position
            self.end_offset = at
            self._written = self.segments.get(at)  # RocketMQ makes one ahead, which is left when it is killed
        if self._written is None:
            self._begin_segment()
        return at

    def write(self, records: bytes, last_start: int, timestamp: int) -> None:
        """Write to the end what ``place`` has given a place.

        Args:
            records: one record, or several end to end.
            last_start: address of the last of them.
            timestamp: when they are stored, in ms.

        Raises:
            WriteError: the disk is full, or fails; nothing is appended.
        """
        self._write(self.end_offset % self.file_size, records)
        self.last_timestamp = timestamp
        self.last_start = last_start
        self.end_offset += len(records)  # last: who flushes in another thread takes it first
        if self.end_offset >= self._look_at:
            self._look()

    def write_at(self, at: int, data: bytes) -> None:
        """Write bytes of the log of another broker, whose segments are as long, to where they are there.

        They may be cut anywhere, in the middle of a record too; nobody looks at them here.

        Args:
            at: the end of this log; where that is empty, the beginning of a segment.
            data: the bytes.

        Raises:
            BadDataError: they do not belong there; nothing is written.
            WriteError: the disk is full, or fails; the end of the log tells how much is written.
        """
        if not self.segments and data and at % self.file_size == 0:
            self.min_offset = self.flushed_offset = self.end_offset = at
        if at != self.end_offset:
            raise BadDataError(f"the bytes for {at:,} do not follow on the log, which ends at {self.end_offset:,}")
        while data:
            position = self.end_offset % self.file_size
            if not position:
                self._written = self.segments.get(self.end_offset)
            if self._written is None:
                self._begin_segment()
            part = data[: self.file_size - position]
            self._write(position, part)
            self.end_offset += len(part)
            data = data[len(part) :]
            if self.end_offset >= self._look_at:
                self._look()

    def cut(self, end: int) -> None:
        """Have the log end earlier, before a record that is half there or is none; what was after is zero then.

        Raises:
            WriteError: the disk fails.
        """
        while end < self.end_offset:
            start = (self.end_offset - 1) // self.file_size * self.file_size
            begin = max(end, start)
            self._written = self.segments[start]
            self._write(begin - start, bytes(self.end_offset - begin))
            self.end_offset = begin
            self.flushed_offset = min(self.flushed_offset, begin)

    def _write(self, position: int, data: bytes) -> None:
        segment = self._written
        assert segment is not None
        if segment.file is None:
            segment.file = self._disk.open(segment.path)
        try:
            segment.file.write(position, data)
        except Exception:
            # What was written in part must not lie beyond the end.
            with contextlib.suppress(Exception):
                segment.file.write(position, bytes(len(data)))
            raise

    def _begin_segment(self) -> None:
        start = self.end_offset
        segment = self.segments.get(start)
        if segment is None:  # else it was made ahead by one that was killed, of RocketMQ perhaps
            with self._making:  # if it is just being made it is there then
                segment, self._ahead = self._ahead, None
                if segment is None or segment.start_offset != start:
                    segment = self._make_segment(start)
            self.segments[start] = segment
        self._written = segment
        if len(self.segments) == 1:
            self.min_offset = start

    def _make_segment(self, start: int) -> Segment:
        folder = self._folders[start // self.file_size % len(self._folders)]
        segment = Segment(folder / segment_name(start), start)
        self._disk.create(segment.path, self.file_size)
        return segment

    def tell_of_growth(self, listener: Callable[[], None]) -> None:
        """Have somebody told of the next write, once, in its thread; other writes cost nothing for that."""
        self._told_of_growth = listener
        self._look_at = 0

    def _look(self) -> None:
        """Say so where there is little room, and look again when the log has come to the half of a segment."""
        if self._told_of_growth is not None:
            listener, self._told_of_growth = self._told_of_growth, None
            listener()
        if self.has_little_room and self.on_little_room is not None:
            self.on_little_room()
        size = self.file_size
        self._look_at = (self.end_offset + size // 2) // size * size + (size + 1) // 2

    @property
    def has_little_room(self) -> bool:
        """Whether it is time for ``make_ahead``: half of the last segment is full."""
        used = self.end_offset % self.file_size
        next_start = self.end_offset - used + self.file_size
        return self._ahead is None and 2 * used >= self.file_size and next_start not in self.segments

    def make_ahead(self) -> None:
        """Make the next segment before it is needed; any thread may call this.

        Where that fails it is made when it is needed, and who stores a message is told.
        """
        with self._making, contextlib.suppress(MqtoolError):
            if self.has_little_room:
                self._ahead = self._make_segment((self.end_offset // self.file_size + 1) * self.file_size)

    # Flushing

    def flush(self) -> int:
        """Return when everything that was appended before the call is on the disk, and the address where that ends.

        Raises:
            WriteError: the disk failed. What was not on it then may never be, though a later call need not fail.
        """
        timestamp = self.last_timestamp
        end = self.end_offset  # behind the message of that time
        since = self.flushed_offset - self.file_size
        segments = [segment for segment in list(self.segments.values()) if segment.start_offset > since]
        for segment in segments:
            if not segment.is_named:
                self._disk.sync(segment.path)  # its length too
            elif segment.file is not None:
                segment.file.sync()
        for folder in {segment.path.parent for segment in segments if not segment.is_named}:
            self._disk.sync_folder(folder)
        for segment in segments:
            segment.is_named = True
        self.flushed_timestamp = timestamp
        self.flushed_offset = end
        return end

    def release(self) -> None:
        """Release the files that are full and on the disk."""
        for start, segment in self.segments.items():
            if segment.file is not None and start + self.file_size <= self.flushed_offset:
                segment.file.close()
                segment.file = None

    # Reading

    def read(self, offset: int, size: int) -> memoryview:
        """Return bytes at an address, fewer at the end of a segment, none if there is none.

        Raises:
            StoreChangedError: the segment has become shorter.
            MqtoolError: the disk fails.
        """
        position = offset % self.file_size
        segment = self.segments.get(offset - position)
        if segment is None or offset < 0:
            return memoryview(b"")
        descriptor = segment.descriptor
        if descriptor is None:
            descriptor = self._open_segment(segment)
        size = min(size, self.file_size - position)
        with reading(segment.path):
            data = os.pread(descriptor, size, position)
        if len(data) < size:
            raise _shrunk(segment)
        return memoryview(data)

    def read_each(self, places: Iterable[tuple[int, int]]) -> list[bytes]:
        """Return the bytes at several addresses, each with a size; of a pull most of its time goes here.

        Raises:
            NotFoundError: a segment is not there.
            StoreChangedError: a segment has become shorter.
            MqtoolError: the disk fails.
        """
        data_of_each: list[bytes] = []
        file_size, pread = self.file_size, os.pread
        segment, descriptor, first, end = None, -1, 0, 0
        try:
            for offset, size in places:
                if not first <= offset < end:
                    first = offset // file_size * file_size
                    end = first + file_size
                    segment = self.segments.get(first)
                    if segment is None:
                        raise NotFoundError(f"the commit log has no segment for address {offset:,}")
                    descriptor = self._open_segment(segment) if segment.descriptor is None else segment.descriptor
                data = pread(descriptor, size, offset - first)
                if len(data) < size:
                    assert segment is not None
                    raise _shrunk(segment)
                data_of_each.append(data)
        except OSError:
            assert segment is not None
            with reading(segment.path):
                raise
        return data_of_each

    def record(self, offset: int) -> memoryview:
        """Return the record that starts at an address.

        Raises:
            NotFoundError: the log does not reach there.
            FormatError: no record starts there.
            MqtoolError: the disk fails, or a file has become shorter.
        """
        if not self.min_offset <= offset < self.end_offset:
            raise NotFoundError(
                f"the commit log covers {self.min_offset:,} to {self.end_offset:,}: there is nothing at {offset:,}"
            )
        view = self.read(offset, _LIKELY_SIZE)
        size, magic = record_head.read_start(view)
        if magic not in commit_log.MESSAGE_MAGICS or size < commit_log.MIN_SIZE or offset + size > self.end_offset:
            raise FormatError("no message starts", offset)
        return view[:size] if size <= len(view) else self.read(offset, size)

    def store_timestamp(self, offset: int) -> int:
        """Return when the message that starts at an address was stored (ms), -1 if the log does not reach."""
        if not self.min_offset <= offset <= self.end_offset - commit_log.MIN_SIZE:
            return -1
        return record_head.store_timestamp(self.read(offset, commit_log.MIN_SIZE))

    def _open_segment(self, segment: Segment) -> int:
        with reading(segment.path):
            segment.descriptor = os.open(segment.path, os.O_RDONLY)
        self._open[segment.start_offset] = segment
        if len(self._open) > _MAX_OPEN:
            _, oldest = self._open.popitem(last=False)
            _close(oldest)
        return segment.descriptor

    # Removing

    def first_segment(self) -> Segment | None:
        """Return the oldest segment, None if there is no other: the last one stays."""
        return self.segments[self.min_offset] if len(self.segments) > 1 else None

    def remove_first(self) -> Callable[[], None]:
        """Release the oldest segment, and return what removes its file: that takes a while, in any thread.

        The log starts after it at once; a file that stays after all is its beginning again at the next start.
        """
        segment = self.segments.pop(self.min_offset)
        self.min_offset += self.file_size
        self._open.pop(segment.start_offset, None)

        def remove() -> None:
            self._disk.remove_tree(segment.path)  # somebody may have been faster, where the disk is full
            _close(segment)  # the last that has it open: now its bytes are let go
            if segment.file is not None:
                segment.file.close()
                segment.file = None

        return remove

    def close(self) -> None:
        """Release all files."""
        for segment in self.segments.values():
            _close(segment)
            if segment.file is not None:
                segment.file.close()
                segment.file = None
        self._open.clear()
        if self._ahead is not None:
            with contextlib.suppress(MqtoolError):
                self._disk.remove(self._ahead.path)
            self._ahead = None


def _shrunk(segment: Segment) -> StoreChangedError:
    return StoreChangedError(f"{segment.path} was truncated: another process is changing it")


def _close(segment: Segment) -> None:
    if segment.descriptor is not None:
        os.close(segment.descriptor)
        segment.descriptor = None
