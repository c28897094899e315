"""``mqtool compare`` as a user runs it."""

import csv
import io
import subprocess
import sys
from pathlib import Path

import pytest

from mqtool.errors import Status
from tests.commands.running import run
from tests.damage import apply_ops, snapshot
from tests.engine.store.test_locks import HOLDER
from tests.golden import copy_of, golden_store

NAME = "mixed-533-clean"
SEGMENT = f"commitlog/{131072:020}"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    store = copy_of(NAME, tmp_path)
    apply_ops(store, [{"op": "zero", "file": f"commitlog/{0:020}", "at": 335, "len": 480}])
    (store / SEGMENT).unlink()
    return store


@pytest.mark.parametrize("by", ["offset", "key"])
def test_equal_stores_end_with_0_and_no_rows(by: str) -> None:
    ran = run("compare", golden_store(NAME), golden_store(NAME), "--by", by)

    assert (ran.status, ran.output) == (Status.OK, "")
    assert "not compared" in ran.remarks


def test_what_one_copy_lacks_is_told_with_the_better_base_and_what_to_run(broken: Path) -> None:
    before = snapshot(broken)

    ran = run("compare", broken, golden_store(NAME))

    assert ran.status == Status.DAMAGE
    ranges = [row for row in ran.rows if row["kind"] == "range"]
    assert [(row["difference"], row["side"], row["physical_offset"]) for row in ranges] == [
        ("damaged", "left", 335),
        ("no file", "left", 131072),
    ]
    queues = [row for row in ran.rows if row["kind"] == "queue"]
    assert sum(row["only_right"] for row in queues) == sum(row["message_count"] for row in ranges) == 45
    assert f"the better base of a repair is right, {golden_store(NAME)}: it has 45 messages" in ran.remarks
    assert f"`mqtool salvage --merge {broken} {golden_store(NAME)} --into DIR`" in ran.remarks
    assert snapshot(broken) == before


def test_by_key_messages_are_named_and_counted_by_topic(broken: Path) -> None:
    ran = run("compare", golden_store(NAME), broken, "--by", "key")

    assert ran.status == Status.DAMAGE
    assert sum(row["only_left"] for row in ran.rows if row["kind"] == "topic") == 45
    first = next(row for row in ran.rows if row["kind"] == "message")
    assert (first["side"], first["topic"], first["physical_offset"], first["queue_offset"]) == ("left", "log-x", 335, 0)
    assert "left has 287 messages, right 242; 45 are only in left, 0 only in right" in ran.remarks


def test_damage_that_both_have_is_a_warning(tmp_path: Path) -> None:
    stores = [copy_of(NAME, tmp_path / name) for name in "ab"]
    for store in stores:
        apply_ops(store, [{"op": "zero", "file": f"commitlog/{0:020}", "at": 335, "len": 480}])

    assert run("compare", *stores).status == Status.WARNINGS
    assert run("compare", *stores, "--by", "key").status == Status.WARNINGS


@pytest.mark.parametrize("by", ["offset", "key"])
def test_a_segment_that_neither_has_is_a_warning(by: str, tmp_path: Path) -> None:
    stores = [copy_of(NAME, tmp_path / name) for name in "ab"]
    for store in stores:
        (store / "commitlog" / f"{65_536:020}").unlink()

    ran = run("compare", *stores, "--by", by)

    assert ran.status == Status.WARNINGS
    if by == "offset":
        (row,) = ran.rows
        assert (row["difference"], row["physical_offset"], row["size"]) == ("damaged in both", 65_536, 65_536)
        assert "both hold the same 284 messages; `mqtool verify` shows what is damaged" in ran.remarks
    else:
        assert "left: 1 ranges of addresses cannot be read and were not compared" in ran.remarks


