"""Our strategies of sharing queues against RocketMQ's classes, with cases drawn anew."""

import subprocess
from pathlib import Path

import pytest

from tests import allocations
from tests.differential.conftest import jars
from tests.differential.java_broker import POM
from tests.differential.java_store import each_version
from tests.differential.random_damage import SEED

pytestmark = pytest.mark.java

_PROGRAM = Path(__file__).with_name("Allocations.java")


@each_version
def test_each_member_gets_what_javas_strategies_give_it(version: str) -> None:
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", jars(version, POM), str(_PROGRAM)]
    seed = SEED + 1  # the fixture has those of 1
    done = subprocess.run([*command, str(seed), "3000"], capture_output=True, text=True, check=True)
    cases = allocations.parse(done.stdout.splitlines())
    assert len(cases) == 3000
    for case in cases:
        assert allocations.ours(case) == allocations.javas(case), case
