"""``mqtool offset``."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from mqtool.commands._admin import (
    OFFSET_COLUMNS,
    Master,
    ask_each,
    check_group,
    masters,
    offset_rows,
    stored_offset_rows,
)
from mqtool.commands._change import Changes, Target, broker_option, target_options
from mqtool.commands._options import TIME, group_filter, matching, output_option, topic_filter
from mqtool.commands._output import Output
from mqtool.commands._wire import Brokers, source_options
from mqtool.errors import NotFoundError, Status, UsageError

if TYPE_CHECKING:
    from mqtool.engine.client.questions import Question, QueueEnds
    from mqtool.engine.client_runtime import Wire
    from mqtool.engine.store.reader import StoreReader


@click.group(short_help="List and set how far groups have read.")
def command() -> None:
    """List and set how far groups have read: of brokers with -n, or of a store."""


@command.command("list", short_help="List how far groups have read.")
@group_filter
@topic_filter
@source_options
@output_option
def list_(groups: tuple[str, ...], topics: tuple[str, ...], source: "Brokers | StoreReader", output: Output) -> int:
    """List what each group reads next of each queue, and how many messages are left for it (lag)."""
    output.columns = OFFSET_COLUMNS
    rows = source.run(_rows_of_brokers) if isinstance(source, Brokers) else stored_offset_rows(source, lambda _: True)
    chosen_groups = matching(groups, {row["group"] for row in rows}, "group") if groups else None
    chosen_topics = matching(topics, {row["topic"] for row in rows}, "topic") if topics else None
    for row in rows:
        if (chosen_groups is None or row["group"] in chosen_groups) and (
            chosen_topics is None or row["topic"] in chosen_topics
        ):
            output.row(row)
    if not rows:
        output.remark("no group has told how far it has read")
    return Status.OK


async def _rows_of_brokers(wire: "Wire") -> list[dict[str, Any]]:
    return [row for broker in await masters(wire) for row in await offset_rows(wire, broker, lambda _: True)]


@command.command("set", short_help="Set what a group reads next of a queue.")
@click.option("--group", required=True, metavar="NAME", help="The group.")
@click.option("--topic", required=True, metavar="NAME", help="The topic.")
@click.option("--queue", "queue_id", type=click.IntRange(0), required=True, metavar="ID", help="The queue.")
@click.option("--offset", type=click.IntRange(0), required=True, metavar="N", help="The queue offset to read next.")
@broker_option
@target_options
def set_(group: str, topic: str, queue_id: int, offset: int, broker_name: str | None, target: Target) -> int:
    """Set what a group reads next of one queue. Consumers that are online go on there.

    \b
      mqtool offset set --group billing --topic Orders --queue 0 --offset 17
    """  # noqa: D301
    options = {"group": group, "topics": [topic], "queue_id": queue_id, "offset": offset}
    return target.run("offset set", options, broker_name, _plan)


@command.command(short_help="Set a group back, or forward, in whole topics.")
@click.option("--group", required=True, metavar="NAME", help="The group.")
@click.option("--topic", "topics", required=True, multiple=True, metavar="NAME", help="A topic; repeats.")
@click.option("--earliest", is_flag=True, help="To the first message that there is.")
@click.option("--latest", is_flag=True, help="To the end: what is there is not read.")
@click.option("--since", type=TIME, help="To the first message stored at this time or later.")
@broker_option
@target_options
def reset(
    group: str,
    topics: tuple[str, ...],
    earliest: bool,
    latest: bool,
    since: int | None,
    broker_name: str | None,
    target: Target,
) -> int:
    """Set what a group reads next in all queues of topics. Consumers that are online go on there.

    \b
      mqtool offset reset --group billing --topic Orders --earliest
      mqtool offset reset -s ./store --group billing --topic Orders --since 2h
    """  # noqa: D301
    if earliest + latest + (since is not None) != 1:
        raise UsageError("give one of --earliest, --latest and --since")
    # A broker takes a time of -1 for the end, and finds the first message for any time before it.
    timestamp = -1 if latest else 0 if earliest else since
    options = {"group": group, "topics": list(topics), "timestamp": timestamp}
    return target.run("offset reset", options, broker_name, _plan)


async def _plan(wire: "Wire", brokers: list[Master], options: dict[str, Any], changes: Changes) -> None:
    """Plan ``set`` (one queue, an offset) or ``reset`` (all queues, a time)."""
    from mqtool.engine.client import questions

    group, topics = options["group"], options["topics"]
    groups = dict(await ask_each(wire, brokers, questions.groups))
    check_group(group, {name for known in groups.values() for name in known})
    held = dict.fromkeys(topics, False)
    for broker, configs in await ask_each(wire, brokers, questions.topic_configs):
        for topic in topics if group in groups[broker] else ():
            if topic in configs:
                held[topic] = True
                await _Reset(wire, broker, group, topic, options, changes).plan()
    for topic, is_held in held.items():
        if not is_held:
            raise NotFoundError(f"no broker has the topic {topic}")
    if not changes.rows and "queue_id" in options and not changes.remarks:
        raise NotFoundError(f"{topics[0]} has no queue {options['queue_id']}")


class _Reset:
    """What one group is to read next of one topic on one broker."""

    def __init__(
        self, wire: "Wire", broker: Master, group: str, topic: str, options: dict[str, Any], changes: Changes
    ) -> None:
        self._wire = wire
        self._broker = broker
        self._group = group
        self._topic = topic
        self._options = options
        self._changes = changes

    async def plan(self) -> None:
        """Add what is to be changed.

        Raises:
            UsageError: the offset is not in the queue, or this broker cannot do it while consumers are online.
        """
        from mqtool.engine.client import questions

        wire, address = self._wire, self._broker.address
        queues = await wire.ask(address, questions.topic_queues(self._topic))
        offsets = await wire.ask(address, questions.consumer_offsets())
        rows = []
        for queue_id, queue in queues.items():
            if self._options.get("queue_id", queue_id) == queue_id:
                before = offsets.get((self._topic, self._group, queue_id))
                rows.append((queue_id, before, await self._target(queue_id, queue)))
        tell = await self._how(any(before != after for _, before, after in rows))
        for queue_id, before, after in rows:
            if before == after:
                continue
            what = "create" if before is None else "replace"
            fields = {"topic": self._topic, "queue_id": queue_id, "consumer_offset": before, "new_offset": after}
            self._changes.add(what, self._broker, "", tell(queue_id, after), group=self._group, **fields)

    async def _target(self, queue_id: int, queue: "QueueEnds") -> int:
        from mqtool.engine.client import questions

        if "offset" in self._options:
            offset: int = self._options["offset"]
            if not queue.min_offset <= offset <= queue.max_offset:
                raise UsageError(
                    f"queue {queue_id} of {self._topic} reaches from {queue.min_offset:,} to {queue.max_offset:,}: "
                    f"{offset:,} is outside"
                )
            return offset
        timestamp = self._options["timestamp"]
        if timestamp < 0:
            return queue.max_offset
        if queue.max_offset == queue.min_offset or timestamp == 0:
            return queue.min_offset
        return await self._wire.ask(self._broker.address, questions.offset_at(self._topic, queue_id, timestamp))

    async def _how(self, is_needed: bool) -> "Callable[[int, int], Question[None] | None]":
        """Return what asks this broker to set an offset: brokers before 5.0 have the consumers do it, if some are."""
        from mqtool.engine.client import questions

        group, topic, address = self._group, self._topic, self._broker.address
        settings = await self._wire.ask(address, questions.broker_settings())
        if settings.get("useServerSideResetOffset") == "true":
            return lambda queue_id, offset: questions.reset_offset(group, topic, queue_id, offset)
        if not is_needed or await self._wire.ask(address, questions.members(group)) is None:
            return lambda queue_id, offset: questions.set_offset(group, topic, queue_id, offset)
        if "offset" in self._options:
            raise UsageError(
                f"consumers of {group} are online, and this broker can only reset all queues at once: stop them first"
            )
        whole = [questions.reset_to_time(group, topic, self._options["timestamp"])]
        return lambda *_: whole.pop() if whole else None
