"""Accounts of ACL 1.0, shown and changed by request.

(Rules: remoting.md 8.2. RocketMQ: ``PlainPermissionManager.updateAccessConfig``.)
"""

from collections.abc import Mapping
from typing import Any

from mqtool.engine.broker.acl import AccessControl
from mqtool.engine.broker.operations.refusal import OperationRefusedError, Reason
from mqtool.formats.plain_acl import account_members, account_of


def checked_access(access: AccessControl | None) -> AccessControl:
    """Return the accounts as the file has them now; raises ``OperationRefusedError`` if access is not controlled."""
    if access is None:
        raise OperationRefusedError(Reason.NOT_POSSIBLE, "access control is disabled here (aclEnable)")
    access.look()  # a change to the accounts is written over what somebody has just edited
    return access


def put_account(access: AccessControl, access_key: str, changes: Mapping[str, Any], now: int) -> None:
    """Create or change an account, by the members of the file; members that are empty or None are unchanged.

    Raises:
        FormatError: the account is invalid.
        WriteError: the disk is full, or fails.
    """
    known = access.acl.accounts.get(access_key)
    members: dict[str, Any] = account_members(known) if known else {"accessKey": access_key}
    members |= {name: value for name, value in changes.items() if value not in (None, "", [])}
    access.put(account_of(members), now)


def delete_account(access: AccessControl, access_key: str, now: int) -> None:
    """Delete an account.

    Raises:
        OperationRefusedError: there is none.
        WriteError: the disk is full, or fails.
    """
    if not access.delete(access_key, now):
        raise OperationRefusedError(Reason.NOT_POSSIBLE, f"there is no account {access_key}")
