"""Store times, system flags and delay levels that cannot be right: repaired, or named as left."""

import dataclasses
import itertools
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.repair.plan import Plan, carry_out, plan_repair
from mqtool.engine.repair.salvage.plan import plan_salvage, salvage
from mqtool.engine.repair.salvage.transfer import JsonLines, export, import_files, writing_file
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.repair.verify.store_times import MAX_WRONG, Samples, TimeOrder, corrections, steps_back
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.engine.store.search import Query, Search
from mqtool.formats.message import Message
from mqtool.formats.record_edits import with_flag, with_time
from tests.golden import copy_of

HOUR = 3_600_000
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1


def wrong_in(store: Path) -> list[str]:
    return [one.code for one in verify_store(StoreReader(store)) if one.severity != "note"]


def plan_of(store: Path) -> Plan:
    return plan_repair(store, StoreConfig(), "recover", {"mode": "abnormal"})


def messages_of(store: Path) -> list[Message]:
    return list(StoreReader(store).messages())


def rewrite(store: Path, change: Callable[[int, Message, bytes], bytes]) -> None:
    """Write every record of a log anew, as a change of its number, its message and its bytes gives it."""
    reader = StoreReader(store)
    changed = []
    for number, message in enumerate(reader.messages()):
        segment = reader.commit_log.segment_at(message.position)
        assert segment is not None
        data = change(number, message, bytes(reader.record_at(message.position)))
        changed.append((segment.path, message.position - segment.start_offset, data))
    for path, at, data in changed:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(data)


def put_time(store: Path, number: int, time: int) -> Message:
    """Give one message of a store another store time; returns what it was."""
    rewrite(store, lambda this, _, record: with_time(record, time) if this == number else record)
    return messages_of(store)[number]


def series(longest_step: int) -> st.SearchStrategy[np.ndarray]:
    return st.lists(st.integers(0, longest_step), min_size=3 * MAX_WRONG, max_size=40).map(
        lambda steps: np.cumsum(np.array(steps, np.int64)) + 1_700_000_000_000
    )


