"""Plans as values and files, and what refuses to carry them out."""

import dataclasses
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mqtool.engine.repair.journal import (
    Journal,
    RepairFailedError,
    State,
    cut_off,
    fingerprint,
    holding,
    home_of,
    journals,
    undo,
)
from mqtool.engine.repair.plan import REPAIRS, Change, Loss, Plan, Repair, carry_out, plan_repair
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import (
    BadDataError,
    MqtoolError,
    NotFoundError,
    NotPermittedError,
    Status,
    StoreChangedError,
    StoreInUseError,
    UsageError,
    WriteError,
)
from tests.crash import EVERYTHING, DyingDisk, KilledError
from tests.damage import snapshot
from tests.engine.store.test_locks import HOLDER
from tests.golden import copy_of

CONFIG = StoreConfig()
PLAN = Plan(
    "everything",
    {"level": 3, "topics": ["a", None]},
    (Change("write", "commitlog/0", "torn", 5, 7), Change("create", "checkpoint", "not there")),
    (Loss("Topic \U0001f600 \udcff", 3, 1000, "torn"), Loss(None, 1, 0, "unreadable")),
    ("a remark",),
    12345,
    "/store",
    {"maxIndexNum": "5"},
    "ab" * 32,
)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(REPAIRS, "everything", EVERYTHING)
    return copy_of("txn-533-kill", tmp_path)


def failing(error: BaseException) -> Repair:
    """Return a repair that changes much, and then fails."""

    def apply(reader: StoreReader, plan: Plan, journal: Journal, *rest: Any) -> None:
        EVERYTHING.apply(reader, plan, journal, *rest)
        raise error

    return Repair(EVERYTHING.plan, apply)


def carry_out_again(store: Path, disk: Disk | None = None) -> Plan:
    """Plan and carry out the repair that makes every kind of change."""
    plan = plan_repair(store, CONFIG, "everything", {})
    carry_out(store, CONFIG, plan, disk or Disk())
    return plan


def test_a_plan_is_the_same_after_it_was_saved() -> None:
    assert Plan.from_json(PLAN.to_json()) == PLAN


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "3", '{"mqtool_plan": 1}', PLAN.to_json()[:100], PLAN.to_json().replace("what", "who")]
)
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(BadDataError, match="this is not a plan"):
        Plan.from_json(text)


def test_a_plan_of_another_version_is_refused() -> None:
    with pytest.raises(BadDataError, match="another version"):
        Plan.from_json(PLAN.to_json().replace('"mqtool_plan": 1', '"mqtool_plan": 2'))


def test_the_table_of_repairs_names_functions_that_are_there() -> None:
    for repair in REPAIRS.values():
        for function in repair:
            with pytest.raises((TypeError, AttributeError)) as caught:
                function(*[None] * 4)  # type: ignore[arg-type]
            assert "has no attribute 'plan_" not in str(caught.value)
            assert "has no attribute 'apply_" not in str(caught.value)


def test_a_fingerprint_tells_names_sizes_and_times_and_reads_no_byte(store: Path) -> None:
    seen = {fingerprint(store)}
    path = store / "checkpoint"
    status = path.stat()

    for change in (
        lambda: os.utime(path, ns=(0, status.st_mtime_ns + 1)),
        lambda: os.truncate(path, 5),
        lambda: path.rename(store / "checkpoint2"),
        lambda: (store / "folder").mkdir(),
    ):
        change()
        seen.add(fingerprint(store))

    assert len(seen) == 5
    assert fingerprint(store) in seen


def test_a_fingerprint_follows_links_once(store: Path, tmp_path: Path) -> None:
    (store / "self").symlink_to(store)
    (store / "gone").symlink_to(tmp_path / "nowhere")
    before = fingerprint(store)
    (store / "commitlog").rename(tmp_path / "log")
    (store / "commitlog").symlink_to(tmp_path / "log")
    assert fingerprint(store) == before

    (tmp_path / "log" / "more").touch()

    assert fingerprint(store) != before


def test_folders_that_lie_elsewhere_belong_to_the_fingerprint(tmp_path: Path) -> None:
    store = copy_of("multipath-533-clean", tmp_path)
    (tmp_path / "far").mkdir()
    here, there = fingerprint(store), fingerprint(store, (tmp_path / "far",))
    (tmp_path / "far" / "file").touch()

    assert fingerprint(store, (tmp_path / "far",)) != there
    assert fingerprint(store) == here


