"""``verify`` in pieces, without Spark: each piece judged by itself, in any order, with nothing shared but files."""

import collections
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqtool.engine.repair.verify.store import Level, verify_store
from mqtool.spark import verify
from mqtool.spark.stores import Store, find_stores
from tests import damage
from tests.damage import DamageCase, cases
from tests.golden import GOLDEN_NAMES, copy_of, golden_store


@pytest.fixture(scope="module", params=["ext-533-clean", "mixed-550-kill"])
def victim(request: pytest.FixtureRequest) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    yield copy_of(request.param, folder)
    shutil.rmtree(folder)


def gathered(scope: verify.VerifyScope, items: list[verify.VerifyTask]) -> list[tuple[int, bytes]]:
    """Judge items in their order, and join what is found level by level, as Spark would."""
    batches = [batch for item in items for batch in verify.verify_task(item)]
    for size in [*verify.levels([scope]), None]:
        rows = pa.Table.from_batches(batches).sort_by([("segment", "ascending"), ("start", "ascending")])
        if size is not None:
            batches = list(verify.gather([scope], size, rows.to_batches()))
    return [(row["segment"], row["report"]) for row in rows.to_pylist()]


def in_pieces(store: Store, level: Level, partition_size: int, seed: int = 0) -> collections.Counter[str]:
    """Judge all pieces in random order, join them as Spark would."""
    (scope,), items = verify.plan([store], level, partition_size)
    random.Random(seed).shuffle(items)
    found = verify.join(scope, gathered(scope, items))
    table = verify.findings_batch(store.path, list(found))
    return collections.Counter(repr(verify.finding_of(row)) for row in table.to_pylist())


def at_once(store: Store, level: Level) -> collections.Counter[str]:
    return collections.Counter(repr(found) for found in verify_store(store.open(), level))


def small_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("mqtool.engine.repair.verify.store", "mqtool.spark.verify"):
        monkeypatch.setattr(f"{module}.PART", 8192)
    monkeypatch.setattr("mqtool.spark.verify.FAN", 2)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_a_golden_store_in_pieces_gives_the_findings_of_verify(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small_stretches(monkeypatch)
    (store,) = find_stores([str(golden_store(name))], {})

    for level in Level:
        assert in_pieces(store, level, 20_000) == at_once(store, level)
    assert in_pieces(store, Level.FULL, 1 << 30) == at_once(store, Level.FULL)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_a_damaged_store_in_pieces_gives_the_findings_of_verify(
    case: DamageCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_stretches(monkeypatch)
    (store,) = find_stores([str(case.store(tmp_path))], {})

    whole = at_once(store, Level.FULL)
    assert in_pieces(store, Level.FULL, 20_000) == whole
    assert in_pieces(store, Level.FULL, 1 << 30) == whole


@settings(max_examples=8)
@given(data=st.data(), seed=st.integers(0, 99), size=st.sampled_from([9000, 20_000, 1 << 30]))
def test_any_damage_in_pieces_gives_the_findings_of_verify(
    victim: Path, data: st.DataObject, seed: int, size: int
) -> None:
    harm = st.one_of(*(kind(victim, "commitlog/*") for kind in (damage.flips, damage.copies, damage.zeroes)))
    ops = data.draw(st.lists(harm, min_size=1, max_size=4))
    with damage.damaged(victim, *ops), pytest.MonkeyPatch.context() as patch:
        store = Store(str(victim))
        whole = at_once(store, Level.FULL)
        small_stretches(patch)

        assert in_pieces(store, Level.FULL, size, seed) == whole


@pytest.mark.parametrize("name", ["mixed-533-clean", "mixed-550-clean", "txn-497-clean", "dledger-497-clean"])
def test_of_a_sound_store_no_index_entry_is_made_twice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small_stretches(monkeypatch)
    (store,) = find_stores([str(golden_store(name))], {})

    def make(*_: object) -> None:
        raise AssertionError("the entries of a run are made again, though they are in the index")

    monkeypatch.setattr("mqtool.engine.repair.verify.distributed.entries_of", make)

    assert in_pieces(store, Level.FULL, 20_000) == at_once(store, Level.FULL)


def test_a_segment_that_goes_while_the_pieces_are_judged_ends_nothing(tmp_path: Path) -> None:
    store = Store(str(copy_of("mixed-533-clean", tmp_path)))
    (scope,), items = verify.plan([store], Level.FULL, 20_000)
    first = min(Path(store.path, "commitlog").iterdir())

    first.unlink()
    found = verify.join(scope, gathered(scope, items))

    assert [one.code for one in found if one.severity != "note"] == []


def test_a_worker_keeps_no_segment_mapped_that_it_has_judged() -> None:
    (scope,), items = verify.plan([Store(str(golden_store("mixed-533-clean")))], Level.FULL, 1 << 30)

    gathered(scope, items)

    segments = verify._verifier_of(scope).reader.commit_log.segments
    assert len(segments) > 1
    assert not any(segment.is_mapped for segment in segments)


def test_where_records_of_another_place_lie_no_unit_is_told_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = copy_of("mixed-550-kill", tmp_path)
    segments = sorted((root / "commitlog").iterdir())
    segments[1].write_bytes(segments[2].read_bytes())
    store = Store(str(root))

    whole = at_once(store, Level.FULL)

    assert max(whole.values()) == 1
    small_stretches(monkeypatch)
    assert at_once(store, Level.FULL) == in_pieces(store, Level.FULL, 20_000) == whole


@pytest.mark.parametrize("count", [1, 3])
def test_segments_that_go_before_groups_are_joined_are_left_out_alone(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_stretches(monkeypatch)
    root = copy_of("mixed-533-clean", tmp_path)
    store = Store(str(root))
    (scope,), items = verify.plan([store], Level.FULL, 20_000)
    groups = gathered(scope, items)

    for segment in sorted((root / "commitlog").iterdir())[:count]:
        segment.unlink()
    found = verify.join(scope, groups)

    assert [one.code for one in found if one.severity != "note"] == []
