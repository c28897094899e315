"""What ``topic``, ``group`` and ``offset`` share: brokers asked one by one, queues as they and a store have them."""

import contextlib
import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from mqtool.commands._options import matching
from mqtool.errors import FormatError, NotFoundError, UnavailableError, UsageError

if TYPE_CHECKING:
    from mqtool.engine.client.questions import Question
    from mqtool.engine.client_runtime import Wire
    from mqtool.engine.store.queue_view import QueueView
    from mqtool.engine.store.reader import StoreReader
    from mqtool.formats.bodies import TopicRoute
    from mqtool.formats.config_tables import OffsetKey, TopicConfig

T = TypeVar("T")

OFFSET_COLUMNS = (
    "topic", "queue_id", "consumer_offset", "max_offset", "lag", "group", "broker_name", "min_offset",
)  # fmt: skip


class Master(NamedTuple):
    """A broker that may be written to."""

    cluster: str
    broker_name: str
    address: str


async def masters(wire: "Wire", broker_name: str | None = None) -> list[Master]:
    """Return the masters that are registered, or the one of a name.

    Raises:
        UnavailableError: there is none.
        NotFoundError: none has this name.
    """
    from mqtool.engine.client import questions
    from mqtool.engine.client.routes import MASTER

    info = await wire.ask_name_server(questions.clusters())
    found = sorted(
        Master(broker.cluster, name, broker.addresses[MASTER])
        for name, broker in info.brokers.items()
        if MASTER in broker.addresses
    )
    if not found:
        raise UnavailableError(f"no broker is registered with {', '.join(wire.name_servers)}")
    if broker_name is None:
        return found
    named = [master for master in found if master.broker_name == broker_name]
    if not named:
        raise NotFoundError(
            f"no broker is named {broker_name}; there are {', '.join(master.broker_name for master in found)}"
        )
    return named


async def ask_each(
    wire: "Wire", brokers: Iterable[Master], question: "Callable[[], Question[T]]"
) -> list[tuple[Master, T]]:
    """Ask all brokers the same and return each with its answer."""
    from mqtool.engine.client_runtime import together

    brokers = list(brokers)
    answers = await together(wire.ask(broker.address, question()) for broker in brokers)
    return list(zip(brokers, answers, strict=True))


async def route_of(wire: "Wire", topic: str) -> "TopicRoute":
    """Return which brokers have a topic.

    Raises:
        NotFoundError: none has; the sentence lists near names.
    """
    from mqtool.engine.client import questions

    route = await wire.ask_name_server(questions.route(topic))
    if route is None:
        names = await wire.ask_name_server(questions.topic_names())
        near = ", ".join(difflib.get_close_matches(topic, names, 5))
        raise NotFoundError(f"there is no topic {topic}{f'; near it: {near}' if near else ''}")
    return route


def check_group(group: str, names: Collection[str]) -> None:
    """Refuse a group that is not there.

    Raises:
        NotFoundError: nor is one by this pattern; it lists near names.
        UsageError: it is a pattern.
    """
    if group not in names:
        matching((group,), names, "group")
        raise UsageError(f"give the group by its name, not by a pattern: {group}")


def stored_topics(store: "StoreReader") -> "dict[str, TopicConfig]":
    """Return the topics of a store's ``topics.json``, none where it has no such table."""
    from mqtool.formats.config_tables import topics

    return topics(store.config_table("topics.json") or {})


def stored_queues(store: "StoreReader", topic: str) -> "dict[int, QueueView | None]":
    """Return the queues of a topic by id; None stands for one that its settings name and that holds nothing."""
    from mqtool.engine.store.queue_view import open_queue, queue_keys

    config = stored_topics(store).get(topic)
    ids = {queue_id for name, queue_id in queue_keys(store) if name == topic}
    if config:
        ids.update(range(max(config.read_queue_count, config.write_queue_count)))
    return {queue_id: open_queue(store, topic, queue_id) for queue_id in sorted(ids)}


def last_timestamp(store: "StoreReader", queue: "QueueView | None") -> int:
    """Return the store time of the last message of a queue in ms, 0 where there is none, as brokers do."""
    newest = queue.newest() if queue else None
    if newest is not None:
        with contextlib.suppress(FormatError, NotFoundError):
            return store.message_at(newest).store_timestamp
    return 0


# How far groups have read


async def offset_rows(wire: "Wire", broker: Master, is_wanted: "Callable[[OffsetKey], bool]") -> list[dict[str, Any]]:
    """Return a row for each queue of a broker whose topic a group has read, of the groups that are wanted.

    A queue of which nothing was committed counts from its first message: ``consumer_offset`` is None.
    """
    from mqtool.engine.client import questions
    from mqtool.engine.client_runtime import together

    offsets = await wire.ask(broker.address, questions.consumer_offsets())
    offsets = {key: offset for key, offset in offsets.items() if is_wanted(key)}
    topics = sorted({topic for topic, _, _ in offsets})
    answers = await together(wire.ask(broker.address, questions.topic_queues(topic)) for topic in topics)
    ends = {
        (topic, queue_id): (queue.min_offset, queue.max_offset)
        for topic, queues in zip(topics, answers, strict=True)
        for queue_id, queue in queues.items()
    }
    return _offset_rows(offsets, ends, broker.broker_name)


def stored_offset_rows(store: "StoreReader", is_wanted: "Callable[[OffsetKey], bool]") -> list[dict[str, Any]]:
    """Return such rows of the offsets that a store keeps."""
    from mqtool.engine.store.queue_view import open_queue, queue_keys
    from mqtool.formats.config_tables import consumer_offsets

    offsets = consumer_offsets(store.config_table("consumerOffset.json") or {})
    offsets = {key: offset for key, offset in offsets.items() if is_wanted(key)}
    topics = {topic for topic, _, _ in offsets}
    keys = {key for key in queue_keys(store) if key[0] in topics}
    ends = {}
    for key in keys | {(topic, queue_id) for topic, _, queue_id in offsets}:
        queue = open_queue(store, *key)
        ends[key] = (queue.min_offset, queue.max_offset) if queue else (0, 0)
    return _offset_rows(offsets, ends, None)


def _offset_rows(
    offsets: "Mapping[OffsetKey, int]", ends: Mapping[tuple[str, int], tuple[int, int]], broker_name: str | None
) -> list[dict[str, Any]]:
    queue_ids: dict[str, set[int]] = {}
    for topic, queue_id in ends:
        queue_ids.setdefault(topic, set()).add(queue_id)
    pairs = {(topic, group) for topic, group, _ in offsets}
    keys = {(topic, group, queue_id) for topic, group in pairs for queue_id in queue_ids.get(topic, ())} | {*offsets}
    rows = []
    for topic, group, queue_id in sorted(keys, key=lambda key: (key[1], key)):
        offset = offsets.get((topic, group, queue_id))
        low, high = ends.get((topic, queue_id), (None, None))
        rows.append(
            {
                "group": group,
                "topic": topic,
                "broker_name": broker_name,
                "queue_id": queue_id,
                "min_offset": low,
                "consumer_offset": offset,
                "max_offset": high,
                "lag": None if high is None else max(high - ((low or 0) if offset is None else offset), 0),
            }
        )
    return rows
