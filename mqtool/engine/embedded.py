"""``mqtool.Broker``: a broker with its name server inside a program, for its tests above all."""

import asyncio
import contextlib
import logging
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Self

from mqtool.engine.broker.following import Following
from mqtool.engine.broker.roles import HA_SETTINGS, check_roles
from mqtool.engine.broker.settings import BrokerSettings, Role
from mqtool.engine.cluster import Cluster, run
from mqtool.engine.doors import PULSAR, PULSAR_ADMIN, further_ports, further_settings, tls_name
from mqtool.engine.name_server.settings import NameServerSettings
from mqtool.engine.remoting.clock import wall_clock
from mqtool.engine.server_configs import BrokerConfig, NameServerConfig
from mqtool.engine.store.paths import STORE_SETTINGS
from mqtool.engine.streams.tls import OF_REGISTRATION, TlsSettings
from mqtool.errors import UsageError

log = logging.getLogger(__name__)


class Broker:
    """An embedded broker and its name server, running from ``with`` to the end of its block.

    ``async with`` runs them in the caller's event loop, ``with`` in a thread of their own. Several can run in one
    process. After it has stopped it can be started again, on the same store if a store was given.
    """

    def __init__(
        self,
        store: "str | PathLike[str] | None" = None,
        *,
        role: str = "",
        host: str = "127.0.0.1",
        port: int = 0,
        name_server_port: int = 0,
        name_servers: Sequence[str] = (),
        pulsar: bool = False,
        settings: Mapping[str, str | int | bool] | None = None,
        clock: Callable[[], int] = wall_clock,
    ) -> None:
        """Create a broker; nothing runs yet.

        Args:
            store: its directory, created if missing; without one it keeps its messages in a temporary directory, which
                is removed when it stops.
            role: ``master``, ``sync_master`` or ``slave``; by default as the settings say. A slave has the id 1, unless
                a setting says otherwise, and finds the master of its ``brokerName`` by ``name_servers``.
            host: the address to listen on.
            port: of the broker, 0 for a free one.
            name_server_port: of its name server, 0 for a free one.
            name_servers: others as ``host:port``, with which it registers instead of its own.
            pulsar: also serve clients of Apache Pulsar and its administrators, on free ports unless the settings
                ``pulsarPort`` and ``pulsarAdminPort`` give them; needs mqtool[pulsar]. The setting ``pulsarTlsPort``
                adds a port for TLS, with a certificate (``tls.server.certPath``, ``tls.server.keyPath``).
            settings: of both, by RocketMQ's names (``flushDiskType``, ``autoCreateTopicEnable``, ``brokerName``, ..).
            clock: returns the time in ms since 1970; a ``VirtualClock`` can be moved.

        Raises:
            UsageError: a setting is invalid.
        """
        configured = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in (settings or {}).items()
        }
        if pulsar:
            configured = {"pulsarPort": "0", "pulsarAdminPort": "0"} | configured
        if role:
            configured |= _settings_of_role(role, configured)
        tls = TlsSettings.of(configured)
        rules, not_of_broker = BrokerSettings().updated(configured)
        check_roles(configured, rules)
        names, not_of_name_server = NameServerSettings().updated(configured)
        self._name_server = None if name_servers else NameServerConfig(host, name_server_port, names, tls)
        of_store = {name: value for name, value in configured.items() if name in STORE_SETTINGS}
        is_replicated = not HA_SETTINGS.isdisjoint(configured)
        self._config = (host, port, rules, of_store, tls, further_ports(configured, tls), is_replicated)
        self._name_servers = name_servers
        self._given_store = store
        self._clock = clock
        useless = {*not_of_broker} & {*not_of_name_server} - STORE_SETTINGS - further_settings().keys()
        known = OF_REGISTRATION if name_servers else frozenset()
        if useless := {name for name in useless - known if not name.startswith("tls.server.")}:
            log.warning("these settings have no effect here: %s", ", ".join(sorted(useless)))
        self.store: Path
        """The folder of its store, known while it runs."""
        self.address = ""
        """Where it listens, ``host:port``."""
        self.door_addresses: Mapping[str, str] = {}
        """Where each of its doors listens, by name."""
        self.pulsar_url = ""
        """Service URL for clients of Apache Pulsar, while it runs and serves them: ``pulsar://host:port``."""
        self.pulsar_tls_url = ""
        """The same with TLS (``pulsarTlsPort``): ``pulsar+ssl://host:port``."""
        self.pulsar_admin_url = ""
        """URL for ``pulsar-admin`` and for clients that look up topics over HTTP: ``http://host:port``."""
        self._cluster: Cluster | None = None
        self.name_server_address = ";".join(name_servers)
        """Name servers for clients, ``host:port``: its own, or those that were given."""

    @property
    def following(self) -> Following | None:
        """How a slave follows its master, known while it runs: which one, how far, and why it has stopped."""
        if self._cluster is None:
            return None
        [rules] = self._cluster.brokers
        return rules.following if rules.state.role is Role.SLAVE else None

    async def __aenter__(self) -> Self:
        """Start broker and name server.

        Raises:
            UnavailableError: a port is in use, or the host is not an address of this machine.
            StoreInUseError: another broker has the store open.
            RecoveryNeededError: the store was not closed, and cannot be recovered.
        """
        async with contextlib.AsyncExitStack() as stack:
            folder = self._given_store or stack.enter_context(tempfile.TemporaryDirectory(prefix="mqtool-broker-"))
            self.store = Path(folder)
            self._cluster = cluster = Cluster(
                self._name_server, [BrokerConfig(self.store, *self._config)], self._name_servers, self._clock
            )
            await stack.enter_async_context(cluster)
            [self.address] = cluster.broker_addresses
            [self.door_addresses] = cluster.door_addresses
            if at := self.door_addresses.get(PULSAR):
                self.pulsar_url = f"pulsar://{at}"
            if at := self.door_addresses.get(tls_name(PULSAR)):
                self.pulsar_tls_url = f"pulsar+ssl://{at}"
            self.pulsar_admin_url = self.door_addresses.get(PULSAR_ADMIN, "")
            self.name_server_address = cluster.name_server_address or self.name_server_address
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def __enter__(self) -> Self:
        """Start broker and name server in a thread; raises what ``__aenter__`` does."""
        started: Future[None] = Future()
        self._ended: Future[None] = Future()
        threading.Thread(target=self._run, args=(started,), name="mqtool broker", daemon=True).start()
        started.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._told.set)
        self._ended.result()

    def _run(self, started: "Future[None]") -> None:
        try:
            run(self._serve(started))
        except BaseException as error:
            (self._ended if started.done() else started).set_exception(error)
        else:
            self._ended.set_result(None)

    async def _serve(self, started: "Future[None]") -> None:
        self._loop, self._told = asyncio.get_running_loop(), asyncio.Event()
        async with self:
            started.set_result(None)
            await self._told.wait()


def _settings_of_role(role: str, configured: Mapping[str, str]) -> dict[str, str]:
    roles = {"master": Role.ASYNC_MASTER, "sync_master": Role.SYNC_MASTER, "slave": Role.SLAVE}
    if role not in roles:
        raise UsageError(f"role={role} is not one of {', '.join(roles)}")
    settings = {"brokerRole": str(roles[role])}
    if role == "slave":
        settings["brokerId"] = configured.get("brokerId", "1")
    return settings
