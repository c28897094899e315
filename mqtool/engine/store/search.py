"""Search a store: by key through the index files, and in the log itself where they do not say.

An index file answers for the addresses between its first message and its last, if it makes sense; what is outside of
all of them is scanned. An entry tells no more than a hash, so every message that it names is examined.

Cost: a chain of entries in each index file that may have a key; otherwise linear in the bytes that are scanned.
"""

import bisect
import contextlib
import dataclasses
import errno
import fnmatch
import functools
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mqtool.engine.store import rocksdb
from mqtool.engine.store.commit_log import CommitLog, Gap, is_unused, settled
from mqtool.engine.store.holes import LogHole, holes_of, runs_of
from mqtool.engine.store.index_file import IndexFile
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.mapping import reading
from mqtool.engine.store.reader import StoreReader
from mqtool.engine.store.remote import RemotePath
from mqtool.errors import FormatError, MissingExtraError, MqtoolError, NotFoundError
from mqtool.formats import commit_log, scan
from mqtool.formats import kernels as plain
from mqtool.formats.hashing import key_hash
from mqtool.formats.inner_batch import inner_messages, is_inner_batch
from mqtool.formats.message import Message, message_at
from mqtool.formats.properties import NAME_SEPARATOR, split_keys
from mqtool.formats.property_names import KEYS, TAGS, UNIQ_KEY
from mqtool.formats.scan import Ints, MessageTable
from mqtool.formats.topics import is_possible

Mask = npt.NDArray[np.bool_]
Progress = Callable[[int], None]
_GLOB = re.compile(r"[*?\[]")
_FEW_CHAINS = 8
"""So many chains of an index file are followed faster one by one."""


def is_glob(text: str) -> bool:
    """Return whether a text is a pattern for several names.

    >>> is_glob("order-*"), is_glob("order-1")
    (True, False)
    """
    return bool(_GLOB.search(text))


@dataclasses.dataclass(frozen=True)
class Query:
    """What is wanted of a message; every condition that is given must hold.

    Of ``keys`` (unique keys count too), ``tags`` and ``queues`` one must fit, of ``texts``, ``regexes`` and
    ``properties`` each; all but texts and regexes may be glob patterns. A message of an inner batch counts as well as
    the whole record. Rolled back messages have no index entries: without ``rolled_back`` no key finds them.
    """

    keys: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    regexes: tuple["re.Pattern[str]", ...] = ()
    properties: tuple[tuple[str, str], ...] = ()
    topics: frozenset[str] | None = None
    queues: tuple[str, ...] = ()
    queue_offset: int | None = None
    since: int | None = None
    until: int | None = None
    start_offset: int = 0
    stop_offset: int | None = None
    rolled_back: bool = False

    def matches(self, message: Message) -> bool:
        """Return whether a message, or one in it, fits."""
        return (
            self.start_offset <= message.position
            and (self.stop_offset is None or message.position < self.stop_offset)
            and (self.topics is None or message.topic in self.topics)
            and (not self.queues or _fits(str(message.queue_id), self.queues))
            and (self.since is None or message.store_timestamp >= self.since)
            and (self.until is None or message.store_timestamp < self.until)
            and (not self.keys or self.rolled_back or not _is_rolled_back(message.sys_flag))
            and any(self._matches_one(queue_id, inherited) for queue_id, inherited in _single_messages(message))
        )

    def _matches_one(self, message: Message, inherited: dict[str, str]) -> bool:
        properties = {**inherited, **message.properties}
        if self.queue_offset is not None and message.queue_offset != self.queue_offset:
            return False
        if self.keys and not any(_fits(key, self.keys) for key in _keys_of(properties)):
            return False
        if self.tags and not (TAGS in properties and _fits(properties[TAGS], self.tags)):
            return False
        if not all(name in properties and _fits(properties[name], (value,)) for name, value in self.properties):
            return False
        if not self.texts and not self.regexes:
            return True
        try:
            body = message.plain_body().decode("utf-8", "replace")
        except FormatError:
            return False
        return all(text in body for text in self.texts) and all(regex.search(body) for regex in self.regexes)


