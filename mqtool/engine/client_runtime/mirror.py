"""A mirror: copies the messages of topics to another cluster, each once, for as long as it runs.

Each queue of the source has its own task, with one batch in flight at a time. Its progress is committed for a group of
the source. Messages copied after the last commit are searched for in the target queue, backwards from its end, before
anything is copied again: after a kill, and after every send without an answer.

Cost: a pull and a send for up to 32 messages; for a queue that is resumed, a look at the end of its copies.
"""

import asyncio
import contextlib
import os
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from mqtool.engine.client import calls, mirroring, sending
from mqtool.engine.client.calls import PulledRecords
from mqtool.engine.client.mirroring import Hop, MirroredMessage, OffsetMap
from mqtool.engine.client.routes import masters, writable_queues
from mqtool.engine.client_runtime.admin_client import AdminClient
from mqtool.engine.client_runtime.admin_queries import MasterBroker
from mqtool.engine.client_runtime.wire import together
from mqtool.errors import (
    IllegalMessageError,
    MqtoolError,
    NotFoundError,
    StoreInUseError,
    UnavailableError,
    UnknownTopicError,
    UsageError,
)
from mqtool.formats.bodies import ConsumerData, Heartbeat, MessageQueue, Subscription
from mqtool.formats.codes import Perm, ResponseCode
from mqtool.formats.config_tables import TopicConfig
from mqtool.formats.inner_batch import messages_of
from mqtool.formats.message import Message
from mqtool.formats.topics import SYSTEM_GROUP_PREFIXES

Place = tuple[str, int]
"""A broker of the target and a queue id there."""

_AT_ONCE = 32
_LEAST_WAIT_S, _MAX_WAIT_S = 0.02, 0.5  # between two pulls of a queue without new messages
_AFTER_FAILURE_S = 1.0
_COMMIT_S = 1.0
_LOOK_S = 5.0  # for new topics and queues, and for committed offsets of groups
_HEARTBEAT_S = 20.0
_TICK_S = 0.1
_KNOWN_S = 10.0  # until name servers know a new topic
_DISPATCHED_S = 3.0
_LEAVE_S = 3.0
_JOIN_S = 3.0  # in which a broker notices that an earlier mirror is gone
_CLOCKS_DIFFER_MS = 600_000
_MAX_LOOKED_AT = 1_000  # after the first copy that is found
_TRY_AGAIN = frozenset(sending.RETRY_CODES) - {ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NO_PERMISSION}


class TopicPlan(NamedTuple):
    """What will be done for a topic.

    ``target_queue_count`` is 0 if the target does not have it yet; ``lag`` is the number of messages to copy.
    """

    topic: str
    source_queue_count: int
    target_queue_count: int
    is_begun: bool
    lag: int


class NotMirrored(NamedTuple):
    """A message that could not be copied, or several that the source no longer has."""

    queue: MessageQueue
    queue_offset: int
    messages: int
    reason: str


@dataclass
class MirrorProgress:
    """The outcome for the messages of one topic."""

    copied: int = 0
    skipped: int = 0  # because they came from the target
    lost: int = 0  # reported as ``NotMirrored``
    lag: int = 0


@dataclass
class _SourceQueue:
    """One queue of the source."""

    queue: MessageQueue
    address: str
    brokers: list[str]  # that have the topic
    at: int = -1  # what is copied next, -1 if unknown yet
    end: int = 0
    committed: int | None = None
    is_begun: bool = False  # something was copied or committed, perhaps of a topic deleted since
    of_topic_before: int = -1  # store time up to which copies are of a topic that was recreated since
    last_timestamp: int = 0  # store time at the source of the last copied message
    target: MessageQueue | None = None
    target_address: str = ""
    others: list[tuple[MessageQueue, str]] = field(default_factory=list)
    """Former target queues, from before a broker joined or left either cluster, with their addresses."""
    is_waiting: bool = False  # for a server
    offsets: OffsetMap = field(default_factory=OffsetMap)


