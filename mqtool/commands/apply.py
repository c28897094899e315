"""``mqtool apply``."""

from pathlib import Path

import click

from mqtool.commands._options import STORE, jobs_option
from mqtool.commands._output import Output
from mqtool.commands._repair import Confirmation, RepairCommand, confirmation_options


@click.command(short_help="Apply a plan saved with --save-plan.")
@click.argument("plan", type=click.Path(path_type=Path, dir_okay=False, readable=False))
@click.option(
    "-s",
    "--store",
    type=STORE,
    help="The store, if it has moved since the plan was made.",
)
@jobs_option
@confirmation_options
def command(plan: Path, store: Path | None, jobs: int, confirmation: Confirmation, output: Output) -> int:
    """Apply a plan that a repair saved with --save-plan, with the settings it was made with.

    It is refused if the store has changed since then.
    """
    from mqtool.engine.repair.plan import Plan
    from mqtool.engine.store.mapping import read_file
    from mqtool.engine.store.paths import StoreConfig

    saved = Plan.from_json(read_file(plan).decode("utf-8", "replace"))
    config = StoreConfig(saved.settings)
    return RepairCommand(store or Path(saved.store), config, confirmation, None, jobs, output).apply(saved)
