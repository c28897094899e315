"""``recover --as-broker`` foretells what the brokers themselves make of damaged stores."""

import dataclasses
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqtool.engine.repair.doctor.case import Case as DoctorCase
from mqtool.engine.repair.doctor.diagnosis import examine
from mqtool.engine.repair.doctor.surroundings import look_around
from mqtool.engine.repair.java_recovery.plan import BrokerVerdict
from mqtool.engine.repair.java_recovery.start import BrokerView
from mqtool.engine.store.paths import DEFAULT_DELAY_LEVELS, StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import checkpoint
from tests.damage import DamageCase, cases
from tests.differential.java_store import Answer, JavaStore, at_once, each_version, scratch, settings
from tests.differential.random_damage import CASES, SEED, random_case
from tests.differential.verdicts import digest, index_collides
from tests.engine.repair.recorded import recover_as
from tests.golden import copy_of, copy_store, golden_store, manifest

pytestmark = pytest.mark.java

_BATCH = 20

_OUT_OF_MEMORY = "java.lang.OutOfMemoryError: Java heap space"
"""What 4.9.7 ends with at a record that is too long for the heap at hand: it depends on the machine."""

_TIMES = {
    "physicMsgTimestamp": "physical_timestamp",
    "logicsMsgTimestamp": "logics_timestamp",
    "masterFlushedOffset": "master_flushed_offset",
    "confirmPhyOffset": "confirm_physical_offset",
    "logicsPhysicalOffset": "logics_physical_offset",
}
"""All but the index's: threads of their own write that, in any order."""

View = dict[str, Any]


@each_version
@pytest.mark.parametrize("start", range(0, CASES, _BATCH))
def test_as_broker_foretells_what_a_broker_makes_of_random_damage(
    java_store: Callable[[str], JavaStore], start: int, version: str
) -> None:
    java = java_store(version)
    numbers = range(start, min(start + _BATCH, CASES))

    found = at_once(lambda number: disagreements(java, random_case(SEED, number)), numbers)

    assert not any(found), "\n".join(line for lines in found for line in lines)


@each_version
@pytest.mark.parametrize("base", sorted({case.base for case in cases()}))
def test_as_broker_foretells_what_a_broker_makes_of_recorded_damage(
    java_store: Callable[[str], JavaStore], base: str, version: str
) -> None:
    java = java_store(version)

    found = at_once(lambda case: disagreements(java, case), [case for case in cases() if case.base == base])

    assert not any(found), "\n".join(line for lines in found for line in lines)


@each_version
@pytest.mark.parametrize("name", ["lost+found", "old"])
def test_a_folder_among_the_segments_keeps_4_9_from_starting_until_it_is_moved_as_doctor_says(
    java_store: Callable[[str], JavaStore], name: str, version: str
) -> None:
    base, line = "mixed-497-clean", version.rpartition(".")[0]
    config = manifest(base)["config"]
    with scratch() as folder:
        store = copy_of(base, folder)
        (store / "commitlog" / name).mkdir()
        copy_store(store, folder / "theirs")
        (start, *_), causes = examine(_case_of(store, line, config))

        assert _end_of(java_store(version).ask(folder / "theirs", config)) == ("starts" if start.starts else "refuses")
        assert start.starts == (line != "4.9")
        if not start.starts:
            for command in causes[0].next:
                subprocess.run(command, shell=True, check=True)
            assert _end_of(java_store(version).ask(store, config)) == "starts"


def _case_of(store: Path, line: str, config: View) -> DoctorCase:
    reader = StoreReader(store, StoreConfig(settings(store, config)))
    return DoctorCase(store, settings(store, config), None, look_around([store]), reader, line)


def disagreements(java: JavaStore, case: DamageCase) -> list[str]:
    """Return what ``recover_as`` and the broker disagree about, each line with the name of the case."""
    with scratch() as folder:
        store = case.store(folder)
        # Some stores were recorded with shorter delays, which we infer from their units and a broker does not.
        config = {"messageDelayLevel": DEFAULT_DELAY_LEVELS, **manifest(case.base)["config"]}
        reader = StoreReader(store, StoreConfig(settings(store, config)))
        ours = recover_as(reader, java.version.rpartition(".")[0], losses=False, digests=True)
        for attempt in ("first", "second"):  # a machine that stalls for seconds looks like a broker that hangs
            theirs = folder / attempt
            copy_store(store, theirs)
            answer = java.ask(theirs, config)
            if _end_of(answer) != "never ready" or ours.endless:
                break
        found = list(_differences(ours, answer, theirs, {path.name for path in (store / "index").glob("*")}))
    return [f"{case.name} ({case.base}) on {java.version}: {line}" for line in found]


