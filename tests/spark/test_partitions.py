"""Ranges of a log: however it is cut, each message and each damaged place is read once, as one walk reads them."""

import collections
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqtool.engine.repair.compare.aligned import SIDES
from mqtool.engine.repair.compare.stores import Logs, compare_logs
from mqtool.engine.store.commit_log import Gap
from mqtool.engine.store.loaded_file import LoadedFile
from mqtool.engine.store.reader import StoreReader
from mqtool.engine.store.stats import By, Selection
from mqtool.errors import NotFoundError, StoreChangedError
from mqtool.formats import kernels as plain
from mqtool.spark import compare, partitions, stats
from mqtool.spark.ends import Mark, end_before, end_of_log, holds, thinned
from mqtool.spark.partitions import RangeReader, UnreadablePlace, log_ranges
from mqtool.spark.stores import Store
from tests.builders import Draft, StoreSizes, record, write_store
from tests.damage import DamageCase, apply_ops, cases, cases_of_the_log, cuts, damaged, flips, with_noise
from tests.golden import copy_of, golden_store, manifest

MIXED = "mixed-533-clean"
DAMAGED = cases_of_the_log()

Row = tuple[int, int, int]


@contextlib.contextmanager
def small_steps(look_back: int, step: int, slack: int = 200) -> Iterator[None]:
    """Make what is read at once as small as the stores of tests."""
    with mock.patch.multiple(partitions, LOOK_BACK=look_back, STEP=step, SLACK=slack):
        yield


class WhatWasRead(NamedTuple):
    """The messages of all ranges, the places without one, and the messages that begin outside the range they are of."""

    rows: list[Row]
    lost: list[tuple[int, str]]
    outside: list[int]


def read(root: Path, max_size: int) -> WhatWasRead:
    """Read a log in ranges of a size."""
    rows: list[Row] = []
    lost: list[tuple[int, str]] = []
    outside: list[int] = []
    for part in log_ranges(Store(str(root)), StoreReader(root), max_size):
        with RangeReader(part) as reader:
            for piece in reader.tables():
                if isinstance(piece, UnreadablePlace):
                    lost.append((part.start_offset + piece.position, piece.code))
                    continue
                starts = piece.starts - reader.log.envelope.size
                outside += starts[(starts < part.start) | (starts >= part.stop)].tolist()
                columns = piece.column("position"), piece.column("size"), piece.faults
                rows += zip(*(column.tolist() for column in columns), strict=True)
    return WhatWasRead(rows, lost, outside)


def walked(root: Path) -> list[Row]:
    rows: list[Row] = []
    for piece in StoreReader(root).tables(kernels=plain):
        if not isinstance(piece, Gap):
            columns = piece.column("position"), piece.column("size"), piece.faults
            rows += zip(*(column.tolist() for column in columns), strict=True)
    return rows


sizes = st.integers(5000, 70_000)
steps = st.tuples(st.sampled_from([4096, 1 << 20]), st.integers(500, 5000))


@given(max_size=sizes, step=steps)
@settings(max_examples=15)
def test_each_message_is_read_by_the_range_in_which_it_begins(max_size: int, step: tuple[int, int]) -> None:
    root = golden_store(MIXED)

    with small_steps(*step):
        rows, lost, outside = read(root, max_size)

    assert rows == [(one["phy"], one["size"], 0) for one in manifest(MIXED)["messages"]]
    assert not lost
    assert not outside


def test_ranges_may_be_shorter_than_messages(tmp_path: Path) -> None:
    stored = write_store(tmp_path, [Draft(body=b"x" * n) for n in range(0, 600, 40)], StoreSizes(segment=4096))

    with small_steps(300, 70, 50):
        rows, lost, outside = read(tmp_path, 33)

    assert [row[0] for row in rows] == [one.physical_offset for one in stored]
    assert not lost
    assert not outside


def test_entries_of_a_dledger_log_are_cut_as_well() -> None:
    root = golden_store("dledger-497-clean")

    with small_steps(4096, 3000):
        rows, _, outside = read(root, 20_000)

    assert rows == [(one["phy"], one["size"], 0) for one in manifest("dledger-497-clean")["messages"]]
    assert not outside


