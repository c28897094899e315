"""Pops and related requests: peeks, notifications, and the number of waiting pops.

(Rules: remoting.md 3.4. RocketMQ: ``PopMessageProcessor``, ``PeekMessageProcessor``, ``NotificationProcessor``,
``PollingInfoProcessor``.)
"""

from collections.abc import Iterable
from typing import NamedTuple

from mqtool.engine.broker.limits import check_name
from mqtool.engine.broker.operations.checks import check_invisible_time, checked_group, no_such_queue, refusal_meanwhile
from mqtool.engine.broker.operations.filters import wanted_by_expression
from mqtool.engine.broker.operations.reading import ReadingParts
from mqtool.engine.broker.operations.refusal import OperationRefusedError, Reason
from mqtool.engine.broker.pops import PopRequest, Pops, Taken
from mqtool.engine.broker.sessions import Session
from mqtool.engine.broker.waiting_room import NOTIFICATIONS, POPS, Waiting, WaitKind
from mqtool.engine.store.live_pull import EVERYTHING, PullFilter, fetch
from mqtool.formats.codes import Perm

MAX_MESSAGES = 32
_LATE_MS = 500
"""A pop that took this much longer to arrive than it would wait is not worth an answer."""
_READ = int(Perm.READ)

Key = tuple[str, str, str, int]
"""The key of requests that wait for the same: kind, topic, group and queue id."""


class Peeked(NamedTuple):
    """Messages that are read without hiding them."""

    parts: list[bytes]
    rest: int  # how many more there are in the queues that were examined


class News(NamedTuple):
    """Whether there are messages."""

    has_messages: bool
    is_full: bool = False  # it would have to wait for messages, but too many requests wait


class NewsRequest(NamedTuple):
    """What a consumer wants to be notified of."""

    group: str
    topic: str
    queue_id: int  # -1: any queue
    is_in_order: bool
    attempt_id: str | None


