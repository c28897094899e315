"""The waiting room: all that cannot be answered yet, for whatever it waits.

Who waits has a key (what it waits for), a session (with which it ends) and a deadline. It is examined when something
has come that it may have waited for, when it is woken, and at its deadline; what it then has is told to whoever had it
wait. What is woken is examined by the next ``tick``, which is due at once: what arrives together is answered together.

Cost: constant for each that comes and goes; an arrival looks at the pulls that wait for its queue, and at one of each
group that waits for its topic.
(Rules: remoting.md 3.4, 5.6. RocketMQ: ``PullRequestHoldService``, ``PopLongPollingService``, ``GroupCommitService``.)
"""

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from mqtool.engine.broker.sessions import Session
from mqtool.engine.store.live_pull import EVERYTHING, PullFilter


class WaitKind(NamedTuple):
    """What is waited for, and how many may."""

    name: str
    most: int = 100_000
    most_of_key: int = 100_000
    is_in_turn: bool = False  # those of a key are served first come, first served
    is_told_of_end: bool = False  # whoever had it wait is told when its session ends, as at its deadline


PULLS = WaitKind("pulls")
POPS = WaitKind("pops", most_of_key=1024, is_in_turn=True)
NOTIFICATIONS = WaitKind("notifications", most_of_key=1024, is_in_turn=True)
FLUSHES = WaitKind("flushes", most=1 << 30, most_of_key=1 << 30)  # as many as messages can be sent in the meantime
SAVES = WaitKind("saves", most=1 << 30, most_of_key=1 << 30)
CALLS = WaitKind("calls", most=1 << 30, most_of_key=64, is_told_of_end=True)

_FEW_TIMES = 1000
_AT_ONCE = 8
"""Of those that wait, how many one tick looks at, so that others get their turn."""

Look = Callable[[bool, int], Any]
"""Returns what there is by now, given whether its time is up, and the time (ms); None: it has to wait on."""
Then = Callable[[Any, int], None]
"""Takes what ``Look`` has returned, and the time (ms)."""


