"""Hooks are told of messages that a program asks for: before it gets them, and when they count as consumed."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import mqtool
from mqtool import ConsumeFrom, ConsumerMessage, ConsumeStatus, Hook, ProducerMessage, aio
from mqtool.formats.topics import TRACE_TOPIC
from mqtool.formats.trace import parse_trace
from mqtool.opentelemetry import OpenTelemetryHook

BODIES = [b"0", b"1", b"2"]
KINDS = ("lite", "pop")


@pytest.fixture
def broker() -> Iterator[mqtool.Broker]:
    """A broker that has three messages in one queue."""
    with mqtool.Broker() as running:
        fill(running)
        yield running


def fill(broker: mqtool.Broker, *hooks: Hook) -> None:
    with mqtool.Producer("P", broker.name_server_address, hooks=hooks) as producer:
        queue = producer.queues("Orders")[0]
        for body in BODIES:
            producer.send(ProducerMessage("Orders", body), queue)


def consumer(kind: str, broker: mqtool.Broker, *hooks: Hook, **more: Any) -> Any:
    address = broker.name_server_address
    module: Any = aio if kind.startswith("aio") else mqtool
    if kind.endswith("lite"):
        made = module.LitePullConsumer("G", address, consume_from_where=ConsumeFrom.FIRST_OFFSET, hooks=hooks, **more)
    else:
        made = module.PopConsumer("G", address, hooks=hooks, **more)
    made.subscribe("Orders")
    return made


class NotingHook(Hook):
    """Notes what it is told, and what the program says in between."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    def before_consume(self, messages: Sequence[ConsumerMessage], group: str) -> Any:
        bodies = b"".join(one.body for one in messages)
        self.notes.append(("before", bodies, group))
        return bodies

    def after_consume(self, messages: Sequence[ConsumerMessage], given: Any, status: Any, error: Any) -> None:
        bodies = b"".join(one.body for one in messages)
        self.notes.append(("after", bodies, given, status, type(error) if error else None))


def whole(bodies: bytes, status: ConsumeStatus | None = ConsumeStatus.SUCCESS, error: Any = None) -> list[Any]:
    """Return the notes of messages that the program was at work with."""
    return [("before", bodies, "G"), bodies, ("after", bodies, bodies, status, error)]


EACH = [note for body in BODIES for note in whole(body)]


@pytest.mark.parametrize("kind", KINDS)
def test_who_asks_for_the_next_message_or_ends_the_block_is_done_with_the_last(
    broker: mqtool.Broker, kind: str
) -> None:
    told = NotingHook()
    with consumer(kind, broker, told) as one:
        for message in one:
            told.notes.append(message.body)
            if message.body == BODIES[-1]:
                break
        assert told.notes[-1] == BODIES[-1]
    assert told.notes == EACH


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_with_asyncio(broker: mqtool.Broker, kind: str) -> None:
    told = NotingHook()

    async def run() -> None:
        async with consumer(f"aio {kind}", broker, told) as one:
            async for message in one:
                told.notes.append(message.body)
                if message.body == BODIES[-1]:
                    break

    asyncio.run(run())
    assert told.notes == EACH


@pytest.mark.parametrize("kind", KINDS)
def test_a_hook_is_told_what_ended_the_block(broker: mqtool.Broker, kind: str) -> None:
    told = NotingHook()
    with pytest.raises(KeyError), consumer(kind, broker, told) as one:
        for message in one:
            told.notes.append(message.body)
            raise KeyError
    assert told.notes == whole(b"0", None, KeyError)


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_comes_later_whose_consumer_is_shut_down_while_the_program_is_at_it(
    broker: mqtool.Broker, kind: str
) -> None:
    told = NotingHook()
    one = consumer(kind, broker, told)
    one.start()
    told.notes.append(next(one).body)
    one.shutdown()
    assert told.notes == whole(b"0", ConsumeStatus.LATER)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_told_when_its_block_ends(broker: mqtool.Broker, kind: str) -> None:
    told = NotingHook()

    def work(one: Any, error: Exception | None) -> None:
        with one.batch() as messages:
            told.notes.append(b"".join(message.body for message in messages))
            if error:
                raise error

    with consumer(kind, broker, told, **({"pop_invisible_time": 100} if kind == "pop" else {})) as one:
        with pytest.raises(KeyError):
            work(one, KeyError())
        assert told.notes == whole(b"012", None, KeyError)
        told.notes.clear()
        work(one, None)
        assert told.notes == whole(b"012")
        with one.batch(timeout_ms=0) as messages:
            assert messages == []
    assert told.notes == whole(b"012")


