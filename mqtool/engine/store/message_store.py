"""``MessageStore``: the store of a running broker. It appends, dispatches, flushes, reads and deletes.

A message is written to the log before ``append`` returns, so that it survives the end of the process; that it survives
the end of the machine is known when ``flush`` has reached it. Queues and index follow at each ``tick`` and are read
right at once. (Rules: store.md 7 to 9. RocketMQ: ``DefaultMessageStore``, ``CommitLog``.)
"""

import collections
import contextlib
import itertools
import os
import struct
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TypeVar

from mqtool.engine.store import live_dispatch
from mqtool.engine.store.append_result import AppendResult, PutStatus
from mqtool.engine.store.disk import Disk, DiskFullError
from mqtool.engine.store.index_file import DEFAULT_SHAPE, Shape
from mqtool.engine.store.live_index import LiveIndex
from mqtool.engine.store.live_log import LiveLog
from mqtool.engine.store.live_queue import LiveBatchQueue, LiveExtendedQueue, LiveQueue, QueueFiles, QueueKey
from mqtool.engine.store.locks import hold
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.engine.store.retention import DiskUsage, Retention, disk_usage
from mqtool.engine.store.time_search import Boundary
from mqtool.errors import FormatError, MqtoolError, NotFoundError, RecoveryNeededError, UsageError, WriteError
from mqtool.formats import checkpoint, commit_log
from mqtool.formats.layout import packer_of
from mqtool.formats.message import Message, message_of
from mqtool.formats.new_message import (
    MOST_PROPERTIES,
    MOST_SHORT_TOPIC,
    MOST_TOPIC,
    NewMessage,
    build_batch,
    build_record,
    fill_crc,
    record_size,
    split_batch,
    with_crc_place,
)
from mqtool.formats.properties import (
    CRC_NAME,
    add_property,
    build_properties,
    find_property,
    parse_properties,
    probe_of,
    split_keys,
)
from mqtool.formats.stored_message import StoredMessage, parse_stored
from mqtool.formats.topics import RETRY_PREFIX

Result = TypeVar("Result")
OnArrival = Callable[[str, int, int, int, int], None]

_SEGMENT_SIZE = 1 << 30
_QUEUE_FILE_UNITS = 300_000
_PAGE = 4096
_MANY_WAITING = 256
"""Messages whose units wait until they had better be written."""
_MOST_WAITING = 4096
"""Messages whose units wait in memory at most."""
_DISPATCH_SECONDS, _DISPATCH_LOOKS = 0.01, 3000
_NEW_AT_ONCE = 8
"""New queues that are written at once, while others wait."""
_MOST_NEW = 2000
"""New queues that may wait to be written: a message for one more is refused for now."""
_QUEUES_AT_ONCE = 200
"""Queues that one tick looks through for files to delete."""
_CHECKPOINT = packer_of(checkpoint.CHECKPOINT)
_OURS = b" mqtool\n"
"""Behind the process id in ``abort``: RocketMQ only looks whether the file is there."""
_REST = bytes(checkpoint.CHECKPOINT_DTYPE["rest"].itemsize)
_WAIT, _CRC, _DELAY = probe_of("WAIT"), probe_of(CRC_NAME), probe_of("DELAY")
_MAY_HAVE_DELAY, _MAY_HAVE_COUNT = _DELAY[1:], live_dispatch.BATCH_COUNT[1:]
_INNER = commit_log.INNER_BATCH | commit_log.NEED_UNWRAP

_ILLEGAL = AppendResult(PutStatus.MESSAGE_ILLEGAL)
_TOO_MANY_PROPERTIES = AppendResult(PutStatus.PROPERTIES_SIZE_EXCEEDED)
_REFUSED = AppendResult(PutStatus.SERVICE_NOT_AVAILABLE)

CHANGEABLE = frozenset(
    (
        "cleanFileForciblyEnable",
        "cleanResourceInterval",
        "deleteCommitLogFilesInterval",
        "deleteWhen",
        "diskMaxUsedSpaceRatio",
        "diskSpaceCleanForciblyRatio",
        "diskSpaceWarningLevelRatio",
        "fileReservedTime",
        "flushCommitLogLeastPages",
        "flushCommitLogThoroughInterval",
        "flushDiskType",
        "flushIntervalCommitLog",
        "flushIntervalConsumeQueue",
        "maxMessageSize",
    )
)
"""Settings that an open store takes changes of."""

DISK_IS_FULL = "the broker's disk is full"


