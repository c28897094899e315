"""Producers, for asyncio: each message goes to a queue, and to another broker if one fails.

(Rules: remoting.md 3.9, 4.3, 4.6. RocketMQ: ``DefaultMQProducer``, ``TransactionMQProducer``.)
"""

import asyncio
import dataclasses
import itertools
import logging
import os
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from mqtool.engine.client import calls, sending
from mqtool.engine.client.fault_latency import AVOIDED_MS, LATENCIES_MS, FaultLatency
from mqtool.engine.client.names import DEFAULT_PRODUCER, check_topic, with_namespace, without_namespace
from mqtool.engine.client.outgoing import (
    MAX_MESSAGE_SIZE,
    Element,
    Packed,
    ProducerMessage,
    check_batch,
    check_is_message,
    check_message,
    element_of,
    join_batch,
    kept,
    pack,
    pack_element,
    split_by_size,
)
from mqtool.engine.client.queue_choice import InTurn, Selector
from mqtool.engine.client.sending import SendResult, SendStatus, TransactionState
from mqtool.engine.client_runtime import hooks, user_code
from mqtool.engine.client_runtime.auto_batch import AnyFuture, AutoBatch, LaneKey, PendingMessage, SendFuture
from mqtool.engine.client_runtime.client import Client
from mqtool.engine.client_runtime.given_options import options_of
from mqtool.engine.client_runtime.instance import ClientOptions
from mqtool.engine.client_runtime.message_trace import message_trace_of
from mqtool.engine.remoting.clock import wall_clock
from mqtool.errors import AnswerTimeoutError, MqtoolError, RefusedError, SendError, UnavailableError, UsageError
from mqtool.formats.bodies import Heartbeat, MessageQueue
from mqtool.formats.codes import RequestCode
from mqtool.formats.compression import Compression
from mqtool.formats.headers import CheckTransaction, parse_header
from mqtool.formats.hosts import parse_host
from mqtool.formats.property_names import CORRELATION_ID
from mqtool.formats.remoting import RemotingCommand
from mqtool.formats.unique_key import maker_part, message_part

if TYPE_CHECKING:
    from mqtool.engine.client.incoming import ConsumerMessage

log = logging.getLogger(__name__)

FLUSH_MS = 30_000
"""How long a producer that shuts down waits for sends in flight: longer than any send takes by default."""

_LISTENER = "transaction listener"


class _Way(NamedTuple):
    """How the queue of a message is chosen."""

    choose: Callable[[Sequence[MessageQueue], str | None], MessageQueue]
    """Called with the queues of the topic and the broker that failed."""
    is_fixed: bool
    """It is given, or chosen by a selector: then the send is not retried."""


@dataclass(frozen=True, kw_only=True)
class ProducerOptions(ClientOptions):
    """How a producer sends; names and defaults are those of the Java client.

    Attributes:
        send_msg_timeout: ms for a send, all attempts together.
        retry_times_when_send_failed: further attempts, with other brokers first, after a lost connection, a missing
            answer, or a response code that another broker might not return.
        retry_times_when_send_async_failed: the same for ``send_async``, which does not retry after a response code.
        retry_another_broker_when_not_store_ok: also retry after an answer other than SEND_OK.
        compress_msg_body_over_howmuch: bodies of at least this many bytes are compressed, if that makes them smaller.
        compress_type: the codec.
        compress_level: from 1, fast, to 9, small.
        max_message_size: maximum size of a body in bytes.
        default_topic_queue_nums: queues of a topic that is created by sending to it.
        topics: brokers of these topics learn of the producer when it starts, not when it first sends, and ask it about
            transactions that another member of its group has left open.
        send_latency_fault_enable: avoid brokers that are slow or failed, for the time given by ``latency_max`` and
            ``not_available_duration``, both in ms.
        enable_backpressure_for_async_mode: ``send_async`` waits while the next two limits of concurrent sends are
            reached.
        back_pressure_for_async_send_num: messages.
        back_pressure_for_async_send_size: bytes of bodies.
        auto_batch: ``send`` and ``send_async`` send messages to one topic, or one queue of it, to a broker
            together, in the order in which they were passed.
        batch_size: maximum size of such a batch in bytes.
        linger_ms: maximum time that the first message of a batch waits for others.
        serializer: makes the bytes, or the text, to send from the body of each message; if it raises, the call
            raises, and nothing is sent. It is called in the event loop, or by the thread that calls ``send_async``,
            so it should not block.
        hooks: are called for all messages, before and after they are sent.
        trace: send traces to RMQ_SYS_TRACE_TOPIC, as Java's ``enableMsgTrace`` does.
        metrics: a registry of ``prometheus_client``, or True for its default: how long sends take.
    """

    send_msg_timeout: int = 3000
    retry_times_when_send_failed: int = 2
    retry_times_when_send_async_failed: int = 2
    retry_another_broker_when_not_store_ok: bool = False
    compress_msg_body_over_howmuch: int = 4096
    compress_type: Compression = Compression.ZLIB
    compress_level: int = 5
    max_message_size: int = MAX_MESSAGE_SIZE
    default_topic_queue_nums: int = 4
    topics: Sequence[str] = ()
    send_latency_fault_enable: bool = False
    latency_max: Sequence[int] = LATENCIES_MS
    not_available_duration: Sequence[int] = AVOIDED_MS
    enable_backpressure_for_async_mode: bool = False
    back_pressure_for_async_send_num: int = 10_000
    back_pressure_for_async_send_size: int = 100 << 20
    auto_batch: bool = False
    batch_size: int = 32 << 10
    linger_ms: int = 10
    serializer: "Callable[[Any], bytes | str] | None" = None
    hooks: "Sequence[hooks.Hook]" = ()
    trace: bool = False
    metrics: Any = None


