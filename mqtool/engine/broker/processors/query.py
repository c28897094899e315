"""Queries for messages: QUERY_MESSAGE, VIEW_MESSAGE_BY_ID.

(Rules: remoting.md 3.2; changes_5_5.md 10.2. RocketMQ: ``QueryMessageProcessor``.)
"""

from typing import TYPE_CHECKING

from mqtool.engine.broker.operations.messages import (
    MAX_BY_KEY,
    MAX_BY_UNIQUE_KEY,
    KeyKind,
    message_at,
    messages_by_key,
)
from mqtool.engine.broker.processors.steps import in_pieces
from mqtool.formats.codes import RequestCode
from mqtool.formats.headers import (
    UNIQUE_KEY_QUERY,
    QueryMessage,
    QueryMessageResponse,
    ViewMessage,
    build_header,
    parse_header,
)
from mqtool.formats.remoting import MAX_FRAME

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import BrokerController
    from mqtool.engine.broker.operations.steps import Steps
    from mqtool.engine.broker.processors.request import Answer, BrokerRequest, Processor
    from mqtool.formats.remoting import RemotingCommand

_MAX_BYTES = MAX_FRAME - (1 << 16)
"""Bytes of messages in one answer: with its header, they fit into a frame that clients accept."""
_KINDS = {"U": KeyKind.UNIQUE_KEY, "K": KeyKind.KEY, "T": KeyKind.TAG}


def _query_message(broker: "BrokerController", request: "BrokerRequest") -> "Steps[RemotingCommand]":
    command, store = request.command, broker.store
    header = parse_header(QueryMessage, command.ext_fields)
    kind, most = _KINDS.get(header.index_type or "", KeyKind.UNIQUE_KEY_OR_KEY), min(header.max_num, MAX_BY_KEY)
    if command.ext_fields.get(UNIQUE_KEY_QUERY, "").lower() == "true":
        kind, most = KeyKind.UNIQUE_KEY, MAX_BY_UNIQUE_KEY
    records = yield from messages_by_key(
        store, header.topic, header.key, kind, header.begin_timestamp, header.end_timestamp, most, _MAX_BYTES
    )
    response = QueryMessageResponse(store.index.end_timestamp, store.index.end_offset)
    answer = command.answer(ext_fields=build_header(response))
    answer.parts = records
    return answer


def _view_message(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    command = request.command
    answer = command.answer()
    answer.parts = (message_at(broker.store, parse_header(ViewMessage, command.ext_fields).offset),)
    return answer


PROCESSORS: "dict[int, Processor]" = {
    RequestCode.QUERY_MESSAGE: in_pieces(_query_message),
    RequestCode.VIEW_MESSAGE_BY_ID: _view_message,
}
