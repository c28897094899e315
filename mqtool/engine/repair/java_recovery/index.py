"""The index of a starting broker: files dropped, entries added, files begun (spec 5.3, 5.4, 5.6).

Cost: linear in the entries that the broker would add.
"""

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mqtool.engine.repair.java_recovery.files import (
    DraftFile,
    Scratch,
    StartRefusedError,
    VersionRules,
    index_entries_of,
)
from mqtool.engine.store.dispatch import IndexEntries
from mqtool.engine.store.index_file import IndexFile, Shape
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.formats import index_file as layout
from mqtool.formats.scan import Ints, MessageTable

_MAX_SECONDS = (1 << 31) - 1


@dataclasses.dataclass(frozen=True)
class IndexHead:
    """The header of an index file; the name is None if a broker would name it by the clock."""

    name: str | None
    begin_timestamp: int
    end_timestamp: int
    begin_physical_offset: int
    end_physical_offset: int
    slot_count: int
    entry_count: int


class BrokerIndexFile:
    """One index file; ``head`` is what the broker holds in memory."""

    def __init__(self, draft: DraftFile, head: IndexHead) -> None:
        self.draft = draft
        self.head = head

    @property
    def header(self) -> bytes:
        """The header as it is written to the file."""
        fields = dataclasses.asdict(self.head)
        del fields["name"]
        return bytes(layout.HEADER.schema.build(fields))


