"""Plans: what a repair would change in a store and what would be lost, determined before any change."""

import dataclasses
import importlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mqtool.engine.repair.journal import Journal, RepairFailedError, cut_off, fingerprint, holding, home_of
from mqtool.engine.repair.parts import Progress
from mqtool.engine.store.disk import Disk, allocated, mount_of, mount_points
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import (
    BadDataError,
    MqtoolError,
    StoreChangedError,
    StoreInUseError,
    UsageError,
    WriteError,
)

_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Change:
    """One change that a repair makes.

    ``what`` is write, create, cut, remove, rename or replace; ``file`` a file or folder relative to the store, by the
    its name before the repair; ``offset`` and ``size`` are bytes in that file.
    """

    what: str
    file: str
    reason: str
    offset: int | None = None
    size: int | None = None


@dataclasses.dataclass(frozen=True)
class Loss:
    """What a repair gives up: consecutive messages of one queue.

    The topic is None if it cannot be known; queue and offsets are None if the messages have no place in a queue.
    ``bytes`` counts known bytes: a message of which only its queue offset is left has none.
    """

    topic: str | None
    messages: int
    bytes: int
    reason: str
    queue_id: int | None = None
    queue_offset: int | None = None  # the first
    end_queue_offset: int | None = None  # one past the last


@dataclasses.dataclass(frozen=True)
class GroupEffect:
    """The effect of a repair, or of a broker's start, on a consumer group in one queue, in messages.

    ``missed``: messages that the group has not read yet and never gets; ``repeated``: those that it gets once more;
    ``skipped``: future messages that it would skip, as its offset is beyond the end of the queue.
    """

    group: str
    topic: str
    queue_id: int
    queue_offset: int  # what it reads next
    end_queue_offset: int  # of the queue, as it becomes
    missed: int = 0
    repeated: int = 0
    skipped: int = 0


