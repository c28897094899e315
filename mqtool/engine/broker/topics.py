"""The topics of a broker: ``config/topics.json``, and those that it creates itself.

(Rules: remoting.md 4.1, 4.2; store.md 10.2. RocketMQ: ``TopicConfigManager``, ``TopicValidator``.)
"""

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from mqtool.engine.broker.config_files import load_table
from mqtool.engine.broker.limits import MAX_OF_SETTINGS, MAX_TOPICS, check_room
from mqtool.engine.broker.roles import role_of
from mqtool.engine.broker.saves import Saves
from mqtool.engine.broker.settings import BrokerSettings, Role
from mqtool.errors import LimitError
from mqtool.formats.bodies import topic_members, version_members
from mqtool.formats.codes import Perm, TopicSysFlag
from mqtool.formats.config_tables import DataVersion, Table, TopicConfig, build_table_in_pieces, data_version
from mqtool.formats.config_tables import topics as parse_topics
from mqtool.formats.topics import (
    BENCHMARK_TOPIC,
    CHECKPOINT_TOPIC,
    DEAD_LETTER_PREFIX,
    DEFAULT_TOPIC,
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    MEMBER_PREFIX,
    OFFSET_MOVED_TOPIC,
    OP_TOPIC,
    REPLY_SUFFIX,
    RETRY_PREFIX,
    REVIVE_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_PREFIX,
    TIMER_TOPIC,
    TRACE_TOPIC,
)

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
MAX_QUEUES = 1 << 12
"""Of a topic: some answers list each queue."""
_MAX_NAME = 127
_MAX_OF_GROUP = 255  # of a consumer group's own topics

NOT_TO_BE_SENT_TO = frozenset(
    (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_TOPIC, GIVEN_UP_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC)
)
_SYSTEM = NOT_TO_BE_SENT_TO | {DEFAULT_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC, CHECKPOINT_TOPIC}
_WAITING = frozenset((SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_TOPIC, GIVEN_UP_TOPIC))


def fault_of_name(topic: str) -> str | None:
    """Return why a topic cannot have this name, None if it can."""
    if not topic.strip():
        return "The specified topic is blank."
    if not _NAME.fullmatch(topic):
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    most = _MAX_OF_GROUP if topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)) else _MAX_NAME
    return f"The specified topic is longer than topic max length {most}." if len(topic) > most else None


def may_be_sent_to(topic: str) -> bool:
    """Return whether clients may send to a topic: not if it holds the broker's own state, or is never read."""
    return topic not in NOT_TO_BE_SENT_TO and not topic.startswith(REVIVE_PREFIX)


def has_messages_of_all(topic: str) -> bool:
    """Return whether a topic holds waiting messages, or records of pops, of any other topic."""
    return topic in _WAITING or topic.startswith(REVIVE_PREFIX)


def reply_topic(cluster_name: str) -> str:
    """Return the topic that stores replies to requests of clients."""
    return cluster_name + REPLY_SUFFIX


def revive_topic(cluster_name: str) -> str:
    """Return the topic that stores the records of pops."""
    return REVIVE_PREFIX + cluster_name


