"""What the doors of a broker share: a session for each connection, an outbox, and ticks."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar

from mqtool.engine.broker.broker import BrokerController
from mqtool.engine.broker.outbox import Outbox
from mqtool.engine.broker.sessions import Session
from mqtool.formats.peer import Peer

Sent = TypeVar("Sent")
SessionOf = TypeVar("SessionOf", bound=Session)


class Door(ABC, Generic[Sent, SessionOf]):
    """Translates between the commands of a protocol and a broker: rules of a ``StreamServer``.

    A broker may have several. What one of them causes for the peers of another waits in the outbox of
    the latter, whose ``on_first`` has it fetched.
    """

    def __init__(self, broker: BrokerController) -> None:
        self.broker = broker
        self.outbox = self.new_outbox()
        self._sessions: dict[Peer, SessionOf] = {}

    def new_outbox(self) -> Outbox[Sent]:
        """Return where its sessions put what must be sent."""
        return Outbox()

    @abstractmethod
    def new_session(self, peer: Peer) -> SessionOf:
        """Return a session for a new connection."""

    def session(self, peer: Peer) -> SessionOf:
        """Return the session of a connection."""
        session = self._sessions.get(peer)
        if session is None:
            session = self._sessions[peer] = self.new_session(peer)
        return session

    def outgoing(self) -> Iterable[tuple[Peer, Sent]]:
        """Return what must be sent by now."""
        return self.outbox.take()

    def closed(self, peer: Peer, now: int) -> Iterable[tuple[Peer, Sent]]:
        """Return what to send when a connection has ended."""
        session = self._sessions.pop(peer, None)
        if session is not None:
            self.broker.closed(session, now)
        return self.outbox.take()

    def confirmed(self, now: int) -> Iterable[tuple[Peer, Sent]]:
        """Return what to send when slaves have more of the log: producers wait for that and for nothing else."""
        self.broker.group_commit.tick(now)
        return self.outgoing()

    def tick(self, now: int) -> Iterable[tuple[Peer, Sent]]:
        """Do what is due."""
        self.broker.tick(now)
        return self.outbox.take()

    def next_tick(self, now: int) -> int:
        """Return when something is due: immediately if something must be sent."""
        return now if self.outbox.waiting else self.broker.next_tick(now)
