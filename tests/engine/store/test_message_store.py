"""The store of a running broker: its files are those that real brokers write for the same messages."""

import bisect
import contextlib
import dataclasses
import errno
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mqtool.engine.repair.rebuild.plan import build
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.append_result import AppendResult, PutStatus
from mqtool.engine.store.commit_log import CommitLog
from mqtool.engine.store.disk import Disk, DiskFullError, OpenFile
from mqtool.engine.store.live_log import LiveLog
from mqtool.engine.store.message_store import MessageStore
from mqtool.engine.store.paths import DEFAULT_DELAY_LEVELS, StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.engine.store.time_search import Boundary
from mqtool.errors import MqtoolError, RecoveryNeededError, StoreInUseError, UsageError, WriteError
from mqtool.formats import commit_log
from mqtool.formats import kernels as plain
from mqtool.formats.message import message_of
from mqtool.formats.new_message import BatchElement, NewMessage
from mqtool.formats.properties import parse_properties
from mqtool.formats.record_schemas import parse_message
from tests import builders
from tests.damage import snapshot
from tests.engine.store.live import (
    ADDED,
    NOW,
    SMALL,
    append_all,
    delete_topic,
    half_full,
    new_message,
    of_draft,
    of_record,
    opened,
    units_of,
)
from tests.engine.store.test_disk import fail_once
from tests.engine.store.test_dispatch import dispatched
from tests.formats.golden_bytes import queue_units, records
from tests.golden import GOLDEN_NAMES, copy_of, golden_store, manifest

REPLAYED = [
    "mixed-497-clean",
    "mixed-533-clean",
    "mixed-550-clean",
    "many-497-clean",
    "many-533-clean",
    "special-497-clean",
    "special-533-clean",
    "propcrc-533-clean",
    "multipath-533-clean",
    "batchcq-533-clean",
    "retry-533-clean",
    "txn-497-clean",
    "txn-533-clean",
    "timer-533-clean",
]


def settings_of(name: str) -> dict[str, str]:
    """Return the settings of a golden store's broker; delays as its units show them."""
    config = dict(manifest(name)["config"])
    folders = config.pop("commitLogPaths", None)
    levels = StoreReader(golden_store(name)).delay_levels if not folders else []
    return {
        **{key: str(value) for key, value in config.items()},
        **({"storePathCommitLog": ",".join(folders)} if folders else {}),
        **({"messageDelayLevel": " ".join(f"{level // 1000}s" for level in levels)} if levels else {}),
    }


def replayed(name: str, root: Path) -> tuple[StoreConfig, list[AppendResult]]:
    """Store all messages of a golden store once more, each at its time; return the settings and what came of each."""
    config = StoreConfig(settings_of(name))
    batch_topics = {topic for topic, _ in StoreReader(golden_store(name)).batch_consume_queues}
    root.mkdir()
    if "-550-" in name:
        (root / "rocksdbstore").mkdir()
    store = MessageStore(root, config, now=0, usage=half_full, batch_topics=batch_topics)
    results = []
    for number, (_, record) in enumerate(records(name)):
        message, timestamp = of_record(record, has_crc=name.startswith("propcrc"))
        results.append(store.append(message, timestamp))
        if number % 7 == 0:
            store.tick(timestamp)
    store.close()
    return config, results


@pytest.mark.parametrize("name", REPLAYED)
def test_the_messages_of_a_broker_give_its_files_byte_for_byte(name: str, tmp_path: Path) -> None:
    _, results = replayed(name, tmp_path / "store")

    assert [(one.status, one.physical_offsets, one.message_id) for one in results] == [
        (PutStatus.PUT_OK, (told["phy"],), told["msg_id"]) for told, _ in records(name)
    ]
    ours, theirs = tmp_path / "store", golden_store(name)
    for kind in ("commitlog*", "consumequeue", "batchconsumequeue"):
        expected = {path.relative_to(theirs): path for path in theirs.glob(f"{kind}/**/*") if path.is_file()}
        assert {path.relative_to(ours) for path in ours.glob(f"{kind}/**/*") if path.is_file()} == set(expected)
        for path, original in expected.items():
            if kind != "commitlog*":
                assert (ours / path).read_bytes() == original.read_bytes(), path
    index = [path.read_bytes() for path in sorted((ours / "index").iterdir())]
    assert index == [path.read_bytes() for path in sorted((theirs / "index").iterdir())]
    for told, record in records(name):
        path = next(
            one for one in ours.glob("commitlog*/*") if int(one.name) == told["phy"] // segment(name) * segment(name)
        )
        with path.open("rb") as file:
            file.seek(told["phy"] % segment(name))
            again = file.read(told["size"])
        if any(added.encode() in record for added in ADDED):
            # What a broker adds stands somewhere in the text, by the hash of its name.
            one, other = parse_message(again), parse_message(record)
            assert parse_properties(one.properties) == parse_properties(other.properties)
            one.properties = other.properties = b""
            assert one == other
        else:
            assert again == record
    for offset, left in manifest(name)["blanks"]:
        path = next(
            one for one in ours.glob("commitlog*/*") if int(one.name) == offset // segment(name) * segment(name)
        )
        assert path.read_bytes()[offset % segment(name) :][:8] == builders.blank(left)[:8]


def segment(name: str) -> int:
    return int(manifest(name)["config"]["mappedFileSizeCommitLog"])


