"""Every process of mqtool there is, killed in its first second: nothing of it may run on.

``mqtool serve`` on a new store, on its own after a kill, and on one that a broker of RocketMQ left, which a child
recovers first; and commands, which read stores in a child. At a random moment of the first second one process of the
session gets SIGKILL; of a serve that recovers, a random while after the child is there. If that is the one that the
user sees, all others have to end at once; if it is a child, its parent has to say so and end. Now and then serve is let
be until it is ready: the ports and the store must be free again. So it is each time when serve was killed as it
recovered a store, which then has all messages that it had before. (``kills`` kills serve as often while producers send,
half of the times in its first second.) The tests try a few; this is the long form::

    python -m tests.campaigns.orphans --kills 300

It prints how many kills hit whom, and how long the last of a session lived on, and ends with an error at the first
orphan, or message lost.
"""

# ruff: noqa: T201  its results go to standard output

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import mqtool
from tests.commands.running import as_options
from tests.commands.test_processes import of_session
from tests.golden import KEEPS_ALL, copy_of
from tests.ports import free_port

_ROOT = Path(__file__).parents[2]
_GONE_SECONDS = 5.0
"""How long the others of a session may live on, on a busy machine."""
_PARENT_SECONDS = 60.0
"""How long a parent whose child was killed may take to say so and to end."""
_READY_SECONDS = 60.0
_RECOVERING_SECONDS = 0.5
"""So long after it has begun a child that recovers may be hit."""
_READY_EACH = 10
_RECOVERED = "serve, a store "
"""So begin the names of what recovers a store first."""


