"""What the clients in Python once did wrong, with real brokers of every version, and with ours.

What needs no broker of RocketMQ to be seen is tried more closely in ``tests/engine/client_runtime``.
"""

import asyncio
import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import mqtool
from mqtool import (
    ConsumeContext,
    ConsumeFrom,
    ConsumerMessage,
    ConsumeStatus,
    LitePullConsumerOptions,
    MessageModel,
    ProducerMessage,
    ProducerOptions,
    TransactionState,
)
from mqtool.engine.client.rebalance import averagely
from mqtool.engine.client_runtime.blocking.background import background
from mqtool.errors import CallbackError, MqtoolError, Status, UnavailableError, UsageError
from tests.campaigns.hostile_programs import ServedInProcess
from tests.commands.running import run as run_command
from tests.differential.test_python_clients import (
    EVERY_BROKER,
    FIRST,
    OURS,
    Bank,
    BrokerTarget,
    CountingListener,
    consumer,
    producer,
    running,
    send,
    sends,
    topic_of_test,
    until,
)
from tests.engine.client_runtime.test_hostile_listeners import RAISED
from tests.engine.client_runtime.test_hostile_programs import forked, mute, send_unreadable

topic = topic_of_test
BODIES = [b"%d" % number for number in range(60)]


@pytest.fixture(scope="module", params=EVERY_BROKER, name="target")
def each_broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerTarget]:
    with running(request.param, tmp_path_factory) as target:
        yield target


def stored(target: BrokerTarget, topic: str) -> list[bytes]:
    """Return the bodies of a topic, but that of its first message."""
    found = []
    with mqtool.PullConsumer("Reader", target.name_server) as reader:
        for queue in reader.fetch_message_queues(topic):
            offset, end = reader.min_offset(queue), reader.max_offset(queue)
            while offset < end:
                pulled = reader.pull(queue, offset)
                found += [one.body for one in pulled.messages if one.tags != "first"]
                offset = pulled.next_offset
    return found


def dead_letters(target: BrokerTarget, group: str, bodies: Collection[bytes]) -> list[ConsumerMessage]:
    """Return the dead letters of a group once each of the bodies is there (one may be there twice)."""
    found: list[ConsumerMessage] = []
    reader = mqtool.LitePullConsumer(f"{group}-dead", target.name_server, LitePullConsumerOptions(**FIRST))
    reader.subscribe(f"%DLQ%{group}")
    with reader:
        until(lambda: found.extend(reader.poll(100)) or {*bodies} <= {one.body for one in found})  # type: ignore[func-returns-value]
    return found


# 1


def test_a_transaction_is_done_once_however_often_it_ends(target: BrokerTarget, topic: str) -> None:
    once, seen, calls = mqtool.Deduplicator(), CountingListener(), list[ConsumerMessage]()
    listen = once.listener(seen)

    def counted(messages: Sequence[ConsumerMessage], context: ConsumeContext) -> Any:
        calls.extend(messages)
        return listen(messages, context)

    with mqtool.TransactionProducer("Bank", Bank(), target.name_server) as sending:
        for body in (b"commit", b"rollback", b"later commit"):
            state = TransactionState.COMMIT if body == b"commit" else TransactionState.UNKNOWN
            sent = sending.send_in_transaction(ProducerMessage(topic, body), state.value)
            if body == b"commit":  # a producer that was asked meanwhile ends it twice
                background.run(sending._client._end(sent, TransactionState.COMMIT))
        for group in ("one", "two"):  # the second begins when all is there
            made = mqtool.PushConsumer(f"{topic}-{group}", counted, target.name_server, **FIRST)
            made.subscribe(topic)
            with made:
                until(lambda: {b"commit", b"later commit"} <= {one.body for one in calls})
    assert sorted(seen.bodies) == [b"commit", b"later commit"]


# 2


def test_broadcasts_from_the_end_go_on_though_nothing_came_and_when_a_queue_comes_back(
    target: BrokerTarget, topic: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "message_model": MessageModel.BROADCASTING,
        "offsets_folder": tmp_path,
        "consume_from_where": ConsumeFrom.LAST_OFFSET,
    }
    with producer(target) as sending:
        count = len(sending.queues(topic))
    send(target, topic, BODIES)
    first, second = CountingListener(), CountingListener()
    with consumer(target, topic, topic, first, **options) as made:
        until(lambda: len(made.queues()) == count)
    send(target, topic, [b"meanwhile"])
    with consumer(target, topic, topic, second, **options) as made:
        until(lambda: bool(second.messages))
        made.unsubscribe(topic)
        until(lambda: not made.queues())
        send(target, topic, [b"without the queue"])
        made.subscribe(topic)
        until(lambda: len(second.messages) >= 2)
    assert (first.bodies, second.bodies) == ([], [b"meanwhile", b"without the queue"])


