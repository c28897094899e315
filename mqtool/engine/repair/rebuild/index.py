"""Index files rebuilt from the entries of ``dispatch``, as a broker without index files writes them.

Only their names differ, which a broker takes from its clock: here the name is the store time of the first
message. (Rules: store.md 5. RocketMQ: ``IndexService``, ``IndexFile``.)

Cost: linear in the entries; memory holds one index file.
"""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mqtool.engine.repair.rebuild.queues import tell
from mqtool.engine.store.dispatch import IndexEntries
from mqtool.engine.store.index_file import DEFAULT_SHAPE, LAST_NAME_MS, Shape, index_name
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import index_file as layout
from mqtool.formats.scan import Ints

if TYPE_CHECKING:
    from mqtool.engine.store.disk import Disk

_BLOCK = 64 << 10  # bytes of slots that are written or skipped together
_MAX_UNSYNCED = 32 << 20  # bytes of entries, so that the disk works while the log is read
_MAX_SECONDS = 2**31 - 1


def shape_of(reader: StoreReader) -> Shape:
    """Return how many slots and entries index files have; RocketMQ's default, with a remark, if it is unknown."""
    slots, entries = reader.config.size("maxHashSlotNum"), reader.config.size("maxIndexNum")
    if slots and entries:
        return Shape(slots, entries)
    for file in reader.index_files:
        if file.shape:
            return file.shape
    shape = Shape(slots or DEFAULT_SHAPE.slots, entries or DEFAULT_SHAPE.entries)
    tell(
        reader,
        f"no index file shows its shape: assuming {shape.slots:,} slots and {shape.entries:,} entries "
        "(maxHashSlotNum, maxIndexNum)",
    )
    return shape


class LastEntry(NamedTuple):
    """What a file takes over from the last entry of the previous file."""

    store_timestamp: int
    physical_offset: int


def name_number(last: int, timestamp: int) -> int:
    """Return the argument of ``index_name`` for a file, from that of the previous file (-1 for none)."""
    return max(last + 1, min(timestamp, LAST_NAME_MS))


@dataclasses.dataclass
class _IndexFileDraft:
    """An index file that is being written."""

    path: Path
    newest: npt.NDArray[np.int32]  # for each slot
    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    next: int = 1  # number of the next entry

    def header(self) -> bytes:
        """Return the header."""
        return bytes(
            layout.HEADER.schema.build(
                {
                    "begin_timestamp": self.begin_timestamp,
                    "end_timestamp": self.end_timestamp,
                    "begin_physical_offset": self.begin_offset,
                    "end_physical_offset": self.end_offset,
                    "slot_count": int(np.count_nonzero(self.newest)),
                    "entry_count": self.next,
                }
            )
        )


