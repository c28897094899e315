"""``mqtool stats`` against sums over what Java read."""

import collections
import ipaddress
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from mqtool.errors import Status
from tests.builders import Draft, StoreSizes, properties, record, write_store
from tests.commands.running import Ran, run
from tests.commands.test_pull import small_store
from tests.damage import apply_ops, cases, snapshot, with_noise
from tests.golden import GOLDEN_NAMES, copy_of, golden_store, manifest

Message = dict[str, Any]
STORE = "mixed-533-clean"
CLASSES = [0, 128, 512, 1024, 4096, 16_384, 65_536, 262_144, 1 << 20, 4 << 20]


def address(host: str) -> str:
    return str(ipaddress.ip_address(host.rpartition(":")[0].strip("[]")))


KEYS: dict[str, tuple[tuple[str, ...], Callable[[Message], tuple[Any, ...]]]] = {
    "topic": (("topic",), lambda one: (one["topic"],)),
    "queue": (("topic", "queue_id"), lambda one: (one["topic"], one["queue_id"])),
    "tag": (("topic", "tags"), lambda one: (one["topic"], one["tags"])),
    "hour": (("hour_timestamp",), lambda one: (one["store_timestamp"] // 3_600_000 * 3_600_000,)),
    "size": (("body_size_from",), lambda one: (max(size for size in CLASSES if size <= one["body_len"]),)),
    "host": (("born_address",), lambda one: (address(one["born_host"]),)),
}


def stats(store: str, *arguments: object) -> Ran:
    return run("stats", "-s", golden_store(store), *arguments)


def sums(messages: Iterable[Message], by: str) -> dict[tuple[Any, ...], tuple[int, ...]]:
    groups = collections.defaultdict(list)
    for message in messages:
        groups[KEYS[by][1](message)].append(message)
    return {
        key: (
            sum(int(one["properties"].get("INNER_NUM", 1)) if one["sys_flag"] & 0x80 else 1 for one in group),
            len(group),
            sum(one["size"] for one in group),
            sum(one["body_len"] for one in group),
            min(one["store_timestamp"] for one in group),
            max(one["store_timestamp"] for one in group),
        )
        for key, group in groups.items()
    }


def told(ran: Ran, by: str) -> dict[tuple[Any, ...], tuple[int, ...]]:
    names = ("message_count", "record_count", "size", "body_size", "first_store_timestamp", "last_store_timestamp")
    return {tuple(row[name] for name in KEYS[by][0]): tuple(row[name] for name in names) for row in ran.rows}


@pytest.mark.parametrize("by", KEYS)
@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_groups_sum_up_what_java_read(name: str, by: str) -> None:
    ran = stats(name, "--by", by)

    assert ran.status == Status.OK
    assert told(ran, by) == sums(manifest(name)["messages"], by)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (("--topic", "Order*"), lambda one: one["topic"] == "OrderEvents"),
        (("--topic", "log-x", "--topic", "pay_events"), lambda one: one["topic"] in ("log-x", "pay_events")),
        (("--queue", "1", "--queue", "3"), lambda one: one["queue_id"] in (1, 3)),
        (("--tag", "Tag[AB]"), lambda one: one["tags"] in ("TagA", "TagB")),
        (
            ("--topic", "log-x", "--tag", "order-*"),
            lambda one: one["topic"] == "log-x" and one["tags"] == "order-created",
        ),
        (("--from", "64KiB"), lambda one: one["phy"] >= 65_536),
        (("--from", 70_000, "--to", 200_000), lambda one: 70_000 <= one["phy"] < 200_000),
    ],
)
@pytest.mark.parametrize("by", ["queue", "tag"])
def test_filters_choose_what_counts(by: str, options: tuple[object, ...], wanted: Callable[[Message], bool]) -> None:
    expected = sums(filter(wanted, manifest(STORE)["messages"]), by)

    assert expected
    assert told(stats(STORE, "--by", by, *options), by) == expected


@pytest.mark.parametrize("name", ["mixed-533-clean", "many-533-clean"])
def test_store_times_choose_what_counts(name: str) -> None:
    messages = manifest(name)["messages"]
    since, until = messages[40]["store_timestamp"], messages[-40]["store_timestamp"]

    ran = stats(name, "--by", "queue", "--since", since, "--until", until)

    assert told(ran, "queue") == sums((one for one in messages if since <= one["store_timestamp"] < until), "queue")


