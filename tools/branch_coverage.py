"""Run the quick tests and print how much of each package's lines and branches they reach.

    python tools/branch_coverage.py                the whole quick suite: about twice the time of ./check
    python tools/branch_coverage.py -k scan        arguments go to pytest

Processes that tests start are counted too. Kernels that numba compiled count as not run. Four tests fail here, because
coverage loads modules and writes files in the processes that they examine.
"""

# ruff: noqa: T201  its results go to standard output

import collections
import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
GOALS = {"mqtool/formats": 95, "mqtool/engine/repair": 95, "mqtool/engine/store": 95, "mqtool/engine/broker": 95}


def main(arguments: list[str]) -> int:
    """Run the tests; end with their status."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)  # some tests run commands as another user
        settings = Path(name) / "coveragerc"
        settings.write_text(
            f"[run]\nbranch = true\nparallel = true\nsource = mqtool\npatch = subprocess\ndata_file = {name}/data\n"
        )
        rc = f"--rcfile={settings}"
        run = [sys.executable, "-m", "coverage", "run", rc, "-m", "pytest", "-n", "2", "--dist", "loadgroup"]
        status = subprocess.run([*run, *arguments], cwd=ROOT).returncode
        subprocess.run([sys.executable, "-m", "coverage", "combine", "-q", rc], cwd=ROOT, check=True)
        report = Path(name) / "report.json"
        subprocess.run([sys.executable, "-m", "coverage", "json", "-q", rc, "-o", report], cwd=ROOT, check=True)
        _print(json.loads(report.read_text())["files"])
    return status


def _print(files: dict[str, dict[str, dict[str, int]]]) -> None:
    reached, there = collections.Counter[str](), collections.Counter[str]()
    for path, file in files.items():
        summary, package = file["summary"], str(Path(path).parent)
        for place in (package, *map(str, Path(package).parents)):
            reached[place] += summary["covered_lines"] + summary["covered_branches"]
            there[place] += summary["num_statements"] + summary["num_branches"]
    for place in sorted(there):
        if place != "." and there[place]:
            goal = f"  goal {GOALS[place]} %" if place in GOALS else ""
            print(f"{100 * reached[place] / there[place]:6.1f} %  {place}{goal}")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
