"""Frames that no honest Pulsar client sends, for a ``mqtool serve`` in a process of its own, by the million.

Many connections at a time send what ``tests/pulsar_bad_input.py`` makes, in pieces, and read the answers, or do not.
Meanwhile the official Python client sends messages and consumes each of them. In the end the process stops as it
should, has said nothing of a fault, starts again, and its store is sound. The tests try less of it without sockets
(``tests/engine/pulsar/test_bad_input.py``)::

    python -m tests.campaigns.fuzz_pulsar --frames 1000000 --minutes 60

It prints what was sent and answered, the longest that the official client had to wait, and the memory of the process.
"""

# ruff: noqa: T201  its results go to standard output

import argparse
import asyncio
import contextlib
import dataclasses
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pulsar

from mqtool.engine.pulsar.frames import PulsarFrameDecoder
from mqtool.engine.repair.findings import Severity
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.reader import StoreReader
from tests import pulsar_bad_input
from tests.campaigns.fuzz import memory_of

CLIENTS = 8
_LONGEST_CONNECTION = 300  # frames
_LONGEST_FRAME = 1 << 23
_WAIT_MS = 60_000
_DEAF = 0.1  # of the connections, which do not read
_DEAF_SECONDS = 5.0
_READY = re.compile(r".*pulsar ([\d.]+):(\d+).*\n")
_ROOT = Path(__file__).parents[2]


@dataclasses.dataclass
class PulsarFuzz:
    """What was tried so far."""

    frames: int = 0
    connections: int = 0
    ended: int = 0  # connections that the broker has closed
    messages: int = 0  # of the official client
    longest_wait: float = 0.0  # of the official client for a message that it has sent, seconds
    first_memory: int = 0  # of the process, bytes
    most_memory: int = 0
    answers: Counter[str] = dataclasses.field(default_factory=Counter)  # by command


def run_fuzz(folder: Path, frames: int, seed: int, seconds: float, outcome: PulsarFuzz) -> None:
    """Send so many frames, or for so long.

    Raises:
        AssertionError: the broker failed, or kept somebody waiting, or its store is not sound.
    """
    with _served(folder) as (process, host, port):
        asyncio.run(_fuzz(process.pid, host, port, frames, seed, seconds, outcome))
        process.terminate()
        assert process.wait() == 0
    with _served(folder) as (process, _, _):  # with what was made of all that
        process.terminate()
        assert process.wait() == 0
    log = (folder / "log").read_text()
    assert "Traceback" not in log, log[-5000:]
    findings = verify_store(StoreReader(folder / "store"))
    assert [finding.code for finding in findings if finding.severity != Severity.NOTE] == []


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[tuple["subprocess.Popen[str]", str, int]]:
    words = [sys.executable, "-m", "mqtool", "serve", "--namesrv-port", "0", "--port", "0", "--pulsar-port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    with (
        (folder / "log").open("a") as log,
        subprocess.Popen(
            [*words, "-s", str(folder / "store")],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        ) as process,
    ):
        try:
            assert process.stdout
            ready = _READY.fullmatch(process.stdout.readline())
            assert ready
            yield process, ready[1], int(ready[2])
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


async def _fuzz(
    process: int, host: str, port: int, frames: int, seed: int, seconds: float, outcome: PulsarFuzz
) -> None:
    outcome.first_memory = memory_of(process)
    deadline = time.monotonic() + seconds
    is_over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(_use_honestly(f"pulsar://{host}:{port}", process, outcome, is_over))
        async with asyncio.TaskGroup() as senders:
            for number in range(CLIENTS):
                chance = random.Random(seed * CLIENTS + number)
                senders.create_task(_send_on(host, port, chance, outcome, frames, deadline))
        is_over.set()


async def _use_honestly(url: str, process: int, outcome: PulsarFuzz, is_over: asyncio.Event) -> None:
    """Send one message after the other and consume each, by the official client."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer("honest")
    consumer = client.subscribe("honest", "s", pulsar.ConsumerType.Shared)

    def exchange(body: bytes) -> bytes:
        producer.send(body)
        message = consumer.receive(_WAIT_MS)
        consumer.acknowledge(message)
        return bytes(message.data())

    while not is_over.is_set():
        begun = time.monotonic()
        body = b"%d" % outcome.messages
        assert await asyncio.to_thread(exchange, body) == body
        outcome.longest_wait = max(outcome.longest_wait, time.monotonic() - begun)
        outcome.messages += 1
        outcome.most_memory = max(outcome.most_memory, memory_of(process))
        await asyncio.sleep(0.05)
    await asyncio.to_thread(client.close)


async def _send_on(
    host: str, port: int, chance: random.Random, outcome: PulsarFuzz, frames: int, deadline: float
) -> None:
    while outcome.frames < frames and time.monotonic() < deadline:
        reader, writer = await asyncio.open_connection(host, port)
        outcome.connections += 1
        reading = asyncio.create_task(_read(reader, outcome, is_deaf=chance.random() < _DEAF))
        is_ended = False
        try:
            await _write(writer, chance, outcome, reading)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(reading), 0.05)
        except ConnectionError:
            is_ended = True
        finally:
            outcome.ended += is_ended or reading.done()
            reading.cancel()
            writer.transport.abort()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await reading


async def _write(
    writer: asyncio.StreamWriter, chance: random.Random, outcome: PulsarFuzz, reading: "asyncio.Task[None]"
) -> None:
    data = bytearray(pulsar_bad_input.opening(chance))
    for _ in range(chance.randrange(1, _LONGEST_CONNECTION)):
        data += pulsar_bad_input.frame(chance)
        outcome.frames += 1
        if len(data) < 10_000 and chance.random() < 0.7:
            continue
        while data and not reading.done():
            size = chance.choice([1, 100, 1 << 16])
            writer.write(bytes(data[:size]))
            del data[:size]
            async with asyncio.timeout(_DEAF_SECONDS):
                await writer.drain()
        if reading.done():  # the broker has ended the connection
            return
        await asyncio.sleep(0)


async def _read(reader: asyncio.StreamReader, outcome: PulsarFuzz, *, is_deaf: bool) -> None:
    if is_deaf:
        await asyncio.sleep(_DEAF_SECONDS)
    frames = PulsarFrameDecoder(_LONGEST_FRAME)
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(1 << 16):
            frames.receive(piece)
            for said in frames.commands():
                outcome.answers[said.name] += 1


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=60.0, help="at most")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    begun, outcome = time.monotonic(), PulsarFuzz()
    try:
        with tempfile.TemporaryDirectory(prefix="mqtool-fuzz-") as name:
            run_fuzz(Path(name), options.frames, options.seed, options.minutes * 60, outcome)
    finally:
        answers = outcome.answers
        print(
            f"{outcome.frames:,} frames on {outcome.connections:,} connections, {outcome.ended:,} of which the broker "
            f"ended; {answers.total():,} answers of {len(answers)} kinds, {answers['message']:,} of them messages; the "
            f"official client sent and consumed {outcome.messages:,} messages and waited {outcome.longest_wait:.2f} s "
            f"at most; memory {outcome.first_memory >> 20} MiB in the beginning, {outcome.most_memory >> 20} MiB at "
            f"most; {time.monotonic() - begun:,.0f} s"
        )


if __name__ == "__main__":
    main()
