"""The consume queues on disk."""

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mqtool.engine.store.file_queue import FileQueue
from mqtool.engine.store.mapped_file import MappedFile, reading
from mqtool.formats import batch_consume_queue, consume_queue, consume_queue_ext

_WINDOW = 4096
Units = npt.NDArray[np.void]


class ConsumeQueue(FileQueue):
    """The units of one queue of one topic; ``max_offset`` is one past the last unit that is not empty."""

    def __init__(self, topic: str, queue_id: int, folder: Path, file_size: int | None = None) -> None:
        super().__init__([folder], file_size)
        self.topic = topic
        self.queue_id = queue_id
        self._max_offset: int | None = None

    @property
    def first_offset(self) -> int:
        """Queue offset of the first place for a unit."""
        return -(-self.min_offset // consume_queue.UNIT_SIZE)

    @property
    def end_place(self) -> int:
        """One past the queue offset of the last place for a unit."""
        return self.end_offset // consume_queue.UNIT_SIZE

    def units(self, start: int, stop: int) -> Units:
        """Return the units of a range of queue offsets; places that no file has are zero."""
        size = consume_queue.UNIT_SIZE
        start = max(0, start)
        stop = max(start, stop)
        if self.segments:
            segment = self.segment_at(start * size)
            if segment and stop * size <= segment.end_offset:
                at = start * size - segment.start_offset
                return segment.bytes[at : at + (stop - start) * size].view(consume_queue.UNIT_DTYPE)
        out = np.zeros((stop - start) * size, np.uint8)
        for segment in self.segments:
            low = max(segment.start_offset, start * size)
            high = min(segment.end_offset, stop * size)
            if low < high:
                at = low - segment.start_offset
                out[low - start * size : high - start * size] = segment.bytes[at : at + high - low]
        return out.view(consume_queue.UNIT_DTYPE)

    def max_offset(self) -> int:
        """Return one past the last unit that is not empty: what a broker calls the maximum of the queue."""
        if self._max_offset is None:
            self._max_offset = self._find_max_offset()
        return self._max_offset

    def _find_max_offset(self) -> int:
        for segment in reversed(self.segments):
            used = used_units(segment, consume_queue.UNIT_DTYPE)
            if used:
                return segment.start_offset // consume_queue.UNIT_SIZE + used
        return self.first_offset


class BatchConsumeQueue(FileQueue):
    """The units of one queue whose records hold several messages."""

    def __init__(self, topic: str, queue_id: int, folder: Path, file_size: int | None = None) -> None:
        super().__init__([folder], file_size)
        self.topic = topic
        self.queue_id = queue_id

    def units(self) -> Units:
        """Return all units up to the first that is empty."""
        size = batch_consume_queue.UNIT_SIZE
        parts = [
            segment.bytes[: segment.size // size * size].view(batch_consume_queue.UNIT_DTYPE)
            for segment in self.segments
        ]
        units = np.concatenate(parts) if parts else np.empty(0, batch_consume_queue.UNIT_DTYPE)
        empty = np.flatnonzero(units["size"] <= 0)
        return units[: empty[0]] if len(empty) else units


class ConsumeQueueExt(FileQueue):
    """The extension of one queue."""

    def __init__(self, topic: str, queue_id: int, folder: Path, file_size: int | None = None) -> None:
        super().__init__([folder], file_size)
        self.topic = topic
        self.queue_id = queue_id

    def unit_at(self, tags_code: int) -> "npt.NDArray[np.void] | None":
        """Return the head of the unit at the address that a tags code is, None where none can be."""
        position = consume_queue_ext.position_of(tags_code)
        head = self.read(position, consume_queue_ext.MIN_SIZE)
        if len(head) < consume_queue_ext.MIN_SIZE:
            return None
        unit = np.frombuffer(head, consume_queue_ext.HEAD_DTYPE)
        return unit if int(unit["size"][0]) >= consume_queue_ext.MIN_SIZE else None


def used_units(segment: MappedFile, dtype: np.dtype[np.void]) -> int:
    """Return one past the number of the last unit of a file that is not empty; holes of the file are not read."""
    stop = segment.size // dtype.itemsize
    with reading(segment.path):
        descriptor = os.open(segment.path, os.O_RDONLY)
        try:
            while stop > 0:
                start = max(0, stop - _WINDOW)
                if not _is_hole(descriptor, start * dtype.itemsize, stop * dtype.itemsize):
                    data = os.pread(descriptor, (stop - start) * dtype.itemsize, start * dtype.itemsize)
                    if data != bytes(len(data)):
                        units = np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype)
                        used = np.flatnonzero((units["size"] != 0) | (units["physical_offset"] != 0))
                        if len(used):
                            return start + int(used[-1]) + 1
                stop = start
        finally:
            os.close(descriptor)
    return 0


def _is_hole(descriptor: int, start: int, stop: int) -> bool:
    try:
        return os.lseek(descriptor, start, os.SEEK_DATA) >= stop
    except OSError:  # no data up to the end of the file
        return os.lseek(descriptor, 0, os.SEEK_END) >= stop
