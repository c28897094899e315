"""The doors of a broker: a row for each protocol, and one for each set of HTTP pages.

A door (``broker/door.py``) translates between the commands of its protocol and the operations of a broker; a server
(``StreamServer``) owns its sockets, and the door is the server's rules. What a door has to send waits in its outbox,
which wakes the server of that door: so requests of one protocol reach clients that wait at another door.
"""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from mqtool.engine.streams.server import Limits, StreamServer
from mqtool.engine.streams.tls import TlsSettings
from mqtool.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import BrokerController
    from mqtool.engine.broker.door import Door
    from mqtool.engine.http_server import HttpServer

Clock = Callable[[], int]
Server = TypeVar("Server", bound=StreamServer[Any, Any])


class Entrance(NamedTuple):
    """A protocol that a broker serves."""

    setting: str
    """The setting for its port; without it, and without ``tls_setting``, there is no server."""
    make: Callable[["BrokerController", TlsSettings, Limits, Clock], StreamServer[Any, Any]]
    """Returns a server whose rules are the door."""
    tls_setting: str | None = None
    """The setting for a further port of the server, or its only one, that accepts nothing but TLS."""


def _remoting(broker: "BrokerController", tls: TlsSettings, limits: Limits, clock: Clock) -> StreamServer[Any, Any]:
    # A broker needs numpy, which a name server alone does not.
    from mqtool.engine.broker.remoting_door import RemotingDoor
    from mqtool.engine.remoting.server import RemotingServer

    door = RemotingDoor(broker)
    return joined(door, RemotingServer(door, tls, limits, clock))


def _pulsar(broker: "BrokerController", tls: TlsSettings, limits: Limits, clock: Clock) -> StreamServer[Any, Any]:
    try:
        from mqtool.engine.pulsar.door import PulsarDoor
        from mqtool.engine.pulsar_server import PulsarServer

        for later in ("google.protobuf", "crc32c"):
            if find_spec(later) is None:
                raise ModuleNotFoundError(f"No module named {later!r}")
    except ImportError as error:
        raise MissingExtraError("the port for Pulsar clients (--pulsar-port, pulsarPort)", "pulsar") from error
    if advertised := broker.settings.pulsar_advertised:
        host, _, port = advertised.rpartition(":")
        if not host or any(character in host for character in " /"):
            raise UsageError(f"pulsarAdvertised={advertised} is not HOST:PORT")
        parse_port("pulsarAdvertised", port)
    door = PulsarDoor(broker, clock())
    return joined(door, PulsarServer(door, tls, limits, clock))


def joined(door: "Door[Any, Any]", server: Server) -> Server:
    """Return the server of a door; from now on it is woken when the door has something to send."""
    door.outbox.on_first = server.turn_soon
    door.broker.on_confirmed.append(lambda: server.write_now(door.confirmed))
    return server


class Pages(NamedTuple):
    """HTTP pages beside a door."""

    setting: str
    make: Callable[[Mapping[str, StreamServer[Any, Any]]], "HttpServer"]
    """Returns a server of them, given those of the doors."""


def _pulsar_admin(servers: Mapping[str, StreamServer[Any, Any]]) -> "HttpServer":
    try:
        from mqtool.engine.pulsar_admin import pulsar_admin
        from mqtool.engine.pulsar_server import PulsarServer
    except ImportError as error:
        raise MissingExtraError("the port for Pulsar administration (pulsarAdminPort)", "pulsar") from error
    server = servers.get(PULSAR)
    if not isinstance(server, PulsarServer):
        raise UsageError("pulsarAdminPort needs pulsarPort or pulsarTlsPort: there is nothing else to administer")
    return pulsar_admin(server)


PULSAR = "pulsar"
"""The door for clients of Apache Pulsar."""
PULSAR_ADMIN = "pulsar admin"
"""The pages for Pulsar administrators."""
REMOTING = "broker"
"""The door that every broker has, and that name servers list."""

DOORS: dict[str, Entrance] = {
    REMOTING: Entrance("listenPort", _remoting),
    PULSAR: Entrance("pulsarPort", _pulsar, "pulsarTlsPort"),
}
"""By their names in the list of addresses."""


PAGES: dict[str, Pages] = {
    PULSAR_ADMIN: Pages("pulsarAdminPort", _pulsar_admin),
}
"""By their names in the list of URLs."""


def tls_name(door: str) -> str:
    """Return the name of a door's port for TLS in the list of addresses."""
    return f"{door} tls"


def further_settings() -> dict[str, str]:
    """Return the settings with the ports of doors beside ``REMOTING`` and of pages, and the names of these."""
    doors = {door.setting: name for name, door in DOORS.items() if name != REMOTING}
    tls_ports = {door.tls_setting: tls_name(name) for name, door in DOORS.items() if door.tls_setting}
    return doors | tls_ports | {pages.setting: name for name, pages in PAGES.items()}


def further_ports(settings: Mapping[str, str], tls: TlsSettings) -> dict[str, int]:
    """Return the configured ports of doors beside ``REMOTING`` and of pages, by name; 0 is a free one.

    Raises:
        UsageError: a port is invalid, or is for TLS and there is no certificate.
    """
    for door in DOORS.values():
        if door.tls_setting in settings and tls.context is None:
            raise UsageError(
                f"{door.tls_setting} needs a certificate: name it and its key with tls.server.certPath and "
                "tls.server.keyPath, and do not set tls.server.mode to disabled"
            )
    return {
        name: parse_port(setting, settings[setting])
        for setting, name in further_settings().items()
        if setting in settings
    }


def parse_port(setting: str, text: str) -> int:
    """Return the port that a setting names.

    Raises:
        UsageError: it is none.
    """
    if text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) < 65536:
        return int(text)
    raise UsageError(f"{setting}={text} is not a port")
