"""A consumer that seems to have messages pushed to it, for asyncio: it pulls from its queues in the background.

(Rules: remoting.md 3.7, 3.9, 5, 6. RocketMQ: ``DefaultMQPushConsumer``.)
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from mqtool.engine.client import consuming, fetching, introspection
from mqtool.engine.client.calls import Call
from mqtool.engine.client.incoming import ConsumerMessage, parse_message
from mqtool.engine.client_runtime.consume_services import (
    WORKING_ON,
    ConcurrentService,
    ConsumeService,
    Listener,
    OrderlyService,
    PushConsumerOptions,
)
from mqtool.engine.client_runtime.consumer import LISTENERS_END_S, AssignedQueue, Consumer
from mqtool.engine.client_runtime.consumer_trace import trace_sender
from mqtool.engine.client_runtime.given_options import options_of
from mqtool.engine.client_runtime.hooks import around_listener
from mqtool.engine.client_runtime.message_trace import message_trace_of
from mqtool.engine.client_runtime.reader import ANSWER_MS
from mqtool.engine.remoting.clock import wall_clock
from mqtool.errors import MqtoolError, UsageError
from mqtool.formats.bodies import MessageQueue, Subscription
from mqtool.formats.codes import RequestCode
from mqtool.formats.headers import ConsumeDirectly, parse_header
from mqtool.formats.remoting import RemotingCommand
from mqtool.formats.topics import RETRY_PREFIX

log = logging.getLogger(__name__)

LOCK_MS = 20_000


class PushConsumer(Consumer):
    """Delivers the messages of a group's topics to a listener, from ``async with`` to the end of its block."""

    options: PushConsumerOptions
    _consume_type = "CONSUME_PASSIVELY"

    def __init__(
        self,
        group: str,
        listener: Listener,
        name_servers: str | Sequence[str] | None = None,
        options: "PushConsumerOptions | Mapping[str, Any] | None" = None,
        clock: Callable[[], int] = wall_clock,
        **more: Any,
    ) -> None:
        """Create a consumer; ``subscribe`` it to topics, then start it.

        Args:
            group: whose members share the messages, and all have the same subscriptions.
            listener: is called with the messages; if it is not a coroutine, in a thread.
            name_servers: as ``host:port;host:port``, or a sequence; by default from NAMESRV_ADDR.
            options: how it consumes.
            clock: returns the time in ms since 1970.
            **more: options by name.

        Raises:
            UsageError: the group's name, the listener, the addresses or the options are invalid.
        """
        if not callable(listener):
            raise UsageError(f"the listener must be a function, not {listener!r}")
        super().__init__(group, name_servers, options_of(PushConsumerOptions, options, more), clock)
        self._instance.on_request[RequestCode.CONSUME_MESSAGE_DIRECTLY] = self._consume_directly
        self._service: ConsumeService
        self._trace, hooks = message_trace_of(
            "CONSUME", self.group, name_servers, self.options, self._clock, trace_sender
        )
        if self._metrics:
            hooks = (*hooks, self._metrics)
        self._listener = around_listener(hooks, listener, self.group)
        self._is_orderly, self._pull_interval = self.options.orderly, self.options.pull_interval
        self._has_locks = self.options.orderly and not self._is_broadcasting
        if not self._is_broadcasting:
            self._subscribe(RETRY_PREFIX + self.group, "*")

    async def start(self) -> None:
        """Join the group and start consuming.

        Raises:
            UsageError: it is already running, or has no subscription.
            RefusedError: a broker does not support the filter of a subscription.
        """
        if all(topic.startswith(RETRY_PREFIX) for topic in self._subscriptions):
            raise UsageError("this consumer is not subscribed to a topic")
        options, instance = self.options, self._instance
        async with self._starting():
            self._prepare()
            service_arguments = (self._listener, self.group, options, instance, self._offsets)
            self._service = (
                OrderlyService(self._lock_again, *service_arguments)
                if options.orderly
                else ConcurrentService(*service_arguments)
            )
            await self._join()
            if self._trace:
                await self._trace.start(instance)
            interval = options.persist_consumer_offset_interval
            instance.keep_on("committing offsets", functools.partial(self._persist_on, interval))
            if self._has_locks:
                instance.keep_on("renewing locks", self._lock_on)
            self._service.start(self._held.values)

    async def shutdown(self) -> None:
        """Let running listeners finish, commit offsets, and leave the group.

        A listener may call it: the messages it is working on are delivered again.
        """
        if not self._is_running:
            return
        try:
            await self._keep_share()
            held = [*self._held.values()]
            self._service.may_consume.clear()
            for assigned in held:
                assigned.stop_pulling()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LISTENERS_END_S):
                    for assigned in held:
                        if WORKING_ON.get() != (self._service, assigned.queue):
                            await assigned.is_idle.wait()
            await self._tell_revoked_at_end()
            await self._offsets.persist([assigned.queue for assigned in held])
            for assigned in held:
                assigned.drop()
            if self._has_locks:
                await self._unlock([assigned.queue for assigned in held])
        finally:
            await self._leave(consumer_group=self.group)

    async def _end_all(self) -> None:
        self._service.stop()
        await super()._end_all()

    def suspend(self) -> None:
        """Pause delivery to the listener."""
        self._service.may_consume.clear()

    def resume(self) -> None:
        """Resume delivery."""
        self._service.may_consume.set()

    # Queues

    async def _may_take(self, new: Collection[MessageQueue]) -> Collection[MessageQueue]:
        return [queue for queue in await self._lock(new) if queue in new] if self._has_locks and new else new

    async def _let_go(self, queue: MessageQueue) -> None:
        await super()._let_go(queue)
        if self._has_locks:
            await self._unlock([queue])

    def _begin_at(self, queue: MessageQueue, offset: int) -> AssignedQueue:
        held = super()._begin_at(queue, offset)
        self._service.begin(held)
        return held

    def _is_full(self, held: AssignedQueue) -> bool:
        count = sum(other.topic == held.queue.topic for other in self._held)
        thresholds = self.options.thresholds.shared(max(1, count))
        return consuming.is_full(held.waiting, thresholds, is_orderly=self.options.orderly)

    def _call(self, held: AssignedQueue, subscription: Subscription, *, of_master: bool) -> Call[fetching.Fetched]:
        committed = self._offsets.known(held.queue) if of_master and not self._is_broadcasting else None
        return fetching.pull(
            self.group,
            held.queue,
            held.next_offset,
            self.options.pull_batch_size,
            subscription,
            commit_offset=committed or None,
            with_subscription=self.options.post_subscription_when_pull,
        )

    def _took(self, held: AssignedQueue, messages: list[ConsumerMessage]) -> None:
        if messages:
            self._service.submit(held, messages)
        elif not held.waiting.count:  # and no listener is processing any
            self._offsets.update(held.queue, held.next_offset, increase_only=True)

    # Locks

    async def _lock(self, queues: Collection[MessageQueue]) -> list[MessageQueue]:
        granted: list[MessageQueue] = []
        for name in sorted({queue.broker_name for queue in queues}):
            of_broker = [queue for queue in queues if queue.broker_name == name]
            try:
                call = fetching.lock(self.group, self.client_id, of_broker)
                locked = await self._instance.request(name, call, ANSWER_MS)
                granted += locked
            except MqtoolError as error:
                log.warning("%s could not lock queues: %s", name, error)
        return granted

    async def _unlock(self, queues: Collection[MessageQueue]) -> None:
        for name in sorted({queue.broker_name for queue in queues}):
            of_broker = [queue for queue in queues if queue.broker_name == name]
            with contextlib.suppress(MqtoolError):  # the locks expire
                await self._instance.request(name, fetching.unlock(self.group, self.client_id, of_broker), ANSWER_MS)

    async def _lock_on(self) -> None:
        while True:
            await asyncio.sleep(LOCK_MS / 1000)
            await self._lock_held([*self._held])

    async def _lock_again(self, queue: MessageQueue) -> None:
        await self._lock_held([queue])

    async def _lock_held(self, queues: Collection[MessageQueue]) -> None:
        granted = await self._lock(queues)
        for queue in queues:
            if held := self._held.get(queue):
                held.waiting.locked_at = self._clock() if queue in granted else None

    # Requests of administrators, through a broker

    def _settings(self) -> dict[str, str]:
        options = self.options
        return {
            **super()._settings(),
            "PROP_THREADPOOL_CORE_SIZE": str(options.consume_thread_max),
            "PROP_CONSUMEORDERLY": str(options.orderly).lower(),
        }

    def _rates(self) -> dict[str, dict[str, float | int]]:
        span = self._clock() - self._started_at
        return {topic: self._service.rates(topic, span) for topic in self._subscriptions}

    def _consume_directly(self, _address: str, command: RemotingCommand) -> Coroutine[Any, Any, RemotingCommand]:
        header = parse_header(ConsumeDirectly, command.ext_fields)
        message = parse_message(command.body, header.broker_name or "")

        async def consumed() -> RemotingCommand:
            came = await self._service.consume_directly(message)
            return command.answer(body=introspection.build_consumed(*came, is_orderly=self.options.orderly))

        return consumed()
