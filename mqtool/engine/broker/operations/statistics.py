"""Progress of topics and groups, and the contents of a queue.

Cost: linear in the reported queues.
(Rules: remoting.md 3.5 to 3.7. RocketMQ: ``AdminBrokerProcessor``.)
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from mqtool.engine.broker.broker_stats import BrokerStatsManager, Share
from mqtool.engine.broker.clients import Clients
from mqtool.engine.broker.consumer_offsets import ConsumerOffsets
from mqtool.engine.broker.limits import MAX_QUEUES_OF_ANSWER
from mqtool.engine.broker.operations.queues import ends_of, next_offset_of, store_timestamp
from mqtool.engine.broker.operations.refusal import OperationRefusedError, Reason
from mqtool.engine.broker.operations.steps import QUEUES_AT_ONCE, Steps
from mqtool.engine.broker.subscription_groups import SubscriptionGroups
from mqtool.engine.broker.topics import Topics
from mqtool.formats.bodies import Subscription
from mqtool.formats.config_tables import TopicConfig

if TYPE_CHECKING:
    from mqtool.engine.store.live_queue import Unit
    from mqtool.engine.store.message_store import MessageStore

MAX_UNITS = 1000
"""Maximum number of units of a queue in one answer."""


class TopicOffset(NamedTuple):
    """One queue."""

    queue_id: int
    min_offset: int
    next_offset: int
    last_timestamp: int  # when its last message was stored (ms), 0 if there is none


class QueueProgress(NamedTuple):
    """The progress of a group in one queue."""

    topic: str
    queue_id: int
    next_offset: int  # of the queue
    consumed: int
    pulled: int
    last_timestamp: int  # when the previous message was stored (ms), 0 if there is none


class GroupProgress(NamedTuple):
    """The progress of a group, and messages per second."""

    rate: float
    queues: list[QueueProgress]


class TimeSpan(NamedTuple):
    """When the messages of one queue were stored (ms), -1 for none."""

    queue_id: int
    first: int
    last: int
    consumed: int  # of the last message that a group has consumed
    delay_ms: int  # how long the next message has waited


class QueuePart(NamedTuple):
    """Units of one queue, and a group's subscription to its topic."""

    units: "list[Unit]"
    min_offset: int
    next_offset: int
    subscription: Subscription | None


