"""``recover`` and ``rebuild`` against the store of a real broker that does the same: whole processes, in turns.

The store is as after a kill whose checkpoint is lost, so that the broker too walks over the whole log. It drops its
index then and makes it again; mqtool holds every entry against the log. What mqtool does is synced when it ends.
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.table import HELPER, Row, rate
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import checkpoint
from tests.differential.java_store import OPENS, NoJavaError, class_path

RUNS = 3
VERSION = "5.3.3"
_HERE = Path(__file__).parent
_DERIVED = ("consumequeue", "index", "checkpoint")
_TRACES = ("abort", "lock", "config")


def measure_repairs(name: str, root: Path) -> list[Row]:
    """Return the rows of one store, which is as before afterwards; none where Java is missing."""
    with tempfile.TemporaryDirectory(dir=root.parent) as folder:
        work = Path(folder)
        try:
            java = _java(root, work)
        except NoJavaError as error:
            return [Row(f"recover, rebuild: not compared, {error}", "", "", "", "")]
        with _kept(root, work) as clear:
            rows = _compare(name, root, "recover --abnormal", java, lambda: _kill(root, work, clear))
            return rows + _compare(name, root, "rebuild all", java, lambda: _strip(root, clear))


def _compare(store: str, root: Path, what: str, java: list[str], prepare: Callable[[], None]) -> list[Row]:
    cores = os.sched_getaffinity(0)
    one, all_cores = {min(cores)}, cores
    runs: dict[str, tuple[list[str], set[int]]] = {
        "java": (java, one),
        "one": ([*HELPER, *what.split(), "--yes", "-j", "1", "-s", str(root)], one),
    }
    if len(cores) > 1:
        runs["two"] = ([*HELPER, *what.split(), "--yes", "-j", "2", "-s", str(root)], all_cores)
    seconds = dict.fromkeys(runs, float("inf"))
    for _ in range(RUNS):
        for name, (words, where) in runs.items():
            prepare()
            os.sync()
            warm(root)
            seconds[name] = min(seconds[name], _time(words, where))
    size = StoreReader(root).commit_log.total_size
    rows = [
        Row(f"{what}: the store of {VERSION}", store, rate(size, seconds["java"]), "1.00 x", ""),
        Row(f"{what} -j 1", store, rate(size, seconds["one"]), _ratio(seconds["java"], seconds["one"]), "≥ 4 x"),
    ]
    if "two" in runs:
        ratio = _ratio(seconds["one"], seconds["two"])
        rows.append(Row(f"{what} -j 2 against -j 1", store, rate(size, seconds["two"]), ratio, "≥ 1.6 x"))
    return rows


def warm(root: Path) -> None:
    """Have the log in memory."""
    for path in sorted((root / "commitlog").iterdir()):
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 20):
                pass


def _ratio(peer: float, ours: float) -> str:
    return f"{peer / ours:.2f} x"


def _time(words: list[str], cores: set[int]) -> float:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # which a child takes over
    start = time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    os.sched_setaffinity(0, before)
    if done.returncode:
        raise AssertionError(f"{words} ended with {done.returncode}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    return seconds


@contextmanager
def _kept(root: Path, work: Path) -> Iterator[Callable[[], None]]:
    """Keep what a broker derives from the log beside the store; yields what removes all traces of a run."""
    for name in _DERIVED:
        (root / name).rename(work / name)

    def clear() -> None:
        for path in (root.with_name(f"{root.name}.mqtool"), *(root / name for name in (*_DERIVED, *_TRACES))):
            Disk().remove_tree(path)

    try:
        yield clear
    finally:
        clear()
        for name in _DERIVED:
            (work / name).rename(root / name)


def _strip(root: Path, clear: Callable[[], None]) -> None:
    """Leave nothing but the log and the signs of a kill."""
    clear()
    (root / "abort").touch()
    (root / "checkpoint").write_bytes(bytes(checkpoint.CHECKPOINT_SIZE))


def _kill(root: Path, work: Path, clear: Callable[[], None]) -> None:
    _strip(root, clear)
    for name in ("consumequeue", "index"):
        Disk().copy(work / name, root / name)


def _java(root: Path, work: Path) -> list[str]:
    """Return the command that lets the broker's store load ``root``."""
    jars = class_path(VERSION)
    subprocess.run(["javac", "-cp", jars, "-d", str(work), str(_HERE / "StoreStart.java")], check=True)
    jars = f"{work}{os.pathsep}{jars}"
    return ["java", "-Xmx2g", f"-Duser.home={work}", *OPENS, "-cp", jars, "StoreStart", str(root)]
