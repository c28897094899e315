"""The smallest case that still breaks a law: fewer damages, less of each, a smaller store."""

import random
from collections.abc import Callable, Iterator

from tests.damage import Operation
from tests.laws.cases import Damage, LawCase
from tests.laws.damages import BASES, base_of, redraw
from tests.laws.laws import Result, Violation, check

_MAX_TRIES = 60
_TRIES_A_STORE = 4


def shrink(case: LawCase, violation: Violation, check: Callable[[LawCase], Result] = check) -> LawCase:
    """Return a smaller case that violates the same law for the same cause, or the case itself; ``check`` judges it."""
    left = _MAX_TRIES
    while True:
        for smaller in _smaller(case):
            left -= 1
            if left < 0:
                return case
            if any((one.law, one.cause) == (violation.law, violation.cause) for one in check(smaller).violations):
                case = smaller
                break
        else:
            return case


def _smaller(case: LawCase) -> Iterator[LawCase]:
    """Yield cases that are smaller in one way each, the best guesses first."""
    for number in range(len(case.damages)):
        if len(case.damages) > 1:
            yield _with(case, case.damages[:number] + case.damages[number + 1 :])
    for number, damage in enumerate(case.damages):
        for ops in _fewer(damage.ops):
            yield _with(case, [*case.damages[:number], Damage(damage.kind, ops), *case.damages[number + 1 :]])
    if not case.settings:
        yield LawCase(case.base, case.damages, case.repair)
    size = len(base_of(case.base).records)
    for name in sorted(
        (name for name in BASES if len(base_of(name).records) < size), key=lambda n: len(base_of(n).records)
    ):
        for number in range(_TRIES_A_STORE):
            chance = random.Random(f"{name} {number}")
            damages = [Damage(kind, redraw(base_of(name), kind, chance)) for kind in case.kinds]
            if all(damage.ops for damage in damages):
                yield LawCase(name, damages, case.repair, case.settings)


def _with(case: LawCase, damages: list[Damage]) -> LawCase:
    return LawCase(case.base, damages, case.repair, case.settings)


def _fewer(ops: list[Operation]) -> Iterator[list[Operation]]:
    """Yield operations that do less: one left out, half of the bytes of one."""
    for number, op in enumerate(ops):
        rest = ops[:number], ops[number + 1 :]
        if len(ops) > 1:
            yield [*rest[0], *rest[1]]
        if op.get("len", 0) > 1:
            half = op["len"] // 2
            yield [*rest[0], {**op, "len": half}, *rest[1]]
            if op["op"] == "zero":
                yield [*rest[0], {**op, "at": op["at"] + half, "len": op["len"] - half}, *rest[1]]
        data = op.get("hex", "")
        if op["op"] == "write" and len(data) > 16:
            half = len(data) // 4 * 2
            yield [*rest[0], {**op, "hex": data[:half]}, *rest[1]]
            yield [*rest[0], {**op, "at": op["at"] + half // 2, "hex": data[half:]}, *rest[1]]
