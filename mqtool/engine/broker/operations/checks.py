"""Checks before a group may read a topic, or hide messages."""

from mqtool.engine.broker.operations.refusal import Forbids, OperationRefusedError, Reason
from mqtool.engine.broker.settings import BrokerSettings
from mqtool.engine.broker.subscription_groups import SubscriptionGroups
from mqtool.engine.broker.topics import Topics
from mqtool.formats.codes import Perm
from mqtool.formats.config_tables import SubscriptionGroup, TopicConfig

_READ = int(Perm.READ)  # an operator of an enum takes a microsecond


def checked_group(groups: SubscriptionGroups, name: str, now: int) -> SubscriptionGroup:
    """Return a group that may consume.

    Raises:
        OperationRefusedError: there is no such group, or it may not.
    """
    group = groups.find(name, now)
    if group is None:
        raise OperationRefusedError(Reason.NO_GROUP, f"subscription group [{name}] does not exist")
    if not group.consume_enabled:
        raise OperationRefusedError(Reason.NOT_ALLOWED, f"subscription group no permission, {name}", Forbids.GROUP)
    return group


def checked_topic(topics: Topics, name: str, queue_id: int) -> TopicConfig:
    """Return a topic that may be read and has a queue.

    Raises:
        OperationRefusedError: there is no such topic or queue, or it may not be read.
    """
    topic = topics.get(name)
    if topic is None:
        raise OperationRefusedError(Reason.NO_TOPIC, f"topic[{name}] not exist, apply first please!")
    if not topic.perm & _READ:
        raise OperationRefusedError(
            Reason.NOT_ALLOWED, f"the topic[{name}] pulling message is forbidden", Forbids.TOPIC
        )
    if not 0 <= queue_id < topic.read_queue_count:
        raise OperationRefusedError(Reason.BAD_ARGUMENT, no_such_queue(topic, queue_id))
    return topic


def refusal_meanwhile(
    topics: Topics, groups: SubscriptionGroups, topic_name: str, queue_id: int, group_name: str
) -> OperationRefusedError | None:
    """Return why a group that waits for messages may not read them any more; -1 is any queue.

    If its topic or group is deleted, there is nothing to forbid.
    """
    topic, group = topics.get(topic_name), groups.get(group_name)
    try:
        if group is not None and not group.consume_enabled:
            text = f"subscription group no permission, {group_name}"
            raise OperationRefusedError(Reason.NOT_ALLOWED, text, Forbids.GROUP)
        if topic is not None and (queue_id >= 0 or not topic.perm & _READ):
            checked_topic(topics, topic_name, queue_id)
    except OperationRefusedError as refused:
        return refused
    return None


def check_invisible_time(invisible_ms: int, settings: BrokerSettings) -> None:
    """Check whether messages may be hidden for so long; raises ``OperationRefusedError``."""
    most = settings.timer_max_delay_seconds
    if invisible_ms > most * 1000:
        text = f"the invisible time of {invisible_ms} ms is longer than timerMaxDelaySec, {most} s"
        raise OperationRefusedError(Reason.BAD_ARGUMENT, text)


def no_such_queue(topic: TopicConfig, queue_id: int) -> str:
    """Return the text of a refusal: a topic has no such readable queue."""
    count = topic.read_queue_count
    return f"queueId[{queue_id}] is illegal, topic:[{topic.topic}] topicConfig.readQueueNums:[{count}]"
