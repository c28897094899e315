"""Queries of administrators, for asyncio: topics, groups, offsets, and the brokers themselves.

Cost: every call queries each registered master, sixteen requests at a time; nothing is cached between calls.
"""

import difflib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from mqtool.engine.client import calls
from mqtool.engine.client.calls import Call, Members
from mqtool.engine.client.routes import MASTER
from mqtool.engine.client_runtime.client import Running
from mqtool.engine.client_runtime.given_options import options_of
from mqtool.engine.client_runtime.instance import ClientOptions, wire_of
from mqtool.engine.client_runtime.wire import ANSWER_MS, Wire, together
from mqtool.errors import MqtoolError, NotFoundError, UnavailableError, UsageError
from mqtool.formats.bodies import MessageQueue
from mqtool.formats.config_tables import SubscriptionGroup, TopicConfig, subscription_groups
from mqtool.formats.pulsar_subscriptions import SubscriptionState
from mqtool.formats.topics import (
    FILTER_SERVER_GROUP,
    ONS_GROUP_PREFIX,
    SELF_TEST_GROUP,
    SYSTEM_GROUP_PREFIXES,
    is_system_topic,
)

T = TypeVar("T")

_GLOB = frozenset("*?[")
_OF_BROKERS = (*SYSTEM_GROUP_PREFIXES, ONS_GROUP_PREFIX, FILTER_SERVER_GROUP, SELF_TEST_GROUP)
"""Prefixes of the groups that every broker has."""


class MasterBroker(NamedTuple):
    """A broker that accepts messages."""

    cluster: str
    broker_name: str
    address: str


class BrokerPlace(NamedTuple):
    """A registered broker; the id of a master is 0."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


class BrokerStats(NamedTuple):
    """The statistics that a broker reports, by RocketMQ's names; or ``error``, the reason why it does not."""

    broker: BrokerPlace
    stats: dict[str, str]
    error: MqtoolError | None = None


class Replication(NamedTuple):
    """The replication state of a broker."""

    broker: BrokerPlace
    role: str  # ASYNC_MASTER, SYNC_MASTER, SLAVE; MASTER if it does not say which
    lag_bytes: int | None  # of a slave: what its log lacks; None if it or its master does not answer
    lag_seconds: float | None  # since when; known if the master is an mqtool broker, or nothing is missing
    in_sync_count: int | None  # of a master: how many have its log, including itself; None for 4.9
    fault: str  # why a slave does not follow its master
    not_copied: str  # which tables of its master a slave has not copied the last time, and why


class TopicOnBroker(NamedTuple):
    """The settings that a broker has for a topic."""

    broker_name: str
    settings: TopicConfig


class TopicQueue(NamedTuple):
    """A queue on a broker: its first offset, the one after its last, and when (ms) that was stored, or 0."""

    topic: str
    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    last_timestamp: int


class GroupOffset(NamedTuple):
    """The progress of a group in a queue.

    ``consumer_offset`` is None if nothing was committed: the group then starts at the queue's first message. The
    queue's own offsets, and the lag, are None if the broker no longer has such a queue. A store has no broker
    name.
    """

    group: str
    topic: str
    broker_name: str | None
    queue_id: int
    min_offset: int | None
    consumer_offset: int | None
    max_offset: int | None
    lag: int | None


class SubscriptionOnBroker(NamedTuple):
    """A Pulsar subscription in a queue."""

    broker_name: str | None  # a store has none
    state: SubscriptionState


class GroupOnBroker(NamedTuple):
    """The settings of a group on a broker, the number of its consumers online there, and its lag."""

    broker_name: str
    settings: SubscriptionGroup
    members: int
    lag: int | None


class GroupState(NamedTuple):
    """What a broker knows of a group; ``online`` is None if no consumer is online.

    ``holders`` are the consumers that work on each queue, if they report it.
    """

    broker_name: str
    settings: SubscriptionGroup
    online: Members | None
    offsets: list[GroupOffset]
    holders: dict[MessageQueue, str]


