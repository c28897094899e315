"""How fast a slave gets the log of its master, and what that costs: RocketMQ's own brokers and ours in both roles.

A master holds a log of one segment of 1 KiB messages, and an empty slave joins. Measured from its first byte until its
log and its queues are the master's: bytes by second, processor time of both processes by GiB (with the share of the
system), and the memory of the slave beside mapped files. Then what it costs to send (``replicated_sends.py``).
"""

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

from bench.broker import VERSION, ratio
from bench.replicated_sends import measure_sends
from bench.table import Row
from mqtool.engine.remoting.clock import wall_clock
from mqtool.engine.store.message_store import MessageStore
from mqtool.engine.store.paths import StoreConfig
from mqtool.errors import MqtoolError
from mqtool.formats.bodies import parse_body
from mqtool.formats.codes import RequestCode
from mqtool.formats.new_message import NewMessage
from tests.commands.running import as_options
from tests.differential.java_broker import broker_process
from tests.differential.java_store import NoJavaError, class_path
from tests.ports import free_port
from tests.wire_client import WireClient

SIZE = 2_000_000_000
"""Bytes of the log; they fit the largest segment that a RocketMQ broker can have."""
SEGMENT = 2_147_479_552
QUEUES = 4
TOPIC = "bench"
_TICKS = os.sysconf("SC_CLK_TCK")
_LIMIT_SECONDS = 1800
_LOOK_SECONDS = 0.1
_JAVA, _OURS = "java", "mqtool"
_SETTINGS = {
    "mappedFileSizeCommitLog": str(SEGMENT),
    "mappedFileSizeConsumeQueue": "6000000",
    "maxHashSlotNum": "5000000",
    "maxIndexNum": "20000000",
    "diskMaxUsedSpaceRatio": "95",
    "slaveReadEnable": "true",
    "fileReservedTime": "720",
}


class Catch(NamedTuple):
    """What it took until a slave had the log."""

    rate: float  # bytes by second
    master_seconds: float  # of the processor, by GiB
    master_system: float  # the system's share
    slave_seconds: float
    slave_anonymous: int  # bytes in memory


def measure_replication(folder: Path, size: int = SIZE) -> list[Row]:
    """Return the rows of the table: RocketMQ with itself, and ours in each role."""
    try:
        class_path(VERSION)
    except NoJavaError as error:
        return [Row("replication", str(error), "", "", "")]
    with contextlib.ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        end = _fill(base / "store", size)
        catches = {
            (master, slave): asyncio.run(_catch_up(base, master, slave, end))
            for master in (_JAVA, _OURS)
            for slave in (_JAVA, _OURS)
        }
        return [*_rows(catches), *measure_sends(base)]


def _rows(catches: dict[tuple[str, str], Catch]) -> "list[Row]":
    theirs = catches[_JAVA, _JAVA]
    rows = []
    for (master, slave), ours in catches.items():
        name = f"{master} > {slave}"
        rows += [
            Row(f"catch-up, {name}", _rate(theirs.rate), _rate(ours.rate), ratio(ours.rate, theirs.rate), "≥ 1"),
            Row(
                "  processor of the master by GiB (of that the system)",
                _cost(theirs.master_seconds, theirs.master_system),
                _cost(ours.master_seconds, ours.master_system),
                ratio(ours.master_seconds, theirs.master_seconds),
                "≤ 1" if master == _OURS else "",
            ),
            Row(
                "  processor of the slave by GiB",
                f"{theirs.slave_seconds:.2f} s",
                f"{ours.slave_seconds:.2f} s",
                ratio(ours.slave_seconds, theirs.slave_seconds),
                "",
            ),
            Row(
                "  memory of the slave, without mapped files",
                _memory(theirs.slave_anonymous),
                _memory(ours.slave_anonymous),
                ratio(ours.slave_anonymous, theirs.slave_anonymous),
                "≤ 50 MiB" if slave == _OURS else "",
            ),
        ]
    return rows


def _rate(rate: float) -> str:
    return f"{rate / 1e6:,.0f} MB/s"


