"""A few dozen generated damages keep the laws; ``python -m tests.campaigns.laws`` is the long form."""

from pathlib import Path
from typing import Any

import pytest

from mqtool.engine.repair.plan import Loss, Plan
from mqtool.engine.store.paths import StoreConfig
from tests.laws.cases import WITH_PROPERTIES_FROM, Damage, LawCase, case_of
from tests.laws.damages import BASES, KINDS, base_of
from tests.laws.laws import Result, Violation, check, existed, state_of
from tests.laws.laws import _Check as Check
from tests.laws.recipes import RECIPES
from tests.laws.repairs import Direct, StatedLosses
from tests.laws.shrinking import shrink

SEEDS = (1, 2, 3, 5, 6, 7, 10, 11, 13, 15, 17, 18, 21, 24, 27, 28)
"""Each repair comes, and most of them by several kinds of damage."""


@pytest.mark.usefixtures("plain_kernels")
@pytest.mark.parametrize("seed", SEEDS)
def test_generated_damage_keeps_the_laws(seed: int, memory_path: Path) -> None:
    assert check(case_of(seed), memory_path).violations == []


@pytest.mark.parametrize("name", RECIPES)
def test_what_was_once_violated_is_kept(name: str, memory_path: Path) -> None:
    assert check(RECIPES[name], memory_path).violations == []


def test_delay_levels_are_not_taken_from_a_record_that_ends_in_the_properties_of_another(memory_path: Path) -> None:
    cut = {"op": "excise", "file": "commitlog/00000000000000000000", "at": 1226, "len": 341, "keep": True}
    case = LawCase("txn-533-clean", [Damage("by hand", [cut])], "recover --abnormal", settings=False)

    assert check(case, memory_path).violations == []


def test_a_case_that_works_without_end_is_slow(memory_path: Path) -> None:
    class Endless(Direct):
        seconds = 0.1

        def plan(self, store: Path, config: StoreConfig, repair: str) -> Plan:  # noqa: ARG002  as that of others
            while True:
                pass

    assert [one.cause for one in check(LawCase("txn-533-kill", [], "recover"), memory_path, Endless()).violations] == [
        "slow"
    ]


def test_a_seed_makes_the_same_case_again_and_its_text_tells_all_of_it() -> None:
    for seed in range(50):
        assert case_of(seed) == case_of(seed)
        assert LawCase.from_json(case_of(seed).to_json()) == case_of(seed)


def test_every_kind_of_damage_and_every_store_comes() -> None:
    drawn = [case_of(seed) for seed in (*range(2000), *range(WITH_PROPERTIES_FROM, WITH_PROPERTIES_FROM + 500))]

    assert {kind for case in drawn for kind in case.kinds} == set(KINDS)
    assert {case.base for case in drawn} == set(BASES)


def test_a_loss_that_nobody_tells_is_seen_and_one_that_is_told_is_none(memory_path: Path) -> None:
    whole = Check(LawCase("txn-533-kill", [], "recover --abnormal"), memory_path / "whole", Direct())
    record = next(one for one in whole.before.records.values() if len(one.keys) == 1)
    zero = {"op": "zero", "file": "commitlog/00000000000000000000", "at": record.position, "len": record.size}
    damaged = Check(LawCase("txn-533-kill", [Damage("by hand", [zero])], "recover"), memory_path / "damaged", Direct())
    topic, queue_id, offset = record.keys[0]
    told = Loss(topic, 1, record.size, "gone", queue_id, offset, offset + 1)

    whole.conserved(Plan("recover", {}), damaged.before)
    assert [(one.law, one.cause) for one in whole.violations][:1] == [("conservation", "messages")]
    assert str(record.keys[0]) in whole.violations[0].message

    whole.violations.clear()
    whole.conserved(Plan("recover", {}, losses=(told,)), damaged.before)
    assert not any(one.cause == "messages" for one in whole.violations)


