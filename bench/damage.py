"""What damage costs: the same commands on a sound store and on a damaged one, time and memory, whole processes.

The store has four segments of 1 GiB. Of the damaged one a segment is missing, another is zeroed in its middle half,
and 10,000 messages elsewhere have a bit of their bodies changed. The limit of what changes the store is to write and
sync as many bytes as it writes and notes.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.mends import warm
from bench.stores import SEGMENT, make_store
from bench.table import HELPER, Row
from mqtool.engine.repair.journal import home_of
from mqtool.engine.store.commit_log import Gap
from mqtool.engine.store.file_queue import segment_name
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import kernels as plain
from mqtool.formats import scan

RUNS = 2
SIZE = (4 << 30) - (4 << 20)
FLIPS = 10_000
_LOOKS = (("verify",), ("doctor",), ("recover", "--abnormal", "--dry-run"))
_STORE = "4 x 1 GiB"
_CHUNK = 1 << 24


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
        damage(damaged)
        warm(sound)
        warm(damaged)
        return [*_looks(sound, damaged), *_changes(damaged)]
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


def _looks(sound: Path, damaged: Path) -> list[Row]:
    rows = []
    for words in _LOOKS:
        name = " ".join(words)
        spent = {root: _best([*words, "-s", str(root)]) for root in (sound, damaged)}
        one, other = spent[sound], spent[damaged]
        rows.append(Row(f"{name}: sound", _STORE, _figure(one), "1.0 x", ""))
        ratio = f"{other.seconds / one.seconds:.1f} x, memory {other.memory / one.memory:.1f} x"
        rows.append(Row(f"{name}: damaged", _STORE, _figure(other), ratio, "≤ 3 x"))
    return rows


def _changes(root: Path) -> list[Row]:
    told = root.parent / "told"
    done = _spend(["recover", "--abnormal", "--yes", "-s", str(root)], told)
    written, noted = (_told(told, text) for text in ("written into the store", "beside the store"))
    undone = _spend(["undo", "--yes", "-s", str(root)])
    told.unlink()
    rows = []
    restored = SEGMENT // 2 + noted  # the zeros take no room in the notes
    for name, spent, size in (("recover --abnormal --yes", done, written + noted), ("undo --yes", undone, restored)):
        limit = _write_and_sync(root.parent / "limit", size)
        rows.append(Row(f"limit: write and sync {size >> 20:,} MiB", _STORE, f"{limit:.1f} s", "1.0 x", ""))
        rows.append(Row(name, _STORE, _figure(spent), f"{spent.seconds / limit:.1f} x", "≤ 3 x"))
    return rows


def _told(path: Path, text: str) -> int:
    """Return the bytes that a remark tells."""
    (line,) = (line for line in path.read_text().splitlines() if text in line)
    return int(re.sub(r"\D", "", line.partition(" bytes ")[0]))


def _write_and_sync(path: Path, size: int) -> float:
    start = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(0, size, _CHUNK):
            file.write(b"\1" * _CHUNK)
        os.fsync(file.fileno())
    seconds = time.perf_counter() - start
    path.unlink()
    return seconds


def _figure(spent: Spent) -> str:
    return f"{spent.seconds:.1f} s ({spent.processor:.1f} s of processor), {spent.memory >> 20:,} MiB"


def _best(words: list[str]) -> Spent:
    return min(_spend(words) for _ in range(RUNS))


def _spend(words: list[str], told: Path = Path(os.devnull)) -> Spent:
    start = time.perf_counter()
    with told.open("w") as remarks:
        process = subprocess.Popen([*HELPER, *words], stdout=subprocess.DEVNULL, stderr=remarks)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 3, 4, 5):
        raise AssertionError(f"{words} ended with {process.returncode}")
    return Spent(time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss << 10)
