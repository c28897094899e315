"""Statistics of a broker: messages stored and delivered, in total and per second, by topic and by group.

(RocketMQ: ``StoreStatsService``, ``BrokerStatsManager``.)
"""

import datetime
from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

from mqtool.engine.broker.limits import MAX_COUNTED, MAX_NAME

SAMPLE_INTERVAL_MS = 10_000
SPANS_MS = (10_000, 60_000, 600_000)
"""Spans over which rates are computed."""

Key = tuple[str, str]
"""Topic and group."""


class _Sample(NamedTuple):
    timestamp: int  # ms
    stored: int
    delivered: int


class _Counts(NamedTuple):
    """Messages, and bytes of them, since the start."""

    stored: dict[str, int]  # by topic
    delivered: dict[Key, int]
    delivered_bytes: dict[Key, int]
    sent_back: dict[Key, int]


class _Marks(NamedTuple):
    """Samples of the counts."""

    interval: int  # ms
    kept: "deque[tuple[int, _Counts]]"


class Share(NamedTuple):
    """Totals and rates over a span."""

    sum: int
    rate: float  # a second


class BrokerStatsManager:
    """Counts of messages, with samples while they change: every ten seconds, ten minutes and hour."""

    def __init__(self, now: int) -> None:
        self.started = now
        self.stored = 0
        """Messages that can be read, since the start."""
        self.delivered = 0
        """Messages delivered to consumers."""
        self.counts = _Counts(defaultdict(int), defaultdict(int), defaultdict(int), defaultdict(int))
        self.mornings = _Sample(now, 0, 0), _Sample(now, 0, 0)
        """The counts when yesterday and today began, in local time; or when the broker was started."""
        self._day_ends = _next_day(now)
        self._samples = deque([_Sample(now, 0, 0)], maxlen=SPANS_MS[-1] // SAMPLE_INTERVAL_MS + 1)
        self._marks = [
            _Marks(interval, deque([(now, _copy(self.counts))], maxlen=number))
            for interval, number in ((SAMPLE_INTERVAL_MS, 7), (600_000, 7), (3_600_000, 25))
        ]

    # Counting

    def arrived(
        self,
        topic: str,
        queue_id: int,  # noqa: ARG002
        next_offset: int,  # noqa: ARG002
        tags_codes: Sequence[int],
        now: int,  # noqa: ARG002
    ) -> None:
        """Count messages that can be read."""
        self.stored += len(tags_codes)
        self.counts.stored[topic] += len(tags_codes)

    def gave(self, topic: str, group: str, count: int, size: int) -> None:
        """Count messages delivered to a group, and their bytes."""
        self.delivered += count
        delivered, key = self.counts.delivered, (topic, group)
        if key in delivered or len(delivered) < MAX_COUNTED:
            delivered[key] += count
            self.counts.delivered_bytes[key] += size

    def sent_back(self, topic: str, group: str) -> None:
        """Count a message of a topic that a group sent back to consume it later."""
        sent_back, key = self.counts.sent_back, (topic, group)
        if key in sent_back or (len(sent_back) < MAX_COUNTED and len(topic) <= MAX_NAME):  # a property of a message
            sent_back[key] += 1

    def forget_topics(self, topics: Collection[str], now: int) -> None:  # noqa: ARG002
        """Forget the counts of deleted topics."""
        for topic in topics:
            self.counts.stored.pop(topic, None)
        for counts in (self.counts.delivered, self.counts.delivered_bytes, self.counts.sent_back):
            for key in [key for key in counts if key[0] in topics]:
                del counts[key]

    # Queries

    def stored_rates(self, now: int) -> tuple[float, ...]:
        """Return the messages stored per second, over each of the spans."""
        return tuple(_rate(now, self.stored, (sample.timestamp, sample.stored)) for sample in self._starts(now))

    def delivered_rates(self, now: int) -> tuple[float, ...]:
        """Return the messages delivered per second, over each of the spans."""
        return tuple(_rate(now, self.delivered, (sample.timestamp, sample.delivered)) for sample in self._starts(now))

    def shares(self, kind: str, key: str | Key, now: int) -> tuple[Share, ...] | None:
        """Return totals and rates over the last minute, hour and day, None if nothing was ever counted.

        Args:
            kind: ``stored`` (by topic), ``delivered``, ``delivered_bytes`` or ``sent_back`` (by topic and group).
            key: which of them.
            now: the time, in ms.
        """
        total = getattr(self.counts, kind).get(key)
        if total is None:
            return None
        shares = []
        for interval, kept in self._marks:
            span = interval * (kept.maxlen or 1) - interval
            then, counts = next((sample for sample in reversed(kept) if now - sample[0] >= span), kept[0])
            before = getattr(counts, kind).get(key, 0)
            shares.append(Share(total - before, _rate(now, total, (then, before))))
        return tuple(shares)

    def rate(self, kind: str, key: str | Key, now: int) -> float:
        """Return the rate per second over the last minute; ``kind`` and ``key`` as for ``shares``."""
        shares = self.shares(kind, key, now)
        return shares[0].rate if shares else 0.0

    def _starts(self, now: int) -> list[_Sample]:
        """Return the sample at the start of each span: the newest that is old enough, or the first."""
        return [
            next((sample for sample in reversed(self._samples) if now - sample.timestamp >= span), self._samples[0])
            for span in SPANS_MS
        ]

    # Sampling

    def tick(self, now: int) -> None:
        """Take a sample when it is time, and when a day begins."""
        if now >= self._day_ends:
            self._day_ends = _next_day(now)
            self.mornings = self.mornings[1], _Sample(now, self.stored, self.delivered)
        if now - self._samples[-1].timestamp >= SAMPLE_INTERVAL_MS:
            self._samples.append(_Sample(now, self.stored, self.delivered))
            for interval, kept in self._marks:
                if now - kept[-1][0] >= interval:
                    kept.append((now, _copy(self.counts)))

    def next_tick(self, now: int) -> int | None:  # noqa: ARG002
        """Return when the next sample is due, None while nothing happens."""
        last = self._samples[-1]
        is_idle = last.stored == self.stored and last.delivered == self.delivered
        return None if is_idle else last.timestamp + SAMPLE_INTERVAL_MS


def _next_day(now: int) -> int:
    """Return when tomorrow begins here, in ms."""
    day = datetime.datetime.fromtimestamp(now / 1000, datetime.UTC).astimezone().date() + datetime.timedelta(days=1)
    return int(datetime.datetime(day.year, day.month, day.day).astimezone().timestamp() * 1000)


def _copy(counts: _Counts) -> _Counts:
    return _Counts(*({**counter} for counter in counts))


def _rate(now: int, count: int, start: tuple[int, int]) -> float:
    return (count - start[1]) * 1000 / max(now - start[0], 1)
