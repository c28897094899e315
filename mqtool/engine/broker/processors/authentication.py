"""The sender of a request, by its signature, and whether it is permitted.

(Rules: remoting.md 8.1. RocketMQ: ``PlainAccessValidator``, ``AclSigner``.)
"""

import hmac
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from mqtool.engine.broker.acl import AccessControl, Need, is_from
from mqtool.engine.broker.processors.needs import AdminNeededError, needs
from mqtool.engine.broker.processors.protocol_texts import ACL_EXCEPTION
from mqtool.engine.broker.waiting_room import Waiting
from mqtool.formats.codes import ResponseCode
from mqtool.formats.headers import UNIQUE_KEY_QUERY
from mqtool.formats.plain_acl import Account
from mqtool.formats.remoting import RemotingCommand
from mqtool.formats.signing import ACCESS_KEY, SIGNATURE, signature

if TYPE_CHECKING:
    from mqtool.engine.broker.processors.request import BrokerRequest


def access_fault(access: AccessControl, command: RemotingCommand, host: str) -> str | None:
    """Return why a request from a host is refused, None if it may be served; the text is what clients show."""
    access_key = command.ext_fields.get(ACCESS_KEY, "")

    def is_genuine(account: Account) -> bool:
        return is_signed(command, account.secret_key)

    try:
        return _fault(access, access_key, host, is_genuine, lambda: needs(command, access.topic_at))
    except AdminNeededError:
        return f"Need admin permission for request code={command.code}, but accessKey={access_key} is not"


def keep_checking(access: AccessControl | None, request: "BrokerRequest", waiting: Waiting) -> None:
    """Refuse a waiting request if the accounts change so that it would be refused: it gets no messages any more."""
    command, session, _ = request
    if access is None:
        command.release_body()
        return
    acl, look, then = access.acl, waiting.look, waiting.then
    known = acl.accounts.get(command.ext_fields.get(ACCESS_KEY, ""))
    access_key = known.access_key if known else ""
    needed = tuple(needs(command, access.topic_at))
    command.release_body()  # of what it had, only names and the secret are kept

    def is_still_genuine(account: Account) -> bool:
        return known is not None and account.secret_key == known.secret_key

    def look_if_allowed(is_due: bool, now: int) -> Any:
        nonlocal acl
        if access.acl is not acl:
            if fault := _fault(access, access_key, session.host, is_still_genuine, lambda: needed):
                return _Refused(command.answer(ResponseCode.SYSTEM_ERROR, remark=ACL_EXCEPTION + fault))
            acl = access.acl
        return look(is_due, now)

    def answer(result: Any, now: int) -> None:
        if isinstance(result, _Refused):
            session.reply(result.answer, now)
        elif then is not None:
            then(result, now)

    waiting.look, waiting.then = look_if_allowed, answer


def _fault(
    access: AccessControl,
    access_key: str,
    host: str,
    is_genuine: Callable[[Account], bool],
    needed: Callable[[], Iterable[Need]],
) -> str | None:
    """Return why what an account needs is refused, None if it is not; raises ``AdminNeededError`` as ``needed`` does.

    Args:
        access: the accounts.
        access_key: of the account, empty if none was named.
        host: of the sender.
        is_genuine: tells whether the request is by this account.
        needed: returns what it needs.
    """
    if access.trusts(host):
        return None
    if not access_key:
        return "No accessKey is configured"
    account = access.acl.accounts.get(access_key)
    if account is None:
        return f"No acl config for {access_key}"
    if is_from(host, account.white_address):
        return None
    if not is_genuine(account):
        return f"Check signature failed for accessKey={access_key}"
    if account.is_admin:
        return None
    for need in needed():
        if not access.allows(access_key, host, need):
            return f"No default permission for {need.topic}"
    return None


class _Refused(NamedTuple):
    answer: RemotingCommand


def is_signed(command: RemotingCommand, secret_key: str) -> bool:
    """Return whether a request has the signature made with its sender's secret."""
    presented, fields = command.ext_fields.get(SIGNATURE, "").encode("utf-8", "replace"), command.ext_fields
    if hmac.compare_digest(presented, signature(fields, command.body, secret_key).encode()):
        return True
    if UNIQUE_KEY_QUERY not in fields:
        return False
    rest = {name: value for name, value in fields.items() if name != UNIQUE_KEY_QUERY}  # as clients up to 4.9.3 sign
    return hmac.compare_digest(presented, signature(rest, command.body, secret_key).encode())