# 3


@pytest.mark.parametrize("is_coroutine", [False, True], ids=["function", "coroutine"])
def test_whatever_is_raised_by_a_listener(target: BrokerTarget, topic: str, is_coroutine: bool) -> None:
    good: list[bytes] = []
    bad = [b"bad %d" % number for number in range(len(RAISED))]

    def listen(messages: Sequence[ConsumerMessage], _: ConsumeContext) -> None:
        [message] = messages
        if message.body in bad:
            raise RAISED[bad.index(message.body)]
        good.append(message.body)

    async def listen_later(messages: Sequence[ConsumerMessage], context: ConsumeContext) -> None:
        listen(messages, context)

    group = f"{topic}-{is_coroutine}"
    send(target, topic, [*bad, b"good"])
    made: Any = listen_later if is_coroutine else listen
    with consumer(target, group, topic, made, max_reconsume_times=0):
        until(lambda: b"good" in good)
        assert {one.body for one in dead_letters(target, group, bad)} == {*bad}


def test_whatever_is_raised_by_a_strategy_selector_and_hook(target: BrokerTarget, topic: str) -> None:
    errors = [*RAISED]
    calls = []

    def strategy(queues: Sequence[mqtool.MessageQueue], members: Sequence[str], own: str) -> list[mqtool.MessageQueue]:
        calls.append(own)
        if errors:
            raise errors.pop()
        return averagely(queues, members, own)

    class RaisingHook(mqtool.Hook):
        def before_send(self, messages: Sequence[ProducerMessage], group: str) -> None:
            if messages[0].body == b"never":
                raise SystemExit(group)

    def selector(*_: Any) -> mqtool.MessageQueue:
        raise KeyboardInterrupt

    seen = CountingListener()
    with consumer(target, topic, topic, seen, strategy=strategy) as made:
        with mqtool.Producer("P", target.name_server, hooks=[RaisingHook()]) as sending:
            for arguments in ({"selector": selector}, {}):
                with pytest.raises(CallbackError):
                    sending.send(ProducerMessage(topic, b"never"), **arguments)  # type: ignore[arg-type]
            sending.send(ProducerMessage(topic, b"sent"))
        for _ in RAISED:  # the next time, without waiting 20 s for it
            count = len(calls)
            made.subscribe(topic)
            until(lambda: len(calls) > count)  # noqa: B023
        until(lambda: seen.bodies == [b"sent"])


# 4


def test_what_is_no_message_takes_no_other_with_it(target: BrokerTarget, topic: str) -> None:
    async def run() -> list[object]:
        async with mqtool.aio.Producer("P", target.name_server) as sending:
            good = [sending.send(ProducerMessage(topic, "gr\u00f6\u00dfer", tags=None, keys=None)) for _ in range(100)]
            bad = [
                sending.send(ProducerMessage(topic, b"x", keys=[1])),  # type: ignore[list-item]
                sending.send(ProducerMessage(topic, object())),
                sending.send(ProducerMessage(topic, b"x", delay_ms=0.5)),  # type: ignore[arg-type]
            ]
            return [*await asyncio.gather(*good[:50], *bad, *good[50:], return_exceptions=True)]

    results = asyncio.run(run())
    assert [type(one) for one in results if isinstance(one, Exception)] == [UsageError] * 3
    assert stored(target, topic) == ["gr\u00f6\u00dfer".encode()] * 100


# 5


@pytest.mark.parametrize("options", [{}, {"auto_batch": True}, {"enable_backpressure_for_async_mode": True}])
def test_the_end_of_a_block_sends_what_was_begun(target: BrokerTarget, options: dict[str, Any]) -> None:
    topic = f"the_end_of_a_block-{'-'.join(options)}"
    with producer(target) as sending:
        until(lambda: sends(sending, topic))
    with producer(target, **options) as sending:
        begun = [sending.send_async(ProducerMessage(topic, body)) for body in BODIES]
    assert all(one.done() and one.result().queue_offset >= 0 for one in begun)
    assert sorted(stored(target, topic)) == sorted(BODIES)


def test_the_end_of_a_block_commits_what_was_given_and_no_more(target: BrokerTarget, topic: str) -> None:
    def made(**options: Any) -> mqtool.LitePullConsumer:
        lite = mqtool.LitePullConsumer(topic, target.name_server, **FIRST, **options)
        lite.subscribe(topic)
        return lite

    send(target, topic, BODIES)
    with made() as lite:
        given = [next(lite).body for _ in range(20)]
    with pytest.raises(KeyError), made() as lite:
        next(lite)
        raise KeyError
    with made(auto_commit=False) as lite:
        next(lite)
    with made() as lite:
        rest = [next(lite).body for _ in range(41)]
    assert sorted([*given, *rest]) == sorted([b"first", *BODIES])


