"""``Disk``: the only way a repair or a running broker changes a store, one plain call of the system at a time.

Nothing here is mapped and nothing is synced by itself: whoever calls says when bytes and names must be on the disk.
Tests put a disk in its place that fails, dies or forgets.
"""

import contextlib
import ctypes
import errno
import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from mqtool.errors import MqtoolError, NotPermittedError, ReadError, WriteError

CHUNK = 1 << 20
"""How much is copied at once."""
LOST_AND_FOUND = "lost+found"
"""A folder that file systems keep where they are mounted."""
_MOUNTS = Path("/proc/self/mountinfo")
ZEROS = bytes(CHUNK)
"""A chunk of nothing."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_KEEP_SIZE, _PUNCH_HOLE, _ZERO_RANGE = 1, 2, 16
_FALLOCATE = getattr(ctypes.CDLL(None), "fallocate", None)  # of Linux alone
if _FALLOCATE:
    _FALLOCATE.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_SYNC_FILE_RANGE = getattr(ctypes.CDLL(None), "sync_file_range", None)  # of Linux alone
if _SYNC_FILE_RANGE:
    _SYNC_FILE_RANGE.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_BEGIN_WRITING = 2
_LARGE = 1 << 18
"""Bytes of a write that are worth to be sent to the disk at once."""
_MAX_PIECES = 512  # in one call: systems take 1,024
_PART, _GONE = b".mqtool-part", b".mqtool-gone"
_LONGEST_NAME = 255  # bytes
_KEPT = 200


class CrossDeviceError(WriteError):
    """A rename from one file system to another."""


class DiskFullError(WriteError):
    """There is no room for what was to be written."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system says about a change of ``path`` into an error with a sentence."""
    try:
        yield
    except OSError as error:
        raise _error(path, error) from error


def _error(path: Path, error: OSError) -> MqtoolError:
    if error.errno in _FULL:
        return DiskFullError(f"no space left for {path}: free some space there, then try again")
    if error.errno == errno.EROFS:
        return NotPermittedError(f"{path} is on a read-only file system: remount it for writing, then try again")
    if isinstance(error, PermissionError):
        return NotPermittedError(f"no permission to change {path}: run as the user the broker runs as")
    if error.errno == errno.EXDEV:
        return CrossDeviceError(f"{path} is on another file system")
    return WriteError(f"cannot change {path}: {error.strerror or error}")


class OpenFile:
    """A file of fixed length that stays open, to be written and read again and again.

    Raises:
        WriteError: as ``Disk`` raises it; a write that fails may have been done in part.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with writing(path):
            self._descriptor = os.open(path, os.O_RDWR)

    def write(self, at: int, data: bytes | bytearray) -> None:
        """Write all of ``data`` at a position; other processes see it at once."""
        try:
            written = os.pwrite(self._descriptor, data, at)
            while written < len(data):
                written += os.pwrite(self._descriptor, memoryview(data)[written:], at + written)
        except OSError as error:
            raise _error(self.path, error) from error

    def read(self, at: int, size: int) -> bytes:
        """Return ``size`` bytes at a position, fewer at the end of the file."""
        try:
            return os.pread(self._descriptor, size, at)
        except OSError as error:
            raise ReadError(f"cannot read {self.path}: {error.strerror or error}") from error

    def sync(self) -> None:
        """Return when the bytes written are on the disk; another thread may be writing more meanwhile.

        After it has failed once nothing written before is sure to be there, even if a later one does not fail.
        """
        with writing(self.path):
            os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Release the file."""
        os.close(self._descriptor)


