"""Pops and related requests: acknowledgements, changes of the invisible time, peeks, notifications.

(Rules: remoting.md 3.4. RocketMQ: ``PopMessageProcessor``, ``AckMessageProcessor``, ``ChangeInvisibleTimeProcessor``,
``PeekMessageProcessor``, ``NotificationProcessor``, ``PollingInfoProcessor``.)
"""

from typing import TYPE_CHECKING

from mqtool.engine.broker.operations.acknowledge import Done
from mqtool.engine.broker.operations.pop import News, NewsRequest
from mqtool.engine.broker.operations.refusal import OperationRefusedError
from mqtool.engine.broker.pops import PoppedMessage, PopRequest, Taken
from mqtool.engine.broker.processors.authentication import keep_checking
from mqtool.engine.broker.processors.flushed import acknowledged
from mqtool.engine.broker.processors.protocol_texts import FOUND, NO_MESSAGE_IN_QUEUE
from mqtool.engine.broker.processors.refusals import refusal
from mqtool.errors import FormatError
from mqtool.formats.bodies import parse_body
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.config_tables import Table
from mqtool.formats.headers import (
    Ack,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    Notification,
    NotificationResponse,
    Peek,
    PollingInfo,
    PollingInfoResponse,
    Pop,
    PopResponse,
    build_header,
    parse_header,
)
from mqtool.formats.pop import Acknowledgement, flagged_topic, parse_bits, topic_flag
from mqtool.formats.remoting import RemotingCommand

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import BrokerController
    from mqtool.engine.broker.processors.request import Answer, BrokerRequest, Processor


# Taking messages


