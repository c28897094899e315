"""``salvage --merge``, judged by a reader that shares nothing with mqtool."""

import collections
import contextlib
import json
import random
from pathlib import Path

import pytest

from mqtool.engine.repair.salvage.merge import Merge, plan_merge
from mqtool.engine.repair.salvage.plan import MANIFEST, plan_salvage, salvage
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import BadDataError, NotFoundError, UsageError
from tests import builders
from tests.damage import Operation, apply_ops, snapshot
from tests.golden import copy_of, golden_store, manifest
from tests.judge.store import JudgedStore, Key
from tests.laws.damages import base_of, draw
from tests.laws.repairs import StatedLosses, config_of

BASES = [
    "mixed-533-kill",
    "mixed-497-clean",
    "txn-533-clean",
    "many-533-clean",
    "special-533-clean",
    "batchcq-533-clean",
]


def merged(left: Path, right: Path, into: Path, config: StoreConfig | None = None, jobs: int = 1) -> Merge:
    merge = plan_merge(StoreReader(left, config), StoreReader(right, config), jobs)
    salvage(merge.plan, into, Disk(), jobs)
    return merge


def wrong_in(store: Path) -> list[str]:
    return [str(found) for found in verify_store(StoreReader(store)) if found.severity != "note"]


def told_by(merge: Merge) -> StatedLosses:
    """Return all that a merge says is lost, moved or left out."""
    told = StatedLosses(counts=collections.Counter(merge.plan.lost))
    for one in merge.plan.skipped:
        if one.known:
            known = one.known
            told.add(known.topic, known.queue_id, known.queue_offset, known.queue_offset + known.batch_size)
    for (topic, queue_id), run, *_target in merge.plan.order.moved:
        told.add(topic, queue_id, run.start, run.stop)
    for row in merge.plan.left_out:
        told.add(row["topic"], row["queue_id"], row["queue_offset"], row["queue_offset"] + row["count"])
    return told


def lacking(before: list[JudgedStore], after: JudgedStore) -> set[Key]:
    """Return the places of queues of which either store had the message and the new one has none of theirs."""
    there = after.messages()
    had: dict[Key, set[bytes]] = collections.defaultdict(set)
    for store in before:
        for key, digests in store.messages(misplaced=True).items():
            had[key] |= digests
    keys = {key for store in before for key in store.messages()}
    return {key for key in keys if not had[key] & there.get(key, set())}


def how_it_went(base: str, stores: list[Path], into: Path) -> tuple[str, list[str]]:
    """Merge two stores; return the outcome, and what is violated: all that was sound in either is kept, or reported."""
    config = config_of(base, stores[0], is_told=True)
    judged = [JudgedStore(store, manifest(base)["config"]) for store in stores]
    before = [snapshot(store) for store in stores]
    try:
        merge = merged(stores[0], stores[1], into, config)
    except (BadDataError, NotFoundError):
        left, right = (one.records for one in judged)
        is_alike = any(right.get(at) == record for at, record in left.items())
        return "refused" if is_alike else "nothing in common", ["something was made"] * into.exists()
    after = JudgedStore(into, {**manifest(base)["config"], "commitLogPaths": ["commitlog"]})
    told = told_by(merge)
    for record in (*judged[0].records.values(), *judged[1].records.values()):
        if len(record.keys) > 1 and not told.lacks(record.keys[:1]):
            for name, queue_id, offset in record.keys[1:]:
                told.add(name, queue_id, offset, offset + 1)
    lost = merge.plan.lost.total()
    unqueued = (judged[0].unqueued() | judged[1].unqueued()) - after.unqueued()
    violations = [f"lost and not reported: {key}" for key in told.lacks(lacking(judged, after))]
    violations += ["more is in no queue than was reported"] * (unqueued.total() > lost)
    violations += ["a message cannot be reached"] * (not lost and not after.reachable() >= set(after.messages()))
    violations += ["a store was changed"] * ([snapshot(store) for store in stores] != before)
    return "lost" if lost else "whole", violations


def damaged_copies(base: str, chance: random.Random, folder: Path, kinds: set[str]) -> list[Path]:
    stores = []
    for name in ("a", "b"):
        store = copy_of(base, folder / name)
        for _ in range(chance.choice((0, 1, 1, 2))):
            kind, ops = draw(base_of(base), chance)
            with contextlib.suppress(OSError, ValueError):  # the second may fit no more
                apply_ops(store, ops)
            kinds.add(kind)
        stores.append(store)
    return stores


