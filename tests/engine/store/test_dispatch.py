"""Dispatch: the units and index entries that brokers wrote, and those that plain rules give for made-up messages."""

import collections
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.store.commit_log import Gap
from mqtool.engine.store.dispatch import Dispatch, dispatch, property_crcs
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import commit_log, consume_queue, consume_queue_ext, scan
from mqtool.formats import kernels as plain
from tests import builders
from tests.builders import DELAYS, Draft, Stored
from tests.golden import GOLDEN_NAMES, golden_store, manifest

Queues = dict[tuple[str, int], list[list[int]]]


@pytest.fixture(scope="module", params=["plain", "compiled"])
def kernels(request: pytest.FixtureRequest) -> Any:
    return plain if request.param == "plain" else scan.compiled_kernels()


def queues_of(derived: Dispatch) -> Queues:
    """Return the units of each queue: queue offset, position, size, tags code, batch size."""
    found: Queues = {}
    units = derived.units
    columns = (units.queue_offset, units.physical_offset, units.size, units.tags_code, units.batch_size)
    for stretch in units.stretches:
        rows = zip(*(column[stretch.first : stretch.last].tolist() for column in columns), strict=True)
        found.setdefault(stretch.queue, []).extend(map(list, rows))
    return found


def entries_of(derived: Dispatch) -> list[tuple[int, int]]:
    return list(zip(derived.entries.key_hash.tolist(), derived.entries.physical_offset.tolist(), strict=True))


def dispatched(store: StoreReader, kernels: Any, tags_in_index: bool) -> tuple[Queues, list[tuple[int, int]]]:
    queues: Queues = collections.defaultdict(list)
    entries = []
    for piece in store.tables(kernels=kernels):
        if not isinstance(piece, Gap):
            derived = dispatch(piece, store.delay_levels, tags_in_index)
            for queue, units in queues_of(derived).items():
                queues[queue] += units
            entries += entries_of(derived)
    return dict(queues), entries


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_golden_messages_give_the_units_that_java_finds_in_queues(kernels: Any, name: str) -> None:
    store = StoreReader(golden_store(name))
    told = {
        (topic, int(queue_id)): queue
        for topic, queues in manifest(name)["load"]["after_load"]["queues"].items()
        for queue_id, queue in queues.items()
        if queue["units"]
    }

    queues, _ = dispatched(store, kernels, False)

    assert set(queues) == set(told)
    for key, found in queues.items():
        expected = told[key]
        if expected["type"] == "BatchConsumeQueue":
            assert found[: len(expected["units"])] == expected["units"]
            assert found[-1][0] + found[-1][4] == expected["max"]
            continue
        assert [unit[4] for unit in found] == [1] * len(found)
        assert [unit[:3] for unit in found] == [unit[:3] for unit in expected["units"]]
        for unit, (_, _, _, code, *_) in zip(found, expected["units"], strict=True):
            assert unit[3] == code or consume_queue_ext.is_address(code)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_golden_messages_give_the_entries_that_stand_in_index_files(kernels: Any, name: str) -> None:
    store = StoreReader(golden_store(name))
    expected = [
        (int(entry["key_hash"]), int(entry["physical_offset"]))
        for file in store.index_files
        for entry in file.entries()[1:]
    ]

    _, entries = dispatched(store, kernels, tags_in_index="-550-" in name)

    assert entries == expected
    assert entries


def table_of(stored: list[Stored], kernels: Any) -> scan.MessageTable:
    raw = b"".join(one.record for one in stored)
    buffer = memoryview(raw) if kernels is plain else np.frombuffer(raw, np.uint8)
    table = scan.scan(buffer, stored[0].physical_offset if stored else 0, kernels=kernels).table
    assert not table.faults.any()
    return table


def stored(drafts: list[Draft]) -> list[Stored]:
    return [piece for piece in builders.lay_out(drafts, 1 << 24) if isinstance(piece, Stored)]


