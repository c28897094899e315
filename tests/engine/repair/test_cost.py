"""Twice the store, or twice the damage, takes twice the steps; never four times.

These are the quick ones: ``python -m tests.campaigns.cost`` holds every command against everything by itself.
"""

from pathlib import Path

import pytest

from tests.cost import COMMANDS, MOST, STORES, growth_of


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder for stores of everything, which are made once for all commands."""
    return tmp_path_factory.mktemp("everything")


@pytest.mark.parametrize("name", COMMANDS)
def test_twice_of_everything_takes_a_command_twice_the_steps(name: str, memory_path: Path, kept: Path) -> None:
    assert growth_of(name, *STORES["everything"], memory_path, kept) <= MOST


@pytest.mark.parametrize(
    "store",
    [
        "messages of a missing segment",
        "messages of a missing segment, without queues",
        "damaged bodies side by side",
        "segments",
        "groups",
    ],
)
def test_recover_takes_twice_the_steps_for_twice_as_much_damage(store: str, memory_path: Path) -> None:
    assert growth_of("recover", *STORES[store], memory_path) <= MOST


@pytest.mark.parametrize("name", ["find --text", "compare", "salvage --merge"])
def test_hundreds_of_missing_segments_take_no_more_than_their_share(name: str, memory_path: Path) -> None:
    """Each looked at all segments for each gap: 2.5, 2.3 and 2.7 times as much for twice as many."""
    assert growth_of(name, *STORES["segments"], memory_path) <= MOST
