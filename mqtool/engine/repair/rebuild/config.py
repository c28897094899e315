"""Tables under ``config/`` rebuilt from what the queues show; whatever can be read of the old ones is kept.

Topics and their numbers of queues follow from the queues; groups from consumer offsets and retry topics; how far a
group has read from the messages that it sent back; the progress of a delay level from the messages due. (Layouts:
store.md 10.)

Cost: linear in the tables, the queues, and the messages of retry topics and delay levels.
"""

import contextlib
import copy
import dataclasses
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mqtool.engine.repair.findings import Severity
from mqtool.engine.repair.journal import Journal
from mqtool.engine.repair.plan import Change
from mqtool.engine.repair.verify.tables import Tables
from mqtool.engine.store import rocksdb
from mqtool.engine.store.dispatch import QueueKey
from mqtool.engine.store.mapping import read_file
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import BadDataError, FormatError, NotFoundError
from mqtool.formats import config_tables
from mqtool.formats.config_changes import new_group
from mqtool.formats.config_tables import Dialect, Table
from mqtool.formats.message import Message
from mqtool.formats.property_names import ORIGIN_MESSAGE_ID, RETRY_TOPIC
from mqtool.formats.topics import (
    DEAD_LETTER_PREFIX,
    MAX_QUEUES,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_GROUP_PREFIXES,
    is_system_topic,
)

NAMES = ("topics.json", "consumerOffset.json", "subscriptionGroup.json", "delayOffset.json")
Ends = Mapping[QueueKey, int]
_READ_WRITE = 6
_MAX_RETRIES = 10_000  # messages of a retry topic that are examined, the newest
_OFFSET_DIGITS = 16  # at the end of a message id


@dataclasses.dataclass(frozen=True)
class Rebuilt:
    """A table that differs from the existing one.

    ``is_rough``: its contents, and whether it differs at all, depend on queues that do not exist yet.
    """

    name: str
    text: bytes
    reasons: tuple[str, ...]
    is_rough: bool = False


def changes(
    reader: StoreReader, batch_topics: Collection[str], further: Collection[QueueKey] = (), ends: Ends | None = None
) -> list[Change]:
    """Return the changes that ``apply`` would make, with the same arguments."""
    return [
        Change(
            "replace" if table.is_rough or (reader.paths.config / table.name).exists() else "create",
            f"config/{table.name}",
            "; ".join(table.reasons),
            size=None if table.is_rough else len(table.text),
        )
        for table in tables(reader, batch_topics, further, ends)
    ]


def apply(
    reader: StoreReader,
    journal: Journal,
    batch_topics: Collection[str],
    further: Collection[QueueKey] = (),
    ends: Ends | None = None,
) -> None:
    """Put the tables in place.

    Args:
        reader: of the store.
        journal: of the repair.
        batch_topics: those that keep several messages in a unit, as in ``batch_topics_of``.
        further: queues that the log shows.
        ends: one past the last queue offset of each queue, if the queues are changed.
    """
    for table in tables(reader, batch_topics, further, ends):
        draft = journal.workspace / table.name
        journal.create(draft)
        journal.fill(draft, 0, table.text)
        journal.move_in(draft, reader.paths.config / table.name)


def left_unchanged(reader: StoreReader) -> Iterator[str]:
    """Yield a sentence for each table that cannot be read, or only from its backup, and is not among those rebuilt."""
    if any(rocksdb.is_rocksdb(reader.paths.config / name) for name in rocksdb.CONFIG_DATABASES):
        yield "the tables are in RocksDB and are left unchanged"
        return
    rebuilt = {reader.paths.relative(reader.paths.config / name) for name in NAMES}
    for item in Tables.read(reader).findings:
        if item.severity is not Severity.NOTE and item.file not in rebuilt:
            yield f"left unchanged ({item.code}): {item.file}: {item.message}; see `mqtool explain {item.code}`"


def tables(
    reader: StoreReader, batch_topics: Collection[str], further: Collection[QueueKey] = (), ends: Ends | None = None
) -> list[Rebuilt]:
    """Return the tables that have to change, none if they are in RocksDB. Arguments as for ``apply``."""
    if any(rocksdb.is_rocksdb(reader.paths.config / name) for name in rocksdb.CONFIG_DATABASES):
        return []
    config = _Config(reader, batch_topics, further, ends)
    config.add_topics()
    config.add_offsets()
    config.add_groups()
    config.add_delay_offsets()
    return list(config.rebuilt())


