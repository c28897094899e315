"""``mqtool get``: every message by each of its names, its bytes field by field, and what is no message."""

import itertools
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.store.reader import StoreReader
from mqtool.errors import Status
from mqtool.formats import commit_log, consume_queue
from mqtool.formats.annotate import annotate
from tests.builders import Draft, batch_element, properties, record, write_store
from tests.commands.running import Ran, run
from tests.damage import cut, flipped, snapshot
from tests.golden import GOLDEN_NAMES, copy_of, golden_store, manifest

EVERY = ["txn-533-clean", "batchcq-533-clean", "special-550-kill", "dledger-497-clean"]
MIXED = "mixed-533-clean"


def get(store: str | Path, *arguments: object) -> Ran:
    return run("get", "-s", golden_store(store) if isinstance(store, str) else store, *arguments)


def only_row(ran: Ran) -> dict[str, Any]:
    assert ran.status == Status.OK, ran.remarks
    (row,) = ran.rows
    return row


def positions(ran: Ran) -> list[int]:
    assert ran.status == Status.OK, ran.remarks
    return [row["physical_offset"] for row in ran.rows]


def overwrite(path: Path, at: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)


# Five ways to name a message.


@pytest.mark.parametrize("name", EVERY)
def test_every_message_is_found_by_its_address_and_by_its_offset_message_id(name: str) -> None:
    for number, message in enumerate(manifest(name)["messages"]):
        address = (str(message["phy"]), hex(message["phy"]), f"{message['phy']:,}")[number % 3]
        row = only_row(get(name, address))
        assert row["message_id"] == message["msg_id"]
        assert row["properties"] == message["properties"]
        assert only_row(get(name, message["msg_id"])) == row
        assert (row["physical_offset"], row["queue_offset"]) == (message["phy"], message["queue_offset"])


@pytest.mark.parametrize("name", EVERY)
def test_every_unit_of_a_queue_leads_to_its_messages(name: str) -> None:
    for topic, queues in manifest(name)["load"]["after_load"]["queues"].items():
        for queue_id, queue in queues.items():
            for offset, address, _, _, *batch in queue["units"]:
                for number in range(*(batch or [1])[:1]):
                    row = only_row(get(name, topic, queue_id, offset + number))
                    assert row["physical_offset"] == address
                    assert row["queue_offset"] == offset + number or topic != row["topic"]


@pytest.mark.parametrize("name", EVERY)
def test_every_message_is_found_by_its_unique_key_and_its_keys(name: str) -> None:
    messages = manifest(name)["messages"]
    for message in messages[::3]:
        if message["uniq_key"]:
            alike = [one["phy"] for one in messages if one["uniq_key"] == message["uniq_key"]]
            assert set(positions(get(name, message["uniq_key"]))) <= set(alike)
            assert message["phy"] in positions(get(name, message["uniq_key"].lower())) or message["sys_flag"] & 12 == 12
    for topic, key, expected in manifest(name)["index_queries"][::6]:
        found = get(name, key)
        assert {row["physical_offset"] for row in found.rows if row["topic"] == topic} == set(expected)


def test_messages_are_found_where_rocksdb_keeps_the_queues() -> None:
    name = "rocksdb-550-clean"
    for topic, queues in manifest(name)["load"]["after_load"]["queues"].items():
        for queue_id, queue in queues.items():
            for offset, address, *_ in queue["units"][::7]:
                row = only_row(get(name, topic, queue_id, offset))
                assert (row["physical_offset"], row["queue_offset"]) == (address, offset)
    for topic, key, expected in manifest(name)["index_queries"][::20]:
        assert {row["physical_offset"] for row in get(name, key).rows if row["topic"] == topic} == set(expected)


def test_a_message_of_a_light_queue_is_found_there() -> None:
    queues = manifest("special-533-clean")["load"]["after_load"]["queues"]
    topic = next(topic for topic in queues if topic.startswith("%LMQ%"))
    offset, address, *_ = queues[topic]["0"]["units"][-1]

    assert only_row(get("special-533-clean", topic, 0, offset))["physical_offset"] == address


