"""The stream server with a protocol that is not remoting: lines of text, each answered by itself in capitals.

What it owes to any protocol: whole commands in their order, whatever pieces they come in; bounds; TLS. All of it with
remoting commands: tests/engine/remoting.
"""

import asyncio
import contextlib
import select
import ssl
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable
from pathlib import Path

import pytest

from mqtool.engine.streams.server import Limits, StreamServer
from mqtool.engine.streams.tls import TlsSettings
from mqtool.errors import FormatError
from mqtool.formats.peer import Buffer, Peer
from tests.engine.remoting.test_server import on_a_loop
from tests.engine.remoting.test_tls import settings, with_certificate

MOST = 1000


class Lines:
    """Cuts a stream into lines."""

    def __init__(self) -> None:
        self.pending = bytearray()

    @property
    def pending_size(self) -> int:
        return len(self.pending)

    def receive(self, data: bytes) -> None:
        self.pending += data

    def commands(self) -> Generator[bytes, None, None]:
        while (end := self.pending.find(b"\n")) >= 0:
            line = bytes(self.pending[:end])
            del self.pending[: end + 1]
            yield line
        if len(self.pending) > MOST:
            raise FormatError("a line without end", offset=0)


class LineRules:
    """Remembers who comes and goes; a line that begins with ``later`` is answered by the next tick."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.later: list[tuple[Peer, str]] = []
        self.somebody_gone = asyncio.Event()

    def closed(self, peer: Peer, now: int) -> Iterable[tuple[Peer, str]]:  # noqa: ARG002
        self.somebody_gone.set()
        return [(other, f"{peer.host} is gone") for other in self.peers if other is not peer]

    def tick(self, now: int) -> Iterable[tuple[Peer, str]]:  # noqa: ARG002
        later, self.later = self.later, []
        return later

    def next_tick(self, now: int) -> int | None:
        return now if self.later else None


class LineServer(StreamServer[bytes, str]):
    """Serves lines."""

    rules: LineRules

    def new_frames(self) -> Lines:
        return Lines()

    def dispatch(self, commands: deque[bytes], peer: Peer, now: int) -> None:  # noqa: ARG002
        command = commands.popleft()
        if peer not in self.rules.peers:
            self.rules.peers.append(peer)
        answer = command.decode().upper()
        if command.startswith(b"later"):
            self.rules.later.append((peer, answer))
        else:
            self.send([(peer, answer)])

    def encode(self, command: str) -> list[Buffer]:
        return [command.encode(), b"\n"]


@contextlib.asynccontextmanager
async def served(limits: Limits | None = None, tls: TlsSettings | None = None) -> AsyncIterator[tuple[LineRules, int]]:
    rules = LineRules()
    server = LineServer(rules, tls, limits, clock=lambda: 0)
    port = await server.listen("127.0.0.1", 0)
    try:
        yield rules, port
    finally:
        await server.stop()


@pytest.mark.parametrize("piece", [1, 7, 1000])
@on_a_loop
async def test_lines_are_answered_in_their_order_whatever_pieces_they_come_in(piece: int) -> None:
    sent = [f"line {number}" for number in range(40)]
    text = "".join(f"{line}\n" for line in sent).encode()
    async with served() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for at in range(0, len(text), piece):
            writer.write(text[at : at + piece])
            await writer.drain()
        for line in sent:
            assert await reader.readline() == f"{line.upper()}\n".encode()
        writer.close()


@on_a_loop
async def test_what_comes_later_and_the_end_of_others_reach_whom_they_concern() -> None:
    async with served() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        _, other = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"later one\nnow\n")
        assert [await reader.readline(), await reader.readline()] == [b"NOW\n", b"LATER ONE\n"]
        other.write(b"hello\n")
        other.close()
        assert await reader.readline() == b"127.0.0.1 is gone\n"
        writer.close()


@on_a_loop
async def test_a_stream_that_is_none_is_closed_behind_the_answers_to_what_came_before() -> None:
    async with served() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"first\n" + bytes(MOST + 1))
        assert await reader.read() == b"FIRST\n"
        writer.close()


@on_a_loop
async def test_a_connection_that_is_idle_is_closed() -> None:
    async with served(Limits(idle_seconds=0.2)) as (rules, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        await rules.somebody_gone.wait()
        writer.close()


@on_a_loop
async def test_lines_travel_by_tls_where_it_is_on(tmp_path: Path) -> None:
    folder = with_certificate(tmp_path)
    async with served(tls=TlsSettings.of(settings(folder, mode="enforcing"))) as (_, port):
        ours = ssl.create_default_context(cafile=str(folder / "cert.pem"))
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=ours)
        writer.write(b"secret\n")
        assert await reader.readline() == b"SECRET\n"
        plain, in_plain = await asyncio.open_connection("127.0.0.1", port)
        in_plain.write(b"secret\n")
        with contextlib.suppress(ConnectionError):
            assert await plain.read() == b""
        writer.close()
        in_plain.close()


@on_a_loop
async def test_whether_a_command_came_alone_is_known_while_it_is_handled() -> None:
    class Noting(LineServer):
        def dispatch(self, commands: deque[bytes], peer: Peer, now: int) -> None:
            noted.append((commands[0], self.handles_one))
            super().dispatch(commands, peer, now)

    noted: list[tuple[bytes, bool]] = []
    server = Noting(LineRules(), clock=lambda: 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", await server.listen("127.0.0.1", 0))
    for lines in (b"one\n", b"two\nthree\n", b"four\n"):
        writer.write(lines)
        for _ in range(lines.count(b"\n")):
            await reader.readline()
    writer.close()
    await server.stop()

    assert noted == [(b"one", True), (b"two", False), (b"three", False), (b"four", True)]
    assert not server.handles_one


@pytest.mark.parametrize("how", ["turn", "write"])
@on_a_loop
async def test_what_is_sent_now_has_been_sent_when_the_call_returns(how: str) -> None:
    rules = LineRules()
    server = LineServer(rules, clock=lambda: 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", await server.listen("127.0.0.1", 0))
    writer.write(b"hello\n")
    await reader.readline()

    rules.later = [(rules.peers[0], "more")]
    if how == "turn":
        server.turn_now()
    else:
        server.write_now(rules.tick)
    ready, _, _ = select.select([writer.get_extra_info("socket")], [], [], 0)

    assert ready
    assert await reader.readline() == b"more\n"
    writer.close()
    await server.stop()
