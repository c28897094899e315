"""The clients in Python with real brokers of every version, and with ours: the same scenarios, the same outcome."""

import collections
import contextlib
import json
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client import CollectorRegistry

import mqtool
from mqtool import (
    ConsumeContext,
    ConsumeFrom,
    ConsumerMessage,
    ConsumeStatus,
    LitePullConsumerOptions,
    MessageModel,
    PopConsumerOptions,
    ProducerMessage,
    PullStatus,
    PushConsumerOptions,
    TransactionState,
)
from mqtool.engine.cluster import Cluster
from mqtool.engine.server_configs import NameServerConfig
from mqtool.errors import MqtoolError, UsageError
from mqtool.formats.topics import TRACE_TOPIC
from mqtool.formats.trace import TraceRecord, parse_trace
from mqtool.opentelemetry import OpenTelemetryHook
from tests.differential.conftest import jars
from tests.differential.java_broker import POM, broker_process, in_a_thread, mqadmin, within
from tests.differential.java_store import VERSIONS
from tests.ports import free_port

PATIENCE = 120  # s; a test that waits so long has failed
SETTINGS: dict[str, Any] = {
    "enablePropertyFilter": "true",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
}
FIRST: dict[str, Any] = {"consume_from_where": ConsumeFrom.FIRST_OFFSET}
OURS = "ours"


class BrokerTarget(NamedTuple):
    """Brokers to talk to."""

    name_server: str
    version: str
    pid: int | None = None
    """Of the process of a broker of RocketMQ."""

    @property
    def is_four(self) -> bool:
        """Whether it knows nothing of 5.x."""
        return self.version.startswith("4")


def _group_of(version: str) -> Any:
    marks = [pytest.mark.xdist_group(f"python-{version}")]
    return pytest.param(version, marks=marks if version == OURS else [*marks, pytest.mark.java])


EVERY_BROKER = [_group_of(version) for version in (OURS, *VERSIONS)]


@pytest.fixture(scope="module", params=EVERY_BROKER)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerTarget]:
    with running(request.param, tmp_path_factory) as brokers:
        yield brokers


@contextlib.contextmanager
def running(version: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerTarget]:
    """Run a broker of a version, or ours."""
    if version == OURS:
        with mqtool.Broker(settings=SETTINGS) as broker:
            yield BrokerTarget(broker.name_server_address, version)
        return
    jars(version, POM)
    with in_a_thread(_java_broker(version, tmp_path_factory.mktemp("java") / "broker")) as (name_server, pid):
        yield BrokerTarget(name_server, version, pid)


@contextlib.asynccontextmanager
async def _java_broker(version: str, folder: Path) -> AsyncIterator[tuple[str, int]]:
    """Run a broker of RocketMQ, and give the address of its name server and its process."""
    lines = "".join(f"{name}={value}\n" for name, value in SETTINGS.items())
    async with (
        Cluster(NameServerConfig()) as names,
        broker_process(version, folder, names.name_server_address, free_port(), settings=lines) as process,
    ):
        yield names.name_server_address, process.pid


@pytest.fixture(autouse=True)
def rebalance_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have consumers find new topics, and the retry topic of a new group, within a second in place of 20."""
    monkeypatch.setattr("mqtool.engine.client_runtime.consumer.REBALANCE_MS", 1000)


@pytest.fixture(name="topic")
def topic_of_test(request: pytest.FixtureRequest, target: BrokerTarget) -> str:
    """A topic for one test, which the broker has."""
    name = "".join(one if one.isalnum() else "_" for one in request.node.originalname.removeprefix("test_"))
    with producer(target) as sending:
        until(lambda: sends(sending, name))
    return name


def sends(sending: mqtool.Producer, name: str) -> bool:
    """Send a first message to a topic, which makes it; tell whether the broker has taken it."""
    try:
        sending.send(ProducerMessage(name, b"first", tags="first"))
    except MqtoolError:  # a broker that has just started refuses for a moment
        return False
    return True


def until(is_so: Callable[[], bool]) -> None:
    """Return when a condition holds."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def producer(target: BrokerTarget, **options: Any) -> mqtool.Producer:
    return mqtool.Producer("P", target.name_server, mqtool.ProducerOptions(**options))


