"""Programs as people write them: that fork, leave with sends under way, block the loop; servers that are mute."""

import asyncio
import gc
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import mqtool
from mqtool import (
    ConsumerMessage,
    LitePullConsumer,
    LitePullConsumerOptions,
    ProducerMessage,
    ProducerOptions,
    TransactionState,
)
from mqtool.engine.client_runtime.blocking.background import background
from mqtool.engine.client_runtime.consume_services import ConsumeContext
from mqtool.engine.client_runtime.producer import FLUSH_MS
from mqtool.engine.remoting.client import RemotingClient
from mqtool.errors import CallbackError, MqtoolError, UnavailableError, UsageError
from mqtool.formats.codes import RequestCode, SysFlag
from mqtool.formats.properties import are_readable
from mqtool.formats.remoting import RemotingCommand
from tests.engine.client_runtime.test_lite_pull_consumer import polled
from tests.engine.client_runtime.test_producer import stored
from tests.engine.client_runtime.test_push_consumer import FIRST, Listener, committed, consumer, send, until

OTHERS = 100  # senders beside one that does wrong


@pytest.fixture
def broker() -> Iterator[mqtool.Broker]:
    with mqtool.Broker() as running:
        yield running


@contextmanager
def mute() -> Iterator[str]:
    """Give the address of a server that lets others connect, and reads and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


# What a message is made of


def test_a_message_that_cannot_be_sent_takes_no_other_with_it(broker: mqtool.Broker) -> None:
    async def run() -> list[object]:
        async with mqtool.aio.Producer("P", broker.name_server_address) as producer:
            await producer.send(ProducerMessage("Orders", b"first"))
            good = [producer.send(ProducerMessage("Orders", b"good")) for _ in range(OTHERS)]
            bad = [
                producer.send(ProducerMessage("Orders", b"x", keys=[1])),  # type: ignore[list-item]
                producer.send(ProducerMessage("Orders", object())),
                producer.send(ProducerMessage("Orders", b"x", delay_ms=0.5)),  # type: ignore[arg-type]
            ]
            return [*await asyncio.gather(*good[:50], *bad, *good[50:], return_exceptions=True)]

    results = asyncio.run(run())

    assert [type(one) for one in results if isinstance(one, Exception)] == [UsageError] * 3
    assert len(stored(broker, "Orders")) == 1 + OTHERS


NONSENSE: list[tuple[Any, dict[str, Any], str]] = [
    ("Orders", {}, "send takes a ProducerMessage, not str"),
    (None, {}, "send takes a ProducerMessage"),
    (ProducerMessage("Orders", object()), {}, "the body of a message must be bytes"),
    (ProducerMessage("Orders", b"x"), {"timeout_ms": "soon"}, "timeout_ms of a message must be a number"),
    (ProducerMessage("Orders", b"x"), {"queue": 3}, "the queue of a message must be a MessageQueue, not 3"),
    (ProducerMessage("Orders", b"x"), {"queue": mqtool.MessageQueue("Orders", "b", [1])}, "must be a MessageQueue"),  # type: ignore[arg-type]
    (
        ProducerMessage("Orders", b"x"),
        {"queue": mqtool.MessageQueue("Else", "b", 0)},
        "to Orders cannot go to queue 0 of Else",
    ),
    (ProducerMessage("Orders", b"x"), {"selector": 3}, "the selector of a message must be a function, not 3"),
    (ProducerMessage("Orders", b"x"), {"selector": lambda *_: 3}, "the selector returned 3, which is not a queue"),
    (
        ProducerMessage("Orders", b"x"),
        {"selector": lambda queues, *_: queues[0]._replace(topic="Else")},
        "to Orders cannot go to queue 0 of Else",
    ),
]


@pytest.mark.parametrize("auto_batch", [False, True])
def test_arguments_that_make_no_sense_are_refused_at_the_call_and_harm_no_other(
    auto_batch: bool, broker: mqtool.Broker
) -> None:
    with mqtool.Producer("P", broker.name_server_address, auto_batch=auto_batch) as producer:
        good = []
        for message, arguments, said in NONSENSE:
            good.append(producer.send_async(ProducerMessage("Orders", b"good")))
            calls: list[Callable[..., Any]] = (
                [producer.send, producer.send_oneway] if "timeout_ms" not in arguments else [producer.send]
            )
            for call in calls:
                with pytest.raises(UsageError, match=said):
                    call(message, **arguments)
            if arguments.get("queue") != 3 or auto_batch:
                with pytest.raises(UsageError, match=said):
                    future = producer.send_async(message, **arguments)
                    future.result()
            good.append(producer.send_async(ProducerMessage("Orders", b"good")))
        for message in ("Orders", None):
            with pytest.raises(UsageError, match="send takes a ProducerMessage"):
                producer.send_batch([message])  # type: ignore[list-item]
        message = ProducerMessage("Orders", b"x")
        others: list[tuple[Callable[[], Any], str]] = [
            (lambda: producer.send_batch(message), "send_batch takes several messages"),  # type: ignore[arg-type]
            (
                lambda: producer.send_batch([message], mqtool.MessageQueue("Else", "b", 0)),
                "cannot go to queue 0 of Else",
            ),
            (lambda: producer.send_batch([message], timeout_ms="soon"), "must be a number"),  # type: ignore[arg-type]
            (lambda: producer.request(message, timeout_ms="soon"), "must be a number"),  # type: ignore[arg-type]
            (lambda: producer.recall("Orders", None), "not a recall handle"),  # type: ignore[arg-type]
            (lambda: producer.reply("question", b"x"), "only a message that was received"),  # type: ignore[arg-type]
            (lambda: producer.queues(5), "the name of the topic must be a string, not 5"),  # type: ignore[arg-type]
        ]
        for nonsense, said in others:
            with pytest.raises(UsageError, match=said):
                nonsense()
        assert all(one.result().queue_offset >= 0 for one in good)
    assert {one.body for one in stored(broker, "Orders")} == {b"good"}


@pytest.mark.parametrize("has_hook", [False, True])
def test_a_batch_may_come_from_a_generator_whose_error_is_raised_and_sends_nothing(
    has_hook: bool, broker: mqtool.Broker
) -> None:
    def messages(count: int) -> Iterator[ProducerMessage]:
        for number in range(3):
            if number == count:
                raise SystemExit
            yield ProducerMessage("Orders", b"%d" % number)

    with mqtool.Producer("P", broker.name_server_address, hooks=[Noted()] if has_hook else []) as producer:
        with pytest.raises(CallbackError, match="the batch raised SystemExit"):
            producer.send_batch(messages(2))
        assert not stored(broker, "Orders")
        [result] = producer.send_batch(messages(3))
    assert [one.body for one in stored(broker, "Orders")] == [b"0", b"1", b"2"]
    assert len(result.message_id.split(",")) == 3


def test_what_is_wrong_with_a_message_is_raised_though_nobody_looks_at_the_future(broker: mqtool.Broker) -> None:
    with mqtool.Producer("P", broker.name_server_address) as producer:
        with pytest.raises(UsageError, match="has no body"):
            producer.send_async(ProducerMessage("Orders", b""))
        with pytest.raises(UsageError, match="32,767"):
            producer.send_async(ProducerMessage("Orders", b"x", properties={"p": "x" * 40_000}))
    with pytest.raises(UsageError, match="not running"):
        producer.send_async(ProducerMessage("Orders", b"x"))


class Noted(mqtool.Hook):
    """Keeps what it is told of each message once that is stored: its body, a property and its unique key."""

    def __init__(self) -> None:
        self.told: dict[bytes, tuple[str | None, str]] = {}

    def after_send(self, messages: Sequence[ProducerMessage], *_: Any) -> None:
        for one in messages:
            self.told[one.encoded_body] = (one.properties.get("number"), one.unique_key)


# In one of these batches each message is alone.
@pytest.mark.parametrize(
    "options", [{}, {"auto_batch": True}, {"auto_batch": True, "batch_size": 1}], ids=["one by one", "batches", "alone"]
)
@pytest.mark.parametrize("has_hook", [False, True], ids=["", "hook"])
def test_a_message_that_is_changed_after_the_call_is_sent_as_it_was(
    broker: mqtool.Broker, options: dict[str, Any], has_hook: bool
) -> None:
    bodies = [b"%d" % number for number in range(100)]
    hook = Noted()
    more = options | ({"hooks": [hook]} if has_hook else {})
    with mqtool.Producer("P", broker.name_server_address, more) as producer:
        message = ProducerMessage("Orders", b"first")
        begun = [producer.send_async(message)]
        for body in bodies:
            message.body, message.properties["number"] = body, body.decode()
            begun.append(producer.send_async(message))
        message.topic, message.body, message.flag, message.wait_store_ok = "Else", b"changed", 7, False
    first, *others = (one.result().message_id for one in begun)
    sent: dict[bytes, tuple[str | None, str]] = {b"first": (None, first)}
    sent |= {body: (body.decode(), unique_key) for body, unique_key in zip(bodies, others, strict=True)}
    found = {one.body: one for one in stored(broker, "Orders")}
    assert {body: one.properties.get("number") for body, one in found.items()} == {b: n for b, (n, _) in sent.items()}
    assert all(sent[body][1].encode() in one.raw_properties for body, one in found.items())
    assert hook.told == (sent if has_hook else {})
    assert not stored(broker, "Else")


def test_a_selector_sees_a_message_as_it_was_at_the_call(broker: mqtool.Broker) -> None:
    def by_body(queues: Sequence[mqtool.MessageQueue], message: ProducerMessage, _: Any) -> mqtool.MessageQueue:
        return queues[int(message.body) % len(queues)]

    with mqtool.Producer("P", broker.name_server_address) as producer:
        message = ProducerMessage("Orders", b"")
        for number in range(40):
            message.body = b"%d" % number
            producer.send_async(message, selector=by_body)
    assert {(int(one.body), one.queue_id) for one in stored(broker, "Orders")} == {(one, one % 4) for one in range(40)}


def test_text_is_sent_as_utf8(broker: mqtool.Broker) -> None:
    with mqtool.Producer("P", broker.name_server_address) as producer:
        producer.send(ProducerMessage("Orders", "größer", tags=None, keys=None))
        producer.send_batch([ProducerMessage("Orders", "ä"), ProducerMessage("Orders", bytearray(b"b"))])
    assert sorted(one.body for one in stored(broker, "Orders")) == sorted(["größer".encode(), "ä".encode(), b"b"])


# What is under way at the end


FORGOTTEN = {
    "global": "begin()",
    "collected": "begin(); del producer",
    "in a cycle": "begin(); cycle = {'producer': producer}; cycle['cycle'] = cycle; del producer",
    "forked": "begin(); warnings.simplefilter('ignore', DeprecationWarning); os.fork()",  # beside threads
}
"""What programs do with a producer that they do not close."""


@pytest.mark.parametrize("auto_batch", [False, True])
@pytest.mark.parametrize("what", FORGOTTEN)
def test_a_program_that_closes_nothing_sends_what_it_began_and_ends_quietly(
    what: str, auto_batch: bool, broker: mqtool.Broker
) -> None:
    program = f"""
