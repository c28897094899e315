"""Consumers on a broker: every message of their share, again what failed, in order where that is wanted."""

import asyncio
import collections
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

import mqtool
from mqtool import ConsumeFrom, ConsumerMessage, ConsumeStatus, MessageModel, ProducerMessage, PushConsumerOptions
from mqtool.engine.client import calls, fetching
from mqtool.engine.client.consuming import StartPosition, where_to_begin
from mqtool.engine.client_runtime.consume_services import ConsumeContext
from mqtool.engine.client_runtime.consumer import _Troubles
from mqtool.errors import UnavailableError, UsageError
from mqtool.formats.bodies import MessageQueue, by_queue, parse_body
from mqtool.formats.codes import RequestCode
from mqtool.formats.headers import OffsetResponse, parse_header
from mqtool.formats.remoting import RemotingCommand
from tests.commands.test_serve import ask
from tests.ports import free_port
from tests.traces import exchanges

FIRST: dict[str, Any] = {"consume_from_where": ConsumeFrom.FIRST_OFFSET}
PATIENCE = 60  # s; a test that waits so long has failed


def until(is_so: Callable[[], bool]) -> None:
    """Return when a condition holds."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


class Listener:
    """Counts what it is given, and answers as it is told for each body."""

    def __init__(self, **answers: list[ConsumeStatus]) -> None:
        self.seen: list[ConsumerMessage] = []
        self._answers = {body.encode(): statuses for body, statuses in answers.items()}
        self._changed = threading.Condition()

    def __call__(self, messages: Sequence[ConsumerMessage], _context: ConsumeContext) -> ConsumeStatus:
        with self._changed:
            self.seen += messages
            self._changed.notify_all()
        answers = self._answers.get(messages[0].body)
        return answers.pop(0) if answers else ConsumeStatus.SUCCESS

    def wait_for(self, count: int) -> list[bytes]:
        """Return the bodies once there are so many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.seen) >= count, PATIENCE), len(self.seen)
            return [one.body for one in self.seen]


@pytest.fixture
def broker() -> Iterator[mqtool.Broker]:
    with mqtool.Broker(settings={"enablePropertyFilter": True}) as running:
        yield running


def send(broker: mqtool.Broker, bodies: Sequence[bytes], **more: Any) -> None:
    with mqtool.Producer("P", broker.name_server_address) as producer:
        for body in bodies:
            producer.send(ProducerMessage("Orders", body, **more))


def consumer(broker: mqtool.Broker, listener: Any, expression: str = "*", **options: Any) -> mqtool.PushConsumer:
    given = {**FIRST, "persist_consumer_offset_interval": 100, **options}
    made = mqtool.PushConsumer("G", listener, broker.name_server_address, PushConsumerOptions(**given))
    made.subscribe("Orders", expression, is_sql92=expression.startswith("a "))
    return made


def topics_of(broker: mqtool.Broker) -> set[str]:
    """Return the topics that messages of the log are of."""
    return {one.topic for one in mqtool.open_store(broker.store).messages()}


def committed(broker: mqtool.Broker) -> int:
    """Return how much the group has consumed of all queues together."""
    commands = [fetching.committed_offset("G", MessageQueue("Orders", "broker-a", at)).command for at in range(4)]
    answers = ask(broker.address, *commands)
    return sum(parse_header(OffsetResponse, one.ext_fields).offset for one in answers if one.code == 0)


BODIES = [str(number).encode() for number in range(100)]


def test_every_message_comes_once_and_is_committed(broker: mqtool.Broker) -> None:
    send(broker, BODIES)
    listener = Listener()
    with consumer(broker, listener):
        assert sorted(listener.wait_for(100)) == sorted(BODIES)
    assert committed(broker) == 100
    again = Listener()
    with consumer(broker, again):
        send(broker, [b"new"])
        assert again.wait_for(1) == [b"new"]


def test_a_new_group_on_a_young_topic_gets_all_of_it_as_brokers_have_it(broker: mqtool.Broker) -> None:
    send(broker, BODIES)
    listener = Listener()
    with consumer(broker, listener, consume_from_where=ConsumeFrom.LAST_OFFSET):
        assert sorted(listener.wait_for(100)) == sorted(BODIES)


