"""The journal of a repair: its changes to a store, and how they are undone.

It is beside the store, in ``STORE.mqtool/<time>-<command>/``:

- ``about``: JSON: time, command, options, and a fingerprint of the store;
- ``notes``: the previous contents, in frames, each written and synced before the change that needs it;
- ``state``: one letter for the progress; then, once the repair is done, a fingerprint of the resulting store, and
  the size of ``notes``;
- ``kept/``: files and folders moved out of the store; during undo also ``made-..``, which the repair had created;
- ``workspace/``: files and folders under construction.

A frame is its size and CRC-32 (two big-endian u32), then one line of JSON, then bytes. Frames state what was there:

- ``{"was": NAME, "size": N, "times": [NS, NS]}``: a file, or a folder (no size), about to be changed;
- ``{"bytes": NAME, "at": N}`` and the bytes, or ``{"bytes": NAME, "at": [N, ..], "sizes": [N, ..]}`` and those of short
  stretches, one after the other; ``{"zeros": NAME, "at": N, "size": N}``, with ``"keep": true`` where the zeros have
  blocks on the disk, which undo leaves allocated; without it they become a hole;
- ``{"place": NAME, "kept": KEPT}``: the original is, or will be, ``kept/KEPT``; without ``kept`` there was none;
- ``{"renamed": [[NAME, NEW], ..]}``, at most once: each file gets a temporary name in between, so that names may be
  exchanged. A file ``renamed`` beside ``notes`` says that all old names are free; without it nothing that was noted
  later remains to be undone.

Once a place is noted, nothing original is at that name or below it, so nothing below it is noted any more, and
``undo`` may remove what it finds there, unless ``kept/KEPT`` is missing: then the original has not moved yet, or is
back. This is why ``undo`` can start again from the beginning however often it is killed.

Cost: linear in the bytes that are changed, for a repair and for its undo.
"""

import contextlib
import datetime
import enum
import functools
import hashlib
import itertools
import json
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from mqtool.engine.store.disk import (
    CHUNK,
    LOST_AND_FOUND,
    ZEROS,
    CrossDeviceError,
    Disk,
    DiskFullError,
    chunks,
    inside,
    mount_points,
    scraps,
    take_owner,
)
from mqtool.engine.store.file_kinds import LOCK
from mqtool.engine.store.locks import hold, hold_folder
from mqtool.engine.store.mapping import open_file, read_file, reading
from mqtool.errors import (
    BadDataError,
    MqtoolError,
    NotFoundError,
    NotPermittedError,
    ReadError,
    Status,
    StoreChangedError,
    UsageError,
    WriteError,
)

_FRAME = struct.Struct(">II")
_parsed = json.JSONDecoder().raw_decode  # a third of the time of json.loads, for lines that were written here
_MAX_WAITING = 16 << 20
_LARGE = 64 << 20
_FEW = 1 << 16
"""Bytes that are read at once, even in a hole."""
_LEAST_ZEROS = 64
"""From this number on, zeros take less space as a note than as bytes."""
_TIME = "%Y%m%dT%H%M%S"
_NAME = re.compile(r"\d{8}T\d{6}\.\d{3}Z-.+")
_RENAMED = "renamed"
_STATE = struct.Struct(">c64sQ")
"""State, fingerprint and size of the notes; the last two stay zeros until a repair is done."""


_ABOUT = {"command": str, "timestamp": int, "further": list, "fingerprint": str}
"""What undoing needs of ``about``."""
_MAX_TIMESTAMP = 253_402_300_799_000
"""The end of the year 9999."""


class State(enum.StrEnum):
    """The progress of a repair; the value is the letter in its ``state``."""

    CUT_OFF = "w"
    """In progress, or killed."""
    DONE = "d"
    TAKING_BACK = "u"
    """``undo`` is in progress, or was killed."""
    UNDONE = "x"


class RepairFailedError(MqtoolError):
    """A repair failed; the sentence says why, and the state of the store; the status is that of the cause."""

    def __init__(self, cause: Exception, then: str) -> None:
        self.cause = cause
        self.exit_code = cause.exit_code if isinstance(cause, MqtoolError) else Status.IO_ERROR
        super().__init__(f"{cause}; {then}")


@dataclass(frozen=True)
class JournalInfo:
    """A journal as ``undo --list`` shows it; ``size`` is the disk usage of its folder in bytes."""

    name: str
    command: str
    timestamp: int
    state: State
    size: int
    home: Path


def home_of(root: Path) -> Path:
    """Return the folder beside a store in which its journals lie."""
    root = root.resolve()
    return root.with_name(f"{root.name}.mqtool")


