"""Repairs of stores that lie on several file systems: what cannot be renamed is copied, room for that is asked for."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mqtool.engine.repair.journal import home_of
from mqtool.engine.store.disk import allocated, mount_of, mount_points
from mqtool.errors import Status
from tests.commands.running import run
from tests.damage import Snapshot, cases, snapshot
from tests.golden import copy_store, golden_store
from tests.machine import NOBODY, Mounts, run_as

Layout = Callable[[Mounts, Path], Path]


def beside_a_mounted_store(mounts: Mounts, place: Path) -> Path:
    return mounts.tmpfs(place / "disk with a space")


def with_journals_elsewhere(mounts: Mounts, place: Path) -> Path:
    mounts.tmpfs(place / "other")
    home_of(place / "store").symlink_to(place / "other")
    return place / "store"


def mounted(*names: str) -> Layout:
    def layout(mounts: Mounts, place: Path) -> Path:
        for name in names:
            mounts.tmpfs(place / "store" / name)
            (place / "store" / name / "lost+found").mkdir(0o700)
        return place / "store"

    return layout


def linked(*names: str) -> Layout:
    def layout(mounts: Mounts, place: Path) -> Path:
        other = mounts.tmpfs(place / "other")
        (place / "store").mkdir()
        for name in names:
            (other / name).mkdir()
            (place / "store" / name).symlink_to(other / name)
        return place / "store"

    return layout


def bound(mounts: Mounts, place: Path) -> Path:
    """The store's queues are a mount of their own of the same file system."""
    (place / "store" / "consumequeue").mkdir(parents=True)
    mounts.over(place / "store" / "consumequeue")
    return place / "store"


LAYOUTS: dict[str, Layout] = {
    "the store is mounted": beside_a_mounted_store,
    "the journals lie elsewhere": with_journals_elsewhere,
    "log, queues and index are mounted": mounted("commitlog", "consumequeue", "index"),
    "config is mounted": mounted("config"),
    "log and queues are links": linked("commitlog", "consumequeue"),
    "the index is a link": linked("index"),
    "the queues are a mount of the same disk": bound,
}
REPAIRS = [
    ("mixed-533-clean/middle-segment-missing", ["recover", "--abnormal", "--cut"]),
    ("mixed-533-clean/consumequeue-deleted-abort", ["recover"]),
    ("mixed-533-kill/tail-zeros-many-records", ["recover", "--as-broker", "5.3"]),
    ("mixed-533-clean/one-queue-deleted", ["rebuild", "all"]),
]


def filled(store: Path, source: Path) -> Path:
    """Copy a store into folders that may be there, as mounts or links, already."""
    for path in sorted(source.iterdir()):
        if path.is_dir() and (store / path.name).exists():
            filled(store / path.name, path)
        elif path.is_dir():
            copy_store(path, store / path.name)
        else:
            store.mkdir(exist_ok=True)
            shutil.copy2(path, store / path.name)
    return store


def everything(store: Path) -> Snapshot:
    """Return what ``snapshot`` does, links to folders followed."""
    found = snapshot(store)
    for path in [path for path in store.iterdir() if path.is_symlink()]:
        found |= {f"{path.name}/{name}": state for name, state in snapshot(path).items()}
    return found


def same(store: Path, other: Path) -> bool:
    """Tell whether two stores hold the same; index files have names of their own."""

    def files(root: Path) -> list[tuple[str, str]]:
        found = everything(root)
        places = [(path if "index/" not in path else "index", state[1]) for path, state in found.items()]
        return sorted((path, checksum) for path, checksum in places if checksum)

    return files(store) == files(other)


@pytest.mark.parametrize(("name", "arguments"), REPAIRS, ids=[f"{' '.join(row[1])}" for row in REPAIRS])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_repair_works_and_is_taken_back_wherever_parts_of_a_store_lie(
    layout: Layout,
    name: str,
    arguments: list[str],
    mounts: Mounts,
    tmp_path: Path,
) -> None:
    damaged = next(case for case in cases() if case.name == name).store(tmp_path / "damaged")
    store = filled(layout(mounts, tmp_path), damaged)
    before = everything(store)

    done = run(*arguments, "-s", store, "--yes")
    expected = run(*arguments, "-s", damaged, "--yes")

    assert done.status == expected.status
    assert same(store, damaged)
    assert not list(tmp_path.rglob("*.mqtool-*"))
    assert run("undo", "-s", store, "--yes").status == Status.OK
    assert everything(store) == before


def test_the_plan_tells_what_must_be_copied_to_another_disk_and_that_room_is_lacking(
    mounts: Mounts,
    tmp_path: Path,
) -> None:
    store = filled(tmp_path / "store", golden_store("mixed-533-clean"))
    other = mounts.tmpfs(tmp_path / "other", 96 << 10)
    home_of(store).symlink_to(other)
    before = snapshot(store)

    near = run("rebuild", "all", "-s", golden_store("mixed-533-clean"), "--dry-run")
    far = run("rebuild", "all", "-s", store, "--dry-run")
    tried = run("rebuild", "all", "-s", store, "--yes")

    copied = allocated(store / "consumequeue") + allocated(store / "index")
    assert f"what is removed is copied, {copied:,} bytes: {home_of(store)} is on another" in far.remarks
    assert needed(far.remarks) == needed(near.remarks) + copied
    assert "is copied" not in near.remarks
    assert tried.status == Status.IO_ERROR
    assert f"no space left for {home_of(store)}: undo needs" in tried.remarks
    assert snapshot(store) == before
    assert not list(other.iterdir())


def needed(remarks: str) -> int:
    """Return how many bytes a plan says that undo needs."""
    (line,) = (line for line in remarks.splitlines() if "undo needs up to " in line)
    return int(line.split()[5].replace(",", ""))


def test_what_file_systems_keep_for_root_does_not_hinder_the_brokers_user(
    open_place: Path,
    mounts: Mounts,
) -> None:
    layout = mounted("commitlog", "consumequeue", "index")
    store = filled(layout(mounts, open_place), golden_store("mixed-533-kill"))
    for path in [store, *store.rglob("*")]:
        if path.name != "lost+found":
            os.chown(path, NOBODY, NOBODY)
            path.chmod(0o755)
    before = snapshot(store)

    for arguments in (["rebuild", "all"], ["recover"], ["recover", "--as-broker", "5.3"]):
        done = run_as(NOBODY, *arguments, "-s", store, "--yes")
        undone = run_as(NOBODY, "undo", "-s", store, "--yes")
        assert (done.status, undone.status) == (Status.OK, Status.OK), (done.remarks, undone.remarks)

    assert snapshot(store) == before


def test_a_new_store_may_be_made_where_a_disk_is_mounted(mounts: Mounts, tmp_path: Path) -> None:
    into = mounts.tmpfs(tmp_path / "new")
    (into / "lost+found").mkdir(0o700)

    assert run("salvage", "-s", golden_store("mixed-533-kill"), "--into", into).status == Status.OK
    assert run("verify", "-s", into).status == Status.OK


def test_of_several_mounts_the_innermost_holds_a_path(mounts: Mounts, tmp_path: Path) -> None:
    outer = mounts.tmpfs(tmp_path / "outer mount")
    inner = mounts.tmpfs(outer / "inner")
    (tmp_path / "link").symlink_to(inner)

    points = mount_points()

    assert mount_of(outer / "new" / "file", points) == outer
    assert mount_of(inner, points) == inner
    assert mount_of(tmp_path / "link" / "file", points) == inner
    assert mount_of(tmp_path, points) not in (outer, inner)
