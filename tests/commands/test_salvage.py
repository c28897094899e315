"""``mqtool salvage`` as a user runs it."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from mqtool.engine.repair.salvage.new_store import making
from mqtool.errors import Status
from tests import damage
from tests.commands.running import run
from tests.crash import DyingDisk, KilledError
from tests.damage import snapshot
from tests.golden import copy_of, golden_store

CASES = {case.name: case for case in damage.cases()}


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    return CASES["mixed-533-clean/middle-segment-missing"].store(tmp_path)


def test_a_sound_store_is_copied_whole(tmp_path: Path) -> None:
    ran = run("salvage", "-s", golden_store("mixed-533-clean"), "--into", tmp_path / "new")

    assert ran.status == Status.OK
    assert sum(row["kept"] for row in ran.rows) == 287
    assert all(row["lost"] == row["placeholders"] == 0 for row in ran.rows)
    assert f"`mqtool verify -s {tmp_path / 'new'}` checks the new store" in ran.remarks
    assert run("verify", "-s", tmp_path / "new").status == Status.OK


def test_settings_that_lead_a_broker_of_the_new_store_to_the_old_log_are_named(tmp_path: Path) -> None:
    settings = ("--set", "storePathCommitLog=commitlog-a,commitlog-b", "--set", "mappedFileSizeCommitLog=65536")
    messages = tmp_path / "messages.jsonl"

    salvaged = run("salvage", "-s", golden_store("multipath-533-clean"), "--into", tmp_path / "salvaged", *settings)
    run("export", "-s", tmp_path / "salvaged", "--into", messages)
    imported = run("import", messages, "--into", tmp_path / "imported", *settings)

    assert salvaged.status == imported.status == Status.OK
    assert "storePathCommitLog names the folders of another log: remove it" in salvaged.remarks
    assert "storePathCommitLog names the folders of another log: remove it" in imported.remarks


def test_rows_count_what_is_kept_and_lost_by_topic(broken: Path, tmp_path: Path) -> None:
    ran = run("salvage", "-s", broken, "--into", tmp_path / "new")

    assert ran.status == Status.GIVEN_UP
    assert ran.rows == [
        {"topic": "OrderEvents", "kept": 82, "lost": 24, "placeholders": 24},
        {"topic": "log-x", "kept": 79, "lost": 12, "placeholders": 12},
        {"topic": "pay_events", "kept": 82, "lost": 8, "placeholders": 8},
    ]
    assert "65,536 bytes at 131,072 are skipped: the segment is missing" in ran.remarks
    assert run("verify", "-s", tmp_path / "new").status == Status.OK


def test_a_dry_run_writes_nothing(broken: Path, tmp_path: Path) -> None:
    before = snapshot(tmp_path)

    ran = run("salvage", "-s", broken, "--into", tmp_path / "new", "--dry-run")

    assert ran.status == Status.DAMAGE
    assert sum(row["lost"] for row in ran.rows) == 44
    assert "243 messages would be copied" in ran.remarks
    assert snapshot(tmp_path) == before


def test_a_dry_run_on_a_sound_store_ends_well(tmp_path: Path) -> None:
    ran = run("salvage", "-s", golden_store("mixed-533-clean"), "--into", tmp_path / "new", "--dry-run")

    assert ran.status == Status.OK
    assert not (tmp_path / "new").exists()


def test_a_message_that_contradicts_its_crc_property_is_copied_and_told(tmp_path: Path) -> None:
    store = copy_of("propcrc-533-clean", tmp_path)
    segment = store / "commitlog" / f"{0:020}"
    content = bytearray(segment.read_bytes())
    content[content.index(b"UNIQ_KEY\1") + 20] ^= 1
    segment.write_bytes(content)

    ran = run("salvage", "-s", store, "--into", tmp_path / "new")

    assert ran.status == Status.OK
    assert "one message did not match the CRC property, which is rewritten" in ran.remarks


def test_messages_that_move_are_told(tmp_path: Path) -> None:
    store = CASES["mixed-533-clean/queue-offset-ahead-full-scan"].store(tmp_path)

    ran = run("salvage", "-s", store, "--into", tmp_path / "new")

    assert ran.status == Status.OK
    assert "the message at 281,879, pay_events 0 45: moved to pay_events 0 38" in ran.remarks


def test_a_folder_that_holds_something_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "file").touch()

    ran = run("salvage", "-s", golden_store("mixed-533-clean"), "--into", tmp_path / "new")

    assert (ran.status, ran.output) == (Status.USAGE, "")
    assert "is not empty: give a folder that is empty or does not exist yet" in ran.remarks


def test_two_copies_are_merged_and_each_source_is_told(broken: Path, tmp_path: Path) -> None:
    other = copy_of("mixed-533-clean", tmp_path / "other")
    damage.apply_ops(other, [{"op": "zero", "file": f"commitlog/{0:020}", "at": 335, "len": 480}])

    ran = run("salvage", "--merge", broken, other, "--into", tmp_path / "new")

    assert ran.status == Status.OK
    assert sum(row["kept"] for row in ran.rows) == 287
    assert sum(row["from_left"] for row in ran.rows) == 1
    assert sum(row["from_right"] for row in ran.rows) == 286
    assert f"286 messages are taken from {other}, the base" in ran.remarks
    assert f"1 message is taken from {broken}" in ran.remarks
    assert run("compare", golden_store("mixed-533-clean"), tmp_path / "new", "--by", "key").status == Status.OK
    assert run("verify", "-s", tmp_path / "new").status == Status.OK


def test_a_merge_of_different_logs_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    stores = golden_store("mixed-533-clean"), golden_store("mixed-533-kill")

    ran = run("salvage", "--merge", *stores, "--into", tmp_path / "new")

    assert (ran.status, ran.output) == (Status.BAD_DATA, "")
    assert "not copies of one log" in ran.remarks
    assert not (tmp_path / "new").exists()


def test_a_merge_names_both_stores_itself(tmp_path: Path) -> None:
    store = golden_store("mixed-533-clean")

    assert run("salvage", "--merge", store, store, "-s", store, "--into", tmp_path / "new").status == Status.USAGE
    assert run("salvage", "--merge", store, store, "--into", tmp_path / "new").status == Status.USAGE
    assert run("salvage", "--merge", store, "--into", tmp_path / "new").status == Status.USAGE


@pytest.mark.parametrize("how", ["salvage", "rebuild", "import"])
def test_what_a_killed_run_has_left_is_removed_by_the_next(how: str, tmp_path: Path) -> None:
    store, new = golden_store("mixed-533-clean"), tmp_path / "new"
    run("export", "-s", store, "--into", tmp_path / "messages.jsonl")
    command: list[object] = {
        "salvage": ["salvage", "-s", store, "--into", new],
        "rebuild": ["rebuild", "all", "-s", store, "--into", new],
        "import": ["import", tmp_path / "messages.jsonl", "--into", new, "--set", "mappedFileSizeCommitLog=65536"],
    }[how]
    with contextlib.suppress(KilledError), making(new, DyingDisk(7)):
        (new / "half").write_bytes(b"half of it")
    assert sorted(path.name for path in new.iterdir()) == ["abort", "half"]

    ran = run(*command)

    assert ran.status == Status.OK
    assert "holds leftovers of a killed run, which are removed first" in ran.remarks
    assert not {"abort", "half"} & {path.name for path in new.iterdir()}


HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX, 1)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_store_that_a_broker_holds_is_refused(tmp_path: Path) -> None:
    store = CASES["mixed-533-clean/control"].store(tmp_path)
    command = [sys.executable, "-c", HOLDER, str(store / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        assert broker.stdout
        assert broker.stdout.readline() == b"held\n"
        ran = run("salvage", "-s", store, "--into", tmp_path / "new")
        broker.communicate()

    assert (ran.status, ran.output) == (Status.BUSY, "")
    assert "a broker is running" in ran.remarks
    assert not (tmp_path / "new").exists()


def test_messages_that_a_salvage_moved_to_other_addresses_are_not_told_as_lost_when_copies_are_merged(
    tmp_path: Path,
) -> None:
    damaged, whole = (copy_of("mixed-533-clean", tmp_path / name) for name in ("damaged", "whole"))
    (damaged / "commitlog" / f"{65536:020}").unlink()
    salvaged = run("salvage", "-s", damaged, "--into", tmp_path / "salvaged")

    both = [
        run("salvage", "--merge", *copies, "--into", tmp_path / name)
        for name, copies in (("first", (whole, tmp_path / "salvaged")), ("second", (tmp_path / "salvaged", whole)))
    ]

    lost = [sum(row["lost"] for row in ran.rows) for ran in (salvaged, *both)]
    assert lost == [3, 0, 0]
    assert [ran.status for ran in both] == [Status.OK, Status.OK]
    texts = [(tmp_path / name / "salvage.jsonl").read_text() for name in ("first", "second")]
    assert all("203 messages after that are in both, at other addresses" in text for text in texts)
