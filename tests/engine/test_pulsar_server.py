"""The official Python client of Apache Pulsar, and clients of RocketMQ, on the same topics of a broker."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mqtool
from mqtool.engine.repair.verify import verify_store
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import UsageError

pulsar = pytest.importorskip("pulsar")
WAIT_MS = 30_000
EARLIEST = pulsar.InitialPosition.Earliest


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[mqtool.Broker]:
    with mqtool.Broker(tmp_path / "store", pulsar=True) as running:
        yield running


def client_of(broker: mqtool.Broker) -> Any:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(broker.pulsar_url, logger=quiet, io_threads=1, message_listener_threads=1)


def bodies(consumer: Any, count: int) -> list[bytes]:
    return [consumer.receive(WAIT_MS).data() for _ in range(count)]


def test_clients_of_both_kinds_read_what_the_others_send(broker: mqtool.Broker) -> None:
    client = client_of(broker)
    producer = client.create_producer("mixed", batching_enabled=True, batching_max_publish_delay_ms=10)
    consumer = client.subscribe("mixed", "pulsar", pulsar.ConsumerType.Shared, initial_position=EARLIEST)
    for number in range(3):
        producer.send_async(b"p%d" % number, lambda *_: None, partition_key="key", properties={"TAGS": "TagA"})
    producer.flush()
    with mqtool.Producer("shop", broker.name_server_address) as others:
        others.send(mqtool.ProducerMessage("mixed", b"r", tags="TagB", keys="order-7", properties={"color": "red"}))

    received = [consumer.receive(WAIT_MS) for _ in range(4)]
    with mqtool.PullConsumer("billing", broker.name_server_address) as puller:
        [queue] = puller.fetch_message_queues("mixed")
        pulled = puller.pull(queue, 0).messages
    for one in received:
        consumer.acknowledge(one)
    client.close()

    assert [one.data() for one in received] == [b"p0", b"p1", b"p2", b"r"]
    assert [one.message_id().batch_index() for one in received] == [0, 1, 2, -1]
    assert (received[3].partition_key(), received[3].properties()["color"]) == ("order-7", "red")
    assert [(one.body, one.properties.get("TAGS"), one.properties.get("KEYS")) for one in pulled][0::3] == [
        (b"p0", "TagA", "key"),
        (b"r", "TagB", "order-7"),
    ]


def test_acknowledgements_with_gaps_survive_a_restart_and_the_store_stays_sound(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with mqtool.Broker(store, pulsar=True) as broker:
        client = client_of(broker)
        consumer = client.subscribe("t", "s", pulsar.ConsumerType.Shared, initial_position=EARLIEST)
        producer = client.create_producer("t")
        for number in range(6):
            producer.send(b"%d" % number)
        received = [consumer.receive(WAIT_MS) for _ in range(6)]
        for place in (0, 1, 4):
            consumer.acknowledge(received[place])
        client.close()

    assert not [finding for finding in verify_store(StoreReader(store)) if finding.severity.name != "NOTE"]
    with mqtool.Broker(store, pulsar=True) as broker:
        client = client_of(broker)
        consumer = client.subscribe("t", "s", pulsar.ConsumerType.Shared)
        assert sorted(bodies(consumer, 3)) == [b"2", b"3", b"5"]
        client.close()


def test_topics_of_rocketmq_with_several_queues_have_partitions(broker: mqtool.Broker) -> None:
    with mqtool.Producer("shop", broker.name_server_address) as others:
        others.send(mqtool.ProducerMessage("wide", b"made by sending"))
    client = client_of(broker)

    partitions = client.get_topic_partitions("wide")
    consumer = client.subscribe("wide", "s", initial_position=EARLIEST)
    body = bodies(consumer, 1)
    client.close()

    assert partitions[0] == "persistent://public/default/wide-partition-0"
    assert len(partitions) > 1
    assert body == [b"made by sending"]


def test_there_is_no_port_for_pulsar_where_access_is_controlled(tmp_path: Path) -> None:
    settings: dict[str, str | int | bool] = {
        "aclEnable": True,
        "rocketmq.acl.plain.file": str(tmp_path / "plain_acl.yml"),
    }
    (tmp_path / "plain_acl.yml").write_text("accounts: []\n")

    with pytest.raises(UsageError, match="pulsarPort"), mqtool.Broker(tmp_path / "s", pulsar=True, settings=settings):
        pass
