"""``mqtool offset``."""

from typing import TYPE_CHECKING

import click

from mqtool.commands._admin import OFFSET_COLUMNS, offset_row, stored_offsets
from mqtool.commands._change import Target, broker_option, target_options
from mqtool.commands._options import TIME, group_filter, matching, output_option, topic_filter
from mqtool.commands._output import Output
from mqtool.commands._wire import Brokers, source_options
from mqtool.errors import Status, UsageError

if TYPE_CHECKING:
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
    if isinstance(source, Brokers):
        offsets = source.admin(lambda admin: admin.offsets())
    else:
        offsets = stored_offsets(source, lambda _: True)
    chosen_groups = matching(groups, {one.group for one in offsets}, "group") if groups else None
    chosen_topics = matching(topics, {one.topic for one in offsets}, "topic") if topics else None
    for one in offsets:
        if (chosen_groups is None or one.group in chosen_groups) and (
            chosen_topics is None or one.topic in chosen_topics
        ):
            output.row(offset_row(one))
    if not offsets:
        output.remark("no group has told how far it has read")
    return Status.OK


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
    return target.run(
        "offset set",
        options,
        broker_name,
        lambda admin: admin.set_offset(group, topic, queue_id, offset, broker_name=broker_name, dry_run=True),
    )


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
    timestamp = -1 if latest else since or 0
    options = {"group": group, "topics": list(topics), "timestamp": timestamp}
    return target.run(
        "offset reset",
        options,
        broker_name,
        lambda admin: admin.reset_offsets(group, topics, timestamp, broker_name=broker_name, dry_run=True),
    )
