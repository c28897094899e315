"""Checks of the index: each file on its own, then its entries against the keys of messages, in log order.

Cost: linear in the entries, except for sorting those of one stretch of the log.
"""

import bisect
import dataclasses
import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mqtool.engine.repair.checks import finding
from mqtool.engine.repair.findings import Finding
from mqtool.engine.repair.rebuild.index import seconds_since
from mqtool.engine.repair.row_findings import MAX_LISTED
from mqtool.engine.repair.verify.log import BLOCK, LogVerifier, Run, stretches
from mqtool.engine.store.dispatch import IndexEntries
from mqtool.engine.store.index_file import IndexFile
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import FormatError, NotFoundError
from mqtool.formats import index_file as layout
from mqtool.formats import kernels as plain
from mqtool.formats import scan
from mqtool.formats.columns import distinct, is_among
from mqtool.formats.hashing import key_hash
from mqtool.formats.message import Message, message_at
from mqtool.formats.scan import Ints

_LOOK_AHEAD = 4096
_LOOK_AT = 64
_DUPLICATE = "this key of its message already has an entry"
_ORPHAN = "no message with such a key starts where the entry points"
_HASH_AT = layout.ENTRY.offset_of("key_hash")
_PREVIOUS_AT = layout.ENTRY.offset_of("previous_entry")
_AGREE_AT = tuple(layout.ENTRY.offset_of(name) for name in ("key_hash", "physical_offset", "seconds_since_begin"))


def check_folder(reader: StoreReader) -> Iterator[Finding]:
    """Check names and lengths of the index files."""
    for path in reader.index_strays:
        yield finding("INDEX-STRAY", "its name is not that of an index file", file=reader.paths.relative(path))
    live = reader.is_live
    for file in reader.index_files:
        name = reader.paths.relative(file.path)
        if live and not file.size and file is reader.index_files[-1]:
            continue  # just made
        if file.shape is None:
            if file.header.entry_count > 1 or file.size < layout.HEADER_SIZE:
                text = (
                    "cannot tell where its slots end and its entries start: give maxHashSlotNum and maxIndexNum "
                    "with --set"
                )
                yield finding("INDEX-SHAPE", text, file=name, found=file.size)
        elif file.size != file.shape.file_size:
            text = f"an index file of {file.size:,} bytes, expected {file.shape.file_size:,}"
            yield finding(
                "INDEX-FILE-SIZE",
                text,
                file=name,
                offset=min(file.size, file.shape.file_size),
                expected=file.shape.file_size,
                found=file.size,
            )


def check_header(reader: StoreReader, file: IndexFile) -> Iterator[Finding]:
    """Check counters and ends in a header against the first and the last entry."""
    if file.shape is None or file.size < file.entries_at:
        return
    name, header, stop = reader.paths.relative(file.path), file.header, file.entry_stop
    if header.entry_count > file.shape.entries or header.entry_count < 0:
        text = "counts more entries than the file has room for"
        yield _header(name, "entry_count", text, file.shape.entries, header.entry_count)
    if stop <= 1 or (reader.is_live and file is reader.index_files[-1]):
        return
    entries = file.entries()
    for field, number in (("begin_physical_offset", 1), ("end_physical_offset", stop - 1)):
        expected = int(entries["physical_offset"][number])
        if header[field] != expected and stop == header.entry_count:
            yield _header(name, field, "does not refer to the message of its entry", expected, header[field])
    for field, number in (("begin_timestamp", 1), ("end_timestamp", stop - 1)):
        time = _store_timestamp(reader, int(entries["physical_offset"][number]))
        if time is not None and header[field] != time and stop == header.entry_count:
            yield _header(name, field, "is not the store time of its entry's message", time, header[field])


def _store_timestamp(reader: StoreReader, offset: int) -> int | None:
    try:
        return reader.message_at(offset).store_timestamp
    except (FormatError, NotFoundError):
        return None


