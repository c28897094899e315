"""What brokers make of stores that were repaired: nothing is lost there that mqtool kept."""

import dataclasses
import hashlib
import random
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mqtool.errors import MqtoolError
from tests.differential.java_store import Answer, JavaStore
from tests.golden import copy_store, manifest
from tests.judge.log import JudgedRecord
from tests.judge.store import JudgedStore, Key
from tests.laws.cases import LawCase, case_of
from tests.laws.repairs import Direct, config_of

_REPAIRS = {"recover --abnormal": 6, "recover --abnormal --cut": 1, "salvage": 2}
_MAX_NAMED = 3


def case_for_java(seed: int) -> LawCase:
    """Return the case of a seed, with a repair that looks at all of a store and leaves queues in files."""
    case = case_of(seed)
    repair = random.Random(f"java {seed}").choices(list(_REPAIRS), weights=list(_REPAIRS.values()))[0]
    return dataclasses.replace(case, repair=repair, settings=True)


def load(seed: int, brokers: list[JavaStore], scratch: Path | None) -> dict[str, list[str]] | None:
    """Repair the case of a seed and let each version load the result; returns what is wrong with each.

    None where there is no result: the repair was refused, or queues lie in RocksDB.
    """
    case = case_for_java(seed)
    if case.base.startswith("rocksdb"):
        return None
    folder = Path(tempfile.mkdtemp(dir=scratch, prefix="laws-java-"))
    try:
        outcome = _repair(case, folder)
        if outcome is None:
            return None
        repaired, remarks = outcome
    except Exception as error:  # the laws that are judged without Java tell of it
        shutil.rmtree(folder, ignore_errors=True)
        return {"no version": [repr(error)]}
    try:
        found = {}
        for java in brokers:
            store = folder / java.version
            copy_store(repaired, store)
            found[java.version] = list(_faults(java, case, store, remarks))
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _repair(case: LawCase, folder: Path) -> tuple[Path, str] | None:
    """Return the repaired store, and what was said of it; None where there is none."""
    store = case.build(folder)
    config = config_of(case.base, store, is_told=True)
    runner = Direct()
    try:
        if case.repair == "salvage":
            told = runner.salvage(store, config, folder / "new")
            return folder / "new", "\n".join(told.remarks)
        plan = runner.plan(store, config, case.repair)
        if plan.refusal:
            return None
        if plan.changes:
            runner.carry_out(store, config, plan)
    except MqtoolError:
        return None
    return store, "\n".join(plan.remarks)


def _faults(java: JavaStore, case: LawCase, store: Path, remarks: str) -> Iterator[str]:
    config: dict[str, Any] = dict(manifest(case.base)["config"])
    if case.repair == "salvage":
        config.pop("commitLogPaths", None)
    judged = JudgedStore(store, config)
    kept = {  # of two logs that were mixed, what units lead to
        record.keys[0]: record
        for queue, unit in judged.units()
        if (record := judged.leads_to(queue, unit)) and record.keys[0] == (*queue, unit.queue_offset)
    }
    wanted = sorted(kept)
    if not _is_read(java.version, case, judged.records.values()):
        return
    if java.version.startswith("4") and any(path.is_dir() for one in judged.folders for path in one.iterdir()):
        return  # 4.9 takes a folder among the segments for one; recover leaves it, and its plan says so
    foretold = _refusal(java.version, case, store) if "left " in remarks else ""
    answer = java.ask(store, config, reads=wanted)
    if "after_start" not in answer or "reads" not in answer:
        if foretold:  # of what a repair leaves, and says so, as do `doctor` and this verdict
            return
        yield f"does not start: {[answer.get(name) for name in ('error', 'error_at', 'hangs', 'behind_bytes')]}"
        return
    if answer["after_load"]["max_phy_offset"] < judged.end_offset:
        yield f"cuts the log at {answer['after_load']['max_phy_offset']}, before {judged.end_offset}"
    yield from _lost(answer, wanted, kept)


def _refusal(version: str, case: LawCase, store: Path) -> str:
    """Return why a broker of a version does not start, as mqtool tells it; nothing where it does."""
    told = config_of(case.base, store, is_told=True)
    return Direct().plan(store, told, f"recover --as-broker {version[:3]}").refusal or ""


def _lost(answer: Answer, wanted: list[Key], kept: dict[Key, JudgedRecord]) -> Iterator[str]:
    lost = []
    for key, row in zip(wanted, answer["reads"], strict=True):
        record = kept[key]
        if row == ["FOUND"]:  # served as it is; a client cannot decode it, and could not before
            continue
        if row[0] != "FOUND" or row[1] != record.position or row[3] != hashlib.sha256(record.body).hexdigest():
            lost.append((key, row[:3]))
    if lost:
        yield f"serves {len(wanted) - len(lost)} of {len(wanted)}; not {lost[:_MAX_NAMED]}"


def _is_read(version: str, case: LawCase, records: Iterable[JudgedRecord]) -> bool:
    """Tell whether a version knows the records of a store: 4.9 has no long topics, no inner batches, no timer."""
    if not version.startswith("4"):
        return True
    is_later = case.base.startswith(("batchcq", "timer"))
    return not is_later and all(len(record.topic.encode()) <= 127 and record.sys_flag & 0x80 == 0 for record in records)
