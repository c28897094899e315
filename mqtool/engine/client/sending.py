"""The result of a send: where the message is stored, or whether another broker may be tried.

(Rules: remoting.md 4.3, 4.6, 4.8. RocketMQ: ``SendResult``, ``DefaultMQProducerImpl``, ``TransactionMQProducer``.)
"""

import enum
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mqtool.engine.client.calls import Call
from mqtool.engine.client.outgoing import Packed, ProducerMessage
from mqtool.errors import FormatError, UsageError
from mqtool.formats.bodies import MessageQueue
from mqtool.formats.codes import RequestCode, ResponseCode, SysFlag
from mqtool.formats.headers import (
    CheckTransaction,
    EndTransaction,
    RecallMessage,
    RecallMessageResponse,
    Send,
    SendResponse,
    build_header,
    parse_header,
)
from mqtool.formats.hosts import parse_message_id
from mqtool.formats.property_names import CLUSTER, CORRELATION_ID, MSG_TYPE, PGROUP, REPLY_TO_CLIENT, TRAN_MSG, TTL
from mqtool.formats.recall import parse_handle
from mqtool.formats.remoting import RemotingCommand
from mqtool.formats.topics import DEFAULT_TOPIC, REPLY_SUFFIX

if TYPE_CHECKING:
    from mqtool.engine.client.incoming import ConsumerMessage

RETRY_CODES = frozenset(
    (
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    )
)
"""Answers after which another broker may succeed."""


class SendStatus(enum.Enum):
    """How safely a broker has stored a message; the value is the code of its answer."""

    SEND_OK = ResponseCode.SUCCESS
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT


_STATUSES = {int(status.value): status for status in SendStatus}
_STORED = tuple(_STATUSES)


class TransactionState(enum.Enum):
    """The state of a producer's local transaction; the value is that of the request."""

    COMMIT = int(SysFlag.TRANSACTION_COMMIT)
    ROLLBACK = int(SysFlag.TRANSACTION_ROLLBACK)
    UNKNOWN = 0


class SendResult(NamedTuple):
    """Where a message is stored.

    ``message_id`` is the unique key, for a batch all of them separated by commas; ``offset_message_id`` is made
    by the broker. ``recall_handle`` recalls a timer message, on brokers of 5.4 and later. ``transaction_state``
    is the reported state of a message sent in a transaction.
    """

    status: SendStatus
    message_id: str
    queue: MessageQueue
    queue_offset: int
    offset_message_id: str
    transaction_id: str | None = None
    recall_handle: str | None = None
    transaction_state: TransactionState | None = None


def each_result(result: SendResult, unique_keys: Sequence[str]) -> Iterator[SendResult]:
    """Yield where each message of a batch is stored, from the answer for the whole batch."""
    ids = result.offset_message_id.split(",")
    if len(ids) != len(unique_keys):  # they were stored as one record
        ids = [result.offset_message_id] * len(unique_keys)
    for offset, (key, offset_id) in enumerate(zip(unique_keys, ids, strict=True), result.queue_offset):
        yield SendResult(
            result.status,
            key,
            result.queue,
            offset,
            offset_id,
            result.transaction_id,
            result.recall_handle,
            result.transaction_state,
        )


def send(packed: Packed, queue: MessageQueue, group: str, now: int, default_queue_count: int) -> Call[SendResult]:
    """Return the request that stores a message in a queue, with the parser of its answer."""
    header = Send(
        group,
        packed.topic,
        DEFAULT_TOPIC,
        default_queue_count,
        queue.queue_id,
        packed.sys_flag,
        now,
        packed.flag,
        packed.properties,
        packed.reconsume_times,
        max_reconsume_times=packed.max_reconsume_times,
        batch=packed.is_batch,
        broker_name=queue.broker_name,
    )
    code = RequestCode.SEND_BATCH_MESSAGE if packed.is_batch else RequestCode.SEND_MESSAGE_V2
    if packed.is_reply:
        code = RequestCode.SEND_REPLY_MESSAGE_V2
    command = RemotingCommand(code, ext_fields=build_header(header, short=True), body=packed.body)

    def read(answer: RemotingCommand) -> SendResult:
        stored = parse_header(SendResponse, answer.ext_fields)
        return SendResult(
            _STATUSES[answer.code],
            packed.unique_key,
            MessageQueue(queue.topic, queue.broker_name, stored.queue_id),
            stored.queue_offset,
            stored.msg_id,
            stored.transaction_id,
            stored.recall_handle,
        )

    return Call(command, read, _STORED)


# Recalls


def broker_of_handle(recall_handle: str) -> str:
    """Return the name of the broker that has a timer message.

    Raises:
        UsageError: it is not a recall handle.
    """
    try:
        return parse_handle(str(recall_handle)).broker_name
    except FormatError as error:
        raise UsageError("this is not a recall handle: give the one from the result of a send") from error


def recall(group: str, topic: str, recall_handle: str) -> Call[str]:
    """Recall a timer message from a broker; returns its unique key."""
    header = RecallMessage(topic, recall_handle, group)
    command = RemotingCommand(RequestCode.RECALL_MESSAGE, ext_fields=build_header(header))
    return Call(command, lambda answer: parse_header(RecallMessageResponse, answer.ext_fields).msg_id)


# Request and reply


def request_properties(correlation_id: str, client_id: str, timeout_ms: int) -> dict[str, str]:
    """Return the properties that tell the consumer of a message where to send its reply."""
    return {CORRELATION_ID: correlation_id, REPLY_TO_CLIENT: client_id, TTL: str(timeout_ms)}


def reply_to(request: "ConsumerMessage", body: Any) -> ProducerMessage:
    """Return the message that replies to another.

    Raises:
        UsageError: its producer does not expect a reply.
    """
    from mqtool.engine.client.incoming import ConsumerMessage

    if not isinstance(request, ConsumerMessage):
        raise UsageError(f"only a message that was received can be replied to, not {request!r:.40}")
    asked = {name: request.properties.get(name, "") for name in (CORRELATION_ID, REPLY_TO_CLIENT, TTL)}
    cluster = request.properties.get(CLUSTER)
    if not all(asked.values()) or not cluster:
        raise UsageError(f"the message {request.message_id} does not expect a reply")
    return ProducerMessage(f"{cluster}{REPLY_SUFFIX}", body, properties={**asked, MSG_TYPE: "reply"})


# Transactions


def transaction_properties(group: str) -> dict[str, str]:
    """Return the properties that make a broker hide a message until its transaction ends."""
    return {TRAN_MSG: "true", PGROUP: group}


def end_transaction(group: str, sent: SendResult, topic: str, state: TransactionState) -> RemotingCommand:
    """Return the request that ends the transaction of a message just sent; it has no answer."""
    header = EndTransaction(
        group,
        sent.queue_offset,
        parse_message_id(sent.offset_message_id),
        state.value,
        sent.message_id,
        transaction_id=sent.transaction_id,
        topic=topic,
    )
    return RemotingCommand(RequestCode.END_TRANSACTION, ext_fields=build_header(header))


def answer_check(group: str, asked: CheckTransaction, unique_key: str, state: TransactionState) -> RemotingCommand:
    """Return the request that answers a broker's transaction check."""
    header = EndTransaction(
        group,
        asked.tran_state_table_offset,
        asked.commit_log_offset,
        state.value,
        unique_key,
        from_transaction_check=True,
        transaction_id=asked.transaction_id,
        topic=asked.topic,
    )
    return RemotingCommand(RequestCode.END_TRANSACTION, ext_fields=build_header(header))
