"""What a door has to send and has not given to its server yet."""

from collections.abc import Callable
from typing import Generic, TypeVar

from mqtool.formats.peer import Peer

Sent = TypeVar("Sent")


class Outbox(Generic[Sent]):
    """What must be sent, in its order; ``on_first`` is called when there is something and was nothing before."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Peer, Sent]] = []
        self.on_first: Callable[[], None] | None = None

    def put(self, peer: Peer, command: Sent) -> None:
        """Have something sent."""
        if not self.waiting and self.on_first is not None:
            self.on_first()
        self.waiting.append((peer, command))

    def take(self) -> list[tuple[Peer, Sent]]:
        """Return what must be sent."""
        waiting, self.waiting = self.waiting, []
        return waiting
