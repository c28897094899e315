"""Consumers that pop: each message to one of them, hidden for a while, and again if it is not acknowledged."""

import asyncio
import dataclasses
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest

import mqtool
from mqtool import ConsumerMessage, PopConsumer, PopConsumerOptions, ProducerMessage
from mqtool.errors import NotFoundError, UsageError
from tests.engine.client_runtime.test_push_consumer import BODIES, send, until


@pytest.fixture
def clock() -> mqtool.VirtualClock:
    return mqtool.VirtualClock()


@pytest.fixture
def broker(clock: mqtool.VirtualClock) -> Iterator[mqtool.Broker]:
    with mqtool.Broker(settings={"enablePropertyFilter": True}, clock=clock) as running:
        yield running


def consumer(
    broker: mqtool.Broker, expression: str = "*", *, clock: mqtool.VirtualClock | None = None, **options: Any
) -> PopConsumer:
    """Return a member; one with a broker whose clock is moved needs that clock, too: a late request gets nothing."""
    made = PopConsumer(
        "G", broker.name_server_address, PopConsumerOptions(**options), **({"clock": clock} if clock else {})
    )
    made.subscribe("Orders", expression, is_sql92=expression.startswith("a "))
    return made


def popped(made: PopConsumer, count: int) -> list[ConsumerMessage]:
    """Pop until so many messages have come."""
    found: list[ConsumerMessage] = []

    def are_there() -> bool:
        found.extend(made.pop(0))
        return len(found) >= count

    until(are_there)
    return found


def bodies(messages: list[ConsumerMessage]) -> list[bytes]:
    return sorted(one.body for one in messages)


def test_each_message_goes_to_one_member_and_not_again_once_it_is_acknowledged(
    broker: mqtool.Broker, clock: mqtool.VirtualClock
) -> None:
    send(broker, BODIES)
    with consumer(broker, clock=clock) as one, consumer(broker, clock=clock) as other:
        first, second = popped(one, 10), popped(other, 10)
        rest = popped(one, 100 - len(first) - len(second))
        assert bodies(first + second + rest) == sorted(BODIES)
        assert all(one.ack(message) for message in first + second + rest)
        clock.advance(90)
        assert one.pop(0) == other.pop(0) == []


def test_what_is_not_acknowledged_comes_again(broker: mqtool.Broker, clock: mqtool.VirtualClock) -> None:
    send(broker, [b"one", b"two"])
    with consumer(broker, clock=clock, pop_invisible_time=10_000) as one:
        messages = popped(one, 2)
        assert one.ack(messages[0])
        clock.advance(15)
        [again] = popped(one, 1)
        assert (again.body, again.topic, again.reconsume_times) == (messages[1].body, "Orders", 1)
        assert one.ack(again)
        clock.advance(60)
        assert one.pop(0) == []


def test_a_message_can_be_hidden_for_longer_or_less(broker: mqtool.Broker, clock: mqtool.VirtualClock) -> None:
    send(broker, [b"one"])
    with consumer(broker, clock=clock, pop_invisible_time=10_000) as one:
        [message] = popped(one, 1)
        later = one.change_invisible_time(message, 60_000)
        assert later is not None
        clock.advance(20)
        assert one.pop(0) == []
        sooner = one.change_invisible_time(later, 1_000)
        assert sooner is not None
        clock.advance(10)
        assert bodies(popped(one, 1)) == [b"one"]


@pytest.mark.parametrize("expression", ["A || C", "a > 3"])
def test_tags_and_sql_choose(expression: str, broker: mqtool.Broker) -> None:
    send(broker, [b"other"], tags="B", properties={"a": "1"})
    send(broker, [b"wanted"], tags="A", properties={"a": "5"})
    with consumer(broker, expression) as one:
        assert bodies(popped(one, 1)) == [b"wanted"]


def test_in_order_the_next_waits_for_the_first(broker: mqtool.Broker) -> None:
    with mqtool.Producer("P", broker.name_server_address) as producer:
        queue = producer.queues("Orders")[0]
        for body in (b"one", b"two"):
            producer.send(ProducerMessage("Orders", body), queue)
    with consumer(broker, orderly=True, pop_batch_nums=1) as one:
        [first] = popped(one, 1)
        assert one.pop(0) == []
        assert one.ack(first)
        [second] = popped(one, 1)
        assert [first.body, second.body] == [b"one", b"two"]


def test_what_makes_no_sense_is_refused(broker: mqtool.Broker) -> None:
    with pytest.raises(UsageError, match="between 1 and 32"):
        consumer(broker, pop_batch_nums=33)
    with pytest.raises(UsageError, match="hidden for at least 1 ms"):
        consumer(broker, pop_invisible_time=0)
    with pytest.raises(UsageError, match="start it first"):
        consumer(broker).pop()
    with pytest.raises(NotFoundError, match="the topic Orders does not exist"):
        consumer(broker).start()
    with pytest.raises(UsageError, match="not subscribed to a topic"):
        PopConsumer("G", broker.name_server_address).start()
    send(broker, [b"one"])
    [message] = mqtool.open_store(broker.store).messages()
    plain = ConsumerMessage("Orders", b"", b"", "broker-a", 0, message.queue_offset, 0, 0, 0, 0, 0, "", 0, "")
    with consumer(broker) as one:
        with pytest.raises(UsageError, match="was not received by pop"):
            one.ack(plain)
        with pytest.raises(UsageError, match="hidden for at least 1 ms"):
            one.change_invisible_time(plain, -5)


