"""What ``topic``, ``group`` and ``offset`` share that change something: on brokers, or in a store by a repair."""

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mqtool.commands._brokers import NAMESRV_ADDR, Brokers
from mqtool.commands._options import default_store, load_config
from mqtool.commands._output import Output
from mqtool.commands._repair import Confirmation, RepairCommand, confirmation_options
from mqtool.commands._wire import either_options
from mqtool.errors import NotFoundError, Status, UsageError

if TYPE_CHECKING:
    from mqtool.engine.client_runtime.admin_changes import AdminChange, Changes
    from mqtool.engine.client_runtime.admin_client import AdminClient

Plan = Callable[["AdminClient"], Awaitable["Changes"]]
"""Returns what is to be changed on brokers."""

broker_option = click.option(
    "--broker", "broker_name", metavar="NAME", help="Only on this broker. Default: all brokers."
)


@dataclass(frozen=True)
class Target:
    """Where something is to be changed, and how the user wants to be asked."""

    brokers: Brokers | None
    repair: RepairCommand | None
    confirmation: Confirmation
    output: Output

    def run(self, edit: str, options: dict[str, Any], broker_name: str | None, plan: Plan) -> int:
        """Plan a change, show it, ask, carry it out; return the status.

        Args:
            edit: a name of ``engine.repair.edit_config.EDITS``.
            options: of the command.
            broker_name: the one broker that is meant; the plan knows it, a store has none.
            plan: what must be done on brokers.
        """
        if self.brokers:
            return self.brokers.admin(lambda admin: self._change(admin, plan))
        assert self.repair
        if broker_name is not None:
            raise UsageError("--broker selects one of several brokers, but a store belongs to only one: leave it out")
        return self.repair.run(edit.partition(" ")[0], {"edit": edit, **options})

    async def _change(self, admin: "AdminClient", plan: Plan) -> int:
        changes = await plan(admin)
        rows = [_row(change) for change in changes.changes]
        if rows:
            filled = {name for row in rows for name, value in row.items() if value not in (None, "")}
            self.output.columns = [name for name in rows[0] if name in filled - {"kind"}]
            self.output.always = ("queue_id", "reason", "new_offset")
        for row in rows:
            self.output.row(row)
        for remark in changes.remarks:
            self.output.remark(remark)
        if not rows:
            self.output.remark("there is nothing to change")
            return Status.OK
        self.output.flush()
        if not self.confirmation.is_answered_yes("Proceed?"):
            return Status.DAMAGE
        await admin.apply(changes)
        self.output.remark("done")
        return Status.OK


def _row(change: "AdminChange") -> dict[str, Any]:
    """Return a change as a row; what does not apply to its kind is left out."""
    row: dict[str, Any] = {"kind": "change", "what": change.what, "broker_name": change.broker_name}
    facts = {"group": change.group, "topic": change.topic, "queue_id": change.queue_id}
    row |= {
        name: value
        for name, value in facts.items()
        if value is not None or (name == "topic" and change.what == "remove")
    }
    if change.new_offset is not None:
        row |= {"consumer_offset": change.consumer_offset, "new_offset": change.new_offset}
    return {**row, "reason": change.reason}


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of brokers, of a store and of what asks first; the command receives a ``Target``."""

    @either_options
    @confirmation_options
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        brokers: Brokers | None,
        is_explicit: bool,
        store: Path | None,
        config: Path | None,
        settings: tuple[str, ...],
        confirmation: Confirmation,
        output: Output,
        **kwargs: Any,
    ) -> Any:
        if brokers:
            if not is_explicit:
                _refuse_two_meanings(brokers)
            return command(*args, target=Target(brokers, None, confirmation, output), **kwargs)

        loaded = load_config(config, settings)
        repair = RepairCommand(store or default_store(), loaded, confirmation, None, 1, output)
        return command(*args, target=Target(None, repair, confirmation, output), **kwargs)

    return wrapped


def _refuse_two_meanings(brokers: Brokers) -> None:
    """Refuse to choose between the brokers of the environment and a store."""
    try:
        store = default_store()
    except NotFoundError:
        return
    where = ";".join(brokers.name_servers)
    raise UsageError(f"{NAMESRV_ADDR} is set ({where}), and the store {store.resolve()} exists: choose with -n or -s")
