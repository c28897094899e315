"""A new store: the messages are written to the log, and everything else is built as after a clean stop.

Until it is complete and synced it holds an ``abort`` file, as if its broker were running (``making``). The contents
of that file differ from a broker's, so that the next attempt removes what a killed one has left.

Cost: linear in the bytes that are written.
"""

from __future__ import annotations

import collections
import contextlib
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mqtool.engine.repair.checks import finding
from mqtool.engine.repair.findings import Finding, Severity
from mqtool.engine.repair.journal import RepairFailedError
from mqtool.engine.repair.parts import Progress
from mqtool.engine.repair.rebuild import config as rebuild_config
from mqtool.engine.repair.rebuild.plan import Built, build
from mqtool.engine.repair.recover.record_editor import with_pairs
from mqtool.engine.repair.row_findings import MAX_LISTED, FindingsOfRows
from mqtool.engine.repair.salvage.queue_order import Missing
from mqtool.engine.repair.verify.log import TIME_ORDER
from mqtool.engine.repair.verify.records import (
    NO_CRC,
    check_records,
    is_repairable_crc,
    right_delay_levels,
    right_flags,
    right_offsets,
)
from mqtool.engine.repair.verify.store_times import CONTEXT, corrections
from mqtool.engine.store.disk import Disk, inside
from mqtool.engine.store.dispatch import dispatch, inner_batch_topics, properties_of
from mqtool.engine.store.file_kinds import ABORT, CHECKPOINT, COMMIT_LOG, CONFIG
from mqtool.engine.store.locks import hold_folder
from mqtool.engine.store.log_writer import Bytes, LogWriter, ends_in_crc, is_apart, mark_crcs, put_numbers
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import MqtoolError, NotPermittedError, UsageError, WriteError
from mqtool.formats import checkpoint, placeholder
from mqtool.formats import commit_log as layout
from mqtool.formats import kernels as plain
from mqtool.formats.message import message_at
from mqtool.formats.placeholder import RecordTemplate
from mqtool.formats.property_names import DELAY
from mqtool.formats.scan import Ints, MessageTable
from mqtool.formats.topics import SCHEDULE_TOPIC

_QUEUE_ID_AT, _QUEUE_OFFSET_AT, _SYS_FLAG_AT = (
    layout.offset_in_head(name) for name in ("queue_id", "queue_offset", "sys_flag")
)
_MAX_IN_BATCH = 256  # lost messages that one record represents
_AT_ONCE = 1000


_TELLING = layout.COMPRESSED | layout.INNER_BATCH | layout.TRANSACTION_MASK
"""Flags of records that other parts may contradict."""
_CONTRADICTED = (
    (_SYS_FLAG_AT, ">i4", "LOG-FLAG", "its system flag contradicts its body, it is rewritten"),
    (_QUEUE_OFFSET_AT, ">i8", "LOG-PROPERTIES", "its queue offset is not INNER_BASE, which is used instead"),
)
"""Position, format and finding of numbers that are corrected, and the remark on it."""
_MARK = b"mqtool is making this store: it is not whole\n"


def refuse_used(root: Path) -> None:
    """Raise ``UsageError`` if something is in the way of a new store, unless it ``is_unfinished``."""
    try:
        is_used = root.exists() and (not root.is_dir() or bool(inside(root)))
        is_used = is_used and not is_unfinished(root)
    except PermissionError as error:
        raise NotPermittedError(f"no permission to read {root}") from error
    if is_used:
        raise UsageError(f"{root} is not empty: give a folder that is empty or does not exist yet")


def is_unfinished(root: Path) -> bool:
    """Return whether a folder holds only what a killed ``making`` has left."""
    abort = root / ABORT.name
    if not abort.is_file():
        return False
    with abort.open("rb") as file:
        mark = file.read(len(_MARK))
    return mark == _MARK or (_MARK.startswith(mark) and inside(root) == [abort])


def refuse_lack_of_room(path: Path, size: int) -> None:
    """Raise ``WriteError`` if the disk of ``path``, which need not exist, has less than ``size`` bytes left."""
    place = next(ancestor for ancestor in (path.absolute(), *path.absolute().parents) if ancestor.exists())
    free = shutil.disk_usage(place).free
    if free < size:
        raise WriteError(f"no space left in {place}: {size:,} bytes are needed, {free:,} are free; nothing was written")


