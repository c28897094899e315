"""A consumer to which messages seem to be pushed, for asyncio: it pulls in the background, from its share of queues.

(Rules: remoting.md 3.9, 5, 6. RocketMQ: ``DefaultMQPushConsumer``.)
"""

import asyncio
import contextlib
import dataclasses
import inspect
import logging
import random
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mqtool.engine.client import consuming, fetching, questions
from mqtool.engine.client.consuming import ConsumeFrom, ConsumeStatus, MessageModel, Start, Thresholds
from mqtool.engine.client.incoming import ConsumerMessage, parse_message
from mqtool.engine.client.names import DEFAULT_CONSUMER, check_group, check_topic, with_namespace, without_namespace
from mqtool.engine.client.process_queue import ProcessQueue
from mqtool.engine.client.rebalance import Strategy, allocate, averagely
from mqtool.engine.client.routes import masters, readable_queues
from mqtool.engine.client_runtime.instance import ClientOptions, Instance
from mqtool.engine.client_runtime.offset_store import BrokerOffsets, FileOffsets, OffsetStore
from mqtool.engine.remoting.server import wall_clock
from mqtool.errors import MqtoolError, UnavailableError, UsageError
from mqtool.formats.bodies import ConsumerData, Heartbeat, MessageQueue, Subscription
from mqtool.formats.codes import RequestCode, ResponseCode
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
_SEND_BACK_MS = 5000
_AGAIN_S = 5.0  # after a message could not be sent back
_LOCK_AGAIN_S = 0.1
_MOST_STUCK = 16  # messages looked at for each queue at a time
_STUCK_LEVEL = 3


@dataclass
class ConsumeContext:
    """What a listener may say besides its status.

    Attributes:
        queue: where the messages come from.
        delay_level: when those that failed are delivered again: 0 by how often they came, -1 never.
        ack_index: with SUCCESS, the last message that was consumed; those behind it failed.
        suspend_ms: how long an orderly consumer waits before it tries again.
    """

    queue: MessageQueue
    delay_level: int = 0
    ack_index: int = consuming.UNLIMITED
    suspend_ms: int = 0


Listener = Callable[[Sequence[ConsumerMessage], ConsumeContext], Any]
"""Takes messages; returns a ``ConsumeStatus``, or nothing for SUCCESS. An exception is LATER. May be a coroutine."""


@dataclass(frozen=True, kw_only=True)
class PushConsumerOptions(ClientOptions):
    """How a consumer consumes; names and defaults are those of the Java client.

    Attributes:
        message_model: CLUSTERING: the members of the group share the messages; BROADCASTING: each gets all.
        orderly: the messages of a queue one after the other, each until it succeeds.
        consume_from_where: where a new group begins, ..
        consume_timestamp: .. and from when on, in ms; by default half an hour ago.
        strategy: how queues are shared out; the same for all members.
        consume_thread_max: listeners at work at a time.
        consume_message_batch_max_size: messages that a listener gets at a time.
        pull_batch_size: messages pulled at a time.
        pull_interval: ms between two pulls of a queue.
        thresholds: how much is pulled ahead.
        max_reconsume_times: how often a message comes again; by default 16 times, orderly without end.
        consume_timeout: minutes after which a message still being consumed is sent back.
        suspend_current_queue_time_millis: how long an orderly consumer waits after LATER.
        persist_consumer_offset_interval: ms between two reports of what was consumed.
        post_subscription_when_pull: tell the subscription with each pull.
        offsets_folder: of broadcasting consumers; by default ``.rocketmq_offsets`` in the home of the user.
    """

    message_model: MessageModel = MessageModel.CLUSTERING
    orderly: bool = False
    consume_from_where: ConsumeFrom = ConsumeFrom.LAST_OFFSET
    consume_timestamp: int | None = None
    strategy: Strategy = averagely
    consume_thread_max: int = 20
    consume_message_batch_max_size: int = 1
    pull_batch_size: int = 32
    pull_interval: int = 0
    thresholds: Thresholds = field(default_factory=Thresholds)
    max_reconsume_times: int = -1
    consume_timeout: int = 15
    suspend_current_queue_time_millis: int = 1000
    persist_consumer_offset_interval: int = 5000
    post_subscription_when_pull: bool = False
    offsets_folder: Path | None = None


