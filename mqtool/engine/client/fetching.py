"""The requests of a consumer to brokers: messages, offsets, members of its group, locks, and messages sent back.

(Rules: remoting.md 3.2, 3.3, 5, 6. RocketMQ: ``PullAPIWrapper``, ``RemoteBrokerOffsetStore``, ``RebalanceImpl``.)
"""

from collections.abc import Collection
from typing import NamedTuple

from mqtool.engine.client.calls import Call
from mqtool.errors import FormatError
from mqtool.formats.bodies import (
    MessageQueue,
    QueueLocks,
    Subscription,
    build_body,
    build_queue_locks,
    parse_body,
    parse_queue,
    subscription_members,
)
from mqtool.formats.codes import PullSysFlag, RequestCode, ResponseCode
from mqtool.formats.headers import (
    ConsumerGroup,
    OffsetResponse,
    Pull,
    PullResponse,
    QueryConsumerOffset,
    Queue,
    SendBack,
    UpdateConsumerOffset,
    build_header,
    parse_header,
)
from mqtool.formats.remoting import RemotingCommand

HOLD_MS = 15_000
"""How long a broker holds a pull while there are no messages, .."""
HELD_ANSWER_MS = 30_000
""".. and how long its answer may take."""
MAX_SIZE = 262_144
# Plain numbers take a tenth of the time of enums, in every pull.
_COMMIT_OFFSET, _SUSPEND = int(PullSysFlag.COMMIT_OFFSET), int(PullSysFlag.SUSPEND)
_SUBSCRIPTION = int(PullSysFlag.SUBSCRIPTION)
_PULLED = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class Fetched(NamedTuple):
    """The answer to a pull."""

    code: int  # SUCCESS, PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY or PULL_OFFSET_MOVED
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int
    records: bytes


def pull(
    group: str,
    queue: MessageQueue,
    offset: int,
    most: int,
    subscription: Subscription,
    *,
    commit_offset: int | None = None,
    hold_ms: int = HOLD_MS,
    with_subscription: bool = False,
    most_size: int = MAX_SIZE,
) -> Call[Fetched]:
    """Messages of a queue from an offset on.

    Args:
        group: of the consumer.
        queue: which.
        offset: the first.
        most: the maximum number of messages.
        subscription: the filter.
        commit_offset: the consumer offset of the group, if it is to be committed with the pull.
        hold_ms: how long the broker may wait for messages.
        with_subscription: send the subscription; otherwise the broker uses that of the heartbeat.
        most_size: maximum bytes of records; one record is always returned.
    """

    def read(answer: RemotingCommand) -> Fetched:
        header = parse_header(PullResponse, answer.ext_fields)
        return Fetched(
            answer.code,
            header.next_begin_offset,
            header.min_offset,
            header.max_offset,
            header.suggest_which_broker_id,
            answer.body,
        )

    flags = 0
    if commit_offset is not None:
        flags |= _COMMIT_OFFSET
    if hold_ms:
        flags |= _SUSPEND
    if with_subscription:
        flags |= _SUBSCRIPTION
    header = Pull(
        group,
        queue.topic,
        queue.queue_id,
        offset,
        most,
        flags,
        commit_offset or 0,
        hold_ms,
        subscription.version,
        subscription.expression if with_subscription else None,
        subscription.expression_type,
        most_size,
    )
    return Call(RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=build_header(header)), read, _PULLED)


def members(group: str) -> Call[list[str]]:
    """The client ids of a group that the broker knows; an empty list is a valid answer."""

    def read(answer: RemotingCommand) -> list[str]:
        if answer.code != ResponseCode.SUCCESS:
            return []
        client_ids = parse_body(answer.body).get("consumerIdList")
        if not isinstance(client_ids, list):
            raise FormatError("consumerIdList of the answer is not a list", offset=0)
        return [str(client_id) for client_id in client_ids]

    command = RemotingCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext_fields=build_header(ConsumerGroup(group)))
    return Call(command, read, (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR))


def committed_offset(group: str, queue: MessageQueue, *, zero_if_none: bool | None = None) -> Call[int | None]:
    """The consumer offset of a group in a queue, None if it is unknown.

    A broker answers 0 if nothing was committed and the first message still exists; with ``zero_if_none`` False, a 5.x
    broker does not.
    """

    def read(answer: RemotingCommand) -> int | None:
        if answer.code != ResponseCode.SUCCESS:
            return None
        offset = parse_header(OffsetResponse, answer.ext_fields).offset
        return offset if offset >= 0 else None

    header = QueryConsumerOffset(group, queue.topic, queue.queue_id, zero_if_none)
    command = RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, ext_fields=build_header(header))
    return Call(command, read, (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND))


def commit(group: str, queue: MessageQueue, offset: int) -> RemotingCommand:
    """Return the request that commits the consumer offset of a group in a queue."""
    header = UpdateConsumerOffset(group, queue.topic, queue.queue_id, offset)
    return RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=build_header(header))


def max_offset(queue: MessageQueue) -> Call[int]:
    """The offset after the last message of a queue."""
    command = RemotingCommand(RequestCode.GET_MAX_OFFSET, ext_fields=build_header(Queue(queue.topic, queue.queue_id)))
    return Call(command, lambda answer: parse_header(OffsetResponse, answer.ext_fields).offset)


def lock(group: str, client_id: str, queues: Collection[MessageQueue]) -> Call[list[MessageQueue]]:
    """Lock queues for one member of a group; returns those that it got."""

    def read(answer: RemotingCommand) -> list[MessageQueue]:
        queues = parse_body(answer.body).get("lockOKMQSet") or []
        if not isinstance(queues, list):
            raise FormatError("lockOKMQSet of the answer is not a list", offset=0)
        return [parse_queue(queue) for queue in queues]

    body = build_queue_locks(QueueLocks(group, client_id, tuple(queues)))
    return Call(RemotingCommand(RequestCode.LOCK_BATCH_MQ, body=body), read)


def unlock(group: str, client_id: str, queues: Collection[MessageQueue]) -> Call[None]:
    """Release locks."""
    body = build_queue_locks(QueueLocks(group, client_id, tuple(queues)))
    return Call(RemotingCommand(RequestCode.UNLOCK_BATCH_MQ, body=body), lambda _: None)


def send_back(
    group: str, physical_offset: int, delay_level: int, message_id: str, topic: str, max_reconsume_times: int
) -> Call[None]:
    """Send a message back, to be delivered again later.

    Args:
        group: of the consumer.
        physical_offset: of the message at its broker.
        delay_level: when; 0: depends on the number of deliveries; -1: never, it becomes a dead letter.
        message_id: its unique key.
        topic: its topic.
        max_reconsume_times: after how many redeliveries it becomes a dead letter.
    """
    header = SendBack(physical_offset, group, delay_level, message_id, topic, max_reconsume_times=max_reconsume_times)
    command = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, ext_fields=build_header(header))
    return Call(command, lambda _: None)


def check_subscription(client_id: str, group: str, subscription: Subscription) -> Call[None]:
    """Ask a broker whether it can filter by a subscription."""
    members = {"clientId": client_id, "group": group, "subscriptionData": subscription_members(subscription)}
    command = RemotingCommand(RequestCode.CHECK_CLIENT_CONFIG, body=build_body(members))
    return Call(command, lambda _: None)
