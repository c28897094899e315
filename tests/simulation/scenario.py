"""What happens in a simulation: who is there, what they do, and which faults come upon them, all from one seed.

First everybody works while faults come and go; then the faults end, producers finish, and within a quarter of an hour
of virtual time everything must have settled; at last all stop and the stores are looked at.
"""

import asyncio
import logging
import random
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mqtool.aio import LitePullConsumer, PopConsumer, Producer, PullConsumer, PushConsumer, TransactionProducer
from mqtool.engine.client import calls
from mqtool.engine.client.consuming import ConsumeFrom, ConsumeStatus, MessageModel, Thresholds
from mqtool.engine.client.incoming import ConsumerMessage
from mqtool.engine.client.outgoing import ProducerMessage
from mqtool.engine.client.queue_choice import select_by_hash
from mqtool.engine.client.rebalance import (
    Strategy,
    averagely,
    averagely_by_circle,
    by_configuration,
    by_machine_room,
    consistent_hash,
    near_by,
)
from mqtool.engine.client.sending import SendResult, SendStatus, TransactionState
from mqtool.engine.client_runtime.consume_services import ConsumeContext, PushConsumerOptions
from mqtool.engine.client_runtime.lite_pull_consumer import LitePullConsumerOptions
from mqtool.engine.client_runtime.pop_consumer import PopConsumerOptions
from mqtool.engine.client_runtime.producer import ProducerOptions
from mqtool.engine.client_runtime.pull_consumer import PullConsumerOptions
from mqtool.engine.client_runtime.wire import Wire
from mqtool.engine.repair.findings import Severity
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import MqtoolError
from mqtool.formats.bodies import MessageQueue
from mqtool.formats.compression import decompress
from mqtool.formats.config_tables import TopicConfig
from mqtool.formats.properties import parse_properties
from mqtool.formats.stored_message import parse_stored
from mqtool.formats.topics import DEAD_LETTER_PREFIX, RETRY_PREFIX
from tests.simulation.history import (
    MAX_TIMES,
    ConsumerKind,
    GroupHistory,
    History,
    ProducedMessage,
    ViolationError,
    queue_of,
)
from tests.simulation.network import Line, NetworkLoop
from tests.simulation.virtual_loop import Process
from tests.simulation.world import STORE_SETTINGS, BrokerHost, NameServerHost, Server, World, simulate

SETTLE_S = 900
_LOOK_S = 5
_WATCH_S = 2.0
ROOMS = ("east", "west")
TAGS = ("red", "green", "blue")
PUSHED = (ConsumerKind.CONCURRENT, ConsumerKind.ORDERLY, ConsumerKind.BROADCAST, ConsumerKind.BROADCAST_ORDERLY)
TO_ALL = (ConsumerKind.BROADCAST, ConsumerKind.BROADCAST_ORDERLY)
OF_MADE_TOPICS = (ConsumerKind.POP, ConsumerKind.ASSIGNED, ConsumerKind.PULL)


@dataclass(frozen=True)
class Size:
    """How much there is in a simulation: at least, and at most."""

    producers: tuple[int, int] = (1, 4)
    groups: tuple[int, int] = (2, 4)
    members: tuple[int, int] = (1, 4)
    brokers: tuple[int, int] = (1, 3)
    seconds: tuple[float, float] = (15.0, 75.0)
    """Of work under faults."""


@dataclass
class SimulationOutcome:
    """What a simulation came to."""

    seed: int
    digest: str = ""
    clients: int = 0
    sends: int = 0
    acknowledged: int = 0
    deliveries: int = 0
    consumed: int = 0
    """What listeners succeeded with."""
    faults: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0
    violation: str = ""

    @property
    def operations(self) -> int:
        """Sends, deliveries and faults together."""
        return self.sends + self.deliveries + self.faults.total()


@dataclass(frozen=True)
class SimulatedGroup:
    """A group of consumers, and how its members behave."""

    history: GroupHistory
    strategy: Strategy | None
    """How queues are shared; None if each place has its own for good."""
    fails: float
    """How often a listener fails with a message that it would take at another time."""
    slow_s: float
    batch: int
    is_sync: bool
    most: int
    """Members at first."""

    @property
    def is_fixed(self) -> bool:
        """Whether each of its places is to be taken always."""
        return self.kind in (*TO_ALL, ConsumerKind.ASSIGNED, ConsumerKind.PULL) or (
            self.strategy is None and self.kind is not ConsumerKind.POP
        )

    @property
    def name(self) -> str:
        return self.history.name

    @property
    def kind(self) -> ConsumerKind:
        return self.history.kind


class GroupMember:
    """One consumer of a group, from its start to its end."""

    def __init__(self, name: str, place: int, group: SimulatedGroup, process: Process, consumer: Any) -> None:
        self.name = name
        self.place = place
        self.group = group
        self.process = process
        self.consumer = consumer
        self.is_up = False
        self.work: asyncio.Task[None] | None = None