@pytest.mark.parametrize(
    ("topic", "consume_from", "start"),
    [
        ("T", ConsumeFrom.LAST_OFFSET, StartPosition.MAX),
        ("T", ConsumeFrom.FIRST_OFFSET, StartPosition.FIRST),
        ("T", ConsumeFrom.TIMESTAMP, StartPosition.TIME),
        ("%RETRY%G", ConsumeFrom.LAST_OFFSET, StartPosition.FIRST),
        ("%RETRY%G", ConsumeFrom.FIRST_OFFSET, StartPosition.FIRST),
        ("%RETRY%G", ConsumeFrom.TIMESTAMP, StartPosition.MAX),
    ],
)
def test_a_group_that_has_consumed_nothing_begins_where_java_begins(
    topic: str, consume_from: ConsumeFrom, start: StartPosition
) -> None:
    assert where_to_begin(topic, consume_from) is start


def test_tags_and_sql_choose(broker: mqtool.Broker) -> None:
    send(broker, [b"both", b"both"], tags="A", properties={"a": "5"})
    send(broker, [b"tag"], tags="A", properties={"a": "1"})
    send(broker, [b"sql"], tags="B", properties={"a": "5"})
    for expression, wanted in (("A || C", [b"both", b"both", b"tag"]), ("a > 3", [b"both", b"both", b"sql"])):
        listener = Listener()
        made = mqtool.PushConsumer(
            f"G{len(expression)}", listener, broker.name_server_address, PushConsumerOptions(**FIRST)
        )
        made.subscribe("Orders", expression, is_sql92=expression.startswith("a "))
        with made:
            assert sorted(listener.wait_for(3)) == wanted


def test_what_failed_comes_again_with_its_topic_and_a_count() -> None:
    clock = mqtool.VirtualClock()
    with mqtool.Broker(clock=clock) as broker:
        send(broker, [b"good", b"bad"])
        listener = Listener(bad=[ConsumeStatus.LATER])
        with consumer(broker, listener):
            listener.wait_for(2)
            until(lambda: "SCHEDULE_TOPIC_XXXX" in topics_of(broker))
            clock.advance(11)
            assert sorted(listener.wait_for(3)) == [b"bad", b"bad", b"good"]
    again = listener.seen[-1]
    assert (again.topic, again.reconsume_times, again.body) == ("Orders", 1, b"bad")


def test_an_exception_is_a_failure_and_the_last_attempt_makes_a_dead_letter(broker: mqtool.Broker) -> None:
    def listener(messages: Sequence[ConsumerMessage], _context: ConsumeContext) -> None:
        raise ZeroDivisionError(messages[0].body)

    send(broker, [b"bad"])
    with consumer(broker, listener, max_reconsume_times=0):
        until(lambda: "%DLQ%G" in topics_of(broker))


def test_two_members_share_the_queues_and_one_takes_over(broker: mqtool.Broker) -> None:
    send(broker, BODIES)
    one, two = Listener(), Listener()
    with consumer(broker, one) as first:
        one.wait_for(100)
        with consumer(broker, two) as second:
            until(lambda: len(first.queues()) == len(second.queues()) == 2)
            assert not {*first.queues()} & {*second.queues()}
            send(broker, BODIES)
        until(lambda: len(first.queues()) == 4)
        send(broker, [b"after"] * 4)
        until(lambda: one.seen[-1].body == b"after")
    counts = collections.Counter(message.body for message in one.seen + two.seen)
    assert all(counts[body] >= 2 for body in BODIES)  # each time at least once


def test_in_order_means_one_after_the_other_until_it_succeeds(broker: mqtool.Broker) -> None:
    with mqtool.Producer("P", broker.name_server_address) as producer:
        queue = producer.queues("Orders")[0]
        for body in BODIES:
            producer.send(ProducerMessage("Orders", body), queue)
    listener = Listener(**{"7": [ConsumeStatus.LATER, ConsumeStatus.LATER]})
    with consumer(broker, listener, orderly=True, suspend_current_queue_time_millis=10):
        expected = [*BODIES[:8], b"7", b"7", *BODIES[8:]]
        assert listener.wait_for(102) == expected
    assert [one.reconsume_times for one in listener.seen if one.body == b"7"] == [0, 1, 2]
    assert committed(broker) == 100


