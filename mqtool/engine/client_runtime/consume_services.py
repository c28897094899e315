"""How a consumer passes messages to its listener: concurrently, or those of a queue one after the other.

(RocketMQ: ``ConsumeMessageConcurrentlyService``, ``ConsumeMessageOrderlyService``.)
"""

import asyncio
import contextvars
import dataclasses
import functools
import inspect
import logging
import numbers
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from mqtool.engine.client import consuming, fetching
from mqtool.engine.client.consuming import ConsumeStatus, MessageModel
from mqtool.engine.client.incoming import ConsumerMessage
from mqtool.engine.client.names import with_namespace
from mqtool.engine.client_runtime import user_code
from mqtool.engine.client_runtime.consumer import AssignedQueue, ConsumerOptions
from mqtool.engine.client_runtime.instance import Instance
from mqtool.engine.client_runtime.listener_threads import ListenerThreads
from mqtool.engine.client_runtime.offset_store import OffsetStore
from mqtool.errors import MqtoolError
from mqtool.formats.bodies import MessageQueue

log = logging.getLogger(__name__)

_SEND_BACK_MS = 5000
_AGAIN_S = 5.0  # after a message could not be sent back
_LOCK_AGAIN_S = 0.1
_MAX_STUCK = 16  # messages examined for each queue at a time
_STUCK_LEVEL = 3
WORKING_ON: "contextvars.ContextVar[tuple[ConsumeService, MessageQueue] | None]" = contextvars.ContextVar(
    "WORKING_ON", default=None
)
"""The service whose listener is running, and its queue: a listener that ends its own consumer is not waited for."""
_DEFAULTS = {"delay_level": 0, "ack_index": consuming.UNLIMITED, "suspend_ms": 0}  # of a context


@dataclass
class ConsumeContext:
    """What a listener may set besides its status.

    Attributes:
        queue: where the messages come from.
        delay_level: when failed messages are delivered again: 0 depends on the number of deliveries, -1 never.
        ack_index: with SUCCESS, the last message that was consumed; those after it failed.
        suspend_ms: how long an orderly consumer waits before it retries.
    """

    queue: MessageQueue
    delay_level: int = 0
    ack_index: int = consuming.UNLIMITED
    suspend_ms: int = 0

    def put_right(self) -> list[str]:
        """Replace values that are not numbers by the defaults; return what had been set."""
        wrong = []
        for name, default in _DEFAULTS.items():
            value = getattr(self, name)
            if not (isinstance(value, numbers.Integral) and abs(int(value)) <= consuming.UNLIMITED):
                setattr(self, name, default)
                wrong.append(f"{name}={value!r:.40}")
        return wrong


Listener = Callable[[Sequence[ConsumerMessage], ConsumeContext], Any]
"""Takes messages; returns a ``ConsumeStatus``, or None for SUCCESS. An exception means LATER. May be a coroutine."""


@dataclass(frozen=True, kw_only=True)
class PushConsumerOptions(ConsumerOptions):
    """How a push consumer consumes; names and defaults are those of the Java client.

    Attributes:
        orderly: deliver the messages of a queue one after the other, each until it succeeds.
        consume_thread_max: maximum number of concurrent listener calls.
        consume_message_batch_max_size: maximum number of messages per listener call.
        pull_interval: ms between two pulls of a queue.
        max_reconsume_times: maximum number of redeliveries; by default 16, or no limit if orderly.
        consume_timeout: minutes after which a message still being consumed is sent back.
        suspend_current_queue_time_millis: how long an orderly consumer waits after LATER.
        persist_consumer_offset_interval: ms between two commits of offsets.
        post_subscription_when_pull: send the subscription with each pull.
    """

    orderly: bool = False
    consume_thread_max: int = 20
    consume_message_batch_max_size: int = 1
    pull_interval: int = 0
    max_reconsume_times: int = -1
    consume_timeout: int = 15
    suspend_current_queue_time_millis: int = 1000
    persist_consumer_offset_interval: int = 5000
    post_subscription_when_pull: bool = False


