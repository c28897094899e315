"""Client rules on real sockets: questions to name servers and brokers."""

import asyncio
import ssl
from collections.abc import Awaitable, Iterable, Sequence
from types import TracebackType
from typing import Self, TypeVar

from mqtool.engine.client.questions import Question, RefusedError
from mqtool.engine.remoting.client import RemotingClient
from mqtool.errors import UnavailableError
from mqtool.formats.codes import ResponseCode
from mqtool.formats.signing import Credentials

T = TypeVar("T")

ANSWER_MS = 10_000
"""How long an answer may take: tools ask for more at once than producers and consumers do."""
_MOST_AT_ONCE = 16


class Wire:
    """Connections to name servers and to brokers by their addresses, each made when it is first needed.

    Leaving it ends all of them.
    """

    def __init__(
        self, name_servers: Sequence[str], credentials: Credentials | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.name_servers = [*name_servers]
        self._credentials = credentials
        self._tls = tls
        self._name_server = self._client(self.name_servers)
        self._clients: dict[str, RemotingClient] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in (self._name_server, *self._clients.values()):
            await client.close()

    async def ask_name_server(self, question: Question[T]) -> T:
        """Ask the name servers, the first of them that can be reached; raises like ``ask``."""
        try:
            return await _ask(self._name_server, question)
        except RefusedError as refused:
            if refused.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise UnavailableError(f"{refused.address} answers, but not as a name server does") from refused
            raise

    async def ask(self, address: str, question: Question[T]) -> T:
        """Ask the server at an address, and return what its answer says.

        Raises:
            UnavailableError: it cannot be reached, or does not answer in time.
            RefusedError: it answers that it does not do that.
            MqtoolError: the answer cannot be read.
        """
        if address not in self._clients:
            self._clients[address] = self._client([address])
        return await _ask(self._clients[address], question)

    def _client(self, addresses: Sequence[str]) -> RemotingClient:
        return RemotingClient(addresses, self._tls, credentials=self._credentials)


async def _ask(client: RemotingClient, question: Question[T]) -> T:
    answer = await client.invoke(question.command, ANSWER_MS)
    if answer.code not in question.codes:
        raise RefusedError(client.addresses[0], answer.code, answer.remark)
    return question.read(answer)


async def together(tasks: Iterable[Awaitable[T]]) -> list[T]:
    """Wait for all of many tasks, some of them at a time, and return what they come to, in their order."""
    room = asyncio.Semaphore(_MOST_AT_ONCE)

    async def in_turn(task: Awaitable[T]) -> T:
        async with room:
            return await task

    return await asyncio.gather(*(in_turn(task) for task in tasks))