def test_broadcasts_come_to_everybody_and_their_offsets_stay_here(broker: mqtool.Broker, tmp_path: Path) -> None:
    send(broker, BODIES)
    for name in ("one", "two"):
        listener = Listener()
        made = consumer(
            broker,
            listener,
            message_model=MessageModel.BROADCASTING,
            instance_name=name,
            offsets_folder=tmp_path,
        )
        with made:
            assert sorted(listener.wait_for(100)) == sorted(BODIES)
        [path] = (tmp_path / made.client_id / "G").glob("offsets.json")
        assert sum(questions_of(path)) == 100
    assert committed(broker) == 0


def questions_of(path: Path) -> list[int]:
    text = path.read_bytes()
    assert text.startswith(b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"Orders"}:'), text
    return [int(part.split(b",")[0].rstrip(b"}")) for part in text.split(b"}:")[1:]]


def test_flow_control_pulls_no_more_than_the_threshold(broker: mqtool.Broker) -> None:
    with mqtool.Producer("P", broker.name_server_address) as producer:
        queue = producer.queues("Orders")[0]
        producer.send_batch([ProducerMessage("Orders", body) for body in BODIES], queue)
    gate = threading.Semaphore(0)
    listener = Listener()

    def held_up(messages: Sequence[ConsumerMessage], context: ConsumeContext) -> ConsumeStatus:
        gate.acquire()
        return listener(messages, context)

    thresholds = mqtool.Thresholds(count=5)
    with consumer(broker, held_up, thresholds=thresholds, pull_batch_size=3, consume_thread_max=1) as running:
        for _ in BODIES:
            held = next(iter(running._client._held.values()), None)
            gate.release()
            assert held is None or held.waiting.count <= 5 + 3
        listener.wait_for(100)
    assert [one.body for one in listener.seen] == BODIES


def test_what_makes_no_sense_is_one_sentence(broker: mqtool.Broker) -> None:
    made = mqtool.PushConsumer("G", Listener(), broker.name_server_address)
    with pytest.raises(UsageError, match="not subscribed"):
        made.start()
    with pytest.raises(UsageError, match="letters, digits"):
        made.subscribe("a b")
    with pytest.raises(UsageError, match="cannot be used as the name of a group"):
        mqtool.PushConsumer("DEFAULT_CONSUMER", Listener(), broker.name_server_address)


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_a_consumer_asks_as_java_asks(version: str) -> None:
    [beat, *_] = exchanges(f"java-{version}-push", RequestCode.HEART_BEAT)
    told = orjson.loads(beat.request.body)
    group = told["consumerDataSet"][0]["groupName"]
    topic = f"Trace_push_r{version.replace('.', '')}"
    theirs = {one["topic"]: one for one in told["consumerDataSet"][0]["subscriptionDataSet"]}
    made = mqtool.aio.PushConsumer(group, Listener(), "localhost:1", PushConsumerOptions(**FIRST))
    made.subscribe(topic, "TagA || TagB")
    ours = orjson.loads(calls.heartbeat(made._heartbeat()).command.body)["consumerDataSet"][0]
    for name in ("groupName", "consumeType", "messageModel", "consumeFromWhere", "unitMode"):
        assert ours[name] == told["consumerDataSet"][0][name]
    for one in ours["subscriptionDataSet"]:
        assert one | {"subVersion": 0} == theirs[one["topic"]] | {"subVersion": 0}
    pulls = [one.request.command for one in exchanges(f"java-{version}-push", RequestCode.PULL_MESSAGE)]
    assert len(pulls) >= 2
    for pull in pulls:
        fields = pull.ext_fields
        queue = MessageQueue(fields["topic"], "broker-a", int(fields["queueId"]))
        subscription = made._subscriptions[fields["topic"]]
        commit = max(0, int(fields["commitOffset"])) or None
        asked = fetching.pull(group, queue, int(fields["queueOffset"]), 32, subscription, commit_offset=commit).command
        # 4.9 tells no size, and what there is not to commit it calls -1.
        ours_too = {"subVersion": "", "bname": "broker-a", "maxMsgBytes": "262144", "commitOffset": str(commit or 0)}
        assert asked.ext_fields | ours_too == fields | ours_too


