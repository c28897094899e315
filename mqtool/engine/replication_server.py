"""The port of a broker for its slaves: connects their sockets with the rules of a master.

The stream has no authentication and no TLS: who may connect is decided by address.
"""

import ipaddress
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mqtool.engine.broker.settings import BrokerSettings, Role
from mqtool.engine.replication.frames import ReportParser, other_protocol
from mqtool.engine.replication.master import Master, MasterSettings
from mqtool.engine.streams.server import Limits, StreamServer
from mqtool.errors import MqtoolError, UsageError
from mqtool.formats.peer import Buffer, Peer

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import BrokerController

log = logging.getLogger(__name__)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_LOOPBACK = ("127.0.0.0/8", "::1/128")
_DIALECT_4 = 4


def allowed_networks(text: str) -> tuple[Network, ...]:
    """Return the networks that slaves may come from, of a list with commas between; empty: this machine's loopback.

    >>> [str(network) for network in allowed_networks("10.0.0.0/8, 192.168.1.7")]
    ['10.0.0.0/8', '192.168.1.7/32']

    Raises:
        UsageError: an entry is not a network.
    """
    try:
        return tuple(ipaddress.ip_network(item.strip()) for item in text.split(",") if item.strip()) or tuple(
            map(ipaddress.ip_network, _LOOPBACK)
        )
    except ValueError as error:
        raise UsageError(f"{error}: give networks like 10.0.0.0/8, separated by commas (haAllow, --ha-allow)") from None


def master_settings(settings: BrokerSettings, role: Role) -> MasterSettings:
    """Return the settings of a master, from those of a broker."""
    is_dialect_4 = settings.ha_dialect == _DIALECT_4
    required = 0
    if role is Role.SYNC_MASTER:
        required = 1 if is_dialect_4 else settings.in_sync_replicas - 1
    return MasterSettings(
        settings.ha_heartbeat_ms,
        settings.ha_housekeeping_ms,
        settings.ha_batch_size,
        settings.ha_bytes_per_second if settings.ha_flow_control else None,
        required,
        is_dialect_4,
        settings.ha_max_gap,
        settings.ha_most_behind,
    )


class ReplicationServer(StreamServer[int, list[Buffer]]):
    """Listens for slaves, and connects them with the rules of their master."""

    new_frames = staticmethod(ReportParser)
    stranger = staticmethod(other_protocol)
    reads_on = True

    def __init__(self, broker: "BrokerController", limits: Limits, clock: Callable[[], int]) -> None:
        """Create the server of a broker; from now on sends wait for slaves, and statistics include them.

        Raises:
            UsageError: its settings have an invalid network.
        """
        state = broker.state
        self.networks = allowed_networks(state.settings.ha_allow)
        self.master = master = Master(broker.store.log, master_settings(state.settings, state.role))
        super().__init__(master, limits=limits, clock=clock)
        master.hang_up = self.end
        master.on_acknowledged = self._note_acknowledged
        self._acknowledged, self._failure = broker.acknowledged, ""
        broker.has_slaves(master)
        broker.on_configure.append(lambda settings: master.configure(master_settings(settings, state.role)))

    async def stop(self) -> None:
        """Send slaves what was gathered for them, and end all connections."""
        self.master.gathers = False
        await super().stop()

    def _note_acknowledged(self, offset: int) -> None:
        try:
            self._acknowledged.note(offset)
        except MqtoolError as error:
            if str(error) != self._failure:
                log.warning("the progress of slaves could not be saved: %s", error)
            self._failure = str(error)

    @property
    def is_of_loopback(self) -> bool:
        """Whether slaves may come from this machine only."""
        return all(network.is_loopback for network in self.networks)

    def check_room(self, connection: Any) -> None:
        """Accept a new connection, or end it if its address is not allowed."""
        super().check_room(connection)
        peer = connection.peer
        if self._is_allowed(peer.host):
            self.master.opened(peer, self.clock())
            self.turn(self.clock())
        else:
            networks = ", ".join(map(str, self.networks))
            self.say_of_stranger(f"the replication protocol, which is allowed from {networks} only (--ha-allow)", peer)
            self.end(peer, "not allowed to be a slave")

    def _is_allowed(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:  # it is already gone
            return False
        return any(address in network for network in self.networks)

    def dispatch(self, commands: deque[int], peer: Peer, now: int) -> None:
        """Pass a report to the rules."""
        self.master.reported(peer, commands.popleft(), now)

    def encode(self, command: list[Buffer]) -> list[Buffer]:
        """Return the bytes to write."""
        return command

    def backed_up(self, peer: Peer, is_backed_up: bool) -> None:
        """Prepare nothing more for a slave that does not read."""
        self.master.backed_up(peer, is_backed_up)
