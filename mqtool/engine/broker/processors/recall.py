"""Recalling timer messages that are not delivered yet.

(Rules: remoting.md 3.2. RocketMQ: ``RecallMessageProcessor``.)
"""

from typing import TYPE_CHECKING

from mqtool.engine.broker.operations.refusal import Reason, RefusedError
from mqtool.engine.broker.processors.refusals import CODES
from mqtool.engine.broker.processors.send import acknowledged
from mqtool.engine.broker.topics import may_be_sent_to
from mqtool.engine.store.append_result import PutStatus
from mqtool.errors import FormatError
from mqtool.formats.codes import Perm, RequestCode, ResponseCode
from mqtool.formats.headers import RecallMessage, RecallMessageResponse, build_header, parse_header
from mqtool.formats.new_message import NewMessage
from mqtool.formats.properties import build_properties
from mqtool.formats.recall import RecallHandle, parse_handle

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import Broker
    from mqtool.engine.broker.processors.request import Answer, Processor, Request

_BODY, _TAG = b"0", "_RECALL_TAG_"


def recall(broker: "Broker", request: "Request") -> "Answer":
    """Have a message not be delivered: what says so waits in the timer topic as it does."""
    command, session, now = request
    header = parse_header(RecallMessage, command.ext_fields)
    marks = {"MSG_REGION": broker.settings.region}
    try:
        handle = _checked(broker, header, now)
    except RefusedError as refused:
        return command.answer(CODES[refused.reason], marks, remark=f"recall failed, {refused.text}")
    pairs = {
        "TIMER_DEL_UNIQKEY": f"{handle.topic}+{handle.unique_key}",  # as 5.3 has it; later ones leave the topic out
        "UNIQ_KEY": handle.unique_key,
        "TIMER_DELIVER_MS": str(handle.timestamp),
        "TAGS": _TAG,
        "PGROUP": header.producer_group or "",
    }
    message = NewMessage(
        handle.topic,
        0,
        _BODY,
        build_properties(pairs),
        born_timestamp=now,
        born_host=session.born_host,
        store_host=broker.store_host,
    )
    result = broker.intake.put(message, now)
    if result.status is not PutStatus.PUT_OK:
        remark = f"recall failed, {broker.store.refusal or 'execute error'}"
        return command.answer(ResponseCode.SYSTEM_ERROR, marks, remark=remark)
    answer = command.answer(ext_fields=build_header(RecallMessageResponse(handle.unique_key)) | marks)
    return acknowledged(broker, request, answer, result.flush_offset)


def _checked(broker: "Broker", header: RecallMessage, now: int) -> RecallHandle:
    """Return the handle of a message that can be recalled; raises ``RefusedError``."""
    settings = broker.settings
    if not settings.recall_enabled:
        raise RefusedError(Reason.NOT_ALLOWED, "operation is forbidden")
    if not settings.perm & Perm.WRITE:
        raise RefusedError(Reason.UNAVAILABLE, "broker service not available")
    if not may_be_sent_to(header.topic):
        raise RefusedError(Reason.NOT_ALLOWED, f"nothing of the topic[{header.topic}] can be recalled")
    if broker.topics.get(header.topic) is None:
        raise RefusedError(Reason.NO_TOPIC, f"the topic[{header.topic}] not exist")
    try:
        handle = parse_handle(header.recall_handle)
    except FormatError as error:
        raise RefusedError(Reason.BAD_HANDLE, f"recall handle is invalid: {error.reason}") from None
    if handle.topic != header.topic:
        raise RefusedError(Reason.BAD_HANDLE, "topic not match")
    if handle.broker_name != settings.broker_name:
        raise RefusedError(Reason.BAD_HANDLE, "broker service not available")
    if not 0 < handle.timestamp - now < settings.timer_max_delay_seconds * 1000:
        raise RefusedError(Reason.BAD_HANDLE, "timestamp invalid")
    return handle


PROCESSORS: "dict[int, Processor]" = {
    RequestCode.RECALL_MESSAGE: recall,
}
