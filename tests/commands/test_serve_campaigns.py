"""The campaigns against ``mqtool serve`` in short: killed while producers send, and sent what is no request."""

import asyncio
import copy
from pathlib import Path

import pytest

from tests.campaigns.fuzz import run_fuzz
from tests.campaigns.hostile import ATTACKS, run_hostile
from tests.campaigns.kills import CLIENTS, LANES, Sent, check, run_kills
from tests.campaigns.orphans import run_orphans


def test_what_was_acknowledged_before_kills_is_there_once_and_in_order(tmp_path: Path) -> None:
    outcome = asyncio.run(run_kills(tmp_path, kills=3, seed=4))

    assert outcome.acknowledged >= CLIENTS * LANES  # each lane ends with one
    assert outcome.recovered == 0


def test_a_broker_and_a_name_server_live_on_whatever_they_are_sent(tmp_path: Path) -> None:
    count = asyncio.run(run_fuzz(tmp_path, frames=500, seed=3))

    assert count.frames >= 500
    assert count.broken > 0
    assert count.asked > 0
    assert len(count.answers) > 5


def test_an_honest_client_is_served_beside_hostile_ones(tmp_path: Path) -> None:
    rows = asyncio.run(run_hostile(tmp_path, 0.05, ATTACKS[7::12]))

    assert len(rows) > 4
    assert all(row.honest.count for row in rows)
    assert len(ATTACKS) > 40


def test_no_process_outlives_a_kill(tmp_path: Path) -> None:
    done, _ = run_orphans(tmp_path, kills=4, seed=3)

    assert done.total() == 4


def test_the_count_sees_what_is_lost_there_twice_or_out_of_order() -> None:
    sent = [Sent("Plain", 0, "lane", number, 1, number) for number in range(3)]
    found = {"Plain": {0: [one.body for one in sent]}}
    assert check(sent, found) == 0

    for wrong in (["lane 0", "lane 1"], ["lane 0", "lane 2", "lane 1"], ["lane 0", "lane 1", "lane 2", "lane 2"]):
        broken = copy.deepcopy(found)
        broken["Plain"][0] = wrong
        with pytest.raises(AssertionError):
            check(sent, broken)
