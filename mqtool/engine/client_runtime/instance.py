"""A client instance: its id, its routes, its heartbeats, and requests from brokers.

(Rules: remoting.md 2.2, 3.9. RocketMQ: ``MQClientInstance``, ``ClientConfig``.)
"""

import asyncio
import contextlib
import functools
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from mqtool.engine.client import calls
from mqtool.engine.client.calls import Call
from mqtool.engine.client.routes import MASTER, broker_to_read, masters, readable_queues, writable_queues
from mqtool.engine.client_runtime import user_code
from mqtool.engine.client_runtime.wire import OnRequest, Wire
from mqtool.engine.remoting.client import TIMEOUT_MS, Answering, own_address, split_addresses
from mqtool.engine.remoting.clock import wall_clock
from mqtool.errors import AnswerTimeoutError, MqtoolError, NotFoundError, UnavailableError, UsageError
from mqtool.formats.bodies import Heartbeat, MessageQueue, TopicRoute
from mqtool.formats.remoting import RemotingCommand
from mqtool.formats.signing import Credentials
from mqtool.formats.topics import DEFAULT_TOPIC

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

T = TypeVar("T")
_AGAIN_S = 1.0  # after work in the background failed
_LOOK_AGAIN_S = 3.0  # for the successor of a broker that fails
NAMESRV_ADDR = "NAMESRV_ADDR"
"""The environment variable with the name server addresses, as for Java clients."""


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """How a client names itself and connects.

    Attributes:
        instance_name: distinguishes clients of one process; generated if not given.
        unit_name: is appended to the client id.
        namespace: prefix of the names of all topics and groups.
        access_key: with ``secret_key``, signs all requests.
        tls: connect with TLS; ``authorities`` is a file of certificates to trust, by default those of the system.
        poll_name_server_interval_ms: how often routes are updated.
        heartbeat_broker_interval_ms: how often heartbeats are sent to brokers.
    """

    instance_name: str = ""
    unit_name: str = ""
    namespace: str = ""
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    tls: bool = False
    authorities: "Path | None" = None
    poll_name_server_interval_ms: int = 30_000
    heartbeat_broker_interval_ms: int = 30_000


def wire_of(
    name_servers: str | Sequence[str] | None, options: ClientOptions, on_request: OnRequest | None = None
) -> Wire:
    """Return the connections of a client with these options; none is open yet.

    Raises:
        UsageError: the addresses or the options are invalid.
    """
    servers = name_servers or os.environ.get(NAMESRV_ADDR, "")
    try:
        addresses = split_addresses(servers if isinstance(servers, str) else ";".join(servers))
    except TypeError:
        raise UsageError(f"name_servers must be host:port;host:port, or a sequence of these, not {servers!r}") from None
    if not addresses:
        raise UsageError(f"no name server is given, and {NAMESRV_ADDR} is not set")
    if bool(options.access_key) != bool(options.secret_key):
        raise UsageError("access_key and secret_key belong together: give both")
    credentials = Credentials(options.access_key, options.secret_key) if options.access_key else None
    context = None
    if options.tls or options.authorities:
        from mqtool.engine.streams.tls import client_context

        context = client_context(options.authorities)
    return Wire(addresses, credentials, context, on_request)


