"""``export`` as a Spark job: messages as compressed Parquet, in folders by topic and by date of storage.

The columns are those of ``mqtool export``, bodies as they are stored, so that ``mqtool import`` takes each file.
Damaged messages are left out.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from mqtool.engine.repair.transfer import NUMBERS, RAW, SAID, TEXTS
from mqtool.spark import run_as_program
from mqtool.spark.messages import CORRUPT, FIRST_MS, LAST_MS
from mqtool.spark.options import SETTINGS
from mqtool.spark.session import setting
from mqtool.spark.source import NAME, RocketMQStore, metrics
from mqtool.spark.stores import Store

_COLUMNS = (*NUMBERS, *TEXTS, *RAW, "properties", *SAID)
FOLDERS = ("export_topic", "store_date")
"""What folders are named by; the column ``topic`` stays in the files, as ``mqtool import`` needs it there."""
_DAY_MS = 86_400_000


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Which messages: topics (None: all), store times and addresses in half-open ranges."""

    topics: frozenset[str] | None = None
    since: int | None = None
    until: int | None = None
    start: int | None = None
    stop: int | None = None


@dataclasses.dataclass(frozen=True)
class Exported:
    """How much was written, and how much was left out."""

    messages: int
    size: int
    damaged: int


def run(spark: Any, stores: Sequence[Store], into: Path | str, chosen: Chosen, partition_size: int) -> Exported:
    """Write messages below ``into``, a folder that is not there yet.

    Args:
        spark: the session.
        stores: which.
        into: a path that all executors see, or a URL that Spark writes to.
        chosen: which messages.
        partition_size: bytes of log for one task.
    """
    from pyspark.sql import Observation, functions

    messages = _selected(_messages(spark, stores, partition_size), chosen)
    is_sound = functions.col(CORRUPT).isNull()
    observed = Observation("export")
    counted = messages.observe(observed, *metrics())
    folders = {"export_topic": functions.col("topic"), "store_date": _date(functions.col("store_timestamp"))}
    rows = counted.where(is_sound).drop(CORRUPT).withColumns(folders)
    with setting(spark, "spark.sql.python.filterPushdown.enabled", "true"):
        rows.write.partitionBy(*FOLDERS).option("compression", "zstd").parquet(str(into))
    found = observed.get
    return Exported(found["messages"] or 0, found["bytes"] or 0, found["damaged"] or 0)


def _date(milliseconds: Any) -> Any:
    """Return the date in UTC, whatever the time zone of the session; null where no calendar has it."""
    from pyspark.sql import functions

    days = functions.floor(milliseconds / _DAY_MS).cast("int")
    first = functions.lit("1970-01-01").cast("date")
    return functions.when(milliseconds.between(FIRST_MS, LAST_MS), functions.date_add(first, days))


def _messages(spark: Any, stores: Sequence[Store], partition_size: int) -> Any:
    """Return the messages of all stores, of those with other settings by a source of their own."""
    spark.dataSource.register(RocketMQStore)
    alike: dict[tuple[Any, bool], list[Store]] = {}
    for store in stores:
        alike.setdefault((store.settings, store.in_use), []).append(store)
    frames = [_messages_of(spark, group, partition_size) for group in alike.values()]
    return functools.reduce(lambda one, other: one.unionAll(other), frames)


def _messages_of(spark: Any, stores: Sequence[Store], partition_size: int) -> Any:
    """Return the messages of stores that have the same settings."""
    reader = spark.read.format(NAME).option("paths", orjson.dumps([store.path for store in stores]).decode())
    options = {
        "columns": ",".join((*_COLUMNS, CORRUPT)),
        "decompressBody": "false",
        "maxPartitionBytes": str(partition_size),
        "live": str(stores[0].in_use).lower(),
    }
    options |= {f"set.{key}": value for key, value in stores[0].settings if key in SETTINGS}
    return reader.options(**options).load()


def _selected(messages: Any, chosen: Chosen) -> Any:
    from pyspark.sql import functions

    ranges = (("store_timestamp", chosen.since, chosen.until), ("physical_offset", chosen.start, chosen.stop))
    for name, low, high in ranges:
        if low is not None:
            messages = messages.where(functions.col(name) >= low)
        if high is not None:
            messages = messages.where(functions.col(name) < high)
    if chosen.topics is not None:
        messages = messages.where(functions.col("topic").isin(sorted(chosen.topics)))
    return messages


if __name__ == "__main__":
    run_as_program("export")