def fingerprint(root: Path, further: tuple[Path, ...] = ()) -> str:
    """Return a SHA-256 over relative path, size and time of change (ns) of every file, and the names of all folders.

    Args:
        root: the store.
        further: folders that belong to it and are elsewhere, below it or not.
    """
    digest = hashlib.sha256()
    seen: set[tuple[int, int]] = set()
    for top in (root, *further):
        with reading(top):
            _add_tree(digest, top, "", seen)
    return digest.hexdigest()


def _add_tree(digest: Any, folder: Path, name: str, seen: set[tuple[int, int]]) -> None:
    status = folder.stat()
    if (status.st_dev, status.st_ino) in seen:
        return
    seen.add((status.st_dev, status.st_ino))
    with os.scandir(folder) as entries:
        children = sorted(entries, key=lambda entry: entry.name)
    for entry in children:
        path = f"{name}/{entry.name}"
        if entry.name == LOST_AND_FOUND:  # only root can read it
            continue
        if entry.is_dir():
            digest.update(os.fsencode(f"{path}/\0"))
            _add_tree(digest, Path(entry.path), path, seen)
        else:
            status = entry.stat() if entry.is_file() else entry.stat(follow_symlinks=False)
            digest.update(os.fsencode(f"{path}\0{status.st_size} {status.st_mtime_ns}\0"))


