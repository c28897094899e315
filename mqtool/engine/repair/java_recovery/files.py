"""Files as a starting broker sees them: what it loads, refuses or deletes, and what it would write.

Nothing here changes the store. What a broker would write goes into one unnamed temporary file, block by block.

Cost: linear in the number of files; what would be written takes as much temporary disk space.
"""

import dataclasses
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mqtool.engine.store.disk import inside, write_all
from mqtool.engine.store.file_queue import segment_name
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.mapping import read_file, reading, refuse_special
from mqtool.engine.store.reader import StoreReader
from mqtool.engine.store.rocksdb import CONFIG_DATABASES, is_rocksdb
from mqtool.errors import FormatError, WriteError
from mqtool.formats import config_tables
from mqtool.formats.timer import WHEEL_SIZE

BLOCK = 16 << 10
TABLES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "consumerFilter.json")
"""Tables under config/ that every broker loads before its store."""
TABLES_OF_FIVE = ("topicQueueMapping.json", "consumerOrderInfo.json", "delayOffset.json", "timermetrics")
"""Those that brokers of 5.x load, too; 4.9 loads its delay levels with its store."""
_LONG = re.compile(r"[+-]?[0-9]+")


@dataclasses.dataclass(frozen=True)
class VersionRules:
    """The differences of one line of versions."""

    name: str
    reads_v2: bool
    """Reads records of 5.1 and later."""
    measures_first: bool
    """Compares a record's size with the rest of its segment before anything else."""
    skips_folders: bool
    """Ignores folders among segments, and deletes an empty last file."""
    batch_queues: bool
    """Reads queues of batch units."""
    trips_over_empty_files: bool
    """Fails on a queue whose last file is in use but empty."""
    dispatches_at_start: bool
    """Queues catch up in ``start()``; later versions catch up within ``load()``."""
    notes_confirm_offset: bool
    """Keeps the start of the last record in the checkpoint."""
    looks_back: int | None
    """How many segments it examines to find the one to begin with."""
    tags_in_index: bool
    has_timer: bool


_FIVE = {
    "reads_v2": True,
    "measures_first": True,
    "skips_folders": True,
    "batch_queues": True,
    "dispatches_at_start": False,
    "notes_confirm_offset": True,
    "has_timer": True,
}
RULES = {
    "4.9": VersionRules(
        "4.9",
        reads_v2=False,
        measures_first=False,
        skips_folders=False,
        batch_queues=False,
        trips_over_empty_files=False,
        dispatches_at_start=True,
        notes_confirm_offset=False,
        looks_back=None,
        tags_in_index=False,
        has_timer=False,
    ),
    "5.3": VersionRules("5.3", **_FIVE, trips_over_empty_files=True, looks_back=None, tags_in_index=False),
    "5.5": VersionRules("5.5", **_FIVE, trips_over_empty_files=False, looks_back=10, tags_in_index=True),
}
"""By the name that ``--as-broker`` takes; seen on 4.9.7, 5.3.3 and 5.5.0."""


class StartRefusedError(Exception):
    """A broker would not start on this store; the text says why.

    ``is_of_ext`` where a queue's extension is to blame, which is rebuilt with its queues.
    """

    def __init__(self, text: str, is_of_ext: bool = False) -> None:
        super().__init__(text)
        self.is_of_ext = is_of_ext


class EndlessError(Exception):
    """A broker would loop forever here; the text says why."""