def _fits(value: str, patterns: Iterable[str]) -> bool:
    return any(value == pattern or fnmatch.fnmatchcase(value, pattern) for pattern in patterns)


def _keys_of(properties: dict[str, str]) -> list[str]:
    unique_key = properties.get(UNIQ_KEY)
    return split_keys(properties.get(KEYS, "")) + ([unique_key] if unique_key else [])


def _is_rolled_back(sys_flag: int) -> bool:
    return sys_flag & commit_log.TRANSACTION_MASK == commit_log.TRANSACTION_ROLLBACK


def _single_messages(message: Message) -> Iterator[tuple[Message, dict[str, str]]]:
    """Yield a record, then the messages in it, each with the properties that it inherits."""
    yield message, {}
    if is_inner_batch(message):
        with contextlib.suppress(FormatError):
            for inner in inner_messages(message):
                yield inner, message.properties


class Matcher:
    """Finds the messages of tables for which a query holds.

    ``faulty_count`` counts records that cannot be read, or of which nobody knows whether they have one of its topics.
    """

    def __init__(self, query: Query) -> None:
        self.query = query
        self.faulty_count = 0

    def messages_in(self, table: MessageTable) -> Iterator[Message]:
        """Yield the sound messages of a table that fit."""
        for _, message in self.rows_in(table):
            yield message

    def rows_in(self, table: MessageTable) -> Iterator[tuple[int, Message]]:
        """Yield the sound messages of a table that fit, each with its row."""
        for row in self._rows(table).tolist():
            message = message_at(table, row)
            if self.query.matches(message):
                yield row, message

    def _rows(self, table: MessageTable) -> Ints:
        """Return the rows that may fit, as far as columns and raw bytes tell."""
        query = self.query
        sound = table.faults == 0
        self.faulty_count += len(table) - int(np.count_nonzero(sound))
        mask: Mask = sound
        if query.topics is not None:
            ids, raw = table.topics()
            is_wanted = [name.decode("utf-8", "replace") in query.topics for name in raw]
            is_hidden = [not wanted and not is_possible(name) for wanted, name in zip(is_wanted, raw, strict=True)]
            self.faulty_count += int(np.count_nonzero(sound & np.array(is_hidden, np.bool_)[ids]))
            mask = mask & np.array(is_wanted, np.bool_)[ids]
        if query.queues:
            ids, places = np.unique(table.column("queue_id"), return_inverse=True)
            mask = mask & np.array([_fits(str(key), query.queues) for key in ids.tolist()])[places]
        if query.since is not None:
            mask = mask & (table.column("store_timestamp") >= query.since)
        if query.until is not None:
            mask = mask & (table.column("store_timestamp") < query.until)
        sys_flag = table.column("sys_flag")
        batch = (sys_flag & commit_log.INNER_BATCH) != 0
        hidden = (sys_flag & commit_log.COMPRESSED) != 0
        if query.queue_offset is not None:
            mask = mask & ((table.column("queue_offset") == query.queue_offset) | batch)
        if not mask.any():
            return np.empty(0, np.int64)
        return self._rows_by_content(table, mask, batch, hidden)

    def _rows_by_content(self, table: MessageTable, mask: Mask, batch: Mask, hidden: Mask) -> Ints:
        """Return which rows of ``mask`` may fit by what stands in them.

        First by the texts that must stand somewhere in the record, which is fast, then by where they stand.
        """
        query = self.query
        raw = _Raw(table)
        if query.keys:
            mask = mask & (raw.rows_with_any(map(_literal, query.keys)) | (batch & hidden))
        for text in query.texts:
            mask = mask & (raw.rows_with(text) | hidden)
        wanted = [(TAGS, query.tags)] if query.tags else []
        wanted += [(name, (value,)) for name, value in query.properties]
        for name, patterns in wanted:
            begins = (f"{name}{NAME_SEPARATOR}{_GLOB.split(pattern)[0]}" for pattern in patterns)
            mask = mask & (raw.rows_with_any(begins) | (batch & hidden))
        rows: Ints = np.flatnonzero(mask)
        unclear = (hidden | batch)[rows]
        if len(rows) and (wanted or query.keys):
            fits = unclear | self._properties_fit(table.where(rows), wanted)
            rows, unclear = rows[fits], unclear[fits]
        if query.texts or query.regexes:
            bodies = zip(unclear.tolist(), raw.bodies(table, rows), strict=True)
            rows = rows[np.array([unknown or self._body_fits(body) for unknown, body in bodies], np.bool_)]
        return rows

    def _properties_fit(self, table: MessageTable, wanted: list[tuple[str, tuple[str, ...]]]) -> Mask:
        mask = np.ones(len(table), np.bool_)
        names = sorted({KEYS, UNIQ_KEY, *(name for name, _ in wanted)})
        offsets, sizes = table.properties(names)
        values = {name: _texts(table, offsets[number], sizes[number]) for number, name in enumerate(names)}
        if self.query.keys:
            both = zip(values[KEYS], values[UNIQ_KEY], strict=True)
            fits = [
                any(_fits(key, self.query.keys) for key in [*split_keys(keys), unique_key]) for keys, unique_key in both
            ]
            mask &= np.array(fits, np.bool_)
        for name, patterns in wanted:
            mask &= np.array([bool(text) and _fits(text, patterns) for text in values[name]], np.bool_)
        return mask

    def _body_fits(self, body: bytes) -> bool:
        text = body.decode("utf-8", "replace")
        return all(word in text for word in self.query.texts) and all(
            regex.search(text) for regex in self.query.regexes
        )


