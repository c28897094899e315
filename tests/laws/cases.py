"""A case: a golden store, what is done to it, and the repair that it then takes. Told by data, made from a seed."""

import contextlib
import dataclasses
import json
import random
from pathlib import Path
from typing import Any

from tests.damage import OPERATIONS, Operation
from tests.golden import copy_of
from tests.laws.damages import BASES, DAMAGES, WITH_PROPERTIES, base_of, draw

REPAIRS = {
    "recover --abnormal": 10,
    "recover": 4,
    "recover --normal": 2,
    "recover --abnormal --cut": 3,
    "rebuild queues": 2,
    "rebuild index": 2,
    "rebuild all": 2,
    "salvage": 4,
    "export | import": 2,
    "recover --as-broker 4.9": 1,
    "recover --as-broker 5.3": 2,
    "recover --as-broker 5.5": 1,
    "doctor": 4,
}
"""What a case may take, and how often it comes; ``doctor`` follows its advice to the end."""


WITH_PROPERTIES_FROM = 500_000
"""The first seed that draws damages of properties too: a violation is told by its seed, which stays the same case."""


@dataclasses.dataclass(frozen=True)
class Damage:
    """What was done to a store."""

    kind: str
    ops: list[Operation]


@dataclasses.dataclass(frozen=True)
class LawCase:
    """One case; ``settings``: mqtool is told the sizes of the store's files, else it infers them."""

    base: str
    damages: list[Damage]
    repair: str
    settings: bool = True

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "LawCase":
        fields: dict[str, Any] = json.loads(text)
        damages = [Damage(**one) for one in fields.pop("damages")]
        return cls(damages=damages, **fields)

    @property
    def kinds(self) -> list[str]:
        return [damage.kind for damage in self.damages]

    def build(self, into: Path) -> Path:
        """Make the damaged store below ``into`` and return its folder.

        What finds nothing to change is left out: two damages may be in each other's way.
        """
        store = copy_of(self.base, into)
        for damage in self.damages:
            for op in damage.ops:
                with contextlib.suppress(OSError, ValueError):
                    OPERATIONS[op["op"]](store, op)
        return store


def case_of(seed: int) -> LawCase:
    """Return the case of a seed: always the same one."""
    chance = random.Random(seed)
    base = base_of(chance.choices(list(BASES), weights=list(BASES.values()))[0])
    kinds = WITH_PROPERTIES if seed >= WITH_PROPERTIES_FROM else DAMAGES
    damages = [Damage(*draw(base, chance, kinds)) for _ in range(chance.choice((1, 1, 2)))]
    repair = chance.choices(list(REPAIRS), weights=list(REPAIRS.values()))[0]
    return LawCase(base.name, damages, repair, chance.random() < 0.7)
