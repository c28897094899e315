"""What ``topic``, ``group`` and ``offset`` share: queues and offsets as brokers and a store have them, as rows."""

import contextlib
import difflib
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from mqtool.commands._output import Output
from mqtool.errors import FormatError, NotFoundError

if TYPE_CHECKING:
    from mqtool.engine.client_runtime.admin_queries import GroupOffset, SubscriptionOnBroker
    from mqtool.engine.client_runtime.wire import Wire
    from mqtool.engine.store.dispatch import QueueKey
    from mqtool.engine.store.queue_view import QueueView
    from mqtool.engine.store.reader import StoreReader
    from mqtool.formats.bodies import TopicRoute
    from mqtool.formats.config_tables import OffsetKey, TopicConfig

OFFSET_COLUMNS = (
    "group", "topic", "queue_id", "lag", "consumer_offset", "max_offset", "broker_name", "min_offset",
)  # fmt: skip


async def route_of(wire: "Wire", topic: str) -> "TopicRoute":
    """Return which brokers have a topic.

    Raises:
        NotFoundError: none has; the sentence lists near names.
    """
    from mqtool.engine.client import calls

    route = await wire.request_name_server(calls.route(topic))
    if route is None:
        names = await wire.request_name_server(calls.topic_names())
        near = ", ".join(difflib.get_close_matches(topic, names, 5))
        raise NotFoundError(f"the topic {topic} does not exist{f'; similar: {near}' if near else ''}")
    return route


def tell_log_alone(store: "StoreReader", output: Output) -> None:
    """Say so where a store is only the folder of a log, which has no tables."""
    for remark in store.paths.remarks:
        output.remark(remark)


def stored_topics(store: "StoreReader") -> "dict[str, TopicConfig]":
    """Return the topics of a store's ``topics.json``, none where it has no such table."""
    from mqtool.formats.config_tables import topics

    return topics(store.config_table("topics.json") or {})


def stored_queues(store: "StoreReader", topics: Collection[str]) -> "dict[QueueKey, QueueView | None]":
    """Return the queues of topics, in order; None stands for one that their settings name and that holds nothing."""
    from mqtool.engine.store.queue_view import open_queue, queue_keys

    keys = {key for key in queue_keys(store) if key[0] in topics}
    for topic, config in stored_topics(store).items():
        if topic in topics:
            keys.update((topic, number) for number in range(max(config.read_queue_count, config.write_queue_count)))
    return {key: open_queue(store, *key) for key in sorted(keys)}


def last_timestamp(store: "StoreReader", queue: "QueueView | None") -> int:
    """Return the store time of the last message of a queue in ms, 0 where there is none, as brokers do."""
    newest = queue.newest() if queue else None
    if newest is not None:
        with contextlib.suppress(FormatError, NotFoundError):
            return store.message_at(newest).store_timestamp
    return 0


# Subscriptions of Pulsar clients


def stored_subscriptions(store: "StoreReader") -> "list[SubscriptionOnBroker]":
    """Return the Pulsar subscriptions that a store keeps."""
    from mqtool.engine.client_runtime.admin_queries import SubscriptionOnBroker
    from mqtool.engine.pulsar.cursor_files import load_cursors
    from mqtool.engine.store.queue_view import open_queue
    from mqtool.formats.pulsar_subscriptions import SubscriptionState

    subscriptions = []
    for key, (cursor, name, *_) in load_cursors(store.paths.config):
        queue = open_queue(store, key.topic, key.queue_id)
        backlog = cursor.open_before(queue.max_offset) if queue else 0
        state = SubscriptionState(*key, name, None, None, cursor.next_offset, backlog, len(cursor.spans), None)
        subscriptions.append(SubscriptionOnBroker(None, state))
    return subscriptions


def consumer_counts(subscriptions: "Collection[SubscriptionOnBroker]") -> dict[tuple[str | None, str], int]:
    """Return how many Pulsar consumers each group has on each broker; one of several queues counts once."""
    names: dict[tuple[str | None, str], set[str]] = {}
    for broker_name, state in subscriptions:
        names.setdefault((broker_name, state.group), set()).update(state.consumers or ())
    return {key: len(consumers) for key, consumers in names.items()}


# How far groups have read


def offset_row(offset: "GroupOffset") -> dict[str, Any]:
    """Return how far a group has read a queue as a row."""
    return {
        "group": offset.group,
        "topic": offset.topic,
        "broker_name": offset.broker_name,
        "queue_id": offset.queue_id,
        "min_offset": offset.min_offset,
        "consumer_offset": offset.consumer_offset,
        "max_offset": offset.max_offset,
        "lag": offset.lag,
    }


def stored_offsets(
    store: "StoreReader", is_wanted: "Callable[[OffsetKey], bool]", nameless: list[str] | None = None
) -> "list[GroupOffset]":
    """Return how far groups have read, by the offsets that a store keeps.

    Args:
        store: the store.
        is_wanted: whether the offset with a topic, group and queue id is returned.
        nameless: takes the names of entries that name no topic and group, which brokers skip.
    """
    from mqtool.engine.client_runtime.admin_queries import group_offsets
    from mqtool.engine.store.queue_view import open_queue, queue_keys
    from mqtool.formats.config_tables import OFFSET_TABLES, consumer_offsets

    nameless = [] if nameless is None else nameless
    tables = [consumer_offsets(store.config_table(name) or {}, nameless) for name in OFFSET_TABLES]
    offsets = {key: offset for table in tables for key, offset in table.items() if is_wanted(key)}
    topics = {topic for topic, _, _ in offsets}
    keys = {key for key in queue_keys(store) if key[0] in topics}
    ends = {}
    for key in keys | {(topic, queue_id) for topic, _, queue_id in offsets}:
        queue = open_queue(store, *key)
        ends[key] = (queue.min_offset, queue.max_offset) if queue else (0, 0)
    return group_offsets(offsets, ends, None)
