"""``mqtool topic``."""

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from mqtool.commands._admin import Master, ask_each, last_timestamp, masters, stored_queues, stored_topics
from mqtool.commands._change import Changes, Target, broker_option, target_options
from mqtool.commands._options import matching, output_option
from mqtool.commands._output import Output
from mqtool.commands._rows import topic_kind
from mqtool.commands._wire import Brokers, source_options
from mqtool.errors import NotFoundError, Status

if TYPE_CHECKING:
    from mqtool.engine.client_runtime import Wire
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


@click.group(short_help="List, show, make and delete topics.")
def command() -> None:
    """List, show, make and delete topics: of brokers with -n, or of a store."""


@command.command("list", short_help="List topics.")
@click.argument("patterns", nargs=-1, metavar="[GLOB]...")
@source_options
@output_option
def list_(patterns: tuple[str, ...], source: "Brokers | StoreReader", output: Output) -> int:
    """List topics with their settings, a row for each broker that has the topic; all, or those that match.

    perm is 6 where a topic may be read and written, 4 only read, 2 only written.
    """
    output.columns = _COLUMNS
    if isinstance(source, Brokers):
        found = source.run(_topics_of_brokers)
    else:
        found = [(None, config) for config in stored_topics(source).values()]
    names = matching(patterns, {config.topic for _, config in found}, "topic") if patterns else None
    rows = [_row(broker_name, config) for broker_name, config in found if names is None or config.topic in names]
    # What a broker makes for itself comes last, so that a person's own topics are not lost in it.
    for row in sorted(rows, key=lambda row: (row["kind"] == "system", row["topic"], row["broker_name"] or "")):
        output.row(row)
    return Status.OK


async def _topics_of_brokers(wire: "Wire") -> "list[tuple[str | None, TopicConfig]]":
    from mqtool.engine.client import questions

    answers = await ask_each(wire, await masters(wire), questions.topic_configs)
    return [(broker.broker_name, config) for broker, configs in answers for config in configs.values()]


def _row(broker_name: str | None, config: "TopicConfig") -> dict[str, Any]:
    fields = dataclasses.asdict(config)
    return {"topic": fields.pop("topic"), "kind": topic_kind(config.topic), "broker_name": broker_name, **fields}


@command.command(short_help="Show the queues of topics.")
@click.argument("patterns", nargs=-1, required=True, metavar="TOPIC...")
@source_options
@output_option
def show(patterns: tuple[str, ...], source: "Brokers | StoreReader", output: Output) -> int:
    """Show the queues of topics: their first offset, the one after their last, and when they were last written to."""
    output.columns = _QUEUE_COLUMNS
    if isinstance(source, Brokers):
        rows = source.run(lambda wire: _queues_of_brokers(wire, patterns))
    else:
        rows = _queues_of_store(source, patterns)
    for row in rows:
        output.row(row)
    return Status.OK


async def _queues_of_brokers(wire: "Wire", patterns: tuple[str, ...]) -> list[dict[str, Any]]:
    from mqtool.engine.client import questions
    from mqtool.engine.client_runtime import together

    answers = await ask_each(wire, await masters(wire), questions.topic_configs)
    names = sorted(matching(patterns, {name for _, configs in answers for name in configs}, "topic"))
    asked = [(broker, name) for name in names for broker, configs in answers if name in configs]
    told = await together(wire.ask(broker.address, questions.topic_queues(name)) for broker, name in asked)
    return [
        _queue_row(name, broker.broker_name, queue_id, *queue)
        for (broker, name), queues in zip(asked, told, strict=True)
        for queue_id, queue in queues.items()
    ]


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
        for name in sorted(names)
        for queue_id, queue in stored_queues(store, name).items()
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


@command.command(short_help="Make a topic, or change it.")
@click.argument("topic")
@click.option("--queues", type=click.IntRange(1, 65536), metavar="N", help="How many queues. Default for a new one: 8.")
@click.option("--perm", type=click.Choice(list(_PERMS)), help="Whether it may be read and written. Default: rw.")
@broker_option
@target_options
def create(topic: str, queues: int | None, perm: str | None, broker_name: str | None, target: Target) -> int:
    """Make a topic, or change the one that there is: on every broker, on the one named, or in a store.

    \b
      mqtool topic create -n localhost:9876 Orders --queues 4
      mqtool topic create -s ./store Orders --perm r
    """  # noqa: D301
    options = {"topic": topic, "queues": queues, "perm": _PERMS[perm] if perm else None}
    return target.run("topic create", options, broker_name, _plan_create)


async def _plan_create(wire: "Wire", brokers: list[Master], options: dict[str, Any], changes: Changes) -> None:
    from mqtool.engine.client import questions
    from mqtool.formats.config_changes import changed_topic, differences

    for broker, configs in await ask_each(wire, brokers, questions.topic_configs):
        known = configs.get(options["topic"])
        config = changed_topic(known, options["topic"], options["queues"], options["perm"])
        if config != known:
            reason = differences(known, config)
            changes.add(
                "replace" if known else "create", broker, reason, questions.put_topic(config), topic=config.topic
            )


@command.command(short_help="Delete a topic.")
@click.argument("topic")
@broker_option
@target_options
def delete(topic: str, broker_name: str | None, target: Target) -> int:
    """Delete a topic, its queues and what groups have read of it: on every broker, on the one named, or in a store.

    Its messages stay in the log until that is deleted, but no consumer gets them any more.
    """
    return target.run("topic delete", {"topic": topic}, broker_name, _plan_delete)


async def _plan_delete(wire: "Wire", brokers: list[Master], options: dict[str, Any], changes: Changes) -> None:
    from mqtool.engine.client import questions

    topic = options["topic"]
    answers = await ask_each(wire, brokers, questions.topic_configs)
    holders = [broker for broker, configs in answers if topic in configs]
    if not holders:
        matching((topic,), {name for _, configs in answers for name in configs}, "topic")
        raise NotFoundError(f"give the topic by its name, not by a pattern: {topic}")
    await plan_delete_topic(wire, holders, topic, changes)


async def plan_delete_topic(wire: "Wire", holders: list[Master], topic: str, changes: Changes) -> None:
    """Add the deletion of a topic from the brokers that have it."""
    from mqtool.engine.client import questions

    for broker, queues in await ask_each(wire, holders, lambda: questions.topic_queues(topic)):
        count = sum(queue.max_offset - queue.min_offset for queue in queues.values())
        reason = f"{len(queues):,} queues with {count:,} messages that can no longer be consumed"
        changes.add("remove", broker, reason, questions.delete_topic(topic), topic=topic)
    changes.forget_route(topic)
