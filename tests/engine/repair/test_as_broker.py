"""``recover --as-broker`` against what real brokers did: 88 recipes of damage, three versions each, and all stores.

``fixtures/golden/damaged.json.xz`` holds what they did. Two things in it are left to chance by the broker, and so are
not compared: names of index files that it makes (its clock), and which of several full index files is noted last in
the checkpoint (threads of its own). No verdict is left out.
"""

import hashlib
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.repair.java_recovery.files import RULES, DraftFile, Scratch
from mqtool.engine.repair.java_recovery.index import BrokerIndex, BrokerIndexFile, IndexHead
from mqtool.engine.repair.java_recovery.log import Checks, Outcome, Walk, check_record
from mqtool.engine.repair.java_recovery.plan import BrokerVerdict
from mqtool.engine.repair.java_recovery.queues import BrokerQueue
from mqtool.engine.repair.java_recovery.start import BrokerStart
from mqtool.engine.repair.journal import undo
from mqtool.engine.repair.plan import carry_out, plan_repair
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.dispatch import dispatch
from mqtool.engine.store.index_file import Shape
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import UsageError
from mqtool.formats import checkpoint, consume_queue, index_file, scan
from tests.damage import DamageCase, apply_ops, cases, flips, snapshot
from tests.engine.repair.recorded import (
    TIMES,
    VERSIONS,
    config_of,
    index_names,
    recover_as,
    seen,
    states_of,
    without_chance,
)
from tests.golden import GOLDEN_NAMES, copy_of, golden_store, manifest

VERDICTS = [(case, version) for case in cases() for version in VERSIONS]
STARTED = [(case, version) for case, version in VERDICTS if case.verdicts[version].get("load_result")]
NOT_COVERED = [name for name in GOLDEN_NAMES if name.startswith(("dledger", "rocksdb"))]
COVERED = [name for name in GOLDEN_NAMES if name not in NOT_COVERED]


def _name(value: object) -> str:
    return value.name if isinstance(value, DamageCase) else str(value)


@pytest.mark.parametrize(("case", "version"), VERDICTS, ids=_name)
def test_the_verdict_is_that_of_the_broker(case: DamageCase, version: str, tmp_path: Path) -> None:
    store, recorded = case.store(tmp_path), case.verdicts[version]
    before = snapshot(store)
    old = index_names(store)

    verdict = recover_as(StoreReader(store, config_of(case.base)), VERSIONS[version], losses=False, digests=True)

    assert verdict.last_exit_ok == recorded["last_exit_ok"]
    assert verdict.starts == bool(recorded.get("load_result"))
    assert snapshot(store) == before
    if verdict.after_load and verdict.after_start:
        for ours, theirs in zip((verdict.after_load, verdict.after_start), states_of(recorded), strict=True):
            assert without_chance(seen(ours), old, version) == without_chance(theirs, old, version)


@pytest.mark.parametrize(("case", "version"), STARTED, ids=_name)
def test_a_repair_leaves_the_files_that_the_broker_left(case: DamageCase, version: str, tmp_path: Path) -> None:
    store, config = case.store(tmp_path), config_of(case.base)
    old = index_names(store)

    plan = plan_repair(store, config, "recover-as-broker", {"version": VERSIONS[version]})
    carry_out(store, config, plan, Disk())

    recorded = case.verdicts[version]["files"]
    assert _contents(_digests(store), old) == _contents(recorded, old)
    assert recorded["checkpoint"] in _possible_checkpoints(store)
    assert not (store / "abort").exists()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _digests(store: Path) -> dict[str, str]:
    folders = ("commitlog", "consumequeue", "index")
    paths = (path for folder in folders for path in (store / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(store)): _digest(path.read_bytes()) for path in paths}


def _contents(files: dict[str, str], old: set[str]) -> tuple[dict[str, str], list[str]]:
    """Return files by name, and the contents of index files named by the clock."""
    made = {name for name in files if name.startswith("index/") and name[6:] not in old}
    folders = ("commitlog/", "consumequeue/", "index/")
    named = {name: digest for name, digest in files.items() if name.startswith(folders) and name not in made}
    return named, sorted(files[name] for name in made)


def _possible_checkpoints(store: Path) -> set[str]:
    data = (store / "checkpoint").read_bytes()
    ends = [path.read_bytes()[8:16] for path in (store / "index").glob("*")]
    return {_digest(data[:16] + end + data[24:]) for end in [*ends, data[16:24]]}


