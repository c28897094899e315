"""Opening a store: its files are examined, and refused if a broker would not start with them.

Cost: after a clean stop, the last units and the last segment; otherwise what is after the checkpoint.
(Rules: store.md 7. RocketMQ: ``DefaultMessageStore.load``.)
"""

import contextlib
from collections.abc import Collection
from pathlib import Path

from mqtool.engine.store import live_dispatch, log_end
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.file_kinds import LOCK, ROCKSDB_STORE
from mqtool.engine.store.index_file import DEFAULT_SHAPE, Shape
from mqtool.engine.store.live_checkpoint import Reached, was_left_by_us
from mqtool.engine.store.live_index import LiveIndex
from mqtool.engine.store.live_log import LiveLog
from mqtool.engine.store.live_queue import LiveBatchQueue, LiveExtendedQueue, LiveQueue
from mqtool.engine.store.paths import StoreConfig, is_log_folder
from mqtool.engine.store.queue_files import QueueFiles
from mqtool.engine.store.queue_table import QueueTable
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import MqtoolError, RecoveryNeededError, UsageError
from mqtool.formats.properties import pairs_of
from mqtool.formats.stored_message import parse_stored

_SEGMENT_SIZE = 1 << 30
_QUEUE_FILE_UNITS = 300_000


def make_folders(root: Path, config: StoreConfig, disk: Disk) -> None:
    """Create the folders of a new store; their names are on the disk before anything is written.

    Raises:
        UsageError: there is the log of a store.
    """
    if is_log_folder(root):
        raise UsageError(f"{root} is only the log of a store: give the store, {root.resolve().parent}")
    names = config.settings.get("storePathCommitLog", "commitlog")
    folders = [root, *(root / name for name in names.split(",") if name)]
    for folder in folders:
        missing = []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for new_folder in reversed(missing):
            disk.make_folder(new_folder)
            disk.sync_folder(new_folder.parent)
    lock = root / LOCK.name
    if not lock.exists():
        disk.create(lock)
        disk.write(lock, 0, b"lock")


