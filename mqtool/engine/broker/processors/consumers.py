"""Consumers: how far they have read, resets, and questions that are passed on to them.

(Rules: remoting.md 3.2, 3.7. RocketMQ: ``ConsumerManageProcessor``, ``AdminBrokerProcessor``, ``Broker2Client``.)
"""

from typing import TYPE_CHECKING, Any

from mqtool.engine.broker.operations.offsets import Reset
from mqtool.engine.broker.processors.protocol_texts import PREVIOUSLY_RESET
from mqtool.engine.broker.processors.session import Then, by_queue_of, remoting_session
from mqtool.engine.store.time_search import Boundary
from mqtool.errors import FormatError, NotFoundError
from mqtool.formats.bodies import build_body, by_queue, parse_body
from mqtool.formats.codes import RequestCode, ResponseCode, Version
from mqtool.formats.headers import (
    CloneGroupOffset,
    ConsumeDirectly,
    GetConsumerStatus,
    GetRunningInfo,
    OffsetResponse,
    QueryConsumerOffset,
    QueryCorrectionOffset,
    Queue,
    ResetOffset,
    SearchOffset,
    TimestampResponse,
    UpdateConsumerOffset,
    build_header,
    parse_header,
)
from mqtool.formats.hosts import parse_message_id
from mqtool.formats.remoting import RemotingCommand

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import Broker
    from mqtool.engine.broker.processors.request import Answer, Processor, Request

CALL_MS = 10_000
"""How long a consumer may take for an answer that is passed on."""


# Offsets


def query_offset(broker: "Broker", request: "Request") -> "Answer":
    """Return what a group reads next of a queue."""
    group, topic, queue_id, begins_at_zero = parse_header(QueryConsumerOffset, request.command.ext_fields)
    offset = broker.offset_requests.consumed(group, topic, queue_id, begins_at_zero=begins_at_zero is not False)
    return request.command.answer(ext_fields=build_header(OffsetResponse(offset)))


def update_offset(broker: "Broker", request: "Request") -> "Answer":
    """Take what a group reads next of a queue."""
    counts = broker.offset_requests.commit(*parse_header(UpdateConsumerOffset, request.command.ext_fields))
    return request.command.answer(remark=None if counts else PREVIOUSLY_RESET)


def reset(broker: "Broker", request: "Request") -> "Answer":
    """Set what a group reads next of one queue or all queues of a topic."""
    header = parse_header(ResetOffset, request.command.ext_fields)
    offsets = broker.offset_requests.reset(
        Reset(header.group, header.topic, header.timestamp, header.is_force, header.queue_id, header.offset)
    )
    table = by_queue_of(header.topic, broker.settings.broker_name, offsets)
    return request.command.answer(body=build_body({"offsetTable": table}))


def clone_offsets(broker: "Broker", request: "Request") -> "Answer":
    """Have a group go on where another is."""
    source, target, topic, _ = parse_header(CloneGroupOffset, request.command.ext_fields)
    broker.offset_requests.clone(source, target, topic)
    return request.command.answer()


def correction_offsets(broker: "Broker", request: "Request") -> "Answer":
    """Tell of each queue how far all groups have read it."""
    topic, group, left_out = parse_header(QueryCorrectionOffset, request.command.ext_fields)
    least = broker.offset_requests.least(topic, group, (left_out or "").split(","))
    return request.command.answer(body=build_body({"correctionOffsets": least}))


def search_offset(broker: "Broker", request: "Request") -> "Answer":
    """Return the offset of a time in a queue."""
    topic, queue_id, timestamp, kind = parse_header(SearchOffset, request.command.ext_fields)
    boundary = Boundary.UPPER if (kind or "").lower() == "upper" else Boundary.LOWER
    offset = broker.offset_requests.offset_at(topic, queue_id, timestamp, boundary)
    return request.command.answer(ext_fields=build_header(OffsetResponse(offset)))


def max_offset(broker: "Broker", request: "Request") -> "Answer":
    """Return the end of a queue."""
    topic, queue_id, _ = parse_header(Queue, request.command.ext_fields)
    offset = broker.offset_requests.next_offset(topic, queue_id)
    return request.command.answer(ext_fields=build_header(OffsetResponse(offset)))


def min_offset(broker: "Broker", request: "Request") -> "Answer":
    """Return the beginning of a queue."""
    topic, queue_id, _ = parse_header(Queue, request.command.ext_fields)
    offset = broker.offset_requests.min_offset(topic, queue_id)
    return request.command.answer(ext_fields=build_header(OffsetResponse(offset)))