class Search:
    """One search: what the index files say is known when it is made, the log is scanned while messages are taken.

    ``hit_offsets`` are the addresses that index entries name, ``scan_size`` is how many of the ``total_size`` bytes of
    the log must be scanned; ``position``, ``scanned_size``, ``faulty_count``, ``gaps`` (ranges without a record),
    ``all_holes`` (ranges to be scanned that no file has) and ``unread_count`` (entries without a sound message) say how
    it went.
    """

    def __init__(self, reader: StoreReader, query: Query, use_index: bool = True) -> None:
        self._reader = reader
        self.query = query
        self.index_files_used = 0
        self.remarks: list[str] = []
        self.scanned_size = 0
        self.position = query.start_offset
        self._matcher = Matcher(query)
        self.gaps: list[Gap] = []
        self._unused: list[Gap] = []  # up to now
        self.unread_count = 0
        start, stop = reader.range_of_time(query.since, query.until)
        start = max(start, query.start_offset)
        end = used_end(reader.commit_log)
        stop = min(stop, end if query.stop_offset is None else query.stop_offset, end)
        self.hit_offsets: list[int] = []
        covered: list[tuple[int, int]] = []
        if query.keys and use_index and not any(map(is_glob, query.keys)):
            covered = self._ask_index()
        asked = list(_without(start, stop, covered))
        holes = holes_of(reader.commit_log)
        self.ranges = [(first, last) for first, last, _ in _both(asked, runs_of(reader.commit_log))]
        self.all_holes = [LogHole(first, last, holes[number].path) for first, last, number in _both(asked, holes)]
        self._is_over = False
        self.end_offset = end
        self.total_size = sum(
            min(segment.end_offset, end) - segment.start_offset
            for segment in reader.segments_once()
            if segment.start_offset < end
        )
        self.scan_size = sum(end - begin for begin, end in self.ranges)
        self.kernels = scan.kernels_for(self.scan_size)

    @property
    def faulty_count(self) -> int:
        """How many of the records that were scanned could not be read."""
        return self._matcher.faulty_count

    @property
    def holes(self) -> list[LogHole]:
        """Those of ``all_holes`` that were to be scanned so far."""
        return [hole for hole in self.all_holes if self._is_over or hole.start_offset < self.position]

    @property
    def is_damaged(self) -> bool:
        """Whether part of what was searched could not be read; known when it is over."""
        return bool(self.gaps or self.faulty_count or self.holes or self.unread_count)

    def indexed(self) -> Iterator[Message]:
        """Yield the messages that fit among those the index files name, in the order of the log."""
        for offset in self.hit_offsets:
            message = self._read(offset)
            if message:
                yield message

    def messages(self, progress: Progress = lambda _: None) -> Iterator[Message]:
        """Yield all messages that fit, in the order of the log; ``progress`` is told how many bytes are scanned."""
        hits = self.hit_offsets
        next_hit = 0
        for start, stop in self.ranges:
            before = bisect.bisect_left(hits, start)
            yield from self._read_all(hits[next_hit:before])
            seen = set()
            for message in self._scan(start, stop, progress):
                seen.add(message.position)
                yield message
            next_hit = bisect.bisect_left(hits, stop)
            # A record in a range may be hidden behind damage, and an entry knows it all the same.
            yield from self._read_all([offset for offset in hits[before:next_hit] if offset not in seen])
        yield from self._read_all(hits[next_hit:])
        self._is_over = True

    def _read_all(self, offsets: Iterable[int]) -> Iterator[Message]:
        for offset in offsets:
            message = self._read(offset)
            if message:
                yield message

    def _read(self, offset: int) -> Message | None:
        """Return the message at an address if it fits: an entry may mean another key, or a message that is gone."""
        try:
            message = self._reader.message_at(offset)
        except (NotFoundError, FormatError) as error:
            if is_wanted(self._reader.commit_log, self.query, offset):
                self.unread_count += 1
                self.remarks.append(f"an index entry refers to a place without a sound message: {error}")
            return None
        return message if self.query.matches(message) else None

    # Index files

    def _ask_index(self) -> list[tuple[int, int]]:
        """Note which addresses the index files name, and return for which they answer."""
        topics, complete = known_topics(self._reader)
        if self.query.topics is not None:
            topics, complete = set(self.query.topics), True
        if not topics or not complete:
            if self._reader.index_files:
                self.remarks.append("the index cannot be used, because the names of the topics are not known")
            return []
        if self.query.topics is None and self._reader.index_files and not _has_topic_table(self._reader):
            self.remarks.append(
                "without a readable config/topics.json, keys are looked up only for topics that have queues: --scan "
                "searches the log"
            )
        hashes = np.unique([key_hash(topic, key) for topic in topics for key in self.query.keys])
        offsets_of_hits: set[int] = set()
        covered = []
        for file in self._reader.hold_index():
            if not file.header.entry_count:
                continue
            offsets, sound = find_in_index(file, hashes)
            offsets_of_hits |= offsets
            if sound and self._is_of_this_log(file):
                self.index_files_used += 1
                covered.append((file.header.begin_physical_offset, file.header.end_physical_offset))
            else:
                self.remarks.append(
                    f"index file {file.path.name} is damaged or does not match the log: scanning what it covers"
                )
        self.hit_offsets = sorted(offsets_of_hits)
        if any(topic in topics for topic, _ in self._reader.batch_consume_queues):
            self.remarks.append("the index has no keys of messages in inner batches: scanning the log")
            return []
        return covered

    def _is_of_this_log(self, file: IndexFile) -> bool:
        """Return whether the first or last message of an index file has the time of its header, and none another."""
        header, log = file.header, self._reader.commit_log
        is_confirmed = False
        ends = (
            (header.begin_physical_offset, header.begin_timestamp),
            (header.end_physical_offset, header.end_timestamp),
        )
        for offset, timestamp in ends:
            if offset < max(log.min_offset, log.gone_until):
                continue
            with contextlib.suppress(NotFoundError, FormatError):  # damage in the log says nothing of the index
                if self._reader.message_at(offset).store_timestamp != timestamp:
                    return False
                is_confirmed = True
        return is_confirmed

    # The log

    def _scan(self, start: int, stop: int, progress: Progress) -> Iterator[Message]:
        before = self.scanned_size
        log = self._reader.commit_log
        pieces: Iterator[MessageTable | Gap] = itertools.chain.from_iterable(
            log.tables_of(segment, start, stop, self.kernels)
            for segment in self._reader.segments_once(log.segments_between(start, stop))
        )
        if stop >= self.end_offset and self._reader.is_live:
            pieces = settled(log, pieces)
        for piece in pieces:
            if isinstance(piece, Gap):
                self._unused.append(piece)
                if not is_unused(piece):
                    self._tell_gaps()
                continue
            if len(piece):
                self._tell_gaps()
                yield from self._matcher.messages_in(piece)
                end = int(piece.column("position")[-1] + piece.column("size")[-1])
                self.scanned_size = before + max(0, min(end, stop) - start)
                self.position = end
                progress(self.scanned_size)
        self.scanned_size = before + stop - start
        progress(self.scanned_size)

    def _tell_gaps(self) -> None:
        self.gaps += self._unused
        self._unused.clear()


