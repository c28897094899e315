"""A broker with two doors, through real sockets: remoting commands, and lines of text (``lines_door.py``)."""

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import mqtool
from mqtool.engine.doors import DOORS
from mqtool.engine.remoting.client import RemotingClient
from mqtool.errors import UnavailableError, UsageError
from mqtool.formats.bodies import Heartbeat, build_heartbeat
from mqtool.formats.codes import RequestCode
from mqtool.formats.remoting import RemotingCommand
from tests.commands.test_serve import started
from tests.engine.lines_door import ROW
from tests.ports import free_port
from tests.wire_client import WireClient, consumer, messages_in


class ServedDoor(NamedTuple):
    broker: mqtool.Broker
    remoting: WireClient
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def say(self, line: str) -> str:
        """Send a line and return the answer."""
        self.writer.write(f"{line}\n".encode())
        return await self.hear()

    async def hear(self) -> str:
        return (await self.reader.readline()).decode().removesuffix("\n")


@pytest.fixture(autouse=True)
def lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DOORS, "lines", ROW)


@contextlib.asynccontextmanager
async def served(store: Path, **settings: Any) -> AsyncIterator[ServedDoor]:
    settings = {"linesPort": 0, **settings}
    async with asyncio.timeout(60), mqtool.Broker(store, settings=settings) as broker:
        host, port = broker.door_addresses["lines"].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        remoting = WireClient(broker.address)
        yield ServedDoor(broker, remoting, reader, writer)
        await remoting.close()
        writer.close()


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_what_comes_in_by_one_door_is_given_to_who_waits_at_another(flush: str, tmp_path: Path) -> None:
    async def test() -> None:
        async with served(tmp_path, flushDiskType=flush) as by_lines:
            remoting = by_lines.remoting
            assert await by_lines.say("send T first") == "stored 0"  # and the topic is on the disk
            fields: dict[str, Any] = {"consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": 1}
            fields |= {"maxMsgNums": 32, "sysFlag": 6, "commitOffset": 0, "suspendTimeoutMillis": 20_000}
            fields |= {"subVersion": 0, "subscription": "*", "expressionType": "TAG"}
            waiting = asyncio.ensure_future(remoting.ask(RequestCode.PULL_MESSAGE, **fields))
            await remoting.done(RequestCode.GET_BROKER_RUNTIME_INFO)  # by now the pull waits
            assert await by_lines.say("send T second") == "stored 1"
            answer = await waiting
            assert (answer.code, [one.body for one in messages_in(answer.body)]) == (0, [b"second"])

            by_lines.writer.write(b"next T 2\n")
            sent = await remoting.send(b"third", topic="T")
            assert (sent["queueOffset"], await by_lines.hear()) == ("2", "third")

    asyncio.run(test())


def test_members_of_a_group_are_told_of_each_other_whichever_door_they_came_by(tmp_path: Path) -> None:
    async def test() -> None:
        told: asyncio.Queue[RemotingCommand] = asyncio.Queue()
        async with served(tmp_path) as by_lines:
            member = RemotingClient([by_lines.broker.address], on_request=told.put_nowait)
            beat = build_heartbeat(Heartbeat("by remoting", (), (consumer("G"),)))
            assert [await by_lines.say("join G by lines"), await by_lines.hear()] == ["changed G", "joined"]
            assert (await member.invoke(RemotingCommand(RequestCode.HEART_BEAT, body=beat))).code == 0
            assert await by_lines.hear() == "changed G"
            assert (await told.get()).ext_fields["consumerGroup"] == "G"
            by_lines.writer.close()
            assert (await told.get()).code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
            await member.close()

    asyncio.run(test())


def test_a_clock_that_is_moved_moves_all_doors(tmp_path: Path) -> None:
    async def test() -> None:
        clock = mqtool.VirtualClock()
        async with asyncio.timeout(60), mqtool.Broker(tmp_path, clock=clock, settings={"linesPort": 0}) as broker:
            reader, writer = await asyncio.open_connection(*broker.door_addresses["lines"].split(":"))
            by_lines = ServedDoor(broker, WireClient(broker.address), reader, writer)
            await by_lines.remoting.send(b"now", topic="T")
            await by_lines.remoting.send(b"later", topic="T", pairs={"DELAY": "3"})
            assert await by_lines.say("next T 0") == "now"
            writer.write(b"next T 1\n")
            assert await by_lines.say("join G somebody") == "changed G"  # by now it waits
            clock.advance(10)
            assert [await by_lines.hear(), await by_lines.hear()] == ["joined", "later"]
            await by_lines.remoting.close()
            writer.close()

    asyncio.run(test())


def test_a_door_whose_port_is_taken_leaves_no_other_open(tmp_path: Path) -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            first, port = free_port(), taken.getsockname()[1]
            with pytest.raises(UnavailableError, match=f"cannot listen on 127.0.0.1:{port}"):
                async with mqtool.Broker(tmp_path, port=first, settings={"linesPort": port}):
                    pass
            async with mqtool.Broker(tmp_path, port=first, settings={"linesPort": 0}) as broker:
                assert broker.door_addresses["broker"] == broker.address == f"127.0.0.1:{first}"

    asyncio.run(test())
    for port in ("80000", "00109110", "1" * 5000, "-1", "x"):
        with pytest.raises(UsageError, match=f"linesPort={port} is not a port"):
            mqtool.Broker(tmp_path, settings={"linesPort": port})


def test_serve_opens_a_door_that_has_a_row_and_says_where(tmp_path: Path) -> None:
    program = "from tests.engine.lines_door import add_row; from mqtool.cli import main; add_row(); main()"
    arguments = ("-s", tmp_path, "--port", "0", "--set", "linesPort=0")
    with started(*arguments, program=("-c", program)) as (process, line):
        ready = re.fullmatch(r"mqtool: ready: name server \S+, broker \S+, lines 127.0.0.1:(\d+)\n", line)
        assert ready, (line, process.stderr and process.stderr.read())
        with socket.create_connection(("127.0.0.1", int(ready[1]))) as client:
            client.sendall(b"send T first\n")
            assert client.recv(100) == b"stored 0\n"
        process.terminate()
        assert process.communicate(timeout=60) == ("", "")


def test_without_its_setting_a_door_stays_shut() -> None:
    async def test() -> None:
        async with mqtool.Broker() as broker:
            assert broker.door_addresses == {"broker": broker.address}

    asyncio.run(test())
