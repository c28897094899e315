"""A consumer to which messages seem to be pushed, for asyncio: it pulls in the background, from its share of queues.

(Rules: remoting.md 3.7, 3.9, 5, 6. RocketMQ: ``DefaultMQPushConsumer``.)
"""

import asyncio
import contextlib
import dataclasses
import logging
import random
import sys
import traceback
from collections.abc import Callable, Collection, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self

from mqtool.engine.client import consuming, fetching, introspection, questions
from mqtool.engine.client.consuming import MessageModel, Start
from mqtool.engine.client.incoming import parse_message
from mqtool.engine.client.names import DEFAULT_CONSUMER, check_group, check_topic, with_namespace
from mqtool.engine.client.rebalance import allocate
from mqtool.engine.client.routes import masters, readable_queues
from mqtool.engine.client_runtime.consume_services import (
    ConcurrentService,
    ConsumeService,
    HeldQueue,
    Listener,
    OrderlyService,
    PushConsumerOptions,
)
from mqtool.engine.client_runtime.instance import Instance
from mqtool.engine.client_runtime.offset_store import BrokerOffsets, FileOffsets, OffsetStore
from mqtool.engine.remoting.server import wall_clock
from mqtool.errors import MqtoolError, UnavailableError, UsageError
from mqtool.formats.bodies import ConsumerData, Heartbeat, MessageQueue, Subscription
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.headers import ConsumeDirectly, GetConsumerStatus, GetRunningInfo, ResetOffset, parse_header
from mqtool.formats.message import records_of
from mqtool.formats.remoting import RemotingCommand
from mqtool.formats.topics import RETRY_PREFIX

log = logging.getLogger(__name__)

REBALANCE_MS = 20_000
LOCK_MS = 20_000
_ANSWER_MS = 3000
_AFTER_ERROR_S = 3.0
_AFTER_BUSY_S = 0.02
_AFTER_MOVED_S = 10.0
_LISTENERS_END_S = 30.0
_LOOK_S = 0.01


