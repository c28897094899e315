"""``mqtool mirror``, killed at random moments again and again while messages come, as are the brokers of both clusters.

Two of ``mqtool serve`` run as two clusters; a producer sends to the first one without a pause; the mirror is a process
that gets SIGKILL and is started again. Now and then a broker is killed beside it, of the first cluster or the second;
or the second is a broker of RocketMQ. In the end the queues of both are read: each message of the first is in the
second, in the same queue and in order. The tests try a few kills; these are the long forms::

    python -m tests.campaigns.mirror_kills --kills 50
    python -m tests.campaigns.mirror_kills --kills 50 --brokers 0.4
    python -m tests.campaigns.mirror_kills --kills 50 --java 5.3.3

It ends with an error if something is lost, out of order, or not what it was, and tells how many copies came twice.
"""

# ruff: noqa: T201  its results go to standard output

import argparse
import asyncio
import contextlib
import dataclasses
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import mqtool
from mqtool import ProducerMessage
from mqtool.engine.cluster import Cluster, NameServerConfig
from mqtool.errors import MqtoolError, Status
from tests.campaigns.kills import SETTINGS, Served
from tests.commands.running import run
from tests.differential.java_broker import free_port, running_broker

TOPIC = "Orders"
QUEUES = 4
_PAUSE_S = 0.002  # between two messages of a queue
_LEAST_UP_S, _MOST_UP_S = 0.5, 2.5


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a campaign came to."""

    kills: int  # of the mirror
    broker_kills: int
    messages: int
    twice: int
    seconds: float


Rows = dict[int, list[tuple[int, str, str]]]
"""Offset, body and way of each message, by queue."""


async def run_kills(folder: Path, kills: int, brokers: float, seed: int, java: str | None = None) -> Outcome:
    """Kill a mirror so many times, and for a share of that a broker; hold both clusters against each other.

    Raises:
        AssertionError: something is lost, out of order, or not what it was.
    """
    chance, begun, broker_kills = random.Random(seed), time.monotonic(), 0
    served = {name: Served(folder / name, {**SETTINGS, "brokerClusterName": name}) for name in "AB"}
    for one in served.values():
        one.log.parent.mkdir()
    source, target = (one.name_server for one in served.values())
    async with contextlib.AsyncExitStack() as stack:
        processes = {name: await stack.enter_async_context(_up(one)) for name, one in served.items()}
        if java:
            names = await stack.enter_async_context(Cluster(NameServerConfig()))
            target = names.name_server_address
            await stack.enter_async_context(running_broker(java, folder / "java", target, free_port()))
        for address in (source, target):
            made = await asyncio.to_thread(run, "topic", "create", "-n", address, TOPIC, "--queues", QUEUES, "--yes")
            assert made.status == 0, made
        sending = asyncio.create_task(_send(source))
        for _ in range(kills):
            async with _mirror(source, target, folder / "mirror.log") as process:
                await asyncio.sleep(chance.uniform(_LEAST_UP_S, _MOST_UP_S))
                if chance.random() < brokers:
                    name = chance.choice("AB")
                    broker_kills += 1
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(processes[name].pid, signal.SIGKILL)
                    await processes[name].wait()
                    await asyncio.sleep(chance.uniform(0, 1))
                    processes[name] = await stack.enter_async_context(_up(served[name]))
                    await asyncio.sleep(chance.uniform(_LEAST_UP_S, _MOST_UP_S))
                # One that begins while nobody is there ends.
                assert process.returncode in (None, Status.UNAVAILABLE), (folder / "mirror.log").read_text()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        async with _mirror(source, target, folder / "mirror.log", "--idle", "3s") as process:
            assert await process.wait() == 0, (folder / "mirror.log").read_text()
        here = await asyncio.to_thread(_rows, source)
        there = await asyncio.to_thread(_rows, target)
    log = (folder / "mirror.log").read_text()
    assert "Traceback" not in log, log
    return Outcome(kills, broker_kills, sum(map(len, here.values())), check(here, there), time.monotonic() - begun)


def check(source: Rows, target: Rows) -> int:
    """Hold two clusters against each other, and return how many copies came twice."""
    twice = 0
    for queue_id, rows in source.items():
        copies = [(int(way.rsplit(":", 2)[1]), body) for _, body, way in target.get(queue_id, [])]
        once = dict(copies)
        lost = [(offset, body) for offset, body, _ in rows if once.get(offset) != body]
        assert not lost, f"{len(lost):,} of queue {queue_id} are lost, the first {lost[0]}"
        assert list(once) == sorted(once), f"the copies of queue {queue_id} are out of order"
        assert len(once) == len(rows), f"queue {queue_id} has copies of what never was"
        twice += len(copies) - len(once)
    return twice


@contextlib.asynccontextmanager
async def _up(served: Served) -> AsyncIterator[asyncio.subprocess.Process]:
    async with served.running() as process:
        await served.until_ready(process)
        yield process


@contextlib.asynccontextmanager
async def _mirror(source: str, target: str, log: Path, *more: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a mirror until the end of the block, and kill it with its child."""
    words = ["mirror", "--from", source, "--to", target, "--topic", TOPIC, "--yes", *more]
    with log.open("ab") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mqtool", *words), stdout=file, stderr=file, start_new_session=True
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _send(name_server: str) -> None:
    """Send to every queue, each message until it is acknowledged."""
    async with mqtool.aio.Producer("P", name_server) as producer:
        queues = await producer.queues(TOPIC)

        async def one(queue: mqtool.MessageQueue) -> None:
            for number in itertools.count():
                message = ProducerMessage(TOPIC, f"{queue.queue_id} {number}", keys=[f"k{number}"])
                while True:
                    try:
                        await producer.send(message, queue)
                        break
                    except MqtoolError:
                        await asyncio.sleep(0.05)
                await asyncio.sleep(_PAUSE_S)

        await asyncio.gather(*map(one, queues))


def _rows(name_server: str) -> Rows:
    found: Rows = {}
    ran = run("find", "-n", name_server, "--topic", TOPIC, "--since", "1d")
    assert ran.status == 0, ran.remarks
    for row in sorted(ran.rows, key=lambda row: row["queue_offset"]):
        way = row["properties"].get("MQTOOL_MIRROR", "")
        found.setdefault(row["queue_id"], []).append((row["queue_offset"], row["body"], way))
    return found


def main() -> None:
    """Run a campaign and print what it came to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--brokers", type=float, default=0.0, help="how often a broker is killed as well, 0 to 1")
    parser.add_argument("--java", metavar="VERSION", help="have the second cluster be a broker of this version")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        one = asyncio.run(run_kills(Path(folder), given.kills, given.brokers, given.seed, given.java))
    print(
        f"{one.kills} kills of the mirror, {one.broker_kills} of brokers: {one.messages:,} messages, 0 lost, "
        f"{one.twice:,} came twice, in {one.seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
