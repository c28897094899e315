"""``compare`` as a Spark job: which messages are in only one of two stores.

By offset, for a master and its slave, whose logs are the same byte for byte: a task reads the same addresses of both,
and nothing is shuffled. By key, for any two stores: messages are identified as in ``mqtool compare --by key``
(``mqtool.formats.identity``), and those of both stores are grouped and counted.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mqtool.engine.repair.compare.aligned import SIDES, are_sound
from mqtool.engine.repair.compare.stores import check_same_kind
from mqtool.engine.store.holes import holes_of
from mqtool.formats.columns import distinct, is_among
from mqtool.formats.identity import record_identities
from mqtool.formats.scan import MessageTable
from mqtool.spark import run_as_program
from mqtool.spark.messages import BUILDERS, Batches, RowSelection
from mqtool.spark.partitions import (
    MAX_PARTITION,
    LogRange,
    MissingRange,
    RangeReader,
    UnreadablePlace,
    log_ranges,
    missing_ranges,
)
from mqtool.spark.schemas import arrow_schema, spark_schema
from mqtool.spark.spread import spread
from mqtool.spark.stores import Store
from mqtool.spark.tables import GONE

ONLY_LEFT, ONLY_RIGHT = SIDES
DIFFERS = "differs"

_COLUMNS = ("physical_offset", "topic", "queue_id", "queue_offset", "store_timestamp", "unique_key", "store")
_NAMED = (*_COLUMNS[:-1], "keys", "tags", "message_id")
SCHEMA = spark_schema({"side": "string", **{name: BUILDERS[name].type for name in _COLUMNS}})
"""By offset: where a message is (at ``differs`` both stores have another one at this address), and which it is.

