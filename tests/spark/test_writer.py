"""A DataFrame written as a new store, by the calls that Spark makes."""

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructField, StructType

from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import BadDataError, UsageError
from mqtool.spark.schemas import spark_schema
from mqtool.spark.source import RocketMQStore
from mqtool.spark.writer import StoreWriter
from tests.golden import copy_of, golden_store, manifest
from tests.spark.reading import batches, reader

MIXED = "mixed-533-clean"
SMALL = {"set.mappedFileSizeCommitLog": "65536", "set.maxHashSlotNum": "100", "set.maxIndexNum": "250"}


def writer(path: Path, schema: StructType, overwrite: bool = False, **options: str) -> StoreWriter:
    source = RocketMQStore(CaseInsensitiveDict({"path": str(path), **SMALL, **options}))
    made = source.writer(schema, overwrite)
    assert isinstance(made, StoreWriter)
    return made


def write(one: StoreWriter, parts: list[list[pa.RecordBatch]]) -> None:
    messages = [pickle.loads(pickle.dumps(one)).write(iter(part)) for part in parts]
    for number, message in enumerate(messages):
        message.partition = number  # a task would know
    one.commit(messages)


def codes(root: Path) -> list[str]:
    return [one.code for one in verify_store(StoreReader(root)) if one.severity != "note"]


def told(root: Path) -> list[dict[str, Any]]:
    from tests.spark.reading import read

    left = ("physical_offset", "message_id", "store")
    return [{name: value for name, value in row.items() if name not in left} for row in read(root)]


def batch_of(rows: list[dict[str, Any]], schema: StructType) -> pa.RecordBatch:
    from mqtool.spark.schemas import arrow_schema

    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(schema))


@pytest.mark.parametrize("name", ["mixed-533-clean", "special-533-clean", "propcrc-533-clean", "multipath-497-kill"])
@pytest.mark.parametrize("options", [{}, {"decompressBody": "false", "columns": "raw"}])
def test_what_is_read_can_be_written(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    root, copy = golden_store(name), tmp_path / "made" / "copy"
    if options:
        columns = "topic,body,raw_properties,queue_id,queue_offset,flag,sys_flag,born_timestamp,born_host,"
        columns += "store_timestamp,store_host,reconsume_times,prepared_transaction_offset,body_crc,magic_code"
        options = {**options, "columns": columns}
    source = reader(root, maxPartitionBytes=20_000, **options)

    write(writer(copy, source.schema), list(batches(source)))  # type: ignore[attr-defined]

    assert codes(copy) == []
    assert [path.name for path in copy.parent.iterdir()] == ["copy"]
    before, after = told(root), told(copy)
    if not options:  # bodies are packed again, not always to the same bytes
        for rows in (before, after):
            for row in rows:
                for number in ("size", "body_size", "body_crc"):
                    row.pop(number)
                row["properties"] = [pair for pair in row["properties"] if pair[0] != "__CRC32#"]
    elif name.startswith("propcrc"):
        assert [{**row, "properties": None} for row in after] == [{**row, "properties": None} for row in before]
        return
    assert after == before


def test_topic_and_body_are_enough(tmp_path: Path) -> None:
    schema = spark_schema({"topic": "string", "body": "binary", "keys": "string"})
    rows = [{"topic": f"T{n % 2}", "body": b"%d" % n, "keys": f"k{n}"} for n in range(5)]

    write(writer(tmp_path / "new", schema), [[batch_of(rows[:2], schema)], [], [batch_of(rows[2:], schema)]])

    assert codes(tmp_path / "new") == []
    after = told(tmp_path / "new")
    assert [(row["topic"], row["body"], row["keys"], row["queue_offset"]) for row in after] == [
        ("T0", b"0", "k0", 0), ("T1", b"1", "k1", 0), ("T0", b"2", "k2", 1), ("T1", b"3", "k3", 1),
        ("T0", b"4", "k4", 2),
    ]  # fmt: skip


def test_what_is_left_out_is_bridged_or_closed(tmp_path: Path) -> None:
    source = reader(golden_store(MIXED))
    half = [
        batch.filter(pa.array([n % 2 == 0 for n in range(len(batch))])) for part in batches(source) for batch in part
    ]
    schema = source.schema  # type: ignore[attr-defined]

    write(writer(tmp_path / "bridged", schema), [half])
    write(writer(tmp_path / "closed", schema, renumber="true"), [half])

    assert codes(tmp_path / "bridged") == codes(tmp_path / "closed") == []
    kept = sum(map(len, half))
    assert len(told(tmp_path / "closed")) == kept < len(told(tmp_path / "bridged"))


def test_a_store_is_never_overwritten(tmp_path: Path) -> None:
    schema = spark_schema({"topic": "string", "body": "binary"})
    (tmp_path / "file").write_text("mine")

    with pytest.raises(UsageError, match="is not empty"):
        writer(tmp_path, schema)
    with pytest.raises(UsageError, match="never overwritten"):
        writer(tmp_path / "new", schema, overwrite=True)


def test_columns_that_no_message_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown message column tag: did you mean tags"):
        writer(tmp_path / "new", spark_schema({"topic": "string", "body": "binary", "tag": "string"}))
    with pytest.raises(UsageError, match="body is missing"):
        writer(tmp_path / "new", StructType([StructField("topic", spark_schema({"x": "string"})["x"].dataType)]))


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"properties": {"a": None}}, "its property a is null"),
        ({"properties": {"a": "b\2KEYS\1k"}}, "the characters 1 and 2 separate properties: a cannot contain them"),
        ({"tags": "A\2KEYS\1k"}, "the characters 1 and 2 separate properties: TAGS cannot contain them"),
        ({"properties": {"KEYS": "k"}, "keys": "other"}, "its properties and a column have different KEYS"),
        ({"properties": {"a": "b"}, "keys": "k"}, "its properties and a column have different KEYS"),
    ],
)
def test_properties_that_would_be_others_are_refused(row: dict[str, Any], why: str, tmp_path: Path) -> None:
    names = {"topic": "string", "body": "binary", "tags": "string", "keys": "string"}
    schema = spark_schema({**names, "properties": "map<string,string>"})
    rows = [{"topic": "T", "body": b"", **row, "properties": [*row.get("properties", {}).items()] or None}]

    with pytest.raises(BadDataError, match=f"row 0 of a partition is not a message: {why}"):
        write(writer(tmp_path / "new", schema), [[batch_of(rows, schema)]])


