"""The harness gives the verdicts that were recorded with real brokers: it can be trusted with new stores."""

from collections.abc import Callable

import pytest

from tests.damage import DamageCase, cases
from tests.differential.java_store import JavaStore, at_once, each_version, scratch
from tests.differential.verdicts import Verdict, differences, index_collides, verdict_of
from tests.golden import golden_store, manifest

pytestmark = pytest.mark.java

_TRIES = 20  # on a fast machine every second rebuild of many small index files has such a collision

Verdicts = Callable[[str], dict[str, Verdict]]


@pytest.fixture(scope="module")
def verdicts(java_store: Callable[[str], JavaStore]) -> Verdicts:
    """Return the verdicts of a version on all recorded cases, by name; they are made when first asked for."""
    made: dict[str, dict[str, Verdict]] = {}

    def of(version: str) -> dict[str, Verdict]:
        if version not in made:
            store = java_store(version)
            found = at_once(lambda case: _verdict(store, case), cases())
            made[version] = {case.name: verdict for case, verdict in zip(cases(), found, strict=True)}
        return made[version]

    return of


def _verdict(java: JavaStore, case: DamageCase) -> Verdict:
    for _ in range(_TRIES):
        with scratch() as folder:
            store = case.store(folder)
            answer = java.ask(store, manifest(case.base)["config"])
            verdict = verdict_of(answer, store)
        if not index_collides(answer):
            break
    return verdict


@each_version
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_a_broker_repeats_its_recorded_verdict(verdicts: Verdicts, case: DamageCase, version: str) -> None:
    old_index_files = {path.name for path in (golden_store(case.base) / "index").glob("*")}

    found = differences(verdicts(version)[case.name], case.verdicts[version], old_index_files)

    assert found == []
