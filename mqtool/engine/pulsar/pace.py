"""How fast subscriptions give out messages: as fast as entries can be read, and as fast as limits allow.

Times are in ms. (Rules: pulsar.md 5.2, 5.7. Pulsar: ``DispatchRateLimiter``.)
"""

from collections.abc import Callable
from typing import NamedTuple

_MOST = 100
_FIRST_WAIT_MS, _LONGEST_WAIT_MS = 15_000, 60_000
_SOON_MS = 100
"""How much of a limit is to be there again before it goes on, as a time: a timer for each message costs too much."""


class ReadPace:
    """How many entries a subscription reads in a turn: after a fault one, and twice as many in each turn after that."""

    def __init__(self) -> None:
        self.most = _MOST
        self.retry_at: int | None = None
        """When to read again after a fault."""
        self._wait_ms = _FIRST_WAIT_MS

    def failed(self, now: int) -> None:
        """Take note that nothing can be read now."""
        self.most = 1
        self.retry_at = now + self._wait_ms
        self._wait_ms = min(2 * self._wait_ms, _LONGEST_WAIT_MS)

    def succeeded(self) -> None:
        """Take note of a turn without a fault."""
        if self.retry_at is not None or self.most < _MOST:
            self.most = min(2 * self.most, _MOST)
            self.retry_at = None
            self._wait_ms = _FIRST_WAIT_MS


class Rates(NamedTuple):
    """What may be given out in a second; 0 or less for any number."""

    messages: int
    bytes: int


class DispatchRate:
    """A limit of what is given out: it fills up with time to what is allowed in a second.

    Something may be given as long as anything is left, so the last entry before it waits may be beyond the limit.
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
        """Return how long to wait before something may be given, 0 for not at all."""
        rates = self._rates()
        passed = now - self._at
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
        """Take note of an entry that is given out: how many messages and bytes it has."""
        self._left = [self._left[0] - messages, self._left[1] - size]
