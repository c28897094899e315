"""The port of a broker for clients of Apache Pulsar: where the rules of its door meet their connections."""

import logging
from collections.abc import Callable
from typing import Any

from mqtool.engine.pulsar.door import PulsarDoor
from mqtool.engine.pulsar.frames import PADDING, Command, PulsarFrameDecoder
from mqtool.engine.pulsar.session import Frame
from mqtool.engine.streams.server import Limits, StreamServer
from mqtool.engine.streams.tls import TlsSettings
from mqtool.errors import FormatError
from mqtool.formats.peer import Buffer, Peer

log = logging.getLogger(__name__)


class PulsarServer(StreamServer[Command, Frame]):
    """Listens for Pulsar clients."""

    rules: PulsarDoor

    def __init__(self, door: PulsarDoor, tls: TlsSettings, limits: Limits, clock: Callable[[], int]) -> None:
        super().__init__(door, tls, limits, clock=clock)
        door.hang_up, door.has_tls = self.end, tls.context is not None
        self.port = 0

    async def listen(self, host: str, port: int) -> int:
        """Listen on a port, 0 for one that is free, and return its number; raises what every server does."""
        self.port = await super().listen(host, port)
        return self.port

    def new_frames(self) -> PulsarFrameDecoder:
        """Return a decoder for the stream of a new connection."""
        return PulsarFrameDecoder(self.rules.topics.most_message + PADDING)

    def opened(self, connection: Any, address: Any) -> Peer:
        """Add a connection; its local address is the broker's address for this client."""
        peer = super().opened(connection, address)
        host, port = connection.transport.get_extra_info("sockname")[:2]
        session = self.rules.session(peer)
        session.reached_at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        session.last_heard = self.clock()
        return peer

    def dispatch(self, command: Command, peer: Peer, now: int) -> None:
        """Pass a command to the rules."""
        try:
            self.rules.take(command, self.rules.session(peer), now)
        except FormatError as error:
            self.end(peer, error.reason)
        except Exception:
            log.exception("%s of %s failed", command.name, peer)
            self.end(peer, "request failed")

    def encode(self, command: Frame) -> list[Buffer]:
        """Return the bytes to write."""
        return [*command]

    def backed_up(self, peer: Peer, is_backed_up: bool) -> None:
        """Stop deliveries to a client that does not read."""
        self.rules.backed_up(self.rules.session(peer), is_backed_up)
