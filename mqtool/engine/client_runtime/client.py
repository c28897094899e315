"""What clients have in common: a life from ``start`` to ``shutdown``; and producers and consumers a group."""

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
    """What it is, in sentences."""
    _is_running = False
    _process = 0
    """The process that it was started in."""

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not yet shut down."""
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
    """A group that nobody may call theirs."""
    _trace: "MessageTrace | None" = None

    def __init__(
        self, group: str, name_servers: str | Sequence[str] | None, options: ClientOptions, clock: Callable[[], int]
    ) -> None:
        """Create a client that does nothing yet; the arguments are those of the kinds.

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
        """Count as running; where the block raises, or is cancelled, nothing of it is left.

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
        """Tell brokers that this client leaves, and end whatever was begun, also where nobody waits for that."""
        try:
            await self._instance.unregister(producer_group, consumer_group)
        finally:
            await self._end_all()

    async def _end_all(self) -> None:
        """End whatever was begun, and all connections."""
        try:
            if self._trace:
                await self._trace.stop()
        finally:
            await self._instance.stop()

    def _measured(self, registry: object) -> "ClientMetrics | None":
        """Return what measures this client, None if nobody wants that; only then its library is loaded."""
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
