"""Pops that wait for messages, first come, first served; and the questions whether there are any.

(Rules: remoting.md 3.4. RocketMQ: ``PopLongPollingService``.)
"""

import heapq
from collections.abc import Callable, Iterable
from typing import NamedTuple

from mqtool.engine.store.live_pull import Wanted
from mqtool.formats.remoting import Outgoing, Peer

MOST_PARKED = 100_000
"""With so many waiting, another one is refused."""
MOST_OF_QUEUE = 1024
"""So many may wait for the same."""

Key = tuple[str, str, int]
"""Topic, group and queue id; -1 for all queues."""


class ParkedPop(NamedTuple):
    """One request that waits."""

    key: Key
    topics: tuple[str, ...]  # where messages for it may come: the topic and its retry topics
    wanted: Wanted
    peer: Peer
    deadline: int  # ms
    answer: Callable[[bool, int], Iterable[Outgoing] | None]
    """Answer it, given whether its time is up, and the time (ms); None: it has to wait on."""


class ParkedPops:
    """The requests that wait; those that have been woken are looked at by the next ``tick``, which is due at once."""

    def __init__(self) -> None:
        self._waiting: dict[Key, dict[int, ParkedPop]] = {}
        self._by_topic: dict[str, dict[Key, int]] = {}  # how many of each key
        self._by_peer: dict[Peer, dict[int, ParkedPop]] = {}
        self._woken: dict[Key, None] = {}
        self._deadlines: list[tuple[int, int, Key]] = []  # a heap; some of them have been answered since
        self._alarms: list[tuple[int, Key]] = []  # a heap
        self._number = 0
        self._count = 0

    def count(self, key: Key) -> int:
        """Return how many requests wait for the same."""
        return len(self._waiting.get(key, ()))

    def has_room(self, key: Key) -> bool:
        """Tell whether another request may wait."""
        return self._count < MOST_PARKED and self.count(key) < MOST_OF_QUEUE

    def park(self, pop: ParkedPop) -> None:
        """Let a request wait."""
        self._number += 1
        self._count += 1
        self._waiting.setdefault(pop.key, {})[self._number] = pop
        self._by_peer.setdefault(pop.peer, {})[self._number] = pop
        for topic in pop.topics:
            keys = self._by_topic.setdefault(topic, {})
            keys[pop.key] = keys.get(pop.key, 0) + 1
        heapq.heappush(self._deadlines, (pop.deadline, self._number, pop.key))

    def arrived(self, topic: str, queue_id: int, next_offset: int, tags_code: int, now: int) -> None:  # noqa: ARG002
        """Wake the requests that want a message which has just got into a queue.

        Args:
            topic: of the queue.
            queue_id: of the queue.
            next_offset: of the queue, one past the message.
            tags_code: of the message.
            now: the time, in ms.
        """
        for key in self._by_topic.get(topic, ()):
            if key in self._woken or (key[0] == topic and key[2] not in (-1, queue_id)):
                continue
            if any(pop.wanted.matches_code(tags_code) for pop in self._waiting[key].values()):
                self._woken[key] = None

    def wake(self, key: Key) -> None:
        """Have requests looked at again."""
        if key in self._waiting:
            self._woken[key] = None

    def wake_at(self, time: int, key: Key) -> None:
        """Have requests looked at again at a time (ms)."""
        if key in self._waiting:
            heapq.heappush(self._alarms, (time, key))

    def closed(self, peer: Peer, now: int) -> Iterable[Outgoing]:  # noqa: ARG002
        """Forget the requests of a connection that has ended."""
        for number, pop in list(self._by_peer.get(peer, {}).items()):
            self._drop(number, pop)
        return ()

    def tick(self, now: int) -> Iterable[Outgoing]:
        """Answer the requests that there are messages for, and those whose time is up."""
        while self._alarms and self._alarms[0][0] <= now:
            self.wake(heapq.heappop(self._alarms)[1])
        out: list[Outgoing] = []
        if self._woken:
            woken, self._woken = self._woken, {}
            for key in woken:
                self._serve(key, now, out)
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number, key = heapq.heappop(self._deadlines)
            pop = self._waiting.get(key, {}).get(number)
            if pop is not None:
                self._drop(number, pop)
                out += pop.answer(True, now) or ()
        return out

    def next_tick(self, now: int) -> int | None:
        """Return when there is something to look at."""
        if self._woken:
            return now
        if not self._waiting:
            return None
        times = [heap[0][0] for heap in (self._deadlines, self._alarms) if heap]
        return min(times, default=None)

    def _serve(self, key: Key, now: int, out: list[Outgoing]) -> None:
        nothing_for = set()
        for number, pop in list(self._waiting.get(key, {}).items()):
            if pop.wanted in nothing_for:
                continue
            answer = pop.answer(False, now)
            if answer is None:
                nothing_for.add(pop.wanted)
            else:
                self._drop(number, pop)
                out += answer

    def _drop(self, number: int, pop: ParkedPop) -> None:
        self._count -= 1
        for topic in pop.topics:
            keys = self._by_topic[topic]
            keys[pop.key] -= 1
            if not keys[pop.key]:
                del keys[pop.key]
                if not keys:
                    del self._by_topic[topic]
        for table, name in ((self._waiting, pop.key), (self._by_peer, pop.peer)):
            pops = table[name]  # type: ignore[index]
            del pops[number]
            if not pops:
                del table[name]  # type: ignore[arg-type]
