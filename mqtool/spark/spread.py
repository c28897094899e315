"""Work that is spread over the executors: one task for each of some items, whose results are Arrow batches.

Nothing but ``mapInArrow`` is used, so it runs on Spark Connect too. Items go along with the work, packed; a worker
process unpacks them once, however many of its tasks there are.
"""

import functools
import gc
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import zstandard

Item = TypeVar("Item")


class Shared(Generic[Item]):
    """A value that all tasks share."""

    def __init__(self, value: Item) -> None:
        self._token = uuid.uuid4().hex
        self._packed = zstandard.compress(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))

    def get(self) -> Item:
        """Return it, unpacked once for each process."""
        value: Item = _unpacked(self)
        return value

    def __hash__(self) -> int:
        return hash(self._token)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shared) and self._token == other._token

    def unpack(self) -> Any:
        """Return a new copy."""
        return pickle.loads(zstandard.decompress(self._packed))


@functools.lru_cache(maxsize=4)
def _unpacked(shared: Shared[Any]) -> Any:
    return shared.unpack()


@functools.cache
def spare_the_loaded() -> None:
    """Have the collector of garbage pass over what this process has loaded by now.

    PySpark collects in full behind each task, which takes longer with numpy and the kernels loaded than some tasks do.
    """
    gc.freeze()


def spread(spark: Any, items: Sequence[Item], work: Callable[[Item], Iterable[Any]], schema: Any) -> Any:
    """Return the DataFrame of what ``work`` makes of all items.

    Args:
        spark: the session.
        items: one becomes one task.
        work: makes ``pyarrow.RecordBatch`` of an item.
        schema: the columns of these, as Spark takes them.
    """
    shared = Shared(list(items))

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from work(shared.get()[number])
                spare_the_loaded()

    count = len(shared.get())
    return spark.range(0, count, 1, max(1, count)).mapInArrow(run, schema)
