"""Disks that fail, die or lose what was not synced, and the trials of a repair on them.

``Trial`` runs one repair of one store again and again, disturbed at every call of its disk, and holds what comes of it
against the store as it was (undo) and against an undisturbed run (the same repair again).
"""

import contextlib
import dataclasses
import enum
import hashlib
import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mqtool.engine.repair.journal import Journal, RepairFailedError, State, cut_off, home_of, journals, undo
from mqtool.engine.repair.parts import Progress
from mqtool.engine.repair.plan import Change, Plan, Repair, carry_out, plan_repair
from mqtool.engine.store.disk import CrossDeviceError, Disk, OpenFile
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import MqtoolError, WriteError
from tests.damage import snapshot
from tests.golden import copy_store

CHANGES = (
    "create",
    "write",
    "clear",
    "erase",
    "truncate",
    "rename",
    "remove",
    "make_folder",
    "remove_folder",
    "set_times",
)
CALLS = (*CHANGES, "sync", "sync_folder")
SECTOR = 512
STEP = 1 if os.environ.get("MQTOOL_THOROUGH") else 7
"""What the slower trials take of all calls, unless there is time for each."""


class KilledError(BaseException):
    """The end of the process: nobody catches it."""


def write_each(disk: Disk, path: Path, pieces: Iterable[tuple[int, bytes]]) -> None:
    """Do what ``Disk.write_many`` does by calls that can be disturbed one by one."""
    for at, data in pieces:
        disk.write(path, at, data)


