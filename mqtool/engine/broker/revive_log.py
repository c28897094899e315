"""The revive log: popped messages, until they are acknowledged or stored in the retry topic of their group.

Check points and acknowledgements are messages of ``rmq_sys_REVIVE_LOG_<cluster>``, which arrive there from the timer
topic when their time is over: a check point a second before the acknowledgements can be complete. The first check
point of each revive queue is handled once its own time is over and all timer messages up to then have arrived; that
progress is in the offsets of ``CID_RMQ_SYS_REVIVE_GROUP``. A RocketMQ broker keeps it in the same way, so that each
of the two revives what the other delivered.
(Rules: remoting.md 3.4; store.md 11.5. RocketMQ: ``PopReviveService``.)
"""

import dataclasses
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mqtool.engine.broker.consumer_offsets import ConsumerOffsets
from mqtool.engine.broker.copies import deliver_copy
from mqtool.engine.broker.intake import Intake
from mqtool.engine.broker.state import BrokerState
from mqtool.engine.broker.subscription_groups import SubscriptionGroups
from mqtool.engine.broker.timers import Timers
from mqtool.engine.broker.topics import Topics, revive_topic
from mqtool.engine.intervals import is_time
from mqtool.engine.store.append_result import AppendResult
from mqtool.errors import FormatError, NotFoundError, WriteError
from mqtool.formats.new_message import NewMessage
from mqtool.formats.pop import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CHECK_POINT_TAG,
    Acknowledgement,
    CheckPoint,
    build_ack,
    build_check_point,
    normal_topic,
    parse_ack,
    parse_check_point,
    retry_topic,
)
from mqtool.formats.properties import add_property, as_value, build_properties, find_property, probe_of
from mqtool.formats.property_names import FIRST_POP_TIME, REAL_TOPIC, TAGS, TIMER_DELIVER_MS, UNIQ_KEY
from mqtool.formats.stored_message import StoredMessage, parse_stored
from mqtool.formats.topics import RETRY_PREFIX, REVIVE_GROUP, TIMER_TOPIC

if TYPE_CHECKING:
    from mqtool.engine.store.live_queue import LiveQueue

log = logging.getLogger(__name__)

_TAGS, _REAL_TOPIC, _FIRST_POP_TIME = probe_of(TAGS), probe_of(REAL_TOPIC), probe_of(FIRST_POP_TIME)
_EARLIER_MS = 1000
"""How long before its end a check point reaches the log."""
_AGAIN_MS = 1000
"""How long to wait if the store refuses messages."""
_READ_AT_ONCE = 256
_AT_ONCE = 8
"""Most check points and messages that one tick handles, so that others get their turn; the last may exceed it."""


class _Pending(NamedTuple):
    revive_offset: int
    point: CheckPoint


