"""The rules of a pull, and queue views under it, beyond what ``tests/commands/test_pull.py`` sees."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mqtool.engine.store.consume_queue import ConsumeQueue, used_units
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.pull import MessageFilter, StorePullResult, StoreStatus, pull
from mqtool.engine.store.queue_view import FileQueueView, open_queue, queue_keys
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import MqtoolError
from mqtool.formats import consume_queue
from mqtool.formats.codes import PullStatus
from mqtool.formats.filters import TagFilter, parse_tags
from mqtool.formats.hashing import java_hash
from tests import damage
from tests.golden import GOLDEN_NAMES, copy_of, golden_store, manifest

STORE = "mixed-533-clean"
TOPIC = "OrderEvents"


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_offsets_by_time_are_those_of_java(name: str) -> None:
    store = StoreReader(golden_store(name))
    views = {key: open_queue(store, *key) for key in queue_keys(store)}

    for topic, queue_id, timestamp, expected in manifest(name)["offset_by_time"]:
        view = views.get((topic, queue_id))
        if view is None:
            assert expected == 0
        elif "497" in name:
            assert isinstance(view, FileQueueView)
            assert view.offset_at_4(timestamp) == expected
        else:
            assert view.offset_at(timestamp) == expected


@pytest.mark.parametrize("name", ["mixed-533-clean", "batchcq-533-clean", "rocksdb-550-clean", "ext-533-clean"])
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_queue_pulled_in_pieces_is_the_queue_pulled_whole(name: str, data: st.DataObject) -> None:
    store = StoreReader(golden_store(name))
    key = data.draw(st.sampled_from(sorted(queue_keys(store))))
    view = open_queue(store, *key)
    assert view is not None
    tag = data.draw(st.sampled_from(["*", "TagA", "TagB || TagC", "nothing"]))
    subscription = MessageFilter(parse_tags(tag))
    start = data.draw(st.integers(view.min_offset, view.max_offset))

    whole = pull(view, store, start, 10_000, subscription)
    pieces, at = [], start
    while at < view.max_offset:
        piece = pull(view, store, at, data.draw(st.integers(1, 9)), subscription)
        assert at < piece.next_offset <= view.max_offset
        assert piece.status in (PullStatus.FOUND, PullStatus.NO_MATCHED_MSG)
        pieces += piece.messages
        at = piece.next_offset

    assert pieces == whole.messages
    assert not whole.faults


@pytest.mark.parametrize(
    ("store_status", "offset", "status"),
    [
        (StoreStatus.FOUND, 0, PullStatus.FOUND),
        (StoreStatus.NO_MATCHED_MESSAGE, 0, PullStatus.NO_MATCHED_MSG),
        (StoreStatus.MESSAGE_WAS_REMOVING, 0, PullStatus.NO_MATCHED_MSG),
        (StoreStatus.OFFSET_FOUND_NULL, 0, PullStatus.NO_NEW_MSG),
        (StoreStatus.OFFSET_OVERFLOW_ONE, 3, PullStatus.NO_NEW_MSG),
        (StoreStatus.OFFSET_OVERFLOW_BADLY, 9, PullStatus.OFFSET_ILLEGAL),
        (StoreStatus.OFFSET_TOO_SMALL, 0, PullStatus.OFFSET_ILLEGAL),
        (StoreStatus.NO_MATCHED_LOGIC_QUEUE, 0, PullStatus.NO_NEW_MSG),
        (StoreStatus.NO_MATCHED_LOGIC_QUEUE, 1, PullStatus.OFFSET_ILLEGAL),
        (StoreStatus.NO_MESSAGE_IN_QUEUE, 0, PullStatus.NO_NEW_MSG),
        (StoreStatus.NO_MESSAGE_IN_QUEUE, 1, PullStatus.OFFSET_ILLEGAL),
    ],
)
def test_what_the_store_says_becomes_what_a_client_tells(
    store_status: StoreStatus, offset: int, status: PullStatus
) -> None:
    assert StorePullResult(store_status, offset, 0, 0, 0).status is status


def test_every_status_of_the_store_has_one_of_the_client() -> None:
    for status in StoreStatus:
        assert StorePullResult(status, 0, 0, 0, 0).status in PullStatus


def test_equal_codes_are_not_yet_equal_tags() -> None:
    # "AaAa" and "BBBB" have the same Java hash: a broker sends both, a client keeps one.
    assert java_hash("AaAa") == java_hash("BBBB")
    subscription = MessageFilter(parse_tags("AaAa"))
    store = StoreReader(golden_store(STORE))
    message = next(store.messages())

    tagged = type(message)(**{**vars_of(message), "raw_properties": b"TAGS\x01BBBB\x02"})

    assert subscription.tags is not None
    assert subscription.tags.matches_code(java_hash("BBBB"))
    assert not subscription.matches_message(tagged)


def vars_of(message: Any) -> dict[str, Any]:
    return {name: getattr(message, name) for name in message.__dataclass_fields__}


def test_a_unit_whose_place_in_the_extension_is_gone_is_looked_up(tmp_path: Path) -> None:
    store = copy_of("ext-533-clean", tmp_path)
    expected = [one["phy"] for one in manifest("ext-533-clean")["messages"] if one["tags"] == "TagA"]
    for file in (store / "consumequeue_ext").rglob("0*"):
        if file.is_file():
            file.unlink()
    reader = StoreReader(store)

    found = []
    for key in queue_keys(reader):
        result = pull(open_queue(reader, *key), reader, 0, 10_000, MessageFilter(parse_tags("TagA")))
        found += [message.position for message in result.messages]

    assert sorted(found) == sorted(expected)
    assert expected


def test_units_that_fill_a_file_are_below_the_minimum(tmp_path: Path) -> None:
    store = copy_of(STORE, tmp_path)
    blank = consume_queue.UNIT.schema.build(
        {"physical_offset": 0, "size": consume_queue.PRE_BLANK_SIZE, "tags_code": 0}
    )
    file = f"consumequeue/{TOPIC}/0/{0:020}"
    damage.apply_ops(store, [{"op": "write", "file": file, "at": 0, "hex": (blank * 7).hex()}])
    reader = StoreReader(store)

    view = open_queue(reader, TOPIC, 0)

    assert view is not None
    assert view.min_offset == 7
    assert pull(view, reader, 0, 1).store_status is StoreStatus.OFFSET_TOO_SMALL
    assert pull(view, reader, 7, 1).messages[0].queue_offset == 7


def test_a_queue_goes_on_behind_a_missing_file(tmp_path: Path) -> None:
    store = copy_of("many-533-clean", tmp_path)
    key = next(iter(sorted(StoreReader(store).consume_queues)))
    files = sorted((store / "consumequeue" / key[0] / str(key[1])).iterdir())
    assert len(files) == 1  # twenty units a file: made longer here
    units = files[0].read_bytes().rstrip(b"\0")
    units += bytes(-len(units) % 20)
    for number in (0, 400_000_000):
        files[0].with_name(f"{number:020}").write_bytes(units.ljust(400, b"\0"))
    reader = StoreReader(store)

    result = pull(open_queue(reader, *key), reader, 0, 10_000)

    assert result.max_offset == 20_000_000 + len(units) // 20
    assert result.next_offset == result.max_offset
    assert len(result.messages) == 2 * (len(units) // 20)
    assert sum(fault.lost for fault in result.faults) <= 20  # one for all places without a file


@given(st.lists(st.booleans(), max_size=60), st.integers(0, 30), st.booleans())
def test_the_last_unit_in_use_is_found_whether_the_rest_is_a_hole_or_zeros(
    tmp_path_factory: pytest.TempPathFactory, used: list[bool], more: int, hole: bool
) -> None:
    path = tmp_path_factory.mktemp("queue") / f"{0:020}"
    unit = consume_queue.UNIT.schema.build({"physical_offset": 8, "size": 100, "tags_code": 1})
    data = b"".join(unit if one else bytes(20) for one in used)
    size = len(data) + more * 20 * 4000
    with path.open("wb") as file:
        file.write(data)
        if hole:
            file.truncate(size)
        else:
            file.write(bytes(size - len(data)))

    found = used_units(MappedFile(path, 0, size), consume_queue.UNIT.dtype)

    assert found == max((number + 1 for number, one in enumerate(used) if one), default=0)
    assert found == ConsumeQueue("T", 0, path.parent).max_offset()


@given(st.lists(st.tuples(st.lists(st.booleans(), max_size=5), st.integers(0, 30_000)), max_size=5))
@settings(max_examples=40)
def test_the_last_unit_in_use_is_found_behind_holes_within_a_file(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[list[bool], int]]
) -> None:
    path = tmp_path_factory.mktemp("queue") / f"{0:020}"
    unit = consume_queue.UNIT.schema.build({"physical_offset": 8, "size": 100, "tags_code": 1})
    number = last = 0
    with path.open("wb") as file:
        for used, hole in pieces:
            for one in used:
                number += 1
                file.write(unit if one else bytes(20))
                last = number if one else last
            number += hole
            file.seek(20 * number)
        file.truncate(20 * number)

    assert used_units(MappedFile(path, 0, 20 * number), consume_queue.UNIT.dtype) == last


@given(st.data())
@settings(max_examples=40)
def test_whatever_is_damaged_a_pull_comes_to_an_end(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(["mixed-533-kill", "batchcq-533-kill", "ext-497-kill"]))
    store = _kept_copy(name, tmp_path_factory)
    patterns = st.sampled_from(["consumequeue*/**/0*", "batchconsumequeue/**/0*", "commitlog/0*"])
    pattern = data.draw(patterns.filter(lambda pattern: any(path.is_file() for path in store.glob(pattern))))
    op = data.draw(damage.flips(store, pattern) | damage.cuts(store, pattern))

    with damage.damaged(store, op):
        reader = StoreReader(store)
        for key in sorted(queue_keys(reader)):
            try:
                view = open_queue(reader, *key)
                assert view is not None
                result = pull(view, reader, view.min_offset, 10_000, MessageFilter(_either()))
            except MqtoolError:
                continue
            assert result.next_offset >= result.min_offset
            view.offset_at(1_795_224_895_500)


def _either() -> TagFilter:
    return parse_tags("TagA || TagB")


_copies: dict[str, Path] = {}


def _kept_copy(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if name not in _copies:
        _copies[name] = copy_of(name, tmp_path_factory.mktemp("copies"))
    return _copies[name]


def test_a_batch_unit_that_fits_neither_neighbour_hides_no_other(tmp_path: Path) -> None:
    store = copy_of("batchcq-533-clean", tmp_path)
    file = f"batchconsumequeue/Inner/0/{0:020}"
    damage.apply_ops(
        store, [{"op": "write", "file": file, "at": 46 * 2 + 28, "hex": (1 << 50).to_bytes(8, "big").hex()}]
    )
    reader = StoreReader(store)
    units = np.array(manifest("batchcq-533-clean")["load"]["after_load"]["queues"]["Inner"]["0"]["units"])

    view = open_queue(reader, "Inner", 0)

    assert view is not None
    assert view.units(0, 3).physical_offset.tolist() == units[[0, 1, 3], 1].tolist()


@pytest.mark.parametrize("name", ["batchcq-533-clean", "rocksdb-533-clean", "rocksdb-550-clean"])
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
def test_any_range_of_a_view_is_that_of_its_whole(name: str, data: st.DataObject) -> None:
    store = StoreReader(golden_store(name))
    key = data.draw(st.sampled_from(sorted(queue_keys(store))))
    view, other = open_queue(store, *key), open_queue(store, *key)
    assert view is not None
    assert other is not None
    whole = other.units(0, 10_000)
    start = data.draw(st.integers(0, view.max_offset + 1))
    limit = data.draw(st.integers(1, 9))

    found = view.units(start, limit)

    rows = np.flatnonzero(whole.next_offset > start)[:limit]
    for column, expected in zip(found, whole.where(rows), strict=True):
        assert column.tolist() == expected.tolist()


def test_a_batch_unit_that_counts_too_many_hides_no_other(tmp_path: Path) -> None:
    store = copy_of("batchcq-533-clean", tmp_path)
    sound = open_queue(StoreReader(store), "Inner", 0)
    file = f"batchconsumequeue/Inner/0/{0:020}"
    damage.apply_ops(store, [{"op": "write", "file": file, "at": 46 * 3 + 36, "hex": "7fff"}])

    view = open_queue(StoreReader(store), "Inner", 0)

    assert view is not None
    assert sound is not None
    assert view.units(0, 100).physical_offset.tolist() == sound.units(0, 100).physical_offset.tolist()
    assert view.units(0, 100).next_offset.tolist() == sound.units(0, 100).next_offset.tolist()
    assert view.max_offset == sound.max_offset