@dataclasses.dataclass(frozen=True)
class Plan:
    """What ``command`` with ``options`` would do; ``refusal`` says why it cannot be done, if so.

    A repair fills in the first part and the last; ``plan_repair`` adds the second. ``found`` is what it needs to
    apply the plan; a saved plan has none, so that applying it walks the store again.
    """

    command: str
    options: Mapping[str, Any]
    changes: tuple[Change, ...] = ()
    losses: tuple[Loss, ...] = ()
    remarks: tuple[str, ...] = ()
    journal_size: int = 0  # bytes that undo needs beside the store

    store: str = ""
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fingerprint: str = ""

    refusal: str | None = None
    groups: tuple[GroupEffect, ...] = ()

    write_size: int = 0  # bytes that are written into files of the store
    growth: int = 0  # bytes of these that need new space on the store's disk
    read_size: int = 0  # bytes of the log that are read again to apply the plan
    found: Any = dataclasses.field(default=None, compare=False, repr=False)

    def to_json(self) -> str:
        """Return the plan as text, to be saved."""
        plain = dataclasses.asdict(dataclasses.replace(self, found=None))
        del plain["found"]
        return json.dumps({"mqtool_plan": _FORMAT, **plain}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Return the plan that ``to_json`` wrote.

        Raises:
            BadDataError: the text is not a plan, or one of another version.
        """
        try:
            fields = json.loads(text)
            if fields.pop("mqtool_plan") != _FORMAT:
                raise BadDataError("this plan was saved by another version of mqtool: plan again")
            fields["changes"] = tuple(Change(**change) for change in fields["changes"])
            fields["losses"] = tuple(Loss(**loss) for loss in fields["losses"])
            fields["groups"] = tuple(GroupEffect(**effect) for effect in fields["groups"])
            fields["remarks"] = tuple(fields["remarks"])
            return cls(**fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadDataError("this is not a plan: give a file written by --save-plan") from error


class Repair(NamedTuple):
    """A repair: functions that plan it, and that apply a plan through a journal.

    ``plan`` takes reader, options, threads and progress; ``apply`` reader, plan, journal, threads and progress.
    """

    plan: Callable[[StoreReader, Mapping[str, Any], int, Progress], Plan]
    apply: Callable[[StoreReader, Plan, Journal, int, Progress], None]


def _in_module(module: str, name: str) -> Repair:
    """Return ``plan_NAME`` and ``apply_NAME`` of a module of this package, which loads when they are called."""

    def call(verb: str, *arguments: Any) -> Any:
        return getattr(importlib.import_module(f"{__package__}.{module}"), f"{verb}_{name}")(*arguments)

    return Repair(lambda *arguments: call("plan", *arguments), lambda *arguments: call("apply", *arguments))


REPAIRS = {
    "recover": _in_module("recover.plan", "recover"),
    "recover-as-broker": _in_module("java_recovery.plan", "as_broker"),
    "rebuild": _in_module("rebuild.plan", "rebuild"),
    **dict.fromkeys(("topic", "group", "offset"), _in_module("edit_config", "edit")),
}


def plan_repair(
    root: Path,
    config: StoreConfig,
    command: str,
    options: Mapping[str, Any],
    jobs: int = 1,
    progress: Progress = lambda _: None,
) -> Plan:
    """Return what a repair would do; nothing is written.

    Args:
        root: the store.
        config: the broker's settings.
        command: a name of ``REPAIRS``.
        options: that repair's, as JSON can hold them.
        jobs: number of threads.
        progress: called with the number of bytes done so far.

    Raises:
        UsageError: ``root`` is one file of a store.
        StoreInUseError: a broker holds the store.
        StoreChangedError: an earlier repair was interrupted and must be undone first.
    """
    reader = _open(root, config)
    if reader.is_live:
        raise StoreInUseError(f"a broker is running on {reader.root}: stop it first")
    _refuse_cut_off(reader.root)
    looks = fingerprint(reader.root, further_folders(reader))  # before the plan, so that a change meanwhile is noticed
    plan = REPAIRS[command].plan(reader, options, jobs, progress)
    copied, remark = _copied(reader.root, plan)
    plan = dataclasses.replace(plan, journal_size=plan.journal_size + copied)
    lack = lack_of_room(reader.root, plan)
    told = [*reader.remarks, *plan.remarks, *remark, *_linked(reader, plan), *([lack] if lack else [])]
    remarks = tuple(dict.fromkeys(told))
    return dataclasses.replace(
        plan,
        remarks=remarks,
        store=str(reader.root.resolve()),
        settings=dict(config.settings),
        fingerprint=looks,
    )


def carry_out(
    root: Path,
    config: StoreConfig,
    plan: Plan,
    disk: Disk,
    jobs: int = 1,
    progress: Progress = lambda _: None,
    settle: Callable[[], None] = lambda: None,
) -> None:
    """Apply a plan. If that fails or is interrupted, it is undone before the error is raised.

    Args:
        root: the store.
        config: the settings that the plan was made with.
        plan: by ``plan_repair``.
        disk: through which everything is written.
        jobs: number of threads.
        progress: called with the number of bytes done so far.
        settle: called when it must not be interrupted any more: at its end, or before it is undone.

    Raises:
        RepairFailedError: the repair could not be carried out; the sentence says whether the store is as before.
        StoreInUseError: a broker holds the store, or another repair is at work.
        StoreChangedError: the store is not in the state for which the plan was made.
    """
    reader = _open(root, config)
    with holding(reader.root, disk):
        _refuse_cut_off(reader.root)
        if fingerprint(reader.root, further_folders(reader)) != plan.fingerprint:
            raise StoreChangedError("the store has changed since the plan was made: plan again")
        _check_room(reader.root, plan)
        try:
            journal = Journal.begin(reader.root, plan.command, plan.options, disk, further_folders(reader))
        except MqtoolError as error:
            raise RepairFailedError(error, "the store was not changed") from error
        try:
            REPAIRS[plan.command].apply(reader, plan, journal, jobs, progress)
            settle()
            journal.finish()
        except (Exception, KeyboardInterrupt) as error:
            settle()
            _give_up(journal, error)
            raise


def _give_up(journal: Journal, error: BaseException) -> None:
    """Undo what was done; raise an error for users, or return if the original error is clear enough."""
    try:
        journal.take_back()
    except (MqtoolError, OSError) as second:
        then = f"undoing it failed too ({second}): run `mqtool undo` when the cause is fixed"
        raise RepairFailedError(error if isinstance(error, Exception) else second, then) from error
    if isinstance(error, MqtoolError | OSError):
        raise RepairFailedError(error, "everything was undone, the store is as before") from error
    error.add_note("everything was undone, the store is as before")


def _open(root: Path, config: StoreConfig) -> StoreReader:
    reader = StoreReader(root, config)
    if reader.paths.single:
        raise UsageError(f"{root} is a single file of a store: only a whole store can be repaired, give its directory")
    if reader.paths.is_log:
        parent = root.resolve().parent
        store = parent.parent if reader.paths.dledger else parent
        raise UsageError(f"{root} is only the log of a store: only a whole store can be repaired, give {store}")
    return reader


def further_folders(reader: StoreReader) -> tuple[Path, ...]:
    """Return the folders of the log outside of the store."""
    root = reader.root.resolve()
    folders = [folder.resolve() for folder in reader.paths.commit_log]
    return tuple(folder for folder in folders if not folder.is_relative_to(root))


def _refuse_cut_off(root: Path) -> None:
    info = cut_off(root)
    if info:
        raise StoreChangedError(f"the repair {info.name} was interrupted: undo it with `mqtool undo` first")


def _copied(root: Path, plan: Plan) -> tuple[int, list[str]]:
    """Return how many bytes a plan must copy because they are on another disk, and remarks on that."""
    points = mount_points()
    home = mount_of(home_of(root), points)
    replaced = {root / change.file for change in plan.changes if change.what in ("remove", "replace")}
    far = [path for path in replaced if mount_of(path, points) != home]
    if not far:
        return 0, []
    size = sum(allocated(path) for path in far)
    return size, [f"what is removed is copied, {size:,} bytes: {home_of(root)} is on another file system"]


def _linked(reader: StoreReader, plan: Plan) -> list[str]:
    """Return a remark on files that have other names, as in a backup by `cp -al`, and change under these as well."""
    written = {reader.root / change.file for change in plan.changes if change.what in ("write", "cut")}
    files = {file for path in written for file in (path.glob("*") if path.is_dir() else [path])}
    linked = [file for file in files if file.is_file() and file.stat().st_nlink > 1]
    if not linked:
        return []
    count = f"{len(linked):,} files have" if len(linked) > 1 else f"{reader.paths.relative(linked[0])} has"
    return [f"{count} other names (hard links): a copy that consists of such links changes as well"]


def _check_room(root: Path, plan: Plan) -> None:
    lack = lack_of_room(root, plan)
    if lack:
        raise WriteError(f"{lack}; the store was not changed")


def lack_of_room(root: Path, plan: Plan) -> str | None:
    """Return a sentence on where a plan lacks disk space, None if there is enough."""
    home = home_of(root)
    beside = home if home.exists() else home.parent
    free, free_beside = shutil.disk_usage(root).free, shutil.disk_usage(beside).free
    is_one = root.stat().st_dev == beside.stat().st_dev
    if plan.journal_size > free_beside:
        return f"no space left for {home}: undo needs {plan.journal_size:,} bytes there, {free_beside:,} are free"
    needed = plan.growth + (plan.journal_size if is_one else 0)
    if needed > free:
        return f"no space left for {root}: {needed:,} bytes are needed there, {free:,} are free"
    return None
