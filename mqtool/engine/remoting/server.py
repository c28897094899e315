"""A server of the remoting protocol: requests in, answers out, by the rules of a broker or name server."""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from mqtool.engine.remoting.clock import wall_clock
from mqtool.engine.remoting.connection import Connection, other_protocol
from mqtool.engine.streams.server import Limits, ServerRules, StreamServer
from mqtool.engine.streams.tls import TlsSettings
from mqtool.errors import MqtoolError
from mqtool.formats.codes import ResponseCode
from mqtool.formats.peer import Peer
from mqtool.formats.remoting import Outgoing, RemotingCommand, frame_buffers

log = logging.getLogger(__name__)


class Handler(ServerRules[RemotingCommand], Protocol):
    """Rules of a broker or name server; ``now`` is in ms since 1970.

    Each call returns what to send to whom; an answer may come with a later call, of ``tick`` or for another request. To
    a peer that has gone nothing is sent. A request to a client carries an ``opaque`` of the handler's own; its answer
    comes to ``handle`` like any command, told by ``is_response``. An answer to a request that wants none is dropped.
    """

    def handle(self, command: RemotingCommand, peer: Peer, now: int) -> Iterable[Outgoing]:
        """Handle a command. An exception becomes an answer with code 1."""
        ...


class RemotingServer(StreamServer[RemotingCommand, RemotingCommand]):
    """Connects sockets with a handler."""

    new_frames = staticmethod(Connection)
    encode = staticmethod(frame_buffers)
    stranger = staticmethod(other_protocol)

    def __init__(
        self,
        handler: Handler,
        tls: TlsSettings | None = None,
        limits: Limits | None = None,
        clock: Callable[[], int] = wall_clock,
    ) -> None:
        super().__init__(handler, tls, limits, clock=clock)
        self.handler = handler

    def dispatch(self, commands: deque[RemotingCommand], peer: Peer, now: int) -> None:
        """Pass a command to the handler and send what it returns."""
        command = commands.popleft()
        try:
            for to, outgoing in self.handler.handle(command, peer, now):
                if command.is_oneway and to is peer and outgoing.is_response and outgoing.opaque == command.opaque:
                    continue
                if connection := self._connections.get(to):  # like ``send``, but one call less
                    connection.put(frame_buffers(outgoing))
        except Exception as error:
            if isinstance(error, MqtoolError):
                remark = str(error)
                log.debug("%s refused request %d: %s", peer, command.code, remark)
            else:
                remark = f"{type(error).__name__}: {error}"
                log.exception("request %d of %s failed", command.code, peer)
            if not command.is_response and not command.is_oneway:
                self.send([(peer, command.answer(ResponseCode.SYSTEM_ERROR, remark=remark))])
