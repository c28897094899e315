"""Topics that drop what producers send again, and topics that take no more messages.

What is expected of sequence ids and of commands is what Apache Pulsar 4.2.4 has answered to the same commands.
"""

import contextlib
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mqtool
from mqtool.engine.broker.broker import BrokerController
from mqtool.engine.broker.operations.refusal import OperationRefusedError
from mqtool.engine.broker.operations.send import NewTopic
from mqtool.engine.broker.settings import BrokerSettings
from mqtool.engine.pulsar.deduplication import Deduplication
from mqtool.engine.pulsar.door import PulsarDoor
from mqtool.engine.pulsar.frames import Command, Payload, build_batch_body, build_payload, parse_frame
from mqtool.engine.pulsar.wire import command
from mqtool.engine.pulsar.wire_classes import MessageMetadata, SingleMetadata
from mqtool.engine.store.message_store import MessageStore
from mqtool.engine.store.paths import StoreConfig
from mqtool.errors import MqtoolError
from mqtool.formats.new_message import NewMessage
from mqtool.formats.peer import Peer

pulsar = pytest.importorskip("pulsar")
WAIT_MS = 30_000
EARLIEST = pulsar.InitialPosition.Earliest
PAGES = "/admin/v2/persistent/public/default/"
NOW = 1_800_000_000_000
NOWHERE = (1 << 64) - 1


