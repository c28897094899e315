"""What a consumer asks brokers: for messages, offsets, members of its group and locks; and what it gives back.

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
"""How long a broker holds a pull for which there is nothing yet, .."""
HELD_ANSWER_MS = 30_000
""".. and how long its answer may take."""
MAX_SIZE = 262_144
# Plain numbers take a tenth of the time, with every pull.
_COMMIT_OFFSET, _SUSPEND = int(PullSysFlag.COMMIT_OFFSET), int(PullSysFlag.SUSPEND)
_SUBSCRIPTION = int(PullSysFlag.SUBSCRIPTION)


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
        most: messages.
        subscription: which of them are wanted.
        commit_offset: what the group has consumed of the queue, if that must be noted on the way.
        hold_ms: how long the broker may wait for some.
        with_subscription: tell the subscription; else the broker goes by that of the heartbeat.
        most_size: bytes of records; one is always given.
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
    codes = (
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    )
    return Call(RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=build_header(header)), read, codes)


def members(group: str) -> Call[list[str]]:
    """The client ids of a group that the broker knows of; none is an answer, too."""

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
    """What a group consumes next of a queue, None if that is not known.

    A broker says 0 where nothing was committed and the first message is still there; told not to, by ``zero_if_none``,
    one of 5.x does not.
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
    """Return the request that notes what a group consumes next of a queue."""
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
    """Let locks go."""
    body = build_queue_locks(QueueLocks(group, client_id, tuple(queues)))
    return Call(RemotingCommand(RequestCode.UNLOCK_BATCH_MQ, body=body), lambda _: None)


def send_back(
    group: str, physical_offset: int, delay_level: int, message_id: str, topic: str, max_reconsume_times: int
) -> Call[None]:
    """Have a message delivered again later.

    Args:
        group: of the consumer.
        physical_offset: where its broker has it.
        delay_level: when, 0: by how often it came already, -1: never, it becomes a dead letter.
        message_id: its unique key.
        topic: its own.
        max_reconsume_times: after how many times it becomes a dead letter.
    """
    header = SendBack(physical_offset, group, delay_level, message_id, topic, max_reconsume_times=max_reconsume_times)
    command = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, ext_fields=build_header(header))
    return Call(command, lambda _: None)


def check_subscription(client_id: str, group: str, subscription: Subscription) -> Call[None]:
    """Have a broker say whether it can filter by a subscription."""
    members = {"clientId": client_id, "group": group, "subscriptionData": subscription_members(subscription)}
    command = RemotingCommand(RequestCode.CHECK_CLIENT_CONFIG, body=build_body(members))
    return Call(command, lambda _: None)
