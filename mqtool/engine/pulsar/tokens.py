"""Authenticates clients by their tokens (JWT): the subject is the access key of an account.

(Rules: docs/pulsar.md. Pulsar: ``AuthenticationProviderToken``.)
"""

import base64
import binascii
from pathlib import Path
from typing import NamedTuple

from mqtool.engine.broker.settings import BrokerSettings
from mqtool.engine.pulsar.refusal import PulsarError, PulsarRefusedError
from mqtool.errors import NotFoundError, UsageError

_SECRET, _PUBLIC, _ALGORITHM = "tokenSecretKey", "tokenPublicKey", "tokenPublicAlg"
_OF_SECRET = ("HS256", "HS384", "HS512")
_OF_PUBLIC = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512")


class TokenClaim(NamedTuple):
    """What a token says."""

    identity: str
    expires_at: int | None
    """ms since 1970; None for never."""


class Tokens:
    """Reads tokens that were signed with one key."""

    def __init__(self, settings: BrokerSettings) -> None:
        """Take the key from settings.

        Raises:
            UsageError: there is no key, or it is not valid.
            NotFoundError: its file does not exist.
        """
        algorithm = settings.token_public_algorithm
        if settings.token_secret_key:
            self._key, self._algorithms = _read(_SECRET, settings.token_secret_key), list(_OF_SECRET)
        elif settings.token_public_key:
            if algorithm not in _OF_PUBLIC:
                raise UsageError(f"{_ALGORITHM}={algorithm} is not one of {', '.join(_OF_PUBLIC)}")
            self._key, self._algorithms = _read(_PUBLIC, settings.token_public_key), [algorithm]
        else:
            text = f"pulsarPort with aclEnable=true: {_SECRET} or {_PUBLIC} is needed to authenticate Pulsar clients"
            raise UsageError(text)

    def claim(self, token: str, now: int) -> TokenClaim:
        """Return what a token says.

        Raises:
            PulsarRefusedError: it is not signed with the key, is no longer valid, or names nobody.
        """
        import jwt

        try:
            claims = jwt.decode(
                token,
                self._key,
                self._algorithms,
                options={"verify_aud": False, "verify_exp": False, "verify_nbf": False, "verify_iat": False},
            )
            expires_at = int(claims["exp"] * 1000) if "exp" in claims else None
            begins_at = int(claims.get("nbf", 0) * 1000)
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError) as error:
            raise PulsarRefusedError(PulsarError.AUTHENTICATION, f"The token is not valid: {error}") from None
        identity = claims.get("sub")
        if not isinstance(identity, str) or not identity:
            raise PulsarRefusedError(PulsarError.AUTHENTICATION, "The token has no subject")
        if begins_at > now or (expires_at is not None and expires_at <= now):
            raise PulsarRefusedError(PulsarError.AUTHENTICATION, "The token is not valid at this time")
        return TokenClaim(identity, expires_at)


def _read(setting: str, text: str) -> bytes:
    """Return a key: from a file, from ``data:;base64,``, or from plain base64."""
    if text.startswith("data:"):
        return _decoded(setting, text.partition(",")[2])
    path = Path(text.removeprefix("file://"))
    if text.startswith("file://") or path.exists():
        try:
            data = path.read_bytes()
        except OSError as error:
            raise NotFoundError(f"{setting}: {path} cannot be read: {error.strerror}") from error
        return data
    return _decoded(setting, text)


def _decoded(setting: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise UsageError(f"{setting} is neither a file nor base64") from None
