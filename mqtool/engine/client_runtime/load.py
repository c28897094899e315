"""A load test of brokers: a producer and consumers in this event loop, and their latencies."""

import asyncio
import contextlib
import itertools
import random
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from mqtool.engine.client.incoming import ConsumerMessage
from mqtool.engine.client.measuring import LoadTally
from mqtool.engine.client.outgoing import ProducerMessage
from mqtool.engine.client.sending import SendStatus
from mqtool.engine.client_runtime.lite_pull_consumer import LitePullConsumer, LitePullConsumerOptions
from mqtool.engine.client_runtime.producer import Producer, ProducerOptions
from mqtool.errors import MqtoolError, RefusedError, SendError
from mqtool.formats.codes import ResponseCode
from mqtool.formats.topics import TOOLS_GROUP

_STAMP = struct.Struct(">QQ")  # the round; and when a message was due, in ns of a monotonic clock
LEAST_SIZE = _STAMP.size
_GROUP = "mqtool"
_AT_ONCE = 32
_POLL_MS = 200
_LOOK_S = 0.01
_JOIN_S = 5.0
_CATCH_UP_S = 5.0
_AFTER_ERROR_S = 0.1


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How much is done concurrently.

    Attributes:
        size: bytes of a body, at least 16.
        in_flight: concurrent sends.
        consumers: each with connections of its own, and its share of the queues; 0 to send only.
        rate: messages per second; None: as fast as possible.
    """

    size: int = 1024
    in_flight: int = 64
    consumers: int = 1
    rate: float | None = None


class Load:
    """A producer and consumers on a topic, from ``async with`` to the end of its block.

    The consumers read as tools do, without a group, start with messages sent from now on, and commit nothing.
    """

    def __init__(
        self, name_servers: Sequence[str], topic: str, options: LoadOptions, client_options: Mapping[str, Any]
    ) -> None:
        self.topic = topic
        self._options = options
        self._producer = Producer(_GROUP, name_servers, ProducerOptions(**client_options))
        pulling = LitePullConsumerOptions(**client_options, pull_batch_size=_AT_ONCE, auto_commit=False)
        self._consumers = [LitePullConsumer(TOOLS_GROUP, name_servers, pulling) for _ in range(options.consumers)]
        self._rounds = itertools.count(random.getrandbits(63))

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            NotFoundError: there is no such topic, or it is not writable, or not readable.
            UnavailableError: no name server answers.
        """
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self._producer)
            await self._producer.queues(self.topic)
            for consumer in self._consumers:
                await stack.enter_async_context(consumer)
            await self._share_out()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _share_out(self) -> None:
        for number, consumer in enumerate(self._consumers):
            queues = (await consumer.fetch_message_queues(self.topic))[number :: len(self._consumers)]
            consumer.assign(queues)
            for queue in queues:
                await consumer.seek_to_end(queue)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_JOIN_S):
                while any(consumer.queues() != consumer.assignment() for consumer in self._consumers):
                    await asyncio.sleep(_LOOK_S)

    async def run(self, tally: LoadTally, seconds: float, limit: int | None = None) -> None:
        """Send for a time, or a number of messages, and wait for their delivery; ``tally`` is updated in the meantime.

        A failing broker does not end it: the outcome of each message is counted.
        """
        run = _Run(tally, self._options, next(self._rounds), seconds, limit)
        consuming = [asyncio.create_task(run.consume(consumer)) for consumer in self._consumers]
        try:
            await asyncio.gather(*(run.send(self._producer, self.topic) for _ in range(self._options.in_flight)))
            if consuming:
                await run.catch_up()
        finally:
            for task in consuming:
                task.cancel()
            await asyncio.gather(*consuming, return_exceptions=True)


class _Run:
    """One round."""

    def __init__(self, tally: LoadTally, options: LoadOptions, number: int, seconds: float, limit: int | None) -> None:
        self._tally = tally
        self._number = number
        self._rest = bytes(options.size - LEAST_SIZE)
        self._rate = options.rate
        self._start = time.perf_counter()
        self._end = self._start + seconds
        self._turns = itertools.count() if limit is None else iter(range(limit))

    async def send(self, producer: Producer, topic: str) -> None:
        """Send messages one after the other, each when it is due, until the end of the round."""
        sent = self._tally.sent
        for turn in self._turns:
            due = time.perf_counter()
            if self._rate:
                # Latency counts from when a message was due, not from when there was room to send it.
                due, now = self._start + turn / self._rate, due
                if due >= self._end:
                    return
                if due > now:
                    await asyncio.sleep(due - now)
            if time.perf_counter() >= self._end:
                return
            body = _STAMP.pack(self._number, round(due * 1e9)) + self._rest
            try:
                result = await producer.send(ProducerMessage(topic, body))
            except MqtoolError as error:
                self._tally.errors[_name_of(error)] += 1
                await asyncio.sleep(_AFTER_ERROR_S)  # pause before the next attempt at a broker that is gone
                continue
            now = time.perf_counter()
            sent.times.add(round((now - due) * 1e6))
            sent.seconds = now - self._start
            if result.status is not SendStatus.SEND_OK:
                self._tally.errors[result.status.name] += 1

    async def consume(self, consumer: LitePullConsumer) -> None:
        """Receive messages."""
        while True:
            self._take(await consumer.poll(_POLL_MS))

    def _take(self, messages: Sequence[ConsumerMessage]) -> None:
        consumed, now = self._tally.consumed, time.perf_counter()
        for message in messages:
            if len(message.body) >= LEAST_SIZE:
                number, due = _STAMP.unpack_from(message.body)
                if number == self._number:  # else it is from elsewhere, or from a round that did not wait for it
                    consumed.times.add(round(now * 1e6 - due / 1e3))
                    consumed.seconds = now - self._start

    async def catch_up(self) -> None:
        """Wait until all messages are delivered, or no more arrive."""
        count, last = -1, 0.0
        while self._tally.missing:
            now = time.perf_counter()
            if self._tally.consumed.times.count != count:
                count, last = self._tally.consumed.times.count, now
            if now - last > _CATCH_UP_S:
                return
            await asyncio.sleep(_LOOK_S)


def _name_of(error: MqtoolError) -> str:
    """Return the name under which an error is counted."""
    if isinstance(error, SendError) and error.errors:
        error = error.errors[-1]
    if isinstance(error, RefusedError):
        with contextlib.suppress(ValueError):
            return ResponseCode(error.code).name
    return str(error)