class Subjects:
    """What is killed: commands on stores in a folder, made anew as they are needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        ports = [free_port(), free_port()]
        self.serve = ["serve", *as_options(KEEPS_ALL), "--namesrv-port", str(ports[0]), "--port", str(ports[1]), "-s"]
        self._count = 0
        self.all: dict[str, Callable[[], list[str]]] = {
            "serve, a new store": lambda: [*self.serve, str(self._new("new"))],
            "serve, its own store again": lambda: [*self.serve, str(folder / "own")],
            "serve, a store to be recovered": lambda: [*self.serve, self._copy("mixed-533-kill")],
            "serve, a store with much to recover": lambda: [*self.serve, self._copy("txn-533-kill")],
            "dump": lambda: ["dump", "commitlog", "-s", self._copy("mixed-533-clean"), "-o", "jsonl"],
            "verify": lambda: ["verify", "-s", self._copy("mixed-533-clean")],
            "recover": lambda: ["recover", "--yes", "-s", self._copy("mixed-533-kill")],
            "doctor": lambda: ["doctor", "-s", self._copy("mixed-533-kill")],
            "salvage": lambda: ["salvage", "-s", self._copy("mixed-533-kill"), "--into", str(self._new("new"))],
            "export": lambda: ["export", "-s", self._copy("many-533-clean"), "--into", str(self._new("rows.jsonl"))],
            "rebuild": lambda: ["rebuild", "index", "--yes", "-s", self._copy("mixed-533-clean")],
            "stats": lambda: ["stats", "-s", self._copy("many-533-clean")],
        }

    def _new(self, name: str) -> Path:
        self._count += 1
        return self._folder / f"{self._count}-{name}"

    def _copy(self, name: str) -> str:
        into = self._new("copy")
        into.mkdir()
        return str(copy_of(name, into))

    def clear(self) -> None:
        """Remove the stores that are not used again."""
        for path in self._folder.iterdir():
            if path.is_file():
                path.unlink()
            elif path.name != "own":
                shutil.rmtree(path)


def _start(arguments: list[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "mqtool", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        start_new_session=True,
    )


def _until_gone(session: int, seconds: float) -> float:
    """Return how many seconds it took until nothing of a session was left.

    Raises:
        AssertionError: something still is.
    """
    begun = time.monotonic()
    while left := of_session(session):
        passed = time.monotonic() - begun
        assert passed < seconds, f"orphans: {[Path(f'/proc/{one}/cmdline').read_bytes() for one in left]}"
        time.sleep(0.001)
    return time.monotonic() - begun


def _until_recovering(process: "subprocess.Popen[bytes]") -> None:
    """Return when the child is there that recovers the store of a serve.

    Raises:
        AssertionError: none comes.
    """
    until = time.monotonic() + _READY_SECONDS
    while len(of_session(process.pid)) < 2:
        assert process.poll() is None, "serve has ended before it recovered its store"
        assert time.monotonic() < until, "no child recovers the store"
        time.sleep(0.001)


def _see_ready(subjects: Subjects, store: Path) -> None:
    with _start([*subjects.serve, str(store)]) as process:
        try:
            assert process.stdout is not None
            until = time.monotonic() + _READY_SECONDS
            said = b""
            while not said.startswith(b"mqtool: ready"):
                said = process.stdout.readline()
                assert said, "it does not start"
                assert time.monotonic() < until
        finally:
            os.killpg(process.pid, signal.SIGKILL)
        _until_gone(process.pid, _GONE_SECONDS)


def _messages(store: Path) -> set[tuple[int, bytes]]:
    """Return address and body of all messages of a store."""
    return {(one.physical_offset, one.body) for one in mqtool.open_store(store).messages()}


def run_orphans(folder: Path, kills: int, seed: int) -> tuple[Counter[tuple[str, str]], float]:
    """Kill so many processes; return how many of each subject and kind, and how long the last one lived on (s).

    Raises:
        AssertionError: a process has lived on, a message is lost, or serve cannot start again.
    """
    chance, subjects = random.Random(seed), Subjects(folder)
    done: Counter[tuple[str, str]] = Counter()
    longest = 0.0
    while done.total() < kills:
        name = chance.choice(list(subjects.all))
        arguments = subjects.all[name]()
        store = Path(arguments[-1])
        had = _messages(store) if name.startswith(_RECOVERED) else set()
        with _start(arguments) as process:
            try:
                moment = chance.random()
                if name.startswith(_RECOVERED):
                    _until_recovering(process)
                    moment *= _RECOVERING_SECONDS
                time.sleep(moment)
                living = of_session(process.pid)
                if process.poll() is not None or not living:
                    continue  # it was done before
                victim = chance.choice(living)
                os.kill(victim, signal.SIGKILL)
                if victim == process.pid:
                    longest = max(longest, _until_gone(process.pid, _GONE_SECONDS))
                else:
                    try:
                        process.communicate(timeout=_PARENT_SECONDS)
                    except subprocess.TimeoutExpired as error:
                        assert b"mqtool: ready" in (error.output or b""), f"{name} does not end: {error.output!r}"
                        continue  # its child was done before
                    longest = max(longest, _until_gone(process.pid, _GONE_SECONDS))
                    assert process.returncode, f"{name}: its child was killed, and it says that all went well"
                done[name, "the parent" if victim == process.pid else "the child"] += 1
            except ProcessLookupError:
                continue
            finally:
                for left in of_session(process.pid):
                    os.kill(left, signal.SIGKILL)
        if had:
            _see_ready(subjects, store)
            assert had <= _messages(store), f"{name}: {len(had - _messages(store))} messages are lost"
        elif done.total() % _READY_EACH == 0:
            _see_ready(subjects, folder / "own")
        subjects.clear()
    return done, longest


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mqtool-orphans-") as name:
        done, longest = run_orphans(Path(name), given.kills, given.seed)
    for (subject, victim), count in sorted(done.items()):
        print(f"{subject}: {victim} {count}")
    print(
        f"{done.total()} kills, 0 orphans, no message lost; after the kill of a parent the last of its children "
        f"lived {longest:.3f} s"
    )


if __name__ == "__main__":
    main()
