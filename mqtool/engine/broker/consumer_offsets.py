"""The consumer offset of each group in each queue: ``config/consumerOffset.json``.

(RocketMQ: ``ConsumerOffsetManager``.)
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mqtool.engine.broker.config_files import load_table
from mqtool.engine.broker.limits import MAX_OFFSETS, check_room
from mqtool.engine.broker.saves import Saves
from mqtool.engine.intervals import is_time
from mqtool.errors import WriteError
from mqtool.formats.bodies import version_members
from mqtool.formats.config_tables import DataVersion, Table, build_table_in_pieces, consumer_offsets, data_version

if TYPE_CHECKING:
    from mqtool.engine.store.message_store import MessageStore

log = logging.getLogger(__name__)

KEEP_INTERVAL_MS = 5000
UNKNOWN = -1
_MEMBER = "offsetTable"
_MAX_TOLD = 10

Key = tuple[str, str]
"""Topic and group."""


class ConsumerOffsets:
    """The next offset of each group and queue; written every 5 s if something has changed, and by ``keep``."""

    def __init__(self, folder: Path, now: int, saves: Saves | None = None) -> None:
        """Read the offsets from the table below the folder ``config`` of a store.

        Raises:
            FormatError: the table cannot be read.
        """
        self._path = folder / "consumerOffset.json"
        self._saves = saves or Saves()
        table, offsets = load_table(self._path, _parse)
        self.version = data_version(table) if table else DataVersion(0, 0, now)
        self.kept_at = (self.version.timestamp if self.version.counter else None) if table else 0
        """When the loaded table was written (ms): 0 if never, None if RocketMQ wrote it, without a time."""
        self._offsets: dict[Key, dict[int, int]] = {}
        for (topic, group, queue_id), offset in offsets.items():
            self._offsets.setdefault((topic, group), {})[queue_id] = offset
        self._count = sum(map(len, self._offsets.values()))
        self._pulled: dict[Key, dict[int, int]] = {}
        self._pulled_count = 0
        self._resets: dict[Key, dict[int, int]] = {}
        self._copied: set[Key] = set()  # those in the table of the master that was last taken over
        self._is_changed = False
        self._next_keep = now + KEEP_INTERVAL_MS

    # One queue

    def get(self, group: str, topic: str, queue_id: int) -> int:
        """Return the next offset of a group, ``UNKNOWN`` if it never committed one; a pending reset counts."""
        key = topic, group
        if (target := self._resets.get(key, {}).get(queue_id)) is not None:
            return target
        return self._offsets.get(key, {}).get(queue_id, UNKNOWN)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the next offset of a group; it may be smaller than before."""
        queues = self._offsets.setdefault((topic, group), {})
        self._count += queue_id not in queues
        queues[queue_id] = offset
        self._is_changed = True

    def check_room(self, group: str, topic: str, queue_ids: Iterable[int]) -> None:
        """Check that offsets of queues of a topic are within limits; existing ones always are.

        Raises:
            LimitError: they are not.
        """
        queues = self._offsets.get((topic, group), {})
        new = sum(queue_id not in queues for queue_id in queue_ids)
        check_room(self._count, new, MAX_OFFSETS, "consumer offsets")

    def has_room(self, group: str, topic: str, queue_id: int) -> bool:
        """Return whether an offset of a queue is within limits."""
        return self._count < MAX_OFFSETS or queue_id in self._offsets.get((topic, group), ())

    def note_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note up to where messages were delivered to a group; kept only in memory."""
        queues = self._pulled.get((topic, group))
        if queues is not None and queue_id in queues:
            queues[queue_id] = offset
        elif self._pulled_count < MAX_OFFSETS:
            self._pulled.setdefault((topic, group), {})[queue_id] = offset
            self._pulled_count += 1

    def pulled(self, group: str, topic: str, queue_id: int) -> int:
        """Return up to where messages were delivered to a group, ``UNKNOWN`` if none were."""
        return self._pulled.get((topic, group), {}).get(queue_id, UNKNOWN)

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the next offset of a group; its next pull is answered with it, and commits before that are ignored."""
        self.commit(group, topic, queue_id, offset)
        self._resets.setdefault((topic, group), {})[queue_id] = offset

    def has_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Return whether a group has yet to be notified of a reset."""
        return bool(self._resets) and queue_id in self._resets.get((topic, group), ())

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return, once, the offset of a reset of which a group has to be notified."""
        if not self._resets:
            return None
        queues = self._resets.get((topic, group), {})
        target = queues.pop(queue_id, None)
        if not queues:
            self._resets.pop((topic, group), None)
        return target

    # Groups and topics

    def pairs(self) -> list[Key]:
        """Return every topic and group with offsets."""
        return list(self._offsets)

    def of(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the offsets of a group by queue id."""
        return self._offsets.get((topic, group), {})

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which a group has offsets."""
        return [topic for topic, group_name in self._offsets if group_name == group]

    def topics_by_group(self) -> dict[str, list[str]]:
        """Return the topics in which each group has offsets."""
        topics: dict[str, list[str]] = {}
        for topic, group in self._offsets:
            topics.setdefault(group, []).append(topic)
        return topics

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have offsets in a topic."""
        return [group for topic_name, group in self._offsets if topic_name == topic]

    def clone(self, source: str, target: str, topic: str) -> None:
        """Copy the offsets of a group for a topic to another group."""
        if offsets := self._offsets.get((topic, source)):
            before = self._offsets.get((topic, target), ())
            check_room(self._count - len(before), len(offsets), MAX_OFFSETS, "consumer offsets")
            self._count += len(offsets) - len(before)
            self._offsets[topic, target] = dict(offsets)
            self._is_changed = True

    def merge(self, table: Table) -> None:
        """Take over the offsets of a master: all queues of each topic and group that it knows.

        Those that it has deleted since the last time are forgotten: a new group of that name would skip messages.
        Others, which groups have committed here alone, stay.

        Raises:
            FormatError: it is not a table of offsets.
        """
        offsets_by_key: dict[Key, dict[int, int]] = {}
        for (topic, group, queue_id), offset in _parse(table).items():
            offsets_by_key.setdefault((topic, group), {})[queue_id] = offset
        for key, queues in offsets_by_key.items():
            before = self._offsets.get(key)
            if before != queues:
                self._count += len(queues) - len(before or ())
                self._offsets[key] = queues
                self._is_changed = True
        self._delete(self._copied - offsets_by_key.keys())
        self._copied = {*offsets_by_key}

    def limit(self, store: "MessageStore") -> None:
        """Limit offsets to the end of their queue: messages that were lost, or cut, have not been read."""
        for (topic, _), queues in self._offsets.items():
            for queue_id, offset in queues.items():
                queue = store.queue(topic, queue_id)
                end = queue.next_offset if queue is not None else 0
                if offset > end:
                    queues[queue_id] = end
                    self._is_changed = True

    def forget(self, group: str, topic: str, queue_id: int) -> None:
        """Remove the offset of a group in a queue."""
        queues = self._offsets.get((topic, group), {})
        if queues.pop(queue_id, None) is not None:
            self._count -= 1
            self._is_changed = True
        if not queues:
            self._delete([(topic, group)])

    def delete_groups(self, groups: Collection[str], now: int) -> None:
        """Forget all offsets of groups; this is queued for saving when this returns."""
        self._delete([key for key in (*self._offsets, *self._pulled, *self._resets) if key[1] in groups])
        self.keep(now)  # a new group of this name would skip messages

    def delete_topics(self, topics: Collection[str], now: int) -> None:
        """Forget all offsets of topics; this is queued for saving when this returns."""
        self._delete([key for key in (*self._offsets, *self._pulled, *self._resets) if key[0] in topics])
        self.keep(now)  # groups of a new topic of this name would skip messages

    def _delete(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._pulled_count -= len(self._pulled.pop(key, ()))
            self._resets.pop(key, None)
            if (queues := self._offsets.pop(key, None)) is not None:
                self._count -= len(queues)
                self._is_changed = True

    # Saving

    def table(self) -> Table:
        """Return all offsets in the form of the file and of the body of GET_ALL_CONSUMER_OFFSET."""
        return {"dataVersion": version_members(self.version), _MEMBER: dict(self._rows())}

    def _rows(self) -> Iterator[tuple[str, dict[int, int]]]:
        return ((f"{topic}@{group}", queues) for (topic, group), queues in list(self._offsets.items()))

    def _pieces(self) -> Iterator[bytes]:
        return build_table_in_pieces({"dataVersion": version_members(self.version)}, _MEMBER, self._rows())

    def keep(self, now: int) -> None:
        """Write changes since the last time.

        Raises:
            WriteError: the disk is full, or fails; the next call tries again.
        """
        if self._is_changed:
            self.version = DataVersion(self.version.state_version, self.version.counter + 1, now)
            self._saves.want(self._path, self._pieces)
            self._is_changed = False

    def tick(self, now: int) -> None:
        """Save the offsets every 5 s."""
        if is_time(self._next_keep, KEEP_INTERVAL_MS, now):
            self._next_keep = now + KEEP_INTERVAL_MS
            try:
                self.keep(now)
            except WriteError as error:  # a full disk must not stop consumers
                log.warning("cannot save consumer offsets: %s", error)

    def next_tick(self, now: int) -> int | None:  # noqa: ARG002
        """Return when to save offsets, None while nothing has changed."""
        return self._next_keep if self._is_changed else None


def _parse(table: Table) -> dict[tuple[str, str, int], int]:
    """Return the offsets of a table; like RocketMQ, ignores entries without a topic or group."""
    by_name = table.get(_MEMBER)
    if isinstance(by_name, dict) and (nameless := {name for name in by_name if not all(str(name).partition("@"))}):
        listed = ", ".join(map(repr, sorted(nameless)[:_MAX_TOLD]))
        log.warning("offsets without a topic or a group are ignored: %s", listed)
        table = {**table, _MEMBER: {name: by_name[name] for name in by_name.keys() - nameless}}
    return consumer_offsets(table)
