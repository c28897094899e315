"""Queues and index made again: held against the files of the brokers that wrote the golden stores, and against the
files that real brokers made when they were given nothing but a log."""

import collections
import hashlib
import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mqtool.engine.repair.journal import State, journals, undo
from mqtool.engine.repair.plan import carry_out, plan_repair
from mqtool.engine.repair.rebuild import plan as rebuild
from mqtool.engine.repair.rebuild import queues as rebuild_queues
from mqtool.engine.repair.rebuild.losses import given_up
from mqtool.engine.repair.rebuild.plan import build, build_index, build_queues
from mqtool.engine.repair.rebuild.queues import FOLDERS, QueueBuilder, Sizes, UnitBlock
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.consume_queue import ConsumeQueue
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.paths import DEFAULT_DELAY_LEVELS, StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import MqtoolError, NotFoundError, UsageError, WriteError
from mqtool.formats import consume_queue, kernels, scan
from mqtool.formats.config_tables import parse_table
from tests.damage import DamageCase, apply_ops, cases, damaged, flips, snapshot
from tests.golden import GOLDEN_NAMES, copy_of, golden_store, manifest

ROCKSDB = [name for name in GOLDEN_NAMES if name.startswith("rocksdb")]
IN_FILES = [name for name in GOLDEN_NAMES if name not in ROCKSDB]

LONG_DELAYS = DEFAULT_DELAY_LEVELS.partition("30s ")[2]
"""The golden stores have shorter ones in front of these."""

FULL_REBUILDS = [
    case
    for case in cases()
    if {"consumequeue", "index", "checkpoint"} <= {op.get("path") for op in case.ops if op["op"] == "delete"}
]
VERSIONS = {"4.9.7": "4.9", "5.3.3": "5.3", "5.5.0": "5.5"}
EXCEPTIONS = {
    ("many-533-clean/full-rebuild", "5.5.0"): "5.4 and later read no more than the last ten of its 16 segments",
    ("special-533-clean/full-rebuild", "4.9.7"): "4.x takes the first v2 record for the end of the log",
    **{
        ("mixed-533-clean/physical-offset-field-full-scan", version): (
            "a broker believes the damaged offset in the record: its unit leads nowhere, ours to where the record lies"
        )
        for version in VERSIONS
    },
    **{
        ("mixed-533-clean/queue-id-full-scan", version): (
            "a broker moves the messages behind one that says another queue; they keep their queue offsets here"
        )
        for version in VERSIONS
    },
}
"""Where a broker's own full rebuild leaves something out, or misplaces it."""


def config_of(name: str) -> StoreConfig:
    return StoreConfig({key: str(value) for key, value in manifest(name)["config"].items() if key != "commitLogPaths"})


def files_below(folder: Path, *kinds: str) -> dict[str, bytes]:
    paths = itertools.chain.from_iterable((folder / kind).rglob("*") for kind in kinds)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.is_file()}


def index_contents(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((folder / "index").iterdir())]


def findings(store: Path, config: StoreConfig | None = None) -> "collections.Counter[tuple[Any, ...]]":
    found = verify_store(StoreReader(store, config))
    return collections.Counter((one.code, one.file, one.offset) for one in found)


def without_queues_and_index(name: str, tmp: Path) -> Path:
    store = copy_of(name, tmp)
    for kind in (*FOLDERS, "index"):
        shutil.rmtree(store / kind, ignore_errors=True)
    return store


@pytest.mark.parametrize("name", IN_FILES)
def test_queues_made_again_are_those_of_the_broker_byte_for_byte(name: str, tmp_path: Path) -> None:
    build_queues(StoreReader(golden_store(name)), tmp_path, Disk())

    assert files_below(tmp_path, *FOLDERS) == files_below(golden_store(name), *FOLDERS)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_index_files_made_again_are_those_of_the_broker_but_for_their_names(name: str, tmp_path: Path) -> None:
    build_index(StoreReader(golden_store(name)), tmp_path, Disk())

    assert index_contents(tmp_path) == index_contents(golden_store(name))
    names = [path.name for path in sorted((tmp_path / "index").iterdir())]
    assert all(len(one) == 17 and one.isdigit() for one in names)


