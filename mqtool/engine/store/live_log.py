"""The commit log of a running broker: appends at its end, reads anywhere.

Bytes are written and read with plain system calls, nothing is mapped: a disk that is full or fails, or a file
that was truncated, is then an error of one request, and not the end of the process. Segments are as long as
configured from the start, sparse; the next one may be created ahead, as a disk may be slow at that. (Rules: store.md
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
"""Number of segments that stay open for readers."""
_MOST_KEPT = 1 << 16
"""Bytes of a write that are kept in memory until the next."""
_LIKELY_SIZE = 4096
"""Bytes read of a record of unknown size."""


class Segment:
    """One file of the log."""

    def __init__(self, path: Path, start_offset: int) -> None:
        self.path = path
        self.start_offset = start_offset
        self.file: OpenFile | None = None  # while it is written, and until it is synced
        self.is_named = False  # its name is on the disk, as far as is known
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
                raise RecoveryNeededError(f"{segment.path} does not have the address or the length of a segment")
        if log.strays:
            raise RecoveryNeededError(f"{log.strays[0].path} is not a segment")
        self.file_size = file_size
        self.segments: dict[int, Segment] = {
            segment.start_offset: Segment(segment.path, segment.start_offset) for segment in log.segments
        }
        self.min_offset = log.min_offset
        self.end_offset = log.min_offset
        self.last_start = -1
        """Where the last record starts, -1 if there is none."""
        self.last_timestamp = 0
        """When it was stored."""
        self.flushed_offset = log.min_offset
        self.flushed_timestamp = 0
        self.confirmed_offset: int | None = None
        """How far replicas have it, None if none are required."""
        self.readers: set[LogReader] = set()
        """Active readers of the raw log."""
        self.on_little_room: Callable[[], None] | None = None
        """Called after the write that leaves half of a segment or less, in its thread: ``make_ahead`` is due."""
        self._disk = disk
        self._folders = list(folders)
        self._written: Segment | None = None  # the last segment
        self._ahead: Segment | None = None  # the next one, if it exists already
        self._making = threading.Lock()
        self._kept = b"", 0  # the bytes that were written last, and their address: they are read next
        self._look_at = 0  # from this address on there may be little space left, or a listener to call
        self._told_of_growth: Callable[[], None] | None = None
        self._open: collections.OrderedDict[int, Segment] = collections.OrderedDict()  # for readers

    def take_up(self, end_offset: int, last_start: int, flushed_offset: int, flushed_start: int) -> None:
        """Continue at the end that was found (``log_end``).

        Args:
            end_offset: address of the next record.
            last_start: where the last one starts, -1 if there is none.
            flushed_offset: address up to which all is on the disk.
            flushed_start: where the last flushed record starts, -1 if there is none.
        """
        self.end_offset, self.last_start, self.flushed_offset = end_offset, last_start, flushed_offset
        self._written = self.segments.get(end_offset // self.file_size * self.file_size)
        if last_start >= 0:
            self.last_timestamp = self.store_timestamp(last_start)
        if flushed_start >= 0:
            self.flushed_timestamp = self.store_timestamp(flushed_start)

    # Writing

    @property
    def room(self) -> int:
        """How many bytes of records fit into the segment at the end of the log."""
        return self.file_size - self.end_offset % self.file_size - _ROOM

    def place(self, size: int) -> int:
        """Return the address for ``size`` contiguous bytes; a segment without space for them is ended.

        Raises:
            WriteError: the disk is full, or fails.
        """
        at = self.end_offset
        position = at % self.file_size
        if position + size + _ROOM > self.file_size:
            self._write(position, record_head.blank(self.file_size - position))
            at += self.file_size - position
            self.end_offset = at
            self._written = self.segments.get(at)  # RocketMQ creates one ahead, which stays if it is killed
        if self._written is None:
            self._begin_segment()
        return at

    def write(self, records: bytes, last_start: int, timestamp: int) -> None:
        """Write the records for which ``place`` returned an address.

        Args:
            records: one record, or several concatenated.
            last_start: address of the last of them.
            timestamp: when they are stored, in ms.

        Raises:
            WriteError: the disk is full, or fails; nothing is appended.
        """
        self._write(self.end_offset % self.file_size, records)
        self._keep(records)
        self.last_timestamp = timestamp
        self.last_start = last_start
        self.end_offset += len(records)  # last: another thread that flushes reads it first
        if self.end_offset >= self._look_at:
            self._look()

    def write_at(self, at: int, data: bytes) -> None:
        """Write bytes of another broker's log, with segments of the same length, to their addresses.

        They may be cut anywhere, even within a record; their contents are not examined here.

        Args:
            at: the end of this log; if it is empty, the beginning of a segment.
            data: the bytes.

        Raises:
            BadDataError: they do not belong there; nothing is written.
            WriteError: the disk is full, or fails; the end of the log shows how much was written.
        """
        if not self.segments and data and at % self.file_size == 0:
            self.min_offset = self.flushed_offset = self.end_offset = at
        if at != self.end_offset:
            raise BadDataError(f"the bytes for {at:,} do not continue the log, which ends at {self.end_offset:,}")
        while data:
            position = self.end_offset % self.file_size
            if not position:
                self._written = self.segments.get(self.end_offset)
            if self._written is None:
                self._begin_segment()
            part = data[: self.file_size - position]
            self._write(position, part)
            self._keep(part)
            self.end_offset += len(part)
            data = data[len(part) :]
            if self.end_offset >= self._look_at:
                self._look()

    def _keep(self, data: bytes) -> None:
        """Keep what was written to the end of the log: a slave and its queues read it next, without a call."""
        self._kept = (data, self.end_offset) if len(data) <= _MOST_KEPT else (b"", 0)

    def cut(self, end: int) -> None:
        """Truncate the log before an incomplete or invalid record; what follows becomes zero.

        Raises:
            WriteError: the disk fails.
        """
        self._kept = b"", 0
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
            # Partly written bytes must not stay beyond the end.
            with contextlib.suppress(Exception):
                segment.file.write(position, bytes(len(data)))
            raise

    def _begin_segment(self) -> None:
        start = self.end_offset
        segment = self.segments.get(start)
        if segment is None:  # otherwise a killed broker, perhaps RocketMQ, has created it ahead
            with self._making:  # if it is just being created it exists then
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
        """Call a listener at the next write, once, in its thread; other writes have no extra cost."""
        self._told_of_growth = listener
        self._look_at = 0

    def _look(self) -> None:
        """Call listeners, also if there is little space, and check again when the log reaches half of a segment."""
        size = self.file_size
        self._look_at = (self.end_offset + size // 2) // size * size + (size + 1) // 2
        if self._told_of_growth is not None:
            listener, self._told_of_growth = self._told_of_growth, None
            listener()
        if self.has_little_room and self.on_little_room is not None:
            self.on_little_room()

    @property
    def has_little_room(self) -> bool:
        """Whether it is time for ``make_ahead``: half of the last segment is full."""
        used = self.end_offset % self.file_size
        next_start = self.end_offset - used + self.file_size
        return self._ahead is None and 2 * used >= self.file_size and next_start not in self.segments

    def make_ahead(self) -> None:
        """Create the next segment before it is needed; any thread may call this.

        If that fails it is created when it is needed, with an error to the producer if it fails again.
        """
        with self._making, contextlib.suppress(MqtoolError):
            if self.has_little_room:
                self._ahead = self._make_segment((self.end_offset // self.file_size + 1) * self.file_size)

    # Flushing

    def flush(self) -> int:
        """Wait until everything appended before the call is on the disk, and return the address where that ends.

        Raises:
            WriteError: the disk failed. Unflushed data may be lost, even if a later call succeeds.
        """
        timestamp = self.last_timestamp
        end = self.end_offset  # after the message of that time
        since = self.flushed_offset - self.file_size
        segments = [segment for segment in list(self.segments.values()) if segment.start_offset > since]
        for segment in segments:
            if not segment.is_named:
                self._disk.sync(segment.path)  # its length, too
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
        """Close the files that are full and synced."""
        for start, segment in self.segments.items():
            if segment.file is not None and start + self.file_size <= self.flushed_offset:
                segment.file.close()
                segment.file = None

    # Reading

    def read(self, offset: int, size: int) -> memoryview:
        """Return bytes at an address, fewer at the end of a segment, none without a segment.

        Raises:
            StoreChangedError: the segment has become shorter.
            MqtoolError: the disk fails.
        """
        return memoryview(self.read_bytes(offset, size))

    def read_bytes(self, offset: int, size: int) -> bytes:
        """Return the same as ``read``, as bytes."""
        kept, kept_at = self._kept
        if (start := offset - kept_at) >= 0 and start + size <= len(kept):
            return kept[start : start + size]
        position = offset % self.file_size
        segment = self.segments.get(offset - position)
        if segment is None or offset < 0:
            return b""
        descriptor = segment.descriptor
        if descriptor is None:
            descriptor = self._open_segment(segment)
        size = min(size, self.file_size - position)
        try:
            data = os.pread(descriptor, size, position)
        except OSError:
            with reading(segment.path):
                raise
        if len(data) < size:
            raise _shrunk(segment)
        return data

    def read_each(self, places: Iterable[tuple[int, int]]) -> list[bytes]:
        """Return the bytes at several addresses, each with a size; a pull spends most of its time here.

        Raises:
            NotFoundError: a segment does not exist.
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
                f"the commit log covers {self.min_offset:,} to {self.end_offset:,}: {offset:,} is outside"
            )
        view = self.read(offset, _LIKELY_SIZE)
        size, magic = record_head.read_start(view)
        if magic not in commit_log.MESSAGE_MAGICS or size < commit_log.MIN_SIZE or offset + size > self.end_offset:
            raise FormatError("no message starts", offset)
        return view[:size] if size <= len(view) else self.read(offset, size)

    def store_timestamp(self, offset: int) -> int:
        """Return when the message that starts at an address was stored (ms), -1 if it is outside of the log."""
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
        """Return the oldest segment, None if it is the only one, which stays."""
        return self.segments[self.min_offset] if len(self.segments) > 1 else None

    def remove_first(self) -> Callable[[], None]:
        """Release the oldest segment, and return a slow function that removes its file, for any thread.

        The log starts after it at once; a file that is not removed is its beginning again at the next start.
        """
        segment = self.segments.pop(self.min_offset)
        self.min_offset += self.file_size
        self._open.pop(segment.start_offset, None)

        def remove() -> None:
            self._disk.remove_tree(segment.path)  # it may have been removed by hand, if the disk is full
            _close(segment)  # the last open descriptor: now the space is freed
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
