"""A client's end of a connection: sends requests, and returns their answers."""

import asyncio
import contextlib
import itertools
import logging
import math
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, cast

from mqtool.engine.remoting.connection import Connection
from mqtool.engine.streams.reasons import reason_of
from mqtool.errors import AnswerTimeoutError, FormatError, MqtoolError, UnavailableError, UsageError
from mqtool.formats.codes import ResponseCode
from mqtool.formats.peer import Buffer
from mqtool.formats.remoting import ONEWAY, RemotingCommand, frame_buffers
from mqtool.formats.signing import Credentials

log = logging.getLogger(__name__)

CONNECT_MS = 3000
TIMEOUT_MS = 3000
"""The default of Java clients."""

PATIENCE_MS = 1000
"""How long to wait for a server if there is another one."""

SILENT_MS = 1000
"""A connection over which nothing has come for so long, while an answer was due, is given up: its server may be gone
without a word, or something in between has forgotten it. (RocketMQ: ``clientCloseSocketIfTimeout``.)"""

_MAX_OPAQUE = 0x7FFFFFFF
_MAX_PORT = 0xFFFF
_MAX_UNSENT = 1 << 16  # bytes that wait for the end of a turn; beyond that the transport decides whether to pause

Answering = RemotingCommand | Coroutine[Any, Any, RemotingCommand | None] | None
OnRequest = Callable[[RemotingCommand], Answering]
"""Answers requests of a server, at once or later."""


def split_addresses(text: str) -> list[str]:
    """Return the addresses that ``host:port;host:port`` names.

    Raises:
        UsageError: it names something else.
    """
    addresses = [address for part in text.split(";") if (address := part.strip())]
    for address in addresses:
        host_and_port(address)
    return addresses


def host_and_port(address: str) -> tuple[str, int]:
    """Return the two parts of an address, in which the host may be an IPv6 address in brackets.

    Raises:
        UsageError: it has no such parts.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > _MAX_PORT:
        raise UsageError(f"{address} is not an address of the form host:port")
    return host.strip("[]"), int(port)


def own_address() -> str:
    """Return the address of this machine as seen by others."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing, only selects a route
        return str(probe.getsockname()[0])
    return "127.0.0.1"


