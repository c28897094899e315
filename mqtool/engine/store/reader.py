"""``StoreReader``: the one read-only door to a store, for commands, checks, Spark and pulls."""

import collections
import contextlib
import copy
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from mqtool.engine.store import file_kinds, rocksdb
from mqtool.engine.store.commit_log import CommitLog, Gap
from mqtool.engine.store.consume_queue import BatchConsumeQueue, ConsumeQueue, ConsumeQueueExt
from mqtool.engine.store.disk import LOST_AND_FOUND
from mqtool.engine.store.file_queue import FileQueue
from mqtool.engine.store.index_file import DEFAULT_SHAPE, IndexFile, Shape, infer_shape
from mqtool.engine.store.index_file import NAME_WIDTH as INDEX_NAME_WIDTH
from mqtool.engine.store.locks import is_locked, shows_locks
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.mapping import read_file, reading, refuse_special
from mqtool.engine.store.packed import READ_PACKED, ArchivePath, is_archive, opened_archive
from mqtool.engine.store.paths import StoreConfig, StorePaths
from mqtool.engine.store.queues_on_demand import MAX_QUEUES, QueuesOnDemand
from mqtool.engine.store.remote import RemotePath, place, scandir
from mqtool.errors import BadDataError, FormatError, MqtoolError, NotFoundError, UsageError
from mqtool.formats import commit_log, scan
from mqtool.formats.layout import Layout
from mqtool.formats.message import Message, message_of
from mqtool.formats.property_names import DELAY
from mqtool.formats.record_head import read_start
from mqtool.formats.topics import SCHEDULE_TOPIC, has_folder

QueueKey = tuple[str, int]
_Queue = TypeVar("_Queue", bound=FileQueue)
_KINDS: dict[type[FileQueue], file_kinds.FileKind] = {
    ConsumeQueue: file_kinds.CONSUME_QUEUE,
    BatchConsumeQueue: file_kinds.BATCH_CONSUME_QUEUE,
    ConsumeQueueExt: file_kinds.CONSUME_QUEUE_EXT,
}
CLOCK_STEP_MS = 600_000
"""Store timestamps follow the log except for steps of the broker's clock up to this."""


