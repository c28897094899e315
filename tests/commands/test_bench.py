"""``mqtool bench``: a load on brokers of our own. How fast they are is not judged here, but that all is counted."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

import mqtool
from mqtool import ProducerMessage
from mqtool.commands.bench import drawn
from mqtool.engine.client.measuring import Bar
from mqtool.errors import Status
from tests.commands.running import Ran, run
from tests.engine.client_runtime.test_push_consumer import topics_of, until


@pytest.fixture
def broker() -> Iterator[mqtool.Broker]:
    with mqtool.Broker() as running:
        yield running


def bench(broker: mqtool.Broker, *arguments: str) -> Ran:
    ran = run("bench", "-n", broker.name_server_address, *arguments)
    assert ran.status == Status.OK, ran.remarks
    return ran


def stored(broker: mqtool.Broker) -> list[Any]:
    return list(mqtool.open_store(broker.store).messages())


def topics(broker: mqtool.Broker) -> list[str]:
    return [row["topic"] for row in run("topic", "list", "-n", broker.name_server_address).rows]


def test_every_message_is_sent_and_comes_back_and_the_topic_goes(broker: mqtool.Broker) -> None:
    ran = bench(broker, "--limit", "300", "--size", "100", "--consumers", "2")

    send, deliver = ran.rows
    for row, what in ((send, "send"), (deliver, "deliver")):
        assert (row["what"], row["messages"], row["errors"], row["missing"]) == (what, 300, {}, 0)
        assert sum(count for _, _, count in row["histogram"]) == 300
        assert 0 < row["p50_ms"] <= row["p90_ms"] <= row["p99_ms"] <= row["p99_9_ms"] <= row["max_ms"]
    assert [len(one.body) for one in stored(broker)] == [100] * 300
    assert not [name for name in topics(broker) if "bench" in name]


def test_what_others_send_to_the_topic_does_not_count(broker: mqtool.Broker) -> None:
    with mqtool.Producer("P", broker.name_server_address) as producer:
        for _ in range(5):
            producer.send(ProducerMessage("Orders", b"x" * 50))

    _, deliver = bench(broker, "--topic", "Orders", "--limit", "20").rows

    assert deliver["messages"] == 20
    assert "Orders" in topics(broker)


def test_one_may_send_only_and_at_a_rate(broker: mqtool.Broker) -> None:
    [send] = bench(broker, "--consumers", "0", "--limit", "20", "--rate", "200").rows

    assert (send["what"], send["messages"], send["missing"]) == ("send", 20, 0)
    assert send["seconds"] >= 19 / 200


def test_two_targets_take_turns_and_are_held_against_each_other(broker: mqtool.Broker) -> None:
    with mqtool.Broker() as other:
        ran = bench(broker, "--against", other.name_server_address, "--seconds", "0.5", "--in-flight", "4")

        loads, compared = ran.rows[:4], ran.rows[4:]
        for place, target in enumerate((broker, other)):
            rows = loads[2 * place : 2 * place + 2]
            assert {row["target"] for row in rows} == {target.name_server_address}
            # With those of the round that warms up there are more in the store than count.
            assert 0 < rows[0]["messages"] == rows[1]["messages"] < len(stored(target))
            assert not [name for name in topics(target) if "bench" in name]
    assert [row["figure"] for row in compared] == [
        f"{what} {figure}" for what in ("send", "deliver") for figure in ("rate", "p50_ms", "p99_ms")
    ]
    for row in compared:
        assert row["least"] <= row["ratio"] <= row["most"]
    assert f"first is {broker.name_server_address}, second {other.name_server_address}" in ran.remarks


def test_an_interrupt_shows_what_was_measured_and_takes_the_topic_away(broker: mqtool.Broker) -> None:
    words = [sys.executable, "-m", "mqtool", "bench", "-n", broker.name_server_address, "--seconds", "600"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as process:
        until(lambda: any(name.startswith("mqtool-bench") for name in topics_of(broker)))
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate()

    send, deliver = (orjson.loads(line) for line in output.splitlines())
    assert process.returncode == Status.INTERRUPTED
    assert send["messages"] > 0
    assert deliver["what"] == "deliver"
    assert not [name for name in topics(broker) if "bench" in name]


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        ((), Status.UNAVAILABLE, "127.0.0.1:1"),
        (("--topic", "T"), Status.UNAVAILABLE, "127.0.0.1:1"),
        (("--size", "15"), Status.USAGE, "it needs at least 16 bytes"),
        (("--against", "127.0.0.1:2", "--limit", "5"), Status.USAGE, "leave out --limit"),
        (("--against", ";"), Status.USAGE, "--against does not name a name server"),
        (("--seconds", "0"), Status.USAGE, "--seconds"),
    ],
)
def test_what_makes_no_sense_or_finds_nobody_is_refused(
    arguments: tuple[str, ...], status: Status, sentence: str
) -> None:
    ran = run("bench", "-n", "127.0.0.1:1", *arguments)

    assert (ran.status, ran.output) == (status, "")
    assert sentence in ran.remarks


def test_a_topic_that_cannot_be_written_to_is_refused(broker: mqtool.Broker) -> None:
    run("topic", "create", "Closed", "--perm", "r", "-n", broker.name_server_address, "--yes")

    ran = run("bench", "-n", broker.name_server_address, "--topic", "Closed")

    assert (ran.status, ran.output) == (Status.NO_INPUT, "")


@pytest.mark.parametrize("width", [50, 80, 200])
def test_a_histogram_is_as_wide_as_the_terminal_at_most(width: int) -> None:
    bars = [Bar(700, 1000, 1), Bar(1000, 1500, 0), Bar(1500, 2000, 8_000)]

    one, none, most = drawn(bars, width)

    assert max(map(len, (one, none, most))) <= width
    assert one.split() == ["0.7", "to", "1", "ms", "▏", "1", "0.0", "%"]
    assert none.split() == ["1", "to", "1.5", "ms", "0", "0.0", "%"]
    assert set(most.split()[4]) == {"█"}
    assert most.split()[5:] == ["8,000", "100.0", "%"]
