"""How fast subscriptions deliver messages: as fast as entries can be read, and as fast as limits allow.

Times are in ms. (Rules: pulsar.md 5.2, 5.7. Pulsar: ``DispatchRateLimiter``.)
"""

from collections.abc import Callable
from typing import NamedTuple

_MOST = 100
_FIRST_WAIT_MS, _LONGEST_WAIT_MS = 15_000, 60_000
_SOON_MS = 100
"""How long a limit refills before delivery resumes: a timer for each message would cost too much."""


class ReadPace:
    """How many entries a subscription reads in a turn: one after an error, then twice as many in each turn."""

    def __init__(self) -> None:
        self.most = _MOST
        self.retry_at: int | None = None
        """When to read again after an error."""
        self._wait_ms = _FIRST_WAIT_MS

    def failed(self, now: int) -> None:
        """Note that reading failed."""
        self.most = 1
        self.retry_at = now + self._wait_ms
        self._wait_ms = min(2 * self._wait_ms, _LONGEST_WAIT_MS)

    def set_back(self, now: int) -> None:
        """Wait no longer than before: the clock was set back."""
        if self.retry_at is not None:
            self.retry_at = min(self.retry_at, now + self._wait_ms)

    def succeeded(self) -> None:
        """Note a turn without an error."""
        if self.retry_at is not None or self.most < _MOST:
            self.most = min(2 * self.most, _MOST)
            self.retry_at = None
            self._wait_ms = _FIRST_WAIT_MS


class Rates(NamedTuple):
    """What may be delivered per second; 0 or less for no limit."""

    messages: int
    bytes: int


class DispatchRate:
    """A rate limit of deliveries: it refills over time up to the amount allowed per second.

    Entries may be delivered as long as anything is left, so the last entry before a wait may exceed the limit.
    """

    def __init__(self, rates: Callable[[], Rates]) -> None:
        """Make one whose rates may change while it is used."""
        self._rates = rates
        self._left: list[float] = []
        self._at = 0

    @property
    def is_on(self) -> bool:
        """Whether there is a limit at all."""
        return any(rate > 0 for rate in self._rates())

    def wait_ms(self, now: int) -> int:
        """Return how long to wait before the next delivery, 0 for not at all."""
        rates = self._rates()
        passed = max(now - self._at, 0)  # the clock may have been set back
        self._at = now
        if not self._left:
            self._left = [*map(float, rates)]
        self._left = [
            min(left + rate * passed / 1000, float(rate)) if rate > 0 else 0.0
            for left, rate in zip(self._left, rates, strict=True)
        ]
        return max(
            int(-left * 1000 / rate) + _SOON_MS if rate > 0 and left <= 0 else 0
            for left, rate in zip(self._left, rates, strict=True)
        )

    def take(self, messages: int, size: int) -> None:
        """Charge a delivered entry: its number of messages and bytes."""
        self._left = [self._left[0] - messages, self._left[1] - size]
