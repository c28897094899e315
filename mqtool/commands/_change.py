"""What ``topic``, ``group`` and ``offset`` share that change something: on brokers, or in a store by a mend."""

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mqtool.commands._admin import Master, masters
from mqtool.commands._mend import Mending, Question, question_options
from mqtool.commands._options import default_store, load_config
from mqtool.commands._output import Output
from mqtool.commands._wire import NAMESRV_ADDR, Brokers, either_options
from mqtool.errors import NotFoundError, Status, UsageError

if TYPE_CHECKING:
    from mqtool.engine.client import questions
    from mqtool.engine.client_runtime import Wire

Plan = Callable[["Wire", list[Master], dict[str, Any], "Changes"], Awaitable[None]]
"""Adds to the last what is to be changed on brokers, by the options of a command."""

broker_option = click.option("--broker", "broker_name", metavar="NAME", help="Only on this broker. Default: on all.")


@dataclass
class Changes:
    """What is to be changed on brokers: a row for each, and the request that does it."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    requests: "list[tuple[str, questions.Question[None]]]" = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    routes: list[str] = field(default_factory=list)

    def add(
        self, what: str, broker: Master, reason: str, request: "questions.Question[None] | None", **fields: Any
    ) -> None:
        """Add a change; ``what`` is create, replace or remove. One without a request is done by that of another."""
        row = {"kind": "change", "what": what, "broker_name": broker.broker_name, **fields, "reason": reason}
        self.rows.append(row)
        if request:
            self.requests.append((broker.address, request))

    def forget_route(self, topic: str) -> None:
        """Have the name servers forget a topic, once the brokers have."""
        self.routes.append(topic)


@dataclass(frozen=True)
class Target:
    """Where something is to be changed, and how the user wants to be asked."""

    brokers: Brokers | None
    mending: Mending | None
    question: Question
    output: Output

    def run(self, edit: str, options: dict[str, Any], broker_name: str | None, plan: Plan) -> int:
        """Plan a change, show it, ask, carry it out; return the status.

        Args:
            edit: a name of ``engine.repair.edit_config.EDITS``.
            options: of the command.
            broker_name: the one broker that is meant.
            plan: what is to be done on brokers.
        """
        if self.brokers:
            return self.brokers.run(lambda wire: self._change(wire, options, broker_name, plan))
        assert self.mending
        if broker_name is not None:
            raise UsageError("--broker names one of several brokers: a store is of one")
        return self.mending.run(edit.partition(" ")[0], {"edit": edit, **options})

    async def _change(self, wire: "Wire", options: dict[str, Any], broker_name: str | None, plan: Plan) -> int:
        from mqtool.engine.client import questions

        changes = Changes()
        await plan(wire, await masters(wire, broker_name), options, changes)
        if changes.rows:
            told = {name for row in changes.rows for name, value in row.items() if value not in (None, "")}
            self.output.columns = [name for name in changes.rows[0] if name in told - {"kind"}]
        for row in changes.rows:
            self.output.row(row)
        for remark in changes.remarks:
            self.output.remark(remark)
        if not changes.rows:
            self.output.remark("there is nothing to change")
            return Status.OK
        self.output.flush()
        if not self.question.is_answered_yes("Do this?"):
            return Status.DAMAGE
        for address, request in changes.requests:
            await wire.ask(address, request)
        for topic in changes.routes if broker_name is None else ():
            for address in wire.name_servers:
                await wire.ask(address, questions.delete_route(topic))
        self.output.remark("done")
        return Status.OK


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of brokers, of a store and of what asks first; the command receives a ``Target``."""

    @either_options
    @question_options
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        brokers: Brokers | None,
        is_explicit: bool,
        store: Path | None,
        config: Path | None,
        settings: tuple[str, ...],
        question: Question,
        output: Output,
        **kwargs: Any,
    ) -> Any:
        if brokers:
            if not is_explicit:
                _refuse_two_meanings(brokers)
            return command(*args, target=Target(brokers, None, question, output), **kwargs)

        loaded = load_config(config, settings)
        mending = Mending(store or default_store(), loaded, question, None, 1, output)
        return command(*args, target=Target(None, mending, question, output), **kwargs)

    return wrapped


def _refuse_two_meanings(brokers: Brokers) -> None:
    """Refuse to choose between the brokers of the environment and a store."""
    try:
        store = default_store()
    except NotFoundError:
        return
    where = ";".join(brokers.name_servers)
    raise UsageError(f"{NAMESRV_ADDR} names brokers ({where}) and there is the store {store.resolve()}: give -n or -s")
