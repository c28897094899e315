"""Code of the application that raises what it should not: that call fails, and nothing else stops."""

import asyncio
import collections
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import mqtool
from mqtool import ConsumerMessage, ProducerMessage, PushConsumerOptions
from mqtool.engine.client.rebalance import averagely
from mqtool.engine.client_runtime import push_consumer
from mqtool.engine.client_runtime.consume_services import ConsumeContext
from mqtool.errors import CallbackError, UsageError
from mqtool.formats.bodies import MessageQueue
from tests.engine.client_runtime.test_push_consumer import (
    FIRST,
    PATIENCE,
    Listener,
    committed,
    consumer,
    send,
    topics_of,
    until,
)

RAISED = [SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError(), StopIteration(), GeneratorExit(), ValueError()]
each_error = pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)


@pytest.fixture
def broker() -> Iterator[mqtool.Broker]:
    with mqtool.Broker() as running:
        yield running


def hostile(error: BaseException, *, is_coroutine: bool) -> tuple[Any, list[bytes]]:
    """Return a listener that raises for each body that begins with "bad", and the other bodies."""
    good: list[bytes] = []

    def listen(messages: Sequence[ConsumerMessage], _context: ConsumeContext) -> None:
        for message in messages:
            if message.body.startswith(b"bad"):
                raise error
            good.append(message.body)

    async def listen_later(messages: Sequence[ConsumerMessage], context: ConsumeContext) -> None:
        listen(messages, context)

    return (listen_later if is_coroutine else listen), good


@each_error
@pytest.mark.parametrize("is_coroutine", [False, True], ids=["function", "coroutine"])
def test_whatever_a_listener_raises_is_a_failed_consumption(
    error: BaseException, is_coroutine: bool, broker: mqtool.Broker
) -> None:
    send(broker, [b"bad %d" % number for number in range(30)])  # more than listeners at work at a time
    send(broker, [b"good"] * 10)
    listener, good = hostile(error, is_coroutine=is_coroutine)

    with consumer(broker, listener, max_reconsume_times=0, consume_thread_max=5):
        until(lambda: len(good) >= 10)
        until(lambda: "%DLQ%G" in topics_of(broker))

    dead = Listener()
    reader = mqtool.PushConsumer("Dead", dead, broker.name_server_address, PushConsumerOptions(**FIRST))
    reader.subscribe("%DLQ%G")
    with reader:
        assert sorted(set(dead.wait_for(30))) == sorted(b"bad %d" % number for number in range(30))
    assert good == [b"good"] * 10


@each_error
def test_whatever_an_orderly_listener_raises_holds_up_its_queue_and_no_other(
    error: BaseException, broker: mqtool.Broker
) -> None:
    with mqtool.Producer("P", broker.name_server_address) as producer:
        queues = producer.queues("Orders")
        producer.send(ProducerMessage("Orders", b"bad"), queues[0])
        producer.send(ProducerMessage("Orders", b"behind it"), queues[0])
        producer.send(ProducerMessage("Orders", b"elsewhere"), queues[1])
    seen: collections.Counter[bytes] = collections.Counter()

    def listener(messages: Sequence[ConsumerMessage], _context: ConsumeContext) -> None:
        seen[messages[0].body] += 1
        if messages[0].body == b"bad" and seen[b"bad"] < 3:
            raise error

    with consumer(broker, listener, orderly=True, suspend_current_queue_time_millis=10):
        until(lambda: sum(seen.values()) == 5)
    assert seen == {b"bad": 3, b"behind it": 1, b"elsewhere": 1}


