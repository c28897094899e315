"""Rows of a frame or of a stream sent to running brokers, each at least once.

A task is done when brokers have stored all of its rows. Where one cannot be sent the task fails, and Spark runs it
again or ends the query: what it had sent by then may come twice.
"""

import dataclasses
import logging
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from mqtool.engine.client.outgoing import ProducerMessage
from mqtool.engine.client.queue_choice import select_by_hash
from mqtool.engine.client.sending import SendResult, SendStatus
from mqtool.engine.client_runtime.blocking.producers import Producer
from mqtool.engine.client_runtime.producer import ProducerOptions
from mqtool.errors import BadDataError, UsageError
from mqtool.spark.messages import COLUMNS, CORRUPT
from mqtool.spark.options import Options, choose
from mqtool.spark.queues import Connection
from mqtool.spark.sentences import sentences

_log = logging.getLogger("mqtool.spark")

GROUP = "mqtool-spark"
"""In whose name messages are sent where no group is given."""
FIELDS: Mapping[str, tuple[str, ...]] = {
    "topic": ("string",),
    "body": ("binary", "string"),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "properties": ("map<string,string>",),
    "delay_level": ("int", "bigint"),
    "delay_ms": ("int", "bigint"),
    "deliver_at": ("int", "bigint", "timestamp"),
    "shard_key": ("string",),
    "flag": ("int", "bigint"),
}
"""The columns that make a message, and the types that they may have."""
_LEFT_OUT = tuple(name for name in COLUMNS if name not in FIELDS and name != CORRUPT)
_UNDER_WAY = 2000
_OF_READING = ("subscribe", "columns", "mode", "includeBody", "decompressBody", "startingOffsets", "endingOffsets",
               "startingTimestamp", "endingTimestamp", "maxOffsetsPerTrigger", "failOnDataLoss")  # fmt: skip


@dataclasses.dataclass
class Sent(WriterCommitMessage):
    """How many messages a task has sent."""

    count: int


class MessageSender(DataSourceArrowWriter):
    """Sends rows."""

    def __init__(self, options: Options, schema: StructType) -> None:
        for name in _OF_READING:
            if name.lower() in options.given:
                raise UsageError(f"{name} is an option of reading, not of sending")
        self.topic = options.given.get("topic")
        self.fields = _fields(schema, self.topic)
        self.connection = Connection.of(options, ProducerOptions)

    @sentences()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Send the rows of a partition, and wait until all are stored.

        Raises:
            BadDataError: a row is no message.
            MqtoolError: a message cannot be sent.
        """
        options = ProducerOptions(**{**self.connection.client, "auto_batch": True})
        count, statuses = 0, Counter[SendStatus]()
        under_way: deque[Future[SendResult]] = deque()
        with Producer(self.connection.group or GROUP, self.connection.name_servers, options) as producer:
            for batch in iterator:
                for row in batch.to_pylist():
                    under_way.append(self._begun(producer, row, count))
                    count += 1
                    if len(under_way) >= _UNDER_WAY:
                        statuses[under_way.popleft().result().status] += 1
            statuses.update(one.result().status for one in under_way)
        for status, number in statuses.items():
            if status is not SendStatus.SEND_OK:
                _log.warning(
                    "%s: brokers answered so for %s messages, which they have stored", status.name, f"{number:,}"
                )
        return Sent(count)

    def commit(self, messages: "Sequence[WriterCommitMessage | None]") -> None:
        """Do nothing: what is sent is there."""

    def abort(self, messages: "Sequence[WriterCommitMessage | None]") -> None:
        """Do nothing: what was sent stays, and may come twice."""

    def _begun(self, producer: Producer, row: Mapping[str, Any], number: int) -> "Future[SendResult]":
        try:
            message = message_of(row, self.fields, self.topic)
            if message.shard_key:
                return producer.send_async(message, selector=select_by_hash, arg=message.shard_key)
            return producer.send_async(message)
        except UsageError as error:
            raise BadDataError(f"row {number:,} of a partition cannot be sent: {error}") from error


class MessageStreamSender(MessageSender, DataSourceStreamArrowWriter):
    """Sends the rows of micro-batches; one that is run again after a failure is sent again."""

    def commit(self, messages: "Sequence[WriterCommitMessage | None]", batchId: int = 0) -> None:  # noqa: N803
        """Do nothing: what is sent is there."""

    def abort(self, messages: "Sequence[WriterCommitMessage | None]", batchId: int = 0) -> None:  # noqa: N803
        """Do nothing: what was sent stays, and may come twice."""


def _fields(schema: StructType, topic: str | None) -> tuple[str, ...]:
    """Return the columns of a frame that make messages.

    Raises:
        UsageError: one has another type, no message has one, or one that is needed is missing.
    """
    fields = []
    for field in schema.fields:
        name = choose("column of messages", field.name, (*FIELDS, CORRUPT, *_LEFT_OUT))
        if name in FIELDS:
            kind = field.dataType.simpleString()
            if kind not in FIELDS[name]:
                raise UsageError(f"the column {name} is {kind}, not {' or '.join(FIELDS[name])}: cast it in the query")
            fields.append(name)
    if "body" not in fields:
        raise UsageError("a message needs the column body: there is none")
    if "topic" not in fields and not topic:
        raise UsageError("no topic is given: add a column topic, or set the option topic")
    return tuple(fields)


def message_of(row: Mapping[str, Any], fields: Sequence[str], topic: str | None) -> ProducerMessage:
    """Return the message of a row.

    Raises:
        UsageError: it is none.
    """
    if row.get(CORRUPT) is not None:
        raise UsageError(f"it is damaged ({row[CORRUPT]['code']}); leave out rows that have a {CORRUPT}")
    given = {name: row[name] for name in fields if row[name] is not None}
    if "body" not in given:
        raise UsageError("its body is null")
    given.setdefault("topic", topic)
    if given["topic"] is None:
        raise UsageError("its topic is null, and the option topic is not set")
    if "properties" in given:
        given["properties"] = dict(given["properties"])
    if hasattr(given.get("deliver_at"), "timestamp"):
        given["deliver_at"] = round(given["deliver_at"].timestamp() * 1000)
    return ProducerMessage(**given)
