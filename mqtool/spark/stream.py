"""The growing log of a store as a stream: its progress is one address per store, by the name of the store.

A micro-batch is the messages that start between two addresses, so each is delivered once, whichever executor reads it
and however often. The end of a log is the end of its last complete message. Digests of some messages that were read
are kept beside the address (``Mark``): if these messages are gone, the log was cut or replaced, and the address has no
meaning any more.

Cost: linear in the bytes of a micro-batch; planning one reads the messages of its marks.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from mqtool.engine.repair.missing_log import require_messages
from mqtool.engine.store.file_queue import segment_name
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import MqtoolError, NotFoundError, StoreChangedError, UsageError
from mqtool.spark.ends import LogEnd, Mark, end_before, end_of_log, holds
from mqtool.spark.options import EARLIEST, LATEST, Options, check_endless, choose
from mqtool.spark.partitions import MissingRange, log_ranges, missing_ranges, with_missing
from mqtool.spark.places import LossReporter, Offsets, Place, check_places, moved, place_behind, resumed, shares
from mqtool.spark.schemas import arrow_schema
from mqtool.spark.sentences import sentences
from mqtool.spark.spread import spare_the_loaded
from mqtool.spark.stores import Store
from mqtool.spark.table_reader import StorePartition, ask_for, places
from mqtool.spark.tables import TABLES, read_messages


class StoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the messages of some stores as they are appended; stores that match a pattern later are included."""

    def __init__(self, options: Options, schema: StructType) -> None:
        table = choose("table", options.table, TABLES)
        if table != "messages":
            raise UsageError(
                f"the table {table} cannot be streamed, because only messages are append-only; read it with spark.read"
            )
        self.options = options
        self.schema = schema
        self._losses = LossReporter(options.flag("failOnDataLoss", True))
        self.ask = dataclasses.replace(ask_for(options, schema), fails_on_loss=self._losses.fails)
        check_endless(options)
        self.most = options.size("maxBytesPerTrigger", None)
        self.most_files = options.count("maxFilesPerTrigger")
        self._ends: dict[str, LogEnd] = {}  # where the logs ended when they were last examined
        self._target: dict[str, LogEnd] | None = None

    @sentences()
    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """Return where a new query starts."""
        stores = self.options.names(self.options.stores())
        self._require_messages(stores.values())
        if self.options.values.get("startingoffsets", EARLIEST).strip().lower() == LATEST:
            return {name: place_behind(end, []) for name, end in self._latest(stores).items()}
        starting, _ = places(self.options, list(stores.values()))
        return {name: self._first(name, store, starting.get(store.path)) for name, store in stores.items()}

    def _first(self, name: str, store: Store, address: int | None) -> Place:
        """Return the place at an address, or after what is too old, with the message before it."""
        reader = store.open()
        if address is not None and address > (end := end_of_log(store, reader).offset):
            raise UsageError(f"startingOffsets: the log of {name} ends at {end:,}, before {address:,}")
        first = reader.commit_log.min_offset
        start = reader.range_of_time(self.ask.bounds.since, None)[0] if address is None else address
        before = end_before(store, reader, first, start).last if start > first else None
        return place_behind(LogEnd(start, before if before and before.stop <= start else None), [])

    @sentences()
    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """Return where the next micro-batch ends.

        Raises:
            StoreChangedError: a log is another one than before, or became shorter, with ``failOnDataLoss``.
            NotFoundError: a store is gone, with ``failOnDataLoss``.
        """
        stores = self._stores()
        start = _by_names(start, stores)
        for name in start.keys() - stores.keys():
            self._losses.tell(NotFoundError(f"{name} is gone: no store of this name exists any more"), "without it")
        self._require_messages(store for name, store in stores.items() if name not in start)
        ends = self._latest(stores)
        if self._target is not None:
            ends = {name: min(ends[name], end, key=_offset) for name, end in self._target.items() if name in ends}
        begins, lows = {}, {}
        for name, end in ends.items():
            reader = stores[name].open()
            begins[name] = self._resumed(name, stores[name], reader, start.get(name), end)
            lows[name] = max(begins[name]["offset"], reader.commit_log.min_offset)
        return moved(start, begins, lows, self._limited(stores, lows, ends, limit))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the options give; the other of them holds as well."""
        if self.most:
            return ReadMaxBytes(self.most)
        return ReadMaxFiles(self.most_files) if self.most_files else ReadAllAvailable()

    def reportLatestOffset(self) -> Offsets:  # noqa: N802
        """Return how far the logs reach."""
        return {name: {"offset": end.offset} for name, end in self._ends.items()}

    @sentences()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note how far a query reads that stops at what exists now."""
        self._target = self._latest(self._stores())

    @sentences()
    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Return the ranges between two offsets.

        Raises:
            StoreChangedError: a log is another one than before, with ``failOnDataLoss``.
            NotFoundError: retention was faster, a segment is missing, or a store is gone, with ``failOnDataLoss``.
        """
        parts: list[InputPartition] = []
        stores = self._stores()
        start, end = _by_names(start, stores), _by_names(end, stores)
        for name, place in end.items():
            before = start.get(name)
            store = stores.get(name)
            if place == before:
                continue
            if store is None:
                self._losses.tell(NotFoundError(f"{name} is gone: no store of this name exists any more"), "without it")
                continue
            reader = store.open()
            low, stop = place.get("start", before["offset"] if before else None), place["offset"]
            if "start" not in place and before:
                self._check(name, store, reader, before)
            self._check(name, store, reader, place)
            first = min(reader.commit_log.min_offset, stop)
            if low is not None and low < first:
                text = f"{store.path}: the messages from {low:,} to {first:,} were deleted before they were read"
                self._losses.tell(NotFoundError(text), "after them")
                parts.append(StorePartition(MissingRange(store, segment_name(low), low, first)))
            missing = missing_ranges(store, reader, low or 0, stop)
            for hole in missing:
                text = f"{store.path}: no file holds the messages from {hole.address:,} to {hole.end_offset:,}"
                self._losses.tell(NotFoundError(text), "after them")
            ranges = log_ranges(store, reader, self.ask.max_partition, low or 0, stop)
            # A message ends each range of addresses, so what is not a message before it is in between.
            ranges = [dataclasses.replace(part, following=True, is_live=False) for part in ranges]
            parts += map(StorePartition, with_missing(ranges, missing))
        return parts

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the record batches of a range."""
        schema = arrow_schema(self.schema)
        with sentences():
            assert isinstance(partition, StorePartition)
            yield from read_messages(partition.part, self.ask, schema)  # type: ignore[arg-type]
        spare_the_loaded()

    def _require_messages(self, stores: Iterable[Store]) -> None:
        """Make sure that stores whose first messages are to be read have not lost them all."""
        for store in stores:
            try:
                require_messages(store.open())
            except NotFoundError as error:
                self._losses.tell(error, "without it")

    def _stores(self) -> dict[str, Store]:
        """Return the existing stores by name."""
        return self.options.names(self.options.stores(is_gone_fine=True))

    def _latest(self, stores: dict[str, Store]) -> dict[str, LogEnd]:
        self._ends = {name: end_of_log(store, store.open(), self._ends.get(name)) for name, store in stores.items()}
        return dict(self._ends)

    def _resumed(self, name: str, store: Store, reader: StoreReader, place: Place | None, end: LogEnd) -> Place:
        """Return the place from which to continue: the given one if the log is still as it was."""
        resumed_place, is_lost = resumed(
            place, reader.commit_log.min_offset, end.offset, lambda mark: holds(reader, mark)
        )
        if is_lost and place:
            how = f"at {resumed_place['offset']:,} (messages from there on may be read twice)"
            self._losses.tell(_changed(name, store, place["offset"]), how)
        return resumed_place

    def _check(self, name: str, store: Store, reader: StoreReader, place: Place) -> None:
        """Make sure that a log is as it was when it was read or to be read up to a place."""
        marks = [Mark(*mark_fields) for mark_fields in place["marks"][:1]]
        if marks and holds(reader, marks[0]) is False:
            self._losses.tell(_changed(name, store, place["offset"]), "with the current contents")

    def _limited(
        self, stores: dict[str, Store], begins: dict[str, int], ends: dict[str, LogEnd], limit: ReadLimit
    ) -> dict[str, LogEnd]:
        """Return ends of a micro-batch: a limit is divided between stores in proportion to what must be read."""
        if isinstance(limit, ReadAllAvailable):
            return ends
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self.most
        most_files = limit.max_files if isinstance(limit, ReadMaxFiles) else self.most_files
        left = {name: max(0, end.offset - begins[name]) for name, end in ends.items()}
        files = {name: _files(stores[name].open(), begins[name], end.offset) for name, end in ends.items()}
        counts = shares({name: len(segment_ends) for name, segment_ends in files.items()}, most_files)
        stops = {name: begins[name] + size for name, size in shares(left, most).items()}
        for name, count in counts.items():
            if count:
                stops[name] = min(stops[name], files[name][count - 1])
        return {
            name: end if stops[name] >= end.offset else end_before(store, store.open(), begins[name], stops[name])
            for name, end, store in ((name, end, stores[name]) for name, end in ends.items())
        }


