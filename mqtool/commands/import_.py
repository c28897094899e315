"""``mqtool import``."""

import shlex
from pathlib import Path

import click

from mqtool.commands._interrupts import changing
from mqtool.commands._options import NewPath, jobs_option, load_config, output_option, tell_left_over
from mqtool.commands._output import Output, progress
from mqtool.commands._repair import show_losses
from mqtool.commands._streams import outlast_readers
from mqtool.errors import Status


@click.command(short_help="Create a store from exported messages.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path, readable=False))
@click.option(
    "--into", required=True, type=NewPath(), metavar="DIR",
    help="Directory of the new store: empty, or not existing yet.",
)  # fmt: skip
@click.option("--renumber", is_flag=True, help="Number the messages of each queue from 0, without gaps.")
@click.option(
    "-c", "--config", type=click.Path(path_type=Path, readable=False), help="The broker's configuration file."
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A broker setting; repeatable.")
@jobs_option
@output_option
def command(
    files: tuple[Path, ...],
    into: Path,
    renumber: bool,
    config: Path | None,
    settings: tuple[str, ...],
    jobs: int,
    output: Output,
) -> int:
    """Create a store from what `mqtool export` wrote, JSON lines or Parquet, the oldest messages first.

    \b
      mqtool import --into store orders.parquet

    Messages keep queues, queue offsets, times and everything else except their addresses and what is derived from
    these (the offset message ids). Messages with an impossible queue id or queue offset, which damage can
    cause, are left out: they are listed by topic, queue and queue offset, and the exit status is 5. If messages of a
    queue are missing, placeholders with the property MQTOOL_LOST take their places, or --renumber closes the gaps.
    File sizes are RocketMQ's defaults, or those set with -c and --set.
    """  # noqa: D301
    from mqtool.engine.repair.salvage.transfer import import_files

    outlast_readers()
    store_config = load_config(config, settings)
    total = sum(path.stat().st_size for path in files if path.is_file())
    output.tell_compiling(total)
    tell_left_over(into, output)
    with changing() as interrupts, progress(total, "import") as advance:
        done = import_files(files, into, store_config, interrupts.disk(), renumber, jobs, interrupts.progress(advance))
        interrupts.settle()
    show_losses(tuple(done.losses), output)
    for topic, count in sorted(done.placeholders.items()):
        many = f"{count:,} placeholders were written" if count > 1 else "one placeholder was written"
        output.remark(f"{topic}: {many} for queue offsets without a message")
    for remark in done.remarks:
        output.remark(remark)
    check = f"`mqtool verify -s {shlex.quote(str(into))}` checks the new store"
    output.remark(f"{done.messages:,} messages imported into {into}; {check}")
    return Status.GIVEN_UP if done.losses else Status.OK
