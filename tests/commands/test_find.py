"""``mqtool find``: through the index files and by scan, against what RocketMQ itself finds."""

import json
import re
import shutil
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.store.reader import StoreReader
from mqtool.engine.store.search import Query, Search, used_end
from mqtool.errors import Status
from mqtool.formats import commit_log, index_file
from tests.builders import Draft, StoreSizes, batch_element, java_hash, key_with_hash, properties, write_store
from tests.commands.running import Ran, run
from tests.damage import snapshot
from tests.golden import GOLDEN_NAMES, copy_of, golden_store, manifest

MIXED = "mixed-533-clean"


def find(store: str | Path, *arguments: object) -> Ran:
    return run("find", "-s", golden_store(store) if isinstance(store, str) else store, *arguments)


def positions(ran: Ran, status: Status = Status.OK) -> list[int]:
    assert ran.status == status, ran.remarks
    return [row["physical_offset"] for row in ran.rows]


def having_key(rows: Iterable[dict[str, Any]], topic: str, key: str) -> list[int]:
    return [
        row["physical_offset"]
        for row in rows
        if row["topic"] == topic and key in [*(row["keys"] or "").split(" "), row["unique_key"]]
    ]


def asked_keys(name: str) -> list[str]:
    return [
        part for key in dict.fromkeys(key for _, key, _ in manifest(name)["index_queries"]) for part in ("--key", key)
    ]


# Keys.


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_keys_lead_through_the_index_to_the_messages_that_rocketmq_finds(name: str) -> None:
    ran = find(name, *asked_keys(name), "--body", "none")

    rows = ran.rows
    for topic, key, expected in manifest(name)["index_queries"]:
        assert having_key(rows, topic, key) == sorted(set(expected)), (topic, key)
    assert "searched" in ran.remarks
    assert positions(ran) == sorted(set(positions(ran)))


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_a_scan_finds_the_same_messages_by_key(name: str) -> None:
    ran = find(name, *asked_keys(name), "--body", "none", "--scan")

    assert ran.rows == find(name, *asked_keys(name), "--body", "none").rows
    assert "index file" not in ran.remarks.splitlines()[-1]


@pytest.mark.parametrize("name", ["mixed-550-kill", "many-497-clean", "dledger-497-clean", "rocksdb-533-clean"])
def test_without_index_files_the_log_is_scanned(name: str, tmp_path: Path) -> None:
    copy = copy_of(name, tmp_path)
    shutil.rmtree(copy / "index")

    ran = find(copy, *asked_keys(name), "--body", "none")

    rows = ran.rows
    for topic, key, expected in manifest(name)["index_queries"]:
        assert having_key(rows, topic, key) == sorted(set(expected)), (topic, key)


@pytest.mark.parametrize("which", [0, 2, -1])
def test_where_an_index_file_is_lost_the_log_is_scanned(which: int, tmp_path: Path) -> None:
    copy = copy_of("many-497-clean", tmp_path)
    sorted((copy / "index").iterdir())[which].unlink()

    ran = find(copy, "--key", "key-*", "--key", "nothing", "--body", "none", "--scan")
    keys = sorted({key for row in ran.rows for key in row["keys"].split()})[:40]

    arguments = [part for key in keys for part in ("--key", key)]
    by_index = find(copy, *arguments, "--body", "none")
    assert by_index.rows == find(copy, *arguments, "--body", "none", "--scan").rows
    assert "4 index files searched" in by_index.remarks


def test_a_missing_segment_is_told_where_its_messages_would_be_searched(tmp_path: Path) -> None:
    store = copy_of(MIXED, tmp_path)
    messages = manifest(MIXED)["messages"]
    missing = [one for one in messages if 131_072 <= one["phy"] < 196_608]
    (store / "commitlog" / f"{131_072:020}").unlink()
    sentence = "no file holds the bytes from 131,072 to 196,608"

    scanned = find(store, "--from", 0)
    indexed = find(store, "--key", missing[20]["uniq_key"])
    before, elsewhere = find(store, "--to", 60_000), find(store, "--key", messages[0]["uniq_key"])
    first = find(store, "--from", 0, "--limit", 1)

    assert len(scanned.rows) == len(messages) - len(missing)
    assert (scanned.status, sentence in scanned.remarks) == (Status.DAMAGE, True)
    assert (indexed.status, indexed.rows) == (Status.DAMAGE, [])
    assert "an index entry refers to a place without a sound message" in indexed.remarks
    for ran in (before, elsewhere, first):
        assert ran.rows
        assert (ran.status, sentence in ran.remarks) == (Status.OK, False)


