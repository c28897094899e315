"""The subscription groups of a broker and their rules: ``config/subscriptionGroup.json``.

(RocketMQ: ``SubscriptionGroupManager``.)
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mqtool.engine.broker.config_files import load_table
from mqtool.engine.broker.limits import (
    MAX_FORBIDDEN,
    MAX_GROUPS_IN_ALL,
    MAX_OF_SETTINGS,
    check_name,
    check_room,
)
from mqtool.engine.broker.saves import Saves
from mqtool.errors import FormatError, LimitError
from mqtool.formats.bodies import build_body, version_members
from mqtool.formats.config_tables import (
    DataVersion,
    SubscriptionGroup,
    Table,
    build_table_in_pieces,
    data_version,
    subscription_groups,
)
from mqtool.formats.topics import SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS

MAX_NAME = 255
"""Characters of the name of a group that is created because a client uses it."""
MAX_GIVEN_NAME = 120
"""Characters of the name of a group that an administrator creates."""
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


class SubscriptionGroups:
    """All groups by name; each change is queued for saving before the call returns.

    Members of the file that have no effect here (such as a retry policy) are kept unchanged.
    """

    def __init__(self, folder: Path, now: int, *, creates: bool = True, saves: Saves | None = None) -> None:
        """Read the groups.

        Args:
            folder: ``config`` of a store.
            now: the time, in ms.
            creates: whether a group is created when a client first uses it.
            saves: collects changes to write; without it they are written immediately.

        Raises:
            FormatError: the table cannot be read.
        """
        self.creates = creates
        self._saves = saves or Saves()
        self._path = folder / "subscriptionGroup.json"
        table, (self._groups, self._forbidden) = load_table(self._path, _parse)
        self._members: dict[str, Table] = dict(table.get("subscriptionGroupTable") or {})
        self.version = data_version(table)
        self.change_count = 0
        """How often the table was changed, other than by ``replace``."""
        missing = [group for group in SYSTEM_GROUPS if group not in self._groups]
        for group in missing:
            self._put(group, default_members(group))
        if not table:
            self.version = DataVersion(0, 0, now)
        if missing:  # slaves write what they copy: their stores would differ from that of their master
            self._saves.want(self._path, self._pieces)

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self._groups)

    def names(self) -> list[str]:
        """Return the names of all groups."""
        return list(self._members)

    def get(self, group: str) -> SubscriptionGroup | None:
        """Return an existing group, None if there is none."""
        return self._groups.get(group)

    def find(self, group: str, now: int) -> SubscriptionGroup | None:
        """Return a group that a client names; it is created if that is allowed and the name is valid."""
        return self._groups.get(group) or self.find_all((group,), now)[0]

    def find_all(self, names: Iterable[str], now: int) -> list[SubscriptionGroup | None]:
        """Return the groups that a client names, as ``find`` does; new ones are written together.

        Raises:
            LimitError: there would be too many.
        """
        names = list(names)
        new = [
            name
            for name in names
            if name not in self._groups and (self.creates or is_system_group(name)) and is_name(name, MAX_NAME)
        ]
        if new:
            check_room(len(self._groups), len({*new}), MAX_GROUPS_IN_ALL, "groups")
            for name in new:
                self._put(name, default_members(name))
            self._changed(now)
        return [self._groups.get(name) for name in names]

    def update(self, change: Table, now: int) -> SubscriptionGroup:
        """Create a group, or change one; members that are not given keep their values.

        Raises:
            FormatError: a member is invalid.
            LimitError: there would be too many groups, or this one's settings are too long.
        """
        group = str(change.get("groupName") or "")
        members = self._members.get(group) or default_members(group)
        changed = {**members, **{name: value for name, value in change.items() if value is not None}}
        changed["attributes"] = _attributes(members.get("attributes") or {}, change.get("attributes") or {})
        if self._members.get(group) != changed:
            check_room(len(self._groups), group not in self._groups, MAX_GROUPS_IN_ALL, "groups")
            if len(build_body(changed)) > MAX_OF_SETTINGS:
                raise LimitError(f"the settings of the group [{group}] take more than {MAX_OF_SETTINGS:,} characters")
            self._put(group, changed)
            self._changed(now)
        return self._groups[group]

    def replace(self, table: Table) -> None:
        """Take over the table of a master, its version included.

        Raises:
            FormatError: it is not such a table.
        """
        groups, forbidden = _parse(table)
        members, version = dict(table.get("subscriptionGroupTable") or {}), data_version(table)
        if (members, forbidden, version) == (self._members, self._forbidden, self.version):
            return
        self._groups, self._forbidden, self._members, self.version = groups, forbidden, members, version
        self._saves.want(self._path, self._pieces)

    def delete(self, group: str, now: int) -> bool:
        """Delete a group; return whether it existed."""
        self._forbidden.pop(group, None)
        if self._groups.pop(group, None) is None:
            return False
        del self._members[group]
        self._changed(now)
        return True

    def members(self, group: str) -> Table | None:
        """Return a group in the form of a body (RocketMQ: ``SubscriptionGroupConfig``)."""
        return self._members.get(group)

    def table(self) -> Table:
        """Return all groups in the form of the file and of the body of GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
        return {
            "dataVersion": version_members(self.version),
            "forbiddenTable": self._forbidden,
            "subscriptionGroupTable": self._members,
        }

    def is_readable(self, group: str, topic: str) -> bool:
        """Return whether a group may read a topic."""
        return not self._forbidden.get(group, {}).get(topic, 0) >> _READ_BIT & 1

    def set_readable(self, group: str, topic: str, readable: bool, now: int) -> None:
        """Forbid a group to read a topic, or allow it again."""
        if self.is_readable(group, topic) == readable:
            return
        check_name(group, "group")
        check_name(topic, "topic")
        check_room(sum(map(len, self._forbidden.values())), not readable, MAX_FORBIDDEN, "topics forbidden to groups")
        bits = self._forbidden.setdefault(group, {})
        bits[topic] = bits.get(topic, 0) ^ 1 << _READ_BIT
        if not bits[topic]:
            del bits[topic]
        if not bits:
            del self._forbidden[group]
        self._changed(now)

    def _put(self, group: str, members: Table) -> None:
        self._groups |= subscription_groups({"subscriptionGroupTable": {group: members}})
        self._members[group] = members

    def _changed(self, now: int) -> None:
        self.change_count += 1
        self.version = DataVersion(self.version.state_version, self.version.counter + 1, now)
        self._saves.want(self._path, self._pieces)

    def _pieces(self) -> Iterator[bytes]:
        head = {"dataVersion": version_members(self.version), "forbiddenTable": self._forbidden}
        return build_table_in_pieces(head, "subscriptionGroupTable", list(self._members.items()))


