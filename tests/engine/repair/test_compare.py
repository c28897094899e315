"""Two stores held against each other, judged by a reader that shares nothing with mqtool."""

import contextlib
import random
import shutil
from pathlib import Path

import pytest

from mqtool.engine.repair.compare.keys import Difference, Messages, compare_keys
from mqtool.engine.repair.compare.stores import (
    BEHIND,
    DAMAGED,
    EXPIRED,
    IN_BOTH,
    NO_FILE,
    OTHER,
    Logs,
    Range,
    better_base,
    compare_files,
    compare_logs,
    not_compared,
)
from mqtool.engine.repair.salvage.plan import plan_salvage, salvage
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import BadDataError
from tests import builders
from tests.damage import apply_ops
from tests.golden import GOLDEN_NAMES, copy_of, golden_store, manifest
from tests.judge.log import JudgedRecord
from tests.judge.store import JudgedStore
from tests.laws.damages import base_of, draw
from tests.laws.repairs import config_of

DRAFTS = [
    builders.Draft(topic=f"T{number % 3}", body=b"b%d" % number * 9, pairs={"UNIQ_KEY": f"{number:032X}"})
    for number in range(100)
]


def compared(left: Path, right: Path, jobs: int = 1, config: StoreConfig | None = None) -> tuple[list[Range], Logs]:
    logs = Logs()
    ranges = list(compare_logs(StoreReader(left, config), StoreReader(right, config), logs, jobs))
    assert logs.ranges == len(ranges)
    return ranges, logs


def by_key(left: Path, right: Path, jobs: int = 1) -> tuple[list[Difference], Messages]:
    found = Messages()
    return list(compare_keys(StoreReader(left), StoreReader(right), found, jobs)), found


def two_stores(folder: Path, count: int = 100) -> tuple[Path, Path, list[builders.Stored]]:
    stored = builders.write_store(folder / "a", DRAFTS)
    builders.write_store(folder / "b", DRAFTS[:count])
    return folder / "a", folder / "b", stored


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_a_store_is_equal_to_itself(name: str) -> None:
    config = config_of(name, golden_store(name), is_told=True)
    ranges, logs = compared(golden_store(name), golden_store(name), 2, config)

    assert (ranges, logs.is_equal, logs.common) == ([], True, len(manifest(name)["messages"]))
    reader = StoreReader(golden_store(name), config)
    assert not list(compare_files(reader, reader, same_log=True))
    assert better_base(logs)[0] is None


def covering(ranges: list[Range], record: JudgedRecord) -> list[str]:
    return [one.side for one in ranges if one.physical_offset <= record.position and one.end_offset > record.position]


