"""The sender of a request, by its signature, and whether it is permitted.

(Rules: remoting.md 8.1. RocketMQ: ``PlainAccessValidator``, ``AclSigner``.)
"""

import hmac

from mqtool.engine.broker.acl import AccessControl, is_from
from mqtool.engine.broker.processors.needs import AdminNeededError, needs
from mqtool.formats.headers import UNIQUE_KEY_QUERY
from mqtool.formats.remoting import RemotingCommand
from mqtool.formats.signing import ACCESS_KEY, SIGNATURE, signature


def access_fault(access: AccessControl, command: RemotingCommand, host: str) -> str | None:
    """Return why a request from a host is refused, None if it may be served; the text is what clients show."""
    if access.trusts(host):
        return None
    access_key = command.ext_fields.get(ACCESS_KEY)
    if not access_key:
        return "No accessKey is configured"
    account = access.acl.accounts.get(access_key)
    if account is None:
        return f"No acl config for {access_key}"
    if is_from(host, account.white_address):
        return None
    if not is_signed(command, account.secret_key):
        return f"Check signature failed for accessKey={access_key}"
    if account.is_admin:
        return None
    try:
        for need in needs(command, access.topic_at):
            if not access.allows(access_key, host, need):
                return f"No default permission for {need.topic}"
    except AdminNeededError:
        return f"Need admin permission for request code={command.code}, but accessKey={access_key} is not"
    return None


def is_signed(command: RemotingCommand, secret_key: str) -> bool:
    """Return whether a request has the signature made with its sender's secret."""
    presented, fields = command.ext_fields.get(SIGNATURE, "").encode("utf-8", "replace"), command.ext_fields
    if hmac.compare_digest(presented, signature(fields, command.body, secret_key).encode()):
        return True
    if UNIQUE_KEY_QUERY not in fields:
        return False
    rest = {name: value for name, value in fields.items() if name != UNIQUE_KEY_QUERY}  # as clients up to 4.9.3 sign
    return hmac.compare_digest(presented, signature(rest, command.body, secret_key).encode())
