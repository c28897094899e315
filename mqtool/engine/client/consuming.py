"""How a consumer consumes: its subscriptions, its start offsets, how much it pulls ahead, and what a result means.

(Rules: remoting.md 5.7, 6. RocketMQ: ``DefaultMQPushConsumer`` and its ``...Impl``, ``FilterAPI``, ``ConsumeMessage-
ConcurrentlyService``, ``ConsumeMessageOrderlyService``, ``RebalancePushImpl``.)
"""

import dataclasses
import enum
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mqtool.engine.client.incoming import ConsumerMessage, parse_messages
from mqtool.engine.client.names import without_namespace
from mqtool.engine.client.process_queue import ProcessQueue
from mqtool.errors import UsageError
from mqtool.formats.bodies import MessageQueue, Subscription
from mqtool.formats.filters import parse_tags
from mqtool.formats.property_names import RETRY_TOPIC
from mqtool.formats.topics import RETRY_PREFIX

UNLIMITED = 0x7FFFFFFF
"""Default number of attempts of an orderly consumer."""
_MAX_ATTEMPTS = 16


class MessageModel(enum.Enum):
    """Who gets a message: one member of a group, or each of them."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class ConsumeFrom(enum.Enum):
    """Where a group starts in a queue from which it has consumed nothing yet (RocketMQ: ``ConsumeFromWhere``)."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class ConsumeStatus(enum.Enum):
    """The result of a listener for the messages passed to it."""

    SUCCESS = "CONSUME_SUCCESS"
    LATER = "RECONSUME_LATER"
    """Deliver them again later; to an orderly listener, in the same place, after a moment."""


class StartPosition(enum.Enum):
    """Where to look for the offset to start with."""

    FIRST = 0
    MAX = 1
    TIME = 2


# Subscriptions


def subscribe(topic: str, expression: str, now: int) -> Subscription:
    """Return the subscription to a topic by tags: ``TagA || TagB``, or ``*`` for all.

    Raises:
        UsageError: the expression is not a string.
        FilterError: it has no tag, only bars.
    """
    _check_expression(expression)
    wanted = parse_tags(expression)
    tags = tuple(sorted(wanted.tags))
    codes = tuple(sorted(wanted.codes))
    return Subscription(topic, wanted.expression, "TAG", tags, codes, now)


def subscribe_by_sql(topic: str, expression: str, now: int) -> Subscription:
    """Return the subscription to a topic by an SQL92 filter, which brokers compile.

    Raises:
        UsageError: the filter is not a string.
    """
    _check_expression(expression)
    return Subscription(topic, expression, "SQL92", version=now)


def _check_expression(expression: str) -> None:
    if not isinstance(expression, str):
        raise UsageError(f"a filter must be a string, not {expression!r}")


def is_wanted(subscription: Subscription, message: ConsumerMessage) -> bool:
    """Return whether a message that the broker has chosen matches: two tags may have the same hash."""
    return not subscription.tags or message.tags in subscription.tags


# Where to start


def where_to_begin(topic: str, consume_from: ConsumeFrom) -> StartPosition:
    """Return where a group that has not consumed anything from a queue starts."""
    is_retry = topic.startswith(RETRY_PREFIX)
    if consume_from is ConsumeFrom.TIMESTAMP:
        return StartPosition.MAX if is_retry else StartPosition.TIME
    if consume_from is ConsumeFrom.FIRST_OFFSET or is_retry:
        return StartPosition.FIRST
    return StartPosition.MAX


def is_made_again(
    first: ConsumerMessage | None, last: ConsumerMessage | None, min_offset: int, *, was_gone: bool
) -> bool:
    """Return whether a queue is new, from a topic that was deleted and recreated, rather than one that lost its end.

    The log of a broker only grows, so messages of a new queue were stored after those of the old one. If nothing
    decides, messages are rather delivered twice than not at all.

    Args:
        first: the first message of the queue now.
        last: the last message received from it before.
        min_offset: of the queue now.
        was_gone: in the meantime the broker has answered that the topic does not exist.
    """
    if first is None:  # whatever it has is consumed
        return True
    if last is None:
        return was_gone or min_offset == 0
    return first.physical_offset > last.physical_offset or first.store_timestamp > last.store_timestamp


# How much is pulled ahead


@dataclass(frozen=True)
class Thresholds:
    """How much of a queue is pulled ahead, as in Java; -1 is no limit."""

    count: int = 1000
    size: int = 100 << 20  # bytes of bodies
    span: int = 2000  # of offsets; not for orderly consumers
    count_of_topic: int = -1
    size_of_topic: int = -1

    def shared(self, queue_count: int) -> "Thresholds":
        """Return the thresholds of one queue if this client has ``queue_count`` queues of the topic."""
        count, size = self.count_of_topic, self.size_of_topic
        if count <= 0 and size <= 0:  # mostly
            return self
        return dataclasses.replace(
            self,
            count=max(1, count // queue_count) if count > 0 else self.count,
            size=max(1, size // queue_count) if size > 0 else self.size,
        )


def is_full(queue: ProcessQueue[Any], thresholds: Thresholds, *, is_orderly: bool) -> bool:
    """Return whether pulled messages have to be consumed before more are pulled."""
    if queue.count > thresholds.count or queue.size > thresholds.size:
        return True
    return not is_orderly and queue.span > thresholds.span


# Messages for a listener


def messages_of(records: bytes, queue: MessageQueue, subscription: Subscription) -> list[ConsumerMessage]:
    """Return the matching messages among those pulled from a queue.

    Raises:
        FormatError: the bytes are not records.
    """
    messages = parse_messages(records, queue.broker_name)
    return [message for message in messages if is_wanted(subscription, message)] if subscription.tags else messages


def original(message: ConsumerMessage, group: str) -> ConsumerMessage:
    """Return a message under its original topic if it comes from the retry topic of the group."""
    topic = message.properties.get(RETRY_TOPIC)
    if topic and message.topic == RETRY_PREFIX + group:
        return dataclasses.replace(message, topic=topic)
    return message


def as_users_know(
    messages: Sequence[ConsumerMessage], namespace: str, deserializer: "Callable[[bytes], Any] | None"
) -> list[ConsumerMessage]:
    """Return messages with the names of their topics within a namespace, and with their deserializer."""
    shown = [*messages]
    if namespace:
        shown = [
            dataclasses.replace(message, topic=without_namespace(message.topic, namespace)) for message in messages
        ]
    if deserializer:
        for message in shown:
            message.deserializer = deserializer
    return shown


def in_groups(messages: Sequence[ConsumerMessage], most: int) -> Iterable[Sequence[ConsumerMessage]]:
    """Yield messages in groups of at most ``most``."""
    return (messages[at : at + most] for at in range(0, len(messages), most))


def most_attempts(configured: int, *, is_orderly: bool) -> int:
    """Return how often a message is redelivered before it becomes a dead letter; -1 is the default."""
    if configured >= 0:
        return configured
    return UNLIMITED if is_orderly else _MAX_ATTEMPTS


# Assigned queues


def changes(
    held: Collection[MessageQueue], due: Collection[MessageQueue]
) -> tuple[list[MessageQueue], list[MessageQueue]]:
    """Return the queues to give away, and those to take over."""
    return sorted(set(held) - set(due)), sorted(set(due) - set(held))
