"""Brokers of every version take over a store that ours closed: nothing is cut off, and every message is served."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.append_result import PutStatus
from mqtool.engine.store.live_queue import LiveBatchQueue
from mqtool.engine.store.message_store import MessageStore
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.formats.commit_log import MAGIC_V2
from tests.differential.java_store import VERSIONS, JavaStore, scratch
from tests.differential.verdicts import files_of
from tests.engine.store.live import half_full, new_message, units_of
from tests.engine.store.test_message_store import replayed, settings_of
from tests.golden import copy_of, copy_store, golden_store, manifest

pytestmark = pytest.mark.java

STORES = [
    "mixed-497-clean",
    "mixed-533-clean",
    "mixed-550-clean",
    "many-533-clean",
    "special-497-clean",
    "special-533-clean",
    "propcrc-533-clean",
    "batchcq-533-clean",
    "txn-533-clean",
]


def _is_known_to(version: str, name: str) -> bool:
    """Tell whether a version knows the records of a store: 4.9 has no long topics and no inner batches."""
    v2 = any(message["magic"] == MAGIC_V2 for message in manifest(name)["messages"])
    return not version.startswith("4") or not (v2 or name.startswith("batchcq"))


CASES = [
    pytest.param(version, name, marks=pytest.mark.xdist_group(f"java-{version}"))
    for version in VERSIONS
    for name in STORES
    if _is_known_to(version, name)
]


@pytest.mark.parametrize(("version", "name"), CASES)
def test_a_broker_takes_over_what_ours_wrote_and_ours_takes_it_back(
    java_store: Callable[[str], JavaStore], version: str, name: str
) -> None:
    java = java_store(version)
    with scratch() as folder:
        found = list(_faults(java, name, folder / "store"))
    assert not found, "\n".join(found)


EXTENDED = [
    pytest.param(version, name, marks=pytest.mark.xdist_group(f"java-{version}"))
    for version, name in (("4.9.7", "ext-533-clean"), ("5.3.3", "ext-533-clean"), ("5.5.0", "ext-533-clean"))
]


@pytest.mark.parametrize(("version", "name"), EXTENDED)
def test_a_queue_with_an_extension_is_gone_on_with_by_ours_and_taken_back(
    java_store: Callable[[str], JavaStore], version: str, name: str
) -> None:
    java, config = java_store(version), StoreConfig(settings_of(name))
    with scratch() as folder:
        root = copy_of(name, folder)
        with contextlib.closing(MessageStore(root, config, now=_last(name), usage=half_full)) as store:
            keys = store.queues()
            before = [unit.physical_offset for key in keys for unit in units_of(store, key)]
            for key in keys:
                for body in (b"one", b"other"):
                    message = new_message(key[0], body, queue_id=key[1], pairs={"TAGS": "new"})
                    assert store.append(message, _last(name)).status == PutStatus.PUT_OK
            units = [(*key, unit.queue_offset, unit.physical_offset) for key in keys for unit in units_of(store, key)]
        findings = {one.code for one in verify_store(StoreReader(root, config))}

        answer = java.ask(root, dict(config.settings), reads=[unit[:3] for unit in units])
        after = {one.code for one in verify_store(StoreReader(root, config))}

    assert len(units) == len(before) + 4
    assert [row[:2] for row in answer["reads"]] == [["FOUND", unit[3]] for unit in units]
    assert findings <= {"CONFIG-NO-QUEUE"}
    assert after <= {"CONFIG-NO-QUEUE"}


KILLED = [
    pytest.param(version, name, marks=pytest.mark.xdist_group(f"java-{version}"))
    for version in VERSIONS
    for name in ("mixed-497-clean", "mixed-533-clean", "batchcq-533-clean")
    if _is_known_to(version, name)
]


@pytest.mark.parametrize(("version", "name"), KILLED)
def test_a_broker_takes_over_a_store_of_ours_that_was_killed(
    java_store: Callable[[str], JavaStore], version: str, name: str
) -> None:
    java = java_store(version)
    with scratch() as folder:
        config, _ = replayed(name, folder / "store")
        killed, at = folder / "killed", _last(name) + 1
        _copy_topics(name, folder / "store")
        with contextlib.closing(MessageStore(folder / "store", config, now=at, usage=half_full)) as store:
            topic, queue_id = next(key for key in store.queues() if not isinstance(store.queue(*key), LiveBatchQueue))
            sent = [store.append(new_message(topic, b"last %d" % number, queue_id=queue_id), at) for number in range(5)]
            copy_store(folder / "store", killed)
        reads = [(topic, queue_id, one.queue_offset) for one in sent]
        reads += [_place(one) for one in _in_queues(name)]
        addresses = [one.physical_offsets[0] for one in sent] + [one["phy"] for one in _in_queues(name)]

        answer = java.ask(killed, dict(config.settings), reads=reads)
        # The broker indexes some messages once more, as it does after its own kills.
        findings = {one.code for one in verify_store(StoreReader(killed, config))} - {"INDEX-DUPLICATE"}

    assert [row[:2] for row in answer["reads"]] == [["FOUND", address] for address in addresses]
    assert not {code for code in findings if not code.startswith("CONFIG-")}


def _faults(java: JavaStore, name: str, root: Path) -> Iterator[str]:
    config, _ = replayed(name, root)
    _copy_topics(name, root)
    messages = _in_queues(name)
    before = files_of(root)

    answer = java.ask(root, dict(config.settings), reads=[_place(one) for one in messages])

    if "after_start" not in answer:
        yield f"does not start: {answer.get('error')}"
        return
    end = max(one["phy"] + one["size"] for one in manifest(name)["messages"])
    if answer["after_load"]["max_phy_offset"] != end:
        yield f"the log ends at {answer['after_load']['max_phy_offset']} instead of {end}"
    after = files_of(root)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)} - {"checkpoint"}
    changed = {path for path in changed if any((root / path).read_bytes())} if changed else set()
    if changed:
        yield f"changes {sorted(changed)}"
    for message, row in zip(messages, answer["reads"], strict=True):
        if row[:2] != ["FOUND", message["phy"]]:
            yield f"serves {row} for {_place(message)}"
    with contextlib.closing(MessageStore(root, config, now=_last(name), usage=half_full)) as store:
        result = store.append(new_message("TakenBack"), _last(name))
        if (result.status, result.physical_offsets) != (PutStatus.PUT_OK, (end,)):
            yield f"taken back, the next message is stored at {result.physical_offsets}"
    for one in verify_store(StoreReader(root, config)):
        if not one.code.startswith("CONFIG-"):
            yield f"verify finds {one.code} {one.message}"


def _copy_topics(name: str, root: Path) -> None:
    topics = golden_store(name) / "config" / "topics.json"
    if topics.exists():  # it tells brokers which queues hold batches
        (root / "config").mkdir()
        (root / "config" / topics.name).write_bytes(topics.read_bytes())


def _in_queues(name: str) -> list[dict[str, Any]]:
    return [one for one in manifest(name)["messages"] if one["sys_flag"] & 0xC not in (0x4, 0xC)]


def _place(message: dict[str, Any]) -> tuple[str, int, int]:
    return message["topic"], message["queue_id"], message["queue_offset"]


def _last(name: str) -> int:
    last: int = manifest(name)["messages"][-1]["store_timestamp"]
    return last
