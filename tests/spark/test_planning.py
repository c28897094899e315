"""What a driver does before Spark begins, and what its tasks do: both grow with a store, not with its square."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from mqtool.engine.repair.verify.store import Level
from mqtool.engine.store.search import Query
from mqtool.engine.store.stats import By, Selection
from mqtool.spark import compare, export, find, offsets, rebuild, stats, verify
from mqtool.spark.partitions import MAX_PARTITION, log_ranges
from mqtool.spark.stores import Store, opened_once
from mqtool.spark.tables import TABLES
from tests.campaigns.spark_scale import make_store
from tests.cost import counted
from tests.spark.frames import Frames
from tests.spark.test_verify_distributed import in_pieces

SIZE = 1 << 30
_WHOLE = dataclasses.replace(export._ASK, max_partition=SIZE)
PLANS: dict[str, Callable[[Store], object]] = {
    "stats": lambda store: list(stats._ranges(store, Selection(), MAX_PARTITION)),
    "find": lambda store: find.plan([(store, Query(keys=("k7",)))], MAX_PARTITION, use_index=True),
    "find --scan": lambda store: find.plan([(store, Query(texts=("body",)))], MAX_PARTITION, use_index=False),
    "verify": lambda store: verify.plan([store], Level.FULL, MAX_PARTITION),
    "offsets": lambda store: offsets.tasks([store], MAX_PARTITION),
    "compare --by offset": lambda store: compare._aligned(store, store, MAX_PARTITION),
    "export": lambda store: TABLES["messages"].parts(store, store.open(), export._ASK),
    "rebuild": lambda store: rebuild.plan(store, True, True, None, None, MAX_PARTITION),
}


@pytest.mark.parametrize("with_holes", [False, True])
@pytest.mark.parametrize("job", PLANS)
def test_a_driver_plans_four_times_the_segments_with_four_times_the_steps(
    job: str, with_holes: bool, tmp_path: Path
) -> None:
    steps = []
    for count in (60, 240):
        root = make_store(tmp_path / str(count), count, queues=8, messages=2)
        if with_holes and job != "rebuild":  # which refuses such a log
            for file in sorted((root / "commitlog").iterdir())[1:-1:3]:
                file.unlink()
        with counted() as done, opened_once():
            PLANS[job](Store(str(root)))
        steps.append(done.total)

    assert steps[1] < 5 * steps[0]


def _worked(items: Iterable[Any], work: Callable[[Any], Iterable[object]]) -> None:
    for item in items:
        for _ in work(item):
            pass


JOBS: dict[str, Callable[[Store, Path], object]] = {
    "stats": lambda store, _: stats.counts(Frames(), [store], By.QUEUE, Selection(), SIZE),
    "find": lambda store, _: _worked(
        find.plan([(store, Query(texts=("body",)))], SIZE, use_index=True).items, find.find
    ),
    "verify": lambda store, _: in_pieces(store, Level.FULL, SIZE),
    "offsets": lambda store, _: _worked(offsets.tasks([store], SIZE), offsets.find),
    "compare --by offset": lambda store, _: _worked(compare._aligned(store, store, SIZE), compare.compare),
    "export": lambda store, _: _worked(
        (export.ExportTask(part, export._ASK.bounds) for part in TABLES["messages"].parts(store, store.open(), _WHOLE)),
        export.read,
    ),
    "rebuild": lambda store, into: rebuild.run(
        Frames(), store, into, queues=True, index=True, topics=None, version=None, partition_size=SIZE
    ),
}


@pytest.mark.parametrize("job", JOBS)
def test_tasks_take_four_times_the_steps_for_four_times_the_segments_and_queues(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("repair.verify.store", "repair.rebuild.plan"):
        monkeypatch.setattr(f"mqtool.engine.{module}.PART", SIZE)
    for module in ("verify", "rebuild"):
        monkeypatch.setattr(f"mqtool.spark.{module}.PART", SIZE)  # few stretches hide less of what grows
    monkeypatch.setattr(compare, "MAX_PARTITION", SIZE)
    steps = []
    for count in (60, 240):
        store = Store(str(make_store(tmp_path / str(count), count, queues=count, messages=2)))
        with counted() as done, opened_once():
            JOBS[job](store, tmp_path / f"{count}.new")
        steps.append(done.total)

    assert steps[1] < 4.5 * steps[0]


def test_ranges_of_part_of_a_log_are_those_of_all_of_it_cut_there(tmp_path: Path) -> None:
    store = Store(str(make_store(tmp_path / "store", 12, queues=8, messages=2)))
    reader = store.open()
    segments = reader.commit_log.segments
    size = segments[0].size

    for start, stop in (
        (0, 1),
        (size - 1, size + 1),
        (2 * size, 3 * size),
        (5 * size + 7, 9 * size - 7),
        (11 * size, 99 * size),
    ):
        parts = log_ranges(store, reader, size // 3, start, stop)
        assert [(part.address, part.start_offset + part.stop, part.following) for part in parts] == [
            (max(low, start), min(high, stop), segment is not segments[-1])
            for segment in segments
            for low, high in itertools.pairwise(
                [segment.start_offset + at for at in (*range(0, size, size // 3), size)]
            )
            if max(low, start) < min(high, stop)
        ]
