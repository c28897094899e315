"""``plain_acl.yml``: who may do what, as ACL 1.0 of RocketMQ keeps it.

(RocketMQ: ``PlainAccessData``, ``PlainPermissionManager``, ``AclUtils``.)
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from mqtool.errors import FormatError

DENY, PUB, SUB = 1, 2, 4
ANY = PUB | SUB

_PERMISSIONS = {"DENY": DENY, "PUB": PUB, "SUB": SUB, "PUB|SUB": ANY, "SUB|PUB": ANY}
_NAMES = {DENY: "DENY", PUB: "PUB", SUB: "SUB", ANY: "PUB|SUB"}


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
    version: tuple[int, int] = (0, 0)
    """How often a broker has written the file, and when last (ms)."""


def parse_acl(text: str) -> PlainAcl:
    """Return what a file says.

    Raises:
        FormatError: it is not valid YAML, or a value is invalid.
    """
    import yaml

    try:
        members = yaml.load(text, yaml.BaseLoader)  # which makes texts only, and lists and maps of them
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise FormatError(error.problem or "this is not valid YAML", mark.index if mark else 0) from error
    except yaml.reader.ReaderError as error:
        raise FormatError(error.reason, error.position) from error
    except RecursionError as error:
        raise FormatError("the file is nested too deeply", offset=0) from error
    if not members:  # half written, perhaps: else it would keep all out
        raise FormatError("the file has no content", offset=0)
    if not isinstance(members, dict):
        raise FormatError("the file is not a mapping", offset=0)
    accounts = {}
    for item in _list(members, "accounts"):
        account = account_of(item)
        accounts[account.access_key] = account
    return PlainAcl(accounts, tuple(_texts(members, "globalWhiteRemoteAddresses")), _version(members))


def build_acl(acl: PlainAcl) -> str:
    """Return the text of a file, as a broker writes it when it is told to change it."""
    import yaml

    counter, timestamp = acl.version
    members = {
        "globalWhiteRemoteAddresses": [*acl.white_addresses],
        "accounts": [account_members(account) for account in acl.accounts.values()],
        "dataVersion": [{"counter": counter, "timestamp": timestamp}],
    }
    return yaml.safe_dump(members, sort_keys=False, allow_unicode=True)


def account_of(members: Any) -> Account:
    """Return the account that names and texts describe.

    Raises:
        FormatError: a name is missing, or a value is not what it should be.
    """
    if not isinstance(members, dict):
        raise FormatError("an account is not a mapping", offset=0)
    access_key, secret_key = str(members.get("accessKey") or ""), str(members.get("secretKey") or "")
    if len(access_key) <= 6 or len(secret_key) <= 6:
        raise FormatError(f"accessKey and secretKey need more than 6 characters each: see {access_key!r}", offset=0)
    return Account(
        access_key,
        secret_key,
        str(members.get("whiteRemoteAddress") or ""),
        str(members.get("admin")).lower() == "true",
        _permission(members.get("defaultTopicPerm") or "DENY"),
        _permission(members.get("defaultGroupPerm") or "DENY"),
        _permissions(_texts(members, "topicPerms")),
        _permissions(_texts(members, "groupPerms")),
    )


def account_members(account: Account) -> dict[str, Any]:
    """Return the names and values of an account."""
    return {
        "accessKey": account.access_key,
        "secretKey": account.secret_key,
        "whiteRemoteAddress": account.white_address,
        "admin": account.is_admin,
        "defaultTopicPerm": _NAMES[account.default_topic_perm],
        "defaultGroupPerm": _NAMES[account.default_group_perm],
        "topicPerms": [f"{name}={_NAMES[permission]}" for name, permission in account.topic_perms.items()],
        "groupPerms": [f"{name}={_NAMES[permission]}" for name, permission in account.group_perms.items()],
    }


def _permissions(texts: Sequence[str]) -> dict[str, int]:
    pairs = [text.rpartition("=") for text in texts]
    return {name.strip(): _permission(permission) for name, _, permission in pairs}


def _permission(text: Any) -> int:
    try:
        return _PERMISSIONS[text.strip().replace(" ", "")]
    except (KeyError, AttributeError):
        raise FormatError(f"{text} is not a permission: use DENY, PUB, SUB or PUB|SUB", offset=0) from None


def _version(members: dict[str, Any]) -> tuple[int, int]:
    for version in _list(members, "dataVersion"):
        if (
            isinstance(version, dict)
            and str(version.get("counter")).isdecimal()
            and str(version.get("timestamp")).isdecimal()
        ):
            return int(version["counter"]), int(version["timestamp"])
    return 0, 0


def _list(members: dict[str, Any], name: str) -> list[Any]:
    value = members.get(name) or []
    if not isinstance(value, list):
        raise FormatError(f"{name} is not a list", offset=0)
    return value


def _texts(members: dict[str, Any], name: str) -> list[str]:
    value = _list(members, name)
    if not all(isinstance(item, str) for item in value):
        raise FormatError(f"{name} is not a list of strings", offset=0)
    return value
