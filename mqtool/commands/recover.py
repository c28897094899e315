"""``mqtool recover``."""

import click

from mqtool.commands._options import BROKER_LINE
from mqtool.commands._repair import RepairCommand, repair_options
from mqtool.errors import UsageError


@click.command(short_help="Mend log, queues, index and checkpoint.")
@click.option("--normal", "mode", flag_value="normal", help="As after a clean stop: look at the last three segments.")
@click.option("--abnormal", "mode", flag_value="abnormal", help="As after a crash: look at the whole log.")
@click.option("--cut", is_flag=True, help="End the log at the first damage, as brokers do.")
@click.option(
    "--cut-at",
    type=click.IntRange(min=1),
    metavar="OFFSET",
    help="End the log where the message at OFFSET begins: of a slave that has others from there on than its master.",
)
@click.option(
    "--as-broker",
    "version",
    type=BROKER_LINE,
    help="Tell what this broker would do when it starts; with --yes do the same.",
)
@repair_options
def command(mode: str | None, cut: bool, cut_at: int | None, version: str | None, repair: RepairCommand) -> int:
    """Do what a broker does when it starts, but without its faults and without loss.

    Finds the end of the log, bridges damage before it with placeholders so that every message that checks out keeps
    its place, clears what is torn behind it, trims and fills up queues and index, sets the checkpoint. Without
    --normal or --abnormal the abort file decides, for --as-broker too. The plan comes first; `mqtool undo` takes
    everything back.
    """
    if version is not None:
        if cut or cut_at is not None:
            raise UsageError("--as-broker ends the log where that broker does: leave --cut and --cut-at out")
        return repair.run("recover-as-broker", {"version": version, "mode": mode})
    at = {} if cut_at is None else {"cut_at": cut_at}
    return repair.run("recover", {"mode": mode, "cut": cut, **at})
