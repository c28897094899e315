"""What damage costs: the same commands on a sound store and on a damaged one, time and memory, whole processes.

The store has four segments of 1 GiB. Of the damaged one a segment is missing, another is zeroed in its middle half,
and 10,000 messages elsewhere have a bit of their bodies changed. What changes the store is held against writing and
syncing as many bytes as it writes and notes, to as many files. All figures are the best of several runs: each recovery
is taken back, and recovered again.
"""

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.repairs import warm
from bench.stores import SEGMENT, make_store
from bench.table import HELPER, Row
from mqtool.engine.repair.journal import home_of
from mqtool.engine.store.commit_log import Gap
from mqtool.engine.store.file_queue import segment_name
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import kernels as plain
from mqtool.formats import scan

RUNS = 5
RUNS_OF_CHANGES = 3
SIZE = (4 << 30) - (4 << 20)
FLIPS = 10_000
_DRY_RUN = ("recover", "--abnormal", "--dry-run")
_LOOKS = (("verify",), ("doctor",), _DRY_RUN)
_STORE = "4 x 1 GiB"
_CHUNK = 1 << 24
_PAUSE_S = 8
"""Before what writes much: a virtual machine gives free memory back after some seconds, and has to ask for it again.
What is held against each other begins with as little of it."""


class Spent(NamedTuple):
    """What a process took: seconds, seconds of processor, bytes of memory at most."""

    seconds: float
    processor: float
    memory: int


def measure_damage(folder: Path) -> list[Row]:
    """Return the rows; the sound store is made in a folder, or found there."""
    sound, damaged = folder / "store-sound", folder / "store-damaged"
    if not (sound / "checkpoint").exists():
        make_store(sound, 1024, SIZE)
    try:
        shutil.copytree(sound, damaged)
        # In a process of its own: the memory of this one would count as that of its children.
        maker = multiprocessing.get_context("spawn").Process(target=damage, args=(damaged,))
        maker.start()
        maker.join()
        warm(sound)
        warm(damaged)
        looks = {
            words: {root: _best([*HELPER, *words, "-s", str(root)]) for root in (sound, damaged)} for words in _LOOKS
        }
        rows = [row for words, spent in looks.items() for row in _compared(" ".join(words), *spent.values())]
        return [*rows, *_changes(damaged, looks[_DRY_RUN][damaged])]
    finally:
        shutil.rmtree(damaged, ignore_errors=True)
        shutil.rmtree(home_of(damaged), ignore_errors=True)