@pytest.mark.parametrize("name", ["batchcq-533-clean", "mixed-497-kill", "mixed-550-clean", "special-533-clean"])
def test_a_store_without_queues_and_index_gets_the_same_ones_when_their_sizes_are_given(
    name: str, tmp_path: Path
) -> None:
    store = without_queues_and_index(name, tmp_path)
    shutil.rmtree(store / "config", ignore_errors=True)  # where the kind of a queue is told

    build(StoreReader(store, config_of(name)), tmp_path / "new", Disk())

    assert files_below(tmp_path / "new", *FOLDERS) == files_below(golden_store(name), *FOLDERS)
    assert index_contents(tmp_path / "new") == index_contents(golden_store(name))


def test_queues_that_lay_in_rocksdb_are_made_as_files(tmp_path: Path) -> None:
    store = golden_store("rocksdb-533-clean")

    built = build_queues(StoreReader(store), tmp_path, Disk())

    counts = collections.Counter(
        (message["topic"], message["queue_id"]) for message in manifest("rocksdb-533-clean")["messages"]
    )
    assert {key: queue.units for key, queue in built.queues.items()} == counts


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", FULL_REBUILDS, ids=lambda case: case.name)
def test_files_are_those_of_a_real_broker_that_had_only_the_log(case: DamageCase, version: str, tmp_path: Path) -> None:
    reader = StoreReader(case.store(tmp_path), config_of(case.base))

    build(reader, tmp_path / "new", Disk(), version=VERSIONS[version])

    made = {
        name: hashlib.sha256(data).hexdigest()[:16]
        for name, data in files_below(tmp_path / "new", *FOLDERS, "index").items()
    }
    wanted = {
        name: sha for name, sha in case.verdicts[version]["files"].items() if name.split("/")[0] in (*FOLDERS, "index")
    }
    is_same = _but_names_of_index(made) == _but_names_of_index(wanted)
    assert is_same == ((case.name, version) not in EXCEPTIONS)


