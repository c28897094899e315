"""Byte ranges of segments: each record of a log belongs to the one range in which it starts, damaged ones too.

A range is walked from a record that starts some megabytes before it, so all ranges find the same
records, whatever the bodies contain. Nothing here depends on Spark, and no record is read to split a log into ranges.

Cost: a range reads some megabytes before it, once for each task.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from mqtool.engine.store.commit_log import SIZE_BYTES, SLACK, CommitLog, Gap, is_whole, with_data
from mqtool.engine.store.holes import holes_of
from mqtool.engine.store.loaded_file import LoadedFile
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.mapping import Bytes, reading
from mqtool.engine.store.packed import PackedPath, is_packed_name
from mqtool.engine.store.reader import CLOCK_STEP_MS, StoreReader
from mqtool.engine.store.remote import RemotePath, place, stamp_of
from mqtool.errors import NotFoundError, StoreChangedError
from mqtool.formats import commit_log, scan
from mqtool.formats.scan import MessageTable
from mqtool.spark.stores import Store

MAX_PARTITION = 128 << 20
_MAX_TASKS = 20_000
_MAX_COUNTS = 500
_MAX_OF_A_COUNT = 4 << 30
_TASKS_A_CORE = 4
LOOK_BACK = 5 << 20
"""A walk starts this far before its range, but not before its segment: no message of a broker that takes
those of 4 MiB is longer."""
STEP = 4 << 20
"""Bytes that are read and scanned at once, and stay in the processor's cache in the meantime."""
MAPPED_STEP = 32 << 20
"""Used where nothing is read into memory and only heads are examined."""
_PROBE = 128 << 10


@dataclasses.dataclass(frozen=True)
class LogRange:
    """A range of a segment: what starts in it is read together.

    ``following`` says whether there are messages in later segments, ``is_live`` whether a broker may be writing here.
    """

    store: Store
    file: str  # relative to the store
    path: str
    start_offset: int  # address of the segment
    size: int  # bytes of the segment
    start: int  # positions in the segment
    stop: int
    is_dledger: bool
    following: bool
    is_live: bool
    total_size: int  # bytes of all ranges that are read together
    stamp: str = ""  # of a remote segment, as it was listed

    @property
    def address(self) -> int:
        """Where it starts in the log."""
        return self.start_offset + self.start


@dataclasses.dataclass(frozen=True)
class MissingRange:
    """Addresses of a log that no file holds any more: who reads a log reports them in their place."""

    store: Store
    file: str  # before which they are missing, as ``verify`` tells it
    address: int
    end_offset: int

    @property
    def place(self) -> "UnreadablePlace":
        """What is reported."""
        return UnreadablePlace(0, "LOG-GAP")


@dataclasses.dataclass(frozen=True)
class UnreadablePlace:
    """A place in a range where a record should start and none does."""

    position: int  # in the segment
    code: str  # of the check that finds it


def log_ranges(
    store: Store,
    reader: StoreReader,
    max_size: int = MAX_PARTITION,
    start_offset: int = 0,
    stop_offset: int | None = None,
) -> list[LogRange]:
    """Cut the log of a store into ranges of at most ``max_size`` bytes, using only names and lengths of files.

    Cost: linear in the segments between the addresses.

    Args:
        store: that it is of.
        reader: of it.
        max_size: bytes; a range that is cut starts at a multiple of it in its segment. Compressed segments are not cut.
        start_offset: messages that start below this address are left out.
        stop_offset: messages that start at or above this address are left out.
    """
    log = reader.commit_log
    last = last_used(store, reader)
    is_live = reader.is_live
    stop_offset = log.end_offset if stop_offset is None else stop_offset
    chosen = []
    for number, segment in log.numbered_between(start_offset, stop_offset):
        low = max(0, start_offset - segment.start_offset)
        high = min(segment.size, stop_offset - segment.start_offset)
        inner = () if is_packed_name(segment.path.name) else range(low - low % max_size + max_size, high, max_size)
        cuts = [low, *inner, high] if low < high else []
        chosen += [(segment, start, stop, number < last) for start, stop in itertools.pairwise(cuts)]
    total = sum(stop - start for _, start, stop, _ in chosen)
    return [
        LogRange(
            store, reader.paths.relative(segment.path), str(segment.path.absolute()), segment.start_offset,
            segment.size, start, stop, log.envelope is not scan.BARE, following, is_live, total, stamp_of(segment.path),
        )
        for segment, start, stop, following in chosen
    ]  # fmt: skip