def _header(name: str, field: str, text: str, expected: int, actual: int) -> Finding:
    offset = layout.HEADER.offset_of(field)
    message = f"the header's {field.replace('_', ' ')} {text}"
    return finding("INDEX-HEADER", message, file=name, offset=offset, expected=expected, found=actual)


def check_chains(reader: StoreReader, file: IndexFile, kernels: Any, live: bool) -> list[Finding]:
    """Check slots and chains: every entry must be reached from its slot, the newest first."""
    if file.shape is None or file.size < file.entries_at:
        return []
    name, stop = reader.paths.relative(file.path), file.entry_stop
    last = np.zeros(file.shape.slots, np.int32)
    bad, expected = np.empty(MAX_LISTED, np.int64), np.empty(MAX_LISTED, np.int64)
    buffer = _raw_entries(file, kernels)
    count = kernels.check_chains(buffer, 1, stop, layout.ENTRY_SIZE, _HASH_AT, _PREVIOUS_AT, last, expected, bad)
    findings = []
    entries = file.entries()
    for i in range(min(count, MAX_LISTED)):
        number = int(bad[i])
        more = f" ({count - MAX_LISTED:,} more entries)" if i == MAX_LISTED - 1 and count > MAX_LISTED else ""
        findings.append(
            finding(
                "INDEX-CHAIN",
                f"entry {number:,} is not linked to the next older entry of its slot{more}",
                file=name,
                offset=file.entries_at + number * layout.ENTRY_SIZE + _PREVIOUS_AT,
                expected=int(expected[i]),
                found=int(entries["previous_entry"][number]),
                physical_offset=int(entries["physical_offset"][number]),
            )
        )
    slots = file.slots()
    wrong = slots != last[: len(slots)]
    if live:
        wrong &= slots < stop
    bad_slots = np.flatnonzero(wrong)
    more = f" ({len(bad_slots) - MAX_LISTED:,} more slots)" if len(bad_slots) > MAX_LISTED else ""
    findings += [
        finding(
            "INDEX-SLOT",
            f"slot {slot:,} does not refer to its newest entry{more if i == MAX_LISTED - 1 else ''}",
            file=name,
            offset=layout.HEADER_SIZE + slot * layout.SLOT_SIZE,
            expected=int(last[slot]),
            found=int(slots[slot]),
        )
        for i, slot in enumerate(bad_slots[:MAX_LISTED].tolist())
    ]
    used = int(np.count_nonzero(last))
    if used != file.header.slot_count and not live:
        findings.append(_header(name, "slot_count", "is not the number of slots in use", used, file.header.slot_count))
    return findings


def _raw_entries(file: IndexFile, kernels: Any) -> Any:
    """Return the bytes of the entries, from number 0 on, as kernels expect them."""
    raw: Any = file.stretch(file.entries_at, file.entries_at + file.entry_stop * layout.ENTRY_SIZE)
    return memoryview(raw) if kernels is plain else raw


@dataclasses.dataclass(frozen=True)
class _EntryColumns:
    """Entries of the files, in order, as columns."""

    key_hash: npt.NDArray[np.int32]
    physical_offset: Ints
    seconds: Ints
    begin: Ints  # begin_timestamp of the file
    file: Ints
    number: Ints

    def __len__(self) -> int:
        return len(self.key_hash)

    def __getitem__(self, rows: Any) -> "_EntryColumns":
        return _EntryColumns(*(getattr(self, field.name)[rows] for field in dataclasses.fields(self)))

    def __add__(self, other: "_EntryColumns") -> "_EntryColumns":
        return _EntryColumns(
            *(np.r_[getattr(self, field.name), getattr(other, field.name)] for field in dataclasses.fields(self))
        )


_NONE = _EntryColumns(np.empty(0, np.int32), *(np.empty(0, np.int64) for _ in range(5)))


def _where(entries: IndexEntries, mask: npt.NDArray[np.bool_]) -> IndexEntries:
    return IndexEntries(*(getattr(entries, field.name)[mask] for field in dataclasses.fields(entries)))


