"""How much one command, or one turn, has to do: it does not grow with what other clients have."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqtool.engine.broker.settings import BrokerSettings
from mqtool.engine.pulsar import topics as topics_module
from mqtool.engine.pulsar.cursor_files import load_cursors
from mqtool.engine.pulsar.subscription import PulsarSubscription
from mqtool.engine.pulsar.wire import command
from mqtool.formats.config_tables import TopicConfig
from tests.engine.test_pulsar_deduplication import NOW, DoorAtWork

pytest.importorskip("google.protobuf")
MANY = 300


@pytest.fixture
def work(tmp_path: Path) -> Iterator[DoorAtWork]:
    work = DoorAtWork(tmp_path / "store")
    yield work
    work.close()


def calls_of(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """Return the first arguments of all calls of a function from now on."""
    calls: list[Any] = []
    function = getattr(owner, name)

    def counted(first: Any, *others: Any) -> Any:
        calls.append(first)
        return function(first, *others)

    monkeypatch.setattr(owner, name, counted)
    return calls


def subscribe(work: DoorAtWork, count: int) -> None:
    for number in range(count):
        fields: dict[str, Any] = {"topic": "t", "subscription": f"s{number}", "subType": 1, "initialPosition": 1}
        work.say("subscribe", **fields, consumer_id=number, request_id=number)
        work.say("flow", consumer_id=number, messagePermits=1000)


def test_an_acknowledgement_is_no_reason_to_look_at_other_subscriptions(
    work: DoorAtWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.produce()
    subscribe(work, MANY)
    work.send_by_rocketmq()
    while work.door.next_tick(NOW) <= NOW:
        work.door.tick(NOW)
    calls = calls_of(monkeypatch, PulsarSubscription, "dispatch")

    place = command("ack", consumer_id=7, ack_type=0).ack.message_id.add(ledgerId=1, entryId=0)
    work.say("ack", consumer_id=7, ack_type=0, message_id=[place])

    assert [subscription.name for subscription in calls] == ["s7"]
    assert calls[0].backlog == 0


def test_a_message_reaches_all_subscriptions_in_several_turns(
    work: DoorAtWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.produce()
    subscribe(work, MANY)
    calls = calls_of(monkeypatch, PulsarSubscription, "dispatch")

    work.send_by_rocketmq()

    work.door.tick(NOW)
    assert 0 < len(calls) < 20
    turns = 0
    while work.door.next_tick(NOW) <= NOW:
        work.door.tick(NOW)
        turns += 1
    assert turns > MANY // 20
    assert {subscription.given for subscription in calls} == {1}
    assert len({subscription.name for subscription in calls}) == MANY


def test_changed_subscriptions_are_saved_in_several_turns_and_all_of_them(
    work: DoorAtWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.produce()
    work.send_by_rocketmq()
    subscribe(work, MANY)
    for durable in work.door.topics.queues["t", 0].subscriptions.values():
        durable.subscription.ack(0)
    calls = calls_of(monkeypatch, topics_module.PulsarTopics, "_commit")
    saved = calls_of(monkeypatch, type(work.broker.offsets), "keep")

    work.door.topics.tick(NOW + 1000)

    assert 0 < len(calls) < MANY
    assert not saved
    while work.door.topics.next_tick() == 0:
        work.door.topics.tick(NOW + 1000)
    assert (len(calls), len(saved)) == (MANY, 1)
    offsets = {work.broker.offsets.get(f"s{number}", "t", 0) for number in range(MANY)}
    assert offsets == {1}


def add_topics(work: DoorAtWork, names: list[str]) -> None:
    work.broker.topics.put([TopicConfig(name, 1, 1, 6, False, "SINGLE_TAG", 0, attributes={}) for name in names], NOW)


def test_a_list_of_topics_parses_only_the_names_of_new_ones(work: DoorAtWork, monkeypatch: pytest.MonkeyPatch) -> None:
    def names() -> list[str]:
        [(_, body, _)] = work.say("get_topics", namespace="public/default", request_id=1)
        return [name.removeprefix("persistent://public/default/") for name in body.topics]

    add_topics(work, [f"t{number}" for number in range(MANY)])
    assert len(names()) == MANY
    calls = calls_of(monkeypatch, topics_module, "pulsar_topic")

    assert len(names()) == MANY
    assert calls == []
    add_topics(work, ["new", "%RETRY%new"])
    assert "new-partition-0" in names()
    assert calls == ["new"]


def test_what_a_list_calls_a_topic_follows_its_deletion_and_creation(work: DoorAtWork) -> None:
    def names() -> list[str]:
        [*_, (_, body, _)] = work.say("get_topics", namespace="public/default", request_id=1)
        return [name.removeprefix("persistent://public/default/") for name in body.topics]

    long = "x" * 200  # RocketMQ has only its digest
    work.say("subscribe", topic=long, subscription="s", consumer_id=0, request_id=1, subType=0)
    assert names() == [long]
    [topic] = [topic for topic in work.broker.topics.configs if topic.startswith("h|")]
    work.broker.topic_requests.delete([topic], NOW)
    add_topics(work, [topic])  # by RocketMQ, which knows no other name
    assert names() == []


def test_a_request_in_a_namespace_parses_no_other_names(work: DoorAtWork, monkeypatch: pytest.MonkeyPatch) -> None:
    def partitions(topic: str) -> int:
        [(_, body, _)] = work.say("partitioned_metadata", topic=f"persistent://mine/own/{topic}", request_id=1)
        return int(body.error or body.partitions)

    add_topics(work, [f"mine|own|t{number}" for number in range(MANY)])
    assert partitions("t0") == 1
    calls = calls_of(monkeypatch, topics_module, "pulsar_topic")

    assert partitions("t299") == 1
    assert calls == []
    work.broker.topic_requests.delete([f"mine|own|t{number}" for number in range(MANY - 1)], NOW)
    assert partitions("t299") == 1
    work.broker.topic_requests.delete(["mine|own|t299"], NOW)
    assert partitions("t299") != 1


def test_the_deletion_of_a_topic_looks_at_its_own_clients_only(work: DoorAtWork) -> None:
    class CountedQueues(dict[Any, Any]):
        passes = 0

        def items(self) -> Any:
            self.passes += 1
            return super().items()

    add_topics(work, [f"t{number}" for number in range(MANY)])
    for number in range(MANY):
        fields: dict[str, Any] = {"topic": f"t{number}", "subscription": "s", "subType": 1}
        work.say("subscribe", **fields, consumer_id=number, request_id=number)
        work.say("producer", topic=f"t{number}", producer_id=number, request_id=number)
    queues = work.door.topics.queues = CountedQueues(work.door.topics.queues)
    consumers = work.door.session(work.peer).consumers = CountedQueues(work.door.session(work.peer).consumers)

    work.broker.topic_requests.delete(["t7", "t8"], NOW)

    told = {(name, getattr(body, f"{name.removeprefix('close_')}_id")) for name, body, _ in work.say("ping")[:-1]}
    assert told == {(f"close_{kind}", number) for kind in ("producer", "consumer") for number in (7, 8)}
    assert (queues.passes, len(queues), len(consumers)) == (0, MANY - 2, MANY - 2)


def test_a_skip_of_everything_reads_nothing(work: DoorAtWork, monkeypatch: pytest.MonkeyPatch) -> None:
    work.produce()
    for number in range(20):
        work.send(number, highest=number, count=4)
    queue = work.door.topics.queues["t", 0]
    subscription = work.door.topics.subscribe(queue, "s", 0, NOW, is_durable=True).subscription
    for number in range(20):
        subscription.ack(4 * number, 0b1100)
    reads = calls_of(monkeypatch, type(queue.log), "entry")

    subscription.skip(subscription.backlog)

    assert (subscription.backlog, subscription.cursor.left, reads) == (0, {}, [])


def test_a_position_is_saved_as_often_as_the_setting_says(tmp_path: Path) -> None:
    work = DoorAtWork(tmp_path / "store", BrokerSettings(pulsar_save_interval_ms=3000))

    def saved() -> list[int]:
        return [kept.cursor.next_offset for _, kept in load_cursors(tmp_path / "store" / "config")]

    work.produce()
    subscribe(work, 1)
    work.send_by_rocketmq()
    place = command("ack", consumer_id=0, ack_type=0).ack.message_id.add(ledgerId=1, entryId=0)
    work.say("ack", consumer_id=0, ack_type=0, message_id=[place])
    work.door.tick(NOW + 2999)
    assert saved() == [0]

    work.door.tick(NOW + 3000)
    assert saved() == [1]
    work.close()
