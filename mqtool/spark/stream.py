"""The log of a store that grows as a stream: how far it has come is one address a store.

A micro-batch is the messages that begin between two addresses, so each comes once, whichever executor reads it and
however often. The end of a log is the end of its last whole message.
"""

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from mqtool.engine.store.file_queue import segment_name
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import NotFoundError, UsageError
from mqtool.spark.options import STARTS, Options, choose
from mqtool.spark.partitions import log_end, log_ranges
from mqtool.spark.source import StorePartition, arrow_schema, ask_for
from mqtool.spark.spread import spare_the_loaded
from mqtool.spark.stores import Store
from mqtool.spark.tables import TABLES, read_lost, read_messages

_log = logging.getLogger("mqtool.spark")

Offsets = dict[str, int]
"""The address behind what was read, by the path of the store."""


@dataclasses.dataclass
class LostPartition(InputPartition):
    """Addresses whose files were gone before they were read."""

    store: Store
    start: int
    stop: int


class StoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the messages of some stores as they are appended; stores that a pattern matches later join in."""

    def __init__(self, options: Options, schema: StructType) -> None:
        table = choose("table", options.table, TABLES)
        if table != "messages":
            raise UsageError(f"the table {table} is no stream: only messages are appended; read it with spark.read")
        self.options = options
        self.schema = schema
        self.ask = ask_for(options, schema)
        self.start = options.text("startingOffsets", STARTS[0], STARTS)
        self.most = options.size("maxBytesPerTrigger", None)
        options.stores()
        self._ends: Offsets = {}  # where the logs ended when they were last looked at
        self._target: Offsets | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """Return where a new query begins."""
        if self.start == "latest":
            return self._latest()
        return {store.path: store.open().commit_log.min_offset for store in self.options.stores()}

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """Return where the next micro-batch ends."""
        ends = self._latest() if self._target is None else self._target
        ends = {path: max(end, start.get(path, 0)) for path, end in ends.items()}
        begins = {store.path: store.open().commit_log.min_offset for store in self.options.stores()}
        left = {path: end - min(end, max(start.get(path, 0), begins.get(path, 0))) for path, end in ends.items()}
        total = sum(left.values())
        if isinstance(limit, ReadMaxBytes) and total > limit.max_bytes:
            share = {path: max(1, limit.max_bytes * size // total) if size else 0 for path, size in left.items()}
            ends = {path: end - left[path] + share[path] for path, end in ends.items()}
        return start | ends

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the options give."""
        return ReadMaxBytes(self.most) if self.most else ReadAllAvailable()

    def reportLatestOffset(self) -> Offsets:  # noqa: N802
        """Return how far the logs reach."""
        return self._latest()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note how far a query is to go that reads what is there and ends."""
        self._target = self._latest()

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Return the ranges between two offsets.

        Raises:
            NotFoundError: retention was faster, in mode FAILFAST.
        """
        parts: list[InputPartition] = []
        known = {store.path: store for store in self.options.stores()}
        for path, stop in end.items():
            store = known.get(path) or Store(path, tuple(sorted(self.options.settings.items())))
            reader = store.open()
            low = start.get(path)
            if low is not None and low < min(reader.commit_log.min_offset, stop):
                gone = LostPartition(store, low, min(reader.commit_log.min_offset, stop))
                self._tell(gone)
                parts.append(gone)
            ranges = log_ranges(store, reader, self.ask.max_partition, low or 0, stop)
            # A message ends each range of addresses, so what is no message before it lies in between.
            parts += [StorePartition(dataclasses.replace(part, following=True, is_live=False)) for part in ranges]
        return parts

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the record batches of a range."""
        schema = arrow_schema(self.schema)
        if isinstance(partition, LostPartition):
            yield from read_lost(partition.store, segment_name(partition.start), self.ask, schema)
        elif isinstance(partition, StorePartition):
            yield from read_messages(partition.part, self.ask, schema)  # type: ignore[arg-type]
        spare_the_loaded()

    def _tell(self, gone: LostPartition) -> None:
        text = (
            f"{gone.store.path}: the messages from {gone.start:,} to {gone.stop:,} were deleted before they were read"
        )
        if self.ask.mode == "FAILFAST":
            raise NotFoundError(f"{text}; start a new query, or go on with mode PERMISSIVE")
        _log.warning("%s; the stream goes on behind them", text)

    def _latest(self) -> Offsets:
        stores = self.options.stores()
        self._ends = {store.path: self._end(store, store.open()) for store in stores}
        return dict(self._ends)

    def _end(self, store: Store, reader: StoreReader) -> int:
        return log_end(store, reader, self._ends.get(store.path))
