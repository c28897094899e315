"""Server-side TLS without sockets: encrypted bytes in, plain bytes out, and back.

A RocketMQ server takes both on one port and tells them apart by the first byte. (RocketMQ: ``TlsMode``, ``TlsHelper``.)
"""

import enum
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mqtool.errors import NotFoundError, UsageError

HANDSHAKE = 0x16
"""The first byte of a TLS connection; no frame can be long enough to begin with it."""

_CHUNK = 1 << 18


OF_REGISTRATION = frozenset(("tls.enable", "tls.client.trustCertPath"))
"""The settings of a broker that connects to name servers elsewhere, and to other brokers of its name."""


class TlsMode(enum.Enum):
    """Which connections a server accepts."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Which connections to accept, and the certificate for those with TLS; and how to connect to other servers."""

    mode: TlsMode = TlsMode.DISABLED
    context: ssl.SSLContext | None = None
    as_client: ssl.SSLContext | None = None

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> "TlsSettings":
        """Return the settings by RocketMQ's names: ``tls.server.mode``, ``.certPath``, ``.keyPath`` and so on.

        Without a certificate there is no TLS. RocketMQ's own servers would generate one, which no client can verify.
        With ``tls.enable`` a broker connects to remote name servers, and to other brokers of its name, by TLS, and
        trusts ``tls.client.trustCertPath``.

        Raises:
            UsageError: a setting is invalid, or a required certificate is missing.
            NotFoundError: a file cannot be read.
        """
        certificate, key = settings.get("tls.server.certPath"), settings.get("tls.server.keyPath")
        name = settings.get("tls.server.mode", "permissive" if certificate else "disabled").lower()
        try:
            mode = TlsMode(name)
        except ValueError as error:
            raise UsageError(f"tls.server.mode={name} is not one of disabled, permissive and enforcing") from error
        as_client = None
        if settings.get("tls.enable", "").lower() == "true":
            authorities = settings.get("tls.client.trustCertPath")
            as_client = client_context(Path(authorities) if authorities else None)
        if mode is TlsMode.DISABLED:
            return cls(as_client=as_client)
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
        return cls(mode, context, as_client)


def _client_check(settings: Mapping[str, str]) -> ssl.VerifyMode:
    checks = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}
    name = settings.get("tls.server.need.client.auth", "none").lower()
    if name not in checks:
        raise UsageError(f"tls.server.need.client.auth={name} is not one of {', '.join(checks)}")
    return checks[name]


def client_context(authorities: Path | None) -> ssl.SSLContext:
    """Return the context with which a client verifies servers.

    With custom authorities (a file of certificates, which may be the server's) certificates must be issued by them; the
    host is not verified: brokers are reached by addresses, and RocketMQ clients do not verify it either.
    Otherwise it must be for that host, by an authority that the system trusts.

    Raises:
        NotFoundError: the file cannot be read.
        UsageError: it contains no certificates.
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
        self.is_closed = False  # whether the peer has closed its side

    def receive(self, data: bytes) -> bytes:
        """Add received bytes and return the decrypted ones.

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
        """Encrypt bytes for ``to_send``; the handshake must be over, as it is after a request."""
        self._tls.write(data)

    def to_send(self) -> bytes:
        """Return the bytes that must be sent now."""
        return self._to_wire.read()
