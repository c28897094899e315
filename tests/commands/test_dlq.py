"""``mqtool dlq``: from a broker and from its store, bad input, and a process that is killed while it sends."""

import asyncio
import collections
import fcntl
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import mqtool
from mqtool import ProducerMessage
from mqtool.engine.client import calls
from mqtool.engine.client_runtime.dead_letters import ORIGIN, ResentLog
from mqtool.errors import Status, WriteError
from mqtool.formats.config_tables import TopicConfig
from tests.commands.running import Ran, run
from tests.commands.test_serve import ask
from tests.engine.client_runtime.test_push_consumer import until
from tests.golden import copy_of, manifest
from tests.wire_client import WireClient

COUNT = 12


@pytest.fixture
def broker() -> Iterator[mqtool.Broker]:
    with mqtool.Broker() as running:
        with mqtool.AdminClient(running.name_server_address) as admin:
            admin.create_topic("Orders", queues=2)
            admin.create_topic("%RETRY%G", queues=1)
            admin.create_topic("%DLQ%G", queues=1)
            admin.create_group("G")
        yield running


def die(broker: mqtool.Broker, count: int = COUNT, topic: str | None = "Orders") -> None:
    """Store dead letters as a broker does."""
    origin = {"RETRY_TOPIC": topic} if topic else {}
    with mqtool.Producer("P", broker.name_server_address) as producer:
        for number in range(count):
            message = ProducerMessage("%DLQ%G", f"{number}", "t", f"k{number}", properties={"own": "x", **origin})
            producer.send(message)


def dlq(broker: mqtool.Broker, *arguments: object, status: Status = Status.OK) -> Ran:
    ran = run("dlq", *arguments, "-n", broker.name_server_address)
    assert ran.status == status, (arguments, ran.remarks)
    return ran


def copies(broker: mqtool.Broker, topic: str = "%RETRY%G") -> dict[str, int]:
    """Count the copies of each dead letter that a topic has, by its body."""
    with mqtool.PullConsumer("reader", broker.name_server_address) as consumer:
        found: collections.Counter[str] = collections.Counter()
        for queue in consumer.fetch_message_queues(topic):
            offset = 0
            while (pulled := consumer.pull(queue, offset)).messages:
                found.update(one.body.decode() for one in pulled.messages if ORIGIN in one.properties)
                offset = pulled.next_offset
        return dict(found)


def test_a_process_killed_at_any_time_sends_each_letter_once(broker: mqtool.Broker, tmp_path: Path) -> None:
    die(broker)
    command = [
        sys.executable, "-m", "mqtool", "dlq", "resend", "--group", "G", "--yes", "-n", broker.name_server_address,
        "--state", str(tmp_path / "state"), "--rate", "40",
    ]  # fmt: skip
    for sent in (1, 3, 4, 8):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + 60
            while sum(copies(broker).values()) < sent and process.poll() is None:
                assert time.monotonic() < deadline
            process.kill()
            process.wait()
        with (tmp_path / "state").open() as used:
            fcntl.flock(used, fcntl.LOCK_EX)  # the child that does the work ends a moment later
        state = tmp_path / "state"  # cut off, as where the kill comes just before the last note is written
        state.write_bytes(state.read_bytes()[:-5])
    dlq(broker, "resend", "--group", "G", "--yes", "--state", tmp_path / "state")

    assert copies(broker) == {str(number): 1 for number in range(COUNT)}


