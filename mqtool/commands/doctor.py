"""``mqtool doctor``."""

import collections
import dataclasses
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mqtool.commands._options import BROKER_LINE, default_store, jobs_option, load_config, output_option, store_names
from mqtool.commands._output import Output, printable, progress
from mqtool.errors import NotPermittedError, Status, UsageError

if TYPE_CHECKING:
    from mqtool.engine.repair.doctor.broker import StartOutcome
    from mqtool.engine.repair.doctor.case import Case, Sign
    from mqtool.engine.repair.doctor.diagnosis import Diagnosis
    from mqtool.engine.store.paths import StoreConfig

_STYLES = {"error": "red", "warning": "yellow", "note": None}
_INDENT = "   "
_WIDEST = 120
_MAX_TOPICS = 3


@click.command(short_help="Explain why a broker does not start or deliver, and what to do.")
@click.option(
    "--for",
    "version",
    type=BROKER_LINE,
    help="The version of the broker to start. Default: those not older than the one that wrote the store.",
)
@click.option("-u", "--user", help="User the broker runs as. Default: the owner of most files.")
@jobs_option
@store_names
@output_option
def command(
    version: str | None,
    user: str | None,
    jobs: int,
    store: Path | None,
    config: Path | None,
    settings: tuple[str, ...],
    output: Output,
) -> int:
    """Explain why a broker does not start on this store or does not deliver, without writing anything.

    First shows what happens if a broker is started now: whether it starts, what it deletes or hides, and which
    groups miss or repeat messages, as `recover --as-broker` determines it. Then checks what brokers 4.9, 5.3 and
    5.5 depend on: files, permissions, locks, disks, tables, with -c broker.conf the settings, and runs the quick
    checks of `verify`. Lists each cause, the most likely first, with the evidence and the command to run next.
    Exits with status 3 if a broker does not start or loses data, 4 if there are only warnings.
    """
    from mqtool.engine.repair.doctor.diagnosis import examine
    from mqtool.engine.store.remote import is_remote

    given = load_config(config, settings)
    named = given.settings.get("storePathRootDir")
    root = store or (Path(named) if named else default_store())
    if is_remote(root):
        raise UsageError(
            f"doctor checks permissions and disks as a broker sees them, and {root} is not a local directory"
        )
    try:
        case = _open(root, given, config, user, version)
        total = sum(segment.size for segment in case.reader.commit_log.segments[-2:])
        output.tell_compiling(total)
        with progress(total, "doctor") as advance:
            case.jobs, case.progress = jobs, advance
            starts, found = examine(case)
    except (NotPermittedError, PermissionError):
        starts, found = _rights(root, given, user, version)
        if not found:
            raise
        _tell_all(output, starts, found, f"-s {root}")
        output.remark("only permissions were checked: run the command, then doctor again")
        return Status.DAMAGE
    counts = _tell_all(output, starts, found, case.at)
    for remark in [*case.reader.remarks, *(f"not checked: {problem}" for problem in case.problems)]:
        output.remark(remark)
    output.remark(_summary(case, starts, counts))
    return Status.DAMAGE if counts["error"] else Status.WARNINGS if counts["warning"] else Status.OK


def _tell_all(
    output: Output, starts: "list[StartOutcome]", found: "list[Diagnosis]", at: str
) -> "collections.Counter[str]":
    """Write what a start comes to, then the causes; return how many there are of each severity."""
    from mqtool.engine.repair.doctor.broker import StartOutcome
    from mqtool.engine.repair.doctor.diagnosis import Diagnosis
    from mqtool.engine.repair.plan import GroupEffect

    output.csv_of(StartOutcome, GroupEffect, Diagnosis)
    _tell_starts(output, at, starts)
    for number, one in enumerate(found, 1):
        if output.is_table:
            _tell(output, number, one)
        else:
            output.row({"kind": "cause"} | dataclasses.asdict(one) | {"seen": [_facts(sign) for sign in one.seen]})
    return collections.Counter(one.severity for one in found)


def _rights(
    root: Path, given: "StoreConfig", user: str | None, version: str | None
) -> "tuple[list[StartOutcome], list[Diagnosis]]":
    from mqtool.engine.repair.doctor.case import ALL, log_folders
    from mqtool.engine.repair.doctor.diagnosis import examine_rights
    from mqtool.engine.repair.doctor.surroundings import look_around

    around = look_around([root], user)
    return examine_rights(root, log_folders(root, given.settings), around.user, (version,) if version else ALL)


def _open(root: Path, given: "StoreConfig", config: Path | None, user: str | None, version: str | None) -> "Case":
    from mqtool.engine.repair.doctor.case import Case, open_store
    from mqtool.engine.repair.doctor.surroundings import look_around

    reader = open_store(root, given)
    if reader.paths.single:
        raise UsageError(f"{reader.paths.single} is a file: give the store that it belongs to")
    if reader.paths.is_log:
        raise UsageError(f"{root} is only the log of a store: give the store, {root.resolve().parent}")
    around = look_around([reader.root, *reader.paths.commit_log], user)
    return Case(reader.root, given.settings, config, around, reader, version)