class Opened:
    """The existing files of a store."""

    def __init__(
        self, root: Path, config: StoreConfig, disk: Disk, batch_topics: Collection[str], *, is_indexed: bool
    ) -> None:
        """Open and examine all of them.

        Args:
            root: folder of the store.
            config: the broker's settings.
            disk: through which everything is written.
            batch_topics: topics whose queues keep several messages in a unit; examined when a queue is new.
            is_indexed: whether keys go into the index.

        Raises:
            RecoveryNeededError: they are not what a broker starts with.
        """
        self.was_left = was_left_by_us(root)
        """Whether the store had not been closed: what is after its checkpoint must be dispatched again."""
        reader = StoreReader(root, config)
        if reader.paths.dledger or reader.rocksdb_queues:
            raise RecoveryNeededError(f"{root} has a DLedger log or RocksDB queues, which cannot be written")
        if self.was_left:
            reader = _without_empty_files(reader, disk, config)
        self._reader = reader
        self._root = root
        read_only = config.settings.get("readOnlyCommitLogStorePaths", "").split(",")
        self.folders = [folder for folder in sorted(reader.paths.commit_log) if folder.name not in read_only]
        """Where new segments go."""
        existing_log = reader.commit_log
        self.log = LiveLog(disk, self.folders, existing_log.file_size or _SEGMENT_SIZE, existing_log)
        self._files = QueueFiles(disk, *_queue_sizes(reader, config))
        self.queues = QueueTable(root, self._files, batch_topics)
        try:
            noted = self._noted_start()
            self._load_queues(noted)
            self.index = self._load_index(config, noted)
            if is_indexed and self.index.is_empty and self.log.last_start >= 0 and not (self.was_left and noted < 0):
                raise RecoveryNeededError(f"{root} has messages, but no index")
        except BaseException:
            self.let_go()
            raise
        self.checkpoint = reader.checkpoint
        self.reached = Reached(self.log.last_timestamp, self.log.last_start)
        """Up to where everything is in queues and index."""
        if self.was_left:
            self.reached = Reached(self.log.flushed_timestamp, noted)

    def let_go(self) -> None:
        """Release all files."""
        self.log.close()
        self._files.close()

    def _noted_start(self) -> int:
        """Return the start of the last message that is in its queue according to the checkpoint, -1 for none."""
        checkpoint = self._reader.checkpoint
        noted = int(checkpoint.confirm_physical_offset) if checkpoint else 0
        if noted > self.log.min_offset:
            return noted
        if self.was_left and self.log.min_offset:
            raise RecoveryNeededError(f"the checkpoint of {self._root} does not say how far its queues reach")
        return -1

    def _load_queues(self, noted: int) -> None:
        if self.was_left:
            log_end.find_end_again(self.log, noted)
        reader = self._reader
        extensions = reader.consume_queue_exts
        for kind, keys, folder in (
            (LiveQueue, reader.consume_queues, reader.paths.consume_queue),
            (LiveBatchQueue, reader.batch_consume_queues, reader.paths.batch_consume_queue),
        ):
            for key in keys:
                place, extension = folder / key[0] / str(key[1]), extensions.get(key)
                if extension and kind is LiveQueue:
                    queue: LiveQueue = LiveExtendedQueue(key, place, self._files, extension.segments)
                else:
                    queue = kind(key, place, self._files)
                self.queues.add(queue)
                if self.was_left:
                    queue.load_until(noted)
                else:
                    queue.load()
        last = {queue: queue.units(queue.next_offset - 1, 1) for queue in self.queues.by_key.values()}
        if not self.was_left:
            with_unit = max((units[0].physical_offset for units in last.values() if units), default=-1)
            log_end.find_end(self.log, with_unit, noted if self._has_no_queue(noted) else -1)
        for queue, units in last.items():
            if units and units[0].physical_offset >= self.log.min_offset:
                self._check_last(queue, units[0].physical_offset)

    def _has_no_queue(self, at: int) -> bool:
        """Return whether there is a message at an address whose topic was deleted and has no queue."""
        record = log_end.sound_record(self.log, at)
        topics = {topic for topic, _ in self.queues.by_key}
        return bool(record) and parse_stored(record).message.topic not in topics

    def _check_last(self, queue: LiveQueue, physical_offset: int) -> None:
        """Check the last unit of a queue against its message, to detect one left over from an earlier log."""
        from mqtool.formats.record_schemas import parse_message

        with contextlib.suppress(MqtoolError):
            message = parse_message(self.log.record(physical_offset))
            pairs = pairs_of(message.properties)
            place = message.queue_offset + max(1, live_dispatch.batch_count(pairs))
            if live_dispatch.LIGHT_QUEUES in pairs or (
                message.topic.decode("utf-8", "replace"),
                message.queue_id,
                place,
            ) == (
                *queue.key,
                queue.next_offset,
            ):
                return
        raise RecoveryNeededError(f"the last unit of {queue.folder} does not lead to its message")

    def _load_index(self, config: StoreConfig, noted: int) -> LiveIndex:
        slots, entries = config.size("maxHashSlotNum"), config.size("maxIndexNum")
        shape = next((file.shape for file in self._reader.index_files if file.shape), None) or DEFAULT_SHAPE
        shape = Shape(slots or shape.slots, entries or shape.entries)
        has_tags = (self._root / ROCKSDB_STORE.name).is_dir()  # created by RocketMQ 5.4 and later
        index = LiveIndex(self._reader.paths.index, self._files, shape, has_tags)
        if self.was_left:
            index.keep_until(noted, self.log.store_timestamp)
        return index


def _without_empty_files(reader: StoreReader, disk: Disk, config: StoreConfig) -> StoreReader:
    """Remove the file that was being created when the process was killed, and return a reader of the rest."""
    queues = [*reader.consume_queues.values(), *reader.batch_consume_queues.values()]
    files = [*reader.index_files, *(file for queue in (reader.commit_log, *queues) for file in queue.segments)]
    for file in files:
        if not file.size:
            disk.remove(file.path)
    return StoreReader(reader.root, config)


def _queue_sizes(reader: StoreReader, config: StoreConfig) -> tuple[int, int]:
    sizes = []
    for queues, unit, key in (
        (reader.consume_queues, LiveQueue.unit, "mappedFileSizeConsumeQueue"),
        (reader.batch_consume_queues, LiveBatchQueue.unit, "mapperFileSizeBatchConsumeQueue"),
    ):
        file_size = next((queue.file_size for queue in queues.values() if queue.file_size), None)
        sizes.append(config.size(key) or file_size or _QUEUE_FILE_UNITS * unit.size)
    return sizes[0], sizes[1]
