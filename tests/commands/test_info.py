"""``mqtool info``: the page and the JSON object, of sound stores and of sick ones."""

import fcntl
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from mqtool.commands._output import Output
from mqtool.errors import Status
from tests.commands.running import Ran, run
from tests.damage import cases, snapshot
from tests.golden import GOLDEN_NAMES, copy_of, golden_store, manifest


def info(store: Path, *arguments: object) -> dict[str, Any]:
    ran = run("info", "-s", store, *arguments)
    assert ran.status == Status.OK
    (row,) = ran.rows
    return row


def page(store: Path, *arguments: object) -> Ran:
    return run("info", "-s", store, "-o", "table", *arguments)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_golden_store_is_told_as_java_reads_it(name: str) -> None:
    loaded, messages = manifest(name)["load"]["after_load"], manifest(name)["messages"]
    queues = {
        (topic, int(number)): (queue["min"], queue["max"])
        for topic, ids in loaded["queues"].items()
        for number, queue in ids.items()
        if queue["max"]
    }

    told = info(golden_store(name))

    found = {
        (topic["topic"], queue["queue_id"]): (queue["min_offset"], queue["max_offset"])
        for topic in told["topics"]
        for queue in topic["queues"]
    }
    assert {key: ends for key, ends in found.items() if ends[1]} == queues
    assert sum(topic["message_count"] for topic in told["topics"]) == sum(high - low for low, high in queues.values())
    log = told["commit_log"]
    assert (log["min_offset"], log["max_offset"]) == (loaded["min_phy_offset"], loaded["max_phy_offset"])
    assert log["first_store_timestamp"] == messages[0]["store_timestamp"]
    assert log["last_store_timestamp"] == messages[-1]["store_timestamp"]
    assert told["state"]["abort"] is manifest(name)["abort"]
    assert told["state"]["in_use"] is False
    assert told["problems"] == []
    files = manifest(name)["files"]
    assert sum(kind["file_count"] for kind in told["disk"]) == len(files)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
@pytest.mark.parametrize("width", [80, 200])
def test_the_page_fits_the_terminal(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Output, "width", property(lambda _: width))

    ran = page(golden_store(name))

    assert ran.status == Status.OK
    for line in ran.output.splitlines()[1:]:  # the first is the store's path
        assert cell_len(line) <= width
    for title in ("Commit log", "Index", "Disk: ", "Checkpoint", "Config", "Evidence of versions"):
        assert title in ran.output
    count = sum(queue["max"] - queue["min"] for _, queue in _queues(name))
    assert f"{count:,} messages in the queues" in ran.output


def _queues(name: str) -> list[tuple[str, dict[str, Any]]]:
    queues = manifest(name)["load"]["after_load"]["queues"]
    return [(topic, queue) for topic, ids in queues.items() for queue in ids.values()]


def test_times_come_twice_however_deep_they_lie() -> None:
    told = info(golden_store("timer-550-clean"))

    assert told["commit_log"]["last_store_time"] == "2026-11-21T01:53:23.079Z"
    assert told["checkpoint"]["physical_time"] == "2026-11-21T01:53:23.079Z"
    assert told["timer"]["check"]["last_read_time"].startswith("2026-11-21T01:53")


def test_config_given_by_hand_is_told_and_no_password_is() -> None:
    store = golden_store("mixed-533-clean")

    told = info(store, "--set", "mappedFileSizeCommitLog=65536", "--set", "innerClientAuthenticationCredentials=x")

    assert told["config"]["settings"] == {"mappedFileSizeCommitLog": "65536"}
    assert not any("mappedFileSizeCommitLog" in remark for remark in told["inferred"])


@pytest.mark.parametrize(
    "case", ["control-abort", "last-file-empty", "consumequeue-deleted", "checkpoint-deleted-abort"]
)
def test_damage_by_recipe_still_gives_a_page_and_changes_nothing(case: str, tmp_path: Path) -> None:
    store = next(one for one in cases() if one.name == f"mixed-497-clean/{case}").store(tmp_path)
    before = snapshot(store)

    told, shown = info(store), page(store)

    assert shown.status == Status.OK
    assert told["commit_log"]["segment_count"] == 4
    assert snapshot(store) == before


