"""``salvage`` of what real brokers left, whole and damaged."""

import dataclasses
import json
import os
import re
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from mqtool.engine.repair.recover.log import RecordRun, survey
from mqtool.engine.repair.salvage.plan import MANIFEST, Salvage, plan_salvage, salvage
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import NotFoundError, UsageError, WriteError
from mqtool.formats.message import Message
from tests import builders, damage
from tests.crash import STEP, FailingDisk, WatchedDisk
from tests.damage import snapshot
from tests.golden import GOLDEN_NAMES, copy_of, golden_store, manifest
from tests.judge.store import JudgedStore

CASES = {case.name: case for case in damage.cases()}
LOST = "MQTOOL_LOST"


def salvaged(store: Path, into: Path, jobs: int = 1) -> Salvage:
    plan = plan_salvage(StoreReader(store), jobs)
    placeholders = salvage(plan, into, Disk(), jobs)
    assert placeholders == plan.placeholders
    return plan


def wrong_in(store: Path) -> list[str]:
    return [str(found) for found in verify_store(StoreReader(store)) if found.severity != "note"]


def fields_of(message: Message) -> dict[str, Any]:
    """Everything of a message but where it lies, and the CRC that covers that."""
    fields = dataclasses.asdict(message)
    del fields["position"], fields["physical_offset"]
    fields["raw_properties"] = re.sub(rb"(?<=__CRC32#\x01)\d{10}", b"", fields["raw_properties"])
    return fields


def messages_of(store: Path) -> list[dict[str, Any]]:
    return [fields_of(one) for one in StoreReader(store).messages() if LOST not in one.properties]


def places(store: Path) -> set[tuple[str, int, int, int]]:
    return {
        (one.topic, one.queue_id, one.queue_offset, one.body_crc)
        for one in StoreReader(store).messages()
        if LOST not in one.properties
    }


def counted_by_survey(store: Path) -> int:
    reader = StoreReader(store)
    pieces = survey(reader, reader.commit_log.min_offset, 1, lambda _: None)
    return sum(sum(piece.topics.values()) for piece in pieces if isinstance(piece, RecordRun))


def manifest_of(store: Path, kind: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (store / MANIFEST).read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]


def test_messages_in_a_file_that_is_none_of_the_log_are_listed_by_file_and_byte_without_an_address(
    tmp_path: Path,
) -> None:
    store = copy_of("multipath-497-kill", tmp_path)
    stray = store / "commitlog-a" / f"{262144:020}"
    shutil.copyfile(golden_store("multipath-533-clean") / "commitlog-b" / f"{196608:020}", stray)

    salvaged(store, tmp_path / "new")

    listed = [row for row in manifest_of(tmp_path / "new", "skipped") if row["file"] == f"commitlog-a/{stray.name}"]
    assert listed
    for row in listed:
        size, magic = struct.unpack_from(">II", stray.read_bytes(), row["offset"])
        assert (row["physical_offset"], row["size"], hex(magic)) == (None, size, "0xdaa320a7")
        assert stray.read_bytes().startswith(bytes.fromhex(row["hex"]), row["offset"])


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_a_sound_store_loses_nothing(name: str, tmp_path: Path) -> None:
    plan = salvaged(golden_store(name), tmp_path / "new", jobs=2)

    assert not plan.skipped
    assert not plan.lost
    assert messages_of(tmp_path / "new") == messages_of(golden_store(name))
    assert wrong_in(tmp_path / "new") == []
    assert not (tmp_path / "new" / "abort").exists()


@pytest.mark.parametrize("name", ["mixed-497-clean", "mixed-533-clean", "mixed-550-clean"])
def test_log_and_queues_of_a_sound_store_come_out_byte_for_byte(name: str, tmp_path: Path) -> None:
    salvaged(golden_store(name), tmp_path / "new")

    for folder in ("commitlog", "consumequeue", "config"):
        before, after = snapshot(golden_store(name) / folder), snapshot(tmp_path / "new" / folder)
        same = {path: state[:2] for path, state in before.items() if path in after}
        assert {path: state[:2] for path, state in after.items()} == same
    assert len(list((tmp_path / "new" / "commitlog").iterdir())) >= 4


