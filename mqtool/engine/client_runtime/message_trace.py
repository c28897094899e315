"""RocketMQ's message trace: a client reports what happens to each message, for ``trace`` and ``mqadmin``.

(RocketMQ: ``AsyncTraceDispatcher``, ``SendMessageTraceHookImpl``, ``ConsumeMessageTraceHookImpl``.)
"""

import asyncio
import collections
import contextlib
import dataclasses
import itertools
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from mqtool.engine.client.names import with_namespace
from mqtool.engine.client.outgoing import ProducerMessage
from mqtool.engine.client_runtime.hooks import Hook
from mqtool.engine.client_runtime.instance import ClientOptions, Instance
from mqtool.errors import MqtoolError
from mqtool.formats import trace
from mqtool.formats.property_names import MSG_REGION
from mqtool.formats.topics import TRACE_TOPIC

if TYPE_CHECKING:
    from mqtool.engine.client.incoming import ConsumerMessage
    from mqtool.engine.client.sending import SendResult

log = logging.getLogger(__name__)

_INTERVAL_S = 1.0
_LAST_S = 3.0  # how long a client that ends tries to send the rest
_MAX_HELD = 10_000
_MAX_SIZE = 128_000
_REGION = "DefaultRegion"
_NORMAL, _DELAYED = 0, 3
_SUCCESS, _EXCEPTION, _LATER = 0, 2, 4


class _Told(NamedTuple):
    """A record, and the keys by which it is found."""

    keys: tuple[str, ...]
    text: str


class _Begun(NamedTuple):
    """When something started: by the wall clock (ms), and by a monotonic one (s)."""

    timestamp: int
    at: float
    request_id: str = ""

    @property
    def cost_ms(self) -> int:
        """How long ago it started, in ms."""
        return round((time.perf_counter() - self.at) * 1000)


class Sender(Protocol):
    """The part of a producer that records need."""

    async def start(self) -> None:
        """Start."""
        ...

    async def send(self, message: ProducerMessage, /) -> object:
        """Send a message, and return when it is stored."""
        ...

    async def shutdown(self) -> None:
        """Stop."""
        ...


MakeSender = Callable[[str, str | Sequence[str] | None, Mapping[str, Any]], Sender]
"""Creates a producer from a group, name servers and options."""