class RemotingClient:
    """Sends requests to one of several equivalent servers: the first reachable one, until it fails.

    Connects on the first request, and again after a loss. Many requests may be in progress. A request without an
    answer is not repeated: it may have been carried out.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        tls: ssl.SSLContext | None = None,
        on_request: OnRequest | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.addresses = [*addresses]
        self._tls = tls
        self._on_request = on_request
        self._credentials = credentials
        self._connection: _ClientConnection | None = None
        self._connecting = asyncio.Lock()
        self._is_closed = False
        self._opaques = itertools.count(1)

    async def invoke(self, command: RemotingCommand, timeout_ms: int = TIMEOUT_MS) -> RemotingCommand:
        """Send a request and return its answer, whatever its code; numbers the request.

        Raises:
            UnavailableError: no server can be reached, the connection was lost, or no answer came in time.
        """
        connection, left_ms = self._connection, timeout_ms
        if connection is None or connection.is_lost or connection.is_paused:
            connection, left_ms = await self._writable(timeout_ms)
        command.opaque = next(self._opaques) & _MAX_OPAQUE
        answer = connection.expect(command.opaque, timeout_ms, left_ms)
        try:
            connection.write(self._signed(command))
            return await answer
        finally:
            connection.forget(command.opaque)

    async def invoke_any(self, command: RemotingCommand, timeout_ms: int = TIMEOUT_MS) -> RemotingCommand:
        """Send a repeatable request to one server after the other, until one answers in time.

        Raises:
            UnavailableError: none does.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_ms / 1000
        for servers_left in reversed(range(len(self.addresses))):
            first, left = self.addresses[0], max(1, int((end - loop.time()) * 1000))
            begun = loop.time()
            try:
                return await self.invoke(command, min(left, PATIENCE_MS) if servers_left else left)
            except asyncio.CancelledError:  # the caller's time is shorter than the wait: prepare for the next call
                connection = self._connection
                if servers_left and self.addresses[0] == first and (connection is None or connection.heard_at < begun):
                    self._prefer_another()
                    self._give_up(connection)
                raise
            except UnavailableError as error:
                if not servers_left:
                    raise
                log.warning("%s; trying another server", error)
                if self.addresses[0] == first:
                    self._prefer_another()
                    self._give_up(self._connection)
        raise AssertionError("there is at least one server")

    async def send_oneway(self, command: RemotingCommand) -> None:
        """Send a request that wants no answer.

        Raises:
            UnavailableError: no server can be reached, or none takes it in time.
        """
        connection = self._connection
        if connection is None or connection.is_lost or connection.is_paused:
            connection, _ = await self._writable(TIMEOUT_MS)
        command.opaque = next(self._opaques) & _MAX_OPAQUE
        command.flag |= ONEWAY
        connection.write(self._signed(command))

    async def close(self) -> None:
        """Close the connection after sending pending data, and do not reconnect."""
        self._is_closed = True
        if self._connection:
            await self._connection.close()

    def abort(self) -> None:
        """Close the connection at once, dropping pending data, and do not reconnect."""
        self._is_closed = True
        if self._connection:
            self._connection.drop()

    def _signed(self, command: RemotingCommand) -> RemotingCommand:
        if self._credentials:
            command.ext_fields = self._credentials.signed(command.ext_fields, command.body)
        return command

    async def _writable(self, timeout_ms: int) -> tuple["_ClientConnection", int]:
        """Return a connection that can be written to, and how many ms are left then."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        connection = None
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                connection = await self._connected()
                await connection.until_writable()
        except TimeoutError:
            how = "could not be reached" if connection is None else "has not read what was sent before"
            sentence = f"{self.addresses[0]} {how} within {timeout_ms:,} ms"
            raise AnswerTimeoutError(sentence, self.addresses[0]) from None
        return connection, max(1, timeout_ms - int((loop.time() - start) * 1000))

    async def _connected(self) -> "_ClientConnection":
        if self._connection and not self._connection.is_lost:
            return self._connection
        async with self._connecting:
            if self._connection is None or self._connection.is_lost:
                self._connection = await self._connect()
            return self._connection

    async def _connect(self) -> "_ClientConnection":
        reasons = []
        for _ in range(len(self.addresses)):
            address = self.addresses[0]
            if self._is_closed:
                raise UnavailableError(f"this client of {address} is closed", address)
            try:
                connection = await self._connect_to(address)
            except OSError as error:
                reasons.append(f"{address} ({reason_of(error)})")
                self._prefer_another()
                continue
            if self._is_closed:  # in the meantime
                connection.transport.abort()
                continue
            return connection
        raise UnavailableError(f"cannot connect to {', '.join(reasons)}", self.addresses[0])

    async def _connect_to(self, address: str) -> "_ClientConnection":
        try:
            host, port = host_and_port(address)
        except UsageError as error:  # a server has named it
            raise UnavailableError(str(error)) from error
        connecting = asyncio.get_running_loop().create_connection(
            lambda: _ClientConnection(address, self._on_request, self._fell_silent),
            host,
            port,
            ssl=self._tls,
        )
        async with asyncio.timeout(CONNECT_MS / 1000):
            _, connection = await connecting
        return connection

    def _prefer_another(self) -> None:
        self.addresses.append(self.addresses.pop(0))

    def _fell_silent(self, connection: "_ClientConnection") -> None:
        """Give up a connection, and switch to another server if there is one."""
        self._give_up(connection)
        if len(self.addresses) > 1:
            self._prefer_another()

    def _give_up(self, connection: "_ClientConnection | None") -> None:
        """Stop using a connection immediately: its loss is reported only in a later turn."""
        if connection:
            connection.abort("stopped responding, and the connection was closed")
            if connection is self._connection:
                self._connection = None


class _Expected(NamedTuple):
    """The future of an answer, and its deadline."""

    answer: "asyncio.Future[RemotingCommand]"
    deadline: float  # of the loop's clock
    timeout_ms: int


class _ClientConnection(asyncio.Protocol):
    """One connection.

    Writes of one turn of the loop are sent together at its end: a system call takes longer than everything else
    for a request. For the same reason there is one timer for all answers, for the earliest deadline.
    """

    def __init__(
        self, address: str, on_request: OnRequest | None, on_silence: "Callable[[_ClientConnection], None]"
    ) -> None:
        self.address = address
        self.is_lost = False
        self._ended_by = ""  # what, with the address in front
        self._on_request = on_request
        self._on_silence = on_silence
        self._frames = Connection()
        self._expected: dict[int, _Expected] = {}
        self._next_look = math.inf
        self.heard_at = -math.inf  # of the loop's clock
        self._unsent: list[Buffer] = []
        self._unsent_size = 0
        self._loop = asyncio.get_running_loop()
        self._writable = asyncio.Event()
        self._writable.set()
        self._gone = asyncio.Event()
        self._answering: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        self._frames.receive(data)
        try:
            for command in self._frames.commands():
                self._take(command)
        except FormatError as error:
            log.warning("%s sent something that is not a frame: %s", self.address, error)
            self.abort(f"sent something that is not a frame: {error}")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._writable.set()
        self._gone.set()
        if not self._ended_by:
            self._ended_by = f"closed the connection{f': {exc}' if exc else ''}"
        for answer, _, _ in self._expected.values():
            if not answer.done():
                answer.set_exception(self._lost())

    def _lost(self) -> UnavailableError:
        return UnavailableError(f"{self.address} {self._ended_by}", self.address)

    def abort(self, why: str) -> None:
        """Abort the connection, because of something that its server did."""
        self._ended_by = why
        self.drop()

    def drop(self) -> None:
        """Close the connection at once, with what is pending."""
        if not self.is_lost:
            self.transport.abort()

    def expect(self, opaque: int, timeout_ms: int, left_ms: int) -> "asyncio.Future[RemotingCommand]":
        """Return what becomes the answer to a request, or an UnavailableError where none comes in what is left."""
        answer, deadline = self._loop.create_future(), self._loop.time() + left_ms / 1000
        self._expected[opaque] = _Expected(answer, deadline, timeout_ms)
        if deadline < self._next_look:
            self._look_at(deadline)
        return answer

    def forget(self, opaque: int) -> None:
        """Stop expecting an answer."""
        answer = self._expected.pop(opaque).answer
        if not (answer.cancel() or answer.cancelled()):
            answer.exception()  # so that asyncio does not report an exception that nobody retrieved

    def _look_at(self, deadline: float) -> None:
        self._next_look = deadline
        self._loop.call_at(deadline, self._look, deadline)

    def _look(self, deadline: float) -> None:
        """Fail overdue requests."""
        if self.is_lost or deadline != self._next_look:  # an earlier check was scheduled since
            return
        self._next_look = math.inf
        overdue = [
            request for request in self._expected.values() if request.deadline <= deadline and not request.answer.done()
        ]
        for answer, _, timeout_ms in overdue:
            sentence = f"{self.address} did not answer within {timeout_ms:,} ms"
            answer.set_exception(AnswerTimeoutError(sentence, self.address))
        left = [request.deadline for request in self._expected.values() if not request.answer.done()]
        if left:
            self._look_at(min(left))
        if any(timeout_ms >= SILENT_MS and due - timeout_ms / 1000 >= self.heard_at for _, due, timeout_ms in overdue):
            self._on_silence(self)

    @property
    def is_paused(self) -> bool:
        """Whether the server has not read earlier data yet."""
        return not self._writable.is_set()

    async def until_writable(self) -> None:
        """Wait until the server has read enough of earlier data."""
        await self._writable.wait()

    def write(self, command: RemotingCommand) -> None:
        """Write a command with the others of this turn.

        Raises:
            UnavailableError: the connection was lost.
        """
        if self.is_lost:
            raise self._lost()
        if not self._unsent:
            self._loop.call_soon(self._send)
        buffers = frame_buffers(command)
        self._unsent += buffers
        self._unsent_size += sum(map(len, buffers))
        if self._unsent_size >= _MAX_UNSENT:
            self._send()

    def _send(self) -> None:
        unsent, self._unsent, self._unsent_size = self._unsent, [], 0
        if unsent and not self.is_lost:
            self.transport.write(b"".join(unsent))  # writelines does not always pause, see streams/server.py

    async def close(self) -> None:
        """Close the connection; data that the server does not read in time is dropped."""
        self._ended_by = self._ended_by or "was disconnected, because this client was shut down"
        self._send()
        if not self.transport.is_closing():  # after a second time Python before 3.11.4 cannot abort TLS any more
            self.transport.close()
        try:
            async with asyncio.timeout(TIMEOUT_MS / 1000):
                await self._gone.wait()
        except TimeoutError:
            self.drop()
            await self._gone.wait()

    def _take(self, command: RemotingCommand) -> None:
        if command.is_response:
            expected = self._expected.get(command.opaque)
            if expected and not expected.answer.done():
                expected.answer.set_result(command)
        elif self._on_request:
            answering = asyncio.create_task(self._answer(command, self._on_request))
            self._answering.add(answering)
            answering.add_done_callback(self._answering.discard)

    async def _answer(self, command: RemotingCommand, on_request: OnRequest) -> None:
        try:
            answered = on_request(command)
            answer = await answered if isinstance(answered, Coroutine) else answered
        except MqtoolError as error:
            log.warning("request %d of %s: %s", command.code, self.address, error)
            answer = command.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
        if answer and not command.is_oneway:
            await self.until_writable()
            if not self.is_lost:
                self.write(answer)
