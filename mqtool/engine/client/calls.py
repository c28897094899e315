"""The requests of a client to name servers and brokers, each with the parser of its answer.

(Rules: remoting.md 2, 3, 5. RocketMQ: ``MQClientAPIImpl``.)
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from mqtool.errors import (
    AccessDeniedError,
    BusyError,
    FormatError,
    IllegalMessageError,
    InvalidRequestError,
    RefusedError,
    UnknownGroupError,
    UnknownTopicError,
)
from mqtool.formats.bodies import (
    ClusterInfo,
    Heartbeat,
    MessageQueue,
    Subscription,
    TopicRoute,
    build_body,
    build_heartbeat,
    by_queue,
    parse_body,
    parse_cluster_info,
    parse_route,
    parse_subscription,
)
from mqtool.formats.codes import PullSysFlag, RequestCode, ResponseCode, version_name
from mqtool.formats.config_tables import OffsetKey, Table, TopicConfig, topics
from mqtool.formats.config_tables import consumer_offsets as parse_offsets
from mqtool.formats.headers import (
    ChangeRole,
    ConsumerGroup,
    CreateTopic,
    DeleteGroup,
    DeleteTopicInNameServer,
    GetRoute,
    GetRunningInfo,
    LogBlocks,
    OffsetResponse,
    Pull,
    PullResponse,
    QueryMessage,
    Queue,
    ResetOffset,
    SearchOffset,
    TopicName,
    UnregisterClient,
    UpdateConsumerOffset,
    ViewMessage,
    build_header,
    parse_header,
)
from mqtool.formats.pulsar_subscriptions import SubscriptionState, parse_subscriptions
from mqtool.formats.remoting import RemotingCommand
from mqtool.formats.settings import parse_settings
from mqtool.formats.topics import DEFAULT_TOPIC, TOOLS_GROUP

T = TypeVar("T")

LATEST = -1
"""A time that means the end of a queue."""

_REFUSALS: dict[int, type[RefusedError]] = {
    ResponseCode.SYSTEM_BUSY: BusyError,
    ResponseCode.SERVICE_NOT_AVAILABLE: BusyError,
    ResponseCode.FLOW_CONTROL: BusyError,
    ResponseCode.GO_AWAY: BusyError,
    ResponseCode.MESSAGE_ILLEGAL: IllegalMessageError,
    ResponseCode.INVALID_PARAMETER: InvalidRequestError,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: InvalidRequestError,
    ResponseCode.NO_PERMISSION: AccessDeniedError,
    ResponseCode.TOPIC_NOT_EXIST: UnknownTopicError,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: UnknownGroupError,
}
_ACL_REFUSAL = "AclException"  # with the code of any other failure


def refusal(address: str, code: int, remark: str | None) -> RefusedError:
    """Return the error for a refusal; its class says why."""
    kind = AccessDeniedError if _ACL_REFUSAL in (remark or "") else _REFUSALS.get(code, RefusedError)
    return kind(address, code, remark)


class Call(NamedTuple, Generic[T]):
    """A request to be sent once, the expected codes of its answer, and the parser of such an answer."""

    command: RemotingCommand
    read: Callable[[RemotingCommand], T]
    codes: Sequence[int] = (ResponseCode.SUCCESS,)


def _ask(
    code: int,
    read: Callable[[RemotingCommand], T],
    header: "NamedTuple | None" = None,
    body: bytes = b"",
    codes: Sequence[int] = (ResponseCode.SUCCESS,),
) -> Call[T]:
    fields = {} if header is None else build_header(header)
    return Call(RemotingCommand(code, ext_fields=fields, body=body), read, codes)


def _done(_: RemotingCommand) -> None:
    return None


# Name servers


def route(topic: str) -> Call[TopicRoute | None]:
    """Which brokers serve a topic; None if there is no such topic."""
    return _ask(
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        lambda answer: parse_route(answer.body) if answer.code == ResponseCode.SUCCESS else None,
        GetRoute(topic),
        codes=(ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST),
    )


def clusters() -> Call[ClusterInfo]:
    """All registered brokers."""
    return _ask(RequestCode.GET_BROKER_CLUSTER_INFO, lambda answer: parse_cluster_info(answer.body))


def topic_names() -> Call[list[str]]:
    """The names of all topics that have a route."""
    return _ask(
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        lambda answer: [str(name) for name in _list(parse_body(answer.body), "topicList")],
    )


def delete_route(topic: str) -> Call[None]:
    """Delete a topic from a name server."""
    return _ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, _done, DeleteTopicInNameServer(topic))


# Topics


def topic_configs() -> Call[dict[str, TopicConfig]]:
    """All topics of a broker."""
    return _ask(RequestCode.GET_ALL_TOPIC_CONFIG, lambda answer: topics(parse_body(answer.body)))


class QueueEnds(NamedTuple):
    """The ends of a queue at a broker; the time is that of the last message, 0 if there is none."""

    min_offset: int
    max_offset: int
    last_timestamp: int


def topic_queues(topic: str) -> Call[dict[int, QueueEnds]]:
    """The queues of a topic on one broker, by id; empty if it does not have the topic."""

    def read(answer: RemotingCommand) -> dict[int, QueueEnds]:
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return {}
        ends = by_queue(parse_body(answer.body).get("offsetTable") or {}, "offsetTable")
        return {
            queue.queue_id: QueueEnds(
                *(_number(queue_ends, name) for name in ("minOffset", "maxOffset", "lastUpdateTimestamp"))
            )
            for queue, queue_ends in sorted(ends.items())
        }

    codes = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
    return _ask(RequestCode.GET_TOPIC_STATS_INFO, read, TopicName(topic), codes=codes)


def put_topic(config: TopicConfig) -> Call[None]:
    """Create or change a topic on a broker."""
    header = CreateTopic(
        config.topic,
        DEFAULT_TOPIC,
        config.read_queue_count,
        config.write_queue_count,
        config.perm,
        config.filter_type,
        config.sys_flag,
        config.order,
    )
    return _ask(RequestCode.UPDATE_AND_CREATE_TOPIC, _done, header)


def delete_topic(topic: str) -> Call[None]:
    """Delete a topic and its queues from a broker."""
    return _ask(RequestCode.DELETE_TOPIC_IN_BROKER, _done, TopicName(topic))


# Groups


def groups() -> Call[dict[str, Table]]:
    """The settings of all groups of a broker, in stored form (``subscription_groups`` parses them)."""
    return _ask(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        lambda answer: _object(parse_body(answer.body).get("subscriptionGroupTable") or {}),
    )


class Member(NamedTuple):
    """A consumer of a group."""

    client_id: str
    address: str
    language: str
    version: str  # the name of its release


class Members(NamedTuple):
    """The consumers of a group that are online at a broker, and their subscriptions."""

    members: list[Member]
    subscriptions: list[Subscription]
    consume_type: str
    message_model: str
    consume_from_where: str


def members(group: str) -> Call[Members | None]:
    """The consumers of a group, None if none is online."""

    def read(answer: RemotingCommand) -> Members | None:
        if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return None
        body = parse_body(answer.body)
        return Members(
            [
                Member(
                    str(connection.get("clientId")),
                    str(connection.get("clientAddr")),
                    str(connection.get("language")),
                    version_name(_number(connection, "version")),
                )
                for connection in map(_object, _list(body, "connectionSet"))
            ],
            [
                parse_subscription(_object(subscription))
                for subscription in _object(body.get("subscriptionTable") or {}).values()
            ],
            *(str(body.get(name) or "") for name in ("consumeType", "messageModel", "consumeFromWhere")),
        )

    codes = (ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE)
    return _ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, read, ConsumerGroup(group), codes=codes)


def assigned_queues(group: str, client_id: str) -> Call[list[MessageQueue]]:
    """The queues that a consumer works on, as it reports itself through its broker."""
    return _ask(
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        lambda answer: [
            queue
            for name in ("mqTable", "mqPopTable")
            for queue in by_queue(parse_body(answer.body).get(name) or {}, name)
        ],
        GetRunningInfo(group, client_id),
    )


def put_group(settings: Table) -> Call[None]:
    """Create or change a group on a broker; takes the settings in stored form."""
    return _ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, _done, body=build_body(settings))


def delete_group(group: str) -> Call[None]:
    """Delete a group and its offsets from a broker."""
    header = DeleteGroup(group, clean_offset=True, remove_offset=True)
    return _ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, _done, header)


# Clients


def heartbeat(beat: Heartbeat) -> Call[None]:
    """Tell a broker that a client is alive, and its groups."""
    return _ask(RequestCode.HEART_BEAT, _done, body=build_heartbeat(beat))


def unregister(client_id: str, producer_group: str = "", consumer_group: str = "") -> Call[None]:
    """Tell a broker that a client has left a group."""
    header = UnregisterClient(client_id, producer_group, consumer_group)
    return _ask(RequestCode.UNREGISTER_CLIENT, _done, header)


def not_supported(command: RemotingCommand) -> RemotingCommand:
    """Return the answer to a request that this client does not support."""
    remark = f" request type {command.code} not supported"
    return command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)


# Offsets


def consumer_offsets() -> Call[dict[OffsetKey, int]]:
    """The next offset of each group in each queue of a broker."""
    return _ask(RequestCode.GET_ALL_CONSUMER_OFFSET, lambda answer: parse_offsets(parse_body(answer.body)))


def _offset(answer: RemotingCommand) -> int:
    return parse_header(OffsetResponse, answer.ext_fields).offset


def min_offset(topic: str, queue_id: int) -> Call[int]:
    """The first offset of a queue."""
    return _ask(RequestCode.GET_MIN_OFFSET, _offset, Queue(topic, queue_id))


def offset_at(topic: str, queue_id: int, timestamp: int) -> Call[int]:
    """The offset that a broker finds for a time in ms, by the rules of its version."""
    return _ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, _offset, SearchOffset(topic, queue_id, timestamp))


def offset_from(topic: str, queue_id: int, timestamp: int) -> Call[int]:
    """The offset of the first message stored at a time (ms) or later, or of an earlier one, so that none is left out.

    Brokers of 4.x find the nearest message, or any of several in the same millisecond.
    """
    return offset_at(topic, queue_id, max(timestamp - 1, 0))


def set_offset(group: str, topic: str, queue_id: int, offset: int) -> Call[None]:
    """Set the next offset of a group in a queue, as its consumers do; online consumers are not notified."""
    header = UpdateConsumerOffset(group, topic, queue_id, offset)
    return _ask(RequestCode.UPDATE_CONSUMER_OFFSET, _done, header)


def reset_offset(group: str, topic: str, queue_id: int, offset: int) -> Call[None]:
    """Let a 5.x broker with server-side reset set the next offset of a group in a queue, and notify its consumers."""
    header = ResetOffset(topic, group, LATEST, is_force=True, queue_id=queue_id, offset=offset)
    return _ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, _done, header)


def reset_to_time(group: str, topic: str, timestamp: int) -> Call[None]:
    """Let the consumers of a group reset their offsets in all queues of a topic, as brokers of 4.x do it."""
    header = ResetOffset(topic, group, timestamp, is_force=True)
    return _ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, _done, header)


# Messages


class PulledRecords(NamedTuple):
    """The answer to a pull; ``status`` is its name in the broker's store."""

    code: int
    status: str
    next_offset: int
    min_offset: int
    max_offset: int
    records: bytes