class Disk:
    """Changes to files and folders, each whole when it returns, on the disk only after a sync.

    What is made gets the owner of the folder it is made in: a broker must be able to use what root has repaired.
    ``move``, ``copy`` and ``remove_tree`` are made of the calls above them.

    Raises:
        WriteError: the disk is full (the sentence says 'no space left'), or fails, or a name is not as expected.
        NotPermittedError: this user may not, or the file system is read-only.
    """

    def create(self, path: Path, size: int = 0) -> None:
        """Make a file of ``size`` zeros, sparse; it must not exist, nor does it where that fails."""
        with writing(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                try:
                    os.ftruncate(descriptor, size)
                finally:
                    os.close(descriptor)
            except BaseException:
                with contextlib.suppress(OSError):
                    path.unlink()  # else the next try would find it there
                raise
        take_owner(path, path.parent)

    def write(self, path: Path, at: int, data: bytes) -> None:
        """Write all of ``data`` at a position of a file that exists; a file that ends before becomes longer.

        The disk starts at once with what is large, so that a later sync, which alone is sure, waits the less for it.
        """
        _write(path, [(at, data)])

    def write_many(self, path: Path, pieces: Iterable[tuple[int, bytes]]) -> None:
        """Do the same at several positions of a file, one after another; it is opened once."""
        _write(path, pieces)

    def clear(self, path: Path, at: int, size: int) -> None:
        """Make ``size`` bytes of a file zeros, up to its end at most: a hole, where its file system has holes."""
        with writing(path):
            descriptor = os.open(path, os.O_WRONLY)
            try:
                if not _allocated_so(descriptor, _PUNCH_HOLE, at, size):
                    _write_zeros(descriptor, at, size)
            finally:
                os.close(descriptor)

    def erase(self, path: Path, at: int, size: int) -> None:
        """Make ``size`` bytes of a file zeros, up to its end at most, which keep their room on the disk."""
        with writing(path):
            descriptor = os.open(path, os.O_WRONLY)
            try:
                if not _allocated_so(descriptor, _ZERO_RANGE, at, size):
                    _write_zeros(descriptor, at, size)
            finally:
                os.close(descriptor)

    def begin(self, path: Path) -> None:
        """Have the disk start with what was written to a file; only ``sync`` waits for it, and is sure."""
        with writing(path):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                _begin(descriptor)
            finally:
                os.close(descriptor)

    def open(self, path: Path) -> OpenFile:
        """Open a file that is there, for who writes to it often."""
        return OpenFile(path)

    def truncate(self, path: Path, size: int) -> None:
        """Make a file end at ``size``, shorter or longer."""
        with writing(path):
            os.truncate(path, size)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file or folder another name, which must be free.

        Raises:
            CrossDeviceError: the two places lie on different file systems; nothing has changed.
        """
        with writing(target):
            if os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            source.rename(target)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        with writing(path):
            path.unlink()

    def make_folder(self, path: Path) -> None:
        """Make a folder; it must not exist, the one it is in must."""
        with writing(path):
            path.mkdir()
        take_owner(path, path.parent)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        with writing(path):
            path.rmdir()

    def set_times(self, path: Path, ns: tuple[int, int]) -> None:
        """Set the times of the last access and the last change, in nanoseconds."""
        with writing(path):
            os.utime(path, ns=ns)

    def sync(self, path: Path) -> None:
        """Return when the bytes of a file, its length and its times are on the disk."""
        _sync(path)

    def sync_folder(self, path: Path) -> None:
        """Return when the names in a folder are on the disk."""
        _sync(path)

    # Made of the above

    def move(self, source: Path, target: Path) -> None:
        """Rename for good, or copy to another file system: ``target`` is whole and synced before ``source`` goes.

        What a copy that was cut off leaves beside the two names (``scraps``) is removed by the next one.
        """
        try:
            self.rename(source, target)
        except CrossDeviceError:
            part, _ = scraps(target)
            _, gone = scraps(source)
            for path in (part, gone):
                self.remove_tree(path)
            self.copy(source, part)
            self.rename(part, target)
            self.sync_folder(target.parent)
            self.rename(source, gone)  # at once: half a folder must never stand under its name
            self.sync_folder(source.parent)
            self.remove_tree(gone)
        self.sync_folder(target.parent)
        self.sync_folder(source.parent)

    def copy(self, source: Path, target: Path) -> None:
        """Copy a file or folder with owner, rights and times, and sync all but its name; holes stay holes."""
        status = source.stat()
        if source.is_dir():
            self.make_folder(target)
            for path in sorted(source.iterdir()):
                self.copy(path, target / path.name)
        else:
            self.create(target, status.st_size)
            for at, data in chunks(source, 0, status.st_size):
                if data != ZEROS[: len(data)]:
                    self.write(target, at, data)
        take_owner(target, source)
        with writing(target):
            target.chmod(status.st_mode & 0o7777)
        self.set_times(target, (status.st_atime_ns, status.st_mtime_ns))
        (self.sync_folder if source.is_dir() else self.sync)(target)

    def remove_tree(self, path: Path) -> None:
        """Remove a file, or a folder with all that is in it, if it is there."""
        if path.is_dir() and not path.is_symlink():
            with writing(path):
                inside = sorted(path.iterdir())
            for entry in inside:
                self.remove_tree(entry)
            self.remove_folder(path)
        elif os.path.lexists(path):
            self.remove(path)

    def sync_files(self, paths: Collection[Path]) -> None:
        """Sync files; the disk starts with all of them before it is waited for one."""
        for path in paths:
            self.begin(path)
        for path in paths:
            self.sync(path)

    def sync_tree(self, path: Path) -> None:
        """Sync a file, or a folder with all that is in it."""
        if path.is_dir():
            for entry in sorted(path.iterdir()):
                self.sync_tree(entry)
            self.sync_folder(path)
        else:
            self.sync(path)


def scraps(path: Path) -> tuple[Path, Path]:
    """Return the names beside ``path`` under which ``move`` keeps what is not yet whole, and what is to go."""
    name = os.fsencode(path.name)
    if len(name) + len(_PART) > _LONGEST_NAME:  # the longest topics name folders
        name = name[:_KEPT] + hashlib.blake2b(name, digest_size=8).hexdigest().encode()
    part, gone = (path.with_name(os.fsdecode(name + suffix)) for suffix in (_PART, _GONE))
    return part, gone


def inside(folder: Path) -> list[Path]:
    """Return what is in a folder, except for what the file system itself keeps where it is mounted, for root alone."""
    return sorted(path for path in folder.iterdir() if path.name != LOST_AND_FOUND)


def mount_points() -> frozenset[Path]:
    """Return where file systems, or parts of them, are mounted; none where the system does not tell."""
    try:
        lines = _MOUNTS.read_bytes().splitlines()
    except OSError:
        return frozenset()
    return frozenset(Path(os.fsdecode(_unescaped(line.split(b" ")[4]))) for line in lines)


def _unescaped(name: bytes) -> bytes:
    return re.sub(rb"\\(\d{3})", lambda code: bytes([int(code[1], 8)]), name)


def mount_of(path: Path, points: Collection[Path]) -> Path:
    """Return which of ``mount_points`` holds what is, or would be, at ``path``.

    Nothing is renamed from one to another, also where both are parts of one file system.
    """
    path = path.resolve()
    return next((folder for folder in (path, *path.parents) if folder in points), Path(path.anchor))


def allocated(path: Path) -> int:
    """Return how many bytes of the disk a file takes, or a folder with all that is in it; holes take none."""
    if path.is_dir():
        return sum(map(allocated, inside(path)))
    return path.stat().st_blocks * 512 if path.exists() else 0


def chunks(path: Path, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """Yield position and bytes of a range of a file, up to 1 MiB at once; holes, which are zeros, are left out."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        at, stop = start, min(stop, os.fstat(descriptor).st_size)
        while at < stop:
            try:
                at = os.lseek(descriptor, at, os.SEEK_DATA)
            except OSError:  # nothing but a hole up to the end
                return
            end = min(stop, os.lseek(descriptor, at, os.SEEK_HOLE))
            while at < end:
                data = os.pread(descriptor, min(CHUNK, end - at), at)
                if not data:
                    return
                yield at, data
                at += len(data)
    finally:
        os.close(descriptor)


def _write(path: Path, pieces: Iterable[tuple[int, bytes]]) -> None:
    with writing(path):
        descriptor = os.open(path, os.O_WRONLY)
        try:
            for at, data in pieces:
                write_all(descriptor, at, memoryview(data))
                if len(data) >= _LARGE:
                    _begin(descriptor, at, len(data))
        finally:
            os.close(descriptor)


def write_all(descriptor: int, at: int, rest: memoryview) -> None:
    """Write all of ``rest`` at a position of a file, however little the system takes at once."""
    while rest:
        written = os.pwrite(descriptor, rest, at)
        rest, at = rest[written:], at + written


def write_pieces(descriptor: int, at: int, pieces: Sequence[memoryview]) -> None:
    """Write what follows one another at a position of a file, without bringing it together in memory."""
    for first in range(0, len(pieces), _MAX_PIECES):
        batch = pieces[first : first + _MAX_PIECES]
        size = sum(map(len, batch))
        written = os.pwritev(descriptor, batch, at)
        if written < size:
            write_all(descriptor, at + written, memoryview(b"".join(batch))[written:])
        at += size


def _allocated_so(descriptor: int, mode: int, at: int, size: int) -> bool:
    """Make zeros, in one of two ways, and return whether the system could."""
    return _FALLOCATE is not None and not _FALLOCATE(descriptor, mode | _KEEP_SIZE, at, size)


def _write_zeros(descriptor: int, at: int, size: int) -> None:
    for start in range(at, at + size, CHUNK):
        write_all(descriptor, start, memoryview(ZEROS)[: at + size - start])


def _begin(descriptor: int, at: int = 0, size: int = 0) -> None:
    """Have the disk start with bytes of a file, without a size with all up to its end."""
    if _SYNC_FILE_RANGE is not None:
        _SYNC_FILE_RANGE(descriptor, at, size, _BEGIN_WRITING)


def _sync(path: Path) -> None:
    with writing(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def take_owner(path: Path, model: Path) -> None:
    """Give ``path`` the owner of ``model``; only root can, and not everywhere."""
    if os.geteuid() == 0:
        status = model.stat()
        with contextlib.suppress(OSError):
            os.chown(path, status.st_uid, status.st_gid)
