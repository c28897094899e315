"""What a plan says that the repaired log will lead to is what the log that it writes leads to."""

from pathlib import Path

import pytest

from mqtool.engine.repair.plan import carry_out, plan_repair
from mqtool.engine.repair.recover.planned_log import derive
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.commit_log import Gap
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.dispatch import Units, dispatch
from mqtool.engine.store.reader import StoreReader
from tests.engine.repair.recorded import config_of
from tests.golden import copy_of

Row = tuple[str, int, int, int, int, int, int, int]


def rows_of(units: Units) -> list[Row]:
    columns = ("queue_offset", "physical_offset", "size", "tags_code", "store_timestamp", "batch_size")
    listed = list(zip(*(getattr(units, name).tolist() for name in columns), strict=True))
    return [(*queue, *row) for queue, first, last in units.stretches for row in listed[first:last]]


def by_queue(rows: list[Row]) -> dict[tuple[str, int], list[Row]]:
    """Return the rows of each queue in their order."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault(row[:2], []).append(row)
    return found


@pytest.mark.parametrize(
    "base",
    ["mixed-533-clean", "txn-533-clean", "batchcq-533-clean", "special-550-kill", "propcrc-533-clean"],
)
@pytest.mark.parametrize("is_missing", [True, False], ids=["a segment is missing", "a segment is full of holes"])
@pytest.mark.parametrize("jobs", [1, 3])
def test_units_of_messages_that_are_lost_are_foretold(
    base: str, is_missing: bool, jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqtool.engine.repair.recover.log._PART", 10_000)
    monkeypatch.setattr("mqtool.engine.repair.recover.planned_log._PART", 10_000)
    store, config = copy_of(base, tmp_path), config_of(base)
    segments = sorted((store / "commitlog").iterdir())
    target = segments[1 if len(segments) > 2 else 0]
    if is_missing and len(segments) > 2:
        target.unlink()
    else:
        data = target.read_bytes()
        target.write_bytes(b"".join(data[at : at + 3000] + bytes(3000) for at in range(0, len(data), 6000)))
    plan = plan_repair(store, config, "recover", {"mode": "abnormal"})
    foretold = [
        row
        for units, _ in derive(plan.found.reader, plan.found.log, 0, tags_in_index=False, jobs=jobs)
        for row in rows_of(units)
        if row[3] not in plan.found.log.odd
    ]
    carry_out(store, config, plan, Disk())

    reader = StoreReader(store, config)
    written = [
        row
        for table in reader.tables()
        if not isinstance(table, Gap)
        for row in rows_of(dispatch(table, reader.delay_levels).units)
    ]
    assert plan.found.log.losses.rows()
    assert by_queue(foretold) == by_queue(written)


@pytest.mark.parametrize("has_hole", [True, False], ids=["with a hole in the same segment", "with a hole elsewhere"])
def test_what_is_put_back_has_its_units_where_the_log_has_holes_too(has_hole: bool, tmp_path: Path) -> None:
    base = "mixed-497-kill"
    store, config = copy_of(base, tmp_path), config_of(base)
    path = store / f"commitlog/{196608:020}"
    data = path.read_bytes()
    starts = [
        message.position - 196608 for message in StoreReader(store, config).messages() if message.position >= 196608
    ]
    cut, lost = starts[-20] + 50, starts[3 if has_hole else -20]
    if has_hole:
        data = data[: lost + 100] + bytes(50) + data[lost + 150 :]
    path.write_bytes(data[:cut] + data[cut + 496 :] + bytes(496))

    plan = plan_repair(store, config, "recover", {"mode": "abnormal"})
    carry_out(store, config, plan, Disk())

    assert plan.losses
    assert [str(one) for one in verify_store(StoreReader(store, config)) if one.severity != "note"] == []
    assert plan_repair(store, config, "recover", {"mode": "abnormal"}).changes == ()