def test_a_queue_offset_existed_if_its_unit_is_left_or_others_stand_around_it(memory_path: Path) -> None:
    whole = Check(LawCase("mixed-533-clean", [], "recover"), memory_path / "whole", Direct()).before
    zero = {"op": "zero", "file": "commitlog/00000000000000000000", "at": 0, "len": 335}
    units = {"op": "delete", "path": "consumequeue/OrderEvents/0"}
    one = LawCase("mixed-533-clean", [Damage("by hand", [zero])], "recover")
    both = LawCase("mixed-533-clean", [Damage("by hand", [zero, units])], "recover")
    first = ("OrderEvents", 0, 0)

    assert first in existed(one.base, Check(one, memory_path / "one", Direct()).before, 0)
    assert first not in existed(one.base, Check(both, memory_path / "both", Direct()).before, 0)
    assert existed(one.base, whole, 0) == set(whole.messages())


def test_messages_that_a_broker_hides_without_a_word_are_seen(memory_path: Path) -> None:
    gone = Damage("by hand", [{"op": "delete", "path": "consumequeue/pay_events/0"}])
    one = Check(LawCase("mixed-533-clean", [gone], "recover --as-broker 5.3"), memory_path, Direct())
    plan = one.runner.plan(one.store, one.config, one.case.repair)

    one.as_told_by_broker(StatedLosses.of(plan.losses), one.before)
    assert one.violations == []

    one.as_told_by_broker(StatedLosses(), one.before)
    assert [(law.cause, "('pay_events', 0, 0)" in law.message) for law in one.violations] == [("hidden", True)]


def test_a_byte_a_time_and_a_mode_that_are_not_given_back_are_seen(memory_path: Path) -> None:
    store = LawCase("txn-533-kill", [], "recover").build(memory_path)
    before = state_of(store)
    checkpoint = store / "checkpoint"

    checkpoint.chmod(0o600)
    assert state_of(store) != before
    checkpoint.chmod(0o644)
    assert state_of(store) == before
    checkpoint.touch()
    assert [path for path in before if state_of(store)[path] != before[path]] == ["checkpoint"]


def test_a_case_shrinks_to_what_it_takes() -> None:
    lost = Damage("index_file", [{"op": "delete", "path": "index"}])
    zeros = Damage("page_zeroed", [{"op": "zero", "file": "checkpoint", "at": 0, "len": 64}])
    case = LawCase("mixed-533-clean", [lost, zeros], "rebuild index", settings=False)
    violation = Violation("return", "checkpoint", "")

    def check_zeros(case: LawCase) -> Result:
        at_fault = [op for damage in case.damages for op in damage.ops if op["op"] == "zero" and op["len"] >= 16]
        return Result("repaired", [violation] if at_fault and case.base.startswith("mixed") else [])

    smallest = shrink(case, violation, check_zeros)

    assert smallest.kinds == ["page_zeroed"]
    assert [op["len"] for op in smallest.damages[0].ops] == [16]
    assert smallest.settings


@pytest.mark.parametrize(
    ("address", "damage"),
    [
        (14824, {"op": "excise", "file": "commitlog/00000000000000000000", "at": 14867, "len": 2, "keep": True}),
        (
            85430,
            {"op": "insert", "file": "commitlog/00000000000000065536", "at": 19983, "hex": "4adb" * 100, "keep": True},
        ),
    ],
)
def test_a_record_that_came_apart_is_lost_or_what_it_was_and_never_a_guess(
    address: int, damage: dict[str, Any], memory_path: Path
) -> None:
    case = LawCase("special-533-clean", [Damage("by hand", [damage])], "recover --abnormal")
    one = Check(case, memory_path, Direct())
    plan = one.runner.plan(one.store, one.config, one.case.repair)
    one.runner.carry_out(one.store, one.config, plan)
    was, now = base_of("special-533-clean").judged.records[address], one.judged(one.store).records[address]

    assert now.is_placeholder or now.digest() == was.digest()
    assert now.keys == was.keys
