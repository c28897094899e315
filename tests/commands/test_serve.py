"""``mqtool serve`` as a process: ready, asked, told to stop."""

import asyncio
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mqtool.engine.broker.settings import BrokerSettings
from mqtool.engine.cluster import Cluster
from mqtool.engine.remoting.client import RemotingClient
from mqtool.engine.remoting.connection import Connection
from mqtool.engine.server_configs import BrokerConfig, NameServerConfig
from mqtool.errors import Status
from mqtool.formats.bodies import QueueData, parse_cluster_info, parse_route
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.plain_acl import parse_acl
from mqtool.formats.remoting import RemotingCommand, build_frame
from mqtool.formats.signing import Credentials
from tests.commands.running import run
from tests.engine.remoting.test_server import on_a_loop
from tests.ports import free_port
from tests.traces import exchanges

ROOT = Path(__file__).parent.parent.parent
BOTH_READY = re.compile(
    r"mqtool: ready: name server (127\.0\.0\.1:\d+), broker (127\.0\.0\.1:\d+)(?:, replication 127\.0\.0\.1:\d+)?\n"
)
READY = re.compile(r"mqtool: ready: name server (127\.0\.0\.1:\d+)\n")


@contextmanager
def serving(*arguments: object) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Start ``mqtool serve --no-broker`` and give the process and its address once it is ready."""
    with started("--no-broker", *arguments) as (process, line):
        ready = READY.fullmatch(line)
        assert ready, (line, process.stderr.read() if process.stderr and not line else "")
        yield process, ready[1]


@contextmanager
def serving_both(store: Path, *arguments: object) -> Iterator[tuple["subprocess.Popen[str]", str, str]]:
    """Start ``mqtool serve`` and give the process and the addresses of its name server and its broker."""
    with started("-s", store, "--port", "0", *arguments) as (process, line):
        ready = BOTH_READY.fullmatch(line)
        assert ready, (line, process.stderr.read() if process.stderr and not line else "")
        yield process, ready[1], ready[2]


@contextmanager
def started(
    *arguments: object, program: Sequence[str] = ("-m", "mqtool")
) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Start ``mqtool serve`` and give the process and its first line."""
    with in_session(*program, "serve", "--namesrv-port", "0", *arguments) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline()


@contextmanager
def in_session(*arguments: object) -> Iterator["subprocess.Popen[str]"]:
    """Run Python in a session of its own, of which nothing is left in the end."""
    with subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def ask(address: str, *commands: RemotingCommand) -> list[RemotingCommand]:
    async def asked() -> list[RemotingCommand]:
        client = RemotingClient([address])
        answers = [await client.invoke(command) for command in commands]
        await client.close()
        return answers

    return asyncio.run(asked())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_says_where_it_is_answers_and_ends_cleanly(number: signal.Signals) -> None:
    [first, *_] = exchanges("broker_registration-5.3.3", RequestCode.REGISTER_BROKER)
    with serving() as (process, address):
        ask_for_route = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": "TBW102"})
        registered, route = ask(address, first.request.command, ask_for_route)
        [afterwards] = ask(address, ask_for_route)
        # As a terminal does it, and who stops a service: to all of the process group, in a hurry twice.
        for _ in range(2):
            os.killpg(process.pid, number)
        output, errors = process.communicate(timeout=60)

    assert (registered.code, route.code) == (0, 0)
    assert afterwards.code == ResponseCode.TOPIC_NOT_EXIST  # the broker has gone with its connection
    assert (process.returncode, output, errors) == (0, "", "")


def test_two_signals_that_come_at_once_end_it_without_a_traceback() -> None:
    with serving() as (process, _):
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCONT):
            process.send_signal(number)
        output, errors = process.communicate(timeout=60)

    assert (process.returncode, output, errors) == (0, "", "")


def test_settings_come_from_a_file_and_from_options_and_useless_ones_are_named(tmp_path: Path) -> None:
    config = tmp_path / "namesrv.conf"
    config.write_text("# a comment\norderMessageEnable=true\nproductEnvName=center\n")
    with serving("-c", config, "--set", "enableTopicList=false") as (process, address):
        [answer] = ask(address, RemotingCommand(RequestCode.GET_NAMESRV_CONFIG))
        process.terminate()
        _, errors = process.communicate(timeout=60)

    told = answer.body.decode().split()
    assert {"orderMessageEnable=true", "enableTopicList=false"} <= {*told}
    assert errors == "mqtool: these settings have no effect here: productEnvName\n"


