"""Spark over generated stores: a scan against an empty source, jobs against the commands, one core against two.

Spark costs something for each task, batch and row, whatever is read. So the yardstick of a scan is a Python source that
yields Arrow batches of the same columns, rows and partitions which are ready beforehand. Jobs and commands are held
against each other by their slopes: the seconds that a large store takes longer than a small one, so that what it costs
to start does not count. Every measurement runs in a process and a JVM of its own, the stores of a slope in turns, the
files in the page cache.
"""

import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.repairs import warm
from bench.stores import SEGMENT, make_part, make_store
from bench.table import Row, rate
from mqtool.engine.repair.verify.store import Level, verify_store
from mqtool.engine.store.reader import StoreReader
from mqtool.engine.store.stats import By, Selection, count_messages

SIZES = (4 << 30, 16 << 30)
RUNS = 10  # the JVM gets faster for about as many
PARTITION = 128 << 20
DAY_MS = 86_400_000
HEADS = "physical_offset,size,topic,queue_id,queue_offset,sys_flag,born_timestamp,store_timestamp,body_size"


def measure_spark(folder: Path, sizes: tuple[int, int] = SIZES) -> list[Row]:
    """Return the rows; stores are made in ``folder``, or found there from the last run."""
    small, large = _stores(folder, *sizes)
    cores = len(os.sched_getaffinity(0))
    master = f"local[{cores}]"
    size = StoreReader(small).commit_log.total_size
    (empty,), (scanned,) = _seconds(master, "empty", small), _seconds(master, "heads", small)
    name = f"{sizes[0] >> 30} GiB, 1 KiB bodies"
    rows = [
        Row("limit: ready batches of the heads", name, rate(size, empty), "1.00", ""),
        Row("scan of heads", name, rate(size, scanned), f"{scanned / empty:.2f} x", "≤ 1.4 x"),
    ]
    (whole,), (hour,) = _seconds(master, "day", small), _seconds(master, "hour", small)
    rows.append(Row("one hour of a day against all of it", name, f"{hour:.2f} s", f"{whole / hour:.1f} x", "≥ 5 x"))
    more = StoreReader(large).commit_log.total_size - size
    name = f"{sizes[0] >> 30} to {sizes[1] >> 30} GiB"
    slopes = {}
    for job in ("stats", "verify"):
        ours = _slope(_best(*(_command(job, store, cores) for store in (small, large))))
        took = _seconds(master, job, small, large)
        slopes[job] = _slope(took)
        rows.append(Row(f"mqtool {job} -j {cores}, slope", name, rate(more, ours), "1.00", ""))
        rows.append(
            Row(f"{job} on {master}, slope", name, rate(more, slopes[job]), f"{ours / slopes[job]:.2f}", "≥ 0.8")
        )
        whole, of = _process(job, small, cores), f"{sizes[0] >> 30} GiB"
        rows.append(Row(f"mqtool {job} -j {cores}, a whole run", of, f"{whole:.2f} s", "1.00", ""))
        rows.append(Row(f"{job} on {master}, session there", of, f"{took[0]:.2f} s", f"{whole / took[0]:.2f}", "≥ 0.6"))
    if cores > 1:
        one = _slope(_seconds("local[1]", "stats", small, large))
        ratio = f"{one / slopes['stats']:.2f} x"
        rows.append(
            Row(f"stats on {master} against local[1], slope", name, rate(more, slopes["stats"]), ratio, "≥ 1.6 x")
        )
    return rows


