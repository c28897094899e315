"""Messages that come again are left out, by whatever they are known, also after a restart."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mqtool
from mqtool import (
    BoundedMemory,
    ConsumeContext,
    ConsumeFrom,
    ConsumerMessage,
    ConsumeStatus,
    Deduplicator,
    ProducerMessage,
    SqliteMemory,
)
from mqtool.errors import ReadError, UsageError, WriteError
from mqtool.formats.bodies import MessageQueue
from mqtool.formats.properties import build_properties
from tests.commands.running import run
from tests.engine.client_runtime.test_push_consumer import BODIES, Listener, committed, send, until

CONTEXT = MessageQueue("Orders", "broker-a", 0)


def message(key: str, position: int | None = None, **properties: str) -> ConsumerMessage:
    """Return a message as it was stored; the same key at another position was sent again."""
    pairs = {"UNIQ_KEY": key, **properties}
    position = ord(key) if position is None else position
    host, body = "127.0.0.1:10911", b""
    return ConsumerMessage(
        "Orders", body, build_properties(pairs), "broker-a", 0, position, position, 0, 0, 0, 0, host, position, host
    )


def keys(messages: list[ConsumerMessage]) -> str:
    return "".join(one.message_id for one in messages)


@given(st.lists(st.tuples(st.text("abc", max_size=4), st.booleans()), max_size=8))
def test_what_was_done_is_not_given_again_and_what_failed_is(calls: list[tuple[str, bool]]) -> None:
    once, done = Deduplicator(), set[str]()
    for text, fails in calls:
        try:
            with once.new([message(key) for key in text]) as new:
                assert keys(new) == "".join(dict.fromkeys(key for key in text if key not in done))
                assert not fails
        except AssertionError:
            if not fails:
                raise
        else:
            done |= {*text}


def test_a_consumer_that_reads_everything_again_does_nothing_twice() -> None:
    listener, calls = Listener(), list[Any]()
    once = Deduplicator()
    first = mqtool.PushConsumerOptions(consume_from_where=ConsumeFrom.FIRST_OFFSET)

    def counted(messages: Any, context: ConsumeContext) -> Any:
        calls.extend(messages)
        return once.listener(listener)(messages, context)

    with mqtool.Broker() as broker:
        send(broker, BODIES)
        consumer = mqtool.PushConsumer("G", counted, broker.name_server_address, first)
        consumer.subscribe("Orders")
        with consumer:
            listener.wait_for(100)
        until(lambda: committed(broker) == 100)
        reset = ("offset", "reset", "-n", broker.name_server_address, "--group", "G", "--topic", "Orders")
        assert run(*reset, "--earliest", "--yes").status == 0
        again = mqtool.PushConsumer("G", counted, broker.name_server_address, first)
        again.subscribe("Orders")
        with again:
            until(lambda: len(calls) == 200)
    assert len(listener.seen) == 100


def test_members_of_a_batch_are_all_given_though_they_share_a_key(tmp_path: Path) -> None:
    listener, calls = Listener(), list[Any]()
    memory = SqliteMemory(tmp_path / "done.db")
    once = Deduplicator(memory)
    first = mqtool.PushConsumerOptions(consume_from_where=ConsumeFrom.FIRST_OFFSET)

    def counted(messages: Any, context: ConsumeContext) -> Any:
        calls.extend(messages)
        return once.listener(listener)(messages, context)

    with mqtool.Broker() as broker:
        with mqtool.Producer("P", broker.name_server_address) as producer:
            producer.send_batch([ProducerMessage("Orders", b"same") for _ in range(20)])
        for group in ("G", "H"):  # a group for each delivery of all
            consumer = mqtool.PushConsumer(group, counted, broker.name_server_address, first)
            consumer.subscribe("Orders")
            with consumer:
                until(lambda: len(calls) >= (20 if group == "G" else 40))  # noqa: B023
    memory.close()
    assert len({one.message_id for one in calls}) == 1
    assert [one.body for one in listener.seen] == [b"same"] * 20


def test_what_its_producer_sent_again_is_the_same_message() -> None:
    once = Deduplicator()
    with once.new([message("a", 1), message("b", 2), message("a", 30)]) as new:
        assert keys(new) == "ab"
    with once.new([message("b", 40), message("a", 30), message("c", 50)]) as new:
        assert keys(new) == "c"


def test_of_a_batch_counts_what_the_listener_says() -> None:
    once, seen = Deduplicator(), []

    def listen(messages: Any, context: ConsumeContext) -> None:
        seen.append(keys(messages))
        if len(messages) == 3:
            context.ack_index = 1

    asked = once.listener(listen)
    asked([message("b")], ConsumeContext(CONTEXT))
    context = ConsumeContext(CONTEXT)
    asked([message(key) for key in "abcd"], context)
    asked([message(key) for key in "cd"], ConsumeContext(CONTEXT))

    assert seen == ["b", "acd", "d"]
    assert context.ack_index == 2  # a, b and c; d comes again


def test_what_is_to_come_later_is_not_done() -> None:
    statuses = [ConsumeStatus.LATER, ConsumeStatus.SUCCESS]
    listen = Deduplicator().listener(lambda *_: statuses.pop(0))
    results = [listen([message("a")], ConsumeContext(CONTEXT)) for _ in range(3)]
    assert results == [ConsumeStatus.LATER, ConsumeStatus.SUCCESS, None]
    assert statuses == []


@pytest.mark.parametrize("status", [None, ConsumeStatus.SUCCESS, True, 42, "done", []])
def test_whatever_counts_as_consumed_is_done(status: Any) -> None:
    calls = list[str]()

    def work(messages: Any, _: ConsumeContext) -> Any:
        calls.append(keys(messages))
        return status

    listen = Deduplicator().listener(work)
    for _ in range(2):
        listen([message("a")], ConsumeContext(CONTEXT))
    assert calls == ["a"]


def test_a_function_that_gives_something_to_await_is_done_when_that_is() -> None:
    calls, fails = list[str](), [True, False, False]

    async def work(messages: Any) -> None:
        calls.append(keys(messages))
        if fails.pop(0):
            raise KeyError

    listen = Deduplicator().listener(lambda messages, _: work(messages))

    async def run() -> None:
        with pytest.raises(KeyError):
            await listen([message("a")], ConsumeContext(CONTEXT))
        under_way = listen([message("a")], ConsumeContext(CONTEXT))
        assert listen([message("a")], ConsumeContext(CONTEXT)) is None  # another is at it
        await under_way
        assert listen([message("a")], ConsumeContext(CONTEXT)) is None

    asyncio.run(run())
    assert calls == ["a", "a"]


async def _listen_later(messages: Any, _: ConsumeContext) -> str:
    return keys(messages)


def test_listeners_that_are_coroutines_are_so_still() -> None:
    once = Deduplicator(key=lambda one: one.properties.get("order"))
    listen = once.listener(_listen_later)
    given_twice = [message("a", order="1"), message("b", order="1"), message("c")]
    assert asyncio.run(listen(given_twice, ConsumeContext(CONTEXT))) == "ac"


def test_a_copy_is_not_done_while_another_thread_is_at_it() -> None:
    once, begun, may_end = Deduplicator(), threading.Event(), threading.Event()

    def work() -> None:
        with once.new([message("a")]):
            begun.set()
            may_end.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(60)
    with once.new([message("a"), message("b")]) as new:
        assert keys(new) == "b"
    may_end.set()
    thread.join(60)


def test_a_bounded_memory_forgets_the_oldest() -> None:
    memory = BoundedMemory(2)
    memory.add(["a", "b"])
    memory.add(["a", "c"])
    assert [memory.has(key) for key in "abc"] == [True, False, True]


def test_a_file_remembers_after_a_restart_for_as_long_as_it_is_told(tmp_path: Path) -> None:
    now = 1000
    memory = SqliteMemory(tmp_path / "done.db", keep_ms=100, clock=lambda: now)
    memory.add(["a"])
    memory.close()

    memory, other = (SqliteMemory(tmp_path / "done.db", keep_ms=100, clock=lambda: now) for _ in range(2))
    assert memory.has("a")
    now = 1101
    other.add(["b"])
    assert (memory.has("a"), memory.has("b")) == (False, True)
    memory.close()
    other.close()


CHILDREN = """
import os, sys, threading, warnings, mqtool
from mqtool.engine.client_runtime.deduplicator import BoundedMemory
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
memories = mqtool.SqliteMemory(sys.argv[1]), BoundedMemory()
is_over = threading.Event()

