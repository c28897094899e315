"""Frames that no honest client sends, for a ``mqtool serve`` in a process of its own, by the million.

Many clients at a time send what ``tests/bad_input.py`` makes, in pieces, to the broker and the name server, and read
the answers. Meanwhile an honest client asks both and must be answered each time. In the end the process stops as it
should, has said nothing of a fault, and its store is sound. The tests try this with less::

    python -m tests.campaigns.fuzz --frames 1000000 --minutes 60

It prints what was sent and answered, the longest that the honest client had to wait, and the memory of the process.
"""

# ruff: noqa: T201  its results go to standard output

import argparse
import asyncio
import contextlib
import dataclasses
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

from mqtool.engine.client import calls
from mqtool.engine.remoting.client import RemotingClient
from mqtool.engine.remoting.connection import Connection
from mqtool.engine.repair.findings import Severity
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import FormatError
from mqtool.formats.remoting import RemotingCommand, build_frame
from tests import bad_input
from tests.campaigns.kills import Served

CLIENTS = 8
_TO_NAME_SERVER = 2  # of the clients
_LONGEST_CONNECTION = 300  # frames
_BROKEN_KEPT = 0.1  # of the frames that end a connection, or hardly any would live
_MARK = 0x7FFF0000  # the opaque of the request that asks whether all before it were handled
_PATIENCE_SECONDS = 60.0


@dataclasses.dataclass
class FrameCount:
    """What was tried so far."""

    frames: int = 0
    connections: int = 0
    broken: int = 0  # frames after which a server must end the connection, and did
    asked: int = 0  # by the honest client
    longest_wait: float = 0.0  # of the honest client, seconds
    first_memory: int = 0  # of the process, bytes
    most_memory: int = 0
    answers: Counter[int] = dataclasses.field(default_factory=Counter)  # by code


async def run_fuzz(
    folder: Path, frames: int, seed: int, seconds: float = float("inf"), count: FrameCount | None = None
) -> FrameCount:
    """Send so many frames, or for so long.

    Raises:
        AssertionError: a server failed, or kept somebody waiting, or its store is not sound.
    """
    served, count = Served(folder, {}), count or FrameCount()
    async with served.running() as process:
        await served.until_ready(process)
        deadline = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            honest = group.create_task(_ask_on(served, process.pid, count))
            async with asyncio.TaskGroup() as senders:
                for number in range(CLIENTS):
                    address = served.name_server if number < _TO_NAME_SERVER else served.broker
                    chance = random.Random(seed * CLIENTS + number)
                    senders.create_task(_send_on(address, chance, count, frames, deadline))
            honest.cancel()
        process.terminate()
        assert await process.wait() == 0, served.log.read_text()
    log = served.log.read_text()
    assert "Traceback" not in log, log
    wrong = [one for one in verify_store(StoreReader(served.store)) if one.severity != Severity.NOTE]
    assert {one.code for one in wrong} <= bad_input.FINDINGS, wrong
    return count


async def _ask_on(served: Served, process: int, count: FrameCount) -> None:
    clients = [
        (RemotingClient([served.broker]), calls.topic_configs().command),
        (RemotingClient([served.name_server]), calls.clusters().command),
    ]
    count.first_memory = memory_of(process)
    while True:
        for client, command in clients:
            begun = time.monotonic()
            answer = await client.invoke(command, timeout_ms=int(_PATIENCE_SECONDS * 1000))
            assert answer.code == 0, answer
            count.longest_wait = max(count.longest_wait, time.monotonic() - begun)
            count.asked += 1
        count.most_memory = max(count.most_memory, memory_of(process))
        await asyncio.sleep(0.1)


async def _send_on(address: str, chance: random.Random, count: FrameCount, frames: int, deadline: float) -> None:
    host, _, port = address.rpartition(":")
    while count.frames < frames and time.monotonic() < deadline:
        reader, writer = await asyncio.open_connection(host, int(port))
        count.connections += 1
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await _use(reader, writer, chance, count)
        finally:
            writer.transport.abort()


async def _use(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, chance: random.Random, count: FrameCount
) -> None:
    """Send frames on one connection; it is asked after them whether they were handled, unless one had to end it."""
    is_broken = False
    data = bytearray()
    for _ in range(chance.randrange(1, _LONGEST_CONNECTION)):
        frame = bad_input.frame(chance)
        is_broken = not _is_whole(frame)
        if is_broken and chance.random() > _BROKEN_KEPT:
            is_broken = False
            continue
        count.frames += 1
        data += frame
        if is_broken:
            break
    ending = b"" if is_broken else bad_input.stream_end(chance) if chance.random() < 0.2 else b""
    if not is_broken:
        data += build_frame(RemotingCommand(calls.topic_configs().command.code, opaque=_MARK))
    sending = asyncio.create_task(_write(writer, bytes(data), ending, chance))
    frames = Connection()
    try:
        while piece := await reader.read(1 << 16):
            frames.receive(piece)
            for command in frames.commands():
                count.answers[command.code] += 1
                if command.opaque == _MARK and not is_broken:
                    return
    except ConnectionError:  # it is closed with some of what was sent unread
        assert is_broken
    finally:
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await sending
    assert is_broken, "the server has closed a connection on which every frame was one"
    count.broken += 1


async def _write(writer: asyncio.StreamWriter, data: bytes, ending: bytes, chance: random.Random) -> None:
    at = 0
    while at < len(data):
        size = chance.choice([1, 7, 100, 1 << 12, 1 << 16])
        writer.write(data[at : at + size])
        at += size
        await writer.drain()
    writer.write(ending)
    await writer.drain()


def _is_whole(frame: bytes) -> bool:
    connection = Connection()
    connection.receive(frame)
    try:
        return len([*connection.commands()]) == 1
    except FormatError:
        return False


def memory_of(process: int) -> int:
    """Return the bytes that a process and its children have in memory, but for those of files."""
    processes = [process, *map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())]
    lines = [line for one in processes for line in Path(f"/proc/{one}/status").read_text().splitlines()]
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=60.0, help="at most")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    begun, one = time.monotonic(), FrameCount()
    try:
        with tempfile.TemporaryDirectory(prefix="mqtool-fuzz-") as name:
            asyncio.run(run_fuzz(Path(name), given.frames, given.seed, given.minutes * 60, one))
    finally:
        print(
            f"{one.frames:,} frames on {one.connections:,} connections, {one.broken:,} of which a broken frame ended; "
            f"{one.answers.total():,} answers of {len(one.answers)} codes, {one.answers[0]:,} of them success; an "
            f"honest client asked {one.asked:,} times and waited {one.longest_wait:.2f} s at most; memory "
            f"{one.first_memory >> 20} MiB in the beginning, {one.most_memory >> 20} MiB at most; "
            f"{time.monotonic() - begun:,.0f} s"
        )


if __name__ == "__main__":
    main()
