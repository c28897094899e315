"""A broker's start on a store, step by step, without writing to it.

Each step is that of ``DefaultMessageStore.load()`` and ``start()``, its faults included (spec 1.7, 3 to 7, 17). Not
covered: DLedger, queues in RocksDB, controller mode, and what services do later (expiry, delayed messages, timers).

Cost: linear in what the broker would read, at most the whole store.
"""

import collections
import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mqtool.engine.repair.java_recovery.files import (
    RULES,
    Scratch,
    StartRefusedError,
    VersionRules,
    load_segments,
    queue_folders,
    refused_table,
    refused_timer_files,
)
from mqtool.engine.repair.java_recovery.index import BrokerIndex, IndexHead
from mqtool.engine.repair.java_recovery.log import Checks, Times, Walk, catch_up, start_abnormally, start_normally
from mqtool.engine.repair.java_recovery.queue_ext import BrokerExt
from mqtool.engine.repair.java_recovery.queues import BrokerBatchQueue, BrokerQueue
from mqtool.engine.repair.parts import Progress
from mqtool.engine.repair.rebuild.index import shape_of
from mqtool.engine.store.dispatch import QueueKey, Units, dispatch
from mqtool.engine.store.file_queue import FileQueue
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.mapping import read_file
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import BadDataError, UsageError
from mqtool.formats import batch_consume_queue, checkpoint, consume_queue
from mqtool.formats.scan import MessageTable
from mqtool.formats.topics import LIGHT_QUEUE_PREFIX, SCHEDULE_TOPIC, has_folder

_UNITS = 300_000
_EXT_FILE_SIZE = 48 << 20
"""Sizes of files if neither settings nor files show them: RocketMQ's defaults."""


@dataclasses.dataclass(frozen=True)
class QueueState:
    """Minimum and maximum of a queue, and a digest of its units if requested.

    The digest is the beginning of a SHA-256 over a line ``queue offset:position:size:tags code`` for each unit.
    """

    min_offset: int
    max_offset: int
    count: int
    digest: str = ""


@dataclasses.dataclass(frozen=True)
class BrokerView:
    """The store as a broker sees it at one moment."""

    min_physical_offset: int
    max_physical_offset: int
    queues: dict[QueueKey, QueueState]
    index: list[IndexHead]
    times: Times