@pytest.mark.parametrize("name", CASES)
def test_of_a_damaged_store_every_message_that_checks_out_is_kept(name: str, tmp_path: Path) -> None:
    store = CASES[name].store(tmp_path)
    before = snapshot(store)

    plan = salvaged(store, tmp_path / "new")

    rescued = name == "mixed-533-clean/physical-offset-field-full-scan"  # only its own address is wrong
    assert plan.kept.total() == counted_by_survey(store) + rescued
    assert len(messages_of(tmp_path / "new")) == plan.kept.total()
    planted = name == "mixed-533-clean/cq-unit-past-log-end"  # a unit of a message that never was
    assert plan.kept.total() + plan.lost.total() == len(messages_of(golden_store(CASES[name].base))) + planted
    assert places(tmp_path / "new") <= places(golden_store(CASES[name].base))
    assert wrong_in(tmp_path / "new") == []
    assert snapshot(store) == before


def test_a_placeholder_stands_where_a_message_is_lost(tmp_path: Path) -> None:
    salvaged(CASES["mixed-533-clean/body-byte-first-segment"].store(tmp_path), tmp_path / "new")

    (lost,) = (one for one in StoreReader(tmp_path / "new").messages() if LOST in one.properties)
    assert (lost.topic, lost.queue_id, lost.queue_offset, lost.body) == ("log-x", 0, 13, b"")
    assert lost.properties == {LOST: "1 message from queue offset 13: none could be read"}


def test_the_manifest_tells_what_was_skipped_and_how_it_begins(tmp_path: Path) -> None:
    store = CASES["mixed-533-clean/body-byte-first-segment"].store(tmp_path)

    salvaged(store, tmp_path / "new")

    (skipped,) = manifest_of(tmp_path / "new", "skipped")
    raw = (store / skipped["file"]).read_bytes()[skipped["offset"] :]
    assert skipped["hex"] == raw[:64].hex()
    assert int.from_bytes(raw[:4], "big") == skipped["size"]
    assert (skipped["topic"], skipped["queue_id"], skipped["queue_offset"]) == ("log-x", 0, 13)
    assert {"kind": "topic", "topic": "log-x", "kept": 90, "lost": 1, "placeholders": 1} in manifest_of(
        tmp_path / "new", "topic"
    )


def test_a_missing_segment_is_named_though_nothing_of_it_can_be_shown(tmp_path: Path) -> None:
    salvaged(CASES["mixed-533-clean/middle-segment-missing"].store(tmp_path), tmp_path / "new")

    (skipped,) = manifest_of(tmp_path / "new", "skipped")
    assert skipped == {
        "kind": "skipped", "file": None, "offset": None, "physical_offset": 131072, "size": 65536,
        "reason": "the segment is missing", "hex": "",
    }  # fmt: skip