_READ_BIT = 0  # of the numbers in the forbidden table


def is_name(group: str, most: int) -> bool:
    """Return whether this is a valid group name of at most ``most`` characters."""
    return len(group) <= most and _NAME.fullmatch(group) is not None


def is_system_group(group: str) -> bool:
    """Return whether a group belongs to the broker itself."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def default_members(group: str) -> Table:
    """Return a new group in the form of the table."""
    return {
        "attributes": {},
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeMessageOrderly": False,
        "consumeTimeoutMinute": 15,
        "groupName": group,
        "groupRetryPolicy": {"type": "CUSTOMIZED"},
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 16,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }


def _attributes(present: Mapping[str, Any], changes: Any) -> dict[str, Any]:
    """Return attributes after a change: ``+name`` sets one, ``-name`` removes it."""
    if not isinstance(changes, Mapping):
        raise FormatError("attributes is not an object", offset=0)
    changed = dict(present)
    for name, value in changes.items():
        if name.startswith("-"):
            changed.pop(name[1:], None)
        else:
            changed[name.removeprefix("+")] = value
    return changed


def _parse(table: Table) -> tuple[dict[str, SubscriptionGroup], dict[str, dict[str, int]]]:
    return subscription_groups(table), _forbidden(table)


def _forbidden(table: Table) -> dict[str, dict[str, int]]:
    try:
        return {
            str(group): {str(topic): int(bits) for topic, bits in topics.items()}
            for group, topics in (table.get("forbiddenTable") or {}).items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise FormatError("forbiddenTable of subscriptionGroup.json is not a table of topics", offset=0) from error
