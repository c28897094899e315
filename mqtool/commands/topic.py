"""``mqtool topic``."""

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from mqtool.commands._admin import last_timestamp, stored_queues, stored_topics, tell_log_alone
from mqtool.commands._brokers import Brokers
from mqtool.commands._change import Target, broker_option, target_options
from mqtool.commands._completion import TOPIC_NAME
from mqtool.commands._options import matching, output_option
from mqtool.commands._output import Output
from mqtool.commands._rows import topic_kind
from mqtool.commands._wire import source_options
from mqtool.errors import Status

if TYPE_CHECKING:
    from mqtool.engine.client_runtime.admin_client import AdminClient
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
_PERMS = {"rw": 6, "r": 4, "w": 2}


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


@command.command(short_help="Show the queues of topics.")
@click.argument("patterns", nargs=-1, required=True, type=TOPIC_NAME, metavar="TOPIC...")
@source_options
@output_option
def show(patterns: tuple[str, ...], source: "Brokers | StoreReader", output: Output) -> int:
    """Show the queues of topics: their first offset, the one after their last, and when they were last written to."""
    output.columns = _QUEUE_COLUMNS
    if isinstance(source, Brokers):
        rows = source.admin(lambda admin: _queues_of_brokers(admin, patterns))
    else:
        rows = _queues_of_store(source, patterns)
    for row in rows:
        output.row(row)
    return Status.OK


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
