"""What a running broker deletes, and when it is too full to write."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.append_result import PutStatus
from mqtool.engine.store.log_reader import LogReader
from mqtool.engine.store.message_store import MessageStore
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import NotFoundError, UsageError
from tests.engine.store.live import SMALL, append_all, delete_topic, new_message, opened

HOUR = 3_600_000
_DAY = time.struct_time((2026, 3, 10, 12, 0, 0, 0, 0, -1))
NOON = int(time.mktime(_DAY)) * 1000
"""Noon at some day, wherever the tests run."""
NIGHT = NOON + 16 * HOUR
"""Shortly after four o'clock, as RocketMQ's default has it."""


class Usage:
    """How full a disk is said to be."""

    def __init__(self) -> None:
        self.ratio = 0.5

    def __call__(self, _folder: Path) -> float:
        return self.ratio


@contextlib.contextmanager
def filled(root: Path, usage: Usage, **settings: str) -> Iterator[MessageStore]:
    """Give a store of many segments that were all flushed at noon."""
    config = StoreConfig({**SMALL.settings, **settings})
    store = MessageStore(root, config, now=NOON, usage=usage)
    messages = [
        new_message(f"Topic{number % 2}", bytes(700), queue_id=number % 3 // 2, pairs={"KEYS": f"k{number}"})
        for number in range(120)
    ]
    append_all(store, messages, NOON)
    store.flush()
    store.tick(NOON)
    for path in (root / "commitlog").iterdir():
        os.utime(path, (NOON / 1000, NOON / 1000))
    with contextlib.closing(store):
        yield store
    assert [one for one in verify_store(StoreReader(root, config)) if one.code != "CONFIG-MISSING"] == []


def segments(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "commitlog").iterdir())


def test_segments_go_when_they_are_old_and_it_is_the_hour(tmp_path: Path) -> None:
    with filled(tmp_path, Usage()) as store:
        count = len(segments(tmp_path))
        assert count > 20

        for now in (NOON + 80 * HOUR, NIGHT + 48 * HOUR):  # old at noon; young at night
            store.tick(now)
        assert len(segments(tmp_path)) == count

        night = NIGHT + 72 * HOUR
        store.tick(night)
        assert len(segments(tmp_path)) == count - 1
        store.tick(night + 99)
        assert len(segments(tmp_path)) == count - 1
        for step in range(1, 50):
            store.tick(night + 100 * step)
        assert len(segments(tmp_path)) == count - 10  # so many at each look
        for step in range(1, 1000):
            store.tick(night + 1000 * step)
        assert segments(tmp_path) == [f"{(count - 1) * 4096:020}"]
        assert store.append(new_message(), night).status is PutStatus.PUT_OK


def test_segments_that_are_old_go_at_any_hour_when_somebody_asks(tmp_path: Path) -> None:
    with filled(tmp_path, Usage()) as store:
        count = len(segments(tmp_path))
        store.retention.ask()
        store.tick(NOON + 48 * HOUR)
        assert len(segments(tmp_path)) == count  # young

        old = NOON + 96 * HOUR
        store.tick(old)
        assert len(segments(tmp_path)) == count - 1
        for step in range(1, 10_000):
            store.tick(old + 1000 * step)
        assert len(segments(tmp_path)) == 1

    again = [NOON + 100 * HOUR + 10_000 * look for look in range(25)]
    with filled(tmp_path / "later", Usage(), deleteCommitLogFilesInterval="10000") as store:
        store.retention.ask()
        for now in again:
            store.tick(now)
        assert len(segments(tmp_path / "later")) == count - 20  # so many looks long


def test_segments_stay_that_a_reader_has_not_read_where_that_is_set_but_not_on_a_full_disk(tmp_path: Path) -> None:
    for waits in ("false", "true"):
        usage = Usage()
        with filled(tmp_path / waits, usage, retentionWaitsForReaders=waits) as store:
            whole = b"".join(bytes(store.log.read(at, 4096)) for at in range(0, store.log.end_offset, 4096))
            reader = LogReader(store.log, 0)
            found = b"".join(bytes(reader.read(1000)) for _ in range(7))
            assert (found, reader.offset) == (whole[:6096], 6096)  # a piece ends where a segment does

            night = NIGHT + 72 * HOUR
            for step in range(100):
                store.tick(night + 100 * step)
            if waits == "false":
                assert store.log.min_offset > 6096
                with pytest.raises(NotFoundError, match="6,096 is no longer in it"):
                    reader.read(1000)
                continue
            assert store.log.min_offset == 4096
            assert bytes(reader.read(96)) == whole[6096:6192]
            usage.ratio = 0.86
            for step in range(100, 300):
                store.tick(night + 100 * step)
            assert store.log.min_offset > 6192
            reader.close()
            assert not store.log.readers


@pytest.mark.parametrize(
    ("ratio", "settings", "goes"),
    [
        (0.75, {}, False),
        (0.76, {}, False),
        (0.85, {}, False),
        (0.86, {}, True),
        (0.95, {}, True),
        (0.95, {"cleanFileForciblyEnable": "false"}, False),
        (0.60, {"diskSpaceCleanForciblyRatio": "50"}, True),
    ],
)
def test_a_full_disk_costs_young_segments_too(
    tmp_path: Path, ratio: float, settings: dict[str, str], goes: bool
) -> None:
    usage = Usage()
    with filled(tmp_path, usage, **settings) as store:
        count = len(segments(tmp_path))
        usage.ratio = ratio

        store.tick(NOON + 10_000)

        assert len(segments(tmp_path)) == count - goes


def test_a_disk_in_use_for_more_than_the_ratio_costs_old_segments_at_any_hour(tmp_path: Path) -> None:
    usage = Usage()
    with filled(tmp_path, usage) as store:
        count = len(segments(tmp_path))
        store.tick(NOON + 73 * HOUR)
        assert len(segments(tmp_path)) == count

        usage.ratio = 0.76
        store.tick(NOON + 74 * HOUR)

        assert len(segments(tmp_path)) == count - 1


def test_a_disk_that_is_nearly_full_refuses_messages_until_it_is_not(tmp_path: Path) -> None:
    usage = Usage()
    with filled(tmp_path, usage, cleanFileForciblyEnable="false") as store:
        usage.ratio = 0.91
        assert store.append(new_message(), NOON).status is PutStatus.PUT_OK
        store.tick(NOON + 10_000)
        refused = store.append(new_message(), NOON + 10_001)
        assert (refused.status, store.refusal) == (PutStatus.SERVICE_NOT_AVAILABLE, "the broker's disk is full")

        usage.ratio = 0.90
        store.tick(NOON + 19_999)
        assert store.append(new_message(), NOON).status is PutStatus.SERVICE_NOT_AVAILABLE
        store.tick(NOON + 20_000)
        assert store.append(new_message(), NOON + 20_001).status is PutStatus.PUT_OK


def test_queues_and_index_follow_the_log(tmp_path: Path) -> None:
    usage = Usage()
    with filled(tmp_path, usage) as store:
        queue = store.queue("Topic0", 0)
        assert queue is not None
        index_files = len(list((tmp_path / "index").iterdir()))
        old = store.log.record(0)
        usage.ratio = 0.86
        for step in range(1, 500):
            store.tick(NOON + 10_000 + 100 * step)

        assert store.log.min_offset == int(segments(tmp_path)[0]) > 0
        units = queue.units(queue.min_offset(store.log.min_offset), 100)
        assert 0 < len(units) < queue.next_offset
        assert units[0].physical_offset >= store.log.min_offset
        assert store.log.record(units[0].physical_offset)
        assert len(list(queue.folder.iterdir())) < queue.next_offset * 20 // 100
        assert len(list((tmp_path / "index").iterdir())) < index_files
        with pytest.raises(NotFoundError):
            store.log.record(0)
        assert len(bytes(old)) > 700  # who still reads a segment may go on
        assert store.find("Topic0", "k0", 0, 1 << 60, 9) == []
        (last,) = store.find("Topic1", "k119", 0, 1 << 60, 9)
        assert last.body == bytes(700)
        assert store.earliest_timestamp() > NOON


def test_segments_that_somebody_has_removed_do_not_keep_the_others(tmp_path: Path) -> None:
    usage = Usage()
    with filled(tmp_path, usage) as store:
        count = len(segments(tmp_path))
        for name in segments(tmp_path)[:3]:
            (tmp_path / "commitlog" / name).unlink()
        usage.ratio = 0.86

        for step in range(1, 6):
            store.tick(NOON + 10_000 + 100 * step)

        assert len(segments(tmp_path)) == count - 5
        assert store.clean_failure is None


def test_a_segment_that_cannot_be_removed_is_told_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    usage = Usage()
    with filled(tmp_path, usage) as store:
        count = len(segments(tmp_path))
        usage.ratio = 0.86
        with mock.patch.object(Path, "unlink", side_effect=PermissionError(1, "Operation not permitted")):
            for step in range(1, 6):
                store.tick(NOON + 10_000 + 100 * step)
        assert (len(segments(tmp_path)), len(caplog.records)) == (count, 1)
        assert segments(tmp_path)[0] in caplog.text

        store.tick(NOON + 11_000)

        assert len(segments(tmp_path)) == count - 1
        assert store.clean_failure is None


def test_a_topic_is_deleted_with_its_queues_and_begins_anew(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        append_all(store, [new_message(topic, queue_id=number % 2) for number in range(40) for topic in ("A", "B")])

        assert delete_topic(store, "A") == 2
        assert delete_topic(store, "A") == 0

        assert not (tmp_path / "consumequeue" / "A").exists()
        assert store.queue("A", 0) is None
        assert store.queues() == [("B", 0), ("B", 1)]
        assert store.append(new_message("A"), NOON).queue_offset == 0
        assert store.append(new_message("B"), NOON).queue_offset == 20
    with opened(tmp_path) as store:
        queue = store.queue("A", 0)
        assert queue is not None
        assert queue.next_offset == 1


@pytest.mark.parametrize("hours", ["25", "x", "-1", "4-6"])
def test_hours_that_are_none_are_refused(tmp_path: Path, hours: str) -> None:
    with pytest.raises(UsageError, match="deleteWhen"):
        MessageStore(tmp_path, StoreConfig({"deleteWhen": hours}), now=NOON)
