"""The tables of a store: the columns of each, how it is split into parts, and how a part becomes record batches.

The driver makes parts from names and lengths of files; executors read them. A file that is gone when it is read is
reported, and ends the job only in mode FAILFAST.

Cost: for the driver linear in the number of files, for an executor in the bytes of its part.
"""

import dataclasses
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mqtool.engine.repair.findings import Finding
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store import rocksdb
from mqtool.engine.store.loaded_file import LoadedFile
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.reader import StoreReader
from mqtool.engine.store.remote import place
from mqtool.errors import BadDataError, FormatError, MqtoolError, NotFoundError, StoreChangedError
from mqtool.formats import commit_log, config_tables, consume_queue, index_file, timer
from mqtool.spark import messages
from mqtool.spark.bounds import Bounds
from mqtool.spark.messages import LAST_MS, MAX_HEX, Batches, RowSelection, timestamps
from mqtool.spark.partitions import (
    LogRange,
    MissingRange,
    RangeReader,
    UnreadablePlace,
    log_ranges,
    missing_ranges,
    ranges_in_time,
    with_missing,
)
from mqtool.spark.stores import Store

_log = logging.getLogger("mqtool.spark")

GONE = (NotFoundError, StoreChangedError)
"""What reading a file says that retention has removed in the meantime, or somebody cut short."""

Rows = dict[str, Any]
Schema = Any
RecordBatch = Any


@dataclasses.dataclass(frozen=True)
class Ask:
    """What is asked of a table."""

    names: tuple[str, ...]
    """Its columns, as a query calls them."""
    columns: tuple[str, ...]
    """What they hold, as the table calls it."""
    mode: str = "PERMISSIVE"
    max_partition: int = 128 << 20
    plain_bodies: bool = True
    bounds: Bounds = dataclasses.field(default_factory=Bounds)
    fails_on_loss: bool = False

    @property
    def tells_damage(self) -> bool:
        """Whether what is damaged can be told from other rows, or ends the query."""
        return messages.CORRUPT in self.columns or self.mode == "FAILFAST"

    def gone(self, error: MqtoolError) -> None:
        """Report a file that is gone, or that cannot be read.

        Raises:
            MqtoolError: in mode FAILFAST, or where a loss is to end the query.
        """
        if self.mode == "FAILFAST" or self.fails_on_loss:
            raise error
        _log.warning("%s; it is left out", error)


@dataclasses.dataclass(frozen=True)
class FilePart:
    """Some files of a store, or a piece of one, that are read together."""

    store: Store
    files: tuple["FilePiece", ...] = ()


class FilePiece(NamedTuple):
    """Units that follow each other in a file without gaps."""

    path: str
    name: str  # as rows call it
    start_offset: int  # what the number of its first unit follows from
    start: int  # positions in the file
    stop: int
    topic: str | None = None
    queue_id: int | None = None
    slots: int = 0


Part = LogRange | MissingRange | FilePart


@dataclasses.dataclass(frozen=True)
class Table:
    """One table."""

    columns: dict[str, str]
    """Name and Spark's spelling of the type."""
    parts: Callable[[Store, StoreReader, Ask], list[Any]]
    read: Callable[[Any, Ask, Schema], Iterator[RecordBatch]]


# Messages


def _message_parts(store: Store, reader: StoreReader, ask: Ask) -> list[LogRange | MissingRange]:
    bounds = ask.bounds
    start, stop = reader.commit_log.min_offset, reader.commit_log.end_offset
    if bounds.since is not None or bounds.until is not None:
        start, stop = reader.range_of_time(bounds.since, bounds.until)
    start, stop = max(start, bounds.start or 0), stop if bounds.stop is None else min(stop, bounds.stop)
    ranges = log_ranges(store, reader, ask.max_partition, start, stop)
    missing = missing_ranges(store, reader, start, stop)
    return with_missing(ranges_in_time(ranges, bounds.since, bounds.until), missing)


def read_messages(part: LogRange | MissingRange, ask: Ask, schema: Schema) -> Iterator[RecordBatch]:
    """Yield the messages of a range of the log, and rows of what is damaged in it or missing."""
    batches = _batches(part.store, ask, schema)
    if isinstance(part, MissingRange):
        yield from batches.of_damage(part.file, part.place.position, part.place.code, None)
        return
    try:
        with RangeReader(part, is_mapped="body" not in ask.columns) as reader:
            for piece in reader.tables():
                if isinstance(piece, UnreadablePlace):
                    data = reader.segment.read(piece.position, MAX_HEX)
                    yield from batches.of_damage(part.file, piece.position, piece.code, data)
                else:
                    yield from batches.of_table(ask.bounds.select(piece, ask.tells_damage), part.file)
    except GONE as error:
        ask.gone(error)
        yield from batches.of_damage(part.file, part.start, "LOG-GAP", None)


