"""Sends: messages of producers, and messages that consumers send back because they could not consume them.

(Rules: remoting.md 3.2, 4. RocketMQ: ``SendMessageProcessor``, ``AbstractSendMessageProcessor``.)
"""

import itertools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from mqtool.engine.broker.broker_stats import BrokerStatsManager
from mqtool.engine.broker.intake import Intake
from mqtool.engine.broker.limits import MAX_QUEUES_IN_ALL, MAX_TOPICS, check_room
from mqtool.engine.broker.operations.refusal import OperationRefusedError, Reason
from mqtool.engine.broker.queue_locks import LockTable
from mqtool.engine.broker.state import BrokerState
from mqtool.engine.broker.subscription_groups import SubscriptionGroups
from mqtool.engine.broker.topics import Topics, fault_of_name, may_be_sent_to
from mqtool.engine.store.append_result import AppendResult, PutStatus
from mqtool.errors import FormatError, NotFoundError
from mqtool.formats.codes import Perm, SysFlag
from mqtool.formats.config_tables import SubscriptionGroup, TopicConfig
from mqtool.formats.hosts import host_text, offset_message_id
from mqtool.formats.new_message import BatchElement, NewMessage, one_of, split_batch
from mqtool.formats.properties import add_property, build_properties, pairs_of, parse_properties
from mqtool.formats.property_names import (
    CLUSTER,
    DELAY,
    INNER_NUM,
    MSG_REGION,
    ORIGIN_MESSAGE_ID,
    POP_CK,
    RETRY_TOPIC,
    TIMER_OUT_MS,
    TRACE_ON,
    TRAN_MSG,
    UNIQ_KEY,
    WAIT,
)
from mqtool.formats.recall import RecallHandle
from mqtool.formats.stored_message import parse_stored
from mqtool.formats.topics import DEAD_LETTER_PREFIX, RETRY_PREFIX, TIMER_TOPIC
from mqtool.formats.unique_key import build_unique_key, key_start

if TYPE_CHECKING:
    from mqtool.engine.store.message_store import MessageStore

_UNIQ_KEY, _TRANSACTION = UNIQ_KEY.encode(), TRAN_MSG.encode()
_RETRY_TOPIC, _TIMER_OUT = RETRY_TOPIC.encode(), TIMER_OUT_MS.encode()
_ADDED = (MSG_REGION, TRACE_ON, CLUSTER)
_TO_BE_REPLACED = frozenset((*_ADDED, POP_CK))
_OF_ONE_SENT_AGAIN = frozenset(name.encode() for name in _TO_BE_REPLACED)
_WELL_FORMED = re.compile(rb"(?:[^\x00\x01\x02]+\x01[^\x00\x02]*(?:\x02|\Z))*")
_TAIL_SEPARATOR = b"\x02"
_MULTI_TAG = "MULTI_TAG"
_MAX_OF_BATCH_TOPIC = 127
_FIRST_RETRY_LEVEL = 3
_WRITE = int(Perm.WRITE)  # an operator of an enum takes a microsecond
_new_tuple = tuple.__new__  # creates a named tuple in a third of the time


class NewTopic(NamedTuple):
    """The settings of a topic that is created because a message is sent to it."""

    default_topic: str
    queue_count: int
    is_of_unit: bool


class SendOutcome(NamedTuple):
    """The result of sending a message or a batch."""

    result: AppendResult
    queue_id: int  # of its topic, even if it waits elsewhere first
    key: bytes  # the unique key, its own or one generated here
    recall_handle: RecallHandle | None
    is_inner_batch: bool  # all messages of the batch have one id