def test_planning_writes_nothing(store: Path) -> None:
    before = snapshot(store)

    plan = plan_repair(store, CONFIG, "everything", {"a": 1})

    assert (plan.store, plan.options, plan.fingerprint) == (str(store.resolve()), {"a": 1}, fingerprint(store))
    assert snapshot(store) == before
    assert not home_of(store).exists()


def test_a_store_that_has_changed_since_the_plan_is_refused(store: Path) -> None:
    plan = plan_repair(store, CONFIG, "everything", {})
    (store / "config" / "topics.json").touch()
    before = snapshot(store)

    with pytest.raises(StoreChangedError, match="plan again") as caught:
        carry_out(store, CONFIG, plan, Disk())

    assert caught.value.exit_code is Status.BUSY
    assert snapshot(store) == before
    assert not journals(store)


def test_one_file_of_a_store_cannot_be_repaired(store: Path) -> None:
    segment = next((store / "commitlog").iterdir())

    with pytest.raises(UsageError, match="only a whole store can be repaired"):
        plan_repair(segment, CONFIG, "everything", {})


def test_a_store_that_a_broker_holds_is_refused(store: Path) -> None:
    plan = plan_repair(store, CONFIG, "everything", {})
    before = snapshot(store)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(store / "lock"), "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()

        with pytest.raises(StoreInUseError, match="a broker is running"):
            plan_repair(store, CONFIG, "everything", {})
        with pytest.raises(StoreInUseError, match="stop it first"):
            carry_out(store, CONFIG, plan, Disk())

        process.stdin.close()
    assert snapshot(store) == before


TRY_LOCK = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
except OSError:
    print("refused")