def findings(root: Path, config: StoreConfig) -> list[str]:
    """Return what ``verify`` finds in a store; the tables of topics are the broker's, not the store's."""
    found = verify_store(StoreReader(root, config))
    return [f"{one.code} {one.message}" for one in found if one.code != "CONFIG-MISSING"]


@pytest.mark.parametrize("name", REPLAYED)
def test_verify_finds_nothing_in_a_store_that_was_closed(name: str, tmp_path: Path) -> None:
    config, _ = replayed(name, tmp_path / "store")

    assert findings(tmp_path / "store", config) == []


@st.composite
def _light_pairs(draw: st.DrawFn) -> dict[str, str]:
    pairs = draw(builders._pairs())
    if draw(st.booleans()):
        names = draw(st.lists(st.sampled_from(["%LMQ%a", "%LMQ%b", "other", ""]), min_size=1, max_size=3, unique=True))
        pairs["INNER_MULTI_DISPATCH"] = ",".join(names)
    if draw(st.booleans()):
        pairs["DELAY"] = draw(st.sampled_from(["1", "3", "18", "99", "0", "-1"]))
    return {name: value for name, value in pairs.items() if value}


drafts = st.lists(
    st.builds(
        builders.Draft,
        topic=st.sampled_from(["TopicTest", "OrderEvents", "%RETRY%" + "g" * 130, "SCHEDULE_TOPIC_XXXX", "订单"]),
        queue_id=st.integers(0, 2),
        body=st.binary(max_size=300),
        pairs=_light_pairs(),
        sys_flag=st.sampled_from([0, 0, 0, 0x4, 0x8, 0xC]),
        born_host=st.sampled_from([builders.BORN_HOST, "[::1]:65535"]),
        store_host=st.sampled_from([builders.STORE_HOST, "[2001:db8::2]:10911"]),
        trailing=st.booleans(),
    ),
    min_size=1,
    max_size=40,
)
LIGHT = {
    "enableLmq": "true",
    "enableMultiDispatch": "true",
    "messageDelayLevel": DEFAULT_DELAY_LEVELS,  # else they are taken from the units, and these are in any queue
}


@given(drafts=drafts, pauses=st.sets(st.integers(0, 40)), tags_in_index=st.booleans())
def test_any_messages_give_the_units_and_entries_that_dispatch_derives(
    tmp_path_factory: pytest.TempPathFactory, drafts: list[builders.Draft], pauses: set[int], tags_in_index: bool
) -> None:
    root = tmp_path_factory.mktemp("store")
    if tags_in_index:
        (root / "rocksdbstore").mkdir()

    for part in _cut(drafts, pauses):  # closed and opened again in between
        with opened(root, settings=LIGHT) as store:
            for number, draft in enumerate(part):
                assert store.append(of_draft(draft), NOW + 700 * number).status is PutStatus.PUT_OK
                if number % 5 == 0:
                    store.tick(NOW + 700 * number)

    config = StoreConfig({**SMALL.settings, **LIGHT})
    assert findings(root, config) == []
    reader = StoreReader(root, config)
    queues, entries = dispatched(reader, plain, tags_in_index)
    found = {
        key: [[offset, *map(int, unit)] for offset, unit in enumerate(queue.units(0, queue.max_offset()).tolist())]
        for key, queue in reader.consume_queues.items()
    }
    assert found == {key: [unit[:4] for unit in units] for key, units in queues.items()}
    assert entries == [
        (int(entry["key_hash"]), int(entry["physical_offset"]))
        for file in reader.index_files
        for entry in file.entries()[1:]
    ]
    assert sum(1 for _ in reader.messages()) == len(drafts)


def _cut(drafts: list[builders.Draft], at: set[int]) -> list[list[builders.Draft]]:
    edges = [0, *sorted(at), len(drafts)]
    return [drafts[start:stop] for start, stop in itertools.pairwise(edges)]


@example(drafts=[builders.Draft(pairs={"KEYS": str(number)}) for number in range(30)])  # of two index files
@given(drafts=drafts)
def test_rebuild_makes_the_same_queues_and_index(
    tmp_path_factory: pytest.TempPathFactory, drafts: list[builders.Draft]
) -> None:
    root = tmp_path_factory.mktemp("store")
    with opened(root / "store", settings=LIGHT) as store:
        for number, draft in enumerate(drafts):
            assert store.append(of_draft(draft), NOW + 1700 * number).status is PutStatus.PUT_OK
    reader = StoreReader(root / "store", StoreConfig({**SMALL.settings, **LIGHT}))

    build(reader, root / "again", Disk())

    for kind in ("consumequeue", "index"):
        ours, theirs = (
            [path.read_bytes() for path in sorted((root / name / kind).rglob("*")) if path.is_file()]
            for name in ("store", "again")
        )
        assert ours == theirs


