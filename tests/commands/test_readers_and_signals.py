"""Commands that change something, whose readers go away, and that are told to end: all of it, or nothing and a status.

Processes are real. Signals come from within, at a call of the disk, so that nothing here waits or sleeps.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mqtool.engine.repair.journal import State, home_of, journals
from mqtool.errors import Status
from tests.commands.running import run
from tests.commands.test_wire import name_server
from tests.crash import content
from tests.damage import cases, snapshot
from tests.golden import copy_of

__all__ = ["name_server"]

ROOT = Path(__file__).parents[2]
CASE = next(case for case in cases() if case.name == "mixed-533-clean/middle-segment-missing")

SMALL = "--set mappedFileSizeCommitLog=65536 --set maxHashSlotNum=9 --set maxIndexNum=99"
CHANGES = {
    "recover -s {store} --yes": Status.GIVEN_UP,
    "rebuild all -s {store} --survey --yes": Status.GIVEN_UP,
    "apply {plan} -s {store} --yes": Status.GIVEN_UP,
    "undo -s {repaired} --yes": Status.OK,
    "topic create New -s {store} --yes": Status.OK,
    "salvage -s {store} --into {new}": Status.GIVEN_UP,
    "rebuild all -s {store} --into {new}": Status.GIVEN_UP,
    f"import {{export}} --into {{new}} {SMALL}": Status.OK,
    "recover -s {store} --dry-run": Status.DAMAGE,
}


@pytest.mark.parametrize(("command", "status"), CHANGES.items(), ids=list(CHANGES))
def test_what_changes_something_outlasts_its_readers(command: str, status: Status, tmp_path: Path) -> None:
    results = []
    for name, gone in (("read", False), ("unread", True)):
        base = tmp_path / name
        paths = {"store": CASE.store(base / "s"), "new": base / "new"}
        if "{plan}" in command:
            paths["plan"] = base / "plan"
            run("recover", "-s", paths["store"], "--save-plan", paths["plan"])
        if "{repaired}" in command:
            paths["repaired"] = paths["store"]
            run("recover", "-s", paths["store"], "--yes")
        if "{export}" in command:
            paths["export"] = tmp_path / "export.jsonl"
            run("export", "-s", copy_of("txn-533-clean", base), "--into", paths["export"])
        words = [word.format(**paths) for word in command.split()]
        ended = run_unread(words) if gone else run(*words).status
        made = content(paths["new"]) if paths["new"].exists() else {}
        results.append((ended, without_times(content(paths["store"])), without_times(made)))

    assert results[0] == results[1]
    assert results[0][0] == status


def run_unread(words: list[str]) -> int:
    """Run a command whose outputs have lost their reader before its first word; return its status."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "mqtool", *words], cwd=ROOT, stdout=writer, stderr=writer, check=False)
    os.close(writer)
    return done.returncode


def without_times(files: dict[str, str]) -> dict[str, str]:
    """Leave out what holds the time at which it was made."""
    return {name: digest for name, digest in files.items() if not name.startswith("index/")}


def test_messages_are_all_sent_though_nobody_reads_where_they_are(name_server: str) -> None:
    words = ["send", "-n", name_server, "--topic", "Unread", *map(str, range(50))]

    assert run_unread(words) == Status.OK

    counts = [row["max_offset"] - row["min_offset"] for row in run("topic", "show", "Unread", "-n", name_server).rows]
    assert sum(counts) == 50