def test_administrators_see_and_move_a_consumer(broker: mqtool.Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqtool.engine.client_runtime.consumer._AFTER_MOVED_S", 0.5)
    send(broker, BODIES)
    listener = Listener()
    with consumer(broker, listener) as running:
        listener.wait_for(100)
        identity = {"consumerGroup": "G", "clientId": running.client_id}
        [info] = ask(broker.address, RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, ext_fields=identity))
        told = parse_body(info.body)
        retries = MessageQueue("%RETRY%G", "broker-a", 0)
        assert {*by_queue(told["mqTable"], "mqTable")} == {*running.queues(), retries}
        assert told["statusTable"]["Orders"]["consumeOKTPS"] > 0

        message_id = listener.seen[0].offset_message_id
        wanted = {**identity, "msgId": message_id, "brokerName": "broker-a", "topic": "Orders"}
        [came] = ask(broker.address, RemotingCommand(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext_fields=wanted))
        assert (came.code, parse_body(came.body)["consumeResult"]) == (0, "CR_SUCCESS")
        assert listener.wait_for(101)[-1] == listener.seen[0].body

        earliest = {"topic": "Orders", "group": "G", "timestamp": "0", "isForce": "true"}
        [reset] = ask(broker.address, RemotingCommand(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext_fields=earliest))
        assert reset.code == 0
        assert sorted(listener.wait_for(201)[101:]) == sorted(BODIES)


class CoroutineListener:
    """An object whose call is a coroutine."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    async def __call__(self, messages: Sequence[ConsumerMessage], _context: ConsumeContext) -> None:
        await asyncio.sleep(0)
        self.seen += [one.body for one in messages]


@pytest.mark.parametrize("kind", ["object", "function that returns a coroutine"])
def test_a_listener_is_awaited_whatever_makes_it_a_coroutine(kind: str, broker: mqtool.Broker) -> None:
    listener = CoroutineListener()
    send(broker, BODIES)
    with consumer(broker, listener if kind == "object" else lambda *given: listener(*given)):
        until(lambda: len(listener.seen) >= len(BODIES))
    assert sorted(listener.seen) == sorted(BODIES)


def test_a_broker_that_is_gone_is_told_once_and_so_is_its_return(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqtool.engine.client_runtime.consumer._AFTER_ERROR_S", 0.01)
    listener = Listener()
    ports: dict[str, Any] = {"port": free_port(), "name_server_port": free_port()}
    with mqtool.Broker(tmp_path / "store", **ports) as broker:
        send(broker, [b"before"])
        asking = consumer(broker, listener, heartbeat_broker_interval_ms=50)
        asking.start()
        until(lambda: len(listener.seen) == 1)
    held = asking._client._held.values()
    since = max(one.waiting.pulled_at for one in held)
    until(lambda: len(held) == 5 and all(one.waiting.pulled_at > since + 50 for one in held))  # some attempts each
    answering_at_once = {"longPollingEnable": False}  # also the pulls that find nothing
    with mqtool.Broker(tmp_path / "store", **ports, settings=answering_at_once) as broker:
        send(broker, [b"after"])
        until(lambda: len(listener.seen) == 2)
        until(lambda: sum("works again" in one.getMessage() for one in caplog.records) == 2)
        asking.close()

    said = [one.getMessage() for one in caplog.records if one.name.endswith("consumer")]
    for topic in ("Orders", "%RETRY%G"):
        what = f"pulling {topic} from broker-a"
        assert said.count(f"{what}: cannot connect to {broker.address} (Connection refused); retrying") == 1
        assert said.count(f"{what} works again") == 1
    assert len(said) == len({*said}) <= 10  # that its connection is closed, and that it does not know the group yet


def test_what_goes_wrong_with_one_queue_is_not_over_when_another_works(caplog: pytest.LogCaptureFixture) -> None:
    troubles, first, second = _Troubles(), MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)
    for _ in range(3):
        troubles.say("pulling T from b", UnavailableError("gone"), first)
        troubles.is_over("pulling T from b", second)
    assert [one.getMessage() for one in caplog.records] == ["pulling T from b: gone; retrying"]
    troubles.is_over("pulling T from b", first)
    assert caplog.records[-1].getMessage() == "pulling T from b works again"
    for whose in (first, second):
        troubles.say("pulling T from b", UnavailableError("gone"), whose)
        troubles.forget(whose)  # another member has the queue
    assert len(caplog.records) == 4
