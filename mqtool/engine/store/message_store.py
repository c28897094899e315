"""``MessageStore``: the store of a running broker. It appends, dispatches, flushes, reads and deletes.

A message is written to the log before ``append`` returns, so that it survives the end of the process; it survives that
of the machine once ``flush`` has reached it. Queues and index are written at each ``tick``, but reads see messages
at once. ``opening.py`` opens a store, ``appending.py`` appends messages, ``dispatcher.py`` derives units and keys,
and ``upkeep.py`` does what is due as time passes.
(Rules: store.md 7 to 9. RocketMQ: ``DefaultMessageStore``, ``CommitLog``.)
"""

import contextlib
import os
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from mqtool.engine.store.append_result import AppendResult, PutStatus
from mqtool.engine.store.appending import Appender
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.dispatcher import MANY_WAITING, MAX_WAITING, Dispatcher
from mqtool.engine.store.file_kinds import LOCK
from mqtool.engine.store.health import DISK_IS_FULL, Health
from mqtool.engine.store.live_checkpoint import LiveCheckpoint
from mqtool.engine.store.live_dispatch import Pairs
from mqtool.engine.store.live_queue import LiveQueue, QueueKey
from mqtool.engine.store.locks import hold
from mqtool.engine.store.log_end import clear_behind, records_before, whole_at
from mqtool.engine.store.opening import Opened, make_folders
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.retention import DiskUsage, Retention, disk_usage
from mqtool.engine.store.time_search import Boundary
from mqtool.engine.store.upkeep import Upkeep
from mqtool.errors import FormatError, MqtoolError, NotFoundError, RecoveryNeededError, UsageError, WriteError
from mqtool.formats.message import Message, message_of
from mqtool.formats.new_message import BatchElement, NewMessage
from mqtool.formats.properties import split_keys

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
        "retentionWaitsForReaders",
    )
)
"""Settings that can be changed while a store is open."""


