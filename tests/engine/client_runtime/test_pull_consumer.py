"""Consumers that pull by offset: any queue from anywhere, and what brokers say where there is nothing."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import mqtool
from mqtool import MessageQueue, ProducerMessage, PullConsumer, PullConsumerOptions, PullStatus
from mqtool.errors import NotFoundError, UsageError
from tests.engine.client_runtime.test_push_consumer import BODIES, Listener


@pytest.fixture
def broker() -> Iterator[mqtool.Broker]:
    with mqtool.Broker(settings={"enablePropertyFilter": True}) as running:
        yield running


@pytest.fixture
def one(broker: mqtool.Broker) -> Iterator[PullConsumer]:
    with PullConsumer("G", broker.name_server_address) as running:
        yield running


def fill(broker: mqtool.Broker, count: int) -> MessageQueue:
    """Send so many messages to one queue and return that."""
    with mqtool.Producer("P", broker.name_server_address) as producer:
        queue = producer.queues("Orders")[1]
        for number, body in enumerate(BODIES[:count]):
            tags, properties = ("even" if number % 2 == 0 else "odd"), {"number": str(number)}
            producer.send(ProducerMessage("Orders", body, tags=tags, properties=properties), queue)
    return queue


def test_messages_come_from_any_offset_and_the_answer_says_where_to_go_on(
    broker: mqtool.Broker, one: PullConsumer
) -> None:
    queue = fill(broker, 50)
    assert queue in one.fetch_message_queues("Orders")
    first = one.pull(queue, 0, 20)
    assert (first.status, first.next_offset, first.min_offset, first.max_offset) == (PullStatus.FOUND, 20, 0, 50)
    assert [message.body for message in first.messages] == BODIES[:20]
    rest = one.pull(queue, first.next_offset)
    assert [message.body for message in rest.messages] == BODIES[20:50]
    assert (one.min_offset(queue), one.max_offset(queue)) == (0, 50)
    assert one.offset_for_timestamp(queue, first.messages[0].store_timestamp) == 0


def test_where_there_is_nothing_the_status_says_so(broker: mqtool.Broker, one: PullConsumer) -> None:
    queue = fill(broker, 10)
    at_the_end = one.pull(queue, 10)
    assert (at_the_end.status, at_the_end.messages) == (PullStatus.NO_NEW_MSG, [])
    behind = one.pull(queue, 99)
    assert (behind.status, behind.next_offset) == (PullStatus.OFFSET_ILLEGAL, 10)
    other = one.pull(queue, 0, expression="no such tag")
    assert (other.status, other.next_offset) == (PullStatus.NO_MATCHED_MSG, 10)


@pytest.mark.parametrize(("expression", "is_sql92"), [("even", False), ("number > 3 AND number < 8", True)])
def test_tags_and_sql_choose(expression: str, is_sql92: bool, broker: mqtool.Broker, one: PullConsumer) -> None:
    queue = fill(broker, 10)
    found = one.pull(queue, 0, expression=expression, is_sql92=is_sql92)
    assert [message.body for message in found.messages] == (BODIES[4:8] if is_sql92 else BODIES[:10:2])
    assert found.next_offset == 10


def test_a_pull_may_wait_for_a_message(broker: mqtool.Broker, one: PullConsumer) -> None:
    queue = fill(broker, 1)
    found = []
    waiting = threading.Thread(target=lambda: found.append(one.pull_block_if_not_found(queue, 1)))
    waiting.start()
    with mqtool.Producer("P", broker.name_server_address) as producer:
        producer.send(ProducerMessage("Orders", b"new"), queue)
    waiting.join(30)
    assert [[message.body for message in one.messages] for one in found] == [[b"new"]]


def test_brokers_keep_the_offset_of_the_group(broker: mqtool.Broker, one: PullConsumer) -> None:
    queue = fill(broker, 10)
    one.commit(queue, 7)
    assert one.committed(queue) == 7
    one.shutdown()  # as a member of the group it would have its share of the queues
    listener = Listener()
    pushed = mqtool.PushConsumer("G", listener, broker.name_server_address)
    pushed.subscribe("Orders")
    with pushed:
        assert listener.wait_for(3) == BODIES[7:10]


def test_what_makes_no_sense_is_said(broker: mqtool.Broker, one: PullConsumer) -> None:
    queue = fill(broker, 1)
    with pytest.raises(UsageError, match="from offset -1"):
        one.pull(queue, -1)
    with pytest.raises(NotFoundError, match="the topic Nobody does not exist"):
        one.fetch_message_queues("Nobody")
    with pytest.raises(UsageError, match="not running"):
        PullConsumer("G", broker.name_server_address).pull(queue, 0)


def test_names_of_a_namespace_are_the_brokers_business_only(broker: mqtool.Broker) -> None:
    given: dict[str, Any] = {"namespace": "eu"}
    address = broker.name_server_address
    with mqtool.Producer("P", address, mqtool.ProducerOptions(**given)) as producer:
        sent = producer.send(ProducerMessage("Orders", b"hello"))
    with PullConsumer("pull", address, PullConsumerOptions(**given)) as one:
        [queue] = [queue for queue in one.fetch_message_queues("Orders") if queue.queue_id == sent.queue.queue_id]
        assert queue.topic == "eu%Orders"
        assert [message.topic for message in one.pull(queue, 0).messages] == ["Orders"]
    pop = mqtool.PopConsumer("pop", address, mqtool.PopConsumerOptions(**given))
    pop.subscribe("Orders")
    with pop:
        [popped] = pop.pop(30_000)
        assert popped.topic == "Orders"
        changed = pop.change_invisible_time(popped, 60_000)
        assert changed
        assert changed.topic == "Orders"
        assert pop.ack(changed)
    lite = mqtool.LitePullConsumer("lite", address, mqtool.LitePullConsumerOptions(**given))
    lite.assign([queue])
    with lite:
        lite.seek_to_begin(queue)
        assert [message.topic for message in lite.poll(30_000)] == ["Orders"]