def _stores(folder: Path, small_size: int, large_size: int) -> tuple[Path, Path]:
    """Return a store with a day in it, and the larger one that it grew into."""
    small, large = (folder / f"store-spark-{size >> 30}" for size in (small_size, large_size))
    if not (large / "checkpoint").exists():
        make_store(large, 1024, large_size - (4 << 20), DAY_MS * large_size // small_size)
    if not (small / "checkpoint").exists():
        make_part(small, large, small_size // SEGMENT)
    return small, large


def _slope(seconds: list[float]) -> float:
    small, large = seconds
    return large - small


def _command(job: str, root: Path, jobs: int) -> Callable[[], object]:
    """Return a command's own work, without its start."""

    def stats() -> None:
        reader = StoreReader(root)
        count_messages(reader, By.TOPIC, Selection(), 0, reader.commit_log.end_offset, jobs)

    def verify() -> None:
        if any(found.severity != "note" for found in verify_store(StoreReader(root), Level.FULL, jobs)):
            raise AssertionError("the store of the benchmark is not sound")

    return {"stats": stats, "verify": verify}[job]


def _process(job: str, root: Path, jobs: int) -> float:
    """Return the seconds of a command from its start to its end."""
    words = [sys.executable, "-m", "mqtool", job, "-s", str(root), "-j", str(jobs)]
    return _best(lambda: subprocess.run(words, check=True, capture_output=True))[0]


def _best(*works: Callable[[], object]) -> list[float]:
    """Return the seconds of each, the best of several runs in turns."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(RUNS):
        for work, took in zip(works, times, strict=True):
            start = time.perf_counter()
            work()
            took.append(time.perf_counter() - start)
    return [min(took) for took in times]


def _seconds(master: str, job: str, *roots: Path) -> list[float]:
    """Return the seconds of a job in a process of its own for each store, best of several runs behind a first one."""
    words = [sys.executable, "-W", "ignore", "-m", "bench.spark", master, job, *map(str, roots)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"{words} ended with {done.returncode}: {done.stderr[-2000:]}")
    return [float(word) for word in done.stdout.splitlines()[-1].split()]


def _run(master: str, job: str, roots: list[Path]) -> list[float]:
    from mqtool.spark.session import session
    from mqtool.spark.source import RocketMQStore

    with session(master, {}, "bench") as spark:
        spark.dataSource.register(RocketMQStore)
        works = [_work(spark, job, root) for root in roots]
        for root, work in zip(roots, works, strict=True):
            warm(root)
            work()
        return _best(*works)


def _work(spark: Any, job: str, root: Path) -> Callable[[], object]:
    from mqtool.spark.source import NAME

    if job in ("stats", "verify"):
        return functools.partial(_job, spark, job, root)
    if job == "empty":
        return functools.partial(_drain, _ready(spark, root))
    heads = spark.read.format(NAME).option("columns", HEADS).option("maxPartitionBytes", PARTITION)
    if job == "hour":
        times = heads.load(str(root)).selectExpr("min(store_timestamp)", "max(store_timestamp)")
        low, high = times.first()
        begin = low + (high - low) * 11 // 24
        heads = heads.option("startingTimestamp", begin).option("endingTimestamp", begin + (high - low) // 24)
    return functools.partial(_drain, heads.load(str(root)))


def _drain(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _job(spark: Any, job: str, root: Path) -> None:
    from mqtool.spark import stats, verify
    from mqtool.spark.partitions import size_to_count
    from mqtool.spark.session import cores_of
    from mqtool.spark.stores import Store

    stores = [Store(str(root))]
    size = size_to_count(stores[0].open().commit_log.total_size, cores_of(spark) or 1)
    if job == "stats":
        stats.counts(spark, stores, By.TOPIC, Selection(), size).collect()
    elif any(row["severity"] != "note" for row in verify.findings(spark, stores, Level.FULL, size).collect()):
        raise AssertionError("the store of the benchmark is not sound")


def _ready(spark: Any, root: Path) -> Any:
    """Return the DataFrame of a source that yields batches which are there, as many and as large as a scan does."""
    from pyspark.sql.datasource import CaseInsensitiveDict, DataSource, DataSourceReader, InputPartition

    from mqtool.spark.source import RocketMQStore

    options = {"path": str(root), "columns": HEADS, "maxPartitionBytes": str(PARTITION)}
    real = RocketMQStore(CaseInsensitiveDict(options))
    schema = real.schema()
    scan = real.reader(schema)
    parts = scan.partitions()
    sizes = [[batch.num_rows for batch in scan.read(part)] for part in parts]
    most = max(number for rows in sizes for number in rows)
    batch = next(batch for batch in scan.read(parts[0]) if batch.num_rows == most or len(sizes[0]) == 1)

    class Ready(DataSourceReader):
        def partitions(self) -> list[Any]:
            return [InputPartition(number) for number in range(len(sizes))]

        def read(self, partition: Any) -> Iterator[Any]:
            for count in sizes[partition.value]:
                yield batch.slice(0, count)

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ready"

        def schema(self) -> Any:
            return schema

        def reader(self, schema: Any) -> Any:  # noqa: ARG002
            return Ready()

    spark.dataSource.register(Source)
    return spark.read.format("ready").load()


if __name__ == "__main__":
    print(*_run(sys.argv[1], sys.argv[2], [Path(word) for word in sys.argv[3:]]))
