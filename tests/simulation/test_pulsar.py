"""Some seeds of the simulation of Pulsar's clients; the long form is ``tests.campaigns.simulate_pulsar``."""

import pytest

from tests.campaigns.simulate_pulsar import run


@pytest.mark.parametrize("seed", range(1, 9))
def test_messages_are_neither_lost_nor_given_to_two_whatever_happens(seed: int) -> None:
    world, fault = run(seed, 500)

    assert fault == ""
    assert world.deliveries > 100
