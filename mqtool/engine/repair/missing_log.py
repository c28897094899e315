"""A log, or a part of it, in folders that no setting names: a repair without it would give up its messages."""

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mqtool.engine.repair.placement import place, records_in
from mqtool.engine.store.commit_log import CommitLog
from mqtool.engine.store.disk import LOST_AND_FOUND
from mqtool.engine.store.file_kinds import CHECKPOINT, COMMIT_LOG, CONFIG, CONSUME_QUEUE, OF_STORE
from mqtool.engine.store.file_queue import is_segment_name
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.reader import StoreReader
from mqtool.engine.store.remote import is_remote
from mqtool.errors import BadDataError, MqtoolError, NotFoundError
from mqtool.formats import consume_queue

_DEEP = 4
_MAX_FOLDERS = 10_000
_LOOKED_AT = 3
_LONGEST = 8 << 20
_OTHERS = {LOST_AND_FOUND, *(kind.name for kind in OF_STORE if kind.levels and kind is not COMMIT_LOG)}
"""Folders of a store that do not hold a log."""
_OF_STORE = (CONSUME_QUEUE.name, CONFIG.name, CHECKPOINT.name)
"""Names that show that a folder is a store."""


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """The missing part of a store's log."""

    found: tuple[Path, ...]  # folders beside the store, or below it, with missing segments
    folders: tuple[Path, ...]  # those of the log as it is opened
    is_all: bool  # these have no segments, or only empty ones
    copies: tuple[Path, ...] = ()  # folders with segments of the same names as these: copies of the log
    lacking: tuple[Path, ...] = ()  # segments of copies that the log lacks
    links: tuple[Path, ...] = ()  # segments that are links which lead nowhere

    @property
    def setting(self) -> str:
        """The value of ``storePathCommitLog`` that names all folders; empty where none was found."""
        named = [] if self.is_all else [folder.resolve() for folder in self.folders]
        return ",".join(map(str, [*named, *self.found])) if self.found else ""

    @property
    def sentence(self) -> str:
        """The error message for it."""
        if self.links:
            first = self.links[0]
            return (
                f"{first} is a link to {first.readlink()}, which does not exist"
                + (f", and {len(self.links) - 1:,} more segments are such links" if len(self.links) > 1 else "")
                + ": mount its disk or restore the file; to proceed without its messages, remove the link"
            )
        if not self.is_all and not self.found:
            names, own = (
                ", ".join(path.name for path in self.lacking),
                ",".join(str(folder.resolve()) for folder in self.folders),
            )
            return (
                f"segments that the log lacks are in {_listed(self.copies)}, which also has others of the log's names: "
                f"if it is a copy of this log, copy {names} into {self.folders[0]}; to proceed without them, give "
                f"--set storePathCommitLog={own}"
            )
        if not self.is_all:
            return (
                f"segments that the log lacks are in {_listed(self.found)}: name all its folders with --set "
                f"storePathCommitLog={self.setting} (or -c broker.conf); to proceed without them, name only the "
                "others"
            )
        if self.found:
            return (
                f"there is no log in this store, but there is one in {_listed(self.found)}: if it belongs to this "
                f"store, give --set storePathCommitLog={self.setting} (or -c broker.conf)"
                + (f"; {_listed(self.copies)} hold segments of the same names" if self.copies else "")
            )
        return (
            "there is no log in this store, although it held messages: give the folders of its log with --set "
            "storePathCommitLog=FOLDER,.. (or -c broker.conf), or restore them"
        )


def _listed(folders: tuple[Path, ...]) -> str:
    return " and ".join(map(str, folders))


def require_log(reader: StoreReader) -> None:
    """Raise ``NotFoundError`` if a repair would treat the log, or a part of it, as lost although it is elsewhere."""
    if elsewhere := log_elsewhere(reader):
        raise NotFoundError(f"{reader.root}: {elsewhere.sentence}")


def log_elsewhere(reader: StoreReader) -> Elsewhere | None:
    """Return the missing part of a store's log, None if there is none, or it cannot be known.

    Folders named by a setting are assumed to be complete. Cost: a few records of each folder that may hold segments.
    """
    if reader.paths.single or reader.paths.dledger:
        return None
    log = reader.commit_log
    folders = tuple(reader.paths.commit_log)
    if links := tuple(stray.path for stray in log.strays if stray.leads_nowhere and is_segment_name(stray.path.name)):
        return Elsewhere((), folders, is_all=False, links=links)
    if not _has_segments(log):
        if not _held_messages(reader):
            return None
        of_log, copies = _apart(_folders_near(reader), set())
        return Elsewhere(of_log, folders, is_all=True, copies=copies)
    if "storePathCommitLog" in reader.config.settings or not log.file_size:
        return None
    missing = list(_missing(reader))
    if not missing:
        return None
    lacking = {
        folder: tuple(
            file
            for file in _segments_in(folder)
            if any(int(file.name) < stop and int(file.name) + log.file_size > first for first, stop in missing)
        )
        for folder in _folders_near(reader)
    }
    holding = [folder for folder, files in lacking.items() if files]
    of_log, copies = _apart(holding, {segment.path.name for segment in log.segments})
    if not holding:
        return None
    return Elsewhere(of_log, folders, is_all=False, copies=copies, lacking=lacking[copies[0]] if copies else ())