import mqtool, os, warnings
def begin():
    global producer
    producer = mqtool.Producer("P", "{broker.name_server_address}", auto_batch={auto_batch})
    producer.start()
    for number in range(100):
        producer.send_async(mqtool.ProducerMessage("Orders", str(number)))
{FORGOTTEN[what]}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(int(one.body) for one in stored(broker, "Orders")) == [*range(100)]


@pytest.mark.parametrize("what", ["global", "collected"])
def test_a_program_that_closes_nothing_logs_what_was_not_sent_in_time(what: str) -> None:
    with mute() as address:
        program = f"""
import logging, mqtool, time
from mqtool.engine.client_runtime import producer as asynchronous
class Slow(logging.StreamHandler):
    def filter(self, record):
        time.sleep(0.2)  # as on a machine with much to do
        return True
logging.basicConfig(handlers=[Slow()])
asynchronous.Producer.flush.__defaults__ = (50,)
producer = mqtool.Producer("P", "{address}", send_msg_timeout=600_000)
def begin():
    producer.start()
    producer.send_async(mqtool.ProducerMessage("Orders", "x"))
{FORGOTTEN[what]}
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "was not closed: 1 message was not sent within 50 ms" in done.stderr


def test_leaving_a_block_waits_for_what_send_async_began(broker: mqtool.Broker) -> None:
    with mqtool.Producer("P", broker.name_server_address) as producer:
        begun = [producer.send_async(ProducerMessage("Orders", b"%d" % number)) for number in range(500)]
    assert all(one.done() for one in begun)
    assert {one.body for one in stored(broker, "Orders")} == {b"%d" % number for number in range(500)}


def test_leaving_a_block_on_an_event_loop_waits_too(broker: mqtool.Broker) -> None:
    async def run() -> None:
        options = ProducerOptions(enable_backpressure_for_async_mode=True)
        async with mqtool.aio.Producer("P", broker.name_server_address, options) as producer:
            for number in range(500):
                await producer.send_async(ProducerMessage("Orders", b"%d" % number))

    asyncio.run(run())
    assert len(stored(broker, "Orders")) == 500


@pytest.mark.parametrize("auto_batch", [False, True])
def test_threads_that_go_on_sending_do_not_keep_a_producer_from_its_end(
    broker: mqtool.Broker, auto_batch: bool
) -> None:
    producer = mqtool.Producer("P", broker.name_server_address, auto_batch=auto_batch)
    producer.start()
    producer.send(ProducerMessage("Orders", b"first"))
    begun: list[Any] = []
    refused: list[str] = []

    def send_on() -> None:
        try:
            for _ in range(20_000):  # far more than are sent in that time
                begun.append(producer.send_async(ProducerMessage("Orders", b"x")))  # noqa: PERF401  others see it grow
        except UsageError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=send_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: len(begun) > 500)
    started = time.monotonic()
    producer.close()
    assert time.monotonic() - started < FLUSH_MS / 1000 / 2
    for thread in threads:
        thread.join(60)
    assert len(refused) == 3
    sent = [one for one in begun if not one.exception(60)]  # one that came in the last moment may fail, and says so
    assert len(stored(broker, "Orders")) == 1 + len(sent)


def test_flush_waits_and_tells_how_many_were_not_sent(broker: mqtool.Broker) -> None:
    with ExitStack() as stack:
        nobody = stack.enter_context(mute())
        with mqtool.Producer("P", nobody, ProducerOptions(send_msg_timeout=60_000)) as producer:
            begun = [producer.send_async(ProducerMessage("Orders", b"x")) for _ in range(3)]
            with pytest.raises(UnavailableError, match=r"^3 messages were not sent within 10 ms$"):
                producer.flush(10)
            stack.close()  # the server ends, and with it the attempts
            producer.flush()
            assert all(isinstance(one.exception(), MqtoolError) for one in begun)
    with mqtool.Producer("P", broker.name_server_address) as producer:
        sent = producer.send_async(ProducerMessage("Orders", b"x"))
        producer.flush()
        assert sent.done()
        assert sent.result().queue_offset == 0


@pytest.mark.parametrize("auto_commit", [True, False])
def test_a_block_commits_what_poll_gave_where_that_is_automatic(auto_commit: bool, broker: mqtool.Broker) -> None:
    send(broker, [b"x"] * 20)
    options = LitePullConsumerOptions(auto_commit=auto_commit, **FIRST)
    made = LitePullConsumer("G", broker.name_server_address, options)
    made.subscribe("Orders")
    with made:
        polled(made, 20)
    assert committed(broker) == (20 if auto_commit else 0)


def test_a_block_that_raises_commits_nothing(broker: mqtool.Broker) -> None:
    send(broker, [b"x"] * 20)
    made = LitePullConsumer("G", broker.name_server_address, LitePullConsumerOptions(**FIRST))
    made.subscribe("Orders")
    with pytest.raises(ZeroDivisionError), made:
        polled(made, 20)
        raise ZeroDivisionError
    assert committed(broker) == 0


# Forks, and the loop's own thread

FORKING = """
import os, sys, threading, warnings, mqtool
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
address, topic = sys.argv[1:]
parent = mqtool.Producer("P", address, send_msg_timeout=60_000)  # of a machine that is slow
parent.start()
is_over = threading.Event()

