"""Offsets: progress of groups, offsets by time, resets.

(Rules: remoting.md 3.2, 3.7. RocketMQ: ``ConsumerManageProcessor``, ``AdminBrokerProcessor``, ``Broker2Client``.)
"""

from collections.abc import Set
from typing import NamedTuple

from mqtool.engine.broker.clients import Clients
from mqtool.engine.broker.consumer_offsets import UNKNOWN
from mqtool.engine.broker.operations.queues import ends_of, next_offset_of, store_timestamp
from mqtool.engine.broker.operations.reading import ReadingParts
from mqtool.engine.broker.operations.refusal import OperationRefusedError, Reason
from mqtool.engine.broker.operations.steps import QUEUES_AT_ONCE, Steps
from mqtool.engine.broker.sessions import OffsetsReset
from mqtool.engine.store.live_pull import is_in_memory
from mqtool.engine.store.time_search import Boundary
from mqtool.formats.config_tables import TopicConfig

NOWHERE = (1 << 63) - 1
"""An offset that is greater than all others."""


class Reset(NamedTuple):
    """Where a group is to continue."""

    group: str
    topic: str
    timestamp: int  # ms; less than 0: at the end
    is_forced: bool  # also forward, past unread messages
    queue_id: int = -1  # -1: of all queues
    offset: int | None = None  # instead of a time


