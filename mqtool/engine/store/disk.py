"""``Disk``: the only way a repair or a running broker changes a store, one plain call of the system at a time.

Nothing here is mapped or synced implicitly: the caller decides when bytes and names must be on the disk.
Tests replace it by disks that fail, kill the process or lose data.
"""

import contextlib
import ctypes
import errno
import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from mqtool.engine.store.mapping import open_file
from mqtool.errors import MqtoolError, NotPermittedError, ReadError, StoreChangedError, WriteError

CHUNK = 1 << 20
"""How much is copied at once."""
LOST_AND_FOUND = "lost+found"
"""A folder that file systems have at their mount point."""
_MOUNTS = Path("/proc/self/mountinfo")
ZEROS = bytes(CHUNK)
"""A chunk of nothing."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_KEEP_SIZE, _PUNCH_HOLE, _ZERO_RANGE = 1, 2, 16
_FALLOCATE = getattr(ctypes.CDLL(None), "fallocate", None)  # only on Linux
if _FALLOCATE:
    _FALLOCATE.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_SYNC_FILE_RANGE = getattr(ctypes.CDLL(None), "sync_file_range", None)  # only on Linux
if _SYNC_FILE_RANGE:
    _SYNC_FILE_RANGE.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_BEGIN_WRITING = 2
_WRITING = os.O_WRONLY | os.O_NONBLOCK  # a named pipe would wait for a reader
_LARGE = 1 << 18
"""From this size on the disk starts writing at once."""
_MAX_PIECES = 512  # in one call; systems allow 1,024
_PART, _GONE = b".mqtool-part", b".mqtool-gone"
_LONGEST_NAME = 255  # bytes
_KEPT = 200


class CrossDeviceError(WriteError):
    """A rename from one file system to another."""


class DiskFullError(WriteError):
    """There is no space left on the disk."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert system errors on a change of ``path`` to errors with a sentence."""
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
    """A file of fixed length that stays open for many reads and writes.

    Raises:
        WriteError: as ``Disk`` raises it; a failed write may have been done in part.
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
        """Return ``size`` bytes at a position.

        Raises:
            StoreChangedError: the file has become shorter.
            ReadError: the disk fails.
        """
        try:
            data = os.pread(self._descriptor, size, at)
        except OSError as error:
            raise ReadError(f"cannot read {self.path}: {error.strerror or error}") from error
        if len(data) < size:  # fewer units would look like the end of a queue
            raise StoreChangedError(f"{self.path} was truncated: another process is changing it")
        return data

    def sync(self) -> None:
        """Wait until the bytes written are on the disk; another thread may write more in the meantime.

        After a failure nothing written before is sure to be on the disk, even if a later sync succeeds.
        """
        with writing(self.path):
            os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Release the file."""
        os.close(self._descriptor)


