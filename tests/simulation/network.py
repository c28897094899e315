"""A network without sockets: streams between hosts, with delays, stalls, cut connections and partitions.

As TCP it neither loses nor reorders bytes: what a bad line costs is time, until a connection is cut. ``Network`` takes
the part of ``create_server`` and ``create_connection`` in a ``NetworkLoop``, so that clients and servers run unchanged.
"""

import asyncio
import random
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from tests.simulation.virtual_loop import CURRENT, Process, VirtualLoop

_SYN_AGAIN_S = 1.0
_RESENT_S = 0.2
_ROOM = 1 << 16
"""Bytes that two hosts hold of a stream before its writer is told to wait."""
_FIN, _RESET = object(), object()
_OUTSIDE = Context()
_SIMULATION = Process("simulation", "")
_BACKLOG = socket.socket()
"""Whose backlog servers set: here nobody waits to be taken."""


@dataclass
class Line:
    """How it is between two hosts, in one direction.

    Attributes:
        delay_s: at least, ..
        jitter_s: .. and on average so much more.
        lost: which share of pieces has to be sent again, after a while.
        is_cut: nothing arrives.
    """

    delay_s: float = 0.0005
    jitter_s: float = 0.0005
    lost: float = 0.0
    is_cut: bool = False


class Network:
    """All hosts, who listens where, and how good the lines are."""

    def __init__(self, loop: "NetworkLoop", chance: random.Random) -> None:
        self.loop = loop
        self.default = Line()
        self.lines: dict[tuple[str, str], Line] = {}
        self.cut_off: set[str] = set()
        """Hosts that nobody reaches, and that reach nobody."""
        self.unplugged: set[str] = set()
        """Hosts without power: not even a refusal comes back."""
        self.is_down = False
        self.opened: list[Stream] = []
        self._chance = chance
        self._listening: dict[tuple[str, int], VirtualServer] = {}
        self._next_port = 30_000
        self._held: list[Stream] = []
        self.bytes_sent = 0

    def line(self, source: str, target: str) -> Line:
        """Return how it is from one host to another."""
        return self.lines.get((source, target), self.default)

    def passes(self, source: str, target: str) -> bool:
        """Tell whether anything comes through."""
        return not (self.is_down or self.line(source, target).is_cut or self.cut_off & {source, target})

    def delay(self, source: str, target: str) -> float:
        """Return how long something takes, in seconds."""
        line, chance = self.line(source, target), self._chance
        delay = line.delay_s + (chance.expovariate(1 / line.jitter_s) if line.jitter_s else 0.0)
        while line.lost and chance.random() < line.lost:
            delay += _RESENT_S
        return delay

    def changed(self) -> None:
        """Have what was held up go on, where it can."""
        held, self._held = self._held, []
        for stream in held:
            stream.go_on()

    def hold(self, stream: "Stream") -> None:
        """Remember who waits for better lines."""
        self._held.append(stream)

    def pieces(self, data: bytes) -> Iterable[bytes]:
        """Yield what is written in the pieces in which it is read."""
        if len(data) > 1 and self._chance.random() < 0.05:
            at = self._chance.randrange(1, len(data))
            return (data[:at], data[at:])
        return (data,)

    # Who is there

    def listen(self, host: str, port: int, factory: Callable[[], asyncio.Protocol]) -> "VirtualServer":
        """Take connections from now on."""
        if (host, port) in self._listening:
            raise OSError(98, "Address already in use")
        listener = VirtualServer(self, _process(), host, port, factory)
        self._listening[host, port] = listener
        return listener

    def forget(self, listener: "VirtualServer") -> None:
        """Take no more connections."""
        self._listening.pop(listener.address, None)

    def end(self, process: Process, *, silently: bool = False) -> None:
        """End what a process has open, as its system does when it is killed; or without a word, as without power."""
        for listener in [one for one in self._listening.values() if one.process is process]:
            self.forget(listener)
        streams = [one for one in self.opened if one.process is process]
        for stream in streams:
            stream.is_gone = True
            if not silently:
                stream.push(_RESET if self._chance.random() < 0.5 else _FIN)
        self.opened = [one for one in self.opened if not one.is_gone]

    def cut(self, stream: "Stream", *, one_end: bool = False) -> None:
        """Cut a connection: both ends learn it, or one of them only when it writes."""
        stream.lose(_reset())
        stream.drop()
        stream.other.drop()
        if not one_end:
            self.loop.call_later(self._chance.uniform(0.0, 0.5), stream.other.lose, _reset())

    async def connect(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> "Stream":
        """Return the near end of a new connection.

        Raises:
            ConnectionRefusedError: nobody listens there.
        """
        process = _process()
        while True:
            await asyncio.sleep(self.delay(process.host, host))
            if self.passes(process.host, host) and self.passes(host, process.host) and host not in self.unplugged:
                break
            await asyncio.sleep(_SYN_AGAIN_S)
        listener = self._listening.get((host, port))
        if listener is None:
            await asyncio.sleep(self.delay(host, process.host))
            raise ConnectionRefusedError(111, "Connection refused")
        self._next_port += 1
        near = Stream(self, process, (host, port))
        far = Stream(self, listener.process, (process.host, self._next_port))
        near.other, far.other = far, near
        self.opened = [*(one for one in self.opened if not one.is_gone), near, far]
        self.loop.call_soon(far.begin, listener.factory, context=listener.process.context)
        await asyncio.sleep(self.delay(host, process.host))
        near.begin(factory)
        if near.is_gone:
            raise _reset()
        return near


def _process() -> Process:
    return CURRENT.get() or _SIMULATION


def _hand_over(protocol: asyncio.Protocol | asyncio.BufferedProtocol, data: bytes) -> None:
    """Give a protocol what was received, as an event loop does for its kind."""
    if not isinstance(protocol, asyncio.BufferedProtocol):
        protocol.data_received(data)
        return
    while data:
        buffer = memoryview(protocol.get_buffer(len(data)))
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        protocol.buffer_updated(size)
        data = data[size:]


def _reset() -> ConnectionResetError:
    return ConnectionResetError(104, "Connection reset by peer")


class VirtualServer:
    """Stands for an ``asyncio.Server``."""

    def __init__(
        self, network: Network, process: Process, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> None:
        self.process = process
        self.address = (host, port)
        self.factory = factory
        self._network = network

    @property
    def sockets(self) -> "list[VirtualServer]":
        """The sockets: it stands for its own."""
        return [self]

    def getsockname(self) -> tuple[str, int]:
        """Return the address."""
        return self.address

    def fileno(self) -> int:
        """Return the number of a socket of which nothing but the backlog is used."""
        return _BACKLOG.fileno()

    def close(self) -> None:
        """Listen no longer."""
        self._network.forget(self)


class Stream(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: Network, process: Process, peer: tuple[str, int]) -> None:
        super().__init__({"peername": peer})
        self.process = process
        self.is_gone = False
        """Whether nothing is to be told to its protocol any more."""
        self.other: Stream
        self.protocol = asyncio.Protocol()  # until this end begins
        self._has_begun = False
        self._network = network
        self._peer_host = peer[0]
        self._flight: deque[tuple[float, Any]] = deque()  # what the other end gets, and when
        self._last_due = 0.0
        self._unread = 0  # bytes in flight
        self._timer: asyncio.TimerHandle | None = None
        self._is_held = False
        self._high, self._low = 1 << 16, 1 << 14
        self._is_full = False
        self._is_reading = True
        self._is_closing = False

    def begin(self, factory: Callable[[], asyncio.Protocol]) -> None:
        """Give this end to a protocol, unless the connection is over already."""
        if self.is_gone:
            return
        self.protocol = factory()
        self._has_begun = True
        self.other.go_on()
        self.protocol.connection_made(self)

    # Writing

    def write(self, data: "bytes | bytearray | memoryview[Any]") -> None:
        """Send bytes."""
        if self._is_closing or self.is_gone:
            return
        data = bytes(data)
        self._network.bytes_sent += len(data)
        for piece in self._network.pieces(data):
            self._unread += len(piece)
            self.push(piece)
        if not self._is_full and self.get_write_buffer_size() > self._high:
            self._is_full = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Send bytes."""
        self.write(b"".join(list_of_data))

    def push(self, piece: Any) -> None:
        """Have something arrive at the other end, in its turn."""
        loop = self._network.loop
        due = max(self._last_due, loop.time() + self._network.delay(self.process.host, self._peer_host))
        self._last_due = due
        self._flight.append((due, piece))
        if not self._is_held:
            self.go_on()

    def go_on(self) -> None:
        """See to what is in flight."""
        self._is_held = False
        if self._flight and self._timer is None:
            self._timer = self._network.loop.call_at(self._flight[0][0], self._arrive, context=_OUTSIDE)

    def _arrive(self) -> None:
        self._timer = None
        network, other = self._network, self.other
        if not self._flight:  # the connection was cut
            return
        is_ready = other.is_gone or (other.process.stalled is None and other._has_begun)
        if not (is_ready and network.passes(self.process.host, self._peer_host)):
            self._is_held = True
            network.hold(self)
            return
        if not (other._is_reading or other.is_gone):
            self._is_held = True
            return
        _, piece = self._flight.popleft()
        if isinstance(piece, bytes):
            self._unread -= len(piece)
            if self._is_full and self.get_write_buffer_size() <= self._low:
                self._is_full = False
                if not self.is_gone:
                    network.loop.call_soon(self.protocol.resume_writing, context=self.process.context)
        if other.is_gone:
            if piece is not _RESET and not self.is_gone and self._peer_host not in network.unplugged:
                other.push(_RESET)  # nobody is there: that is said to who writes
        elif piece is _RESET:
            other.lose(_reset())
        elif piece is _FIN:
            other.process.context.run(other.protocol.eof_received)
            other.close()
        elif not other._is_closing:
            other.process.context.run(_hand_over, other.protocol, piece)
        if not self._is_held:
            self.go_on()

    def drop(self) -> None:
        """Lose what is in flight."""
        self._flight.clear()
        self._unread = 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Tell from when on who writes has to wait."""
        self._high = 1 << 16 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait in this process."""
        return max(0, self._unread - _ROOM)

    # Reading

    def pause_reading(self) -> None:
        """Give the protocol nothing for now."""
        self._is_reading = False

    def resume_reading(self) -> None:
        """Go on."""
        self._is_reading = True
        self.other.go_on()

    # The end

    def is_closing(self) -> bool:
        """Tell whether this end is closed, or about to be."""
        return self._is_closing or self.is_gone

    def close(self) -> None:
        """End the connection behind what was written."""
        self._end(_FIN)

    def abort(self) -> None:
        """End the connection at once."""
        self._end(_RESET)

    def _end(self, how: object) -> None:
        if self._is_closing or self.is_gone:
            return
        self._is_closing = True
        self.push(how)
        self.lose(None)

    def lose(self, error: Exception | None) -> None:
        """Tell the protocol that the connection is over."""
        if not self.is_gone:
            self.is_gone = True
            if self._has_begun:
                self._network.loop.call_soon(self.protocol.connection_lost, error, context=self.process.context)


class NetworkLoop(VirtualLoop):
    """A loop whose connections are those of a ``Network``."""

    def __init__(self, seed: str) -> None:
        super().__init__(random.Random(f"threads {seed}"))
        self.network = Network(self, random.Random(f"network {seed}"))

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, **_: Any
    ) -> VirtualServer:
        """Listen."""
        return self.network.listen(host, port, protocol_factory)

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        ssl: ssl.SSLContext | None = None,
    ) -> tuple[Stream, asyncio.Protocol]:
        """Connect."""
        assert ssl is None
        stream = await self.network.connect(protocol_factory, host, port)
        return stream, stream.protocol
