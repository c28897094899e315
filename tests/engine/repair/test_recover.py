"""``recover`` on what real brokers left, whole and damaged."""

import collections
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqtool.engine.repair import journal
from mqtool.engine.repair.losses import untold_of_rocksdb
from mqtool.engine.repair.plan import Plan, carry_out, plan_repair
from mqtool.engine.repair.rebuild.plan import build_index
from mqtool.engine.repair.recover import log as log_plan
from mqtool.engine.repair.recover.queues import DifferenceCounter, QueueRepairer
from mqtool.engine.repair.salvage.plan import plan_salvage
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.commit_log import Gap
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.dispatch import QueueKey
from mqtool.engine.store.fast_path import take_fast_path
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import UsageError
from mqtool.formats import commit_log
from mqtool.formats import kernels as plain
from tests import damage
from tests.builders import Draft, StoreSizes, write_store
from tests.golden import GOLDEN_NAMES, copy_of

CASES = {case.name: case for case in damage.cases()}
REPAIRED = [name for name in GOLDEN_NAMES if not name.startswith("dledger")]


def plan_of(store: Path, **options: Any) -> Plan:
    return plan_repair(store, StoreConfig(), "recover", options)


def recover(store: Path, **options: Any) -> Plan:
    plan = plan_of(store, **options)
    carry_out(store, StoreConfig(), plan, Disk())
    return plan


def bytes_of(store: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(store)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(store.rglob("*"))
        if path.is_file()
    }


def wrong_in(store: Path) -> list[str]:
    return [str(found) for found in verify_store(StoreReader(store)) if found.severity != "note"]


def messages_in_queues(store: Path) -> "collections.Counter[str]":
    """Count by topic the messages that queues lead to, placeholders aside."""
    reader = StoreReader(store)
    counted: collections.Counter[str] = collections.Counter()
    for (topic, _), queue in reader.consume_queues.items():
        for unit in queue.units(queue.first_offset, queue.max_offset()):
            if 0 < unit["size"] < 2**31 - 1:
                message = reader.message_at(int(unit["physical_offset"]))
                counted[topic] += "MQTOOL_LOST" not in message.properties
    return counted


@pytest.mark.parametrize("name", REPAIRED)
def test_a_sound_store_stays_as_it_is(name: str, tmp_path: Path) -> None:
    store = copy_of(name, tmp_path)
    before = bytes_of(store)

    plan = recover(store, mode="abnormal")

    assert {change.file for change in plan.changes} <= {"abort", "checkpoint"}
    assert not plan.losses
    after = bytes_of(store)
    assert {name for name in before if before[name] != after.get(name)} <= {"abort", "checkpoint"}
    assert not (store / "abort").exists()
    assert not wrong_in(store)


def test_a_queue_file_under_a_wrong_name_brings_about_no_losses_where_the_log_begins_far_from_zero(
    tmp_path: Path,
) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    for segment in sorted((store / "commitlog").iterdir())[:3]:
        segment.unlink()
    queue = store / "consumequeue" / "log-x" / "0"
    shutil.copy(queue / f"{1600:020}", queue / f"{1600 + 40_000:020}")

    losses = [loss for loss in plan_of(store, mode="abnormal").losses if loss.topic == "log-x"]

    units = StoreReader(store).consume_queues["log-x", 0].units(2080, 2100)
    assert sum(loss.messages for loss in losses) == (units["size"] > 0).sum() == 11


@pytest.mark.parametrize(
    "name",
    ["mixed-533-clean/middle-segment-missing", "mixed-533-clean/body-byte-first-segment-no-checkpoint-abort"],
)
def test_the_index_that_is_made_of_what_the_plan_knows_is_that_of_another_walk_over_the_log(
    name: str, tmp_path: Path
) -> None:
    made, expected = indexes(CASES[name].store(tmp_path), tmp_path / "new", StoreConfig())
    assert made == expected != {}


def test_it_is_so_where_years_lie_between_messages(tmp_path: Path) -> None:
    store = tmp_path / "store"
    times = [1_500_000_000_000, *(1_600_000_000_000 + number for number in range(6)), 1_700_000_000_000]
    drafts = [Draft(pairs={"UNIQ_KEY": f"K{time}", "KEYS": "a b"}, store_timestamp=time) for time in times]
    third = write_store(store, drafts)[2]
    at = {"file": "commitlog/00000000000000000000", "at": third.physical_offset, "len": len(third.record)}
    damage.apply_ops(store, [{"op": "zero", **at}])

    made, expected = indexes(store, tmp_path / "new", StoreConfig(StoreSizes().settings))

    assert made == expected != {}


