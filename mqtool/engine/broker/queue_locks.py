"""Exclusive access of consumers to queues: orderly consumers lock their queues for a while.

(RocketMQ: ``RebalanceLockManager``.)
"""

from collections.abc import Iterable
from typing import NamedTuple

from mqtool.engine.broker.limits import MAX_LOCKS, check_name, check_room
from mqtool.formats.bodies import MessageQueue, QueueLocks

LIFE_MS = 60_000
"""A lock that was not renewed for this long may be taken by another consumer."""
_LOOK_INTERVAL_MS = 1000


class _Lock(NamedTuple):
    client_id: str
    since: int

    def is_held(self, now: int) -> bool:
        return now - self.since <= LIFE_MS


class LockTable:
    """The locks of all groups; kept only in memory, so that after a restart each goes to the first consumer."""

    def __init__(self) -> None:
        self._locks: dict[str, dict[MessageQueue, _Lock]] = {}
        self._count = 0
        self._next_look = 0

    def lock(self, asked: QueueLocks, now: int) -> list[MessageQueue]:
        """Lock queues for a consumer; return the queues that it holds now.

        Raises:
            LimitError: there are too many locks, or a name is too long; nothing is locked.
        """
        for name in (asked.group, asked.client_id, *(queue.topic for queue in asked.queues)):
            check_name(name, "name in a lock")
        for queue in asked.queues:
            check_name(queue.broker_name, "name in a lock")
        locks = self._locks.get(asked.group, {})
        new = sum(queue not in locks for queue in asked.queues)
        if self._count + new > MAX_LOCKS:
            if now >= self._next_look:
                self._next_look = now + _LOOK_INTERVAL_MS
                self._forget_old(now)
            check_room(self._count, new, MAX_LOCKS, "queue locks")
        if not asked.queues:
            return []
        locks = self._locks.setdefault(asked.group, {})
        granted = []
        for queue in asked.queues:
            present = locks.get(queue)
            self._count += present is None
            if present is None or present.client_id == asked.client_id or not present.is_held(now):
                locks[queue] = _Lock(asked.client_id, now)
                granted.append(queue)
        return granted

    def unlock(self, asked: QueueLocks) -> None:
        """Unlock those of the named queues that a consumer holds."""
        locks = self._locks.get(asked.group, {})
        for queue in asked.queues:
            if queue in locks and locks[queue].client_id == asked.client_id:
                del locks[queue]
                self._count -= 1
        if not locks:
            self._locks.pop(asked.group, None)

    def _forget_old(self, now: int) -> None:
        for group, locks in list(self._locks.items()):
            held = {queue: lock for queue, lock in locks.items() if lock.is_held(now)}
            self._count -= len(locks) - len(held)
            if held:
                self._locks[group] = held
            else:
                del self._locks[group]

    def is_any_held(self, group: str, now: int) -> bool:
        """Return whether a group consumes any queue in order."""
        return any(lock.is_held(now) for lock in self._held(group))

    def _held(self, group: str) -> Iterable[_Lock]:
        return self._locks.get(group, {}).values()