@each_error
@pytest.mark.parametrize("is_coroutine", [False, True], ids=["function", "coroutine"])
def test_what_a_listener_raises_is_logged_once_with_its_traceback(
    error: BaseException, is_coroutine: bool, broker: mqtool.Broker, caplog: pytest.LogCaptureFixture
) -> None:
    send(broker, [b"bad"])
    listener, _ = hostile(error, is_coroutine=is_coroutine)
    with consumer(broker, listener, max_reconsume_times=0):
        until(lambda: "%DLQ%G" in topics_of(broker))
    [logged] = [one for one in caplog.records if one.exc_info]
    assert "the listener failed with messages of" in logged.getMessage()
    assert logged.exc_text
    assert "in listen\n    raise error" in logged.exc_text


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("waits", [False, True], ids=["and returns", "and waits"])
def test_a_coroutine_that_cancels_the_task_it_runs_in_ends_no_worker(
    waits: bool, orderly: bool, broker: mqtool.Broker
) -> None:
    seen: collections.Counter[bytes] = collections.Counter()

    async def listener(messages: Sequence[ConsumerMessage], _context: ConsumeContext) -> None:
        body = messages[0].body
        seen[body] += 1
        if body.startswith(b"bad") and seen[body] == 1:
            task = asyncio.current_task()
            assert task
            task.cancel()
            if waits:
                await asyncio.sleep(0)
            raise KeyError(body)

    with mqtool.Producer("P", broker.name_server_address) as producer:
        queue = producer.queues("Orders")[0]
        for body in (b"bad 1", b"bad 2", b"bad 3", b"good"):  # more than listeners at work at a time
            producer.send(ProducerMessage("Orders", body), queue)
    options: dict[str, Any] = {"suspend_current_queue_time_millis": 10} if orderly else {"consume_thread_max": 2}
    with consumer(broker, listener, orderly=orderly, max_reconsume_times=3, **options):
        until(lambda: seen[b"good"] == 1 and committed(broker) == 4)
        if orderly:
            assert seen == {b"bad 1": 2, b"bad 2": 2, b"bad 3": 2, b"good": 1}


@pytest.mark.parametrize(
    "nonsense", [{"ack_index": "all"}, {"ack_index": None}, {"delay_level": "soon"}, {"delay_level": 1 << 40}]
)
@pytest.mark.parametrize("raises", [False, True])
def test_nonsense_that_a_listener_tells_besides_is_a_failed_consumption_too(
    nonsense: dict[str, Any], raises: bool, broker: mqtool.Broker, caplog: pytest.LogCaptureFixture
) -> None:
    def listener(messages: Sequence[ConsumerMessage], context: ConsumeContext) -> None:
        if messages[0].body == b"bad":
            for name, value in nonsense.items():
                setattr(context, name, value)
            if raises:
                raise KeyError

    send(broker, [b"bad", b"good"])
    with consumer(broker, listener, max_reconsume_times=0):
        until(lambda: "%DLQ%G" in topics_of(broker))
        until(lambda: committed(broker) == 2)
    assert "which is not a number" in caplog.text
    assert "will be restarted" not in caplog.text


def test_of_a_batch_nothing_is_consumed_where_the_listener_says_less_than_that(broker: mqtool.Broker) -> None:
    seen: list[bytes] = []

    def listener(messages: Sequence[ConsumerMessage], context: ConsumeContext) -> None:
        seen.extend(one.body for one in messages)
        context.ack_index = -5

    with mqtool.Producer("P", broker.name_server_address) as producer:
        producer.send_batch([ProducerMessage("Orders", b"%d" % number) for number in range(8)])
    dead = Listener()
    with consumer(broker, listener, max_reconsume_times=0, consume_message_batch_max_size=8):
        until(lambda: len(seen) >= 8 and committed(broker) == 8)
    reader = mqtool.PushConsumer("Dead", dead, broker.name_server_address, PushConsumerOptions(**FIRST))
    reader.subscribe("%DLQ%G")
    with reader:
        assert sorted(dead.wait_for(8)) == [b"%d" % number for number in range(8)]


