"""Timer wheel, timer log and timercheck: every slot and unit of the golden stores, and those of the description."""

import struct

import numpy as np
import pytest

from mqtool.formats import timer
from mqtool.formats.commit_log import MAGIC_BLANK
from mqtool.formats.hashing import java_hash
from tests.formats.golden_bytes import records, segments
from tests.golden import GOLDEN_NAMES, golden_store

WITH_TIMER = [name for name in GOLDEN_NAMES if name.startswith("timer-")]

UNIT = bytes.fromhex(
    "00000034 ffffffffffffffff 00000001 0000018bcfe56800 00002710 00000000000003e8 000000c8 8e987641 0000000000000000"
)
SLOT = bytes.fromhex("000000006553f10a 0000000000000000 00000000000000e4 00000002 00000000")


def test_the_timer_unit_of_the_description_is_parsed_and_built() -> None:
    unit = timer.LOG_UNIT.schema.parse(UNIT)

    assert (unit.size, unit.previous_position, unit.magic_code) == (52, -1, timer.MAGIC_DEFAULT)
    assert (unit.enqueue_timestamp, unit.delay_ms) == (1700000000000, 10_000)
    assert (unit.physical_offset, unit.message_size) == (1000, 200)
    assert (unit.topic_hash, unit.reserved) == (java_hash("TopicTest"), 0)
    assert timer.LOG_UNIT.schema.build(unit) == UNIT
    assert timer.LOG_UNIT_SIZE == 52


def test_the_slot_of_the_description_is_parsed_and_built() -> None:
    slot = timer.SLOT.schema.parse(SLOT)

    assert (slot.time, slot.first_position, slot.last_position, slot.count) == (1700000010, 0, 228, 2)
    assert timer.SLOT.schema.build(slot) == SLOT
    assert slot.time % timer.WHEEL_SLOT_COUNT == 512010
    assert timer.SLOT_SIZE * 512010 == 16384320
    assert timer.WHEEL_SIZE == 38_707_200


@pytest.mark.parametrize("name", WITH_TIMER)
def test_every_golden_slot_is_parsed_and_built_back(name: str) -> None:
    raw = (golden_store(name) / "timerwheel").read_bytes()
    assert len(raw) == timer.WHEEL_SIZE
    # The 1.2 million empty ones are all alike.
    slots = np.frombuffer(raw, timer.SLOT.dtype)
    used = np.flatnonzero(np.frombuffer(raw, ">i8").reshape(-1, 4).any(axis=1))
    assert len(used)
    assert timer.SLOT.schema.build(timer.SLOT.schema.parse(bytes(32))) == bytes(32)

    for number in used.tolist():
        piece = raw[32 * number : 32 * number + 32]
        slot = timer.SLOT.schema.parse(piece)
        assert timer.SLOT.schema.build(slot) == piece
        assert slots[number].item() == tuple(slot[name] for name in timer.SLOT.names)
        if slot.time > 0:
            assert slot.time % timer.WHEEL_SLOT_COUNT == number


@pytest.mark.parametrize("name", WITH_TIMER)
def test_every_golden_timer_unit_is_parsed_and_built_back_and_names_its_message(name: str) -> None:
    told = {message["phy"]: message for message, _ in records(name)}
    positions = set()
    kinds = set()
    for file in segments(golden_store(name), "timerlog"):
        data, at = file.read_bytes(), 0
        while struct.unpack_from(">i", data, at) == (timer.LOG_UNIT_SIZE,):
            raw = data[at : at + timer.LOG_UNIT_SIZE]
            unit = timer.LOG_UNIT.schema.parse(raw)
            assert timer.LOG_UNIT.schema.build(unit) == raw
            message = told[unit.physical_offset]
            assert unit.message_size == message["size"]
            assert unit.topic_hash == java_hash(message["properties"]["REAL_TOPIC"])
            assert unit.previous_position == -1 or unit.previous_position in positions
            positions.add(int(file.name) + at)
            kinds.add(unit.magic_code)
            at += timer.LOG_UNIT_SIZE
        if (file.parent / f"{int(file.name) + len(data):020}").exists():
            raw = data[at : at + timer.LOG_END_SIZE]
            end = timer.LOG_END.schema.parse(raw)
            assert (end.size, end.magic_code) == (len(data) - at, MAGIC_BLANK)
            assert timer.LOG_END.schema.build(end) == raw
    assert {timer.MAGIC_DEFAULT, timer.MAGIC_DEFAULT | timer.MAGIC_ROLL} <= kinds
    assert any(kind & timer.MAGIC_DELETE for kind in kinds)


@pytest.mark.parametrize("name", WITH_TIMER)
def test_every_golden_timercheck_is_parsed_and_built_back(name: str) -> None:
    raw = (golden_store(name) / "config/timercheck").read_bytes()

    check = timer.TIMER_CHECK.schema.parse(raw)

    assert timer.TIMER_CHECK.schema.build(check) == raw
    assert len(raw) == timer.TIMER_CHECK_SIZE
    stored = [message["store_timestamp"] for message, _ in records(name)]
    assert 0 <= check.last_read_timestamp - min(stored) < 3_600_000
    assert 0 < check.last_timer_queue_offset <= len(stored)
    assert check.last_timer_log_flushed_position % timer.LOG_UNIT_SIZE in range(timer.LOG_UNIT_SIZE)
    assert not any(check.rest)
