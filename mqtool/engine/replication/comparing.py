"""Checks whether a slave's log is a prefix of its master's, as far as possible before the first report.

The stream does not show it: a RocketMQ slave appends to whatever it has, and its log is silently damaged if that
differs from its master's. So a slave first queries its master's broker for the start and end of its log, for its
segment size, and for the last records that the slave has. (Rules: replication.md 2.6.)
"""

from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

COMPARED_RECORDS = 16
"""Whole records at the end of a slave's log that are compared with its master's."""


class Extent(NamedTuple):
    """The start and end of a log in bytes, and its segment size; 0 if unknown."""

    start_offset: int
    end_offset: int
    segment_size: int


class RecordPrefix(NamedTuple):
    """A record, or the beginning of one."""

    physical_offset: int
    data: bytes


def misfit_of_extents(ours: Extent, masters: Extent) -> str | None:
    """Return why a slave's log cannot continue with its master's, None if nothing speaks against it."""
    if masters.segment_size and ours.segment_size != masters.segment_size:
        return (
            f"its segments have {ours.segment_size:,} bytes, those of the master have {masters.segment_size:,} "
            "(mappedFileSizeCommitLog)"
        )
    if ours.end_offset <= ours.start_offset:
        return None  # it is empty, and starts wherever the master does
    if ours.end_offset > masters.end_offset:
        return f"it ends at {ours.end_offset:,}, after the end of the master's log at {masters.end_offset:,}"
    if ours.end_offset < masters.start_offset:
        return f"it ends at {ours.end_offset:,}, before the start of the master's log at {masters.start_offset:,}"
    return None


def misfit_of_piece(ours: RecordPrefix, masters: bytes | None) -> str | None:
    """Return how a slave's record differs from its master's, None if it does not.

    Args:
        ours: a whole record, or the received part of the last one.
        masters: the whole record that the master has at that address, None if it has none.
    """
    if masters is None:
        return f"at {ours.physical_offset:,} it has a message where the master has none"
    if masters[: len(ours.data)] != ours.data:
        return f"at {ours.physical_offset:,} it has a different message than the master"
    return None


def to_compare(pieces: Sequence[RecordPrefix], masters: Extent) -> list[RecordPrefix]:
    """Return the pieces that can be requested from the master: it may have removed its oldest segments."""
    return [piece for piece in pieces if piece.physical_offset >= masters.start_offset]


# Where two logs diverge

BLOCK_SIZE = 1 << 20
MAX_COMPARED = 16 << 20
"""Bytes of one request."""
_SIZES = (1 << 14, 1 << 8, 1 << 2, 1)


class ComparedRange(NamedTuple):
    """A range of a log that is compared in blocks of one size; the last block may be shorter."""

    start_offset: int
    end_offset: int
    size: int

    def places(self) -> Iterator[tuple[int, int]]:
        """Yield address and size of each block."""
        for at in range(self.start_offset, self.end_offset, self.size):
            yield at, min(self.size, self.end_offset - at)


def find_fork(start: int, end: int) -> Generator[ComparedRange, Sequence[bool], int]:
    """Return the first address at which two logs with a common beginning differ; ``end`` if there is none.

    Yields the blocks to compare next; the caller sends for each whether it is the same in both. Logs that have diverged
    do not become equal again, since each record contains its own address and time.

    Cost: linear in the bytes after that address.
    """
    stop, low, high = end, start, min(start + BLOCK_SIZE, end)
    while stop > start:
        begin = max(start, stop - MAX_COMPARED)
        same = yield ComparedRange(begin, stop, BLOCK_SIZE)
        if True in same:
            last = len(same) - 1 - [*reversed(same)].index(True)
            low = min(begin + (last + 1) * BLOCK_SIZE, stop)
            high = min(low + BLOCK_SIZE, end)
            break
        stop = begin
    for size in _SIZES:
        if low >= high:
            break
        same = yield ComparedRange(low, high, size)
        if False not in same:
            return high
        low += [*same].index(False) * size
        high = min(low + size, high)
    return low