class MessageStore:
    """The store under one folder, while a broker runs on it.

    One thread calls everything; only ``flush``, ``flush_queues`` and ``remove_expired`` may be called in others. The
    clock is the caller's: ``now`` is in ms. A disk that fails is fatal: what was not flushed then may be lost though a
    later flush does not fail, so nothing is stored any more, and ``close`` leaves the store as one to be recovered.
    """

    def __init__(
        self,
        root: "Path | str | os.PathLike[str]",
        config: StoreConfig | None = None,
        *,
        now: int,
        disk: Disk | None = None,
        usage: DiskUsage = disk_usage,
        batch_topics: Collection[str] = (),
    ) -> None:
        """Open the store under ``root``, or make one.

        Args:
            root: its folder.
            config: the broker's settings.
            now: the time, in ms.
            disk: through which everything is written.
            usage: tells how full the disk is.
            batch_topics: topics whose queues keep several messages in a unit; looked at when a queue is new.

        Raises:
            StoreInUseError: another process, a broker perhaps, has it open.
            RecoveryNeededError: RocketMQ has not closed it, or its files disagree: ``recover`` it first.
            NotPermittedError: this user may not write to it.
            UsageError: a setting makes no sense.
        """
        self.root = Path(root)
        self.config = config or StoreConfig()
        self.failure: MqtoolError | None = None
        """Why nothing can be stored any more, for good."""
        self.clean_failure: MqtoolError | None = None
        """Why what is old could not be removed; it is tried again."""
        self.removes_aside = False
        """Whether somebody else calls ``remove_expired`` when ``has_expired``; else ``tick`` does."""
        self._expired: collections.deque[Callable[[], None]] = collections.deque()
        self._removing = threading.Lock()
        self.on_arrival: OnArrival | None = None
        """Is told of each message that can now be read: topic, queue id, the offset behind it, tags code, the time."""
        self.was_recovered = False
        """Whether the store had not been closed: what is noted outside of it may be older than its messages."""
        self.was_mended = False
        """Whether it had to be mended before it could be opened: messages may be missing from before others."""
        self.cut_size = 0
        """How many bytes were cut from the end of the log then: messages that were being written."""
        self._disk = disk or Disk()
        self.batch_topics = batch_topics
        self._read_config()
        with contextlib.ExitStack() as stack:
            self._make_folders()
            stack.enter_context(hold(self.root / "lock"))
            self._open(now, usage)
            stack.callback(self._let_go)
            if self.was_recovered:
                self._recover()
            self._note_start()
            self._stack = stack.pop_all()

    def configure(self, changes: Mapping[str, str]) -> None:
        """Change settings of ``CHANGEABLE``, by RocketMQ's names, while the store is open.

        Raises:
            UsageError: a setting makes no sense; none is changed.
        """
        before = self.config
        self.config = StoreConfig({**before.settings, **changes})
        try:
            self._read_changeable()
            self.retention.configure(self.config)
        except UsageError:
            self.config = before
            self._read_changeable()
            self.retention.configure(before)
            raise

    def _read_config(self) -> None:
        config = self.config
        if config.flag("enableDLegerCommitLog"):
            raise UsageError("enableDLegerCommitLog=true: a log of DLedger can be read here, and not written")
        self._read_changeable()
        self.delay_levels = config.delay_levels()
        self._index_enabled = config.flag("messageIndexEnable", True)
        self._with_crc = config.flag("enabledAppendPropCRC")
        self._with_light_queues = config.flag("enableLmq") and config.flag("enableMultiDispatch")

    def _read_changeable(self) -> None:
        config = self.config
        self.is_sync = config.settings.get("flushDiskType", "").upper() == "SYNC_FLUSH"
        self._most_body = config.number("maxMessageSize", 4 << 20)
        self._flush_interval = config.number("flushIntervalCommitLog", 500)
        self._flush_least = config.number("flushCommitLogLeastPages", 4) * _PAGE
        self._flush_thorough = config.number("flushCommitLogThoroughInterval", 10_000)
        self._queue_interval = config.number("flushIntervalConsumeQueue", 1000)

    def _make_folders(self) -> None:
        """Make what a new store needs; its names are on the disk before anything is written."""
        names = self.config.settings.get("storePathCommitLog", "commitlog")
        folders = [self.root, *(self.root / name for name in names.split(",") if name)]
        for folder in folders:
            missing = []
            while not folder.exists():
                missing.append(folder)
                folder = folder.parent
            for one in reversed(missing):
                self._disk.make_folder(one)
                self._disk.sync_folder(one.parent)
        lock = self.root / "lock"
        if not lock.exists():
            self._disk.create(lock)
            self._disk.write(lock, 0, b"lock")

    def _open(self, now: int, usage: DiskUsage) -> None:
        self.was_recovered = self._was_left_by_us()
        reader = StoreReader(self.root, self.config)
        if reader.paths.dledger or reader.rocksdb_queues:
            raise RecoveryNeededError(
                f"{self.root} keeps its log in DLedger or its queues in RocksDB: not written here"
            )
        if self.was_recovered:
            reader = self._without_empty_files(reader)
        found = reader.commit_log
        read_only = self.config.settings.get("readOnlyCommitLogStorePaths", "").split(",")
        folders = [folder for folder in sorted(reader.paths.commit_log) if folder.name not in read_only]
        self.log = LiveLog(self._disk, folders, found.file_size or _SEGMENT_SIZE, found)
        self._files = QueueFiles(self._disk, *self._queue_sizes(reader))
        self._queues: dict[QueueKey, LiveQueue] = {}
        self._waiting: dict[LiveQueue, None] = {}  # with units to be written
        self._new: dict[LiveQueue, tuple[int, int]] = {}
        """Queues without files, and time and address of the last message before their first."""
        self._is_behind = False  # some of them were left for later
        self._leaving: dict[str, Callable[[], None]] = {}
        """Topics whose queues are to be removed, and what does that."""
        self._cleaning: list[LiveQueue] = []
        try:
            self._load_queues(reader)
            self._load_index(reader)
        except BaseException:
            self._let_go()
            raise
        self._load_checkpoint(reader)
        self.retention = Retention(self.config, folders, usage)
        self._appended = 0  # since units were written
        self._is_held_up = False  # a write failed: nothing is appended before the next tick
        self._dispatched = (self.log.last_timestamp, self.log.last_start)
        if self.was_recovered:
            self._dispatched = (self.log.flushed_timestamp, self._noted_start(reader))
        self._flushing = threading.Lock()
        self._last_flush = self._last_thorough = self._last_queue_flush = now

    def _was_left_by_us(self) -> bool:
        """Tell whether a process of ours had the store open and was killed; its checkpoint can be relied on then."""
        abort = self.root / "abort"
        if not abort.exists():
            return False
        if abort.read_bytes().endswith(_OURS):
            return True
        raise RecoveryNeededError(f"{self.root} was not closed by the broker that used it: recover it first")

    def _without_empty_files(self, reader: StoreReader) -> StoreReader:
        """Remove the file that was just being made when the process was killed, and return a reader of the rest."""
        queues = [*reader.consume_queues.values(), *reader.batch_consume_queues.values()]
        files = [*reader.index_files, *(file for queue in (reader.commit_log, *queues) for file in queue.segments)]
        for file in files:
            if not file.size:
                self._disk.remove(file.path)
        return StoreReader(self.root, self.config)

    def _queue_sizes(self, reader: StoreReader) -> tuple[int, int]:
        sizes = []
        for queues, unit, key in (
            (reader.consume_queues, LiveQueue.unit, "mappedFileSizeConsumeQueue"),
            (reader.batch_consume_queues, LiveBatchQueue.unit, "mapperFileSizeBatchConsumeQueue"),
        ):
            there = next((queue.file_size for queue in queues.values() if queue.file_size), None)
            sizes.append(self.config.size(key) or there or _QUEUE_FILE_UNITS * unit.size)
        return sizes[0], sizes[1]

    def _load_queues(self, reader: StoreReader) -> None:
        noted = self._noted_start(reader)
        self._behind = self.log.find_end_again(noted) if self.was_recovered else []
        extensions = reader.consume_queue_exts
        for kind, queues, folder in (
            (LiveQueue, reader.consume_queues, reader.paths.consume_queue),
            (LiveBatchQueue, reader.batch_consume_queues, reader.paths.batch_consume_queue),
        ):
            for key in queues:
                place, extension = folder / key[0] / str(key[1]), extensions.get(key)
                if extension and kind is LiveQueue:
                    queue: LiveQueue = LiveExtendedQueue(key, place, self._files, extension.segments)
                else:
                    queue = kind(key, place, self._files)
                self._queues[key] = queue
                if self.was_recovered:
                    queue.load_until(noted)
                else:
                    queue.load()
        last = {queue: queue.units(queue.next_offset - 1, 1) for queue in self._queues.values()}
        if not self.was_recovered:
            with_unit = max((units[0].physical_offset for units in last.values() if units), default=-1)
            self.log.find_end(with_unit, noted if self._has_no_queue(noted) else -1)
        for queue, units in last.items():
            if units and units[0].physical_offset >= self.log.min_offset:
                self._check_last(queue, units[0].physical_offset)

    def _noted_start(self, reader: StoreReader) -> int:
        """Return where the last message begins of which the checkpoint says that it is in its queue, -1 for none."""
        found = reader.checkpoint
        noted = int(found.confirm_physical_offset) if found else 0
        if noted > self.log.min_offset:
            return noted
        if self.was_recovered and self.log.min_offset:
            raise RecoveryNeededError(f"the checkpoint of {self.root} does not say how far its queues reach")
        return -1

    def _has_no_queue(self, at: int) -> bool:
        """Tell whether a message lies at an address whose topic has no queue any more, as it was deleted."""
        record = self.log.sound_record(at)
        return bool(record) and parse_stored(record).message.topic not in {topic for topic, _ in self._queues}

    def _recover(self) -> None:
        """Put the messages behind the checkpoint into queues and index, as when they came.

        The checkpoint stays until that is on the disk: a kill meanwhile costs nothing.
        """
        self.cut_size = self.log.clear_behind()
        for at, size in self._behind:
            self._take_again(parse_stored(self.log.read(at, size)))
            if len(self.index.waiting) >= _MOST_WAITING:
                self.write_units()
        self._behind = []
        self.write_units()

    def _take_again(self, stored: StoredMessage) -> None:
        message, at, size, now = stored.message, stored.physical_offset, stored.size, stored.store_timestamp
        properties = message.properties
        if message.sys_flag & commit_log.TRANSACTION_MASK in (0, commit_log.TRANSACTION_COMMIT):
            code = live_dispatch.tags_code(message.topic, properties, now, self.delay_levels)
            is_batch = message.sys_flag & commit_log.INNER_BATCH
            count = live_dispatch.batch_count(properties) if is_batch else 1
            places = [(message.topic, message.queue_id, stored.queue_offset, count)]
            names = live_dispatch.light_queues(message.topic, properties)
            offsets = find_property(properties, live_dispatch.LIGHT_OFFSETS_PROBE).decode().split(",")
            places += [
                (name, 0, int(offset), 1) for name, offset in zip(names, offsets, strict=False) if name and offset
            ]
            for topic, queue_id, queue_offset, batch_size in places:
                queue = self._queues.get((topic, queue_id)) or self._add_queue(topic, queue_id)
                if queue.next_offset != queue_offset:
                    raise RecoveryNeededError(
                        f"the message at {at:,} is number {queue_offset:,} of a queue of {queue.next_offset:,}"
                    )
                queue.append(at, size, code, now, batch_size)
                self._waiting[queue] = None
        if self._index_enabled:
            self.index.waiting.append((message.topic, message.sys_flag, properties, at, now))

    def _check_last(self, queue: LiveQueue, physical_offset: int) -> None:
        """Hold the last unit of a queue against its message: one that is left over from another life shows."""
        with contextlib.suppress(MqtoolError):
            message = commit_log.parse_message(self.log.record(physical_offset))
            place = message.queue_offset + max(1, live_dispatch.batch_count(message.properties))
            is_light = find_property(message.properties, live_dispatch.LIGHT_QUEUES)
            if is_light or (message.topic.decode("utf-8", "replace"), message.queue_id, place) == (
                *queue.key,
                queue.next_offset,
            ):
                return
        raise RecoveryNeededError(f"the last unit of {queue.folder} does not lead to its message")

    def _load_index(self, reader: StoreReader) -> None:
        slots, entries = self.config.size("maxHashSlotNum"), self.config.size("maxIndexNum")
        shape = next((file.shape for file in reader.index_files if file.shape), None) or DEFAULT_SHAPE
        shape = Shape(slots or shape.slots, entries or shape.entries)
        has_tags = (self.root / "rocksdbstore").is_dir()  # as RocketMQ 5.4 and later make it
        self.index = LiveIndex(reader.paths.index, self._files, shape, has_tags)
        if self.was_recovered:
            self.index.keep_until(self._noted_start(reader), self.log.store_timestamp)
            if self._noted_start(reader) < 0:  # all keys come again
                return
        if self._index_enabled and self.index.is_empty and self.log.last_start >= 0:
            raise RecoveryNeededError(f"{self.root} has messages, but no index")

    def _load_checkpoint(self, reader: StoreReader) -> None:
        found = reader.checkpoint
        self._index_timestamp = found.index_timestamp if found else 0
        self._master_flushed_offset = found.master_flushed_offset if found else 0
        self._has_logics_offset = bool(found and found.logics_physical_offset)

    def _note_start(self) -> None:
        """Write what tells that the store was not closed, before anything else."""
        checkpoint_file = self.root / "checkpoint"
        if not checkpoint_file.exists():
            self._disk.create(checkpoint_file, checkpoint.CHECKPOINT_SIZE)
            self._disk.sync(checkpoint_file)
        if not self.was_recovered and self.log.last_start >= 0:
            self._write_checkpoint(*self._dispatched)
        abort = self.root / "abort"
        if not abort.exists():
            self._disk.create(abort)
        self._disk.write(abort, 0, b"%-10d" % os.getpid() + _OURS)
        self._disk.sync(abort)
        self._disk.sync_folder(self.root)

    # Appending

    @property
    def refusal(self) -> str | None:
        """Why nothing is stored at the moment, None while messages are taken."""
        if self.failure is not None:
            return str(self.failure)
        return DISK_IS_FULL if self.retention.is_full or self._is_held_up else None

    def append(self, message: NewMessage, now: int) -> AppendResult:
        """Store a message.

        Returns:
            Where it is stored, or why it is not.
        """
        if self._is_held_up or self.retention.is_full or self.failure is not None:
            return _REFUSED
        queue = self._queues.get((message.topic, message.queue_id)) or self._new_queue(message)
        if queue is None:
            return _REFUSED if self._has_no_room_for(message.topic) else _ILLEGAL
        properties, count = message.properties, 1
        transaction = message.sys_flag & commit_log.TRANSACTION_MASK
        has_unit = transaction in (0, commit_log.TRANSACTION_COMMIT)
        queue_offset = queue.next_offset if has_unit else 0
        light: list[LiveQueue] = []
        if message.sys_flag & commit_log.INNER_BATCH or _MAY_HAVE_COUNT in properties:
            is_batch = bool(message.sys_flag & commit_log.INNER_BATCH)
            has_count = bool(find_property(properties, live_dispatch.BATCH_COUNT))
            if is_batch != has_count or (is_batch and not queue.is_batch):
                return _ILLEGAL
            if is_batch:
                count = live_dispatch.batch_count(properties)
                if count <= 0:
                    return _ILLEGAL
                message.sys_flag |= _INNER
                properties = add_property(properties, live_dispatch.BATCH_BASE, str(queue_offset))
        if self._with_light_queues and live_dispatch.LIGHT_QUEUES[1:] in properties:
            properties, light = self._for_light_queues(message.topic, properties)
        if self._with_crc:
            properties = _with_crc_place(properties)
        topic = queue.topic
        size = record_size(message, topic, len(properties))
        if len(properties) > MOST_PROPERTIES:
            return _TOO_MANY_PROPERTIES
        if not self._fits(len(message.body), size) or live_dispatch.ends_the_log(message.topic, properties):
            return _ILLEGAL
        log = self.log
        try:
            at = log.place(size)
            record = build_record(message, topic, properties, size, queue_offset, at, now)
            if self._with_crc:
                record = fill_crc(record)
            log.write(record, at, now)
        except struct.error:  # a number is too large for its field
            return _ILLEGAL
        except MqtoolError as error:
            return self._hold_up(error)
        if has_unit:
            code = live_dispatch.tags_code(message.topic, properties, now, self.delay_levels)
            queue.append(at, size, code, now, count)
            self._waiting[queue] = None
            for one in light:
                one.append(at, size, code, now)
                self._waiting[one] = None
        if self._index_enabled:
            self.index.waiting.append((message.topic, message.sys_flag, properties, at, now))
        self._appended += 1
        if self._appended >= _MOST_WAITING:
            self.write_units()
        if has_unit and self.on_arrival is not None:
            self.on_arrival(message.topic, message.queue_id, queue_offset + count, code, now)
        end = at + size
        wait = end if self.is_sync and find_property(properties, _WAIT) != b"false" else 0
        return AppendResult(PutStatus.PUT_OK, (at,), end, queue_offset, now, message.store_host, wait)

    def append_batch(self, batch: NewMessage, now: int) -> AppendResult:
        """Store the messages of a batch one behind the other, all of them or none.

        Args:
            batch: whose body is a batch as clients send it. Its properties are added to those of each message, as
                brokers before 5.3.4 do.
            now: the time, in ms.

        Returns:
            Where they are stored, or why none is.
        """
        if self._is_held_up or self.retention.is_full or self.failure is not None:
            return _REFUSED
        queue = self._queues.get((batch.topic, batch.queue_id)) or self._new_queue(batch)
        if queue is None and self._has_no_room_for(batch.topic):
            return _REFUSED
        if queue is None or len(batch.body) > self._most_body or batch.sys_flag & commit_log.TRANSACTION_MASK:
            return _ILLEGAL
        try:
            elements = split_batch(batch)
        except FormatError:
            return _ILLEGAL
        if not elements or any(_is_for_none_of_a_batch(one.properties) for one in elements):
            return _ILLEGAL
        if self._with_crc:
            elements = [one._replace(properties=_with_crc_place(one.properties)) for one in elements]
        if max(len(one.properties) for one in elements) > MOST_PROPERTIES:
            return _TOO_MANY_PROPERTIES
        log, first = self.log, queue.next_offset
        overhead = record_size(batch, queue.topic, 0) - len(batch.body)
        sizes = [overhead + len(one.body) + len(one.properties) for one in elements]
        if sum(sizes) + commit_log.BLANK_SIZE > log.file_size:
            return _ILLEGAL
        try:
            at = log.place(sum(sizes))
            *offsets, end = itertools.accumulate(sizes, initial=at)
            records = build_batch(batch, elements, queue.topic, first, at, now)
            if self._with_crc:
                records = [fill_crc(record) for record in records]
            log.write(b"".join(records), offsets[-1], now)
        except struct.error:  # a number is too large for its field
            return _ILLEGAL
        except MqtoolError as error:
            return self._hold_up(error)
        codes = [live_dispatch.tags_code(batch.topic, one.properties, now, self.delay_levels) for one in elements]
        for offset, size, code in zip(offsets, sizes, codes, strict=True):
            queue.append(offset, size, code, now)
        if self._index_enabled:
            topic, sys_flag = batch.topic, batch.sys_flag
            self.index.waiting += [
                (topic, sys_flag, one.properties, offset, now) for one, offset in zip(elements, offsets, strict=True)
            ]
        self._waiting[queue] = None
        self._appended += len(elements)
        if self._appended >= _MOST_WAITING:
            self.write_units()
        if self.on_arrival is not None:
            for place, code in enumerate(codes, first + 1):
                self.on_arrival(batch.topic, batch.queue_id, place, code, now)
        waits = self.is_sync and any(find_property(one.properties, _WAIT) != b"false" for one in elements)
        return AppendResult(PutStatus.PUT_OK, tuple(offsets), end, first, now, batch.store_host, end if waits else 0)

    def _fits(self, body_size: int, size: int) -> bool:
        return (
            body_size <= self._most_body
            and size <= self._most_body + (1 << 16)
            and size + commit_log.BLANK_SIZE <= self.log.file_size
        )

    def _hold_up(self, error: MqtoolError) -> AppendResult:
        """Take nothing more before the next tick: a full disk may have room then."""
        self._is_held_up = True
        if not isinstance(error, DiskFullError):
            self.failure = error
        return _REFUSED

    def _new_queue(self, message: NewMessage) -> LiveQueue | None:
        """Return a new queue, None where no message can have this topic or queue id."""
        topic = message.topic
        most = MOST_TOPIC if topic.startswith(RETRY_PREFIX) else MOST_SHORT_TOPIC
        if not live_dispatch.is_folder_name(topic, most) or not 0 <= message.queue_id < 1 << 31:
            return None
        if self._has_no_room_for(topic):
            return None
        return self._add_queue(topic, message.queue_id)

    def _has_no_room_for(self, topic: str) -> bool:
        """Tell whether a new queue of a topic has to wait: for others that are new, or until the one before is gone."""
        return len(self._new) >= _MOST_NEW or topic in self._leaving

    def _add_queue(self, topic: str, queue_id: int) -> LiveQueue:
        if remove := self._leaving.get(topic):
            self.write_units()
            remove()
        is_batch = topic in self.batch_topics
        kind = LiveBatchQueue if is_batch else LiveQueue
        folder = self.root / ("batchconsumequeue" if is_batch else "consumequeue") / topic / str(queue_id)
        queue = self._queues[topic, queue_id] = kind((topic, queue_id), folder, self._files)
        self._new[queue] = self.log.last_timestamp, self.log.last_start
        return queue

    def _for_light_queues(self, topic: str, properties: bytes) -> tuple[bytes, list[LiveQueue]]:
        names = live_dispatch.light_queues(topic, properties)
        if not names:
            return properties, []
        queues = [self._queues.get((name, 0)) or self._add_queue(name, 0) if name else None for name in names]
        offsets = ",".join(str(queue.next_offset) if queue else "" for queue in queues)
        return add_property(properties, live_dispatch.LIGHT_OFFSETS, offsets), [one for one in queues if one]

    # At intervals

    def tick(self, now: int) -> None:
        """Do what is due: write units and keys, look at the disk, delete what is old. Call it some times a second."""
        self.write_some_units()
        self.log.release()
        self.retention.look(now)
        try:
            self._clean(now)
        except MqtoolError as error:
            self.clean_failure = error
        if not self.removes_aside:
            self.remove_expired()

    @property
    def has_expired(self) -> bool:
        """Whether there are files for ``remove_expired``."""
        return bool(self._expired)

    def remove_expired(self) -> None:
        """Remove the files that the store has let go of; any thread may call this.

        A file of a gigabyte takes the system a while. Where it cannot be removed ``clean_failure`` says so.
        """
        with self._removing:
            for _ in range(len(self._expired)):
                remove = self._expired.popleft()
                try:
                    remove()
                    self.clean_failure = None
                except MqtoolError as error:
                    self.clean_failure = error
                    self._expired.append(remove)  # behind the others

    @property
    def has_much_to_write(self) -> bool:
        """Whether ``write_units`` is better called soon: the longer it waits, the longer it takes."""
        return self._appended >= _MANY_WAITING or self._is_behind

    def write_units(self) -> None:
        """Write the units and keys of all messages into their files; what fails is tried again at the next tick."""
        self._write_units(len(self._new))

    def write_some_units(self) -> None:
        """Write the units and keys, but of queues that are new only a few: each makes a folder and a file."""
        self._write_units(_NEW_AT_ONCE)

    def _write_units(self, most_new: int) -> None:
        self._appended = 0
        self._is_held_up = False
        if self.failure is not None:
            return
        end = self.log.last_timestamp, self.log.last_start
        try:
            for queue in list(itertools.islice(self._new, most_new)):
                queue.write()
                self._waiting.pop(queue, None)
                del self._new[queue]
            for queue in list(self._waiting):
                if queue not in self._new:
                    queue.write()
                    del self._waiting[queue]
            if self._index_enabled:
                self.index.write()
        except MqtoolError as error:
            self._hold_up(error)
        else:
            self._dispatched = next(iter(self._new.values()), end)
        self._is_behind = bool(self._new)

    def flush_is_due(self, now: int) -> bool:
        """Tell whether it is time to ``flush`` a log whose producers do not wait for it, and begin to count anew."""
        waiting = self.log.end_offset - self.log.flushed_offset
        if now - self._last_thorough >= self._flush_thorough:
            self._last_thorough = self._last_flush = now
            return waiting > 0
        if now - self._last_flush >= self._flush_interval and waiting >= self._flush_least:
            self._last_flush = now
            return True
        return False

    def flush(self) -> int:
        """Return when everything that was appended before the call is on the disk, and the address where that ends.

        Any thread may call this while messages are appended.

        Raises:
            WriteError: the disk failed, now or before: what was not on it is lost.
        """
        with self._flushing:
            return self._fatal(self.log.flush)

    def queue_flush_is_due(self, now: int) -> bool:
        """Tell whether it is time to ``flush_queues``, and begin to count anew."""
        if now - self._last_queue_flush < self._queue_interval:
            return False
        self._last_queue_flush = now
        return True

    def flush_queues(self) -> None:
        """Return when the units and keys that were written are on the disk, and the checkpoint says so.

        Any thread may call this. After a kill or a loss of power all is known to be in its place up to the message that
        the checkpoint names.

        Raises:
            WriteError: the disk failed, now or before.
        """
        with self._flushing:
            self._flush_queues()

    def _flush_queues(self) -> None:
        timestamp, last_start = self._dispatched
        if last_start >= self.log.flushed_offset:
            self._fatal(self.log.flush)
        self._fatal(self._files.sync)
        self._index_timestamp = max(self._index_timestamp, self.index.full_timestamp)
        self._fatal(lambda: self._write_checkpoint(timestamp, last_start))

    def _fatal(self, call: Callable[[], Result]) -> Result:
        if self.failure is not None:
            raise self.failure
        try:
            return call()
        except MqtoolError as error:
            self.failure = error
            raise

    def _write_checkpoint(self, logics_timestamp: int, last_start: int) -> None:
        path = self.root / "checkpoint"
        flushed = self.log.flushed_timestamp  # the clock may have been set back: none of them is later than this
        fields = (
            flushed,
            min(logics_timestamp, flushed),
            min(self._index_timestamp, flushed),
            self._master_flushed_offset,
            max(0, last_start),
            max(0, last_start) if self._has_logics_offset else 0,
        )
        self._disk.write(path, 0, _CHECKPOINT.pack(*fields, _REST))
        self._disk.sync(path)

    # Deleting

    def _clean(self, now: int) -> None:
        if not self._expired and self.retention.may_delete(self.log, now):
            self._expired.append(self.log.remove_first())
            self._cleaning = list(self._queues.values())
        if self._cleaning:
            some, self._cleaning = self._cleaning[-_QUEUES_AT_ONCE:], self._cleaning[:-_QUEUES_AT_ONCE]
            for queue in some:
                self._expired += queue.remove_expired(self.log.min_offset)
            if not self._cleaning and self._index_enabled:
                self._expired += self.index.remove_expired(self.log.min_offset)

    def delete_topic(self, topic: str) -> int:
        """Remove all queues of a topic and return how many there were; its messages stay in the log until it ends them.

        The checkpoint is behind these messages first, or they would come back into queues after a kill.

        Raises:
            WriteError: the disk fails.
        """
        count = sum(key[0] == topic for key in self._queues)
        if remove := self.let_go_topic(topic):
            self.write_units()
            remove()
        return count

    def let_go_topic(self, topic: str) -> Callable[[], None] | None:
        """Let go of all queues of a topic, and return what removes their files; None where there are none.

        That may be called in any thread, more than once. Where it is not this one, somebody has to ``tick``: it waits
        until the messages of these queues are dispatched. Until it is done nothing is stored for the topic.
        """
        keys = [key for key in self._queues if key[0] == topic]
        if not keys:  # the name may be anything then, also one that leads out of the store
            return None
        queues = [self._queues.pop(key) for key in keys]
        for queue in queues:
            self._waiting.pop(queue, None)
            self._new.pop(queue, None)
        self._cleaning = [queue for queue in self._cleaning if queue.key[0] != topic]
        last, busy = self.log.last_start, threading.Lock()
        files = [file for queue in queues for file in queue.let_go()]

        def remove() -> None:
            with busy:
                if topic not in self._leaving or self._leaving[topic] is not remove:
                    return
                for _ in range(_DISPATCH_LOOKS):
                    if self._dispatched[1] >= last or self.failure is not None:
                        break
                    time.sleep(_DISPATCH_SECONDS)
                else:
                    raise WriteError(f"the queues of {topic} stay for now: not all messages are dispatched")
                self.flush_queues()
                self.remove_expired()  # of these queues, too
                while files:
                    files[-1]()
                    files.pop()
                for queue in queues:
                    queue.remove_folders()
                for kind in ("consumequeue", "batchconsumequeue", "consumequeue_ext"):
                    folder = self.root / kind / topic
                    if folder.is_dir() and not any(folder.iterdir()):
                        self._disk.remove_folder(folder)
                del self._leaving[topic]

        self._leaving[topic] = remove
        return remove

    # Reading

    @property
    def flushed_offset(self) -> int:
        """Up to where the log is on the disk."""
        return self.log.flushed_offset

    def queue(self, topic: str, queue_id: int) -> LiveQueue | None:
        """Return a queue, None where no message has come for it."""
        return self._queues.get((topic, queue_id))

    @property
    def queue_count(self) -> int:
        """How many queues there are."""
        return len(self._queues)

    def queues(self) -> list[QueueKey]:
        """Return topic and id of all queues."""
        return list(self._queues)

    def offset_at(self, queue: LiveQueue, timestamp: int, boundary: Boundary = Boundary.LOWER) -> int:
        """Return the queue offset that belongs to a time (ms), by the store times of messages."""
        found = queue.offset_of_time(timestamp, boundary, self.log)
        return min(max(found, queue.min_offset(self.log.min_offset)), queue.next_offset)

    def earliest_timestamp(self) -> int:
        """Return when the first message of the log was stored (ms), -1 without any."""
        return self.log.store_timestamp(self.log.min_offset)

    def find(self, topic: str, key: str, begin: int, end: int, most: int) -> list[Message]:
        """Return the messages stored from ``begin`` to ``end`` (ms) that have a key, the newest first."""
        found = []
        for offset in self.index.find(topic, key, begin, end, most):
            with contextlib.suppress(NotFoundError, FormatError):
                message = message_of(bytes(self.log.record(offset)), offset)
                if message.topic == topic and key in (message.unique_key, *split_keys(message.keys or "")):
                    found.append(message)
        return found

    # The end

    def close(self) -> None:
        """Write everything down to the disk and let go of the store; without ``abort`` if all of that went well.

        Raises:
            WriteError: the disk failed, now or before; the store must be recovered.
        """
        try:
            self.write_units()
            if self._is_held_up:
                raise WriteError(f"{self.root} is left to be recovered: {DISK_IS_FULL}")
            self.flush()
            self.flush_queues()
            self.remove_expired()
            abort = self.root / "abort"
            self._disk.remove(abort)
            self._disk.sync_folder(self.root)
        finally:
            self._stack.close()

    def _let_go(self) -> None:
        self.log.close()
        self._files.close()


def _with_crc_place(properties: bytes) -> bytes:
    if _CRC[1:] in properties and find_property(properties, _CRC):  # a producer's own means nothing here
        pairs = parse_properties(properties)
        del pairs[CRC_NAME]
        properties = build_properties(pairs)
    return with_crc_place(properties)


def _is_for_none_of_a_batch(properties: bytes) -> bool:
    return (_MAY_HAVE_DELAY in properties and bool(find_property(properties, _DELAY))) or (
        _MAY_HAVE_COUNT in properties and bool(find_property(properties, live_dispatch.BATCH_COUNT))
    )
