"""``mqtool dump``: every kind of file, of sound stores, of sick ones and of one that a broker writes to."""

import base64
import contextlib
import fcntl
import functools
import ipaddress
import os
import re
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqtool.commands._dump import follow, log, queues
from mqtool.commands._dump.request import DumpRequest, Patterns
from mqtool.commands._output import Output
from mqtool.commands.dump import KINDS
from mqtool.engine.store.commit_log import CommitLog
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import Status
from mqtool.formats import consume_queue, index_file, scan, timer
from mqtool.formats import kernels as plain
from tests.builders import Draft, StoreSizes, blank, dledger_entry, lay_out, record, write_store
from tests.commands.running import Ran, run
from tests.damage import DamageCase, apply_ops, cases, cuts, damaged, flips, snapshot
from tests.golden import GOLDEN_NAMES, copy_of, golden_store, manifest

MIXED = "mixed-533-clean"
SAME = (
    *("topic", "queue_id", "queue_offset", "size", "tags", "keys", "sys_flag", "flag", "born_timestamp"),
    *("store_timestamp", "reconsume_times", "body_crc", "properties", "prepared_transaction_offset"),
)
FIELDS = {name: name for name in SAME} | {
    "phy": "physical_offset",
    "magic": "magic_code",
    "msg_id": "message_id",
    "uniq_key": "unique_key",
    "body_len": "body_size",
}
"""The fields of a message by their names in a manifest."""


def dump(kind: str, store: str | Path, *arguments: object) -> Ran:
    return run("dump", kind, "-s", golden_store(store) if isinstance(store, str) else store, *arguments)


def rows(kind: str, store: str | Path, *arguments: object) -> list[dict[str, Any]]:
    ran = dump(kind, store, *arguments)
    assert ran.status == Status.OK, ran.remarks
    return ran.rows


def positions(ran: Ran) -> list[int]:
    return [row["physical_offset"] for row in ran.rows]