class _Copies(NamedTuple):
    """The copies that the target has of a queue of the source."""

    last: tuple[Hop, int | None] | None
    """The last copy, and its offset if it is where copies go now."""
    before: int
    """The highest offset among copies of a topic that was recreated since, -1 if there are none."""


class Mirror:
    """Copies topics from one cluster to another, with two running admin clients."""

    def __init__(
        self,
        source: AdminClient,
        target: AdminClient,
        source_cluster: str,
        target_cluster: str,
        is_wanted: Callable[[str], bool],
        *,
        begin: "str | int" = "first",
        takes_group: Callable[[str], bool] = lambda _: True,
        tell: Callable[[str], None] = lambda _: None,
        refused: Callable[[NotMirrored], None] = lambda _: None,
    ) -> None:
        """Create a mirror.

        Args:
            source: a client of the source cluster.
            target: a client of the target cluster.
            source_cluster: the name of the source in copies.
            target_cluster: the name by which a message is recognized that has been at the target.
            is_wanted: which topics of applications to copy.
            begin: ``first``, ``last`` or a time (ms), for queues that no mirror has started; later topics: the first.
            takes_group: the groups whose offsets are copied, too.
            tell: is called with messages for users.
            refused: is called with each message that cannot be copied.
        """
        self.group = mirroring.progress_group(target_cluster)
        self.progress: dict[str, MirrorProgress] = {}
        self._source = source
        self._target = target
        self._source_cluster = source_cluster
        self._target_cluster = target_cluster
        self._is_wanted = is_wanted
        self._begin = begin
        self._takes_group = takes_group
        self._tell = tell
        self._refused = refused
        self._client_id = f"mqtool-mirror@{os.getpid()}#{secrets.token_hex(4)}"
        self._lanes: dict[MessageQueue, _SourceQueue] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._outages: dict[str, str] = {}  # by address, what could not be done
        self._translated: dict[tuple[str, str, Place], int] = {}
        self._moved_at = 0.0

    # The plan

    async def known_topics(self) -> set[str]:
        """Return the topics of applications that the source has."""
        answers = await self._source.ask_each(await self._source.masters(), calls.topic_configs)
        names = [broker.broker_name for broker, _ in answers]
        return {
            topic
            for broker, configs in answers
            for topic in configs
            if mirroring.is_mirrored(topic, broker.cluster, names)
        }

    async def topics(self) -> dict[str, dict[MasterBroker, TopicConfig]]:
        """Return the topics of the source that are wanted, by broker."""
        answers = await self._source.ask_each(await self._source.masters(), calls.topic_configs)
        names = [broker.broker_name for broker, _ in answers]
        configs_by_topic: dict[str, dict[MasterBroker, TopicConfig]] = {}
        for broker, configs in answers:
            for topic, config in configs.items():
                if (
                    self._is_wanted(topic)
                    and mirroring.is_mirrored(topic, broker.cluster, names)
                    and config.perm & Perm.READ
                ):
                    configs_by_topic.setdefault(topic, {})[broker] = config
        return configs_by_topic

    async def plan(self) -> list[TopicPlan]:
        """Return the state at the start of a run, topic by topic."""
        configs_by_topic = await self.topics()
        target_counts = await self._target_configs()
        committed = await self._committed()
        ends: dict[str, dict[MessageQueue, tuple[int, int]]] = {topic: {} for topic in configs_by_topic}
        if configs_by_topic:
            for topic, name, queue_id, low, high, _ in await self._source.topic_queues(*sorted(configs_by_topic)):
                ends[topic][MessageQueue(topic, name, queue_id)] = low, high
        plans = []
        for topic, configs in sorted(configs_by_topic.items()):
            queues = {queue: ends[topic].get(queue, (0, 0)) for queue in _queues_of(topic, configs)}
            is_begun = any(queue in committed for queue in queues)
            lag = sum(
                max(high - max(committed[queue], low), 0)
                if queue in committed
                else high - low
                if self._begin == "first"
                else 0
                for queue, (low, high) in queues.items()
            )
            plans.append(TopicPlan(topic, len(queues), target_counts.get(topic, 0), is_begun, lag))
        return plans

    async def _target_configs(self) -> Counter[str]:
        """Return how many queues each topic of the target has that may be written to."""
        counts: Counter[str] = Counter()
        for _, configs in await self._target.ask_each(await self._target.masters(), calls.topic_configs):
            for topic, config in configs.items():
                counts[topic] += config.write_queue_count if config.perm & Perm.WRITE else 0
        return counts

    async def _committed(self) -> dict[MessageQueue, int]:
        answers = await self._source.ask_each(await self._source.masters(), calls.consumer_offsets)
        return {
            MessageQueue(topic, broker.broker_name, queue_id): offset
            for broker, offsets in answers
            for (topic, group, queue_id), offset in offsets.items()
            if group == self.group
        }

    # Running

    async def run(self, idle_s: float | None = None, tick: Callable[[], None] = lambda: None) -> None:
        """Copy until cancelled, or until there was nothing left to copy for a while.

        Servers that cannot be reached are waited for.

        Raises:
            StoreInUseError: another mirror does the same.
            MqtoolError: a server refuses a necessary request.
        """
        await self._join()
        loop = asyncio.get_running_loop()
        self._moved_at = loop.time()
        due = {"commit": 0.0, "look": 0.0, "heartbeat": loop.time() + _HEARTBEAT_S}
        is_first = True
        try:
            while True:
                now = loop.time()
                if now >= due["look"]:
                    if is_first:
                        await self._look(self._begin)
                    else:
                        await self._patiently("look", self._look("first"))
                        await self._patiently("translate", self.translate())
                    due["look"], is_first = loop.time() + _LOOK_S, False
                if now >= due["heartbeat"]:
                    await self._patiently("heartbeat", self._heartbeat())
                    due["heartbeat"] = now + _HEARTBEAT_S
                if now >= due["commit"]:
                    await self._patiently("commit", self._commit())
                    due["commit"] = loop.time() + _COMMIT_S
                tick()
                if not self._is_caught_up():
                    self._moved_at = loop.time()
                if idle_s is not None and loop.time() - self._moved_at >= idle_s:
                    await self.translate()
                    return
                if self._tasks:
                    done, _ = await asyncio.wait(self._tasks, timeout=_TICK_S, return_when=asyncio.FIRST_EXCEPTION)
                    for task in done:
                        self._tasks.discard(task)
                        task.result()
                else:
                    await asyncio.sleep(_TICK_S)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            with contextlib.suppress(MqtoolError, TimeoutError):
                async with asyncio.timeout(_LEAVE_S):
                    await self._commit()
                    await self._leave()
            tick()

    def _is_caught_up(self) -> bool:
        for topic_progress in self.progress.values():
            topic_progress.lag = 0
        for lane in self._lanes.values():
            self.progress[lane.queue.topic].lag += max(lane.end - lane.at, 0) if lane.at >= 0 else 0
        return all(lane.at >= lane.end and lane.target and not lane.is_waiting for lane in self._lanes.values())

    async def _patiently(self, activity: str, work: Awaitable[None]) -> None:
        """Do work that can wait until servers answer again, and is repeated soon."""
        try:
            await work
        except NotFoundError:  # a topic or a group was just deleted
            pass
        except MqtoolError as error:
            if not _may_pass(error):
                raise
            self._tell_outage(error, activity)
        else:
            self._tell_return(*(address for address, missed in self._outages.items() if missed == activity))

    def _tell_outage(self, error: MqtoolError, activity: str = "copy") -> None:
        where = error.address or ""
        if where not in self._outages:
            self._outages[where] = activity
            self._tell(f"{error}; retrying")

    def _tell_return(self, *addresses: str) -> None:
        for address in sorted({*addresses} & self._outages.keys()):
            del self._outages[address]
            self._tell(f"{address} is answering again")

    # One mirror at a time

    async def _join(self) -> None:
        """Become the only consumer of this mirror's group."""
        brokers = await self._source.masters()
        names = await self._source.group_names()
        if self.group not in names:
            await self._source.create_group(self.group)
        end = asyncio.get_running_loop().time() + _JOIN_S
        while True:
            await self._heartbeat()
            answers = await self._source.ask_each(brokers, lambda: calls.members(self.group))
            other_ids = {member.client_id for _, members in answers if members for member in members.members} - {
                self._client_id
            }
            if not other_ids:
                return
            if asyncio.get_running_loop().time() >= end:
                await self._leave()
                raise StoreInUseError(
                    f"{', '.join(sorted(other_ids))} is already mirroring to {self._target_cluster}, as the group "
                    f"{self.group}: stop it first"
                )
            await asyncio.sleep(_TICK_S)

    async def _heartbeat(self) -> None:
        subscriptions = tuple(Subscription(topic, "*") for topic in self.progress)
        data = ConsumerData(self.group, "CONSUME_ACTIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET", subscriptions)
        heartbeat = Heartbeat(self._client_id, (), (data,))
        await self._source.ask_each(await self._source.masters(), lambda: calls.heartbeat(heartbeat))

    async def _leave(self) -> None:
        brokers = await self._source.masters()
        await self._source.ask_each(brokers, lambda: calls.unregister(self._client_id, "", self.group))

    # Topics and queues

    async def _look(self, begin: "str | int") -> None:
        """Start to follow new topics and queues."""
        configs_by_topic = await self.topics()
        new = [
            (queue, broker)
            for topic, configs in sorted(configs_by_topic.items())
            for queue, broker in _queues_of(topic, configs).items()
            if queue not in self._lanes
        ]
        if not new:
            return
        target_counts = await self._target_configs()
        for topic in sorted({queue.topic for queue, _ in new}):
            if not target_counts[topic]:
                count = max(config.read_queue_count for config in configs_by_topic[topic].values())
                await self._target.create_topic(topic, queues=count, perm="rw")
        committed = await self._committed()
        lanes = [
            _SourceQueue(queue, broker.address, sorted(broker.broker_name for broker in configs_by_topic[queue.topic]))
            for queue, broker in new
        ]
        await together(self._begin_with(lane, committed.get(lane.queue), begin) for lane in lanes)
        for lane in lanes:
            self._lanes[lane.queue] = lane
            self.progress.setdefault(lane.queue.topic, MirrorProgress())
            self._tasks.add(asyncio.create_task(self._follow(lane)))

    async def _begin_with(self, lane: _SourceQueue, committed: int | None, begin: "str | int") -> None:
        """Find where to continue in a queue; a start offset is committed before anything is copied."""
        ask, queue = self._source.request, lane.queue
        pulled = await ask(lane.address, calls.pull(queue.topic, queue.queue_id, committed or 0, 1))
        lane.end = pulled.max_offset
        if committed is None:
            if begin == "last":
                committed = pulled.max_offset
            elif begin == "first" or pulled.max_offset == 0:
                committed = pulled.min_offset
            else:
                committed = await ask(lane.address, calls.offset_from(queue.topic, queue.queue_id, int(begin)))
            await ask(lane.address, calls.set_offset(self.group, queue.topic, queue.queue_id, committed))
        else:
            lane.is_begun = True
        lane.at = lane.committed = committed

    async def _commit(self) -> None:
        async def commit(lane: _SourceQueue, at: int) -> None:
            call = calls.set_offset(self.group, lane.queue.topic, lane.queue.queue_id, at)
            with contextlib.suppress(NotFoundError):  # the topic is gone
                await self._source.request(lane.address, call)
            lane.committed = at

        await together(commit(lane, lane.at) for lane in self._lanes.values() if lane.at != lane.committed)

    # One queue

    async def _follow(self, lane: _SourceQueue) -> None:
        """Copy a queue, from where it was left off."""
        while True:
            try:
                await self._take_up(lane)
                await self._copy_on(lane)
            except UnknownTopicError as error:
                if error.address == lane.address:
                    self._tell(f"the topic {lane.queue.topic} no longer exists on {lane.queue.broker_name}")
                    del self._lanes[lane.queue]
                    return
                raise
            except MqtoolError as error:
                if not _may_pass(error):
                    raise
                lane.is_waiting = True
                self._tell_outage(error)
                await asyncio.sleep(_AFTER_FAILURE_S)

    async def _take_up(self, lane: _SourceQueue) -> None:
        """Find the target queue, and the copies that are already there although they were not committed."""
        target, lane.target_address = await self._target_of(lane)
        if target != lane.target:
            lane.target, lane.offsets = target, OffsetMap()
        low = await self._first_at(lane, 0)
        near = await self._first_at(lane, max(lane.at - 1, 0))
        if low is None:
            return
        copies = await self._last_copies(lane, low, (near or low).store_timestamp - _CLOCKS_DIFFER_MS)
        if lane.is_begun and copies.before >= lane.at - 1:  # copying had reached that offset in the former topic, too
            lane.at, lane.offsets = low.queue_offset, OffsetMap()
        if copies.last is None:
            return
        hop, target_offset = copies.last
        lane.last_timestamp = max(lane.last_timestamp, hop.store_timestamp)
        if hop.queue_offset >= lane.at:
            origin = await self._first_at(lane, hop.queue_offset)
            # If the source lost the end of a queue, other messages may have those offsets now.
            if origin is None or _is_at(origin, hop):
                lane.at = hop.queue_offset + 1
                if target_offset is not None:
                    lane.offsets.add(hop.queue_offset, target_offset)

    async def _target_of(self, lane: _SourceQueue) -> tuple[MessageQueue, str]:
        topic = lane.queue.topic
        end = asyncio.get_running_loop().time() + _KNOWN_S
        while True:
            route = await self._target.request_name_server(calls.route(topic))
            addresses = masters(route) if route else {}
            writable = (
                [queue for queue in writable_queues(route, topic) if queue.broker_name in addresses] if route else []
            )
            if writable:
                queue = mirroring.target_queue(lane.queue, lane.brokers, writable)
                of_brokers = [
                    [candidate for candidate in writable if candidate.broker_name == name] for name in addresses
                ]
                elsewhere = [
                    mirroring.target_queue(lane.queue, lane.brokers, candidates)
                    for candidates in of_brokers
                    if candidates
                ]
                lane.others = [
                    (candidate, addresses[candidate.broker_name]) for candidate in elsewhere if candidate != queue
                ]
                return queue, addresses[queue.broker_name]
            if asyncio.get_running_loop().time() >= end:
                if route and not masters(route):
                    raise UnavailableError(f"no master of {self._target_cluster} has the topic {topic}")
                raise NotFoundError(f"{self._target_cluster} has no writable queue of {topic}")
            await asyncio.sleep(_TICK_S)

    async def _first_at(self, lane: _SourceQueue, offset: int) -> Message | None:
        """Return the first message of the source at an offset or after it."""
        queue = lane.queue
        while True:
            pulled = await self._source.request(lane.address, calls.pull(queue.topic, queue.queue_id, offset, 1))
            for message, _ in messages_of(pulled.records):
                if message.queue_offset >= offset:
                    return message
            if not pulled.next_offset > offset:
                return None
            offset = pulled.next_offset

    async def _last_copies(self, lane: _SourceQueue, low: Message, since: int) -> _Copies:
        """Return the copies of a queue, given its first message; searches from the target's end back to a time (ms).

        Former target queues are searched only if the last committed copy is not in the current one.
        """
        assert lane.target
        copies = await self._last_copies_in(lane.target, lane.target_address, lane, low, since)
        if copies.last is None or copies.last[0].queue_offset < lane.at - 1:
            for queue, address in lane.others:
                other = await self._last_copies_in(queue, address, lane, low, since)
                if other.last and (copies.last is None or other.last[0].queue_offset > copies.last[0].queue_offset):
                    copies = copies._replace(last=(other.last[0], None))
                copies = copies._replace(before=max(copies.before, other.before))
        return copies

    async def _last_copies_in(
        self, target: MessageQueue, address: str, lane: _SourceQueue, low: Message, since: int
    ) -> _Copies:
        await self._until_dispatched(address)
        ends = (await self._target.request(address, calls.topic_queues(target.topic))).get(target.queue_id)
        best: tuple[Hop, int | None] | None = None
        before = -1
        looked_at = 0
        high = ends.max_offset if ends else 0
        while ends and high > ends.min_offset:
            start = max(high - _AT_ONCE, ends.min_offset)
            for message in await self._stretch(target, address, start, high):
                hop = mirroring.last_hop(message.properties)
                if hop and self._is_of(hop, lane):
                    if await self._is_of_topic_before(hop, lane, low):
                        before = max(before, hop.queue_offset)
                    elif best is None or hop.queue_offset > best[0].queue_offset:
                        best = hop, message.queue_offset
                looked_at += best is not None
                if message.store_timestamp < since:
                    high = 0
            if best and (best[0].queue_offset >= lane.at - 1 or looked_at >= _MAX_LOOKED_AT):
                break
            high = min(high, start)
        return _Copies(best, before)

    async def _is_of_topic_before(self, hop: Hop, lane: _SourceQueue, low: Message) -> bool:
        """Return whether a copy is of a topic that was recreated since; ``low`` is the first message of the new one.

        Copies stored before that are, unless a clock was set back: then the source still has the original.
        """
        if hop.queue_offset < low.queue_offset or hop.store_timestamp >= low.store_timestamp:
            return False
        if hop.store_timestamp > lane.of_topic_before:
            if _is_at(await self._first_at(lane, hop.queue_offset), hop):
                return False
            lane.of_topic_before = hop.store_timestamp
        return True

    def _is_of(self, hop: Hop, lane: _SourceQueue) -> bool:
        return hop.cluster == self._source_cluster and hop.queue == lane.queue

    async def _stretch(self, queue: MessageQueue, address: str, low: int, high: int) -> list[Message]:
        """Return the messages of a queue of the target between two offsets."""
        messages: list[Message] = []
        while low < high:
            pulled = await self._target.request(address, calls.pull(queue.topic, queue.queue_id, low, high - low))
            messages += [message for message, _ in messages_of(pulled.records) if low <= message.queue_offset < high]
            low = max(pulled.next_offset, low + 1)
        return messages

    async def _until_dispatched(self, address: str) -> None:
        """Wait until a broker has dispatched stored messages to its queues, where copies are searched for."""
        end = asyncio.get_running_loop().time() + _DISPATCHED_S
        while asyncio.get_running_loop().time() < end:
            info = await self._target.request(address, calls.runtime_info())
            if int(info.get("dispatchBehindBytes", "0")) <= 0:
                return
            await asyncio.sleep(_TICK_S)

    async def _copy_on(self, lane: _SourceQueue) -> None:
        wait = _LEAST_WAIT_S
        while True:
            queue = lane.queue
            pulled = await self._source.request(
                lane.address, calls.pull(queue.topic, queue.queue_id, lane.at, _AT_ONCE)
            )
            lane.end = pulled.max_offset
            if lane.is_waiting:
                lane.is_waiting = False
                self._tell_return(lane.address, lane.target_address)
            if messages := [message for message, _ in messages_of(pulled.records) if message.queue_offset >= lane.at]:
                await self._copy(lane, messages)
                wait = _LEAST_WAIT_S
            elif lane.at > pulled.max_offset:
                await self._begin_again(lane, pulled)
            elif pulled.next_offset > lane.at:
                self._passed_over(lane, pulled.next_offset)
            else:
                await asyncio.sleep(wait)
                wait = min(2 * wait, _MAX_WAIT_S)

    async def _begin_again(self, lane: _SourceQueue, pulled: PulledRecords) -> None:
        """Continue in a queue that ends before what was copied: its topic was recreated, or its broker lost the end."""
        first = await self._first_at(lane, pulled.min_offset)
        is_new = first is not None and first.store_timestamp > lane.last_timestamp
        lane.at = pulled.min_offset if is_new else pulled.max_offset
        lane.offsets = OffsetMap()
        self._tell(
            f"queue {lane.queue.queue_id} of {lane.queue.topic} on {lane.queue.broker_name} ends before what was "
            f"copied: continuing at {lane.at:,}"
        )

    def _passed_over(self, lane: _SourceQueue, offset: int) -> None:
        """Report messages that the source no longer has."""
        count = offset - lane.at
        self.progress[lane.queue.topic].lost += count
        self._refused(NotMirrored(lane.queue, lane.at, count, "the source deleted them before they were copied"))
        lane.at = offset

    async def _copy(self, lane: _SourceQueue, messages: Iterable[Message]) -> None:
        """Copy messages in order; ``lane.at`` is the offset after the last one done."""
        copies: list[MirroredMessage] = []
        progress = self.progress[lane.queue.topic]
        expected = lane.at
        for message in messages:
            offset = message.queue_offset
            copied: MirroredMessage | None = None
            refusal = ""
            if self._target_cluster in mirroring.clusters_of(message.properties):
                progress.skipped += 1
            else:
                try:
                    copied = mirroring.copy_of(message, self._source_cluster, lane.queue.broker_name)
                except UsageError as error:
                    refusal = str(error)
            if offset > expected or refusal:
                await self._send_all(lane, copies)
                copies = []
                lane.at = max(lane.at, expected)
                if offset > lane.at:
                    self._passed_over(lane, offset)
                if refusal:
                    self._refuse(lane, offset, refusal)
            if copied:
                copies.append(copied)
            expected = offset + 1
        last = max(messages, key=lambda message: message.queue_offset)
        await self._send_all(lane, copies)
        lane.at = expected
        lane.last_timestamp = last.store_timestamp

    def _refuse(self, lane: _SourceQueue, offset: int, reason: str) -> None:
        self.progress[lane.queue.topic].lost += 1
        self._refused(NotMirrored(lane.queue, offset, 1, reason))
        lane.at = offset + 1

    async def _send_all(self, lane: _SourceQueue, copies: Iterable[MirroredMessage]) -> None:
        for batch in mirroring.in_requests(copies):
            try:
                await self._send(lane, batch)
            except IllegalMessageError as error:
                for copy in batch:  # nothing shows which of them it is
                    try:
                        await self._send(lane, [copy])
                    except IllegalMessageError:
                        self._refuse(lane, copy.queue_offset, str(error))

    async def _send(self, lane: _SourceQueue, copies: list[MirroredMessage]) -> None:
        assert lane.target
        packed, born = mirroring.pack_copies(copies, lane.target.topic)
        call = sending.send(packed, lane.target, self.group, born, 1)
        sent = await self._target.request(lane.target_address, call)
        for number, copy in enumerate(copies):
            lane.offsets.add(copy.queue_offset, sent.queue_offset + number)
        lane.at, lane.is_begun = copies[-1].queue_offset + 1, True
        self.progress[lane.queue.topic].copied += len(copies)

    # Offsets of groups

    async def translate(self) -> None:
        """Advance the offsets of groups at the target to those at the source, unless a consumer is online there.

        A group continues after the copy of the last message that it has consumed; if several queues are copied to
        one, the lowest counts.
        """
        wanted = await self._positions()
        if not wanted:
            return
        groups = {group_name for group_name, _, _ in wanted}
        tables = await self._source.ask_each(await self._source.masters(), calls.groups)
        settings = {name: table for _, of_broker in tables for name, table in of_broker.items()}
        for broker in await self._target.masters():
            mine = {key: at for key, at in wanted.items() if key[2][0] == broker.broker_name}
            held = await self._target.request(broker.address, calls.consumer_offsets())
            known = await self._target.request(broker.address, calls.groups())
            for group in sorted(groups & {group_name for group_name, _, _ in mine}):
                if await self._target.request(broker.address, calls.members(group)) is not None:
                    continue  # it is consumed there, and has its own position
                if group not in known and group in settings:
                    await self._target.request(broker.address, calls.put_group(settings[group]))
                for key, at in mine.items():
                    of, topic, (_, queue_id) = key
                    if of == group and held.get((topic, group, queue_id), -1) < at:
                        call = calls.set_offset(group, topic, queue_id, at)
                        await self._target.request(broker.address, call)
                    if of == group:
                        self._translated[key] = at

    async def _positions(self) -> dict[tuple[str, str, Place], int]:
        """Return new positions of groups at the target, by group, topic and queue there."""
        answers = await self._source.ask_each(await self._source.masters(), calls.consumer_offsets)
        offsets: dict[tuple[str, str], dict[MessageQueue, int]] = {}
        for broker, broker_offsets in answers:
            for (topic, group, queue_id), offset in broker_offsets.items():
                if topic in self.progress and self._goes_along(group):
                    queue = MessageQueue(topic, broker.broker_name, queue_id)
                    offsets.setdefault((group, topic), {})[queue] = offset
        positions: dict[tuple[str, str, Place], int] = {}
        for (group, topic), committed in sorted(offsets.items()):
            lanes = [lane for lane in self._lanes.values() if lane.queue.topic == topic and lane.target]
            for place, of_place in _by_place(lanes).items():
                translated = [await self._translated_of(lane, committed.get(lane.queue)) for lane in of_place]
                known = [position for position in translated if position is not None]
                if known and min(known) >= 0 and self._translated.get((group, topic, place)) != min(known):
                    positions[group, topic, place] = min(known)
        return positions

    def _goes_along(self, group: str) -> bool:
        return not mirroring.is_progress_group(group) and not _is_system_group(group) and self._takes_group(group)

    async def _translated_of(self, lane: _SourceQueue, offset: int | None) -> int | None:
        """Return the target offset for a group's offset in a queue.

        None if nothing of the queue was copied, -1 if it cannot be determined.
        """
        if lane.end == 0:
            return None
        if offset is None:
            return -1
        offset = min(offset, lane.at)
        known = lane.offsets.behind(offset)
        return await self._searched(lane, offset) if known is None else known

    async def _searched(self, lane: _SourceQueue, offset: int) -> int | None:
        """Search for an offset in the copies themselves, which are in the order of their originals."""
        assert lane.target
        ends = (await self._target.request(lane.target_address, calls.topic_queues(lane.target.topic))).get(
            lane.target.queue_id
        )
        low, high = (ends.min_offset, ends.max_offset) if ends else (0, 0)
        behind: int | None = None
        first: int | None = None
        while low < high:
            middle = (low + high) // 2
            first_copy = await self._first_copy(lane, middle, high)
            if first_copy is None:
                high = middle
            elif first_copy[0] < offset:
                low = behind = first_copy[1] + 1
            else:
                high, first = middle, first_copy[1]
        return first if behind is None else behind

    async def _first_copy(self, lane: _SourceQueue, low: int, high: int) -> tuple[int, int] | None:
        """Return the first copy of a queue between two offsets of the target: its offsets at the source and there."""
        assert lane.target
        while low < high:
            for message in await self._stretch(lane.target, lane.target_address, low, min(low + _AT_ONCE, high)):
                hop = mirroring.last_hop(message.properties)
                if hop and self._is_of(hop, lane):
                    return hop.queue_offset, message.queue_offset
            low += _AT_ONCE
        return None


def _queues_of(topic: str, configs: dict[MasterBroker, TopicConfig]) -> dict[MessageQueue, MasterBroker]:
    return {
        MessageQueue(topic, broker.broker_name, queue_id): broker
        for broker, config in configs.items()
        for queue_id in range(config.read_queue_count)
    }


def _by_place(lanes: Collection[_SourceQueue]) -> dict[Place, list[_SourceQueue]]:
    places: dict[Place, list[_SourceQueue]] = {}
    for lane in lanes:
        assert lane.target
        places.setdefault((lane.target.broker_name, lane.target.queue_id), []).append(lane)
    return places


def _is_system_group(group: str) -> bool:
    return group.startswith(SYSTEM_GROUP_PREFIXES)


def _may_pass(error: MqtoolError) -> bool:
    """Return whether a retry may succeed later: a server is away, starting, stopping, or full."""
    return error.retriable or error.code in _TRY_AGAIN


def _is_at(message: Message | None, hop: Hop) -> bool:
    """Return whether a message of the source is the one at a place; False for None."""
    return message is not None and (message.queue_offset, message.store_timestamp) == (
        hop.queue_offset,
        hop.store_timestamp,
    )
