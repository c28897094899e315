"""Refusals as answers: the response code of each reason."""

from typing import Any

from mqtool.engine.broker.operations.refusal import OperationRefusedError, Reason
from mqtool.formats.codes import ResponseCode
from mqtool.formats.headers import build_header
from mqtool.formats.remoting import RemotingCommand

CODES = {
    Reason.NOT_ALLOWED: ResponseCode.NO_PERMISSION,
    Reason.NOT_POSSIBLE: ResponseCode.SYSTEM_ERROR,
    Reason.UNAVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    Reason.NOT_SUPPORTED: ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    Reason.BAD_ARGUMENT: ResponseCode.INVALID_PARAMETER,
    Reason.NO_TOPIC: ResponseCode.TOPIC_NOT_EXIST,
    Reason.NO_GROUP: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    Reason.NO_MESSAGE: ResponseCode.NO_MESSAGE,
    Reason.NOT_FOUND: ResponseCode.QUERY_NOT_FOUND,
    Reason.NOT_ONLINE: ResponseCode.CONSUMER_NOT_ONLINE,
    Reason.NO_ANSWER: ResponseCode.CONSUME_MSG_TIMEOUT,
    Reason.BAD_MESSAGE: ResponseCode.MESSAGE_ILLEGAL,
    Reason.NOT_SUBSCRIBED: ResponseCode.SUBSCRIPTION_NOT_EXIST,
    Reason.OLD_SUBSCRIPTION: ResponseCode.SUBSCRIPTION_NOT_LATEST,
    Reason.NO_FILTER: ResponseCode.FILTER_DATA_NOT_EXIST,
    Reason.BAD_FILTER: ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    Reason.BAD_HANDLE: ResponseCode.ILLEGAL_OPERATION,
    Reason.TOO_LATE: ResponseCode.POLLING_TIMEOUT,
    Reason.ONLY_BY_CHECK: ResponseCode.ILLEGAL_OPERATION,
}
REASONS = {int(code): reason for reason, code in CODES.items()}
"""The reasons of refusals by clients, by response code."""


def refusal(command: RemotingCommand, refused: OperationRefusedError, header: Any = None) -> RemotingCommand:
    """Return the answer of a refusal, with the fields that clients expect in any answer."""
    if header is not None:
        fields = build_header(header)
    else:
        fields = {} if refused.forbids is None else {"forbiddenType": str(int(refused.forbids))}
    return command.answer(CODES[refused.reason], fields, remark=refused.text)
