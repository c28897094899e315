"""How items become tasks, without a JVM."""

import collections
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from mqtool.spark import spread as module
from mqtool.spark.partitions import size_to_count
from mqtool.spark.spread import spread
from tests.spark.frames import Frames


def numbers(item: int) -> Iterator[Any]:
    yield pa.record_batch([[item]], ["number"])


@pytest.mark.parametrize(("items", "tasks"), [(0, 1), (1, 1), (7, 7), (100, 10)])
def test_of_very_many_items_a_task_takes_some_and_each_is_done_once(
    items: int, tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_TASKS", 10)

    frame = spread(Frames(), range(items), numbers, "number long")

    assert len(frame.partitions) == tasks
    assert collections.Counter(row["number"] for row in frame.collect()) == collections.Counter(range(items))
    sizes = [len(rows) for rows in frame.partitions]
    assert max(sizes) - min(sizes) <= 1


def test_a_cluster_with_very_many_cores_gets_tasks_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_TASKS", 1)
    frame = spread(Frames(), range(100), numbers, "number long")  # on two cores

    assert len(frame.partitions) == 8


@pytest.mark.parametrize(
    ("total", "cores", "size"),
    [
        (1 << 20, 2, 128 << 20),
        (16 << 30, 2, 2 << 30),
        (1 << 40, 2, 4 << 30),
        (20_000 << 30, 2, 40 << 30),  # five hundred tasks
        (100_000 << 30, 1600, 100_000 * (1 << 30) // 6400),  # four for each core
    ],
)
def test_a_task_that_gives_back_little_gets_more_of_a_large_log(total: int, cores: int, size: int) -> None:
    assert size_to_count(total, cores) == size