def ask(broker: mqtool.Broker, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(
            urllib.request.Request(broker.pulsar_admin_url + PAGES + path, data, method=method)
        ) as response:
            text, status = response.read(), response.status
    except urllib.error.HTTPError as error:
        with error:
            text, status = error.read(), error.code
    return status, json.loads(text) if text else None


def client_of(broker: mqtool.Broker) -> Any:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(broker.pulsar_url, logger=quiet, io_threads=1, message_listener_threads=1)


class DoorAtWork:
    """A door with one producer, ``p``, and what it was told."""

    def __init__(self, root: Path, settings: BrokerSettings | None = None) -> None:
        self.store = MessageStore(root, StoreConfig({"mappedFileSizeCommitLog": "1048576"}), now=NOW)
        self.broker = BrokerController(self.store, NOW, settings)
        self.door = PulsarDoor(self.broker, NOW)
        self.peer = Peer(1, "127.0.0.1", 40_001)
        self.say("connect", client_version="test", protocol_version=21)

    def produce(self) -> Any:
        [(name, body, _)] = self.say("producer", topic="t", producer_id=0, request_id=1, producer_name="p")
        assert name == "producer_success"
        return body

    def say(self, name: str, payload: bytes | None = None, **fields: Any) -> list[Command]:
        body = getattr(command(name, **fields), name)
        self.door.take(Command(name, body, payload), self.door.session(self.peer), NOW)
        return [parse_frame(b"".join(frame)[4:]) for _, frame in self.door.tick(NOW)]

    def send(
        self, sequence_id: int, highest: int | None = None, count: int = 0, chunk: tuple[int, int] | None = None
    ) -> bool:
        """Send something and tell whether it was stored."""
        metadata = MessageMetadata(producer_name="p", sequence_id=sequence_id % (1 << 64), publish_time=1)
        body = b"body"
        if highest is not None:
            metadata.highest_sequence_id = highest
        if count:
            metadata.num_messages_in_batch = count
            single = SingleMetadata(payload_size=len(body)).SerializeToString()
            body = build_batch_body([Payload(single, body)] * count)
        if chunk is not None:
            metadata.uuid, (metadata.chunk_id, metadata.num_chunks_from_msg) = "u", chunk
        [(name, receipt, _)] = self.say(
            "send",
            build_payload(metadata.SerializeToString(), body),
            producer_id=0,
            sequence_id=sequence_id % (1 << 64),
            highest_sequence_id=highest,
            is_chunk=chunk is not None,
        )
        assert name == "send_receipt"
        place = receipt.message_id
        assert (place.ledgerId == NOWHERE) == (place.entryId == NOWHERE)
        return bool(place.ledgerId != NOWHERE)

    def send_by_rocketmq(self) -> None:
        message = NewMessage("t", 0, b"of others", b"", born_timestamp=NOW, born_host=(bytes(4), 0))
        self.broker.sends.send(message, NewTopic("", 1, False), NOW)

    def known(self) -> Deduplication:
        found = self.door.topics.queues["t", 0].deduplication
        assert found is not None
        return found

    def close(self) -> None:
        self.broker.stop(NOW)
        self.store.close()


@pytest.fixture
def door(tmp_path: Path) -> Iterator[DoorAtWork]:
    made = DoorAtWork(tmp_path / "store")
    assert made.produce().last_sequence_id == -1
    made.door.topics.deduplicate("t", True)
    yield made
    made.close()


def test_a_sequence_id_is_stored_once_and_a_batch_counts_by_its_first_and_is_remembered_by_its_last(
    door: DoorAtWork,
) -> None:
    assert [door.send(one) for one in (5, 5, 10, 9, 11, 11)] == [True, False, True, False, True, False]
    assert [door.send(12, highest=15, count=4), door.send(15), door.send(14, highest=17, count=4)] == [
        True,
        False,
        False,
    ]
    assert door.send(16)
    assert [door.send(20, chunk=(0, 2)), door.send(20, chunk=(1, 2))] == [True, True]
    assert [door.send(20, chunk=(0, 2)), door.send(20, chunk=(1, 2))] == [True, False]
    assert not door.send(-1)

    door.say("close_producer", producer_id=0, request_id=2)
    assert door.produce().last_sequence_id == 20


def test_nothing_is_forgotten_by_a_kill_whenever_it_comes(door: DoorAtWork, tmp_path: Path) -> None:
    for number in range(12):
        if number == 4:
            door.door.topics.save_all(NOW)
        if number % 3 == 0:
            door.send(number * 10, highest=number * 10 + 3, count=4)
        elif number % 3 == 1:
            door.send_by_rocketmq()
        else:
            door.send(number * 10)
        door.store.flush()
        copy = tmp_path / f"killed-{number}"
        shutil.copytree(tmp_path / "store", copy)
        again = DoorAtWork(copy)
        assert again.known().highest_of("p") == door.known().highest_of("p")
        assert again.known().highest_of("rocketmq") == -1
        assert not again.produce() or not again.send(door.known().highest_of("p"))
        again.close()


def test_what_a_loss_of_power_has_taken_may_be_sent_again(door: DoorAtWork) -> None:
    door.send(1)
    log = door.door.topics.queues["t", 0].log

    known = Deduplication(log, log.end + 1, [("p", 2)])
    known.replay()

    assert (known.is_repeated("p", 1), known.is_repeated("p", 2)) == (True, False)


def test_of_too_many_producers_those_are_forgotten_that_have_not_sent_for_longest(
    door: DoorAtWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqtool.engine.pulsar.deduplication.MAX_PRODUCERS", 2)
    known = door.known()

    for name in ("a", "b", "a", "c"):
        known.stored(name, 7)

    assert [name for name in "abc" if known.highest_of(name) == 7] == ["a", "c"]


def test_an_official_client_sends_again_without_effect_also_after_a_restart(tmp_path: Path) -> None:
    with mqtool.Broker(tmp_path / "store", pulsar=True) as broker:
        client = client_of(broker)
        consumer = client.subscribe("t", "s", initial_position=EARLIEST)
        assert ask(broker, "GET", "t/deduplicationEnabled") == (200, False)
        assert ask(broker, "POST", "t/deduplicationEnabled", True) == (204, None)
        assert ask(broker, "GET", "t/deduplicationEnabled") == (200, True)
        producer = client.create_producer("t", producer_name="p")
        for number in (10, 11, 12, 11, 12, 13):
            producer.send(b"%d" % number, sequence_id=number)
        producer.close()
        assert client.create_producer("t", producer_name="p").last_sequence_id() == 13
        received = [consumer.receive(WAIT_MS) for _ in range(4)]
        for one in received:
            consumer.acknowledge(one)
        client.close()
    with mqtool.Broker(tmp_path / "store", pulsar=True) as broker:
        client = client_of(broker)
        consumer = client.subscribe("t", "s")
        producer = client.create_producer("t", producer_name="p")
        assert producer.last_sequence_id() == 13
        producer.send(b"again", sequence_id=13)
        producer.send(b"14", sequence_id=14)
        received.append(consumer.receive(WAIT_MS))
        assert ask(broker, "GET", "t/stats")[1]["deduplicationStatus"] == "Enabled"
        assert ask(broker, "DELETE", "t/deduplicationEnabled") == (204, None)
        producer.send(b"14 again", sequence_id=14)
        received.append(consumer.receive(WAIT_MS))
        client.close()

    assert [one.data() for one in received] == [b"10", b"11", b"12", b"13", b"14", b"14 again"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "none/deduplicationEnabled", None, 404),
        ("POST", "none/deduplicationEnabled", True, 404),
        ("POST", "wide/deduplicationEnabled", "yes", 400),
        ("POST", "wide/deduplicationEnabled", 1, 400),
        ("POST", "wide/deduplicationEnabled", True, 204),
        ("POST", "wide-partition-0/deduplicationEnabled", True, 412),
        ("GET", "wide-partition-0/deduplicationEnabled", None, 412),
        ("POST", "none/terminate", None, 404),
        ("POST", "wide/terminate", None, 405),
        ("POST", "wide-partition-0/terminate", None, 405),
        ("POST", "none/terminate/partitions", None, 404),
    ],
)
def test_pages_of_deduplication_and_of_ends_tell_what_cannot_be_done(
    method: str, path: str, body: Any, status: int, tmp_path: Path
) -> None:
    with mqtool.Broker(tmp_path / "store", pulsar=True) as broker:
        ask(broker, "PUT", "wide/partitions", 2)
        assert ask(broker, method, path, body)[0] == status


