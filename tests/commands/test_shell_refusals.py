"""What stands in the way of commands on messages, dead letters and offsets of brokers: a row for each command and case.

Whatever it is: one sentence, the status of ``docs/command_line.md``, nothing on standard output that looks like an
answer.
"""

import asyncio
import contextlib
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import mqtool
from mqtool import ProducerMessage
from mqtool.commands._output import Output
from mqtool.engine.client.outgoing import pack
from mqtool.engine.cluster import Cluster
from mqtool.engine.remoting.client import RemotingClient
from mqtool.engine.server_configs import NameServerConfig
from mqtool.errors import Status
from mqtool.formats.bodies import Registration, build_registration
from mqtool.formats.codes import RequestCode
from mqtool.formats.commit_log import COMPRESSED
from mqtool.formats.config_tables import DataVersion
from mqtool.formats.headers import RegisterBroker, build_header
from mqtool.formats.remoting import RemotingCommand
from mqtool.formats.topics import TRACE_TOPIC
from tests.commands.running import Ran, run
from tests.differential.java_broker import in_a_thread

ELSEWHERE = "0A00000900002A9F0000000000000000"
"""The id of a message of a broker that is not in this cluster."""


@pytest.fixture(scope="module")
def broker() -> Iterator[mqtool.Broker]:
    with mqtool.Broker() as running:
        address = running.name_server_address
        with mqtool.AdminClient(address) as admin:
            for name in ("Orders", "%DLQ%G", "%RETRY%G"):
                admin.create_topic(name, queues=1)
            for name in ("G", "Idle"):
                admin.create_group(name)
        with mqtool.Producer("P", address) as producer:
            for number in range(40):
                producer.send(ProducerMessage("Orders", f"{number}", keys=["k"]))
            for number in range(3):
                producer.send(ProducerMessage("%DLQ%G", f"{number}", properties={"RETRY_TOPIC": "Orders"}))
        moved = ("--group", "G", "--topic", "Orders", "--queue", "0", "--offset", "3", "--yes")
        assert run("offset", "set", "-n", address, *moved).status == Status.OK
        yield running


def commands(into: Path) -> dict[str, list[str]]:
    """Return a call of each command that works, but for its name servers."""
    return {
        "get id": ["get", ELSEWHERE],
        "get place": ["get", "Orders", "0", "0"],
        "find key": ["find", "--key", "k", "--topic", "Orders"],
        "find": ["find", "--topic", "Orders", "--limit", "5"],
        "trace": ["trace", "--key", "k"],
        "dlq list": ["dlq", "list"],
        "dlq show": ["dlq", "show", "--group", "G"],
        "dlq resend": ["dlq", "resend", "--group", "G", "--yes", "--state", str(into / "state")],
        "dlq export": ["dlq", "export", "--group", "G", "--into", str(into / "letters")],
        "dlq purge": ["dlq", "purge", "--group", "G", "--yes"],
        "offset list": ["offset", "list"],
        "offset copy": ["offset", "copy", "--from-group", "G", "--to-group", "Idle", "--yes"],
        "offset shift": ["offset", "shift", "--group", "G", "--by", "-1", "--yes"],
        "offset export": ["offset", "export", "--into", str(into / "offsets")],
        "mirror": ["mirror", "--topic", "Orders", "--yes", "--idle", "100ms", "--to-name", "Other"],
    }


EVERY = [*commands(Path())]


def meant(arguments: list[str], address: str, other: str) -> list[str]:
    """Return a command line with its name servers; a mirror goes from there to another cluster."""
    where = ["--from", address, "--to", other] if arguments[0] == "mirror" else ["-n", address]
    return [*arguments, *where]


def asked(arguments: list[str], address: str, other: str = "127.0.0.1:1") -> Ran:
    """Run a command on brokers."""
    return run(*meant(arguments, address, other))


@pytest.fixture(scope="module")
def other() -> Iterator[str]:
    """The address of the name server of an empty cluster."""
    with mqtool.Broker() as running:
        yield running.name_server_address


def is_one_sentence(ran: Ran) -> bool:
    """Tell whether the last line says why, in a sentence, and no line is of a traceback."""
    last = ran.remarks.splitlines()[-1]
    return last.startswith("mqtool: ") and "Traceback" not in ran.remarks and "internal error" not in ran.remarks