@contextlib.contextmanager
def making(root: Path, disk: Disk) -> Iterator[None]:
    """Create the folder of a new store, with an ``abort`` file until everything in it is complete and synced.

    Its contents are removed if anything fails. Only a kill, a power loss or a disk that refuses removals
    leaves something behind, with ``abort``, by which the next ``making`` recognizes and removes it.

    Raises:
        UsageError: it is not empty.
        StoreInUseError: another process is creating a store there.
        RepairFailedError: something failed, and the new files cannot be removed.
    """
    refuse_used(root)
    missing = [ancestor for ancestor in (root, *root.parents) if not ancestor.exists()]
    with contextlib.ExitStack() as held:
        with _removed_on_failure(root, missing, disk):
            for folder in reversed(missing):
                disk.make_folder(folder)
                disk.sync_folder(folder.parent)
        held.enter_context(hold_folder(root))
        refuse_used(root)
        with _removed_on_failure(root, missing, disk):
            if is_unfinished(root):
                _empty(root, disk)
            _mark(root, disk)
            yield
            disk.sync_folder(root)
            disk.remove(root / ABORT.name)
            disk.sync_folder(root)


@contextlib.contextmanager
def _removed_on_failure(root: Path, folders: Sequence[Path], disk: Disk) -> Iterator[None]:
    """Leave an empty folder without any of ``folders`` if anything fails."""
    try:
        yield
    except BaseException as error:
        try:
            if root.is_dir() and inside(root):
                _empty(root, disk)
            for folder in folders:
                if folder.is_dir():
                    disk.remove_folder(folder)
        except (MqtoolError, OSError) as second:
            if isinstance(error, MqtoolError | OSError):
                then = f"the incomplete output in {root} could not be removed ({second}): remove it"
                raise RepairFailedError(error, then) from error
        raise


def _mark(root: Path, disk: Disk) -> None:
    abort = root / ABORT.name
    disk.create(abort)
    disk.write(abort, 0, _MARK)
    disk.sync(abort)
    disk.sync_folder(root)


def _empty(root: Path, disk: Disk) -> None:
    """Empty a folder, ``abort`` last, as it says that the rest is incomplete."""
    abort = root / ABORT.name
    if not abort.exists():
        _mark(root, disk)
    for path in inside(root):
        if path != abort:
            disk.remove_tree(path)
    disk.sync_folder(root)
    disk.remove(abort)


_LOG_PLACES = ("storePathCommitLog", "readOnlyCommitLogStorePaths")


def of_other_logs(config: StoreConfig) -> Iterator[str]:
    """Yield a remark for each setting by which a broker would use the log of another store with the new queues."""
    for key in _LOG_PLACES:
        if key in config.settings:
            yield f"{key} names the folders of another log: remove it from the settings of the new store's broker"


