"""Spark on stores in object storage: jobs and source find what they find on a disk; and where ``--into`` goes."""

import collections
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqtool.commands import _spark
from mqtool.engine.repair.verify.store import Level
from mqtool.engine.store import remote
from mqtool.engine.store.reader import StoreReader
from mqtool.engine.store.stats import By, Selection
from mqtool.errors import Status, StoreChangedError
from mqtool.spark import export, rebuild, stats, verify
from mqtool.spark.partitions import RangeReader, log_ranges
from mqtool.spark.session import first_line
from mqtool.spark.source import NAME, RocketMQStore
from mqtool.spark.stores import Store, find_stores
from tests.golden import golden_store
from tests.spark.session import AWS_CONFIG, session
from tests.storage import BUCKET, S3, environment, s3_server

pytestmark = [
    pytest.mark.java,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]
SMALL = 64 << 10
GOLDEN = "mixed-533-kill"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server, environment({**server.environment, "AWS_CONFIG_FILE": AWS_CONFIG}):
        lines = ["[default]", "region = us-east-1", f"endpoint_url = http://{server.address}"]
        lines += ["aws_access_key_id = reader", "aws_secret_access_key = secret"]
        Path(AWS_CONFIG).write_text("\n".join(lines))
        remote.forget_storages()
        yield server
    Path(AWS_CONFIG).unlink()
    remote.forget_storages()


@pytest.fixture
def spark(s3: S3) -> Any:  # noqa: ARG001 - it is there when tasks ask for it
    return session()


def pair(s3: S3) -> list[Store]:
    """Return a store on a disk, and the same in S3."""
    return find_stores([str(golden_store(GOLDEN)), s3.put(golden_store(GOLDEN), f"a/{GOLDEN}")], {})


def rows_of(rows: list[Any], *without: str) -> "collections.Counter[str]":
    kept = [{name: value for name, value in row.asDict().items() if name not in without} for row in rows]
    return collections.Counter(repr(sorted(row.items())) for row in kept)


def test_jobs_find_in_s3_what_they_find_on_a_disk(spark: Any, s3: S3, tmp_path: Path) -> None:
    local, there = pair(s3)

    counts = [rows_of(stats.counts(spark, [store], By.QUEUE, Selection(), SMALL).collect()) for store in (local, there)]
    assert counts[0] == counts[1]
    assert counts[0]
    findings = verify.findings(spark, [local, there], Level.FULL, SMALL).collect()
    told = [rows_of([row for row in findings if row["store"] == store.path], "store") for store in (local, there)]
    assert told[0] == told[1]
    assert told[0]
    built = [tmp_path / name for name in ("local", "there")]
    for store, into in zip((local, there), built, strict=True):
        rebuild.run(spark, store, into, queues=True, index=True, topics=None, version=None, partition_size=SMALL)
    files = [
        {path.relative_to(into): path.read_bytes() for path in into.rglob("*") if path.is_file()} for into in built
    ]
    assert files[0] == files[1]


def test_the_source_reads_s3_as_it_reads_a_disk(spark: Any, s3: S3) -> None:
    spark.dataSource.register(RocketMQStore)
    local = pair(s3)[0].path

    def read(path: str) -> "collections.Counter[str]":
        frame = spark.read.format(NAME).option("maxPartitionBytes", SMALL).load(path)
        return rows_of(frame.collect(), "store")

    assert read(local) == read(f"s3://{BUCKET}/a/*")


def test_names_of_objects_may_have_commas_spaces_and_brackets(s3: S3) -> None:
    for name in ("a, b", "x[1]", "why?"):
        url = s3.put(golden_store(GOLDEN), f"{name}/store")
        assert [store.path for store in find_stores([f"{url}/"], {})] == [url]


def test_a_segment_that_is_replaced_between_list_and_read_is_noticed(s3: S3) -> None:
    url = s3.put(golden_store(GOLDEN), "replaced")
    first = log_ranges(Store(url), StoreReader(url))[0]
    s3.client.put_object(Bucket=BUCKET, Key="replaced/commitlog/" + "0" * 20, Body=bytes(first.size))

    with pytest.raises(StoreChangedError, match="was replaced or grew"), RangeReader(first) as reader:
        list(reader.tables())


def test_rows_are_written_to_a_url_as_it_is(spark: Any, s3: S3, tmp_path: Path) -> None:
    _, there = pair(s3)
    into = tmp_path / "out"

    exported = export.run(spark, [there], f"file://{into}", export.ExportSelection(), SMALL)

    assert exported.messages
    assert spark.read.parquet(str(into)).count() == exported.messages
    assert not list(Path.cwd().glob("file:*"))


def test_the_cause_of_the_jvm_is_told(spark: Any) -> None:
    with pytest.raises(Exception) as raised:
        spark.range(1).write.parquet("s3a://bucket/o")

    assert "S3AFileSystem not found" in first_line(raised.value)
    error = _spark._task_error(str(raised.value), first_line(raised.value))
    assert error.exit_code == Status.UNAVAILABLE
    assert "spark.jars.packages=org.apache.hadoop:hadoop-aws" in str(error)


@pytest.mark.parametrize("url", ["s3a://b/o", "hdfs://nodes:8020/o", "hdfs:///o"])
def test_a_url_to_write_to_stays_what_it_is(url: str) -> None:
    assert str(_spark.Into().convert(url, None, None)) == url