class Scenario:
    """One simulation."""

    def __init__(
        self, seed: int, folder: Path, loop: NetworkLoop, size: Size, on_note: Callable[[str], None] | None
    ) -> None:
        self.loop = loop
        self.world = World(seed, folder, loop, on_note)
        self.size = size
        self.outcome = SimulationOutcome(seed)
        self.history = History(self._is_unwanted)
        self.name_servers: list[NameServerHost] = []
        self.brokers: list[BrokerHost] = []
        self.groups: list[SimulatedGroup] = []
        self.members: list[GroupMember] = []
        self.failure: asyncio.Future[None] = loop.create_future()
        self._chance = random.Random(f"scenario {seed}")
        self._hosts = 0
        self._queues: list[MessageQueue] = []  # of the topics that were made beforehand
        self._is_quiet = False
        self._must_end: list[asyncio.Task[None]] = []  # of producers

    # From the seed

    def _between(self, ends: tuple[int, int]) -> int:
        return self._chance.randint(*ends)

    def _host(self, net: int) -> str:
        self._hosts += 1
        return f"10.{net}.{self._hosts >> 8}.{self._hosts & 255}"

    async def run(self) -> SimulationOutcome:
        """Run it to its end; what must not be is said in the outcome."""
        log = _Faults()
        logging.getLogger("mqtool").addHandler(log)
        self.loop.set_exception_handler(log.take)
        try:
            work = asyncio.ensure_future(self._run())
            await asyncio.wait([work, self.failure], return_when=asyncio.FIRST_COMPLETED)
            if self.failure.done():
                work.cancel()
                self.failure.result()
            await work
            if log.faults:
                raise ViolationError(f"a fault was logged: {log.faults[0]}")
        except ViolationError as violation:
            self.outcome.violation = str(violation)
        finally:
            logging.getLogger("mqtool").removeHandler(log)
            self.loop.set_exception_handler(lambda *_: None)
            self.outcome.virtual_s = self.loop.time()
            self.outcome.digest = self.world.digest
            await self.world.finish()
        histories = self.history.groups.values()
        self.outcome.sends = len(self.history.sent)
        self.outcome.acknowledged = sum(one.is_acknowledged for one in self.history.sent.values())
        self.outcome.deliveries = sum(one.delivered for one in histories)
        self.outcome.consumed = sum(sum(one.consumed.values()) for one in histories)
        return self.outcome

    async def _run(self) -> None:
        await self._begin()
        chaos = [asyncio.ensure_future(self._guard(work)) for work in (self._watch(), *self._disturb())]
        await asyncio.sleep(self._chance.uniform(*self.size.seconds))
        for task in chaos[1:]:
            task.cancel()
        await self._make_quiet()
        await self._settle()
        chaos[0].cancel()
        await self._end()

    async def _guard(self, work: Any) -> None:
        try:
            await work
        except (ViolationError, Exception) as error:
            if not self.failure.done():
                wrong = (
                    error if isinstance(error, ViolationError) else ViolationError(f"{type(error).__name__}: {error}")
                )
                if wrong is not error:
                    wrong.__cause__ = error
                self.failure.set_exception(wrong)

    # The beginning

    async def _begin(self) -> None:
        chance, world = self._chance, self.world
        world.network.default = Line(
            chance.choice([0.0001, 0.001, 0.01]), chance.choice([0.0, 0.0005, 0.01]), chance.choice([0, 0, 0.01])
        )
        self.name_servers = [
            NameServerHost(world, f"names-{at}", self._host(1)) for at in range(chance.choice([1, 1, 2, 3]))
        ]
        addresses = [one.address for one in self.name_servers]
        for at in range(self._between(self.size.brokers)):
            settings = {
                "defaultTopicQueueNums": "4",
                "flushDiskType": chance.choice(["ASYNC_FLUSH", "SYNC_FLUSH"]),
                "transactionCheckInterval": "10000",
                "transactionCheckMax": "1000",  # what is asked for too often is put aside, and not delivered
                "brokerClusterName": "c",
            }
            name = f"{ROOMS[at % 2]}@b{at}"
            self.brokers.append(
                BrokerHost(world, name, self._host(2), addresses, settings, chance.randint(-1000, 1000))
            )
        for one in (*self.name_servers, *self.brokers):
            await one.start()
        topics = [f"T{at}" for at in range(chance.randint(1, 3))]
        made = [topic for topic in topics if chance.random() < 0.7]
        async with Wire([]) as wire:
            for topic in made:
                for broker in self.brokers:
                    queues = chance.randint(1, 6)
                    self._queues += [MessageQueue(topic, broker.name, queue_id) for queue_id in range(queues)]
                    await wire.request(
                        broker.address,
                        calls.put_topic(TopicConfig(topic, queues, queues, 6, False, "SINGLE_TAG", 0, {})),
                    )
        world.note("world", f"topics {topics}, made beforehand {made}")
        await asyncio.sleep(1)
        kinds = [ConsumerKind.CONCURRENT, ConsumerKind.ORDERLY]
        count = self._between(self.size.groups)
        kinds += [chance.choice([*ConsumerKind]) for _ in range(count - 2)]
        for at, kind in enumerate(kinds[:count]):
            self.groups.append(self._make_group(f"G{at}-{kind.name}", kind, topics, made))
        for group in self.groups:
            self.history.groups[group.name] = group.history
            for place in range(group.most):
                self._start_member(group, place, self._host(3))
        for at in range(self._between(self.size.producers)):
            self._start_producer(f"P{at}", chance.choice(topics))

    def _make_group(self, name: str, kind: ConsumerKind, topics: list[str], made: list[str]) -> SimulatedGroup:
        chance = self._chance
        if kind in OF_MADE_TOPICS:  # their members start only where there are all topics, or know their queues
            kind, topics = (kind, made) if made else (ConsumerKind.CONCURRENT, topics)
        some = tuple(chance.sample(topics, chance.randint(1, len(topics))))
        tags = frozenset(chance.sample(TAGS, chance.randint(1, 2))) if chance.random() < 0.3 else frozenset()
        strategies: list[Strategy | None] = [
            averagely,
            averagely_by_circle,
            consistent_hash(),
            by_machine_room(ROOMS),
            near_by(
                averagely,
                lambda queue: queue.broker_name.split("@")[0],
                lambda member: ROOMS[int(member.rsplit("-", 1)[1]) % 2],
            ),
        ]
        if not {*some} - {*made}:
            strategies.append(None)
        batch = chance.choice([1, 1, 8])
        # What comes together with a message that nobody can take would be given up with it.
        has_poison = batch == 1 and kind in (ConsumerKind.CONCURRENT, ConsumerKind.ORDERLY)
        return SimulatedGroup(
            GroupHistory(name, kind, some, tags, has_poison=has_poison),
            chance.choice(strategies),
            chance.choice([0.0, 0.0, 0.1]),
            chance.choice([0.0, 0.05, 0.5]),
            batch,
            chance.random() < 0.3,
            self._between(self.size.members),
        )

    def _strategy(self, group: SimulatedGroup, place: int) -> Strategy:
        """Return the strategy of a member: without one its queues are configured."""
        if group.strategy:
            return group.strategy
        retries = [MessageQueue(RETRY_PREFIX + group.name, broker.name, 0) for broker in self.brokers]
        return by_configuration([*self._of_place(group, place), *retries[place :: group.most]])

    def _of_place(self, group: SimulatedGroup, place: int) -> list[MessageQueue]:
        """Return the queues of a place that has its own for good."""
        return [queue for queue in self._queues if queue.topic in group.history.topics][place :: group.most]

    # Consumers

    def _start_member(self, group: SimulatedGroup, place: int, host: str) -> None:
        self.outcome.clients += 1
        name = f"{group.name}-{place}-{self.outcome.clients}"
        process = self.world.process(name, host)
        instance_name = f"{place}" if group.kind in TO_ALL else name
        more: dict[str, Any] = {"instance_name": instance_name}
        addresses = [one.address for one in self.name_servers]
        clock = self.world.clock(self._chance.randint(-1000, 1000))
        member = GroupMember(name, place, group, process, None)
        expression = " || ".join(sorted(group.history.tags)) or "*"

        def make() -> Any:
            consumer: Any
            if group.kind is ConsumerKind.POP:
                options = PopConsumerOptions(pop_invisible_time=15_000, pop_batch_nums=8, **more)
                consumer = PopConsumer(group.name, addresses, options, clock)
            elif group.kind is ConsumerKind.PULL:
                return PullConsumer(group.name, addresses, PullConsumerOptions(**more), clock)
            elif group.kind not in PUSHED:
                auto = LitePullConsumerOptions(
                    consume_from_where=ConsumeFrom.FIRST_OFFSET,
                    strategy=self._strategy(group, place),
                    auto_commit=group.is_sync or group.kind is ConsumerKind.ITERATE,
                    **more,
                )
                consumer = LitePullConsumer(group.name, addresses, auto, clock)
                if group.kind is ConsumerKind.ASSIGNED:
                    consumer.assign(self._of_place(group, place), expression)
                    return consumer
            else:
                push = PushConsumerOptions(
                    consume_from_where=ConsumeFrom.FIRST_OFFSET,
                    strategy=self._strategy(group, place),
                    orderly=group.kind in (ConsumerKind.ORDERLY, ConsumerKind.BROADCAST_ORDERLY),
                    message_model=MessageModel.BROADCASTING if group.kind in TO_ALL else MessageModel.CLUSTERING,
                    consume_thread_max=4,
                    consume_message_batch_max_size=group.batch,
                    max_reconsume_times=MAX_TIMES,
                    suspend_current_queue_time_millis=500,
                    thresholds=Thresholds(count=20 if group.batch == 1 else 1000),
                    offsets_folder=self.world.folder / "offsets",
                    **more,
                )
                listener = self._sync_listener(member) if group.is_sync else self._listener(member)
                consumer = PushConsumer(group.name, listener, addresses, push, clock)
            for topic in group.history.topics:
                consumer.subscribe(topic, expression)
            return consumer

        member.consumer = process.context.run(make)
        self.members.append(member)
        member.work = process.start(self._guard(self._live(member)))

    async def _live(self, member: GroupMember) -> None:
        chance = self._chance
        while True:
            try:
                await member.consumer.start()
                break
            except MqtoolError as error:
                self.world.note(member.name, f"cannot start: {error}")
                await asyncio.sleep(chance.uniform(1, 5))
        member.is_up = True
        self.world.note(member.name, "has started")
        match member.group.kind:
            case ConsumerKind.LITE | ConsumerKind.ASSIGNED:
                await self._poll_on(member)
            case ConsumerKind.ITERATE:
                await self._iterate_on(member)
            case ConsumerKind.BATCH:
                await self._take_batches_on(member)
            case ConsumerKind.PULL:
                await asyncio.gather(
                    *(self._pull_on(member, one) for one in self._of_place(member.group, member.place))
                )
            case ConsumerKind.POP:
                await (self._pop_on(member) if member.group.batch == 1 else self._pop_batches_on(member))

    def _takes(self, member: GroupMember, messages: Sequence[ConsumerMessage]) -> bool:
        """Tell whether a listener succeeds."""
        if any(member.group.history.cannot_take(self.history.sent[one.body.decode()]) for one in messages):
            return False
        may_fail = all(one.reconsume_times == 0 for one in messages) and member.group.kind not in TO_ALL
        return not (may_fail and self._chance.random() < member.group.fails)

    def _begins(self, member: GroupMember, messages: Sequence[ConsumerMessage]) -> None:
        try:
            self.history.begin(member.group.history, member.name, messages, self.loop.time())
        except ViolationError as violation:
            self._fail(violation)

    def _ends(self, member: GroupMember, messages: Sequence[ConsumerMessage], *, is_success: bool) -> None:
        for one in messages:
            place = f"{queue_of(one, member.group.name)} {one.queue_offset}"
            said = "consumes" if is_success else f"fails ({one.reconsume_times}) with"
            self.world.note(member.name, f"{said} {one.body.decode()} of {place}")
        try:
            self.history.end(member.group.history, member.name, messages, is_success=is_success)
        except ViolationError as violation:
            self._fail(violation)

    def _fail(self, violation: ViolationError) -> None:
        if not self.failure.done():
            self.failure.set_exception(violation)

    def _listener(self, member: GroupMember) -> Any:
        chance, slow_s = self._chance, member.group.slow_s

        async def listen(messages: Sequence[ConsumerMessage], context: ConsumeContext) -> ConsumeStatus:
            self._begins(member, messages)
            if slow_s:
                await asyncio.sleep(chance.expovariate(1 / slow_s))
            if self._takes(member, messages):
                self._ends(member, messages, is_success=True)
                return ConsumeStatus.SUCCESS
            if len(messages) > 1 and member.group.kind is ConsumerKind.CONCURRENT:  # some of them succeed
                context.ack_index = chance.randrange(-1, len(messages) - 1)
                self._ends(member, messages[: context.ack_index + 1], is_success=True)
                self._ends(member, messages[context.ack_index + 1 :], is_success=False)
                return ConsumeStatus.SUCCESS
            self._ends(member, messages, is_success=False)
            if chance.random() < 0.3:
                raise ListenerError
            return ConsumeStatus.LATER

        return listen

    def _sync_listener(self, member: GroupMember) -> Any:
        def listen(messages: Sequence[ConsumerMessage], _context: ConsumeContext) -> ConsumeStatus | None:
            self._begins(member, messages)
            takes = self._takes(member, messages)
            self._ends(member, messages, is_success=takes)
            return None if takes else ConsumeStatus.LATER

        return listen

    async def _poll_on(self, member: GroupMember) -> None:
        consumer: LitePullConsumer = member.consumer
        while member.is_up:
            messages = await consumer.poll(1000)
            self._begins(member, messages)
            # What poll has given is consumed for it, whether or not its work has ended.
            self._ends(member, messages, is_success=True)
            if messages and member.group.slow_s:
                await asyncio.sleep(self._chance.expovariate(1 / member.group.slow_s))
            is_to_be_told = self._chance.random() < 0.5 if messages else self._is_quiet
            if is_to_be_told and not member.group.is_sync and member.is_up:
                await self._commit(member)

    async def _work(self, member: GroupMember) -> None:
        if member.group.slow_s:
            await asyncio.sleep(self._chance.expovariate(1 / member.group.slow_s))

    async def _commit(self, member: GroupMember) -> None:
        try:
            await member.consumer.commit()
        except MqtoolError as error:
            self.world.note(member.name, f"commits nothing: {error}")

    async def _iterate_on(self, member: GroupMember) -> None:
        consumer: LitePullConsumer = member.consumer
        async for message in consumer:
            self._begins(member, [message])
            await self._work(member)
            self._ends(member, [message], is_success=True)
            if not member.group.is_sync and member.is_up and self._chance.random() < 0.3:
                await self._commit(member)  # else it is consumed when the next is asked for

    async def _take_batches_on(self, member: GroupMember) -> None:
        consumer: LitePullConsumer = member.consumer
        while member.is_up:
            try:
                async with consumer.batch(1000) as messages:
                    self._begins(member, messages)
                    await self._work(member)
                    if self._chance.random() < member.group.fails:
                        raise ListenerError  # they come again, first of all
                    self._ends(member, messages, is_success=True)
                if self._is_quiet and not messages and not member.group.is_sync and member.is_up:
                    await self._commit(member)  # what was committed last may be known to nobody
            except ListenerError:
                self.world.note(member.name, "gives messages back")
            except MqtoolError as error:
                self.world.note(member.name, f"commits nothing: {error}")

    async def _pull_on(self, member: GroupMember, queue: MessageQueue) -> None:
        consumer: PullConsumer = member.consumer
        expression = " || ".join(sorted(member.group.history.tags)) or "*"
        while member.is_up:
            try:
                offset = await consumer.committed(queue)
                if offset is None:
                    offset = await consumer.min_offset(queue)
                while member.is_up:
                    pulled = await consumer.pull(queue, offset, expression=expression)
                    self._begins(member, pulled.messages)
                    await self._work(member)
                    self._ends(member, pulled.messages, is_success=True)
                    if pulled.next_offset != offset:
                        offset = pulled.next_offset
                        await consumer.commit(queue, offset)
                    else:
                        await asyncio.sleep(0.5)
            except MqtoolError as error:  # from where it was committed
                self.world.note(member.name, f"pulls nothing: {error}")
                await asyncio.sleep(1)

    async def _pop_batches_on(self, member: GroupMember) -> None:
        consumer: PopConsumer = member.consumer
        while member.is_up:
            try:
                async with consumer.batch(3000) as messages:
                    self._begins(member, messages)
                    await self._work(member)
                    if not self._takes(member, messages):
                        raise ListenerError  # they come again, when they are hidden no longer
                    self._ends(member, messages, is_success=True)
            except (MqtoolError, ListenerError) as error:
                self.world.note(member.name, f"pops nothing: {error}")
                await asyncio.sleep(1)

    async def _pop_on(self, member: GroupMember) -> None:
        consumer: PopConsumer = member.consumer
        while member.is_up:
            try:
                messages = await consumer.pop(3000)
            except MqtoolError as error:
                self.world.note(member.name, f"pops nothing: {error}")
                await asyncio.sleep(1)
                continue
            self._begins(member, messages)
            for message in messages:
                if not self._takes(member, [message]) or not member.is_up:
                    continue
                try:
                    is_in_time = await consumer.ack(message)
                except MqtoolError:
                    is_in_time = True  # perhaps: the answer may be lost
                if is_in_time:
                    self._ends(member, [message], is_success=True)

    async def _stop_member(self, member: GroupMember) -> None:
        if not member.is_up:
            self._kill_member(member)
            return
        member.is_up = False
        self.members.remove(member)
        self.world.note(member.name, "stops")
        kind = member.group.kind
        if kind not in (*PUSHED, ConsumerKind.ITERATE) and member.work:
            await asyncio.wait([member.work])
        leaves = (
            member.consumer.__aexit__(None, None, None) if kind is ConsumerKind.BATCH else member.consumer.shutdown()
        )
        await member.process.start(self._guard(leaves))
        if kind is ConsumerKind.ITERATE and member.work:  # which ends with its consumer
            await asyncio.wait([member.work])
        self.world.note(member.name, "has stopped")
        self.history.gone(member.name)
        self.world.network.end(member.process)
        member.process.kill()

    def _kill_member(self, member: GroupMember, *, silently: bool = False) -> None:
        member.is_up = False
        self.world.kill(member.process, silently=silently)
        self.history.gone(member.name)
        self.members.remove(member)

    # Producers

    def _start_producer(self, name: str, topic: str) -> None:
        chance = self._chance
        self.outcome.clients += 1
        process = self.world.process(name, self._host(4))
        options = ProducerOptions(
            instance_name=name,
            send_latency_fault_enable=chance.random() < 0.3,
            compress_msg_body_over_howmuch=chance.choice([16, 4096]),
            retry_another_broker_when_not_store_ok=chance.random() < 0.2,
            enable_backpressure_for_async_mode=chance.random() < 0.2,
        )
        addresses = [one.address for one in self.name_servers]
        clock = self.world.clock(chance.randint(-1000, 1000))
        lane = chance.choice([self._send_each, self._send_in_order, self._send_async, self._send_batches])
        producer: Producer
        if chance.random() < 0.25:
            bank = LocalTransactions(self)
            group = f"{name}-group"
            producer = process.context.run(lambda: TransactionProducer(group, bank, addresses, options, clock))
            lane = self._send_in_transactions
        else:
            producer = process.context.run(lambda: Producer(f"{name}-group", addresses, options, clock))
        pause_s = chance.choice([0.5, 1.0, 3.0])

        async def live() -> None:
            await producer.start()
            numbers = iter(range(sys.maxsize))
            while not self._is_quiet:
                await lane(producer, name, topic, numbers)
                await asyncio.sleep(chance.expovariate(1 / pause_s))
            if not isinstance(producer, TransactionProducer):  # that one may still be asked
                await producer.shutdown()

        self._must_end.append(process.start(self._guard(live())))

    def _new(
        self, lane: str, topic: str, number: int, *, may_be_poison: bool = False
    ) -> tuple[ProducedMessage, ProducerMessage]:
        chance = self._chance
        is_poison = may_be_poison and chance.random() < 0.02
        body = f"{topic} {lane} {number}{' poison' if is_poison else ''}"
        tag = chance.choice(TAGS)
        sent = self.history.sent[body] = ProducedMessage(body, topic, tag, lane, number, is_poison)
        return sent, ProducerMessage(topic, body.encode(), tags=tag, keys=lane)

    def _acknowledge(self, sent: ProducedMessage, result: SendResult, *, has_place: bool = True) -> None:
        sent.is_acknowledged = True
        if has_place:
            sent.place = (result.queue, result.queue_offset)
        self.world.note(sent.lane, f"has sent {sent.body} to {result.queue.broker_name} {result.queue.queue_id}")

    async def _send_each(self, producer: Producer, lane: str, topic: str, numbers: Iterator[int]) -> None:
        sent, message = self._new(lane, topic, next(numbers), may_be_poison=True)
        kind = self._chance.random()
        if kind < 0.05:
            message.delay_level = self._chance.randint(1, 3)
            sent.not_before_s = self.loop.time() + (1, 5, 10)[message.delay_level - 1]
        elif kind < 0.1:
            message.delay_ms = self._chance.randint(1, 20_000)
            sent.not_before_s = self.loop.time() + message.delay_ms // 1000
        try:
            if 0.1 < kind < 0.15:
                await producer.send_oneway(message)
                return
            result = await producer.send(message)
        except MqtoolError as error:
            self.world.note(lane, f"cannot send {sent.body}: {error}")
        else:
            if result.status is SendStatus.SEND_OK:
                self._acknowledge(sent, result, has_place=not message.is_delayed)

    async def _send_in_order(self, producer: Producer, lane: str, topic: str, numbers: Iterator[int]) -> None:
        sent, message = self._new(lane, topic, next(numbers))
        while not sent.is_acknowledged:
            try:
                result = await producer.send(message, selector=select_by_hash, arg=lane)
                self._acknowledge(sent, result)
            except MqtoolError as error:
                self.world.note(lane, f"cannot send {sent.body}: {error}")
                await asyncio.sleep(0.5)

    async def _send_async(self, producer: Producer, lane: str, topic: str, numbers: Iterator[int]) -> None:
        new = [self._new(lane, topic, next(numbers), may_be_poison=True) for _ in range(self._chance.randint(1, 5))]
        tasks = [await producer.send_async(message) for _, message in new]
        for (sent, _), result in zip(new, await asyncio.gather(*tasks, return_exceptions=True), strict=True):
            if isinstance(result, MqtoolError):
                self.world.note(lane, f"cannot send {sent.body}: {result}")
            elif isinstance(result, BaseException):
                raise result
            elif result.status is SendStatus.SEND_OK:
                self._acknowledge(sent, result)

    async def _send_batches(self, producer: Producer, lane: str, topic: str, numbers: Iterator[int]) -> None:
        new = [self._new(lane, topic, next(numbers)) for _ in range(self._chance.randint(1, 5))]
        try:
            results = await producer.send_batch([message for _, message in new])
        except MqtoolError as error:
            self.world.note(lane, f"cannot send {len(new)} messages: {error}")
            return
        for sent, _ in new:
            self._acknowledge(sent, results[0], has_place=False)

    async def _send_in_transactions(self, producer: Producer, lane: str, topic: str, numbers: Iterator[int]) -> None:
        assert isinstance(producer, TransactionProducer)
        sent, message = self._new(lane, topic, next(numbers))
        sent.is_rolled_back = self._chance.random() < 0.3
        try:
            await producer.send_in_transaction(message, sent)
        except MqtoolError as error:
            self.world.note(lane, f"cannot send {sent.body}: {error}")

    # Faults

    def _disturb(self) -> list[Any]:
        """Return what disturbs this simulation; few of them have all kinds of faults."""
        chance = self._chance
        faults = [
            self._restart_brokers,
            self._restart_name_servers,
            self._cut_connections,
            self._cut_lines,
            self._slow_lines,
            self._stall_processes,
            self._change_members,
        ]
        kept = [fault for fault in faults if chance.random() < 0.4]
        self.world.note("world", f"faults: {[fault.__name__[1:] for fault in kept]}")
        return [fault(chance.choice([3.0, 10.0, 30.0])) for fault in kept]

    async def _wait(self, mean_s: float) -> None:
        await asyncio.sleep(self._chance.expovariate(1 / mean_s))

    def _count(self, fault: str) -> None:
        self.outcome.faults[fault] += 1
        if fault in ("broker", "line", "stall"):
            self.history.last_fault_s = self.loop.time()

    async def _restart_brokers(self, mean_s: float) -> None:
        await self._restart(self.brokers, mean_s, "broker")

    async def _restart_name_servers(self, mean_s: float) -> None:
        await self._restart(self.name_servers, mean_s, "name server")

    async def _restart(self, servers: Sequence[Server], mean_s: float, kind: str) -> None:
        chance = self._chance
        while True:
            await self._wait(mean_s)
            up = [one for one in servers if one.is_up]
            if not up:
                continue
            server = chance.choice(up)
            self._count(kind)
            how = chance.random()
            if how < 0.3:
                self._keep(self._stop_and_start(server))
            else:
                server.kill(silently=how > 0.8)
                self._keep(self._start_again(server))

    def _keep(self, work: Any) -> None:
        self._must_end.append(asyncio.ensure_future(self._guard(work)))

    async def _stop_and_start(self, server: Server) -> None:
        await server.stop()
        await self._start_again(server)

    async def _start_again(self, server: Server) -> None:
        await asyncio.sleep(min(self._chance.expovariate(1 / 8), 60))
        await server.start()
        self.history.last_fault_s = self.loop.time()

    async def _cut_connections(self, mean_s: float) -> None:
        chance, network = self._chance, self.world.network
        while True:
            await self._wait(mean_s)
            streams = [one for one in network.opened if not one.is_gone]
            for stream in chance.sample(streams, min(len(streams), chance.randint(1, 5))):
                self._count("connection")
                self.world.note(stream.process.name, f"loses its connection with {stream.other.process.name}")
                network.cut(stream, one_end=chance.random() < 0.3)

    def _hosts_at_work(self) -> list[str]:
        return sorted({one.host for one in self.world.processes if not one.is_dead})

    async def _cut_lines(self, mean_s: float) -> None:
        chance, network = self._chance, self.world.network
        while True:
            await self._wait(mean_s)
            self._count("line")
            hosts = self._hosts_at_work()
            seconds = min(chance.expovariate(1 / 15), 90)
            if chance.random() < 0.3:
                host = chance.choice(hosts)
                self.world.note("world", f"{host} is cut off for {seconds:.1f} s")
                network.cut_off.add(host)
                self._keep(self._later(seconds, partial(network.cut_off.discard, host)))
            else:
                source, target = chance.sample(hosts, 2)
                both = chance.random() < 0.7
                self.world.note("world", f"nothing passes from {source} to {target} for {seconds:.1f} s, {both=}")
                pairs = [(source, target), (target, source)][: 1 + both]
                for pair in pairs:
                    network.lines[pair] = Line(is_cut=True)
                self._keep(self._later(seconds, partial(self._repair_lines, pairs)))

    async def _later(self, seconds: float, repair: Callable[[], Any]) -> None:
        await asyncio.sleep(seconds)
        repair()
        self.history.last_fault_s = self.loop.time()
        self.world.network.changed()

    def _repair_lines(self, pairs: Sequence[tuple[str, str]]) -> None:
        for pair in pairs:
            self.world.network.lines.pop(pair, None)

    async def _slow_lines(self, mean_s: float) -> None:
        chance, network = self._chance, self.world.network
        while True:
            await self._wait(mean_s)
            self._count("slow line")
            source, target = chance.sample(self._hosts_at_work(), 2)
            pairs = [(source, target), (target, source)][: chance.randint(1, 2)]
            for pair in pairs:
                network.lines[pair] = Line(chance.choice([0.2, 1.0, 2.5]), chance.choice([0.1, 1.0]), 0.1)
            self._keep(self._later(chance.uniform(1, 40), partial(self._repair_lines, pairs)))

    async def _stall_processes(self, mean_s: float) -> None:
        chance = self._chance
        while True:
            await self._wait(mean_s)
            self._count("stall")
            alive = [one for one in self.world.processes if not one.is_dead]
            seconds = chance.choice([0.5, 4.0, 20.0, 70.0])
            self.world.stall(chance.choice(alive), seconds)
            self._keep(self._later(seconds, lambda: None))

    async def _change_members(self, mean_s: float) -> None:
        chance = self._chance
        while True:
            await self._wait(mean_s)
            group = chance.choice(self.groups)
            self._count(f"member, {group.kind.value}")
            members = [one for one in self.members if one.group is group]
            how = chance.random()
            if group.is_fixed:  # a member comes back as the one that it was
                if members and how < 0.4:
                    member = chance.choice(members)
                    self._kill_member(member, silently=how < 0.1)
                    self._start_member(group, member.place, member.process.host)
                elif members and how < 0.8:
                    self._keep(self._restart_member(chance.choice(members)))
                continue
            if not members or (how < 0.35 and len(members) < 8):
                self._start_member(group, len(members), self._host(3))
            elif how < 0.7:
                self._kill_member(chance.choice(members), silently=how > 0.6)
            else:
                self._keep(self._stop_member(chance.choice(members)))

    async def _restart_member(self, member: GroupMember) -> None:
        await self._stop_member(member)
        self._start_member(member.group, member.place, member.process.host)

    # Watching

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            for broker in self.brokers:
                if broker.is_up:
                    self._check_offsets(broker)

    def _check_offsets(self, broker: BrokerHost) -> None:
        """Hold what groups have committed against what their listeners have finished."""
        offsets = broker.rules.offsets
        for group in self.groups:
            if group.kind in (ConsumerKind.POP, *TO_ALL):
                continue
            for topic in (*group.history.topics, RETRY_PREFIX + group.name):
                for queue_id, offset in offsets.of(group.name, topic).items():
                    queue = MessageQueue(topic, broker.name, queue_id)
                    self.history.check_below(group.history, queue, offset, "committed")

    def _is_unwanted(self, queue: MessageQueue, offset: int, group: GroupHistory) -> bool | None:
        if not group.tags:
            return False
        [broker] = [one for one in self.brokers if one.name == queue.broker_name]
        if not broker.is_up:
            return None
        store = broker.rules.store
        found = store.queue(queue.topic, queue.queue_id)
        assert found is not None
        [unit] = found.units(offset, 1)
        message = parse_stored(store.log.record(unit.physical_offset)).message
        return parse_properties(message.properties).get("TAGS") not in group.tags

    # Quiet

    async def _make_quiet(self) -> None:
        """Have all faults end, and producers finish."""
        self.world.note("world", "from now on there are no faults")
        self._is_quiet = True
        network = self.world.network
        network.lines.clear()
        network.cut_off.clear()
        network.default = Line()
        network.changed()
        # What was to start again does, who was to stop has stopped, and producers end with what they are at.
        _, left = await asyncio.wait(self._must_end, timeout=SETTLE_S)
        if left:
            raise ViolationError(f"{SETTLE_S} s after the last fault there has not ended {[*map(_where, left)]}")
        for group in self.groups:
            members = [one for one in self.members if one.group is group]
            if not members:
                self._start_member(group, 0, self._host(3))

    async def _settle(self) -> None:
        """Wait until all is consumed and shared out, and stays so."""
        end = self.loop.time() + SETTLE_S
        settled = 0
        while settled < 3:
            await asyncio.sleep(_LOOK_S)
            left = self._left()
            settled = 0 if left else settled + 1
            if left and self.loop.time() > end:
                raise ViolationError(f"after {SETTLE_S} s without faults: {left}")
        self.world.note("world", "all is settled")

    def _left(self) -> str:
        """Return what is still to be done."""
        for member in self.members:
            if not member.is_up:
                return f"{member.name} has not started"
        for group in self.groups:
            history = group.history
            members = [one for one in self.members if one.group is group]
            for member in members if group.kind in TO_ALL else ():
                places = f"{group.name}-{member.place}-"
                got = {body for body, by in history.consumed_by.items() if any(one.startswith(places) for one in by)}
                if missing := [one.body for one in self.history.missing(history) if one.body not in got]:
                    return f"{member.name} has not got {missing[:5]}"
            if missing := [one.body for one in self.history.missing(history)]:
                return f"{group.name} has not consumed {len(missing)} messages, {missing[:5]}"
            if bad := [one.body for one in self.history.poison(history) if one.body not in history.given_up]:
                return f"{group.name} has not given up {bad[:5]}"
            if group.kind not in (ConsumerKind.POP, *TO_ALL) and (left := self._left_of_queues(group, members)):
                return left
        return ""

    def _left_of_queues(self, group: SimulatedGroup, members: list[GroupMember]) -> str:
        owners: dict[MessageQueue, list[str]] = {}
        for member in members:
            held = self._of_place(group, member.place) if group.kind is ConsumerKind.PULL else member.consumer._held
            for queue in sorted(held):
                owners.setdefault(queue, []).append(member.name)
        topics = [*group.history.topics]
        if group.kind in PUSHED:
            topics.append(RETRY_PREFIX + group.name)
        for broker in self.brokers:
            for topic in topics:
                config = broker.rules.topics.get(topic)
                for queue_id in range(config.read_queue_count if config else 0):
                    queue = MessageQueue(topic, broker.name, queue_id)
                    if len(owners.get(queue, ())) != 1:
                        return f"{queue} of {group.name} belongs to {owners.get(queue, 'nobody')}"
                    found = broker.rules.store.queue(topic, queue_id)
                    end = found.next_offset if found else 0
                    committed = broker.rules.offsets.get(group.name, topic, queue_id)
                    if group.kind not in PUSHED:  # who say nothing of what they are not given
                        committed = max(0, committed)
                        while committed < end and self._is_unwanted(queue, committed, group.history):
                            committed += 1
                    if end and committed != end:
                        return f"{group.name} has committed {committed} of {end} of {queue}"
        return ""

    # The end

    async def _end(self) -> None:
        for member in [*self.members]:
            await self._stop_member(member)
        for server in (*self.brokers, *self.name_servers):
            await server.stop()
        readers = {broker.name: StoreReader(broker.store, StoreConfig(STORE_SETTINGS)) for broker in self.brokers}
        letters: set[tuple[str, str]] = set()
        at: dict[tuple[str, str, int, int], str] = {}
        for name, reader in readers.items():
            wrong = [one for one in verify_store(reader) if one.severity != Severity.NOTE]
            if wrong:
                raise ViolationError(f"the store of {name}: {wrong[:3]}")
            for message in reader.messages():
                body = decompress(message.body, message.sys_flag).decode("utf-8", "replace")
                at[message.topic, name, message.queue_id, message.queue_offset] = body
                if message.topic.startswith(DEAD_LETTER_PREFIX):
                    letters.add((message.topic, body))
        for sent in self.history.sent.values():
            if sent.place:
                queue, offset = sent.place
                stored = at.get((queue.topic, queue.broker_name, queue.queue_id, offset))
                if stored != sent.body:
                    raise ViolationError(f"{sent.body} was acknowledged at {queue} {offset}, where {stored} is")
        for group in self.groups:
            for sent in self.history.poison(group.history):
                if (DEAD_LETTER_PREFIX + group.name, sent.body) not in letters:
                    raise ViolationError(f"{sent.body} failed too often in {group.name}, and is no dead letter")