class MessageStore:
    """The store under one folder, open for a broker.

    One thread calls everything; only ``flush``, ``flush_queues``, ``make_files`` and ``remove_expired`` may be called
    in others. The caller supplies the time: ``now`` is in ms. After a failure of the disk (``Health``) ``close`` leaves
    a store that has to be recovered.
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
        """Open the store under ``root``, or create one.

        Args:
            root: its folder.
            config: the broker's settings.
            now: the time, in ms.
            disk: through which everything is written.
            usage: returns how full the disk is.
            batch_topics: topics whose queues keep several messages in a unit; examined when a queue is new.

        Raises:
            StoreInUseError: another process, perhaps a broker, has it open.
            RecoveryNeededError: RocketMQ has not closed it, or its files are inconsistent: ``recover`` it first.
            NotPermittedError: this user may not write to it.
            UsageError: a setting makes no sense.
        """
        self.root = Path(root)
        self.config = config = config or StoreConfig()
        self.was_repaired = False
        """Whether it had to be repaired before it could be opened: messages may be missing from before others."""
        self.cut_size = 0
        """How many bytes of incomplete messages were then cut from the end of the log."""
        if config.flag("enableDLegerCommitLog"):
            raise UsageError("enableDLegerCommitLog=true: DLedger logs can be read, but not written")
        self.delay_levels = config.delay_levels()
        is_indexed = config.flag("messageIndexEnable", True)
        disk = disk or Disk()
        with contextlib.ExitStack() as stack:
            make_folders(self.root, config, disk)
            stack.enter_context(hold(self.root / LOCK.name))
            opened = Opened(self.root, config, disk, batch_topics, is_indexed=is_indexed)
            stack.callback(opened.let_go)
            self.was_recovered = opened.was_left
            """Whether the store had not been closed: data outside of it may be older than its messages."""
            self.log = opened.log
            self.index = opened.index
            self.retention = Retention(config, opened.folders, usage)
            self._health = Health()
            self.dispatcher = Dispatcher(
                self.log,
                opened.queues,
                self.index,
                self._health,
                delay_levels=self.delay_levels,
                is_indexed=is_indexed,
                reached=opened.reached,
                next_offset=self.log.flushed_offset,
            )
            self._appender = Appender(self.log, self.dispatcher, self._health, self.retention, config)
            self._checkpoint = LiveCheckpoint(self.root, disk, opened.checkpoint)
            self._upkeep = Upkeep(
                self.root,
                disk,
                self.log,
                self.dispatcher,
                self._health,
                self._checkpoint,
                self.retention,
                config,
                now,
            )
            self.dispatcher.let_go = self._upkeep.let_go_topic
            if self.was_recovered:  # the checkpoint stays until that is on the disk, in case of a kill in the meantime
                self.cut_size = clear_behind(self.log, disk)
                self.dispatcher.read_on()
                self.dispatcher.write_units()
            keeps_checkpoint = self.was_recovered or self.log.last_start < 0
            self._checkpoint.begin(None if keeps_checkpoint else opened.reached, self.log.flushed_timestamp)
            self._stack = stack.pop_all()
        self._queues = self.dispatcher.queues.by_key
        self._files = self.dispatcher.queues.files
        self.append = self._appender.append
        self.append_batch: Callable[[NewMessage, int], AppendResult] = self._appender.append_batch
        self.append_each: Callable[[NewMessage, Sequence[BatchElement], Sequence[Pairs], int], list[AppendResult]] = (
            self._appender.append_each
        )
        self.append_bytes = self._appender.append_bytes
        self.tick = self._upkeep.tick
        self.write_units = self.dispatcher.write_units
        self.write_some_units = self.dispatcher.write_some_units
        self.flush_is_due = self._upkeep.flush_is_due
        self.flush = self._upkeep.flush
        self.queue_flush_is_due = self._upkeep.queue_flush_is_due
        self.flush_queues = self._upkeep.flush_queues
        self.remove_expired = self._upkeep.remove_expired
        self.let_go_topic = self._upkeep.let_go_topic

    def configure(self, changes: Mapping[str, str]) -> None:
        """Change settings of ``CHANGEABLE``, by RocketMQ's names, while the store is open.

        Raises:
            UsageError: a setting makes no sense; none is changed.
        """
        before = self.config
        self.config = StoreConfig({**before.settings, **changes})
        try:
            self._configure()
        except UsageError:
            self.config = before
            self._configure()
            raise

    def _configure(self) -> None:
        for part in (self._appender, self._upkeep, self.retention):
            part.configure(self.config)

    # State

    @property
    def failure(self) -> MqtoolError | None:
        """Why nothing can be stored any more, permanently."""
        return self._health.failure

    @property
    def refusal(self) -> str | None:
        """Why nothing is stored at the moment, None while messages are taken."""
        if self._health.failure is not None:
            return str(self._health.failure)
        return DISK_IS_FULL if self.retention.is_full or self._health.is_held_up else None

    @property
    def is_sync(self) -> bool:
        """Whether producers get an answer only when the message is on the disk."""
        return self._appender.is_sync

    @property
    def most_of_batch(self) -> int:
        """Bytes that the records of a batch may have in total."""
        return self._appender.most_of_batch

    @property
    def clean_failure(self) -> MqtoolError | None:
        """Why what is old could not be removed; it is tried again."""
        return self._upkeep.clean_failure

    @property
    def has_expired(self) -> bool:
        """Whether there are files for ``remove_expired``."""
        return self._upkeep.has_expired

    @property
    def removes_aside(self) -> bool:
        """Whether the caller calls ``remove_expired`` when ``has_expired``; otherwise ``tick`` does."""
        return self._upkeep.removes_aside

    @removes_aside.setter
    def removes_aside(self, removes_aside: bool) -> None:
        self._upkeep.removes_aside = removes_aside

    @property
    def makes_aside(self) -> bool:
        """Whether the caller calls ``make_files`` when ``wants_files``; otherwise files are created when needed."""
        return self._files.makes_aside

    @makes_aside.setter
    def makes_aside(self, makes_aside: bool) -> None:
        self._files.makes_aside = makes_aside

    @property
    def wants_files(self) -> bool:
        """Whether there are files for ``make_files``."""
        return self._files.is_any_wanted or self.log.has_little_room

    def make_files(self) -> None:
        """Create the wanted files of new queues and of the index, and the next segment; any thread may call this."""
        self._files.make_wanted()
        self.log.make_ahead()

    @property
    def has_much_to_write(self) -> bool:
        """Whether ``write_units`` should be called soon: the longer it waits, the longer it takes."""
        return self.dispatcher.has_much_to_write

    def take_only_copies(self) -> None:
        """Refuse messages from now on: only bytes of a master's log are appended."""

        def refuse(message: NewMessage, now: int, *, is_again: bool = False) -> AppendResult:  # noqa: ARG001
            return AppendResult(PutStatus.SERVICE_NOT_AVAILABLE)

        def refuse_each(run: NewMessage, elements: Sequence[BatchElement], *_: object) -> list[AppendResult]:
            return [refuse(run, 0) for _ in elements]

        self.append = self.append_batch = refuse
        self.append_each = refuse_each
        self.dispatcher.many_waiting = MAX_WAITING

    def take_messages(self) -> None:
        """Accept messages again, after ``take_only_copies``."""
        self.append, self.append_batch = self._appender.append, self._appender.append_batch
        self.append_each = self._appender.append_each
        self.dispatcher.many_waiting = MANY_WAITING

    # Reading

    @property
    def safe_offset(self) -> int:
        """Up to where the log is as safe as producers require: on the disk, and on replicas, if configured."""
        safe, confirmed = self.log.flushed_offset if self.is_sync else self.log.end_offset, self.log.confirmed_offset
        return safe if confirmed is None else min(safe, confirmed)

    @property
    def end_offset(self) -> int:
        """Where the log ends."""
        return self.log.end_offset

    @property
    def flushed_offset(self) -> int:
        """Up to where the log is on the disk."""
        return self.log.flushed_offset

    def queue(self, topic: str, queue_id: int) -> LiveQueue | None:
        """Return a queue, None if no message has come for it."""
        return self._queues.get((topic, queue_id))

    @property
    def queue_count(self) -> int:
        """How many queues there are."""
        return len(self._queues)

    def queues(self) -> list[QueueKey]:
        """Return topic and id of all queues."""
        return list(self._queues)

    def queues_of(self, topic: str) -> list[QueueKey]:
        """Return topic and id of the queues of a topic; cost: linear in these."""
        return self.dispatcher.queues.of_topic(topic)

    def offset_at(self, queue: LiveQueue, timestamp: int, boundary: Boundary = Boundary.LOWER) -> int:
        """Return the queue offset for a time (ms), by the store times of messages."""
        queue_offset = queue.offset_of_time(timestamp, boundary, self.log)
        return min(max(queue_offset, queue.min_offset(self.log.min_offset)), queue.next_offset)

    def earliest_timestamp(self) -> int:
        """Return when the first message of the log was stored (ms), -1 if there is none."""
        return self.log.store_timestamp(self.log.min_offset)

    def find(self, topic: str, key: str, begin: int, end: int, most: int) -> list[Message]:
        """Return the messages with a key that were stored from ``begin`` to ``end`` (ms), the newest first."""
        messages = []
        for offset in self.index.find(topic, key, begin, end, most):
            with contextlib.suppress(NotFoundError, FormatError):
                message = message_of(bytes(self.log.record(offset)), offset)
                if message.topic == topic and key in (message.unique_key, *split_keys(message.keys or "")):
                    messages.append(message)
        return messages

    # The end

    def last_records(self, count: int) -> list[tuple[int, bytes]]:
        """Return address and bytes of the last records, in order; on a slave the last may be incomplete.

        Raises:
            RecoveryNeededError: the log ends in something else.
            WriteError: the disk fails.
        """
        self.dispatcher.read_on()  # what was received before the disk was full
        end = self.dispatcher.next_offset
        records = records_before(self.log, min(end, self.end_offset), count)
        if end < self.end_offset:
            records.append((end, self.log.read_bytes(end, self.end_offset - end)))
        return records

    def checksum(self, at: int, size: int) -> int:
        """Return the CRC-32 of a range of the log."""
        checksum, end = 0, at + size
        while at < end:
            data = self.log.read(at, end - at)  # up to the end of a segment
            if not data:
                break
            checksum, at = zlib.crc32(data, checksum), at + len(data)
        return checksum

    def start_of_record(self, at: int) -> int:
        """Return the start of the record, or blank one, that contains an address; cost: linear in what follows it."""
        count = 16
        while True:
            records = self.last_records(count)
            if len(records) < count or records[0][0] <= at:
                start, record = max((item for item in records if item[0] <= at), default=(self.log.min_offset, b""))
                return start if at < start + len(record) else start + len(record)
            count *= 4

    def blank_at_end(self) -> int | None:
        """Return where the unused end of the last segment starts, None if the log does not end with one."""
        end, size = self.end_offset, self.log.file_size
        if end % size or end <= self.log.min_offset:
            return None
        start = max((at + len(record) for at, record in records_before(self.log, end, 1)), default=end)
        return start if end - size < start < end else None

    def cut_blank(self, end: int) -> bool:
        """Cut off the unused end of the last segment, if it starts at ``end``, and return whether it does.

        A killed master cuts off its own when it restarts, and writes the next message there if it fits.

        Raises:
            WriteError: the disk fails.
        """
        try:
            extent = whole_at(self.log, end) if end >= self.log.min_offset else None
        except RecoveryNeededError:
            return False
        if extent is None or extent[1] or end + extent[0] < self.end_offset:
            return False
        self.log.cut(end)
        self.dispatcher.next_offset = end
        return True

    def cut_half(self) -> bool:
        """Cut off an incomplete record that was received, and return whether one was: its sender starts with it again.

        Raises:
            RecoveryNeededError: the log ends in something else.
            WriteError: the disk fails.
        """
        self.dispatcher.read_on()
        is_any = self.dispatcher.next_offset < self.log.end_offset
        self.log.cut(self.dispatcher.next_offset)
        return is_any

    def close(self) -> None:
        """Write and sync everything, and release the store; removes ``abort`` if all of that succeeded.

        Raises:
            WriteError: the disk failed, now or before; the store must be recovered.
        """
        try:
            self.cut_half()
            self.write_units()
            if self._health.is_held_up:
                raise WriteError(f"{self.root} has to be recovered: {DISK_IS_FULL}")
            self.flush()
            self.flush_queues()
            self.remove_expired()
            self._checkpoint.end()
        finally:
            self._stack.close()