class _Raw:
    """The bytes of the records of a table, in one piece, copied when they are first asked for."""

    def __init__(self, table: MessageTable) -> None:
        self._buffer = table.buffer
        self._first = int(table.starts[0])
        self._end = int(table.starts[-1] + table.column("size")[-1])
        self.starts = (table.starts - self._first).tolist()

    @functools.cached_property
    def data(self) -> bytes:
        """The bytes."""
        return bytes(memoryview(self._buffer)[self._first : self._end])

    def bodies(self, table: MessageTable, rows: Ints) -> Iterator[bytes]:
        """Yield the bodies of some records."""
        starts = (table.offsets(plain.BODY)[rows] - self._first).tolist()
        sizes = table.sizes(plain.BODY)[rows].tolist()
        for start, size in zip(starts, sizes, strict=True):
            yield self.data[start : start + size]

    def rows_with_any(self, texts: Iterable[str]) -> Mask:
        """Return in which records one of these texts stands."""
        mask = np.zeros(len(self.starts), np.bool_)
        for text in texts:
            mask |= self.rows_with(text)
        return mask

    def rows_with(self, text: str) -> Mask:
        """Return in which records a text stands, wherever in them."""
        mask = np.zeros(len(self.starts), np.bool_)
        literal = text.encode("utf-8", "surrogateescape")
        at = self.data.find(literal)
        while at >= 0:
            row = bisect.bisect_right(self.starts, at) - 1
            mask[row] = True
            if row + 1 == len(self.starts):
                break
            at = self.data.find(literal, self.starts[row + 1])
        return mask