def test_several_messages_with_one_key_are_listed() -> None:
    ran = get("txn-533-clean", "tx0")

    assert positions(ran) == [one["phy"] for one in manifest("txn-533-clean")["messages"] if one["keys"] == "tx0"]
    assert "choose one with `mqtool get PHYSICAL_OFFSET`" in ran.remarks


def test_a_key_that_is_a_number_is_taken_for_an_address_only_where_a_message_lies(tmp_path: Path) -> None:
    stored = write_store(tmp_path / "store", [Draft(pairs={"KEYS": "20261121"}), Draft(pairs={"KEYS": "0"})])

    ran = get(tmp_path / "store", "20261121")

    assert positions(ran) == [stored[0].physical_offset]
    assert "treating it as a key" in ran.remarks
    assert positions(get(tmp_path / "store", "0")) == [0]


def test_a_message_that_no_index_knows_is_found_by_scan(tmp_path: Path) -> None:
    copy = copy_of("txn-497-clean", tmp_path)
    shutil.rmtree(copy / "index")
    message = manifest("txn-497-clean")["messages"][-3]

    assert message["phy"] in positions(get(copy, message["uniq_key"]))


def test_the_id_of_a_message_in_an_inner_batch_finds_the_batch() -> None:
    batch = only_row(get("batchcq-533-clean", "Inner2", 1, 1))

    row = only_row(get("batchcq-533-clean", batch["unique_key"]))

    assert row["physical_offset"] == batch["physical_offset"]
    assert [one["queue_offset"] for one in row["messages"]] == [0, 1]
    assert row["messages"][1]["unique_key"] == batch["unique_key"]


def test_a_message_whose_queue_has_no_unit_for_it_is_found_in_the_log(tmp_path: Path) -> None:
    stored = write_store(tmp_path / "store", [Draft(), Draft(topic="Other"), Draft(), Draft()])
    queue = next((tmp_path / "store" / "consumequeue" / "TopicTest" / "0").iterdir())
    overwrite(queue, consume_queue.UNIT_SIZE, bytes(2 * consume_queue.UNIT_SIZE))

    ran = get(tmp_path / "store", "TopicTest", 0, 2)

    assert positions(ran) == [stored[3].physical_offset]
    assert "the queue has no unit for queue offset 2" in ran.remarks


def test_a_message_whose_units_are_in_no_file_is_found_in_the_log(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    (store / "consumequeue" / "log-x" / "0" / f"{400:020}").unlink()

    ran = run("get", "-s", store, "log-x", 0, 25)

    (row,) = ran.rows
    assert (ran.status, row["topic"], row["queue_offset"]) == (Status.OK, "log-x", 25)
    assert "the queue has no unit for queue offset 25: the message was found in the log" in ran.remarks


def test_without_any_queue_the_place_in_a_queue_is_looked_up_in_the_log(tmp_path: Path) -> None:
    copy = copy_of(MIXED, tmp_path)
    shutil.rmtree(copy / "consumequeue")
    message = manifest(MIXED)["messages"][100]
    place = (message["topic"], message["queue_id"], message["queue_offset"])

    assert positions(get(copy, *place)) == [message["phy"]]
    assert get(copy, "None", 0, 0).status == Status.NO_INPUT


# What is shown.


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_the_fields_of_every_record_are_its_bytes_in_order(name: str) -> None:
    store = StoreReader(golden_store(name))
    for message in manifest(name)["messages"]:
        whole = store.record_at(message["phy"])
        fields, stop = annotate(whole, message["phy"])
        assert stop is None
        assert b"".join(field.data for field in fields) == whole
        assert [field.offset for field in fields] == list(
            itertools.accumulate((len(field.data) for field in fields[:-1]), initial=message["phy"])
        )


def test_hex_shows_each_field_with_its_bytes_and_value() -> None:
    ran = get("special-533-clean", 0, "--hex")

    rows = ran.rows
    by_name = {row["field"]: row for row in rows}
    whole = StoreReader(golden_store("special-533-clean")).record_at(0)
    message = manifest("special-533-clean")["messages"][0]
    assert "".join(row["hex"] for row in rows) == whole.hex()
    assert sum(row["size"] for row in rows) == len(whole) == by_name["size"]["value"]
    assert by_name["store_timestamp"]["value"] == message["store_timestamp"]
    assert by_name["topic"]["value"] == message["topic"]
    assert (by_name["store_address"]["value"], by_name["store_address"]["size"]) == ("fe80::dead:beef", 16)
    pairs = [row["value"] for row in rows if row["field"] in ("property_name", "property_value")]
    assert dict(zip(pairs[::2], pairs[1::2], strict=True)) == message["properties"]


def test_a_hex_page_holds_every_byte_once() -> None:
    ran = get("batchcq-533-clean", 2523, "--hex", "-o", "table")

    shown = "".join(
        "".join(line[6:53].split()) for line in ran.output.splitlines() if re.match(r" *\d+  [0-9a-f]{2}\b", line)
    )
    assert shown == StoreReader(golden_store("batchcq-533-clean")).record_at(2523).hex()
    assert "messages[1].property_value in3-1" in ran.output


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("SCHEDULE_TOPIC_XXXX", "waits to be delivered to TxOrders, queue"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", "half message: its transaction would deliver it to TxOrders, queue"),
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", "op message: the half messages with queue offset 0, 1, 4, 5, 8, 9 in queue 0"),
        ("TxOther", "delivered after delay level"),
    ],
)
def test_a_page_tells_what_a_broker_means_by_its_own_messages(name: str, words: str) -> None:
    message = next(one for one in manifest("txn-533-clean")["messages"] if one["topic"] == name)

    ran = get("txn-533-clean", message["phy"], "-o", "table")

    assert words in ran.output
    assert re.search(rf"^queue_offset: +{message['queue_offset']}$", ran.output, re.MULTILINE)


