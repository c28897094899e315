"""A broker's retention, at any moment of a reading command: it takes the oldest files of log, queues and index at once.

``python -m tests.retention`` lets it come before each file that is opened (some minutes); the tests take a few moments.
"""

import contextlib
import functools
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mqtool.engine.store.consume_queue import BatchConsumeQueue, ConsumeQueue
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import Status
from tests.commands.running import Ran, run
from tests.golden import copy_of

BASE, SEGMENTS = "mixed-550-kill", 4
COMMANDS = (
    "verify -j 1", "verify --level quick", "info", "stats -j 2", "find --text a", "find --key nobody",
    "dump commitlog", "dump consumequeue", "dump index", "export", "pull --topic OrderEvents --queue 1 --offset 35",
    "get OrderEvents 1 35",
)  # fmt: skip


def moments(command: str, scratch: Path) -> int:
    """Return how many files and folders of the store a command opens."""
    return _run(command, scratch, 0)[1]


def wrong_at(command: str, scratch: Path, at: int) -> list[str]:
    """Run a command from which retention takes files at a moment; return what is wrong with its answer.

    What it tells of must be in the whole store, and what is left of the store must be told.
    """
    ran, _, rows = _run(command, scratch, at)
    if ran.status != Status.OK:
        return [f"{command} ends {ran.status} at {at}: {ran.remarks[-300:]}"]
    if command.startswith("verify"):
        return [f"{command} finds {row['code']} at {at}" for row in rows if row["severity"] != "note"]
    if not command.startswith(("find", "dump", "export", "pull", "get")):
        return []
    whole, left = _whole_and_left(command, scratch)
    found = _texts(rows)
    return [f"{command} makes up {row} at {at}" for row in found - whole] + [
        f"{command} leaves out {row} at {at}" for row in left - found
    ]


@functools.cache
def _whole_and_left(command: str, scratch: Path) -> tuple[set[str], set[str]]:
    return _texts(_run(command, scratch, 0)[2]), _texts(_run(command, scratch, 1)[2])


def _texts(rows: Iterable[object]) -> set[str]:
    return {str(row) for row in rows}


def _run(command: str, scratch: Path, at: int) -> tuple[Ran, int, list[dict[str, Any]]]:
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        store, into = copy_of(BASE, Path(folder)), Path(folder, "out.jsonl")
        words = [*command.split(), "-s", store, *(["--into", into] if command == "export" else [])]
        with taking(store, expired(store, SEGMENTS), at) as watch:
            ran = run(*words)
        rows = [json.loads(line) for line in into.read_text().splitlines()] if command == "export" else ran.rows
        return ran, watch.seen, rows


def expired(store: Path, segments: int) -> list[Path]:
    """Return the files that retention takes along with so many segments: never the last one of a queue or the index."""
    reader = StoreReader(store)
    log = reader.commit_log.segments
    start = log[segments].start_offset
    gone = [segment.path for segment in log[:segments]]
    queues: list[ConsumeQueue | BatchConsumeQueue] = [
        *reader.consume_queues.values(),
        *reader.batch_consume_queues.values(),
    ]
    for queue in queues:
        for before, after in zip(queue.segments, queue.segments[1:], strict=False):
            (first,) = _first_unit(queue, after.start_offset)
            if first > start:
                break
            gone.append(before.path)
    for file in reader.index_files[:-1]:
        if file.header.end_physical_offset >= start:
            break
        gone.append(file.path)
    return gone


def _first_unit(queue: ConsumeQueue | BatchConsumeQueue, address: int) -> list[int]:
    if isinstance(queue, BatchConsumeQueue):
        place = next(number for number in range(queue.unit_count) if queue.address_of(number) >= address)
        return [int(queue.units(place, place + 1)["physical_offset"][0])]
    offset = address // 20
    return [int(queue.units(offset, offset + 1)["physical_offset"][0])]


class _Watch:
    """Counts what is opened or listed in a store, and removes files before the one that is waited for."""

    def __init__(self) -> None:
        self.store = ""
        self.left = -1
        self.seen = 0
        self.gone: list[Path] = []

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.store and event in ("open", "os.scandir", "os.listdir") and str(arguments[0]).startswith(self.store):
            self.seen += 1
            if self.seen == self.left:
                for path in self.gone:
                    path.unlink(missing_ok=True)


_watch: _Watch | None = None  # a hook of the interpreter is there for good: one is enough


@contextlib.contextmanager
def taking(store: Path, gone: list[Path], at: int) -> Iterator[_Watch]:
    """Remove files of a store when it is about to be opened or listed for the so-manieth time."""
    global _watch
    if _watch is None:
        _watch = _Watch()
        sys.addaudithook(_watch)
    _watch.store, _watch.left, _watch.seen, _watch.gone = str(store), at, 0, gone
    try:
        yield _watch
    finally:
        _watch.store = ""


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        told = [
            line
            for command in COMMANDS
            for at in range(1, moments(command, Path(folder)) + 1)
            for line in wrong_at(command, Path(folder), at)
        ]
    sys.exit("\n".join(told))