class Waiting:
    """Something that waits."""

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
        """Make one that waits.

        Args:
            kind: what it waits for.
            key: by which it can be woken, together with all others that have it.
            session: whose it is.
            deadline: until when, in ms; None: until what it waits for has come.
            look: says whether there is something for it.
            then: is told what there is; given before the next tick at the latest.
            topics: of those that are served in turn: where something for them may come.
            wanted: the messages that it wants.
            offset: up to which it has seen everything; or what it waits for, of what is told by numbers.
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


class WaitingRoom:
    """All that waits."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, dict[Waiting, None]] = {}
        self._keys_of_topic: dict[str, Counter[Hashable]] = {}  # of those that are served in turn
        self._by_session: dict[Session, dict[Waiting, None]] = {}
        self._by_time: dict[int, dict[Waiting, None]] = {}
        self._times: list[int] = []  # a heap
        self._empty_times = 0  # at which nothing waits any more
        self._alarms: list[tuple[int, int, Hashable]] = []  # a heap; of some keys a later one, too
        self._alarm_count = 0
        self._first_alarms: dict[Hashable, int] = {}
        self._counts: Counter[str] = Counter()  # by the name of a kind
        self._woken: dict[Waiting, None] = {}
        self._woken_keys: dict[Hashable, None] = {}  # of those that are served in turn

    # Coming and going

    def count(self, kind: WaitKind, key: Hashable = None) -> int:
        """Return how many wait, of a kind or for the same."""
        return self._counts[kind.name] if key is None else len(self._by_key.get(key, ()))

    def has_room(self, kind: WaitKind, key: Hashable) -> bool:
        """Return whether another one may wait."""
        return self._counts[kind.name] < kind.most and len(self._by_key.get(key, ())) < kind.most_of_key

    def add(self, waiting: Waiting) -> None:
        """Let something wait."""
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

    def take(self, key: Hashable, offset: int) -> Waiting | None:
        """Take out the one with a key and an offset, None if there is none; it is told nothing."""
        for waiting in self._by_key.get(key, ()):
            if waiting.offset == offset:
                self._drop(waiting)
                return waiting
        return None

    def closed(self, session: Session, now: int) -> None:
        """Let go of all that waits for a session that has ended."""
        for waiting in [*self._by_session.get(session, ())]:
            self._drop(waiting)
            if waiting.kind.is_told_of_end:
                self._tell(waiting, waiting.look(True, now), now)

    # Waking

    def arrived(self, topic: str, queue_id: int, next_offset: int, tags_code: int, now: int) -> None:  # noqa: ARG002
        """Wake those that want a message which has just got into a queue.

        Args:
            topic: of the queue.
            queue_id: of the queue.
            next_offset: of the queue, one past the message.
            tags_code: of the message.
            now: the time, in ms.
        """
        for waiting in self._by_key.get((topic, queue_id), ()):
            if next_offset > waiting.offset and waiting.wanted.matches_code(tags_code):
                self._woken[waiting] = None
        for key in self._keys_of_topic.get(topic, ()):
            kind_topic, wanted_queue = key[1], key[3]  # type: ignore[index]
            if key in self._woken_keys or (kind_topic == topic and wanted_queue not in (-1, queue_id)):
                continue
            if any(waiting.wanted.matches_code(tags_code) for waiting in self._by_key[key]):
                self._woken_keys[key] = None

    def wake(self, key: Hashable) -> None:
        """Have those that wait for something be examined again."""
        for waiting in self._by_key.get(key, ()):
            if waiting.kind.is_in_turn:
                self._woken_keys[key] = None
                return
            self._woken[waiting] = None

    def wake_at(self, time: int, key: Hashable) -> None:
        """Have them be examined again at a time (ms); only the first counts that they are told."""
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
        """Tell a result to those that wait for an offset, which come in its order, up to where it has come."""
        for waiting in [*itertools.takewhile(lambda waiter: waiter.offset <= offset, self._by_key.get(key, ()))]:
            self._drop(waiting)
            self._tell(waiting, result, now)

    def first(self, key: Hashable) -> Waiting | None:
        """Return the first that waits for something."""
        return next(iter(self._by_key.get(key, ())), None)

    # The passing of time

    def tick(self, now: int) -> None:
        """Look at those that are woken, and at those whose time is up: at so many at once, the others are next."""
        while self._alarms and self._alarms[0][0] <= now:
            time, _, key = heapq.heappop(self._alarms)
            if self._first_alarms.get(key) == time:
                del self._first_alarms[key]
                self.wake(key)
        for waiting in [*itertools.islice(self._woken, _AT_ONCE)]:
            if waiting in self._woken:
                del self._woken[waiting]
                self._try(waiting, now)
        left = _AT_ONCE
        for key in [*itertools.islice(self._woken_keys, _AT_ONCE)]:
            if left > 0:
                del self._woken_keys[key]
                left -= self._serve_in_turn(key, now)
        left = _AT_ONCE
        while left > 0 and self._times and self._times[0] <= now:
            due = self._by_time[self._times[0]]
            if not due:
                self._pop_time()
                continue
            waiting = next(iter(due))
            self._drop(waiting)
            self._tell(waiting, waiting.look(True, now), now)
            left -= 1

    def next_tick(self, now: int) -> int | None:
        """Return when there is something to look at."""
        if self._woken or self._woken_keys:
            return now
        while self._times and not self._by_time[self._times[0]]:
            self._pop_time()
        due = self._times[0] if self._times else None
        if self._alarms and due is not None and self._alarms[0][0] < due:  # without anybody there is nothing to wake
            return self._alarms[0][0]
        return due

    def _try(self, waiting: Waiting, now: int) -> bool:
        result = waiting.look(False, now)
        if result is None:
            return False
        self._drop(waiting)
        self._tell(waiting, result, now)
        return True

    def _serve_in_turn(self, key: Hashable, now: int) -> int:
        """Look at those that wait for the same, and return at how many."""
        looked, nothing_for = 0, set()
        for waiting in [*self._by_key.get(key, ())]:
            if waiting.wanted not in nothing_for:
                looked += 1
                if not self._try(waiting, now):
                    nothing_for.add(waiting.wanted)
        return looked

    def _tell(self, waiting: Waiting, result: Any, now: int) -> None:
        if waiting.then is not None:
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
            if not keys[waiting.key]:
                del keys[waiting.key]
                if not keys:
                    del self._keys_of_topic[topic]

    def _pop_time(self) -> None:
        """Forget the first time, at which nothing waits."""
        del self._by_time[heapq.heappop(self._times)]
        self._empty_times -= 1

    def _forget_times(self) -> None:
        """Forget all times at which nothing waits: they may be far away."""
        self._by_time = {time: entries for time, entries in self._by_time.items() if entries}
        self._times = [*self._by_time]
        heapq.heapify(self._times)
        self._empty_times = 0
