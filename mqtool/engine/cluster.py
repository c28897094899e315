"""A name server and brokers in one event loop: where rules meet sockets, threads and the clock.

async with Cluster(NameServerConfig(), [BrokerConfig(Path("store"))]) as cluster:
print(cluster.name_server_address, cluster.broker_addresses)
"""

import asyncio
import contextlib
import itertools
import logging
import selectors
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from mqtool.engine.broker.roles import remarks, role_of
from mqtool.engine.broker.settings import MASTER_ID, Role
from mqtool.engine.doors import DOORS, PAGES, REMOTING, tls_name
from mqtool.engine.name_server.kv_configs import write_kv
from mqtool.engine.name_server.name_server import NameServer
from mqtool.engine.name_server.remoting_door import NameServerDoor
from mqtool.engine.other_log import connecting, members
from mqtool.engine.recovering import recover_store
from mqtool.engine.registrar import Registrar
from mqtool.engine.remoting.client import RemotingClient, own_address
from mqtool.engine.remoting.clock import wall_clock
from mqtool.engine.remoting.server import RemotingServer
from mqtool.engine.server_configs import BrokerConfig, NameServerConfig
from mqtool.engine.streams.ports import free_port, is_loopback, resolved_host
from mqtool.engine.streams.server import Limits, StreamServer, most_connections
from mqtool.engine.streams.tls import TlsMode
from mqtool.engine.virtual_clock import VirtualClock
from mqtool.errors import MqtoolError, RecoveryNeededError, UnavailableError, WriteError
from mqtool.formats.peer import Peer

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import BrokerController
    from mqtool.engine.broker.kept_role import KeptRole
    from mqtool.engine.broker.saves import Save
    from mqtool.engine.http_server import HttpServer
    from mqtool.engine.slave import Slave
    from mqtool.engine.store.message_store import MessageStore

log = logging.getLogger(__name__)

Result = TypeVar("Result")
Clock = Callable[[], int]
_FLUSH_LOOK_SECONDS = 0.1
"""How often the flusher looks whether something is due that nobody waits for."""
_VIP_DISTANCE = 2
"""How far below its own the port is on which a broker listens for slaves' questions, and for clients that use it."""
_MAX_SLAVES = 64
_LOOPBACK = "127.0.0.1"
_SOCKETS_AT_A_TIME = 16
"""A request takes some 50 µs or more."""
_ANY_ADDRESS = ("0.0.0.0", "::", "")
_WRITERS = 8
"""Threads that write tables: file systems sync several files together in the time of one."""
_PREPARE_SECONDS = 0.001
"""How long tables are prepared for writing before others have their turn."""


