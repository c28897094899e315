"""A server for any protocol: the sockets between clients and the rules that answer them.

The cost of a connection is bounded (``Limits``), whatever its protocol: nothing is read from a peer that does not read
its answers, large batches of a peer are handled in turns with others, and if too much waits in total, the
peer that holds most is cut off. A protocol defines how its stream is split into commands, how each is handled and how
answers are encoded.

Cost: constant for each command, except for what the protocol does; the sweep of idle connections is linear in them.
"""

import asyncio
import collections
import itertools
import logging
import os
import resource
import socket
import ssl
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, cast

from mqtool.engine.streams.reasons import cannot_listen
from mqtool.engine.streams.tls import HANDSHAKE, TlsMode, TlsServerSide, TlsSettings
from mqtool.errors import FormatError
from mqtool.formats.peer import Buffer, Peer

log = logging.getLogger(__name__)

_BACKLOG = 1024
_TAKEN_AT_ONCE = 16
"""Connections accepted in one turn of the loop: each takes some 100 µs. asyncio uses the backlog for that."""
_SWEEP_SECONDS = 5.0
_SWEPT_AT_ONCE = 200
_WARNED_SECONDS = 60.0
_STOP_SECONDS = 2.0
_AFTER_FAULT_MS = 1000
_FILES_OF_STORE = 256
_TURN_SECONDS = 0.002
"""How long one turn of the loop handles commands of all connections; the rest waits for the next turns."""
_UNWATCHED_SECONDS = 0.0008
"""How long nobody asks whether the loop has turned: that takes a callback, and so another pass of the loop."""
_FEW = 3
"""Up to how many times in a turn it costs less to ask the rules what is due than to watch the turn."""
_TICK_SECONDS = 0.001
_MAX_TICKS = 16
"""How long, and how often, one turn does what is due: ``tick`` does a little of it each time."""
_WRITTEN_AT_ONCE = 1 << 18
"""Bytes written to a connection in one turn of the loop, except for a larger frame."""


Taken = TypeVar("Taken")
Sent = TypeVar("Sent")
SentBy = TypeVar("SentBy", covariant=True)
TakenFrom = TypeVar("TakenFrom", covariant=True)


class ServerRules(Protocol[SentBy]):
    """The interface of a server to its rules, for any protocol; ``now`` is in ms since 1970.

    Each call returns what to send to which peer; nothing is sent to a peer that is gone.
    """

    def closed(self, peer: Peer, now: int) -> Iterable[tuple[Peer, SentBy]]:
        """Note that a connection has ended."""
        ...

    def tick(self, now: int) -> Iterable[tuple[Peer, SentBy]]:
        """Do some of the periodic work that is due, so little that nobody waits for long."""
        ...

    def next_tick(self, now: int) -> int | None:
        """Return when to call ``tick``: immediately after the current commands if that is not after ``now``."""
        ...


