"""Pulls: PULL_MESSAGE and LITE_PULL_MESSAGE.

(Rules: remoting.md 5. RocketMQ: ``PullMessageProcessor``, ``DefaultPullMessageResultHandler``.)
"""

from typing import TYPE_CHECKING

from mqtool.engine.broker.operations.pull import Filter, PullOutcome, PullPosition
from mqtool.engine.broker.operations.refusal import OperationRefusedError
from mqtool.engine.broker.processors.authentication import keep_checking
from mqtool.engine.broker.processors.protocol_texts import OFFSET_RESET
from mqtool.engine.broker.processors.refusals import refusal
from mqtool.engine.store.pull import StoreStatus
from mqtool.formats.codes import PullSysFlag, RequestCode, ResponseCode
from mqtool.formats.headers import Pull, parse_header
from mqtool.formats.remoting import RESPONSE, RemotingCommand

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import BrokerController
    from mqtool.engine.broker.processors.request import Answer, BrokerRequest, Processor

_CODES = {
    StoreStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    StoreStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    StoreStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    StoreStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    StoreStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    StoreStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}

# Bits and codes as plain numbers: testing a flag takes as long as all other checks.
_FOUND, _LITE = int(ResponseCode.SUCCESS), int(RequestCode.LITE_PULL_MESSAGE)
_COMMIT_OFFSET, _SUSPEND = int(PullSysFlag.COMMIT_OFFSET), int(PullSysFlag.SUSPEND)
_SUBSCRIPTION = int(PullSysFlag.SUBSCRIPTION)


def pull(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Answer with messages, or let the request wait for some."""
    command, session, now = request
    header = parse_header(Pull, command.ext_fields)
    flags, offset = header.sys_flag, header.queue_offset
    expression = (header.subscription or "") if flags & _SUBSCRIPTION else None
    pulled = broker.pulls.pull(
        session,
        PullPosition(header.consumer_group, header.topic, header.queue_id, offset, header.max_msg_nums),
        Filter(expression, header.expression_type, header.sub_version),
        now,
        wait_ms=header.suspend_timeout_millis if flags & _SUSPEND else 0,
        commit_offset=header.commit_offset if flags & _COMMIT_OFFSET else None,
        is_lite=command.code == _LITE,
    )
    opaque = command.opaque
    if isinstance(pulled, PullOutcome):
        return _answer(opaque, offset, pulled)

    def give(pulled: PullOutcome | OperationRefusedError, now: int) -> None:
        if isinstance(pulled, OperationRefusedError):
            session.reply(refusal(command, pulled), now)
        else:
            session.reply(_answer(opaque, offset, pulled), now)

    pulled.then = give
    keep_checking(broker.access, request, pulled)
    return None


def _answer(opaque: int, queue_offset: int, pulled: PullOutcome) -> RemotingCommand:
    (status, next_offset, low, high, parts, _, _), topic, group, is_reset, suggested, is_corrected = pulled
    code = _FOUND if status is StoreStatus.FOUND else _CODES.get(status)
    if code is None:  # an empty queue: only a request for its beginning may wait
        code = ResponseCode.PULL_OFFSET_MOVED if queue_offset else ResponseCode.PULL_NOT_FOUND
    if code == ResponseCode.PULL_OFFSET_MOVED and not is_corrected:
        code = ResponseCode.PULL_RETRY_IMMEDIATELY
    fields = {
        "suggestWhichBrokerId": str(suggested),
        "nextBeginOffset": str(next_offset),
        "minOffset": str(low),
        "maxOffset": str(high),
        "topicSysFlag": str(topic.sys_flag),
        "groupSysFlag": str(group.sys_flag),
    }
    answer = RemotingCommand(code, RESPONSE, opaque, fields, remark=OFFSET_RESET if is_reset else status.value)
    if parts:
        answer.parts = parts
    return answer


PROCESSORS: "dict[int, Processor]" = {
    RequestCode.PULL_MESSAGE: pull,
    RequestCode.LITE_PULL_MESSAGE: pull,
}