def test_the_broker_conf_of_the_distribution_is_taken(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text(
        "brokerClusterName = Here\nbrokerName = broker-b\nbrokerId = 0\ndeleteWhen = 04\nfileReservedTime = 48\n"
        "brokerRole = ASYNC_MASTER\nflushDiskType = ASYNC_FLUSH\n"
        f"storePathRootDir={tmp_path / 'store'}\nstorePathCommitLog={tmp_path / 'log'}\n"
        "namesrvAddr=192.0.2.1:9876\nsendMessageThreadPoolNums=16\n"
    )
    with started("-c", config, "--port", "0") as (process, line):
        ready = BOTH_READY.fullmatch(line)
        assert ready, line
        [answer] = ask(ready[1], RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
        process.terminate()
        _, errors = process.communicate(timeout=60)

    assert parse_cluster_info(answer.body).clusters == {"Here": ["broker-b"]}
    assert errors == "mqtool: these settings have no effect here: namesrvAddr, sendMessageThreadPoolNums\n"
    assert {path.name for path in tmp_path.iterdir()} == {"broker.conf", "store", "log"}


def test_a_broker_listens_for_clients_with_a_vip_channel_too(tmp_path: Path) -> None:
    with serving_both(tmp_path / "store") as (_, _, broker):
        host, _, port = broker.partition(":")
        [answer] = ask(f"{host}:{int(port) - 2}", RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))
    assert answer.code == 0


def test_metrics_are_served_as_prometheus_reads_them(tmp_path: Path) -> None:
    with started("-s", tmp_path / "store", "--port", "0", "--metrics", "0") as (process, line):
        ready = re.search(r"broker (\S+), metrics (http://127\.0\.0\.1:\d+/metrics)\n", line)
        assert ready, line
        fields = {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        answers = ask(
            ready[1],
            RemotingCommand(
                RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields={**fields, "topicFilterType": "SINGLE_TAG"}
            ),
            RemotingCommand(
                RequestCode.SEND_MESSAGE_V2,
                ext_fields=dict(zip("abcdefghi", ("P", "T", "TBW102", "4", "0", "0", "1", "0", ""), strict=True)),
                body=b"text",
            ),
        )
        assert [answer.code for answer in answers] == [0, 0], answers
        port = int(ready[2].rpartition(":")[2].partition("/")[0])
        with ExitStack() as stack:
            hanging = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 20)) for _ in range(40)]
            assert hanging[-1].recv(1) == b""  # so many have no thread each
            for one in hanging[:8]:  # and who breaks off leaves no lines
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.sendall(b"GET /metr")
        for _ in range(1000):
            with suppress(OSError), urllib.request.urlopen(ready[2]) as response:
                break
        with urllib.request.urlopen(ready[2]) as response:
            families = {one.name: one for one in text_string_to_metric_families(response.read().decode())}
        process.terminate()
        output, errors = process.communicate(timeout=60)

    [sample] = families["rocketmq_producer_offset"].samples
    assert sample.labels == {"cluster": "DefaultCluster", "broker": "broker-a", "topic": "T"}
    assert sample.value == 1
    assert (process.returncode, output, errors) == (0, "", "")


def test_metrics_without_their_library_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ["prometheus_client", *sys.modules]:  # other tests may have loaded its parts
        if name.partition(".")[0] == "prometheus_client":
            monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "mqtool.engine.metrics", raising=False)
    ran = run("serve", "-s", tmp_path / "store", "--metrics", "0")
    assert (ran.status, ran.output) == (Status.UNAVAILABLE, "")
    assert ran.remarks == "mqtool: --metrics needs a package that is not installed: pip install 'mqtool[metrics]'\n"
    assert not (tmp_path / "store").exists()


