"""What administrators ask a broker, and have it do, besides topics, groups and consumers.

(Rules: remoting.md 3.5 to 3.8. RocketMQ: ``AdminBrokerProcessor``.)
"""

import logging
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mqtool.engine.broker.operations.queues import store_timestamp
from mqtool.engine.broker.settings import AT_START
from mqtool.engine.store.append_result import PutStatus
from mqtool.engine.store.message_store import CHANGEABLE
from mqtool.engine.store.paths import STORE_SETTINGS
from mqtool.engine.store.retention import disk_usage
from mqtool.errors import FormatError, NotFoundError, UsageError
from mqtool.formats.bodies import (
    MessageQueue,
    build_body,
    build_kv_table,
    build_topic_list,
    subscription_members,
    version_members,
)
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.config_tables import DataVersion, Table, TopicConfig
from mqtool.formats.headers import (
    GetBrokerConsumeStats,
    GetConsumeStats,
    GroupAndTopic,
    GroupName,
    QueryConsumeQueue,
    ResumeCheck,
    TopicName,
    ViewBrokerStats,
    parse_header,
)
from mqtool.formats.hosts import parse_message_id
from mqtool.formats.remoting import VERSION
from mqtool.formats.settings import build_settings, parse_settings
from mqtool.formats.topics import SCHEDULE_TOPIC, is_system_topic

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import Broker
    from mqtool.engine.broker.processors.request import Answer, Processor, Request
    from mqtool.engine.store.live_queue import LiveQueue

log = logging.getLogger(__name__)

_PROTECTED = ("configBlackList", "brokerConfigPath", "rocketmqHome", "storePath")
"""How settings begin that no request may change: a path in them would be a way to write files."""
_QUEUES_OF_THREADS = {
    "send": 10_000,
    "pull": 100_000,
    "litePull": 100_000,
    "query": 20_000,
    "ack": 100_000,
}
"""The queues of RocketMQ's threads and their lengths; here nothing waits, but tools look for the figures."""
_AT_START = AT_START | (STORE_SETTINGS - CHANGEABLE)
_MOST_UNITS = 1000


def _reply(request: "Request", body: Any) -> "Answer":
    return request.command.answer(body=build_body(body))


def _done(request: "Request") -> "Answer":
    return request.command.answer()


def _refuse(request: "Request", code: ResponseCode, remark: str) -> "Answer":
    return request.command.answer(code, remark=remark)


