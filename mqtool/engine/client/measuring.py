"""Results of a load test: counts, latencies in a histogram of bounded size, errors by name; and comparisons."""

import itertools
import math
import statistics
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_EXACT_BITS = 7
"""Times are kept to this many binary digits: they are at most 1/128 too long."""
_EDGES = (10, 15, 20, 30, 50, 70)  # of the bars of a histogram, and these times 10, 100, ..


class Histogram:
    """Counts of times in µs, in logarithmic buckets: exact below 256 µs, above that within 1/128.

    (The idea is that of HdrHistogram.)
    """

    def __init__(self) -> None:
        self.count = 0
        self.max = 0
        self._buckets: Counter[int] = Counter()

    def add(self, spent: int) -> None:
        """Count a time in µs; one below 0 counts as 0."""
        spent = max(spent, 0)
        self.count += 1
        self.max = max(self.max, spent)
        shift = max(0, spent.bit_length() - _EXACT_BITS - 1)
        self._buckets[(shift << _EXACT_BITS) + (spent >> shift)] += 1

    def update(self, other: "Histogram") -> None:
        """Add the counts of another histogram."""
        self.count += other.count
        self.max = max(self.max, other.max)
        self._buckets += other._buckets

    def percentile(self, percent: float) -> int:
        """Return a percentile: the longest time of its bucket, 0 if there are no times."""
        wanted = max(1, math.ceil(self.count * percent / 100))
        seen = 0
        for bucket, count in sorted(self._buckets.items()):
            seen += count
            if seen >= wanted:
                return min(_ends(bucket)[1], self.max)
        return 0

    def bars(self) -> list["Bar"]:
        """Return the number of times between round values, from the bar of the shortest to that of the longest."""
        bars: list[Bar] = []
        waiting = deque(sorted(self._buckets.items()))
        for low, high in itertools.pairwise(_edges()):
            count = 0
            while waiting and _ends(waiting[0][0])[0] < high:
                count += waiting.popleft()[1]
            if bars or count:
                bars.append(Bar(low, high, count))
            if not waiting:
                break
        return bars


@dataclass(frozen=True, slots=True)
class Bar:
    """The number of times from ``low`` µs up to but not including ``high``."""

    low: int
    high: int
    count: int


def _ends(bucket: int) -> tuple[int, int]:
    """Return the shortest and the longest time of a bucket."""
    shift = max(0, (bucket >> _EXACT_BITS) - 1)
    first = bucket - (shift << _EXACT_BITS)
    return first << shift, (first + 1 << shift) - 1


def _edges() -> Iterator[int]:
    yield 0
    scale = 1
    while True:
        for edge in _EDGES:
            yield edge * scale
        scale *= 10


@dataclass
class Flow:
    """Messages in one direction: how many in how many seconds, and the latency of each."""

    times: Histogram = field(default_factory=Histogram)
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.times.count / self.seconds if self.seconds else 0.0

    def update(self, other: "Flow") -> None:
        """Add the result of another round."""
        self.times.update(other.times)
        self.seconds += other.seconds


@dataclass
class LoadTally:
    """The result of one round of a load test.

    Attributes:
        sent: messages that a broker has stored; latency until the answer, from when they were due if there is a rate.
        consumed: delivered messages; latency from the same moment until a consumer got them.
        errors: failed messages, by the name of the error.
    """

    sent: Flow = field(default_factory=Flow)
    consumed: Flow = field(default_factory=Flow)
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def missing(self) -> int:
        """How many messages were stored but not delivered."""
        return max(0, self.sent.times.count - self.consumed.times.count)

    def update(self, other: "LoadTally") -> None:
        """Add the result of another round."""
        self.sent.update(other.sent)
        self.consumed.update(other.consumed)
        self.errors += other.errors


def total(tallies: Iterable[LoadTally]) -> LoadTally:
    """Return the total of several rounds."""
    sum_of_all = LoadTally()
    for tally in tallies:
        sum_of_all.update(tally)
    return sum_of_all


class Comparison(NamedTuple):
    """A metric of two targets: the median of each, and the ratio of the second to the first, by pairs of rounds."""

    first: float
    second: float
    ratio: float  # the median
    least: float
    most: float


def compare(first: Sequence[float], second: Sequence[float]) -> Comparison | None:
    """Compare the rounds of two targets, pair by pair.

    None if nothing was measured.

    >>> compare([100.0, 200.0, 100.0], [110.0, 180.0, 100.0])
    Comparison(first=100.0, second=110.0, ratio=1.0, least=0.9, most=1.1)
    """
    pairs = [(left, right) for left, right in zip(first, second, strict=False) if left and right]
    if not pairs:
        return None
    ratios = [right / left for left, right in pairs]
    first_median, second_median = (statistics.median(values) for values in zip(*pairs, strict=True))
    return Comparison(first_median, second_median, statistics.median(ratios), min(ratios), max(ratios))
