"""Requests that wait until their messages are safe: on disk (``flushDiskType=SYNC_FLUSH``), and on slaves.

The owner of the broker flushes the store while ``wants_flush`` is true, and calls ``tick`` after that; it also
calls ``tick`` when slaves have acknowledged more (``LiveLog.confirmed_offset``).
(Rules: store.md 8.4. RocketMQ: ``GroupCommitService``.)
"""

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING

from mqtool.engine.broker.sessions import Session
from mqtool.engine.broker.state import BrokerState
from mqtool.engine.broker.waiting_room import FLUSHES, Waiting, WaitingRoom

if TYPE_CHECKING:
    from mqtool.engine.replication.master import Master
    from mqtool.engine.store.message_store import MessageStore

_KEY, _DISK_KEY = "flush", "flush of the disk alone"


class Safety(enum.Enum):
    """Whether stored messages are safe."""

    SAFE = "safe"
    NOT_ON_DISK = "not on disk"
    NOT_WITH_OTHERS = "not on enough slaves"
    NO_OTHERS = "no others"


Told = Callable[[Safety, int], None]
"""Called with the result, and the time (ms)."""


class GroupCommit:
    """A ticker that answers waiting requests, in the order of their messages, when they are safe or it takes too long.

    ``on_wanted`` is called when there is something to flush again.
    """

    def __init__(self, store: "MessageStore", state: BrokerState, room: WaitingRoom) -> None:
        self.on_wanted: Callable[[], None] | None = None
        self.slaves: Master | None = None
        self._store = store
        self._state = state
        self._room = room

    @property
    def is_any(self) -> bool:
        """Whether requests wait."""
        return self._room.count(FLUSHES) > 0

    @property
    def wants_flush(self) -> bool:
        """Whether requests wait for the disk."""
        store = self._store
        return self.is_any and store.is_sync and store.log.flushed_offset < store.log.end_offset

    def is_safe(self, flush_offset: int) -> bool:
        """Return whether the log is safe up to an address; always true for 0."""
        return flush_offset <= 0 or flush_offset <= self._store.safe_offset

    def wait(self, flush_offset: int, session: Session, then: Told, now: int) -> None:
        """Call ``then`` with whether the log is safe up to an address: as soon as it is, or when that fails.

        The disk and slaves have a time limit each; if both fail the slaves are reported.
        """
        settings, slaves = self._state.settings, self.slaves
        disk_deadline = now + settings.flush_timeout_ms
        if not self._waits_for_slaves:
            self._wait_for_disk(_KEY, flush_offset, session, disk_deadline, then)
        elif slaves is not None and not slaves.may_get(flush_offset):
            self._go_on_without(Safety.NO_OTHERS, flush_offset, session, disk_deadline, then, now)
        else:

            def told(is_safe: bool, now: int) -> None:
                if is_safe:
                    then(Safety.SAFE, now)
                    return
                is_alone = (self._store.log.confirmed_offset or 0) < flush_offset
                why = Safety.NOT_WITH_OTHERS if is_alone else Safety.SAFE
                self._go_on_without(why, flush_offset, session, disk_deadline, then, now)

            self._add(_KEY, flush_offset, session, now + settings.slave_timeout_ms, told)

    def _go_on_without(
        self, why: Safety, flush_offset: int, session: Session, deadline: int, then: Told, now: int
    ) -> None:
        """Call ``then`` with the result for the slaves, once that for the disk is known."""
        store = self._store
        if not store.is_sync or flush_offset <= store.flushed_offset:
            then(why, now)
        elif now >= deadline or store.failure is not None:
            then(Safety.NOT_ON_DISK if why is Safety.SAFE else why, now)
        else:
            self._wait_for_disk(
                _DISK_KEY,
                flush_offset,
                session,
                deadline,
                lambda of_disk, now: then(of_disk if why is Safety.SAFE else why, now),
            )

    def _wait_for_disk(self, key: str, flush_offset: int, session: Session, deadline: int, then: Told) -> None:
        self._add(
            key,
            flush_offset,
            session,
            deadline,
            lambda is_safe, now: then(Safety.SAFE if is_safe else Safety.NOT_ON_DISK, now),
        )

    def _add(
        self, key: str, flush_offset: int, session: Session, deadline: int, notify: Callable[[bool, int], None]
    ) -> None:
        first = self._room.first(key)
        is_first = first is None or first.offset <= self._store.flushed_offset
        self._room.add(Waiting(FLUSHES, key, session, deadline, _give_up, notify, offset=flush_offset))
        if is_first and self._store.is_sync and self.on_wanted is not None:
            self.on_wanted()

    @property
    def _waits_for_slaves(self) -> bool:
        return self._store.log.confirmed_offset is not None

    def tick(self, now: int) -> None:
        """Answer requests whose messages are safe; all of them if nothing will ever be safe again."""
        if self.is_any:
            self._room.release(_KEY, self._store.safe_offset, True, now)
            self._room.release(_DISK_KEY, self._store.flushed_offset, True, now)
            if self._store.failure is not None:
                for key in (_KEY, _DISK_KEY):
                    self._room.release(key, 1 << 63, False, now)

    def next_tick(self, now: int) -> int | None:
        """Return when to check: immediately if the first is safe."""
        if not self.is_any:  # the common case, asked for after each request
            return None
        first, of_disk = self._room.first(_KEY), self._room.first(_DISK_KEY)
        store = self._store
        is_safe = first is not None and first.offset <= store.safe_offset
        is_on_disk = of_disk is not None and of_disk.offset <= store.flushed_offset
        return now if is_safe or is_on_disk or store.failure is not None else None


def _give_up(is_due: bool, now: int) -> bool | None:  # noqa: ARG001
    return False if is_due else None