What a task yields has rows of a side alone, too: of a place that cannot be read.
"""
_IDENTITIES = spark_schema({
    "side": "string", "first": "bigint", "second": "bigint", **{name: BUILDERS[name].type for name in _NAMED},
})  # fmt: skip
"""Of a place that cannot be read, the side alone."""
Columns = npt.NDArray[np.int64]


class CompareTask(NamedTuple):
    """The same addresses of two logs."""

    left: list[LogRange]
    right: list[LogRange]
    holes: tuple[int, int] = (0, 0)
    """How many holes of each log begin there."""


def by_offset(spark: Any, left: Store, right: Store, partition_size: int) -> tuple[Any, list[Any]]:
    """Return the DataFrame of the messages that are in only one of two logs, or differ, columns ``SCHEMA``.

    Beside it observations, which count while the DataFrame is read: the rows of each side (``only_left``,
    ``only_right``, ``differs``), and the places that cannot be read (``left_unread``, ``right_unread``).

    Args:
        spark: the session.
        left: one store.
        right: the other.
        partition_size: bytes of log for one task.

    Raises:
        BadDataError: only one of them is a DLedger log, so their addresses mean different things.
    """
    from pyspark.sql import Observation
    from pyspark.sql.functions import col, count_if

    is_message = col("physical_offset").isNotNull()
    unread = Observation("places")
    rows = spread(spark, _aligned(left, right, partition_size), compare, SCHEMA).observe(
        unread, *(count_if((col("side") == side) & ~is_message).alias(f"{side}_unread") for side in SIDES)
    )
    frame, counted = _counted(rows.where(is_message))
    return frame, [unread, counted]


def _counted(frame: Any) -> tuple[Any, Any]:
    from pyspark.sql import Observation
    from pyspark.sql.functions import col, count_if

    names = {"only_left": ONLY_LEFT, "only_right": ONLY_RIGHT, DIFFERS: DIFFERS}
    observed = Observation("differences")
    return frame.observe(
        observed, *(count_if(col("side") == side).alias(name) for name, side in names.items())
    ), observed


def by_key(spark: Any, left: Store, right: Store, partition_size: int) -> tuple[Any, list[Any]]:
    """Return the DataFrame of the messages of which one store has more than the other, and observations of it.

    Columns are those of ``mqtool.engine.repair.compare.keys.Difference`` and what people know a message by: the last
    of them in the store that has more. Beside what ``by_offset`` counts, the messages of each store are counted
    (``left``, ``right``), and the places that cannot be read (``left_unread``, ``right_unread``). Cost: each message is
    read once, and shuffled as its identity of 16 bytes and what it is known by. Arguments: as ``by_offset``.
    """
    from pyspark.sql import Observation, functions
    from pyspark.sql.functions import col, count_if, when

    items: list[tuple[str, LogRange | MissingRange]] = []
    for side, store in zip(SIDES, (left, right), strict=True):
        items += [(side, part) for part in log_ranges(store, store.open(), partition_size)]
        items += [(side, part) for part in missing_ranges(store, store.open())]
    is_message = col("first").isNotNull()
    sides = {side: col("side") == side for side in SIDES}
    observed = Observation("messages")
    rows = spread(spark, items, identities, _IDENTITIES).observe(
        observed,
        *(count_if(is_side & is_message).alias(side) for side, is_side in sides.items()),
        *(count_if(is_side & ~is_message).alias(f"{side}_unread") for side, is_side in sides.items()),
    )
    named = functions.struct(*_NAMED)
    # A row that is not a message: Spark, where there is none at all, drops what counts them.
    nothing = spark.range(0, 1, 1, 1).select(
        *(functions.lit(None).cast(column.dataType).alias(column.name) for column in _IDENTITIES)
    )
    grouped = (
        rows.where(is_message)
        .unionAll(nothing)
        .groupBy("first", "second")
        .agg(
            *(count_if(is_side).alias(f"{side}_count") for side, is_side in sides.items()),
            *(functions.max(when(is_side, named)).alias(side) for side, is_side in sides.items()),
        )
    )
    has_more = col("right_count") > col("left_count")
    message = when(has_more, col(ONLY_RIGHT)).otherwise(col(ONLY_LEFT)).alias("message")
    frame = grouped.where("left_count != right_count").select(
        when(has_more, ONLY_RIGHT).otherwise(ONLY_LEFT).alias("side"), "left_count", "right_count", message
    )
    frame, counted = _counted(
        frame.select("side", "left_count", "right_count", *(f"message.{name}" for name in _NAMED))
    )
    return frame, [observed, counted]


def _aligned(left: Store, right: Store, partition_size: int) -> list[CompareTask]:
    readers = [store.open() for store in (left, right)]
    check_same_kind(*readers)
    of_left, of_right = (
        _by_window(log_ranges(store, reader, partition_size), partition_size)
        for store, reader in zip((left, right), readers, strict=True)
    )
    in_left, in_right = (
        collections.Counter(hole.start_offset // partition_size for hole in holes_of(reader.commit_log))
        for reader in readers
    )
    numbers = sorted({*of_left, *of_right, *in_left, *in_right})
    return [
        CompareTask(of_left.get(number, []), of_right.get(number, []), (in_left[number], in_right[number]))
        for number in numbers
    ]


def _by_window(parts: Iterable[LogRange], size: int) -> dict[int, list[LogRange]]:
    """Return what of some ranges starts in each window of so many bytes, by the number of the window."""
    windows: dict[int, list[LogRange]] = {}
    for part in parts:
        end = part.start_offset + part.stop
        for number in range(part.address // size, -(-end // size)):
            windows.setdefault(number, []).extend(_between([part], number * size, (number + 1) * size))
    return windows


def compare(item: CompareTask) -> Iterator[pa.RecordBatch]:
    """Yield the differences at some addresses of two logs, a limited number of bytes at a time."""
    both = (*item.left, *item.right)
    addresses = [part.start_offset + at for part in both for at in (part.start, part.stop)]
    for start in range(min(addresses, default=0), max(addresses, default=0), MAX_PARTITION):
        left, right = (_between(parts, start, start + MAX_PARTITION) for parts in (item.left, item.right))
        yield from _compare(CompareTask(left, right))
    yield from (_unread(side, count, SCHEMA) for side, count in zip(SIDES, item.holes, strict=True) if count)


def _between(parts: Sequence[LogRange], start: int, stop: int) -> list[LogRange]:
    """Return what part of ranges starts between two addresses."""
    cut = [
        dataclasses.replace(
            part, start=max(part.start, start - part.start_offset), stop=min(part.stop, stop - part.start_offset)
        )
        for part in parts
    ]
    return [part for part in cut if part.start < part.stop]


def _compare(item: CompareTask) -> Iterator[pa.RecordBatch]:
    unread = dict.fromkeys(SIDES, 0)
    left, right = (_records(parts, side, unread) for side, parts in zip(SIDES, (item.left, item.right), strict=True))
    both, in_left, in_right = np.intersect1d(left[0], right[0], return_indices=True)
    differs = both[np.any(left[1:, in_left] != right[1:, in_right], axis=0)]
    only_left, only_right = (distinct(side[0][~is_among(side[0], both)]) for side in (left, right))
    for parts, side, positions in (
        (item.left, ONLY_LEFT, only_left), (item.right, ONLY_RIGHT, only_right), (item.left, DIFFERS, differs),
    ):  # fmt: skip
        if len(positions):
            for part, table in _tables(parts):
                chosen = table.where(np.isin(table.column("position"), positions))
                yield from _rows(part, chosen, side)
    yield from (_unread(side, count, SCHEMA) for side, count in unread.items() if count)


def _records(parts: Sequence[LogRange], side: str, unread: dict[str, int]) -> Columns:
    """Return address, size and CRC of each sound record; counts the places of a side that hold none."""
    records = [np.empty((3, 0), np.int64)]
    for piece in itertools.chain.from_iterable(map(_pieces, parts)):
        if isinstance(piece, UnreadablePlace):
            unread[side] += 1
            continue
        table = _sound(piece)
        unread[side] += len(piece) - len(table)
        sizes = table.column("size").astype(np.int64)
        records.append(np.stack([table.column("position"), sizes, table.crcs(table.starts, sizes).astype(np.int64)]))
    return np.concatenate(records, axis=1)


def identities(item: tuple[str, LogRange | MissingRange]) -> Iterator[pa.RecordBatch]:
    """Yield the identity of each sound message of a range, and a row of nulls for each place that holds none."""
    side, part = item
    if isinstance(part, MissingRange):
        yield _unread(side, 1, _IDENTITIES)
        return
    schema = arrow_schema(_IDENTITIES)
    fields = pa.schema([schema.field(name) for name in _NAMED])
    batches = Batches(RowSelection(_NAMED, part.store.path), fields, "PERMISSIVE")
    unread = 0
    for piece in _pieces(part):
        if isinstance(piece, UnreadablePlace):
            unread += 1
            continue
        table = _sound(piece)
        unread += len(piece) - len(table)
        both = record_identities(table).view(np.int64)
        for batch in batches.of_table(table, part.file):
            sides = pa.repeat(pa.scalar(side), len(batch))
            yield pa.RecordBatch.from_arrays([sides, *map(pa.array, both.T), *batch.columns], schema=schema)
    if unread:
        yield _unread(side, unread, _IDENTITIES)


def _unread(side: str, count: int, columns: Any) -> pa.RecordBatch:
    """Return rows of places that cannot be read."""
    schema = arrow_schema(columns)
    nulls = [pa.nulls(count, field.type) for field in list(schema)[1:]]
    return pa.RecordBatch.from_arrays([pa.repeat(pa.scalar(side), count), *nulls], schema=schema)


def _pieces(part: LogRange) -> Iterator[MessageTable | UnreadablePlace]:
    try:
        with RangeReader(part) as reader:
            yield from reader.tables()
    except GONE:
        return


def _tables(parts: Sequence[LogRange]) -> Iterator[tuple[LogRange, MessageTable]]:
    for part in parts:
        for piece in _pieces(part):
            if not isinstance(piece, UnreadablePlace):
                yield part, _sound(piece)


def _sound(table: MessageTable) -> MessageTable:
    """Return the records that are what was stored: of the others nobody knows whether they are the same."""
    sound = are_sound(table)
    return table if sound.all() else table.where(sound)


def _rows(part: LogRange, table: MessageTable, side: str) -> Iterator[pa.RecordBatch]:
    whole = arrow_schema(SCHEMA)
    fields = pa.schema([whole.field(name) for name in _COLUMNS])
    for batch in Batches(RowSelection(_COLUMNS, part.store.path), fields, "PERMISSIVE").of_table(table, part.file):
        sides = pa.repeat(pa.scalar(side), len(batch))
        yield pa.RecordBatch.from_arrays([sides, *batch.columns], schema=whole)


if __name__ == "__main__":
    run_as_program("compare")