class NewStore:
    """A store under construction in a folder of ``making``.

    ``placeholders`` counts, by topic, the queue offsets without a message.
    """

    def __init__(
        self,
        root: Path,
        disk: Disk,
        config: StoreConfig,
        file_size: int,
        start_offset: int = 0,
        batch_topics: Collection[str] = (),
    ) -> None:
        """Begin.

        Args:
            root: the folder, empty.
            disk: through which everything is written.
            config: sizes of the new files, and delay levels.
            file_size: bytes of a segment.
            start_offset: address of the first segment.
            batch_topics: whose units hold several messages; inner batches add more.
        """
        self.root = root
        self.disk = disk
        # The log must not go where another store keeps its own.
        self.config = StoreConfig({key: value for key, value in config.settings.items() if key not in _LOG_PLACES})
        self.batch_topics = set(batch_topics)
        self.placeholders: dict[str, int] = {}
        self.last_timestamp = 0
        self._held: _Put | None = None  # until the next messages show whether its store times are possible
        self._times = np.empty(0, np.int64)  # of the last messages
        self._has_crc = False  # the last message
        self._repaired: collections.Counter[str] = collections.Counter()
        self._left: collections.Counter[tuple[str, str]] = collections.Counter()  # codes, and what they say
        disk.make_folder(root / COMMIT_LOG.name)
        self.log = LogWriter(disk, root / COMMIT_LOG.name, file_size, start_offset)

    def put(
        self,
        table: MessageTable,
        missing: Sequence[tuple[int, Missing]] = (),
        queue_ids: Ints | None = None,
        queue_offsets: Ints | None = None,
    ) -> None:
        """Append messages; impossible numbers are corrected, and listed by ``remarks``.

        Args:
            table: of them; sound, and not empty; it must stay as it is until the next call.
            missing: queue offsets to be filled by placeholders, each with the row before which that is done; in order.
            queue_ids: new ones, if they change.
            queue_offsets: new ones, if they change.

        Raises:
            BadDataError: a message is too large for a segment.
            WriteError: the disk is full, or fails.
        """
        self._note_batches(table)
        self._write_held(table.column("store_timestamp")[:CONTEXT], is_last=False)
        self._held = _Put(table, missing, queue_ids, queue_offsets)

    def remarks(self) -> Iterator[str]:
        """Yield what was corrected in the messages so far, and what remains wrong with them."""
        for text, count in self._repaired.items():
            yield f"{count:,} message{'s' if count > 1 else ''}: {text}"
        for (code, message), count in self._left.items():
            times = "once" if count == 1 else f"{count:,} times"
            yield f"left unchanged ({code}), {times}: {message}; see `mqtool explain {code}`"

    def end(self) -> None:
        """Write all messages."""
        self._write_held(np.empty(0, np.int64), is_last=True)

    def _write_held(self, ahead: Ints, *, is_last: bool) -> None:
        """Write waiting messages; ``ahead``: store times of the next ones."""
        if self._held is None:
            return
        table, missing, queue_ids, queue_offsets = self._held
        self._held = None
        sizes = table.column("size").astype(np.int64)
        records = _records(table, sizes)
        ends = np.cumsum(sizes)
        times = self._right_times(table, ahead, is_last)
        for form, head in enumerate(layout.HEADS):
            rows = np.flatnonzero((times != table.column("store_timestamp")) & (_forms(table) == form))
            put_numbers(records, (ends - sizes)[rows] + head.offset_of("store_timestamp"), times[rows], ">i8")
        if queue_ids is not None:
            put_numbers(records, ends - sizes + _QUEUE_ID_AT, queue_ids, ">i4")
        if queue_offsets is not None:
            put_numbers(records, ends - sizes + _QUEUE_OFFSET_AT, queue_offsets, ">i8")
        self._put_right(table, records, ends - sizes)
        self._repair_crcs(table, records, ends)
        done = 0
        for row, gap in missing:
            if row > done:
                self._append(records, ends, sizes, done, row)
                done = row
            has_crc = bool(ends_in_crc(records, ends[row : row + 1])[0])
            self._fill(gap, RecordTemplate.of(table, row, has_crc)._replace(store_timestamp=int(times[row])))
        self._append(records, ends, sizes, done, len(table))
        self.last_timestamp = int(times[-1])

    def _right_times(self, table: MessageTable, ahead: Ints, is_last: bool) -> Ints:
        """Return the store times of messages, impossible ones corrected."""
        before, times = len(self._times), table.column("store_timestamp").astype(np.int64)
        stop = before + len(times)
        joined = np.concatenate([self._times, times, ahead])
        decided = corrections(joined, first=before, more=not is_last)
        for row, time in decided.times.items():
            if row < stop:
                times[row - before] = time
                self._repaired["its store time is impossible, it gets the time of the message beside it"] += 1
        for row in decided.left:
            if before <= row < stop:
                self._leave(finding("LOG-TIME-ORDER", TIME_ORDER))
        self._times = np.concatenate([self._times, times])[-CONTEXT:]
        return times

    def _put_right(self, table: MessageTable, records: Bytes, starts: Ints) -> None:
        """Correct impossible system flags, queue offsets of batches and delay levels; note what remains wrong."""
        flags = table.column("sys_flag")
        ids, names = table.topics()
        topics = self.batch_topics | {SCHEDULE_TOPIC}
        numbers_of_topics = [number for number, name in enumerate(names) if name.decode("utf-8", "replace") in topics]
        rows = np.flatnonzero((flags & _TELLING != 0) | np.isin(ids, numbers_of_topics))
        if not len(rows):
            return
        subset = table.where(rows)
        derived = dispatch(subset, [])
        places = subset.column("position")
        repaired: set[tuple[str, int]] = set()
        right = right_flags(subset, derived), right_offsets(subset, derived)
        for (at, form, code, text), numbers in zip(_CONTRADICTED, right, strict=True):
            if numbers:
                put_numbers(records, starts[rows[list(numbers)]] + at, np.array(list(numbers.values())), form)
                self._repaired[text] += len(numbers)
                repaired |= {(code, int(places[row])) for row in numbers}
        for row, level in right_delay_levels(subset, derived).items():
            properties = with_pairs(message_at(subset, row), {DELAY: str(level)}, has_crc=False)
            if properties is not None:
                at = int(starts[rows[row]] + subset.offsets(plain.PROPERTIES)[row] - subset.starts[row])
                records[at : at + len(properties)] = np.frombuffer(properties, np.uint8)
                self._repaired["its delay level, which is not a number, is rewritten"] += 1
                repaired.add(("LOG-PROPERTIES", int(places[row])))
        findings = FindingsOfRows(subset, "", MAX_LISTED)
        check_records(findings, derived)
        for place, item in findings.all:
            if isinstance(item, Finding) and item.severity is not Severity.NOTE and (item.code, place) not in repaired:
                self._leave(item)

    def _repair_crcs(self, table: MessageTable, records: Bytes, ends: Ints) -> None:
        """Rewrite damaged CRC properties, whose digits the log computes later; report messages that lack one."""
        has = ends_in_crc(records, ends)
        if has.any():
            has &= is_apart(records, ends, table.sizes(plain.PROPERTIES))
        had, self._has_crc = self._has_crc, bool(has[-1])
        if has.all() or not (has.any() or had):
            return
        lacking = np.flatnonzero(~has)
        rows = lacking[is_repairable_crc(table.where(lacking))]
        if len(rows):
            mark_crcs(records, ends[rows], table.sizes(plain.PROPERTIES)[rows])
            self._repaired["its CRC property is damaged, it is rewritten"] += len(rows)
            has[rows] = True
            self._has_crc = bool(has[-1])
        between = ~has & np.r_[had, has[:-1]] & np.r_[has[1:], False]
        for _ in range(int(between.sum())):
            self._leave(finding("LOG-PROPERTY-CRC", NO_CRC))

    def _leave(self, item: Finding) -> None:
        self._left[item.code, item.message] += 1

    def _append(self, records: Bytes, ends: Ints, sizes: Ints, first: int, stop: int) -> None:
        self.log.append(records[ends[first] - sizes[first] : ends[stop - 1]], sizes[first:stop])

    def _note_batches(self, table: MessageTable) -> None:
        rows = np.flatnonzero(table.column("sys_flag") & layout.INNER_BATCH)
        if len(rows):
            subset = table.where(rows)
            self.batch_topics |= inner_batch_topics(subset, properties_of(subset))

    def _fill(self, missing: Missing, like: RecordTemplate) -> None:
        """Write placeholders for queue offsets that no message has."""
        topic, queue_id = missing.queue
        step = 1
        if topic in self.batch_topics:
            step = min(_MAX_IN_BATCH, max(1, self.log.file_size // 2 // placeholder.ELEMENT_SIZE))
        built: list[bytes] = []
        for offset in range(missing.start, missing.stop, step):
            count = min(step, missing.stop - offset)
            built.append(_placeholder(topic, queue_id, offset, count, like))
            if len(built) == _AT_ONCE:
                self._append_built(built)
        if built:
            self._append_built(built)
        self.placeholders[topic] = self.placeholders.get(topic, 0) + missing.stop - missing.start

    def _append_built(self, built: list[bytes]) -> None:
        sizes = np.array([len(record) for record in built], np.int64)
        self.log.append(np.frombuffer(bytearray().join(built), np.uint8), sizes)
        built.clear()

    def copy_tables(self, tables: Mapping[str, bytes]) -> None:
        """Write tables into config/, by their names."""
        if tables:
            self.disk.make_folder(self.root / CONFIG.name)
        for name, text in tables.items():
            self._write(self.root / CONFIG.name / name, text)

    def finish(self, version: str | None = None, jobs: int = 1, progress: Progress = lambda _: None) -> Built:
        """Build queues, index, tables and checkpoint, and return when everything is synced.

        Args:
            version: whose broker will use the index, see ``build``.
            jobs: threads.
            progress: called with the number of bytes of the log done so far.
        """
        self.end()
        self.log.finish()
        reader = StoreReader(self.root, self.config)
        built = build(reader, self.root, self.disk, version=version, jobs=jobs, progress=progress)
        self._write(self.root / CHECKPOINT.name, self._checkpoint(built))
        reader = StoreReader(self.root, self.config)
        queues: dict[tuple[str, int], Any] = {**reader.consume_queues, **reader.batch_consume_queues}
        ends = {key: queue.max_offset() for key, queue in queues.items()}
        for table in rebuild_config.tables(reader, built.batch_topics, ends=ends):
            path = self.root / CONFIG.name / table.name
            if not path.parent.exists():
                self.disk.make_folder(path.parent)
            self.disk.remove_tree(path)
            self._write(path, table.text)
        if (self.root / CONFIG.name).exists():
            self.disk.sync_folder(self.root / CONFIG.name)
        return built

    def write(self, name: str, text: bytes) -> None:
        """Write one more file."""
        self._write(self.root / name, text)

    def _write(self, path: Path, text: bytes) -> None:
        self.disk.create(path)
        self.disk.write(path, 0, text)
        self.disk.sync(path)

    def _checkpoint(self, built: Built) -> bytes:
        """Return a checkpoint that says that all of it is on the disk; older brokers ignore unknown fields."""
        is_full = len(built.index_names) > 1
        fields: dict[str, Any] = dict.fromkeys(checkpoint.CHECKPOINT.names, 0)
        fields["rest"] = bytes(checkpoint.CHECKPOINT.size_of("rest"))
        if self.log.last_start >= 0:
            fields["physical_timestamp"] = fields["logics_timestamp"] = self.last_timestamp
            fields["index_timestamp"] = min(self.last_timestamp, self._full_index_timestamp()) if is_full else 0
            fields["confirm_physical_offset"] = fields["logics_physical_offset"] = self.log.last_start
        return bytes(checkpoint.CHECKPOINT.schema.build(fields))

    def _full_index_timestamp(self) -> int:
        files = StoreReader(self.root, self.config).index_files
        return int(files[-2].header.end_timestamp)


class _Put(NamedTuple):
    """Messages to be appended, as ``NewStore.put`` takes them."""

    table: MessageTable
    missing: Sequence[tuple[int, Missing]]
    queue_ids: Ints | None
    queue_offsets: Ints | None


def _forms(table: MessageTable) -> Ints:
    """Return the form of each message's head."""
    flags = table.column("sys_flag")
    forms: Ints = (flags & layout.BORN_HOST_V6 != 0) + 2 * (flags & layout.STORE_HOST_V6 != 0)
    return forms


def _records(table: MessageTable, sizes: Ints) -> Bytes:
    """Return a copy of the records of a table, concatenated."""
    data = np.frombuffer(table.buffer, np.uint8)
    starts, ends = table.starts, table.starts + sizes
    edges = np.flatnonzero(starts[1:] != ends[:-1]) + 1
    firsts, lasts = np.r_[0, edges], np.r_[edges, len(starts)] - 1
    runs = zip(starts[firsts].tolist(), ends[lasts].tolist(), strict=True)
    return np.concatenate([data[start:end] for start, end in runs])


def _placeholder(topic: str, queue_id: int, offset: int, count: int, like: RecordTemplate) -> bytes:
    why = f"{count} message{'' if count == 1 else 's'} from queue offset {offset}: none could be read"
    properties = placeholder.needed(topic, queue_id, offset, count)
    raw = topic.encode()
    size = placeholder.min_size(raw, like) + len(properties) + len(why) - 1
    if count > 1:
        size += count * placeholder.ELEMENT_SIZE
    return placeholder.build(size, 0, raw, queue_id, offset, why, like, properties=properties, batch_size=count)
