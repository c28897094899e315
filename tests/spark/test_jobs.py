"""The jobs on Spark itself, held against the commands that answer the same on one machine."""

import collections
import dataclasses
import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mqtool.commands.spark import _check_matched
from mqtool.engine.repair.compare.keys import Messages, compare_keys
from mqtool.engine.repair.rebuild.plan import build, losses_of
from mqtool.engine.repair.verify.store import Level, verify_store
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.queue_view import queue_keys
from mqtool.engine.store.reader import StoreReader
from mqtool.engine.store.search import Query, Search
from mqtool.engine.store.stats import KEYS, By, Selection, count_messages
from mqtool.errors import BadDataError, NotFoundError, Status
from mqtool.spark import compare, export, find, offsets, rebuild, stats, verify
from mqtool.spark.stores import Store, find_stores
from tests.commands.running import run
from tests.damage import cases
from tests.golden import GOLDEN_NAMES, copy_of, golden_store, manifest
from tests.spark.session import session

pytestmark = [
    pytest.mark.java,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]

SMALL = 64 << 10


@pytest.fixture
def spark() -> Any:
    return session()


def golden(name: str) -> Store:
    (store,) = find_stores([str(golden_store(name))], {})
    return store


def findings_of(rows: list[Any]) -> "collections.Counter[tuple[str, str]]":
    return collections.Counter((row["store"], repr(verify.finding_of(row.asDict()))) for row in rows)


def wanted_of(stores: list[Store]) -> "collections.Counter[tuple[str, str]]":
    found = ((store.path, repr(one)) for store in stores for one in verify_store(store.open(), Level.FULL))
    return collections.Counter(found)


def test_findings_of_all_golden_stores_are_those_of_verify(spark: Any) -> None:
    stores = [golden(name) for name in GOLDEN_NAMES]

    rows = verify.findings(spark, stores, Level.FULL, 1 << 30).collect()

    assert findings_of(rows) == wanted_of(stores)