class Cluster:
    """What runs in one event loop; entering it starts all, leaving it stops all.

    Brokers register with the name server in here, if there is one, and with those elsewhere that are named.
    """

    def __init__(
        self,
        name_server: NameServerConfig | None = None,
        brokers: Sequence[BrokerConfig] = (),
        name_servers: Sequence[str] = (),
        clock: Clock = wall_clock,
    ) -> None:
        self._name_server = name_server
        self._brokers = brokers
        self._name_servers = name_servers
        self._clock = clock
        self.name_server_address = ""
        self.broker_addresses: list[str] = []
        self.brokers: list[BrokerController] = []
        """The rules of the brokers, to be asked in the event loop."""
        self.doors: list[dict[str, StreamServer[Any, Any]]] = []
        """The servers of each broker, by the names of its doors."""
        self.door_addresses: list[dict[str, str]] = []
        """Where they listen."""
        self._running: list[_RunningBroker] = []
        self.replication_addresses: list[str] = []
        """Where slaves reach each broker; empty for one whose port for them was taken."""

    async def __aenter__(self) -> Self:
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._catching_up: list[Callable[[int], None]] = []
        async with contextlib.AsyncExitStack() as stack:
            rules = None
            if self._name_server is not None:
                config = self._name_server
                rules = NameServer(config.settings, self._clock())
                door = NameServerDoor(rules)
                server = RemotingServer(door, config.tls, clock=self._clock)
                port = await server.listen(config.host, config.port)
                stack.push_async_callback(server.stop)
                keeper = _KvKeeper(door, server, self._clock)
                stack.push_async_callback(keeper.stop)
                self.name_server_address = f"{config.host}:{port}"
                self._catching_up += [rules.routes.heard_all, server.catch_up]
            for broker in self._brokers:
                await self._start(broker, rules, stack)
            if isinstance(self._clock, VirtualClock):
                self._clock.on_advance.append(self._follow)
                stack.callback(self._clock.on_advance.remove, self._follow)
            self._stack = stack.pop_all()
        return self

    async def _start(
        self, config: BrokerConfig, name_server: NameServer | None, stack: contextlib.AsyncExitStack
    ) -> None:
        """Start a broker in the role that it has; what is said of it here is said again when that is changed."""
        from mqtool.engine.role_keeper import RoleKeeper

        number = len(self.brokers)

        def make(config: BrokerConfig, epoch: int, has_changed: bool, changes: RoleKeeper) -> _RunningBroker:
            life = _Life(epoch, configured, has_changed, changes.change, changes.cut, told)
            return _RunningBroker(config, name_server, self._name_servers, self._clock, life)

        def told(broker: "_RunningBroker") -> None:
            keeper.listens_on(int(broker.rules.address.rpartition(":")[2]))
            listed: tuple[tuple[list[Any], Any], ...] = (
                (self.broker_addresses, broker.rules.address),
                (self.brokers, broker.rules),
                (self.doors, broker.servers),
                (self.door_addresses, broker.addresses),
                (self.replication_addresses, broker.rules.state.ha_address),
                (self._running, broker),
            )
            for every, its_own in listed:
                every[number : number + 1] = [its_own]  # added at the first start

        configured = (role_of(config.settings), config.settings.broker_id)
        keeper = RoleKeeper(config, self._name_servers, make)
        await keeper.start()
        stack.push_async_callback(keeper.stop)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def _follow(self) -> None:
        """Have everything done that is due, in the thread of the event loop, before this returns to any other."""
        if threading.get_ident() == self._thread:
            self._catch_up()
        else:
            asyncio.run_coroutine_threadsafe(self._catch_up_soon(), self._loop).result()

    async def _catch_up_soon(self) -> None:
        self._catch_up()

    def _catch_up(self) -> None:
        now = self._clock()
        for catch_up in self._catching_up:
            catch_up(now)
        for broker in self._running:
            broker.catch_up(now)


class _KvKeeper:
    """Has the kv config of a name server written in a thread."""

    def __init__(self, door: NameServerDoor, server: RemotingServer, clock: Clock) -> None:
        self._door = door
        self._kv = door.rules.kv
        self._server = server
        self._clock = clock
        self._wanted = asyncio.Event()
        self._is_stopping = False
        self._kv.on_wanted = self._wanted.set
        self._task = asyncio.create_task(self._keep_on())

    async def stop(self) -> None:
        """Return when all is written and answered."""
        self._is_stopping = True
        self._wanted.set()
        await self._task
        self._kv.on_wanted = None

    async def _keep_on(self) -> None:
        while not self._is_stopping:
            await self._wanted.wait()
            self._wanted.clear()
            while (pending := self._kv.take()) is not None:
                changes, failure = self._kv.changes, ""
                try:
                    await asyncio.to_thread(write_kv, *pending)
                except MqtoolError as error:
                    failure = str(error)
                self._server.send(self._door.kept_kv(changes, failure))
                self._server.turn(self._clock())


class _Life(NamedTuple):
    """A broker from its start in a role to the end of that."""

    epoch: int
    configured: tuple[Role, int]  # role and id by its settings
    has_changed: bool  # it was something else a moment before
    on_change: "Callable[[KeptRole], None]"
    on_cut: "Callable[[int, KeptRole], str]"
    on_start: "Callable[[_RunningBroker], None]"


