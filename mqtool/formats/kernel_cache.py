"""The kernels as machine code: numba makes it once for a processor, later runs load it without numba.

The code is in the user's cache, under a name that stands for the kernels' sources and the processor; where nothing
can be written there, in a folder of the user's own among temporary files, and where neither can be, it is made in each
run. ``kernels`` has the functions of ``kernels.py``, on arrays.
"""

import contextlib
import ctypes
import errno
import functools
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import llvmlite

from mqtool.formats.native import Code, Kernels, load, processor, source_of

_SOURCES = ("kernels.py", "compiled.py", "clmul.py", "native.py")

# Of mallopt(3).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3


def _key() -> str:
    parts = [llvmlite.__version__.encode(), *(text.encode() for text in processor())]
    parts += [source_of(name) for name in _SOURCES]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]


def _places() -> Iterator[Path]:
    """Yield where code may be kept: in the user's cache, if a home is known, and among temporary files."""
    name = f"kernels-{_key()}"
    with contextlib.suppress(RuntimeError):
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mqtool" / name
    with contextlib.suppress(OSError):
        yield Path(tempfile.gettempdir()) / f"mqtool-{os.geteuid()}" / name


def _make_folder(folder: Path) -> None:
    """Make the folder of a place.

    Raises:
        OSError: it cannot be made or written to, or lies among temporary files and others than this user may write to
            it: what is loaded from there is run.
    """
    if folder.parent != Path(tempfile.gettempdir()):
        folder.mkdir(parents=True, exist_ok=True)
        return
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(errno.EPERM, "others can write to it")


def _read(path: Path) -> Code | None:
    """Return what an earlier run stored; None for anything that is not whole."""
    try:
        checksum, _, text = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    if hashlib.sha256(text).hexdigest().encode() != checksum:
        return None
    head, _, data = text.partition(b"\n")
    return Code(**json.loads(head), data=data)


def _write(path: Path, code: Code) -> None:
    head = json.dumps({"symbols": code.symbols, "missing": code.missing}).encode()
    text = head + b"\n" + code.data
    _make_folder(path.parent)
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
    Path(name).rename(path)


def is_stored() -> bool:
    """Return whether an earlier run left complete code for this processor."""
    return _stored() is not None


@functools.cache
def _stored() -> Code | None:
    for path in _places():
        with contextlib.suppress(OSError):
            if path.exists():
                _make_folder(path.parent)  # which asks whose it is
                if code := _read(path):
                    return code
    return None


def why_not_kept() -> str | None:
    """Return why code that is compiled cannot be kept for later runs, None if it can."""
    reasons = []
    for path in _places():
        try:
            _make_folder(path.parent)
            with tempfile.TemporaryFile(dir=path.parent):
                return None
        except OSError as error:
            reasons.append(f"{path.parent} cannot be used ({error.strerror or error})")
    return f"{', '.join(reasons)}: give this user write access, or set XDG_CACHE_HOME to another folder"


@functools.cache
def kernels() -> Kernels:
    """Return the kernels; the first time ever they are compiled, which takes some seconds."""
    _keep_memory()
    code = _stored()
    if code is None:
        from mqtool.formats import compiled

        code = compiled.code()
        for path in _places():
            with contextlib.suppress(OSError):
                _write(path, code)
                _stored.cache_clear()
                break
    return load(code)


def _keep_memory() -> None:
    """Have glibc keep what is freed: tables come and go by the thousand, and new pages cost more than filling them."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, size in ((_TRIM_THRESHOLD, 256 << 20), (_MMAP_THRESHOLD, 32 << 20), (_TOP_PAD, 16 << 20)):
            mallopt(parameter, size)