class Topics:
    """The topics by name, and the version of the table; every change is queued for saving when a call returns.

    ``on_change`` is called with new or changed topics, so that they can be registered with name servers; ``on_delete``
    with the names of all that are deleted together. Times are in ms.
    """

    def __init__(self, folder: Path, settings: BrokerSettings, now: int, saves: Saves | None = None) -> None:
        """Load the table below the folder ``config`` of a store.

        Raises:
            FormatError: it cannot be read.
        """
        self._path = folder / "topics.json"
        self._saves = saves or Saves()
        table, self._configs = load_table(self._path, parse_topics)
        self.version = data_version(table) if table else DataVersion(0, 0, now)
        self.change_count = 0
        """How often the table was changed, other than by ``replace``."""
        self.settings = settings
        self.on_change: list[Callable[[Iterable[TopicConfig]], None]] = []
        self.on_delete: list[Callable[[Collection[str], int], None]] = []
        for config in _system_topics(settings):
            self._configs.setdefault(config.topic, config)
        self.batch_topics = {topic for topic, config in self._configs.items() if config.is_batch}
        """Topics whose queue units cover several messages."""
        self.terminated: set[str] = set()
        """Topics that accept no more messages as long as they are not writable."""

    @property
    def configs(self) -> Mapping[str, TopicConfig]:
        """All topics by name."""
        return self._configs

    def get(self, topic: str) -> TopicConfig | None:
        """Return the settings of a topic, None if there is no such topic."""
        return self._configs.get(topic)

    def is_terminated(self, topic: str) -> bool:
        """Return whether a topic accepts no more messages; one that is made writable again does."""
        return topic in self.terminated and not self._configs[topic].perm & Perm.WRITE

    def is_system(self, topic: str) -> bool:
        """Return whether a topic is the broker's own, which administrators cannot create or delete."""
        settings = self.settings
        return (
            topic in _SYSTEM
            or topic.startswith(SYSTEM_PREFIX)
            or topic in (settings.cluster_name, settings.broker_name, reply_topic(settings.cluster_name))
        )

    def put(self, configs: Iterable[TopicConfig], now: int) -> None:
        """Create or change topics; unchanged ones are left alone.

        Raises:
            LimitError: there would be too many, or the settings of one are too long; none is created or changed.
        """
        changed = [config for config in configs if self._configs.get(config.topic) != config]
        check_room(
            len(self._configs), sum(config.topic not in self._configs for config in changed), MAX_TOPICS, "topics"
        )
        for config in changed:
            if len(config.filter_type) + sum(map(len, itertools.chain(*config.attributes.items()))) > MAX_OF_SETTINGS:
                fault = f"the settings of the topic [{config.topic}] take more than {MAX_OF_SETTINGS:,} characters"
                raise LimitError(fault)
        self._put(changed, now)

    def _put(self, changed: list[TopicConfig], now: int) -> None:
        if changed:
            self._configs.update((config.topic, config) for config in changed)
            self.batch_topics.update(config.topic for config in changed if config.is_batch)
            self._save(now)
            for tell in self.on_change:
                tell(changed)

    def replace(self, table: Table) -> None:
        """Take over the table of a master, its version included.

        Raises:
            FormatError: it is not such a table.
        """
        configs, version = parse_topics(table), data_version(table)
        if (configs, version) == (self._configs, self.version):
            return
        changed = [config for config in configs.values() if self._configs.get(config.topic) != config]
        self._configs, self.version = configs, version
        self.batch_topics.clear()
        self.batch_topics.update(topic for topic, config in configs.items() if config.is_batch)
        self._saves.want(self._path, self._pieces)
        if changed:
            for tell in self.on_change:
                tell(changed)

    def delete(self, topic: str, now: int) -> None:
        """Delete a topic."""
        self.delete_all([topic], now)

    def delete_all(self, topics: Iterable[str], now: int) -> None:
        """Delete topics; what belongs to them is looked for once, not for each."""
        gone = dict.fromkeys(topics)
        if known := [topic for topic in gone if self._configs.pop(topic, None)]:
            self.batch_topics.difference_update(known)
            self.terminated.difference_update(known)
            self._save(now)
        for tell in self.on_delete:
            tell(gone.keys(), now)

    def create_by_sending(
        self, topic: str, default_topic: str, queue_count: int, is_of_unit: bool, now: int
    ) -> TopicConfig | None:
        """Return a topic created because a message is sent to it, None if that is not allowed.

        Args:
            topic: it does not exist yet.
            default_topic: the topic whose settings the producer requests for it.
            queue_count: the maximum number of queues that it requests.
            is_of_unit: whether to mark it as a topic of a unit.
            now: the time, in ms.
        """
        default = self._configs.get(default_topic)
        if default is None or not default.perm & Perm.INHERIT:
            return None
        if default_topic == DEFAULT_TOPIC and not self.settings.auto_create_topics:
            return None
        count = max(0, min(queue_count, default.write_queue_count))
        perm = default.perm & ~Perm.INHERIT
        flag = int(TopicSysFlag.UNIT) if is_of_unit else 0
        config = _config(topic, count, perm, flag, default.filter_type)
        self.put([config], now)
        return config

    def of_group(self, topic: str, queue_count: int, is_of_unit: bool, now: int) -> TopicConfig:
        """Return a topic for messages that are put again, as of a group's retries; beyond any limit."""
        known = self._configs.get(topic)
        if known is None:
            known = _of_group(topic, queue_count, is_of_unit)
            self._put([known], now)
        return known

    def of_groups(self, wanted: Iterable[tuple[str, int, bool]], now: int) -> None:
        """Create missing retry topics: name, number of queues, whether of a unit; they are written together."""
        self.put([_of_group(*request) for request in wanted if request[0] not in self._configs], now)

    def of_messages(self, queue_counts: Mapping[str, int], now: int) -> None:
        """Create topics that have messages, beyond any limit, or give them more queues."""
        configs = []
        for topic, wanted in queue_counts.items():
            count = min(wanted, MAX_QUEUES)
            known = self._configs.get(topic) or _config(topic, count)
            configs.append(replace(known, read_queue_count=count, write_queue_count=count))
        self._put(configs, now)

    def _save(self, now: int) -> None:
        self.change_count += 1
        if role_of(self.settings) is not Role.SLAVE:  # a slave keeps the version of the copied table
            self.version = DataVersion(self.version.state_version, self.version.counter + 1, now)
        self._saves.want(self._path, self._pieces)

    def _pieces(self) -> Iterator[bytes]:
        rows = ((topic, topic_members(config)) for topic, config in list(self._configs.items()))
        return build_table_in_pieces({"dataVersion": version_members(self.version)}, "topicConfigTable", rows)


