"""``recover`` on what real brokers left, whole and damaged."""

import collections
import hashlib
from pathlib import Path
from typing import Any

import pytest

from mqtool.engine.repair import journal
from mqtool.engine.repair.plan import Plan, carry_out, plan_mend
from mqtool.engine.repair.verify import verify_store
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import UsageError
from tests import damage
from tests.golden import GOLDEN_NAMES, copy_of

CASES = {case.name: case for case in damage.cases()}
MENDED = [name for name in GOLDEN_NAMES if not name.startswith("dledger")]

KEEPS_MORE = {
    # Brokers end the log at the first record whose checks fail.
    "mixed-497-clean/body-byte": 286 - 246,
    "mixed-497-clean/body-byte-abort": 286 - 246,
    "mixed-497-clean/total-size-plus-1": 286 - 246,
    "mixed-497-clean/total-size-huge": 286 - 246,
    "mixed-497-clean/total-size-negative-abort": 286 - 246,
    "mixed-497-clean/magic": 286 - 246,
    "mixed-497-clean/topic-length": 286 - 246,
    "mixed-497-clean/zero-page-last-segment": 277 - 260,
    "mixed-533-clean/body-byte-first-segment-no-checkpoint-abort": 286 - 38,
    "mixed-533-clean/zero-page-second-segment-no-checkpoint-abort": 286 - 82,
    "mixed-533-clean/magic-blank": 286 - 267,
    "mixed-533-kill/body-byte": 286 - 241,
    "mixed-550-kill/body-byte": 286 - 254,
    # A queue ends at the first unit that is none.
    "mixed-533-clean/cq-middle-unit-zero": 287 - 275,
    # Nothing but a whole scan finds that a queue is gone.
    "mixed-533-clean/one-queue-deleted": 287 - 267,
    "mixed-497-clean/queues-deleted-checkpoint-middle-abort": 287 - 167,
    "mixed-497-clean/queues-and-index-deleted-checkpoint-late-abort": 287 - 167,
    "mixed-533-clean/queues-deleted-checkpoint-middle-abort": 287 - 207,
    "mixed-533-clean/queues-and-index-deleted-checkpoint-late-abort": 287 - 147,
    # The message of another queue takes the place of its own again.
    "mixed-533-clean/queue-id-full-scan": 287 - 286,
    # No broker starts.
    "mixed-533-clean/commitlog-stray-file": 287,
    "mixed-533-clean/last-file-short": 287,
}
"""How many messages more than the best broker: those whose checks pass, at their places in their queues."""


def plan_of(store: Path, **options: Any) -> Plan:
    return plan_mend(store, StoreConfig(), "recover", options)


def recover(store: Path, **options: Any) -> Plan:
    plan = plan_of(store, **options)
    carry_out(store, StoreConfig(), plan, Disk())
    return plan


def bytes_of(store: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(store)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(store.rglob("*"))
        if path.is_file()
    }


def wrong_in(store: Path) -> list[str]:
    return [str(found) for found in verify_store(StoreReader(store)) if found.severity != "note"]


def messages_in_queues(store: Path) -> "collections.Counter[str]":
    """Count by topic the messages that queues lead to, placeholders aside."""
    reader = StoreReader(store)
    counted: collections.Counter[str] = collections.Counter()
    for (topic, _), queue in reader.consume_queues.items():
        for unit in queue.units(queue.first_offset, queue.max_offset()):
            if 0 < unit["size"] < 2**31 - 1:
                message = reader.message_at(int(unit["physical_offset"]))
                counted[topic] += "MQTOOL_LOST" not in message.properties
    return counted


def best_of(case: damage.Case) -> int:
    """Return how many units the best of the brokers has after its start."""
    counts = [0]
    for verdict in case.verdicts.values():
        if verdict.get("load_result"):
            after = verdict["after_load"] if verdict["after_start"] == "same" else verdict["after_start"]
            ends = [queue[:2] for queues in after["queues"].values() for queue in queues.values()]
            counts.append(sum(stop - start for start, stop in ends))
    return max(counts)


@pytest.mark.parametrize("name", MENDED)
def test_a_sound_store_stays_as_it_is(name: str, tmp_path: Path) -> None:
    store = copy_of(name, tmp_path)
    before = bytes_of(store)

    plan = recover(store, mode="abnormal")

    assert {change.file for change in plan.changes} <= {"abort", "checkpoint"}
    assert not plan.losses
    after = bytes_of(store)
    assert {name for name in before if before[name] != after.get(name)} <= {"abort", "checkpoint"}
    assert not (store / "abort").exists()
    assert not wrong_in(store)


@pytest.mark.parametrize("name", CASES)
def test_a_damaged_store_is_sound_again_and_keeps_at_least_what_the_best_broker_keeps(
    name: str, tmp_path: Path
) -> None:
    case = CASES[name]
    store = case.store(tmp_path)
    before = bytes_of(store)

    plan = recover(store, mode="abnormal")

    assert wrong_in(store) == []
    kept = messages_in_queues(store).total()
    lost = sum(loss.messages for loss in plan.losses)
    if name in KEEPS_MORE:
        assert kept - best_of(case) == KEEPS_MORE[name]
    else:
        assert kept + lost >= best_of(case)
    assert plan_of(store, mode="abnormal").changes == ()
    journal.undo(store, Disk())
    assert bytes_of(store) == before


@pytest.mark.parametrize("name", ["mixed-533-clean/body-byte-first-segment", "mixed-533-clean/middle-segment-missing"])
def test_all_other_messages_keep_their_queue_offsets(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    expected = {
        (message.topic, message.queue_id, message.queue_offset): message.unique_key
        for message in StoreReader(copy_of(case.base, tmp_path / "sound")).messages()
    }
    store = case.store(tmp_path)

    recover(store, mode="abnormal")

    found = {
        (message.topic, message.queue_id, message.queue_offset): message.unique_key
        for message in StoreReader(store).messages()
        if "MQTOOL_LOST" not in message.properties
    }
    assert found.items() <= expected.items()
    assert len(found) > 200


def test_cut_ends_the_log_at_the_first_damage(tmp_path: Path) -> None:
    store = CASES["mixed-497-clean/body-byte"].store(tmp_path)

    plan = recover(store, mode="abnormal", cut=True)

    assert messages_in_queues(store).total() == 246
    assert sum(loss.messages for loss in plan.losses) == 287 - 246
    assert wrong_in(store) == []


def test_without_a_mode_the_abort_file_decides(tmp_path: Path) -> None:
    store = CASES["mixed-533-clean/body-byte-first-segment"].store(tmp_path)

    assert plan_of(store).changes == ()
    (store / "abort").touch()
    assert {change.what for change in plan_of(store).changes} == {"write", "replace", "remove"}


def test_a_placeholder_says_what_was_lost_and_why(tmp_path: Path) -> None:
    store = CASES["mixed-497-clean/body-byte"].store(tmp_path)

    recover(store, mode="abnormal")

    (placeholder,) = (one for one in StoreReader(store).messages() if "MQTOOL_LOST" in one.properties)
    assert placeholder.properties == {"MQTOOL_LOST": "302 bytes at 236612: it does not match its CRC"}
    assert (placeholder.position, placeholder.size) == (236612, 302)


def test_a_dledger_log_is_left_to_its_peers(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="DLedger"):
        plan_of(copy_of("dledger-497-clean", tmp_path))
