"""A consumer that pulls by offset, for asyncio: it keeps no position in a queue and does not share queues.

(Rules: remoting.md 3.3, 5. RocketMQ: ``DefaultMQPullConsumer``.)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mqtool.engine.client import calls, consuming, fetching
from mqtool.engine.client.consuming import ConsumeStatus
from mqtool.engine.client.incoming import ConsumerMessage
from mqtool.engine.client.names import DEFAULT_CONSUMER
from mqtool.engine.client.routes import MASTER
from mqtool.engine.client_runtime import hooks
from mqtool.engine.client_runtime.consumer_trace import trace_sender
from mqtool.engine.client_runtime.given_options import options_of
from mqtool.engine.client_runtime.instance import ClientOptions
from mqtool.engine.client_runtime.message_trace import message_trace_of
from mqtool.engine.client_runtime.reader import Reader
from mqtool.engine.remoting.clock import wall_clock
from mqtool.errors import UnavailableError, UsageError
from mqtool.formats.bodies import ConsumerData, Heartbeat, MessageQueue
from mqtool.formats.codes import PullStatus, ResponseCode

_STATUSES = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MSG,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MSG,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


@dataclass(frozen=True, kw_only=True)
class PullConsumerOptions(ClientOptions):
    """How a pull consumer pulls; names and defaults are those of the Java client.

    Attributes:
        consumer_pull_timeout_millis: timeout of a pull.
        broker_suspend_max_time_millis: how long a broker holds a pull that waits for messages.
        consumer_timeout_millis_when_suspend: timeout of a pull that waits for messages.
        deserializer: makes the ``value`` of a message from its body, on first access.
        hooks: are called for all messages, before the program gets them, and after.
        trace: send traces to RMQ_SYS_TRACE_TOPIC, as Java's ``enableMsgTrace`` does.
    """

    consumer_pull_timeout_millis: int = 10_000
    broker_suspend_max_time_millis: int = 20_000
    consumer_timeout_millis_when_suspend: int = 30_000
    deserializer: "Callable[[bytes], Any] | None" = None
    hooks: "Sequence[hooks.Hook]" = ()
    trace: bool = False


@dataclass(frozen=True, slots=True)
class PullResult:
    """The answer to a pull: messages, and where to pull next.

    With OFFSET_ILLEGAL, ``next_offset`` is the nearest existing one.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[ConsumerMessage]


