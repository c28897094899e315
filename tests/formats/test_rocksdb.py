"""Keys and values of RocksDB databases: schemas against the scanner, and tables against their JSON files."""

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.errors import FormatError
from mqtool.formats import rocksdb
from mqtool.formats.config_tables import consumer_offsets
from tests.damage import cut, flipped

topics = st.text(st.characters(codec="utf-8"), min_size=1)
i32 = st.integers(-(1 << 31), (1 << 31) - 1)
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
units = st.fixed_dictionaries(
    {"queue_offset": i64, "physical_offset": i64, "size": i32, "tags_code": i64, "store_timestamp": i64}
)


def pair_of(topic: str, queue_id: int, unit: dict[str, int]) -> rocksdb.Pair:
    key = rocksdb.UNIT_KEY.build({"topic": topic, "queue_id": queue_id, "queue_offset": unit["queue_offset"]})
    return key, rocksdb.UNIT_VALUE.schema.build(unit)


def test_a_unit_lies_as_a_broker_writes_it() -> None:
    key = b"\0\0\0\x05\x01Rocks\x01\0\0\0\x01\x01\0\0\0\0\0\0\0\x1d"
    value = bytes.fromhex("0000000000006486 000001cf ffffffffe897bb69 000001a1fbc5029f")

    assert rocksdb.parse_queue(key) == ("Rocks", 1)
    assert rocksdb.scan_units([(key, value)]).tolist() == [(29, 0x6486, 463, -392709271, 1795225354911)]


@given(topics, i32, st.lists(units, min_size=1))
def test_scanner_and_schemas_read_the_same_units(topic: str, queue_id: int, written: list[dict[str, int]]) -> None:
    pairs = [pair_of(topic, queue_id, unit) for unit in written]

    assert rocksdb.parse_queue(pairs[0][0]) == (topic, queue_id)
    scanned = rocksdb.scan_units(pairs)
    for name in rocksdb.UNIT.names:
        assert scanned[name].tolist() == [unit[name] for unit in written]


@given(topics, i32, units, st.data())
def test_a_damaged_unit_is_a_unit_or_a_format_error(
    topic: str, queue_id: int, unit: dict[str, int], data: st.DataObject
) -> None:
    key, value = pair_of(topic, queue_id, unit)
    key = data.draw(st.just(key) | flipped(key) | cut(key))
    value = data.draw(flipped(value) | cut(value))

    try:
        rocksdb.parse_queue(key)
        assert len(rocksdb.scan_units([(key, value)])) == 1
    except FormatError:
        pass


def end_of(topic: str, queue_id: int, end: bytes, queue_offset: int) -> rocksdb.Pair:
    key = rocksdb.END_KEY.build({"topic": topic, "end": end, "queue_id": queue_id})
    return key, rocksdb.END_VALUE.build({"physical_offset": 7, "queue_offset": queue_offset})


def test_the_end_of_a_queue_is_one_past_its_last_unit() -> None:
    ends = rocksdb.parse_ends(
        [
            end_of("T", 0, b"max", 29),
            end_of("T", 1, b"max", 9),
            end_of("T", 1, b"min", 4),
            end_of("T", 2, b"min", 0),
            (b"\0\0\0\x10\x01CHECKPOINT_TOPIC\x01max\x01\0\0\0\0", bytes.fromhex("0000000000006655")),
        ]
    )

    assert ends.queues == {("T", 0): (0, 30), ("T", 1): (4, 10), ("T", 2): (0, 0)}
    assert ends.reput_offset == 26197


def test_without_a_checkpoint_nobody_knows_how_far_dispatch_came() -> None:
    assert rocksdb.parse_ends([]) == ({}, None)


@given(st.binary(), st.binary())
def test_pairs_that_mean_nothing_are_format_errors(key: bytes, value: bytes) -> None:
    with pytest.raises(FormatError):
        rocksdb.parse_ends([(key, value)])
    with pytest.raises(FormatError):
        rocksdb.parse_queue(key)