# 6 and 7


def test_a_forked_child_has_clients_of_its_own(target: BrokerTarget, topic: str) -> None:
    wanted = forked(target.name_server, topic)
    assert sorted(stored(target, topic)) == sorted(wanted)


def test_a_blocking_call_in_a_coroutine_is_told(target: BrokerTarget, topic: str) -> None:
    raised: list[str] = []
    with producer(target) as sending:

        async def listen(_messages: Sequence[ConsumerMessage], _context: ConsumeContext) -> None:
            try:
                sending.send(ProducerMessage(topic, b"never"))
            except UsageError as error:
                raised.append(str(error))

        with consumer(target, topic, topic, listen):  # type: ignore[arg-type]
            until(lambda: bool(raised))
    assert "mqtool.aio" in raised[0]
    assert stored(target, topic) == []


# 8


def test_a_mute_name_server_is_passed_over(target: BrokerTarget, topic: str) -> None:
    seen = CountingListener()
    with mute() as nobody:
        names = target._replace(name_server=f"{nobody};{target.name_server}")
        with producer(names, send_msg_timeout=20_000) as sending, consumer(names, topic, topic, seen):
            sending.send(ProducerMessage(topic, b"one"))
            until(lambda: seen.bodies == [b"one"])


@contextlib.contextmanager
def stoppable(target: BrokerTarget, folder: Path) -> Iterator[tuple[BrokerTarget, Callable[[signal.Signals], None]]]:
    """Give a broker that is a process, and how to send it signals."""
    if (pid := target.pid) is not None:
        yield target, lambda number: os.kill(pid, number)
        return
    served = ServedInProcess(folder)
    served.start()
    try:
        yield BrokerTarget(served.name_server, OURS), served.signal
    finally:
        served.end()
        served._log.close()


def test_calls_end_in_time_while_a_broker_is_stopped(target: BrokerTarget, topic: str, tmp_path: Path) -> None:
    large = random.Random(0).randbytes(4 << 20)  # more than fits between the two
    with stoppable(target, tmp_path) as (brokers, tell), producer(brokers) as sending:
        until(lambda: sends(sending, topic))
        lite = mqtool.LitePullConsumer(topic, brokers.name_server, **FIRST)
        lite.subscribe(topic)
        with lite:
            next(lite)
            tell(signal.SIGSTOP)
            begun = time.monotonic()
            try:
                for _ in range(3):
                    with pytest.raises(MqtoolError, match=r"did not answer|has not read") as late:
                        sending.send(ProducerMessage(topic, large), timeout_ms=500)
                    assert late.value.retriable
                with pytest.raises(MqtoolError, match=r"did not answer|has not read"):
                    lite.commit()
                with contextlib.suppress(UnavailableError):
                    sending.send_oneway(ProducerMessage(topic, b"of which nobody learns"))
                assert time.monotonic() - begun < 30  # the bounds are 1.5, 5 and 3 s
            finally:
                tell(signal.SIGCONT)
        until(lambda: sends(sending, topic))


# 9 and 10


def test_what_waits_in_queues_without_an_offset_is_lag(target: BrokerTarget, topic: str) -> None:
    group = f"{topic}-group"
    with producer(target) as sending:
        queues = sending.queues(topic)
        for number, queue in enumerate(queues):
            for _ in range(number + 1):
                last = sending.send(ProducerMessage(topic, b"x"), queue)
    with mqtool.PullConsumer("Ends", target.name_server) as reader:
        until(lambda: reader.max_offset(queues[-1]) == last.queue_offset + 1)  # filled a little later
        ends = {queue.queue_id: reader.max_offset(queue) for queue in queues}
    set_one = ("offset", "set", "--group", group, "--topic", topic, "--queue", queues[-1].queue_id, "--offset", 1)
    for words in ("group", "create", group), set_one:
        assert run_command(*words, "--yes", "-n", target.name_server).status == Status.OK

    def rows(*words: str) -> list[dict[str, Any]]:
        ran = run_command(*words, "-n", target.name_server)
        assert ran.status == Status.OK, ran
        return ran.rows

    wanted = {number: end - (number == queues[-1].queue_id) for number, end in ends.items()}
    listed = {row["queue_id"]: row["lag"] for row in rows("offset", "list", "--group", group)}
    shown = {row["queue_id"]: row["lag"] for row in rows("group", "show", group) if row["kind"] == "queue"}
    assert listed == shown == wanted
    [of_group] = rows("group", "list", group)
    assert of_group["lag"] == sum(wanted.values())


