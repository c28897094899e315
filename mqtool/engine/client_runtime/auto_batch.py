"""Automatic batching: messages that are sent one by one go to a broker together, and each learns where it is stored.

Messages to one topic, or one queue of it, wait in a lane until they fill a batch or the first of them has waited long
enough. One batch of a lane is under way at a time, so that they are stored in the order in which they were given.
(RocketMQ: ``ProduceAccumulator``.)
"""

import asyncio
import collections
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from mqtool.engine.client.outgoing import ProducerMessage
from mqtool.engine.client.sending import SendResult, each_result
from mqtool.formats.bodies import MessageQueue

AnyFuture = Future[SendResult] | asyncio.Future[SendResult]


class LaneKey(NamedTuple):
    """What messages of one batch have in common."""

    topic: str
    queue: MessageQueue | None  # None: the queues take turns, batch by batch
    wait_store_ok: bool


class Waiting(NamedTuple):
    """A message that waits for its batch."""

    message: ProducerMessage
    element: bytes  # as it stands in a batch
    timeout_ms: int
    future: AnyFuture


Send = Callable[[Sequence[Waiting], MessageQueue | None], Awaitable[SendResult]]


class _Lane:
    """Messages that follow each other."""

    def __init__(self) -> None:
        self.waiting: collections.deque[Waiting] = collections.deque()
        self.size = 0
        self.due = 0.0  # by the clock of the loop
        self.timer: asyncio.TimerHandle | None = None
        self.sending: asyncio.Task[None] | None = None
        self.batch: list[Waiting] = []  # that is under way

    def take(self, most: int) -> list[Waiting]:
        """Take the next batch; one that is larger than ``most`` goes alone. What was cancelled is left out."""
        batch: list[Waiting] = []
        size = 0
        while self.waiting and (not batch or size + len(self.waiting[0].element) <= most):
            one = self.waiting.popleft()
            self.size -= len(one.element)
            if _is_wanted(one.future):
                batch.append(one)
                size += len(one.element)
        return batch


def _is_wanted(future: AnyFuture) -> bool:
    return future.set_running_or_notify_cancel() if isinstance(future, Future) else not future.cancelled()


class AutoBatch:
    """All lanes of a producer. Only ``post`` may be called by any thread."""

    def __init__(self, send: Send, batch_size: int, linger_ms: int) -> None:
        """Begin without a message.

        Args:
            send: sends a batch to a queue, or to any, and returns the answer.
            batch_size: bytes of the messages, properties included.
            linger_ms: the first of a batch waits no longer for others.
        """
        self._send = send
        self._batch_size = batch_size
        self._linger = linger_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[LaneKey, _Lane] = {}
        self._posted: collections.deque[tuple[LaneKey, Waiting]] = collections.deque()
        self._is_told = False

    def post(self, key: LaneKey, one: Waiting) -> None:
        """Add a message from any thread."""
        self._posted.append((key, one))
        if not self._is_told:
            self._is_told = True
            self._loop.call_soon_threadsafe(self._take_posted)

    def _take_posted(self) -> None:
        self._is_told = False  # first: what is posted from now on is taken here, or told again
        while self._posted:
            self.add(*self._posted.popleft())

    def add(self, key: LaneKey, one: Waiting) -> None:
        """Add a message."""
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
        if not lane.waiting:
            lane.due = self._loop.time() + self._linger
        lane.waiting.append(one)
        lane.size += len(one.element)
        if lane.sending is None:
            self._look(key, lane)

    def _look(self, key: LaneKey, lane: _Lane) -> None:
        """Send a batch that is full or due; else wait for that."""
        if lane.size >= self._batch_size or self._loop.time() >= lane.due:
            if lane.timer:
                lane.timer.cancel()
                lane.timer = None
            lane.sending = asyncio.create_task(self._send_next(key, lane))
        elif lane.timer is None:
            lane.timer = self._loop.call_at(lane.due, self._is_due, key, lane)

    def _is_due(self, key: LaneKey, lane: _Lane) -> None:
        lane.timer = None
        lane.due = 0.0
        if lane.sending is None and lane.waiting:
            self._look(key, lane)

    async def _send_next(self, key: LaneKey, lane: _Lane) -> None:
        lane.batch = lane.take(self._batch_size)
        try:
            if lane.batch:
                _tell(lane.batch, await self._send(lane.batch, key.queue))
        except Exception as error:
            _fail(lane.batch, error)
        finally:
            lane.batch, lane.sending = [], None
            if lane.waiting:
                self._look(key, lane)
            else:
                del self._lanes[key]

    @property
    def count(self) -> int:
        """Messages that wait or are under way."""
        return len(self._posted) + sum(len(lane.waiting) + len(lane.batch) for lane in self._lanes.values())

    def hurry(self) -> list["asyncio.Task[None]"]:
        """Send what waits without waiting for more; return what is under way then."""
        self._take_posted()
        for key, lane in self._lanes.items():
            lane.due = 0.0
            if lane.sending is None:
                self._look(key, lane)
        return [lane.sending for lane in self._lanes.values() if lane.sending]

    def give_up(self, error: Exception) -> None:
        """Tell all messages that wait or are under way that they were not sent in time."""
        self._take_posted()
        for lane in self._lanes.values():
            _fail([*lane.batch, *lane.waiting], error)
            lane.waiting.clear()
            for ends in (lane.timer, lane.sending):
                if ends:
                    ends.cancel()


def _tell(batch: Sequence[Waiting], result: SendResult) -> None:
    for one, its in zip(batch, each_result(result, [one.message.unique_key for one in batch]), strict=True):
        if not one.future.done():
            one.future.set_result(its)


def _fail(batch: Sequence[Waiting], error: Exception) -> None:
    for one in batch:
        if not one.future.done():
            one.future.set_exception(error)
