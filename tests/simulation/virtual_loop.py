"""An event loop whose time jumps to the next timer, and hosts whose processes can be stalled or killed in it.

Whatever runs for a host runs in a context that names it, and so does what it begins: tasks, timers, callbacks. A host
that is killed runs nothing any more, not even what would clean up; one that is stalled runs all of it later.
"""

import asyncio
import heapq
import itertools
import random
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")

_NS = 1_000_000_000
_THREAD_S = (0.0001, 0.004)
"""How long what is given to a thread takes."""

CURRENT: ContextVar["Process | None"] = ContextVar("CURRENT", default=None)
"""For which process something runs; None for the simulation itself."""


class Process:
    """A program on a host, from its start to its end or until it is killed."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.is_dead = False
        self.stalled: list[asyncio.Handle] | None = None
        """What it is to run once it goes on, never if it is dead; None while it runs."""
        self.tasks: list[asyncio.Task[Any]] = []
        self.context = copy_context()
        self.context.run(CURRENT.set, self)

    def kill(self) -> None:
        """Have it run nothing any more."""
        self.is_dead = True
        if self.stalled is None:
            self.stalled = []

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Have this process do something."""
        task = asyncio.get_running_loop().create_task(work, context=self.context.copy())
        self.tasks.append(task)
        return task


class _Handle(asyncio.Handle):
    def _run(self) -> None:
        if _may_run(self):
            super()._run()


class _TimerHandle(asyncio.TimerHandle):
    def _run(self) -> None:
        if _may_run(self):
            super()._run()


def _may_run(handle: asyncio.Handle) -> bool:
    process: Process | None = handle._context.get(CURRENT)  # type: ignore[attr-defined]
    if process is None:
        return True
    if process.stalled is None:
        return True
    process.stalled.append(handle)
    return False


class _Task(asyncio.Task[Any]):
    """A task whose place in a set does not depend on where it lies in memory."""

    def __init__(self, number: int, *args: Any, **more: Any) -> None:
        self._number = number
        super().__init__(*args, **more)

    def __hash__(self) -> int:
        return self._number


class _Selector:
    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> tuple[()]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen again")
        if timeout > 0:
            self._loop.jump()
        return ()

    def close(self) -> None:
        pass


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs what is ready, in order, and when nothing is, jumps to the next timer. Threads are timers, too."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._now = 0  # ns
        self._chance = chance
        self._selector = _Selector(self)
        self._clock_resolution = 1e-9 / 2  # timers are whole nanoseconds apart; what is to come must not run before
        numbers = itertools.count()
        self.set_task_factory(lambda loop, work, **more: _Task(next(numbers), work, loop=loop, **more))

    def time(self) -> float:
        """Return the seconds since the simulation began."""
        return self._now / _NS

    def time_ns(self) -> int:
        """Return the nanoseconds since the simulation began."""
        return self._now

    def jump(self) -> None:
        """Go on to the next timer."""
        self._now = max(self._now, round(self._scheduled[0].when() * _NS))  # type: ignore[attr-defined]

    def _call_soon(self, callback: Any, args: Any, context: Context | None) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call at a time, to the nanosecond; what is to come is one away at least, so that whoever waits gets on."""
        self._check_closed()  # type: ignore[attr-defined]
        at = max(round(when * _NS), self._now + (when > self.time()))
        timer = _TimerHandle(at / _NS, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":  # type: ignore[override] # noqa: ARG002
        """Do something in a while, in one piece."""
        done: asyncio.Future[T] = self.create_future()

        def work() -> None:
            if done.cancelled():
                return
            try:
                done.set_result(func(*args))
            except Exception as error:
                done.set_exception(error)

        self.call_later(self._chance.uniform(*_THREAD_S), work)
        return done

    def resume(self, process: Process) -> None:
        """Let a process go on that was stalled."""
        held, process.stalled = process.stalled, None
        self._ready.extend(handle for handle in held or () if not handle.cancelled())  # type: ignore[attr-defined]

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


class ThreadPool:
    """Stands for a ``ThreadPoolExecutor``: what it is given is done in a while, or at the latest when it is awaited."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._waiting: list[_Work] = []

    def submit(self, function: Callable[..., Any], *args: Any) -> "_Work":
        """Have something done."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        work = _Work(lambda: function(*args))
        loop.call_later(loop._chance.uniform(*_THREAD_S), work.result)
        self._waiting = [*(one for one in self._waiting if not one.is_done), work]
        return work

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do what is left, unless told not to wait."""
        for work in self._waiting:
            if wait and not cancel_futures:
                work.result()


class VirtualListenerThreads:
    """Stands for the threads of that name: a listener has returned after a while."""

    def __init__(self, listener: Callable[..., Any], _most: int, _name: str) -> None:
        self._listener = listener

    def call(self, *args: Any) -> Any:
        """Have the listener called."""
        return asyncio.get_running_loop().run_in_executor(None, self._listener, *args)

    def stop(self) -> None:
        """There is nothing to end."""


class _Work:
    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self.is_done = False

    def result(self) -> None:
        """Do it, unless that is done."""
        if not self.is_done:
            self.is_done = True
            self._function()
