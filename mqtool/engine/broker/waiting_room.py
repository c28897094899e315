"""The waiting room: all requests that cannot be answered yet, whatever they wait for.

A waiting request has a key (what it waits for), a session (with which it ends) and a deadline. It is examined when
something arrives that it may wait for, when it is woken, and at its deadline; the result is passed to its callback.
Woken requests are examined by the next ``tick``, which is due at once: what arrives together is answered together.

Cost: constant for each request that is added or removed; an arrival is compared with the filters of all that wait for
its queue or topic, by the next ticks if they are many.
(Rules: remoting.md 3.4, 5.6. RocketMQ: ``PullRequestHoldService``, ``PopLongPollingService``, ``GroupCommitService``.)
"""

import heapq
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from mqtool.engine.broker.sessions import Session
from mqtool.engine.store.live_pull import EVERYTHING, PullFilter
from mqtool.errors import MqtoolError

log = logging.getLogger(__name__)


class WaitKind(NamedTuple):
    """What requests wait for, and how many may wait."""

    name: str
    most: int = 100_000
    most_of_key: int = 100_000
    is_in_turn: bool = False  # requests with the same key are served in order
    is_told_of_end: bool = False  # its callback is called when its session ends, as at its deadline


PULLS = WaitKind("pulls")
POPS = WaitKind("pops", most_of_key=1024, is_in_turn=True)
NOTIFICATIONS = WaitKind("notifications", most_of_key=1024, is_in_turn=True)
FLUSHES = WaitKind("flushes", most=1 << 30, most_of_key=1 << 30)  # as many as messages can be sent in the meantime
SAVES = WaitKind("saves", most=1 << 30, most_of_key=1 << 30)
CALLS = WaitKind("calls", most=1 << 30, most_of_key=64, is_told_of_end=True)
PIECES = WaitKind("pieces", most=10_000, most_of_key=16)  # for their next turn

_FAILED = object()
_FEW_TIMES = 1000
_AT_ONCE = 8
"""Maximum number of waiting requests that one tick examines, so that others get their turn."""
_IN_TURN_AT_ONCE = 2
"""Maximum number of requests served in turn that one tick examines: each may look at thousands of queues."""
_COMPARED_AT_ONCE = 256
"""Maximum number of filters that are compared with an arrival at once, or by one tick."""
_MANY_CODES = 64
"""So many different hashes of tags arrive before the first is compared with all that wait; more wake all of them."""

Look = Callable[[bool, int], Any]
"""Returns the result, given whether the deadline has passed, and the time (ms); None: keep waiting."""
Then = Callable[[Any, int], None]
"""Called with the result of ``Look``, and the time (ms)."""


class Waiting:
    """A waiting request."""

    __slots__ = ("deadline", "key", "kind", "look", "offset", "session", "then", "topics", "wanted")

    def __init__(
        self,
        kind: WaitKind,
        key: Hashable,
        session: Session,
        deadline: int | None,
        look: Look,
        then: Then | None = None,
        *,
        topics: tuple[str, ...] = (),
        wanted: PullFilter = EVERYTHING,
        offset: int = -1,
    ) -> None:
        """Create a waiting request.

        Args:
            kind: what it waits for.
            key: by which it can be woken, together with all others that have the same key.
            session: of its client.
            deadline: until when it waits, in ms; None: without a limit.
            look: returns its result if there is one.
            then: called with the result; set before the next tick at the latest.
            topics: for requests served in turn: where messages for them may arrive.
            wanted: the filter of messages.
            offset: up to which it has seen everything; or the number that it waits for.
        """
        self.kind = kind
        self.key = key
        self.session = session
        self.deadline = deadline
        self.look = look
        self.then = then
        self.topics = topics
        self.wanted = wanted
        self.offset = offset


class _Arrivals:
    """Messages of one queue that are not compared with all that wait yet."""

    __slots__ = ("codes", "next_offset")

    def __init__(self) -> None:
        self.codes: set[int] | None = set()
        self.next_offset = 0

    def add(self, next_offset: int, tags_code: int) -> None:
        self.next_offset = next_offset
        if self.codes is not None:
            self.codes.add(tags_code)
            if len(self.codes) > _MANY_CODES:
                self.codes = None

    def may_be_for(self, waiting: Waiting) -> bool:
        return self.next_offset > waiting.offset and (
            self.codes is None or any(map(waiting.wanted.matches_code, self.codes))
        )


