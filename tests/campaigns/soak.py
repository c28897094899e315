"""``mqtool serve`` at work for ten minutes, with all that clients do, and its memory meanwhile.

Producers send, consumers pull and commit, messages are delayed and timed, transactions end or are asked for, members of
groups come and go, administrators ask, thousands of connections say nothing, and one client asks and never reads. Every
ten seconds the memory of the process is noted; in the end everything must have been delivered once, and the store is
verified::

    python -m tests.campaigns.soak --minutes 10 --idle 5000

It prints the memory and what was done; ``flat`` says by how much the last third of the time differs from the second.
Pauses of the event loop are told beside those of loops in other processes (``pauses.py``): one does nothing, one does
the same half a millisecond of work again and again, which takes longer where the machine is slow for a while.
"""

# ruff: noqa: T201  its results go to standard output

import argparse
import asyncio
import contextlib
import itertools
import resource
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from mqtool.engine.client import calls
from mqtool.engine.remoting.client import RemotingClient
from mqtool.engine.remoting.clock import wall_clock
from mqtool.engine.repair.findings import Severity
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.formats.bodies import ConsumerData, Heartbeat, Subscription, build_heartbeat
from mqtool.formats.codes import PullSysFlag, RequestCode, ResponseCode
from mqtool.formats.headers import CheckTransaction, EndTransaction, Pull, Send, build_header, parse_header
from mqtool.formats.remoting import ONEWAY, RemotingCommand, build_frame
from mqtool.formats.stored_message import parse_stored
from tests.campaigns.fuzz import memory_of
from tests.campaigns.kills import Served
from tests.campaigns.pauses import Pauses
from tests.wire_client import send_command

SETTINGS = {"mappedFileSizeCommitLog": str(1 << 26), "transactionTimeOut": "2000", "transactionCheckInterval": "2000"}
TOPICS = ("Plain", "Later", "Timed", "Orders")
QUEUES = 4
COMMIT, ROLLBACK = 8, 12
_SAMPLE_SECONDS = 10.0
_LAST_SECONDS = 60.0  # for what is under way to arrive
_ANSWER_MS = 60_000
_HELD_MS = 5000


