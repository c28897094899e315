"""``export`` as a Spark job: messages as compressed Parquet, in folders by topic and by date of storage.

The columns are those of ``mqtool export``, with bodies as stored, so that ``mqtool import`` accepts each file.
Damaged messages are left out.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mqtool.engine.repair.salvage.transfer import NUMBERS, RAW, SAID, TEXTS
from mqtool.spark import run_as_program
from mqtool.spark.bounds import Bounds
from mqtool.spark.messages import COLUMNS, CORRUPT, FIRST_MS, LAST_MS
from mqtool.spark.partitions import LogRange, MissingRange
from mqtool.spark.schemas import arrow_schema, metrics, spark_schema
from mqtool.spark.session import setting
from mqtool.spark.spread import spread
from mqtool.spark.stores import Store
from mqtool.spark.tables import TABLES, Ask, read_messages

_COLUMNS = (*NUMBERS, *TEXTS, *RAW, "properties", *SAID, CORRUPT)
SCHEMA = spark_schema({name: COLUMNS[name].type for name in _COLUMNS})
_ASK = Ask(_COLUMNS, _COLUMNS, plain_bodies=False)
FOLDERS = ("export_topic", "store_date")
"""What folders are named by; the column ``topic`` stays in the files, as ``mqtool import`` needs it there."""
FILE_SIZE = 256 << 20
"""About this many bytes of messages, compressed, go into a file if a topic has more on a day."""
_DAY_MS = 86_400_000
_SETTINGS = {
    # A task, and so a file, has messages of one store, unless Spark unites partitions that are cut alike.
    "spark.sql.unionOutputPartitioning": "false",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": str(FILE_SIZE),
    # It drops the counts of a store together with the rows that this does not have.
    "spark.sql.adaptive.optimizer.excludedRules": "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation",
}
_LONGEST_NAME = 80


@dataclasses.dataclass(frozen=True)
class ExportSelection:
    """Which messages: topics (None: all), store times and addresses in half-open ranges."""

    topics: frozenset[str] | None = None
    since: int | None = None
    until: int | None = None
    start: int | None = None
    stop: int | None = None


@dataclasses.dataclass(frozen=True)
class ExportTotals:
    """How much was written, and how much was left out."""

    messages: int
    size: int
    damaged: int


def run(
    spark: Any, stores: Sequence[Store], into: Path | str, chosen: ExportSelection, partition_size: int
) -> ExportTotals:
    """Write messages below ``into``, a folder that does not exist yet: one file, or a few, per store, topic and day.

    Cost: what is written is shuffled once, to be together and in the order of the log.

    Args:
        spark: the session.
        stores: which.
        into: a path that all executors see, or a URL that Spark writes to.
        chosen: which messages.
        partition_size: bytes of log for one task.
    """
    from pyspark.sql import Observation

    observed = [Observation(f"export {number}") for number in range(len(stores))]
    frames = [
        _gathered(spark, store, chosen, partition_size, observation)
        for store, observation in zip(stores, observed, strict=True)
    ]
    rows = functools.reduce(lambda left, right: left.unionAll(right), frames)
    ordered = rows.sortWithinPartitions(*FOLDERS, "physical_offset")
    with contextlib.ExitStack() as settings:
        for name, value in _SETTINGS.items():
            settings.enter_context(setting(spark, name, value))
        ordered.write.partitionBy(*FOLDERS).option("compression", "zstd").parquet(str(into))
    totals = [observation.get for observation in observed]
    return ExportTotals(*(sum(counts[name] or 0 for counts in totals) for name in ("messages", "bytes", "damaged")))


def _gathered(spark: Any, store: Store, chosen: ExportSelection, partition_size: int, observed: Any) -> Any:
    """Return the messages of a store brought together by topic and day, with the columns that folders are named by."""
    from pyspark.sql import functions

    messages = _messages(spark, store, chosen, partition_size)
    is_sound = functions.col(CORRUPT).isNull()
    folders = {"export_topic": _folder(functions.col("topic")), "store_date": _date(functions.col("store_timestamp"))}
    rows = messages.observe(observed, *metrics()).where(is_sound).drop(CORRUPT).withColumns(folders)
    # The method hint takes no columns in Spark 3.5.
    return spark.sql(f"SELECT /*+ REBALANCE({', '.join(FOLDERS)}) */ * FROM {{rows}}", rows=rows)


def _folder(topic: Any) -> Any:
    """Return a topic as a name of a folder: file systems take 255 bytes, of which Spark makes three of some letters."""
    from pyspark.sql import functions

    short = functions.concat(functions.substring(topic, 1, 40), functions.lit("-"), functions.md5(topic))
    return functions.when(functions.octet_length(topic) <= _LONGEST_NAME, topic).otherwise(short)


def _date(milliseconds: Any) -> Any:
    """Return the date in UTC, whatever the time zone of the session; null where no calendar has it."""
    from pyspark.sql import functions

    days = functions.floor(milliseconds / _DAY_MS).cast("int")
    first = functions.lit("1970-01-01").cast("date")
    return functions.when(milliseconds.between(FIRST_MS, LAST_MS), functions.date_add(first, days))


class ExportTask(NamedTuple):
    """What one task gives: the messages of a range, or that they are missing."""

    part: LogRange | MissingRange
    bounds: Bounds


def _messages(spark: Any, store: Store, chosen: ExportSelection, partition_size: int) -> Any:
    """Return the chosen messages of a store, and what is damaged of it or of what may be it."""
    bounds = Bounds(chosen.since, chosen.until, chosen.start, chosen.stop, topics=chosen.topics)
    ask = dataclasses.replace(_ASK, max_partition=partition_size, bounds=bounds)
    items = (ExportTask(part, bounds) for part in TABLES["messages"].parts(store, store.open(), ask))
    return spread(spark, items, read, SCHEMA)


def read(item: ExportTask) -> Iterator[Any]:
    """Yield the messages of one item, and what is damaged in its range."""
    yield from read_messages(item.part, dataclasses.replace(_ASK, bounds=item.bounds), arrow_schema(SCHEMA))


if __name__ == "__main__":
    run_as_program("export")
