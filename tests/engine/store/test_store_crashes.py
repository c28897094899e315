"""A store whose broker was killed, or whose machine lost power: all that was acknowledged is there once, in order."""

import contextlib
import itertools
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from mqtool.engine.repair.findings import Finding
from mqtool.engine.repair.plan import carry_out, plan_repair
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.append_result import PutStatus
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.message_store import MessageStore
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import RecoveryNeededError
from mqtool.formats.placeholder import LOST
from mqtool.formats.properties import parse_properties
from mqtool.formats.record_schemas import parse_message
from tests.crash import STEP, Chance, Left, RecordingDisk
from tests.engine.store.live import NOW, SMALL, delete_topic, half_full, new_message

SETTINGS = {**SMALL.settings, "flushDiskType": "SYNC_FLUSH", "messageDelayLevel": "1s 5s 10s"}
CONFIG = StoreConfig(SETTINGS)
Acknowledged = tuple[str, int, int, bytes]
"""Topic, queue, queue offset and body."""


def reopened(root: Path) -> MessageStore:
    """Open a store as a broker does: it is recovered first where that is needed."""
    with contextlib.suppress(RecoveryNeededError):
        return MessageStore(root, CONFIG, now=NOW, usage=half_full)
    plan = plan_repair(root, CONFIG, "recover", {})
    carry_out(root, CONFIG, plan, Disk())
    return MessageStore(root, CONFIG, now=NOW, usage=half_full)


def stored(store: MessageStore) -> list[Acknowledged]:
    """Return all messages as consumers would get them, queue by queue."""
    found = []
    for topic, queue_id in sorted(store.queues()):
        queue = store.queue(topic, queue_id)
        assert queue is not None
        offset = queue.min_offset(store.log.min_offset)
        while offset < queue.next_offset:
            for unit in queue.units(offset, 32):
                record = parse_message(store.log.record(unit.physical_offset))
                assert (record.topic.decode(), record.queue_id, record.queue_offset) == (topic, queue_id, offset)
                if LOST not in parse_properties(record.properties):  # what was not flushed may be torn, and is bridged
                    found.append((topic, queue_id, offset, bytes(record.body)))
                offset += 1
    return found


class ReopenedStore(NamedTuple):
    """What a store has that was opened again, whether it takes one more message, and what ``verify`` finds then."""

    stored: list[Acknowledged]
    again: PutStatus
    findings: list[Finding]


def used_again(root: Path) -> ReopenedStore:
    """Open what is left of a store, and use it."""
    with contextlib.closing(reopened(root)) as store:
        found = stored(store)
        again = store.append(new_message(body=b"after it all"), NOW + 9999).status
    findings = [one for one in verify_store(StoreReader(root, CONFIG)) if one.code != "CONFIG-MISSING"]
    return ReopenedStore(found, again, findings)


def filled(root: Path, disk: RecordingDisk) -> tuple[list[tuple[int, Acknowledged]], list[Acknowledged]]:
    """Fill a store in groups that are flushed together.

    Returns:
        The messages that were acknowledged, with the number of calls of the disk until then, and all that were sent.
    """
    chance = random.Random(5)
    acknowledged: list[tuple[int, Acknowledged]] = []
    sent: list[Acknowledged] = []
    store = MessageStore(root, CONFIG, now=NOW, disk=disk, usage=half_full)
    for number in range(12):
        group = []
        for _ in range(chance.randrange(1, 5)):
            body = f"message {len(sent)} ".encode() * chance.randrange(1, 60)
            message = new_message(chance.choice(["A", "B"]), body, queue_id=chance.randrange(2), pairs={"KEYS": "k"})
            result = store.append(message, NOW + len(sent))
            assert result.flush_offset == result.end_offset
            group.append((message.topic, message.queue_id, result.queue_offset, body))
            sent.append(group[-1])
        assert store.flush() == store.flushed_offset == store.log.end_offset
        acknowledged += [(len(disk.calls), one) for one in group]
        if number % 3 == 1:
            store.tick(NOW + len(sent))
        if number % 4 == 3:
            store.flush_queues()
    store.close()
    return acknowledged, sent


