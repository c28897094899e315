"""What all commands share that change a store: the plan first, then the question, then the work."""

import collections
import functools
import itertools
import re
import shlex
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mqtool.commands._interrupts import changing
from mqtool.commands._options import default_store, jobs_option, load_config, output_option, store_names
from mqtool.commands._output import Output, printable, progress
from mqtool.commands._streams import outlast_readers
from mqtool.errors import Status, UsageError

if TYPE_CHECKING:
    from mqtool.engine.repair.plan import Change, GroupEffect, Loss, Plan
    from mqtool.engine.store.paths import StoreConfig

_NUMBER = re.compile(r"\d[\d,]*")
_FIELDS = dict.fromkeys(
    (
        *("what", "file", "offset", "size", "topic", "messages", "bytes", "reason"),
        *("queue_id", "queue_offset", "end_queue_offset"),
        *("group", "missed", "repeated", "skipped", "next"),
    )
)
"""What each row has, and what is not known of a thing."""
_READ_RATE = 500 << 20
_WRITE_RATE = 200 << 20
"""Bytes a second of a plain disk, synced."""
_MAX_SHOWN = 5
"""So many changes of one kind are listed each; of more, a table shows the sum."""
_MAX_ALIKE = 20
"""So many remarks that differ only in numbers are shown each; of more, a table shows the first few."""
_MAX_QUEUES = 40
"""Losses of so many queues are shown with their offsets; of more, a table shows the sum of each topic."""


@dataclass(frozen=True)
class Confirmation:
    """How a command asks before it changes anything: ``--yes`` and ``--dry-run``."""

    yes: bool
    dry_run: bool
    output: Output

    def is_answered_yes(self, text: str) -> bool:
        """Ask, unless the options have answered; a no is said so."""
        if self.dry_run:
            self.output.remark("nothing was changed (--dry-run)")
        elif self.yes:
            return True
        elif not sys.stdin.isatty():
            self.output.remark("nothing was changed: there is no terminal to ask for confirmation; use --yes")
        elif click.confirm(text, err=True):
            return True
        else:
            self.output.remark("nothing was changed")
        return False


@dataclass(frozen=True)
class RepairCommand:
    """One run of a command that repairs: the store, and how the user wants to be asked."""

    root: Path
    config: "StoreConfig"
    confirmation: Confirmation
    save_plan: Path | None
    jobs: int
    output: Output

    def run(self, command: str, options: Mapping[str, Any]) -> int:
        """Plan the repair ``command`` (of ``plan.REPAIRS``), show it, ask, carry it out; return the status."""
        from mqtool.engine.repair.plan import plan_repair

        if not self._take_back_cut_off():
            return Status.DAMAGE
        self._check_save_plan()
        total = self._size_of_log()
        self.output.tell_compiling(total)
        begun = time.monotonic()
        with progress(total, "plan") as advance:
            plan = plan_repair(self.root, self.config, command, options, self.jobs, advance)
        rate = total / max(time.monotonic() - begun, 1e-3)
        if self.save_plan:
            self._save(plan, self.save_plan)
        return self.carry_out(plan, rate)

    def apply(self, plan: "Plan") -> int:
        """Show a plan that was saved, ask, carry it out; return the status."""
        return self.carry_out(plan) if self._take_back_cut_off() else Status.DAMAGE

    def carry_out(self, plan: "Plan", rate: float = _READ_RATE) -> int:
        """Show a plan, ask, carry it out; return the status. ``rate``: bytes of log that were planned in a second."""
        from mqtool.engine.repair import plan as plans

        show(plan, self.output)
        if plan.changes:
            tell_cost(plan, self.output, rate)
        if plan.refusal:
            self.output.remark(f"nothing was changed: {plan.refusal}")
            return Status.DAMAGE
        if not plan.changes:
            self.output.remark("there is nothing to repair")
            return Status.OK
        if not self._is_wanted():
            return Status.DAMAGE
        self.output.flush()  # what cannot be shown is not done
        try:
            with changing() as interrupts, progress(self._size_of_log(), plan.command) as advance:
                checked = interrupts.progress(advance)
                plans.carry_out(self.root, self.config, plan, interrupts.disk(), self.jobs, checked, interrupts.settle)
        except KeyboardInterrupt as interrupt:
            for note in getattr(interrupt, "__notes__", ["interrupted"]):
                self.output.remark(note)
            raise
        root = shlex.quote(str(self.root))
        self.output.remark(f"done; `mqtool undo -s {root}` undoes it, `mqtool verify -s {root}` checks the store")
        return Status.GIVEN_UP if plan.losses else Status.OK

    def _is_wanted(self) -> bool:
        if self.save_plan and not self.confirmation.yes:
            self.output.remark(f"nothing was changed; `mqtool apply {self.save_plan}` applies the plan")
            return False
        return self.confirmation.is_answered_yes("Proceed?")

    def _take_back_cut_off(self) -> bool:
        """Undo a repair that was killed, as a new one must begin with a whole store; say whether that is done."""
        from mqtool.engine.repair.journal import cut_off, undo
        from mqtool.engine.store.disk import Disk
        from mqtool.engine.store.remote import refuse_remote

        refuse_remote(self.root, click.get_current_context().info_name or "this")
        info = cut_off(self.root)
        if info is None:
            return True
        self.output.remark(f"the repair {info.name} was interrupted; it is undone before another one starts")
        if not self.confirmation.is_answered_yes("Undo it?"):
            return False
        with changing() as interrupts:
            interrupts.settle()  # half of it helps nobody
            undo(self.root, Disk())
        self.output.remark(f"{info.name} was undone")
        return True

    def _size_of_log(self) -> int:
        from mqtool.engine.store.reader import StoreReader

        return StoreReader(self.root, self.config).commit_log.total_size

    def _check_save_plan(self) -> None:
        if self.save_plan and self.save_plan.resolve().is_relative_to(self.root.resolve()):
            raise UsageError(f"{self.save_plan} is inside the store, which a plan must not change: save it elsewhere")

    def _save(self, plan: "Plan", path: Path) -> None:
        from mqtool.engine.store.disk import writing

        with writing(path):
            path.write_text(plan.to_json(), "utf-8")


