"""``mqtool compare``."""

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mqtool.commands._options import (
    STORE,
    check_has_log,
    jobs_option,
    open_store,
    output_option,
    require_a_log,
    tell_holes,
)
from mqtool.commands._output import Output, progress
from mqtool.errors import Status, UsageError

if TYPE_CHECKING:
    from mqtool.engine.repair.compare.stores import Logs
    from mqtool.engine.store.reader import StoreReader

_LISTED = 100
_NAMED = ("queue_id", "queue_offset", "store_timestamp", "unique_key", "keys", "tags", "message_id")


@click.command(short_help="Compare two stores.")
@click.argument("left", metavar="STORE", type=STORE)
@click.argument("right", metavar="STORE2", type=STORE)
@click.option(
    "--by", type=click.Choice(["offset", "key"]), default="offset", show_default=True,
    help="offset: copies of one log, address by address; key: any two stores, message by message.",
)  # fmt: skip
@click.option(
    "-c", "--config", "configs", multiple=True, type=click.Path(path_type=Path, readable=False),
    help="The broker's configuration file, for both stores; given twice, one for each.",
)  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A broker setting, for both; repeatable.")
@jobs_option
@output_option
def command(
    left: Path, right: Path, by: str, configs: tuple[Path, ...], settings: tuple[str, ...], jobs: int, output: Output
) -> int:
    """Compare two stores: a master and its slave, a store and its backup, before and after a move.

    By offset it compares what is at the same address: ranges of addresses that are damaged or missing in one,
    then messages by queue, then queues and tables of config/. By key it lists messages that one store has more
    often than the other, wherever they are. Both stores are only read; they may be damaged, and in use.

    Exits with status 0 if they are equal, 3 if messages differ, 4 if only queues or tables do, or if some
    places could not be read in either store.
    """
    from mqtool.engine.store.holes import holes_of

    if len(configs) > 2:
        raise UsageError("give -c once for both stores, or twice, one for each")
    stores = [
        open_store(path, configs[min(number, len(configs) - 1)] if configs else None, settings)
        for number, path in enumerate((left, right))
    ]
    for store in stores:
        check_has_log(store)
    require_a_log(stores)
    output.tell_compiling(sum(store.commit_log.total_size for store in stores))
    status = (_by_offset if by == "offset" else _by_key)(stores[0], stores[1], jobs, output)
    for side, store in zip(("left", "right"), stores, strict=True):
        tell_holes((f"{side}: {hole}" for hole in holes_of(store.commit_log)), output)
        for remark in dict.fromkeys(store.remarks):
            output.remark(f"{side}: {remark}")
    return status


def _by_offset(left: "StoreReader", right: "StoreReader", jobs: int, output: Output) -> int:
    from mqtool.engine.repair.compare.stores import (
        FileDifference,
        Logs,
        QueueCount,
        Range,
        compare_files,
        compare_logs,
        not_compared,
    )

    logs = Logs()
    output.csv_of(Range, QueueCount, FileDifference)
    output.columns = (
        "difference", "side", "physical_offset", "size", "message_count", "topic", "queue_id", "queue_offset",
    )  # fmt: skip
    with progress(left.commit_log.total_size + right.commit_log.total_size, "compare") as advance:
        for difference in compare_logs(left, right, logs, jobs, advance):
            if not output.is_table or output.count < _LISTED:
                output.row({"kind": "range", **dataclasses.asdict(difference)})
    if output.is_table and logs.ranges > _LISTED:
        output.text(f"{logs.ranges - _LISTED:,} more ranges; -o jsonl lists all")
    if logs.queues:
        output.new_table(("topic", "queue_id", "only_left", "only_right", "differ", "first_offset", "last_offset"))
    for (topic, queue_id), count in sorted(logs.queues.items()):
        output.row({"kind": "queue", "topic": topic, "queue_id": queue_id, **dataclasses.asdict(count)})
    files = list(compare_files(left, right, logs.is_equal))
    if files:
        output.new_table(("name", "message", "queue_offset"))
    for file in files:
        output.row({"kind": "file", **dataclasses.asdict(file)})
    _tell_logs(logs, left, right, output)
    if files:
        output.remark(
            f"{len(files):,} queues and tables differ: `mqtool verify` shows whether a store agrees with its log"
        )
    output.remark(f"not compared: {'; '.join(not_compared(left, right))}")
    if not logs.is_equal:
        return Status.DAMAGE
    return Status.WARNINGS if logs.ranges or files or any(side.unreadable_count for side in logs.sides) else Status.OK


