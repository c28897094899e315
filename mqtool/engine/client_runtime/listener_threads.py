"""Runs listeners that are not coroutines in their own threads."""

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from mqtool.engine.client_runtime.user_code import contained

_Call = tuple["asyncio.Future[Any]", tuple[Any, ...]]


class ListenerThreads:
    """Calls a listener in threads, which are created when all others are busy, up to ``most``.

    An executor of the standard library wakes a thread and the event loop for every call, each of which takes longer
    than most listeners. Here the loop is woken once for all calls that have ended since it last looked, and waiting
    threads are woken one at a time: each wakes the next before it starts to work, if there is more.
    """

    def __init__(self, listener: Callable[..., Any], most: int, name: str) -> None:
        self._listener = listener
        self._most = most
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._threads = 0
        self._under_way = 0
        self._lock = threading.Lock()  # of the next four
        self._due: deque[_Call] = deque()
        self._idle = 0
        self._is_one_woken = False
        self._is_stopped = False
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._ended: deque[tuple[asyncio.Future[Any], Any, Exception | None]] = deque()
        self._is_loop_woken = False

    def call(self, *args: Any) -> "asyncio.Future[Any]":
        """Call the listener in a thread; the future gets its result or exception."""
        result: asyncio.Future[Any] = self._loop.create_future()
        self._under_way += 1
        with self._lock:
            self._due.append((result, args))
            self._wake_one()
        if self._threads < min(self._under_way, self._most):
            self._threads += 1
            threading.Thread(target=self._work, name=f"mqtool {self._name} {self._threads}", daemon=True).start()
        return result

    def stop(self) -> None:
        """Let the threads end once no call is pending."""
        with self._lock:
            self._is_stopped = True
            for _ in range(self._idle):
                self._wake.put(None)

    def _wake_one(self) -> None:
        if self._due and self._idle and not self._is_one_woken:
            self._is_one_woken = True
            self._wake.put(None)

    def _next(self) -> _Call | None:
        """Wait for the next call and return it; None at the end."""
        while True:
            with self._lock:
                if self._due:
                    call = self._due.popleft()
                    self._wake_one()
                    return call
                if self._is_stopped:
                    return None
                self._idle += 1
            self._wake.get()
            with self._lock:
                self._idle -= 1
                self._is_one_woken = False

    def _work(self) -> None:
        while call := self._next():
            result, args = call
            try:
                self._ended.append((result, self._listener(*args), None))
            except BaseException as error:
                self._ended.append((result, None, contained("listener", error)))
            if not self._is_loop_woken:
                self._is_loop_woken = True
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is waiting
                    self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._is_loop_woken = False  # first: calls that end from now on wake the loop again
        while self._ended:
            result, value, error = self._ended.popleft()
            self._under_way -= 1
            if result.cancelled():
                continue
            if error is None:
                result.set_result(value)
            else:
                result.set_exception(error)
