"""Automatic batching: messages sent one by one go to a broker together, and each gets its own result.

Messages to one topic, or one queue of it, wait in a lane until they fill a batch or the first of them has waited long
enough. One batch of a lane is in flight at a time, so that messages are stored in the order in which they were sent.
(RocketMQ: ``ProduceAccumulator``.)
"""

import asyncio
import collections
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import NamedTuple

from mqtool.engine.client.outgoing import Element
from mqtool.engine.client.sending import SendResult, each_result
from mqtool.formats.bodies import MessageQueue

_DONE = (asyncio.InvalidStateError, InvalidStateError)

AnyFuture = Future[SendResult] | asyncio.Future[SendResult]


class Blank:
    """The initial state of a ``Future``, whatever that is, for many futures that share its lock.

    With their own locks they would be ten objects each for the garbage collector, a third of the time of a send.
    """

    def __init__(self) -> None:
        attributes = vars(Future())
        self._lists = [name for name, value in attributes.items() if isinstance(value, list)]
        self._shared = {name: value for name, value in attributes.items() if name not in self._lists}

    def fill(self, future: "SendFuture") -> None:
        """Copy the initial state into a future."""
        own = vars(future)
        own.update(self._shared)
        for name in self._lists:
            own[name] = []


class SendFuture(Future[SendResult]):
    """A future of the blocking ``send_async``."""

    _ended: threading.Event | None = None  # for waiting threads, as the lock is shared with other futures

    def __init__(self, blank: Blank) -> None:
        blank.fill(self)  # in place of what ``Future`` does

    def result(self, timeout: float | None = None) -> SendResult:
        """Return where the message is stored, as ``Future.result``."""
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return why it was not stored, as ``Future.exception``."""
        self._wait(timeout)
        return super().exception(0)

    def _wait(self, timeout: float | None) -> None:
        if not self.done():
            ended = self._ended
            if ended is None:
                ended = self._ended = threading.Event()
                self.add_done_callback(lambda _: ended.set())
            ended.wait(timeout)


class LaneKey(NamedTuple):
    """What the messages of one batch have in common."""

    topic: str
    queue: MessageQueue | None  # None: the queues take turns, batch by batch
    wait_store_ok: bool


class PendingMessage(NamedTuple):
    """A message that waits for its batch."""

    element: Element
    timeout_ms: int
    future: AnyFuture


Send = Callable[[LaneKey, Sequence[Element], int], Awaitable[SendResult]]
"""Sends a batch of a lane within a timeout in ms, and returns the answer."""


class _BatchLane:
    """Messages in order. Any thread may add waiting messages, everything else belongs to the event loop."""

    def __init__(self) -> None:
        self.waiting: collections.deque[PendingMessage] = collections.deque()
        self.size = 0  # bytes that wait
        self.due = 0.0  # of ``time.monotonic``
        self.is_told = False  # the loop has yet to look at it
        self.timer: asyncio.TimerHandle | None = None
        self.sending: asyncio.Task[None] | None = None
        self.batch: list[PendingMessage] = []  # in flight

    def take(self, most: int) -> tuple[list[PendingMessage], int]:
        """Take the next batch, of messages with the same timeout; one that is larger than ``most`` goes alone.

        Cancelled messages are left out.

        Returns:
            The batch, and how many bytes no longer wait.
        """
        batch: list[PendingMessage] = []
        size, taken_size, waiting = 0, 0, self.waiting
        while waiting:
            one_size = len(waiting[0].element.data)
            # A message with less time than others fails alone.
            if batch and (size + one_size > most or waiting[0].timeout_ms != batch[0].timeout_ms):
                break
            pending = waiting.popleft()
            taken_size += one_size
            if _is_wanted(pending.future):
                batch.append(pending)
                size += one_size
        return batch, taken_size


def _is_wanted(future: AnyFuture) -> bool:
    return future.set_running_or_notify_cancel() if isinstance(future, Future) else not future.cancelled()


class AutoBatch:
    """All lanes of a producer. Only ``post`` may be called by any thread.

    A turn of the loop takes longer than everything else that a message needs. So threads put messages into their lanes
    themselves, and wake the loop only for the first of a batch, and when it is full while none is in flight.
    """

    def __init__(self, send: Send, batch_size: int, linger_ms: int) -> None:
        """Start without messages.

        Args:
            send: sends a batch.
            batch_size: maximum bytes of the messages, including properties.
            linger_ms: maximum time that the first of a batch waits for others.
        """
        self._send = send
        self._batch_size = batch_size
        self._linger = linger_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[LaneKey, _BatchLane] = {}
        # For the lanes and their waiting messages. A signal handler that sends may interrupt a send.
        self._lock = threading.RLock()
        self._given_up: Exception | None = None
        self._blank = Blank()

    def new_future(self) -> SendFuture:
        """Return a future for a message of any thread."""
        return SendFuture(self._blank)

    def post(self, key: LaneKey, pending: PendingMessage) -> None:
        """Add a message from any thread."""
        if lane := self._put(key, pending):
            self._loop.call_soon_threadsafe(self._look, key, lane)

    def add(self, key: LaneKey, pending: PendingMessage) -> None:
        """Add a message from the loop; as ``post``."""
        if lane := self._put(key, pending):
            self._look(key, lane)

    def _put(self, key: LaneKey, pending: PendingMessage) -> _BatchLane | None:
        """Add a message; return its lane if the loop has to look at it."""
        with self._lock:
            if (error := self._given_up) is None:
                return self._put_in_lane(key, pending)
        _fail([pending], error)
        return None

    def _put_in_lane(self, key: LaneKey, pending: PendingMessage) -> _BatchLane | None:
        lane = self._lanes.get(key) or self._lanes.setdefault(key, _BatchLane())
        is_first = not lane.waiting
        if is_first:
            lane.due = time.monotonic() + self._linger
        lane.waiting.append(pending)
        lane.size += len(pending.element.data)
        # The task that sends a batch checks for the next one afterwards.
        if lane.is_told or lane.sending or not (is_first or lane.size >= self._batch_size):
            return None
        lane.is_told = True
        return lane

    def _look(self, key: LaneKey, lane: _BatchLane) -> None:
        """Send a batch that is full or due; otherwise wait until it is."""
        lane.is_told = False  # first: messages added from now on are seen here, or wake the loop again
        if lane.sending or not lane.waiting:
            return
        left = lane.due - time.monotonic()
        if lane.size >= self._batch_size or left <= 0:
            if lane.timer:
                lane.timer.cancel()
                lane.timer = None
            lane.sending = asyncio.create_task(self._send_next(key, lane))
        elif lane.timer is None:
            lane.timer = self._loop.call_later(left, self._is_due, key, lane)

    def _is_due(self, key: LaneKey, lane: _BatchLane) -> None:
        lane.timer = None
        lane.due = 0.0
        self._look(key, lane)

    async def _send_next(self, key: LaneKey, lane: _BatchLane) -> None:
        lane.batch, taken_size = lane.take(self._batch_size)
        with self._lock:
            lane.size -= taken_size
        try:
            if lane.batch:
                elements = [pending.element for pending in lane.batch]
                _tell(lane.batch, await self._send(key, elements, lane.batch[0].timeout_ms))
        except Exception as error:
            _fail(lane.batch, error)
        finally:
            with self._lock:
                lane.batch, lane.sending = [], None
                if not lane.waiting:
                    del self._lanes[key]
            self._look(key, lane)

    @property
    def count(self) -> int:
        """The number of messages that wait or are in flight."""
        with self._lock:
            return sum(len(lane.waiting) + len(lane.batch) for lane in self._lanes.values())

    def hurry(self) -> list["asyncio.Task[None]"]:
        """Send waiting messages without waiting for more; return the tasks in flight."""
        with self._lock:
            lanes = [*self._lanes.items()]
        for key, lane in lanes:
            lane.due = 0.0
            self._look(key, lane)
        return [lane.sending for _, lane in lanes if lane.sending]

    def give_up(self, error: Exception) -> None:
        """Fail all messages that wait or are in flight, and later ones, with an error."""
        with self._lock:
            self._given_up = error
            lanes = [*self._lanes.values()]
        for lane in lanes:
            _fail([*lane.batch, *lane.waiting], error)
            lane.waiting.clear()
            for ends in (lane.timer, lane.sending):
                if ends:
                    ends.cancel()


def _tell(batch: Sequence[PendingMessage], result: SendResult) -> None:
    for pending, its in zip(batch, each_result(result, [pending.element.unique_key for pending in batch]), strict=True):
        try:
            pending.future.set_result(its)
        except _DONE:
            continue  # cancelled, or given up


def _fail(batch: Sequence[PendingMessage], error: Exception) -> None:
    for pending in batch:
        if not pending.future.done():
            pending.future.set_exception(error)
