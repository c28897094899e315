"""``mqtool rebuild``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mqtool.commands._interrupts import changing
from mqtool.commands._options import NewPath, matching, tell_left_over, topic_filter
from mqtool.commands._output import Output, progress
from mqtool.commands._repair import RepairCommand, repair_options, show_losses
from mqtool.errors import BadDataError, FormatError, MissingExtraError, Status, UsageError

if TYPE_CHECKING:
    from mqtool.engine.repair.plan import Loss
    from mqtool.engine.repair.rebuild.plan import Built
    from mqtool.engine.store.reader import StoreReader


@click.command(short_help="Rebuild queues, index or config from the commit log.")
@click.argument("target", type=click.Choice(["queues", "index", "config", "all"]))
@topic_filter
@click.option(
    "--into",
    type=NewPath(file_okay=False),
    help="Create them in a directory of their own.",
)
@click.option(
    "--for",
    "version",
    type=click.Choice(["4.9", "5.3", "5.5"]),
    help="The broker that will use the index: from 5.4 on it has entries by tag. Default: determined from the store.",
)
@click.option("--survey", is_flag=True, help="Read the log for the plan even with --yes, to predict losses.")
@repair_options
def command(
    target: str, topics: tuple[str, ...], into: Path | None, version: str | None, survey: bool, repair: RepairCommand
) -> int:
    """Rebuild queues, index or config from the commit log, byte for byte as a broker would build them.

    They are built next to the store and then swapped in; `mqtool undo` restores the old ones. With --into DIR the
    store is not changed. The log itself is never changed: `mqtool recover` repairs it, and should be run first if
    it is damaged.
    """
    from mqtool.engine.store.reader import StoreReader

    reader = StoreReader(repair.root, repair.config)
    chosen = sorted(matching(topics, _known_topics(reader), "topic")) if topics else None
    if chosen and target != "queues":
        raise UsageError("--topic applies to `rebuild queues` only: everything else covers the whole store")
    if into is not None:
        return _build_into(reader, into, target, chosen, version, repair)
    # Nobody reads a plan that --yes answers, and it would take as long as the work.
    is_read = survey or not repair.confirmation.yes or repair.save_plan is not None
    return repair.run("rebuild", {"target": target, "topics": chosen, "version": version, "survey": is_read})


def _known_topics(reader: "StoreReader") -> set[str]:
    from mqtool.formats import config_tables

    known = {topic for topic, _ in (*reader.consume_queues, *reader.batch_consume_queues)}
    try:
        known.update(config_tables.topics(reader.config_table("topics.json") or {}))
    except (BadDataError, FormatError, MissingExtraError) as error:
        reader.remarks.append(str(error))
    return known


def _build_into(
    reader: "StoreReader", into: Path, target: str, topics: list[str] | None, version: str | None, repair: RepairCommand
) -> int:
    from mqtool.engine.repair.rebuild.plan import build, losses_of, refuse_log
    from mqtool.engine.repair.salvage.new_store import making, refuse_used

    if target == "config":
        raise UsageError("--into applies to queues, index and all only")
    if repair.confirmation.dry_run or repair.save_plan:
        raise UsageError("--into writes a new directory and plans nothing: leave out --dry-run and --save-plan")
    if into.resolve().is_relative_to(reader.root.resolve()):
        raise UsageError(f"{into} is inside the store: give another directory")
    refuse_used(into)
    refuse_log(reader)
    output, total = repair.output, reader.commit_log.total_size
    output.tell_compiling(total)
    is_live = reader.is_live
    tell_left_over(into, output)
    with changing() as interrupts, progress(total, "rebuild") as advance:
        disk = interrupts.disk()
        with making(into, disk):
            built = build(
                reader,
                into,
                disk,
                queues=target != "index",
                index=target != "queues",
                topics=topics,
                version=version,
                jobs=repair.jobs,
                progress=interrupts.progress(advance),
            )
        interrupts.settle()
    for remark in reader.remarks:
        output.remark(remark)
    if is_live:
        output.remark(
            f"a broker is running on this store: messages from {built.end_offset:,} on are left out; stop it to "
            "include them"
        )
    return tell_built(built, into, output, losses_of(reader, built, topics) if target != "index" else [])


def tell_built(built: "Built", into: Path | str, output: Output, losses: "list[Loss]") -> int:
    """List what was made in a folder or at a URL, and what that lacks; return the status."""
    for (topic, queue_id), queue in sorted(built.queues.items()):
        place = {"topic": topic, "queue_id": queue_id}
        output.row({**place, "min_offset": queue.first, "max_offset": queue.next, "units": queue.units})
    for topic, count in sorted(built.unplaced_topics.items()):
        output.remark(f"{topic}: {count:,} messages have the queue offsets of other messages: they are in no queue")
    for topic, count in sorted(built.filled.items()):
        output.remark(f"{topic}: {count:,} messages are missing from the log; filler takes their places")
    if built.holes:
        output.remark("the log is damaged: `mqtool verify` shows where, `mqtool recover` repairs it")
    output.remark(
        f"{into}: {len(built.queues):,} queues with {built.units:,} units, {len(built.index_names):,} index files with "
        f"{built.entries:,} entries"
    )
    show_losses(tuple(losses), output)
    return Status.GIVEN_UP if losses else Status.OK