class AdminQueries(Running):
    """Queries brokers, without changing anything."""

    _kind = "admin client"

    def __init__(
        self,
        name_servers: str | Sequence[str] | None = None,
        options: "ClientOptions | Mapping[str, Any] | None" = None,
        **more: Any,
    ) -> None:
        """Create a client; no request is sent yet.

        Args:
            name_servers: as ``host:port;host:port``, or a sequence; by default from NAMESRV_ADDR.
            options: how it connects.
            **more: options by name.

        Raises:
            UsageError: the addresses or the options are invalid.
        """
        self._wire: Wire = wire_of(name_servers, options_of(ClientOptions, options, more))

    def __repr__(self) -> str:
        state = "running" if self._is_running else "not running"
        return f"<{type(self).__name__} of {';'.join(self._wire.name_servers)}, {state}>"

    async def start(self) -> None:
        """Start; connections are made when they are needed."""
        self._mark_started()

    async def shutdown(self) -> None:
        """Close all connections."""
        self._is_running = False
        await self._wire.close()

    @property
    def name_servers(self) -> list[str]:
        """The addresses of the name servers."""
        return self._wire.name_servers

    def request(self, address: str, call: Call[T], timeout_ms: int = ANSWER_MS) -> Awaitable[T]:
        """Query one server; raises what ``Wire.request`` does."""
        self._check_running()
        return self._wire.request(address, call, timeout_ms)

    async def request_name_server(self, call: Call[T]) -> T:
        """Query the first name server that can be reached."""
        self._check_running()
        return await self._wire.request_name_server(call)

    async def ask_each(
        self, brokers: Iterable[MasterBroker], call: Callable[[], Call[T]]
    ) -> list[tuple[MasterBroker, T]]:
        """Send the same query to all brokers and return each with its answer."""
        asked = [*brokers]
        answers = await together(self.request(broker.address, call()) for broker in asked)
        return list(zip(asked, answers, strict=True))

    async def brokers(self) -> list[BrokerPlace]:
        """Return all registered brokers.

        Raises:
            UnavailableError: there is none, or no name server answers.
        """
        info = await self.request_name_server(calls.clusters())
        places = sorted(
            BrokerPlace(broker.cluster, name, broker_id, address)
            for name, broker in info.brokers.items()
            for broker_id, address in broker.addresses.items()
        )
        if not places:
            raise UnavailableError(f"no broker is registered with {', '.join(self.name_servers)}")
        return places

    async def masters(self, broker_name: str | None = None) -> list[MasterBroker]:
        """Return the brokers that accept messages, or the one with a name.

        Raises:
            UnavailableError: there is none.
            NotFoundError: none has this name.
        """
        places = await self.brokers()
        masters = [
            MasterBroker(place.cluster, place.broker_name, place.address)
            for place in places
            if place.broker_id == MASTER
        ]
        if not masters:
            raise UnavailableError(f"no broker is registered with {', '.join(self.name_servers)}")
        named = [master for master in masters if broker_name in (None, master.broker_name)]
        if not named:
            known = ", ".join(master.broker_name for master in masters)
            raise NotFoundError(f"there is no broker {broker_name}; the brokers are {known}")
        return named

    async def broker_stats(self, brokers: Iterable[BrokerPlace] | None = None) -> list[BrokerStats]:
        """Return the statistics that brokers report: all, or the given ones; one that does not answer has an error."""

        async def told(broker: BrokerPlace) -> BrokerStats:
            try:
                return BrokerStats(broker, await self.request(broker.address, calls.runtime_info()))
            except MqtoolError as error:
                return BrokerStats(broker, {}, error)

        return await together(told(broker) for broker in (await self.brokers() if brokers is None else brokers))

    async def replication(self, known_stats: Iterable[BrokerStats] | None = None) -> list[Replication]:
        """Return the replication state of brokers: of all, or those of ``known_stats``, which are not requested again.

        The lag of a slave is computed from its own statistics and those of its master, which are queried one after
        the other: if the master is busy it is off by some messages.
        """
        stats = list(await self.broker_stats() if known_stats is None else known_stats)
        places = {
            (broker_stats.broker.cluster, broker_stats.broker.broker_name): broker_stats
            for broker_stats in stats
            if broker_stats.broker.broker_id == MASTER
        }
        statuses = await together(self._ha_status(broker_stats) for broker_stats in places.values())
        status_of = dict(zip(places, statuses, strict=True))
        replications = []
        for broker_stats, role in zip(
            stats, await together(self._role(broker_stats) for broker_stats in stats), strict=True
        ):
            place = broker_stats.broker
            key = (place.cluster, place.broker_name)
            status = status_of.get(key)
            if place.broker_id == MASTER:
                count = None if status is None else 1 + status.in_sync_slaves
                replications.append(Replication(place, role, None, None, count, "", ""))
                continue
            end, own_end = _log_end(places.get(key)), _log_end(broker_stats)
            lag = None if end is None or own_end is None else max(end - own_end, 0)
            fault = broker_stats.stats.get("replicationReason", "")  # of an mqtool slave
            followed = broker_stats.stats.get("replicationMaster", "")
            master = places[key].broker.address if key in places else ""
            if not fault and followed and master and followed != master:
                fault = f"it follows {followed}, but name servers report {master} as the master"
            not_copied = broker_stats.stats.get("replicationTablesReason", "")
            seconds = _lag_seconds(lag, own_end, place, status)
            replications.append(Replication(place, role, lag, seconds, None, fault, not_copied))
        return replications

    async def _role(self, broker_stats: BrokerStats) -> str:
        try:
            settings = (
                {} if broker_stats.error else await self.request(broker_stats.broker.address, calls.broker_settings())
            )
        except MqtoolError:
            settings = {}
        return settings.get("brokerRole") or ("MASTER" if broker_stats.broker.broker_id == MASTER else "SLAVE")

    async def _ha_status(self, broker_stats: BrokerStats) -> "calls.HaStatus | None":
        try:
            return None if broker_stats.error else await self.request(broker_stats.broker.address, calls.ha_status())
        except MqtoolError:
            return None

    async def topics(self) -> list[TopicOnBroker]:
        """Return all topics with their settings, one for each broker that has the topic."""
        answers = await self.ask_each(await self.masters(), calls.topic_configs)
        return [TopicOnBroker(broker.broker_name, config) for broker, configs in answers for config in configs.values()]

    async def topic_queues(self, *topics: str) -> list[TopicQueue]:
        """Return the queues of topics, on all brokers that have them.

        Raises:
            NotFoundError: no broker has such a topic.
        """
        answers = await self.ask_each(await self.masters(), calls.topic_configs)
        for topic in topics:
            check_known(topic, {name for _, configs in answers for name in configs}, "topic")
        asked = [(broker, topic) for topic in topics for broker, configs in answers if topic in configs]
        queues_of_each = await together(
            self.request(broker.address, calls.topic_queues(topic)) for broker, topic in asked
        )
        return [
            TopicQueue(topic, broker.broker_name, queue_id, *queue)
            for (broker, topic), queues in zip(asked, queues_of_each, strict=True)
            for queue_id, queue in queues.items()
        ]

    async def group_names(self) -> set[str]:
        """Return the names of all groups."""
        return {name for _, tables in await self.ask_each(await self.masters(), calls.groups) for name in tables}

    async def groups(self, names: Collection[str] | None = None) -> list[GroupOnBroker]:
        """Return all groups with their settings, or the given ones; one for each broker that has the group."""
        rows = []
        answers = await self.ask_each(await self.masters(), calls.groups)
        wanted = {name for _, tables in answers for name in tables if names is None or name in names}
        lags: dict[tuple[str | None, str], int] = {}
        for offset in await self._offsets_of_groups(wanted):
            key = offset.broker_name, offset.group
            lags[key] = lags.get(key, 0) + (offset.lag or 0)
        for broker, all_tables in answers:
            tables = {name: table for name, table in all_tables.items() if name in wanted}
            online = await together(self.request(broker.address, calls.members(name)) for name in tables)
            settings = subscription_groups({"subscriptionGroupTable": tables})
            rows += [
                GroupOnBroker(
                    broker.broker_name,
                    group_settings,
                    len(members.members) if members else 0,
                    lags.get((broker.broker_name, name)),
                )
                for (name, group_settings), members in zip(settings.items(), online, strict=True)
            ]
        return rows

    async def group(self, group: str) -> list[GroupState]:
        """Return what each broker knows of a group.

        Raises:
            NotFoundError: no broker has it.
        """
        answers = await self.ask_each(await self.masters(), calls.groups)
        check_known(group, {name for _, tables in answers for name in tables}, "group")
        offsets = await self._offsets_of_groups((group,))
        return [
            await self._group_on(
                broker,
                subscription_groups({"subscriptionGroupTable": {group: tables[group]}})[group],
                [offset for offset in offsets if offset.broker_name == broker.broker_name],
            )
            for broker, tables in answers
            if group in tables
        ]

    async def _group_on(
        self, broker: MasterBroker, settings: SubscriptionGroup, offsets: list[GroupOffset]
    ) -> GroupState:
        group = settings.group
        online = await self.request(broker.address, calls.members(group))
        holders: dict[MessageQueue, str] = {}
        for member in online.members if online else ():
            try:
                for queue in await self.request(broker.address, calls.assigned_queues(group, member.client_id)):
                    holders[queue] = member.client_id
            except MqtoolError:  # not all clients answer this
                continue
        return GroupState(broker.broker_name, settings, online, offsets, holders)

    async def offsets(self, group: str | None = None) -> list[GroupOffset]:
        """Return the progress of groups, or of one of them, in all queues of topics that they have read."""
        return await self._offsets_of_groups(None if group is None else (group,))

    async def members_of(
        self, groups: Collection[tuple[str | None, str]]
    ) -> dict[tuple[str | None, str], Members | None]:
        """Return the consumers of groups, which are given with their broker names; None if none is online."""
        addresses = {broker.broker_name: broker.address for broker in await self.masters()}
        asked = [(name, group) for name, group in groups if name in addresses]
        online = await together(self.request(addresses[str(name)], calls.members(group)) for name, group in asked)
        return dict(zip(asked, online, strict=True))

    async def pulsar_subscriptions(self) -> list[SubscriptionOnBroker]:
        """Return the Pulsar subscriptions, one for each queue."""
        answers = await self.ask_each(await self.masters(), calls.pulsar_subscriptions)
        return [SubscriptionOnBroker(broker.broker_name, state) for broker, states in answers for state in states]

    async def _offsets_of_groups(self, groups: Collection[str] | None) -> list[GroupOffset]:
        """Return the progress of groups, broker by broker: also on brokers where they have committed nothing yet."""
        answers = await self.ask_each(await self.masters(), calls.consumer_offsets)
        pairs = {
            (topic, group) for _, offsets in answers for topic, group, _ in offsets if groups is None or group in groups
        }
        topics = sorted({topic for topic, _ in pairs})
        rows = []
        for broker, offsets in answers:
            queues_of_each = await together(self.request(broker.address, calls.topic_queues(topic)) for topic in topics)
            ends = {
                (topic, queue_id): (queue.min_offset, queue.max_offset)
                for topic, queues in zip(topics, queues_of_each, strict=True)
                for queue_id, queue in queues.items()
            }
            own = {key: offset for key, offset in offsets.items() if key[:2] in pairs}
            rows += group_offsets(own, ends, broker.broker_name, pairs)
        return rows


