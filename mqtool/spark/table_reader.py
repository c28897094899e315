"""Reads tables of stores: the columns, places and bounds that options and filters select."""

import dataclasses
import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from mqtool.engine.repair.missing_log import require_messages
from mqtool.errors import NotFoundError, UsageError
from mqtool.spark.bounds import Bounds
from mqtool.spark.ends import end_of_log
from mqtool.spark.messages import BUILDERS, COLUMNS, LAYOUTS
from mqtool.spark.options import EARLIEST, FLAGS, LATEST, OF_MESSAGES, Options, choose
from mqtool.spark.schemas import arrow_schema
from mqtool.spark.sentences import sentences
from mqtool.spark.spread import spare_the_loaded
from mqtool.spark.stores import Store
from mqtool.spark.tables import TABLES, Ask, Part, Table

HEADS = "heads"
"""The columns of messages where none are asked for: all but bodies and properties."""
OWN_LAYOUTS = (HEADS, "all")


def check_of_messages(options: Options) -> None:
    """Make sure that options which any source of messages has are what they should be.

    Raises:
        UsageError: one is not.
    """
    columns_of(options)
    for flag in FLAGS:
        options.flag(flag, True)
    _ = options.mode, options.bounds


def columns_of(options: Options) -> dict[str, tuple[str, str]]:
    """Return for each column that is asked for what it holds and its type.

    Raises:
        UsageError: there is no such table, layout or column.
    """
    table = choose("table", options.table, TABLES)
    chosen = _of_messages(options) if table == "messages" else _of_table(options, TABLES[table])
    if not chosen:
        raise UsageError(f"columns={options.columns} leaves no column")
    return chosen


def _of_table(options: Options, table: Table) -> dict[str, tuple[str, str]]:
    known = {name: (name, kind) for name, kind in table.columns.items()}
    return {name: known[name] for name in _names(options.columns, known, {})} if options.columns else known


def _of_messages(options: Options) -> dict[str, tuple[str, str]]:
    names = (options.columns or HEADS).strip()
    foreign = [layout for layout in LAYOUTS if layout not in OWN_LAYOUTS and layout == names.lower()]
    if foreign:
        chosen = {name: (held, COLUMNS[held].type) for name, held in LAYOUTS[foreign[0]].items()}
    else:
        known = {name: (name, COLUMNS[name].type) for name in (*BUILDERS, "raw_properties")}
        own = {layout: tuple(LAYOUTS[layout]) for layout in OWN_LAYOUTS}
        chosen = {name: known[name] for name in _names(names, known, own)}
        if options.flag("includeBody", False):
            chosen.setdefault("body", known["body"])
    if not options.flag("includeBody", True):
        chosen = {name: held for name, held in chosen.items() if held[0] != "body"}
    return chosen


