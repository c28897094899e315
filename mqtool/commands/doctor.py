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
    Exits with status 3 if a broker does not start or loses data, 4 if there are only warnings, or if something
    could not be examined.
    """
    from mqtool.engine.repair.doctor.diagnosis import examine
    from mqtool.engine.store.remote import is_remote

    store_config = load_config(config, settings)
    named = store_config.settings.get("storePathRootDir")
    root = store or (Path(named) if named else default_store())
    if is_remote(root):
        raise UsageError(
            f"doctor checks permissions and disks as a broker sees them, and {root} is not a local directory"
        )
    try:
        case = _open(root, store_config, config, user, version)
        total = sum(segment.size for segment in case.reader.commit_log.segments[-2:])
        output.tell_compiling(total)
        with progress(total, "doctor") as advance:
            case.jobs, case.progress = jobs, advance
            starts, diagnoses = examine(case)
    except (NotPermittedError, PermissionError):
        starts, diagnoses = _rights(root, store_config, user, version)
        if not diagnoses:
            raise
        _tell_all(output, starts, diagnoses, f"-s {root}")
        output.remark("only permissions were checked: run the command, then doctor again")
        return Status.DAMAGE
    counts = _tell_all(output, starts, diagnoses, case.at)
    for remark in [*case.reader.remarks, *(f"not checked: {problem}" for problem in case.problems)]:
        output.remark(remark)
    output.remark(_summary(case, starts, counts))
    if counts["error"]:
        return Status.DAMAGE
    return Status.WARNINGS if counts["warning"] or case.problems else Status.OK


def _tell_all(
    output: Output, starts: "list[StartOutcome]", diagnoses: "list[Diagnosis]", at: str
) -> "collections.Counter[str]":
    """Write what a start comes to, then the causes; return how many there are of each severity."""
    from mqtool.engine.repair.doctor.broker import StartOutcome
    from mqtool.engine.repair.doctor.diagnosis import Diagnosis
    from mqtool.engine.repair.plan import GroupEffect

    output.csv_of(StartOutcome, GroupEffect, Diagnosis)
    _tell_starts(output, at, starts)
    for number, diagnosis in enumerate(diagnoses, 1):
        if output.is_table:
            _tell(output, number, diagnosis)
        else:
            output.row(
                {"kind": "cause"} | dataclasses.asdict(diagnosis) | {"seen": [_facts(sign) for sign in diagnosis.seen]}
            )
    return collections.Counter(diagnosis.severity for diagnosis in diagnoses)


def _rights(
    root: Path, store_config: "StoreConfig", user: str | None, version: str | None
) -> "tuple[list[StartOutcome], list[Diagnosis]]":
    from mqtool.engine.repair.doctor.case import ALL, log_folders
    from mqtool.engine.repair.doctor.diagnosis import examine_rights
    from mqtool.engine.repair.doctor.surroundings import look_around

    around = look_around([root], user)
    return examine_rights(root, log_folders(root, store_config.settings), around.user, (version,) if version else ALL)


def _open(
    root: Path, store_config: "StoreConfig", config: Path | None, user: str | None, version: str | None
) -> "Case":
    from mqtool.engine.repair.doctor.case import Case, open_store
    from mqtool.engine.repair.doctor.surroundings import look_around

    reader = open_store(root, store_config)
    if reader.paths.single:
        raise UsageError(f"{reader.paths.single} is a file: give the store that it belongs to")
    if reader.paths.is_log:
        raise UsageError(f"{root} is only the log of a store: give the store, {root.resolve().parent}")
    around = look_around([reader.root, *reader.paths.commit_log], user)
    return Case(reader.root, store_config.settings, config, around, reader, version)


def _tell_starts(output: Output, at: str, starts: "list[StartOutcome]") -> None:
    """Write what happens when a broker is started now: a row each for those that do the same, and for each group."""
    if output.is_table:
        output.text(click.style("If a broker is started now", bold=True))
        output.text()
        output.new_table(("broker", "starts", "deletes", "hides", "groups", "what"))
    for outcome in starts:
        output.row(_start_page(outcome) if output.is_table else _start_row(outcome))
    from mqtool.engine.repair.group_effects import advice

    groups = [(outcome.versions, effect) for outcome in starts for effect in outcome.groups]
    if output.is_table:
        output.text()
        if groups:
            output.new_table(("group", "topic", "queue_id", "missed", "repeated", "skipped", "broker"))
    for versions, effect in groups:
        row = {"kind": "group", "versions": versions, **dataclasses.asdict(effect), "next": advice(effect, at)}
        output.row(row | {"broker": ", ".join(versions)} if output.is_table else row)
    if output.is_table and groups:
        output.text()


def _start_row(outcome: "StartOutcome") -> dict[str, Any]:
    row = {"kind": "start", **dataclasses.asdict(outcome)}
    return row | {"groups": len({effect.group for effect in outcome.groups})}


def _start_page(outcome: "StartOutcome") -> dict[str, Any]:
    """Return the row that people read."""
    is_known = outcome.end_offset is not None
    return {
        "broker": ", ".join(outcome.versions),
        "starts": {True: "yes", False: "no", None: "unknown"}[outcome.starts],
        "deletes": outcome.deleted if is_known else "",
        "hides": outcome.hidden if is_known else "",
        "groups": len({effect.group for effect in outcome.groups}) if is_known else "",
        "what": "; ".join(_consequences(outcome)),
    }


def _consequences(outcome: "StartOutcome") -> Iterator[str]:
    yield from outcome.why
    if outcome.deleted:
        files = _count(len(outcome.removed_segments), "file")
        yield f"ends its log at {outcome.end_offset:,} and deletes {files} of it"
    if outcome.removed_queue_files:
        yield f"deletes {_count(len(outcome.removed_queue_files), 'file')} of queues"
    if outcome.forgotten:
        verb = "is" if outcome.forgotten == 1 else "are"
        yield f"forgets {_count(outcome.forgotten, 'message')} that {verb} already gone"
    if outcome.keys_from:
        yield f"finds nothing by key that was stored before {outcome.keys_from:,}"
    if outcome.topics:
        more = f" and {len(outcome.topics) - _MAX_TOPICS:,} more" if len(outcome.topics) > _MAX_TOPICS else ""
        yield f"topics {', '.join(outcome.topics[:_MAX_TOPICS])}{more}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _facts(sign: "Sign") -> dict[str, Any]:
    facts = dataclasses.asdict(sign)
    for name in ("commands", "versions", "effect"):
        del facts[name]
    return facts


def _tell(output: Output, number: int, diagnosis: "Diagnosis") -> None:
    """Write a cause as a paragraph: what it is, what was seen, what to run; only commands are never broken."""
    width = min(output.width, _WIDEST)
    harm = (
        ""
        if diagnosis.effect == "is not affected"
        else f": a {' or '.join(diagnosis.versions)} broker {diagnosis.effect}"
    )
    output.text(
        click.style(f"{number}. {diagnosis.code} {diagnosis.severity}{harm}", fg=_STYLES[diagnosis.severity], bold=True)
    )
    lines = [diagnosis.title, *(_sentence(sign) for sign in diagnosis.seen)]
    if diagnosis.count > len(diagnosis.seen):
        lines.append(f"{diagnosis.count - len(diagnosis.seen):,} more like this")
    for line in lines:
        for part in textwrap.wrap(
            printable(line), width - len(_INDENT), subsequent_indent="  ", break_on_hyphens=False
        ):
            output.text(_INDENT + part)
    for line in diagnosis.next:
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
        parts = [f"{counts[name]:,} {name}{'s' if counts[name] != 1 else ''}" for name in _STYLES]
        return f"{', '.join(parts)} for a {brokers} broker; run the commands of the first cause, then doctor again"
    verify = f"`mqtool verify {case.at}` checks every message"
    if case.problems:
        return f"nothing was found that prevents a {brokers} broker from working, but not everything could be examined"
    if any(outcome.starts is None for outcome in starts):
        return (
            f"nothing was found that prevents a {brokers} broker from working, but its startup was not "
            f"simulated; {verify}"
        )
    since = max((outcome.looked_from or 0 for outcome in starts), default=0)
    unseen = f"; messages before {since:,} were not checked, {verify}" if since else f"; {verify}"
    return f"nothing prevents a {brokers} broker from working{unseen}"