def pull(
    topic: str, queue_id: int, offset: int, max_count: int, expression: str = "*", expression_type: str = "TAG"
) -> Call[PulledRecords]:
    """Messages of a queue from an offset on, without waiting if there are none."""

    def read(answer: RemotingCommand) -> PulledRecords:
        header = parse_header(PullResponse, answer.ext_fields)
        return PulledRecords(
            answer.code,
            answer.remark or "",
            header.next_begin_offset,
            header.min_offset,
            header.max_offset,
            answer.body,
        )

    header = Pull(
        TOOLS_GROUP,
        topic,
        queue_id,
        offset,
        max_count,
        sys_flag=int(PullSysFlag.SUBSCRIPTION),
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription=expression,
        expression_type=expression_type,
    )
    codes = (
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    )
    return _ask(RequestCode.PULL_MESSAGE, read, header, codes=codes)


MAX_BY_KEY = 64
"""The maximum number of messages that brokers return for a key: the newest ones."""
_NEVER = (1 << 63) - 1


def message_at(offset: int) -> Call[bytes | None]:
    """The record at a physical offset, None if the broker finds none; the result may not be a valid record."""
    return _ask(
        RequestCode.VIEW_MESSAGE_BY_ID,
        lambda answer: answer.body if answer.code == ResponseCode.SUCCESS else None,
        ViewMessage(offset),
        codes=(ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR),
    )


