"""Registration of a broker and its topics: with the name server of its process, and with others."""

import asyncio
import contextlib
import logging
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mqtool.engine.broker.settings import Role
from mqtool.engine.name_server.name_server import MasterAddress, NameServer, Registering
from mqtool.engine.name_server.refusal import NameServerRefusedError
from mqtool.engine.other_log import Connect, KnownEpoch, epoch_at, members
from mqtool.engine.remoting.client import RemotingClient
from mqtool.errors import MqtoolError
from mqtool.formats.bodies import Registration, build_registration
from mqtool.formats.codes import Perm, RequestCode
from mqtool.formats.headers import BrokerIdentity, RegisterBroker, RegisterBrokerResponse, build_header, parse_header
from mqtool.formats.peer import Peer
from mqtool.formats.remoting import RemotingCommand

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import BrokerController
    from mqtool.formats.config_tables import TopicConfig

log = logging.getLogger(__name__)

_SEARCH_MS = 3000
"""How often a slave without a known master asks for it, and a broker registers that no name server has accepted yet."""


class Registrar:
    """Registers a broker when it starts, every so often, and when its topics change; unregisters it when it stops."""

    def __init__(
        self,
        broker: "BrokerController",
        name_server: NameServer | None,
        peer: Peer,
        elsewhere: Sequence[RemotingClient],
        clock: Callable[[], int],
        connect: Connect,
    ) -> None:
        """Create one; nothing is registered yet.

        Args:
            broker: to register.
            name_server: of this process, if there is one.
            peer: the broker, as that sees it.
            elsewhere: clients of other name servers, one for each; they are closed at the end.
            clock: tells the time in ms.
            connect: returns a client of another broker of its name.
        """
        self._broker = broker
        self._name_server = name_server
        self._peer = peer
        self._clients = elsewhere
        self._failing: set[str] = set()  # name servers
        self._is_accepted = not elsewhere
        """Whether one of the other name servers has accepted a registration."""
        self._clock = clock
        self._connect = connect
        self._wanted = asyncio.Event()
        self.master: MasterAddress | None = None
        """For a slave: the address of its master, according to the last answer of a name server."""
        self._master_changed = asyncio.Event()
        self._rivals: set[str] = set()

    async def master_changed(self) -> None:
        """Wait until name servers name another master than before, or none."""
        await self._master_changed.wait()

    async def start(self) -> None:
        """Register, and continue with that."""
        self._broker.topics.on_change.append(self._register_topics)
        await self._register()
        self._task = asyncio.create_task(self._register_on())

    def register_soon(self) -> None:
        """Register with all name servers again, soon."""
        self._wanted.set()

    async def stop(self) -> None:
        """Unregister from name servers."""
        self._task.cancel()
        if not self._broker.role_changes.is_replaced:  # a name server might remove the master with that id
            identity = self._identity()
            if self._name_server is not None:
                self._name_server.routes.unregister(identity.cluster_name, identity.broker_addr, identity.broker_name)
            command = RemotingCommand(RequestCode.UNREGISTER_BROKER, ext_fields=build_header(identity))
            await asyncio.gather(*(self._tell(client, command) for client in self._clients))
        for client in self._clients:
            await client.close()

    async def _register_on(self) -> None:
        while True:
            self._wanted.clear()
            try:
                async with asyncio.timeout(self._interval_ms / 1000):
                    await self._wanted.wait()
            except TimeoutError:  # nobody waits for this registration
                await self._look_for_rivals()
            # One that was replaced would take turns with the master in the routes of clients.
            if not self._broker.role_changes.is_replaced:
                await self._register()

    async def _look_for_rivals(self) -> None:
        """Log which other brokers have registered with the same name and id since this one has: they take turns."""
        settings, state = self._broker.settings, self._broker.state
        listed = await asyncio.gather(*(members(client, settings) for client in self._clients))
        if self._name_server is not None:
            listed.append(self._name_server.members(settings.cluster_name, settings.broker_name))
        rivals = {addresses[state.broker_id] for addresses in listed if state.broker_id in addresses} - {state.address}
        for address in sorted(rivals - self._rivals):
            log.warning(
                "%s is also registered as %s with id %d, and the two take turns in the routes of clients: %s",
                address,
                settings.broker_name,
                state.broker_id,
                "each slave needs its own brokerId" if state.role is Role.SLAVE else "only one may be the master",
            )
        self._rivals = rivals
        if state.role is not Role.SLAVE and state.address:
            others = {address for addresses in listed for address in addresses.values()} - {state.address}
            await self._step_down_for(sorted(others))

    async def _step_down_for(self, others: Sequence[str]) -> None:
        """Stop being the master if another broker knows a higher epoch: at the start no name server knew of it."""
        epochs = await asyncio.gather(*(epoch_at(self._connect(address)) for address in others))
        answers = zip(others, epochs, strict=True)
        address, (epoch, is_master, _) = max(answers, key=lambda answer: answer[1], default=("", KnownEpoch()))
        state = self._broker.state
        # Two that started on copies of one store at the same time did not see each other: one of them steps down.
        if epoch > state.epoch or (epoch == state.epoch and is_master and address < state.address):
            self._broker.role_changes.step_down(epoch, address)

    @property
    def _interval_ms(self) -> int:
        interval_ms = self._broker.settings.register_interval_ms
        is_searching = self._broker.state.role is Role.SLAVE and self.master is None
        return min(interval_ms, _SEARCH_MS) if is_searching or not self._is_accepted else interval_ms

    async def _register(self) -> None:
        registration = self._registration(self._broker.topics.configs.values())
        self._register_here(registration)
        if self._clients:
            body = build_registration(registration)
            name, address, cluster, broker_id = self._identity()
            header = RegisterBroker(
                name,
                address,
                cluster,
                self._broker.state.ha_address,
                broker_id,
                body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
            )
            command = RemotingCommand(RequestCode.REGISTER_BROKER, ext_fields=build_header(header), body=body)
            answers = await asyncio.gather(*(self._tell(client, command) for client in self._clients))
            accepted = [answer for answer in answers if answer is not None]
            self._is_accepted |= bool(accepted)
            self._note_masters(accepted)

    def _note_masters(self, answers: Sequence[RemotingCommand]) -> None:
        """Use the master of the first name server that knows one."""
        if self._broker.state.role is not Role.SLAVE or not answers:
            return
        responses = [parse_header(RegisterBrokerResponse, answer.ext_fields) for answer in answers]
        self._note_master(
            next(
                (
                    MasterAddress(response.master_addr, response.ha_server_addr or "")
                    for response in responses
                    if response.master_addr
                ),
                None,
            )
        )

    def _note_master(self, master: MasterAddress | None) -> None:
        if master != self.master:
            self.master = master
            self._master_changed.set()
            self._master_changed = asyncio.Event()

    def _register_topics(self, configs: "Iterable[TopicConfig]") -> None:
        """Register topics: with the local name server at once, before the creator of a topic can ask for its route."""
        self._register_here(self._registration(configs))
        if self._clients:
            self._wanted.set()

    def _register_here(self, registration: Registration) -> None:
        if self._name_server is not None and not self._broker.role_changes.is_replaced:
            name, address, cluster, broker_id = self._identity()
            broker = Registering(name, address, cluster, broker_id, self._broker.state.ha_address)
            with contextlib.suppress(NameServerRefusedError):  # refused: the next one may be accepted
                registered = self._name_server.register(broker, registration, self._peer, self._clock(), is_own=True)
                if not self._clients and self._broker.state.role is Role.SLAVE:
                    self._note_master(registered.master)

    def _registration(self, configs: "Iterable[TopicConfig]") -> Registration:
        perm = self._broker.settings.perm | ~(Perm.READ | Perm.WRITE)
        topics = {
            config.topic: config if config.perm & perm == config.perm else replace(config, perm=config.perm & perm)
            for config in configs
        }
        return Registration(self._broker.topics.version, topics)

    def _identity(self) -> BrokerIdentity:
        settings, state = self._broker.settings, self._broker.state
        return BrokerIdentity(settings.broker_name, state.address, settings.cluster_name, state.broker_id)

    async def _tell(self, client: RemotingClient, command: RemotingCommand) -> RemotingCommand | None:
        """Return the answer of a name server, None if it refuses."""
        answer = None
        try:
            answer = await client.invoke(replace(command))
            fault = f"it refused the request: {answer.remark}" if answer.code else ""
        except MqtoolError as error:  # it will be retried
            fault = str(error)
        name_server = client.addresses[0]
        if fault and name_server not in self._failing:  # logged once, not every 30 s
            log.warning("name server %s: %s", name_server, fault)
            self._failing.add(name_server)
        elif not fault and name_server in self._failing:
            log.warning("name server %s is answering again", name_server)
            self._failing.remove(name_server)
        return None if fault else answer
