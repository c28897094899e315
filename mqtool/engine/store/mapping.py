"""Files as arrays in memory, and system errors as errors with a sentence."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import stat
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeAlias

from mqtool.engine.store.remote import RemotePath
from mqtool.errors import NotFoundError, NotPermittedError, ReadError
from mqtool.late import np, npt

_SPECIAL = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
Bytes: TypeAlias = "npt.NDArray[np.uint8]"
HUGE_PAGE = 2 << 20
_HUGE_PAGES: int | None = getattr(mmap, "MADV_HUGEPAGE", None)
_NO_RESERVE = int(getattr(mmap, "MAP_NORESERVE", 0))


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert system errors on ``path`` to errors with a sentence."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFoundError(f"{path} does not exist") from error
    except PermissionError as error:
        raise NotPermittedError(f"no permission to read {path}: run as the user the broker runs as") from error
    except OSError as error:
        raise ReadError(f"cannot read {path}: {error.strerror or error}") from error


def refuse_special(path: Path, status: os.stat_result) -> None:
    """Refuse what is neither a file nor a folder: reading or copying it could wait forever.

    Args:
        path: of it.
        status: of it, or of what it is a link to.

    Raises:
        ReadError: it is a named pipe, a socket or a device.
    """
    kind = _SPECIAL.get(stat.S_IFMT(status.st_mode))
    if kind:
        raise ReadError(f"{path} is {kind} where a file belongs: move it away, then run the command again")


def open_file(path: Path) -> int:
    """Return a descriptor of a file, for reading.

    Raises:
        OSError: it cannot be opened.
        ReadError: it is a named pipe, a socket or a device.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a named pipe would wait for a writer
    try:
        refuse_special(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_file(path: Path, limit: int = 1 << 30) -> bytes:
    """Return the contents of a small file of a store.

    Raises:
        MqtoolError: it cannot be read, or is larger than ``limit``.
    """
    with reading(path), _opened(path) as file:
        return _contents(path, file, limit)


def read_named_file(path: Path, limit: int = 1 << 30) -> bytes:
    """Return the contents of a small file that the user names, which may be a pipe or a device.

    Raises:
        MqtoolError: it cannot be read, or is larger than ``limit``.
    """
    with reading(path), path.open("rb") as file:
        return _contents(path, file, limit)


def _contents(path: Path, file: BinaryIO, limit: int) -> bytes:
    data = file.read(limit + 1)
    if len(data) > limit:
        raise ReadError(f"{path} is larger than {limit:,} bytes")
    return data


def _opened(path: Path) -> BinaryIO:
    return path.open("rb") if isinstance(path, RemotePath) else os.fdopen(open_file(path), "rb")


_C = ctypes.CDLL(None, use_errno=True)
_C.mmap.restype = ctypes.c_void_p
_C.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_C.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_C.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_FAILED = ctypes.c_void_p(-1).value


def map_file(descriptor: int, size: int) -> Bytes:
    """Map a file for reading; it stays mapped while the array is referenced.

    Not with the module ``mmap``, which keeps a descriptor per file, of which a process has a thousand.
    """
    address = _C.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    memory = (ctypes.c_uint8 * size).from_address(address)
    weakref.finalize(memory, _C.munmap, address, size).atexit = False
    array = np.frombuffer(memory, np.uint8)
    array.flags.writeable = False
    return array


def memory_for(size: int) -> Bytes:
    """Return as many zeros as a file has bytes, to be written; they take memory only where something was written."""
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    if _HUGE_PAGES is not None:
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(_HUGE_PAGES)  # takes a quarter of the time of small ones
    return np.frombuffer(memory, np.uint8)


def give_back_memory() -> None:
    """Return freed memory to the system, after memory-intensive work (glibc keeps it)."""
    with contextlib.suppress(AttributeError):  # another C library
        _C.malloc_trim(0)


def data_of(descriptor: int, start: int, stop: int) -> int | None:
    """Return where data begins in a file from a position on, None if there is only a hole up to ``stop``."""
    try:
        at = os.lseek(descriptor, start, os.SEEK_DATA)
    except OSError as error:
        return None if error.errno == errno.ENXIO else start  # a file system without holes
    return at if at < stop else None


def data_ranges(descriptor: int, size: int) -> list[tuple[int, int]]:
    """Return the ranges of a file that are no holes, in order, up to a size."""
    ranges = []
    at = 0
    while at < size and (start := data_of(descriptor, at, size)) is not None:
        try:
            at = min(os.lseek(descriptor, start, os.SEEK_HOLE), size)
        except OSError:  # a file system without holes
            at = size
        ranges.append((start, at))
    return ranges


def release(data: Bytes, start: int, stop: int) -> None:
    """Release the memory of a range of a mapped file; it is loaded again when it is accessed."""
    page, base = mmap.PAGESIZE, data.ctypes.data
    low, high = -(-(base + start) // page) * page, (base + stop) // page * page
    if low < high:
        # Not mmap's own method, which holds the interpreter's lock.
        _C.madvise(low, high - low, mmap.MADV_DONTNEED)
