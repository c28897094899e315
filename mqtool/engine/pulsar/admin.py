"""Administration of a broker as Pulsar offers it: its topics, its subscriptions, and their statistics.

Names and answers are those of Pulsar's REST interface. (Rules: pulsar.md 10.)
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from mqtool.engine.broker.operations.refusal import OperationRefusedError as NotDoneError
from mqtool.engine.broker.topics import MAX_QUEUES
from mqtool.engine.pulsar.door import PulsarDoor
from mqtool.engine.pulsar.names import PulsarTopicName, rocketmq_topic
from mqtool.engine.pulsar.refusal import PulsarError, PulsarRefusedError
from mqtool.engine.pulsar.session import PulsarSession
from mqtool.engine.pulsar.subscription import PulsarSubscription
from mqtool.engine.pulsar.topics import Durable, QueueTopic
from mqtool.errors import LimitError

UNAUTHORIZED, FORBIDDEN, NOT_FOUND, NOT_ALLOWED = 401, 403, 404, 405
CONFLICT, PRECONDITION, UNPROCESSABLE, UNAVAILABLE = 409, 412, 422, 503
_STATUSES = {
    PulsarError.TOPIC_NOT_FOUND: NOT_FOUND,
    PulsarError.INVALID_TOPIC_NAME: PRECONDITION,
    PulsarError.NOT_ALLOWED: FORBIDDEN,
}


class AdminError(Exception):
    """A request that is refused: an HTTP status and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        self.reason = reason
        super().__init__(reason)


class MessagePosition(NamedTuple):
    """A message, by its id."""

    ledger_id: int
    entry_id: int
    batch_index: int = -1
    is_excluded: bool = False
    """The position is after this message."""


LATEST = MessagePosition((1 << 63) - 1, (1 << 63) - 1)


