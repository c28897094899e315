"""What brokers made of damaged stores, as recorded, and what ``recover --as-broker`` foretells, in one form."""

from pathlib import Path
from typing import Any

from mqtool.engine.repair.java_recovery.plan import BrokerVerdict, start, with_losses
from mqtool.engine.repair.java_recovery.start import BrokerStart, BrokerView
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from tests.golden import manifest

VERSIONS = {"4.9.7": "4.9", "5.3.3": "5.3", "5.5.0": "5.5"}
TIMES = (
    "physicMsgTimestamp",
    "logicsMsgTimestamp",
    "indexMsgTimestamp",
    "masterFlushedOffset",
    "confirmPhyOffset",
    "logicsPhysicalOffset",
)


def config_of(base: str) -> StoreConfig:
    """Return the settings of the broker that wrote a golden store."""
    settings = manifest(base)["config"]
    return StoreConfig({key: str(value) for key, value in settings.items() if key != "commitLogPaths"})


def states_of(verdict: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a broker that started saw after its ``load`` and after its ``start``."""
    after_load = verdict["after_load"]
    return after_load, after_load if verdict["after_start"] == "same" else verdict["after_start"]


def seen(view: BrokerView) -> dict[str, Any]:
    """Return a view in the form of the recorded verdicts."""
    queues: dict[str, dict[str, list[Any]]] = {}
    for (topic, queue_id), queue in view.queues.items():
        if queue.max_offset or queue.count:
            row = [queue.min_offset, queue.max_offset, queue.count, queue.digest]
            queues.setdefault(topic, {})[str(queue_id)] = row
    return {
        "max_phy_offset": view.max_physical_offset,
        "min_phy_offset": view.min_physical_offset,
        "queues": queues,
        "index": [
            [
                head.name,
                head.begin_timestamp,
                head.end_timestamp,
                head.begin_physical_offset,
                head.end_physical_offset,
                head.slot_count,
                head.entry_count,
            ]
            for head in view.index
        ],
        "checkpoint": dict(zip(TIMES, view.times, strict=True)),
    }


def without_chance(state: dict[str, Any], old: set[str], version: str) -> dict[str, Any]:
    """Leave out what a broker leaves to chance: names of new index files, and which full one it noted last.

    ``old`` are the names of the index files that were there before.
    """
    known = {"4.9.7": 3, "5.3.3": 5, "5.5.0": 6}[version]
    times = {name: state["checkpoint"][name] for name in TIMES[:known] if name != "indexMsgTimestamp"}
    index = [[row[0] if row[0] in old else None, *row[1:]] for row in state["index"]]
    return {**state, "index": index, "checkpoint": times}


def index_names(store: Path) -> set[str]:
    """Return the names of the index files of a store."""
    return {path.name for path in (store / "index").glob("*")}


def recover_as(reader: StoreReader, version: str, *, losses: bool = True, digests: bool = False) -> BrokerVerdict:
    """Return what a broker of a version ("4.9", "5.3" or "5.5") would do; nothing is written to the store.

    Args:
        reader: the store.
        version: of the broker.
        losses: also read the whole log for messages that are lost to consumers.
        digests: also read every unit of every queue.
    """
    broker = BrokerStart(reader, version)
    try:
        verdict = start(broker, digests)
        return with_losses([broker], [verdict])[0] if losses else verdict
    finally:
        broker.close()
