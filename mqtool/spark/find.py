"""``find`` as a Spark job: messages by key, unique key (the id in traces), tag, property or text.

The driver looks keys up in the index files, as ``mqtool find`` does; tasks read the messages that entries
refer to, and scan what the index does not cover.

Cost: that of ``mqtool find``, spread over the tasks; nothing is shuffled.
"""

import bisect
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from mqtool.engine.store.holes import LogHole
from mqtool.engine.store.search import Matcher, Query, Search, is_wanted
from mqtool.errors import FormatError, NotFoundError
from mqtool.formats import scan
from mqtool.spark import run_as_program
from mqtool.spark.messages import BUILDERS, CORRUPT, Batches, RowSelection
from mqtool.spark.partitions import LogRange, RangeReader, UnreadablePlace, log_ranges
from mqtool.spark.schemas import arrow_schema, spark_schema
from mqtool.spark.spread import spread
from mqtool.spark.stores import Store
from mqtool.spark.tables import GONE

_COLUMNS = tuple(BUILDERS)
_PLACE = {"position": "bigint", "record": "binary"}
"""The columns of the table ``messages``, the actual address of a message, and its whole record."""
_FOUND = spark_schema({**{name: BUILDERS[name].type for name in _COLUMNS}, **_PLACE})
"""A row with a ``_corrupt_record`` is not a match, but a place that could not be read."""
_ASTRAY = "INDEX-ENTRY"
_MAX_HITS = 1000


class FindTask(NamedTuple):
    """The work of one task: a range of the log, and addresses from index entries, in that range or in none."""

    store: Store
    query: Query
    part: LogRange | None
    offsets: list[int]


@dataclasses.dataclass
class FindPlan:
    """What to search for, what the driver has found in the index, and which addresses no file holds."""

    items: list[FindTask]
    remarks: list[str]
    holes: list[tuple[Store, LogHole]] = dataclasses.field(default_factory=list)
    scan_size: int = 0


def plan(stores: Sequence[tuple[Store, Query]], partition_size: int, use_index: bool) -> FindPlan:
    """Search the index files, and split what must be scanned into ranges."""
    find_plan = FindPlan([], [])
    for store, query in stores:
        reader = store.open()
        search = Search(reader, query, use_index)
        hits, outside, next_hit = search.hit_offsets, list[int](), 0
        for start, stop in search.ranges:
            for part in log_ranges(store, reader, partition_size, start, stop):
                low, high = (bisect.bisect_left(hits, part.start_offset + at) for at in (part.start, part.stop))
                find_plan.items.append(FindTask(store, query, part, hits[low:high]))
                outside += hits[next_hit:low]
                next_hit = high
        outside += hits[next_hit:]
        find_plan.items += [
            FindTask(store, query, None, outside[start : start + _MAX_HITS])
            for start in range(0, len(outside), _MAX_HITS)
        ]
        find_plan.remarks += [*reader.remarks, *search.remarks]
        find_plan.holes += [(store, hole) for hole in search.all_holes]
        find_plan.scan_size += search.scan_size
    return find_plan


def messages(spark: Any, items: Sequence[FindTask]) -> tuple[Any, Any]:
    """Return the DataFrame of the messages that fit, each once, and an observation of it.

    Items share no message, so nothing is shuffled. The observation counts, while the DataFrame is read, the messages
    (``found``), the places that were scanned and could not be read (``unread``), and those without a sound message to
    which index entries refer (``astray``).
    """
    from pyspark.sql import Observation, functions

    observed = Observation("find")
    is_message = functions.col(CORRUPT).isNull()
    is_astray = functions.col(CORRUPT)["code"] == _ASTRAY
    conditions = {"found": is_message, "unread": ~is_message & ~is_astray, "astray": ~is_message & is_astray}
    counts = [functions.count_if(condition).alias(name) for name, condition in conditions.items()]
    rows = spread(spark, items, find, _FOUND).observe(observed, *counts)
    return rows.where(is_message).drop(CORRUPT), observed


def find(item: FindTask) -> Iterator[pa.RecordBatch]:
    """Yield the messages of one item that fit."""
    matcher = Matcher(item.query)
    schema = arrow_schema(_FOUND)
    fields = pa.schema([schema.field(number) for number in range(len(_COLUMNS))])
    batches = Batches(RowSelection(_COLUMNS, item.store.path), fields, "PERMISSIVE")
    file, start_offset = (item.part.file, item.part.start_offset) if item.part else ("", 0)
    for piece in _pieces(item):
        if isinstance(piece, UnreadablePlace):
            for batch in batches.of_damage(file, piece.position, piece.code, None):
                yield _with(batch, [start_offset + piece.position], [None], schema)
            continue
        rows = [row for row, _ in matcher.rows_in(piece)]
        if rows:
            chosen = piece.where(np.array(rows))
            for batch in batches.of_table(chosen, file):
                records = [chosen.record(row) for row in range(len(chosen))]
                yield _with(_found(batch), chosen.column("position"), records, schema)


def _with(batch: pa.RecordBatch, positions: Any, records: Sequence[bytes | None], schema: pa.Schema) -> pa.RecordBatch:
    more = [pa.array(positions, pa.int64()), pa.array(records, pa.binary())]
    return pa.RecordBatch.from_arrays([*batch.columns, *more], schema=schema)


def _found(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return matching messages even if their properties or bodies are damaged, as the command does."""
    number = _COLUMNS.index(CORRUPT)
    columns = [*batch.columns]
    columns[number] = pa.nulls(len(batch), batch.schema.types[number])
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _pieces(item: FindTask) -> Iterator[scan.MessageTable | UnreadablePlace]:
    left = set(item.offsets)
    for piece in _scanned(item):
        if left and not isinstance(piece, UnreadablePlace):
            left.difference_update(piece.column("position")[piece.faults == 0].tolist())
        yield piece
    # A record may be hidden behind damage, and an entry knows it all the same.
    if not left:
        return
    reader = item.store.open()
    start_offset = item.part.start_offset if item.part else 0
    for offset in sorted(left):
        try:
            record = reader.record_at(offset)
        except (NotFoundError, FormatError):
            if is_wanted(reader.commit_log, item.query, offset):
                yield UnreadablePlace(offset - start_offset, _ASTRAY)
            continue
        yield scan.gather(memoryview(record), offset, np.zeros(1, np.int64))


def _scanned(item: FindTask) -> Iterator[scan.MessageTable | UnreadablePlace]:
    if item.part is None:
        return
    try:
        with RangeReader(item.part) as part:
            for piece in part.tables():
                if not isinstance(piece, UnreadablePlace):
                    hidden = piece.faults != 0
                    if item.query.topics is not None:
                        hidden |= piece.nameless()
                    for start in piece.starts[hidden].tolist():
                        yield UnreadablePlace(start, "LOG-SIZES")
                yield piece
    except GONE:
        return


if __name__ == "__main__":
    run_as_program("find")
