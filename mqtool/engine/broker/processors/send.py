"""What producers send, and what consumers send back because they could not consume it.

(Rules: remoting.md 3.2, 4. RocketMQ: ``SendMessageProcessor``, ``AbstractSendMessageProcessor``.)
"""

import functools
import re
from typing import TYPE_CHECKING

from mqtool.engine.broker.delayed import DELAY
from mqtool.engine.broker.limits import MOST_QUEUES_IN_ALL, MOST_TIMERS, MOST_TOPICS, check_room
from mqtool.engine.broker.operations.refusal import Reason, RefusedError
from mqtool.engine.broker.processors.refusals import CODES, refusal
from mqtool.engine.broker.processors.session import remoting_session
from mqtool.engine.broker.topics import fault_of_name, may_be_sent_to
from mqtool.engine.store.append_result import AppendResult, PutStatus
from mqtool.errors import FormatError, NotFoundError
from mqtool.formats.codes import Perm, RequestCode, ResponseCode, SysFlag, Version
from mqtool.formats.config_tables import SubscriptionGroup, TopicConfig
from mqtool.formats.headers import PushReply, Send, SendBack, build_header, parse_header
from mqtool.formats.hosts import host_text, offset_message_id
from mqtool.formats.new_message import NewMessage, split_batch
from mqtool.formats.properties import (
    add_property,
    build_properties,
    find_property,
    parse_properties,
    probe_of,
)
from mqtool.formats.recall import RecallHandle, build_handle
from mqtool.formats.remoting import RemotingCommand
from mqtool.formats.stored_message import parse_stored
from mqtool.formats.topics import DEAD_LETTER_PREFIX, RETRY_PREFIX, TIMER_TOPIC

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import Broker
    from mqtool.engine.broker.processors.request import Answer, Processor, Request

UNIQUE_KEY = "UNIQ_KEY"
_UNIQUE_KEY, _TRANSACTION = probe_of(UNIQUE_KEY), probe_of("TRAN_MSG")
_RETRY_TOPIC = probe_of("RETRY_TOPIC")
_ADDED = ("MSG_REGION", "TRACE_ON", "CLUSTER")
_TO_BE_REPLACED = tuple(name.encode() for name in (*_ADDED, "POP_CK"))
_MAY_BE_SENT_AGAIN = re.compile(b"|".join(_TO_BE_REPLACED))
_TAIL_SEPARATOR = b"\x02"
_MULTI_TAG = "MULTI_TAG"
_MOST_OF_BATCH_TOPIC = 127
_FIRST_RETRY_LEVEL = 3
_REPLY_TO, _TIMER_OUT = probe_of("REPLY_TO_CLIENT"), probe_of("TIMER_OUT_MS")
_PUSH_MS = 10_000
"""How long a client may take to acknowledge a reply."""
_WRITE = int(Perm.WRITE)  # an operator of an enum takes a microsecond

_CODES = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.WHEEL_TIMER_FLOW_CONTROL: ResponseCode.SYSTEM_ERROR,
}
_REMARKS = {
    PutStatus.MESSAGE_ILLEGAL: "the message is illegal: its body or its topic is too long, or it cannot be in a batch",
    PutStatus.PROPERTIES_SIZE_EXCEEDED: "the message is illegal: its properties take more than 32767 bytes",
    PutStatus.WHEEL_TIMER_FLOW_CONTROL: f"{MOST_TIMERS:,} timer messages wait, and no more are kept: try again later",
}


# Sending


def _send(broker: "Broker", request: "Request", *, short: bool) -> "Answer":
    command = request.command
    header = parse_header(Send, command.ext_fields, short=short)
    try:
        config = _topic_of(broker, header, request.now)
        message = _message(broker, header, config, request)
    except RefusedError as refused:
        return command.answer(CODES[refused.reason], _marks(broker), remark=refused.text)
    queue_id, store = message.queue_id, broker.store
    if store.queue(header.topic, queue_id) is None:
        check_room(store.queue_count, 1, MOST_QUEUES_IN_ALL, "queues")
    key = find_property(message.properties, _UNIQUE_KEY)
    more: dict[str, str] = {}
    if header.batch and config.is_batch and key:
        more["batchUniqId"] = key.decode("utf-8", "replace")  # by this a client knows that all have one id
        result = _append_inner_batch(broker, message, request.now)
    elif header.batch:
        result = _append_batch(broker, message, request.now)
    else:
        if not key:
            unique_key = broker.new_unique_key(request.now)
            key = unique_key.encode()
            message.properties = add_property(message.properties, UNIQUE_KEY, unique_key)
        if header.topic.startswith(RETRY_PREFIX):
            try:
                _retry_or_bury(broker, header, message, request)
            except RefusedError as refused:
                return command.answer(CODES[refused.reason], _marks(broker), remark=refused.text)
        result = broker.intake.put(message, request.now)
        if message.topic == TIMER_TOPIC and result.status is PutStatus.PUT_OK:
            more = _recall_handle(broker, header.topic, message, key)
    return _answer(broker, request, result, queue_id, key, more)