VERSION = b'{"counter":3,"stateVersion":0,"timestamp":1795225353387}'
DATA_VERSION = {"counter": 3, "stateVersion": 0, "timestamp": 1795225353387}
TOPIC = {"perm": 6, "topicName": "T"}
TABLES: dict[str, dict[str, Any]] = {
    "topics.json": {"dataVersion": DATA_VERSION, "topicConfigTable": {"T": TOPIC}},
    "subscriptionGroup.json": {
        "dataVersion": DATA_VERSION,
        "forbiddenTable": {"G": {"T": 1}},
        "subscriptionGroupTable": {"G": {"groupName": "G"}},
    },
    "consumerOffset.json": {"dataVersion": DATA_VERSION, "offsetTable": {"T@G": {0: 250, 1: 251}}},
}
ROWS = {
    "topics.json": [(b"T", b'{"perm":6,"topicName":"T"}')],
    "subscriptionGroup.json": [(b"G", b'{"groupName":"G"}')],
    "consumerOffset.json": [(b"T@G", b'{"offsetTable":{"0":250,"1":251}}')],
}
FORBIDDEN = [(b"G", b'{"T":1}')]
VERSIONS = [(b"kvDataVersionKey", VERSION)]


@pytest.mark.parametrize(
    ("database", "file"),
    [
        ("topics", "topics.json"),
        ("subscriptionGroups", "subscriptionGroup.json"),
        ("consumerOffsets", "consumerOffset.json"),
    ],
)
def test_a_database_of_one_table_gives_the_dict_of_its_json_file(database: str, file: str) -> None:
    families = {"default": ROWS[file], "kvDataVersion": VERSIONS, "forbidden": FORBIDDEN}

    assert rocksdb.parse_config(database, families) == {file: TABLES[file]}


def test_the_database_of_all_tables_gives_the_dicts_of_the_json_files() -> None:
    families = {
        "default": [],
        "topic": ROWS["topics.json"],
        "subscriptionGroup": ROWS["subscriptionGroup.json"],
        "consumerOffset": ROWS["consumerOffset.json"],
        "forbidden": FORBIDDEN,
    }
    families |= {f"{name}Version": VERSIONS for name in ("topic", "subscriptionGroup", "consumerOffset")}

    assert rocksdb.parse_config("metadata", families) == TABLES
    assert rocksdb.parse_config("metadata", {"default": []}) == {}


def rdb_pairs() -> list[rocksdb.Pair]:
    version = struct.pack(">qqq", 0, 1795225353387, 3)
    offset = b"\0\x01G\x01\0\x01T\x01"
    return [
        *((b"\x01\0" + bytes([table]) + b"\x01data_version", version) for table in (1, 2, 3, 4)),
        (b"\x01\0\x01\x02" + offset + b"\0\0\0\0", struct.pack(">q", 250)),
        (b"\x01\0\x01\x02" + offset + b"\0\0\0\x01", struct.pack(">q", 251)),
        (b"\x01\0\x02\x02" + offset + b"\0\0\0\x01", struct.pack(">q", 300)),
        (b"\x01\0\x03\x02\0\x01T", b'\x01{"perm":6,"topicName":"T"}'),
        (b"\x01\0\x04\x02\0\x01G", b'\x01{"groupName":"G"}'),
        (b"\x01\0\x09\x02later", b"?"),
    ]


def test_version_two_gives_the_dicts_of_the_json_files() -> None:
    tables = rocksdb.parse_config("rdb", {"default": rdb_pairs()})

    assert tables["topics.json"] == TABLES["topics.json"]
    assert tables["subscriptionGroup.json"]["subscriptionGroupTable"] == {"G": {"groupName": "G"}}
    assert tables["consumerOffset.json"].pop("pullOffsetTable") == {"T@G": {1: 300}}
    assert tables["consumerOffset.json"] == TABLES["consumerOffset.json"]
    assert consumer_offsets(tables["consumerOffset.json"]) == {("T", "G", 0): 250, ("T", "G", 1): 251}


@given(st.sampled_from(rdb_pairs()), st.data())
def test_a_damaged_table_is_a_table_or_a_format_error(pair: rocksdb.Pair, data: st.DataObject) -> None:
    key, value = (data.draw(st.just(part) | flipped(part) | cut(part)) for part in pair)

    for database in ("rdb", "topics", "consumerOffsets"):
        with contextlib.suppress(FormatError):
            rocksdb.parse_config(database, {"default": [(key, value)]})


def test_a_value_that_is_no_table_is_named_by_its_key() -> None:
    with pytest.raises(FormatError, match=r"the value of key 54: .* at offset 8 "):
        rocksdb.parse_config("topics", {"default": [(b"T", b'{"perm":?}')]})
