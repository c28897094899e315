"""Calls code of the application: whatever it raises ends only that call.

In an event loop, SystemExit and KeyboardInterrupt end the loop, with all clients that run in it, and CancelledError
ends the task that receives it. If a listener, a strategy or a selector raises them, they must do neither.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from mqtool.errors import CallbackError


def contained(callback_name: str, error: BaseException) -> Exception:
    """Return an ordinary exception unchanged, and anything else that was raised as a CallbackError."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):  # coroutines may not raise StopIteration
        return error
    wrapped = CallbackError(callback_name, error)
    wrapped.__cause__ = error
    return wrapped


def call(callback_name: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call code of the application in the event loop.

    Raises:
        Exception: raised by it.
        CallbackError: it raised something that is not an ordinary exception.
    """
    try:
        return function(*args)
    except BaseException as error:
        raise contained(callback_name, error)  # noqa: B904  it has its cause


class ClientTask(asyncio.Task[None]):
    """A task of a client that also runs code of the application, which may cancel its own task."""

    inside_cancels = 0

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the task, and note whether its own code did it."""
        if asyncio.current_task(self.get_loop()) is self:
            self.inside_cancels += 1
        return super().cancel(msg)

    async def undo_inside_cancels(self, before: int) -> None:
        """Let the task continue, unless it was cancelled from outside since there were ``before`` cancels."""
        if not self.inside_cancels:
            return
        while self.inside_cancels:
            self.inside_cancels -= 1
            self.uncancel()
        try:
            await asyncio.sleep(0)  # a cancel that was not delivered yet arrives here
        except asyncio.CancelledError:
            if self.cancelling() > before:
                raise


async def awaited(callback_name: str, work: Awaitable[Any]) -> Any:
    """Await code of the application; raises what ``call`` does, and CancelledError if the caller is cancelled."""
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        result = await work
    except BaseException as error:
        if isinstance(task, ClientTask):
            await task.undo_inside_cancels(before)
        if isinstance(error, asyncio.CancelledError) and task and task.cancelling() > before:
            raise
        raise contained(callback_name, error)  # noqa: B904  it knows its cause
    if isinstance(task, ClientTask):
        await task.undo_inside_cancels(before)
    return result


def is_coroutine(function: Callable[..., Any]) -> bool:
    """Return whether calling this returns a coroutine; for objects their ``__call__`` counts."""
    return any(map(inspect.iscoroutinefunction, (function, getattr(function, "__call__", None))))  # noqa: B004


async def called(callback_name: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call code of the application, in a thread unless it is a coroutine; raises what ``call`` and ``awaited`` do."""
    result = (
        call(callback_name, function, *args)
        if is_coroutine(function)
        else await asyncio.to_thread(call, callback_name, function, *args)
    )
    return await awaited(callback_name, result) if inspect.isawaitable(result) else result
