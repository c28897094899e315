"""The index files on disk, and their number of slots if it is not configured."""

from __future__ import annotations

import datetime
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mqtool.engine.store.mapped_file import MappedFile
from mqtool.formats import index_file as layout
from mqtool.late import np, npt

NAME_WIDTH = 17
LAST_NAME_MS = 253_402_300_799_999
"""The end of the year 9999: the last time that can name an index file."""
_LOOK_AT = 200
_MAX_PLACES = 10_000
_STEP = 1 << 20


class Shape(NamedTuple):
    """Numbers of slots and entries of an index file, entry 0 included."""

    slots: int
    entries: int

    @property
    def file_size(self) -> int:
        """Bytes of such a file."""
        return layout.file_size(self.slots, self.entries)

    @property
    def entries_at(self) -> int:
        """Position of entry 0, after the slots."""
        return layout.file_size(self.slots, 0)


DEFAULT_SHAPE = Shape(layout.DEFAULT_SLOT_COUNT, layout.DEFAULT_ENTRY_COUNT)


def index_name(timestamp: int) -> str:
    """Return the name of an index file created at a time (ms), in UTC; brokers use their time zone.

    >>> index_name(1_700_000_000_123)
    '20231114221320123'
    """
    timestamp = min(max(0, timestamp), LAST_NAME_MS)
    moment = datetime.datetime.fromtimestamp(timestamp // 1000, datetime.UTC)
    return f"{moment:%Y%m%d%H%M%S}{timestamp % 1000:03}"


class IndexFile(MappedFile):
    """One index file; its shape is ``None`` while unknown."""

    def __init__(self, path: Path, size: int, shape: Shape | None = None) -> None:
        super().__init__(path, 0, size)
        self.shape = shape

    @functools.cached_property
    def header(self) -> Any:
        """The header, as ``index_file.HEADER`` parses it; zeros if the file is too short."""
        return layout.HEADER.schema.parse(self.read(0, layout.HEADER_SIZE).ljust(layout.HEADER_SIZE, b"\0"))

    @property
    def entry_stop(self) -> int:
        """One past the number of the last entry in use, within the file."""
        if self.shape is None:
            return 1
        room = (self.size - self.shape.entries_at) // layout.ENTRY_SIZE
        return int(max(1, min(self.header.entry_count, self.shape.entries, room)))

    @property
    def entries_at(self) -> int:
        """Position of entry 0."""
        assert self.shape is not None
        return self.shape.entries_at

    def slots(self) -> npt.NDArray[np.int32]:
        """Return the slots (big-endian)."""
        assert self.shape is not None
        stop = min(self.entries_at, self.size)
        stop -= (stop - layout.HEADER_SIZE) % layout.SLOT_SIZE
        return self.stretch(layout.HEADER_SIZE, stop).view(layout.SLOT.dtype)["entry"]

    def entries(self) -> npt.NDArray[np.void]:
        """Return the entries in use, entry 0 first."""
        raw = self.stretch(self.entries_at, self.entries_at + self.entry_stop * layout.ENTRY_SIZE)
        return raw[: len(raw) // layout.ENTRY_SIZE * layout.ENTRY_SIZE].view(layout.ENTRY.dtype)

    def find(self, key_hash: int) -> Iterator[int]:
        """Yield the physical offsets of the entries with this hash, the newest first.

        A circular chain ends at the first entry that is not older than the previous one.
        """
        if self.shape is None:
            return
        slot = self.read(layout.HEADER_SIZE + layout.SLOT_SIZE * (key_hash % self.shape.slots), layout.SLOT_SIZE)
        number = layout.SLOT.schema.parse(slot.ljust(layout.SLOT_SIZE, b"\0")).entry
        before = self.entry_stop
        while 0 < number < before:
            entry = layout.ENTRY.schema.parse(
                self.read(self.entries_at + number * layout.ENTRY_SIZE, layout.ENTRY_SIZE)
            )
            if entry.key_hash == key_hash:
                yield entry.physical_offset
            before, number = number, entry.previous_entry


def infer_shape(files: list[IndexFile]) -> Shape | None:
    """Return the only shape with which chains and slots of the files are consistent, None if there is none.

    A file's length leaves many pairs of slots and entries. Where the last entry lies, which the header numbers, tells
    it; most of the first entries must be where chains and slots expect them, so that occasional damage
    does no harm.
    """
    for file in files:
        if file.size == DEFAULT_SHAPE.file_size:
            return DEFAULT_SHAPE
        if file.header.entry_count > 1:
            for slots in _slot_counts(file):
                shape = Shape(slots, (file.size - layout.HEADER_SIZE - layout.SLOT_SIZE * slots) // layout.ENTRY_SIZE)
                if slots > 0 and shape.file_size == file.size and _fits(file, shape):
                    return shape
    return None


def _slot_counts(file: IndexFile) -> Iterator[int]:
    """Yield each number of slots with a possible place of the last entry.

    It holds the last byte of the file that is not zero, and the physical offset that ends the header.
    """
    end = layout.HEADER_SIZE + (file.header.entry_count - 1) * layout.ENTRY_SIZE
    used = _used_size(file)
    for stop in range(used, used + layout.ENTRY_SIZE):
        if (stop - layout.ENTRY_SIZE - end) % layout.SLOT_SIZE == 0:
            yield (stop - layout.ENTRY_SIZE - end) // layout.SLOT_SIZE
    pattern = int(file.header.end_physical_offset).to_bytes(8, "big", signed=True)
    offset_at = layout.ENTRY.offset_of("physical_offset")
    # What occurs in very many places is not significant.
    for at in itertools.islice(_places_of(file, pattern), _MAX_PLACES):
        if (at - offset_at - end) % layout.SLOT_SIZE == 0:
            yield (at - offset_at - end) // layout.SLOT_SIZE


def _used_size(file: IndexFile) -> int:
    """Return one past the last byte that is not zero."""
    for stop in range(file.size, 0, -_STEP):
        # Compared first: numpy fails if a broker changes bytes that it is counting.
        used = np.flatnonzero(file.stretch(max(0, stop - _STEP), stop) != 0)
        if len(used):
            return max(0, stop - _STEP) + int(used[-1]) + 1
    return 0


def _places_of(file: IndexFile, pattern: bytes) -> Iterator[int]:
    for start in range(layout.HEADER_SIZE, file.size, _STEP):
        chunk = file.stretch(start, start + _STEP + len(pattern) - 1).tobytes()
        at = chunk.find(pattern)
        while at >= 0:
            yield start + at
            at = chunk.find(pattern, at + 1)


def _fits(file: IndexFile, shape: Shape) -> bool:
    last = file.header.entry_count - 1
    if not 1 <= last < shape.entries:
        return False
    stop = min(last + 1, _LOOK_AT)
    start = shape.entries_at
    entries = file.stretch(start, start + stop * layout.ENTRY_SIZE).view(layout.ENTRY.dtype)
    slots = file.stretch(layout.HEADER_SIZE, start).view(layout.SLOT.dtype)["entry"]
    newest: dict[int, int] = {}
    wrong = int(any(entries[0].item()))
    for number, (key_hash, _, _, previous) in enumerate(entries[1:].tolist(), 1):
        slot = key_hash % shape.slots
        wrong += previous != newest.get(slot, 0)
        newest[slot] = number
    misled = sum(not number <= slots[slot] <= last for slot, number in newest.items())
    return 2 * wrong < stop and 2 * misled < len(newest)
