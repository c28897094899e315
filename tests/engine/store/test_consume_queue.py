"""Queues on disk: their units and ends as Java tells them, across files, gaps and fillers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.store.consume_queue import BatchConsumeQueue, ConsumeQueue, ConsumeQueueExt
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import batch_consume_queue, consume_queue, consume_queue_ext
from tests import builders
from tests.golden import GOLDEN_NAMES, golden_store, manifest

FILE = 100
"""Bytes of a file: five units."""


def unit(number: int, size: int = 100) -> bytes:
    return bytes(consume_queue.UNIT.schema.build({"physical_offset": number * 100, "size": size, "tags_code": number}))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("queues")
    return (home / str(number) for number in range(10_000))


def queue_of(folder: Path, units: list[bytes], start: int = 0) -> ConsumeQueue:
    folder.mkdir(exist_ok=True)
    builders.write_files(folder, b"".join(units), FILE, start * 20)
    return ConsumeQueue("T", 0, folder, FILE)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_golden_queues_have_the_units_and_ends_that_java_tells(name: str) -> None:
    store = StoreReader(golden_store(name))
    told = {
        (topic, int(queue_id)): queue
        for topic, queues in manifest(name)["load"]["after_load"]["queues"].items()
        for queue_id, queue in queues.items()
        if queue["type"] == "ConsumeQueue" and queue["units"]
    }
    assert set(store.consume_queues) == (set() if name.startswith("rocksdb") else set(told))
    for key, queue in store.consume_queues.items():
        stop = queue.max_offset()
        found = [[queue.first_offset + i, *row.item()] for i, row in enumerate(queue.units(queue.first_offset, stop))]
        # What a killed broker had not yet written was made when Java loaded the copy.
        assert found == told[key]["units"][: len(found)]
        if manifest(name)["end"] == "clean":
            assert stop == told[key]["max"]


def test_only_units_of_messages_lead_somewhere_also_to_the_start_of_the_log(tmp_path: Path) -> None:
    filler = consume_queue.UNIT.schema.build(
        {"physical_offset": 0, "size": consume_queue.PRE_BLANK_SIZE, "tags_code": 0}
    )
    queue = queue_of(tmp_path, [filler, unit(0), bytes(20), unit(3, size=0), filler], start=5)

    assert [queue.address_at(offset) for offset in range(4, 11)] == [None, None, 0, None, 300, None, None]


@given(st.integers(0, 23), st.integers(0, 12), st.data())
def test_any_range_of_units_is_read_and_zeros_where_no_file_is(
    folders: Iterator[Path], count: int, first_file: int, data: st.DataObject
) -> None:
    first = first_file * 5
    queue = queue_of(next(folders), [unit(first + i + 1) for i in range(count)], first)
    start = data.draw(st.integers(-3, 90))
    stop = data.draw(st.integers(start, 95))

    found = queue.units(start, stop)

    expected = [
        (offset + 1) * 100 if first <= offset < first + count else 0 for offset in range(max(0, start), max(0, stop))
    ]
    assert found["physical_offset"].tolist() == expected
    assert queue.max_offset() == (first + count if count else 0)
    assert queue.first_offset == (first if count else 0)


@given(st.integers(1, 23), st.integers(0, 21))
def test_the_end_is_behind_the_last_unit_that_is_not_empty(folders: Iterator[Path], count: int, hole: int) -> None:
    units = [bytes(20) if i == hole else unit(i + 1) for i in range(count)]
    queue = queue_of(next(folders), units)

    assert queue.max_offset() == (count - 1 if hole == count - 1 else count)


def test_a_missing_file_leaves_a_hole(folders: Iterator[Path]) -> None:
    folder = next(folders)
    queue_of(folder, [unit(i + 1) for i in range(15)])
    (folder / f"{FILE:020}").unlink()
    queue = ConsumeQueue("T", 0, folder)

    found = queue.units(0, 15)

    assert found["physical_offset"].tolist() == [100, 200, 300, 400, 500, *[0] * 5, 1100, 1200, 1300, 1400, 1500]
    assert (queue.max_offset(), queue.file_size) == (15, 100)


def test_units_that_fill_up_a_file_are_units(folders: Iterator[Path]) -> None:
    queue = queue_of(next(folders), [unit(0, consume_queue.PRE_BLANK_SIZE)] * 3 + [unit(4)])

    assert queue.units(0, 4)["size"].tolist() == [consume_queue.PRE_BLANK_SIZE] * 3 + [100]
    assert queue.max_offset() == 4


@pytest.mark.parametrize("size", [0, 1, 19, 20, 21, 39, 99, 119])
def test_a_file_of_any_length_is_read_as_far_as_it_goes(folders: Iterator[Path], size: int) -> None:
    folder = next(folders)
    folder.mkdir()
    raw = b"".join(unit(i + 1) for i in range(6))
    (folder / f"{0:020}").write_bytes(raw[:size])
    queue = ConsumeQueue("T", 0, folder, FILE)

    assert queue.max_offset() == size // 20
    assert queue.units(0, queue.max_offset())["physical_offset"].tolist() == [(i + 1) * 100 for i in range(size // 20)]
    assert len(queue.units(0, 10)) == 10


def test_a_queue_whose_file_begins_inside_a_unit_is_read_from_the_next(folders: Iterator[Path]) -> None:
    folder = next(folders)
    folder.mkdir()
    (folder / f"{30:020}").write_bytes(bytes(10) + unit(2) + unit(3))

    queue = ConsumeQueue("T", 0, folder)

    assert queue.first_offset == 2
    assert queue.units(2, 4)["physical_offset"].tolist() == [200, 300]


def test_an_empty_queue_has_no_units(folders: Iterator[Path]) -> None:
    queue = queue_of(next(folders), [])

    assert (queue.first_offset, queue.max_offset()) == (0, 0)
    assert len(queue.units(0, 0)) == 0


# Queues of inner batches.


@pytest.mark.parametrize("name", [name for name in GOLDEN_NAMES if name.startswith("batchcq")])
def test_golden_batch_queues_have_the_units_and_ends_that_java_tells(name: str) -> None:
    store = StoreReader(golden_store(name))
    told = manifest(name)["load"]["after_load"]["queues"]
    assert store.batch_consume_queues
    for (topic, queue_id), queue in store.batch_consume_queues.items():
        expected = told[topic][str(queue_id)]
        units = queue.units(0, queue.unit_count)
        columns = ("queue_offset", "physical_offset", "size", "tags_code", "batch_size")
        found = [[int(row[name]) for name in columns] for row in units]
        assert found[: len(expected["units"])] == expected["units"]
        assert found[-1][0] + found[-1][4] == expected["max"]
        assert found[0][0] == expected["min"]


@given(st.lists(builders.batch_units, max_size=12), st.integers(0, 45))
def test_batch_units_are_read_up_to_the_first_that_is_empty(
    folders: Iterator[Path], units: list[bytes], rest: int
) -> None:
    folder = next(folders)
    folder.mkdir()
    builders.write_files(folder, b"".join(units) + bytes(rest), 46 * 4)
    queue = BatchConsumeQueue("T", 0, folder)

    found = queue.units(0, queue.unit_count)

    parsed = [batch_consume_queue.UNIT.schema.parse(raw) for raw in units]
    expected = next((i for i, one in enumerate(parsed) if one.size <= 0), len(parsed))
    columns = batch_consume_queue.UNIT.names
    assert found.tolist() == [tuple(one[name] for name in columns) for one in parsed[:expected]]


BATCH_SIZES = (3, 1, 2, 5, 1, 4, 2, 2, 1, 3, 6, 1, 2)


def batch_queue_of(
    folder: Path, per_file: int, damage: dict[int, dict[str, int]] | None = None, missing: int | None = None
) -> BatchConsumeQueue:
    """Write thirteen units, some with other values, into files of so many, and leave one file out."""
    units, offset = [], 0
    for place, batch_size in enumerate(BATCH_SIZES):
        fields = {"physical_offset": 1000 * place, "size": 100, "tags_code": 0, "store_timestamp": 5}
        fields |= {"queue_offset": offset, "batch_size": batch_size, "compacted_offset": -1, "reserved": 0}
        units.append(batch_consume_queue.UNIT.schema.build(fields | (damage or {}).get(place, {})))
        offset += batch_size
    builders.write_files(folder, b"".join(units), 46 * per_file)
    if missing is not None:
        (folder / f"{missing * per_file * 46:020}").unlink()
    return BatchConsumeQueue("T", 0, folder)


def first_offset_of(place: int) -> int:
    return sum(BATCH_SIZES[:place])


@given(st.integers(1, 14), st.sets(st.integers(0, 12)), st.none() | st.just(100))
def test_the_unit_that_leads_to_an_address_is_found_behind_empty_ones(
    folders: Iterator[Path], per_file: int, empty: set[int], size: int | None
) -> None:
    nothing = {"physical_offset": 0, "size": 0, "store_timestamp": 0, "queue_offset": 0, "batch_size": 0}
    queue = batch_queue_of(next(folders), per_file, dict.fromkeys(empty, nothing))

    for place in range(13):
        expected = None if place in empty else first_offset_of(place)
        assert queue.offset_at(1000 * place, size) == expected
        assert queue.offset_at(1000 * place, 99) is queue.offset_at(1000 * place + 1, size) is None


def test_units_behind_an_empty_one_are_not_read_for_each_address_again(folders: Iterator[Path]) -> None:
    queue = batch_queue_of(next(folders), 100, {0: {"size": 0}})
    assert queue.offset_at(1000) == first_offset_of(1)
    sizes = []
    units_of = queue.units

    def noted(start: int, stop: int) -> Any:
        units = units_of(start, stop)
        sizes.append(len(units))
        return units

    queue.units = noted  # type: ignore[method-assign]
    for place in range(1, 13):
        assert queue.offset_at(1000 * place) == first_offset_of(place)

    assert not any(sizes)


@pytest.mark.parametrize("name", [name for name in GOLDEN_NAMES if name.startswith("batchcq")])
@pytest.mark.parametrize("per_file", [1, 3, 10, 100])
def test_a_batch_queue_is_the_same_however_long_its_files_are(
    folders: Iterator[Path], name: str, per_file: int
) -> None:
    for golden in StoreReader(golden_store(name)).batch_consume_queues.values():
        whole = golden.units(0, golden.unit_count)
        folder = next(folders)
        builders.write_files(folder, whole.tobytes(), 46 * per_file)
        queue = BatchConsumeQueue("T", 0, folder)

        assert queue.unit_count == golden.unit_count
        assert (queue.first_offset, queue.max_offset()) == (golden.first_offset, golden.max_offset())
        for start in range(golden.unit_count):
            stop = min(start + 4, golden.unit_count)
            assert queue.units(start, stop).tobytes() == golden.units(start, stop).tobytes()
            assert queue.place_of(int(whole["queue_offset"][start])) == start
            assert queue.address_of(start) == start * 46


@given(st.integers(1, 14), st.integers(-2, 15), st.integers(-2, 20))
def test_any_range_of_batch_units_is_read(folders: Iterator[Path], per_file: int, start: int, stop: int) -> None:
    queue = batch_queue_of(next(folders), per_file)
    places = range(13)[max(0, start) : max(0, stop)]

    found = queue.units(start, min(stop, queue.unit_count))

    assert found["physical_offset"].tolist() == [1000 * place for place in places]
    one_file = len({place // per_file for place in places}) == 1
    assert any(np.shares_memory(found, segment.bytes) for segment in queue.segments) == one_file


def test_the_rest_of_a_batch_file_that_is_no_whole_unit_is_passed_over(folders: Iterator[Path]) -> None:
    queue = batch_queue_of(next(folders), 5)
    first = queue.segments[0].path
    first.write_bytes(first.read_bytes()[: 46 * 3 + 20])

    queue = BatchConsumeQueue("T", 0, first.parent)

    assert queue.unit_count == 11
    assert queue.units(2, 4)["physical_offset"].tolist() == [2000, 5000]
    assert [queue.address_of(place) for place in (2, 3)] == [46 * 2, 46 * 5]
    assert queue.address_before(3) == 46 * 3  # where the missing unit should begin
    assert queue.place_of(first_offset_of(3)) == 3


@given(st.integers(1, 6), st.integers(0, 1))
def test_a_missing_batch_file_hides_no_unit_of_the_others(folders: Iterator[Path], per_file: int, missing: int) -> None:
    queue = batch_queue_of(next(folders), per_file, missing=missing)
    kept = [place for place in range(13) if place // per_file != missing]

    found = queue.units(0, queue.unit_count)

    assert found["physical_offset"].tolist() == [1000 * place for place in kept]
    for number, place in enumerate(kept):
        assert queue.place_of(first_offset_of(place)) == number
        assert queue.address_of(number) == 46 * place
    assert queue.max_offset() == sum(BATCH_SIZES)


@given(st.integers(1, 6), st.integers(0, 12))
def test_batch_units_end_at_a_hole(folders: Iterator[Path], per_file: int, hole: int) -> None:
    queue = batch_queue_of(next(folders), per_file, {hole: {"size": 0}})

    assert queue.unit_count == hole
    assert queue.max_offset() == first_offset_of(hole)
    assert queue.place_of(first_offset_of(hole)) == hole


@given(st.integers(1, 6), st.integers(2, 10), st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-5, 40))
def test_a_batch_unit_with_a_wrong_queue_offset_misleads_no_search(
    folders: Iterator[Path], per_file: int, wrong: int, offset: int
) -> None:
    queue = batch_queue_of(next(folders), per_file, {wrong: {"queue_offset": offset}})

    for place in {*range(13)} - {wrong}:
        assert queue.next_in_line(queue.place_of(first_offset_of(place))) == place
    assert queue.max_offset() == sum(BATCH_SIZES)


def test_a_batch_queue_of_nothing_but_noise_has_no_unit_in_line(folders: Iterator[Path]) -> None:
    queue = batch_queue_of(next(folders), 4, {place: {"queue_offset": -1 - place} for place in range(13)})

    assert queue.unit_count == 13
    assert (queue.first_offset, queue.max_offset()) == (0, 0)
    assert (queue.next_in_line(0), queue.last_in_line(13), queue.place_of(7)) == (13, None, 0)
    assert len(queue.units_in_line(0, 13)) == 0


# The extension.


@pytest.mark.parametrize("name", [name for name in GOLDEN_NAMES if name.startswith("ext")])
def test_golden_addresses_lead_to_units_with_the_tags_code(name: str) -> None:
    store = StoreReader(golden_store(name))
    told = {message["phy"]: message for message in manifest(name)["messages"]}
    met = 0
    for key, queue in store.consume_queues.items():
        for row in queue.units(queue.first_offset, queue.max_offset()):
            code = int(row["tags_code"])
            if consume_queue_ext.is_address(code):
                unit_head = store.consume_queue_exts[key].unit_at(code)
                assert unit_head is not None
                assert int(unit_head["tags_code"][0]) == told[int(row["physical_offset"])]["tags_code"]
                met += 1
    assert met > 20


@given(
    st.binary(max_size=80),
    st.integers(-(1 << 63), -(1 << 31) - 1) | st.integers(0, 90).map(consume_queue_ext.address_of),
)
def test_any_address_leads_to_a_unit_or_nowhere(folders: Iterator[Path], raw: bytes, address: int) -> None:
    folder = next(folders)
    folder.mkdir()
    (folder / f"{0:020}").write_bytes(raw)
    position = consume_queue_ext.position_of(address)

    head = ConsumeQueueExt("T", 0, folder).unit_at(address)

    there = raw[position : position + consume_queue_ext.MIN_SIZE]
    fits = len(there) == consume_queue_ext.MIN_SIZE and int.from_bytes(there[:2], "big", signed=True) >= 20
    assert (head is not None) == fits
    assert head is None or head.tobytes() == there


def test_units_of_a_queue_are_not_copied(folders: Iterator[Path]) -> None:
    queue = queue_of(next(folders), [unit(i) for i in range(1, 5)])

    assert np.shares_memory(queue.units(1, 3), queue.segments[0].bytes)
