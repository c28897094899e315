"""Processes: ``serve`` is one, which maps nothing of its store; a kill of any leaves no other behind."""

import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from mqtool.formats.codes import RequestCode
from mqtool.formats.remoting import RemotingCommand
from tests.commands.test_serve import ask, in_session, send, serving_both
from tests.golden import copy_of

MOMENTS = [1, 30, 60, 90, 120, 150, 180, 210]
"""In maps of a process: it has more of them as it loads what it needs."""


def of_session(session: int) -> list[int]:
    """Return the processes of a session that live."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal():
                state, _, _, its_session, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(its_session) == session and state not in "ZX":
                    found.append(int(entry.name))
    return found


def has_maps(pid: int, count: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/maps").read_text().count("\n") >= count
    return False


def orphans(process: "subprocess.Popen[str]", is_time: Callable[[], bool]) -> list[int]:
    """Kill a process at a moment, and return what lives on of its session; what hangs fails by pytest's limit."""
    for _ in range(100_000):
        assert process.poll() is None
        if is_time():
            break
    process.kill()
    process.wait()
    for _ in range(1000):  # what dies with it needs a moment
        if not of_session(process.pid):
            break
    return of_session(process.pid)


@pytest.mark.parametrize("maps", MOMENTS)
def test_serve_that_is_killed_while_it_starts_leaves_nothing_that_runs(maps: int, tmp_path: Path) -> None:
    ports = "--port", "0", "--namesrv-port", "0"
    with in_session("-m", "mqtool", "serve", "-s", tmp_path / "store", *ports) as process:
        abort = tmp_path / "store" / "abort"

        assert orphans(process, lambda: has_maps(process.pid, maps) or abort.exists()) == []


@pytest.mark.parametrize("maps", MOMENTS)
def test_a_command_that_is_killed_takes_the_process_that_reads_the_store_with_it(maps: int, tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)

    def is_time() -> bool:
        return any(has_maps(one, maps) for one in of_session(process.pid)) and (
            maps < 60 or len(of_session(process.pid)) > 1
        )

    words = "-m", "mqtool", "dump", "commitlog", "-s", store, "-o", "jsonl"
    with in_session(*words) as process:  # it waits for somebody to read its rows
        assert orphans(process, is_time) == []


def pull_from(offset: int) -> RemotingCommand:
    fields = {"topic": "Orders", "queueId": "0", "consumerGroup": "G", "queueOffset": f"{offset}"}
    fields |= {"maxMsgNums": "32", "subscription": "*", "sysFlag": "4", "subVersion": "0"}
    fields |= {"commitOffset": "0", "suspendTimeoutMillis": "0"}
    return RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=fields)


def test_serve_is_one_process_and_maps_nothing_of_its_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    for _ in range(2):
        with serving_both(store) as (process, _, broker):
            query = {"topic": "Orders", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
            sent, pulled, _ = ask(
                broker,
                send("one"),
                pull_from(0),
                RemotingCommand(RequestCode.QUERY_MESSAGE, ext_fields=query),
            )
            assert (sent.code, pulled.code) == (0, 0)
            assert of_session(process.pid) == [process.pid]
            assert str(store) not in Path(f"/proc/{process.pid}/maps").read_text()
            process.terminate()
            process.communicate()


def test_a_log_that_somebody_cuts_short_is_an_error_of_a_request_and_no_crash(tmp_path: Path) -> None:
    with serving_both(tmp_path / "store") as (process, _, broker):
        [sent] = ask(broker, send("one"))
        [segment] = (tmp_path / "store" / "commitlog").iterdir()
        os.truncate(segment, 10)
        view = RemotingCommand(
            RequestCode.VIEW_MESSAGE_BY_ID, ext_fields={"offset": str(int(sent.ext_fields["msgId"][-16:], 16))}
        )
        [answer, alive] = ask(broker, view, RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))
        assert answer.code == 1
        assert "was truncated" in (answer.remark or "")
        assert alive.code in (0, 1)
        process.kill()


def written_file(store: Path, units: int) -> Path:
    """Return the file of the queue once these units are in it: a moment after the messages are acknowledged."""
    folder = store / "consumequeue" / "Orders" / "0"
    while True:
        for file in folder.glob("*"):
            if any(file.read_bytes()[(units - 1) * 20 : units * 20]):
                return file
        time.sleep(0.05)


@pytest.mark.parametrize("left", [0, 10, 20, 40])
def test_a_queue_that_somebody_cuts_short_is_an_error_of_pulls_and_not_an_end_that_consumers_skip(
    left: int, tmp_path: Path
) -> None:
    with serving_both(tmp_path / "store") as (process, _, broker):
        ask(broker, *(send(f"{number}") for number in range(5)))
        at = {"topic": "Orders", "queueId": "0", "consumerGroup": "G"}
        pop = {**at, "maxMsgNums": "32", "invisibleTime": "10000", "pollTime": "0", "bornTime": "0", "initMode": "0"}
        search = {"topic": "Orders", "queueId": "0", "timestamp": str(1 << 60)}
        end = RemotingCommand(RequestCode.GET_MAX_OFFSET, ext_fields={"topic": "Orders", "queueId": "0"})
        file = written_file(tmp_path / "store", 5)
        os.truncate(file, left)
        answers = ask(
            broker,
            pull_from(2),
            RemotingCommand(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext_fields=search),
            RemotingCommand(RequestCode.POP_MESSAGE, ext_fields=pop),
            end,
        )
        assert [one.code for one in answers[:3]] == [1, 1, 1]
        assert all(f"{file} was truncated" in (one.remark or "") for one in answers[:3]), answers
        assert answers[-1].ext_fields["offset"] == "5"
        process.kill()


@pytest.mark.parametrize("left", [0, 40])
def test_units_that_somebody_cut_off_are_an_error_of_pulls_also_when_later_ones_follow(
    left: int, tmp_path: Path
) -> None:
    with serving_both(tmp_path / "store") as (process, _, broker):
        ask(broker, *(send(f"{number}") for number in range(5)))
        file = written_file(tmp_path / "store", 5)
        os.truncate(file, left)
        ask(broker, send("5"))
        written_file(tmp_path / "store", 6)

        answers = ask(broker, *(pull_from(offset) for offset in (left // 20, 4, 5)))

        assert [one.code for one in answers] == [1, 1, 0]
        assert all(f"{file} has lost units" in (one.remark or "") for one in answers[:2]), answers
        process.kill()