def send_on():  # children are forked in the middle of sends
    number = 0
    while not is_over.is_set():
        parent.send(mqtool.ProducerMessage(topic, b"parent %d" % number))
        number += 1
    print(number)

sending = threading.Thread(target=send_on)
sending.start()
for number in range(5):
    child = os.fork()
    if not child:
        try:
            parent.send(mqtool.ProducerMessage(topic, b"never"))
        except mqtool.MqtoolError as error:
            assert "before the process forked" in str(error), error
            with mqtool.Producer("C", address, send_msg_timeout=60_000) as own:
                own.send(mqtool.ProducerMessage(topic, b"child %d" % number))
            os._exit(7)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7, status
is_over.set()
sending.join()
parent.shutdown()
"""


def forked(name_server: str, topic: str) -> set[bytes]:
    """Return what a program with children of its own should have sent."""
    command = [sys.executable, "-c", FORKING, name_server, topic]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    counts = (b"parent %d", int(ran.stdout)), (b"child %d", 5)
    return {name % number for name, count in counts for number in range(count)}


def test_a_forked_child_has_clients_of_its_own_and_the_parents_go_on(broker: mqtool.Broker) -> None:
    wanted = forked(broker.name_server_address, "Orders")
    assert sorted(one.body for one in stored(broker, "Orders")) == sorted(wanted)


LEFT_BY_CHILD = """
import os, sys, warnings, mqtool
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
with mqtool.Producer("P", sys.argv[1]) as parent:
    parent.send(mqtool.ProducerMessage("Orders", b"first"))
    if not (child := os.fork()):
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    parent.send(mqtool.ProducerMessage("Orders", b"second"))
"""


def test_a_forked_child_that_leaves_the_block_of_its_parent_ends_as_it_says(broker: mqtool.Broker) -> None:
    command = [sys.executable, "-c", LEFT_BY_CHILD, broker.name_server_address]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.stdout, ran.stderr) == ("7\n", "")
    assert sorted(one.body for one in stored(broker, "Orders")) == [b"first", b"second"]


FORKING_ASYNCIO = """
import asyncio, os, sys, warnings
import mqtool, mqtool.aio
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
address = sys.argv[1]

