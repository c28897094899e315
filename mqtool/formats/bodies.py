"""Bodies of commands: JSON that clients, brokers and name servers read, and what it means.

Written is what every client reads: compact JSON, keys in quotes, members without a value left out. Only a map whose
keys are queues has no form in JSON; fastjson writes ``{{"brokerName":"b","queueId":0,"topic":"T"}:5}``, and Java
clients from 5.4 on and Go clients read nothing else. Read is what any of their writers make (``parse_table``).
(RocketMQ: ``RemotingSerializable`` and the classes of ``protocol.body``, ``.route`` and ``.heartbeat``.)
"""

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mqtool.errors import FormatError
from mqtool.formats import json_library as orjson
from mqtool.formats.config_tables import DataVersion, Table, TopicConfig, data_version, parse_table, topics

_INT = struct.Struct(">i")
_MAX_TABLE = 1 << 26
"""Bytes that a compressed registration may have once it is inflated: half a million topics."""


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker; queues sort by these fields in this order, as in RocketMQ's allocation."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"queue {self.queue_id} of {self.topic} on {self.broker_name}"


# Any body


def build_body(value: Any) -> bytes:
    """Return a value as a body: dicts, lists, texts, numbers; keys may be integers or ``MessageQueue``.

    >>> build_body({"offsetTable": {MessageQueue("T", "b", 0): 5}, "remark": None})
    b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}'
    """
    try:
        data = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS)
    except TypeError:  # there are queues in it, or what is not a text
        return _build(value).encode("utf-8", "replace")
    return data if b"null" not in data else _build(value).encode("utf-8", "replace")  # members that are None go


def _build(value: Any) -> str:
    match value:
        case MessageQueue():
            return _queue(value)
        case Mapping():
            members = (f"{_key(key)}:{_build(item)}" for key, item in value.items() if item is not None)
            return f"{{{','.join(members)}}}"
        case list() | tuple():
            return f"[{','.join(_build(item) for item in value)}]"
        case str():
            try:
                return orjson.dumps(value).decode()
            except orjson.JSONEncodeError:  # half of a surrogate pair
                return orjson.dumps(value.encode("utf-8", "replace").decode()).decode()
        case int() if abs(value) >> 63:  # a sum of offsets that somebody has made up
            return str(value)
        case _:
            return orjson.dumps(value).decode()


def _key(key: object) -> str:
    return _queue(key) if isinstance(key, MessageQueue) else _build(str(key))


