"""The short form of ``tests.campaigns.hostile_programs``."""

from pathlib import Path

import pytest

from tests.campaigns.hostile_programs import run

SEED = 2191
"""With which the broker is killed and stopped, each for a second or two."""


def test_a_hostile_program_loses_nothing_hangs_nowhere_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqtool.engine.client_runtime.consumer.REBALANCE_MS", 1000)
    monkeypatch.setattr("mqtool.engine.remoting.client.PATIENCE_MS", 200)
    wanted = ("sent", "raised", "exited", "broker killed", "broker stopped")

    outcome = run(tmp_path, 3.0, SEED, wanted, is_short=True)

    assert outcome.violations == []
    assert all(outcome.did[what] for what in wanted)