def _overwrite(path: Path, at: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("at", "data"),
    [
        (0, bytes(index_file.HEADER_SIZE)),
        (36, b"\x7f\xff\xff\xff"),
        (24, bytes(8)),
        (index_file.HEADER_SIZE, (299).to_bytes(4, "big") * 97),
        (index_file.HEADER_SIZE + 4 * 97, b"\x01" * 6000),
        (index_file.HEADER_SIZE, bytes(4 * 48)),
        (index_file.HEADER_SIZE + 4 * 48, bytes(4 * 49)),
    ],
    ids=["no header", "count", "end", "slots", "entries", "zeroed slots", "more zeroed slots"],
)
def test_a_damaged_index_file_hides_no_message(at: int, data: bytes, tmp_path: Path) -> None:
    copy = copy_of("many-497-clean", tmp_path)
    _overwrite(sorted((copy / "index").iterdir())[1], at, data)
    arguments = [
        *asked_keys("many-497-clean"),
        "--body",
        "none",
        "--set",
        "maxHashSlotNum=97",
        "--set",
        "maxIndexNum=300",
    ]

    ran = find(copy, *arguments)

    assert ran.rows == find("many-497-clean", *arguments).rows


def test_an_index_file_of_another_store_hides_no_message(tmp_path: Path) -> None:
    copy = copy_of("ext-533-clean", tmp_path)
    (own,) = (copy / "index").iterdir()
    (other,) = (golden_store("ext-497-kill") / "index").iterdir()
    own.write_bytes(other.read_bytes())
    arguments = [*asked_keys("ext-533-clean"), "--body", "none"]

    ran = find(copy, *arguments)

    assert ran.rows == find("ext-533-clean", *arguments).rows
    assert f"index file {own.name} is damaged or does not match the log" in ran.remarks


def test_without_a_topic_table_it_says_that_topics_without_queues_are_not_looked_up(tmp_path: Path) -> None:
    copy = copy_of(MIXED, tmp_path)
    wanted = next(one for one in manifest(MIXED)["messages"] if one["topic"] == "log-x")
    key = wanted["properties"]["UNIQ_KEY"]
    shutil.rmtree(copy / "consumequeue" / "log-x")
    for table in (copy / "config").glob("topics.json*"):
        table.unlink()

    ran = find(copy, "--key", key)

    assert positions(ran) == []
    assert "keys are looked up only for topics that have queues: --scan searches the log" in ran.remarks
    assert positions(find(copy, "--key", key, "--scan")) == [wanted["phy"]]


def test_a_message_whose_key_only_has_the_same_hash_is_not_found(tmp_path: Path) -> None:
    other = key_with_hash("TopicTest", java_hash("TopicTest#wanted"))
    drafts = [Draft(pairs={"KEYS": key}) for key in ("wanted", other, "xwanted", "a wanted b")]
    stored = write_store(tmp_path / "store", drafts)

    for ways in ((), ("--scan",)):
        ran = find(tmp_path / "store", "--key", "wanted", *ways)
        assert positions(ran) == [stored[0].physical_offset, stored[3].physical_offset]
        assert other != "wanted"


def test_a_key_is_found_in_the_topics_that_are_asked_for_only(tmp_path: Path) -> None:
    drafts = [Draft(topic=topic, pairs={"KEYS": "k"}) for topic in ("Orders", "Orders2", "Payments")]
    stored = write_store(tmp_path / "store", drafts)

    ran = find(tmp_path / "store", "--key", "k", "--topic", "Orders*")

    assert positions(ran) == [one.physical_offset for one in stored[:2]]


def test_keys_may_be_patterns() -> None:
    ran = find(MIXED, "--key", "order-4?5*")

    keys = [message["keys"] for message in manifest(MIXED)["messages"]]
    wanted = [key for key in keys if key and any(re.fullmatch("order-4.5.*", one) for one in key.split())]
    assert wanted
    assert [row["keys"] for row in ran.rows] == wanted