@pytest.mark.parametrize("case", DAMAGED, ids=lambda case: case.name)
def test_damage_is_the_same_however_the_log_is_cut(case: DamageCase, tmp_path: Path) -> None:
    root = case.store(tmp_path)

    whole = read(root, 1 << 27)
    with small_steps(1 << 20, 1700):
        assert read(root, 9000) == whole
    with small_steps(8000, 700):
        assert read(root, 20_000) == whole

    assert whole.rows == walked(root)
    assert not whole.outside


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of(MIXED, tmp_path_factory.mktemp("own"))


@given(data=st.data(), max_size=sizes, step=st.integers(500, 5000))
@settings(max_examples=20)
def test_any_damage_leaves_every_message_once(own: Path, data: st.DataObject, max_size: int, step: int) -> None:
    root = own
    op = data.draw(flips(root, "commitlog/*") | cuts(root, "commitlog/*"))

    with damaged(root, op) as store, small_steps(1 << 20, step):
        rows, _, outside = read(store, max_size)
        assert rows == walked(store)
        assert not outside


def test_a_body_that_looks_like_the_log_is_not_taken_for_it(tmp_path: Path) -> None:
    inside = record(physical_offset=1200, body=b"not a message of this log")
    head = len(record(physical_offset=0, topic="TopicTest"))
    body = bytes(1200 - head + len("TopicTest") + 3) + inside
    body = body[: len(body)] + bytes(4000)
    at = record(physical_offset=0, body=body).index(inside)
    body = bytes(1200 - at) + body if at < 1200 else body[at - 1200 :]
    write_store(tmp_path, [Draft(body=body), Draft(body=b"next")], StoreSizes(segment=1 << 16))
    assert record(physical_offset=0, body=body).index(inside) == 1200

    rows, lost, outside = read(tmp_path, 1000)

    assert rows == walked(tmp_path)
    assert len(rows) == 2
    assert not lost
    assert not outside


def test_a_hole_is_told_of_once_though_it_fills_several_ranges(tmp_path: Path) -> None:
    root = copy_of(MIXED, tmp_path)
    apply_ops(root, [{"op": "zero", "file": f"commitlog/{65536:020}", "at": 10_000, "len": 30_000}])

    with small_steps(1 << 20, 1000):
        rows, lost, outside = read(root, 4096)

    assert rows == walked(root)
    assert not outside
    assert [code for _, code in lost] == ["LOG-SIZES"] or [code for _, code in lost] == ["LOG-MAGIC"]


# Logs that grow, shrink and vanish.


@given(cut=st.integers(0, 6000), step=st.integers(64, 3000))
def test_the_end_of_a_growing_log_is_behind_its_last_whole_message(
    tmp_path_factory: pytest.TempPathFactory, cut: int, step: int
) -> None:
    root = tmp_path_factory.mktemp("store")
    stored = write_store(root, [Draft(body=b"x" * n, pairs={"K": "v"}) for n in range(1, 45)], StoreSizes(segment=4096))
    files = sorted((root / "commitlog").iterdir())
    log = b"".join(file.read_bytes() for file in files)
    for number, file in enumerate(files):
        at = 4096 * number
        file.write_bytes(log[at : min(at + 4096, max(at, cut))].ljust(4096, b"\0"))
    ends = [one.physical_offset + len(one.record) for one in stored]
    whole = [end for end in ends if end <= cut]

    with small_steps(1 << 20, step):
        end = end_of_log(Store(str(root)), StoreReader(root))
        again = end_of_log(Store(str(root)), StoreReader(root), end)

    assert end == again
    assert end.offset == max(whole, default=0)


@given(start=st.integers(0, 9000), size=st.integers(1, 3000), step=st.integers(64, 3000))
def test_a_limit_ends_behind_the_last_message_that_it_lets_through(
    limited: Path, start: int, size: int, step: int
) -> None:
    places = [(one["phy"], one["phy"] + one["size"]) for one in manifest(MIXED)["messages"]]
    start = max((end for _, end in places if end <= start), default=0)

    with small_steps(1 << 20, step):
        end = end_before(Store(str(limited)), StoreReader(limited), start, start + size)

    ends = [end for begin, end in places if begin >= start and end <= start + size]
    assert end.offset == (ends[-1] if ends else min(end for begin, end in places if begin >= start))
    assert end.last
    assert end.last[:2] in places
    assert holds(StoreReader(limited), end.last)


