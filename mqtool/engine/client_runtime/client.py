"""The common part of clients: they run from ``start`` to ``shutdown``; producers and consumers have a group."""

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from mqtool.engine.client.names import check_group, with_namespace
from mqtool.engine.client_runtime.instance import ClientOptions, Instance
from mqtool.errors import UsageError

if TYPE_CHECKING:
    from mqtool.engine.client_runtime.client_metrics import ClientMetrics
    from mqtool.engine.client_runtime.message_trace import MessageTrace


class Running(ABC):
    """A client that runs from ``start`` to ``shutdown``, or in an ``async with`` block."""

    _kind: str
    """What kind of client it is, for messages."""
    _is_running = False
    _process = 0
    """The process in which it was started."""

    @property
    def is_running(self) -> bool:
        """Whether it was started and not shut down yet."""
        return self._is_running

    @abstractmethod
    async def start(self) -> None:
        """Start."""

    @abstractmethod
    async def shutdown(self) -> None:
        """Unregister from brokers, and close connections."""

    async def close(self) -> None:
        """Do what ``shutdown`` does, under the name that Python's own classes use."""
        await self.shutdown()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    def _mark_started(self) -> None:
        if self._is_running:
            raise UsageError(f"this {self._kind} is already running")
        self._is_running, self._process = True, os.getpid()

    def _check_running(self) -> None:
        if not self._is_running:
            raise UsageError(f"this {self._kind} is not running: start it first")
        if self._process != os.getpid():
            raise UsageError(
                f"this {self._kind} was started before the process forked: create another one in the child"
            )


class Client(Running):
    """A client of a group, for asyncio."""

    options: ClientOptions
    _reserved: str
    """A group name that applications may not use."""
    _trace: "MessageTrace | None" = None

    def __init__(
        self, group: str, name_servers: str | Sequence[str] | None, options: ClientOptions, clock: Callable[[], int]
    ) -> None:
        """Create a client that does nothing yet; the arguments are those of its subclasses.

        Raises:
            UsageError: the group's name, the addresses or the options are invalid.
        """
        check_group(group, self._reserved)
        self.options = options
        self.group = with_namespace(group, options.namespace)
        self._clock = clock
        self._instance = Instance(name_servers, options, clock)

    @contextlib.asynccontextmanager
    async def _starting(self) -> AsyncIterator[None]:
        """Count as running; if the block raises or is cancelled, everything that it started is stopped.

        Raises:
            UsageError: it is running already.
        """
        self._mark_started()
        try:
            yield
        except BaseException:
            self._is_running = False
            await self._end_all()
            raise

    async def _leave(self, producer_group: str = "", consumer_group: str = "") -> None:
        """Unregister from brokers and end all tasks, even if the caller no longer waits for that."""
        try:
            await self._instance.unregister(producer_group, consumer_group)
        finally:
            await self._end_all()

    async def _end_all(self) -> None:
        """End all tasks and connections."""
        try:
            if self._trace:
                await self._trace.stop()
        finally:
            await self._instance.stop()

    def _measured(self, registry: object) -> "ClientMetrics | None":
        """Return the metrics of this client, None if they are off; the library is loaded only if they are on."""
        if not registry:
            return None
        try:
            from mqtool.engine.client_runtime.client_metrics import ClientMetrics
        except ImportError as error:
            raise UsageError("metrics need prometheus-client: pip install 'mqtool[metrics]'") from error
        return ClientMetrics(self, registry)

    def __repr__(self) -> str:
        state = "running" if self._is_running else "not running"
        return f"<{type(self).__name__} of group {self.group}, {state}, {self.client_id}>"

    @property
    def client_id(self) -> str:
        """The id by which brokers know this client."""
        return self._instance.client_id