def test_a_key_in_an_inner_batch_finds_the_record_that_holds_it() -> None:
    store = StoreReader(golden_store("batchcq-533-clean"))

    ran = find("batchcq-533-clean", "--key", "in3-1", "--scan")

    bodies = {message.position: message.body for message in store.messages()}
    assert positions(ran)
    assert all(b"KEYS\x01in3-1\x02" in bodies[at] for at in positions(ran))


def test_rolled_back_messages_are_found_by_no_key_whichever_way_it_goes(tmp_path: Path) -> None:
    drafts = [Draft(pairs={"KEYS": "k"}, sys_flag=flag) for flag in (0, commit_log.TRANSACTION_ROLLBACK)]
    stored = write_store(tmp_path / "store", drafts)

    for ways in ((), ("--scan",)):
        assert positions(find(tmp_path / "store", "--key", "k", *ways)) == [stored[0].physical_offset]


# Other conditions.


def test_tags_are_found_as_patterns() -> None:
    ran = find(MIXED, "--tag", "Tag[AB]", "--tag", "big", "--body", "none")

    wanted = [one["phy"] for one in manifest(MIXED)["messages"] if one["tags"] in ("TagA", "TagB", "big")]
    assert positions(ran) == wanted


def plain_bodies(name: str) -> dict[int, bytes]:
    return {message.position: message.plain_body() for message in StoreReader(golden_store(name)).messages()}


@pytest.mark.parametrize("text", ["zeta321", "é", "alpha1", "theta935 gamma814"])
def test_a_text_is_found_in_every_body_compressed_or_not(text: str) -> None:
    ran = find(MIXED, "--text", text)

    assert positions(ran) == [at for at, body in plain_bodies(MIXED).items() if text.encode() in body]


def test_each_text_must_stand_in_the_body() -> None:
    ran = find(MIXED, "--text", "alpha1", "--text", "beta2")

    bodies = plain_bodies(MIXED)
    assert positions(ran) == [at for at, body in bodies.items() if b"alpha1" in body and b"beta2" in body]
    assert positions(ran)


def test_a_regular_expression_is_found_in_every_body() -> None:
    ran = find(MIXED, "--regex", r"(?i)ZETA3\d1\b")

    assert positions(ran) == [at for at, body in plain_bodies(MIXED).items() if re.search(rb"zeta3\d1\b", body)]
    assert positions(ran)


def test_a_text_outside_the_body_is_no_hit(tmp_path: Path) -> None:
    write_store(tmp_path / "store", [Draft(topic="needle", pairs={"needle": "needle"}, body=b"hay")])

    assert positions(find(tmp_path / "store", "--text", "needle")) == []


def test_properties_are_found_by_name_and_value() -> None:
    messages = manifest(MIXED)["messages"]

    region = find(MIXED, "--property", "MSG_REGION=Default*", "--property", "TAGS=TagD")
    any_value = find(MIXED, "--property", "KEYS")

    assert positions(region) == [one["phy"] for one in messages if one["tags"] == "TagD"]
    assert positions(any_value) == [one["phy"] for one in messages if one["keys"]]
    assert positions(any_value)


def test_times_offsets_queues_and_a_limit_narrow_a_search() -> None:
    messages = manifest(MIXED)["messages"]
    first, last = messages[40]["store_timestamp"], messages[200]["store_timestamp"]

    by_time = find(MIXED, "--since", first, "--until", last, "--body", "none")
    by_offset = find(MIXED, "--from", messages[10]["phy"], "--to", messages[20]["phy"], "--body", "none")
    by_queue = find(MIXED, "--topic", "OrderEvents", "--queue", "2", "--queue", "0", "--body", "none")
    limited = find(MIXED, "--tag", "*", "--limit", "3", "--body", "none")

    assert positions(by_time) == [one["phy"] for one in messages if first <= one["store_timestamp"] < last]
    assert positions(by_offset) == [one["phy"] for one in messages[10:20]]
    assert positions(by_queue) == [
        one["phy"] for one in messages if one["topic"] == "OrderEvents" and one["queue_id"] in (0, 2)
    ]
    assert len(limited.rows) == 3
    assert "3 messages found; --limit is reached" in limited.remarks