def test_a_log_whose_first_messages_are_lost_does_not_begin_at_0(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    damage.apply_ops(store, [{"op": "zero", "file": f"commitlog/{0:020}", "at": 0, "len": 65536}])

    plan = salvaged(store, tmp_path / "new")

    new = StoreReader(tmp_path / "new")
    assert new.commit_log.min_offset == 65536
    assert plan.kept.total() + plan.lost.total() == 287
    assert not plan.placeholders
    assert places(tmp_path / "new") < places(golden_store("mixed-533-clean"))
    assert wrong_in(tmp_path / "new") == []


def test_what_is_left_over_behind_a_cut_does_not_come_back(tmp_path: Path) -> None:
    drafts = [builders.Draft(body=b"new") for _ in range(38)]
    last = builders.write_store(tmp_path / "store", drafts, builders.StoreSizes(1 << 14))[-1]
    stale = last.physical_offset + len(last.record) + 50  # behind the end of what was written over the rest
    record = builders.record(stale, queue_offset=37, body=b"old", store_timestamp=last.store_timestamp - 1)
    op = {"op": "write", "file": f"commitlog/{0:020}", "at": stale, "hex": record.hex()}
    damage.apply_ops(tmp_path / "store", [op])

    plan = salvaged(tmp_path / "store", tmp_path / "new")

    assert plan.kept.total() == 38
    assert "earlier life" in plan.skipped[-1].reason
    assert wrong_in(tmp_path / "new") == []


def test_messages_whose_offsets_begin_anew_are_kept(tmp_path: Path) -> None:
    drafts = [builders.Draft(body=bytes([n])) for n in range(30)]
    stored = builders.write_store(tmp_path / "store", drafts, builders.StoreSizes(1 << 14))
    for one in stored[20:]:
        op = {"op": "write", "file": f"commitlog/{0:020}", "at": one.physical_offset + 20}
        damage.apply_ops(tmp_path / "store", [{**op, "hex": (one.queue_offset - 20).to_bytes(8, "big").hex()}])

    plan = salvaged(tmp_path / "store", tmp_path / "new")

    assert plan.kept.total() == 30
    found = [(one.queue_offset, one.body) for one in StoreReader(tmp_path / "new").messages()]
    assert found == [(n, bytes([n])) for n in range(30)]
    assert wrong_in(tmp_path / "new") == []


def test_the_shorter_life_of_a_queue_goes_behind_the_longer(tmp_path: Path) -> None:
    drafts = [builders.Draft(body=bytes([n])) for n in range(30)]
    stored = builders.write_store(tmp_path / "store", drafts, builders.StoreSizes(1 << 14))
    for one in stored[8:]:
        op = {"op": "write", "file": f"commitlog/{0:020}", "at": one.physical_offset + 20}
        damage.apply_ops(tmp_path / "store", [{**op, "hex": (one.queue_offset - 8).to_bytes(8, "big").hex()}])

    salvaged(tmp_path / "store", tmp_path / "new")

    found = {one.queue_offset: one.body for one in StoreReader(tmp_path / "new").messages()}
    assert found == {(n - 8 if n >= 8 else n + 22): bytes([n]) for n in range(30)}
    assert wrong_in(tmp_path / "new") == []


def test_a_lost_inner_batch_gets_one_placeholder(tmp_path: Path) -> None:
    store = copy_of("batchcq-533-clean", tmp_path)
    batches = [one for one in StoreReader(store).messages() if "INNER_NUM" in one.properties]
    lost = batches[len(batches) // 2]
    op = {"op": "zero", "file": f"commitlog/{0:020}", "at": lost.position + 4, "len": 4}
    damage.apply_ops(store, [op])

    plan = salvaged(store, tmp_path / "new")

    assert plan.placeholders.total() == int(lost.properties["INNER_NUM"])
    (placeholder,) = (one for one in StoreReader(tmp_path / "new").messages() if LOST in one.properties)
    assert placeholder.properties["INNER_BASE"] == lost.properties["INNER_BASE"]
    assert wrong_in(tmp_path / "new") == []


def test_a_table_that_cannot_be_read_is_taken_from_its_backup_or_left_out(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    (store / "config" / "topics.json.bak").write_bytes((store / "config" / "topics.json").read_bytes())
    (store / "config" / "topics.json").write_bytes(b"{torn")
    (store / "config" / "delayOffset.json").write_bytes(b"{torn")
    (store / "config" / "delayOffset.json.bak").unlink(missing_ok=True)

    plan = salvaged(store, tmp_path / "new")

    golden = golden_store("mixed-533-clean") / "config" / "topics.json"
    assert (tmp_path / "new" / "config" / "topics.json").read_bytes() == golden.read_bytes()
    assert any("cannot read config/delayOffset.json" in remark for remark in plan.remarks)


def test_one_segment_alone_can_be_salvaged(tmp_path: Path) -> None:
    segment = golden_store("mixed-533-clean") / "commitlog" / f"{65536:020}"

    salvaged(segment, tmp_path / "new")

    assert len(messages_of(tmp_path / "new")) == sum(1 for _ in StoreReader(segment).messages())
    assert wrong_in(tmp_path / "new") == []


def test_a_log_without_a_readable_message_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    with pytest.raises(NotFoundError, match="no commit log"):
        plan_salvage(StoreReader(tmp_path / "store"))

    (tmp_path / "store" / "commitlog" / f"{0:020}").write_bytes(os.urandom(4096))
    with pytest.raises(NotFoundError, match=r"no message in .* can be read"):
        plan_salvage(StoreReader(tmp_path / "store"))


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    plan = plan_salvage(StoreReader(golden_store("txn-533-kill")))
    (tmp_path / "file").touch()

    for into in (tmp_path, tmp_path / "file"):
        with pytest.raises(UsageError, match="is not empty"):
            salvage(plan, into, Disk())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_new_store_inside_the_old_one_is_refused() -> None:
    store = golden_store("txn-533-kill")

    with pytest.raises(UsageError, match="is inside the store"):
        salvage(plan_salvage(StoreReader(store)), store / "new", Disk())


@pytest.mark.parametrize("is_there", [False, True])
def test_a_full_disk_leaves_nothing_behind(is_there: bool, tmp_path: Path) -> None:
    plan = plan_salvage(StoreReader(golden_store("txn-533-kill")))
    watched = WatchedDisk()
    salvage(plan, tmp_path / "whole", watched)
    if is_there:
        (tmp_path / "new").mkdir()

    made_folder = 0 if is_there else 2
    for number in range(1, watched.count - 1 + made_folder, STEP):
        with pytest.raises(WriteError):
            salvage(plan, tmp_path / "new", FailingDisk(number))
        left = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("new*"))
        assert left == ([Path("new")] if is_there else [])
        if is_there:
            assert not list((tmp_path / "new").iterdir())


def test_until_all_is_on_the_disk_the_new_store_looks_like_one_in_use(tmp_path: Path) -> None:
    class Disk2(WatchedDisk):
        def call(self, name: str, arguments: tuple[Any, ...]) -> None:
            super().call(name, arguments)
            if arguments[0].is_relative_to(tmp_path / "new") and arguments[0] != tmp_path / "new":
                seen.append((name, arguments[0].name, (tmp_path / "new" / "abort").exists()))

    seen: list[tuple[str, str, bool]] = []
    salvage(plan_salvage(StoreReader(golden_store("txn-533-kill"))), tmp_path / "new", Disk2())

    assert seen[0] == ("create", "abort", True)
    assert seen[-1] == ("remove", "abort", False)
    assert all(is_there for _, _, is_there in seen[:-1])


@pytest.mark.parametrize(
    "ops",
    [
        [{"op": "swap", "path": f"commitlog/{0:020}", "to": f"commitlog/{131072:020}"}],
        [{"op": "rename", "path": f"commitlog/{65536:020}", "to": f"commitlog/{98304:020}"}],
        [{"op": "rename", "path": f"commitlog/{131072:020}", "to": f"commitlog/{131072:020}.bak"}],
    ],
)
def test_segments_with_wrong_names_are_read_where_their_records_belong(ops: list[Any], tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    damage.apply_ops(store, ops)

    plan = salvaged(store, tmp_path / "new")

    assert not plan.lost
    assert messages_of(tmp_path / "new") == messages_of(golden_store("mixed-533-clean"))
    assert wrong_in(tmp_path / "new") == []
    assert any("its records say so" in remark for remark in plan.remarks)


@pytest.mark.parametrize("number", [0, -1])
def test_a_lost_batch_at_either_end_of_its_queue_counts_all_of_its_messages(number: int, tmp_path: Path) -> None:
    base = manifest("batchcq-533-clean")["config"]
    store = copy_of("batchcq-533-clean", tmp_path)
    batches = [one for one in JudgedStore(store, base).records.values() if one.batch_size > 1 and one.topic == "Inner2"]
    lost = [one for one in batches if one.queue_id == batches[0].queue_id][number]
    at, size = lost.position, lost.size
    damage.apply_ops(
        store, [{"op": "zero", "file": f"commitlog/{at // 65536 * 65536:020}", "at": at % 65536, "len": size}]
    )

    plan = salvaged(store, tmp_path / "new")

    assert plan.lost == {"Inner2": lost.batch_size}


def test_a_lost_message_of_a_light_queue_leaves_the_others_in_their_places(tmp_path: Path) -> None:
    store = copy_of("special-497-clean", tmp_path)
    config = manifest("special-497-clean")["config"]
    lost = [one for one in JudgedStore(store, config).records.values() if ("%LMQ%alpha", 0, 13) in one.keys]
    at = lost[0].position
    damage.apply_ops(
        store, [{"op": "zero", "file": f"commitlog/{at // 32768 * 32768:020}", "at": at % 32768, "len": 9}]
    )

    plan = salvaged(store, tmp_path / "new")

    assert plan.lost == {lost[0].topic: 1, "%LMQ%alpha": 1}
    assert wrong_in(tmp_path / "new") == []
    assert ("%LMQ%alpha", 0, 14) in JudgedStore(tmp_path / "new", config).reachable()
