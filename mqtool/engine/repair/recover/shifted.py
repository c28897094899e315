"""Choice among several ways to join a record whose end was shifted, according to the rest of the store.

Inserted bytes cut a record in two. No CRC covers its head, its topic and its properties, so it can
often be read at whichever byte the parts are joined. The units of its queues and the index show what it said, and the
next records what such records look like. If nothing decides, the record is not guessed.

Cost: for each way to join a record a lookup in its queues and in the index.
"""

from collections.abc import Sequence
from typing import NamedTuple

from mqtool.engine.store.dispatch import QueueKey, dispatch
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import commit_log as layout
from mqtool.formats import consume_queue_ext, scan
from mqtool.formats.message import message_at
from mqtool.formats.record_head import HEADS, sys_flag
from mqtool.formats.scan import MessageTable

_MAX_JOINS = 256
"""If a record can be joined in more ways than this, a decision is unlikely."""
_HOSTS_AT = layout.offset_in_head("born_address")
_BEHIND_HOSTS = 16
_BODY_SIZE = 4  # bytes, the last of these


class _Weight(NamedTuple):
    """The evidence for a join."""

    alike: int  # bytes of its head that are those of a record after it
    told: int  # parts of its contents that the rest of the store confirms


class Ways:
    """The ways to join one record, and the evidence for each."""

    def __init__(self, reader: StoreReader, at: int, behind: MessageTable) -> None:
        self._reader = reader
        self._at = at
        index = (file for file in reader.index_files if file.shape)
        self._index = [
            file for file in index if file.header.begin_physical_offset <= at <= file.header.end_physical_offset
        ]
        self._messages = [message_at(behind, row) for row in range(len(behind))]
        self._heads = [_head(behind.record(row)) for row in range(len(behind))]
        self._pairs = {pair for message in self._messages for pair in message.properties.items()}
        self._names = {name for name, _ in self._pairs}

    def decided(self, joins: Sequence[bytes]) -> bytes | None:
        """Return the right one of some sound records, None if nothing decides or the store contradicts it.

        If two differ only in addresses of hosts, the first is taken.
        """
        if len(joins) > _MAX_JOINS:
            return None
        weights = {join: weight for join in joins if (weight := self._weight(join)) is not None}
        if not weights:
            return None
        best = max(weights.values())
        left = [join for join, weight in weights.items() if weight == best]
        return left[0] if len({_but_hosts(join) for join in left}) == 1 else None

    def _weight(self, record: bytes) -> _Weight | None:
        """Return the evidence for a record, None if queues or index contradict it."""
        table = scan.scan(memoryview(record), self._at, limit=1).table
        message = message_at(table, 0)
        derived = dispatch(table, self._reader.delay_levels)
        score = 0
        units = derived.units
        for queue, first, last in units.stretches:
            for row in range(first, last):
                is_told = self._is_told(queue, int(units.queue_offset[row]), int(units.tags_code[row]))
                if is_told is False:
                    return None
                score += bool(is_told)
        if self._index:
            for key_hash in derived.entries.key_hash.tolist():
                if not any(self._at in file.find(key_hash) for file in self._index):
                    return None
                score += 1
        score += any(stored.topic == message.topic for stored in self._messages)
        score += sum((pair in self._pairs) + (pair[0] in self._names) for pair in message.properties.items())
        return _Weight(self._alike(_head(record)), score)

    def _is_told(self, queue: QueueKey, offset: int, code: int) -> bool | None:
        """Return whether a unit confirms a place; a unit that leads here with another tag contradicts it."""
        batches = self._reader.batch_consume_queues.get(queue)
        if batches is not None:
            return batches.offset_at(self._at) == offset or None
        units_of_queue = self._reader.consume_queues.get(queue)
        if units_of_queue is None or units_of_queue.address_at(offset) != self._at:
            return None
        stored_code = int(units_of_queue.units(offset, offset + 1)["tags_code"][0])
        return stored_code == code or bool(consume_queue_ext.is_address(stored_code))

    def _alike(self, head: bytes) -> int:
        """Return how many bytes of a head agree with the most similar of the next records."""
        return max((_same(head, other) for other in self._heads), default=0)


def _same(head: bytes, other: bytes) -> int:
    """Return how many bytes of two heads are the same; hosts of different lengths have none."""
    pairs = [
        (head[:_HOSTS_AT], other[:_HOSTS_AT]),
        (head[-_BEHIND_HOSTS:-_BODY_SIZE], other[-_BEHIND_HOSTS:-_BODY_SIZE]),
    ]
    if len(head) == len(other):
        pairs.append((head[_HOSTS_AT:-_BEHIND_HOSTS], other[_HOSTS_AT:-_BEHIND_HOSTS]))
    return sum(byte == two for pair in pairs for byte, two in zip(*pair, strict=True))


def _but_hosts(record: bytes) -> tuple[bytes, int, bytes]:
    """Return a record without the addresses of its hosts."""
    head = _head(record)
    stored = message_at(scan.scan(memoryview(record), 0, limit=1).table, 0).store_timestamp
    return head[:_HOSTS_AT], stored, record[len(head) - _BEHIND_HOSTS :]


def _head(record: bytes) -> bytes:
    """Return the head of a record, up to its body."""
    return record[: HEADS[layout.head_form(sys_flag(record))].size]
