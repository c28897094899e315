"""Topics and groups as an administrator wants them: what exists, and what should change."""

import dataclasses
import re
from collections.abc import Mapping

from mqtool.errors import UsageError
from mqtool.formats.config_tables import Table, TopicConfig

_NAME = re.compile(r"[%|a-zA-Z0-9_-]{1,120}")
_QUEUES, _READ_WRITE = 8, 6  # of a new topic, as mqadmin makes it


def check_name(name: str) -> None:
    """Refuse what no broker takes as the name of a topic or a group that an administrator makes.

    Raises:
        UsageError: it is such a name.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name} is not a valid name: use up to 120 letters, digits and the characters _ - % |")


def changed_topic(known: TopicConfig | None, topic: str, queues: int | None, perm: int | None) -> TopicConfig:
    """Return a topic as it should be; what is None is unchanged, or is as mqadmin creates it."""
    config = known or TopicConfig(topic, _QUEUES, _QUEUES, _READ_WRITE, False, "SINGLE_TAG", 0, {})
    if queues is not None:
        config = dataclasses.replace(config, read_queue_count=queues, write_queue_count=queues)
    return config if perm is None else dataclasses.replace(config, perm=perm)


def differences(known: TopicConfig | None, config: TopicConfig) -> str:
    """Return what is different, for people."""
    if known is None:
        count = config.write_queue_count
        return f"{count:,} {'queue' if count == 1 else 'queues'}, perm {config.perm}"
    names = ("read_queue_count", "write_queue_count", "perm")
    before, after = dataclasses.asdict(known), dataclasses.asdict(config)
    return ", ".join(f"{name} {before[name]} to {after[name]}" for name in names if before[name] != after[name])


GROUP_MEMBERS = {"retries": "retryMaxTimes", "consume": "consumeEnable", "broadcast": "consumeBroadcastEnable"}
"""What an administrator changes of a group, and RocketMQ's names for it."""


def changed_group(known: Table | None, group: str, wanted: Mapping[str, int | bool | None]) -> Table:
    """Return the settings of a group as they should be; what ``wanted`` has of ``GROUP_MEMBERS`` is new.

    What a broker keeps for a group and is unknown here stays unchanged.
    """
    settings = dict(known) if known else new_group(group)
    settings.update({GROUP_MEMBERS[name]: wanted[name] for name in GROUP_MEMBERS if wanted.get(name) is not None})
    return settings


def new_group(group: str) -> Table:
    """Return the settings of a group as mqadmin makes it."""
    return {
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "groupName": group,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 16,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }


def group_differences(known: Table | None, settings: Table) -> str:
    """Return what is different, for people."""
    if known is None:
        count = settings["retryMaxTimes"]
        return f"{count} {'retry' if count == 1 else 'retries'}"
    return ", ".join(
        f"{name} {known.get(member)} to {settings.get(member)}".lower()
        for name, member in GROUP_MEMBERS.items()
        if known.get(member) != settings.get(member)
    )