class _Config:
    """The tables, before and after."""

    def __init__(
        self, reader: StoreReader, batch_topics: Collection[str], further: Collection[QueueKey], ends: Ends | None
    ) -> None:
        self.reader = reader
        self.batch_topics = batch_topics
        self.ends = ends
        keys = ends if ends is not None else {*reader.consume_queues, *reader.batch_consume_queues}
        self.counts: dict[str, int] = {}
        for topic, queue_id in (*keys, *further):
            self.counts[topic] = max(self.counts.get(topic, 0), min(queue_id + 1, MAX_QUEUES))
        self.tables: dict[str, Table] = {}
        self.reasons: dict[str, list[str]] = {name: [] for name in NAMES}
        self.rough: set[str] = set()
        for name in NAMES:
            self.tables[name] = self._read(name)

    def _read(self, name: str) -> Table:
        member = config_tables.TABLES[name].member
        try:
            table = copy.deepcopy(self.reader.config_table(name)) or {}
            path = self.reader.paths.config / name
            if table and not _is_readable(path):
                self.reasons[name].append("taken from its backup")
        except BadDataError:
            table = {}
            self.reasons[name].append("the old one cannot be read")
        if not isinstance(table.setdefault(member, {}), dict):
            table[member] = {}
            self.reasons[name].append(f"its {member} cannot be read")
        return table

    def _end_of(self, key: QueueKey) -> int | None:
        """Return one past the last queue offset of a queue, None if it is unknown."""
        if self.ends is not None:
            return self.ends.get(key, 0)  # it will start from 0
        queue = self.reader.consume_queues.get(key) or self.reader.batch_consume_queues.get(key)
        return None if queue is None else queue.max_offset()

    def _settings(self, name: str) -> Table:
        settings: Table = self.tables[name][config_tables.TABLES[name].member]
        return settings

    def add_topics(self) -> None:
        """Add the topics of queues, and correct the numbers and the type of their queues where settings contradict."""
        topics = self._settings("topics.json")
        new, raised, typed = [], [], []
        for topic, count in sorted(self.counts.items()):
            if is_system_topic(topic):
                continue
            settings = topics.get(topic)
            if not isinstance(settings, dict):
                topics[topic] = _topic_settings(topic, count, topic in self.batch_topics)
                new.append(topic)
                continue
            for key in ("readQueueNums", "writeQueueNums"):
                if not isinstance(settings.get(key), int) or settings[key] < count:
                    settings[key] = count
                    raised.append(topic)
            if topic in self.batch_topics and _set_batch_type(settings):
                typed.append(topic)
        self._tell("topics.json", "topics added", new)
        self._tell("topics.json", "topics with more queues", raised)
        self._tell("topics.json", "topics with batch queues", typed)

    def add_groups(self) -> None:
        """Add the groups that have offsets or a retry topic."""
        groups = self._settings("subscriptionGroup.json")
        retry_counts = {_group_of(topic): count for topic, count in self.counts.items() if _group_of(topic)}
        offsets = (str(name).partition("@")[2] for name in self._settings("consumerOffset.json"))
        new = []
        for group in sorted({*retry_counts, *offsets} - {""}):
            if not group.startswith(SYSTEM_GROUP_PREFIXES) and not isinstance(groups.get(group), dict):
                groups[group] = _group_settings(group, retry_counts.get(group, 1))
                new.append(group)
        self._tell("subscriptionGroup.json", "groups added", new)

    def add_offsets(self) -> None:
        """Limit offsets to the ends of queues; derive missing offsets of a group from what it sent back."""
        offsets = self._settings("consumerOffset.json")
        clamped, new = [], []
        for name, by_queue in offsets.items():
            topic = str(name).partition("@")[0]
            for queue_id, offset in by_queue.items() if isinstance(by_queue, dict) else ():
                end = self._end_of((topic, _number(queue_id)))
                if end is not None and isinstance(offset, int) and offset > end:
                    by_queue[queue_id] = end
                    clamped.append(str(name))
        for (topic, group, queue_id), offset in sorted(self._sent_back().items()):
            by_queue = offsets.setdefault(f"{topic}@{group}", {})
            if queue_id not in by_queue and str(queue_id) not in by_queue:
                by_queue[queue_id] = offset
                new.append(f"{topic}@{group}")
        self._tell("consumerOffset.json", "offsets beyond the end of their queue moved there", clamped)
        self._tell("consumerOffset.json", "offsets taken from messages sent back", new)
        unread = [topic for topic, _ in self._due() if topic.startswith(RETRY_PREFIX)]
        if unread:
            self.rough.add("consumerOffset.json")
            self._tell("consumerOffset.json", "offsets may be taken from messages sent back", unread)

    def _due(self) -> list[QueueKey]:
        """Return the queues that do not exist yet but will."""
        return sorted(set(self.ends or ()).difference(self.reader.consume_queues, self.reader.batch_consume_queues))

    def _sent_back(self) -> dict[config_tables.OffsetKey, int]:
        """Return, for each group and queue, the last message that the group is known to have sent back."""
        offsets: dict[config_tables.OffsetKey, int] = {}
        for (topic, _), queue in sorted(self.reader.consume_queues.items()):
            group = _group_of(topic)
            if not group or not topic.startswith(RETRY_PREFIX):
                continue
            stop = queue.max_offset()
            for unit in queue.units(max(queue.first_offset, stop - _MAX_RETRIES), stop):
                original = self._original(int(unit["physical_offset"]))
                if original is not None:
                    key = (original.topic, group, original.queue_id)
                    offsets[key] = max(offsets.get(key, 0), original.queue_offset)
        return offsets

    def _original(self, offset: int) -> Message | None:
        """Return the message of which the one at an address is a retry, None if that is unknown."""
        with contextlib.suppress(FormatError, NotFoundError, KeyError, ValueError):
            retry = self.reader.message_at(offset)
            original = self.reader.message_at(int(retry.properties[ORIGIN_MESSAGE_ID][-_OFFSET_DIGITS:], 16))
            if original.topic == retry.properties[RETRY_TOPIC]:
                return original
        return None

    def add_delay_offsets(self) -> None:
        """Set each delay level to the first message that was not due when the last message was stored.

        A level beyond the end of its queue continues at the end, as in 5.x.
        """
        offsets = self._settings("delayOffset.json")
        last = self._last_timestamp()
        new, clamped = [], []
        for level, offset in offsets.items():
            end = self._end_of((SCHEDULE_TOPIC, _number(level) - 1)) or 0
            if isinstance(offset, int) and offset > end and not self.reader.rocksdb_queues:
                offsets[level] = end
                clamped.append(str(level))
        for (topic, queue_id), queue in sorted(self.reader.consume_queues.items()):
            level = queue_id + 1
            if topic == SCHEDULE_TOPIC and level not in offsets and str(level) not in offsets:
                units = queue.units(queue.first_offset, queue.max_offset())
                waiting = np.flatnonzero(units["tags_code"] > last)
                offsets[level] = queue.first_offset + int(waiting[0]) if len(waiting) else queue.max_offset()
                new.append(str(level))
        for topic, queue_id in self._due():
            level = queue_id + 1
            if topic == SCHEDULE_TOPIC and level not in offsets and str(level) not in offsets:
                offsets[level] = 0  # determined by its queue later
                new.append(str(level))
                self.rough.add("delayOffset.json")
        self._tell("delayOffset.json", "delay levels beyond the end of their queue moved there", clamped)
        self._tell("delayOffset.json", "delay levels added", new)

    def _last_timestamp(self) -> int:
        """Return when the newest message that a queue knows was stored."""
        newest = 0
        for queue in self.reader.consume_queues.values():
            stop = queue.max_offset()
            for unit in queue.units(stop - 1, stop) if stop > queue.first_offset else ():
                newest = max(newest, int(unit["physical_offset"]))
        with contextlib.suppress(FormatError, NotFoundError):
            return self.reader.message_at(newest).store_timestamp
        return 0

    def _tell(self, name: str, label: str, affected: list[str]) -> None:
        if affected:
            names = list(dict.fromkeys(affected))
            self.reasons[name].append(
                f"{len(names):,} {label}: {', '.join(names[:5])}{', ..' if len(names) > 5 else ''}"
            )

    def rebuilt(self) -> Iterator[Rebuilt]:
        """Yield the tables that changed, in the dialect of the old ones."""
        for name, reasons in self.reasons.items():
            if reasons:
                count_up(self.tables[name])
                yield Rebuilt(
                    name,
                    config_tables.build_table(self.tables[name], dialect_of_table(self.reader, name)),
                    tuple(reasons),
                    name in self.rough,
                )