@pytest.fixture(scope="module")
def limited() -> Path:
    return golden_store(MIXED)


def test_a_mark_holds_while_its_message_is_there(tmp_path: Path) -> None:
    root = copy_of(MIXED, tmp_path)
    mark = end_of_log(Store(str(root)), StoreReader(root)).last
    assert mark
    assert mark.address == manifest(MIXED)["messages"][-1]["phy"]
    (last,) = (one for one in (root / "commitlog").iterdir() if int(one.name) <= mark.address < int(one.name) + 65_536)

    apply_ops(
        root, [{"op": "write", "file": f"commitlog/{last.name}", "at": mark.stop - int(last.name) - 1, "hex": "7f"}]
    )
    assert holds(StoreReader(root), mark)
    apply_ops(
        root, [{"op": "write", "file": f"commitlog/{last.name}", "at": mark.address - int(last.name) + 56, "hex": "7f"}]
    )
    assert holds(StoreReader(root), mark) is False
    last.unlink()
    assert holds(StoreReader(root), mark) is False
    assert holds(StoreReader(root), Mark(-1, 0, "")) is None


@given(st.lists(st.integers(1, 1 << 40), min_size=1, max_size=300))
def test_of_marks_a_few_stay_at_any_distance(steps: list[int]) -> None:
    kept: list[Mark] = []
    at = 0
    for step in steps:
        at += step
        kept = thinned([Mark(at - 1, at, ""), *kept])
        assert [mark.stop for mark in kept] == sorted({mark.stop for mark in kept}, reverse=True)
        assert kept[0].stop == at
        assert len(kept) <= 26
    assert kept[-1].stop == steps[0]


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not count what is read")
def test_the_end_of_a_large_segment_is_found_by_reading_little_of_it(tmp_path: Path) -> None:
    def bytes_read() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    stored = write_store(tmp_path, [Draft(body=bytes(range(256)) * 2048)] * 100, StoreSizes(segment=51 << 20))
    before = bytes_read()

    end = end_of_log(Store(str(tmp_path)), StoreReader(tmp_path))

    assert end.offset == stored[-1].physical_offset + len(stored[-1].record)
    assert bytes_read() - before < 25 << 20


def test_a_file_that_becomes_shorter_is_an_error_and_no_end_of_the_process(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020}"
    path.write_bytes(b"x" * 100_000)
    with LoadedFile(path, 0, 100_000) as file:
        file.load(0, 1000)
        path.write_bytes(b"x" * 50_000)
        file.load(0, 50_000)
        with pytest.raises(StoreChangedError, match="was truncated"):
            file.load(0, 60_000)


def test_a_file_that_is_open_can_be_read_when_its_name_is_gone(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020}"
    data = np.arange(100_000, dtype=np.uint8).tobytes()
    path.write_bytes(data)
    with LoadedFile(path, 0, 100_000) as file:
        path.unlink()
        file.load(50_000, 60_000)
        assert file.bytes[50_000:60_000].tobytes() == data[50_000:60_000]
        file.load(55_000, 70_000)
        assert file.bytes[55_000:70_000].tobytes() == data[55_000:70_000]
    with pytest.raises(NotFoundError):
        LoadedFile(path, 0, 100_000)


