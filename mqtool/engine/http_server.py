"""HTTP pages in the caller's event loop: uvicorn has the sockets, an ASGI application the pages.

Only failures are logged, signals stay with the program, and the cost of clients is bounded.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from mqtool.engine.streams.reasons import cannot_listen

Application = Callable[[Any, Any, Any], Coroutine[Any, Any, None]]
"""As ASGI has it: scope, receive and send."""

_CLIENT_SECONDS = 10.0
"""How long a client may be silent, and a request may take to arrive."""
_ANSWER_LOOKS = 6
"""How many times as long an answer may take."""
_STOP_SECONDS = 2
_BACKLOG = 100


class HttpServer:
    """Serves an application on a port, from ``listen`` to ``stop``; made in an event loop."""

    def __init__(self, application: Application, most_connections: int = 100) -> None:
        """Create a server with a limited number of clients at a time; more are rejected."""

        class HttpConnection(_Connection):
            most = most_connections

        config = uvicorn.Config(
            application,
            http=HttpConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=int(_CLIENT_SECONDS),
            timeout_graceful_shutdown=_STOP_SECONDS,
        )
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def listen(self, host: str, port: int) -> int:
        """Listen on a port, 0 for one that is free, and return its number.

        Raises:
            UnavailableError: the port is taken, or the host has no such address.
            NotPermittedError: this user may not use the port.
        """
        try:
            family, *_, address = (
                await asyncio.get_running_loop().getaddrinfo(
                    host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                )
            )[0]
            listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        except OSError as error:
            raise cannot_listen(host, port, error) from error
        at = int(listener.getsockname()[1])
        self._task = asyncio.create_task(self._server.serve([listener]))
        await self._server.is_ready.wait()
        return at

    async def stop(self) -> None:
        """Stop listening, and end all connections once their answers are sent, or after two seconds."""
        if self._task is not None:
            self._server.is_told.set()
            await self._task


class _Server(uvicorn.Server):  # type: ignore[misc]
    """A server that does not handle signals, and waits for an event instead of polling ten times a second."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.is_ready, self.is_told = asyncio.Event(), asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        self.is_ready.set()
        await self.is_told.wait()


class _Connection(H11Protocol):  # type: ignore[misc]
    """A connection that ends if its client is idle."""

    most = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.close()
            return
        self.loop.call_later(_CLIENT_SECONDS, self._look, None, 0)

    def _look(self, before: Any, looks: int) -> None:
        """Close the connection if since the last check no request came, or the current one is still incomplete."""
        if self.transport.is_closing():
            return
        request = self.cycle
        looks = looks + 1 if request is before else 0
        waits_for_client = request is None or request.response_complete or request.more_body
        if request is before and (waits_for_client or looks >= _ANSWER_LOOKS):
            self.transport.abort()
            return
        self.loop.call_later(_CLIENT_SECONDS, self._look, request, looks)
