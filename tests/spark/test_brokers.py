"""Topics of running brokers as tables, streams and sinks, by the calls that Spark makes, without a JVM."""

import json
import pickle
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, EqualTo, GreaterThanOrEqual
from pyspark.sql.types import StringType, StructField, StructType

import mqtool
from mqtool import ProducerMessage
from mqtool.errors import (
    BadDataError,
    MqtoolError,
    NotFoundError,
    NotPermittedError,
    SendError,
    StoreChangedError,
    UnavailableError,
    UsageError,
)
from mqtool.formats.topics import is_system_topic
from mqtool.spark import queue_reader
from mqtool.spark import queues as queues_module
from mqtool.spark import sender as sender_module
from mqtool.spark.broker_stream import QueuesStreamReader
from mqtool.spark.brokers import RocketMQ
from mqtool.spark.schemas import arrow_schema, spark_schema
from mqtool.spark.sender import MessageSender
from mqtool.spark.source import RocketMQStore
from tests.engine.remoting.test_tls import with_certificate
from tests.golden import KEEPS_ALL, copy_of
from tests.spark import reading
from tests.spark.test_stream import StreamQuery

NAMED: dict[str, str | int | bool] = {"brokerName": "broker-a"}
SMALL = {**NAMED, "mappedFileSizeCommitLog": 65_536, "maxHashSlotNum": 100, "maxIndexNum": 400}


@pytest.fixture(autouse=True)
def no_settings_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NAMESRV_ADDR", "MQTOOL_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(queues_module, "_PAUSE_S", 0.01)


@pytest.fixture(scope="module")
def broker() -> Iterator[mqtool.Broker]:
    with mqtool.Broker(settings=NAMED) as running:
        yield running


def source(address: str, **options: object) -> RocketMQ:
    given = {name: str(value) for name, value in options.items()}
    return RocketMQ(CaseInsensitiveDict({"namesrv": address, **given}))


def read(address: str, filters: list[Any] | None = None, **options: object) -> list[dict[str, Any]]:
    one = source(address, **{"columns": "all", **options})
    reader = one.reader(one.schema())
    if filters is not None:
        reader.narrow(filters)
    return [row for part in reading.batches(reader) for batch in part for row in batch.to_pylist()]


def topic_of(broker: mqtool.Broker, name: str, queues: int = 2) -> str:
    with mqtool.AdminClient(broker.name_server_address) as admin:
        admin.create_topic(name, queues=queues)
    return name


def send(address: str, topic: str, bodies: list[bytes]) -> list[bytes]:
    """Send messages to all queues in turn."""
    with mqtool.Producer("tests", address) as producer:
        queues = producer.queues(topic)
        for number, body in enumerate(bodies):
            producer.send(ProducerMessage(topic, body), queues[number % len(queues)])
    return bodies


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def bodies_of(rows: list[dict[str, Any]]) -> list[bytes]:
    return sorted(row["body"] for row in rows)


# Tables.


@pytest.mark.parametrize("name", ["mixed-533-clean", "batchcq-533-clean", "retry-497-clean"])
def test_rows_are_those_of_the_store_that_the_broker_writes(name: str, tmp_path: Path) -> None:
    copy = copy_of(name, tmp_path)
    topics = [*json.loads((copy / "config" / "topics.json").read_text())["topicConfigTable"]]
    readable = [topic for topic in topics if not is_system_topic(topic)]
    stored = reading.read(copy, topic=",".join(readable))
    with mqtool.Broker(copy, settings=KEEPS_ALL) as running:
        found = read(running.name_server_address, topic=",".join({row["topic"] for row in stored}))

    assert {row.pop("store") for row in found} == {"broker-a"}
    for row in stored:
        del row["store"]
    assert sorted(found, key=lambda row: row["physical_offset"]) == stored
    assert stored


def test_columns_are_those_of_the_store(tmp_path: Path) -> None:
    for options in ({}, {"columns": "kafka"}, {"columns": "rocketmq-spark"}, {"includeBody": "true"}):
        store = RocketMQStore(CaseInsensitiveDict({"path": str(tmp_path), **options}))
        assert source("127.0.0.1:1", topic="T", **options).schema() == store.schema()