@pytest.mark.parametrize("name", EVERY)
def test_nobody_there_is_told_with_69(name: str, tmp_path: Path) -> None:
    ran = asked(commands(tmp_path)[name], "127.0.0.1:1")

    assert (ran.status, ran.output) == (Status.UNAVAILABLE, "")
    assert "cannot connect to 127.0.0.1:1" in ran.remarks
    assert is_one_sentence(ran)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", EVERY)
def test_what_is_no_address_is_told_with_2(name: str, tmp_path: Path) -> None:
    ran = asked(commands(tmp_path)[name], "127.0.0.1:65536", "127.0.0.1:65536")

    assert (ran.status, ran.output) == (Status.USAGE, "")
    assert ran.remarks == "mqtool: 127.0.0.1:65536 is not an address of the form host:port\n"
    assert [*tmp_path.iterdir()] == []


UNKNOWN = [
    (["get", "nothing"], "nothing"),
    (["get", ELSEWHERE], ELSEWHERE),
    (["get", "Nowhere", "0", "0"], "no topic matches Nowhere"),
    (["get", "Orders", "7", "0"], "Orders has no queue 7"),
    (["get", "Orders", "0", "999"], "no message has the queue offset 999"),
    (["get", "Orders", "0", "0", "--broker", "none"], "there is no broker none"),
    (["find", "--topic", "Nowhere*", "--since", "1h"], "no topic matches Nowhere*"),
    (["trace", "nothing"], "no message has the id or key nothing"),
    (["trace", ELSEWHERE], "no message has the id or key"),
    (["dlq", "list", "None*"], "no group matches None*"),
    (["dlq", "show", "--group", "None"], "the group None has no dead-letter topic"),
    (["dlq", "resend", "--group", "None", "--yes"], "the group None has no dead-letter topic"),
    (["dlq", "export", "--group", "None", "--into", "x"], "the group None has no dead-letter topic"),
    (["dlq", "purge", "--group", "None", "--yes"], "the group None has no dead-letter topic"),
    (["dlq", "purge", "--group", "None", "--delete-topic", "--yes"], "no topic matches %DLQ%None"),
    (["offset", "list", "--group", "None"], "no group matches None"),
    (["offset", "set", "--group", "G", "--topic", "None", "--queue", "0", "--offset", "0", "--yes"], "the topic None"),
    (["offset", "copy", "--from-group", "None", "--to-group", "G", "--yes"], "no group matches None"),
    (
        ["offset", "copy", "--from-group", "G", "--to-group", "None", "--yes"],
        "create one with `mqtool group",
    ),
    (["offset", "shift", "--group", "None", "--by", "1", "--yes"], "no group matches None"),
    (["offset", "shift", "--group", "G", "--topic", "None", "--by", "1", "--yes"], "no topic matches None"),
    (["offset", "export", "--group", "None", "--into", "x"], "no group matches None"),
    (["offset", "import", "/nowhere/x", "--yes"], "/nowhere/x"),
    (["mirror", "--topic", "None*", "--yes", "--to-name", "Other"], "no topic matches None*"),
    (["mirror", "--topic", "Orders", "--group", "None", "--yes", "--to-name", "Other"], "no group matches None"),
]


@pytest.mark.parametrize(("arguments", "sentence"), UNKNOWN, ids=[" ".join(row[0][:4]) for row in UNKNOWN])
def test_what_is_not_there_is_told_with_66(
    arguments: list[str], sentence: str, broker: mqtool.Broker, other: str
) -> None:
    ran = asked(arguments, broker.name_server_address, other)

    assert (ran.status, ran.output) == (Status.NO_INPUT, ""), ran
    assert sentence in ran.remarks
    assert is_one_sentence(ran)


