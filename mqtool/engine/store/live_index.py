"""The index files of a running broker: keys of new messages are added to the last one, queries use all.

Keys wait in memory until the owner calls ``write``, which adds many at once: so appending a message costs little,
and a query first adds waiting keys. (Rules: store.md 5. RocketMQ: ``IndexService``, ``IndexFile``.)
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mqtool.engine.store.disk import chunks
from mqtool.engine.store.index_file import NAME_WIDTH, IndexFile, Shape, index_name
from mqtool.engine.store.mapping import reading
from mqtool.engine.store.queue_files import QueueFiles
from mqtool.errors import RecoveryNeededError, WriteError
from mqtool.formats import commit_log
from mqtool.formats import index_file as layout
from mqtool.formats import kernels as plain
from mqtool.formats.hashing import java_hash, key_hash
from mqtool.formats.scan import Ints
from mqtool.late import np, npt

if TYPE_CHECKING:
    from mqtool.engine.store.disk import OpenFile

_HEADER, _SLOT, _ENTRY = layout.HEADER.packer, layout.SLOT.packer, layout.ENTRY.packer
_MAX_SECONDS = 2**31 - 1
_TRANSACTION_MASK, _ROLLBACK = commit_log.TRANSACTION_MASK, commit_log.TRANSACTION_ROLLBACK
_WIDTH = 128
"""Bytes of the texts that are hashed together; longer ones are hashed separately."""
_CLOSE_SLOTS = 1024
"""How far apart slots may be to be written together: copying a page takes the system as long as a call."""


@functools.cache
def _powers() -> npt.NDArray[np.uint32]:
    return np.array([pow(31, _WIDTH - 1 - i, 1 << 32) for i in range(_WIDTH)], np.uint32)


Keys = tuple[bytes | None, bytes | None, bytes | None]
"""The properties by which a message is found: its unique key, its keys, its tag."""
Waiting = tuple[str, int, Keys, int, int]
"""What the index needs from a message: topic, ``sys_flag``, keys, address and store time."""


class _Entries(NamedTuple):
    """Entries to be added, as columns."""

    hashes: Ints  # -1 for a message without keys, which only needs a file that is not full
    offsets: Ints
    timestamps: Ints

    def behind(self, count: int) -> _Entries:
        """Return all except the first ones."""
        return _Entries(self.hashes[count:], self.offsets[count:], self.timestamps[count:])


_SHORT = 1 << 24
"""Numbers of entries below take three bytes."""

_ENTRIES_AT_ONCE = 2048
"""Entries that are linked together: more may wait for a new file, and would take megabytes."""
_LOOKS_AT_ONCE = 1000
"""Entries that a search examines before others get their turn."""


class _Slots:
    """The slots of the file that is being written: the number of the newest entry of each, 0 if there is none.

    A file has 5,000,000 of them, which take 15 MB here: a fourth byte is needed only for its last entries.
    """

    def __init__(self, count: int) -> None:
        self._low = np.zeros(count, np.uint16)  # unused ones take no memory
        self._high: npt.NDArray[np.uint8 | np.uint16] = np.zeros(count, np.uint8)

    def __getitem__(self, slots: Ints) -> Ints:
        return self._low[slots] | self._high[slots].astype(np.int64) << 16

    def __setitem__(self, slots: Ints | slice, numbers: Ints) -> None:
        if self._high.dtype == np.uint8 and numbers.max(initial=0) >= _SHORT:
            self._high = self._high.astype(np.uint16)
        self._low[slots], self._high[slots] = numbers & 0xFFFF, numbers >> 16


class LiveIndexFile:
    """One writable index file; its header is kept in memory."""

    def __init__(self, path: Path, shape: Shape) -> None:
        self.path = path
        self.shape = shape
        self.begin_timestamp = 0
        self.end_timestamp = 0
        self.begin_offset = 0
        self.end_offset = 0
        self.slot_count = 0
        self.next = 1  # number of the next entry
        self._unwritten: list[tuple[int, bytes]] = []  # positions and bytes
        self._slots: _Slots | None = None  # while it is written

    def load(self) -> None:
        """Read the header."""
        header = IndexFile(self.path, self.shape.file_size, self.shape).header
        self.begin_timestamp, self.end_timestamp = header.begin_timestamp, header.end_timestamp
        self.begin_offset, self.end_offset = header.begin_physical_offset, header.end_physical_offset
        self.slot_count, self.next = header.slot_count, max(1, header.entry_count)

    def count_until(self, last_start: int) -> int:
        """Return how many entries are of messages that start up to an address."""
        entries = self._entries(self.next - 1)
        offsets = entries["physical_offset"].astype(np.int64)
        is_behind = offsets > last_start
        is_behind |= (offsets == 0) & (entries["key_hash"] == 0)  # an entry that never reached the disk
        is_behind[1:] |= offsets[1:] < offsets[:-1]
        return int(np.argmax(is_behind)) if is_behind.any() else len(offsets)

    def is_full_until(self, last_start: int) -> bool:
        """Return whether it is full of entries of messages up to an address, so that another file may follow."""
        return self.is_full and self.count_until(last_start) == self.next - 1

    def _entries(self, count: int) -> npt.NDArray[np.void]:
        at = self.shape.entries_at + layout.ENTRY_SIZE
        return np.fromfile(self.path, layout.ENTRY.dtype, count, offset=at)

    def keep(self, count: int, timestamp_of: Callable[[int], int], file: OpenFile) -> None:
        """Keep the first entries, as if no others had been added.

        A slot of a removed entry gets its newest remaining entry again.
        """
        slots = np.fromfile(self.path, layout.SLOT.dtype, self.shape.slots, offset=layout.HEADER_SIZE)["entry"]
        kept = self._entries(count)
        wrong = (slots > count) | (slots < 0)
        newest = np.zeros(self.shape.slots, np.int32)
        newest[kept["key_hash"].astype(np.int64) % self.shape.slots] = np.arange(1, count + 1)  # the last one wins
        for slot in np.flatnonzero(wrong).tolist():
            file.write(layout.HEADER_SIZE + layout.SLOT_SIZE * slot, _SLOT.pack(int(newest[slot])))
        behind = self.shape.entries_at + layout.ENTRY_SIZE * (count + 1)
        for at, data in chunks(self.path, behind, self.shape.file_size):
            if data.count(0) != len(data):
                file.write(at, bytes(len(data)))
        self.next = count + 1
        self.slot_count = int(np.count_nonzero(newest))
        if count:
            self.end_offset = int(kept["physical_offset"][-1])
            self.end_timestamp = timestamp_of(self.end_offset)
        else:
            self.begin_timestamp = self.begin_offset = self.end_timestamp = self.end_offset = 0
        file.write(0, self.header())

    def header(self) -> bytes:
        """Return the header as it is in the file."""
        return _HEADER.pack(
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self.slot_count,
            self.next,
        )

    @property
    def is_full(self) -> bool:
        """Whether there is no space for more entries."""
        return self.next >= self.shape.entries

    def take(self, entries: _Entries) -> int:
        """Take some of the first entries, as many as fit, and return how many; ``write`` writes them."""
        is_entry = entries.hashes[:_ENTRIES_AT_ONCE] >= 0
        count = min(int(np.searchsorted(np.cumsum(is_entry), self.shape.entries - self.next)) + 1, len(is_entry))
        hashes, offsets, timestamps = (column[:count][is_entry[:count]] for column in entries)
        if len(hashes):
            if self._slots is None:
                self._slots = self._read_slots()
            self._link(self._slots, hashes, offsets, timestamps)
        self._unwritten.append((0, self.header()))
        return count

    def _read_slots(self) -> _Slots:
        slots = _Slots(self.shape.slots)
        with reading(self.path):
            for at, data in chunks(self.path, layout.HEADER_SIZE, self.shape.entries_at):
                numbers = np.frombuffer(data, layout.SLOT.dtype["entry"]).astype(np.int64)
                numbers[(numbers < 0) | (numbers >= self.next)] = 0  # of no entry of this file
                first = (at - layout.HEADER_SIZE) // layout.SLOT_SIZE
                slots[first : first + len(numbers)] = numbers
        return slots

    def _link(self, slots_now: _Slots, hashes: Ints, offsets: Ints, timestamps: Ints) -> None:
        """Link entries before those of their slots, as if they were added one after the other."""
        first, stop = self.next, self.next + len(hashes)
        numbers = np.arange(first, stop)
        slots = hashes % self.shape.slots
        order = np.argsort(slots, kind="stable")
        slots, sorted_numbers = slots[order], numbers[order]
        is_new = np.concatenate(([True], slots[1:] != slots[:-1]))  # the first of its slot here
        before = np.concatenate(([0], sorted_numbers[:-1]))
        before[is_new] = slots_now[slots[is_new]]
        self.slot_count += int(np.count_nonzero(before[is_new] == 0))

        packed = np.empty(len(hashes), layout.ENTRY.dtype)
        packed["key_hash"], packed["physical_offset"] = hashes, offsets
        packed["previous_entry"][order] = before
        begins = np.full(len(hashes), self.begin_timestamp if first > 1 else timestamps[0])
        begins[0] = self.begin_timestamp  # for the first of a file: that of the previous file
        seconds = np.where(begins > 0, (timestamps - begins) // 1000, 0)
        packed["seconds_since_begin"] = seconds.clip(0, _MAX_SECONDS)
        self._unwritten.append((self.shape.entries_at + layout.ENTRY_SIZE * first, packed.tobytes()))

        is_newest = np.concatenate((is_new[1:], [True]))
        slots = slots[is_newest]
        slots_now[slots] = sorted_numbers[is_newest]
        # Close ones are written together, with those between them.
        begins_at = np.concatenate(([0], np.flatnonzero(np.diff(slots) > _CLOSE_SLOTS) + 1))
        ends_at = np.concatenate((begins_at[1:], [len(slots)])) - 1
        firsts, counts = slots[begins_at], slots[ends_at] - slots[begins_at] + 1
        stops = np.cumsum(counts)
        starts = stops - counts
        written = slots_now[np.arange(stops[-1]) + np.repeat(firsts - starts, counts)]
        data, size = written.astype(layout.SLOT.dtype["entry"]).tobytes(), layout.SLOT_SIZE
        self._unwritten += [
            (layout.HEADER_SIZE + size * first_slot, data[size * begin : size * end])
            for first_slot, begin, end in zip(firsts.tolist(), starts.tolist(), stops.tolist(), strict=True)
        ]

        if first == 1:
            self.begin_timestamp, self.begin_offset = int(timestamps[0]), int(offsets[0])
        self.end_timestamp, self.end_offset = int(timestamps[-1]), int(offsets[-1])
        self.next = stop

    def write(self, file: OpenFile) -> bool:
        """Write taken entries and return whether there were any; after a failure it can be called again."""
        for at, data in self._unwritten:
            file.write(at, data)
        is_new = bool(self._unwritten)
        self._unwritten.clear()
        if self.is_full:
            self._slots = None
        return is_new


class LiveIndex:
    """All index files."""

    def __init__(self, folder: Path, files: QueueFiles, shape: Shape, has_tags: bool) -> None:
        """Open the index under ``folder``, which need not exist yet.

        Args:
            folder: of the index files.
            files: through which they are written.
            shape: of the files.
            has_tags: also add entries by tag, as RocketMQ 5.4 and later do.

        Raises:
            RecoveryNeededError: the files are not of this shape.
        """
        self.folder = folder
        self.shape = shape
        self.waiting: list[Waiting] = []
        """Number of messages whose keys have not been added yet."""
        self._has_tags = has_tags
        self._files = files
        self._entries: _Entries | None = None  # that are still to be added
        self._all: list[LiveIndexFile] = []
        if folder.is_dir():
            for path in sorted(path for path in folder.iterdir() if path.name.isascii() and path.name.isdigit()):
                if path.stat().st_size != shape.file_size:
                    raise RecoveryNeededError(f"{path} is not an index file of {shape.file_size:,} bytes")
                self._all.append(LiveIndexFile(path, shape))
                self._all[-1].load()

    def keep_until(self, last_start: int, timestamp_of: Callable[[int], int]) -> None:
        """Remove the entries of messages that start after an address: they may have been written only in part.

        Args:
            last_start: that address.
            timestamp_of: returns when the message that starts at an address was stored, in ms.
        """
        while len(self._all) > 1 and not (
            self._all[-2].is_full_until(last_start) and self._all[-1].count_until(last_start)
        ):
            self._files.remove(self._all.pop().path)
        if self._all:
            last = self._all[-1]
            last.keep(last.count_until(last_start), timestamp_of, self._files.get(last.path))
            for path in (last.path, self.folder, self.folder.parent):
                self._files.note_write(path)

    @property
    def full_timestamp(self) -> int:
        """When the last message of the last full file was stored, 0 if there is none."""
        return self._all[-2].end_timestamp if len(self._all) > 1 else 0

    @property
    def end_timestamp(self) -> int:
        """When the last message with a key was stored (ms), 0 if there is none; valid after ``write``."""
        return self._all[-1].end_timestamp if self._all else 0

    @property
    def end_offset(self) -> int:
        """The address of that message."""
        return self._all[-1].end_offset if self._all else 0

    @property
    def is_empty(self) -> bool:
        """Whether there are no files."""
        return not self._all

    def write(self, *, at_once: bool) -> bool:
        """Add the keys of all messages that wait, and return whether all are added.

        With ``at_once`` they are; otherwise another thread may have to create a file first.

        Raises:
            WriteError: the disk is full, or fails; keys that are not added keep waiting.
        """
        if self.waiting:
            waiting, self.waiting = self.waiting, []
            new = _entries_of(waiting, self._has_tags)
            old = self._entries
            self._entries = _Entries(*map(np.concatenate, zip(old, new, strict=True))) if old else new
        if self._all:
            self._write_last()
        while self._entries and len(self._entries.hashes):
            last = self._with_room(int(self._entries.timestamps[0]), at_once)
            if last is None:
                return False
            due = last.take(self._entries)
            self._entries = self._entries.behind(due)
            self._write_last()
        return True

    def _write_last(self) -> None:
        last = self._all[-1]
        if last.write(self._files.get(last.path)):
            self._files.note_write(last.path)

    def _with_room(self, timestamp: int, at_once: bool) -> LiveIndexFile | None:
        """Return the file for the next entry, None if another thread has to create it.

        As in a broker, a message without keys may begin a new one, too.
        """
        last = self._all[-1] if self._all else None
        if last is not None and not last.is_full:
            return last
        name = index_name(timestamp)
        if last is not None and name <= last.path.name:
            name = f"{int(last.path.name) + 1:0{NAME_WIDTH}}"
        file = LiveIndexFile(self.folder / name, self.shape)
        if not self._files.make(file.path, self.shape.file_size, at_once=at_once):
            return None
        if last is not None:
            # A broker begins a file with the end of the previous one: its first entry counts from there.
            file.begin_timestamp = file.end_timestamp = last.end_timestamp
            file.begin_offset = file.end_offset = last.end_offset
        self._all.append(file)
        return file

    def find(self, topic: str, key: str, begin: int, end: int, most: int) -> list[int]:
        """Return the addresses of messages that may have a key, the newest first; see ``find_in_pieces``."""
        pieces = self.find_in_pieces(topic, key, begin, end, most)
        while True:
            try:
                next(pieces)
            except StopIteration as end_of_search:
                addresses: list[int] = end_of_search.value
                return addresses

    def find_in_pieces(self, topic: str, key: str, begin: int, end: int, most: int) -> Generator[None, None, list[int]]:
        """Return the addresses of messages that may have a key, the newest first; yield while that takes long.

        Others with the same hash are among them: the caller compares topic and key. Producers choose their keys, so all
        entries of a file may have the same slot.

        Args:
            topic: under which the messages are stored.
            key: a unique key, or one of KEYS.
            begin: ignore those stored before, in ms.
            end: ignore those stored later.
            most: maximum number of results.
        """
        with contextlib.suppress(WriteError):  # a full disk hides only new messages
            self.write(at_once=True)
        hashed, offsets, looks = key_hash(topic, key), list[int](), 0
        for file in [*reversed(self._all)]:
            # The times of entries are whole seconds: a second more on each side.
            if file.begin_timestamp <= end + 1000 and begin - 1000 <= file.end_timestamp:
                for entry_hash, offset, timestamp in self._chain(file, hashed):
                    if entry_hash == hashed and begin - 1000 <= timestamp <= end:
                        offsets.append(offset)
                        if len(offsets) >= most:
                            return offsets
                    looks += 1
                    if looks % _LOOKS_AT_ONCE == 0:
                        yield
                        if file not in self._all:  # expired in the meantime, and all older ones
                            return offsets
            if file.begin_timestamp < begin:
                break
        return offsets

    def _chain(self, file: LiveIndexFile, hashed: int) -> Iterator[tuple[int, int, int]]:
        """Yield hash, address and store time of the entries in the slot of a hash, the newest first."""
        opened = self._files.get(file.path)
        slot_at = layout.HEADER_SIZE + layout.SLOT_SIZE * (hashed % self.shape.slots)
        entries_at = self.shape.entries_at
        (number,) = _SLOT.unpack(opened.read(slot_at, layout.SLOT_SIZE))
        before = file.next
        while 0 < number < before:
            entry = opened.read(entries_at + number * layout.ENTRY_SIZE, layout.ENTRY_SIZE)
            entry_hash, offset, seconds, previous = _ENTRY.unpack(entry)
            yield entry_hash, offset, file.begin_timestamp + seconds * 1000
            before, number = number, previous

    def remove_expired(self, log_start: int) -> list[Callable[[], None]]:
        """Release the files whose messages have all been deleted from the log, except for the last file.

        Returns:
            Functions that remove them, one per file.
        """
        expired = []
        while len(self._all) > 1 and self._all[0].end_offset < log_start:
            expired.append(self._files.let_go(self._all.pop(0).path))
        return expired


def _entries_of(waiting: Sequence[Waiting], has_tags: bool) -> _Entries:
    """Return the entries for messages, in the order of a broker."""
    texts: list[bytes] = []
    counts: list[int] = []  # of entries of each message
    without: list[int] = []  # places of entries that are not written
    last_topic, prefix = "", b"#"
    for topic, sys_flag, (unique_key, keys, tags), _, _ in waiting:
        if topic != last_topic:
            last_topic, prefix = topic, _prefix(topic)
        first = len(texts)
        if sys_flag & _TRANSACTION_MASK != _ROLLBACK:
            if unique_key:
                texts.append(prefix + unique_key)
            if keys and b" " in keys:
                texts += [prefix + key for key in keys.split(b" ") if key]
            elif keys:
                texts.append(prefix + keys)
            if has_tags and tags:
                texts.append(prefix + b"T#" + tags)
        if len(texts) == first:
            without.append(first)
            texts.append(b"")
        counts.append(len(texts) - first)
    number_of = np.repeat(np.arange(len(counts)), counts)
    unusual = {}
    if max(map(len, texts), default=0) > _WIDTH or not b"".join(texts).isascii():
        unusual = {place: text for place, text in enumerate(texts) if len(text) > _WIDTH or not text.isascii()}
        for place in unusual:
            texts[place] = b""
    hashes = _hashes(texts)
    for place, text in unusual.items():
        topic = waiting[number_of[place]][0]
        key, seed = text.removeprefix(_prefix(topic)), java_hash(f"{topic}#") & 0xFFFFFFFF
        hashes[place] = plain.index_hash(plain.java_hash(key, 0, len(key), seed))
    hashes[without] = -1
    offsets, timestamps = (np.array([message[field] for message in waiting], np.int64) for field in (3, 4))
    return _Entries(hashes, offsets[number_of], timestamps[number_of])


def _prefix(topic: str) -> bytes:
    return f"{topic}#".encode("utf-8", "replace")


def _hashes(texts: list[bytes]) -> Ints:
    """Return the hashes of index entries for ASCII texts; leading zeros change nothing and equalize lengths."""
    width = max(map(len, texts), default=0)
    letters = np.frombuffer(b"".join([text.rjust(width, b"\0") for text in texts]), np.uint8)
    columns = letters.reshape(len(texts), width).astype(np.uint32)
    signed = (columns * _powers()[_WIDTH - width :]).sum(1, np.uint32).view(np.int32).astype(np.int64)
    return np.where(signed == -(1 << 31), 0, np.abs(signed))