class Statistics:
    """Queries of administrators, with the parts of a broker that they concern."""

    def __init__(
        self,
        store: "MessageStore",
        topics: Topics,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        clients: Clients,
        broker_stats: BrokerStatsManager,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._clients = clients
        self._broker_stats = broker_stats

    def topic(self, topic: str) -> Steps[list[TopicOffset]]:
        """Return all queues of a topic.

        Raises:
            OperationRefusedError: there is no such topic.
        """
        config, store = self._topic(topic), self._store
        queues = []
        for queue_id in range(max(config.read_queue_count, config.write_queue_count)):
            low, high = ends_of(store, topic, queue_id)
            queues.append(TopicOffset(queue_id, low, high, max(store_timestamp(store, topic, queue_id, high - 1), 0)))
            if len(queues) % QUEUES_AT_ONCE == 0:
                yield
        return queues

    def stored_rate(self, topic: str, now: int) -> float:
        """Return how many messages of a topic are stored per second."""
        return self._broker_stats.rate("stored", topic, now)

    def group(self, group: str, topics: Iterable[str], now: int) -> Steps[GroupProgress]:
        """Return the progress of a group in some topics, by default in those that it subscribes to.

        Raises:
            OperationRefusedError: they have too many queues.
        """
        topics = [*dict.fromkeys(topics)] or self._topics_read(group)
        configs = [*self._configs(topics)]
        _check_count(configs)
        rate = sum(self._broker_stats.rate("delivered", (topic, group), now) for topic in topics)
        queues: list[QueueProgress] = []
        for queue in self._progress(group, configs):
            queues.append(queue)
            if len(queues) % QUEUES_AT_ONCE == 0:
                yield
        return GroupProgress(rate, queues)

    def all_groups(self, now: int, *, only_ordered: bool) -> Steps[list[tuple[str, list[GroupProgress]]]]:
        """Return each group with its progress in each topic, or in those that it consumes in order.

        Raises:
            OperationRefusedError: these have too many queues.
        """
        topics = self._offsets.topics_by_group()
        all_configs = {
            group: [config for config in self._configs(topics.get(group, ())) if config.order or not only_ordered]
            for group in self._groups.names()
        }
        _check_count(itertools.chain(*all_configs.values()))
        listed: list[tuple[str, list[GroupProgress]]] = []
        examined = 0
        for group, configs in all_configs.items():
            progress: list[GroupProgress] = []
            for config in configs:
                queues: list[QueueProgress] = []
                for queue in self._progress(group, [config]):
                    queues.append(queue)
                    examined += 1
                    if examined % QUEUES_AT_ONCE == 0:
                        yield
                rate = self._broker_stats.rate("delivered", (config.topic, group), now)
                progress.append(GroupProgress(rate, queues))
            listed.append((group, progress))
        return listed

    def time_spans(self, group: str, topic: str, now: int) -> Steps[list[TimeSpan]]:
        """Return the store times of the messages in all queues of a topic.

        Raises:
            OperationRefusedError: there is no such topic.
        """
        store = self._store
        spans: list[TimeSpan] = []
        for queue_id in range(self._topic(topic).write_queue_count):
            start, end = ends_of(store, topic, queue_id)
            consumed = max(self._offsets.get(group, topic, queue_id), 0)
            first, last, before, waiting = (
                store_timestamp(store, topic, queue_id, offset)
                for offset in (start, end - 1, max(consumed - 1, start), consumed)
            )
            spans.append(TimeSpan(queue_id, first, last, before, now - waiting if waiting >= 0 else 0))
            if len(spans) % QUEUES_AT_ONCE == 0:
                yield
        return spans

    def groups_of_topic(self, topic: str) -> list[str]:
        """Return the groups that subscribe to a topic or have read it."""
        return sorted({*self._clients.groups_of_topic(topic), *self._offsets.groups_of(topic)})

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """Return the subscription of a group's consumers to a topic, None if they have none."""
        online = self._clients.group(group)
        return online.subscriptions.get(topic) if online else None

    def units(self, group: str, topic: str, queue_id: int, start: int, count: int) -> QueuePart:
        """Return units of a queue from an offset on, at most ``MAX_UNITS``.

        Raises:
            OperationRefusedError: there is no such queue.
        """
        queue = self._store.queue(topic, queue_id)
        if queue is None:
            raise OperationRefusedError(Reason.NOT_POSSIBLE, f"{queue_id}@{topic} is not exist!")
        units: list[Unit] = []
        start, count = max(start, 0), min(count, MAX_UNITS)
        while len(units) < count and (fetched := queue.units(start + len(units), count - len(units))):
            units += fetched
        low = queue.min_offset(self._store.log.min_offset)
        return QueuePart(units, low, queue.next_offset, self.subscription(group, topic))

    def shares(self, kind: str, key: str | tuple[str, str], now: int) -> tuple[Share, ...] | None:
        """Return the counts over the spans of statistics, None if there are none; see ``BrokerStatsManager``."""
        return self._broker_stats.shares(kind, key, now)

    # Parts

    def _topic(self, topic: str) -> TopicConfig:
        config = self._topics.get(topic)
        if config is None:
            raise OperationRefusedError(Reason.NO_TOPIC, f"topic[{topic}] not exist")
        return config

    def _configs(self, topics: Iterable[str]) -> Iterator[TopicConfig]:
        for topic in topics:
            config = self._topics.get(topic)
            if config is not None:
                yield config

    def _topics_read(self, group: str) -> list[str]:
        """Return the topics in which a group has offsets, without those that its consumers no longer subscribe to."""
        online = self._clients.group(group)
        wanted = online.subscriptions if online else {}
        return [topic for topic in self._offsets.topics_of(group) if not wanted or topic in wanted]

    def _progress(self, group: str, configs: Iterable[TopicConfig]) -> Iterator[QueueProgress]:
        for config in configs:
            topic = config.topic
            for queue_id in range(config.read_queue_count):
                consumed = max(self._offsets.get(group, topic, queue_id), 0)
                yield QueueProgress(
                    topic,
                    queue_id,
                    next_offset_of(self._store, topic, queue_id),
                    consumed,
                    max(self._offsets.pulled(group, topic, queue_id), consumed),
                    max(store_timestamp(self._store, topic, queue_id, consumed - 1), 0),
                )


def _check_count(configs: Iterable[TopicConfig]) -> None:
    """Check that an answer can list all queues of some topics; raises ``OperationRefusedError``."""
    if (count := sum(config.read_queue_count for config in configs)) > MAX_QUEUES_OF_ANSWER:
        text = f"an answer lists at most {MAX_QUEUES_OF_ANSWER:,} queues, not {count:,}: request fewer topics"
        raise OperationRefusedError(Reason.NOT_POSSIBLE, text)
