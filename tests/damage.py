"""Damage to stores and bytes: the 88 recorded cases, and any number of made-up ones.

Damage to a store is a list of operations, each a dict as ``fixtures/golden/damaged.json.xz`` spells it; those from
``insert`` on are our own. The strategies below draw operations of the same kind, so that a failing example prints as
one that can be kept.
"""

import contextlib
import functools
import hashlib
import json
import lzma
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.golden import FIXTURES, copy_of, copy_store, golden_store

Operation = dict[str, Any]
Snapshot = dict[str, tuple[int, str, int]]


@dataclass(frozen=True)
class DamageCase:
    """A golden store, what is done to it, and what each version of the broker made of the result."""

    name: str
    base: str
    ops: list[Operation]
    verdicts: dict[str, dict[str, Any]]  # by version; golden/README.md of the fixtures tells the keys

    def store(self, into: Path) -> Path:
        """Make the damaged store below ``into`` and return its folder."""
        store = copy_of(self.base, into)
        apply_ops(store, self.ops)
        return store


@functools.cache
def cases() -> list[DamageCase]:
    """Return the recorded cases, controls included, in the order of the file."""
    rows = json.loads(lzma.decompress((FIXTURES / "damaged.json.xz").read_bytes()))
    return [DamageCase(row["case"], row["base"], row["ops"], row["verdicts"]) for row in rows]


def cases_of_the_log() -> list[DamageCase]:
    """Return those that change the commit log."""
    return [case for case in cases() if any("commitlog" in str(op.get("file", "")) for op in case.ops)]


def apply_ops(store: Path, ops: Iterable[Operation]) -> None:
    """Carry out operations on a store, in order."""
    for op in ops:
        OPERATIONS[op["op"]](store, op)


def with_noise(store: Path) -> Path:
    """Put bytes that are not a record after the last message of a store, and return the store."""
    segment = max(path for path in (store / "commitlog").iterdir() if any(path.read_bytes()))
    _overwrite(segment, len(segment.read_bytes().rstrip(b"\0")), bytes(range(1, 41)))
    return store


def _write(store: Path, op: Operation) -> None:
    _overwrite(store / op["file"], op["at"], bytes.fromhex(op["hex"]))


def _zero(store: Path, op: Operation) -> None:
    _overwrite(store / op["file"], op["at"], bytes(op["len"]))


def _copy(store: Path, op: Operation) -> None:
    with (store / op["file"]).open("rb") as file:
        file.seek(op["at"])
        data = file.read(op["len"])
    _overwrite(store / op["to"], op["to_at"], data)


def _overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        if at + len(data) > path.stat().st_size:
            raise ValueError(f"{path.name} ends before byte {at + len(data):,}; resize it first")
        file.seek(at)
        file.write(data)


def _resize(store: Path, op: Operation) -> None:
    os.truncate(store / op["file"], op["size"])


def _create(store: Path, op: Operation) -> None:
    with (store / op["file"]).open("wb") as file:  # replaces one that is there: the abort file of a killed broker
        file.truncate(op["size"])


def _delete(store: Path, op: Operation) -> None:
    path = store / op["path"]
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _mkdir(store: Path, op: Operation) -> None:
    (store / op["path"]).mkdir(parents=True)


def _insert(store: Path, op: Operation) -> None:
    """Shift what follows; ``keep``: the file keeps its length and loses its end."""
    path = store / op["file"]
    data = path.read_bytes()
    changed = data[: op["at"]] + bytes.fromhex(op["hex"]) + data[op["at"] :]
    path.write_bytes(changed[: len(data)] if op["keep"] else changed)


def _excise(store: Path, op: Operation) -> None:
    """Take bytes out and shift what follows; ``keep``: the file keeps its length and ends in zeros."""
    path = store / op["file"]
    data = path.read_bytes()
    changed = data[: op["at"]] + data[op["at"] + op["len"] :]
    path.write_bytes(changed.ljust(len(data), b"\0") if op["keep"] else changed)


def _rename(store: Path, op: Operation) -> None:
    _free(store / op["to"])
    (store / op["path"]).rename(store / op["to"])


def _swap(store: Path, op: Operation) -> None:
    one, other, aside = store / op["path"], store / op["to"], store / "aside"
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def _swap_bytes(store: Path, op: Operation) -> None:
    data = [_read(store / op[file], op[at], op["len"]) for file, at in (("file", "at"), ("to", "to_at"))]
    _overwrite(store / op["file"], op["at"], data[1])
    _overwrite(store / op["to"], op["to_at"], data[0])


def _duplicate(store: Path, op: Operation) -> None:
    _free(store / op["to"])
    shutil.copy2(store / op["path"], store / op["to"])


