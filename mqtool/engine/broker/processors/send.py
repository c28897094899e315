"""Messages that producers send, and that consumers send back because they could not consume them.

(Rules: remoting.md 3.2, 4. RocketMQ: ``SendMessageProcessor``, ``AbstractSendMessageProcessor``.)
"""

import functools
from typing import TYPE_CHECKING

from mqtool.engine.broker.limits import MAX_TIMERS
from mqtool.engine.broker.operations.refusal import OperationRefusedError
from mqtool.engine.broker.operations.reply import Replied
from mqtool.engine.broker.operations.send import NewTopic
from mqtool.engine.broker.processors.flushed import acknowledged
from mqtool.engine.broker.processors.refusals import CODES
from mqtool.engine.store.append_result import AppendResult, PutStatus
from mqtool.formats.codes import RequestCode, ResponseCode, Version
from mqtool.formats.headers import Send, SendBack, parse_header
from mqtool.formats.new_message import Host, NewMessage
from mqtool.formats.property_names import MSG_REGION, TRACE_ON
from mqtool.formats.recall import build_handle

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import BrokerController
    from mqtool.engine.broker.processors.request import Answer, BrokerRequest, Processor


_CODES = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.WHEEL_TIMER_FLOW_CONTROL: ResponseCode.SYSTEM_ERROR,
}
_REMARKS = {
    PutStatus.MESSAGE_ILLEGAL: "the message is illegal: its body or its topic is too long, it cannot be in a batch, "
    "the batch is too large, or its delivery time is not a number or too far ahead",
    PutStatus.PROPERTIES_SIZE_EXCEEDED: "the message is illegal: its properties take more than 32767 bytes",
    PutStatus.WHEEL_TIMER_FLOW_CONTROL: f"there are already {MAX_TIMERS:,} timer messages, the maximum: retry later",
}


_WITH_MAX_TIMES = int(Version.V3_4_9)
_PUT_OK = PutStatus.PUT_OK  # faster than an attribute of an enum
_new_tuple = tuple.__new__  # creates a named tuple in a third of the time

# Sending


def _send(broker: "BrokerController", request: "BrokerRequest", *, short: bool) -> "Answer":
    command, session, now = request
    header = parse_header(Send, command.ext_fields, short=short)
    message = _message(header, command.body, session.born_host)
    like = _like(header)
    most = _most_times(header.max_reconsume_times, command.version)
    try:
        sent = broker.sends.send(message, like, now, is_batch=header.batch, most_times=most)
    except OperationRefusedError as refused:
        return command.answer(CODES[refused.reason], _marks(broker), remark=refused.text)
    result, queue_id, key, recall_handle, is_inner_batch = sent
    more: dict[str, str] | None = None
    if recall_handle is not None:
        more = {"recallHandle": build_handle(recall_handle)}
    elif is_inner_batch:
        more = {"batchUniqId": key.decode("utf-8", "replace")}  # shows clients that all have one id
    return _answer(broker, request, result, queue_id, key, more)


def _like(header: Send) -> NewTopic:
    topic, queue_count, is_of_unit = header.default_topic, header.default_topic_queue_nums, header.unit_mode
    return _new_tuple(NewTopic, (topic, queue_count, is_of_unit))


def _message(header: Send, body: bytes, born_host: Host) -> NewMessage:
    return NewMessage(
        header.topic,
        header.queue_id,
        body,
        header.properties.encode("utf-8", "replace"),
        header.flag,
        header.sys_flag,
        header.born_timestamp,
        born_host,
        reconsume_times=header.reconsume_times,
    )


def _most_times(wanted: int | None, version: int) -> int | None:
    return None if version < _WITH_MAX_TIMES else wanted


def _answer(
    broker: "BrokerController",
    request: "BrokerRequest",
    result: AppendResult,
    queue_id: int,
    key: bytes,
    more: dict[str, str] | None = None,
) -> "Answer":
    """Return the answer to a send, unless it must wait for the disk."""
    command, fields = request.command, _marks(broker)
    if result.status is not _PUT_OK:
        remark = _REMARKS.get(result.status) or broker.store.refusal or "service not available now"
        return command.answer(_CODES[result.status], fields, remark=remark)
    fields["msgId"] = result.message_id
    fields["queueId"] = str(queue_id)
    fields["queueOffset"] = str(result.queue_offset)
    if key:
        fields["transactionId"] = key.decode("utf-8", "replace")
    if more:
        fields |= more
    answer = command.answer(ext_fields=fields)
    return acknowledged(broker, request, answer, result.flush_offset) if result.flush_offset else answer


def _marks(broker: "BrokerController") -> dict[str, str]:
    settings = broker.settings
    return {MSG_REGION: settings.region, TRACE_ON: "true" if settings.trace_on else "false"}


# Replies


def _reply(broker: "BrokerController", request: "BrokerRequest", *, short: bool) -> "Answer":
    """Push a reply to the requesting client; when that client has it, store it and answer the replier."""
    command, session, now = request
    header = parse_header(Send, command.ext_fields, short=short)
    message = _message(header, command.body, session.born_host)
    like = _like(header)

    def then(replied: Replied | OperationRefusedError, now: int) -> None:
        if (answer := _replied(broker, request._replace(now=now), replied, header.queue_id)) is not None:
            session.reply(answer, now)

    try:
        broker.replies.reply(message, like, header.producer_group, now, then)
    except OperationRefusedError as refused:
        return command.answer(CODES[refused.reason], _marks(broker), remark=refused.text)
    return None


def _replied(
    broker: "BrokerController", request: "BrokerRequest", replied: Replied | OperationRefusedError, queue_id: int
) -> "Answer":
    """Return the answer to the replier, unless it must wait for the disk."""
    command = request.command
    if isinstance(replied, OperationRefusedError):
        return command.answer(CODES[replied.reason], _marks(broker), remark=replied.text)
    if replied.result is None or replied.result.status is not PutStatus.PUT_OK:
        return command.answer(ext_fields={**_marks(broker), "msgId": "0", "queueId": str(queue_id), "queueOffset": "0"})
    return _answer(broker, request, replied.result, replied.queue_id, b"")


# Sending back


def _send_back(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    command, now = request.command, request.now
    header = parse_header(SendBack, command.ext_fields)
    most = _most_times(header.max_reconsume_times, command.version)
    result = broker.sends.send_back(
        header.group, header.offset, header.delay_level, now, is_of_unit=header.unit_mode, most_times=most
    )
    if result is None:
        return command.answer()
    if result.status is not PutStatus.PUT_OK:
        return command.answer(ResponseCode.SYSTEM_ERROR, remark=result.status)
    return acknowledged(broker, request, command.answer(), result.flush_offset)


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
