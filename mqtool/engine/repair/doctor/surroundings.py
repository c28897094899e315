"""The surroundings of a store: time, disks, processes and users, collected in one place."""

import collections
import contextlib
import dataclasses
import grp
import os
import pwd
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from mqtool.errors import NotFoundError


@dataclasses.dataclass(frozen=True)
class FileSystem:
    """The file system of a folder, as ``statvfs`` reports it."""

    size: int
    free: int  # bytes, those kept for root included
    usable: int  # bytes free for a broker that is not root
    free_inodes: int | None = None  # None if the file system has no such limit
    read_only: bool = False

    @property
    def used_ratio(self) -> float:
        """The used fraction, rounded up to whole percents as brokers do."""
        used = self.size - self.free
        whole = used + self.usable
        return -(-used * 100 // whole) / 100 if whole else 0.0


@dataclasses.dataclass(frozen=True)
class User:
    """A user whose access to files is checked."""

    uid: int
    gid: int
    name: str
    groups: frozenset[int] = frozenset()

    def may(self, status: os.stat_result, bits: int) -> bool:
        """Return whether the mode of a file gives the rights ``bits`` (4 read, 2 write, 1 enter); ignores ACLs."""
        if self.uid == 0:
            return True
        if status.st_uid == self.uid:
            return (status.st_mode >> 6) & bits == bits
        if status.st_gid in self.groups | {self.gid}:
            return (status.st_mode >> 3) & bits == bits
        return status.st_mode & bits == bits


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What rules about a store need to know about the machine."""

    now: int
    """Milliseconds since 1970."""
    disks: Mapping[Path, FileSystem]
    """By folder of the store."""
    processes: Mapping[int, str]
    """The command line of each process that runs, by its number."""
    user: User
    """The user that the broker runs as."""


def look_around(folders: Iterable[Path], user: str | None = None) -> Surroundings:
    """Collect the surroundings of the folders of a store, the store's root first.

    Args:
        folders: whose disks matter.
        user: the user that the broker runs as; without it the owner of most files of the store.

    Raises:
        NotFoundError: there is no such user.
    """
    folders = list(folders)
    return Surroundings(
        now=time.time_ns() // 1_000_000,
        disks={folder: disk for folder in folders if (disk := _disk(folder))},
        processes=_processes(),
        user=_user_named(user) if user else _owner(folders[0]),
    )


def _disk(folder: Path) -> FileSystem | None:
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return FileSystem(
        size=status.f_blocks * status.f_frsize,
        free=status.f_bfree * status.f_frsize,
        usable=status.f_bavail * status.f_frsize,
        free_inodes=status.f_favail if status.f_files else None,
        read_only=bool(status.f_flag & os.ST_RDONLY),
    )


def _processes() -> dict[int, str]:
    commands = {}
    with contextlib.suppress(OSError):
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    text = Path(entry.path, "cmdline").read_bytes()
                    commands[int(entry.name)] = text.replace(b"\0", b" ").decode("utf-8", "replace").strip()
    return commands


def _owner(root: Path) -> User:
    """Return the owner of most files below a folder."""
    owners: collections.Counter[tuple[int, int]] = collections.Counter()
    for folder, _, names in os.walk(root):
        for name in (".", *names):
            with contextlib.suppress(OSError):
                status = Path(folder, name).stat()
                owners[status.st_uid, status.st_gid] += 1
    if not owners:
        return _user_of(os.geteuid(), os.getegid())
    return _user_of(*owners.most_common(1)[0][0])


def _user_named(name: str) -> User:
    try:
        entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except KeyError:
        if name.isdigit():
            return User(int(name), int(name), name)
        raise NotFoundError(f"user {name} does not exist on this machine") from None
    return _user_of(entry.pw_uid, entry.pw_gid)


def _user_of(uid: int, gid: int) -> User:
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return User(uid, gid, str(uid))
    groups = frozenset(group.gr_gid for group in grp.getgrall() if name in group.gr_mem)
    return User(uid, gid, name, groups)