def messages_with_key(topic: str, key: str, since: int = 0, until: int = _NEVER) -> Call[bytes]:
    """The newest records of a topic stored within a time range (ms) whose key or unique key has the same hash."""
    return _ask(
        RequestCode.QUERY_MESSAGE,
        lambda answer: answer.body if answer.code == ResponseCode.SUCCESS else b"",
        QueryMessage(topic, key, MAX_BY_KEY, since, until),
        codes=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
    )


def pulsar_subscriptions() -> Call[list[SubscriptionState]]:
    """Subscriptions of Pulsar clients; empty for a broker that does not support them."""

    def read(answer: RemotingCommand) -> list[SubscriptionState]:
        return parse_subscriptions(answer.body) if answer.code == ResponseCode.SUCCESS else []

    codes = (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    return _ask(RequestCode.GET_PULSAR_SUBSCRIPTIONS, read, codes=codes)


# Brokers


def runtime_info() -> Call[dict[str, str]]:
    """The runtime information of a broker, by RocketMQ's names."""
    return _ask(
        RequestCode.GET_BROKER_RUNTIME_INFO,
        lambda answer: {str(name): str(value) for name, value in _object(parse_body(answer.body).get("table")).items()},
    )


class SlaveProgress(NamedTuple):
    """The progress of a slave, as its master sees it."""

    host: str
    acknowledged_offset: int
    lag_ms: int | None  # only from mqtool masters


class HaStatus(NamedTuple):
    """The replication state that a broker of 5.x reports."""

    in_sync_slaves: int
    slaves: list[SlaveProgress]  # one per connection; empty for a slave


def ha_status() -> Call[HaStatus | None]:
    """The progress of a broker's slaves; None if it cannot report it, as brokers of 4.9."""

    def read(answer: RemotingCommand) -> HaStatus | None:
        if answer.code != ResponseCode.SUCCESS:
            return None
        body = parse_body(answer.body)
        slaves = [
            SlaveProgress(
                str(_object(connection).get("addr") or "").rpartition(":")[0],
                _number(connection, "slaveAckOffset"),
                _number(connection, "lagMillis") if _object(connection).get("lagMillis") is not None else None,
            )
            for connection in _list(body, "haConnectionInfo")
        ]
        return HaStatus(_number(body, "inSyncSlaveNums"), slaves)

    codes = (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    return _ask(RequestCode.GET_BROKER_HA_STATUS, read, codes=codes)


def change_role(step: str, role: str = "", broker_id: int = 0, epoch: int = 0) -> Call[int]:
    """Let an mqtool broker stop or resume accepting messages, or change its role; returns the end of its log."""
    return _ask(
        RequestCode.CHANGE_ROLE,
        lambda answer: int(answer.ext_fields.get("maxOffset", "0")),
        ChangeRole(step, role, broker_id, epoch),
    )


def log_checksum(start: int, end: int) -> Call[int]:
    """The CRC-32 of a range of the log of an mqtool broker, of at most 16 MiB."""
    return _ask(
        RequestCode.GET_LOG_CHECKSUMS,
        lambda answer: int(parse_body(answer.body)["checksums"][0]),
        LogBlocks(start, end, end - start),
    )


def broker_settings() -> Call[dict[str, str]]:
    """The settings of a broker, by RocketMQ's names."""
    return _ask(RequestCode.GET_BROKER_CONFIG, lambda answer: parse_settings(answer.body.decode("utf-8", "replace")))


# Members of a body


def _object(value: Any) -> Table:
    if isinstance(value, dict):
        return value
    raise FormatError("a member of the answer is not an object", offset=0)


def _list(body: Table, name: str) -> list[Any]:
    value = body.get(name) or []
    if isinstance(value, list):
        return value
    raise FormatError(f"{name} of the answer is not a list", offset=0)


def _number(members: Any, name: str) -> int:
    value = _object(members).get(name)
    if type(value) is int:
        return value
    raise FormatError(f"{name} of the answer is not a number", offset=0)
