"""The permissions that each request needs if access is controlled: a row for every request code.

A code without a row is for administrators. If a request names a message and no topic, the topic of the message
counts: its real topic, if it waits for its time or for the end of its transaction.

ACL 1.0 of RocketMQ needs no permission if it has no rule, as for most requests of administrators,
for messages by address, for pops and for locks; all of these have rows here.
(Rules: remoting.md 8.2. RocketMQ: ``PlainAccessResource``, and ``RocketMQAction`` of 5.x.)
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from mqtool.engine.broker.acl import Need, TopicAt
from mqtool.errors import FormatError
from mqtool.formats.bodies import parse_body, parse_heartbeat, parse_queue_locks
from mqtool.formats.codes import RequestCode
from mqtool.formats.headers import ConsumeDirectly, EndTransaction, SendBack, ViewMessage, parse_header
from mqtool.formats.hosts import parse_message_id
from mqtool.formats.plain_acl import ANY, PUB, SUB
from mqtool.formats.pop import normal_topic
from mqtool.formats.properties import find_property, probe_of
from mqtool.formats.property_names import TIMER_DEL_UNIQKEY
from mqtool.formats.remoting import RemotingCommand
from mqtool.formats.topics import RETRY_PREFIX

_RECALLED = probe_of(TIMER_DEL_UNIQKEY)


Row = Callable[[RemotingCommand, TopicAt], Iterable[Need]]


class AdminNeededError(Exception):
    """A request that only an administrator may make."""


def needs(command: RemotingCommand, topic_at: TopicAt) -> Iterable[Need]:
    """Return the permissions that a request needs.

    Raises:
        AdminNeededError: it must be an administrator.
        FormatError: the request cannot be read.
    """
    return NEEDS.get(command.code, _administrator)(command, topic_at)


def _administrator(command: RemotingCommand, topic_at: TopicAt) -> Iterable[Need]:  # noqa: ARG001
    raise AdminNeededError


# Fields


def _topic(permission: int, field: str = "topic") -> Row:
    """Return a row for a request that names a topic."""

    def row(command: RemotingCommand, topic_at: TopicAt) -> Iterable[Need]:  # noqa: ARG001
        return (Need(command.ext_fields.get(field, ""), permission),)

    return row


def _group(field: str = "consumerGroup", topic_field: str = "") -> Row:
    """Return a row for a request that names a group of consumers, and perhaps a topic that it reads."""

    def row(command: RemotingCommand, topic_at: TopicAt) -> Iterator[Need]:  # noqa: ARG001
        yield Need(RETRY_PREFIX + command.ext_fields.get(field, ""), SUB)
        if topic_field:
            yield Need(command.ext_fields.get(topic_field, ""), SUB)

    return row


def _group_if_named(command: RemotingCommand, topic_at: TopicAt) -> Iterable[Need]:  # noqa: ARG001
    group = command.ext_fields.get("consumerGroup")
    return (Need(RETRY_PREFIX + group, SUB),) if group else ()


def _popped(command: RemotingCommand, topic_at: TopicAt) -> Iterable[Need]:  # noqa: ARG001
    """Yield the permissions for a request about a popped message, of its topic or of its retry topic."""
    return _of_popped(command.ext_fields.get("consumerGroup", ""), command.ext_fields.get("topic", ""))


def _of_popped(group: str, topic: str) -> Iterable[Need]:
    return Need(RETRY_PREFIX + group, SUB), Need(normal_topic(topic, group), SUB)


def _send(topic_field: str, properties_field: str) -> Row:
    def row(command: RemotingCommand, topic_at: TopicAt) -> Iterator[Need]:  # noqa: ARG001
        topic = command.ext_fields.get(topic_field, "")
        yield Need(topic, SUB if topic.startswith(RETRY_PREFIX) else PUB)
        properties = command.ext_fields.get(properties_field, "").replace("\0", "")  # none is stored
        if TIMER_DEL_UNIQKEY in properties:
            recalled = find_property(properties.encode("utf-8", "replace"), _RECALLED).decode("utf-8", "replace")
            if recalled:
                of_topic, plus, _ = recalled.partition("+")
                if not plus:  # a recall of any topic
                    raise AdminNeededError
                yield Need(of_topic, PUB)

    return row


# Messages by their address


def _view(command: RemotingCommand, topic_at: TopicAt) -> Iterable[Need]:
    return _message_at(parse_header(ViewMessage, command.ext_fields).offset, SUB, topic_at)


def _end(command: RemotingCommand, topic_at: TopicAt) -> Iterable[Need]:
    return _message_at(parse_header(EndTransaction, command.ext_fields).commit_log_offset, PUB, topic_at)


def _send_back(command: RemotingCommand, topic_at: TopicAt) -> Iterator[Need]:
    header = parse_header(SendBack, command.ext_fields)
    yield Need(RETRY_PREFIX + header.group, SUB)
    for need in _message_at(header.offset, SUB, topic_at):
        yield need._replace(topic=normal_topic(need.topic, header.group))


def _consume(command: RemotingCommand, topic_at: TopicAt) -> Iterator[Need]:
    header = parse_header(ConsumeDirectly, command.ext_fields)
    yield Need(RETRY_PREFIX + header.consumer_group, SUB)
    yield from _message_at(parse_message_id(header.msg_id or ""), SUB, topic_at)


def _message_at(offset: int, permission: int, topic_at: TopicAt) -> Iterable[Need]:
    """Yield the permissions for the message at an address: none if there is no message, as the answer will say."""
    topic = topic_at(offset)
    return () if topic is None else (Need(topic, permission),)


# Bodies


def _heartbeat(command: RemotingCommand, topic_at: TopicAt) -> Iterator[Need]:  # noqa: ARG001
    for consumer in parse_heartbeat(command.body).consumers:
        yield Need(RETRY_PREFIX + consumer.group, SUB)
        for subscription in consumer.subscriptions:
            yield Need(subscription.topic, SUB)


def _locks(command: RemotingCommand, topic_at: TopicAt) -> Iterator[Need]:  # noqa: ARG001
    locks = parse_queue_locks(command.body)
    yield Need(RETRY_PREFIX + locks.group, SUB)
    for topic in {queue.topic for queue in locks.queues}:
        yield Need(topic, SUB)


def _acks(command: RemotingCommand, topic_at: TopicAt) -> Iterator[Need]:  # noqa: ARG001
    acks = parse_body(command.body).get("acks") or [] if command.body else []
    for members in acks if isinstance(acks, list) else ():
        if not isinstance(members, dict):
            raise FormatError("acks is not a list of acknowledgements", offset=0)
        yield from _of_popped(str(members.get("c") or ""), str(members.get("t") or ""))


def _subscription(command: RemotingCommand, topic_at: TopicAt) -> Iterator[Need]:  # noqa: ARG001
    body = parse_body(command.body)
    yield Need(RETRY_PREFIX + str(body.get("group") or ""), SUB)
    wanted = body.get("subscriptionData")
    if isinstance(wanted, dict):
        yield Need(str(wanted.get("topic") or ""), SUB)


def _assignment(command: RemotingCommand, topic_at: TopicAt) -> Iterable[Need]:  # noqa: ARG001
    body = parse_body(command.body)
    return Need(RETRY_PREFIX + str(body.get("consumerGroup") or ""), SUB), Need(str(body.get("topic") or ""), SUB)


def _stats_of_group(command: RemotingCommand, topic_at: TopicAt) -> Iterator[Need]:  # noqa: ARG001
    fields = command.ext_fields
    yield Need(RETRY_PREFIX + fields.get("consumerGroup", ""), SUB)
    for topic in f"{fields.get('topicList', '')};{fields.get('topic', '')}".split(";"):
        if topic:
            yield Need(topic, SUB)


def _queue(command: RemotingCommand, topic_at: TopicAt) -> Iterator[Need]:
    yield Need(command.ext_fields.get("topic", ""), SUB)
    yield from _group_if_named(command, topic_at)


_reads = _group("consumerGroup", "topic")
_reads_too = _group("group", "topic")

NEEDS: Mapping[int, Row] = {
    # Producers
    RequestCode.SEND_MESSAGE: _send("topic", "properties"),
    RequestCode.SEND_MESSAGE_V2: _send("b", "i"),
    RequestCode.SEND_BATCH_MESSAGE: _send("b", "i"),
    RequestCode.SEND_REPLY_MESSAGE: _send("topic", "properties"),
    RequestCode.SEND_REPLY_MESSAGE_V2: _send("b", "i"),
    RequestCode.END_TRANSACTION: _end,
    RequestCode.RECALL_MESSAGE: _topic(PUB),
    # Consumers
    RequestCode.HEART_BEAT: _heartbeat,  # of producers too, which need nothing: see Transactions for who is asked
    RequestCode.UNREGISTER_CLIENT: _group_if_named,
    RequestCode.CHECK_CLIENT_CONFIG: _subscription,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _group("consumerGroup"),
    RequestCode.LOCK_BATCH_MQ: _locks,
    RequestCode.UNLOCK_BATCH_MQ: _locks,
    RequestCode.QUERY_ASSIGNMENT: _assignment,
    RequestCode.PULL_MESSAGE: _reads,
    RequestCode.LITE_PULL_MESSAGE: _reads,
    RequestCode.QUERY_CONSUMER_OFFSET: _reads,
    RequestCode.UPDATE_CONSUMER_OFFSET: _reads,
    RequestCode.CONSUMER_SEND_MSG_BACK: _send_back,
    RequestCode.POP_MESSAGE: _reads,
    RequestCode.PEEK_MESSAGE: _reads,
    RequestCode.NOTIFICATION: _reads,
    RequestCode.POLLING_INFO: _reads,
    RequestCode.ACK_MESSAGE: _popped,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _popped,
    RequestCode.BATCH_ACK_MESSAGE: _acks,
    # Messages, queues and topics
    RequestCode.QUERY_MESSAGE: _topic(SUB),
    RequestCode.VIEW_MESSAGE_BY_ID: _view,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _topic(SUB),
    RequestCode.GET_MAX_OFFSET: _topic(SUB),
    RequestCode.GET_MIN_OFFSET: _topic(SUB),
    RequestCode.GET_EARLIEST_MSG_STORETIME: _topic(SUB),
    RequestCode.QUERY_CONSUME_QUEUE: _queue,
    RequestCode.GET_TOPIC_STATS_INFO: _topic(ANY),
    RequestCode.GET_TOPIC_CONFIG: _topic(ANY),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _topic(SUB),
    # Groups
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _group("group"),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _group("consumerGroup"),
    RequestCode.GET_CONSUME_STATS: _stats_of_group,
    RequestCode.QUERY_CONSUME_TIME_SPAN: _reads_too,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _group("group"),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _reads_too,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _reads_too,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _reads_too,
    RequestCode.GET_CONSUMER_RUNNING_INFO: _group("consumerGroup"),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _consume,
    # The broker and all that is in it
    **dict.fromkeys(
        (
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
            RequestCode.DELETE_TOPIC_IN_BROKER,
            RequestCode.DELETE_TOPIC_IN_BROKER_LIST,
            RequestCode.GET_ALL_TOPIC_CONFIG,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
            RequestCode.CLEAN_UNUSED_TOPIC,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            RequestCode.DELETE_SUBSCRIPTIONGROUP,
            RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
            RequestCode.SET_MESSAGE_REQUEST_MODE,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
            RequestCode.CLONE_GROUP_OFFSET,
            RequestCode.QUERY_CORRECTION_OFFSET,
            RequestCode.GET_ALL_CONSUMER_OFFSET,
            RequestCode.GET_ALL_DELAY_OFFSET,
            RequestCode.GET_TIMER_CHECK_POINT,
            RequestCode.GET_TIMER_METRICS,
            RequestCode.GET_BROKER_CONSUME_STATS,
            RequestCode.GET_PRODUCER_CONNECTION_LIST,
            RequestCode.GET_ALL_PRODUCER_INFO,
            RequestCode.RESUME_CHECK_HALF_MESSAGE,
            RequestCode.UPDATE_BROKER_CONFIG,
            RequestCode.GET_BROKER_CONFIG,
            RequestCode.GET_BROKER_RUNTIME_INFO,
            RequestCode.VIEW_BROKER_STATS_DATA,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
            RequestCode.DELETE_EXPIRED_COMMITLOG,
            RequestCode.POP_ROLLBACK,
            RequestCode.GET_BROKER_HA_STATUS,
            RequestCode.RESET_MASTER_FLUSH_OFFSET,
            RequestCode.CHANGE_ROLE,
            RequestCode.GET_LOG_CHECKSUMS,
            RequestCode.GET_PULSAR_SUBSCRIPTIONS,
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
            RequestCode.DELETE_ACL_CONFIG,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
            RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
        ),
        _administrator,
    ),
}
"""By request code."""
