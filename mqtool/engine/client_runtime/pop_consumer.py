"""A consumer that pops, for asyncio: brokers of 5.x hide messages until they are acknowledged or delivered again.

(Rules: remoting.md 3.4. RocketMQ: ``PopProcessQueue``, ``DefaultMQPushConsumerImpl.popMessage``.)
"""

import asyncio
import contextlib
import dataclasses
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

from mqtool.engine.client import consuming, popping
from mqtool.engine.client.consuming import ConsumeStatus
from mqtool.engine.client.incoming import ConsumerMessage
from mqtool.engine.client.names import with_namespace
from mqtool.engine.client.routes import masters
from mqtool.engine.client_runtime import hooks
from mqtool.engine.client_runtime.consumer_trace import trace_sender
from mqtool.engine.client_runtime.given_options import options_of
from mqtool.engine.client_runtime.instance import ClientOptions
from mqtool.engine.client_runtime.message_trace import message_trace_of
from mqtool.engine.client_runtime.subscriber import Subscriber
from mqtool.engine.remoting.clock import wall_clock
from mqtool.errors import AcknowledgeError, AnswerTimeoutError, MqtoolError, NotFoundError, UnavailableError, UsageError
from mqtool.formats.bodies import ConsumerData, Heartbeat

log = logging.getLogger(__name__)

_ANSWER_MS = 5000
_AFTER_NOTHING_S = 0.2
_PROBE_MS = 1000
_CLOCKS_DIFFER_MS = 1000


@dataclass(frozen=True, kw_only=True)
class PopConsumerOptions(ClientOptions):
    """How a consumer pops; names and defaults are those of the Java client.

    Attributes:
        pop_invisible_time: ms during which other consumers do not get the messages that this one got.
        pop_batch_nums: messages per pop, at most 32.
        poll_timeout_millis: default timeout of ``pop``.
        orderly: messages of a queue are delivered to no other consumer while one of them is not acknowledged.
        deserializer: makes the ``value`` of a message from its body, on first access.
        hooks: are called for all messages, before the program gets them, and after.
        trace: send traces to RMQ_SYS_TRACE_TOPIC, as Java's ``enableMsgTrace`` does.
    """

    pop_invisible_time: int = 60_000
    pop_batch_nums: int = 32
    poll_timeout_millis: int = 5000
    orderly: bool = False
    deserializer: "Callable[[bytes], Any] | None" = None
    hooks: "Sequence[hooks.Hook]" = ()
    trace: bool = False


class _Hidden(NamedTuple):
    """Until when (ms) nobody else gets a message, by two clocks: one may be set, the other stops during sleep."""

    wall_ms: int
    loop_ms: float


class _Popped(NamedTuple):
    """Messages of one pop, and until when nobody else gets them."""

    messages: list[ConsumerMessage]
    hidden: _Hidden = _Hidden(0, 0.0)


