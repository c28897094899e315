"""Queues shared out by the broker, held against what RocketMQ's own strategies gave."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.broker.processors.assignment import STRATEGIES
from mqtool.formats.bodies import ConsumerData, Heartbeat, Subscription, build_body, build_heartbeat
from mqtool.formats.codes import RequestCode
from mqtool.formats.config_tables import TopicConfig
from mqtool.formats.remoting import Peer
from tests.engine.broker.asking import Asking, broker_at_work


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


def assigned(asking: Asking, **given: Any) -> list[int] | None:
    asked = {"topic": "T", "consumerGroup": "G", "clientId": "c2", "strategyName": "AVG", "messageModel": "CLUSTERING"}
    table = orjson.loads(asking.ask(RequestCode.QUERY_ASSIGNMENT, build_body({**asked, **given})).body)
    if "messageQueueAssignments" not in table:
        return None
    assert {one["mode"] for one in table["messageQueueAssignments"]} <= {"PULL"}
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


def test_a_mode_is_set_where_topic_and_group_are_there_and_it_is_that_of_pulls(asking: Asking) -> None:
    def code(topic: str, group: str, mode: str = "PULL") -> int:
        body = build_body({"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": 0})
        return asking.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body).code

    assert [code("T", "G"), code("%RETRY%G", "G"), code("U", "G"), code("T", "H"), code("T", "G", "POP")] == [
        *(0, 16, 17, 26, 29)
    ]