def test_what_it_loads_is_small() -> None:
    program = "import sys, mqtool.commands.serve, mqtool.engine.cluster; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)

    assert {"numba", "numpy", "construct", "rich", "lark"}.isdisjoint(done.stdout.split())

    with_broker = "import sys, mqtool.engine.broker.broker, mqtool.engine.store.message_store; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", with_broker], capture_output=True, text=True, check=True, cwd=ROOT)

    assert {"numba", "llvmlite", "rich", "lark", "prometheus_client"}.isdisjoint(done.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--no-broker", "--no-namesrv"], Status.USAGE, "left to run"),
        (["--no-namesrv"], Status.USAGE, "needs -n"),
        (["--no-broker", "--metrics", "0"], Status.USAGE, "is for a broker"),
        (["--no-broker", "--pulsar-tls-port", "0"], Status.USAGE, "are for a broker"),
        (["--pulsar-tls-port", "0"], Status.USAGE, "pulsarTlsPort needs a certificate"),
        (["--pulsar-admin-port", "0"], Status.USAGE, "with --pulsar-port or --pulsar-tls-port"),
        (["-n", "127.0.0.1:9876"], Status.USAGE, "-n is for --no-namesrv"),
        (["--set", "brokerRole=SLAVE"], Status.USAGE, "needs a brokerId above 0"),
        (["--set", "enableControllerMode=true"], Status.USAGE, "a controller would choose the master"),
        (["--namesrv-port", "0", "--set", "enableDLegerCommitLog=true"], Status.USAGE, "but not written"),
        (["--host", ""], Status.USAGE, "--host is empty"),
        (["-s", "/proc/store", "--namesrv-port", "0"], Status.IO_ERROR, "/proc/store"),
        (["--acl", "/no/folder/acl.yml"], Status.IO_ERROR, "cannot create /no/folder/acl.yml for --acl: No such file"),
        (["--no-broker", "-c", "/no/namesrv.conf"], Status.NO_INPUT, "/no/namesrv.conf"),
        (["--no-broker", "--set", "listenPort=x"], Status.USAGE, "listenPort=x is not a port"),
        (["--no-broker", "--set", "enableTopicList=7"], Status.USAGE, "neither true nor false"),
        (["--no-broker", "--set", "tls.server.mode=enforcing"], Status.USAGE, "tls.server.certPath"),
        (["--no-broker", "--host", "192.0.2.1", "--namesrv-port", "0"], Status.UNAVAILABLE, "192.0.2.1:0"),
    ],
)
def test_what_it_cannot_do_it_says(arguments: list[str], status: Status, said: str) -> None:
    ran = run("serve", *arguments)

    assert (ran.status, ran.output) == (status, "")
    assert said in ran.remarks


@on_a_loop
async def test_several_name_servers_live_in_one_process() -> None:
    async with Cluster(NameServerConfig()) as one, Cluster(NameServerConfig()) as other:
        assert one.name_server_address != other.name_server_address
        for address in (one.name_server_address, other.name_server_address):
            client = RemotingClient([address])
            answer = await client.invoke(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
            assert answer.body == b'{"brokerAddrTable":{},"clusterAddrTable":{}}'
            await client.close()


# With a broker


def send(body: str) -> RemotingCommand:
    fields = dict(zip("abcdefgh", ("P", "Orders", "TBW102", "4", "0", "0", "1700000000000", "0"), strict=True))
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext_fields=fields, body=body.encode())


def route_of(topic: str) -> RemotingCommand:
    return RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": topic})


def bodies(store: Path) -> list[str]:
    return [row["body"] for row in run("dump", "commitlog", "-s", store).rows]


def test_a_broker_that_all_can_reach_says_so_and_accounts_are_made_that_keep_others_out(tmp_path: Path) -> None:
    accounts = tmp_path / "plain_acl.yml"
    everywhere = "-s", tmp_path / "store", "--port", "0", "--host", "0.0.0.0"
    with started(*everywhere) as (process, _):
        process.terminate()
        _, open_to_all = process.communicate(timeout=60)
    with started(*everywhere, "--acl", accounts) as (process, line):
        ready = re.search(r"broker \S+:(\d+)", line)
        assert ready
        administrator, client = parse_acl(accounts.read_text()).accounts.values()
        answers = []
        for keys in (None, administrator, client):
            asked = RemotingCommand(RequestCode.GET_BROKER_CONFIG), send("one")
            for command in asked:
                if keys:
                    signed = Credentials(keys.access_key, keys.secret_key).signed(command.ext_fields, command.body)
                    command.ext_fields = signed
            answers.append([answer.code for answer in ask(f"127.0.0.1:{ready[1]}", *asked)])
        process.terminate()
        _, guarded = process.communicate(timeout=60)

    assert open_to_all == "mqtool: anyone who can reach 0.0.0.0 has full access: --acl FILE restricts it to accounts\n"
    assert answers == [[1, 1], [0, 0], [1, 0]]
    names_only = "mqtool: anyone who can reach 0.0.0.0 can register brokers: a name server has no accounts\n"
    created = f"mqtool: created {accounts} with the accounts administrator and client-of-all and their secrets\n"
    assert guarded == created + names_only
    assert accounts.stat().st_mode & 0o777 == 0o600
    assert len({administrator.secret_key, client.secret_key}) == 2


