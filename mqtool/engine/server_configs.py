"""The configuration of name servers and brokers: where they listen, and their settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mqtool.engine.broker.settings import BrokerSettings
from mqtool.engine.name_server.settings import NameServerSettings
from mqtool.engine.streams.tls import TlsSettings


@dataclass(frozen=True, slots=True)
class NameServerConfig:
    """Where a name server listens, and its settings."""

    host: str = "127.0.0.1"
    port: int = 0  # 0: a free one
    settings: NameServerSettings = field(default_factory=NameServerSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Where a broker keeps its store and listens, and its settings."""

    store: Path  # a folder, created if missing
    host: str = "127.0.0.1"
    port: int = 0  # 0: a free one
    settings: BrokerSettings = field(default_factory=BrokerSettings)
    store_settings: Mapping[str, str] = field(default_factory=dict)  # by RocketMQ's names
    tls: TlsSettings = field(default_factory=TlsSettings)
    further_ports: Mapping[str, int] = field(default_factory=dict)  # of other doors, by name: see ``doors.DOORS``
    is_replicated: bool = False  # for slaves: their ports must be free
