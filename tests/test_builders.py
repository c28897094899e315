"""Stores that the builders write are sound: two sets of rules held against each other."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mqtool
from tests import builders
from tests.builders import Draft, StoreSizes


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("stores")
    return (home / str(number) for number in itertools.count())


sizes = st.builds(
    StoreSizes,
    segment=st.sampled_from([1024, 4096]),
    queue_file=st.sampled_from([40, 100]),
    slots=st.integers(1, 12),
    entries=st.integers(2, 30),
)


@given(builders.drafts, sizes, st.sampled_from([0, 4096 * 3]), st.booleans())
def test_in_a_store_that_was_made_up_nothing_is_wrong(
    stores: Iterator[Path], drafts: list[Draft], sizes: StoreSizes, start_offset: int, tags_in_index: bool
) -> None:
    root = next(stores)
    root.mkdir()
    builders.write_store(root, drafts, sizes, start_offset, tags_in_index)

    found = mqtool.verify_store(mqtool.open_store(root, sizes.settings))

    assert [finding for finding in found if finding.severity != "note"] == []