def _config(topic: str, queue_count: int, perm: int = 6, sys_flag: int = 0, filter_type: str = "") -> TopicConfig:
    return TopicConfig(
        topic, queue_count, queue_count, int(perm), False, filter_type or "SINGLE_TAG", sys_flag, attributes={}
    )


def _of_group(topic: str, queue_count: int, is_of_unit: bool) -> TopicConfig:
    flag = int(TopicSysFlag.UNIT_SUB) if is_of_unit else 0
    return _config(topic, queue_count, Perm.READ | Perm.WRITE, flag)


def _system_topics(settings: BrokerSettings) -> list[TopicConfig]:
    cluster, broker = settings.cluster_name, settings.broker_name
    everything = Perm.READ | Perm.WRITE
    configs = [
        _config(SELF_TEST_TOPIC, 1),
        _config(BENCHMARK_TOPIC, 1024),
        _config(cluster, 16, Perm.INHERIT | (everything if settings.cluster_topic_enabled else 0)),
        _config(broker, 1, Perm.INHERIT | (everything if settings.broker_topic_enabled else 0)),
        _config(OFFSET_MOVED_TOPIC, 1),
        _config(SCHEDULE_TOPIC, 18),
        _config(reply_topic(cluster), 1),
        _config(revive_topic(cluster), settings.revive_queue_count),
        _config(MEMBER_PREFIX + broker, 1, Perm.INHERIT),
        _config(HALF_TOPIC, 1),
        _config(OP_TOPIC, 1),
    ]
    if settings.auto_create_topics:
        configs.append(_config(DEFAULT_TOPIC, settings.default_queue_count, Perm.INHERIT | everything))
    if settings.trace_topic_enabled:
        configs.append(_config(settings.trace_topic, 1))
    if settings.timer_enabled:
        configs.append(_config(TIMER_TOPIC, 1))
    return configs
