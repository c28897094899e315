"""The queues of running brokers for the source ``rocketmq``: where they start and end, and their records."""

import asyncio
import dataclasses
import os
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from mqtool.engine.client import calls, consuming, fetching
from mqtool.engine.client.calls import Call
from mqtool.engine.client.fetching import Fetched
from mqtool.engine.client.names import with_namespace
from mqtool.engine.client.routes import broker_to_read, masters, readable_queues
from mqtool.engine.client_runtime.admin_client import AdminClient
from mqtool.engine.client_runtime.blocking.background import background
from mqtool.engine.client_runtime.given_options import options_of
from mqtool.engine.client_runtime.instance import NAMESRV_ADDR, ClientOptions
from mqtool.engine.client_runtime.wire import together
from mqtool.engine.store.reader import CLOCK_STEP_MS
from mqtool.errors import BusyError, UnavailableError, UsageError
from mqtool.formats.bodies import MessageQueue, TopicRoute
from mqtool.formats.topics import TOOLS_GROUP
from mqtool.spark.options import Options

T = TypeVar("T")

_TRIES = 5
_PAUSE_S = 1.0


class OffsetRange(NamedTuple):
    """The offset of the first message of a queue, and the one after its last."""

    first: int
    stop: int


@dataclasses.dataclass(frozen=True)
class BrokerConnection:
    """How to reach brokers: all that an executor needs to know of it."""

    name_servers: str
    client: Mapping[str, Any]
    """Options of a client, by name."""
    group: str | None = None
    """Whose offsets are kept."""

    @classmethod
    def of(cls, options: Options, kind: type[ClientOptions] = ClientOptions) -> "BrokerConnection":
        """Return what options say, and what the environment of this process says for those that are not given.

        Raises:
            UsageError: an option is invalid, or there is no name server.
        """
        values = options.values
        texts = {"accesskey": "access_key", "secretkey": "secret_key", "namespace": "namespace"}
        client: dict[str, Any] = {name: values[option] for option, name in texts.items() if option in values}
        if "tls" in values:
            client["tls"] = options.flag("tls", False)
        if values.get("authorities"):
            client["authorities"] = Path(values["authorities"])
        client_options = options_of(kind, client, {})
        name_servers = options.either("namesrv", "nameServer") or os.environ.get(NAMESRV_ADDR, "")
        if not name_servers.strip():
            raise UsageError(
                f"no name server given: set the option namesrv, for example to localhost:9876, or set {NAMESRV_ADDR} "
                "in the environment of the driver"
            )
        every = {field.name: getattr(client_options, field.name) for field in dataclasses.fields(client_options)}
        return cls(name_servers, every, values.get("group"))

    @property
    def namespace(self) -> str:
        """The prefix of the names of topics and groups."""
        return str(self.client["namespace"])