class WatchedDisk(Disk):
    """A disk that counts its calls; subclasses do something else with some of them.

    ``apart`` is a folder that passes for a file system of its own.
    """

    def __init__(self, apart: Path | None = None) -> None:
        self.apart = apart
        self.count = 0

    def open(self, path: Path) -> OpenFile:
        """Give a file whose writes and syncs are calls of this disk."""
        return _WatchedFile(self, path)

    def write_many(self, path: Path, pieces: Iterable[tuple[int, bytes]]) -> None:
        """Write each by a call of its own."""
        write_each(self, path, pieces)

    def call(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Carry out one call."""
        if self.apart and name == "rename" and len({path.is_relative_to(self.apart) for path in arguments}) == 2:
            raise CrossDeviceError("another file system")
        if not name.startswith("sync"):  # a test that does not cut the power waits for no disk
            getattr(Disk, name)(self, *arguments)


class _WatchedFile(OpenFile):
    def __init__(self, disk: WatchedDisk, path: Path) -> None:
        super().__init__(path)
        self._disk = disk

    def write(self, at: int, data: bytes | bytearray) -> None:
        self._disk.write(self.path, at, bytes(data))

    def sync(self) -> None:
        self._disk.sync(self.path)


def _watched(name: str) -> Callable[..., None]:
    def method(self: WatchedDisk, *arguments: Any) -> None:
        self.count += 1
        self.call(name, arguments)

    return method


for _name in CALLS:
    setattr(WatchedDisk, _name, _watched(_name))


class FailingDisk(WatchedDisk):
    """A disk that is full at the ``fail_at``-th call, counted from 1, and ``for_good`` at all that follow.

    What is being written then is written by half.
    """

    def __init__(self, fail_at: int, for_good: bool = False, apart: Path | None = None) -> None:
        super().__init__(apart)
        self.fail_at = fail_at
        self.for_good = for_good

    def call(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Carry out one call, or fail."""
        if self.count == self.fail_at or (self.for_good and self.count > self.fail_at):
            self._half(name, arguments)
            self.end()
        super().call(name, arguments)

    def end(self) -> None:
        """Fail."""
        raise WriteError("no space left: a test")

    def _half(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "write":
            path, at, data = arguments
            Disk.write(self, path, at, data[: len(data) // 2])
        elif name in ("clear", "erase"):
            path, at, size = arguments
            getattr(Disk, name)(self, path, at, size // 2)


class DyingDisk(FailingDisk):
    """A disk in whose ``fail_at``-th call the process is killed; after that nobody calls it."""

    def call(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Carry out one call, or die."""
        if self.count > self.fail_at:
            self.end()
        super().call(name, arguments)

    def end(self) -> None:
        """Die."""
        raise KilledError


# Power loss


class Left(enum.Enum):
    """What a power loss leaves of all that was not synced; by chance it is anything between."""

    EVERYTHING = enum.auto()
    """As after the end of the process alone."""

    NOTHING = enum.auto()
    LATEST = enum.auto()
    """The latest change of each file, and none that came before."""
    FIRST_SECTORS = enum.auto()
    """The first sector of every write; lengths are as they should be, the rest is zeros."""


Chance = random.Random | Left


@dataclasses.dataclass
class _File:
    """A file, or a folder without ``data``: what is on the disk, and what the disk has not been told to keep."""

    data: bytearray | None
    times: list[int]  # modification times (ns) that may be on the disk; the first surely was
    pending: list[tuple[str, Any, Any]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class _Naming:
    """Names that change at once: ``entries`` are folder, name and file (None: no more), ``folders`` not yet synced."""

    entries: list[tuple[int, str, int | None]]
    folders: set[int]


class RecordingDisk(WatchedDisk):
    """A disk that remembers every call on what lies below ``base``, to tell what a power loss would have left.

    Bytes, lengths and times of a file may be lost until the file is synced, each write by itself, or in part by
    sectors; names until their folders are, those of a rename together.
    """

    def __init__(self, base: Path, apart: Path | None = None) -> None:
        super().__init__(apart)
        self.base = base
        self.initial = _Image.of(base)
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, int]]] = []

    def call(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Carry out one call and remember it, with the times that it left behind."""
        super().call(name, arguments)
        paths = [argument for argument in arguments if isinstance(argument, Path)]
        touched = {*paths, *(path.parent for path in paths)}
        times = {
            self._name(path): path.stat().st_mtime_ns for path in touched if path.exists() and self._is_below(path)
        }
        named = tuple(self._name(one) if isinstance(one, Path) else one for one in arguments)
        self.calls.append((name, named, times))

    def leave(self, cut: int, chance: Chance, into: Path) -> None:
        """Make below ``into`` what may be on the disk when the power goes after ``cut`` calls."""
        image = self.initial.copy()
        for name, arguments, times in self.calls[:cut]:
            image.apply(name, arguments, times)
        image.leave(chance, into)

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.base)) if self._is_below(path) else str(path)

    def _is_below(self, path: Path) -> bool:
        return path.is_relative_to(self.base)


class _Image:
    """Files and names below a folder: as a running system sees them, and as they may be on the disk."""

    def __init__(self) -> None:
        self.files: list[_File] = []
        self.names: dict[str, int] = {}  # as seen: every path
        self.first: dict[str, int] = {}  # as on the disk in the beginning
        self.namings: list[_Naming] = []

    @classmethod
    def of(cls, base: Path) -> "_Image":
        self = cls()
        for path in [base, *sorted(base.rglob("*"))]:
            self.names[str(path.relative_to(base))] = len(self.files)
            data = bytearray(path.read_bytes()) if path.is_file() else None
            self.files.append(_File(data, [path.stat().st_mtime_ns]))
        self.first = dict(self.names)
        return self

    def copy(self) -> "_Image":
        other = _Image()
        # Data is replaced, never changed in place, by whoever syncs.
        other.files = [_File(file.data, [*file.times], [*file.pending]) for file in self.files]
        other.names, other.first = dict(self.names), dict(self.first)
        other.namings = [_Naming(naming.entries, set(naming.folders)) for naming in self.namings]
        return other

    def apply(self, name: str, arguments: tuple[Any, ...], times: Mapping[str, int]) -> None:
        """Take in one call."""
        path = arguments[0]
        match name:
            case "create":
                self._name_new(path, _File(bytearray(), []))
                self._file(path).pending.append(("truncate", arguments[1] if len(arguments) > 1 else 0, None))
            case "make_folder":
                self._name_new(path, _File(None, []))
            case "write" | "truncate":
                self._file(path).pending.append((name, *arguments[1:], *([None] if name == "truncate" else [])))
            case "clear" | "erase":
                at, size = arguments[1:]
                self._file(path).pending.append(("write", at, bytes(size)))
            case "rename":
                self._rename(path, arguments[1])
            case "remove" | "remove_folder":
                self._change_names([(path, None)])
                del self.names[path]
            case "sync":
                self._sync(self._file(path))
            case "sync_folder":
                folder = self.names[path]
                for naming in self.namings:
                    naming.folders.discard(folder)
                self.files[folder].times = self.files[folder].times[-1:]
        for touched, time in times.items():
            if touched in self.names and self._file(touched).times[-1:] != [time]:
                self._file(touched).times.append(time)

    def leave(self, chance: Chance, into: Path) -> None:
        """Make what may be on the disk below the new folder ``into``."""
        folders: dict[int, dict[str, int]] = {}
        for path, number in self.first.items():
            if path != ".":
                folders.setdefault(self.first[_parent(path)], {})[Path(path).name] = number
        for naming in self.namings:
            if not naming.folders or _is_kept(chance):
                for folder, name, file in naming.entries:
                    if file is None:
                        folders.get(folder, {}).pop(name, None)
                    else:
                        folders.setdefault(folder, {})[name] = file
        self._leave(0, folders, chance, into)

    def _leave(self, number: int, folders: dict[int, dict[str, int]], chance: Chance, path: Path) -> None:
        file = self.files[number]
        if file.data is None:
            path.mkdir()
            for name, inside in folders.get(number, {}).items():
                self._leave(inside, folders, chance, path / name)
        else:
            data = bytearray(file.data)
            for pending in _left_of(file.pending, chance):
                _do(data, pending, chance)
            path.write_bytes(data)
        time = chance.choice(file.times) if isinstance(chance, random.Random) else file.times[0]
        os.utime(path, ns=(time, time))

    def _file(self, path: str) -> _File:
        return self.files[self.names[path]]

    def _name_new(self, path: str, file: _File) -> None:
        self.files.append(file)
        self.names[path] = len(self.files) - 1
        self._change_names([(path, len(self.files) - 1)])

    def _rename(self, source: str, target: str) -> None:
        self._change_names([(source, None), (target, self.names[source])])
        for path in [path for path in self.names if path == source or path.startswith(f"{source}/")]:
            self.names[target + path[len(source) :]] = self.names.pop(path)

    def _change_names(self, changes: list[tuple[str, int | None]]) -> None:
        entries = [(self.names[_parent(path)], Path(path).name, file) for path, file in changes]
        self.namings.append(_Naming(entries, {folder for folder, _, _ in entries}))

    def _sync(self, file: _File) -> None:
        assert file.data is not None
        data = bytearray(file.data)
        for pending in file.pending:
            _do(data, pending, None)
        file.data, file.pending, file.times = data, [], file.times[-1:]


def _parent(path: str) -> str:
    return str(Path(path).parent)


def _is_kept(chance: Chance) -> bool:
    return chance.random() < 0.5 if isinstance(chance, random.Random) else chance is not Left.NOTHING


def _left_of(pending: list[tuple[str, Any, Any]], chance: Chance) -> list[tuple[str, Any, Any]]:
    return {Left.NOTHING: [], Left.LATEST: pending[-1:]}.get(chance, pending) if isinstance(chance, Left) else pending


def _do(data: bytearray, pending: tuple[str, Any, Any], chance: Chance | None) -> None:
    """Carry out a write or truncation, or only some of it."""
    fate = chance.choice(["done", "lost", "part"]) if isinstance(chance, random.Random) else "done"
    if fate == "lost":
        return
    if pending[0] == "truncate":
        size = pending[1]
        del data[size:]
        data += bytes(size - len(data))
        return
    _, at, new = pending
    if chance is Left.FIRST_SECTORS:
        new = new[:SECTOR].ljust(len(new), b"\0")
    if fate == "part":
        assert isinstance(chance, random.Random)
        new = new[: chance.randrange(len(new) + 1)] if chance.random() < 0.5 else _some_sectors(data, at, new, chance)
    data += bytes(max(0, at + len(new) - len(data)))
    data[at : at + len(new)] = new


def _some_sectors(data: bytearray, at: int, new: bytes, chance: random.Random) -> bytes:
    out = bytearray(data[at : at + len(new)])
    out += bytes(len(new) - len(out))
    for start in range(-(at % SECTOR), len(new), SECTOR):
        if chance.random() < 0.5:
            sector = slice(max(0, start), start + SECTOR)
            out[sector] = new[sector]
    return bytes(out)


# Trials


class TrialResult(NamedTuple):
    """How many disturbed runs there were, and what was wrong after which of them."""

    runs: int
    faults: list[str]


class Trial:
    """One repair of one store, to be disturbed. Each method returns how many runs it has disturbed, and their faults.

    They disturb every call, or with ``step`` every so manieth.

    Args:
        store: to be repaired; it stays as it is.
        command: a name of ``REPAIRS``.
        options: of that repair.
        place: an empty folder to work in.
        config: settings of the broker.
        jobs: how many threads. The number and order of calls must not depend on them.
        apart: whether the journals lie on another file system than the store.
    """

    def __init__(
        self,
        store: Path,
        command: str,
        options: Mapping[str, Any],
        place: Path,
        config: StoreConfig | None = None,
        jobs: int = 1,
        apart: bool = False,
    ) -> None:
        self.store = store
        self.command = command
        self.options = options
        self.place = place
        self.config = config or StoreConfig()
        self.jobs = jobs
        self.apart = apart
        self._numbers = itertools.count()
        with self._copy() as root:
            self.before = snapshot(root)
            self.before_content = content(root)
            disk = WatchedDisk(self._apart(root))
            self.repair(root, disk)
            self.repair_calls = disk.count
            self.after = content(root)
            disk = WatchedDisk(self._apart(root))
            undo(root, disk)
            self.undo_calls = disk.count
            self.undone = snapshot(root)

    def repair(self, root: Path, disk: Disk) -> None:
        """Plan and carry out, as a user would again after whatever has happened: what was cut off is undone first."""
        if cut_off(root):
            undo(root, disk)
        plan = plan_repair(root, self.config, self.command, self.options, self.jobs)
        carry_out(root, self.config, plan, disk, self.jobs)

    def fails_once(self, step: int = 1) -> TrialResult:
        """Let each call fail once: the store is as before, or the repair was done."""
        faults: list[str] = []
        for number in self._calls(step):
            with self._copy() as root:
                try:
                    self.repair(root, FailingDisk(number, apart=self._apart(root)))
                except MqtoolError as error:
                    faults += _at(number, differences(snapshot(root), self.before))
                    faults += _at(number, (f"a journal is left: {info}" for info in journals(root)))
                    if isinstance(error, RepairFailedError) and "no space left" not in str(error):
                        faults += _at(number, [f"the error does not tell why: {error}"])
                else:
                    faults += _at(number, differences(content(root), self.after))
        return TrialResult(len(self._calls(step)), faults)

    def fails_for_good(self, step: int = 1) -> TrialResult:
        """Let the disk fail from each call on: with another disk, undo brings the store back."""
        faults: list[str] = []
        for number in self._calls(step):
            with self._copy() as root:
                with contextlib.suppress(MqtoolError):
                    self.repair(root, FailingDisk(number, for_good=True, apart=self._apart(root)))
                faults += _at(number, self._go_back(root))
        return TrialResult(len(self._calls(step)), faults)

    def is_killed(self, step: int = 1) -> TrialResult:
        """Kill the repair in each call: undo brings the store back, and the same repair again does what it should."""
        faults: list[str] = []
        for number in self._calls(step):
            with self._copy() as root:
                with contextlib.suppress(KilledError):
                    self.repair(root, DyingDisk(number, apart=self._apart(root)))
                with self._copy_of(root) as other:
                    faults += _at(number, self._go_back(other))
                faults += _at(number, self._go_on(root))
        return TrialResult(len(self._calls(step)), faults)

    def is_killed_undoing(self, step: int = 1) -> TrialResult:
        """Kill undo in every call, of the whole repair and of one that was itself killed in each call."""
        runs = 0
        faults: list[str] = []
        for number in [*self._calls(step), self.repair_calls + 1]:
            with self._copy() as root:
                with contextlib.suppress(KilledError):
                    self.repair(root, DyingDisk(number, apart=self._apart(root)))
                for second in itertools.count(1):
                    with self._copy_of(root) as other:
                        try:
                            is_exact = take_back(other, DyingDisk(second, apart=self._apart(other)))
                        except KilledError:
                            faults += _at((number, second), self._go_back(other))
                            runs += 1
                        else:
                            faults += _at((number, second), [] if is_exact else [NOT_EXACT])
                            break
        return TrialResult(runs, faults)

    def loses_power(self, samples: int, step: int = 1, seed: int = 4) -> TrialResult:
        """Cut the power after each call of the repair: undo brings back, and the repair again does what it should."""
        with self._copy() as root:
            disk = RecordingDisk(root.parent, self._apart(root))
            self.repair(root, disk)
        cuts = range(0, len(disk.calls) + 1, step)
        faults: list[str] = []
        for cut, sample in itertools.product(cuts, range(samples)):
            with self._left(disk, cut, _chance(f"{seed} {cut}", sample // 2, sample), root.name) as left:
                faults += _at((cut, sample), self._go_on(left) if sample % 2 else self._go_back(left))
        return TrialResult(len(cuts) * samples, faults)

    def loses_power_undoing(self, samples: int, step: int = 1, seed: int = 4) -> TrialResult:
        """Cut the power after each call of an undo: undo again brings the store back."""
        with self._copy() as root:
            self.repair(root, Disk())
            disk = RecordingDisk(root.parent, self._apart(root))
            undo(root, disk)
        cuts = range(0, len(disk.calls) + 1, step)
        faults: list[str] = []
        for cut, sample in itertools.product(cuts, range(samples)):
            with self._left(disk, cut, _chance(f"{seed} {cut}", sample, sample), root.name) as left:
                faults += _at((cut, sample), self._go_back(left))
        return TrialResult(len(cuts) * samples, faults)

    def _calls(self, step: int) -> range:
        return range(1, self.repair_calls + 1, step)

    def _go_back(self, root: Path) -> list[str]:
        """Undo what there is of the repair, and return what is not as it was before."""
        is_exact = take_back(root, WatchedDisk(self._apart(root)))
        return differences(snapshot(root), self.before) + ([] if is_exact else [NOT_EXACT])

    def _go_on(self, root: Path) -> list[str]:
        """Do the repair unless it is done, and return what is not as after an undisturbed one."""
        if not any(info.state is State.DONE for info in journals(root)):
            self.repair(root, WatchedDisk(self._apart(root)))
        return differences(content(root), self.after)

    def _apart(self, root: Path) -> Path | None:
        return home_of(root) if self.apart else None

    @contextlib.contextmanager
    def _copy(self) -> Iterator[Path]:
        base = self._base()
        copy_store(self.store, base / "store")
        yield base / "store"
        shutil.rmtree(base)

    @contextlib.contextmanager
    def _copy_of(self, root: Path) -> Iterator[Path]:
        """Copy a store with its journals."""
        base = self._base()
        base.rmdir()
        copy_store(root.parent, base)
        yield base / root.name
        shutil.rmtree(base)

    @contextlib.contextmanager
    def _left(self, disk: RecordingDisk, cut: int, chance: Chance, name: str) -> Iterator[Path]:
        """Make what a power loss left."""
        base = self._base()
        base.rmdir()
        disk.leave(cut, chance, base)
        yield base / name
        shutil.rmtree(base)

    def _base(self) -> Path:
        base = self.place / str(next(self._numbers))
        base.mkdir(parents=True)
        return base.resolve()


NOT_EXACT = "undo says that the store is not what it was"


def _at(where: object, faults: Iterable[str]) -> list[str]:
    return [f"{where}: {fault}" for fault in faults]


def _chance(seed: str, kind: int, sample: int) -> Chance:
    """Return what ``Left`` tells first, then chances."""
    return dict(enumerate(Left)).get(kind, random.Random(f"{seed} {sample}"))


class MakingTrial:
    """The making of something new, a store or a file, to be disturbed; methods and ``step`` as those of ``Trial``.

    Whatever happens, what is left is nothing, or something that shows that it is not whole, or all of it.

    Args:
        make: makes the new thing at a path, through a disk.
        sees_unfinished: tells whether something of an unfinished making is left at a path, for everybody to see.
        place: an empty folder to work in.
        name: of the new thing in its folder; it may lie in folders that are not there yet.
    """

    def __init__(
        self, make: Callable[[Path, Disk], object], sees_unfinished: Callable[[Path], bool], place: Path, name: str
    ) -> None:
        self.make = make
        self.sees_unfinished = sees_unfinished
        self.place = place
        self.name = name
        self._numbers = itertools.count()
        with self._base() as base:
            disk = WatchedDisk()
            make(base / name, disk)
            self.calls = disk.count
            self.whole = content(base)

    def fails_once(self, step: int = 1) -> TrialResult:
        """Let each call fail once: nothing is left, not even a folder, or the thing was made."""
        faults: list[str] = []
        for number in self._calls(step):
            with self._base() as base:
                try:
                    self.make(base / self.name, FailingDisk(number))
                except WriteError:
                    faults += _at(number, (f"{path.name} is left" for path in base.iterdir()))
                else:
                    faults += _at(number, differences(content(base), self.whole))
        return TrialResult(len(self._calls(step)), faults)

    def fails_for_good(self, step: int = 1) -> TrialResult:
        """Let the disk fail from each call on: what is left is told."""
        faults: list[str] = []
        for number in self._calls(step):
            with self._base() as base:
                try:
                    self.make(base / self.name, FailingDisk(number, for_good=True))
                except MqtoolError as error:
                    faults += _at(number, self._taken_for_whole(base))
                    is_left = (base / self.name).exists() and content(base) != self.whole
                    if is_left and "remove it" not in str(error):
                        faults += _at(number, [f"the error does not tell what is left: {error}"])
                else:
                    faults += _at(number, differences(content(base), self.whole))
        return TrialResult(len(self._calls(step)), faults)

    def is_killed(self, step: int = 1) -> TrialResult:
        """Kill it in each call: what is left is safe, and another attempt makes it."""
        faults: list[str] = []
        for number in self._calls(step):
            with self._base() as base:
                with contextlib.suppress(KilledError):
                    self.make(base / self.name, DyingDisk(number))
                faults += _at(number, self._taken_for_whole(base))
                faults += _at(number, self._go_on(base))
        return TrialResult(len(self._calls(step)), faults)

    def is_killed_removing(self, step: int = 1, removal_step: int = 1) -> TrialResult:
        """Let each call fail, and kill each call of the removal that follows."""
        runs = 0
        faults: list[str] = []
        for number in self._calls(step):
            for second in itertools.count(number + 1, removal_step):
                with self._base() as base:
                    disk = _FailingThenDyingDisk(number, second)
                    with contextlib.suppress(KilledError, MqtoolError):
                        self.make(base / self.name, disk)
                    faults += _at((number, second), self._taken_for_whole(base))
                    faults += _at((number, second), self._go_on(base))
                runs += disk.count >= second
                if disk.count < second:
                    break
        return TrialResult(runs, faults)

    def loses_power(self, samples: int, step: int = 1, seed: int = 4) -> TrialResult:
        """Cut the power after each call: what is left is safe, and after the last call it is there for good."""
        with self._base() as base:
            disk = RecordingDisk(base)
            self.make(base / self.name, disk)
        cuts = [*range(0, len(disk.calls), step), len(disk.calls)]
        faults: list[str] = []
        for cut, sample in itertools.product(cuts, range(samples)):
            with self._base() as base:
                base.rmdir()
                disk.leave(cut, _chance(f"{seed} {cut}", sample, sample), base)
                faults += _at((cut, sample), self._taken_for_whole(base))
                if cut == len(disk.calls):
                    faults += _at((cut, sample), differences(content(base), self.whole))
        return TrialResult(len(cuts) * samples, faults)

    def _calls(self, step: int) -> range:
        return range(1, self.calls + 1, step)

    def _taken_for_whole(self, base: Path) -> list[str]:
        """Return what is missing or wrong in what is left, unless it is nothing, or shows that it is not whole."""
        target = base / self.name
        is_nothing = not target.exists() or (target.is_dir() and not any(target.iterdir()))
        return [] if is_nothing or self.sees_unfinished(target) else differences(content(base), self.whole)

    def _go_on(self, base: Path) -> list[str]:
        """Make it unless it is whole, whatever a first attempt has left, and return what differs from a whole one."""
        if content(base) != self.whole:
            self.make(base / self.name, WatchedDisk())
        return differences(content(base), self.whole)

    @contextlib.contextmanager
    def _base(self) -> Iterator[Path]:
        base = self.place / str(next(self._numbers))
        base.mkdir(parents=True)
        yield base.resolve()
        shutil.rmtree(base)


class _FailingThenDyingDisk(DyingDisk):
    """A disk that fails once, and in a later call of which the process is killed."""

    def __init__(self, fail_at: int, die_at: int) -> None:
        super().__init__(die_at)
        self.first = fail_at

    def call(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Carry out one call, or fail, or die."""
        if self.count == self.first:
            raise WriteError("no space left: a test")
        super().call(name, arguments)


def take_back(root: Path, disk: Disk) -> bool:
    """Undo the last repair, if one has begun; tell whether that was exact."""
    if all(info.state is State.UNDONE for info in journals(root)):
        return True
    _, is_exact = undo(root, disk)
    return is_exact


def content(root: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of a store by its path, nothing for a folder.

    The name of an index file may be the time at which it was made, so they are numbered.
    """
    found = {}
    for number, path in enumerate(sorted(root.rglob("*"))):
        name = f"index/{number}" if path.parent == root / "index" else str(path.relative_to(root))
        found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    return found


def differences(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """Return the paths in which two snapshots, or the contents of two stores, differ."""
    return sorted(path for path in one.keys() | other.keys() if one.get(path) != other.get(path))


# A repair that makes every kind of change, for tests of what all repairs share.


def _plan_everything(_reader: StoreReader, options: Mapping[str, Any], _jobs: int, _progress: Progress) -> Plan:
    return Plan("everything", options, (Change("write", "commitlog", "a test"),), journal_size=1 << 16)


def _apply_everything(reader: StoreReader, _plan: Plan, journal: Journal, _jobs: int, _progress: Progress) -> None:
    root = reader.root
    segment = reader.commit_log.segments[0].path
    _rename_in_turn(journal, [one.path for one in reader.commit_log.segments[:2]], root / "config")
    time = segment.stat().st_mtime_ns
    journal.write(segment, 1000, bytes(range(256)) * 10)
    journal.write(segment, 3000, b"once more")
    journal.set_times(segment, (time, time))
    journal.note(segment, 4000, 9000)
    for at in (4000, 8000):
        journal.write_noted(segment, at, b"noted before" * 50)
    with journal.together():
        for queue in list(reader.consume_queues.values())[:3]:
            path = next(iter(queue.folders[0].iterdir()))
            journal.write(path, 20, b"together")
            journal.write(path, 60, b"and again")
        journal.create(root / "together" / "made", 100)
        journal.fill(root / "together" / "made", 10, b"together")
    journal.truncate(root / "checkpoint", 100)
    journal.truncate(root / "checkpoint", 4096)
    journal.write(root / "checkpoint", 90, b"grown")
    journal.create(root / "config" / "new" / "deep" / "file.json", 10)
    journal.fill(root / "config" / "new" / "deep" / "file.json", 0, b"{}")
    journal.remove(root / "config" / "topics.json")
    journal.create(root / "config" / "topics.json", 2)  # where an original has stood
    journal.fill(root / "config" / "topics.json", 0, b"{}")
    new = journal.workspace / "consumequeue"
    journal.disk.make_folder(new)
    journal.disk.make_folder(new / "T")
    for number in range(2):
        journal.disk.create(new / "T" / f"{number:020}", 6000)
        journal.fill(new / "T" / f"{number:020}", 0, b"unit" * 100)
    journal.move_in(new, root / "consumequeue")
    journal.write(root / "consumequeue" / "T" / f"{0:020}", 100, b"into what is new")
    journal.create(root / "consumequeue" / "T" / "more", 1)
    journal.remove(root / "consumequeue" / "T" / f"{1:020}")
    journal.remove(root / "index")
    journal.disk.create(journal.workspace / "abort", 3)
    journal.move_in(journal.workspace / "abort", root / "repaired")
    journal.move_in(_file(journal, "checkpoint"), root / "checkpoint")


def _rename_in_turn(journal: Journal, segments: list[Path], config: Path) -> None:
    """Let two segments exchange names, give a table the name of another that was taken out, and change all of them."""
    first, second = segments
    taken, table = config / "consumerOffset.json", config / "delayOffset.json"
    journal.write(second, 10, b"before its name is another")
    journal.write(table, 0, b"[")
    journal.remove(taken)
    journal.rename([(first, second), (second, first), (table, taken)])
    journal.create(table, 2)  # where an original has stood
    journal.fill(table, 0, b"{}")
    journal.truncate(first, 60_000)
    journal.write(second, 2000, b"under its new name")
    journal.write(taken, 0, b"{")


def _file(journal: Journal, name: str) -> Path:
    path = journal.workspace / name
    journal.disk.create(path, 4096)
    journal.fill(path, 0, b"new")
    return path


EVERYTHING = Repair(_plan_everything, _apply_everything)
