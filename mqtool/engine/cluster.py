"""A name server, and later brokers, in one event loop: where rules meet sockets and the clock.

async with Cluster(name_server=NameServerConfig()) as cluster:
print(cluster.name_server_address)
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

from mqtool.engine.name_server.name_server import NameServer
from mqtool.engine.name_server.settings import NameServerSettings
from mqtool.engine.remoting.server import RemotingServer, wall_clock
from mqtool.engine.remoting.tls import TlsSettings

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class NameServerConfig:
    """Where a name server listens, and its settings."""

    host: str = "127.0.0.1"
    port: int = 0  # 0: one that is free
    settings: NameServerSettings = field(default_factory=NameServerSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)


class Cluster:
    """What runs in one event loop; entering it starts all, leaving it stops all."""

    def __init__(self, name_server: NameServerConfig, clock: Callable[[], int] = wall_clock) -> None:
        self._config = name_server
        self._clock = clock
        self.name_server_address = ""

    async def __aenter__(self) -> Self:
        config = self._config
        rules = NameServer(config.settings, self._clock())
        self._server = RemotingServer(rules, config.tls, clock=self._clock)
        port = await self._server.listen(config.host, config.port)
        self.name_server_address = f"{config.host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.stop()


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end, on uvloop where that is installed."""
    with contextlib.suppress(ImportError):
        import uvloop

        result: Result = uvloop.run(main)
        return result
    return asyncio.run(main)
