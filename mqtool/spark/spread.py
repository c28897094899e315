"""Work spread over the executors: one task for each of some items, whose results are Arrow batches.

Only ``mapInArrow`` is used, so it also runs on Spark Connect. Items are rows of a DataFrame, so a task gets only
its own; what all of them share is sent along with the work, once.
"""

import functools
import gc
import io
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import zstandard

from mqtool.spark.session import cores_of

Item = TypeVar("Item")
_MAX_TASKS = 1_000
_TASKS_A_CORE = 4


class Common:
    """A value that many items share, and that is sent once; it must be hashable."""


class _Packer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, common: dict[Common, int]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._common = common

    def persistent_id(self, value: object) -> int | None:
        return self._common.setdefault(value, len(self._common)) if isinstance(value, Common) else None


class _Unpacker(pickle.Unpickler):
    def __init__(self, data: bytes, common: tuple[Common, ...]) -> None:
        super().__init__(io.BytesIO(data))
        self._common = common

    def persistent_load(self, number: int) -> Common:
        return self._common[number]


class _BroadcastValue:
    """A shared value, as it is sent."""

    def __init__(self, common: Iterable[Common]) -> None:
        self._token = uuid.uuid4().hex
        self._packed = zstandard.compress(pickle.dumps(tuple(common), pickle.HIGHEST_PROTOCOL))

    def __hash__(self) -> int:
        return hash(self._token)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BroadcastValue) and self._token == other._token

    @functools.lru_cache(maxsize=4)  # noqa: B019 - once for each process, however many of its tasks there are
    def get(self) -> tuple[Common, ...]:
        common: tuple[Common, ...] = pickle.loads(zstandard.decompress(self._packed))
        return common


@functools.cache
def spare_the_loaded() -> None:
    """Have the collector of garbage skip what this process has loaded by now.

    PySpark collects garbage after each task, which with numpy and the kernels loaded takes longer than some tasks.
    """
    gc.freeze()


def spread(spark: Any, items: Iterable[Item], work: Callable[[Item], Iterable[Any]], schema: Any) -> Any:
    """Return the DataFrame of what ``work`` makes of all items.

    Cost: some hundred bytes on the driver for each item, beside what ``Common`` it holds. Of very many items a task
    takes some, one after another: Spark's driver keeps more of each task than that.

    Args:
        spark: the session.
        items: one becomes one task, if there are not too many.
        work: makes ``pyarrow.RecordBatch`` of an item.
        schema: the columns of these, as Spark takes them.
    """
    common: dict[Common, int] = {}
    rows = []
    for item in items:
        file = io.BytesIO()
        _Packer(file, common).dump(item)
        rows.append((file.getvalue(),))
    shared = _BroadcastValue(common)

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for data in batch.column(0).to_pylist():
                yield from work(_Unpacker(data, shared.get()).load())
                spare_the_loaded()

    tasks = min(len(rows), max(_MAX_TASKS, _TASKS_A_CORE * (cores_of(spark) or 0)))
    # Of one partition, rows go to others in turn: one to each.
    frame = spark.createDataFrame(rows, "item binary", verifySchema=False).coalesce(1).repartition(max(1, tasks))
    return frame.mapInArrow(run, schema)