class OffsetRequests:
    """Requests about offsets, with the parts of a broker that they need."""

    def __init__(self, parts: ReadingParts, clients: Clients) -> None:
        self._store, self._state, self._topics, self._groups, self._offsets, self._room = parts
        self._clients = clients

    # Of groups

    def consumed(self, group: str, topic: str, queue_id: int, *, begins_at_zero: bool = True) -> int:
        """Return the next offset of a group in a queue; a new group starts at 0 while the queue is young enough.

        Raises:
            OperationRefusedError: it has not read this queue, and may not start at 0.
        """
        offset = self._offsets.get(group, topic, queue_id)
        if offset < 0 and begins_at_zero:
            offset = self._first_offset(topic, queue_id)
        if offset < 0:
            raise OperationRefusedError(
                Reason.NOT_FOUND, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
            )
        return offset

    def _first_offset(self, topic: str, queue_id: int) -> int:
        queue = self._store.queue(topic, queue_id)
        if queue is None or queue.min_offset(self._store.log.min_offset) > 0:
            return UNKNOWN
        units = queue.units(0, 1)
        return 0 if units and is_in_memory(self._store, units[0].physical_offset) else UNKNOWN

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Commit the next offset of a group in a queue; return whether it counts: a pending reset takes precedence.

        Raises:
            OperationRefusedError: there is no such group, topic or queue.
            LimitError: there are too many offsets.
        """
        if self._groups.get(group) is None:
            raise OperationRefusedError(Reason.NO_GROUP, f"Group {group} not exist!")
        if (config := self._topics.get(topic)) is None:
            raise OperationRefusedError(Reason.NO_TOPIC, f"Topic {topic} not exist!")
        # RocketMQ accepts any number; invented ones would fill the table. A topic may have had more queues before.
        if not 0 <= queue_id < max(config.read_queue_count, config.write_queue_count) and (
            self._offsets.get(group, topic, queue_id) == UNKNOWN
        ):
            raise OperationRefusedError(Reason.BAD_ARGUMENT, f"Topic {topic} has no queue {queue_id}")
        if self._offsets.has_reset(group, topic, queue_id):
            return False
        self._offsets.check_room(group, topic, [queue_id])
        self._offsets.commit(group, topic, queue_id, offset)
        return True

    def clone(self, source: str, target: str, topic: str | None) -> None:
        """Copy the offsets of a group to another, in one topic or in all that it has read."""
        for name in [topic] if topic else self._offsets.topics_of(source):
            if self._topics.get(name) is not None:
                self._offsets.clone(source, target, name)

    def least(self, topic: str, group: str, left_out: Set[str]) -> dict[int, int]:
        """Return the lowest offset of groups, except some, in each queue; ``NOWHERE`` if ``group`` is behind it."""
        least: dict[int, int] = {}
        for other in self._offsets.groups_of(topic):
            for queue_id, offset in self._offsets.of(other, topic).items() if other not in left_out else ():
                if offset >= ends_of(self._store, topic, queue_id)[0]:
                    least[queue_id] = min(offset, least.get(queue_id, offset))
        for queue_id, offset in self._offsets.of(group, topic).items():
            if least.get(queue_id, offset) > offset:
                least[queue_id] = NOWHERE
        return least

    # Of queues

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first queue offset."""
        return ends_of(self._store, topic, queue_id)[0]

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that the next message gets."""
        return next_offset_of(self._store, topic, queue_id)

    def offset_at(self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = Boundary.LOWER) -> int:
        """Return the queue offset of the first or last message stored at a time (ms)."""
        queue = self._store.queue(topic, queue_id)
        return self._store.offset_at(queue, timestamp, boundary) if queue else 0

    def earliest_timestamp(self, topic: str, queue_id: int) -> int:
        """Return when the first message was stored (ms), -1 if there is none."""
        return store_timestamp(self._store, topic, queue_id, self.min_offset(topic, queue_id))

    # Resets

    def reset(self, reset: Reset) -> Steps[dict[int, int]]:
        """Set the next offset of a group in one queue or all queues of a topic, and return it by queue id.

        The next pull of each queue gets it, a waiting one at once; if ``useServerSideResetOffset`` is false, the
        consumers are told to reset their offsets themselves, as with brokers before 5.0.

        Raises:
            OperationRefusedError: there is no such topic, group, queue or offset, or no consumer to notify.
            LimitError: there are too many offsets.
        """
        topic = self._checked(reset)
        if not self._state.settings.server_side_reset:
            return (yield from self._reset_by_consumers(reset, topic))
        targets = yield from self._targets(reset, topic)
        self._checked(reset)
        self._offsets.check_room(reset.group, reset.topic, targets)
        for queue_id, offset in targets.items():
            self._offsets.reset(reset.group, reset.topic, queue_id, offset)
            self._room.wake((reset.topic, queue_id))
        return targets

    def _checked(self, reset: Reset) -> TopicConfig:
        """Return the topic; raises ``OperationRefusedError`` if there is no such topic or group."""
        topic = self._topics.get(reset.topic)
        if topic is None:
            raise OperationRefusedError(Reason.NO_TOPIC, f"Topic {reset.topic} does not exist")
        if self._groups.get(reset.group) is None:
            raise OperationRefusedError(Reason.NO_GROUP, f"Group {reset.group} does not exist")
        return topic

    def _targets(self, reset: Reset, topic: TopicConfig) -> Steps[dict[int, int]]:
        """Return the new offset of each queue."""
        ids = range(topic.read_queue_count) if reset.queue_id < 0 else [reset.queue_id]
        if not ids or max(ids) >= topic.read_queue_count:
            raise OperationRefusedError(Reason.NOT_POSSIBLE, f"the topic {reset.topic} has no queue to reset")
        targets: dict[int, int] = {}
        for queue_id in ids:
            if targets and len(targets) % QUEUES_AT_ONCE == 0:
                yield
            if reset.offset is None or reset.offset < 0:
                targets[queue_id] = self._target_at(reset.topic, queue_id, reset.timestamp)
                continue
            low, high = ends_of(self._store, reset.topic, queue_id)
            if not low <= reset.offset <= high + 1:
                text = f"Target offset {reset.offset} not in consume queue range [{low}-{high}]"
                raise OperationRefusedError(Reason.NOT_POSSIBLE, text)
            targets[queue_id] = reset.offset
        return targets

    def _reset_by_consumers(self, reset: Reset, topic: TopicConfig) -> Steps[dict[int, int]]:
        targets: dict[int, int] = {}
        for queue_id in range(topic.write_queue_count):
            if targets and len(targets) % QUEUES_AT_ONCE == 0:
                yield
            committed = self._offsets.get(reset.group, reset.topic, queue_id)
            if committed < 0:
                raise OperationRefusedError(Reason.NOT_POSSIBLE, f"THe consumer group <{reset.group}> not exist")
            target = self._target_at(reset.topic, queue_id, reset.timestamp)
            targets[queue_id] = target if reset.is_forced else min(target, committed)
        online = self._clients.group(reset.group)
        if online is None:
            text = f"Consumer not online, so can not reset offset, Group: {reset.group} Topic: {reset.topic}"
            raise OperationRefusedError(Reason.NOT_ONLINE, text)
        notice = OffsetsReset(reset.group, reset.topic, reset.timestamp, reset.is_forced, targets)
        for client in online.members.values():
            client.session.notify(notice)
        return targets

    def _target_at(self, topic: str, queue_id: int, timestamp: int) -> int:
        if timestamp < 0:
            return next_offset_of(self._store, topic, queue_id)
        return self.offset_at(topic, queue_id, timestamp)
