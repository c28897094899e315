"""A growing store as a stream, driven as Spark drives it: offsets through JSON, any limit, restarts, retention."""

import collections
import dataclasses
import itertools
import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from mqtool.errors import NotFoundError, StoreChangedError, UsageError
from mqtool.spark.source import RocketMQStore
from mqtool.spark.stream import StoreStreamReader
from tests.builders import STORED, Draft, Stored, StoreSizes, write_store
from tests.damage import DamageCase, apply_ops, cases_of_the_log
from tests.golden import copy_of, golden_store
from tests.spark.reading import read

SEGMENT = 4096
DRAFTS = [Draft(topic=f"T{n % 3}", queue_id=n % 2, body=b"x" * (7 * n % 400)) for n in range(60)]


def stream(path: Path | str, **options: object) -> StoreStreamReader:
    given = {name: str(value) for name, value in options.items()}
    source = RocketMQStore(CaseInsensitiveDict({"path": str(path), "includeBody": "true", **given}))
    reader = source.streamReader(source.schema())
    assert isinstance(reader, StoreStreamReader)
    return reader


class StreamQuery:
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
        self.stored: list[Stored] = write_store(whole, DRAFTS, StoreSizes(segment=SEGMENT))
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
    most=st.none() | st.integers(400, 5000),
    restarts=st.lists(st.booleans(), min_size=7, max_size=7),
    max_partition=st.integers(300, 5000),
)
@settings(max_examples=12)
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
    query = StreamQuery(growing.root, **options)

    for cut, restart in zip([*sorted(cuts), growing.size], restarts, strict=False):
        growing.grow(cut)
        if restart:
            query.restart()
        while query.trigger():
            pass

    assert query.offsets_read() == growing.offsets()


def test_a_limit_is_kept_and_the_rest_comes_later(growing: Growing) -> None:
    growing.grow(growing.size)
    query = StreamQuery(growing.root, maxBytesPerTrigger=1000)
    ends: list[int] = []

    while query.trigger():
        assert query.offsets is not None
        ends += [place["offset"] for place in json.loads(query.offsets).values()]

    assert all(after - before <= 1000 for before, after in itertools.pairwise([0, *ends]))
    assert len(ends) < 2 * growing.size // 1000
    assert query.offsets_read() == growing.offsets()
    assert isinstance(query.reader.getDefaultReadLimit(), ReadMaxBytes)


