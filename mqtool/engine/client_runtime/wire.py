"""The connections of a client, and its requests over them."""

import asyncio
import functools
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Self, TypeVar

from mqtool.engine.client.calls import Call, refusal
from mqtool.engine.remoting.client import Answering, RemotingClient
from mqtool.errors import RefusedError, UnavailableError
from mqtool.formats.codes import ResponseCode
from mqtool.formats.remoting import RemotingCommand
from mqtool.formats.signing import Credentials

T = TypeVar("T")

ANSWER_MS = 10_000
"""How long an answer may take: tools request more at once than producers and consumers do."""
_MAX_AT_ONCE = 16

OnRequest = Callable[[str, RemotingCommand], Answering]
"""Takes the address of a broker and its request; returns the answer."""


class Wire:
    """Connections to name servers and to brokers by their addresses, each opened when it is first needed.

    Leaving it closes all of them.
    """

    def __init__(
        self,
        name_servers: Sequence[str],
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
        on_request: OnRequest | None = None,
    ) -> None:
        self.name_servers = [*name_servers]
        self._credentials = credentials
        self._tls = tls
        self._on_request = on_request
        self._name_server = self._to_name_servers()
        self._clients: dict[str, RemotingClient] = {}

    def _to_name_servers(self) -> RemotingClient:
        return RemotingClient(self.name_servers, self._tls, credentials=self._credentials)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; pending requests get no answer, and new requests open new connections."""
        ended = (self._name_server, *self._clients.values())
        self._name_server, self._clients = self._to_name_servers(), {}
        try:
            await asyncio.gather(*(client.close() for client in ended))
        finally:  # where this is cancelled, some have not begun
            for client in ended:
                client.abort()

    async def request_name_server(self, call: Call[T]) -> T:
        """Query the first name server that can be reached; raises like ``request``."""
        try:
            answer = await self._name_server.invoke_any(call.command, ANSWER_MS)
            return _read(self._name_server, call, answer)
        except RefusedError as refused:
            if refused.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise UnavailableError(
                    f"{refused.address} answers, but not as a name server does", refused.address
                ) from refused
            raise

    def request(self, address: str, call: Call[T], timeout_ms: int = ANSWER_MS) -> Awaitable[T]:
        """Query the server at an address, and return the parsed answer.

        Raises:
            UnavailableError: it cannot be reached, or does not answer in time.
            RefusedError: it answers with an error.
            MqtoolError: the answer cannot be read.
        """
        return _ask(self._at(address), call, timeout_ms)

    def send_oneway(self, address: str, command: RemotingCommand) -> Awaitable[None]:
        """Send a one-way request to the server at an address.

        Raises:
            UnavailableError: it cannot be reached.
        """
        return self._at(address).send_oneway(command)

    def _at(self, address: str) -> RemotingClient:
        client = self._clients.get(address)
        if client is None:
            on_request = functools.partial(self._on_request, address) if self._on_request else None
            client = self._clients[address] = RemotingClient([address], self._tls, on_request, self._credentials)
        return client


async def _ask(client: RemotingClient, call: Call[T], timeout_ms: int) -> T:
    return _read(client, call, await client.invoke(call.command, timeout_ms))


def _read(client: RemotingClient, call: Call[T], answer: RemotingCommand) -> T:
    if answer.code not in call.codes:
        raise refusal(client.addresses[0], answer.code, answer.remark)
    return call.read(answer)


async def together(tasks: Iterable[Awaitable[T]]) -> list[T]:
    """Run many tasks, a limited number at a time, and return their results, in order."""
    room = asyncio.Semaphore(_MAX_AT_ONCE)

    async def in_turn(task: Awaitable[T]) -> T:
        async with room:
            return await task

    return await asyncio.gather(*(in_turn(task) for task in tasks))