def test_a_table_that_differs_is_a_warning(tmp_path: Path) -> None:
    store = copy_of(NAME, tmp_path)
    for name in ("topics.json", "topics.json.bak"):
        (store / "config" / name).unlink()

    ran = run("compare", golden_store(NAME), store)

    assert ran.status == Status.WARNINGS
    assert [(row["kind"], row["name"], row["message"]) for row in ran.rows] == [
        ("file", "config/topics.json", "right has none")
    ]


def test_stores_that_share_nothing_are_sent_to_the_other_way() -> None:
    ran = run("compare", golden_store(NAME), golden_store("mixed-533-kill"))

    assert ran.status == Status.DAMAGE
    assert "these are different logs, compare them with --by key" in ran.remarks
    assert "salvage --merge" not in ran.remarks


def test_a_store_that_lost_its_log_is_told(tmp_path: Path) -> None:
    store = copy_of(NAME, tmp_path)
    for segment in (store / "commitlog").iterdir():
        segment.unlink()

    ran = run("compare", golden_store(NAME), store)

    assert ran.status == Status.DAMAGE
    assert [row["message_count"] for row in ran.rows if row["kind"] == "range"] == [287]
    assert "no message in right can be read" in ran.remarks
    assert run("salvage", "--merge", golden_store(NAME), store, "--into", tmp_path / "new").status == Status.NO_INPUT


def test_several_folders_of_a_log_are_named_for_both_or_for_each(tmp_path: Path) -> None:
    store = golden_store("multipath-533-clean")
    folders = ",".join(sorted(path.name for path in store.glob("commitlog*")))
    setting = f"storePathCommitLog={folders}"
    (tmp_path / "a.conf").write_text(setting + "\n")
    (tmp_path / "b.conf").write_text(f"storePathCommitLog={','.join(str(store / one) for one in folders.split(','))}\n")

    assert run("compare", store, store, "--set", setting).status == Status.OK
    assert run("compare", store, store, "-c", tmp_path / "a.conf").status == Status.OK
    assert run("compare", store, store, "-c", tmp_path / "a.conf", "-c", tmp_path / "b.conf").status == Status.OK
    assert run("compare", store, store, *["-c", tmp_path / "a.conf"] * 3).status == Status.USAGE


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    assert run("compare", golden_store(NAME), tmp_path).status == Status.NO_INPUT
    assert run("compare", golden_store(NAME), tmp_path / "none").status == Status.NO_INPUT
    assert run("compare", golden_store(NAME)).status == Status.USAGE
    assert run("compare", golden_store(NAME), golden_store("dledger-497-clean")).status == Status.BAD_DATA


def test_a_store_in_use_is_compared_up_to_its_last_message(tmp_path: Path) -> None:
    store, other = copy_of(NAME, tmp_path / "a"), copy_of(NAME, tmp_path / "b")
    (segment,) = [path for path in (store / "commitlog").iterdir() if path.name == f"{262144:020}"]
    end = segment.read_bytes().rstrip(b"\0")
    with segment.open("r+b") as file:  # the broker is just writing the next record
        file.seek(len(end) + 8)
        file.write(end[:100])
    command = [sys.executable, "-c", HOLDER, str(store / "lock"), "0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        assert broker.stdout
        broker.stdout.readline()
        statuses = [run("compare", store, other, "--by", by).status for by in ("offset", "key")]
        broker.communicate()

    assert statuses == [Status.OK, Status.OK]


@pytest.mark.parametrize(("by", "kinds"), [("offset", {"range", "queue"}), ("key", {"message", "topic"})])
def test_csv_has_every_field_of_every_kind_of_row(by: str, kinds: set[str], broken: Path) -> None:
    words = ("compare", golden_store(NAME), broken, "--by", by)

    rows = list(csv.DictReader(io.StringIO(run(*words, "-o", "csv").output)))

    wanted = [{name: value for name, value in row.items() if value is not None} for row in run(*words).rows]
    assert {row["kind"] for row in wanted} == kinds
    assert [{name: row[name] for name in one} for one, row in zip(wanted, rows, strict=True)] == [
        {name: str(value) for name, value in one.items()} for one in wanted
    ]
