"""Laws of repairing, held against any number of generated damages.

Each seed is a case (``tests/laws``): a golden store, one or two damages, and a repair; the judge (``tests/judge``),
which shares no code with mqtool, reads the store before and after. The tests run a few dozen seeds; the long form is::

    python -m tests.campaigns.laws --seeds 1:20000 -j 2 --into laws.jsonl

Run again it goes on where it was stopped. The file gets a line for each violation, the case shrunk to the smallest
that still shows it, and one for each hundred of seeds with its counts; at the end all counts are told, by kind of
damage, repair and law. A case by itself, as such a line has it, or as a seed::

    python -m tests.campaigns.laws --case '{"base": "mixed-533-clean", ..}'
    python -m tests.campaigns.laws --case 73

``--command-line`` repairs by the real command line, a process for each step; ``--java`` loads repaired stores with
each version, in one JVM, and compares what brokers serve with what was kept.

Ends with status 1 when a law was violated.
"""

# ruff: noqa: T201  its results go to standard output

import argparse
import collections
import contextlib
import functools
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.differential.java_store import VERSIONS, JavaStore
from tests.laws.cases import LawCase, case_of
from tests.laws.java import case_for_java, load
from tests.laws.laws import Violation, check
from tests.laws.repairs import CommandLine, Direct
from tests.laws.shrinking import shrink

_CHUNK = 100
_AT_ONCE = 4  # a broker that loads a store waits for its own threads most of the time
_MAX_EACH = 3
"""Violations of one law, cause and repair that are shrunk and listed; the others are counted."""

Row = dict[str, Any]


def main() -> int:
    """Run the campaign; see the top of this file."""
    options = _options()
    if options.case:
        return _one(options.case)
    first, _, last = options.seeds.partition(":")
    seeds = range(int(first), int(last or first))
    rows = list(_rows(options.into))
    done = {tuple(row["seeds"]) for row in rows if "counts" in row}
    known = collections.Counter(_name(row) for row in rows if "law" in row)
    chunks = [(start, min(start + _CHUNK, seeds.stop)) for start in range(seeds.start, seeds.stop, _CHUNK)]
    commit = _commit()
    with options.into.open("a") as file, ThreadPoolExecutor(options.jobs) as pool:
        run = functools.partial(_run, options.how)
        for found in pool.map(run, (chunk for chunk in chunks if chunk not in done)):
            for row in found:
                if "law" in row:
                    known[_name(row)] += 1
                    if known[_name(row)] > _MAX_EACH:
                        continue
                    case = LawCase(**{**row["case"], "damages": LawCase.from_json(json.dumps(row["case"])).damages})
                    if known[_name(row)] == 1 and options.shrink and options.how == "direct":
                        smaller = shrink(case, Violation(row["law"], row["cause"], row["message"]))
                        row["shrunk"] = json.loads(smaller.to_json())
                    print(
                        f"seed {row['seed']}: {row['law']}, {row['cause']} ({row['repair']}): {row['message']}",
                        flush=True,
                    )
                print(json.dumps({**row, "commit": commit}), file=file, flush=True)
    return _tell(_rows(options.into))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1:1001", metavar="FIRST:LAST", help="half open; default 1:1001")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="cases at once")
    parser.add_argument("--into", type=Path, default=Path("laws.jsonl"), metavar="FILE")
    parser.add_argument("--case", metavar="CASE", help="one case: a seed, or its JSON")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--command-line", dest="how", action="store_const", const="command line", default="direct")
    how.add_argument("--java", dest="how", action="store_const", const="java")
    parser.add_argument("--no-shrink", dest="shrink", action="store_false", help="list violations as they were drawn")
    return parser.parse_args()


def _one(text: str) -> int:
    case = case_of(int(text)) if text.isdecimal() else LawCase.from_json(text)
    print(case.to_json())
    result = check(case)
    print(result.outcome)
    for violation in result.violations:
        print(f"{violation.law}: {violation.cause}: {violation.message}")
    return int(bool(result.violations))


def _run(how: str, chunk: tuple[int, int]) -> list[Row]:
    """Run the cases of some seeds in a process of their own, which may die of one."""
    rows: list[Row] = []
    start, stop = chunk
    counts: collections.Counter[str] = collections.Counter()
    first = start
    while first < stop:
        ours, theirs = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("spawn").Process(target=_work, args=(how, range(first, stop), theirs))
        child.start()
        theirs.close()
        for row in _received(ours):
            first = row["seed"] + 1
            counts.update(row.pop("counted"))
            rows += row["violations"]
        child.join()
        if child.exitcode:
            case = case_of(first)
            broken = Violation("sentence", f"exit {child.exitcode}", f"the process ended with {child.exitcode}")
            rows.append(_violation(first, case, broken))
            first += 1
    return [*rows, {"seeds": [start, stop], "counts": dict(sorted(counts.items()))}]


def _received(pipe: Connection) -> Iterator[Row]:
    try:
        while True:
            yield pipe.recv()
    except EOFError:
        return


def _work(how: str, seeds: Iterable[int], pipe: Connection) -> None:
    scratch = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
    if how == "java":
        _work_with_java(seeds, pipe, scratch)
        return
    runner = CommandLine() if how == "command line" else Direct()
    for seed in seeds:
        case = case_of(seed)
        if how == "command line" and case.repair == "doctor":
            continue  # it runs commands anyway
        result = check(case, scratch, runner)
        counted = ["cases", f"repair {case.repair}", f"outcome {result.outcome}", f"store {case.base}"]
        counted += [f"damage {kind}" for kind in sorted(set(case.kinds))]
        counted += [f"law {one.law}" for one in result.violations] or ["kept"]
        pipe.send(
            {"seed": seed, "counted": counted, "violations": [_violation(seed, case, v) for v in result.violations]}
        )


def _work_with_java(seeds: Iterable[int], pipe: Connection, scratch: Path | None) -> None:
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(_AT_ONCE) as pool:
        brokers = [stack.enter_context(JavaStore(version)) for version in VERSIONS]
        for seed, found in zip(seeds, pool.map(lambda seed: load(seed, brokers, scratch), seeds), strict=True):
            case = case_for_java(seed)
            counted = ["cases", f"repair {case.repair}", "outcome refused" if found is None else "outcome loaded"]
            violations = [
                _violation(seed, case, Violation("java", version, line))
                for version, lines in (found or {}).items()
                for line in lines
            ]
            counted += [f"law {row['law']}" for row in violations]
            pipe.send({"seed": seed, "counted": counted, "violations": violations})


def _violation(seed: int, case: LawCase, one: Violation) -> Row:
    what = {"seed": seed, "law": one.law, "cause": one.cause, "repair": case.repair, "message": one.message}
    return {**what, "case": json.loads(case.to_json())}


def _name(row: Row) -> tuple[str, str, str]:
    return row["law"], row["cause"], row["repair"]


def _rows(path: Path) -> Iterator[Row]:
    if path.exists():
        yield from map(json.loads, path.read_text().splitlines())


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip()


def _tell(rows: Iterable[Row]) -> int:
    counts: collections.Counter[str] = collections.Counter()
    for row in rows:
        counts.update(row.get("counts", {}))
    for name, count in sorted(counts.items()):
        print(f"{count:8,} {name}")
    return int(any(name.startswith("law ") for name in counts))


if __name__ == "__main__":
    sys.exit(main())
