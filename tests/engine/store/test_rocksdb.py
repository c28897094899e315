"""RocksDB databases of golden stores, made-up ones with everything still in the write-ahead log, and damaged ones."""

import contextlib
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import Options, Rdict

from mqtool.engine.store import rocksdb
from mqtool.errors import BadDataError, MissingExtraError, MqtoolError, NotFoundError, Status
from mqtool.formats import config_tables
from mqtool.formats.rocksdb import UNIT_KEY, UNIT_VALUE, Pair
from mqtool.formats.topics import CHECKPOINT_TOPIC
from tests.damage import cuts, damaged, flips, snapshot
from tests.golden import copy_of, golden_store, manifest

STORES = ["rocksdb-533-clean", "rocksdb-550-clean"]


def rows(directory: Path) -> dict[tuple[str, int], list[tuple[int, ...]]]:
    found: dict[tuple[str, int], list[tuple[int, ...]]] = defaultdict(list)
    for topic, queue_id, units in rocksdb.read_units(directory):
        found[topic, queue_id] += units.tolist()
    return found


def write_database(directory: Path, families: Mapping[str, list[Pair]]) -> None:
    """Make a database as a killed broker leaves it: nothing has got beyond the write-ahead log."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    writing = directory.with_name("writing")
    with Rdict(str(writing), options, {name: Options(raw_mode=True) for name in families}) as database:
        opened = {name: database.get_column_family(name) for name in families}  # rocksdict flushes what it drops
        for name, pairs in families.items():
            for key, value in pairs:
                opened[name][key] = value
        shutil.copytree(writing, directory)
    shutil.rmtree(writing)


@pytest.mark.parametrize("name", STORES)
def test_queues_are_those_that_rocketmq_reads(name: str) -> None:
    expected = manifest(name)["load"]["after_load"]["queues"]
    timestamps = {message["phy"]: message["store_timestamp"] for message in manifest(name)["messages"]}

    found = rows(golden_store(name) / "consumequeue")

    assert found == {
        (topic, int(queue_id)): [(*unit[:4], timestamps[unit[1]]) for unit in queue["units"]]
        for topic, queues in expected.items()
        for queue_id, queue in queues.items()
    }


@pytest.mark.parametrize("name", STORES)
def test_ends_are_those_that_rocketmq_reads(name: str) -> None:
    after_load = manifest(name)["load"]["after_load"]

    ends = rocksdb.read_ends(golden_store(name) / "consumequeue")

    assert {queue: end for queue, end in ends.queues.items() if end.max_offset} == {
        (topic, int(queue_id)): (queue["min"], queue["max"])
        for topic, queues in after_load["queues"].items()
        for queue_id, queue in queues.items()
    }
    assert ends.reput_offset == after_load["max_phy_offset"]


@pytest.mark.parametrize("name", STORES)
def test_config_has_the_tables_of_the_broker(name: str) -> None:
    tables = rocksdb.read_config(golden_store(name) / "config")

    topics = config_tables.topics(tables["topics.json"])
    assert topics["Rocks"].write_queue_count == 2
    assert topics["SCHEDULE_TOPIC_XXXX"].read_queue_count == 18
    groups = config_tables.subscription_groups(tables["subscriptionGroup.json"])
    assert groups["TOOLS_CONSUMER"].consume_broadcast_enabled
    assert config_tables.consumer_offsets(tables["consumerOffset.json"]) == {}
    assert config_tables.data_version(tables["topics.json"]).counter == 1


@pytest.mark.parametrize("name", STORES)
def test_reading_changes_nothing(name: str, tmp_path: Path) -> None:
    store = copy_of(name, tmp_path)
    before = snapshot(store)

    rows(store / "consumequeue")
    rocksdb.read_ends(store / "consumequeue")
    rocksdb.read_config(store / "config")

    assert snapshot(store) == before


def test_a_reader_that_stops_early_changes_nothing(tmp_path: Path) -> None:
    store = copy_of("rocksdb-533-clean", tmp_path)
    before = snapshot(store)

    first = next(rocksdb.read_units(store / "consumequeue"))

    assert (first.topic, first.queue_id, len(first.units)) == ("Rocks", 0, 30)
    assert snapshot(store) == before


def units(topic: str, queue_id: int, count: int) -> list[Pair]:
    return [
        (
            UNIT_KEY.build({"topic": topic, "queue_id": queue_id, "queue_offset": number}),
            UNIT_VALUE.schema.build(
                {"physical_offset": 100 * number, "size": 100, "tags_code": -1, "store_timestamp": 5}
            ),
        )
        for number in range(count)
    ]


def test_the_write_ahead_log_is_read_and_left_as_it_is(tmp_path: Path) -> None:
    queues = tmp_path / "consumequeue"
    write_database(queues, {"default": units("Ünïcode", 3, 300), "offset": []})
    assert not list(queues.glob("*.sst"))
    before = snapshot(queues)

    found = rows(queues)

    assert found == {("Ünïcode", 3): [(number, 100 * number, 100, -1, 5) for number in range(300)]}
    assert snapshot(queues) == before


def test_a_torn_write_ahead_log_keeps_what_came_before(tmp_path: Path) -> None:
    queues = tmp_path / "consumequeue"
    write_database(queues, {"default": units("T", 0, 300)})
    log = max(queues.glob("*.log"), key=lambda path: path.stat().st_size)
    log.write_bytes(log.read_bytes()[:-5])
    before = snapshot(queues)

    found = rows(queues)

    assert found == {("T", 0): [(number, 100 * number, 100, -1, 5) for number in range(299)]}
    assert snapshot(queues) == before


def test_a_long_queue_comes_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocksdb, "_BATCH", 100)
    queues = tmp_path / "consumequeue"
    write_database(queues, {"default": units("T", 0, 250) + units("T", 1, 1)})

    pieces = [(queue_id, units["queue_offset"].tolist()) for _, queue_id, units in rocksdb.read_units(queues)]

    assert pieces == [
        (0, list(range(100))),
        (0, list(range(100, 200))),
        (0, list(range(200, 250))),
        (1, [0]),
    ]


@pytest.mark.parametrize("name", STORES)
def test_a_range_of_one_queue_is_that_of_the_full_walk(name: str) -> None:
    queues = golden_store(name) / "consumequeue"
    for (topic, queue_id), whole in rows(queues).items():
        with rocksdb.opened_queue(queues, topic, queue_id) as queue:
            for start in range(-1, len(whole) + 2):
                for stop in (start, start + 1, start + 7, len(whole), 1 << 62):
                    for limit in (1, 5, 1000):
                        expected = [unit for unit in whole if start <= unit[0] < stop][:limit]
                        assert queue.units(start, stop, limit).tolist() == expected


@pytest.mark.parametrize("name", STORES)
def test_the_ends_of_one_queue_are_those_of_the_full_walk(name: str) -> None:
    queues = golden_store(name) / "consumequeue"

    found = {key: rocksdb.read_queue_ends(queues, *key) for key in rocksdb.read_ends(queues).queues}

    assert found == rocksdb.read_ends(queues).queues


@pytest.mark.parametrize(
    ("topic", "queue_id"),
    [("Rocks", 2), ("Rock", 0), ("", 0), ("\udcff", 0), ("Rocks", 1 << 40), (CHECKPOINT_TOPIC, 0)],
)
def test_a_queue_that_is_not_there_has_no_ends(topic: str, queue_id: int) -> None:
    assert rocksdb.read_queue_ends(golden_store("rocksdb-533-clean") / "consumequeue", topic, queue_id) is None


def test_units_beside_the_one_looked_up_are_left_out(tmp_path: Path) -> None:
    queues = tmp_path / "consumequeue"
    pairs = units("T", 0, 9)
    write_database(
        queues, {"default": [*units("S", 0, 3), *pairs[:2], *pairs[5:], *units("T", 1, 3), *units("Tt", 0, 3)]}
    )

    with rocksdb.opened_queue(queues, "T", 0) as queue:
        assert queue.units(0, 100, 100)["queue_offset"].tolist() == [0, 1, 5, 6, 7, 8]
        assert queue.units(2, 100, 1)["queue_offset"].tolist() == [5]
        assert queue.units(2, 5, 1)["queue_offset"].tolist() == []
        assert queue.units(9, 100, 1)["queue_offset"].tolist() == []


def test_damage_elsewhere_does_not_touch_a_lookup(tmp_path: Path) -> None:
    queues = tmp_path / "consumequeue"
    write_database(queues, {"default": [*units("A", 0, 3), (b"\xffno key", b"no unit")]})

    with rocksdb.opened_queue(queues, "A", 0) as queue:
        assert queue.units(0, 3, 9)["queue_offset"].tolist() == [0, 1, 2]
    with pytest.raises(MqtoolError):
        rows(queues)


def test_of_two_tables_the_newer_one_counts(tmp_path: Path) -> None:
    def topic(perm: int) -> list[Pair]:
        return [(b"T", b'{"perm":%d}' % perm)]

    def version(counter: int) -> list[Pair]:
        return [(b"kvDataVersionKey", b'{"counter":%d,"stateVersion":0,"timestamp":9}' % counter)]

    write_database(tmp_path / "topics", {"default": topic(6), "kvDataVersion": version(4)})
    write_database(tmp_path / "metadata", {"default": [], "topic": topic(2), "topicVersion": version(3)})
    write_database(tmp_path / "rdb", {"default": [(b"\x01\0\x03\x02\0\x01T", b'\x01{"perm":4}')]})

    tables = rocksdb.read_config(tmp_path)

    assert list(tables) == ["topics.json"]
    assert tables["topics.json"]["topicConfigTable"] == {"T": {"perm": 6}}


def test_a_store_without_rocksdb_has_none(tmp_path: Path) -> None:
    store = golden_store("mixed-533-clean")

    assert rocksdb.read_config(store / "config") == {}
    assert not rocksdb.is_rocksdb(store / "consumequeue")
    assert not rocksdb.is_rocksdb(tmp_path / "nothing")
    assert rocksdb.is_rocksdb(golden_store("rocksdb-550-clean") / "consumequeue")


def look_up(directory: Path) -> list[Any]:
    with rocksdb.opened_queue(directory, "Rocks", 1) as queue:
        return [rocksdb.read_queue_ends(directory, "Rocks", 1), queue.units(20, 30, 5)]


READERS: list[Callable[[Path], Any]] = [rows, rocksdb.read_ends, look_up]


@pytest.mark.parametrize("read", READERS)
def test_a_folder_without_a_database_is_not_found(read: Callable[[Path], Any], tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="is not a RocksDB database"):
        read(tmp_path)


@pytest.mark.parametrize("read", READERS)
def test_without_the_extra_the_error_says_what_to_install(
    read: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    queues = golden_store("rocksdb-533-clean") / "consumequeue"

    assert rocksdb.is_rocksdb(queues)
    with pytest.raises(MissingExtraError, match=r"pip install 'mqtool\[rocksdb\]'") as caught:
        read(queues)
    assert caught.value.exit_code is Status.UNAVAILABLE


def test_a_damaged_block_is_bad_data_and_not_the_end(tmp_path: Path) -> None:
    store = copy_of("rocksdb-533-clean", tmp_path)
    for table in (store / "consumequeue").glob("*.sst"):
        table.write_bytes(b"\xff" * 50 + table.read_bytes()[50:])

    with pytest.raises(BadDataError, match=str(store)):
        rows(store / "consumequeue")


@pytest.fixture(scope="module")
def queues(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of("rocksdb-550-clean", tmp_path_factory.mktemp("damage")) / "consumequeue"


@given(st.data())
def test_damaged_files_are_read_or_an_error_and_never_changed(queues: Path, data: st.DataObject) -> None:
    with damaged(queues, data.draw(flips(queues) | cuts(queues))):
        before = snapshot(queues)
        for read in READERS:
            with contextlib.suppress(MqtoolError):
                read(queues)
        assert snapshot(queues) == before