@pytest.mark.parametrize("name", EVERY)
def test_a_profile_that_is_not_there_is_told_with_66(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "mqtool").mkdir()
    (tmp_path / "mqtool" / "config.toml").write_text("[profiles.prod]\nnamesrv='127.0.0.1:1'\n")
    option = "--from-profile" if name == "mirror" else "--profile"

    ran = run(*commands(tmp_path)[name], option, "prd")

    assert (ran.status, ran.output) == (Status.NO_INPUT, "")
    assert "has no [profiles.prd]; similar: prod" in ran.remarks
    assert is_one_sentence(ran)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give the name servers of both clusters: --from"),
        (["--from", "127.0.0.1:1"], "give the name servers of both clusters: --to"),
        (["--from", "{0}", "--to", "{1}"], "both clusters are named DefaultCluster"),
        (["--from", "{0}", "--to", "{0}"], "a cluster cannot be its own mirror"),
        (["--from", "{0}", "--to", "{0}", "--from-name", "A", "--to-name", "B"], "a cluster cannot be its own mirror"),
        (["--from", "{0}", "--to", "{1}", "--to-name", "a b"], "copies cannot carry the cluster name 'a b'"),
        (["--from", "{0}", "--to", "{1}", "--to-name", "B", "--begin", "x"], "x"),
    ],
)
def test_a_mirror_of_what_makes_no_sense_is_refused(
    arguments: list[str], sentence: str, broker: mqtool.Broker, other: str
) -> None:
    words = [one.format(broker.name_server_address, other) for one in arguments]
    ran = run("mirror", "--topic", "Orders", "--yes", "--idle", "1s", *words)

    assert (ran.status, ran.output, sentence in ran.remarks) == (Status.USAGE, "", True), ran


class Leaving:
    """A proxy of a broker that passes on so many of its answers, and has gone away then."""

    def __init__(self, behind: str) -> None:
        self.answers = 0
        self._behind = behind
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        host, _, port = self._behind.partition(":")
        with connection, socket.create_connection((host, int(port))) as behind, contextlib.suppress(OSError):
            while self.answers > 0:
                self._pass_on(connection, behind)
                self._pass_on(behind, connection)
                self.answers -= 1

    @staticmethod
    def _pass_on(source: socket.socket, sink: socket.socket) -> None:
        head = source.recv(4, socket.MSG_WAITALL)
        if len(head) < 4:
            raise OSError("closed")
        sink.sendall(head + source.recv(int.from_bytes(head), socket.MSG_WAITALL))


@pytest.fixture(scope="module")
def leaving(broker: mqtool.Broker) -> Iterator[tuple[Leaving, str]]:
    """A broker that goes away, and the address of a name server that names it."""
    proxy = Leaving(broker.address)
    with mqtool.AdminClient(broker.name_server_address) as admin:
        configs = {config.topic: config for _, config in admin.topics()}
    identity = RegisterBroker("broker-a", proxy.address, "DefaultCluster", "", 0)
    body = build_registration(Registration(DataVersion(0, 0, 0), configs))
    request = RemotingCommand(RequestCode.REGISTER_BROKER, ext_fields=build_header(identity), body=body)

    @contextlib.asynccontextmanager
    async def naming() -> AsyncIterator[str]:
        async with Cluster(NameServerConfig()) as names:
            client = RemotingClient([names.name_server_address])
            await client.invoke(request)
            yield names.name_server_address
            await client.close()

    with in_a_thread(naming()) as address:
        yield proxy, address


@pytest.mark.parametrize("name", EVERY)
def test_a_broker_that_goes_away_in_the_middle_is_told_with_69(
    name: str, leaving: tuple[Leaving, str], other: str, tmp_path: Path
) -> None:
    proxy, name_server = leaving
    for answers in (0,) if name == "mirror" else (0, 1, 2, 4):  # a mirror that has begun waits for it
        proxy.answers = answers
        ran = asked(commands(tmp_path)[name], name_server, other)

        assert ran.status == Status.UNAVAILABLE or (answers and ran.status == Status.OK), (answers, ran)
        if ran.status != Status.OK:
            assert proxy.address in ran.remarks
            assert is_one_sentence(ran)
            assert not {"letters", "offsets", "letters.part", "offsets.part"} & {one.name for one in tmp_path.iterdir()}
        for one in tmp_path.iterdir():
            one.unlink()


# Keys

ADMINISTRATOR: dict[str, Any] = {"access_key": "administrator", "secret_key": "12345678"}
ACL = """accounts:
- {accessKey: administrator, secretKey: "12345678", admin: true}
- {accessKey: reader00, secretKey: "87654321", defaultTopicPerm: SUB, defaultGroupPerm: SUB}
"""


