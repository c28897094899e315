"""The store of a running broker: its files are those that real brokers write for the same messages."""

import contextlib
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.repair.rebuild import build
from mqtool.engine.repair.verify import verify_store
from mqtool.engine.store.append_result import PutStatus
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.message_store import MessageStore
from mqtool.engine.store.paths import DEFAULT_DELAY_LEVELS, StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import kernels as plain
from mqtool.formats.commit_log import parse_message
from mqtool.formats.properties import parse_properties
from tests import builders
from tests.engine.store.live import ADDED, NOW, SMALL, append_all, half_full, of_draft, of_record, opened
from tests.engine.store.test_dispatch import dispatched
from tests.formats.golden_bytes import queue_units, records
from tests.golden import golden_store, manifest

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


def replayed(name: str, root: Path) -> StoreConfig:
    """Store all messages of a golden store once more, each at its time."""
    config = StoreConfig(settings_of(name))
    batch_topics = {topic for topic, _ in StoreReader(golden_store(name)).batch_consume_queues}
    root.mkdir()
    if "-550-" in name:
        (root / "rocksdbstore").mkdir()
    store = MessageStore(root, config, now=0, usage=half_full, batch_topics=batch_topics)
    for number, (told, record) in enumerate(records(name)):
        message, timestamp = of_record(record, has_crc=name.startswith("propcrc"))
        result = store.append(message, timestamp)
        assert (result.status, result.physical_offsets, result.message_id) == (
            PutStatus.PUT_OK,
            (told["phy"],),
            told["msg_id"],
        )
        if number % 7 == 0:
            store.tick(timestamp)
    store.close()
    return config


@pytest.mark.parametrize("name", REPLAYED)
def test_the_messages_of_a_broker_give_its_files_byte_for_byte(name: str, tmp_path: Path) -> None:
    replayed(name, tmp_path / "store")

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
    config = replayed(name, tmp_path / "store")

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


@given(drafts=drafts)
def test_rebuild_makes_the_same_queues_and_index(
    tmp_path_factory: pytest.TempPathFactory, drafts: list[builders.Draft]
) -> None:
    root = tmp_path_factory.mktemp("store")
    with opened(root / "store", settings=LIGHT) as store:
        append_all(store, [of_draft(draft) for draft in drafts])
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
    config = replayed(name, tmp_path / "store")

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
