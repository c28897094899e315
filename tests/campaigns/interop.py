"""The table of scenarios and clients: each kind of client against a ``mqtool serve`` of its own, one after the other.

::

    python -m tests.campaigns.interop > docs/reports/interop.md             all of them: a quarter of an hour
    python -m tests.campaigns.interop --client go --client java-4.9.7

Ends with status 1 when a scenario fails; the table then says how.
"""

# ruff: noqa: T201  its results go to standard output

import argparse
import contextlib
import datetime
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.commands.test_serve import serving_both
from tests.differential.java_store import VERSIONS
from tests.interop import ACCOUNTS, run_scenarios

CLIENTS = {
    **{f"java-{version}": ("java", version, f"Java {version}") for version in VERSIONS},
    "go": ("go", "", "Go v2.1.2"),
    "node": ("node", "", "ali-ons 3.12.0"),
}

ENDED = "all of them"
"""Stands for the rest where a client ended before it had done all."""

INTRODUCTION = """\
# Which clients do what with `mqtool serve`

Made on {day} by `python -m tests.campaigns.interop`: real clients, unmodified, against a `mqtool serve` of its own for
each, which controls access: a client has an account with just the rights that it needs. What a scenario checks stands
in its source below `tests/interop`: contents, order and counts, not only that nothing failed. A cell is the time it
took, in seconds, two at a time on 2 cores; what waits for a client's own timers takes its time with any broker. ² is a
second try: on a machine with much else to do some client waits too long for the first. Empty: this client has no such
scenario.
"""


def main() -> int:
    """Run what was asked for and print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--client", action="append", choices=[*CLIENTS])
    chosen = parser.parse_args().client or [*CLIENTS]
    results = {client: _results(client) for client in chosen}
    introduction = INTRODUCTION.format(day=datetime.datetime.now(datetime.UTC).date())
    print(page(introduction, {CLIENTS[client][2]: rows for client, rows in results.items()}))
    return 0 if all(row["ok"] for rows in results.values() for row in rows.values()) else 1


def _results(client: str) -> dict[str, dict[str, Any]]:
    kind, version, _ = CLIENTS[client]
    rows = {}
    with (
        tempfile.TemporaryDirectory(prefix="mqtool-interop-") as folder,
        _guarded(Path(folder)) as (process, name_server, _),
    ):
        for row in _rows(client, kind, version, name_server, Path(folder, "work")):
            rows[row["scenario"]] = row
        failed = [name for name, row in rows.items() if not row["ok"] and name != ENDED]
        if failed:
            for row in _rows(client, kind, version, name_server, Path(folder, "work"), *failed):
                rows[row["scenario"]] = {**row, "is_second_try": True}
        process.terminate()
        process.wait()
    return rows


def _guarded(folder: Path) -> contextlib.AbstractContextManager[tuple["subprocess.Popen[str]", str, str]]:
    accounts = folder / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    return serving_both(folder / "store", "--acl", accounts)


def _rows(client: str, kind: str, *arguments: Any) -> Iterator[dict[str, Any]]:
    try:
        for row in run_scenarios(kind, *arguments, with_accounts=True):
            print(client, row["scenario"], "ok" if row["ok"] else row["detail"], file=sys.stderr, flush=True)
            yield {**row, "scenario": row["scenario"].partition("/")[2]}
    except RuntimeError as error:
        print(error, file=sys.stderr)
        yield {"scenario": ENDED, "ok": False, "detail": str(error).partition("\n")[0]}


def page(introduction: str, results: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Return a page with the table of all rows, by what clients are called and by scenarios."""
    names = [*dict.fromkeys(name for rows in results.values() for name in rows)]
    names = sorted(names, key=lambda name: (name.partition("_")[0], name))
    lines = [
        introduction,
        "| scenario | " + " | ".join(results) + " |",
        "|---" * (1 + len(results)) + "|",
    ]
    for name in names:
        cells = (_cell(rows.get(name)) for rows in results.values())
        lines.append(f"| {name} | {' | '.join(cells)} |")
    passed = (f"{sum(row['ok'] for row in rows.values())} of {len(rows)}" for rows in results.values())
    lines.append(f"| passed | {' | '.join(passed)} |")
    return "\n".join(lines)


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    mark = " ²" if row.get("is_second_try") else ""
    return f"{row['seconds']}{mark}" if row["ok"] else f"**fails**: {' '.join(row['detail'].replace('|', '/').split())}"


if __name__ == "__main__":
    sys.exit(main())
