"""The gauges of brokers for a Prometheus, over HTTP; the library ``prometheus-client`` says how.

Its server runs in threads; what it tells is read in the event loop, where nothing changes meanwhile.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from mqtool.engine.broker.metrics import Gauge, gauges
from mqtool.engine.remoting.clock import wall_clock
from mqtool.errors import NotPermittedError, UnavailableError

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import Broker

log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 30.0
_CLIENT_SECONDS = 10.0
"""For how long a client may say nothing."""
_MOST_CLIENTS = 32
"""At a time: each has a thread."""


class _Brokers(Collector):
    """All gauges of some brokers of one event loop."""

    def __init__(self, brokers: "Sequence[Broker]", clock: Callable[[], int]) -> None:
        self._brokers = brokers
        self._clock = clock
        self._loop = asyncio.get_running_loop()

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return ()  # else they would be read when this is registered

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the gauges as they stand; called by threads of the HTTP server."""
        reading = asyncio.run_coroutine_threadsafe(self._read(), self._loop)
        families: dict[str, GaugeMetricFamily] = {}
        for gauge in reading.result(_PATIENCE_SECONDS):
            family = families.setdefault(gauge.name, GaugeMetricFamily(gauge.name, gauge.meaning, labels=gauge.labels))
            for values, value in gauge.rows:
                family.add_metric(values, value)
        return families.values()

    async def _read(self) -> list[Gauge]:
        return [gauge for broker in self._brokers for gauge in gauges(broker, self._clock())]


def _limit(server: WSGIServer) -> None:
    """Bound what clients of a server cost: threads, and time; who breaks off is no fault to be told of."""
    there: set[object] = set()
    shut = server.shutdown_request

    def has_room(request: Any, client_address: Any) -> bool:  # noqa: ARG001
        if len(there) >= _MOST_CLIENTS:
            return False
        there.add(request)
        return True

    def end(request: Any) -> None:
        there.discard(request)
        shut(request)

    def broken_off(request: Any, client_address: Any) -> None:  # noqa: ARG001
        log.debug("%s asked for metrics and broke off", client_address, exc_info=True)

    handler: Any = server.RequestHandlerClass
    server.RequestHandlerClass = type("_Patient", (handler,), {"timeout": _CLIENT_SECONDS})
    server.verify_request = has_room  # type: ignore[method-assign]
    server.shutdown_request = end  # type: ignore[method-assign]
    server.handle_error = broken_off  # type: ignore[method-assign]


@contextlib.asynccontextmanager
async def metrics_served(
    brokers: "Sequence[Broker]", host: str, port: int, clock: Callable[[], int] = wall_clock
) -> AsyncIterator[str]:
    """Serve the gauges of brokers until the block ends, and give the address.

    Args:
        brokers: of this event loop.
        host: where to listen.
        port: where to listen; 0 chooses one.
        clock: tells the time in ms.

    Raises:
        UnavailableError: the port is taken, or the host has no such address.
        NotPermittedError: this user may not use the port.
    """
    registry = CollectorRegistry()
    registry.register(_Brokers(brokers, clock))
    try:
        server, thread = start_http_server(port, host, registry)
    except PermissionError as error:
        raise NotPermittedError(f"this user may not listen on {host}:{port}") from error
    except OSError as error:
        raise UnavailableError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    _limit(server)
    try:
        yield f"{host}:{server.server_port}"
    finally:
        # In a thread: what is being answered waits for this event loop.
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()