class PullConsumer(Reader):
    """Returns messages of any queue from any offset; the application stores the offsets, or commits them to brokers."""

    options: PullConsumerOptions
    _kind = "consumer"
    _reserved = DEFAULT_CONSUMER

    def __init__(
        self,
        group: str,
        name_servers: str | Sequence[str] | None = None,
        options: "PullConsumerOptions | Mapping[str, Any] | None" = None,
        clock: Callable[[], int] = wall_clock,
        **more: Any,
    ) -> None:
        """Create a consumer; start it, then pull.

        Args:
            group: the group that commits offsets.
            name_servers: as ``host:port;host:port``, or a sequence; by default from NAMESRV_ADDR.
            options: how it pulls.
            clock: returns the time in ms since 1970.
            **more: options by name.

        Raises:
            UsageError: the group's name, the addresses or the options are invalid.
        """
        super().__init__(group, name_servers, options_of(PullConsumerOptions, options, more), clock)
        self._instance.producers_only = False
        self._instance.heartbeat = self._heartbeat
        self._wished: dict[MessageQueue, int] = {}  # the id of the broker that a queue must be pulled from
        self._greeted: set[str] = set()
        self._trace, all_hooks = message_trace_of(
            "CONSUME", self.group, name_servers, self.options, self._clock, trace_sender
        )
        self._works = hooks.Works(all_hooks, self.group)

    async def start(self) -> None:
        """Start; brokers learn of this consumer when it first asks for their queues.

        Raises:
            UsageError: it is already running.
        """
        async with self._starting():
            self._instance.start()
            if self._trace:
                await self._trace.start(self._instance)

    async def shutdown(self) -> None:
        """Leave the group."""
        if not self._is_running:
            return
        self._is_running = False
        await self._leave(consumer_group=self.group)

    def _heartbeat(self) -> Heartbeat:
        data = ConsumerData(self.group, "CONSUME_ACTIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", ())
        return Heartbeat(self.client_id, (), (data,))

    # Messages

    async def pull(
        self, queue: MessageQueue, offset: int, max_nums: int = 32, expression: str = "*", *, is_sql92: bool = False
    ) -> PullResult:
        """Return messages of a queue from an offset on, immediately, whether there are any or not.

        Args:
            queue: one of ``fetch_message_queues``.
            offset: the first.
            max_nums: the maximum number of messages.
            expression: a filter: tags with ``||``, or SQL92.
            is_sql92: whether the filter is SQL92.

        Raises:
            UsageError: the consumer is not running.
            FilterError: the expression has no tag.
            MqtoolError: its broker refuses, or cannot be reached.
        """
        timeout_ms = self.options.consumer_pull_timeout_millis
        return await self._pull(
            queue, offset, max_nums, expression, is_sql92=is_sql92, hold_ms=0, timeout_ms=timeout_ms
        )

    async def pull_block_if_not_found(
        self, queue: MessageQueue, offset: int, max_nums: int = 32, expression: str = "*", *, is_sql92: bool = False
    ) -> PullResult:
        """Return messages of a queue from an offset on, waiting for some if there are none; otherwise like ``pull``."""
        hold_ms = self.options.broker_suspend_max_time_millis
        timeout_ms = self.options.consumer_timeout_millis_when_suspend
        return await self._pull(
            queue, offset, max_nums, expression, is_sql92=is_sql92, hold_ms=hold_ms, timeout_ms=timeout_ms
        )

    async def _pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_nums: int,
        expression: str,
        *,
        is_sql92: bool,
        hold_ms: int,
        timeout_ms: int,
    ) -> PullResult:
        self._check_running()
        if offset < 0 or max_nums < 1:
            raise UsageError(f"cannot pull at most {max_nums} messages from offset {offset}")
        make = consuming.subscribe_by_sql if is_sql92 else consuming.subscribe
        subscription = make(queue.topic, expression, self._clock())
        call = fetching.pull(self.group, queue, offset, max_nums, subscription, hold_ms=hold_ms, with_subscription=True)
        await self._instance.route(queue.topic)
        _, address = self._instance.broker_to_read(queue.broker_name, self._wished.get(queue, MASTER))
        try:
            fetched = await self._instance.wire.request(address, call, timeout_ms)
        except UnavailableError:
            self._wished.pop(queue, None)  # it may be gone: the next pull asks the master
            raise
        self._wished[queue] = fetched.suggested_broker_id
        wanted = consuming.messages_of(fetched.records, queue, subscription)
        messages = consuming.as_users_know(wanted, self.options.namespace, self.options.deserializer)
        status = _STATUSES[ResponseCode(fetched.code)]
        if status is PullStatus.FOUND and not messages:  # other tags with the same hash
            status = PullStatus.NO_MATCHED_MSG
        self._works.begin(messages).end(ConsumeStatus.SUCCESS)
        return PullResult(status, fetched.next_offset, fetched.min_offset, fetched.max_offset, messages)

    # Offsets of the group

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit the consumer offset of the group in a queue to the broker.

        Raises:
            UsageError: the consumer is not running.
            MqtoolError: its broker refuses, or cannot be reached.
        """
        self._check_running()
        if queue.broker_name not in self._greeted:
            await self._instance.route(queue.topic)
            await self._instance.send_heartbeats()  # they make brokers create the group
            self._greeted.add(queue.broker_name)
        await self._ask_of(queue, calls.set_offset(self.group, queue.topic, queue.queue_id, offset))
