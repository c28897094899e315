"""``mqtool serve`` as a process: ready, asked, told to stop."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mqtool.engine.cluster import Cluster, NameServerConfig
from mqtool.engine.remoting.client import RemotingClient
from mqtool.errors import Status
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.remoting import RemotingCommand
from tests.commands.running import run
from tests.engine.remoting.test_server import on_a_loop
from tests.traces import exchanges

ROOT = Path(__file__).parent.parent.parent
READY = re.compile(r"mqtool: ready: name server (127\.0\.0\.1:\d+)\n")


@contextmanager
def serving(*arguments: object) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Start ``mqtool serve --no-broker`` and give the process and its address once it is ready."""
    command = [sys.executable, "-m", "mqtool", "serve", "--no-broker", "--namesrv-port", "0", *map(str, arguments)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            ready = READY.fullmatch(line)
            assert ready, (line, process.stderr.read() if process.stderr and not line else "")
            yield process, ready[1]
        finally:
            process.kill()


def ask(address: str, *commands: RemotingCommand) -> list[RemotingCommand]:
    async def asked() -> list[RemotingCommand]:
        client = RemotingClient([address])
        answers = [await client.invoke(command) for command in commands]
        await client.close()
        return answers

    return asyncio.run(asked())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_is_answers_and_ends_cleanly(number: signal.Signals) -> None:
    [first, *_] = exchanges("broker_registration-5.3.3", RequestCode.REGISTER_BROKER)
    with serving() as (process, address):
        ask_for_route = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": "TBW102"})
        registered, route = ask(address, first.request.command, ask_for_route)
        [afterwards] = ask(address, ask_for_route)
        # As a terminal does it, and who stops a service: to all of the process group, in a hurry twice.
        for _ in range(2):
            os.killpg(process.pid, number)
        output, errors = process.communicate(timeout=20)

    assert (registered.code, route.code) == (0, 0)
    assert afterwards.code == ResponseCode.TOPIC_NOT_EXIST  # the broker has gone with its connection
    assert (process.returncode, output, errors) == (0, "", "")


def test_settings_come_from_a_file_and_from_options_and_useless_ones_are_named(tmp_path: Path) -> None:
    config = tmp_path / "namesrv.conf"
    config.write_text("# a comment\norderMessageEnable=true\nproductEnvName=center\n")
    with serving("-c", config, "--set", "enableTopicList=false") as (process, address):
        [answer] = ask(address, RemotingCommand(RequestCode.GET_NAMESRV_CONFIG))
        process.terminate()
        _, errors = process.communicate(timeout=20)

    told = answer.body.decode().split()
    assert {"orderMessageEnable=true", "enableTopicList=false"} <= {*told}
    assert errors == "mqtool: these settings have no effect here: productEnvName\n"


def test_what_it_loads_is_small() -> None:
    program = "import sys, mqtool.commands.serve, mqtool.engine.cluster; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)

    assert {"numba", "numpy", "construct", "rich", "lark"}.isdisjoint(done.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--no-broker", "--no-namesrv"], Status.USAGE, "nothing to run"),
        (["--no-namesrv"], Status.USAGE, "needs -n"),
        (["-s", "/proc/store", "--namesrv-port", "0"], Status.IO_ERROR, "/proc/store"),
        (["--no-broker", "-c", "/no/namesrv.conf"], Status.NO_INPUT, "/no/namesrv.conf"),
        (["--no-broker", "--set", "listenPort=x"], Status.USAGE, "listenPort=x is no port"),
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
