"""The benchmark's tables: ``python -m bench [--keep DIR] [--only NAME]``.

Every ratio is taken within one run: the limit is the same core summing the same mapped files as int64, start-up is
held against an interpreter that does nothing. Each figure is the best of several runs, and each run maps the files
anew, the limit's too.
"""

import compileall
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

import mqtool
from bench.broker import VERSION, measure_broker
from bench.client import measure_client
from bench.damage import measure_damage
from bench.pulsar import measure_pulsar
from bench.remote import measure_remote
from bench.repairs import measure_repairs
from bench.replication import measure_replication
from bench.spark import measure_spark
from bench.stores import make_store
from bench.table import HELPER, Row, rate
from mqtool.engine.repair.verify.store import Level, verify_store
from mqtool.engine.store.commit_log import ROWS, STEP
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import scan
from tests.interop import PULSAR_VERSION

RUNS = 7
LARGE = (8 << 30) - (4 << 20)
STORES = {"1 KiB bodies": (1024, 2 << 30), "100 B bodies": (100, 1 << 30)}


def best(work: Callable[[], object], runs: int = RUNS) -> float:
    """Return the seconds of the fastest of several runs."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def sum_log(root: Path) -> None:
    """Read the whole log as a processor reads it fastest."""
    for segment in StoreReader(root).commit_log.segments:
        segment.bytes.view(np.int64).sum()


def scan_log(root: Path, crc: bool) -> int:
    """Hop and gather, with or without body CRC."""
    kernels = scan.compiled_kernels()
    count = 0
    for segment in StoreReader(root).commit_log.segments:
        at = 0
        while True:
            found = scan.scan(segment.bytes, segment.start_offset, at, at + STEP, kernels=kernels, limit=ROWS)
            count += len(found.table)
            if crc and (found.table.body_crcs() != found.table.column("body_crc")).any():
                raise AssertionError("a body does not match its CRC")
            at = found.end
            if found.stop is not scan.Stop.PART:
                break
    return count


def verify(root: Path, jobs: int) -> None:
    """Check everything; the store must be sound."""
    if any(found.severity != "note" for found in verify_store(StoreReader(root), Level.FULL, jobs)):
        raise AssertionError("the store of the benchmark is not sound")


def measure_scan(name: str, root: Path) -> list[Row]:
    """Return the rows of one store."""
    log = StoreReader(root).commit_log
    used = sum(segment.size for segment in log.segments)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    scan_log(root, crc=True)
    verify(root, 1)
    limit = best(lambda: sum_log(root))
    goals = {"1 KiB bodies": ("0.5", "0.4"), "100 B bodies": ("0.25", "0.25")}[name]
    rows = [Row("limit: sum as int64", name, rate(used, limit), "1.00", "")]
    for what, crc, goal in (("hop and gather", False, goals[0]), ("hop, gather, body CRC", True, goals[1])):
        # The limit drifts with the machine: it is taken again beside each figure.
        limit = best(lambda: sum_log(root))
        seconds = best(lambda crc=crc: scan_log(root, crc))  # type: ignore[misc]
        rows.append(Row(what, name, rate(used, seconds), f"{limit / seconds:.2f}", f"≥ {goal}"))
    limit = best(lambda: sum_log(root))
    one = two = float("inf")
    for _ in range(RUNS):  # in turns, for the same reason
        os.sched_setaffinity(0, {min(cores)})
        one = min(one, best(lambda: verify(root, 1), 1))
        os.sched_setaffinity(0, cores)
        two = min(two, best(lambda: verify(root, 2), 1))
    rows.append(Row("verify --level full -j 1", name, rate(used, one), f"{limit / one:.3f}", "≥ 0.1"))
    if len(cores) > 1:
        rows.append(Row("verify -j 2 against -j 1", name, rate(used, two), f"{one / two:.2f} x", "≥ 1.7 x"))
    return rows


def run(*command: str, **environment: str) -> None:
    """Run a command and throw its output away."""
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | environment
    )


def measure_start(root: Path) -> list[Row]:
    """Return the rows about starting."""
    offset = next(iter(StoreReader(root).messages())).position
    nothing = best(lambda: run(sys.executable, "-c", "pass"), 20)
    rows = [Row("limit: python -c pass", "", f"{nothing * 1000:.0f} ms", "1.0 x", "")]
    store = ("-s", str(root))
    for what, command, goal in (
        ("mqtool --help", ("--help",), 8),
        ("mqtool get OFFSET", ("get", str(offset), *store), 20),
        ("mqtool dump --limit 10", ("dump", "commitlog", "--limit", "10", *store), 20),
    ):
        seconds = best(lambda command=command: run(*HELPER, *command), 20)  # type: ignore[misc]
        rows.append(Row(f"{what}, warm", "", f"{seconds * 1000:.0f} ms", f"{seconds / nothing:.1f} x", f"≤ {goal} x"))
    with tempfile.TemporaryDirectory() as cache:
        start = time.perf_counter()
        run(*HELPER, "verify", *store, XDG_CACHE_HOME=cache)
        cold = time.perf_counter() - start
        warm = best(lambda: run(*HELPER, "verify", *store, XDG_CACHE_HOME=cache), 3)
    rows.append(Row("mqtool verify, cold: compiles", "1 KiB bodies", f"{cold:.1f} s", "", ""))
    rows.append(Row("mqtool verify, warm", "1 KiB bodies", f"{warm:.1f} s", "", ""))
    return rows


@click.command()
@click.option("--keep", type=click.Path(path_type=Path), help="Make the stores here and leave them for the next run.")
@click.option(
    "--only",
    type=click.Choice(["files", "damage", "broker", "pulsar", "client", "spark", "remote", "replication"]),
    help="One of the tables.",
)
def main(keep: Path | None, only: str | None) -> None:
    """Make stores, measure, and print the tables."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # no user's start compiles Python again, not even the first:
    compileall.compile_dir(Path(mqtool.__file__).parent, quiet=1)  # pip has done that
    if only in (None, "files"):
        show(measure_files(keep), "store", "figure")
    if only in (None, "damage"):
        with tempfile.TemporaryDirectory() as temporary:
            show(measure_damage(keep or Path(temporary)), "store", "figure")
    if only in (None, "broker"):
        show(measure_broker(), f"Java {VERSION}", "mqtool")
    if only in (None, "pulsar"):
        show(measure_pulsar(), f"Pulsar {PULSAR_VERSION}", "mqtool")
    if only in (None, "client"):
        show(measure_client(), f"Java {VERSION}", "mqtool")
    if only in (None, "spark"):
        with tempfile.TemporaryDirectory() as temporary:
            show(measure_spark(keep or Path(temporary)), "store", "figure")
    if only in (None, "remote"):
        with tempfile.TemporaryDirectory() as temporary:
            show(measure_remote(keep or Path(temporary)), "store", "figure")
    if only in (None, "replication"):
        with tempfile.TemporaryDirectory() as temporary:
            show(measure_replication(keep or Path(temporary)), f"Java {VERSION} with itself", "here")


def measure_files(keep: Path | None) -> list[Row]:
    """Return the rows about files; their stores are made in ``keep`` or thrown away."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        rows = []
        for name, (body_size, log_size) in STORES.items():
            root = folder / f"store-{body_size}"
            if not (root / "checkpoint").exists():
                # The last segment is left as full as a broker would leave it before its next roll.
                make_store(root, body_size, log_size - (4 << 20))
            rows += measure_scan(name, root)
        rows += measure_start(folder / "store-1024")
        rows += measure_repairs("2 GiB, 1 KiB bodies", folder / "store-1024")
        large = folder / "store-large"
        if not (large / "checkpoint").exists():
            make_store(large, 1024, LARGE)
        rows += measure_repairs("8 GiB, 1 KiB bodies", large)
    return rows


def show(rows: Iterable[Row], second: str, third: str) -> None:
    """Print a table, whose second and third columns have these names."""
    table = Table("what", second, third, "ratio", "goal")
    for row in rows:
        table.add_row(*row)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