class Queues:
    """Asks brokers about queues, in a ``with`` block; of a broker whose master is gone the slave with the least id.

    A server that cannot be reached is asked again, five times in all: it may be starting again.
    """

    def __init__(self, connection: BrokerConnection) -> None:
        self._connection = connection
        self._group = with_namespace(connection.group or TOOLS_GROUP, connection.namespace if connection.group else "")
        self._routes: dict[str, TopicRoute] = {}

    def __enter__(self) -> Self:
        self._admin = background.call(self._made)
        background.run(self._admin.start())
        return self

    def __exit__(self, *_: object) -> None:
        background.run(self._admin.shutdown())

    def _made(self) -> AdminClient:
        return AdminClient(self._connection.name_servers, ClientOptions(**self._connection.client))

    def ends(self, topics: Collection[str], needed: Collection[MessageQueue] = ()) -> dict[MessageQueue, OffsetRange]:
        """Return all queues of topics that can be read; where one that is needed is not there it is looked for again.

        Raises:
            UnavailableError: no name server answers, or a broker does not.
        """
        return background.run(self._ends(topics, {*needed}))

    def offsets_at(self, times: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return for each queue an offset from which on nothing is left out that was stored at a time (ms) or later."""
        asked = (
            self._ask(queue, calls.offset_from(queue.topic, queue.queue_id, time - CLOCK_STEP_MS))
            for queue, time in times.items()
        )
        return dict(zip(times, self._all(asked), strict=True))

    def fetch(self, queue: MessageQueue, offset: int, most: int) -> Fetched:
        """Return records of a queue from an offset on, at once, whether there are any or not."""
        return background.run(self._fetch(queue, offset, most))

    def firsts(self, offsets: Iterable[tuple[MessageQueue, int]]) -> list[Fetched]:
        """Return what each of some queues has at an offset."""
        return self._all(self._fetch(queue, offset, 1) for queue, offset in offsets)

    def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Have brokers note what the group reads next; they are asked once."""
        self._all(
            self._ask_once(queue, calls.set_offset(self._group, queue.topic, queue.queue_id, offset), True)
            for queue, offset in offsets.items()
        )

    def _all(self, work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        return background.run(together(work))

    async def _ends(self, topics: Collection[str], needed: set[MessageQueue]) -> dict[MessageQueue, OffsetRange]:
        queues = await self._queues_of(topics)
        for _ in range(_TRIES - 1):
            if needed <= {*queues}:
                break
            await asyncio.sleep(_PAUSE_S)  # name servers forget a broker that starts again
            queues = await self._queues_of(topics)
        by_broker = {(queue.topic, queue.broker_name): queue for queue in queues}
        queues_of_each = await together(
            self._ask(queue, calls.topic_queues(queue.topic)) for queue in by_broker.values()
        )
        known = dict(zip(by_broker, queues_of_each, strict=True))

        async def ends_of(queue: MessageQueue) -> OffsetRange:
            queue_ends = known[queue.topic, queue.broker_name].get(queue.queue_id)
            if queue_ends:
                return OffsetRange(queue_ends.min_offset, queue_ends.max_offset)
            # Of a topic that is read more widely than written brokers tell only what is written.
            first = await self._ask(queue, calls.min_offset(queue.topic, queue.queue_id))
            return OffsetRange(first, await self._ask(queue, fetching.max_offset(queue)))

        return dict(zip(queues, await together(map(ends_of, queues)), strict=True))

    async def _queues_of(self, topics: Collection[str]) -> list[MessageQueue]:
        names = [with_namespace(topic, self._connection.namespace) for topic in topics]
        routes = await self._patiently(lambda: together(map(self._route, names)))
        return [queue for topic, route in routes if route for queue in readable_queues(route, topic)]

    async def _route(self, topic: str) -> tuple[str, TopicRoute | None]:
        route = await self._admin.request_name_server(calls.route(topic))
        if route:
            self._routes[topic] = route
        return topic, route

    async def _fetch(self, queue: MessageQueue, offset: int, most: int) -> Fetched:
        subscription = consuming.subscribe(queue.topic, "*", 0)
        call = fetching.pull(self._group, queue, offset, most, subscription, hold_ms=0, with_subscription=True)
        return await self._ask(queue, call)

    async def _ask(self, queue: MessageQueue, call: Call[T]) -> T:
        return await self._patiently(lambda: self._ask_once(queue, call))

    async def _ask_once(self, queue: MessageQueue, call: Call[T], of_master: bool = False) -> T:
        try:
            return await self._admin.request(await self._address(queue, of_master), call)
        except (UnavailableError, BusyError):
            self._routes.pop(queue.topic, None)
            raise

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        for _ in range(_TRIES - 1):
            try:
                return await work()
            except (UnavailableError, BusyError):
                await asyncio.sleep(_PAUSE_S)
        return await work()

    async def _address(self, queue: MessageQueue, of_master: bool) -> str:
        route = self._routes.get(queue.topic) or (await self._route(queue.topic))[1]
        broker = broker_to_read(route, queue.broker_name) if route else None
        address = masters(route).get(queue.broker_name) if of_master and route else broker[1] if broker else None
        if address is None:
            raise UnavailableError(f"broker {queue.broker_name} is no longer in the route of {queue.topic}")
        return address