def _recall_handle(broker: "Broker", topic: str, message: NewMessage, key: bytes) -> dict[str, str]:
    """Return the field of an answer with which the producer of a timer message can recall it."""
    by = int(find_property(message.properties, _TIMER_OUT)) + 1  # so that it is the same second again
    handle = RecallHandle(topic, broker.settings.broker_name, by, key.decode("utf-8", "replace"))
    return {"recallHandle": build_handle(handle)}


def _topic_of(broker: "Broker", header: Send, now: int) -> TopicConfig:
    """Return the topic that is sent to, made if need be.

    Raises:
        RefusedError: nothing may be sent to it.
    """
    topic, settings = header.topic, broker.settings
    config = broker.topics.get(topic)
    if not settings.perm & _WRITE and config is not None and config.order:
        raise RefusedError(Reason.NOT_ALLOWED, f"the broker[{broker.address}] sending message is forbidden")
    if not may_be_sent_to(topic):
        raise RefusedError(Reason.NOT_ALLOWED, f"Sending message to topic[{topic}] is forbidden.")
    if config is None:
        if fault := fault_of_name(topic):
            raise RefusedError(Reason.BAD_ARGUMENT, fault)
        config = broker.topics.create_by_sending(
            topic, header.default_topic, header.default_topic_queue_nums, header.unit_mode, now
        )
        if config is None and topic.startswith(RETRY_PREFIX):
            check_room(len(broker.topics.configs), 1, MOST_TOPICS, "topics")
            config = broker.topics.of_group(topic, 1, header.unit_mode, now)
        if config is None:
            raise RefusedError(Reason.NO_TOPIC, f"topic[{topic}] not exist, apply first please!")
    return config


def _message(broker: "Broker", header: Send, config: TopicConfig, request: "Request") -> NewMessage:
    """Return the message that a request sends, as it is to be stored.

    Raises:
        RefusedError: it cannot be stored so.
    """
    queue_id = header.queue_id
    if queue_id >= max(config.write_queue_count, config.read_queue_count):
        raise RefusedError(
            Reason.BAD_ARGUMENT, f"request queueId[{queue_id}] is illegal, {config.topic} has fewer queues"
        )
    if queue_id < 0:
        queue_id = next(broker.rotation) % max(1, config.write_queue_count)
    properties = header.properties.encode("utf-8", "replace")
    if broker.settings.refuse_transactions and find_property(properties, _TRANSACTION) == b"true":
        raise RefusedError(Reason.NOT_ALLOWED, f"the broker[{broker.address}] sending transaction message is forbidden")
    sys_flag = header.sys_flag
    if config.filter_type == _MULTI_TAG:
        sys_flag |= SysFlag.MULTI_TAGS
    return NewMessage(
        header.topic,
        queue_id,
        request.command.body,
        _marked(broker, properties),
        header.flag,
        sys_flag,
        header.born_timestamp,
        request.session.born_host,
        broker.store_host,
        header.reconsume_times,
    )


def _marked(broker: "Broker", properties: bytes) -> bytes:
    """Return the properties of a message with what the broker adds to each."""
    settings = broker.settings
    marks = _text_of_marks(settings.region, settings.trace_on, settings.cluster_name)
    if _MAY_BE_SENT_AGAIN.search(properties):  # one that was consumed
        pairs = parse_properties(properties)
        kept = {one: value for one, value in pairs.items() if one.encode() not in _TO_BE_REPLACED}
        return build_properties(kept) + marks
    if properties and not properties.endswith(_TAIL_SEPARATOR):
        properties += _TAIL_SEPARATOR
    return properties + marks


@functools.cache
def _text_of_marks(region: str, trace_on: bool, cluster: str) -> bytes:
    return build_properties(dict(zip(_ADDED, (region, str(trace_on).lower(), cluster), strict=True)))


def _append_batch(broker: "Broker", message: NewMessage, now: int) -> AppendResult:
    if message.topic.startswith(RETRY_PREFIX) or len(message.topic) > _MOST_OF_BATCH_TOPIC:
        return AppendResult(PutStatus.MESSAGE_ILLEGAL)
    return broker.store.append_batch(message, now)


