"""What clients of both kinds see of the same topics and groups, where their names or their positions meet."""

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mqtool
from tests.engine.test_pulsar_admin import TOPIC, ask
from tests.pulsar_client import PulsarWireClient

pytest.importorskip("google.protobuf")
pytest.importorskip("uvicorn")
SHARED = 1
BROKER = "broker-a"
PATIENCE_SECONDS = 60


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[mqtool.Broker]:
    with mqtool.Broker(tmp_path / "store", pulsar=True) as running:
        yield running


def wire(broker: mqtool.Broker) -> PulsarWireClient:
    host, _, port = broker.pulsar_url.removeprefix("pulsar://").rpartition(":")
    return PulsarWireClient(host, int(port))


def queue_count(name: str, count: int, broker: mqtool.Broker) -> None:
    with mqtool.AdminClient(broker.name_server_address) as admin:
        admin.create_topic(name, queues=count)


class LineOfLog(logging.Handler):
    """Waits for a line of the log."""

    def __init__(self, is_meant: Callable[[str], bool]) -> None:
        super().__init__()
        self._is_meant = is_meant
        self.line = ""
        self.came = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._is_meant(text := record.getMessage()):
            self.line = text
            self.came.set()


def test_a_topic_with_the_name_of_a_partition_does_not_hide_it(
    broker: mqtool.Broker, caplog: pytest.LogCaptureFixture
) -> None:
    queue_count("x", 2, broker)
    queue_count("x-partition-0", 1, broker)
    with mqtool.Producer("shop", broker.name_server_address) as others:
        queue = mqtool.MessageQueue("x", BROKER, 0)
        others.send(mqtool.ProducerMessage("x", b"from RocketMQ"), queue)
        others.send(mqtool.ProducerMessage("x-partition-0", b"of the other topic"))

    with wire(broker) as client:
        client.produce("x-partition-0")
        client.send(b"from Pulsar")
        client.subscribe("x-partition-0", 10)
        bodies = client.bodies(2)
        client.say("get_topics", namespace="public/default", mode=2, request_id=3)
        names = [*client.next("get_topics_response").body.topics]
    with mqtool.PullConsumer("billing", broker.name_server_address) as puller:
        pulled = [message.body for message in puller.pull(queue, 0).messages]

    assert bodies == pulled == [b"from RocketMQ", b"from Pulsar"]
    assert names == [f"persistent://public/default/x-partition-{number}" for number in range(2)]
    assert "x-partition-0: its name is that of a partition of persistent://public/default/x" in caplog.text


def test_positions_are_not_moved_under_rocketmq_consumers_and_a_group_of_both_kinds_is_told(
    broker: mqtool.Broker,
) -> None:
    queue_count("t", 1, broker)
    told = LineOfLog(lambda line: "RocketMQ and Pulsar consumers" in line)
    consumed: set[bytes] = set()
    is_connected = threading.Event()

    def consume(messages: Any, _: Any) -> None:
        consumed.update(message.body for message in messages)
        is_connected.set()

    logging.getLogger("mqtool").addHandler(told)
    with wire(broker) as client:
        client.produce("t")
        client.subscribe("t", 1, kind=SHARED, subscription="both")
        for number in range(3):
            client.send(b"%d" % number)
        client.bodies(1)
        joined = mqtool.PushConsumer("both", consume, broker.name_server_address)
        joined.subscribe("t")
        with joined:
            assert is_connected.wait(PATIENCE_SECONDS)
            assert told.came.wait(PATIENCE_SECONDS)
            answers = [
                ask(broker, method, f"{TOPIC}t/subscription/both{what}")
                for method, what in (("POST", "/skip_all"), ("POST", "/resetcursor/0"), ("DELETE", ""))
            ]
            client.say("seek", consumer_id=0, request_id=5, message_publish_time=1)
            refused = client.next("error", "success")
    logging.getLogger("mqtool").removeHandler(told)

    assert (
        told.line == "the group both has RocketMQ and Pulsar consumers on the topic t: both may get the same messages"
    )
    assert [status for status, _ in answers] == [412] * 3
    assert refused.name == "error"
    reasons = {answers[0][1]["reason"], answers[1][1]["reason"], refused.body.message}
    assert reasons == {"Consumers of RocketMQ are connected in the group both of the same topic"}


def test_a_topic_that_rocketmq_consumers_use_is_deleted_only_by_force(broker: mqtool.Broker) -> None:
    queue_count("t", 1, broker)
    is_connected = threading.Event()
    consumer = mqtool.PushConsumer("billing", lambda _, __: is_connected.set(), broker.name_server_address)
    consumer.subscribe("t")
    with mqtool.Producer("shop", broker.name_server_address) as producer:
        producer.send(mqtool.ProducerMessage("t", b"x"))

    with consumer:
        assert is_connected.wait(PATIENCE_SECONDS)
        status, answer = ask(broker, "DELETE", TOPIC + "t/partitions")
        by_force = ask(broker, "DELETE", TOPIC + "t/partitions?force=true")

    assert (status, answer["reason"]) == (412, "Consumers of RocketMQ are connected in the group billing of this topic")
    assert by_force == (204, "")