class _EntryKind(enum.Enum):
    """What an entry refers to."""

    NONE = enum.auto()
    KEY = enum.auto()
    TAG = enum.auto()


@dataclasses.dataclass(frozen=True)
class Claim:
    """The result of a search for the entries of a run at their place, without the entries before."""

    count: int  # entries that the run should have
    has_keys: bool  # whether any is by key, not by tag
    agreed: int  # number of matching entries from there on, 0 if any differs
    file: str  # name of the index file where they begin
    number: int


@dataclasses.dataclass(frozen=True)
class _Pairs:
    """Entries that messages should have, and the matching actual ones."""

    rows: Ints  # of the wanted ones
    matched: Ints  # the actual ones, one for each of these
    is_wanted: npt.NDArray[np.bool_]  # of the actual ones: an equal one is wanted, even if matched by another
    has_key: npt.NDArray[np.bool_]  # of the wanted ones: an equal one is by key

    @classmethod
    def of(cls, wanted: IndexEntries, actual: _EntryColumns) -> Self:
        """Match equal entries in order. Cost: n log n."""
        count = len(wanted.rows)
        offsets = np.r_[wanted.physical_offset, actual.physical_offset]
        hashes = np.r_[wanted.key_hash, actual.key_hash]
        order = np.lexsort((hashes, offsets))  # stable: among equal ones the wanted come first
        edges = (np.diff(offsets[order]) != 0) | (np.diff(hashes[order]) != 0)
        groups = np.empty(len(order), np.int64)
        groups[order] = np.r_[0, np.cumsum(edges)] if len(order) else 0
        total = int(groups.max()) + 1 if len(order) else 0
        wanted_in = np.bincount(groups[:count], minlength=total)
        actual_in = np.bincount(groups[count:], minlength=total)
        ranks = np.empty(len(order), np.int64)  # rank among the equal ones of its side
        begins = np.r_[0, np.cumsum(wanted_in + actual_in)][:total]
        ranks[order] = np.arange(len(order)) - begins[groups[order]]
        ranks[count:] -= wanted_in[groups[count:]]
        both = np.minimum(wanted_in, actual_in)
        rows = np.flatnonzero(ranks[:count] < both[groups[:count]])
        matched = np.flatnonzero(ranks[count:] < both[groups[count:]])
        # In the same order: by group, in each by rank.
        rows = rows[np.lexsort((ranks[:count][rows], groups[:count][rows]))]
        in_order = np.lexsort((ranks[count:][matched], groups[count:][matched]))
        keys_in = np.bincount(groups[:count], weights=~wanted.is_tag, minlength=total) > 0
        return cls(rows, matched[in_order], wanted_in[groups[count:]] > 0, keys_in[groups[:count]])


def block_of(run: Run) -> tuple[int, int]:
    """Return the segment and the block of a run."""
    return run.segment.start_offset, run.start // BLOCK


def joined_runs(runs: list[Run]) -> Run:
    """Return runs of one block as one, for checks of the index."""
    if len(runs) == 1:
        return runs[0]
    columns = [
        np.concatenate([getattr(run.entries, field.name) for run in runs]) for field in dataclasses.fields(IndexEntries)
    ]
    return dataclasses.replace(
        runs[0], end=runs[-1].end, count=sum(run.count for run in runs), entries=IndexEntries(*columns)
    )


