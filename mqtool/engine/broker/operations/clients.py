"""Registering and unregistering clients, and queries about them.

(Rules: remoting.md 3.3, 3.6. RocketMQ: ``ClientManageProcessor``, ``ConsumerManageProcessor``,
``AdminBrokerProcessor``.)
"""

from mqtool.engine.broker.clients import ClientChannelInfo, Clients, OnlineGroup, size_of
from mqtool.engine.broker.limits import (
    MAX_GROUPS_IN_ALL,
    MAX_MEMBERS,
    MAX_OF_SUBSCRIPTIONS,
    MAX_TOPICS,
    check_name,
    check_room,
)
from mqtool.engine.broker.operations.filters import MAX_OF_FILTER, wanted_by_expression
from mqtool.engine.broker.operations.refusal import OperationRefusedError, Reason
from mqtool.engine.broker.sessions import Session
from mqtool.engine.broker.state import BrokerState
from mqtool.engine.broker.subscription_groups import SubscriptionGroups
from mqtool.engine.broker.topics import Topics
from mqtool.errors import LimitError
from mqtool.formats.bodies import Heartbeat
from mqtool.formats.topics import RETRY_PREFIX

MAX_GROUPS = 256
"""Groups of one client, of producers and of consumers each: every new one creates topics and is saved."""
MAX_SUBSCRIPTIONS = 1 << 12
"""Of all groups in a heartbeat."""


class ClientRequests:
    """Requests of clients about themselves and others, with the parts of a broker that they need."""

    def __init__(self, state: BrokerState, topics: Topics, groups: SubscriptionGroups, clients: Clients) -> None:
        self._state = state
        self._topics = topics
        self._groups = groups
        self._clients = clients

    def heartbeat(self, session: Session, beat: Heartbeat, now: int) -> bool:
        """Register a client; the members of the groups that it changes are notified.

        Returns:
            Whether the subscriptions differ from those that a short heartbeat refers to: they must be sent again.

        Raises:
            OperationRefusedError: something in it exceeds a limit; the whole heartbeat is ignored.
        """
        try:
            self._check(beat, session)
        except LimitError as error:
            raise OperationRefusedError(Reason.BAD_ARGUMENT, str(error)) from None
        client = ClientChannelInfo(session, beat.client_id, now)
        is_changed = not beat.fingerprint
        groups = self._groups.find_all([data.group for data in beat.consumers], now)
        known = [(data, group) for data, group in zip(beat.consumers, groups, strict=True) if group]
        self._topics.of_groups(
            (
                (RETRY_PREFIX + data.group, group.retry_queue_count, data.unit_mode)
                for data, group in known
                if group.retry_queue_count > 0
            ),
            now,
        )
        for data, _ in known:
            self._clients.register_consumer(data, client, keeps_subscriptions=beat.without_subscriptions)
            if beat.fingerprint:
                is_changed |= self._clients.take_fingerprint(data.group, beat.fingerprint)
        for producer_group in beat.producer_groups:
            self._clients.register_producer(producer_group, client)
        return is_changed

    def unregister(self, session: Session, producer_group: str | None, consumer_group: str | None) -> None:
        """Unregister a client from one group, or from one of each kind."""
        if producer_group:
            self._clients.unregister_producer(producer_group, session)
        if consumer_group:
            self._clients.unregister_consumer(consumer_group, session)

    def check_filter(self, kind: str, expression: str) -> None:
        """Check whether a filter will work here; every tag filter does.

        Raises:
            OperationRefusedError: it will not.
        """
        if kind == "TAG":
            return
        if not self._state.settings.sql92_enabled:
            text = f"The broker does not support consumer to filter message by {kind}"
            raise OperationRefusedError(Reason.NOT_POSSIBLE, text)
        wanted_by_expression(kind, expression)

    # Queries

    def consumer_ids(self, group: str) -> list[str]:
        """Return the ids of a group's members, each once; raises ``OperationRefusedError`` if there are none."""
        online = self._clients.group(group)
        if online is None:
            raise OperationRefusedError(Reason.NOT_POSSIBLE, f"no consumer for this group, {group}")
        return list(dict.fromkeys(client.client_id for client in online.members.values()))

    def consumers(self, group: str) -> OnlineGroup:
        """Return a group's members and subscriptions; raises ``OperationRefusedError`` if there are none."""
        online = self._clients.group(group)
        if online is None:
            raise OperationRefusedError(Reason.NOT_ONLINE, f"the consumer group[{group}] not online")
        return online

    def producers(self, group: str) -> list[ClientChannelInfo]:
        """Return the producers of a group; raises ``OperationRefusedError`` if there are none."""
        clients = self._clients.producers(group)
        if not clients:
            raise OperationRefusedError(Reason.NOT_POSSIBLE, f"the producer group[{group}] not exist")
        return clients

    def all_producers(self) -> dict[str, list[ClientChannelInfo]]:
        """Return all producers by group."""
        return {group: self._clients.producers(group) for group in self._clients.producer_groups()}

    # Limits

    def _check(self, beat: Heartbeat, session: Session) -> None:
        """Check that there is not too much in a heartbeat; raises ``LimitError``."""
        clients = self._clients
        producers, consumers = clients.groups_of(session)
        groups = {consumer.group for consumer in beat.consumers}
        if max(len(producers | {*beat.producer_groups}), len(consumers | groups)) > MAX_GROUPS:
            raise LimitError(f"a client has at most {MAX_GROUPS} groups of producers and of consumers each")
        subscriptions = [subscription for consumer in beat.consumers for subscription in consumer.subscriptions]
        for name in (beat.client_id, *beat.producer_groups, *(consumer.group for consumer in beat.consumers)):
            check_name(name, "name")
        for subscription in subscriptions:
            check_name(subscription.topic, "topic")
            check_name(subscription.expression_type, "expression type")
        new = len({*beat.producer_groups} - producers) + len(groups - consumers)
        check_room(clients.member_count, new, MAX_MEMBERS, "clients in groups")
        before = sum(size_of(online.subscriptions.values()) for group in groups if (online := clients.group(group)))
        size = max(0, size_of(subscriptions) - before)
        check_room(clients.subscription_size, size, MAX_OF_SUBSCRIPTIONS, "characters of subscriptions")
        new_groups = sum(self._groups.get(group) is None for group in groups)
        check_room(len(self._groups), new_groups, MAX_GROUPS_IN_ALL, "groups")
        new_topics = sum(self._topics.get(RETRY_PREFIX + group) is None for group in groups)
        check_room(len(self._topics.configs), new_topics, MAX_TOPICS, "topics")
        if len(subscriptions) > MAX_SUBSCRIPTIONS:
            raise LimitError(f"a heartbeat has at most {MAX_SUBSCRIPTIONS:,} subscriptions")
        for subscription in subscriptions:
            if max(len(subscription.expression), len(subscription.tags_codes), len(subscription.tags)) > MAX_OF_FILTER:
                raise LimitError(
                    f"the filter for the topic [{subscription.topic[:200]}] is longer than {MAX_OF_FILTER:,} characters"
                )