pairs = st.fixed_dictionaries(
    {},
    optional={
        "UNIQ_KEY": st.text("0123456789ABCDEF", min_size=32, max_size=32),
        "KEYS": st.lists(st.sampled_from(["k1", "k2", "", "键"]), min_size=2, max_size=4).map(" ".join),
        "TAGS": st.sampled_from(["TagA", "order-created", "标签", "😀", "polygenelubricants"]),
        "DELAY": st.sampled_from(["1", "2", "4", "99"]),
    },
).map(lambda drawn: {name: value for name, value in drawn.items() if value})
drafts = st.lists(
    st.builds(
        Draft,
        topic=st.sampled_from(["TopicTest", "OrderEvents", "SCHEDULE_TOPIC_XXXX", "%RETRY%" + "g" * 130, "订单"]),
        queue_id=st.integers(0, 3) | st.just(1 << 20),
        body=st.binary(max_size=20),
        pairs=pairs,
        sys_flag=st.sampled_from([0, 0, 0, 0x4, 0x8, 0xC]),
        born_host=st.sampled_from(["127.0.0.1:1", "[::1]:65535"]),
    ),
    max_size=25,
)


@given(drafts=drafts, tags_in_index=st.booleans())
def test_made_up_messages_give_the_units_and_entries_of_the_rules(
    kernels: Any, drafts: list[Draft], tags_in_index: bool
) -> None:
    messages = stored(drafts)

    derived = dispatch(table_of(messages, kernels), DELAYS, tags_in_index)

    expected: Queues = {}
    for one in messages:
        if one.draft.has_unit:
            unit = [one.queue_offset, one.physical_offset, len(one.record), one.tags_code(), 1]
            expected.setdefault((one.draft.topic, one.draft.queue_id), []).append(unit)
    assert queues_of(derived) == expected
    assert len({stretch.queue for stretch in derived.units.stretches}) == len(derived.units.stretches)
    assert entries_of(derived) == [
        (builders.key_hash(text), one.physical_offset) for one in messages for text in one.index_keys(tags_in_index)
    ]
    assert derived.entries.is_tag.tolist() == [
        text.startswith(f"{one.draft.topic}#T#") for one in messages for text in one.index_keys(tags_in_index)
    ]
    assert derived.units.store_timestamp.tolist() == [
        messages[row].store_timestamp for row in derived.units.rows.tolist()
    ]
    for row, unit in zip(derived.units.rows.tolist(), derived.units.packed, strict=True):
        built = {"physical_offset": 0, "size": 0, "tags_code": 0} | dict(
            zip(consume_queue.UNIT.names, unit.item(), strict=True)
        )
        assert built["physical_offset"] == messages[row].physical_offset
        assert unit.tobytes() == consume_queue.UNIT.schema.build(built)


def test_a_jump_in_queue_offsets_begins_a_new_stretch(kernels: Any) -> None:
    records = [
        builders.record(0, queue_offset=4),
        builders.record(100, queue_offset=5),
        builders.record(200, queue_offset=7),
        builders.record(300, queue_offset=7, queue_id=1),
    ]
    raw = b"".join(records)
    table = scan.scan(memoryview(raw) if kernels is plain else np.frombuffer(raw, np.uint8), 0, kernels=kernels).table

    units = dispatch(table, DELAYS).units

    assert [(stretch.queue, stretch.first, stretch.last) for stretch in units.stretches] == [
        (("TopicTest", 0), 0, 2),
        (("TopicTest", 0), 2, 3),
        (("TopicTest", 1), 3, 4),
    ]
    assert [units.after(number) for number in range(4)] == [5, 6, 8, 8]


def one_message(kernels: Any, **given: Any) -> Dispatch:
    raw = builders.record(**given)
    buffer = memoryview(raw) if kernels is plain else np.frombuffer(raw, np.uint8)
    return dispatch(scan.scan(buffer, 0, kernels=kernels).table, DELAYS)


