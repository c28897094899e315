"""``rocketmq``: topics of running brokers as Spark tables, streams and sinks.

Brokers return records as they are in their logs, so columns are built as for a store. Spark finds the
format by its name if mqtool is installed (``pyspark_rocketmq``).
"""

from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from mqtool.errors import UsageError
from mqtool.spark.options import OPTIONS_OF_BROKERS, Options
from mqtool.spark.queue_reader import QueuesReader
from mqtool.spark.queues import BrokerConnection
from mqtool.spark.sentences import sentences
from mqtool.spark.source import MessageSource
from mqtool.spark.table_reader import check_of_messages

NAME = "rocketmq"


class RocketMQ(MessageSource):
    """Topics of running brokers.

    Options:
        namesrv, nameServer: name servers, ``host:port;host:port``; by default those of NAMESRV_ADDR on the driver.
        topic, subscribe: topics, separated by commas; for a write, the topic of rows that have none.
        group: the consumer group that reads; a stream also commits its offsets.
        columns, mode, includeBody, decompressBody: as for ``rocketmq_store``.
        startingOffsets, endingOffsets: ``earliest``, ``latest``, or a JSON object of offsets by topic and queue:
            ``{"Orders": {"broker-a:0": 12, "broker-a:1": "latest"}}``.
        startingTimestamp, endingTimestamp: messages stored from, and before, a time: milliseconds, or ISO 8601.
        maxOffsetsPerTrigger: for a stream, messages per micro-batch.
        failOnDataLoss: ``false`` continues if messages were deleted before they were read.
        accessKey, secretKey, tls, authorities, namespace: as for all mqtool clients.
    """

    format_name = NAME
    option_names = OPTIONS_OF_BROKERS

    @staticmethod
    def check(options: Options) -> None:
        """Make sure that all options are what they should be; raises as the method of all sources."""
        check_of_messages(options)
        BrokerConnection.of(options)
        options.count("maxOffsetsPerTrigger")

    @sentences()
    def reader(self, schema: StructType) -> QueuesReader:
        """Return the reader of a table."""
        return QueuesReader(self.read_options(), schema)

    @staticmethod
    def stream_reader(options: Options, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        from mqtool.spark.broker_stream import QueuesStreamReader

        return QueuesStreamReader(options, schema)

    @sentences()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a frame."""
        from mqtool.spark.sender import MessageSender

        if overwrite:
            raise UsageError('messages are never overwritten: write with mode("append")')
        return MessageSender(self.read_options(), schema)

    @sentences()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802, ARG002
        """Return the writer of a stream."""
        from mqtool.spark.sender import MessageStreamSender

        return MessageStreamSender(self.read_options(), schema)
