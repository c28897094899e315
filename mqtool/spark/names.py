"""The name of a store in the offsets of a stream, which stays the same when the store is mounted somewhere else."""

import fnmatch
from collections.abc import Iterable, Mapping

from mqtool.errors import FormatError, MqtoolError, UsageError
from mqtool.formats import config_tables
from mqtool.formats.topics import DEFAULT_TOPIC, MEMBER_PREFIX, REPLY_SUFFIX
from mqtool.spark.stores import Store

_INHERITED = 1  # of the permissions of a topic


def name_stores(stores: Iterable[Store], names_by_pattern: Mapping[str, str]) -> dict[str, Store]:
    """Return stores by name: a given one, that of the broker, or the path.

    Args:
        stores: to be named.
        names_by_pattern: names by path or pattern of paths.

    Raises:
        UsageError: two have one name.
    """
    named: dict[str, Store] = {}
    for store in stores:
        names = [
            name for pattern, name in names_by_pattern.items() if fnmatch.fnmatchcase(store.path, pattern.rstrip("/"))
        ]
        name = names[0] if names else _broker_name(store) or store.path
        if name in named:
            raise UsageError(
                f"{named[name].path} and {store.path} are both called {name}: read only one of them, or name them "
                f'with the option storeNames, for example {{"{store.path}": "{name}-2"}}'
            )
        named[name] = store
    return named


def _broker_name(store: Store) -> str | None:
    try:
        table = store.open().config_table("topics.json")
        name = broker_name(config_tables.topics(table)) if table is not None else None
    except (FormatError, MqtoolError):
        name = None
    return name or store.config.settings.get("brokerName")


def broker_name(topics: Mapping[str, config_tables.TopicConfig]) -> str | None:
    """Return the name of the broker whose topics these are, None if they do not show it.

    A broker has a topic of its own name and one of its cluster's, which others inherit from (RocketMQ,
    ``TopicConfigManager``); since 5 also one that starts with ``rmq_sys_SYNC_BROKER_MEMBER_``.
    """
    members = [name.removeprefix(MEMBER_PREFIX) for name in topics if name.startswith(MEMBER_PREFIX)]
    not_own = {DEFAULT_TOPIC, *(name.removesuffix(REPLY_SUFFIX) for name in topics if name.endswith(REPLY_SUFFIX))}
    own = [name for name, topic in topics.items() if topic.perm & _INHERITED and name not in not_own]
    names = members or [name for name in own if not name.startswith(MEMBER_PREFIX)]
    return names[0] if len(names) == 1 else None
