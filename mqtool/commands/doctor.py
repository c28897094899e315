"""``mqtool doctor``."""

import collections
import dataclasses
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mqtool.commands._options import BROKER_LINE, default_store, jobs_option, output_option, parse_settings, store_names
from mqtool.commands._output import Output, printable, progress
from mqtool.errors import Status, UsageError

if TYPE_CHECKING:
    from mqtool.engine.repair.doctor import Diagnosis
    from mqtool.engine.repair.doctor_case import Case, Sign

_STYLES = {"error": "red", "warning": "yellow", "note": None}
_INDENT = "   "
_WIDEST = 120


@click.command(short_help="Tell why a broker does not start or deliver, and what to do.")
@click.option(
    "--for",
    "version",
    type=BROKER_LINE,
    help="The broker that is to start. Default: those not older than the one that wrote the store.",
)
@click.option("-u", "--user", help="Whom the broker runs as. Default: the owner of most files.")
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
    """Tell why a broker does not start on this store or does not deliver, without writing anything.

    Looks at what brokers 4.9, 5.3 and 5.5 look at when they start: files, rights, locks, disks, tables, and with
    -c broker.conf the settings; then runs the quick checks of `verify`. Names each cause, the likeliest first, what was
    seen of it, and the command to run next. Ends with status 3 when a broker does not start or loses data, 4 when there
    are only warnings.
    """
    from mqtool.engine.repair.doctor import diagnose

    case = _open(store, config, settings, user, version)
    total = sum(segment.size for segment in case.reader.commit_log.segments[-2:])
    output.tell_compiling(total)
    with progress(total, "doctor") as advance:
        case.jobs, case.progress = jobs, advance
        found = diagnose(case)
    counts: collections.Counter[str] = collections.Counter(one.severity for one in found)
    for number, one in enumerate(found, 1):
        if output.is_table:
            _tell(output, number, one)
        else:
            output.row(dataclasses.asdict(one) | {"seen": [_facts(sign) for sign in one.seen]})
    for remark in [*case.reader.remarks, *(f"not looked at: {problem}" for problem in case.problems)]:
        output.remark(remark)
    output.remark(_summary(case, counts))
    return Status.DAMAGE if counts["error"] else Status.WARNINGS if counts["warning"] else Status.OK


def _open(
    store: Path | None, config: Path | None, settings: tuple[str, ...], user: str | None, version: str | None
) -> "Case":
    from mqtool.engine.repair.doctor_case import Case, open_store
    from mqtool.engine.repair.surroundings import look_around
    from mqtool.engine.store.paths import StoreConfig

    given = StoreConfig.load(config, parse_settings(settings))
    named = given.settings.get("storePathRootDir")
    root = store or (Path(named) if named else default_store())
    reader = open_store(root, given)
    if reader.paths.single:
        raise UsageError(f"{reader.paths.single} is a file: give the store that it belongs to")
    around = look_around([reader.root, *reader.paths.commit_log], user)
    return Case(reader.root, given.settings, config, around, reader, version)


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
        lines.append(f"{one.count - len(one.seen):,} more of these")
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


def _summary(case: "Case", counts: "collections.Counter[str]") -> str:
    brokers = " or ".join(case.versions)
    if not counts["error"] and not counts["warning"]:
        return f"nothing stands in the way of a {brokers} broker; `mqtool verify {case.at}` looks into every message"
    said = [f"{counts[name]:,} {name}{'s' if counts[name] != 1 else ''}" for name in _STYLES]
    return f"{', '.join(said)} for a {brokers} broker; run the commands of the first cause, then doctor again"
