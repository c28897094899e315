"""The table of Pulsar's clients: each kind against a ``mqtool serve`` of its own, one after the other.

::

    python -m tests.campaigns.pulsar_clients > docs/reports/pulsar.md             all of them: a quarter of an hour
    python -m tests.campaigns.pulsar_clients --client go

Ends with status 1 when a scenario fails; the table then says how.
"""

# ruff: noqa: T201  its results go to standard output

import argparse
import datetime
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.campaigns.interop import page
from tests.commands.running import as_options
from tests.commands.test_serve import started
from tests.engine.test_pulsar_server import token_of, with_accounts
from tests.interop import PULSAR_VERSION, run_pulsar_scenarios

CLIENTS = {"java": f"Java {PULSAR_VERSION}", "python": "Python 3.13.0", "go": "Go v0.19.0"}
OPTIONAL = {
    "java": (
        "batch_index_ack",
        "dedup",
        "terminated_topic",
        "http_lookup",
        "http_admin",
        "no_auto_creation_lookup",
        "transaction_refused",
    ),
    "python": ("batch_index_ack",),
    "go": ("batch_index_ack",),
}
"""Scenarios beside the usual ones of which ``docs/pulsar.md`` says that they work."""

INTRODUCTION = """\
# Which clients of Apache Pulsar do what with `mqtool serve`

Made on {day} by `python -m tests.campaigns.pulsar_clients`: official clients, unmodified, against a `mqtool serve` of
its own for each, `token_auth` against one with access control. All scenarios but that were tried on Apache Pulsar 4.2.4
and pass. What one checks stands in its source below `tests/interop/pulsar`: contents, order and counts, not only that
nothing failed. A cell is the time it took, in seconds, three at a time on 2 cores; what waits for a client's own timers
takes its time with any broker. ² is a second try: on a machine with much else to do some client waits too long for the
first. Empty: this client has no such scenario.
"""
_READY = re.compile(r".*pulsar (\S+:\d+), pulsar admin (http://\S+)\n")


def main() -> int:
    """Run what was asked for and print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--client", action="append", choices=[*CLIENTS])
    chosen = parser.parse_args().client or [*CLIENTS]
    results = {CLIENTS[client]: _results(client) for client in chosen}
    print(page(INTRODUCTION.format(day=datetime.datetime.now(datetime.UTC).date()), results))
    return 0 if all(row["ok"] for rows in results.values() for row in rows.values()) else 1


def _results(client: str) -> dict[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="mqtool-interop-") as folder:
        arguments = ("-s", Path(folder, "store"), "--port", "0", "--pulsar-port", "0", "--pulsar-admin-port", "0")
        with started(*arguments) as (process, line):
            ready = _READY.fullmatch(line)
            assert ready, line
            work = Path(folder, "work")
            rows = _rows(client, ready, work)
            rows |= _rows(client, ready, work, *OPTIONAL[client])
            if failed := [name for name, row in rows.items() if not row["ok"]]:
                again = _rows(client, ready, work, *failed)
                rows |= {name: {**row, "is_second_try": True} for name, row in again.items()}
            process.terminate()
            process.wait()
        if client == "java":
            options = as_options(with_accounts(Path(folder)))
            with started(*arguments[2:], "-s", Path(folder, "guarded"), *options) as (process, line):
                ready = _READY.fullmatch(line)
                assert ready, line
                rows |= _rows(client, ready, work, "token_auth", token=token_of("everyone"))
    return rows


def _rows(client: str, ready: re.Match[str], work: Path, *names: str, token: str = "") -> dict[str, dict[str, Any]]:
    rows = {}
    for row in run_pulsar_scenarios(client, f"pulsar://{ready[1]}", ready[2], work, *names, token=token):
        print(client, row["scenario"], "ok" if row["ok"] else row["detail"], file=sys.stderr, flush=True)
        rows[row["scenario"].partition("/")[2]] = row
    return rows


if __name__ == "__main__":
    sys.exit(main())
