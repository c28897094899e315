"""A DataFrame written as a new store.

Tasks build records from rows, in parallel, in files beside the new store; the driver then concatenates them
into one log, in the order of the partitions, and builds queues and index from it. A failed write leaves nothing behind.
"""

import dataclasses
import logging
import os
import shutil
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from mqtool.engine.repair.salvage.new_store import refuse_used
from mqtool.engine.repair.salvage.transfer import Origin, import_tables, record_of
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.paths import StoreConfig
from mqtool.errors import BadDataError, UsageError
from mqtool.formats import commit_log, scan
from mqtool.formats import kernels as plain
from mqtool.formats.compression import Compression, compress
from mqtool.formats.hosts import parse_host
from mqtool.formats.properties import NAME_SEPARATOR, PAIR_SEPARATOR, build_properties
from mqtool.formats.property_names import KEYS, TAGS, UNIQ_KEY
from mqtool.spark.messages import BUILDERS, CORRUPT
from mqtool.spark.options import Options, choose
from mqtool.spark.sentences import sentences
from mqtool.spark.stores import plain_path

_log = logging.getLogger("mqtool.spark")

Row = dict[str, Any]

_STEP = 8 << 20
_LEVEL = 5  # as brokers and clients compress
_SHORT_TOPIC = 127
_HOST = "127.0.0.1:10911"
_PROPERTY_COLUMNS = {"tags": TAGS, "keys": KEYS, "unique_key": UNIQ_KEY}
_DEFAULTS: Row = {
    "queue_id": 0, "queue_offset": 0, "physical_offset": 0, "flag": 0, "sys_flag": 0, "reconsume_times": 0,
    "prepared_transaction_offset": 0, "born_host": _HOST, "store_host": _HOST,
}  # fmt: skip
_NEEDED = ("topic", "body")


@dataclasses.dataclass
class Written(WriterCommitMessage):
    """What a task has written."""

    partition: int
    path: str
    count: int


class StoreWriter(DataSourceArrowWriter):
    """Writes messages into a new store."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        paths = [plain_path(path) for path in options.paths]
        if len(paths) != 1:
            raise UsageError("no output path given: call .save(PATH) with a folder that is empty or does not exist yet")
        if overwrite:
            raise UsageError(
                'stores are never overwritten: write with mode("append") to a folder that does not exist yet'
            )
        self.into = Path(paths[0]).absolute()
        refuse_used(self.into)
        for name in schema.names:
            choose("message column", name, (*BUILDERS, "raw_properties"))
        missing = [name for name in _NEEDED if name not in schema.names]
        if missing:
            raise UsageError(f"a message needs the columns {' and '.join(_NEEDED)}: {missing[0]} is missing")
        self.settings = options.settings
        self.renumber = options.flag("renumber", "queue_offset" not in schema.names)
        self.staging = self.into.parent / f"{self.into.name}.mqtool-{uuid.uuid4().hex[:12]}"

    @sentences()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Make records of the rows of a partition.

        Raises:
            BadDataError: a row is not a message.
        """
        context = TaskContext.get()
        partition = context.partitionId() if context else 0
        self.staging.mkdir(parents=True, exist_ok=True)
        path = self.staging / f"{partition:06}-{uuid.uuid4().hex}"
        count = 0
        with path.open("xb") as file:
            for batch in iterator:
                for row in batch.to_pylist():
                    file.write(_record(row, count))
                    count += 1
        return Written(partition, str(path), count)

    @sentences()
    def commit(self, messages: "Sequence[WriterCommitMessage | None]") -> None:
        """Put all records into one log, and make what follows from it."""
        written = sorted(
            (message for message in messages if isinstance(message, Written)),
            key=lambda written: (written.partition, written.path),
        )
        try:
            config = StoreConfig(self.settings)
            jobs = os.cpu_count() or 1
            done = import_tables(_tables(written), self.into, config, Disk(), self.renumber, jobs, is_strict=True)
        finally:
            self._clear()
        lost = sum(done.placeholders.values())
        if lost:
            _log.warning("%s: %s placeholders were written for queue offsets without a message", self.into, f"{lost:,}")

    def abort(self, messages: "Sequence[WriterCommitMessage | None]") -> None:  # noqa: ARG002 - Spark's arguments
        """Remove what tasks have written."""
        self._clear()

    def _clear(self) -> None:
        shutil.rmtree(self.staging, ignore_errors=True)


