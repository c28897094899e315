"""``mqtool topic``."""

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mqtool.commands._admin import (
    last_timestamp,
    stored_offsets,
    stored_queues,
    stored_subscriptions,
    stored_topics,
    tell_log_alone,
)
from mqtool.commands._brokers import Brokers
from mqtool.commands._change import Target, broker_option, target_options
from mqtool.commands._completion import TOPIC_NAME
from mqtool.commands._options import matching, output_option
from mqtool.commands._output import Output
from mqtool.commands._rows import topic_kind
from mqtool.commands._wire import source_options
from mqtool.errors import Status

if TYPE_CHECKING:
    from mqtool.engine.client.calls import Members
    from mqtool.engine.client_runtime.admin_client import AdminClient
    from mqtool.engine.client_runtime.admin_queries import GroupOffset, SubscriptionOnBroker
    from mqtool.engine.store.reader import StoreReader
    from mqtool.formats.config_tables import TopicConfig

_COLUMNS = (
    "topic",
    "kind",
    "read_queue_count",
    "write_queue_count",
    "perm",
    "broker_name",
    "filter_type",
    "attributes",
)
_QUEUE_COLUMNS = ("topic", "queue_id", "min_offset", "max_offset", "messages", "last_time", "broker_name")
_SUBSCRIPTION_COLUMNS = (
    "topic", "queue_id", "group", "protocol", "type", "consumers", "consumer_offset", "backlog", "unacked",
    "broker_name",
)  # fmt: skip
_PERMS = {"rw": 6, "r": 4, "w": 2}


class TopicSubscription(NamedTuple):
    """Who reads a queue: a RocketMQ group, or a Pulsar subscription."""

    topic: str
    broker_name: str | None
    queue_id: int
    group: str
    protocol: str
    type: str | None
    consumers: int | None
    consumer_offset: int | None
    backlog: int | None
    unacked: int | None


@click.group(short_help="List, show, create and delete topics.")
def command() -> None:
    """List, show, create and delete topics: of brokers with -n, or of a store."""


@command.command("list", short_help="List topics.")
@click.argument("patterns", nargs=-1, type=TOPIC_NAME, metavar="[GLOB]...")
@source_options
@output_option
def list_(patterns: tuple[str, ...], source: "Brokers | StoreReader", output: Output) -> int:
    """List topics with their settings, one row for each broker that has the topic; all, or those that match.

    perm is 6 if a topic is readable and writable, 4 if only readable, 2 if only writable.
    """
    output.columns = _COLUMNS
    if isinstance(source, Brokers):
        configs: list[tuple[str | None, TopicConfig]] = [*source.admin(lambda admin: admin.topics())]
    else:
        tell_log_alone(source, output)
        configs = [(None, config) for config in stored_topics(source).values()]
    names = matching(patterns, {config.topic for _, config in configs}, "topic") if patterns else None
    rows = [_row(broker_name, config) for broker_name, config in configs if names is None or config.topic in names]
    # What a broker makes for itself comes last, so that a person's own topics are not lost in it.
    for row in sorted(rows, key=lambda row: (row["kind"] == "system", row["topic"], row["broker_name"] or "")):
        output.row(row)
    return Status.OK


def _row(broker_name: str | None, config: "TopicConfig") -> dict[str, Any]:
    fields = dataclasses.asdict(config)
    return {"topic": fields.pop("topic"), "kind": topic_kind(config.topic), "broker_name": broker_name, **fields}


@command.command(short_help="Show the queues of topics, or who reads them.")
@click.argument("patterns", nargs=-1, required=True, type=TOPIC_NAME, metavar="TOPIC...")
@click.option("--subscriptions", is_flag=True, help="Show the groups and the Pulsar subscriptions that read them.")
@source_options
@output_option
def show(patterns: tuple[str, ...], subscriptions: bool, source: "Brokers | StoreReader", output: Output) -> int:
    """Show the queues of topics: their first offset, the one after their last, and when they were last written to.

    With --subscriptions: who reads each queue, RocketMQ consumer groups and Pulsar subscriptions. Shows their type,
    the number of their consumers, the first unacknowledged message (consumer_offset), how many messages are
    unacknowledged (backlog), and how many of those consumers have received (unacked; Shared and Key_Shared only).
    """
    output.columns = _SUBSCRIPTION_COLUMNS if subscriptions else _QUEUE_COLUMNS
    if subscriptions:
        if isinstance(source, Brokers):
            rows = source.admin(lambda admin: _subscriptions_of_brokers(admin, patterns))
        else:
            rows = _subscriptions_of_store(source, patterns)
    elif isinstance(source, Brokers):
        rows = source.admin(lambda admin: _queues_of_brokers(admin, patterns))
    else:
        rows = _queues_of_store(source, patterns)
    for row in rows:
        output.row(row)
    return Status.OK