def test_a_damaged_message_is_not_written_as_a_sound_one(tmp_path: Path) -> None:
    root = copy_of(MIXED, tmp_path)
    damaged = manifest(MIXED)["messages"][3]
    with (root / "commitlog" / f"{0:020}").open("r+b") as log:
        log.seek(damaged["phy"] + 90)
        log.write(b"\0\xff\0\xff")  # in its body
    source = reader(root)
    schema = source.schema  # type: ignore[attr-defined]
    sound = reader(root, columns="all", mode="DROPMALFORMED")

    with pytest.raises(BadDataError, match=r"row 3 of .* it is damaged \(LOG-CRC\); filter out"):
        write(writer(tmp_path / "new", schema), list(batches(source)))
    write(writer(tmp_path / "other", schema, renumber="true"), list(batches(sound)))

    assert codes(tmp_path / "other") == []
    assert len(told(tmp_path / "other")) == len(manifest(MIXED)["messages"]) - 1


def test_what_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    schema = spark_schema({"topic": "string", "body": "binary", "queue_offset": "bigint"})
    one = writer(tmp_path / "new", schema)
    with pytest.raises(BadDataError, match="row 1 of a partition is not a message: topic or body is null"):
        one.write(iter([batch_of([{"topic": "T", "body": b"", "queue_offset": 0}, {"topic": None}], schema)]))
    one.abort([])
    assert not [*tmp_path.iterdir()]

    two = writer(tmp_path / "new", schema)
    rows = [{"topic": "T", "body": b"", "queue_offset": offset} for offset in (5, 3)]
    with pytest.raises(BadDataError, match="row 1 of partition 0: T 0 has queue offset 3 after 5"):
        write(two, [[batch_of(rows, schema)]])
    assert not [*tmp_path.iterdir()]


def test_the_messages_of_a_golden_store_are_all_written(tmp_path: Path) -> None:
    source = reader(golden_store(MIXED))
    write(writer(tmp_path / "copy", source.schema), list(batches(source)))  # type: ignore[attr-defined]

    assert len(told(tmp_path / "copy")) == len(manifest(MIXED)["messages"])


@pytest.mark.parametrize(
    ("queue_id", "queue_offset", "why"),
    [(-1, 0, "no topic has a queue with this id"), (0, -1, "no queue has this offset")],
)
def test_a_row_that_no_queue_can_have_is_refused_and_not_left_out(
    queue_id: int, queue_offset: int, why: str, tmp_path: Path
) -> None:
    schema = spark_schema({"topic": "string", "body": "binary", "queue_id": "int", "queue_offset": "bigint"})
    rows = [
        {"topic": "T", "body": b"", "queue_id": 0, "queue_offset": 0},
        {"topic": "T", "body": b"", "queue_id": queue_id, "queue_offset": queue_offset},
    ]

    with pytest.raises(BadDataError, match=f"row 1 of partition 0: T {queue_id} {queue_offset}: {why}"):
        write(writer(tmp_path / "new", schema), [[batch_of(rows, schema)]])
    assert not [*tmp_path.iterdir()]