def _append_inner_batch(broker: "Broker", message: NewMessage, now: int) -> AppendResult:
    """Store a batch as one record: what topics with queues for that get from clients of 5.x."""
    try:
        count = len(split_batch(message))
    except FormatError:
        return AppendResult(PutStatus.MESSAGE_ILLEGAL)
    message.properties = add_property(message.properties, "INNER_NUM", str(count))
    message.sys_flag |= SysFlag.INNER_BATCH
    return broker.store.append(message, now)


def _answer(
    broker: "Broker",
    request: "Request",
    result: AppendResult,
    queue_id: int,
    key: bytes,
    more: dict[str, str] | None = None,
) -> "Answer":
    """Return the answer to a send, unless it must wait for the disk."""
    command = request.command
    fields = _marks(broker)
    if result.status is not PutStatus.PUT_OK:
        remark = _REMARKS.get(result.status) or broker.store.refusal or "service not available now"
        return command.answer(_CODES[result.status], fields, remark=remark)
    fields["msgId"] = result.message_id
    fields["queueId"] = str(queue_id)
    fields["queueOffset"] = str(result.queue_offset)
    if key:
        fields["transactionId"] = key.decode("utf-8", "replace")
    if more:
        fields |= more
    return acknowledged(broker, request, command.answer(ext_fields=fields), result)


def acknowledged(broker: "Broker", request: "Request", answer: RemotingCommand, result: AppendResult) -> "Answer":
    """Return the answer to a request that has stored a message, nothing yet where it must wait for the disk."""
    if result.flush_offset and result.flush_offset > broker.store.flushed_offset:
        when_flushed(broker, request, answer, result.flush_offset)
        return None
    return answer


def when_flushed(broker: "Broker", request: "Request", answer: RemotingCommand, flush_offset: int) -> None:
    """Have a request answered when the log is flushed up to an address, or that takes too long."""
    session, changes = request.session, broker.saves.changes_of_request

    def then(is_flushed: bool, now: int) -> None:
        if not is_flushed:
            answer.code = ResponseCode.FLUSH_DISK_TIMEOUT
        session.reply_when_saved(broker.saves, request.command, answer, changes, now)

    broker.awaited_flushes.wait(flush_offset, session, then, request.now)


def _marks(broker: "Broker") -> dict[str, str]:
    settings = broker.settings
    return {"MSG_REGION": settings.region, "TRACE_ON": "true" if settings.trace_on else "false"}


# Replies


def _reply(broker: "Broker", request: "Request", *, short: bool) -> "Answer":
    """Push a reply to the client that has asked; keep it, and answer who replies, when that client has it."""
    command, now = request.command, request.now
    header = parse_header(Send, command.ext_fields, short=short)
    try:
        message = _message(broker, header, _topic_of(broker, header, now), request)
    except RefusedError as refused:
        return command.answer(CODES[refused.reason], _marks(broker), remark=refused.text)
    asking = find_property(message.properties, _REPLY_TO).decode("utf-8", "replace")
    client = broker.clients.producer(asking)
    if client is None:
        remark = f"push reply message fail, channel of <{asking}> not found."
        return command.answer(ResponseCode.SYSTEM_ERROR, _marks(broker), remark=remark)

    def pushed(answer: RemotingCommand | None, now: int) -> None:
        if (told := told_of(answer, now)) is not None:
            request.session.reply(told, now)

    def told_of(answer: RemotingCommand | None, now: int) -> "Answer":
        result = broker.intake.put(message, now) if broker.settings.store_replies else None
        if answer is None or answer.code:
            remark = f"push reply message to <{asking}> fail."
            return command.answer(ResponseCode.SYSTEM_ERROR, _marks(broker), remark=remark)
        if result is None or result.status is not PutStatus.PUT_OK:
            fields = {**_marks(broker), "msgId": "0", "queueId": str(header.queue_id), "queueOffset": "0"}
            return command.answer(ext_fields=fields)
        return _answer(broker, request._replace(now=now), result, message.queue_id, b"")

    push = RemotingCommand(
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
        ext_fields=build_header(_push(broker, header, message, now)),
        body=message.body,
    )
    remoting_session(client.session).call(push, now + _PUSH_MS, pushed)
    return None


def _push(broker: "Broker", header: Send, message: NewMessage, now: int) -> PushReply:
    return PushReply(
        header.producer_group,
        header.topic,
        header.default_topic,
        header.default_topic_queue_nums,
        message.queue_id,
        message.sys_flag,
        header.born_timestamp,
        header.flag,
        host_text(*message.born_host),
        broker.address,
        now,
        add_property(message.properties, "PUSH_REPLY_TIME", str(now)).decode(),
        header.reconsume_times,
        header.unit_mode,
    )


# Sending back


