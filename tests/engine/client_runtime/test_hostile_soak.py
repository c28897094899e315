"""The short form of ``tests.campaigns.hostile_programs``."""

from pathlib import Path

from tests.campaigns.hostile_programs import run


def test_a_hostile_program_loses_nothing_hangs_nowhere_and_leaves_nothing_behind(tmp_path: Path) -> None:
    wanted = ("sent", "raised", "exited")

    outcome = run(tmp_path, 3.0, 1, wanted, all_kinds=False)

    assert outcome.violations == []
    assert all(outcome.did[what] for what in wanted)
