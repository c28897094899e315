"""The mutable state of a broker: its settings, its address and its role."""

from mqtool.engine.broker.roles import role_of
from mqtool.engine.broker.settings import MASTER_ID, BrokerSettings, Role
from mqtool.formats.hosts import parse_host


class BrokerState:
    """The current settings, address and role, shared by all parts of a broker."""

    def __init__(self, settings: BrokerSettings, address: str) -> None:
        self.settings = settings
        self.role = role_of(settings)
        self.configured = (self.role, settings.broker_id)
        """Role and id from the settings, before those kept in its store apply."""
        self.epoch = 0
        """The epoch of the last change of roles that it took part in (``kept_role``)."""
        self.listens_at(address)

        self.ha_address = ""
        """Where slaves reach it, ``host:port``; empty if it does not listen for slaves."""

    @property
    def broker_id(self) -> int:
        """The id of this broker among others of its name: a master's is fixed whatever its settings say."""
        return self.settings.broker_id if self.role is Role.SLAVE else MASTER_ID

    def listens_at(self, address: str, store_host: str = "") -> None:
        """Use ``host:port`` as the address for clients, and ``store_host`` in messages if the host is a name."""
        self.address = address
        self.store_host = parse_host(store_host or address)