@pytest.mark.parametrize("most", [1, 2])
def test_a_limit_of_segments_is_kept_and_progress_tells_how_far_the_log_reaches(growing: Growing, most: int) -> None:
    growing.grow(growing.size)
    query = StreamQuery(growing.root, maxFilesPerTrigger=most)
    end = growing.stored[-1].physical_offset + len(growing.stored[-1].record)
    counts = [0]

    while query.trigger():
        read = query.offsets_read()
        assert len({offset // SEGMENT for offset in read[counts[-1] :]}) <= most
        assert query.reader.reportLatestOffset() == {str(growing.root): {"offset": end}}
        counts.append(len(read))

    assert query.offsets_read() == growing.offsets()
    assert len(counts) <= 2 * len(growing.files)


def test_available_now_ends_where_the_log_ended_when_it_began(growing: Growing) -> None:
    growing.grow(9000)
    query = StreamQuery(growing.root, maxBytesPerTrigger=2000)
    query.reader.prepareForTriggerAvailableNow()
    growing.grow(growing.size)

    while query.trigger():
        pass

    before = [one.physical_offset for one in growing.stored if one.physical_offset + len(one.record) <= 9000]
    assert query.offsets_read() == before


def test_a_query_may_begin_at_the_end(growing: Growing) -> None:
    growing.grow(9000)
    query = StreamQuery(growing.root, startingOffsets="latest")
    growing.grow(growing.size)

    while query.trigger():
        pass

    before = [one.physical_offset for one in growing.stored if one.physical_offset + len(one.record) <= 9000]
    assert query.offsets_read() == growing.offsets()[len(before) :]


def test_a_query_may_begin_at_an_address_or_a_time_and_read_one_topic(tmp_path: Path) -> None:
    drafts = [dataclasses.replace(one, store_timestamp=STORED + 1000 * n) for n, one in enumerate(DRAFTS)]
    stored = write_store(tmp_path / "store", drafts, StoreSizes(segment=SEGMENT))
    places = [one.physical_offset for one in stored]

    def read(**options: object) -> list[int]:
        query = StreamQuery(tmp_path / "store", maxBytesPerTrigger=2000, **options)
        while query.trigger():
            pass
        return query.offsets_read()

    name = str(tmp_path / "store")
    assert read(startingOffsets=json.dumps({name: places[20]})) == places[20:]
    assert read(startingOffsets=json.dumps({name: "latest"})) == []
    assert read(startingTimestamp=STORED + 33_000) == places[33:]
    assert read(startingTimestamp=STORED + 33_000, subscribe="T1") == places[34::3]
    assert read(startingOffsets=json.dumps({name: 0}), startingTimestamp=STORED + 33_000) == places[33:]
    with pytest.raises(UsageError, match=r"ends at .*, before 99,999,999"):
        read(startingOffsets=json.dumps({name: 99_999_999}))


def test_damage_that_hides_a_topic_is_told_by_a_stream_of_another(growing: Growing) -> None:
    growing.grow(growing.size)
    one = growing.stored[4]
    assert one.draft.topic == "T1"
    path = growing.root / "commitlog" / growing.files[one.physical_offset // SEGMENT].name
    with path.open("r+b") as file:
        file.seek(one.physical_offset % SEGMENT + 88 + len(one.draft.body))
        file.write(b"\x7f")  # the length of its topic
    query = StreamQuery(growing.root, subscribe="T0")

    while query.trigger():
        pass

    told = [(row["physical_offset"], row["_corrupt_record"]["code"]) for row in query.rows if row["_corrupt_record"]]
    assert told == [(one.physical_offset, "LOG-SIZES")]
    sound = [row["physical_offset"] for row in query.rows if not row["_corrupt_record"]]
    assert sound == [stored.physical_offset for stored in growing.stored if stored.draft.topic == "T0"]


def test_a_query_that_begins_at_address_0_misses_what_was_deleted_there(growing: Growing) -> None:
    growing.grow(growing.size)
    growing.delete(1)
    start = {"startingOffsets": json.dumps({str(growing.root): 0})}
    strict, lax = StreamQuery(growing.root, **start), StreamQuery(growing.root, failOnDataLoss=False, **start)
    first = StreamQuery(growing.root, startingOffsets="earliest")

    with pytest.raises(NotFoundError, match=f"the messages from 0 to {SEGMENT:,} were deleted before they were read"):
        strict.trigger()
    lax.trigger()
    first.trigger()

    assert [row["_corrupt_record"]["code"] for row in lax.rows if row["_corrupt_record"]] == ["LOG-GAP"]
    assert lax.offsets_read() == first.offsets_read() == [at for at in growing.offsets() if at >= SEGMENT]
    assert len(first.rows) == len(lax.rows) - 1


def test_segments_deleted_before_they_were_read_are_told_of_and_the_stream_goes_on(growing: Growing) -> None:
    growing.grow(growing.size)
    query = StreamQuery(growing.root, maxBytesPerTrigger=3000)
    query.trigger()
    read = len(query.offsets_read())
    growing.delete(2)
    with pytest.raises(NotFoundError, match="deleted before they were read; set failOnDataLoss=false to continue"):
        query.trigger()
    query.options["failOnDataLoss"] = False
    query.restart()

    while query.trigger():
        pass

    kept = [offset for offset in growing.offsets() if offset >= 2 * SEGMENT]
    assert query.offsets_read() == growing.offsets()[:read] + kept
    told = [row["_corrupt_record"] for row in query.rows if row["_corrupt_record"]]
    assert [one["code"] for one in told] == ["LOG-GAP"]
    assert int(told[0]["file"]) == growing.offsets()[read]


@pytest.mark.parametrize("most", [None, 500, 5000])
def test_a_segment_that_is_missing_within_a_log_ends_a_query_or_is_told_of_once(
    most: int | None, growing: Growing, caplog: pytest.LogCaptureFixture
) -> None:
    growing.grow(growing.size)
    growing.delete(1)  # retention is no loss for a query that begins later
    (growing.root / "commitlog" / growing.files[2].name).unlink()
    limit = {"maxBytesPerTrigger": most} if most else {}
    strict, lax = StreamQuery(growing.root, **limit), StreamQuery(growing.root, failOnDataLoss=False, **limit)
    first, stop = 2 * SEGMENT, 3 * SEGMENT

    with pytest.raises(NotFoundError, match=f"no file holds the messages from {first:,} to {stop:,}; set failOnDataLo"):
        while strict.trigger():
            pass
    while lax.trigger():
        pass

    kept = [offset for offset in growing.offsets() if SEGMENT <= offset < first or offset >= stop]
    assert lax.offsets_read() == kept
    told = [row["_corrupt_record"] for row in lax.rows if row["_corrupt_record"]]
    assert [(one["code"], one["file"]) for one in told] == [("LOG-GAP", f"commitlog/{stop:020}")]
    assert len(caplog.records) == 1


def test_a_segment_deleted_while_a_micro_batch_reads_is_told_of(growing: Growing) -> None:
    growing.grow(growing.size)
    reader = stream(growing.root, failOnDataLoss=False)
    strict = stream(growing.root)
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    growing.delete(1)

    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]

    assert [row["physical_offset"] for row in rows[1:]] == [at for at in growing.offsets() if at >= SEGMENT]
    assert rows[0]["_corrupt_record"]["code"] == "LOG-GAP"
    with pytest.raises(NotFoundError, match="does not exist"):
        [batch for part in parts for batch in strict.read(part)]


# Logs that become shorter, are replaced, or vanish.


class Rewritten(Growing):
    """A store whose log is cut at a message and goes on with others, as after a recovery or a restore."""

    def cut(self, number: int, folder: Path) -> None:
        """Have other messages from one on."""
        others = [dataclasses.replace(one, body=b"other" + one.body) for one in DRAFTS[number:]]
        self.stored = write_store(folder, DRAFTS[:number] + others, StoreSizes(segment=SEGMENT))
        self.files = sorted((folder / "commitlog").iterdir())

    def places(self) -> list[tuple[int, int]]:
        return [(one.physical_offset, zlib.crc32(one.record)) for one in self.stored]

    def upto(self, end: int) -> list[int]:
        """Return where the messages begin that are whole below an address but for zeros."""
        return [
            one.physical_offset for one in self.stored if one.physical_offset + len(one.record.rstrip(b"\0")) <= end
        ]


@pytest.mark.parametrize(("by_time", "number"), [(False, 1), (False, 12), (False, 33), (True, 33)])
def test_a_log_that_is_replaced_before_a_query_that_begins_within_it_has_read_anything_is_noticed(
    by_time: bool, number: int, tmp_path: Path
) -> None:
    drafts = [dataclasses.replace(one, store_timestamp=STORED + 1_000_000 * n) for n, one in enumerate(DRAFTS)]
    others = [dataclasses.replace(one, body=b"other" + one.body) for one in drafts]
    root = tmp_path / "store"
    stored = write_store(root, drafts, StoreSizes(segment=SEGMENT))
    at = stored[number].physical_offset
    start: dict[str, object] = {"startingOffsets": json.dumps({str(root): at})}
    if by_time:
        start = {"startingTimestamp": STORED + 1_000_000 * number}
    strict, same, lax = (StreamQuery(root, failOnDataLoss=fails, **start) for fails in (True, True, False))
    while same.trigger():
        pass
    assert same.offsets_read() == [one.physical_offset for one in stored[number:]]
    shutil.rmtree(root)
    new = write_store(root, others, StoreSizes(segment=SEGMENT))

    with pytest.raises(StoreChangedError, match="is not the log that was read up to"):
        strict.trigger()
    while lax.trigger():
        pass

    assert lax.offsets_read() == [one.physical_offset for one in new[number if by_time else 0 :]]


@given(
    first=st.integers(100, 1 << 14),
    number=st.integers(0, 59),
    second=st.integers(1, 1 << 14),
    most=st.none() | st.integers(600, 5000),
    restart=st.booleans(),
)
@settings(max_examples=15)
def test_a_log_that_was_cut_and_written_again_ends_a_query_or_is_read_from_where_it_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, first: int, number: int, second: int, most: int | None, restart: bool
) -> None:
    folder = tmp_path_factory.mktemp("stream")
    growing = Rewritten(folder / "store", folder / "whole")
    growing.grow(first)
    options = {"maxBytesPerTrigger": most} if most else {}
    strict, lax = StreamQuery(growing.root, **options), StreamQuery(growing.root, failOnDataLoss=False, **options)
    for query in (strict, lax):
        while query.trigger():
            pass
    read = len(strict.rows)
    cut = growing.stored[number].physical_offset
    is_lost = read > number

    shutil.rmtree(growing.root / "commitlog")
    (growing.root / "commitlog").mkdir()
    growing.cut(number, folder / "other")
    growing.grow(max(1, cut + second))
    if restart:
        strict.restart()
        lax.restart()
    while lax.trigger():
        pass
    if is_lost:
        with pytest.raises(StoreChangedError, match=r"not the log that was read up to .*failOnDataLoss=false"):
            strict.trigger()
    else:
        while strict.trigger():
            pass
        assert strict.offsets_read() == growing.upto(cut + second)

    bodies = {(row["physical_offset"], row["body"]) for row in lax.rows if row["topic"] is not None}
    for one in growing.stored:
        if one.physical_offset in growing.upto(cut + second):
            assert (one.physical_offset, one.draft.body) in bodies
    if not is_lost:
        assert lax.offsets_read() == growing.upto(cut + second)


def test_what_is_told_of_a_log_that_became_shorter_says_from_where_it_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    growing = Rewritten(tmp_path / "store", tmp_path / "whole")
    query = StreamQuery(growing.root, failOnDataLoss=False)
    for end in range(500, 9000, 500):
        growing.grow(end)
        query.trigger()
    read = len(query.rows)
    at = growing.upto(8000)[-1]

    growing.cut(len(growing.upto(8000)) - 1, tmp_path / "other")
    growing.grow(at)
    shutil.rmtree(growing.root / "commitlog")
    (growing.root / "commitlog").mkdir()
    growing.grow(at)
    query.trigger()

    (told,) = [record.message for record in caplog.records]
    assert told.startswith(f"{growing.root}: this is not the log that was read up to ")
    again = [row["physical_offset"] for row in query.rows[read:]]
    assert again == growing.upto(at)[len(growing.upto(at)) - len(again) :]
    assert 0 < len(again) < len(growing.upto(at)) // 3
    assert not query.trigger()


# Names.


def named(root: Path, broker: str, drafts: list[Draft]) -> list[Stored]:
    """Write a store whose tables tell the broker's name."""
    shutil.rmtree(root, ignore_errors=True)
    stored = write_store(root, drafts, StoreSizes(segment=SEGMENT))
    topics = {"DefaultCluster": 7, "DefaultCluster_REPLY_TOPIC": 6, broker: 7, "TBW102": 7, "T0": 6}
    table = {"topicConfigTable": {name: {"topicName": name, "perm": perm} for name, perm in topics.items()}}
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text(json.dumps(table))
    return stored


@pytest.mark.parametrize("name", ["mixed-497-clean", "mixed-533-clean", "dledger-497-clean", "timer-550-clean"])
def test_a_store_is_called_as_its_broker(name: str) -> None:
    assert [*stream(golden_store(name)).initialOffset()] == ["broker-a"]


def test_a_store_that_is_mounted_somewhere_else_is_read_on(tmp_path: Path) -> None:
    stored = named(tmp_path / "mnt1" / "a", "broker-a", DRAFTS[:9])
    query = StreamQuery(tmp_path / "mnt*" / "*")
    query.trigger()
    (tmp_path / "mnt1").rename(tmp_path / "mnt2")
    stored = named(tmp_path / "mnt2" / "a", "broker-a", DRAFTS[:12])

    query.restart()
    query.trigger()

    assert query.offsets_read() == [one.physical_offset for one in stored]


def test_names_may_be_given_and_a_store_that_gets_one_later_is_read_on(tmp_path: Path) -> None:
    write_store(tmp_path / "a", DRAFTS[:5], StoreSizes(segment=SEGMENT))
    query = StreamQuery(tmp_path / "a")
    query.trigger()
    query.options["storeNames"] = json.dumps({f"{tmp_path}/?": "first"})
    query.restart()

    assert query.trigger()  # the name alone
    assert len(query.rows) == 5
    assert query.offsets
    assert [*json.loads(query.offsets)] == ["first"]
    assert not query.trigger()


@pytest.mark.parametrize("fails", [True, False])
def test_a_batch_that_was_planned_before_its_store_got_a_name_is_read_after_a_restart(
    fails: bool, tmp_path: Path
) -> None:
    write_store(tmp_path / "a", DRAFTS[:5], StoreSizes(segment=SEGMENT))
    query = StreamQuery(tmp_path / "a", failOnDataLoss=fails)
    query.trigger()
    stored = write_store(tmp_path / "b", DRAFTS[:12], StoreSizes(segment=SEGMENT))
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "b").rename(tmp_path / "a")
    assert query.offsets
    start = json.loads(query.offsets)
    planned = json.loads(json.dumps(query.reader.latestOffset(start, ReadAllAvailable())))
    query.options["storeNames"] = json.dumps({f"{tmp_path}/?": "first"})
    query.restart()

    rows = [
        row for part in query.reader.partitions(start, planned) for batch in query.reader.read(part)
        for row in batch.to_pylist()
    ]  # fmt: skip

    assert [row["physical_offset"] for row in rows] == [one.physical_offset for one in stored[5:]]
    query.offsets = json.dumps(planned)
    query.trigger()
    assert [*json.loads(query.offsets)] == ["first"]
    assert len(query.rows) == 5


