"""Simulations of whole clusters in short: nothing that must not be, and each seed goes exactly as it went before."""

import asyncio
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

import pytest

from mqtool.engine.client.incoming import ConsumerMessage
from mqtool.engine.client.process_queue import ProcessQueue
from mqtool.formats.bodies import MessageQueue
from tests.campaigns.simulate import run, size_of
from tests.simulation.history import ConsumerKind, GroupHistory, History, ProducedMessage, ViolationError
from tests.simulation.network import NetworkLoop
from tests.simulation.scenario import Size
from tests.simulation.world import simulate

SMALL = Size((2, 2), (1, 1), (1, 1), (1, 1), (10.0, 10.0))
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", range(1, 6))
def test_whatever_a_seed_brings_all_is_consumed_in_order_and_shared_out(seed: int) -> None:
    outcome = run(seed)

    assert not outcome.violation
    assert outcome.acknowledged > 0
    assert outcome.consumed > 0


def test_many_clients_share_brokers_that_fail() -> None:
    outcome = run(1, size_of(30))

    assert not outcome.violation
    assert outcome.clients >= 23


def test_a_seed_goes_as_it_went_in_another_process_too() -> None:
    digests = set()
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "tests.campaigns.simulate", "--seeds", "2:3"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed}
        told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=ROOT)
        digests.add(tuple(re.findall("digest ([0-9a-f]+)", told.stdout)))
    digests.add(tuple(run(seed).digest[:16] for seed in (2, 3)))

    assert len(digests) == 1
    assert len(set(*digests)) == 2


def test_the_time_gets_to_a_moment_that_lies_between_two_nanoseconds() -> None:
    """A client that waits until then would look again and again, at the same time, for ever."""

    async def main(loop: NetworkLoop) -> None:
        await asyncio.sleep(65.192742481)
        end = loop.time() + 1e-14
        assert end > loop.time()
        async with asyncio.timeout(1):
            for _ in range(2):
                await asyncio.sleep(end - loop.time())
        assert loop.time() >= end

    simulate(1, main)


def test_a_client_that_commits_too_much_is_seen() -> None:
    remove = ProcessQueue.remove

    def remove_too_far(
        queue: ProcessQueue[ConsumerMessage], messages: Iterable[ConsumerMessage], now: int
    ) -> int | None:
        offset = remove(queue, messages, now)
        return None if offset is None else queue._max_offset + 1

    with mock.patch.object(ProcessQueue, "remove", remove_too_far):
        violations = (run(seed, SMALL).violation for seed in range(1, 20))
        seen = next(violation for violation in violations if violation)

    assert "but nobody has finished" in seen


def _message(offset: int, body: str = "", reconsume_times: int = 0) -> ConsumerMessage:
    text = (body or f"T L {offset}").encode()
    return ConsumerMessage("T", text, b"", "b", 0, offset, offset, 0, 0, reconsume_times, 0, "", 0, "")


@pytest.fixture
def history() -> History:
    history = History(lambda *_: False)
    for number in range(3):
        sent = ProducedMessage(f"T L {number}", "T", "red", "L", number, is_acknowledged=True)
        history.sent[sent.body] = sent
    return history


def _group(history: History, kind: ConsumerKind) -> GroupHistory:
    group = history.groups["G"] = GroupHistory("G", kind, ("T",), frozenset(), has_poison=False)
    return group


def test_the_history_sees_what_is_not_consumed(history: History) -> None:
    group = _group(history, ConsumerKind.CONCURRENT)
    for number in (0, 2):
        history.begin(group, "m", [_message(number)], 0.0)
        history.end(group, "m", [_message(number)], is_success=True)

    assert [one.number for one in history.missing(group)] == [1]
    history.check_below(group, MessageQueue("T", "b", 0), 1, "committed")
    with pytest.raises(ViolationError, match="nobody has finished 1"):
        history.check_below(group, MessageQueue("T", "b", 0), 2, "committed")


def test_the_history_sees_what_is_out_of_order(history: History) -> None:
    group = _group(history, ConsumerKind.ORDERLY)
    history.begin(group, "m", [_message(1)], 0.0)
    with pytest.raises(ViolationError, match="nobody has finished 0"):
        history.end(group, "m", [_message(1)], is_success=True)


def test_the_history_sees_two_at_work_with_one_queue(history: History) -> None:
    group = _group(history, ConsumerKind.ORDERLY)
    history.begin(group, "m", [_message(0)], 200.0)
    with pytest.raises(ViolationError, match="on which"):
        history.begin(group, "n", [_message(0)], 200.0)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"is_rolled_back": True}, "rolled back"),
        ({"not_before_s": 7.0}, "too early"),
        ({"topic": "U"}, "nobody sent"),
    ],
)
def test_the_history_sees_what_nobody_may_get(history: History, changed: dict[str, object], said: str) -> None:
    group = _group(history, ConsumerKind.LITE)
    for name, value in changed.items():
        setattr(history.sent["T L 0"], name, value)
    with pytest.raises(ViolationError, match=said):
        history.begin(group, "m", [_message(0)], 6.0)


def test_the_chance_of_programs_is_as_before_after_a_simulation() -> None:
    random.seed(5)
    expected = random.Random(5).random()
    run(3, SMALL)

    assert random.random() == expected