def test_a_name_server_that_all_can_reach_says_that_it_has_no_accounts() -> None:
    with started("--no-broker", "--host", "0.0.0.0") as (process, _):
        process.terminate()
        _, said = process.communicate(timeout=60)

    assert said == "mqtool: anyone who can reach 0.0.0.0 can register brokers: a name server has no accounts\n"


def test_a_topic_that_a_message_makes_has_a_route_at_once(tmp_path: Path) -> None:
    with serving_both(tmp_path / "store") as (process, name_server, broker):
        [unknown, default] = ask(name_server, route_of("Orders"), route_of("TBW102"))
        [sent] = ask(broker, send("one"))
        [known] = ask(name_server, route_of("Orders"))
        process.terminate()
        output, errors = process.communicate(timeout=60)

    assert (unknown.code, default.code, sent.code) == (ResponseCode.TOPIC_NOT_EXIST, 0, 0)
    assert parse_route(known.body).queues == [QueueData("broker-a", 4, 4, 6)]
    assert parse_route(known.body).brokers[0].addresses == {0: broker}
    assert (process.returncode, output, errors) == (0, "", "")
    assert bodies(tmp_path / "store") == ["one"]
    assert not (tmp_path / "store" / "abort").exists()
    assert run("verify", "-s", tmp_path / "store").status == Status.OK


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_what_was_acknowledged_is_there_after_a_kill(flush: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with serving_both(store, "--set", f"flushDiskType={flush}") as (process, _, broker):
        answers = ask(broker, *(send(f"{number}") for number in range(50)))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=60)
    with serving_both(store) as (process, name_server, broker):
        [known] = ask(name_server, route_of("Orders"))
        answers += ask(broker, send("50"))
        process.terminate()
        _, errors = process.communicate(timeout=60)

    assert [answer.ext_fields["queueOffset"] for answer in answers] == [f"{number}" for number in range(51)]
    assert known.code == 0
    assert re.search("store had not been closed: recovered from its checkpoint", errors), errors
    assert not store.with_name("store.mqtool").exists()
    assert bodies(store) == [f"{number}" for number in range(51)]
    assert run("verify", "-s", store).status == Status.OK


def test_more_connections_than_files_are_refused_and_those_there_go_on(tmp_path: Path) -> None:
    store = tmp_path / "store"
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300)); "
    limited += "sys.argv[0] = 'mqtool'; from mqtool.cli import main; main()"
    with started("-s", store, "--port", "0", program=["-c", limited]) as (process, line):
        ready = BOTH_READY.fullmatch(line)
        assert ready
        host, _, port = ready[2].rpartition(":")
        sockets = [socket.create_connection((host, int(port))) for _ in range(100)]
        frame = build_frame(send("one"))
        sockets[0].sendall(frame)
        answer = sockets[0].recv(8)
        refused: list[socket.socket] = []
        while len(refused) < 100 - 22:
            refused, _, _ = select.select(sockets[1:], [], [], 20)
            assert refused
        assert all(is_closed(one) for one in refused)
        for one in sockets:
            one.close()
        process.terminate()
        _, errors = process.communicate(timeout=60)

    assert len(answer) == 8
    assert errors.startswith("mqtool: at most 22 clients can connect at a time: 300 open files are allowed")
    assert errors.count("was refused: there are 22 connections") == 1
    assert (process.returncode, bodies(store)) == (0, ["one"])


def is_closed(one: socket.socket) -> bool:
    """Tell whether the other side has closed a connection on which it has nothing to say."""
    try:
        return one.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_store_in_use_is_left_alone(tmp_path: Path) -> None:
    with serving_both(tmp_path / "store"), started("-s", tmp_path / "store", "--port", "0") as (second, line):
        _, errors = second.communicate(timeout=60)

    assert (second.returncode, line) == (Status.BUSY, "")
    assert "is locked" in errors


def test_a_broker_alone_registers_with_name_servers_elsewhere(tmp_path: Path) -> None:
    with serving() as (_, name_server):
        arguments = ("--no-namesrv", "-n", name_server, "-s", tmp_path / "store", "--port", "0")
        with started(*arguments, "--set", "brokerName=b-7") as (process, line):
            assert line.startswith("mqtool: ready: broker 127.0.0.1:")
            address = line.split()[-1]
            [there] = ask(name_server, RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
            process.terminate()
            process.communicate(timeout=60)
        [gone] = ask(name_server, RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))

    assert parse_cluster_info(there.body).brokers["b-7"].addresses == {0: address}
    assert parse_cluster_info(gone.body).brokers == {}


