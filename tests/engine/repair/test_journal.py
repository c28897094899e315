"""Mends that are disturbed at every call of the disk, and what is left of them.

``tests.crash.EVERYTHING`` makes every kind of change; the trials of real mends stand beside their other tests.
"""

from pathlib import Path

import pytest

from mqtool.engine.repair.plan import MENDS
from tests.crash import EVERYTHING, STEP, Trial
from tests.golden import golden_store


def trial_of_everything(place: Path, monkeypatch: pytest.MonkeyPatch, apart: bool) -> Trial:
    monkeypatch.setitem(MENDS, "everything", EVERYTHING)
    return Trial(golden_store("txn-533-kill"), "everything", {}, place, apart=apart)


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    """The journals lie on the file system of the store."""
    return trial_of_everything(tmp_path, monkeypatch, False)


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    """They do not: what is moved between the two is copied."""
    return trial_of_everything(tmp_path, monkeypatch, True)


def test_a_call_that_fails_leaves_the_store_as_it_was(trial: Trial) -> None:
    assert trial.fails_once() == trial.mend_calls > 100


def test_after_a_disk_that_fails_for_good_undo_brings_the_store_back(trial: Trial) -> None:
    assert trial.fails_for_good() == trial.mend_calls


def test_a_mend_that_is_killed_can_be_undone_or_run_again(trial: Trial) -> None:
    assert trial.is_killed() == trial.mend_calls


def test_an_undo_that_is_killed_can_be_run_again(trial: Trial) -> None:
    assert trial.is_killed_undoing(step=5 * STEP) >= trial.undo_calls


def test_after_a_power_loss_a_mend_can_be_undone_or_run_again(trial: Trial) -> None:
    assert trial.loses_power(samples=6) > 600


def test_after_a_power_loss_an_undo_can_be_run_again(trial: Trial) -> None:
    assert trial.loses_power_undoing(samples=4) > 200


def test_journals_on_another_file_system_than_the_store_are_as_safe(apart: Trial) -> None:
    assert apart.fails_once(STEP) >= apart.mend_calls // STEP > 20
    assert apart.fails_for_good(STEP)
    assert apart.is_killed(STEP)


def test_journals_on_another_file_system_survive_a_killed_undo_and_power_losses(apart: Trial) -> None:
    assert apart.is_killed_undoing(step=30 * STEP) >= apart.undo_calls
    assert apart.loses_power(4, STEP)
    assert apart.loses_power_undoing(4, STEP)
