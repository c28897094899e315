"""``mqtool undo``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mqtool.commands._interrupts import changing
from mqtool.commands._options import STORE, default_store
from mqtool.commands._output import Output, iso_time
from mqtool.commands._repair import Confirmation, confirmation_options
from mqtool.errors import NotFoundError, Status

if TYPE_CHECKING:
    from mqtool.engine.repair.journal import JournalInfo


@click.command(short_help="Undo the last repair.")
@click.argument("name", required=False)
@click.option("-s", "--store", type=STORE, help="The store's directory.")
@click.option("--list", "listing", is_flag=True, help="List the repairs of this store.")
@click.option("--force", is_flag=True, help="Undo even if the store has changed since the repair.")
@confirmation_options
def command(
    name: str | None, store: Path | None, listing: bool, force: bool, confirmation: Confirmation, output: Output
) -> int:
    """Restore the store as it was before the last repair: bytes, lengths, names and times.

    This also undoes a repair that was killed halfway, and continues an undo that was killed. Repairs are undone
    in reverse order: give NAME, from --list, to make sure that the last repair is the one you mean.
    """
    from mqtool.engine.repair.journal import journals, refuse_changed, to_undo, undo
    from mqtool.engine.store.disk import Disk
    from mqtool.engine.store.remote import refuse_remote

    root = store or default_store()
    refuse_remote(root, "undo")
    if not root.is_dir():
        raise NotFoundError(f"{root} is not a directory: give a broker's store with -s")
    if listing:
        output.columns = ("name", "command", "time", "state", "size")
        for info in journals(root):
            output.row(_row(info))
        return Status.OK
    info = to_undo(root, name)
    if not force:
        refuse_changed(root.resolve(), info)
    output.remark(f"{info.command} of {iso_time(info.timestamp)} ({_state(info)}) would be undone: {info.name}")
    if not confirmation.is_answered_yes("Undo it?"):
        return Status.DAMAGE
    with changing() as interrupts:
        interrupts.settle()  # half of it helps nobody
        info, exact = undo(root, Disk(), info.name, force)
    if exact:
        output.remark(f"{info.name} was undone: the store is as it was before, in every name, size and time")
        return Status.OK
    output.remark(f"{info.name} was undone; other files of the store have changed since, and are left as they are")
    return Status.WARNINGS


def _row(info: "JournalInfo") -> dict[str, object]:
    return {
        "name": info.name,
        "command": info.command,
        "timestamp": info.timestamp,
        "time": iso_time(info.timestamp),
        "state": _state(info),
        "size": info.size,
    }


def _state(info: "JournalInfo") -> str:
    return info.state.name.lower().replace("_", " ")