async def send(producer, body):
    await producer.send(mqtool.ProducerMessage("Orders", body))

async def send_of_child():
    async with mqtool.aio.Producer("C", address) as own:
        await send(own, b"child")

async def main():
    async with mqtool.aio.Producer("P", address) as parent:
        await send(parent, b"first")
        child = os.fork()
        if not child:
            try:
                asyncio.run(send(parent, b"never"))
            except mqtool.UsageError as error:
                assert "before the process forked" in str(error), error
                asyncio.run(send_of_child())
                os._exit(7)
            os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        await send(parent, b"second")

asyncio.run(main())
"""


def test_clients_for_asyncio_raise_in_a_forked_child_too(broker: mqtool.Broker) -> None:
    command = [sys.executable, "-c", FORKING_ASYNCIO, broker.name_server_address]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.stdout, ran.stderr) == ("7\n", "")
    assert sorted(one.body for one in stored(broker, "Orders")) == [b"child", b"first", b"second"]


IMPORTING = """
import importlib, os, signal, sys, threading
from mqtool.engine.client_runtime.blocking.background import background

begun = threading.Event()
sys.path.insert(0, sys.argv[1])

async def load():  # the loop is in the middle of an import when the process forks
    importlib.import_module("slow")

background.begin(load())
begun.wait()
child = os.fork()
if not child:
    signal.alarm(60)
    import slow
    os._exit(slow.numpy.int64(7))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_what_the_loop_was_importing_can_be_imported_in_a_forked_child(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import __main__\n__main__.begun.set()\nimport numpy\n")
    command = [sys.executable, "-W", "ignore", "-c", IMPORTING, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.stdout, ran.stderr) == ("7\n", "")


def test_a_blocking_call_in_the_loop_of_the_clients_is_told_not_hung(broker: mqtool.Broker) -> None:
    raised: list[BaseException] = []
    with mqtool.Producer("P", broker.name_server_address) as producer:

        async def listen(_messages: Sequence[ConsumerMessage], _context: ConsumeContext) -> None:
            try:
                producer.send(ProducerMessage("Others", b"from a listener"))
            except UsageError as error:
                raised.append(error)
                raise

        send(broker, [b"one"])
        with consumer(broker, listen):
            until(lambda: bool(raised))
        assert "mqtool.aio" in str(raised[0])
        assert producer.send(ProducerMessage("Orders", b"two")).queue_offset >= 0


ENDED = """
import sys, mqtool
from mqtool.engine.client_runtime.blocking.background import background
with mqtool.Producer("P", sys.argv[1]) as producer:
    background._running().call_soon_threadsafe(background._running().stop)
    background._thread.join()
    try:
        producer.send(mqtool.ProducerMessage("Orders", b"x"))
    except mqtool.MqtoolError as error:
        print(error)
        import os
        sys.stdout.flush()
        os._exit(0)
"""


class EndsJustNow(Future[str]):
    """Has its result in the moment in which whoever waits for it gives up waiting."""

    def result(self, timeout: float | None = None) -> str:
        if timeout and not self.done():
            self.set_result("stored")
            raise TimeoutError
        return super().result(timeout)


def test_a_call_that_ends_while_the_loop_is_looked_after_has_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> str:
        return "stored"

    def begun(given: Coroutine[Any, Any, str]) -> Future[str]:
        given.close()
        return EndsJustNow()

    monkeypatch.setattr(background, "begin", begun)
    assert background.run(work()) == "stored"


def test_an_error_of_the_time_that_a_call_raises_is_its_own() -> None:
    async def work() -> None:
        raise TimeoutError("of the program")

    with pytest.raises(TimeoutError, match="of the program"):
        background.run(work())


def test_clients_whose_loop_has_ended_say_so_at_every_call(broker: mqtool.Broker) -> None:
    command = [sys.executable, "-c", ENDED, broker.name_server_address]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "the event loop of the clients has ended" in ran.stdout, ran.stderr


# Servers that do not read or answer


def test_a_request_ends_in_time_where_the_server_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqtool.engine.remoting.client.TIMEOUT_MS", 400)

    async def run() -> list[str]:
        said = []
        with mute() as address:
            client = RemotingClient([address])
            large = [RemotingCommand(RequestCode.SEND_MESSAGE_V2, body=bytes(8 << 20)) for _ in range(3)]
            filling = [asyncio.create_task(client.invoke(one, 60_000)) for one in large]
            await asyncio.sleep(0)
            while client._connection is None or not client._connection.is_paused:
                await asyncio.sleep(0.001)
            begin = time.monotonic()
            for call in (
                client.invoke(RemotingCommand(RequestCode.HEART_BEAT), 300),
                client.send_oneway(RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET)),
            ):
                with pytest.raises(UnavailableError) as raised:
                    await call
                said.append(str(raised.value).replace(address, "SERVER"))
            assert time.monotonic() - begin < 30  # and not 60, or never
            await client.close()
            await asyncio.gather(*filling, return_exceptions=True)
        return said

    assert asyncio.run(run()) == [
        "SERVER has not read what was sent before within 300 ms",
        "SERVER has not read what was sent before within 400 ms",
    ]


