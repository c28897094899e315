"""``mqtool serve`` killed while producers send; ``tests/campaigns/kills.py`` does it hundreds of times."""

import asyncio
import copy
from pathlib import Path

import pytest

from tests.campaigns.kills import Sent, check, run_kills


def test_what_was_acknowledged_before_kills_is_there_once_and_in_order(tmp_path: Path) -> None:
    outcome = asyncio.run(run_kills(tmp_path, kills=3, seed=4))

    assert outcome.acknowledged > 100
    assert outcome.recovered == 0


def test_the_count_sees_what_is_lost_there_twice_or_out_of_order() -> None:
    sent = [Sent("Plain", 0, "lane", number, 1, number) for number in range(3)]
    found = {"Plain": {0: [one.body for one in sent]}}
    assert check(sent, found) == 0

    for wrong in (["lane 0", "lane 1"], ["lane 0", "lane 2", "lane 1"], ["lane 0", "lane 1", "lane 2", "lane 2"]):
        broken = copy.deepcopy(found)
        broken["Plain"][0] = wrong
        with pytest.raises(AssertionError):
            check(sent, broken)
