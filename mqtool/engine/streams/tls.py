"""TLS of a server without its sockets: bytes of the wire in, plain bytes out, and back.

A RocketMQ server takes both on one port and tells them apart by the first byte. (RocketMQ: ``TlsMode``, ``TlsHelper``.)
"""

import enum
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mqtool.errors import NotFoundError, UsageError

HANDSHAKE = 0x16
"""The first byte of a connection with TLS; a frame would have to be longer than any may be to begin with it."""

_CHUNK = 1 << 18


OF_REGISTRATION = frozenset(("tls.enable", "tls.client.trustCertPath"))
"""The settings of a broker that registers with name servers elsewhere."""


class TlsMode(enum.Enum):
    """Which connections a server takes."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Which connections to take, and the certificate for those with TLS; and how name servers are reached."""

    mode: TlsMode = TlsMode.DISABLED
    context: ssl.SSLContext | None = None
    to_name_servers: ssl.SSLContext | None = None

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> "TlsSettings":
        """Return what settings by RocketMQ's names come to: ``tls.server.mode``, ``.certPath``, ``.keyPath`` and so on.

        Without a certificate there is no TLS. RocketMQ's own servers would make one up, which no client can check.
        With ``tls.enable`` a broker registers by TLS elsewhere, and trusts what is in ``tls.client.trustCertPath``.

        Raises:
            UsageError: a setting is not what it should be, or a certificate is wanted and missing.
            NotFoundError: a file cannot be read.
        """
        certificate, key = settings.get("tls.server.certPath"), settings.get("tls.server.keyPath")
        name = settings.get("tls.server.mode", "permissive" if certificate else "disabled").lower()
        try:
            mode = TlsMode(name)
        except ValueError as error:
            raise UsageError(f"tls.server.mode={name} is not one of disabled, permissive and enforcing") from error
        to_name_servers = None
        if settings.get("tls.enable", "").lower() == "true":
            authorities = settings.get("tls.client.trustCertPath")
            to_name_servers = client_context(Path(authorities) if authorities else None)
        if mode is TlsMode.DISABLED:
            return cls(to_name_servers=to_name_servers)
        if not certificate or not key:
            raise UsageError(f"tls.server.mode={name} needs tls.server.certPath and tls.server.keyPath")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trusted = settings.get("tls.server.trustCertPath")
        for path in (certificate, key, *([trusted] if trusted else ())):
            if not Path(path).is_file():
                raise NotFoundError(f"{path} is not a file")
        try:
            context.load_cert_chain(certificate, key, settings.get("tls.server.keyPassword") or None)
            if trusted:
                context.load_verify_locations(trusted)
        except (ssl.SSLError, OSError) as error:
            raise UsageError(f"the certificate {certificate} and its key {key} cannot be used: {error}") from error
        context.verify_mode = _client_check(settings)
        return cls(mode, context, to_name_servers)


def _client_check(settings: Mapping[str, str]) -> ssl.VerifyMode:
    checks = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}
    name = settings.get("tls.server.need.client.auth", "none").lower()
    if name not in checks:
        raise UsageError(f"tls.server.need.client.auth={name} is not one of {', '.join(checks)}")
    return checks[name]


def client_context(authorities: Path | None) -> ssl.SSLContext:
    """Return how a client checks the servers that it connects to.

    With authorities of one's own (a file of certificates, which may be the server's) a certificate must be theirs; for
    which host it is made out is not asked: brokers are reached by addresses, and clients of RocketMQ do not ask either.
    Without, it must be for that host, and of an authority that the system trusts.

    Raises:
        NotFoundError: the file cannot be read.
        UsageError: it holds no certificates.
    """
    if authorities is None:
        return ssl.create_default_context()
    if not authorities.is_file():
        raise NotFoundError(f"{authorities} is not a file")
    try:
        context = ssl.create_default_context(cafile=str(authorities))
    except ssl.SSLError as error:
        raise UsageError(f"{authorities} contains no certificates: give a file in PEM format") from error
    context.check_hostname = False
    return context


class TlsServerSide:
    """The server's side of one connection with TLS."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._from_wire = ssl.MemoryBIO()
        self._to_wire = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._from_wire, self._to_wire, server_side=True)
        self._is_shaken = False
        self.is_closed = False  # whether the peer has said that nothing follows

    def receive(self, data: bytes) -> bytes:
        """Take bytes off the wire and return the plain bytes that are complete.

        Afterwards there may be something ``to_send``.

        Raises:
            ssl.SSLError: the peer does not speak TLS, or is not trusted.
        """
        self._from_wire.write(data)
        if not self._is_shaken:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                return b""
            self._is_shaken = True
        pieces = []
        try:
            while piece := self._tls.read(_CHUNK):
                pieces.append(piece)
            self.is_closed = True
        except ssl.SSLWantReadError:
            pass
        return b"".join(pieces)

    def send(self, data: bytes) -> None:
        """Put plain bytes into what is ``to_send``; the handshake must be over, as it is once a request is here."""
        self._tls.write(data)

    def to_send(self) -> bytes:
        """Return the bytes that must go out on the wire now."""
        return self._to_wire.read()