@given(data=st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 20_000)), max_size=8))
def test_what_is_loaded_is_what_the_file_holds(
    tmp_path_factory: pytest.TempPathFactory, data: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.mktemp("file") / f"{0:020}"
    content = np.random.default_rng(7).integers(0, 256, 40_000, np.uint8)
    path.write_bytes(content.tobytes())
    with LoadedFile(path, 0, len(content)) as file:
        for start, size in data:
            start = min(start, len(content))
            file.load(start, start + size)
            assert (file.bytes[start : start + size] == content[start : start + size]).all()


@pytest.mark.parametrize(
    ("name", "counts"), [("mixed-533-clean/noise", (0, 1)), ("mixed-497-clean/tail-zeros-mid-record", (1, 0))]
)
def test_tasks_that_count_tell_a_torn_record_from_noise_as_verify_does(
    name: str, counts: tuple[int, int], tmp_path: Path
) -> None:
    found = [case for case in cases() if case.name == name]
    store = Store(str(found[0].store(tmp_path) if found else with_noise(copy_of(MIXED, tmp_path))))

    for size in (9_000, 1 << 30):
        items = (stats.StatsTask(parts, By.TOPIC, Selection()) for parts in stats._ranges(store, Selection(), size))
        rows = [row for item in items for batch in stats.count(item) for row in batch.to_pylist()]
        assert tuple(sum(row[name] or 0 for row in rows) for name in ("lost", "noise")) == counts


@pytest.mark.parametrize(("number", "holes"), [(0, 0), (1, 1), (2, 1), (4, 0)])
def test_tasks_that_count_tell_of_a_segment_that_is_missing_within_a_log(
    number: int, holes: int, tmp_path: Path
) -> None:
    root = copy_of(MIXED, tmp_path)
    sorted((root / "commitlog").iterdir())[number].unlink()
    store = Store(str(root))

    for size in (9_000, 1 << 30):
        items = (stats.StatsTask(parts, By.TOPIC, Selection()) for parts in stats._ranges(store, Selection(), size))
        rows = [row for item in items for batch in stats.count(item) for row in batch.to_pylist()]
        assert sum(row["holes"] or 0 for row in rows) == holes
        assert sum(row["lost"] or 0 for row in rows) == 0


@pytest.mark.parametrize(
    "name",
    [
        "mixed-497-clean/stale-records-after-end", "mixed-497-clean/tail-zeros-many-records",
        "mixed-533-clean/physical-offset-field-full-scan", "mixed-533-clean/magic-blank",
        "mixed-533-clean/body-byte-first-segment", "mixed-533-clean/middle-segment-missing",
    ],
)  # fmt: skip
def test_records_of_another_place_and_ends_are_compared_by_offset_as_by_the_command(name: str, tmp_path: Path) -> None:
    case = next(case for case in cases() if case.name == name)
    left, right = Store(str(golden_store(case.base))), Store(str(case.store(tmp_path)))
    logs = Logs()
    assert list(compare_logs(left.open(), right.open(), logs)) or logs.is_equal

    items = compare._aligned(left, right, 50_000)
    rows = [row for item in items for batch in compare.compare(item) for row in batch.to_pylist()]

    sides = collections.Counter(row["side"] for row in rows if row["physical_offset"] is not None)
    assert (sides["left"], sides["right"], sides["differs"]) == (logs.sides[0].only, logs.sides[1].only, logs.differ)
    unread = {row["side"] for row in rows if row["physical_offset"] is None}
    assert {side for side, told in zip(SIDES, logs.sides, strict=True) if told.unreadable_count} <= unread


@pytest.mark.parametrize("name", ["mixed-533-clean/body-byte-first-segment", "mixed-533-clean/middle-segment-missing"])
@pytest.mark.parametrize("size", [5_000, 50_000, 1 << 30])
def test_what_both_logs_lack_is_told_once_of_each_by_offset(name: str, size: int, tmp_path: Path) -> None:
    store = Store(str(next(case for case in cases() if case.name == name).store(tmp_path)))

    items = compare._aligned(store, store, size)
    rows = [row for item in items for batch in compare.compare(item) for row in batch.to_pylist()]

    assert [row["physical_offset"] for row in rows] == [None, None]
    assert {row["side"] for row in rows} == {*SIDES}


def test_a_task_that_compares_little_at_a_time_finds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = Store(str(golden_store(MIXED))), copy_of(MIXED, tmp_path)
    for number, segment in enumerate(sorted((right / "commitlog").iterdir())[:3]):
        with segment.open("r+b") as file:
            file.seek(7_000 + 15_000 * number)
            file.write(bytes(3_000))

    def found() -> list[str]:
        items = compare._aligned(left, Store(str(right)), 1 << 30)
        return sorted(repr(row) for item in items for batch in compare.compare(item) for row in batch.to_pylist())

    at_once = found()
    assert len(at_once) > 3
    for size in (4_000, 50_000, 70_000):
        monkeypatch.setattr("mqtool.spark.compare.MAX_PARTITION", size)
        assert found() == at_once