def test_a_new_record_of_what_was_sent_outlasts_a_power_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(file: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{file}").readlink()))
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    with ResentLog(tmp_path / "state") as log:
        log.note("a:b:%DLQ%G:0:0:1", 1, None)

    assert synced == [str(tmp_path), str(tmp_path / "state")]


def test_a_failing_disk_stops_before_the_letter_is_sent_and_tells_how_far_it_came(
    broker: mqtool.Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die(broker, 4)
    writes = itertools.count()
    real = ResentLog._write

    def full(log: ResentLog, line: bytes) -> None:
        if next(writes) == 4:  # before the third letter
            raise WriteError("no space left on device; nothing more is sent")
        real(log, line)

    monkeypatch.setattr(ResentLog, "_write", full)
    ran = dlq(broker, "resend", "--group", "G", "--yes", "--state", tmp_path / "state", status=Status.IO_ERROR)

    assert sum(copies(broker).values()) == 2
    assert "2 of 4 dead letters were sent: run it again for the rest" in ran.remarks
    assert "no space left" in ran.remarks


def test_letters_go_to_a_topic_that_is_deleted_in_the_middle_and_made_again_with_fewer_queues(
    broker: mqtool.Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die(broker, 6)
    writes = itertools.count()
    real = ResentLog._write

    def replaced(log: ResentLog, line: bytes) -> None:
        if next(writes) == 4:  # before the third letter
            config = TopicConfig("Orders", 1, 1, 6, False, "SINGLE_TAG", 0, {})
            commands = calls.delete_topic("Orders").command, calls.put_topic(config).command
            with ThreadPoolExecutor(1) as beside:  # in a loop of its own
                answers = beside.submit(ask, broker.address, *commands).result()
            assert [one.code for one in answers] == [0, 0]
        real(log, line)

    monkeypatch.setattr(ResentLog, "_write", replaced)
    ran = dlq(broker, "resend", "--group", "G", "--to", "origin", "--yes", "--state", tmp_path / "state")

    assert copies(broker, "Orders") == {str(number): 1 for number in range(2, 6)}
    assert ran.remarks.endswith("mqtool: 6 dead letters resent and read back\n")


def test_letters_that_cannot_be_copied_are_told_one_by_one(broker: mqtool.Broker, tmp_path: Path) -> None:
    die(broker, 1, topic=None)
    die(broker, 1)

    ran = dlq(broker, "resend", "--group", "G", "--yes", "--state", tmp_path / "state", status=Status.GIVEN_UP)

    assert [row["outcome"] for row in ran.rows if row["kind"] == "letter"] == ["failed", "sent"]
    assert "its original topic is unknown" in ran.rows[-2]["reason"]
    assert ran.remarks.endswith("mqtool: 1 dead letter resent and read back, 1 failed\n")


def test_a_letter_without_a_body_is_resent(broker: mqtool.Broker, tmp_path: Path) -> None:
    async def of_a_pulsar_producer() -> None:  # producers of RocketMQ send none
        client = WireClient(broker.address)
        await client.send(b"", topic="%DLQ%G", pairs={"RETRY_TOPIC": "Orders"})
        await client.close()

    asyncio.run(of_a_pulsar_producer())

    dlq(broker, "resend", "--group", "G", "--yes", "--state", tmp_path / "state")

    assert copies(broker) == {"": 1}


def test_a_letter_of_a_store_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    store = copy_of("retry-533-clean", tmp_path)
    letters = [one for one in manifest("retry-533-clean")["messages"] if one["topic"] == "%DLQ%GID_retry"]
    with (store / "commitlog" / f"{0:020}").open("r+b") as segment:
        segment.seek(letters[0]["phy"])
        segment.write(bytes(100))

    shown = run("dlq", "show", "--group", "GID_retry", "-s", store)
    exported = run("dlq", "export", "--group", "GID_retry", "-s", store, "--into", tmp_path / "letters.jsonl")

    assert [row["physical_offset"] for row in shown.rows] == [letters[1]["phy"]]
    assert (shown.status, exported.status) == (Status.DAMAGE, Status.DAMAGE)
    assert f"the first at {letters[0]['phy']:,}" in shown.remarks
    assert f"the first at {letters[0]['phy']:,}" in exported.remarks


def test_a_store_shows_and_exports_what_its_broker_does(broker: mqtool.Broker, tmp_path: Path) -> None:
    die(broker, 5)
    store = broker.store
    until(lambda: [row["messages"] for row in run("dlq", "list", "-s", store).rows] == [5])  # queues are written later
    for arguments in (("--key", "k[13]"), ("--limit", "2"), ("--attempts", "1"), ("--since", "1h", "--body", "hex")):
        online = dlq(broker, "show", "--group", "G", *arguments).rows
        offline = run("dlq", "show", "--group", "G", *arguments, "-s", store).rows
        assert [{**row, "broker_name": None} for row in online] == offline
    [of_broker] = dlq(broker, "list").rows
    [of_store] = run("dlq", "list", "-s", store).rows
    assert {**of_broker, "broker_name": None} == of_store
    assert (of_store["group"], of_store["messages"], of_store["passed"]) == ("G", 5, 0)
    exported = tmp_path / "out.jsonl"
    dlq(broker, "export", "--group", "G", "--into", exported)
    again = run("dlq", "export", "--group", "G", "--into", tmp_path / "stored.jsonl", "-s", store)
    assert again.status == Status.OK
    assert exported.read_text().count("\n") == (tmp_path / "stored.jsonl").read_text().count("\n") == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "stored.jsonl"]


def test_letters_of_a_store_are_sent_to_brokers_each_once_whoever_sent_them_before(
    broker: mqtool.Broker, tmp_path: Path
) -> None:
    die(broker, 5)
    store, address = broker.store, broker.name_server_address
    until(lambda: [row["messages"] for row in run("dlq", "list", "-s", store).rows] == [5])  # queues are written later
    sending = ("dlq", "resend", "--group", "G", "--yes", "--state", tmp_path / "state")
    named = ("-s", store, "--broker", "broker-a")
    assert run(*sending, "-n", address, "--limit", "2").status == Status.OK

    offline = run(*sending, "-n", address, *named)
    assert [row["outcome"] for row in offline.rows if row["kind"] == "letter"] == ["sent"] * 3
    (tmp_path / "state").unlink()  # the copies tell it, too
    assert run(*sending, "-n", address, *named).rows == []
    assert copies(broker) == {str(number): 1 for number in range(5)}

    with mqtool.Broker() as other:
        with mqtool.AdminClient(other.name_server_address) as admin:
            admin.create_topic("Orders", queues=1)
        there = run(*sending, "-n", other.name_server_address, *named, "--to", "origin", "--state", tmp_path / "there")
        assert there.status == Status.OK, there.remarks
        assert copies(other, "Orders") == {str(number): 1 for number in range(5)}

    for arguments, sentence in (
        (("-s", store), "the store does not show its broker's name"),
        (("--broker", "broker-a"), "--broker, -c and --set apply to a store"),
    ):
        ran = run(*sending, "-n", address, *arguments)
        assert (ran.status, ran.output, sentence in ran.remarks) == (Status.USAGE, "", True), ran.remarks


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (
            ("show", "--group", "H"),
            Status.NO_INPUT,
            "the group H has no dead-letter topic; groups that have one: G",
        ),
        (("resend", "--group", "H", "--yes"), Status.NO_INPUT, "the group H has no dead-letter topic"),
        (("purge", "--group", "H", "--yes"), Status.NO_INPUT, "the group H has no dead-letter topic"),
        (("list", "H*"), Status.NO_INPUT, "no group matches H*; similar: G"),
        (("resend", "--group", "G"), Status.DAMAGE, "there is no terminal to ask for confirmation; use --yes"),
        (("resend", "--group", "G", "--yes", "--state", "/dev/null"), Status.USAGE, "/dev/null is not a file"),
        (
            ("resend", "--group", "G", "--yes", "--state", "/dev/null/x"),
            Status.IO_ERROR,
            "/dev/null/x cannot be opened",
        ),
        (("export", "--group", "G", "--into", "/no/such/folder/x"), Status.IO_ERROR, "/no/such/folder/x cannot be"),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_is_sent(
    arguments: tuple[str, ...],
    status: Status,
    sentence: str,
    broker: mqtool.Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    die(broker, 1)

    ran = dlq(broker, *arguments, status=status)

    assert sentence in ran.remarks
    assert copies(broker) == {}


def test_without_the_topic_to_send_to_or_beside_another_run_nothing_is_sent(
    broker: mqtool.Broker, tmp_path: Path
) -> None:
    die(broker, 1, topic="Gone")
    as_origin = ("resend", "--group", "G", "--yes", "--to", "origin", "--state", tmp_path / "state")

    gone = dlq(broker, *as_origin, status=Status.NO_INPUT)
    with ResentLog(tmp_path / "state"):
        busy = dlq(broker, *as_origin, status=Status.BUSY)
    offline = run("dlq", "resend", "--group", "G", "--yes", "-s", broker.store)

    assert "the target topic Gone does not exist" in gone.remarks
    assert "dead letters of this group are already being resent" in busy.remarks
    assert (offline.status, "give the name servers" in offline.remarks) == (Status.USAGE, True)
    assert copies(broker) == {}
