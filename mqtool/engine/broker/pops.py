"""Delivers messages by pops: from which queues and offsets, and what is recorded about it.

A pop takes messages from any queue of a topic and hides them for a while: its cursor, the consumer offset, advances at
once. An orderly pop leaves the cursor at the first message that its group has not acknowledged.
(Rules: remoting.md 3.4. RocketMQ: ``PopMessageProcessor``, ``AckMessageProcessor``, ``ChangeInvisibleTimeProcessor``.)
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mqtool.engine.broker.broker_stats import BrokerStatsManager
from mqtool.engine.broker.consumer_offsets import UNKNOWN, ConsumerOffsets
from mqtool.engine.broker.copies import BROKER_MARKS
from mqtool.engine.broker.pop_orders import OrderInfo, PopOrders
from mqtool.engine.broker.revive_log import ReviveLog
from mqtool.engine.broker.saves import Saves
from mqtool.engine.broker.state import BrokerState
from mqtool.engine.broker.subscription_groups import SubscriptionGroups
from mqtool.engine.broker.topics import Topics
from mqtool.engine.broker.waiting_room import NOTIFICATIONS, POPS, WaitingRoom
from mqtool.engine.store.append_result import AppendResult, PutStatus
from mqtool.engine.store.live_pull import GetMessageResult, PullFilter, fetch, is_in_memory
from mqtool.engine.store.pull import StoreStatus
from mqtool.formats.new_message import MAX_PROPERTIES, build_record, record_size, topic_field
from mqtool.formats.pop import (
    ORDER_QUEUE_ID,
    Acknowledgement,
    CheckPoint,
    Receipt,
    build_receipt,
    retry_topic,
    topic_flag,
)
from mqtool.formats.properties import add_property, build_properties, parse_properties
from mqtool.formats.property_names import FIRST_POP_TIME, POP_CK
from mqtool.formats.record_head import queue_offset
from mqtool.formats.stored_message import parse_stored, record_ends
from mqtool.formats.topics import RETRY_PREFIX

if TYPE_CHECKING:
    from mqtool.engine.store.live_queue import LiveQueue
    from mqtool.engine.store.message_store import MessageStore

INIT_AT_END = 1
"""``initMode`` of a group that starts with messages from now on; 0 starts at the first message in the queue."""
_AGAIN_MS = 1000
"""How long to wait if deliveries cannot be recorded."""
_RETRY_FIRST = 5
"""Every fifth pop reads the retry topic before the queues, all others after them."""
_MARKS = {*BROKER_MARKS, FIRST_POP_TIME}
"""Properties that a broker adds for information; they make room for a receipt."""
_ASTRAY = (StoreStatus.OFFSET_TOO_SMALL, StoreStatus.OFFSET_OVERFLOW_BADLY, StoreStatus.OFFSET_FOUND_NULL)


class PopRequest(NamedTuple):
    """What a consumer requests."""

    group: str
    topic: str
    queue_id: int  # -1: any queue
    max_count: int  # messages
    invisible_ms: int
    init_mode: int = 0
    is_in_order: bool = False
    attempt_id: str | None = None  # the same for a pop that is repeated because it got no answer


class PoppedMessage(NamedTuple):
    """A message that was delivered to a group."""

    group: str
    topic: str  # its own, or a retry topic
    queue_id: int
    offset: int  # in its queue


class GivenOut(NamedTuple):
    """The messages of one queue that a pop delivered."""

    topic: str  # their own, or a retry topic
    queue_id: int
    start_offset: int
    offsets: list[int]
    counts: Mapping[int, int]  # by offset, for orderly pops: how often it was delivered before


@dataclass(slots=True)
class Taken:
    """The result of one pop."""

    pop_time: int  # ms
    revive_queue_id: int
    parts: list[memoryview | bytes] = field(default_factory=list)
    count: int = 0
    queues: list[GivenOut] = field(default_factory=list)
    rest: int = 0  # how many messages are left in the queues that were examined
    flush_offset: int = 0  # up to which the log must be flushed before the messages may be delivered
    free_at: int | None = None  # when a queue that other consumers block is free (ms)
    is_full: bool = False  # it would have to wait for messages, but too many pops wait
    is_held_up: bool = False  # there are messages, but their delivery cannot be recorded


class Pops:
    """The rules of pops."""

    def __init__(
        self,
        store: "MessageStore",
        state: BrokerState,
        topics: Topics,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        log: ReviveLog,
        room: WaitingRoom,
        broker_stats: BrokerStatsManager,
        saves: Saves,
        delete_queues: Callable[[Collection[str]], None],
        folder: Path,
        now: int,
    ) -> None:
        """Load the deliveries of an earlier run; ``folder`` is the folder ``config``.

        Raises:
            FormatError: the state of orderly pops cannot be read.
        """
        self._store = store
        self._state = state
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._broker_stats = broker_stats
        self._turns = itertools.count()
        self.log = log
        self.orders = PopOrders(folder, now, saves)
        self._room = room
        self._delete_queues = delete_queues
        self._catch_up()

    def _catch_up(self) -> None:
        """Move cursors past messages that were delivered after the offsets were last written."""
        offsets = self._offsets
        if offsets.kept_at is None:
            return
        for point in self.log.given_out_since(offsets.kept_at):
            group, topic, queue_id = point.group, point.topic, point.queue_id
            # A message whose invisible time was changed has its own check point, before or at the cursor.
            if offsets.get(group, topic, queue_id) <= point.offsets[-1]:
                offsets.commit(group, topic, queue_id, point.offsets[-1] + 1)

    def retry_topics(self, topic: str, group: str) -> tuple[str, ...]:
        """Return the topics with messages of a topic that a group did not acknowledge."""
        if self._state.settings.retry_topic_v2_enabled:
            return retry_topic(topic, group, is_v2=True), retry_topic(topic, group)
        return (retry_topic(topic, group),)

    # Taking

    def take(self, request: PopRequest, wanted: PullFilter, now: int) -> Taken:
        """Deliver messages and hide them."""
        turn = next(self._turns)
        popped = Taken(now, ORDER_QUEUE_ID if request.is_in_order else turn % self._state.settings.revive_queue_count)
        for topic, queue_id in self._places(request, turn):
            self._take_from(topic, queue_id, request, wanted, popped)
        return popped

    def _places(self, request: PopRequest, turn: int) -> Iterator[tuple[str, int]]:
        retries = () if request.is_in_order else self.retry_topics(request.topic, request.group)
        places = [(topic, 0) for topic in retries if self._topics.get(topic) is not None]
        own: Iterator[tuple[str, int]] = ((request.topic, queue_id) for queue_id in self._queue_ids(request, turn))
        first, last = (places, own) if turn % _RETRY_FIRST == _RETRY_FIRST - 1 else (own, places)
        yield from first
        yield from last

    def _queue_ids(self, request: PopRequest, turn: int) -> Sequence[int]:
        if request.queue_id >= 0:
            return (request.queue_id,)
        config = self._topics.get(request.topic)
        count = config.read_queue_count if config else 0
        return [(turn + at) % count for at in range(count)]

    def _take_from(self, topic: str, queue_id: int, request: PopRequest, wanted: PullFilter, popped: Taken) -> None:
        store, offsets = self._store, self._offsets
        group, now = request.group, popped.pop_time
        queue = store.queue(topic, queue_id)
        key = topic, group, queue_id
        if offsets.take_reset(group, topic, queue_id) is not None:
            self.orders.forget(key)
        if request.is_in_order and (free_at := self.orders.blocked_until(key, request.attempt_id, now)):
            popped.free_at = min(free_at, popped.free_at or free_at)
            return
        offset = offsets.get(group, topic, queue_id)
        if queue is None or offset == queue.next_offset:  # so it is with most of the thousands that a topic may have
            return
        if offset == UNKNOWN:
            offset = self._first(queue, request.init_mode)
        room = request.max_count - popped.count
        if room <= 0:
            popped.rest += max(0, queue.next_offset - offset)
            return
        if not offsets.has_room(group, topic, queue_id):
            return
        fetched = fetch(store, queue, offset, room, wanted)
        if fetched.status in _ASTRAY:
            offset = fetched.next_offset
            fetched = fetch(store, queue, offset, room, wanted)
        popped.rest += fetched.max_offset - fetched.next_offset
        if not fetched.parts:
            offsets.commit(group, topic, queue_id, max(offset, fetched.next_offset))
        elif not self._keep(key, offset, fetched, request, popped):
            popped.rest += fetched.message_count
            popped.is_held_up = True
            popped.free_at = min(now + _AGAIN_MS, popped.free_at or now + _AGAIN_MS)

    def _keep(
        self, key: tuple[str, str, int], start: int, fetched: GetMessageResult, request: PopRequest, popped: Taken
    ) -> bool:
        """Record the delivery of messages and put them into the answer; return whether that succeeded."""
        topic, group, queue_id = key
        now, broker_name = popped.pop_time, self._state.settings.broker_name
        offsets = _queue_offsets(fetched.parts)
        receipt = Receipt(start, now, request.invisible_ms, popped.revive_queue_id, broker_name)
        counts: Mapping[int, int] = {}
        if request.is_in_order:
            held = self.orders.hold(key, OrderInfo(offsets, now, request.invisible_ms, request.attempt_id, now))
            counts = held.counts
            self._offsets.commit(group, topic, queue_id, start)
        else:
            distances = tuple(offset - start for offset in offsets)
            point = CheckPoint(group, topic, queue_id, start, distances, now, request.invisible_ms, receipt.broker_name)
            result = self.log.add(point, popped.revive_queue_id, now)
            if result.status is not PutStatus.PUT_OK:
                return False
            popped.flush_offset = max(popped.flush_offset, result.flush_offset)
            self._offsets.commit(group, topic, queue_id, fetched.next_offset)
        popped.queues.append(GivenOut(topic, queue_id, start, offsets, counts))
        popped.count += len(offsets)
        if topic.startswith(RETRY_PREFIX) and topic != request.topic:
            flag = topic_flag(topic)
            popped.parts += [_as_of(record, request.topic, receipt, flag) for record in _records(fetched.parts)]
        else:
            popped.parts += fetched.parts
        self._broker_stats.delivered += fetched.message_count
        return True

    def cursor(self, topic: str, group: str, queue_id: int, init_mode: int = 0) -> int:
        """Return the offset at which a pop of a queue starts; a new group starts as it requests."""
        offset = self._offsets.get(group, topic, queue_id)
        if offset != UNKNOWN:
            return offset
        store = self._store
        queue = store.queue(topic, queue_id)
        return 0 if queue is None else self._first(queue, init_mode)

    def _first(self, queue: "LiveQueue", init_mode: int) -> int:
        store = self._store
        low = queue.min_offset(store.log.min_offset)
        if init_mode != INIT_AT_END or queue.key[0].startswith(RETRY_PREFIX):
            return low
        units = queue.units(0, 1) if low == 0 else []
        if units and is_in_memory(store, units[0].physical_offset):
            return 0
        return max(0, queue.next_offset - 1)

    def has_messages(self, topic: str, group: str, queue_id: int) -> bool:
        """Return whether a queue has something to read for a group."""
        queue = self._store.queue(topic, queue_id)
        return queue is not None and queue.next_offset > self.cursor(topic, group, queue_id)

    # Acknowledging and hiding

    def acknowledge(self, ack: Acknowledgement, revive_queue_id: int, revive_time: int, now: int) -> AppendResult:
        """Record the acknowledgement of messages that were not popped in order."""
        return self.log.acknowledge(ack, revive_queue_id, revive_time, now)

    def acknowledge_in_order(self, ack: Acknowledgement) -> None:
        """Record the acknowledgement of messages popped in order; the cursor moves to the first unacknowledged one.

        Raises:
            KeyError: a message was not delivered by the latest pop.
        """
        offsets, key = self._offsets, (ack.topic, ack.group, ack.queue_id)
        for offset in ack.offsets:
            if offset < offsets.get(ack.group, ack.topic, ack.queue_id):
                continue
            following = self.orders.acknowledge(key, offset, ack.pop_time)
            if following is None:
                continue
            if not offsets.has_reset(ack.group, ack.topic, ack.queue_id):
                offsets.commit(ack.group, ack.topic, ack.queue_id, following)
            self._wake(ack.topic, ack.group, ack.queue_id)

    def hide(
        self, popped: PoppedMessage, receipt: Receipt, invisible_ms: int, now: int, *, is_suspended: bool
    ) -> AppendResult:
        """Hide a message for a new time from now on, by its own check point."""
        group, topic, queue_id, offset = popped
        name = receipt.broker_name
        point = CheckPoint(group, topic, queue_id, offset, (0,), now, invisible_ms, name, is_suspended)
        result = self.log.add(point, receipt.revive_queue_id, now)
        if result.status is not PutStatus.PUT_OK:
            return result
        ack = receipt.acknowledgement(group, topic, queue_id, offset)
        return self.acknowledge(ack, receipt.revive_queue_id, receipt.revive_time, now)

    def hide_in_order(self, popped: PoppedMessage, receipt: Receipt, invisible_ms: int, now: int) -> int | None:
        """Hide a message that was popped in order until a new time.

        Returns:
            That time, in ms; None if the group has acknowledged the message.
        """
        group, topic, queue_id, offset = popped
        if offset < self._offsets.get(group, topic, queue_id):
            return None
        until = now + invisible_ms
        self.orders.hide((topic, group, queue_id), offset, receipt.pop_time, until)
        self._wake(topic, group, queue_id)
        return until

    def _wake(self, topic: str, group: str, queue_id: int) -> None:
        """Wake requests that wait for messages of a queue, or of all queues."""
        for kind in (POPS, NOTIFICATIONS):
            for queue_number in (-1, queue_id):
                self._room.wake((kind.name, topic, group, queue_number))

    def delete_topics(self, topics: Collection[str], now: int) -> None:
        """Delete the retry topics of deleted topics.

        Names are ambiguous: ``%RETRY%a_b_c`` may be that of a group and a topic in two ways, or of the group a_b_c.
        """
        if names := [name for name in self._topics.configs if self._is_of_retries(name, topics)]:
            self._delete_queues(names)
            self._topics.delete_all(names, now)

    def _is_of_retries(self, name: str, topics: Collection[str]) -> bool:
        """Return whether a topic is for what groups did not acknowledge of some topics, and for nothing else."""
        if not name.startswith(RETRY_PREFIX) or self._groups.get(name.removeprefix(RETRY_PREFIX)) is not None:
            return False
        owners = [*_owners(name)]
        read = {topic for group, topic in owners if self._offsets.of(group, topic)}
        possible = read or {topic for _, topic in owners if topic in topics or self._topics.get(topic) is not None}
        return bool(possible) and possible.issubset(topics)


def _owners(retry_topic: str) -> Iterator[tuple[str, str]]:
    """Yield the pairs of group and topic whose retry topic may have this name."""
    for at in range(len(RETRY_PREFIX) + 1, len(retry_topic) - 1):  # a group has a name
        if retry_topic[at] in "_+":
            yield retry_topic[len(RETRY_PREFIX) : at], retry_topic[at + 1 :]


def _records(parts: Sequence[bytes]) -> Iterator[memoryview]:
    """Yield the single records of parts in which they are concatenated."""
    for chunk in parts:
        part = memoryview(chunk)
        for at, end in record_ends(part):
            yield part[at:end]


def _queue_offsets(parts: Sequence[bytes]) -> list[int]:
    return [queue_offset(record) for record in _records(parts)]


def _as_of(record: memoryview, topic: str, receipt: Receipt, flag: str) -> bytes:
    """Return the record of a retry message as a record of the topic itself, with its receipt in it."""
    message, _, queue_offset, physical_offset, store_timestamp = parse_stored(record)
    text = build_receipt(receipt, flag, message.queue_id, queue_offset)
    properties = add_property(message.properties, POP_CK, text)
    if len(properties) > MAX_PROPERTIES:
        pairs = {name: value for name, value in parse_properties(message.properties).items() if name not in _MARKS}
        properties = add_property(build_properties(pairs), POP_CK, text)
    named = topic_field(topic)
    size = record_size(message, named, len(properties))
    return build_record(message, named, properties, size, queue_offset, physical_offset, store_timestamp)