def test_a_page_shows_a_delayed_message_with_the_time_of_its_delivery() -> None:
    message = next(one for one in manifest("txn-497-clean")["messages"] if one["properties"].get("DELAY") == "18")

    ran = get("txn-497-clean", message["phy"], "-o", "table")

    assert "delay level 18 is 2h" in ran.output
    units = manifest("txn-497-clean")["load"]["after_load"]["queues"]["SCHEDULE_TOPIC_XXXX"]["17"]["units"]
    due = next(tags_code for _, address, _, tags_code in units if address == message["phy"])
    assert f"the tags code in its queue holds that time, {due}" in ran.output


def test_a_page_inflates_a_body_and_tells_both_sizes(tmp_path: Path) -> None:
    body = zlib.compress(b"hello " * 100)
    write_store(tmp_path / "store", [Draft(body=body, sys_flag=commit_log.COMPRESSED)])

    ran = get(tmp_path / "store", 0, "-o", "table")

    assert f"600 bytes, stored as {len(body)} bytes of zlib" in ran.output
    assert "hello hello" in ran.output


def test_a_page_cuts_a_long_body_and_says_how_to_see_the_rest(tmp_path: Path) -> None:
    write_store(
        tmp_path / "store",
        [Draft(body=b"line\n" * 100), Draft(body=bytes(range(256))), Draft(body=b'{"a":[1,2]}')],
    )
    store = StoreReader(tmp_path / "store")
    text, binary, json = [message.position for message in store.messages()]

    def page(*arguments: object) -> str:
        return get(tmp_path / "store", *arguments, "-o", "table").output

    assert page(text).count("  line") == 24
    assert "380 more characters: --body text shows all" in page(text)
    assert page(text, "--body", "text").count("  line") == 100
    assert "128 more bytes: --body hex shows all" in page(binary)
    assert "240  f0 f1 f2" in page(binary, "--body", "hex")
    assert '  "a": [\n' in page(json, "--body", "json")
    assert "line" not in page(text, "--body", "none")


def test_a_page_shows_an_inner_batch_message_by_message() -> None:
    ran = get("batchcq-533-clean", 2523, "-o", "table")

    assert "message 1 at queue offset 1, 12 bytes" in ran.output
    assert "epsilon569 d" in ran.output