@pytest.mark.parametrize(("sample", "chance"), [*enumerate([*Left, *map(random.Random, range(1, 4))])])
def test_a_power_loss_at_any_call_loses_no_message_that_was_acknowledged(
    tmp_path: Path, sample: int, chance: Chance
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    disk = RecordingDisk(base)
    acknowledged, sent = filled(base / "store", disk)
    assert len(list((base / "store" / "commitlog").iterdir())) > 2

    for cut in [*range(sample, len(disk.calls), STEP), len(disk.calls)]:
        left = tmp_path / "left"
        disk.leave(cut, chance, left)
        known = [one for calls, one in acknowledged if calls <= cut]
        if known or (left / "store" / "commitlog").exists():
            after = used_again(left / "store")
            assert [one for one in after.stored if one in set(known)] == sorted(known), cut
            assert set(after.stored) <= set(sent), cut
            assert len(after.stored) == len(set(after.stored)), cut
            assert after.again is PutStatus.PUT_OK, cut
            assert after.findings == [], cut
        shutil.rmtree(left)


WRITER = """
import sys
from pathlib import Path
from mqtool.engine.store.message_store import MessageStore
from mqtool.engine.store.paths import StoreConfig
from tests.engine.store.live import NOW, half_full, new_message
from tests.engine.store.test_store_crashes import CONFIG

store = MessageStore(Path(sys.argv[1]), CONFIG, now=NOW, usage=half_full)
number = 0
while True:
    group = []
    for _ in range(5):
        message = new_message("T", f"{number}".encode() * 50, queue_id=number % 3)
        group.append((number % 3, store.append(message, NOW + number), number))
        number += 1
    store.flush()
    for queue_id, result, one in group:
        print(queue_id, result.queue_offset, one)
    sys.stdout.flush()
    store.tick(NOW + number)
"""


@pytest.mark.parametrize("lines", [1, 40, 333])
def test_a_killed_process_has_stored_each_acknowledged_message_once(tmp_path: Path, lines: int) -> None:
    root = tmp_path / "store"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
    ) as process:
        assert process.stdout is not None
        told = list(itertools.islice(process.stdout, lines))
        process.kill()
        told += process.stdout.readlines()
    acknowledged = []
    for line in told:
        queue_id, queue_offset, number = map(int, line.split())
        acknowledged.append(("T", queue_id, queue_offset, f"{number}".encode() * 50))
    assert (root / "abort").exists()

    store = MessageStore(root, CONFIG, now=NOW, usage=half_full)  # which needs nobody to recover it

    with contextlib.closing(store):
        assert store.was_recovered
        found = stored(store)
    assert set(acknowledged) <= set(found)
    bodies = [body for _, _, _, body in found]
    assert len(bodies) == len(set(bodies))
    assert sorted(bodies, key=lambda body: int(body[: len(body) // 50])) == [
        f"{number}".encode() * 50 for number in range(len(bodies))
    ]
    assert [one for one in verify_store(StoreReader(root, CONFIG)) if one.code != "CONFIG-MISSING"] == []


# What a killed process leaves


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, Acknowledged]]]:
    """A store as a killed process leaves it, with units and keys that lag behind, and its messages by their ends."""
    root = tmp_path_factory.mktemp("killed") / "store"
    store = MessageStore(root, CONFIG, now=NOW, usage=half_full)
    ends = []
    for number in range(40):
        body = f"message {number} ".encode() * (number % 7)
        pairs = {"KEYS": f"k{number}", "UNIQ_KEY": f"u{number}"}
        message = new_message("AB"[number % 2], body, queue_id=number % 3, pairs=pairs)
        result = store.append(message, NOW + number)
        ends.append((result.end_offset, (message.topic, message.queue_id, result.queue_offset, body)))
        if number == 15:
            store.tick(NOW + number)
            store.flush_queues()
        if number == 28:
            store.tick(NOW + number)
    copy = root.with_name("copy")
    shutil.copytree(root, copy)
    store.close()
    return copy, ends


def cut_log(root: Path, start: int) -> None:
    """Have nothing in the log of a store from an address on."""
    for segment in sorted((root / "commitlog").iterdir()):
        at, size = max(0, start - int(segment.name)), segment.stat().st_size
        if at < size:
            os.truncate(segment, at)
            os.truncate(segment, size)


@pytest.mark.parametrize("missing", [*range(0, 700, STEP)])
def test_a_log_that_ends_in_the_middle_of_a_message_is_cut_before_it(
    missing: int, killed: tuple[Path, list[tuple[int, Acknowledged]]], tmp_path: Path
) -> None:
    left, ends = killed
    root = tmp_path / "store"
    shutil.copytree(left, root)
    end = ends[-1][0] - missing
    cut_log(root, end)
    whole = [one for last, one in ends if last <= end]
    assert len(whole) > 28  # so that units and keys are there of messages that are not

    store = MessageStore(root, CONFIG, now=NOW, usage=half_full)

    with contextlib.closing(store):
        assert store.was_recovered
        assert stored(store) == sorted(whole)
        for number in range(len(ends)):
            found = [message.body for message in store.find("AB"[number % 2], f"k{number}", 0, 1 << 60, 9)]
            assert found == [ends[number][1][3]][: number < len(whole)]
        assert store.append(new_message(body=b"after it all"), NOW + 9999).status is PutStatus.PUT_OK
    assert [one for one in verify_store(StoreReader(root, CONFIG)) if one.code != "CONFIG-MISSING"] == []
    assert not root.with_name("store.mqtool").exists()


def test_damage_before_other_messages_is_not_the_end(
    killed: tuple[Path, list[tuple[int, Acknowledged]]], tmp_path: Path
) -> None:
    left, ends = killed
    root = tmp_path / "store"
    shutil.copytree(left, root)
    before = ends[31][0]
    file_size = SMALL.segment
    with (root / "commitlog" / f"{before // file_size * file_size:020}").open("r+b") as segment:
        segment.seek(before % file_size)
        segment.write(bytes(50))

    with pytest.raises(RecoveryNeededError, match=f"cannot be read from {before:,} on, but there is a message after"):
        MessageStore(root, CONFIG, now=NOW, usage=half_full)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_topic_that_was_deleted_with_the_last_messages_of_the_log_stays_deleted(
    is_killed: bool, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    store = MessageStore(root, CONFIG, now=NOW, usage=half_full)
    for number in range(10):
        store.append(new_message("Kept", queue_id=number % 2), NOW + number)
    for number in range(10):
        store.append(new_message("Deleted", queue_id=number % 2), NOW + number)
    assert delete_topic(store, "Deleted") == 2
    if is_killed:
        shutil.copytree(root, root := tmp_path / "killed")
    store.close()

    again = MessageStore(root, CONFIG, now=NOW, usage=half_full)

    with contextlib.closing(again):
        assert again.was_recovered == is_killed
        assert sorted(again.queues()) == [("Kept", 0), ("Kept", 1)]
        assert again.append(new_message("Deleted"), NOW + 30).queue_offset == 0
