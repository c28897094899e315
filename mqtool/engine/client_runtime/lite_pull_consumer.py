"""A consumer that returns messages on request, for asyncio: ``poll`` returns messages pulled in the background.

(Rules: remoting.md 5, 6. RocketMQ: ``DefaultLitePullConsumer``, ``DefaultLitePullConsumerImpl``.)
"""

import asyncio
import contextlib
import functools
import inspect
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

from mqtool.engine.client import consuming, fetching
from mqtool.engine.client.calls import Call
from mqtool.engine.client.consuming import ConsumeStatus
from mqtool.engine.client.incoming import ConsumerMessage
from mqtool.engine.client.names import check_topic, with_namespace, without_namespace
from mqtool.engine.client_runtime import hooks, user_code
from mqtool.engine.client_runtime.consumer import AssignedQueue, Consumer, ConsumerOptions
from mqtool.engine.client_runtime.consumer_trace import trace_sender
from mqtool.engine.client_runtime.given_options import options_of
from mqtool.engine.client_runtime.message_trace import message_trace_of
from mqtool.engine.remoting.clock import wall_clock
from mqtool.errors import MqtoolError, UsageError
from mqtool.formats.bodies import MessageQueue, Subscription

log = logging.getLogger(__name__)

OnQueues = Callable[[str, list[MessageQueue]], Any]
"""Called with a topic and its queues, in the event loop; may be a coroutine."""


@dataclass(frozen=True, kw_only=True)
class LitePullConsumerOptions(ConsumerOptions):
    """How a lite pull consumer consumes; names and defaults are those of the Java client.

    Attributes:
        pull_batch_size: messages per pull, and maximum number of messages per ``poll``.
        poll_timeout_millis: default timeout of ``poll``.
        auto_commit: ``poll``, and the end of a block without an exception, commit what was returned before.
        auto_commit_interval_millis: minimum time between two automatic commits.
        pull_threshold_for_all: maximum number of messages pulled ahead, for all queues together.
        topic_metadata_check_interval_millis: how often the queues of topics are checked for changes.
    """

    pull_batch_size: int = 10
    poll_timeout_millis: int = 5000
    auto_commit: bool = True
    auto_commit_interval_millis: int = 5000
    pull_threshold_for_all: int = 10_000
    topic_metadata_check_interval_millis: int = 30_000


@dataclass
class _HandedOut:
    """A batch, and how many of its messages were returned to the program."""

    held: AssignedQueue
    messages: list[ConsumerMessage]
    end_offset: int | None  # to be committed when all of them are consumed; None if nothing is
    count: int = 0

    @property
    def has_rest(self) -> bool:
        """Whether messages are left: none if the queue belongs to another member by now."""
        return self.count < len(self.messages) and not self.held.waiting.is_dropped

    @property
    def offset(self) -> int | None:
        """The offset after the last message that was returned; None if unknown or unusable."""
        if self.held.waiting.is_dropped or not self.count:
            return None
        return self.end_offset if self.count == len(self.messages) else self.messages[self.count].queue_offset


class Batch(NamedTuple):
    """Messages that are returned at once."""

    messages: list[ConsumerMessage]
    handed_out: _HandedOut | None