@pytest.mark.parametrize("seed", range(12))
def test_nothing_that_is_sound_in_either_store_is_lost_without_a_word(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    base = chance.choice(BASES)
    kinds: set[str] = set()
    stores = damaged_copies(base, chance, tmp_path, kinds)

    outcome, violations = how_it_went(base, stores, tmp_path / "new")

    assert violations == []
    assert outcome != "refused" or "grafted" in kinds


def zeroed(store: Path, at: int, size: int = 50, file_size: int = 4096) -> None:
    file = f"commitlog/{at // file_size * file_size:020}"
    apply_ops(store, [{"op": "zero", "file": file, "at": at % file_size, "len": size}])


DRAFTS = [
    builders.Draft(topic=f"T{number % 3}", body=b"b%d" % number * 9, pairs={"UNIQ_KEY": f"{number:032X}"})
    for number in range(100)
]


Pair = tuple[Path, Path, list[builders.Stored]]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    stored = builders.write_store(tmp_path / "a", DRAFTS)
    builders.write_store(tmp_path / "b", DRAFTS)
    return tmp_path / "a", tmp_path / "b", stored


def bodies(store: Path) -> list[bytes]:
    return [message.body for message in StoreReader(store).messages()]


def test_what_is_damaged_at_different_places_comes_out_whole(pair: Pair, tmp_path: Path) -> None:
    left, right, stored = pair
    for number in (0, 20, 21, 60, 99):
        zeroed(left, stored[number].physical_offset)
    for number in (1, 22, 30, 98):
        zeroed(right, stored[number].physical_offset)
    (left / "commitlog" / f"{8192:020}").unlink()

    merge = merged(left, right, tmp_path / "new", jobs=2)

    assert bodies(tmp_path / "new") == [draft.body for draft in DRAFTS]
    assert wrong_in(tmp_path / "new") == []
    assert not merge.plan.lost
    assert not merge.plan.skipped
    rows = [json.loads(line) for line in (tmp_path / "new" / MANIFEST).read_text().splitlines()]
    sources = [row for row in rows if row["kind"] == "source"]
    assert sum(row["message_count"] for row in sources) == 100
    assert merge.plan.from_each
    by_store = collections.Counter({row["store"]: 0 for row in sources})
    for row in sources:
        by_store[row["store"]] += row["message_count"]
    assert [by_store[str(store)] for store in (left, right)] == [each.total() for each in merge.plan.from_each]
    assert all(each.total() for each in merge.plan.from_each)


def test_messages_of_another_log_that_lie_in_one_copy_are_told(pair: Pair, tmp_path: Path) -> None:
    left, right, stored = pair
    foreign = builders.write_store(tmp_path / "c", [builders.Draft(topic="Foreign", body=b"f" * 40)] * 4)
    first, last = foreign[1], foreign[2]
    data = (tmp_path / "c/commitlog" / f"{0:020}").read_bytes()[first.physical_offset : foreign[3].physical_offset]
    zeroed(right, stored[20].physical_offset, 600)
    with (right / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(stored[20].physical_offset)
        file.write(data)

    merge = merged(left, right, tmp_path / "new")

    assert bodies(tmp_path / "new") == [draft.body for draft in DRAFTS]
    assert {(one.known.topic, one.known.queue_offset) for one in merge.plan.skipped if one.known} == {
        ("Foreign", first.queue_offset),
        ("Foreign", last.queue_offset),
    }
    assert merge.plan.lost == {"Foreign": 2}


FIRST, SECOND = (f"commitlog/{start:020}" for start in (0, 4096))
BOTH_DAMAGED = {
    "swapped": {"op": "swap bytes", "file": FIRST, "at": 512, "len": 1024, "to": SECOND, "to_at": 512},
    "written over": {"op": "copy", "file": FIRST, "at": 0, "len": 4096, "to": SECOND, "to_at": 0},
    "shifted": {"op": "insert", "file": FIRST, "at": 600, "hex": "00" * 64, "keep": True},
}


@pytest.mark.parametrize("op", BOTH_DAMAGED.values(), ids=list(BOTH_DAMAGED))
def test_what_lies_elsewhere_in_both_copies_goes_back_as_it_does_where_there_is_one(
    op: Operation, pair: Pair, tmp_path: Path
) -> None:
    left, right, _ = pair
    for store in (left, right):
        apply_ops(store, [op])

    plan = plan_salvage(StoreReader(left))
    salvage(plan, tmp_path / "one", Disk())
    merge = merged(left, right, tmp_path / "new")

    assert bodies(tmp_path / "new") == bodies(tmp_path / "one")
    assert (merge.plan.lost, merge.plan.placeholders) == (plan.lost, plan.placeholders)
    told = [one for one in plan.remarks if "lie elsewhere" in one]
    assert [one for one in merge.plan.remarks if "lie elsewhere" in one] == [
        f"{store}: {one}" for store in (left, right) for one in told
    ]


def test_what_is_put_back_in_one_copy_gives_way_to_what_the_other_has_there(pair: Pair, tmp_path: Path) -> None:
    left, right, stored = pair
    at = stored[5].physical_offset
    foreign = builders.write_store(tmp_path / "c", [builders.Draft(topic="Foreign", body=b"f" * 9)] * 20)
    there = [one.record for one in foreign if at <= one.physical_offset < at + 400][:2]
    zeroed(left, at, 800)
    with (left / "commitlog" / f"{8192:020}").open("r+b") as file:
        file.write(b"".join(there))

    merge = merged(left, right, tmp_path / "new")

    assert bodies(tmp_path / "new") == [draft.body for draft in DRAFTS]
    assert merge.plan.lost == {"Foreign": 2}


def test_what_is_damaged_in_both_is_told_as_lost(pair: Pair, tmp_path: Path) -> None:
    left, right, stored = pair
    for store in (left, right):
        zeroed(store, stored[30].physical_offset)

    merge = merged(left, right, tmp_path / "new")

    assert (merge.plan.lost, merge.plan.placeholders) == ({"T0": 1}, {"T0": 1})
    assert wrong_in(tmp_path / "new") == []


def test_a_segment_that_only_one_has_is_taken_from_it(pair: Pair, tmp_path: Path) -> None:
    left, right, _ = pair
    segments = sorted(path.name for path in (left / "commitlog").iterdir())
    for store, gone in ((left, segments[::2]), (right, segments[1::2][:-1])):
        for name in gone:
            (store / "commitlog" / name).unlink()

    merged(left, right, tmp_path / "new")

    assert bodies(tmp_path / "new") == [draft.body for draft in DRAFTS]
    assert wrong_in(tmp_path / "new") == []


def test_segments_with_wrong_names_are_taken_where_their_records_belong(pair: Pair, tmp_path: Path) -> None:
    left, right, stored = pair
    apply_ops(left, [{"op": "swap", "path": f"commitlog/{0:020}", "to": f"commitlog/{8192:020}"}])
    zeroed(right, stored[5].physical_offset)

    merge = merged(left, right, tmp_path / "new")

    assert bodies(tmp_path / "new") == [draft.body for draft in DRAFTS]
    assert sum("its records say so" in remark for remark in merge.plan.remarks) == 2


def test_the_end_of_a_shorter_copy_comes_from_the_longer_one(tmp_path: Path) -> None:
    stored = builders.write_store(tmp_path / "a", DRAFTS)
    builders.write_store(tmp_path / "b", DRAFTS[:70])
    zeroed(tmp_path / "a", stored[10].physical_offset)

    merge = merged(tmp_path / "b", tmp_path / "a", tmp_path / "new")

    assert bodies(tmp_path / "new") == [draft.body for draft in DRAFTS]
    assert merge.base == 1


def test_segments_of_different_sizes_go_together(pair: Pair, tmp_path: Path) -> None:
    left, right, stored = pair
    folder = right / "commitlog"
    whole = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    for path in folder.iterdir():
        path.unlink()
    builders.write_files(folder, whole, 16384)
    zeroed(left, stored[33].physical_offset)
    zeroed(right, stored[44].physical_offset, file_size=16384)

    merged(left, right, tmp_path / "new")

    assert bodies(tmp_path / "new") == [draft.body for draft in DRAFTS]


def test_a_repaired_store_gets_its_messages_back_from_a_backup(pair: Pair, tmp_path: Path) -> None:
    from mqtool.engine.repair import plan as plans

    left, right, stored = pair
    zeroed(left, stored[30].physical_offset, stored[33].physical_offset - stored[30].physical_offset)
    request = "recover", {"mode": "abnormal", "cut": False}
    plans.carry_out(left, StoreConfig(), plans.plan_repair(left, StoreConfig(), *request), Disk())
    assert any(one.is_placeholder for one in JudgedStore(left, builders.StoreSizes().settings).records.values())

    merge = merged(left, right, tmp_path / "new")

    assert bodies(tmp_path / "new") == [draft.body for draft in DRAFTS]
    assert not merge.plan.lost


def test_of_copies_that_part_the_one_that_went_on_is_followed_and_the_rest_told(tmp_path: Path) -> None:
    ours = [*DRAFTS[:60], *(builders.Draft(topic="T1", body=b"ours%d" % number) for number in range(50))]
    stored = builders.write_store(tmp_path / "a", DRAFTS)
    builders.write_store(tmp_path / "b", ours)
    zeroed(tmp_path / "b", stored[10].physical_offset)

    merge = merged(tmp_path / "a", tmp_path / "b", tmp_path / "new")

    assert bodies(tmp_path / "new") == [draft.body for draft in ours]
    assert (merge.base, merge.logs.parted_at) == (1, stored[60].physical_offset)
    assert merge.plan.lost == {"T0": 14, "T1": 13, "T2": 13}
    assert [(row["topic"], row["queue_offset"], row["count"]) for row in merge.plan.left_out] == [
        ("T0", 20, 14),
        ("T1", 20, 13),
        ("T2", 20, 13),
    ]


def test_of_two_that_seem_sound_the_one_that_its_queue_leads_to_is_taken(pair: Pair, tmp_path: Path) -> None:
    left, right, stored = pair
    at = stored[50].physical_offset
    apply_ops(
        left, [{"op": "write", "file": f"commitlog/{at // 4096 * 4096:020}", "at": at % 4096 + 15, "hex": "07"}]
    )  # another queue

    merge = merged(left, right, tmp_path / "new")

    assert wrong_in(tmp_path / "new") == []
    assert bodies(tmp_path / "new") == [draft.body for draft in DRAFTS]
    assert not merge.plan.lost  # no queue leads to what the other one says
    (row,) = merge.plan.left_out
    assert (row["store"], row["queue_id"], row["physical_offset"]) == (str(left), 7, at)


@pytest.mark.parametrize("has_other", [False, True])
def test_what_cannot_be_right_in_one_copy_is_taken_from_the_other_or_gets_the_place_that_its_unit_tells(
    has_other: bool, pair: Pair, tmp_path: Path
) -> None:
    left, right, stored = pair
    moved, lost = stored[50].physical_offset, stored[33].physical_offset
    zeroed(right, lost)
    if not has_other:
        zeroed(right, moved)
    write = {"op": "write", "file": f"commitlog/{moved // 4096 * 4096:020}", "at": moved % 4096 + 27, "hex": "63"}
    apply_ops(left, [write])  # another queue offset

    merge = merged(left, right, tmp_path / "new")

    assert bodies(tmp_path / "new") == [draft.body for draft in DRAFTS]
    assert wrong_in(tmp_path / "new") == []
    assert not merge.plan.lost
    rows = [json.loads(line) for line in (tmp_path / "new" / MANIFEST).read_text().splitlines()]
    told = [row for row in rows if row.get("physical_offset") == moved and row["kind"] != "source"]
    assert [row["kind"] for row in told] == (["left out"] if has_other else ["moved", "edited"])
    assert told[0]["queue_offset"] == 0x63


@pytest.mark.parametrize("other", ["mixed-533-kill", "many-533-clean", "dledger-497-clean"])
def test_copies_of_different_logs_are_refused(other: str, tmp_path: Path) -> None:
    with pytest.raises(BadDataError):
        merged(golden_store("mixed-533-clean"), golden_store(other), tmp_path / "new")

    assert not (tmp_path / "new").exists()


def test_logs_that_part_and_join_again_are_refused(tmp_path: Path) -> None:
    builders.write_store(tmp_path / "a", DRAFTS)
    builders.write_store(tmp_path / "b", [builders.Draft(body=b"other%d" % number) for number in range(90)])
    for name in (f"{0:020}", f"{12288:020}"):
        (tmp_path / "b" / "commitlog" / name).write_bytes((tmp_path / "a" / "commitlog" / name).read_bytes())

    with pytest.raises(BadDataError, match="followed by the same ones"):
        merged(tmp_path / "a", tmp_path / "b", tmp_path / "new")


def test_a_first_segment_that_neither_copy_has_is_told_as_lost_by_the_units_that_lead_there(tmp_path: Path) -> None:
    base = "special-497-clean"
    stores = left, right = copy_of(base, tmp_path / "a"), copy_of(base, tmp_path / "b")
    size = int(manifest(base)["config"]["mappedFileSizeCommitLog"])
    first = "commitlog/00000000000000000000"
    graft = {"op": "graft", "base": "special-550-kill", "path": f"commitlog/{size:020}", "to": first}
    for store in stores:
        apply_ops(store, [graft])
    gone = {key for record in base_of(base).judged.records.values() if record.position < size for key in record.keys}

    merge = merged(left, right, tmp_path / "new", config_of(base, left, is_told=True))
    kept = set(JudgedStore(tmp_path / "new", manifest(base)["config"]).messages())

    assert gone - kept
    assert told_by(merge).lacks(gone - kept) == []


def test_a_store_is_not_merged_with_itself(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give two copies"):
        merged(golden_store("mixed-533-clean"), golden_store("mixed-533-clean"), tmp_path / "new")
