"""A server and a client on real sockets of this machine: answers, order, bounds, ends.

Each test waits for what it expects by reading; the time-outs are there for a server that is wrong.
"""

import asyncio
import collections
import contextlib
import functools
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any

import pytest

from mqtool.engine.remoting.client import SILENT_MS, RemotingClient, split_addresses
from mqtool.engine.remoting.connection import Connection
from mqtool.engine.remoting.server import RemotingServer
from mqtool.engine.streams.server import Limits
from mqtool.errors import HeaderError, UnavailableError
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.peer import Peer
from mqtool.formats.remoting import ONEWAY, RESPONSE, Outgoing, RemotingCommand, SerializeType, build_frame

ECHO, LATER, WAKE, FAIL, REFUSE, ASK_BACK, NOTIFY, LARGE = range(1, 9)
PATIENCE = 120.0


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on an event loop, and end it when it takes too long."""

    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(PATIENCE):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return run


class Rules:
    """A handler whose requests each do one of the things that a broker may do."""

    def __init__(self) -> None:
        self.seen: list[RemotingCommand] = []
        self.peers: list[Peer] = []
        self.gone: list[Peer] = []
        self.handled: collections.Counter[Peer] = collections.Counter()
        self.handled_until_gone: list[int] = []
        self.somebody_gone = asyncio.Event()
        self.later: list[Outgoing] = []
        self.due: int | None = None
        self.ticks = 0
        self.on_command: Callable[[RemotingCommand], object] = lambda _: None
        self._asked: dict[tuple[Peer, int], tuple[Peer, RemotingCommand]] = {}

    def handle(self, command: RemotingCommand, peer: Peer, now: int) -> Iterable[Outgoing]:  # noqa: ARG002
        self.seen.append(command)
        self.handled[peer] += 1
        self.on_command(command)
        if peer not in self.peers:
            self.peers.append(peer)
        if command.is_response:
            asker, request = self._asked.pop((peer, command.opaque))
            return [(asker, request.answer(0, {"told": command.ext_fields["state"]}))]
        match command.code:
            case c if c == ECHO:
                return [(peer, command.answer(0, command.ext_fields, command.body))]
            case c if c == LATER:
                self.later.append((peer, command.answer(0, {"when": "later"})))
                return []
            case c if c == WAKE:
                later, self.later = self.later, []
                return [*later, (peer, command.answer())]
            case c if c == REFUSE:
                raise HeaderError("queueId", "is missing")
            case c if c == ASK_BACK:
                asked = self.peers[0]
                self._asked[asked, 900] = peer, command
                return [(asked, RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, 0, 900))]
            case c if c == NOTIFY:
                return [
                    (other, RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ONEWAY)) for other in self.peers
                ]
            case c if c == LARGE:
                piece = memoryview(bytes(1 << 16))
                return [(peer, RemotingCommand(0, RESPONSE, command.opaque, parts=[piece] * 64))]
        raise ZeroDivisionError("of all things")

    def closed(self, peer: Peer, now: int) -> Iterable[Outgoing]:  # noqa: ARG002
        self.gone.append(peer)
        self.handled_until_gone.append(self.handled[peer])
        self.somebody_gone.set()
        return ()

    def tick(self, now: int) -> Iterable[Outgoing]:  # noqa: ARG002
        self.ticks += 1
        self.due = None
        later, self.later = self.later, []
        return later

    def next_tick(self, now: int) -> int | None:  # noqa: ARG002
        return self.due


@contextlib.asynccontextmanager
async def served(limits: Limits | None = None) -> AsyncIterator[tuple[Rules, RemotingServer, str]]:
    """Serve ``Rules`` on a free port."""
    rules = Rules()
    server = RemotingServer(rules, limits=limits)
    port = await server.listen("127.0.0.1", 0)
    try:
        yield rules, server, f"127.0.0.1:{port}"
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def client_of(address: str, **more: Any) -> AsyncIterator[RemotingClient]:
    client = RemotingClient([address], **more)
    try:
        yield client
    finally:
        await client.close()


class Raw:
    """A socket that a test writes bytes to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._frames = Connection()

    async def answer(self) -> RemotingCommand:
        """Read one command."""
        while True:
            for command in self._frames.commands():
                return command
            piece = await self.reader.read(1 << 16)
            assert piece, "the server closed the connection"
            self._frames.receive(piece)


