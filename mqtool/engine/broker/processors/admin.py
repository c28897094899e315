"""Requests of administrators, other than those about topics, groups and consumers.

(Rules: remoting.md 3.5 to 3.8. RocketMQ: ``AdminBrokerProcessor``.)
"""

import itertools
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mqtool.engine.broker.kept_role import EPOCH
from mqtool.engine.broker.operations.administration import resume_check, runtime_info
from mqtool.engine.broker.operations.statistics import QueueProgress
from mqtool.engine.broker.processors.steps import in_pieces
from mqtool.engine.broker.settings import Role
from mqtool.formats.bodies import (
    MessageQueue,
    build_body,
    build_kv_table,
    build_topic_list,
    subscription_members,
    version_members,
)
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.config_tables import DataVersion, Table
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
from mqtool.formats.pulsar_subscriptions import build_subscriptions
from mqtool.formats.settings import build_settings, parse_settings

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import BrokerController
    from mqtool.engine.broker.operations.steps import Steps
    from mqtool.engine.broker.processors.request import Answer, BrokerRequest, Processor
    from mqtool.formats.remoting import RemotingCommand

log = logging.getLogger(__name__)


def _reply(request: "BrokerRequest", body: Any) -> "RemotingCommand":
    return request.command.answer(body=build_body(body))


# The broker


