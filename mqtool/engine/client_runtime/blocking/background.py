"""The event loop of clients in programs without one: it runs in a thread, one for all clients of the process."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from mqtool.engine.client_runtime.client import Client

T = TypeVar("T")


class Background:
    """An event loop in a thread, from when it is first needed to the end of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Have work done there and return what it comes to."""
        future = self.begin(work)
        try:
            return future.result()
        except BaseException:  # an interrupt, too: nobody waits for it any more
            future.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Call a function there and return what it does."""

        async def called() -> T:
            return function()

        return self.run(called())

    def begin(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Have work done there."""
        return asyncio.run_coroutine_threadsafe(work, self._running())

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = new_loop()
                threading.Thread(target=self._loop.run_forever, name="mqtool clients", daemon=True).start()
            return self._loop


def new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop, that of uvloop where it is installed."""
    with contextlib.suppress(ImportError):
        import uvloop

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        return loop
    return asyncio.new_event_loop()


background = Background()


AnyClient = TypeVar("AnyClient", bound=Client)


class BlockingClient(Generic[AnyClient]):
    """What all clients have in common; any thread may call them."""

    def __init__(self, make: Callable[[], AnyClient]) -> None:
        self._client = background.call(make)

    @property
    def client_id(self) -> str:
        """How brokers call this client."""
        return self._client.client_id

    def start(self) -> None:
        """Begin."""
        background.run(self._client.start())

    def shutdown(self) -> None:
        """Tell brokers that this client leaves, and end its connections; listeners that are at work end first."""
        background.run(self._client.shutdown())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