class WaitingRoom:
    """All waiting requests."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, dict[Waiting, None]] = {}
        self._keys_of_topic: dict[str, Counter[Hashable]] = {}  # of requests served in turn
        self._counts_of_topic: Counter[str] = Counter()  # of these requests, each once for each of its topics
        self._arrivals: dict[tuple[str, int], _Arrivals] = {}  # by topic and queue id
        self._comparison: Iterator[None] | None = None
        self._by_session: dict[Session, dict[Waiting, None]] = {}
        self._by_time: dict[int, dict[Waiting, None]] = {}
        self._times: list[int] = []  # a heap
        self._empty_times = 0  # times at which nothing waits any more
        self._alarms: list[tuple[int, int, Hashable]] = []  # a heap; some keys also have a later alarm
        self._alarm_count = 0
        self._first_alarms: dict[Hashable, int] = {}
        self._counts: Counter[str] = Counter()  # by the name of a kind
        self._woken: dict[Waiting, None] = {}
        self._woken_keys: dict[Hashable, None] = {}  # of requests served in turn
        self._turns: dict[Hashable, Iterator[None]] = {}  # by key: its requests that are examined now
        self._now = 0  # of the tick

    # Adding and removing

    def count(self, kind: WaitKind, key: Hashable = None) -> int:
        """Return how many requests of a kind, or with a key, wait."""
        return self._counts[kind.name] if key is None else len(self._by_key.get(key, ()))

    def has_room(self, kind: WaitKind, key: Hashable) -> bool:
        """Return whether another request may wait."""
        return self._counts[kind.name] < kind.most and len(self._by_key.get(key, ())) < kind.most_of_key

    def add(self, waiting: Waiting) -> None:
        """Add a waiting request."""
        self._counts[waiting.kind.name] += 1
        key = waiting.key
        self._by_key.setdefault(key, {})[waiting] = None
        self._by_session.setdefault(waiting.session, {})[waiting] = None
        if (deadline := waiting.deadline) is not None:
            at_time = self._by_time.get(deadline)
            if at_time is None:
                at_time = self._by_time[deadline] = {}
                heapq.heappush(self._times, deadline)
            elif not at_time:
                self._empty_times -= 1
            at_time[waiting] = None
        for topic in waiting.topics:
            self._keys_of_topic.setdefault(topic, Counter())[key] += 1
            self._counts_of_topic[topic] += 1

    def take(self, key: Hashable, offset: int) -> Waiting | None:
        """Remove and return the request with a key and an offset, None if there is none; its callback is not called."""
        for waiting in self._by_key.get(key, ()):
            if waiting.offset == offset:
                self._drop(waiting)
                return waiting
        return None

    def closed(self, session: Session, now: int) -> None:
        """Remove all requests of a session that has ended."""
        for waiting in [*self._by_session.get(session, ())]:
            self._drop(waiting)
            if waiting.kind.is_told_of_end:
                self._tell(waiting, waiting.look(True, now), now)

    # Waking

    def arrived(
        self,
        topic: str,
        queue_id: int,
        next_offset: int,
        tags_codes: Sequence[int],
        now: int,  # noqa: ARG002
    ) -> None:
        """Wake the requests that want one of the messages that have just arrived in a queue.

        Args:
            topic: of the queue.
            queue_id: of the queue.
            next_offset: of the queue, one past the last message.
            tags_codes: of each message, in order.
            now: the time, in ms.
        """
        if self._by_key.get((topic, queue_id)) or self._keys_of_topic.get(topic):
            for offset, tags_code in enumerate(tags_codes, next_offset - len(tags_codes) + 1):
                self._one_arrived(topic, queue_id, offset, tags_code)

    def _one_arrived(self, topic: str, queue_id: int, next_offset: int, tags_code: int) -> None:
        pulls, keys = self._by_key.get((topic, queue_id), ()), self._keys_of_topic.get(topic, ())
        if len(pulls) + self._counts_of_topic.get(topic, 0) > _COMPARED_AT_ONCE or (topic, queue_id) in self._arrivals:
            self._arrivals.setdefault((topic, queue_id), _Arrivals()).add(next_offset, tags_code)
            return
        for waiting in pulls:
            if next_offset > waiting.offset and waiting.wanted.matches_code(tags_code):
                self._woken[waiting] = None
        for key in keys:
            if self._may_wake(key, topic, queue_id) and any(
                waiting.wanted.matches_code(tags_code) for waiting in self._by_key[key]
            ):
                self._woken_keys[key] = None

    def _may_wake(self, key: Hashable, topic: str, queue_id: int) -> bool:
        """Return whether the requests of a key, served in turn, are not woken and wait for this queue among others."""
        kind_topic, wanted_queue = key[1], key[3]  # type: ignore[index]
        return key not in self._woken_keys and (kind_topic != topic or wanted_queue in (-1, queue_id))

    def _compare(self, topic: str, queue_id: int, arrivals: _Arrivals) -> Iterator[None]:
        """Wake the requests that want one of several messages; yield after each that is compared."""
        for waiting in self._present((topic, queue_id)):
            if arrivals.may_be_for(waiting):
                self._woken[waiting] = None
            yield
        for key in [*self._keys_of_topic.get(topic, ())]:
            if self._may_wake(key, topic, queue_id):
                for waiting in self._present(key):
                    if arrivals.may_be_for(waiting):
                        self._woken_keys[key] = None
                        break
                    yield
            yield

    def _present(self, key: Hashable) -> Iterator[Waiting]:
        """Yield the requests with a key, except for those that are gone when it is their turn."""
        for waiting in [*self._by_key.get(key, ())]:
            if waiting in self._by_key.get(key, ()):
                yield waiting

    def _compare_some(self) -> None:
        """Compare some of the arrivals with what waits; what arrives in the meantime is compared afterwards."""
        left = _COMPARED_AT_ONCE
        while left > 0 and (self._comparison or self._arrivals):
            if self._comparison is None:
                (topic, queue_id), arrivals = next(iter(self._arrivals.items()))
                del self._arrivals[topic, queue_id]
                self._comparison = self._compare(topic, queue_id, arrivals)
            compared = sum(1 for _ in itertools.islice(self._comparison, left))
            if compared < left:
                self._comparison = None
            left -= max(1, compared)

    def wake(self, key: Hashable) -> None:
        """Examine the requests with a key again."""
        for waiting in self._by_key.get(key, ()):
            if waiting.kind.is_in_turn:
                self._woken_keys[key] = None
                return
            self._woken[waiting] = None

    def wake_at(self, time: int, key: Hashable) -> None:
        """Examine them again at a time (ms); of several times only the first counts."""
        first = self._first_alarms.get(key)
        if key not in self._by_key or (first is not None and first <= time):
            return
        self._first_alarms[key] = time
        if len(self._alarms) > 2 * len(self._first_alarms):
            self._alarms = [
                (at, number, waited_key) for number, (waited_key, at) in enumerate(self._first_alarms.items())
            ]
            self._alarm_count = len(self._alarms)
            heapq.heapify(self._alarms)
        else:
            self._alarm_count += 1
            heapq.heappush(self._alarms, (time, self._alarm_count, key))

    def release(self, key: Hashable, offset: int, result: Any, now: int) -> None:
        """Pass a result to the requests that wait for offsets up to this one, which are in order."""
        for waiting in [*itertools.takewhile(lambda waiter: waiter.offset <= offset, self._by_key.get(key, ()))]:
            self._drop(waiting)
            self._tell(waiting, result, now)

    def first(self, key: Hashable) -> Waiting | None:
        """Return the first request with a key."""
        return next(iter(self._by_key.get(key, ())), None)

    # Time

    def tick(self, now: int) -> None:
        """Examine woken requests and those past their deadline, a limited number at once; the others are next."""
        while self._alarms and self._alarms[0][0] <= now:
            time, _, key = heapq.heappop(self._alarms)
            if self._first_alarms.get(key) == time:
                del self._first_alarms[key]
                self.wake(key)
        if self._arrivals or self._comparison:
            self._compare_some()
        for waiting in [*itertools.islice(self._woken, _AT_ONCE)]:
            if waiting in self._woken:
                del self._woken[waiting]
                self._try(waiting, now)
        self._serve_in_turn(now)
        left = _AT_ONCE
        while left > 0 and self._times and self._times[0] <= now:
            due = self._by_time[self._times[0]]
            if not due:
                self._pop_time()
                continue
            waiting = next(iter(due))
            self._drop(waiting)
            self._tell(waiting, self._look(waiting, True, now), now)
            left -= 1

    def next_tick(self, now: int) -> int | None:
        """Return when there is something to examine."""
        if self._woken or self._woken_keys or self._turns or self._arrivals or self._comparison:
            return now
        while self._times and not self._by_time[self._times[0]]:
            self._pop_time()
        due = self._times[0] if self._times else None
        if self._alarms and due is not None and self._alarms[0][0] < due:  # without requests there is nothing to wake
            return self._alarms[0][0]
        return due

    def _try(self, waiting: Waiting, now: int) -> bool:
        result = self._look(waiting, False, now)
        if result is None:
            return False
        self._drop(waiting)
        self._tell(waiting, result, now)
        return True

    def _look(self, waiting: Waiting, is_due: bool, now: int) -> Any:
        try:
            return waiting.look(is_due, now)
        except MqtoolError as error:  # of a file that it reads: others have their turn, its client asks again
            log.error("a waiting request is not answered: %s", error)
            return _FAILED

    def _serve_in_turn(self, now: int) -> None:
        """Examine some requests of woken keys in turn; a key that is woken in the meantime begins again afterwards."""
        self._now = now
        for key in [*itertools.islice(self._woken_keys, _AT_ONCE)]:
            if key not in self._turns:
                del self._woken_keys[key]
                self._turns[key] = self._turn_of(key)
        left = _IN_TURN_AT_ONCE
        for key in [*itertools.islice(self._turns, _IN_TURN_AT_ONCE)]:
            turn = self._turns.pop(key)
            looked = sum(1 for _ in itertools.islice(turn, left))
            if looked == left:  # there may be more
                self._turns[key] = turn
                return
            left -= looked

    def _turn_of(self, key: Hashable) -> Iterator[None]:
        """Examine the requests with a key; yield after each."""
        nothing_for = set()
        for waiting in self._present(key):
            if waiting.wanted not in nothing_for:
                if not self._try(waiting, self._now):
                    nothing_for.add(waiting.wanted)
                yield

    def _tell(self, waiting: Waiting, result: Any, now: int) -> None:
        if waiting.then is not None and result is not _FAILED:
            waiting.then(result, now)

    def _drop(self, waiting: Waiting) -> None:
        self._counts[waiting.kind.name] -= 1
        self._woken.pop(waiting, None)
        if waiting.deadline is not None:
            at_time = self._by_time[waiting.deadline]
            del at_time[waiting]
            if not at_time:
                self._empty_times += 1
                if self._empty_times > max(_FEW_TIMES, len(self._times) // 2):
                    self._forget_times()
        for table, name in ((self._by_key, waiting.key), (self._by_session, waiting.session)):
            entries = table[name]  # type: ignore[index]
            del entries[waiting]
            if not entries:
                del table[name]  # type: ignore[arg-type]
                self._first_alarms.pop(name, None)
        for topic in waiting.topics:
            keys = self._keys_of_topic[topic]
            keys[waiting.key] -= 1
            self._counts_of_topic[topic] -= 1
            if not keys[waiting.key]:
                del keys[waiting.key]
                if not keys:
                    del self._keys_of_topic[topic], self._counts_of_topic[topic]

    def _pop_time(self) -> None:
        """Remove the first time, at which nothing waits."""
        del self._by_time[heapq.heappop(self._times)]
        self._empty_times -= 1

    def _forget_times(self) -> None:
        """Remove all times at which nothing waits: they may be far away."""
        self._by_time = {time: entries for time, entries in self._by_time.items() if entries}
        self._times = [*self._by_time]
        heapq.heapify(self._times)
        self._empty_times = 0
