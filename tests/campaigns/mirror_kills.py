"""``mqtool mirror``, killed at random moments again and again while messages come, as are the brokers of both clusters.

Two of ``mqtool serve`` run as two clusters, or several each, which may take nothing but TLS; a producer sends to the
first one without a pause; the mirror is a process that gets SIGKILL and is started again. Now and then a broker is
killed beside it, of the first cluster or the second; or the second is a broker of RocketMQ. In the end the queues of
both are read: each message of the first is in the second, in the queue that it goes to and in order. The tests try a
few kills; these are the long forms::

    python -m tests.campaigns.mirror_kills --kills 50
    python -m tests.campaigns.mirror_kills --kills 50 --brokers 0.4
    python -m tests.campaigns.mirror_kills --kills 50 --java 5.3.3
    python -m tests.campaigns.mirror_kills --kills 50 --brokers 0.4 --each 3 --tls

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
from typing import Any

import mqtool
from mqtool import ProducerMessage
from mqtool.engine.cluster import Cluster
from mqtool.engine.server_configs import NameServerConfig
from mqtool.errors import MqtoolError, Status
from tests.campaigns.kills import SETTINGS, Served
from tests.commands.running import run
from tests.differential.java_broker import running_broker
from tests.engine.remoting.test_tls import settings, with_certificate
from tests.ports import free_port

TOPIC = "Orders"
QUEUES = 4
_PAUSE_S = 0.002  # between two messages of a queue
_LEAST_UP_S, _MAX_UP_S = 0.5, 2.5


@dataclasses.dataclass(frozen=True)
class MirrorOutcome:
    """What a campaign came to."""

    kills: int  # of the mirror
    broker_kills: int
    messages: int
    twice: int
    seconds: float


Place = tuple[str, int]
"""Address or name of a broker, and queue id."""
Rows = dict[Place, list[tuple[int, str, str]]]
"""Offset, body and way of each message, by queue."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """What the clusters are like."""

    each: int = 1
    """Brokers of each cluster; that of a Java cluster is one."""
    java: str | None = None
    """Of which version the second cluster is, None: of ours."""
    certificate: Path | None = None
    """The folder of a certificate, where nothing but TLS is taken."""

    @property
    def words(self) -> list[str]:
        """What commands are told of it."""
        return ["--ca", str(self.certificate / "cert.pem")] if self.certificate else []

    @property
    def options(self) -> dict[str, Any]:
        """What clients are told of it."""
        return {"tls": True, "authorities": self.certificate / "cert.pem"} if self.certificate else {}

    def served(self, folder: Path) -> dict[str, list[Served]]:
        """Return the brokers of both clusters, the first of each with the name server."""
        secured: dict[str, str] = {}
        if self.certificate:
            secured = settings(self.certificate, mode="enforcing")
            secured |= {"tls.enable": "true", "tls.client.trustCertPath": str(self.certificate / "cert.pem")}
        clusters: dict[str, list[Served]] = {}
        for name in "AB":
            brokers: list[Served] = []
            for number in range(self.each):
                home = folder / f"{name}{number}"
                home.mkdir()
                named = {"brokerClusterName": name, "brokerName": f"broker-{number}"}
                names = brokers[0].name_server if brokers else None
                brokers.append(Served(home, {**SETTINGS, **secured, **named}, name_server=names))
            clusters[name] = brokers
        return clusters


async def run_kills(folder: Path, kills: int, brokers: float, seed: int, setup: Setup | None = None) -> MirrorOutcome:
    """Kill a mirror so many times, and for a share of that a broker; hold both clusters against each other.

    Raises:
        AssertionError: something is lost, out of order, or not what it was.
    """
    chance, begun, broker_kills = random.Random(seed), time.monotonic(), 0
    setup = setup or Setup()
    clusters = setup.served(folder)
    source, target = (one[0].name_server for one in clusters.values())
    served = [one for brokers_of in clusters.values() for one in brokers_of]
    async with contextlib.AsyncExitStack() as stack:
        processes = {one.broker: await stack.enter_async_context(_up(one)) for one in served}
        if setup.java:
            names = await stack.enter_async_context(Cluster(NameServerConfig()))
            target = names.name_server_address
            await stack.enter_async_context(running_broker(setup.java, folder / "java", target, free_port()))
        for address in (source, target):
            words = ["topic", "create", "-n", address, TOPIC, "--queues", str(QUEUES), "--yes", *setup.words]
            made = await asyncio.to_thread(run, *words)
            assert made.status == 0, made
        sending = asyncio.create_task(_send(source, setup))
        for _ in range(kills):
            async with _mirror(source, target, folder / "mirror.log", *setup.words) as process:
                await asyncio.sleep(chance.uniform(_LEAST_UP_S, _MAX_UP_S))
                if chance.random() < brokers:
                    killed = chance.choice(served)
                    broker_kills += 1
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(processes[killed.broker].pid, signal.SIGKILL)
                    await processes[killed.broker].wait()
                    await asyncio.sleep(chance.uniform(0, 1))
                    processes[killed.broker] = await stack.enter_async_context(_up(killed))
                    await asyncio.sleep(chance.uniform(_LEAST_UP_S, _MAX_UP_S))
                # One that begins while nobody is there ends.
                assert process.returncode in (None, Status.UNAVAILABLE), (folder / "mirror.log").read_text()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        for name_server, brokers_of in ((source, clusters["A"]), (target, [] if setup.java else clusters["B"])):
            await _registered(name_server, {one.broker for one in brokers_of}, setup)
        async with _mirror(source, target, folder / "mirror.log", "--idle", "3s", *setup.words) as process:
            assert await process.wait() == 0, (folder / "mirror.log").read_text()
        here = await asyncio.to_thread(_rows, source, setup)
        there = await asyncio.to_thread(_rows, target, setup)
    assert len(here) == setup.each * QUEUES
    names_of = {one.broker: f"broker-{number}" for name in "AB" for number, one in enumerate(clusters[name])}
    stays = not broker_kills and not setup.java
    log = (folder / "mirror.log").read_text()
    assert "Traceback" not in log, log
    twice = check(here, there, names_of, stays=stays)
    return MirrorOutcome(kills, broker_kills, sum(map(len, here.values())), twice, time.monotonic() - begun)


def check(source: Rows, target: Rows, names: dict[str, str], *, stays: bool) -> int:
    """Hold two clusters against each other, and return how many copies came twice.

    Copies go to the queue of the same id, on the broker of the same name; while that is away on another.

    Args:
        source: the first cluster.
        target: the second, whose brokers have as many queues.
        names: of brokers of both, by address.
        stays: no broker has been away.
    """
    copied: dict[Place, list[tuple[int, str]]] = {}  # by name and queue id of their origin
    for target_place, rows in target.items():
        here: dict[Place, list[int]] = {}  # while a broker is away its copies go elsewhere
        for _, body, way in rows:
            _, broker_name, _, queue_id, offset, _ = way.rsplit(" ", 1)[-1].split(":")
            origin = broker_name, int(queue_id)
            assert target_place[1] == origin[1], f"a copy of queue {origin} is in {target_place}"
            assert not stays or names[target_place[0]] == broker_name, f"a copy of queue {origin} is in {target_place}"
            copied.setdefault(origin, []).append((int(offset), body))
            here.setdefault(origin, []).append(int(offset))
        for origin, offsets in here.items():
            once = [*dict.fromkeys(offsets)]
            assert once == sorted(once), f"the copies of queue {origin} are out of order in {target_place}"
    twice = 0
    for (address, number), rows in source.items():
        place = names[address], number
        copies = copied.get(place, [])
        by_offset = dict(copies)
        lost = [(offset, body) for offset, body, _ in rows if by_offset.get(offset) != body]
        assert not lost, f"{len(lost):,} of queue {place} are lost, the first {lost[0]}"
        assert len(by_offset) == len(rows), f"queue {place} has copies of what never was"
        twice += len(copies) - len(by_offset)
    origins = {(names[address], number) for address, number in source}
    assert copied.keys() <= origins, f"copies of queues that never were: {copied.keys() - origins}"
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


async def _registered(name_server: str, addresses: set[str], setup: Setup) -> None:
    """Wait until a name server that was killed knows its brokers again, which tell it every 30 s."""
    async with mqtool.aio.AdminClient(name_server, **setup.options) as admin:
        while not addresses <= {one.address for one in await admin.masters()}:
            await asyncio.sleep(0.5)


async def _send(name_server: str, setup: Setup) -> None:
    """Send to every queue, each message until it is acknowledged."""
    async with mqtool.aio.Producer("P", name_server, **setup.options) as producer:
        queues = await producer.queues(TOPIC)

        async def one(queue: mqtool.MessageQueue) -> None:
            for number in itertools.count():
                message = ProducerMessage(TOPIC, f"{queue.broker_name} {queue.queue_id} {number}", keys=[f"k{number}"])
                while True:
                    try:
                        await producer.send(message, queue)
                        break
                    except MqtoolError:
                        await asyncio.sleep(0.05)
                await asyncio.sleep(_PAUSE_S)

        await asyncio.gather(*map(one, queues))


def _rows(name_server: str, setup: Setup) -> Rows:
    found: Rows = {}
    ran = run("find", "-n", name_server, "--topic", TOPIC, "--since", "1d", *setup.words)
    assert ran.status == 0, ran.remarks
    for row in sorted(ran.rows, key=lambda row: row["queue_offset"]):
        way = row["properties"].get("MQTOOL_MIRROR", "")
        found.setdefault((row["store_host"], row["queue_id"]), []).append((row["queue_offset"], row["body"], way))
    return found


def main() -> None:
    """Run a campaign and print what it came to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--brokers", type=float, default=0.0, help="how often a broker is killed as well, 0 to 1")
    parser.add_argument("--java", metavar="VERSION", help="have the second cluster be a broker of this version")
    parser.add_argument("--each", type=int, default=1, help="brokers of each cluster")
    parser.add_argument("--tls", action="store_true", help="have all of them take nothing but TLS")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.java and (given.tls or given.each > 1):
        parser.error("a cluster of Java's is one broker without TLS")
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as keys:
        certificate = with_certificate(Path(keys)) if given.tls else None
        setup = Setup(given.each, given.java, certificate)
        one = asyncio.run(run_kills(Path(folder), given.kills, given.brokers, given.seed, setup))
    print(
        f"{one.kills} kills of the mirror, {one.broker_kills} of brokers: {one.messages:,} messages, 0 lost, "
        f"{one.twice:,} came twice, in {one.seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
