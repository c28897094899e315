"""What a query of the Spark source may say: options, columns, layouts, modes, filters, several stores."""

import datetime
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from mqtool.errors import BadDataError, MqtoolError, NotFoundError, Status, UsageError
from mqtool.formats import timer
from mqtool.formats.compression import decompress
from mqtool.spark import table_reader
from mqtool.spark.bounds import Bounds
from mqtool.spark.source import RocketMQStore
from mqtool.spark.table_reader import narrowed
from mqtool.spark.tables import TABLES
from tests.builders import BORN_HOST, STORED, Draft, StoreSizes, write_store
from tests.commands.running import run
from tests.damage import apply_ops
from tests.golden import copy_of, golden_store, manifest
from tests.spark.reading import batches, read, reader

MIXED = "mixed-533-clean"


def rows_of(found: Iterator[Any]) -> list[dict[str, Any]]:
    return [row for batch in found for row in batch.to_pylist()]


# Options.


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tabel": "index"}, "unknown option tabel: did you mean table?"),
        ({"table": "indx"}, "unknown table indx: did you mean index?"),
        ({"columns": "topic,queue_ids"}, "unknown column queue_ids: did you mean queue_id"),
        ({"columns": "kafak"}, "unknown column kafak: did you mean kafka?"),
        ({"mode": "failfats"}, "unknown mode failfats: did you mean FAILFAST?"),
        ({"includeBody": "no"}, "unknown includeBody no: available: true, false"),
        ({"maxPartitionBytes": "128 apples"}, "maxPartitionBytes=128 apples is not a size"),
        ({"set_maxHashSlotNumm": "7"}, "unknown setting maxhashslotnumm: did you mean maxHashSlotNum?"),
        ({"set_mappedFileSizeCommitLog": "many"}, "mappedFileSizeCommitLog=many is not a size"),
    ],
)
def test_what_is_misspelt_is_named(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as raised:
        read(golden_store(MIXED), **options)

    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"topic": "a", "subscribe": "b"}, "topic and subscribe mean the same"),
        ({"topic": " , "}, "no topic given"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp=yesterday is not a time: give milliseconds since 1970"),
        (
            {"startingOffsets": '{"broker-b": 5}'},
            "unknown store of startingOffsets broker-b: did you mean broker-a?",
        ),
        ({"startingOffsets": '{"broker-a": "5"}'}, "5 is not a valid address for broker-a"),
        ({"startingOffsets": '{"broker-a"'}, "startingOffsets is not valid JSON"),
        ({"endingOffsets": "lates"}, "unknown endingOffsets lates: did you mean latest"),
        ({"endingOffsets": "earliest"}, "endingOffsets: nothing is before earliest: give latest or an address"),
        ({"endingOffsets": '{"broker-a": "earliest"}'}, "endingOffsets: nothing is before earliest"),
        (
            {"startingOffsets": '{"broker-a": 90000}', "endingOffsets": '{"broker-a": 70000}'},
            "endingOffsets: 70,000 is before the start of",
        ),
        (
            {"startingOffsets": "latest", "endingOffsets": '{"broker-a": 0}', "failOnDataLoss": "false"},
            "endingOffsets: 0 is before the start of",
        ),
        ({"table": "index", "topic": "a"}, "topic is an option for the table messages, not for index"),
        ({"columns": " ,"}, "columns= , leaves no column"),
        ({"columns": "body", "includeBody": "false"}, "columns=body leaves no column"),
        ({"startingTimestamp": "5", "endingTimestamp": "4"}, "endingTimestamp is before startingTimestamp"),
        ({"configOf": '{"*/nosuch": "/dev/null"}'}, "configOf: */nosuch matches none of the stores"),
        ({"paths": "/brokers/a/store"}, "paths=/brokers/a/store is not a JSON list of paths such as ["),
        ({"paths": '"/brokers/a/store"'}, 'paths="/brokers/a/store" is not a JSON list of paths'),
        ({"paths": "7"}, "paths=7 is not a JSON list of paths"),
        ({"paths": '{"a": "/b"}'}, "is not a JSON list of paths"),
        ({"paths": '["/brokers/a/store", 7]'}, "is not a JSON list of paths"),
        ({"paths": '["/brokers/a/store", ""]'}, "is not a JSON list of paths"),
    ],
)
def test_a_part_that_cannot_be_is_named(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as raised:
        read(golden_store(MIXED), **options)

    assert sentence in str(raised.value)


def test_topics_times_and_addresses_choose_what_is_read_without_a_filter() -> None:
    root = golden_store(MIXED)
    middle = TIMES[len(TIMES) // 2]
    ms = int(middle.timestamp() * 1000)

    for name in ("topic", "subscribe"):
        rows = read(root, None, **{name: "log-x, pay_events"})
        assert rows == [row for row in ROWS if row["topic"] in ("log-x", "pay_events")]
    rows = read(root, startingTimestamp=middle.isoformat(), endingTimestamp=ms + 500)
    assert rows == [row for row in ROWS if ms <= row["store_timestamp"] < ms + 500]
    rows = read(root, startingOffsets='{"broker-a": 70000}', endingOffsets='{"broker-a": 90000}')
    assert rows == [row for row in ROWS if 70_000 <= row["physical_offset"] < 90_000]
    assert rows
    rows = read(root, [EqualTo(("topic",), "log-x")], startingOffsets='{"broker-a": 70000}')
    assert rows == [row for row in ROWS if row["physical_offset"] >= 70_000 and row["topic"] == "log-x"]
    # Segments below are not even opened.
    parts = reader(root, startingOffsets='{"broker-a": 70000}').partitions()
    assert min(part.part.start_offset for part in parts) == 65_536  # type: ignore[attr-defined]
    assert read(root, startingOffsets="earliest", endingOffsets="latest") == ROWS
    assert read(root, startingOffsets="latest") == []


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
def test_an_address_that_the_log_does_not_have_is_told(name: str, tmp_path: Path) -> None:
    root = copy_of(MIXED, tmp_path)
    segments = sorted((root / "commitlog").iterdir())
    segments[0].unlink()
    first, last = int(segments[1].name), ROWS[-1]["physical_offset"] + ROWS[-1]["size"]

    for address in (0, first - 1, last + 1):
        places = {name: f'{{"broker-a": {address}}}'}
        with pytest.raises(NotFoundError, match=f"{name}: the log of .*begins at {first:,} and ends at {last:,}, and"):
            read(root, None, **places)
        read(root, None, failOnDataLoss="false", **places)
    for address in (first, last):
        read(root, None, **{name: f'{{"broker-a": {address}}}'})


@pytest.mark.parametrize("is_emptied", [True, False])
def test_a_store_whose_log_is_gone_is_no_empty_table(is_emptied: bool, tmp_path: Path) -> None:
    root = copy_of(MIXED, tmp_path)
    shutil.rmtree(root / "commitlog")
    if is_emptied:
        (root / "commitlog").mkdir()

    with pytest.raises(NotFoundError, match="there is no log in this store, although it held messages") as raised:
        read(root)
    assert str(raised.value) in run("stats", "-s", root).remarks
    assert read(root, failOnDataLoss="false") == []
    assert read(root, table="config")
    with pytest.raises(NotFoundError, match="is not a segment of a commit log"):
        read(root / "config" / "topics.json")


def test_options_are_read_in_any_case() -> None:
    assert len(read(golden_store(MIXED), TABLE="Segments", MAXPARTITIONBYTES="1MiB", SET_MAXHASHSLOTNUM=100)) == 5


@pytest.mark.parametrize("path", ["ftp://host/store", "hdfs:///store"])
def test_a_url_that_no_store_is_read_from_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match=path):
        read(path)


def test_several_stores_are_one_table(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_store(tmp_path / name / "store", [Draft(body=name.encode())] * 3, StoreSizes())
    (tmp_path / "d").mkdir()

    def stores(path: object, **options: Any) -> list[str]:
        return [Path(row["store"]).parent.name for row in read(str(path), **options)]

    assert stores(tmp_path / "*" / "store") == [*"aaabbbccc"]
    assert stores(f"{tmp_path}/c/store, file://{tmp_path}/a/store") == [*"cccaaa"]
    assert stores("", paths=orjson.dumps([f"{tmp_path}/b/store", f"{tmp_path}/[ab]/store"]).decode()) == [*"bbbaaa"]
    with pytest.raises(NotFoundError, match="no store matches"):
        stores(tmp_path / "d*")
    with pytest.raises(NotFoundError, match="not a RocketMQ store"):
        stores(tmp_path / "d")


def test_each_store_of_a_table_has_the_settings_of_its_own_broker(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        copy_of(MIXED, tmp_path / name).rename(tmp_path / name / "store")
        (tmp_path / name / "broker.conf").write_text(f"brokerName=beside-{name}\nmaxMessageSize=5\n")
    of_two = tmp_path / "two.conf"
    of_two.write_text("brokerName=two\n")

    def brokers(**options: str) -> list[tuple[str | None, str | None]]:
        stores = reader(tmp_path / "*/store", None, **options).stores  # type: ignore[attr-defined]
        settings = [store.config.settings for store in stores]
        return [(one.get("brokerName"), one.get("maxMessageSize")) for one in settings]

    assert brokers(configOf=f'{{"*/two/*": "{of_two}"}}', set_maxMessageSize="7") == [
        ("beside-one", "7"), ("beside-three", "7"), ("two", "7"),
    ]  # fmt: skip
    last = tmp_path / "last.conf"
    last.write_text("brokerName=last\n")
    assert brokers(configOf=f'{{"*/two/*": "{of_two}"}}', config=str(last)) == [
        ("last", None), ("last", None), ("two", None),
    ]  # fmt: skip


def test_the_parts_of_a_table_together_are_the_table() -> None:
    root = golden_store(MIXED)
    for table in TABLES:
        if table != "findings":
            pieces = list(batches(reader(root, table=table, maxPartitionBytes=5000)))
            assert [row for part in pieces for batch in part for row in batch.to_pylist()] == read(root, table=table)
            assert table not in ("messages", "index") or len(pieces) > 2


# Columns.


def columns_of(**options: str) -> list[str]:
    return list(RocketMQStore({"path": str(golden_store(MIXED)), **options}).schema().names)


def test_bodies_and_properties_are_read_only_where_they_are_asked_for() -> None:
    heads = columns_of()
    every = columns_of(columns="all")

    assert {*every} - {*heads} == {"body", "properties"}
    assert heads == columns_of(columns="heads")
    assert columns_of(includeBody="true") == columns_of(columns="heads,body") == [*heads, "body"]
    assert columns_of(columns="ALL", includeBody="false") == [name for name in every if name != "body"]
    assert columns_of(columns="kafka", includeBody="false") == [n for n in columns_of(columns="Kafka") if n != "value"]
    with pytest.raises(UsageError, match="columns=kafka cannot be combined"):
        columns_of(columns="topic,kafka")


def test_columns_are_chosen_by_name_in_any_order() -> None:
    rows = read(golden_store(MIXED), columns="queue_offset, topic,raw_properties")

    assert [*rows[0]] == ["queue_offset", "topic", "raw_properties"]
    every = read(golden_store(MIXED))
    assert [(row["topic"], row["queue_offset"]) for row in rows] == [
        (row["topic"], row["queue_offset"]) for row in every
    ]


def test_columns_are_chosen_by_a_schema() -> None:
    source = RocketMQStore({"path": str(golden_store(MIXED))})
    one = source.reader(StructType([StructField("topic", StringType()), StructField("queue_id", IntegerType())]))

    rows = [row for part in batches(one) for batch in part for row in batch.to_pylist()]

    assert rows[0] == {"topic": "OrderEvents", "queue_id": 0}
    with pytest.raises(UsageError, match="column queue_id is int, not bigint"):
        source.reader(StructType([StructField("queue_id", LongType())]))
    with pytest.raises(UsageError, match="unknown column topics"):
        source.reader(StructType([StructField("topics", StringType())]))


def test_bodies_are_left_out_or_given_as_they_are_stored() -> None:
    root = golden_store(MIXED)
    rows, stored = read(root), read(root, decompressBody="false")

    assert "body" not in read(root, includeBody="false")[0]
    assert [one["body_len"] for one in manifest(MIXED)["messages"]] == [len(row["body"]) for row in stored]
    for row in stored:
        assert not row["body"] or zlib.crc32(row["body"]) & 0x7FFFFFFF == row["body_crc"]
    assert [decompress(row["body"], row["sys_flag"]) for row in stored] == [row["body"] for row in rows]
    assert any(row["sys_flag"] & 1 for row in rows)


def test_users_of_kafka_find_their_columns() -> None:
    every = read(golden_store(MIXED))
    rows = read(golden_store(MIXED), columns="kafka")

    assert [*rows[0]] == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers", "_corrupt_record",
    ]  # fmt: skip
    for row, message in zip(rows, every, strict=True):
        assert row["key"] == (message["keys"].encode() if message["keys"] else None)
        assert (row["value"], row["topic"], row["partition"]) == (
            message["body"],
            message["topic"],
            message["queue_id"],
        )
        assert (row["offset"], row["timestamp"]) == (message["queue_offset"], message["store_time"])
        headers = [(header["key"], header["value"].decode()) for header in row["headers"]]
        assert headers == message["properties"]


def test_users_of_rocketmq_spark_find_their_columns(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("brokerName = broker-a\n")
    every = read(golden_store(MIXED))
    rows = read(golden_store(MIXED), columns="rocketmq-spark", config=config)

    for row, message in zip(rows, every, strict=True):
        assert orjson.loads(row.pop("properties")) == dict(message["properties"])
        assert row == {
            "topic": message["topic"], "flag": message["flag"], "body": message["body"], "brokerName": "broker-a",
            "queueId": message["queue_id"], "queueOffset": message["queue_offset"],
            "bornTimestamp": message["born_time"], "storeTimestamp": message["store_time"], "_corrupt_record": None,
        }  # fmt: skip


def test_what_is_no_text_and_no_time_is_shown_as_dump_shows_it(tmp_path: Path) -> None:
    write_store(
        tmp_path,
        [
            Draft(topic="Größe", pairs={"KEYS": "schlüssel", "TAGS": "é"}, born_host="[2001:db8::7]:4000"),
            Draft(pairs={"a": "1"}, store_timestamp=1 << 53),
        ],
        StoreSizes(),
    )
    log = tmp_path / "commitlog" / f"{0:020}"
    log.write_bytes(log.read_bytes().replace("schlüssel".encode(), b"schl\xff\xfessel"))

    first, second = read(tmp_path)

    assert (first["topic"], first["keys"], first["tags"]) == ("Größe", "schl��ssel", "é")
    assert first["properties"] == [("KEYS", "schl��ssel"), ("TAGS", "é")]
    assert (first["born_host"], second["born_host"]) == ("[2001:db8::7]:4000", BORN_HOST)
    assert first["store_time"] == datetime.datetime.fromtimestamp(STORED / 1000, datetime.UTC)
    assert (second["store_timestamp"], second["store_time"]) == (1 << 53, None)


# Modes.


def test_a_file_of_another_table_that_cannot_be_read_ends_a_query_in_mode_failfast(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = copy_of("timer-550-clean", tmp_path)
    index, timer_log = min((root / "index").iterdir()), min((root / "timerlog").iterdir())
    whole = {table: len(read(root, table=table, mode="FAILFAST")) for table in ("index", "config", "timer")}
    index.write_bytes(index.read_bytes()[:50])
    for path in (root / "config").glob("topics.json*"):
        path.write_text("{")
    apply_ops(root, [{"op": "write", "file": f"timerlog/{timer_log.name}", "at": 2 * timer.LOG_UNIT_SIZE, "hex": "7f"}])

    for table, name in (("config", "topics.json"), ("timer", timer_log.name)):
        caplog.clear()
        assert 0 < len(read(root, table=table)) < whole[table]
        assert [name in record.message and "left out" in record.message for record in caplog.records] == [True]
        with pytest.raises(BadDataError, match=name):
            read(root, table=table, mode="FAILFAST")
    sizes = {"set_maxHashSlotNum": 100, "set_maxIndexNum": 250}
    for options, sentence in (({}, "the number of its slots cannot be determined"), (sizes, "has 50 bytes: it ends")):
        with pytest.raises(BadDataError, match=f"{index.name}.*{sentence}"):
            read(root, None, table="index", mode="FAILFAST", **options)


@pytest.fixture
def sick(tmp_path: Path) -> Path:
    """A store with damage to a body, properties, an address, and a hole."""
    root = copy_of(MIXED, tmp_path)
    messages = manifest(MIXED)["messages"]
    file = f"commitlog/{0:020}"
    apply_ops(
        root,
        [
            {"op": "write", "file": file, "at": messages[3]["phy"] + 90, "hex": "00ff00ff"},
            {"op": "zero", "file": file, "at": messages[5]["phy"], "len": 8},
            {"op": "write", "file": file, "at": messages[7]["phy"] + 28, "hex": "0000000000000007"},
            {"op": "zero", "file": file, "at": messages[10]["phy"] - 20, "len": 20},
            {"op": "zero", "file": file, "at": messages[12]["phy"] + 88 + messages[12]["body_len"] + 3, "len": 1},
        ],
    )
    return root


@pytest.mark.parametrize("options", [{}, {"topic": "log-x"}, {"startingTimestamp": 1}, {"maxPartitionBytes": "5000"}])
def test_a_segment_that_is_missing_within_a_log_is_a_row_of_its_own(options: dict[str, Any], tmp_path: Path) -> None:
    root = copy_of(MIXED, tmp_path)
    whole = read(root, **options)
    missing = sorted((root / "commitlog").iterdir())[1]
    missing.unlink()

    rows = read(root, **options)

    first = int(missing.name)
    assert [row for row in rows if row["physical_offset"] is not None] == [
        row for row in whole if not first <= row["physical_offset"] < first + 65_536
    ]
    told = [row["_corrupt_record"] for row in rows if row["_corrupt_record"]]
    file = f"commitlog/{2 * first:020}"  # before which it is missing, as verify tells it
    assert told == [{"file": file, "position": 0, "code": "LOG-GAP", "hex": None}]
    assert ("LOG-GAP", file) in [(row["code"], row["file"]) for row in run("verify", "-s", root).rows]
    with pytest.raises(BadDataError, match=f"LOG-GAP {file}@0: bytes of the log are missing"):
        read(root, mode="FAILFAST", **options)
    min((root / "commitlog").iterdir()).unlink()  # by retention
    assert not any(row["_corrupt_record"] for row in read(root, **options))


@pytest.fixture
def hiding(tmp_path: Path) -> Path:
    """A store with two messages of a topic that damage hides: one has another name, the sizes of one do not add up."""
    root = copy_of(MIXED, tmp_path)
    first, second = [one for one in manifest(MIXED)["messages"] if one["topic"] == "log-x" and one["phy"] < 65_536][:2]
    file = f"commitlog/{0:020}"
    topic_size_at = [one["phy"] + 88 + one["body_len"] for one in (first, second)]
    apply_ops(
        root,
        [
            {"op": "write", "file": file, "at": topic_size_at[0] + 1, "hex": "ff"},
            {"op": "write", "file": file, "at": topic_size_at[1], "hex": "7f"},
        ],
    )
    return root


@pytest.mark.parametrize("columns", ["heads", "all", "queue_offset,physical_offset,_corrupt_record"])
@pytest.mark.parametrize("option", ["topic", "subscribe"])
def test_damage_that_hides_a_topic_is_told_whichever_topics_are_asked_for(
    option: str, columns: str, hiding: Path
) -> None:
    messages = [one for one in manifest(MIXED)["messages"] if one["topic"] == "log-x"]

    rows = read(hiding, None, columns=columns, **{option: "log-x"})
    others = read(hiding, None, columns=columns, **{option: "pay_events"})

    told = [(row["physical_offset"], row["_corrupt_record"]["code"]) for row in rows if row["_corrupt_record"]]
    assert told == [(messages[0]["phy"], "LOG-TOPIC"), (messages[1]["phy"], "LOG-SIZES")]
    assert [row["physical_offset"] for row in rows] == [one["phy"] for one in messages]
    assert [row["_corrupt_record"]["code"] for row in others if row["_corrupt_record"]] == ["LOG-TOPIC", "LOG-SIZES"]
    with pytest.raises(BadDataError, match="LOG-TOPIC"):
        read(hiding, None, columns=columns, mode="FAILFAST", **{option: "pay_events"})
    sound = read(hiding, None, columns=columns, mode="DROPMALFORMED", **{option: "log-x"})
    assert [row["physical_offset"] for row in sound] == [one["phy"] for one in messages[2:]]
    unmarked = read(hiding, None, columns="physical_offset", **{option: "log-x"})
    assert [row["physical_offset"] for row in unmarked] == [one["phy"] for one in messages[2:]]
    ran = run("export", "-s", hiding, "--topic", "pay_events")
    assert ran.status == Status.DAMAGE
    assert "2 records are left out: their sizes do not add up, or their topic is damaged" in ran.remarks


def test_damage_that_hides_when_a_message_was_stored_is_told(hiding: Path) -> None:
    rows = read(hiding, startingTimestamp=ROWS[-1]["store_timestamp"] + 1)

    assert [row["_corrupt_record"]["code"] for row in rows] == ["LOG-SIZES"]


def test_damage_is_rows_of_its_own(sick: Path) -> None:
    messages = manifest(MIXED)["messages"]

    rows = read(sick)

    told = [row["_corrupt_record"] for row in rows if row["_corrupt_record"]]
    places = [(one["code"], one["position"]) for one in told]
    assert places == [
        ("LOG-CRC", messages[3]["phy"]), ("LOG-MAGIC", messages[5]["phy"]), ("LOG-POSITION", messages[7]["phy"]),
        ("LOG-PROPERTY-TEXT", messages[9]["phy"]), ("LOG-TOPIC", messages[12]["phy"]),
    ]  # fmt: skip
    log = (sick / f"commitlog/{0:020}").read_bytes()
    for one in told:
        assert one["file"] == f"commitlog/{0:020}"
        assert log[one["position"] :].startswith(bytes.fromhex(one["hex"]))
    assert len(rows) == len(messages)
    assert rows[5]["topic"] is None
    assert rows[3]["topic"] == messages[3]["topic"]


def test_damage_is_left_out_or_ends_the_query(sick: Path) -> None:
    messages = manifest(MIXED)["messages"]

    rows = read(sick, mode="dropMalformed")

    assert [row["physical_offset"] for row in rows] == [
        one["phy"] for number, one in enumerate(messages) if number not in (3, 5, 7, 9, 12)
    ]
    with pytest.raises(BadDataError, match=f"LOG-CRC commitlog/{0:020}@{messages[3]['phy']}: the body does not match"):
        read(sick, mode="failfast")
    # Who reads no bodies judges none.
    with pytest.raises(BadDataError, match="LOG-MAGIC"):
        read(sick, mode="failfast", includeBody="false")


@pytest.mark.parametrize("table", ["messages", "consume_queue", "index"])
def test_a_file_that_vanishes_is_told_of_and_the_rest_is_read(
    table: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = copy_of(MIXED, tmp_path)
    whole = read(root, table=table)
    one, strict = reader(root, table=table), reader(root, table=table, mode="FAILFAST")
    parts, strict_parts = one.partitions(), strict.partitions()
    folder = {"messages": "commitlog", "consume_queue": "consumequeue/log-x/0", "index": "index"}[table]
    gone = min((root / folder).iterdir())
    gone.unlink()

    rows = [row for part in parts for row in rows_of(one.read(part))]

    assert 0 < len(rows) < len(whole)
    assert f"{gone} does not exist" in caplog.text
    if table == "messages":
        assert rows[0]["_corrupt_record"] == {
            "file": f"commitlog/{gone.name}",
            "position": 0,
            "code": "LOG-GAP",
            "hex": None,
        }
        rows = rows[1:]
    assert rows == [row for row in whole if row in rows]
    with pytest.raises(MqtoolError, match="does not exist"):
        [batch for part in strict_parts for batch in strict.read(part)]


# Filters.

OPERATORS: dict[Any, Any] = {
    EqualTo: lambda one, other: one == other,
    EqualNullSafe: lambda one, other: one == other,
    GreaterThan: lambda one, other: one > other,
    GreaterThanOrEqual: lambda one, other: one >= other,
    LessThan: lambda one, other: one < other,
    LessThanOrEqual: lambda one, other: one <= other,
}


def holds(one: Filter, row: dict[str, Any]) -> bool:
    """Tell what Spark makes of a filter."""
    if isinstance(one, Not):
        return not holds(one.child, row)
    value = row[one.attribute[0]]  # type: ignore[attr-defined]
    if isinstance(one, IsNotNull):
        return value is not None
    if isinstance(one, In):
        return value in one.value
    if isinstance(one, StringStartsWith):
        return bool(value.startswith(one.value))
    compare = OPERATORS[type(one)]
    return bool(compare(value, one.value))  # type: ignore[attr-defined]


ROWS = read(golden_store(MIXED))
TIMES = [row["store_time"] for row in ROWS]


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    column = draw(
        st.sampled_from(
            ["store_timestamp", "store_time", "physical_offset", "queue_offset", "queue_id", "topic", "size"]
        )
    )
    values = st.sampled_from(sorted({row[column] for row in ROWS}))
    if column == "store_time":
        values = values.map(lambda time: time + datetime.timedelta(microseconds=1)) | values
    kind = draw(st.sampled_from([*OPERATORS, In, Not, IsNotNull, StringStartsWith]))
    if kind is In:
        return In((column,), tuple(draw(st.lists(values, max_size=3))))
    if kind is IsNotNull:
        return IsNotNull((column,))
    if kind is StringStartsWith:
        return StringStartsWith(("topic",), "pay")
    if kind is Not:
        return Not(EqualTo((column,), draw(values)))
    made: Filter = kind((column,), draw(values))
    return made


@given(chosen=st.lists(filters(), max_size=3), max_size=st.sampled_from([8000, 1 << 27]))
@settings(max_examples=40)
def test_filters_leave_out_nothing_that_they_let_through(chosen: list[Filter], max_size: int) -> None:
    rows = read(golden_store(MIXED), chosen, maxPartitionBytes=max_size)

    assert [row for row in rows if all(holds(one, row) for one in chosen)] == [
        row for row in ROWS if all(holds(one, row) for one in chosen)
    ]


def test_filters_on_places_and_queues_leave_only_what_they_let_through() -> None:
    chosen: list[Filter] = [
        LessThanOrEqual(("queue_offset",), 60),
        EqualTo(("topic",), "pay_events"),
        In(("queue_id",), (0, 1)),
    ]

    rows = read(golden_store(MIXED), chosen)

    assert rows == [row for row in ROWS if all(holds(one, row) for one in chosen)]
    assert rows


@pytest.mark.parametrize("kind", OPERATORS)
def test_filters_leave_out_no_damaged_message_that_they_let_through(kind: type[Filter], sick: Path) -> None:
    displaced = manifest(MIXED)["messages"][7]["phy"]
    rows = read(sick)
    assert [row["physical_offset"] for row in rows if (row["_corrupt_record"] or {}).get("code") == "LOG-POSITION"] == [
        7
    ]

    for value in (7, displaced):  # the address that it states, and its own
        one = kind(("physical_offset",), value)  # type: ignore[call-arg]
        left = [row for row in read(sick, [one]) if row["physical_offset"] is not None]
        assert [row for row in left if holds(one, row)] == [
            row for row in rows if row["physical_offset"] is not None and holds(one, row)
        ]


def test_filters_go_by_the_names_of_a_layout() -> None:
    held = {"offset": "queue_offset", "timestamp": "store_time"}
    assert narrowed(Bounds(), LessThan(("offset",), 7), held).last == 7
    assert narrowed(Bounds(), LessThan(("queue_offset",), 7), held) == Bounds()


def test_an_hour_of_a_day_opens_only_the_ranges_around_it(tmp_path: Path) -> None:
    hour = 3_600_000
    drafts = [Draft(store_timestamp=STORED + n * hour // 20, body=b"x" * 300) for n in range(24 * 20)]
    write_store(tmp_path, drafts, StoreSizes(segment=65_536))
    low, high = STORED + 10 * hour, STORED + 11 * hour
    chosen: list[Filter] = [GreaterThanOrEqual(("store_timestamp",), low), LessThan(("store_timestamp",), high)]

    one = reader(tmp_path, chosen, maxPartitionBytes=8192)
    parts, every = one.partitions(), reader(tmp_path, maxPartitionBytes=8192).partitions()
    rows = [row for part in parts for row in rows_of(one.read(part))]

    assert [row["store_timestamp"] for row in rows] == [
        draft.store_timestamp for draft in drafts if low <= (draft.store_timestamp or 0) < high
    ]
    assert len(parts) < len(every) // 8


def test_a_reader_passes_for_one_without_filters_where_spark_has_them_switched_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_reader, "PUSHES_SAFELY", True)
    # PySpark refuses a reader that overrides the method then; this is how it looks.
    found = getattr(reader(golden_store(MIXED)).pushFilters, "__func__", None)

    assert found is DataSourceReader.pushFilters