def dialect_of_table(reader: StoreReader, name: str) -> Dialect:
    """Return the dialect in which to write a table: its own, or if it does not exist that of the others."""
    for table_name in (name, *NAMES):
        with contextlib.suppress(FormatError, NotFoundError):
            return config_tables.dialect_of(read_file(reader.paths.config / table_name))
    return Dialect.FASTJSON_1


def _is_readable(path: Path) -> bool:
    try:
        config_tables.read_table(path.name, read_file(path))
    except (FormatError, NotFoundError):
        return False
    return True


def count_up(table: Table) -> None:
    """Increase the version of a table, so that name servers and slaves accept it."""
    version = table.get("dataVersion")
    if isinstance(version, dict) and isinstance(version.get("counter"), int):
        version["counter"] += 1


def _number(queue_id: Any) -> int:
    return int(queue_id) if str(queue_id).isdecimal() else -1


def _group_of(topic: str) -> str:
    """Return the group that a retry or dead letter topic belongs to, empty for other topics."""
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if topic.startswith(prefix):
            return topic.removeprefix(prefix).partition("+")[0]  # for pop consumers the topic follows
    return ""


def _set_batch_type(settings: Table) -> bool:
    """Set the type of a topic to that of batch queues; returns whether it was another one."""
    attributes = settings.get("attributes")
    if not isinstance(attributes, dict):
        attributes = settings["attributes"] = {}
    changes = attributes.get("queue.type") != "BatchCQ"
    attributes["queue.type"] = "BatchCQ"
    return changes


def _topic_settings(topic: str, count: int, is_batch: bool) -> Table:
    settings = {
        "order": False,
        "perm": _READ_WRITE,
        "readQueueNums": count,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic,
        "topicSysFlag": 0,
        "writeQueueNums": count,
    }
    if is_batch:
        _set_batch_type(settings)
    return settings


def _group_settings(group: str, retry_queue_count: int) -> Table:
    return new_group(group) | {"retryQueueNums": retry_queue_count}