def earliest_timestamp(broker: "Broker", request: "Request") -> "Answer":
    """Return when the first message of a queue was stored."""
    topic, queue_id, _ = parse_header(Queue, request.command.ext_fields)
    timestamp = broker.offset_requests.earliest_timestamp(topic, queue_id)
    return request.command.answer(ext_fields=build_header(TimestampResponse(timestamp)))


# Questions that are passed on


def running_info(broker: "Broker", request: "Request") -> "Answer":
    """Let a consumer tell how it is doing."""
    header = parse_header(GetRunningInfo, request.command.ext_fields)
    return _pass_on(broker, request, header.consumer_group, header.client_id)


def consume_directly(broker: "Broker", request: "Request") -> "Answer":
    """Let a consumer consume one message now."""
    command = request.command
    header = parse_header(ConsumeDirectly, command.ext_fields)
    try:
        record = bytes(broker.store.log.record(parse_message_id(header.msg_id or "")))
    except (NotFoundError, FormatError) as error:
        return command.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
    return _pass_on(broker, request, header.consumer_group, header.client_id or "", record)


def _pass_on(broker: "Broker", request: "Request", group: str, client_id: str, body: bytes = b"") -> "Answer":
    """Send a request on to a consumer, and its answer back to who asked."""
    command, session, now = request
    client = broker.clients.consumer(group, client_id)
    if client is None:
        remark = f"The Consumer <{group}> <{client_id}> not online"
        return command.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
    if client.session.version < Version.V3_1_8:
        remark = f"The Consumer <{client_id}> Version <{client.session.version}> too low to finish, please upgrade it"
        return command.answer(ResponseCode.SYSTEM_ERROR, remark=remark)

    def pass_back(answer: RemotingCommand | None, now: int) -> None:
        if answer is None:
            remark = f"consumer <{group}> <{client_id}> Timeout"
            passed = command.answer(ResponseCode.CONSUME_MSG_TIMEOUT, remark=remark)
        else:
            passed = command.answer(answer.code, answer.ext_fields, answer.body, answer.remark)
        session.reply(passed, now)

    asked = RemotingCommand(command.code, ext_fields=command.ext_fields, body=body)
    remoting_session(client.session).call(asked, now + CALL_MS, pass_back)
    return None


def consumer_status(broker: "Broker", request: "Request") -> "Answer":
    """Ask the consumers of a group, or the one with a client id, how far they have read a topic."""
    command, session, now = request
    header = parse_header(GetConsumerStatus, command.ext_fields)
    online = broker.clients.group(header.group)
    if online is None:
        remark = f"No Any Consumer online in the consumer group: [{header.group}]"
        return command.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
    clients = [
        client
        for client in online.members.values()
        if client.session.version >= Version.V3_0_7 and header.client_addr in (None, "", client.client_id)
    ]
    fields = build_header(GetConsumerStatus(header.topic, header.group))
    found: dict[str, Any] = {}
    waiting = len(clients)

    def collect(client_id: str) -> Then:
        def take(answer: RemotingCommand | None, now: int) -> None:
            nonlocal waiting
            waiting -= 1
            if answer is not None and answer.code == 0:
                table = parse_body(answer.body).get("messageQueueTable") or {}
                found[client_id] = by_queue(table, "messageQueueTable")
            if not waiting:
                session.reply(finish(), now)

        return take

    def finish() -> RemotingCommand:
        return command.answer(body=build_body({"consumerTable": found}))

    if not clients:
        return finish()
    for client in clients:
        asked = RemotingCommand(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext_fields=dict(fields))
        remoting_session(client.session).call(asked, now + CALL_MS, collect(client.client_id))
    return None


PROCESSORS: "dict[int, Processor]" = {
    RequestCode.QUERY_CONSUMER_OFFSET: query_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: update_offset,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset,
    RequestCode.CLONE_GROUP_OFFSET: clone_offsets,
    RequestCode.QUERY_CORRECTION_OFFSET: correction_offsets,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: search_offset,
    RequestCode.GET_MAX_OFFSET: max_offset,
    RequestCode.GET_MIN_OFFSET: min_offset,
    RequestCode.GET_EARLIEST_MSG_STORETIME: earliest_timestamp,
    RequestCode.GET_CONSUMER_RUNNING_INFO: running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: consume_directly,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: consumer_status,
}
