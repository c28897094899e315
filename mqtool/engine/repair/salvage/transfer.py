"""Export of messages from a store to a file, and import into a new store.

A row has every field of the record, raw properties and the stored body, so that nothing else is needed to
write the message back; also, for people, the parsed properties. ``pyarrow`` is loaded only for Parquet.

Cost: linear in the messages; memory holds some thousand rows, and a note of each message that is left out.
"""

import base64
import binascii
import contextlib
import io
import itertools
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import orjson

from mqtool.engine.repair.parts import Progress, spans_of
from mqtool.engine.repair.plan import Loss
from mqtool.engine.repair.recover.torn_batches import with_records, without_numbers
from mqtool.engine.repair.salvage.new_store import NewStore, making, of_other_logs, refuse_lack_of_room, refuse_used
from mqtool.engine.repair.salvage.queue_order import Missing
from mqtool.engine.store.disk import Disk, scraps
from mqtool.engine.store.dispatch import QueueKey, Units, dispatch
from mqtool.engine.store.paths import StoreConfig
from mqtool.errors import BadDataError, MissingExtraError, MqtoolError, NotFoundError, UsageError
from mqtool.formats import commit_log as layout
from mqtool.formats import consume_queue, scan
from mqtool.formats import kernels as plain
from mqtool.formats.hashing import body_crc
from mqtool.formats.hosts import parse_host
from mqtool.formats.message import Message, message_at
from mqtool.formats.properties import CRC_SIZE, are_readable, crc_digits
from mqtool.formats.property_names import CRC32
from mqtool.formats.scan import MessageTable
from mqtool.formats.topics import LIGHT_QUEUE_PREFIX, MAX_QUEUES, is_possible

if TYPE_CHECKING:
    import pyarrow

Row = dict[str, Any]

NUMBERS = (
    "physical_offset", "size", "magic_code", "queue_id", "queue_offset", "flag", "sys_flag", "born_timestamp",
    "store_timestamp", "reconsume_times", "prepared_transaction_offset", "body_crc", "body_size",
)  # fmt: skip
TEXTS = ("topic", "born_host", "store_host")
RAW = ("body", "raw_properties")
SAID = ("tags", "keys", "unique_key", "message_id")
"""Fields derived from others."""

DEFAULT_SEGMENT = 1 << 30
MAX_MISSING = 1 << 20
"""Queue offsets that may be missing between two messages of an import."""
_BATCH_ROWS = 4096
_BATCH_SIZE = 8 << 20
_PARQUET_MAGIC = b"PAR1"
_TOPIC_MOST, _LARGE_TOPIC_MOST = 127, 32_767
_STEP = 1 << 20
_NO_QUEUE = "no topic has a queue with this id"
_NO_OFFSET = "no queue has this offset"
_MAX_TOLD = 10
"""How many messages that are left out get a sentence of their own."""


# Export


class RowSink(Protocol):
    """Takes rows and writes a file."""

    def row(self, row: Row) -> None:
        """Take one row."""

    def finish(self) -> None:
        """Write what is left."""


class File(io.RawIOBase):
    """A new file that is written from its beginning to its end through a ``Disk``."""

    def __init__(self, disk: Disk, path: Path) -> None:
        """Make the file.

        Raises:
            WriteError: it is there already, or cannot be made.
        """
        self._disk = disk
        self._path = path
        self._at = 0
        disk.create(path)

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._at

    def write(self, data: Any) -> int:
        """Write all of ``data``."""
        raw = bytes(data)
        self._disk.write(self._path, self._at, raw)
        self._at += len(raw)
        return len(raw)