def test_a_mute_name_server_before_a_live_one_costs_a_moment_and_no_call(
    broker: mqtool.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqtool.engine.remoting.client.PATIENCE_MS", 200)
    with mute() as nobody:
        servers = f"{nobody};{broker.name_server_address}"
        with mqtool.Producer("P", servers, ProducerOptions(send_msg_timeout=20_000)) as producer:
            assert producer.send(ProducerMessage("Orders", b"one")).queue_offset == 0
        listener = Listener()
        made = mqtool.PushConsumer("G", listener, servers, mqtool.PushConsumerOptions(**FIRST))
        made.subscribe("Orders")
        with made:
            assert listener.wait_for(1) == [b"one"]


def test_a_mute_name_server_is_passed_over_by_calls_that_have_less_time_than_patience(broker: mqtool.Broker) -> None:
    with mute() as nobody, mqtool.Producer("P", f"{nobody};{broker.name_server_address}") as producer:
        with pytest.raises(UnavailableError):
            producer.send(ProducerMessage("Orders", b"one"), timeout_ms=300)
        assert producer._client._instance.wire._name_server.addresses[0] == broker.name_server_address
        assert producer.send(ProducerMessage("Orders", b"two")).queue_offset == 0


def test_a_send_fails_within_its_time_where_no_name_server_answers() -> None:
    with mute() as nobody, mqtool.Producer("P", nobody) as producer:
        begin = time.monotonic()
        with pytest.raises(UnavailableError, match=r"no name server returned the queues of Orders within 200 ms"):
            producer.send(ProducerMessage("Orders", b"one"), timeout_ms=200)
        assert time.monotonic() - begin < 9  # it took ten seconds


# Bodies that cannot be read


def send_unreadable(producer: mqtool.Producer, queue: mqtool.MessageQueue) -> None:
    """Send a body that is said to be compressed, and is not."""
    message = ProducerMessage(queue.topic, b"unreadable")
    packed = producer._client._packed(message)._replace(sys_flag=int(SysFlag.COMPRESSED))
    background.run(producer._client._send(packed, producer._client._way(packed.topic, queue), 3000))


@pytest.mark.parametrize("text", ["a\x01b\x02lost", "\x01b\x02a\x01b", "a\x01b\x02c\0\x01d\x02", "a\x01b\0"])
def test_properties_that_no_reader_finds_are_not_stored(text: str, broker: mqtool.Broker) -> None:
    with mqtool.Producer("P", broker.name_server_address) as producer:
        message = ProducerMessage("Orders", b"one")
        packed = producer._client._packed(message)._replace(properties=text)
        background.run(producer._client._send(packed, producer._client._way(packed.topic, None), 3000))
    [stored] = [one for one in mqtool.open_store(broker.store).messages() if one.topic == "Orders"]
    assert stored.properties["a"] == "b"
    assert are_readable(stored.raw_properties)


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("at_once", [1, 3])
def test_a_body_that_cannot_be_read_becomes_a_dead_letter_and_holds_up_nothing(
    orderly: bool, at_once: int, broker: mqtool.Broker, caplog: pytest.LogCaptureFixture
) -> None:
    bodies = [b"%d" % number for number in range(6)]
    with mqtool.Producer("P", broker.name_server_address) as producer:
        queue = producer.queues("Orders")[0]
        for number, body in enumerate(bodies):
            producer.send(ProducerMessage("Orders", body), queue)
            if number in (0, 3):
                send_unreadable(producer, queue)
        listener = Listener()
        options: dict[str, Any] = {"max_reconsume_times": 0, "consume_message_batch_max_size": at_once}
        with consumer(broker, listener, orderly=orderly, **options):
            assert sorted(listener.wait_for(6)) == bodies
            until(lambda: committed(broker) == 8)
        dead = mqtool.LitePullConsumer("Dead", broker.name_server_address, LitePullConsumerOptions(**FIRST))
        dead.subscribe("%DLQ%G")
        with dead:
            found: list[ConsumerMessage] = []
            until(lambda: found.extend(dead.poll(100)) or len(found) >= 2)  # type: ignore[func-returns-value]
    assert [(one.body, one.body_error is not None) for one in found] == [(b"unreadable", True)] * 2
    assert not {one.body for one in listener.seen} - {*bodies}
    assert "cannot decompress the body" in caplog.text


# What else people trip over


def test_a_fresh_transaction_producer_is_asked_about_what_a_dead_one_has_left() -> None:
    class Silent:
        def execute_local_transaction(self, _message: ProducerMessage, _arg: Any) -> TransactionState:
            return TransactionState.UNKNOWN

        def check_local_transaction(self, _message: ConsumerMessage) -> TransactionState:
            return TransactionState.UNKNOWN

    asked = Listener()

    class SilentCommits(Silent):
        def check_local_transaction(self, message: ConsumerMessage) -> TransactionState:
            asked.seen.append(message)
            return TransactionState.COMMIT

    settings = {"transactionTimeOut": 100, "transactionCheckInterval": 100}
    with mqtool.Broker(settings=settings) as broker:
        with mqtool.TransactionProducer("T", Silent(), broker.name_server_address) as dead:
            dead.send_in_transaction(ProducerMessage("Orders", b"left behind"))
        options = ProducerOptions(topics=["Orders"])
        with mqtool.TransactionProducer("T", SilentCommits(), broker.name_server_address, options):
            until(lambda: [one.body for one in stored(broker, "Orders")] == [b"left behind"])
    assert asked.seen


def test_a_producer_that_cannot_learn_its_topics_does_not_run() -> None:
    producer = mqtool.Producer("P", "127.0.0.1:1", ProducerOptions(topics=["Orders"]))
    with pytest.raises(UnavailableError, match="cannot connect"):
        producer.start()
    assert not producer._client.is_running


def test_a_paused_queue_gives_nothing_that_came_later_until_it_is_resumed(broker: mqtool.Broker) -> None:
    with mqtool.Producer("P", broker.name_server_address) as producer:
        paused, other = producer.queues("Orders")[:2]
        made = LitePullConsumer("G", broker.name_server_address, LitePullConsumerOptions(**FIRST))
        producer.send(ProducerMessage("Orders", b"first"), paused)
        made.assign([paused, other])
        with made:
            assert polled(made, 1) == [b"first"]
            made.pause([paused])
            producer.send(ProducerMessage("Orders", b"paused"), paused)  # for which a pull has waited
            producer.send(ProducerMessage("Orders", b"other"), other)
            assert polled(made, 1) == [b"other"]
            assert made.poll(300) == []
            made.resume([paused])
            assert polled(made, 1) == [b"paused"]


def test_what_consumers_tell_of_themselves_is_what_is_documented(broker: mqtool.Broker) -> None:
    send(broker, [b"x"], keys=["k1", "k2"])
    listener = Listener()
    with consumer(broker, listener) as running:
        listener.wait_for(1)
        assert {one.topic for one in running.queues()} == {"Orders"}
        assert repr(running).startswith("<PushConsumer of group G, running, ")
    [message] = listener.seen
    assert (message.keys, message.unique_key) == (["k1", "k2"], message.message_id)
    with mqtool.PullConsumer("Never", broker.name_server_address) as puller:
        queues = puller.fetch_message_queues("Orders")
        assert [puller.committed(queue) for queue in queues] == [None] * len(queues)
    assert mqtool.__version__


def test_a_client_that_is_forgotten_says_so_and_lets_its_connections_go(broker: mqtool.Broker) -> None:
    producer = mqtool.Producer("P", broker.name_server_address)
    producer.start()
    producer.send(ProducerMessage("Orders", b"x"))
    inner = producer._client
    with pytest.warns(ResourceWarning, match="unclosed <Producer of group P, running"):
        del producer
        gc.collect()
    until(lambda: not inner.is_running)
