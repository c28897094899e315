"""A growing store as a stream, driven as Spark drives it: offsets through JSON, any limit, restarts, retention."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from mqtool.errors import NotFoundError, UsageError
from mqtool.spark.source import RocketMQStore
from mqtool.spark.stream import StoreStreamReader
from tests.builders import Draft, Sizes, Stored, write_store

SEGMENT = 4096
DRAFTS = [Draft(topic=f"T{n % 3}", queue_id=n % 2, body=b"x" * (7 * n % 400)) for n in range(60)]


def stream(path: Path | str, **options: object) -> StoreStreamReader:
    given = {name: str(value) for name, value in options.items()}
    source = RocketMQStore(CaseInsensitiveDict({"path": str(path), **given}))
    reader = source.streamReader(source.schema())
    assert isinstance(reader, StoreStreamReader)
    return reader


class Query:
    """One query: its checkpoint, and what it has read."""

    def __init__(self, path: Path | str, **options: object) -> None:
        self.path = path
        self.options = options
        self.offsets: str | None = None
        self.rows: list[dict[str, Any]] = []
        self.restart()

    def restart(self) -> None:
        """Begin again from the checkpoint."""
        self.reader = stream(self.path, **self.options)
        if self.offsets is None:
            self.offsets = json.dumps(self.reader.initialOffset())

    def trigger(self) -> bool:
        """Run one micro-batch; tell whether there was one."""
        assert self.offsets is not None
        start = json.loads(self.offsets)
        end = json.loads(json.dumps(self.reader.latestOffset(start, self.reader.getDefaultReadLimit())))
        if end == start:
            return False
        for part in self.reader.partitions(start, end):
            for batch in self.reader.read(part):
                self.rows += batch.to_pylist()
        self.offsets = json.dumps(end)
        return True

    def offsets_read(self) -> list[int]:
        return [row["physical_offset"] for row in self.rows if row["topic"] is not None]


class Growing:
    """A store of which a broker has written so much."""

    def __init__(self, root: Path, whole: Path) -> None:
        self.root = root
        self.stored: list[Stored] = write_store(whole, DRAFTS, Sizes(segment=SEGMENT))
        self.files = sorted((whole / "commitlog").iterdir())
        (root / "commitlog").mkdir(parents=True)
        self.deleted = 0

    def grow(self, end: int) -> None:
        """Have the log reach so far, in the middle of a message or not."""
        for number, file in enumerate(self.files):
            at = SEGMENT * number
            if at < end and number >= self.deleted:
                (self.root / "commitlog" / file.name).write_bytes(file.read_bytes()[: end - at].ljust(SEGMENT, b"\0"))

    def delete(self, count: int) -> None:
        """Remove the oldest segments."""
        self.deleted = count
        for file in self.files[:count]:
            (self.root / "commitlog" / file.name).unlink(missing_ok=True)

    @property
    def size(self) -> int:
        return SEGMENT * len(self.files)

    def offsets(self) -> list[int]:
        return [one.physical_offset for one in self.stored]


@pytest.fixture
def growing(tmp_path: Path) -> Growing:
    return Growing(tmp_path / "store", tmp_path / "whole")


@given(
    cuts=st.lists(st.integers(0, 1 << 15), max_size=6),
    most=st.none() | st.integers(100, 5000),
    restarts=st.lists(st.booleans(), min_size=7, max_size=7),
    max_partition=st.integers(300, 5000),
)
@settings(max_examples=30)
def test_each_message_of_a_growing_log_comes_once(
    tmp_path_factory: pytest.TempPathFactory,
    cuts: list[int],
    most: int | None,
    restarts: list[bool],
    max_partition: int,
) -> None:
    folder = tmp_path_factory.mktemp("stream")
    growing = Growing(folder / "store", folder / "whole")
    growing.grow(1)
    options = {"maxPartitionBytes": max_partition} | ({"maxBytesPerTrigger": most} if most else {})
    query = Query(growing.root, **options)

    for cut, restart in zip([*sorted(cuts), growing.size], restarts, strict=False):
        growing.grow(cut)
        if restart:
            query.restart()
        while query.trigger():
            pass

    assert query.offsets_read() == growing.offsets()


def test_a_limit_is_kept_and_the_rest_comes_later(growing: Growing) -> None:
    growing.grow(growing.size)
    query = Query(growing.root, maxBytesPerTrigger=1000)
    ends: list[int] = []

    while query.trigger():
        assert query.offsets is not None
        ends.append(*json.loads(query.offsets).values())

    assert max(after - before for before, after in zip([0, *ends], ends, strict=False)) == 1000
    assert query.offsets_read() == growing.offsets()
    assert isinstance(query.reader.getDefaultReadLimit(), ReadMaxBytes)


def test_available_now_ends_where_the_log_ended_when_it_began(growing: Growing) -> None:
    growing.grow(9000)
    query = Query(growing.root, maxBytesPerTrigger=2000)
    query.reader.prepareForTriggerAvailableNow()
    growing.grow(growing.size)

    while query.trigger():
        pass

    before = [one.physical_offset for one in growing.stored if one.physical_offset + len(one.record) <= 9000]
    assert query.offsets_read() == before


def test_a_query_may_begin_at_the_end(growing: Growing) -> None:
    growing.grow(9000)
    query = Query(growing.root, startingOffsets="latest")
    growing.grow(growing.size)

    while query.trigger():
        pass

    before = [one.physical_offset for one in growing.stored if one.physical_offset + len(one.record) <= 9000]
    assert query.offsets_read() == growing.offsets()[len(before) :]


def test_segments_deleted_before_they_were_read_are_told_of_and_the_stream_goes_on(growing: Growing) -> None:
    growing.grow(growing.size)
    query = Query(growing.root, maxBytesPerTrigger=3000)
    query.trigger()
    read = len(query.offsets_read())
    growing.delete(2)
    query.restart()

    while query.trigger():
        pass

    kept = [offset for offset in growing.offsets() if offset >= 2 * SEGMENT]
    assert query.offsets_read() == growing.offsets()[:read] + kept
    told = [row["_corrupt_record"] for row in query.rows if row["_corrupt_record"]]
    assert [(one["code"], one["file"]) for one in told] == [("LOG-GAP", f"{3000:020}")]


def test_segments_deleted_before_they_were_read_end_a_query_that_is_to_fail_fast(growing: Growing) -> None:
    growing.grow(growing.size)
    query = Query(growing.root, maxBytesPerTrigger=3000, mode="FAILFAST")
    query.trigger()
    growing.delete(2)

    with pytest.raises(NotFoundError, match="deleted before they were read"):
        query.trigger()


def test_a_segment_deleted_while_a_micro_batch_reads_is_told_of(growing: Growing) -> None:
    growing.grow(growing.size)
    reader = stream(growing.root)
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    growing.delete(1)

    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]

    assert [row["physical_offset"] for row in rows[1:]] == [at for at in growing.offsets() if at >= SEGMENT]
    assert rows[0]["_corrupt_record"]["code"] == "LOG-GAP"


def test_stores_that_come_later_join_in(tmp_path: Path) -> None:
    first = write_store(tmp_path / "a", DRAFTS[:5], Sizes(segment=SEGMENT))
    query = Query(tmp_path / "*")
    query.trigger()
    second = write_store(tmp_path / "b", DRAFTS[:9], Sizes(segment=SEGMENT))
    query.trigger()

    assert query.offsets_read() == [one.physical_offset for one in (*first, *second)]
    assert not query.trigger()


def test_only_messages_are_a_stream(growing: Growing) -> None:
    growing.grow(100)
    with pytest.raises(UsageError, match="the table index is no stream"):
        stream(growing.root, table="index")
