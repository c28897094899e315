"""Stores whose log, or a part of it, lies elsewhere than it is looked for."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mqtool.engine.repair.missing_log import log_elsewhere
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import Status
from tests.commands.running import run
from tests.damage import snapshot
from tests.golden import GOLDEN_NAMES, copy_of, golden_store


def moved(*names: str, to: str) -> Callable[[Path], object]:
    """Move folders of the log to a place told from the store."""

    def change(store: Path) -> None:
        (store / to).mkdir(exist_ok=True)
        for name in names:
            shutil.move(store / name, store / to / name)

    return change


MOVED: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "both folders lie beside the store": (
        moved("commitlog-a", "commitlog-b", to=".."),
        ["../commitlog-a", "../commitlog-b"],
    ),
    "both folders lie deeper beside the store": (
        moved("commitlog-a", "commitlog-b", to="../log"),
        ["../log/commitlog-a", "../log/commitlog-b"],
    ),
    "both folders lie deeper": (moved("commitlog-a", "commitlog-b", to="log"), ["log/commitlog-a", "log/commitlog-b"]),
    "the first folder lies beside the store": (moved("commitlog-a", to=".."), ["commitlog-b", "../commitlog-a"]),
    "the second folder lies beside the store": (moved("commitlog-b", to=".."), ["commitlog-a", "../commitlog-b"]),
    "the second folder lies deeper": (moved("commitlog-b", to="more"), ["commitlog-a", "more/commitlog-b"]),
}
COMMANDS = [
    ["recover", "--yes"],
    ["recover", "--abnormal", "--cut", "--yes"],
    ["rebuild", "all", "--yes"],
    ["rebuild", "config", "--yes"],
    ["rebuild", "all", "--into", "NEW"],
    ["salvage", "--into", "NEW"],
]


@pytest.mark.parametrize("where", MOVED)
def test_a_log_that_lies_elsewhere_is_found_and_offered_and_nothing_is_changed(where: str, tmp_path: Path) -> None:
    store = copy_of("multipath-533-clean", tmp_path).resolve()
    change, folders = MOVED[where]
    change(store)
    before = snapshot(store)
    setting = ",".join(str((store / folder).resolve()) for folder in folders)

    for words in COMMANDS:
        ran = run(*(str(tmp_path / "new") if word == "NEW" else word for word in words), "-s", str(store))
        assert ran.status == Status.NO_INPUT, words
        assert f"--set storePathCommitLog={setting} " in ran.remarks
    assert snapshot(store) == before
    assert not (tmp_path / "new").exists()
    assert run("recover", "--dry-run", "-s", str(store), "--set", f"storePathCommitLog={setting}").status == Status.OK


@pytest.mark.parametrize("where", MOVED)
def test_what_doctor_recommends_then_leads_to_the_log(where: str, tmp_path: Path) -> None:
    store = copy_of("multipath-533-clean", tmp_path).resolve()
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=a\n")
    change, folders = MOVED[where]
    change(store)

    while causes := [row for row in run("doctor", "-s", str(store), "-c", str(conf)).rows if row.get("next")]:
        assert not [command for row in causes for command in row["next"] if command.startswith("mqtool re")]
        assert conf.read_text().count("storePathCommitLog") < 2
        for command in causes[0]["next"]:
            subprocess.run(command, shell=True, check=True)

    expected = ",".join(str((store / folder).resolve()) for folder in folders)
    assert f"storePathCommitLog={expected}\n" in conf.read_text()
    assert run("doctor", "-s", str(store), "-c", str(conf)).status == Status.OK
    assert run("recover", "--dry-run", "-s", str(store), "-c", str(conf)).status == Status.OK


def test_a_copy_of_the_log_is_not_named_as_a_part_of_it(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path).resolve()
    whole, copy = snapshot(store / "commitlog"), shutil.copytree(store / "commitlog", tmp_path / "copy").resolve()
    lacking = "00000000000000131072"
    (store / "commitlog" / lacking).unlink()

    refused = run("recover", "-s", str(store), "--yes")
    causes = [row for row in run("doctor", "-s", str(store)).rows if row.get("next")]
    for command in causes[0]["next"]:
        subprocess.run(command, shell=True, check=True)

    assert refused.status == Status.NO_INPUT
    assert f"copy {lacking} into {store / 'commitlog'}" in refused.remarks
    assert causes[0]["next"] == [f"cp -a {copy / lacking} {store / 'commitlog'}"]
    assert {**snapshot(store / "commitlog"), ".": whole["."]} == whole
    assert run("doctor", "-s", str(store)).status == Status.OK


def test_of_several_copies_of_a_log_the_folders_of_the_nearest_are_offered(tmp_path: Path) -> None:
    store = copy_of("multipath-533-clean", tmp_path).resolve()
    for name in ("commitlog-a", "commitlog-b"):
        shutil.copytree(store / name, tmp_path / "backup" / name)
    moved("commitlog-a", "commitlog-b", to="log")(store)

    found = log_elsewhere(StoreReader(store))

    assert found is not None
    assert found.setting == f"{store / 'log' / 'commitlog-a'},{store / 'log' / 'commitlog-b'}"
    assert found.copies == tuple(tmp_path.resolve() / "backup" / name for name in ("commitlog-a", "commitlog-b"))


def test_a_store_without_any_log_is_refused_with_the_setting_named(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    for file in (store / "commitlog").iterdir():
        file.unlink()
    before = snapshot(store)

    for words in COMMANDS:
        ran = run(*(str(tmp_path / "new") if word == "NEW" else word for word in words), "-s", str(store))
        assert ran.status == Status.NO_INPUT, words
        assert "storePathCommitLog" in ran.remarks
    assert snapshot(store) == before
    assert not [command for row in run("doctor", "-s", str(store)).rows for command in row.get("next", ())]


@pytest.mark.parametrize("gone", [("consumequeue",), ("consumequeue", "index"), ("consumequeue", "checkpoint")])
def test_a_store_whose_log_went_with_its_queues_is_refused_as_well(gone: tuple[str, ...], tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    for name in ("commitlog", *gone):
        path = store / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    ran = run("recover", "-s", str(store), "--abnormal", "--yes")

    assert ran.status == Status.NO_INPUT
    assert "storePathCommitLog" in ran.remarks


def test_who_names_the_folders_may_do_without_others(tmp_path: Path) -> None:
    store = copy_of("multipath-533-clean", tmp_path)
    moved("commitlog-b", to="..")(store)
    config = StoreConfig({"storePathCommitLog": str(store / "commitlog-a")})

    assert log_elsewhere(StoreReader(store)) is not None
    assert log_elsewhere(StoreReader(store, config)) is None


def test_the_log_of_another_store_is_not_offered(tmp_path: Path) -> None:
    store, _ = copy_of("mixed-533-clean", tmp_path), copy_of("mixed-533-kill", tmp_path)
    shutil.rmtree(store / "commitlog")

    found = log_elsewhere(StoreReader(store))

    assert found is not None
    assert found.found == ()


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_nothing_is_elsewhere_of_a_sound_store(name: str) -> None:
    assert log_elsewhere(StoreReader(golden_store(name))) is None


@pytest.mark.parametrize("place", [0, 1, -1])
def test_a_segment_on_a_disk_that_is_not_mounted_is_named_and_not_given_up(place: int, tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path).resolve()
    segment = sorted((store / "commitlog").iterdir())[place]
    disk = tmp_path / "disk" / segment.name
    disk.parent.mkdir()
    segment.rename(disk)
    segment.symlink_to(disk)
    before = snapshot(store)
    unmounted = tmp_path / "unmounted"
    disk.parent.rename(unmounted)

    for words in COMMANDS:
        ran = run(*(str(tmp_path / "new") if word == "NEW" else word for word in words), "-s", str(store))
        assert ran.status == Status.NO_INPUT, words
        assert f"{segment} is a link to {disk}, which does not exist: mount its disk" in ran.remarks
    found = [row for row in run("verify", "-s", str(store)).rows if row["code"] == "LOG-STRAY"]
    assert [(row["file"], row["message"]) for row in found] == [
        (
            f"commitlog/{segment.name}",
            "a link that leads nowhere: it was not checked; brokers take it for an empty file",
        )
    ]
    told = run("doctor", "-s", str(store))
    causes = {row["code"]: row["next"] for row in told.rows if row["kind"] == "cause"}
    assert causes["LOG-STRAY"] == ["mqtool explain LOG-STRAY"]
    assert not any("recover" in command for commands in causes.values() for command in commands)
    assert "not checked" not in told.remarks

    unmounted.rename(disk.parent)
    assert snapshot(store) == before
    assert run("verify", "-s", str(store)).status == Status.OK


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mixed-533-clean", "consumequeue/pay_events/1/00000000000000000000"),
        ("ext-533-clean", "consumequeue_ext/Ext/0/00000000000000000000"),
        ("batchcq-533-clean", "batchconsumequeue/Inner/0/00000000000000000000"),
    ],
)
def test_a_queue_file_on_a_disk_that_is_not_mounted_is_named_with_what_to_do(
    name: str, file: str, tmp_path: Path
) -> None:
    store = copy_of(name, tmp_path).resolve()
    link = store / file
    link.unlink()
    link.symlink_to(tmp_path / "disk" / link.name)

    found = run("verify", "-s", str(store)).rows
    refused = run("recover", "--abnormal", "--yes", "-s", str(store))

    (finding,) = (row for row in found if row["code"] == "QUEUE-STRAY")
    assert (finding["file"], finding["message"]) == (file, "a link that leads nowhere: it was not checked")
    assert refused.status == Status.NO_INPUT
    assert (
        f"{link} is a link to {tmp_path / 'disk' / link.name}, which does not exist: mount its disk" in refused.remarks
    )
    assert link.is_symlink()

    link.unlink()
    assert run("recover", "--abnormal", "--yes", "-s", str(store)).status == Status.OK
    assert run("verify", "-s", str(store)).status == Status.OK
