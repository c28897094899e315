"""Commands that repair a store, killed after they have begun to change it, each followed by what is recommended then.

The command line runs as for a user: a process that waits, and its child, which works. One of the two gets SIGKILL at a
call that the child makes to the disk: before it, in its middle or behind it; all calls from the first that changes the
store on have their turn. Then comes what the last line on standard error recommends: ``mqtool undo``, which must give
back every byte, name, mode, owner and time; or the same command again, which must leave what it leaves undisturbed.
Some of these are killed, too. Stores are small and lie in memory where they can; interpreters are forked, not started::

    python -m tests.campaigns.repair_kills --kills 2000

It prints how many kills hit whom, in which command and when, and ends with an error at the first law that is broken.
The judge looks at files alone (os.walk, stat, SHA-256).
"""

# ruff: noqa: T201  its results go to standard output

import argparse
import contextlib
import ctypes
import dataclasses
import gc
import hashlib
import importlib
import itertools
import json
import mmap
import os
import pkgutil
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mqtool import cli, commands
from mqtool.engine import repair, store
from mqtool.engine.store.disk import Disk, OpenFile
from tests.crash import CALLS, CHANGES, write_each
from tests.damage import cases
from tests.golden import copy_of, copy_store

SWAPPED = "mixed-533-clean/names-swapped"
GROUP_SET = "mixed-533-clean/a-group-has-read"
FOLDERS = "multipath-533-clean/middle-segment-missing"
BATCHES = "batchcq-533-clean/body-byte-and-queue-deleted"
NO_TABLES = "mixed-533-clean/tables-deleted"
HALF_ZEROS = "mixed-533-clean/half-a-segment-zeros"
PLAN = "recover --abnormal --save-plan {beside}/plan"
APPLY = "apply {beside}/plan"
SALVAGE = "salvage --into {beside}/new"
CASES = [
    (SWAPPED, "recover"),
    ("mixed-533-clean/middle-segment-missing", "recover"),
    ("mixed-533-clean/body-byte-first-segment", "recover --abnormal"),
    ("mixed-533-clean/consumequeue-deleted-abort", "recover"),
    ("mixed-533-clean/last-file-short", "recover"),
    ("many-533-clean/half-log-zeros-abort", "recover --cut"),
    ("mixed-533-kill/tail-zeros-many-records", "recover --as-broker 5.3"),
    ("mixed-533-clean/one-queue-deleted", "rebuild queues"),
    ("mixed-497-clean/queues-and-index-deleted-checkpoint-late-abort", "rebuild all --for 4.9"),
    ("mixed-533-clean/index-deleted", "rebuild index --set maxHashSlotNum=100 --set maxIndexNum=250"),
    ("mixed-533-clean/control", "topic delete OrderEvents"),
    ("mixed-533-clean/control", "topic create Killed --queues 2"),
    (NO_TABLES, "rebuild config"),
    (GROUP_SET, "group create Killed --retries 3"),
    (GROUP_SET, "group delete Billing"),
    (GROUP_SET, "offset set --group Billing --topic OrderEvents --queue 0 --offset 5"),
    (GROUP_SET, "offset reset --group Billing --topic OrderEvents --earliest"),
    (FOLDERS, "recover --abnormal --set storePathCommitLog={store}/commitlog-a,{store}/commitlog-b"),
    (FOLDERS, "rebuild all --survey --set storePathCommitLog={store}/commitlog-a,{store}/commitlog-b"),
    (BATCHES, "recover --abnormal"),
    (BATCHES, "rebuild queues --survey"),
    (SWAPPED, APPLY),
    (HALF_ZEROS, APPLY),
    (HALF_ZEROS, SALVAGE),
    (BATCHES, SALVAGE),
]
_SHARED = struct.Struct("=qqq")
_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE_SECONDS = 60
_TOLD = 100

State = dict[str, tuple[Any, ...]]


