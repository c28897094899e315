"""Access control (ACL 1.0): who may do what with a topic or a group.

(Rules: remoting.md 8. RocketMQ: ``PlainPermissionManager``, ``PlainAccessResource``,
``RemoteAddressStrategyFactory``.)
"""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from mqtool.engine.broker.config_files import save_data
from mqtool.engine.broker.saves import Saves
from mqtool.engine.broker.topics import has_messages_of_all
from mqtool.engine.intervals import is_time
from mqtool.errors import BadDataError, FormatError
from mqtool.formats.plain_acl import DENY, Account, PlainAcl, build_acl, parse_acl
from mqtool.formats.topics import RETRY_PREFIX

log = logging.getLogger(__name__)

LOOK_INTERVAL_MS = 1000
"""How often the file is examined for changes."""
_MAX_FAILED_LOOKS = 3

TopicAt = Callable[[int], str | None]
"""Returns the topic that a message at an address of the log is for, None if there is no message."""


class Need(NamedTuple):
    """A required permission; ``ANY`` is satisfied by either."""

    topic: str  # or the retry topic of a group, which stands for the group
    permission: int


class AccessControl:
    """The accounts of a file, read again when it changes; a change that cannot be read leaves them as they are."""

    def __init__(self, path: Path, now: int, topic_at: TopicAt, saves: Saves | None = None) -> None:
        """Read the accounts; ``topic_at`` says which topic the message at an address is for.

        Raises:
            BadDataError: the file is malformed.
            OSError: the file does not exist.
        """
        self._path = path
        self.topic_at = topic_at
        self._next_look = now + LOOK_INTERVAL_MS
        self._modified = path.stat().st_mtime_ns
        self._saves = saves or Saves()
        self._to_write = self._written = b""
        self._failed_looks = 0  # since the last one that did not fail
        self.acl: PlainAcl = _read(path)

    def tick(self, now: int) -> None:
        """Look at the file once a second."""
        if is_time(self._next_look, LOOK_INTERVAL_MS, now):
            self._next_look = now + LOOK_INTERVAL_MS
            self.look()

    def look(self) -> None:
        """Read the file if it has changed, but not while a newer version waits to be written."""
        if self._written is not self._to_write:
            return
        try:
            modified = self._path.stat().st_mtime_ns
            if modified != self._modified:
                self._take()
                self._modified = modified
            self._failed_looks = 0
        except OSError as error:
            self._failed_looks += 1
            if self._failed_looks == _MAX_FAILED_LOOKS:  # before, an editor may be about to replace it
                log.warning("access control is unchanged: %s: %s", self._path, error.strerror)

    def _take(self) -> None:
        try:
            self.acl = _read(self._path)
            log.info("%s has changed: %d accounts", self._path, len(self.acl.accounts))
        except BadDataError as error:
            log.warning("access control is unchanged: %s", error)

    def put(self, account: Account, now: int) -> None:
        """Add an account, or change one.

        Raises:
            WriteError: the disk is full, or fails.
        """
        self._write(self.acl._replace(accounts={**self.acl.accounts, account.access_key: account}), now)

    def delete(self, access_key: str, now: int) -> bool:
        """Delete an account and return whether there was one; raises what ``put`` does."""
        rest = {key: account for key, account in self.acl.accounts.items() if key != access_key}
        if len(rest) == len(self.acl.accounts):
            return False
        self._write(self.acl._replace(accounts=rest), now)
        return True

    def put_white_addresses(self, addresses: Iterable[str], now: int) -> None:
        """Allow everything from these addresses, and no others; raises what ``put`` does."""
        self._write(self.acl._replace(white_addresses=tuple(addresses)), now)

    def _write(self, acl: PlainAcl, now: int) -> None:
        acl = acl._replace(version=(acl.version[0] + 1, now))
        data = build_acl(acl).encode()
        self._saves.want(self._path, lambda: (data,), self._write_file)
        self._to_write = data
        self.acl = acl

    def _write_file(self, path: Path, data: bytes) -> None:
        save_data(path, data)
        self._modified = path.stat().st_mtime_ns
        self._written = data

    def next_tick(self, now: int) -> int | None:  # noqa: ARG002
        """Return when to check the file."""
        return self._next_look

    def trusts(self, host: str) -> bool:
        """Return whether everything is allowed from a host, whatever the account."""
        return any(is_from(host, pattern) for pattern in self.acl.white_addresses)

    def allows(self, identity: str, host: str, need: Need) -> bool:
        """Return whether an account, from a host, has a permission."""
        if self.trusts(host):
            return True
        account = self.acl.accounts.get(identity)
        return account is not None and (account.is_admin or is_from(host, account.white_address) or _has(account, need))


def _read(path: Path) -> PlainAcl:
    try:
        return parse_acl(path.read_text("utf-8", "replace"))
    except FormatError as error:
        raise BadDataError(f"{path}: {error.reason}") from error


def _has(account: Account, need: Need) -> bool:
    name = need.topic
    if name.startswith(RETRY_PREFIX):
        owned = account.group_perms.get(name.removeprefix(RETRY_PREFIX), account.default_group_perm)
    else:  # a permission for all topics does not include those that keep waiting messages of all topics
        owned = account.topic_perms.get(name, DENY if has_messages_of_all(name) else account.default_topic_perm)
    return owned != DENY and bool(owned & need.permission)


# Addresses


def is_from(host: str, pattern: str) -> bool:
    """Return whether an address matches a white list; parts may be ``*``, ``a-b`` or ``{a,b}``.

    >>> is_from("10.0.0.7", "10.0.0.{6,7}"), is_from("10.0.1.7", "10.0.2-3.*")
    (True, False)
    """
    if not pattern:
        return False
    if pattern == "*" or pattern == host:
        return True
    if "," in pattern and "{" not in pattern:
        return any(is_from(host, alternative.strip()) for alternative in pattern.split(","))
    separator = ":" if ":" in pattern else "."
    parts, wanted = host.split(separator), pattern.split(separator)
    base = 16 if separator == ":" else 10
    return len(parts) == len(wanted) and all(map(_is_part, parts, wanted, [base] * len(parts)))


def _is_part(part: str, wanted: str, base: int) -> bool:
    if wanted == "*":
        return True
    if wanted.startswith("{") and wanted.endswith("}"):
        return part in [alternative.strip() for alternative in wanted[1:-1].split(",")]
    low, dash, high = wanted.partition("-")
    try:
        return int(low, base) <= int(part, base) <= int(high if dash else low, base)
    except ValueError:
        return False