@on_a_loop
async def test_a_name_server_that_is_away_is_said_once_and_found_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tried = 0

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tried
        tried += 1
        writer.close()

    port = free_port()
    nobody = await asyncio.start_server(hang_up, "127.0.0.1", port)
    address = f"127.0.0.1:{port}"
    config = BrokerConfig(tmp_path / "store", settings=BrokerSettings(register_interval_ms=20))
    async with Cluster(None, [config], [address]):
        while tried < 3:
            await asyncio.sleep(0.01)
        nobody.close()
        async with Cluster(NameServerConfig(port=port)):
            client = RemotingClient([address])
            while not parse_cluster_info(
                (await client.invoke(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))).body
            ).brokers:
                await asyncio.sleep(0.01)
            await client.close()

    away, again, gone = [record.getMessage() for record in caplog.records if address in record.getMessage()]
    assert away.startswith(f"name server {address}: ")
    assert again == f"name server {address} is answering again"
    assert gone.startswith(f"name server {address}: ")


@on_a_loop
async def test_a_name_server_that_hangs_holds_up_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    others_know = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = Connection()
        while data := await reader.read(1 << 16):
            frames.receive(data)
            for command in frames.commands():
                await others_know.wait()
                writer.write(build_frame(command.answer()))
        writer.close()

    hanging = await asyncio.start_server(hang, "127.0.0.1", 0)
    first = f"127.0.0.1:{hanging.sockets[0].getsockname()[1]}"
    async with Cluster(NameServerConfig()) as names:
        client = RemotingClient([names.name_server_address])

        async def known() -> bool:
            answer = await client.invoke(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
            return bool(parse_cluster_info(answer.body).brokers)

        cluster = Cluster(None, [BrokerConfig(tmp_path / "store")], [first, names.name_server_address])
        starting = asyncio.ensure_future(cluster.__aenter__())
        while not await known():
            await asyncio.sleep(0)
        others_know.set()
        await starting
        others_know.clear()
        stopping = asyncio.ensure_future(cluster.__aexit__(None, None, None))
        while await known():
            await asyncio.sleep(0)
        others_know.set()
        await stopping
        await client.close()
    hanging.close()
    assert first not in caplog.text  # it was waited for, and not for longer than it had


def test_several_brokers_share_a_name_server_in_one_process(tmp_path: Path) -> None:
    async def served() -> list[str]:
        brokers = [
            BrokerConfig(tmp_path / name, settings=BrokerSettings(broker_name=name)) for name in ("one", "other")
        ]
        async with Cluster(NameServerConfig(), brokers) as cluster:
            client = RemotingClient([cluster.name_server_address])
            answer = await client.invoke(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
            await client.close()
            found = parse_cluster_info(answer.body)
            assert found.clusters == {"DefaultCluster": ["one", "other"]}
            assert [found.brokers[name].addresses[0] for name in ("one", "other")] == cluster.broker_addresses
            return cluster.broker_addresses

    assert len({*asyncio.run(served())}) == 2
    assert [run("verify", "-s", tmp_path / name).status for name in ("one", "other")] == [Status.OK, Status.OK]


def test_what_is_sent_from_a_shell_is_stored_with_all_it_says(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with serving_both(store) as (process, name_server, broker):
        common = ("send", "-n", name_server, "--topic", "Orders")
        first = run(*common, "--tag", "new", "--key", "a", "--key", "b", "--property", "price=5", "one", "zwölf")
        second = run(*common, "--queue", "2", "--delay-level", "1", "later")
        refused = run(*common, "--queue", "7", "none")
        process.terminate()
        process.wait(timeout=60)
    nobody = run(*common, "none")

    assert (first.status, second.status) == (Status.OK, Status.OK)
    assert [(row["queue_offset"], row["broker_name"]) for row in first.rows] == [(0, "broker-a")] * 2
    assert len({row["queue_id"] for row in first.rows}) == 2
    stored = run("dump", "commitlog", "-s", store).rows
    assert [row["body"] for row in stored] == ["one", "zwölf", "later"]
    assert [row["message_id"] for row in first.rows + second.rows] == [row["message_id"] for row in stored]
    assert [row["unique_key"] for row in first.rows + second.rows] == [row["unique_key"] for row in stored]
    assert (stored[0]["tags"], stored[0]["keys"], stored[0]["properties"]["price"]) == ("new", "a b", "5")
    assert (stored[2]["topic"], stored[2]["properties"]["REAL_QID"]) == ("SCHEDULE_TOPIC_XXXX", "2")
    assert {row["store_host"] for row in stored} == {broker}
    assert (refused.status, nobody.status) == (Status.NO_INPUT, Status.UNAVAILABLE)