class IndexVerifier:
    """Reads the entries in parallel with the messages: a broker writes them in the order of the log.

    Entries out of order are kept until their message comes, or the end.
    """

    def __init__(self, reader: StoreReader, live: bool) -> None:
        self.reader = reader
        self.live = live
        self.files = [file for file in reader.index_files if file.shape is not None]
        self._kernels = scan.kernels_for(reader.commit_log.total_size)
        self._stops = [file.entry_stop for file in self.files]
        self._end = self._leave_out_last_message() if live else None
        self._file = 0
        self._number = 1
        self._early = _NONE
        self._uncovered: tuple[int, int] | None = None  # address, messages
        self.anew: Mapping[int, bytes] = {}
        """Corrected records, by address: entries for keys that they no longer have lead to no message."""

    def take(self, run: Run) -> Iterator[Finding]:
        """Compare the keys of a run with the next entries.

        Findings on damaged entries depend on which messages come together: pass all of a block (``block_of``).
        """
        wanted = run.entries
        if self._end is not None:
            wanted = _where(wanted, wanted.physical_offset < self._end)
        if not len(wanted.rows):
            return
        for entries in (wanted, _where(wanted, ~wanted.is_tag)) if wanted.is_tag.any() else (wanted,):
            if len(self._early):
                break
            if self._agree(entries):
                self._advance(len(entries.rows))
                yield from self._begin_coverage()
                return
            actual = self._peek(len(entries.rows))
            if np.array_equal(actual.key_hash, entries.key_hash) and np.array_equal(
                actual.physical_offset, entries.physical_offset
            ):
                self._advance(len(actual))
                yield from self._begin_coverage()
                yield from self._check_seconds(actual, entries.store_timestamp)
                return
        yield from self._match(run, wanted)

    def claim(self, run: Run) -> Claim:
        """Search for the entries of a run at their place: at the first that points to it, or after it."""
        wanted = run.entries
        if not len(wanted.rows):
            return Claim(0, False, 0, "", 0)
        self._file, self._number = self._first_from(run.start_offset)
        keys = _where(wanted, ~wanted.is_tag)
        agreed = 0
        if self._file < len(self.files):
            agreed = next((len(entries.rows) for entries in (wanted, keys) if self._agree(entries)), 0)
        return Claim(len(wanted.rows), len(keys.rows) > 0, agreed, *self._place())

    def take_claims(self, runs: Sequence[tuple[Run, Claim]], whole: Callable[[], Run]) -> Iterator[Finding]:
        """Do what ``take`` does for the runs of a block whose entries are in another process.

        Args:
            runs: that follow the previous block, with the claims on the entries of each.
            whole: makes one run of them, with its entries, if that is not enough.
        """
        count = sum(claim.count for _, claim in runs)
        if not count:
            return
        first, end = runs[0][0], runs[-1][0].end_offset
        # The last message of a live store is examined more closely, as are entries left over from before.
        if not len(self._early) and (self._end is None or end <= self._end):
            place = self._file, self._number
            for _, claim in runs:
                if claim.count and not (claim.agreed and self._place() == (claim.file, claim.number)):
                    break
                self._advance(claim.agreed)
            else:
                yield from self._begin_coverage()
                return
            self._file, self._number = place
            if not (self._peek(count + _LOOK_AHEAD).physical_offset < end).any():
                if any(claim.has_keys for _, claim in runs):
                    self._not_covered(dataclasses.replace(first, count=sum(run.count for run, _ in runs)))
                else:
                    yield from self._begin_coverage()
                return
        yield from self.take(whole())

    def _first_from(self, offset: int) -> tuple[int, int]:
        """Return file and number of the first entry that points to an address or after it, if all are in order."""
        for file, stop in enumerate(self._stops):
            offsets = self.files[file].entries()["physical_offset"]
            if stop > 1 and int(offsets[stop - 1]) >= offset:
                return file, bisect.bisect_left(range(stop), offset, lo=1, key=lambda number: int(offsets[number]))
        return len(self.files), 1

    def _place(self) -> tuple[str, int]:
        """Return the name of the file of the next entry, and its number; an empty name after the last."""
        file, number, _ = next(self._next(1), (len(self.files), 1, 1))
        return (self.files[file].path.name, number) if file < len(self.files) else ("", 0)

    def skip_expired(self) -> None:
        """Skip the first entries, of messages that retention deleted."""
        start = self.reader.commit_log.min_offset
        if not start:
            return
        for file, number, stop in self._next(sum(self._stops)):
            offsets = self.files[file].entries()["physical_offset"][number:stop]
            left = np.flatnonzero((offsets < 0) | (offsets >= start))
            if len(left):
                self._file, self._number = file, number + int(left[0])
                return
        self._file, self._number = len(self.files), 1

    def _agree(self, wanted: IndexEntries) -> bool:
        """Return whether exactly these entries are next; False also if that needs a closer look."""
        done = 0
        for file, number, stop in self._next(len(wanted.rows)):
            index_file = self.files[file]
            rows = slice(done, done + stop - number)
            count = self._kernels.agree(
                _raw_entries(index_file, self._kernels),
                number,
                layout.ENTRY_SIZE,
                _AGREE_AT,
                wanted.key_hash[rows],
                wanted.physical_offset[rows],
                wanted.store_timestamp[rows],
                index_file.header.begin_timestamp,
            )
            if count < stop - number:
                return False
            done += stop - number
        return done == len(wanted.rows)

    def _leave_out_last_message(self) -> int:
        """Leave out the entries of the last message, which may lack some yet; returns its address."""
        end: int | None = None
        for number in reversed(range(len(self.files))):
            offsets = self.files[number].entries()["physical_offset"]
            while self._stops[number] > 1 and end in (None, int(offsets[self._stops[number] - 1])):
                self._stops[number] -= 1
                end = int(offsets[self._stops[number]])
            if self._stops[number] > 1:
                break
        return end or 0

    def _match(self, run: Run, wanted: IndexEntries) -> Iterator[Finding]:
        """Compare keys and entries as sets."""
        window = self._window(run.end_offset, len(wanted.rows) + _LOOK_AHEAD)
        before = np.flatnonzero(window.physical_offset < run.end_offset)
        consumed = int(before[-1]) + 1 if len(before) else 0
        actual = self._early + window[:consumed]
        self._advance(consumed)
        late = actual.physical_offset >= run.end_offset
        self._early, actual = actual[late], actual[~late]

        pairs = _Pairs.of(wanted, actual)
        in_order = np.argsort(pairs.matched)  # of the entries
        rows, matched = pairs.rows[in_order], pairs.matched[in_order]
        left = np.ones(len(actual), np.bool_)
        left[matched] = False
        expired = (actual.physical_offset >= 0) & (actual.physical_offset < self.reader.commit_log.min_offset)
        repeated = left & pairs.is_wanted
        orphans = left & ~repeated & ~expired
        with_record = orphans & self._is_record(actual.physical_offset, orphans)
        for i in np.flatnonzero(repeated | with_record).tolist():
            kind = (
                _EntryKind.KEY if repeated[i] else self._kind(int(actual.physical_offset[i]), int(actual.key_hash[i]))
            )
            orphans[i] = kind is _EntryKind.NONE
            if kind is _EntryKind.KEY:
                yield self._entry("INDEX-DUPLICATE", _DUPLICATE, actual, i)
        if orphans.any():
            yield from self._stretches("INDEX-ENTRY", _ORPHAN, actual, orphans)
        missing = pairs.has_key.copy()
        missing[rows] = False
        if missing.any() and not len(matched) and not orphans.any():
            self._not_covered(run)
            return
        yield from self._begin_coverage()
        if len(matched):
            yield from self._check_seconds(actual[matched], wanted.store_timestamp[rows])
        for start, stop in stretches(missing):
            offset = int(wanted.physical_offset[start])
            text = "a key of this message has no entry"
            if stop - start > 1:
                messages = len(distinct(wanted.physical_offset[start:stop]))
                text = f"{stop - start:,} keys of {messages:,} messages from here on have no entry"
            yield finding(
                "INDEX-MISSING",
                text,
                file=self.reader.paths.relative(run.segment.path),
                offset=offset - run.segment.start_offset,
                expected=int(wanted.key_hash[start]),
                physical_offset=offset,
            )

    def _window(self, end_offset: int, count: int) -> _EntryColumns:
        """Return the next entries: at least ``count``, and all before those of messages after an address."""
        while True:
            window = self._peek(count)
            if len(window) < count or not (window.physical_offset[-_LOOK_AHEAD:] < end_offset).all():
                return window
            count *= 2  # entries of deleted messages

    def _is_record(self, offsets: Ints, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return which addresses have a record: most orphans point to none."""
        wanted = distinct(offsets[mask])
        positions = [table.column("position") for table in self.reader.commit_log.tables_at(wanted, self._kernels)]
        return is_among(offsets, distinct(np.concatenate([np.empty(0, np.int64), *positions])))

    def _kind(self, offset: int, hashed: int) -> "_EntryKind":
        """Return whether the message at an address has a key, or the tag, of this hash."""
        try:
            message = self._message_at(offset)
        except (FormatError, NotFoundError):
            return _EntryKind.NONE
        keys = [message.unique_key or "", *(message.keys or "").split(" ")]
        if any(key and key_hash(message.topic, key) == hashed for key in keys):
            return _EntryKind.KEY
        return (
            _EntryKind.TAG
            if message.tags and key_hash(message.topic, f"T#{message.tags}") == hashed
            else _EntryKind.NONE
        )

    def _message_at(self, offset: int) -> Message:
        if offset in self.anew:
            return message_at(scan.scan(memoryview(self.anew[offset]), offset, limit=1).table, 0)
        return self.reader.message_at(offset)

    def has_tags(self) -> bool:
        """Return whether the newest entries include some by tag, as written by RocketMQ 5.4 and later."""
        if self.reader.paths.rocksdb_store.is_dir():  # which they also create
            return True
        for file in reversed(self.files):
            newest = file.entries()[1:][-_LOOK_AT:]
            if len(newest):
                return any(
                    self._kind(int(entry["physical_offset"]), int(entry["key_hash"])) is _EntryKind.TAG
                    for entry in newest
                )
        return False

    def skip_to(self, offset: int) -> None:
        """Skip to the first entry of a message at or after an address."""
        for file, number, stop in self._next(sum(self._stops)):
            later = np.flatnonzero(self.files[file].entries()["physical_offset"][number:stop] >= offset)
            if len(later):
                self._file, self._number = file, number + int(later[0])
                return
        self._file = len(self.files)

    def finish(self, end_offset: int) -> Iterator[Finding]:
        """Check the entries that no message of a log with this end has."""
        if self.live:
            return
        yield from self._begin_coverage(at_end=True)
        while True:
            rest = self._early + self._peek(_LOOK_AHEAD)
            if not len(rest):
                return
            self._early = _NONE
            self._advance(_LOOK_AHEAD)
            behind = rest.physical_offset >= end_offset
            expired = (rest.physical_offset >= 0) & (rest.physical_offset < self.reader.commit_log.min_offset)
            orphans = ~behind & ~expired
            for i in np.flatnonzero(orphans)[:MAX_LISTED].tolist():
                kind = self._kind(int(rest.physical_offset[i]), int(rest.key_hash[i]))
                orphans[i] = kind is _EntryKind.NONE
                if kind is _EntryKind.KEY:
                    yield self._entry("INDEX-DUPLICATE", _DUPLICATE, rest, i)
            yield from self._stretches("INDEX-BEYOND", "the entry points beyond the end of the log", rest, behind)
            yield from self._stretches("INDEX-ENTRY", _ORPHAN, rest, orphans)

    def check_is_there(self, verifier: LogVerifier) -> Iterator[Finding]:
        """Check only whether there is an index at all."""
        if verifier.count and not self.reader.index_files and not self.live and not self.is_off:
            yield self._missing("there is no index: messages cannot be found by key")

    @property
    def is_off(self) -> bool:
        """Whether the index is disabled in the configuration, or that cannot be read."""
        if self.reader.is_left_out(self.reader.paths.index):
            return True
        settings = self.reader.config.settings
        return any(settings.get(key, "").lower() == "false" for key in ("messageIndexEnable", "indexFileWriteEnable"))

    def _missing(self, text: str, address: int | None = None) -> Finding:
        file = self.reader.paths.relative(self.reader.paths.index)
        return finding("INDEX-MISSING", text, file=file, physical_offset=address)

    def _not_covered(self, run: Run) -> None:
        address, count = self._uncovered or (run.start_offset, 0)
        self._uncovered = (address, count + run.count)

    def _begin_coverage(self, at_end: bool = False) -> Iterator[Finding]:
        if self._uncovered:
            address, count = self._uncovered
            self._uncovered = None
            if not self.files:
                text = f"there is no index: the keys of {count:,} messages cannot be found"
                if self.is_off:
                    return
            elif at_end:
                text = f"the index ends before the log: the keys of {count:,} messages are not found"
            else:
                text = f"the keys of {count:,} messages have no entry"
            yield self._missing(text, address)

    def _check_seconds(self, actual: _EntryColumns, timestamps: Ints) -> Iterator[Finding]:
        expected = seconds_since(actual.begin, timestamps)
        # The first entry of a file counts from the end of the previous file, which only the file itself shows.
        first = np.flatnonzero(actual.number == 1)
        for i in first.tolist():
            file = int(actual.file[i])
            end = self.files[file - 1].header.end_timestamp if file else 0
            expected[i] = seconds_since(end, timestamps[i : i + 1])[0] if end else actual.seconds[i]
        wrong = (actual.seconds != expected) & (actual.begin > 0)
        for i in np.flatnonzero(wrong).tolist():
            text = "the time in the entry is not that of its message"
            yield self._entry("INDEX-TIME", text, actual, i, int(expected[i]), int(actual.seconds[i]))

    def _stretches(self, code: str, text: str, actual: _EntryColumns, mask: npt.NDArray[np.bool_]) -> Iterator[Finding]:
        """Report single entries one by one, consecutive ones together."""
        for start, stop in stretches(mask):
            count = stop - start
            more = f" ({count:,} entries from here on)" if count > 1 else ""
            yield self._entry(code, text + more, actual, start)

    def _entry(
        self,
        code: str,
        text: str,
        actual: _EntryColumns,
        i: int,
        expected: int | None = None,
        actual_value: int | None = None,
    ) -> Finding:
        file = self.files[int(actual.file[i])]
        return finding(
            code,
            text,
            file=self.reader.paths.relative(file.path),
            offset=file.entries_at + int(actual.number[i]) * layout.ENTRY_SIZE,
            expected=expected,
            found=int(actual.key_hash[i]) if actual_value is None else actual_value,
            physical_offset=int(actual.physical_offset[i]),
        )

    def _next(self, count: int) -> Iterator[tuple[int, int, int]]:
        """Yield file, first entry and stop of each stretch of the next ``count`` entries, across files."""
        file, number = self._file, self._number
        while count > 0 and file < len(self.files):
            stop = min(number + count, self._stops[file])
            if stop > number:
                yield file, number, stop
                count -= stop - number
            file, number = file + 1, 1

    def _peek(self, count: int) -> _EntryColumns:
        """Return up to ``count`` next entries."""
        whole = _NONE
        for file, number, stop in self._next(count):
            entries = self.files[file].entries()[number:stop]
            whole = whole + _EntryColumns(
                entries["key_hash"].astype(np.int32),
                entries["physical_offset"].astype(np.int64),
                entries["seconds_since_begin"].astype(np.int64),
                np.full(stop - number, self.files[file].header.begin_timestamp, np.int64),
                np.full(stop - number, file, np.int64),
                np.arange(number, stop),
            )
        return whole

    def _advance(self, count: int) -> None:
        while count > 0 and self._file < len(self.files):
            left = self._stops[self._file] - self._number
            if count < left:
                self._number += count
                return
            count -= max(0, left)
            self._file += 1
            self._number = 1
