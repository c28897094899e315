"""Rules of our client against RocketMQ's classes, with cases drawn anew."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import client_cases
from tests.differential.conftest import jars
from tests.differential.java_broker import POM
from tests.differential.java_store import each_version
from tests.differential.random_damage import SEED

pytestmark = pytest.mark.java

_HERE = Path(__file__).parent


def drawn(program: str, version: str, count: int) -> list[Any]:
    """Return new cases of a program."""
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", jars(version, POM), str(_HERE / program)]
    seed = SEED + 1  # the fixtures have those of 1
    done = subprocess.run([*command, str(seed), str(count)], capture_output=True, text=True, check=True)
    cases = client_cases.parse(done.stdout.splitlines())
    assert len(cases) == count
    return cases


@each_version
def test_each_member_gets_what_javas_strategies_give_it(version: str) -> None:
    for case in drawn("Allocations.java", version, 3000):
        assert client_cases.ours(case) == client_cases.javas(case), case


@each_version
def test_a_process_queue_goes_through_the_states_of_javas(version: str) -> None:
    for steps in drawn("ProcessQueues.java", version, 2000):
        assert client_cases.process(steps) == steps
