"""The event loop of ``mqtool serve``: when everybody comes at once, it turns to others in between."""

import asyncio
import itertools
import socket
import sys
from collections.abc import Awaitable, Callable

import pytest

from mqtool.engine.cluster import run
from tests.engine.streams.test_server import LineRules, LineServer

MOST = 16
"""Of a turn: what is due by then waits for no more."""


async def most_of_a_turn(done: Callable[[], int], all_of_them: int) -> int:
    """Return how much was done in one turn of the loop at most, until all is."""
    counts = [done()]
    while counts[-1] < all_of_them:
        await asyncio.sleep(0)
        counts.append(done())
    return max(after - before for before, after in itertools.pairwise(counts))


def on_asyncio(test: Callable[[], Awaitable[None]], patch: pytest.MonkeyPatch) -> None:
    """Run a test as if there were no uvloop, whose loop goes its own way."""
    patch.setitem(sys.modules, "uvloop", None)

    async def timed() -> None:
        async with asyncio.timeout(60):
            await test()

    run(timed())


def test_a_loop_turns_to_others_while_hundreds_of_sockets_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        loop, read = asyncio.get_running_loop(), list[socket.socket]()
        pairs = [socket.socketpair() for _ in range(300)]
        for one, other in pairs:
            loop.add_reader(one, read.append, one)
            other.send(b"x")
        assert await most_of_a_turn(lambda: len({*read}), 300) <= MOST
        for one, other in pairs:
            loop.remove_reader(one)
            one.close()
            other.close()

    on_asyncio(test, monkeypatch)


def test_a_socket_that_has_the_number_of_one_that_was_ready_is_not_taken_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        loop, read, gone = asyncio.get_running_loop(), set[int](), list[socket.socket]()
        pairs = [socket.socketpair() for _ in range(300)]
        for number, (one, other) in enumerate(pairs):
            loop.add_reader(one, read.add, number)
            other.send(b"x")
        while not read:
            await asyncio.sleep(0)
        left = [number for number in range(300) if number not in read]
        for number in left[::2]:
            one, other = pairs[number]
            loop.remove_reader(one)
            for end in (one, other):
                end.close()
            pairs[number] = again = socket.socketpair()
            loop.add_reader(again[0], gone.append, again[0])
        while not read >= {*left[1::2]}:
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert gone == []
        pairs[left[0]][1].send(b"x")
        while not gone:
            await asyncio.sleep(0)
        assert {*gone} == {pairs[left[0]][0]}
        for one, other in pairs:
            loop.remove_reader(one)
            one.close()
            other.close()

    on_asyncio(test, monkeypatch)


def test_a_loop_turns_to_others_while_hundreds_of_connections_are_there_to_be_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        server = LineServer(LineRules(), clock=lambda: 0)
        port = await server.listen("127.0.0.1", 0)
        clients = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(300)]  # the system takes so many
        assert await most_of_a_turn(lambda: len(server._connections), 300) <= MOST
        for one in clients:
            one.close()
        await server.stop()

    on_asyncio(test, monkeypatch)
