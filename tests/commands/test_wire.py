"""Commands with ``-n``: the same as from a store, who may, over which connection, and when nobody answers."""

import asyncio
import base64
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqtool.engine.cluster import Cluster
from mqtool.engine.remoting.client import RemotingClient
from mqtool.engine.server_configs import NameServerConfig
from mqtool.errors import Status
from mqtool.formats.bodies import Registration, build_registration
from mqtool.formats.codes import RequestCode
from mqtool.formats.config_tables import DataVersion
from mqtool.formats.headers import RegisterBroker, build_header
from mqtool.formats.remoting import RemotingCommand
from tests.commands.running import Ran, as_options, run
from tests.commands.test_serve import serving_both
from tests.engine.remoting.test_server import on_a_loop
from tests.golden import KEEPS_ALL, copy_of, golden_store, manifest

STORE = "mixed-533-clean"
WIRE_COMMANDS = [
    ("pull", "--topic", "Orders"),
    ("send", "--topic", "Orders", "x"),
    ("consume", "--topic", "Orders", "--group", "billing"),
    ("consume", "--topic", "Orders", "--group", "billing", "--orderly"),
    ("consume", "--topic", "Orders", "--peek"),
    ("get", "0"),
    ("find", "--key", "x"),
    ("topic", "list"),
    ("topic", "show", "Orders"),
    ("topic", "create", "Orders", "--yes"),
    ("topic", "delete", "Orders", "--yes"),
    ("group", "list"),
    ("group", "show", "billing"),
    ("group", "create", "billing", "--yes"),
    ("group", "delete", "billing", "--yes"),
    ("offset", "list"),
    ("offset", "set", "--group", "billing", "--topic", "Orders", "--queue", "0", "--offset", "0", "--yes"),
    ("offset", "reset", "--group", "billing", "--topic", "Orders", "--latest", "--yes"),
    ("cluster", "list"),
    ("cluster", "show"),
]
ACL = """accounts:
- accessKey: administrator
  secretKey: 12345678
  admin: true
- accessKey: reader00
  secretKey: 87654321
  defaultTopicPerm: SUB
"""


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a name server whose broker has a copy of a golden store."""
    store = copy_of(STORE, tmp_path_factory.mktemp("wire"))
    shape = {key: value for key, value in manifest(STORE)["config"].items() if key.startswith("m")}
    with serving_both(store, *as_options(shape | KEEPS_ALL)) as (_, address, _):
        yield address


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--offset", 17, "--limit", 3),
        ("--offset", 20, "--limit", 5),
        ("--offset", 1 << 40),
        ("--limit", 0),
        ("--tag", "TagA"),
        ("--filter", "TagB || TagC", "--limit", 2),
        ("--sql", "a > 5 OR TAGS = 'TagA'"),
        ("--since", "2026-11-21T01:34:28.300Z"),
        ("--body", "hex"),
    ],
    ids=str,
)
def test_a_pull_gives_the_same_from_a_broker_and_from_its_store(
    arguments: tuple[object, ...], name_server: str
) -> None:
    queues = manifest(STORE)["load"]["after_load"]["queues"]
    for topic, ids in queues.items():
        for queue_id in ids if (golden_store(STORE) / "consumequeue" / topic).exists() else ():
            where = ("--topic", topic, "--queue", queue_id)
            online = run("pull", "-n", name_server, *where, *arguments)
            offline = run("pull", "-s", golden_store(STORE), *where, *arguments)

            assert (online.status, online.output) == (offline.status, offline.output)
            assert online.remarks.splitlines()[-1:] == offline.remarks.splitlines()[-1:]


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("--topic", "OrderEvents"), Status.USAGE),  # it has four queues
        (("--topic", "OrderEvents", "--queue", "9"), Status.NO_INPUT),
        (("--topic", "OrderEvent", "--queue", "0"), Status.NO_INPUT),
        (("--topic", "*e*", "--queue", "0"), Status.USAGE),
        (("--topic", "OrderEvents", "--queue", "0", "--sql", "a >"), Status.USAGE),
    ],
)
def test_what_cannot_be_pulled_is_refused_alike(arguments: tuple[str, ...], status: Status, name_server: str) -> None:
    online, offline = run("pull", "-n", name_server, *arguments), run("pull", "-s", golden_store(STORE), *arguments)

    assert (online.status, offline.status, online.output) == (status, status, "")
    # The number of topics that a pattern means is the name server's, and the broker has some of its own.
    assert online.remarks.split(" topics")[0].rstrip("0123456789") == offline.remarks.split(" topics")[0].rstrip(
        "0123456789"
    )


def _of_both(name_server: str, *arguments: object) -> tuple[Ran, Ran]:
    """Run a command on brokers and on their store."""
    return run(*arguments, "-n", name_server), run(*arguments, "-s", golden_store(STORE))


def test_a_message_is_the_same_from_a_broker_and_from_its_store_by_each_of_its_names(name_server: str) -> None:
    names: list[tuple[object, ...]] = [("OrderEvents", 1, 0, "-o", "csv")]
    for message in manifest(STORE)["messages"][::7]:
        names += [(message["phy"],), (message["msg_id"], "--hex")]
    for line in run("pull", "-s", golden_store(STORE), "--topic", "OrderEvents", "--queue", "1").rows:
        names += [("OrderEvents", 1, line["queue_offset"]), (line["unique_key"], "--body", "hex")]

    for arguments in names:
        online, offline = _of_both(name_server, "get", *arguments)

        assert (online.status, online.output) == (offline.status, offline.output), (arguments, online.remarks)
        assert online.output, arguments


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (
            ("no-such-key",),
            Status.NO_INPUT,
            "no message has the id or key no-such-key: it is not in the indexes of 127.0.0.1:",
        ),
        (
            ("0A00000100002A9F0000000000000001",),
            Status.NO_INPUT,
            "it refers to 10.0.0.1:10911, which is not a master of this",
        ),
        (
            ("C00002021EE08706F302731B20B5FFFF",),
            Status.NO_INPUT,
            "it is not in the indexes of ",
        ),  # whose port could be none
        (("1",), Status.NO_INPUT, "broker-a has no message that starts at 1"),
        (("9999999999",), Status.NO_INPUT, "broker-a has no message that starts at 9,999,999,999"),
        (("OrderEvents", "1", "99999"), Status.NO_INPUT, "no message has the queue offset 99,999"),
        (("OrderEvents", "77", "0"), Status.NO_INPUT, "OrderEvents has no queue 77; it has 0, 1, 2, 3"),
        (("OrderEvent", "0", "0"), Status.NO_INPUT, "no topic matches OrderEvent; similar: OrderEvents"),
        (("OrderEvents", "x", "0"), Status.USAGE, "x is not a valid QUEUE"),
        (("OrderEvents", "0"), Status.USAGE, "2 arguments do not identify a message"),
        (("1", "--broker", "broker-z"), Status.NO_INPUT, "there is no broker broker-z; the brokers are broker-a"),
    ],
)
def test_what_a_broker_does_not_have_is_told(
    arguments: tuple[str, ...], status: Status, sentence: str, name_server: str
) -> None:
    ran = run("get", "-n", name_server, *arguments)

    assert (ran.status, ran.output) == (status, "")
    assert sentence in ran.remarks


@pytest.mark.parametrize(
    "arguments",
    [
        ("--tag", "TagA"),
        ("--tag", "Tag[AB]", "--queue", "1"),
        ("--property", "a=5", "--limit", "3"),
        ("--text", "a"),
        ("--regex", "^.{3}", "--limit", "7"),
        ("--since", "2026-11-21T01:34:28.300Z"),
        ("--until", "2026-11-21T01:34:28.300Z"),
        ("--text", "not in any body"),
        ("--tag", "TagA", "--limit", "0"),
    ],
    ids=str,
)
def test_a_search_finds_the_same_on_a_broker_and_in_its_store(arguments: tuple[str, ...], name_server: str) -> None:
    limit = () if "--limit" in arguments else ("--limit", "100000")

    online, offline = _of_both(name_server, "find", "--topic", "OrderEvents", *arguments, *limit)

    assert (online.status, online.output) == (offline.status, offline.output), online.remarks


@pytest.mark.parametrize(
    "command",
    [
        ("pull", "--topic", "OrderEvents", "--queue", "1"),
        ("find", "--topic", "OrderEvents", "--queue", "1", "--limit", "100000"),
        ("consume", "--topic", "OrderEvents", "--peek", "--begin", "first", "--idle", "300ms"),
        ("get", "OrderEvents", "1", "2"),
        ("dump", "commitlog", "--topic", "OrderEvents", "--queue", "1"),
    ],
    ids=lambda command: command[0],
)
def test_bodies_are_written_as_they_are_and_messages_by_a_template(command: tuple[str, ...], name_server: str) -> None:
    where = ("-s", str(golden_store(STORE))) if command[0] == "dump" else ("-n", name_server)
    rows = run(*command, *where, "--body", "base64").rows
    assert rows

    def written(*arguments: str) -> bytes:
        done = subprocess.run(
            [sys.executable, "-m", "mqtool", *command, *where, *arguments], capture_output=True, check=True
        )
        return done.stdout

    bodies = [base64.b64decode(row["body"]) for row in rows]
    raw = written("--body", "raw")
    assert (sorted(raw), len(raw)) == (sorted(b"".join(bodies)), sum(map(len, bodies)))
    lines = {
        b"%s:%d|%s|%s\t" % (row["topic"].encode(), row["queue_offset"], (row["keys"] or "").encode(), body)
        for row, body in zip(rows, bodies, strict=True)
    }
    text = written("--format", r"%t:%o|%k|%b\t")
    assert len(text) == sum(map(len, lines))
    assert all(line in text for line in lines)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("get", "0", "--format", "%z"), "--format: unknown field %z: use %t topic"),
        (("get", "0", "--format", "a%"), "--format: unknown field %: use"),
        (("get", "0", "--format", r"\y"), r"--format: unknown escape \y: use"),
        (("get", "0", "--body", "raw", "-o", "jsonl"), "-o cannot be combined with"),
        (("get", "0", "--body", "raw", "--hex"), "--hex cannot be combined with"),
        (("dump", "checkpoint", "--format", "%t"), "--format does not apply to dump checkpoint"),
    ],
)
def test_a_template_that_makes_no_sense_is_refused(arguments: tuple[str, ...], sentence: str) -> None:
    ran = run(*arguments, "-s", golden_store(STORE))

    assert (ran.status, ran.output) == (Status.USAGE, "")
    assert sentence in ran.remarks


def test_keys_are_found_without_pulling_queues(name_server: str) -> None:
    for topic, key, expected in manifest(STORE)["index_queries"]:
        if topic == "NoSuchTopic":
            continue
        ran = run("find", "-n", name_server, "--topic", topic, "--key", key, "--body", "none")
        assert [row["physical_offset"] for row in ran.rows] == sorted(set(expected)), (topic, key)
        assert "1 topic looked up by key" in ran.remarks
        assert "pulled" not in ran.remarks


def test_a_search_that_pulls_queues_says_so_first_and_wants_a_bound(name_server: str) -> None:
    unbound = run("find", "-n", name_server, "--topic", "OrderEvents", "--text", "x")
    bound = run("find", "-n", name_server, "--topic", "OrderEvents", "--tag", "TagA", "--limit", "1")

    assert (unbound.status, unbound.output) == (Status.USAGE, "")
    assert "whole queues would be pulled: give --since or --limit" in unbound.remarks
    first, last = bound.remarks.splitlines()
    assert first.startswith("mqtool: pulling ")
    assert "messages in 4 queues of 1 topic" in first
    assert last == "mqtool: 1 message found; 4 queues pulled; --limit is reached"


@pytest.mark.parametrize("command", [("get", "0"), ("find", "--limit", "1", "--tag", "TagA")])
def test_the_environment_alone_sends_a_look_to_brokers_and_that_is_told(
    command: tuple[str, ...], name_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", name_server)

    online = run(*command)
    offline = run(*command, "-s", golden_store(STORE))
    told = f"querying the brokers of {name_server}, from NAMESRV_ADDR; use -s DIR to read a store"

    assert online.output == offline.output
    assert told in online.remarks
    assert told not in run(*command, "-n", name_server).remarks + offline.remarks


def test_a_broker_that_is_not_there_is_named(name_server: str) -> None:
    ran = run("pull", "-n", name_server, "--topic", "OrderEvents", "--queue", "0", "--broker", "broker-z")

    assert ran.status == Status.NO_INPUT
    assert "broker-z; it has on broker-a" in ran.remarks


def test_lines_that_are_typed_are_sent_one_by_one_until_ctrl_c(name_server: str, terminal: tuple[int, int]) -> None:
    parent, child = terminal
    command = [sys.executable, "-m", "mqtool", "send", "--topic", "Typed", "--queue", "0", "-n", name_server]
    with subprocess.Popen(command, stdin=child, stdout=child, stderr=child, start_new_session=True) as process:
        os.close(child)
        shown = b""
        for typed, awaited in ((b"", b"Ctrl-D ends"), (b"one\n", b"            0"), (b"two\n", b"            1")):
            os.write(parent, typed)
            while awaited not in shown:
                shown += os.read(parent, 4096)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        try:
            assert process.wait(60) == Status.INTERRUPTED
        finally:
            process.kill()
    os.close(parent)

    pulled = run("pull", "--topic", "Typed", "--queue", "0", "-n", name_server)
    assert [row["body"] for row in pulled.rows] == ["one", "two"]


# Which is meant


def test_the_environment_means_brokers_unless_a_store_is_named(
    name_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", name_server)
    brokers, store = run("topic", "list", "OrderEvents"), run("topic", "list", "OrderEvents", "-s", golden_store(STORE))

    assert [row["broker_name"] for row in brokers.rows] == ["broker-a"]
    assert [row["broker_name"] for row in store.rows] == [None]
    ignored = {"broker_name"}
    assert {k: v for k, v in brokers.rows[0].items() if k not in ignored} == {
        k: v for k, v in store.rows[0].items() if k not in ignored
    }


def test_both_at_once_are_refused(name_server: str) -> None:
    ran = run("topic", "list", "-n", name_server, "-s", golden_store(STORE))

    assert (ran.status, ran.output) == (Status.USAGE, "")


def test_a_change_is_refused_where_both_could_be_meant(
    name_server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", name_server)
    monkeypatch.setenv("MQTOOL_STORE", str(copy_of(STORE, tmp_path)))

    ran = run("topic", "create", "Ambiguous", "--yes")

    assert (ran.status, ran.output) == (Status.USAGE, "")
    assert "choose with -n or -s" in ran.remarks
    assert "Ambiguous" not in {row["topic"] for row in run("topic", "list").rows}


# Nobody there


@pytest.mark.parametrize("arguments", WIRE_COMMANDS, ids=" ".join)
def test_where_nobody_answers_one_sentence_says_so(arguments: tuple[str, ...]) -> None:
    ran = run(*arguments, "-n", "127.0.0.1:1")

    assert (ran.status, ran.output) == (Status.UNAVAILABLE, "")
    assert ran.remarks == "mqtool: cannot connect to 127.0.0.1:1 (Connection refused)\n"


def test_a_broker_where_a_name_server_should_be_is_said_so(tmp_path: Path) -> None:
    with serving_both(tmp_path / "store") as (_, _, broker):
        ran = run("topic", "list", "-n", broker)

    assert (ran.status, ran.output) == (Status.UNAVAILABLE, "")
    assert ran.remarks == f"mqtool: {broker} answers, but not as a name server does\n"


@on_a_loop
async def test_a_broker_that_does_not_answer_is_listed_without_figures() -> None:
    identity = RegisterBroker("broker-x", "127.0.0.1:1", "C", "", 0)
    body = build_registration(Registration(DataVersion(0, 0, 0), {}))
    async with Cluster(NameServerConfig()) as cluster:
        client = RemotingClient([cluster.name_server_address])
        await client.invoke(RemotingCommand(RequestCode.REGISTER_BROKER, ext_fields=build_header(identity), body=body))
        ran = await asyncio.to_thread(run, "cluster", "list", "-n", cluster.name_server_address)
        await client.close()

    assert ran.status == Status.UNAVAILABLE
    assert [(row["address"], row["version"]) for row in ran.rows] == [("127.0.0.1:1", None)]
    assert "cannot connect to 127.0.0.1:1" in ran.remarks


# Who

FIRST = ("--begin", "first", "--limit", "1", "--idle", "60s")
"""Until the one message has come."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a name server whose broker asks who somebody is."""
    folder = tmp_path_factory.mktemp("acl")
    (folder / "plain_acl.yml").write_text(ACL)
    settings = ("--set", "aclEnable=true", "--set", f"rocketmq.acl.plain.file={folder / 'plain_acl.yml'}")
    with serving_both(folder / "store", *settings) as (_, address, _):
        yield address


