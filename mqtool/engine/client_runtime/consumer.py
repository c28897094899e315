"""The common part of all consumers of a group: rebalancing of queues, and pulling in the background.

(Rules: remoting.md 3.7, 3.9, 5, 6. RocketMQ: ``RebalanceImpl``, ``DefaultMQPushConsumerImpl``,
``DefaultLitePullConsumerImpl``.)
"""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import random
import sys
import time
import traceback
from abc import abstractmethod
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from mqtool.engine.client import calls, consuming, fetching, introspection
from mqtool.engine.client.consuming import ConsumeFrom, MessageModel, StartPosition, Thresholds
from mqtool.engine.client.incoming import ConsumerMessage
from mqtool.engine.client.names import with_namespace, without_namespace
from mqtool.engine.client.process_queue import ProcessQueue
from mqtool.engine.client.rebalance import Strategy, allocate, averagely
from mqtool.engine.client.routes import MASTER
from mqtool.engine.client_runtime import hooks, user_code
from mqtool.engine.client_runtime.instance import ClientOptions
from mqtool.engine.client_runtime.offset_store import BrokerOffsets, FileOffsets, OffsetStore
from mqtool.engine.client_runtime.reader import ANSWER_MS, Reader
from mqtool.engine.client_runtime.subscriber import Subscriber
from mqtool.engine.remoting.clock import wall_clock
from mqtool.errors import CallbackError, MqtoolError, RefusedError, UnknownTopicError
from mqtool.formats.bodies import ConsumerData, Heartbeat, MessageQueue, Subscription
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.headers import GetConsumerStatus, GetRunningInfo, ResetOffset, parse_header
from mqtool.formats.remoting import RemotingCommand
from mqtool.formats.topics import RETRY_PREFIX

log = logging.getLogger(__name__)

REBALANCE_MS = 20_000
LISTENERS_END_S = 30.0
"""How long a consumer that leaves waits for running listeners."""
_AFTER_ERROR_S = 3.0
_AFTER_BUSY_S = 0.02
_AFTER_MOVED_S = 10.0
_LOOK_AGAIN_S = 1.0


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions(ClientOptions):
    """How a consumer pulls; names and defaults are those of the Java client.

    Attributes:
        message_model: CLUSTERING: the members of the group share the messages; BROADCASTING: each gets all.
        consume_from_where: where a new group starts.
        consume_timestamp: the time (ms) at which a new group starts, if it starts at a time; by default half an
            hour ago.
        strategy: how queues are assigned; must be the same for all members.
        pull_batch_size: messages per pull.
        thresholds: how much is pulled ahead.
        offsets_folder: of broadcasting consumers; by default ``.rocketmq_offsets`` in the user's home directory.
        deserializer: makes the ``value`` of a message from its body, on first access: if it raises and the listener
            does not catch that, the listener fails, and the message is delivered again.
        metrics: a registry of ``prometheus_client``, or True for its default: what is pulled ahead, how long
            messages wait in this client, and how long listeners take.
        on_assigned: is called with the queues that this consumer has taken over, before it reads them.
        on_revoked: is called with the queues that it gives away, or gives up at shutdown, while it can still commit
            their offsets. Like ``on_assigned``, a coroutine, or a function that runs in a thread; queues change
            hands only after it returns.
        hooks: are called for all messages, before a listener or the program gets them, and after.
        trace: send traces to RMQ_SYS_TRACE_TOPIC, as Java's ``enableMsgTrace`` does.
    """

    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFrom = ConsumeFrom.LAST_OFFSET
    consume_timestamp: int | None = None
    strategy: Strategy = averagely
    pull_batch_size: int = 32
    thresholds: Thresholds = field(default_factory=Thresholds)
    offsets_folder: Path | None = None
    deserializer: "Callable[[bytes], Any] | None" = None
    metrics: Any = None
    on_assigned: "OnShare | None" = None
    on_revoked: "OnShare | None" = None
    hooks: "Sequence[hooks.Hook]" = ()
    trace: bool = False