@contextlib.asynccontextmanager
async def raw(address: str) -> AsyncIterator[Raw]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def silent_server() -> tuple[asyncio.Server, asyncio.Event]:
    """Start a server on a free port that never answers, and ends its connections once the event is set."""
    gone = asyncio.Event()

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gone.wait()
        writer.close()

    return await asyncio.start_server(silent, "127.0.0.1", 0), gone


@on_a_loop
async def test_many_requests_at_a_time_each_get_their_own_answer() -> None:
    async with served() as (_, _, address), client_of(address) as client:
        answers = await asyncio.gather(
            *(client.invoke(RemotingCommand(ECHO, ext_fields={"n": str(n)}, body=b"x" * n)) for n in range(200))
        )

        assert [(answer.ext_fields["n"], len(answer.body)) for answer in answers] == [(str(n), n) for n in range(200)]


@on_a_loop
async def test_one_byte_at_a_time_is_answered_the_same() -> None:
    frame = build_frame(RemotingCommand(ECHO, 0, 5, {"a": "b"}, b"body"))
    async with served() as (_, _, address), raw(address) as whole, raw(address) as pieces:
        pieces.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        whole.writer.write(frame)
        for byte in frame:
            pieces.writer.write(bytes([byte]))
            await pieces.writer.drain()
            await asyncio.sleep(0)

        assert await pieces.answer() == await whole.answer()


@on_a_loop
async def test_a_binary_request_gets_an_answer_in_json() -> None:
    async with served() as (_, _, address), raw(address) as client:
        client.writer.write(build_frame(RemotingCommand(ECHO, 0, 5, {"a": "b"}), SerializeType.BINARY))

        head = await client.reader.readexactly(8)
        assert head[4] == SerializeType.JSON
        header = await client.reader.readexactly(int.from_bytes(head[5:]))
        assert header.startswith(b'{"code":0,')


@on_a_loop
async def test_oneway_is_never_answered_not_even_when_it_fails() -> None:
    async with served() as (rules, _, address), raw(address) as client:
        for code in (ECHO, REFUSE, FAIL):
            client.writer.write(build_frame(RemotingCommand(code, ONEWAY, code)))
        client.writer.write(build_frame(RemotingCommand(ECHO, 0, 99)))

        assert (await client.answer()).opaque == 99
        assert len(rules.seen) == 4


@on_a_loop
async def test_what_a_handler_raises_becomes_code_1_and_the_server_lives_on() -> None:
    async with served() as (_, _, address), client_of(address) as client:
        refused = await client.invoke(RemotingCommand(REFUSE))
        failed = await client.invoke(RemotingCommand(FAIL))

        assert (refused.code, refused.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "header field queueId is missing",
        )
        assert (failed.code, failed.remark) == (ResponseCode.SYSTEM_ERROR, "ZeroDivisionError: of all things")
        assert (await client.invoke(RemotingCommand(ECHO))).code == 0


@on_a_loop
async def test_an_answer_may_come_with_the_request_of_somebody_else() -> None:
    async with served() as (_, _, address), client_of(address) as waiting, client_of(address) as other:
        held = asyncio.create_task(waiting.invoke(RemotingCommand(LATER)))
        assert (await waiting.invoke(RemotingCommand(ECHO))).code == 0  # so that the first one is there

        await other.invoke(RemotingCommand(WAKE))

        assert (await held).ext_fields == {"when": "later"}


@on_a_loop
async def test_an_answer_may_come_with_a_tick() -> None:
    async with served() as (rules, server, address), client_of(address) as client:
        rules.due = server.clock() + 50

        assert (await client.invoke(RemotingCommand(LATER))).ext_fields == {"when": "later"}
        assert rules.ticks == 1


@on_a_loop
async def test_a_tick_may_be_wanted_at_once() -> None:
    async with served() as (_, server, address), client_of(address) as client:
        held = asyncio.create_task(client.invoke(RemotingCommand(LATER)))
        assert (await client.invoke(RemotingCommand(ECHO))).code == 0

        server.turn_soon()

        assert (await held).ext_fields == {"when": "later"}