class Journal:
    """Changes to a store that can be undone.

    Every method notes what undo needs, syncs the note, and then changes the store through the disk. Paths may be given
    as the store has them; links are followed. Changes to what this journal has created or moved in need no note.
    Not thread-safe; but threads may build in the workspace through the disk, which ``move_in`` syncs.
    """

    def __init__(self, root: Path, home: Path, disk: Disk, further: tuple[Path, ...] = ()) -> None:
        self.root = root
        self.home = home
        self.disk = disk
        self.workspace = home / "workspace"
        self._further = further
        self._end = 0  # of the notes that are written
        self._frames: list[bytes] = []  # noted, not written yet yet
        self.waiting_size = 0
        """Bytes that are noted and not written yet."""
        self._was: set[Path] = set()
        self._ours: set[Path] = set()
        self._known_ours: dict[Path, bool] = {}  # cache by path, until a name changes
        self._reals: dict[Path, Path] = {}  # without links
        self._names: dict[Path, str] = {}
        self._before = _LastFile()  # of the store, for notes
        self._short: list[tuple[int, bytes]] = []  # noted stretches of one file, not in frames yet
        self._short_name = ""
        self._short_size = 0
        self._synced = 0
        self._kept = 0
        self._files: dict[Path, None] = {}  # to be synced
        self._folders: dict[Path, None] = {}
        self._waiting: list[Callable[[], object]] | None = None
        self._waiting_size = 0
        self._pieces: tuple[Path, list[tuple[int, bytes]]] | None = None  # for the last of these

    @classmethod
    def begin(
        cls, root: Path, command: str, options: Mapping[str, Any], disk: Disk, further: tuple[Path, ...] = ()
    ) -> "Journal":
        """Create the folder of a new journal, within ``holding``; the store is not changed.

        Args:
            root: the store.
            command: the repair's name.
            options: its options, for display.
            disk: through which everything is written.
            further: folders of the store that are elsewhere.
        """
        root = root.resolve()
        top = home_of(root)
        now = datetime.datetime.now(datetime.UTC)
        for info in journals(root):  # ordered by name even if the clock goes back
            now = max(now, _time(info.timestamp + 1))
        home = top / f"{now.strftime(_TIME)}.{now.microsecond // 1000:03}Z-{command}"
        self = cls(root, home, disk, further)
        _remove_unbegun(top, disk)
        about = {
            "mqtool": 1,
            "command": command,
            "timestamp": int(now.timestamp() * 1000),
            "options": dict(options),
            "further": [str(path) for path in further],
            "fingerprint": fingerprint(root, further),
            "lock": _lock_time(root),
        }
        try:
            self._make_home(json.dumps(about).encode())
        except (MqtoolError, KeyboardInterrupt):
            self._forget()
            raise
        return self

    def _make_home(self, about: bytes) -> None:
        for folder in (self.home, self.home / "kept", self.workspace):
            self.disk.make_folder(folder)
        self._make("about", about)
        self._make("notes", b"")
        self.disk.sync_folder(self.home)
        # Last, since a journal without it has never begun; at its final length, in case the disk is full later.
        self._make("state", _STATE.pack(State.CUT_OFF.encode(), bytes(64), 0))
        self.disk.sync_folder(self.home)
        self.disk.sync_folder(self.home.parent)

    def _make(self, name: str, data: bytes) -> None:
        self.disk.create(self.home / name)
        self.disk.write(self.home / name, 0, data)
        self.disk.sync(self.home / name)

    # Changes

    def write(self, path: Path, at: int, data: bytes) -> None:
        """Write bytes at a position of a file of the store."""
        path = self._resolved(path)
        if not self._is_ours(path):
            self._note_was(path)
            self._note_bytes(path, at, at + len(data))
        self._write(path, at, data)

    def note(self, path: Path, start: int, stop: int) -> None:
        """Note a stretch of a file of the store before many writes to it, so that only one sync is needed."""
        path = self._resolved(path)
        if not self._is_ours(path):
            self._note_was(path)
            self._note_bytes(path, start, stop)

    def write_noted(self, path: Path, at: int, data: bytes) -> None:
        """Write bytes within a stretch that was noted."""
        path = self._resolved(path)
        if path not in self._was and not self._is_ours(path):
            raise ValueError(f"nothing is recorded for {path}")
        self._write(path, at, data)

    def fill(self, path: Path, at: int, data: bytes) -> None:
        """Write bytes into a file that this journal has created or that is in the workspace; nothing is noted."""
        path = self._resolved(path)
        if not self._is_ours(path):
            raise ValueError(f"{path} was not made by this repair")
        self._write(path, at, data)

    def truncate(self, path: Path, size: int) -> None:
        """Set the length of a file."""
        path = self._resolved(path)
        if not self._is_ours(path):
            self._note_was(path)
            self._note_bytes(path, size, path.stat().st_size)
        self._files[path] = None
        self._change(lambda: self.disk.truncate(path, size))

    def set_times(self, path: Path, ns: tuple[int, int]) -> None:
        """Set the times of access and change of a file, in nanoseconds: brokers expire segments by the second."""
        path = self._resolved(path)
        if not self._is_ours(path):
            self._note_was(path)
        self._files[path] = None
        self._change(lambda: self.disk.set_times(path, ns))

    def create(self, path: Path, size: int = 0) -> None:
        """Create a file of zeros, and its folder if it is missing; the file must not exist."""
        path = path.resolve()
        self.make_folder(path.parent)
        if not self._is_ours(path):
            self._note_place(path, moved=False)
        self._files[path] = None
        self._folders[path.parent] = None
        self._change(lambda: self.disk.create(path, size))

    def make_folder(self, path: Path) -> None:
        """Create a folder and its parents; an existing one stays."""
        path = path.resolve()
        if self._is_ours(path):
            self._change(lambda: self._make_folders(path))
        elif not path.exists():
            highest = path
            while not highest.parent.exists():
                highest = highest.parent
            self._note_place(highest, moved=False)
            self._change(lambda: self._make_folders(path))

    def remove(self, path: Path) -> None:
        """Move a file or folder out of the store; undo can put it back, and no copy is needed.

        A folder where a file system is mounted cannot be renamed: its contents are moved.

        Raises:
            NotFoundError: it is a link that leads nowhere.
        """
        if path.is_symlink() and not path.exists():
            raise NotFoundError(
                f"{path} is a link to {path.readlink()}, which does not exist: mount its disk, or remove the link, "
                "then repair again"
            )
        path = path.resolve()
        if self._is_mount_point(path):
            for child in inside(path):
                self.remove(child)
            return
        self._folders[path.parent] = None
        if self._is_ours(path):
            self._change(lambda: self.disk.remove_tree(path))
        else:
            self._move_out(path)

    def move_in(self, new: Path, path: Path) -> None:
        """Move a file or folder from the workspace to a place of the store; what is there is moved out first."""
        path = path.resolve()
        if self._is_mount_point(path):
            self.remove(path)
            for child in inside(new):
                self.move_in(child, path / child.name)
            return
        self.make_folder(path.parent)
        if self._is_ours(path):
            self._change(lambda: self.disk.remove_tree(path))
        elif path.exists():
            self._move_out(path)
        else:
            self._note_place(path, moved=False)
        self._change(lambda: self.disk.sync_tree(new))
        self._change(lambda: self.disk.move(new, path))

    def rename(self, renames: Sequence[tuple[Path, Path]]) -> None:
        """Rename files of the store within their folders; they may exchange names. At most once per journal.

        Args:
            renames: file and its new path, which is free, or becomes free by another rename.
        """
        pairs = [(path.resolve(), new.parent.resolve() / new.name) for path, new in renames]
        leaving = {path for path, _ in pairs}
        for path, new in pairs:
            if path.parent != new.parent:
                raise ValueError(f"{new} is in another folder than {path}")
            if new not in leaving and os.path.lexists(new):
                raise WriteError(f"{new} already exists")
            self._note_was(path.parent)
        self._note({"renamed": [[self._name(path), self._name(new)] for path, new in pairs]})
        self._sync_notes()
        for number, (path, _) in enumerate(pairs):
            self.disk.rename(path, _on_the_way(path, number))
        folders = dict.fromkeys(path.parent for path in leaving)
        for folder in folders:
            self.disk.sync_folder(folder)
        self.disk.create(self.home / _RENAMED)
        self.disk.sync_folder(self.home)
        for number, (path, new) in enumerate(pairs):
            self.disk.rename(_on_the_way(path, number), new)
        for folder in folders:  # before anything is noted of the files under their new names
            self.disk.sync_folder(folder)
        names = dict(pairs)
        self._files = {names.get(path, path): None for path in self._files}
        self._was -= {*leaving, *(new for _, new in pairs)}
        self._ours -= {new for _, new in pairs}
        self._ask_anew()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Delay the changes made within until the end, or until they are 16 MiB, with one sync for all.

        For many small changes. Until then the store is unchanged, so no change may depend on another.
        """
        self._waiting = []
        try:
            with contextlib.closing(self._before):
                yield
            self._carry_out_waiting()
        finally:
            self._waiting = self._pieces = None
            self._waiting_size = 0

    # The end

    def finish(self) -> None:
        """Sync everything, then mark the repair as done. What is left in the workspace is removed."""
        self._sync_notes()
        self.disk.sync_files([path for path in self._files if path.exists()])
        for path in self._folders:
            if path.exists():
                self.disk.sync_folder(path)
        looks = fingerprint(self.root, self._further).encode()
        self.disk.write(self.home / "state", 0, _STATE.pack(State.CUT_OFF.encode(), looks, self._end))
        self.disk.sync(self.home / "state")
        _set_state(self.home, State.DONE, self.disk)
        with contextlib.suppress(MqtoolError):
            self.disk.remove_tree(self.workspace)

    def take_back(self) -> None:
        """Undo all changes so far, after a failure, and remove this journal."""
        _take_back(self.root, self.home, self.disk)
        self._forget()

    # Inside

    def _forget(self) -> None:
        with contextlib.suppress(MqtoolError):
            self.disk.remove_tree(self.home / "state")  # first: without it the rest is meaningless
            self.disk.remove_tree(self.home)

    def _is_ours(self, path: Path) -> bool:
        known = self._known_ours.get(path)
        if known is None:
            known = any(ancestor in self._ours for ancestor in (path, *path.parents)) or path.is_relative_to(
                self.workspace
            )
            self._known_ours[path] = known
        return known

    def _resolved(self, path: Path) -> Path:
        """Return a path without links."""
        real = self._reals.get(path)
        if real is None:
            real = self._reals[path] = path.resolve()
        return real

    def _ask_anew(self) -> None:
        """Clear the cache of paths, as a name has changed."""
        self._known_ours.clear()
        self._reals.clear()

    def _is_mount_point(self, path: Path) -> bool:
        return path.is_dir() and path in mount_points()

    def _note_was(self, path: Path) -> None:
        """Note length and times of a file, or the times of a folder, before its first change."""
        if path in self._was or self._is_ours(path):
            return
        self._was.add(path)
        with reading(path):
            status = path.stat()
        fields: dict[str, Any] = {"was": self._name(path), "times": [status.st_atime_ns, status.st_mtime_ns]}
        if path.is_dir():
            self._folders[path] = None
        else:
            fields["size"] = status.st_size
        self._note(fields)

    def _note_bytes(self, path: Path, start: int, stop: int) -> None:
        """Note the bytes of a stretch, as far as the file goes; zeros take no space."""
        name = self._name(path)
        if self._waiting is not None and 0 < stop - start <= _FEW:
            data = self._before.read(path, start, stop - start)
            if data is not None:
                if len(data) < _LEAST_ZEROS or data != ZEROS[: len(data)]:
                    self._note_short(name, start, data)
                else:
                    self._note_zeros(name, start, start + len(data))
                return
        with reading(path):
            stop = min(stop, path.stat().st_size)
            at = hole = start  # zeros are between, and a hole after that
            for position, data in chunks(path, start, stop):
                is_zeros = data == ZEROS[: len(data)]
                if position > hole or not is_zeros:
                    self._note_zeros(name, at, hole, keep=True)
                    self._note_zeros(name, hole, position)
                    at = position
                if not is_zeros:
                    self._note_data(name, position, data)
                    at = position + len(data)
                hole = position + len(data)
            self._note_zeros(name, at, hole, keep=True)
            self._note_zeros(name, hole, stop)

    def _note_data(self, name: str, at: int, data: bytes) -> None:
        self._note_line(json.dumps({"bytes": name, "at": at}), data)
        self._write_frames(CHUNK)

    def _note_short(self, name: str, at: int, data: bytes) -> None:
        """Note one of many short stretches: those of one file, up to 1 MiB, share a frame."""
        if self._short and (self._short_name != name or self._short_size >= CHUNK):
            self._end_short()
        self._short_name = name
        self._short.append((at, data))
        self._short_size += len(data)

    def _end_short(self) -> None:
        short, self._short, self._short_size = self._short, [], 0
        ats, sizes = [at for at, _ in short], [len(data) for _, data in short]
        fields = {"bytes": self._short_name, "at": ats, "sizes": sizes}
        self._note_line(json.dumps(fields), b"".join(data for _, data in short))
        self._write_frames(CHUNK)

    def _note_zeros(self, name: str, start: int, stop: int, keep: bool = False) -> None:
        if start < stop:
            self._note({"zeros": name, "at": start, "size": stop - start, **({"keep": True} if keep else {})})

    def _note_place(self, path: Path, moved: bool) -> Path | None:
        """Note that ``path`` will be replaced; return where the original must be moved, if there is one."""
        if not moved and os.path.lexists(path):
            raise WriteError(f"{path} already exists")
        self._note_was(path.parent)
        fields = {"place": self._name(path)}
        if moved:
            self._note_was(path)
            fields["kept"] = str(self._kept)
            self._kept += 1
        self._note(fields)
        self._ours.add(path)
        self._ask_anew()
        return self.home / "kept" / fields["kept"] if moved else None

    def _move_out(self, path: Path) -> None:
        with reading(path):
            path.stat()
        kept = self._note_place(path, moved=True)
        assert kept is not None
        self._change(lambda: self.disk.move(path, kept))

    def _make_folders(self, path: Path) -> None:
        missing = []
        while not path.exists():
            missing.append(path)
            path = path.parent
        for folder in reversed(missing):
            self.disk.make_folder(folder)
            self._folders[folder] = self._folders[folder.parent] = None

    def _note(self, fields: Mapping[str, Any]) -> None:
        self._note_line(json.dumps(fields))

    def _note_line(self, line: str, data: bytes = b"") -> None:
        if self._short:
            self._end_short()
        content = b"%b\n%b" % (line.encode(), data)
        self._frames.append(_FRAME.pack(len(content), zlib.crc32(content)) + content)
        self.waiting_size += _FRAME.size + len(content)

    def _write_frames(self, at_least: int = 1) -> None:
        if self.waiting_size >= at_least:
            data = b"".join(self._frames)
            self.disk.write(self.home / "notes", self._end, data)
            self._end += len(data)
            self._frames.clear()
            self.waiting_size = 0

    def _sync_notes(self) -> None:
        if self._short:
            self._end_short()
        self._write_frames()
        if self._end != self._synced:
            self.disk.sync(self.home / "notes")
            self._synced = self._end

    def _change(self, change: Callable[[], object]) -> None:
        if self._waiting is None:
            self._sync_notes()
            change()
        else:
            self._waiting.append(change)
            self._pieces = None

    def _write(self, path: Path, at: int, data: bytes) -> None:
        """Write bytes; pending writes to one file are combined."""
        self._files[path] = None
        if self._waiting is None:
            self._sync_notes()
            self.disk.write(path, at, data)
            return
        if self._pieces is None or self._pieces[0] is not path:
            pieces: list[tuple[int, bytes]] = []
            self._change(lambda: self.disk.write_many(path, pieces))
            self._pieces = path, pieces
        self._pieces[1].append((at, data))
        self._waiting_size += len(data)
        if self._waiting_size >= _MAX_WAITING:
            self._carry_out_waiting()

    def _carry_out_waiting(self) -> None:
        self._sync_notes()
        changes, self._waiting, self._waiting_size = self._waiting or [], [], 0
        self._pieces = None
        for change in changes:
            change()

    def _name(self, path: Path) -> str:
        name = self._names.get(path)
        if name is None:
            name = str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)
            self._names[path] = name
        return name


# Undo


@contextlib.contextmanager
def holding(root: Path, disk: Disk) -> Iterator[None]:
    """Lock a store against brokers and other repairs; creates the folder for its journals.

    Raises:
        StoreInUseError: one of them is at work.
    """
    top = home_of(root)
    with hold(root / LOCK.name):
        if not top.exists():
            _make_top(top, root, disk)
        with hold_folder(top):
            try:
                yield
            finally:
                if not any(top.iterdir()) and not top.is_symlink():
                    with contextlib.suppress(MqtoolError):
                        disk.remove_folder(top)


def _make_top(top: Path, root: Path, disk: Disk) -> None:
    try:
        disk.make_folder(top)
    except NotPermittedError as error:
        raise NotPermittedError(
            f"cannot create {top}, which undo needs: have somebody with write access to {top.parent} create that "
            "folder for this user, or a link to one elsewhere"
        ) from error
    take_owner(top, root)  # the next repair may be run by the broker's user
    disk.sync_folder(top.parent)


def journals(root: Path) -> list[JournalInfo]:
    """Return the journals of a store, oldest first, without those that never began."""
    top = home_of(root)
    return [info for home in _homes(top) if (info := _info(home)) is not None]


def cut_off(root: Path) -> JournalInfo | None:
    """Return the repair or undo that was killed before its end, if there is one."""
    return next((info for info in journals(root) if info.state in (State.CUT_OFF, State.TAKING_BACK)), None)


def undo(root: Path, disk: Disk, name: str | None = None, force: bool = False) -> tuple[JournalInfo, bool]:
    """Undo a repair: bytes, lengths, names and times; also one that was killed, or whose undo was.

    Args:
        root: the store.
        disk: through which the store is changed.
        name: of the journal; without it the last repair. Only the last one that is not undone can be undone.
        force: even if the store has changed since.

    Returns:
        The journal, and whether the store is now as it was before the repair in every name, size and time.

    Raises:
        RepairFailedError: something could not be changed; the sentence says why and what to do.
        NotFoundError: there is no such repair.
        UsageError: a later repair must be undone first.
        StoreInUseError: a broker holds the store.
        StoreChangedError: the store has changed since the repair, and ``force`` is not set.
        BadDataError: the journal cannot be read.
    """
    root = root.resolve()
    info = to_undo(root, name)
    with holding(root, disk):
        if not force:
            refuse_changed(root, info)
        try:
            exact = _take_back(root, info.home, disk)
        except (WriteError, NotPermittedError) as error:
            then = "not everything was undone: run `mqtool undo` again when the cause is fixed"
            raise RepairFailedError(error, then) from error
        _sweep(info.home, disk)
    return info, exact


def to_undo(root: Path, name: str | None = None) -> JournalInfo:
    """Return the journal that ``undo`` would undo; raises like it."""
    open_ones = [info for info in journals(root) if info.state is not State.UNDONE]
    if name is not None and name not in {info.name for info in open_ones}:
        raise NotFoundError(f"{home_of(root)} has no repair {name} to undo: `mqtool undo --list` shows them")
    if not open_ones:
        parent = root.resolve().parent
        if journals(parent):
            raise UsageError(f"{root} is only part of a store: give {parent}")
        raise NotFoundError(f"there is no repair of {root} to undo")
    last = open_ones[-1]
    if name not in (None, last.name):
        raise UsageError(f"{last.name} came later: undo it first")
    return last


def refuse_changed(root: Path, info: JournalInfo) -> None:
    """Refuse to undo a repair after which the store has changed; raises ``StoreChangedError``."""
    about = _about(info.home)
    if info.state is State.DONE:
        _, after, _ = _STATE.unpack(read_file(info.home / "state"))
        changed = fingerprint(root, tuple(map(Path, about["further"]))).encode() != after
    else:
        changed = _lock_time(root) != about["lock"]
    if changed:
        raise StoreChangedError(
            f"the store has changed since {info.name}, perhaps because a broker ran on it: undoing that repair would "
            "mix old and new data; --force does it anyway"
        )


class _Removals:
    """Removes what a repair has created: small files at once; the rest is moved aside and removed in parallel.

    Freeing space may take the disk as long as filling it.
    """

    def __init__(self, home: Path, disk: Disk) -> None:
        self._aside = home / "kept"
        self._disk = disk
        self._thread = ThreadPoolExecutor(1)

    def begin(self, path: Path) -> None:
        """Begin to remove a file that is large."""
        if path.is_file() and path.stat().st_size >= _LARGE:
            names = (self._aside / f"made-{number}" for number in itertools.count())
            aside = next(name for name in names if not name.exists())
            with contextlib.suppress(CrossDeviceError):
                self._disk.rename(path, aside)
                self._thread.submit(self._disk.remove_tree, aside)  # what fails is removed with the journal

    def remove(self, path: Path) -> None:
        """Remove what is at a path."""
        self.begin(path)
        self._disk.remove_tree(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()


def _take_back(root: Path, home: Path, disk: Disk) -> bool:
    """Restore everything as noted, and return whether the store is as before. Only differences are written."""
    try:
        return _put_all_back(root, home, disk)
    except DiskFullError:  # until the files of the repair were removed, which is done by now
        return _put_all_back(root, home, disk)


def _put_all_back(root: Path, home: Path, disk: Disk) -> bool:
    with _Removals(home, disk) as removals:
        return _put_each_back(root, home, disk, removals)


def _put_each_back(root: Path, home: Path, disk: Disk, removals: _Removals) -> bool:
    notes = _notes(home)
    _set_state(home, State.TAKING_BACK, disk)
    was: list[tuple[Path, dict[str, Any]]] = []
    is_later = any("renamed" in fields for fields, _, _ in notes)  # than the renames
    is_done = is_later and not (home / _RENAMED).exists()
    path_of = functools.cache(lambda name: root / name)
    path_of_notes = home / "notes"
    if not is_later:
        for fields, _, _ in notes:
            if "place" in fields and "kept" not in fields:
                removals.begin(root / fields["place"])
    with contextlib.closing(_LastFile()) as noted, contextlib.closing(_LastFile()) as changed:
        for fields, at, size in reversed(notes):
            if "renamed" in fields or "place" in fields:
                changed.close()  # another file gets its name
            if "renamed" in fields:
                pairs = [(root / name, root / new) for name, new in fields["renamed"]]
                if not is_done:
                    _sync_taken_back(root, home, notes, disk)
                _rename_back(home, pairs, disk)
                old = {new: path for path, new in pairs}
                was = [(old.get(path, path), noted_then) for path, noted_then in was]
                is_later = False
            elif is_later and is_done and "was" not in fields:
                continue
            elif "place" in fields:
                kept = home / "kept" / fields["kept"] if "kept" in fields else None
                _put_back(root / fields["place"], kept, disk, removals)
            elif "was" in fields:
                was.append((root / fields["was"], fields))
            elif "bytes" in fields:
                path = path_of(fields["bytes"])
                pieces = _pieces_of(fields, noted.read(path_of_notes, at, size) or b"")
                pieces = [
                    piece for piece in pieces if changed.read(path, piece[0], len(piece[1])) not in (None, piece[1])
                ]
                if pieces:
                    disk.write_many(path, pieces)
            else:
                make_zeros = disk.erase if fields.get("keep") else disk.clear
                _restore_zeros(path_of(fields["zeros"]), fields["at"], fields["size"], make_zeros)
    # Times come last, and those of folders, which change with every name in them, after their contents. All is
    # synced after that: what changes a file between two syncs would make the second wait as long as the first.
    files = {path: fields for path, fields in was if "size" in fields and path.exists()}
    for path, fields in files.items():
        if path.stat().st_size != fields["size"]:
            disk.truncate(path, fields["size"])
        _put_times_back(path, fields["times"], disk)
    folders = {path: fields for path, fields in was if "size" not in fields and path.exists()}
    for path, fields in folders.items():
        _put_times_back(path, fields["times"], disk)
    disk.sync_files(files)
    for path in folders:
        disk.sync_folder(path)
    disk.sync_folder(home / "kept")  # a killed undo may have moved files back without this sync
    about = _about(home)
    _set_state(home, State.UNDONE, disk)
    exact: bool = fingerprint(root, tuple(map(Path, about["further"]))) == about["fingerprint"]
    return exact


def _sync_taken_back(root: Path, home: Path, notes: list[tuple[dict[str, Any], int, int]], disk: Disk) -> None:
    """Sync all that was noted after the renames and has been restored: it is not examined again."""
    paths: dict[Path, None] = {}
    for fields, _, _ in reversed(notes):
        if "renamed" in fields:
            break
        path = root / next(fields[kind] for kind in ("was", "place", "bytes", "zeros") if kind in fields)
        paths |= dict.fromkeys((path, path.parent))
    for path in paths:
        if path.is_file():
            disk.sync(path)
        elif path.is_dir():
            disk.sync_folder(path)
    disk.sync_folder(home / "kept")


def _rename_back(home: Path, pairs: list[tuple[Path, Path]], disk: Disk) -> None:
    """Give renamed files their old names, also from temporary ones."""
    folders = dict.fromkeys(path.parent for path, _ in pairs)
    if (home / _RENAMED).exists():
        for number, (path, new) in enumerate(pairs):
            if not (between := _on_the_way(path, number)).exists():
                disk.rename(new, between)
        for folder in folders:
            disk.sync_folder(folder)
        disk.remove(home / _RENAMED)
        disk.sync_folder(home)
    for number, (path, _) in enumerate(pairs):
        if (between := _on_the_way(path, number)).exists():
            disk.rename(between, path)
    for folder in folders:
        disk.sync_folder(folder)


def _on_the_way(path: Path, number: int) -> Path:
    return path.with_name(f".mqtool-renamed-{number}")


def _pieces_of(fields: Mapping[str, Any], data: bytes) -> list[tuple[int, bytes]]:
    """Return positions and bytes of a frame of bytes, which were all there at one time."""
    if "sizes" not in fields:
        return [(fields["at"], data)]
    stops = itertools.accumulate(fields["sizes"])
    sizes = zip(fields["at"], fields["sizes"], stops, strict=True)
    return [(at, data[stop - size : stop]) for at, size, stop in sizes]


def _put_back(path: Path, kept: Path | None, disk: Disk, removals: _Removals) -> None:
    if kept is None:
        removals.remove(path)
    elif kept.exists():
        removals.remove(path)
        disk.move(kept, path)
    for scrap in scraps(path):
        disk.remove_tree(scrap)


def _restore_zeros(path: Path, at: int, size: int, make_zeros: Callable[[Path, int, int], object]) -> None:
    if path.exists():
        stop = min(at + size, path.stat().st_size)
        for position, data in chunks(path, at, stop):
            if data != ZEROS[: len(data)]:
                make_zeros(path, position, stop - position)
                break


def _put_times_back(path: Path, times: list[int], disk: Disk) -> None:
    if path.stat().st_mtime_ns != times[1]:
        disk.set_times(path, (times[0], times[1]))


def _sweep(home: Path, disk: Disk) -> None:
    """Free the space of an undone journal; ``about`` stays, so that it is listed."""
    with contextlib.suppress(MqtoolError):
        for name in ("kept", "workspace", "notes"):
            disk.remove_tree(home / name)


def _notes(home: Path) -> list[tuple[dict[str, Any], int, int]]:
    """Return the frames of a journal, each with the place of its bytes; a torn one, and all after it, was never used.

    Raises:
        BadDataError: a frame is torn although the repair was done.
    """
    path = home / "notes"
    _, _, noted = _STATE.unpack(read_file(home / "state"))
    frames = []
    with reading(path), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        at = 0
        while at + _FRAME.size <= size:
            length, crc = _FRAME.unpack(file.read(_FRAME.size))
            if not 0 < length <= size - at - _FRAME.size:
                break
            content = file.read(length)
            if zlib.crc32(content) != crc:
                break
            line = content[: content.index(b"\n")]
            frames.append((_parsed(line.decode())[0], at + _FRAME.size + len(line) + 1, length - len(line) - 1))
            at += _FRAME.size + length
    if at < noted:
        raise BadDataError(f"{path} is damaged at byte {at:,}: nothing was undone")
    return frames


class _LastFile:
    """Reads stretches of files; the last file stays open, as many stretches of one file follow each other."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._descriptor = -1

    def read(self, path: Path, at: int, size: int) -> bytes | None:
        """Return bytes of a file, None if it is not there."""
        if path is not self._path and path != self._path:
            self.close()
            with reading(path):
                if not path.exists():
                    return None
                self._descriptor = open_file(path)
            self._path = path
        try:
            return os.pread(self._descriptor, size, at)
        except OSError as error:
            raise ReadError(f"cannot read {path}: {error.strerror or error}") from error

    def close(self) -> None:
        """Close the file."""
        if self._path is not None:
            os.close(self._descriptor)
            self._path = None