def test_rates_are_over_the_time_of_all_counted_messages() -> None:
    messages = manifest(STORE)["messages"]
    span = (messages[-1]["store_timestamp"] - messages[0]["store_timestamp"]) / 1000

    rows = stats(STORE).rows

    for row in rows:
        assert row["messages_per_second"] == round(row["message_count"] / span, 3)
        assert row["bytes_per_second"] == round(row["size"] / span, 3)


def test_topics_of_the_broker_itself_are_told_apart() -> None:
    kinds = {row["topic"].partition("GID")[0]: row["kind"] for row in stats("retry-533-clean").rows}

    assert kinds == {"Retries": "user", "SCHEDULE_TOPIC_XXXX": "system", "%RETRY%": "retry", "%DLQ%": "dead letter"}


def test_a_table_ends_with_the_sum_and_json_lines_do_not() -> None:
    table = stats(STORE, "-o", "table").output.splitlines()
    rows = stats(STORE).rows

    assert table[-1].split()[:3] == ["total", "287", str(sum(row["size"] for row in rows))]
    assert len(table) == len(rows) + 2


def test_jobs_change_nothing() -> None:
    one, four = (stats("many-533-clean", "--by", "queue", "-j", jobs) for jobs in (1, 4))

    assert one == four


@pytest.mark.parametrize(
    ("option", "pattern", "near"),
    [("--topic", "OrderEvent", "OrderEvents"), ("--queue", "17", "1"), ("--tag", "TagZ", "TagA")],
)
def test_a_pattern_without_a_match_is_an_error_with_near_names(option: str, pattern: str, near: str) -> None:
    ran = stats(STORE, option, pattern)

    assert (ran.status, ran.output) == (Status.NO_INPUT, "")
    assert f"matches {pattern}; similar: " in ran.remarks
    assert near in ran.remarks


@pytest.mark.parametrize(
    ("case", "remark"),
    [
        ("mixed-533-clean/magic-blank", "bytes hold no message that can be read"),
        ("mixed-533-clean/middle-segment-missing", "65,536 bytes of the log are missing from offset"),
        ("mixed-497-clean/topic-length", "1 damaged record left out: sizes do not add up, or the topic is damaged"),
        ("mixed-497-clean/tail-zeros-mid-record", "10,594 bytes hold no message that can be read"),
    ],
)
def test_what_cannot_be_read_is_remarked(case: str, remark: str, tmp_path: Path) -> None:
    store = next(one for one in cases() if one.name == case).store(tmp_path)
    before = snapshot(store)

    ran = run("stats", "-s", store)

    assert remark in ran.remarks
    assert ran.status == run("verify", "-s", store).status == Status.DAMAGE
    assert sum(row["message_count"] for row in ran.rows) < 287
    assert snapshot(store) == before


def test_noise_after_the_last_message_is_remarked_and_no_message_is_lost(tmp_path: Path) -> None:
    store = with_noise(copy_of(STORE, tmp_path))

    ran = run("stats", "-s", store)

    assert "@28150: after the last message are bytes that are not a message" in ran.remarks
    verified = run("verify", "-s", store)
    assert ran.status == verified.status == Status.WARNINGS
    assert sum(row["message_count"] for row in ran.rows) == 287
    assert [row["code"] for row in verified.rows if row["severity"] != "note"] == ["LOG-NOISE"]


def test_a_message_whose_topic_is_damaged_may_be_of_the_topics_that_are_asked_for(tmp_path: Path) -> None:
    store = copy_of(STORE, tmp_path)
    message = manifest(STORE)["messages"][5]
    file, at = f"commitlog/{0:020}", message["phy"] + 88 + message["body_len"] + 1
    apply_ops(store, [{"op": "write", "file": file, "at": at, "hex": "ff"}])

    counted, found = (run(name, "-s", store, "--topic", message["topic"]) for name in ("stats", "find"))

    for ran in (counted, found):
        assert "1 damaged record" in ran.remarks
        assert ran.status == Status.DAMAGE
    assert [row["message_count"] for row in counted.rows] == [len(found.rows)]


