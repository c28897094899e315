"""The port of a broker for clients of Apache Pulsar: connects the rules of its door with their connections."""

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from mqtool.engine.pulsar.door import PulsarDoor
from mqtool.engine.pulsar.frames import PADDING, Command, PulsarFrameDecoder
from mqtool.engine.pulsar.session import Frame
from mqtool.engine.streams.server import Limits, StreamServer
from mqtool.engine.streams.tls import TlsMode, TlsSettings
from mqtool.errors import FormatError, MqtoolError
from mqtool.formats.peer import Buffer, Peer

log = logging.getLogger(__name__)


class PulsarServer(StreamServer[Command, Frame]):
    """Listens for Pulsar clients."""

    rules: PulsarDoor
    parsed_at_once = 32
    """Of these, consecutive messages are written at once."""

    def __init__(self, door: PulsarDoor, tls: TlsSettings, limits: Limits, clock: Callable[[], int]) -> None:
        super().__init__(door, tls, limits, clock=clock)
        door.hang_up = self.end

    async def listen(self, host: str, port: int, tls: TlsSettings | None = None) -> int:
        """Listen on a port, 0 for one that is free, and return its number, which clients are told from now on.

        Raises what every server does.
        """
        at = await super().listen(host, port, tls)
        accepted = tls or self.tls
        if accepted.mode is not TlsMode.ENFORCING:
            self.rules.port = at
        if accepted.context is not None:
            self.rules.tls_port = at
        return at

    def new_frames(self) -> PulsarFrameDecoder:
        """Return a decoder for the stream of a new connection."""
        return PulsarFrameDecoder(self.rules.topics.most_message + PADDING)

    def opened(self, connection: Any, address: Any) -> Peer:
        """Add a connection; its local host is the broker's host for this client."""
        peer = super().opened(connection, address)
        host = connection.transport.get_extra_info("sockname")[0]
        session = self.rules.session(peer)
        session.reached_host = f"[{host}]" if ":" in host else host
        session.last_heard = self.clock()
        return peer

    def dispatch(self, commands: deque[Command], peer: Peer, now: int) -> None:
        """Pass a command to the rules, or consecutive messages together."""
        command, more = commands.popleft(), list[Command]()
        if command.name == "send":
            while commands and commands[0].name == "send":
                more.append(commands.popleft())
        try:
            self.rules.take(command, self.rules.session(peer), now, more)
        except FormatError as error:
            self.end(peer, error.reason)
        except (MqtoolError, OSError) as error:
            log.warning("%s of %s failed: %s", command.name, peer, error)
            self.end(peer, "request failed")
        except Exception:
            log.exception("%s of %s failed", command.name, peer)
            self.end(peer, "request failed")

    def encode(self, command: Frame) -> list[Buffer]:
        """Return the bytes to write."""
        return [*command]

    def backed_up(self, peer: Peer, is_backed_up: bool) -> None:
        """Stop deliveries to a client that does not read."""
        self.rules.backed_up(self.rules.session(peer), is_backed_up)