@pytest.mark.parametrize("folder", ["commitlog", "consumequeue", "index", "config", "checkpoint", "lock"])
def test_a_store_that_lacks_something_still_gives_a_page(folder: str, tmp_path: Path) -> None:
    store = copy_of("mixed-550-kill", tmp_path)
    if (store / folder).is_dir():
        shutil.rmtree(store / folder)
    else:
        (store / folder).unlink()

    ran = page(store)

    assert ran.status == Status.OK
    assert "Disk: " in ran.output


def test_an_empty_log_is_told(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    for segment in (store / "commitlog").iterdir():
        segment.unlink()

    told, shown = info(store), page(store)

    assert told["commit_log"]["segment_count"] == 0
    assert told["commit_log"]["max_offset"] is None
    assert re.search("segments +none", shown.output)


def test_a_log_of_zeros_is_told_to_hold_no_message(tmp_path: Path) -> None:
    store = copy_of("txn-533-kill", tmp_path)
    for segment in (store / "commitlog").iterdir():
        segment.write_bytes(bytes(65_536))

    told = info(store)

    assert told["commit_log"]["max_offset"] is None
    assert any("no segment starts with a readable message" in problem for problem in told["problems"])


def test_unreadable_config_is_named_with_its_backup(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    (store / "config" / "topics.json").write_bytes(b"{broken")
    (store / "config" / "consumerFilter.json").unlink()

    told, shown = info(store), page(store)

    assert "config/topics.json is unreadable, its .bak is good" in told["problems"]
    assert "config/consumerFilter.json is missing, its .bak is good" in told["problems"]
    assert "Could not be determined" in shown.output
    assert re.search(r"topics +\d+ entries in its .bak; the file cannot be read", shown.output)


def test_a_short_checkpoint_is_a_problem_and_no_more(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    (store / "checkpoint").write_bytes(b"short")

    told = info(store)

    assert told["checkpoint"] is None
    assert any(problem.startswith("checkpoint: ") for problem in told["problems"])
    assert told["commit_log"]["max_offset"] == manifest("mixed-533-clean")["load"]["after_load"]["max_phy_offset"]


def test_a_missing_segment_is_told(tmp_path: Path) -> None:
    store = next(one for one in cases() if one.name == "mixed-533-clean/middle-segment-missing").store(tmp_path)

    assert info(store)["commit_log"]["missing_size"] == 65_536
    assert re.search("missing +65,536 bytes", page(store).output)


def test_a_lock_that_is_held_means_a_running_broker(tmp_path: Path) -> None:
    store = copy_of("mixed-533-kill", tmp_path)
    command = (
        "import fcntl,sys;f=open(sys.argv[1],'r+');fcntl.lockf(f,fcntl.LOCK_EX,1);print(1,flush=True);sys.stdin.read()"
    )
    import subprocess
    import sys

    with subprocess.Popen(
        [sys.executable, "-c", command, store / "lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        told, shown = info(store), page(store)
        assert holder.stdin is not None
        holder.stdin.close()

    assert told["state"]["in_use"] is True
    assert "a running broker holds its lock" in shown.output
    with (store / "lock").open("r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
    assert info(store)["state"]["in_use"] is False


def test_control_characters_never_reach_the_page(tmp_path: Path) -> None:
    store = copy_of("mixed-533-kill", tmp_path)
    (store / "abort").write_bytes(b"\x1b[2J\x07")
    (store / "brokerIdentity").write_bytes(b"\x1b[31mC#b#0\n")
    (store / "consumequeue" / "log-x").rename(store / "consumequeue" / "\x1b[2Jx")

    ran = page(store)

    assert ran.status == Status.OK
    assert not {"\x1b", "\x07"} & set(ran.output + ran.remarks)


def test_what_is_no_store_is_not_found(tmp_path: Path) -> None:
    ran = run("info", "-s", tmp_path)

    assert (ran.status, ran.output) == (Status.NO_INPUT, "")
    assert "is not a RocketMQ store" in ran.remarks


def test_a_single_segment_is_told_for_itself() -> None:
    segment = golden_store("mixed-533-kill") / "commitlog" / f"{65_536:020}"
    inside = [one["phy"] for one in manifest("mixed-533-kill")["messages"] if 65_536 <= one["phy"] < 131_072]

    told = info(segment)

    assert told["store"] == str(segment)
    assert told["state"] is None
    assert told["commit_log"]["min_offset"] == min(inside)
    assert told["commit_log"]["max_offset"] > max(inside)
    assert [kind["file_count"] for kind in told["disk"]] == [1]
