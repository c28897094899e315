"""A master and its slave that are killed at random moments, the one, the other or both, while producers send.

``mqtool serve`` runs three times: a name server, a SYNC_MASTER that waits for its slave (inSyncReplicas=2), and that.
What is killed is started again at once. Each lane of a producer sends one message after the other to one queue, each
until it is acknowledged. In the end the logs of both are equal, byte by byte, every acknowledged message stands where
its producer was told, and both stores are sound. With ``--java`` the official client sends and reads as well::

    python -m tests.campaigns.replication_kills --kills 200
    python -m tests.campaigns.replication_kills --kills 200 --java 5.3.3

It ends with an error at the first thing that is not as it should be.
"""

# ruff: noqa: T201  its results go to standard output

import argparse
import asyncio
import contextlib
import dataclasses
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from mqtool import aio
from tests.campaigns.kills import JAVA, LATER, PLAIN, QUEUES, JavaClient, KillProducers, check, verify
from tests.campaigns.kills import _pull as pull
from tests.campaigns.kills import _until_delivered as until_delivered
from tests.commands.running import as_options
from tests.ports import free_port

SETTINGS = {"brokerName": "broker-a", "mappedFileSizeCommitLog": str(1 << 22)}
MASTER = {**SETTINGS, "brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}
SLAVE = {**SETTINGS, "brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true", "haStartAtFirstByte": "true"}
_UP_SECONDS = 1.0  # at most, between two kills
_PATIENT = 0.8
"""Of the kills, how many are followed by the next only when what was killed is ready: on a busy machine that takes as
long as many kills, and nothing would ever be acknowledged."""
_EQUAL_SECONDS = 120.0
_REST_SECONDS = 5.0
_ROOT = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class ReplicationKills:
    """What a campaign came to."""

    kills: dict[str, int]
    acknowledged: int
    resent: int  # messages that were sent more than once
    stored_again: int  # copies that resending has made
    log_size: int
    by_java: int


class RestartedProcess:
    """A process that is started again on the same ports and the same store whenever it was killed."""

    def __init__(self, folder: Path, name: str, words: list[str]) -> None:
        self.store = folder / name
        self.log = folder / f"{name}.log"
        self._words = words
        self.process: asyncio.subprocess.Process

    async def start(self) -> None:
        """Start it; it may not be ready yet."""
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "mqtool", "serve", *self._words),
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
                start_new_session=True,
            )

    async def until_ready(self) -> None:
        """Wait for the line that tells it is ready."""
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        assert line.startswith(b"mqtool: ready"), self.log.read_text()

    async def kill(self) -> None:
        """Kill it, and all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()

    async def stop(self) -> None:
        """Stop it in good order."""
        self.process.terminate()
        assert await self.process.wait() == 0, self.log.read_text()


def _broker(folder: Path, name: str, name_server: str, port: int, settings: dict[str, str]) -> RestartedProcess:
    words = ["--no-namesrv", "-n", name_server, "--port", str(port), "-s", str(folder / name)]
    return RestartedProcess(folder, name, words + as_options(settings))


def log_of(store: Path) -> bytes:
    """Return all bytes of a log."""
    return b"".join(path.read_bytes() for path in sorted((store / "commitlog").iterdir()))


async def _until_at_rest(master: Path, slave: Path) -> None:
    """Wait until the logs are equal, and nothing has come for a while: copies of delayed messages come late."""
    async with asyncio.timeout(_EQUAL_SECONDS):
        before, since = b"", time.monotonic()
        while time.monotonic() - since < _REST_SECONDS:
            log = log_of(master)
            if log != before or log != log_of(slave):
                before, since = log, time.monotonic()
            await asyncio.sleep(0.2)


async def run_kills(folder: Path, kills: int, seed: int, java: str | None = None) -> ReplicationKills:
    """Kill so many times, and hold what is there against what the producers know.

    Raises:
        AssertionError: something is lost, there too often, or out of order; logs differ, or a store is not sound.
    """
    chance = random.Random(seed)
    names, port = free_port(), free_port()
    name_server = f"127.0.0.1:{names}"
    of_names = RestartedProcess(folder, "names", ["--no-broker", "--namesrv-port", str(names)])
    master = _broker(folder, "master", name_server, port, MASTER)
    slave = _broker(folder, "slave", name_server, free_port(), SLAVE)
    victims = {"master": [master], "slave": [slave], "both": [master, slave]}
    counts = dict.fromkeys(victims, 0)
    for one in (of_names, master, slave):
        await one.start()
        await one.until_ready()
    producers = KillProducers(f"127.0.0.1:{port}")
    if java:
        # A client that asks for the route of a new topic while only the slave is registered never asks again.
        async with aio.AdminClient(name_server) as admin:
            await admin.create_topic(JAVA, queues=QUEUES)
    client = JavaClient(name_server, java, folder) if java else None
    try:
        for kill in range(kills):
            await asyncio.sleep(chance.uniform(0.02, _UP_SECONDS))
            who = [*victims][kill % len(victims)]
            counts[who] += 1
            for one in victims[who]:
                await one.kill()
            is_patient = chance.random() < _PATIENT
            for one in victims[who]:
                await one.start()
            for one in victims[who] if is_patient else ():
                await one.until_ready()
        sent_by_java = await asyncio.to_thread(client.stop) if client else []
        await producers.stop()
        await until_delivered(f"127.0.0.1:{port}", {one.body for one in producers.sent if one.topic == LATER})
        await _until_at_rest(master.store, slave.store)
        topics = (PLAIN, LATER, JAVA) if client else (PLAIN, LATER)
        found = {
            topic: await asyncio.to_thread(client.pull, topic) if client else await pull(f"127.0.0.1:{port}", topic)
            for topic in topics
        }
        await slave.stop()
        await master.stop()
    finally:
        if client:
            client.end()
        for one in (slave, master, of_names):
            await one.kill()
    assert client is None or sent_by_java
    sent = producers.sent + sent_by_java
    stored_again = check(sent, found)
    for one in (master, slave):
        assert "Traceback" not in one.log.read_text(), one.log.read_text()
        assert "replication has stopped" not in one.log.read_text(), one.log.read_text()
        verify(one.store)
    words = [sys.executable, "-m", "mqtool", "compare", str(master.store), str(slave.store), "-o", "jsonl"]
    compared = await asyncio.create_subprocess_exec(
        *words, env={**os.environ, "PYTHONPATH": str(_ROOT)}, stdout=asyncio.subprocess.PIPE
    )
    rows, _ = await compared.communicate()
    # Tables are copied every ten seconds, and some are only written where they have changed.
    assert b'"kind":"range"' not in rows, rows
    assert b'"kind":"queue"' not in rows, rows
    resent = sum(one.attempts > 1 for one in sent)
    return ReplicationKills(counts, len(sent), resent, stored_again, len(log_of(master.store)), len(sent_by_java))


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--java", metavar="VERSION", help="let the official client send and read, too")
    given = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mqtool-replication-kills-") as folder:
        outcome = asyncio.run(run_kills(Path(folder), given.kills, given.seed, given.java))
    print(f"{outcome}; {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
