"""Units of the three kinds of queue files: every one of the golden stores, and those of the format's description."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.formats import batch_consume_queue, consume_queue, consume_queue_ext, record_schemas
from tests.formats.golden_bytes import chunks, queue_units, records, segments
from tests.golden import GOLDEN_NAMES, golden_store, manifest

WITH_EXT = [name for name in GOLDEN_NAMES if name.startswith("ext-")]
WITH_BATCHES = [name for name in GOLDEN_NAMES if name.startswith("batchcq-")]

UNITS = {
    "R1, TagA": ("0000000040000000 000000b1 000000000027a807", (1 << 30, 177, 2598919)),
    "negative hash": ("00000000400000b1 000000e8 ffffffffe897bb69", (1073742001, 232, -392709271)),
    "pre-blank": ("0000000000000000 7fffffff 0000000000000000", (0, consume_queue.PRE_BLANK_SIZE, 0)),
    "schedule level 3": ("0000000000000800 000000c8 0000018bcfe58f8b", (2048, 200, 1700000010123)),
    "ext address": (
        "0000000040000000 000000b1 8000000000000030",
        (1 << 30, 177, consume_queue_ext.address_of(48)),
    ),
}


@pytest.mark.parametrize("case", UNITS)
def test_units_of_the_description_are_parsed_and_built(case: str) -> None:
    text, values = UNITS[case]
    raw = bytes.fromhex(text)

    unit = consume_queue.UNIT.schema.parse(raw)

    assert (unit.physical_offset, unit.size, unit.tags_code) == values
    assert consume_queue.UNIT.schema.build(unit) == raw
    assert np.frombuffer(raw, consume_queue.UNIT.dtype)[0].item() == values


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_golden_unit_is_parsed_and_built_back(name: str) -> None:
    files = segments(golden_store(name), "consumequeue/*/*")
    assert bool(files) == (not name.startswith("rocksdb"))

    for raw in chunks(files, consume_queue.UNIT_SIZE):
        assert consume_queue.UNIT.schema.build(consume_queue.UNIT.schema.parse(raw)) == raw


@pytest.mark.parametrize("name", [name for name in GOLDEN_NAMES if not name.startswith("rocksdb")])
def test_golden_units_say_what_java_reads_in_them(name: str) -> None:
    size, ext = consume_queue.UNIT_SIZE, name in WITH_EXT
    found = 0
    for (topic, queue_id), units in queue_units(name).items():
        files = segments(golden_store(name), f"consumequeue/{topic}/{queue_id}")
        if not files:
            continue  # a queue that Java has made while loading
        data = b"".join(chunks(files, size))
        start = int(files[0].name) // size
        for queue_offset, *values in units:
            raw = data[(queue_offset - start) * size :][:size]
            if raw.strip(b"\0"):  # of a broker that was killed, not all units were written
                unit = consume_queue.UNIT.schema.parse(raw)
                told = [unit.physical_offset, unit.size, unit.tags_code]
                assert told[:2] == values[:2]
                assert told == values or (ext and consume_queue_ext.is_address(unit.tags_code))
                found += 1
    assert found > 0.5 * len(manifest(name)["messages"]) or name in WITH_BATCHES


# The extension.


def test_the_ext_unit_of_the_description_is_parsed_and_built() -> None:
    raw = bytes.fromhex("0018 000000000027a807 0000018bcfe5687b 0004 80000001")

    unit = record_schemas.EXT_UNIT.parse(raw)

    assert (unit.size, unit.tags_code, unit.store_timestamp) == (24, 2598919, 1700000000123)
    assert (unit.bit_map_size, unit.bit_map) == (4, bytes.fromhex("80000001"))
    assert record_schemas.EXT_UNIT.build(unit) == raw
    assert consume_queue_ext.MIN_SIZE == 20


def ext_units(data: bytes) -> list[tuple[int, Any, bytes]]:
    """Return position, value and bytes of each unit of one file."""
    found = []
    at = 0
    while at + consume_queue_ext.MIN_SIZE <= len(data):
        size = int.from_bytes(data[at : at + 2], "big", signed=True)
        if size <= 0:
            break
        raw = data[at : at + size]
        found.append((at, record_schemas.EXT_UNIT.parse(raw), raw))
        at += size
    return found


@pytest.mark.parametrize("name", WITH_EXT)
def test_every_golden_ext_unit_is_parsed_and_built_back(name: str) -> None:
    sizes = set()
    for file in segments(golden_store(name), "consumequeue_ext/*/*"):
        for _, unit, raw in ext_units(file.read_bytes()):
            sizes.add(unit.bit_map_size)
            assert unit.size == len(raw)
            assert record_schemas.EXT_UNIT.build(unit) == raw
    assert sizes == {14}


@pytest.mark.parametrize("name", WITH_EXT)
def test_golden_ext_units_lie_where_queues_point_and_carry_the_tags_code(name: str) -> None:
    store = golden_store(name)
    told = {message["phy"]: message for message, _ in records(name)}
    met = 0
    for folder in store.glob("consumequeue/Ext/*"):
        ext = {}
        for file in segments(store, f"consumequeue_ext/Ext/{folder.name}"):
            ext.update({int(file.name) + at: unit for at, unit, _ in ext_units(file.read_bytes())})
        for raw in chunks(segments(folder.parent, folder.name), consume_queue.UNIT_SIZE):
            unit = consume_queue.UNIT.schema.parse(raw)
            if unit.size and consume_queue_ext.is_address(unit.tags_code):
                message, extended = told[unit.physical_offset], ext[consume_queue_ext.position_of(unit.tags_code)]
                assert extended.tags_code == message["tags_code"]
                assert extended.store_timestamp == message["store_timestamp"]
                met += 1
    assert met > 20


@pytest.mark.parametrize("name", WITH_EXT)
def test_a_golden_ext_file_that_is_left_ends_with_the_mark_for_it(name: str) -> None:
    ended = []
    for file in segments(golden_store(name), "consumequeue_ext/*/*"):
        data = file.read_bytes()
        after = sum(len(raw) for _, _, raw in ext_units(data))
        if (file.parent / f"{int(file.name) + len(data):020}").exists():
            ended.append(int.from_bytes(data[after : after + 2], "big", signed=True))
            assert after + consume_queue_ext.END_SIZE <= len(data)
    assert ended == [consume_queue_ext.END]


@given(st.integers(0, (1 << 63) - (1 << 31) - 1))
def test_an_address_stands_for_its_position(position: int) -> None:
    address = consume_queue_ext.address_of(position)

    assert consume_queue_ext.is_address(address)
    assert consume_queue_ext.position_of(address) == position


@given(st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(0, 1 << 62))
def test_no_hash_and_no_time_is_an_address(code: int) -> None:
    assert not consume_queue_ext.is_address(code)


def test_an_address_begins_below_the_lowest_hash() -> None:
    assert consume_queue_ext.is_address(-(1 << 31) - 1)
    assert consume_queue_ext.address_of(0) == -(1 << 63)


# Batches.


def test_the_batch_unit_of_the_description_is_parsed_and_built() -> None:
    raw = bytes.fromhex(
        "0000000040000000 000000b1 000000000027a807 0000018bcfe5687b 0000000000000064 0003 ffffffff 00000000"
    )

    unit = batch_consume_queue.UNIT.schema.parse(raw)

    assert (unit.physical_offset, unit.size, unit.tags_code) == (1 << 30, 177, 2598919)
    assert (unit.store_timestamp, unit.queue_offset, unit.batch_size) == (1700000000123, 100, 3)
    assert (unit.compacted_offset, unit.reserved) == (-1, 0)
    assert batch_consume_queue.UNIT.schema.build(unit) == raw
    assert batch_consume_queue.UNIT_SIZE == 46


@pytest.mark.parametrize("name", WITH_BATCHES)
def test_every_golden_batch_unit_is_parsed_and_built_back_and_says_what_java_reads(name: str) -> None:
    told = {message["phy"]: message for message, _ in records(name)}
    queues = queue_units(name, "BatchConsumeQueue")
    assert queues
    for (topic, queue_id), expected in queues.items():
        files = segments(golden_store(name), f"batchconsumequeue/{topic}/{queue_id}")
        read = []
        for raw in chunks(files, batch_consume_queue.UNIT_SIZE):
            unit = batch_consume_queue.UNIT.schema.parse(raw)
            assert batch_consume_queue.UNIT.schema.build(unit) == raw
            if unit.size:
                read.append(
                    [unit.queue_offset, unit.physical_offset, unit.size, unit.tags_code, unit.batch_size],
                )
                assert unit.store_timestamp == told[unit.physical_offset]["store_timestamp"]
                assert (unit.compacted_offset, unit.reserved) == (-1, 0)
        # Java was asked for the units of the first file only.
        assert read[: len(expected)] == expected
        assert [unit[0] for unit in read[1:]] == [unit[0] + unit[4] for unit in read[:-1]]
        assert read[-1][0] + read[-1][4] == manifest(name)["load"]["after_load"]["queues"][topic][str(queue_id)]["max"]
