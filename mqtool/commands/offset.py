"""``mqtool offset``."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mqtool.commands._admin import OFFSET_COLUMNS, offset_row, stored_offsets, tell_log_alone
from mqtool.commands._brokers import Brokers
from mqtool.commands._change import Plan, Target, broker_option, target_options
from mqtool.commands._completion import GROUP_NAME, TOPIC_NAME
from mqtool.commands._options import SPAN, TIME, export_rows, group_filter, matching, output_option, topic_filter
from mqtool.commands._output import Output
from mqtool.commands._wire import source_options, wire_options
from mqtool.errors import BadDataError, Status, UsageError

if TYPE_CHECKING:
    from mqtool.engine.client_runtime.admin_changes import Changes
    from mqtool.engine.client_runtime.admin_client import AdminClient
    from mqtool.engine.client_runtime.offset_moves import KeptOffset
    from mqtool.engine.store.reader import StoreReader


@click.group(short_help="List and set consumer offsets, and show lag.")
def command() -> None:
    """List and set consumer offsets, and show lag: of brokers with -n, or of a store."""


@command.command("list", short_help="List consumer offsets and lag.")
@group_filter
@topic_filter
@source_options
@output_option
def list_(groups: tuple[str, ...], topics: tuple[str, ...], source: "Brokers | StoreReader", output: Output) -> int:
    """List the consumer offset of each group in each queue, and how many messages it has left to read (lag)."""
    output.columns = OFFSET_COLUMNS
    if isinstance(source, Brokers):
        offsets = source.admin(lambda admin: admin.offsets())
    else:
        tell_log_alone(source, output)
        nameless: list[str] = []
        offsets = stored_offsets(source, lambda _: True, nameless)
        for name in nameless:
            output.remark(f"the offsets of {name!r:.100} are left out: they name no topic and group")
    chosen_groups = matching(groups, {offset.group for offset in offsets}, "group") if groups else None
    chosen_topics = matching(topics, {offset.topic for offset in offsets}, "topic") if topics else None
    for offset in offsets:
        if (chosen_groups is None or offset.group in chosen_groups) and (
            chosen_topics is None or offset.topic in chosen_topics
        ):
            output.row(offset_row(offset))
    if not offsets:
        output.remark("no group has committed an offset")
    return Status.OK


@command.command("set", short_help="Set the consumer offset of a group in one queue.")
@click.option("--group", required=True, type=GROUP_NAME, metavar="NAME", help="The group.")
@click.option("--topic", required=True, type=TOPIC_NAME, metavar="NAME", help="The topic.")
@click.option("--queue", "queue_id", type=click.IntRange(0), required=True, metavar="ID", help="The queue.")
@click.option(
    "--offset", type=click.IntRange(0), required=True, metavar="N", help="The queue offset that the group reads next."
)
@broker_option
@target_options
def set_(group: str, topic: str, queue_id: int, offset: int, broker_name: str | None, target: Target) -> int:
    """Set the consumer offset of a group in one queue. Consumers that are online continue there.

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


@command.command(short_help="Reset the consumer offsets of a group in whole topics.")
@click.option("--group", required=True, type=GROUP_NAME, metavar="NAME", help="The group.")
@click.option(
    "--topic", "topics", required=True, multiple=True, type=TOPIC_NAME, metavar="NAME", help="A topic; repeatable."
)
@click.option("--earliest", is_flag=True, help="To the first message that exists.")
@click.option("--latest", is_flag=True, help="To the end: existing messages are not read.")
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
    """Set the consumer offsets of a group in all queues of topics. Consumers that are online continue there.

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


def _move(target: Target, broker_name: str | None, plan: Plan) -> int:
    """Have groups go on elsewhere, by what brokers tell; return the status.

    Raises:
        UsageError: a store is meant.
    """
    if target.brokers is None:
        raise UsageError("this needs information from brokers: give -n (`mqtool offset set` changes a store)")
    return target.run("offset set", {}, broker_name, plan)


def _now() -> int:
    return int(time.time() * 1000)


@command.command(short_help="Copy the consumer offsets of a group to another.")
@click.option(
    "--from-group", required=True, type=GROUP_NAME, metavar="NAME", help="The group whose offsets are copied."
)
@click.option("--to-group", required=True, type=GROUP_NAME, metavar="NAME", help="The group that continues there.")
@topic_filter
@broker_option
@target_options
def copy(from_group: str, to_group: str, topics: tuple[str, ...], broker_name: str | None, target: Target) -> int:
    """Copy the consumer offsets of a group to another, in all topics that it has read, or in some.

    Retries stay with the first group.

    \b
      mqtool offset copy --from-group billing --to-group billing-v2
    """  # noqa: D301

    async def plan(admin: "AdminClient") -> "Changes":
        chosen = await _chosen(admin, from_group, topics)
        return await admin.copy_offsets(from_group, to_group, chosen, broker_name=broker_name, dry_run=True)

    return _move(target, broker_name, plan)


async def _chosen(admin: "AdminClient", group: str, patterns: tuple[str, ...]) -> set[str] | None:
    if not patterns:
        return None
    return matching(patterns, {offset.topic for offset in await admin.offsets(group)}, "topic")


class _SignedSpan(click.ParamType):  # type: ignore[type-arg]
    """A span of time with a sign: ``-2h`` back, ``2h`` forward."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return milliseconds."""
        if isinstance(value, int):
            return value
        span: int = SPAN.convert(value.lstrip("+-") if value[:2] not in ("--", "++") else value, param, ctx)
        return -span if value.startswith("-") else span


