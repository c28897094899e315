"""What every repair must keep: what its plan foretells is what it does, and undo gives back all of it.

Judged by ``os.walk``, ``stat`` and SHA-256 alone.
"""

import hashlib
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqtool.engine.repair.journal import Journal, holding, home_of, undo
from mqtool.engine.repair.plan import Plan, carry_out, plan_repair
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.paths import StoreConfig
from mqtool.formats.index_file import SLOT_SIZE
from tests.crash import WatchedDisk
from tests.damage import cases

CONFIG = StoreConfig()
REPAIRS: list[tuple[str, str, dict[str, Any]]] = [
    ("mixed-533-clean/middle-segment-missing", "recover", {}),
    ("mixed-533-clean/last-file-short", "recover", {}),
    ("mixed-533-clean/body-byte-first-segment-no-checkpoint-abort", "recover", {}),
    ("mixed-533-clean/consumequeue-deleted-abort", "recover", {"mode": "abnormal"}),
    ("mixed-533-clean/cq-ahead-of-log-abort", "recover", {}),
    ("mixed-533-clean/commitlog-stray-file", "recover", {}),
    ("mixed-533-clean/stale-records-after-end-abort", "recover", {}),
    ("many-533-clean/half-log-zeros-abort", "recover", {"cut": True}),
    ("mixed-533-kill/tail-zeros-many-records", "recover-as-broker", {"version": "5.3"}),
    ("mixed-497-kill/checkpoint-deleted", "recover-as-broker", {"version": "4.9"}),
    ("mixed-533-clean/one-queue-deleted", "rebuild", {"target": "queues"}),
    ("mixed-533-clean/one-queue-deleted", "rebuild", {"target": "queues", "topics": ["OrderEvents"]}),
    ("mixed-533-kill/control", "rebuild", {"target": "all", "version": "5.3"}),
    ("special-533-clean/consumequeue-deleted", "rebuild", {"target": "config"}),
    ("mixed-533-clean/control", "topic", {"edit": "topic delete", "topic": "OrderEvents"}),
    ("mixed-533-clean/control", "topic", {"edit": "topic create", "topic": "New", "queues": 2, "perm": "rw"}),
    ("mixed-533-clean/control", "group", {"edit": "group create", "group": "New"}),
    (
        "mixed-533-clean/control",
        "offset",
        {"edit": "offset reset", "group": "g", "topics": ["OrderEvents"], "timestamp": 0},
    ),
]

State = dict[str, tuple[Any, ...]]