def _memory(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


def _cost(seconds: float, system: float) -> str:
    return f"{seconds:.2f} s ({system:.0%})"


def _fill(root: Path, size: int) -> int:
    """Make a store with a log of so many bytes, and return where it ends."""
    store = MessageStore(root, StoreConfig(_SETTINGS), now=wall_clock())
    body, host, number = bytes(range(256)) * 4, (bytes([127, 0, 0, 1]), 10911), 0
    while store.log.end_offset < size:
        now = wall_clock()
        properties = b"KEYS\x01%d\x02WAIT\x01true\x02TAGS\x01TagA\x02" % number
        store.append(NewMessage(TOPIC, number % QUEUES, body, properties, 0, 0, now, host, host), now)
        number += 1
        if number % 1000 == 0:
            store.write_units()
    end = store.log.end_offset
    store.close()
    (root / "config").mkdir(exist_ok=True)
    topic = f'{{"topicName":"{TOPIC}","readQueueNums":{QUEUES},"writeQueueNums":{QUEUES},"perm":6,"order":false,'
    topic += '"topicFilterType":"SINGLE_TAG","topicSysFlag":0,"attributes":{}}'
    (root / "config" / "topics.json").write_text(f'{{"topicConfigTable":{{"{TOPIC}":{topic}}}}}')
    return end


async def _catch_up(base: Path, master: str, slave: str, end: int) -> Catch:
    with tempfile.TemporaryDirectory(dir=base) as work:
        folder = Path(work)
        shutil.copytree(base / "store", folder / "master-store")
        async with contextlib.AsyncExitStack() as stack:
            name_port = free_port()
            await stack.enter_async_context(_serving(folder, "names", "--no-broker", "--namesrv-port", name_port))
            names = f"127.0.0.1:{name_port}"
            ports = free_port(), free_port()
            running: list[int] = []
            for kind, port, store, role in (
                (master, ports[0], folder / "master-store", {"brokerRole": "ASYNC_MASTER"}),
                (slave, ports[1], folder / "slave-store", {"brokerRole": "SLAVE", "brokerId": "1"}),
            ):
                settings = {
                    **_SETTINGS,
                    **role,
                    "haListenPort": str(port + 1),
                    "brokerName": "bench",
                    "brokerIP2": "127.0.0.1",
                }
                if len(running) == 1:
                    client = WireClient(f"127.0.0.1:{ports[0]}")
                    stack.push_async_callback(client.close)
                    queue_ends = await _queue_ends(client)
                    before = _processor(running[0])
                if kind == _JAVA:
                    lines = "".join(f"{name}={value}\n" for name, value in settings.items())
                    process = await stack.enter_async_context(
                        broker_process(VERSION, folder / f"{role['brokerRole']}", names, port, store, lines)
                    )
                    stack.callback(process.kill)
                else:
                    options = as_options(settings)
                    process = await stack.enter_async_context(
                        _serving(
                            folder,
                            role["brokerRole"],
                            "--no-namesrv",
                            "-n",
                            names,
                            "--port",
                            port,
                            "-s",
                            store,
                            *options,
                        )
                    )
                running.append(process.pid)
            return await _watch(running, ports, end, queue_ends, before)


async def _watch(
    running: list[int], ports: tuple[int, int], end: int, queue_ends: list[int], before: tuple[float, float]
) -> Catch:
    slave = WireClient(f"127.0.0.1:{ports[1]}")
    began, slave_before = 0.0, (0.0, 0.0)
    deadline = time.monotonic() + _LIMIT_SECONDS
    try:
        while time.monotonic() < deadline:
            here = await _log_end(slave)
            if here > 0 and not began:
                began, slave_before = time.monotonic(), _processor(running[1])
            if here >= end and await _queue_ends(slave) == queue_ends:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        else:
            raise TimeoutError("the slave never had all of the log")
    finally:
        await slave.close()
    seconds, gib = time.monotonic() - began, end / (1 << 30)
    user, system = (after - there for after, there in zip(_processor(running[0]), before, strict=True))
    of_slave = sum(_processor(running[1])) - sum(slave_before)
    return Catch(
        end / seconds, (user + system) / gib, system / max(user + system, 0.01), of_slave / gib, _anonymous(running[1])
    )


async def _log_end(client: WireClient) -> int:
    with contextlib.suppress(MqtoolError):
        answer = await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        return int(parse_body(answer.body)["table"]["commitLogMaxOffset"])
    return 0


async def _queue_ends(client: WireClient) -> list[int]:
    ends = []
    for queue_id in range(QUEUES):
        answer = await client.ask(RequestCode.GET_MAX_OFFSET, topic=TOPIC, queueId=queue_id)
        ends.append(int(answer.ext_fields.get("offset", "-1")))
    return ends


@contextlib.asynccontextmanager
async def _serving(folder: Path, name: str, *arguments: object) -> AsyncIterator[asyncio.subprocess.Process]:
    with (folder / f"{name}.log").open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mqtool", "serve", *map(str, arguments)),
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
        assert process.stdout is not None
        assert b"ready" in await process.stdout.readline(), (folder / f"{name}.log").read_text()
        try:
            yield process
        finally:
            process.kill()
            await process.wait()


def _processor(pid: int) -> tuple[float, float]:
    """Return the processor time of a process, its own and the system's, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / _TICKS, int(fields[12]) / _TICKS


def _anonymous(pid: int) -> int:
    """Return the bytes that a process has in memory, but for those of files."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("RssAnon:")]
    return int(line.split()[1]) * 1024
