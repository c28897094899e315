"""Pulls that wait for messages: a consumer that has read everything is answered when there is more, or at its deadline.

(Rules: remoting.md 5.6. RocketMQ: ``PullRequestHoldService``.)
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from mqtool.engine.store.live_pull import Wanted
from mqtool.formats.remoting import Outgoing, Peer, RemotingCommand

LOOK_INTERVAL_MS = 1000
"""How often deadlines are looked at; a broker of RocketMQ does so every 5 s."""
MOST_PARKED = 100_000
"""With so many waiting, another one is answered at once."""

QueueKey = tuple[str, int]
"""Topic and queue id."""


class ParkedPull(NamedTuple):
    """One pull that waits."""

    key: QueueKey
    offset: int  # the queue's next one when it came: the pull wants what comes there, or behind
    wanted: Wanted
    peer: Peer
    deadline: int  # ms
    answer: Callable[[bool], RemotingCommand | None]
    """Answer it, given whether its time is up; None: it has to wait on."""


class ParkedPulls:
    """The pulls that wait, by queue.

    What has been woken is answered by the next ``tick``, which is due at once: messages that arrive together are
    answered together.
    """

    def __init__(self) -> None:
        self._by_queue: dict[QueueKey, dict[int, ParkedPull]] = {}
        self._by_peer: dict[Peer, dict[int, ParkedPull]] = {}
        self._woken: dict[int, ParkedPull] = {}
        self._number = 0
        self._count = 0
        self._next_look = 0

    def __len__(self) -> int:
        """Return how many pulls wait."""
        return self._count

    def park(self, pull: ParkedPull) -> bool:
        """Let a pull wait; tell whether there was room."""
        if self._count >= MOST_PARKED:
            return False
        self._number += 1
        self._count += 1
        self._by_queue.setdefault(pull.key, {})[self._number] = pull
        self._by_peer.setdefault(pull.peer, {})[self._number] = pull
        return True

    def arrived(self, topic: str, queue_id: int, next_offset: int, tags_code: int, now: int) -> None:  # noqa: ARG002
        """Wake the pulls that want a message which has just got into a queue.

        Args:
            topic: of the queue.
            queue_id: of the queue.
            next_offset: of the queue, one past the message.
            tags_code: of the message.
            now: the time, in ms.
        """
        waiting = self._by_queue.get((topic, queue_id))
        if waiting:
            for number, pull in waiting.items():
                if next_offset > pull.offset and pull.wanted.matches_code(tags_code):
                    self._woken[number] = pull

    def wake(self, topic: str, queue_id: int) -> None:
        """Have all pulls of a queue looked at again."""
        self._woken |= self._by_queue.get((topic, queue_id), {})

    def closed(self, peer: Peer, now: int) -> Iterable[Outgoing]:  # noqa: ARG002
        """Forget the pulls of a connection that has ended."""
        for number, pull in list(self._by_peer.get(peer, {}).items()):
            self._drop(number, pull)
        return ()

    def tick(self, now: int) -> Iterable[Outgoing]:
        """Answer the pulls that have been woken, and those whose time is up."""
        out: list[Outgoing] = []
        if self._woken:
            woken, self._woken = self._woken, {}
            for number, pull in woken.items():
                self._answer(number, pull, False, out)
        if self._count and now >= self._next_look:
            self._next_look = now + LOOK_INTERVAL_MS
            due = [
                (number, pull)
                for waiting in self._by_queue.values()
                for number, pull in waiting.items()
                if pull.deadline <= now
            ]
            for number, pull in due:
                self._answer(number, pull, True, out)
        return out

    def next_tick(self, now: int) -> int | None:
        """Return when there are pulls to answer."""
        if self._woken:
            return now
        return max(self._next_look, now) if self._count else None

    def _answer(self, number: int, pull: ParkedPull, is_due: bool, out: list[Outgoing]) -> None:
        answer = pull.answer(is_due)
        if answer is not None:
            self._drop(number, pull)
            out.append((pull.peer, answer))

    def _drop(self, number: int, pull: ParkedPull) -> None:
        self._woken.pop(number, None)
        self._count -= 1
        for table, key in ((self._by_queue, pull.key), (self._by_peer, pull.peer)):
            pulls = table[key]  # type: ignore[index]
            del pulls[number]
            if not pulls:
                del table[key]  # type: ignore[arg-type]