@pytest.mark.parametrize("name", ["mixed-533-clean", "many-533-clean", "special-533-clean", "batchcq-533-clean"])
def test_reads_answer_what_java_answers(name: str, tmp_path: Path) -> None:
    config, _ = replayed(name, tmp_path / "store")

    with contextlib.closing(MessageStore(tmp_path / "store", config, now=0, usage=half_full)) as store:
        for topic, queue_id, timestamp, offset in manifest(name)["offset_by_time"]:
            queue = store.queue(topic, queue_id)
            assert queue is not None
            assert store.offset_at(queue, timestamp) == offset, (topic, queue_id, timestamp)
        for topic, key, offsets in manifest(name)["index_queries"]:
            assert store.index.find(topic, key, 0, 1 << 60, 64) == offsets
        for (topic, queue_id), units in (queue_units(name) | queue_units(name, "BatchConsumeQueue")).items():
            queue = store.queue(topic, queue_id)
            assert queue is not None
            found, offset = [], queue.min_offset(store.log.min_offset)
            while offset < queue.next_offset:
                read = queue.units(offset, 3)
                found += [list(unit) if queue.is_batch else list(unit[:4]) for unit in read]
                offset = read[-1].queue_offset + read[-1].batch_size
            assert found[: len(units)] == units  # of batches Java told only the first file
        for told, record in records(name):
            assert sorted(store.log.record(told["phy"])) == sorted(record)  # what a broker adds stands elsewhere
        assert store.earliest_timestamp() == manifest(name)["messages"][0]["store_timestamp"]


# What is refused


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"topic": "t" * 127}, PutStatus.PUT_OK),
        ({"topic": "t" * 128}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": "订" * 43}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": "%RETRY%" + "g" * 248}, PutStatus.PUT_OK),
        ({"topic": "%RETRY%" + "g" * 249}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": ""}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": "../outside"}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": ".."}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": "a\0b"}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": "\ud800"}, PutStatus.MESSAGE_ILLEGAL),
        ({"queue_id": 1 << 31}, PutStatus.MESSAGE_ILLEGAL),
        ({"flag": 1 << 31}, PutStatus.MESSAGE_ILLEGAL),
        ({"born_timestamp": 1 << 63}, PutStatus.MESSAGE_ILLEGAL),
        ({"pairs": {"INNER_MULTI_DISPATCH": "%LMQ%" + "x" * 251 + ",%LMQ%a\0,%LMQ%/../..,%LMQ%a"}}, PutStatus.PUT_OK),
        ({"queue_id": -1}, PutStatus.MESSAGE_ILLEGAL),
        ({"body": bytes(1000)}, PutStatus.PUT_OK),
        ({"body": bytes(1001)}, PutStatus.MESSAGE_ILLEGAL),
        ({"properties": bytes(32_767)}, PutStatus.PUT_OK),
        ({"properties": bytes(32_768)}, PutStatus.PROPERTIES_SIZE_EXCEEDED),
        ({"topic": "SCHEDULE_TOPIC_XXXX", "pairs": {"DELAY": "x"}}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": "TopicTest", "pairs": {"DELAY": "x"}}, PutStatus.PUT_OK),
        ({"sys_flag": 0x80, "pairs": {"INNER_NUM": "2"}}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": "Batched", "sys_flag": 0x80}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": "Batched", "pairs": {"INNER_NUM": "2"}}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": "Batched", "sys_flag": 0x80, "pairs": {"INNER_NUM": "2"}}, PutStatus.PUT_OK),
        ({"topic": "Batched"}, PutStatus.PUT_OK),
    ],
)
def test_what_cannot_be_stored_is_refused_and_leaves_no_trace(
    tmp_path: Path, given: dict[str, Any], status: PutStatus
) -> None:
    settings = {**LIGHT, "maxMessageSize": "1000", "mappedFileSizeCommitLog": "65536"}
    if "properties" in given:
        settings["maxMessageSize"] = "65536"
    with opened(tmp_path / "store", settings=settings, batch_topics={"Batched"}) as store:
        before = store.log.end_offset

        result = store.append(new_message(**given), NOW)

        assert result.status is status
        assert (store.log.end_offset > before) == (status is PutStatus.PUT_OK)


@pytest.mark.parametrize(("left", "status"), [(7, PutStatus.MESSAGE_ILLEGAL), (8, PutStatus.PUT_OK)])
def test_a_message_must_fit_a_segment_and_leave_room_for_a_blank_record(
    tmp_path: Path, left: int, status: PutStatus
) -> None:
    message = new_message(body=b"")
    message.body = bytes(4096 - left - len(builders.record(topic=message.topic)))

    with opened(tmp_path / "store") as store:
        assert store.append(message, NOW).status is status
        assert store.append(new_message(), NOW).status is PutStatus.PUT_OK
        assert store.log.last_start == (4096 if status is PutStatus.PUT_OK else 0)