def _batches(store: Store, ask: Ask, schema: Schema) -> Batches:
    broker_name = store.config.settings.get("brokerName")
    by_topic = ask.bounds.topics is not None
    wanted = RowSelection(ask.columns, store.path, broker_name, ask.plain_bodies, by_topic)
    return Batches(wanted, schema, ask.mode)


# Units of one length


def _pieces(
    segments: Sequence[MappedFile], name: str, unit_size: int, most: int, topic: str | None, queue_id: int | None
) -> Iterator[FilePiece]:
    """Yield the whole units of files, no more than ``most`` bytes of them at once."""
    most = max(unit_size, most // unit_size * unit_size)
    for segment in segments:
        # Units are at multiples of their size, whatever a file's name says.
        first = -segment.start_offset % unit_size
        end = first + max(0, segment.size - first) // unit_size * unit_size
        for start in range(first, end, most):
            yield FilePiece(
                str(segment.path), name, segment.start_offset, start, min(start + most, end), topic, queue_id
            )


def _grouped(store: Store, pieces: Iterator[FilePiece], most: int) -> list[FilePart]:
    """Put pieces of files together, ``most`` bytes in a part."""
    parts: list[FilePart] = []
    files: list[FilePiece] = []
    size = 0
    for piece in pieces:
        if files and size + piece.stop - piece.start > most:
            parts.append(FilePart(store, tuple(files)))
            files, size = [], 0
        files.append(piece)
        size += piece.stop - piece.start
    return [*parts, FilePart(store, tuple(files))] if files else parts


def _read_pieces(
    part: FilePart, ask: Ask, schema: Schema, dtype: Any, columns: Callable[[FilePiece, Any], Rows | None]
) -> Iterator[RecordBatch]:
    for piece in part.files:
        try:
            with LoadedFile(place(piece.path), 0, piece.stop) as file:
                raw = np.frombuffer(file.read(piece.start, piece.stop - piece.start), dtype)
        except GONE as error:
            ask.gone(error)
            continue
        rows = columns(piece, raw)
        if rows is not None:
            yield _batch({"store": part.store.path, **rows}, ask, schema)


def _batch(columns: Rows, ask: Ask, schema: Schema) -> RecordBatch:
    """Return a batch of columns, arrays or values that are the same in every row."""
    count = next(len(value) for value in columns.values() if isinstance(value, np.ndarray | list))
    arrays = []
    for name, field in zip(ask.columns, schema, strict=True):
        value = columns.get(name)
        if name.endswith("_time"):
            arrays.append(timestamps(columns[f"{name.removesuffix('_time')}_timestamp"], field.type))
        elif isinstance(value, np.ndarray):
            arrays.append(pa.array(value.astype(value.dtype.newbyteorder("=")), field.type))
        elif isinstance(value, list):
            arrays.append(pa.array(value, field.type))
        else:
            arrays.append(pa.repeat(pa.scalar(value, field.type), count))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _columns_of(units: Any, mask: Any) -> Rows:
    chosen = units[mask]
    return {name: chosen[name] for name in chosen.dtype.names or ()}


# Queues


def _queue_parts(store: Store, reader: StoreReader, ask: Ask) -> list[FilePart]:
    if not reader.consume_queues and reader.rocksdb_queues:
        return [FilePart(store)]
    pieces = (
        piece
        for (topic, queue_id), queue in reader.consume_queues.items()
        if ask.bounds.may_have(topic, queue_id)
        for piece in _pieces(queue.segments, "", consume_queue.UNIT_SIZE, ask.max_partition, topic, queue_id)
    )
    return _grouped(store, pieces, ask.max_partition)


def _read_queues(part: FilePart, ask: Ask, schema: Schema) -> Iterator[RecordBatch]:
    if not part.files:
        folder = part.store.open().rocksdb_queues
        assert folder is not None
        for topic, queue_id, units in rocksdb.read_units(folder):
            unit_columns = _columns_of(units, slice(None))
            yield _batch({"store": part.store.path, "topic": topic, "queue_id": queue_id, **unit_columns}, ask, schema)
        return

    def columns(piece: FilePiece, units: Any) -> Rows | None:
        used = (units["size"] != 0) | (units["physical_offset"] != 0)
        used &= (units["size"] != consume_queue.PRE_BLANK_SIZE) | (units["physical_offset"] != 0)
        rows = np.flatnonzero(used)
        first = (piece.start_offset + piece.start) // consume_queue.UNIT_SIZE
        topic = None if piece.topic is None else _text(piece.topic)
        fixed_columns = {"topic": topic, "queue_id": piece.queue_id, "queue_offset": rows + first}
        return fixed_columns | _columns_of(units, rows) if len(rows) else None

    yield from _read_pieces(part, ask, schema, consume_queue.UNIT.dtype, columns)


def _text(name: str) -> str:
    """Return a folder's name, which may not be text."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


# Index

_SLOTS = "give the options set.maxHashSlotNum and set.maxIndexNum with the broker's values"


def _index_parts(store: Store, reader: StoreReader, ask: Ask) -> list[FilePart]:
    def pieces() -> Iterator[FilePiece]:
        most = max(1, ask.max_partition // index_file.ENTRY_SIZE)
        for file in reader.index_files:
            if file.shape is None:
                if file.header.entry_count > 1 or file.size != index_file.HEADER_SIZE:
                    ask.gone(BadDataError(f"{file.path}: the number of its slots cannot be determined: {_SLOTS}"))
                continue
            if file.size < file.entries_at + index_file.ENTRY_SIZE:
                ask.gone(BadDataError(f"{file.path} has {file.size:,} bytes: it ends before its entries"))
                continue
            for first in range(1, file.entry_stop, most):  # entry 0 is never used
                stop = min(first + most, file.entry_stop)
                start, end = (file.entries_at + number * index_file.ENTRY_SIZE for number in (first, stop))
                name = reader.paths.relative(file.path)
                yield FilePiece(str(file.path), name, -file.entries_at, start, end, slots=file.shape.slots)

    return _grouped(store, pieces(), ask.max_partition)


def _read_index(part: FilePart, ask: Ask, schema: Schema) -> Iterator[RecordBatch]:
    def columns(piece: FilePiece, entries: Any) -> Rows:
        first = (piece.start_offset + piece.start) // index_file.ENTRY_SIZE
        slots = entries["key_hash"].astype(np.int32) % np.int32(piece.slots)
        numbers = np.arange(first, first + len(entries))
        return {"file": piece.name, "entry": numbers, "slot": slots} | _columns_of(entries, slice(None))

    yield from _read_pieces(part, ask, schema, index_file.ENTRY.dtype, columns)


# Timer


def _timer_parts(store: Store, reader: StoreReader, ask: Ask) -> list[FilePart]:
    segments = reader.timer_log.segments if reader.timer_log else []
    files = (
        FilePiece(str(segment.path), reader.paths.relative(segment.path), segment.start_offset, 0, segment.size)
        for segment in segments
    )
    return _grouped(store, files, ask.max_partition)


def _read_timer(part: FilePart, ask: Ask, schema: Schema) -> Iterator[RecordBatch]:
    for piece in part.files:
        try:
            with LoadedFile(place(piece.path), 0, piece.stop) as file:
                data = file.read(0, piece.stop)
        except GONE as error:
            ask.gone(error)
            continue
        units = np.frombuffer(data[: len(data) // timer.LOG_UNIT_SIZE * timer.LOG_UNIT_SIZE], timer.LOG_UNIT.dtype)
        other_units = np.flatnonzero(units["size"] != timer.LOG_UNIT_SIZE)
        units = units[: other_units[0]] if len(other_units) else units
        rest = data[len(units) * timer.LOG_UNIT_SIZE :]
        if np.frombuffer(rest, np.uint8).any() and not _ends_timer_file(rest):
            ask.gone(BadDataError(f"{piece.path}: {len(rest):,} bytes at its end are not units"))
        if len(units):
            positions = piece.start_offset + np.arange(len(units)) * timer.LOG_UNIT_SIZE
            fixed_columns = {"store": part.store.path, "file": piece.name, "position": positions}
            yield _batch(fixed_columns | _columns_of(units, slice(None)), ask, schema)


def _ends_timer_file(rest: bytes) -> bool:
    """Return whether a blank unit begins here: the next one did not fit."""
    size = timer.LOG_END_SIZE
    return len(rest) >= size and bool(timer.LOG_END.schema.parse(rest[:size]).magic_code == commit_log.MAGIC_BLANK)


# What is small: a part a store, rows of Python


def _whole_store(store: Store, _reader: StoreReader, _ask: Ask) -> list[FilePart]:
    return [FilePart(store)]


def _from_rows(rows: Callable[[StoreReader, Ask], Iterator[Rows]]) -> Callable[[FilePart, Ask, Schema], Iterator[Any]]:
    def read(part: FilePart, ask: Ask, schema: Schema) -> Iterator[RecordBatch]:
        table_rows = [{"store": part.store.path, **row} for row in rows(part.store.open(), ask)]
        columns = {
            name: [
                row.get(name.replace("_time", "_timestamp") if name.endswith("_time") else name) for row in table_rows
            ]
            for name in ask.columns
        }
        arrays = [
            timestamps(_known(columns[name]), field.type)
            if name.endswith("_time")
            else pa.array(columns[name], field.type)
            for name, field in zip(ask.columns, schema, strict=True)
        ]
        if table_rows:
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return read


def _known(milliseconds: list[int | None]) -> npt.NDArray[np.int64]:
    """Return times, with one that no calendar holds in place of an unknown one."""
    return np.array([LAST_MS + 1 if time is None else time for time in milliseconds], np.int64)


def _segments(reader: StoreReader, _ask: Ask) -> Iterator[Rows]:
    log = reader.commit_log
    for segment in log.segments:
        first = None
        try:
            status = segment.path.stat()
            first = reader.message_at(segment.start_offset + log.envelope.size).store_timestamp
        except (MqtoolError, FormatError):
            pass
        except FileNotFoundError:
            continue
        yield {
            "file": reader.paths.relative(segment.path),
            "start_offset": segment.start_offset,
            "size": segment.size,
            "allocated_size": status.st_blocks * 512,
            "first_store_timestamp": first,
        }


def _config(reader: StoreReader, ask: Ask) -> Iterator[Rows]:
    for name in config_tables.TABLES:
        try:
            table = reader.config_table(name)
        except MqtoolError as error:
            ask.gone(error)
            continue
        if table is not None:
            for row in _config_rows(name, table):
                keys = {key: row.get(key) for key in ("topic", "group", "queue_id")}
                yield {"file": name, **keys, "value": json.dumps(row, ensure_ascii=False)}


def _config_rows(name: str, table: config_tables.Table) -> list[Rows]:
    try:
        if name == "topics.json":
            return [dataclasses.asdict(topic) for topic in config_tables.topics(table).values()]
        if name == "subscriptionGroup.json":
            return [dataclasses.asdict(group) for group in config_tables.subscription_groups(table).values()]
        if name in config_tables.OFFSET_TABLES:
            return [
                {"topic": topic, "group": group, "queue_id": queue_id, "consumer_offset": offset}
                for (topic, group, queue_id), offset in config_tables.consumer_offsets(table).items()
            ]
        if name == "delayOffset.json":
            return [
                {"delay_level": level, "queue_offset": offset}
                for level, offset in config_tables.delay_offsets(table).items()
            ]
    except FormatError as error:
        _log.warning("%s is returned unchanged: %s", name, error.reason)
    return [table]


def _findings(reader: StoreReader, _ask: Ask) -> Iterator[Rows]:
    for finding in verify_store(reader, most=None):
        yield finding_row(finding)


def finding_row(finding: Finding) -> Rows:
    """Return the row of a finding; what was expected and what was found as text."""
    row = dataclasses.asdict(finding) | {"severity": str(finding.severity)}
    return row | {name: None if row[name] is None else str(row[name]) for name in ("expected", "found")}


TABLES: dict[str, Table] = {
    "messages": Table(
        {name: column.type for name, column in messages.BUILDERS.items()}, _message_parts, read_messages
    ),
    "consume_queue": Table(
        {
            "topic": "string", "queue_id": "int", "queue_offset": "bigint", "physical_offset": "bigint", "size": "int",
            "tags_code": "bigint", "store": "string",
        },
        _queue_parts,
        _read_queues,
    ),
    "index": Table(
        {
            "file": "string", "entry": "bigint", "slot": "int", "key_hash": "int", "physical_offset": "bigint",
            "seconds_since_begin": "int", "previous_entry": "int", "store": "string",
        },
        _index_parts,
        _read_index,
    ),
    "timer": Table(
        {
            "file": "string", "position": "bigint", "size": "int", "previous_position": "bigint", "magic_code": "int",
            "enqueue_timestamp": "bigint", "enqueue_time": "timestamp", "delay_ms": "int", "physical_offset": "bigint",
            "message_size": "int", "topic_hash": "int", "reserved": "bigint", "store": "string",
        },
        _timer_parts,
        _read_timer,
    ),
    "segments": Table(
        {
            "file": "string", "start_offset": "bigint", "size": "bigint", "allocated_size": "bigint",
            "first_store_timestamp": "bigint", "first_store_time": "timestamp", "store": "string",
        },
        _whole_store,
        _from_rows(_segments),
    ),
    "config": Table(
        {
            "file": "string", "topic": "string", "group": "string", "queue_id": "int", "value": "string",
            "store": "string",
        },
        _whole_store,
        _from_rows(_config),
    ),
    "findings": Table(
        {
            "code": "string", "severity": "string", "file": "string", "offset": "bigint", "message": "string",
            "expected": "string", "found": "string", "topic": "string", "queue_id": "int", "queue_offset": "bigint",
            "physical_offset": "bigint", "store": "string",
        },
        _whole_store,
        _from_rows(_findings),
    ),
}  # fmt: skip
