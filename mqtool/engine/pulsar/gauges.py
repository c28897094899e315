"""Metrics of the door for Pulsar clients for Prometheus, by Pulsar's names and labels.

(Names: Pulsar's metrics of topics and subscriptions.)
"""

from collections.abc import Iterator

from mqtool.engine.broker.gauges import Gauge, Row
from mqtool.engine.pulsar.subscription import PulsarSubscription
from mqtool.engine.pulsar.topics import PulsarTopics, QueueTopic

_OF_TOPICS = ("cluster", "topic")
_OF_SUBSCRIPTIONS = (*_OF_TOPICS, "subscription")


def pulsar_gauges(topics: PulsarTopics, cluster: str) -> Iterator[Gauge]:
    """Yield the gauges of all topics that Pulsar clients use. Cost: linear in subscriptions."""
    queues = [*topics.queues.values()]
    for queue in queues:
        topics.follow_all(queue)

    def place(queue: QueueTopic) -> tuple[str, ...]:
        return cluster, queue.place.full_name

    def of_topics(name: str, meaning: str, rows: list[Row]) -> Gauge:
        return Gauge(name, meaning, _OF_TOPICS, rows)

    subscriptions: list[tuple[tuple[str, ...], PulsarSubscription]] = [
        ((*place(queue), subscription.subscription.name), subscription.subscription)
        for queue in queues
        for subscription in queue.subscriptions.values()
        if subscription.is_durable
    ]

    def of_subscriptions(name: str, meaning: str, rows: list[Row]) -> Gauge:
        return Gauge(f"pulsar_subscription_{name}", meaning, _OF_SUBSCRIPTIONS, rows)

    yield of_topics(
        "pulsar_producers_count", "Producers.", [(place(queue), len(queue.producers.by_name)) for queue in queues]
    )
    yield of_topics(
        "pulsar_subscriptions_count", "Subscriptions.", [(place(queue), len(queue.subscriptions)) for queue in queues]
    )
    yield of_subscriptions(
        "consumers_count",
        "Consumers.",
        [(labels, len(subscription.consumers)) for labels, subscription in subscriptions],
    )
    yield of_subscriptions(
        "back_log",
        "Messages that are not acknowledged.",
        [(labels, subscription.backlog) for labels, subscription in subscriptions],
    )
    yield of_subscriptions(
        "unacked_messages",
        "Messages that consumers of Shared or Key_Shared subscriptions have received and not acknowledged.",
        [(labels, subscription.unacked) for labels, subscription in subscriptions],
    )
    yield of_subscriptions(
        "lost_messages",
        "Messages that were removed, or cannot be read, before they were acknowledged, since the broker started.",
        [(labels, subscription.lost) for labels, subscription in subscriptions],
    )
