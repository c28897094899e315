"""Mends that are disturbed at every call of the disk, and what is left of them.

``tests.crash.EVERYTHING`` makes every kind of change; the trials of real mends stand beside their other tests.
"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.repair.journal import State, journals, undo
from mqtool.engine.repair.plan import MENDS, carry_out, plan_mend
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.paths import StoreConfig
from mqtool.errors import BadDataError
from tests.crash import EVERYTHING, STEP, Trial
from tests.damage import damaged, flips, snapshot
from tests.golden import copy_of, golden_store


def trial_of_everything(place: Path, monkeypatch: pytest.MonkeyPatch, apart: bool) -> Trial:
    monkeypatch.setitem(MENDS, "everything", EVERYTHING)
    return Trial(golden_store("txn-533-kill"), "everything", {}, place, apart=apart)


@pytest.fixture
def trial(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    """The journals lie on the file system of the store."""
    return trial_of_everything(memory_path, monkeypatch, False)


@pytest.fixture
def apart(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    """They do not: what is moved between the two is copied."""
    return trial_of_everything(memory_path, monkeypatch, True)


def test_a_call_that_fails_leaves_the_store_as_it_was(trial: Trial) -> None:
    assert trial.fails_once() == trial.mend_calls > 100


def test_after_a_disk_that_fails_for_good_undo_brings_the_store_back(trial: Trial) -> None:
    assert trial.fails_for_good() == trial.mend_calls


def test_a_mend_that_is_killed_can_be_undone_or_run_again(trial: Trial) -> None:
    assert trial.is_killed() == trial.mend_calls


def test_an_undo_that_is_killed_can_be_run_again(trial: Trial) -> None:
    assert trial.is_killed_undoing(step=5 * STEP) >= trial.undo_calls


def test_after_a_power_loss_a_mend_can_be_undone_or_run_again(trial: Trial) -> None:
    assert trial.loses_power(samples=8) > 800


def test_after_a_power_loss_an_undo_can_be_run_again(trial: Trial) -> None:
    assert trial.loses_power_undoing(samples=4) > 200


def test_journals_on_another_file_system_than_the_store_are_as_safe(apart: Trial) -> None:
    assert apart.fails_once(STEP) >= apart.mend_calls // STEP > 20
    assert apart.fails_for_good(STEP)
    assert apart.is_killed(STEP)


def test_journals_on_another_file_system_survive_a_killed_undo_and_power_losses(apart: Trial) -> None:
    assert apart.is_killed_undoing(step=30 * STEP) >= apart.undo_calls
    assert apart.loses_power(6 if STEP > 1 else 12, STEP)
    assert apart.loses_power_undoing(3 if STEP > 1 else 6, STEP)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that was mended, with its journal."""
    store = copy_of("txn-533-kill", tmp_path_factory.mktemp("done"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MENDS, "everything", EVERYTHING)
        carry_out(store, StoreConfig(), plan_mend(store, StoreConfig(), "everything", {}), Disk())
    return store


@given(st.data())
def test_a_journal_in_which_a_byte_has_changed_is_refused_and_the_store_left_alone(
    done: Path, data: st.DataObject
) -> None:
    (journal,) = journals(done)
    before = snapshot(done)

    with damaged(journal.home, data.draw(flips(journal.home, "notes"))), pytest.raises(BadDataError, match="notes is"):
        undo(done, Disk())

    assert snapshot(done) == before
    assert [info.state for info in journals(done)] == [State.DONE]
