"""Prometheus metrics of clients, with names, labels and buckets of RocketMQ's Java client; times in ms.

(RocketMQ: ``HistogramEnum``, ``GaugeEnum``, ``MetricLabels`` of ``rocketmq-client-java``. Its
``rocketmq_delivery_latency`` is missing: with remoting, brokers do not say when they delivered a message.)
"""

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

from prometheus_client import REGISTRY, CollectorRegistry, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from mqtool.engine.client.consuming import ConsumeStatus
from mqtool.engine.client_runtime.hooks import Hook
from mqtool.errors import UsageError

if TYPE_CHECKING:
    from mqtool.engine.client.incoming import ConsumerMessage
    from mqtool.engine.client.outgoing import ProducerMessage

_SENT = ("topic", "client_id", "invocation_status")
_CONSUMED = ("topic", "client_id", "consumer_group")


class Measured(Protocol):
    """A client whose metrics are collected."""

    group: str

    @property
    def client_id(self) -> str:
        """The id by which brokers know it."""
        ...


class Holding(Measured, Protocol):
    """A consumer that pulls ahead."""

    def _held_sizes(self) -> Iterable[tuple[str, int, int]]:
        """Return topic, messages and bytes of each assigned queue; called by any thread."""
        ...


class _Registered(Collector):
    """The metrics that all clients of one registry share."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, meaning: str, labels: Sequence[str], *buckets: float) -> Histogram:
            return Histogram(name, meaning, labels, registry=registry, buckets=buckets)

        self.send = histogram("rocketmq_send_cost_time", "Duration of a send in ms.", _SENT, 1, 5, 10, 20, 50, 200, 500)
        self.wait = histogram(
            "rocketmq_await_time",
            "ms from the arrival of a message at a client until a listener, or the program, received it.",
            _CONSUMED,
            *(1, 5, 20, 100, 1000, 5000, 10_000),
        )
        self.process = histogram(
            "rocketmq_process_time",
            "Duration of a listener call in ms.",
            (*_CONSUMED, "invocation_status"),
            *(1, 5, 10, 100, 1000, 10_000, 60_000),
        )
        self.consumers: WeakSet[Holding] = WeakSet()
        registry.register(self)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return (
            GaugeMetricFamily(
                "rocketmq_consumer_cached_messages", "Messages that are waiting or being processed.", None, _CONSUMED
            ),
            GaugeMetricFamily("rocketmq_consumer_cached_bytes", "Bytes of their bodies.", None, _CONSUMED),
        )

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the current gauges; called by any thread."""
        messages, sizes = families = [*self.describe()]
        for consumer in [*self.consumers]:
            totals: dict[str, tuple[int, int]] = {}
            for topic, held_count, held_size in consumer._held_sizes():
                count, size = totals.get(topic, (0, 0))
                totals[topic] = (count + held_count, size + held_size)
            for topic, (count, size) in totals.items():
                labels = (topic, consumer.client_id, consumer.group)
                messages.add_metric(labels, count)
                sizes.add_metric(labels, size)
        return families


_registered: "WeakKeyDictionary[CollectorRegistry, _Registered]" = WeakKeyDictionary()


class ClientMetrics(Hook):
    """Collects metrics of one client's sending or consuming."""

    def __init__(self, client: Measured, registry: Any) -> None:
        """Collect metrics in a registry of ``prometheus_client``, True for its default.

        Raises:
            UsageError: it is not a registry, or has other metrics with these names.
        """
        registry = REGISTRY if registry is True else registry
        if not isinstance(registry, CollectorRegistry):
            raise UsageError(f"metrics must be True or a CollectorRegistry of prometheus_client, not {registry!r}")
        if registry not in _registered:
            try:
                _registered[registry] = _Registered(registry)
            except ValueError as error:
                raise UsageError(f"this registry cannot hold the metrics of clients: {error}") from error
        self._all = _registered[registry]
        self._id, self._group = client.client_id, client.group

    def watch(self, consumer: Holding) -> None:
        """Report what a consumer has pulled ahead, as long as the consumer exists."""
        self._all.consumers.add(consumer)

    def before_send(self, messages: "Sequence[ProducerMessage]", group: str) -> float:  # noqa: ARG002
        """Note the time."""
        return time.perf_counter()

    def after_send(
        self,
        messages: "Sequence[ProducerMessage]",
        started: float,
        results: Sequence[Any],  # noqa: ARG002
        error: BaseException | None,
    ) -> None:
        """Count each message with the time that the whole send took."""
        took_ms, status = (time.perf_counter() - started) * 1000, "failure" if error else "success"
        for message in messages:
            self._all.send.labels(message.topic, self._id, status).observe(took_ms)

    def given(self, messages: "Sequence[ConsumerMessage]") -> None:
        """Count how long messages have waited in this client."""
        now = time.perf_counter()
        for message in messages:
            if message.received_at:
                self._all.wait.labels(message.topic, self._id, self._group).observe((now - message.received_at) * 1000)

    def before_consume(self, messages: "Sequence[ConsumerMessage]", group: str) -> float:  # noqa: ARG002
        """Count how long messages have waited, and note the time."""
        self.given(messages)
        return time.perf_counter()

    def after_consume(
        self, messages: "Sequence[ConsumerMessage]", started: float, status: Any, error: BaseException | None
    ) -> None:
        """Count each message with the time that the whole listener call took."""
        took_ms = (time.perf_counter() - started) * 1000
        outcome = "failure" if error or status is ConsumeStatus.LATER else "success"
        for message in messages:
            self._all.process.labels(message.topic, self._id, self._group, outcome).observe(took_ms)