def confirmation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--yes``, ``--dry-run`` and ``-o``; the command receives a ``Confirmation`` and the ``Output``."""

    @click.option("-y", "--yes", is_flag=True, help="Proceed without asking.")
    @click.option(
        "--dry-run", is_flag=True, help="Only report what would be done; exit with status 3 if there is anything to do."
    )
    @output_option
    @functools.wraps(command)
    def wrapped(*args: Any, yes: bool, dry_run: bool, output: Output, **kwargs: Any) -> Any:
        if yes and dry_run:
            raise UsageError("--yes and --dry-run are mutually exclusive")
        outlast_readers()
        return command(*args, confirmation=Confirmation(yes, dry_run, output), output=output, **kwargs)

    return wrapped


def repair_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every repair; the command receives a ``RepairCommand`` and returns its ``run(..)``."""

    @store_names
    @click.option(
        "--save-plan",
        type=click.Path(path_type=Path, dir_okay=False, readable=False),
        help="Write the plan to a file for `apply`.",
    )
    @jobs_option
    @confirmation_options
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        store: Path | None,
        config: Path | None,
        settings: tuple[str, ...],
        save_plan: Path | None,
        jobs: int,
        confirmation: Confirmation,
        output: Output,
        **kwargs: Any,
    ) -> Any:

        loaded = load_config(config, settings)
        repair = RepairCommand(store or default_store(), loaded, confirmation, save_plan, jobs, output)
        return command(*args, repair=repair, **kwargs)

    return wrapped


def show(plan: "Plan", output: Output) -> None:
    """Write what a plan does, what it gives up and which groups feel it: a row each, for people summed up."""
    from mqtool.engine.repair.group_effects import advice

    if output.is_table:
        _show_to_people(plan, output)
    else:
        for change in plan.changes:
            output.row(_row("change", vars(change)))
        show_losses(plan.losses, output)
        for effect in plan.groups:
            output.row(_row("group", vars(effect) | {"next": advice(effect, f"-s {shlex.quote(plan.store)}")}))
    for remark in _few_of_each_kind(plan.remarks) if output.is_table else plan.remarks:
        output.remark(remark)


def _few_of_each_kind(remarks: Sequence[str]) -> Iterator[str]:
    """Yield remarks, and of many that differ in numbers only the first few and how many others there are."""
    kinds = [_NUMBER.sub("..", remark) for remark in remarks]
    counts, told = collections.Counter(kinds), collections.Counter[str]()
    for remark, kind in zip(remarks, kinds, strict=True):
        told[kind] += 1
        if counts[kind] <= _MAX_ALIKE or told[kind] <= _MAX_SHOWN:
            yield remark
        elif told[kind] == counts[kind]:
            yield f"the same applies to {counts[kind] - _MAX_SHOWN:,} more places: `-o jsonl` lists all of them"


def tell_cost(plan: "Plan", output: Output, rate: float) -> None:
    """Tell space and time of the work: what is read again goes at the rate of the plan, what is written at a disk's."""
    written = plan.write_size + plan.journal_size
    seconds = plan.read_size / max(rate, 1) + written / _WRITE_RATE
    grows = f", using up to {plan.growth:,} more on its disk" if plan.growth else ""
    span = f"{round(seconds):,} s" if seconds > 1 else "a second"
    output.remark(f"{plan.write_size:,} bytes are written to the store{grows}, in about {span}")
    output.remark(f"undo needs up to {plan.journal_size:,} bytes next to the store")