class CountingListener:
    """A listener that counts what it is given, and answers as it is told."""

    def __init__(self, answer: Callable[[ConsumerMessage], ConsumeStatus] | None = None) -> None:
        self.messages: list[ConsumerMessage] = []
        self._answer = answer
        self._lock = threading.Lock()

    def __call__(self, messages: Sequence[ConsumerMessage], context: ConsumeContext) -> ConsumeStatus:
        context.delay_level = 1
        with self._lock:
            new = [one for one in messages if one.tags != "first"]
            self.messages += new
        return self._answer(new[0]) if self._answer and new else ConsumeStatus.SUCCESS

    @property
    def bodies(self) -> list[bytes]:
        """The bodies, in the order in which they came."""
        return [one.body for one in self.messages]


def consumer(
    target: BrokerTarget, group: str, topic: str, listener: CountingListener, expression: str = "*", **options: Any
) -> mqtool.PushConsumer:
    made = mqtool.PushConsumer(group, listener, target.name_server, PushConsumerOptions(**{**FIRST, **options}))
    made.subscribe(topic, expression, is_sql92=expression.startswith("a "))
    return made


def send(target: BrokerTarget, topic: str, bodies: Sequence[bytes], **more: Any) -> None:
    with producer(target) as sending:
        for body in bodies:
            sending.send(ProducerMessage(topic, body, **more))


BODIES = [b"%d" % number for number in range(40)]


def test_sends_of_all_kinds(target: BrokerTarget, topic: str) -> None:
    seen = CountingListener()
    with producer(target) as sending, consumer(target, topic, topic, seen):
        results = [sending.send(ProducerMessage(topic, b"sync", tags="a", keys=["k1", "k2"], properties={"x": "y"}))]
        results.append(sending.send_async(ProducerMessage(topic, b"async")).result(PATIENCE))
        sending.send_oneway(ProducerMessage(topic, b"oneway"))
        sending.send_batch([ProducerMessage(topic, b"batch %d" % number) for number in range(3)])
        large = b"compressed " * 10_000
        sending.send(ProducerMessage(topic, large))
        until(lambda: len({*seen.bodies}) >= 7)
        assert all(one.status is mqtool.SendStatus.SEND_OK for one in results)
    assert collections.Counter(seen.bodies) == collections.Counter(
        [b"sync", b"async", b"oneway", b"batch 0", b"batch 1", b"batch 2", large]
    )
    [sync] = [one for one in seen.messages if one.body == b"sync"]
    assert (sync.tags, sync.keys, sync.properties["x"]) == ("a", ["k1", "k2"], "y")
    assert (sync.message_id, sync.offset_message_id) == (results[0].message_id, results[0].offset_message_id)


def test_automatic_batches(target: BrokerTarget, topic: str) -> None:
    seen = CountingListener()
    with producer(target, auto_batch=True) as sending:
        queue = sending.queues(topic)[0]
        futures = [sending.send_async(ProducerMessage(topic, b"%d" % number, tags="a"), queue) for number in range(500)]
        results = [future.result(PATIENCE) for future in futures]
    with consumer(target, topic, topic, seen, "a"):
        until(lambda: len(seen.messages) >= 500)
    places = [(one.queue.queue_id, one.queue_offset, one.offset_message_id) for one in results]
    by_body = {one.body: one for one in seen.messages}
    found = [by_body[b"%d" % number] for number in range(500)]
    assert places == [(one.queue_id, one.queue_offset, one.offset_message_id) for one in found]
    assert [one.queue_offset for one in results] == [*range(results[0].queue_offset, results[0].queue_offset + 500)]


