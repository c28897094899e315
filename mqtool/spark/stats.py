"""``stats`` as a Spark job: messages and bytes by topic, queue, tag, hour, size or producer.

Tasks count what starts in their ranges as ``mqtool stats`` does; one row per group and range is summed afterwards.
By queue they also record ranges of queue offsets, so that missing and repeated offsets can be counted.

Cost: linear in the messages; one row per group and range is shuffled.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from mqtool.engine.repair.parts import spans_of
from mqtool.engine.store.dispatch import QueueKey, dispatch
from mqtool.engine.store.stats import KEYS, By, Count, Selection, Tally, matches
from mqtool.formats.scan import MessageTable
from mqtool.spark import run_as_program
from mqtool.spark.partitions import (
    LogRange,
    MissingRange,
    RangeReader,
    UnreadablePlace,
    log_ranges,
    missing_ranges,
    with_missing,
)
from mqtool.spark.spread import spread
from mqtool.spark.stores import Store
from mqtool.spark.tables import GONE

_TYPES = {
    "topic": "string", "queue_id": "long", "tags": "string", "hour_timestamp": "long", "body_size_from": "long",
    "born_address": "string", "matched": "array<string>",
}  # fmt: skip
_ARROW = {"string": pa.string(), "long": pa.int64(), "array<string>": pa.list_(pa.string())}
_COUNTS = tuple(field.name for field in dataclasses.fields(Count))
UNREAD = ("lost", "faulty", "gone", "holes", "noise")
"""What counts of messages lack, and whether anything is after the last one."""
_MAX = (1 << 63) - 1
_SUMS = ("messages", "records", "size", "body_size", *UNREAD)
_MATCHED = "matched"
_OFFSETS = ("first_offset", "stop_offset")
_OF_QUEUES = ("min_offset", "max_offset", "missing", "repeated")
_COLUMNS_OF_QUEUES = (*KEYS[By.QUEUE], *_COUNTS, *UNREAD, *_OF_QUEUES, _MATCHED)


class StatsTask(NamedTuple):
    """What one task counts."""

    parts: list[LogRange | MissingRange]
    by: By
    selection: Selection


def counts(spark: Any, stores: Sequence[Store], by: By, selection: Selection, partition_size: int) -> Any:
    """Return the DataFrame of groups: the columns of ``KEYS[by]`` and of ``Count``.

    By queue there are also ``min_offset`` and ``max_offset`` (one past the last), how many queue offsets between them
    are ``missing``, and how many messages were ``repeated``. A row without a group counts what could not be read: how
    many places (``lost``), records (``faulty``), ranges of segments that went meanwhile (``gone``) and ranges of
    addresses between two segments (``holes``). It also has the patterns of the selection that something is called by
    (``matched``), as ``pattern_names`` spells them, and whether anything but a message is after the last (``noise``).

    Args:
        spark: the session.
        stores: which.
        by: what messages are grouped by.
        selection: which messages count.
        partition_size: bytes of log for one task.
    """
    ranges = (parts for store in stores for parts in _ranges(store, selection, partition_size))
    rows = spread(spark, [StatsTask(parts, by, selection) for parts in ranges], count, _schema(by))
    keys = list(KEYS[by])
    if by is By.QUEUE:
        ordered = rows.repartition("topic", "queue_id").sortWithinPartitions(*keys, *_OFFSETS)
        return ordered.mapInArrow(_queues, _spelled(_COLUMNS_OF_QUEUES))
    from pyspark.sql import functions

    totals = [functions.sum(name).alias(name) for name in _SUMS]
    times = [functions.min("first_timestamp").alias("first_timestamp")]
    times.append(functions.max("last_timestamp").alias("last_timestamp"))
    matched = functions.flatten(functions.collect_set(_MATCHED)).alias(_MATCHED)
    return rows.groupBy(*keys).agg(*totals, *times, matched)


def pattern_names(selection: Selection) -> dict[str, tuple[str, str]]:
    """Return for each pattern of a selection what it is called in ``matched``: its field, and the pattern."""
    fields = ("topics", "queues", "tags")
    return {f"{field} {pattern}": (field, pattern) for field in fields for pattern in getattr(selection, field)}


def _ranges(store: Store, selection: Selection, partition_size: int) -> Iterator[list[LogRange | MissingRange]]:
    reader = store.open()
    start, stop = reader.range_of_time(selection.since, selection.until)
    ranges = log_ranges(store, reader, partition_size, start, stop)
    every = with_missing(ranges, missing_ranges(store, reader, start, stop))
    for _, parts in itertools.groupby(every, lambda part: part.address // partition_size):
        yield list(parts)


def _columns(by: By) -> list[str]:
    return [*KEYS[by], *_COUNTS, *UNREAD, *(_OFFSETS if by is By.QUEUE else ()), _MATCHED]


def _spelled(names: Iterable[str]) -> str:
    return ", ".join(f"{name} {_TYPES.get(name, 'long')}" for name in names)


def _schema(by: By) -> str:
    return _spelled(_columns(by))


def _batch(names: Sequence[str], rows: list[dict[str, Any]]) -> pa.RecordBatch:
    schema = pa.schema([(name, _ARROW[_TYPES.get(name, "long")]) for name in names])
    return pa.RecordBatch.from_pylist(rows, schema)


def count(item: StatsTask) -> Iterator[pa.RecordBatch]:
    """Count what starts in some ranges of a log."""
    tally = Tally(item.by, item.selection)
    spans: dict[QueueKey, list[list[int]]] = {}
    lost = gone = noise = 0
    holes = sum(isinstance(part, MissingRange) for part in item.parts)
    for piece in _pieces([part for part in item.parts if isinstance(part, LogRange)]):
        if piece is None:
            gone += 1
        elif isinstance(piece, UnreadablePlace):
            is_noise = piece.code == "LOG-NOISE"
            noise, lost = noise + is_noise, lost + (not is_noise)
        else:
            if item.by is By.QUEUE:
                _note_spans(piece, spans)
            tally.add(piece)
    keys = KEYS[item.by]
    rows: list[dict[str, Any]] = [
        dict(zip(keys, key, strict=True)) | dataclasses.asdict(group) for key, group in tally.groups.items()
    ]
    known = {tuple(row[key] for key in keys) for row in rows}
    for queue, queue_spans in spans.items():
        if queue in known:
            named = dict(zip(keys, queue, strict=True))
            ends = ((start, min(stop, _MAX)) for start, stop in queue_spans)
            rows += [named | dict(zip(_OFFSETS, span, strict=True)) for span in ends]
    matched = [
        name
        for name, (field, pattern) in pattern_names(item.selection).items()
        if any(matches((pattern,), called) for called in getattr(tally, field) if called)
    ]
    unread = dict(zip(UNREAD, (lost, tally.faulty, gone, holes, noise), strict=True))
    if any(unread.values()) or matched:
        rows.append(unread | {_MATCHED: matched})
    yield _batch(_columns(item.by), rows)


def _pieces(parts: Iterable[LogRange]) -> Iterator[MessageTable | UnreadablePlace | None]:
    """Yield what starts in ranges of a log, and None for each that disappeared in the meantime."""
    for part in parts:
        try:
            with RangeReader(part, is_mapped=True) as reader:  # heads are all that is examined
                yield from reader.tables()
        except GONE:
            yield None


def _note_spans(table: MessageTable, spans: dict[QueueKey, list[list[int]]]) -> None:
    sound = table if not table.faults.any() else table.where(table.faults == 0)
    if not len(sound):
        return
    for span in spans_of(dispatch(sound, []).units):
        known = spans.setdefault(span.queue, [])
        if known and known[-1][1] == span.start:
            known[-1][1] = span.stop
        else:
            known.append([span.start, span.stop])


def _queues(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sum up the rows of each queue, which come queue by queue and by their offsets."""
    rows = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
    for (topic, queue_id), its_rows in itertools.groupby(rows, key=lambda row: (row["topic"], row["queue_id"])):
        total = dict.fromkeys(_SUMS, 0)
        known: dict[str, int | None] = dict.fromkeys(("first_timestamp", "last_timestamp", "min_offset", "max_offset"))
        missing = repeated = 0
        matched: set[str] = set()
        for row in its_rows:
            matched.update(row[_MATCHED] or ())
            for name in _SUMS:
                total[name] += row[name] or 0
            for name, choose in (("first_timestamp", min), ("last_timestamp", max)):
                if row[name] is not None:
                    known[name] = row[name] if known[name] is None else choose(known[name], row[name])
            start, stop = row["first_offset"], row["stop_offset"]
            if start is None:
                continue
            end = known["max_offset"]
            if end is None:
                known["min_offset"], known["max_offset"] = start, stop
                continue
            missing += max(0, start - end)
            repeated += max(0, min(end, stop) - start)
            known["max_offset"] = max(end, stop)
        named = {
            "topic": topic, "queue_id": queue_id, "missing": min(missing, _MAX), "repeated": min(repeated, _MAX),
        }  # fmt: skip
        yield _batch(_COLUMNS_OF_QUEUES, [total | known | named | {_MATCHED: sorted(matched)}])


if __name__ == "__main__":
    run_as_program("stats")
