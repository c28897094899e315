"""The rules of pulls: what is refused with which code, what is answered, what has to wait."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mqtool.engine.broker.waiting_room import PULLS
from mqtool.formats.bodies import ConsumerData, Heartbeat, Subscription, build_heartbeat
from mqtool.formats.codes import PullSysFlag, RequestCode, ResponseCode
from mqtool.formats.config_tables import TopicConfig
from mqtool.formats.hashing import java_hash
from mqtool.formats.message import message_of
from mqtool.formats.peer import Peer
from mqtool.formats.remoting import Outgoing, RemotingCommand
from tests.engine.broker.asking import Asking, body_of, broker_at_work
from tests.engine.store.live import new_message

GROUP, TOPIC = "G", "T"
HOLD_MS = 15_000


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Asking]:
    """Give a broker with a topic of two queues."""
    with broker_at_work(tmp_path) as found:
        found.broker.topics.put([topic_of(TOPIC)], found.now)
        yield found


def topic_of(name: str, perm: int = 6) -> TopicConfig:
    return TopicConfig(name, 2, 2, perm, False, "SINGLE_TAG", 0, {})


def subscribe(
    asking: Asking,
    expression: str = "*",
    kind: str = "TAG",
    version: int = 1,
    model: str = "CLUSTERING",
    group: str = GROUP,
    codes: tuple[int, ...] = (),
    peer: Peer | None = None,
    client_id: str = "c1",
) -> None:
    subscription = Subscription(TOPIC, expression, kind, (), codes, version)
    data = ConsumerData(group, "CONSUME_PASSIVELY", model, "CONSUME_FROM_FIRST_OFFSET", (subscription,))
    beat = build_heartbeat(Heartbeat(client_id, ("P",), (data,)))
    outgoing = asking.handle(RequestCode.HEART_BEAT, beat, peer)
    assert outgoing[-1][1].code == 0


def fields(**given: Any) -> dict[str, Any]:
    return {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": 0,
        "commitOffset": 0,
        "suspendTimeoutMillis": HOLD_MS,
        "subVersion": 1,
        **given,
    }


def pull(asking: Asking, code: int = RequestCode.PULL_MESSAGE, **given: Any) -> RemotingCommand:
    return asking.ask(code, **fields(**given))


def bodies(answer: RemotingCommand) -> list[bytes]:
    found, body = [], body_of(answer)
    while body:
        size = int.from_bytes(body[:4], "big")
        found.append(message_of(body[:size], 0).body)
        body = body[size:]
    return found


def send(asking: Asking, *texts: str, tag: str | None = None, queue_id: int = 0, **pairs: str) -> None:
    for text in texts:
        given = {**({"TAGS": tag} if tag else {}), **pairs}
        asking.append(new_message(TOPIC, text.encode(), queue_id=queue_id, pairs=given))


def offsets(answer: RemotingCommand) -> tuple[int, int, int]:
    assert answer.ext_fields["suggestWhichBrokerId"] == "0"
    return tuple(int(answer.ext_fields[name]) for name in ("nextBeginOffset", "minOffset", "maxOffset"))  # type: ignore[return-value]


def test_every_status_has_its_code_and_its_three_offsets(asking: Asking) -> None:
    subscribe(asking)
    empty = [pull(asking, queueOffset=offset, queueId=1) for offset in (0, 5)]
    send(asking, "a", "b", "c")
    some = [pull(asking, queueOffset=offset) for offset in (0, 2, 3, 4, -1)]

    assert [(one.code, one.remark, *offsets(one)) for one in (*empty, *some)] == [
        (19, "NO_MATCHED_LOGIC_QUEUE", 0, 0, 0),
        (21, "NO_MATCHED_LOGIC_QUEUE", 0, 0, 0),
        (0, "FOUND", 3, 0, 3),
        (0, "FOUND", 3, 0, 3),
        (19, "OFFSET_OVERFLOW_ONE", 3, 0, 3),
        (21, "OFFSET_OVERFLOW_BADLY", 3, 0, 3),
        (21, "OFFSET_TOO_SMALL", 0, 0, 3),
    ]
    assert [bodies(one) for one in some] == [[b"a", b"b", b"c"], [b"c"], [], [], []]


def test_what_is_checked_first_is_refused_in_this_order(asking: Asking) -> None:
    broker = asking.broker
    broker.topics.put([topic_of("WriteOnly", perm=2)], asking.now)
    broker.groups.update({"groupName": "Off", "consumeEnable": False}, asking.now)
    broker.groups.update({"groupName": "NoBroadcast", "consumeBroadcastEnable": False}, asking.now)

    def code(**given: Any) -> tuple[int, str | None]:
        answer = pull(asking, **given)
        assert answer.remark
        return answer.code, answer.ext_fields.get("forbiddenType")

    assert code(consumerGroup="Off", topic="Nothing") == (ResponseCode.NO_PERMISSION, "2")
    assert code(topic="Nothing", queueId=9) == (ResponseCode.TOPIC_NOT_EXIST, None)
    assert code(topic="WriteOnly", queueId=9) == (ResponseCode.NO_PERMISSION, "3")
    assert code(queueId=2) == code(queueId=-1) == (ResponseCode.INVALID_PARAMETER, None)
    assert code() == (ResponseCode.SUBSCRIPTION_NOT_EXIST, None)
    subscribe(asking, model="BROADCASTING", group="NoBroadcast")
    assert code(consumerGroup="NoBroadcast") == (ResponseCode.NO_PERMISSION, "4")
    subscribe(asking, version=5)
    assert code(topic="TBW102") == (ResponseCode.SUBSCRIPTION_NOT_EXIST, None)
    assert code(subVersion=6) == (ResponseCode.SUBSCRIPTION_NOT_LATEST, None)
    broker.groups.set_readable(GROUP, TOPIC, False, asking.now)
    assert code() == (ResponseCode.NO_PERMISSION, "5")
    broker.groups.set_readable(GROUP, TOPIC, True, asking.now)
    assert pull(asking, subVersion=5).code == ResponseCode.PULL_NOT_FOUND
    assert code(consumerGroup="no name") == (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, None)
    broker.groups.creates = False
    assert code(consumerGroup="Unknown") == (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, None)


def test_tags_of_a_heartbeat_and_of_a_header_choose_alike(asking: Asking) -> None:
    send(asking, "a1", "a2", tag="A")
    send(asking, "b1", tag="B")
    send(asking, "c1", tag="C")
    header: dict[str, Any] = {"sysFlag": PullSysFlag.SUBSCRIPTION, "consumerGroup": "Other"}
    for expression, expected in {
        "*": [b"a1", b"a2", b"b1", b"c1"],
        "A": [b"a1", b"a2"],
        "B || C": [b"b1", b"c1"],
    }.items():
        subscribe(asking, expression, version=asking.now)
        asking.now += 1
        assert bodies(pull(asking)) == expected
        assert bodies(pull(asking, subscription=expression, **header)) == expected
        assert bodies(pull(asking, subscription=expression, expressionType="TAG", **header)) == expected
    answer = pull(asking, subscription="D", **header)
    assert (answer.code, *offsets(answer)) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 4, 0, 4)
    assert pull(asking, subscription="||", **header).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_codes_that_a_client_sends_for_its_tags_are_taken_as_they_are(asking: Asking) -> None:
    send(asking, "a", tag="A")
    send(asking, "b", tag="B")

    subscribe(asking, "A", codes=(java_hash("B"),))

    assert bodies(pull(asking)) == [b"b"]


def test_sql92_chooses_by_properties(asking: Asking) -> None:
    send(asking, "cheap", price="3")
    send(asking, "dear", price="30")
    send(asking, "odd", price="much")
    header: dict[str, Any] = {"sysFlag": PullSysFlag.SUBSCRIPTION, "expressionType": "SQL92", "consumerGroup": "Other"}

    subscribe(asking, "price > 10", "SQL92")

    assert bodies(pull(asking)) == bodies(pull(asking, subscription="price > 10", **header)) == [b"dear"]
    assert pull(asking, subscription="price >", **header).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    subscribe(asking, "price >", "SQL92", version=2)
    assert pull(asking, subVersion=2).code == ResponseCode.FILTER_DATA_NOT_EXIST


def test_a_pull_commits_the_offset_that_it_brings_if_it_says_so(asking: Asking) -> None:
    subscribe(asking)
    pull(asking, commitOffset=7)
    assert asking.broker.offsets.get(GROUP, TOPIC, 0) == -1
    pull(asking, commitOffset=7, sysFlag=PullSysFlag.COMMIT_OFFSET)
    assert asking.broker.offsets.get(GROUP, TOPIC, 0) == 7


def test_lite_pulls_are_pulls(asking: Asking) -> None:
    send(asking, "a")
    flag = PullSysFlag.LITE_PULL | PullSysFlag.SUBSCRIPTION
    answer = pull(asking, RequestCode.LITE_PULL_MESSAGE, sysFlag=flag, subscription="*")
    assert bodies(answer) == [b"a"]


# Pulls that wait


def hold(asking: Asking, peer: Peer | None = None, **given: Any) -> list[Outgoing]:
    """Send a pull that may wait; return what it is answered at once."""
    return asking.handle(RequestCode.PULL_MESSAGE, b"", peer, **fields(sysFlag=PullSysFlag.SUSPEND, **given))


def test_a_held_pull_is_answered_by_what_arrives_in_one_go(asking: Asking) -> None:
    subscribe(asking)
    send(asking, "old")
    assert hold(asking, queueOffset=1) == []
    assert [*asking.door.tick(asking.now)] == []

    send(asking, "elsewhere", queue_id=1)
    assert [*asking.door.tick(asking.now)] == []
    send(asking, "a", "b")
    assert asking.door.next_tick(asking.now) <= asking.now

    [(peer, answer)] = asking.door.tick(asking.now)
    assert peer is asking.client
    assert (answer.code, answer.opaque, bodies(answer), *offsets(answer)) == (0, 12, [b"a", b"b"], 3, 0, 3)
    send(asking, "c")
    assert [*asking.door.tick(asking.now)] == []


def test_a_held_pull_waits_for_the_messages_that_it_wants(asking: Asking) -> None:
    subscribe(asking, "A")
    subscribe(asking, "price > 10", "SQL92", group="S")
    assert hold(asking) == []
    assert hold(asking, consumerGroup="S") == []
    send(asking, "b", tag="B", price="3")
    assert [*asking.door.tick(asking.now)] == []
    send(asking, "a", tag="A", price="3")
    [(_, by_tag)] = asking.door.tick(asking.now)
    send(asking, "c", tag="C", price="30")
    [(_, by_sql)] = asking.door.tick(asking.now)
    assert (bodies(by_tag), bodies(by_sql)) == ([b"a"], [b"c"])


def test_a_held_pull_is_answered_at_its_deadline(asking: Asking) -> None:
    subscribe(asking, "A")
    assert hold(asking) == []
    send(asking, "b", tag="B")
    asking.now += HOLD_MS - 1
    assert [*asking.door.tick(asking.now)] == []

    asking.now += 1
    [(_, answer)] = asking.door.tick(asking.now)

    assert (answer.code, *offsets(answer)) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 1, 0, 1)
    assert asking.broker.room.count(PULLS) == 0


def test_only_pulls_that_say_so_are_held_and_only_for_what_is_to_come(asking: Asking) -> None:
    subscribe(asking)
    assert pull(asking).code == ResponseCode.PULL_NOT_FOUND
    assert pull(asking, sysFlag=PullSysFlag.SUSPEND, suspendTimeoutMillis=0).code == ResponseCode.PULL_NOT_FOUND
    assert pull(asking, sysFlag=PullSysFlag.SUSPEND, queueOffset=4).code == ResponseCode.PULL_OFFSET_MOVED
    assert asking.broker.room.count(PULLS) == 0


def test_pulls_of_a_connection_that_has_ended_are_forgotten(asking: Asking) -> None:
    subscribe(asking)
    other = Peer(2, "192.0.2.2", 4000)
    subscribe(asking, peer=other, client_id="c2")
    assert hold(asking, peer=other) == []
    assert hold(asking) == []
    asking.door.closed(other, asking.now)
    send(asking, "a")

    assert [peer for peer, _ in asking.door.tick(asking.now)] == [asking.client]


def test_a_reset_is_told_to_a_held_pull_at_once(asking: Asking) -> None:
    subscribe(asking)
    send(asking, "a", "b")
    assert hold(asking, queueOffset=2) == []
    answer = asking.ask(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, topic=TOPIC, group=GROUP, timestamp=0, isForce="true", queueId=0
    )
    assert answer.body == b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:0}}'

    commit: dict[str, Any] = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "commitOffset": 2}
    assert asking.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **commit).code == 0
    [(_, told)] = asking.door.tick(asking.now)

    assert (told.code, told.remark, *offsets(told)) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", 0, 0, 2)
    assert asking.broker.offsets.get(GROUP, TOPIC, 0) == 0
    assert bodies(pull(asking)) == [b"a", b"b"]
    asking.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **commit)
    assert asking.broker.offsets.get(GROUP, TOPIC, 0) == 2


@settings(max_examples=25)
@example(["send A", *["wait"] * 14])  # as long as a broker waits for a heartbeat
@given(st.lists(st.sampled_from(["send A", "send B", "wait"]), max_size=30))
def test_a_push_consumer_gets_every_message_it_wants_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    with broker_at_work(tmp_path_factory.mktemp("store")) as asking:
        asking.broker.topics.put([topic_of(TOPIC)], asking.now)
        subscribe(asking, "A")
        got: list[bytes] = []
        waiting = False
        offset = 0

        def take(answers: Any) -> None:
            nonlocal waiting, offset
            for _, answer in answers:
                assert answer.code in (0, 19, 20)
                got.extend(bodies(answer))
                offset = int(answer.ext_fields["nextBeginOffset"])
                waiting = False

        def ask() -> None:
            nonlocal waiting
            while not waiting:
                waiting = True
                given = fields(queueOffset=offset, sysFlag=PullSysFlag.SUSPEND)
                take(asking.handle(RequestCode.PULL_MESSAGE, **given))

        ask()
        for number, step in enumerate(steps):
            if step == "wait":
                asking.now += 9000
                subscribe(asking, "A")  # its heartbeat
            else:
                send(asking, str(number), tag=step[-1])
            take(asking.door.tick(asking.now))
            ask()

        assert got == [str(number).encode() for number, step in enumerate(steps) if step == "send A"]
