"""The lock of a store's broker: whether another process holds it, and holding it during repairs."""

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from mqtool.engine.store.disk import writing
from mqtool.engine.store.remote import RemotePath
from mqtool.errors import StoreInUseError

# struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")
# An open file description lock: an ordinary one ends when this process closes any other descriptor of the file.
_SET_LOCK = getattr(fcntl, "F_OFD_SETLK", fcntl.F_SETLK)

_MACHINE_ONLY = {"fuse", "virtiofs", "9p", "vboxsf", "afs"}
_NETWORK = ("nfs", "cifs", "smb", "lustre")
_WITHOUT_LOCKS = {"nolock", "local_lock=all", "local_lock=posix", "nobrl", "localflock"}

_ours: set[tuple[int, int]] = set()


def is_locked(path: Path) -> bool:
    """Return whether another process holds a lock on the first byte of ``path``; False if that is unknown.

    Locks that this process ``hold``s do not count.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        if _identity(descriptor) in _ours:
            return False
        question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, question))[0]
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return bool(kind != fcntl.F_UNLCK)


def shows_locks(path: Path) -> bool:
    """Return whether a lock of a broker on any machine on ``path`` is visible here; object storage has none."""
    if isinstance(path, RemotePath):
        return False
    try:
        device = path.parent.stat().st_dev
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace")
    except OSError:
        return True
    number = f"{os.major(device)}:{os.minor(device)}"
    lines = [line for line in mounts.splitlines() if line.split(" ", 3)[2:3] == [number]]
    return not any(map(_locks_stay_here, lines)) and _can_be_asked(path)


def _locks_stay_here(mount: str) -> bool:
    """Return whether locks on the mount of a ``mountinfo`` line are limited to one machine.

    With FUSE the kernel keeps them unless the server takes part, which is not visible.
    """
    fields, _, rest = mount.partition(" - ")
    kind, _, more = rest.partition(" ")
    options = {*fields.split(" ")[5].split(","), *more.rpartition(" ")[2].split(",")}
    if kind in _MACHINE_ONLY or kind.startswith("fuse."):
        return True
    return kind.startswith(_NETWORK) and not options.isdisjoint(_WITHOUT_LOCKS)


def _can_be_asked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return True  # nothing to ask about
    try:
        fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


@contextlib.contextmanager
def hold(path: Path) -> Iterator[None]:
    """Hold the lock on the first byte of ``path``, so that no broker starts in the meantime; without a file no lock.

    Nothing is written. If a file system has no locks, which brokers there find, too, none is held.

    Raises:
        StoreInUseError: a broker holds it, or another repair.
        NotPermittedError: this user may not write to the file.
    """
    if not path.exists():
        yield
        return
    with writing(path):
        descriptor = os.open(path, os.O_RDWR)
    try:
        _lock(descriptor, path)
        _ours.add(_identity(descriptor))
        yield
    finally:
        _ours.discard(_identity(descriptor))
        os.close(descriptor)


@contextlib.contextmanager
def hold_folder(path: Path) -> Iterator[None]:
    """Lock a folder against other callers of this function; brokers do not know this lock.

    Raises:
        StoreInUseError: another process holds it.
    """
    with writing(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreInUseError(f"another repair is running in {path}: wait for it") from error
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.fcntl(descriptor, _SET_LOCK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise StoreInUseError(
                f"{path} is locked: a broker or another repair is running on this store; stop it first"
            ) from error


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
