"""Consumers: their offsets, resets, and calls that are passed on to them.

(Rules: remoting.md 3.2, 3.7. RocketMQ: ``ConsumerManageProcessor``, ``AdminBrokerProcessor``, ``Broker2Client``.)
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from mqtool.engine.broker.operations.client_calls import OffsetsByClient, ThenText
from mqtool.engine.broker.operations.offsets import OffsetRequests, Reset
from mqtool.engine.broker.operations.refusal import OperationRefusedError
from mqtool.engine.broker.processors.protocol_texts import PREVIOUSLY_RESET
from mqtool.engine.broker.processors.refusals import refusal
from mqtool.engine.broker.processors.session import by_queue_of
from mqtool.engine.broker.processors.steps import in_pieces
from mqtool.engine.broker.sessions import TellRunningInfo
from mqtool.engine.store.time_search import Boundary
from mqtool.formats.bodies import build_body
from mqtool.formats.codes import RequestCode
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

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import BrokerController
    from mqtool.engine.broker.operations.steps import Steps
    from mqtool.engine.broker.processors.request import Answer, BrokerRequest, Processor
    from mqtool.formats.remoting import RemotingCommand


# Offsets


def query_offset(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Return the next offset of a group in a queue."""
    group, topic, queue_id, begins_at_zero = parse_header(QueryConsumerOffset, request.command.ext_fields)
    offset = broker.offset_requests.consumed(group, topic, queue_id, begins_at_zero=begins_at_zero is not False)
    return request.command.answer(ext_fields=build_header(OffsetResponse(offset)))


def update_offset(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Commit the next offset of a group in a queue."""
    counts = broker.offset_requests.commit(*parse_header(UpdateConsumerOffset, request.command.ext_fields))
    return request.command.answer(remark=None if counts else PREVIOUSLY_RESET)


def reset(broker: "BrokerController", request: "BrokerRequest") -> "Steps[RemotingCommand]":
    """Set the next offset of a group in one queue or all queues of a topic."""
    header = parse_header(ResetOffset, request.command.ext_fields)
    offsets = yield from broker.offset_requests.reset(
        Reset(header.group, header.topic, header.timestamp, header.is_force, header.queue_id, header.offset)
    )
    table = by_queue_of(header.topic, broker.settings.broker_name, offsets)
    return request.command.answer(body=build_body({"offsetTable": table}))


def clone_offsets(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Copy the offsets of another group."""
    source, target, topic, _ = parse_header(CloneGroupOffset, request.command.ext_fields)
    broker.offset_requests.clone(source, target, topic)
    return request.command.answer()


def correction_offsets(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Return, for each queue, the lowest offset of all groups."""
    topic, group, left_out = parse_header(QueryCorrectionOffset, request.command.ext_fields)
    least = broker.offset_requests.least(topic, group, {*(left_out or "").split(",")})
    return request.command.answer(body=build_body({"correctionOffsets": least}))


def search_offset(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Return the offset of a time in a queue."""
    topic, queue_id, timestamp, kind = parse_header(SearchOffset, request.command.ext_fields)
    boundary = Boundary.UPPER if (kind or "").lower() == "upper" else Boundary.LOWER
    offset = broker.offset_requests.offset_at(topic, queue_id, timestamp, boundary)
    return request.command.answer(ext_fields=build_header(OffsetResponse(offset)))


def _of_queue(
    ask: Callable[[OffsetRequests, str, int], int], header: type[OffsetResponse | TimestampResponse]
) -> "Processor":
    """Return a processor that answers with one number of a queue."""

    def answer(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
        topic, queue_id, _ = parse_header(Queue, request.command.ext_fields)
        number = ask(broker.offset_requests, topic, queue_id)
        return request.command.answer(ext_fields=build_header(header(number)))

    return answer


# Calls that are passed on


def running_info(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Request running information from a consumer."""
    client_call = TellRunningInfo(*parse_header(GetRunningInfo, request.command.ext_fields))
    broker.client_calls.running_info(client_call, request.now, _pass_back(request))
    return None


def consume_directly(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Make a consumer consume one message now."""
    group, client_id, message_id, *names = parse_header(ConsumeDirectly, request.command.ext_fields)
    broker.client_calls.consume(
        group, client_id or "", message_id or "", (names[0], names[1]), request.now, _pass_back(request)
    )
    return None


def _pass_back(request: "BrokerRequest") -> ThenText:
    """Return a function that answers a request with a consumer's answer."""
    command, session, _ = request

    def then(result: bytes | OperationRefusedError, now: int) -> None:
        answer = refusal(command, result) if isinstance(result, OperationRefusedError) else command.answer(body=result)
        session.reply(answer, now)

    return then


def consumer_status(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Request the offsets in a topic from the consumers of a group, or from the one with a client id."""
    command, session, now = request
    topic, group, client_id = parse_header(GetConsumerStatus, command.ext_fields)

    def then(offsets: OffsetsByClient, now: int) -> None:
        session.reply(command.answer(body=build_body({"consumerTable": offsets})), now)

    broker.client_calls.offsets(group, topic, client_id, now, then)
    return None


PROCESSORS: "dict[int, Processor]" = {
    RequestCode.QUERY_CONSUMER_OFFSET: query_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: update_offset,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: in_pieces(reset),
    RequestCode.CLONE_GROUP_OFFSET: clone_offsets,
    RequestCode.QUERY_CORRECTION_OFFSET: correction_offsets,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: search_offset,
    RequestCode.GET_MAX_OFFSET: _of_queue(OffsetRequests.next_offset, OffsetResponse),
    RequestCode.GET_MIN_OFFSET: _of_queue(OffsetRequests.min_offset, OffsetResponse),
    RequestCode.GET_EARLIEST_MSG_STORETIME: _of_queue(OffsetRequests.earliest_timestamp, TimestampResponse),
    RequestCode.GET_CONSUMER_RUNNING_INFO: running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: consume_directly,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: consumer_status,
}