def _queue(queue: MessageQueue) -> str:
    return _build({"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic})


def parse_body(data: bytes) -> Table:
    """Return the object that a body holds; a key that is a queue is the JSON text of that queue.

    Raises:
        FormatError: the body is not such an object.
    """
    return parse_table(data)


def by_queue(value: Any, path: str) -> dict[MessageQueue, Any]:
    """Return a map whose keys are queues, in any of the forms that clients and brokers write.

    Raises:
        FormatError: it is not such a map; ``path`` says where it is.
    """
    try:
        pairs = value.items() if isinstance(value, dict) else value  # Go: a list of pairs
        return {parse_queue(parse_table(key.encode()) if isinstance(key, str) else key): item for key, item in pairs}
    except (TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"{path} is not a map of queues", offset=0) from error


def parse_queue(value: Any) -> MessageQueue:
    """Return the queue that a JSON object names.

    Raises:
        FormatError: it names none.
    """
    members = _object(value, "a queue")
    return MessageQueue(
        _text(members, "topic", "a queue"), _text(members, "brokerName", "a queue"), _number(members, "queueId", 0)
    )


# Routes and clusters


class QueueData(NamedTuple):
    """How many queues one broker has of a topic, and what may be done with them."""

    broker_name: str
    read_queue_count: int
    write_queue_count: int
    perm: int
    topic_sys_flag: int = 0


@dataclass(slots=True)
class BrokerData:
    """The brokers that share a name: a master, whose id is 0, and its slaves."""

    cluster: str
    broker_name: str
    addresses: dict[int, str] = field(default_factory=dict)  # by broker id
    enable_acting_master: bool = False


@dataclass(slots=True)
class TopicRoute:
    """Which brokers serve a topic."""

    queues: list[QueueData]
    brokers: list[BrokerData]
    order_config: str | None = None  # broker:queues;broker:queues
    filter_servers: dict[str, list[str]] = field(default_factory=dict)  # by broker address


def build_route(route: TopicRoute) -> bytes:
    """Return the body that answers GET_ROUTEINFO_BY_TOPIC."""
    return build_body(
        {
            "brokerDatas": [_broker_members(broker) for broker in route.brokers],
            "filterServerTable": route.filter_servers,
            "orderTopicConf": route.order_config,
            "queueDatas": [
                {
                    "brokerName": queue.broker_name,
                    "perm": queue.perm,
                    "readQueueNums": queue.read_queue_count,
                    "topicSysFlag": queue.topic_sys_flag,
                    "writeQueueNums": queue.write_queue_count,
                }
                for queue in route.queues
            ],
        }
    )


def parse_route(data: bytes) -> TopicRoute:
    """Return the route that a name server answered, or that a broker registers.

    Raises:
        FormatError: the body is malformed.
    """
    table = parse_table(data)
    return TopicRoute(
        [
            QueueData(
                _text(queue, "brokerName", "queueDatas"),
                _number(queue, "readQueueNums", 0),
                _number(queue, "writeQueueNums", 0),
                _number(queue, "perm", 0),
                _number(queue, "topicSysFlag", 0),
            )
            for queue in _objects(table, "queueDatas")
        ],
        [_parse_broker(broker) for broker in _objects(table, "brokerDatas")],
        table.get("orderTopicConf"),
        {
            str(address): _texts(table["filterServerTable"], address)
            for address in _object(table.get("filterServerTable") or {}, "filterServerTable")
        },
    )


@dataclass(slots=True)
class ClusterInfo:
    """All brokers by name, and the names of the brokers of each cluster."""

    brokers: dict[str, BrokerData]
    clusters: dict[str, list[str]]


def build_cluster_info(info: ClusterInfo) -> bytes:
    """Return the body that answers GET_BROKER_CLUSTER_INFO."""
    return build_body(
        {
            "brokerAddrTable": {name: _broker_members(broker) for name, broker in info.brokers.items()},
            "clusterAddrTable": info.clusters,
        }
    )


def parse_cluster_info(data: bytes) -> ClusterInfo:
    """Return the clusters that a name server answered.

    Raises:
        FormatError: the body names none.
    """
    table = parse_table(data)
    brokers = _object(table.get("brokerAddrTable") or {}, "brokerAddrTable")
    clusters = _object(table.get("clusterAddrTable") or {}, "clusterAddrTable")
    return ClusterInfo(
        {str(name): _parse_broker(broker) for name, broker in brokers.items()},
        {str(name): _texts(clusters, name) for name in clusters},
    )


def _broker_members(broker: BrokerData) -> Table:
    return {
        "brokerAddrs": broker.addresses,
        "brokerName": broker.broker_name,
        "cluster": broker.cluster,
        "enableActingMaster": broker.enable_acting_master,
    }


def _parse_broker(value: Any) -> BrokerData:
    members = _object(value, "brokerDatas")
    addresses = _object(members.get("brokerAddrs") or {}, "brokerAddrs")
    return BrokerData(
        str(members.get("cluster")),
        _text(members, "brokerName", "brokerDatas"),
        {_number({"id": key}, "id", 0): str(address) for key, address in addresses.items()},
        members.get("enableActingMaster") is True,
    )


# Registration of brokers


@dataclass(slots=True)
class Registration:
    """What a broker reports to a name server about its topics."""

    version: DataVersion
    topics: dict[str, TopicConfig]
    filter_servers: list[str] = field(default_factory=list)
    has_mappings: bool = False  # queues of static topics, which have no part in a plain route


def build_registration(registration: Registration) -> bytes:
    """Return the body of REGISTER_BROKER, not compressed."""
    return build_body(
        {
            "filterServerList": registration.filter_servers,
            "topicConfigSerializeWrapper": {
                "dataVersion": version_members(registration.version),
                "topicConfigTable": {name: topic_members(config) for name, config in registration.topics.items()},
            },
        }
    )


def parse_registration(data: bytes, *, compressed: bool) -> Registration:
    """Return what the body of REGISTER_BROKER says; an empty one is a broker without topics.

    Raises:
        FormatError: it cannot be read.
    """
    if not data:
        return Registration(DataVersion(0, 0, 0), {})
    if compressed:
        return _parse_compressed(data)
    table = parse_table(data)
    wrapper = _object(table.get("topicConfigSerializeWrapper") or {}, "topicConfigSerializeWrapper")
    return Registration(
        data_version(wrapper),
        topics(wrapper),
        _texts(table, "filterServerList"),
        bool(wrapper.get("topicQueueMappingInfoMap")),
    )


def _parse_compressed(data: bytes) -> Registration:
    """Read a registration that a broker compressed: a size before each part, topics as text with spaces."""
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(data, _MAX_TABLE)
    except zlib.error as error:
        raise FormatError("cannot decompress a compressed registration", offset=0) from error
    parts = _Parts(plain)
    version = data_version({"dataVersion": parse_table(parts.next())})
    configs = {}
    for _ in range(parts.number()):
        config = _parse_topic_text(parts.next().decode("utf-8", "replace"))
        configs[config.topic] = config
    servers = _texts(parse_table(b'{"servers":%b}' % (parts.next() or b"[]")), "servers")
    has_mappings = parts.is_left() and parts.number() > 0  # from 5.0 on
    return Registration(version, configs, servers, has_mappings)


class _Parts:
    """Sized parts, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def is_left(self) -> bool:
        return self._at < len(self._data)

    def number(self) -> int:
        if self._at + _INT.size > len(self._data):
            raise FormatError("a compressed registration is truncated", self._at)
        (number,) = _INT.unpack_from(self._data, self._at)
        self._at += _INT.size
        return int(number)

    def next(self) -> bytes:
        size = self.number()
        if not 0 <= size <= len(self._data) - self._at:
            raise FormatError("a part of a compressed registration is longer than what is left of it", self._at)
        self._at += size
        return self._data[self._at - size : self._at]


def _parse_topic_text(text: str) -> TopicConfig:
    name, *rest = text.split(" ", 5)
    try:
        read, write, perm, kind = int(rest[0]), int(rest[1]), int(rest[2]), rest[3]
    except (IndexError, ValueError) as error:
        raise FormatError(f"{text[:40]!r} does not describe a topic", offset=0) from error
    attributes = parse_table(rest[4].encode()) if len(rest) > 4 and rest[4] else {}
    return TopicConfig(
        name, read, write, perm, False, kind, 0, {str(key): str(item) for key, item in attributes.items()}
    )


def topic_members(config: TopicConfig) -> Table:
    """Return a topic as a member of a body (RocketMQ: ``TopicConfig``)."""
    return {
        "attributes": dict(config.attributes),
        "order": config.order,
        "perm": config.perm,
        "readQueueNums": config.read_queue_count,
        "topicFilterType": config.filter_type,
        "topicName": config.topic,
        "topicSysFlag": config.sys_flag,
        "writeQueueNums": config.write_queue_count,
    }


def version_members(version: DataVersion) -> Table:
    """Return a data version as a member of a body."""
    return {"counter": version.counter, "stateVersion": version.state_version, "timestamp": version.timestamp}


# Heartbeats of clients


class Subscription(NamedTuple):
    """What a group wants of a topic; of two the one with the greater version holds."""

    topic: str
    expression: str  # tags, * for all, or SQL92
    expression_type: str = "TAG"
    tags: tuple[str, ...] = ()
    tags_codes: tuple[int, ...] = ()  # may be missing though there are tags
    version: int = 0
    class_filter: bool = False


class ConsumerData(NamedTuple):
    """A group that a client consumes for."""

    group: str
    consume_type: str  # CONSUME_ACTIVELY, CONSUME_PASSIVELY or CONSUME_POP
    message_model: str  # BROADCASTING or CLUSTERING
    consume_from_where: str
    subscriptions: tuple[Subscription, ...] = ()
    unit_mode: bool = False


class Heartbeat(NamedTuple):
    """What a client says about itself."""

    client_id: str
    producer_groups: tuple[str, ...] = ()
    consumers: tuple[ConsumerData, ...] = ()
    fingerprint: int = 0  # of the subscriptions, where a client of 5.x leaves them out
    without_subscriptions: bool = False


# Some clients send the place in these lists in place of the name.
_CONSUME_TYPES = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
_MESSAGE_MODELS = ("BROADCASTING", "CLUSTERING")
_CONSUME_FROM_WHERE = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


def parse_heartbeat(data: bytes) -> Heartbeat:
    """Return the heartbeat of a client of any language.

    Raises:
        FormatError: the body is malformed.
    """
    table = parse_table(data)
    return Heartbeat(
        _text(table, "clientID", "the heartbeat"),
        tuple(_text(producer, "groupName", "producerDataSet") for producer in _objects(table, "producerDataSet")),
        tuple(_parse_consumer(consumer) for consumer in _objects(table, "consumerDataSet")),
        _number(table, "heartbeatFingerprint", 0),
        table.get("withoutSub") is True,
    )


def _parse_consumer(members: Table) -> ConsumerData:
    return ConsumerData(
        _text(members, "groupName", "consumerDataSet"),
        _one_of(_CONSUME_TYPES, members.get("consumeType"), _CONSUME_TYPES[1]),
        _one_of(_MESSAGE_MODELS, members.get("messageModel"), _MESSAGE_MODELS[1]),
        _one_of(_CONSUME_FROM_WHERE, members.get("consumeFromWhere"), _CONSUME_FROM_WHERE[0]),
        tuple(parse_subscription(subscription) for subscription in _objects(members, "subscriptionDataSet")),
        members.get("unitMode") is True,
    )


def parse_subscription(members: Table) -> Subscription:
    """Return a subscription that is a member of a body.

    Raises:
        FormatError: it has no topic, or a member is invalid.
    """
    codes = members.get("codeSet") or []
    return Subscription(
        _text(members, "topic", "a subscription"),
        str(members.get("subString") or "*"),
        str(members.get("expressionType") or "TAG"),
        tuple(_texts(members, "tagsSet")),
        tuple(_number({"code": code}, "code", 0) for code in _list(codes, "codeSet")),
        _number(members, "subVersion", 0),
        members.get("classFilterMode") is True,
    )


def subscription_members(subscription: Subscription) -> Table:
    """Return a subscription as a member of a body (RocketMQ: ``SubscriptionData``)."""
    return {
        "classFilterMode": subscription.class_filter,
        "codeSet": subscription.tags_codes,
        "expressionType": subscription.expression_type,
        "subString": subscription.expression,
        "subVersion": subscription.version,
        "tagsSet": subscription.tags,
        "topic": subscription.topic,
    }


def build_heartbeat(heartbeat: Heartbeat) -> bytes:
    """Return the body of HEART_BEAT."""
    return build_body(
        {
            "clientID": heartbeat.client_id,
            "consumerDataSet": [
                {
                    "consumeFromWhere": consumer.consume_from_where,
                    "consumeType": consumer.consume_type,
                    "groupName": consumer.group,
                    "messageModel": consumer.message_model,
                    "subscriptionDataSet": [
                        subscription_members(subscription) for subscription in consumer.subscriptions
                    ],
                    "unitMode": consumer.unit_mode,
                }
                for consumer in heartbeat.consumers
            ],
            "heartbeatFingerprint": heartbeat.fingerprint,
            "producerDataSet": [{"groupName": group} for group in heartbeat.producer_groups],
            "withoutSub": heartbeat.without_subscriptions,
        }
    )


# Locks of orderly consumers


class QueueLocks(NamedTuple):
    """The queues that a member of a group wants to lock or unlock."""

    group: str
    client_id: str
    queues: tuple[MessageQueue, ...]
    only_this_broker: bool = False


def parse_queue_locks(data: bytes) -> QueueLocks:
    """Return what the body of LOCK_BATCH_MQ or UNLOCK_BATCH_MQ asks for.

    Raises:
        FormatError: the body is malformed.
    """
    table = parse_table(data)
    return QueueLocks(
        _text(table, "consumerGroup", "the lock"),
        _text(table, "clientId", "the lock"),
        tuple(parse_queue(queue) for queue in _objects(table, "mqSet")),
        table.get("onlyThisBroker") is True,
    )


def build_queue_locks(locks: QueueLocks) -> bytes:
    """Return the body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""
    return build_body(
        {
            "clientId": locks.client_id,
            "consumerGroup": locks.group,
            "mqSet": [*locks.queues],
            "onlyThisBroker": locks.only_this_broker,
        }
    )


def build_locked_queues(queues: Iterable[MessageQueue]) -> bytes:
    """Return the body that answers LOCK_BATCH_MQ: the queues that were granted."""
    return build_body({"lockOKMQSet": [*queues]})


# Lists


def build_topic_list(names: Iterable[str], broker_address: str | None = None) -> bytes:
    """Return the body that answers the requests for topics."""
    return build_body({"brokerAddr": broker_address, "topicList": [*names]})


def build_consumer_list(client_ids: Iterable[str]) -> bytes:
    """Return the body that answers GET_CONSUMER_LIST_BY_GROUP."""
    return build_body({"consumerIdList": [*client_ids]})


def build_kv_table(pairs: Mapping[str, str]) -> bytes:
    """Return the body that answers GET_KVLIST_BY_NAMESPACE, and registrations."""
    return build_body({"table": pairs})


# Members of a table


def _object(value: Any, path: str) -> Table:
    if isinstance(value, dict):
        return value
    raise FormatError(f"{path} is not an object", offset=0)


def _list(value: Any, path: str) -> list[Any]:
    if isinstance(value, list):
        return value
    raise FormatError(f"{path} is not a list", offset=0)


def _objects(table: Table, name: str) -> list[Table]:
    return [_object(item, name) for item in _list(table.get(name) or [], name)]


def _texts(table: Table, name: Any) -> list[str]:
    return [str(item) for item in _list(table.get(name) or [], str(name))]


def _text(table: Table, name: str, path: str) -> str:
    value = table.get(name)
    if isinstance(value, str):
        return value
    raise FormatError(f"{path} has no {name}", offset=0)


def _number(table: Table, name: str, default: int) -> int:
    value = table.get(name)
    if value is None:
        return default
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise FormatError(f"{name} is not a number", offset=0) from error


def _one_of(names: Sequence[str], value: Any, default: str) -> str:
    if isinstance(value, str):
        return value
    return names[value] if type(value) is int and 0 <= value < len(names) else default
