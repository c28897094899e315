"""Subscriptions whose name, or topic, was there before, and those of topics that get more partitions."""

import asyncio
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mqtool
from mqtool.engine.broker.broker import BrokerController
from mqtool.engine.broker.operations.send import NewTopic
from mqtool.engine.pulsar.door import PulsarDoor
from mqtool.engine.pulsar.frames import parse_frame
from mqtool.engine.pulsar.schemas import Schema
from mqtool.engine.store.message_store import MessageStore
from mqtool.engine.store.paths import StoreConfig
from mqtool.formats.codes import RequestCode
from mqtool.formats.new_message import NewMessage
from tests.engine.test_pulsar_deduplication import DoorAtWork
from tests.pulsar_wire import PulsarWire, connected
from tests.wire_client import WireClient

pytest.importorskip("google.protobuf")
NOW = 1_800_000_000_000
BEFORE_ALL = (1 << 64) - 1


class PulsarLife:
    """A broker from its start to a kill."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = MessageStore(root, StoreConfig({"mappedFileSizeCommitLog": "1048576"}), now=NOW)
        self.broker = BrokerController(self.store, NOW)
        self.topics = PulsarDoor(self.broker, NOW).topics

    def send(self, count: int, topic: str = "t") -> None:
        for number in range(count):
            message = NewMessage(topic, 0, b"%d" % number, b"", born_timestamp=NOW, born_host=(bytes(4), 0))
            self.broker.sends.send(message, NewTopic("TBW102", 1, False), NOW)

    def subscription(self) -> Any:
        """Return the subscription ``s``; a new one begins with the first message."""
        queue = self.topics.open(self.topics.parse("t"), NOW)
        return self.topics.subscribe(queue, "s", queue.log.start, NOW, is_durable=True)

    def acknowledge(self, until: int) -> None:
        durable = self.subscription()
        self.topics.joined(durable)
        durable.subscription.cursor.ack_until(until)
        self.topics.tick(NOW + 1000)

    def killed(self) -> "PulsarLife":
        """Return the next life, on what is on disk now."""
        self.store.flush()
        copy = self.root.with_name(f"{self.root.name}-killed")
        shutil.copytree(self.root, copy)
        self.store.close()
        return PulsarLife(copy)


def test_a_subscription_that_is_made_again_after_a_kill_does_not_go_on_where_the_deleted_one_was(
    tmp_path: Path,
) -> None:
    life = PulsarLife(tmp_path / "store")
    life.send(4)
    life.acknowledge(3)
    life.topics.unsubscribe(life.subscription(), NOW + 1500)

    again = life.killed()

    assert again.subscription().subscription.cursor.next_offset == 0
    again.store.close()


def test_subscriptions_of_a_topic_that_was_deleted_skip_nothing_of_the_next_one_after_a_kill(tmp_path: Path) -> None:
    life = PulsarLife(tmp_path / "store")
    life.send(4)
    life.acknowledge(3)
    life.broker.topic_requests.delete(["t"], NOW + 1500)
    life.send(4)

    again = life.killed()

    assert again.topics.queues == {}
    assert again.subscription().subscription.cursor.next_offset == 0
    again.store.close()


def test_a_topic_that_was_deleted_before_a_kill_leaves_nothing_to_the_next_one(tmp_path: Path) -> None:
    life = PulsarLife(tmp_path / "store")
    life.send(4)
    life.acknowledge(3)
    life.topics.register("t", Schema(1, b"", ()))
    life.topics.terminate("t", NOW)
    config = tmp_path / "store" / "config"
    facts = (config / "pulsarTopics.json").read_bytes()
    life.broker.topic_requests.delete(["t"], NOW + 1500)
    (config / "pulsarTopics.json").write_bytes(facts)  # the kill came before this was saved

    again = life.killed()
    again.send(4)

    queue = again.subscription().queue
    assert (queue.generation, again.topics.schemas("t")) == (2, ())
    third = again.killed()
    assert third.subscription().queue.generation == 2
    assert not third.broker.topics.is_terminated("t")
    third.store.close()


def test_what_is_known_of_a_topic_stays_while_its_queues_do(tmp_path: Path) -> None:
    life = PulsarLife(tmp_path / "store")
    life.send(4)
    life.acknowledge(3)
    life.topics.register("t", Schema(1, b"", ()))
    (tmp_path / "store" / "config" / "topics.json").unlink()
    (tmp_path / "store" / "config" / "topics.json.bak").unlink(missing_ok=True)

    again = life.killed()
    again.send(1)

    assert (again.subscription().queue.generation, again.subscription().queue.log.end) == (1, 5)
    assert [*again.topics.schemas("t")] == [Schema(1, b"", ())]
    again.store.close()


def test_a_topic_that_was_made_again_before_a_kill_that_came_before_anything_was_saved_is_read_from_its_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    life = PulsarLife(tmp_path / "store")
    life.send(4)
    life.acknowledge(3)
    config = tmp_path / "store" / "config"
    shutil.copytree(config, tmp_path / "saved")
    life.broker.topic_requests.delete(["t"], NOW + 1500)
    life.send(2)
    shutil.rmtree(config)
    shutil.copytree(tmp_path / "saved", config)

    again = life.killed()
    durable = again.subscription()
    third = again.killed()

    assert (durable.queue.generation, durable.subscription.cursor.next_offset, durable.queue.log.end) == (2, 0, 2)
    assert "the topic t was deleted" in caplog.text
    third_state = third.subscription()
    assert (third_state.queue.generation, third_state.subscription.backlog) == (2, 2)
    third.store.close()


def test_subscriptions_begin_anew_with_the_queues_of_a_topic_whose_messages_had_all_expired(tmp_path: Path) -> None:
    life = PulsarLife(tmp_path / "store")
    life.send(4)
    life.acknowledge(4)
    life.topics.deduplicate("t", True)
    former = life.subscription().queue
    former.deduplication.stored("p", 7)
    assert former.log.entry(0).payload
    while life.store.log.first_segment() is None:
        life.send(1000, "other")
    life.store.log.remove_first()()

    life.broker.topic_requests.delete_expired_queues()
    life.send(2)

    durable = life.subscription()
    assert [state.backlog for state in life.topics.states()] == [2]
    assert (durable.queue.generation, durable.queue.log.end) == (2, 2)
    assert durable.queue.deduplication.highest_of("p") == 7
    again = life.killed()
    durable = again.subscription()
    assert (durable.queue.generation, durable.subscription.backlog) == (2, 2)
    assert durable.queue.deduplication.highest_of("p") == 7
    again.store.close()


def test_a_reset_to_where_a_subscription_is_brings_back_what_was_acknowledged_after_it(tmp_path: Path) -> None:
    life = PulsarLife(tmp_path / "store")
    life.send(4)
    durable = life.subscription()
    life.topics.joined(durable)
    durable.subscription.ack(2)
    life.topics.tick(NOW + 1000)

    life.broker.offsets.reset("s", "t", 0, 0)

    assert [state.backlog for state in life.topics.states()] == [4]
    durable.subscription.ack(2)
    assert [state.backlog for state in life.topics.states()] == [3], "once"
    life.store.close()


def test_a_reset_is_left_to_rocketmq_consumers_of_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = PulsarLife(tmp_path / "store")
    life.send(4)
    life.acknowledge(3)
    group = SimpleNamespace(subscriptions={"t": None})
    monkeypatch.setattr(life.broker.clients, "group", lambda name: group if name == "s" else None)

    life.broker.offsets.reset("s", "t", 0, 1)
    [state] = life.topics.states()

    assert state.consumer_offset == 1
    assert life.broker.offsets.take_reset("s", "t", 0) == 1
    life.store.close()


def test_messages_that_are_removed_are_told_while_nobody_is_connected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    life = PulsarLife(tmp_path / "store")
    life.subscription()
    while life.store.log.first_segment() is None:
        life.send(1000)
    remove = life.store.log.remove_first()
    log = life.subscription().queue.log
    assert 0 < log.start < log.end

    life.topics.tick(NOW + 1000)

    [state] = life.topics.states()
    assert (state.consumer_offset, state.backlog) == (log.start, log.end - log.start)
    assert f"{log.start} messages were removed" in caplog.text
    remove()
    life.store.close()


@pytest.mark.parametrize("is_durable", [True, False])
def test_a_reader_and_consumers_do_not_share_a_position(is_durable: bool, tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            asyncio.timeout(60),
            mqtool.Broker(tmp_path / "store", pulsar=True) as broker,
            connected(broker.pulsar_url) as client,
        ):
            wanted = {"topic": "t", "subscription": "s", "subType": 1, "initialPosition": 1}
            assert await client.outcome("subscribe", **wanted, consumer_id=0, durable=is_durable) == ""
            if is_durable:
                await client.ask("close_consumer", consumer_id=0)

            answer = await client.ask("subscribe", **wanted, consumer_id=1, durable=not is_durable)

            assert (answer.name, answer.body.error) == ("error", 22)
            assert await client.outcome("subscribe", **wanted, consumer_id=2, durable=is_durable) == ""

    asyncio.run(test())


async def _made(broker: mqtool.Broker, queues: int) -> None:
    """Make the topic ``t`` with so many queues, or give it more."""
    fields: dict[str, Any] = {"topic": "t", "defaultTopic": "TBW102", "perm": 6, "topicFilterType": "SINGLE_TAG"}
    fields |= {"readQueueNums": queues, "writeQueueNums": queues, "order": False}
    admin = WireClient(broker.address)
    await admin.done(RequestCode.UPDATE_AND_CREATE_TOPIC, **fields)
    await admin.close()


async def _subscribe(client: PulsarWire, partition: int, number: int, **fields: Any) -> None:
    wanted = {"topic": f"t-partition-{partition}", "subscription": "s", "subType": 1, **fields}
    assert await client.outcome("subscribe", **wanted, consumer_id=number) == ""


def test_a_subscription_gets_all_of_the_partitions_that_a_topic_gets_later(tmp_path: Path) -> None:
    """By default a consumer begins with what comes after it, and a producer may find the partitions first."""

    async def test() -> None:
        async with (
            asyncio.timeout(60),
            mqtool.Broker(tmp_path / "store", pulsar=True) as broker,
            connected(broker.pulsar_url) as client,
        ):
            await _made(broker, 1)
            await _subscribe(client, 0, 0)
            earliest = {"ledgerId": BEFORE_ALL, "entryId": BEFORE_ALL}
            await _subscribe(client, 0, 1, subscription="reader", durable=False, start_message_id=earliest)
            await _made(broker, 3)
            assert await client.outcome("producer", topic="t-partition-2", producer_id=0) == ""
            client.send(0, b"early")
            await client.next("send_receipt")

            await _subscribe(client, 2, 2)
            await _subscribe(client, 2, 3, subscription="new")
            client.say("flow", consumer_id=2, messagePermits=10)
            client.say("flow", consumer_id=3, messagePermits=10)
            assert (await client.next("message")).consumer_id == 2
        async with (
            asyncio.timeout(60),
            mqtool.Broker(tmp_path / "store", pulsar=True) as broker,
            connected(broker.pulsar_url) as client,
        ):
            await _subscribe(client, 2, 2)
            client.say("flow", consumer_id=2, messagePermits=10)
            assert (await client.next("message")).message_id.partition == 2

    asyncio.run(test())


def test_a_queue_that_has_lost_units_is_told_and_nothing_of_it_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    door = DoorAtWork(tmp_path / "store")
    door.produce()
    for _ in range(5):
        door.send_by_rocketmq()
    door.store.write_units()
    [file] = (tmp_path / "store" / "consumequeue" / "t" / "0").iterdir()
    os.truncate(file, 2 * 20)
    door.send_by_rocketmq()
    door.store.write_units()
    door.say("subscribe", topic="t", subscription="s", subType=1, initialPosition=1, consumer_id=1, request_id=1)

    told = door.say("flow", consumer_id=1, messagePermits=10)

    assert told == []
    [durable] = door.door.topics.queues["t", 0].subscriptions.values()
    assert durable.subscription.backlog == 6
    assert f"cannot deliver to subscription s of persistent://public/default/t: {file} has lost units" in caplog.text
    assert "Traceback" not in caplog.text
    door.close()


def test_acknowledgements_are_saved_and_a_failover_takes_place_although_the_clock_was_set_back(tmp_path: Path) -> None:
    door = DoorAtWork(tmp_path / "store")
    door.produce()
    for number in range(3):
        door.send(number)
    for consumer_id in (1, 2):
        wanted: dict[str, Any] = {"topic": "t", "subscription": "s", "subType": 2, "initialPosition": 1}
        door.say("subscribe", **wanted, consumer_id=consumer_id, request_id=consumer_id)
        door.say("flow", consumer_id=consumer_id, messagePermits=10)
    [durable] = door.door.topics.queues["t", 0].subscriptions.values()
    past = NOW - 3_600_000

    assert door.door.next_tick(past) == past
    told = [parse_frame(b"".join(frame)[4:]).name for now in (past, past + 1000) for _, frame in door.door.tick(now)]
    durable.subscription.ack_until(0)
    door.door.tick(past + 2000)

    assert told.count("message") == 3
    assert not durable.subscription.cursor.is_changed, "it is saved"
    door.close()