async def _subscriptions_of_brokers(admin: "AdminClient", patterns: tuple[str, ...]) -> list[dict[str, Any]]:
    names = matching(patterns, {config.topic for _, config in await admin.topics()}, "topic")
    offsets = [offset for offset in await admin.offsets() if offset.topic in names]
    of_pulsar = [reader for reader in await admin.pulsar_subscriptions() if reader.state.topic in names]
    members = await admin.members_of({(offset.broker_name, offset.group) for offset in offsets})
    return _subscription_rows(offsets, of_pulsar, members)


def _subscriptions_of_store(store: "StoreReader", patterns: tuple[str, ...]) -> list[dict[str, Any]]:
    from mqtool.engine.store.queue_view import queue_keys

    names = matching(patterns, {name for name, _ in queue_keys(store)} | stored_topics(store).keys(), "topic")
    offsets = stored_offsets(store, lambda key: key[0] in names)
    of_pulsar = [reader for reader in stored_subscriptions(store) if reader.state.topic in names]
    return _subscription_rows(offsets, of_pulsar, None)


def _subscription_rows(
    offsets: "list[GroupOffset]",
    of_pulsar: "list[SubscriptionOnBroker]",
    members: "dict[tuple[str | None, str], Members | None] | None",
) -> list[dict[str, Any]]:
    """Return a row for each RocketMQ group and each Pulsar subscription in a queue."""
    rows = [
        TopicSubscription(
            state.topic,
            broker_name,
            state.queue_id,
            state.group,
            "pulsar",
            state.type,
            None if state.consumers is None else len(state.consumers),
            state.consumer_offset,
            state.backlog,
            state.unacked,
        )
        for broker_name, state in of_pulsar
    ]
    known = {row[:4] for row in rows}
    for group, topic, broker_name, queue_id, _, offset, _, lag in offsets:
        if (topic, broker_name, queue_id, group) in known:
            continue
        online = members.get((broker_name, group)) if members is not None else None
        model = online.message_model if online is not None else None
        count = None if members is None else len(online.members) if online is not None else 0
        rows.append(TopicSubscription(topic, broker_name, queue_id, group, "rocketmq", model, count, offset, lag, None))
    return [row._asdict() for row in sorted(rows, key=lambda row: (row.topic, row.broker_name or "", *row[2:4]))]


async def _queues_of_brokers(admin: "AdminClient", patterns: tuple[str, ...]) -> list[dict[str, Any]]:
    names = matching(patterns, {config.topic for _, config in await admin.topics()}, "topic")
    return [_queue_row(*queue) for queue in await admin.topic_queues(*sorted(names))]


def _queues_of_store(store: "StoreReader", patterns: tuple[str, ...]) -> list[dict[str, Any]]:
    from mqtool.engine.store.queue_view import queue_keys

    names = matching(patterns, {name for name, _ in queue_keys(store)} | stored_topics(store).keys(), "topic")
    return [
        _queue_row(
            name,
            None,
            queue_id,
            queue.min_offset if queue else 0,
            queue.max_offset if queue else 0,
            last_timestamp(store, queue),
        )
        for (name, queue_id), queue in stored_queues(store, names).items()
    ]


def _queue_row(
    topic: str, broker_name: str | None, queue_id: int, low: int, high: int, last_timestamp: int
) -> dict[str, Any]:
    return {
        "topic": topic,
        "broker_name": broker_name,
        "queue_id": queue_id,
        "min_offset": low,
        "max_offset": high,
        "messages": high - low,
        "last_timestamp": last_timestamp or None,
    }


@command.command(short_help="Create or change a topic.")
@click.argument("topic", type=TOPIC_NAME)
@click.option(
    "--queues", type=click.IntRange(1, 65536), metavar="N", help="Number of queues. Default for a new topic: 8."
)
@click.option("--perm", type=click.Choice(list(_PERMS)), help="Whether it is readable and writable. Default: rw.")
@broker_option
@target_options
def create(topic: str, queues: int | None, perm: str | None, broker_name: str | None, target: Target) -> int:
    """Create a topic, or change an existing one: on every broker, on the given one, or in a store.

    \b
      mqtool topic create -n localhost:9876 Orders --queues 4
      mqtool topic create -s ./store Orders --perm r
    """  # noqa: D301
    options = {"topic": topic, "queues": queues, "perm": _PERMS[perm] if perm else None}
    return target.run(
        "topic create",
        options,
        broker_name,
        lambda admin: admin.create_topic(topic, queues=queues, perm=perm, broker_name=broker_name, dry_run=True),
    )


@command.command(short_help="Delete a topic.")
@click.argument("topic", type=TOPIC_NAME)
@broker_option
@target_options
def delete(topic: str, broker_name: str | None, target: Target) -> int:
    """Delete a topic, its queues and the offsets of groups in it: on every broker, on the given one, or in a store.

    Its messages stay in the log until that is deleted, but consumers no longer get them.
    """
    return target.run(
        "topic delete",
        {"topic": topic},
        broker_name,
        lambda admin: admin.delete_topic(topic, broker_name=broker_name, dry_run=True),
    )