@pytest.mark.parametrize("name", COVERED)
def test_each_store_is_loaded_as_the_version_that_wrote_it_loads_it(name: str) -> None:
    recorded = manifest(name)["load"]
    recorded = recorded.get("after_load", recorded)
    version = manifest(name)["rocketmq_version"]
    broker = BrokerStart(StoreReader(golden_store(name), config_of(name)), VERSIONS[version])

    broker.load()

    assert broker.max_physical_offset == recorded["max_phy_offset"]
    for topic, queues in recorded["queues"].items():
        for number, queue in queues.items():
            ours = broker.queues.get((topic, int(number)))
            if ours is None:
                assert not queue["units"]
                continue
            assert (ours.min_offset, ours.max_offset) == (queue["min"], queue["max"])
            # Of a queue of batch units the manifest has the first file only.
            assert list(_units(ours))[: len(queue["units"])] == [unit[:4] for unit in queue["units"]]
            assert len(list(_units(ours))) == len(queue["units"]) or queue["type"] == "BatchConsumeQueue"
    old = index_names(golden_store(name))
    index = [list(row.values()) for row in recorded["index"]]
    ours_seen = without_chance(seen(broker.view()), old, version)
    assert ours_seen["index"] == without_chance({**recorded, "index": index}, old, version)["index"]
    assert broker.times._asdict() == {**broker.times._asdict(), **_times(recorded["checkpoint"])}
    broker.close()


def _times(recorded: dict[str, int]) -> dict[str, int]:
    names = dict(zip(TIMES, checkpoint.CHECKPOINT.names, strict=False))
    return {names[key]: value for key, value in recorded.items() if key != "indexMsgTimestamp"}


def _units(queue: BrokerQueue) -> Iterator[list[int]]:
    for first, units in queue.in_use():
        for number, unit in enumerate(units):
            names = units.dtype.names or ()
            offset = int(unit["queue_offset"]) if "queue_offset" in names else first + number
            yield [offset, int(unit["physical_offset"]), int(unit["size"]), int(unit["tags_code"])]


@pytest.mark.parametrize("name", NOT_COVERED)
def test_a_kind_of_store_that_is_not_covered_is_said_to_be_so(name: str) -> None:
    with pytest.raises(UsageError, match="is not supported here"):
        recover_as(StoreReader(golden_store(name), config_of(name)), "5.3")


def test_a_version_that_is_not_known_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"4\.9, 5\.3, 5\.5"):
        recover_as(StoreReader(golden_store("mixed-533-clean")), "6.0")


# What it says


def _verdict_on(case_name: str, version: str, tmp_path: Path) -> BrokerVerdict:
    case = next(case for case in cases() if case.name == case_name)
    return recover_as(StoreReader(case.store(tmp_path), config_of(case.base)), version)


def test_ten_segments_back_are_told_with_what_is_lost(tmp_path: Path) -> None:
    verdict = _verdict_on("many-533-clean/full-rebuild", "5.5", tmp_path)

    assert "because it looks only at the last 10 segments" in verdict.start_reason
    assert sum(loss.messages for loss in verdict.losses) == 264  # 436 of 700 are kept (spec 17)
    assert any("in the log, but in no queue" in line for line in verdict.sentences())


def test_more_segments_are_looked_at_when_the_broker_is_told_to(tmp_path: Path) -> None:
    case = next(case for case in cases() if case.name == "many-533-clean/full-rebuild")
    settings = {**config_of(case.base).settings, "commitLogRecoverMaxNum": "100"}

    verdict = recover_as(StoreReader(case.store(tmp_path), StoreConfig(settings)), "5.5")

    assert not verdict.losses


def test_messages_behind_damage_are_told_as_lost(tmp_path: Path) -> None:
    verdict = _verdict_on("mixed-533-clean/body-byte-first-segment-no-checkpoint-abort", "5.3", tmp_path)

    assert verdict.end_reason is Outcome.BAD_CRC
    assert sum(loss.messages for loss in verdict.losses) > 200
    assert len(verdict.removed_segments) == 4


@pytest.mark.parametrize("version", RULES)
def test_a_stray_file_is_why_no_broker_starts(version: str, tmp_path: Path) -> None:
    verdict = _verdict_on("mixed-533-clean/commitlog-stray-file", version, tmp_path)

    assert verdict.refusal and ".swp" in verdict.refusal
    assert verdict.sentences() == [f"a {version} broker refuses to start: {verdict.refusal}"]


