"""A queue of a store as a log of entries: reads the entry at an offset, and caches the last ones.

Cost: constant for an entry that was just delivered to others, else one read for each of its messages.
"""

import contextlib
from collections import OrderedDict
from typing import TYPE_CHECKING

from mqtool.engine.pulsar.entries import Entry, entry_of, place_in_batch, usual_batch
from mqtool.errors import FormatError, NotFoundError
from mqtool.formats.stored_message import Parts, StoredMessage, parse_stored, stored_of, take_apart

if TYPE_CHECKING:
    from mqtool.engine.store.live_queue import Unit
    from mqtool.engine.store.message_store import MessageStore

_KEPT_BYTES = 1 << 25
_OVERHEAD = 500
"""Bytes that an entry takes beside its payload."""
_UNITS = 32


class KeptEntries:
    """A cache of the entries read last, of all queues: subscriptions that follow each other read each entry once."""

    def __init__(self, most: int = _KEPT_BYTES) -> None:
        """Keep at most ``most`` bytes."""
        self._most = most
        self._entries: OrderedDict[tuple[QueueLog, int], Entry] = OrderedDict()
        self._size = 0

    def get(self, queue: "QueueLog", offset: int) -> Entry | None:
        """Return the entry that starts at an offset, if it is cached."""
        return self._entries.get((queue, offset))

    def keep(self, queue: "QueueLog", entry: Entry) -> None:
        """Cache an entry, and drop the oldest ones."""
        if (queue, entry.offset) in self._entries:
            return
        self._entries[queue, entry.offset] = entry
        self._size += entry.length + _OVERHEAD
        while self._size > self._most and len(self._entries) > 1:
            _, oldest = self._entries.popitem(last=False)
            self._size -= oldest.length + _OVERHEAD


class QueueLog:
    """The entries of one queue."""

    def __init__(self, store: "MessageStore", topic: str, queue_id: int, kept: KeptEntries, most: int) -> None:
        """Make one; ``most`` is the maximum size of a message body."""
        self._store = store
        self._most = most
        self._no_batch = (0, 0)  # first offset and count that a message claimed although they are not a batch
        self._key = (topic, queue_id)
        self._kept = kept
        self._units: list[Unit] = []
        self._units_at = 0

    @property
    def start(self) -> int:
        """The first offset that is kept."""
        queue = self._store.queue(*self._key)
        return queue.min_offset(self._store.log.min_offset) if queue else 0

    @property
    def end(self) -> int:
        """The offset that the next message gets."""
        queue = self._store.queue(*self._key)
        return queue.next_offset if queue else 0

    def begins_after(self, log_offset: int) -> bool:
        """Tell whether there are messages, and all of them are in the commit log at an offset or after it."""
        queue, start = self._store.queue(*self._key), self.start
        units = list(queue.units(start, 1)) if queue is not None and start < self.end else []
        return bool(units) and units[0].physical_offset >= log_offset

    def entry(self, offset: int) -> Entry | None:
        """Return the entry that a message belongs to, None if the message is missing or cannot be read."""
        entry = self._kept.get(self, offset)
        if entry is None:
            record = self._record(offset)
            if record is None:
                return None
            number, count = place_in_batch(record.message.pairs)
            if number and (kept := self._kept.get(self, offset - number)) and kept.size == count:
                return kept
            entry = self._read(record, offset - number, count)
            self._kept.keep(self, entry)
        return entry

    def size_at(self, offset: int) -> tuple[int, int] | None:
        """Return the sizes of the entry at an offset, in messages of the queue and of its own, or None."""
        if not self.start <= offset < self.end:
            return None
        entry = self.entry(offset)
        return (entry.size, entry.messages) if entry is not None and entry.offset == offset else None

    def offset_at(self, timestamp: int) -> int:
        """Return the offset of the first message stored at a time (ms) or later."""
        queue = self._store.queue(*self._key)
        return self._store.offset_at(queue, timestamp) if queue else 0

    def next_readable(self, offset: int) -> int:
        """Return where to continue if no message can be read at an offset."""
        return max(offset + 1, self.start)

    def _read(self, record: StoredMessage, first: int, count: int) -> Entry:
        if count == 1 or self._no_batch == (first, count):
            return entry_of([record], self._most)
        parts = self._parts(first, count)
        if parts and (usual := usual_batch(parts, self._most)) is not None and usual.offset == first:
            return usual
        stored_ones = map(stored_of, parts) if parts else (self._record(first + number) for number in range(count))
        records: list[StoredMessage] = []
        for number, stored in enumerate(stored_ones):
            if (
                stored is None
                or stored.queue_offset != first + number
                or place_in_batch(stored.message.pairs) != (number, count)
                or _times_of(stored) != _times_of(record)  # copies that came one by one were entries of their own
            ):
                break
            records.append(stored)
        entry = entry_of(records if len(records) == count else [record], self._most)
        if entry.size < count:  # a copy of a message of a batch in another topic or queue, or a forged one
            self._no_batch = first, count
        return entry if entry.offset + entry.size > record.queue_offset else entry_of([record], self._most)

    def _parts(self, first: int, count: int) -> list[Parts]:
        """Return the messages of a batch, by one read, if they are consecutive in the log, as most are; else none."""
        queue = self._store.queue(*self._key)
        units = queue.units(first, count) if queue is not None and first >= self.start else []
        if len(units) == count:
            at, size = units[0].physical_offset, sum(unit.size for unit in units)
            if size <= self._most and units[-1].physical_offset + units[-1].size == at + size:
                with contextlib.suppress(FormatError):
                    parts = [*take_apart(self._store.log.read_bytes(at, size))]
                    return parts if len(parts) == count else []
        return []

    def _record(self, offset: int) -> StoredMessage | None:
        at = offset - self._units_at
        if not 0 <= at < len(self._units) or self._units[at].queue_offset != offset:
            queue = self._store.queue(*self._key)
            if queue is None or not queue.min_offset(self._store.log.min_offset) <= offset < queue.next_offset:
                return None
            self._units = list(queue.units(offset, _UNITS))
            self._units_at, at = offset, 0
            if not self._units or self._units[0].queue_offset != offset:
                return None
        unit = self._units[at]
        try:
            record = parse_stored(self._store.log.read(unit.physical_offset, unit.size))
        except (NotFoundError, FormatError):
            return None
        return record if record.queue_offset == offset else None


def _times_of(record: StoredMessage) -> tuple[int, int]:
    """Return when a message was sent and stored: all messages of a batch have the same times."""
    return record.message.born_timestamp, record.store_timestamp
