"""What the shell does with messages of running brokers: the same scenarios with real brokers and with ours."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mqtool
from mqtool import ConsumeStatus, ProducerMessage, SendResult
from mqtool.errors import MqtoolError, Status
from tests.commands.running import Ran
from tests.commands.running import run as run_command
from tests.differential.test_python_clients import (
    EVERY_BROKER,
    BrokerTarget,
    CountingListener,
    consumer,
    producer,
    rebalance_often,
    running,
    until,
)

__all__ = ["rebalance_often"]


@pytest.fixture(scope="module", params=EVERY_BROKER, name="target")
def each_broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerTarget]:
    with running(request.param, tmp_path_factory) as target:
        yield target


def run(target: BrokerTarget, *arguments: object, status: Status = Status.OK) -> Ran:
    ran = run_command(*arguments, "-n", target.name_server)
    assert ran.status == status, (arguments, ran)
    return ran


def send(target: BrokerTarget, *messages: ProducerMessage) -> list[SendResult]:
    """Send messages one by one; a broker that has just started refuses for a moment."""
    with producer(target) as sending:
        until(lambda: _is_ready(sending))
        return [put(sending, message) for message in messages]


def put(sending: mqtool.Producer, message: ProducerMessage, queue: mqtool.MessageQueue | None = None) -> SendResult:
    """Send a message; a broker on a busy machine refuses some, and has not stored them then."""
    while True:
        try:
            return sending.send(message, queue)
        except mqtool.BusyError:
            wait(0.1)


def _is_ready(sending: mqtool.Producer) -> bool:
    try:
        sending.send(ProducerMessage("Ready", b"x"))
    except MqtoolError:
        return False
    return True


def test_a_message_is_found_by_each_of_its_names(target: BrokerTarget) -> None:
    sent = send(
        target,
        *(
            ProducerMessage(
                "Names", f"body {number}", f"tag{number % 2}", [f"key-{number}", "all"], properties={"n": "x"}
            )
            for number in range(6)
        ),
    )
    indexed = ("find", "--topic", "Names", "--key", "all")
    until(lambda: len(run(target, *indexed).rows) == 6)  # brokers fill their index in the background

    for number, one in enumerate(sent):
        place = ("Names", one.queue.queue_id, one.queue_offset)
        for name in (place, (one.offset_message_id,), (one.message_id,), (f"key-{number}",)):
            [row] = run(target, "get", *name).rows
            assert (row["body"], row["unique_key"], row["message_id"]) == (
                f"body {number}",
                one.message_id,
                one.offset_message_id,
            )
        [by_address] = run(target, "get", row["physical_offset"]).rows
        assert by_address == row
        assert "UNIQ_KEY" in run(target, "get", one.offset_message_id, "--hex").output
        run(target, "get", row["physical_offset"] + 1, status=Status.NO_INPUT)
    run(target, "get", "Names", 0, 1 << 40, status=Status.NO_INPUT)
    run(target, "get", "no-such-key", status=Status.NO_INPUT)

    assert [row["body"] for row in run(target, *indexed).rows] == [f"body {number}" for number in range(6)]
    for conditions, wanted in (
        (("--tag", "tag1"), [1, 3, 5]),
        (("--key", "key-[24]"), [2, 4]),
        (("--text", "body 3"), [3]),
        (("--regex", "[45]$"), [4, 5]),
        (("--property", "n=?", "--limit", "2"), [0, 1]),
    ):
        ran = run(target, "find", "--topic", "Names", "--since", "1h", *conditions)
        assert [row["body"] for row in ran.rows] == [f"body {number}" for number in wanted]


def test_a_search_by_time_pulls_no_more_than_it_needs(target: BrokerTarget) -> None:
    send(target, *(ProducerMessage("Times", f"early {number}") for number in range(40)))
    start = time.monotonic()
    until(lambda: time.monotonic() > start + 1.5)  # brokers of 4.9 find a time to the second
    middle = int(time.time() * 1000)
    send(target, ProducerMessage("Times", "late"))

    ran = run(target, "find", "--topic", "Times", "--since", middle)
    before = run(target, "find", "--topic", "Times", "--since", "1h", "--until", middle)

    assert [row["body"] for row in ran.rows] == ["late"]
    assert len(before.rows) == 40
    assert int(ran.remarks.split(" message")[0].removeprefix("mqtool: pulling ")) <= 8


def _told(kind: str, *fields: object) -> str:
    """Return a trace record as Java clients write it."""
    return "\x01".join(map(str, (kind, *fields))) + "\x02"


def test_the_way_of_a_message_is_told(target: BrokerTarget) -> None:
    dead = CountingListener(lambda _: ConsumeStatus.LATER)
    fine = CountingListener()
    with (
        consumer(target, "Way-fails", "Way", dead, max_reconsume_times=1),
        consumer(target, "Way-works", "Way", fine),
    ):
        [other, sent] = send(target, ProducerMessage("Way", b"other"), ProducerMessage("Way", b"x", keys="way-1"))
        until(lambda: len(fine.messages) == 2)
        until(lambda: "dead letter" in {row["what"] for row in run(target, "trace", "--key", "way-1").rows})
        key = sent.message_id
        # Whoever is not answered in time when it gives a message back is past it later, and gives it back once more.
        until(lambda: passed_by(target, key) == {"Way-fails", "Way-works"})
    begun = _told("SubBefore", 1_700_000_000_000, "r", "Way-works", "request", key, 0, "way-1", "10.0.0.9@1")
    ended = _told("SubAfter", "request", key, 7, "true", "way-1", 0)
    pub = _told("Pub", 1_600_000_000_000, "r", "P", "Way", key, "", "way-1", "h:1", 1, 3, 0, "ID", "true", "10.0.0.8@2")
    send(target, ProducerMessage("Traces", pub, keys=[key]), ProducerMessage("Traces", begun + ended, keys=[key]))
    until(lambda: len(run(target, "find", "--topic", "Traces", "--key", key).rows) == 2)

    for name in ((key,), (sent.offset_message_id,), ("--key", "way-1")):
        rows = run(target, "trace", *name, "--trace-topic", "Traces").rows
        assert {row["of_message_id"] for row in rows} == {sent.offset_message_id}
        told = dict.fromkeys((row["what"], row["group"]) for row in rows if row["what"] != "group")
        assert [*told] == [
            ("sent", "P"),
            ("given", "Way-works"),
            ("consumed", "Way-works"),
            ("stored", None),
            ("retry", "Way-fails"),
            ("dead letter", "Way-fails"),
        ]
    assert [row["what"] for row in run(target, "trace", other.message_id).rows][:1] == ["stored"]
    run(target, "trace", "no-such-id", status=Status.NO_INPUT)
    run(target, "trace", status=Status.USAGE)


def passed_by(target: BrokerTarget, key: str) -> set[str]:
    """Return the groups that are past a message of ``Way``."""
    rows = run(target, "trace", key).rows
    return {row["group"] for row in rows if row["topic"] == "Way" and row["told"].startswith("is past it in Way, at ")}


def letters_of(target: BrokerTarget, group: str) -> list[Any]:
    ran = run_command("dlq", "show", "--group", group, "-n", target.name_server)
    return ran.rows if ran.status == Status.OK else []


def test_dead_letters_are_sent_again_each_once(
    target: BrokerTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    is_repaired = threading.Event()
    mine = CountingListener(lambda _: ConsumeStatus.SUCCESS if is_repaired.is_set() else ConsumeStatus.LATER)
    others = CountingListener()
    dlq = ("dlq", "resend", "--group", "Dead")
    with (
        consumer(target, "Dead", "Letters", mine, max_reconsume_times=0),
        consumer(target, "Alive", "Letters", others),
    ):
        send(target, *(ProducerMessage("Letters", f"{n}", "t", [f"k{n}"], properties={"n": str(n)}) for n in range(5)))
        until(lambda: len(letters_of(target, "Dead")) == 5)
        mine.messages.clear()
        is_repaired.set()

        [group] = [row for row in run(target, "dlq", "list").rows if row["group"] == "Dead"]
        assert (group["messages"], group["passed"]) == (5, 0)
        shown = run(target, "dlq", "show", "--group", "Dead", "--key", "k[12]", "--since", "1h").rows
        assert {(row["body"], row["origin_topic"], row["keys"]) for row in shown} == {
            ("1", "Letters", "k1"),
            ("2", "Letters", "k2"),
        }
        assert shown[0]["reconsume_times"] == 1
        assert run(target, "dlq", "show", "--group", "Dead", "--attempts", "9").rows == []

        [plan] = run(target, *dlq, "--dry-run", status=Status.DAMAGE).rows
        assert (plan["kind"], plan["messages"]) == ("plan", 5)
        first = run(target, *dlq, "--limit", "2", "--yes")
        assert [row.get("outcome") for row in first.rows] == [None, "sent", "sent"]
        [state] = (tmp_path / "mqtool" / "dlq").iterdir()
        lines = state.read_text().splitlines()
        # As if the second had been under way when the process was killed, and the file been cut off with it.
        state.write_text("\n".join(lines[:3]) + "\n" + lines[2][:20])
        rest = run(target, *dlq, "--rate", "1000", "--yes")
        assert [row.get("outcome") for row in rest.rows] == [None, "sent", "sent", "sent"]
        for _ in range(2):
            assert run(target, *dlq, "--yes").rows == []
            state.unlink()  # the copies tell it, too
        until(lambda: len(mine.messages) == 5)
        assert sorted(message.body for message in mine.messages) == [b"0", b"1", b"2", b"3", b"4"]
        for message in mine.messages:
            text = message.body.decode()
            assert (message.topic, message.tags, message.keys, message.properties["n"]) == (
                "Letters",
                "t",
                [f"k{text}"],
                text,
            )
        copy = run(target, "get", rest.rows[-1]["copy_message_id"]).rows[0]
        assert copy["properties"]["MQTOOL_ORIGIN"].split(":")[2] == "%DLQ%Dead"
        assert len(others.messages) == 5

        # A letter that died since, to all groups.
        is_repaired.clear()
        send(target, ProducerMessage("Letters", b"later"))
        until(lambda: len(letters_of(target, "Dead")) == 6)
        is_repaired.set()
        again = run(target, *dlq, "--to", "origin", "--yes")
        assert [row.get("outcome") for row in again.rows] == [None, "sent"]
        until(lambda: [one.body for one in others.messages].count(b"later") == 2)

    into = tmp_path / "letters.jsonl"
    run(target, "dlq", "export", "--group", "Dead", "--into", into)
    assert len(into.read_text().splitlines()) == 6
    run(target, "dlq", "export", "--group", "Dead", "--into", into, status=Status.USAGE)
    changes = run(target, "dlq", "purge", "--group", "Dead", "--yes").rows
    assert sum(row["new_offset"] - (row["consumer_offset"] or 0) for row in changes) == 6
    until(lambda: letters_of(target, "Dead") == [])
    assert len(run(target, "dlq", "show", "--group", "Dead", "--passed").rows) == 6
    run(target, "dlq", "purge", "--group", "Dead", "--delete-topic", "--yes")
    run(target, "dlq", "show", "--group", "Dead", status=Status.NO_INPUT)


def offsets_of(target: BrokerTarget, group: str, topic: str) -> list[int | None]:
    rows = run(target, "offset", "list", "--group", group, "--topic", topic).rows
    return [row["consumer_offset"] for row in sorted(rows, key=lambda row: row["queue_id"])]


def wait(seconds: float) -> None:
    """Return when so much time has gone by: messages differ in it."""
    end = time.monotonic() + seconds
    until(lambda: time.monotonic() > end)


def test_offsets_are_copied_shifted_and_taken_elsewhere(target: BrokerTarget, tmp_path: Path) -> None:
    run(target, "topic", "create", "Moves", "--queues", "2", "--yes")
    for group in ("Moves-a", "Moves-b"):
        run(target, "group", "create", group, "--yes")
    with producer(target) as sending, mqtool.Broker() as other:
        until(lambda: _is_ready(sending))
        elsewhere = BrokerTarget(other.name_server_address, "ours")
        run(elsewhere, "topic", "create", "Moves", "--queues", "3", "--yes")
        run(elsewhere, "group", "create", "Moves-a", "--yes")
        until(lambda: len(sending.queues("Moves")) == 2)
        for number in range(20):
            for queue in sending.queues("Moves"):
                put(sending, ProducerMessage("Moves", f"{number}"), queue)
            if number in (6, 15):  # before and after what is next, which is 13
                with producer(elsewhere) as sending_there:
                    for queue in sending_there.queues("Moves"):
                        sending_there.send(ProducerMessage("Moves", f"after {number}"), queue)
                wait(1.2)
        for queue_id, offset in ((0, 13), (1, 20)):
            where = ("--topic", "Moves", "--queue", queue_id, "--offset", offset)
            run(target, "offset", "set", "--group", "Moves-a", *where, "--yes")
        until(lambda: offsets_of(target, "Moves-a", "Moves") == [13, 20])

        run(target, "offset", "copy", "--from-group", "Moves-a", "--to-group", "Moves-b", "--yes")
        until(lambda: offsets_of(target, "Moves-b", "Moves") == [13, 20])
        plan = run(target, "offset", "shift", "--group", "Moves-b", "--by", "-15", "--dry-run", status=Status.DAMAGE)
        assert [(row["new_offset"], row["reason"]) for row in plan.rows] == [
            (0, "the queue covers 0 to 20"),
            (5, ""),
        ]
        run(target, "offset", "shift", "--group", "Moves-b", "--by", "-4", "--topic", "Mo*", "--yes")
        until(lambda: offsets_of(target, "Moves-b", "Moves") == [9, 16])
        run(target, "offset", "shift", "--group", "Moves-b", "--by-time", "1h", "--yes")
        until(lambda: offsets_of(target, "Moves-b", "Moves")[0] in (19, 20))  # 4.x: the nearest
        run(target, "offset", "shift", "--group", "Moves-b", "--by-time", "-1h", "--yes")
        until(lambda: offsets_of(target, "Moves-b", "Moves") == [0, 0])

        into = tmp_path / "offsets.jsonl"
        run(target, "offset", "export", "--group", "Moves-a", "--into", into)
        run(target, "offset", "reset", "--group", "Moves-a", "--topic", "Moves", "--earliest", "--yes")
        until(lambda: offsets_of(target, "Moves-a", "Moves") == [0, 0])
        back = run(target, "offset", "import", into, "--yes")
        assert {row["reason"] for row in back.rows} == {"as it was"}
        until(lambda: offsets_of(target, "Moves-a", "Moves") == [13, 20])
        there = run(elsewhere, "offset", "import", into, "--yes")
        assert [(row["queue_id"], row["new_offset"], row["reason"]) for row in there.rows] == [
            (queue_id, 1, "by time") for queue_id in range(3)
        ]


def test_offsets_that_cannot_be_moved_are_refused(target: BrokerTarget, tmp_path: Path) -> None:
    run(target, "group", "create", "Refused", "--yes")
    bad = tmp_path / "bad"
    bad.write_text('{"group": 1}\n')
    empty = tmp_path / "empty"
    empty.touch()
    for arguments, status, sentence in (
        (("copy", "--from-group", "Nobody", "--to-group", "Refused"), Status.NO_INPUT, "no group matches Nobody"),
        (("copy", "--from-group", "Refused", "--to-group", "Nobody"), Status.NO_INPUT, "no group matches Nobody"),
        (("shift", "--group", "Refused", "--by", "-1"), Status.NO_INPUT, "Refused has not committed an offset"),
        (("shift", "--group", "Refused"), Status.USAGE, "give one of --by and --by-time"),
        (("shift", "--group", "Refused", "--by-time", "x"), Status.USAGE, "is not a duration"),
        (("import", bad), Status.BAD_DATA, "line 1 is not an offset as `mqtool offset export` writes it"),
        (("import", empty), Status.BAD_DATA, "contains no offsets"),
        (("import", tmp_path / "none"), Status.NO_INPUT, "none"),
    ):
        ran = run(target, "offset", *arguments, "--yes", status=status)
        assert (ran.output, sentence in ran.remarks) == ("", True), ran.remarks