@pytest.mark.parametrize("version", RULES)
@pytest.mark.parametrize("name", ["topics.json", "consumerOrderInfo.json"])
def test_a_broker_that_can_read_neither_a_table_nor_its_backup_does_not_start(
    name: str, version: str, tmp_path: Path
) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    table, backup = store / "config" / name, store / "config" / f"{name}.bak"
    is_loaded = name == "topics.json" or version != "4.9"
    table.write_bytes(b"{")
    backup.write_bytes(b"{")

    verdict = recover_as(StoreReader(store, config_of("mixed-533-clean")), version)
    assert verdict.starts == (not is_loaded)
    assert is_loaded == (f"cannot read config/{name}.bak" in (verdict.refusal or ""))

    for text in (b"", b'{"dataVersion":{}}'):  # starts without it, and with it
        backup.write_bytes(text)
        assert recover_as(StoreReader(store, config_of("mixed-533-clean")), version).starts


def test_the_plan_for_a_broker_that_refuses_changes_nothing(tmp_path: Path) -> None:
    case = next(case for case in cases() if case.name == "mixed-533-clean/commitlog-stray-file")
    store = case.store(tmp_path)

    plan = plan_repair(store, config_of(case.base), "recover-as-broker", {"version": "5.3"})

    assert not plan.changes
    assert "refuses to start" in plan.remarks[0]


