"""Held against RocketMQ's own ``ProcessQueue``; ``fixtures/README.md`` tells how its answers were recorded."""

import pytest

from mqtool.engine.client.consuming import Thresholds, is_full
from mqtool.engine.client.process_queue import LOCK_LIFE_MS, PULL_LIFE_MS, ProcessQueue
from tests import client_cases


def test_it_goes_through_the_states_of_javas() -> None:
    cases = client_cases.recorded("process_queues")
    assert len(cases) == 200
    for steps in cases:
        assert client_cases.process(steps) == steps


def test_a_lock_is_relied_upon_for_half_a_minute() -> None:
    queue: ProcessQueue[client_cases.Held] = ProcessQueue(now=0)
    assert not queue.holds_lock(0)
    queue.locked_at = 5
    assert queue.holds_lock(5 + LOCK_LIFE_MS)
    assert not queue.holds_lock(6 + LOCK_LIFE_MS)


def test_a_queue_without_pulls_is_stuck() -> None:
    queue: ProcessQueue[client_cases.Held] = ProcessQueue(now=7)
    assert not queue.is_stuck(7 + PULL_LIFE_MS)
    assert queue.is_stuck(8 + PULL_LIFE_MS)


@pytest.mark.parametrize(
    ("thresholds", "is_over", "is_over_in_order"),
    [
        (Thresholds(), False, False),
        (Thresholds(count=2), False, False),
        (Thresholds(count=1), True, True),
        (Thresholds(size=30), False, False),
        (Thresholds(size=29), True, True),
        (Thresholds(span=90), False, False),
        (Thresholds(span=89), True, False),
        (Thresholds(count_of_topic=7), True, True),
        (Thresholds(count_of_topic=8), False, False),
        (Thresholds(count=1, count_of_topic=8), False, False),
        (Thresholds(size_of_topic=119), True, True),
        (Thresholds(size_of_topic=120), False, False),
    ],
)
def test_a_queue_is_full_by_count_size_and_span_and_by_its_share_of_the_topics(
    thresholds: Thresholds, is_over: bool, is_over_in_order: bool
) -> None:
    """Two messages of 30 bytes, 90 offsets apart, in one of four queues that the client has of the topic."""
    queue: ProcessQueue[client_cases.Held] = ProcessQueue(now=0)
    queue.put([client_cases.Held(10, bytes(20)), client_cases.Held(100, bytes(10))])
    share = thresholds.shared(4)

    assert is_full(queue, share, is_orderly=False) == is_over
    assert is_full(queue, share, is_orderly=True) == is_over_in_order