def test_conditions_hold_for_one_message_of_an_inner_batch(tmp_path: Path) -> None:
    body = b"".join(
        batch_element(text, properties({"TAGS": tag, "KEYS": tag + "1"}))
        for text, tag in ((b"one", "a"), (b"two", "b"))
    )
    pairs = {"INNER_NUM": "2", "INNER_BASE": "0"}
    packed = zlib.compress(body)
    write_store(
        tmp_path / "store",
        [
            Draft(body=body, pairs=pairs, sys_flag=commit_log.INNER_BATCH),
            Draft(body=packed, pairs=pairs, sys_flag=commit_log.INNER_BATCH | commit_log.COMPRESSED),
        ],
    )

    def count(*arguments: object) -> int:
        return len(positions(find(tmp_path / "store", *arguments)))

    assert count("--tag", "a", "--text", "one") == 2
    assert count("--tag", "a", "--text", "two") == 0
    assert count("--key", "b1", "--property", "INNER_NUM=2", "--scan") == 2
    assert count("--regex", "^two$", "--property", "TAGS=b") == 2


queries = st.builds(
    Query,
    keys=st.sampled_from([(), (), ("order-4*",), ("big1", "big0"), ("nothing",)]),
    tags=st.sampled_from([(), (), ("Tag*",), ("TagA", "big"), ("",)]),
    texts=st.lists(st.sampled_from(["zeta3", "alpha", "é", "TagA"]), max_size=2).map(tuple),
    regexes=st.lists(st.sampled_from([r"beta\d", "^z"]).map(re.compile), max_size=1).map(tuple),
    properties=st.lists(st.sampled_from([("WAIT", "false"), ("KEYS", "*"), ("CLUSTER", "D*r")]), max_size=2).map(tuple),
    topics=st.sampled_from([None, None, frozenset(["OrderEvents"]), frozenset(["log-x", "pay_events"])]),
    queues=st.sampled_from([(), ("0",), ("[1-3]",)]),
    start_offset=st.sampled_from([0, 1, 70_000]),
    stop_offset=st.sampled_from([None, 170_000]),
)


@given(queries, st.booleans())
def test_a_search_finds_what_looking_at_each_message_finds(query: Query, use_index: bool) -> None:
    store = StoreReader(golden_store(MIXED))

    found = [message.position for message in Search(store, query, use_index).messages()]

    assert found == [message.position for message in store.messages() if query.matches(message)]


# What is said about it.


def test_no_hit_is_no_failure_and_tells_what_was_searched() -> None:
    ran = find("many-497-clean", "--key", "nothing")

    assert ran.status == Status.OK
    assert not ran.output
    assert re.search(r"no message found; 5 index files searched, [\d,]+ of [\d,]+ bytes of log scanned", ran.remarks)


def test_a_search_for_anything_at_all_is_refused() -> None:
    ran = find(MIXED)

    assert ran.status == Status.USAGE
    assert "use --key, --tag, --text or another condition" in ran.remarks


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--topic", "OrderEvent"], Status.NO_INPUT, "similar: OrderEvents"),
        (["--regex", "("], Status.USAGE, "not a regular expression"),
        (["--property", "=x"], Status.USAGE, "NAME=VALUE"),
        (["--since", "yesterday"], Status.USAGE, "ISO 8601"),
    ],
)
def test_a_condition_that_makes_no_sense_is_explained(arguments: list[str], status: Status, words: str) -> None:
    ran = find(MIXED, *arguments)

    assert ran.status == status
    assert words in ran.remarks


def test_conditions_beyond_all_bounds_find_nothing() -> None:
    for arguments in (
        ["--from", "9" * 30],
        ["--since", "9" * 30],
        ["--until", "-" + "9" * 30],
        ["--key", "k" * 100_000],
    ):
        assert positions(find(MIXED, *arguments)) == []


def test_damage_in_the_log_is_passed_over_and_remarked(tmp_path: Path) -> None:
    copy = copy_of("txn-497-clean", tmp_path)
    messages = manifest("txn-497-clean")["messages"]
    broken = messages[5]
    _overwrite(copy / "commitlog" / f"{0:020}", broken["phy"] + 4, b"\0\0\0\0")

    ran = find(copy, "--property", "WAIT")

    left = [one["phy"] for one in messages if "WAIT" in one["properties"] and one is not broken]
    assert positions(ran, Status.DAMAGE) == left
    assert f"the first at {broken['phy']:,}" in ran.remarks