def _where(task: asyncio.Task[None]) -> str:
    """Return what a task waits in."""
    names: list[str] = []
    at: Any = task.get_coro()
    while hasattr(at, "cr_await"):
        names.append(at.cr_code.co_qualname)
        at = at.cr_await
    return " > ".join(names)


class ListenerError(Exception):
    """What listeners raise now and then."""


class LocalTransactions:
    """The local side of transactions: each ends as its message says, or is not decided at once."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario

    async def execute_local_transaction(self, message: ProducerMessage, sent: ProducedMessage) -> TransactionState:  # noqa: ARG002
        """Decide, or not."""
        scenario = self._scenario
        sent.is_acknowledged = True
        scenario.world.note(sent.lane, f"has prepared {sent.body}")
        if scenario._chance.random() < 0.2:
            return TransactionState.UNKNOWN
        return _state_of(sent)

    async def check_local_transaction(self, message: ConsumerMessage) -> TransactionState:
        """Tell how it ended."""
        sent = self._scenario.history.sent[message.body.decode()]
        sent.is_acknowledged = True
        return _state_of(sent)


def _state_of(sent: ProducedMessage) -> TransactionState:
    return TransactionState.ROLLBACK if sent.is_rolled_back else TransactionState.COMMIT


class _Faults(logging.Handler):
    """Takes what our own code logs as a fault."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.faults: list[str] = []

    def take(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take what an event loop complains of."""
        error = context.get("exception")
        self.faults.append(f"{context['message']}\n{_trace(error)}")

    def emit(self, record: logging.LogRecord) -> None:
        """Take one."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, ListenerError):
            self.faults.append(f"{record.getMessage()}\n{_trace(error)}")


def _trace(error: BaseException | None) -> str:
    return "".join(traceback.format_exception(error)) if error else ""


def run_seed(
    seed: int, folder: Path, size: Size | None = None, on_note: Callable[[str], None] | None = None
) -> SimulationOutcome:
    """Run the simulation of a seed in an empty folder."""
    outcome: SimulationOutcome = simulate(
        seed, lambda loop: Scenario(seed, folder, loop, size or Size(), on_note).run()
    )
    return outcome
