"""A pull in a running broker: the records of a queue from an offset on, as they are in the log.

The counterpart of ``pull``, which reads a store without a broker; tests compare the two. This one keeps RocketMQ's
limits. (Rules: remoting.md 5.2 to 5.4. RocketMQ: ``DefaultMessageStore.getMessage``.)
"""

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mqtool.engine.store.pull import StoreStatus
from mqtool.formats import commit_log, consume_queue
from mqtool.formats.filters import Sql92Filter
from mqtool.formats.properties import parse_properties
from mqtool.formats.stored_message import parse_stored

if TYPE_CHECKING:
    from mqtool.engine.store.live_queue import LiveQueue, Unit
    from mqtool.engine.store.message_store import MessageStore

MAX_UNITS = 800
"""Most units that one pull examines."""

PHYSICAL_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
"""Memory of this machine, in bytes."""
_IN_MEMORY = PHYSICAL_MEMORY * 40 // 100
"""Bytes at the end of the log that the system probably has in memory."""


def is_in_memory(store: "MessageStore", physical_offset: int) -> bool:
    """Return whether a message is likely to be read without waiting for the disk."""
    return physical_offset >= store.log.end_offset - _IN_MEMORY


class PullLimits(NamedTuple):
    """How much one pull may return, except for its first message."""

    messages: int
    bytes: int


IN_MEMORY = PullLimits(32, 256 << 10)
ON_DISK = PullLimits(8, 64 << 10)
"""For messages that have to be read from the disk first."""


class PullFilter(NamedTuple):
    """The filter of a consumer for a queue."""

    codes: frozenset[int] | None = None  # hashes of tags; None: all
    sql92: Sql92Filter | None = None
    most_units: int = MAX_UNITS  # examined by one pull: fewer where it takes long to tell

    def matches_code(self, tags_code: int) -> bool:
        """Return whether a unit may lead to a wanted message."""
        if self.codes is None or tags_code in self.codes or tags_code < -0x80000000:
            return True  # such small codes are places in the queue's extension: only the client can decide
        return tags_code > 0x7FFFFFFF and (tags_code + 0x80000000 & 0xFFFFFFFF) - 0x80000000 in self.codes

    def matches_record(self, record: memoryview) -> bool:
        """Return whether a message whose unit matches is wanted."""
        return self.sql92 is None or self.sql92(parse_properties(parse_stored(record).message.properties))


EVERYTHING = PullFilter()


class GetMessageResult(NamedTuple):
    """The result of a pull; ``parts`` hold the concatenated records."""

    status: StoreStatus
    next_offset: int
    min_offset: int
    max_offset: int
    parts: Sequence[bytes] = ()
    message_count: int = 0
    last_start: int = -1
    """Address of the last record, -1 if there is none."""


def fetch(
    store: "MessageStore", queue: "LiveQueue | None", offset: int, max_count: int, wanted: PullFilter = EVERYTHING
) -> GetMessageResult:
    """Return the records of a queue from an offset on, and where to continue.

    Args:
        store: whose queue it is.
        queue: None if the store has no such queue.
        offset: queue offset to start with.
        max_count: maximum number of messages, at least one.
        wanted: other messages are skipped.
    """
    if queue is None:
        return GetMessageResult(StoreStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
    low, high = queue.min_offset(store.log.min_offset), queue.next_offset
    if high == 0:
        return GetMessageResult(StoreStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
    if offset < low:
        return GetMessageResult(StoreStatus.OFFSET_TOO_SMALL, low, low, high)
    if offset == high:
        return GetMessageResult(StoreStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
    if offset > high:
        return GetMessageResult(StoreStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
    log, codes, sql92 = store.log, wanted.codes, wanted.sql92
    first, end = log.min_offset, log.end_offset
    on_disk_before = end - _IN_MEMORY
    status = StoreStatus.NO_MATCHED_MESSAGE
    next_offset = offset
    count = total = 0
    runs: list[tuple[int, int]] = []  # adjacent records make one part
    run, run_end, last_start = -1, -1, -1
    for place, at, size, code, batch_size in _units(queue, offset, max_count, wanted.most_units):
        limits = ON_DISK if at < on_disk_before else IN_MEMORY
        if count and (count + batch_size > max_count or count >= limits.messages or total + size > limits.bytes):
            next_offset = place
            break
        next_offset = place + batch_size
        if size == consume_queue.PRE_BLANK_SIZE or (codes is not None and not wanted.matches_code(code)):
            continue
        if at < first or at + size > end or size < commit_log.MIN_SIZE:
            if not count:
                status = StoreStatus.MESSAGE_WAS_REMOVING
            continue
        if sql92 is not None and not wanted.matches_record(log.read(at, size)):
            continue
        status = StoreStatus.FOUND
        count += batch_size
        total += size
        if at != run_end:
            if run >= 0:
                runs.append((run, run_end - run))
            run = at
        run_end, last_start = at + size, at
    if run >= 0:
        runs.append((run, run_end - run))
    if next_offset == offset:
        return GetMessageResult(StoreStatus.OFFSET_FOUND_NULL, high, low, high)
    return GetMessageResult(status, next_offset, low, high, log.read_each(runs), count, last_start)


def _units(queue: "LiveQueue", offset: int, max_count: int, left: int) -> "Iterator[Unit]":
    """Yield the units that one pull examines, reading no more of them than it may need."""
    limit = min(max(max_count, 1), IN_MEMORY.messages) + 1  # most pulls end at the first surplus unit
    while left > 0 and (units := queue.units(offset, min(limit, left))):
        yield from units
        offset = units[-1].queue_offset + units[-1].batch_size
        left -= len(units)
        limit = left