class Scratch:
    """Blocks that a broker would change, in one unnamed temporary file.

    It needs about as much space as the broker would write, in the system's folder for temporary files.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._end = 0

    def add(self, block: bytes) -> int:
        """Append a block and return its position."""
        at, self._end = self._end, self._end + BLOCK
        self.write(at, block)
        return at

    def write(self, at: int, data: bytes) -> None:
        """Overwrite a part of a block.

        Raises:
            WriteError: there is no space for it.
        """
        try:
            if self._descriptor is None:
                with tempfile.TemporaryFile() as file:
                    self._descriptor = os.dup(file.fileno())
            write_all(self._descriptor, at, memoryview(data))
        except OSError as error:
            folder = tempfile.gettempdir()
            raise WriteError(
                f"cannot write working data to {folder} ({error.strerror}): set TMPDIR to another folder"
            ) from error

    def read(self, at: int, size: int) -> bytes:
        """Return a part of a block."""
        assert self._descriptor is not None
        return os.pread(self._descriptor, size, at)

    def close(self) -> None:
        """Free the space."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class DraftFile:
    """A file of the store, or one that a broker would create, overlaid with what it would write."""

    def __init__(self, path: Path, size: int, base: MappedFile | None, scratch: Scratch) -> None:
        self.path = path
        self.size = size
        self.base = base
        self._scratch = scratch
        self._blocks: dict[int, int] = {}

    @property
    def is_new(self) -> bool:
        """Whether a broker would create this file."""
        return self.base is None

    def read(self, at: int, size: int) -> bytes:
        """Return ``size`` bytes at a position, inside the file."""
        if not self._blocks:
            return self._base(at, size)
        parts = []
        stop = at + size
        while at < stop:
            number, within = divmod(at, BLOCK)
            step = min(BLOCK - within, stop - at)
            if number in self._blocks:
                parts.append(self._scratch.read(self._blocks[number] + within, step))
            else:
                later = number + 1
                while later * BLOCK < stop and later not in self._blocks:
                    later += 1
                step = min(later * BLOCK, stop) - at
                parts.append(self._base(at, step))
            at += step
        return b"".join(parts)

    def write(self, at: int, data: bytes) -> None:
        """Overlay the file with bytes."""
        done = 0
        while done < len(data):
            number, within = divmod(at + done, BLOCK)
            part = data[done : done + BLOCK - within]
            if number not in self._blocks:
                start = number * BLOCK
                block = bytearray(self._base(start, min(BLOCK, self.size - start)).ljust(BLOCK, b"\0"))
                block[within : within + len(part)] = part
                self._blocks[number] = self._scratch.add(bytes(block))
            else:
                self._scratch.write(self._blocks[number] + within, part)
            done += len(part)

    def changes(self) -> Iterator[tuple[int, bytes]]:
        """Yield what differs from the store: position and bytes, in order."""
        for number in sorted(self._blocks):
            start = number * BLOCK
            size = min(BLOCK, self.size - start)
            new, old = self._scratch.read(self._blocks[number], size), self._base(start, size)
            differs = np.flatnonzero(np.frombuffer(new, np.uint8) != np.frombuffer(old, np.uint8))
            if len(differs):
                first, last = int(differs[0]), int(differs[-1]) + 1
                yield start + first, new[first:last]

    def _base(self, at: int, size: int) -> bytes:
        data = self.base.read(at, size) if self.base else b""
        return data.ljust(size, b"\0")


def load_segments(
    folders: list[Path], file_size: int, rules: VersionRules, place: str
) -> tuple[list[MappedFile], list[Path]]:
    """Return the segments that a broker would load, and the empty files that it would delete.

    Raises:
        StartRefusedError: there is an entry that it does not accept (spec 1.7).
    """
    segments: list[MappedFile] = []
    removed: list[Path] = []
    listed = sorted((entry for folder in folders for entry in _entries(folder)), key=lambda entry: entry[0].name)
    for number, (path, size, is_folder) in enumerate(listed):
        if is_folder and rules.skips_folders:
            continue
        if not is_folder and rules.skips_folders and size == 0 and number == len(listed) - 1:
            removed.append(path)
            continue
        if size != file_size or is_folder:
            kind = "a folder" if is_folder else f"{size:,} bytes long"
            raise StartRefusedError(
                f"{path.name} in the {place} is {kind}, and every entry must have {file_size:,} bytes"
            )
        if not _LONG.fullmatch(path.name):
            raise StartRefusedError(f"the name of {path.name} in the {place} is not a number")
        segments.append(MappedFile(path, int(path.name), size))
    return segments, removed