def test_segments_that_a_broker_made_before_they_were_needed_are_used(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        store.append(new_message(), NOW)
        size = store.log.file_size
    for number in (1, 2):  # RocketMQ makes two ahead
        with (tmp_path / "store" / "commitlog" / f"{number * size:020}").open("wb") as file:
            file.truncate(size)

    with opened(tmp_path / "store") as store:
        while store.log.end_offset < 3 * size:
            assert store.append(new_message(body=bytes(500)), NOW).status is PutStatus.PUT_OK
        queue = store.queue("TopicTest", 0)
        count = queue.next_offset if queue else 0
    with opened(tmp_path / "store") as store:
        queue = store.queue("TopicTest", 0)
        assert queue is not None
        assert queue.next_offset == count > 12
    assert findings(tmp_path / "store", StoreConfig(SMALL.settings)) == []


# Batches


@given(
    parts=st.lists(st.tuples(st.binary(max_size=200), builders.properties_texts, builders.i32), min_size=1, max_size=6),
    before=st.integers(0, 3900),
    has_crc=st.booleans(),
)
def test_a_batch_is_stored_as_so_many_messages_in_one_segment(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[bytes, bytes, int]], before: int, has_crc: bool
) -> None:
    parts = [part for part in parts if b"DELAY" not in part[1] and b"INNER_NUM" not in part[1]]
    settings = {"enabledAppendPropCRC": str(has_crc).lower()}
    root = tmp_path_factory.mktemp("store")
    with opened(root, settings=settings) as store:
        store.append(new_message(body=bytes(before)), NOW)

        batch = new_message(body=b"".join(builders.batch_element(*part) for part in parts), queue_id=2)
        result = store.append_batch(batch, NOW + 1)

        if not parts:
            assert result.status is PutStatus.MESSAGE_ILLEGAL
            return
        assert (result.status, result.queue_offset) == (PutStatus.PUT_OK, 0)
        messages = [message_of(bytes(store.log.record(offset)), offset) for offset in result.physical_offsets]
        assert result.message_id == ",".join(one.message_id for one in messages)
        assert result.end_offset == messages[-1].position + messages[-1].size == store.log.end_offset
    assert [(one.body, one.flag, one.queue_id, one.queue_offset) for one in messages] == [
        (body, flag, 2, number) for number, (body, _, flag) in enumerate(parts)
    ]
    assert len({one.position // 4096 for one in messages}) == 1
    assert findings(root, StoreConfig({**SMALL.settings, **settings})) == []


@pytest.mark.parametrize(
    "given",
    [
        {"body": b""},
        {"body": b"no batch"},
        {"body": builders.batch_element(b"x") + b"rest"},
        {"body": builders.batch_element(b"x", builders.properties({"DELAY": "3"}))},
        {"body": builders.batch_element(b"x", builders.properties({"INNER_NUM": "2"}))},
        {"body": builders.batch_element(b"x"), "sys_flag": 0x4},
        {"body": builders.batch_element(bytes(3000)) * 2},
    ],
)
def test_a_batch_that_cannot_be_stored_whole_is_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    with opened(tmp_path / "store") as store:
        assert store.append_batch(new_message(**given), NOW).status is PutStatus.MESSAGE_ILLEGAL
        assert store.log.end_offset == 0


# Flushing


def test_a_message_waits_for_the_flush_that_reaches_its_end(tmp_path: Path) -> None:
    with opened(tmp_path / "store", settings={"flushDiskType": "SYNC_FLUSH"}) as store:
        first, unwaited, batch = (
            store.append(new_message(), NOW),
            store.append(new_message(pairs={"WAIT": "false"}), NOW),
            store.append_batch(new_message(body=builders.batch_element(b"x")), NOW),
        )
        assert first.flush_offset == first.end_offset > store.flushed_offset
        assert unwaited.flush_offset == 0
        assert batch.flush_offset == batch.end_offset

        assert store.flush() == batch.end_offset == store.flushed_offset


def test_without_sync_flush_nothing_waits_and_pages_are_flushed_in_time(tmp_path: Path) -> None:
    with opened(tmp_path / "store", settings={"mappedFileSizeCommitLog": "65536"}) as store:
        assert store.append(new_message(), NOW).flush_offset == 0
        assert not store.flush_is_due(NOW + 9_999)
        assert store.flush_is_due(NOW + 10_000)  # thoroughly
        assert not store.flush_is_due(NOW + 10_001)
        store.append(new_message(body=bytes(17_000)), NOW + 10_001)
        assert not store.flush_is_due(NOW + 10_499)
        assert store.flush_is_due(NOW + 10_500)  # four pages
        store.flush()
        assert not store.flush_is_due(NOW + 40_000)


def _flush_all(store: MessageStore) -> int:
    end = store.flush()
    store.flush_queues()
    return end


def test_another_thread_flushes_while_messages_are_appended(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store, ThreadPoolExecutor(1) as pool:
        flushing, before = pool.submit(_flush_all, store), 0
        for number in range(3000):
            end = store.append(new_message(body=bytes(100), queue_id=number % 5), NOW + number).end_offset
            if flushing.done():
                assert before <= flushing.result() <= store.flushed_offset <= end
                before = flushing.result()
                store.tick(NOW + number)
                flushing = pool.submit(_flush_all, store)
        flushing.result()
        assert store.flush() == end
    assert findings(tmp_path / "store", StoreConfig(SMALL.settings)) == []


class _FailingDisk(Disk):
    """A disk whose syncs, or writes, fail when told so."""

    sync_error: MqtoolError | None = None
    write_error: MqtoolError | None = None

    def open(self, path: Path) -> OpenFile:
        return _FailingFile(self, path)

    def sync(self, path: Path) -> None:
        if self.sync_error:
            raise self.sync_error
        super().sync(path)


class _FailingFile(OpenFile):
    def __init__(self, disk: _FailingDisk, path: Path) -> None:
        super().__init__(path)
        self.disk = disk

    def write(self, at: int, data: bytes | bytearray) -> None:
        if self.disk.write_error:
            super().write(at, data[: len(data) // 2])
            raise self.disk.write_error
        super().write(at, data)

    def sync(self) -> None:
        if self.disk.sync_error:
            raise self.disk.sync_error
        super().sync()


def test_a_failed_flush_is_never_made_good(tmp_path: Path) -> None:
    disk = _FailingDisk()
    store = MessageStore(tmp_path / "store", StoreConfig(SMALL.settings), now=NOW, disk=disk, usage=half_full)
    kept = store.append(new_message(), NOW).end_offset
    store.flush()
    store.append(new_message(), NOW)
    disk.sync_error = WriteError("the disk fails")

    with pytest.raises(WriteError, match="the disk fails"):
        store.flush()
    disk.sync_error = None

    with pytest.raises(WriteError, match="the disk fails"):
        store.flush()
    assert store.flushed_offset == kept
    assert store.append(new_message(), NOW).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert store.refusal == "the disk fails"
    with pytest.raises(WriteError, match="the disk fails"):
        store.close()
    with opened(tmp_path / "store") as again:
        assert again.was_recovered
        assert again.flushed_offset <= kept  # so that all behind is flushed before anybody is told that it is


@given(fails=st.sets(st.integers(0, 30), max_size=8))
def test_a_full_disk_refuses_messages_until_there_is_room(
    tmp_path_factory: pytest.TempPathFactory, fails: set[int]
) -> None:
    root, disk = tmp_path_factory.mktemp("store"), _FailingDisk()
    store = MessageStore(root, StoreConfig(SMALL.settings), now=NOW, disk=disk, usage=half_full)
    taken = []
    for number in range(30):
        disk.write_error = DiskFullError("no space left") if number in fails else None
        if number % 3 == 0:
            store.tick(NOW + number)
        body = f"{number}".encode() * 70
        result = store.append(new_message(body=body, pairs={"KEYS": f"k{number}"}, queue_id=number % 2), NOW + number)
        if result.status is PutStatus.PUT_OK:
            taken.append(body)
        else:
            assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
            assert store.refusal == "the broker's disk is full"
    disk.write_error = None
    store.tick(NOW + 100)
    assert store.refusal is None
    store.close()

    assert len(taken) >= 30 - 4 * len(fails)
    reader = StoreReader(root, StoreConfig(SMALL.settings))
    assert [message.body for message in reader.messages()] == taken
    assert findings(root, StoreConfig(SMALL.settings)) == []
    with opened(root) as again:
        assert [
            one.body for number in range(30) for one in again.find("TopicTest", f"k{number}", 0, 1 << 60, 9)
        ] == taken


# Several messages in one write


def append_each(store: MessageStore, messages: Sequence[NewMessage], now: int) -> list[AppendResult]:
    """Store messages together that have everything in common but what is their own."""
    results = []
    for _, same in itertools.groupby(messages, lambda one: (one.sys_flag, one.prepared_transaction_offset)):
        run = [*same]
        elements = [BatchElement(one.flag, one.body, one.properties, one.born_timestamp) for one in run]
        common = dataclasses.replace(run[0], flag=0, body=b"", properties=b"", born_timestamp=0)
        results += store.append_each(common, elements, [one.pairs for one in run], now)
    return results


usual = st.builds(
    lambda body, pairs, born: new_message(body=body, pairs=pairs, born_timestamp=born),
    st.sampled_from([b"", b"body", bytes(300), bytes(700)]),
    st.sampled_from([{}, {"KEYS": "a b", "TAGS": "t"}, {"WAIT": "false"}]),
    st.integers(0, NOW),
)
unusual_fields: list[dict[str, Any]] = [
    {"body": bytes(4000)},
    {"body": bytes(5000)},
    {"pairs": {"INNER_NUM": "2"}},
    {"pairs": {"INNER_MULTI_DISPATCH": "%LMQ%one"}},
    {"pairs": {"long": "x" * 32_800}},
    {"pairs": {"DELAY": "not a number"}},
    {"sys_flag": commit_log.TRANSACTION_PREPARED},
    {"sys_flag": commit_log.TRANSACTION_ROLLBACK},
    {"sys_flag": commit_log.INNER_BATCH},
    {"queue_id": 1},
    {"queue_id": 1 << 40},
    {"flag": 1 << 40},
    {"born_timestamp": 1 << 63},
    {"prepared_transaction_offset": 7},
]
unusual = st.sampled_from(unusual_fields).map(lambda given: new_message(**given))
several = st.lists(st.integers(0, 9).flatmap(lambda n: unusual if n == 0 else usual), min_size=1, max_size=6)


@given(
    runs=st.lists(several, max_size=8),
    topic=st.sampled_from(["TopicTest", "TopicTest", "SCHEDULE_TOPIC_XXXX"]),
    given_settings=st.sampled_from(
        [
            {},
            {"flushDiskType": "SYNC_FLUSH"},
            {"enabledAppendPropCRC": "true"},
            {"enableLmq": "true", "enableMultiDispatch": "true"},
            {"maxMessageSize": "600"},
        ]
    ),
)
@example(
    [[new_message()], [new_message(), new_message(pairs={"INNER_MULTI_DISPATCH": "%LMQ%one"})]],
    "TopicTest",
    {"enableLmq": "true", "enableMultiDispatch": "true"},
)
@example([[new_message()], [new_message(), new_message(pairs={"DELAY": "not a number"})]], "SCHEDULE_TOPIC_XXXX", {})
@example([[new_message()], [new_message(), new_message(body=bytes(700))]], "TopicTest", {"maxMessageSize": "600"})
@example([[new_message()], *[[new_message(body=bytes(700))] * 3] * 3], "TopicTest", {})
@settings(max_examples=150, deadline=None)
def test_messages_that_are_stored_together_are_stored_as_one_by_one(
    tmp_path_factory: pytest.TempPathFactory,
    runs: list[list[NewMessage]],
    topic: str,
    given_settings: dict[str, str],
) -> None:
    root = tmp_path_factory.mktemp("stores")
    with (
        opened(root / "together", settings=given_settings) as together,
        opened(root / "apart", settings=given_settings) as apart,
    ):
        for run in runs:
            for queue_id in {message.queue_id for message in run}:
                of_queue = [
                    dataclasses.replace(message, topic=topic) for message in run if message.queue_id == queue_id
                ]
                copies = [dataclasses.replace(message) for message in of_queue]
                assert append_each(together, of_queue, NOW) == [apart.append(message, NOW) for message in copies]
    one, other = snapshot(root / "together"), snapshot(root / "apart")
    assert {path: state[:2] for path, state in one.items()} == {path: state[:2] for path, state in other.items()}


@given(fails=st.sets(st.integers(0, 12), max_size=5), size=st.integers(1, 6))
@settings(deadline=None)
def test_of_messages_that_a_full_disk_does_not_take_together_none_is_stored(
    tmp_path_factory: pytest.TempPathFactory, fails: set[int], size: int
) -> None:
    root, disk = tmp_path_factory.mktemp("store"), _FailingDisk()
    store = MessageStore(root, StoreConfig(SMALL.settings), now=NOW, disk=disk, usage=half_full)
    store.append(new_message(), NOW)  # its queue exists
    taken = [b"body"]
    for number in range(12):
        disk.write_error = DiskFullError("no space left") if number in fails else None
        store.tick(NOW + number)
        bodies = [f"{number} {place}".encode() * 30 for place in range(size)]
        results = append_each(store, [new_message(body=body) for body in bodies], NOW + number)
        taken += [body for body, one in zip(bodies, results, strict=True) if one.status is PutStatus.PUT_OK]
        assert {one.status for one in results} <= {PutStatus.PUT_OK, PutStatus.SERVICE_NOT_AVAILABLE}
    disk.write_error = None
    store.tick(NOW + 100)
    store.close()

    assert len(taken) > 1 or len(fails) > 3
    assert [one.body for one in StoreReader(root, StoreConfig(SMALL.settings)).messages()] == taken
    assert findings(root, StoreConfig(SMALL.settings)) == []


def test_what_only_copies_a_log_takes_no_messages_together_either(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        store.append(new_message(), NOW)
        store.take_only_copies()
        refused = append_each(store, [new_message()] * 2, NOW)
        assert [one.status for one in refused] == [PutStatus.SERVICE_NOT_AVAILABLE] * 2
        store.take_messages()
        assert [one.queue_offset for one in append_each(store, [new_message(), new_message()], NOW)] == [1, 2]


# Opening and closing


def test_a_store_is_open_in_one_place_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path / "store"), pytest.raises(StoreInUseError), opened(tmp_path / "store"):
        pass
    with opened(tmp_path / "store"):
        assert (tmp_path / "store" / "lock").read_bytes() == b"lock"
        assert (tmp_path / "store" / "abort").read_text() == f"{os.getpid():<10} mqtool\n"
    assert not (tmp_path / "store" / "abort").exists()


# As Java's FileChannel.tryLock: an exclusive lock on the first byte, or none.
LOCKER = """
import fcntl, os, sys
file = open(sys.argv[1], "r+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
    print("held", flush=True)
except OSError:
    print("refused", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def locker(root: Path) -> Iterator[str]:
    """Let another process try for the lock, and give what it says."""
    command = [sys.executable, "-c", LOCKER, str(root / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate("")


def test_a_running_broker_keeps_us_out_and_we_it(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with opened(root), locker(root) as answer:
        assert answer == "refused"
    with locker(root) as answer:
        assert answer == "held"
        with pytest.raises(StoreInUseError), opened(root):
            pass
        assert not (root / "abort").exists()
    with opened(root):
        pass


def test_no_store_is_begun_in_the_log_of_another(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    before = snapshot(store)

    with pytest.raises(UsageError, match=f"is only the log of a store: give the store, {store}"):
        MessageStore(store / "commitlog", now=NOW)

    assert snapshot(store) == before


@pytest.mark.parametrize("name", [name for name in GOLDEN_NAMES if name.endswith("kill")])
def test_a_store_whose_broker_was_killed_must_be_recovered_first(name: str, tmp_path: Path) -> None:
    store = copy_of(name, tmp_path)
    before = snapshot(store)

    with pytest.raises(RecoveryNeededError):
        MessageStore(store, StoreConfig(settings_of(name)), now=NOW)

    assert {path: state[:2] for path, state in snapshot(store).items()} == {
        path: state[:2] for path, state in before.items()
    }


CONTINUED = [
    name for name in GOLDEN_NAMES if name.endswith("clean") and not name.startswith(("dledger", "rocksdb", "ext"))
]


@pytest.mark.parametrize("name", CONTINUED)
def test_a_store_that_a_broker_closed_is_continued(name: str, tmp_path: Path) -> None:
    root = copy_of(name, tmp_path)
    config = StoreConfig(settings_of(name))
    before = [message.position for message in StoreReader(root, config).messages()]
    ends = {key: queue.max_offset() for key, queue in StoreReader(root, config).consume_queues.items()}
    last = manifest(name)["messages"][-1]["store_timestamp"]

    with contextlib.closing(MessageStore(root, config, now=last, usage=half_full)) as store:
        results = [
            store.append(new_message(topic, body=bytes(500), queue_id=queue_id, pairs={"KEYS": "new"}), last + 1)
            for topic, queue_id in ends
            if not topic.startswith("%LMQ%")
        ]
        assert [one.queue_offset for one in results] == [
            end for (topic, _), end in ends.items() if not topic.startswith("%LMQ%")
        ]

    assert [message.position for message in StoreReader(root, config).messages()] == [
        *before,
        *(one.physical_offsets[0] for one in results),
    ]
    assert [one for one in findings(root, config) if one not in findings(golden_store(name), config)] == []


# What it takes


def _resources(root: Path) -> tuple[int, int]:
    """Return how many files below a folder this process has open, and how many it has mapped."""
    links = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sum(link.startswith(f"{root}/") for link in links), sum(f" {root}/" in line for line in maps)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux tells what a process has open")
def test_hundreds_of_segments_and_queues_take_few_files_and_maps_and_none_when_closed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with opened(root) as store, opened(tmp_path / "other") as other:
        results = append_all(store, [new_message(body=bytes(900), queue_id=number % 300) for number in range(1500)])
        append_all(other, [new_message()])
        store.tick(NOW)
        store.flush()
        store.tick(NOW)
        assert len(store.log.segments) > 300
        view = store.log.record(0)
        for result in results:
            assert len(store.log.record(result.physical_offsets[0])) == result.end_offset - result.physical_offsets[0]

        for key in store.queues():
            queue = store.queue(*key)
            assert queue is not None
            assert len(queue.units(0, 5)) == 5

        files, maps = _resources(root)
        assert files <= 64 + 8 + 3  # of queues; behind maps; of log and index, the lock
        assert maps <= 8 + 1
        assert bytes(view) == bytes(store.log.record(0))
    assert bytes(view[-4:])  # who still reads may go on
    del view

    assert _resources(root) == (0, 0)
    assert _resources(tmp_path / "other") == (0, 0)


def test_a_message_of_many_keys_makes_as_much_work_as_many_messages(tmp_path: Path) -> None:
    many = " ".join(str(number) for number in range(6000))
    with opened(tmp_path, settings={"mappedFileSizeCommitLog": str(1 << 20)}) as store:
        for _ in range(100):
            store.append(new_message(pairs={"KEYS": "a b c"}), NOW)
        assert not store.has_much_to_write

        store.append(new_message(pairs={"KEYS": many}), NOW)
        assert store.has_much_to_write

        store.write_some_units()
        assert not store.has_much_to_write


def test_messages_are_in_their_queues_before_any_tick(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        append_all(store, [new_message(body=f"{number}".encode(), pairs={"KEYS": "k"}) for number in range(23)])

        queue = store.queue("TopicTest", 0)
        assert queue is not None
        units = queue.units(0, 100)
        assert [store.log.record(unit.physical_offset)[88 : 88 + 1].tobytes() for unit in units[:10]] == [
            f"{number}".encode() for number in range(10)
        ]
        assert queue.units(22, 100) == units[22:]
        assert queue.units(23, 100) == []
        assert [one.body for one in store.find("TopicTest", "k", 0, 1 << 60, 3)] == [b"22", b"21", b"20"]
        assert not (tmp_path / "store" / "consumequeue").exists()


@given(times=st.lists(st.integers(0, 12), min_size=1, max_size=30).map(sorted), asked=st.integers(-2, 14))
def test_a_time_leads_to_the_first_message_or_the_last_before_it(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], asked: int
) -> None:
    with opened(tmp_path_factory.mktemp("store")) as store:
        for number, moment in enumerate(times):
            store.append(new_message(), NOW + moment)
            if number == 11:
                store.tick(NOW)
        queue = store.queue("TopicTest", 0)
        assert queue is not None

        lower = store.offset_at(queue, NOW + asked)
        upper = store.offset_at(queue, NOW + asked, Boundary.UPPER)

    assert lower == bisect.bisect_left(times, asked)
    assert upper == max(0, bisect.bisect_right(times, asked) - 1)


# Queues with an extension


def _extended(tmp_path: Path) -> tuple[Path, StoreConfig]:
    return copy_of("ext-533-clean", tmp_path), StoreConfig(settings_of("ext-533-clean"))


def test_units_of_an_extended_queue_have_the_tags_codes_of_their_messages(tmp_path: Path) -> None:
    root, config = _extended(tmp_path)
    later = manifest("ext-533-clean")["messages"][-1]["store_timestamp"] + 1
    with contextlib.closing(MessageStore(root, config, now=later, usage=half_full)) as store:
        for queue_id in (0, 1):
            message = new_message("Ext", queue_id=queue_id, pairs={"TAGS": "new"})
            assert store.append(message, later).status is PutStatus.PUT_OK
        units = [unit for key in store.queues() for unit in units_of(store, key)]
        tags = [parse_message(store.log.record(unit.physical_offset)).properties for unit in units]

    assert len(units) == len(manifest("ext-533-clean")["messages"]) + 2
    found = [parse_properties(text).get("TAGS", "").encode() for text in tags]
    assert [unit.tags_code & 0xFFFFFFFF for unit in units] == [plain.java_hash(tag, 0, len(tag), 0) for tag in found]
    assert {one.code for one in verify_store(StoreReader(root, config))} <= {"CONFIG-NO-QUEUE"}


def test_files_of_an_extension_go_when_no_unit_points_to_them(tmp_path: Path) -> None:
    root, config = _extended(tmp_path)
    folder = root / "consumequeue_ext" / "Ext" / "1"
    with contextlib.closing(MessageStore(root, config, now=NOW, usage=half_full)) as store:
        queue = store.queue("Ext", 1)
        assert queue
        before = sorted(file.name for file in folder.iterdir())
        for remove in queue.remove_expired(units_of(store, ("Ext", 1))[-1].physical_offset):
            remove()
        after = sorted(file.name for file in folder.iterdir())
        delete_topic(store, "Ext")

    assert before == ["00000000000000000000", "00000000000000002048"]
    assert after == before[1:]
    assert not (root / "consumequeue_ext" / "Ext").exists()


def test_a_segment_that_was_made_ahead_is_used(tmp_path: Path) -> None:
    size = int(SMALL.settings["mappedFileSizeCommitLog"])
    with opened(tmp_path / "store") as store:
        append_all(store, [new_message(body=bytes(size // 3))])
    (tmp_path / "store" / "commitlog" / f"{size:020}").write_bytes(bytes(size))

    with opened(tmp_path / "store") as store:
        append_all(store, [new_message(body=bytes(size // 3)) for _ in range(7)])
        starts = sorted(store.log.segments)

    assert starts == [0, size, 2 * size, 3 * size]
    findings = verify_store(StoreReader(tmp_path / "store", StoreConfig(SMALL.settings)))
    assert {one.code for one in findings} == {"CONFIG-MISSING"}


@given(sizes=st.lists(st.integers(1, 3700), max_size=40), segment=st.sampled_from([4096, 4097]))
def test_the_next_segment_is_asked_for_with_the_message_that_leaves_less_than_half_of_one(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], segment: int
) -> None:
    asked: list[int] = []
    root = tmp_path_factory.mktemp("store")
    with opened(root, settings={"mappedFileSizeCommitLog": str(segment)}) as store:
        store.log.on_little_room = lambda: asked.append(store.log.end_offset)
        due, last = [], 0
        for size in sizes:
            end = store.append(new_message(body=bytes(size)), NOW).end_offset
            is_new = end // segment != last // segment
            if 2 * (end % segment) >= segment and (is_new or 2 * (last % segment) < segment):
                due.append(end)
            last = end
            store.make_files()
            assert not store.wants_files

    assert asked == due


@pytest.mark.parametrize("is_in_thread", [True, False])
def test_a_segment_that_could_not_be_made_is_made_at_the_next_try(
    is_in_thread: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = int(SMALL.settings["mappedFileSizeCommitLog"])
    message = new_message(body=bytes(size * 2 // 3))
    with opened(tmp_path / "store") as store:
        append_all(store, [message])
        fail_once(monkeypatch, "ftruncate", errno.ENOSPC)
        if is_in_thread:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(store.make_files).result()
                assert store.wants_files
                pool.submit(store.make_files).result()
            assert not store.wants_files
        else:
            assert store.append(message, NOW).status is PutStatus.SERVICE_NOT_AVAILABLE
            store.tick(NOW)
        append_all(store, [message])
        starts = sorted(store.log.segments)

    assert starts == [0, size]
    assert findings(tmp_path / "store", StoreConfig(SMALL.settings)) == []


@pytest.mark.parametrize("is_in_thread", [True, False])
def test_a_queue_file_that_could_not_be_made_is_made_at_the_next_try(
    is_in_thread: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store") as store:
        append_all(store, [new_message()])
        store.write_units()
        store.makes_aside = is_in_thread
        append_all(store, [new_message(queue_id=1)])
        fail_once(monkeypatch, "ftruncate", errno.ENOSPC)
        if is_in_thread:
            store.write_some_units()
            with ThreadPoolExecutor(1) as pool:
                pool.submit(store.make_files).result()
        store.tick(NOW)
        assert store.refusal == "the broker's disk is full"
        for _ in range(2):
            store.tick(NOW)
            store.make_files()
        assert store.refusal is None

    assert findings(tmp_path / "store", StoreConfig(SMALL.settings)) == []


@settings(max_examples=60)
@given(
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 5000)), min_size=1, max_size=12),
    places=st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 6000)), min_size=1, max_size=12),
)
def test_what_is_read_of_a_log_is_what_is_in_its_files(
    steps: list[tuple[bool, int]], places: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    size = 1 << 14
    log = LiveLog(Disk(), [tmp_path_factory.mktemp("log")], size, CommitLog(()))
    for number, (is_cut, much) in enumerate(steps):
        if is_cut:
            log.cut(max(0, log.end_offset - much))
        else:
            log.write_at(log.end_offset, bytes([number + 1]) * much)
        for at, most in places:
            start = at // size * size
            segment = log.segments.get(start)
            stored = segment.path.read_bytes() if segment else b""
            assert log.read(at, most) == stored[at - start :][:most]
    log.close()


def test_who_asks_while_told_that_the_log_grows_is_told_of_the_next_write_too(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        told: list[int] = []

        def grown() -> None:
            told.append(store.end_offset)
            store.log.tell_of_growth(grown)

        store.log.tell_of_growth(grown)
        ends = []
        for _ in range(5):
            store.append(new_message(), NOW)
            ends.append(store.end_offset)

    assert told == ends