def check_has_log(reader: StoreReader) -> None:
    """Refuse a single file that is not a part of a commit log, where one is needed.

    Raises:
        NotFoundError: the store is such a file.
    """
    if reader.paths.single and not reader.commit_log.segments:
        raise NotFoundError(
            f"{reader.paths.single} is not a segment of a commit log: its name is not a 20-digit address; "
            "give the store that it belongs to"
        )


def require_messages(reader: StoreReader) -> None:
    """Refuse a store that held messages and whose log is gone, or is elsewhere, where messages are asked for.

    Raises:
        NotFoundError: it is such a store, or a single file that is not a part of a log.
    """
    check_has_log(reader)
    if not reader.commit_log.total_size and (gone := log_elsewhere(reader)):
        raise NotFoundError(f"{reader.root}: {gone.sentence}")


def _segments_in(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if is_segment_name(file.name))


def _apart(holding: list[Path], names: set[str]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return the folders of one log, and those with segments of the same names as its others or as ``names``."""
    of_log: list[Path] = []
    copies: list[Path] = []
    for folder in holding:
        names_in = {file.name for file in _segments_in(folder)}
        (of_log if names.isdisjoint(names_in) else copies).append(folder)
        names = names if folder in copies else names | names_in
    return tuple(of_log), tuple(copies)


def _has_segments(log: CommitLog) -> bool:
    """Return whether there is a non-empty segment, by its name or by its records."""
    if log.file_size and all(segment.start_offset % log.file_size for segment in log.segments):
        return bool(place(log).log.total_size)
    return bool(log.total_size)


def _held_messages(reader: StoreReader) -> bool:
    """Whether anything besides the log shows that there were messages."""
    queues = [*reader.consume_queues.values(), *reader.batch_consume_queues.values()]
    if any(queue.segments for queue in queues) or reader.rocksdb_queues is not None or reader.index_files:
        return True
    with contextlib.suppress(BadDataError):
        return reader.checkpoint is not None and reader.checkpoint.physical_timestamp > 0
    return False


def _missing(reader: StoreReader) -> Iterator[tuple[int, int]]:
    """Yield the ranges of addresses that are missing between segments, and those beyond them to which queues lead."""
    log = reader.commit_log
    at = log.min_offset
    for segment in log.segments:
        if segment.start_offset > at:
            yield at, segment.start_offset
        at = max(at, segment.start_offset + log.file_size)
    first, last = log.min_offset, at
    for queue in reader.consume_queues.values():
        count = queue.max_offset()
        for units in (queue.units(queue.first_offset, queue.first_offset + 1), queue.units(max(0, count - 1), count)):
            sizes = units["size"]
            known = units["physical_offset"][(sizes > 0) & (sizes < consume_queue.PRE_BLANK_SIZE)].astype(np.int64)
            first, last = min([first, *known.tolist()]), max([last, *(known + 1).tolist()])
    if first < log.min_offset:
        yield first, log.min_offset
    if last > at:
        yield at, last


def _folders_near(reader: StoreReader) -> list[Path]:
    """Return the folders below a store, and up to two levels beside it, whose segments are where their records say.

    For a store at a URL no folders are searched.
    """
    if is_remote(reader.root):
        return []
    known = {folder.resolve() for folder in reader.paths.commit_log}
    root = reader.root.resolve()
    folders = itertools.islice(itertools.chain(_below(root), _beside(root)), _MAX_FOLDERS)
    near = sorted(folder for folder in folders if folder not in known and _holds_log(folder))
    return sorted(near, key=lambda folder: not folder.is_relative_to(root))  # those below it first


def _below(root: Path) -> Iterator[Path]:
    for name, folders, _ in os.walk(root):
        folder = Path(name)
        depth = len(folder.relative_to(root).parts)
        folders[:] = [name for name in folders if depth < _DEEP and not (depth == 0 and name in _OTHERS)]
        if depth:
            yield folder.resolve()


def _beside(root: Path) -> Iterator[Path]:
    """Yield the folders beside a store, and those in them, except in other stores, which have their own logs."""
    for folder in _folders_in(root.parent):
        if folder != root:
            yield folder
            with contextlib.suppress(OSError):  # it may be readable only by root, like lost+found
                if not any((folder / name).exists() for name in _OF_STORE):
                    yield from _folders_in(folder)


def _folders_in(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            first_entries = itertools.islice(entries, _MAX_FOLDERS)
            return sorted(Path(entry.path).resolve() for entry in first_entries if entry.is_dir())
    except OSError:
        return []


def _holds_log(folder: Path) -> bool:
    try:
        files = [
            (path, path.stat().st_size) for path in folder.iterdir() if is_segment_name(path.name) and path.is_file()
        ]
        for path, size in sorted(files)[:_LOOKED_AT]:
            mapped = MappedFile(path, int(path.name), size)
            for table in records_in(mapped, 0, min(size, _LONGEST), limit=1):
                if table.column("physical_offset")[0] == table.column("position")[0]:
                    return True
                break
    except (OSError, MqtoolError):
        return False
    return False