def refused_timer_files(reader: StoreReader) -> Iterator[tuple[Path, str]]:
    """Yield the timer's files with which a broker of 5.x does not start, and why: wheel and checkpoint, then the log.

    None if the timer is off. What the files hold does not matter to a start, nor a file that is missing. (Asked of
    brokers of 5.3.3 and 5.5.0.)
    """
    paths = reader.paths
    if reader.config.settings.get("timerWheelEnable", "true").lower() != "true":
        return
    for path in (paths.timer_wheel, paths.timer_check):
        if path.is_dir():
            yield path, f"{path.name} is a folder"
    size = paths.timer_wheel.stat().st_size if paths.timer_wheel.is_file() else 0
    if size not in (0, WHEEL_SIZE):
        yield paths.timer_wheel, f"the timer wheel has {size:,} bytes, but must have {WHEEL_SIZE:,}"
    file_size = reader.timer_log.file_size if reader.timer_log else 0
    listed = sorted(_entries(paths.timer_log))
    for number, (path, size, is_folder) in enumerate(listed):
        if is_folder or (size == 0 and number == len(listed) - 1):
            continue
        if size != file_size:
            yield path, f"{path.name} in the timer log has {size:,} bytes, but must have {file_size:,}"
        elif not _LONG.fullmatch(path.name):
            yield path, f"the name of {path.name} in the timer log is not a number"


def refused_table(reader: StoreReader, rules: VersionRules) -> str | None:
    """Return why a broker fails on its tables before it reads the store, None if it does not.

    If it cannot read a table it uses the backup; if it cannot read that either, it does not start. It starts
    without a table of which the backup is missing or empty.
    """
    folder = reader.paths.config
    if any(is_rocksdb(folder / name) for name in CONFIG_DATABASES):
        return None
    for name in TABLES + TABLES_OF_FIVE * rules.has_timer:
        problem = None
        for path in (folder / name, folder / f"{name}.bak"):
            data = read_file(path) if path.is_file() else b""
            try:
                config_tables.read_table(name, data)
                problem = None
                break
            except FormatError as error:
                problem = f"cannot read {reader.paths.relative(path)}: {error}" if data else None
        if problem:
            return problem
    return None


def _entries(folder: Path) -> list[tuple[Path, int, bool]]:
    if not folder.is_dir():
        return []
    with reading(folder), os.scandir(folder) as entries:
        listed = []
        for entry in entries:
            if entry.is_symlink() and not Path(entry.path).exists():  # to Java an empty file
                listed.append((Path(entry.path), 0, False))
                continue
            refuse_special(Path(entry.path), entry.stat())
            listed.append((Path(entry.path), entry.stat().st_size, entry.is_dir()))
        return listed


def queue_folders(folder: Path) -> Iterator[tuple[str, int, Path]]:
    """Yield topic, queue id and folder of each queue that a broker would load from ``consumequeue``."""
    if not folder.is_dir():
        return
    with reading(folder):
        for topic in filter(Path.is_dir, inside(folder)):
            for queue in sorted(path for path in topic.iterdir() if path.is_dir()):
                if _LONG.fullmatch(queue.name) and -1 << 31 <= int(queue.name) < 1 << 31:
                    yield topic.name, int(queue.name), queue


class DraftSegment(DraftFile):
    """A segment of a queue while a broker starts.

    ``used`` is the broker's write position in bytes. ``is_first``: this process created it as the first of
    its queue; only such a file is filled with pre-blank units.
    """

    def __init__(self, path: Path, start_offset: int, size: int, base: MappedFile | None, scratch: Scratch) -> None:
        super().__init__(path, size, base, scratch)
        self.start_offset = start_offset
        self.used = size if base else 0
        self.is_first = False

    @classmethod
    def new(cls, folder: Path, start_offset: int, size: int, scratch: Scratch) -> "DraftSegment":
        """Return a segment that a broker would create."""
        return cls(folder / segment_name(start_offset), start_offset, size, None, scratch)

    @property
    def used_offset(self) -> int:
        """The address of the write position."""
        return self.start_offset + self.used


def cut_segments(segments: list[DraftSegment], offset: int, file_size: int) -> list[DraftSegment]:
    """Set write positions to an address as in a truncation by a broker; return and drop the segments after it."""
    removed = [segment for segment in segments if segment.start_offset > offset]
    for segment in segments:
        if segment.start_offset <= offset < segment.start_offset + file_size:
            segment.used = offset % file_size
    segments[:] = [segment for segment in segments if segment.start_offset <= offset]
    return removed


def index_entries_of(folder: Path) -> list[tuple[Path, int, bool]]:
    """Return path, size and whether it is a folder for each entry that a broker treats as an index file, in order."""
    return [entry for entry in sorted(_entries(folder), key=lambda entry: entry[0]) if _LONG.fullmatch(entry[0].name)]