def _names(text: str, known: Mapping[str, Any], layouts: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the columns of a list, in which a layout stands for all of its columns."""
    layout_names = (*LAYOUTS,) if layouts else ()
    names = [choose("column", name.strip(), (*known, *layout_names)) for name in text.split(",") if name.strip()]
    wrong = [name for name in names if name not in known and name not in layouts]
    if wrong:
        raise UsageError(f"columns={wrong[0]} cannot be combined with others: its columns have names of their own")
    return [column for name in names for column in layouts.get(name, (name,))]


def ask_for(options: Options, schema: StructType) -> Ask:
    """Return what options and columns ask of a table.

    Raises:
        UsageError: a column is unknown, or of another type.
    """
    known = columns_of(options)
    if choose("table", options.table, TABLES) == "messages":
        known = {name: (name, column.type) for name, column in COLUMNS.items()} | known
    held = []
    for field in schema.fields:
        name = choose("column", field.name, known)
        if field.dataType.simpleString() != known[name][1]:
            raise UsageError(
                f"column {name} is {known[name][1]}, not {field.dataType.simpleString()}: cast it in the query"
            )
        held.append(known[name][0])
    is_plain = options.flag("decompressBody", True)
    if choose("table", options.table, TABLES) != "messages":
        for name in OF_MESSAGES:
            if name.lower() in options.values:
                raise UsageError(f"{name} is an option for the table messages, not for {options.table}")
    return Ask(tuple(schema.names), tuple(held), options.mode, options.max_partition, is_plain, options.bounds)


@dataclasses.dataclass
class StorePartition(InputPartition):
    """One part of a table."""

    part: Part | None


PUSHES_SAFELY = hasattr(DataSourceReader, "pushLimit")
"""Whether this Spark keeps what it pushed down to the query it was pushed for.

Up to 4.3 it keeps that with the data source, and later queries of the same DataFrame, and the other branches of a
union, get the rows of the last filter that was pushed. The version that ends this has ``pushLimit`` as well.
"""


class _PushFilters:
    """``pushFilters`` of a reader.

    PySpark ends a query of a reader that overrides the method where ``spark.sql.python.filterPushdown.enabled`` is off,
    as it is by default. What stands for the method tells that it does not override it.
    """

    __func__ = staticmethod(getattr(DataSourceReader, "pushFilters", lambda filters: filters))  # 4.1 and later

    def __init__(self, reader: "NarrowedReader") -> None:
        self._reader = reader

    def __call__(self, filters: Sequence[Any]) -> Sequence[Any]:
        self._reader.narrow(filters)
        return filters


class NarrowedReader(DataSourceReader):
    """A reader that looks at filters where Spark pushes them down safely."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.schema = schema
        self.ask = ask_for(options, schema)
        if PUSHES_SAFELY:
            self.pushFilters = _PushFilters(self)  # type: ignore[method-assign]

    @sentences()
    def narrow(self, filters: Sequence[Any]) -> None:
        """Leave out what filters, all of which hold, leave out for sure."""
        bounds, held = self.ask.bounds, dict(zip(self.ask.names, self.ask.columns, strict=True))
        for pushed_filter in filters:
            bounds = narrowed(bounds, pushed_filter, held)
        self.ask = dataclasses.replace(self.ask, bounds=bounds)


class StoreTableReader(NarrowedReader):
    """Reads a table of some stores."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.table = choose("table", options.table, TABLES)
        self.stores = options.stores(unpacks=self.table == "messages")
        super().__init__(options, schema)
        self._starts, self._stops = places(options, self.stores)
        for path in self._starts.keys() & self._stops.keys():
            check_order(path, self._starts[path], self._stops[path])
        self._fails_on_loss = options.flag("failOnDataLoss", True)
        if self._fails_on_loss:
            self._check_addresses("startingOffsets", self._starts)
            self._check_addresses("endingOffsets", self._stops)

    def _check_addresses(self, name: str, addresses: Mapping[str, int]) -> None:
        for store in self.stores:
            address = addresses.get(store.path)
            if address is None:
                continue
            reader = store.open()
            first, end = reader.commit_log.min_offset, end_of_log(store, reader).offset
            if not first <= address <= end:
                raise NotFoundError(
                    f"{name}: the log of {store.path} begins at {first:,} and ends at {end:,}, and {address:,} is not "
                    "in it; set failOnDataLoss=false to read what is there"
                )

    @sentences()
    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts of all stores.

        Raises:
            NotFoundError: one held messages, which are to be read, and its log is gone.
        """
        if self.table == "messages" and self._fails_on_loss:
            for store in self.stores:
                require_messages(store.open())
        parts = [
            part for store in self.stores for part in TABLES[self.table].parts(store, store.open(), self._of(store))
        ]
        return [StorePartition(part) for part in parts] or [StorePartition(None)]

    def _of(self, store: Store) -> Ask:
        """Return what is asked of one store, between the addresses that options give."""
        bounds = self.ask.bounds
        start, stop = self._starts.get(store.path), self._stops.get(store.path)
        low = max(_least(bounds.start), _least(start))
        highs = [high for high in (bounds.stop, stop) if high is not None]
        return dataclasses.replace(
            self.ask, bounds=dataclasses.replace(bounds, start=max(0, low), stop=min(highs, default=None))
        )

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the record batches of a part."""
        assert isinstance(partition, StorePartition)
        if partition.part is None:
            return
        with sentences():
            yield from TABLES[self.table].read(partition.part, self.ask, arrow_schema(self.schema))
        spare_the_loaded()


def places(options: Options, stores: Sequence[Store]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the addresses from and up to which options have stores read, by their paths, where options give them.

    Raises:
        UsageError: one is of no store, or nothing is before the end.
    """
    limits: list[dict[str, int]] = []
    for name in ("startingOffsets", "endingOffsets"):
        value = options.places(name)
        named = options.names(stores) if value is not None else {}
        by_name = dict.fromkeys(named, value) if isinstance(value, str) else value or {}
        addresses = {}
        for key, place in by_name.items():
            store = named[choose(f"store of {name}", key, named)]
            if place == LATEST:
                addresses[store.path] = end_of_log(store, store.open()).offset
            elif isinstance(place, int):
                addresses[store.path] = place
            elif name == "endingOffsets":
                raise nothing_before_the_first("an address")
        limits.append(addresses)
    return limits[0], limits[1]


def nothing_before_the_first(other: str) -> UsageError:
    """Return the error for an end at the first message; ``other`` may be given in its place."""
    return UsageError(f"endingOffsets: nothing is before {EARLIEST}: give {LATEST} or {other}")


def check_order(called: str, start: int, stop: int) -> None:
    """Make sure that what is read does not end before it starts.

    Raises:
        UsageError: it does.
    """
    if stop < start:
        raise UsageError(f"endingOffsets: {stop:,} is before the start of {called} in startingOffsets, {start:,}")


# Filters

_RANGES = {
    "store_timestamp": ("since", "until"),
    "store_time": ("since", "until"),
    "queue_offset": ("first", "last"),
}
_SETS = {"topic": "topics", "queue_id": "queue_ids"}


def narrowed(bounds: Bounds, pushed_filter: Any, held: Mapping[str, str]) -> Bounds:
    """Return bounds that a filter narrows; the same where it says nothing about them.

    Args:
        bounds: as they are.
        pushed_filter: a filter of Spark.
        held: what each column holds, by the name that filters give it.
    """
    kind = type(pushed_filter).__name__
    path: tuple[str, ...] = getattr(pushed_filter, "attribute", ())
    column = held.get(".".join(path))
    values = list(pushed_filter.value) if kind == "In" else [getattr(pushed_filter, "value", None)]
    if column is None or not values or None in values:
        return bounds
    is_equal = kind in ("EqualTo", "EqualNullSafe", "In")
    changes: dict[str, Any] = {}
    if column in _SETS and is_equal:
        name = _SETS[column]
        before = getattr(bounds, name)
        changes[name] = frozenset(values) if before is None else before & frozenset(values)
    elif column in _RANGES:
        floors, ceilings = zip(*map(_numbers, values), strict=True)
        low, high = _RANGES[column]
        if is_equal or kind in ("GreaterThan", "GreaterThanOrEqual"):
            start = min(floors) + 1 if kind == "GreaterThan" else min(floors if is_equal else ceilings)
            changes[low] = max(start, _least(getattr(bounds, low)))
        if is_equal or kind in ("LessThan", "LessThanOrEqual"):
            stop, before = max(ceilings) if kind == "LessThan" else max(floors) + 1, getattr(bounds, high)
            changes[high] = stop if before is None else min(stop, before)
    return dataclasses.replace(bounds, **changes)


def _least(bound: int | None) -> int:
    return -(1 << 63) if bound is None else bound


def _numbers(value: Any) -> tuple[int, int]:
    """Return the whole numbers around a value; a moment in milliseconds."""
    if isinstance(value, datetime.datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
        micros = (moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(microseconds=1)
        return micros // 1000, -(-micros // 1000)
    low = int(value // 1)
    return low, low if low == value else low + 1
