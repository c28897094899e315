"""What a broker goes by, and what may change while it runs: its settings and its address."""

from mqtool.engine.broker.settings import BrokerSettings
from mqtool.formats.hosts import parse_host


class BrokerState:
    """Settings and address, shared by all parts of a broker: who reads them here sees what they are now."""

    def __init__(self, settings: BrokerSettings, address: str) -> None:
        self.settings = settings
        self.listens_at(address)

    def listens_at(self, address: str) -> None:
        """Take ``host:port`` for the address that clients know, and that messages are stored with."""
        self.address = address
        self.store_host = parse_host(address)