def _differences(ours: BrokerVerdict, answer: Answer, store: Path, index_files: set[str]) -> list[str]:
    if answer.get("error") == _OUT_OF_MEMORY:
        return []
    ends = _end_of(answer)
    if _own_end(ours) != ends:
        return [f"{_own_end(ours)} ({ours.refusal or ours.endless}) instead of {ends} ({_error_of(answer)})"]
    found = []
    for name, view in (("after_load", ours.after_load), ("after_start", ours.after_start)):
        if name in answer and view is not None:
            theirs = _their_view(answer[name], index_files, index_collides(answer))
            found += [f"{name}.{line}" for line in _compare(_own_view(view, theirs), theirs)]
    if ends == "starts" and ours.after_stop:
        theirs = _checkpoint(store)
        mine = {name: value for name, value in ours.after_stop._asdict().items() if name in theirs}
        found += [f"after_stop.{line}" for line in _compare(mine, theirs)]
    return found


def _error_of(answer: Answer) -> str:
    names = ("error", "error_at", "hangs", "behind_bytes")
    return ", ".join(f"{name} {answer[name]}" for name in names if name in answer)


def _end_of(answer: Answer) -> str:
    if answer.get("hangs") or answer.get("behind_bytes", 0) > 0:
        return "never ready"
    return "starts" if "after_start" in answer else "refuses"


def _own_end(verdict: BrokerVerdict) -> str:
    if verdict.endless:
        return "never ready"
    return "starts" if verdict.starts else "refuses"


def _their_view(state: dict[str, Any], index_files: set[str], index_collided: bool) -> View:
    queues = {
        f"{topic} {number}": "unreadable"
        if "error" in queue
        else [queue["min"], queue["max"], len(queue["units"]), digest(queue["units"])]
        for topic, numbers in state["queues"].items()
        for number, queue in numbers.items()
    }
    return {
        "min_physical_offset": state["min_phy_offset"],
        "max_physical_offset": state["max_phy_offset"],
        "index": None
        if index_collided
        else [[row[0] if row[0] in index_files else None, *row[1:]] for row in state["index"]],
        **{name: state["checkpoint"][key] for key, name in _TIMES.items() if key in state["checkpoint"]},
        **{name: queue for name, queue in queues.items() if queue[1] != 0},
    }


def _own_view(view: BrokerView, theirs: View) -> View:
    queues = {
        f"{topic} {number}": [queue.min_offset, queue.max_offset, queue.count, queue.digest]
        for (topic, number), queue in view.queues.items()
        if queue.max_offset
    }
    unreadable = {name: "unreadable" for name, queue in theirs.items() if queue == "unreadable"}
    return {
        "min_physical_offset": view.min_physical_offset,
        "max_physical_offset": view.max_physical_offset,
        "index": None if theirs["index"] is None else [list(dataclasses.astuple(head)) for head in view.index],
        **{name: value for name, value in view.times._asdict().items() if name in theirs},
        **queues,
        **unreadable,
    }


def _checkpoint(store: Path) -> dict[str, int]:
    parsed = checkpoint.CHECKPOINT.schema.parse((store / "checkpoint").read_bytes())
    return {name: int(parsed[name]) for name in _TIMES.values()}


def _compare(mine: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    return [
        f"{name}: {mine.get(name)} instead of {theirs.get(name)}"
        for name in sorted(mine.keys() | theirs.keys())
        if mine.get(name) != theirs.get(name)
    ]


def test_a_seed_makes_the_same_cases_again() -> None:
    assert [random_case(SEED, number) for number in range(10)] == [random_case(SEED, number) for number in range(10)]
    assert all(golden_store(random_case(SEED, number).base).exists() for number in range(10))