def missing_ranges(
    store: Store, reader: StoreReader, start_offset: int = 0, stop_offset: int | None = None
) -> list[MissingRange]:
    """Return the addresses between two segments of a log that no file holds, within a range."""
    holes = holes_of(reader.commit_log, start_offset, stop_offset)
    return [MissingRange(store, reader.paths.relative(hole.path), *hole[:2]) for hole in holes]


def with_missing(ranges: Sequence[LogRange], missing: Sequence[MissingRange]) -> list[LogRange | MissingRange]:
    """Return both in the order of the log."""
    return sorted([*ranges, *missing], key=lambda part: part.address)


def size_of(total: int) -> int:
    """Return how many bytes of log a task gets that gives back messages: a driver knows of no more than some tasks."""
    return max(MAX_PARTITION, total // _MAX_TASKS)


def size_to_count(total: int, cores: int) -> int:
    """Return how many bytes of log a task gets that gives back little: each core has several tasks, none is small.

    Spark needs some hundredths of a second for a task, in which a core counts the messages of 100 MiB; and its driver
    up to a hundred kilobytes, so of a log that is too large for that a task gets more.
    """
    share = total // (_TASKS_A_CORE * cores)
    return max(min(max(share, MAX_PARTITION), _MAX_OF_A_COUNT), min(share, total // _MAX_COUNTS))


def last_used(store: Store, reader: StoreReader) -> int:
    """Return the number of the last segment that has a record, be it behind a damaged beginning, -1 without one."""
    log = reader.commit_log
    for number in reversed(range(len(log.segments))):
        segment = log.segments[number]
        if log.begins(segment, 0):
            return number
        with reading(segment.path):
            changed_at = segment.path.stat().st_mtime_ns
        if _has_record(segment_range(store, reader, segment, segment.size), changed_at):
            return number
    return -1


@functools.lru_cache(maxsize=256)
def _has_record(part: LogRange, _changed_at: int) -> bool:
    """Return whether a record is anywhere in a segment; streams ask again and again, and holes are not read."""
    with RangeReader(part) as range_reader:
        return range_reader.next_record(0, part.size) is not None


def segment_range(store: Store, reader: StoreReader, segment: MappedFile, stop: int) -> LogRange:
    """Return the range of a segment up to a position, in which a broker may be writing."""
    return LogRange(
        store, reader.paths.relative(segment.path), str(segment.path.absolute()), segment.start_offset, segment.size,
        0, stop, reader.commit_log.envelope is not scan.BARE, False, True, stop, stamp_of(segment.path),
    )  # fmt: skip


class MappedSegment(LoadedFile):
    """A segment that is mapped all the same, by those who look at little of it.

    A segment that is deleted meanwhile stays whole for them; one that is cut short ends the process, and Spark runs its
    task again in another.
    """

    @functools.cached_property
    def bytes(self) -> Bytes:
        """The whole file."""
        return self.map()

    def load(self, start: int, stop: int) -> None:
        """Do nothing: all of it is available."""

    def release(self, start: int, stop: int) -> None:
        """Do nothing: what was read belongs to the page cache."""

    @property
    def loaded_stop(self) -> int:
        """The end of the file."""
        return self.size


class RangeReader:
    """Reads one range. To be used in a ``with``; ``is_mapped``: as ``MappedSegment``.

    Raises:
        NotFoundError: its file is gone.
        StoreChangedError: its file has become shorter.
    """

    def __init__(self, part: LogRange, is_mapped: bool = False) -> None:
        self.part = part
        path = place(part.path)
        if is_packed_name(path.name):
            path = PackedPath.of(path)
        is_mapped = is_mapped and not isinstance(path, RemotePath)
        kind = MappedSegment if is_mapped else LoadedFile
        self._step = MAPPED_STEP if is_mapped else STEP
        self.segment = kind(path, part.start_offset, part.size)
        if self.segment.spool:
            self.segment.spool.end_ahead = part.stop
            self.segment.spool.expect(part.stamp)
        self.log = CommitLog([])
        if part.is_dledger:
            self.log.envelope = scan.DLEDGER
        self.kernels = scan.kernels_for(part.total_size)
        self._lost: Gap | None = None  # as far as it is known

    def __enter__(self) -> "RangeReader":
        self.segment.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.segment.__exit__(*exception)

    def tables(self) -> Iterator[MessageTable | UnreadablePlace]:
        """Yield the messages that start in the range, and each damaged place, in order.

        A table is good until the next one is asked for.
        """
        part = self.part
        at, is_lost = self._begin()
        while at < part.stop:
            if is_lost:
                again = self._resync(at)
                if again is None:
                    break
                yield from self._tell(followed=True)
                at = again
            pieces, at, is_lost = self._walk(at)
            for piece in pieces:
                if isinstance(piece, Gap):
                    if part.start <= piece.start < part.stop:
                        self._lost = piece
                    continue
                yield from self._tell(followed=True)
                table = self._owned(piece)
                if table is not None:
                    yield table
        yield from self._tell(followed=False)

    def messages_from(self, at: int, is_near: bool = False) -> Iterator[MessageTable]:
        """Yield the messages between a record, or where the last one ended, and the end of the range.

        One that a broker is just writing is left out. A table is good until the next one is asked for.

        Args:
            at: position in the segment.
            is_near: if no record follows soon, none follows: the rest is not examined.
        """
        while at < self.part.stop:
            pieces, at, is_lost = self._walk(at)
            for piece in pieces:
                if not isinstance(piece, Gap):
                    count = len(piece) - self._is_unfinished(piece)
                    if count:
                        yield piece.where(slice(0, count))
            if is_lost:
                again = self.next_record(at, at + STEP if is_near else self.part.stop)
                if again is None:
                    return
                at = again

    @property
    def _buffer(self) -> Any:
        return self.log.buffer(self.segment, self.kernels)

    def _begin(self) -> tuple[int, bool]:
        """Return where to start the walk, and whether no record is known to start there."""
        low = max(0, self.part.start - LOOK_BACK)
        if not low:
            return 0, False
        self.segment.load(low, self.part.start + SLACK)
        position = scan.resync(self._buffer, self.part.start_offset, low, self.part.start, self.log.envelope)
        return (self.part.start, True) if position is None else (position, False)

    def _resync(self, at: int) -> int | None:
        """Return the position of the first record of the range from a place on."""
        for low, high in with_data(self.segment, at, self.part.stop, self._step):
            self.segment.load(low, high + SLACK)
            position = scan.resync(self._buffer, self.part.start_offset, low, high, self.log.envelope)
            if position is not None:
                return position
        return None

    def _walk(self, at: int) -> tuple[list[MessageTable | Gap], int, bool]:
        """Return messages and gaps from a record on, where they end, and whether the last is a gap without an end."""
        segment = self.segment
        stop = min(at + self._step, self.part.stop)
        segment.load(at, stop + SLACK)
        while True:
            pieces = list(self.log.walk(segment, at, stop, self.kernels, ahead=False))
            if not pieces:
                return [], segment.size, False  # a blank record, or no room for one
            last = pieces[-1]
            if isinstance(last, Gap):
                return pieces, last.end, last.end >= stop
            end = int(last.starts[-1]) + int(last.column("size")[-1])
            if end > segment.loaded_stop:
                segment.load(at, end + SLACK)
            elif last.faults[-1] and end >= stop and stop < segment.size:
                # Only what follows says whether this record misled the walk.
                stop = min(max(stop, end) + STEP, segment.size)
                segment.load(at, stop + SLACK)
            elif end < stop:
                return pieces, segment.size, False  # a blank record follows
            else:
                return pieces, end, False

    def _owned(self, table: MessageTable) -> MessageTable | None:
        """Return the messages that start in the range."""
        starts = table.starts - self.log.envelope.size
        first, last = starts.searchsorted([self.part.start, self.part.stop]).tolist()
        if last == len(table) and last > first and self._is_unfinished(table):
            last -= 1
        if first == 0 and last == len(table):
            return table
        return table.where(slice(first, last)) if last > first else None

    def _is_unfinished(self, table: MessageTable) -> bool:
        """Return whether a broker is just writing the last message of a table."""
        if not self.part.is_live or self.part.following or is_whole(table, len(table) - 1):
            return False
        end = int(table.starts[-1]) + int(table.column("size")[-1])
        return not self.log.begins(self.segment, end)

    def _tell(self, followed: bool) -> Iterator[UnreadablePlace]:
        """Report the gap before this place, unless it is the unused end of the log."""
        gap, self._lost = self._lost, None
        if gap is None:
            return
        followed = followed or self.part.following or self.next_record(self.part.stop, self.part.size) is not None
        if followed:
            yield UnreadablePlace(gap.start, _HOLES[gap.stop])
        elif not self.part.is_live:
            content = self.segment.first_content(gap.start, self.part.size)
            if content is not None:
                yield self._tail(gap, content)

    def next_record(self, at: int, stop: int) -> int | None:
        """Return the position of the first record from a place on."""
        while True:
            content = self.segment.first_content(at, min(stop, self.part.size))
            if content is None:
                return None
            # A record begins with its size, whose first bytes may be zero.
            at = max(at, content - SIZE_BYTES)
            end = min(at + STEP, self.part.size)
            self.segment.load(at, end + SLACK)
            position = scan.resync(self._buffer, self.part.start_offset, at, end, self.log.envelope)
            if position is not None:
                return position
            at = end

    def _tail(self, gap: Gap, content: int) -> UnreadablePlace:
        if gap.stop is scan.Stop.BLANK:
            return UnreadablePlace(gap.start, "LOG-BLANK")
        if self.log.begins(self.segment, gap.start, commit_log.MESSAGE_MAGICS):
            return UnreadablePlace(gap.start, "LOG-TORN")
        return UnreadablePlace(content, "LOG-NOISE")


_HOLES = {
    scan.Stop.MAGIC: "LOG-MAGIC",
    scan.Stop.SIZE: "LOG-SIZES",
    scan.Stop.BLANK: "LOG-BLANK",
    scan.Stop.END: "LOG-BLANK",
    scan.Stop.PART: "LOG-MAGIC",
}


def ranges_in_time(ranges: list[LogRange], since: int | None, until: int | None) -> list[LogRange]:
    """Leave out ranges at both ends whose messages were not stored in ``[since, until)`` (ms).

    Of a range the first two messages are read: store times follow the log except for steps of the clock.
    """
    first, stop = 0, len(ranges)
    while since is not None and first + 1 < stop:
        times = _first_times(ranges[first + 1])
        if not times or max(times) >= since - CLOCK_STEP_MS:
            break
        first += 1
    while until is not None and stop > first:
        times = _first_times(ranges[stop - 1])
        if not times or min(times) < until + CLOCK_STEP_MS:
            break
        stop -= 1
    return ranges[first:stop]


def _first_times(part: LogRange) -> list[int]:
    """Return the store times of the first two messages of a range, none where they are not found at its beginning."""
    try:
        with RangeReader(
            dataclasses.replace(part, stop=min(part.stop, part.start + _PROBE), total_size=_PROBE)
        ) as range_reader:
            segment, envelope = range_reader.segment, range_reader.log.envelope
            segment.load(part.start, part.start + 2 * _PROBE)
            buffer = range_reader.log.buffer(segment, range_reader.kernels)
            at = scan.resync(buffer, part.start_offset, part.start, range_reader.part.stop, envelope)
            if at is None:
                return []
            table = scan.scan(buffer, part.start_offset, at, None, envelope, range_reader.kernels, limit=2).table
            times: list[int] = table.column("store_timestamp").tolist()
            return times if len(times) == 2 else []
    except (NotFoundError, StoreChangedError):
        return []
