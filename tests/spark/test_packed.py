"""Stores with compressed segments on Spark: what a task says of one is what it says of the plain store; no JVM."""

import collections
import random
from pathlib import Path
from typing import Any

import pytest

from mqtool.engine.repair.verify.store import Level, verify_store
from mqtool.engine.store.search import Query
from mqtool.engine.store.stats import By, Selection
from mqtool.errors import NotFoundError, UsageError
from mqtool.spark import find, stats, verify
from mqtool.spark.partitions import RangeReader, UnreadablePlace, log_ranges
from mqtool.spark.stores import Store, find_stores
from tests.builders import Draft, StoreSizes, write_store
from tests.commands.test_compressed_copies import PACKERS, archive, pack_segments
from tests.damage import DamageCase, cases_of_the_log
from tests.golden import copy_of, golden_store
from tests.spark import reading
from tests.spark.test_verify_distributed import in_pieces, small_stretches

SMALL = 20_000
GOLDEN = "mixed-533-kill"
DAMAGED = cases_of_the_log()


def packed(root: Path) -> Store:
    (store,) = find_stores([str(root)], {}, unpacks=True)
    return store


def rows_of(batches: Any, *without: str) -> "collections.Counter[str]":
    rows = (row for batch in batches for row in batch.to_pylist())
    return collections.Counter(repr(sorted((k, v) for k, v in row.items() if k not in without)) for row in rows)


def told(store: Store) -> list["collections.Counter[str]"]:
    """Return what tasks count, and find."""
    items = [stats.StatsTask(parts, By.QUEUE, Selection()) for parts in stats._ranges(store, Selection(), SMALL)]
    plan = find.plan([(store, Query(texts=("1",)))], SMALL, use_index=False)
    counted: collections.Counter[str] = collections.Counter()
    for item in items:
        for batch in stats.count(item):
            for row in batch.to_pylist():
                key = repr([row[name] for name in ("topic", "queue_id")])
                counted.update({f"{key} {name}": row[name] or 0 for name in ("messages", "size", "lost", "faulty")})
    return [counted, rows_of((batch for item in plan.items for batch in find.find(item)), "store", "_corrupt_record")]


def of_the_log(store: Store) -> "collections.Counter[str]":
    reader = store.open()
    found = collections.Counter(map(repr, verify_store(reader.log_alone(), Level.FULL)))
    return collections.Counter({text.replace(".gz", "").replace(".zst", ""): n for text, n in found.items()})


@pytest.mark.parametrize("form", PACKERS)
def test_compressed_segments_are_counted_searched_and_read_as_plain_ones(form: str, tmp_path: Path) -> None:
    plain = Store(str(golden_store(GOLDEN)))
    store = packed(pack_segments(copy_of(GOLDEN, tmp_path), form))

    assert told(store) == told(plain)
    tables = [reading.read(one.path) for one in (store, plain)]
    kept = [[{k: v for k, v in row.items() if k != "store"} for row in rows] for rows in tables]
    assert kept[0] == kept[1]
    assert kept[0]


@pytest.mark.parametrize("case", DAMAGED, ids=lambda case: case.name)
def test_of_compressed_segments_verify_finds_what_it_finds_in_the_log_of_the_plain_ones(
    case: DamageCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = case.store(tmp_path / "store")
    wanted = of_the_log(Store(str(root)))
    store = packed(pack_segments(root))

    small_stretches(monkeypatch)
    found = in_pieces(store, Level.FULL, SMALL)

    plain: collections.Counter[str] = collections.Counter()
    for text, count in found.items():
        plain[text.replace(".gz", "")] += count
    assert plain == wanted
    assert told(store)[0]


def test_what_needs_more_than_the_log_and_archives_are_refused_in_a_sentence(tmp_path: Path) -> None:
    root = pack_segments(copy_of(GOLDEN, tmp_path))
    made = archive(golden_store(GOLDEN), tmp_path / "store.tar")

    with pytest.raises(UsageError, match="is compressed: unpack it first"):
        verify.plan(find_stores([str(root)], {}), Level.FULL, SMALL)
    with pytest.raises(
        UsageError, match=r"store\.tar is an archive, which a single task would have to read: unpack it"
    ):
        packed(made)
    with pytest.raises((UsageError, NotFoundError)):
        find_stores([str(made)], {})


@pytest.mark.parametrize("form", PACKERS)
def test_long_compressed_segments_are_unpacked_once(form: str, tmp_path: Path) -> None:
    drafts = [Draft(body=random.Random(number).randbytes(number * 7919 % 90_000)) for number in range(500)]
    stored = write_store(tmp_path, drafts, StoreSizes(segment=16 << 20))
    (part, *_) = log_ranges(packed(pack_segments(tmp_path, form)), packed(tmp_path).open())

    with RangeReader(part) as reader:
        tables = [
            piece.column("position").tolist() for piece in reader.tables() if not isinstance(piece, UnreadablePlace)
        ]
        assert reader.segment.spool
        assert reader.segment.spool.kept >= stored[200].physical_offset  # behind the walk as well

    assert [position for some in tables for position in some] == [
        one.physical_offset for one in stored if one.physical_offset < 16 << 20
    ]