def _but_names_of_index(files: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    queues = {name: sha for name, sha in files.items() if not name.startswith("index/")}
    return queues, sorted(sha for name, sha in files.items() if name.startswith("index/"))


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_threads_change_nothing(jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "PART", 5000)
    monkeypatch.setattr(rebuild_queues, "PENDING", 100)
    store = golden_store("mixed-533-clean")

    build(StoreReader(store), tmp_path, Disk(), jobs=jobs)

    assert files_below(tmp_path, *FOLDERS) == files_below(store, *FOLDERS)
    assert index_contents(tmp_path) == index_contents(store)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_compiled_and_plain_kernels_make_the_same_files(
    is_compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "LOAD_FROM", scan.COMPILE_FROM)
    if is_compiled:
        monkeypatch.setattr(scan, "COMPILE_FROM", 0)
    store = golden_store("special-533-clean")

    build(StoreReader(store), tmp_path, Disk())

    assert files_below(tmp_path, *FOLDERS) == files_below(store, *FOLDERS)
    assert index_contents(tmp_path) == index_contents(store)


@pytest.fixture(scope="module")
def small_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a golden store, to be damaged and put back."""
    return copy_of("txn-533-kill", tmp_path_factory.mktemp("small"))


@settings(max_examples=20)
@given(st.data())
def test_what_stands_in_old_queues_and_index_does_not_matter(small_store: Path, data: st.DataObject) -> None:
    config = StoreConfig({**config_of(small_store.name).settings, "messageDelayLevel": f"1s 2s 3s 4s {LONG_DELAYS}"})
    flip = st.one_of(flips(small_store, "consumequeue/*/*/*"), flips(small_store, "index/*"))
    new = small_store.with_name("new")
    shutil.rmtree(new, ignore_errors=True)

    with damaged(small_store, *data.draw(st.lists(flip, max_size=5))):
        build(StoreReader(small_store, config), new, Disk(), version="5.3")

    assert files_below(new, *FOLDERS) == files_below(small_store, *FOLDERS)
    assert index_contents(new) == index_contents(small_store)


@given(
    arrays.arrays(np.int32, st.integers(0, 60), elements=st.integers(0, 2**31 - 1)),
    st.integers(1, 20),
    st.lists(st.integers(0, 60)),
)
def test_entries_are_chained_as_one_by_one_with_a_dict(hashes: Any, slots: int, cuts: list[int]) -> None:
    newest, previous = np.zeros(slots, np.int32), np.zeros(len(hashes), np.int32)
    edges = sorted({0, len(hashes), *(cut for cut in cuts if cut < len(hashes))})

    for start, stop in itertools.pairwise(edges):
        kernels.link_entries(hashes[start:stop], start + 1, newest, previous[start:stop])

    chains: dict[int, int] = {}
    for number, key_hash in enumerate(hashes.tolist(), 1):
        assert previous[number - 1] == chains.get(key_hash % slots, 0)
        chains[key_hash % slots] = number
    assert {slot: number for slot, number in enumerate(newest.tolist()) if number} == chains


# Queues whose offsets do not follow each other


def pieces(queue: tuple[str, int], *offsets: int) -> list[UnitBlock]:
    """Return one piece for each stretch of offsets; a unit points at 1000 times its place in the list."""
    made = []
    edges = [0, *(i for i in range(1, len(offsets)) if offsets[i] != offsets[i - 1] + 1), len(offsets)]
    for start, stop in itertools.pairwise(edges):
        units = np.zeros(stop - start, consume_queue.UNIT.dtype)
        units["physical_offset"] = np.arange(start, stop) * 1000
        units["size"] = 1000
        made.append(UnitBlock(queue, offsets[start], offsets[stop - 1] + 1, units, None))
    return made


def built_queue(tmp: Path, *steps: "tuple[int, ...] | None") -> tuple[list[int], QueueBuilder]:
    """Build one queue from stretches of queue offsets, None for a hole in the log.

    Returns which message each unit names, -1 for filler, and the builder.
    """
    reader = StoreReader(golden_store("mixed-533-clean"))
    shutil.rmtree(tmp / "consumequeue", ignore_errors=True)
    builder = QueueBuilder(reader, tmp, Disk(), Sizes(400, 460, 4096))
    count = 0
    for step in steps:
        if step is None:
            builder.shake()
            continue
        for piece in pieces(("T", 0), *step):
            piece.units["physical_offset"] += count * 1000
            builder.add([piece])
        count += len(step)
    builder.finish()
    data = b"".join(path.read_bytes() for path in sorted((tmp / "consumequeue" / "T" / "0").iterdir()))
    units = np.frombuffer(data, consume_queue.UNIT.dtype)
    named = [
        -1 if unit["size"] == consume_queue.PRE_BLANK_SIZE else int(unit["physical_offset"]) // 1000
        for unit in units
        if unit["size"]
    ]
    return named, builder


def test_a_queue_that_begins_inside_of_a_file_is_filled_up_from_the_beginning_of_that_file(tmp_path: Path) -> None:
    named, _ = built_queue(tmp_path, (43, 44))

    assert named == [-1, -1, -1, 0, 1]
    assert [path.name for path in (tmp_path / "consumequeue" / "T" / "0").iterdir()] == ["00000000000000000800"]


def test_a_queue_offset_that_comes_twice_keeps_its_first_message(tmp_path: Path) -> None:
    named, builder = built_queue(tmp_path, (0, 1, 2), (1, 2, 3))

    assert named == [0, 1, 2, 5]
    assert builder.unplaced == {("T", 0): 2}


def test_messages_lost_in_a_hole_of_the_log_leave_filler_in_their_places(tmp_path: Path) -> None:
    named, builder = built_queue(tmp_path, (0, 1), None, (4, 5))

    assert named == [0, 1, -1, -1, 2, 3]
    assert builder.filled == {"T": 2}


def test_queue_offsets_that_jump_for_good_keep_their_places_even_without_a_hole(tmp_path: Path) -> None:
    named, builder = built_queue(tmp_path, (0, 1), (4,), (5, 6))

    assert named == [0, 1, -1, -1, 2, 3, 4]
    assert builder.filled == {"T": 2}


def test_a_damaged_queue_offset_takes_the_next_place_as_in_brokers(tmp_path: Path) -> None:
    named, builder = built_queue(tmp_path, (0, 1), (99,), (3, 4))

    assert named == [0, 1, 2, 3, 4]
    assert not builder.filled


def test_a_damaged_offset_of_the_first_message_does_not_mislead_the_queue(tmp_path: Path) -> None:
    named, builder = built_queue(tmp_path, (10**12,), (21, 22))

    assert named == [0, 1, 2]
    assert not builder.unplaced


def test_a_stray_before_the_first_message_of_a_queue_does_not_mislead_it(tmp_path: Path) -> None:
    named, builder = built_queue(tmp_path, (10**12,), (0, 1))

    assert named == [1, 2]
    assert builder.unplaced == {("T", 0): 1}


@pytest.mark.parametrize("behind", [1, 2, 5])
@pytest.mark.parametrize("offset", [-1, 3])
def test_messages_behind_one_whose_offset_is_damaged_keep_theirs(behind: int, offset: int, tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    reader = StoreReader(store)
    key, queue = max(reader.consume_queues.items(), key=lambda one: one[1].max_offset())
    whole = queue.units(0, queue.max_offset()).tolist()
    number = len(whole) - 1 - behind
    segment = reader.commit_log.segment_at(whole[number][0])
    assert segment is not None
    with segment.path.open("r+b") as log:
        log.seek(whole[number][0] - segment.start_offset + 20)
        log.write(offset.to_bytes(8, "big", signed=True))

    built = build_queues(StoreReader(store), tmp_path / "new", Disk())

    made = ConsumeQueue(*key, tmp_path / "new" / "consumequeue" / key[0] / str(key[1]), queue.file_size)
    units = made.units(0, made.max_offset()).tolist()
    assert [unit for place, unit in enumerate(units) if place != number] == whole[:number] + whole[number + 1 :]
    assert built.gaps[key] == [(number, number + 1)]


def test_places_that_are_filled_are_told_as_lost_be_there_units_of_them_or_none(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    one = next(one for one in manifest("mixed-533-clean")["messages"] if one["queue_offset"] == 1)
    apply_ops(store, [{"op": "zero", "file": f"commitlog/{0:020}", "at": one["phy"], "len": one["size"]}])
    place = (one["topic"], one["queue_id"], 1, 2)

    for units in ("there", "gone"):
        if units == "gone":
            shutil.rmtree(store / "consumequeue")
        plan = plan_repair(store, StoreConfig({}), "rebuild", {"target": "queues", "topics": None})
        assert [(loss.topic, loss.queue_id, loss.queue_offset, loss.end_queue_offset) for loss in plan.losses] == [
            place
        ]


def test_a_message_that_strayed_into_a_queue_is_left_out_of_it(tmp_path: Path) -> None:
    named, builder = built_queue(tmp_path, (0, 1), (99,), (2, 3))

    assert named == [0, 1, 3, 4]
    assert builder.unplaced == {("T", 0): 1}


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30))
def test_every_message_is_in_its_queue_once_or_counted_as_unplaced(
    tmp_path_factory: pytest.TempPathFactory, offsets: list[int]
) -> None:
    named, builder = built_queue(tmp_path_factory.mktemp("queue"), *((offset,) for offset in offsets))

    placed = [number for number in named if number >= 0]
    assert sum(queue.units for queue in builder.ranges().values()) == len(placed)
    assert len(placed) == len(set(placed)) == len(offsets) - builder.unplaced.total()
    assert placed == sorted(placed)


@pytest.mark.parametrize("topic", ["../outside", "..", ".", "", "a/b", "x" * 256, "nul\0"])
def test_no_topic_leads_out_of_the_folder(topic: str, tmp_path: Path) -> None:
    reader = StoreReader(golden_store("mixed-533-clean"))
    builder = QueueBuilder(reader, tmp_path / "into", Disk(), Sizes(400, 460, 4096))

    builder.add(pieces((topic, 0), 0, 1, 2))
    builder.finish()

    assert not list(tmp_path.rglob("*"))
    assert builder.unplaced == {(topic, 0): 3}


# The repair


def repair(store: Path, config: StoreConfig | None = None, **options: Any) -> Any:
    plan = plan_repair(store, config or StoreConfig(), "rebuild", options)
    carry_out(store, config or StoreConfig(), plan, Disk())
    return plan


@pytest.mark.parametrize("name", IN_FILES)
def test_a_rebuilt_store_has_no_new_finding_and_undo_brings_the_old_one_back(name: str, tmp_path: Path) -> None:
    store = copy_of(name, tmp_path)
    before, was = findings(store), snapshot(store)

    repair(store, target="all")

    assert not findings(store) - before
    undo(store, Disk())
    assert snapshot(store) == was


def test_a_store_that_lost_queues_and_index_verifies_clean_again(tmp_path: Path) -> None:
    store = without_queues_and_index("mixed-533-clean", tmp_path)
    config = config_of("mixed-533-clean")

    repair(store, config, target="all")

    assert findings(store, config) == findings(golden_store("mixed-533-clean"), config)


@pytest.mark.parametrize("target", ["queues", "index", "config", "all"])
def test_a_plan_changes_nothing(target: str, tmp_path: Path) -> None:
    store = copy_of("retry-533-clean", tmp_path)
    was = snapshot(tmp_path)

    plan = plan_repair(store, StoreConfig(), "rebuild", {"target": target})

    assert snapshot(tmp_path) == was
    assert plan.changes or target == "config"


def test_only_the_named_topic_is_rebuilt(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    for path in (store / "consumequeue").glob("*/*/*"):
        path.write_bytes(bytes(path.stat().st_size))

    plan = repair(store, target="queues", topics=["OrderEvents"])

    kept = files_below(golden_store("mixed-533-clean"), "consumequeue/OrderEvents")
    assert files_below(store, "consumequeue/OrderEvents") == kept
    assert not any(any(data) for data in files_below(store, "consumequeue/pay_events").values())
    assert [change.file for change in plan.changes] == ["consumequeue/OrderEvents"]


def test_a_queue_whose_messages_have_all_expired_keeps_its_place(tmp_path: Path) -> None:
    store = copy_of("many-533-clean", tmp_path)
    queue = store / "consumequeue" / "Expired" / "0" / "00000000000000000400"
    queue.parent.mkdir(parents=True)
    unit = consume_queue.UNIT.schema.build({"physical_offset": 5, "size": 100, "tags_code": 0})
    queue.write_bytes((unit * 3).ljust(400, b"\0"))
    (store / "commitlog" / "00000000000000000000").unlink()

    repair(store, target="queues")

    assert queue.read_bytes() == (unit * 3).ljust(400, b"\0")


def test_the_checkpoint_tells_that_the_new_index_is_whole(tmp_path: Path) -> None:
    store = copy_of("mixed-533-kill", tmp_path)

    repair(store, target="index")

    reader = StoreReader(store)
    assert reader.checkpoint is not None
    assert reader.checkpoint.index_timestamp == reader.index_files[-1].header.end_timestamp


def test_queues_in_rocksdb_are_not_rebuilt_in_place(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="RocksDB"):
        plan_repair(copy_of("rocksdb-533-clean", tmp_path), StoreConfig(), "rebuild", {"target": "queues"})


def test_a_plan_tells_when_the_times_of_delayed_messages_are_a_guess(tmp_path: Path) -> None:
    store = without_queues_and_index("txn-533-kill", tmp_path)
    options = {"target": "queues"}

    guessed = plan_repair(store, config_of("txn-533-kill"), "rebuild", options)
    told = plan_repair(store, StoreConfig({"messageDelayLevel": "1s 2s 3s 4s"}), "rebuild", options)

    assert any("messageDelayLevel" in remark for remark in guessed.remarks)
    assert not any("messageDelayLevel" in remark for remark in told.remarks)


class FullDisk(Disk):
    """A disk on which only so many writes have room."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, path: Path, at: int, data: bytes) -> None:
        self.room -= 1
        if self.room < 0:
            raise WriteError(f"no space left for {path}")
        super().write(path, at, data)


@pytest.mark.parametrize("room", [1, 5, 12, 20, 30])
def test_a_full_disk_leaves_the_store_as_it_was(room: int, tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    was = snapshot(store)
    plan = plan_repair(store, StoreConfig(), "rebuild", {"target": "all"})

    with pytest.raises(MqtoolError, match="no space left"):
        carry_out(store, StoreConfig(), plan, FullDisk(room), jobs=2)

    undo_all(store)
    assert snapshot(store) == was


def undo_all(store: Path) -> None:
    """Take back what a full disk did not let be taken back at once."""
    while any(info.state is not State.UNDONE for info in journals(store)):
        undo(store, Disk())


def test_of_a_log_without_a_message_nothing_is_rebuilt_and_queues_and_index_stay(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    for path in (store / "commitlog").iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    was = snapshot(store)

    with pytest.raises(NotFoundError, match="contains no messages"):
        repair(store, target="all")

    assert snapshot(store) == was


def test_of_a_store_in_rocksdb_all_but_the_queues_is_rebuilt(tmp_path: Path) -> None:
    store = copy_of("rocksdb-550-clean", tmp_path)

    plan = repair(store, target="all")

    assert "index" in {change.file for change in plan.changes}
    assert any("RocksDB" in remark for remark in plan.remarks)
    assert index_contents(store) == index_contents(golden_store("rocksdb-550-clean"))


def two_lives(tmp: Path) -> Path:
    """Return a store in which one queue offset comes twice."""
    case = next(case for case in cases() if case.name == "mixed-533-clean/queue-id-full-scan")
    return case.store(tmp)


def test_a_plan_foretells_messages_that_cannot_be_placed(tmp_path: Path) -> None:
    store, config = two_lives(tmp_path), config_of("mixed-533-clean")

    plan = repair(store, config, target="all")

    told = [(loss.topic, loss.messages, loss.queue_id is not None) for loss in plan.losses]
    assert told == [("pay_events", 1, False), ("pay_events", 1, True)]  # and the place that it has left


def test_without_a_survey_an_unforeseen_loss_is_refused_and_the_store_left_as_it_was(tmp_path: Path) -> None:
    store, config = two_lives(tmp_path), config_of("mixed-533-clean")
    was = snapshot(store)

    with pytest.raises(MqtoolError, match="--survey"):
        repair(store, config, target="all", survey=False)

    assert snapshot(store) == was


# Tables


def test_lost_tables_are_made_from_queues_and_retry_topics(tmp_path: Path) -> None:
    store = copy_of("retry-533-clean", tmp_path)
    old = {name: _table(store, name) for name in ("topics.json", "subscriptionGroup.json", "delayOffset.json")}
    shutil.rmtree(store / "config")

    repair(store, target="config")

    topics = _table(store, "topics.json")["topicConfigTable"]
    for topic in ("Retries", "%RETRY%GID_retry", "%DLQ%GID_retry"):
        known = old["topics.json"]["topicConfigTable"][topic]
        assert topics[topic]["readQueueNums"] == known["readQueueNums"]
    assert "GID_retry" in _table(store, "subscriptionGroup.json")["subscriptionGroupTable"]
    assert _table(store, "delayOffset.json")["offsetTable"] == old["delayOffset.json"]["offsetTable"]
    offsets = _table(store, "consumerOffset.json")["offsetTable"]
    read = _table(golden_store("retry-533-clean"), "consumerOffset.json")["offsetTable"]
    assert all(offset <= read["Retries@GID_retry"][queue] for queue, offset in offsets["Retries@GID_retry"].items())


def test_delay_levels_keep_their_progress_where_only_queues_are_in_rocksdb(tmp_path: Path) -> None:
    store = copy_of("rocksdb-533-clean", tmp_path)
    for name in ("topics", "subscriptionGroups", "consumerOffsets"):
        shutil.rmtree(store / "config" / name)
    (store / "config" / "delayOffset.json").write_text('{"offsetTable":{18:5}}')

    changes = plan_repair(store, StoreConfig(), "rebuild", {"target": "config"}).changes

    assert [change.file for change in changes] == ["config/topics.json"]


def test_topics_are_found_in_the_log_when_their_queues_are_lost_too(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    for kind in ("config", "consumequeue"):
        shutil.rmtree(store / kind)

    for survey in (True, False):
        repair(store, target="config", survey=survey)
        topics = _table(store, "topics.json")["topicConfigTable"]
        assert {topic: settings["readQueueNums"] for topic, settings in topics.items()} == {
            "OrderEvents": 4,
            "log-x": 1,
            "pay_events": 2,
        }
        undo(store, Disk())


def test_what_can_be_read_of_a_table_is_kept(tmp_path: Path) -> None:
    store = copy_of("retry-533-clean", tmp_path)
    (store / "config" / "topics.json").write_bytes(b"{ torn")
    backup = _table(store, "topics.json.bak")["topicConfigTable"]

    repair(store, target="config")

    topics = _table(store, "topics.json")["topicConfigTable"]
    assert all(topics[topic] == settings for topic, settings in backup.items())


@pytest.mark.parametrize("name", ["mixed-533-clean", "mixed-550-clean", "retry-497-clean", "batchcq-533-clean"])
def test_sound_tables_stay_as_they_are(name: str, tmp_path: Path) -> None:
    plan = plan_repair(copy_of(name, tmp_path), StoreConfig(), "rebuild", {"target": "config"})

    assert not plan.changes


def _table(store: Path, name: str) -> dict[str, Any]:
    return parse_table((store / "config" / name).read_bytes())


@pytest.mark.parametrize("name", ["mixed-533-clean", "batchcq-533-clean"])
def test_what_a_broker_writes_before_its_log_was_seen_to_hold_anything_is_no_loss(name: str) -> None:
    reader = StoreReader(golden_store(name))

    assert list(given_up(reader, {}, {}, None))
    assert not list(given_up(reader, {}, {}, None, log_end=0))