@dataclass(slots=True)
class SendCall:
    """A message to send, and how: the arguments of ``send`` and its siblings."""

    message: ProducerMessage
    queue: MessageQueue | None = None
    _: KW_ONLY
    selector: Selector | None = None
    arg: Any = None
    timeout_ms: int | None = None


class Producer(Client):
    """Sends messages for a group, from ``async with`` to the end of its block, or from ``start`` to ``shutdown``."""

    options: ProducerOptions
    _kind = "producer"
    _reserved = DEFAULT_PRODUCER

    def __init__(
        self,
        group: str,
        name_servers: str | Sequence[str] | None = None,
        options: "ProducerOptions | Mapping[str, Any] | None" = None,
        clock: Callable[[], int] = wall_clock,
        **more: Any,
    ) -> None:
        """Create a producer; nothing is sent yet.

        Args:
            group: the producer group, whose members a broker asks for the state of transactions.
            name_servers: as ``host:port;host:port``, or a sequence; by default from NAMESRV_ADDR.
            options: how it sends.
            clock: returns the time in ms since 1970.
            **more: options by name.

        Raises:
            UsageError: the group's name, the addresses or the options are invalid.
        """
        super().__init__(group, name_servers, options_of(ProducerOptions, options, more), clock)
        if self.options.linger_ms < 0 or self.options.batch_size < 1:
            settings = f"linger_ms={self.options.linger_ms}, batch_size={self.options.batch_size}"
            raise UsageError(f"{settings}: a batch must wait 0 ms or longer, and hold 1 byte or more")
        self._instance.heartbeat = lambda: Heartbeat(self.client_id, (self.group,))
        faults = FaultLatency(self.options.latency_max, self.options.not_available_duration)
        self._faults = faults if self.options.send_latency_fault_enable else None
        self._turns: dict[str, InTurn] = {}
        address, _ = parse_host(f"{self._instance.host}:0")
        self._maker = maker_part(address, os.getpid(), random.SystemRandom().getrandbits(32))
        self._counter = itertools.count()
        self._compression: dict[str, Any] = {
            "compress_over": self.options.compress_msg_body_over_howmuch,
            "compression": self.options.compress_type,
            "level": self.options.compress_level,
        }
        self._room = _InFlightLimit(
            self.options.back_pressure_for_async_send_num, self.options.back_pressure_for_async_send_size
        )
        self._under_way: set[asyncio.Task[SendResult]] = set()  # of send_async
        self._is_closing = False
        self._batches: AutoBatch | None = None
        self._trace, self._hooks = message_trace_of(
            "PRODUCE", self.group, name_servers, self.options, self._clock, trace_sender
        )
        if measured := self._measured(self.options.metrics):
            self._hooks = (*self._hooks, measured)
        self._awaited: dict[str, asyncio.Future[ConsumerMessage]] = {}  # replies, by correlation id
        self._instance.on_request[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT] = self._replied

    async def start(self) -> None:
        """Start; routes are queried when they are needed, those of ``topics`` now.

        Raises:
            UnavailableError: there are ``topics``, and no name server answers.
        """
        async with self._starting():
            self._is_closing = False
            self._instance.start()
            if self._trace:
                await self._trace.start(self._instance)
            if self.options.auto_batch:
                self._batches = AutoBatch(self._send_batch, self.options.batch_size, self.options.linger_ms)
            for topic in self.options.topics:
                await self._instance.route(self._topic(topic))

    async def shutdown(self) -> None:
        """Wait for pending ``send_async`` calls, then unregister from brokers, and close connections.

        Calls from now on are refused.

        Raises:
            UnavailableError: some messages were not sent in time, as for ``flush``.
        """
        if not self._is_running:
            return
        self._is_closing = True  # else threads that send without end would never let it end
        try:
            await self.flush()
        finally:
            self._is_running = False
            for late in self._under_way:
                late.cancel()
            if self._batches:
                self._batches.give_up(UnavailableError("the producer was shut down before the message was sent"))
            await self._leave(producer_group=self.group)

    async def flush(self, timeout_ms: int = FLUSH_MS) -> None:
        """Wait until all pending ``send_async`` calls have succeeded or failed; their tasks have the results.

        Raises:
            UnavailableError: some messages are still in flight after that time.
        """
        end = asyncio.get_running_loop().time() + timeout_ms / 1000
        while under_way := {*self._under_way, *(self._batches.hurry() if self._batches else ())}:
            left = end - asyncio.get_running_loop().time()
            if left <= 0:
                count = len(self._under_way) + (self._batches.count if self._batches else 0)
                are = "1 message was" if count == 1 else f"{count:,} messages were"
                raise AnswerTimeoutError(f"{are} not sent within {timeout_ms:,} ms")
            await asyncio.wait(under_way, timeout=left)

    # SendCall

    async def send(
        self,
        message: ProducerMessage,
        queue: MessageQueue | None = None,
        *,
        selector: Selector | None = None,
        arg: Any = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send a message and return where it is stored.

        Args:
            message: its ``unique_key`` is set.
            queue: a queue of its topic; without one, and without a selector, the queues take turns.
            selector: chooses the queue; the send is not retried then.
            arg: is passed to the selector.
            timeout_ms: for all attempts; by default ``send_msg_timeout``.

        Raises:
            UsageError: no broker would accept the message.
            Exception: raised by the serializer.
            NotFoundError: there is no such topic, and sending does not create it.
            UnavailableError: no name server can be reached; or the only broker that was tried.
            RefusedError: the broker refuses it for a reason that applies to other brokers, too.
            SendError: all attempts failed.
        """
        call = self.ready(SendCall(message, queue, selector=selector, arg=arg, timeout_ms=timeout_ms))
        if self._batches and message.may_be_batched:
            return await self._add(call, await self.to_choose_from(call))
        return await self._sender_of(call)()

    async def send_async(
        self,
        message: ProducerMessage,
        queue: MessageQueue | None = None,
        *,
        selector: Selector | None = None,
        arg: Any = None,
        timeout_ms: int | None = None,
    ) -> "asyncio.Future[SendResult]":
        """Start sending a message; the returned future has its location as result, or the exception of ``send``.

        Waits if back pressure is enabled and too much is in flight.
        """
        options = self.options
        call = self.ready(SendCall(message, queue, selector=selector, arg=arg, timeout_ms=timeout_ms))
        if self._batches and message.may_be_batched:
            queues = await self.to_choose_from(call)
            if not options.enable_backpressure_for_async_mode:
                return self._add(call, queues)
            size = len(call.message.encoded_body)
            await self._room.take(size)
            added = self._add(call, queues)
            added.add_done_callback(lambda _: self._instance.keep(self._room.give_back(size)))
            return added
        begin = self.packed(call)
        if not options.enable_backpressure_for_async_mode:
            return begin()
        size = len(call.message.encoded_body)
        await self._room.take(size)
        begun = begin()
        begun.add_done_callback(lambda _: self._instance.keep(self._room.give_back(size)))
        return begun

    def packed(self, call: SendCall) -> "Callable[[], asyncio.Task[SendResult]]":
        """Make the request of a prepared message, in any thread; return what starts sending it, in the event loop.

        Raises:
            UsageError: the producer is not running, or the message has too many properties.
        """
        self._check_open()
        send = self._sender_of(call, is_async=True)
        return lambda: self._begun(send())

    # Automatic batches

    async def to_choose_from(self, call: SendCall) -> list[MessageQueue]:
        """Return the queues from which a selector chooses, none if there is no selector."""
        return await self._queues_within(call.message.topic, self._timeout(call.timeout_ms)) if call.selector else []

    def _lane(self, call: SendCall, queues: list[MessageQueue]) -> LaneKey:
        """Return the lane of a message, whose messages may be batched together.

        Raises:
            UsageError: queue or selector are invalid.
        """
        message, queue = call.message, call.queue
        if call.selector:
            queue = self._way_of(call).choose(queues, None)
        elif queue:
            queue = self._wanted(queue, message.topic)
        return LaneKey(message.topic, queue, bool(message.wait_store_ok))

    @property
    def is_batching(self) -> bool:
        """Whether messages that can be batched are batched."""
        return self._batches is not None

    def post(self, call: SendCall, queues: list[MessageQueue]) -> SendFuture:
        """Add a prepared message to the next batch; any thread may call it.

        Args:
            call: one that can be batched.
            queues: those from which a selector chooses.

        Raises:
            UsageError: the producer is not running, queue or selector are invalid, or the message has too many
                properties.
        """
        assert self._batches is not None
        lane, future = self._lane(call, queues), self._batches.new_future()
        self._batches.post(lane, self._waiting(call, future))
        return future

    def _waiting(self, call: SendCall, future: AnyFuture) -> PendingMessage:
        """Return a prepared message in the form in which it waits for its batch.

        Raises:
            UsageError: the producer is not running, or the message has too many properties.
        """
        self._check_open()
        message = call.message
        topic = self._topic(message.topic)
        if not self._hooks:
            return PendingMessage(element_of(message, topic), self._timeout(call.timeout_ms), future)
        called_hooks = self._before_send([message])
        with hooks.told_of_failure(called_hooks, [message]):
            element = element_of(message, topic)
        hooks.after_future(called_hooks, [message], future)
        return PendingMessage(element, self._timeout(call.timeout_ms), future)

    def _add(self, call: SendCall, queues: list[MessageQueue]) -> "asyncio.Future[SendResult]":
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        assert self._batches is not None
        lane = self._lane(call, queues)
        self._batches.add(lane, self._waiting(call, future))
        return future

    def _send_batch(self, lane: LaneKey, elements: Sequence[Element], timeout_ms: int) -> Awaitable[SendResult]:
        packed = self._joined(elements, self._topic(lane.topic), wait_store_ok=lane.wait_store_ok)
        return self._send(packed, self._way(packed.topic, lane.queue), timeout_ms)

    def _joined(self, elements: Sequence[Element], topic: str, *, wait_store_ok: bool) -> Packed:
        """Return the request for a batch of messages, or for a single one."""
        if len(elements) > 1:
            return join_batch(elements, topic, self._unique_key(), wait_store_ok=wait_store_ok)
        return pack_element(elements[0], topic, **self._compression)

    def _check_open(self) -> None:
        """Raise UsageError unless new messages may be sent."""
        self._check_running()
        if self._is_closing:
            raise UsageError(f"{self!r} is being shut down")

    def _begun(self, work: "Coroutine[Any, Any, SendResult]") -> "asyncio.Task[SendResult]":
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def send_oneway(
        self,
        message: ProducerMessage,
        queue: MessageQueue | None = None,
        *,
        selector: Selector | None = None,
        arg: Any = None,
    ) -> None:
        """Send a message without waiting for an answer; whether it was stored remains unknown.

        Raises:
            MqtoolError: it was not sent.
        """
        call = self.ready(SendCall(message, queue, selector=selector, arg=arg))
        way = self._way_of(call)
        packed, called_hooks = self._pack(call)
        with hooks.told_of_end(called_hooks, [call.message]):
            chosen = way.choose(await self._queues(packed.topic), None)
            broker_call = self._call(packed, chosen)
            await self._instance.send_oneway(chosen.broker_name, broker_call.command)

    async def send_batch(
        self, messages: Iterable[ProducerMessage], queue: MessageQueue | None = None, *, timeout_ms: int | None = None
    ) -> list[SendResult]:
        """Send messages of one topic in as few requests as their size allows, and return where each batch is stored.

        Each batch is stored completely or not at all, in one queue, in the given order. A message alone in its batch
        is sent as a single message. Brokers of 5.x before 5.3.4 show the unique key of the batch instead of that of
        each message.

        Raises:
            MqtoolError: as ``send``; batches before the one that failed are stored.
        """
        options = self.options
        originals = _listed(messages)
        timeout_ms = self._timeout(timeout_ms)
        ready = [*map(self._serialized, originals)]
        check_batch(ready, options.max_message_size)
        if self._hooks:
            ready = [*map(kept, ready)]
        for message, prepared in zip(originals, ready, strict=True):
            message.unique_key = prepared.unique_key = self._unique_key()
        wait_store_ok = ready[0].wait_store_ok
        called_hooks = self._before_send(ready)
        results: list[SendResult] = []
        of_each: list[SendResult] = []
        with hooks.told_of_end(called_hooks, ready, of_each):
            topic = self._topic(ready[0].topic)
            way = self._way(topic, queue)
            elements = [element_of(message, topic) for message in ready]
            for part in split_by_size([len(element.data) for element in elements], options.max_message_size):
                batch = elements[part]
                packed = self._joined(batch, topic, wait_store_ok=wait_store_ok)
                results.append(await self._send(packed, way, timeout_ms))
                if called_hooks:
                    of_each += sending.each_result(results[-1], [element.unique_key for element in batch])
        return results

    async def recall(self, topic: str, recall_handle: str, timeout_ms: int | None = None) -> str:
        """Recall a timer message that is not delivered yet, and return its unique key.

        Args:
            topic: the topic it was sent to.
            recall_handle: from its ``SendResult``.
            timeout_ms: for the answer.

        Raises:
            UsageError: the handle is invalid.
            RefusedError: the broker does not support it, or it is too late.
        """
        broker_name = sending.broker_of_handle(recall_handle)
        timeout_ms = self._timeout(timeout_ms)
        await self._queues(topic)
        broker_call = sending.recall(self.group, self._topic(topic), recall_handle)
        return await self._instance.request(broker_name, broker_call, timeout_ms)

    async def request(
        self,
        message: ProducerMessage,
        queue: MessageQueue | None = None,
        *,
        selector: Selector | None = None,
        arg: Any = None,
        timeout_ms: int | None = None,
    ) -> "ConsumerMessage":
        """Send a message, wait for the reply of its consumer, and return it.

        Args:
            message: its ``unique_key`` is set.
            queue: as for ``send``.
            selector: as for ``send``.
            arg: as for ``send``.
            timeout_ms: for the reply; by default ``send_msg_timeout``.

        Raises:
            UnavailableError: no reply arrived in time.
            MqtoolError: as ``send``.
        """
        import uuid

        timeout_ms = self._timeout(timeout_ms)
        correlation_id = str(uuid.uuid4())
        more = sending.request_properties(correlation_id, self.client_id, timeout_ms)
        call = self.ready(SendCall(message, queue, selector=selector, arg=arg, timeout_ms=timeout_ms))
        send = self._sender_of(call, more)
        replied: asyncio.Future[ConsumerMessage] = asyncio.get_running_loop().create_future()
        self._awaited[correlation_id] = replied
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await send()
                return await replied
        except TimeoutError:
            sentence = f"no reply to the message to {message.topic} within {timeout_ms:,} ms"
            raise AnswerTimeoutError(sentence) from None
        finally:
            del self._awaited[correlation_id]

    async def reply(self, request: "ConsumerMessage", body: Any, timeout_ms: int | None = None) -> SendResult:
        """Reply to a message whose producer waits for a reply, and return where the reply is stored.

        Args:
            request: the message, as a consumer got it.
            body: of the reply, as of a message.
            timeout_ms: for the answer of the broker.

        Raises:
            UsageError: its producer does not expect a reply.
            MqtoolError: as ``send``; for example, that producer no longer exists.
        """
        call = self.ready(SendCall(sending.reply_to(request, body), timeout_ms=timeout_ms))
        return await self._sender_of(call, is_reply=True)()

    def _replied(self, _address: str, command: RemotingCommand) -> RemotingCommand:
        from mqtool.engine.client.incoming import parse_reply

        reply = parse_reply(command)
        awaited = self._awaited.get(reply.properties.get(CORRELATION_ID, ""))
        if awaited and not awaited.done():
            awaited.set_result(reply)
        return command.answer()

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues to which messages of a topic are sent."""
        check_topic(topic)
        return [queue._replace(topic=topic) for queue in await self._queues(topic)]

    # How to send

    def _timeout(self, timeout_ms: int | None) -> int:
        if timeout_ms is None:
            return self.options.send_msg_timeout
        if not isinstance(timeout_ms, int | float):
            raise UsageError(f"timeout_ms of a message must be a number, not {timeout_ms!r}")
        return timeout_ms

    def _sender_of(
        self, call: SendCall, more: dict[str, str] | None = None, *, is_async: bool = False, is_reply: bool = False
    ) -> "Callable[[], Coroutine[Any, Any, SendResult]]":
        """Build the request of a prepared message, in any thread; return a function that sends it and calls the hooks.

        Args:
            call: the message and how to send it.
            more: additional properties.
            is_async: it is not retried after an answer.
            is_reply: it is a reply to a message.

        Raises:
            UsageError: queue or selector make no sense, or the message has too many properties.
        """
        way, timeout_ms = self._way_of(call), self._timeout(call.timeout_ms)
        packed, called_hooks = self._pack(call, more)
        if is_reply:
            packed = packed._replace(is_reply=True)
        return lambda: _told(called_hooks, call, self._send(packed, way, timeout_ms, is_async=is_async))

    async def _send(self, packed: Packed, way: _Way, timeout_ms: int, *, is_async: bool = False) -> SendResult:
        options, instance = self.options, self._instance
        start = instance.clock()
        self._check_running()
        queues = instance.known_to_write(packed.topic) or await self._queues_within(packed.topic, timeout_ms)
        if way.is_fixed:
            chosen = way.choose(queues, None)
            try:
                return await self._ask(packed, chosen, timeout_ms)
            except MqtoolError:
                self._instance.look_for_successor(chosen.broker_name)
                raise
        retries = options.retry_times_when_send_async_failed if is_async else options.retry_times_when_send_failed
        brokers: list[str] = []
        errors: list[MqtoolError] = []
        kept: SendResult | None = None
        waited = 0
        for _ in range(1 + retries):
            now = instance.clock()
            waited = now - start
            if waited > timeout_ms:
                break
            chosen = way.choose(queues, brokers[-1] if brokers else None)
            brokers.append(chosen.broker_name)
            try:
                result = await self._ask(packed, chosen, timeout_ms - waited)
            except RefusedError as error:
                self._failed(chosen.broker_name)
                errors.append(error)
                if is_async or error.code not in sending.RETRY_CODES:
                    if kept is None:
                        raise
                    break
            except UnavailableError as error:
                self._failed(chosen.broker_name)
                errors.append(error)
            else:
                if self._faults:
                    self._faults.took(chosen.broker_name, instance.clock() - now, instance.clock())
                if result.status is SendStatus.SEND_OK or not options.retry_another_broker_when_not_store_ok:
                    return result
                kept = result
        if kept is not None:
            return kept
        raise SendError(self._own_name(packed.topic), brokers, errors, instance.clock() - start)

    def _ask(self, packed: Packed, queue: MessageQueue, timeout_ms: int) -> Awaitable[SendResult]:
        answer = self._instance.request(queue.broker_name, self._call(packed, queue), timeout_ms)
        return self._as_users_know_it(answer) if self.options.namespace else answer

    async def _as_users_know_it(self, answer: Awaitable[SendResult]) -> SendResult:
        result = await answer
        return result._replace(queue=result.queue._replace(topic=self._own_name(result.queue.topic)))

    def _failed(self, broker_name: str) -> None:
        self._instance.look_for_successor(broker_name)
        if self._faults:
            self._faults.failed(broker_name, self._instance.clock())

    def _call(self, packed: Packed, queue: MessageQueue) -> "calls.Call[SendResult]":
        return sending.send(packed, queue, self.group, self._instance.clock(), self.options.default_topic_queue_nums)

    def _way_of(self, call: SendCall) -> _Way:
        """Return how the queue of a message is chosen; any thread may call it.

        Raises:
            UsageError: queue or selector are invalid.
        """
        message, selector = call.message, call.selector
        if selector is None:
            return self._way(self._topic(message.topic), call.queue)
        if call.queue:
            raise UsageError("queue and selector are mutually exclusive")
        return _Way(lambda queues, _: self._wanted(_chosen(selector, queues, message, call.arg), message.topic), True)

    def _way(self, topic: str, queue: MessageQueue | None) -> _Way:
        if queue:
            wanted = self._wanted(queue, topic)
            return _Way(lambda _queues, _failed: wanted, True)
        turns = self._turns.get(topic)
        if turns is None:
            turns = self._turns.setdefault(topic, InTurn(random.randrange(1 << 16), self._faults))
        return _Way(lambda queues, failed: turns.choose(queues, failed, self._instance.clock()), False)

    def _wanted(self, queue: MessageQueue, topic: str) -> MessageQueue:
        """Return the queue chosen for a message to a topic, under the name that brokers know."""
        if not (isinstance(queue, MessageQueue) and all(map(isinstance, queue, (str, str, int)))):
            raise UsageError(f"the queue of a message must be a MessageQueue, not {queue!r}")
        wanted = queue._replace(topic=self._topic(queue.topic)) if self.options.namespace else queue
        if wanted.topic != self._topic(topic):
            raise UsageError(f"a message to {self._own_name(topic)} cannot go to {queue}")
        return wanted

    async def _queues_within(self, topic: str, timeout_ms: int) -> list[MessageQueue]:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self._queues(topic)
        except TimeoutError:
            name = self._own_name(topic)
            message = f"no name server returned the queues of {name} within {timeout_ms:,} ms"
            raise AnswerTimeoutError(message) from None

    async def _queues(self, topic: str) -> list[MessageQueue]:
        self._check_running()
        return await self._instance.queues_to_write(self._topic(topic), self.options.default_topic_queue_nums)

    def _topic(self, topic: str) -> str:
        return with_namespace(topic, self.options.namespace)

    def _own_name(self, topic: str) -> str:
        """Return the application's name of a topic."""
        return without_namespace(topic, self.options.namespace)

    def ready(self, call: SendCall) -> SendCall:
        """Prepare the message of a call: serialize it, check it, and set its unique key; in any thread.

        Raises:
            UsageError: no broker would accept it.
            Exception: raised by the serializer.
        """
        self._timeout(call.timeout_ms)
        if call.selector is not None and not callable(call.selector):
            raise UsageError(f"the selector of a message must be a function, not {call.selector!r}")
        original, call.message = call.message, self._serialized(call.message)
        check_message(call.message, self.options.max_message_size)
        if self._hooks or call.selector:  # they see it later
            call.message = kept(call.message)
        original.unique_key = call.message.unique_key = self._unique_key()
        return call

    def _serialized(self, message: ProducerMessage) -> ProducerMessage:
        serializer = self.options.serializer
        if serializer is None:
            return message
        check_is_message(message)
        return dataclasses.replace(message, body=user_code.call("serializer", serializer, message.body))

    def _pack(self, call: SendCall, more: dict[str, str] | None = None) -> tuple[Packed, hooks.CalledHooks]:
        """Return the request for a message, and the hooks to be called with its outcome."""
        if not self._hooks:
            return self._packed(call.message, more), []
        called_hooks = self._before_send([call.message])
        with hooks.told_of_failure(called_hooks, [call.message]):
            return self._packed(call.message, more), called_hooks

    def _before_send(self, messages: Sequence[ProducerMessage]) -> hooks.CalledHooks:
        return hooks.before(self._hooks, "send", messages, self.group) if self._hooks else []

    def _packed(self, message: ProducerMessage, more: dict[str, str] | None = None) -> Packed:
        return pack(message, self._topic(message.topic), more=more, **self._compression)

    def _unique_key(self) -> str:
        return self._maker + message_part(self._instance.clock(), next(self._counter))


class TransactionListener(Protocol):
    """The local side of transactions. A method may be a coroutine; otherwise it runs in a thread of its own."""

    def execute_local_transaction(self, message: ProducerMessage, arg: Any) -> Any:
        """Run the local transaction of a message that a broker keeps hidden, and return a ``TransactionState``."""

    def check_local_transaction(self, message: "ConsumerMessage") -> Any:
        """Return the ``TransactionState`` of a message whose state a broker does not know."""


class TransactionProducer(Producer):
    """Sends messages that are delivered only after a local transaction has committed."""

    def __init__(
        self,
        group: str,
        listener: TransactionListener,
        name_servers: str | Sequence[str] | None = None,
        options: "ProducerOptions | Mapping[str, Any] | None" = None,
        clock: Callable[[], int] = wall_clock,
        **more: Any,
    ) -> None:
        """Create a producer; ``listener`` runs local transactions, for everything else see ``Producer``."""
        super().__init__(group, name_servers, options, clock, **more)
        self._listener = listener
        self._instance.on_request[RequestCode.CHECK_TRANSACTION_STATE] = self._asked

    async def send_in_transaction(self, message: ProducerMessage, arg: Any = None) -> SendResult:
        """Send a message, hidden; run the local transaction; and tell the broker its outcome.

        Without an outcome, as after an exception or ``UNKNOWN``, the broker asks again: this producer or another of
        its group.

        Args:
            message: without a delay.
            arg: is passed to the listener.

        Returns:
            Where the hidden message is stored, and the state.

        Raises:
            MqtoolError: as ``send``; the local transaction has not run then.
            Exception: raised by the listener.
        """
        if message.is_delayed:
            raise UsageError("a message in a transaction cannot be delayed")
        call = self.ready(SendCall(message))
        sent = await self._sender_of(call, sending.transaction_properties(self.group))()
        if sent.status is not SendStatus.SEND_OK:  # it may be lost together with the broker
            return await self._end(sent, TransactionState.ROLLBACK)
        try:
            state = await user_code.called(_LISTENER, self._listener.execute_local_transaction, message, arg)
        except Exception:
            await self._end(sent, TransactionState.UNKNOWN)
            raise
        return await self._end(sent, _state(state))

    async def _end(self, sent: SendResult, state: TransactionState) -> SendResult:
        try:
            end = sending.end_transaction(self.group, sent, self._topic(sent.queue.topic), state)
            await self._instance.send_oneway(sent.queue.broker_name, end)
        except UnavailableError as error:  # the broker asks again
            log.warning("ending the transaction of %s failed: %s", sent.message_id, error)
        return sent._replace(transaction_state=state)

    def _asked(self, address: str, command: RemotingCommand) -> None:
        self._instance.keep(self._answer(address, command))

    async def _answer(self, address: str, command: RemotingCommand) -> None:
        from mqtool.engine.client.incoming import parse_message

        asked = parse_header(CheckTransaction, command.ext_fields)
        message = parse_message(command.body)
        try:
            state = _state(await user_code.called(_LISTENER, self._listener.check_local_transaction, message))
        except Exception:
            log.exception("the listener failed to determine the state of %s", message.message_id)
            state = TransactionState.UNKNOWN
        try:
            await self._instance.wire.send_oneway(
                address, sending.answer_check(self.group, asked, message.message_id, state)
            )
        except UnavailableError as error:  # the broker asks again
            log.warning("cannot report the state of the transaction of %s: %s", message.message_id, error)


def _told(
    called_hooks: hooks.CalledHooks, call: SendCall, work: "Coroutine[Any, Any, SendResult]"
) -> "Coroutine[Any, Any, SendResult]":
    """Return a coroutine that sends a message, and calls the hooks with the outcome."""
    return _with_hooks(called_hooks, call, work) if called_hooks else work


async def _with_hooks(called_hooks: hooks.CalledHooks, call: SendCall, work: Awaitable[SendResult]) -> SendResult:
    results: list[SendResult] = []
    with hooks.told_of_end(called_hooks, [call.message], results):
        results.append(await work)
    return results[0]


def _listed(messages: Iterable[ProducerMessage]) -> list[ProducerMessage]:
    if not isinstance(messages, Iterable):
        raise UsageError(f"send_batch takes several messages, not {messages!r:.40}")
    listed: list[ProducerMessage] = user_code.call("batch", list, messages)
    return listed


def _chosen(selector: Selector, queues: Sequence[MessageQueue], message: ProducerMessage, arg: Any) -> MessageQueue:
    queue = user_code.call("selector", selector, queues, message, arg)
    if not isinstance(queue, MessageQueue):
        raise UsageError(f"the selector returned {queue!r}, which is not a queue")
    return queue


def _state(answer: Any) -> TransactionState:
    return answer if isinstance(answer, TransactionState) else TransactionState.UNKNOWN


class _InFlightLimit:
    """Limits of sends in flight: a number of messages, and of bytes of bodies."""

    def __init__(self, count: int, size: int) -> None:
        self._count, self._size = max(10, count), max(1 << 20, size)  # minimum values, as in Java
        self._changed = asyncio.Condition()

    async def take(self, size: int) -> None:
        """Wait until there is room for one more, and take it; one larger than the limit waits until all is free."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._count > 0 and self._size > 0)
            self._count -= 1
            self._size -= size

    async def give_back(self, size: int) -> None:
        """Release the room."""
        async with self._changed:
            self._count += 1
            self._size += size
            self._changed.notify_all()


def trace_sender(name: str, name_servers: str | Sequence[str] | None, options: Mapping[str, Any]) -> Producer:
    """Return the producer that sends the trace of a client, not started."""
    return Producer(name, name_servers, ProducerOptions(**options))
