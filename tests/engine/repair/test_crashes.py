"""The repairs that users run, disturbed while they work: failing calls, kills and power losses.

With ``MQTOOL_THOROUGH`` set every call is disturbed, without it some.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.crash import STEP, Trial, TrialResult
from tests.damage import cases

REPAIRS: list[tuple[str, str, dict[str, Any]]] = [
    ("mixed-533-kill/control", "rebuild", {"target": "all", "version": "5.3"}),
    ("mixed-533-clean/one-queue-deleted", "rebuild", {"target": "queues"}),
    ("mixed-533-clean/body-byte-first-segment-no-checkpoint-abort", "recover", {}),
    ("mixed-533-clean/middle-segment-missing", "recover", {}),
    ("mixed-533-clean/consumequeue-deleted-abort", "recover", {"mode": "abnormal"}),
    ("many-533-clean/half-log-zeros-abort", "recover", {"cut": True}),
    ("mixed-533-kill/tail-zeros-many-records", "recover-as-broker", {"version": "5.3"}),
]
TRIALS: dict[str, Callable[[Trial], TrialResult]] = {
    "a call fails": lambda trial: trial.fails_once(_some(trial)),
    "the disk fails for good": lambda trial: trial.fails_for_good(_some(trial)),
    "the repair is killed": lambda trial: trial.is_killed(_some(trial)),
    "undo is killed": lambda trial: trial.is_killed_undoing(2 * trial.repair_calls // 3 if STEP > 1 else 9),
    "power is lost": lambda trial: trial.loses_power(6 if STEP > 1 else 8, _some(trial)),
    "power is lost in undo": lambda trial: trial.loses_power_undoing(4, _some(trial)),
}


def _some(trial: Trial) -> int:
    return 1 if STEP == 1 else max(1, trial.repair_calls // 9)


@pytest.mark.parametrize(("name", "command", "options"), REPAIRS, ids=[f"{row[1]}-{row[0]}" for row in REPAIRS])
def test_whatever_disturbs_a_repair_the_store_comes_back_or_is_repaired(
    tmp_path: Path,
    memory_path: Path,
    name: str,
    command: str,
    options: dict[str, Any],
    record_property: Callable[[str, object], None],
) -> None:
    store = next(case for case in cases() if case.name == name).store(tmp_path / "damaged")

    trial = Trial(store, command, options, memory_path / "trial")

    assert trial.after != trial.before_content
    assert trial.undone == trial.before
    for what, run in TRIALS.items():
        runs, faults = run(trial)
        record_property(what, runs)
        assert faults == [], what
        assert runs > 0, what