@pytest.mark.parametrize("flag", [RESPONSE, RESPONSE | ONEWAY])
@on_a_loop
async def test_a_client_is_asked_and_its_answer_finds_the_handler(flag: int) -> None:
    def tell(request: RemotingCommand) -> RemotingCommand:
        answer = request.answer(0, {"state": "well"})
        answer.flag = flag  # C++ clients set both bits
        return answer

    async with served() as (_, _, address), client_of(address, on_request=tell) as asked, client_of(address) as asker:
        await asked.invoke(RemotingCommand(ECHO))

        assert (await asker.invoke(RemotingCommand(ASK_BACK))).ext_fields == {"told": "well"}


@on_a_loop
async def test_a_handler_is_told_when_a_connection_ends_and_nothing_is_sent_there() -> None:
    async with served() as (rules, _, address), client_of(address) as client:
        async with raw(address) as other:
            other.writer.write(build_frame(RemotingCommand(ECHO)))
            await other.answer()
        await rules.somebody_gone.wait()

        await client.send_oneway(RemotingCommand(NOTIFY))

        assert (await client.invoke(RemotingCommand(ECHO))).code == 0
        assert rules.gone == rules.peers[:1]


@on_a_loop
async def test_a_broken_frame_ends_the_connection_after_the_answers_before_it() -> None:
    async with served() as (rules, _, address), raw(address) as client, client_of(address) as other:
        client.writer.write(build_frame(RemotingCommand(ECHO, 0, 3)) + b"GET / HTTP/1.1\r\n\r\n")

        assert (await client.answer()).opaque == 3
        assert await client.reader.read() == b""
        await rules.somebody_gone.wait()
        assert (await other.invoke(RemotingCommand(ECHO))).code == 0


@on_a_loop
async def test_a_body_in_parts_arrives_whole() -> None:
    async with served() as (_, _, address), client_of(address) as client:
        assert (await client.invoke(RemotingCommand(LARGE))).body == bytes(64 << 16)


@on_a_loop
async def test_who_never_reads_is_cut_off_and_others_do_not_notice() -> None:
    limits = Limits(high_water=1 << 16, unsent=1 << 23, unsent_in_all=1 << 24)
    async with served(limits) as (rules, _, address), raw(address) as deaf, client_of(address) as other:
        request = build_frame(RemotingCommand(LARGE))
        deaf.writer.write(request * 20)

        await rules.somebody_gone.wait()

        # It was stopped when a few answers of 4 MiB waited, not after twenty.
        assert (await other.invoke(RemotingCommand(ECHO))).code == 0


@on_a_loop
async def test_who_does_not_read_is_not_read_from() -> None:
    async with (
        served(Limits(high_water=1 << 16)) as (rules, _, address),
        raw(address) as slow,
        client_of(address) as other,
    ):
        # So many answers that the buffers of both sockets cannot take them.
        for opaque in range(10):
            slow.writer.write(build_frame(RemotingCommand(LARGE, 0, opaque)))
        while not rules.seen:
            await asyncio.sleep(0)
        slow.writer.write(build_frame(RemotingCommand(ECHO, 0, 7, body=b"slow")))
        for _ in range(50):
            await other.invoke(RemotingCommand(ECHO))
        assert all(command.body != b"slow" for command in rules.seen)

        for opaque in range(10):
            assert (await slow.answer()).opaque == opaque
        assert (await slow.answer()).body == b"slow"


@on_a_loop
async def test_who_sends_thousands_of_requests_at_once_does_not_keep_others_waiting() -> None:
    async with served() as (rules, _, address), raw(address) as busy, raw(address) as other:
        other.writer.write(build_frame(RemotingCommand(ECHO, 0, 1)))
        await other.answer()
        socket_of_other = other.writer.get_extra_info("socket")
        many = build_frame(RemotingCommand(ECHO, 0, 2)) * 2000

        def ask_meanwhile(command: RemotingCommand) -> None:
            if command.opaque == 2 and sum(one.opaque == 2 for one in rules.seen) == 1:
                socket.socket.send(socket_of_other._sock, build_frame(RemotingCommand(ECHO, 0, 3)))
            sum(range(3000))  # it takes as long as a request of a broker

        rules.on_command = ask_meanwhile
        busy.writer.write(many)
        while sum(one.opaque == 2 for one in rules.seen) < 2000:
            await asyncio.sleep(0)

        assert [one.opaque for one in rules.seen].index(3) < 1000
        for _ in range(2000):
            assert (await busy.answer()).opaque == 2  # none is lost, all in order


