"""``mqtool recover``."""

import click

from mqtool.commands._options import BROKER_LINE
from mqtool.commands._repair import RepairCommand, repair_options
from mqtool.errors import UsageError


@click.command(short_help="Repair the log, queues, index and checkpoint.")
@click.option("--normal", "mode", flag_value="normal", help="As after a clean stop: check the last three segments.")
@click.option("--abnormal", "mode", flag_value="abnormal", help="As after a crash: check the whole log.")
@click.option("--cut", is_flag=True, help="Truncate the log at the first damage, as brokers do.")
@click.option(
    "--cut-at",
    type=click.IntRange(min=1),
    metavar="OFFSET",
    help="Truncate the log where the message at OFFSET starts: for a slave whose messages differ from its master's "
    "from there on.",
)
@click.option(
    "--as-broker",
    "version",
    type=BROKER_LINE,
    help="Show what this broker would do at startup; with --yes do the same.",
)
@repair_options
def command(mode: str | None, cut: bool, cut_at: int | None, version: str | None, repair: RepairCommand) -> int:
    """Recover a store as a broker does at startup, but without its bugs and without losing messages.

    Finds the end of the log, bridges damage before it with placeholders so that every message that passes its
    checks keeps its place, removes what is torn after it, trims and completes queues and index, and sets the
    checkpoint. By default, also with --as-broker, the abort file decides between --normal and --abnormal. The
    plan is shown first; `mqtool undo` undoes everything.
    """
    if version is not None:
        if cut or cut_at is not None:
            raise UsageError("--as-broker truncates the log where that broker does: leave out --cut and --cut-at")
        return repair.run("recover-as-broker", {"version": version, "mode": mode})
    at = {} if cut_at is None else {"cut_at": cut_at}
    return repair.run("recover", {"mode": mode, "cut": cut, **at})