def test_offsets_and_times_choose_what_is_read(broker: mqtool.Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, address = topic_of(broker, "Chosen"), broker.name_server_address
    send(address, topic, numbers(40))
    rows = read(address, topic=topic)
    assert bodies_of(rows) == sorted(numbers(40))
    middle = sorted(row["store_timestamp"] for row in rows)[20]

    monkeypatch.setattr(queue_reader, "MAX_PART_MESSAGES", 7)
    assert read(address, topic=topic) == rows
    by_queue = [[row for row in rows if row["queue_id"] == queue] for queue in (0, 1)]
    assert read(address, subscribe=topic, startingOffsets=json.dumps({topic: {"broker-a:0": 5}})) == (
        by_queue[0][5:] + by_queue[1]
    )
    assert read(
        address, topic=topic, startingOffsets=json.dumps({topic: {"1": 3, "0": "latest"}}),
        endingOffsets=json.dumps({topic: {"broker-a:1": 9}}),
    ) == by_queue[1][3:9]  # fmt: skip
    assert read(address, topic=topic, startingOffsets="latest") == []
    assert read(address, topic=topic, startingTimestamp=middle) == [r for r in rows if r["store_timestamp"] >= middle]
    assert read(address, topic=topic, endingTimestamp=middle) == [r for r in rows if r["store_timestamp"] < middle]
    filters = [EqualTo(("queue_id",), 1), GreaterThanOrEqual(("queue_offset",), 4)]
    assert read(address, filters, topic=topic) == by_queue[1][4:]


def test_an_end_before_the_start_is_refused(broker: mqtool.Broker) -> None:
    topic, address = topic_of(broker, "Ordered"), broker.name_server_address
    send(address, topic, numbers(40))

    with pytest.raises(
        UsageError, match="endingOffsets: 3 is before the start of queue 1 of Ordered on broker-a in st"
    ):
        read(
            address, topic=topic, startingOffsets=json.dumps({topic: {"1": 9}}),
            endingOffsets=json.dumps({topic: {"1": 3}}),
        )  # fmt: skip
    for ends in ("earliest", json.dumps({topic: {"1": "earliest"}})):
        with pytest.raises(UsageError, match="endingOffsets: nothing is before earliest: give latest or an offset"):
            read(address, topic=topic, endingOffsets=ends)


def test_a_body_that_does_not_match_its_crc_is_told(tmp_path: Path) -> None:
    with mqtool.Broker(tmp_path, settings=SMALL) as running:
        topic_of(running, "Damaged", 1)
        send(running.name_server_address, "Damaged", [b"first", b"second"])
    log = tmp_path / "commitlog" / f"{0:020}"
    log.write_bytes(log.read_bytes().replace(b"second", b"seXond"))
    with mqtool.Broker(tmp_path, settings=SMALL) as running:
        rows = read(running.name_server_address, topic="Damaged")
        dropped = read(running.name_server_address, topic="Damaged", mode="DROPMALFORMED")
        with pytest.raises(BadDataError, match="LOG-CRC Damaged/0@"):
            read(running.name_server_address, topic="Damaged", mode="FAILFAST")

    assert [row["_corrupt_record"] and row["_corrupt_record"]["code"] for row in rows] == [None, "LOG-CRC"]
    assert rows[1]["_corrupt_record"]["position"] == rows[1]["physical_offset"]
    assert bodies_of(dropped) == [b"first"]


def test_what_is_misspelt_or_not_there_is_said_in_a_sentence(broker: mqtool.Broker) -> None:
    address, topic = broker.name_server_address, topic_of(broker, "There")
    wrong: list[tuple[dict[str, str], type[MqtoolError], str]] = [
        ({}, UsageError, "no topic given: set the option topic"),
        ({"topic": "Ther"}, NotFoundError, "topic Ther does not exist, or cannot be read"),
        ({"topik": topic}, UsageError, "unknown option topik: did you mean topic"),
        ({"topic": topic, "startingOffsets": "late"}, UsageError, "did you mean latest"),
        ({"topic": topic, "startingOffsets": '{"There": {"broker-b:0": 1}}'}, UsageError, "did you mean broker-a:0"),
        ({"topic": topic, "startingOffsets": '{"There": {"0": 9}}'}, UsageError, "ends at 0, before 9"),
        (
            {"topic": topic, "startingOffsets": '{"There": {"0": -2}}'},
            UsageError,
            "-2 is not a valid offset for There broker-a:0",
        ),
        ({"topic": topic, "accessKey": "me"}, UsageError, "access_key and secret_key belong together"),
        ({"topic": topic, "nameServer": address}, UsageError, "namesrv and nameServer mean the same"),
        ({"topic": topic, "tls": "maybe"}, UsageError, "unknown tls maybe"),
    ]
    for options, kind, told in wrong:
        with pytest.raises(kind, match=told):
            read(address, None, **options)
    with pytest.raises(UsageError, match=r"no name server given: set the option namesrv.*NAMESRV_ADDR"):
        RocketMQ(CaseInsensitiveDict({"topic": topic}))
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1 "):
        read("127.0.0.1:1", topic=topic)


def test_name_servers_and_keys_may_come_from_the_environment(
    broker: mqtool.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_of(broker, "ByEnvironment")
    send(broker.name_server_address, topic, numbers(3))
    monkeypatch.setenv("NAMESRV_ADDR", broker.name_server_address)
    monkeypatch.setenv("MQTOOL_ACCESS_KEY", "me")
    monkeypatch.setenv("MQTOOL_SECRET_KEY", "12345678")
    one = RocketMQ(CaseInsensitiveDict({"topic": topic, "columns": "body"}))
    reader = one.reader(one.schema())
    monkeypatch.undo()  # executors have another

    assert reader.connection.client["access_key"] == "me"
    assert [len(batch) for part in reading.batches(reader) for batch in part] in ([3], [1, 2], [2, 1])


def test_offsets_are_of_topics_in_the_namespace_of_the_environment(
    broker: mqtool.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_of(broker, "tenant%Spaced", 1)
    monkeypatch.setenv("MQTOOL_NAMESPACE", "tenant")
    address = broker.name_server_address
    send(address, "Spaced", numbers(5))

    assert bodies_of(read(address, topic="Spaced", startingOffsets='{"Spaced": {"0": 3}}')) == [b"3", b"4"]
    assert read(address, topic="Spaced", startingOffsets='{"Spaced": "latest"}') == []


# Streams.


class FollowingQuery(StreamQuery):
    """A query that follows topics."""

    def restart(self) -> None:
        one = source(str(self.path), **{"columns": "all", **self.options})
        reader = one.streamReader(one.schema())
        assert isinstance(reader, QueuesStreamReader)
        if self.offsets is not None:
            self.reader.stop()
        self.reader: Any = reader
        if self.offsets is None:
            self.offsets = json.dumps(reader.initialOffset())

    def trigger(self) -> bool:
        self.reader._idle_since = 0.0  # nobody waits here
        return super().trigger()

    def __enter__(self) -> "FollowingQuery":
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.stop()


def test_each_message_comes_once_through_limits_restarts_and_new_queues(broker: mqtool.Broker) -> None:
    topic, address = topic_of(broker, "Followed"), broker.name_server_address
    sent = send(address, topic, numbers(50))
    with FollowingQuery(address, topic=topic, maxOffsetsPerTrigger=20) as query:
        assert query.trigger()
        assert 20 <= len(query.rows) <= 21
        pickle.loads(pickle.dumps(query.reader))
        query.restart()
        while query.trigger():
            pass
        assert bodies_of(query.rows) == sorted(sent)
        assert not query.trigger()

        topic_of(broker, topic, 4)
        sent += send(address, topic, numbers(50, start=50))
        query.reader.prepareForTriggerAvailableNow()
        send(address, topic, [b"later"])
        while query.trigger():
            pass
        assert bodies_of(query.rows) == sorted(sent)
        assert {row["queue_id"] for row in query.rows} == {0, 1, 2, 3}
        reached = query.reader.reportLatestOffset()[topic]
        assert sum(place["offset"] for place in reached.values()) == 101


def test_offsets_are_committed_to_the_group_where_one_is_given(broker: mqtool.Broker) -> None:
    topic, address = topic_of(broker, "Committed"), broker.name_server_address
    send(address, topic, numbers(30))
    with FollowingQuery(address, topic=topic, group="reports", maxOffsetsPerTrigger=10) as query:
        query.trigger()
        read_first = len(query.rows)
        query.trigger()
        with mqtool.AdminClient(address) as admin:
            assert sum(one.lag or 0 for one in admin.offsets("reports")) == 30 - read_first
            while query.trigger():
                pass
            assert [one.lag for one in admin.offsets("reports")] == [0, 0]
    with FollowingQuery(address, topic=topic) as query:
        query.trigger()
    with mqtool.AdminClient(address) as admin:
        assert {one.group for one in admin.offsets() if one.topic == topic} == {"reports"}


def test_offsets_that_cannot_be_committed_are_said_once_and_hold_nothing_up(
    broker: mqtool.Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic, address = topic_of(broker, "Uncommitted"), broker.name_server_address
    sent = send(address, topic, numbers(30))
    with FollowingQuery(address, topic=topic, group="reports", maxOffsetsPerTrigger=10) as query:
        with monkeypatch.context() as patched:
            patched.setattr(queues_module, "masters", lambda _: {})  # slaves alone are there
            while query.trigger():
                pass
        assert bodies_of(query.rows) == sorted(sent)
        assert sum("cannot commit the offsets of reports" in one for one in caplog.messages) == 1
        query.trigger()
    with mqtool.AdminClient(address) as admin:
        assert [one.lag for one in admin.offsets("reports") if one.topic == topic] == [0, 0]


@pytest.mark.parametrize("again", [5, 40, 80])  # 40: the queue is as long as it was
def test_a_broker_that_lost_its_end_ends_a_query_or_is_read_from_where_it_is_the_same(
    again: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, backup = tmp_path / "store", tmp_path / "backup"
    with mqtool.Broker(store, settings=SMALL) as running:
        topic_of(running, "Restored", 1)
        kept = send(running.name_server_address, "Restored", numbers(10))
    shutil.copytree(store, backup)
    with mqtool.Broker(store, settings=SMALL) as running:
        send(running.name_server_address, "Restored", numbers(40, start=10))
        strict = FollowingQuery(running.name_server_address, topic="Restored", maxOffsetsPerTrigger=2)
        lax = FollowingQuery(
            running.name_server_address, topic="Restored", maxOffsetsPerTrigger=2, failOnDataLoss=False
        )
        for query in (strict, lax):
            while query.trigger():
                pass
            query.reader.stop()
    shutil.rmtree(store)
    backup.rename(store)
    with mqtool.Broker(store, settings=SMALL) as running:
        other = send(running.name_server_address, "Restored", [b"other %d" % n for n in range(again)])
        strict.path = lax.path = running.name_server_address
        strict.restart()
        lax.restart()
        with strict, lax:
            with pytest.raises(StoreChangedError, match=r"up to 50: it was truncated or .*failOnDataLoss=false"):
                strict.trigger()
            while lax.trigger():
                pass
    bodies = [row["body"] for row in lax.rows]
    assert {*kept, *other} <= {*bodies}
    again_read = bodies[50:]
    assert again_read == [*kept, *other][len(kept) + len(other) - len(again_read) :]
    assert sum("is not the queue that was read up to 50" in one.message for one in caplog.records) == 1


def test_messages_that_retention_deletes_first_end_a_query_or_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with mqtool.Broker(tmp_path, settings=SMALL) as running:
        topic_of(running, "Old", 1)
        send(running.name_server_address, "Old", [b"x" * 3000 for _ in range(60)])
        queries = [
            FollowingQuery(running.name_server_address, topic="Old", maxOffsetsPerTrigger=3, failOnDataLoss=fails)
            for fails in (True, False)
        ]
        for query in queries:
            query.trigger()
            query.reader.stop()
    (tmp_path / "commitlog" / f"{0:020}").unlink()
    with mqtool.Broker(tmp_path, settings=SMALL) as running:
        for query in queries:
            query.path = running.name_server_address
            query.restart()
        with queries[0] as strict, queries[1] as lax:
            with pytest.raises(NotFoundError, match=r"messages from 3 to \d+ were deleted before they were read"):
                strict.trigger()
            while lax.trigger():
                pass
        first = read(running.name_server_address, topic="Old")[0]["queue_offset"]
        with pytest.raises(NotFoundError, match=r"from 3 to \d+ were deleted .*failOnDataLoss=false to continue after"):
            read(running.name_server_address, topic="Old", startingOffsets='{"Old": {"0": 3}}')
    assert first > 10
    offsets = [row["queue_offset"] for row in lax.rows if row["_corrupt_record"] is None]
    assert offsets == [0, 1, 2, *range(first, 60)]
    assert [row["_corrupt_record"]["code"] for row in lax.rows if row["_corrupt_record"]] == ["LOG-GAP"]
    assert any("were deleted before they were read" in one.message for one in caplog.records)


def test_a_broker_that_is_retired_ends_a_query_or_is_left_out() -> None:
    with mqtool.Broker(settings=SMALL) as first:
        address = first.name_server_address
        with mqtool.Broker(name_servers=[address], settings={**SMALL, "brokerName": "broker-b"}):
            topic_of(first, "Shared", 1)
            sent = send(address, "Shared", numbers(20))
            queries = [FollowingQuery(address, topic="Shared", failOnDataLoss=fails) for fails in (True, False)]
            for query in queries:
                query.trigger()
                assert bodies_of(query.rows) == sorted(sent)
        sent += send(address, "Shared", [b"more"])
        with queries[0] as strict, queries[1] as lax:
            with pytest.raises(NotFoundError, match=r"queue 0 of Shared on broker-b is gone: .*failOnDataLoss=false"):
                strict.trigger()
            lax.trigger()
            assert not lax.trigger()
        assert bodies_of(lax.rows) == sorted(sent)


def test_a_broker_that_goes_before_a_planned_batch_is_read_is_told_of_with_what_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with mqtool.Broker(settings=SMALL) as first:
        address = first.name_server_address
        with mqtool.Broker(name_servers=[address], settings={**SMALL, "brokerName": "broker-b"}):
            topic_of(first, "Planned", 1)
            strict, lax = (FollowingQuery(address, topic="Planned", failOnDataLoss=fails) for fails in (True, False))
            send(address, "Planned", numbers(20))
            start = json.loads(lax.offsets or "")
            end = lax.reader.latestOffset(start, lax.reader.getDefaultReadLimit())
        told = "queue 0 of Planned on broker-b is gone: no broker has its messages from 0 to 10 any more"
        with strict, lax:
            with pytest.raises(NotFoundError, match=f"{told}; set failOnDataLoss=false to continue without them"):
                strict.reader.partitions(start, end)
            parts = lax.reader.partitions(start, end)
            rows = [row for part in parts for batch in lax.reader.read(part) for row in batch.to_pylist()]
    assert f"{told}; the stream continues without them" in caplog.messages
    assert [row["_corrupt_record"] for row in rows if row["_corrupt_record"]] == [
        {"file": "Planned/0", "position": 0, "code": "LOG-GAP", "hex": None}
    ]
    assert len([row for row in rows if row["body"]]) == 10


def test_a_broker_that_starts_again_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_looked = threading.Event()
    look = queues_module.Queues._queues_of

    async def looked(self: Any, topics: Any) -> Any:
        found = await look(self, topics)
        has_looked.set()
        return found

    def other() -> mqtool.Broker:
        return mqtool.Broker(tmp_path, name_servers=[address], settings={**SMALL, "brokerName": "broker-b"})

    with mqtool.Broker(settings=SMALL) as first, ThreadPoolExecutor() as pool:
        address = first.name_server_address
        with other():
            topic_of(first, "Waited", 1)
            sent = send(address, "Waited", numbers(20))
            query = FollowingQuery(address, topic="Waited")
        monkeypatch.setattr(queues_module, "_TRIES", 2000)
        monkeypatch.setattr(queues_module.Queues, "_queues_of", looked)
        with query:
            triggered = pool.submit(query.trigger)
            has_looked.wait()
            with other():
                assert triggered.result()
        assert bodies_of(query.rows) == sorted(sent)


@pytest.mark.parametrize("start", ["latest", '{"Remade": {"0": 7}}'])
def test_a_topic_that_is_made_again_before_a_stream_has_read_of_it_is_noticed(
    start: str, broker: mqtool.Broker
) -> None:
    topic, address = topic_of(broker, "Remade", 1), broker.name_server_address
    send(address, topic, numbers(10))
    with (
        FollowingQuery(address, topic=topic, startingOffsets=start) as strict,
        FollowingQuery(address, topic=topic, startingOffsets=start, failOnDataLoss=False) as lax,
    ):
        with mqtool.AdminClient(address) as admin:
            admin.delete_topic(topic)
        topic_of(broker, topic, 1)
        sent = send(address, topic, numbers(15, start=100))
        with pytest.raises(StoreChangedError, match="is not the queue that was read up to"):
            strict.trigger()
        assert lax.trigger()
        assert bodies_of(lax.rows) == sent
    with mqtool.AdminClient(address) as admin:
        admin.delete_topic(topic)


def test_a_stream_that_cannot_be_says_why() -> None:
    for options, told in (
        ({}, "no topic given"),
        ({"topic": "T", "endingOffsets": "latest"}, "a stream has no end"),
    ):
        one = source("127.0.0.1:1", **options)
        with pytest.raises(UsageError, match=told):
            one.streamReader(one.schema()).initialOffset()


# Sinks.


def sender(address: str, columns: dict[str, str], **options: object) -> MessageSender:
    made = source(address, **options).writer(spark_schema(columns), False)
    assert isinstance(made, MessageSender)
    return made


def send_rows(one: MessageSender, columns: dict[str, str], rows: list[dict[str, Any]]) -> int:
    batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(spark_schema(columns)))
    return pickle.loads(pickle.dumps(one)).write(iter([batch])).count  # type: ignore[no-any-return]


COLUMNS = {"topic": "string", "body": "binary", "tags": "string", "keys": "string",
           "properties": "map<string,string>"}  # fmt: skip


def test_rows_are_sent_with_all_that_a_message_has(broker: mqtool.Broker) -> None:
    topic, address = topic_of(broker, "Sent", 4), broker.name_server_address
    rows = [
        {"topic": topic, "body": b"%d" % n, "tags": "new" if n % 2 else None, "keys": f"a{n} b{n}",
         "properties": {"region": "eu"} if n % 3 else None}
        for n in range(500)
    ]  # fmt: skip

    assert send_rows(sender(address, COLUMNS), COLUMNS, rows) == 500

    found = sorted(read(address, topic=topic), key=lambda row: int(row["body"]))
    assert [(row["body"], row["tags"], row["keys"], dict(row["properties"]).get("region")) for row in found] == [
        (row["body"], row["tags"], row["keys"], "eu" if row["properties"] else None) for row in rows
    ]


def test_rows_of_the_source_can_be_sent_on(broker: mqtool.Broker) -> None:
    topics, address = [topic_of(broker, name) for name in ("From", "Onto")], broker.name_server_address
    with mqtool.Producer("tests", address) as producer:
        for n in range(5):
            producer.send(ProducerMessage(topics[0], b"%d" % n, tags="t", keys=["k"], properties={"own": "x"}))
    columns = {field.name: field.dataType.simpleString() for field in source(address, columns="all").schema().fields}
    rows = [{**row, "topic": topics[1]} for row in read(address, topic=topics[0])]

    send_rows(sender(address, columns), columns, rows)

    found = read(address, topic=topics[1])
    shown = [(row["body"], row["tags"], row["keys"], dict(row["properties"])["own"]) for row in found]
    assert sorted(shown) == [(b"%d" % n, "t", "k", "x") for n in range(5)]
    assert {row["unique_key"] for row in found}.isdisjoint(row["unique_key"] for row in rows)


def test_rows_with_one_shard_key_go_to_one_queue_and_delayed_ones_come_later(broker: mqtool.Broker) -> None:
    topic, address = topic_of(broker, "Sharded", 4), broker.name_server_address
    columns = {"body": "string", "shard_key": "string"}
    rows = [{"body": f"{n}", "shard_key": f"order-{n % 5}"} for n in range(60)]
    send_rows(sender(address, columns, topic=topic), columns, rows)
    queues: dict[int, set[int]] = {}
    for row in read(address, topic=topic):
        queues.setdefault(int(row["body"]) % 5, set()).add(row["queue_id"])
    assert [len(one) for one in queues.values()] == [1] * 5
    assert len({*map(tuple, queues.values())}) > 1

    delayed = {"body": "string", "deliver_at": "bigint"}
    at = int(time.time() * 1000) + 3_600_000
    send_rows(sender(address, delayed, topic=topic), delayed, [{"body": "late", "deliver_at": at}])
    assert len(read(address, topic=topic)) == 60


def test_names_of_columns_may_be_in_upper_or_lower_case(broker: mqtool.Broker) -> None:
    topic, address = topic_of(broker, "AnyCase"), broker.name_server_address
    schema = StructType([StructField(name, StringType()) for name in ("Body", "TAGS", "_Corrupt_Record")])

    def sent(row: dict[str, str | None]) -> int:
        made = source(address, topic=topic).writer(schema, False)
        assert isinstance(made, MessageSender)
        return made.write(iter([pa.RecordBatch.from_pylist([row], schema=arrow_schema(schema))])).count

    assert sent({"Body": "x", "TAGS": "new", "_Corrupt_Record": None}) == 1
    with pytest.raises(BadDataError, match="cannot send row 0 of a partition: it is damaged; filter out rows"):
        sent({"Body": "x", "TAGS": "new", "_Corrupt_Record": "{"})  # as JSON that Spark could not read
    assert [(row["body"], row["tags"]) for row in read(address, topic=topic)] == [(b"x", "new")]


def test_large_rows_are_sent_while_few_of_them_are_held(broker: mqtool.Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, address = topic_of(broker, "Large"), broker.name_server_address
    monkeypatch.setattr(sender_module, "_MAX_BYTES_UNDER_WAY", 3000)
    begun: list[Any] = []
    held: list[int] = []

    class Counted(mqtool.Producer):
        def send_async(self, *given: Any, **more: Any) -> Any:
            begun.append(super().send_async(*given, **more))
            held.append(sum(not one.done() for one in begun))
            return begun[-1]

    monkeypatch.setattr(sender_module, "Producer", Counted)
    columns = {"body": "binary"}

    assert send_rows(sender(address, columns, topic=topic), columns, [{"body": b"x" * 1000}] * 20) == 20
    assert max(held) <= 4
    assert len(read(address, topic=topic)) == 20


def test_what_cannot_be_sent_is_said_in_a_sentence(broker: mqtool.Broker) -> None:
    address, body = broker.name_server_address, {"body": "string"}
    for columns, options, told in (
        ({"topic": "string"}, {}, "a message needs a column body"),
        (body, {}, "no topic given: add a column topic, or set the option topic"),
        ({**body, "tag": "string"}, {"topic": "T"}, "unknown message column tag: did you mean tags"),
        ({"body": "int"}, {"topic": "T"}, "column body is int, not binary or string: cast it in the query"),
        (
            body,
            {"topic": "T", "startingOffsets": "latest"},
            "startingOffsets is an option for reading, not for sending",
        ),
    ):
        with pytest.raises(UsageError, match=told):
            sender(address, columns, **options)
    twice = StructType([StructField(name, StringType()) for name in ("body", "Body")])
    with pytest.raises(UsageError, match="body and Body are the same message column"):
        source(address, topic="T").writer(twice, False)
    with pytest.raises(UsageError, match="never overwritten"):
        source(address, topic="T").writer(spark_schema(body), True)
    for row, told in (({"body": None}, "cannot send row 1 of a partition: its body is null"),
                      ({"body": ""}, "cannot send row 1 of a partition: a message to There2 has no")):  # fmt: skip
        with pytest.raises(BadDataError, match=told):
            send_rows(sender(address, body, topic=topic_of(broker, "There2")), body, [{"body": "x"}, row])
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1 "):
        send_rows(sender("127.0.0.1:1", body, topic="T"), body, [{"body": "x"}])


# Who may, and over TLS.

ACCOUNTS = """accounts:
- {accessKey: administrator, secretKey: 12345678, admin: true}
- {accessKey: reads-only, secretKey: 12345678, topicPerms: [Kept=SUB], groupPerms: [reports=SUB]}
- {accessKey: sends-only, secretKey: 12345678, topicPerms: [Kept=PUB]}
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The name server of a broker that takes TLS and signed requests only, and the certificate of both."""
    folder = with_certificate(tmp_path_factory.mktemp("guarded"))
    (folder / "plain_acl.yml").write_text(ACCOUNTS)
    settings: dict[str, str | int | bool] = {
        **NAMED, "aclEnable": True, "rocketmq.acl.plain.file": str(folder / "plain_acl.yml"),
        "tls.server.mode": "enforcing", "tls.server.certPath": str(folder / "cert.pem"),
        "tls.server.keyPath": str(folder / "key.pem"),
    }  # fmt: skip
    with mqtool.Broker(settings=settings) as running:
        who = mqtool.ClientOptions(
            access_key="administrator", secret_key="12345678", tls=True, authorities=folder / "cert.pem"
        )
        with mqtool.AdminClient(running.name_server_address, who) as admin:
            for topic in ("Kept", "Kept2"):
                admin.create_topic(topic, queues=2)
        yield running.name_server_address, folder / "cert.pem"


def test_a_broker_with_accounts_and_tls_is_read_followed_and_sent_to_by_who_may(guarded: tuple[str, Path]) -> None:
    address, authorities = guarded
    safe: dict[str, object] = {"tls": "true", "authorities": authorities, "secretKey": "12345678", "topic": "Kept"}
    body = {"body": "string"}
    bodies = [f"{n}" for n in range(20)]

    send_rows(sender(address, body, **safe, accessKey="sends-only"), body, [{"body": one} for one in bodies])

    may_read = {**safe, "accessKey": "reads-only", "group": "reports"}
    assert bodies_of(read(address, None, **may_read)) == sorted(one.encode() for one in bodies)
    with FollowingQuery(address, **may_read, maxOffsetsPerTrigger=6) as query:
        while query.trigger():
            pass
        assert bodies_of(query.rows) == sorted(one.encode() for one in bodies)
        query.trigger()  # commits
    who = mqtool.ClientOptions(access_key="administrator", secret_key="12345678", tls=True, authorities=authorities)
    with mqtool.AdminClient(address, who) as admin:
        assert [one.lag for one in admin.offsets("reports") if one.topic == "Kept"] == [0, 0]

    wrong: list[tuple[dict[str, object], type[MqtoolError], str]] = [
        ({"tls": "false", "authorities": ""}, UnavailableError, "127.0.0.1"),
        ({"authorities": ""}, UnavailableError, "certificate"),
        ({"secretKey": "87654321"}, NotPermittedError, "refused"),
        ({"accessKey": "sends-only"}, NotPermittedError, "refused"),
        ({"topic": "Kept2"}, NotPermittedError, "refused"),
        ({"group": "others"}, NotPermittedError, "refused"),
    ]
    for options, kind, told in wrong:
        with pytest.raises(kind, match=told):
            read(address, None, **{**may_read, **options})
        with pytest.raises(kind, match=told):
            FollowingQuery(address, **{**may_read, **options}).trigger()
    with pytest.raises(SendError, match=r"refused the request: .* No default permission for Kept"):
        send_rows(sender(address, body, **may_read), body, [{"body": "x"}])
