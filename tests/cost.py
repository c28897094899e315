"""The law of cost: what a command does grows with what it is given, not with its square.

Steps are counted, not time: lines of mqtool that run, each turn of a loop included; units and bytes of the log that
readers hand out. What numpy does inside one call is not seen: ``python -m bench --only damage`` times that.
"""

import dataclasses
import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import mqtool
from mqtool.engine.store.consume_queue import ConsumeQueue
from mqtool.engine.store.file_queue import FileQueue
from mqtool.errors import Status
from mqtool.formats import scan
from tests.builders import Draft, StoreSizes, write_store
from tests.commands.running import run

_HOME = str(Path(mqtool.__file__).parent)
_BYTES_A_STEP = 64
"""So many bytes that are handed out count as one step: about as long as a line takes."""


@dataclasses.dataclass
class Steps:
    """What was done."""

    lines: int = 0
    units: int = 0
    size: int = 0

    @property
    def total(self) -> int:
        """All of it as one number."""
        return self.lines + self.units + self.size // _BYTES_A_STEP


@contextmanager
def counted() -> Iterator[Steps]:
    """Count the steps of what runs meanwhile, in all threads that begin meanwhile too."""
    steps, lines = Steps(), 0

    def line(_: FrameType, event: str, __: Any) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
        return line

    def call(frame: FrameType, _: str, __: Any) -> Any:
        name = frame.f_code.co_filename
        of_kernels = name.endswith(("/kernels.py", "/native.py"))  # bytes tell of those
        return line if name.startswith(_HOME) and not of_kernels else None

    units, read, scanned = ConsumeQueue.units, FileQueue.read, scan.scan

    def counting_units(queue: ConsumeQueue, start: int, stop: int) -> Any:
        found = units(queue, start, stop)
        steps.units += len(found)
        return found

    def counting_read(files: FileQueue, offset: int, size: int) -> bytes:
        found = read(files, offset, size)
        steps.size += len(found)
        return found

    def counting_scan(buffer: Any, base: int, start: int = 0, *rest: Any, **options: Any) -> scan.Scan:
        found = scanned(buffer, base, start, *rest, **options)
        steps.size += max(0, found.end - start)
        return found

    before = sys.gettrace()
    with (
        mock.patch.object(ConsumeQueue, "units", counting_units),
        mock.patch.object(FileQueue, "read", counting_read),
        mock.patch.object(scan, "scan", counting_scan),
    ):
        threading.settrace(call)
        sys.settrace(call)
        try:
            yield steps
        finally:
            sys.settrace(before)
            threading.settrace(before)
            steps.lines = lines


