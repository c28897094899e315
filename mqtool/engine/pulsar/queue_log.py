"""A queue of a store as a log of entries: what there is at an offset, with the last ones kept in memory.

Cost: constant for an entry that others have just been given, else one read for each of its messages.
"""

from typing import TYPE_CHECKING

from mqtool.engine.pulsar.entries import Entry, entry_of, place_in_batch
from mqtool.errors import FormatError, NotFoundError
from mqtool.formats.properties import pairs_of
from mqtool.formats.stored_message import StoredMessage, parse_stored

if TYPE_CHECKING:
    from mqtool.engine.store.live_queue import Unit
    from mqtool.engine.store.message_store import MessageStore

_KEPT_BYTES = 1 << 22
_UNITS = 32


class QueueLog:
    """The entries of one queue."""

    def __init__(self, store: "MessageStore", topic: str, queue_id: int) -> None:
        self._store = store
        self._key = (topic, queue_id)
        self._kept: dict[int, Entry] = {}
        self._kept_bytes = 0
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

    def entry(self, offset: int) -> Entry | None:
        """Return the entry that a message belongs to, None where the message is not there or cannot be read."""
        entry = self._kept.get(offset)
        if entry is None:
            record = self._record(offset)
            if record is None:
                return None
            number, count = place_in_batch(pairs_of(record.message.properties))
            if number and (found := self._kept.get(offset - number)) and found.size == count:
                return found
            entry = self._read(record, offset - number, count)
            self._keep(entry)
        return entry

    def size_at(self, offset: int) -> tuple[int, int] | None:
        """Return of how many messages of the queue, and of its own, the entry is that begins at an offset, or None."""
        if not self.start <= offset < self.end:
            return None
        entry = self.entry(offset)
        return (entry.size, entry.messages) if entry is not None and entry.offset == offset else None

    def offset_at(self, timestamp: int) -> int:
        """Return the offset of the first message stored at a time (ms) or later."""
        queue = self._store.queue(*self._key)
        return self._store.offset_at(queue, timestamp) if queue else 0

    def next_readable(self, offset: int) -> int:
        """Return where to go on where no message can be read at an offset."""
        return max(offset + 1, self.start)

    def _read(self, record: StoredMessage, first: int, count: int) -> Entry:
        if count == 1:
            return entry_of([record])
        records = [self._record(at) for at in range(first, first + count)]
        if all(
            one is not None and place_in_batch(pairs_of(one.message.properties)) == (number, count)
            for number, one in enumerate(records)
        ):
            return entry_of([one for one in records if one is not None])
        return entry_of([record])  # a copy of one of a batch, in another topic or queue

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

    def _keep(self, entry: Entry) -> None:
        self._kept[entry.offset] = entry
        self._kept_bytes += entry.length
        while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
            first = next(iter(self._kept))
            self._kept_bytes -= self._kept.pop(first).length
