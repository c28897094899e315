"""``mqtool send``: messages from the command line, files, lines and rows."""

import base64
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mqtool
from mqtool.commands.send import Pace
from mqtool.errors import Status
from tests.commands.running import Ran, run


@pytest.fixture
def broker() -> Iterator[mqtool.Broker]:
    with mqtool.Broker() as running:
        yield running


def send(broker: mqtool.Broker, *arguments: str, lines: bytes = b"", status: Status = Status.OK) -> Ran:
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(lines))
    try:
        ran = run("send", "-n", broker.name_server_address, "--topic", "Orders", *arguments)
    finally:
        sys.stdin = before
    assert ran.status == status, ran.remarks
    return ran


def stored(broker: mqtool.Broker) -> list[Any]:
    return list(mqtool.open_store(broker.store).messages())


def test_files_and_lines_are_messages_as_they_are(broker: mqtool.Broker, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"\xff\n\x00")
    send(broker, "typed", "--file", str(tmp_path / "body"))
    send(broker, lines=b"one\ntwo\r\nthree")

    assert [one.body for one in stored(broker)] == [b"typed", b"\xff\n\x00", b"one", b"two", b"three"]


def test_empty_lines_are_passed_over_and_told(broker: mqtool.Broker) -> None:
    ran = send(broker, lines=b"\none\n\r\n\ntwo\n")

    assert [one.body for one in stored(broker)] == [b"one", b"two"]
    assert ran.remarks == "mqtool: 3 empty lines were skipped: a message needs a body\n"


@pytest.mark.parametrize("batch", [(), ("--batch", "2")])
def test_rows_that_were_shown_can_be_sent_again(batch: tuple[str, ...], broker: mqtool.Broker) -> None:
    send(broker, "--tag", "new", "--key", "a", "--key", "b", "--property", "price=5", "text")
    rows = run("dump", "commitlog", "-s", str(broker.store)).output.encode()
    for encoding, body in (("hex", b"\x01".hex()), ("base64", base64.b64encode(b"\x02").decode()), ("json", {"x": 1})):
        rows += orjson.dumps({"body": body, "body_encoding": encoding}) + b"\n"

    ran = send(broker, "--jsonl", *batch, lines=rows)

    _, first, *others = stored(broker)
    assert (first.body, first.tags, first.keys, first.properties["price"]) == (b"text", "new", "a b", "5")
    assert [one.body for one in others] == [b"\x01", b"\x02", b'{"x":1}']
    assert [row["message_id"] for row in ran.rows] == [one.message_id for one in (first, *others)]
    if not batch:  # brokers show that of the batch in place of each
        assert [row["unique_key"] for row in ran.rows] == [one.unique_key for one in (first, *others)]
    assert [row["queue_offset"] for row in ran.rows] == [one.queue_offset for one in (first, *others)]


def test_what_the_command_line_says_counts_more_than_a_row(broker: mqtool.Broker) -> None:
    row = orjson.dumps({"body": "x", "tags": "a", "keys": "k", "properties": {"p": "1", "q": "2", "UNIQ_KEY": "old"}})
    send(broker, "--jsonl", "--tag", "b", "--property", "p=3", lines=row)

    [one] = stored(broker)
    assert (one.tags, one.keys, one.properties["p"], one.properties["q"]) == ("b", "k", "3", "2")
    assert one.unique_key != "old"


def test_messages_can_be_delivered_later(broker: mqtool.Broker) -> None:
    send(broker, "--delay", "2h", "far")
    send(broker, "--delay-level", "18", "far, too")

    assert [one.topic for one in stored(broker)] == ["rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"]


@given(st.floats(0.1, 1000), st.lists(st.tuples(st.integers(1, 50), st.floats(0, 10)), min_size=1, max_size=20))
def test_a_rate_is_kept_between_any_two_messages(rate: float, groups: list[tuple[int, float]]) -> None:
    pace, now, sent = Pace(rate), 0.0, list[tuple[float, int]]()
    for count, pause in groups:
        now += pause
        now += pace.wait(count, now)
        sent.append((now, count))
    for first, (start, _) in enumerate(sent):
        for last, (end, _) in enumerate(sent[first + 1 :], first + 1):
            assert end - start >= sum(count for _, count in sent[first:last]) / rate - 1e-6


def test_messages_are_sent_at_a_rate(broker: mqtool.Broker) -> None:
    send(broker, "--rate", "1000", "one", "two")

    assert len(stored(broker)) == 2


@pytest.mark.parametrize(
    ("arguments", "lines", "status", "sentence"),
    [
        (("--jsonl", "body"), b"", Status.USAGE, "--jsonl reads standard input"),
        (("--batch", "2", "--delay", "1s", "x"), b"", Status.USAGE, "messages of a batch cannot be delayed"),
        (("--delay-level", "1", "--delay", "1s", "x"), b"", Status.USAGE, "mutually exclusive"),
        (("--property", "UNIQ_KEY=1", "x"), b"", Status.USAGE, "UNIQ_KEY cannot be set by an application"),
        (("--queue", "99", "x"), b"", Status.NO_INPUT, "has no writable queue 99"),
        (("--file", "/no/such/file"), b"", Status.NO_INPUT, "/no/such/file"),
        (("--jsonl",), b"no row\n", Status.BAD_DATA, "line 1 of standard input is not a row of a message"),
        (("--jsonl",), b"{}\n", Status.BAD_DATA, "line 1 of standard input is not a row of a message"),
        (("--jsonl",), b'{"body":null}\n', Status.BAD_DATA, "line 1 of standard input is not a row of a message"),
        (("--jsonl",), b'{"body":{"x":1}}\n', Status.BAD_DATA, "line 1 of standard input is not a row of a message"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: tuple[str, ...], lines: bytes, status: Status, sentence: str, broker: mqtool.Broker
) -> None:
    ran = send(broker, *arguments, lines=lines, status=status)

    assert sentence in ran.remarks
