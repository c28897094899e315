"""A broker that is killed at random moments, again and again, while producers send; each message is synced.

``mqtool serve`` runs on one store and one port and is started again after each kill; every other one comes within its
first second, ready or not. Each lane of a producer sends one message after the other to one queue, each until it is
acknowledged. In the end every queue is read, and the store verified: what was acknowledged with an offset stands
there, nothing stands there more often than it was sent, and each lane's messages in their order; delayed messages were
delivered. The tests try a few kills; these are the long forms, the second with the official client too, which also
reads all topics for the count::

    python -m tests.campaigns.kills --kills 300
    python -m tests.campaigns.kills --kills 100 --java 5.3.3

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
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from mqtool.engine.client import calls
from mqtool.engine.remoting.client import RemotingClient
from mqtool.engine.remoting.clock import wall_clock
from mqtool.engine.repair.findings import Severity
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import UnavailableError
from mqtool.formats.headers import Send
from mqtool.formats.stored_message import parse_stored
from mqtool.formats.unique_key import build_unique_key
from tests.commands.running import as_options
from tests.differential.java_broker import POM
from tests.differential.java_store import class_path
from tests.ports import free_port
from tests.wire_client import send_command

SETTINGS = {"flushDiskType": "SYNC_FLUSH", "mappedFileSizeCommitLog": str(1 << 22)}
PLAIN, LATER, JAVA = "Plain", "Later", "Java"
QUEUES = 4
CLIENTS = 4
LANES = 8
"""Of each client, its last one of delayed messages."""
_DELAY_LEVEL = "1"
_PATIENCE_SECONDS = 30.0
_AGAIN_SECONDS = 0.02
_UP_SECONDS = 0.8  # at most, between being ready and being killed
_UP_SECONDS_JAVA = 2.0  # whose client takes a while to connect again
_ROOT = Path(__file__).parents[2]

Topics = dict[str, dict[int, list[str]]]
"""Bodies in the order of their offsets, by topic and queue id."""


@dataclasses.dataclass
class Sent:
    """A message that a producer has sent, perhaps several times."""

    topic: str
    queue_id: int
    lane: str
    number: int
    attempts: int = 0
    offset: int | None = None  # where it is stored, once that is acknowledged; of a delayed one 0

    @property
    def body(self) -> str:
        return f"{self.lane} {self.number}"


@dataclasses.dataclass(frozen=True)
class KillOutcome:
    """What a campaign came to."""

    kills: int
    in_first_second: int
    before_ready: int  # of those
    acknowledged: int
    resent: int  # messages that were sent more than once
    stored_again: int  # copies that resending has made
    recovered: int  # starts that found the store damaged
    slowest_start: float  # seconds
    by_java: int  # of those acknowledged


class KillProducers:
    """Clients of ours that send until they are told to stop."""

    def __init__(self, broker: str) -> None:
        self.sent: list[Sent] = []
        self._broker = broker
        self._stopping = False
        self._clients = [RemotingClient([broker]) for _ in range(CLIENTS)]
        self._tasks = [
            asyncio.create_task(self._send_on(client, f"{number}-{lane}", lane))
            for number, client in enumerate(self._clients)
            for lane in range(LANES)
        ]

    async def stop(self) -> None:
        """Let each lane end with the message that it is at."""
        self._stopping = True
        await asyncio.gather(*self._tasks)
        for client in self._clients:
            await client.close()

    async def _send_on(self, client: RemotingClient, lane: str, number: int) -> None:
        topic = LATER if number == LANES - 1 else PLAIN
        properties = f"DELAY\x01{_DELAY_LEVEL}\x02" if topic == LATER else ""
        for count in range(sys.maxsize):
            if self._stopping:
                return
            one = Sent(topic, number % QUEUES, lane, count)
            self.sent.append(one)
            key = build_unique_key(bytes(4), number, hash(lane), wall_clock(), count)
            header = Send(
                "kills", topic, "TBW102", QUEUES, one.queue_id, 0, wall_clock(), 0, f"UNIQ_KEY\x01{key}\x02{properties}"
            )
            while one.offset is None:
                one.attempts += 1
                with contextlib.suppress(UnavailableError):
                    answer = await client.invoke(send_command(header, one.body.encode()))
                    if answer.code == 0:
                        one.offset = int(answer.ext_fields["queueOffset"])
                        break
                await asyncio.sleep(_AGAIN_SECONDS)


class JavaClient:
    """The official client, in a process of its own (``KillClient.java``)."""

    def __init__(self, name_server: str, version: str, folder: Path) -> None:
        jars = class_path(version, POM)
        source = Path(__file__).with_name("KillClient.java")
        subprocess.run(["javac", "-nowarn", "-XDsuppressNotes", "-cp", jars, "-d", folder, source], check=True)
        command = ["java", "-Xmx256m", f"-Drocketmq.client.logRoot={folder}", "-Drocketmq.client.logLevel=ERROR"]
        command += ["-cp", f"{folder}{os.pathsep}{jars}", "KillClient", name_server, JAVA, str(LANES), str(QUEUES)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def stop(self) -> list[Sent]:
        """Let each lane end with the message that it is at, and return all messages."""
        rows = (line.split() for line in self._ask("stop"))
        return [
            Sent(JAVA, int(queue_id), f"java-{lane}", int(number), int(attempts), int(offset))
            for lane, number, queue_id, offset, attempts in rows
        ]

    def pull(self, topic: str) -> dict[int, list[str]]:
        """Return the bodies of a topic by queue, read from its beginning."""
        found: dict[int, list[str]] = defaultdict(list)
        for line in self._ask(f"pull {topic}"):
            queue_id, offset, body = line.split(" ", 2)
            assert int(offset) == len(found[int(queue_id)]), line
            found[int(queue_id)].append(f"java-{body}" if topic == JAVA else body)
        return found

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _ask(self, call: str) -> Iterator[str]:
        assert self._process.stdin
        assert self._process.stdout
        print(call, file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line == "done\n":
                return
            yield line.rstrip("\n")
        raise AssertionError("the Java client has ended")


class Served:
    """``mqtool serve`` on one store and on the same ports, whenever it is started; the name server may be elsewhere."""

    def __init__(
        self,
        folder: Path,
        settings: dict[str, str],
        program: tuple[str, ...] = ("mqtool",),
        name_server: str | None = None,
    ) -> None:
        ports = [free_port(), free_port()]
        self._program = program
        self.store = folder / "store"
        own, self.broker = (f"127.0.0.1:{port}" for port in ports)
        self.name_server = name_server or own
        self.log = folder / "log"
        of_names = ["--no-namesrv", "-n", name_server] if name_server else ["--namesrv-port", str(ports[0])]
        self._words = [*of_names, "--port", str(ports[1]), "-s", str(self.store)]
        self._words += as_options(settings)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """Start it, and kill it in the end if it still runs."""
        with self.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", *self._program, "serve", *self._words),
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
                start_new_session=True,
            )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def until_ready(self, process: asyncio.subprocess.Process) -> None:
        """Wait for the line that tells it is ready."""
        assert process.stdout is not None
        line = await process.stdout.readline()
        assert line.startswith(b"mqtool: ready"), self.log.read_text()


async def run_kills(folder: Path, kills: int, seed: int, java: str | None = None) -> KillOutcome:
    """Kill a broker so many times, and hold what is there against what its producers know.

    Raises:
        AssertionError: something is lost, there too often, or out of order; or the store is not sound.
    """
    chance = random.Random(seed)
    served = Served(folder, SETTINGS)
    in_first_second, before_ready, slowest = 0, 0, 0.0
    producers = KillProducers(served.broker)
    client = JavaClient(served.name_server, java, folder) if java else None
    try:
        for _ in range(kills):
            async with served.running() as process:
                if chance.random() < 0.5:
                    in_first_second += 1
                    before_ready += not await _ready_after(served, process, chance.random())
                else:
                    begun = time.monotonic()
                    await served.until_ready(process)
                    slowest = max(slowest, time.monotonic() - begun)
                    await asyncio.sleep(chance.uniform(0.02, _UP_SECONDS_JAVA if client else _UP_SECONDS))
        async with served.running() as process:
            await served.until_ready(process)
            sent_by_java = await asyncio.to_thread(client.stop) if client else []
            await producers.stop()
            await _until_delivered(served.broker, {one.body for one in producers.sent if one.topic == LATER})
            topics = (PLAIN, LATER, JAVA) if client else (PLAIN, LATER)
            found = {
                topic: await asyncio.to_thread(client.pull, topic) if client else await _pull(served.broker, topic)
                for topic in topics
            }
            process.terminate()
            assert await process.wait() == 0
    finally:
        if client:
            client.end()
    sent = producers.sent + sent_by_java
    stored_again = check(sent, found)
    log = served.log.read_text()
    assert "Traceback" not in log, log
    verify(served.store)
    return KillOutcome(
        kills,
        in_first_second,
        before_ready,
        len(sent),
        sum(one.attempts > 1 for one in sent),
        stored_again,
        log.count("recovering"),
        slowest,
        len(sent_by_java),
    )


async def _ready_after(served: Served, process: asyncio.subprocess.Process, seconds: float) -> bool:
    """Let some time pass, and tell whether it is ready."""
    ready = asyncio.create_task(served.until_ready(process))
    await asyncio.sleep(seconds)
    if is_ready := ready.done():
        ready.result()
    ready.cancel()
    return is_ready


async def _until_delivered(broker: str, wanted: set[str]) -> None:
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while wanted - {body for bodies in (await _pull(broker, LATER)).values() for body in bodies}:
            await asyncio.sleep(_AGAIN_SECONDS)


async def _pull(broker: str, topic: str) -> dict[int, list[str]]:
    client = RemotingClient([broker])
    found: dict[int, list[str]] = {}
    for queue_id in range(QUEUES):
        bodies = found[queue_id] = []
        while True:
            call = calls.pull(topic, queue_id, len(bodies), 32)
            records = (await client.invoke(call.command)).body
            if not records:
                break
            at = 0
            while at < len(records):
                size = int.from_bytes(records[at : at + 4])
                stored = parse_stored(records[at : at + size])
                assert stored.queue_offset == len(bodies)
                bodies.append(stored.message.body.decode())
                at += size
    await client.close()
    return found


def check(sent: list[Sent], found: Topics) -> int:
    """Hold what is stored against what was sent, and return how many copies resending has made."""
    copies: Counter[str] = Counter()
    orders: dict[str, list[int]] = defaultdict(list)
    for queues in found.values():
        for bodies in queues.values():
            copies.update(bodies)
            for body in dict.fromkeys(bodies):
                lane, _, number = body.partition(" ")
                orders[lane].append(int(number))
    for one in sent:
        assert 1 <= copies[one.body] <= one.attempts, f"{one}: {copies[one.body]} copies"
        if one.topic != LATER:
            assert one.offset is not None
            assert found[one.topic][one.queue_id][one.offset] == one.body, one
    assert not copies.keys() - {one.body for one in sent}
    for lane, numbers in orders.items():
        assert numbers == sorted(numbers), f"lane {lane} is out of order"
    return copies.total() - len(copies)


def verify(store: Path) -> None:
    """Have a store verified, which must be sound."""
    findings = [*verify_store(StoreReader(store, StoreConfig(SETTINGS)))]
    wrong = [finding for finding in findings if finding.severity != Severity.NOTE]
    assert not wrong, wrong


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--java", metavar="VERSION", help="have the client of this version send and count as well")
    given = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mqtool-kills-") as name:
        one = asyncio.run(run_kills(Path(name), given.kills, given.seed, given.java))
    print(
        f"{one.kills:,} kills, {one.in_first_second:,} of them in the first second ({one.before_ready:,} before it was "
        f"ready), {one.acknowledged:,} messages acknowledged "
        f"({one.by_java:,} of them to a Java client), none lost, all in order; {one.resent:,} sent again, of which "
        f"{one.stored_again:,} were stored again, none else twice; {one.recovered:,} stores recovered as damaged; "
        f"slowest start {one.slowest_start:.1f} s; {time.monotonic() - begun:,.0f} s in all"
    )


if __name__ == "__main__":
    main()