class _RunningBroker:
    """A broker on its sockets, with a thread that flushes its store."""

    def __init__(
        self,
        config: BrokerConfig,
        name_server: NameServer | None,
        name_servers: Sequence[str],
        clock: Clock,
        life: _Life,
    ) -> None:
        self._config = config
        self._life = life
        self._name_server = name_server
        self._elsewhere = [RemotingClient([address], config.tls.as_client) for address in name_servers]
        self._clock = clock
        self._flush_wanted = asyncio.Event()
        self._is_stopping = False
        self._is_full = False  # of the disk, for the checkpoint
        self._saves_wanted = asyncio.Event()
        self._writers = ThreadPoolExecutor(_WRITERS, "mqtool writer")
        self.servers: dict[str, StreamServer[Any, Any]] = {}
        """By the names of their doors."""
        self.addresses: dict[str, str] = {}
        self._pages: list[HttpServer] = []
        self._slave: Slave | None = None

    async def start(self) -> None:
        """Open the store, recovered if need be, listen, and register.

        Raises:
            MqtoolError: the store cannot be used, or the address.
        """
        # Loaded here: a name server alone needs none of it.
        from mqtool.engine.broker.broker import BrokerController
        from mqtool.engine.replication_server import ReplicationServer
        from mqtool.engine.slave import Slave

        config = self._config
        self._connect = connecting(config.settings, config.tls)
        self.store = await self._open_store()
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self.store.close)
            fetched_offset = self.store.end_offset
            if self.store.was_recovered and role_of(config.settings) is not Role.SLAVE:
                await self._take_missing_tail()
            if self._life.has_changed:  # tables that are copied from a master are some seconds old
                self.store.was_recovered = True
            self.rules: BrokerController = BrokerController(self.store, self._clock(), config.settings)
            self.rules.state.epoch, self.rules.state.configured = self._life.epoch, self._life.configured
            # One that was killed while it became the master has not changed a moment before.
            was_slave = self._life.has_changed or self._life.configured[0] is Role.SLAVE
            has_fetched = self.store.end_offset > fetched_offset
            if (was_slave or has_fetched) and self.rules.state.role is not Role.SLAVE:
                for topic in self.rules.topic_requests.make_missing(self._clock(), fetched_offset):
                    log.warning(
                        "topic %s was not copied as it is now, but messages of it were: it has their queues", topic
                    )
            self.rules.role_changes.on_change = self._life.on_change
            self.rules.role_changes.on_cut = self._life.on_cut
            for remark in remarks(config.settings):
                log.warning("%s", remark)
            limits = Limits(connections=_MAX_SLAVES, idle_seconds=float("inf"))  # the rules look after idle slaves
            self.replication = ReplicationServer(self.rules, limits, self._clock)
            stack.push_async_callback(self.replication.stop)
            self.replication.master.on_news = self._send_to_slaves
            host = config.settings.host or _address_of(config.host)
            wanted = config.port or free_port(config.host, (1, -_VIP_DISTANCE))
            resolved = await resolved_host(host)
            self.rules.listens_at(f"{host}:{wanted}", f"{resolved}:{wanted}")
            await self._open_doors(stack, host, wanted)
            _, _, port = self.addresses[REMOTING].rpartition(":")
            self.rules.listens_at(f"{host}:{port}", f"{resolved}:{port}")
            await self._listen_beside(self._listen_for_vips, int(port))
            await self._listen_beside(self._listen_for_slaves, int(port))
            stack.pop_all()
        self.rules.group_commit.on_wanted = self._flush_wanted.set
        self.rules.saves.on_wanted = self._saves_wanted.set
        self.store.removes_aside = self.store.makes_aside = True
        self._removal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._removal.set_result(None)
        self._making = self._removal
        self.store.log.on_little_room = self._make_files
        self._flusher = asyncio.create_task(self._flush_on())
        self._saver = asyncio.create_task(self._save_on())
        peer = Peer(0, config.host, config.port)  # the broker, as the name server in here sees it
        self._registrar = Registrar(self.rules, self._name_server, peer, self._elsewhere, self._clock, self._connect)
        await self._registrar.start()
        if self.rules.state.role is Role.SLAVE:
            self._slave = Slave(self.rules, self._registrar, self._connect, self._clock)
            self._slave.start()
        self._life.on_start(self)

    async def _take_missing_tail(self) -> None:
        """Get back from slaves what the log of this master has lost."""
        from mqtool.engine.broker.acknowledged import Acknowledged
        from mqtool.engine.missing_tail import take_missing_tail

        settings, note = self._config.settings, Acknowledged(self.store.root, self.store.end_offset, was_left=True)

        async def slaves() -> list[str]:
            known = [await members(client, settings) for client in self._elsewhere]
            if self._name_server is not None:
                known.append(self._name_server.members(settings.cluster_name, settings.broker_name))
            return [
                address for addresses in known for broker_id, address in addresses.items() if broker_id != MASTER_ID
            ]

        await take_missing_tail(self.store, slaves, self._connect, is_short=note.is_log_short)

    async def _open_doors(self, stack: contextlib.AsyncExitStack, host: str, port: int) -> None:
        config = self._config
        ports = {REMOTING: port, **config.further_ports}
        limits = Limits(connections=most_connections(1 + len(ports)))
        only_tls = replace(config.tls, mode=TlsMode.ENFORCING)
        for name, door in DOORS.items():
            for listener, tls in ((name, config.tls), (tls_name(name), only_tls)):
                if listener not in ports:
                    continue
                server = self.servers.get(name) or door.make(self.rules, config.tls, limits, self._clock)
                at = await server.listen(config.host, ports[listener], tls)
                if name not in self.servers:
                    stack.push_async_callback(server.stop)
                self.servers[name], self.addresses[listener] = server, f"{host}:{at}"
        for name in (page for page in PAGES if page in ports):
            pages = PAGES[name].make(self.servers)
            at = await pages.listen(config.host, ports[name])
            stack.push_async_callback(pages.stop)
            self._pages.append(pages)
            self.addresses[name] = f"http://{host}:{at}"

    async def _listen_beside(self, listen: Callable[[int], Coroutine[Any, Any, None]], port: int) -> None:
        """Listen on a port beside that of the broker, which is there without it where nobody has asked for slaves.

        Raises:
            UnavailableError: the port is taken, and slaves are wanted.
        """
        try:
            await listen(port)
        except MqtoolError as error:
            if self._config.is_replicated:
                raise
            level = logging.WARNING if self._config.port else logging.INFO  # nobody relies on one that was chosen
            log.log(level, "%s", error)

    async def _listen_for_vips(self, port: int) -> None:
        """Listen where slaves ask for tables, and clients send to whose ``vipChannelEnabled`` is true."""
        vip_port = port - _VIP_DISTANCE
        try:
            if vip_port > 0:
                await self.servers[REMOTING].listen(self._config.host, vip_port)
        except MqtoolError as error:
            text = f"no fast port (listenPort - {_VIP_DISTANCE}) for slaves and clients with VIP channels: {error}"
            raise UnavailableError(text) from error

    async def _listen_for_slaves(self, port: int) -> None:
        """Listen for slaves, on this machine's own address where they may not come from elsewhere."""
        config, settings = self._config, self._config.settings
        host = _LOOPBACK if self.replication.is_of_loopback and not is_loopback(config.host) else config.host
        try:
            at = await self.replication.listen(host, settings.ha_port or port + 1)
        except MqtoolError as error:
            raise UnavailableError(f"no port for slaves (haListenPort, else listenPort + 1): {error}") from error
        self.rules.state.ha_address = f"{settings.ha_host or _address_of(config.host)}:{at}"
        if host != config.host and config.is_replicated:
            log.warning("slaves are served on %s:%d only: use --ha-allow CIDR to allow others", host, at)

    async def stop(self) -> None:
        """Tell name servers and clients, write everything down and close the store.

        Raises:
            MqtoolError: the disk failed, now or before.
        """
        if self._slave:
            await self._slave.stop()
        await self._registrar.stop()
        self._is_stopping = True
        self.store.log.on_little_room = None
        self._flush_wanted.set()
        self._saves_wanted.set()
        await self._flusher
        await self._removal
        await self._making
        self.rules.tick(self._clock())
        await self._saver
        stops = [server.stop() for server in (self.replication, *self.servers.values())]
        await asyncio.gather(*stops, *(pages.stop() for pages in self._pages))
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        """Write everything down, when nobody is served any more; in a thread: others in this loop continue."""
        self._writers.shutdown()
        self.store.removes_aside = False
        try:
            self.rules.stop(self._clock())
        finally:
            self.store.close()

    def catch_up(self, now: int) -> None:
        """Do what is due by ``now``, to which the time has jumped: nobody could be heard of in between."""
        if self._is_stopping:
            return
        self.rules.clients.heard_all(now)
        self._catch_up_servers(now)
        self.store.remove_expired()
        if self.store.wants_files:
            self.store.make_files()
            self._catch_up_servers(now)
        self._registrar.register_soon()

    def _catch_up_servers(self, now: int) -> None:
        for server in (*self.servers.values(), self.replication):
            server.catch_up(now)

    def _turn(self) -> None:
        """Have done soon what is due; what comes of it wakes the servers of those whom it concerns."""
        self.servers[REMOTING].turn_soon()

    def _send_to_slaves(self) -> None:
        """Send the log to slaves: at once where one message has come alone, so that they work while it is handled."""
        if any(server.handles_one for server in self.servers.values()):
            self.replication.turn_now()
        else:
            self.replication.turn_soon()

    # The store

    async def _open_store(self) -> "MessageStore":
        from mqtool.engine.store.message_store import MessageStore
        from mqtool.engine.store.paths import StoreConfig

        config = StoreConfig(self._config.store_settings)
        try:
            store = MessageStore(self._config.store, config, now=self._clock())
        except RecoveryNeededError as needed:
            log.warning("%s; recovering", needed)
            await self._recover(needed)
            store = MessageStore(self._config.store, config, now=self._clock())
            store.was_recovered = store.was_repaired = True
        else:
            if store.was_recovered:
                cut = f"; {store.cut_size:,} bytes of in-flight writes were cut off" if store.cut_size else ""
                log.warning("%s had not been closed: recovered from its checkpoint%s", self._config.store, cut)
        return store

    async def _recover(self, needed: RecoveryNeededError) -> None:
        recovered = await recover_store(self._config.store, self._config.store_settings)
        if recovered.has_given_up:
            log.warning("recovery lost messages: %s", recovered.remarks)
        elif not recovered.is_done:
            raise RecoveryNeededError(f"{needed}; recovery failed: {recovered.remarks}")

    async def _flush_on(self) -> None:
        """Flush for those who wait and when it is due, one flush at a time in a thread, until told to stop."""
        loop, store, awaited = asyncio.get_running_loop(), self.store, self.rules.group_commit
        while not self._is_stopping:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FLUSH_LOOK_SECONDS):
                    await self._flush_wanted.wait()
            self._flush_wanted.clear()
            try:
                while awaited.wants_flush and store.failure is None:
                    await loop.run_in_executor(None, store.flush)
                    self._turn()
                now = self._clock()
                if store.flush_is_due(now):
                    await loop.run_in_executor(None, store.flush)
                if store.queue_flush_is_due(now):
                    await loop.run_in_executor(None, self._flush_queues)
                if store.has_expired and self._removal.done():  # of a gigabyte, perhaps: no flush waits for that
                    self._removal = loop.run_in_executor(None, store.remove_expired)
                self._make_files()
            except MqtoolError:
                log.exception("the store no longer accepts messages")
                self._turn()
                return

    def _flush_queues(self) -> None:
        try:
            self.store.flush_queues()
        except MqtoolError as error:
            if self.store.failure is not None:
                raise
            if not self._is_full:
                log.warning("%s; retrying", error)
            self._is_full = True
        else:
            self._is_full = False

    def _make_files(self) -> None:
        """Have a thread make the files that are wanted; in the event loop."""
        if self.store.wants_files and self._making.done():
            self._making = asyncio.get_running_loop().run_in_executor(None, self.store.make_files)
            self._making.add_done_callback(lambda _: self._turn())

    async def _save_on(self) -> None:
        """Write the tables that have changed in threads, until told to stop and all is written."""
        saves = self.rules.saves
        while True:
            self._saves_wanted.clear()
            batch = saves.take()
            if batch is None:
                if self._is_stopping:
                    return
                await self._saves_wanted.wait()
                continue
            failed: dict[Path, MqtoolError] = {}
            for in_any_order, neighbours in itertools.groupby(batch.saves, lambda save: save.in_any_order):
                await self._save(neighbours, _WRITERS if in_any_order else 1, failed)
            saves.finished(batch, failed, self._clock())
            self._turn()

    async def _save(self, saves: Iterable["Save"], at_once: int, failed: "dict[Path, MqtoolError]") -> None:
        """Prepare tables here, and write several at once in threads; errors are added to ``failed``."""
        loop, writing = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        turn_end = loop.time() + _PREPARE_SECONDS
        for save in saves:
            pieces = []
            with _noting(save, failed):
                for piece in save.pieces():
                    pieces.append(piece)
                    if loop.time() > turn_end:
                        await asyncio.sleep(0)  # others have their turn
                        turn_end = loop.time() + _PREPARE_SECONDS
            if save.path not in failed:
                if len(writing) == at_once:
                    _, writing = await asyncio.wait(writing, return_when=asyncio.FIRST_COMPLETED)
                writing.add(asyncio.create_task(self._write(save, pieces, failed)))
        if writing:
            await asyncio.wait(writing)

    async def _write(self, save: "Save", pieces: list[bytes], failed: "dict[Path, MqtoolError]") -> None:
        with _noting(save, failed):
            await asyncio.get_running_loop().run_in_executor(self._writers, _write_pieces, save, pieces)


