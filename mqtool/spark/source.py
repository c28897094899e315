"""``rocketmq_store``: the store of a broker as tables of Spark.

Spark finds it by its name if mqtool is installed (``pyspark_rocketmq_store``); otherwise register it with
``spark.dataSource.register(RocketMQStore)``.
"""

from collections.abc import MutableMapping, Sequence
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from mqtool.errors import MqtoolError
from mqtool.spark.options import OPTIONS_OF_STORES, SIZES, Options
from mqtool.spark.schemas import metrics, spark_schema
from mqtool.spark.sentences import sentences
from mqtool.spark.table_reader import PUSHES_SAFELY, StoreTableReader, check_of_messages, columns_of

__all__ = ["NAME", "RocketMQStore", "metrics", "register"]

NAME = "rocketmq_store"
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: Any) -> None:
    """Register the format in a session, and have the session push filters down where Spark does so safely."""
    spark.dataSource.register(RocketMQStore)
    if PUSHES_SAFELY:
        spark.conf.set(_PUSHDOWN, "true")


class MessageSource(DataSource):
    """What the formats share: options that are checked when a source is made, and the columns that these ask for."""

    format_name: str
    option_names: Sequence[str]

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        with sentences():
            self.check(self.read_options())

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return cls.format_name

    @sentences()
    def schema(self) -> StructType:
        """Return the requested columns."""
        return spark_schema({name: kind for name, (_, kind) in columns_of(self.read_options()).items()})

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream."""
        from mqtool.spark.stream import RefusedStreamReader

        try:
            return self.stream_reader(self.read_options(), schema)
        except MqtoolError as error:  # raised here it would become a fault of PySpark's
            return RefusedStreamReader(error)

    def read_options(self) -> Options:
        """Return the options.

        Raises:
            UsageError: one is unknown.
        """
        return Options.read(dict(self.options), self.option_names)

    @staticmethod
    def check(options: Options) -> None:
        """Check all options, so that errors are reported before a job starts.

        Raises:
            MqtoolError: one is not.
        """
        raise NotImplementedError

    @staticmethod
    def stream_reader(options: Options, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream.

        Raises:
            MqtoolError: it cannot be read as a stream.
        """
        raise NotImplementedError


class RocketMQStore(MessageSource):
    """The stores under a path.

    Options:
        table: ``messages``, ``consume_queue``, ``index``, ``findings``, ``segments``, ``config`` or ``timer``.
        columns: a list of columns; for messages also ``heads`` (default: all but body and properties), ``all``, and
            ``kafka`` or ``rocketmq-spark`` for the names of those connectors.
        mode: for damaged messages, ``PERMISSIVE`` (rows that report damage), ``DROPMALFORMED`` or ``FAILFAST``.
        maxPartitionBytes: bytes of a partition.
        includeBody: ``true`` adds bodies to the columns, ``false`` leaves them out.
        decompressBody: ``false`` returns bodies as they are stored.
        config: the broker's configuration file; ``set.KEY`` sets one key.
        topic, subscribe: topics whose messages are read, separated by commas.
        startingOffsets, endingOffsets: ``earliest``, ``latest``, or a JSON object of addresses by the store's name.
        startingTimestamp, endingTimestamp: messages stored from, and before, a time: milliseconds, or ISO 8601.
        maxBytesPerTrigger: for a stream, bytes of log per micro-batch.
        maxFilesPerTrigger: for a stream, segments per micro-batch.
        failOnDataLoss: for a stream, ``false`` continues if a log was cut or replaced, or a store is gone.
        storeNames: for a stream, a JSON object of names by path or pattern of paths.
        renumber: for a write, ``true`` numbers the messages of each queue from 0.
    """

    format_name = NAME
    option_names = OPTIONS_OF_STORES

    @staticmethod
    def check(options: Options) -> None:
        """Make sure that all options are what they should be; raises as the method of all sources."""
        check_of_messages(options)
        for size in SIZES:
            options.size(size, None)
        _ = options.settings, options.store_names, options.paths
        _ = options.places("startingOffsets"), options.places("endingOffsets")
        options.count("maxFilesPerTrigger")

    @sentences()
    def reader(self, schema: StructType) -> StoreTableReader:
        """Return the reader of a table."""
        return StoreTableReader(self.read_options(), schema)

    @staticmethod
    def stream_reader(options: Options, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        from mqtool.spark.stream import StoreStreamReader

        return StoreStreamReader(options, schema)

    @sentences()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a new store."""
        from mqtool.spark.writer import StoreWriter

        return StoreWriter(self.read_options(), schema, overwrite)