def test_a_loop_ends_when_its_consumer_is_shut_down_elsewhere(broker: mqtool.Broker) -> None:
    send(broker, [b"one"])
    made = consumer(broker)

    def shut_down_while_it_pops() -> None:
        until(lambda: bool(made._client._under_way))
        made.shutdown()

    with made, ThreadPoolExecutor(1) as beside:
        found = []
        for message in made:
            found.append(message.body)
            ended = beside.submit(shut_down_while_it_pops)
        ended.result()
    assert found == [b"one"]


def test_iterating_acknowledges_each_message_when_the_next_is_asked_for(
    broker: mqtool.Broker, clock: mqtool.VirtualClock
) -> None:
    send(broker, BODIES)

    async def some(most: int, fails: bool = False) -> list[bytes]:
        made = mqtool.aio.PopConsumer(
            "G", broker.name_server_address, PopConsumerOptions(poll_timeout_millis=0), clock=clock
        )
        made.subscribe("Orders")
        found = []
        async with made:
            async for message in made:
                found.append(message.body)
                if len(found) == most:
                    break
            if fails:
                raise KeyError
        return found

    found = asyncio.run(some(40))
    with pytest.raises(KeyError):
        asyncio.run(some(5, fails=True))  # of which four were followed by another
    clock.advance(70)
    found += asyncio.run(some(56))
    assert len({*found}) == len(found) == 96


def test_iterating_gives_nothing_that_others_may_have_by_now(broker: mqtool.Broker) -> None:
    with mqtool.Producer("P", broker.name_server_address) as producer:
        queue = producer.queues("Orders")[0]
        producer.send_batch([ProducerMessage("Orders", b"%d" % number) for number in range(5)], queue)
    now = [0]
    options = PopConsumerOptions(poll_timeout_millis=100)
    made = mqtool.aio.PopConsumer("G", broker.name_server_address, options, clock=lambda: now[0])
    made.subscribe("Orders")

    async def run() -> list[bytes]:
        async with made:
            found = [(await anext(made)).body, (await anext(made)).body]
            now[0] += 60_000
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await anext(made)
        return found

    assert asyncio.run(run()) == [b"0", b"1"]


def test_a_batch_is_acknowledged_when_its_block_ends(broker: mqtool.Broker, clock: mqtool.VirtualClock) -> None:
    send(broker, BODIES)

    async def run() -> list[bytes]:
        made = mqtool.aio.PopConsumer(
            "G", broker.name_server_address, PopConsumerOptions(poll_timeout_millis=0), clock=clock
        )
        made.subscribe("Orders")
        async with made:
            with pytest.raises(KeyError):
                async with made.batch():
                    raise KeyError
            async with made.batch() as messages:
                found = [one.body for one in messages]
            clock.advance(70)
            async for message in made:
                found.append(message.body)
                if len(found) == len(BODIES):
                    break
        return found

    assert sorted(asyncio.run(run())) == sorted(BODIES)


def test_a_batch_acknowledges_what_it_can_and_names_the_rest(broker: mqtool.Broker, clock: mqtool.VirtualClock) -> None:
    with mqtool.Producer("P", broker.name_server_address) as producer:
        queue = producer.queues("Orders")[0]
        producer.send_batch([ProducerMessage("Orders", b"%d" % number) for number in range(5)], queue)
    with consumer(broker, clock=clock) as one:
        failed = pytest.raises(mqtool.AcknowledgeError, match="2 of 5 messages could not be acknowledged")
        with failed as caught, one.batch() as messages:
            for number in (0, 2):
                messages[number] = dataclasses.replace(messages[number], broker_name="gone")
        assert [one.body for one in caught.value.messages] == [b"0", b"2"]
        assert [type(error) for error in caught.value.errors] == [mqtool.UnavailableError] * 2
        clock.advance(70)
        assert bodies(popped(one, 2)) == [b"0", b"2"]
        assert one.pop(0) == []


def test_iterating_gives_nothing_that_others_may_have_by_now_though_the_clock_was_set_back(
    broker: mqtool.Broker,
) -> None:
    with mqtool.Producer("P", broker.name_server_address) as producer:
        queue = producer.queues("Orders")[0]
        producer.send_batch([ProducerMessage("Orders", b"%d" % number) for number in range(5)], queue)
    options = PopConsumerOptions(poll_timeout_millis=100, pop_invisible_time=60_000)
    now = time.time_ns() // 1_000_000
    made = mqtool.aio.PopConsumer("G", broker.name_server_address, options, clock=lambda: now)
    made.subscribe("Orders")

    async def run() -> list[bytes]:
        loop = asyncio.get_running_loop()
        async with made:
            found = [(await anext(made)).body, (await anext(made)).body]
            with mock.patch.object(loop, "time", lambda at=loop.time: at() + 61), pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await anext(made)
        return found

    assert asyncio.run(run()) == [b"0", b"1"]