@pytest.mark.parametrize("place", [7, {"offset": 7}, {"marks": []}])
def test_a_checkpoint_of_another_release_is_refused_in_a_sentence(place: Any, tmp_path: Path) -> None:
    write_store(tmp_path, DRAFTS[:5], StoreSizes(segment=SEGMENT))
    reader = stream(tmp_path)
    other = {str(tmp_path): place}
    known = reader.initialOffset()

    for ask in (lambda: reader.latestOffset(other, ReadAllAvailable()), lambda: reader.partitions(other, known)):
        with pytest.raises(UsageError, match="checkpoint was written by another release of mqtool: start with a new"):
            ask()
    with pytest.raises(UsageError, match="checkpoint was written by another release"):
        reader.partitions(known, other)


def test_two_stores_of_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("master", "slave"):
        named(tmp_path / name, "broker-a", DRAFTS[:5])

    with pytest.raises(UsageError, match=r"master and .*slave are both called broker-a: read only one of"):
        StreamQuery(tmp_path / "*")

    query = StreamQuery(tmp_path / "*", storeNames=json.dumps({f"{tmp_path}/slave": "broker-a-slave"}))
    query.trigger()
    assert len(query.rows) == 10


@pytest.mark.parametrize("pattern", ["*", "a,b"])
def test_a_broker_that_is_retired_ends_a_query_or_is_left_out(
    pattern: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = ",".join(f"{tmp_path}/{name}" for name in pattern.split(","))
    for name in ("a", "b"):
        named(tmp_path / name, f"broker-{name}", DRAFTS[:5])
    query = StreamQuery(path)
    query.trigger()
    (tmp_path / "b").rename(tmp_path.parent / f"{tmp_path.name}-b")
    named(tmp_path / "a", "broker-a", DRAFTS[:9])

    with pytest.raises(NotFoundError, match=r"broker-b is gone: .*; set failOnDataLoss=false to continue without it"):
        query.trigger()
    query.options["failOnDataLoss"] = False
    query.restart()
    query.trigger()
    assert not query.trigger()
    assert len(query.rows) == 14
    assert len(caplog.records) == 1

    (tmp_path.parent / f"{tmp_path.name}-b").rename(tmp_path / "b")
    named(tmp_path / "b", "broker-b", DRAFTS[:7])
    query.trigger()
    assert len(query.rows) == 16


def test_stores_that_come_later_join_in(tmp_path: Path) -> None:
    first = write_store(tmp_path / "a", DRAFTS[:5], StoreSizes(segment=SEGMENT))
    query = StreamQuery(tmp_path / "*")
    query.trigger()
    second = write_store(tmp_path / "b", DRAFTS[:9], StoreSizes(segment=SEGMENT))
    query.trigger()

    assert query.offsets_read() == [one.physical_offset for one in (*first, *second)]
    assert not query.trigger()


def test_a_store_whose_log_is_gone_ends_a_query_or_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored = write_store(tmp_path / "a", DRAFTS[:5], StoreSizes(segment=SEGMENT))
    running = StreamQuery(tmp_path / "*")
    running.trigger()
    for number, name in enumerate(("b", "c")):
        write_store(tmp_path / name, DRAFTS[:5], StoreSizes(segment=SEGMENT))
        shutil.rmtree(tmp_path / name / "commitlog")
        with pytest.raises(NotFoundError, match=r"there is no log in this store.*set failOnDataLoss=false to continue"):
            (running.trigger if number else lambda: StreamQuery(tmp_path / "*"))()
    lax = StreamQuery(tmp_path / "*", failOnDataLoss=False)

    while lax.trigger():
        pass

    assert lax.offsets_read() == running.offsets_read() == [one.physical_offset for one in stored]
    assert len(caplog.records) == 2


def test_only_messages_are_a_stream(growing: Growing) -> None:
    growing.grow(100)
    source = RocketMQStore(CaseInsensitiveDict({"path": str(growing.root), "table": "index"}))
    refused = source.streamReader(source.schema())  # PySpark makes a fault of its own of what is raised here
    for ask in (refused.initialOffset, lambda: refused.latestOffset({}, ReadAllAvailable())):
        with pytest.raises(UsageError, match="the table index cannot be streamed"):
            ask()


def compared_with_a_table(root: Path, **options: object) -> tuple["collections.Counter[str]", list[int]]:
    """Return the rows that a stream alone has, and the addresses of those that a table alone has, in order."""
    query = StreamQuery(root, failOnDataLoss=False, **options)
    while query.trigger():
        pass
    of_stream, of_table = (
        collections.Counter(
            json.dumps([row["physical_offset"], row["topic"], row["_corrupt_record"]], sort_keys=True) for row in rows
        )
        for rows in (query.rows, read(root))
    )
    places = []
    for text in (of_table - of_stream).elements():
        address, _, damage = json.loads(text)
        places.append(int(Path(damage["file"]).name) + damage["position"] if damage else address)
    return of_stream - of_table, sorted(places)


@pytest.mark.parametrize("most", [None, "30k"])
@pytest.mark.parametrize("case", cases_of_the_log(), ids=lambda case: case.name)
def test_of_a_damaged_log_a_stream_has_the_rows_of_a_table_up_to_the_last_message(
    case: DamageCase, most: str | None, tmp_path: Path
) -> None:
    root = case.store(tmp_path)
    options = {"maxBytesPerTrigger": most} if most else {}

    only_of_stream, only_of_table = compared_with_a_table(root, **options)

    last = max(row["physical_offset"] for row in read(root, mode="DROPMALFORMED"))
    assert not only_of_stream
    assert all(address > last for address in only_of_table)  # it may be what a broker is writing


@pytest.mark.parametrize("length", [4, 8, 1000, 30_000])
@pytest.mark.parametrize("number", range(5))
def test_a_segment_whose_beginning_is_damaged_is_read_behind_that(number: int, length: int, tmp_path: Path) -> None:
    root = copy_of("mixed-533-clean", tmp_path)
    file = sorted((root / "commitlog").iterdir())[number]
    apply_ops(root, [{"op": "zero", "file": f"commitlog/{file.name}", "at": 0, "len": length}])

    for options in ({}, {"maxBytesPerTrigger": "30k"}):
        only_of_stream, only_of_table = compared_with_a_table(root, **options)

        assert not only_of_stream
        # Behind the last message, of the last segment nothing may be left but its torn record.
        assert not only_of_table or (number == 4 and length == 30_000)


def test_where_no_message_begins_a_limit_does_not_hold_up_a_stream(tmp_path: Path) -> None:
    far, near = tmp_path / "far", tmp_path / "near"
    write_store(far, [Draft(body=b"x" * 900)] * 800, StoreSizes(segment=4096))
    drafts = [Draft(body=b"x" * 900), Draft(body=b"y" * 3500), Draft(body=b"z")]  # with a blank record of 3 KB
    stored = write_store(near, drafts, StoreSizes(segment=4096))

    for path, most in ((str(near), 100), (f"{far},{near}", 20_000)):
        query = StreamQuery(path, maxBytesPerTrigger=most)
        count = 0
        while len([row for row in query.rows if row["store"] == str(near)]) < len(stored):
            assert query.trigger()
            count += 1
        assert count <= 2 * len(stored)