OnShare = Callable[[list[MessageQueue]], Any]
"""Called with queues that a consumer has taken over or gives away."""


class _Troubles:
    """Logs failures that are retried every few seconds: each only once until it changes or is over."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[str, object]] = {}

    def say(self, activity: str, error: Exception, whose: object = None) -> None:
        """Report a failure; if several report the same, only the first counts."""
        sentence = str(error)
        if activity not in self._said or self._said[activity][0] != sentence:
            self._said[activity] = sentence, whose
            cause = error.__cause__ if isinstance(error, CallbackError) else None  # of the application
            log.warning("%s: %s; retrying", activity, sentence, exc_info=cause)

    def is_over(self, activity: str, whose: object = None) -> None:
        """Report that it works again, if the failure was reported for the same."""
        if activity in self._said and self._said[activity][1] == whose:
            del self._said[activity]
            log.warning("%s works again", activity)

    def forget(self, whose: object) -> None:
        """Forget the failures of one that has stopped, so that others report theirs."""
        self._said = {activity: report for activity, report in self._said.items() if report[1] != whose}


class AssignedQueue:
    """A queue that is assigned to this consumer, with its state."""

    def __init__(self, queue: MessageQueue, next_offset: int, now: int) -> None:
        self.queue = queue
        self.next_offset = next_offset
        self.last: ConsumerMessage | None = None  # received
        self.is_gone = False  # its broker no longer has the topic
        self.wished_broker_id = MASTER  # from which the broker suggests to pull next
        self.waiting: ProcessQueue[ConsumerMessage] = ProcessQueue(now)
        self.has_room = asyncio.Event()
        self.has_some = asyncio.Event()  # for an orderly consumer
        self.pulling: asyncio.Task[None] | None = None
        self.began: dict[int, int] = {}  # when the listener got a message, by queue offset
        self.is_idle = asyncio.Event()  # no listener is running
        self.is_idle.set()
        self._at_work = 0

    def stop_pulling(self) -> None:
        """Stop pulling."""
        if self.pulling:
            self.pulling.cancel()

    def drop(self) -> None:
        """Stop pulling, and commit nothing more: the queue belongs to another member."""
        self.stop_pulling()
        self.waiting.is_dropped = True
        self.has_some.set()  # a waiting task sees that the queue is dropped

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Count tasks that work on messages of this queue, from the listener to the offset."""
        self._at_work += 1
        self.is_idle.clear()
        try:
            yield
        finally:
            self._at_work -= 1
            if not self._at_work:
                self.is_idle.set()


