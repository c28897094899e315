"""The judge reads golden stores as Java did, and shares no code with mqtool."""

import base64
import re
from pathlib import Path

import pytest

from tests.golden import GOLDEN_NAMES, copy_of, golden_store, manifest
from tests.judge.index import key_hash
from tests.judge.queues import read_ext
from tests.judge.store import JudgedStore

WITH_LOG = [name for name in GOLDEN_NAMES if not name.startswith("dledger")]
WITH_QUEUES = [name for name in WITH_LOG if not name.startswith("rocksdb")]


def judged(name: str) -> JudgedStore:
    return JudgedStore(golden_store(name), manifest(name)["config"])


def test_the_judge_imports_nothing_of_ours() -> None:
    for path in Path(__file__).parent.glob("*.py"):
        if path.name != Path(__file__).name:
            assert not re.search(r"^\s*(from|import) (mqtool|numpy)", path.read_text(), re.MULTILINE), path


@pytest.mark.parametrize("name", WITH_LOG)
def test_it_finds_the_records_that_java_found(name: str) -> None:
    store = judged(name)

    rows = [
        (one.position, one.size, one.topic, one.queue_id, one.queue_offset, one.sys_flag, one.store_timestamp)
        for one in store.records.values()
    ]

    assert rows == [
        tuple(row[key] for key in ("phy", "size", "topic", "queue_id", "queue_offset", "sys_flag", "store_timestamp"))
        for row in manifest(name)["messages"]
    ]
    assert store.misplaced == []


@pytest.mark.parametrize("name", WITH_LOG)
def test_it_reads_bodies_and_properties_as_java_does(name: str) -> None:
    records = judged(name).records

    for row in manifest(name)["messages"]:
        record = records[row["phy"]]
        assert record.properties == row["properties"]
        assert len(record.body) == row["body_len"]
        if "body" in row:
            assert record.body == base64.b64decode(row["body"])


@pytest.mark.parametrize("name", WITH_QUEUES)
def test_it_reads_the_units_that_java_read(name: str) -> None:
    store = judged(name)

    found = {queue: [list(unit[:4]) for unit in units.values()] for queue, units in store.queues.items() if units}
    batches = {queue: [list(unit) for unit in units] for queue, units in store.batch_queues.items() if units}

    read = {
        (topic, int(number)): (queue["units"], queue["max"])
        for topic, numbers in manifest(name)["load"]["after_load"]["queues"].items()
        for number, queue in numbers.items()
        if queue["units"]
    }
    assert found.keys() | batches.keys() <= read.keys()
    for queue, units in found.items():
        assert units == read[queue][0][: len(units)]
        assert name.endswith("kill") or len(units) == read[queue][1]  # load() fills up what a killed broker did not
    for queue, units in batches.items():
        assert units[: len(read[queue][0])] == read[queue][0]  # the harness asked for those of the first file
        assert units[-1][0] + units[-1][4] == read[queue][1]


@pytest.mark.parametrize("name", [name for name in WITH_QUEUES if name.endswith("clean")])
def test_every_message_is_reachable_and_every_key_leads_to_its_messages(name: str) -> None:
    store = judged(name)

    assert store.messages().keys() == store.reachable()
    for topic, key, addresses in manifest(name)["index_queries"]:
        number = key_hash(topic, key)
        assert [at for file in reversed(store.index) for at in file.find(number)][: len(addresses)] == addresses


@pytest.mark.parametrize("name", [name for name in GOLDEN_NAMES if name.startswith("ext")])
def test_the_extension_keeps_what_units_leave_out(name: str) -> None:
    store = judged(name)
    tags = {row["phy"]: (row["tags_code"], row["store_timestamp"]) for row in manifest(name)["messages"]}

    extended = 0
    for (topic, queue_id), unit in store.units():
        kept = read_ext(store.root / "consumequeue_ext", topic, queue_id, unit.tags_code)
        if kept is None:
            assert unit.tags_code == tags[unit.physical_offset][0]
        else:
            extended += 1
            assert (kept.tags_code, kept.store_timestamp) == tags[unit.physical_offset]

    assert extended > 50


def test_a_message_is_known_by_its_place_and_by_all_that_an_application_sees(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    config = manifest("mixed-533-clean")["config"]
    before = JudgedStore(store, config)
    second = next(one for one in before.records.values() if one.keys == [("OrderEvents", 0, 1)])
    segment = store / "commitlog" / f"{0:020}"
    data = bytearray(segment.read_bytes())

    data[second.position + 19] ^= 1  # the application's flag, which no checksum covers
    segment.write_bytes(data)
    changed = JudgedStore(store, config).messages()
    data[second.position + 90] ^= 1  # a byte of its body
    segment.write_bytes(data)
    broken = JudgedStore(store, config)

    key = second.keys[0]
    assert {one for one in changed if changed[one] != before.messages()[one]} == {key}
    assert before.messages().keys() - broken.messages().keys() == {key}
    assert before.reachable() - broken.reachable() == {key}


def test_segments_with_swapped_names_are_misplaced(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    config = manifest("mixed-533-clean")["config"]
    before = JudgedStore(store, config)
    expected = before.messages()
    first, second = (store / "commitlog" / f"{at:020}" for at in (65536, 131072))
    first.rename(store / "commitlog" / "x")
    second.rename(first)
    (store / "commitlog" / "x").rename(second)

    found = JudgedStore(store, config)

    assert found.messages(misplaced=True) == expected
    assert len(found.misplaced) == sum(65536 <= at < 196608 for at in before.records)
