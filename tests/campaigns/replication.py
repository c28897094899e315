"""The table of scenarios of replication and combinations: who is master, who is slave, of which version.

::

    python -m tests.campaigns.replication --jobs 4      all combinations: half an hour
    python -m tests.campaigns.replication --master mqtool --slave 5.3.3 [SCENARIO ...]

A scenario that fails is run with RocketMQ 5.3.3 in our place, too, and with the version of the other at both ends:
where one of these fails as well it counts as RocketMQ's, and is listed. The stores that our brokers leave are
verified: what is found beyond notes is a failure, too. Prints the table of ``docs/reports/replication.md``, and ends
with status 1 when another fails.
"""

# ruff: noqa: T201  its results go to standard output

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.differential.java_store import VERSIONS
from tests.interop.replication import OURS, findings_in_stores, run_scenarios

_IN_OUR_PLACE = "5.3.3"

COMBINATIONS = [
    *((OURS, version) for version in VERSIONS),
    *((version, OURS) for version in VERSIONS),
    (OURS, OURS),
]


def main() -> int:
    """Run what was asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--master", help="a version of RocketMQ, or mqtool; default: all combinations")
    parser.add_argument("--slave")
    parser.add_argument("--jobs", type=int, default=2, help="scenarios at a time")
    parser.add_argument("--patience", type=int, default=3, help="what limits of time are multiplied by")
    parser.add_argument("scenarios", nargs="*")
    options = parser.parse_args()
    if bool(options.master) != bool(options.slave):
        parser.error("--master and --slave belong together")
    chosen = [(options.master, options.slave)] if options.master else COMBINATIONS
    rows: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    theirs: list[str] = []
    failed: list[str] = []
    for master, slave in chosen:
        rows[master, slave] = of = _run(master, slave, options, options.scenarios)
        for name in [name for name, row in of.items() if not row["ok"]]:
            in_our_place = tuple(_IN_OUR_PLACE if one == OURS else one for one in (master, slave))
            pairs = [in_our_place, *((one, one) for one in (master, slave) if one != OURS)]
            sentence = f"{name}, {_name(master)} and {_name(slave)}: {of[name]['detail']}"
            if len(pairs) > 1 and not all(_run(one, other, options, [name])[name]["ok"] for one, other in pairs):
                theirs.append(sentence)
            else:
                failed.append(sentence)
    print(_table(rows, theirs, failed))
    return 1 if failed else 0


def _run(master: str, slave: str, options: argparse.Namespace, names: list[str]) -> dict[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="mqtool-replication-") as work:
        found = {}
        for row in run_scenarios(master, slave, Path(work), *names, patience=options.patience, jobs=options.jobs):
            print(f"{_name(master)} > {_name(slave)}: {row}", file=sys.stderr, flush=True)
            name = str(row["scenario"]).removeprefix("ha/")
            found[name] = row
            roles = [role for role, version in (("master", master), ("slave", slave)) if version == OURS]
            if row["ok"] and (findings := findings_in_stores(Path(work), name, roles)):
                row |= {"ok": False, "detail": "; ".join(findings)}
        return found


def _name(version: str) -> str:
    return "mqtool" if version == OURS else f"RocketMQ {version}"


def _cell(row: dict[str, Any]) -> str:
    if not row["ok"]:
        return "**fails**"
    return "-" if row["detail"].startswith("skipped") else "passes"


def _table(rows: dict[tuple[str, str], dict[str, dict[str, Any]]], theirs: list[str], failed: list[str]) -> str:
    names = dict.fromkeys(name for of in rows.values() for name in of)
    lines = ["| Scenario | " + " | ".join(f"{_name(one)} > {_name(other)}" for one, other in rows) + " |"]
    lines.append("|---" * (len(rows) + 1) + "|")
    for name in names:
        cells = []
        for of in rows.values():
            row = of.get(name)
            cells.append("" if row is None else _cell(row))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    passed = [f"{sum(row['ok'] for row in of.values())} of {len(of)}" for of in rows.values()]
    lines.append("| passed | " + " | ".join(passed) + " |")
    for title, sentences in (("Fail with RocketMQ in our place as well", theirs), ("Failed", failed)):
        if sentences:
            lines += ["", f"{title}:", "", *(f"- {one}" for one in sentences)]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