class MessageTrace(Hook):
    """Collects records, and sends them every second; records that nobody accepted are sent again.

    Records for which there is no room in the meantime, or that cannot be sent before the end, are lost, which is
    logged.
    """

    def __init__(
        self,
        kind: str,
        group: str,
        name_servers: str | Sequence[str] | None,
        options: ClientOptions,
        clock: Callable[[], int],
        make_sender: "MakeSender",
    ) -> None:
        """Start without records.

        Args:
            kind: PRODUCE or CONSUME.
            group: of the client.
            name_servers: of the client.
            options: how it connects.
            clock: of the client.
            make_sender: creates the producer that sends records.
        """
        self._make_sender = make_sender
        self._name = f"_INNER_TRACE_PRODUCER-{group}-{kind}"
        self._group = group
        self._namespace = options.namespace
        self._name_servers = name_servers
        values = {field.name: getattr(options, field.name) for field in dataclasses.fields(ClientOptions)}
        self._options = values | {"namespace": "", "instance_name": ""}
        self._clock = clock
        self._waiting: collections.deque[_Told] = collections.deque()
        self._left_out = 0
        self._producer: Sender | None = None
        self._sending: asyncio.Lock
        self._sending_on: asyncio.Task[None] | None = None
        self._failed: MqtoolError | None = None  # error of the last attempt

    async def start(self, instance: Instance) -> None:
        """Send records from now on."""
        self._sending = asyncio.Lock()
        self._producer = self._make_sender(self._name, self._name_servers, self._options)
        await self._producer.start()
        self._sending_on = instance.keep_on("sending traces", self._send_on)

    async def stop(self) -> None:
        """Send the remaining records, and stop."""
        if self._producer:
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LAST_S):
                        while not await self._send():
                            await asyncio.sleep(_LAST_S / 10)
            finally:
                await self._end(self._producer)

    async def _end(self, producer: Sender) -> None:
        """End all that was started, also where nobody waits for that."""
        try:
            if self._sending_on:  # which puts back what it could not send yet
                self._sending_on.cancel()
                await asyncio.wait([self._sending_on])
        finally:
            if self._waiting:
                why = self._failed or "no broker accepted them in time"
                log.warning("%d trace records of %s were lost: %s", len(self._waiting), self._group, why)
                self._waiting.clear()
            with contextlib.suppress(MqtoolError):
                await producer.shutdown()

    async def _send_on(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            await self._send()

    async def _send(self) -> bool:
        """Send waiting records, after any other send has ended; return whether none are left."""
        async with self._sending:
            if self._left_out:
                log.warning("%d trace records of %s were dropped: the buffer is full", self._left_out, self._group)
                self._left_out = 0
            while self._waiting and self._producer:
                records = self._next()
                keys = dict.fromkeys(key for record in records for key in record.keys)
                text = "".join(record.text for record in records)
                try:
                    await self._producer.send(ProducerMessage(TRACE_TOPIC, text, keys=[*keys]))
                    self._failed = None
                except asyncio.CancelledError:
                    self._waiting.extendleft(reversed(records))
                    raise
                except MqtoolError as error:
                    if error.retriable:
                        self._waiting.extendleft(reversed(records))
                        if not self._failed:
                            log.warning(
                                "trace records of %s are waiting, because none can be sent now: %s", self._group, error
                            )
                        self._failed = error
                        return False
                    log.warning("%d trace records of %s were lost: %s", len(records), self._group, error)
            return True

    def _next(self) -> list[_Told]:
        records: list[_Told] = []
        size = 0
        while self._waiting and size < _MAX_SIZE:
            records.append(self._waiting.popleft())
            size += len(records[-1].text)
        return records

    def _add(self, unique_key: str, keys: Sequence[str], text: str) -> None:
        if len(self._waiting) >= _MAX_HELD:
            self._left_out += 1
        else:
            self._waiting.append(_Told((unique_key, *keys), text))

    # Records

    def before_send(self, messages: Sequence[ProducerMessage], group: str) -> Any:  # noqa: ARG002
        """Record the start time."""
        return _Begun(self._clock(), time.perf_counter())

    def after_send(
        self,
        messages: Sequence[ProducerMessage],
        started: Any,
        results: "Sequence[SendResult]",
        error: BaseException | None,
    ) -> None:
        """Record messages that were sent, or failed to be."""
        for message, result in itertools.zip_longest(messages, results):
            keys = [message.keys] if isinstance(message.keys, str) else [*(message.keys or ())]
            text = trace.build_sent(
                started.timestamp,
                _REGION,
                self._group,
                with_namespace(message.topic, self._namespace),
                message.unique_key,
                message.tags or "",
                " ".join(keys),
                result.queue.broker_name if result else "",
                len(message.encoded_body),
                started.cost_ms,
                _DELAYED if message.is_delayed else _NORMAL,
                result.offset_message_id if result else "",
                result is not None or error is None,
            )
            self._add(message.unique_key, keys, text)

    def before_consume(self, messages: "Sequence[ConsumerMessage]", group: str) -> Any:  # noqa: ARG002
        """Record messages that a listener, or the program, is about to get."""
        begun = _Begun(self._clock(), time.perf_counter(), f"{random.getrandbits(128):032x}")
        for message in messages:
            region = message.properties.get(MSG_REGION, _REGION)
            text = trace.build_given(
                begun.timestamp,
                region,
                self._group,
                begun.request_id,
                message.message_id,
                message.reconsume_times,
                _keys(message),
            )
            self._add(message.message_id, message.keys, text)
        return begun

    def after_consume(
        self, messages: "Sequence[ConsumerMessage]", started: Any, status: Any, error: BaseException | None
    ) -> None:
        """Record the outcome."""
        from mqtool.engine.client.consuming import ConsumeStatus  # not loaded by producers

        outcome = _EXCEPTION if error else _LATER if status is ConsumeStatus.LATER else _SUCCESS
        cost_ms = started.cost_ms // max(1, len(messages))
        for message in messages:
            text = trace.build_consumed(
                started.request_id,
                message.message_id,
                cost_ms,
                outcome == _SUCCESS,
                _keys(message),
                outcome,
                started.timestamp + started.cost_ms,
                self._group,
            )
            self._add(message.message_id, message.keys, text)


def message_trace_of(
    kind: str,
    group: str,
    name_servers: str | Sequence[str] | None,
    options: Any,
    clock: Callable[[], int],
    make_sender: MakeSender,
) -> tuple[MessageTrace | None, tuple[Hook, ...]]:
    """Return the trace of a client, None if it has none, and all its hooks."""
    if not options.trace:
        return None, tuple(options.hooks)
    message_trace = MessageTrace(kind, group, name_servers, options, clock, make_sender)
    return message_trace, (*options.hooks, message_trace)


def _keys(message: "ConsumerMessage") -> str:
    return " ".join(message.keys)