class Disk:
    """Changes to files and folders, each complete on return, but on the disk only after a sync.

    New files get the owner of their folder: a broker must be able to use what root has repaired.
    ``move``, ``copy`` and ``remove_tree`` are composed of the other calls.

    Raises:
        WriteError: the disk is full ('no space left'), or fails, or a name unexpectedly exists or is missing.
        NotPermittedError: this user may not, or the file system is read-only.
    """

    def create(self, path: Path, size: int = 0) -> None:
        """Create a sparse file of ``size`` zeros; it must not exist, and on failure it does not."""
        with writing(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                try:
                    os.ftruncate(descriptor, size)
                finally:
                    os.close(descriptor)
            except BaseException:
                with contextlib.suppress(OSError):
                    path.unlink()  # otherwise the next attempt would find it
                raise
        take_owner(path, path.parent)

    def write(self, path: Path, at: int, data: bytes) -> None:
        """Write all of ``data`` at a position of an existing file, which grows if necessary.

        The disk starts writing large data at once, so that a later sync, which is still needed, takes less time.
        """
        _write(path, [(at, data)])

    def write_many(self, path: Path, pieces: Iterable[tuple[int, bytes]]) -> None:
        """Do the same at several positions of a file, one after another; it is opened once."""
        _write(path, pieces)

    def clear(self, path: Path, at: int, size: int) -> None:
        """Zero ``size`` bytes of a file, up to its end at most; leaves a hole if the file system supports holes."""
        with writing(path):
            descriptor = os.open(path, _WRITING)
            try:
                if not _allocated_so(descriptor, _PUNCH_HOLE, at, size):
                    _write_zeros(descriptor, at, size)
            finally:
                os.close(descriptor)

    def erase(self, path: Path, at: int, size: int) -> None:
        """Zero ``size`` bytes of a file, up to its end at most, which stay allocated on the disk."""
        with writing(path):
            descriptor = os.open(path, _WRITING)
            try:
                if not _allocated_so(descriptor, _ZERO_RANGE, at, size):
                    _write_zeros(descriptor, at, size)
            finally:
                os.close(descriptor)

    def begin(self, path: Path) -> None:
        """Make the disk start writing a file's data; only ``sync`` waits for it, and guarantees it."""
        with writing(path):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                _begin(descriptor)
            finally:
                os.close(descriptor)

    def open(self, path: Path) -> OpenFile:
        """Open an existing file for frequent writes."""
        return OpenFile(path)

    def truncate(self, path: Path, size: int) -> None:
        """Set the length of a file."""
        with writing(path):
            os.truncate(path, size)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or folder; the new name must be free.

        Raises:
            CrossDeviceError: the names are on different file systems; nothing has changed.
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
        """Sync the bytes of a file, its length and its times."""
        _sync(path)

    def sync_folder(self, path: Path) -> None:
        """Sync the names in a folder."""
        _sync(path)

    # Composed of the above

    def move(self, source: Path, target: Path) -> None:
        """Rename durably, or copy to another file system: ``target`` is complete and synced before ``source`` goes.

        What an interrupted copy leaves beside the two names (``scraps``) is removed by the next one.
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
            self.rename(source, gone)  # atomic: an incomplete folder must never have its name
            self.sync_folder(source.parent)
            self.remove_tree(gone)
        self.sync_folder(target.parent)
        self.sync_folder(source.parent)

    def copy(self, source: Path, target: Path) -> None:
        """Copy a file or folder with owner, permissions and times, and sync all but its name; holes stay holes."""
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
        """Remove a file, or a folder with its contents, if it exists."""
        if path.is_dir() and not path.is_symlink():
            with writing(path):
                inside = sorted(path.iterdir())
            for entry in inside:
                self.remove_tree(entry)
            self.remove_folder(path)
        elif os.path.lexists(path):
            self.remove(path)

    def sync_files(self, paths: Collection[Path]) -> None:
        """Sync files; the disk starts writing all of them before the first wait."""
        for path in paths:
            self.begin(path)
        for path in paths:
            self.sync(path)

    def sync_tree(self, path: Path) -> None:
        """Sync a file, or a folder with its contents."""
        if path.is_dir():
            for entry in sorted(path.iterdir()):
                self.sync_tree(entry)
            self.sync_folder(path)
        else:
            self.sync(path)


def scraps(path: Path) -> tuple[Path, Path]:
    """Return the names beside ``path`` that ``move`` uses for incomplete copies, and for what will be removed."""
    name = os.fsencode(path.name)
    if len(name) + len(_PART) > _LONGEST_NAME:  # folders of the longest topics
        name = name[:_KEPT] + hashlib.blake2b(name, digest_size=8).hexdigest().encode()
    part, gone = (path.with_name(os.fsdecode(name + suffix)) for suffix in (_PART, _GONE))
    return part, gone


def inside(folder: Path) -> list[Path]:
    """Return the contents of a folder, without what the file system keeps at its mount point for root."""
    return sorted(path for path in folder.iterdir() if path.name != LOST_AND_FOUND)


def mount_points() -> frozenset[Path]:
    """Return the mount points of file systems, or parts of them; none if the system does not list them."""
    try:
        lines = _MOUNTS.read_bytes().splitlines()
    except OSError:
        return frozenset()
    return frozenset(Path(os.fsdecode(_unescaped(line.split(b" ")[4]))) for line in lines)


def _unescaped(name: bytes) -> bytes:
    return re.sub(rb"\\(\d{3})", lambda code: bytes([int(code[1], 8)]), name)


def mount_of(path: Path, points: Collection[Path]) -> Path:
    """Return the one of ``mount_points`` on which ``path`` is, or would be.

    Nothing can be renamed from one to another, even if both are parts of one file system.
    """
    path = path.resolve()
    return next((folder for folder in (path, *path.parents) if folder in points), Path(path.anchor))


def allocated(path: Path) -> int:
    """Return how many bytes of the disk a file takes, or a folder with all that is in it; holes take none."""
    if path.is_dir():
        return sum(map(allocated, inside(path)))
    return path.stat().st_blocks * 512 if path.exists() else 0


def chunks(path: Path, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """Yield position and bytes of a range of a file, up to 1 MiB at once, without holes, which are zeros."""
    descriptor = open_file(path)
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
        descriptor = os.open(path, _WRITING)
        try:
            for at, data in pieces:
                write_all(descriptor, at, memoryview(data))
                if len(data) >= _LARGE:
                    _begin(descriptor, at, len(data))
        finally:
            os.close(descriptor)


def write_all(descriptor: int, at: int, rest: memoryview) -> None:
    """Write all of ``rest`` at a position of a file, even if the system accepts only parts."""
    while rest:
        written = os.pwrite(descriptor, rest, at)
        rest, at = rest[written:], at + written


def write_pieces(descriptor: int, at: int, pieces: Sequence[memoryview]) -> None:
    """Write consecutive pieces at a position of a file, without joining them in memory."""
    for first in range(0, len(pieces), _MAX_PIECES):
        batch = pieces[first : first + _MAX_PIECES]
        size = sum(map(len, batch))
        written = os.pwritev(descriptor, batch, at)
        if written < size:
            write_all(descriptor, at + written, memoryview(b"".join(batch))[written:])
        at += size


def _allocated_so(descriptor: int, mode: int, at: int, size: int) -> bool:
    """Zero a range, in one of two ways, and return whether the system supports that."""
    return _FALLOCATE is not None and not _FALLOCATE(descriptor, mode | _KEEP_SIZE, at, size)


def _write_zeros(descriptor: int, at: int, size: int) -> None:
    for start in range(at, at + size, CHUNK):
        write_all(descriptor, start, memoryview(ZEROS)[: at + size - start])


def _begin(descriptor: int, at: int = 0, size: int = 0) -> None:
    """Make the disk start writing bytes of a file, without a size up to its end."""
    if _SYNC_FILE_RANGE is not None:
        _SYNC_FILE_RANGE(descriptor, at, size, _BEGIN_WRITING)


def _sync(path: Path) -> None:
    with writing(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # nothing waits at a named pipe
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
