"""The mends that a case may take, run in this process, and what each told."""

import collections
import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from mqtool.engine.repair import plan as plans
from mqtool.engine.repair.plan import Loss, Plan
from mqtool.engine.repair.salvage import plan_salvage, salvage
from mqtool.engine.repair.transfer import JsonLines, export, import_files, writing_file
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.engine.store.search import Query, Search
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
"""Mends of the store itself: the name and the options of each plan."""


@dataclasses.dataclass
class Told:
    """What a mend said that it gives up: ranges of queue offsets, or counts by topic where it says no more."""

    ranges: dict[tuple[str, int], list[tuple[int, int]]] = dataclasses.field(default_factory=dict)
    counts: "collections.Counter[str | None]" = dataclasses.field(default_factory=collections.Counter)

    @classmethod
    def of(cls, losses: Iterable[Loss]) -> "Told":
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


def plan_in_place(store: Path, config: StoreConfig, mend: str) -> Plan:
    name, options = IN_PLACE[mend]
    return plans.plan_mend(store, config, name, options)


def carry_out(store: Path, config: StoreConfig, plan: Plan) -> None:
    plans.carry_out(store, config, plan, Disk())


def salvage_into(store: Path, config: StoreConfig, _: StoreConfig, into: Path) -> Told:
    """Salvage a store into a new one."""
    plan = plan_salvage(StoreReader(store, config))
    salvage(plan, into, Disk())
    told = Told(counts=collections.Counter(plan.lost))
    for one in plan.skipped:
        if one.known:
            stop = one.known.queue_offset + one.known.batch_size
            told.add(one.known.topic, one.known.queue_id, one.known.queue_offset, stop)
    for (topic, queue_id), run, *_target in plan.order.moved:
        told.add(topic, queue_id, run.start, run.start + run.length)
    return told


def export_and_import(store: Path, config: StoreConfig, sizes: StoreConfig, into: Path) -> Told:
    """Export all messages of a store and make a new one of them."""
    reader = StoreReader(store, config)
    file = into.with_suffix(".jsonl")
    with writing_file(Disk(), file) as sink:
        search = Search(reader, Query(rolled_back=True), use_index=False)
        export(search.messages(lambda _: None), JsonLines(sink.write))
    sizes = StoreConfig({name: value for name, value in sizes.settings.items() if name != "storePathCommitLog"})
    done = import_files([file], into, sizes, Disk())
    return Told(counts=collections.Counter(done.placeholders))


INTO: dict[str, Callable[[Path, StoreConfig, StoreConfig, Path], Told]] = {
    "salvage": salvage_into,
    "export | import": export_and_import,
}
"""Mends that make a new store: of a store and its settings, with the sizes of the new one, into a folder."""