class PopRequests:
    """Requests of consumers that pop, with the parts of a broker that they need."""

    def __init__(self, parts: ReadingParts, pops: Pops) -> None:
        self._store, self._state, self._topics, self._groups, self._offsets, self.room = parts
        self.pops = pops

    def pop(
        self,
        session: Session,
        request: PopRequest,
        now: int,
        *,
        asked_at: int,
        wait_ms: int = 0,
        kind: str | None = None,
        expression: str | None = None,
    ) -> Taken | Waiting:
        """Return messages, hidden from their group from now on, or a waiting request.

        Args:
            session: of the client.
            request: which messages.
            now: the time, in ms.
            asked_at: when the consumer sent the request, by its own clock (ms).
            wait_ms: how long it waits from then on if there are no messages.
            kind: of the filter, TAG or SQL92; None: TAG.
            expression: its filter; empty or None: it wants all messages.

        Raises:
            OperationRefusedError: it gets no messages.
            LimitError: there are too many consumer offsets, or the name of the attempt is too long.
        """
        until = asked_at + wait_ms
        if now - until > _LATE_MS:
            raise OperationRefusedError(Reason.TOO_LATE, "the pop message is timeout too much")
        if request.max_count > MAX_MESSAGES:
            text = f"the broker[{self._state.address}] pop message's num is greater than {MAX_MESSAGES}"
            raise OperationRefusedError(Reason.BAD_ARGUMENT, text)
        if not self._state.settings.timer_enabled:
            raise OperationRefusedError(
                Reason.NOT_POSSIBLE, "pop message is forbidden because timerWheelEnable is false"
            )
        check_invisible_time(request.invisible_ms, self._state.settings)
        self._check(request.group, request.topic, request.queue_id, now)
        wanted = _wanted(kind, expression)
        if request.queue_id >= 0 or not self._offsets.of(request.group, request.topic):
            self._offsets.check_room(request.group, request.topic, [request.queue_id])
        check_name(request.attempt_id or "", "attempt id")
        key = _key(POPS, request.topic, request.group, request.queue_id)
        once = _Pop(self, request, wanted, key)
        popped = self.pops.take(request, wanted, now)
        if popped.parts or wait_ms <= 0 or until <= now:
            if popped.rest:
                self.room.wake(key)
            return popped
        if not self.room.has_room(POPS, key):
            popped.is_full = True
            return popped
        topics = (request.topic, *self.pops.retry_topics(request.topic, request.group))
        waiting = Waiting(POPS, key, session, until, once.look, topics=topics, wanted=wanted)
        self.room.add(waiting)
        once.look_again(popped)
        return waiting

    def peek(self, group: str, topic: str, queue_id: int, max_count: int, now: int) -> Peeked:
        """Return messages without hiding them.

        Raises:
            OperationRefusedError: the group may not read them.
        """
        self._check(group, topic, queue_id, now)
        parts: list[bytes] = []
        rest = count = 0
        for name, number in self._places(topic, group, queue_id):
            if count >= max_count:
                break
            queue, offset = self._store.queue(name, number), self.pops.cursor(name, group, number)
            fetched = fetch(self._store, queue, offset, max_count - count)
            parts += fetched.parts
            count += fetched.message_count
            rest += max(0, fetched.max_offset - offset)
        return Peeked(parts, rest)

    def news(self, session: Session, request: NewsRequest, until: int, now: int) -> News | Waiting:
        """Return that there are messages as soon as there are any, or at a time (ms) that there are none.

        Raises:
            OperationRefusedError: the group may not read them.
        """
        self._check(request.group, request.topic, request.queue_id, now)
        key = _key(NOTIFICATIONS, request.topic, request.group, request.queue_id)

        def look(is_due: bool, now: int) -> News | None:
            has_messages, free_at = self._has_messages(request, now)
            if has_messages or is_due:
                return News(has_messages)
            if free_at is not None:
                self.room.wake_at(free_at, key)
            return None

        has_messages, free_at = self._has_messages(request, now)
        if has_messages or until <= now:
            return News(has_messages)
        if not self.room.has_room(NOTIFICATIONS, key):
            return News(False, is_full=True)
        topics = (request.topic, *self.pops.retry_topics(request.topic, request.group))
        waiting = Waiting(NOTIFICATIONS, key, session, until, look, topics=topics)
        self.room.add(waiting)
        if free_at is not None:
            self.room.wake_at(free_at, key)
        return waiting

    def refusal_of(self, topic: str, queue_id: int, group: str) -> OperationRefusedError | None:
        """Return why a waiting pop may not be served any more."""
        return refusal_meanwhile(self._topics, self._groups, topic, queue_id, group)

    def waiting_count(self, group: str, topic: str, queue_id: int, now: int) -> int:
        """Return how many pops wait for the same queue.

        Raises:
            OperationRefusedError: the group may not read it.
        """
        self._check(group, topic, queue_id, now)
        return self.room.count(POPS, _key(POPS, topic, group, queue_id))

    def _has_messages(self, request: NewsRequest, now: int) -> tuple[bool, int | None]:
        """Return whether there are messages, or else when the first queue blocked by others is free (ms)."""
        group, pops = request.group, self.pops
        first: int | None = None
        for topic, queue_id in self._places(request.topic, group, request.queue_id):
            cursor = topic, group, queue_id
            if request.is_in_order and (free_at := pops.orders.blocked_until(cursor, request.attempt_id, now)):
                first = min(free_at, first or free_at)
            elif pops.has_messages(topic, group, queue_id):
                return True, None
        return False, first

    def _places(self, topic: str, group: str, queue_id: int) -> Iterable[tuple[str, int]]:
        """Yield the queues that a request is about."""
        config = self._topics.get(topic)
        queue_ids: Iterable[int] = (queue_id,)
        if queue_id < 0:
            queue_ids = range(config.read_queue_count if config else 0)
        yield from ((topic, number) for number in queue_ids)
        yield from ((retries, 0) for retries in self.pops.retry_topics(topic, group))

    def _check(self, group: str, topic: str, queue_id: int, now: int) -> None:
        """Check whether a group may read a topic; raises ``OperationRefusedError``."""
        if not self._state.settings.perm & _READ:
            raise OperationRefusedError(
                Reason.NOT_ALLOWED, f"the broker[{self._state.address}] pop message is forbidden"
            )
        config = self._topics.get(topic)
        if config is None:
            raise OperationRefusedError(Reason.NO_TOPIC, f"topic[{topic}] not exist, apply first please!")
        if not config.perm & _READ:
            raise OperationRefusedError(Reason.NOT_ALLOWED, f"the topic[{topic}] peeking message is forbidden")
        if queue_id >= config.read_queue_count:
            raise OperationRefusedError(Reason.BAD_ARGUMENT, no_such_queue(config, queue_id))
        checked_group(self._groups, group, now)


class _Pop:
    """A pop that may be repeated."""

    __slots__ = ("_key", "_request", "_requests", "_wanted")

    def __init__(self, requests: PopRequests, request: PopRequest, wanted: PullFilter, key: Key) -> None:
        self._requests = requests
        self._request = request
        self._wanted = wanted
        self._key = key

    def look(self, is_due: bool, now: int) -> Taken | OperationRefusedError | None:
        """Return the messages for a waiting pop, None while there are none."""
        wanted = self._request
        if refused := self._requests.refusal_of(wanted.topic, wanted.queue_id, wanted.group):
            return refused
        popped = self._requests.pops.take(self._request, self._wanted, now)
        if popped.parts or is_due:
            return popped
        self.look_again(popped)
        return None

    def look_again(self, popped: Taken) -> None:
        """Schedule it again after its filter stopped, or for when a queue or the store is free again."""
        room = self._requests.room
        if popped.rest and not popped.is_held_up:
            room.wake(self._key)
        if popped.free_at:
            room.wake_at(popped.free_at, self._key)


def _key(kind: WaitKind, topic: str, group: str, queue_id: int) -> Key:
    return kind.name, topic, group, queue_id


def _wanted(kind: str | None, expression: str | None) -> PullFilter:
    """Return the filter of a pop; raises ``OperationRefusedError``."""
    if not expression:
        return EVERYTHING
    try:
        return wanted_by_expression(kind or "TAG", expression)
    except OperationRefusedError:
        raise OperationRefusedError(Reason.BAD_FILTER, "parse the consumer's subscription failed") from None