def _tell_starts(output: Output, at: str, starts: "list[StartOutcome]") -> None:
    """Write what happens when a broker is started now: a row each for those that do the same, and for each group."""
    if output.is_table:
        output.text(click.style("If a broker is started now", bold=True))
        output.text()
        output.new_table(("broker", "starts", "deletes", "hides", "groups hit", "what"))
    for one in starts:
        output.row(_start_page(one) if output.is_table else _start_row(one))
    from mqtool.engine.repair.group_effects import advice

    groups = [(one.versions, effect) for one in starts for effect in one.groups]
    if output.is_table:
        output.text()
        if groups:
            output.new_table(("group", "topic", "queue_id", "missed", "repeated", "skipped", "broker"))
    for versions, effect in groups:
        row = {"kind": "group", "versions": versions, **dataclasses.asdict(effect), "next": advice(effect, at)}
        output.row(row | {"broker": ", ".join(versions)} if output.is_table else row)
    if output.is_table and groups:
        output.text()


def _start_row(one: "StartOutcome") -> dict[str, Any]:
    row = {"kind": "start", **dataclasses.asdict(one)}
    return row | {"groups": len({effect.group for effect in one.groups})}


def _start_page(one: "StartOutcome") -> dict[str, Any]:
    """Return the row that people read."""
    is_known = one.end_offset is not None
    return {
        "broker": ", ".join(one.versions),
        "starts": {True: "yes", False: "no", None: "unknown"}[one.starts],
        "deletes": one.deleted if is_known else "",
        "hides": one.hidden if is_known else "",
        "groups hit": len({effect.group for effect in one.groups}) if is_known else "",
        "what": "; ".join(_consequences(one)),
    }


def _consequences(one: "StartOutcome") -> Iterator[str]:
    yield from one.why
    if one.deleted:
        yield f"ends its log at {one.end_offset:,} and deletes {_count(len(one.removed_segments), 'file')} of it"
    if one.removed_queue_files:
        yield f"deletes {_count(len(one.removed_queue_files), 'file')} of queues"
    if one.forgotten:
        yield f"forgets {_count(one.forgotten, 'message')} that {'is' if one.forgotten == 1 else 'are'} already gone"
    if one.keys_from:
        yield f"finds nothing by key that was stored before {one.keys_from:,}"
    if one.topics:
        more = f" and {len(one.topics) - _MAX_TOPICS:,} more" if len(one.topics) > _MAX_TOPICS else ""
        yield f"topics {', '.join(one.topics[:_MAX_TOPICS])}{more}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _facts(sign: "Sign") -> dict[str, Any]:
    facts = dataclasses.asdict(sign)
    for name in ("commands", "versions", "effect"):
        del facts[name]
    return facts


def _tell(output: Output, number: int, one: "Diagnosis") -> None:
    """Write a cause as a paragraph: what it is, what was seen, what to run; only commands are never broken."""
    width = min(output.width, _WIDEST)
    harm = "" if one.effect == "is not affected" else f": a {' or '.join(one.versions)} broker {one.effect}"
    output.text(click.style(f"{number}. {one.code} {one.severity}{harm}", fg=_STYLES[one.severity], bold=True))
    lines = [one.title, *(_sentence(sign) for sign in one.seen)]
    if one.count > len(one.seen):
        lines.append(f"{one.count - len(one.seen):,} more like this")
    for line in lines:
        for part in textwrap.wrap(
            printable(line), width - len(_INDENT), subsequent_indent="  ", break_on_hyphens=False
        ):
            output.text(_INDENT + part)
    for line in one.next:
        output.text(_INDENT + click.style(line, fg="green"))
    output.text()


def _sentence(sign: "Sign") -> str:
    place = sign.file or ""
    if sign.offset is not None:
        place += f"@{sign.offset}"
    facts = []
    if sign.topic is not None and sign.queue_id is not None:
        offset = "" if sign.queue_offset is None else f" {sign.queue_offset:,}"
        facts.append(f"{sign.topic} {sign.queue_id}{offset}")
    if sign.expected is not None and sign.found is not None:
        facts.append(f"expected {sign.expected}, found {sign.found}")
    return f"- {place}{': ' * bool(place)}{sign.message}" + (f" ({'; '.join(facts)})" if facts else "")


def _summary(case: "Case", starts: "list[StartOutcome]", counts: "collections.Counter[str]") -> str:
    brokers = " or ".join(case.versions)
    if counts["error"] or counts["warning"]:
        said = [f"{counts[name]:,} {name}{'s' if counts[name] != 1 else ''}" for name in _STYLES]
        return f"{', '.join(said)} for a {brokers} broker; run the commands of the first cause, then doctor again"
    verify = f"`mqtool verify {case.at}` checks every message"
    if any(one.starts is None for one in starts):
        return (
            f"nothing was found that prevents a {brokers} broker from working, but its startup was not "
            f"simulated; {verify}"
        )
    since = max((one.looked_from or 0 for one in starts), default=0)
    unseen = f"; messages before {since:,} were not checked, {verify}" if since else f"; {verify}"
    return f"nothing prevents a {brokers} broker from working{unseen}"
