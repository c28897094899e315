"""Counting messages: how many, how many bytes and when, by topic, queue, tag, hour, size or producer.

The log is walked once, segments side by side; every message of a table is counted at once, by columns. What is kept
is one count for each group.

Cost: linear in the messages; memory holds a stretch per thread and one count for each group.
"""

import dataclasses
import enum
import fnmatch
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mqtool.engine.store.commit_log import CommitLog, Gap, is_unused
from mqtool.engine.store.holes import LogHole, holes_of
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import commit_log, scan
from mqtool.formats import kernels as plain
from mqtool.formats.placeholder import placeholders
from mqtool.formats.property_names import INNER_NUM, TAGS
from mqtool.formats.scan import Ints, MessageTable
from mqtool.formats.topics import is_possible

HOUR_MS = 3_600_000
SIZE_CLASSES = (0, 128, 512, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
"""Where classes of body sizes start."""

_BORN_ADDRESS_AT = commit_log.offset_in_head("born_address")
_DENSE = 1 << 16

Key = tuple[Any, ...]


class By(enum.StrEnum):
    """What messages are grouped by."""

    TOPIC = "topic"
    QUEUE = "queue"
    TAG = "tag"
    HOUR = "hour"
    SIZE = "size"
    HOST = "host"


KEYS = {
    By.TOPIC: ("topic",),
    By.QUEUE: ("topic", "queue_id"),
    By.TAG: ("topic", "tags"),
    By.HOUR: ("hour_timestamp",),
    By.SIZE: ("body_size_from",),
    By.HOST: ("born_address",),
}
"""The fields that name a group."""


@dataclasses.dataclass
class Count:
    """What is known of a group of messages; an inner batch is one record of several messages."""

    messages: int = 0
    records: int = 0
    size: int = 0
    body_size: int = 0
    first_timestamp: int = 1 << 62
    last_timestamp: int = -(1 << 62)

    def add(self, other: "Count") -> None:
        """Take in another group."""
        self.messages += other.messages
        self.records += other.records
        self.size += other.size
        self.body_size += other.body_size
        self.first_timestamp = min(self.first_timestamp, other.first_timestamp)
        self.last_timestamp = max(self.last_timestamp, other.last_timestamp)


@dataclasses.dataclass(frozen=True)
class Selection:
    """Which messages count: glob patterns (none: all), and store times in ``[since, until)``."""

    topics: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    since: int | None = None
    until: int | None = None


class _Topic(NamedTuple):
    """A name that the log has, whether it is selected, and whether damage may hide one that is."""

    name: str
    is_wanted: bool
    is_hidden: bool


class Tally:
    """Counts tables of messages.

    ``faulty`` counts records that cannot be read, or of which nobody knows whether they have one of the topics.
    """

    def __init__(self, by: By, selection: Selection) -> None:
        self.by = by
        self.selection = selection
        self.groups: dict[Key, Count] = {}
        self.faulty = 0
        self.placeholders = 0  # selected, and not counted: they stand where messages were lost
        self.topics: set[str] = set()
        self.queues: set[str] = set()
        self.tags: set[str] = set()
        self._topics_by_name: dict[bytes, _Topic] = {}

    def add(self, table: MessageTable) -> None:
        """Count the sound messages of a table that are selected."""
        if table.faults.any():
            self.faulty += int(np.count_nonzero(table.faults))
            table = table.where(table.faults == 0)
        timestamps = table.column("store_timestamp")
        ids, raw = table.topics()
        named = [self._topic(name) for name in raw]
        keep = np.array([topic.is_wanted for topic in named], np.bool_)[ids] if raw else np.ones(0, np.bool_)
        if any(topic.is_hidden for topic in named):
            self.faulty += int(np.count_nonzero(np.array([topic.is_hidden for topic in named], np.bool_)[ids]))
        if self.selection.since is not None:
            keep &= timestamps >= self.selection.since
        if self.selection.until is not None:
            keep &= timestamps < self.selection.until
        if self.selection.queues:
            keep &= self._wanted_queues(table)
        tags: tuple[Ints, list[str]] | None = None
        if self.selection.tags or self.by is By.TAG:
            tags = self._tags(table, keep)
            if self.selection.tags:
                keep &= np.array([matches(self.selection.tags, tag) for tag in tags[1]], np.bool_)[tags[0]]
        lost = keep & placeholders(table)
        if lost.any():
            self.placeholders += int(np.count_nonzero(lost))
            keep &= ~lost
        rows = np.flatnonzero(keep)
        if len(rows):
            self._count(table, rows, ids, [topic.name for topic in named], tags)

    def merge(self, other: "Tally") -> None:
        """Take in what another tally counted."""
        for key, count in other.groups.items():
            self.groups.setdefault(key, Count()).add(count)
        self.faulty += other.faulty
        self.placeholders += other.placeholders
        self.topics |= other.topics
        self.queues |= other.queues
        self.tags |= other.tags

    def total(self) -> Count:
        """Return the sum of all groups."""
        total = Count()
        for count in self.groups.values():
            total.add(count)
        return total

    def _topic(self, raw: bytes) -> _Topic:
        known = self._topics_by_name.get(raw)
        if known is None:
            name = raw.decode("utf-8", "replace")
            self.topics.add(name)
            is_wanted = matches(self.selection.topics, name)
            known = self._topics_by_name[raw] = _Topic(name, is_wanted, not is_wanted and not is_possible(raw))
        return known

    def _wanted_queues(self, table: MessageTable) -> npt.NDArray[np.bool_]:
        values, inverse = np.unique(table.column("queue_id"), return_inverse=True)
        names = [str(value) for value in values.tolist()]
        self.queues.update(names)
        wanted = np.array([matches(self.selection.queues, name) for name in names], np.bool_)
        return wanted[inverse] if names else np.ones(0, np.bool_)

    def _tags(self, table: MessageTable, keep: npt.NDArray[np.bool_]) -> tuple[Ints, list[str]]:
        offsets, sizes = table.properties([TAGS])
        ids, raw = _intern(table, offsets[0], sizes[0])
        names = [name.decode("utf-8", "replace") for name in raw]
        self.tags.update(names[number] for number in np.unique(ids[keep]).tolist())
        return ids, names

    def _count(
        self, table: MessageTable, rows: Ints, ids: Any, topics: list[str], tags: tuple[Ints, list[str]] | None
    ) -> None:
        whole = len(rows) == len(table)
        pick: Callable[[Any], Any] = (lambda column: column) if whole else (lambda column: column[rows])
        codes, keys = self._keys(table, pick, ids, topics, tags)
        present, groups = _dense(codes)
        count = len(present)
        sizes, bodies = pick(table.column("size")), pick(table.sizes(plain.BODY))
        timestamps = pick(table.column("store_timestamp"))
        first, last = np.full(count, 1 << 62, np.int64), np.full(count, -(1 << 62), np.int64)
        np.minimum.at(first, groups, timestamps)
        np.maximum.at(last, groups, timestamps)
        columns = (
            _sums(groups, pick(_message_counts(table)), count),
            np.bincount(groups, minlength=count).tolist(),
            _sums(groups, sizes, count),
            _sums(groups, bodies, count),
            first.tolist(),
            last.tolist(),
        )
        for code, *values in zip(present.tolist(), *columns, strict=True):
            self.groups.setdefault(keys(code), Count()).add(Count(*values))

    def _keys(
        self,
        table: MessageTable,
        pick: Callable[[Any], Any],
        ids: Any,
        topics: list[str],
        tags: tuple[Ints, list[str]] | None,
    ) -> tuple[Ints, Callable[[int], Key]]:
        """Return a number for the group of each message, and what makes a key of such a number."""
        match self.by:
            case By.TOPIC:
                return pick(ids), lambda code: (topics[code],)
            case By.QUEUE:
                queues = pick(table.column("queue_id")).astype(np.int64)
                low, spread = int(queues.min()), int(queues.max()) - int(queues.min()) + 1
                return pick(ids) * spread + (queues - low), lambda code: (topics[code // spread], code % spread + low)
            case By.TAG:
                assert tags is not None
                numbers, names = tags
                spread = len(names)
                return (
                    pick(ids).astype(np.int64) * spread + pick(numbers),
                    lambda code: (topics[code // spread], names[code % spread] or None),
                )
            case By.HOUR:
                return pick(table.column("store_timestamp")) // HOUR_MS, lambda code: (code * HOUR_MS,)
            case By.SIZE:
                classes = np.searchsorted(SIZE_CLASSES, pick(table.sizes(plain.BODY)), "right") - 1
                return classes, lambda code: (SIZE_CLASSES[code],)
            case By.HOST:
                is_v6 = (table.column("sys_flag") & commit_log.BORN_HOST_V6) != 0
                numbers, raw = _intern(table, table.starts + _BORN_ADDRESS_AT, np.where(is_v6, 16, 4))
                return pick(numbers), lambda code: (_address(raw[code]),)


def _address(raw: bytes) -> str:
    import ipaddress

    return str(ipaddress.ip_address(raw))


def matches(patterns: tuple[str, ...], name: str) -> bool:
    """Return whether one of some patterns selects a name; without any, each is selected."""
    return not patterns or any(name == pattern or fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _intern(table: MessageTable, offsets: Ints, sizes: Ints) -> tuple[Ints, list[bytes]]:
    """Number equal ranges of the table's buffer, and return the ranges by number."""
    ids = np.empty(len(table), np.int32)
    offsets, sizes = np.ascontiguousarray(offsets), np.ascontiguousarray(sizes, np.int64)
    room = 1024
    while True:
        firsts, slots = np.empty(room, np.int64), np.full(4 * room, -1, np.int32)
        count = table.kernels.intern(table.buffer, offsets, sizes, slots, ids, firsts)
        if count >= 0:
            break
        room *= 16
    return ids.astype(np.int64), [
        bytes(table.buffer[int(offsets[row]) : int(offsets[row] + sizes[row])]) for row in firsts[:count]
    ]


def _dense(codes: Ints) -> tuple[Ints, Ints]:
    """Return the numbers that occur, in order, and for each place which of them is there."""
    low, high = int(codes.min()), int(codes.max())
    if high - low >= _DENSE:
        return np.unique(codes, return_inverse=True)
    present = np.flatnonzero(np.bincount(codes - low))
    lookup = np.zeros(high - low + 1, np.int64)
    lookup[present] = np.arange(len(present))
    return present + low, lookup[codes - low]


def _sums(groups: Ints, values: Any, count: int) -> list[int]:
    # Doubles are exact up to 2**53; the numbers of one table stay far below.
    return [int(value) for value in np.bincount(groups, values, count)]


def _message_counts(table: MessageTable) -> Ints:
    """Return how many messages each record holds: more than one in an inner batch."""
    counts = np.ones(len(table), np.int64)
    rows = np.flatnonzero(table.column("sys_flag") & commit_log.INNER_BATCH)
    if len(rows):
        batches = table.where(rows)
        offsets, sizes = batches.properties([INNER_NUM])
        for row, offset, size in zip(rows.tolist(), offsets[0].tolist(), sizes[0].tolist(), strict=True):
            digits = bytes(table.buffer[offset : offset + min(size, 6)])
            counts[row] = int(digits) if digits.isdigit() else 1
    return counts


@dataclasses.dataclass(frozen=True)
class Stats:
    """All counts, and what of the log could not be read."""

    tally: Tally
    gaps: list[Gap]
    holes: list[LogHole]
    noise: Gap | None  # bytes that are not a record, after the last message


Progress = Callable[[int], None]


def count_messages(
    store: StoreReader,
    by: By,
    selection: Selection,
    start_offset: int,
    stop_offset: int,
    jobs: int = 1,
    progress: Progress = lambda _: None,
) -> Stats:
    """Count the messages of an address range.

    Args:
        store: whose log is read.
        by: what messages are grouped by.
        selection: which messages count.
        start_offset: where the first message may start.
        stop_offset: where none starts any more.
        jobs: number of threads.
        progress: called with the number of bytes done so far.
    """
    log = store.commit_log
    parts = [
        _Part(segment.to_walk(), max(segment.start_offset, start_offset), min(segment.end_offset, stop_offset))
        for segment in store.segments_once()
        if segment.start_offset < stop_offset and segment.end_offset > start_offset
    ]
    kernels = scan.kernels_for(sum(part.stop - part.start for part in parts))
    counter = _Counter(store, by, selection, kernels, progress)
    result = Stats(Tally(by, selection), [], holes_of(log, start_offset, stop_offset), None)
    pending: list[Gap] = []
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for tally, inner, trailing, has_messages in pool.map(counter.run, parts):
                result.tally.merge(tally)
                if has_messages:
                    result.gaps.extend(pending + inner)
                    pending = []
                pending += trailing
        finally:
            counter.stop.set()
    used = [gap for gap in pending if not is_unused(gap)]
    if used and _goes_on(log, stop_offset, kernels):
        lost = len(used)
    else:
        torn = () if store.is_live else (number for number, gap in enumerate(used, 1) if _is_of_a_record(log, gap))
        lost = max(torn, default=0)
    result.gaps.extend(used[:lost])
    return dataclasses.replace(result, noise=next(iter(used[lost:]), None))


def _is_of_a_record(log: CommitLog, gap: Gap) -> bool:
    """Return whether a record at the end of a log was not written completely: ``verify`` calls other bytes noise."""
    return gap.stop is scan.Stop.BLANK or log.begins(gap.segment, gap.start, commit_log.MESSAGE_MAGICS)


def _goes_on(log: CommitLog, offset: int, kernels: Any) -> bool:
    """Return whether a log has a message at an address or after it."""
    later = (segment for segment in log.segments if segment.end_offset > offset)
    starts = ((segment, max(0, offset - segment.start_offset)) for segment in later)
    return any(log.resync(segment, start, segment.size, kernels) is not None for segment, start in starts)


class _Part(NamedTuple):
    """What one segment has in an address range: segments may overlap where one was renamed."""

    segment: MappedFile
    start: int
    stop: int


class _Counter:
    """Counts parts of the log, from several threads at once."""

    def __init__(self, store: StoreReader, by: By, selection: Selection, kernels: Any, progress: Progress) -> None:
        self.store = store
        self.by = by
        self.selection = selection
        self.kernels = kernels
        self.progress = progress
        self.stop = threading.Event()
        self._done = 0
        self._lock = threading.Lock()

    def run(self, part: _Part) -> tuple[Tally, list[Gap], list[Gap], bool]:
        """Return the counts of a part, the gaps between its messages, those after, and whether it has messages."""
        tally = Tally(self.by, self.selection)
        inner: list[Gap] = []
        trailing: list[Gap] = []
        has_messages, at = False, part.start
        for piece in self._pieces(part):
            if isinstance(piece, Gap):
                trailing.append(piece)
                continue
            tally.add(piece)
            inner, trailing, has_messages = inner + trailing, [], True
            end = piece.base + int(piece.starts[-1])
            self._advance(end - at)
            at = end
        if not self.stop.is_set():
            self._advance(part.stop - at)
        part.segment.forget()
        return tally, inner, trailing, has_messages

    def _pieces(self, part: _Part) -> Iterator[MessageTable | Gap]:
        for piece in self.store.commit_log.tables_of(*part, self.kernels):
            if self.stop.is_set():
                return
            yield piece

    def _advance(self, size: int) -> None:
        with self._lock:
            self._done += size
            self.progress(self._done)