class PulsarAdmin:
    """Answers administrators from the state of the door for Pulsar clients; times are in ms."""

    def __init__(self, door: PulsarDoor) -> None:
        self._door = door
        self._topics = door.topics
        self._broker = door.broker

    def check_access(self, token: str, host: str, now: int) -> str:
        """Return the identity of a client from its host and its token; the token counts if access is controlled.

        Raises:
            AdminError: such a client is not admitted.
        """
        try:
            return self._door.identify(token, host, now).identity
        except PulsarRefusedError as refused:
            raise AdminError(UNAUTHORIZED, refused.text) from None

    def check_administrator(self, identity: str, host: str) -> None:
        """Check that a client is an administrator; raises ``AdminError``."""
        if not self._door.is_administrator(identity, host):
            raise AdminError(FORBIDDEN, f"{identity or 'This client'} may not do this")

    def check_client(self, identity: str, host: str, name: PulsarTopicName) -> None:
        """Check that a client may produce to a topic or consume from it; raises ``AdminError``."""
        if not self._door.may_see(identity, host, name):
            raise AdminError(FORBIDDEN, f"{identity or 'This client'} may not do this")

    def name(self, tenant: str, namespace: str, local: str) -> PulsarTopicName:
        """Return the name of a topic.

        Raises:
            AdminError: no topic can have it, the namespace does not exist, or this broker is a slave.
        """
        self._check_is_master()
        try:
            return self._topics.parse(f"persistent://{tenant}/{namespace}/{local}")
        except PulsarRefusedError as refused:
            raise AdminError(_STATUSES[refused.error], refused.text) from None

    # Namespaces

    def tenants(self) -> list[str]:
        """Return the tenants that topics have."""
        return sorted({tenant for tenant, _ in self._topics.spaces()})

    def namespaces(self, tenant: str) -> list[str]:
        """Return the namespaces of a tenant that topics have; raises ``AdminError``."""
        if tenant not in self.tenants():
            raise AdminError(NOT_FOUND, "Tenant does not exist")
        return sorted("/".join(space) for space in self._topics.spaces() if space[0] == tenant)

    def clusters(self) -> list[str]:
        """Return the only cluster."""
        return [self._broker.settings.cluster_name]

    def topics(self, tenant: str, namespace: str) -> list[str]:
        """Return the topics of a namespace, with one item per partition; raises ``AdminError``."""
        self._check_space(tenant, namespace)
        names: list[str] = self._limited(lambda: self._topics.names((tenant, namespace)))
        return names

    def partitioned_topics(self, tenant: str, namespace: str) -> list[str]:
        """Return the topics of a namespace that have partitions; raises ``AdminError``."""
        self._check_space(tenant, namespace)
        return self._topics.partitioned((tenant, namespace))

    def _check_space(self, tenant: str, namespace: str) -> None:
        self._check_is_master()
        if not self._topics.has_space((tenant, namespace)):
            raise AdminError(NOT_FOUND, "Namespace does not exist")

    def _check_is_master(self) -> None:
        if self._door.is_of_slave:
            raise AdminError(UNAVAILABLE, "This broker is a slave: ask its master")

    # Topics; each of these raises AdminError

    def partitions(self, name: PulsarTopicName, *, allows_creation: bool = False) -> dict[str, Any]:
        """Return the number of partitions of a topic."""
        count = self._topics.partition_count(name)
        if count is None and not allows_creation:
            raise _no_topic(name)
        return {"partitions": count or 0, "deleted": False}

    def create(self, name: PulsarTopicName, partitions: int | None, now: int) -> None:
        """Create a topic; None: one without partitions."""
        if self._topics.partition_count(name) is not None:
            raise AdminError(CONFLICT, "This topic already exists")
        if name.partition_of() is not None:
            raise AdminError(PRECONDITION, "The name is that of a partition: create the topic that it belongs to")
        if partitions is not None:
            self._check_count(partitions)
        self._limited(
            lambda: self._topics.create(
                rocketmq_topic(name), name, partitions or 1, is_plain=partitions is None, now=now
            )
        )

    def widen(self, name: PulsarTopicName, partitions: int, now: int) -> None:
        """Give a topic more partitions."""
        count = self._topics.partition_count(name)
        if count is None:
            raise _no_topic(name)
        if not count:
            raise AdminError(CONFLICT, f"{name.full} is not a partitioned topic")
        self._check_count(partitions)
        if partitions < count:
            raise AdminError(UNPROCESSABLE, f"Desired partitions {partitions} can't be less than the current {count}")
        self._limited(lambda: self._topics.widen(rocketmq_topic(name), partitions, now))

    def delete(self, name: PulsarTopicName, now: int, *, is_partitioned: bool, by_force: bool) -> None:
        """Delete a topic; with force, even one that is in use."""
        queues = self._queues(name)
        count = self._topics.partition_count(name)
        if is_partitioned and not count:
            raise AdminError(NOT_FOUND, f"Partitioned topic {name.full} not found")
        if not is_partitioned and (count or queues[0].place.partition >= 0):
            raise AdminError(PRECONDITION, f"{name.full} has partitions, or is one: delete the partitioned topic")
        if not by_force and any(queue.is_used for queue in queues):
            raise AdminError(PRECONDITION, "Topic has active producers/subscriptions")
        topic = queues[0].place.topic
        if not by_force and (groups := self._broker.clients.groups_of_topic(topic)):
            raise AdminError(
                PRECONDITION, f"Consumers of RocketMQ are connected in the group {groups[0]} of this topic"
            )
        try:
            self._broker.topic_requests.delete([topic], now)
        except NotDoneError as refused:
            raise AdminError(FORBIDDEN, str(refused)) from None

    def deduplicates(self, name: PulsarTopicName) -> bool:
        """Tell whether a topic drops messages that its producers resend."""
        return self._whole_topic(name).deduplication is not None

    def deduplicate(self, name: PulsarTopicName, is_on: bool) -> None:
        """Let a topic drop messages that its producers resend, or store them."""
        self._topics.deduplicate(self._whole_topic(name).place.topic, is_on)

    def terminate(self, name: PulsarTopicName, now: int) -> dict[str, int]:
        """Let a topic without partitions accept no more messages, and return the id of its last message."""
        queue = self._queues(name)[0]
        if self._topics.partition_count(name) or queue.place.partition >= 0:
            raise AdminError(NOT_ALLOWED, f"{name.full} has partitions, or is one: terminate all partitions")
        self._door.terminate(queue.place.topic, now)
        return _last_id(queue)

    def terminate_partitions(self, name: PulsarTopicName, now: int) -> dict[int, dict[str, int]]:
        """Let a partitioned topic accept no more messages, and return the id of the last message of each partition."""
        queues = self._queues(name)
        if not self._topics.partition_count(name):
            raise AdminError(NOT_ALLOWED, f"{name.full} has no partitions: terminate the topic")
        self._door.terminate(queues[0].place.topic, now)
        return {queue.place.partition: _last_id(queue) for queue in queues}

    def lookup(self, name: PulsarTopicName, host: str, page: str) -> dict[str, Any]:
        """Return where clients find a topic, given the host at which they have reached the pages, and their address."""
        if self._topics.partition_count(name) is None and not self._broker.settings.auto_create_topics:
            raise _no_topic(name)
        urls = self._door.urls(host)
        return {
            "brokerUrl": urls.plain or "",
            "brokerUrlTls": urls.tls or "",
            "brokerUrlSsl": urls.tls or "",
            "nativeUrl": urls.plain or "",
            "httpUrl": f"http://{page}",
        }

    def last_message_id(self, name: PulsarTopicName) -> dict[str, int]:
        """Return the id of the last message of a topic."""
        queue = self._one_queue(name)
        entry = queue.last_entry()
        last = _last_id(queue) | {"partitionIndex": queue.place.partition}
        if entry is None:
            return last | {"ledgerId": -1}
        return last | ({"batchIndex": entry.messages - 1, "batchSize": entry.messages} if entry.is_batch else {})

    def schema(self, name: PulsarTopicName, version: int | None = None) -> dict[str, Any]:
        """Return a schema of a topic, the latest one if no version is given."""
        try:
            number, schema = self._topics.schema_of(name, version)
        except PulsarRefusedError:
            raise AdminError(NOT_FOUND, "Schema not found") from None
        return {
            "version": number,
            "type": schema.type_name,
            "data": _text(schema.data),
            "properties": {_text(key): _text(value) for key, value in schema.properties},
        }

    def stats(self, name: PulsarTopicName) -> dict[str, Any]:
        """Return the statistics of a topic or a partition."""
        return _stats(self._one_queue(name))

    def partitioned_stats(self, name: PulsarTopicName, *, by_partition: bool) -> dict[str, Any]:
        """Return the statistics of a partitioned topic, in total and by partition."""
        queues = self._queues(name)
        if not self._topics.partition_count(name):
            raise AdminError(NOT_FOUND, f"Partitioned topic {name.full} not found")
        of_each = {queue.place.full_name: _stats(queue) for queue in queues}
        every = [*of_each.values()]
        subscriptions: dict[str, Any] = {}
        for stats in every:
            for subscription, row in stats["subscriptions"].items():
                nothing = row | dict.fromkeys(_SUMS_OF_SUBSCRIPTION, 0) | {"consumers": []}
                known = subscriptions.setdefault(subscription, nothing)
                for member in _SUMS_OF_SUBSCRIPTION:
                    known[member] += row[member]
                known["consumers"] += row["consumers"]
        return {
            **{member: sum(stats[member] for stats in every) for member in _SUMS},
            "publishers": [row for stats in every for row in stats["publishers"]],
            "subscriptions": subscriptions,
            "metadata": {"partitions": len(queues), "deleted": False},
            "partitions": of_each if by_partition else {},
        }

    # Subscriptions; each of these raises AdminError

    def subscriptions(self, name: PulsarTopicName) -> list[str]:
        """Return the names of the subscriptions of a topic."""
        return sorted({subscription for queue in self._queues(name) for subscription in queue.subscriptions})

    def subscribe(self, name: PulsarTopicName, subscription: str, position: MessagePosition, now: int) -> None:
        """Create a subscription that starts at a message."""
        if self._topics.partition_count(name) is None:
            try:
                self._topics.open(name, now)
            except PulsarRefusedError as refused:
                raise AdminError(_STATUSES[refused.error], refused.text) from None
            except LimitError as error:
                raise AdminError(PRECONDITION, str(error)) from None
        queues = self._queues(name)
        if any(subscription in queue.subscriptions for queue in queues):
            raise AdminError(CONFLICT, "Subscription already exists for topic")
        for queue in queues:
            offset, left = _place(queue, position)

            def subscribe(queue: QueueTopic = queue, offset: int = offset) -> Durable:
                return self._topics.subscribe(queue, subscription, offset, now, is_durable=True)

            durables = self._limited(subscribe)
            if left is not None:
                self._door.move(durables, offset, left, now)

    def unsubscribe(self, name: PulsarTopicName, subscription: str, now: int, *, by_force: bool) -> None:
        """Delete a subscription; with force, even one with consumers."""
        durables = self._subscription(name, subscription)
        if not by_force and any(durable.subscription.consumers for durable in durables):
            raise AdminError(PRECONDITION, "Subscription has active connected consumers")
        if not by_force:
            self._check_group(durables)
        for durable in durables:
            self._door.unsubscribe(durable, now)

    def skip(self, name: PulsarTopicName, subscription: str, count: int | None, now: int) -> None:
        """Acknowledge the next ``count`` messages of a subscription, None for all of them."""
        durables = self._subscription(name, subscription)
        if count is not None and len(durables) > 1:
            raise AdminError(NOT_ALLOWED, "Skip messages on a partitioned topic is not allowed")
        self._check_group(durables)
        for durable in durables:
            self._door.skip(durable, durable.subscription.backlog if count is None else count, now)

    def reset(self, name: PulsarTopicName, subscription: str, to: MessagePosition | int, now: int) -> None:
        """Let a subscription continue at a message, or at the first one stored at a time (ms) or later."""
        durables = self._subscription(name, subscription)
        if isinstance(to, MessagePosition) and len(durables) > 1:
            raise AdminError(NOT_ALLOWED, "Reset-cursor at position is not allowed for partitioned-topic")
        self._check_group(durables)
        for durable in durables:
            queue = durable.queue
            offset, left = (queue.offset_at(to), None) if isinstance(to, int) else _place(queue, to)
            self._door.move(durable, offset, left, now)

    def _check_group(self, durables: Iterable[Durable]) -> None:
        """Check that no RocketMQ consumers are connected in the group: they would commit their own offsets again."""
        try:
            for durable in durables:
                if durable.is_durable:
                    self._topics.check_group(durable.queue, durable.subscription.name)
        except PulsarRefusedError as refused:
            raise AdminError(PRECONDITION, refused.text) from None

    def _subscription(self, name: PulsarTopicName, subscription: str) -> list[Durable]:
        durables = [
            queue.subscriptions[subscription] for queue in self._queues(name) if subscription in queue.subscriptions
        ]
        if not durables:
            raise AdminError(NOT_FOUND, f"Subscription {subscription} not found for topic {name.full}")
        return durables

    # Helpers

    def _queues(self, name: PulsarTopicName) -> list[QueueTopic]:
        queues: list[QueueTopic] = self._limited(lambda: self._topics.queues_of(name))
        if not queues:
            raise _no_topic(name)
        return queues

    def _one_queue(self, name: PulsarTopicName) -> QueueTopic:
        queues = self._queues(name)
        if self._topics.partition_count(name):
            raise AdminError(NOT_FOUND, f"{name.full} has partitions: give one of them, or request partitioned-stats")
        return queues[0]

    def _whole_topic(self, name: PulsarTopicName) -> QueueTopic:
        """Return the first queue of a topic whose name is not that of a partition."""
        queue = self._queues(name)[0]
        if queue.place.partition >= 0 and not self._topics.partition_count(name):
            raise AdminError(PRECONDITION, "Not allowed to set/get topic policy for a partition")
        return queue

    def _check_count(self, partitions: int) -> None:
        if not 0 < partitions <= MAX_QUEUES:
            raise AdminError(406, f"Number of partitions must be from 1 to {MAX_QUEUES:,}")

    def _limited(self, do: Callable[[], Any]) -> Any:
        try:
            return do()
        except LimitError as error:
            raise AdminError(PRECONDITION, str(error)) from None


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _no_topic(name: PulsarTopicName) -> AdminError:
    return AdminError(NOT_FOUND, f"Topic {name.full} not found")