def _tell_logs(logs: "Logs", left: "StoreReader", right: "StoreReader", output: Output) -> None:
    from mqtool.engine.repair.compare.stores import better_base

    for name, side in zip(("left", "right"), logs.sides, strict=True):
        sentence = f"{name}: {side.message_count:,} messages, {side.only:,} of them only there"
        if side.unreadable_count:
            sentence += f"; {side.unreadable_size:,} bytes in {side.unreadable_count:,} places cannot be read"
        output.remark(sentence)
    if logs.is_equal:
        if logs.ranges or any(side.unreadable_count for side in logs.sides):
            output.remark(f"both hold the same {logs.common:,} messages; `mqtool verify` shows what is damaged")
        else:
            output.remark(f"both logs are the same: {logs.common:,} messages")
        return
    empty = [name for name, side in zip(("left", "right"), logs.sides, strict=True) if not side.message_count]
    if empty:
        output.remark(f"no message in {empty[0]} can be read at its address: `mqtool verify` shows why")
        return
    if not logs.common:
        output.remark("no record is the same at the same address: these are different logs, compare them with --by key")
        return
    output.remark(f"{logs.common:,} messages are the same; the first difference is at {logs.first_difference:,}")
    if logs.parted_at is not None:
        output.remark(f"they diverge at {logs.parted_at:,}: after it each has messages of its own")
    elif logs.contradictions:
        output.remark(f"at {logs.contradictions:,} addresses they have different messages, followed by common ones")
    base, reason = better_base(logs)
    if base is None:
        output.remark(f"either is suitable as the base of a repair: {reason}")
    else:
        output.remark(f"the better base of a repair is {base}, {(left if base == 'left' else right).root}: {reason}")
    merge = shlex.join(["mqtool", "salvage", "--merge", str(left.root), str(right.root), "--into", "DIR"])
    output.remark(f"`{merge}` creates a store from what either has")


def _by_key(left: "StoreReader", right: "StoreReader", jobs: int, output: Output) -> int:
    from mqtool.engine.repair.compare.keys import Difference, Messages, compare_keys

    messages = Messages()
    output.csv_of(Difference)
    counts = "left_count", "right_count", "only_left", "only_right"
    output.csv_columns = [*dict.fromkeys((*output.csv_columns, *_NAMED, "store_time", *counts))]
    listed = 0
    readers = {"left": left, "right": right}
    output.columns = (
        "side",
        "left_count",
        "right_count",
        "topic",
        "queue_id",
        "queue_offset",
        "physical_offset",
        "unique_key",
    )
    with progress(left.commit_log.total_size + right.commit_log.total_size, "compare") as advance:
        for difference in compare_keys(left, right, messages, jobs, advance):
            listed += 1
            if not output.is_table or listed <= _LISTED:
                output.row(
                    {
                        "kind": "message",
                        **dataclasses.asdict(difference),
                        **_named(readers[difference.side], difference.physical_offset),
                    }
                )
    if output.is_table and listed > _LISTED:
        output.text(f"{listed - _LISTED:,} more messages; -o jsonl lists all")
    topics = sorted(messages.only_left.keys() | messages.only_right.keys())
    if topics:
        output.new_table(("topic", "left_count", "right_count", "only_left", "only_right"))
    for topic in topics:
        counters = (messages.left, messages.right, messages.only_left, messages.only_right)
        output.row(
            {"kind": "topic", "topic": topic}
            | {name: counter[topic] for name, counter in zip(counts, counters, strict=True)}
        )
    for name, count in zip(readers, messages.unreadable, strict=True):
        if count:
            output.remark(f"{name}: {count:,} ranges of addresses cannot be read and were not compared")
    summary = f"left has {messages.left.total():,} messages, right {messages.right.total():,}"
    if messages.is_equal:
        output.remark(f"{summary}: the same messages, equally often")
    else:
        output.remark(
            f"{summary}; {messages.only_left.total():,} are only in left, {messages.only_right.total():,} only in right"
        )
    output.remark(
        "queues, index, tables and addresses of messages are not compared: --by offset does that, for copies of one log"
    )
    if not messages.is_equal:
        return Status.DAMAGE
    return Status.WARNINGS if any(messages.unreadable) else Status.OK


def _named(reader: "StoreReader", physical_offset: int) -> dict[str, Any]:
    """Return what people know a message by."""
    message = reader.message_at(physical_offset)
    return {name: getattr(message, name) for name in _NAMED}