@command.command(short_help="Rewind or forward a group.")
@click.option("--group", required=True, type=GROUP_NAME, metavar="NAME", help="The group.")
@topic_filter
@click.option("--by", type=int, metavar="N", help="Messages in each queue: -1000 is back, 1000 forward.")
@click.option("--by-time", "by_ms", type=_SignedSpan(), metavar="DURATION", help="A duration: -2h is back, 2h forward.")
@broker_option
@target_options
def shift(
    group: str, topics: tuple[str, ...], by: int | None, by_ms: int | None, broker_name: str | None, target: Target
) -> int:
    """Rewind or forward a group in all topics that it has read, or in some, within the limits of their queues.

    \b
      mqtool offset shift --group billing --by -1000
      mqtool offset shift --group billing --topic Orders --by-time -2h

    A duration counts from the next message to read, or from now in a queue that is read to its end.
    """  # noqa: D301
    if (by is None) == (by_ms is None):
        raise UsageError("give one of --by and --by-time")

    async def plan(admin: "AdminClient") -> "Changes":
        chosen = await _chosen(admin, group, topics)
        return await admin.shift_offsets(
            group, chosen, by=by, by_ms=by_ms, now=_now(), broker_name=broker_name, dry_run=True
        )

    return _move(target, broker_name, plan)


@command.command(short_help="Write consumer offsets to a file.")
@group_filter
@click.option(
    "--into", type=click.Path(path_type=Path, dir_okay=False), required=True, metavar="FILE", help="A new file."
)
@wire_options
@output_option
def export(groups: tuple[str, ...], into: Path, brokers: Brokers, output: Output) -> int:
    """Write consumer offsets to a file of JSON lines, with the store time of the next message, for `import`."""

    async def kept(admin: "AdminClient") -> "list[KeptOffset]":
        names = matching(groups, {offset.group for offset in await admin.offsets()}, "group") if groups else None
        return await admin.export_offsets(_now(), names)

    return export_rows(into, [kept_offset._asdict() for kept_offset in brokers.admin(kept)], "offset", output)


@command.command("import", short_help="Set consumer offsets from a file.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, readable=False))
@broker_option
@target_options
def import_(file: Path, broker_name: str | None, target: Target) -> int:
    """Set consumer offsets from a file of `offset export`, in this cluster or in another.

    In a topic whose queues still hold those next messages, groups continue there exactly. Otherwise they continue
    in all queues of the topic at the first message stored at that time or later: none is left out, some may be
    delivered again. The plan shows which.
    """
    offsets = _read_offsets(file)
    return _move(
        target,
        broker_name,
        lambda admin: admin.import_offsets(offsets, _now(), broker_name=broker_name, dry_run=True),
    )


def _read_offsets(file: Path) -> "list[KeptOffset]":
    import orjson

    from mqtool.engine.client_runtime.offset_moves import KeptOffset
    from mqtool.engine.store.mapping import read_file

    offsets = []
    for number, line in enumerate(read_file(file).splitlines(), 1):
        try:
            row = orjson.loads(line)
            kept = KeptOffset(*(row[name] for name in KeptOffset._fields))
        except (ValueError, TypeError, KeyError) as error:
            raise BadDataError(
                f"{file} line {number:,} is not an offset as `mqtool offset export` writes it"
            ) from error
        if [type(value) for value in kept] != [str, str, str, int, int, int, bool]:
            raise BadDataError(f"{file} line {number:,} is not an offset as `mqtool offset export` writes it")
        offsets.append(kept)
    if not offsets:
        raise BadDataError(f"{file} contains no offsets")
    return offsets
