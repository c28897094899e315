"""Code of the application that a client calls: whatever it raises ends that one call, and nothing else.

In an event loop SystemExit and KeyboardInterrupt end the loop, with all clients that run in it, and CancelledError ends
the task that meets it. Raised by a listener, a strategy or a selector they mean neither.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from mqtool.errors import CallbackError


def contained(callback_name: str, error: BaseException) -> Exception:
    """Return an exception as it is, and anything else that was raised as a CallbackError."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):  # which no coroutine may raise
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
        raise contained(callback_name, error)  # noqa: B904  it knows its cause


async def awaited(callback_name: str, work: Awaitable[Any]) -> Any:
    """Await code of the application; raises what ``call`` does, and CancelledError where the caller is cancelled."""
    try:
        return await work
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and _is_cancelled():
            raise
        raise contained(callback_name, error)  # noqa: B904  it knows its cause


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


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