class ReviveLog:
    """A ticker that returns messages whose invisible time is over to their groups."""

    def __init__(
        self,
        intake: Intake,
        state: BrokerState,
        topics: Topics,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        timers: Timers,
        now: int,
    ) -> None:
        """Load the log of an earlier run."""
        self._intake = intake
        self._store = intake.store
        self._state = state
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._timers = timers
        self._not_before = now
        self.topic = revive_topic(state.settings.cluster_name)
        self._points: dict[tuple[str, str, int, int, int, str], CheckPoint] = {}
        self._pending: dict[int, deque[_Pending]] = {}  # by revive queue, in its order
        self._read: dict[int, int] = {}  # up to and including which offset each revive queue was read
        self._take_up()

    # Writing

    def add(self, point: CheckPoint, queue_id: int, now: int) -> AppendResult:
        """Store a check point.

        Raises:
            FormatError: it has an invalid name.
        """
        deliver = point.revive_time - _EARLIER_MS
        return self._put(CHECK_POINT_TAG, point.unique_key(), build_check_point(point), queue_id, deliver, now)

    def acknowledge(self, ack: Acknowledgement, queue_id: int, revive_time: int, now: int) -> AppendResult:
        """Store an acknowledgement of messages of a check point.

        Args:
            ack: says which.
            queue_id: the revive queue of the check point.
            revive_time: when the messages become visible again, in ms; after that it is too late.
            now: the time, in ms.

        Raises:
            FormatError: it has an invalid name.
        """
        return self._put(ack.tag, ack.unique_key(), build_ack(ack), queue_id, revive_time, now)

    def _put(self, tag: str, key: str, body: bytes, queue_id: int, deliver: int, now: int) -> AppendResult:
        host = self._state.store_host
        properties = build_properties({TIMER_DELIVER_MS: str(deliver), UNIQ_KEY: as_value(key), TAGS: tag})
        message = NewMessage(
            self.topic, queue_id, body, properties, born_timestamp=now, born_host=host, store_host=host
        )
        return self._intake.put(message, now)

    # Reading

    def _take_up(self) -> None:
        store = self._store
        for topic, queue_id in store.queues_of(self.topic):
            if (queue := store.queue(topic, queue_id)) is not None:
                start = self._offsets.get(REVIVE_GROUP, topic, queue_id) + 1
                for offset in _offsets_from(queue, max(start, queue.min_offset(store.log.min_offset))):
                    self._take(queue_id, offset)

    def arrived(
        self,
        topic: str,  # noqa: ARG002
        queue_id: int,
        next_offset: int,
        tags_codes: Sequence[int],
        now: int,  # noqa: ARG002
    ) -> None:
        """Handle messages that have reached the log."""
        for offset in range(next_offset - len(tags_codes), next_offset):
            self._take(queue_id, offset)

    def _take(self, queue_id: int, offset: int) -> None:
        """Handle a message of the log by its kind."""
        self._read[queue_id] = offset
        stored = self._message(self.topic, queue_id, offset)
        if stored is None:
            return
        tag, body = find_property(stored.message.properties, _TAGS).decode(), stored.message.body
        try:
            if tag == CHECK_POINT_TAG:
                point = parse_check_point(body)
                self._points[point.key] = point
                self._pending.setdefault(queue_id, deque()).append(_Pending(offset, point))
            elif tag in (ACK_TAG, BATCH_ACK_TAG):
                ack = parse_ack(body)
                if known := self._points.get(ack.key):
                    known.done.update(ack.offsets)
        except FormatError as error:
            log.warning("skipped a damaged message of the revive log, queue %d, offset %d: %s", queue_id, offset, error)

    def _message(self, topic: str, queue_id: int, offset: int) -> StoredMessage | None:
        store = self._store
        queue = store.queue(topic, queue_id)
        units = queue.units(offset, 1) if queue else []
        try:
            return parse_stored(store.log.record(units[0].physical_offset)) if units else None
        except (NotFoundError, FormatError):  # deleted since
            return None

    def given_out_since(self, timestamp: int) -> list[CheckPoint]:
        """Return the check points of pops since a time (ms), in this log or on their way to it."""
        points = []
        for topic, queue_id in (*self._store.queues_of(TIMER_TOPIC), *self._store.queues_of(self.topic)):
            queue = self._store.queue(topic, queue_id)
            for offset in range(queue.next_offset - 1 if queue else -1, -1, -1):
                stored = self._message(topic, queue_id, offset)
                if stored is None or stored.store_timestamp < timestamp:
                    break
                properties = stored.message.properties
                is_ours = topic == self.topic or find_property(properties, _REAL_TOPIC).decode() == self.topic
                if is_ours and find_property(properties, _TAGS).decode() == CHECK_POINT_TAG:
                    point = parse_check_point(stored.message.body)
                    if point.pop_time >= timestamp:
                        points.append(point)
        return points

    # Reviving

    def tick(self, now: int) -> None:
        """Handle the check points whose time is over."""
        if not is_time(self._not_before, _AGAIN_MS, now):
            return
        has_revived, left = False, _AT_ONCE
        for queue_id, pending in self._pending.items():
            while left > 0 and pending and self._is_over(pending[0].point, now):
                offset, point = pending[0]
                revived = self._revive(point, now)
                if revived is None:
                    self._not_before = now + _AGAIN_MS
                    return
                has_revived |= revived > 0
                left -= 1 + revived
                pending.popleft()
                if self._points.get(point.key) is point:
                    del self._points[point.key]
                self._commit(queue_id, offset if pending else self._read[queue_id])
        if has_revived:  # so that it is not repeated if the process is killed now
            try:
                self._offsets.keep(now)
            except WriteError as error:
                log.warning("cannot save consumer offsets: %s", error)

    def next_tick(self, now: int) -> int | None:  # noqa: ARG002
        """Return when the next check point may be over."""
        if not self._pending:
            return None
        firsts = [pending[0].point.revive_time for pending in self._pending.values() if pending]
        return max(_to_second(min(firsts)), self._not_before) if firsts else None

    def _is_over(self, point: CheckPoint, now: int) -> bool:
        end = _to_second(point.revive_time)
        first_timer = self._timers.first_due
        return now >= end and (first_timer is None or first_timer > end)

    def _commit(self, queue_id: int, offset: int) -> None:
        self._offsets.commit(REVIVE_GROUP, self.topic, queue_id, offset)

    def _revive(self, point: CheckPoint, now: int) -> int | None:
        """Return unacknowledged messages to their group; returns their number, None if the store refuses some."""
        count = 0
        if self._topics.get(normal_topic(point.topic, point.group)) is None or not self._groups.get(point.group):
            return count
        for offset in point.offsets:
            stored = None if offset in point.done else self._message(point.topic, point.queue_id, offset)
            if stored is None:
                continue
            message = self._again(point, stored.message, now)
            if deliver_copy(self._store, message, now, stored.physical_offset, stored.message.properties):
                return None
            point.done.add(offset)
            count += 1
        return count

    def _again(self, point: CheckPoint, message: NewMessage, now: int) -> NewMessage:
        """Return a message in the form in which its group gets it again."""
        topic, host = point.topic, self._state.store_host
        if not topic.startswith(RETRY_PREFIX):
            topic = retry_topic(topic, point.group, is_v2=self._state.settings.retry_topic_v2_enabled)
        if self._topics.get(topic) is None:
            self._topics.of_group(topic, 1, False, now)
            if self._offsets.get(point.group, topic, 0) < 0:
                self._offsets.commit(point.group, topic, 0, 0)
        properties = message.properties
        if not find_property(properties, _FIRST_POP_TIME):
            properties = add_property(properties, FIRST_POP_TIME, str(point.pop_time))
        return dataclasses.replace(
            message,
            topic=topic,
            queue_id=0,
            properties=properties,
            born_host=host,
            store_host=host,
            reconsume_times=message.reconsume_times + (not point.is_suspended),
            prepared_transaction_offset=0,
        )


def _offsets_from(queue: "LiveQueue", start: int) -> Iterable[int]:
    while units := queue.units(start, _READ_AT_ONCE):
        yield from (unit.queue_offset for unit in units)
        start += len(units)


def _to_second(time: int) -> int:
    """Return when the timer messages of a time (ms) have arrived: at the end of its second."""
    return -(-time // 1000) * 1000