class Consumer(Subscriber, Reader):
    """A member of a group, from ``start`` to ``shutdown``; subclasses differ in what they do with messages."""

    options: ConsumerOptions
    _consume_type: ClassVar[str]
    """The consume type reported to brokers: whether messages seem to be pushed."""
    _is_orderly = False
    _pull_interval = 0  # ms between two pulls of a queue

    def __init__(
        self,
        group: str,
        name_servers: str | Sequence[str] | None,
        options: ConsumerOptions,
        clock: Callable[[], int] = wall_clock,
    ) -> None:
        """Create a consumer; the arguments are those of its subclasses.

        Raises:
            UsageError: the group's name, the addresses or the options are invalid.
        """
        self._is_broadcasting = options.message_model is MessageModel.BROADCASTING
        if self._is_broadcasting and not options.instance_name:
            # Its offsets file is found by this name.
            options = dataclasses.replace(options, instance_name="DEFAULT")
        super().__init__(group, name_servers, options, clock)
        self._instance.heartbeat = self._heartbeat
        self._instance.on_request |= {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._notified,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._tell_offsets,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._tell_all,
        }
        self._held: dict[MessageQueue, AssignedQueue] = {}
        self._troubles = _Troubles()
        self._shared: set[MessageQueue] = set()  # those that the application knows of
        self._offsets: OffsetStore
        self._rebalance_wanted: asyncio.Event
        self._rebalancing: asyncio.Task[None]
        self._started_at = 0
        self._metrics = self._measured(options.metrics)
        if self._metrics:
            self._metrics.watch(self)

    def _held_sizes(self) -> list[tuple[str, int, int]]:
        """Return topic, messages and bytes of each assigned queue; called by any thread."""
        held = self._held.copy().items()
        return [(queue.topic, assigned.waiting.count, assigned.waiting.size) for queue, assigned in held]

    def subscribe(self, topic: str, expression: str = "*", *, is_sql92: bool = False) -> None:
        """Subscribe to a topic, or to the messages that match an expression: tags with ``||``, or SQL92.

        Raises:
            UsageError: it is not a valid name of a topic.
            FilterError: the expression has no tag.
        """
        super().subscribe(topic, expression, is_sql92=is_sql92)
        if self._is_running:
            self._rebalance_wanted.set()

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from a topic."""
        self._subscriptions.pop(with_namespace(topic, self.options.namespace), None)
        if self._is_running:
            self._rebalance_wanted.set()

    def queues(self) -> list[MessageQueue]:
        """Return the queues of its topics that are assigned to this consumer."""
        return sorted(queue for queue in self._held if not queue.topic.startswith(RETRY_PREFIX))

    # From start to shutdown

    def _prepare(self) -> None:
        """Create what needs the event loop."""
        self._offsets = (
            FileOffsets(self.client_id, self.group, self.options.offsets_folder)
            if self._is_broadcasting
            else BrokerOffsets(self._instance, self.group)
        )
        self._rebalance_wanted = asyncio.Event()
        self._started_at = self._clock()

    async def _join(self) -> None:
        """Register this member with brokers, and start rebalancing."""
        await self._check_subscriptions()
        self._instance.start()
        await self._instance.send_heartbeats()
        self._rebalancing = self._instance.keep_on("sharing queues", self._rebalance_on)
        self._rebalance_wanted.set()

    async def _keep_share(self) -> None:
        """Stop rebalancing; a queue that is just changing hands is finished first."""
        self._is_running = False
        self._rebalance_wanted.set()
        await asyncio.wait([self._rebalancing], timeout=LISTENERS_END_S)

    async def _end_all(self) -> None:
        self._held.clear()
        await super()._end_all()

    async def _check_subscriptions(self) -> None:
        for topic, subscription in self._subscriptions.items():
            route = await self._instance.route(topic)
            if route and subscription.expression_type != "TAG":
                name = random.choice(route.brokers).broker_name
                call = fetching.check_subscription(self.client_id, self.group, subscription)
                await self._instance.request_reader(name, call, ANSWER_MS)

    async def _persist_on(self, interval_ms: int) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            await self._offsets.persist([*self._held])

    # The group

    def _heartbeat(self) -> Heartbeat:
        options = self.options
        data = ConsumerData(
            self.group,
            self._consume_type,
            options.message_model.value,
            options.consume_from_where.value,
            tuple(self._subscriptions.values()),
        )
        return Heartbeat(self.client_id, (), (data,))

    def _notified(self, _address: str, _command: RemotingCommand) -> None:
        self._rebalance_wanted.set()

    async def _rebalance_on(self) -> None:
        while self._is_running:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REBALANCE_MS / 1000):
                    await self._rebalance_wanted.wait()
            self._rebalance_wanted.clear()
            for topic in sorted(self._topics()):
                activity = f"rebalancing the queues of {topic}"
                try:
                    await self._rebalance(topic)
                    self._troubles.is_over(activity)
                except MqtoolError as error:
                    self._troubles.say(activity, error)
                except Exception:
                    log.exception("rebalancing the queues of %s failed", topic)

    def _topics(self) -> set[str]:
        return {*self._subscriptions, *(queue.topic for queue in self._held)}

    async def _rebalance(self, topic: str) -> None:
        held = [queue for queue in self._held if queue.topic == topic]
        due = await self._due(topic)
        if due is None or not self._is_running:
            return
        lost, new = consuming.changes(held, due)
        now = self._clock()
        lost += [queue for queue, assigned in self._held.items() if queue in held and assigned.waiting.is_stuck(now)]
        lost = [*dict.fromkeys(lost)]
        await self._tell_revoked([queue for queue in self._shared if queue.topic == topic and queue not in due])
        for queue in lost:
            await self._let_go(queue)
        begun = []
        for queue in await self._may_take(new):
            try:
                begun.append(await self._take_over(queue))
            except MqtoolError as error:  # next time; those that have started continue
                log.warning("%s cannot be taken over now: %s", queue, error)
        await self._tell_assigned([assigned.queue for assigned in begun if assigned.queue not in self._shared])
        if lost or new:
            # A newer version tells the broker that its subscription is that of this rebalance.
            if subscription := self._subscriptions.get(topic):
                self._subscriptions[topic] = subscription._replace(version=now)
            await self._instance.send_heartbeats()
        for assigned in begun:
            self._pull(assigned)

    async def _tell_assigned(self, queues: Collection[MessageQueue]) -> None:
        self._shared |= {*queues}
        await self._tell(self.options.on_assigned, queues)

    async def _tell_revoked(self, queues: Collection[MessageQueue]) -> None:
        self._shared -= {*queues}
        await self._tell(self.options.on_revoked, queues)

    async def _tell_revoked_at_end(self) -> None:
        """Call the listener for all queues that are given up now, and wait for it as long as for listeners."""
        try:
            async with asyncio.timeout(LISTENERS_END_S):
                await self._tell_revoked([*self._shared])
        except TimeoutError:
            log.warning("the queue listener of %s did not finish within %.0f s", self.group, LISTENERS_END_S)

    async def _tell(self, listener: "OnShare | None", queues: Collection[MessageQueue]) -> None:
        names = {queue: without_namespace(queue.topic, self.options.namespace) for queue in queues}
        shown = [queue._replace(topic=name) for queue, name in names.items() if not name.startswith(RETRY_PREFIX)]
        if listener and shown:
            try:
                await user_code.called("queue listener", listener, sorted(shown))
            except Exception:
                log.exception("the listener failed with queues of %s", self.group)

    async def _due(self, topic: str) -> list[MessageQueue] | None:
        """Return this member's share of a topic, None if it is unknown now."""
        if topic not in self._subscriptions:
            return []
        route = await self._instance.route(topic)
        if route is None or not route.brokers:
            return None
        queues = await self._instance.queues_to_read(topic)
        if self._is_broadcasting:
            return queues
        name = random.choice(route.brokers).broker_name
        members = await self._instance.request_reader(name, fetching.members(self.group), ANSWER_MS)
        if not members:
            return None
        share = user_code.call("strategy", allocate, self.options.strategy, queues, members, self.client_id)
        return [queue for queue in share if queue.topic == topic]  # a configuration names those of all topics

    async def _may_take(self, new: Collection[MessageQueue]) -> Collection[MessageQueue]:
        """Return those of this member's new queues that it may start with now."""
        return new

    async def _let_go(self, queue: MessageQueue) -> None:
        held = self._held.pop(queue, None)
        if held is None:  # it was dropped in the meantime
            return
        held.drop()
        self._troubles.forget(queue)
        if self._is_orderly:  # another member must not begin before
            await held.is_idle.wait()
        await self._offsets.hand_over(queue)

    async def _take_over(self, queue: MessageQueue) -> AssignedQueue:
        self._offsets.forget(queue)
        return self._begin_at(queue, await self._where_to_begin(queue))

    def _begin_at(self, queue: MessageQueue, offset: int) -> AssignedQueue:
        held = self._held[queue] = AssignedQueue(queue, offset, self._clock())
        return held

    def _pull(self, held: AssignedQueue) -> None:
        held.pulling = self._instance.keep_on(f"pulling {held.queue}", functools.partial(self._pull_on, held))

    async def _where_to_begin(self, queue: MessageQueue) -> int:
        offset = await self._offsets.read(queue)
        if offset is not None:
            return offset
        match consuming.where_to_begin(queue.topic, self.options.consume_from_where):
            case StartPosition.FIRST:
                return 0
            case StartPosition.MAX:
                offset = await self._ask_of(queue, fetching.max_offset(queue))
            case StartPosition.TIME:
                since = self.options.consume_timestamp
                since = self._clock() - 1_800_000 if since is None else since
                offset = await self._ask_of(queue, calls.offset_at(queue.topic, queue.queue_id, since))
        self._note_begin(queue, offset)
        return offset

    def _note_begin(self, queue: MessageQueue, offset: int) -> None:
        """Record the start offset, so that the next reader starts here even if nothing arrives: the end moves on."""
        self._offsets.update(queue, offset, increase_only=True)

    # Pulling

    @abstractmethod
    def _is_full(self, held: AssignedQueue) -> bool:
        """Return whether pulled messages have to be consumed before more are pulled."""

    @abstractmethod
    def _took(self, held: AssignedQueue, messages: list[ConsumerMessage]) -> None:
        """Handle received messages, which already wait in ``held``; ``held`` has the next offset to pull."""

    @abstractmethod
    def _call(
        self, held: AssignedQueue, subscription: Subscription, *, of_master: bool
    ) -> calls.Call[fetching.Fetched]:
        """Return the next pull request; offsets are not committed through slaves."""

    def _subscription_of(self, queue: MessageQueue) -> Subscription | None:
        return self._subscriptions.get(queue.topic)

    async def _pull_on(self, held: AssignedQueue) -> None:
        queue, waiting = held.queue, held.waiting
        activity = f"pulling {queue.topic} from {queue.broker_name}"
        while not waiting.is_dropped:
            waiting.pulled_at = self._clock()
            if self._is_full(held):
                held.has_room.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_AGAIN_S):
                        await held.has_room.wait()
                continue
            subscription = self._subscription_of(queue)
            if subscription is None:
                return
            try:
                broker_id, address = self._instance.broker_to_read(queue.broker_name, held.wished_broker_id)
                call = self._call(held, subscription, of_master=broker_id == MASTER)
                fetched = await self._instance.wire.request(address, call, fetching.HELD_ANSWER_MS)
                elsewhere = await self._elsewhere(held, fetched, address)
            except UnknownTopicError as error:
                if not held.is_gone:
                    log.warning("%s; consuming %s will resume once it exists", error, queue)
                    held.is_gone = True
                    self._offsets.forget(queue)
                await asyncio.sleep(_AFTER_ERROR_S)
                continue
            except RefusedError as error:
                self._troubles.say(activity, error, queue)
                self._instance.look_for_successor(queue.broker_name)
                await asyncio.sleep(_AFTER_BUSY_S if error.code == ResponseCode.SYSTEM_BUSY else _AFTER_ERROR_S)
                continue
            except MqtoolError as error:
                self._troubles.say(activity, error, queue)
                self._instance.look_for_successor(queue.broker_name)
                held.wished_broker_id = MASTER  # the suggested one may be gone
                await asyncio.sleep(_AFTER_ERROR_S)
                continue
            self._troubles.is_over(activity, queue)
            if waiting.is_dropped:
                return
            if elsewhere is not None:
                is_reset = not held.is_gone and fetched.min_offset <= held.next_offset <= fetched.max_offset
                await self._go_on_at(held, elsewhere, is_reset=is_reset)
                return
            held.is_gone = False
            # The answer of a slave that lags behind consumption does not correct the offset.
            has_less = fetched.code == ResponseCode.PULL_RETRY_IMMEDIATELY and fetched.next_offset == held.next_offset
            held.next_offset, held.wished_broker_id = fetched.next_offset, fetched.suggested_broker_id
            messages = consuming.messages_of(fetched.records, queue, subscription)
            if queue.topic.startswith(RETRY_PREFIX):
                messages = [consuming.original(message, self.group) for message in messages]
            if messages:
                held.last = messages[-1]
            if self._metrics:
                now = time.perf_counter()
                for message in messages:
                    message.received_at = now
            waiting.put(messages)
            self._took(held, messages)
            if self._pull_interval:
                await asyncio.sleep(self._pull_interval / 1000)
            elif has_less and not messages:
                await asyncio.sleep(_AFTER_BUSY_S)

    async def _elsewhere(self, held: AssignedQueue, fetched: fetching.Fetched, address: str) -> int | None:
        """Return where to continue if not after the last pull: that offset does not exist, or was reset.

        The queues of a topic that was deleted and recreated start again, with other messages at the same offsets.
        """
        is_moved = fetched.code == ResponseCode.PULL_OFFSET_MOVED
        is_beyond = held.next_offset > fetched.max_offset
        if held.is_gone or (is_moved and is_beyond):
            first = await self._first_message(held.queue, fetched, address)
            if consuming.is_made_again(first, held.last, fetched.min_offset, was_gone=held.is_gone):
                return fetched.min_offset
        return fetched.next_offset if is_moved else None

    async def _first_message(
        self, queue: MessageQueue, fetched: fetching.Fetched, address: str
    ) -> ConsumerMessage | None:
        subscription = consuming.subscribe(queue.topic, "*", self._clock())
        call = fetching.pull(self.group, queue, fetched.min_offset, 1, subscription, hold_ms=0, with_subscription=True)
        pulled = await self._instance.wire.request(address, call, ANSWER_MS)
        return next(iter(consuming.messages_of(pulled.records, queue, subscription)), None)

    async def _go_on_at(self, held: AssignedQueue, offset: int, *, is_reset: bool) -> None:
        """Continue at another offset; messages pulled before are consumed first, as they may never be delivered again.

        If an administrator has reset the offset they are dropped: they are delivered again, or are not wanted.
        """
        queue, waiting = held.queue, held.waiting
        if offset != held.next_offset:
            log.warning("%s: continuing at offset %d, not at %d", queue, offset, held.next_offset)
        waiting.is_dropped = is_reset
        if not held.is_gone:
            await asyncio.sleep(_AFTER_MOVED_S)
        while waiting.count and not waiting.is_dropped:
            waiting.pulled_at = self._clock()
            held.has_room.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN_S):
                    await held.has_room.wait()
        if not is_reset or self._is_orderly:
            await held.is_idle.wait()
        if self._held.get(queue) is not held:  # it was given away in the meantime
            return
        waiting.is_dropped = True
        held.has_some.set()
        self._note_next(queue, offset)
        await self._offsets.persist([queue])
        if self._held.get(queue) is held:
            anew = self._begin_at(queue, offset)
            anew.waiting.locked_at = waiting.locked_at
            self._pull(anew)

    def _note_next(self, queue: MessageQueue, offset: int) -> None:
        self._offsets.update(queue, offset, increase_only=False)

    # Requests of administrators, through a broker

    def _reset(self, _address: str, command: RemotingCommand) -> Coroutine[Any, Any, None]:
        header = parse_header(ResetOffset, command.ext_fields)
        return self._go_on_from(header.topic, introspection.parse_reset(command.body))

    async def _go_on_from(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            if queue.topic != topic or (held := self._held.pop(queue, None)) is None:
                continue
            log.info("%s continues at %d: its offset was reset by an administrator", queue, offset)
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
            self._rates(),
            stacks,
        )
        return command.answer(body=body)

    def _settings(self) -> dict[str, str]:
        return {
            "PROP_NAMESERVER_ADDR": ";".join(self._instance.wire.name_servers) + ";",
            "PROP_CONSUME_TYPE": self._consume_type,
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_at),
            "consumerGroup": self.group,
            "messageModel": self.options.message_model.value,
            "consumeFromWhere": self.options.consume_from_where.value,
            "language": "PYTHON",
        }

    def _rates(self) -> dict[str, dict[str, float | int]]:
        """Return how fast messages of each topic are consumed, if that is counted."""
        return {}
