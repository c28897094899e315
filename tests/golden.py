"""Stores that real brokers wrote, unpacked once and kept for every test process that follows.

``fixtures/README.md`` says where they come from. A store lies under the system's folder for temporary files, in a
folder named by the checksum of its archive, so that a changed fixture is a new folder. Tests only read it: files and
folders lose their write permission, and ``changes_since_unpacking`` names what was touched all the same (root may
write anywhere). ``tests/conftest.py`` asks after each test, and a store that was touched is unpacked again next time.
"""

import fcntl
import functools
import hashlib
import json
import lzma
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

FIXTURES = Path(__file__).parent.parent / "fixtures" / "golden"
GOLDEN_NAMES = sorted(path.name.removesuffix(".tar.xz") for path in FIXTURES.glob("*.tar.xz"))
KEEPS_ALL = {"fileReservedTime": "1000000", "cleanFileForciblyEnable": "false"}
"""Settings of a broker that deletes no old segment, whatever the hour is and however full the disk of the machine."""

_CHUNK = 1 << 16
_ZEROS = bytes(_CHUNK)

_opened: set[str] = set()


def golden_store(name: str) -> Path:
    """Return the folder of a golden store, to be read only; ``copy_of`` gives one to write to."""
    _opened.add(name)
    return _unpacked(name) / "store"


@functools.cache
def manifest(name: str) -> dict[str, Any]:
    """Return what RocketMQ's own classes read in a store. Every caller gets the same dict: leave it as it is."""
    content: dict[str, Any] = json.loads(lzma.decompress((FIXTURES / f"{name}.json.xz").read_bytes()))
    return content


def copy_of(name: str, into: Path) -> Path:
    """Copy a golden store to ``into / name`` with its modification times, writable, and return that folder.

    Holes stay holes, so the 160 MiB index of a DLedger store costs nothing.
    """
    target = into / name
    copy_store(golden_store(name), target)
    return target


def copy_store(source: Path, target: Path) -> None:
    """Copy a whole store to the new folder ``target``, as ``copy_of`` does with a golden one."""
    folders = []
    for folder, _, names in os.walk(source):
        made = target / Path(folder).relative_to(source)
        made.mkdir(parents=True)
        folders.append((Path(folder), made))
        for name in names:
            _copy_sparsely(Path(folder, name), made / name)
    for original, made in reversed(folders):  # a folder's time changes with each file made in it
        _copy_times(original, made)


def opened_stores() -> set[str]:
    """Return the names given to ``golden_store`` since the last call of this function."""
    names = set(_opened)
    _opened.clear()
    return names


def changes_since_unpacking(name: str) -> list[str]:
    """Return the paths in a golden store that were written, made or deleted since it was unpacked.

    A path alone says enough here: whoever wrote to a store that all tests share is at fault.
    """
    home = _unpacked(name)
    then, now = json.loads((home / "record.json").read_bytes()), _record(home)
    return sorted(path for path in then.keys() | now.keys() if then.get(path) != now.get(path))


@functools.cache
def _unpacked(name: str) -> Path:
    archive = FIXTURES / f"{name}.tar.xz"
    checksum = hashlib.sha256(archive.read_bytes()).hexdigest()[:16]
    home = _cache() / f"{name}-{checksum}"
    with home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may want the same store at the same time
        if not _is_untouched(home):
            _remove(home)
            _unpack(archive, home)
    return home


def _cache() -> Path:
    cache = Path(tempfile.gettempdir()) / f"mqtool-golden-{os.getuid()}"
    cache.mkdir(mode=0o700, exist_ok=True)
    if cache.stat().st_uid != os.getuid():
        raise PermissionError(f"{cache} belongs to somebody else; set TMPDIR to a folder of your own")
    return cache


def _is_untouched(home: Path) -> bool:
    try:
        then = json.loads((home / "record.json").read_bytes())
    except FileNotFoundError:
        return False
    return bool(then == _record(home))


def _record(home: Path) -> dict[str, list[int]]:
    # The change time betrays also those who put the modification time back; reading moves neither.
    # Of a folder only the modification time counts: it moves when a name in it comes or goes.
    record = {}
    for path in home.rglob("*"):
        status = path.stat()
        name = str(path.relative_to(home))
        record[name] = (
            [status.st_mtime_ns] if path.is_dir() else [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
        )
    record.pop("record.json", None)
    return record


def _unpack(archive: Path, home: Path) -> None:
    # Renamed when it is whole: a test run that is killed meanwhile leaves no half store under the final name.
    unfinished = Path(tempfile.mkdtemp(dir=home.parent, prefix=f"{home.name}."))
    store = unfinished / "store"
    store.mkdir()
    folders = []
    with tarfile.open(archive) as tar:
        for member in tar:
            path = store / member.name
            # tarfile's own number is a float, too coarse for nanoseconds.
            modified = int(Decimal(member.pax_headers["mtime"]) * 10**9)
            if member.isdir():
                path.mkdir(parents=True)
                folders.append((path, modified))
                continue
            content = tar.extractfile(member)
            if content is None:
                raise ValueError(f"{archive.name}: {member.name} is neither a file nor a folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_sparsely(path, member.size, _chunks(content))
            path.chmod(0o444)
            os.utime(path, ns=(modified, modified))
    for path, modified in reversed(folders):
        os.utime(path, ns=(modified, modified))
        path.chmod(0o555)
    store.chmod(0o555)
    (unfinished / "record.json").write_text(json.dumps(_record(unfinished)))
    unfinished.rename(home)


def _remove(home: Path) -> None:
    for folder, _, _ in os.walk(home):
        Path(folder).chmod(0o755)
    if home.exists():
        shutil.rmtree(home)


def _copy_sparsely(source: Path, target: Path) -> None:
    with source.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        _write_sparsely(target, size, _data_chunks(file.fileno(), size))
    _copy_times(source, target)


def _copy_times(source: Path, target: Path) -> None:
    status = source.stat()
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _data_chunks(descriptor: int, size: int) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < size:
        try:
            at = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError:  # nothing but a hole up to the end
            return
        end = os.lseek(descriptor, at, os.SEEK_HOLE)
        while at < end:
            chunk = os.pread(descriptor, min(_CHUNK, end - at), at)
            yield at, chunk
            at += len(chunk)


def _chunks(content: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    at = 0
    while chunk := content.read(_CHUNK):
        yield at, chunk
        at += len(chunk)


def _write_sparsely(path: Path, size: int, chunks: Iterable[tuple[int, bytes]]) -> None:
    with path.open("xb", buffering=0) as file:
        file.truncate(size)
        for at, chunk in chunks:
            if chunk != _ZEROS[: len(chunk)]:
                os.pwrite(file.fileno(), chunk, at)
