"""Those who wait until what they have stored is safe: on the disk (``flushDiskType=SYNC_FLUSH``), and with others.

Whoever runs the broker flushes the store as long as ``wants_flush`` says so, and lets it tick after that; whoever
learns what others have (``LiveLog.confirmed_offset``) lets it tick, too.
(Rules: store.md 8.4. RocketMQ: ``GroupCommitService``.)
"""

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING

from mqtool.engine.broker.sessions import Session
from mqtool.engine.broker.state import BrokerState
from mqtool.engine.broker.waiting_room import FLUSHES, Waiting, WaitingRoom

if TYPE_CHECKING:
    from mqtool.engine.store.message_store import MessageStore

_KEY = "flush"


class Safety(enum.Enum):
    """What became of what was stored."""

    SAFE = "safe"
    NOT_ON_DISK = "not on the disk"
    NOT_WITH_OTHERS = "not with others"


class AwaitedFlushes:
    """A clockwork that tells those who wait, in the order of their messages, whether it is so or takes too long.

    ``on_wanted`` is called when there is something to flush and was nothing before.
    """

    def __init__(self, store: "MessageStore", state: BrokerState, room: WaitingRoom) -> None:
        self.on_wanted: Callable[[], None] | None = None
        self._store = store
        self._state = state
        self._room = room

    @property
    def is_any(self) -> bool:
        """Whether somebody waits."""
        return self._room.count(FLUSHES) > 0

    @property
    def wants_flush(self) -> bool:
        """Whether somebody waits for the disk."""
        store = self._store
        return self.is_any and store.is_sync and store.log.flushed_offset < store.log.end_offset

    def is_safe(self, flush_offset: int) -> bool:
        """Tell whether the log is safe up to an address; nobody has to wait for 0."""
        return flush_offset <= 0 or flush_offset <= self._store.safe_offset

    def wait(self, flush_offset: int, session: Session, then: Callable[[Safety, int], None], now: int) -> None:
        """Have ``then`` told whether the log is safe up to an address: as soon as it is, or when that fails."""

        def told(is_safe: bool, now: int) -> None:
            confirmed = self._store.log.confirmed_offset
            is_alone = confirmed is not None and confirmed < flush_offset
            why_not = Safety.NOT_WITH_OTHERS if is_alone else Safety.NOT_ON_DISK
            then(Safety.SAFE if is_safe else why_not, now)

        deadline = now + self._state.settings.flush_timeout_ms
        first = self._room.first(_KEY)
        is_first = first is None or first.offset <= self._store.flushed_offset
        self._room.add(Waiting(FLUSHES, _KEY, session, deadline, _give_up, told, offset=flush_offset))
        if is_first and self.on_wanted is not None:
            self.on_wanted()

    def tick(self, now: int) -> None:
        """Tell those whose messages are safe; all of them where nothing ever will be again."""
        if self.is_any:
            self._room.release(_KEY, self._store.safe_offset, True, now)
            if self._store.failure is not None:
                self._room.release(_KEY, 1 << 63, False, now)

    def next_tick(self, now: int) -> int | None:
        """Return when to look: at once where the first is safe."""
        first = self._room.first(_KEY)
        is_ready = first and (first.offset <= self._store.safe_offset or self._store.failure is not None)
        return now if is_ready else None


def _give_up(is_due: bool, now: int) -> bool | None:  # noqa: ARG001
    return False if is_due else None
