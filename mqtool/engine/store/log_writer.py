"""Message records written to the commit log of a new store, in the layout of a broker.

A record goes where the last one ended, if eight bytes are left after it; else a blank record fills the segment and the
record starts the next. Only what depends on the place changes in a record: its own address, and the CRC property that
covers it. (Rules: store.md 2.6, 2.7. RocketMQ: ``DefaultAppendMessageCallback``.)
"""

import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mqtool.engine.store.file_queue import segment_name
from mqtool.errors import BadDataError
from mqtool.formats import commit_log
from mqtool.formats.properties import CRC_SIZE, NAME_SEPARATOR, PAIR_SEPARATOR, crc_digits
from mqtool.formats.property_names import CRC32
from mqtool.formats.record_head import blank
from mqtool.formats.scan import Ints

if TYPE_CHECKING:
    from mqtool.engine.store.disk import Disk

Bytes = npt.NDArray[np.uint8]

PENDING = 4 << 20
"""Bytes that are buffered in memory."""
_CRC_HEAD = np.frombuffer(f"{CRC32}{NAME_SEPARATOR}".encode(), np.uint8)


_PHYSICAL_OFFSET_AT = commit_log.offset_in_head("physical_offset")


class LogWriter:
    """The commit log of a new store that is being written.

    Memory holds ``PENDING`` bytes. Nothing is sure to be on the disk before ``finish`` returns.
    """

    def __init__(self, disk: "Disk", folder: Path, file_size: int, start_offset: int = 0) -> None:
        """Begin at ``start_offset``, the address of a segment; the folder exists and is empty."""
        self.disk = disk
        self.folder = folder
        self.file_size = file_size
        self.end_offset = start_offset
        self.last_start = -1  # address of the last record
        self._path: Path | None = None  # the segment in use
        self._pending = bytearray()

    def append(self, records: Bytes, sizes: Ints) -> None:
        """Write records.

        Args:
            records: concatenated; their addresses and CRC properties are changed in place.
            sizes: of each.

        Raises:
            BadDataError: a record is too large for a segment.
            WriteError: the disk is full, or fails.
        """
        ends = np.cumsum(sizes)
        starts = ends - sizes
        self._refuse_large(sizes)
        done, count = 0, len(sizes)
        while done < count:
            room = self.file_size - self.end_offset % self.file_size - commit_log.BLANK_SIZE
            stop = int(np.searchsorted(ends, starts[done] + room, "right"))
            if stop > done:
                run = slice(done, stop)
                self._write_run(records, starts[run], ends[run])
                done = stop
            if done < count:
                self._end_segment()

    def finish(self) -> None:
        """Write and sync everything."""
        self._flush()
        if self._path:
            self.disk.sync(self._path)
        self.disk.sync_folder(self.folder)

    def _refuse_large(self, sizes: Ints) -> None:
        largest = int(sizes.max(initial=0))
        if largest + commit_log.BLANK_SIZE > self.file_size:
            raise BadDataError(
                f"a message of {largest:,} bytes does not fit into a segment of {self.file_size:,}: set larger "
                "segments with --set mappedFileSizeCommitLog=BYTES"
            )

    def _write_run(self, records: Bytes, starts: Ints, ends: Ints) -> None:
        """Write records that all fit into the segment in use."""
        first, stop = int(starts[0]), int(ends[-1])
        addresses = starts - first + self.end_offset
        put_numbers(records, starts + _PHYSICAL_OFFSET_AT, addresses, ">i8")
        for row in np.flatnonzero(ends_in_crc(records, ends)).tolist():
            start, end = int(starts[row]), int(ends[row])
            crc = zlib.crc32(records[start : end - CRC_SIZE]) & 0x7FFFFFFF
            digits = crc_digits(crc)
            at = end - len(PAIR_SEPARATOR) - len(digits)
            records[at : at + len(digits)] = np.frombuffer(digits, np.uint8)
        self.last_start = int(addresses[-1])
        self._write(memoryview(records[first:stop]))

    def _end_segment(self) -> None:
        """Fill the segment in use with a blank record."""
        left = self.file_size - self.end_offset % self.file_size
        self._write(blank(left))
        self._flush()
        assert self._path
        self.disk.sync(self._path)
        self._path = None
        self.end_offset += left - commit_log.BLANK_SIZE

    def _write(self, data: "bytes | memoryview") -> None:
        if self._path is None:
            self._path = self.folder / segment_name(self.end_offset)
            self.disk.create(self._path, self.file_size)
        self._pending += data
        self.end_offset += len(data)
        if len(self._pending) >= PENDING:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            assert self._path
            start = (self.end_offset - len(self._pending)) % self.file_size
            self.disk.write(self._path, start, bytes(self._pending))
            self._pending.clear()


def put_numbers(data: Bytes, positions: Ints, values: Ints, code: str) -> None:
    """Write numbers of the type ``code`` (``">i8"``) to some positions."""
    raw = values.astype(code).view(np.uint8).reshape(len(values), np.dtype(code).itemsize)
    data[positions[:, None] + np.arange(raw.shape[1])] = raw


def ends_in_crc(records: Bytes, ends: Ints) -> npt.NDArray[np.bool_]:
    """Return which records end in a CRC property; ``ends`` are one past the last byte of each."""
    tails = records[ends[:, None] + np.arange(-CRC_SIZE, 0)]
    is_named = (tails[:, : len(_CRC_HEAD)] == _CRC_HEAD).all(1)
    mask: npt.NDArray[np.bool_] = is_named & (tails[:, -1] == ord(PAIR_SEPARATOR))
    return mask


def is_apart(records: Bytes, ends: Ints, properties_sizes: Ints) -> npt.NDArray[np.bool_]:
    """Return, for records that end in a CRC property, whether it is separate from the previous property."""
    mask: npt.NDArray[np.bool_] = (properties_sizes == CRC_SIZE) | (records[ends - CRC_SIZE - 1] == ord(PAIR_SEPARATOR))
    return mask


def mark_crcs(records: Bytes, ends: Ints, properties_sizes: Ints) -> None:
    """Make records end in a CRC property, whose digits are not correct yet.

    Args:
        records: concatenated.
        ends: one past the last byte of each record to be changed.
        properties_sizes: of the same; at least that of a CRC property.
    """
    records[ends[:, None] + np.arange(-CRC_SIZE, len(_CRC_HEAD) - CRC_SIZE)] = _CRC_HEAD
    records[ends - 1] = ord(PAIR_SEPARATOR)
    records[(ends - CRC_SIZE - 1)[properties_sizes > CRC_SIZE]] = ord(PAIR_SEPARATOR)