def test_each_damage_behind_the_last_message_is_judged_by_itself(tmp_path: Path) -> None:
    write_store(tmp_path, [Draft(body=b"x" * 900)] * 5, StoreSizes(segment=4096))
    first, second = sorted((tmp_path / "commitlog").iterdir())
    end = 3 * len(record(physical_offset=0, body=b"x" * 900, topic="TopicTest"))
    first.write_bytes(first.read_bytes()[:end] + b"\xff" * (4096 - end))
    second.write_bytes(second.read_bytes()[:700])

    ran = run("stats", "-s", tmp_path)

    assert ran.status == Status.DAMAGE
    assert f"{first.name}@{end}: {4096 - end:,} bytes hold no message" in ran.remarks
    assert f"{second.name}@0: 700 bytes hold no message" in ran.remarks


def test_damage_where_counting_stops_is_not_noise_after_the_log(tmp_path: Path) -> None:
    store = copy_of(STORE, tmp_path)
    message = manifest(STORE)["messages"][5]
    apply_ops(store, [{"op": "write", "file": f"commitlog/{0:020}", "at": message["phy"], "hex": "ff" * 8}])

    ran = run("stats", "-s", store, "--to", message["phy"] + 50)

    assert f"@{message['phy']}: 50 bytes hold no message that can be read" in ran.remarks
    assert ran.status == Status.DAMAGE
    assert sum(row["message_count"] for row in ran.rows) == 5


def test_messages_of_a_segment_whose_name_puts_it_over_another_are_counted_once(tmp_path: Path) -> None:
    store = copy_of(STORE, tmp_path)
    log = store / "commitlog"
    (log / f"{65536:020}").rename(log / f"{30000:020}")
    counted = run("stats", "-s", store).rows

    assert sum(row["message_count"] for row in counted) == len(manifest(STORE)["messages"])


@pytest.mark.parametrize(
    "command",
    ["stats", "find --topic OrderEvents", "export", f"get {'0' * 32}", "dump commitlog", "dlq show --group g"],
)
def test_a_store_whose_log_is_gone_is_not_taken_for_one_without_messages(command: str, tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    (store / "commitlog").rename(tmp_path / "moved")

    ran = run(*command.split(), "-s", store)

    assert (ran.status, ran.output) == (Status.NO_INPUT, "")
    assert str(tmp_path / "moved") in ran.remarks


def test_a_log_without_a_message_gives_no_row(tmp_path: Path) -> None:
    store = copy_of("txn-533-kill", tmp_path)
    for segment in (store / "commitlog").iterdir():
        apply_ops(store, [{"op": "zero", "file": f"commitlog/{segment.name}", "at": 0, "len": 65_536}])

    ran = run("stats", "-s", store)

    assert (ran.status, ran.output) == (Status.OK, "")
    assert "0 messages in 0 bytes" in ran.remarks


def test_control_characters_never_reach_a_table(tmp_path: Path) -> None:
    store = small_store(tmp_path, {"properties": properties({"TAGS": "\x1b[2J\x07"})})

    ran = run("stats", "-s", store, "--by", "tag", "-o", "table")

    assert "\\x1b[2J\\x07" in ran.output
    assert "\x1b" not in ran.output


@pytest.mark.parametrize("name", ["mixed-533-clean", "batchcq-533-clean"])
def test_placeholders_of_lost_messages_are_counted_apart(name: str, tmp_path: Path) -> None:
    store = copy_of(name, tmp_path)
    lost = [one for one in manifest(name)["messages"] if one["phy"] < 20_000][3:9]
    with (store / "commitlog" / ("0" * 20)).open("r+b") as file:
        for one in lost:
            file.seek(one["phy"] + 4)
            file.write(bytes(one["size"] - 4))

    assert run("recover", "-s", store, "--abnormal", "--yes").status == Status.GIVEN_UP
    ran = run("stats", "-s", store)

    kept = len(manifest(name)["messages"]) - len(lost)
    assert sum(row["record_count"] for row in ran.rows) == kept
    assert re.search(r"(\d+) placeholders? of (a )?lost messages? (is|are) not counted", ran.remarks)
    every_queue = run("stats", "--by", "queue", "-s", store)
    assert sum(row["record_count"] for row in every_queue.rows) == kept