class CallCountingDisk(WatchedDisk):
    """Counts the bytes of all writes that are not notes."""

    written = 0

    def call(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Carry out one call."""
        if name == "write" and not (arguments[0].parent.parent.name.endswith(".mqtool")):
            self.written += len(arguments[2])
        super().call(name, arguments)


def look(root: Path) -> State:
    """Return all that undo is to give back, by path."""
    found: State = {}
    for folder, folders, names in os.walk(root):
        for name in [*folders, *names, "."]:
            path = Path(folder, name)
            status = path.lstat()
            what = ""
            if stat.S_ISLNK(status.st_mode):
                what = str(path.readlink())
            elif stat.S_ISREG(status.st_mode):
                what = hashlib.sha256(path.read_bytes()).hexdigest()
            size = status.st_size if stat.S_ISREG(status.st_mode) else 0
            found[os.path.normpath(path.relative_to(root))] = (
                status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, size, what,
            )  # fmt: skip
    return found


def prepare(name: str, place: Path) -> Path:
    """Make a damaged store with modes and owners of all kinds, and a link."""
    store = next(case for case in cases() if case.name == name).store(place)
    for number, path in enumerate(sorted(store.rglob("*"))):
        time = path.stat().st_mtime_ns
        if os.geteuid() == 0:
            os.chown(path, 1000 + number % 3, 100 + number % 5)
        path.chmod((0o750, 0o700, 0o777)[number % 3] if path.is_dir() else (0o640, 0o600, 0o666)[number % 3])
        os.utime(path, ns=(time, time - number))
    config = store / "config"
    time = store.stat().st_mtime_ns
    if not config.exists():
        config.mkdir()
    config.rename(place / "config-elsewhere")
    config.symlink_to(place / "config-elsewhere")
    os.utime(store, ns=(time, time))
    return store


@pytest.mark.parametrize(("name", "command", "options"), REPAIRS, ids=[f"{c}-{n}-{o}" for n, c, o in REPAIRS])
def test_what_was_foretold_is_done_and_undo_gives_everything_back(
    tmp_path: Path, name: str, command: str, options: dict[str, Any]
) -> None:
    store = prepare(name, tmp_path)
    before, linked = look(store), look(tmp_path / "config-elsewhere")
    taken = room(store)
    plan = plan_repair(store, CONFIG, command, options)
    assert look(store) == before
    assert not home_of(store).exists()
    disk = CallCountingDisk()

    carry_out(store, CONFIG, plan, disk)

    after = look(store)
    assert unforetold(plan, before, after, linked != look(tmp_path / "config-elsewhere")) == []
    assert wrong_costs(plan, store, disk.written) == []
    undo(store, Disk())
    assert look(store) == before
    assert look(tmp_path / "config-elsewhere") == linked
    assert room(store) <= taken


def room(store: Path) -> int:
    """Return how many blocks of the disk a store takes."""
    return sum(path.stat().st_blocks for path in store.rglob("*") if path.is_file())


def unforetold(plan: Plan, before: State, after: State, config: bool) -> list[str]:
    """Return the paths that changed without the plan, and the changes of the plan that did not come about."""
    changed = {
        path
        for path in before.keys() | after.keys()
        if content(before.get(path)) != content(after.get(path)) and path != "."
    }
    # Who makes an index file names it by the time.
    names = {
        "index" if change.what == "create" and "/" in change.file and change.file.startswith("index") else change.file
        for change in plan.changes
    }
    wrong = [
        path
        for path in changed
        if not any(path == name or path.startswith(f"{name}/") or name.startswith(f"{path}/") for name in names)
    ]
    for change in plan.changes:
        file = change.file
        if file.startswith("config/"):
            is_done = config
        elif change.what == "create" and file.startswith("index/"):
            is_done = True
        else:
            is_done = any(path == file or path.startswith(f"{file}/") for path in changed)
            if change.size is not None and change.what in ("create", "remove"):
                is_done = is_done and (after if change.what == "create" else before)[file][4] == change.size
        wrong += [str(change)] * (not is_done)
    return wrong


def content(state: tuple[Any, ...] | None) -> Any:
    """Leave out the time."""
    return state and (*state[:3], *state[4:])


def wrong_costs(plan: Plan, store: Path, written: int) -> list[str]:
    """Return which numbers of the plan are not those of the bytes that were written and that undo needs."""
    (home,) = home_of(store).iterdir()
    noted = sum(path.stat().st_size for path in home.iterdir() if path.is_file())
    makes_index = any(change.file == "index" for change in plan.changes) and plan.command == "recover"
    # Of an index, the slots that are used are not known before it is made; and what is in an old one twice.
    spare = 4096 * SLOT_SIZE if makes_index else 0
    is_right = {
        f"{plan.write_size} bytes to write, not {written}": written <= plan.write_size <= written + spare,
        f"{plan.journal_size} bytes for undo, not {noted}": plan.journal_size == noted,
        f"{plan.growth} bytes more": 0 <= plan.growth <= plan.write_size,
    }
    return [text for text, right in is_right.items() if not right]


# Cost.


def test_a_journal_and_undo_take_steps_in_proportion_to_what_is_noted(tmp_path: Path) -> None:
    counts = {}
    for many in (200, 400):
        root = tmp_path / str(many) / "store"
        root.mkdir(parents=True)
        (root / "written").write_bytes(os.urandom(100 * many))
        for number in range(many):
            (root / f"old-{number}").touch()

        def change(root: Path = root, many: int = many) -> None:
            with holding(root, WatchedDisk()):
                journal = Journal.begin(root, "test", {}, WatchedDisk())
                with journal.together():
                    for number in range(many):
                        journal.write(root / "written", 100 * number, b"new")
                for number in range(many):
                    journal.remove(root / f"old-{number}")
                    journal.create(root / f"new-{number}", 10)
                journal.finish()

        counts[many] = [steps(change), steps(lambda root=root: undo(root, WatchedDisk()))]  # type: ignore[misc]

    for once, twice in zip(*counts.values(), strict=True):
        assert twice <= 2.2 * once


def steps(work: Callable[[], object]) -> int:
    """Return how many calls are made, of functions in Python and in C."""
    count = 0

    def watch(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_undo_gives_back_the_room_of_a_hole_that_was_written_over(tmp_path: Path) -> None:
    store, file = tmp_path / "store", tmp_path / "store" / "file"
    store.mkdir()
    with file.open("wb") as out:
        out.write(b"begin")
        out.seek(8 << 20, os.SEEK_CUR)
        out.write(b"end")
    before = look(store)
    with holding(store, Disk()):
        journal = Journal.begin(store, "test", {}, Disk())
        journal.write(file, 3, b"x" * ((8 << 20) + 4))
        journal.finish()

    _, exact = undo(store, Disk())

    assert exact
    assert look(store) == before
    assert file.stat().st_blocks * 512 < 2 << 20
