"""``recover`` where topics keep several messages in a unit of their queues (``queue.type=BatchCQ``)."""

import shutil
from pathlib import Path

import pytest

from mqtool.engine.repair.plan import Plan, carry_out, plan_repair
from mqtool.engine.repair.salvage.plan import plan_salvage
from mqtool.engine.repair.salvage.transfer import JsonLines, export, import_files, writing_file
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from tests.engine.repair.recorded import recover_as
from tests.golden import copy_of, golden_store, manifest
from tests.judge.store import JudgedStore
from tests.laws.repairs import IN_PLACE, Direct, config_of

STORES = ["batchcq-533-clean", "batchcq-533-kill"]


def recover(name: str, store: Path, **options: str) -> Plan:
    config = config_of(name, store, is_told=True)
    plan = plan_repair(store, config, "recover", {"mode": "abnormal", **options})
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
    assert not plan_repair(store, config_of(name, store, is_told=True), "recover", {"mode": "abnormal"}).changes


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


@pytest.mark.parametrize("name", STORES)
def test_a_plan_says_if_brokers_refuse_batch_queues_for_lack_of_settings_and_what_to_do(
    name: str, tmp_path: Path
) -> None:
    store = copy_of(name, tmp_path)
    config = config_of(name, store, is_told=True)
    sound = recover(name, store)
    shutil.rmtree(store / "config")

    plan = recover(name, store)

    assert [remark for remark in sound.remarks if "QUEUE-TYPE" in remark] == []
    assert [remark for remark in plan.remarks if "QUEUE-TYPE" in remark and "`mqtool rebuild config`" in remark]
    assert recover_as(StoreReader(store, config), "5.5").refusal
    carry_out(store, config, plan_repair(store, config, "rebuild", {"target": "config"}), Disk())
    assert not recover_as(StoreReader(store, config), "5.5").refusal


@pytest.mark.parametrize("repair", ["recover --abnormal", "rebuild queues"])
def test_a_flag_alone_makes_no_batch_topic(repair: str, tmp_path: Path) -> None:
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
    carry_out(store, config, plan_repair(store, config, *IN_PLACE[repair]), Disk())

    assert not (store / "batchconsumequeue").exists()
    assert queues_of(store) == before


def damaged_batch(tmp_path: Path, number: int, old: bytes, new: bytes) -> Path:
    """Return a store in one of whose inner batches some bytes of the properties are others."""
    name = "batchcq-533-kill"
    store = copy_of(name, tmp_path)
    judged = JudgedStore(golden_store(name), manifest(name)["config"])
    batches = [one for one in judged.records.values() if one.batch_size > 1]
    record = sorted(batches, key=lambda one: one.position)[number]
    with (store / "commitlog/00000000000000000000").open("r+b") as file:
        file.seek(record.position)
        data = file.read(record.size)
        at = data.rindex(old)
        file.seek(record.position + at)
        file.write(new)
    return store


DAMAGES = {
    "another number of messages": (b"INNER_NUM\x01", b"INNER_NUM\x019"),
    "fewer messages": (b"INNER_NUM\x01", b"INNER_NUM\x011"),
    "no number": (b"INNER_NUM\x01", b"INNER_NUM\x01x"),
    "another offset": (b"INNER_BASE\x01", b"INNER_BASE\x019"),
    "another name": (b"INNER_NUM", b"INNMR_NUM"),
}


@pytest.mark.parametrize("number", [0, 3, -1], ids=["the first batch", "one in the middle", "the last one"])
@pytest.mark.parametrize("what", DAMAGES)
def test_a_batch_says_again_what_its_body_holds(what: str, number: int, tmp_path: Path) -> None:
    name = "batchcq-533-kill"
    store = damaged_batch(tmp_path, number, *DAMAGES[what])

    plan = recover(name, store)

    assert not plan.losses
    assert queues_of(store) == queues_of(golden_store(name))
    segment = "commitlog/00000000000000000000"
    assert (store / segment).read_bytes() == (golden_store(name) / segment).read_bytes()


@pytest.mark.parametrize("what", DAMAGES)
def test_a_batch_is_copied_with_what_its_body_holds(what: str, tmp_path: Path) -> None:
    name = "batchcq-533-kill"
    store = damaged_batch(tmp_path, 3, *DAMAGES[what])

    told = Direct().salvage(store, config_of(name, store, is_told=True), tmp_path / "new")

    assert told.ranges == ({("Inner2", 1): [(9, 12)]} if what == "another offset" else {})  # what it said, and left
    assert not +told.counts
    config = manifest(name)["config"]
    kept, were = JudgedStore(tmp_path / "new", config), JudgedStore(golden_store(name), config)
    assert kept.messages() == were.messages()
    assert kept.reachable() == were.reachable()


def in_small_segments(name: str, into: Path) -> tuple[Path, StoreConfig]:
    """Make a store with the messages of another one, in segments of 16 KiB."""
    config = StoreConfig({"mappedFileSizeCommitLog": "16384"})
    file = into / "all.jsonl"
    with writing_file(Disk(), file) as sink:
        export(StoreReader(golden_store(name)).messages(), JsonLines(sink.write))
    import_files([file], into / "store", config, Disk())
    return into / "store", config


@pytest.mark.parametrize("cut", [True, False])
def test_batches_of_a_first_segment_whose_file_holds_another_are_told_as_lost(cut: bool, tmp_path: Path) -> None:
    store, config = in_small_segments("batchcq-533-clean", tmp_path)
    first, *_, last = sorted((store / "commitlog").iterdir())
    before = JudgedStore(store, {**config.settings})
    held = [key for one in before.records.values() if one.position < int(first.name) + 16384 for key in one.keys]
    last.rename(first)

    plan = plan_repair(store, config, "recover", {"mode": "abnormal", "cut": cut})
    salvaged = plan_salvage(StoreReader(store, config))
    carry_out(store, config, plan, Disk())

    told = {
        (loss.topic, loss.queue_id, offset)
        for loss in plan.losses
        for offset in range(loss.queue_offset or 0, loss.end_queue_offset or 0)
    }
    assert held
    assert {*held} <= told
    assert salvaged.lost.total() == len(told)
    assert [one for one in verify_store(StoreReader(store, config)) if one.severity != "note"] == []


def test_a_plan_names_the_file_that_takes_the_name_which_another_yields(tmp_path: Path) -> None:
    store, config = in_small_segments("batchcq-533-clean", tmp_path)
    first, *_, last = sorted((store / "commitlog").iterdir())
    last.rename(first)

    changes = plan_repair(store, config, "recover", {"mode": "abnormal"}).changes

    assert [(change.what, change.file) for change in changes if change.file.startswith("commitlog")] == [
        ("rename", f"commitlog/{first.name}"),
        ("create", f"commitlog/{first.name}"),
        ("write", f"commitlog/{first.name}"),
    ]
