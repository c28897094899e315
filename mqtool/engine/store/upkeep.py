"""What an open store asks for as time passes: units and keys are written, files flushed, and what is old is removed.

(Rules: store.md 8.4, 9. RocketMQ: ``FlushRealTimeService``, ``FlushConsumeQueueService``, ``CleanCommitLogService``.)
"""

import collections
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mqtool.engine.intervals import is_time
from mqtool.engine.store.disk import DiskFullError
from mqtool.errors import MqtoolError, WriteError

if TYPE_CHECKING:
    from mqtool.engine.store.disk import Disk
    from mqtool.engine.store.dispatcher import Dispatcher
    from mqtool.engine.store.health import Health
    from mqtool.engine.store.live_checkpoint import LiveCheckpoint
    from mqtool.engine.store.live_log import LiveLog
    from mqtool.engine.store.live_queue import LiveQueue
    from mqtool.engine.store.paths import StoreConfig
    from mqtool.engine.store.retention import Retention

log = logging.getLogger(__name__)

_PAGE = 4096
_DISPATCH_SECONDS, _DISPATCH_LOOKS = 0.01, 3000
_QUEUES_AT_ONCE = 200
"""Queues that one tick looks through for files to delete."""


class Upkeep:
    """The log, the queues and the index of a store on their way to the disk, and off it."""

    def __init__(
        self,
        root: Path,
        disk: "Disk",
        log: "LiveLog",
        dispatcher: "Dispatcher",
        health: "Health",
        checkpoint: "LiveCheckpoint",
        retention: "Retention",
        config: "StoreConfig",
        now: int,
    ) -> None:
        self.clean_failure: MqtoolError | None = None
        """Why what is old could not be removed; it is tried again."""
        self.removes_aside = False
        """Whether the caller calls ``remove_expired`` when ``has_expired``; otherwise ``tick`` does."""
        self._root = root
        self._disk = disk
        self._log = log
        self._dispatcher = dispatcher
        self._queues = dispatcher.queues
        self._health = health
        self._checkpoint = checkpoint
        self._retention = retention
        self._expired: collections.deque[Callable[[], None]] = collections.deque()
        self._removing = threading.Lock()
        self._cleaning: list[LiveQueue] = []
        self._flushing = threading.Lock()
        self._last_flush = self._last_thorough = self._last_queue_flush = now
        self.configure(config)

    def configure(self, config: "StoreConfig") -> None:
        """Apply new settings.

        Raises:
            UsageError: a setting makes no sense.
        """
        self._flush_interval = config.number("flushIntervalCommitLog", 500)
        self._flush_least = config.number("flushCommitLogLeastPages", 4) * _PAGE
        self._flush_thorough = config.number("flushCommitLogThoroughInterval", 10_000)
        self._queue_interval = config.number("flushIntervalConsumeQueue", 1000)

    def tick(self, now: int) -> None:
        """Do what is due: write units and keys, look at the disk, delete what is old. Call it some times a second."""
        self._dispatcher.write_some_units()
        self._log.release()
        self._retention.look(now)
        try:
            self._clean(now)
        except MqtoolError as error:
            self._note_clean(error)
        if not self.removes_aside:
            self.remove_expired()

    # Flushing

    def flush_is_due(self, now: int) -> bool:
        """Return whether it is time to ``flush`` a log whose producers do not wait for it, and start to count again."""
        waiting = self._log.end_offset - self._log.flushed_offset
        if is_time(self._last_thorough + self._flush_thorough, self._flush_thorough, now):
            self._last_thorough = self._last_flush = now
            return waiting > 0
        if waiting >= self._flush_least and is_time(self._last_flush + self._flush_interval, self._flush_interval, now):
            self._last_flush = now
            return True
        return False

    def flush(self) -> int:
        """Wait until everything appended before the call is on the disk, and return the address where that ends.

        Any thread may call this while messages are appended.

        Raises:
            WriteError: the disk failed, now or before: what was not on it is lost.
        """
        with self._flushing:
            return self._health.fatal(self._log.flush)

    def queue_flush_is_due(self, now: int) -> bool:
        """Return whether it is time to ``flush_queues``, and start to count again."""
        if not is_time(self._last_queue_flush + self._queue_interval, self._queue_interval, now):
            return False
        self._last_queue_flush = now
        return True

    def flush_queues(self) -> None:
        """Return when the units and keys that were written are on the disk, and the checkpoint says so.

        Any thread may call this. After a kill or a loss of power all is known to be in its place up to the message that
        the checkpoint names.

        Raises:
            DiskFullError: for the checkpoint: the next call tries again.
            WriteError: the disk failed, now or before.
        """
        with self._flushing:
            health, written, index = self._health, self._dispatcher.written, self._dispatcher.index
            if written.last_start >= self._log.flushed_offset:
                health.fatal(self._log.flush)
            health.fatal(self._queues.files.sync)
            flushed, indexed = self._log.flushed_timestamp, index.full_timestamp
            try:
                self._checkpoint.write(written, flushed, indexed)
            except DiskFullError:  # the previous one stays, and is as true as before
                raise
            except MqtoolError as error:
                health.failure = error
                raise

    # Deleting

    @property
    def has_expired(self) -> bool:
        """Whether there are files for ``remove_expired``."""
        return bool(self._expired)

    def remove_expired(self) -> None:
        """Remove the files that the store has released; any thread may call this.

        A file of a gigabyte takes the system a while. Where it cannot be removed ``clean_failure`` says so.
        """
        with self._removing:
            if not self._expired:
                return
            failure: MqtoolError | None = None
            for _ in range(len(self._expired)):
                remove = self._expired.popleft()
                try:
                    remove()
                except MqtoolError as error:
                    failure = error
                    self._expired.append(remove)  # behind the others
            self._note_clean(failure)

    def _note_clean(self, failure: MqtoolError | None) -> None:
        if failure and not self.clean_failure:
            log.warning("cannot remove expired files, and will try again: %s", failure)
        self.clean_failure = failure

    def _clean(self, now: int) -> None:
        if not self._expired and self._retention.may_delete(self._log, now):
            self._expired.append(self._log.remove_first())
            self._cleaning = list(self._queues.by_key.values())
        if self._cleaning:
            batch, self._cleaning = self._cleaning[-_QUEUES_AT_ONCE:], self._cleaning[:-_QUEUES_AT_ONCE]
            for queue in batch:
                self._expired += queue.remove_expired(self._log.min_offset)
            if not self._cleaning and self._dispatcher.is_indexed:
                self._expired += self._dispatcher.index.remove_expired(self._log.min_offset)

    def let_go_topic(self, topic: str, last: int | None = None) -> Callable[[], None] | None:
        """Release all queues of a topic, and return what removes their files; None if there are none.

        That may be called in any thread, more than once. Where it is not this one, somebody has to ``tick``: it waits
        until the messages of these queues are dispatched. Until it is done nothing is stored for the topic.

        Args:
            topic: its name.
            last: where the last message starts that may be in these queues; by default the last of the log.
        """
        queues = self._queues.let_go(topic)
        if not queues:  # the name may be anything then, also one that leads out of the store
            return None
        self._cleaning = [queue for queue in self._cleaning if queue.key[0] != topic]
        last = self._log.last_start if last is None else last
        busy, leaving = threading.Lock(), self._queues.leaving
        files = [file for queue in queues for file in queue.let_go()]

        def remove() -> None:
            with busy:
                if topic not in leaving or leaving[topic] is not remove:
                    return
                for _ in range(_DISPATCH_LOOKS):
                    if self._dispatcher.written.last_start >= last or self._health.failure is not None:
                        break
                    time.sleep(_DISPATCH_SECONDS)
                else:
                    raise WriteError(f"the queues of {topic} are kept for now: not all messages are dispatched")
                self.flush_queues()
                self.remove_expired()  # of these queues, too
                while files:
                    files[-1]()
                    files.pop()
                for queue in queues:
                    queue.remove_folders()
                for kind in ("consumequeue", "batchconsumequeue", "consumequeue_ext"):
                    folder = self._root / kind / topic
                    if folder.is_dir() and not any(folder.iterdir()):
                        self._disk.remove_folder(folder)
                del leaving[topic]

        leaving[topic] = remove
        return remove
