"""Requests of a broker to its clients, and what becomes of their answers."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from mqtool.errors import UnavailableError
from mqtool.formats.remoting import ONEWAY, Outgoing, Peer, RemotingCommand

LOOK_INTERVAL_MS = 500
"""How often overdue answers are looked for."""

MOST_WAITING = 64
"""Answers that may be expected of one client at a time."""

Then = Callable[[RemotingCommand | None, int], Iterable[Outgoing]]
"""What to do with an answer, None where none has come in time, and the time in ms."""


class _Pending(NamedTuple):
    due: int
    then: Then


class Calls:
    """Numbers the requests that a broker makes, and knows which of them wait for an answer."""

    def __init__(self) -> None:
        self._opaque = 0
        self._pending: dict[tuple[Peer, int], _Pending] = {}
        self._waiting: Counter[Peer] = Counter()  # how many of them are expected of whom
        self._next_look = 0

    def oneway(self, code: int, ext_fields: Mapping[str, str], body: bytes = b"") -> RemotingCommand:
        """Return a request that wants no answer."""
        return RemotingCommand(code, ONEWAY, self._next(), dict(ext_fields), body)

    def call(self, peer: Peer, request: RemotingCommand, due: int, then: Then) -> Outgoing:
        """Return a request to a client; ``then`` gets its answer, or None when it has not come by ``due`` (ms).

        Raises:
            UnavailableError: too many answers of this client are expected already.
        """
        waiting = self._waiting[peer]
        if waiting >= MOST_WAITING:
            raise UnavailableError(f"{peer} has not answered {MOST_WAITING} requests yet: try again later")
        self._waiting[peer] = waiting + 1
        request.opaque = self._next()
        self._pending[peer, request.opaque] = _Pending(due, then)
        return peer, request

    def answered(self, answer: RemotingCommand, peer: Peer, now: int) -> Iterable[Outgoing]:
        """Take the answer of a client; one that nobody waits for is dropped."""
        if (peer, answer.opaque) not in self._pending:
            return ()
        return self._take(peer, answer.opaque).then(answer, now)

    def closed(self, peer: Peer, now: int) -> Iterable[Outgoing]:
        """Give up what was asked of a client that has gone."""
        return self._give_up([key for key in self._pending if key[0] is peer], now)

    def tick(self, now: int) -> Iterable[Outgoing]:
        """Give up what is overdue."""
        if not self._pending or now < self._next_look:
            return ()
        self._next_look = now + LOOK_INTERVAL_MS
        return self._give_up([key for key, pending in self._pending.items() if pending.due <= now], now)

    def next_tick(self, now: int) -> int | None:
        """Return when to look for what is overdue."""
        return max(self._next_look, now) if self._pending else None

    def _give_up(self, keys: list[tuple[Peer, int]], now: int) -> list[Outgoing]:
        return [outgoing for peer, opaque in keys for outgoing in self._take(peer, opaque).then(None, now)]

    def _take(self, peer: Peer, opaque: int) -> _Pending:
        self._waiting[peer] -= 1
        if not self._waiting[peer]:
            del self._waiting[peer]
        return self._pending.pop((peer, opaque))

    def _next(self) -> int:
        self._opaque = self._opaque % 0x7FFFFFFF + 1  # some clients take 0 for none
        return self._opaque
