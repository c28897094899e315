"""Rows of a frame or of a stream sent to running brokers, each at least once.

A task is complete when brokers have stored all of its rows. If one cannot be sent the task fails, and Spark runs it
again or ends the query: what it had already sent may be delivered twice.
"""

import dataclasses
import itertools
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
from mqtool.spark.queues import BrokerConnection
from mqtool.spark.sentences import sentences

_log = logging.getLogger("mqtool.spark")

GROUP = "mqtool-spark"
"""The group that sends messages if none is given."""
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
_MAX_UNDER_WAY = 2000
_MAX_BYTES_UNDER_WAY = 32 << 20
_ROWS_AT_ONCE = 500
_OF_READING = ("subscribe", "columns", "mode", "includeBody", "decompressBody", "startingOffsets", "endingOffsets",
               "startingTimestamp", "endingTimestamp", "maxOffsetsPerTrigger", "failOnDataLoss")  # fmt: skip


@dataclasses.dataclass
class SentCount(WriterCommitMessage):
    """How many messages a task has sent."""

    count: int


class MessageSender(DataSourceArrowWriter):
    """Sends rows."""

    def __init__(self, options: Options, schema: StructType) -> None:
        for name in _OF_READING:
            if name.lower() in options.values:
                raise UsageError(f"{name} is an option for reading, not for sending")
        self.topic = options.values.get("topic")
        self.columns = _columns(schema, self.topic)
        self.connection = BrokerConnection.of(options, ProducerOptions)

    @sentences()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentCount:
        """Send the rows of a partition, and wait until all are stored.

        Raises:
            BadDataError: a row is not a message.
            MqtoolError: a message cannot be sent.
        """
        options = ProducerOptions(**{**self.connection.client, "auto_batch": True})
        count, statuses = 0, Counter[SendStatus]()
        under_way: deque[tuple[Future[SendResult], int]] = deque()  # with bytes of bodies
        size_under_way = 0
        with Producer(self.connection.group or GROUP, self.connection.name_servers, options) as producer:
            for row in itertools.chain.from_iterable(map(_rows, iterator)):
                begun = self._begun(producer, row, count)
                size = len(row[self.columns["body"]])
                under_way.append((begun, size))
                count += 1
                size_under_way += size
                while len(under_way) >= _MAX_UNDER_WAY or size_under_way > _MAX_BYTES_UNDER_WAY:
                    first, size = under_way.popleft()
                    statuses[first.result().status] += 1
                    size_under_way -= size
            statuses.update(future.result().status for future, _ in under_way)
        for status, number in statuses.items():
            if status is not SendStatus.SEND_OK:
                _log.warning("brokers answered %s for %s messages, which they have stored", status.name, f"{number:,}")
        return SentCount(count)

    def commit(self, messages: "Sequence[WriterCommitMessage | None]") -> None:
        """Do nothing: what was sent stays."""

    def abort(self, messages: "Sequence[WriterCommitMessage | None]") -> None:
        """Do nothing: what was sent stays, and may be delivered twice."""

    def _begun(self, producer: Producer, row: Mapping[str, Any], number: int) -> "Future[SendResult]":
        try:
            message = message_of(row, self.columns, self.topic)
            if message.shard_key:
                return producer.send_async(message, selector=select_by_hash, arg=message.shard_key)
            return producer.send_async(message)
        except UsageError as error:
            raise BadDataError(f"cannot send row {number:,} of a partition: {error}") from error


class MessageStreamSender(MessageSender, DataSourceStreamArrowWriter):
    """Sends the rows of micro-batches; one that is run again after a failure is sent again."""

    def commit(self, messages: "Sequence[WriterCommitMessage | None]", batchId: int = 0) -> None:  # noqa: N803
        """Do nothing: what was sent stays."""

    def abort(self, messages: "Sequence[WriterCommitMessage | None]", batchId: int = 0) -> None:  # noqa: N803
        """Do nothing: what was sent stays, and may be delivered twice."""


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch, some at a time: as Python objects they take more memory."""
    for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
        yield from batch.slice(start, _ROWS_AT_ONCE).to_pylist()


def _columns(schema: StructType, topic: str | None) -> dict[str, str]:
    """Return the columns of a frame that make messages, by what they hold; upper and lower case are the same.

    Raises:
        UsageError: one has another type, no message has one, or one that is needed is missing.
    """
    columns: dict[str, str] = {}
    for field in schema.fields:
        name = choose("message column", field.name, (*FIELDS, CORRUPT, *_LEFT_OUT))
        if name in _LEFT_OUT:
            continue
        if name in columns:
            raise UsageError(f"{columns[name]} and {field.name} are the same message column: leave one of them out")
        kind = field.dataType.simpleString()
        if name in FIELDS and kind not in FIELDS[name]:
            raise UsageError(f"column {name} is {kind}, not {' or '.join(FIELDS[name])}: cast it in the query")
        columns[name] = field.name
    if "body" not in columns:
        raise UsageError("a message needs a column body, and there is none")
    if "topic" not in columns and not topic:
        raise UsageError("no topic given: add a column topic, or set the option topic")
    return columns


def message_of(row: Mapping[str, Any], columns: Mapping[str, str], topic: str | None) -> ProducerMessage:
    """Return the message of a row.

    Raises:
        UsageError: it is none.
    """
    fields = {name: row[column] for name, column in columns.items() if row[column] is not None}
    if CORRUPT in fields:
        raise UsageError(f"it is damaged; filter out rows that have a {CORRUPT}")
    if "body" not in fields:
        raise UsageError("its body is null")
    fields.setdefault("topic", topic)
    if fields["topic"] is None:
        raise UsageError("its topic is null, and the option topic is not set")
    if "properties" in fields:
        fields["properties"] = dict(fields["properties"])
    if hasattr(fields.get("deliver_at"), "timestamp"):
        fields["deliver_at"] = round(fields["deliver_at"].timestamp() * 1000)
    return ProducerMessage(**fields)
