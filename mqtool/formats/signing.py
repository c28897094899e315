"""Signatures of requests: who sends one, shown by a secret that he shares with the broker.

(Rules: remoting.md 8.1. RocketMQ: ``AclClientRPCHook``, ``AclSigner``.)
"""

from collections.abc import Mapping
from typing import NamedTuple

SIGNATURE = "Signature"
ACCESS_KEY = "AccessKey"


class Credentials(NamedTuple):
    """The keys of an account."""

    access_key: str
    secret_key: str

    def signed(self, fields: Mapping[str, str], body: bytes) -> dict[str, str]:
        """Return the ext fields of a request with those that identify its sender."""
        fields = {**fields, ACCESS_KEY: self.access_key}
        return {**fields, SIGNATURE: signature(fields, body, self.secret_key)}


def signature(fields: Mapping[str, str], body: bytes, secret_key: str) -> str:
    """Return the signature of a request: of the values of its ext fields in the order of their names, and its body.

    >>> signature({"AccessKey": "ak", "queueId": "0", "topic": "TopicTest"}, b"body", "sk1234567")
    'cakEezFqozw+75kZs1J4/BKjCfM='
    """
    import base64
    import hashlib  # a tenth of the start of a client, most of which sign nothing
    import hmac

    values = "".join(fields[name] for name in sorted(fields) if name != SIGNATURE)
    digest = hmac.digest(secret_key.encode(), values.encode("utf-8", "replace") + body, hashlib.sha1)
    return base64.b64encode(digest).decode()