class BrokerIndex:
    """All index files of a broker.

    ``full_timestamps`` are the ends of files that were full when the next one began; the checkpoint gets them one
    by one. Without ``keep`` only headers are computed; entries are not kept.
    """

    def __init__(self, folder: Path, shape: Shape, scratch: Scratch, rules: VersionRules, keep: bool) -> None:
        self.files: list[BrokerIndexFile] = []
        self.removed: list[Path] = []
        self.full_timestamps: list[int] = []
        self._folder = folder
        self._shape = shape
        self._scratch = scratch
        self._rules = rules
        self._keep = keep
        self._slots: npt.NDArray[np.int32] | None = None  # of the last file

    def load(self, drop_after: int | None) -> None:
        """Load the existing files, in order of their names; drop those that end after a time.

        Raises:
            StartRefusedError: there is a folder whose name is a number.
        """
        for path, size, is_folder in index_entries_of(self._folder):
            if is_folder:
                if self._rules.measures_first:
                    raise StartRefusedError(f"{path.name} in the index folder is a folder")
                return  # 4.9 reads no further, and continues
            file = IndexFile(path, size)
            header = file.header
            head = IndexHead(
                path.name,
                header.begin_timestamp,
                header.end_timestamp,
                header.begin_physical_offset,
                header.end_physical_offset,
                header.slot_count,
                max(1, header.entry_count),
            )
            if drop_after is not None and head.end_timestamp > drop_after:
                self.removed.append(path)
            else:
                draft = DraftFile(path, max(size, self._shape.file_size), MappedFile(path, 0, size), self._scratch)
                self.files.append(BrokerIndexFile(draft, head))

    def put(self, table: MessageTable, entries: IndexEntries) -> None:
        """Add the entries of messages, in the order of the log, each with its stated physical offset."""
        if not len(table):
            return
        offsets = table.column("physical_offset")
        # If messages state smaller addresses, the broker may skip some of them.
        edges = np.flatnonzero(offsets[1:] < offsets[:-1]) + 1
        for start, stop in zip([0, *edges.tolist()], [*edges.tolist(), len(table)], strict=True):
            self._put_run(table, entries, offsets, start, stop)

    def finish(self) -> None:
        """Write headers and slots."""
        self._write_slots()
        for file in self.files if self._keep else ():
            if file.head.entry_count > 1 or self._rules.measures_first:
                file.draft.write(0, file.header)
            elif file.draft.is_new:  # up to 4.9 nothing writes the number of the next entry before there is one
                file.draft.write(0, file.header[: -layout.SLOT_SIZE] + bytes(layout.SLOT_SIZE))

    def _put_run(self, table: MessageTable, entries: IndexEntries, offsets: Ints, start: int, stop: int) -> None:
        """Add the messages ``start`` to ``stop``, whose physical offsets do not decrease."""
        file = self._current()
        start += int(np.searchsorted(offsets[start:stop], file.head.end_physical_offset))
        first, last = np.searchsorted(entries.rows, (start, stop)).tolist()
        times = table.column("store_timestamp")
        while first < last:
            file = self._current()
            count = min(last - first, self._shape.entries - file.head.entry_count)
            rows = entries.rows[first : first + count]
            self._add(file, entries.key_hash[first : first + count], offsets[rows], times[rows])
            first += count
        if first and int(entries.rows[first - 1]) < stop - 1:
            self._current()  # the next message begins a file, even when it has no key

    def _add(self, file: BrokerIndexFile, hashes: npt.NDArray[np.int32], offsets: Ints, times: Ints) -> None:
        head = file.head
        number = head.entry_count
        slots = self._slots_of(file)
        at = hashes % self._shape.slots
        numbers = np.arange(number, number + len(at), dtype=np.int32)
        before = slots[at]
        before[(before <= 0) | (before > numbers)] = 0  # an old number that the count has reached is accepted
        order = np.argsort(at, kind="stable")
        again = np.flatnonzero(at[order[1:]] == at[order[:-1]])
        before[order[again + 1]] = number + order[again]
        slots[at] = numbers  # the last of equal ones wins
        begin = int(times[0]) if number <= 1 else head.begin_timestamp
        if self._keep:
            raw = np.empty(len(at), layout.ENTRY.dtype)
            raw["key_hash"], raw["physical_offset"], raw["previous_entry"] = hashes, offsets, before
            raw["seconds_since_begin"] = _seconds(times, begin)
            if number <= 1:  # of the first entry, since the end of the previous file
                raw["seconds_since_begin"][0] = _seconds(times[:1], head.begin_timestamp)[0]
            place = self._shape.entries_at + layout.ENTRY_SIZE * number
            file.draft.write(place, raw.tobytes())
        file.head = dataclasses.replace(
            head,
            begin_timestamp=begin,
            begin_physical_offset=int(offsets[0]) if number <= 1 else head.begin_physical_offset,
            end_timestamp=int(times[-1]),
            end_physical_offset=int(offsets[-1]),
            slot_count=head.slot_count + int((before == 0).sum()),
            entry_count=number + len(at),
        )

    def _current(self) -> BrokerIndexFile:
        """Return the file for the next entry, a new one if there is none or the last is full."""
        full = bool(self.files) and self.files[-1].head.entry_count >= self._shape.entries
        if self.files and not full:
            return self.files[-1]
        end_timestamp = end_physical_offset = 0
        if full:
            self._write_slots()
            end_timestamp = max(0, self.files[-1].head.end_timestamp)
            end_physical_offset = max(0, self.files[-1].head.end_physical_offset)
            if end_timestamp > 0:
                self.full_timestamps.append(end_timestamp)
        name = self._folder / f"new-{len(self.files)}"
        draft = DraftFile(name, self._shape.file_size, None, self._scratch)
        head = IndexHead(None, end_timestamp, end_timestamp, end_physical_offset, end_physical_offset, 0, 1)
        self.files.append(BrokerIndexFile(draft, head))
        return self.files[-1]

    def _slots_of(self, file: BrokerIndexFile) -> npt.NDArray[np.int32]:
        if self._slots is None:
            raw = file.draft.read(layout.HEADER_SIZE, layout.SLOT_SIZE * self._shape.slots)
            self._slots = np.frombuffer(raw, ">i4").astype(np.int32)
        return self._slots

    def _write_slots(self) -> None:
        if self._slots is not None and self._keep:
            self.files[-1].draft.write(layout.HEADER_SIZE, self._slots.astype(">i4").tobytes())
        self._slots = None


def _seconds(times: Ints, begin: int) -> Ints:
    if begin <= 0:
        return np.zeros(len(times), np.int64)
    # Java rounds towards zero, so negative values become zero.
    return np.clip((times - begin) // 1000, 0, _MAX_SECONDS)
