"""The repairs that a case may take, and what each told: run in this process, or through the command line."""

import collections
import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mqtool.engine.repair import journal
from mqtool.engine.repair import plan as plans
from mqtool.engine.repair.findings import Finding, Severity
from mqtool.engine.repair.plan import Loss, Plan
from mqtool.engine.repair.salvage.plan import plan_salvage, salvage
from mqtool.engine.repair.salvage.transfer import JsonLines, export, import_files, writing_file
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.engine.store.search import Query, Search
from mqtool.errors import MqtoolError
from tests.differential.java_store import settings
from tests.golden import manifest
from tests.judge.store import Key

_PLACE = ("queue_id", "queue_offset", "end_queue_offset")

Request = tuple[str, dict[str, Any]]

IN_PLACE: dict[str, Request] = {
    "recover --abnormal": ("recover", {"mode": "abnormal", "cut": False}),
    "recover --normal": ("recover", {"mode": "normal", "cut": False}),
    "recover": ("recover", {"mode": None, "cut": False}),
    "recover --abnormal --cut": ("recover", {"mode": "abnormal", "cut": True}),
    **{
        f"rebuild {target}": ("rebuild", {"target": target, "topics": None, "version": None, "survey": True})
        for target in ("queues", "index", "all")
    },
    **{
        f"recover --as-broker {version}": ("recover-as-broker", {"version": version})
        for version in ("4.9", "5.3", "5.5")
    },
}
"""Repairs of the store itself: the name and the options of each plan."""


@dataclasses.dataclass
class StatedLosses:
    """What a repair said that it gives up: ranges of queue offsets, or counts by topic where it says no more."""

    ranges: dict[tuple[str, int], list[tuple[int, int]]] = dataclasses.field(default_factory=dict)
    counts: "collections.Counter[str | None]" = dataclasses.field(default_factory=collections.Counter)
    remarks: list[str] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, losses: Iterable[Loss]) -> "StatedLosses":
        told = cls()
        for loss in losses:
            queue_id, start, stop = (getattr(loss, name, None) for name in _PLACE)
            if loss.topic is None or queue_id is None or start is None or stop is None:
                told.counts[loss.topic] += loss.messages
            else:
                told.add(loss.topic, queue_id, start, stop)
        return told

    def add(self, topic: str, queue_id: int, start: int, stop: int) -> None:
        self.ranges.setdefault((topic, queue_id), []).append((start, stop))

    def lacks(self, keys: Iterable[Key]) -> list[Key]:
        """Return those places of queues of which nothing was told."""
        left = self.counts.copy()
        untold = []
        for topic, queue_id, offset in sorted(keys):
            if any(start <= offset < stop for start, stop in self.ranges.get((topic, queue_id), ())):
                continue
            name = topic if left[topic] > 0 else None
            if left[name] > 0:
                left[name] -= 1
            else:
                untold.append((topic, queue_id, offset))
        return untold


def config_of(base: str, store: Path, is_told: bool) -> StoreConfig:
    """Return the broker's settings for a copy of a golden store; without ``is_told`` only where its log lies."""
    known = settings(store, manifest(base)["config"])
    if not is_told:
        known = {name: value for name, value in known.items() if name == "storePathCommitLog"}
    return StoreConfig(known)


class Direct:
    """Repairs by calls, in this process."""

    seconds: float = 20
    """How many seconds of processor a case may take at most."""

    def plan(self, store: Path, config: StoreConfig, repair: str) -> Plan:
        name, options = IN_PLACE[repair]
        return plans.plan_repair(store, config, name, options)

    def carry_out(self, store: Path, config: StoreConfig, plan: Plan) -> None:
        plans.carry_out(store, config, plan, Disk())

    def undo(self, store: Path) -> None:
        journal.undo(store, Disk())

    def findings(self, store: Path, config: StoreConfig) -> list[Finding]:
        return list(verify_store(StoreReader(store, config)))

    def salvage(self, store: Path, config: StoreConfig, into: Path) -> StatedLosses:
        plan = plan_salvage(StoreReader(store, config))
        salvage(plan, into, Disk())
        told = StatedLosses(counts=collections.Counter(plan.lost), remarks=plan.remarks)
        for one in plan.skipped:
            if one.known:
                stop = one.known.queue_offset + one.known.batch_size
                told.add(one.known.topic, one.known.queue_id, one.known.queue_offset, stop)
        for (topic, queue_id), run, *_target in plan.order.moved:
            told.add(topic, queue_id, run.start, run.start + run.length)
        return told

    def export_and_import(self, store: Path, config: StoreConfig, sizes: StoreConfig, into: Path) -> StatedLosses:
        file = into.with_suffix(".jsonl")
        with writing_file(Disk(), file) as sink:
            search = Search(StoreReader(store, config), Query(rolled_back=True), use_index=False)
            export(search.messages(lambda _: None), JsonLines(sink.write))
        done = import_files([file], into, sizes, Disk())
        told = StatedLosses.of(done.losses)
        told.counts.update(done.placeholders)
        return dataclasses.replace(told, remarks=done.remarks)