class Soak:
    """Clients of one broker, and what they count."""

    def __init__(self, served: Served, process: int, seconds: float) -> None:
        self.served = served
        self.process = process
        self.end = time.monotonic() + seconds
        self.sent: Counter[str] = Counter()  # messages that are to be delivered, by topic
        self.received: Counter[str] = Counter()
        self.asked = 0
        self.checked = 0
        self.came_and_went = 0
        self.longest_wait = 0.0
        self.memory: list[int] = []
        self.pauses: Pauses | None = None
        self.idle_pauses: Pauses | None = None
        self.steady_pauses: Pauses | None = None
        self._numbers = itertools.count()
        self._seen: dict[str, set[bytes]] = {topic: set() for topic in TOPICS}

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.end

    async def ask(self, client: RemotingClient, command: RemotingCommand) -> RemotingCommand:
        """Ask, and take note of how long the answer took."""
        begun = time.monotonic()
        answer = await client.invoke(command, timeout_ms=_ANSWER_MS)
        self.longest_wait = max(self.longest_wait, time.monotonic() - begun)
        return answer

    async def send_on(self, topic: str, pause: float, properties: str = "", size: int = 100) -> None:
        """Send messages, a pause between two."""
        client = RemotingClient([self.served.broker])
        while not self.is_over:
            number = next(self._numbers)
            await self._send(client, topic, number, properties, size)
            self.sent[topic] += 1
            await asyncio.sleep(pause)
        await client.close()

    async def _send(
        self, client: RemotingClient, topic: str, number: int, properties: str, size: int
    ) -> RemotingCommand:
        texts = f"UNIQ_KEY\x01{number:032X}\x02KEYS\x01key{number % 1000}\x02{properties}"
        header = Send("soak", topic, "TBW102", QUEUES, number % QUEUES, 0, wall_clock(), 0, texts)
        command = send_command(header, b"%d " % number + bytes(size))
        answer = await self.ask(client, command)
        assert answer.code == 0, answer
        return answer

    async def transact(self, pause: float) -> None:
        """Begin transactions; of three one is committed, one rolled back, and one committed when it is asked for."""

        def asked(request: RemotingCommand) -> None:
            if request.code == RequestCode.CHECK_TRANSACTION_STATE:
                self.checked += 1
                header = parse_header(CheckTransaction, request.ext_fields)
                ending = self._ending(header.commit_log_offset, header.tran_state_table_offset, COMMIT)
                tasks.append(asyncio.create_task(client.send_oneway(ending)))

        tasks: list[asyncio.Task[None]] = []
        client = RemotingClient([self.served.broker], on_request=asked)
        beat = build_heartbeat(Heartbeat("transacts", ("soak",)))
        while not self.is_over:
            await client.invoke(RemotingCommand(RequestCode.HEART_BEAT, body=beat), timeout_ms=_ANSWER_MS)
            for kind in range(30):
                number = next(self._numbers)
                answer = await self._send(client, "Orders", number, "TRAN_MSG\x01true\x02PGROUP\x01soak\x02", 100)
                fields = answer.ext_fields
                half = int(fields["msgId"][-16:], 16), int(fields["queueOffset"])
                if kind % 3 != 1:
                    self.sent["Orders"] += 1
                if kind % 3 < 2:
                    await client.send_oneway(self._ending(*half, ROLLBACK if kind % 3 else COMMIT))
                await asyncio.sleep(pause)
        # Until all that is to come has come, it must be there for questions.
        while self.received["Orders"] < self.sent["Orders"] and time.monotonic() < self.end + _LAST_SECONDS:
            await client.invoke(RemotingCommand(RequestCode.HEART_BEAT, body=beat), timeout_ms=_ANSWER_MS)
            await asyncio.sleep(1)
        await client.close()

    def _ending(self, physical_offset: int, queue_offset: int, decision: int) -> RemotingCommand:
        header = EndTransaction("soak", queue_offset, physical_offset, decision, "")
        return RemotingCommand(RequestCode.END_TRANSACTION, ext_fields=build_header(header))

    async def pull_on(self, topic: str, queue_id: int) -> None:
        """Pull a queue, held by the broker while there is nothing, and commit how far that has come."""
        client, offset = RemotingClient([self.served.broker]), 0
        flags = int(PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND | PullSysFlag.COMMIT_OFFSET)
        seen = self._seen[topic]
        while True:
            header = Pull("G", topic, queue_id, offset, 32, flags, offset, _HELD_MS, 0, "*", "TAG")
            command = RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=build_header(header))
            answer = await client.invoke(command, timeout_ms=_ANSWER_MS)
            if answer.code == ResponseCode.SUCCESS:
                records, at = answer.body, 0
                while at < len(records):
                    size = int.from_bytes(records[at : at + 4])
                    stored = parse_stored(records[at : at + size])
                    name = stored.message.body.partition(b" ")[0]
                    assert stored.queue_offset == offset
                    assert name not in seen, f"{topic} {name!r} came twice"
                    seen.add(name)
                    offset += 1
                    at += size
                    self.received[topic] += 1
            elif answer.code not in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
                await asyncio.sleep(0.2)  # there is no such topic or group yet

    async def administrate(self) -> None:
        """Ask what administrators ask."""
        broker, name_server = RemotingClient([self.served.broker]), RemotingClient([self.served.name_server])
        while not self.is_over:
            for command in (
                calls.runtime_info().command,
                calls.topic_configs().command,
                calls.consumer_offsets().command,
            ):
                answer = await self.ask(broker, command)
                assert answer.code == 0, answer
            for command in (
                calls.topic_queues("TBW102").command,
                calls.members("G").command,
                calls.offset_at("Plain", 0, 0).command,
            ):
                await self.ask(broker, command)
            for command in (
                calls.clusters().command,
                calls.topic_names().command,
                calls.route("Plain").command,
            ):
                await self.ask(name_server, command)
            self.asked += 9
            await asyncio.sleep(0.5)
        await broker.close()
        await name_server.close()

    async def come_and_go(self) -> None:
        """Join a group and leave it again, with good-bye and without."""
        for number in itertools.count():
            if self.is_over:
                return
            client = RemotingClient([self.served.broker])
            consumer = ConsumerData(
                f"Churn{number % 5}",
                "CONSUME_PASSIVELY",
                "CLUSTERING",
                "CONSUME_FROM_FIRST_OFFSET",
                (Subscription("Plain", "*", version=number),),
            )
            body = build_heartbeat(Heartbeat(f"client-{number}", (), (consumer,)))
            await self.ask(client, RemotingCommand(RequestCode.HEART_BEAT, body=body))
            if number % 2:
                fields = {"clientID": f"client-{number}", "consumerGroup": consumer.group}
                await self.ask(client, RemotingCommand(RequestCode.UNREGISTER_CLIENT, ext_fields=fields))
            await client.close()
            self.came_and_went += 1
            await asyncio.sleep(0.1)

    async def never_read(self) -> None:
        """Ask for more and more, and read nothing, until the broker has enough of it; then again."""
        host, _, port = self.served.broker.rpartition(":")
        frames = build_frame(calls.topic_configs().command) * 200
        while not self.is_over:
            _, writer = await asyncio.open_connection(host, int(port), limit=1)
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(30):
                    while not self.is_over:
                        writer.write(frames)
                        await writer.drain()
            writer.transport.abort()

    async def say_nothing(self, count: int) -> None:
        """Hold connections on which nothing is sent but a heartbeat a minute."""
        host, _, port = self.served.broker.rpartition(":")
        writers = []
        for _ in range(count):
            reader, writer = await asyncio.open_connection(host, int(port))
            writers.append((reader, writer))
        beat = build_frame(RemotingCommand(RequestCode.HEART_BEAT, ONEWAY, body=build_heartbeat(Heartbeat("idle"))))
        while not self.is_over:
            for reader, writer in writers:
                assert not reader.at_eof(), "the broker has closed an idle connection"
                writer.write(beat)
            await asyncio.sleep(min(60.0, max(0.1, self.end - time.monotonic())))
        for _, writer in writers:
            writer.transport.abort()

    async def sample(self) -> None:
        """Note the memory of the process at intervals."""
        while not self.is_over:
            self.memory.append(memory_of(self.process))
            print(f"{len(self.memory) * _SAMPLE_SECONDS:,.0f} s: {self.memory[-1] / 2**20:.1f} MiB", flush=True)
            await asyncio.sleep(_SAMPLE_SECONDS)