def check_known(name: str, names: Collection[str], noun: str, advice: str = "") -> None:
    """Refuse an unknown name, with advice.

    Raises:
        NotFoundError: it lists similar names.
        UsageError: it is a pattern.
    """
    if name in names:
        return
    if _GLOB & {*name}:
        raise UsageError(f"give the full name of the {noun}, not a pattern: {name}")
    own = sorted(
        candidate for candidate in names if not candidate.startswith(_OF_BROKERS) and not is_system_topic(candidate)
    )
    likely = [candidate for candidate in own if not candidate.startswith("%")] or own
    near = ", ".join(difflib.get_close_matches(name, own, 5, 0.4) or likely[:5])
    raise NotFoundError(f"no {noun} matches {name}{f'; similar: {near}' if near else ''}{advice}")


def group_offsets(
    offsets: "dict[tuple[str, str, int], int]",
    ends: "dict[tuple[str, int], tuple[int, int]]",
    broker_name: str | None,
    others: Iterable[tuple[str, str]] = (),
) -> list[GroupOffset]:
    """Return the progress of groups in every queue of their topics.

    Args:
        offsets: committed offsets, by topic, group and queue id.
        ends: the first offset and the one after the last, by topic and queue id.
        broker_name: the broker that has them.
        others: topics and groups that have committed elsewhere, and have all of this broker's queues to read.
    """
    queue_ids: dict[str, set[int]] = {}
    for topic, queue_id in ends:
        queue_ids.setdefault(topic, set()).add(queue_id)
    pairs = {(topic, group) for topic, group, _ in offsets} | {*others}
    keys = {(topic, group, queue_id) for topic, group in pairs for queue_id in queue_ids.get(topic, ())} | {*offsets}
    rows = []
    for topic, group, queue_id in sorted(keys, key=lambda key: (key[1], key)):
        offset = offsets.get((topic, group, queue_id))
        low, high = ends.get((topic, queue_id), (None, None))
        lag = None if high is None else max(high - ((low or 0) if offset is None else offset), 0)
        rows.append(GroupOffset(group, topic, broker_name, queue_id, low, offset, high, lag))
    return rows


def _log_end(broker_stats: BrokerStats | None) -> int | None:
    """Return the end of a broker's log, None if unknown."""
    text = broker_stats.stats.get("commitLogMaxOffset", "") if broker_stats else ""
    return int(text) if text.isdecimal() else None


def _lag_seconds(lag: int | None, end: int | None, place: BrokerPlace, status: "calls.HaStatus | None") -> float | None:
    """Return how long a slave has been behind: from the connection of its host that is nearest to its end."""
    if not lag or end is None:
        return None if lag is None else 0.0
    host = place.address.rpartition(":")[0]
    near = [slave for slave in (status.slaves if status else ()) if slave.host == host and slave.lag_ms is not None]
    lags = [slave.lag_ms for slave in sorted(near, key=lambda slave: abs(slave.acknowledged_offset - end))]
    return None if not lags or lags[0] is None else lags[0] / 1000
