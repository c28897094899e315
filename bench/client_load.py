"""The Python client under load, for any broker: the twin of ``BrokerLoad.java``.

It takes the same words and gives the same numbers: ``KIND NAME_SERVER TOPIC SIZE NUMBER MILLISECONDS`` a line. KIND is
``async`` (NUMBER sends under way), ``batch`` (of NUMBER messages), ``push`` (NUMBER messages to consume, 32 at a time).
The answer: messages, seconds, failures, and the 99th of a hundred latencies in microseconds. Of this client only:
``thread`` and ``auto-batch``, a thread that calls ``send_async`` for one queue, NUMBER under way, without and with
``auto_batch``; what is stored out of order counts as failed, too.
"""

import asyncio
import functools
import itertools
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import mqtool
from mqtool import ConsumeFrom, ProducerMessage, ProducerOptions, PushConsumerOptions, SendResult, SendStatus
from mqtool.engine.client_runtime.blocking.background import new_loop

_groups = itertools.count(1)


class _ClientRun(NamedTuple):
    messages: int
    seconds: float
    failures: int
    latencies: list[float]

    def words(self) -> str:
        latencies = sorted(self.latencies)
        worst = latencies[int(len(latencies) * 0.99)] if latencies else 0
        return f"{self.messages} {self.seconds} {self.failures} {round(worst * 1e6)}"


async def main() -> None:
    producers: dict[str, mqtool.aio.Producer] = {}
    while line := await asyncio.to_thread(sys.stdin.readline):
        kind, name_server, topic, size, number, milliseconds = line.split()
        if kind == "push":
            run = await asyncio.to_thread(_push, name_server, topic, int(number))
        elif kind in ("thread", "auto-batch"):
            options = ProducerOptions(send_msg_timeout=10_000, auto_batch=kind == "auto-batch")
            with mqtool.Producer("bench", name_server, options) as producer:
                send_on = functools.partial(_send_on, producer, topic, b"x" * int(size), int(number))
                run = await asyncio.to_thread(send_on, int(milliseconds) / 1000)
        else:
            if name_server not in producers:
                options = ProducerOptions(send_msg_timeout=10_000)
                producers[name_server] = mqtool.aio.Producer("bench", name_server, options)
                await producers[name_server].start()
            send = _send_async if kind == "async" else _send_batches
            run = await send(producers[name_server], topic, b"x" * int(size), int(number), int(milliseconds) / 1000)
        print(run.words(), flush=True)


async def _send_async(
    producer: mqtool.aio.Producer, topic: str, body: bytes, under_way: int, seconds: float
) -> _ClientRun:
    room, latencies, failures = asyncio.Semaphore(under_way), list[float](), 0
    first = time.perf_counter()

    def done(task: "asyncio.Task[SendResult]", sent: float) -> None:
        nonlocal failures
        latencies.append(time.perf_counter() - sent)
        failures += task.exception() is not None or task.result().status is not SendStatus.SEND_OK
        room.release()

    while time.perf_counter() < first + seconds:
        await room.acquire()
        sent = time.perf_counter()
        task = await producer.send_async(ProducerMessage(topic, body, tags="TagA"))
        task.add_done_callback(lambda task, sent=sent: done(task, sent))  # type: ignore[misc]
    for _ in range(under_way):
        await room.acquire()
    return _ClientRun(len(latencies), time.perf_counter() - first, failures, latencies)


async def _send_batches(
    producer: mqtool.aio.Producer, topic: str, body: bytes, size: int, seconds: float
) -> _ClientRun:
    latencies, failures = list[float](), 0
    first = time.perf_counter()
    while (sent := time.perf_counter()) < first + seconds:
        results = await producer.send_batch([ProducerMessage(topic, body, tags="TagA") for _ in range(size)])
        failures += any(result.status is not SendStatus.SEND_OK for result in results)
        latencies.append(time.perf_counter() - sent)
    return _ClientRun(len(latencies) * size, time.perf_counter() - first, failures, latencies)


def _send_on(producer: mqtool.Producer, topic: str, body: bytes, under_way: int, seconds: float) -> _ClientRun:
    room, queue = threading.Semaphore(under_way), producer.queues(topic)[0]
    futures = []
    first = time.perf_counter()
    while time.perf_counter() < first + seconds:
        room.acquire()
        future = producer.send_async(ProducerMessage(topic, body, tags="TagA"), queue)
        future.add_done_callback(lambda _: room.release())
        futures.append(future)
    failed = sum(future.exception() is not None for future in futures)
    took = time.perf_counter() - first
    offsets = [future.result().queue_offset for future in futures if not future.exception()]
    out_of_order = sum(after <= before for before, after in itertools.pairwise(offsets))
    return _ClientRun(len(offsets), took, failed + out_of_order, [])


def _push(name_server: str, topic: str, count: int) -> _ClientRun:
    """Have a new group consume a topic from its beginning; the time runs from the first message on."""
    options = PushConsumerOptions(consume_from_where=ConsumeFrom.FIRST_OFFSET, consume_message_batch_max_size=32)
    lock, done = threading.Lock(), threading.Event()
    consumed, begin, end = 0, 0.0, 0.0

    def listen(messages: Sequence[Any], _: Any) -> None:
        nonlocal consumed, begin, end
        with lock:
            begin = begin or time.perf_counter()
            consumed += len(messages)
            if consumed >= count and not end:
                end = time.perf_counter()
                done.set()

    consumer = mqtool.PushConsumer(f"bench-python-{next(_groups)}", listen, name_server, options)
    consumer.subscribe(topic)
    with consumer:
        done.wait()
    return _ClientRun(count, end - begin, 0, [])


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