@contextlib.contextmanager
def _noting(save: "Save", failed: "dict[Path, MqtoolError]") -> Iterator[None]:
    """Note that a table could not be written: answers wait for it, so this must continue."""
    try:
        yield
    except MqtoolError as error:
        failed[save.path] = error
    except Exception as error:
        log.exception("writing %s failed", save.path)
        failed[save.path] = WriteError(f"{save.path} cannot be written: {error}")


def _write_pieces(save: "Save", pieces: list[bytes]) -> None:
    save.write(save.path, b"".join(pieces))


def _address_of(host: str) -> str:
    """Return the address under which others reach who listens on ``host``."""
    if host not in _ANY_ADDRESS:
        return host
    return own_address()


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end, on uvloop where that is installed."""
    with contextlib.suppress(ImportError):
        import uvloop

        result: Result = uvloop.run(main)
        return result
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(_SomeAtATime())) as runner:
        return runner.run(main)


class _SomeAtATime(selectors.DefaultSelector):
    """Gives a loop some of the sockets at a time that are ready: when all clients come at once, it looks up in between.

    What is due by then, and what was woken, need not wait until thousands of sockets have been read.
    """

    def __init__(self) -> None:
        super().__init__()
        self._left: list[tuple[selectors.SelectorKey, int]] = []

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return some that are ready: those that were so when it was asked before come first."""
        if self._left:
            batch, self._left = self._left[:_SOCKETS_AT_A_TIME], self._left[_SOCKETS_AT_A_TIME:]
            known = self.get_map()
            # One that was changed meanwhile is told again, if it is still ready.
            return [(key, events) for key, events in batch if known.get(key.fd) is key]
        ready = super().select(timeout)
        if len(ready) > _SOCKETS_AT_A_TIME:
            self._left = ready[_SOCKETS_AT_A_TIME:]
            return ready[:_SOCKETS_AT_A_TIME]
        return ready