def test_an_index_entry_that_leads_into_damage_is_remarked(tmp_path: Path) -> None:
    copy = copy_of("txn-497-clean", tmp_path)
    broken = next(one for one in manifest("txn-497-clean")["messages"] if one["keys"])
    _overwrite(copy / "commitlog" / f"{0:020}", broken["phy"] + 4, b"\0\0\0\0")

    ran = find(copy, "--key", broken["keys"])

    assert broken["phy"] not in positions(ran, Status.DAMAGE)
    assert "an index entry refers to a place without a sound message" in ran.remarks


def test_messages_of_a_missing_segment_are_told_by_scan_and_by_index(tmp_path: Path) -> None:
    copy = copy_of(MIXED, tmp_path)
    (copy / "commitlog" / f"{65_536:020}").unlink()
    lost = next(one for one in manifest(MIXED)["messages"] if one["phy"] == 65_536)
    topic, key = lost["topic"], lost["properties"]["UNIQ_KEY"]

    by_scan, by_index = find(copy, "--topic", topic), find(copy, "--key", key)
    behind = find(copy, "--topic", topic, "--from", 131_072)
    before = find(copy, "--topic", topic, "--limit", 1)

    assert positions(by_scan, Status.DAMAGE)
    assert "no file holds the bytes from 65,536 to 131,072" in by_scan.remarks
    assert "262,144 of 262,144 bytes of log scanned" in by_scan.remarks
    assert positions(by_index, Status.DAMAGE) == []
    assert "an index entry refers to a place without a sound message" in by_index.remarks
    assert positions(behind)  # nothing is missing there
    assert len(positions(before)) == 1  # nor before


@pytest.mark.parametrize("command", ["find --topic TopicTest", "export", "dump commitlog"])
def test_a_last_message_that_begins_with_zeros_is_told(command: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    last = write_store(store, [Draft(), Draft(body=b"x" * 100_000)], StoreSizes(segment=1 << 20))[-1]
    _overwrite(store / "commitlog" / f"{0:020}", last.physical_offset, bytes(80_000))

    ran = run(*command.split(), "-s", store)

    assert len(ran.rows) == 1
    assert ran.status == Status.DAMAGE
    assert str(last.physical_offset) in ran.remarks


def test_the_unused_end_of_a_log_is_neither_scanned_nor_remarked(tmp_path: Path) -> None:
    store = tmp_path / "store"
    stored = write_store(store, [Draft()])
    segment = next((store / "commitlog").iterdir())
    end = stored[0].physical_offset + len(stored[0].record)
    data = segment.read_bytes()[:end]
    with segment.open("wb") as file:
        file.write(data)
        file.truncate(64 << 20)

    ran = find(store, "--topic", "TopicTest")

    assert len(ran.rows) == 1
    assert "gap" not in ran.remarks
    assert end <= used_end(StoreReader(store).commit_log) <= 1 << 20


def test_a_search_changes_nothing_in_a_store() -> None:
    before = snapshot(golden_store("mixed-533-kill"))

    find("mixed-533-kill", "--text", "a", "--key", "big0")

    assert snapshot(golden_store("mixed-533-kill")) == before


def test_a_table_shows_where_in_the_body_the_text_stands_and_no_control_characters(tmp_path: Path) -> None:
    write_store(tmp_path / "store", [Draft(body=b"x" * 500 + b"\x1b[31mneedle\x1b[0m")])

    ran = find(tmp_path / "store", "--text", "needle", "-o", "table")

    assert r"xx\x1b[31mneedle" in ran.output
    assert "\x1b" not in ran.output


def test_rows_are_those_of_dump() -> None:
    ran = find("txn-533-clean", "--property", "KEYS=delay0")

    dumped = {row["physical_offset"]: row for row in run("dump", "commitlog", "-s", golden_store("txn-533-clean")).rows}
    assert ran.rows == [dumped[row["physical_offset"]] for row in ran.rows]
    assert ran.rows
    assert json.loads(ran.output.splitlines()[0])["keys"] == "delay0"
