"""Counting by columns, with plain kernels and compiled ones."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqtool.engine.store import stats
from mqtool.engine.store.commit_log import Gap
from mqtool.engine.store.reader import StoreReader
from mqtool.engine.store.stats import By, Count, Selection, Tally, count_messages
from mqtool.errors import MqtoolError
from mqtool.formats import scan
from tests import damage
from tests.golden import copy_of, golden_store


@pytest.mark.parametrize("name", ["mixed-533-clean", "special-550-kill", "batchcq-533-clean"])
def test_compiled_kernels_count_the_same(name: str) -> None:
    reader = StoreReader(golden_store(name))
    for by in By:
        tallies = []
        for kernels in (scan.kernels_for(0), scan.compiled_kernels()):
            tally = Tally(by, Selection())
            for table in reader.tables(kernels=kernels):
                if not isinstance(table, Gap):
                    tally.add(table)
            tallies.append(tally)

        assert tallies[0].groups == tallies[1].groups


@given(st.lists(st.integers(-(1 << 40), 1 << 40), min_size=1))
def test_numbers_that_lie_close_and_far_are_grouped_alike(codes: list[int]) -> None:
    array = np.array(codes)

    present, groups = stats._dense(array)

    assert present.tolist() == sorted(set(codes))
    assert present[groups].tolist() == codes


def test_sums_of_tallies_are_the_tally_of_all() -> None:
    reader = StoreReader(golden_store("many-533-clean"))
    end = reader.commit_log.end_offset
    whole = count_messages(reader, By.QUEUE, Selection(), 0, end).tally

    left = count_messages(reader, By.QUEUE, Selection(), 0, 100_000).tally
    left.merge(count_messages(reader, By.QUEUE, Selection(), 100_000, end).tally)

    assert left.groups == whole.groups
    assert whole.total().records == 700
    assert Tally(By.TOPIC, Selection()).total() == Count()


_copies: dict[str, Path] = {}


@given(st.data())
@settings(max_examples=30)
def test_whatever_is_damaged_counting_comes_to_an_end(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(["mixed-533-kill", "special-533-clean", "dledger-497-clean"]))
    if name not in _copies:
        _copies[name] = copy_of(name, tmp_path_factory.mktemp("copies"))
    store = _copies[name]
    pattern = "dledger-n0/data/0*" if name.startswith("dledger") else "commitlog/0*"
    op = data.draw(damage.flips(store, pattern) | damage.cuts(store, pattern))
    by = data.draw(st.sampled_from(By))

    with damage.damaged(store, op):
        reader = StoreReader(store)
        try:
            counted = count_messages(reader, by, Selection(), 0, reader.commit_log.end_offset, 2)
        except MqtoolError:
            return

    assert counted.tally.total().records <= 300