def indexes(store: Path, into: Path, config: StoreConfig) -> list[dict[str, bytes]]:
    """Return the index files that a recovery has made from what its plan kept, and those of another walk."""
    plan = plan_repair(store, config, "recover", {"mode": "abnormal"})
    assert plan.found.keys is not None
    carry_out(store, config, plan, Disk())
    build_index(StoreReader(store, config), into, Disk())
    return [{path.name: path.read_bytes() for path in (root / "index").iterdir()} for root in (store, into)]


@pytest.mark.parametrize("name", CASES)
def test_a_damaged_store_is_sound_again(name: str, tmp_path: Path) -> None:
    store = CASES[name].store(tmp_path)  # test_verdict_table tells how much is kept of each
    before = bytes_of(store)

    recover(store, mode="abnormal")

    assert wrong_in(store) == []
    assert plan_of(store, mode="abnormal").changes == ()
    journal.undo(store, Disk())
    assert bytes_of(store) == before


@pytest.mark.parametrize("name", ["mixed-533-clean/body-byte-first-segment", "mixed-533-clean/middle-segment-missing"])
def test_all_other_messages_keep_their_queue_offsets(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    expected = {
        (message.topic, message.queue_id, message.queue_offset): message.unique_key
        for message in StoreReader(copy_of(case.base, tmp_path / "sound")).messages()
    }
    store = case.store(tmp_path)

    recover(store, mode="abnormal")

    found = {
        (message.topic, message.queue_id, message.queue_offset): message.unique_key
        for message in StoreReader(store).messages()
        if "MQTOOL_LOST" not in message.properties
    }
    assert found.items() <= expected.items()
    assert len(found) > 200


def test_cut_ends_the_log_at_the_first_damage(tmp_path: Path) -> None:
    store = CASES["mixed-497-clean/body-byte"].store(tmp_path)

    plan = recover(store, mode="abnormal", cut=True)

    assert messages_in_queues(store).total() == 246
    assert sum(loss.messages for loss in plan.losses) == 287 - 246
    assert wrong_in(store) == []


def test_without_a_mode_the_abort_file_decides(tmp_path: Path) -> None:
    store = CASES["mixed-533-clean/body-byte-first-segment"].store(tmp_path)

    assert plan_of(store).changes == ()
    (store / "abort").touch()
    assert {change.what for change in plan_of(store).changes} == {"write", "replace", "remove"}


def test_after_a_clean_stop_the_whole_log_is_read_where_queues_lack_older_units_and_the_plan_says_so(
    tmp_path: Path,
) -> None:
    store = CASES["mixed-533-clean/body-byte-first-segment"].store(tmp_path)
    remark = "queues lack units of messages before the last 3 segments"
    assert not any(one.startswith(remark) for one in plan_of(store).remarks)

    shutil.rmtree(store / "consumequeue")

    plan = plan_of(store)
    assert any(one.startswith(remark) for one in plan.remarks)
    whole = plan_of(store, mode="abnormal")
    assert (plan.changes, plan.losses) == (whole.changes, whole.losses)
    assert sum(loss.messages for loss in plan.losses) == 1
    recover(store)
    assert wrong_in(store) == []
    assert not any(one.startswith(remark) for one in plan_of(store).remarks)


def test_after_a_clean_stop_cut_ends_the_log_at_the_oldest_damage_only_where_queues_lack_older_units(
    tmp_path: Path,
) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    queue = StoreReader(store).consume_queues["OrderEvents", 1]
    addresses = queue.units(queue.first_offset, queue.max_offset())["physical_offset"].tolist()
    before = max(address for address in addresses if address < 131072)
    damage.apply_ops(store, [{"op": "zero", "file": "commitlog/" + "0" * 20, "at": before, "len": 100}])
    remark = "queues lack units of messages before the last 3 segments"

    assert any(one.startswith(remark) for one in plan_of(store).remarks)
    assert plan_of(store, cut=True).changes == ()

    shutil.rmtree(store / "consumequeue")

    plan = plan_of(store, cut=True)
    assert any(one.startswith(remark) for one in plan.remarks)
    whole = plan_of(store, cut=True, mode="abnormal")
    assert (plan.changes, plan.losses) == (whole.changes, whole.losses)
    assert sum(loss.messages for loss in plan.losses) > 200


@pytest.mark.parametrize("name", REPAIRED)
def test_the_messages_before_the_last_segments_are_recognized_by_their_units(name: str, tmp_path: Path) -> None:
    reader = StoreReader(copy_of(name, tmp_path))
    places = [
        (int(unit["physical_offset"]), key, queue.first_offset + number)
        for key, queue in reader.consume_queues.items()
        for number, unit in enumerate(queue.units(queue.first_offset, queue.max_offset()))
    ]
    places += [
        (int(unit["physical_offset"]), key, int(unit["queue_offset"] + unit["batch_size"]) - 1)
        for key, batch in reader.batch_consume_queues.items()
        for unit in batch.units(0, batch.used_count)
    ]

    def is_sound_before(*before: tuple[int, QueueKey, int]) -> bool:
        repairer = QueueRepairer(reader, reader.commit_log.end_offset, DifferenceCounter(), ())
        repairer._before = [*before]
        return repairer._is_sound_before(reader.commit_log.min_offset)

    assert is_sound_before(*places)
    for address, key, offset in places[:10]:
        assert not is_sound_before((address, key, offset + 1))
        assert not is_sound_before((address, (key[0], key[1] + 1), offset))
        assert not is_sound_before((address + 1, key, offset))


def test_the_plan_says_that_losses_which_only_units_in_rocksdb_show_are_not_reported(tmp_path: Path) -> None:
    in_rocksdb, expired = copy_of("rocksdb-533-clean", tmp_path), copy_of("mixed-533-clean", tmp_path)
    (expired / "commitlog" / "00000000000000000000").unlink()
    text = untold_of_rocksdb(StoreReader(in_rocksdb).commit_log)

    assert text in plan_of(in_rocksdb).remarks
    assert text in plan_salvage(StoreReader(in_rocksdb)).remarks
    assert "the units in RocksDB" in text
    assert "65,536" not in text
    assert "those before 65,536" in untold_of_rocksdb(StoreReader(expired).commit_log)


def test_a_placeholder_says_what_was_lost_and_why(tmp_path: Path) -> None:
    store = CASES["mixed-497-clean/body-byte"].store(tmp_path)

    recover(store, mode="abnormal")

    (placeholder,) = (one for one in StoreReader(store).messages() if "MQTOOL_LOST" in one.properties)
    assert placeholder.properties == {"MQTOOL_LOST": "302 bytes at 236612: it does not match its CRC"}
    assert (placeholder.position, placeholder.size) == (236612, 302)


def test_a_dledger_log_is_left_to_its_peers(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="DLedger"):
        plan_of(copy_of("dledger-497-clean", tmp_path))


@pytest.mark.parametrize("places", [[0], [0, 1], [1], [0, 1, 2]])
def test_the_first_messages_of_a_queue_are_told_and_bridged_as_any_others(places: list[int], tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    queue = StoreReader(store).consume_queues["OrderEvents", 0]
    lost = queue.units(places[0], places[-1] + 1)
    for position, size in lost[["physical_offset", "size"]].tolist():
        damage.apply_ops(store, [{"op": "zero", "file": f"commitlog/{0:020}", "at": position, "len": size}])

    plan = recover(store, mode="abnormal")

    assert [(loss.topic, loss.queue_id, loss.queue_offset, loss.end_queue_offset) for loss in plan.losses] == [
        ("OrderEvents", 0, places[0], places[-1] + 1)
    ]
    assert wrong_in(store) == []
    assert plan_of(store, mode="abnormal").changes == ()


def number_of(store: Path, queue: tuple[str, int], place: int, field: str) -> tuple[int, str]:
    """Return where a number in the record of a message lies in the first segment, and its bytes."""
    position = int(StoreReader(store).consume_queues[queue].units(place, place + 1)["physical_offset"][0])
    at = position + commit_log.HEADS[0].offset_of(field)
    return at, (store / f"commitlog/{0:020}").read_bytes()[at : at + 8].hex()


@pytest.mark.parametrize("offset", [1024, 5, 1 << 40, 1 << 56])
def test_the_first_message_of_a_queue_gets_its_queue_offset_again(offset: int, tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    before = bytes_of(store)
    at, was = number_of(store, ("OrderEvents", 0), 0, "queue_offset")
    assert int(was, 16) == 0
    changed = {"op": "write", "file": f"commitlog/{0:020}", "at": at, "hex": offset.to_bytes(8, "big").hex()}
    damage.apply_ops(store, [changed])

    plan = recover(store, mode="abnormal")

    assert not plan.losses
    assert wrong_in(store) == []
    assert {name: one for name, (one, _) in bytes_of(store).items()} == {name: one for name, (one, _) in before.items()}


def properties_at(store: Path, position: int) -> tuple[int, bytes]:
    """Return where the properties of a record in the first segment lie, and what they are."""
    message = StoreReader(store).message_at(position)
    return position + message.size - len(message.raw_properties), message.raw_properties


@pytest.mark.parametrize(
    "change",
    [
        lambda text: bytes(len(text)),
        lambda text: text[:-20] + bytes(20),
        lambda text: text.replace(b"\x01", b"\0", 1),
        lambda text: b"ORDER\0\0\0" + text[8:],
    ],
)
def test_a_message_whose_properties_are_damaged_is_bridged_and_told(
    change: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    before = bytes_of(store)
    position = int(StoreReader(store).consume_queues["OrderEvents", 0].units(3, 4)["physical_offset"][0])
    at, text = properties_at(store, position)
    changed = {"op": "write", "file": f"commitlog/{0:020}", "at": at, "hex": change(text).hex()}
    damage.apply_ops(store, [changed])
    damaged = bytes_of(store)

    plan = recover(store, mode="abnormal")

    assert [(loss.topic, loss.queue_id, loss.queue_offset, loss.end_queue_offset) for loss in plan.losses] == [
        ("OrderEvents", 0, 3, 4)
    ]
    (lost,) = (one for one in StoreReader(store).messages() if "MQTOOL_LOST" in one.properties)
    assert (lost.position, lost.topic, lost.queue_id, lost.queue_offset) == (position, "OrderEvents", 0, 3)
    assert "its properties are damaged" in lost.properties["MQTOOL_LOST"]
    assert wrong_in(store) == []
    assert plan_of(store, mode="abnormal").changes == ()
    journal.undo(store, Disk())
    assert bytes_of(store) == damaged != before


def test_light_queues_of_a_message_whose_properties_are_zeros_get_its_placeholder(tmp_path: Path) -> None:
    store = copy_of("special-533-clean", tmp_path)
    reader = StoreReader(store)
    position = int(reader.consume_queues["%LMQ%alpha", 0].units(2, 3)["physical_offset"][0])
    message = reader.message_at(position)
    at, text = properties_at(store, position)
    damage.apply_ops(store, [{"op": "zero", "file": f"commitlog/{0:020}", "at": at, "len": len(text)}])

    plan = recover(store, mode="abnormal")

    told = {(loss.topic, loss.queue_id, loss.queue_offset, loss.end_queue_offset) for loss in plan.losses}
    assert {(message.topic, message.queue_id, message.queue_offset, message.queue_offset + 1)} < told
    assert ("%LMQ%alpha", 0, 2, 3) in told
    for (topic, queue_id), place in (((message.topic, message.queue_id), message.queue_offset), (("%LMQ%alpha", 0), 2)):
        unit = StoreReader(store).consume_queues[topic, queue_id].units(place, place + 1)
        assert "MQTOOL_LOST" in StoreReader(store).message_at(int(unit["physical_offset"][0])).properties
    assert wrong_in(store) == []
    assert plan_of(store, mode="abnormal").changes == ()


def test_a_message_of_which_two_properties_are_one_stays(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    position = int(StoreReader(store).consume_queues["OrderEvents", 0].units(3, 4)["physical_offset"][0])
    at, text = properties_at(store, position)
    changed = {"op": "write", "file": f"commitlog/{0:020}", "at": at + text.index(b"\x02"), "hex": "20"}
    damage.apply_ops(store, [changed])
    message = StoreReader(store).message_at(position)

    plan = recover(store, mode="abnormal")

    assert not plan.losses
    assert StoreReader(store).message_at(position) == message
    assert len(message.properties) == text.count(b"\x02") - 1
    assert wrong_in(store) == []


@pytest.mark.parametrize("at", [-20, -15, -5, -1], ids=["name", "middle of name", "digit", "end"])
@pytest.mark.parametrize("name", ["propcrc-533-clean", "propcrc-forced-533-clean"])
def test_a_damaged_crc_property_is_what_it_was_again(name: str, at: int, tmp_path: Path) -> None:
    store = copy_of(name, tmp_path)
    before = (store / f"commitlog/{0:020}").read_bytes()
    message = list(StoreReader(store).messages())[5]
    end = message.position + message.size
    damage.apply_ops(store, [{"op": "write", "file": f"commitlog/{0:020}", "at": end + at, "hex": "38"}])

    config = StoreConfig({"forceVerifyPropCRC": "true"} if "forced" in name and at == -5 else {})
    plan = plan_repair(store, config, "recover", {"mode": "abnormal"})
    carry_out(store, config, plan, Disk())

    assert wrong_in(store) == []
    if config.flag("forceVerifyPropCRC"):  # where brokers check it, it fails
        assert [loss.messages for loss in plan.losses] == [1]
    else:
        assert not plan.losses
        assert (store / f"commitlog/{0:020}").read_bytes() == before


def test_a_message_over_the_end_of_whose_properties_others_lie_is_lost(tmp_path: Path) -> None:
    store = copy_of("propcrc-533-clean", tmp_path)
    message = list(StoreReader(store).messages())[5]
    end = message.position + message.size
    foreign = b"TAGS\x01another record's\x02"
    damage.apply_ops(
        store, [{"op": "write", "file": f"commitlog/{0:020}", "at": end - len(foreign), "hex": foreign.hex()}]
    )

    plan = recover(store, mode="abnormal")

    assert [(loss.topic, loss.queue_id, loss.queue_offset) for loss in plan.losses] == [
        (message.topic, message.queue_id, message.queue_offset)
    ]
    assert wrong_in(store) == []


@pytest.mark.parametrize("place", [0, 5, -1], ids=["the first", "one in the middle", "the last"])
@pytest.mark.parametrize("is_topic", [True, False], ids=["topic", "queue id"])
def test_a_message_whose_topic_or_queue_is_damaged_becomes_what_it_was(
    place: int, is_topic: bool, tmp_path: Path
) -> None:
    name, key = "txn-533-kill", ("RMQ_SYS_TRANS_HALF_TOPIC", 0)
    store = copy_of(name, tmp_path)
    before = {file: data for file, (data, _) in bytes_of(store).items() if file != "abort"}
    units = StoreReader(store).consume_queues[key].units(0, StoreReader(store).consume_queues[key].max_offset())
    position = int(units["physical_offset"][place])
    data = (store / f"commitlog/{0:020}").read_bytes()
    at = data.index(key[0].encode(), position) + 2 if is_topic else position + 15
    damage.apply_ops(store, [{"op": "write", "file": f"commitlog/{0:020}", "at": at, "hex": "50"}])

    plan = recover(store, mode="abnormal")

    assert not plan.losses
    assert {file: data for file, (data, _) in bytes_of(store).items() if file != "checkpoint"} == {
        file: data for file, data in before.items() if file != "checkpoint"
    }


def test_a_message_in_a_topic_that_no_broker_can_have_is_bridged_in_its_queue(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    log = store / f"commitlog/{0:020}"
    at = log.read_bytes().index(b"OrderEvents")
    damage.apply_ops(store, [{"op": "zero", "file": f"commitlog/{0:020}", "at": at + 3, "len": 1}])

    plan = recover(store, mode="abnormal")

    assert [(loss.topic, loss.messages) for loss in plan.losses] == [("OrderEvents", 1)]
    assert wrong_in(store) == []


@pytest.mark.parametrize("cut", [False, True])
def test_bodies_of_other_crcs_are_told_alike_by_the_quick_way_and_the_long_one(
    cut: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = copy_of("many-533-clean", tmp_path)
    tables = [table for table in StoreReader(store).tables(kernels=plain) if not isinstance(table, Gap)]
    bodies = [at + table.base for table in tables for at in table.offsets(plain.BODY)[3::7].tolist()]
    size = StoreReader(store).commit_log.file_size
    for at in bodies:
        with (store / "commitlog" / f"{at // size * size:020}").open("r+b") as file:
            file.seek(at % size)
            byte = file.read(1)[0]
            file.seek(at % size)
            file.write(bytes([byte ^ 4]))
    listed = []

    def watched(*arguments: Any) -> Any:
        for one in take_fast_path(*arguments):
            listed.extend(one.unsound.tolist())
            yield one

    def told() -> tuple[Any, ...]:
        plan = plan_of(store, mode="abnormal", cut=cut)
        return plan.changes, plan.losses, plan.remarks, plan.groups, plan.write_size, plan.journal_size

    monkeypatch.setattr(log_plan, "take_fast_path", watched)
    by_quick_way = told()
    monkeypatch.setattr(log_plan, "take_fast_path", lambda *_: ())

    assert len(listed) > 20
    assert told() == by_quick_way
