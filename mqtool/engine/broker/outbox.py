"""Commands that a door has to send and has not passed to its server yet."""

from collections.abc import Callable
from typing import Generic, TypeVar

from mqtool.formats.peer import Peer

Sent = TypeVar("Sent")


class Outbox(Generic[Sent]):
    """Commands to send, in order; ``on_first`` is called when the first one is added to an empty outbox."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Peer, Sent]] = []
        self.on_first: Callable[[], None] | None = None

    def put(self, peer: Peer, command: Sent) -> None:
        """Add a command to send."""
        if not self.waiting and self.on_first is not None:
            self.on_first()
        self.waiting.append((peer, command))

    def take(self) -> list[tuple[Peer, Sent]]:
        """Remove and return all commands."""
        waiting, self.waiting = self.waiting, []
        return waiting