def _retry_or_bury(broker: "Broker", header: Send, message: NewMessage, request: "Request") -> None:
    """Have a message that was consumed too often, or is to be consumed in order, go to the dead letters of its group.

    Raises:
        RefusedError: there is no such group.
    """
    name = header.topic.removeprefix(RETRY_PREFIX)
    group = _group(broker, name, request.now)
    most = _most_times(group, header.max_reconsume_times, request.command.version)
    if header.reconsume_times > most or broker.locks.is_any_held(name, request.now):
        _bury(broker, message, name, header.unit_mode, request.now)
        pairs = parse_properties(message.properties)
        message.properties = build_properties(pairs | {DELAY: "-1"})


def _send_back(broker: "Broker", request: "Request") -> "Answer":
    command, now = request.command, request.now
    header = parse_header(SendBack, command.ext_fields)
    try:
        group = _group(broker, header.group, now)
        if not broker.settings.perm & _WRITE:
            raise RefusedError(Reason.NOT_ALLOWED, f"the broker[{broker.address}] sending message is forbidden")
        if group.retry_queue_count <= 0:
            return command.answer()
        message = _to_be_retried(broker, header, group, request)
    except RefusedError as refused:
        return refusal(command, refused)
    result = broker.intake.put(message, now)
    if result.status is not PutStatus.PUT_OK:
        return command.answer(ResponseCode.SYSTEM_ERROR, remark=result.status)
    broker.figures.sent_back(find_property(message.properties, _RETRY_TOPIC).decode("utf-8", "replace"), header.group)
    return acknowledged(broker, request, command.answer(), result)


def _to_be_retried(broker: "Broker", header: SendBack, group: SubscriptionGroup, request: "Request") -> NewMessage:
    """Return the copy of a message that its group will consume again, or that goes to its dead letters."""
    now = request.now
    retry_topic = RETRY_PREFIX + header.group
    config = broker.topics.of_group(retry_topic, group.retry_queue_count, header.unit_mode, now)
    if not config.perm & _WRITE:
        raise RefusedError(Reason.NOT_ALLOWED, f"the topic[{retry_topic}] sending message is forbidden")
    try:
        message = parse_stored(broker.store.log.record(header.offset)).message
    except (NotFoundError, FormatError):
        raise RefusedError(Reason.NOT_POSSIBLE, f"look message by offset failed, {header.offset}") from None
    pairs = parse_properties(message.properties)
    pairs.setdefault("RETRY_TOPIC", message.topic)
    pairs.setdefault("ORIGIN_MESSAGE_ID", offset_message_id(host_text(*message.store_host), header.offset))
    pairs["WAIT"] = "false"
    times = message.reconsume_times
    message.topic, message.queue_id = retry_topic, next(broker.rotation) % group.retry_queue_count
    most = _most_times(group, header.max_reconsume_times, request.command.version)
    if times >= most or header.delay_level < 0:
        _bury(broker, message, header.group, header.unit_mode, now)
        pairs[DELAY] = "0"
    else:
        pairs[DELAY] = str(header.delay_level or _FIRST_RETRY_LEVEL + times)
    message.properties = build_properties(pairs)
    message.reconsume_times = times + 1
    message.store_host = broker.store_host
    return message


def _group(broker: "Broker", name: str, now: int) -> SubscriptionGroup:
    group = broker.groups.find(name, now)
    if group is None:
        raise RefusedError(Reason.NO_GROUP, f"subscription group not exist, {name}")
    return group


def _most_times(group: SubscriptionGroup, wanted: int | None, version: int) -> int:
    return group.retry_max_times if wanted is None or version < Version.V3_4_9 else wanted


def _bury(broker: "Broker", message: NewMessage, group: str, is_of_unit: bool, now: int) -> None:
    topic = DEAD_LETTER_PREFIX + group
    broker.topics.of_group(topic, 1, is_of_unit, now)
    message.topic, message.queue_id = topic, 0


_send_by_long_names = functools.partial(_send, short=False)
_send_by_short_names = functools.partial(_send, short=True)
_reply_by_long_names = functools.partial(_reply, short=False)
_reply_by_short_names = functools.partial(_reply, short=True)

PROCESSORS: "dict[int, Processor]" = {
    RequestCode.SEND_MESSAGE: _send_by_long_names,
    RequestCode.SEND_MESSAGE_V2: _send_by_short_names,
    RequestCode.SEND_BATCH_MESSAGE: _send_by_short_names,
    RequestCode.SEND_REPLY_MESSAGE: _reply_by_long_names,
    RequestCode.SEND_REPLY_MESSAGE_V2: _reply_by_short_names,
    RequestCode.CONSUMER_SEND_MSG_BACK: _send_back,
}