# Topics that take no more messages


def test_a_terminated_topic_takes_no_more_messages_of_anybody_and_can_be_read_to_its_end(tmp_path: Path) -> None:
    with mqtool.Broker(tmp_path / "store", pulsar=True) as broker:
        client = client_of(broker)
        producer = client.create_producer("t")
        for number in range(3):
            producer.send(b"%d" % number)
        last = {"ledgerId": 1, "entryId": 2, "partitionIndex": -1, "batchIndex": -1, "batchSize": 0}
        assert ask(broker, "POST", "t/terminate") == (200, last)
        assert ask(broker, "POST", "t/terminate") == (200, last)
        with pytest.raises(pulsar.PulsarException):
            producer.send(b"too late")
        with contextlib.suppress(pulsar.AlreadyClosed):  # its producer may have been, a moment before
            client.close()
    with mqtool.Broker(tmp_path / "store", pulsar=True) as broker:
        client = client_of(broker)
        with pytest.raises(pulsar.TopicTerminated):
            client.create_producer("t")
        with (
            mqtool.Producer("shop", broker.name_server_address) as others,
            pytest.raises(MqtoolError, match="has no writable queue"),
        ):
            others.send(mqtool.ProducerMessage("t", b"too late as well"))
        consumer = client.subscribe("t", "s", initial_position=EARLIEST)
        assert [consumer.receive(WAIT_MS).data() for _ in range(3)] == [b"0", b"1", b"2"]
        assert ask(broker, "DELETE", "t?force=true") == (204, None)
        client.create_producer("t").send(b"to another topic of this name")
        client.close()


def test_all_partitions_of_a_topic_are_terminated_together(tmp_path: Path) -> None:
    with mqtool.Broker(tmp_path / "store", pulsar=True) as broker:
        ask(broker, "PUT", "wide/partitions", 2)
        client = client_of(broker)
        client.create_producer("wide-partition-1").send(b"m")

        status, ends = ask(broker, "POST", "wide/terminate/partitions")

        assert (status, {name: one["entryId"] for name, one in ends.items()}) == (200, {"0": -1, "1": 0})
        with pytest.raises(pulsar.TopicTerminated):
            client.create_producer("wide-partition-0")
        client.close()


def test_consumers_are_told_the_end_of_a_topic_once_they_have_acknowledged_all(door: DoorAtWork) -> None:
    door.send(0)
    door.send(1)
    door.say("subscribe", topic="t", subscription="s", subType=0, consumer_id=7, request_id=2, initialPosition=1)
    door.say("flow", consumer_id=7, messagePermits=10)

    def ack(entry: int) -> list[str]:
        made = command("ack", consumer_id=7, ack_type=0)
        made.ack.message_id.add(ledgerId=1, entryId=entry)
        door.door.take(Command("ack", made.ack, None), door.door.session(door.peer), NOW)
        return [parse_frame(b"".join(frame)[4:]).name for _, frame in door.door.tick(NOW)]

    door.send_by_rocketmq()
    door.door.terminate("t", NOW)
    told = [one.name for one in door.say("ping")]
    assert [one for one in told if one != "message"] == ["close_producer", "pong"]
    assert ack(1) == []
    assert ack(0) == []
    assert ack(2) == ["reached_end"]
    with pytest.raises(OperationRefusedError, match="is terminated"):  # whose route is older than that
        door.send_by_rocketmq()

    [(name, refused, _)] = door.say("producer", topic="t", producer_id=0, request_id=3, producer_name="p")
    assert (name, refused.error) == ("error", 15)
    again = door.say("subscribe", topic="t", subscription="s2", subType=0, consumer_id=8, request_id=4)
    assert [one.name for one in again] == ["success", "reached_end"]