class KillCounts:
    """What the server and the processes that it forks both see: calls of the disk so far, and where one is to die."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SHARED.size)

    def set(self, calls: int = 0, first: int = 0, killed: int = 0) -> None:
        _SHARED.pack_into(self._memory, 0, calls, first, killed)

    @property
    def all(self) -> tuple[int, int, int]:
        """Calls, the first that changes the store, and whether a kill was sent."""
        calls, first, killed = _SHARED.unpack_from(self._memory, 0)
        return calls, first, killed


COUNTS = KillCounts()


@dataclasses.dataclass(frozen=True)
class Kill:
    """Where a process dies: at which call (0: nowhere), the child or its parent, before the call, in it or behind."""

    call: int = 0
    whom: str = "child"
    when: str = "before"


class _Hook:
    """Stands before every call of the disk in a process that is to be killed."""

    def __init__(self) -> None:
        self.kill = Kill()
        self.home = ""

    def around(self, name: str, paths: tuple[Any, ...], work: Callable[[], Any], half: Callable[[], Any]) -> Any:
        calls, first, killed = COUNTS.all
        calls += 1
        in_store = [path for path in paths if isinstance(path, Path) and not f"{path}/".startswith(self.home)]
        if not first and in_store and name in CHANGES:
            first = calls
        COUNTS.set(calls, first, killed)
        if calls != self.kill.call:
            return work()
        COUNTS.set(calls, first, 1)
        if self.kill.when == "half":
            half()
        elif self.kill.when == "behind":
            work()
        if self.kill.whom == "child":
            os.kill(os.getpid(), signal.SIGKILL)
        os.kill(os.getppid(), signal.SIGKILL)
        return None if self.kill.when == "behind" else work()


HOOK = _Hook()


def _watch() -> None:
    """Put the hook before all calls, of this process and those that it forks."""

    def watched(name: str, method: Any) -> Any:
        def call(self: Any, *arguments: Any) -> Any:
            def half() -> None:
                if name == "write":
                    *place, data = arguments
                    method(self, *place, bytes(data)[: len(data) // 2])
                elif name in ("clear", "erase"):
                    *place, size = arguments
                    method(self, *place, size // 2)

            paths = (self.path, *arguments) if isinstance(self, OpenFile) else arguments
            return HOOK.around(name, paths, lambda: method(self, *arguments), half)

        return call

    for name in CALLS:
        setattr(Disk, name, watched(name, getattr(Disk, name)))
    Disk.write_many = write_each  # type: ignore[assignment, method-assign]
    for name in ("write", "sync"):
        setattr(OpenFile, name, watched(name, getattr(OpenFile, name)))


def _load() -> None:
    """Load what the commands load, once for all that are forked."""
    for package in (commands, repair, store):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.rpartition(".")[2].startswith(("spark", "_spark", "rocksdb", "bench", "serve")):
                importlib.import_module(module.name)
    gc.freeze()


def run(words: list[str], home: Path, kill: Kill) -> tuple[int, str]:
    """Run the command line in processes of its own, and return its status and standard error when both have ended."""
    COUNTS.set()
    with tempfile.TemporaryFile() as errors:
        process = os.fork()
        if not process:
            status = 99
            try:
                HOOK.kill, HOOK.home = kill, f"{home}/"
                nowhere = os.open(os.devnull, os.O_RDWR)
                for number, target in ((nowhere, 0), (nowhere, 1), (errors.fileno(), 2)):
                    os.dup2(number, target)
                sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, "w" if n else "r", closefd=False) for n in range(3))
                sys.argv = ["mqtool", *words]
                cli.main()
            except SystemExit as end:
                status = int(end.code or 0)
            finally:
                os._exit(status)
        signal.alarm(_PATIENCE_SECONDS)
        _, ended = os.waitpid(process, 0)
        with contextlib.suppress(ChildProcessError):
            while True:  # the child of one that was killed
                os.wait()
        signal.alarm(0)
        errors.seek(0)
        return os.waitstatus_to_exitcode(ended), errors.read().decode()


def look(root: Path) -> State:
    """Return kind, mode, owner, time (ns), size and SHA-256 or target of everything below a folder, by its path."""
    found: State = {}
    for folder, folders, names in os.walk(root):
        for name in [".", *folders, *names] if folder == str(root) else [*folders, *names]:
            path = Path(folder, name)
            status = path.lstat()
            what: Any = None
            if path.is_symlink():
                what = path.readlink()
            elif path.is_file():
                what = status.st_size, hashlib.sha256(path.read_bytes()).hexdigest()
            place = status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns
            found[str(path.relative_to(root))] = (*place, what)
    return found


def content(state: State) -> dict[str, Any]:
    """Return what a repair is to leave: all but times, and without the names of index files, which tell the time."""
    numbers = itertools.count()
    return {
        f"index/{next(numbers)}" if path.startswith("index/") else path: (mode, uid, gid, what)
        for path, (mode, uid, gid, _, what) in sorted(state.items())
    }


@dataclasses.dataclass
class KillTrial:
    """One command on one damaged store: what there was, what it leaves undisturbed, and when it can be killed."""

    name: str
    command: str
    store: Path
    before: State
    after: dict[str, Any]
    status: int
    calls: range  # from the first that changes the store
    undo_calls: range  # none where the store stays as it is

    @classmethod
    def of(cls, name: str, command: str, place: Path) -> "KillTrial":
        """Try it undisturbed, and undo."""
        number = len(list(place.glob("damaged/*")))
        store = _damaged(name, place / "damaged" / str(number))
        shown = " ".join(command.split()[: 1 if command in (APPLY, SALVAGE) else 2])
        if name in (FOLDERS, BATCHES):
            shown += f" ({name.partition('-')[0]})"
        trial = cls(shown, command, store, look(store), {}, 0, range(0), range(0))
        with _copy(store, place) as root:
            trial.prepare(root)
            trial.status, errors = trial.run(root, Kill())
            assert trial.status in (0, 3, 5), errors
            calls, first, _ = COUNTS.all
            trial.calls = range(first, calls + 1)
            trial.after = content(look(trial.made(root)))
            assert trial.after != content(trial.before)
            if trial.is_undone:
                run(["undo", "-s", str(root), "--yes"], _home(root), Kill())
                undo_calls, undo_first, _ = COUNTS.all
                trial.undo_calls = range(undo_first, undo_calls + 1)
            assert look(root) == trial.before
        return trial

    @property
    def is_undone(self) -> bool:
        """Whether it changes the store, so that there is something to undo."""
        return self.command != SALVAGE

    def made(self, root: Path) -> Path:
        """Return the folder that it changes."""
        return root if self.is_undone else root.parent / "new"

    def prepare(self, root: Path) -> None:
        """Make the plan that is to be carried out."""
        if self.command == APPLY:
            words = _words(PLAN, root)
            status, errors = run([*words, "-s", str(root), "--dry-run"], _home(root), Kill())
            assert status == 3, errors

    def run(self, root: Path, kill: Kill) -> tuple[int, str]:
        """Run the command."""
        words = [*_words(self.command, root), "-s", str(root)]
        words += [] if self.command == SALVAGE else ["--yes"]
        if words[0] in ("recover", "rebuild", "apply", "salvage"):
            words += ["-j", "1"]
        return run(words, _home(root), kill)


def _words(command: str, root: Path) -> list[str]:
    return [word.format(store=root, beside=root.parent) for word in command.split()]


def _damaged(name: str, into: Path) -> Path:
    if name not in _DAMAGES:
        return next(case for case in cases() if case.name == name).store(into)
    store = copy_of(name.partition("/")[0], into)
    _DAMAGES[name](store)
    return store


def _segments(store: Path) -> list[Path]:
    return sorted(store.glob("commitlog*/*"), key=lambda path: path.name)


def _swap(store: Path) -> None:
    one, two, *_ = _segments(store)
    one.rename(store / "one")
    two.rename(one)
    (store / "one").rename(two)


def _let_a_group_read(store: Path) -> None:
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        table = {"OrderEvents@Billing": {"0": 3, "1": 2}}
        (store / "config" / name).write_text(json.dumps({"offsetTable": table}))


def _damage_batches(store: Path) -> None:
    shutil.rmtree(store / "batchconsumequeue" / "Inner2")
    segment = _segments(store)[0]
    data = bytearray(segment.read_bytes())
    data[20_000:20_400] = bytes(400)
    segment.write_bytes(data)


def _zero_half(store: Path) -> None:
    segment = _segments(store)[1]
    data = segment.read_bytes()
    segment.write_bytes(data[: len(data) // 4] + bytes(len(data) // 2) + data[-len(data) // 4 :])


def _delete_tables(store: Path) -> None:
    for path in (store / "config").glob("topics.json*"):
        path.unlink()


_DAMAGES: dict[str, Callable[[Path], None]] = {
    SWAPPED: _swap,
    GROUP_SET: _let_a_group_read,
    FOLDERS: lambda store: _segments(store)[1].unlink(),
    BATCHES: _damage_batches,
    HALF_ZEROS: _zero_half,
    NO_TABLES: _delete_tables,
}


def _home(root: Path) -> Path:
    return root.with_name(f"{root.name}.mqtool")


@contextlib.contextmanager
def _copy(store: Path, place: Path) -> Iterator[Path]:
    base = place / "trial"
    copy_store(store, base / "store")
    yield base / "store"
    shutil.rmtree(base)


def _undo(root: Path, before: State) -> None:
    """Undo everything; the store must be as before."""
    status = 0
    while status == 0:  # what was done when it was killed, and then done again, is to be undone twice
        status, errors = run(["undo", "-s", str(root), "--yes"], _home(root), Kill())
    assert status == 66 and "there is no repair" in errors, errors
    now = look(root)
    assert now == before, _difference(before, now)


def _difference(one: State, other: State) -> list[Any]:
    return [
        (path, one.get(path), other.get(path)) for path in one.keys() | other.keys() if one.get(path) != other.get(path)
    ]


class Campaign:
    """Kills, and what came of them."""

    def __init__(self, place: Path, seed: int, cases: list[tuple[str, str]]) -> None:
        self.place = place
        self.cases = cases
        self.chance = random.Random(seed)
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self.followed: Counter[str] = Counter()
        self.trials: list[KillTrial] = []
        self._turns: list[Iterator[int]] = []

    @property
    def kills(self) -> int:
        """How many there were."""
        return self.counts.total()

    def run(self, kills: int) -> None:
        """Kill so many times at least."""
        for number in itertools.count():
            if self.kills >= kills:
                return
            if number and number % _TOLD == 0:
                print(f"{number:,} trials, {self.kills:,} kills", flush=True)
            which = number % len(self.cases)
            if number < len(self.cases):
                trial = KillTrial.of(*self.cases[which], self.place)
                self.trials.append(trial)
                self._turns.append(itertools.cycle(self.chance.sample(trial.calls, len(trial.calls))))
            try:
                self._try(self.trials[which], next(self._turns[which]), number)
            except AssertionError as error:
                error.add_note(f"{self.trials[which].name} of {self.trials[which].store}, trial {number}")
                raise

    def _try(self, trial: KillTrial, call: int, number: int) -> None:
        whom = "parent" if sum(divmod(number, len(self.cases))) % 2 else "child"  # in turns, of each command too
        kill = Kill(call, whom, self.chance.choice(["before", "half", "behind"]))
        with _copy(trial.store, self.place) as root:
            trial.prepare(root)
            status, errors = trial.run(root, kill)
            self._count(trial, whom, "at work")
            if whom == "child":
                assert status == 70, (status, errors)
                assert not trial.is_undone or "`mqtool undo`" in errors.splitlines()[-1], errors
            else:
                assert status == -signal.SIGKILL, (status, errors)
            follow = self.chance.choice(["undo", "again"]) if trial.is_undone else "again"
            for _ in range(self.chance.choice([0, 1, 2, 4])):
                self._kill_again(trial, root, self.chance.choice(["undo", "undo", "again"]))
            self.followed[follow] += 1
            if follow == "undo":
                _undo(root, trial.before)
                return
            status, errors = trial.run(root, Kill())
            done = {APPLY: 75, SALVAGE: 2}.get(trial.command, 0)  # it was done, but for the status
            assert status in (trial.status, 0, 66, done), errors
            now = content(look(trial.made(root)))
            assert now == trial.after, _difference(trial.after, now)
            if trial.is_undone:
                _undo(root, trial.before)
            now = look(root)
            assert now == trial.before, _difference(trial.before, now)

    def _kill_again(self, trial: KillTrial, root: Path, what: str) -> None:
        """Kill what follows as well, if it comes so far."""
        whom = self.chance.choice(["child", "parent"])
        what = what if trial.is_undone else "again"
        calls = trial.undo_calls if what == "undo" else range(1, len(trial.undo_calls) + trial.calls.stop)
        kill = Kill(self.chance.choice(calls), whom, self.chance.choice(["before", "half", "behind"]))
        if what == "undo":
            run(["undo", "-s", str(root), "--yes"], _home(root), kill)
        else:
            trial.run(root, kill)
        self._count(trial, whom, "undone" if what == "undo" else "again")

    def _count(self, trial: KillTrial, whom: str, window: str) -> None:
        _, first, killed = COUNTS.all
        if killed and (window == "at work" or first):
            self.counts[trial.name, window, whom] += 1


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--from", type=int, default=0, metavar="N", dest="first", help="leave out the first N cases")
    given = parser.parse_args()
    begun = time.monotonic()
    _watch()
    _load()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # who loses its parent is waited for here
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="mqtool-kills-", dir=memory if memory.is_dir() else None) as name:
        campaign = Campaign(Path(name).resolve(), given.seed, CASES[given.first :])
        campaign.run(given.kills)
    windows = ("at work", "undone", "again")
    for command in dict.fromkeys(trial.name for trial in campaign.trials):
        cells = [
            f"{window} {campaign.counts[command, window, 'child']:,} + {campaign.counts[command, window, 'parent']:,}"
            for window in windows
        ]
        print(f"{command}: {', '.join(cells)} (child + parent)")
    seconds = time.monotonic() - begun
    followed = ", ".join(f"{what} {count:,}" for what, count in sorted(campaign.followed.items()))
    print(f"{campaign.kills:,} kills, followed in the end by {followed}; {seconds:,.0f} s, seed {given.seed}")


if __name__ == "__main__":
    main()
