"""Changes to topics, groups and consumer offsets of a store on which no broker runs: the tables under ``config/``.

As an administrator would have a running broker do. Deleting a topic deletes its queues; messages stay
in the log, and a repair that rebuilds queues from the log brings them back. (Layouts: store.md 10. RocketMQ:
``TopicConfigManager``, ``SubscriptionGroupManager``, ``ConsumerOffsetManager``.)

Cost: linear in the tables, and in the number of files of a deleted topic.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mqtool.engine.repair.journal import Journal
from mqtool.engine.repair.parts import Progress
from mqtool.engine.repair.plan import Change, Plan
from mqtool.engine.repair.rebuild.config import count_up, dialect_of_table
from mqtool.engine.repair.rehearsal import rehearsed
from mqtool.engine.store import rocksdb
from mqtool.engine.store.queue_view import open_queue, queue_keys
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import BadDataError, NotFoundError, UsageError
from mqtool.formats import config_tables
from mqtool.formats.bodies import topic_members
from mqtool.formats.config_changes import changed_group, changed_topic, check_name, differences, group_differences
from mqtool.formats.config_tables import Table
from mqtool.formats.topics import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_system_topic

_TOPICS, _GROUPS, _OFFSETS = "topics.json", "subscriptionGroup.json", "consumerOffset.json"

Options = Mapping[str, Any]


class _Edit:
    """The new tables, and the files to be removed."""

    def __init__(self, reader: StoreReader) -> None:
        if any(rocksdb.is_rocksdb(reader.paths.config / name) for name in rocksdb.CONFIG_DATABASES):
            raise UsageError(f"the tables of {reader.root} are in RocksDB: start the broker and use -n")
        self.reader = reader
        self.tables: dict[str, Table] = {}
        self.reasons: dict[str, list[str]] = {}
        self.folders: dict[Path, str] = {}
        self.remarks: list[str] = []

    def members(self, name: str) -> Table:
        """Return the rows of a table, to be changed."""
        if name not in self.tables:
            self.tables[name] = copy.deepcopy(self.reader.config_table(name) or {})
        member = config_tables.TABLES[name].member
        members = self.tables[name].setdefault(member, {})
        if not isinstance(members, dict):
            raise BadDataError(f"config/{name} has a {member} that is not an object: run `mqtool rebuild config` first")
        return members

    def tell(self, name: str, reason: str) -> None:
        """Say why a table changes."""
        self.reasons.setdefault(name, []).append(reason)

    def changes(self) -> Iterator[Change]:
        """Yield the changes."""
        for name, reasons in self.reasons.items():
            action = "replace" if (self.reader.paths.config / name).exists() else "create"
            yield Change(action, f"config/{name}", "; ".join(reasons), size=len(self.text(name)))
        root = self.reader.root.resolve()
        for folder, reason in self.folders.items():
            path = folder.resolve()
            name = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
            yield Change("remove", name, reason)

    def text(self, name: str) -> bytes:
        """Return a table as the broker of this store would write it."""
        table = copy.deepcopy(self.tables[name])
        count_up(table)
        return config_tables.build_table(table, dialect_of_table(self.reader, name))


# Edits


def _create_topic(edit: _Edit, options: Options) -> None:
    topic, known = options["topic"], None
    check_name(topic)
    topics = edit.members(_TOPICS)
    if isinstance(topics.get(topic), dict):
        known = config_tables.topics({"topicConfigTable": {topic: topics[topic]}})[topic]
    config = changed_topic(known, topic, options["queues"], options["perm"])
    if config == known:
        return
    members = topic_members(config)
    if not config.attributes:
        del members["attributes"]
    topics[topic] = {**(topics[topic] if known else {}), **members}
    edit.tell(_TOPICS, f"topic {topic}: {differences(known, config)}")


def _delete_topic(edit: _Edit, options: Options) -> None:
    topic = options["topic"]
    if is_system_topic(topic):
        raise UsageError(f"{topic} is one of the broker's own topics, which it needs")
    topics = edit.members(_TOPICS)
    keys = [key for key in queue_keys(edit.reader) if key[0] == topic]
    if topic not in topics and not keys:
        raise NotFoundError(f"{edit.reader.root} has no topic {topic}")
    _drop_topic(edit, topic)


def _drop_topic(edit: _Edit, topic: str) -> None:
    if edit.members(_TOPICS).pop(topic, None) is not None:
        edit.tell(_TOPICS, f"topic {topic} is deleted")
    _drop_offsets(edit, lambda of, _: of == topic)
    reader = edit.reader
    if reader.rocksdb_queues:
        edit.remarks.append(f"queues of {topic} in RocksDB stay: the broker deletes them at its next cleanup")
    count = 0
    for name, queue_id in sorted(queue_keys(reader)):
        queue = open_queue(reader, name, queue_id) if name == topic else None
        count += queue.max_offset - queue.min_offset if queue else 0
    for parent in (reader.paths.consume_queue, reader.paths.batch_consume_queue, reader.paths.consume_queue_ext):
        if (parent / topic).is_dir():
            edit.folders[parent / topic] = f"the queues of {topic}"
    if count:
        edit.remarks.append(f"{count:,} messages of {topic} can no longer be consumed; they stay in the log")


def _drop_offsets(edit: _Edit, is_meant: Callable[[str, str], bool]) -> None:
    offsets = edit.members(_OFFSETS)
    names = [name for name in offsets if is_meant(*str(name).partition("@")[::2])]
    for name in names:
        del offsets[name]
    if names:
        edit.tell(_OFFSETS, f"{len(names):,} offsets are deleted: {', '.join(map(str, names[:5]))}")


def _create_group(edit: _Edit, options: Options) -> None:
    group = options["group"]
    check_name(group)
    groups = edit.members(_GROUPS)
    known = groups.get(group) if isinstance(groups.get(group), dict) else None
    settings = changed_group(known, group, options)
    if settings != known:
        groups[group] = settings
        edit.tell(_GROUPS, f"group {group}: {group_differences(known, settings)}")


def _delete_group(edit: _Edit, options: Options) -> None:
    group = options["group"]
    had = edit.members(_GROUPS).pop(group, None) is not None
    if had:
        edit.tell(_GROUPS, f"group {group} is deleted")
    _drop_offsets(edit, lambda _, of: of == group)
    if not had and _OFFSETS not in edit.reasons:
        raise NotFoundError(f"{edit.reader.root} has no group {group}")
    for topic in (RETRY_PREFIX + group, DEAD_LETTER_PREFIX + group):
        _drop_topic(edit, topic)


def _set_offset(edit: _Edit, options: Options) -> None:
    """Set the offset of one queue, or all queues of topics to a time (-1: the end, 0: the start)."""
    group = options["group"]
    for topic in options["topics"]:
        held = edit.members(_OFFSETS).get(f"{topic}@{group}") or {}
        ids = {queue_id for name, queue_id in queue_keys(edit.reader) if name == topic}
        if "offset" in options:  # a deleted queue is set to its beginning
            ids |= {int(queue_id) for queue_id in held if str(queue_id).isdigit()}
        if "queue_id" in options:
            ids &= {options["queue_id"]}
        if not ids:
            which = f" {options['queue_id']}" if "queue_id" in options else ""
            raise NotFoundError(f"{edit.reader.root} has no queue{which} of topic {topic}")
        offsets = edit.members(_OFFSETS).setdefault(f"{topic}@{group}", {})
        for queue_id in sorted(ids):
            key = str(queue_id) if str(queue_id) in offsets else queue_id
            after = _target(edit, topic, queue_id, options)
            if offsets.get(key) != after:
                edit.tell(_OFFSETS, f"{group} in queue {queue_id} of {topic}: {offsets.get(key, 'none')} to {after}")
                offsets[key] = after


def _target(edit: _Edit, topic: str, queue_id: int, options: Options) -> int:
    queue = open_queue(edit.reader, topic, queue_id)
    low, high = (queue.min_offset, queue.max_offset) if queue else (0, 0)
    if "offset" in options:
        offset: int = options["offset"]
        if not low <= offset <= high:
            raise UsageError(f"queue {queue_id} of {topic} covers {low:,} to {high:,}: {offset:,} is out of range")
        return offset
    timestamp = options["timestamp"]
    if queue is None or timestamp == 0:
        return low
    return high if timestamp < 0 else queue.offset_at(timestamp)


EDITS: dict[str, Callable[[_Edit, Options], None]] = {
    "topic create": _create_topic,
    "topic delete": _delete_topic,
    "group create": _create_group,
    "group delete": _delete_group,
    "offset set": _set_offset,
    "offset reset": _set_offset,
}
"""What ``plan_edit`` can do, by the value of its option ``edit``; the other options are those of the commands."""


def _edited(reader: StoreReader, options: Options) -> _Edit:
    edit = _Edit(reader)
    EDITS[options["edit"]](edit, options)
    return edit


def plan_edit(reader: StoreReader, options: Options, jobs: int, progress: Progress) -> Plan:  # noqa: ARG001
    """Return what an edit would do.

    Raises:
        NotFoundError: the item to be deleted or changed does not exist.
        UsageError: an offset is not in its queue, or the tables are in RocksDB.
    """
    edit = _edited(reader, options)
    command = options["edit"].partition(" ")[0]
    plan = Plan(command, dict(options), tuple(edit.changes()), remarks=tuple(edit.remarks))
    return rehearsed(reader, plan, lambda journal: _carry_out(edit, journal))


def apply_edit(
    reader: StoreReader,
    plan: Plan,
    journal: Journal,
    jobs: int,  # noqa: ARG001
    progress: Progress,  # noqa: ARG001
) -> None:
    """Do it."""
    _carry_out(_edited(reader, plan.options), journal)


def _carry_out(edit: _Edit, journal: Journal) -> None:
    for name in edit.reasons:
        draft = journal.workspace / name
        journal.create(draft)
        journal.fill(draft, 0, edit.text(name))
        journal.move_in(draft, edit.reader.paths.config / name)
    for folder in edit.folders:
        journal.remove(folder)