def _no_topic(request: "Request", topic: str) -> "Answer":
    return _refuse(request, ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")


# The broker


def _runtime_info(broker: "Broker", request: "Request") -> "Answer":
    return request.command.answer(body=build_kv_table(runtime_info(broker, request.now)))


def runtime_info(broker: "Broker", now: int) -> dict[str, str]:
    """Return what a broker tells of itself, by RocketMQ's names."""
    store, figures = broker.store, broker.figures
    log = store.log
    used = f"{disk_usage(store.root):.2f}"
    size = log.end_offset - log.min_offset
    stored, given = (" ".join(map(str, rates)) for rates in (figures.stored_rates(now), figures.given_rates(now)))
    status = os.statvfs(store.root)
    total, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    info = {
        "brokerVersionDesc": "V4_9_8",
        "brokerVersion": str(int(VERSION)),
        "brokerActive": "true",
        "bootTimestamp": str(figures.started),
        "runtime": _span(now - figures.started),
        "startAcceptSendRequestTimeStamp": "0",
        "msgPutTotalYesterdayMorning": str(figures.mornings[0].stored),
        "msgPutTotalTodayMorning": str(figures.mornings[1].stored),
        "msgPutTotalTodayNow": str(figures.stored),
        "msgGetTotalYesterdayMorning": str(figures.mornings[0].given),
        "msgGetTotalTodayMorning": str(figures.mornings[1].given),
        "msgGetTotalTodayNow": str(figures.given),
        "putTps": stored,
        "getTotalTps": given,
        "getFoundTps": given,
        "getMissTps": "0.0 0.0 0.0",
        "getTransferredTps": given,  # as 5.x says it
        "getTransferedTps": given,  # as 4.9 does
        "putMessageTimesTotal": str(figures.stored),
        "putMessageSizeTotal": str(size),
        "putMessageAverageSize": str(size / max(figures.stored, 1)),
        "putMessageFailedTimes": "0",
        "putMessageEntireTimeMax": "0",
        "getMessageEntireTimeMax": "0",
        "putMessageDistributeTime": "",
        "putLatency99": "0.0",
        "putLatency999": "0.0",
        "pageCacheLockTimeMills": "0",
        "earliestMessageTimeStamp": str(store.earliest_timestamp()),
        "commitLogMinOffset": str(log.min_offset),
        "commitLogMaxOffset": str(log.end_offset),
        "commitLogDirCapacity": f"Total : {_gib(total)}, Free : {_gib(free)}.",
        "commitLogDiskRatio": used,
        "consumeQueueDiskRatio": used,
        "remainHowManyDataToFlush": f"{log.end_offset - log.flushed_offset} B",
        "remainTransientStoreBufferNumbs": "2147483647",
        "dispatchBehindBytes": "0",
        "dispatchMaxBuffer": "0",
        "EndTransactionQueueSize": "0",
        "EndTransactionThreadPoolQueueCapacity": "100000",
        "timerReadBehind": "0",
        "timerOffsetBehind": "0",
        "timerCongestNum": "0",
        "timerEnqueueTps": "0.0",
        "timerDequeueTps": "0.0",
    }
    for name, capacity in _QUEUES_OF_THREADS.items():
        info[f"{name}ThreadPoolQueueSize"] = "0"
        info[f"{name}ThreadPoolQueueCapacity"] = str(capacity)
        info[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = "0"
    for level, offset in broker.delayed.offsets.items():
        info[f"scheduleMessageOffset_{level}"] = f"{offset},{_end(broker, SCHEDULE_TOPIC, level - 1)}"
    return info


def _span(ms: int) -> str:
    minutes, seconds = divmod(ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"[ {hours // 24} days, {hours % 24} hours, {minutes} minutes, {seconds} seconds ]"


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def _settings(broker: "Broker") -> dict[str, str]:
    return {**broker.store.config.settings, **broker.settings.texts()}


def _get_config(broker: "Broker", request: "Request") -> "Answer":
    version = build_body(version_members(DataVersion(0, broker.figures.started, 0))).decode()
    body = build_settings(_settings(broker)).encode()
    return request.command.answer(ext_fields={"version": version}, body=body)


def _update_config(broker: "Broker", request: "Request") -> "Answer":
    given = parse_settings(request.command.body.decode("utf-8", "replace"))
    if any(name.startswith(_PROTECTED) for name in given):
        return _refuse(request, ResponseCode.NO_PERMISSION, "Can not update config in black list.")
    of_store = {name: value for name, value in given.items() if name in CHANGEABLE}
    try:
        settings, unknown = broker.settings.updated({name: given[name] for name in given.keys() - of_store.keys()})
        if unknown := sorted({*unknown} - STORE_SETTINGS):
            raise UsageError(f"no effect here: {', '.join(unknown)}")
        present = _settings(broker)
        if late := [name for name in given if name in _AT_START and given[name] != present.get(name)]:
            raise UsageError(f"taken at the start only: {', '.join(late)}")
        broker.store.configure(of_store)
    except UsageError as error:
        return _refuse(request, ResponseCode.INVALID_PARAMETER, str(error))
    broker.configure(settings)
    changes = ", ".join(_printable(f"{name}={value}") for name, value in given.items())
    log.info("%s changed %s", request.session.address, changes)
    return _done(request)


def _printable(text: str) -> str:
    """Return text for a log: what a terminal would act on is written as Python writes it."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _all_consumer_offsets(broker: "Broker", request: "Request") -> "Answer":
    return _reply(request, broker.offsets.table())


def _all_delay_offsets(broker: "Broker", request: "Request") -> "Answer":
    delayed = broker.delayed
    return _reply(request, {"dataVersion": version_members(delayed.version), "offsetTable": delayed.offsets})


_STATS = {
    "TOPIC_PUT_NUMS": "stored",
    "GROUP_GET_NUMS": "given",
    "GROUP_GET_SIZE": "given_bytes",
    "SNDBCK_PUT_NUMS": "sent_back",
}
"""What is counted, by RocketMQ's names; the key is a topic, or a topic and a group with ``@`` between."""


def _view_stats(broker: "Broker", request: "Request") -> "Answer":
    name, key = parse_header(ViewBrokerStats, request.command.ext_fields)
    topic, _, group = key.partition("@")
    kind = _STATS.get(name)
    shares = broker.figures.shares(kind, (topic, group) if group else key, request.now) if kind else None
    if shares is None:
        return _refuse(request, ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
    spans = zip(("statsMinute", "statsHour", "statsDay"), shares, strict=True)
    return _reply(request, {span: {"avgpt": 0.0, "sum": share.sum, "tps": share.rate} for span, share in spans})


# Queues and groups


def _end(broker: "Broker", topic: str, queue_id: int) -> int:
    queue = broker.store.queue(topic, queue_id)
    return queue.next_offset if queue else 0


def _topic_stats(broker: "Broker", request: "Request") -> "Answer":
    topic = parse_header(TopicName, request.command.ext_fields).topic
    config = broker.topics.get(topic)
    if config is None:
        return _no_topic(request, topic)
    table = {}
    for queue_id in range(max(config.read_queue_count, config.write_queue_count)):
        queue = broker.store.queue(topic, queue_id)
        end = queue.next_offset if queue else 0
        table[MessageQueue(topic, broker.settings.broker_name, queue_id)] = {
            "lastUpdateTimestamp": max(store_timestamp(broker.store, topic, queue_id, end - 1), 0),
            "maxOffset": end,
            "minOffset": queue.min_offset(broker.store.log.min_offset) if queue else 0,
        }
    rate = broker.figures.rate("stored", topic, request.now)
    return _reply(request, {"offsetTable": table, "topicPutTps": rate})


def _consume_stats(broker: "Broker", request: "Request") -> "Answer":
    header = parse_header(GetConsumeStats, request.command.ext_fields)
    group = header.consumer_group
    topics = [topic for topic in (header.topic_list or header.topic or "").split(";") if topic]
    topics = topics or _topics_read(broker, group)
    rate = sum(broker.figures.rate("given", (topic, group), request.now) for topic in topics)
    return _reply(request, {"consumeTps": rate, "offsetTable": _progress(broker, group, topics)})


def _topics_read(broker: "Broker", group: str) -> list[str]:
    """Return the topics of which a group has offsets, without those that its consumers no longer want."""
    online = broker.clients.group(group)
    wanted = online.subscriptions if online else {}
    return [topic for topic in broker.offsets.topics_of(group) if not wanted or topic in wanted]


def _progress(broker: "Broker", group: str, topics: Iterable[str]) -> dict[MessageQueue, Table]:
    table: dict[MessageQueue, Table] = {}
    for config in _configs(broker, topics):
        for queue_id in range(config.read_queue_count):
            consumed = max(broker.offsets.get(group, config.topic, queue_id), 0)
            table[MessageQueue(config.topic, broker.settings.broker_name, queue_id)] = {
                "brokerOffset": _end(broker, config.topic, queue_id),
                "consumerOffset": consumed,
                "lastTimestamp": max(store_timestamp(broker.store, config.topic, queue_id, consumed - 1), 0),
                "pullOffset": max(broker.offsets.pulled(group, config.topic, queue_id), consumed),
            }
    return table


def _configs(broker: "Broker", topics: Iterable[str]) -> Iterator[TopicConfig]:
    for topic in topics:
        config = broker.topics.get(topic)
        if config is not None:
            yield config


def _broker_consume_stats(broker: "Broker", request: "Request") -> "Answer":
    is_order = parse_header(GetBrokerConsumeStats, request.command.ext_fields).is_order
    listed, total_diff, total_inflight = [], 0, 0
    for group in broker.groups.table()["subscriptionGroupTable"]:
        stats = []
        for config in _configs(broker, broker.offsets.topics_of(group)):
            if is_order and not config.order:
                continue
            table = _progress(broker, group, [config.topic])
            total_diff += sum(one["brokerOffset"] - one["consumerOffset"] for one in table.values())
            total_inflight += sum(one["pullOffset"] - one["consumerOffset"] for one in table.values())
            rate = broker.figures.rate("given", (config.topic, group), request.now)
            stats.append({"consumeTps": rate, "offsetTable": table})
        listed.append({group: stats})
    return _reply(
        request,
        {
            "brokerAddr": broker.address,
            "consumeStatsList": listed,
            "totalDiff": total_diff,
            "totalInflightDiff": total_inflight,
        },
    )


def _consume_time_span(broker: "Broker", request: "Request") -> "Answer":
    header = parse_header(GroupAndTopic, request.command.ext_fields)
    topic, config = header.topic, broker.topics.get(header.topic)
    if config is None:
        return _no_topic(request, topic)
    spans = []
    for queue_id in range(config.write_queue_count):
        queue = broker.store.queue(topic, queue_id)
        start = queue.min_offset(broker.store.log.min_offset) if queue else 0
        end = queue.next_offset if queue else 0
        consumed = max(broker.offsets.get(header.group, topic, queue_id), 0)
        waiting = store_timestamp(broker.store, topic, queue_id, consumed)
        spans.append(
            {
                "consumeTimeStamp": store_timestamp(broker.store, topic, queue_id, max(consumed - 1, start)),
                "delayTime": request.now - waiting if waiting >= 0 else 0,
                "maxTimeStamp": store_timestamp(broker.store, topic, queue_id, end - 1),
                "messageQueue": {"brokerName": broker.settings.broker_name, "queueId": queue_id, "topic": topic},
                "minTimeStamp": store_timestamp(broker.store, topic, queue_id, start),
            }
        )
    return _reply(request, {"consumeTimeSpanSet": spans})


def _groups_of_topic(broker: "Broker", request: "Request") -> "Answer":
    topic = parse_header(TopicName, request.command.ext_fields).topic
    groups = {*broker.clients.groups_of_topic(topic), *broker.offsets.groups_of(topic)}
    return _reply(request, {"groupList": sorted(groups)})


def _topics_of_group(broker: "Broker", request: "Request") -> "Answer":
    group = parse_header(GroupName, request.command.ext_fields).group
    return request.command.answer(body=build_topic_list(broker.offsets.topics_of(group)))


def _subscription(broker: "Broker", request: "Request") -> "Answer":
    header = parse_header(GroupAndTopic, request.command.ext_fields)
    online = broker.clients.group(header.group)
    subscription = online.subscriptions.get(header.topic) if online else None
    members = subscription_members(subscription) if subscription else None
    return _reply(request, {"group": header.group, "subscriptionData": members, "topic": header.topic})


def _query_queue(broker: "Broker", request: "Request") -> "Answer":
    header = parse_header(QueryConsumeQueue, request.command.ext_fields)
    topic, queue = header.topic or "", broker.store.queue(header.topic or "", header.queue_id)
    if queue is None:
        return _refuse(request, ResponseCode.SYSTEM_ERROR, f"{header.queue_id}@{topic} is not exist!")
    online = broker.clients.group(header.consumer_group or "")
    subscription = online.subscriptions.get(topic) if online else None
    units: list[Table] = []
    start, count = max(header.start, 0), min(header.limit, _MOST_UNITS)
    while len(units) < count and (found := queue.units(start + len(units), count - len(units))):
        units += [
            {
                "eval": False,  # filters look at messages here, not at units
                "physicOffset": unit.physical_offset,
                "physicSize": unit.size,
                "tagsCode": unit.tags_code,
            }
            for unit in found
        ]
    filter_data = None
    if header.consumer_group:
        filter_data = "null" if subscription else f"{header.consumer_group}@{topic} is not online!"
    return _reply(
        request,
        {
            "filterData": filter_data,
            "maxQueueIndex": queue.next_offset,
            "minQueueIndex": queue.min_offset(broker.store.log.min_offset),
            "queueData": units,
            "subscriptionData": subscription_members(subscription) if subscription else None,
        },
    )


# Messages


def _resume_check(broker: "Broker", request: "Request") -> "Answer":
    header = parse_header(ResumeCheck, request.command.ext_fields)
    try:
        status = broker.transactions.resume(parse_message_id(header.msg_id), request.now)
    except (FormatError, NotFoundError) as error:
        return _refuse(request, ResponseCode.SYSTEM_ERROR, f"{header.msg_id} cannot be checked again: {error}")
    if status is not PutStatus.PUT_OK:
        return _refuse(request, ResponseCode.SYSTEM_ERROR, f"{header.msg_id} cannot be stored again: {status}")
    return _done(request)


# Cleaning


def _delete_expired_log(broker: "Broker", request: "Request") -> "Answer":
    broker.store.retention.ask()
    return _done(request)


def _clean_unused_topics(broker: "Broker", request: "Request") -> "Answer":
    topics = {topic for topic, _ in broker.store.queues()}
    _delete(broker, (topic for topic in topics if broker.topics.get(topic) is None))
    return _done(request)


def _clean_expired_queues(broker: "Broker", request: "Request") -> "Answer":
    queues: dict[str, list[LiveQueue]] = {}
    for topic, queue_id in broker.store.queues():
        if queue := broker.store.queue(topic, queue_id):
            queues.setdefault(topic, []).append(queue)
    start = broker.store.log.min_offset
    _delete(
        broker,
        (topic for topic, all_of in queues.items() if all(one.min_offset(start) >= one.next_offset for one in all_of)),
    )
    return _done(request)


def _delete(broker: "Broker", topics: Iterable[str]) -> None:
    """Delete the queues of topics, but for those whose offsets the broker itself goes by."""
    for topic in topics:
        if not is_system_topic(topic):
            broker.delete_queues(topic)


def _export_pop_records(_broker: "Broker", request: "Request") -> "Answer":
    """Say that all records of pop consumers are in the store: none was ever anywhere else."""
    return _done(request)


PROCESSORS: "dict[int, Processor]" = {
    RequestCode.UPDATE_BROKER_CONFIG: _update_config,
    RequestCode.GET_BROKER_CONFIG: _get_config,
    RequestCode.GET_BROKER_RUNTIME_INFO: _runtime_info,
    RequestCode.GET_ALL_CONSUMER_OFFSET: _all_consumer_offsets,
    RequestCode.GET_ALL_DELAY_OFFSET: _all_delay_offsets,
    RequestCode.GET_TOPIC_STATS_INFO: _topic_stats,
    RequestCode.GET_CONSUME_STATS: _consume_stats,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _groups_of_topic,
    RequestCode.QUERY_CONSUME_TIME_SPAN: _consume_time_span,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: _clean_expired_queues,
    RequestCode.VIEW_BROKER_STATS_DATA: _view_stats,
    RequestCode.CLEAN_UNUSED_TOPIC: _clean_unused_topics,
    RequestCode.GET_BROKER_CONSUME_STATS: _broker_consume_stats,
    RequestCode.QUERY_CONSUME_QUEUE: _query_queue,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: _resume_check,
    RequestCode.DELETE_EXPIRED_COMMITLOG: _delete_expired_log,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _topics_of_group,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _subscription,
    RequestCode.POP_ROLLBACK: _export_pop_records,
}