@pytest.mark.parametrize("orderly", [False, True])
def test_a_listener_may_end_its_own_consumer(
    orderly: bool, broker: mqtool.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_consumer, "LISTENERS_END_S", 3600)  # for which it would wait for itself
    with mqtool.Producer("P", broker.name_server_address) as producer:
        queue = producer.queues("Orders")[0]
        for number in range(5):
            producer.send(ProducerMessage("Orders", b"%d" % number), queue)
    ended = threading.Event()

    def listener(messages: Sequence[ConsumerMessage], _context: ConsumeContext) -> None:
        if messages[0].body == b"3":
            running.close()
            ended.set()

    with consumer(broker, listener, orderly=orderly, consume_thread_max=1) as running:
        assert ended.wait(PATIENCE)
    assert committed(broker) == 3


@pytest.mark.parametrize("orderly", [False, True])
def test_a_coroutine_may_end_its_own_consumer_and_leaves_no_task(orderly: bool, broker: mqtool.Broker) -> None:
    send(broker, [b"one"])

    async def run() -> None:
        ended = asyncio.Event()

        async def listener(_messages: Sequence[ConsumerMessage], _context: ConsumeContext) -> None:
            await made.shutdown()
            await asyncio.sleep(0)
            ended.set()

        before = asyncio.all_tasks()
        made = mqtool.aio.PushConsumer("G", listener, broker.name_server_address, orderly=orderly, **FIRST)
        made.subscribe("Orders")
        async with asyncio.timeout(PATIENCE):
            await made.start()
            await ended.wait()
            while asyncio.all_tasks() != before:
                await asyncio.sleep(0.01)
        assert not made.is_running

    asyncio.run(run())
    assert committed(broker) == 0


@each_error
def test_whatever_a_selector_raises_is_raised_by_the_send_and_others_go_on(
    error: BaseException, broker: mqtool.Broker
) -> None:
    def selector(_queues: Sequence[MessageQueue], _message: ProducerMessage, _arg: Any) -> MessageQueue:
        raise error

    with mqtool.Producer("P", broker.name_server_address) as producer:
        with pytest.raises(ValueError if isinstance(error, ValueError) else CallbackError) as raised:
            producer.send(ProducerMessage("Orders", b"one"), selector=selector)
        assert raised.value is error or raised.value.__cause__ is error
        assert producer.send(ProducerMessage("Orders", b"two")).queue_offset == 0


def test_a_selector_that_returns_nonsense_is_told_so(broker: mqtool.Broker) -> None:
    with (
        mqtool.Producer("P", broker.name_server_address) as producer,
        pytest.raises(UsageError, match="the selector returned 3, which is not a queue"),
    ):
        producer.send(ProducerMessage("Orders", b"one"), selector=lambda *_: 3)  # type: ignore[arg-type]


@each_error
def test_a_strategy_that_raises_once_shares_the_queues_out_the_next_time(
    error: BaseException, broker: mqtool.Broker
) -> None:
    send(broker, [b"one"])
    calls = []

    def strategy(queues: Sequence[MessageQueue], members: Sequence[str], own: str) -> list[MessageQueue]:
        calls.append(own)
        if len(calls) == 1:
            raise error
        return averagely(queues, members, own)

    listener = Listener()
    with consumer(broker, listener, strategy=strategy) as running:
        until(lambda: bool(calls))
        running._client._rebalance_wanted.set()  # the next time, without waiting 20 s for it
        running.subscribe("Orders")
        assert listener.wait_for(1) == [b"one"]


@each_error
def test_whatever_a_transaction_listener_raises_is_raised_by_the_send(
    error: BaseException, broker: mqtool.Broker
) -> None:
    class Raising:
        def execute_local_transaction(self, _message: ProducerMessage, _arg: Any) -> Any:
            raise error

        def check_local_transaction(self, _message: ConsumerMessage) -> Any:
            raise error

    with mqtool.TransactionProducer("T", Raising(), broker.name_server_address) as producer:
        with pytest.raises(ValueError if isinstance(error, ValueError) else CallbackError):
            producer.send_in_transaction(ProducerMessage("Orders", b"one"))
        assert producer.send(ProducerMessage("Orders", b"two")).queue_offset == 0
