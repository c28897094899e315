"""``recover`` where topics keep several messages in a unit of their queues (``queue.type=BatchCQ``)."""

import shutil
from pathlib import Path

import pytest

from mqtool.engine.repair.as_broker import recover_as
from mqtool.engine.repair.plan import Plan, carry_out, plan_mend
from mqtool.engine.repair.verify import verify_store
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.reader import StoreReader
from tests.golden import copy_of, golden_store
from tests.laws.mends import IN_PLACE, config_of

STORES = ["batchcq-533-clean", "batchcq-533-kill"]


def recover(name: str, store: Path, **options: str) -> Plan:
    config = config_of(name, store, is_told=True)
    plan = plan_mend(store, config, "recover", {"mode": "abnormal", **options})
    carry_out(store, config, plan, Disk())
    return plan


def queues_of(store: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(store)): path.read_bytes().rstrip(b"\0")
        for folder in ("consumequeue", "batchconsumequeue")
        for path in (store / folder).rglob("*")
        if path.is_file() and any(path.read_bytes())
    }


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("folder", ["batchconsumequeue", "batchconsumequeue/Inner", "batchconsumequeue/Inner2/0"])
@pytest.mark.parametrize("with_settings", [True, False], ids=["told by topics.json", "told by the records"])
def test_batch_queues_that_are_gone_become_what_they_were(
    name: str, folder: str, with_settings: bool, tmp_path: Path
) -> None:
    store = copy_of(name, tmp_path)
    before = queues_of(golden_store(name))
    shutil.rmtree(store / folder)
    for table in ("topics.json", "topics.json.bak") if not with_settings else ():
        (store / "config" / table).unlink(missing_ok=True)

    plan = recover(name, store)

    assert queues_of(store) == before
    assert not plan.losses
    assert not plan_mend(store, config_of(name, store, is_told=True), "recover", {"mode": "abnormal"}).changes


@pytest.mark.parametrize("mode", ["abnormal", "normal"])
def test_queues_of_the_wrong_type_that_keep_a_broker_from_starting_are_taken_away(mode: str, tmp_path: Path) -> None:
    name = "batchcq-533-clean"
    store, before = copy_of(name, tmp_path), queues_of(golden_store(name))
    config = config_of(name, store, is_told=True)
    (store / "consumequeue").mkdir(exist_ok=True)
    (store / "batchconsumequeue/Inner").rename(store / "consumequeue/Inner")
    assert recover_as(StoreReader(store, config), "5.5").refusal

    plan = recover(name, store, mode=mode)

    assert ("remove", "consumequeue/Inner") in {(change.what, change.file) for change in plan.changes}
    assert queues_of(store) == before
    assert not recover_as(StoreReader(store, config), "5.5").refusal
    assert not [found for found in verify_store(StoreReader(store, config)) if found.severity != "note"]


@pytest.mark.parametrize("mend", ["recover --abnormal", "rebuild queues"])
def test_a_flag_alone_makes_no_batch_topic(mend: str, tmp_path: Path) -> None:
    name = "txn-533-kill"
    store, before = copy_of(name, tmp_path), queues_of(golden_store(name))
    message = next(one for one in StoreReader(store).messages() if one.topic == "TxOrders")
    with (store / "commitlog/00000000000000000000").open("r+b") as file:
        file.seek(message.position + 36)
        flag = int.from_bytes(file.read(4), "big")
        file.seek(message.position + 36)
        file.write((flag | 0x80).to_bytes(4, "big"))
    for table in ("topics.json", "topics.json.bak"):
        (store / "config" / table).unlink(missing_ok=True)

    config = config_of(name, store, is_told=True)
    carry_out(store, config, plan_mend(store, config, *IN_PLACE[mend]), Disk())

    assert not (store / "batchconsumequeue").exists()
    assert queues_of(store) == before