class RepairRefusedError(MqtoolError):
    """A command ended with a status that says so."""


class CommandLine(Direct):
    """Repairs by the real command line, a process each; what is told are its rows, remarks and statuses."""

    seconds = 60  # ten processes

    def plan(self, store: Path, config: StoreConfig, repair: str) -> Plan:
        file = store.with_name("plan.json")
        file.unlink(missing_ok=True)
        words = ["--save-plan", str(file), "--dry-run"]
        status, _ = self._run(repair.split(), store, config, *words)
        plan = Plan.from_json(file.read_text())
        if plan.refusal:
            raise RepairRefusedError(plan.refusal)
        if status != (3 if plan.changes else 0):
            raise AssertionError(f"{repair} --dry-run ended with {status} of {len(plan.changes)} changes")
        return plan

    def carry_out(self, store: Path, config: StoreConfig, plan: Plan) -> None:  # noqa: ARG002  the plan has the settings
        status, _ = self._run(["apply", str(store.with_name("plan.json"))], store, None, "--yes")
        if status != (5 if plan.losses else 0):
            raise AssertionError(f"apply ended with {status} of {len(plan.losses)} losses")

    def undo(self, store: Path) -> None:
        self._run(["undo"], store, None, "--yes")

    def findings(self, store: Path, config: StoreConfig) -> list[Finding]:
        status, rows = self._run(["verify"], store, config)
        found = [Finding(**{**row, "severity": Severity(row["severity"])}) for row in rows]
        worst = {one.severity for one in found}
        if status != (3 if Severity.ERROR in worst else 4 if Severity.WARNING in worst else 0):
            raise AssertionError(f"verify ended with {status} of {sorted(worst)}")
        return found

    def salvage(self, store: Path, config: StoreConfig, into: Path) -> StatedLosses:
        _, rows = self._run(["salvage"], store, config, "--into", str(into))
        return StatedLosses(counts=collections.Counter({row["topic"]: row["lost"] for row in rows if "lost" in row}))

    def export_and_import(self, store: Path, config: StoreConfig, sizes: StoreConfig, into: Path) -> StatedLosses:
        file = into.with_suffix(".jsonl")
        self._run(["export"], store, config, "--into", str(file))
        _, rows = self._run(["import", str(file)], None, sizes, "--into", str(into))
        names = [field.name for field in dataclasses.fields(Loss)]
        return StatedLosses.of(Loss(**{name: row[name] for name in names}) for row in rows)

    def _run(
        self, words: list[str], store: Path | None, config: StoreConfig | None, *more: str
    ) -> tuple[int, list[dict[str, Any]]]:
        """Run a command; returns its status and rows."""
        words = [*words, *(("-s", str(store)) if store else ()), *more]
        for name, value in (config.settings if config else {}).items():
            words += ["--set", f"{name}={value}"]
        is_jsonl = words[0] in ("verify", "salvage", "import")
        if is_jsonl:
            words += ["-o", "jsonl"]
        done = subprocess.run([sys.executable, "-m", "mqtool", *words], capture_output=True, text=True)
        if done.returncode in (65, 66, 74, 75, 77) or (done.returncode == 2 and "Traceback" not in done.stderr):
            raise RepairRefusedError(done.stderr.strip())
        if done.returncode not in (0, 3, 4, 5):
            raise AssertionError(f"{words[0]} ended with {done.returncode}: {done.stderr[-500:]}")
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()] if is_jsonl else []