def test_findings_of_damaged_stores_are_those_of_verify(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqtool.spark.verify.FAN", 2)  # a tree of some levels
    stores = [Store(str(case.store(tmp_path / str(number)))) for number, case in enumerate(cases())]

    rows = verify.findings(spark, stores, Level.FULL, SMALL).collect()

    assert findings_of(rows) == wanted_of(stores)


@pytest.mark.parametrize("by", [By.TOPIC, By.QUEUE, By.HOUR])
def test_counts_are_those_of_stats(spark: Any, by: By) -> None:
    store = golden("mixed-533-clean")
    reader = store.open()
    wanted = count_messages(reader, by, Selection(), 0, reader.commit_log.end_offset).tally.groups

    rows = stats.counts(spark, [store], by, Selection(), SMALL).collect()

    found = {tuple(row[name] for name in KEYS[by]): row for row in rows if row["records"]}
    assert {key: tuple(row[field.name] for field in dataclasses.fields(wanted[key])) for key, row in found.items()} == {
        key: dataclasses.astuple(count) for key, count in wanted.items()
    }
    if by is By.QUEUE:
        assert {(row["min_offset"], row["missing"], row["repeated"]) for row in found.values()} == {(0, 0, 0)}


@pytest.mark.parametrize("by", [By.TOPIC, By.QUEUE])
def test_counts_tell_which_patterns_something_is_called_by(spark: Any, by: By) -> None:
    selection = Selection(("pay_*", "nosuch"), ("0", "77"), ("Tag*", "nosuch"))

    rows = stats.counts(spark, [golden("mixed-533-clean")], by, selection, SMALL).collect()

    matched = {name for row in rows for name in row["matched"]}
    assert matched == {"topics pay_*", "queues 0", "tags Tag*"}
    assert [row["topic"] for row in rows if row["records"]] == ["pay_events"]
    with pytest.raises(NotFoundError, match="no topic in this part of the log matches nosuch"):
        _check_matched(matched, selection)
    _check_matched(matched, Selection(("pay_*",), ("0",), ("Tag*",)))


@pytest.mark.parametrize("use_index", [True, False])
def test_what_find_finds_is_found(spark: Any, use_index: bool) -> None:
    store = golden("mixed-533-clean")
    some = Search(store.open(), Query(texts=("delta15",))).messages()
    wanted = [message.position for message in some]
    (unique_key,) = {message.unique_key for message in Search(store.open(), Query(keys=("order-4106",))).messages()}

    for query, positions in ((Query(texts=("delta15",)), wanted), (Query(keys=(unique_key or "",)), [0])):
        planned = find.plan([(store, query)], SMALL, use_index)
        found, observed = find.messages(spark, planned.items)
        rows = found.collect()
        assert sorted(row["position"] for row in rows) == positions
        assert observed.get == {"found": len(positions), "unread": 0, "astray": 0}
        found, observed = find.messages(spark, planned.items)
        assert [row["position"] for row in found.orderBy("store", "position").limit(1).collect()] == positions[:1]
        assert observed.get["found"] == len(positions)  # however few are shown
        assert {row["unique_key"] for row in rows if row["position"] == 0} == {unique_key}


def test_what_the_index_names_and_the_log_shows_is_found_once(spark: Any, tmp_path: Path) -> None:
    copy = copy_of("mixed-533-clean", tmp_path)
    files = sorted((copy / "index").iterdir())
    files[-1].unlink()
    first = (copy / "commitlog" / "00000000000000000000").open("r+b")
    with first as log:  # a record that a scan passes over, and an entry knows
        log.write(b"\0\0\0\1")
    store = Store(str(copy))
    keys = tuple(one["uniq_key"] for one in manifest("mixed-533-clean")["messages"] if one["uniq_key"])
    query = Query(keys=keys)

    planned = find.plan([(store, query)], SMALL, True)
    found, observed = find.messages(spark, planned.items)

    wanted = [message.position for message in Search(store.open(), query).messages()]
    assert any(item.offsets for item in planned.items)
    assert any(item.part for item in planned.items)
    assert sorted(row["position"] for row in found.collect()) == wanted
    assert observed.get["found"] == len(wanted)


def test_an_index_entry_that_leads_to_no_sound_message_is_counted_as_by_the_command(spark: Any, tmp_path: Path) -> None:
    copy = copy_of("mixed-533-clean", tmp_path)
    damaged = next(one for one in manifest("mixed-533-clean")["messages"] if one["uniq_key"] and one["phy"])
    (copy / "commitlog" / f"{131_072:020}").unlink()
    lost = next(one for one in manifest("mixed-533-clean")["messages"] if one["phy"] >= 131_072)
    with (copy / "commitlog" / f"{0:020}").open("r+b") as log:
        log.seek(damaged["phy"])
        log.write(bytes(8))

    for message in (lost, damaged):
        search = Search(Store(str(copy)).open(), Query(keys=(message["uniq_key"],)))
        assert list(search.messages()) == []
        planned = find.plan([(Store(str(copy)), search.query)], SMALL, True)
        rows, observed = find.messages(spark, planned.items)
        assert rows.collect() == []
        assert observed.get == {"found": 0, "unread": len(search.gaps), "astray": 1}
        assert search.unread_count == 1


def test_a_store_is_rebuilt_byte_for_byte(spark: Any, tmp_path: Path) -> None:
    store = golden("mixed-533-clean")
    build(store.open(), tmp_path / "one", Disk())

    rebuild.run(
        spark, store, tmp_path / "two", queues=True, index=True, topics=None, version=None, partition_size=SMALL
    )

    def files(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    assert files(tmp_path / "two") == files(tmp_path / "one")


def test_a_rebuild_of_a_log_that_lacks_messages_tells_the_same_losses(spark: Any, tmp_path: Path) -> None:
    case = next(case for case in cases() if case.name == "mixed-533-clean/middle-segment-missing")
    (store,) = find_stores([str(case.store(tmp_path))], {})
    one = build(store.open(), tmp_path / "one", Disk(), index=False)

    two = rebuild.run(
        spark, store, tmp_path / "two", queues=True, index=False, topics=None, version=None, partition_size=SMALL
    )

    assert two.gaps == one.gaps
    losses = losses_of(store.open(), two, None)
    assert losses == losses_of(store.open(), one, None)
    assert losses


def test_exported_messages_are_those_of_the_store(spark: Any, tmp_path: Path) -> None:
    store = golden("mixed-533-clean")
    chosen = export.ExportSelection(topics=frozenset(["OrderEvents", "log-x"]))

    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        named = dataclasses.replace(store, settings=(("brokerName", "b"), ("namesrvAddr", "127.0.0.1:9876")))
        done = export.run(spark, [named], tmp_path / "out", chosen, SMALL)
        assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")

    wanted = [one for one in manifest("mixed-533-clean")["messages"] if one["topic"] in ("OrderEvents", "log-x")]
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert (done.messages, done.damaged) == (len(wanted), 0)
    assert sorted((row["physical_offset"], row["topic"], row["unique_key"]) for row in rows) == sorted(
        (one["phy"], one["topic"], one["uniq_key"]) for one in wanted
    )
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()} == {
        "export_topic=OrderEvents", "export_topic=log-x",
    }  # fmt: skip
    dates = {
        datetime.datetime.fromtimestamp(one["store_timestamp"] / 1000, datetime.UTC).date().isoformat()
        for one in wanted
    }
    assert {path.name for path in (tmp_path / "out").glob("*/*")} == {f"store_date={date}" for date in dates}


def test_an_export_has_one_file_for_each_store_topic_and_day_in_the_order_of_the_log(
    spark: Any, tmp_path: Path
) -> None:
    names = ("mixed-533-clean", "mixed-550-clean")

    done = export.run(spark, [golden(name) for name in names], tmp_path / "out", export.ExportSelection(), SMALL)

    found = collections.Counter[tuple[tuple[int, str], ...]]()
    for file in (tmp_path / "out").rglob("*.parquet"):
        rows = pq.ParquetFile(file).read(["physical_offset", "unique_key", "topic", "store_timestamp"]).to_pylist()
        assert len({(row["topic"], row["store_timestamp"] // 86_400_000) for row in rows}) == 1
        found[tuple((row["physical_offset"], row["unique_key"]) for row in rows)] += 1
    wanted = collections.defaultdict[Any, list[tuple[int, str]]](list)
    for name in names:
        for one in sorted(manifest(name)["messages"], key=lambda one: one["phy"]):
            wanted[name, one["topic"], one["store_timestamp"] // 86_400_000].append((one["phy"], one["uniq_key"]))
    assert found == collections.Counter(map(tuple, wanted.values()))
    assert done.messages == sum(map(len, wanted.values()))


@pytest.mark.parametrize("name", ["topic-length", "magic-blank", "middle-segment-missing", "body-byte-first-segment"])
def test_an_export_of_a_part_counts_the_damage_that_may_be_in_it(spark: Any, tmp_path: Path, name: str) -> None:
    case = next(case for case in cases() if case.name.endswith(f"/{name}"))
    root = case.store(tmp_path)
    messages = manifest(case.base)["messages"]
    topics = sorted({one["topic"] for one in messages})
    last = max(one["store_timestamp"] for one in messages)
    chosen = [
        (f"--topic {topic}", export.ExportSelection(topics=frozenset([topic]))) for topic in (topics[0], topics[-1])
    ]
    chosen += [
        (f"--since {last + 1}", export.ExportSelection(since=last + 1)),
        ("--from 0 --to 80000", export.ExportSelection(start=0, stop=80_000)),
        ("--from 80000", export.ExportSelection(start=80_000)),
    ]

    for number, (words, selection) in enumerate(chosen):
        one = run("export", "-s", root, *words.split())
        done = export.run(spark, [Store(str(root))], tmp_path / str(number), selection, 1 << 20)
        assert (done.messages, done.damaged > 0) == (len(one.rows), one.status == Status.DAMAGE), words


def test_what_a_store_without_a_sound_message_lacks_is_counted(spark: Any, tmp_path: Path) -> None:
    name = "txn-533-clean"
    ruined = copy_of(name, tmp_path)
    messages = manifest(name)["messages"]
    for one in messages:
        with sorted((ruined / "commitlog").iterdir())[one["phy"] // 65_536].open("r+b") as segment:
            segment.seek(one["phy"] % 65_536 + 8)
            segment.write(b"\xff" * 4)  # the CRC of its body

    alone = export.run(spark, [Store(str(ruined))], tmp_path / "alone", export.ExportSelection(), SMALL)
    both = export.run(spark, [Store(str(ruined)), golden(name)], tmp_path / "both", export.ExportSelection(), SMALL)

    assert (alone.messages, alone.damaged) == (0, len(messages))
    assert (both.messages, both.damaged) == (len(messages), len(messages))


def test_topics_are_exported_whose_names_are_too_long_for_a_folder(spark: Any, tmp_path: Path) -> None:
    name = "special-533-clean"

    done = export.run(spark, [golden(name)], tmp_path / "out", export.ExportSelection(), SMALL)

    wanted = sorted((one["topic"], one["phy"]) for one in manifest(name)["messages"])
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((row["topic"], row["physical_offset"]) for row in rows) == wanted
    assert max(len(topic) for topic, _ in wanted) > 200
    assert done.messages == len(wanted)


def test_addresses_that_only_one_store_has_are_told(spark: Any, tmp_path: Path) -> None:
    left = golden("mixed-533-clean")
    copy = copy_of("mixed-533-clean", tmp_path)
    last = max((copy / "commitlog").iterdir(), key=lambda path: (path.stat().st_size > 0, path.name))
    for segment in sorted((copy / "commitlog").iterdir())[:1]:
        segment.unlink()
    assert last.exists()
    lost = [one["phy"] for one in manifest("mixed-533-clean")["messages"] if one["phy"] < 65_536]

    rows = compare.by_offset(spark, left, Store(str(copy)), SMALL)[0].collect()

    assert sorted(row["physical_offset"] for row in rows) == sorted(lost)
    assert {row["side"] for row in rows} == {compare.ONLY_LEFT}
    assert compare.by_offset(spark, left, left, SMALL)[0].count() == 0


def test_places_that_both_stores_have_damaged_are_not_called_the_same_by_offset(spark: Any, tmp_path: Path) -> None:
    left, right = (Store(str(copy_of("mixed-533-clean", tmp_path / name))) for name in ("left", "right"))
    for number, store in enumerate((left, right), 1):
        with (Path(store.path) / "commitlog" / f"{0:020}").open("r+b") as log:
            log.write(bytes([number]) * 2000)

    frame, observations = compare.by_offset(spark, left, right, SMALL)

    assert frame.orderBy("side", "physical_offset").limit(1).collect() == []
    counted = {name: count for one in observations for name, count in one.get.items()}
    assert counted == {"left_unread": 1, "right_unread": 1, "only_left": 0, "only_right": 0, "differs": 0}
    with pytest.raises(BadDataError, match="only one of the two is a DLedger log"):
        compare.by_offset(spark, left, golden("dledger-497-clean"), SMALL)


@pytest.mark.parametrize("name", ["txn-497-clean", "batchcq-533-clean", "retry-533-clean"])
def test_messages_are_compared_as_by_the_command(spark: Any, tmp_path: Path, name: str) -> None:
    left = golden(name)
    copy = copy_of(name, tmp_path)
    bodies = [one for one in manifest(name)["messages"] if one["size"] > 200]
    for number, one in enumerate(bodies[:: len(bodies) // 3]):  # two of one key among them, as keys are shared
        segment = max(path for path in (copy / "commitlog").iterdir() if int(path.name) <= one["phy"])
        with segment.open("r+b") as file:
            file.seek(one["phy"] - int(segment.name) + 100)
            was = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([was ^ (1 << number)]))
    right = Store(str(copy))

    for pair in ((left, right), (right, left), (left, left)):
        told = Messages()
        wanted = [
            (one.side, one.left_count, one.right_count, one.physical_offset, one.topic)
            for one in compare_keys(pair[0].open(), pair[1].open(), told)
        ]
        found, observations = compare.by_key(spark, *pair, SMALL)
        rows = found.collect()
        assert sorted(row[:5] for row in rows) == sorted(wanted)
        readers = dict(zip(("left", "right"), (store.open() for store in pair), strict=True))
        for row in rows:
            message = readers[row["side"]].message_at(row["physical_offset"])
            named = ("queue_id", "queue_offset", "store_timestamp", "unique_key", "keys", "tags", "message_id")
            assert [row[one] for one in named] == [getattr(message, one) for one in named]
        counted = {name: count for one in observations for name, count in one.get.items()}
        assert (counted["only_left"] + counted["only_right"], counted["differs"]) == (len(rows), 0)
        assert (counted["left"], counted["right"]) == (told.left.total(), told.right.total())
        assert [counted[f"{side}_unread"] > 0 for side in ("left", "right")] == [count > 0 for count in told.unreadable]
        assert bool(rows) == (pair[0] != pair[1])


def test_the_lag_of_queues_in_rocksdb_is_told(spark: Any, tmp_path: Path) -> None:
    copy = copy_of("rocksdb-533-clean", tmp_path)
    saved = {"Rocks@GID_r": {"0": 3, "1": 0}}
    (copy / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": saved}))
    ends = collections.Counter(one["queue_id"] for one in manifest("rocksdb-533-clean")["messages"])

    rows = offsets.progress(spark, [Store(str(copy))], SMALL)[0].collect()

    lags = {row["queue_id"]: row["lag"] for row in rows if row["group"] == "GID_r"}
    assert lags == {0: ends[0] - 3, 1: ends[1]}


def test_offsets_lists_what_offset_list_lists(spark: Any, tmp_path: Path) -> None:
    mixed, batches, rocks, damaged = (
        copy_of(name, tmp_path / str(number))
        for number, name in enumerate(("mixed-533-clean", "batchcq-533-clean", "rocksdb-533-clean", "mixed-533-clean"))
    )
    min((mixed / "commitlog").iterdir()).unlink()  # by retention: queues begin with the first message that is left
    topics = {}
    for store in (mixed, batches, rocks):
        topic, queue_id = min(queue_keys(StoreReader(store)))
        topics[topic] = queue_id
        saved = {f"{topic}@GID_read": {str(queue_id): 1, "77": 3}}  # of one queue, and of one that is gone
        if store == batches:
            saved |= {name: {str(queue_id): 2} for name in (topic, f"{topic}@", "@GID_read")}  # no topic or no group
        (store / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": saved}))
    for path in (damaged / "config").glob("consumerOffset.json*"):
        path.write_text("{")
    stores = [Store(str(store)) for store in (mixed, batches, rocks, damaged)]

    frame, observed = offsets.progress(spark, stores, SMALL)
    rows = frame.collect()

    found = {
        (row["store"], row["topic"], row["queue_id"]): (row["min_offset"], row["saved"], row["max_offset"], row["lag"])
        for row in rows
        if row["group"] == "GID_read"
    }
    listed = [(store.path, row) for store in stores[:3] for row in run("offset", "list", "-s", store.path).rows]
    names = ("min_offset", "consumer_offset", "max_offset", "lag")
    assert found == {
        (path, row["topic"], row["queue_id"]): tuple(row[name] for name in names)
        for path, row in listed
        if row["group"] == "GID_read"
    }
    assert {row["queue_id"] for _, row in listed} > {*topics.values(), 77}
    assert any(low > 0 and saved is None and lag == high - low for low, saved, high, lag in found.values())
    assert run("offset", "list", "-s", damaged).status == Status.BAD_DATA
    assert observed.get == {"unread": 1, "left_out": 3}
    plan = frame._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("MapInArrow") == 1  # the log is read once


def test_of_stores_without_any_message_nothing_is_told_and_that_is_counted(spark: Any, tmp_path: Path) -> None:
    one, two = stores = [Store(str(tmp_path / name)) for name in ("one", "two")]
    for store in stores:
        Path(store.path, "commitlog").mkdir(parents=True)
        Path(store.path, "commitlog", f"{0:020}").write_bytes(bytes(SMALL))

    frame, observed = offsets.progress(spark, stores, SMALL)
    assert (frame.collect(), observed.get) == ([], {"unread": 0, "left_out": 0})
    empty = Store(str(tmp_path / "empty"))
    Path(empty.path, "commitlog").mkdir(parents=True)
    for job in (compare.by_key, compare.by_offset):
        for other in (two, empty):
            found, observations = job(spark, other, empty if other is empty else one, SMALL)
            assert found.orderBy("side", "physical_offset").limit(1).collect() == []
            assert {count for seen in observations for count in seen.get.values()} == {0}
    found, observed = find.messages(spark, find.plan([(empty, Query())], SMALL, True).items)
    assert found.orderBy("store").limit(1).collect() == []
    assert observed.get == {"found": 0, "unread": 0, "astray": 0}


def test_progress_is_what_is_saved_and_what_the_log_tells(spark: Any) -> None:
    store = golden("retry-533-clean")
    saved = (store.open().config_table("consumerOffset.json") or {})["offsetTable"]

    rows = offsets.progress(spark, [store], SMALL)[0].collect()

    found = {(f"{row['topic']}@{row['group']}", row["queue_id"]): row for row in rows}
    assert {(name, int(queue_id)): offset for name, queues in saved.items() for queue_id, offset in queues.items()} == {
        place: row["saved"] for place, row in found.items() if row["saved"] is not None and "@SCHEDULE" not in place[0]
    }
    retried = [row for row in rows if row["retried"] is not None]
    assert retried
    # What the log tells is never more than what was consumed.
    assert all(row["at_least"] <= row["max_offset"] for row in rows if row["at_least"] and row["max_offset"])
    assert all(row["retried"] <= row["saved"] for row in retried if row["saved"] is not None)