times = series(HOUR)
steady_times = series(HOUR // 6)


@given(times, st.data())
def test_a_message_whose_time_stands_out_gets_one_between_its_neighbours(
    sound: np.ndarray, data: st.DataObject
) -> None:
    row = data.draw(st.integers(MAX_WRONG + 1, len(sound) - MAX_WRONG - 2))
    damaged = sound.copy()
    damaged[row] = data.draw(st.one_of(st.integers(LOWEST, 1 << 40), st.integers(1 << 41, HIGHEST)))

    decided = corrections(damaged)

    assert not decided.left
    assert decided.times == ({row: sound[row - 1]} if len(steps_back(damaged)) else {})


@given(steady_times, st.integers(2, 30))  # else the few behind a long step forward may as well be what is damaged
def test_where_the_clock_was_set_back_nothing_is_changed(sound: np.ndarray, hours: int) -> None:
    both = np.r_[sound, sound - sound[0] + sound[-1] - hours * HOUR]

    decided = corrections(both)

    assert decided.times == {}
    assert decided.left == steps_back(both).tolist() == [len(sound)]


@given(times, st.data())
def test_it_does_not_matter_where_a_log_is_cut(sound: np.ndarray, data: st.DataObject) -> None:
    for row in data.draw(st.sets(st.integers(0, len(sound) - 1), max_size=6)):
        sound[row] = data.draw(st.integers(LOWEST, HIGHEST))
    cuts = [0, *sorted(data.draw(st.sets(st.integers(1, len(sound) - 1), max_size=4))), len(sound)]
    positions = np.arange(len(sound)) * 100
    order = TimeOrder()

    for start, stop in itertools.pairwise(cuts):
        order.take(Samples.of(positions[start:stop], sound[start:stop]))
    found, left = order.finish()

    whole = corrections(sound)
    assert found == {100 * row: time for row, time in whole.times.items()}
    assert left == [100 * row for row in whole.left]
    after = sound.copy()
    after[list(whole.times)] = list(whole.times.values())
    assert steps_back(after).tolist() == whole.left


@pytest.mark.parametrize("name", ["ext-533-clean", "batchcq-533-clean", "propcrc-533-clean", "mixed-497-clean"])
@pytest.mark.parametrize("time", [0, LOWEST, 1 << 61])
def test_recover_gives_a_message_its_neighbours_time_and_plans_nothing_again(
    name: str, time: int, tmp_path: Path
) -> None:
    store = copy_of(name, tmp_path)
    whole = messages_of(store)
    number = len(whole) // 2
    damaged = put_time(store, number, time)
    assert "LOG-TIME-ORDER" in wrong_in(store)

    plan = plan_of(store)
    carry_out(store, StoreConfig(), plan, Disk())

    assert plan.losses == ()
    assert any(f"the message at {damaged.position:,} was not stored at {time}" in remark for remark in plan.remarks)
    repaired = messages_of(store)[number]
    assert repaired.store_timestamp == whole[number - 1].store_timestamp
    assert dataclasses.replace(repaired, store_timestamp=0) == dataclasses.replace(
        whole[number], store_timestamp=0
    ) or (
        name.startswith("propcrc")  # its CRC property is another
    )
    assert wrong_in(store) == []
    assert not plan_of(store).changes


def test_recover_leaves_the_times_of_a_clock_that_was_set_back_and_says_so(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    many = len(messages_of(store)) // 2
    rewrite(
        store,
        lambda number, message, data: with_time(data, message.store_timestamp - HOUR) if number >= many else data,
    )

    plan = plan_of(store)

    assert not any(change.file.startswith("commitlog") for change in plan.changes)
    assert any("(LOG-TIME-ORDER)" in remark for remark in plan.remarks)


def test_placeholders_take_the_time_of_the_message_in_front_of_them_and_never_an_absurd_one(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    count = len(messages_of(store))

    def spread(number: int, _: Message, data: bytes) -> bytes:
        if number in (50, 52, 100):  # lost, lost, and lost behind a time that cannot be right
            return bytes(len(data))
        return with_time(data, -1 if number == 99 else 1_700_000_000_000 + number * HOUR)

    rewrite(store, spread)
    carry_out(store, StoreConfig(), plan_of(store), Disk())

    assert "LOG-TIME-ORDER" not in wrong_in(store)
    messages = messages_of(store)
    assert len(messages) == count
    hours = [(one.store_timestamp - 1_700_000_000_000) // HOUR for one in messages]
    assert [hours[number] for number in (50, 52, 99, 100)] == [49, 51, 98, 98]


def copies_of(store: Path, into: Path) -> dict[str, tuple[Path, list[str]]]:
    """Salvage a store, and export and import it; returns each new store with what was told."""
    plan = plan_salvage(StoreReader(store))
    salvage(plan, into / "salvaged", Disk())
    with writing_file(Disk(), into / "all.jsonl") as sink:
        export(Search(StoreReader(store), Query(), use_index=False).messages(lambda _: None), JsonLines(sink.write))
    done = import_files([into / "all.jsonl"], into / "imported", StoreConfig(), Disk())
    return {"salvage": (into / "salvaged", plan.remarks), "import": (into / "imported", done.remarks)}


@pytest.mark.parametrize("time", [LOWEST, 1 << 61])
def test_salvage_and_import_take_over_no_absurd_time_and_say_so(time: int, tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    number = len(messages_of(store)) // 2
    put_time(store, number, time)

    for new, told in copies_of(store, tmp_path).values():
        assert wrong_in(new) == []
        times_now = [one.store_timestamp for one in messages_of(new)]
        assert times_now[number] == times_now[number - 1]
        assert any("its store time is impossible" in remark for remark in told)


def test_a_new_store_names_a_clock_that_was_set_back(tmp_path: Path) -> None:
    store = copy_of("retry-533-clean", tmp_path)
    many = len(messages_of(store)) // 2
    rewrite(
        store,
        lambda number, message, data: with_time(data, message.store_timestamp - HOUR) if number >= many else data,
    )
    before = [one.store_timestamp for one in messages_of(store)]

    for new, told in copies_of(store, tmp_path).values():
        assert [one.store_timestamp for one in messages_of(new)] == before
        assert any("(LOG-TIME-ORDER)" in remark for remark in told)


def first_of(store: Path, wanted: Callable[[Message], bool]) -> int:
    return next(number for number, message in enumerate(messages_of(store)) if wanted(message))


@pytest.mark.parametrize(
    ("name", "wanted", "bits"),
    [
        ("mixed-533-clean", lambda one: not one.sys_flag & 1 and one.body[:1] != b"x" and not one.sys_flag & 12, 0x1),
        ("mixed-533-clean", lambda one: not one.sys_flag & 12, 0x201),
        ("batchcq-533-clean", lambda one: bool(one.sys_flag & 0x80), 0x80),
        ("batchcq-533-clean", lambda one: not one.sys_flag & 0x80, 0x80),
    ],
    ids=["as if it were zlib", "as if it were zstd", "no batch any more", "as if it were a batch"],
)
def test_a_flag_that_contradicts_its_record_is_written_anew(
    name: str, wanted: Callable[[Message], bool], bits: int, tmp_path: Path
) -> None:
    store = copy_of(name, tmp_path)
    number = first_of(store, wanted)
    whole = messages_of(store)
    rewrite(
        store,
        lambda this, message, data: with_flag(data, message.sys_flag ^ bits) if this == number else data,
    )
    assert "LOG-FLAG" in wrong_in(store)
    copies = copies_of(store, tmp_path)

    plan = plan_of(store)
    carry_out(store, StoreConfig(), plan, Disk())

    assert plan.losses == ()
    assert wrong_in(store) == []
    assert messages_of(store)[number] == whole[number]
    for new, told in copies.values():
        assert wrong_in(new) == []
        assert messages_of(new)[number].sys_flag == whole[number].sys_flag
        assert any("its system flag contradicts its body" in remark for remark in told)


@pytest.mark.parametrize("damage", [(b"DELAY\x014\2", b"DELAY\x014 "), (b"DELAY\x014\2", b"DELAY\x01x\2")])
def test_a_delay_level_that_is_not_a_number_is_again_that_of_its_queue(
    damage: tuple[bytes, bytes], tmp_path: Path
) -> None:
    store = copy_of("txn-533-kill", tmp_path)
    number = first_of(store, lambda one: one.topic == "SCHEDULE_TOPIC_XXXX" and damage[0] in one.raw_properties)
    whole = messages_of(store)
    rewrite(store, lambda this, _, data: data.replace(*damage) if this == number else data)
    assert "LOG-PROPERTIES" in wrong_in(store)
    copies = copies_of(store, tmp_path)

    carry_out(store, StoreConfig(), plan_of(store), Disk())

    assert wrong_in(store) == []
    assert messages_of(store)[number] == whole[number]
    for new, told in copies.values():
        assert wrong_in(new) == []
        assert messages_of(new)[number].raw_properties == whole[number].raw_properties
        assert any("its delay level, which is not a number, is rewritten" in remark for remark in told)


def test_a_flag_of_which_nothing_tells_what_it_should_be_is_named_as_left(tmp_path: Path) -> None:
    store = copy_of("batchcq-533-clean", tmp_path)
    number = first_of(store, lambda one: bool(one.sys_flag & 0x80))
    count = messages_of(store)[number].properties["INNER_NUM"].encode()

    def contradicts(this: int, message: Message, data: bytes) -> bytes:
        other = data.replace(b"INNER_NUM\1" + count, b"INNER_NUM\1" + b"9" * len(count))
        return with_flag(other, message.sys_flag ^ 0x80) if this == number else data

    rewrite(store, contradicts)
    assert "LOG-FLAG" in wrong_in(store)

    plan = plan_of(store)

    assert not [change for change in plan.changes if change.file.startswith("commitlog")]
    assert any("(LOG-FLAG)" in remark and "INNER_NUM" in remark for remark in plan.remarks)


def test_a_body_that_is_packed_as_its_flag_says_is_no_reason_for_a_closer_look(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    number = first_of(store, lambda one: not one.sys_flag and len(one.body) > 40)

    def packed(this: int, message: Message, data: bytes) -> bytes:
        if this != number:
            return data
        body = zlib.compress(b"", 1).ljust(len(message.body), b"\0")
        at = data.index(message.body)
        crc = (zlib.crc32(body) & 0x7FFFFFFF).to_bytes(4, "big")
        return with_flag(data[:8] + crc + data[12:at] + body + data[at + len(body) :], 1)

    rewrite(store, packed)

    assert wrong_in(store) == []
    assert not [change for change in plan_of(store).changes if change.file.startswith("commitlog")]