class PushConsumer:
    """Gives the messages of a group's topics to a listener, from ``async with`` to the end of its block."""

    def __init__(
        self,
        group: str,
        listener: Listener,
        name_servers: str | Sequence[str] | None = None,
        options: PushConsumerOptions | None = None,
        clock: Callable[[], int] = wall_clock,
    ) -> None:
        """Make a consumer; ``subscribe`` it to topics, then start it.

        Args:
            group: whose members share the work, and all subscribe to the same.
            listener: gets the messages; one that is no coroutine runs in a thread.
            name_servers: as ``host:port;host:port``, or a sequence; by default what NAMESRV_ADDR says.
            options: how it consumes.
            clock: tells the time in ms since 1970.

        Raises:
            UsageError: the group's name, the addresses or the options make no sense.
        """
        check_group(group, DEFAULT_CONSUMER)
        options = options or PushConsumerOptions()
        self.options = options
        self.group = with_namespace(group, options.namespace)
        self._is_broadcasting = options.message_model is MessageModel.BROADCASTING
        if self._is_broadcasting and not options.instance_name:
            # By its name its file is found again.
            options = dataclasses.replace(options, instance_name="DEFAULT")
        self._listener = listener
        self._instance = Instance(name_servers, options, clock)
        self._instance.producers_only = False
        self._instance.heartbeat = self._heartbeat
        self._instance.on_request |= {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._notified,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._tell_offsets,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._tell_all,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }
        self._clock = clock
        self._subscriptions: dict[str, Subscription] = {}
        self._held: dict[MessageQueue, HeldQueue] = {}
        self._offsets: OffsetStore
        self._service: ConsumeService
        self._rebalance_wanted: asyncio.Event
        self._started_at = 0
        self._is_running = False
        if not self._is_broadcasting:
            self._subscribe(RETRY_PREFIX + self.group, "*")

    @property
    def client_id(self) -> str:
        """How brokers call this client."""
        return self._instance.client_id

    def subscribe(self, topic: str, expression: str = "*", *, is_sql92: bool = False) -> None:
        """Consume a topic, or those of its messages that an expression chooses: tags with ``||``, or SQL92.

        Raises:
            UsageError: no topic can be called that.
            FilterError: the expression has no tag.
        """
        check_topic(topic)
        self._subscribe(with_namespace(topic, self.options.namespace), expression, is_sql92=is_sql92)
        if self._is_running:
            self._instance.keep(self._instance.send_heartbeats())
            self._rebalance_wanted.set()

    def _subscribe(self, topic: str, expression: str, *, is_sql92: bool = False) -> None:
        make = consuming.subscribe_by_sql if is_sql92 else consuming.subscribe
        self._subscriptions[topic] = make(topic, expression, self._clock())

    def unsubscribe(self, topic: str) -> None:
        """Consume a topic no longer."""
        self._subscriptions.pop(with_namespace(topic, self.options.namespace), None)
        if self._is_running:
            self._rebalance_wanted.set()

    # From start to shutdown

    async def start(self) -> None:
        """Join the group and begin to consume.

        Raises:
            UsageError: it is running already, or subscribes to nothing.
            RefusedError: a broker cannot filter as a subscription wants it.
        """
        if self._is_running:
            raise UsageError("this consumer is running already")
        if not any(not topic.startswith(RETRY_PREFIX) for topic in self._subscriptions):
            raise UsageError("this consumer subscribes to no topic")
        options, instance = self.options, self._instance
        self._offsets = (
            FileOffsets(self.client_id, self.group, options.offsets_folder)
            if self._is_broadcasting
            else BrokerOffsets(instance, self.group)
        )
        self._rebalance_wanted = asyncio.Event()
        given = (self._listener, self.group, options, instance, self._offsets)
        self._service = OrderlyService(self._lock_again, *given) if options.orderly else ConcurrentService(*given)
        self._is_running = True
        self._started_at = self._clock()
        await self._check_subscriptions()
        instance.start()
        await instance.send_heartbeats()
        instance.keep(self._rebalance_on())
        instance.keep(self._persist_on())
        if options.orderly and not self._is_broadcasting:
            instance.keep(self._lock_on())
        self._service.start(self._held.values)
        self._rebalance_wanted.set()

    async def _check_subscriptions(self) -> None:
        for topic, subscription in self._subscriptions.items():
            try:
                route = await self._instance.route(topic)
            except UnavailableError:
                await self._instance.stop()
                self._is_running = False
                raise
            if route and subscription.expression_type != "TAG":
                address = random.choice([*masters(route).values()])
                question = fetching.check_subscription(self.client_id, self.group, subscription)
                await self._instance.wire.ask(address, question, _ANSWER_MS)

    async def shutdown(self) -> None:
        """Let listeners that are at work end, report what was consumed, and leave the group."""
        if not self._is_running:
            return
        self._is_running = False
        held = [*self._held.values()]
        self._service.may_consume.clear()
        for one in held:
            one.stop_pulling()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LISTENERS_END_S):
                for one in held:
                    await one.is_idle.wait()
        await self._offsets.persist([one.queue for one in held])
        for one in held:
            one.drop()
        if self.options.orderly and not self._is_broadcasting:
            await self._unlock([one.queue for one in held])
        self._held.clear()
        await self._instance.unregister(consumer_group=self.group)
        await self._instance.stop()
        self._service.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    def suspend(self) -> None:
        """Give the listener nothing more for now."""
        self._service.may_consume.clear()

    def resume(self) -> None:
        """Go on."""
        self._service.may_consume.set()

    def queues(self) -> list[MessageQueue]:
        """Return the queues that this consumer has now."""
        return sorted(self._held)

    # The group

    def _heartbeat(self) -> Heartbeat:
        options = self.options
        data = ConsumerData(
            self.group,
            "CONSUME_PASSIVELY",
            options.message_model.value,
            options.consume_from_where.value,
            tuple(self._subscriptions.values()),
        )
        return Heartbeat(self.client_id, (), (data,))

    def _notified(self, _address: str, _command: RemotingCommand) -> None:
        self._rebalance_wanted.set()

    async def _rebalance_on(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._rebalance_wanted.wait(), REBALANCE_MS / 1000)
            self._rebalance_wanted.clear()
            for topic in {*self._subscriptions, *(queue.topic for queue in self._held)}:
                try:
                    await self._rebalance(topic)
                except MqtoolError as error:
                    log.warning("the queues of %s cannot be shared out now: %s", topic, error)

    async def _rebalance(self, topic: str) -> None:
        held = [queue for queue in self._held if queue.topic == topic]
        due: list[MessageQueue] = []
        if topic in self._subscriptions:
            route = await self._instance.route(topic)
            if route is None:
                return
            due = readable_queues(route, topic)
            if not self._is_broadcasting:
                address = random.choice([*masters(route).values()])
                members = await self._instance.wire.ask(address, fetching.members(self.group), _ANSWER_MS)
                if not members:
                    return
                due = allocate(self.options.strategy, due, members, self.client_id)
        lost, new = consuming.changes(held, due)
        now = self._clock()
        lost += [queue for queue in held if queue not in lost and self._held[queue].waiting.is_stuck(now)]
        for queue in lost:
            await self._let_go(queue)
        if self.options.orderly and not self._is_broadcasting and new:
            new = [queue for queue in await self._lock(new) if queue in new]
        begun = [await self._take_over(queue) for queue in new]
        if lost or new:
            # By a newer version the broker sees that its subscription is that of this share.
            if subscription := self._subscriptions.get(topic):
                self._subscriptions[topic] = dataclasses.replace(subscription, version=now)
            await self._instance.send_heartbeats()
        for one in begun:
            one.pulling = self._instance.keep(self._pull_on(one))

    async def _let_go(self, queue: MessageQueue) -> None:
        held = self._held.pop(queue)
        held.drop()
        if self.options.orderly:  # another member must not begin before
            await held.is_idle.wait()
        await self._offsets.persist([queue])
        self._offsets.forget(queue)
        if self.options.orderly and not self._is_broadcasting:
            await self._unlock([queue])

    async def _take_over(self, queue: MessageQueue) -> HeldQueue:
        self._offsets.forget(queue)
        offset = await self._where_to_begin(queue)
        held = self._held[queue] = HeldQueue(queue, offset, self._clock())
        self._service.begin(held)
        return held

    async def _where_to_begin(self, queue: MessageQueue) -> int:
        offset = await self._offsets.read(queue)
        if offset is not None:
            return offset
        match consuming.where_to_begin(queue.topic, self.options.consume_from_where):
            case Start.FIRST:
                return 0
            case Start.MAX:
                return await self._instance.ask(queue.broker_name, fetching.max_offset(queue), _ANSWER_MS)
            case Start.TIME:
                since = self.options.consume_timestamp
                since = self._clock() - 1_800_000 if since is None else since
                question = questions.offset_at(queue.topic, queue.queue_id, since)
                return await self._instance.ask(queue.broker_name, question, _ANSWER_MS)

    async def _persist_on(self) -> None:
        while True:
            await asyncio.sleep(self.options.persist_consumer_offset_interval / 1000)
            await self._offsets.persist([*self._held])

    # Locks

    async def _lock(self, queues: Collection[MessageQueue]) -> list[MessageQueue]:
        granted: list[MessageQueue] = []
        for name in sorted({queue.broker_name for queue in queues}):
            of_broker = [queue for queue in queues if queue.broker_name == name]
            try:
                question = fetching.lock(self.group, self.client_id, of_broker)
                locked = await self._instance.ask(name, question, _ANSWER_MS)
                granted += locked
            except MqtoolError as error:
                log.warning("%s locks no queues: %s", name, error)
        return granted

    async def _unlock(self, queues: Collection[MessageQueue]) -> None:
        for name in sorted({queue.broker_name for queue in queues}):
            of_broker = [queue for queue in queues if queue.broker_name == name]
            with contextlib.suppress(MqtoolError):  # the locks expire
                await self._instance.ask(name, fetching.unlock(self.group, self.client_id, of_broker), _ANSWER_MS)

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

    # Pulling

    async def _pull_on(self, held: HeldQueue) -> None:
        options, queue, waiting = self.options, held.queue, held.waiting
        while not waiting.is_dropped:
            waiting.pulled_at = self._clock()
            count = sum(other.topic == queue.topic for other in self._held)
            if consuming.is_full(waiting, options.thresholds.shared(max(1, count)), is_orderly=options.orderly):
                held.has_room.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(held.has_room.wait(), 1)
                continue
            subscription = self._subscriptions.get(queue.topic)
            if subscription is None:
                return
            try:
                fetched = await self._pull(queue, held.next_offset, subscription)
            except questions.RefusedError as error:
                log.warning("pull of %s: %s", queue, error)
                await asyncio.sleep(_AFTER_BUSY_S if error.code == ResponseCode.SYSTEM_BUSY else _AFTER_ERROR_S)
                continue
            except MqtoolError as error:
                log.warning("pull of %s: %s", queue, error)
                await asyncio.sleep(_AFTER_ERROR_S)
                continue
            if waiting.is_dropped:
                return
            if fetched.code == ResponseCode.PULL_OFFSET_MOVED:
                await self._moved(held, fetched.next_offset)
                return
            held.next_offset = fetched.next_offset
            if fetched.code == ResponseCode.SUCCESS:
                self._take(held, fetched.records, subscription)
            elif not waiting:
                self._offsets.update(queue, fetched.next_offset, increase_only=True)
            if options.pull_interval:
                await asyncio.sleep(options.pull_interval / 1000)

    async def _pull(self, queue: MessageQueue, offset: int, subscription: Subscription) -> fetching.Fetched:
        committed = None if self._is_broadcasting else self._offsets.known(queue)
        question = fetching.pull(
            self.group,
            queue,
            offset,
            self.options.pull_batch_size,
            subscription,
            commit_offset=committed or None,
            with_subscription=self.options.post_subscription_when_pull,
        )
        return await self._instance.ask(queue.broker_name, question, fetching.HELD_ANSWER_MS)

    def _take(self, held: HeldQueue, records: bytes, subscription: Subscription) -> None:
        queue, messages = held.queue, []
        for record, _ in records_of(records):
            message = parse_message(record, queue.broker_name)
            if consuming.is_wanted(subscription, message):
                messages.append(consuming.original(message, self.group))
        held.waiting.put(messages)
        self._service.submit(held, messages)

    async def _moved(self, held: HeldQueue, offset: int) -> None:
        """Begin anew where the broker says: what was asked for is not there any more, or not yet."""
        log.warning("%s has no offset %d: it goes on at %d", held.queue, held.next_offset, offset)
        held.waiting.is_dropped = True
        await asyncio.sleep(_AFTER_MOVED_S)
        self._offsets.update(held.queue, offset, increase_only=False)
        await self._offsets.persist([held.queue])
        if self._held.get(held.queue) is held:
            del self._held[held.queue]
        self._rebalance_wanted.set()

    # What administrators ask, through a broker

    def _reset(self, _address: str, command: RemotingCommand) -> Coroutine[Any, Any, None]:
        header = parse_header(ResetOffset, command.ext_fields)
        return self._go_on_from(header.topic, introspection.parse_reset(command.body))

    async def _go_on_from(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            if queue.topic != topic or (held := self._held.pop(queue, None)) is None:
                continue
            log.info("%s goes on at %d, as an administrator wishes", queue, offset)
            held.drop()
            await held.is_idle.wait()
            self._offsets.update(queue, offset, increase_only=False)
            await self._offsets.persist([queue])
        self._rebalance_wanted.set()

    def _tell_offsets(self, _address: str, command: RemotingCommand) -> RemotingCommand:
        topic = parse_header(GetConsumerStatus, command.ext_fields).topic
        offsets = {queue: self._offsets.known(queue) or 0 for queue in self._held if queue.topic == topic}
        return command.answer(body=introspection.build_offsets(offsets))

    def _tell_all(self, _address: str, command: RemotingCommand) -> RemotingCommand:
        header = parse_header(GetRunningInfo, command.ext_fields)
        stacks = None
        if header.jstack_enable:
            frames = sys._current_frames().items()
            stacks = "\n".join(f"{thread}\n{''.join(traceback.format_stack(frame))}" for thread, frame in frames)
        body = introspection.build_running_info(
            self._settings(),
            self._subscriptions.values(),
            {queue: (held.waiting, self._offsets.known(queue) or 0) for queue, held in self._held.items()},
            {topic: self._service.rates(topic, self._clock() - self._started_at) for topic in self._subscriptions},
            stacks,
        )
        return command.answer(body=body)

    def _settings(self) -> dict[str, str]:
        options = self.options
        return {
            "PROP_NAMESERVER_ADDR": ";".join(self._instance.wire.name_servers) + ";",
            "PROP_THREADPOOL_CORE_SIZE": str(options.consume_thread_max),
            "PROP_CONSUMEORDERLY": str(options.orderly).lower(),
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_at),
            "consumerGroup": self.group,
            "messageModel": options.message_model.value,
            "consumeFromWhere": options.consume_from_where.value,
            "language": "PYTHON",
        }

    def _consume_directly(self, _address: str, command: RemotingCommand) -> Coroutine[Any, Any, RemotingCommand]:
        header = parse_header(ConsumeDirectly, command.ext_fields)
        message = parse_message(command.body, header.broker_name or "")

        async def consumed() -> RemotingCommand:
            came = await self._service.consume_directly(message)
            return command.answer(body=introspection.build_consumed(*came, is_orderly=self.options.orderly))

        return consumed()