def test_the_dispatcher_of_4_9_waits_for_ever_before_a_missing_segment(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    apply_ops(
        store,
        [
            {"op": "delete", "path": "commitlog/00000000000000131072"},
            {"op": "delete", "path": "consumequeue"},
        ],
    )

    verdict = recover_as(StoreReader(store, config_of("mixed-533-clean")), "4.9")

    assert verdict.endless and "131,072" in verdict.endless
    assert verdict.refusal is None


@pytest.mark.parametrize("version", RULES)
def test_without_a_log_all_queues_are_dropped(version: str, tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    apply_ops(store, [{"op": "delete", "path": "commitlog"}, {"op": "mkdir", "path": "commitlog"}])

    verdict = recover_as(StoreReader(store, config_of("mixed-533-clean")), version)

    assert verdict.after_start
    assert all(queue.max_offset == 0 for queue in verdict.after_start.queues.values())
    assert len(verdict.removed_queue_files) == len(list((store / "consumequeue").rglob("0*0")))


# Undo


@pytest.mark.parametrize("version", RULES)
def test_undo_puts_back_every_byte(version: str, tmp_path: Path) -> None:
    case = next(case for case in cases() if case.name == "mixed-533-kill/tail-zeros-many-records")
    store, config = case.store(tmp_path), config_of(case.base)
    before = snapshot(store)

    carry_out(store, config, plan_repair(store, config, "recover-as-broker", {"version": version}), Disk())
    changed = snapshot(store)
    undo(store, Disk())

    assert changed != before
    assert snapshot(store) == before


# The parts, against plain twins


@given(data=st.data(), version=st.sampled_from(list(RULES)))
def test_a_walk_ends_where_the_validator_says(data: st.DataObject, version: str) -> None:
    rules, checks = RULES[version], Checks()
    base = golden_store("special-533-clean")
    flip = data.draw(flips(base, "commitlog/00000000000000000000"))
    content = bytearray((base / flip["file"]).read_bytes())
    content[flip["at"]] = bytes.fromhex(flip["hex"])[0]

    segment = _InMemory(bytes(content))
    walk = Walk([segment], 0, rules, checks)
    found = [int(start) for table in walk.tables() for start in table.starts]

    at, expected = 0, []
    while (one := check_record(memoryview(content), at, rules, checks)).outcome is Outcome.RECORD:
        expected.append(at)
        at += one.size
    assert (found, walk.end_offset, walk.why) == (expected, at, one.outcome)


class _InMemory(MappedFile):
    """A segment that is in no file."""

    def __init__(self, content: bytes) -> None:
        super().__init__(Path("00000000000000000000"), 0, len(content))
        self._content = content

    def map(self) -> Any:
        return np.frombuffer(self._content, np.uint8)

    def release(self, start: int, stop: int) -> None:
        pass


_offsets = st.integers(0, 40)


@given(
    stretches=st.lists(st.tuples(st.integers(0, 14), st.lists(_offsets, min_size=1, max_size=12)), max_size=8),
    version=st.sampled_from(list(RULES)),
)
def test_units_put_in_bulk_are_those_put_one_by_one(stretches: list[tuple[int, list[int]]], version: str) -> None:
    scratch = Scratch()
    bulk, single = (
        BrokerQueue(("T", 0), Path("nowhere"), 100, scratch, RULES[version]) for _ in ("in bulk", "one by one")
    )

    for first, offsets in stretches:
        units = np.zeros(len(offsets), consume_queue.UNIT.dtype)
        units["physical_offset"] = [100 * offset for offset in offsets]
        units["size"] = 100
        bulk.put(units, first)
        for number in range(len(units)):
            single.put(units[number : number + 1], first + number)

    assert list(_units(bulk)) == list(_units(single))
    assert (bulk.min_offset, bulk.max_offset) == (single.min_offset, single.max_offset)
    assert bulk.max_physical_offset == single.max_physical_offset
    scratch.close()


@given(writes=st.lists(st.tuples(st.integers(0, 90_000), st.binary(min_size=1, max_size=40_000)), max_size=6))
def test_a_draft_reads_what_was_laid_over_it(writes: list[tuple[int, bytes]], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("draft") / "base"
    expected = bytearray(np.arange(100_000, dtype=np.uint32).tobytes()[:150_000])
    path.write_bytes(expected)
    scratch = Scratch()
    draft = DraftFile(path, len(expected), MappedFile(path, 0, len(expected)), scratch)
    before = bytes(expected)

    for at, data in writes:
        expected[at : at + len(data)] = data
        draft.write(at, data)

    assert draft.read(0, len(expected)) == expected
    patched = bytearray(before)
    for at, data in draft.changes():
        assert data != before[at : at + len(data)]
        patched[at : at + len(data)] = data
    assert patched == expected
    scratch.close()


@pytest.mark.parametrize("version", RULES)
@given(data=st.data())
def test_entries_put_in_bulk_are_those_put_one_by_one(version: str, data: st.DataObject) -> None:
    reader = StoreReader(golden_store("special-533-clean"), config_of("special-533-clean"))
    table = next(table for table in reader.tables() if isinstance(table, scan.MessageTable))
    rows = np.array(data.draw(st.lists(st.integers(0, len(table) - 1), min_size=1, max_size=30)))
    shape = Shape(data.draw(st.integers(1, 12)), data.draw(st.integers(3, 30)))
    rules, scratch = RULES[version], Scratch()
    bulk, single = (BrokerIndex(Path("nowhere"), shape, scratch, rules, keep=True) for _ in range(2))
    # What a file whose header was zeroed has in its slots: numbers that the count has yet to reach.
    stale = data.draw(st.lists(st.integers(0, 30), min_size=shape.slots, max_size=shape.slots))
    for index in (bulk, single):
        draft = DraftFile(Path("nowhere"), shape.file_size, None, scratch)
        draft.write(index_file.HEADER_SIZE, struct.pack(f">{shape.slots}i", *stale))
        index.files.append(BrokerIndexFile(draft, IndexHead("1", 0, 0, 0, 0, 0, 1)))

    chosen = table.where(rows)
    bulk.put(chosen, dispatch(chosen, reader.delay_levels, rules.tags_in_index).entries)
    for row in rows.tolist():
        one = table.where([row])  # type: ignore[arg-type]
        single.put(one, dispatch(one, reader.delay_levels, rules.tags_in_index).entries)
    bulk.finish()
    single.finish()

    assert [file.head for file in bulk.files] == [file.head for file in single.files]
    for ours, theirs in zip(bulk.files, single.files, strict=True):
        assert ours.draft.read(0, shape.file_size) == theirs.draft.read(0, shape.file_size)
    for ours in bulk.files[1:]:
        assert ours.head.slot_count == sum(map(bool, _slots(ours.draft, shape)))
    scratch.close()


def test_slots_of_a_file_whose_header_was_zeroed_count_where_the_number_is_reached_again(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    file = max((store / "index").iterdir())
    apply_ops(
        store,
        [
            {"op": "zero", "file": f"index/{file.name}", "at": 0, "len": index_file.HEADER_SIZE},
            {"op": "delete", "path": "consumequeue"},
        ],
    )

    verdict = recover_as(StoreReader(store, config_of("mixed-533-clean")), "5.3")

    assert verdict.after_start
    (head,) = (head for head in verdict.after_start.index if head.name == file.name)
    assert head.slot_count == 64  # as 5.3.3 counts


def _slots(draft: DraftFile, shape: Shape) -> tuple[int, ...]:
    return struct.unpack(f">{shape.slots}i", draft.read(index_file.HEADER_SIZE, 4 * shape.slots))


# Found by comparing with brokers on random damage


def test_4_9_forgets_the_delivery_time_of_delayed_messages_that_it_dispatches_in_load(tmp_path: Path) -> None:
    store = copy_of("retry-533-clean", tmp_path)
    apply_ops(
        store,
        [
            {"op": "delete", "path": "consumequeue/SCHEDULE_TOPIC_XXXX"},
            {"op": "create", "file": "abort", "size": 0},
        ],
    )
    codes = {}

    for version in RULES:
        broker = BrokerStart(StoreReader(store, config_of("retry-533-clean")), version)
        broker.load()
        queue = next(queue for (topic, _), queue in broker.queues.items() if topic == "SCHEDULE_TOPIC_XXXX")
        codes[version] = [tags_code for *_, tags_code in _units(queue)]
        assert bool(broker.remarks) == (version == "4.9")
        broker.close()

    assert codes["5.3"] == codes["5.5"]
    assert all(code > 1_700_000_000_000 for code in codes["5.3"])
    assert all(abs(code) < 1 << 31 for code in codes["4.9"])


@pytest.mark.parametrize(
    ("version", "base", "at", "units"),
    [
        ("4.9", "mixed-497-kill", 233269, 237),
        ("5.3", "mixed-533-kill", 272951, 246),
        ("5.5", "mixed-533-kill", 272951, 25),
    ],
)
def test_behind_a_topic_with_a_zero_byte_no_message_gets_a_unit(
    version: str, base: str, at: int, units: int, tmp_path: Path
) -> None:
    store = copy_of(base, tmp_path)
    shutil.rmtree(store / "consumequeue")
    segment = store / f"commitlog/{at // 65536 * 65536:020}"
    data = bytearray(segment.read_bytes())
    data[data.index(b"OrderEvents", at % 65536) + 2] = 0
    segment.write_bytes(data)

    verdict = recover_as(StoreReader(store, config_of(base)), version)

    assert verdict.after_start is not None
    made = sum(queue.count for queue in verdict.after_start.queues.values())
    assert made == units  # as 4.9.7, 5.3.3 and 5.5.0 made them
    assert any("LOG-TOPIC" in remark for remark in verdict.sentences())


@pytest.mark.parametrize("version", RULES)
def test_every_message_dispatched_gets_a_unit_of_the_extension(version: str, tmp_path: Path) -> None:
    store = copy_of("ext-533-clean", tmp_path)
    apply_ops(store, [{"op": "delete", "path": "consumequeue"}, {"op": "delete", "path": "consumequeue_ext"}])
    apply_ops(store, [{"op": "create", "file": "abort", "size": 0}, {"op": "delete", "path": "checkpoint"}])
    config = config_of("ext-533-clean")

    carry_out(store, config, plan_repair(store, config, "recover-as-broker", {"version": version}), Disk())

    reader, before = StoreReader(store, config), StoreReader(golden_store("ext-533-clean"), config)
    assert reader.consume_queues.keys() == before.consume_queues.keys()
    for key, queue in reader.consume_queues.items():
        units = queue.units(0, queue.max_offset())
        plain_units = before.consume_queues[key].units(0, queue.max_offset())
        assert units["physical_offset"].tolist() == plain_units["physical_offset"].tolist()
        for unit in units:
            assert reader.consume_queue_exts[key].unit_at(int(unit["tags_code"])) is not None


def test_a_record_that_4_9_has_no_heap_for_is_told(tmp_path: Path) -> None:
    store = copy_of("mixed-497-clean", tmp_path)
    apply_ops(store, [{"op": "write", "file": "commitlog/00000000000000196608", "at": 40004, "hex": "27"}])

    verdict = recover_as(StoreReader(store, config_of("mixed-497-clean")), "4.9")

    assert any("heap" in line for line in verdict.sentences())


@pytest.mark.parametrize("version", ["5.3", "5.5"])
def test_a_batch_unit_without_messages_is_behind_the_end_of_its_queue(version: str, tmp_path: Path) -> None:
    store = copy_of("batchcq-533-clean", tmp_path)
    file = "batchconsumequeue/Inner2/0/00000000000000000460"
    apply_ops(store, [{"op": "zero", "file": file, "at": 37, "len": 423}])  # from the batch size of its first unit on

    verdict = recover_as(StoreReader(store, config_of("batchcq-533-clean")), version, digests=True)

    assert verdict.after_load
    queue = verdict.after_load.queues["Inner2", 0]
    assert (queue.min_offset, queue.max_offset, queue.count) == (0, 31, 10)