def test_how_many_messages_were_sent_is_told_where_their_rows_cannot_be_written(name_server: str) -> None:
    with Path("/dev/full").open("w") as full:
        words = ["send", "-n", name_server, "--topic", "Full", *map(str, range(200))]
        done = subprocess.run(
            [sys.executable, "-m", "mqtool", *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )

    counts = [row["max_offset"] - row["min_offset"] for row in run("topic", "show", "Full", "-n", name_server).rows]
    assert done.returncode == Status.IO_ERROR
    assert 0 < sum(counts) < 200
    assert f"mqtool: sent so far: {sum(counts)}\n" in done.stderr


_ROWS = """
import signal, sys
from mqtool.commands._streams import repair_streams

repair_streams()
is_armed, number = False, 0

def interrupt(*_):
    global is_armed
    if is_armed:
        is_armed = False
        raise KeyboardInterrupt

signal.signal(signal.SIGINT, interrupt)
while number < 400:
    try:
        is_armed = True
        while number < 400:
            number += 1
            sys.stdout.write(f"{number}\\n")
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stdout.flush()
"""


def test_a_row_that_is_written_when_an_interrupt_comes_is_not_written_again() -> None:
    with subprocess.Popen([sys.executable, "-c", _ROWS], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout
        rows = []
        for line in program.stdout:
            rows.append(int(line))
            program.send_signal(signal.SIGINT)

    assert len(rows) > 100
    assert rows == sorted({*rows})


@pytest.mark.parametrize("how", [[], ["--orderly"]])
def test_what_nobody_reads_is_not_consumed(name_server: str, how: list[str]) -> None:
    topic = f"Unread{len(how)}"
    run("send", "-n", name_server, "--topic", topic, "one", "two")
    consume = ["consume", "-n", name_server, "--topic", topic, "--group", f"g-{topic}", "--begin", "first", *how]

    assert run_unread(consume) == Status.IO_ERROR

    again = run(*consume, "--limit", 2)
    assert sorted(row["body"] for row in again.rows) == ["one", "two"]


def test_a_plan_that_cannot_be_written_is_not_carried_out(tmp_path: Path) -> None:
    store = CASE.store(tmp_path)
    before = snapshot(store)

    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mqtool", "recover", "-s", store, "--yes"],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )

    assert done.returncode == Status.IO_ERROR
    assert snapshot(store) == before
    assert not home_of(store).exists()


# Signals. Each is sent at a call of the disk, by its number, and again at each of the next ones.

AT_A_CALL = """
import os, signal, sys
from mqtool import cli
from mqtool.engine.store.disk import Disk

whom, number, first, last, *words = sys.argv[1:]
count = 0

def watched(method):
    def call(self, *arguments):
        global count
        count += 1
        if int(first) <= count <= int(last):
            os.kill(os.getppid() if whom == "parent" else os.getpid(), int(number))
            if whom == "parent" and int(number) == signal.SIGKILL:
                while signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
                    pass  # the end of the parent is on its way
        return method(self, *arguments)
    return call

for name in ("write", "create", "truncate", "rename", "sync", "sync_folder", "set_times", "remove"):
    setattr(Disk, name, watched(getattr(Disk, name)))
sys.argv = ["mqtool", *words]
cli.main()
"""


def run_signalled(store: Path, whom: str, number: int, first: int, last: int, *words: str) -> tuple[int, str]:
    """Run a command that is sent a signal at these calls of its disk; return status and remarks, when all has ended."""
    process = subprocess.Popen(
        [sys.executable, "-c", AT_A_CALL, whom, str(int(number)), str(first), str(last), *words, "-s", str(store)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    _, remarks = process.communicate(timeout=60)  # ends when the child, too, has closed its end
    return process.returncode, remarks


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_repair_that_is_told_to_end_takes_itself_back_however_often_it_is_told(number: int, tmp_path: Path) -> None:
    store = CASE.store(tmp_path)
    before = snapshot(store)

    status, remarks = run_signalled(store, "child", number, 20, 10_000, "recover", "--yes")

    assert status == 128 + number
    assert "everything was undone, the store is as before" in remarks
    assert snapshot(store) == before
    assert not journals(store)


def test_a_repair_that_is_told_to_end_when_it_is_done_is_done(tmp_path: Path, calls: Callable[[Path], int]) -> None:
    store = CASE.store(tmp_path / "signalled")
    last = calls(tmp_path)

    status, remarks = run_signalled(store, "child", signal.SIGTERM, last - 3, last, "recover", "--yes")

    assert (status, [info.state for info in journals(store)]) == (Status.GIVEN_UP, [State.DONE])
    assert "done;" in remarks


def test_an_undo_that_is_told_to_end_goes_on_to_its_end(tmp_path: Path) -> None:
    store = CASE.store(tmp_path)
    before = snapshot(store)
    assert run("recover", "-s", store, "--yes").status == Status.GIVEN_UP

    status, remarks = run_signalled(store, "child", signal.SIGINT, 3, 10_000, "undo", "--yes")

    assert (status, snapshot(store)) == (Status.OK, before)
    assert "the store is as it was before" in remarks


def test_a_new_store_that_is_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    store = CASE.store(tmp_path)

    words = ("salvage", "--into", str(tmp_path / "new"))
    status, _ = run_signalled(store, "child", signal.SIGTERM, 9, 10_000, *words)

    assert status == 128 + signal.SIGTERM
    assert not (tmp_path / "new").exists()


def test_what_is_sent_to_the_waiting_process_is_for_the_repair(tmp_path: Path) -> None:
    store = CASE.store(tmp_path)
    before = snapshot(store)

    status, _ = run_signalled(store, "parent", signal.SIGTERM, 20, 25, "recover", "--yes")

    assert status == 128 + signal.SIGTERM
    assert snapshot(store) == before


def test_a_repair_whose_waiting_process_is_killed_takes_itself_back(tmp_path: Path) -> None:
    store = CASE.store(tmp_path)
    before = snapshot(store)

    status, _ = run_signalled(store, "parent", signal.SIGKILL, 20, 20, "recover", "--yes")

    assert status == -signal.SIGKILL
    assert snapshot(store) == before
    assert not journals(store)


def test_who_waits_for_a_repair_that_is_killed_tells_what_to_do(tmp_path: Path) -> None:
    store = CASE.store(tmp_path)
    before = snapshot(store)

    status, remarks = run_signalled(store, "child", signal.SIGKILL, 20, 20, "recover", "--yes")

    assert status == Status.FAULT
    assert "killed by SIGKILL; partial changes to a store are undone by `mqtool undo`" in remarks
    assert run("undo", "-s", store, "--yes").status == Status.OK
    assert snapshot(store) == before


@pytest.fixture
def calls() -> Callable[[Path], int]:
    """Tell how many calls of the disk ``recover`` makes, counted as above."""

    def count(place: Path) -> int:
        store = CASE.store(place / "counted")
        program = AT_A_CALL.replace("cli.main()", "cli.run(words); sys.stderr.write(str(count))")
        done = subprocess.run(
            [sys.executable, "-c", program, "child", "1", "0", "0", "recover", "--yes", "-s", str(store)],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        return int(done.stderr.splitlines()[-1].rpartition("store")[2])

    return count


# Kills, of which the campaign has the long form.


def test_whoever_is_killed_what_is_recommended_then_takes_back_or_repairs_all_of_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaigns.repair_kills", "--kills", "6", "--seed", "7"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    kills, what = done.stdout.splitlines()[-1].split(" ", 1)
    assert int(kills) >= 6
    assert what.startswith("kills, followed in the end by again")