def host(text: str) -> tuple[object, str]:
    address, _, port = text.rpartition(":")
    return ipaddress.ip_address(address.strip("[]")), port


Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Run commands in processes of their own, which do not outlive the test."""
    with contextlib.ExitStack() as stack:

        def mqtool(*arguments: object) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "mqtool", *map(str, arguments)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
            stack.enter_context(process)
            stack.callback(_end, process)
            return process

        yield mqtool


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()  # it ends its child too


# Whole stores against what RocketMQ's own classes read.


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_the_messages_of_a_golden_store_are_those_of_its_manifest(name: str) -> None:
    expected = manifest(name)["messages"]

    found = rows("commitlog", name, "--body", "base64")

    assert [row["physical_offset"] for row in found] == [one["phy"] for one in expected]
    for row, one in zip(found, expected, strict=True):
        assert {theirs: row[ours] for theirs, ours in FIELDS.items()} == {name: one.get(name) for name in FIELDS}
        for side in ("born_host", "store_host"):
            assert host(row[side]) == host(one[side])
        body = base64.b64decode(row["body"])
        if "plain_body_len" in one:
            assert (len(body), zlib.crc32(body) & 0x7FFFFFFF) == (one["plain_body_len"], one["plain_body_crc32"])
        elif "body" in one:
            assert row["body"] == one["body"]


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_the_units_of_a_golden_store_are_those_that_java_loads(name: str) -> None:
    expected = {
        (queue["type"], topic, int(queue_id)): queue
        for topic, by_id in manifest(name)["load"]["after_load"]["queues"].items()
        for queue_id, queue in by_id.items()
        if queue["units"]
    }

    found: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    kinds = {"consumequeue": "ConsumeQueue", "batchconsumequeue": "BatchConsumeQueue"}
    if name.startswith("rocksdb"):
        kinds["consumequeue"] = "RocksDBConsumeQueue"
    for kind, theirs in kinds.items():
        ran = dump(kind, name)
        assert ran.status in (Status.OK, Status.NO_INPUT)  # 4.x has no batch queues
        for row in ran.rows:
            found.setdefault((theirs, row["topic"], row["queue_id"]), []).append(row)

    assert found.keys() == expected.keys()
    fields = ("queue_offset", "physical_offset", "size", "tags_code")
    for key, queue in expected.items():
        units = [[row[field] for field in fields] for row in found[key]]
        if key[0] == "BatchConsumeQueue":  # Java listed those of the first file only
            units = units[: len(queue["units"])]
        assert units == [unit[:4] for unit in queue["units"]]
        last = found[key][-1]
        assert last["queue_offset"] + last.get("batch_size", 1) == queue["max"]


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_the_index_of_a_golden_store_is_what_its_header_and_its_chains_say(name: str) -> None:
    expected = [
        (f"index/{one['file']}", one["beginTimestamp"], one["endPhyOffset"], one["hashSlotCount"], one["indexCount"])
        for one in manifest(name)["load"]["after_load"]["index"]
    ]

    headers, entries = rows("indexheader", name), rows("index", name)

    fields = ("file", "begin_timestamp", "end_physical_offset", "slot_count", "entry_count")
    if not manifest(name)["abort"]:  # else a broker makes some of them again
        assert [tuple(row[field] for field in fields) for row in headers] == expected
    messages = {one["phy"] for one in manifest(name)["messages"]}
    for header in headers:
        mine = [row for row in entries if row["file"] == header["file"]]
        assert [row["entry"] for row in mine] == list(range(1, header["entry_count"]))
        newest: dict[int, int] = {}
        for row in mine:
            assert row["previous_entry"] == newest.get(row["slot"], 0)
            newest[row["slot"]] = row["entry"]
        assert len(newest) == header["slot_count"]
        assert {row["physical_offset"] for row in mine} <= messages


@pytest.mark.parametrize("name", ["ext-497-kill", "ext-533-clean"])
def test_each_unit_of_an_extension_is_where_its_queue_says(name: str) -> None:
    units = {(row["topic"], row["queue_id"], row["tags_code"]): row for row in rows("consumequeue", name)}
    messages = {one["phy"]: one for one in manifest(name)["messages"]}

    found = rows("consumequeueext", name)

    assert {(row["topic"], row["queue_id"], row["address"]) for row in found} == units.keys()
    for row in found:
        message = messages[units[row["topic"], row["queue_id"], row["address"]]["physical_offset"]]
        assert row["store_timestamp"] == message["store_timestamp"]
        assert row["tags_code"] == message["tags_code"]
        assert len(bytes.fromhex(row["bit_map"])) == row["bit_map_size"] == row["size"] - 20


@pytest.mark.parametrize("name", ["timer-533-clean", "timer-533-kill", "timer-550-clean"])
def test_the_timer_files_fit_together(name: str) -> None:
    messages = {one["phy"]: one["size"] for one in manifest(name)["messages"]}

    slots, units, (check,) = rows("timerwheel", name), rows("timerlog", name), rows("timercheck", name)

    chains = {row["position"]: row["previous_position"] for row in units}
    for row in units:
        assert messages[row["physical_offset"]] == row["message_size"]
    assert sorted(chains) == [row["position"] for row in units]
    for slot in slots:
        chain = [slot["last_position"]]
        while chain[-1] != slot["first_position"]:
            chain.append(chains[chain[-1]])
    assert check["last_timer_queue_offset"] == len(units)
    assert check["last_read_time"].endswith("Z")


def test_small_files_are_told(tmp_path: Path) -> None:
    (page,) = rows("checkpoint", "special-533-clean")
    loaded = manifest("special-533-clean")["load"]["after_load"]["checkpoint"]
    assert (page["physical_timestamp"], page["index_timestamp"]) == (
        loaded["physicMsgTimestamp"],
        loaded["indexMsgTimestamp"],
    )
    assert rows("abort", MIXED) == [{"file": "abort", "present": False, "process_id": None}]
    assert rows("abort", "timer-533-kill") == [{"file": "abort", "present": True, "process_id": 2963}]
    assert rows("lock", MIXED) == [{"file": "lock", "locked": False, "content": "lock"}]
    (tmp_path / "consumequeue").mkdir()
    for kind in KINDS.keys() - {"abort", "consumequeue"}:
        ran = dump(kind, tmp_path)
        assert (ran.status, ran.output) == (Status.NO_INPUT, ""), kind
        assert re.fullmatch(r"mqtool: .* has no .*\n", ran.remarks)


def test_a_dledger_log_shows_its_entries_and_their_index() -> None:
    expected = [one["phy"] - 48 for one in manifest("dledger-497-clean")["messages"]]

    entries, units = rows("dledger", "dledger-497-clean"), rows("dledgerindex", "dledger-497-clean")

    assert [row["position"] for row in entries] == expected
    fields = ("index", "position", "size", "term", "magic_code")
    assert [[row[name] for name in fields] for row in units] == [[row[name] for name in fields] for row in entries]


# Tables.


def test_tables_are_rows_and_the_rest_is_their_value() -> None:
    found = rows("config", "retry-533-clean")

    by_file: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        by_file.setdefault(row.pop("file"), []).append(row)
    assert {"topic": "Retries", "group": "GID_retry", "queue_id": 1, "consumer_offset": 23} in by_file[
        "config/consumerOffset.json"
    ]
    assert by_file["config/delayOffset.json"] == [{"delay_level": 3, "queue_offset": 9}]
    (topic,) = [row for row in by_file["config/topics.json"] if row["topic"] == "Retries"]
    assert (topic["read_queue_count"], topic["write_queue_count"], topic["perm"]) == (2, 2, 6)
    assert {row["group"] for row in by_file["config/subscriptionGroup.json"]} > {"GID_retry", "GID_retry_all"}
    assert by_file["config/consumerFilter.json"] == [{"value": {"filterDataByTopic": {}}}]
    assert by_file["compaction/position-checkpoint"][0]["value"].keys() >= {"queueOffsetMap"}


def test_a_table_is_named_with_or_without_its_ending_and_selected_from() -> None:
    by_name = rows("config", "retry-533-clean", "consumerOffset.json", "--group", "GID_*y", "--queue", "1")

    assert by_name == rows("config", "retry-533-clean", "consumerOffset", "--group", "GID_retry", "--queue", "1")
    assert [(row["group"], row["queue_id"]) for row in by_name] == [("GID_retry", 1)]
    assert rows("config", "retry-533-clean", "topics.json.bak") != rows("config", "retry-533-clean", "topics.json")
    assert "similar: GID_retry" in dump("config", "retry-533-clean", "--group", "GID_rety").remarks
    unknown = dump("config", "retry-533-clean", "topic")
    assert (unknown.status, unknown.output) == (Status.NO_INPUT, "")
    assert "the tables are" in unknown.remarks
    assert "topics.json" in unknown.remarks
    assert dump("config", "retry-533-clean", "topics", "--group", "x").status == Status.USAGE
    assert dump("config", "retry-533-clean", "-o", "csv").status == Status.USAGE
    assert dump("config", "retry-533-clean", "delayOffset", "-o", "csv").output.splitlines() == [
        "file,delay_level,queue_offset",
        "config/delayOffset.json,3,9",
    ]


def test_a_broken_table_is_shown_from_its_backup(tmp_path: Path) -> None:
    store = copy_of(MIXED, tmp_path)
    (store / "config/topics.json").write_bytes(b'{"topicConfigTable":{"Cut')
    (store / "config/transactionMetrics").write_bytes(b"")
    (store / "config/transactionMetrics.bak").unlink()
    (store / "config/delayOffset.json").write_bytes(b'{"offsetTable":[]}')

    ran = dump("config", store)

    assert ran.status == Status.DAMAGE
    assert "topics.json cannot be read as a table" in ran.remarks
    assert "showing config/topics.json.bak instead" in ran.remarks
    assert "config/transactionMetrics cannot be read" in ran.remarks
    assert {"file": "config/delayOffset.json", "value": {"offsetTable": []}} in ran.rows
    assert "OrderEvents" in [row.get("topic") for row in ran.rows if row["file"] == "config/topics.json.bak"]
    assert dump("config", store, "transactionMetrics").status == Status.BAD_DATA


def test_tables_in_rocksdb_are_shown_like_those_in_files() -> None:
    found = rows("config", "rocksdb-533-clean", "topics")

    assert {row["file"] for row in found} == {"config/topics.json (RocksDB)"}
    assert "Rocks" in [row["topic"] for row in found]


@pytest.mark.parametrize("kind", ["consumequeue", "rocksdbconsumequeue", "config"])
def test_without_the_extra_it_says_what_to_install(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)

    ran = dump(kind, "rocksdb-550-clean")

    assert ran.status == Status.UNAVAILABLE
    assert "pip install 'mqtool[rocksdb]'" in ran.remarks
    assert bool(ran.rows) == (kind == "config")  # the tables in files are shown all the same


# Filters.


def test_messages_are_selected_by_topic_queue_tag_and_key() -> None:
    messages = manifest(MIXED)["messages"]

    def selected(*arguments: object) -> list[int]:
        return positions(dump("commitlog", MIXED, *arguments))

    def expected(test: Any) -> list[int]:
        found = [one["phy"] for one in messages if test(one)]
        assert found
        return found

    assert selected("--topic", "Order*") == expected(lambda one: one["topic"] == "OrderEvents")
    assert selected("--topic", "log-x", "--topic", "pay?events", "--queue", "1") == expected(
        lambda one: one["topic"] == "pay_events" and one["queue_id"] == 1
    )
    assert selected("--tag", "Tag?") == expected(lambda one: re.fullmatch("Tag.", one.get("tags") or ""))
    assert selected("--tag", "标签", "--tag", "TagB || x") == expected(
        lambda one: one.get("tags") in ("标签", "TagB || x")
    )
    assert selected("--key", "user-72") == expected(lambda one: "user-72" in (one.get("keys") or "").split(" "))
    assert selected("--key", "order-4*", "--topic", "OrderEvents") == expected(
        lambda one: (
            one["topic"] == "OrderEvents"
            and any(key.startswith("order-4") for key in (one.get("keys") or "").split(" "))
        )
    )
    unique = messages[7]["uniq_key"]
    assert selected("--key", unique) == [messages[7]["phy"]]


@pytest.mark.parametrize("name", ["many-533-clean", MIXED, "dledger-497-clean"])
def test_a_big_log_goes_over_to_compiled_kernels_and_shows_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[object, ...]] = [
        (),
        ("--topic", "*"),
        ("--tag", "Tag?"),
        ("--key", "*order*"),
        ("--queue", 1),
    ]
    expected = [positions(dump("commitlog", name, *call)) for call in calls]
    monkeypatch.setattr(log, "_FIRST_ROWS", 16)
    monkeypatch.setattr(log, "_PLAIN_ROWS", 32)
    monkeypatch.setattr(scan, "COMPILE_FROM", 8192)
    monkeypatch.setattr(Patterns, "_MAX_NAMES", 20)
    used = set()
    walk = CommitLog.walk

    def spy(self: CommitLog, segment: Any, start: int, stop: int, kernels: Any, limit: int | None = None) -> Any:
        used.add(kernels)
        return walk(self, segment, start, stop, kernels, limit)

    monkeypatch.setattr(CommitLog, "walk", spy)

    assert [positions(dump("commitlog", name, *call)) for call in calls] == expected
    assert used == {plain, scan.compiled_kernels()}


def test_ranges_are_half_open() -> None:
    messages = manifest(MIXED)["messages"]
    starts = [one["phy"] for one in messages]
    times = [one["store_timestamp"] for one in messages]

    for low, high in ((10, 20), (0, 1), (180, 287)):
        stop = starts[high] if high < len(starts) else 1 << 40
        assert positions(dump("commitlog", MIXED, "--from", starts[low], "--to", stop)) == starts[low:high]
        # From the middle of a record on, the next one is the first.
        assert positions(dump("commitlog", MIXED, "--from", starts[low] + 1, "--to", stop)) == starts[low + 1 : high]
    since, until = times[40], times[90]
    assert positions(dump("commitlog", MIXED, "--since", since, "--until", until)) == [
        one["phy"] for one in messages if since <= one["store_timestamp"] < until
    ]
    queue = rows("consumequeue", MIXED, "--topic", "log-x", "--from", 3, "--to", 30)
    assert [row["queue_offset"] for row in queue] == list(range(3, 30))
    entries = rows("index", MIXED, "--from", starts[50], "--to", starts[60])
    assert {row["physical_offset"] for row in entries} <= set(starts[50:60])
    assert entries
    at = messages[200]["store_timestamp"]
    found = {row["physical_offset"] for row in rows("index", MIXED, "--since", at, "--until", at + 1)}
    indexed = {row["physical_offset"] for row in rows("index", MIXED)}
    assert {one["phy"] for one in messages if one["store_timestamp"] == at} & indexed <= found < indexed


def test_a_record_of_an_inner_batch_belongs_to_every_offset_in_it() -> None:
    units = rows("batchconsumequeue", "batchcq-533-clean", "--topic", "Inner", "--queue", "0")
    assert (units[0]["queue_offset"], units[0]["batch_size"]) == (0, 5)

    assert rows("batchconsumequeue", "batchcq-533-clean", "--topic", "Inner", "--queue", 0, "--from", 4) == units
    assert rows("batchconsumequeue", "batchcq-533-clean", "--topic", "Inner", "--queue", 0, "--from", 5) == units[1:]
    since = units[3]["store_timestamp"]
    later = rows("batchconsumequeue", "batchcq-533-clean", "--topic", "Inner", "--queue", 0, "--since", since)
    assert later == units[3:]


def test_the_limit_ends_it() -> None:
    for kind, store in (("commitlog", MIXED), ("consumequeue", MIXED), ("index", MIXED), ("config", MIXED)):
        assert rows(kind, store, "--limit", 3) == rows(kind, store)[:3]
        assert rows(kind, store, "--limit", 0) == []


def test_nothing_found_is_no_error_but_said() -> None:
    for kind in ("commitlog", "consumequeue", "index"):
        ran = dump(kind, MIXED, "--from", 1 << 40)
        assert (ran.status, ran.output) == (Status.OK, "")
        assert "no record matches" in ran.remarks


def test_a_pattern_that_matches_nothing_is_an_error_with_near_names(tmp_path: Path) -> None:
    store = copy_of(MIXED, tmp_path)
    asked = {
        ("commitlog", "--topic", "OrderEvnts"): "no topic matches OrderEvnts; similar: OrderEvents",
        ("consumequeue", "--topic", "OrderEvnts"): "no topic matches OrderEvnts; similar: OrderEvents",
        ("consumequeue", "--queue", "9"): "no queue id matches 9; similar: 0, 1, 2, 3",
        ("commitlog", "--tag", "TagZ"): "no tag of the messages read matches TagZ; similar: Tag",
        ("commitlog", "--key", "order-41066"): "matches order-41066; similar: order-4106",
        ("commitlog", "--topic", "log-x", "--queue", "7"): "no queue id of the messages read matches 7; similar: 0",
    }

    for arguments, sentence in asked.items():
        ran = run("dump", arguments[0], "-s", store, *arguments[1:])
        assert (ran.status, ran.output) == (Status.NO_INPUT, "")
        assert sentence in ran.remarks

    # With nothing but a log the topics are known when it has been read.
    shutil.rmtree(store / "consumequeue")
    shutil.rmtree(store / "config")
    ran = dump("commitlog", store, "--topic", "OrderEvnts")
    assert (ran.status, ran.output) == (Status.NO_INPUT, "")
    assert "no topic of the messages read matches OrderEvnts; similar: OrderEvents" in ran.remarks
    assert positions(dump("commitlog", store, "--topic", "Order*"))


@pytest.mark.parametrize("kind", KINDS)
def test_options_that_mean_nothing_for_a_kind_are_refused(kind: str) -> None:
    values = {
        "topic": "T", "queue": "0", "tag": "t", "key": "k", "group": "g", "from": "0", "to": "1", "since": "0",
        "until": "1", "limit": "1", "body": "hex",
    }  # fmt: skip

    for option, value in values.items():
        if option not in KINDS[kind].options:
            ran = dump(kind, MIXED, f"--{option}", value)
            assert (ran.status, ran.output) == (Status.USAGE, "")
            assert f"--{option} does not apply to dump {kind}; it takes" in ran.remarks
    if "follow" not in KINDS[kind].options:
        assert dump(kind, MIXED, "--follow").status == Status.USAGE
    if "file" not in KINDS[kind].options:
        assert dump(kind, MIXED, "topics").status == Status.USAGE


def test_following_takes_no_end() -> None:
    assert dump("commitlog", MIXED, "--follow", "--until", "2h").status == Status.USAGE
    assert dump("consumequeue", "rocksdb-533-clean", "--follow").status == Status.USAGE


# Single files.


def test_a_lone_file_is_read_like_one_in_its_store(tmp_path: Path) -> None:
    def lone(path: Path) -> Path:
        return Path(shutil.copy(path, tmp_path / path.name))

    mixed, timers = golden_store(MIXED), golden_store("timer-533-clean")
    second = mixed / "commitlog" / f"{65536:020}"
    inside = [row for row in rows("commitlog", MIXED) if 65536 <= row["physical_offset"] < 131072]
    assert rows("commitlog", second) == rows("commitlog", lone(second)) == inside
    unit = mixed / "consumequeue/log-x/0" / f"{800:020}"
    expected = rows("consumequeue", MIXED, "--topic", "log-x", "--from", 40, "--to", 60)
    assert rows("consumequeue", unit) == expected
    assert rows("consumequeue", lone(unit)) == [row | {"topic": None, "queue_id": None} for row in expected]
    assert dump("consumequeue", lone(unit), "--topic", "log-x").status == Status.USAGE
    index = min((mixed / "index").iterdir())
    named = [row for row in rows("index", MIXED) if row["file"].endswith(index.name)]
    assert rows("index", lone(index)) == [row | {"file": index.name} for row in named]
    for kind, path, store in (
        ("checkpoint", mixed / "checkpoint", MIXED),
        ("timerwheel", timers / "timerwheel", "timer-533-clean"),
        ("timerlog", timers / "timerlog" / f"{0:020}", "timer-533-clean"),
        ("timercheck", timers / "config/timercheck", "timer-533-clean"),
        ("batchconsumequeue", golden_store("batchcq-533-clean") / f"batchconsumequeue/Inner/0/{0:020}", ""),
        ("consumequeueext", golden_store("ext-533-clean") / f"consumequeue_ext/Ext/1/{0:020}", ""),
        ("dledger", golden_store("dledger-497-clean") / f"dledger-n0/data/{65536:020}", ""),
    ):
        found = rows(kind, path)
        assert found
        if store:
            assert found == rows(kind, store)[: len(found)]
    offsets = rows("config", mixed / "config/topics.json", "--topic", "OrderEvents")
    assert [row["topic"] for row in offsets] == ["OrderEvents"]


def test_a_file_of_another_name_is_no_commit_log(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")

    ran = dump("commitlog", tmp_path / "notes.txt")

    assert ran.status == Status.NO_INPUT
    assert "is not a segment of a commit log" in ran.remarks


# Damage.


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_a_damaged_store_shows_every_message_that_is_whole(case: DamageCase, tmp_path: Path) -> None:
    store = case.store(tmp_path)
    before = snapshot(store)

    ran = dump("commitlog", store, "--body", "base64")
    others = [dump(kind, store) for kind in ("consumequeue", "index", "config", "checkpoint")]

    assert {one.status for one in others} <= {Status.OK, Status.DAMAGE, Status.BAD_DATA, Status.NO_INPUT}
    assert ran.status in (Status.OK, Status.DAMAGE, Status.NO_INPUT)
    assert snapshot(store) == before
    shown = {row["message_id"]: row for row in ran.rows}
    lost = [row for row in whole_messages(case.base) if shown.get(row["message_id"]) != row]
    assert not [row["physical_offset"] for row in lost if _has_same_bytes(case.base, store, row)]


@functools.cache
def whole_messages(name: str) -> list[dict[str, Any]]:
    return rows("commitlog", name, "--body", "base64")


def _has_same_bytes(name: str, store: Path, row: dict[str, Any]) -> bool:
    """Tell whether a message of a golden store lies in the damaged one too."""
    for file in golden_store(name).glob("commitlog*/*"):
        at = row["physical_offset"] - int(file.name)
        if 0 <= at < file.stat().st_size:
            other = store / file.relative_to(golden_store(name))
            stretch = slice(at, at + row["size"])
            return other.is_file() and other.read_bytes()[stretch] == file.read_bytes()[stretch]
    return False


def test_a_gap_is_remarked_with_its_place_and_what_lies_behind_it_is_shown(tmp_path: Path) -> None:
    store = copy_of(MIXED, tmp_path)
    messages = manifest(MIXED)["messages"]
    lost = messages[5]
    apply_ops(store, [{"op": "zero", "file": f"commitlog/{0:020}", "at": lost["phy"], "len": 8}])

    ran = dump("commitlog", store)

    assert ran.status == Status.DAMAGE
    assert positions(ran) == [one["phy"] for one in messages if one is not lost]
    place = f"commitlog/{0:020}@{lost['phy']}"
    assert f"{lost['size']:,} bytes at {lost['phy']:,} ({place}) are skipped: no record starts there" in ran.remarks
    # The same when the range begins in the gap.
    ran = dump("commitlog", store, "--from", lost["phy"] + 9, "--limit", 1)
    assert f"{lost['size'] - 9:,} bytes at {lost['phy'] + 9:,}" in ran.remarks
    assert positions(ran) == [messages[6]["phy"]]


def test_a_broken_record_is_shown_as_far_as_it_can_be_read(tmp_path: Path) -> None:
    stored = write_store(tmp_path / "s", [Draft(body=b"%d" % number) for number in range(5)], StoreSizes(segment=4096))
    broken = stored[2]
    at = broken.physical_offset + 88 + len(broken.draft.body)
    apply_ops(tmp_path / "s", [{"op": "write", "file": f"commitlog/{0:020}", "at": at, "hex": "7f"}])  # its topic size

    ran = dump("commitlog", tmp_path / "s")

    assert ran.status == Status.DAMAGE
    assert positions(ran) == [one.physical_offset for one in stored]
    assert f"the record at {broken.physical_offset:,} is broken, its topic would extend past its end" in ran.remarks
    filtered = dump("commitlog", tmp_path / "s", "--topic", "TopicTest")
    assert len(filtered.rows) == 4
    assert f"the record at {broken.physical_offset:,} is broken" in filtered.remarks  # it might be of any topic
    assert dump("commitlog", tmp_path / "s", "--limit", 2).status == Status.OK  # it has not come so far
    row = ran.rows[2]
    assert (row["body"], row["topic"], row["store_timestamp"]) == ("2", "", broken.store_timestamp)


def test_a_missing_segment_and_a_missing_queue_file_are_remarked(tmp_path: Path) -> None:
    store = copy_of("many-533-clean", tmp_path)
    lost = sorted((store / "commitlog").iterdir())[3]
    start = int(lost.name)
    lost.unlink()

    ran = dump("commitlog", store)

    assert ran.status == Status.DAMAGE
    assert f"no file holds the 16,384 bytes from {start:,} to {start + 16384:,}" in ran.remarks
    expected = [one["phy"] for one in manifest("many-533-clean")["messages"]]
    assert positions(ran) == [one for one in expected if not start <= one < start + 16384]
    other = copy_of(MIXED, tmp_path)
    (other / "consumequeue/log-x/0" / f"{400:020}").unlink()
    units = dump("consumequeue", other, "--topic", "log-x")
    assert units.status == Status.DAMAGE
    assert f"no file holds the 20 units of log-x 0 before consumequeue/log-x/0/{800:020}" in units.remarks
    assert [row["queue_offset"] for row in units.rows[:22]] == [*range(20), 40, 41]


def test_odd_units_are_left_out_with_a_remark(tmp_path: Path) -> None:
    folder = tmp_path / "consumequeue/T/0"
    folder.mkdir(parents=True)

    def unit(physical_offset: int, size: int, tags_code: int = 0) -> bytes:
        return bytes(
            consume_queue.UNIT.schema.build({"physical_offset": physical_offset, "size": size, "tags_code": tags_code})
        )

    filler = unit(0, consume_queue.PRE_BLANK_SIZE)
    (folder / f"{0:020}").write_bytes(filler * 3 + unit(100, 91) + bytes(20) + unit(282, 91) + bytes(40) + b"\1\2")

    ran = dump("consumequeue", tmp_path)

    assert ran.status == Status.DAMAGE
    assert [(row["queue_offset"], row["physical_offset"]) for row in ran.rows] == [(3, 100), (5, 282)]
    assert "3 filler units before the first of T 0 are left out" in ran.remarks
    assert f"1 empty units of T 0 in consumequeue/T/0/{0:020} come before others, from its unit 4 on" in ran.remarks
    assert "2 bytes" in ran.remarks


def test_an_index_header_that_lies_is_remarked(tmp_path: Path) -> None:
    store = copy_of(MIXED, tmp_path)
    files = sorted((store / "index").iterdir())
    count_at = index_file.HEADER_SIZE - 4
    for file, count in zip(files, (100_000, 10), strict=False):
        apply_ops(store, [{"op": "write", "file": f"index/{file.name}", "at": count_at, "hex": f"{count:08x}"}])

    ran = dump("index", store, "--set", "maxHashSlotNum=100", "--set", "maxIndexNum=250")

    assert ran.status == Status.DAMAGE
    assert f"index/{files[0].name} has no room for the 99,999 entries that its header counts" in ran.remarks
    assert f"index/{files[1].name} has more than the 9 entries that its header counts" in ran.remarks
    assert sum(row["file"].endswith(files[0].name) for row in ran.rows) == 249


def test_an_index_of_unknown_shape_is_never_misread(tmp_path: Path) -> None:
    store = copy_of(MIXED, tmp_path)
    for file in (store / "index").iterdir():
        file.write_bytes(bytes(range(1, 256)) * 20)

    ran = dump("index", store)

    assert (ran.status, ran.output) == (Status.BAD_DATA, "")
    assert "give --set maxHashSlotNum=N and --set maxIndexNum=N" in ran.remarks


def test_torn_timer_and_extension_units_are_remarked(tmp_path: Path) -> None:
    timers, ext = copy_of("timer-533-clean", tmp_path), copy_of("ext-533-clean", tmp_path)
    apply_ops(timers, [{"op": "write", "file": f"timerlog/{0:020}", "at": timer.LOG_UNIT_SIZE, "hex": "00000007"}])
    apply_ops(ext, [{"op": "write", "file": f"consumequeue_ext/Ext/0/{0:020}", "at": 68, "hex": "0003"}])

    ran, more = dump("timerlog", timers), dump("consumequeueext", ext, "--queue", "0")

    assert (ran.status, more.status) == (Status.DAMAGE, Status.DAMAGE)
    assert f"timerlog/{0:020}@52 are skipped: no unit starts there" in ran.remarks
    assert len(more.rows) == 2
    assert f"consumequeue_ext/Ext/0/{0:020}@68 are skipped" in more.remarks


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("victims")
    return {name: copy_of(name, folder) for name in ("special-550-kill", "timer-533-kill", "ext-533-clean")}


@settings(max_examples=40)
@given(data=st.data())
def test_no_byte_makes_it_fail(data: st.DataObject, victim: dict[str, Path]) -> None:
    store = victim[data.draw(st.sampled_from(sorted(victim)))]
    kinds = {
        "commitlog": "commitlog/*", "consumequeue": "consumequeue/*/*/*", "index": "index/*",
        "consumequeueext": "consumequeue_ext/*/*/*", "timerlog": "timerlog/*", "config": "config/*.json*",
        "checkpoint": "checkpoint",
    }  # fmt: skip
    kind = data.draw(st.sampled_from([kind for kind, pattern in kinds.items() if any(store.glob(pattern))]))
    op = data.draw(flips(store, kinds[kind]) | cuts(store, kinds[kind]))

    with damaged(store, op):
        ran = dump(kind, store)

    assert ran.status in (Status.OK, Status.DAMAGE, Status.BAD_DATA, Status.NO_INPUT), ran.remarks


# What a person sees.


def test_a_table_has_no_control_characters(tmp_path: Path) -> None:
    write_store(tmp_path / "s", [Draft(body=b"\x1b[2J\x07\r\nend\xc2\x9b"), Draft(pairs={"TAGS": "\x1b]0;x\x07"})])

    ran = dump("commitlog", tmp_path / "s", "-o", "table")

    assert ran.output.replace("\n", "").isprintable()
    assert "\\x1b[2J" in ran.output
    assert len(ran.output.splitlines()) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_a_table_whose_columns_its_rows_have(kind: str) -> None:
    stores = {"dledger": "dledger-497-clean", "timer": "timer-533-clean", "batch": "batchcq-533-clean"}
    stores |= {"rocksdb": "rocksdb-550-clean", "consumequeueext": "ext-533-clean"}
    store = next((store for start, store in stores.items() if kind.startswith(start)), MIXED)

    (row, *_), page = rows(kind, store), dump(kind, store, "-o", "table")

    assert set(KINDS[kind].columns) <= row.keys()
    assert page.status == Status.OK
    assert len(page.output.splitlines()) > 1
    assert all(len(line) <= 200 for line in page.output.splitlines() if kind != "config")


def test_bodies_are_shown_as_asked(tmp_path: Path) -> None:
    write_store(tmp_path / "s", [Draft(body=b'{"a":[1]}'), Draft(body=b"\xff\x00")])

    def bodies(mode: str) -> list[Any]:
        return [row.get("body") for row in rows("commitlog", tmp_path / "s", "--body", mode)]

    assert bodies("auto") == ['{"a":[1]}', "/wA="]
    assert bodies("json") == [{"a": [1]}, "/wA="]
    assert bodies("hex") == [b'{"a":[1]}'.hex(), "ff00"]
    assert bodies("none") == [None, None]


def test_nothing_heavy_is_loaded_for_help_or_the_first_rows() -> None:
    code = """if True:
        import sys
        from mqtool import cli
        status = cli.run(sys.argv[1:])
        heavy = {"numpy", "numba", "pyarrow", "pyspark", "rocksdict", "lark"} & sys.modules.keys()
        print(status, *sorted(heavy), file=sys.stderr)
    """

    def loaded(*arguments: object) -> str:
        words = [str(argument) for argument in arguments]
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
        return done.stderr.splitlines()[-1]

    assert loaded("dump", "--help") == "0"
    store = golden_store(MIXED)
    assert loaded("dump", "commitlog", "-s", store, "--topic", "Order*", "--limit", 10) == "0 numpy"


def test_a_reader_that_has_enough_ends_it_quietly(tmp_path: Path, start: Start) -> None:
    write_store(tmp_path / "s", [Draft(body=bytes(1500)) for _ in range(200)], StoreSizes(segment=1 << 20))
    process = start("dump", "commitlog", "-s", tmp_path / "s", "--body", "hex")
    assert process.stdout
    assert process.stderr

    assert process.stdout.readline().startswith(b'{"physical_offset":0')
    process.stdout.close()

    assert process.wait() == 0
    assert process.stderr.read() == b""


# A store that a broker writes to.


def read_rows(stream: IO[bytes], count: int) -> Iterator[dict[str, Any]]:
    """Yield rows as they arrive; a pipe without a buffer in between."""
    line = b""
    while count:
        line += stream.read(1)
        if line.endswith(b"\n"):
            yield orjson.loads(line)
            line, count = b"", count - 1


class AppendingBroker:
    """Writes a log and a queue as a broker does: into files as long as they will ever be, made before they are used."""

    segment = 2048

    def __init__(self, root: Path) -> None:
        self.root = root
        drafts = (Draft(body=b"%d" % number * 99, pairs={"TAGS": f"T{number % 2}"}) for number in range(60))
        self.pieces = lay_out(drafts, self.segment)
        self.log = root / "commitlog"
        self.log.mkdir(parents=True)
        self.prepare(0)
        self.number = 0

    def prepare(self, start: int) -> None:
        (self.log / f"{start:020}").write_bytes(bytes(self.segment))

    def next(self) -> tuple[int, bytes]:
        """Return the next thing that goes to the log."""
        piece = next(self.pieces)
        if isinstance(piece, tuple):
            self.prepare(piece[0] + len(piece[1]))
            return piece[0], piece[1][:8]
        return piece.physical_offset, piece.record

    def write(self, at: int, data: bytes) -> None:
        with (self.log / f"{at // self.segment * self.segment:020}").open("r+b") as file:
            file.seek(at % self.segment)
            file.write(data)

    def append(self, count: int) -> list[int]:
        """Append so many messages and return where they lie."""
        written: list[int] = []
        while len(written) < count:
            at, data = self.next()
            self.write(at, data)
            if len(data) > 8:
                written.append(at)
        return written


def test_following_shows_what_is_appended_and_never_half_of_it(tmp_path: Path, start: Start) -> None:
    broker = AppendingBroker(tmp_path)
    expected = broker.append(3)
    process = start("dump", "commitlog", "-s", tmp_path, "--follow", "--body", "none")
    assert process.stdout
    assert process.stderr
    found = [row["physical_offset"] for row in read_rows(process.stdout, 3)]
    assert found == expected

    for _ in range(20):  # through several segments
        at, data = broker.next()
        broker.write(at, data[: len(data) // 2])
        broker.write(at + len(data) // 2, data[len(data) // 2 :])
        if len(data) > 8:
            (row,) = read_rows(process.stdout, 1)
            assert (row["physical_offset"], row["tags"]) == (at, f"T{(len(expected)) % 2}")
            expected.append(at)
    assert len(list(broker.log.iterdir())) > 2

    os.kill(int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]), signal.SIGINT)
    assert process.wait() == Status.INTERRUPTED
    assert process.stdout.read() == b""
    remarks = process.stderr.read().decode()
    assert f"stopped at physical offset {expected[-1]:,}" in remarks
    assert "skipped" not in remarks


def test_following_ends_at_its_limit_and_selects(tmp_path: Path, start: Start) -> None:
    broker = AppendingBroker(tmp_path)
    broker.append(2)
    process = start("dump", "commitlog", "-s", tmp_path, "--follow", "--limit", 5, "--tag", "T1")
    assert process.stdout
    (first,) = read_rows(process.stdout, 1)

    broker.append(9)

    assert [first["tags"], *(row["tags"] for row in read_rows(process.stdout, 4))] == ["T1"] * 5
    assert process.wait() == Status.OK


def test_following_queues_shows_new_units_and_new_queues(tmp_path: Path, start: Start) -> None:
    def unit(number: int) -> bytes:
        return bytes(
            consume_queue.UNIT.schema.build({"physical_offset": number * 100, "size": 100, "tags_code": -number})
        )

    def queue(name: str) -> Path:
        folder = tmp_path / "consumequeue" / name / "0"
        folder.mkdir(parents=True)
        (folder / f"{0:020}").write_bytes(bytes(100))
        return folder / f"{0:020}"

    def write(file: Path, at: int, data: bytes) -> None:
        with file.open("r+b") as opened:
            opened.seek(at)
            opened.write(data)

    first = queue("A")
    write(first, 0, unit(1) + unit(2))
    process = start("dump", "consumequeue", "-s", tmp_path, "--follow", "--limit", 7)
    assert process.stdout
    expected = [("A", 0, -1), ("A", 1, -2)]
    found = list(read_rows(process.stdout, 2))
    write(queue("B"), 0, unit(3))
    found += read_rows(process.stdout, 1)
    write(first, 40, unit(4)[:12])
    write(first, 52, unit(4)[12:])
    write(first, 60, unit(5) + unit(6))
    found += read_rows(process.stdout, 3)
    (first.parent / f"{100:020}").write_bytes(unit(7) + bytes(80))
    found += read_rows(process.stdout, 1)

    expected += [("B", 0, -3), ("A", 2, -4), ("A", 3, -5), ("A", 4, -6), ("A", 5, -7)]
    assert [(row["topic"], row["queue_offset"], row["tags_code"]) for row in found] == expected
    assert process.wait() == Status.OK


def ask(kind: str, store: Path) -> DumpRequest:
    return DumpRequest(kind, StoreReader(store), Output("jsonl"), follow=True)


@pytest.mark.parametrize("wraps", [False, True])
def test_a_record_counts_when_its_last_byte_is_there(wraps: bool, tmp_path: Path) -> None:
    folder = tmp_path / ("dledger-n0/data" if wraps else "commitlog")
    folder.mkdir(parents=True)
    (tmp_path / "config").mkdir()
    (tmp_path / "config/topics.json").write_bytes(b"{}")
    whole = record(48 if wraps else 0, body=b"body", properties=b"TAGS\x01T\x02")
    if wraps:
        whole = dledger_entry(whole, 0)
    file = folder / f"{0:020}"
    file.write_bytes(bytes(1024))
    follower = follow._LogFollower(ask("commitlog", tmp_path), 0)

    for cut in range(len(whole)):
        file.write_bytes(whole[:cut].ljust(1024, b"\0"))
        assert list(follower.tables()) == [], cut
    file.write_bytes(whole.ljust(1024, b"\0"))

    (table,) = follower.tables()
    assert table.record(0) == whole[48 if wraps else 0 :]
    assert follower.at == len(whole)
    assert list(follower.tables()) == []


def test_what_stays_broken_is_skipped_when_something_comes_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "commitlog"
    folder.mkdir()
    first = record(0, body=b"first")
    torn = record(len(first), body=b"torn")[:50]
    file = folder / f"{0:020}"
    file.write_bytes((first + torn).ljust(1024, b"\0"))
    request = ask("commitlog", tmp_path)
    follower = follow._LogFollower(request, 0)
    monkeypatch.setattr(follow, "_PATIENCE", 0)
    assert [table.record(0) for table in follower.tables()] == [first]

    behind = record(400, body=b"behind")
    file.write_bytes((first + torn).ljust(400, b"\0") + behind.ljust(624, b"\0"))

    assert [table.record(0) for table in follower.tables()] == [behind]
    assert request.is_damaged
    assert f"{400 - len(first)} bytes at {len(first)}" in capsys.readouterr().err
    # An empty rest of a segment is no end when the next one is in use.
    start = 1024
    (folder / f"{start:020}").write_bytes(record(start, body=b"next").ljust(1024, b"\0"))
    follower.log = follow.reopened(request.store).commit_log
    assert [int(table.column("position")[0]) for table in follower.tables()] == [start]


def test_a_segment_that_is_deleted_meanwhile_is_skipped_with_a_remark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "commitlog"
    folder.mkdir()
    (folder / f"{0:020}").write_bytes((record(0) + blank(1024 - len(record(0)))).ljust(1024, b"\0"))
    (folder / f"{1024:020}").write_bytes(bytes(1024))
    request = ask("commitlog", tmp_path)
    follower = follow._LogFollower(request, 0)
    (folder / f"{0:020}").unlink()
    (folder / f"{1024:020}").write_bytes(record(1024).ljust(1024, b"\0"))

    follower.log = follow.reopened(request.store).commit_log

    assert [int(table.column("position")[0]) for table in follower.tables()] == [1024]
    assert "the 1,024 bytes at 0 are no longer in any file" in capsys.readouterr().err


def test_a_unit_counts_when_two_looks_have_seen_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "consumequeue/T/0"
    folder.mkdir(parents=True)
    whole = bytes(
        consume_queue.UNIT.schema.build({"physical_offset": 0x0101010101010101, "size": 0x02020202, "tags_code": -77})
    )
    file = folder / f"{0:020}"
    file.write_bytes(bytes(100))
    request = ask("consumequeue", tmp_path)
    follower = queues._QueueFollower(request, ("T", 0))

    def look() -> list[int]:
        queue = follow.reopened(request.store).consume_queues["T", 0]
        return [row["tags_code"] for row in follower.rows(queue)]

    for cut in range(len(whole) + 1):
        file.write_bytes(whole[:cut].ljust(100, b"\0"))
        assert look() == [], cut
    assert look() == [-77]
    assert look() == []


def test_what_a_broker_is_just_writing_is_no_damage(tmp_path: Path, start: Start) -> None:
    broker = AppendingBroker(tmp_path)
    written = broker.append(3)
    at, data = broker.next()
    broker.write(at, data[:-20])
    (tmp_path / "lock").write_bytes(b"lock")

    def dumped() -> tuple[int, list[int]]:
        process = start("dump", "commitlog", "-s", tmp_path)
        output, _ = process.communicate()
        return process.returncode, [orjson.loads(line)["physical_offset"] for line in output.splitlines()]

    with (tmp_path / "lock").open("r+b") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        assert dumped() == (Status.OK, written)
    status, found = dumped()  # nobody writes any more
    assert found[:3] == written
    assert (status == Status.DAMAGE) == (found == written)