def pop(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Answer with messages, or let the request wait for some."""
    command, session, now = request
    header = parse_header(Pop, command.ext_fields)
    wanted = PopRequest(
        header.consumer_group,
        header.topic,
        header.queue_id,
        header.max_msg_nums,
        header.invisible_time,
        header.init_mode,
        header.order,
        header.attempt_id,
    )
    try:
        popped = broker.pop_requests.pop(
            session,
            wanted,
            now,
            asked_at=header.born_time or now,
            wait_ms=header.poll_time,
            kind=header.exp_type,
            expression=header.exp,
        )
    except OperationRefusedError as refused:
        return refusal(command, refused, PopResponse(0, 0, 0, 0))
    if isinstance(popped, Taken):
        return _taken(broker, request, wanted, popped)

    def give(popped: Taken | OperationRefusedError, now: int) -> None:
        if isinstance(popped, OperationRefusedError):
            session.reply(refusal(command, popped, PopResponse(0, 0, 0, 0)), now)
        elif (answer := _taken(broker, request, wanted, popped)) is not None:
            session.reply(answer, now)

    popped.then = give
    keep_checking(broker.access, request, popped)
    return None


def _taken(broker: "BrokerController", request: "BrokerRequest", wanted: PopRequest, popped: Taken) -> "Answer":
    """Return the answer to a pop, unless it must wait for the disk."""
    command = request.command
    starts, offsets, counts = [], [], []
    for topic, queue_id, start, all_offsets, all_counts in popped.queues:
        place = f"{topic_flag(topic)} {queue_id}"
        starts.append(f"{place} {start}")
        offsets.append(f"{place} {','.join(map(str, all_offsets))}")
        if wanted.is_in_order:
            flag = topic_flag(topic)
            counts += [f"{flag} qo{queue_id}%{offset} {count}" for offset, count in all_counts.items()]
            counts.append(f"{place} {min(all_counts.values()) if len(all_counts) == len(all_offsets) else 0}")
    fields = build_header(
        PopResponse(
            popped.pop_time,
            wanted.invisible_ms,
            popped.revive_queue_id,
            popped.rest,
            ";".join(starts),
            ";".join(offsets),
            ";".join(counts) if wanted.is_in_order else None,
        )
    )
    if not popped.parts:
        code = ResponseCode.POLLING_FULL if popped.is_full else ResponseCode.POLLING_TIMEOUT
        return command.answer(code, fields, remark=NO_MESSAGE_IN_QUEUE)
    answer = _found(command, fields, popped.parts)
    return acknowledged(broker, request._replace(now=popped.pop_time), answer, popped.flush_offset)


def _found(command: RemotingCommand, fields: dict[str, str], parts: "list[memoryview | bytes]") -> RemotingCommand:
    answer = command.answer(0, fields, remark=FOUND)
    answer.parts = parts
    return answer


def peek(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Answer with messages, without taking them."""
    command = request.command
    topic, queue_id, most, group = parse_header(Peek, command.ext_fields)
    try:
        parts, rest = broker.pop_requests.peek(group, topic, queue_id, most, request.now)
    except OperationRefusedError as refused:
        return refusal(command, refused, PopResponse(0, 0, 0, 0))
    fields = build_header(PopResponse(0, 0, 0, rest))
    if not parts:
        return command.answer(ResponseCode.PULL_NOT_FOUND, fields, remark=NO_MESSAGE_IN_QUEUE)
    return _found(command, fields, [*parts])


# Notifications


def notification(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Return whether there are messages, as soon as there are any."""
    command, session, now = request
    header = parse_header(Notification, command.ext_fields)
    wanted = NewsRequest(header.consumer_group, header.topic, header.queue_id, header.order, header.attempt_id)
    try:
        news = broker.pop_requests.news(session, wanted, (header.born_time or now) + header.poll_time, now)
    except OperationRefusedError as refused:
        return refusal(command, refused, NotificationResponse(False, False))
    if isinstance(news, News):
        return _news(command, news)
    news.then = lambda news, now: session.reply(_news(command, news), now)
    keep_checking(broker.access, request, news)
    return None


def _news(command: RemotingCommand, news: News) -> RemotingCommand:
    return command.answer(0, build_header(NotificationResponse(news.has_messages, news.is_full)))


def polling_info(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Return how many pops wait."""
    command = request.command
    group, topic, queue_id = parse_header(PollingInfo, command.ext_fields)
    try:
        count = broker.pop_requests.waiting_count(group, topic, queue_id, request.now)
    except OperationRefusedError as refused:
        return refusal(command, refused, PollingInfoResponse(0))
    return command.answer(0, build_header(PollingInfoResponse(count)))


# Acknowledgements


def ack(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Acknowledge a message."""
    command = request.command
    group, topic, queue_id, receipt, offset = parse_header(Ack, command.ext_fields)
    popped = PoppedMessage(group, topic, queue_id, offset)
    flush_offset = broker.acknowledgements.acknowledge(popped, receipt, request.now)
    return acknowledged(broker, request, command.answer(), flush_offset)


def batch_ack(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Acknowledge messages of several pops."""
    command = request.command
    body = parse_body(command.body) if command.body else {}
    listed = body.get("acks") or []
    if not isinstance(listed, list) or not all(isinstance(members, dict) for members in listed):
        raise FormatError("acks is not a list of acknowledgements", offset=0)
    batch = [_parse_batch(members, str(body.get("brokerName") or "")) for members in listed]
    if not batch:
        return command.answer(ResponseCode.NO_MESSAGE)
    flush_offset = broker.acknowledgements.acknowledge_all(batch, request.now)
    return acknowledged(broker, request, command.answer(), flush_offset)


def _parse_batch(members: Table, broker_name: str) -> Done:
    """Return the acknowledgements of one member of a body."""
    try:
        group, start, pop_time = str(members["c"]), int(members["so"]), int(members["pt"])
        topic = flagged_topic(str(members["t"]), group, str(members.get("r") or "0"))
        offsets = tuple(start + place for place in parse_bits(members["b"]))
        messages = Acknowledgement(group, topic, int(members["q"]), start, pop_time, broker_name, offsets)
        return Done(messages, int(members["rq"]), pop_time + int(members["it"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FormatError("a batch acknowledgement is incomplete", offset=0) from error


def change_invisible_time(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Hide a message for a new time."""
    command = request.command
    header = parse_header(ChangeInvisibleTime, command.ext_fields)
    popped = PoppedMessage(header.consumer_group, header.topic, header.queue_id, header.offset)
    try:
        hidden = broker.acknowledgements.hide(
            popped, header.extra_info, header.invisible_time, request.now, is_suspended=bool(header.suspend)
        )
    except OperationRefusedError as refused:
        return refusal(command, refused, ChangeInvisibleTimeResponse(0, 0, 0))
    *fields, flush_offset = hidden
    answer = command.answer(0, build_header(ChangeInvisibleTimeResponse(*fields)))
    return acknowledged(broker, request, answer, flush_offset)


PROCESSORS: "dict[int, Processor]" = {
    RequestCode.POP_MESSAGE: pop,
    RequestCode.ACK_MESSAGE: ack,
    RequestCode.BATCH_ACK_MESSAGE: batch_ack,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: change_invisible_time,
    RequestCode.PEEK_MESSAGE: peek,
    RequestCode.NOTIFICATION: notification,
    RequestCode.POLLING_INFO: polling_info,
}
