"""``mqtool pull``: statuses, offsets, filters, and what a person sees of them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mqtool.errors import Status
from tests.builders import properties, record
from tests.commands.running import Ran, run
from tests.damage import apply_ops, snapshot
from tests.golden import GOLDEN_NAMES, copy_of, golden_store, manifest

STORE = "mixed-533-clean"
TOPIC = "OrderEvents"


def pull(store: str, *arguments: object) -> Ran:
    return run("pull", "-s", golden_store(store), *arguments)


def queues_of(name: str) -> list[tuple[str, int, dict[str, Any]]]:
    queues = manifest(name)["load"]["after_load"]["queues"]
    return [(topic, int(number), queue) for topic, ids in queues.items() for number, queue in ids.items()]


def messages_of(name: str, topic: str, queue_id: int) -> list[dict[str, Any]]:
    by_position = {message["phy"]: message for message in manifest(name)["messages"]}
    units = manifest(name)["load"]["after_load"]["queues"][topic][str(queue_id)]["units"]
    return [by_position[unit[1]] for unit in units]


def small_store(root: Path, *records: dict[str, Any]) -> Path:
    """Write messages of topic ``T``, queue 0, and their units."""
    log, units = b"", b""
    for number, given in enumerate(records):
        made = record(len(log), topic="T", queue_offset=number, **given)
        units += len(log).to_bytes(8, "big") + len(made).to_bytes(4, "big") + bytes(8)
        log += made
    for name, data, size in (("commitlog", log, 65_536), ("consumequeue/T/0", units, 400)):
        (root / name).mkdir(parents=True)
        (root / name / f"{0:020}").write_bytes(data.ljust(size, b"\0"))
    return root


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_queue_is_walked_end_to_end(name: str) -> None:
    for topic, queue_id, queue in queues_of(name):
        if not (golden_store(name) / "consumequeue" / topic).exists() and not queue["units"]:
            continue  # a broker's own topic, which it made in its memory
        ran = pull(name, "--topic", topic, "--queue", queue_id, "--body", "none")

        assert ran.status == Status.OK
        positions = list(dict.fromkeys(row["physical_offset"] for row in ran.rows))
        known = [unit[1] for unit in queue["units"]]
        assert positions[: len(known)] == known
        assert len(ran.rows) == queue["max"] - queue["min"]
        if "%LMQ%" not in topic:
            # A light queue names its messages by the queue of their own topic.
            assert [row["queue_offset"] for row in ran.rows] == list(range(queue["min"], queue["max"]))
        status = "FOUND" if ran.rows else "NO_NEW_MSG"
        count = f"{len(ran.rows)} message{'s' if len(ran.rows) != 1 else ''}"
        ends = f"next offset {queue['max']}, min {queue['min']}, max {queue['max']}"
        assert ran.remarks.splitlines()[-1] == f"mqtool: {status}: {count}, {ends}"


@pytest.mark.parametrize(
    ("offset", "limit", "remark"),
    [
        (0, 5, "FOUND: 5 messages, next offset 5"),
        (17, 5, "FOUND: 5 messages, next offset 22"),
        (20, 5, "FOUND: 2 messages, next offset 22"),
        (22, 5, "NO_NEW_MSG: 0 messages, next offset 22"),
        (23, 5, "OFFSET_ILLEGAL (OFFSET_OVERFLOW_BADLY): no message at offset 23, next offset 22"),
        (1 << 60, 5, f"OFFSET_ILLEGAL (OFFSET_OVERFLOW_BADLY): no message at offset {1 << 60:,}, next offset 22"),
    ],
)
def test_status_and_next_offset_at_the_edges(offset: int, limit: int, remark: str) -> None:
    ran = pull("mixed-533-kill", "--topic", TOPIC, "--queue", 0, "--offset", offset, "--limit", limit)

    assert ran.status == Status.OK
    assert ran.remarks.splitlines()[-1] == f"mqtool: {remark}, min 0, max 22"


def test_an_offset_below_the_minimum_is_illegal_and_leads_to_the_minimum(tmp_path: Path) -> None:
    store = copy_of("many-533-clean", tmp_path)
    for segment in sorted((store / "commitlog").iterdir())[:5]:
        segment.unlink()
    topic, queue_id, queue = queues_of("many-533-clean")[0]
    kept = [unit for unit in queue["units"] if unit[1] >= 5 * 16_384]

    ran = run("pull", "-s", store, "--topic", topic, "--queue", queue_id, "--offset", 0)
    whole = run("pull", "-s", store, "--topic", topic, "--queue", queue_id)

    assert ran.output == ""
    assert "OFFSET_ILLEGAL (OFFSET_TOO_SMALL)" in ran.remarks
    assert f"next offset {kept[0][0]}, min {kept[0][0]}, max {queue['max']}" in ran.remarks
    assert [row["queue_offset"] for row in whole.rows] == [unit[0] for unit in kept]


def test_a_queue_that_was_never_written_to_has_no_new_message() -> None:
    ran = pull("retry-533-clean", "--topic", "SELF_TEST_TOPIC", "--queue", 0)
    far = pull("retry-533-clean", "--topic", "SELF_TEST_TOPIC", "--queue", 0, "--offset", 7)

    assert (ran.status, far.status) == (Status.OK, Status.OK)
    assert "NO_NEW_MSG: 0 messages, next offset 0, min 0, max 0" in ran.remarks
    assert "OFFSET_ILLEGAL (NO_MATCHED_LOGIC_QUEUE): no message at offset 7, next offset 0" in far.remarks


@pytest.mark.parametrize("name", ["mixed-497-kill", "ext-497-kill", "ext-533-clean", "rocksdb-533-clean"])
@pytest.mark.parametrize("tags", [("TagA",), ("TagB", "TagC"), ("nothing",)])
def test_tags_select_what_brute_force_selects(name: str, tags: tuple[str, ...]) -> None:
    for topic, queue_id, queue in queues_of(name):
        if not queue["units"]:
            continue
        expected = [one["phy"] for one in messages_of(name, topic, queue_id) if one["tags"] in tags]

        options = [option for tag in tags for option in ("--tag", tag)]
        by_tags = pull(name, "--topic", topic, "--queue", queue_id, *options)
        by_filter = pull(name, "--topic", topic, "--queue", queue_id, "--filter", " || ".join(tags))

        assert [row["physical_offset"] for row in by_tags.rows] == expected
        assert by_filter.output == by_tags.output
        assert f"{'FOUND' if expected else 'NO_MATCHED_MSG'}: {len(expected)} message" in by_tags.remarks
        assert f"next offset {queue['max']}," in by_tags.remarks


def test_a_star_asks_for_everything() -> None:
    assert len(pull(STORE, "--topic", "log-x", "--queue", 0, "--filter", "*").rows) == 91


def test_sql92_selects_by_properties() -> None:
    wanted = [
        one["phy"]
        for one in messages_of(STORE, "log-x", 0)
        if one["properties"].get("color") == "alpha" or one["properties"].get("region") == "eu-0"
    ]

    ran = pull(STORE, "--topic", "log-x", "--queue", 0, "--sql", "color = 'alpha' OR region = 'eu-0'")

    assert wanted
    assert [row["physical_offset"] for row in ran.rows] == wanted


def test_the_end_of_a_filter_that_rocketmq_does_not_read_is_told() -> None:
    ran = pull(STORE, "--topic", "log-x", "--queue", 0, "--sql", "color LIKE 'a%'")

    assert ran.output == ""
    assert "ignores the end of this filter, and so does mqtool: LIKE 'a%'" in ran.remarks
    assert "NO_MATCHED_MSG" in ran.remarks


@pytest.mark.parametrize(
    "arguments",
    [
        ("--sql", "a >"),
        ("--sql", "a > 1", "--tag", "TagA"),
        ("--filter", "||"),
        ("--offset", 1, "--since", "2h"),
        ("--since", "2h", "--as-broker", "six"),
        ("--offset", -1),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: tuple[object, ...]) -> None:
    ran = pull(STORE, "--topic", "log-x", "--queue", 0, *arguments)

    assert (ran.status, ran.output) == (Status.USAGE, "")


def test_a_wrong_topic_or_queue_is_not_found_and_near_names_are_told() -> None:
    topic = pull(STORE, "--topic", "OrderEvent", "--queue", 0)
    queue = pull(STORE, "--topic", TOPIC, "--queue", 9)
    several = pull(STORE, "--topic", TOPIC)

    assert (topic.status, queue.status, several.status) == (Status.NO_INPUT, Status.NO_INPUT, Status.USAGE)
    assert "similar: OrderEvents" in topic.remarks
    assert "OrderEvents has no queue 9; it has 0, 1, 2, 3" in queue.remarks
    assert "choose one with --queue" in several.remarks


def test_messages_of_an_inner_batch_come_one_by_one_from_the_offset_on() -> None:
    ran = pull("batchcq-533-clean", "--topic", "Inner", "--queue", 0, "--offset", 2, "--limit", 4)

    assert [row["queue_offset"] for row in ran.rows] == [2, 3, 4, 5]
    assert all(row["body_encoding"] == "text" and row["unique_key"] for row in ran.rows)
    assert "FOUND: 4 messages, next offset 6," in ran.remarks


def test_a_broker_finds_no_tags_in_inner_batches() -> None:
    ran = pull("batchcq-533-clean", "--topic", "Inner", "--queue", 0, "--tag", "inner")

    assert "NO_MATCHED_MSG" in ran.remarks
    assert "does not know the tags of messages in an inner batch" in ran.remarks


@pytest.mark.parametrize("name", ["mixed-533-clean", "mixed-497-clean"])
def test_since_starts_where_a_broker_would(name: str) -> None:
    options = ("--as-broker", "4.9.7") if "497" in name else ()
    for topic, queue_id, timestamp, offset in manifest(name)["offset_by_time"][::7]:
        ran = pull(name, "--topic", topic, "--queue", queue_id, "--since", timestamp, "--limit", 1, *options)

        assert [row["queue_offset"] for row in ran.rows] == [offset][: len(ran.rows)]
        assert f"next offset {offset + len(ran.rows)}," in ran.remarks


def test_a_damaged_message_is_remarked_and_the_next_ones_follow(tmp_path: Path) -> None:
    store = copy_of(STORE, tmp_path)
    unit = manifest(STORE)["load"]["after_load"]["queues"][TOPIC]["0"]["units"][3]
    apply_ops(store, [{"op": "write", "file": f"commitlog/{0:020}", "at": unit[1] + 4, "hex": "00000000"}])
    before = snapshot(store)

    ran = run("pull", "-s", store, "--topic", TOPIC, "--queue", 0)

    assert ran.status == Status.DAMAGE
    assert [row["queue_offset"] for row in ran.rows] == [one for one in range(len(ran.rows) + 1) if one != 3]
    assert f"queue offset 3: no message starts at offset {unit[1]:,}" in ran.remarks
    assert snapshot(store) == before


def test_an_empty_unit_is_remarked_and_passed_over(tmp_path: Path) -> None:
    store = copy_of(STORE, tmp_path)
    apply_ops(store, [{"op": "zero", "file": f"consumequeue/{TOPIC}/0/{0:020}", "at": 40, "len": 20}])

    ran = run("pull", "-s", store, "--topic", TOPIC, "--queue", 0)

    assert ran.status == Status.DAMAGE
    assert [row["queue_offset"] for row in ran.rows][:3] == [0, 1, 3]
    assert "queue offset 2: the unit is empty; no message can be read" in ran.remarks


def test_units_that_no_file_has_are_told(tmp_path: Path) -> None:
    store = copy_of(STORE, tmp_path)
    (store / "consumequeue" / "log-x" / "0" / f"{400:020}").unlink()

    ran = run("pull", "-s", store, "--topic", "log-x")

    assert ran.status == Status.DAMAGE
    assert [row["queue_offset"] for row in ran.rows] == [*range(20), *range(40, 91)]
    assert "queue offset 20: no file holds the 20 units from here on; no message can be read" in ran.remarks


def test_a_unit_that_leads_to_a_message_of_another_place_is_told(tmp_path: Path) -> None:
    store = copy_of(STORE, tmp_path)
    own, other = (store / "consumequeue" / name / "0" / f"{0:020}" for name in (TOPIC, "log-x"))
    units = own.read_bytes()
    own.write_bytes(units[:20] + other.read_bytes()[20:40] + units[60:80] + units[60:])

    ran = run("pull", "-s", store, "--topic", TOPIC, "--queue", 0, "--limit", 4)

    assert ran.status == Status.DAMAGE
    assert [row["topic"] for row in ran.rows] == [TOPIC, "log-x", TOPIC, TOPIC]
    assert "queue offset 1: the unit points to a message of log-x, queue 0; shown anyway" in ran.remarks
    assert "queue offset 2: the unit points to a message whose queue offset is 3; read anyway" in ran.remarks


def test_control_characters_never_reach_a_table(tmp_path: Path) -> None:
    evil = "\x1b[2J\x07"
    store = small_store(tmp_path, {"body": evil.encode(), "properties": properties({"TAGS": evil, "KEYS": evil})})

    ran = run("pull", "-s", store, "--topic", "T", "-o", "table")

    assert ran.status == Status.OK
    assert "\\x1b[2J" in ran.output
    assert not {"\x1b", "\x07"} & set(ran.output + ran.remarks)


def test_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    store = small_store(tmp_path, *[{"body": bytes(1000)}] * 20)
    command = f"{sys.executable} -m mqtool pull -s {store} --topic T --body hex | head -c 10"

    ran = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, env=os.environ)

    assert ran.returncode == 0
    assert "Traceback" not in ran.stderr
