"""The door to a store: every message of every golden store as Java reads it, and nothing ever touched."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import CLOCK_STEP_MS, StoreReader
from mqtool.errors import BadDataError, FormatError, MqtoolError, NotFoundError
from mqtool.formats.hosts import parse_host
from tests import builders
from tests.builders import Draft
from tests.damage import cuts, damaged, flips, snapshot
from tests.formats.golden_bytes import read_log
from tests.golden import GOLDEN_NAMES, copy_of, golden_store, manifest

FIELDS = {
    "position": "phy",
    "physical_offset": "phy",
    "size": "size",
    "magic_code": "magic",
    "topic": "topic",
    "queue_id": "queue_id",
    "queue_offset": "queue_offset",
    "flag": "flag",
    "sys_flag": "sys_flag",
    "born_timestamp": "born_timestamp",
    "store_timestamp": "store_timestamp",
    "reconsume_times": "reconsume_times",
    "prepared_transaction_offset": "prepared_transaction_offset",
    "body_crc": "body_crc",
    "body_size": "body_len",
    "tags": "tags",
    "keys": "keys",
    "unique_key": "uniq_key",
    "message_id": "msg_id",
    "properties": "properties",
}


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_the_messages_of_a_golden_store_are_those_that_java_reads(name: str) -> None:
    store = StoreReader(golden_store(name))
    told = manifest(name)["messages"]

    messages = list(store.messages())

    assert [{ours: getattr(message, ours) for ours in FIELDS} for message in messages] == [
        {ours: one[theirs] for ours, theirs in FIELDS.items()} for one in told
    ]
    for message, one in zip(messages, told, strict=True):
        # IPv6 addresses are written in more than one way.
        assert parse_host(message.born_host) == builders.host(one["born_host"])
        assert parse_host(message.store_host) == builders.host(one["store_host"])
        assert len(message.plain_body()) == one.get("plain_body_len", one["body_len"])
        assert store.message_at(message.position) == message
        assert store.record_at(message.position) == read_log(name, message.position, message.size)


def read_everything(store: StoreReader) -> None:
    """Ask for each part that a reader has; what is broken may say so."""
    parts: list[Callable[[], object]] = [
        lambda: list(store.messages()),
        lambda: [queue.units(queue.first_offset, queue.max_offset()) for queue in store.consume_queues.values()],
        lambda: [queue.units(0, queue.unit_count) for queue in store.batch_consume_queues.values()],
        lambda: [queue.unit_at(-(1 << 63)) for queue in store.consume_queue_exts.values()],
        lambda: [(file.header, file.slots(), file.entries()) for file in store.index_files if file.shape],
        lambda: store.index_strays,
        lambda: store.delay_levels,
        lambda: store.checkpoint,
        lambda: store.timer_check,
        lambda: store.timer_log,
        lambda: store.is_live,
        lambda: store.has_abort_file,
        lambda: store.rocksdb_queues,
        lambda: store.rocksdb_tables,
        lambda: store.range_of_time(0, 1 << 62),
        lambda: [
            store.config_table(name)
            for name in ("topics.json", "consumerOffset.json", "subscriptionGroup.json", "delayOffset.json")
        ],
    ]
    for part in parts:
        with contextlib.suppress(MqtoolError):
            part()


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_reading_a_store_leaves_it_as_it_was(name: str) -> None:
    store = golden_store(name)
    before = snapshot(store)

    read_everything(StoreReader(store))

    assert snapshot(store) == before


@pytest.mark.parametrize("name", ["txn-533-kill", "ext-497-kill", "batchcq-533-clean", "timer-533-clean"])
def test_a_damaged_store_is_read_or_an_error(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("stores")
    store = copy_of(name, home)
    (store / "timerwheel").unlink(missing_ok=True)  # as large as all the rest, and not read here

    @given(st.data())
    def read(data: st.DataObject) -> None:
        with damaged(store, data.draw(flips(store) | cuts(store))):
            before = snapshot(store)
            read_everything(StoreReader(store))
            assert snapshot(store) == before

    read()


@pytest.mark.parametrize(
    ("offset", "error"),
    [
        (-1, NotFoundError),
        (1 << 62, NotFoundError),
        (65536, NotFoundError),
        (1, FormatError),
        (65535, FormatError),
        (65528, FormatError),
    ],
)
def test_where_no_message_begins_none_is_given(offset: int, error: type[MqtoolError]) -> None:
    store = StoreReader(golden_store("txn-533-clean"))

    with pytest.raises(error):
        store.message_at(offset)


def test_a_record_that_claims_more_than_its_segment_has_is_a_format_error(tmp_path: Path) -> None:
    store = copy_of("txn-533-clean", tmp_path)

    for size in (65537, (1 << 31) - 1, 90, -5):
        op = {
            "op": "write",
            "file": "commitlog/" + "0" * 20,
            "at": 0,
            "hex": (size & 0xFFFFFFFF).to_bytes(4, "big").hex(),
        }
        with damaged(store, op), pytest.raises(FormatError):
            StoreReader(store).message_at(0)


def test_a_range_of_addresses_has_the_messages_that_begin_in_it() -> None:
    store = StoreReader(golden_store("mixed-533-clean"))
    positions = [one["phy"] for one in manifest("mixed-533-clean")["messages"]]

    for start, stop in itertools.combinations([0, 1, positions[3], positions[40] + 1, 65536, 200_000, 1 << 40], 2):
        found = [message.position for message in store.messages(start, stop)]
        assert found == [position for position in positions if start <= position < stop]


# Times.


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("stores")
    return (home / str(number) for number in itertools.count())


@st.composite
def timed(draw: st.DrawFn) -> list[Draft]:
    """Draw messages whose store times go up, but for steps of the clock back."""
    now = builders.STORED
    drawn = []
    for _ in range(draw(st.integers(1, 25))):
        now += draw(st.sampled_from([0, 1, 1000, 3_600_000]))
        step = draw(st.sampled_from([0, 0, 0, CLOCK_STEP_MS // 2]))
        drawn.append(Draft(body=bytes(draw(st.integers(0, 300))), store_timestamp=now - step))
    return drawn


@given(timed(), st.data())
def test_a_range_of_time_loses_no_message(stores: Iterator[Path], drafts: list[Draft], data: st.DataObject) -> None:
    root = next(stores)
    root.mkdir()
    stored = builders.write_store(root, drafts, builders.StoreSizes(segment=1024))
    times = [one.store_timestamp for one in stored]
    victim = data.draw(st.none() | st.sampled_from(stored))
    if victim:  # a damaged time, or record, tells nothing about its neighbours
        at = victim.physical_offset % 1024 + data.draw(st.sampled_from([4, 56]))
        path = root / "commitlog" / f"{victim.physical_offset // 1024 * 1024:020}"
        raw = bytearray(path.read_bytes())
        raw[at : at + 8] = data.draw(st.sampled_from([bytes(8), b"\x7f" + b"\xff" * 7, b"\xff" * 8]))
        path.write_bytes(raw)
    moments = st.none() | st.sampled_from(times) | st.integers(min(times) - 9, max(times) + 9)
    since, until = data.draw(moments), data.draw(moments)

    start, stop = StoreReader(root).range_of_time(since, until)

    for one in stored:
        if (
            one is not victim
            and (since is None or since <= one.store_timestamp)
            and (until is None or one.store_timestamp < until)
        ):
            assert start <= one.physical_offset < stop


HOUR = 3_600_000


def test_a_range_of_time_trusts_no_single_record(tmp_path: Path) -> None:
    # One message in each segment, and one of them tells another time: nothing but itself is lost.
    times = [builders.STORED + number * HOUR for number in range(10)]
    drafts = [Draft(body=bytes(800), store_timestamp=time) for time in times]
    for number, wrong in ((6, 0), (3, (1 << 63) - 1)):
        root = tmp_path / str(number)
        root.mkdir()
        told = [*drafts[:number], Draft(body=bytes(800), store_timestamp=wrong), *drafts[number + 1 :]]
        stored = builders.write_store(root, told, builders.StoreSizes(segment=1024))

        start, stop = StoreReader(root).range_of_time(times[4], times[8])

        assert start <= stored[4].physical_offset
        assert stop > stored[7].physical_offset


def test_a_clock_may_step_back_between_segments(tmp_path: Path) -> None:
    late, early = builders.STORED + HOUR, builders.STORED + HOUR - CLOCK_STEP_MS + 1
    drafts = [Draft(body=bytes(200), store_timestamp=time) for time in [late] * 3 + [early] * 9]
    stored = builders.write_store(tmp_path, drafts, builders.StoreSizes(segment=1024))
    assert stored[2].physical_offset < 1024 <= stored[3].physical_offset
    store = StoreReader(tmp_path)

    assert store.range_of_time(late, None)[0] == 0
    assert store.range_of_time(None, early + 1)[1] > stored[-1].physical_offset


def test_a_range_of_time_leaves_out_what_is_far_away(tmp_path: Path) -> None:
    drafts = [Draft(body=bytes(300), store_timestamp=builders.STORED + number * HOUR) for number in range(40)]
    builders.write_store(tmp_path, drafts, builders.StoreSizes(segment=1024))
    store = StoreReader(tmp_path)

    start, stop = store.range_of_time(builders.STORED + 20 * HOUR, builders.STORED + 22 * HOUR)

    assert 0 < store.commit_log.min_offset + start < stop < store.commit_log.end_offset
    assert stop - start <= 5 * 1024
    assert store.range_of_time(None, None) == (0, store.commit_log.end_offset)


# One file.


@pytest.mark.parametrize("name", ["mixed-533-clean", "dledger-497-clean", "multipath-533-clean"])
def test_a_single_file_of_a_log_has_its_messages(name: str) -> None:
    for file in StoreReader(golden_store(name)).commit_log.segments:
        expected = [
            one["phy"] for one in manifest(name)["messages"] if file.start_offset <= one["phy"] < file.end_offset
        ]

        store = StoreReader(file.path)

        assert [message.position for message in store.messages()] == expected
        assert store.commit_log.total_size == file.size
        assert store.consume_queues == {}


def test_settings_are_taken_before_anything_is_inferred() -> None:
    settings = {"mappedFileSizeCommitLog": "65536", "maxHashSlotNum": "100", "maxIndexNum": "250"}

    store = StoreReader(golden_store("mixed-533-clean"), StoreConfig(settings))

    assert store.commit_log.file_size == 65536
    assert {(file.shape.slots, file.shape.entries) for file in store.index_files if file.shape} == {(100, 250)}
    assert store.remarks == []


# Small files.


def test_a_file_that_is_too_short_is_bad_data(tmp_path: Path) -> None:
    store = copy_of("timer-533-clean", tmp_path)
    for name in ("checkpoint", "config/timercheck"):
        (store / name).write_bytes(bytes(4095))
    reader = StoreReader(store)

    pages: list[Callable[[], object]] = [lambda: reader.checkpoint, lambda: reader.timer_check]
    for read in pages:
        with pytest.raises(BadDataError, match="4,095 bytes instead of 4,096"):
            read()


def test_a_file_that_is_not_there_is_none(tmp_path: Path) -> None:
    store = copy_of("timer-533-clean", tmp_path)
    for name in ("checkpoint", "config/timercheck", "config/topics.json", "config/topics.json.bak"):
        (store / name).unlink()
    reader = StoreReader(store)

    assert reader.checkpoint is None
    assert reader.timer_check is None
    assert reader.config_table("topics.json") is None
    assert not reader.has_abort_file


def test_of_a_table_that_cannot_be_read_the_one_before_it_is_taken(tmp_path: Path) -> None:
    store = copy_of("txn-533-clean", tmp_path)
    sound = StoreReader(store).config_table("topics.json")

    (store / "config/topics.json").write_bytes(b"{")
    kept = StoreReader(store).config_table("topics.json")
    (store / "config/topics.json.bak").write_bytes(b"")

    assert sound
    assert kept
    assert set(kept["topicConfigTable"]) <= set(sound["topicConfigTable"])
    with pytest.raises(BadDataError, match=r"cannot read .*topics\.json: a member"):
        StoreReader(store).config_table("topics.json")


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_an_abort_file_is_seen(name: str) -> None:
    assert StoreReader(golden_store(name)).has_abort_file == manifest(name)["abort"]


def test_queues_are_folders_of_topics_with_numbers(tmp_path: Path) -> None:
    for folder in ("T/0", "T/10", "T/2", "T/x", "T/-1", "T/2147483648", "T/" + "9" * 30, "%LMQ%a/0", "empty"):
        (tmp_path / "consumequeue" / folder).mkdir(parents=True)
    (tmp_path / "consumequeue" / "file").touch()
    (tmp_path / "consumequeue" / "T" / "7").touch()

    assert list(StoreReader(tmp_path).consume_queues) == [("%LMQ%a", 0), ("T", 0), ("T", 2), ("T", 10)]


def test_index_files_have_names_of_seventeen_digits(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    for name in ("20231114221320123", "1", "x", "20231114221320123.bak"):
        (tmp_path / "index" / name).touch()
    (tmp_path / "index" / "20231114221320124").mkdir()

    store = StoreReader(tmp_path)

    assert [file.path.name for file in store.index_files] == ["1", "20231114221320123"]
    assert [path.name for path in store.index_strays] == ["1", "20231114221320123.bak", "20231114221320124", "x"]


@given(builders.drafts, st.booleans())
def test_a_made_up_store_is_read_as_it_was_written(
    stores: Iterator[Path], drafts: list[Draft], tags_in_index: bool
) -> None:
    root = next(stores)
    root.mkdir()
    stored = builders.write_store(root, drafts, tags_in_index=tags_in_index)

    messages = list(StoreReader(root).messages())

    assert [(message.position, message.queue_offset, message.topic) for message in messages] == [
        (one.physical_offset, one.queue_offset, one.draft.topic) for one in stored
    ]
    assert [message.properties for message in messages] == [dict(draft.pairs) for draft in drafts]
    assert [message.body for message in messages] == [draft.body for draft in drafts]