@pytest.mark.parametrize(
    ("keys", "status"),
    [
        ((), Status.NOT_PERMITTED),
        (("--access-key", "administrator", "--secret-key", "12345678"), Status.OK),
        (("--access-key", "administrator", "--secret-key", "wrongwrong"), Status.NOT_PERMITTED),
        (("--access-key", "reader00", "--secret-key", "87654321"), Status.NOT_PERMITTED),
        (("--access-key", "administrator"), Status.USAGE),
    ],
)
def test_requests_are_signed(keys: tuple[str, ...], status: Status, guarded: str) -> None:
    topic = f"Orders-{'-'.join(keys).replace('--', '')}"
    made = run("topic", "create", topic, "--queues", "2", "--yes", "-n", guarded, *keys)

    assert made.status == status
    if status == Status.OK:
        assert run("send", "-n", guarded, "--topic", topic, "--queue", "0", "x", *keys).status == Status.OK
        pulled = run("pull", "-n", guarded, "--topic", topic, "--queue", "0", *keys)
        consumed = run("consume", "-n", guarded, "--topic", topic, "--group", "G", *FIRST, *keys)
        assert [row["body"] for row in pulled.rows] == [row["body"] for row in consumed.rows] == ["x"]


def test_keys_come_from_the_environment(guarded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQTOOL_ACCESS_KEY", "administrator")
    monkeypatch.setenv("MQTOOL_SECRET_KEY", "12345678")

    assert run("topic", "list", "-n", guarded).status == Status.OK


# TLS


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a name server that takes TLS only, as its broker does, and the certificate of both."""
    if shutil.which("openssl") is None:
        pytest.skip("TLS IS NOT TESTED: there is no openssl on this machine to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 2"
    files = ["-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=mqtool"]
    subprocess.run([*command.split(), *files], cwd=folder, check=True, capture_output=True)
    settings = ["tls.server.mode=enforcing", f"tls.server.certPath={folder / 'cert.pem'}"]
    settings.append(f"tls.server.keyPath={folder / 'key.pem'}")
    with serving_both(folder / "store", *(f"--set={one}" for one in settings)) as (_, address, _):
        yield address, folder / "cert.pem"


def test_tls_with_an_authority_of_ones_own(encrypted: tuple[str, Path]) -> None:
    address, certificate = encrypted
    sent = run("send", "-n", address, "--ca", certificate, "--topic", "Orders", "--queue", "0", "x")
    pulled = run("pull", "-n", address, "--tls", "--ca", certificate, "--topic", "Orders", "--queue", "0")

    consumed = run("consume", "-n", address, "--ca", certificate, "--topic", "Orders", "--group", "G", *FIRST)

    assert (sent.status, pulled.status, consumed.status) == (Status.OK, Status.OK, Status.OK)
    assert [row["body"] for row in pulled.rows] == [row["body"] for row in consumed.rows] == ["x"]


def test_without_tls_or_with_nobody_to_trust_there_is_no_answer(encrypted: tuple[str, Path]) -> None:
    address, _ = encrypted
    plain, distrusting = (run("topic", "list", "-n", address, *more) for more in ((), ("--tls",)))

    assert (plain.status, distrusting.status) == (Status.UNAVAILABLE, Status.UNAVAILABLE)
    assert "certificate" in distrusting.remarks.lower()


@pytest.mark.parametrize(("text", "status"), [(None, Status.NO_INPUT), ("no certificate\n", Status.USAGE)])
def test_a_file_without_certificates_is_refused(text: str | None, status: Status, tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    if text:
        path.write_text(text)

    assert run("topic", "list", "-n", "127.0.0.1:1", "--ca", path).status == status


PROFILES = """
[profiles.here]
namesrv = ["{name_server}"]

[profiles.signed]
namesrv = "{name_server}"
access_key_env = "MY_KEY"
secret_key_env = "MY_SECRET"

[profiles.typo]
namesvr = "x:1"

[profiles.empty]
tls = true

[profiles.odd]
namesrv = "x:1"
tls = "yes"
"""


@pytest.fixture
def profiles(name_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "mqtool" / "config.toml"
    file.parent.mkdir()
    file.write_text(PROFILES.format(name_server=name_server))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return file


@pytest.mark.usefixtures("profiles")
def test_a_profile_names_the_brokers_and_where_their_keys_are(
    name_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run("topic", "list", "-n", name_server).output
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")  # a profile says more
    monkeypatch.setenv("MY_KEY", "me")
    monkeypatch.setenv("MY_SECRET", "secret")

    assert run("topic", "list", "--profile", "here").output == expected
    assert run("topic", "list", "--profile", "signed").output == expected
    assert run("get", "0", "--profile", "here").status == Status.OK
    assert run("cluster", "list", "--profile", "here").status == Status.OK
    assert run("cluster", "list", "--profile", "here", "-n", "127.0.0.1:1").status == Status.UNAVAILABLE


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (("--profile", "her"), Status.NO_INPUT, "has no [profiles.her]; similar: here"),
        (("--profile", "signed"), Status.USAGE, "key from the environment variable MY_KEY, which is not set"),
        (
            ("--profile", "typo"),
            Status.BAD_DATA,
            "[profiles.typo] has the unknown key namesvr: the keys are namesrv, tls, ca",
        ),
        (("--profile", "empty"), Status.BAD_DATA, "[profiles.empty] needs namesrv"),
        (("--profile", "odd"), Status.BAD_DATA, "[profiles.odd]: tls must be true or false"),
        (("--profile", "here", "-s", "x"), Status.USAGE, "--profile selects brokers and -s a store: give only one"),
        ((), Status.USAGE, "give the name servers: -n HOST:PORT, --profile NAME, or NAMESRV_ADDR"),
    ],
)
@pytest.mark.usefixtures("profiles")
def test_a_profile_that_makes_no_sense_is_told(arguments: tuple[str, ...], status: Status, sentence: str) -> None:
    ran = run(*(("topic", "list") if "-s" in arguments else ("cluster", "list")), *arguments)

    assert (ran.status, ran.output) == (status, "")
    assert sentence in ran.remarks


def test_a_file_of_profiles_that_is_none_is_told(profiles: Path) -> None:
    profiles.write_text("[profiles")
    broken = run("cluster", "list", "--profile", "here")
    profiles.unlink()
    missing = run("cluster", "list", "--profile", "here")

    assert (broken.status, "is not valid TOML" in broken.remarks) == (Status.BAD_DATA, True)
    assert (missing.status, f"{profiles} does not exist" in missing.remarks) == (Status.NO_INPUT, True)