class CommandClock:
    """The event loop of a server, with a clock by which each command takes a millisecond."""

    def __init__(self, server: RemotingServer, rules: Rules) -> None:
        self._loop, self._rules = server.loop, rules
        self._begun = server.loop.time() - len(rules.seen) / 1000
        server.loop = self  # type: ignore[assignment]

    def time(self) -> float:
        return self._begun + len(self._rules.seen) / 1000

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


@contextlib.asynccontextmanager
async def with_command_clock(count: int) -> AsyncIterator[tuple[Rules, list[Raw]]]:
    """Give the rules of a server with that clock, and clients that it knows."""
    async with contextlib.AsyncExitStack() as stack:
        rules, server, address = await stack.enter_async_context(served())
        clients = [await stack.enter_async_context(raw(address)) for _ in range(count)]
        for client in clients:
            client.writer.write(build_frame(RemotingCommand(ECHO, 0, 1)))
            await client.answer()
        rules.seen.clear()
        CommandClock(server, rules)
        yield rules, clients


class SetClock:
    """The event loop of a server, with a clock that a test sets."""

    def __init__(self, server: RemotingServer) -> None:
        self._loop = server.loop
        self.now = server.loop.time()
        server.loop = self  # type: ignore[assignment]

    def time(self) -> float:
        return self.now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


