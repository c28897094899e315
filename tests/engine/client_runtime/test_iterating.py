"""Messages one after the other, and batches that count when their block ends: after any end nothing is passed over."""

import asyncio
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import mqtool
from mqtool import ConsumeFrom, LitePullConsumer, LitePullConsumerOptions, UsageError, aio
from tests.engine.client_runtime.test_push_consumer import BODIES, committed, send, until


@pytest.fixture
def broker() -> Iterator[mqtool.Broker]:
    with mqtool.Broker() as running:
        yield running


def options(**more: Any) -> LitePullConsumerOptions:
    return LitePullConsumerOptions(
        consume_from_where=ConsumeFrom.FIRST_OFFSET, **{"poll_timeout_millis": 200, "pull_batch_size": 7, **more}
    )


def consumer(broker: mqtool.Broker, **more: Any) -> LitePullConsumer:
    made = LitePullConsumer("G", broker.name_server_address, options(**more))
    made.subscribe("Orders")
    return made


def test_messages_come_one_after_the_other(broker: mqtool.Broker) -> None:
    send(broker, BODIES)
    with consumer(broker) as one:
        bodies = []
        for message in one:
            bodies.append(message.body)
            if len(bodies) == len(BODIES):
                break
        assert sorted(bodies) == sorted(BODIES)
    assert committed(broker) == len(BODIES)


@pytest.mark.parametrize("seed", range(3))
def test_who_ends_in_the_middle_goes_on_behind_what_was_given(broker: mqtool.Broker, seed: int) -> None:
    send(broker, BODIES)
    dice = random.Random(seed)
    bodies: list[bytes] = []
    while len(bodies) < len(BODIES):
        most = dice.randrange(1, 30)
        with consumer(broker, auto_commit_interval_millis=dice.choice((0, 5000))) as one:
            for number, message in enumerate(one, start=1):
                bodies.append(message.body)
                if number == most or len(bodies) == len(BODIES):
                    break
        assert committed(broker) == len(bodies)
    assert sorted(bodies) == sorted(BODIES)


def test_after_an_exception_no_message_that_was_in_work_is_passed_over(broker: mqtool.Broker) -> None:
    send(broker, BODIES)
    done: set[bytes] = set()

    def work(most: int) -> None:
        with consumer(broker, auto_commit_interval_millis=0) as one:
            for number, message in enumerate(one):
                if number == most:
                    raise ValueError(message.body)
                done.add(message.body)
                if len(done) == len(BODIES):
                    return

    for most in (0, 1, 8, 20):
        with pytest.raises(ValueError, match="b'"):
            work(most)
        assert committed(broker) <= len(done)
    work(1 << 30)
    assert done == {*BODIES}


def test_what_is_left_of_a_batch_comes_first_however_it_is_asked_for(broker: mqtool.Broker) -> None:
    send(broker, BODIES)
    with consumer(broker, auto_commit=False) as one:
        seen = [next(one).body for _ in range(3)]
        seen += [message.body for message in one.poll()]
        assert len(seen) <= 7
        seen.append(next(one).body)
        with one.batch() as messages:
            seen += [message.body for message in messages]
        assert len({*seen}) == len(seen)
        until(lambda: committed(broker) == len(seen))


def test_iterating_ends_when_the_consumer_is_shut_down_elsewhere(broker: mqtool.Broker) -> None:
    send(broker, [b"one"])
    one = consumer(broker, poll_timeout_millis=3_600_000)
    one.start()
    seen: list[bytes] = []
    reading = threading.Thread(target=lambda: seen.extend(message.body for message in one))
    reading.start()
    until(lambda: seen == [b"one"])
    one.shutdown()
    reading.join(30)
    assert not reading.is_alive()
    with pytest.raises(UsageError, match="not running"):
        iter(one)


def test_a_batch_counts_when_its_block_ends(broker: mqtool.Broker) -> None:
    send(broker, BODIES)
    bodies: list[bytes] = []
    with consumer(broker, auto_commit=False) as one:
        while len(bodies) < len(BODIES):
            with one.batch() as messages:
                bodies += [message.body for message in messages]
            assert committed(broker) == len(bodies)
        with one.batch(timeout_ms=0) as messages:
            assert messages == []
    assert sorted(bodies) == sorted(BODIES)


@pytest.mark.parametrize("polls_inside", [False, True])
def test_a_batch_that_fails_comes_again(broker: mqtool.Broker, polls_inside: bool) -> None:
    send(broker, BODIES)
    with consumer(broker) as one:
        with pytest.raises(KeyError), one.batch() as messages:
            failed = [message.body for message in messages]
            if polls_inside:
                one.poll()
            raise KeyError
        bodies: set[bytes] = set()

        def all_came() -> bool:
            bodies.update(message.body for message in one.poll(100))
            return bodies >= {*failed}

        until(all_came)


def test_asyncio_programs_iterate_as_well(broker: mqtool.Broker) -> None:
    send(broker, BODIES)

    async def run() -> list[bytes]:
        one = aio.LitePullConsumer("G", broker.name_server_address, options())
        one.subscribe("Orders")
        bodies = []
        async with one:
            async with one.batch() as messages:
                bodies += [message.body for message in messages]
            async for message in one:
                bodies.append(message.body)
                if len(bodies) == len(BODIES):
                    break
        return bodies

    assert sorted(asyncio.run(run())) == sorted(BODIES)
    assert committed(broker) == len(BODIES)