def _row(kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": kind, **_FIELDS, **fields}


def _show_to_people(plan: "Plan", output: Output) -> None:
    def kind(change: "Change") -> tuple[str, str, str]:
        """Return what changes of one kind have in common: of their reasons all but the numbers."""
        return change.what, change.file.partition("/")[0], _NUMBER.sub("..", change.reason)

    in_order = sorted(plan.changes, key=lambda change: (kind(change), change.file))
    for (action, folder, reason), group in itertools.groupby(in_order, kind):
        changes = list(group)
        if len(changes) <= _MAX_SHOWN:
            for change in changes:
                _tell(output, _sentence(change))
        else:
            size = sum(change.size or 0 for change in changes)
            of = f", {size:,} bytes" if size else ""
            is_same = len({change.reason for change in changes}) == 1
            why = changes[0].reason if is_same else reason
            _tell(output, f"{action:8}{len(changes):,} places in {folder}{of}: {why}")
    if plan.losses:
        show_losses(plan.losses, output)
        output.text()
    elif plan.changes:
        output.text("No message is lost.")
    if plan.groups:
        _show_groups(plan.groups, f"-s {shlex.quote(plan.store)}", output)


def _show_groups(groups: "tuple[GroupEffect, ...]", at: str, output: Output) -> None:
    from mqtool.engine.repair.group_effects import advice

    output.text(click.style("These groups miss, repeat or skip messages:", fg="red", bold=True))
    output.new_table(("group", "topic", "queue_id", "missed", "repeated", "skipped"))
    for effect in groups:
        output.row(vars(effect))
    output.text()
    commands = [command for effect in groups if (command := advice(effect, at))]
    if commands:
        output.text("Run afterwards, so that messages sent later are not skipped:")
    for command in commands:
        output.text(click.style(f"   {command}", fg="green"))


def show_losses(losses: "tuple[Loss, ...]", output: Output) -> None:
    """Write a row for each loss; for people one for each queue and reason, or topic and reason where these are many."""
    if not output.is_table:
        for loss in losses:
            output.row(_row("loss", vars(loss)))
        return
    if not losses:
        return
    output.text()
    output.text(click.style("Lost:", fg="red", bold=True))
    by_queue = _grouped(losses, lambda loss: (loss.topic, loss.queue_id, loss.reason))
    if len(by_queue) <= _MAX_QUEUES:
        output.new_table(("messages", "bytes", "topic", "queue", "offsets", "reason"))
        for group in by_queue:
            queue = "" if group[0].queue_id is None else group[0].queue_id
            output.row(_sum_of(group) | {"queue": queue, "offsets": _offsets(group)})
        return
    output.new_table(("messages", "bytes", "topic", "queues", "reason"))
    for group in _grouped(losses, lambda loss: (loss.topic, loss.reason)):
        output.row(_sum_of(group) | {"queues": len({loss.queue_id for loss in group})})
    output.remark("`-o jsonl` lists the losses of each queue by queue offset")


def _grouped(losses: "tuple[Loss, ...]", key: "Callable[[Loss], Any]") -> "list[list[Loss]]":
    groups: dict[Any, list[Loss]] = {}
    for loss in losses:
        groups.setdefault(key(loss), []).append(loss)
    return list(groups.values())


def _sum_of(group: "list[Loss]") -> dict[str, Any]:
    size = sum(loss.bytes for loss in group)
    topic, reason = group[0].topic or "(unknown)", group[0].reason
    return {"messages": sum(loss.messages for loss in group), "bytes": size, "topic": topic, "reason": reason}


def _offsets(group: "list[Loss]") -> str:
    """Return the queue offsets of losses of one queue, a few of many."""
    texts = [
        str(loss.queue_offset) if loss.messages == 1 else f"{loss.queue_offset}-{(loss.end_queue_offset or 0) - 1}"
        for loss in group
        if loss.queue_offset is not None
    ]
    more = len(texts) - _MAX_SHOWN
    return ", ".join(texts[:_MAX_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def _tell(output: Output, text: str) -> None:
    """Write a sentence as a paragraph that leaves its first word free."""
    fill = textwrap.TextWrapper(output.width, subsequent_indent=" " * 8, break_long_words=False, break_on_hyphens=False)
    first, _, rest = printable(text).partition(" ")
    output.text(fill.fill(f"{first:8}{rest.lstrip()}"))


def _sentence(change: "Change") -> str:
    place = change.file if change.offset is None else f"{change.file}@{change.offset}"
    of = "" if change.size is None else f", {change.size:,} bytes"
    return f"{change.what:8}{place}{of}: {change.reason}"
