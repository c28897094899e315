"""Which brokers a producer avoids for a while because they were slow or failed.

(RocketMQ: ``MQFaultStrategy``, ``LatencyFaultToleranceImpl``. Off by default there and here.)
"""

from collections.abc import Sequence

LATENCIES_MS = (50, 100, 550, 1800, 3000, 5000, 15_000)
"""The latency from which a broker counts as slow, by level, .."""
AVOIDED_MS = (0, 0, 2000, 5000, 6000, 10_000, 30_000)
""".. and how long it is then avoided. (Values of 5.x; 4.9 avoids a broker for 30 s from 550 ms on, up to 600 s.)"""
FAILED_MS = 10_000
"""The latency that a failure counts as."""


class FaultLatency:
    """Brokers by name, and until when they are avoided."""

    def __init__(self, latencies_ms: Sequence[int] = LATENCIES_MS, avoided_ms: Sequence[int] = AVOIDED_MS) -> None:
        self._levels = sorted(zip(latencies_ms, avoided_ms, strict=True), reverse=True)
        self._until: dict[str, int] = {}
        self._latencies: dict[str, int] = {}

    def took(self, broker_name: str, latency_ms: int, now: int) -> None:
        """Note how long a broker took for an answer."""
        avoided_ms = next((avoided for latency, avoided in self._levels if latency_ms >= latency), 0)
        self._latencies[broker_name] = latency_ms
        self._until[broker_name] = now + avoided_ms

    def failed(self, broker_name: str, now: int) -> None:
        """Note that a request to a broker failed."""
        self.took(broker_name, FAILED_MS, now)

    def is_available(self, broker_name: str, now: int) -> bool:
        """Return whether a broker is not avoided now."""
        return now >= self._until.get(broker_name, 0)

    def least_bad(self, broker_names: Sequence[str]) -> str:
        """Return the broker to use if all of them are avoided: the fastest one."""
        return min(broker_names, key=lambda name: (self._latencies.get(name, 0), self._until.get(name, 0)))
