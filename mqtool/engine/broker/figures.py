"""How much a broker does: messages stored and given out, in all and a second.

(RocketMQ: ``StoreStatsService``.)
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from mqtool.formats.remoting import Outgoing

SAMPLE_INTERVAL_MS = 10_000
SPANS_MS = (10_000, 60_000, 600_000)
"""Over which rates are told."""


class _Sample(NamedTuple):
    timestamp: int  # ms
    stored: int
    given: int


class Figures:
    """Counts of messages, and a sample of them every ten seconds for as long as the longest span."""

    def __init__(self, now: int) -> None:
        self.started = now
        self.stored = 0
        """Messages that can be read, since the start."""
        self.given = 0
        """Messages that consumers were given."""
        self._samples = deque([_Sample(now, 0, 0)], maxlen=SPANS_MS[-1] // SAMPLE_INTERVAL_MS + 1)

    def arrived(self, topic: str, queue_id: int, next_offset: int, tags_code: int, now: int) -> None:  # noqa: ARG002
        """Count a message that can be read."""
        self.stored += 1

    def stored_rates(self, now: int) -> tuple[float, ...]:
        """Return the messages stored a second, over each of the spans."""
        return tuple(_rate(now, self.stored, (one.timestamp, one.stored)) for one in self._starts(now))

    def given_rates(self, now: int) -> tuple[float, ...]:
        """Return the messages given out a second, over each of the spans."""
        return tuple(_rate(now, self.given, (one.timestamp, one.given)) for one in self._starts(now))

    def _starts(self, now: int) -> list[_Sample]:
        """Return the sample that each span begins with: the newest that is old enough, or the first."""
        return [
            next((one for one in reversed(self._samples) if now - one.timestamp >= span), self._samples[0])
            for span in SPANS_MS
        ]

    def tick(self, now: int) -> Iterable[Outgoing]:
        """Take a sample when it is time."""
        if now - self._samples[-1].timestamp >= SAMPLE_INTERVAL_MS:
            self._samples.append(_Sample(now, self.stored, self.given))
        return ()

    def next_tick(self, now: int) -> int | None:  # noqa: ARG002
        """Return when the next sample is due, None while nothing happens."""
        last = self._samples[-1]
        is_idle = (last.stored, last.given) == (self.stored, self.given)
        return None if is_idle else last.timestamp + SAMPLE_INTERVAL_MS


def _rate(now: int, count: int, start: tuple[int, int]) -> float:
    return (count - start[1]) * 1000 / max(now - start[0], 1)
