"""Repairs that are disturbed at every call of the disk, and what is left of them.

``tests.crash.EVERYTHING`` makes every kind of change; the trials of real repairs stand beside their other tests.
"""

import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.repair.journal import Journal, State, holding, journals, undo
from mqtool.engine.repair.plan import REPAIRS, carry_out, plan_repair
from mqtool.engine.store.disk import Disk, DiskFullError
from mqtool.engine.store.paths import StoreConfig
from mqtool.errors import BadDataError
from tests.crash import EVERYTHING, STEP, Trial, WatchedDisk
from tests.damage import damaged, flips, snapshot
from tests.golden import copy_of, golden_store


def trial_of_everything(place: Path, monkeypatch: pytest.MonkeyPatch, apart: bool) -> Trial:
    monkeypatch.setitem(REPAIRS, "everything", EVERYTHING)
    return Trial(golden_store("txn-533-kill"), "everything", {}, place, apart=apart)


@pytest.fixture
def trial(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    """The journals lie on the file system of the store."""
    return trial_of_everything(memory_path, monkeypatch, False)


@pytest.fixture
def apart(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    """They do not: what is moved between the two is copied."""
    return trial_of_everything(memory_path, monkeypatch, True)


def test_a_repair_that_nothing_disturbs_can_be_undone(trial: Trial, apart: Trial) -> None:
    assert trial.undone == trial.before
    assert apart.undone == apart.before


def test_a_call_that_fails_leaves_the_store_as_it_was(trial: Trial) -> None:
    assert trial.fails_once() == (trial.repair_calls, [])
    assert trial.repair_calls > 100


def test_after_a_disk_that_fails_for_good_undo_brings_the_store_back(trial: Trial) -> None:
    assert trial.fails_for_good() == (trial.repair_calls, [])


def test_a_repair_that_is_killed_can_be_undone_or_run_again(trial: Trial) -> None:
    assert trial.is_killed() == (trial.repair_calls, [])


def test_an_undo_that_is_killed_can_be_run_again(trial: Trial) -> None:
    runs, faults = trial.is_killed_undoing(step=5 * STEP)

    assert faults == []
    assert runs >= trial.undo_calls


def test_an_undo_that_removes_files_beside_can_be_run_again(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqtool.engine.repair.journal._LARGE", 0)

    killed = trial.is_killed_undoing(step=20 * STEP)
    failed = trial.fails_for_good(5 * STEP)

    assert killed.faults + failed.faults == []
    assert killed.runs >= trial.undo_calls
    assert failed.runs > 0


def test_after_a_power_loss_a_repair_can_be_undone_or_run_again(trial: Trial) -> None:
    runs, faults = trial.loses_power(samples=4)

    assert faults == []
    assert runs > 400


def test_after_a_power_loss_an_undo_can_be_run_again(trial: Trial) -> None:
    runs, faults = trial.loses_power_undoing(samples=4)

    assert faults == []
    assert runs > 200


def test_journals_on_another_file_system_than_the_store_are_as_safe(apart: Trial) -> None:
    results = apart.fails_once(STEP), apart.fails_for_good(STEP), apart.is_killed(STEP)

    assert [faults for _, faults in results] == [[], [], []]
    assert min(runs for runs, _ in results) >= apart.repair_calls // STEP > 20


def test_journals_on_another_file_system_survive_a_killed_undo_and_power_losses(apart: Trial) -> None:
    killed = apart.is_killed_undoing(step=30 * STEP)
    without_power = apart.loses_power(3 if STEP > 1 else 12, STEP)
    undone_without_power = apart.loses_power_undoing(3 if STEP > 1 else 6, STEP)

    assert killed.faults + without_power.faults + undone_without_power.faults == []
    assert killed.runs >= apart.undo_calls
    assert min(without_power.runs, undone_without_power.runs) > 0


class NotingDisk(WatchedDisk):
    """A disk that notes the names of its calls and what they are about."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Path]] = []

    def call(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Note one call, and carry it out."""
        self.calls.append((name, arguments[0]))
        super().call(name, arguments)


def test_undo_makes_holes_again_and_leaves_other_zeros_their_room(tmp_path: Path) -> None:
    path = tmp_path / "store" / "file"
    path.parent.mkdir()
    with path.open("wb") as file:
        file.write(b"x" * (1 << 20) + bytes(2 << 20))
        file.truncate(7 << 20)
    before, room = path.read_bytes(), path.stat().st_blocks

    with holding(path.parent, Disk()):
        journal = Journal.begin(path.parent, "test", {}, Disk())
        journal.write(path, 0, b"y" * (7 << 20))
        journal.finish()
    assert path.stat().st_blocks > room

    undo(path.parent, Disk())
    assert path.read_bytes() == before
    assert path.stat().st_blocks == room


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 200)), min_size=1), st.integers(1, 500))
def test_short_changes_made_together_come_back_also_where_they_lie_over_each_other(
    changes: list[tuple[int, int]], at_once: int
) -> None:
    before = bytes(100) + b"something" * 10 + bytes(80)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("mqtool.engine.repair.journal._MAX_WAITING", at_once)
        patch.setattr("mqtool.engine.repair.journal.CHUNK", 150)
        store, disk = Path(folder, "store"), WatchedDisk()
        store.mkdir()
        (store / "file").write_bytes(before)
        (store / "other").write_bytes(before)
        with holding(store, disk):
            journal = Journal.begin(store, "test", {}, disk)
            with journal.together():
                for number, (at, size) in enumerate(changes):
                    journal.write(store / ("other" if number % 7 == 3 else "file"), at, b"x" * size)
            journal.finish()
        assert (store / "file").read_bytes() != before

        _, exact = undo(store, disk)

        assert exact
        assert [(store / name).read_bytes() for name in ("file", "other")] == [before, before]


