"""``mqtool verify``."""

import collections
import dataclasses
from typing import TYPE_CHECKING

import click

from mqtool.commands._options import (
    check_has_log,
    jobs_option,
    live_option,
    output_option,
    packed_store_options,
    tell_may_be_live,
)
from mqtool.commands._output import Output, progress
from mqtool.errors import NotFoundError, Status

if TYPE_CHECKING:
    from mqtool.engine.repair.findings import Finding
    from mqtool.engine.repair.verify.store import Level
    from mqtool.engine.store.reader import StoreReader

SOUND = "the store is sound"
AHEAD = ("QUEUE-BEYOND", "INDEX-BEYOND")
"""Findings where queues or index reach further than the log."""
STYLES = {"error": "red", "warning": "yellow", "note": None}


@click.command(short_help="Check a store and list what is wrong.")
@click.option(
    "--level",
    type=click.Choice(["quick", "full"]),
    default="full",
    show_default=True,
    help="quick: all files, but contents only of the last two segments.",
)
@jobs_option
@live_option
@packed_store_options
@output_option
def command(level: str, jobs: int, store: "StoreReader", output: Output) -> int:
    """Check every file of the store and list what is wrong, without writing anything.

    Exits with status 0 if the store is sound, 3 if data is lost or at risk, 4 if there are only warnings. `mqtool
    explain CODE` explains a finding. The store may be in use; in-flight writes are not checked.
    """
    from mqtool.engine.repair.verify.store import Level, verify_store

    check_has_log(store)
    if store.is_packed and not store.paths.is_part:
        if not store.commit_log.segments:
            raise NotFoundError(f"{store.root} holds no segment of a log, and only the log is checked: unpack it")
        store = store.log_alone()
        store.remarks.append("only the log of a compressed copy is checked: unpack it to check queues and index")
    total = store.commit_log.total_size
    done, is_ahead = 0, False
    output.tell_compiling(total)
    counts: collections.Counter[str] = collections.Counter()
    try:
        with progress(total, "verify") as advance:

            def told(now: int) -> None:
                nonlocal done
                done = now
                advance(now)

            for finding in verify_store(store, Level(level), jobs, told):
                counts[finding.severity] += 1
                is_ahead = is_ahead or finding.code in AHEAD
                output.line(dataclasses.asdict(finding), sentence(finding), STYLES[finding.severity])
    except KeyboardInterrupt:
        output.remark(f"interrupted after {done:,} of {total:,} bytes of log")
        raise
    for remark in store.remarks:
        output.remark(remark)
    if counts["error"] or counts["warning"]:
        tell_may_be_live(store, output, is_ahead)
    output.remark(f"{total:,} bytes of log: {summary(counts, _sound(store, Level(level)))}")
    return status_of(counts)


def sentence(finding: "Finding") -> str:
    """Return a finding as a line for people."""
    place = finding.file or ""
    if finding.offset is not None:
        place += f"@{finding.offset}"
    facts = []
    if finding.topic is not None and finding.queue_id is not None:
        offset = "" if finding.queue_offset is None else f" {finding.queue_offset:,}"
        facts.append(f"{finding.topic} {finding.queue_id}{offset}")
    if finding.expected is not None and finding.found is not None:
        facts.append(f"expected {finding.expected}, found {finding.found}")
    return f"{finding.code} {finding.severity} {place} {finding.message}" + (f" ({'; '.join(facts)})" if facts else "")


def _sound(store: "StoreReader", level: "Level") -> str:
    """Return what may be said where nothing is wrong: only what was looked at is sound."""
    if store.paths.is_log:
        return "the log is sound as far as it can be checked alone; the rest of its store was not checked"
    if store.paths.single:
        return "this file is sound as far as it can be checked alone; the rest of its store was not checked"
    if level == "quick":
        return (
            "what was checked is sound: --level quick skips all but the last two segments of the log, and "
            "the contents of queues and index"
        )
    return SOUND


def summary(counts: "collections.Counter[str]", sound: str = SOUND) -> str:
    """Return how many findings there are by severity, and what to do next, or else what is ``sound``."""
    parts = [f"{counts[name]:,} {name}{'s' if counts[name] != 1 else ''}" for name in STYLES]
    verdict = ", ".join(parts)
    if counts["error"] or counts["warning"]:
        return f"{verdict}; `mqtool explain CODE` explains a finding and what to do"
    return f"{verdict}; {sound}"


def status_of(counts: "collections.Counter[str]") -> Status:
    """Return the status that findings by severity stand for."""
    return Status.DAMAGE if counts["error"] else Status.WARNINGS if counts["warning"] else Status.OK
