"""What stands in the way of a repair: a full disk, a read-only one, somebody else's files.

Whatever it is: one sentence, the status of ``docs/command_line.md``, the store as before, and nothing new beside it.
"""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mqtool.engine.repair.journal import State, home_of, journals
from mqtool.errors import Status
from tests.commands.running import Ran, run
from tests.crash import STEP, content
from tests.damage import Snapshot, cases, snapshot
from tests.golden import copy_store
from tests.machine import NOBODY, Mounts, run_as

BLOCK = 4096
DISK_SIZE = 8 << 20
IN_PLACE = ("recover", "recover --as-broker", "rebuild", "apply", "undo")
"""Commands that change the store."""
ANEW = ("rebuild --into", "salvage", "import", "export")
"""Commands that make something beside it."""
SMALL = ("--set", "mappedFileSizeCommitLog=65536", "--set", "maxHashSlotNum=100", "--set", "maxIndexNum=250")
Prepare = Callable[[Mounts, "CrampedStore"], object]


class CrampedStore:
    """A damaged store on a small disk of its own, and what the commands need that lies elsewhere."""

    def __init__(self, mounts: Mounts, damaged: Path, place: Path, command: str) -> None:
        self.command = command
        self.disk = mounts.ext4(place / "disk", DISK_SIZE)
        self.disk.chmod(0o755)
        self.store, self.into = self.disk / "store", self.disk / "new"
        self.plan, self.messages = place / "plan.json", place / "messages.jsonl"
        copy_store(damaged, self.store)
        for path in (place, *self.store.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        if command == "import":
            run("export", "-s", self.store, "--into", self.messages)
        if command == "apply":
            run("recover", "-s", self.store, "--save-plan", self.plan)
        if command == "undo":
            assert run("recover", "-s", self.store, "--yes").status == Status.GIVEN_UP

    def arguments(self) -> list[object]:
        """Return how the command is called."""
        on_store = ["-s", self.store]
        calls: dict[str, list[object]] = {
            "recover": ["recover", *on_store, "--yes"],
            "recover --as-broker": ["recover", "--as-broker", "5.3", *on_store, "--yes"],
            "rebuild": ["rebuild", "all", *on_store, "--survey", "--yes"],
            "apply": ["apply", self.plan, "--yes"],
            "undo": ["undo", *on_store, "--yes"],
            "rebuild --into": ["rebuild", "all", *on_store, "--into", self.into],
            "salvage": ["salvage", *on_store, "--into", self.into],
            "import": ["import", self.messages, "--into", self.into, *SMALL],
            "export": ["export", *on_store, "--into", self.into],
        }
        return calls[self.command]


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    case = next(case for case in cases() if case.name == "mixed-533-clean/middle-segment-missing")
    return case.store(tmp_path_factory.mktemp("damaged"))


def faults(ran: Ran, status: Status, said: str, before: Snapshot, after: Snapshot) -> list[str]:
    """Return what is wrong with the end of a command that should be refused."""
    last = ran.remarks.rstrip("\n").rpartition("\n")[2]
    is_right = {
        f"the status is {ran.status}: {ran.remarks}": ran.status == status,
        f"the last line is {last}": last.startswith("mqtool: ") and said in last,
        f"a traceback: {ran.remarks}": "Traceback" not in ran.remarks,
        "files have changed": {**before, ".": None} == {**after, ".": None},
    }
    return [text for text, right in is_right.items() if not right]


def the_store(mounts: Mounts, place: CrampedStore) -> None:
    mounts.read_only(place.store)


def the_disk(mounts: Mounts, place: CrampedStore) -> None:
    mounts.again(place.disk, "ro")


def the_log(mounts: Mounts, place: CrampedStore) -> None:
    mounts.read_only(place.store / "commitlog")


@pytest.mark.parametrize(
    ("what", "commands", "said"),
    [
        (the_store, IN_PLACE, "store/lock is on a read-only file system: remount it for writing, then try again"),
        (the_disk, IN_PLACE, "store/lock is on a read-only file system: remount it for writing, then try again"),
        (the_disk, ANEW, "is on a read-only file system: remount it for writing, then try again"),
        (
            the_log,
            ("recover", "apply"),
            "read-only file system: remount it for writing, then try again; everything was",
        ),
    ],
)
def test_a_read_only_disk_is_named(
    what: Prepare, commands: tuple[str, ...], said: str, damaged: Path, mounts: Mounts, tmp_path: Path
) -> None:
    for command in commands:
        place = CrampedStore(mounts, damaged, tmp_path / command, command)
        what(mounts, place)
        before = snapshot(place.disk)

        ran = run(*place.arguments())

        assert faults(ran, Status.NOT_PERMITTED, said, before, snapshot(place.disk)) == []


def test_a_store_on_a_read_only_disk_can_be_salvaged_to_another(damaged: Path, mounts: Mounts, tmp_path: Path) -> None:
    for command in ANEW:
        place = CrampedStore(mounts, damaged, tmp_path / command, command)
        place.into = tmp_path / command / "elsewhere"
        the_disk(mounts, place)
        before = snapshot(place.disk)

        assert run(*place.arguments()).status < Status.BAD_DATA
        assert place.into.exists()
        assert snapshot(place.disk) == before


@pytest.mark.parametrize("command", ["recover", "recover --as-broker", "rebuild", "apply"])
@pytest.mark.parametrize("is_owner", [False, True])
def test_where_no_journal_can_be_made_the_way_out_is_told(
    command: str, is_owner: bool, damaged: Path, open_place: Path, mounts: Mounts
) -> None:
    place = CrampedStore(mounts, damaged, open_place / "place", command)
    if is_owner:  # the broker's user in a folder of root's
        for path in (place.store, *place.store.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
    else:
        copy = place.disk.parent / "copy"
        copy_store(place.store, copy)
        mounts.tmpfs(place.store, DISK_SIZE)
        for path in copy.iterdir():
            shutil.move(path, place.store)
        if command == "apply":
            run("recover", "-s", place.store, "--save-plan", place.plan)
        mounts.again(place.disk, "ro")
    before = snapshot(place.disk)

    ran = run_as(NOBODY, *place.arguments()) if is_owner else run(*place.arguments())

    home = home_of(place.store)
    said = f"cannot create {home}, which undo needs: have somebody with write access to {place.disk} create"
    assert faults(ran, Status.NOT_PERMITTED, said, before, snapshot(place.disk)) == []


def test_the_brokers_user_repairs_with_a_journal_that_root_made_room_for(
    damaged: Path, open_place: Path, mounts: Mounts
) -> None:
    place = CrampedStore(mounts, damaged, open_place / "place", "recover")
    for path in (place.store, *place.store.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    before = snapshot(place.store)
    (open_place / "journals").mkdir()
    os.chown(open_place / "journals", NOBODY, NOBODY)
    home_of(place.store).symlink_to(open_place / "journals")

    assert run_as(NOBODY, *place.arguments()).status == Status.GIVEN_UP
    assert run_as(NOBODY, "undo", "-s", place.store, "--yes").status == Status.OK
    assert snapshot(place.store) == before


@pytest.mark.parametrize("command", IN_PLACE)
def test_somebody_elses_store_is_not_changed(command: str, damaged: Path, open_place: Path, mounts: Mounts) -> None:
    place = CrampedStore(mounts, damaged, open_place / "place", command)
    before = snapshot(place.disk)

    ran = run_as(NOBODY, *place.arguments())

    assert faults(ran, Status.NOT_PERMITTED, "no permission to change", before, snapshot(place.disk)) == []


@pytest.mark.parametrize("command", ANEW)
def test_nothing_is_made_where_this_user_may_not_write(
    command: str, damaged: Path, open_place: Path, mounts: Mounts
) -> None:
    place = CrampedStore(mounts, damaged, open_place / "place", command)
    before = snapshot(place.disk)

    ran = run_as(NOBODY, *place.arguments())

    assert faults(ran, Status.NOT_PERMITTED, "no permission to change", before, snapshot(place.disk)) == []


@pytest.mark.parametrize("command", [*IN_PLACE[:3], "undo", *(name for name in ANEW if name != "import")])
def test_a_store_that_may_not_be_read_is_named(command: str, damaged: Path, open_place: Path, mounts: Mounts) -> None:
    place = CrampedStore(mounts, damaged, open_place / "place", command)
    place.store.chmod(0o700)
    before = snapshot(place.disk)

    ran = run_as(NOBODY, *place.arguments())

    assert faults(ran, Status.NOT_PERMITTED, f"{place.store}", before, snapshot(place.disk)) == []


@pytest.mark.parametrize("command", [*IN_PLACE[:4], *ANEW])
def test_a_disk_that_becomes_full_leaves_everything_as_it_was(
    command: str, damaged: Path, mounts: Mounts, tmp_path: Path
) -> None:
    place = CrampedStore(mounts, damaged, tmp_path, command)
    tried = 0
    for free in range(0, DISK_SIZE, BLOCK * STEP):
        fill(place.disk, free)
        before = snapshot(place.disk)
        ran = run(*place.arguments())
        (place.disk / "filler").unlink()
        after = snapshot(place.disk)
        if ran.status != Status.IO_ERROR:
            break
        before.pop("filler"), after.pop("filler", None)
        assert faults(ran, Status.IO_ERROR, "no space left", before, after) == []
        tried += 1
    assert ran.status < Status.BAD_DATA
    assert tried > (1 if STEP > 1 else 5)


@pytest.mark.parametrize("command", ["salvage", "import"])
def test_room_for_a_new_store_is_asked_for_before_it_is_begun(
    command: str, damaged: Path, mounts: Mounts, tmp_path: Path
) -> None:
    place = CrampedStore(mounts, damaged, tmp_path, command)
    fill(place.disk, 20 * BLOCK)
    before = snapshot(place.disk)

    ran = run(*place.arguments())

    assert faults(ran, Status.IO_ERROR, "are free; nothing was written", before, snapshot(place.disk)) == []


def test_an_undo_needs_no_room(damaged: Path, mounts: Mounts, tmp_path: Path) -> None:
    place = CrampedStore(mounts, damaged, tmp_path, "undo")
    fill(place.disk, 0)

    assert run(*place.arguments()).status == Status.OK
    assert content(place.store) == content(damaged)


def test_an_undo_that_cannot_go_on_says_so_and_goes_on_later(damaged: Path, mounts: Mounts, tmp_path: Path) -> None:
    place = CrampedStore(mounts, damaged, tmp_path, "undo")
    the_log(mounts, place)

    stuck = run(*place.arguments())
    states = [info.state for info in journals(place.store)]
    mounts.end_last()
    done = run(*place.arguments())

    assert stuck.status == Status.NOT_PERMITTED
    assert "not everything was undone: run `mqtool undo` again when the cause is fixed" in stuck.remarks
    assert states == [State.TAKING_BACK]
    assert done.status == Status.OK
    assert content(place.store) == content(damaged)


def fill(disk: Path, free: int) -> None:
    """Leave so many bytes of a disk, or some blocks more."""
    with (disk / "filler").open("wb", buffering=0) as file:
        for size in range(shutil.disk_usage(disk).free - free, 0, -BLOCK):
            with contextlib.suppress(OSError):  # it takes some blocks to keep account of the others
                os.posix_fallocate(file.fileno(), 0, size)
                return