async def run_soak(folder: Path, seconds: float, idle: int) -> Soak:
    """Let clients work so long, and see that all was delivered once.

    Raises:
        AssertionError: something was not, or the broker or its store is not as it should be.
    """
    seen, idle_seen, steady_seen = (folder / f"{name}-pauses" for name in ("own", "idle", "steady"))
    served = Served(folder, SETTINGS, ("tests.campaigns.pauses", str(seen)))
    async with (
        _other_loop("idle", idle_seen),
        _other_loop("steady", steady_seen),
        served.running() as process,
    ):
        await served.until_ready(process)
        process.send_signal(signal.SIGUSR1)
        soak = Soak(served, process.pid, seconds)
        work: list[Any] = [soak.send_on("Plain", 0.02, size=1024) for _ in range(4)]
        work += [
            soak.send_on("Later", 0.1, "DELAY\x011\x02"),
            soak.send_on("Timed", 0.1, "TIMER_DELAY_SEC\x013\x02"),
            soak.transact(0.1),
            soak.administrate(),
            soak.come_and_go(),
            soak.never_read(),
            soak.sample(),
            soak.say_nothing(idle),
        ]
        async with asyncio.TaskGroup() as group:
            pulls = [group.create_task(soak.pull_on(topic, number)) for topic in TOPICS for number in range(QUEUES)]
            for one in [group.create_task(one) for one in work]:
                await one
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_SECONDS):
                    while any(soak.received[topic] < soak.sent[topic] for topic in TOPICS):
                        await asyncio.sleep(0.2)
            for pull in pulls:
                pull.cancel()
        process.terminate()
        assert await process.wait() == 0
    soak.pauses, soak.idle_pauses, soak.steady_pauses = map(Pauses.read, (seen, idle_seen, steady_seen))
    assert soak.received == soak.sent, (soak.received, soak.sent)
    log = served.log.read_text()
    assert "Traceback" not in log, log
    findings = verify_store(StoreReader(served.store, StoreConfig(SETTINGS)))
    wrong = [one for one in findings if one.severity != Severity.NOTE]
    assert not wrong, wrong
    return soak


@contextlib.asynccontextmanager
async def _other_loop(kind: str, seen: Path) -> AsyncIterator[None]:
    """Have a loop in another process watched."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.campaigns.pauses", str(seen), kind, cwd=Path(__file__).parents[2]
    )
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--idle", type=int, default=5000, help="connections that say nothing")
    given = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory(prefix="mqtool-soak-") as name:
        soak = asyncio.run(run_soak(Path(name), given.minutes * 60, given.idle))
        third = len(soak.memory) // 3
        second, last = (statistics.median(soak.memory[start:][:third]) / 2**20 for start in (third, 2 * third))
        sent = ", ".join(f"{soak.sent[topic]:,} {topic}" for topic in TOPICS)
        print(
            f"sent and received once: {sent}; {soak.checked:,} transactions asked for, {soak.came_and_went:,} members "
            f"came and went, {soak.asked:,} questions, {given.idle:,} idle connections; longest wait for an answer "
            f"{soak.longest_wait:.2f} s; memory at most {max(soak.memory) / 2**20:.1f} MiB, median of the second third "
            f"{second:.1f} MiB, of the last {last:.1f} MiB: flat within {last - second:+.1f} MiB"
        )
        print(f"pauses of its loop: {soak.pauses}")
        print(f"of an idle loop beside it: {soak.idle_pauses}")
        print(f"of one that does the same half a millisecond of work: {soak.steady_pauses}")
        for pause, cause in soak.pauses.causes if soak.pauses else ():
            print(f"  {pause * 1000:.1f} ms: {cause}")


if __name__ == "__main__":
    main()