def _runtime_info(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    info = runtime_info(broker.store, broker.broker_stats, broker.delayed, request.now)
    if broker.state.epoch:
        info[EPOCH] = str(broker.state.epoch)
    if broker.state.role is Role.SLAVE:
        info |= broker.following.texts()
    return request.command.answer(body=build_kv_table(info))


def _get_config(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    version = build_body(version_members(DataVersion(0, broker.broker_stats.started, 0))).decode()
    body = build_settings(broker.setting_requests.all()).encode()
    return request.command.answer(ext_fields={"version": version}, body=body)


def _update_config(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    requested = parse_settings(request.command.body.decode("utf-8", "replace"))
    broker.setting_requests.change(requested)
    changes = ", ".join(_printable(f"{name}={value}") for name, value in requested.items())
    log.info("%s changed %s", request.session.address, changes)
    return request.command.answer()


def _printable(text: str) -> str:
    """Return text for a log: control characters are escaped as in Python."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def _all_consumer_offsets(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    return _reply(request, broker.offsets.table())


def _all_delay_offsets(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    delayed = broker.delayed
    return _reply(request, {"dataVersion": version_members(delayed.version), "offsetTable": delayed.offsets})


_STATS = {
    "TOPIC_PUT_NUMS": "stored",
    "GROUP_GET_NUMS": "delivered",
    "GROUP_GET_SIZE": "delivered_bytes",
    "SNDBCK_PUT_NUMS": "sent_back",
}
"""The statistics, by RocketMQ's names; the key is a topic, or a topic and a group separated by ``@``."""


def _view_stats(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    name, key = parse_header(ViewBrokerStats, request.command.ext_fields)
    topic, _, group = key.partition("@")
    kind = _STATS.get(name)
    shares = broker.statistics.shares(kind, (topic, group) if group else key, request.now) if kind else None
    if shares is None:
        return request.command.answer(ResponseCode.SYSTEM_ERROR, remark=f"The stats <{name}> <{key}> not exist")
    spans = zip(("statsMinute", "statsHour", "statsDay"), shares, strict=True)
    return _reply(request, {span: {"avgpt": 0.0, "sum": share.sum, "tps": share.rate} for span, share in spans})


# Queues and groups


def _topic_stats(broker: "BrokerController", request: "BrokerRequest") -> "Steps[RemotingCommand]":
    topic = parse_header(TopicName, request.command.ext_fields).topic
    table = {
        MessageQueue(topic, broker.settings.broker_name, queue.queue_id): {
            "lastUpdateTimestamp": queue.last_timestamp,
            "maxOffset": queue.next_offset,
            "minOffset": queue.min_offset,
        }
        for queue in (yield from broker.statistics.topic(topic))
    }
    rate = broker.statistics.stored_rate(topic, request.now)
    return _reply(request, {"offsetTable": table, "topicPutTps": rate})


def _consume_stats(broker: "BrokerController", request: "BrokerRequest") -> "Steps[RemotingCommand]":
    header = parse_header(GetConsumeStats, request.command.ext_fields)
    topics = [topic for topic in (header.topic_list or header.topic or "").split(";") if topic]
    rate, queues = yield from broker.statistics.group(header.consumer_group, topics, request.now)
    return _reply(request, {"consumeTps": rate, "offsetTable": _progress(broker, queues)})


def _progress(broker: "BrokerController", queues: Iterable[QueueProgress]) -> dict[MessageQueue, Table]:
    return {
        MessageQueue(queue.topic, broker.settings.broker_name, queue.queue_id): {
            "brokerOffset": queue.next_offset,
            "consumerOffset": queue.consumed,
            "lastTimestamp": queue.last_timestamp,
            "pullOffset": queue.pulled,
        }
        for queue in queues
    }


def _broker_consume_stats(broker: "BrokerController", request: "BrokerRequest") -> "Steps[RemotingCommand]":
    is_order = parse_header(GetBrokerConsumeStats, request.command.ext_fields).is_order
    listed, total_diff, total_inflight = [], 0, 0
    for group, topics in (yield from broker.statistics.all_groups(request.now, only_ordered=is_order)):
        for topic in topics:
            total_diff += sum(queue.next_offset - queue.consumed for queue in topic.queues)
            total_inflight += sum(queue.pulled - queue.consumed for queue in topic.queues)
        stats = [{"consumeTps": topic.rate, "offsetTable": _progress(broker, topic.queues)} for topic in topics]
        listed.append({group: stats})
    body = {
        "brokerAddr": broker.address,
        "consumeStatsList": listed,
        "totalDiff": total_diff,
        "totalInflightDiff": total_inflight,
    }
    return _reply(request, body)


def _consume_time_span(broker: "BrokerController", request: "BrokerRequest") -> "Steps[RemotingCommand]":
    group, topic = parse_header(GroupAndTopic, request.command.ext_fields)
    spans = [
        {
            "consumeTimeStamp": span.consumed,
            "delayTime": span.delay_ms,
            "maxTimeStamp": span.last,
            "messageQueue": {"brokerName": broker.settings.broker_name, "queueId": span.queue_id, "topic": topic},
            "minTimeStamp": span.first,
        }
        for span in (yield from broker.statistics.time_spans(group, topic, request.now))
    ]
    return _reply(request, {"consumeTimeSpanSet": spans})


def _groups_of_topic(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    topic = parse_header(TopicName, request.command.ext_fields).topic
    return _reply(request, {"groupList": broker.statistics.groups_of_topic(topic)})


def _topics_of_group(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    group = parse_header(GroupName, request.command.ext_fields).group
    return request.command.answer(body=build_topic_list(broker.offsets.topics_of(group)))


def _subscription(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    group, topic = parse_header(GroupAndTopic, request.command.ext_fields)
    subscription = broker.statistics.subscription(group, topic)
    members = subscription_members(subscription) if subscription else None
    return _reply(request, {"group": group, "subscriptionData": members, "topic": topic})


def _query_queue(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    topic, queue_id, start, count, group = parse_header(QueryConsumeQueue, request.command.ext_fields)
    part = broker.statistics.units(group or "", topic or "", queue_id, start, count)
    units = [
        {
            "eval": False,  # filters examine messages here, not units
            "physicOffset": unit.physical_offset,
            "physicSize": unit.size,
            "tagsCode": unit.tags_code,
        }
        for unit in part.units
    ]
    filter_data = None
    if group:
        filter_data = "null" if part.subscription else f"{group}@{topic or ''} is not online!"
    body = {
        "filterData": filter_data,
        "maxQueueIndex": part.next_offset,
        "minQueueIndex": part.min_offset,
        "queueData": units,
        "subscriptionData": subscription_members(part.subscription) if part.subscription else None,
    }
    return _reply(request, body)


def _pulsar_subscriptions(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    states = itertools.chain.from_iterable(tell() for tell in broker.further_subscriptions)
    return request.command.answer(body=build_subscriptions(states))


# Messages


def _resume_check(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    message_id = parse_header(ResumeCheck, request.command.ext_fields).msg_id
    resume_check(broker.transactions, message_id, request.now)
    return request.command.answer()


# Cleaning


def _delete_expired_log(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    broker.store.retention.ask()
    return request.command.answer()


def _clean_unused_topics(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    broker.topic_requests.delete_unused_queues()
    return request.command.answer()


def _clean_expired_queues(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    broker.topic_requests.delete_expired_queues()
    return request.command.answer()


def _export_pop_records(_broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Answer that all records of pop consumers are in the store: they are never elsewhere."""
    return request.command.answer()


PROCESSORS: "dict[int, Processor]" = {
    RequestCode.UPDATE_BROKER_CONFIG: _update_config,
    RequestCode.GET_BROKER_CONFIG: _get_config,
    RequestCode.GET_BROKER_RUNTIME_INFO: _runtime_info,
    RequestCode.GET_ALL_CONSUMER_OFFSET: _all_consumer_offsets,
    RequestCode.GET_ALL_DELAY_OFFSET: _all_delay_offsets,
    RequestCode.GET_TOPIC_STATS_INFO: in_pieces(_topic_stats),
    RequestCode.GET_CONSUME_STATS: in_pieces(_consume_stats),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _groups_of_topic,
    RequestCode.QUERY_CONSUME_TIME_SPAN: in_pieces(_consume_time_span),
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: _clean_expired_queues,
    RequestCode.VIEW_BROKER_STATS_DATA: _view_stats,
    RequestCode.CLEAN_UNUSED_TOPIC: _clean_unused_topics,
    RequestCode.GET_BROKER_CONSUME_STATS: in_pieces(_broker_consume_stats),
    RequestCode.QUERY_CONSUME_QUEUE: _query_queue,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: _resume_check,
    RequestCode.DELETE_EXPIRED_COMMITLOG: _delete_expired_log,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _topics_of_group,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _subscription,
    RequestCode.POP_ROLLBACK: _export_pop_records,
    RequestCode.GET_PULSAR_SUBSCRIPTIONS: _pulsar_subscriptions,
}