class _FullUntilFreed(Disk):
    """A disk that is full once, and removes nothing before."""

    def __init__(self) -> None:
        self.was_full = threading.Event()

    def write_many(self, path: Path, pieces: Iterable[tuple[int, bytes]]) -> None:
        """Write, or be full."""
        if not self.was_full.is_set():
            self.was_full.set()
            raise DiskFullError("no space left: a test")
        super().write_many(path, pieces)

    def remove(self, path: Path) -> None:
        """Remove a file once the disk was full."""
        assert self.was_full.wait(30)
        super().remove(path)


def test_undo_on_a_full_disk_begins_anew_once_what_the_repair_had_made_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqtool.engine.repair.journal._LARGE", 1000)
    store = tmp_path / "store"
    store.mkdir()
    (store / "file").write_bytes(b"before")
    before = snapshot(store)
    with holding(store, Disk()):
        journal = Journal.begin(store, "test", {}, Disk())
        journal.truncate(store / "file", 2)
        journal.create(store / "made", 1000)
        journal.finish()

    _, exact = undo(store, _FullUntilFreed())

    assert exact
    assert snapshot(store) == before


def test_undo_waits_for_the_disk_once_nothing_changes_any_more(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    files = sorted((store / "commitlog").iterdir())
    with holding(store, Disk()):
        journal = Journal.begin(store, "test", {}, Disk())
        for path in files:
            journal.write(path, 100, b"something else")
        journal.finish()
    disk = NotingDisk()

    undo(store, disk)

    first = next(number for number, (name, path) in enumerate(disk.calls) if name == "sync" and path in files)
    last = max(number for number, (name, path) in enumerate(disk.calls) if name == "set_times" and path in files)
    assert len(files) > 1
    assert last < first


def test_what_is_noted_of_long_holes_is_synced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    segment = sorted((store / "commitlog").iterdir())[1]
    segment.write_bytes(segment.read_bytes()[:5000] + bytes(50_000) + segment.read_bytes()[55_000:])
    for name, size in (
        ("recover.plan._STEP", 1 << 12),
        ("recover.bridges._CHUNK", 1 << 12),
        ("journal._MAX_WAITING", 1),
    ):
        monkeypatch.setattr(f"mqtool.engine.repair.{name}", size)
    disk = NotingDisk()
    plan = plan_repair(store, StoreConfig(), "recover", {"mode": "abnormal"})

    carry_out(store, StoreConfig(), plan, disk)

    log = [number for number, call in enumerate(disk.calls) if call == ("write", segment)]
    assert len(log) > 3
    assert ("sync", "notes") not in {(name, path.name) for name, path in disk.calls[log[0] : log[-1]]}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that was repaired, with its journal."""
    store = copy_of("txn-533-kill", tmp_path_factory.mktemp("done"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(REPAIRS, "everything", EVERYTHING)
        carry_out(store, StoreConfig(), plan_repair(store, StoreConfig(), "everything", {}), Disk())
    return store


@pytest.mark.parametrize(
    ("name", "was", "becomes"),
    [
        ("state", b"d", b"e"),
        ("about", b'"further"', b'"furthes"'),
        ("about", b'"timestamp": ', b'"timestamp": 99'),
        ("about", b'"timestamp": ', b'"timestamp": -'),
    ],
)
def test_a_journal_that_cannot_be_understood_is_refused_and_kept(
    done: Path, name: str, was: bytes, becomes: bytes
) -> None:
    (journal,) = journals(done)
    path, before = journal.home / name, snapshot(done)
    content = path.read_bytes()
    path.write_bytes(content.replace(was, becomes, 1))

    with pytest.raises(BadDataError, match=f"{name} is damaged"):
        undo(done, Disk())
    with pytest.raises(BadDataError, match=f"{name} is damaged"):
        carry_out(done, StoreConfig(), plan_repair(done, StoreConfig(), "recover", {"mode": "abnormal"}), Disk())

    path.write_bytes(content)
    assert snapshot(done) == before
    assert [info.state for info in journals(done)] == [State.DONE]


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