class IndexBuilder:
    """Takes the index entries of a log in order and writes index files, one after the other.

    Memory holds the slots of one file.
    """

    def __init__(self, folder: Path, disk: "Disk", shape: Shape, kernels: Any) -> None:
        self.folder = folder
        self.shape = shape
        self.paths: list[Path] = []
        self.entries = 0
        self._disk = disk
        self._kernels = kernels
        self._file: _IndexFileDraft | None = None
        self._last_name = -1
        self._unsynced = 0

    def add(self, entries: IndexEntries, last_timestamp: int, more: bool) -> None:
        """Take the entries of the next messages.

        Args:
            entries: in the order of the log.
            last_timestamp: store time of the last of the messages.
            more: whether messages without an entry follow the last entry.
        """
        done, count = 0, len(entries.rows)
        while done < count:
            file = self._with_room(int(entries.store_timestamp[done]))
            step = min(count - done, self.shape.entries - file.next)
            self._append(file, entries, slice(done, done + step))
            done += step
        if more:
            self._with_room(last_timestamp)

    def _with_room(self, timestamp: int) -> _IndexFileDraft:
        """Return the file for the next message: as in a broker, any message, even without keys, may begin a new one."""
        file = self._file
        if file is None or file.next >= self.shape.entries:
            file = self._roll(timestamp)
        return file

    def _roll(self, timestamp: int) -> _IndexFileDraft:
        before = self._file
        self._close()
        if not self.paths:
            self._disk.make_folder(self.folder)
        end = LastEntry(before.end_timestamp, before.end_offset) if before else None
        return self.open_file(self.folder / self._name(timestamp), end)

    def open_file(self, path: Path, before: "LastEntry | None") -> _IndexFileDraft:
        """Begin a file, after one that ends with the entry ``before``."""
        self._disk.create(path, self.shape.file_size)
        self.paths.append(path)
        self._file = _IndexFileDraft(path, np.zeros(self.shape.slots, np.int32))
        if before is not None:
            # A broker begins a file with the end of the previous one: its first entry counts from there.
            self._file.begin_timestamp = self._file.end_timestamp = before.store_timestamp
            self._file.begin_offset = self._file.end_offset = before.physical_offset
        return self._file

    def _name(self, timestamp: int) -> str:
        self._last_name = name_number(self._last_name, timestamp)
        return index_name(self._last_name)

    def _append(self, file: _IndexFileDraft, entries: IndexEntries, rows: slice) -> None:
        hashes, timestamps = entries.key_hash[rows], entries.store_timestamp[rows]
        previous = np.empty(len(hashes), np.int32)
        self._kernels.link_entries(hashes, file.next, file.newest, previous)
        packed = np.empty(len(hashes), layout.ENTRY.dtype)
        packed["key_hash"] = hashes
        packed["physical_offset"] = entries.physical_offset[rows]
        packed["previous_entry"] = previous
        is_first = file.next == 1
        first_seconds = seconds_since(file.begin_timestamp, timestamps[:1])
        if is_first:
            file.begin_timestamp = int(timestamps[0])
            file.begin_offset = int(entries.physical_offset[rows.start])
        packed["seconds_since_begin"] = seconds_since(file.begin_timestamp, timestamps)
        if is_first:
            packed["seconds_since_begin"][0] = first_seconds[0]
        self._disk.write(file.path, self.shape.entries_at + file.next * layout.ENTRY_SIZE, packed.tobytes())
        self._unsynced += packed.nbytes
        if self._unsynced >= _MAX_UNSYNCED:
            self._disk.begin(file.path)
            self._unsynced = 0
        file.next += len(hashes)
        file.end_timestamp = int(timestamps[-1])
        file.end_offset = int(entries.physical_offset[rows.stop - 1])
        self.entries += len(hashes)

    @property
    def end_timestamp(self) -> int:
        """When the message of the last entry was stored, 0 if there is none."""
        return self._file.end_timestamp if self._file else 0

    def _close(self) -> None:
        """Write header and slots of a file."""
        file = self._file
        if file is None:
            return
        for start, data in _blocks(file.newest):
            self._disk.write(file.path, layout.HEADER_SIZE + start, data)
        self._disk.write(file.path, 0, file.header())
        self._disk.sync(file.path)

    def finish(self) -> None:
        """Write and sync everything."""
        self._close()
        if self.paths:
            self._disk.sync_folder(self.folder)


def seconds_since(begin: "Ints | int", timestamps: Ints) -> Ints:
    """Return store times as the seconds of entries, relative to the begin of their file; overflows as in brokers."""
    return np.where(np.asarray(begin) > 0, np.clip((timestamps - begin) // 1000, 0, _MAX_SECONDS), 0)


def _blocks(newest: npt.NDArray[np.int32]) -> "list[tuple[int, bytes]]":
    """Return position and bytes of each stretch of slots in use; the rest of a new file is zero."""
    step = _BLOCK // layout.SLOT_SIZE
    blocks = []
    for start in range(0, len(newest), step):
        block = newest[start : start + step]
        if block.any():
            blocks.append((start * layout.SLOT_SIZE, block.astype(layout.SLOT.dtype["entry"]).tobytes()))
    return blocks
