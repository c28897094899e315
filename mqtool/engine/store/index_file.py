"""The index files on disk, and how many slots they have when nobody says."""

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mqtool.engine.store.mapped_file import MappedFile
from mqtool.formats import index_file as layout
from mqtool.formats import kernels as plain

NAME_WIDTH = 17
_LOOK_AT = 200


@dataclasses.dataclass(frozen=True)
class Shape:
    """How many slots and entries an index file has room for, entry 0 included."""

    slots: int
    entries: int

    @property
    def file_size(self) -> int:
        """Bytes of such a file."""
        return layout.file_size(self.slots, self.entries)


DEFAULT_SHAPE = Shape(layout.DEFAULT_SLOT_COUNT, layout.DEFAULT_ENTRY_COUNT)


class IndexFile(MappedFile):
    """One index file; its shape is ``None`` while unknown."""

    def __init__(self, path: Path, size: int, shape: Shape | None = None) -> None:
        super().__init__(path, 0, size)
        self.shape = shape

    @functools.cached_property
    def header(self) -> Any:
        """The header, as ``index_file.HEADER`` parses it; zeros where the file is too short for one."""
        return layout.HEADER.parse(self.read(0, layout.HEADER_SIZE).ljust(layout.HEADER_SIZE, b"\0"))

    @property
    def entry_stop(self) -> int:
        """One past the number of the last entry in use, as far as the file reaches."""
        if self.shape is None:
            return 1
        room = (self.size - layout.HEADER_SIZE - layout.SLOT_SIZE * self.shape.slots) // layout.ENTRY_SIZE
        return int(max(1, min(self.header.entry_count, self.shape.entries, room)))

    @property
    def entries_at(self) -> int:
        """Position of entry 0."""
        assert self.shape is not None
        return layout.HEADER_SIZE + layout.SLOT_SIZE * self.shape.slots

    def slots(self) -> npt.NDArray[np.int32]:
        """Return the slots (big-endian)."""
        assert self.shape is not None
        stop = min(self.entries_at, self.size)
        stop -= (stop - layout.HEADER_SIZE) % layout.SLOT_SIZE
        return self.bytes[layout.HEADER_SIZE : stop].view(layout.SLOT_DTYPE)["entry"]

    def entries(self) -> npt.NDArray[np.void]:
        """Return the entries in use, entry 0 first."""
        start = self.entries_at
        return self.bytes[start : start + self.entry_stop * layout.ENTRY_SIZE].view(layout.ENTRY_DTYPE)

    def find(self, key_hash: int) -> Iterator[int]:
        """Yield the physical offsets of the entries with this hash, the newest first.

        A chain that runs in a circle ends at the first entry that is not older than the one before it.
        """
        if self.shape is None:
            return
        number = plain.int32(
            self.read(layout.HEADER_SIZE + layout.SLOT_SIZE * (key_hash % self.shape.slots), layout.SLOT_SIZE), 0
        )
        before = self.entry_stop
        while 0 < number < before:
            entry = layout.ENTRY.parse(self.read(self.entries_at + number * layout.ENTRY_SIZE, layout.ENTRY_SIZE))
            if entry.key_hash == key_hash:
                yield entry.physical_offset
            before, number = number, entry.previous_entry


def infer_shape(files: list[IndexFile]) -> Shape | None:
    """Return the one shape with which the chains of the files make sense, None when none does.

    A file's length leaves many pairs of slots and entries; the last entry must hold the offset that ends the header,
    and every entry must be where its chain expects it.
    """
    for file in files:
        if file.size == DEFAULT_SHAPE.file_size:
            return DEFAULT_SHAPE
        if file.header.entry_count > 1:
            for slots in _slot_counts(file):
                shape = Shape(slots, (file.size - layout.HEADER_SIZE - layout.SLOT_SIZE * slots) // layout.ENTRY_SIZE)
                if shape.file_size == file.size and _fits(file, shape):
                    return shape
    return None


def _slot_counts(file: IndexFile) -> Iterator[int]:
    """Yield each number of slots that puts an entry with the header's last offset where the last entry must be."""
    header = file.header
    last = header.entry_count - 1
    pattern = int(header.end_physical_offset).to_bytes(8, "big", signed=True)
    offset_at = int(layout.ENTRY_DTYPE.fields["physical_offset"][1])  # type: ignore[index]
    data = file.read(0, file.size) if file.size <= 1 << 20 else bytes(memoryview(file.bytes))
    at = data.find(pattern, layout.HEADER_SIZE)
    while at >= 0:
        entries_at = at - offset_at - last * layout.ENTRY_SIZE
        slots, rest = divmod(entries_at - layout.HEADER_SIZE, layout.SLOT_SIZE)
        if slots > 0 and not rest:
            yield slots
        at = data.find(pattern, at + 1)


def _fits(file: IndexFile, shape: Shape) -> bool:
    stop = min(file.header.entry_count, _LOOK_AT)
    if not 1 <= file.header.entry_count <= shape.entries:
        return False
    start = layout.HEADER_SIZE + layout.SLOT_SIZE * shape.slots
    data = file.read(start, stop * layout.ENTRY_SIZE)
    if len(data) < stop * layout.ENTRY_SIZE or any(data[: layout.ENTRY_SIZE]):
        return False
    entries = np.frombuffer(data, layout.ENTRY_DTYPE)
    newest: dict[int, int] = {}
    for number in range(1, stop):
        slot = int(entries["key_hash"][number]) % shape.slots
        if entries["previous_entry"][number] != newest.get(slot, 0):
            return False
        newest[slot] = number
    return True