def test_an_inner_batch_takes_as_many_queue_offsets_as_it_holds_messages(kernels: Any) -> None:
    text = builders.properties({"INNER_BASE": "40", "INNER_NUM": "3"})

    derived = one_message(kernels, queue_offset=40, properties=text, sys_flag=commit_log.INNER_BATCH | 0x40)

    ((unit,),) = queues_of(derived).values()
    assert (unit[0], unit[4]) == (40, 3)
    assert derived.units.after(0) == 43


@pytest.mark.parametrize("number", ["", "x", "3x", "٣", "1" * 30, "--3", "-"])
def test_a_batch_property_that_is_no_number_counts_as_missing(kernels: Any, number: str) -> None:
    text = builders.properties({"INNER_BASE": "40", "INNER_NUM": number})

    derived = one_message(kernels, queue_offset=7, properties=text)

    assert (derived.units.batch_size.tolist(), derived.units.queue_offset.tolist()) in (([1], [40]), ([1], [7]))


@pytest.mark.parametrize("level", ["0", "-1", "x", ""])
def test_a_delay_that_is_no_level_leaves_the_tags_code(kernels: Any, level: str) -> None:
    text = builders.properties({"DELAY": level, "TAGS": "TagA"})

    derived = one_message(kernels, topic="SCHEDULE_TOPIC_XXXX", properties=text)

    assert derived.units.tags_code.tolist() == [2598919]


def test_a_message_for_light_queues_has_a_unit_in_each(kernels: Any) -> None:
    text = builders.properties(
        {"INNER_MULTI_DISPATCH": "%LMQ%a,other,%LMQ%b", "INNER_MULTI_QUEUE_OFFSET": "5,6,x", "TAGS": "TagA"}
    )

    derived = one_message(kernels, queue_id=3, queue_offset=9, properties=text)

    assert queues_of(derived) == {
        ("TopicTest", 3): [[9, 0, derived.units.size.tolist()[0], 2598919, 1]],
        ("%LMQ%a", 0): [[5, 0, derived.units.size.tolist()[0], 2598919, 1]],
        ("other", 3): [[6, 0, derived.units.size.tolist()[0], 2598919, 1]],
    }


@given(text=builders.odd_properties | builders.properties_texts, sys_flag=builders.i32, topic=builders.topics)
def test_any_properties_can_be_dispatched(kernels: Any, text: bytes, sys_flag: int, topic: str) -> None:
    derived = one_message(kernels, topic=topic, version=2, properties=text, sys_flag=sys_flag)

    has_unit = sys_flag & 0xC in (0, 8)
    assert len(derived.units) >= has_unit
    assert (sys_flag & 0xC != 0xC) or not len(derived.entries.rows)


def test_no_messages_give_nothing(kernels: Any) -> None:
    derived = dispatch(table_of([], kernels), DELAYS)

    assert (len(derived.units), len(derived.entries.rows), derived.units.stretches) == (0, 0, [])


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_golden_crc_properties_are_what_they_should_be(name: str) -> None:
    store = StoreReader(golden_store(name))
    checked = 0
    for piece in store.tables():
        if not isinstance(piece, Gap):
            rows, said, should = property_crcs(piece, dispatch(piece, store.delay_levels).properties)
            assert said.tolist() == should.tolist()
            checked += len(rows)
    assert checked == (len(manifest(name)["messages"]) if name.startswith("propcrc") else 0)


@given(text=builders.properties_texts, body=st.binary(max_size=30), digit=st.integers(0, 9))
def test_a_wrong_crc_property_shows(text: bytes, body: bytes, digit: int) -> None:
    raw = builders.with_crc_property(0, properties=text, body=body)
    changed = bytearray(raw)
    changed[-11] = ord("0") + (changed[-11] - ord("0") + 1 + digit % 9) % 10

    for whole, right in ((raw, True), (bytes(changed), False)):
        table = scan.scan(memoryview(whole), 0).table
        rows, said, should = property_crcs(table, dispatch(table, DELAYS).properties)
        assert rows.tolist() == [0]
        assert (said.tolist() == should.tolist()) == right
