"""The source in Spark itself, in local mode: what the tests beside it do without a JVM, once through all of it."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.reader import StoreReader
from mqtool.spark.source import register
from tests.golden import copy_of, golden_store, manifest
from tests.spark.reading import read
from tests.spark.session import pushdown, session
from tests.spark.test_stream import SEGMENT, Growing

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("spark"), pytest.mark.filterwarnings("ignore")]

MIXED = "mixed-533-clean"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield session()


def load(spark: SparkSession, path: object, **options: object) -> DataFrame:
    return (
        spark.read.format("rocketmq_store").options(**{name: str(one) for name, one in options.items()}).load(str(path))
    )


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.collect()]


@pytest.mark.parametrize("name", ["mixed-533-kill", "timer-533-clean", "dledger-497-clean", "rocksdb-550-clean"])
def test_spark_has_the_rows_that_its_workers_read(spark: SparkSession, name: str) -> None:
    root = golden_store(name)
    for table in ("messages", "consume_queue", "index", "timer", "segments", "config", "findings"):
        frame = load(spark, root, table=table, maxPartitionBytes=30_000)
        expected = read(root, table=table)
        for row in expected:
            for column, value in row.items():
                if column == "properties":
                    row[column] = dict(value)
                elif column.endswith("_time") and value is not None:
                    row[column] = value.replace(tzinfo=None)
                elif isinstance(value, bytes):
                    row[column] = bytearray(value)

        assert rows(frame) == expected


def test_layouts_and_columns(spark: SparkSession) -> None:
    root = golden_store(MIXED)
    for columns in ("kafka", "rocketmq-spark", "store_time, raw_properties,topic", "heads,body"):
        found = load(spark, root, columns=columns)
        assert [*read(root, columns=columns)[0]] == found.columns
        assert found.count() == len(manifest(MIXED)["messages"])
    chosen = spark.read.format("rocketmq_store").schema("topic string, queue_offset bigint").load(str(root))
    assert rows(chosen.limit(1)) == [{"topic": "OrderEvents", "queue_offset": 0}]


QUERIES = [
    "topic = 'log-x' and queue_offset between 10 and 20",
    "store_time >= timestamp'2026-11-21T01:34:55.5Z' and physical_offset < 200000",
    "store_timestamp > 1795224895100 and not topic = 'log-x'",
    "queue_id in (1, 2) and tags is not null and body_size > 100",
    "topic like 'pay%' or queue_id = 0",
    "topic is null",
]


@pytest.mark.parametrize("query", QUERIES)
def test_filters_give_the_same_pushed_down_or_not(spark: SparkSession, query: str) -> None:
    found = []
    for enabled in (False, True):
        with pushdown(spark, enabled):
            frame = load(spark, golden_store(MIXED), maxPartitionBytes=40_000)
            found.append(rows(frame.where(query).select("physical_offset", "store_time", "topic")))
    assert found[0] == found[1]


@pytest.mark.parametrize("enabled", [False, True])
def test_queries_of_one_frame_do_not_get_the_rows_of_each_others_filters(spark: SparkSession, enabled: bool) -> None:
    topics = Counter(message["topic"] for message in manifest(MIXED)["messages"])
    with pushdown(spark, enabled):
        register(spark)
        frame = load(spark, golden_store(MIXED))
        one, other = (frame.where(f"topic = '{topic}'") for topic in ("log-x", "OrderEvents"))

        assert one.count() == topics["log-x"]
        assert frame.count() == topics.total()
        assert one.union(other).count() == topics["log-x"] + topics["OrderEvents"]
        assert one.union(frame).count() == topics["log-x"] + topics.total()
        assert one.join(other, "queue_id", "left_anti").count() == 0
        assert {row["topic"]: row["count"] for row in frame.groupBy("topic").count().collect()} == topics


def test_what_is_misspelt_and_what_is_damaged_is_said_in_a_sentence(spark: SparkSession, tmp_path: Path) -> None:
    for options, told in (
        ({"tabel": "index"}, "Failed to create Python data source instance: {}unknown option tabel: did you mean"),
        (
            {"maxPartitionBytes": "x"},
            "Failed to create Python data source instance: {}maxPartitionBytes=x is not a size",
        ),
        ({"set.mappedFileSizeCommitLog": "x"}, "source read partitions: {}mappedFileSizeCommitLog=x is not a size"),
    ):
        with pytest.raises(AnalysisException) as refused:
            load(spark, golden_store(MIXED), **options).collect()
        assert told.format("mqtool.errors.UsageError: ") in str(refused.value)
        assert "Traceback" not in str(refused.value)
    root = copy_of(MIXED, tmp_path)
    file = root / "commitlog" / f"{0:020}"
    data = bytearray(file.read_bytes())
    data[100:103] = b"???"
    file.write_bytes(data)
    with pytest.raises(PythonException, match="LOG-CRC commitlog/00000000000000000000@0: the body does not match"):
        load(spark, root, mode="FAILFAST", includeBody="true").collect()
    assert load(spark, root, mode="DROPMALFORMED", includeBody="true").count() == len(manifest(MIXED)["messages"]) - 1
    assert load(spark, root, includeBody="true").where("_corrupt_record.code = 'LOG-CRC'").count() == 1


def test_a_stream_that_cannot_be_is_refused_in_a_sentence(spark: SparkSession, tmp_path: Path) -> None:
    def start(path: object, **options: str) -> None:
        source = spark.readStream.format("rocketmq_store").options(**options).load(str(path))
        writer = source.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(AnalysisException, match="UsageError: unknown startingOffsets late: did you mean latest"):
        start(golden_store(MIXED), startingOffsets="late")
    for path, options, told in (
        (
            golden_store(MIXED),
            {"table": "index"},
            "UsageError: the table index cannot be streamed, because only messages are",
        ),
        (tmp_path / "none", {}, "NotFoundError: "),
    ):
        with pytest.raises(StreamingQueryException) as refused:
            start(path, **options)
        assert told in str(refused.value)
        assert "Traceback" not in str(refused.value)
        assert "UnboundLocalError" not in str(refused.value)


def test_a_frame_becomes_a_store(spark: SparkSession, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    frame = load(spark, golden_store(MIXED), maxPartitionBytes=40_000, columns="all")

    options = {"set.mappedFileSizeCommitLog": "65536", "set.maxHashSlotNum": "100", "set.maxIndexNum": "250"}
    frame.write.format("rocketmq_store").options(**options).mode("append").save(str(target))

    assert [one.code for one in verify_store(StoreReader(target)) if one.severity != "note"] == []
    same = ("topic", "queue_id", "queue_offset", "body", "store_timestamp", "keys")
    assert load(spark, target, columns="all").select(*same).collect() == frame.select(*same).collect()
    with pytest.raises(Exception, match="is not empty"):
        frame.write.format("rocketmq_store").mode("append").save(str(target))


def test_a_stream_has_each_message_once_through_growth_restart_roll_and_retention(
    spark: SparkSession, tmp_path: Path
) -> None:
    growing = Growing(tmp_path / "store", tmp_path / "whole")
    growing.grow(1000)

    def run(mode: str = "PERMISSIVE") -> StreamingQuery:
        source = spark.readStream.format("rocketmq_store").option("maxBytesPerTrigger", 5000).option("mode", mode)
        writer = source.load(str(growing.root)).select("physical_offset", "_corrupt_record").writeStream
        query = (
            writer.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    run()
    growing.grow(2500)  # in the middle of a message
    run()
    growing.grow(2 * SEGMENT + 500)  # over two rolls
    run()
    growing.delete(1)  # of what was read
    growing.grow(growing.size)
    query = run()

    (first, *_), last = ([one["sources"][0] for one in query.recentProgress]), growing.stored[-1]
    reach = {str(growing.root): {"offset": last.physical_offset + len(last.record)}}
    assert json.loads(first["latestOffset"]) == reach  # its lag is what is between this and endOffset
    assert json.loads(first["endOffset"])[str(growing.root)]["offset"] < last.physical_offset
    found = rows(spark.read.parquet(str(tmp_path / "out")))
    assert sorted(row["physical_offset"] for row in found) == growing.offsets()
