"""Queues shared out by the broker, held against what RocketMQ's own strategies gave."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mqtool
from mqtool.engine.broker.operations.assignment import STRATEGIES
from mqtool.engine.broker.request_modes import BY_PULL, RequestMode
from mqtool.formats.bodies import ConsumerData, Heartbeat, Subscription, build_body, build_heartbeat
from mqtool.formats.codes import RequestCode
from mqtool.formats.config_tables import TopicConfig
from mqtool.formats.peer import Peer
from tests.engine.broker.asking import Asking, broker_at_work
from tests.wire_client import WireClient, consumer


@pytest.mark.parametrize(
    ("count", "members", "evenly", "in_turn"),
    [
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]], [[0, 3, 6], [1, 4, 7], [2, 5]]),
        (10, 4, [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]], [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]),
        (3, 5, [[0], [1], [2], [], []], [[0], [1], [2], [], []]),
        (1, 2, [[0], []], [[0], []]),
        (
            16,
            3,
            [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11, 12, 13, 14, 15]],
            [[0, 3, 6, 9, 12, 15], [1, 4, 7, 10, 13], [2, 5, 8, 11, 14]],
        ),
    ],
)
def test_each_member_gets_the_queues_that_java_gives_it(
    count: int, members: int, evenly: list[list[int]], in_turn: list[list[int]]
) -> None:
    for name, expected in (("AVG", evenly), ("AVG_BY_CIRCLE", in_turn)):
        assert [list(STRATEGIES[name](count, members, index)) for index in range(members)] == expected


@given(st.sampled_from(sorted(STRATEGIES)), st.integers(0, 40), st.integers(1, 12))
def test_every_queue_belongs_to_one_member_and_nobody_has_two_more_than_another(
    name: str, count: int, members: int
) -> None:
    shares = [list(STRATEGIES[name](count, members, index)) for index in range(members)]
    assert sorted(queue for share in shares for queue in share) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Asking]:
    with broker_at_work(tmp_path) as found:
        found.broker.topics.put([TopicConfig("T", 5, 5, 6, False, "SINGLE_TAG", 0, {})], found.now)
        for number in (1, 2):
            wanted = (Subscription("T", "*"),)
            data = ConsumerData("G", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET", wanted)
            beat = build_heartbeat(Heartbeat(f"c{number}", (), (data,)))
            found.handle(RequestCode.HEART_BEAT, beat, Peer(number, "192.0.2.1", number))
        yield found


def assigned(asking: Asking, mode: str = "PULL", **given: Any) -> list[int] | None:
    asked = {"topic": "T", "consumerGroup": "G", "clientId": "c2", "strategyName": "AVG", "messageModel": "CLUSTERING"}
    table = orjson.loads(asking.ask(RequestCode.QUERY_ASSIGNMENT, build_body({**asked, **given})).body)
    if "messageQueueAssignments" not in table:
        return None
    assert {one["mode"] for one in table["messageQueueAssignments"]} <= {mode}
    queues = [one["messageQueue"] for one in table["messageQueueAssignments"]]
    assert {(one["topic"], one["brokerName"]) for one in queues} <= {("T", "broker-a")}
    return [one["queueId"] for one in queues]


def test_a_consumer_is_told_its_queues(asking: Asking) -> None:
    assert assigned(asking) == [3, 4]
    assert assigned(asking, clientId="c1") == [0, 1, 2]
    assert assigned(asking, strategyName="AVG_BY_CIRCLE") == [1, 3]
    assert assigned(asking, messageModel="BROADCASTING") == [0, 1, 2, 3, 4]
    assert assigned(asking, clientId="c3") == []
    assert [assigned(asking, **given) for given in ({"topic": "U"}, {"consumerGroup": "H"}, {"strategyName": "?"})] == [
        None,
        None,
        None,
    ]


def set_mode(asking: Asking, mode: str, share_count: int = 0, topic: str = "T", group: str = "G") -> int:
    body = build_body({"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": share_count})
    return asking.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body).code


def test_a_mode_is_set_where_the_topic_is_there_and_no_retry_topic(asking: Asking) -> None:
    codes = [set_mode(asking, "POP", topic=topic) for topic in ("T", "%RETRY%G", "U")]
    assert [*codes, set_mode(asking, "POP", group="H"), set_mode(asking, "PUSH")] == [0, 16, 17, 0, 29]

    asking.broker.groups.creates = False
    assert set_mode(asking, "POP", group="new") == 26


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(1, 6), st.integers(-1, 6))
def test_by_pop_a_queue_has_the_readers_that_are_asked_for(count: int, members: int, share_count: int) -> None:
    with tempfile.TemporaryDirectory() as folder, broker_at_work(Path(folder)) as asking:
        asking.broker.topics.put([TopicConfig("T", count, count, 6, False, "SINGLE_TAG", 0, {})], asking.now)
        for number in range(members):
            data = ConsumerData("G", "CONSUME_POP", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET")
            beat = build_heartbeat(Heartbeat(f"c{number}", (), (data,)))
            asking.handle(RequestCode.HEART_BEAT, beat, Peer(number, "192.0.2.1", number))
        assert set_mode(asking, "POP", share_count) == 0
        shares = [assigned(asking, "POP", clientId=f"c{number}") for number in range(members)]

    if not 0 < share_count < members - 1:
        assert shares == [[-1]] * members
    elif members > count:
        assert shares == [[number % count] for number in range(members)]
    else:
        readers = Counter(queue for share in shares for queue in share or ())
        assert readers == dict.fromkeys(range(count), share_count + 1)


def test_modes_outlive_a_restart_and_end_with_their_topic(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        asking.broker.topics.put([TopicConfig("T", 5, 5, 6, False, "SINGLE_TAG", 0, {})], asking.now)
        set_mode(asking, "POP", 3)
    with broker_at_work(tmp_path) as asking:
        assert asking.broker.request_modes.get("T", "G") == RequestMode("POP", 3)
        asking.broker.topics.delete("T", asking.now)
    with broker_at_work(tmp_path) as asking:
        assert asking.broker.request_modes.get("T", "G") == BY_PULL


def test_who_pops_a_topic_without_queues_is_assigned_none(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with asyncio.timeout(60), mqtool.Broker() as broker:
            clients = [WireClient(broker.address) for _ in range(3)]
            await clients[0].make_topic("T", readQueueNums=0, writeQueueNums=0)
            for number, client in enumerate(clients):
                await client.done(
                    RequestCode.HEART_BEAT, build_heartbeat(Heartbeat(f"c{number}", (), (consumer("G"),)))
                )
            mode = {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 1}
            await clients[0].done(RequestCode.SET_MESSAGE_REQUEST_MODE, build_body(mode))
            asked = {"topic": "T", "consumerGroup": "G", "clientId": "c2", "strategyName": "AVG"}
            answer = await clients[2].ask(
                RequestCode.QUERY_ASSIGNMENT, build_body({**asked, "messageModel": "CLUSTERING"})
            )
            assert (answer.code, orjson.loads(answer.body)) == (0, {"messageQueueAssignments": []})
            for client in clients:
                await client.close()

    asyncio.run(test())
    assert not caplog.records
