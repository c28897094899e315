"""The clients of a broker: its producers and consumers, and the consumers' subscriptions.

A client registers by heartbeats; it is forgotten when it unregisters, when its connection ends, or after two
minutes of silence. The members of a group are notified when a member joins or leaves.
(RocketMQ: ``ProducerManager``, ``ConsumerManager``, ``ConsumerGroupInfo``.)
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from mqtool.engine.broker.sessions import ConsumersChanged, Session
from mqtool.engine.broker.subscription_groups import SubscriptionGroups
from mqtool.engine.intervals import is_time
from mqtool.formats.bodies import ConsumerData, Subscription

SILENCE_MS = 120_000
LOOK_INTERVAL_MS = 10_000


@dataclass(slots=True)
class ClientChannelInfo:
    """A program as a member of one group."""

    session: Session
    client_id: str
    last_heard: int  # ms


@dataclass(slots=True)
class OnlineGroup:
    """The consumers of a group and their subscriptions; the last heartbeat decides."""

    consume_type: str
    message_model: str
    consume_from_where: str
    members: dict[Session, ClientChannelInfo] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)  # by topic
    fingerprint: int = 0  # of the subscriptions, by the last heartbeat that had one

    @property
    def is_broadcast(self) -> bool:
        """Whether every member gets every message."""
        return self.message_model == "BROADCASTING"


class Clients:
    """All producers and consumers by group."""

    def __init__(self, groups: SubscriptionGroups) -> None:
        self._groups = groups
        self._producers: dict[str, dict[Session, ClientChannelInfo]] = {}
        self._consumers: dict[str, OnlineGroup] = {}
        self._by_id: dict[str, ClientChannelInfo] = {}  # producers
        self._groups_of: dict[Session, tuple[set[str], set[str]]] = {}  # of its producers and consumers
        self.member_count = 0
        """Number of clients in groups, each counted in each of its groups."""
        self.subscription_size = 0
        """Total characters of subscriptions."""
        self._next_look = 0

    # Registering

    def register_producer(self, group: str, client: ClientChannelInfo) -> None:
        """Register a producer, or note that it is still alive.

        An id belongs to the account that first used it: others that use it do not get its replies.
        """
        members = self._producers.setdefault(group, {})
        before = members.get(client.session)
        members[client.session] = client
        if before is not None and before.client_id != client.client_id:
            self._release_id(before)
        holder = self._by_id.get(client.client_id)
        if holder is None or holder.session.identity == client.session.identity:
            self._by_id[client.client_id] = client
        self._join(client.session, 0, group)

    def register_consumer(
        self, data: ConsumerData, client: ClientChannelInfo, *, keeps_subscriptions: bool = False
    ) -> None:
        """Register a consumer, or note that it is still alive.

        Args:
            data: its group and its subscriptions.
            client: the program.
            keeps_subscriptions: it left out its subscriptions because they are known.
        """
        group = self._consumers.get(data.group)
        if group is None:
            group = self._consumers[data.group] = OnlineGroup(
                data.consume_type, data.message_model, data.consume_from_where
            )
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        is_changed = client.session not in group.members
        group.members[client.session] = client
        self._join(client.session, 1, data.group)
        if not keeps_subscriptions:
            self.subscription_size -= size_of(group.subscriptions.values())
            is_changed |= _subscribe(group, data.subscriptions)
            self.subscription_size += size_of(group.subscriptions.values())
        if is_changed:
            self._notify(data.group)

    def take_fingerprint(self, group: str, fingerprint: int) -> bool:
        """Note the fingerprint of a group's subscriptions; return whether it has changed."""
        online = self._consumers[group]
        before, online.fingerprint = online.fingerprint, fingerprint
        return before != fingerprint

    # Unregistering

    def unregister_producer(self, group: str, session: Session) -> None:
        """Forget a producer."""
        self._forget(session, 0, group)
        members = self._producers.get(group, {})
        if (client := members.pop(session, None)) is None:
            return
        if not members:
            del self._producers[group]
        self._release_id(client)

    def _release_id(self, client: ClientChannelInfo) -> None:
        """Forget the id of a producer, unless it has it in another group."""
        holder, session = self._by_id.get(client.client_id), client.session
        groups, _ = self.groups_of(session)
        if holder is not None and holder.session is session:
            present = (self._producers[group].get(session) for group in groups if group in self._producers)
            if not any(other is not None and other.client_id == client.client_id for other in present):
                del self._by_id[client.client_id]

    def unregister_consumer(self, group: str, session: Session) -> None:
        """Forget a consumer."""
        self._remove(group, [session])

    def _remove(self, group: str, sessions: Iterable[Session]) -> None:
        online = self._consumers.get(group)
        is_changed = False
        for session in sessions:
            self._forget(session, 1, group)
            is_changed |= online is not None and online.members.pop(session, None) is not None
        if online is None or not is_changed:
            return
        if online.members:
            self._notify(group)
        else:
            self.subscription_size -= size_of(online.subscriptions.values())
            del self._consumers[group]

    def closed(self, session: Session) -> None:
        """Forget a client whose connection has ended."""
        producers, consumers = self._groups_of.pop(session, ((), ()))
        self.member_count -= len(producers) + len(consumers)
        for group in sorted(producers):
            self.unregister_producer(group, session)
        for group in sorted(consumers):
            self.unregister_consumer(group, session)

    def heard_all(self, now: int) -> None:
        """Note that all are alive: the clock has jumped, and none of them could send a heartbeat."""
        for client in (
            *(client for members in self._producers.values() for client in members.values()),
            *(client for online in self._consumers.values() for client in online.members.values()),
        ):
            client.last_heard = now

    def tick(self, now: int) -> None:
        """Forget silent clients."""
        if not is_time(self._next_look, LOOK_INTERVAL_MS, now):
            return
        self._next_look = now + LOOK_INTERVAL_MS
        silent = now - SILENCE_MS
        producers = [
            (group, client.session)
            for group, members in self._producers.items()
            for client in members.values()
            if client.last_heard < silent
        ]
        for group, session in producers:
            self.unregister_producer(group, session)
        for group, online in [*self._consumers.items()]:
            gone = [client.session for client in online.members.values() if client.last_heard < silent]
            self._remove(group, gone)  # the others are notified once

    def next_tick(self, now: int) -> int | None:
        """Return when to check for silent clients, None while there are no clients."""
        return max(self._next_look, now) if self._groups_of else None

    # Queries

    def producers(self, group: str) -> list[ClientChannelInfo]:
        """Return the producers of a group."""
        return list(self._producers.get(group, {}).values())

    def producer_groups(self) -> list[str]:
        """Return the groups that have producers."""
        return list(self._producers)

    def consumer_groups(self) -> list[str]:
        """Return the groups that have consumers."""
        return list(self._consumers)

    def producer(self, client_id: str) -> ClientChannelInfo | None:
        """Return a producer by its id, to which a reply can be sent."""
        return self._by_id.get(client_id)

    def group(self, group: str) -> OnlineGroup | None:
        """Return the consumers of a group, None if there are none."""
        return self._consumers.get(group)

    def consumer(self, group: str, client_id: str) -> ClientChannelInfo | None:
        """Return a consumer of a group by its id."""
        online = self._consumers.get(group)
        members = online.members.values() if online else ()
        return next((client for client in members if client.client_id == client_id), None)

    def groups_of(self, session: Session) -> tuple[Set[str], Set[str]]:
        """Return the groups of which a client is a producer, and a consumer."""
        return self._groups_of.get(session) or (frozenset(), frozenset())

    def groups_of_topic(self, topic: str) -> list[str]:
        """Return the groups with consumers that have subscribed to a topic."""
        return [group for group, online in self._consumers.items() if topic in online.subscriptions]

    # Parts

    def _join(self, session: Session, kind: int, group: str) -> None:
        groups = self._groups_of.setdefault(session, (set(), set()))[kind]
        self.member_count += group not in groups
        groups.add(group)

    def _forget(self, session: Session, kind: int, group: str) -> None:
        if (groups := self._groups_of.get(session)) is not None:
            self.member_count -= group in groups[kind]
            groups[kind].discard(group)
            if not any(groups):
                del self._groups_of[session]

    def _notify(self, group: str) -> None:
        """Notify the members of a group to rebalance."""
        online = self._consumers[group]
        settings = self._groups.get(group)
        if online.is_broadcast or (settings is not None and not settings.notify_changes_enabled):
            return
        for session in online.members:
            session.notify(ConsumersChanged(group))


def size_of(subscriptions: Iterable[Subscription]) -> int:
    """Return the approximate number of characters of subscriptions."""
    return sum(
        len(subscription.topic)
        + len(subscription.expression)
        + sum(map(len, subscription.tags))
        + 20 * len(subscription.tags_codes)
        for subscription in subscriptions
    )


def _subscribe(group: OnlineGroup, wanted: Iterable[Subscription]) -> bool:
    """Note the subscriptions of a heartbeat; return whether the set of topics changed."""
    known = group.subscriptions
    subscribed = {subscription.topic: subscription for subscription in wanted}
    is_changed = known.keys() != subscribed.keys()
    for topic in known.keys() - subscribed.keys():
        del known[topic]
    for topic, subscription in subscribed.items():
        present = known.get(topic)
        if present is None or subscription.version > present.version:
            known[topic] = subscription
    return is_changed