def growth(
    make: Callable[[Path, int], Path], run: Callable[[Path], object], count: int, into: Path, exact: bool
) -> float:
    """Return by how much the steps of a command grow each time that what it is given doubles, from ``count`` on.

    Args:
        make: makes a store with so many of something in a folder.
        run: the command.
        count: how many; its square should be more than the steps that a command takes in any case.
        into: a folder for the stores.
        exact: leave out what the command takes in any case, which hides some of the growth; only where the steps grow
            evenly.
    """
    found = []
    # The first one only loads what is kept.
    for number in (max(1, count // 8), count, *([2 * count] if exact else []), 4 * count):
        store = make(into / str(number), number)
        with counted() as steps:
            run(store)
        found.append(steps.total)
    if exact:
        return (found[3] - found[2]) / max(1, found[2] - found[1])
    return float((found[2] / found[1]) ** 0.5)


# Stores


SIZES = StoreSizes(segment=1 << 14, queue_file=20 * 1000, slots=100, entries=400)


LONG = dataclasses.replace(SIZES, segment=1 << 20)


def messages(
    root: Path, count: int, queues: int = 4, topics: int = 2, segments: int = 0, sizes: StoreSizes = SIZES
) -> Path:
    """Write a store with so many messages, in so many segments at least."""
    body = b"x" * ((segments and max(100, segments * SIZES.segment // count - 150)) or 100)
    drafts = [
        Draft(f"Topic{i // queues % topics}", i % queues, body, {"UNIQ_KEY": f"{i:032X}", "TAGS": "A"})
        for i in range(count)
    ]
    shutil.rmtree(root, ignore_errors=True)
    write_store(root, drafts, sizes)
    return root


def damaged_bodies(root: Path, step: int) -> Path:
    """Change a byte in the body of every so many-th message."""
    from mqtool.engine.store.commit_log import Gap
    from mqtool.engine.store.reader import StoreReader

    places = [
        (table.base, int(at))
        for table in StoreReader(root).tables()
        if not isinstance(table, Gap)
        for at in table.offsets(0)[::step]
    ]
    for base, at in places:
        with (root / "commitlog" / f"{base:020}").open("r+b") as file:
            file.seek(at)
            file.write(b"?")
    return root


def missing_segments(root: Path, count: int) -> Path:
    """Write a store that lacks all segments but the first and the last: about ``count`` messages."""
    segments = sorted((messages(root, count) / "commitlog").iterdir())
    for segment in segments[1:-1]:
        segment.unlink()
    return root


def missing_without_queues(root: Path, count: int) -> Path:
    """The same without queues: only the order of the messages that are left tells what is lost."""
    shutil.rmtree(missing_segments(root, count) / "consumequeue")
    return root


def every_second_segment(root: Path, count: int) -> Path:
    """Write a store of about ``count`` segments that lacks every second one."""
    segments = sorted((messages(root, 8 * count, segments=count) / "commitlog").iterdir())
    for segment in segments[1:-1:2]:
        segment.unlink()
    return root


def groups(root: Path, count: int) -> Path:
    """Write a store with so many groups, each of which has read one of four queues; every queue has damaged bodies."""
    damaged_bodies(messages(root, 40), 3)
    table = {f"Topic{i % 2}@Group{i}": {f"{i % 4}": 1} for i in range(count)}
    (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    return root


def everything(root: Path, count: int) -> Path:
    """Write a store with so many queues, each of which has a group, and of all else as much in proportion.

    There are four queues to a topic, three messages to a queue, every fifth of them damaged, and twenty to a segment.
    """
    damaged_bodies(messages(root, 3 * count, 4, count // 4, 3 * count // 20), 5)
    table = {f"Topic{i // 4 % max(1, count // 4)}@Group{i}": {f"{i % 4}": 1} for i in range(count)}
    (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    return root


STORES: dict[str, tuple[Callable[[Path, int], Path], int]] = {
    "messages": (messages, 500),
    "messages of a missing segment": (missing_segments, 500),
    "messages of a missing segment, without queues": (missing_without_queues, 500),
    "damaged bodies": (lambda root, count: damaged_bodies(messages(root, 2 * count), 2), 200),
    "damaged bodies side by side": (lambda root, count: damaged_bodies(messages(root, count, sizes=LONG), 1), 200),
    "queues with a damaged body": (lambda root, count: damaged_bodies(messages(root, 2 * count, count, 1), 2), 80),
    "topics with a damaged body": (lambda root, count: damaged_bodies(messages(root, 2 * count, 1, count), 2), 80),
    "segments": (every_second_segment, 240),
    "groups": (groups, 1000),
    "everything": (everything, 40),
}
"""What there is how much of: by name, and of how many to begin with."""


# Commands


MOST = 2.3
"""So many times the steps for twice as much, at most: whole files are as coarse as that in stores of these sizes."""
_SET = [word for name, value in SIZES.settings.items() for word in ("--set", f"{name}={value}")]
_REPAIRS = "recover -s {} --abnormal --yes"
_COPY = "copy"
COMMANDS: dict[str, tuple[str, str]] = {
    "verify": ("", "verify -s {}"),
    "doctor": ("", "doctor -s {}"),
    "recover": ("", _REPAIRS),
    "recover --cut": ("", "recover -s {} --abnormal --cut --dry-run"),
    "recover --as-broker": ("", "recover -s {} --abnormal --as-broker 5.3 --dry-run"),
    "apply": ("recover -s {} --abnormal --save-plan {}.plan", "apply {}.plan --yes"),
    "undo": (_REPAIRS, "undo -s {} --yes"),
    "rebuild all": ("", "rebuild all -s {} --survey --yes"),
    "rebuild config": ("", "rebuild config -s {} --yes"),
    "salvage": ("", "salvage -s {} --into {}.new"),
    "salvage --merge": (_COPY, "salvage --merge {} {}.old --into {}.new"),
    "export": ("", "export -s {} --into {}.jsonl"),
    "import": ("export -s {} --into {}.jsonl", "import {}.jsonl --into {}.new"),
    "compare": ("salvage -s {} --into {}.new", "compare {} {}.new"),
    "compare --by key": ("salvage -s {} --into {}.new", "compare {} {}.new --by key"),
    "info": ("", "info -s {}"),
    "stats": ("", "stats -s {} --by queue"),
    "pull": ("", "pull -s {} --topic Topic0 --queue 0 --limit 1000000"),
    "topic list": ("", "topic list -s {}"),
    "topic show": ("", "topic show -s {} *"),
    "topic delete": ("", "topic delete -s {} Topic0 --yes"),
    "group list": ("", "group list -s {}"),
    "group delete": ("", "group delete -s {} Group0 --yes"),
    "offset list": ("", "offset list -s {}"),
    "offset reset": ("", "offset reset -s {} --group Group0 --topic Topic0 --earliest --yes"),
    "find --text": ("", "find -s {} --text nowhere"),
    "find --key": ("", f"find -s {{}} --key {10:032X}"),
    "dump commitlog": ("", "dump commitlog -s {}"),
    "dump consumequeue": ("", "dump consumequeue -s {}"),
    "dump index": ("", "dump index -s {}"),
    "dump config": ("", "dump config -s {}"),
}
"""By name: what is run before it, if anything, and the command; {} is the store, {}.old a copy if there is one."""


def growth_of(name: str, make: Callable[[Path, int], Path], count: int, into: Path, kept: Path | None = None) -> float:
    """Return the ``growth`` of one of ``COMMANDS``; stores are taken from ``kept``, if that is given and has them."""
    before, command = COMMANDS[name]

    def made(root: Path, number: int) -> Path:
        if kept is None:
            store = make(root, number)
        else:
            if not (original := kept / str(number)).exists():
                make(original, number)
            store = shutil.copytree(original, root)
        if before == _COPY:
            shutil.copytree(store, f"{store}.old")
        elif before:
            _run(before, store)
        return store

    return growth(made, lambda store: _run(command, store), count, into, exact=make is everything)


def _run(command: str, store: Path) -> None:
    ran = run(*command.replace("{}", str(store)).split(), *(() if command.startswith(("undo", "apply")) else _SET))
    if ran.status not in (Status.OK, Status.DAMAGE, Status.WARNINGS, Status.GIVEN_UP):
        raise AssertionError(f"{command} ended with {ran.status}: {ran.remarks}")
