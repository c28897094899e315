"""Which files of the timer stop a broker, and doctor's word on each, as brokers of 5.3.3 and 5.5.0 did."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mqtool.engine.repair.doctor.case import Case, Effect, open_store
from mqtool.engine.repair.doctor.diagnosis import examine
from mqtool.engine.repair.doctor.surroundings import look_around
from mqtool.engine.store.paths import StoreConfig
from tests.engine.repair.recorded import recover_as
from tests.golden import copy_of, manifest

_FIRST = f"timerlog/{0:020}"
_LAST = f"timerlog/{400:020}"

Damage = Callable[[Path], object]


def _resized(file: str, size: int) -> Damage:
    return lambda store: os.truncate(store / file, size)


def _made(file: str, size: int) -> Damage:
    return lambda store: (store / file).write_bytes(bytes(size))


def _folder(file: str) -> Damage:
    def make(store: Path) -> None:
        (store / file).unlink(missing_ok=True)
        (store / file).mkdir()

    return make


def _without_folder(store: Path) -> None:
    shutil.rmtree(store / "timerlog")
    (store / "timerlog").write_bytes(b"x")


# What was done, and whether both brokers started; each was tried with the real ones.
_TRIED: dict[str, tuple[Damage, bool]] = {
    "nothing": (lambda _: None, True),
    "the first file of the log is too long": (_resized(_FIRST, 401), False),
    "the first file of the log is too short": (_resized(_FIRST, 399), False),
    "the last file of the log is too short": (_resized(_LAST, 399), False),
    "the last file of the log is empty": (_resized(_LAST, 0), True),
    "the first file of the log is empty": (_resized(_FIRST, 0), False),
    "a file whose name is no number": (_made("timerlog/foo", 400), False),
    "a file of another size": (_made("timerlog/foo", 4), False),
    "a folder in the log": (_folder("timerlog/old"), True),
    "the log is a file": (_without_folder, True),
    "the first file of the log is gone": (lambda store: (store / _FIRST).unlink(), True),
    "a short wheel": (_resized("timerwheel", 1000), False),
    "a long wheel": (_resized("timerwheel", 38_707_232), False),
    "an empty wheel": (_resized("timerwheel", 0), True),
    "a folder for the wheel": (_folder("timerwheel"), False),
    "a short timercheck": (_resized("config/timercheck", 3), True),
    "a folder for timercheck": (_folder("config/timercheck"), False),
}


@pytest.mark.parametrize("name", _TRIED)
def test_a_broker_is_foretold_to_start_where_it_did(name: str, tmp_path: Path) -> None:
    damage, starts = _TRIED[name]
    store = copy_of("timer-533-clean", tmp_path)
    assert (store / _LAST).exists()
    damage(store)
    config = StoreConfig({key: str(value) for key, value in manifest("timer-533-clean")["config"].items()})
    reader = open_store(store, config)
    case = Case(reader.root, config.settings, None, look_around([reader.root, *reader.paths.commit_log]), reader)
    stops = {one.code for one in examine(case)[1] if one.effect is Effect.STOPS and one.severity != "note"}

    assert {version: recover_as(open_store(store, config), version).starts for version in ("5.3", "5.5")} == {
        "5.3": starts,
        "5.5": starts,
    }
    assert stops == (set() if starts else {"TIMER-FILE-SIZE"})


def test_a_broker_whose_timer_is_off_starts_with_any_of_its_files(tmp_path: Path) -> None:
    store = copy_of("timer-533-clean", tmp_path)
    os.truncate(store / _FIRST, 401)
    settings = {key: str(value) for key, value in manifest("timer-533-clean")["config"].items()}

    assert recover_as(open_store(store, StoreConfig({**settings, "timerWheelEnable": "false"})), "5.5").starts
