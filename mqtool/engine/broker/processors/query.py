"""Questions about messages and queues: by key, by address, by time, and the ends of a queue.

(Rules: remoting.md 3.2, changes_5_5.md. RocketMQ: ``QueryMessageProcessor``, ``AdminBrokerProcessor``.)
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mqtool.errors import FormatError, NotFoundError
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.headers import (
    UNIQUE_KEY_QUERY,
    QueryMessage,
    QueryMessageResponse,
    ViewMessage,
    build_header,
    parse_header,
)
from mqtool.formats.properties import find_property, probe_of
from mqtool.formats.remoting import MAX_FRAME
from mqtool.formats.stored_message import parse_stored

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import Broker
    from mqtool.engine.broker.processors.request import Answer, Processor, Request

MOST_BY_UNIQUE_KEY = 32
MOST_BY_KEY = 64
"""Messages that a query returns at most, whatever it asks for."""
_MOST_BYTES = MAX_FRAME - (1 << 16)
"""Of messages in one answer: with its header they make a frame that clients take."""

_UNIQ_KEY, _KEYS, _TAGS = probe_of("UNIQ_KEY"), probe_of("KEYS"), probe_of("TAGS")


def _query_message(broker: "Broker", request: "Request") -> "Answer":
    command = request.command
    header = parse_header(QueryMessage, command.ext_fields)
    by_unique_key = command.ext_fields.get(UNIQUE_KEY_QUERY, "").lower() == "true"
    kind = "U" if by_unique_key else header.index_type or ""
    most = MOST_BY_UNIQUE_KEY if by_unique_key else min(header.max_num, MOST_BY_KEY)
    records = [*_find(broker, header, kind, most)]
    if not records:
        remark = "can not find message, maybe time range not correct"
        return command.answer(ResponseCode.QUERY_NOT_FOUND, remark=remark)
    index = broker.store.index
    answer = command.answer(ext_fields=build_header(QueryMessageResponse(index.end_timestamp, index.end_offset)))
    answer.parts = records
    return answer


def _find(broker: "Broker", header: QueryMessage, kind: str, most: int) -> Iterator[memoryview]:
    """Yield the records that have the key, in the order in which they were stored, as far as they fit an answer."""
    store, total = broker.store, 0
    key = f"T#{header.key}" if kind == "T" else header.key
    for offset in sorted(store.index.find(header.topic, key, header.begin_timestamp, header.end_timestamp, most)):
        try:
            record = store.log.record(offset)
            message = parse_stored(record).message
        except (NotFoundError, FormatError):  # deleted since, or not what the index says
            continue
        if message.topic != header.topic or not _has_key(
            message.properties, kind, header.key.encode("utf-8", "replace")
        ):
            continue
        total += len(record)
        if total > _MOST_BYTES:
            return
        yield record


def _has_key(properties: bytes, kind: str, key: bytes) -> bool:
    """Tell whether a message has a key of a kind: U its unique key, T its tag, K one of KEYS; of any kind but T."""
    if kind == "T":
        return find_property(properties, _TAGS) == key
    if kind != "K" and find_property(properties, _UNIQ_KEY) == key:
        return True
    return kind != "U" and key in find_property(properties, _KEYS).split(b" ")


def _view_message(broker: "Broker", request: "Request") -> "Answer":
    command = request.command
    offset = parse_header(ViewMessage, command.ext_fields).offset
    try:
        record = broker.store.log.record(offset)
        parse_stored(record)
    except (NotFoundError, FormatError):
        remark = f"can not find message by the offset, {offset}"
        return command.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
    answer = command.answer()
    answer.parts = (record,)
    return answer


PROCESSORS: "dict[int, Processor]" = {
    RequestCode.QUERY_MESSAGE: _query_message,
    RequestCode.VIEW_MESSAGE_BY_ID: _view_message,
}
