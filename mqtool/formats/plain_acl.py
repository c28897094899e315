"""``plain_acl.yml``: who may do what, as ACL 1.0 of RocketMQ keeps it.

Of YAML only what such a file needs is read: names with a value or a list, and lists of texts or of accounts.
(RocketMQ: ``PlainAccessData``, ``PlainPermissionManager``.)
"""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from mqtool.errors import FormatError

DENY, PUB, SUB = 1, 2, 4
ANY = PUB | SUB

_PERMISSIONS = {"DENY": DENY, "PUB": PUB, "SUB": SUB, "PUB|SUB": ANY, "SUB|PUB": ANY}
_LINE = re.compile(r"(?P<indent> *)(?P<dash>- +|-$)?(?:(?P<name>[A-Za-z]+) *:(?: +|$))?(?P<value>.*)")


class Account(NamedTuple):
    """A pair of keys and what its holder may do."""

    access_key: str
    secret_key: str
    white_address: str = ""
    is_admin: bool = False
    default_topic_perm: int = DENY
    default_group_perm: int = DENY
    topic_perms: Mapping[str, int] = MappingProxyType({})
    group_perms: Mapping[str, int] = MappingProxyType({})


class PlainAcl(NamedTuple):
    """All accounts by access key, and the addresses from which everything may be done."""

    accounts: dict[str, Account]
    white_addresses: tuple[str, ...] = ()


def parse_acl(text: str) -> PlainAcl:
    """Return what a file says.

    Raises:
        FormatError: a line or a value is not what it should be.
    """
    members = _parse_yaml(text)
    accounts = {}
    for one in members.get("accounts") or []:
        if not isinstance(one, dict):
            raise FormatError("an account has no names", offset=0)
        account = _account(one)
        accounts[account.access_key] = account
    return PlainAcl(accounts, tuple(_texts(members, "globalWhiteRemoteAddresses")))


def _account(members: dict[str, Any]) -> Account:
    access_key, secret_key = str(members.get("accessKey") or ""), str(members.get("secretKey") or "")
    if len(access_key) <= 6 or len(secret_key) <= 6:
        raise FormatError(f"accessKey and secretKey have more than 6 characters, not so for {access_key!r}", offset=0)
    return Account(
        access_key,
        secret_key,
        str(members.get("whiteRemoteAddress") or ""),
        members.get("admin") == "true",
        _permission(members.get("defaultTopicPerm") or "DENY"),
        _permission(members.get("defaultGroupPerm") or "DENY"),
        _permissions(_texts(members, "topicPerms")),
        _permissions(_texts(members, "groupPerms")),
    )


def _permissions(texts: Sequence[str]) -> dict[str, int]:
    pairs = [text.rpartition("=") for text in texts]
    return {name.strip(): _permission(permission) for name, _, permission in pairs}


def _permission(text: str) -> int:
    try:
        return _PERMISSIONS[text.strip().replace(" ", "")]
    except KeyError:
        raise FormatError(f"{text} is no permission: DENY, PUB, SUB or PUB|SUB", offset=0) from None


def _texts(members: dict[str, Any], name: str) -> list[str]:
    value = members.get(name) or []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise FormatError(f"{name} is no list of texts", offset=0)
    return value


def _parse_yaml(text: str) -> dict[str, Any]:
    """Return names and values; a value is a text, or a list of texts or of further names and values."""
    top: dict[str, Any] = {}
    members, open_list = top, ("", top)  # where names go, and the name that a list belongs to
    is_in_account = False
    offset = 0
    for raw in text.splitlines(keepends=True):
        line = re.sub(r"(^|\s)#.*", "", raw.rstrip()).rstrip()
        found = _LINE.fullmatch(line)
        if line and line != "---" and found:
            name, value = found["name"], found["value"].strip()
            indent = len(found["indent"]) + len(found["dash"] or "")
            if found["dash"] and name and (is_in_account or open_list[1] is top):
                members = {name: _scalar(value)}
                _items(top, "accounts", offset).append(members)
                open_list, is_in_account = (name, members), True
            elif found["dash"] and not name:
                _items(open_list[1], open_list[0], offset).append(_scalar(value) or "")
            elif name:
                if indent == 0:
                    members, is_in_account = top, False
                members[name] = _scalar(value)
                open_list = (name, members)
            else:
                raise FormatError(f"{line.strip()[:40]!r} is neither a name nor of a list", offset)
        offset += len(raw)
    return top


def _scalar(text: str) -> str | None:
    return None if text in ("", "~", "null", "[]") else text.strip("\"'")


def _items(members: dict[str, Any], name: str, offset: int) -> list[Any]:
    if members.get(name) is None:
        members[name] = []
    items = members[name]
    if not isinstance(items, list):
        raise FormatError(f"{name} has both a value and a list", offset)
    return items
