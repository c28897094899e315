"""Requests that a slave refuses: those that store something, or that the next copy of the master's tables would undo.

The answers are those of 5.x. There changes of topics and groups are accepted, and silently undone a minute later;
here they are refused, as in 4.9. (Rules: replication.md 7.2, 7.3. RocketMQ: ``SendMessageProcessor.rejectRequest``,
``PullMessageProcessor.rejectRequest``, ``EndTransactionProcessor``, ``AdminBrokerProcessor``.)
"""

from collections.abc import Mapping

from mqtool.engine.broker.processors.protocol_texts import REJECT_REQUEST
from mqtool.engine.broker.processors.refused import RefusedRequest
from mqtool.engine.broker.state import BrokerState
from mqtool.formats.codes import RequestCode, ResponseCode

_BUSY = RefusedRequest(REJECT_REQUEST, ResponseCode.SYSTEM_BUSY)
_NO_TRANSACTION = RefusedRequest("not set any response code", ResponseCode.SLAVE_NOT_AVAILABLE)
_NO_CHANGE = RefusedRequest(
    "Can't modify topic or subscription group from slave broker, please execute it from master broker.",
    ResponseCode.SYSTEM_ERROR,
)
_NO_RESET = RefusedRequest("Can not reset offset in slave broker", ResponseCode.SYSTEM_ERROR)

_REFUSED: Mapping[int, RefusedRequest] = {
    RequestCode.SEND_MESSAGE: _BUSY,
    RequestCode.SEND_MESSAGE_V2: _BUSY,
    RequestCode.SEND_BATCH_MESSAGE: _BUSY,
    RequestCode.SEND_REPLY_MESSAGE: _BUSY,
    RequestCode.SEND_REPLY_MESSAGE_V2: _BUSY,
    RequestCode.CONSUMER_SEND_MSG_BACK: _BUSY,
    RequestCode.RECALL_MESSAGE: _BUSY,
    RequestCode.POP_MESSAGE: _BUSY,  # pops store records
    RequestCode.ACK_MESSAGE: _BUSY,
    RequestCode.BATCH_ACK_MESSAGE: _BUSY,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _BUSY,
    RequestCode.END_TRANSACTION: _NO_TRANSACTION,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: _NO_TRANSACTION,
    RequestCode.UPDATE_AND_CREATE_TOPIC: _NO_CHANGE,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: _NO_CHANGE,
    RequestCode.DELETE_TOPIC_IN_BROKER: _NO_CHANGE,
    RequestCode.DELETE_TOPIC_IN_BROKER_LIST: _NO_CHANGE,
    RequestCode.CLEAN_UNUSED_TOPIC: _NO_CHANGE,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _NO_CHANGE,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _NO_CHANGE,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _NO_CHANGE,
    RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST: _NO_CHANGE,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: _NO_CHANGE,
    RequestCode.SET_MESSAGE_REQUEST_MODE: _NO_CHANGE,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _NO_RESET,
    RequestCode.CLONE_GROUP_OFFSET: _NO_RESET,
}
_READS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


def refusal_by_slave(code: int, state: BrokerState) -> RefusedRequest | None:
    """Return why a slave refuses a request; None if it does not."""
    if code in _READS and not state.settings.slave_read_enabled:
        return _BUSY
    return _REFUSED.get(code)
