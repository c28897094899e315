"""``compare`` as a Spark job: which messages are in only one of two stores.

By offset, for a master and its slave, whose logs are the same byte for byte: a task reads the same addresses of both,
and nothing is shuffled. By key, for any two stores: a message is known by its unique key, else by its queue offset and
its body's CRC; keys are brought together and counted.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mqtool.formats.scan import MessageTable
from spark_jobs import run_as_program
from spark_jobs.messages import BUILDERS, Batches, Wanted
from spark_jobs.partitions import LogRange, Lost, RangeReader, log_ranges
from spark_jobs.source import arrow_schema, spark_schema
from spark_jobs.spread import spread
from spark_jobs.stores import Store
from spark_jobs.tables import GONE

WAYS = ("offset", "key")
ONLY_LEFT, ONLY_RIGHT, DIFFERS = "left", "right", "differs"

_COLUMNS = ("physical_offset", "topic", "queue_id", "queue_offset", "store_timestamp", "unique_key", "store")
_FIELDS = {name: BUILDERS[name].type for name in _COLUMNS}
SCHEMA = spark_schema({"side": "string", **_FIELDS})
"""Where a message is (at ``differs`` both stores have another one at this address), and which it is."""
_KEYS = spark_schema({"side": "string", "key": "string", **_FIELDS})
Columns = npt.NDArray[np.int64]


class Item(NamedTuple):
    """The same addresses of two logs."""

    left: list[LogRange]
    right: list[LogRange]


def differences(spark: Any, left: Store, right: Store, way: str, partition_size: int) -> Any:
    """Return the DataFrame of the messages that are in only one of two stores, columns ``SCHEMA``.

    Args:
        spark: the session.
        left: one store.
        right: the other.
        way: of ``WAYS``: how messages are known.
        partition_size: bytes of log for one task.
    """
    if way == "offset":
        return spread(spark, _aligned(left, right, partition_size), compare, SCHEMA)
    from pyspark.sql import functions

    items = [
        (side, part)
        for side, store in ((ONLY_LEFT, left), (ONLY_RIGHT, right))
        for part in log_ranges(store, store.open(), partition_size)
    ]
    first = functions.min(functions.struct(*_COLUMNS)).alias("first")
    sides = (functions.min("side").alias("side"), functions.max("side").alias("other"))
    grouped = spread(spark, items, keys, _KEYS).groupBy("key").agg(*sides, first).where("side = other")
    return grouped.select("side", *(f"first.{name}" for name in _COLUMNS))


def _aligned(left: Store, right: Store, partition_size: int) -> list[Item]:
    readers = [(store, store.open()) for store in (left, right)]
    start = min(reader.commit_log.min_offset for _, reader in readers)
    stop = max(reader.commit_log.end_offset for _, reader in readers)
    start -= start % partition_size
    return [
        Item(
            *(
                log_ranges(store, reader, partition_size, at, min(at + partition_size, stop))
                for store, reader in readers
            )
        )
        for at in range(start, stop, partition_size)
    ]


def compare(item: Item) -> Iterator[pa.RecordBatch]:
    """Yield what is different at some addresses of two logs."""
    left, right = (_records(parts) for parts in item)
    both, in_left, in_right = np.intersect1d(left[0], right[0], return_indices=True)
    differs = both[np.any(left[1:, in_left] != right[1:, in_right], axis=0)]
    only_left, only_right = np.setdiff1d(left[0], both), np.setdiff1d(right[0], both)
    for parts, side, positions in (
        (item.left, ONLY_LEFT, only_left), (item.right, ONLY_RIGHT, only_right), (item.left, DIFFERS, differs),
    ):  # fmt: skip
        if len(positions):
            for part, table in _tables(parts):
                chosen = table.where(np.isin(table.column("position"), positions))
                yield from _rows(part, chosen, side, SCHEMA)


def _records(parts: Sequence[LogRange]) -> Columns:
    """Return address, size and CRC of each record."""
    found = [np.empty((3, 0), np.int64)]
    for _, table in _tables(parts):
        sizes = table.column("size").astype(np.int64)
        found.append(np.stack([table.column("position"), sizes, table.crcs(table.starts, sizes).astype(np.int64)]))
    return np.concatenate(found, axis=1)


def keys(item: tuple[str, LogRange]) -> Iterator[pa.RecordBatch]:
    """Yield a key for each message of a range."""
    side, part = item
    for _, table in _tables([part]):
        for batch in _rows(part, table, side, SCHEMA):
            rest = zip(
                *(batch.column(name).to_pylist() for name in ("topic", "queue_id", "queue_offset")),
                table.column("body_crc").tolist(),
                strict=True,
            )
            unique = batch.column("unique_key").to_pylist()
            found = [key or "\x01".join(map(str, place)) for key, place in zip(unique, rest, strict=True)]
            columns = [batch.column(0), pa.array(found, pa.string()), *batch.columns[1:]]
            yield pa.RecordBatch.from_arrays(columns, schema=arrow_schema(_KEYS))


def _tables(parts: Sequence[LogRange]) -> Iterator[tuple[LogRange, MessageTable]]:
    for part in parts:
        try:
            with RangeReader(part) as reader:
                for piece in reader.tables():
                    if not isinstance(piece, Lost):
                        yield part, piece if not piece.faults.any() else piece.where(piece.faults == 0)
        except GONE:
            continue


def _rows(part: LogRange, table: MessageTable, side: str, schema: Any) -> Iterator[pa.RecordBatch]:
    whole = arrow_schema(schema)
    fields = pa.schema([whole.field(name) for name in _COLUMNS])
    for batch in Batches(Wanted(_COLUMNS, part.store.path), fields, "PERMISSIVE").of_table(table, part.file):
        sides = pa.repeat(pa.scalar(side), len(batch))
        yield pa.RecordBatch.from_arrays([sides, *batch.columns], schema=whole)


if __name__ == "__main__":
    run_as_program("compare")