def test_a_topic_that_is_not_there_is_told_to_who_consumes(target: BrokerTarget, topic: str) -> None:
    typo = topic[:-1]
    for kind in ("--group", "G"), ("--peek",):
        ran = run_command("consume", "--topic", typo, *kind, "--idle", "1s", "-n", target.name_server)
        assert (ran.status, ran.output) == (Status.NO_INPUT, "")
        assert f"the topic {typo} does not exist; similar: {topic}" in ran.remarks


# 11


@pytest.mark.parametrize("orderly", [False, True])
def test_a_body_that_cannot_be_read_holds_nothing_up(target: BrokerTarget, topic: str, orderly: bool) -> None:
    group, seen = f"{topic}-{orderly}", CountingListener()
    with producer(target) as sending:
        queue = sending.queues(topic)[0]
        sending.send(ProducerMessage(topic, b"before"), queue)
        send_unreadable(sending, queue)
        sending.send(ProducerMessage(topic, b"behind"), queue)
        with consumer(target, group, topic, seen, orderly=orderly, max_reconsume_times=0):
            until(lambda: b"behind" in seen.bodies)
            letters = dead_letters(target, group, [b"unreadable"])
    assert all(one.body == b"unreadable" and one.body_error for one in letters)
    assert {*seen.bodies} == {b"before", b"behind"}


# 12


def test_a_fresh_producer_is_asked_about_what_a_dead_one_has_left(target: BrokerTarget, topic: str) -> None:
    asked, seen = threading.Event(), CountingListener()

    class Heir(Bank):
        def check_local_transaction(self, message: ConsumerMessage) -> TransactionState:
            asked.set()
            return super().check_local_transaction(message)

    with mqtool.TransactionProducer(topic, Bank(), target.name_server) as dead:
        dead.send_in_transaction(ProducerMessage(topic, b"to commit"), TransactionState.UNKNOWN.value)
    options = ProducerOptions(topics=[topic])
    with (
        mqtool.TransactionProducer(topic, Heir(), target.name_server, options),
        consumer(target, topic, topic, seen),
    ):
        until(lambda: {*seen.bodies} == {b"to commit"})
    assert asked.is_set()


def test_a_queue_that_is_paused_gives_nothing_that_comes_then(target: BrokerTarget, topic: str) -> None:
    with producer(target) as sending:
        paused, other = sending.queues(topic)[:2]
        lite = mqtool.LitePullConsumer(topic, target.name_server, **FIRST)
        lite.assign([paused, other])
        with lite:
            found: list[bytes] = []

            def has(body: bytes) -> bool:
                found.extend(one.body for one in lite.poll(100))
                return body in found

            sending.send(ProducerMessage(topic, b"begin"), paused)
            until(lambda: has(b"begin"))
            lite.pause([paused])
            sending.send(ProducerMessage(topic, b"paused"), paused)
            sending.send(ProducerMessage(topic, b"other"), other)
            until(lambda: has(b"other"))
            assert not has(b"paused")
            lite.resume([paused])
            until(lambda: has(b"paused"))


def test_what_a_consumer_tells_of_itself(target: BrokerTarget, topic: str) -> None:
    seen = CountingListener(
        lambda message: ConsumeStatus.LATER if not message.reconsume_times else ConsumeStatus.SUCCESS
    )
    with producer(target) as sending:
        result = sending.send(ProducerMessage(topic, b"x", keys=["k1", "k2"]))
    with consumer(target, topic, topic, seen) as made:
        until(lambda: len(seen.messages) >= 2)  # it has come by the retry topic
        assert {one.topic for one in made.queues()} == {topic}
    assert [(one.keys, one.unique_key) for one in seen.messages] == [(["k1", "k2"], result.message_id)] * 2
    lite = mqtool.LitePullConsumer(f"{topic}-lite", target.name_server)
    lite.assign([result.queue])
    with lite:
        assert lite.committed(result.queue) is None


# 13


def test_errors_have_what_a_program_acts_on(target: BrokerTarget, topic: str) -> None:
    with mqtool.PullConsumer("Reader", target.name_server) as reader:
        queue = reader.fetch_message_queues(topic)[0]
        with pytest.raises(mqtool.NotFoundError) as none:
            reader.fetch_message_queues("Nowhere")
        with pytest.raises(mqtool.UnknownTopicError) as unknown:
            reader.pull(queue._replace(topic="Nowhere"), 0)
    assert not none.value.retriable
    assert (unknown.value.code, unknown.value.retriable) == (17, False)
    assert unknown.value.address
    assert unknown.value.address in str(unknown.value)