def _record(row: Mapping[str, Any], number: int) -> bytes:
    try:
        return record_of(whole_row(row))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadDataError(f"row {number:,} of a partition is not a message: {error}") from error


def whole_row(row: Mapping[str, Any]) -> Row:
    """Return the row of an export for a row of the table ``messages``, of which any column but two may be missing.

    A body that does not match its CRC is taken as the producer gave it, and compressed again where a flag says so.

    Raises:
        ValueError: there is no topic or body, it is damaged, or no message can have its properties.
    """
    values = {name: value for name, value in row.items() if value is not None}
    if any(name not in values for name in _NEEDED):
        raise ValueError("topic or body is null; filter out the rows that have a _corrupt_record")
    if CORRUPT in values:
        raise ValueError(f"it is damaged ({values[CORRUPT]['code']}); filter out the rows that have a {CORRUPT}")
    now = int(time.time() * 1000)
    full_row = {**_DEFAULTS, "store_timestamp": now, **values}
    full_row.setdefault("born_timestamp", full_row["store_timestamp"])
    full_row["sys_flag"] = _host_bits(full_row["sys_flag"], full_row["born_host"], full_row["store_host"])
    is_short = len(full_row["topic"].encode()) <= _SHORT_TOPIC
    full_row.setdefault("magic_code", commit_log.MAGIC_V1 if is_short else commit_log.MAGIC_V2)
    if "raw_properties" not in values:
        full_row["raw_properties"] = _raw_properties(values)
    body = full_row["body"]
    if "body_crc" not in values or (body and _crc(body) != values["body_crc"]):
        if full_row["sys_flag"] & commit_log.COMPRESSED:
            kind = (full_row["sys_flag"] & commit_log.COMPRESSION_MASK) >> 8
            body = compress(body, Compression(kind or Compression.ZLIB), _LEVEL)[0]
        full_row |= {"body": body, "body_crc": _crc(body)}
    return full_row


def _raw_properties(values: Row) -> bytes:
    """Return the properties of a row, in which tags and keys may be columns of their own.

    Raises:
        ValueError: a property is null or would end within itself, or a column says something else.
    """
    columns = {name: values[column] for column, name in _PROPERTY_COLUMNS.items() if column in values}
    pairs = list(dict(values["properties"]).items()) if "properties" in values else list(columns.items())
    for name, value in pairs:
        if value is None:
            raise ValueError(f"its property {name} is null")
        if NAME_SEPARATOR in name or PAIR_SEPARATOR in name + value:
            raise ValueError(f"the characters 1 and 2 separate properties: {name} cannot contain them")
    for name, value in columns.items():
        if (name, value) not in pairs:
            raise ValueError(f"its properties and a column have different {name}: leave one of them out")
    return build_properties(dict(pairs))


def _crc(body: bytes) -> int:
    return zlib.crc32(body) & 0x7FFFFFFF if body else 0


def _host_bits(sys_flag: int, born_host: str, store_host: str) -> int:
    sys_flag &= ~(commit_log.BORN_HOST_V6 | commit_log.STORE_HOST_V6)
    for host, bit in ((born_host, commit_log.BORN_HOST_V6), (store_host, commit_log.STORE_HOST_V6)):
        sys_flag |= bit if len(parse_host(host)[0]) == 16 else 0
    return int(sys_flag)


def _tables(written: Sequence[Written]) -> Iterator[tuple[scan.MessageTable, Origin]]:
    """Yield the records of all files, some megabytes at a time."""
    kernels = scan.kernels_for(sum(Path(written_file.path).stat().st_size for written_file in written))
    for written_file in written:
        done = 0
        with Path(written_file.path).open("rb") as file:
            rest = b""
            while data := file.read(_STEP):
                raw = np.frombuffer(rest + data, np.uint8)
                scanned = scan.scan(memoryview(raw) if kernels is plain else raw, 0, kernels=kernels)
                rest = raw[scanned.end :].tobytes()
                if len(scanned.table):
                    yield scanned.table, _origin(written_file.partition, done)
                    done += len(scanned.table)
            if rest:
                raise BadDataError(f"{written_file.path} changed while it was being written: run the job again")


def _origin(partition: int, done: int) -> Origin:
    return lambda row: f"row {done + row:,} of partition {partition:,}"
