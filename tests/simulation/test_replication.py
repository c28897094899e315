"""Simulations of a master and its slaves in short; ``tests.campaigns.simulate_replication`` runs many seeds."""

from pathlib import Path

import pytest

from tests.simulation.replication import run_seed


@pytest.mark.parametrize("seed", [2, 4, 12])
def test_whatever_a_seed_brings_the_logs_of_a_master_and_its_slaves_are_equal_in_the_end(
    memory_path: Path, seed: int
) -> None:
    outcome = run_seed(seed, memory_path, seconds=(15.0, 25.0))

    assert not outcome.violation
    assert outcome.acknowledged > 0
    assert outcome.consumed > 0
    assert outcome.faults
