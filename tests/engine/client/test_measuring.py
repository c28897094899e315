"""What a load comes to, against sorted lists of the same numbers."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.client.measuring import Flow, Histogram, LoadTally, compare, total

times = st.lists(st.integers(0, 1 << 40) | st.integers(0, 600), min_size=1)


def histogram(values: list[int]) -> Histogram:
    counted = Histogram()
    for value in values:
        counted.add(value)
    return counted


@given(times, st.floats(0, 100))
def test_a_percentile_is_that_of_the_sorted_times_or_at_most_a_128th_more(values: list[int], percent: float) -> None:
    exact = sorted(values)[max(1, math.ceil(len(values) * percent / 100)) - 1]

    found = histogram(values).percentile(percent)

    assert exact <= found <= exact * (1 + 1 / 128)
    assert found <= max(values)
    assert exact >= 256 or found == exact


@given(times)
def test_however_many_times_there_are_the_buckets_are_few(values: list[int]) -> None:
    counted = histogram(values)

    assert counted.count == len(values)
    assert counted.max == max(values)
    assert len(counted._buckets) <= 40 * 128


@given(times, times)
def test_two_histograms_together_are_that_of_all_times(some: list[int], others: list[int]) -> None:
    both, one = histogram(some + others), histogram(some)
    one.update(histogram(others))

    assert vars(one) == vars(both)


@given(times)
def test_bars_lie_side_by_side_and_count_every_time_once(values: list[int]) -> None:
    bars = histogram(values).bars()

    assert [one.high for one in bars[:-1]] == [one.low for one in bars[1:]]
    assert sum(bar.count for bar in bars) == len(values)
    assert bars[0].count
    assert bars[-1].count
    for number, bar in enumerate(bars, 1):
        # The bucket of an edge may begin below it: a time may stand a bar too low, by less than a 128th of it.
        below = sum(one.count for one in bars[:number])
        assert sum(time < bar.high for time in values) <= below <= sum(time < bar.high * 129 / 128 for time in values)


def test_without_times_there_is_nothing_to_tell() -> None:
    empty = Histogram()

    assert (empty.percentile(99), empty.bars(), empty.max, Flow().rate) == (0, [], 0, 0.0)


@given(st.lists(st.tuples(times, times, st.sampled_from("AB")), max_size=4))
def test_rounds_add_up(rounds: list[tuple[list[int], list[int], str]]) -> None:
    tallies = [LoadTally(Flow(histogram(a), 1.0), Flow(histogram(b), 2.0), Counter(name)) for a, b, name in rounds]

    together = total(tallies)

    assert together.sent.times.count == sum(len(sent) for sent, _, _ in rounds)
    assert together.consumed.seconds == 2.0 * len(rounds)
    assert together.errors == Counter(name for _, _, name in rounds)
    assert together.missing == max(0, together.sent.times.count - together.consumed.times.count)
    if rounds:
        assert together.sent.rate == pytest.approx(together.sent.times.count / len(rounds))


@given(st.lists(st.tuples(st.floats(1, 1e6), st.floats(1, 1e6)), min_size=1))
def test_ratios_are_those_of_rounds_side_by_side(pairs: list[tuple[float, float]]) -> None:
    firsts, seconds = ([pair[i] for pair in pairs] for i in (0, 1))

    found = compare(firsts, seconds)

    assert found is not None
    assert (found.least, found.most) == (min(b / a for a, b in pairs), max(b / a for a, b in pairs))
    assert found.least <= found.ratio <= found.most
    assert min(firsts) <= found.first <= max(firsts)


def test_a_round_without_a_figure_is_held_against_nothing() -> None:
    assert compare([0.0, 2.0], [1.0, 3.0]) == (2.0, 3.0, 1.5, 1.5, 1.5)
    assert compare([0.0], [1.0]) is None
    assert compare([], []) is None