def test_nothing_in_a_message_moves_the_cursor_of_a_terminal(tmp_path: Path) -> None:
    nasty = "\x1b[2J\x07\x9b"
    body = b"a long enough text " * 10 + nasty.encode()
    batch = batch_element(body, properties({"KEYS": nasty}))
    write_store(
        tmp_path / "store",
        [
            Draft(topic=nasty, body=body, pairs={nasty: nasty, "TAGS": nasty, "KEYS": "k"}),
            Draft(body=batch, pairs={"KEYS": "k", "INNER_NUM": "1"}, sys_flag=commit_log.INNER_BATCH),
        ],
    )
    addresses = [str(message.position) for message in StoreReader(tmp_path / "store").messages()]

    for ids, mode, more in itertools.product([*addresses, "k"], ("auto", "text", "json", "hex"), ((), ("--hex",))):
        ran = get(tmp_path / "store", ids, "--body", mode, "-o", "table", *more)
        assert not re.search(r"[^\n -~\xa0-\U0010ffff]", ran.output + ran.remarks)


# What is no message.


@pytest.mark.parametrize(
    ("ids", "status", "words"),
    [
        (["1"], Status.NO_INPUT, "it is inside the one at 0 (335 bytes)"),
        (["0x7fffffffffff"], Status.NO_INPUT, "the commit log covers 0 to 327,680"),
        (["OrderEvents", "0", "999"], Status.NO_INPUT, "queue 0 of OrderEvents holds 0 to 36"),
        (["OrderEvents", "9", "0"], Status.NO_INPUT, "it has 0, 1, 2, 3"),
        (["OrderEvent", "0", "0"], Status.NO_INPUT, "similar: OrderEvents"),
        (["OrderEvents", "0", "x"], Status.USAGE, "x is not a valid OFFSET"),
        (["OrderEvents", "0"], Status.USAGE, "give one ID, or TOPIC QUEUE OFFSET"),
        (["order-*"], Status.USAGE, "use `mqtool find --key`"),
        (["9" * 30], Status.NO_INPUT, "the commit log covers"),
        (["OrderEvents", "0", "9" * 18], Status.NO_INPUT, "queue 0 of OrderEvents holds 0 to 36"),
        (["OrderEvents", "0", "9" * 5000], Status.USAGE, "is not a valid OFFSET"),
        (["0x" + "f" * 5000], Status.NO_INPUT, "no message has the id or key"),
        (["order-none"], Status.NO_INPUT, "no message has the id or key order-none"),
        (["0" * 31 + "A"], Status.NO_INPUT, "no message has the id or key"),
        (["7F000001000051B0" + "0" * 16], Status.NO_INPUT, "has another id: 7F000001000051AF"),
        (["327600"], Status.NO_INPUT, "nothing was ever written at 327,600: the log covers 0 to"),
    ],
)
def test_a_message_that_is_not_there_is_explained(ids: list[str], status: Status, words: str) -> None:
    ran = get(MIXED, *ids)

    assert ran.status == status
    assert words in ran.remarks
    assert not ran.output


def test_the_filler_at_the_end_of_a_segment_is_no_damage() -> None:
    (blank, size), *_ = manifest(MIXED)["blanks"]

    for offset in (blank, blank + 1, blank + size - 1):
        ran = get(MIXED, offset)
        assert ran.status == Status.NO_INPUT
        assert f"{blank:,} to {blank + size:,}, where its segment ends, is filler" in ran.remarks


def test_an_expired_message_is_told_from_one_that_never_was(tmp_path: Path) -> None:
    copy = copy_of("many-533-clean", tmp_path)
    next(iter(sorted((copy / "commitlog").iterdir()))).unlink()
    topic, queue = "bench-topic-0", "0"

    ran = get(copy, topic, queue, 0)

    assert ran.status == Status.NO_INPUT
    assert "it has expired" in ran.remarks


