"""``mqtool salvage``."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mqtool.commands._interrupts import changing
from mqtool.commands._options import STORE, NewPath, jobs_option, open_store, output_option, store_names, tell_left_over
from mqtool.commands._output import Output, progress
from mqtool.commands._streams import outlast_readers
from mqtool.errors import Status, UsageError

if TYPE_CHECKING:
    from mqtool.engine.repair.salvage.merge import Merge
    from mqtool.engine.repair.salvage.plan import Salvage

_LISTED = 10


@click.command(short_help="Copy every readable message into a new store.")
@click.option(
    "--into", required=True, type=NewPath(), metavar="DIR",
    help="Directory of the new store: empty, or not existing yet.",
)  # fmt: skip
@click.option(
    "--merge", nargs=2, type=STORE, metavar="A B",
    help="Two copies of one log, for example of a master and its slave: what is damaged in one is taken from the "
        "other.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only report what would be copied and what would be lost.")
@jobs_option
@store_names
@output_option
def command(
    into: Path,
    merge: tuple[Path, Path] | None,
    dry_run: bool,
    jobs: int,
    store: Path | None,
    config: Path | None,
    settings: tuple[str, ...],
    output: Output,
) -> int:
    """Copy every message that passes its checks into a new store, past any damage. The store itself is only read.

    Messages keep their queues and queue offsets; a placeholder, with the property MQTOOL_LOST, takes the place of
    each lost message of a queue. Queues, index and checkpoint are built as after a clean stop, tables of config/
    are copied as far as they can be read. DIR/salvage.jsonl lists what was skipped, byte range by byte range,
    with its first bytes.

    With --merge, DIR/salvage.jsonl also lists which messages come from which store, and what was left out where
    the two copies diverge. Copies of different logs are refused.

    Rows are counts by topic. Exits with status 5 if something could not be copied (with --dry-run 3).
    """
    from mqtool.engine.repair.salvage.plan import check_target, plan_salvage, salvage

    outlast_readers()
    if merge and store:
        raise UsageError("--merge gives both stores: leave out -s")
    readers = [open_store(path, config, settings) for path in (merge or (store,))]
    for reader in readers:
        check_target(reader, into)
    total = sum(reader.commit_log.total_size for reader in readers)
    output.tell_compiling(total)
    with progress(total * (3 if merge else 1), "look") as advance:
        if merge:
            from mqtool.engine.repair.salvage.merge import plan_merge

            merged = plan_merge(readers[0], readers[1], jobs, advance)
            plan = merged.plan
        else:
            plan = plan_salvage(readers[0], jobs, advance)
    if not dry_run:
        tell_left_over(into, output)
        with changing() as interrupts, progress(2 * plan.size, "salvage") as advance:
            salvage(plan, into, interrupts.disk(), jobs, interrupts.progress(advance))
            interrupts.settle()
    for row in plan.rows():
        output.row(row)
    _tell(plan, output)
    if merge:
        _tell_merge(merged, merge, output)
    output.remark(_summary(plan, into, dry_run))
    if not plan.skipped and not plan.lost.total():
        return Status.OK
    return Status.DAMAGE if dry_run else Status.GIVEN_UP


def _tell_merge(merged: "Merge", roots: tuple[Path, Path], output: Output) -> None:
    plan, logs, base, reason = merged
    assert plan.from_each
    counts = [counter.total() for counter in plan.from_each]
    taken = [
        f"{count:,} message{'s are' if count != 1 else ' is'} taken from {roots[side]}"
        for side, count in enumerate(counts)
    ]
    output.remark(f"{taken[base]}, the base: {reason}")
    output.remark(taken[1 - base])
    if logs.parted_at is not None:
        other = roots[1 - base]
        output.remark(
            f"the two diverge at {logs.parted_at:,}: what {other} has after it is left out; `mqtool export "
            f"-s {shlex.quote(str(other))} --from {logs.parted_at}` writes it to a file"
        )
    for row in plan.left_out[:_LISTED]:
        if row["count"] == 1 and row["physical_offset"] is not None:
            place = f"{row['topic']} {row['queue_id']} {row['queue_offset']:,} at {row['physical_offset']:,}"
            output.remark(f"left out of {row['store']}: {place}: {row['reason']}")


def _tell(plan: "Salvage", output: Output) -> None:
    from mqtool.engine.repair.salvage.plan import why_left_out

    relative = plan.reader.paths.relative
    for skipped in plan.skipped[:_LISTED]:
        file = f"{relative(skipped.segment.path)}@{skipped.offset}" if skipped.segment else ""
        place = file if skipped.position is not None else f"{skipped.physical_offset:,}" + f" ({file})" * bool(file)
        output.remark(f"{skipped.size:,} bytes at {place} are skipped: {skipped.reason}")
    if len(plan.skipped) > _LISTED:
        output.remark(f"{len(plan.skipped) - _LISTED:,} more byte ranges are skipped")
    for (topic, queue_id), run in plan.order.left_out[:_LISTED]:
        many = f"{run.length:,} messages" if run.length > 1 else "the message"
        place = f"{many} at {run.position:,}, {topic} {queue_id} {run.start:,}"
        output.remark(f"{place}: left out: {why_left_out(topic)}")
    for (topic, queue_id), run, target, offset in plan.order.moved[:_LISTED]:
        many = f"{run.length:,} messages" if run.length > 1 else "the message"
        goes = f"{target[0]} {target[1]} {offset:,}"
        output.remark(f"{many} at {run.position:,}, {topic} {queue_id} {run.start:,}: moved to {goes}")
    if len(plan.order.moved) > _LISTED:
        output.remark(f"{len(plan.order.moved) - _LISTED:,} more runs of messages are moved")
    for remark in (*plan.reader.remarks, *plan.remarks):
        output.remark(remark)


def _summary(plan: "Salvage", into: Path, dry_run: bool) -> str:
    kept, lost, placeholders = plan.kept.total(), plan.lost.total(), plan.placeholders.total()
    sentence = f"{kept:,} messages {'would be copied' if dry_run else f'copied into {into}'}, {lost:,} known to be lost"
    if placeholders:
        sentence += f", {placeholders:,} placeholders among the copied ones"
    if dry_run:
        return f"{sentence}; nothing was written"
    check = f"`mqtool verify -s {shlex.quote(str(into))}` checks the new store"
    return f"{sentence}; {into / 'salvage.jsonl'} has the details, {check}"
