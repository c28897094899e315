"""As much of a Spark session as the jobs use, in plain Python: rows are shuffled, then brought together."""

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

_BATCH = 3
_PARTITIONS = 5


class Frames:
    """Stands in for a session."""

    class Conf(dict[str, str]):
        set = dict.__setitem__
        unset = dict.__delitem__

    class Context:
        defaultParallelism = 2  # noqa: N815

    conf = Conf()
    sparkContext = Context()  # noqa: N815

    def createDataFrame(self, rows: list[tuple[bytes]], _schema: str, **_: bool) -> "FrameStub":  # noqa: N802
        return FrameStub([[{"item": item} for (item,) in rows]], pa.schema([("item", pa.binary())]))


class FrameStub:
    """Stands in for a DataFrame."""

    def __init__(self, partitions: list[list[dict[str, Any]]], schema: pa.Schema) -> None:
        self.partitions = partitions
        self.schema = schema

    def mapInArrow(self, work: Callable[[Iterator[Any]], Iterable[Any]], schema: str) -> "FrameStub":  # noqa: N802
        found = [list(work(self._batches(rows))) for rows in self.partitions]
        schema_made = next((batch.schema for batches in found for batch in batches), self.schema)
        assert [field.split()[0] for field in schema.split(", ")] == schema_made.names or not any(found)
        return FrameStub([[row for batch in batches for row in batch.to_pylist()] for batches in found], schema_made)

    def _batches(self, rows: list[dict[str, Any]]) -> Iterator[Any]:
        for start in range(0, len(rows), _BATCH):
            yield pa.RecordBatch.from_pylist(rows[start : start + _BATCH], self.schema)

    def where(self, condition: str) -> "FrameStub":
        name, _, value = condition.split()
        return self._map(lambda rows: [row for row in rows if row[name] == int(value)])

    def repartition(self, count: int | str, *names: str) -> "FrameStub":
        if isinstance(count, str):
            return self.repartition(_PARTITIONS, count, *names)
        made: list[list[dict[str, Any]]] = [[] for _ in range(count)]
        for rows in self.partitions:
            for turn, row in enumerate(rows):
                made[(hash(tuple(row[name] for name in names)) if names else turn) % count].append(row)
        for rows in made:
            random.Random(2).shuffle(rows)
        return FrameStub(made, self.schema)

    def coalesce(self, _one: int) -> "FrameStub":
        rows = self.collect()
        random.Random(1).shuffle(rows)
        return FrameStub([rows], self.schema)

    def sortWithinPartitions(self, *names: str) -> "FrameStub":  # noqa: N802
        def key(row: dict[str, Any]) -> list[tuple[bool, Any]]:
            return [(row[name] is not None, row[name]) for name in names]  # nulls first

        return self._map(lambda rows: sorted(rows, key=key))

    def unionAll(self, other: "FrameStub") -> "FrameStub":  # noqa: N802
        return FrameStub(self.partitions + other.partitions, self.schema)

    def persist(self, _level: Any) -> "FrameStub":
        return self

    def unpersist(self) -> None: ...

    def collect(self) -> list[dict[str, Any]]:
        return [row for rows in self.partitions for row in rows]

    def first(self) -> dict[str, Any]:
        return self.collect()[0]

    def _map(self, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> "FrameStub":
        return FrameStub([change(rows) for rows in self.partitions], self.schema)
