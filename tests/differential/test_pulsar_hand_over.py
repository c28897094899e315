"""A store with messages of Pulsar's clients goes to a broker of RocketMQ and back: ids, positions, catalogue stay."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import mqtool
from mqtool.engine.repair.findings import Severity
from mqtool.formats.codes import RequestCode
from tests.differential.conftest import jars
from tests.differential.java_broker import POM, within
from tests.differential.java_store import each_version
from tests.differential.test_hand_over import PATIENCE, theirs
from tests.differential.test_hand_over import SETTINGS as SMALL_FILES

pulsar = pytest.importorskip("pulsar")
pytestmark = pytest.mark.java
WAIT_MS = 60_000
EARLIEST = pulsar.InitialPosition.Earliest
SETTINGS: dict[str, str | int | bool] = {**SMALL_FILES, "mappedFileSizeCommitLog": 1 << 24}
"""Chunks of large messages take more than a small file."""
PAGES = "/admin/v2/persistent/public/default/"
Read = list[tuple[str, bytes, str | None]]
"""Id, body and key of messages."""


def client_of(broker: mqtool.Broker) -> Any:
    return pulsar.Client(broker.pulsar_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def ask(broker: mqtool.Broker, method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(
        urllib.request.Request(broker.pulsar_admin_url + PAGES + path, data, method=method)
    ) as done:
        text = done.read()
    return json.loads(text) if text else None


def read_all(client: Any, topic: str) -> Read:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    read = []
    while reader.has_message_available():
        read.append(row(reader.read_next(WAIT_MS)))
    reader.close()
    return read


def faults_of(store: Path) -> list[str]:
    settings = {name: str(value) for name, value in SETTINGS.items()}
    findings = mqtool.verify_store(mqtool.open_store(store, settings))
    return [f"{one.code} {one.file} {one.message}" for one in findings if one.severity != Severity.NOTE]


def row(message: Any) -> tuple[str, bytes, str | None]:
    return str(message.message_id()), message.data(), message.partition_key()


def fill(broker: mqtool.Broker) -> dict[str, Any]:
    """Do something of everything, and return what has to be there afterwards."""
    client = client_of(broker)
    client.create_producer("Plain").close()
    ask(broker, "DELETE", "Plain?force=true")  # its name is used again, by another generation

    schema = pulsar.schema.JsonSchema(type("Order", (pulsar.schema.Record,), {"name": pulsar.schema.String()}))
    client.create_producer("Typed", schema=schema).close()
    ask(broker, "PUT", "Wide/partitions", 2)
    consumer = client.subscribe("Plain", "s.eu", pulsar.ConsumerType.Shared, initial_position=EARLIEST)
    ask(broker, "POST", "Plain/deduplicationEnabled", True)
    batching = client.create_producer(
        "Plain",
        producer_name="p",
        batching_enabled=True,
        batching_max_publish_delay_ms=1000,
        compression_type=pulsar.CompressionType.LZ4,
    )
    for number in range(5):
        batching.send_async(b"b%d" % number, lambda *_: None, partition_key=f"k{number}")
    batching.flush()
    for number in range(6):
        batching.send(b"s%d" % number, properties={"n": str(number)})
    chunking = client.create_producer("Plain", producer_name="c", chunking_enabled=True)
    chunking.send(bytes(5 << 20))
    received = [consumer.receive(WAIT_MS) for _ in range(12)]
    for message in received[:5]:  # all of the batch
        consumer.acknowledge(message)
    for place in (6, 8, 9):
        consumer.acknowledge(received[place])
    left = [row(message) for place, message in enumerate(received) if place in (5, 7, 10, 11)]
    wide = client.create_producer("Wide")
    for number in range(8):
        wide.send(b"w%d" % number)
    read = {topic: read_all(client, topic) for topic in ("Plain", "Wide-partition-0", "Wide-partition-1")}
    client.close()
    return {"left": left, "read": read, "schema": ask_schema(broker)}


def ask_schema(broker: mqtool.Broker) -> Any:
    with urllib.request.urlopen(broker.pulsar_admin_url + "/admin/v2/schemas/public/default/Typed/schema") as done:
        return json.load(done)


@each_version
def test_ids_positions_and_catalogue_outlast_a_broker_of_rocketmq(version: str, tmp_path: Path) -> None:
    jars(version, POM)
    store = tmp_path / "store"
    with mqtool.Broker(store, pulsar=True, settings=SETTINGS) as broker:
        before = fill(broker)
    assert before["read"]["Plain"][0][0].startswith("(2,"), "of the second generation"
    assert faults_of(store) == []

    async def served() -> None:
        async with theirs(version, store, mappedFileSizeCommitLog=1 << 24) as client:
            bodies = [message.body for message in await client.messages("Plain")]
            assert bodies[:11] == [b"b%d" % number for number in range(5)] + [b"s%d" % number for number in range(6)]
            place: dict[str, Any] = {"consumerGroup": "s%2Eeu", "topic": "Plain", "queueId": 0}
            offset = await client.done(RequestCode.QUERY_CONSUMER_OFFSET, **place)
            assert offset["offset"] == "5"
            await client.send(b"of a broker in Java", topic="Plain", pairs={"KEYS": "k"})

    within(PATIENCE, served())
    assert faults_of(store) == []
    with mqtool.Broker(store, pulsar=True, settings=SETTINGS) as broker:
        client = client_of(broker)
        read = {topic: read_all(client, topic) for topic in before["read"]}
        [further] = read["Plain"][len(before["read"]["Plain"]) :]
        assert further[1:] == (b"of a broker in Java", "k")
        assert {topic: rows[: len(before["read"][topic])] for topic, rows in read.items()} == before["read"]
        consumer = client.subscribe("Plain", "s.eu", pulsar.ConsumerType.Shared)
        received = [consumer.receive(WAIT_MS) for _ in range(len(before["left"]) + 1)]
        assert [row(message) for message in received] == [*before["left"], further]
        assert ask(broker, "GET", "Wide/partitions")["partitions"] == 2
        assert ask(broker, "GET", "Plain/partitions")["partitions"] == 0
        assert ask_schema(broker) == before["schema"]
        again = client.create_producer("Plain", producer_name="p")
        assert again.last_sequence_id() == 10
        client.close()
    assert faults_of(store) == []
