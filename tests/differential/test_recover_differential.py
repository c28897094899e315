"""Brokers of every version start on a store that ``recover`` repaired, lose nothing more, and serve what was sound.

What must be served is told by the golden store alone: each of its messages whose bytes the damage left as they were.
"""

import collections
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqtool.engine.repair.plan import carry_out, plan_repair
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import MqtoolError
from mqtool.formats.commit_log import MAGIC_V2
from tests.damage import DamageCase, cases
from tests.differential.java_store import JavaStore, at_once, each_version, scratch, settings
from tests.differential.random_damage import CASES, SEED, random_case
from tests.differential.verdicts import files_of
from tests.golden import golden_store, manifest

pytestmark = pytest.mark.java

WHOLE_LOG = {"mode": "abnormal"}
"""After a clean stop ``recover`` looks at the last three segments only, and what is wrong before them stays so."""

_BATCH = 20
_UNDECIDED = (0x4, 0xC)
"""Transaction bits of records that lie in no queue: prepared and rolled back."""


@each_version
@pytest.mark.parametrize("start", range(0, CASES, _BATCH))
def test_a_broker_serves_what_recover_kept_of_random_damage(
    java_store: Callable[[str], JavaStore], start: int, version: str
) -> None:
    java = java_store(version)
    numbers = range(start, min(start + _BATCH, CASES))

    found = at_once(lambda number: faults(java, random_case(SEED, number)), numbers)

    assert not any(found), "\n".join(line for lines in found for line in lines)


@each_version
@pytest.mark.parametrize("base", sorted({case.base for case in cases()}))
def test_a_broker_serves_what_recover_kept_of_recorded_damage(
    java_store: Callable[[str], JavaStore], base: str, version: str
) -> None:
    java = java_store(version)

    found = at_once(lambda case: faults(java, case), [case for case in cases() if case.base == base])

    assert not any(found), "\n".join(line for lines in found for line in lines)


def faults(java: JavaStore, case: DamageCase) -> list[str]:
    """Repair a damaged store, let the broker start on it, and return what is wrong, with the name of the case."""
    if not _reads(java.version, case.base):
        return []
    with scratch() as folder:
        store = case.store(folder)
        wanted = _sound_messages(store, case.base)
        return [f"{case.name} ({case.base}) on {java.version}: {line}" for line in _faults(java, case, store, wanted)]


def _faults(java: JavaStore, case: DamageCase, store: Path, wanted: list[dict[str, Any]]) -> Iterator[str]:
    config = manifest(case.base)["config"]
    ours = StoreConfig(settings(store, config))
    try:
        carry_out(store, ours, plan_repair(store, ours, "recover", WHOLE_LOG), Disk())
    except MqtoolError as error:
        if _has_log(store) or "there is no log in this store" not in str(error):
            yield f"not repaired: {error}"
        return
    last = collections.deque(StoreReader(store, ours).messages(), maxlen=1)
    end = max((message.physical_offset + message.size for message in last), default=0)
    before = _used_files(store)
    asked = [(message["topic"], message["queue_id"], message["queue_offset"]) for message in wanted]
    answer = java.ask(store, config, reads=asked)
    if "after_start" not in answer:
        yield f"does not start: {answer.get('error')}"
        return
    after = _used_files(store)
    if answer["after_load"]["max_phy_offset"] < end:
        yield f"cuts the log at {answer['after_load']['max_phy_offset']}, before {end}"
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if set(changed) - {"checkpoint"}:
        yield f"changes {changed}"
    for message, row in zip(wanted, answer["reads"], strict=True):
        if row[:2] != ["FOUND", message["phy"]]:
            yield f"serves {row} for {message['topic']} {message['queue_id']} {message['queue_offset']}"


def _has_log(store: Path) -> bool:
    return any(path.stat().st_size for path in store.glob("commitlog*/*"))


def _used_files(store: Path) -> dict[str, str]:
    # Segments of nothing but zeros come and go: a broker allocates them ahead.
    return {name: digest for name, digest in files_of(store).items() if any((store / name).read_bytes())}


def _reads(version: str, base: str) -> bool:
    """Tell whether a version knows the records of a store: 4.9 has no long topics and no inner batches."""
    if not version.startswith("4"):
        return True
    v2 = any(message["magic"] == MAGIC_V2 for message in manifest(base)["messages"])
    return not v2 and not base.startswith("batchcq")


def _sound_messages(store: Path, base: str) -> list[dict[str, Any]]:
    """Return those messages of the golden store that lie in queues and whose bytes are still the same."""
    return [
        message
        for message in manifest(base)["messages"]
        if message["sys_flag"] & 0xC not in _UNDECIDED and _bytes(store, message) == _bytes(golden_store(base), message)
    ]


def _bytes(store: Path, message: dict[str, Any]) -> bytes:
    segments = {int(path.name): path for path in store.glob("commitlog*/*") if path.name.isdigit()}
    start = max((start for start in segments if start <= message["phy"]), default=None)
    if start is None:
        return b""
    with segments[start].open("rb") as file:
        file.seek(message["phy"] - start)
        return file.read(message["size"])