class Sends:
    """Sends, with the parts of a broker that they need."""

    def __init__(
        self,
        intake: Intake,
        state: BrokerState,
        topics: Topics,
        groups: SubscriptionGroups,
        locks: LockTable,
        broker_stats: BrokerStatsManager,
        now: int,
    ) -> None:
        self._intake = intake
        self._store: MessageStore = intake.store
        self._state = state
        self._topics = topics
        self._groups = groups
        self._locks = locks
        self._broker_stats = broker_stats
        self._settings = settings = state.settings
        self._marks = _marks(settings.region, settings.trace_on, settings.cluster_name)
        self._started = now
        self._key_count = itertools.count()
        self._rotation = itertools.count()  # chooses a queue if nothing else does

    def send(
        self, message: NewMessage, like: NewTopic, now: int, *, is_batch: bool = False, most_times: int | None = None
    ) -> SendOutcome:
        """Store a message.

        Args:
            message: as its producer sent it: a queue id of -1 is any queue; it is changed to the stored form.
            like: settings for a new topic.
            now: the time, in ms.
            is_batch: the body contains several messages.
            most_times: how often a message of a retry topic may be consumed, None for the setting of its group.

        Raises:
            OperationRefusedError: it is not stored.
            LimitError: there are too many topics or queues.
        """
        config = self.prepare(message, like, now)
        topic, queue_id, store = message.topic, message.queue_id, self._store
        if store.queue(topic, queue_id) is None:
            check_room(store.queue_count, 1, MAX_QUEUES_IN_ALL, "queues")
        key = message.pairs.get(_UNIQ_KEY, b"")
        if is_batch:
            if config.is_batch and key:
                return SendOutcome(self._append_inner_batch(message, now), queue_id, key, None, True)
            return SendOutcome(self._append_batch(message, now), queue_id, key, None, False)
        key = key or self._add_unique_key(message, now)
        if topic.startswith(RETRY_PREFIX):
            self._retry_or_send_to_dlq(message, most_times, like.is_of_unit, now)
        result = self._intake.put(message, now)
        if message.topic == TIMER_TOPIC and result.status is PutStatus.PUT_OK:
            return SendOutcome(result, queue_id, key, self._recall_handle(topic, message, key), False)
        return _new_tuple(SendOutcome, (result, queue_id, key, None, False))

    def send_each(
        self,
        run: NewMessage,
        elements: Sequence[BatchElement],
        are_plain: Sequence[bool],
        like: NewTopic,
        now: int,
    ) -> list[AppendResult]:
        """Store messages of one queue as ``send`` does, if possible in one write.

        Raises the same, and then none is stored.

        Args:
            run: what they have in common; it is changed to the stored form.
            elements: what each has of its own.
            are_plain: whether the properties of each are well-formed, end in a separator, and have no name that a
                broker acts on: they are not parsed then.
            like: settings for a new topic.
            now: the time, in ms.
        """
        topic, queue_id = run.topic, run.queue_id
        if len(elements) == 1 or self._store.queue(topic, queue_id) is None or topic.startswith(RETRY_PREFIX):
            return [self.send(one_of(run, element), like, now).result for element in elements]
        config = self._usable_topic(topic, queue_id, like, now)
        self._to_stored_form(run, config)
        marks, start, count = run.properties, key_start(*run.store_host, self._started, now), self._key_count
        ready, pairs_of_each = [], []
        for element, is_plain in zip(elements, are_plain, strict=True):
            if is_plain:
                flag, body, properties, born_timestamp = element
                key = b"%b%04X" % (start, next(count) & 0xFFFF)
                properties = b"%b%b%b\1%b\2" % (properties, marks, _UNIQ_KEY, key)
                ready.append(_new_tuple(BatchElement, (flag, body, properties, born_timestamp)))
                pairs_of_each.append({_UNIQ_KEY: key})
                continue
            message = one_of(run, element)
            self._to_stored_form(message, config)
            if not message.pairs.get(_UNIQ_KEY):
                self._add_unique_key(message, now)
            ready.append(element._replace(properties=message.properties))
            pairs_of_each.append(message.pairs)
        return self._intake.put_each(run, ready, pairs_of_each, now)

    def prepare(self, message: NewMessage, like: NewTopic, now: int) -> TopicConfig:
        """Convert a message to the stored form, and return its topic, which is created if necessary.

        Raises:
            OperationRefusedError: it cannot be stored.
            LimitError: there are too many topics.
        """
        config = self._usable_topic(message.topic, message.queue_id, like, now)
        if message.queue_id < 0:
            message.queue_id = next(self._rotation) % max(1, config.write_queue_count)
        self._to_stored_form(message, config)
        return config

    def send_back(
        self,
        group_name: str,
        physical_offset: int,
        delay_level: int,
        now: int,
        *,
        is_of_unit: bool = False,
        most_times: int | None = None,
    ) -> AppendResult | None:
        """Let a group consume a message again later.

        Args:
            group_name: the group that could not consume it.
            physical_offset: of the message.
            delay_level: how much later; 0 for longer each time, negative for never.
            now: the time, in ms.
            is_of_unit: whether a new retry topic is one of a unit.
            most_times: how often it may be consumed before it becomes a dead letter, None for the group's setting.

        Returns:
            The result of storing it, None if the group does not retry messages.

        Raises:
            OperationRefusedError: it is not possible.
        """
        group = self._group(group_name, now)
        if not self._state.settings.perm & _WRITE:
            raise OperationRefusedError(
                Reason.NOT_ALLOWED, f"the broker[{self._state.address}] sending message is forbidden"
            )
        if group.retry_queue_count <= 0:
            return None
        retry_topic = RETRY_PREFIX + group_name
        config = self._topics.of_group(retry_topic, group.retry_queue_count, is_of_unit, now)
        if not config.perm & _WRITE:
            raise OperationRefusedError(Reason.NOT_ALLOWED, f"the topic[{retry_topic}] sending message is forbidden")
        try:
            message = parse_stored(self._store.log.record(physical_offset)).message
        except (NotFoundError, FormatError):
            raise OperationRefusedError(
                Reason.NOT_POSSIBLE, f"look message by offset failed, {physical_offset}"
            ) from None
        pairs = parse_properties(message.properties)
        pairs.setdefault(RETRY_TOPIC, message.topic)
        pairs.setdefault(ORIGIN_MESSAGE_ID, offset_message_id(host_text(*message.store_host), physical_offset))
        pairs[WAIT] = "false"
        times = message.reconsume_times
        # The topic may have fewer queues than the setting, which was changed later: nobody reads the others.
        count = max(1, min(group.retry_queue_count, config.read_queue_count))
        message.topic, message.queue_id = retry_topic, next(self._rotation) % count
        if times >= (group.retry_max_times if most_times is None else most_times) or delay_level < 0:
            self._send_to_dlq(message, group_name, is_of_unit, now)
            pairs[DELAY] = "0"
        else:
            pairs[DELAY] = str(delay_level or _FIRST_RETRY_LEVEL + times)
        message.properties = build_properties(pairs)
        message.reconsume_times = times + 1
        message.store_host = self._state.store_host
        result = self._intake.put_again(message, now)
        if result.status is PutStatus.PUT_OK:
            retried = message.pairs.get(_RETRY_TOPIC, b"").decode("utf-8", "replace")
            self._broker_stats.sent_back(retried, group_name)
        return result

    # Topics and groups

    def _topic_of(self, topic: str, like: NewTopic, now: int) -> TopicConfig:
        """Return the topic of a send, created if necessary; raises ``OperationRefusedError``."""
        config = self._topics.get(topic)
        if not self._state.settings.perm & _WRITE and config is not None and config.order:
            raise OperationRefusedError(
                Reason.NOT_ALLOWED, f"the broker[{self._state.address}] sending message is forbidden"
            )
        if not may_be_sent_to(topic):
            raise OperationRefusedError(Reason.NOT_ALLOWED, f"Sending message to topic[{topic}] is forbidden.")
        if config is None:
            if fault := fault_of_name(topic):
                raise OperationRefusedError(Reason.BAD_ARGUMENT, fault)
            config = self._topics.create_by_sending(topic, like.default_topic, like.queue_count, like.is_of_unit, now)
            if config is None and topic.startswith(RETRY_PREFIX):
                check_room(len(self._topics.configs), 1, MAX_TOPICS, "topics")
                config = self._topics.of_group(topic, 1, like.is_of_unit, now)
            if config is None:
                raise OperationRefusedError(Reason.NO_TOPIC, f"topic[{topic}] not exist, apply first please!")
        elif self._topics.terminated and self._topics.is_terminated(topic):
            raise OperationRefusedError(Reason.NOT_ALLOWED, f"the topic[{topic}] is terminated")
        return config

    def _usable_topic(self, topic: str, queue_id: int, like: NewTopic, now: int) -> TopicConfig:
        """Return the topic of a send to a queue, created if necessary; raises ``OperationRefusedError``."""
        config = self._topic_of(topic, like, now)
        if queue_id >= max(config.write_queue_count, config.read_queue_count):
            text = f"request queueId[{queue_id}] is illegal, {config.topic} has fewer queues"
            raise OperationRefusedError(Reason.BAD_ARGUMENT, text)
        return config

    def _group(self, name: str, now: int) -> SubscriptionGroup:
        group = self._groups.find(name, now)
        if group is None:
            raise OperationRefusedError(Reason.NO_GROUP, f"subscription group not exist, {name}")
        return group

    def _retry_or_send_to_dlq(self, message: NewMessage, most_times: int | None, is_of_unit: bool, now: int) -> None:
        """Redirect a message that was consumed too often, or in order, to the dead letters of its group."""
        name = message.topic.removeprefix(RETRY_PREFIX)
        group = self._group(name, now)
        most = group.retry_max_times if most_times is None else most_times
        if message.reconsume_times > most or self._locks.is_any_held(name, now):
            self._send_to_dlq(message, name, is_of_unit, now)
            pairs = parse_properties(message.properties)
            message.properties = build_properties(pairs | {DELAY: "-1"})

    def _send_to_dlq(self, message: NewMessage, group: str, is_of_unit: bool, now: int) -> None:
        topic = DEAD_LETTER_PREFIX + group
        self._topics.of_group(topic, 1, is_of_unit, now)
        message.topic, message.queue_id = topic, 0

    # Messages

    def _to_stored_form(self, message: NewMessage, config: TopicConfig) -> None:
        """Convert a message of a topic to the stored form; raises ``OperationRefusedError``."""
        state = self._state
        if state.settings.refuse_transactions and message.pairs.get(_TRANSACTION) == b"true":
            text = f"the broker[{state.address}] sending transaction message is forbidden"
            raise OperationRefusedError(Reason.NOT_ALLOWED, text)
        if config.filter_type == _MULTI_TAG:
            message.sys_flag |= SysFlag.MULTI_TAGS
        self._mark(message)
        message.store_host = state.store_host

    def _mark(self, message: NewMessage) -> None:
        """Add the properties that the broker adds to each message."""
        properties, pairs = message.properties, message.pairs
        if self._state.settings is not self._settings:
            self._settings = settings = self._state.settings
            self._marks = _marks(settings.region, settings.trace_on, settings.cluster_name)
        text, marks = self._marks
        if not _OF_ONE_SENT_AGAIN.isdisjoint(pairs):  # a message that was consumed before
            texts = parse_properties(properties.replace(b"\0", b""))
            message.properties = build_properties({k: v for k, v in texts.items() if k not in _TO_BE_REPLACED})
        elif properties:
            if not properties.endswith(_TAIL_SEPARATOR):
                properties += _TAIL_SEPARATOR
            if len(pairs) == properties.count(_TAIL_SEPARATOR) and b"\0" not in properties:  # nearly all messages
                message.add_pairs(properties + text, marks)
                return
            if not _WELL_FORMED.fullmatch(properties):
                message.properties = _well_formed(properties)
            else:
                message.properties = properties
        message.add_pairs(message.properties + text, marks)

    def _add_unique_key(self, message: NewMessage, now: int) -> bytes:
        """Give a message whose producer set none a unique key, and return it."""
        host, port = self._state.store_host
        unique_key = build_unique_key(host, port, self._started, now, next(self._key_count))
        key = unique_key.encode()
        message.add_pairs(add_property(message.properties, UNIQ_KEY, unique_key), {_UNIQ_KEY: key})
        return key

    def _recall_handle(self, topic: str, message: NewMessage, key: bytes) -> RecallHandle:
        """Return the handle with which the producer of a timer message can recall it."""
        by = int(message.pairs[_TIMER_OUT]) + 1  # so that it falls into the same second
        return RecallHandle(topic, self._state.settings.broker_name, by, key.decode("utf-8", "replace"))

    def _append_batch(self, message: NewMessage, now: int) -> AppendResult:
        if message.topic.startswith(RETRY_PREFIX) or len(message.topic) > _MAX_OF_BATCH_TOPIC:
            return AppendResult(PutStatus.MESSAGE_ILLEGAL)
        return self._store.append_batch(message, now)

    def _append_inner_batch(self, message: NewMessage, now: int) -> AppendResult:
        """Store a batch as one record, as batch topics get them from 5.x clients."""
        try:
            count = len(split_batch(message, self._store.most_of_batch))
        except FormatError:
            return AppendResult(PutStatus.MESSAGE_ILLEGAL)
        message.properties = add_property(message.properties, INNER_NUM, str(count))
        message.sys_flag |= SysFlag.INNER_BATCH
        return self._store.append(message, now)


def _well_formed(properties: bytes) -> bytes:
    """Return the pairs that a reader finds in properties, in RocketMQ's stored form, without zero bytes.

    ``verify`` recognizes properties that the disk has lost by zeros.
    """
    pairs = parse_properties(properties.replace(b"\0", b""))
    return build_properties(pairs)


def _marks(region: str, trace_on: bool, cluster: str) -> tuple[bytes, dict[bytes, bytes]]:
    text = build_properties(dict(zip(_ADDED, (region, str(trace_on).lower(), cluster), strict=True)))
    return text, pairs_of(text)
