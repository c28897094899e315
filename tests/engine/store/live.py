"""Stores of a running broker for tests: opened, filled with the messages of other stores, closed."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mqtool.engine.store.append_result import AppendResult, PutStatus
from mqtool.engine.store.live_queue import QueueKey, Unit
from mqtool.engine.store.message_store import MessageStore
from mqtool.engine.store.paths import StoreConfig
from mqtool.formats import record_schemas
from mqtool.formats.hosts import parse_host
from mqtool.formats.new_message import NewMessage
from mqtool.formats.properties import CRC_SIZE, PAIR_SEPARATOR
from tests import builders

NOW = builders.STORED
SMALL = builders.StoreSizes()


def half_full(_folder: Path) -> float:
    """Say that a disk is half full."""
    return 0.5


@contextlib.contextmanager
def opened(root: Path, now: int = NOW, **given: Any) -> Iterator[MessageStore]:
    """Give an open store of small files, and close it."""
    config = StoreConfig({**SMALL.settings, **given.pop("settings", {})})
    store = MessageStore(root, config, now=now, usage=given.pop("usage", half_full), **given)
    with contextlib.closing(store):
        yield store


def new_message(topic: str = "TopicTest", body: bytes = b"body", **given: Any) -> NewMessage:
    """Return a message; ``pairs`` are its properties."""
    text = builders.properties(given.pop("pairs", {}))
    hosts = {"born_host": parse_host(builders.BORN_HOST), "store_host": parse_host(builders.STORE_HOST)}
    return NewMessage(**{"topic": topic, "queue_id": 0, "body": body, "properties": text, **hosts, **given})


def of_draft(draft: builders.Draft) -> NewMessage:
    """Return the message of a draft."""
    return NewMessage(
        draft.topic,
        draft.queue_id,
        draft.body,
        builders.properties(draft.pairs, draft.trailing),
        sys_flag=draft.sys_flag,
        born_timestamp=builders.BORN,
        born_host=parse_host(draft.born_host),
        store_host=parse_host(draft.store_host),
    )


ADDED = ("INNER_BASE", "INNER_MULTI_QUEUE_OFFSET")
"""Properties that a broker adds as it stores a message."""


def of_record(record: bytes, has_crc: bool = False) -> tuple[NewMessage, int]:
    """Return the message of a record as it was before it was stored, and when it was stored (ms)."""
    head = record_schemas.parse_message(record)
    text = head.properties[:-CRC_SIZE] if has_crc else head.properties
    separator = PAIR_SEPARATOR.encode()
    pairs = text.split(separator)
    kept = separator.join(pair for pair in pairs if not pair.startswith(tuple(name.encode() for name in ADDED)))
    message = NewMessage(
        topic=head.topic.decode(),
        queue_id=head.queue_id,
        body=head.body,
        properties=kept,
        flag=head.flag,
        sys_flag=head.sys_flag,
        born_timestamp=head.born_timestamp,
        born_host=(head.born_address, head.born_port),
        store_host=(head.store_address, head.store_port),
        reconsume_times=head.reconsume_times,
        prepared_transaction_offset=head.prepared_transaction_offset,
    )
    return message, head.store_timestamp


def append_all(store: MessageStore, messages: Sequence[NewMessage], now: int = NOW) -> list[AppendResult]:
    """Store messages, a millisecond apart; all must be taken."""
    results = [store.append(message, now + number) for number, message in enumerate(messages)]
    assert {one.status for one in results} <= {PutStatus.PUT_OK}
    return results


def units_of(store: MessageStore, key: QueueKey) -> list[Unit]:
    """Return all units of a queue."""
    queue = store.queue(*key)
    assert queue
    found: list[Unit] = []
    while len(found) < queue.next_offset:
        found += queue.units(len(found), 1000)
    return found


def delete_topic(store: MessageStore, topic: str) -> int:
    """Have all queues of a topic removed at once, and return how many there were."""
    count = sum(name == topic for name, _ in store.queues())
    if remove := store.let_go_topic(topic):
        store.write_units()
        remove()
    return count
