"""Recalling timer messages that are not delivered yet: RECALL_MESSAGE.

(Rules: remoting.md 3.2. RocketMQ: ``RecallMessageProcessor``.)
"""

from typing import TYPE_CHECKING

from mqtool.engine.broker.operations.refusal import OperationRefusedError
from mqtool.engine.broker.processors.flushed import acknowledged
from mqtool.engine.broker.processors.refusals import CODES
from mqtool.formats.codes import RequestCode
from mqtool.formats.headers import RecallMessage, RecallMessageResponse, build_header, parse_header
from mqtool.formats.property_names import MSG_REGION

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import BrokerController
    from mqtool.engine.broker.processors.request import Answer, BrokerRequest, Processor


def recall(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Recall a message."""
    command, session, now = request
    topic, handle, group = parse_header(RecallMessage, command.ext_fields)
    marks = {MSG_REGION: broker.settings.region}
    try:
        unique_key, flush_offset = broker.recalls.recall(topic, handle, group or "", session.born_host, now)
    except OperationRefusedError as refused:
        return command.answer(CODES[refused.reason], marks, remark=f"recall failed, {refused.text}")
    answer = command.answer(ext_fields=build_header(RecallMessageResponse(unique_key)) | marks)
    return acknowledged(broker, request, answer, flush_offset)


PROCESSORS: "dict[int, Processor]" = {
    RequestCode.RECALL_MESSAGE: recall,
}