def test_traces(target: BrokerTarget, topic: str) -> None:
    def listen(one: ConsumerMessage) -> ConsumeStatus:
        if one.body == b"1" and not one.reconsume_times:
            raise KeyError
        return ConsumeStatus.SUCCESS

    seen = CountingListener(listen)
    with producer(target, trace=True) as sending, consumer(target, topic, topic, seen, trace=True):
        sent = [sending.send(ProducerMessage(topic, b"%d" % number, keys=[f"key-{number}"])) for number in range(3)]
        until(lambda: len(seen.messages) >= 4)
    by_key: dict[str, list[TraceRecord]] = collections.defaultdict(list)
    with mqtool.PullConsumer("T", target.name_server) as reading:
        for queue in reading.fetch_message_queues(TRACE_TOPIC):
            for message in reading.pull(queue, reading.min_offset(queue), 100).messages:
                for record in parse_trace(message.body):
                    assert record.unique_key in message.keys
                    by_key[record.unique_key].append(record)
    for number, result in enumerate(sent):
        [pub] = [one for one in by_key[result.message_id] if one.kind == "Pub"]
        assert (pub.topic, pub.group, pub.is_success) == (topic, "P", True)
        given = [one for one in by_key[result.message_id] if one.kind == "SubBefore"]
        after = [one for one in by_key[result.message_id] if one.kind == "SubAfter"]
        assert {one.request_id for one in given} == {one.request_id for one in after}
        assert sorted(one.is_success or False for one in after) == ([False, True] if number == 1 else [True])
        assert {one.group for one in (*given, *after)} == {topic}


@pytest.mark.java
def test_mqadmin_shows_what_our_clients_tell_of_a_message(target: BrokerTarget, topic: str, tmp_path: Path) -> None:
    seen = CountingListener()
    with producer(target, trace=True) as sending, consumer(target, topic, topic, seen, trace=True):
        sent = sending.send(ProducerMessage(topic, b"1", keys=["key-1"]))
        until(lambda: bool(seen.messages))
    asking: list[Any] = [mqtool.LitePullConsumer(f"{topic}_lite", target.name_server, trace=True, **FIRST)]
    if not target.is_four:
        asking.append(mqtool.PopConsumer(f"{topic}_pop", target.name_server, trace=True))
    for made in asking:
        made.subscribe(topic)
        with made:
            while next(made).message_id != sent.message_id:
                pass
    with mqtool.PullConsumer(f"{topic}_pull", target.name_server, trace=True) as pulling:
        assert pulling.pull(sent.queue, sent.queue_offset).messages
    kinds = ("lite", "pull") if target.is_four else ("lite", "pop", "pull")
    groups = [topic, *(f"{topic}_{kind}" for kind in kinds)]

    async def asked(version: str) -> str:
        async with mqadmin(version, tmp_path, target.name_server) as tool:
            said = ""
            # Brokers fill their index in the background.
            while "\nPub" not in said or said.count("\nSub") < len(groups):
                said = await tool.run("queryMsgTraceById", "-i", sent.message_id)
            return said

    said = within(PATIENCE, asked("5.3.3" if target.version == OURS else target.version))
    lines = [line.split() for line in said.splitlines() if line.startswith(("Pub", "Sub"))]
    told = sorted((line[0], line[1], line[-1]) for line in lines)
    assert told == sorted([("Pub", "P", "success"), *(("Sub", group, "success") for group in groups)]), said


def test_what_cannot_be_sent(target: BrokerTarget, topic: str) -> None:
    with producer(target) as sending, pytest.raises(UsageError, match="the maximum is 4,194,304"):
        sending.send(ProducerMessage(topic, bytes((4 << 20) + 1)))
    with producer(target, max_message_size=8 << 20, compress_msg_body_over_howmuch=8 << 20) as sending:
        with pytest.raises(MqtoolError) as refused:
            sending.send(ProducerMessage(topic, bytes((4 << 20) + 1)))
        assert "illegal" in str(refused.value) or "13" in str(refused.value)
        assert (refused.value.code, refused.value.retriable) == (13, False)
        assert isinstance(refused.value, mqtool.IllegalMessageError)


def test_a_body_of_4_mib_that_cannot_be_compressed_is_sent(target: BrokerTarget, topic: str) -> None:
    with producer(target, send_msg_timeout=60_000) as sending:
        sending.send(ProducerMessage(topic, random.Random(0).randbytes(4 << 20)))


