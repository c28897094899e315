"""Finds messages that were delivered before the broker was killed, although its saved progress does not include them.

The progress of delayed messages is saved at intervals. After a kill it is older than the log, which shows the rest: a
delivered message keeps the properties that it had while it waited.
"""

import zlib
from collections import Counter
from typing import TYPE_CHECKING

from mqtool.errors import FormatError, NotFoundError
from mqtool.formats.properties import find_property, probe_of
from mqtool.formats.property_names import REAL_QID, REAL_TOPIC, UNIQ_KEY
from mqtool.formats.stored_message import StoredMessage, parse_stored

if TYPE_CHECKING:
    from mqtool.engine.store.live_queue import QueueKey
    from mqtool.engine.store.message_store import MessageStore

_UNIQ_KEY, _REAL_TOPIC, _REAL_QUEUE_ID = probe_of(UNIQ_KEY), probe_of(REAL_TOPIC), probe_of(REAL_QID)
_READ_AT_ONCE = 256

_MessageKey = tuple[bytes, bytes, int, int, int]


class DeliveredBefore:
    """The messages that were delivered since a time; each is found once."""

    def __init__(self, store: "MessageStore", marked_by: str, since: int, after: int) -> None:
        """Prepare a search for messages with a property.

        Args:
            store: where they are.
            marked_by: name of the property; its value is the same as in the waiting message.
            since: they were stored at this time (ms) or later.
            after: all waiting messages are at this address or after it.
        """
        self._store = store
        self._probe = probe_of(marked_by)
        self._since = since
        self._after = after
        self._found: dict[QueueKey, Counter[_MessageKey]] = {}

    def takes(self, waiting: StoredMessage) -> bool:
        """Return whether a waiting message has been delivered; messages without a unique key are not distinguished."""
        properties = waiting.message.properties
        if not find_property(properties, _UNIQ_KEY):
            return False
        queue_id = find_property(properties, _REAL_QUEUE_ID)
        key = find_property(properties, _REAL_TOPIC).decode("utf-8", "replace"), int(queue_id or b"0")
        counts = self._found.get(key)
        if counts is None:
            counts = self._found[key] = self._of(key)
        copy_key = self._key_of(waiting)
        if not counts[copy_key]:
            return False
        counts[copy_key] -= 1
        return True

    def _of(self, key: "QueueKey") -> Counter[_MessageKey]:
        """Return the messages delivered into a queue, read from its end."""
        counts: Counter[_MessageKey] = Counter()
        queue = self._store.queue(*key)
        stop = queue.next_offset if queue is not None else 0
        while queue is not None and stop > 0:
            start = max(0, stop - _READ_AT_ONCE)
            for unit in reversed([unit for unit in queue.units(start, stop - start) if unit.queue_offset < stop]):
                timestamp = self._store.log.store_timestamp(unit.physical_offset)
                if unit.physical_offset < self._after or timestamp < self._since:
                    return counts
                try:
                    stored = parse_stored(self._store.log.record(unit.physical_offset))
                except (FormatError, NotFoundError):
                    return counts
                if find_property(stored.message.properties, self._probe):
                    counts[self._key_of(stored)] += 1
            stop = start
        return counts

    def _key_of(self, stored: StoredMessage) -> _MessageKey:
        message = stored.message
        properties = message.properties
        return (
            find_property(properties, _UNIQ_KEY),
            find_property(properties, self._probe),
            message.born_timestamp,
            message.reconsume_times,
            zlib.crc32(message.body),
        )