@pytest.mark.parametrize(
    ("at", "data", "words"),
    [
        (4, b"\0\0\0\0", "no message starts"),
        (0, b"\x7f\xff\xff\xff", "a record claims to have 2,147,483,647 bytes"),
        (84, b"\0\xff\xff\xff", "sizes do not add up"),
        (88, b"\xee", "the body is damaged: its CRC is"),
        (28, b"\1", "says that it is at"),
        (-30, b"\0" * 30, "the properties are damaged"),
        (0, b"\xee" * 60, "no message starts"),
    ],
    ids=["magic", "size", "body size", "body", "physical offset", "properties", "noise"],
)
def test_damage_ends_with_a_status_and_hex_shows_the_bytes_all_the_same(
    at: int, data: bytes, words: str, tmp_path: Path
) -> None:
    copy = copy_of("txn-497-clean", tmp_path)
    message, following = manifest("txn-497-clean")["messages"][5:7]
    overwrite(copy / "commitlog" / f"{0:020}", (message if at >= 0 else following)["phy"] + at, data)
    whole = (copy / "commitlog" / f"{0:020}").read_bytes()[message["phy"] : following["phy"]]

    for ids in ([message["phy"]], [message["topic"], message["queue_id"], message["queue_offset"]]):
        ran = get(copy, *ids)
        assert ran.status == Status.BAD_DATA
        assert words in ran.remarks
    ran = get(copy, message["phy"], "--hex")
    shown = "".join(row["hex"] for row in ran.rows)
    assert ran.status == Status.BAD_DATA
    assert whole.hex().startswith(shown)
    assert len(shown) >= 2 * min(256, len(whole))
    assert get(copy, message["phy"], "--hex", "-o", "table").status == Status.BAD_DATA


def test_a_unit_that_names_the_wrong_message_is_told(tmp_path: Path) -> None:
    stored = write_store(tmp_path / "store", [Draft(), Draft(), Draft(topic="Other")])
    queue = next((tmp_path / "store" / "consumequeue" / "TopicTest" / "0").iterdir())

    for wrong, words in (
        (stored[1].physical_offset, "whose queue offset is 1"),
        (stored[2].physical_offset, "a message of Other"),
        (stored[1].physical_offset + 1, "the unit of queue offset 0 is wrong"),
    ):
        overwrite(queue, 0, wrong.to_bytes(8, "big"))
        ran = get(tmp_path / "store", "TopicTest", 0, 0)
        assert ran.status == Status.BAD_DATA
        assert words in ran.remarks


@given(st.data())
def test_the_fields_of_damaged_bytes_are_those_bytes(data: st.DataObject) -> None:
    body = batch_element(b"one", properties({"KEYS": "k"})) + batch_element(b"two")
    sound = record(64, body=body, sys_flag=commit_log.INNER_BATCH, properties=properties({"a": "b", "c": "d"}))
    damaged = data.draw(flipped(sound) | cut(sound) | st.binary())

    fields, stop = annotate(damaged, 64)

    assert b"".join(field.data for field in fields) == damaged
    assert [field.offset for field in fields[1:]] == [field.offset + len(field.data) for field in fields[:-1]]
    assert stop is not None or len(damaged) == len(sound)


@given(st.data())
def test_no_byte_of_a_log_makes_get_fail(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    store = tmp_path_factory.mktemp("get") / "store"
    stored = write_store(store, [Draft(pairs={"KEYS": "k"}), Draft(pairs={"KEYS": "k l"}), Draft()])
    segment = next((store / "commitlog").iterdir())
    end = stored[-1].physical_offset + len(stored[-1].record)
    sound = segment.read_bytes()
    segment.write_bytes(data.draw(flipped(sound[:end])) + sound[end:])
    address = data.draw(st.sampled_from([one.physical_offset for one in stored]) | st.integers(0, end + 50))

    statuses = {
        get(store, *ids, *more).status
        for ids in ([address], ["TopicTest", 0, 1], ["k"])
        for more in ([], ["--hex"], ["-o", "table"], ["--hex", "-o", "table"])
    }

    assert statuses <= {Status.OK, Status.BAD_DATA, Status.NO_INPUT}


def test_looking_at_a_message_changes_nothing_and_loads_nothing_slow() -> None:
    store = golden_store("mixed-533-kill")
    before = snapshot(store)
    code = (
        "import sys; from mqtool.cli import run; status = run(sys.argv[1:]);"
        "sys.exit(status or any(name in sys.modules for name in ('numba', 'pyarrow', 'pyspark', 'lark', 'rocksdict')))"
    )

    ran = subprocess.run([sys.executable, "-c", code, "get", "-s", store, "0"], capture_output=True, check=False)

    assert ran.returncode == 0, ran.stderr
    assert snapshot(store) == before