@dataclass(slots=True)
class Counts:
    """The results of a listener for a topic, and how long it took in ms."""

    succeeded: int = 0
    failed: int = 0
    spent_ms: float = 0.0


class ConsumeService(ABC):
    """Calls the listener, and handles failures."""

    def __init__(
        self, listener: Listener, group: str, options: PushConsumerOptions, instance: Instance, offsets: OffsetStore
    ) -> None:
        self._listener = listener
        self._group = group
        self._options = options
        self._instance = instance
        self._offsets = offsets
        self._clock = instance.clock
        self._is_broadcasting = options.message_model is MessageModel.BROADCASTING
        self._threads = (
            None
            if user_code.is_coroutine(listener)
            else ListenerThreads(self._heard, options.consume_thread_max, group)
        )
        self._is_over = False
        self.may_consume = asyncio.Event()
        self.may_consume.set()
        self.counts: dict[str, Counts] = {}

    @abstractmethod
    def start(self, held: Callable[[], Collection[AssignedQueue]]) -> None:
        """Start consuming; ``held`` returns the current queues."""

    @abstractmethod
    def begin(self, held: AssignedQueue) -> None:
        """Prepare for a queue that was taken over."""

    @abstractmethod
    def submit(self, held: AssignedQueue, messages: Sequence[ConsumerMessage]) -> None:
        """Consume messages that were just pulled."""

    def stop(self) -> None:
        """Let running listeners finish."""
        self._is_over = True
        if self._threads:
            self._threads.stop()

    def rates(self, topic: str, running_ms: int) -> dict[str, float | int]:
        """Return the results of listeners for a topic since the start, by Java's names."""
        counts = self.counts.get(topic, Counts())
        done, seconds = counts.succeeded + counts.failed, max(1.0, running_ms / 1000)
        return {
            "consumeFailedMsgs": counts.failed,
            "consumeFailedTPS": counts.failed / seconds,
            "consumeOKTPS": counts.succeeded / seconds,
            "consumeRT": counts.spent_ms / done if done else 0.0,
            "pullRT": 0.0,
            "pullTPS": done / seconds,
        }

    async def consume_directly(self, message: ConsumerMessage) -> tuple[ConsumeStatus, str | None, int]:
        """Pass one message to the listener; return its result, its exception, and how many ms it took."""
        start = time.perf_counter()
        error = None
        status = ConsumeStatus.LATER
        queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
        try:
            status = await self._call(self._shown([consuming.original(message, self._group)]), ConsumeContext(queue))
        except Exception:
            error = traceback.format_exc()
        return status, error, round((time.perf_counter() - start) * 1000)

    async def _listen(self, messages: Sequence[ConsumerMessage], context: ConsumeContext) -> ConsumeStatus:
        start = time.perf_counter()
        status = ConsumeStatus.LATER
        try:
            if not messages[0].body_error:
                status = await self._call(self._shown(messages), context)
        except Exception:
            log.exception("the listener failed with messages of %s", context.queue)
        if wrong := context.put_right():  # its intention is unknown
            log.error("the listener set %s for messages of %s, which is not a number", ", ".join(wrong), context.queue)
            status = ConsumeStatus.LATER
        counts = self.counts.setdefault(messages[0].topic, Counts())
        counts.spent_ms += (time.perf_counter() - start) * 1000
        if status is ConsumeStatus.SUCCESS:
            counts.succeeded += len(messages)
        else:
            counts.failed += len(messages)
        return status

    async def _call(self, messages: Sequence[ConsumerMessage], context: ConsumeContext) -> ConsumeStatus:
        if self._threads:
            status = await self._threads.call(messages, context)
        else:
            status = user_code.call("listener", self._heard, messages, context)
        if inspect.isawaitable(status):  # of a coroutine function, or of a function that returns an awaitable
            status = await user_code.awaited("listener", status)
        return ConsumeStatus.LATER if status is ConsumeStatus.LATER else ConsumeStatus.SUCCESS

    def _heard(self, messages: Sequence[ConsumerMessage], context: ConsumeContext) -> Any:
        WORKING_ON.set((self, context.queue))
        return self._listener(messages, context)

    def _shown(self, messages: Sequence[ConsumerMessage]) -> Sequence[ConsumerMessage]:
        return consuming.as_users_know(messages, self._options.namespace, self._options.deserializer)

    async def _send_back(self, message: ConsumerMessage, delay_level: int) -> bool:
        """Send a message back to be delivered again, and return whether that has succeeded."""
        most = consuming.most_attempts(self._options.max_reconsume_times, is_orderly=self._options.orderly)
        topic = with_namespace(message.topic, self._options.namespace)
        call = fetching.send_back(self._group, message.physical_offset, delay_level, message.message_id, topic, most)
        try:
            await self._instance.request(message.broker_name, call, _SEND_BACK_MS)
        except MqtoolError as error:
            log.warning("a message of %s could not be sent back, and is retried here: %s", topic, error)
            return False
        return True