@pytest.mark.parametrize("kind", [*KINDS, "pull"])
def test_what_is_given_at_once_counts_as_consumed_at_once(broker: mqtool.Broker, kind: str) -> None:
    told = NotingHook()
    if kind == "pull":
        with mqtool.PullConsumer("G", broker.name_server_address, hooks=[told]) as pulling:
            queue = pulling.fetch_message_queues("Orders")[0]
            assert [one.body for one in pulling.pull(queue, 0).messages] == BODIES
            assert not pulling.pull(queue, 3).messages
    else:
        with consumer(kind, broker, told) as one:
            ask = one.poll if kind == "lite" else one.pop
            assert [message.body for message in ask()] == BODIES
            assert ask(timeout_ms=0) == []
    assert told.notes == [("before", b"012", "G"), ("after", b"012", b"012", ConsumeStatus.SUCCESS, None)]


def test_who_commits_in_a_loop_is_done_with_the_message_then(broker: mqtool.Broker) -> None:
    told = NotingHook()
    one = consumer("lite", broker, told, auto_commit=False)
    one.start()
    told.notes.append(next(one).body)
    one.commit()
    assert told.notes == whole(b"0")
    one.shutdown()
    assert told.notes == whole(b"0")


class Fails(Hook):
    def before_consume(self, messages: Sequence[ConsumerMessage], group: str) -> Any:  # noqa: ARG002
        if messages[0].body == b"0":
            raise SystemExit

    def after_consume(self, messages: Any, given: Any, status: Any, error: Any) -> None:  # noqa: ARG002
        raise KeyboardInterrupt


@pytest.mark.parametrize("kind", KINDS)
def test_a_hook_that_fails_is_logged_once_and_keeps_no_message_back(
    broker: mqtool.Broker, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = NotingHook(), NotingHook()
    with consumer(kind, broker, first, Fails(), second) as one:
        for message in one:
            for told in (first, second):
                told.notes.append(message.body)
            if message.body == BODIES[-1]:
                break
    assert first.notes == second.notes == EACH
    logged = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
    assert logged == [
        "a hook failed before messages were delivered",
        *["a hook failed after messages were handled"] * 2,
    ]


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [one for one in spans.get_finished_spans() if one.name == name]


@pytest.mark.parametrize("kind", [*KINDS, *(f"aio {kind}" for kind in KINDS)])
def test_a_trace_goes_along_from_the_sender_to_the_program(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    hook = OpenTelemetryHook(provider)
    one_by_one = {"pop_batch_nums": 1} if kind.endswith("pop") else {}

    async def read_async(broker: mqtool.Broker) -> None:
        async with consumer(kind, broker, hook, **one_by_one) as one:
            async for _ in one:
                break
            async with one.batch() as messages:
                assert messages
            raise KeyError

    def read(one: Any) -> None:
        with one:
            next(one)
            with one.batch() as messages:
                assert messages
            raise KeyError

    with mqtool.Broker() as broker:
        fill(broker, hook)
        with pytest.raises(KeyError):
            if kind.startswith("aio"):
                asyncio.run(read_async(broker))
            else:
                read(consumer(kind, broker, hook, **one_by_one))
    sent, processed = named(spans, "send Orders"), named(spans, "process Orders")
    first, rest = sorted(processed, key=lambda one: one.start_time or 0)
    assert first.parent
    assert first.parent.span_id == sent[0].context.span_id
    assert [one.context.span_id for one in rest.links] == [one.context.span_id for one in sent[1 : 1 + len(rest.links)]]
    # What was popped and not acknowledged is still at work when the block ends.
    assert first.status.status_code is (StatusCode.ERROR if kind.endswith("pop") else StatusCode.UNSET)
    assert rest.status.status_code is StatusCode.UNSET
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("kind", [*KINDS, "pull"])
def test_message_traces_tell_what_a_program_asked_for(broker: mqtool.Broker, kind: str) -> None:
    with mqtool.Producer("P", broker.name_server_address) as producer:
        queue = producer.queues("Orders")[1]
        sent = producer.send(ProducerMessage("Orders", b"traced", keys="k"), queue)
    if kind == "pull":
        with mqtool.PullConsumer("G", broker.name_server_address, trace=True) as pulling:
            assert pulling.pull(queue, 0).messages
    else:
        with consumer(kind, broker, trace=True) as one:
            bodies = {next(one).body for _ in range(len(BODIES) + 1)}
            assert bodies == {*BODIES, b"traced"}
    carriers = [one for one in mqtool.open_store(broker.store).messages() if one.topic == TRACE_TOPIC]
    records = [record for one in carriers for record in parse_trace(one.body)]
    begun, ended = [record for record in records if record.unique_key == sent.message_id]
    assert (begun.kind, ended.kind, begun.group, ended.group) == ("SubBefore", "SubAfter", "G", "G")
    assert begun.request_id == ended.request_id
    assert ended.is_success
