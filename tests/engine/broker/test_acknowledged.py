"""Up to where slaves have acknowledged a log, as its store keeps it."""

from pathlib import Path

import pytest

from mqtool.engine.broker import acknowledged
from mqtool.engine.broker.acknowledged import Acknowledged


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "boot").write_text("first\n")
    monkeypatch.setattr(acknowledged, "_BOOT_ID", tmp_path / "boot")
    return tmp_path / "store"


@pytest.mark.parametrize("was_left", [False, True], ids=["stopped", "killed"])
def test_a_note_outlives_the_broker_and_counts_no_further_than_the_log(store: Path, was_left: bool) -> None:
    note = Acknowledged(store, 0, was_left=False)
    assert not note.is_any
    for offset in (100, 3000, 2000):
        note.note(offset)
    if not was_left:
        note.close()

    again = Acknowledged(store, 5000, was_left=was_left)
    assert (again.offset, again.is_any, again.is_in_doubt) == (3000, True, False)
    assert Acknowledged(store, 2500, was_left=was_left).offset == 2500


def test_without_a_note_or_with_one_that_cannot_be_read_all_of_the_log_counts(store: Path) -> None:
    assert Acknowledged(store, 700, was_left=False).offset == 700
    Acknowledged(store, 0, was_left=False).note(100)
    [file] = (store / "config").iterdir()
    text = file.read_bytes()
    for size in range(len(text) - 2):
        file.write_bytes(text[:size])
        assert Acknowledged(store, 700, was_left=False).offset == 700


def test_after_a_stop_of_the_machine_under_the_broker_all_of_the_log_counts(store: Path) -> None:
    note = Acknowledged(store, 0, was_left=False)
    note.note(100)
    (store.parent / "boot").write_text("second\n")

    left = Acknowledged(store, 700, was_left=True)
    assert (left.offset, left.is_in_doubt) == (700, True)
    stopped = Acknowledged(store, 700, was_left=False)
    assert (stopped.offset, stopped.is_in_doubt) == (100, False)