def _last_id(queue: QueueTopic) -> dict[str, int]:
    entry = queue.last_entry()
    return {
        "ledgerId": queue.generation,
        "entryId": entry.offset if entry is not None else -1,
        "partitionIndex": -1,
        "batchIndex": -1,
        "batchSize": 0,
    }


def _place(queue: QueueTopic, position: MessagePosition) -> tuple[int, int | None]:
    """Return the offset that an id means, and which messages of the entry there are left: None for all."""
    offset = queue.offset_of(position.ledger_id, position.entry_id)
    if position.ledger_id != queue.generation or offset != position.entry_id:
        return offset, None
    entry = queue.log.entry(offset)
    if entry is None:
        return offset, None
    if entry.is_batch and position.batch_index >= 0:
        index = position.batch_index + position.is_excluded
        left = (1 << entry.messages) - 1 >> index << index
        return (entry.offset, left) if left else (entry.end, None)
    return (entry.end if position.is_excluded else entry.offset), None


_SUMS = ("msgInCounter", "bytesInCounter", "msgOutCounter")
_SUMS_OF_SUBSCRIPTION = ("msgBacklog", "msgOutCounter", "unackedMessages", "totalMsgExpired")


def _stats(queue: QueueTopic) -> dict[str, Any]:
    return {
        "msgInCounter": queue.log.end,
        "bytesInCounter": queue.bytes_in,
        "msgOutCounter": sum(durable.subscription.given for durable in queue.subscriptions.values()),
        "publishers": [
            {
                "producerId": producer.id,
                "producerName": producer.name,
                "accessMode": producer.access.label,
                "address": producer.session.address,
            }
            for producer in queue.producers.by_name.values()
        ],
        "subscriptions": {
            name: _stats_of(durable.subscription, durable.is_durable) for name, durable in queue.subscriptions.items()
        },
        "replication": {},
        "deduplicationStatus": "Disabled" if queue.deduplication is None else "Enabled",
    }


def _stats_of(subscription: PulsarSubscription, is_durable: bool) -> dict[str, Any]:
    active = subscription.active
    return {
        "msgBacklog": subscription.backlog,
        "msgOutCounter": subscription.given,
        "unackedMessages": subscription.unacked,
        "totalMsgExpired": subscription.lost,
        "type": subscription.kind.label if subscription.consumers else "None",
        "activeConsumerName": active.name if active is not None else None,
        "durable": is_durable,
        "consumers": [
            {
                "consumerName": consumer.name,
                "availablePermits": consumer.permits,
                "unackedMessages": consumer.unacked,
                "blockedConsumerOnUnackedMsgs": consumer.is_blocked,
                "address": consumer.receiver.address if isinstance(consumer.receiver, PulsarSession) else "",
            }
            for consumer in subscription.consumers
        ],
    }