def _graft(store: Path, op: Operation) -> None:
    """Put a file or folder of another golden store into this one."""
    source, target = golden_store(op["base"]) / op["path"], store / op["to"]
    _free(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        copy_store(source, target)
    else:
        shutil.copyfile(source, target)


def _read(path: Path, at: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(at)
        return file.read(size)


def _free(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


OPERATIONS: dict[str, Callable[[Path, Operation], None]] = {
    "write": _write,
    "zero": _zero,
    "copy": _copy,
    "resize": _resize,
    "create": _create,
    "delete": _delete,
    "mkdir": _mkdir,
    "insert": _insert,
    "excise": _excise,
    "rename": _rename,
    "swap": _swap,
    "swap bytes": _swap_bytes,
    "duplicate": _duplicate,
    "graft": _graft,
}


@contextlib.contextmanager
def damaged(store: Path, *ops: Operation) -> Iterator[Path]:
    """Damage single files of a store and put them back afterwards: cheaper than a copy for each example.

    Takes operations on a file that is there: write, zero, copy and resize.
    """
    paths = {store / op["to" if op["op"] == "copy" else "file"] for op in ops}
    before = [(path, path.read_bytes(), path.stat()) for path in paths]
    try:
        apply_ops(store, ops)
        yield store
    finally:
        for path, data, status in before:
            path.write_bytes(data)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def snapshot(store: Path) -> Snapshot:
    """Return size, SHA-256 and modification time (ns) of every file and folder, by its path in the store.

    Equal before and after, a command has only read. A folder has size 0 and no checksum; its time
    gives away a file that was made and deleted again.
    """
    return {str(path.relative_to(store)): _state(path) for path in [store, *sorted(store.rglob("*"))]}


def _state(path: Path) -> tuple[int, str, int]:
    status = path.stat()
    if path.is_dir():
        return 0, "", status.st_mtime_ns
    with path.open("rb") as file:
        return status.st_size, hashlib.file_digest(file, "sha256").hexdigest(), status.st_mtime_ns


def flips(store: Path, pattern: str = "**/*") -> st.SearchStrategy[Operation]:
    """Draw a write that changes one byte of one file; the files are those that match ``pattern``."""

    def flip(path: Path) -> st.SearchStrategy[Operation]:
        return st.builds(
            lambda at, mask: _flip(store, path, at, mask),
            st.integers(0, path.stat().st_size - 1),
            st.integers(1, 255),
        )

    return st.sampled_from(_files(store, pattern)).flatmap(flip)


def _flip(store: Path, path: Path, at: int, mask: int) -> Operation:
    with path.open("rb") as file:
        file.seek(at)
        changed = bytes([file.read(1)[0] ^ mask])
    return {"op": "write", "file": str(path.relative_to(store)), "at": at, "hex": changed.hex()}


def zeroes(store: Path, pattern: str = "**/*") -> st.SearchStrategy[Operation]:
    """Draw zeros over a stretch of one file, from some bytes to some pages long."""

    def zero(path: Path) -> st.SearchStrategy[Operation]:
        size = path.stat().st_size
        return st.builds(
            lambda at, length: {
                "op": "zero", "file": str(path.relative_to(store)), "at": at, "len": min(length, size - at),
            },
            st.integers(0, size - 1),
            st.sampled_from([4, 20, 200, 4096, 20_000]),
        )  # fmt: skip

    return st.sampled_from(_files(store, pattern)).flatmap(zero)


def copies(store: Path, pattern: str = "**/*") -> st.SearchStrategy[Operation]:
    """Draw a copy of a stretch of one file over a stretch of another one, or of the same."""

    def copy(source: Path, target: Path, at: int, to_at: int, length: int) -> Operation:
        at, to_at = at % source.stat().st_size, to_at % target.stat().st_size
        length = min(length, source.stat().st_size - at, target.stat().st_size - to_at)
        files = {"file": str(source.relative_to(store)), "to": str(target.relative_to(store))}
        return {"op": "copy", "at": at, "len": length, "to_at": to_at, **files}

    file = st.sampled_from(_files(store, pattern))
    place = st.integers(0, 1 << 20)
    return st.builds(copy, file, file, place, place, st.sampled_from([100, 480, 4096, 9000]))


def cuts(store: Path, pattern: str = "**/*") -> st.SearchStrategy[Operation]:
    """Draw a resize that makes one file shorter; the files are those that match ``pattern``."""

    def cut(path: Path) -> st.SearchStrategy[Operation]:
        return st.integers(0, path.stat().st_size - 1).map(
            lambda size: {"op": "resize", "file": str(path.relative_to(store)), "size": size}
        )

    return st.sampled_from(_files(store, pattern)).flatmap(cut)


def _files(store: Path, pattern: str) -> list[Path]:
    return [path for path in sorted(store.glob(pattern)) if path.is_file() and path.stat().st_size]


def flipped(data: bytes) -> st.SearchStrategy[bytes]:
    """Draw ``data`` with one byte changed."""

    def flip(at: int, mask: int) -> bytes:
        return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]

    return st.builds(flip, st.integers(0, len(data) - 1), st.integers(1, 255))


def cut(data: bytes) -> st.SearchStrategy[bytes]:
    """Draw the beginning of ``data``, of any length short of the whole."""
    return st.integers(0, len(data) - 1).map(lambda size: data[:size])