class BrokerStart:
    """A broker's start on a store, step by step, without writing to it.

    ``load`` and ``start`` are to be called in this order; each may raise ``StartRefusedError`` or ``EndlessError``.
    With ``keep_index`` the entries of index files are computed, too, as ``apply_as_broker`` needs them. ``mode`` is
    "normal" or "abnormal" for a start as after a clean stop or after a crash, whether ``abort`` is there or not.
    """

    def __init__(
        self,
        reader: StoreReader,
        version: str,
        keep_index: bool = False,
        progress: Progress = lambda _: None,
        mode: str | None = None,
    ) -> None:
        """Prepare; nothing is read yet.

        Raises:
            UsageError: no such version, or a store of a kind that is not covered.
        """
        if version not in RULES:
            raise UsageError(f"the rules of broker {version} are not known: use one of {', '.join(RULES)}")
        if reader.paths.dledger:
            raise UsageError("the commit log is a DLedger log, which is not supported here")
        if reader.rocksdb_queues:
            raise UsageError("the queues are in RocksDB, which is not supported here")
        self.reader = reader
        self.rules = _rules(version, reader.config)
        self.last_exit_ok = mode == "normal" if mode else not reader.has_abort_file
        self.segments: list[MappedFile] = []
        self.removed: list[Path] = []
        self.queues: dict[QueueKey, BrokerQueue] = {}
        self.walk: Walk | None = None
        self.start_offset: int | None = None
        self.start_reason = ""
        self.used = 0  # write position in the last segment
        self.times = Times()
        self.remarks: list[str] = []
        self._scratch = Scratch()
        self._progress = progress
        self._done = 0
        self._file_size = reader.commit_log.file_size or 1 << 30
        self._is_loading = True
        self._is_stuck = False  # a unit could not be written: no more are (RunningFlags, isCQWriteable)
        self._put_times = (0, 0)  # store time and offset of the last message given to a queue
        config = reader.config
        settings = config.settings
        self._index_safe = config.flag("messageIndexSafe") and self._is_indexing
        self._checks = Checks(
            crc=settings.get("checkCRCOnRecover", "true").lower() == "true",
            property_crc=config.flag("forceVerifyPropCRC") and self.rules.measures_first,
            duplicates=config.flag("duplicationEnable") and self.rules.measures_first,
        )
        self.index = BrokerIndex(reader.paths.index, shape_of(reader), self._scratch, self.rules, keep_index)
        for key in ("duplicationEnable", "enableControllerMode", "enableAcceleratedRecovery"):
            if config.flag(key):
                self.remarks.append(f"{key} is not supported here")

    @property
    def _is_indexing(self) -> bool:
        return self.reader.config.settings.get("messageIndexEnable", "true").lower() == "true"

    def close(self) -> None:
        """Free the space of computed files."""
        self._scratch.close()

    # load()

    def load(self) -> None:
        """Do what ``load()`` does."""
        paths = self.reader.paths
        if problem := refused_table(self.reader, self.rules):
            raise StartRefusedError(problem)
        self.segments, self.removed = load_segments(paths.commit_log, self._file_size, self.rules, "commit log")
        self._load_queues()
        data = read_file(paths.checkpoint) if paths.checkpoint.exists() else b""
        fields = checkpoint.CHECKPOINT.schema.parse(data.ljust(checkpoint.CHECKPOINT_SIZE, b"\0"))
        self.times = Times(*(int(getattr(fields, name)) for name in Times._fields))
        self.index.load(None if self.last_exit_ok else self.times.index_timestamp)
        for queue in self.queues.values():
            queue.recover()
        if self.segments:
            self._recover_log()
        else:
            for queue in self.queues.values():
                queue.clear()
        self._correct_min_offsets()
        for _, reason in refused_timer_files(self.reader) if self.rules.has_timer else ():
            raise StartRefusedError(reason)
        if self.rules.dispatches_at_start:
            try:
                self.reader.config_table("delayOffset.json")
            except BadDataError as error:
                raise StartRefusedError(str(error)) from error

    def _load_queues(self) -> None:
        paths, batched = self.reader.paths, self._batch_topics
        kinds: list[tuple[Path, type[BrokerQueue]]] = [(paths.consume_queue, BrokerQueue)]
        if self.rules.batch_queues:
            kinds.append((paths.batch_consume_queue, BrokerBatchQueue))
        for folder, kind in kinds:
            for topic, queue_id, path in queue_folders(folder):
                if self.rules.batch_queues and (topic in batched) != (kind is BrokerBatchQueue):
                    raise StartRefusedError(f"topic {topic} has a queue in {folder.name}, but not the matching type")
                queue = self._new_queue((topic, queue_id), path, kind)
                files, removed = load_segments([path], queue.file_size, self.rules, f"queue {queue_id} of {topic}")
                self.removed += removed
                queue.load(files)
                if queue.ext:
                    place = f"extension of queue {queue_id} of {topic}"
                    files, removed = load_segments(
                        [self._ext_folder(queue.key)], queue.ext.file_size, self.rules, place
                    )
                    self.removed += removed
                    queue.ext.load(files)
                self.queues[queue.key] = queue

    @functools.cached_property
    def _batch_topics(self) -> set[str]:
        try:
            table = self.reader.config_table("topics.json") or {}
        except BadDataError:
            return set()
        topics = table.get("topicConfigTable") or {}
        return {
            name for name, topic in topics.items() if (topic.get("attributes") or {}).get("queue.type") == "BatchCQ"
        }

    def _new_queue(self, key: QueueKey, folder: Path, kind: type[BrokerQueue]) -> BrokerQueue:
        queue = kind(key, folder, self._queue_file_size(kind), self._scratch, self.rules)
        if self._has_ext and kind is BrokerQueue:
            size = self.reader.config.size("mappedFileSizeConsumeQueueExt")
            size = size or _usual_size(self.reader.consume_queue_exts) or _EXT_FILE_SIZE
            queue.ext = BrokerExt(self._ext_folder(key), size, self._scratch)
        return queue

    def _ext_folder(self, key: QueueKey) -> Path:
        return self.reader.paths.consume_queue_ext / key[0] / str(key[1])

    @property
    def _has_ext(self) -> bool:
        config = self.reader.config
        if "enableConsumeQueueExt" in config.settings:
            return config.flag("enableConsumeQueueExt")
        return bool(self.reader.consume_queue_exts)

    def _queue_file_size(self, kind: type[BrokerQueue]) -> int:
        if kind is BrokerBatchQueue:
            size = self.reader.config.size("mapperFileSizeBatchConsumeQueue")
            return size or _usual_size(self.reader.batch_consume_queues) or _UNITS * batch_consume_queue.UNIT_SIZE
        size = self.reader.config.size("mappedFileSizeConsumeQueue")
        return size or _usual_size(self.reader.consume_queues) or _UNITS * consume_queue.UNIT_SIZE

    def _recover_log(self) -> None:
        known = max((queue.max_physical_offset for queue in self.queues.values()), default=-1)
        index_timestamp = self.times.index_timestamp if self._index_safe else None
        if self.last_exit_ok:
            start, why = start_normally(self.segments, self.rules, self._checks, known, index_timestamp)
        else:
            start, why = start_abnormally(self.segments, self.rules, self._checks, self.times, index_timestamp)
        self.start_offset, self.start_reason = self.segments[start].start_offset, why
        # Used as last record if there is none: the end of the last file, or the start.
        last_offset = self.segments[-1].end_offset if self.last_exit_ok else self.start_offset
        self.walk = Walk(self.segments, start, self.rules, self._checks)
        for table in self.walk.tables():
            self._dispatch_in_load(table, known)
        end_offset = self.walk.end_offset
        if self.walk.array_size:
            self._remark(
                f"the record at {end_offset:,} claims to have {self.walk.array_size:,} bytes: a broker without "
                "enough heap for them crashes"
            )
        if self.rules.notes_confirm_offset:
            last_offset = last_offset if self.walk.last_offset is None else self.walk.last_offset
            self.times = self.times._replace(confirm_physical_offset=last_offset)
        if self.rules.looks_back is not None:
            known = max((queue.max_physical_offset for queue in self.queues.values()), default=-1)
        if known >= end_offset:
            for queue in self.queues.values():
                queue.cut(end_offset)
        self.removed += [segment.path for segment in self.segments if segment.start_offset > end_offset]
        self.segments = [segment for segment in self.segments if segment.start_offset <= end_offset]
        self.used = min(end_offset - self.segments[-1].start_offset, self._file_size)

    def _dispatch_in_load(self, table: MessageTable, known: int) -> None:
        if not self.last_exit_ok:
            self._dispatch(table)
        elif not self.rules.dispatches_at_start:
            # The record that begins where the queues end is skipped.
            self._dispatch(table.where(table.column("physical_offset") > known))

    def _correct_min_offsets(self) -> None:
        for queue in self.queues.values():
            queue.correct_min_offset(self.min_physical_offset)

    # start()

    def start(self) -> None:
        """Do what ``start()`` does, until the dispatcher has caught up."""
        self._is_loading = False
        if self.rules.dispatches_at_start:
            known = max((queue.max_physical_offset for queue in self.queues.values()), default=0)
            for table in catch_up(self.segments, self.used, self._file_size, max(known, 0), self.rules):
                self._dispatch(table)
            self._correct_min_offsets()

    def stop(self) -> Times:
        """Return the checkpoint that a clean stop leaves; index files are completed."""
        self.index.finish()
        times = self.times
        if self.rules.looks_back is not None:  # 5.5 updates them when the queues are on the disk
            stored, offset = self._put_times
            times = times._replace(
                logics_timestamp=stored if stored > 0 else times.logics_timestamp,
                logics_physical_offset=offset if offset > 0 else times.logics_physical_offset,
            )
        return times

    def _remark(self, sentence: str) -> None:
        if sentence not in self.remarks:
            self.remarks.append(sentence)

    # The view

    @property
    def min_physical_offset(self) -> int:
        """Where the log begins, -1 without one."""
        return self.segments[0].start_offset if self.segments else -1

    @property
    def max_physical_offset(self) -> int:
        """Where the log ends, 0 without one."""
        return self.segments[-1].start_offset + self.used if self.segments else 0

    def view(self, digests: bool = False) -> BrokerView:
        """Return the store as the broker sees it now.

        Args:
            digests: also read every unit.
        """
        return BrokerView(
            self.min_physical_offset,
            self.max_physical_offset,
            {key: _queue_view(queue, digests) for key, queue in self.queues.items()},
            [file.head for file in self.index.files],
            self.times,
        )

    # Dispatching

    def _dispatch(self, table: MessageTable) -> None:
        if not len(table):
            return
        # 4.9 reads its delay levels only after recovery: until then a delayed message is like any other.
        unready = self._is_loading and self.rules.dispatches_at_start
        derived = dispatch(table, [] if unready else self.reader.delay_levels, self.rules.tags_in_index)
        if unready and any(key[0] == SCHEDULE_TOPIC for key, _, _ in derived.units.stretches):
            self._remark("delayed messages that it dispatches now lose their delivery time")
        units = self._until_stuck(table, derived.units)
        for stretch in units.stretches:
            self._put(table, units, *stretch)
        if len(units):
            row = int(units.rows.max())
            stored, offset = int(table.column("store_timestamp")[row]), int(table.column("physical_offset")[row])
            self._put_times = stored, offset
            if self.rules.looks_back is None:
                self.times = self.times._replace(logics_timestamp=stored)
        if self._is_indexing:
            self.index.put(table, derived.entries)
            if self.index.full_timestamps:
                self.times = self.times._replace(index_timestamp=self.index.full_timestamps[-1])
        self._done += int(table.column("size").sum())
        self._progress(self._done)

    def _until_stuck(self, table: MessageTable, units: Units) -> Units:
        """Return the units that it writes: none from the first message on for whose queue no folder can be created."""
        stuck = [
            first for (topic, _), first, _ in units.stretches if not self._is_stuck and not has_folder(topic.encode())
        ]
        if stuck:
            row = min(int(units.rows[first]) for first in stuck)
            units = units.where(units.rows < row)
            self._remark(
                f"it waits for half a minute at the message at {int(table.column('physical_offset')[row]):,}, whose "
                "topic cannot be the name of a folder (LOG-TOPIC), and gives no queue unit to any message from "
                "there on"
            )
        elif self._is_stuck:
            units = units.where(np.zeros(len(units), np.bool_))
        self._is_stuck |= bool(stuck)
        return units

    def _put(self, table: MessageTable, units: Units, key: QueueKey, first: int, last: int) -> None:
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues[key] = self._make_queue(key)
        rows = units.rows[first:last]
        packed = np.zeros(last - first, queue.dtype)
        packed["physical_offset"] = table.column("physical_offset")[rows]
        packed["size"] = units.size[first:last]
        packed["tags_code"] = units.tags_code[first:last]
        if queue.ext and not key[0].startswith(LIGHT_QUEUE_PREFIX):
            packed["tags_code"] = queue.ext.put(units.tags_code[first:last], units.store_timestamp[first:last])
        if isinstance(queue, BrokerBatchQueue):
            packed["store_timestamp"] = units.store_timestamp[first:last]
            packed["queue_offset"] = units.queue_offset[first:last]
            packed["batch_size"] = units.batch_size[first:last]
            packed["compacted_offset"] = -1
        step = units.batch_size[first:last]
        if isinstance(queue, BrokerBatchQueue) or (step == 1).all():
            queue.put(packed, int(units.queue_offset[first]))
        else:
            for number in range(len(packed)):
                queue.put(packed[number : number + 1], int(units.queue_offset[first + number]))

    def _make_queue(self, key: QueueKey) -> BrokerQueue:
        batch = self.rules.batch_queues and key[0] in self._batch_topics
        paths = self.reader.paths
        folder = paths.batch_consume_queue if batch else paths.consume_queue
        return self._new_queue(key, folder / key[0] / str(key[1]), BrokerBatchQueue if batch else BrokerQueue)


