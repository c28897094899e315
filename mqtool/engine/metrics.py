"""The gauges of brokers as a page for Prometheus, formatted by the library ``prometheus-client``.

Values are read in the event loop, so that they are consistent; a thread formats them.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mqtool.engine.broker.gauges import Gauge
from mqtool.engine.broker.metrics import gauges
from mqtool.engine.http_server import HttpServer
from mqtool.engine.remoting.clock import wall_clock

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import BrokerController

_MAX_CLIENTS = 32


class _Read(Collector):
    """A snapshot of gauges."""

    def __init__(self, gauges: list[Gauge]) -> None:
        self._gauges = gauges

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return ()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        families: dict[str, GaugeMetricFamily] = {}
        for gauge in self._gauges:
            family = families.setdefault(gauge.name, GaugeMetricFamily(gauge.name, gauge.meaning, labels=gauge.labels))
            for values, value in gauge.rows:
                family.add_metric(values, value)
        return families.values()


@contextlib.asynccontextmanager
async def metrics_served(
    brokers: "Sequence[BrokerController]", host: str, port: int, clock: Callable[[], int] = wall_clock
) -> AsyncIterator[str]:
    """Serve the gauges of brokers until the block ends; yields the address.

    Args:
        brokers: of this event loop.
        host: where to listen.
        port: where to listen; 0 chooses one.
        clock: tells the time in ms.

    Raises:
        UnavailableError: the port is taken, or the host has no such address.
        NotPermittedError: this user may not use the port.
    """

    async def page(request: Request) -> Response:
        read = _Read([gauge for broker in brokers for gauge in gauges(broker, clock())])
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        registry = CollectorRegistry()
        registry.register(read)
        return Response(await asyncio.to_thread(encode, registry), headers={"Content-Type": kind})

    server = HttpServer(Starlette(routes=[Route("/{path:path}", page)]), _MAX_CLIENTS)
    at = await server.listen(host, port)
    try:
        yield f"{host}:{at}"
    finally:
        await server.stop()