def test_a_dead_letter_is_sent_again_with_its_properties(target: BrokerTarget, topic: str) -> None:
    seen = CountingListener(lambda message: ConsumeStatus.LATER if message.body == b"dead" else ConsumeStatus.SUCCESS)
    dead = CountingListener()
    with (
        producer(target) as sending,
        consumer(target, topic, topic, seen, max_reconsume_times=0),
        consumer(target, f"{topic}-dead", f"%DLQ%{topic}", dead),
    ):
        sending.send(ProducerMessage(topic, b"dead", "a", ["k", "l"], properties={"x": "y"}))
        until(lambda: bool(dead.messages))
        [letter] = dead.messages
        sending.send(ProducerMessage(topic, b"again", properties=letter.properties))
        until(lambda: seen.bodies == [b"dead", b"again"])
    again = seen.messages[1]
    assert (again.tags, again.keys, again.properties["x"]) == ("a", ["k", "l"], "y")
    assert again.unique_key not in (None, letter.unique_key)
    assert not {"DLQ_ORIGIN_TOPIC", "ORIGIN_MESSAGE_ID", "RETRY_TOPIC"} & {*again.properties}


def test_later(target: BrokerTarget, topic: str) -> None:
    seen = CountingListener()
    kinds: list[dict[str, Any]] = [{"delay_level": 1}]
    kinds += [] if target.is_four else [{"delay_ms": 1500}, {"deliver_at": time.time_ns() // 1_000_000 + 3000}]
    with producer(target) as sending, consumer(target, topic, topic, seen):
        for number, kind in enumerate(kinds):
            sending.send(ProducerMessage(topic, b"%d" % number, **kind))
        until(lambda: len({*seen.bodies}) >= len(kinds))
    for one in seen.messages:
        kind = kinds[int(one.body)]
        due = kind.get("deliver_at") or one.born_timestamp + kind.get("delay_ms", 1000)
        assert one.store_timestamp >= due


class Bank:
    """Ends transactions as their arguments say; those that are not known, when it is asked again."""

    def execute_local_transaction(self, _message: ProducerMessage, arg: Any) -> TransactionState:
        return TransactionState(arg)

    def check_local_transaction(self, message: ConsumerMessage) -> TransactionState:
        return TransactionState.COMMIT if b"commit" in message.body else TransactionState.ROLLBACK


def test_transactions(target: BrokerTarget, topic: str) -> None:
    seen = CountingListener()
    with (
        mqtool.TransactionProducer("Bank", Bank(), target.name_server) as sending,
        consumer(target, topic, topic, seen),
    ):
        for body, state in (
            (b"commit", TransactionState.COMMIT),
            (b"rollback", TransactionState.ROLLBACK),
            (b"later rollback", TransactionState.UNKNOWN),
            (b"later commit", TransactionState.UNKNOWN),
        ):
            sending.send_in_transaction(ProducerMessage(topic, body), state.value)
        until(lambda: b"commit" in seen.bodies and b"later commit" in seen.bodies)
    # Brokers of 5.x hold the ends of transactions back for 3 s: asked again meanwhile, a producer commits twice.
    assert {*seen.bodies} == {b"commit", b"later commit"}
    assert target.version != OURS or len(seen.bodies) == 2


def test_members_share(target: BrokerTarget, topic: str) -> None:
    first, second = CountingListener(), CountingListener()
    with consumer(target, topic, topic, first) as one:
        with consumer(target, topic, topic, second) as other:
            until(lambda: bool(_own(one, topic)) and bool(_own(other, topic)) and not _shared(one, other, topic))
            send(target, topic, BODIES)
            until(lambda: len(first.messages) + len(second.messages) >= 40)
            assert first.messages
            assert second.messages
        until(lambda: len(_own(one, topic)) >= 4)
        send(target, topic, [b"for the one that is left"])
        until(lambda: b"for the one that is left" in first.bodies)
    assert set(first.bodies + second.bodies) == {*BODIES, b"for the one that is left"}


def _own(one: mqtool.PushConsumer, topic: str) -> list[Any]:
    return [queue for queue in one.queues() if queue.topic == topic]


def _shared(one: mqtool.PushConsumer, other: mqtool.PushConsumer, topic: str) -> set[Any]:
    return {*_own(one, topic)} & {*_own(other, topic)}


def test_in_order(target: BrokerTarget, topic: str) -> None:
    failed: list[ConsumerMessage] = []

    def fails_once(message: ConsumerMessage) -> ConsumeStatus:
        if message.body == b"3" and not failed:
            failed.append(message)
            return ConsumeStatus.LATER
        return ConsumeStatus.SUCCESS

    seen = CountingListener(fails_once)
    with producer(target) as sending:
        queue = sending.queues(topic)[0]
        for body in BODIES[:10]:
            sending.send(ProducerMessage(topic, body), queue)
    with consumer(target, topic, topic, seen, orderly=True):
        until(lambda: len(seen.messages) >= 11)
    assert seen.bodies == BODIES[:4] + BODIES[3:10]


def test_broadcasts(target: BrokerTarget, topic: str, tmp_path: Path) -> None:
    each = [CountingListener(), CountingListener()]
    with contextlib.ExitStack() as stack:
        for number, seen in enumerate(each):
            options: dict[str, Any] = {"message_model": MessageModel.BROADCASTING, "offsets_folder": tmp_path}
            stack.enter_context(consumer(target, topic, topic, seen, instance_name=f"i{number}", **options))
        send(target, topic, BODIES)
        until(lambda: all(len(seen.messages) >= 40 for seen in each))
    assert [sorted(seen.bodies) for seen in each] == [sorted(BODIES)] * 2


def test_broadcasts_go_on_where_they_were(target: BrokerTarget, topic: str, tmp_path: Path) -> None:
    first, second = CountingListener(), CountingListener()
    options: dict[str, Any] = {"message_model": MessageModel.BROADCASTING, "offsets_folder": tmp_path}
    with consumer(target, topic, topic, first, **options):
        send(target, topic, BODIES)
        until(lambda: len(first.messages) >= 40)
    send(target, topic, [b"meanwhile"])
    with consumer(target, topic, topic, second, **options):
        until(lambda: bool(second.messages))
    assert (sorted(first.bodies), second.bodies) == (sorted(BODIES), [b"meanwhile"])


def test_only_once(target: BrokerTarget, topic: str) -> None:
    """Members of a batch, delayed messages and what failed once are each done once, whatever comes twice."""
    calls, seen, failed = list[ConsumerMessage](), CountingListener(), set[bytes]()
    once = mqtool.Deduplicator()

    def work(messages: Sequence[ConsumerMessage], context: ConsumeContext) -> ConsumeStatus:
        [message] = messages
        if message.body == b"3" and not failed:
            failed.add(message.body)
            context.delay_level = 1
            return ConsumeStatus.LATER
        return seen(messages, context)

    listen = once.listener(work)

    def counted(messages: Sequence[ConsumerMessage], context: ConsumeContext) -> Any:
        calls.extend(one for one in messages if one.tags != "first")
        return listen(messages, context)

    bodies = [b"same"] * 10 + BODIES[:10]
    with producer(target) as sending:
        sending.send_batch([ProducerMessage(topic, body) for body in bodies])
        again = ProducerMessage(topic, b"delayed", delay_level=1)
        for _ in range(2):  # as Java's clients do with one object, but for the key, which a broker never looks at
            sending.send(again)
    for group, count in (("one", 23), ("two", 45)):
        options = PushConsumerOptions(**FIRST)
        made = mqtool.PushConsumer(f"{topic}-{group}", counted, target.name_server, options)
        made.subscribe(topic)
        with made:
            until(lambda: len(calls) >= count)  # noqa: B023
    assert sorted(seen.bodies) == sorted([*bodies, b"delayed", b"delayed"])


@pytest.mark.parametrize("expression", ["A || C", "a > 3"])
def test_filters(target: BrokerTarget, topic: str, expression: str) -> None:
    seen = CountingListener()
    group = f"{topic}-{len(expression)}"
    send(target, topic, [b"other"], tags="B", properties={"a": "1"})
    send(target, topic, [b"wanted"], tags="A", properties={"a": "5"})
    with consumer(target, group, topic, seen, expression):
        until(lambda: bool(seen.messages))
        send(target, topic, [b"last"], tags="C", properties={"a": "4"})
        until(lambda: b"last" in seen.bodies)
    assert {*seen.bodies} == {b"wanted", b"last"}


def test_again_after_a_failure(target: BrokerTarget, topic: str) -> None:
    seen = CountingListener(lambda one: ConsumeStatus.LATER if one.reconsume_times < 2 else ConsumeStatus.SUCCESS)
    with consumer(target, topic, topic, seen):
        send(target, topic, [b"twice bad"])
        until(lambda: len(seen.messages) >= 3)
    assert [(one.body, one.topic, one.reconsume_times) for one in seen.messages] == [
        (b"twice bad", topic, times) for times in range(3)
    ]


def test_a_group_goes_on_where_it_was(target: BrokerTarget, topic: str) -> None:
    first, second = CountingListener(), CountingListener()
    with consumer(target, topic, topic, first):
        send(target, topic, BODIES)
        until(lambda: len(first.messages) >= 40)
    send(target, topic, [b"meanwhile"])
    with consumer(target, topic, topic, second):
        until(lambda: bool(second.messages))
    assert (sorted(first.bodies), second.bodies) == (sorted(BODIES), [b"meanwhile"])


def test_lite_pull(target: BrokerTarget, topic: str) -> None:
    send(target, topic, BODIES)
    made = mqtool.LitePullConsumer(topic, target.name_server, LitePullConsumerOptions(**FIRST, auto_commit=False))
    made.subscribe(topic)
    with made:
        assert sorted(_polled(made, 41)) == sorted([b"first", *BODIES])
        made.commit()
        queue = made.assignment()[0]
        until(lambda: bool(made.committed(queue)))
        end = made.committed(queue)
        assert end
    other = mqtool.LitePullConsumer(f"{topic}-assigned", target.name_server)
    other.assign([queue])
    with other:
        other.seek(queue, end - 1)
        assert len(_polled(other, 1)) == 1
        other.seek_to_begin(queue)
        assert len(_polled(other, end)) == end
        other.seek_to_end(queue)
        assert other.poll(500) == []


def test_all_queues_of_a_first_commit_are_committed(target: BrokerTarget, topic: str) -> None:
    """RocketMQ brokers forget all but one of a group's first commits in a topic that come at the same time."""
    with producer(target) as sending:
        queues = sending.queues(topic)
    for number in range(15):
        made = mqtool.LitePullConsumer(f"{topic}-{number}", target.name_server)
        made.assign(queues)
        with made:
            for queue in queues:
                made.seek(queue, 0)
            made.commit(dict.fromkeys(queues, 1))
            assert {queue: made.committed(queue) for queue in queues} == dict.fromkeys(queues, 1)


def test_iterating_and_batches(target: BrokerTarget, topic: str) -> None:
    send(target, topic, BODIES)
    seen: list[bytes] = []
    for most in (1, 7, 20):  # each goes on where the one before was left
        made = mqtool.LitePullConsumer(topic, target.name_server, FIRST)
        made.subscribe(topic)
        with made:
            for message in made:
                seen.append(message.body)
                if len(seen) == most:
                    break

    async def rest() -> None:
        one = mqtool.aio.LitePullConsumer(topic, target.name_server, FIRST)
        one.subscribe(topic)
        async with one:
            with pytest.raises(KeyError):
                async with one.batch() as messages:
                    failed = {message.body for message in messages}
                    raise KeyError
            async with one.batch() as messages:
                again = [message.body for message in messages]
            assert failed == {*again}
            seen.extend(again)
            async for message in one:
                seen.append(message.body)
                if len(seen) >= 41:
                    break

    within(PATIENCE, rest())
    assert sorted(seen) == sorted([b"first", *BODIES])


@pytest.mark.parametrize("kind", ["push", "lite pull"])
def test_who_wants_to_know_is_told_which_queues_come_and_go(target: BrokerTarget, topic: str, kind: str) -> None:
    group = f"{topic}-{kind[0]}"
    told: list[tuple[str, int, int]] = []

    def member(number: int) -> mqtool.PushConsumer | mqtool.LitePullConsumer:
        def note(what: str) -> Callable[[list[mqtool.MessageQueue]], None]:
            return lambda queues: told.extend((what, number, one.queue_id) for one in queues if one.topic == topic)

        options = {**FIRST, "on_assigned": note("assigned"), "on_revoked": note("revoked")}
        if kind == "push":
            return consumer(target, group, topic, CountingListener(), **options)
        made = mqtool.LitePullConsumer(group, target.name_server, options)
        made.subscribe(topic)
        return made

    def of(what: str, number: int) -> set[int]:
        """Return the queues that a member has been told of last."""
        last = {(one, at): word for word, one, at in told}
        return {at for (one, at), word in last.items() if (word, one) == (what, number)}

    with member(1):
        until(lambda: len(of("assigned", 1)) == 4)
        with member(2):
            until(lambda: len(of("assigned", 1)) == len(of("assigned", 2)) == 2)
            assert of("revoked", 1) == of("assigned", 2)
        until(lambda: len(of("assigned", 1)) == 4)
    assert of("revoked", 1) == {0, 1, 2, 3}


def test_spans_measures_and_values_of_what_is_sent_and_consumed(target: BrokerTarget, topic: str) -> None:
    spans, registry = InMemorySpanExporter(), CollectorRegistry()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    more: dict[str, Any] = {"hooks": [OpenTelemetryHook(provider)], "metrics": registry}
    values: list[Any] = []

    def listen(messages: Sequence[ConsumerMessage], context: ConsumeContext) -> None:
        context.delay_level = 1
        values.extend(one.value for one in messages if one.tags != "first")

    def deserialize(body: bytes) -> Any:
        if body == b'{"n": 3}' and body not in refused:
            refused.append(body)
            raise LookupError("not now")
        return json.loads(body) if body != b"first" else None

    refused: list[bytes] = []
    with producer(target, serializer=json.dumps, **more) as sending:
        for number in range(2):
            sending.send(ProducerMessage(topic, {"n": number}))
        sending.send_batch([ProducerMessage(topic, {"n": number}) for number in (2, 3)])
    with producer(target, serializer=json.dumps, auto_batch=True, **more) as sending:
        for number in range(4, 8):
            sending.send_async(ProducerMessage(topic, {"n": number}))
    options = PushConsumerOptions(**FIRST, **more, deserializer=deserialize)
    made = mqtool.PushConsumer(topic, listen, target.name_server, options)
    made.subscribe(topic)
    with made:
        until(lambda: len(values) == 8)
    assert sorted(one["n"] for one in values) == [*range(8)]

    finished = spans.get_finished_spans()
    sent = {one.context.span_id: one for one in finished if one.name == f"send {topic}"}
    assert len(sent) == 7
    processed = [one for one in finished if one.name.startswith("process") and one.parent]
    assert {one.parent.span_id for one in processed if one.parent} == {*sent}
    assert sum(one.status.status_code is StatusCode.ERROR for one in processed) == 1
    counts: dict[tuple[str, str], float] = collections.defaultdict(float)
    for family in registry.collect():
        for sample in family.samples:
            if sample.name in ("rocketmq_send_cost_time_count", "rocketmq_process_time_count"):
                counts[sample.name.split("_")[1], sample.labels["invocation_status"]] += sample.value
    assert counts == {("send", "success"): 8, ("process", "success"): 9, ("process", "failure"): 1}  # with the first


def test_topics_groups_and_offsets_are_made_read_moved_and_deleted(target: BrokerTarget, topic: str) -> None:
    with mqtool.AdminClient(target.name_server) as admin, producer(target) as sending:
        name, group = f"{topic}_made", f"{topic}-group"
        [made] = admin.create_topic(name, queues=2).changes
        assert (made.what, made.topic) == ("create", name)
        assert admin.create_topic(name, queues=2).changes == []
        for one in (group, f"{group}-b"):
            admin.create_group(one, retries=3)
        until(lambda: len(sending.queues(name)) == 2)
        for queue in sending.queues(name):
            for number in range(3):
                sending.send(ProducerMessage(name, b"%d" % number), queue)
        until(lambda: [one.max_offset for one in admin.topic_queues(name)] == [3, 3])
        plan = admin.set_offset(group, name, 1, 2, dry_run=True)
        assert [one.consumer_offset for one in admin.offsets(group) if one.topic == name] == []
        admin.apply(plan)
        until(lambda: _at(admin, group, name) == {0: (None, 3), 1: (2, 1)})
        admin.copy_offsets(group, f"{group}-b")
        until(lambda: _at(admin, f"{group}-b", name)[1] == (2, 1))
        kept = admin.export_offsets(int(time.time() * 1000), {group})
        admin.shift_offsets(group, by=-1, now=int(time.time() * 1000))
        until(lambda: _at(admin, group, name)[1] == (1, 2))
        admin.import_offsets(kept, int(time.time() * 1000))
        until(lambda: _at(admin, group, name)[1] == (2, 1))
        admin.reset_offsets(group, [name], -1)
        until(lambda: _at(admin, group, name) == {0: (3, 0), 1: (3, 0)})
        admin.delete_group(group)
        admin.delete_topic(name)

    async def left() -> tuple[set[str], set[str], bool]:
        async with mqtool.aio.AdminClient(target.name_server) as admin:
            topics = {one.settings.topic for one in await admin.topics()}
            groups = {one.settings.group for one in await admin.groups()}
            stats = await admin.broker_stats(await admin.brokers())
            return topics, groups, all("commitLogMaxOffset" in one.stats for one in stats)

    topics, groups, have_figures = within(PATIENCE, left())
    assert (name in topics, group in groups, f"{group}-b" in groups, have_figures) == (False, False, True, True)


def _at(admin: mqtool.AdminClient, group: str, topic: str) -> dict[int, tuple[int | None, int | None]]:
    return {one.queue_id: (one.consumer_offset, one.lag) for one in admin.offsets(group) if one.topic == topic}


def test_pull_by_offset(target: BrokerTarget, topic: str) -> None:
    send(target, topic, BODIES, tags="A")
    with mqtool.PullConsumer(f"{topic}-audit", target.name_server) as made:
        found = []
        for queue in made.fetch_message_queues(topic):
            offset, end = made.min_offset(queue), made.max_offset(queue)
            while (pulled := made.pull(queue, offset, 7)).status is PullStatus.FOUND:
                found += [one.body for one in pulled.messages]
                offset = pulled.next_offset
            assert (pulled.status, offset) == (PullStatus.NO_NEW_MSG, end)
            assert made.pull(queue, end + 5).status is PullStatus.OFFSET_ILLEGAL
            assert made.pull(queue, 0, expression="no such tag").status is PullStatus.NO_MATCHED_MSG
            # Of 4.9.7, too, which answers 0 as long as the queue begins there.
            assert made.committed(queue) is None
            made.commit(queue, 0)
            assert made.committed(queue) == 0
            made.commit(queue, end - 1)
            assert made.committed(queue) == end - 1
        assert sorted(found) == sorted([b"first", *BODIES])


def _polled(made: mqtool.LitePullConsumer, count: int) -> list[bytes]:
    found: list[bytes] = []

    def are_there() -> bool:
        found.extend(one.body for one in made.poll(200))
        return len(found) >= count

    until(are_there)
    return found


def test_pops(target: BrokerTarget, topic: str) -> None:
    send(target, topic, BODIES)
    options = PopConsumerOptions(pop_invisible_time=10_000)
    made = mqtool.PopConsumer(topic, target.name_server, options)
    made.subscribe(topic)
    if target.is_four:  # pops came with 5.x
        with made, pytest.raises(MqtoolError, match="not supported"):
            made.pop(PATIENCE * 1000)
        return
    with made:
        found: list[ConsumerMessage] = []

        until(lambda: _has_popped(made, found, 41))
        assert sorted(one.body for one in found) == sorted([b"first", *BODIES])
        first, *rest = found
        assert all(made.ack(one) for one in rest)
        assert made.change_invisible_time(first, 3000) is not None
        found.clear()
        until(lambda: _has_popped(made, found))
        [again] = found
        assert (again.body, again.topic) == (first.body, topic)
        assert made.ack(again)


def _has_popped(made: mqtool.PopConsumer, found: list[ConsumerMessage], count: int = 1) -> bool:
    found += made.pop(500)
    return len(found) >= count


def test_a_question_is_answered(target: BrokerTarget, topic: str) -> None:
    with producer(target) as sending, producer(target) as answering:

        def answer(messages: Sequence[ConsumerMessage], _: ConsumeContext) -> None:
            for one in messages:
                if "REPLY_TO_CLIENT" in one.properties:
                    answering.reply(one, b"answer to " + one.body)

        made = mqtool.PushConsumer(topic, answer, target.name_server, PushConsumerOptions(**FIRST))
        made.subscribe(topic)
        with made:
            reply = sending.request(ProducerMessage(topic, b"question"), timeout_ms=PATIENCE * 1000)
    assert reply.body == b"answer to question"
