"""``recover --cut-at``: the log ends where a message begins; what lies behind can be had back."""

from pathlib import Path

import pytest

from mqtool.engine.repair.journal import undo
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.message_store import MessageStore
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import UsageError
from tests.engine.repair.test_recover import bytes_of, messages_in_queues, plan_of, recover, wrong_in
from tests.golden import copy_of

STORES = ("mixed-533-clean", "mixed-497-clean")


def log_of(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((store / "commitlog").iterdir())}


def places(store: Path) -> list[tuple[int, int]]:
    """Return address and end of each message."""
    reader = StoreReader(store)
    starts = [one.physical_offset for one in reader.messages()]
    return [(at, at + int.from_bytes(reader.commit_log.read(at, 4), "big")) for at in starts]


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.77, 0.999])
@pytest.mark.parametrize("mode", ["normal", "abnormal"])
def test_all_before_stays_byte_by_byte_all_behind_is_gone_and_undo_brings_it_back(
    tmp_path: Path, name: str, share: float, mode: str
) -> None:
    store = copy_of(name, tmp_path)
    there, before, log = places(store), bytes_of(store), log_of(store)
    at = there[int(len(there) * share)][0]
    kept = [one for one in there if one[0] < at]
    end = kept[-1][1]

    plan = recover(store, mode=mode, cut_at=at)

    size = StoreReader(store).commit_log.file_size
    for file, data in log_of(store).items():
        start = int(file)
        there_now = max(0, min(size, end - start))
        assert data[:there_now] == log[file][:there_now]
        assert at - start >= size or not any(data[there_now:])
    assert places(store) == kept
    assert sum(loss.messages for loss in plan.losses if loss.topic) >= len(there) - len(kept)
    assert sum(messages_in_queues(store).values()) <= len(kept)
    assert not wrong_in(store)
    undo(store, Disk())
    assert bytes_of(store) == before


def test_a_broker_goes_on_where_the_log_was_cut(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    there = places(store)
    at = there[-20][0]
    recover(store, cut_at=at)

    config = StoreConfig({"mappedFileSizeCommitLog": str(StoreReader(store).commit_log.file_size)})
    opened = MessageStore(store, config, now=1)
    assert opened.end_offset == there[-21][1]
    opened.close()


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ("within", "no message starts at"),
        ("first", "nothing of the log would be left"),
        ("behind", "the log ends at"),
    ],
)
def test_a_log_is_cut_only_where_a_message_begins(tmp_path: Path, where: str, sentence: str) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    there = places(store)
    at = {"within": there[-10][0] + 7, "first": there[0][0], "behind": there[-1][1] + 4}[where]
    before = bytes_of(store)

    with pytest.raises(UsageError, match=sentence):
        plan_of(store, cut_at=at)
    assert bytes_of(store) == before
