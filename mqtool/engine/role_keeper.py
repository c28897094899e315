"""A broker in its current role: when the role changes it restarts in its process, on the same ports.

Before it becomes a master it asks the name servers for others of its name, and these for the epoch of the last
change of roles that they know: if that is higher than its own, or another is the master by the same change, this one is
not the master.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mqtool.engine.broker.kept_role import KeptRole, read_role, with_kept_role, write_role
from mqtool.engine.broker.roles import role_of
from mqtool.engine.broker.settings import MASTER_ID, BrokerSettings, Role
from mqtool.engine.other_log import KnownEpoch, connecting, epoch_at, members
from mqtool.engine.recovering import recover_store
from mqtool.engine.remoting.client import RemotingClient
from mqtool.errors import MqtoolError, UnavailableError

if TYPE_CHECKING:
    from mqtool.engine.server_configs import BrokerConfig

log = logging.getLogger(__name__)

_CUT_AGAIN_SECONDS = 60.0
"""How long to wait before the end of a log is cut again, after a failure; the broker is restarted for it."""
_AGAIN_SECONDS = 1.0


class _Other(NamedTuple):
    """Another broker of the name, as a name server knows it."""

    broker_id: int
    address: str


_NOBODY = _Other(MASTER_ID, ""), KnownEpoch()


class RunningBroker(Protocol):
    """A broker in one role, from its start to its end."""

    async def start(self) -> None:
        """Begin."""
        ...

    async def stop(self) -> None:
        """End."""
        ...


class RoleKeeper:
    """Runs a broker, restarting it when its role changes."""

    def __init__(
        self,
        config: "BrokerConfig",
        name_servers: Sequence[str],
        make: Callable[["BrokerConfig", int, bool, "RoleKeeper"], RunningBroker],
    ) -> None:
        """Make one; nothing runs yet.

        Args:
            config: of the broker; the role kept in its store takes precedence.
            name_servers: remote ones, which are asked for others of its name.
            make: returns the broker, not started, in the role of the settings that it is given; besides it gets its
                epoch, whether it was something else a moment before, and this, to be told of changes.
        """
        self._config = config
        self._name_servers = name_servers
        self._make = make
        self._ports: BrokerConfig = config
        self._changing: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        """Held while a broker starts or is replaced: it answers requests, also for a change, before it has started."""
        self._is_stopping = asyncio.Event()
        self._running: RunningBroker | None = None
        self._failed_cut = ""
        self._cut_again_at = 0.0  # by the clock of the loop

    async def start(self) -> None:
        """Start in the role given by the store and the settings.

        Raises:
            UnavailableError: it would be a master, and there is another.
            MqtoolError: it cannot begin.
        """
        kept = read_role(self._config.store)
        settings, epoch = with_kept_role(self._config.settings, kept)
        if settings != self._config.settings:
            log.warning(
                "according to its store, this broker is %s, id %d, epoch %d", settings.role, settings.broker_id, epoch
            )
        if role_of(settings) is not Role.SLAVE:
            settings, epoch = await self._if_it_is_the_master(settings, epoch)
        async with self._one_at_a_time:
            running = self._make(replace(self._config, settings=settings), epoch, False, self)
            await running.start()
            self._running = running

    def listens_on(self, port: int) -> None:
        """Make the next run listen on the port of this one."""
        self._ports = replace(self._config, port=port)

    async def stop(self) -> None:
        """Stop, after finishing a change of roles."""
        self._is_stopping.set()
        if self._changing is not None:
            await self._changing
        if self._running is not None:
            await self._running.stop()

    def change(self, kept: KeptRole) -> None:
        """Restart the broker in another role."""
        self._changing = asyncio.create_task(self._begin_anew(kept))

    def cut(self, at: int, now: KeptRole) -> str:
        """Restart the slave without the end of its log, which is set aside; return why not, if it failed a moment ago.

        Args:
            at: where the log is to end.
            now: what the broker is, and stays.
        """
        if self._failed_cut and asyncio.get_running_loop().time() < self._cut_again_at:
            return self._failed_cut
        self._changing = asyncio.create_task(self._begin_anew(now, at))
        return ""

    async def _cut(self, at: int) -> None:
        config = self._config
        try:
            cut = await recover_store(config.store, config.store_settings, f"--cut-at={at}")
            [reason] = cut.remarks.splitlines()[-1:] or ["it was killed"]
            failure = "" if cut.is_done else reason.removeprefix("mqtool: ")
        except OSError as error:  # no process can be started
            failure = str(error)
        if not failure:
            self._failed_cut = ""
            log.warning(
                "the log now ends at %s; what came after it is set aside in %s: `mqtool undo -s %s --list`",
                f"{at:,}",
                f"{config.store}.mqtool",
                config.store,
            )
        else:
            self._failed_cut = f"the end of its log cannot be cut: {failure}"
            self._cut_again_at = asyncio.get_running_loop().time() + _CUT_AGAIN_SECONDS
            log.error("%s", self._failed_cut)

    async def _begin_anew(self, kept: KeptRole, cut_at: int | None = None) -> None:
        async with self._one_at_a_time:
            if self._running is not None:  # otherwise it could not start, or has been stopped
                await self._replace(self._running, kept, cut_at)

    async def _replace(self, before: RunningBroker, kept: KeptRole, cut_at: int | None) -> None:
        settings = replace(self._config.settings, role=kept.role, broker_id=kept.broker_id)
        self._running = None
        try:
            await before.stop()
        except MqtoolError:
            log.exception("the broker's previous role did not stop cleanly")
        if cut_at is not None:
            await self._cut(cut_at)
        while not self._is_stopping.is_set():
            running = self._make(replace(self._ports, settings=settings), kept.epoch, True, self)
            try:
                await running.start()
            except MqtoolError as error:
                log.error("this broker is not running: it cannot become %s: %s; retrying", kept.role, error)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_AGAIN_SECONDS):
                        await self._is_stopping.wait()
                continue
            self._running = running
            log.warning("this broker is now %s, id %d, epoch %d", kept.role, kept.broker_id, kept.epoch)
            return

    # Others of its name

    async def _if_it_is_the_master(self, settings: BrokerSettings, epoch: int) -> tuple[BrokerSettings, int]:
        """Return settings and epoch of a broker that is to be a master, or those of a slave where that is another."""
        others = await self._epochs(settings)
        broker, (master_epoch, is_master, _) = max(others, key=lambda answer: answer[1], default=_NOBODY)
        address = broker.address
        # The same epoch has one that runs on a copy of this store, or of which this store is a copy.
        if master_epoch < epoch or (master_epoch == epoch and not is_master):
            for other, known in others:
                if other.broker_id == MASTER_ID and known.is_no_slave:
                    log.error(
                        "%s is running as the master of %s too, and was never replaced by a promotion: the two take "
                        "turns in the routes of clients, and each has only the messages that it was sent; stop one, "
                        "and start it with another brokerName, or as a slave of the other with an empty store",
                        other.address,
                        settings.broker_name,
                    )
            return settings, epoch
        configured = self._config.settings
        if role_of(configured) is not Role.SLAVE:
            raise UnavailableError(
                f"{settings.broker_name} has another master since epoch {master_epoch}, according to {address}, and "
                f"this broker is at epoch {epoch}: start it with brokerRole=SLAVE and a brokerId above 0"
            )
        log.warning(
            "there is another master since epoch %d, according to %s: this broker is a slave again",
            master_epoch,
            address,
        )
        role, number = role_of(configured), configured.broker_id
        write_role(self._config.store, KeptRole(role, number, master_epoch, role, number))
        return configured, master_epoch

    async def _epochs(self, settings: BrokerSettings) -> list[tuple[_Other, KnownEpoch]]:
        """Return others of its name, and the epoch that each knows."""
        connect = connecting(settings, self._config.tls)
        listed = await asyncio.gather(*(self._others(name_server, settings) for name_server in self._name_servers))
        others = [*{other.address: other for answer in listed for other in sorted(answer, reverse=True)}.values()]
        epochs = await asyncio.gather(*(epoch_at(connect(other.address)) for other in others))
        return list(zip(others, epochs, strict=True))

    async def _others(self, name_server: str, settings: BrokerSettings) -> list[_Other]:
        client = RemotingClient([name_server], self._config.tls.as_client)
        try:
            return [_Other(*member) for member in (await members(client, settings)).items()]
        finally:
            await client.close()