class _Held:
    """A queue that this consumer has, and what it does with it."""

    def __init__(self, queue: MessageQueue, next_offset: int, now: int) -> None:
        self.queue = queue
        self.next_offset = next_offset
        self.waiting: ProcessQueue[ConsumerMessage] = ProcessQueue(now)
        self.has_room = asyncio.Event()
        self.has_some = asyncio.Event()  # for an orderly consumer
        self.tasks: list[asyncio.Task[None]] = []
        self.began: dict[int, int] = {}  # when the listener got a message, by queue offset
        self.is_consuming = asyncio.Lock()


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
        self._instance.on_request[RequestCode.NOTIFY_CONSUMER_IDS_CHANGED] = self._notified
        self._clock = clock
        self._subscriptions: dict[str, Subscription] = {}
        self._held: dict[MessageQueue, _Held] = {}
        self._offsets: OffsetStore
        self._due: asyncio.Queue[tuple[_Held, Sequence[ConsumerMessage]]]
        self._rebalance_wanted: asyncio.Event
        self._is_running = False
        self._may_consume: asyncio.Event
        self._pool: ThreadPoolExecutor | None = None
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
        self._due = asyncio.Queue()
        self._rebalance_wanted = asyncio.Event()
        self._may_consume = asyncio.Event()
        self._may_consume.set()
        if not inspect.iscoroutinefunction(self._listener):
            self._pool = ThreadPoolExecutor(options.consume_thread_max, f"mqtool {self.group}")
        self._is_running = True
        await self._check_subscriptions()
        instance.start()
        await instance.send_heartbeats()
        instance.keep(self._rebalance_on())
        instance.keep(self._persist_on())
        if options.orderly:
            if not self._is_broadcasting:
                instance.keep(self._lock_on())
        else:
            instance.keep(self._clean_on())
            for _ in range(options.consume_thread_max):
                instance.keep(self._consume_on())
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
        for one in held:
            one.waiting.is_dropped = True
            for task in one.tasks:
                task.cancel()
        for one in held:
            async with one.is_consuming:
                pass
        await self._offsets.persist([one.queue for one in held])
        if self.options.orderly and not self._is_broadcasting:
            await self._unlock([one.queue for one in held])
        self._held.clear()
        await self._instance.unregister(consumer_group=self.group)
        await self._instance.stop()
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    def suspend(self) -> None:
        """Give the listener nothing more for now."""
        self._may_consume.clear()

    def resume(self) -> None:
        """Go on."""
        self._may_consume.set()

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
            one.tasks.append(self._instance.keep(self._pull_on(one)))

    async def _let_go(self, queue: MessageQueue) -> None:
        held = self._held.pop(queue)
        held.waiting.is_dropped = True
        for task in held.tasks:
            task.cancel()
        if self.options.orderly:
            async with held.is_consuming:  # another member must not begin before
                pass
        await self._offsets.persist([queue])
        self._offsets.forget(queue)
        if self.options.orderly and not self._is_broadcasting:
            await self._unlock([queue])

    async def _take_over(self, queue: MessageQueue) -> _Held:
        self._offsets.forget(queue)
        offset = await self._where_to_begin(queue)
        held = self._held[queue] = _Held(queue, offset, self._clock())
        if self.options.orderly:
            held.waiting.locked_at = self._clock()
            held.tasks.append(self._instance.keep(self._consume_in_order(held)))
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

    async def _lock_held(self, queues: Collection[MessageQueue]) -> None:
        granted = await self._lock(queues)
        for queue in queues:
            if held := self._held.get(queue):
                held.waiting.locked_at = self._clock() if queue in granted else None

    # Pulling

    async def _pull_on(self, held: _Held) -> None:
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

    def _take(self, held: _Held, records: bytes, subscription: Subscription) -> None:
        queue, messages = held.queue, []
        for record, _ in records_of(records):
            message = parse_message(record, queue.broker_name)
            if consuming.is_wanted(subscription, message):
                messages.append(consuming.original(message, self.group))
        has_to_tell = held.waiting.put(messages)
        if self.options.orderly:
            if has_to_tell:
                held.has_some.set()
        else:
            for some in consuming.in_groups(messages, self.options.consume_message_batch_max_size):
                self._due.put_nowait((held, some))

    async def _moved(self, held: _Held, offset: int) -> None:
        """Begin anew where the broker says: what was asked for is not there any more, or not yet."""
        log.warning("%s has no offset %d: it goes on at %d", held.queue, held.next_offset, offset)
        held.waiting.is_dropped = True
        await asyncio.sleep(_AFTER_MOVED_S)
        self._offsets.update(held.queue, offset, increase_only=False)
        await self._offsets.persist([held.queue])
        if self._held.get(held.queue) is held:
            del self._held[held.queue]
        self._rebalance_wanted.set()

    # Consuming, in any order

    async def _consume_on(self) -> None:
        while True:
            held, messages = await self._due.get()
            await self._may_consume.wait()
            if not held.waiting.is_dropped:
                await self._consume(held, messages)

    async def _consume(self, held: _Held, messages: Sequence[ConsumerMessage]) -> None:
        context = ConsumeContext(held.queue)
        now = self._clock()
        held.began |= {message.queue_offset: now for message in messages}
        status = await self._call_listener(messages, context)
        for message in messages:
            held.began.pop(message.queue_offset, None)
        if held.waiting.is_dropped:  # another member gets these messages, too
            return
        consumed = 0 if status is ConsumeStatus.LATER else min(len(messages), context.ack_index + 1)
        failed = messages[consumed:]
        kept = []
        if failed and self._is_broadcasting:
            log.warning("%d messages of %s failed, and are not delivered again", len(failed), held.queue)
        elif failed:
            kept = [one for one in failed if not await self._send_back(one, context.delay_level)]
        if kept:
            self._instance.keep(self._consume_later(held, kept))
        self._finish(held, [one for one in messages if one not in kept])

    def _finish(self, held: _Held, messages: Sequence[ConsumerMessage]) -> None:
        offset = held.waiting.remove(messages, self._clock())
        held.has_room.set()
        if offset is not None and not held.waiting.is_dropped:
            self._offsets.update(held.queue, offset, increase_only=True)

    async def _consume_later(self, held: _Held, messages: Sequence[ConsumerMessage]) -> None:
        await asyncio.sleep(_AGAIN_S)
        again = [dataclasses.replace(one, reconsume_times=one.reconsume_times + 1) for one in messages]
        self._due.put_nowait((held, again))

    async def _call_listener(self, messages: Sequence[ConsumerMessage], context: ConsumeContext) -> ConsumeStatus:
        shown = messages
        if self.options.namespace:
            shown = [
                dataclasses.replace(one, topic=without_namespace(one.topic, self.options.namespace)) for one in messages
            ]
        try:
            if self._pool is None:
                status = await self._listener(shown, context)
            else:
                loop = asyncio.get_running_loop()
                status = await loop.run_in_executor(self._pool, self._listener, shown, context)
        except Exception:
            log.exception("the listener failed with messages of %s", context.queue)
            return ConsumeStatus.LATER
        return ConsumeStatus.LATER if status is ConsumeStatus.LATER else ConsumeStatus.SUCCESS

    async def _send_back(self, message: ConsumerMessage, delay_level: int) -> bool:
        """Have a message delivered again, and tell whether that is sure."""
        most = consuming.most_attempts(self.options.max_reconsume_times, is_orderly=self.options.orderly)
        topic = with_namespace(message.topic, self.options.namespace)
        question = fetching.send_back(self.group, message.physical_offset, delay_level, message.message_id, topic, most)
        try:
            await self._instance.ask(message.broker_name, question, _SEND_BACK_MS)
        except MqtoolError as error:
            log.warning("a message of %s cannot be sent back, and is tried again here: %s", topic, error)
            return False
        return True

    async def _clean_on(self) -> None:
        """Send back what a listener has not finished for too long, so that the offsets go on."""
        timeout_ms = self.options.consume_timeout * 60_000
        while True:
            await asyncio.sleep(timeout_ms / 1000)
            for held in [*self._held.values()]:
                late = self._clock() - timeout_ms
                stuck = [
                    one for one in held.waiting.first(_MOST_STUCK) if held.began.get(one.queue_offset, late) < late
                ]
                for message in stuck:
                    if await self._send_back(message, _STUCK_LEVEL):
                        self._finish(held, [message])

    # Consuming in order

    async def _consume_in_order(self, held: _Held) -> None:
        waiting, options = held.waiting, self.options
        while not waiting.is_dropped:
            await held.has_some.wait()
            await self._may_consume.wait()
            if not self._is_broadcasting and not waiting.holds_lock(self._clock()):
                await self._lock_held([held.queue])
                if not waiting.holds_lock(self._clock()):
                    await asyncio.sleep(_LOCK_AGAIN_S)
                continue
            wait_ms = 0
            async with held.is_consuming:
                if waiting.is_dropped:
                    return
                messages = waiting.take(options.consume_message_batch_max_size, self._clock())
                if not messages:
                    held.has_some.clear()
                    continue
                context = ConsumeContext(held.queue)
                status = await self._call_listener(messages, context)
                if status is ConsumeStatus.SUCCESS or not await self._try_again(held, messages):
                    offset = waiting.commit()
                    if offset is not None and not waiting.is_dropped:
                        self._offsets.update(held.queue, offset, increase_only=False)
                else:
                    wait_ms = context.suspend_ms or options.suspend_current_queue_time_millis
            held.has_room.set()
            if wait_ms:
                await asyncio.sleep(min(max(wait_ms, 10), 30_000) / 1000)

    async def _try_again(self, held: _Held, messages: Sequence[ConsumerMessage]) -> bool:
        """Put messages back where they were; tell whether any is there, and not at its last attempt."""
        most = consuming.most_attempts(self.options.max_reconsume_times, is_orderly=True)
        again = [
            dataclasses.replace(one, reconsume_times=one.reconsume_times + 1)
            for one in messages
            if one.reconsume_times < most or not await self._send_back(one, -1)
        ]
        held.waiting.put_back(again)
        return bool(again)
