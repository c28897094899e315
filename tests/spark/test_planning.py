"""What a driver does before Spark begins: it grows with the segments of a store, not with their square."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from mqtool.engine.repair.verify.store import Level
from mqtool.engine.store.search import Query
from mqtool.engine.store.stats import Selection
from mqtool.spark import compare, export, find, offsets, rebuild, stats, verify
from mqtool.spark.partitions import MAX_PARTITION, log_ranges
from mqtool.spark.stores import Store, opened_once
from mqtool.spark.tables import TABLES
from tests.campaigns.spark_scale import make_store
from tests.cost import counted

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