def _set_state(home: Path, state: State, disk: Disk) -> None:
    disk.write(home / "state", 0, state.encode())
    disk.sync(home / "state")


def _homes(top: Path) -> list[Path]:
    if not top.is_dir():
        return []
    with reading(top):
        return sorted(path for path in top.iterdir() if _NAME.fullmatch(path.name))


def _remove_unbegun(top: Path, disk: Disk) -> None:
    with contextlib.suppress(MqtoolError):
        for home in _homes(top):
            if _info(home) is None:
                disk.remove_tree(home)


def _info(home: Path) -> JournalInfo | None:
    """Return the description of a journal, None if it was killed before it began, so before any change."""
    try:
        state = read_file(home / "state")
    except NotFoundError:
        return None
    if len(state) < _STATE.size or not any(state):  # created, and lost by the disk
        return None
    letter = state[:1].decode("ascii", "replace")
    if letter not in set(State):
        raise BadDataError(f"{home / 'state'} is damaged: its first byte should be one of {', '.join(State)}")
    about = _about(home)
    size = sum(path.stat().st_blocks * 512 for path in home.rglob("*") if path.is_file())
    return JournalInfo(home.name, about["command"], about["timestamp"], State(letter), size, home)


def _about(home: Path) -> dict[str, Any]:
    try:
        about = json.loads(read_file(home / "about"))
    except ValueError as error:
        raise BadDataError(f"cannot read {home / 'about'}: {error}") from error
    if not isinstance(about, dict) or about.get("mqtool") != 1:
        raise BadDataError(f"{home / 'about'} was written by another version of mqtool: use that version")
    if not all(isinstance(about.get(name), kind) for name, kind in _ABOUT.items()):
        raise BadDataError(f"{home / 'about'} is damaged: it lacks {' or '.join(_ABOUT)}")
    if not 0 <= about["timestamp"] <= _MAX_TIMESTAMP:
        raise BadDataError(f"{home / 'about'} is damaged: its timestamp is impossible")
    return about


def _lock_time(root: Path) -> int | None:
    """Return when ``lock`` was last written; a broker does so at startup, a repair never does."""
    try:
        return (root / LOCK.name).stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _time(timestamp: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(timestamp / 1000, datetime.UTC)
