"""The making of stores and files, disturbed at every call of the disk: salvage, import, ``rebuild --into``, export.

With ``MQTOOL_THOROUGH`` set every call is disturbed, without it some.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from mqtool.engine.repair.rebuild.plan import build
from mqtool.engine.repair.salvage import transfer
from mqtool.engine.repair.salvage.new_store import making
from mqtool.engine.repair.salvage.plan import plan_salvage, salvage
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.disk import Disk, scraps
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import StoreInUseError, UsageError
from mqtool.formats.message import Message
from tests.crash import STEP, MakingTrial, TrialResult
from tests.damage import cases, snapshot
from tests.golden import golden_store

SIZES = StoreConfig({"mappedFileSizeCommitLog": "65536", "maxHashSlotNum": "100", "maxIndexNum": "250"})
TRIALS: dict[str, Callable[[MakingTrial], TrialResult]] = {
    "a call fails": lambda trial: trial.fails_once(_some(trial)),
    "the disk fails for good": lambda trial: trial.fails_for_good(_some(trial)),
    "it is killed": lambda trial: trial.is_killed(_some(trial)),
    "the removal is killed": lambda trial: trial.is_killed_removing(5 if STEP == 1 else trial.calls // 3, 2 * STEP + 1),
    "power is lost": lambda trial: trial.loses_power(6, _some(trial)),
}


def _some(trial: MakingTrial) -> int:
    return 1 if STEP == 1 else max(1, trial.calls // 4)


def salvaging(store: Path, _: Path) -> Callable[[Path, Disk], object]:
    plan = plan_salvage(StoreReader(store))
    return lambda target, disk: salvage(plan, target, disk)


def importing(store: Path, place: Path) -> Callable[[Path, Disk], object]:
    file = place / "messages.jsonl"
    export(Disk(), file, StoreReader(store).messages())
    return lambda target, disk: transfer.import_files([file], target, SIZES, disk)


def rebuilding(store: Path, _: Path) -> Callable[[Path, Disk], object]:
    def rebuild(target: Path, disk: Disk) -> None:
        with making(target, disk):
            build(StoreReader(store), target, disk)

    return rebuild


def export(disk: Disk, path: Path, messages: Iterable[Message], form: str = "jsonl") -> None:
    with transfer.writing_file(disk, path) as file:
        sink = transfer.Parquet(file) if form == "parquet" else transfer.JsonLines(file.write)
        transfer.export(messages, sink)


@pytest.mark.parametrize("how", [salvaging, importing, rebuilding])
@pytest.mark.parametrize("name", ["mixed-533-kill/control", "mixed-533-clean/middle-segment-missing"])
def test_whatever_disturbs_the_making_of_a_store_nobody_takes_half_of_it_for_the_whole(
    how: Callable[[Path, Path], Callable[[Path, Disk], object]],
    name: str,
    tmp_path: Path,
    memory_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    store = next(case for case in cases() if case.name == name).store(tmp_path / "damaged")
    before = snapshot(store)
    trial = MakingTrial(how(store, tmp_path), lambda root: (root / "abort").exists(), memory_path / "trial", "deep/new")

    for what, run in TRIALS.items():
        runs, faults = run(trial)
        record_property(what, runs)
        assert faults == [], what
        assert runs >= 3, what
    assert snapshot(store) == before


@pytest.mark.parametrize("how", [salvaging, importing])
def test_what_a_trial_takes_for_whole_is_sound(
    how: Callable[[Path, Path], Callable[[Path, Disk], object]], tmp_path: Path
) -> None:
    how(golden_store("mixed-533-kill"), tmp_path)(tmp_path / "new", Disk())

    assert [found for found in verify_store(StoreReader(tmp_path / "new", SIZES)) if found.severity != "note"] == []


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_whatever_disturbs_an_export_a_file_with_its_name_is_whole(
    form: str, memory_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    monkeypatch.setattr(transfer, "_STEP", 20_000)
    messages = list(StoreReader(golden_store("mixed-533-kill")).messages())

    def make(target: Path, disk: Disk) -> None:
        export(disk, target, messages, form)

    trial = MakingTrial(make, lambda _: False, memory_path, "messages")

    for what, run in TRIALS.items():
        runs, faults = run(trial)
        record_property(what, runs)
        assert faults == [], what
        assert runs >= 3, what


def test_an_export_removes_what_one_that_was_killed_has_left(tmp_path: Path) -> None:
    part, _ = scraps(tmp_path / "messages.jsonl")
    part.write_text("{")

    export(Disk(), tmp_path / "messages.jsonl", [])

    assert [path.name for path in tmp_path.iterdir()] == ["messages.jsonl"]


def test_a_store_of_a_broker_that_was_killed_is_nothing_left_over(tmp_path: Path) -> None:
    for content in (b"", b"12345", b"mqtool"):
        (tmp_path / "abort").write_bytes(content)
        (tmp_path / "commitlog").mkdir(exist_ok=True)

        with pytest.raises(UsageError), making(tmp_path, Disk()):
            pytest.fail("it holds something")

        assert (tmp_path / "abort").read_bytes() == content


def test_two_do_not_make_one_store_at_a_time(tmp_path: Path) -> None:
    with making(tmp_path / "new", Disk()):
        (tmp_path / "new" / "file").touch()
        with pytest.raises(StoreInUseError), making(tmp_path / "new", Disk()):
            pytest.fail("another one is at it")

        assert (tmp_path / "new" / "file").exists()