def _literal(pattern: str) -> str:
    """Return the longest part of a glob pattern that must stand in a name as it is.

    >>> _literal("order-*-9?")
    'order-'
    """
    return max(re.split(r"\*|\?|\[.*\]|\[", pattern), key=len) if is_glob(pattern) else pattern


def _texts(table: MessageTable, offsets: Ints, sizes: Ints) -> list[str]:
    extents = zip(offsets.tolist(), sizes.tolist(), strict=True)
    return [bytes(table.buffer[start : start + size]).decode("utf-8", "replace") for start, size in extents]


def used_end(log: CommitLog) -> int:
    """Return an address after which the files of the log hold nothing but holes, so nothing was ever written there.

    Segments are made in full length before they are used: without this a search would wade through zeros.
    """
    for segment in reversed(log.segments):
        try:
            end = _last_data(segment)
        except NotFoundError:
            log.let_go(segment)
            break
        if end:
            return segment.start_offset + end
    return log.min_offset


def _last_data(segment: MappedFile) -> int:
    if isinstance(segment.path, RemotePath):
        return segment.size  # no storage tells holes
    with reading(segment.path):
        descriptor = os.open(segment.path, os.O_RDONLY)
        try:
            end = 0
            while True:
                try:
                    end = os.lseek(descriptor, os.lseek(descriptor, end, os.SEEK_DATA), os.SEEK_HOLE)
                except OSError as error:
                    return min(end, segment.size) if error.errno == errno.ENXIO else segment.size
        finally:
            os.close(descriptor)


def is_wanted(log: CommitLog, query: Query, offset: int) -> bool:
    """Return whether a message at an address could fit, and has not expired."""
    start = max(query.start_offset, log.min_offset, log.gone_until)
    return start <= offset and (query.stop_offset is None or offset < query.stop_offset)


