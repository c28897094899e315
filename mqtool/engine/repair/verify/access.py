"""The unreadable parts of a store: they are reported and left out of all other checks.

Cost: linear in the number of files; each is opened once, and nothing is read.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mqtool.engine.repair.checks import finding
from mqtool.engine.repair.findings import Finding
from mqtool.engine.store.disk import inside
from mqtool.engine.store.file_kinds import ABORT, COMMIT_LOG, COMPACTION, CONFIG, OF_STORE, ROCKSDB_STORE
from mqtool.engine.store.mapping import reading
from mqtool.engine.store.paths import StorePaths
from mqtool.engine.store.reader import StoreReader
from mqtool.engine.store.remote import RemotePath, is_there, scandir
from mqtool.engine.store.rocksdb import CONFIG_DATABASES
from mqtool.errors import MqtoolError, NotFoundError
from mqtool.formats.config_tables import TABLES


def leave_out_unread(reader: StoreReader) -> list[Finding]:
    """Make the reader leave out what this user may not read, or the disk cannot; return findings on that.

    Raises:
        NotPermittedError: it is of the commit log, without which nothing can be checked.
        ReadError: the same, as the disk fails.
        StoreChangedError: a segment of the log is gone, but not because of retention.
    """
    for segment in reader.commit_log.segments:
        try:
            _open(segment.path)
        except NotFoundError:
            reader.commit_log.let_go(segment)
    if reader.paths.is_part:
        return []
    findings = []
    for unread in _unread(reader):
        reader.leave_out(unread.of)
        text = f"it was not checked: {unread.reason}"
        findings.append(finding("STORE-UNREAD", text, file=reader.paths.relative(unread.path)))
    if _holds_more(reader):
        text = "it was not checked: mqtool does not read index entries, timers and transactions in RocksDB"
        findings.append(finding("STORE-UNREAD", text, file=reader.paths.relative(reader.paths.rocksdb_store)))
    return findings


class _Unread(NamedTuple):
    """An unreadable file or folder, and what cannot be checked without it: itself, or its folder."""

    path: Path
    of: Path
    reason: str


def _unread(reader: StoreReader) -> Iterator[_Unread]:
    paths = reader.paths
    for kind in OF_STORE:
        path = paths.place(kind)
        if kind is CONFIG:
            yield from _root(path) or _unread_config(paths)
        elif kind is COMPACTION:
            yield from _root(path) or _unread_tables(path)
        elif kind.levels and kind not in (COMMIT_LOG, ROCKSDB_STORE):  # these two are checked elsewhere
            yield from _root(path) or _unread_inside(path, kind.levels)
        elif not kind.levels and kind.is_opened and kind is not ABORT:  # only its existence matters
            yield from _unread_file(path, path)


def _root(folder: Path) -> list[_Unread]:
    """Report a folder that is not a folder, or cannot be listed."""
    if not is_there(folder):
        return []
    reason = None
    try:
        with reading(folder), scandir(folder) as entries:
            for entry in entries:
                entry.stat(follow_symlinks=False)
                break
    except NotFoundError:
        reason = "the link leads nowhere" if folder.is_symlink() else None
    except MqtoolError as error:
        reason = str(error)
    return [_Unread(folder, folder, reason)] if reason else []


def _unread_inside(folder: Path, depth: int = 1) -> Iterator[_Unread]:
    """Examine a readable folder, down to a number of levels."""
    if not folder.is_dir():
        return
    for path in inside(folder):
        if path.is_file():
            yield from _unread_file(path, folder)
        elif depth > 1:
            yield from _root(path) or _unread_inside(path, depth - 1)


def _unread_config(paths: StorePaths) -> Iterator[_Unread]:
    yield from _unread_tables(paths.config)
    yield from _unread_file(paths.timer_check, paths.timer_check)
    for name in CONFIG_DATABASES:
        yield from _root(paths.config / name) or _unread_inside(paths.config / name)


def _unread_tables(folder: Path) -> Iterator[_Unread]:
    for name in TABLES:
        path, backup = folder / name, folder / f"{name}.bak"
        if path.is_symlink() and not path.exists() and not backup.is_file():
            yield _Unread(path, path, "the link leads nowhere")
        for candidate in (path, backup):
            yield from _unread_file(candidate, candidate)


def _unread_file(path: Path, of: Path) -> Iterator[_Unread]:
    try:
        if path.is_file():
            _open(path)
    except NotFoundError:  # deleted just now
        return
    except MqtoolError as error:
        yield _Unread(path, of, str(error))


def _open(path: Path) -> None:
    if isinstance(path, RemotePath):
        return  # it is in the listing
    with reading(path):
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))


def _holds_more(reader: StoreReader) -> bool:
    """Return whether RocketMQ 5.4 or later keeps more than queues and tables in RocksDB."""
    folder = reader.paths.rocksdb_store
    if not folder.is_dir():
        return folder.is_symlink()
    try:
        with reading(folder):
            return any(path.suffix in (".sst", ".log", ".blob") and path.stat().st_size for path in inside(folder))
    except MqtoolError:  # then it is unknown
        return True
