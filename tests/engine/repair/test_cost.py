"""Twice the store, or twice the damage, takes twice the steps; never four times."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mqtool.engine.repair.journal import undo
from mqtool.engine.repair.plan import carry_out, plan_mend
from mqtool.engine.repair.salvage import plan_salvage
from mqtool.engine.repair.verify import verify_store
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from tests.cost import SIZES, STORES, growth

CONFIG = StoreConfig(settings=SIZES.settings)
MOST = 2.2


def recover(store: Path) -> None:
    carry_out(store, CONFIG, plan_mend(store, CONFIG, "recover", {"mode": "abnormal"}), Disk())


def rebuild(store: Path) -> None:
    plan_mend(store, CONFIG, "rebuild", {"target": "all", "survey": True})


def verify(store: Path) -> None:
    for _ in verify_store(StoreReader(store, CONFIG)):
        pass


def salvage(store: Path) -> None:
    plan_salvage(StoreReader(store, CONFIG))


@pytest.mark.parametrize("name", STORES)
def test_recover_takes_twice_the_steps_for_twice_as_many(name: str, tmp_path: Path) -> None:
    make, count = STORES[name]

    assert growth(make, recover, count, tmp_path) <= MOST


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("messages of a missing segment", rebuild),
        ("messages of a missing segment", verify),
        ("segments", verify),
        ("damaged bodies", verify),
        ("queues with a damaged body", salvage),
        ("damaged bodies", salvage),
    ],
)
def test_other_commands_do_so_too(name: str, command: Callable[[Path], None], tmp_path: Path) -> None:
    make, count = STORES[name]

    assert growth(make, command, count, tmp_path) <= MOST


def test_undo_takes_twice_the_steps_for_twice_as_many_changes(tmp_path: Path) -> None:
    make, count = STORES["damaged bodies"]

    def recovered(root: Path, number: int) -> Path:
        recover(make(root, number))
        return root

    assert growth(recovered, lambda store: undo(store, Disk()), count, tmp_path) <= MOST
