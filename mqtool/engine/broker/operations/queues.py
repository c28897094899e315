"""Queries about queues: their offsets, and store times of messages."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mqtool.engine.store.message_store import MessageStore


def ends_of(store: "MessageStore", topic: str, queue_id: int) -> tuple[int, int]:
    """Return the first queue offset and the next one; 0 and 0 if there is no such queue."""
    queue = store.queue(topic, queue_id)
    return (queue.min_offset(store.log.min_offset), queue.next_offset) if queue else (0, 0)


def next_offset_of(store: "MessageStore", topic: str, queue_id: int) -> int:
    """Return the queue offset that the next message gets."""
    queue = store.queue(topic, queue_id)
    return queue.next_offset if queue else 0


def store_timestamp(store: "MessageStore", topic: str, queue_id: int, queue_offset: int) -> int:
    """Return when the message at a queue offset was stored (ms), -1 if there is none."""
    queue = store.queue(topic, queue_id)
    if queue is None or not 0 <= queue_offset < queue.next_offset:
        return -1
    units = queue.units(queue_offset, 1)
    return store.log.store_timestamp(units[0].physical_offset) if units else -1