class PopConsumer(Subscriber):
    """Pops messages of any queue, next to any number of members of its group; brokers assign no queues.

    Messages that are not acknowledged in time are delivered again, to any member, and after as many times as the
    group allows they become dead letters.
    """

    options: PopConsumerOptions

    def __init__(
        self,
        group: str,
        name_servers: str | Sequence[str] | None = None,
        options: "PopConsumerOptions | Mapping[str, Any] | None" = None,
        clock: Callable[[], int] = wall_clock,
        **more: Any,
    ) -> None:
        """Create a consumer; ``subscribe`` it to a topic, then start it.

        Args:
            group: whose members share the messages.
            name_servers: as ``host:port;host:port``, or a sequence; by default from NAMESRV_ADDR.
            options: how it pops.
            clock: returns the time in ms since 1970.
            **more: options by name.

        Raises:
            UsageError: the group's name, the addresses or the options are invalid.
        """
        super().__init__(group, name_servers, options_of(PopConsumerOptions, options, more), clock)
        if not 1 <= self.options.pop_batch_nums <= 32:
            raise UsageError(f"pop_batch_nums={self.options.pop_batch_nums}: must be between 1 and 32")
        _check_time("pop_invisible_time", self.options.pop_invisible_time)
        self._instance.heartbeat = self._heartbeat
        self._under_way: dict[tuple[str, str], asyncio.Task[_Popped]] = {}  # by topic and broker
        self._to_give: deque[tuple[_Hidden, ConsumerMessage]] = deque()  # to be returned one by one
        self._ahead: dict[str, int] = {}  # ms by which the clock of a broker is ahead of ours, if known
        self._last: ConsumerMessage | None = None
        self._trace, all_hooks = message_trace_of(
            "CONSUME", self.group, name_servers, self.options, self._clock, trace_sender
        )
        self._works = hooks.Works(all_hooks, self.group)

    # From start to shutdown

    async def start(self) -> None:
        """Join the group.

        Raises:
            UsageError: it is already running, or has no subscription.
            NotFoundError: there is no such topic.
            UnavailableError: no name server answers.
        """
        if not self._subscriptions:
            raise UsageError("this consumer is not subscribed to a topic")
        async with self._starting():
            self._last = None  # a message not acknowledged before is delivered again
            self._to_give.clear()
            for topic in self._subscriptions:
                if await self._instance.route(topic) is None:
                    raise NotFoundError(f"the topic {topic} does not exist")
            self._instance.start()
            await self._instance.send_heartbeats()
            if self._trace:
                await self._trace.start(self._instance)

    async def shutdown(self) -> None:
        """Leave the group; messages not acknowledged are delivered to others when their invisible time is over."""
        if not self._is_running:
            return
        self._is_running = False
        self._works.end_last(ConsumeStatus.LATER)
        for task in self._under_way.values():
            task.cancel()
        try:
            await asyncio.gather(*self._under_way.values(), return_exceptions=True)
        finally:
            self._under_way.clear()
            await self._leave(consumer_group=self.group)

    def _heartbeat(self) -> Heartbeat:
        subscriptions = tuple(self._subscriptions.values())
        data = ConsumerData(self.group, "CONSUME_POP", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET", subscriptions)
        return Heartbeat(self.client_id, (), (data,))

    # Messages

    async def pop(self, timeout_ms: int | None = None) -> list[ConsumerMessage]:
        """Return some messages of one broker; none if none arrive in time.

        Args:
            timeout_ms: how long to wait; by default ``poll_timeout_millis``.

        Raises:
            UsageError: the consumer is not running.
            MqtoolError: the brokers refuse, or cannot be reached; if only some do, that is logged.
        """
        messages = (await self._take(timeout_ms)).messages
        self._works.begin(messages).end(ConsumeStatus.SUCCESS)
        return messages

    async def _take(self, timeout_ms: int | None = None) -> "_Popped":
        self._check_running()
        wait_ms = self.options.poll_timeout_millis if timeout_ms is None else timeout_ms
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_ms / 1000
        errors: dict[tuple[str, str], MqtoolError] = {}
        has_answer = False
        while True:
            left = max(0.0, end - loop.time())
            new = [place for place in await self._places() if place not in self._under_way and place not in errors]
            for place in new:
                self._under_way[place] = asyncio.create_task(self._pop_of(*place, int(left * 1000)))
            if not self._under_way:
                for error in errors.values():
                    raise error
                raise UnavailableError(f"the routes of {', '.join(self._subscriptions)} no longer contain a master")
            # An unfinished pop continues: its messages are hidden, and must not be lost until they are visible again.
            tasks, timeout = self._under_way.values(), None if new else left
            done, _ = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if not self._is_running:  # it was shut down elsewhere
                return _Popped([])
            for place, task in [*self._under_way.items()]:
                if task not in done:
                    continue
                del self._under_way[place]
                try:
                    popped = task.result()
                except MqtoolError as error:
                    errors[place] = error
                    self._instance.look_for_successor(place[1])
                    continue
                has_answer = True
                for failed, why in errors.items():  # this broker answers, so the others' errors are only logged
                    log.warning("popping from %s on %s failed: %s", *failed, why)
                if popped.messages and self._is_hidden(popped.hidden):  # else others may have them by now
                    return popped._replace(messages=self._shown(popped.messages))
            if loop.time() >= end and (has_answer or self._under_way):
                return _Popped([])

    def __aiter__(self) -> AsyncIterator[ConsumerMessage]:
        """Yield messages one by one until this consumer is shut down; asking for the next consumes the last one.

        The last one is acknowledged then, or at the end of a block without an exception.

        Raises:
            UsageError: the consumer is not running.
        """
        self._check_running()
        return self

    async def __anext__(self) -> ConsumerMessage:
        """Return the next message."""
        await self._ack_last()
        while self._is_running:
            while self._to_give:
                hidden, message = self._to_give.popleft()
                if self._is_hidden(hidden):  # else others may have it by now
                    self._last = message
                    self._works.begin_next(message, ConsumeStatus.SUCCESS)
                    return message
            popped = await self._take()
            self._to_give.extend((popped.hidden, message) for message in popped.messages)
        raise StopAsyncIteration

    async def _ack_last(self) -> None:
        self._works.end_last(ConsumeStatus.SUCCESS)
        last, self._last = self._last, None
        if last and self._is_running:
            await self.ack(last)

    @contextlib.asynccontextmanager
    async def batch(self, timeout_ms: int | None = None) -> AsyncIterator[list[ConsumerMessage]]:
        """Return some messages, none if none arrive in time, and acknowledge them when the block ends.

        After an exception they are delivered again, to this consumer or another, when their invisible time is over.

        Args:
            timeout_ms: how long to wait; by default ``poll_timeout_millis``.

        Raises:
            AcknowledgeError: some could not be acknowledged, the others were.
        """
        messages = (await self._take(timeout_ms)).messages
        work = self._works.begin(messages)
        try:
            yield messages
        except BaseException as raised:
            work.end(None, raised)
            raise
        work.end(ConsumeStatus.SUCCESS)
        self._check_running()
        came_to = await asyncio.gather(*map(self.ack, messages), return_exceptions=True)
        failed: list[ConsumerMessage] = []
        errors: list[MqtoolError] = []
        for message, error in zip(messages, came_to, strict=True):
            if isinstance(error, MqtoolError):
                failed.append(message)
                errors.append(error)
            elif isinstance(error, BaseException):
                raise error
        if failed:
            raise AcknowledgeError(failed, errors, len(messages)) from errors[-1]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self._ack_last()
            else:
                self._works.end_last(None, error)
        finally:
            await super().__aexit__(kind, error, trace)

    async def _places(self) -> list[tuple[str, str]]:
        """Return topics and brokers, in any order."""
        places = []
        for topic in self._subscriptions:
            route = await self._instance.route(topic)
            places += [(topic, name) for name in masters(route)] if route else []
        random.shuffle(places)
        return places

    async def _pop_of(self, topic: str, broker_name: str, wait_ms: int) -> "_Popped":
        end = asyncio.get_running_loop().time() + wait_ms / 1000
        answer = await self._asked(topic, broker_name, wait_ms)
        messages, subscription = answer.messages, self._subscriptions[topic]
        hidden = self._hidden_now()
        early = end - asyncio.get_running_loop().time()
        if not messages and early > 0:  # too many pops wait there, or its clock is ahead of ours
            await asyncio.sleep(min(early, _AFTER_NOTHING_S))
        wanted = [message for message in messages if consuming.is_wanted(subscription, message)]
        for message in messages:
            if message not in wanted:  # another tag with the same hash: nobody else in the group wants it
                try:
                    await self._ack(message)
                except MqtoolError as error:  # it is delivered again
                    log.warning("a message of %s on %s could not be acknowledged: %s", topic, broker_name, error)
        return _Popped(wanted, hidden)

    async def _asked(self, topic: str, broker_name: str, wait_ms: int) -> popping.Popped:
        """Pop from a broker, whatever its clock says."""
        before = self._ahead.get(broker_name, 0)
        try:
            answer = await self._ask_for(topic, broker_name, before, wait_ms, wait_ms + _ANSWER_MS)
        except AnswerTimeoutError:  # it holds a pop for too long if its clock is behind ours
            answer = await self._find_clock(topic, broker_name)
            if not answer.messages and self._ahead.get(broker_name, 0) > before - _CLOCKS_DIFFER_MS:
                raise
            return answer
        return await self._find_clock(topic, broker_name) if answer.is_late else answer

    async def _ask_for(
        self, topic: str, broker_name: str, ahead_ms: int, wait_ms: int, timeout_ms: int
    ) -> popping.Popped:
        options = self.options
        header = popping.pop_of(
            self.group,
            self._subscriptions[topic],
            options.pop_batch_nums,
            options.pop_invisible_time,
            wait_ms,
            self._clock() + ahead_ms,
            in_order=options.orderly,
        )
        answer = await self._instance.request(broker_name, popping.pop(header, broker_name), timeout_ms)
        if answer.messages:
            self._ahead[broker_name] = answer.pop_time - self._clock()
        return answer

    async def _find_clock(self, topic: str, broker_name: str) -> popping.Popped:
        """Find how far the clock of a broker is ahead of ours, by pops that do not wait; return their messages.

        A broker compares its own clock with the time at which we say we sent the pop: if it is ahead of us, all pops
        seem late; if it is behind, it holds them for too long.
        """
        search = popping.ClockSearch(self._ahead.get(broker_name, 0))
        while (ahead := search.next_try()) is not None:
            answer = await self._ask_for(topic, broker_name, ahead, 0, _PROBE_MS)
            if answer.messages:
                return answer
            search.note(ahead, is_late=answer.is_late)
        self._ahead[broker_name] = search.found
        log.warning("the clock of %s is %.1f s ahead of this machine's", broker_name, search.found / 1000)
        return popping.Popped([], 0, is_late=False)

    def _hidden_now(self) -> _Hidden:
        """Return until when a message that was just popped is hidden."""
        hidden_ms = self.options.pop_invisible_time
        return _Hidden(self._clock() + hidden_ms, asyncio.get_running_loop().time() * 1000 + hidden_ms)

    def _is_hidden(self, hidden: _Hidden) -> bool:
        return self._clock() < hidden.wall_ms and asyncio.get_running_loop().time() * 1000 < hidden.loop_ms

    async def ack(self, message: ConsumerMessage) -> bool:
        """Acknowledge a message; return False if it was too late, because others may have it by now.

        Raises:
            UsageError: the message was not received by pop.
            MqtoolError: its broker refuses, or cannot be reached.
        """
        self._check_running()
        return await self._ack(self._as_brokers_know(message))

    async def _ack(self, message: ConsumerMessage) -> bool:
        return await self._instance.request(message.broker_name, popping.acknowledge(self.group, message), _ANSWER_MS)

    def _shown(self, messages: Sequence[ConsumerMessage]) -> list[ConsumerMessage]:
        return consuming.as_users_know(messages, self.options.namespace, self.options.deserializer)

    def _as_brokers_know(self, message: ConsumerMessage) -> ConsumerMessage:
        return dataclasses.replace(message, topic=with_namespace(message.topic, self.options.namespace))

    async def change_invisible_time(self, message: ConsumerMessage, invisible_ms: int) -> ConsumerMessage | None:
        """Set the invisible time of a message, counted from now, and return the message with its new receipt.

        Returns:
            None if it was too late, because others may have it by now.

        Raises:
            UsageError: the message was not received by pop, or the time is invalid.
            MqtoolError: its broker refuses, or cannot be reached.
        """
        self._check_running()
        _check_time("invisible_ms", invisible_ms)
        call = popping.change_invisible_time(self.group, self._as_brokers_know(message), invisible_ms)
        changed = await self._instance.request(message.broker_name, call, _ANSWER_MS)
        return self._shown([changed])[0] if changed else None


def _check_time(name: str, value_ms: int) -> None:
    if value_ms < 1:
        raise UsageError(f"{name}={value_ms}: a message must be hidden for at least 1 ms")