@pytest.mark.parametrize("seed", range(12))
def test_what_only_one_copy_has_is_told_whatever_the_damage(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    base = chance.choice(["mixed-533-kill", "mixed-497-clean", "txn-533-clean", "many-533-clean", "propcrc-533-clean"])
    stores = []
    for name in ("a", "b"):
        store = copy_of(base, tmp_path / name)
        for _ in range(chance.choice((0, 1, 2))):
            with contextlib.suppress(OSError, ValueError):  # the second may fit no more
                apply_ops(store, draw(base_of(base), chance)[1])
        stores.append(store)
    config = config_of(base, stores[0], is_told=True)
    judged = [JudgedStore(store, manifest(base)["config"]) for store in stores]

    ranges, logs = compared(stores[0], stores[1], config=config)

    left, right = (one.records for one in judged)
    for position in left.keys() | right.keys():
        one, other = left.get(position), right.get(position)
        record = one or other
        assert record is not None
        if one == other:
            assert not set(covering(ranges, record)) & {"left", "right"}, record
        elif other is None:
            assert covering(ranges, record) in (["right"], ["both"]), record
        elif one is None:
            assert covering(ranges, record) in (["left"], ["both"]), record
        else:
            assert len(covering(ranges, record)) == 1, record  # one may be told as damaged: its text is none
    # A record that only one copy has counts though its text is no text: nothing better is there.
    assert logs.sides[0].only >= len(left.keys() - right.keys())
    assert logs.sides[1].only >= len(right.keys() - left.keys())


def test_a_slave_that_is_behind_lacks_the_end(tmp_path: Path) -> None:
    left, right, stored = two_stores(tmp_path, 90)

    ranges, logs = compared(left, right)

    (found,) = ranges
    assert (found.difference, found.side, found.message_count) == (BEHIND, "right", 10)
    assert found.physical_offset == stored[90].physical_offset == logs.first_difference
    assert (found.topic, found.queue_id, found.queue_offset) == ("T0", 0, 30)
    assert [(key, one.only_left, one.first_offset, one.last_offset) for key, one in sorted(logs.queues.items())] == [
        (("T0", 0), 4, 30, 33),
        (("T1", 0), 3, 30, 32),
        (("T2", 0), 3, 30, 32),
    ]
    assert better_base(logs)[0] == "left"


def test_segments_that_are_gone_are_told_apart(tmp_path: Path) -> None:
    left, right, _ = two_stores(tmp_path)
    (right / "commitlog" / f"{0:020}").unlink()
    (right / "commitlog" / f"{8192:020}").unlink()

    ranges, _ = compared(left, right)

    assert [(one.difference, one.side, one.physical_offset) for one in ranges] == [
        (EXPIRED, "right", 0),
        (NO_FILE, "right", 8192),
    ]


def test_segments_of_another_size_hold_the_same(tmp_path: Path) -> None:
    left, right, _ = two_stores(tmp_path)
    folder = right / "commitlog"
    whole = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    for path in folder.iterdir():
        path.unlink()
    builders.write_files(folder, whole, 1 << 20)

    ranges, logs = compared(left, right)

    assert (ranges, logs.common) == ([], 100)


def test_damage_in_one_copy_and_in_both_is_told(tmp_path: Path) -> None:
    left, right, stored = two_stores(tmp_path)
    for store, numbers in ((left, (20, 40)), (right, (30, 40))):
        for number in numbers:
            at = stored[number].physical_offset
            apply_ops(store, [{"op": "zero", "file": f"commitlog/{at // 4096 * 4096:020}", "at": at % 4096, "len": 50}])

    ranges, logs = compared(left, right)

    assert [(one.difference, one.side, one.physical_offset) for one in ranges] == [
        (DAMAGED, "left", stored[20].physical_offset),
        (DAMAGED, "right", stored[30].physical_offset),
        (IN_BOTH, "both", stored[40].physical_offset),
    ]
    assert [side.unreadable_count for side in logs.sides] == [2, 2]
    assert (logs.common, logs.sides[0].only, logs.sides[1].only) == (97, 1, 1)


def test_copies_that_part_are_told_where(tmp_path: Path) -> None:
    ours = [*DRAFTS[:60], *(builders.Draft(body=b"ours%d" % number) for number in range(40))]
    stored = builders.write_store(tmp_path / "a", DRAFTS)
    builders.write_store(tmp_path / "b", ours)

    ranges, logs = compared(tmp_path / "a", tmp_path / "b")

    assert logs.parted_at == stored[60].physical_offset == logs.first_difference
    assert ranges[0].difference == OTHER
    assert (logs.common, logs.contradictions) == (60, 0)
    assert [side.only for side in logs.sides] == [40, 40]


def test_different_logs_have_nothing_in_common() -> None:
    ranges, logs = compared(golden_store("mixed-533-clean"), golden_store("mixed-533-kill"))

    assert (logs.common, logs.is_equal) == (0, False)
    assert {one.difference for one in ranges} <= {OTHER, BEHIND}


def test_a_dledger_log_has_no_addresses_in_common_with_another() -> None:
    with pytest.raises(BadDataError, match="--by key"):
        compared(golden_store("dledger-497-clean"), golden_store("mixed-497-clean"))


def test_queues_and_tables_that_differ_are_told(tmp_path: Path) -> None:
    left, right, _ = two_stores(tmp_path)
    unit = right / "consumequeue" / "T1" / "0" / f"{100:020}"
    unit.write_bytes(bytes(20) + unit.read_bytes()[20:])
    topics = right / "config" / "topics.json"
    topics.write_text(topics.read_text().replace('"T2"', '"T9"'))
    (right / "config" / "consumerOffset.json").write_text('{"offsetTable":{"T1@G":{"0":0}}}')

    found = list(compare_files(StoreReader(left), StoreReader(right), same_log=True))

    assert [(one.name, one.message, one.queue_offset) for one in found] == [
        ("consumequeue/T1/0", "its units differ", 5),
        ("config/consumerOffset.json", "left has none", None),
        ("config/topics.json", "they differ on T2, T9", None),
    ]


@pytest.mark.parametrize("is_swapped", [False, True])
def test_a_slave_that_joined_later_has_fillers_for_messages_before_its_log(is_swapped: bool, tmp_path: Path) -> None:
    master, slave, stored = two_stores(tmp_path)
    for store in (master, slave):  # retention has come so far
        (store / "commitlog" / f"{0:020}").unlink()
    filler = "0000000000000000 7fffffff 0000000000000000"
    log_start = int(min((slave / "commitlog").iterdir()).name)
    gone = sum(one.draft.topic == "T1" and one.physical_offset < log_start for one in stored)
    left, right = (slave, master) if is_swapped else (master, slave)

    def fill(place: int) -> None:
        file = f"consumequeue/T1/0/{place // 5 * 100:020}"
        apply_ops(slave, [{"op": "write", "file": file, "at": place % 5 * 20, "hex": filler}])

    for place in range(gone):
        fill(place)
    assert not list(compare_files(StoreReader(left), StoreReader(right), same_log=True))

    fill(gone)
    found = list(compare_files(StoreReader(left), StoreReader(right), same_log=True))
    assert [(one.message, one.queue_offset) for one in found] == [("its units differ", gone)]


@pytest.mark.parametrize("table", ["{}", '{"dataVersion":{"counter":3},"offsetTable":{}}'])
def test_an_empty_table_is_no_difference_from_none(table: str, tmp_path: Path) -> None:
    left, right, _ = two_stores(tmp_path)
    (right / "config" / "consumerOffset.json").write_text(table)

    assert list(compare_files(StoreReader(left), StoreReader(right), same_log=True)) == []


def test_what_each_broker_keeps_of_its_own_role_is_no_difference(tmp_path: Path) -> None:
    left, right, _ = two_stores(tmp_path)
    (right / "config" / "mqtoolRole.json").write_text('{"role":"SLAVE"}')

    assert list(compare_files(StoreReader(left), StoreReader(right), same_log=True)) == []
    assert "the role in replication of right" in not_compared(StoreReader(left), StoreReader(right))


def test_files_of_queues_with_absurd_names_take_no_time_and_the_first_difference_is_told(tmp_path: Path) -> None:
    left, right, _ = two_stores(tmp_path)
    for store in (left, right):
        queue = store / "consumequeue" / "T1" / "0"
        (queue / f"{200:020}").rename(queue / f"{9 * 10**18:020}")

    assert list(compare_files(StoreReader(left), StoreReader(right), same_log=True)) == []

    (right / "consumequeue" / "T1" / "0" / f"{100:020}").unlink()

    found = list(compare_files(StoreReader(left), StoreReader(right), same_log=True))

    assert [(one.name, one.message, one.queue_offset) for one in found] == [
        ("consumequeue/T1/0", "its units differ", 5)
    ]


# By key.


@pytest.mark.parametrize("name", ["txn-497-clean", "retry-533-clean", "mixed-533-clean", "propcrc-533-clean"])
def test_a_salvaged_store_holds_the_same_messages(name: str, tmp_path: Path) -> None:
    salvage(plan_salvage(StoreReader(golden_store(name))), tmp_path / "new", Disk())

    differences, found = by_key(golden_store(name), tmp_path / "new", 2)

    assert (differences, found.is_equal, found.left.total()) == ([], True, len(manifest(name)["messages"]))


@pytest.mark.parametrize("number", range(0, 90, 7))
def test_each_message_that_is_lost_is_told_though_others_share_its_key(number: int, tmp_path: Path) -> None:
    message = manifest("txn-497-clean")["messages"][number]
    store = copy_of("txn-497-clean", tmp_path)
    apply_ops(store, [{"op": "zero", "file": f"commitlog/{0:020}", "at": message["phy"], "len": message["size"]}])

    differences, found = by_key(golden_store("txn-497-clean"), store)

    assert [(one.side, one.topic, one.physical_offset) for one in differences] == [
        ("left", message["topic"], message["phy"])
    ]
    assert (found.only_left, found.only_right.total()) == ({message["topic"]: 1}, 0)
    assert found.unreadable == [0, int(number < 89)]


def test_members_of_a_batch_with_one_key_and_one_body_are_counted(tmp_path: Path) -> None:
    member = builders.Draft(pairs={"UNIQ_KEY": "K"})
    builders.write_store(tmp_path / "a", [member] * 20)
    builders.write_store(tmp_path / "b", [member] * 19)

    (one,), found = by_key(tmp_path / "a", tmp_path / "b")

    assert (one.left_count, one.right_count, found.only_left) == (20, 19, {"TopicTest": 1})


def test_many_messages_go_through_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mqtool.engine.repair.compare import keys as module

    monkeypatch.setattr(module, "_MAX_HELD", 1000)
    left, right, stored = two_stores(tmp_path, 90)

    differences, found = by_key(left, right)

    assert sorted(one.physical_offset for one in differences) == [one.physical_offset for one in stored[90:]]
    assert (found.left.total(), found.right.total()) == (100, 90)


def test_batch_queues_are_compared_unit_by_unit(tmp_path: Path) -> None:
    store, other = copy_of("batchcq-533-clean", tmp_path), StoreReader(golden_store("batchcq-533-clean"))
    unit = StoreReader(store).batch_consume_queues["Inner", 0].units(2, 3)[0]
    path = min((store / "batchconsumequeue" / "Inner" / "0").iterdir())
    with path.open("r+b") as file:
        file.seek(2 * 46 + 12)
        file.write(b"tagscode")

    (found,) = compare_files(StoreReader(store), other, same_log=True)

    assert (found.name, found.queue_offset) == ("batchconsumequeue/Inner/0", unit["queue_offset"])

    shutil.rmtree(path.parent)
    (found,) = compare_files(StoreReader(store), other, same_log=True)
    assert (found.name, found.message.partition(" in ")[0]) == ("batchconsumequeue/Inner/0", "it ends at 0")


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("rocksdb-533-clean", ["queues in RocksDB of left", "tables in RocksDB of left"]),
        ("ext-533-clean", ["queue extensions (consumequeue_ext) of left"]),
        ("mixed-550-clean", []),
    ],
)
def test_what_is_not_compared_is_named_where_there_is_any(name: str, more: list[str]) -> None:
    _, *found = not_compared(StoreReader(golden_store(name)), StoreReader(golden_store("mixed-533-clean")))

    assert found == more
