"""Whole name servers, brokers and mqadmin of RocketMQ, each in a JVM; Maven fetches their jars.

(``broker_pom.xml``, ``name_server_pom.xml``.)
"""

import asyncio
import contextlib
import os
import threading
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

from mqtool.engine.client import calls
from mqtool.engine.client_runtime.wire import Wire
from mqtool.errors import MqtoolError
from tests.differential.java_store import class_path

_Result = TypeVar("_Result")

POM = "broker_pom.xml"
NAME_SERVER_POM = "name_server_pom.xml"
_UP_S = 120.0
"""Within which a JVM has started, or has ended."""
_LOGGING = '<configuration><root level="OFF"/></configuration>'
_LOGGING_FILES = ("logback_broker.xml", "logback_tools.xml", "rmq.broker.logback.xml", "rmq.tools.logback.xml")
_OPENS = [
    f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.lang", "java.nio", "jdk.internal.ref", "sun.nio.ch")
]


def within(seconds: float, work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run work, and fail where it takes longer: a JVM that hangs must not hold everything up."""

    async def bounded() -> _Result:
        async with asyncio.timeout(seconds):
            return await work

    return asyncio.run(bounded())


@contextlib.contextmanager
def in_a_thread(work: AbstractAsyncContextManager[_Result]) -> Iterator[_Result]:
    """Have what ``async with`` begins go on in a thread until the block ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        value = asyncio.run_coroutine_threadsafe(work.__aenter__(), loop).result(_UP_S)
        try:
            yield value
        finally:
            asyncio.run_coroutine_threadsafe(work.__aexit__(None, None, None), loop).result(_UP_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextlib.asynccontextmanager
async def running_name_server(version: str, folder: Path, port: int) -> AsyncIterator[str]:
    """Run a name server on ``port`` until the block ends, and give its address once it is up."""
    folder.mkdir()
    config = folder / "namesrv.conf"
    config.write_text(f"listenPort={port}\n")
    arguments = ["org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(config)]
    async with _jvm(version, folder, arguments, NAME_SERVER_POM) as process:
        await _said(process, b"success", f"the name server of {version}")
        yield f"127.0.0.1:{port}"


@contextlib.asynccontextmanager
async def running_broker(
    version: str, folder: Path, name_server: str, port: int, store: Path | None = None, settings: str = ""
) -> AsyncIterator[str]:
    """Run a broker on ``port`` until the block ends, and give its address once clients find it.

    Its store is ``store``, or a new one in ``folder``; ``settings`` are more lines of its configuration.
    """
    async with broker_process(version, folder, name_server, port, store, settings) as process:
        yield f"127.0.0.1:{port}"
        process.terminate()
        await process.communicate()


@contextlib.asynccontextmanager
async def broker_process(
    version: str, folder: Path, name_server: str, port: int, store: Path | None = None, settings: str = ""
) -> AsyncIterator[Process]:
    """Run a broker as ``running_broker`` does, and give its process, to be killed."""
    folder.mkdir(exist_ok=True)
    config = folder / "broker.conf"
    config.write_text(
        f"brokerClusterName=DefaultCluster\nbrokerName=broker-java\nbrokerId=0\nbrokerIP1=127.0.0.1\nlistenPort={port}\n"
        f"storePathRootDir={store or folder / 'store'}\n"
        "mappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=6000\n"
        "maxHashSlotNum=1000\nmaxIndexNum=4000\n"
        # A machine that stands still for a moment is no reason to refuse a message.
        f"waitTimeMillsInSendQueue=60000\nosPageCacheBusyTimeOutMills=60000\n{settings}"
    )
    arguments = ["org.apache.rocketmq.broker.BrokerStartup", "-n", name_server, "-c", str(config)]
    async with _jvm(version, folder, arguments) as process:
        await _said(process, b"boot success", f"the broker of {version}")
        await registered(name_server, f"127.0.0.1:{port}")
        yield process


async def registered(name_server: str, broker: str) -> None:
    """Wait until a name server names a broker: where a machine is slow, its first try fails, the next is 10 s later."""
    async with Wire([name_server]) as wire:
        while True:
            with contextlib.suppress(MqtoolError):  # a name server on such a machine may answer too late
                known = (await wire.request_name_server(calls.clusters())).brokers.values()
                if any(broker in one.addresses.values() for one in known):
                    return
            await asyncio.sleep(0.1)


async def _said(process: Process, word: bytes, who: str) -> None:
    """Wait until a process says that it is up."""
    assert process.stdout is not None
    said: list[bytes] = []
    while not said or word not in said[-1]:
        said.append(await process.stdout.readline())
        assert said[-1], f"{who} does not start: {b''.join(said)[-2000:]!r}"


class MqAdmin:
    """The official administrator's tool of one version, asked for one command after the other."""

    def __init__(self, process: Process, name_server: str) -> None:
        self._process = process
        self._name_server = name_server

    async def run(self, *arguments: str) -> str:
        """Run a command and return what it printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = "\t".join([*arguments, "-n", self._name_server])
        self._process.stdin.write(f"{line}\n".encode())
        await self._process.stdin.drain()
        printed: list[str] = []
        while not printed or printed[-1] != "--- done\n":
            printed.append((await self._process.stdout.readline()).decode())
            assert printed[-1], "mqadmin has ended"
        return "".join(printed[:-1])


@contextlib.asynccontextmanager
async def mqadmin(version: str, folder: Path, name_server: str, *options: str) -> AsyncIterator[MqAdmin]:
    """Start mqadmin, for commands to a name server, with options of its JVM; its settings are below ``conf``."""
    source = Path(__file__).with_name("MqAdmin.java")
    async with _jvm(version, folder, [*options, str(source)]) as process:
        yield MqAdmin(process, name_server)


class JavaClientAtWork:
    """A client of one version in a JVM that is told what to do line by line, and says what happens."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.deliveries: list[list[str]] = []
        """Body, reconsumeTimes and topic of each message that it was given."""

    async def ask(self, line: str) -> str:
        """Have it do something and return what it says to that."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        await self._process.stdin.drain()
        return await self.said()

    async def said(self) -> str:
        """Return what it says next, deliveries aside."""
        while True:
            line = await self._line()
            if not self._is_delivery(line):
                return line

    async def delivered(self, count: int) -> list[list[str]]:
        """Return the deliveries once there are so many."""
        while len(self.deliveries) < count:
            line = await self._line()
            assert self._is_delivery(line), line
        return self.deliveries

    async def stop(self) -> None:
        """Have it end, and return when it has."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert await self.said() == "stopped"
        await self._process.wait()

    def _is_delivery(self, line: str) -> bool:
        word, *rest = line.split("\t")
        if word == "got":
            self.deliveries.append(rest)
        return word == "got"

    async def _line(self) -> str:
        assert self._process.stdout is not None
        other: list[str] = []
        while True:
            line = (await self._process.stdout.readline()).decode()
            if line.startswith("> "):
                return line[2:].rstrip("\n")
            other.append(line)
            assert line, f"the client has ended: {''.join(other)[-2000:]}"


@contextlib.asynccontextmanager
async def pop_client(version: str, folder: Path, *arguments: str) -> AsyncIterator[JavaClientAtWork]:
    """Start ``PopClient.java`` with its arguments, and wait until it consumes."""
    async with _client("PopClient.java", version, folder, *arguments) as client:
        yield client


@contextlib.asynccontextmanager
async def group_client(version: str, folder: Path, *arguments: str) -> AsyncIterator[JavaClientAtWork]:
    """Start ``GroupClient.java`` with its arguments, and wait until it consumes."""
    async with _client("GroupClient.java", version, folder, *arguments) as client:
        yield client


@contextlib.asynccontextmanager
async def _client(source_name: str, version: str, folder: Path, *arguments: str) -> AsyncIterator[JavaClientAtWork]:
    source = Path(__file__).with_name(source_name)
    async with _jvm(version, folder, [str(source), *arguments]) as process:
        client = JavaClientAtWork(process)
        assert await client.said() == "started"
        yield client


@contextlib.asynccontextmanager
async def _jvm(version: str, folder: Path, arguments: list[str], pom: str = POM) -> AsyncIterator[Process]:
    conf = folder / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for name in _LOGGING_FILES:
        (conf / name).write_text(_LOGGING)
    process = await asyncio.create_subprocess_exec(
        "java",
        "-Xmx512m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        f"-Duser.home={folder}",
        *_OPENS,
        "-cp",
        class_path(version, pom),
        *arguments,
        stdin=PIPE,
        stdout=PIPE,
        stderr=STDOUT,  # failures of mqadmin are told there
        cwd=folder,  # where some commands leave files
        env={**os.environ, "ROCKETMQ_HOME": str(folder), "JAVA_TOOL_OPTIONS": ""},
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
