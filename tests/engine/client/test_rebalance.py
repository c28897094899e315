"""Held against RocketMQ's own strategy classes; ``fixtures/README.md`` tells how their answers were recorded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.client.rebalance import (
    Strategy,
    allocate,
    averagely,
    averagely_by_circle,
    by_machine_room,
    consistent_hash,
    near_by,
)
from mqtool.formats.bodies import MessageQueue
from tests import client_cases


def test_every_strategy_gives_what_javas_gives() -> None:
    cases = client_cases.recorded("allocations")
    assert len(cases) == 2000
    for case in cases:
        assert client_cases.ours(case) == client_cases.javas(case), case


def room(name: str) -> str:
    return name[0]


@pytest.mark.parametrize(
    "strategy",
    [
        averagely,
        averagely_by_circle,
        by_machine_room({"a", "b", "c"}),
        consistent_hash(),
        near_by(averagely_by_circle, lambda queue: room(queue.broker_name), room),
    ],
)
@given(
    brokers=st.dictionaries(st.sampled_from(["a@1", "a@2", "b@1", "c@1"]), st.integers(1, 9)),
    members=st.sets(st.text("abc", min_size=1, max_size=4), min_size=1),
)
def test_each_queue_has_one_owner(strategy: Strategy, brokers: dict[str, int], members: set[str]) -> None:
    queues = [MessageQueue("T", broker, number) for broker, count in brokers.items() for number in range(count)]
    shared = [queue for member in members for queue in allocate(strategy, queues, members, member)]
    assert sorted(shared) == sorted(queues)


def test_who_is_not_listed_gets_nothing() -> None:
    assert allocate(averagely, [MessageQueue("T", "b", 0)], {"c1"}, "c2") == []
