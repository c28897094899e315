"""Answers that wait until what they acknowledge is on the disk (``flushDiskType=SYNC_FLUSH``).

Whoever runs the broker flushes the store as long as ``is_any`` says so, and lets it tick after that.
(Rules: store.md 8.4. RocketMQ: ``GroupCommitService``.)
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from mqtool.engine.broker.saves import Saves
from mqtool.engine.broker.state import BrokerState
from mqtool.formats.codes import ResponseCode
from mqtool.formats.remoting import Outgoing, Peer, RemotingCommand

if TYPE_CHECKING:
    from mqtool.engine.store.message_store import MessageStore


class _Awaited(NamedTuple):
    flush_offset: int
    changes: int  # of tables, that are to be on the disk as well
    deadline: int  # ms
    peer: Peer
    answer: RemotingCommand


class AwaitedFlushes:
    """A clockwork that gives out answers in the order of their messages, and those that wait too long with code 10.

    ``on_wanted`` is called when there is something to flush and was nothing before.
    """

    def __init__(self, store: "MessageStore", state: BrokerState, saves: Saves) -> None:
        self.on_wanted: Callable[[], None] | None = None
        self._store = store
        self._state = state
        self._saves = saves
        self._waiting: deque[_Awaited] = deque()

    @property
    def is_any(self) -> bool:
        """Whether an answer waits."""
        return bool(self._waiting)

    def put(self, flush_offset: int, peer: Peer, answer: RemotingCommand, now: int) -> None:
        """Keep an answer until the log is flushed up to an address."""
        deadline = now + self._state.settings.flush_timeout_ms
        self._waiting.append(_Awaited(flush_offset, self._saves.changes_of_request, deadline, peer, answer))
        if len(self._waiting) == 1 and self.on_wanted is not None:
            self.on_wanted()

    def tick(self, now: int) -> Iterator[Outgoing]:
        """Give out what is flushed, or has waited too long: that may not be on the disk, but it is stored."""
        store, waiting = self._store, self._waiting
        while waiting:
            first = waiting[0]
            if first.flush_offset > store.flushed_offset:
                if store.failure is None and now < first.deadline:
                    break
                first.answer.code = ResponseCode.FLUSH_DISK_TIMEOUT
            waiting.popleft()
            yield from self._saves.hold(first.changes, first.peer, first.answer)

    def next_tick(self, now: int) -> int | None:
        """Return when the first answer is due."""
        if not self._waiting:
            return None
        first = self._waiting[0]
        store = self._store
        return now if first.flush_offset <= store.flushed_offset or store.failure is not None else first.deadline
