"""The table of scenarios and brokers: the Python clients with real brokers of every version, and with ours.

::

    python -m tests.campaigns.python_clients > docs/reports/python_clients.md       some minutes

Ends with status 1 when a scenario fails.
"""

# ruff: noqa: T201  its results go to standard output

import datetime
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from tests.differential.java_store import VERSIONS
from tests.differential.test_python_clients import OURS

SUITE = Path(__file__).parent.parent / "differential/test_python_clients.py"
BROKERS = {**{version: f"broker {version}" for version in VERSIONS}, OURS: "`mqtool serve`"}

INTRODUCTION = """\
# Which brokers the Python clients work with

The producers and consumers of `mqtool` ([how to use them](../clients.md)) work with official brokers of 4.9.7, 5.3.3
and 5.5.0, and with `mqtool serve`. Each row below is one scenario, run with each of them: what comes, how often and in
which order is held against what was sent (`tests/differential/test_python_clients.py` has the details). A cell is the
time that it took, in seconds, or **fails**; two brokers ran at a time on 2 cores: these times say little of speed.

Pops want a broker of 5.x: with 4.9.7 that scenario checks that a sentence says so.

Made on {day} by `python -m tests.campaigns.python_clients`.
"""


def main() -> int:
    """Run all scenarios and print the page."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        words = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-m", "java or not java"]
        settings = os.environ | {"MQTOOL_REQUIRE_JAVA": "1"}
        done = subprocess.run([*words, f"--junit-xml={report}", str(SUITE)], stdout=sys.stderr, env=settings)
        cells = dict(map(_cell, ElementTree.parse(report).iter("testcase")))
    print(page(cells))
    return int(bool(done.returncode))


def _cell(case: ElementTree.Element) -> tuple[tuple[str, str], str]:
    """Return scenario and broker, and what to write of them."""
    name, _, words = case.get("name", "").removeprefix("test_").partition("[")
    broker, _, variant = words.partition("@")[0].rstrip("]").partition("-")
    scenario = name.replace("_", " ") + (f", {variant}".replace("|", "\\|") if variant else "")
    if (skipped := case.find("skipped")) is not None:
        return (scenario, broker), skipped.get("message", "")
    is_sound = case.find("failure") is None and case.find("error") is None
    return (scenario, broker), f"{float(case.get('time', 0)):.1f}" if is_sound else "**fails**"


def page(cells: dict[tuple[str, str], str]) -> str:
    """Return the page with the table."""
    scenarios = list(dict.fromkeys(scenario for scenario, _ in cells))
    lines = [
        INTRODUCTION.format(day=datetime.datetime.now(datetime.UTC).date()),
        f"| scenario | {' | '.join(BROKERS.values())} |",
        "|---" * (1 + len(BROKERS)) + "|",
    ]
    rows = ([scenario, *(cells.get((scenario, broker), "") for broker in BROKERS)] for scenario in scenarios)
    lines += [f"| {' | '.join(row)} |" for row in rows]
    passed = (_passed([cells.get((scenario, broker), "") for scenario in scenarios]) for broker in BROKERS)
    lines.append(f"| passed | {' | '.join(passed)} |")
    return "\n".join(lines)


def _passed(column: list[str]) -> str:
    tried = [cell for cell in column if cell.startswith("**") or cell.replace(".", "").isdigit()]
    return f"{sum(not cell.startswith('**') for cell in tried)} of {len(tried)}"


if __name__ == "__main__":
    sys.exit(main())
