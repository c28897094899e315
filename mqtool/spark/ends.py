"""Where a log ends, and how that place is recognized later: by the last message before it.

An address alone does not show whether a log is still the one that was read: a recovery, a restore or a lagging slave
may have cut it, and it may contain other messages by now.

Cost: linear in the last segment.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mqtool.engine.store.holes import holes_of
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import NotFoundError, StoreChangedError
from mqtool.formats.scan import MessageTable
from mqtool.spark.partitions import LOOK_BACK, RangeReader, last_used, segment_range
from mqtool.spark.stores import Store

_HEAD = 76
"""Bytes of a record that hold all of its numbers up to the store timestamp, whichever hosts it names."""
_STEP = 1 << 20
_NEAR = 64 << 10


class Mark(NamedTuple):
    """A message of a log: its address, where it ends, and a digest of its head."""

    address: int
    stop: int
    digest: str


class LogEnd(NamedTuple):
    """An address after messages, and the last of them if one is known."""

    offset: int
    last: Mark | None


def end_of_log(store: Store, reader: StoreReader, known: LogEnd | None = None) -> LogEnd:
    """Return the place after the last complete message of a log.

    What follows the last content of a segment is zeros, and messages are searched from there backwards: of a full
    segment a few megabytes are read.

    Args:
        store: that it is of.
        reader: of it.
        known: what this function has returned before: where the log is still the same only what is new is read.
    """
    log = reader.commit_log
    number = last_used(store, reader)
    segment = log.segments[number] if number >= 0 else None
    if segment and known and known.last and segment.start_offset <= known.last.address and holds(reader, known.last):
        with RangeReader(segment_range(store, reader, segment, segment.size)) as range_reader:
            mark = _last(range_reader, range_reader.messages_from(known.last.stop - segment.start_offset, is_near=True))
        return LogEnd(mark.stop, mark) if mark else LogEnd(known.last.stop, known.last)
    for segment in reversed(log.segments[: number + 1]):
        with RangeReader(segment_range(store, reader, segment, segment.size)) as range_reader:
            content = _end_of_content(segment)
            for start in (max(0, content - LOOK_BACK), 0):
                at = range_reader.next_record(start, segment.size) if start else 0
                mark = None if at is None else _last(range_reader, range_reader.messages_from(at))
                if mark:
                    return LogEnd(mark.stop, mark)
    return LogEnd(log.min_offset, None)


def end_before(store: Store, reader: StoreReader, start: int, stop: int) -> LogEnd:
    """Return the place after the last message that ends at or below an address; at least the first message of it.

    Args:
        store: that it is of.
        reader: of it.
        start: address of a record, or after one: what starts below it does not count.
        stop: an address above it. If no message begins between them, the place of the next one is returned, or the end
            of the segment; of a hole its end is.
    """
    segment = reader.commit_log.segment_at(stop - 1)
    holes = holes_of(reader.commit_log, start)
    for hole in (hole for hole in holes if hole.start_offset < stop <= hole.end_offset):
        before = end_before(store, reader, start, hole.start_offset) if hole.start_offset > start else None
        return LogEnd(hole.end_offset, before.last if before else None)
    if segment is None:
        return LogEnd(stop, None)
    low, high = max(0, start - segment.start_offset), stop - segment.start_offset
    with RangeReader(segment_range(store, reader, segment, high)) as range_reader:
        for window in (_NEAR, LOOK_BACK, high):
            at: int | None = max(low, high - window)
            if at != low:
                at = range_reader.next_record(at or 0, high)
            mark = None if at is None else _last(range_reader, range_reader.messages_from(at), stop)
            if mark and mark.stop > stop and segment.start_offset > start:
                return end_before(store, reader, start, segment.start_offset)
            if mark:
                return LogEnd(mark.stop, mark)
        following = range_reader.next_record(high, segment.size)
    return LogEnd(segment.start_offset + (segment.size if following is None else following), None)


def holds(reader: StoreReader, mark: Mark) -> bool | None:
    """Return whether a message is still where it was, None if its segment has been deleted."""
    if mark.address < reader.commit_log.min_offset:
        return None
    segment = reader.commit_log.segment_at(mark.address)
    if segment is None:
        return False
    try:
        return _digest(segment.read(mark.address - segment.start_offset, _HEAD)) == mark.digest
    except NotFoundError:
        return None
    except StoreChangedError:
        return False


def thinned(marks: Sequence[Mark]) -> list[Mark]:
    """Return the newest of some marks, newest first, and of the others fewer and fewer the older they are."""
    kept: dict[int, Mark] = {}
    for mark in marks:
        kept[(marks[0].stop - mark.stop).bit_length() // 2] = mark
    return [marks[0], *(mark for mark in kept.values() if mark != marks[0])] if marks else []


def _last(range_reader: RangeReader, tables: Iterator[MessageTable], stop: int | None = None) -> Mark | None:
    """Return the last message; with ``stop`` the last that ends at or below it, else the first."""
    base, mark = range_reader.part.start_offset, None
    for table in tables:
        ends = table.starts + table.column("size") + base
        count = len(table) if stop is None else int((ends <= stop).sum())
        if count or mark is None:
            row = max(0, count - 1)
            mark = mark_of(table.record(row), base + int(table.starts[row]), int(ends[row]))
    return mark


def mark_of(record: bytes, address: int, stop: int) -> Mark:
    """Return the mark of a message."""
    return Mark(address, stop, _digest(record[:_HEAD]))


def _digest(head: bytes) -> str:
    return hashlib.blake2b(head, digest_size=8).hexdigest()


def _end_of_content(segment: MappedFile) -> int:
    """Return the position after the last byte of a segment that is not zero."""
    for stop in range(segment.size, 0, -_STEP):
        start = max(0, stop - _STEP)
        content = np.flatnonzero(np.frombuffer(segment.read(start, stop - start), np.uint8))
        if len(content):
            return start + int(content[-1]) + 1
    return 0