class LitePullConsumer(Consumer):
    """Returns messages on request: from its share of the topics it subscribes to, or from queues assigned to it.

    ``poll`` returns several, ``async for`` yields one after the other, ``batch`` returns several that are
    committed when its block ends. A message counts as consumed once its offset is committed; uncommitted messages
    are delivered again after a restart.
    """

    options: LitePullConsumerOptions
    _consume_type = "CONSUME_ACTIVELY"

    def __init__(
        self,
        group: str,
        name_servers: str | Sequence[str] | None = None,
        options: "LitePullConsumerOptions | Mapping[str, Any] | None" = None,
        clock: Callable[[], int] = wall_clock,
        **more: Any,
    ) -> None:
        """Create a consumer; ``subscribe`` or ``assign``, and start it.

        Args:
            group: the group that commits offsets; members that subscribe share the queues.
            name_servers: as ``host:port;host:port``, or a sequence; by default from NAMESRV_ADDR.
            options: how it consumes.
            clock: returns the time in ms since 1970.
            **more: options by name.

        Raises:
            UsageError: the group's name, the addresses or the options are invalid.
        """
        super().__init__(group, name_servers, options_of(LitePullConsumerOptions, options, more), clock)
        self._assigned: dict[MessageQueue, Subscription] | None = None
        self._paused: set[MessageQueue] = set()
        self._sought: dict[MessageQueue, int] = {}  # of queues that are not assigned yet
        self._returned_up_to: dict[MessageQueue, int] = {}  # what poll has returned, to be committed
        self._batches: deque[tuple[AssignedQueue, list[ConsumerMessage]]] = deque()
        self._handed_out: _HandedOut | None = None  # what poll returned last
        self._turn = threading.Lock()
        self._came_late: list[tuple[AssignedQueue, list[ConsumerMessage]]] = []  # of paused queues
        self._has_come: asyncio.Event
        self._next_commit = 0
        self._trace, all_hooks = message_trace_of(
            "CONSUME", self.group, name_servers, self.options, self._clock, trace_sender
        )
        self._works = hooks.Works(all_hooks, self.group)

    # Which queues

    def subscribe(self, topic: str, expression: str = "*", *, is_sql92: bool = False) -> None:
        """Subscribe to this member's share of a topic, or of the messages that match an expression.

        Raises:
            UsageError: it is not a valid name of a topic, or queues are assigned.
            FilterError: the expression has no tag.
        """
        if self._assigned is not None:
            raise UsageError("subscribe and assign are mutually exclusive: queues are assigned to this consumer")
        super().subscribe(topic, expression, is_sql92=is_sql92)

    def assign(self, queues: Collection[MessageQueue], expression: str = "*", *, is_sql92: bool = False) -> None:
        """Consume these queues and no others, whoever else does; or only the messages that match an expression.

        Raises:
            UsageError: this consumer subscribes to topics.
            FilterError: the expression has no tag.
        """
        if self._subscriptions:
            raise UsageError("subscribe and assign are mutually exclusive: this consumer subscribes to topics")
        make = consuming.subscribe_by_sql if is_sql92 else consuming.subscribe
        self._assigned = {queue: make(queue.topic, expression, self._clock()) for queue in queues}
        if self._is_running:
            self._rebalance_wanted.set()

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that are assigned to this consumer, or will be in a moment."""
        return self.queues() if self._assigned is None else sorted(self._assigned)

    async def register_topic_message_queue_change_listener(self, topic: str, listener: OnQueues) -> None:
        """Call a function when the queues of a topic have changed.

        Raises:
            UsageError: it is not a valid name of a topic, or the consumer is not running.
            UnavailableError: no name server answers.
        """
        check_topic(topic)
        self._check_running()
        name = with_namespace(topic, self.options.namespace)
        known = await self._instance.queues_to_read(name)
        self._instance.keep_on(f"watching the queues of {topic}", functools.partial(self._watch, name, listener, known))

    async def _watch(self, name: str, listener: OnQueues, before: list[MessageQueue]) -> None:
        while True:
            await asyncio.sleep(self.options.topic_metadata_check_interval_millis / 1000)
            try:
                queues = await self._instance.queues_to_read(name)
            except MqtoolError:  # the name servers may be back next time
                continue
            if queues != before:
                before = queues
                topic = without_namespace(name, self.options.namespace)
                try:
                    result = user_code.call("queue listener", listener, topic, queues)
                    if inspect.isawaitable(result):
                        await user_code.awaited("queue listener", result)
                except Exception:
                    log.exception("the listener failed with the queues of %s", topic)

    # From start to shutdown

    async def start(self) -> None:
        """Join the group and start pulling.

        Raises:
            UsageError: it is already running.
            RefusedError: a broker does not support the filter of a subscription.
        """
        async with self._starting():
            self._prepare()
            self._has_come = asyncio.Event()
            self._next_commit = self._clock() + self.options.auto_commit_interval_millis
            self._handed_out = None  # messages left from before a restart belong to others by now
            for left in (self._returned_up_to, self._sought, self._batches, self._came_late):
                left.clear()
            await self._join()
            if self._trace:
                await self._trace.start(self._instance)

    async def shutdown(self) -> None:
        """Stop pulling, and leave the group; messages returned since the last commit are delivered again.

        The end of a block commits them first, with ``auto_commit`` and without an exception.
        """
        if not self._is_running:
            return
        try:
            await self._tell_revoked_at_end()
            self._is_running = False
            self._has_come.set()  # waiting callers return without messages
            self._works.end_last(ConsumeStatus.LATER)
            await self._keep_share()
            held = [*self._held.values()]
            for assigned in held:
                assigned.drop()
            await self._offsets.persist([assigned.queue for assigned in held])
        finally:
            self._is_running = False
            await self._leave(consumer_group=self.group)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._works.end_last(None if error else ConsumeStatus.SUCCESS, error)
            if kind is None and self.options.auto_commit and self._is_running:
                await self._offsets.persist(self._note_consumed())
        finally:
            await super().__aexit__(kind, error, trace)

    # Messages

    async def poll(self, timeout_ms: int | None = None) -> list[ConsumerMessage]:
        """Return some messages of one queue; none if none arrive in time.

        Args:
            timeout_ms: how long to wait; by default ``poll_timeout_millis``.

        Raises:
            UsageError: the consumer is not running.
        """
        self._check_running()
        messages = (await self._take_batch(timeout_ms)).messages
        self._works.begin(messages).end(ConsumeStatus.SUCCESS)
        return messages

    async def _take_batch(self, timeout_ms: int | None) -> "Batch":
        """Like ``poll``, for messages that may be put back."""
        self._check_running()
        handed_out = await self._take(self.options.poll_timeout_millis if timeout_ms is None else timeout_ms)
        if handed_out is None:
            return Batch([], None)
        first, handed_out.count = handed_out.count, len(handed_out.messages)
        return Batch(handed_out.messages[first:], handed_out)

    def _give_back(self, batch: "Batch") -> None:
        """Put the messages of a batch back, to be returned first by the next call."""
        if batch.handed_out is None:
            return
        if batch.handed_out is self._handed_out:
            batch.handed_out.count -= len(batch.messages)
        elif not batch.handed_out.held.waiting.is_dropped:  # others were returned since
            self._begin_again_at(batch.handed_out.held.queue, batch.messages[0].queue_offset)

    async def _take(self, wait_ms: int) -> _HandedOut | None:
        """Return the next batch, or the rest of the last one; None if none arrives in time."""
        self._works.end_last(ConsumeStatus.SUCCESS)
        if self.options.auto_commit and self._clock() >= self._next_commit:
            self._next_commit = self._clock() + self.options.auto_commit_interval_millis
            await self._offsets.persist(self._note_consumed())
        if self._handed_out and self._handed_out.has_rest:
            return self._handed_out
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1000):
                while self._is_running and not self._drop_what_is_over():
                    self._has_come.clear()
                    await self._has_come.wait()
        if not self._drop_what_is_over():
            return None
        self._note_returned()
        held, messages = self._batches.popleft()
        offset = held.waiting.remove(messages, self._clock())
        shown = consuming.as_users_know(messages, self.options.namespace, self.options.deserializer)
        self._handed_out = _HandedOut(held, shown, offset)
        if self._metrics:
            self._metrics.given(shown)
        held.has_room.set()
        return self._handed_out

    def _note_returned(self) -> None:
        """Let the next commit include what ``poll`` has returned."""
        if self._handed_out and (offset := self._handed_out.offset) is not None:
            self._returned_up_to[self._handed_out.held.queue] = offset

    def __aiter__(self) -> AsyncIterator[ConsumerMessage]:
        """Yield messages one by one until this consumer is shut down; asking for the next consumes the last one.

        Raises:
            UsageError: the consumer is not running.
        """
        self._check_running()
        return self

    async def __anext__(self) -> ConsumerMessage:
        """Return the next message."""
        while (message := self.next_at_hand()) is None:
            if not self._is_running:
                raise StopAsyncIteration
            await self._take(self.options.poll_timeout_millis)
        return message

    def next_at_hand(self) -> ConsumerMessage | None:
        """Return the next message if it has already been fetched; any thread may call it."""
        with self._turn:
            handed_out = self._handed_out
            if handed_out is None or not handed_out.has_rest or not self._is_running:
                return None
            handed_out.count += 1
            message = handed_out.messages[handed_out.count - 1]
        self._works.begin_next(message, ConsumeStatus.SUCCESS)
        return message

    @contextlib.asynccontextmanager
    async def batch(self, timeout_ms: int | None = None) -> AsyncIterator[list[ConsumerMessage]]:
        """Return some messages of one queue, none if none arrive in time, and commit them when the block ends.

        After an exception they are not committed, and are returned first when this consumer is asked again.

        Args:
            timeout_ms: how long to wait; by default ``poll_timeout_millis``.

        Raises:
            MqtoolError: they could not be committed; the next commit includes them.
        """
        batch = await self._take_batch(timeout_ms)
        work = self._works.begin(batch.messages)
        try:
            yield batch.messages
        except BaseException as error:
            work.end(None, error)
            self._give_back(batch)
            raise
        work.end(ConsumeStatus.SUCCESS)
        if batch.messages:
            await self.commit()

    def _drop_what_is_over(self) -> bool:
        """Drop messages of queues that were given away since; return whether any are left."""
        while self._batches and self._batches[0][0].waiting.is_dropped:
            self._batches.popleft()
        return bool(self._batches)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit what was consumed, and return when the brokers have it.

        What ``auto_commit`` commits is sent without waiting for an answer.

        Args:
            offsets: the next offsets of some queues; by default those after everything that was returned. Queues that
                this consumer does not hold, or has not started to pull, are left out, and logged.

        Raises:
            UsageError: the consumer is not running.
            MqtoolError: a broker refuses or cannot be reached; the offsets of other brokers' queues are committed.
        """
        self._check_running()
        await self._offsets.commit(self._note_consumed(offsets))

    def _note_consumed(self, offsets: Mapping[MessageQueue, int] | None = None) -> list[MessageQueue]:
        """Note what was consumed, and return of which queues."""
        if offsets is None:
            self._works.end_last(ConsumeStatus.SUCCESS)
        self._note_returned()
        wanted = self._returned_up_to if offsets is None else offsets
        queues = [queue for queue in wanted if queue in self._held or queue in self._sought]
        for queue in offsets.keys() - set(queues) if offsets else ():
            log.warning("the offset of %s is not committed: this consumer does not hold the queue", queue)
        for queue in queues:
            self._offsets.update(queue, wanted[queue], increase_only=False)
        return queues

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group, or of this broadcasting consumer, in a queue, or None."""
        self._check_running()
        return await (self._offsets.read(queue) if self._is_broadcasting else super().committed(queue))

    # Where in a queue

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue in a queue of this consumer from an offset; messages already pulled from it are dropped.

        Raises:
            UsageError: the queue belongs to another member, or has no such offset.
        """
        self._check_running()
        if queue not in self.assignment():
            raise UsageError(f"{queue} is not assigned to this consumer, or not yet: see assignment()")
        begin, end = await self.min_offset(queue), await self.max_offset(queue)
        if not begin <= offset <= end:
            raise UsageError(f"{queue} has offsets from {begin} to {end}, not {offset}")
        self._begin_again_at(queue, offset)

    def _begin_again_at(self, queue: MessageQueue, offset: int) -> None:
        self._returned_up_to[queue] = self._sought[queue] = offset
        if self._handed_out and self._handed_out.held.queue == queue:
            self._handed_out = None
        held = self._held.get(queue)
        if held and held.pulling is None:  # it was just taken over
            held.next_offset = self._sought.pop(queue)
            return
        if held:
            del self._held[queue]
            held.drop()
        self._rebalance_wanted.set()

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue with the first message of a queue."""
        await self.seek(queue, await self.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue with messages that arrive in a queue from now on."""
        await self.seek(queue, await self.max_offset(queue))

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Pause pulling from some queues.

        ``poll`` still returns messages already pulled; those of a pull in flight are returned after ``resume``.
        """
        self._paused |= {*queues}

    def resume(self, queues: Collection[MessageQueue]) -> None:
        """Resume pulling from some queues."""
        self._paused -= {*queues}
        for queue in queues:
            if held := self._held.get(queue):
                held.has_room.set()
        came, self._came_late = self._came_late, []
        for held, messages in came:
            self._took(held, messages)

    # Differences from other consumers

    def _topics(self) -> set[str]:
        return super()._topics() | {queue.topic for queue in self._assigned or ()}

    async def _due(self, topic: str) -> list[MessageQueue] | None:
        if self._assigned is None:
            return await super()._due(topic)
        if await self._instance.route(topic) is None:
            return None
        return [queue for queue in self._assigned if queue.topic == topic]

    async def _where_to_begin(self, queue: MessageQueue) -> int:
        sought = self._sought.pop(queue, None)
        return await super()._where_to_begin(queue) if sought is None else sought

    async def _let_go(self, queue: MessageQueue) -> None:
        await super()._let_go(queue)
        self._returned_up_to.pop(queue, None)

    def _note_begin(self, queue: MessageQueue, offset: int) -> None:
        self._returned_up_to[queue] = offset

    def _note_next(self, queue: MessageQueue, offset: int) -> None:
        super()._note_next(queue, offset)
        self._returned_up_to[queue] = offset

    def _subscription_of(self, queue: MessageQueue) -> Subscription | None:
        return super()._subscription_of(queue) if self._assigned is None else self._assigned.get(queue)

    def _is_full(self, held: AssignedQueue) -> bool:
        count = sum(assigned.waiting.count for assigned in self._held.values())
        return (
            held.queue in self._paused
            or count > self.options.pull_threshold_for_all
            or consuming.is_full(held.waiting, self.options.thresholds, is_orderly=False)
        )

    def _call(self, held: AssignedQueue, subscription: Subscription, *, of_master: bool) -> Call[fetching.Fetched]:  # noqa: ARG002
        most = self.options.pull_batch_size
        return fetching.pull(self.group, held.queue, held.next_offset, most, subscription, with_subscription=True)

    def _took(self, held: AssignedQueue, messages: list[ConsumerMessage]) -> None:
        if messages and held.queue in self._paused:  # a pull had waited for them
            self._came_late.append((held, messages))
        elif messages:
            self._batches.append((held, messages))
            self._has_come.set()