class JsonLines:
    """One JSON object per line; bytes are in base64."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._lines: list[bytes] = []
        self._size = 0

    def row(self, row: Row) -> None:
        """Take one row."""
        text = {name: base64.b64encode(row[name]).decode() for name in RAW}
        line = orjson.dumps({**row, **text}, option=orjson.OPT_APPEND_NEWLINE)
        self._lines.append(line)
        self._size += len(line)
        if self._size >= _STEP:
            self.finish()

    def finish(self) -> None:
        """Write what is left."""
        self._write(b"".join(self._lines))
        self._lines.clear()
        self._size = 0


class Parquet:
    """A Parquet file, zstd-compressed, in row groups of some MiB."""

    def __init__(self, file: File) -> None:
        """Begin.

        Raises:
            MissingExtraError: pyarrow is not installed.
        """
        self._arrow, self._parquet = _pyarrow()
        self._schema = _schema(self._arrow)
        self._writer = self._parquet.ParquetWriter(self._arrow.PythonFile(file, "w"), self._schema, compression="zstd")
        self._rows: list[Row] = []
        self._size = 0

    def row(self, row: Row) -> None:
        """Take one row."""
        self._rows.append(row)
        self._size += row["size"]
        if self._size >= _BATCH_SIZE or len(self._rows) >= 16 * _BATCH_ROWS:
            self._write()

    def finish(self) -> None:
        """Write what is left."""
        self._write()
        self._writer.close()

    def _write(self) -> None:
        if self._rows:
            self._writer.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
            self._rows.clear()
            self._size = 0


def _pyarrow() -> "tuple[Any, Any]":
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("Parquet", "parquet") from error
    return pyarrow, pyarrow.parquet


def _schema(arrow: Any) -> "pyarrow.Schema":
    types = {name: arrow.int64() if name.endswith(("_offset", "_timestamp")) else arrow.int32() for name in NUMBERS}
    types |= dict.fromkeys((*TEXTS, *SAID), arrow.string()) | dict.fromkeys(RAW, arrow.binary())
    types["properties"] = arrow.map_(arrow.string(), arrow.string())
    names = (*NUMBERS[:3], "topic", *NUMBERS[3:], *TEXTS[1:], *RAW, "properties", *SAID)
    return arrow.schema([(name, types[name]) for name in names])


def row_of(message: Message) -> Row:
    """Return the row of a message."""
    row = {name: getattr(message, name) for name in (*NUMBERS, *TEXTS, *RAW)}
    return row | {"properties": message.properties} | {name: getattr(message, name) for name in SAID}


@contextlib.contextmanager
def writing_file(disk: Disk, path: Path) -> Iterator[File]:
    """Create a file that gets its name only when it is complete and synced, and that is removed on failure.

    Until then it has the name of ``scraps``; what a killed export has left there is removed.

    Raises:
        UsageError: it is there already.
    """
    if os.path.lexists(path):
        raise UsageError(f"{path} already exists: give another name")
    draft, _ = scraps(path)
    disk.remove_tree(draft)
    file = File(disk, draft)
    try:
        yield file
        disk.sync(draft)
        disk.rename(draft, path)
        draft = path
        disk.sync_folder(path.absolute().parent)
    except BaseException:
        with contextlib.suppress(MqtoolError):
            disk.remove(draft)
        raise


class ExportResult(NamedTuple):
    """The result of an export."""

    messages: int
    damaged: list[int]  # addresses of messages that are left out because their checks fail
    doubtful: list[int]  # of those that contradict their CRC property, although body, topic and properties are right


def export(messages: Iterable[Message], sink: RowSink, record_at: Callable[[int], bytes] | None = None) -> ExportResult:
    """Write messages; those whose checks fail are left out.

    Args:
        messages: in the order of the log.
        sink: takes a row of each.
        record_at: returns the record at an address, to compare it with its CRC property.
    """
    count, damaged, doubtful = 0, list[int](), list[int]()
    for message in messages:
        crc = zlib.crc32(message.body) & 0x7FFFFFFF
        is_broken = (bool(message.body) and crc != message.body_crc) or not is_possible(message.topic.encode())
        if is_broken or message.position != message.physical_offset or not are_readable(message.raw_properties):
            damaged.append(message.position)
            continue
        if record_at and CRC32 in message.properties and contradicts_crc(message, record_at(message.position)):
            doubtful.append(message.position)
        sink.row(row_of(message))
        count += 1
    sink.finish()
    return ExportResult(count, damaged, doubtful)


def contradicts_crc(message: Message, record: bytes) -> bool:
    """Return whether a record ends in a CRC property that does not match it."""
    is_last = record[-CRC_SIZE:].startswith(CRC32.encode())
    return is_last and message.properties[CRC32] != crc_digits(body_crc(record[:-CRC_SIZE])).decode()


# Import


class Imported(NamedTuple):
    """The result of an import."""

    messages: int
    placeholders: dict[str, int]  # by topic
    remarks: list[str]  # what was corrected in messages, what remains wrong, and where what was left out came from
    losses: list[Loss]  # messages that were left out, by queue


def import_files(
    files: Iterable[Path],
    into: Path,
    config: StoreConfig,
    disk: Disk,
    renumber: bool = False,
    jobs: int = 1,
    progress: Progress = lambda _: None,
) -> Imported:
    """Build a new store from exported messages; a failure leaves nothing behind.

    Messages that no queue can have, with an impossible queue id or offset, are left out and reported.

    Args:
        files: by ``export``, JSON lines or Parquet, oldest messages first.
        into: folder of the store, empty or missing.
        config: sizes of its files; RocketMQ's defaults if not set.
        disk: through which everything is written.
        renumber: give the messages of each queue offsets from 0 on.
        jobs: threads.
        progress: called with the number of bytes of the files done so far.

    Raises:
        BadDataError: a file is not an export, no message is left, or the offsets of a queue do not ascend.
        UsageError: ``into`` is not empty.
        WriteError: the disk is full, or fails.
    """
    files = list(files)
    refuse_used(into)
    for path in files:
        if not path.is_file():
            raise NotFoundError(f"{path} is not a file: give one that `mqtool export` wrote")
    size = sum(path.stat().st_size for path in files)
    refuse_lack_of_room(into, size // 2)
    kernels = scan.kernels_for(size)

    def tables() -> Iterator[tuple[MessageTable, Origin]]:
        done = 0
        for path in files:
            for batch in _batches(path):
                yield batch.table(kernels), batch.origin
                progress(done + batch.read)
            done += path.stat().st_size

    return import_tables(tables(), into, config, disk, renumber, jobs)


Origin = Callable[[int], str]
"""Returns where the message in a row of a table came from."""


def import_tables(
    tables: Iterable[tuple[MessageTable, Origin]],
    into: Path,
    config: StoreConfig,
    disk: Disk,
    renumber: bool = False,
    jobs: int = 1,
    *,
    is_strict: bool = False,
) -> Imported:
    """Build a new store from messages; a failure leaves nothing behind.

    Args:
        tables: sound messages, the oldest first, whatever addresses they have; none is empty.
        into: folder of the store, empty or missing.
        config: sizes of its files; RocketMQ's defaults if not set.
        disk: through which everything is written.
        renumber: give the messages of each queue offsets from 0 on.
        jobs: threads.
        is_strict: refuse messages that no queue can have; else they are left out and reported.

    Raises:
        BadDataError: there is no message, a queue cannot have one, or the offsets of a queue do not ascend.
        UsageError: ``into`` is not empty.
        WriteError: the disk is full, or fails.
    """
    file_size = config.size("mappedFileSizeCommitLog") or DEFAULT_SEGMENT
    count = 0
    with making(into, disk):
        # In a log that begins at 0 brokers take fill units for messages: so it begins with the next file.
        new = NewStore(into, disk, config, file_size, file_size)
        numbering = _Numbering(config, renumber, is_strict)
        for table, origin in tables:
            count += numbering.put(new, table, origin)
        if not count:
            why = next(numbering.remarks(), "the input contains no messages")
            raise BadDataError(f"{why}: there is nothing to import")
        new.finish(None, jobs)
    remarks = [*of_other_logs(config), *numbering.remarks(), *new.remarks()]
    return Imported(count, dict(new.placeholders), remarks, numbering.losses)


class _Batch(NamedTuple):
    """Records read from a file, with their places."""

    path: Path
    records: list[bytes]
    lines: list[int]
    read: int  # bytes of the file up to its end

    def table(self, kernels: Any) -> MessageTable:
        """Return the messages."""
        data = np.frombuffer(b"".join(self.records), np.uint8)
        sizes = np.array([len(record) for record in self.records], np.int64)
        buffer = memoryview(data) if kernels is plain else data
        return scan.gather(buffer, 0, np.cumsum(sizes) - sizes, kernels)

    def origin(self, row: int) -> str:
        """Return where a message came from."""
        return f"{self.path} line {self.lines[row]:,}"


def _batches(path: Path) -> Iterator[_Batch]:
    with path.open("rb") as file:
        is_parquet = file.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC
    rows = _parquet_rows(path) if is_parquet else _json_rows(path)
    records: list[bytes] = []
    lines: list[int] = []
    size = 0
    read = 0
    for line, read, row in rows:
        try:
            records.append(record_of(row))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, struct.error) as error:
            problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise BadDataError(f"{path} line {line:,} is not an exported message: {problem}") from error
        lines.append(line)
        size += len(records[-1])
        if size >= _BATCH_SIZE or len(records) == _BATCH_ROWS:
            yield _Batch(path, records, lines, read)
            records, lines, size = [], [], 0
    if records:
        yield _Batch(path, records, lines, read)


def _json_rows(path: Path) -> Iterator[tuple[int, int, Row]]:
    read = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            read += len(line)
            if not line.strip():
                continue
            try:
                row = orjson.loads(line)
                for name in RAW:
                    row[name] = base64.b64decode(row[name], validate=True)
            except (orjson.JSONDecodeError, binascii.Error, KeyError, TypeError, ValueError) as error:
                raise BadDataError(f"{path} line {number:,} is not an exported message: {error}") from error
            yield number, read, row


def _parquet_rows(path: Path) -> Iterator[tuple[int, int, Row]]:
    arrow, parquet = _pyarrow()
    try:
        file = parquet.ParquetFile(path)
        size, total = path.stat().st_size, max(1, file.metadata.num_rows)
        number = itertools.count(1)
        names = [name for name in (*NUMBERS, *TEXTS, *RAW) if name in file.schema_arrow.names]
        for batch in file.iter_batches(_BATCH_ROWS // 4, columns=names):
            for row in batch.to_pylist():
                line = next(number)
                yield line, size * line // total, row
    except (arrow.ArrowInvalid, arrow.ArrowException, OSError) as error:
        raise BadDataError(f"cannot read {path} as Parquet: {error}") from error


def record_of(row: Row) -> bytes:
    """Return the record of a row; its log will set the address.

    Raises:
        KeyError: a field is missing.
        TypeError: a field has the wrong type.
        ValueError: the fields contradict each other.
    """
    born, store = parse_host(row["born_host"]), parse_host(row["store_host"])
    form = layout.head_form(row["sys_flag"])
    head = layout.HEADS[form]
    if (len(born[0]), len(store[0])) != (16 if form & 1 else 4, 16 if form & 2 else 4):
        raise ValueError("sys_flag does not fit the addresses of its hosts")
    body, topic, properties = row["body"], row["topic"].encode(), row["raw_properties"]
    is_large = row["magic_code"] == layout.MAGIC_V2
    most = _LARGE_TOPIC_MOST if is_large else _TOPIC_MOST
    if row["magic_code"] not in (layout.MAGIC_V1, layout.MAGIC_V2) or len(topic) > most:
        raise ValueError("magic_code is not valid for a message with this topic")
    if body and zlib.crc32(body) & 0x7FFFFFFF != row["body_crc"]:
        raise ValueError("the body does not match body_crc")
    if not is_possible(topic):
        raise ValueError("no broker can have a topic of this name")
    if not are_readable(properties):
        raise ValueError("raw_properties are not pairs of name and value as a broker writes them")
    rest = len(topic).to_bytes(2 if is_large else 1, "big") + topic + struct.pack(">h", len(properties)) + properties
    values = {
        "size": head.size + len(body) + len(rest),
        "born_address": born[0],
        "born_port": born[1],
        "store_address": store[0],
        "store_port": store[1],
        "body_size": len(body),
    }
    return bytes(
        head.packer.pack(*(values[name] if name in values else row[name] for name in head.names)) + body + rest
    )


class _Numbering:
    """Makes the offsets of each queue consecutive; leaves out messages that no queue can have."""

    def __init__(self, config: StoreConfig, renumber: bool, is_strict: bool) -> None:
        self._levels = config.delay_levels()
        self._renumber = renumber
        self._is_strict = is_strict
        self._next: dict[QueueKey, int] = {}
        self.losses: list[Loss] = []
        self._told: list[str] = []
        self._untold = 0
        self._cleared = 0

    def put(self, new: NewStore, table: MessageTable, origin: Origin) -> int:
        """Append messages to a store, and return how many.

        Raises:
            BadDataError: the offsets of a queue do not ascend, or cannot be made to.
        """
        derived = dispatch(table, self._levels)
        units = derived.units
        if cleared := without_numbers(table, derived.properties):
            table = with_records(table, cleared)
            units = dispatch(table, self._levels).units
            self._cleared += len(cleared)
        if impossible := self._impossible(table, units):
            self._leave_out(impossible, table, units, origin)
            rows = np.setdiff1d(np.arange(len(table)), [*impossible])
            table, origin = table.where(rows), _of_rows(origin, rows)
            units = dispatch(table, self._levels).units
        if not len(table):
            return 0
        if self._renumber:
            new.put(table, (), None, self._numbered(table, units, origin))
        else:
            new.put(table, self._missing(table, units, origin))
        return len(table)

    def remarks(self) -> Iterator[str]:
        """Yield what was corrected before numbering, and where messages that were left out came from."""
        if self._cleared:
            times = "1 message" if self._cleared == 1 else f"{self._cleared:,} messages"
            yield f"{times}: numbers of a batch are removed from the properties, it is not a batch"
        yield from self._told
        if self._untold:
            yield f"{self._untold:,} more messages are left out"

    def _impossible(self, table: MessageTable, units: Units) -> dict[int, str]:
        """Return the rows that no queue can have, and why."""
        why: dict[int, str] = {}
        if not self._renumber:
            offsets = units.queue_offset
            rows = units.rows[(offsets < 0) | (offsets >= consume_queue.OFFSET_END)]
            why |= dict.fromkeys(rows.tolist(), _NO_OFFSET)
        ids = table.column("queue_id")
        return why | dict.fromkeys(np.flatnonzero((ids < 0) | (ids >= MAX_QUEUES)).tolist(), _NO_QUEUE)

    def _leave_out(self, why: dict[int, str], table: MessageTable, units: Units, origin: Origin) -> None:
        """Note messages that are left out, at each place that they state.

        Raises:
            BadDataError: none may be.
        """
        for row in sorted(why):
            message = message_at(table, row)
            where = f"{origin(row)}: {message.topic} {message.queue_id} {message.queue_offset:,}"
            advice = ": --renumber assigns another" if why[row] == _NO_OFFSET else ""
            if self._is_strict:
                raise BadDataError(f"{where}: {why[row]}{advice}")
            if len(self._told) < _MAX_TOLD:
                self._told.append(f"{where}: the message is left out, {why[row]}{advice}")
            else:
                self._untold += 1
        self.losses += _losses_of(why, table, units)

    def _missing(self, table: MessageTable, units: Units, origin: Origin) -> list[tuple[int, Missing]]:
        missing = []
        for span in spans_of(units):
            row = int(np.searchsorted(table.column("position"), span.physical_offset))
            expected = self._next.get(span.queue, span.start)
            where = f"{origin(row)}: {span.queue[0]} {span.queue[1]}"
            if span.start < expected:
                raise BadDataError(
                    f"{where} has queue offset {span.start:,} after {expected - 1:,}: give each message once, the "
                    "oldest first, or use --renumber"
                )
            if span.start > expected + MAX_MISSING:
                raise BadDataError(
                    f"{where} lacks the {span.start - expected:,} messages before queue offset {span.start:,}: "
                    "--renumber closes such gaps"
                )
            if span.start > expected:
                missing.append((row, Missing(span.queue, expected, span.start)))
            self._next[span.queue] = span.stop
        return sorted(missing, key=lambda item: item[0])

    def _numbered(self, table: MessageTable, units: Units, origin: Origin) -> Any:
        offsets = table.column("queue_offset").copy()
        for queue, first, last in units.stretches:
            row = int(units.rows[first])
            if queue[0].startswith(LIGHT_QUEUE_PREFIX) or (units.batch_size[first:last] > 1).any():
                raise BadDataError(
                    f"{origin(row)}: the offsets of light queues and of inner batches are in their properties too, "
                    "where --renumber cannot change them"
                )
            start = self._next.get(queue, 0)
            offsets[units.rows[first:last]] = np.arange(start, start + last - first)
            self._next[queue] = start + last - first
        return offsets


def _of_rows(origin: Origin, rows: Any) -> Origin:
    """Return where the message in each of some rows of a table came from."""
    return lambda row: origin(int(rows[row]))


def _losses_of(why: dict[int, str], table: MessageTable, units: Units) -> Iterator[Loss]:
    """Yield the places of some messages, by row, in their queues and light queues; in no queue only the topic."""
    sizes = table.column("size")
    seen: set[int] = set()
    for (topic, queue_id), first, last in units.stretches:
        for number in (first + np.flatnonzero(np.isin(units.rows[first:last], [*why]))).tolist():
            row, start, stop = int(units.rows[number]), int(units.queue_offset[number]), units.after(number)
            size = 0 if row in seen else int(sizes[row])
            seen.add(row)
            yield Loss(topic, stop - start, size, why[row], queue_id, start, stop)
    for row in sorted(why.keys() - seen):
        yield Loss(message_at(table, row).topic, 1, int(sizes[row]), why[row])


def format_of(name: str | None, path: Path | None) -> str:
    """Return the chosen format, or that of the file's name.

    Raises:
        UsageError: Parquet without a file.
    """
    chosen = name or ("parquet" if path and path.suffix == ".parquet" else "jsonl")
    if chosen == "parquet" and path is None:
        raise UsageError("Parquet cannot be written to standard output: use --into FILE")
    return chosen