"""


def test_no_broker_can_start_while_a_repair_works(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = []

    def apply(reader: StoreReader, plan: Plan, journal: Journal, *rest: Any) -> None:
        EVERYTHING.apply(reader, plan, journal, *rest)
        assert not reader.is_live  # the repair itself is no broker; and asking lets nothing go
        (store / "lock").read_bytes()
        command = [sys.executable, "-c", TRY_LOCK, str(store / "lock")]
        said.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    monkeypatch.setitem(REPAIRS, "everything", Repair(EVERYTHING.plan, apply))
    carry_out_again(store)

    assert said == ["refused\n"]
    with (store / "lock").open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)


def test_two_repairs_do_not_work_at_once_even_without_a_lock_file(store: Path) -> None:
    (store / "lock").unlink()
    plan = plan_repair(store, CONFIG, "everything", {})

    with holding(store, Disk()), pytest.raises(StoreInUseError, match="another repair is running"):
        carry_out(store, CONFIG, plan, Disk())

    carry_out(store, CONFIG, plan, Disk())
    assert not (store / "lock").exists()


def test_what_fails_is_taken_back(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot(store)
    plan = plan_repair(store, CONFIG, "everything", {})
    errors: list[tuple[Exception, Status]] = [
        (WriteError("no space left for x"), Status.IO_ERROR),
        (NotPermittedError("you may not"), Status.NOT_PERMITTED),
        (NotFoundError("x is gone"), Status.NO_INPUT),
        (OSError(5, "Input/output error"), Status.IO_ERROR),
    ]
    for error, status in errors:
        monkeypatch.setitem(REPAIRS, "everything", failing(error))

        with pytest.raises(RepairFailedError, match="everything was undone, the store is as before") as caught:
            carry_out(store, CONFIG, plan, Disk())

        assert caught.value.exit_code is status
        assert str(error) in str(caught.value)
        assert snapshot(store) == before
        assert not journals(store)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ZeroDivisionError()])
def test_a_fault_and_an_interruption_are_taken_back_and_say_so(
    store: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    before = snapshot(store)
    monkeypatch.setitem(REPAIRS, "everything", failing(error))

    with pytest.raises(type(error)) as caught:
        carry_out_again(store)

    assert "the store is as before" in caught.value.__notes__[0]
    assert snapshot(store) == before


def test_a_disk_without_room_for_the_journal_is_refused_first(store: Path) -> None:
    huge = dataclasses.replace(plan_repair(store, CONFIG, "everything", {}), journal_size=1 << 60)

    with pytest.raises(WriteError, match=r"no space left for .*: undo needs 1,152,921,504,606,846,976 bytes there"):
        carry_out(store, CONFIG, huge, Disk())

    assert not journals(store)


def test_after_a_repair_that_was_cut_off_another_is_refused_until_undo(store: Path) -> None:
    before = snapshot(store)
    plan = plan_repair(store, CONFIG, "everything", {})
    with pytest.raises(KilledError):
        carry_out(store, CONFIG, plan, DyingDisk(60))
    info = cut_off(store)
    assert info
    assert info.state is State.CUT_OFF

    for again in (lambda: plan_repair(store, CONFIG, "everything", {}), lambda: carry_out(store, CONFIG, plan, Disk())):
        with pytest.raises(StoreChangedError, match="was interrupted: undo it with `mqtool undo` first"):
            again()

    undo(store, Disk())
    assert snapshot(store) == before
    carry_out(store, CONFIG, plan, Disk())


def test_repairs_are_taken_back_last_first(store: Path) -> None:
    seen = []
    for number in range(3):
        seen.append(snapshot(store))
        _repair_a_little(store, number)
    first, second, third = journals(store)

    with pytest.raises(UsageError, match="came later"):
        undo(store, Disk(), first.name)
    with pytest.raises(NotFoundError, match="has no repair nonsense"):
        undo(store, Disk(), "nonsense")
    for info, before in ((third, seen[2]), (second, seen[1]), (first, seen[0])):
        undone, exact = undo(store, Disk(), info.name)
        assert (undone.name, exact) == (info.name, True)
        assert snapshot(store) == before

    assert [info.state for info in journals(store)] == [State.UNDONE] * 3
    with pytest.raises(NotFoundError, match="there is no repair"):
        undo(store, Disk())


def _repair_a_little(store: Path, number: int) -> None:
    with holding(store, Disk()):
        journal = Journal.begin(store, "little", {}, Disk())
        journal.write(store / "checkpoint", number * 10, b"little")
        journal.create(store / f"more{number}", number)
        journal.finish()


def test_a_store_that_has_changed_since_the_repair_is_not_taken_back_without_force(store: Path) -> None:
    carry_out_again(store)
    (store / "later").touch()
    after = snapshot(store)

    with pytest.raises(StoreChangedError, match="perhaps because a broker ran on it"):
        undo(store, Disk())
    assert snapshot(store) == after

    _, exact = undo(store, Disk(), force=True)
    assert not exact
    assert (store / "later").exists()


def test_half_a_repair_on_which_a_broker_was_started_is_not_taken_back_without_force(store: Path) -> None:
    plan = plan_repair(store, CONFIG, "everything", {})
    with pytest.raises(KilledError):
        carry_out(store, CONFIG, plan, DyingDisk(60))
    (store / "lock").write_bytes(b"lock")

    with pytest.raises(StoreChangedError, match="--force"):
        undo(store, Disk())


def test_a_journal_that_is_damaged_takes_nothing_back(store: Path) -> None:
    carry_out_again(store)
    after = snapshot(store)
    notes = journals(store)[0].home / "notes"
    data = bytearray(notes.read_bytes())
    data[len(data) // 2] ^= 1
    notes.write_bytes(data)

    with pytest.raises(BadDataError, match="is damaged at byte"):
        undo(store, Disk())

    assert snapshot(store) == after


@pytest.mark.parametrize("torn", [b"\0", b"\0\0\0\5", b"\0\0\0\5\1\2\3\4{}\nx", b"\0\0\0\5\1\2\3\4{}\nxy", bytes(600)])
def test_what_was_half_noted_when_the_repair_was_cut_off_is_passed_over(store: Path, torn: bytes) -> None:
    before = snapshot(store)
    plan = plan_repair(store, CONFIG, "everything", {})
    with pytest.raises(KilledError):
        carry_out(store, CONFIG, plan, DyingDisk(60))
    with (journals(store)[0].home / "notes").open("ab") as notes:
        notes.write(torn)

    undo(store, Disk())

    assert snapshot(store) == before


def test_a_store_that_was_moved_with_its_journals_is_taken_back_there(store: Path, tmp_path: Path) -> None:
    before = snapshot(store)
    carry_out_again(store)
    (tmp_path / "elsewhere").mkdir()
    moved = tmp_path / "elsewhere" / "store"
    home_of(store).rename(moved.with_name("store.mqtool"))
    store.rename(moved)

    undo(moved, Disk())

    assert snapshot(moved) == before


def test_a_folder_that_is_a_link_is_repaired_where_it_leads(store: Path, tmp_path: Path) -> None:
    (store / "consumequeue").rename(tmp_path / "queues")
    (store / "consumequeue").symlink_to(tmp_path / "queues")
    before, queues = snapshot(store), snapshot(tmp_path / "queues")

    carry_out_again(store)
    assert (tmp_path / "queues" / "T").is_dir()
    assert (store / "consumequeue").is_symlink()
    undo(store, Disk())

    assert (snapshot(store), snapshot(tmp_path / "queues")) == (before, queues)


def test_a_plan_says_that_a_copy_of_hard_links_changes_as_well(store: Path, tmp_path: Path) -> None:
    segment = min((store / "commitlog").iterdir())
    with segment.open("r+b") as file:
        file.seek(335)
        file.write(bytes(480))
    plain = plan_repair(store, StoreConfig(), "recover", {"mode": "abnormal"})
    (tmp_path / "backup").hardlink_to(segment)

    linked = plan_repair(store, StoreConfig(), "recover", {"mode": "abnormal"})

    assert set(linked.remarks) - set(plain.remarks) == {
        f"commitlog/{segment.name} has other names (hard links): a copy that consists of such links changes as well"
    }


def test_what_is_noted_is_small_where_nothing_is_in_the_file(store: Path) -> None:
    path = store / "sparse"
    with path.open("wb") as file:
        file.truncate(200 << 20)
        os.pwrite(file.fileno(), b"here", 100 << 20)
    before = snapshot(store)
    with holding(store, Disk()):
        journal = Journal.begin(store, "cut", {}, Disk())
        journal.truncate(path, 10)
        journal.finish()

    assert journals(store)[0].size < 100_000
    undo(store, Disk())
    assert snapshot(store) == before


def test_places_that_were_not_foreseen_are_refused_before_anything_is_noted(store: Path) -> None:
    before = snapshot(store)
    with holding(store, Disk()):
        journal = Journal.begin(store, "wrong", {}, Disk())
        wrong: list[tuple[Any, type[Exception]]] = [
            (lambda: journal.create(store / "checkpoint"), WriteError),
            (lambda: journal.remove(store / "nothing"), NotFoundError),
            (lambda: journal.write(store / "nothing", 0, b"x"), NotFoundError),
            (lambda: journal.fill(store / "checkpoint", 0, b"x"), ValueError),
        ]
        for change, error in wrong:
            with pytest.raises(error):
                change()
        journal.take_back()

    assert snapshot(store) == before


def test_changes_made_together_happen_at_the_end_or_not_at_all(store: Path) -> None:
    before = snapshot(store)
    with holding(store, Disk()):
        journal = Journal.begin(store, "together", {}, Disk())
        with pytest.raises(MqtoolError), journal.together():
            journal.write(store / "checkpoint", 0, b"never")
            journal.create(store / "never")
            raise WriteError("a test")
        assert snapshot(store) == before
        with journal.together():
            journal.write(store / "checkpoint", 0, b"1")
            journal.write(store / "checkpoint", 0, bytes(17 << 20))  # too much to be held back
            assert (store / "checkpoint").stat().st_size == 17 << 20
            journal.truncate(store / "checkpoint", 5)
            assert (store / "checkpoint").stat().st_size == 17 << 20
        assert (store / "checkpoint").read_bytes() == bytes(5)
        journal.finish()

    undo(store, Disk())
    assert snapshot(store) == before


def test_the_rows_of_the_table_are_loaded_when_they_are_called() -> None:
    program = (
        "import sys, mqtool.engine.repair.plan; print([m for m in sys.modules if 'recover' in m or 'rebuild' in m])"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


if os.geteuid() == 0:  # only root gives files away

    def test_what_root_makes_beside_and_in_a_store_belongs_to_its_owner(store: Path) -> None:
        for path in (store, *store.rglob("*")):
            os.chown(path, 1234, 2345)

        carry_out_again(store)

        for path in (home_of(store), *home_of(store).rglob("*"), *store.rglob("*")):
            assert (path.stat().st_uid, path.stat().st_gid) == (1234, 2345)