def damage(root: Path) -> None:
    """Damage a store of four segments."""
    log = root / "commitlog"
    (log / segment_name(SEGMENT)).unlink()
    with (log / segment_name(2 * SEGMENT)).open("r+b") as file:
        file.seek(SEGMENT // 4)
        for _ in range(SEGMENT // 2 // _CHUNK):
            file.write(bytes(_CHUNK))
    starts = np.concatenate([*_bodies(root, 0), *_bodies(root, 3 * SEGMENT)])
    for at in starts[:: max(1, len(starts) // FLIPS)][:FLIPS].tolist():
        base = at // SEGMENT * SEGMENT
        with (log / segment_name(base)).open("r+b") as file:
            file.seek(at - base)
            byte = file.read(1)[0]
            file.seek(at - base)
            file.write(bytes([byte ^ 4]))


def _bodies(root: Path, base: int) -> Iterator[np.ndarray]:
    """Yield the addresses of the bodies in a segment."""
    log = StoreReader(root).commit_log
    segment = next(one for one in log.segments if one.start_offset == base)
    for table in log.walk(segment, 0, segment.size, scan.compiled_kernels()):
        if not isinstance(table, Gap):
            yield base + table.offsets(plain.BODY)


def _compared(name: str, sound: Spent, damaged: Spent) -> list[Row]:
    ratios = (
        f"{damaged.seconds / sound.seconds:.1f} x",
        f"processor {damaged.processor / sound.processor:.1f} x",
        f"memory {damaged.memory / sound.memory:.1f} x",
    )
    return [
        Row(f"{name}: sound", _STORE, _figure(sound), "1.0 x", ""),
        Row(f"{name}: damaged", _STORE, _figure(damaged), ", ".join(ratios), "≤ 3 x"),
    ]


def _changes(root: Path, look: Spent) -> list[Row]:
    """Return the rows of what changes the store; ``look`` is what its plan alone takes."""
    told = root.parent / "told"
    done, undone = [], []
    for _ in range(RUNS_OF_CHANGES):
        time.sleep(_PAUSE_S)
        before = time.time_ns()
        done.append(_spend([*HELPER, "recover", "--abnormal", "--yes", "-s", str(root)], told))
        files = 1 + sum(path.is_file() and path.stat().st_mtime_ns > before for path in root.rglob("*"))
        undone.append(_spend([*HELPER, "undo", "--yes", "-s", str(root)]))
    written, noted = (_told(told, text) for text in ("written to the store", "next to the store"))
    told.unlink()
    limit = _write_and_sync(root.parent / "limit", written + noted, files)
    repair, undo = min(done), min(undone)
    change = repair._replace(seconds=repair.seconds - look.seconds, processor=repair.processor - look.processor)
    restored = SEGMENT // 2 + noted  # the zeros take no room in the notes
    limit_of_undo = _write_and_sync(root.parent / "limit", restored, files)
    return [
        Row(f"limit: write and sync {written + noted >> 20:,} MiB", _STORE, _figure(limit), "1.0 x", ""),
        Row("recover --abnormal --yes", _STORE, _figure(repair), _ratio(repair, limit), ""),
        Row("the same, without its look (--dry-run)", _STORE, _figure(change), _ratio(change, limit), "≤ 3 x"),
        Row(f"limit: write and sync {restored >> 20:,} MiB", _STORE, _figure(limit_of_undo), "1.0 x", ""),
        Row("undo --yes", _STORE, _figure(undo), _ratio(undo, limit_of_undo), "≤ 3 x"),
    ]


def _ratio(spent: Spent, limit: Spent) -> str:
    return f"{spent.seconds / limit.seconds:.1f} x"


def _told(path: Path, text: str) -> int:
    """Return the bytes that a remark tells."""
    (line,) = (line for line in path.read_text().splitlines() if text in line)
    return int(re.sub(r"\D", "", line.partition(" bytes ")[0]))


def _write_and_sync(folder: Path, size: int, files: int) -> Spent:
    """Write so many bytes to so many new files, each synced."""
    program = (
        "import os, sys\n"
        "folder, size, chunk = sys.argv[1], int(sys.argv[2]), bytes([1]) * (1 << 24)\n"
        "for number in range(int(sys.argv[3])):\n"
        "    with open(f'{folder}/{number}', 'wb', buffering=0) as file:\n"
        "        for at in range(0, size, len(chunk)):\n"
        "            file.write(chunk[: size - at])\n"
        "        os.fsync(file.fileno())\n"
    )
    command = [sys.executable, "-c", program, str(folder), str(size // files), str(files)]
    runs = []
    for _ in range(RUNS_OF_CHANGES):
        time.sleep(_PAUSE_S)
        folder.mkdir()
        try:
            runs.append(_spend(command))
        finally:
            shutil.rmtree(folder)
    return min(runs)


def _figure(spent: Spent) -> str:
    return f"{spent.seconds:.1f} s ({spent.processor:.1f} s of processor), {spent.memory >> 20:,} MiB"


def _best(command: list[str]) -> Spent:
    return min(_spend(command) for _ in range(RUNS))


def _spend(command: list[str], told: Path = Path(os.devnull)) -> Spent:
    os.sync()  # else it waits for what others have written or removed
    with told.open("w") as remarks:
        launched = subprocess.run(
            [sys.executable, "-S", "-c", _LAUNCH, *command],
            stdout=subprocess.PIPE,
            stderr=remarks,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},  # modules are compiled once, as where they are installed
            text=True,
            check=True,
        )
    status, seconds, processor, memory = launched.stdout.split()
    if int(status) not in (0, 3, 4, 5):
        raise AssertionError(f"{command} ended with {status}")
    return Spent(float(seconds), float(processor), int(memory) << 10)


# By a process that is small: the memory at most of a new process is that of whoever began it, too.
_LAUNCH = """
import os, subprocess, sys, time
start = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
process.returncode = os.waitstatus_to_exitcode(status)
print(process.returncode, time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss)
"""