def fill(name_server: str) -> None:
    """Have a broker that asks who somebody is hold what the commands ask for."""
    with (
        mqtool.AdminClient(name_server, **ADMINISTRATOR) as admin,
        mqtool.Producer("P", name_server, **ADMINISTRATOR) as producer,
    ):
        for name in ("Orders", "%DLQ%G", "%RETRY%G"):
            admin.create_topic(name, queues=1)
        for name in ("G", "Idle"):
            admin.create_group(name)
        producer.send(ProducerMessage("Orders", b"1", keys=["k"]))
        producer.send(ProducerMessage("%DLQ%G", b"1", properties={"RETRY_TOPIC": "Orders"}))
        admin.set_offset("G", "Orders", 0, 1)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a name server whose broker asks who somebody is."""
    folder = tmp_path_factory.mktemp("acl")
    (folder / "plain_acl.yml").write_text(ACL)
    settings = {"aclEnable": "true", "rocketmq.acl.plain.file": str(folder / "plain_acl.yml")}
    with mqtool.Broker(settings=settings) as running:
        fill(running.name_server_address)
        yield running.name_server_address


@pytest.mark.parametrize("name", EVERY)
def test_who_is_not_let_in_is_told_with_77(
    name: str, guarded: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for secret in (None, "wrongwrong"):
        if secret:
            monkeypatch.setenv("MQTOOL_ACCESS_KEY", "administrator")
            monkeypatch.setenv("MQTOOL_SECRET_KEY", secret)
        ran = asked(commands(tmp_path)[name], guarded, other)

        assert (ran.status, ran.output) == (Status.NOT_PERMITTED, ""), ran
        assert is_one_sentence(ran)
        assert {one.name for one in tmp_path.iterdir()} <= {"state"}


def test_who_is_no_administrator_sends_no_dead_letter_and_is_told_with_77(
    guarded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MQTOOL_ACCESS_KEY", "reader00")
    monkeypatch.setenv("MQTOOL_SECRET_KEY", "87654321")
    refused = asked(commands(tmp_path)["dlq resend"], guarded)
    assert (refused.status, refused.output) == (Status.NOT_PERMITTED, ""), refused

    monkeypatch.setenv("MQTOOL_ACCESS_KEY", "administrator")
    monkeypatch.setenv("MQTOOL_SECRET_KEY", "12345678")
    sent = asked(commands(tmp_path)["dlq resend"], guarded)
    assert (sent.status, [row.get("outcome") for row in sent.rows]) == (Status.OK, [None, "sent"])
    assert len(run("find", "-n", guarded, "--topic", "%RETRY%G", "--since", "1h").rows) == 1


# Places to write to


def process(arguments: list[str], output: Any = subprocess.PIPE, most: int | None = None) -> Ran:
    """Run a command in a process of its own, which may write no file beyond a size."""

    def limit() -> None:
        if most is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    done = subprocess.run(
        [sys.executable, "-m", "mqtool", *arguments],
        stdout=output,
        stderr=subprocess.PIPE,
        preexec_fn=limit,
        text=True,
        check=False,
    )
    return Ran(done.returncode, done.stdout or "", done.stderr)


@pytest.mark.parametrize("name", ["dlq resend", "dlq export", "offset export"])
def test_a_full_disk_for_a_file_is_told_with_74_and_leaves_nothing_half_done(
    name: str, broker: mqtool.Broker, tmp_path: Path
) -> None:
    ran = process(meant(commands(tmp_path)[name], broker.name_server_address, ""), most=10)

    assert ran.status == Status.IO_ERROR, ran
    assert "cannot be written: File too large" in ran.remarks
    assert is_one_sentence(ran)
    assert [one.name for one in tmp_path.iterdir()] == (["state"] if name == "dlq resend" else [])
    assert run("find", "-n", broker.name_server_address, "--topic", "%RETRY%G", "--since", "1h").rows == []


@pytest.mark.parametrize("name", ["find", "dlq list", "trace", "mirror"])
def test_a_full_disk_for_the_output_is_told_with_74(
    name: str, broker: mqtool.Broker, other: str, tmp_path: Path
) -> None:
    with Path("/dev/full").open("w") as full:
        ran = process(meant(commands(tmp_path)[name], broker.name_server_address, other), full)

    assert ran.status == Status.IO_ERROR, ran
    assert is_one_sentence(ran)
    assert "No space left on device" in ran.remarks


@pytest.mark.parametrize("name", ["find", "trace"])
def test_a_look_ends_quietly_when_nobody_reads_it(name: str, broker: mqtool.Broker, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ran = process(meant(commands(tmp_path)[name], broker.name_server_address, ""), writer)
    finally:
        os.close(writer)

    assert (ran.status, "Traceback" in ran.remarks, "Broken pipe" in ran.remarks) == (Status.OK, False, False), ran


def test_a_trace_message_that_cannot_be_read_is_told_and_hides_no_other() -> None:
    async def send(address: str) -> str:
        """Send a message, what a client told of it, and one with its key that says it is compressed, and is not."""
        async with mqtool.aio.Producer("P", address, trace=True) as producer:
            sent = await producer.send(ProducerMessage("Orders", b"x"))
        async with mqtool.aio.Producer("P", address) as producer:
            [queue, *_] = await producer.queues(TRACE_TOPIC)
            packed = pack(ProducerMessage(TRACE_TOPIC, b"junk", keys=[sent.message_id]), TRACE_TOPIC)
            await producer._ask(packed._replace(sys_flag=COMPRESSED), queue, 3_000)
        return sent.message_id

    with mqtool.Broker() as broker:
        message_id = asyncio.run(send(broker.name_server_address))
        ran = run("trace", "-n", broker.name_server_address, message_id)

    assert ran.status == Status.OK, ran
    assert [row["what"] for row in ran.rows] == ["sent", "stored"]
    assert "cannot be read" in ran.remarks


def test_what_happened_within_a_millisecond_is_told_in_order() -> None:
    with mqtool.Broker() as broker:
        address = broker.name_server_address
        with mqtool.AdminClient(address) as admin, mqtool.Producer("P", address) as producer:
            for name in ("Orders", "%DLQ%G"):
                admin.create_topic(name, queues=1)
            sent = producer.send(ProducerMessage("Orders", b"x", keys=["k"]))
            own = {"ORIGIN_MESSAGE_ID": sent.offset_message_id}
            producer.send(ProducerMessage("%DLQ%G", b"x", keys=["k"], properties=own))
            [dead] = run("get", "-n", address, "%DLQ%G", 0, 0).rows
            now, key = dead["store_timestamp"], sent.message_id
            told = f"SubBefore\x01{now}\x01r\x01G\x01request\x01{key}\x010\x01k\x02"
            told += f"SubAfter\x01request\x01{key}\x010\x01false\x01k\x010\x02"
            producer.send(ProducerMessage(TRACE_TOPIC, told, keys=[key]))
        rows = run("trace", "-n", address, "--key", "k").rows

    assert [row["what"] for row in rows] == ["stored", "given", "consumed", "dead letter"]
    assert {row["event_timestamp"] for row in rows[1:]} == {now}


def test_a_trace_names_messages_and_groups_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Output, "width", 80)
    group = "bills-orders-of-shop"
    with mqtool.Broker() as broker:
        address = broker.name_server_address
        with mqtool.AdminClient(address) as admin, mqtool.Producer("P", address) as producer:
            admin.create_topic("Orders", queues=1)
            admin.create_group(group)
            sent = [producer.send(ProducerMessage("Orders", b"x", keys=["k"])) for _ in range(2)]
            dead = {"ORIGIN_MESSAGE_ID": sent[0].offset_message_id}
            producer.send(ProducerMessage(f"%DLQ%{group}", b"x", keys=["k"], properties=dead))
            admin.set_offset(group, "Orders", 0, 1)
        ran = run("trace", "-n", address, "--key", "k", "-o", "table")

    lines = ran.output.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert [line for line in lines if line.startswith("7F000001")] == [
        f"{one.offset_message_id}, offset {offset} in queue 0 of Orders on broker-a" for offset, one in enumerate(sent)
    ]
    [dead_letter] = [line for line in lines if " dead letter " in line]
    assert dead_letter.split("  ")[1:] == ["dead letter", group, "0 attempts failed"]
    told = ("is past it in Orders, at 1 ", "has 0 messages to read before it in ")
    assert [line.startswith(f"{group}  {one}") for line in lines if line.startswith(group) for one in told] == [
        True, False, False, True,
    ]  # fmt: skip


def test_a_purge_says_what_becomes_of_the_letters(broker: mqtool.Broker) -> None:
    ran = run("dlq", "purge", "-n", broker.name_server_address, "--group", "G", "--dry-run")

    assert (ran.status, [row["new_offset"] for row in ran.rows]) == (Status.DAMAGE, [3]), ran
    assert "moves past 3 dead letters, which stay in %DLQ%G until a broker deletes them" in ran.remarks