class ConcurrentService(ConsumeService):
    """Passes messages to the listener in any order; messages that fail are sent back."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._due: asyncio.Queue[tuple[AssignedQueue, Sequence[ConsumerMessage]]] = asyncio.Queue()

    def start(self, held: Callable[[], Collection[AssignedQueue]]) -> None:
        """Start consuming."""
        self._instance.keep_on("sending back stuck messages", functools.partial(self._clean_on, held))
        for _ in range(self._options.consume_thread_max):
            self._instance.keep_on("consuming", self._consume_on)

    def begin(self, held: AssignedQueue) -> None:
        """Do nothing: messages are consumed as they arrive."""

    def submit(self, held: AssignedQueue, messages: Sequence[ConsumerMessage]) -> None:
        """Consume messages that were just pulled."""
        readable = [message for message in messages if not message.body_error]
        for group in consuming.in_groups(readable, self._options.consume_message_batch_max_size):
            self._due.put_nowait((held, group))
        if len(readable) < len(messages):  # each one separately, so that it does not make others fail
            for message in messages:
                if message.body_error:
                    self._due.put_nowait((held, [message]))

    async def _consume_on(self) -> None:
        while not self._is_over:
            held, messages = await self._due.get()
            await self.may_consume.wait()
            if not held.waiting.is_dropped:
                with held.at_work():
                    await self._consume(held, messages)

    async def _consume(self, held: AssignedQueue, messages: Sequence[ConsumerMessage]) -> None:
        context = ConsumeContext(held.queue)
        now = self._clock()
        held.began |= {message.queue_offset: now for message in messages}
        status = await self._listen(messages, context)
        for message in messages:
            held.began.pop(message.queue_offset, None)
        if held.waiting.is_dropped:  # another member also gets these messages
            return
        consumed = 0 if status is ConsumeStatus.LATER else max(0, min(len(messages), context.ack_index + 1))
        failed = messages[consumed:]
        kept: list[ConsumerMessage] = []
        if failed and self._is_broadcasting:
            log.warning("%d messages of %s failed and will not be delivered again", len(failed), held.queue)
        elif failed:
            kept = [message for message in failed if not await self._send_back(message, context.delay_level)]
        if kept:
            self._instance.keep(self._consume_later(held, kept))
        self._finish(held, [message for message in messages if message not in kept])

    def _finish(self, held: AssignedQueue, messages: Sequence[ConsumerMessage]) -> None:
        offset = held.waiting.remove(messages, self._clock())
        held.has_room.set()
        if offset is not None and not held.waiting.is_dropped:
            self._offsets.update(held.queue, offset, increase_only=True)

    async def _consume_later(self, held: AssignedQueue, messages: Sequence[ConsumerMessage]) -> None:
        await asyncio.sleep(_AGAIN_S)
        again = [dataclasses.replace(message, reconsume_times=message.reconsume_times + 1) for message in messages]
        self._due.put_nowait((held, again))

    async def _clean_on(self, held: Callable[[], Collection[AssignedQueue]]) -> None:
        """Send back what a listener has not finished for too long, so that offsets can advance."""
        timeout_ms = self._options.consume_timeout * 60_000
        while True:
            await asyncio.sleep(timeout_ms / 1000)
            for assigned in [*held()]:
                late = self._clock() - timeout_ms
                for message in assigned.waiting.first(_MAX_STUCK):
                    is_stuck = assigned.began.get(message.queue_offset, late) < late
                    if is_stuck and await self._send_back(message, _STUCK_LEVEL):
                        self._finish(assigned, [message])


class OrderlyService(ConsumeService):
    """Passes the messages of a queue to the listener one after the other; a failed message is retried in its place."""

    def __init__(self, lock: Callable[[MessageQueue], Coroutine[Any, Any, None]], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._lock = lock

    def start(self, held: Callable[[], Collection[AssignedQueue]]) -> None:
        """Do nothing: each queue starts by itself."""

    def begin(self, held: AssignedQueue) -> None:
        """Consume a queue from now on; its lock was just granted."""
        held.waiting.locked_at = self._clock()
        self._instance.keep_on(f"consuming {held.queue}", functools.partial(self._consume_on, held))

    def submit(self, held: AssignedQueue, messages: Sequence[ConsumerMessage]) -> None:  # noqa: ARG002
        """Consume messages that were just pulled."""
        held.has_some.set()

    async def _consume_on(self, held: AssignedQueue) -> None:
        waiting = held.waiting
        while not waiting.is_dropped:
            await held.has_some.wait()
            await self.may_consume.wait()
            if not self._is_broadcasting and not waiting.holds_lock(self._clock()):
                await self._lock(held.queue)
                if not waiting.holds_lock(self._clock()):
                    await asyncio.sleep(_LOCK_AGAIN_S)
                continue
            with held.at_work():
                wait_ms = await self._consume_some(held)
            if wait_ms:
                await asyncio.sleep(min(max(wait_ms, 10), 30_000) / 1000)

    async def _consume_some(self, held: AssignedQueue) -> int:
        """Consume the next messages; return for how many ms to pause the queue after that."""
        waiting, options = held.waiting, self._options
        held.has_some.clear()
        messages = waiting.take(options.consume_message_batch_max_size, self._clock())
        if not messages:
            return 0
        held.has_some.set()  # there may be more
        readable = next((number for number, message in enumerate(messages) if message.body_error), len(messages))
        if readable < len(messages):  # the unreadable one goes alone
            waiting.put_back(messages[max(1, readable) :])
            messages = messages[: max(1, readable)]
        context = ConsumeContext(held.queue)
        status = await self._listen(messages, context)
        held.has_room.set()
        if status is ConsumeStatus.LATER and await self._try_again(held, messages):
            return context.suspend_ms or options.suspend_current_queue_time_millis
        offset = waiting.commit()
        if offset is not None and not waiting.is_dropped:
            self._offsets.update(held.queue, offset, increase_only=False)
        return 0

    async def _try_again(self, held: AssignedQueue, messages: Sequence[ConsumerMessage]) -> bool:
        """Put messages back in place, except those at their last attempt; return whether there are any."""
        most = consuming.most_attempts(self._options.max_reconsume_times, is_orderly=True)
        again = []
        for message in messages:
            is_last = message.reconsume_times >= most or message.body_error  # no attempt makes it readable
            if not is_last or not await self._send_back(message, -1):
                again.append(dataclasses.replace(message, reconsume_times=message.reconsume_times + 1))
        held.waiting.put_back(again)
        return bool(again)