def remember_on(memory):  # children are forked while threads are at it
    while not is_over.wait(0.02):  # SQLite is not fair: without a pause others may never get to write
        memory.add(["of the parent"])

threads = [threading.Thread(target=remember_on, args=(one,), daemon=True) for one in memories]
for thread in threads:
    thread.start()
for number in range(30):
    child = os.fork()
    if not child:
        for memory in memories:
            memory.add([f"of child {number}"])
            assert memory.has(f"of child {number}")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert not status, status
    assert memories[0].has(f"of child {number}")
is_over.set()
for thread in threads:
    thread.join()
memories[0].close()
"""


def test_a_memory_may_be_used_in_forked_children(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CHILDREN, str(tmp_path / "done.db")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    with sqlite3.connect(tmp_path / "done.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("SELECT count(*) FROM done").fetchone() == (31,)
    connection.close()


def test_a_file_that_cannot_be_used_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database, but long enough to be taken for something " * 20)
    with pytest.raises(ReadError, match="cannot be used to remember messages"):
        SqliteMemory(tmp_path / "text")
    assert tmp_path / "text" not in [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    memory = SqliteMemory(tmp_path / "done.db")
    with sqlite3.connect(tmp_path / "done.db") as connection:
        connection.execute("DROP TABLE done")
    connection.close()
    with pytest.raises(WriteError, match="cannot be written"):
        memory.add(["a"])
    memory.close()


@pytest.mark.parametrize("given", [{"memory": "done.db"}, {"key": "KEYS"}])
def test_what_is_no_memory_and_no_key_is_refused_at_once(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="must"):
        Deduplicator(**given)