class RefusedStreamReader(DataSourceStreamReader):
    """Takes the place of a stream that is not supported, and raises the reason when it is used."""

    def __init__(self, error: MqtoolError) -> None:
        self._error = error

    @sentences()
    def initialOffset(self) -> Offsets:  # noqa: N802
        """Raise the error."""
        raise self._error

    @sentences()
    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802, ARG002
        """Raise the error."""
        raise self._error

    @sentences()
    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:  # noqa: ARG002
        """Raise the error."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002
        """Raise the error."""
        raise self._error


def _by_names(places: Offsets, stores: Mapping[str, Store]) -> Offsets:
    """Return places by the names of their stores: one that had no name when it was read has the place under its path.

    Raises:
        UsageError: another release has written the places.
    """
    check_places(places.values())
    names = {store.path: name for name, store in stores.items() if name not in places}
    return {names.get(name, name): place for name, place in places.items()}


def _offset(end: LogEnd) -> int:
    return end.offset


def _changed(name: str, store: Store, offset: int) -> StoreChangedError:
    called = store.path if name == store.path else f"{name} ({store.path})"
    return StoreChangedError(
        f"{called}: this is not the log that was read up to {offset:,}: it was truncated or replaced"
    )


def _files(reader: StoreReader, start: int, stop: int) -> list[int]:
    """Return where each segment between two addresses ends, the last at ``stop``."""
    segment_ends = [
        segment.end_offset
        for segment in reader.commit_log.segments
        if segment.end_offset > start and segment.start_offset < stop
    ]
    return [*segment_ends[:-1], stop] if segment_ends else []
