"""Hooks are told of every message before and after, however it is sent or consumed; traces go along with messages."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import mqtool
from mqtool import ConsumeFrom, ConsumerMessage, ConsumeStatus, Hook, MqtoolError, ProducerMessage, UsageError, aio
from mqtool.opentelemetry import OpenTelemetryHook
from tests.engine.client_runtime.test_push_consumer import until


@pytest.fixture
def broker() -> Iterator[mqtool.Broker]:
    with mqtool.Broker() as running:
        yield running


class ToldHook(Hook):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.groups: set[str] = set()
        self.begun: list[list[bytes]] = []
        self.sent: list[tuple[list[bytes], int, type[BaseException] | None]] = []
        self.consumed: list[tuple[bytes, Any, type[BaseException] | None]] = []
        self.handed_back: list[tuple[Any, Any]] = []  # and what it had returned before
        self.threads: list[threading.Thread] = []

    def before_send(self, messages: Sequence[ProducerMessage], group: str) -> Any:
        self.groups.add(group)
        for one in messages:
            one.properties["hooked"] = "yes"
        self.begun.append([one.encoded_body for one in messages])
        return self.begun[-1]

    def after_send(self, messages: Sequence[ProducerMessage], given: Any, results: Any, error: Any) -> None:
        bodies = [one.encoded_body for one in messages]
        self.handed_back.append((given, bodies))
        self.sent.append((bodies, len(results), type(error) if error else None))

    def before_consume(self, messages: Sequence[ConsumerMessage], group: str) -> Any:
        self.groups.add(group)
        self.threads.append(threading.current_thread())
        return messages[0].body

    def after_consume(self, messages: Sequence[ConsumerMessage], given: Any, status: Any, error: Any) -> None:
        self.handed_back.append((given, messages[0].body))
        self.consumed.append((messages[0].body, status, type(error) if error else None))


def push(broker: mqtool.Broker, listener: Callable[..., Any], *hooks: Hook) -> mqtool.PushConsumer:
    options = mqtool.PushConsumerOptions(consume_from_where=ConsumeFrom.FIRST_OFFSET, hooks=hooks)
    made = mqtool.PushConsumer("G", listener, broker.name_server_address, options)
    made.subscribe("Orders")
    return made


class Commits:
    def execute_local_transaction(self, message: ProducerMessage, arg: Any) -> mqtool.TransactionState:  # noqa: ARG002
        return mqtool.TransactionState.COMMIT

    def check_local_transaction(self, message: ConsumerMessage) -> mqtool.TransactionState:
        raise AssertionError(message)


def replies(producer: mqtool.Producer) -> Callable[..., None]:
    """Return a listener that replies to requests."""

    def listen(messages: Sequence[ConsumerMessage], _: Any) -> None:
        for one in messages:
            if one.body == b"request":
                producer.reply(one, b"reply")

    return listen


@pytest.mark.parametrize("auto_batch", [False, True])
def test_a_hook_is_told_of_every_kind_of_send(broker: mqtool.Broker, auto_batch: bool) -> None:
    told = ToldHook()
    with (
        mqtool.Producer("Replies", broker.name_server_address) as replying,
        mqtool.TransactionProducer(
            "P", Commits(), broker.name_server_address, hooks=[told], auto_batch=auto_batch
        ) as producer,
    ):
        producer.send(ProducerMessage("Orders", b"send"))
        producer.send_async(ProducerMessage("Orders", b"async")).result()
        producer.send_oneway(ProducerMessage("Orders", b"oneway"))
        producer.send_batch([ProducerMessage("Orders", b"batch 1"), ProducerMessage("Orders", b"batch 2")])
        producer.send_in_transaction(ProducerMessage("Orders", b"transaction"))
        with push(broker, replies(replying)):
            producer.request(ProducerMessage("Orders", b"request"), timeout_ms=60_000)
        with pytest.raises(UsageError):
            producer.send(ProducerMessage("Orders", b""))
        producer.flush()
    assert told.sent == [
        ([b"send"], 1, None),
        ([b"async"], 1, None),
        ([b"oneway"], 0, None),
        ([b"batch 1", b"batch 2"], 2, None),
        ([b"transaction"], 1, None),
        ([b"request"], 1, None),
    ]
    assert told.groups == {"P"}
    assert all(given == returned for given, returned in told.handed_back)
    stored = [one for one in mqtool.open_store(broker.store).messages() if one.topic == "Orders"]
    assert len(stored) == 7
    assert all(one.properties["hooked"] == "yes" for one in stored)


def test_a_hook_is_told_of_nothing_that_a_producer_sends_which_is_not_running(broker: mqtool.Broker) -> None:
    told = ToldHook()
    with mqtool.Producer("P", broker.name_server_address, hooks=[told], auto_batch=True) as producer:
        producer.send(ProducerMessage("Orders", b"sent"))
    for send in (producer.send, producer.send_async):
        with pytest.raises(UsageError, match="not running"):
            _ = send(ProducerMessage("Orders", b"late"))
    assert told.begun == [bodies for bodies, _, _ in told.sent] == [[b"sent"]]
    assert told.groups == {"P"}
    assert all(given == returned for given, returned in told.handed_back)


def test_a_hook_is_told_what_failed(broker: mqtool.Broker) -> None:
    told = ToldHook()
    with mqtool.Producer("P", broker.name_server_address, hooks=[told]) as producer:
        with pytest.raises(MqtoolError):
            producer.send(ProducerMessage("Orders", b"nowhere"), mqtool.MessageQueue("Orders", "no broker", 0))
        with pytest.raises(UsageError, match="32,767"):
            producer.send(ProducerMessage("Orders", b"much", properties={"p": "x" * 40_000}))
    assert [(bodies, count) for bodies, count, _ in told.sent] == [([b"nowhere"], 0), ([b"much"], 0)]
    assert all(error for *_, error in told.sent)
    assert told.groups == {"P"}
    assert all(given == returned for given, returned in told.handed_back)


class Raises(ToldHook):
    """Fails when it is told a body."""

    def before_send(self, messages: Sequence[ProducerMessage], group: str) -> Any:
        if messages[0].body == b"before":
            raise SystemExit
        return super().before_send(messages, group)

    def after_send(self, messages: Sequence[ProducerMessage], given: Any, results: Any, error: Any) -> None:
        super().after_send(messages, given, results, error)
        raise KeyboardInterrupt


@pytest.mark.parametrize("auto_batch", [False, True])
def test_a_hook_that_fails_before_keeps_its_message_back_and_after_only_itself(
    broker: mqtool.Broker, auto_batch: bool
) -> None:
    first, fails = ToldHook(), Raises()
    options = mqtool.ProducerOptions(hooks=[first, fails], auto_batch=auto_batch)
    with mqtool.Producer("P", broker.name_server_address, options) as producer:
        with pytest.raises(mqtool.CallbackError, match="the hook raised SystemExit"):
            producer.send_async(ProducerMessage("Orders", b"before")).result()
        producer.send_async(ProducerMessage("Orders", b"after")).result()
    assert first.sent == [([b"before"], 0, mqtool.CallbackError), ([b"after"], 1, None)]
    assert first.groups == {"P"}
    assert all(given == returned for given, returned in first.handed_back)
    assert [one.body for one in mqtool.open_store(broker.store).messages() if one.topic == "Orders"] == [b"after"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_hook_is_told_of_every_call_of_a_listener(broker: mqtool.Broker, is_async: bool) -> None:
    told = ToldHook()
    in_threads: list[threading.Thread] = []

    def listen(messages: Sequence[ConsumerMessage], _: Any) -> ConsumeStatus:
        in_threads.append(threading.current_thread())
        if messages[0].body == b"fails":
            raise KeyError
        return ConsumeStatus.LATER if messages[0].body == b"later" else ConsumeStatus.SUCCESS

    async def listen_async(messages: Sequence[ConsumerMessage], context: Any) -> ConsumeStatus:
        await asyncio.sleep(0)
        return listen(messages, context)

    with mqtool.Producer("P", broker.name_server_address) as producer:
        for body in (b"well", b"fails", b"later"):
            producer.send(ProducerMessage("Orders", body))
    with push(broker, listen_async if is_async else listen, told):
        until(lambda: len(told.consumed) == 3)
    assert sorted(told.consumed) == [
        (b"fails", None, KeyError),
        (b"later", ConsumeStatus.LATER, None),
        (b"well", ConsumeStatus.SUCCESS, None),
    ]
    assert {*told.threads} == {*in_threads}
    assert told.groups == {"G"}
    assert all(given == returned for given, returned in told.handed_back)


# OpenTelemetry


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(spans: InMemorySpanExporter) -> TracerProvider:
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(spans))
    return made


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [one for one in spans.get_finished_spans() if one.name == name]


@pytest.mark.parametrize("auto_batch", [False, True])
def test_a_trace_goes_along_from_the_sender_to_the_listener(
    broker: mqtool.Broker, spans: InMemorySpanExporter, provider: TracerProvider, auto_batch: bool
) -> None:
    hook = OpenTelemetryHook(provider)
    tracer = provider.get_tracer("test")

    def listen(messages: Sequence[ConsumerMessage], _: Any) -> ConsumeStatus:
        with tracer.start_as_current_span("work"):
            return ConsumeStatus.LATER if messages[0].body == b"later" else ConsumeStatus.SUCCESS

    with (
        mqtool.Producer("P", broker.name_server_address, hooks=[hook], auto_batch=auto_batch) as producer,
        tracer.start_as_current_span("request"),
    ):
        producer.send_async(ProducerMessage("Orders", b"one")).result()
        result = producer.send(ProducerMessage("Orders", b"later"))
    with push(broker, listen, hook):
        until(lambda: len(named(spans, "process Orders")) == 2)
    [request], sent, processed = (named(spans, name) for name in ("request", "send Orders", "process Orders"))
    assert all(one.parent == request.context for one in sent)
    assert {one.parent.span_id for one in processed if one.parent} == {one.context.span_id for one in sent}
    assert {one.context.trace_id for one in spans.get_finished_spans()} == {request.context.trace_id}
    assert {one.parent.span_id for one in named(spans, "work") if one.parent} == {
        one.context.span_id for one in processed
    }
    assert sorted(one.status.status_code is StatusCode.ERROR for one in processed) == [False, True]
    assert (sent[1].attributes or {})["messaging.message.id"] == result.message_id


def test_a_batch_is_one_span_and_a_send_that_fails_is_an_error(
    broker: mqtool.Broker, spans: InMemorySpanExporter, provider: TracerProvider
) -> None:
    async def run() -> None:
        async with aio.Producer("P", broker.name_server_address, hooks=[OpenTelemetryHook(provider)]) as producer:
            await producer.send_batch([ProducerMessage("Orders", b"%d" % number) for number in range(3)])
            with pytest.raises(MqtoolError):
                await producer.send(ProducerMessage("Orders", b"x"), mqtool.MessageQueue("Orders", "no broker", 0))

    asyncio.run(run())
    batch, failed = named(spans, "send Orders")
    assert (batch.attributes or {})["messaging.batch.message_count"] == 3
    assert failed.status.status_code is StatusCode.ERROR
    stored = [one.properties for one in mqtool.open_store(broker.store).messages() if one.topic == "Orders"]
    assert [format(batch.context.trace_id, "032x") in one["traceparent"] for one in stored] == [True] * 3


def test_a_hook_is_told_where_each_message_of_a_batch_is_though_it_became_several_requests(
    broker: mqtool.Broker,
) -> None:
    class Places(Hook):
        def after_send(self, messages: Any, given: Any, results: Any, error: Any) -> None:  # noqa: ARG002
            self.told = [(one.message_id, one.queue.queue_id, one.queue_offset) for one in results]
            self.traced = [one.offset_message_id for one in results]

    places = Places()
    messages = [ProducerMessage("Orders", bytes(300)) for _ in range(7)]
    with mqtool.Producer("P", broker.name_server_address, hooks=[places], max_message_size=1000) as producer:
        assert len(producer.send_batch(messages)) > 2
    stored = {one.message_id: one for one in mqtool.open_store(broker.store).messages()}
    held = sorted((one.queue_id, one.queue_offset) for one in stored.values())
    assert sorted(place[1:] for place in places.told) == held
    assert [place[0] for place in places.told] == [one.unique_key for one in messages]
    assert [(stored[one].queue_id, stored[one].queue_offset) for one in places.traced] == [
        place[1:] for place in places.told
    ]