class FrameDecoder(Protocol[TakenFrom]):
    """Splits the stream of one connection into commands; keeps an incomplete command between two pieces."""

    @property
    def pending(self) -> bytes | bytearray:
        """Received bytes of an incomplete command."""
        ...

    @property
    def pending_size(self) -> int:
        """Their number."""
        ...

    def receive(self, data: bytes) -> None:
        """Add received bytes."""
        ...

    def commands(self) -> Generator[TakenFrom, None, None]:
        """Yield complete commands, each once; if the iterator is closed early, the next call yields the rest.

        Raises:
            FormatError: the bytes are not a command, nor the beginning of one; the connection is closed.
        """
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a server; connections beyond them are closed, the worst first."""

    high_water: int = 1 << 20  # unsent bytes of a connection at which reading from it stops
    unsent: int = 1 << 26  # of a connection; the longest frame is a quarter of that
    unsent_in_all: int = 1 << 28
    unfinished_in_all: int = 1 << 28  # bytes of frames that have begun
    idle_seconds: float = 120.0  # RocketMQ's own
    connections: int = field(default_factory=lambda: most_connections())


def most_connections(servers: int = 2) -> int:
    """Return the maximum number of connections per server: the process's open file limit, minus a store's files.

    It is divided equally, for example between a name server and a broker. A store needs its files to store anything.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max((files - _FILES_OF_STORE) // servers, 8) if files != resource.RLIM_INFINITY else sys.maxsize


class StreamServer(ABC, Generic[Taken, Sent]):
    """Listens, and connects sockets to rules, in one event loop.

    Answers to the commands of one read are sent in one write; commands for other peers are sent once
    everything received is handled. A connection that begins like TLS is TLS: a protocol whose own streams
    may begin with that byte must be served only with TLS, or only without.
    """

    parsed_at_once = 8
    """How many commands of a connection are parsed before they are handled: several, for the processor's cache."""
    reads_on = False
    """Whether to read from a peer that does not read: for protocols without answers."""

    def __init__(
        self,
        rules: ServerRules[Sent],
        tls: TlsSettings | None = None,
        limits: Limits | None = None,
        *,
        clock: Callable[[], int],
    ) -> None:
        """Make a server; ``clock`` tells the time in ms since 1970."""
        self.rules = rules
        self.tls = tls or TlsSettings()
        self.limits = limits or Limits()
        self.clock = clock
        self._listeners: list[asyncio.Server] = []
        self._connections: dict[Peer, _ServerConnection[Taken, Sent]] = {}
        self._waiting: list[_ServerConnection[Taken, Sent]] = []  # with something to write
        self._peer_count = 0
        self._is_full = False
        self._next_warning: dict[str, float] = {}  # by protocol
        self._unsent = 0  # upper bound of the bytes in sockets' buffers
        self._unfinished = 0
        self._end_of_turn: asyncio.Handle | None = None
        self.turn_end = 0.0
        """Until when commands are handled (s, of the loop), as far as is known: then ask whether the turn is over."""
        self.handles_one = False
        """Whether the only command of a read is being handled: what it causes elsewhere has nothing to wait for."""
        self._is_turn_watched = False
        self._handled_in_turn = 0  # connections, since the turn is watched
        self._is_busy = False  # the last watched turn handled more than a few
        self._late: collections.deque[_ServerConnection[Taken, Sent]] = collections.deque()  # for later turns
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0
        self._no_tick_before = 0
        self._sweeper: asyncio.TimerHandle | None = None
        self._to_sweep: list[_ServerConnection[Taken, Sent]] = []
        self._all_gone: asyncio.Event | None = None

    # For protocols

    @abstractmethod
    def new_frames(self) -> FrameDecoder[Taken]:
        """Return a decoder for the stream of a new connection."""

    @abstractmethod
    def dispatch(self, commands: collections.deque[Taken], peer: Peer, now: int) -> None:
        """Handle the first of the commands that were received, or the first few together, and ``send`` the results.

        Handled ones are removed. Must not raise.
        """

    @abstractmethod
    def encode(self, command: Sent) -> list[Buffer]:
        """Return the bytes of a command."""

    def stranger(self, data: bytes | bytearray) -> str | None:  # noqa: ARG002
        """Return the other protocol of a connection by its first bytes, None if it is unknown."""
        return None

    def backed_up(self, peer: Peer, is_backed_up: bool) -> None:
        """Note that a peer does not read, or reads again."""

    # For its owner

    async def listen(self, host: str, port: int, tls: TlsSettings | None = None) -> int:
        """Listen on a port, 0 for a free one, and return its number; may be called several times.

        ``tls`` is for connections to this port only, if it differs from that of the server.

        Raises:
            UnavailableError: the port is taken, or the host has no such address.
            NotPermittedError: this user may not use the port.
        """
        self.loop = asyncio.get_running_loop()
        try:
            listener = await self.loop.create_server(
                lambda: _ServerConnection(self, tls or self.tls), host, port, backlog=_TAKEN_AT_ONCE
            )
        except OSError as error:
            raise cannot_listen(host, port, error) from error
        for sock in listener.sockets:
            with socket.socket(fileno=os.dup(sock.fileno())) as same:
                same.listen(_BACKLOG)
        self._listeners.append(listener)
        if self._sweeper is None:
            self._sweep()
        self.turn(self.clock())
        return int(listener.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening, send pending data, and end all connections."""
        for listener in self._listeners:
            listener.close()
        for handle in (self._sweeper, self._timer, self._end_of_turn):
            if handle:
                handle.cancel()
        self._all_gone = asyncio.Event()
        if (due := self.rules.next_tick(self.clock())) is not None and due <= self.clock():
            self._finish_turn()
        for connection in [*self._connections.values()]:
            connection.flush()
            connection.transport.close()
        if self._connections:
            try:
                async with asyncio.timeout(_STOP_SECONDS):
                    await self._all_gone.wait()
            except TimeoutError:
                for connection in [*self._connections.values()]:
                    connection.transport.abort()
                await self._all_gone.wait()

    def turn_now(self) -> None:
        """Call ``tick`` and write the results before this returns, unless that is about to be done anyway."""
        if self._end_of_turn is None and self._all_gone is None:
            self._finish_turn()

    def turn_soon(self) -> None:
        """Call ``tick`` soon, and write the results; only in the event loop."""
        if self._end_of_turn is None and self._all_gone is None:
            self._end_of_turn = self.loop.call_soon(self._finish_turn)

    def write_now(self, call: Callable[[int], Iterable[tuple[Peer, Sent]]]) -> None:
        """Send what a call with the time returns before this returns: what else is due waits for its turn."""
        now = self.clock()
        self._call(lambda: call(now), now)
        self._flush()

    def catch_up(self, now: int) -> None:
        """Do everything that is due by ``now``, to which the clock has jumped, and write the results."""
        self._finish_turn()
        while self._no_tick_before <= now and (due := self.rules.next_tick(now)) is not None and due <= now:
            self._finish_turn()

    def send(self, outgoing: Iterable[tuple[Peer, Sent]]) -> None:
        """Send commands, each together with other pending data for its peer."""
        for peer, command in outgoing:
            if connection := self._connections.get(peer):
                connection.put(self.encode(command))

    def end(self, peer: Peer, reason: str) -> None:
        """End a connection; unsent data is dropped."""
        if connection := self._connections.get(peer):
            connection.end(reason)

    # For its connections

    def opened(self, connection: "_ServerConnection[Taken, Sent]", address: Any) -> Peer:
        """Add a connection and return its peer."""
        self._peer_count += 1
        host, port = address[:2] if isinstance(address, tuple) else ("", 0)  # a client that is gone has no address
        peer = Peer(self._peer_count, str(host).removeprefix("::ffff:"), port)
        self._connections[peer] = connection
        return peer

    def check_room(self, connection: "_ServerConnection[Taken, Sent]") -> None:
        """End a new connection if there are too many; the first time logs a warning."""
        if len(self._connections) <= self.limits.connections:
            return
        connection.end("too many connections")
        if not self._is_full:
            self._is_full = True
            log.warning(
                "%s was refused: there are %d connections, the limit set by the number of open files (ulimit -n)",
                connection.peer,
                self.limits.connections,
            )

    def say_of_stranger(self, protocol: str, peer: Peer) -> None:
        """Warn of a client of another protocol, once a minute for each protocol, as it may retry endlessly."""
        now = self.loop.time()
        if now >= self._next_warning.get(protocol, now):
            self._next_warning[protocol] = now + _WARNED_SECONDS
            log.warning("%s was refused: it speaks %s", peer.address, protocol)

    def lost(self, connection: "_ServerConnection[Taken, Sent]", unfinished: int) -> None:
        """Remove a connection that has ended."""
        del self._connections[connection.peer]
        if len(self._connections) < self.limits.connections:
            self._is_full = False
        self._unsent -= connection.unsent
        self._unfinished -= unfinished
        now = self.clock()
        self._call(lambda: self.rules.closed(connection.peer, now), now)
        if self._all_gone is None:
            self.turn(now)
        elif not self._connections:
            self._all_gone.set()

    def is_turn_over(self, time: float) -> bool:
        """Return whether no time is left; where ``turn_end`` has passed, another turn may have begun unnoticed."""
        if time > self.turn_end:
            self._watch_turn(time)
        return time > self.turn_end

    def handle_later(self, connection: "_ServerConnection[Taken, Sent]") -> None:
        """Continue a connection in a later turn of the loop, after others that have waited longer."""
        self._late.append(connection)
        self._watch_turn(self.loop.time())

    def _watch_turn(self, time: float) -> None:
        if not self._is_turn_watched:
            self._is_turn_watched = True
            self.turn_end = max(time, self.turn_end) + _TURN_SECONDS - _UNWATCHED_SECONDS
            self.loop.call_soon(self._new_turn)  # before whatever is received in the next turn

    def _new_turn(self) -> None:
        self._is_turn_watched = False
        time = self.loop.time()
        self.turn_end = time + _UNWATCHED_SECONDS
        self._is_busy = self._handled_in_turn > _FEW
        if self._handled_in_turn:
            self._handled_in_turn = 0
            self.turn(self.clock(), at_once=True)
        for _ in range(len(self._late)):
            time = self.loop.time()
            if self.is_turn_over(time):
                break
            self._late.popleft().go_on()
        if self._late:
            self._watch_turn(time)

    def wants_to_write(self, connection: "_ServerConnection[Taken, Sent]") -> None:
        """Note that there is something to write to a connection."""
        self._waiting.append(connection)

    def handled(self, now: int) -> None:
        """Let what was handled have its effects on others: soon, once for all connections of a busy turn."""
        if self._is_busy and not self._is_turn_watched:
            self._watch_turn(self.loop.time())
        if self._is_turn_watched:
            self._handled_in_turn += 1
        else:
            self.turn(now)

    def turn(self, now: int, *, at_once: bool = False) -> None:
        """Write pending data, and schedule the next tick of the rules."""
        if self._end_of_turn is not None or self._all_gone is not None:
            return
        due = self.rules.next_tick(now)
        if due is not None and due < self._no_tick_before:
            due = self._no_tick_before
        if self._waiting or (due is not None and due <= now):
            if at_once:
                self._finish_turn()
            else:
                self.turn_soon()
        elif due is not None and (self._timer is None or due < self._timer_due):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_due = due
            self._timer = self.loop.call_later((due - now) / 1000, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.turn(self.clock())

    def _finish_turn(self) -> None:
        now, time = self.clock(), self.loop.time()
        end = time + _TICK_SECONDS
        if time > self.turn_end:
            self._watch_turn(time)  # what is due is part of it
        for _ in range(_MAX_TICKS):
            if now < self._no_tick_before:
                break
            self._call(lambda: self.rules.tick(now), now)
            due = self.rules.next_tick(now)
            if due is None or due > now or self.loop.time() > end:
                break
        self._flush()
        self._end_of_turn = None
        self.turn(now)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for connection in waiting:
            connection.flush()

    def _call(self, call: Callable[[], Iterable[tuple[Peer, Sent]]], now: int) -> None:
        try:
            self.send(call())
        except Exception:
            self._no_tick_before = now + _AFTER_FAULT_MS
            log.exception("internal error")

    # Bounds

    def unfinished_changed(self, difference: int) -> None:
        """Count bytes of incomplete frames; if there are too many, end the connection that holds most."""
        self._unfinished += difference
        if self._unfinished > self.limits.unfinished_in_all:
            worst = max(self._connections.values(), key=lambda connection: connection.unfinished)
            worst.end(f"{worst.unfinished:,} bytes of one unfinished frame, too many in total")

    def unsent_changed(self, connection: "_ServerConnection[Taken, Sent]", size: int) -> None:
        """Count unsent bytes; if there are too many, end the connection that holds most."""
        self._unsent += size - connection.unsent
        connection.unsent = size
        if size > self.limits.unsent:
            connection.end(f"{size:,} unread bytes are waiting")
        elif self._unsent > self.limits.unsent_in_all:
            self._count_unsent()
            if self._unsent > self.limits.unsent_in_all:
                worst = max(self._connections.values(), key=lambda connection: connection.unsent)
                worst.end(f"{worst.unsent:,} unread bytes are waiting, too many in total")

    def _count_unsent(self) -> None:
        for connection in self._connections.values():
            self._look_at_unsent(connection)

    def _look_at_unsent(self, connection: "_ServerConnection[Taken, Sent]") -> None:
        size = connection.transport.get_write_buffer_size()
        if size != connection.unsent:
            connection.moved = True
            self._unsent += size - connection.unsent
            connection.unsent = size

    def _sweep(self) -> None:
        """End connections that have been idle for too long; looks at some of them in each turn of the loop."""
        if not self._to_sweep:
            self._to_sweep = [*self._connections.values()]
        now = self.loop.time()
        looked, self._to_sweep = self._to_sweep[-_SWEPT_AT_ONCE:], self._to_sweep[:-_SWEPT_AT_ONCE]
        for connection in looked:
            if connection.peer not in self._connections:
                continue
            self._look_at_unsent(connection)
            if connection.moved:
                connection.moved = False
                connection.last_moved = now
            elif now - connection.last_moved >= self.limits.idle_seconds:
                connection.end("idle")
        interval = 0 if self._to_sweep else min(_SWEEP_SECONDS, self.limits.idle_seconds / 4)
        self._sweeper = self.loop.call_later(interval, self._sweep)


class _ServerConnection(asyncio.Protocol, Generic[Taken, Sent]):
    """The server's side of one connection."""

    __slots__ = (
        "_first",
        "_frames",
        "_has_more",
        "_is_deaf",
        "_is_paused",
        "_is_reading",
        "_out",
        "_parsed",
        "_server",
        "_tls",
        "_tls_settings",
        "last_moved",
        "moved",
        "peer",
        "transport",
        "unfinished",
        "unsent",
    )

    def __init__(self, server: StreamServer[Taken, Sent], tls: TlsSettings) -> None:
        self._server = server
        self._tls_settings = tls
        self._frames = server.new_frames()
        self._parsed: collections.deque[Taken] = collections.deque()  # not handled yet
        self._out: list[Buffer] = []
        self._tls: TlsServerSide | None = None
        self._first = True
        self._is_reading = False
        self._is_paused = False  # reading is paused
        self._is_deaf = False  # the peer does not read
        self._has_more = False  # some of the received data has not been handled yet
        self.unsent = 0
        self.unfinished = 0
        self.moved = True
        self.last_moved = 0.0

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(self._server.limits.high_water)
        self.peer = self._server.opened(self, transport.get_extra_info("peername"))
        self._server.check_room(self)

    def data_received(self, data: bytes) -> None:
        self.moved = True
        if self._first:
            self._first = False
            if not self._begin(data[0]):
                return
        if self._tls is not None:
            data = self._decrypt(data)
        self._frames.receive(data)
        server, time = self._server, self._server.loop.time()
        if time > server.turn_end and server.is_turn_over(time):
            self._has_more = True
            self._handle_later()
        else:
            self._handle()

    def _handle(self) -> None:
        """Handle received commands until the turn ends; the rest is handled after other connections."""
        server, frames, peer = self._server, self._frames, self.peer
        now, time = server.clock(), server.loop.time
        self._is_reading, self._has_more = True, False
        commands, fault, is_end = frames.commands(), "", False
        parsed = self._parsed
        while not self._has_more:
            if not parsed:
                try:
                    parsed.extend(itertools.islice(commands, server.parsed_at_once))
                except FormatError as error:
                    fault = str(error)
                is_end = len(parsed) < server.parsed_at_once
            server.handles_one = len(parsed) == 1
            while parsed:
                server.dispatch(parsed, peer, now)
                if (passed := time()) > server.turn_end and server.is_turn_over(passed) and not fault:
                    break
            if is_end and not parsed:
                break
            self._has_more = bool(parsed) or server.is_turn_over(time()) or self._is_much()
        commands.close()
        self._is_reading = server.handles_one = False
        if fault:
            self.flush()
            if protocol := server.stranger(frames.pending):
                server.say_of_stranger(protocol, peer)
            self.end(fault, abort=False)
            return
        if frames.pending_size != self.unfinished:
            difference = frames.pending_size - self.unfinished
            self.unfinished = frames.pending_size
            server.unfinished_changed(difference)
        self.flush()
        server.handled(now)
        if self._has_more:
            self._handle_later()

    def _handle_later(self) -> None:
        """Handle the rest of what was received in a later turn of the loop; nothing is read before, nor its end."""
        self._pause()
        if not self._is_deaf:
            self._server.handle_later(self)

    def _is_much(self) -> bool:
        return sum(map(len, self._out)) > _WRITTEN_AT_ONCE

    def go_on(self) -> None:
        """Handle the rest of the received commands until the turn ends, and continue reading."""
        if self._is_deaf or self.transport.is_closing():
            return
        if self._has_more:
            self._handle()
        if not (self._has_more or self._is_deaf or self.transport.is_closing()):
            self._is_paused = False
            self.transport.resume_reading()

    def _pause(self) -> None:
        if not (self._is_paused or self.transport.is_closing()):
            self._is_paused = True
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        # A peer that does not read answers may not send more requests.
        self._is_deaf = not self._server.reads_on
        if self._is_deaf:
            self._pause()
        self._server.backed_up(self.peer, True)

    def resume_writing(self) -> None:
        self._is_deaf = False
        self._server.backed_up(self.peer, False)
        self._server.handle_later(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._out.clear()
        self._server.lost(self, self.unfinished)

    # For the server

    def put(self, buffers: list[Buffer]) -> None:
        """Keep a frame for the next ``flush``."""
        if not self._out and not self._is_reading:  # otherwise it is written once all received commands are handled
            self._server.wants_to_write(self)
        self._out += buffers

    def flush(self) -> None:
        """Write pending frames."""
        out = self._out
        if not out or self.transport.is_closing():
            return
        self._out = []
        if self._tls is not None:
            self._tls.send(b"".join(out))
            self.transport.write(self._tls.to_send())
        else:  # writelines never pauses the protocol in 3.12.0 to 3.12.8 and 3.13.0 to 3.13.1 (CPython, gh-127655)
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))
        if not self.unsent:
            self.moved = True
        if (size := self.transport.get_write_buffer_size()) or self.unsent:
            self._server.unsent_changed(self, size)

    def end(self, reason: str, *, abort: bool = True) -> None:
        """End this connection; without ``abort`` written data is still sent."""
        log.info("connection of %s closed: %s", self.peer, reason)
        if abort:
            self.transport.abort()
        else:
            self.transport.close()

    def _begin(self, first: int) -> bool:
        """Decide by the first byte whether this is TLS, and whether it is allowed."""
        tls = self._tls_settings
        if first == HANDSHAKE and tls.context is not None:
            self._tls = TlsServerSide(tls.context)
        elif tls.mode is TlsMode.ENFORCING:
            self._server.say_of_stranger("no TLS, which is required here", self.peer)
            self.end("TLS is required here")
            return False
        return True

    def _decrypt(self, data: bytes) -> bytes:
        assert self._tls is not None
        try:
            plain = self._tls.receive(data)
        except ssl.SSLError as error:
            plain = b""
            self.end(f"TLS: {error.reason or error}", abort=False)
        if (answer := self._tls.to_send()) and not self.transport.is_closing():
            self.transport.write(answer)
        if self._tls.is_closed:
            self.transport.close()
        return plain
