"""A broker: what it does with a request, and what the passing of time asks of it.

``Broker`` holds the tables that the processors share and knows which processor a code belongs to. Whatever works by
time is a ``Clockwork`` and stands in ``clockworks``.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mqtool.formats.codes import ResponseCode
from mqtool.formats.remoting import Outgoing, Peer, RemotingCommand

if TYPE_CHECKING:
    from mqtool.engine.store.message_store import MessageStore


class Request(NamedTuple):
    """A command from a client, and when it came."""

    command: RemotingCommand
    peer: Peer
    now: int


class Clockwork(Protocol):
    """Something that works by time."""

    def tick(self, now: int) -> Iterable[Outgoing]:
        """Do what is due; return what to send."""
        ...

    def next_tick(self, now: int) -> int | None:
        """Return when something is due, None for never."""
        ...


class Broker:
    """The rules of a broker."""

    def __init__(self, store: "MessageStore", now: int) -> None:  # noqa: ARG002
        self.store = store
        self.processors: dict[int, Processor] = {}
        self.clockworks: list[Clockwork] = []
        self.on_closed: list[Callable[[Peer, int], Iterable[Outgoing]]] = []

    def handle(self, command: RemotingCommand, peer: Peer, now: int) -> Iterable[Outgoing]:
        """Return what to send for a command."""
        processor = self.processors.get(command.code)
        if processor is None:
            remark = f" request type {command.code} not supported"
            return ((peer, command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)),)
        return processor(self, Request(command, peer, now))

    def closed(self, peer: Peer, now: int) -> Iterable[Outgoing]:
        """Return what to send when a connection has ended."""
        return [outgoing for tell in self.on_closed for outgoing in tell(peer, now)]

    def tick(self, now: int) -> Iterable[Outgoing]:
        """Do what is due."""
        self.store.tick(now)
        return [outgoing for clockwork in self.clockworks for outgoing in clockwork.tick(now)]

    def next_tick(self, now: int) -> int | None:
        """Return when something is due."""
        return min((at for one in self.clockworks if (at := one.next_tick(now)) is not None), default=None)


Processor = Callable[[Broker, Request], Iterable[Outgoing]]