def _both(
    ranges: list[tuple[int, int]], others: "Sequence[tuple[int, int] | LogHole]"
) -> Iterator[tuple[int, int, int]]:
    """Yield what is in both of two lists of ranges, each in order, and the number of the other.

    Cost: linear in their lengths.

    >>> list(_both([(0, 5), (7, 30)], [(3, 10), (20, 40)]))
    [(3, 5, 0), (7, 10, 0), (20, 30, 1)]
    """
    first = 0
    for start, stop in ranges:
        while first < len(others) and others[first][1] <= start:
            first += 1
        for number in range(first, len(others)):
            low, high = others[number][:2]
            if low >= stop:
                break
            yield max(start, low), min(stop, high), number


def _without(start: int, stop: int, covered: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield what is left of an address range where ``covered`` is taken out of it.

    The first and the last message of a covered range are left in: the last may be indexed in part, and the first may
    have entries in the file before.
    """
    at = start
    for begin, end in sorted(covered):
        if begin + 1 > at and begin + 1 < stop:
            yield at, begin + 1
            at = begin + 1
        at = max(at, end)
    if at < stop:
        yield at, stop


def find_in_index(file: IndexFile, hashes: npt.NDArray[Any]) -> tuple[set[int], bool]:
    """Return the physical offsets of the entries with one of these hashes, and whether what was met makes sense."""
    header, shape = file.header, file.shape
    if shape is None or file.size < shape.file_size:
        return set(), False
    slots, entries = file.slots(), file.entries()
    stop = file.entry_stop
    sound = 0 < header.entry_count <= stop and header.begin_physical_offset <= header.end_physical_offset
    if sound and stop > 1:
        ends = entries["physical_offset"][[1, stop - 1]].tolist()
        sound = ends == [header.begin_physical_offset, header.end_physical_offset]
    offsets: set[int] = set()
    places = hashes % shape.slots
    newest = slots[places]
    rows = np.flatnonzero(newest)
    wanted, places, numbers = hashes[rows], places[rows], newest[rows].astype(np.int64)
    befores = np.full(len(rows), stop)
    while len(numbers) > _FEW_CHAINS:  # many topics: their chains side by side
        valid = (numbers > 0) & (numbers < befores)
        sound = sound and bool(valid.all())
        wanted, places, numbers = wanted[valid], places[valid], numbers[valid]
        visited = entries[numbers]
        hashed = visited["key_hash"].astype(np.int64)
        hits = hashed == wanted
        offsets.update(visited["physical_offset"][hits].tolist())
        sound = sound and bool((hits | ((hashed >= 0) & (hashed % shape.slots == places))).all())
        befores, numbers = numbers, visited["previous_entry"].astype(np.int64)
        left = numbers != 0
        wanted, places, numbers, befores = wanted[left], places[left], numbers[left], befores[left]
    chains = (column.tolist() for column in (wanted, places, numbers, befores))
    for key, place, number, before in zip(*chains, strict=True):
        while number:
            if not 0 < number < before:
                sound = False
                break
            hashed, offset, _, previous = entries[number].item()
            if hashed == key:
                offsets.add(offset)
            elif hashed < 0 or hashed % shape.slots != place:
                sound = False
            before, number = number, previous
    if sound and len(rows) < len(newest):  # an empty slot was met: none may be, or one that was in use
        sound = int(np.count_nonzero(slots.view(np.uint32))) >= header.slot_count
    return offsets, bool(sound)


def _has_topic_table(reader: StoreReader) -> bool:
    """Return whether the table of topics can be read; without it nothing shows which queues are missing."""
    try:
        return reader.config_table("topics.json") is not None
    except MqtoolError:
        return False


def known_topics(reader: StoreReader) -> tuple[set[str], bool]:
    """Return the topics that queues and tables of a store name, and whether all of those could be read."""
    names = {topic for topic, _ in (*reader.consume_queues, *reader.batch_consume_queues)}
    complete = True
    with contextlib.suppress(MqtoolError):
        names.update((reader.config_table("topics.json") or {}).get("topicConfigTable") or {})
    try:
        if reader.rocksdb_queues:
            names.update(topic for topic, _ in rocksdb.read_ends(reader.rocksdb_queues).queues)
        names.update(rocksdb.read_config(reader.paths.config).get("topics.json", {}).get("topicConfigTable") or {})
    except MissingExtraError:
        complete = False
    except MqtoolError:
        complete = not reader.rocksdb_queues
    return names, complete