def _usual_size(queues: Mapping[QueueKey, FileQueue]) -> int | None:
    """Return the file size of most queues that have files."""
    sizes = collections.Counter(queue.file_size for queue in queues.values() if queue.segments)
    return sizes.most_common(1)[0][0] if sizes else None


def _rules(version: str, config: StoreConfig) -> VersionRules:
    """Return the rules of a version, with the configured number of segments to look back."""
    rules, most = RULES[version], config.settings.get("commitLogRecoverMaxNum", "")
    if rules.looks_back is not None and most.isdigit() and int(most) > 0:
        return dataclasses.replace(rules, looks_back=int(most))
    return rules


def _queue_view(queue: BrokerQueue, digests: bool) -> QueueState:
    digest, count = hashlib.sha256(), 0
    if not digests:
        return QueueState(queue.min_offset, queue.max_offset, queue.max_offset - queue.min_offset)
    for first, units in queue.in_use():
        count += len(units)
        offsets = units["queue_offset"] if isinstance(queue, BrokerBatchQueue) else np.arange(len(units)) + first
        columns = (offsets, units["physical_offset"], units["size"], units["tags_code"])
        lines = (f"{a}:{b}:{c}:{d}\n" for a, b, c, d in zip(*(column.tolist() for column in columns), strict=True))
        digest.update("".join(lines).encode())
    return QueueState(queue.min_offset, queue.max_offset, count, digest.hexdigest()[:16])