@on_a_loop
async def test_what_many_connections_send_at_once_is_handled_in_several_turns_of_the_loop() -> None:
    async with with_command_clock(60) as (rules, clients):
        for client in clients:
            client.writer.write(b"".join(build_frame(RemotingCommand(ECHO, 0, opaque)) for opaque in range(3)))

        of_turns = []
        while len(rules.seen) < 180:
            before = len(rules.seen)
            await asyncio.sleep(0)
            of_turns.append(len(rules.seen) - before)

        assert max(of_turns) <= 3  # two milliseconds, and what has begun
        for client in clients:
            assert [(await client.answer()).opaque for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("is_reset", [False, True])
@on_a_loop
async def test_what_waits_for_a_later_turn_is_handled_although_its_client_has_gone(is_reset: bool) -> None:
    async with with_command_clock(60) as (rules, clients):
        for client in clients:
            client.writer.write(build_frame(RemotingCommand(ECHO, 0, 1)) * 3)
        while not rules.seen:  # all are read in the turn that handles the first
            await asyncio.sleep(0)
        for client in clients:
            if is_reset:
                linger = struct.pack("ii", 1, 0)
                client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            client.writer.transport.abort()
        while len(rules.gone) < 60:
            await asyncio.sleep(0)

        assert rules.handled_until_gone == [1 + 3] * 60  # the first one before the clock was set
        assert len(rules.seen) == 180


@on_a_loop
async def test_who_sends_no_more_gets_the_answers_that_wait_for_a_later_turn() -> None:
    async with with_command_clock(60) as (_, clients):
        for client in clients:
            client.writer.write(b"".join(build_frame(RemotingCommand(ECHO, 0, opaque)) for opaque in range(3)))
            client.writer.write_eof()
        for client in clients:
            assert [(await client.answer()).opaque for _ in range(3)] == [0, 1, 2]
            assert await client.reader.read() == b""


@on_a_loop
async def test_what_waits_for_a_later_turn_is_handled_before_more_of_a_busy_connection() -> None:
    async with with_command_clock(11) as (rules, [busy, *others]):
        busy.writer.write(build_frame(RemotingCommand(ECHO, 0, 7)) * 500)
        for client in others:
            client.writer.write(build_frame(RemotingCommand(ECHO, 0, 8)))
        for client in others:
            assert (await client.answer()).opaque == 8

        assert sum(command.opaque == 7 for command in rules.seen) < 50
        assert [(await busy.answer()).opaque for _ in range(500)] == [7] * 500


@on_a_loop
async def test_answers_that_nobody_reads_are_not_even_made() -> None:
    async with served(Limits(high_water=1 << 16)) as (rules, _, address), raw(address) as deaf:
        deaf.writer.write(build_frame(RemotingCommand(LARGE)) * 1000)  # 4 GB of answers for one read
        async with client_of(address) as other:
            for _ in range(50):
                assert (await other.invoke(RemotingCommand(ECHO))).code == 0

        assert sum(one.code == LARGE for one in rules.seen) <= 16


@on_a_loop
async def test_unfinished_frames_are_bounded_in_all_and_the_largest_goes_first() -> None:
    begun = (1 << 23).to_bytes(4, "big") + bytes(4)
    limits = Limits(unfinished_in_all=1 << 20)
    async with served(limits) as (rules, _, address), raw(address) as small, raw(address) as large:
        small.writer.write(build_frame(RemotingCommand(ECHO, 0, 1)) + begun + bytes(1000))
        await small.answer()
        large.writer.write(build_frame(RemotingCommand(ECHO, 0, 2)) + begun)
        await large.answer()
        with contextlib.suppress(OSError):
            large.writer.write(bytes(3 << 20))
            await large.reader.read()
        await rules.somebody_gone.wait()

        assert rules.gone == rules.peers[1:]


@on_a_loop
async def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    async with (
        served(Limits(idle_seconds=0.3)) as (rules, server, address),
        raw(address) as idle,
        client_of(address) as busy,
    ):
        clock = SetClock(server)
        ended = asyncio.create_task(idle.reader.read())
        while not ended.done():
            await busy.invoke(RemotingCommand(ECHO))
            clock.now += 0.1
            await asyncio.wait([ended], timeout=0.05)

        assert await ended == b""
        assert len(rules.peers) == 1
        assert (await busy.invoke(RemotingCommand(ECHO))).code == 0


@on_a_loop
async def test_all_of_many_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqtool.engine.streams.server._SWEPT_AT_ONCE", 3)
    async with contextlib.AsyncExitStack() as stack:
        _, _, address = await stack.enter_async_context(served(Limits(idle_seconds=0.3)))
        idle = [await stack.enter_async_context(raw(address)) for _ in range(10)]
        for one in idle:
            assert await one.reader.read() == b""


@on_a_loop
async def test_hundreds_of_idle_connections_do_not_keep_others_waiting() -> None:
    async with served() as (_, _, address), contextlib.AsyncExitStack() as stack:
        for _ in range(300):
            await stack.enter_async_context(raw(address))

        async with client_of(address) as client:
            assert (await client.invoke(RemotingCommand(ECHO))).code == 0


@on_a_loop
async def test_stop_sends_what_is_there_and_ends_all_connections() -> None:
    rules = Rules()
    server = RemotingServer(rules)
    port = await server.listen("127.0.0.1", 0)
    async with raw(f"127.0.0.1:{port}") as client:
        client.writer.write(build_frame(RemotingCommand(LARGE, 0, 4)))
        while not rules.seen:
            await asyncio.sleep(0)
        stopping = asyncio.create_task(server.stop())

        assert len((await client.answer()).body) == 64 << 16
        assert await client.reader.read() == b""
        await stopping
    with pytest.raises(UnavailableError, match="cannot connect"):
        await RemotingClient([f"127.0.0.1:{port}"]).invoke(RemotingCommand(ECHO))


@on_a_loop
async def test_a_port_that_is_taken_is_an_error_with_its_number() -> None:
    async with served() as (_, _, address):
        port = int(address.rpartition(":")[2])
        with pytest.raises(UnavailableError, match=f"cannot listen on 127.0.0.1:{port}"):
            await RemotingServer(Rules()).listen("127.0.0.1", port)


@on_a_loop
async def test_a_client_connects_again_after_a_loss() -> None:
    async with served() as (rules, server, address), client_of(address) as client:
        await client.invoke(RemotingCommand(ECHO))
        held = asyncio.create_task(client.invoke(RemotingCommand(LATER)))
        while len(rules.seen) < 2:
            await asyncio.sleep(0)
        await server.stop()
        with pytest.raises(UnavailableError, match="closed the connection"):
            await held

        again = RemotingServer(Rules())
        await again.listen("127.0.0.1", int(address.rpartition(":")[2]))
        assert (await client.invoke(RemotingCommand(ECHO))).code == 0
        await again.stop()


@on_a_loop
async def test_a_client_gives_up_after_its_time_and_a_late_answer_disturbs_nobody() -> None:
    async with served() as (_, _, address), client_of(address) as client:
        with pytest.raises(UnavailableError, match="did not answer within 30 ms"):
            await client.invoke(RemotingCommand(LATER), timeout_ms=30)

        await client.invoke(RemotingCommand(WAKE))  # brings the late answer too

        assert (await client.invoke(RemotingCommand(ECHO, body=b"x"))).body == b"x"


@on_a_loop
async def test_a_client_goes_on_to_a_server_that_can_be_reached() -> None:
    async with served() as (_, _, address):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            dead = f"127.0.0.1:{unused.getsockname()[1]}"
            client = RemotingClient(split_addresses(f"{dead}; {address}"))

            assert (await client.invoke(RemotingCommand(ECHO))).code == 0
            assert client.addresses[0] == address  # and stays with it
            await client.close()


@on_a_loop
async def test_a_server_that_talks_nonsense_is_left() -> None:
    async def nonsense(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(struct.pack(">I", 1 << 31) + bytes(8))
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(nonsense, "127.0.0.1", 0)
    client = RemotingClient([f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"])

    with pytest.raises(UnavailableError, match="sent something that is not a frame"):
        await client.invoke(RemotingCommand(ECHO))
    listener.close()


@on_a_loop
async def test_a_connection_over_which_nothing_comes_any_more_is_given_up() -> None:
    """Its server is gone without a word: no packet says so."""
    listener, gone = await silent_server()
    port = listener.sockets[0].getsockname()[1]
    async with client_of(f"127.0.0.1:{port}") as client:
        asked = [asyncio.create_task(client.invoke(RemotingCommand(ECHO), time)) for time in (SILENT_MS, 600_000)]
        with pytest.raises(UnavailableError, match="did not answer within 1,000 ms"):
            await asked[0]
        with pytest.raises(UnavailableError, match="stopped responding, and the connection was closed"):
            await asked[1]
        listener.close()
        server = RemotingServer(Rules())
        await server.listen("127.0.0.1", port)

        assert (await client.invoke(RemotingCommand(ECHO))).code == 0

        gone.set()
        await server.stop()


@on_a_loop
async def test_of_several_requests_the_one_that_is_due_first_is_given_up_first() -> None:
    """One timer looks after all of them: one that may take long must not hold back one that may not."""
    listener, gone = await silent_server()
    client = RemotingClient([f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"])
    await client.send_oneway(RemotingCommand(ECHO))  # connected: the times below are those of answers alone
    patient = asyncio.create_task(client.invoke(RemotingCommand(ECHO), 600_000))

    spans = (20, 10, 30)
    given_up = await asyncio.gather(
        *(client.invoke(RemotingCommand(ECHO), milliseconds) for milliseconds in spans), return_exceptions=True
    )

    for milliseconds, error in zip(spans, given_up, strict=True):
        assert str(error).endswith(f"did not answer within {milliseconds} ms")
    assert not patient.done()
    gone.set()
    with pytest.raises(UnavailableError, match="closed the connection"):
        await patient
    listener.close()


@on_a_loop
async def test_what_was_told_leaves_before_the_connection_ends() -> None:
    came = asyncio.get_running_loop().create_future()

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set_result(await reader.read())
        writer.close()

    listener = await asyncio.start_server(read, "127.0.0.1", 0)
    client = RemotingClient([f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"])
    for _ in range(3):
        await client.send_oneway(RemotingCommand(ECHO, body=b"x" * 40_000))
    await client.close()

    assert (await came).count(b"x" * 40_000) == 3
    listener.close()


@pytest.mark.parametrize("address", ["localhost", "localhost:x", ""])
@on_a_loop
async def test_what_is_no_address_is_said(address: str) -> None:
    with pytest.raises(UnavailableError, match="is not an address of the form host:port"):
        await RemotingClient([address]).invoke(RemotingCommand(ECHO))
