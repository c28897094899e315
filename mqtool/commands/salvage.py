"""``mqtool salvage``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mqtool.commands._interrupts import changing
from mqtool.commands._options import jobs_option, output_option, store_options
from mqtool.commands._output import Output, progress
from mqtool.commands._streams import outlast_readers
from mqtool.errors import Status

if TYPE_CHECKING:
    from mqtool.engine.repair.salvage import Salvage
    from mqtool.engine.store.reader import StoreReader

_LISTED = 10


@click.command(short_help="Copy every readable message into a new store.")
@click.option(
    "--into", required=True, type=click.Path(path_type=Path, readable=False), metavar="DIR",
    help="Folder of the new store: empty, or not there yet.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only tell what would be copied and what would be lost.")
@jobs_option
@store_options
@output_option
def command(into: Path, dry_run: bool, jobs: int, store: "StoreReader", output: Output) -> int:
    """Copy every message that checks out into a new store, past any damage. The store itself is only read.

    Messages keep their queues and queue offsets; a placeholder, with the property MQTOOL_LOST, stands where one of a
    queue is lost. Queues, index and checkpoint are made as after a clean stop, tables of config/ are taken over as far
    as they can be read. DIR/salvage.jsonl lists what was skipped, byte range by byte range, with its first bytes.

    Rows are counts by topic. Ends with status 5 when something could not be copied (with --dry-run 3).
    """
    from mqtool.engine.repair.salvage import check_target, plan_salvage, salvage

    outlast_readers()
    check_target(store, into)
    total = store.commit_log.total_size
    output.tell_compiling(total)
    with progress(total, "look") as advance:
        plan = plan_salvage(store, jobs, advance)
    if not dry_run:
        with changing() as interrupts, progress(2 * plan.size, "salvage") as advance:
            salvage(plan, into, interrupts.disk(), jobs, interrupts.progress(advance))
            interrupts.settle()
    for row in plan.rows():
        output.row(row)
    _tell(plan, output)
    output.remark(_summary(plan, into, dry_run))
    if not plan.skipped and not plan.lost.total():
        return Status.OK
    return Status.DAMAGE if dry_run else Status.GIVEN_UP


def _tell(plan: "Salvage", output: Output) -> None:
    relative = plan.reader.paths.relative
    for one in plan.skipped[:_LISTED]:
        place = f"{one.physical_offset:,}"
        if one.segment:
            place += f" ({relative(one.segment.path)}@{one.physical_offset - one.segment.start_offset})"
        output.remark(f"{one.size:,} bytes at {place} are skipped: {one.reason}")
    if len(plan.skipped) > _LISTED:
        output.remark(f"{len(plan.skipped) - _LISTED:,} more byte ranges are skipped")
    for (topic, queue_id), run, target, offset in plan.order.moved[:_LISTED]:
        many = f"{run.length:,} messages" if run.length > 1 else "the message"
        goes = f"{target[0]} {target[1]} {offset:,}"
        output.remark(f"{many} at {run.position:,}, {topic} {queue_id} {run.start:,}: moved to {goes}")
    if len(plan.order.moved) > _LISTED:
        output.remark(f"{len(plan.order.moved) - _LISTED:,} more stretches of messages are moved")
    for remark in (*plan.reader.remarks, *plan.remarks):
        output.remark(remark)


def _summary(plan: "Salvage", into: Path, dry_run: bool) -> str:
    kept, lost, placeholders = plan.kept.total(), plan.lost.total(), plan.placeholders.total()
    said = f"{kept:,} messages {'would be copied' if dry_run else f'copied into {into}'}, {lost:,} known to be lost"
    if placeholders:
        said += f", {placeholders:,} placeholders among the others"
    if dry_run:
        return f"{said}; nothing was written"
    return f"{said}; {into / 'salvage.jsonl'} has the details, `mqtool verify -s {into}` checks the new store"
