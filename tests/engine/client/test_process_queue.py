"""Held against RocketMQ's own ``ProcessQueue``; ``fixtures/README.md`` tells how its answers were recorded."""

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