class Instance:
    """The common part of producers and consumers; runs from ``start`` to ``stop``."""

    def __init__(
        self, name_servers: str | Sequence[str] | None, options: ClientOptions, clock: Callable[[], int] = wall_clock
    ) -> None:
        self.wire = wire_of(name_servers, options, self._asked)
        self.options = options
        self.clock = clock
        self.host = own_address()
        name = options.instance_name or f"{os.getpid()}#{time.monotonic_ns()}"
        self.client_id = "@".join(filter(None, (self.host, name, options.unit_name)))
        self.on_request: dict[int, OnRequest] = {}
        """Handlers of requests from brokers, by code."""
        self.heartbeat: Callable[[], Heartbeat] = lambda: Heartbeat(self.client_id)
        self.producers_only = True
        """Whether slaves do not need to know this client."""
        self._routes: dict[str, TopicRoute] = {}
        self._stand_ins: dict[str, TopicRoute] = {}  # for topics that do not exist yet
        # Derived from routes, as every send needs it: rebuilt when a route arrives.
        self._to_write: dict[str, list[MessageQueue]] = {}
        self._masters: dict[str, str] = {}
        self._told: set[str] = set()
        self._look_again_at: dict[str, float] = {}  # by broker name
        self._tasks: set[asyncio.Task[None]] = set()

    # From start to stop

    def start(self) -> None:
        """Update routes and send heartbeats from now on."""
        options = self.options
        for name, interval_ms, work in (
            ("updating routes", options.poll_name_server_interval_ms, self._poll_routes),
            ("sending heartbeats", options.heartbeat_broker_interval_ms, self.send_heartbeats),
        ):
            self.keep_on(name, functools.partial(self._at_intervals, interval_ms, work))

    async def stop(self) -> None:
        """Stop all tasks and close all connections; after a restart, routes are queried again."""
        # A coroutine listener runs in one of these tasks, and may end its own client.
        other_tasks = self._tasks - {asyncio.current_task()}
        for task in other_tasks:
            task.cancel()
        try:
            await asyncio.gather(*other_tasks, return_exceptions=True)
        finally:
            for known in (self._routes, self._stand_ins, self._to_write, self._masters, self._told):
                known.clear()
            await self.wire.close()

    def keep(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run a coroutine until it, or this client, ends."""
        task = user_code.ClientTask(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def keep_on(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> "asyncio.Task[None]":
        """Run a coroutine until it, or this client, ends; if it fails, that is logged, and it is restarted."""
        return self.keep(self._supervised(name, work))

    async def _supervised(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await user_code.awaited(name, work())
                return
            except Exception:
                log.exception("%s: %s failed and will be restarted", self.client_id, name)
            await asyncio.sleep(_AGAIN_S)

    async def _at_intervals(self, interval_ms: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            await work()

    # Routes

    async def route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic, queried if unknown; None if there is no such topic."""
        return self._routes.get(topic) or await self._ask_route(topic)

    def known_to_write(self, topic: str) -> list[MessageQueue] | None:
        """Return the queues of a known route, None if it has not been queried yet."""
        return self._to_write.get(topic)

    async def queues_to_write(self, topic: str, default_queue_count: int) -> list[MessageQueue]:
        """Return the queues that a topic has, or will have when the first message creates it.

        Raises:
            UnavailableError: no name server answers.
            NotFoundError: there is no such topic, and it is not created; or it has no writable queue.
        """
        if queues := self._to_write.get(topic):
            return queues
        if route := self._routes.get(topic):
            queues = self._to_write[topic] = writable_queues(route, topic)
        elif stand_in := self._stand_ins.get(topic):
            queues = writable_queues(stand_in, topic, default_queue_count)
        elif route := await self._ask_route(topic):
            queues = writable_queues(route, topic)
        elif stand_in := await self.wire.request_name_server(calls.route(DEFAULT_TOPIC)):
            self._stand_ins[topic] = stand_in
            self._masters.clear()
            self._tell_new()
            queues = writable_queues(stand_in, topic, default_queue_count)
        else:
            raise NotFoundError(
                f"the topic {topic} does not exist, and no registered broker creates topics automatically"
            )
        if not queues:
            for broker in route.brokers if route else ():
                self.look_for_successor(broker.broker_name)
            raise NotFoundError(f"the topic {topic} has no writable queue")
        return queues

    async def queues_to_read(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic, in order; none if there is no such topic.

        Raises:
            UnavailableError: no name server answers.
        """
        route = await self.route(topic)
        return readable_queues(route, topic) if route else []

    async def _ask_route(self, topic: str) -> TopicRoute | None:
        route = await self.wire.request_name_server(calls.route(topic))
        if route:
            self._know(topic, route)
        return route

    def _know(self, topic: str, route: TopicRoute) -> None:
        self._routes[topic] = route
        self._stand_ins.pop(topic, None)
        self._to_write.pop(topic, None)
        self._masters.clear()
        self._tell_new()

    def look_for_successor(self, broker_name: str) -> None:
        """Query the routes of a failing broker, at most every three seconds: a slave may have been promoted.

        A route in which it has no master is not used. The broker may be restarting, and would be missing until the
        next update.
        """
        if asyncio.get_running_loop().time() >= self._look_again_at.get(broker_name, 0):
            self._look_again_at[broker_name] = math.inf
            self.keep(self._look_for_successor(broker_name))

    async def _look_for_successor(self, broker_name: str) -> None:
        addresses: set[str] = set()
        try:
            for topic, known in [*self._routes.items()]:
                if any(broker.broker_name == broker_name for broker in known.brokers):
                    with contextlib.suppress(MqtoolError):  # the next update of all routes says so
                        route = await self.wire.request_name_server(calls.route(topic))
                        if route and (address := masters(route).get(broker_name)):
                            self._know(topic, route)
                            addresses.add(address)
            for address in addresses:  # it may know this client as a slave does, or have been restarted
                await self._tell_of_us(address)
        finally:
            self._look_again_at[broker_name] = asyncio.get_running_loop().time() + _LOOK_AGAIN_S

    async def _poll_routes(self) -> None:
        for topic in [*self._routes, *self._stand_ins]:
            try:
                await self._ask_route(topic)
            except MqtoolError as error:
                log.warning("cannot update the route of %s: %s", topic, error)

    def _known(self) -> Iterable[TopicRoute]:
        return [*self._routes.values(), *self._stand_ins.values()]

    def address_of(self, broker_name: str) -> str:
        """Return the address of the master with a broker name.

        Raises:
            UnavailableError: no route contains it any more.
        """
        if not self._masters:
            for route in self._known():
                self._masters = masters(route) | self._masters  # the first route with a broker counts
        if address := self._masters.get(broker_name):
            return address
        raise UnavailableError(f"the broker {broker_name} is no longer in any route")

    def broker_to_read(self, broker_name: str, wished_id: int = MASTER) -> tuple[int, str]:
        """Return id and address of a readable broker with a broker name: the preferred one, if it exists.

        Raises:
            UnavailableError: no route contains any.
        """
        for route in self._known():
            if broker := broker_to_read(route, broker_name, wished_id):
                return broker
        raise UnavailableError(f"the broker {broker_name} is no longer in any route")

    # Brokers

    def request(self, broker_name: str, call: Call[T], timeout_ms: int) -> Awaitable[T]:
        """Query the master with a broker name; raises what ``Wire.request`` does."""
        return self.wire.request(self.address_of(broker_name), call, timeout_ms)

    def request_reader(self, broker_name: str, call: Call[T], timeout_ms: int) -> Awaitable[T]:
        """Query the master with a broker name, or a slave if there is no master; raises what ``Wire.request`` does."""
        return self.wire.request(self.broker_to_read(broker_name)[1], call, timeout_ms)

    def send_oneway(self, broker_name: str, command: RemotingCommand) -> Awaitable[None]:
        """Send a one-way request to the master with a broker name; raises what ``Wire.send_oneway`` does."""
        return self.wire.send_oneway(self.address_of(broker_name), command)

    def addresses(self) -> set[str]:
        """Return all brokers that must know this client."""
        if self.producers_only:
            return {address for route in self._known() for address in masters(route).values()}
        return {address for route in self._known() for broker in route.brokers for address in broker.addresses.values()}

    async def send_heartbeats(self) -> None:
        """Send heartbeats to all brokers."""
        await asyncio.gather(*(self._tell_of_us(address) for address in sorted(self.addresses())))

    def _tell_new(self) -> None:
        new = self.addresses() - self._told
        self._told |= new
        for address in sorted(new):
            self.keep(self._tell_of_us(address))

    async def _tell_of_us(self, address: str) -> None:
        send_heartbeat = functools.partial(self.wire.request, address, calls.heartbeat(self.heartbeat()))
        with contextlib.suppress(MqtoolError):  # the next heartbeat follows soon
            try:
                await send_heartbeat()
            except AnswerTimeoutError:
                raise
            except UnavailableError:  # this often reveals a lost connection: retry over a new one
                await send_heartbeat()

    async def unregister(self, producer_group: str = "", consumer_group: str = "") -> None:
        """Tell all brokers that this client has left a group."""

        async def tell(address: str) -> None:
            with contextlib.suppress(MqtoolError):  # they also notice the closed connection
                call = calls.unregister(self.client_id, producer_group, consumer_group)
                await self.wire.request(address, call, TIMEOUT_MS)

        await asyncio.gather(*(tell(address) for address in sorted(self.addresses())))

    def _asked(self, address: str, command: RemotingCommand) -> Answering:
        handler = self.on_request.get(command.code)
        return handler(address, command) if handler else calls.not_supported(command)
