"""What mypy sees of clients: a program that is checked strictly meets full types, and its mistakes are found.

Nobody runs it. ``./check`` has mypy read it, which complains of a type that is another, and of a mistake not found.
"""

from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import assert_type

import mqtool
from mqtool import ConsumerMessage, MessageQueue, ProducerMessage, SendResult


def produce(message: ProducerMessage, queue: MessageQueue) -> None:
    """Send in all ways."""
    producer = mqtool.Producer("P", "localhost:9876", send_msg_timeout=1)
    assert_type(producer, mqtool.Producer)
    with producer as running:
        assert_type(running, mqtool.Producer)
    assert_type(producer.send(message, queue, timeout_ms=1), SendResult)
    assert_type(producer.send_async(message, selector=mqtool.select_by_hash, arg=1), Future[SendResult])
    assert_type(producer.send_batch([message]), list[SendResult])
    assert_type(producer.request(message), ConsumerMessage)
    assert_type(producer.queues("T"), list[MessageQueue])
    producer.send("T")  # type: ignore[arg-type]
    producer.send_async(message, timeout=1)  # type: ignore[call-arg]
    mqtool.Producer()  # type: ignore[call-arg]
    mqtool.TransactionProducer("P", print)  # type: ignore[arg-type]


def consume(queue: MessageQueue) -> None:
    """Consume in all ways."""
    lite = mqtool.LitePullConsumer("G", options={"pull_batch_size": 1})
    assert_type(lite.poll(), list[ConsumerMessage])
    assert_type(lite.committed(queue), int | None)
    assert_type(lite.assignment(), list[MessageQueue])
    assert_type(lite.batch(timeout_ms=1), AbstractContextManager[list[ConsumerMessage], bool | None])
    with lite.batch() as messages:
        assert_type(messages, list[ConsumerMessage])
    for one in lite:
        assert_type(one, ConsumerMessage)
    lite.subscribe(1)  # type: ignore[arg-type]
    lite.poll("soon")  # type: ignore[arg-type]
    mqtool.PushConsumer("G")  # type: ignore[call-arg]

    pull = mqtool.PullConsumer("G")
    assert_type(pull.pull(queue, 0, is_sql92=True), mqtool.PullResult)
    pop = mqtool.PopConsumer("G", pop_batch_nums=3)
    assert_type(pop.ack(pop.pop(1)[0]), bool)
    assert_type(mqtool.AdminClient().group_names(), set[str])
