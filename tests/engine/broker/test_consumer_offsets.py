"""Consumer offsets in memory and in their file."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.broker.consumer_offsets import KEEP_INTERVAL_MS, UNKNOWN, ConsumerOffsets
from mqtool.errors import WriteError
from mqtool.formats.config_tables import consumer_offsets, parse_table
from tests.engine.store.live import NOW
from tests.golden import copy_of, golden_store

names = st.sampled_from(["T", "%RETRY%G", "订单"])
groups = st.sampled_from(["G", "H"])


@given(st.lists(st.tuples(groups, names, st.integers(0, 3), st.integers(-1, 1 << 40))))
def test_what_was_committed_last_is_there_after_a_restart(
    tmp_path_factory: pytest.TempPathFactory, commits: list[tuple[str, str, int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("config")
    offsets = ConsumerOffsets(folder, NOW)
    for commit in commits:
        offsets.commit(*commit)
    offsets.keep(NOW)

    again = ConsumerOffsets(folder, NOW + 1)

    last = {(group, topic, queue_id): offset for group, topic, queue_id, offset in commits}
    assert {key: again.get(*key) for key in last} == last
    assert again.get("G", "Other", 0) == UNKNOWN


def test_offsets_are_kept_every_five_seconds_while_they_change(tmp_path: Path) -> None:
    offsets = ConsumerOffsets(tmp_path, NOW)
    path = tmp_path / "consumerOffset.json"
    assert offsets.next_tick(NOW) is None
    offsets.commit("G", "T", 0, 5)
    assert offsets.next_tick(NOW) == NOW + KEEP_INTERVAL_MS
    offsets.tick(NOW + KEEP_INTERVAL_MS - 1)
    assert not path.exists()
    offsets.tick(NOW + KEEP_INTERVAL_MS)
    assert consumer_offsets(parse_table(path.read_bytes())) == {("T", "G", 0): 5}
    assert offsets.next_tick(NOW + KEEP_INTERVAL_MS) is None


def test_offsets_of_what_was_deleted_do_not_come_back_after_a_kill(tmp_path: Path) -> None:
    offsets = ConsumerOffsets(tmp_path, NOW)
    for group, topic in (("G", "T"), ("Gone", "T"), ("G", "Gone")):
        offsets.commit(group, topic, 0, 5)
    offsets.keep(NOW)
    path = tmp_path / "consumerOffset.json"

    offsets.delete_groups(["Gone"], NOW + 1)
    assert {*consumer_offsets(parse_table(path.read_bytes()))} == {("T", "G", 0), ("Gone", "G", 0)}
    offsets.delete_topics(["Gone"], NOW + 2)
    assert {*consumer_offsets(parse_table(path.read_bytes()))} == {("T", "G", 0)}


def test_a_disk_that_fails_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "there").mkdir()
    offsets = ConsumerOffsets(tmp_path / "there", NOW)
    offsets.commit("G", "T", 0, 5)
    (tmp_path / "there").rmdir()
    (tmp_path / "there").write_text("in the way")

    offsets.tick(NOW + KEEP_INTERVAL_MS)
    assert "consumer offsets" in caplog.text
    with pytest.raises(WriteError):
        offsets.keep(NOW + KEEP_INTERVAL_MS)
    (tmp_path / "there").unlink()
    offsets.tick(NOW + 2 * KEEP_INTERVAL_MS)

    assert ConsumerOffsets(tmp_path / "there", NOW).get("G", "T", 0) == 5


@pytest.mark.parametrize("name", ["mixed-533-clean", "mixed-497-clean", "retry-497-clean", "ext-533-clean"])
def test_offsets_that_a_real_broker_wrote_survive_being_kept(name: str, tmp_path: Path) -> None:
    path = golden_store(name) / "config" / "consumerOffset.json"
    written = consumer_offsets(parse_table(path.read_bytes()))
    offsets = ConsumerOffsets(copy_of(name, tmp_path) / "config", NOW)

    offsets.commit("New", "T", 1, 9)
    offsets.keep(NOW)

    kept = consumer_offsets(parse_table((tmp_path / name / "config" / "consumerOffset.json").read_bytes()))
    assert kept == {**written, ("T", "New", 1): 9}


def test_a_reset_holds_until_it_is_taken(tmp_path: Path) -> None:
    offsets = ConsumerOffsets(tmp_path, NOW)
    offsets.commit("G", "T", 0, 9)
    offsets.reset("G", "T", 0, 4)
    assert (offsets.get("G", "T", 0), offsets.has_reset("G", "T", 0)) == (4, True)
    assert [offsets.take_reset("G", "T", 0) for _ in range(2)] == [4, None]
    assert not offsets.has_reset("G", "T", 0)
    assert offsets.get("G", "T", 0) == 4


def test_groups_and_topics_are_forgotten_with_all_their_offsets(tmp_path: Path) -> None:
    offsets = ConsumerOffsets(tmp_path, NOW)
    for group in ("G", "H"):
        for topic in ("T", "U"):
            offsets.commit(group, topic, 0, 1)
            offsets.note_pull(group, topic, 0, 2)
    offsets.delete_groups({"G"}, NOW)
    assert (offsets.topics_of("G"), offsets.topics_of("H")) == ([], ["T", "U"])
    offsets.delete_topics({"T"}, NOW)
    assert (offsets.topics_of("H"), offsets.groups_of("T")) == (["U"], [])
    assert (offsets.pulled("H", "T", 0), offsets.pulled("H", "U", 0)) == (UNKNOWN, 2)
    offsets.clone("H", "New", "U")
    assert offsets.of("New", "U") == {0: 1}