class StoreReader:
    """Everything in a store, read-only: nothing is created, locked or written.

    The parts are opened when they are first used. ``remarks`` says what had to be inferred. A store that a broker is
    writing to may be read: get the ends of queues and index first, then the log, and check only what is below them.
    """

    def __init__(self, root: "Path | str | os.PathLike[str]", config: StoreConfig | None = None) -> None:
        """Open the store under ``root``.

        Raises:
            NotFoundError: there is none.
            NotPermittedError: this user may not read it.
        """
        self.config = config or StoreConfig()
        path = place(root)
        with reading(path):
            path = path.fresh() if isinstance(path, RemotePath) else path
            remarks: list[str] = []
            if is_archive(path):
                if not self.config.unpacks:
                    raise UsageError(f"{path} is an archive: unpack it first; {READ_PACKED}")
                path = opened_archive(path, remarks)
            self.paths = StorePaths(path, self.config)
        self.root = self.paths.root
        self.remarks = self.paths.remarks
        self.remarks += remarks
        self._left_out: set[Path] = set()
        self._names_left_out: set[str] = set()
        self._most_queues: int | None = None

    def leave_out(self, path: Path) -> None:
        """Act as if a folder or file of the store, other than of the log, did not exist, because it cannot be read."""
        self._left_out.add(path)
        self._names_left_out.add(str(path))
        self._forget_files()

    def _forget_files(self) -> None:
        """Have all files but those of the log looked for again."""
        for name in ("consume_queues", "batch_consume_queues", "consume_queue_exts", "index_files", "timer_log"):
            vars(self).pop(name, None)

    @property
    def left_out(self) -> list[Path]:
        """What was left out."""
        return sorted(self._left_out)

    def open_queues_on_demand(self, most: int = MAX_QUEUES) -> None:
        """Keep only a few recently used queues open: for work on parts of a store with very many queues.

        A queue that is used again much later is reopened, so the store must not change.
        """
        self._most_queues = most
        self._forget_files()

    def is_left_out(self, path: Path) -> bool:
        """Return whether ``path``, or a folder above it, was left out."""
        return bool(self._left_out) and not self._left_out.isdisjoint((path, *path.parents))

    # The log

    @functools.cached_property
    def commit_log(self) -> CommitLog:
        """All messages, in order of arrival."""
        size, unpacks = self.config.size("mappedFileSizeCommitLog"), self.config.unpacks
        log = CommitLog(self.paths.commit_log, size, self.paths.single, unpacks)
        self.remarks += [f"{path} is not read: there is another copy of it" for path in log.passed_over]
        self.remarks += [f"{path} is empty: unpack the compressed copy beside it over it" for path in log.empty]
        log.remarks = self.remarks
        if self.paths.dledger:
            log.envelope = scan.DLEDGER
        if log.inferred and log.segments and log.file_size != 1 << 30:
            self.remarks.append(f"assuming {log.file_size:,}-byte segments (mappedFileSizeCommitLog, inferred)")
        return log

    def segments_once(self, among: list[MappedFile] | None = None) -> list[MappedFile]:
        """Return the segments, of several files of one only the first of the longest; ``remarks`` name the others.

        Args:
            among: those of a range of addresses, in order, instead of all.
        """
        segments: list[MappedFile] = []
        every = self.commit_log.segments if among is None else among
        for _, files in itertools.groupby(every, lambda segment: segment.start_offset):
            same = sorted(files, key=lambda segment: -segment.size)
            segments.append(same[0])
            for other in same[1:]:
                remark = f"{other.path} is not read: {same[0].path} is the same segment"
                if remark not in self.remarks:
                    self.remarks.append(remark)
        return segments

    @property
    def is_packed(self) -> bool:
        """Whether the log, or all of the store, is a compressed copy."""
        return isinstance(self.root, ArchivePath) or bool(self.commit_log.packed)

    def threads_at_most(self, jobs: int) -> int:
        """Return how many segments may be read at once: those unpacked as a stream are kept in the meantime."""
        if isinstance(self.root, ArchivePath):
            return 1 if self.root.tree.is_stream else jobs
        return min(jobs, 2) if self.commit_log.packed else jobs

    def log_alone(self) -> Self:
        """Return a reader of this log as if nothing else of the store existed."""
        other = copy.copy(self)
        other.paths = self.paths.log_alone()
        other._forget_files()
        return other

    def with_log(self, log: CommitLog) -> Self:
        """Return this reader with another log instead of its own."""
        other = copy.copy(self)
        other.commit_log = log
        vars(other).pop("delay_levels", None)  # its messages may tell others
        return other

    def message_at(self, offset: int) -> Message:
        """Return the message that starts at an address.

        Raises:
            NotFoundError: the log does not reach there.
            FormatError: no message starts there.
        """
        return message_of(self.record_at(offset), offset)

    def record_at(self, offset: int) -> bytes:
        """Return the bytes of the record that starts at an address; raises like ``message_at``."""
        log = self.commit_log
        head = log.read(offset, commit_log.BLANK_SIZE)
        if not head:
            raise NotFoundError(
                f"the commit log covers {log.min_offset:,} to {log.end_offset:,}: {offset:,} is outside"
            )
        size, magic = read_start(head)
        if magic not in commit_log.MESSAGE_MAGICS:
            raise FormatError("no message starts", offset)
        record = log.read(offset, size) if size >= commit_log.MIN_SIZE else b""
        if len(record) != size and offset < log.gone_until:
            raise NotFoundError(f"the message at {offset:,} was just deleted by retention")
        if len(record) != size:
            raise FormatError(f"a record claims to have {size:,} bytes", offset)
        return record

    def tables(
        self, start_offset: int = 0, stop_offset: int | None = None, kernels: Any = None
    ) -> Iterator[scan.MessageTable | Gap]:
        """Yield the messages of an address range in order, and the gaps between them."""
        log = self.commit_log
        stop = log.end_offset if stop_offset is None else stop_offset
        if kernels is None:
            size = min(stop, log.end_offset) - max(start_offset, log.min_offset)
            kernels = scan.kernels_for(size)
        yield from log.tables(start_offset, stop, kernels)

    def messages(self, start_offset: int = 0, stop_offset: int | None = None) -> Iterator[Message]:
        """Yield the sound messages of an address range in order."""
        from mqtool.formats.message import message_at

        for table in self.tables(start_offset, stop_offset):
            if not isinstance(table, Gap):
                for row in range(len(table)):
                    if not table.faults[row]:
                        yield message_at(table, row)

    def range_of_time(self, since: int | None, until: int | None) -> tuple[int, int]:
        """Return the address range of the messages stored in ``[since, until)`` (ms).

        Whole segments are skipped by the store times of their first two messages: a single damaged one hides nothing.
        """
        start, stop = self.commit_log.min_offset, self.commit_log.end_offset
        for segment in self.commit_log.segments if since is not None or until is not None else ():
            times = self._first_times(segment.start_offset)
            if len(times) < 2:
                continue
            if since is not None and max(times) < since - CLOCK_STEP_MS:
                start = segment.start_offset
            if until is not None and min(times) >= until + CLOCK_STEP_MS:
                stop = min(stop, segment.start_offset)
        return start, stop

    def _first_times(self, start_offset: int) -> list[int]:
        """Return the store times of the first two messages of a segment, fewer where they cannot be read."""
        times: list[int] = []
        head = self.commit_log.envelope.size
        with contextlib.suppress(FormatError, NotFoundError):
            while len(times) < 2:
                message = self.message_at(start_offset + head)
                times.append(message.store_timestamp)
                start_offset += head + message.size
        return times

    # Queues

    @functools.cached_property
    def consume_queues(self) -> Mapping[QueueKey, ConsumeQueue]:
        """The ordinary queues by topic and queue id."""
        return self._queues_or_on_demand(ConsumeQueue, self.paths.consume_queue)

    @functools.cached_property
    def batch_consume_queues(self) -> Mapping[QueueKey, BatchConsumeQueue]:
        """The queues of inner batches by topic and queue id."""
        return self._queues_or_on_demand(BatchConsumeQueue, self.paths.batch_consume_queue)

    @functools.cached_property
    def consume_queue_exts(self) -> dict[QueueKey, ConsumeQueueExt]:
        """The extensions of queues by topic and queue id."""
        return self._queues(ConsumeQueueExt, self.paths.consume_queue_ext)

    @functools.cached_property
    def delay_levels(self) -> list[int]:
        """The delay of each level in ms, level 1 first: as configured, as delayed messages show, or by default.

        The tags code of a delayed message is its delivery time.
        """
        levels = self.config.delay_levels()
        if "messageDelayLevel" in self.config.settings:
            return levels
        for i in range(len(levels)):
            queue = self.consume_queues.get((SCHEDULE_TOPIC, i))
            if queue is None:
                continue
            seen: collections.Counter[int] = collections.Counter()
            stop = min(queue.first_offset + 50, queue.max_offset())
            for offset, unit in enumerate(queue.units(queue.first_offset, stop), queue.first_offset):
                with contextlib.suppress(FormatError, NotFoundError):
                    message = self.message_at(int(unit["physical_offset"]))
                    place = message.topic, message.queue_id, message.queue_offset
                    if place == (SCHEDULE_TOPIC, i, offset) and message.properties.get(DELAY) == str(i + 1):
                        seen[int(unit["tags_code"]) - message.store_timestamp] += 1
            delay = seen.most_common(1)[0][0] if seen else 0
            # A setting can only name whole seconds; anything else comes of a damaged unit.
            if not seen[levels[i]] and delay > 0 and delay % 1000 == 0:
                levels[i] = delay
                remark = f"assuming {levels[i]:,} ms for delay level {i + 1} (messageDelayLevel, inferred)"
                if remark not in self.remarks:
                    self.remarks.append(remark)
        return levels

    @property
    def rocksdb_queues(self) -> Path | None:
        """The folder of the RocksDB that keeps the queues, if one does."""
        for folder in (self.paths.consume_queue_rocksdb, self.paths.consume_queue):
            if not self.is_left_out(folder) and rocksdb.is_rocksdb(folder):
                return folder
        return None

    def lacks_queue(self, key: QueueKey) -> bool:
        """Return whether a queue may exist but was left out, in files of its own or in RocksDB."""
        folders = (self.paths.consume_queue, self.paths.batch_consume_queue)
        places = [folder / key[0] / str(key[1]) for folder in folders]
        return any(map(self.is_left_out, (*places, self.paths.consume_queue_rocksdb)))

    def _queues_or_on_demand(self, kind: type[_Queue], folder: Path) -> Mapping[QueueKey, _Queue]:
        if self._most_queues is None:
            return self._queues(kind, folder)
        return self._on_demand(kind, folder, self._most_queues)

    def _queues(self, kind: type[_Queue], folder: Path) -> dict[QueueKey, _Queue]:
        queues: dict[QueueKey, _Queue] = {}
        for key, where in sorted(self._queue_folders(folder)):
            with contextlib.suppress(NotFoundError):  # deleted just now
                queues[key] = self._open_queue(kind, key, where)
        return queues

    def _open_queue(self, kind: type[_Queue], key: QueueKey, folder: Path) -> _Queue:
        make: Callable[..., _Queue] = kind
        queue = make(*key, folder, self.config.size(_KINDS[kind].size_setting))
        queue.remarks = self.remarks
        return queue

    def _on_demand(self, kind: type[_Queue], folder: Path, most: int) -> QueuesOnDemand[_Queue]:
        def folders_of(topic: str) -> dict[int, Path]:
            is_name = topic not in ("", ".", "..") and "/" not in topic and has_folder(topic.encode(errors="replace"))
            if not is_name or self.is_left_out(folder):  # it may be of a damaged record
                return {}
            return {key[1]: queue for key, queue in sorted(self._queue_folders_of(folder / topic))}

        return QueuesOnDemand(
            lambda: sorted(key for key, _ in self._queue_folders(folder)), folders_of,
            functools.partial(self._open_queue, kind), most,
        )  # fmt: skip

    def _queue_folders(self, folder: Path) -> Iterator[tuple[QueueKey, Path]]:
        """Yield topic, queue id and folder of each queue under ``consumequeue`` or a sibling of it, in no order."""
        if self.is_left_out(folder) or not folder.is_dir():
            return
        with reading(folder), scandir(folder) as topics:
            for topic in topics:
                if topic.is_dir():
                    yield from self._queue_folders_of(folder / topic.name)

    def _queue_folders_of(self, topic: Path) -> list[tuple[QueueKey, Path]]:
        """Return the same of one topic's folder, in no order; nothing if there is none."""
        if topic.name == LOST_AND_FOUND or self.is_left_out(topic):
            return []
        with contextlib.suppress(NotFoundError), reading(topic), scandir(topic) as queues:
            return [
                ((topic.name, int(queue.name)), topic / queue.name)
                for queue in queues
                if _is_queue_id(queue.name) and queue.path not in self._names_left_out and queue.is_dir()
            ]
        return []

    # Index

    @functools.cached_property
    def index_files(self) -> list[IndexFile]:
        """The index files, oldest first."""
        while True:
            with contextlib.suppress(NotFoundError):  # retention took one since its name was read
                return self._find_index_files()

    def hold_index(self) -> list[IndexFile]:
        """Return the index files, mapped: they stay readable even if they are deleted or renamed from now on."""
        for file in list(self.index_files):
            try:
                _ = file.reach(0, 0)
            except NotFoundError:
                self.index_files.remove(file)
                text = "was deleted by retention while the store was being read: its contents are left out"
                self.remarks.append(f"{file.path} {text}")
            except MqtoolError:
                continue  # raised when this file is needed
        return self.index_files

    def _find_index_files(self) -> list[IndexFile]:
        folder = self.paths.index
        if self.is_left_out(folder) or not folder.is_dir():
            return []
        with reading(folder), scandir(folder) as entries:
            files = []
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    refuse_special(folder / entry.name, entry.stat())
                if entry.name.isascii() and entry.name.isdigit() and entry.is_file():
                    files.append((folder / entry.name, entry.stat().st_size))
            files.sort()
        index_files = [IndexFile(path, size) for path, size in files]
        slots, entry_count = self.config.size("maxHashSlotNum"), self.config.size("maxIndexNum")
        shape = Shape(slots, entry_count) if slots and entry_count else infer_shape(index_files)
        if shape and shape != DEFAULT_SHAPE and not slots:
            self.remarks.append(
                f"assuming index files with {shape.slots:,} slots and {shape.entries:,} entries (maxHashSlotNum and "
                "maxIndexNum, inferred)"
            )
        for file in index_files:
            file.shape = shape
        return index_files

    @property
    def index_strays(self) -> list[Path]:
        """Entries of the index folder whose names are not those of index files."""
        if self.is_left_out(self.paths.index) or not self.paths.index.is_dir():
            return []
        return sorted(
            path
            for path in self.paths.index.iterdir()
            if not (path.name.isdigit() and len(path.name) == INDEX_NAME_WIDTH and path.is_file())
        )

    # Small files

    @functools.cached_property
    def checkpoint(self) -> Any | None:
        """The checkpoint as its schema parses it, None if there is no file.

        Raises:
            BadDataError: the file is too short.
        """
        from mqtool.formats import checkpoint

        return self._page(self.paths.checkpoint, checkpoint.CHECKPOINT)

    @functools.cached_property
    def timer_check(self) -> Any | None:
        """``config/timercheck`` as its schema parses it, None if there is no file."""
        from mqtool.formats import timer

        return self._page(self.paths.timer_check, timer.TIMER_CHECK)

    @functools.cached_property
    def timer_log(self) -> FileQueue | None:
        """The timer log, None if there is none."""
        if self.is_left_out(self.paths.timer_log) or not self.paths.timer_log.is_dir():
            return None
        return FileQueue([self.paths.timer_log], self.config.size(file_kinds.TIMER_LOG.size_setting))

    def _page(self, path: Path, layout: Layout) -> Any | None:
        if self.is_left_out(path) or not path.exists():
            return None
        data = read_file(path)
        if len(data) < layout.size:
            raise BadDataError(f"{path} has {len(data):,} bytes instead of {layout.size:,}")
        return layout.schema.parse(data)

    @property
    def has_abort_file(self) -> bool:
        """Whether the broker did not stop cleanly (or is still running)."""
        return self.paths.abort.exists()

    @property
    def is_live(self) -> bool:
        """Whether a running broker holds the lock file of this store, or the configuration says that it is in use."""
        return self.config.in_use or is_locked(self.paths.lock)

    @property
    def may_be_live(self) -> bool:
        """Whether this is unknown: in a remote storage, or on a mount that does not show locks of other machines."""
        return not (self.is_live or shows_locks(self.paths.lock))

    # Config

    def config_table(self, name: str) -> dict[Any, Any] | None:
        """Return a table of ``config/`` by the name of its JSON file.

        It is read from ``.bak`` if the file is missing or unreadable, and from RocksDB if the broker keeps it there.

        Raises:
            BadDataError: neither can be read.
            MissingExtraError: it is in RocksDB, and the extra is not installed.
        """
        from mqtool.formats import config_tables

        problem = None
        for path in (self.paths.config / name, self.paths.config / f"{name}.bak"):
            if path.is_file():
                try:
                    return config_tables.read_table(name, read_file(path))
                except NotFoundError:
                    continue  # a broker is about to put a new one in its place
                except FormatError as error:
                    problem = problem or f"cannot read {path}: {error}"
        if problem:
            raise BadDataError(problem)
        return self.rocksdb_tables.get(name)

    @functools.cached_property
    def rocksdb_tables(self) -> dict[str, dict[Any, Any]]:
        """The tables that RocksDB keeps, by the names of the JSON files they replace; empty if none are there.

        Raises:
            MissingExtraError: there are some, and the extra is not installed.
        """
        folders = [self.paths.config / name for name in rocksdb.CONFIG_DATABASES]
        return rocksdb.read_config(self.paths.config) if any(map(rocksdb.is_rocksdb, folders)) else {}


def _is_queue_id(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) <= 10 and int(name) < 1 << 31


def open_store(path: "str | os.PathLike[str]", settings: Mapping[str, str] | None = None) -> StoreReader:
    """Open the store of a broker, or one of its files, for reading.

    Args:
        path: the directory that contains ``commitlog``, ``consumequeue`` and the other folders.
        settings: broker settings, by RocketMQ's names (``mappedFileSizeCommitLog``, ..), if they cannot be
            determined from the files.

    Raises:
        NotFoundError: there is no store.
        NotPermittedError: this user has no permission to read it.
    """
    return StoreReader(path, StoreConfig(dict(settings or {})))
