"""The messages that a consumer has pulled from one queue and not finished yet.

(RocketMQ: ``ProcessQueue``, the thresholds of ``DefaultMQPushConsumer``.)
"""

import bisect
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

LOCK_LIFE_MS = 30_000
"""How long a consumer relies on its lock on a queue after the broker has granted it."""
PULL_LIFE_MS = 120_000
"""How long without a pull before a queue counts as stuck."""


class Received(Protocol):
    """The part of a message that is needed here."""

    @property
    def queue_offset(self) -> int:
        """Its number in the queue."""

    @property
    def body(self) -> bytes:
        """The body that the producer sent."""


Message = TypeVar("Message", bound=Received)


class ProcessQueue(Generic[Message]):
    """The unfinished messages of one queue, by queue offset.

    Concurrent consumers ``remove`` messages in any order. Orderly ones ``take`` the first messages, which are then in
    progress until ``commit`` or ``put_back``. ``count`` and ``size`` (of bodies, in bytes) include those.
    """

    def __init__(self, now: int) -> None:
        self.count = 0
        self.size = 0
        self.is_dropped = False
        """Whether the queue belongs to another consumer now; messages in progress no longer count."""
        self.locked_at: int | None = None
        self.pulled_at = now
        self.consumed_at = now
        self._waiting: dict[int, Message] = {}
        self._offsets: list[int] = []  # of these, in order
        self._under_way: dict[int, Message] = {}
        self._is_consuming = False
        self._max_offset = 0

    def __len__(self) -> int:
        """Return how many messages wait, without those in progress."""
        return len(self._waiting)

    @property
    def span(self) -> int:
        """The distance between the offsets of the first and the last waiting message."""
        return self._offsets[-1] - self._offsets[0] if self._offsets else 0

    @property
    def ends(self) -> tuple[int, int]:
        """The offsets of the first and the last waiting message; zeros if there are none."""
        return (self._offsets[0], self._offsets[-1]) if self._offsets else (0, 0)

    def put(self, messages: Iterable[Message]) -> bool:
        """Add pulled messages; those that already wait are skipped.

        Returns:
            Whether an orderly consumer has to be woken because none is working.
        """
        for message in messages:
            if message.queue_offset not in self._waiting:
                self._insert(message)
                self.count += 1
                self.size += len(message.body)
                self._max_offset = message.queue_offset
        if not self._waiting or self._is_consuming:
            return False
        self._is_consuming = True
        return True

    def _insert(self, message: Message) -> None:
        offset, offsets = message.queue_offset, self._offsets
        self._waiting[offset] = message
        if offsets and offset < offsets[-1]:
            bisect.insort(offsets, offset)
        else:
            offsets.append(offset)

    def remove(self, messages: Iterable[Message], now: int) -> int | None:
        """Finish messages.

        Returns:
            The offset to commit: of the first unfinished message, or after the last; None if nothing was waiting.
        """
        self.consumed_at = now
        if not self._waiting:
            return None
        removed = [message for message in messages if self._waiting.pop(message.queue_offset, None) is not None]
        if removed:
            self.count -= len(removed)
            self.size -= sum([len(message.body) for message in removed])
            self._forget([message.queue_offset for message in removed])
        return self._offsets[0] if self._offsets else self._max_offset + 1

    def _forget(self, gone: list[int]) -> None:
        """Remove offsets, which are mostly consecutive, from the waiting ones."""
        offsets = self._offsets
        start = bisect.bisect_left(offsets, gone[0])
        end = start + len(gone)
        if offsets[start:end] == gone:
            del offsets[start:end]
        else:
            for offset in gone:
                del offsets[bisect.bisect_left(offsets, offset)]

    def first(self, most: int) -> list[Message]:
        """Return the first waiting messages, in order."""
        return [self._waiting[offset] for offset in self._offsets[:most]]

    def take(self, most: int, now: int) -> list[Message]:
        """Return the first messages, in order; they are then in progress. If there are none, the work ends."""
        self.consumed_at = now
        offsets = self._offsets[:most]
        del self._offsets[:most]
        messages = {offset: self._waiting.pop(offset) for offset in offsets}
        self._under_way |= messages
        if not messages:
            self._is_consuming = False
        return list(messages.values())

    def commit(self) -> int | None:
        """Finish the messages in progress; return the offset to commit, None if there were none."""
        if not self._under_way:
            return None
        offset = max(self._under_way) + 1
        self.count -= len(self._under_way)
        self.size -= sum(len(message.body) for message in self._under_way.values())
        self._under_way.clear()
        return offset

    def put_back(self, messages: Iterable[Message]) -> None:
        """Put some messages in progress back, to wait again."""
        for message in messages:
            self._under_way.pop(message.queue_offset, None)  # pulled and taken again, it is listed twice
            if message.queue_offset not in self._waiting:
                self._insert(message)

    def holds_lock(self, now: int) -> bool:
        """Return whether the broker's lock can still be relied upon."""
        return self.locked_at is not None and now - self.locked_at <= LOCK_LIFE_MS

    def is_stuck(self, now: int) -> bool:
        """Return whether nothing was pulled for too long."""
        return now - self.pulled_at > PULL_LIFE_MS
