"""Serializers and deserializers: what comes out is what went in, and an error of one is that of the call."""

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import mqtool
from mqtool import ConsumeFrom, ConsumerMessage, ProducerMessage, aio
from mqtool.formats.topics import DEAD_LETTER_PREFIX


@pytest.fixture
def broker() -> Iterator[mqtool.Broker]:
    with mqtool.Broker() as running:
        with mqtool.AdminClient(running.name_server_address) as admin:
            admin.create_topic("Orders", queues=1)
        yield running


def stored(broker: mqtool.Broker, topic: str = "Orders") -> list[bytes]:
    return [one.body for one in mqtool.open_store(broker.store).messages() if one.topic == topic]


def refuse(_: Any) -> Any:
    raise LookupError("no such schema")


@pytest.mark.parametrize("auto_batch", [False, True])
def test_every_way_to_send_serializes_the_body_once(broker: mqtool.Broker, auto_batch: bool) -> None:
    class SavedAccount:
        def execute_local_transaction(self, message: ProducerMessage, _arg: Any) -> mqtool.TransactionState:
            assert message.body == {"n": 5}  # the application's own
            return mqtool.TransactionState.COMMIT

        def check_local_transaction(self, _message: ConsumerMessage) -> mqtool.TransactionState:
            return mqtool.TransactionState.COMMIT

    options = {"serializer": json.dumps, "auto_batch": auto_batch}
    with mqtool.TransactionProducer("P", SavedAccount(), broker.name_server_address, options) as producer:
        messages = [ProducerMessage("Orders", {"n": number}) for number in range(6)]
        result = producer.send(messages[0])
        producer.send_async(messages[1]).result(10)
        producer.send_oneway(messages[2])
        producer.send_batch(messages[3:5])
        producer.send_in_transaction(messages[5])
        assert messages[0].unique_key == result.message_id
        assert [one.body for one in messages] == [{"n": number} for number in range(6)]

    assert sorted(stored(broker)) == [b'{"n": %d}' % number for number in range(6)]


@pytest.mark.parametrize("auto_batch", [False, True])
def test_what_a_serializer_raises_is_an_error_of_that_call_and_nothing_is_sent(
    broker: mqtool.Broker, auto_batch: bool
) -> None:
    def dumps(body: Any) -> Any:
        if body == "exit":
            raise SystemExit(3)
        return body if isinstance(body, int) else json.dumps(body)

    with mqtool.Producer("P", broker.name_server_address, serializer=dumps, auto_batch=auto_batch) as producer:
        bad = ProducerMessage("Orders", {1, 2})
        for send in (producer.send, producer.send_oneway, lambda one: producer.send_async(one).result(10)):
            with pytest.raises(TypeError, match="set is not JSON serializable"):
                send(bad)
            with pytest.raises(mqtool.CallbackError, match="serializer"):
                send(ProducerMessage("Orders", "exit"))
            with pytest.raises(mqtool.UsageError, match="the body of a message must be bytes, or a string"):
                send(ProducerMessage("Orders", 1))
        with pytest.raises(TypeError, match="set is not JSON serializable"):
            producer.send_batch([ProducerMessage("Orders", {}), bad])
        producer.send(ProducerMessage("Orders", "fine"))

    assert stored(broker) == [b'"fine"']


@pytest.mark.parametrize("orderly", [False, True])
def test_what_a_deserializer_raises_is_a_failed_consumption_until_the_message_is_a_dead_letter(
    broker: mqtool.Broker, orderly: bool
) -> None:
    got: list[Any] = []
    done = threading.Event()

    def listen(messages: Sequence[ConsumerMessage], context: mqtool.ConsumeContext) -> None:
        context.delay_level, context.suspend_ms = 1, 10
        got.extend(one.value for one in messages)
        done.set()

    options = {"max_reconsume_times": 0, "deserializer": json.loads, "orderly": orderly}
    consumer = mqtool.PushConsumer(
        "G", listen, broker.name_server_address, options, consume_from_where=ConsumeFrom.FIRST_OFFSET
    )
    consumer.subscribe("Orders")
    with mqtool.Producer("P", broker.name_server_address) as producer:
        for body in (b"{no json", b'{"n": 1}'):
            producer.send(ProducerMessage("Orders", body))
        with consumer:
            assert done.wait(20)

    assert got == [{"n": 1}]
    assert stored(broker, f"{DEAD_LETTER_PREFIX}G") == [b"{no json"]


def test_all_kinds_of_consumers_give_the_value_and_keep_the_body(broker: mqtool.Broker) -> None:
    address = broker.name_server_address
    calls: list[bytes] = []

    def loads(body: bytes) -> Any:
        calls.append(body)
        return json.loads(body)

    with mqtool.Producer("P", address) as producer:
        producer.send(ProducerMessage("Orders", b"[1]"))
    with mqtool.PullConsumer("G1", address, deserializer=loads) as pull:
        [queue] = pull.fetch_message_queues("Orders")
        [first] = pull.pull(queue, 0).messages
    lite = mqtool.LitePullConsumer("G2", address, deserializer=loads, consume_from_where=ConsumeFrom.FIRST_OFFSET)
    lite.subscribe("Orders")
    with lite, lite.batch(10_000) as [second]:
        pass
    assert calls == []  # nobody has asked yet
    assert [one.value for one in (first, second, second)] == [[1], [1], [1]]
    assert (first.body, calls) == (b"[1]", [b"[1]", b"[1]"])


def test_a_message_that_cannot_be_deserialized_is_not_passed_over_by_a_loop(broker: mqtool.Broker) -> None:
    async def consume() -> list[ConsumerMessage]:
        options = {"deserializer": refuse, "consume_from_where": ConsumeFrom.FIRST_OFFSET}
        consumer = aio.LitePullConsumer("G", broker.name_server_address, options)
        consumer.subscribe("Orders")
        got = []
        async with consumer:
            for _ in range(2):
                with pytest.raises(LookupError, match="no such schema"):
                    async with consumer.batch(10_000) as messages:
                        got += messages
                        print(messages[0].value)  # noqa: T201
        return got

    with mqtool.Producer("P", broker.name_server_address) as producer:
        producer.send(ProducerMessage("Orders", b"1"))
    first, again = asyncio.run(consume())
    assert first.queue_offset == again.queue_offset
    plain = mqtool.LitePullConsumer("G", broker.name_server_address, consume_from_where=ConsumeFrom.FIRST_OFFSET)
    plain.subscribe("Orders")
    with plain:
        assert [one.value for one in plain.poll(10_000)] == [b"1"]
