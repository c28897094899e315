"""What is acknowledged of a queue, held against a plain set of offsets."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.broker.saves import Saves
from mqtool.engine.pulsar import cursor as cursor_module
from mqtool.engine.pulsar.cursor import Cursor
from mqtool.engine.pulsar.cursor_files import FOLDER, CursorFiles, CursorKey, load_cursors

offsets = st.integers(0, 30)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("ack"), offsets, st.integers(1, 4)),
        st.tuples(st.just("ack_until"), offsets),
        st.tuples(st.just("cut_from"), offsets),
        st.tuples(st.just("seek"), offsets),
    ),
    max_size=12,
)


@given(steps)
def test_a_cursor_knows_just_what_was_acknowledged(steps: list[Any]) -> None:
    cursor, acked = Cursor(0), set[int]()
    for name, *arguments in steps:
        getattr(cursor, name)(*arguments)
        first = arguments[0]
        match name:
            case "ack":
                acked |= set(range(first, first + arguments[1]))
            case "ack_until":
                acked |= set(range(first))
            case "cut_from":
                acked = {one for one in acked if one < first}
            case "seek":
                acked = set(range(first))

    assert {one for one in range(40) if cursor.next_open(one) > one} == acked
    assert cursor.next_offset == next(one for one in range(40) if one not in acked)
    for one in range(40):
        assert cursor.open_before(one) == sum(other not in acked for other in range(one))


@pytest.mark.parametrize(
    ("spans", "left", "remains"),
    [([(5, 8), (10, 20)], [(9, 0b10), (21, 0b1)], [(5, 7)]), ([], [(7, 0b101)], [])],
)
def test_messages_that_come_to_the_places_of_lost_ones_are_not_acknowledged(
    spans: list[tuple[int, int]], left: list[tuple[int, int]], remains: list[tuple[int, int]]
) -> None:
    cursor = Cursor(3, spans, left)

    cursor.cut_from(7)

    assert (cursor.next_offset, [*cursor.spans], cursor.left, cursor.is_changed) == (3, remains, {}, True)


def test_a_cursor_is_there_whenever_a_kill_comes_while_its_file_is_replaced_or_removed(tmp_path: Path) -> None:
    files = CursorFiles(tmp_path, Saves(), lambda: 0)
    key = CursorKey("t", 0, "s")
    for next_offset in (3, 5):
        files.save(key, "s", 1, Cursor(next_offset, [(7, 8)]), 1000)
    [path] = (tmp_path / FOLDER).glob("*.json")
    before = path.with_name(f"{path.name}.bak")

    path.unlink()
    assert [(loaded, kept.cursor.next_offset) for loaded, kept in load_cursors(tmp_path)] == [(key, 3)]
    before.replace(path)
    before.write_bytes(b"{")
    assert [kept.cursor.next_offset for _, kept in load_cursors(tmp_path)] == [3]
    path.write_bytes(b"{")
    assert [*load_cursors(tmp_path)] == []
    files.delete(key)
    assert [*(tmp_path / FOLDER).iterdir()] == []


def test_acknowledgements_for_which_there_is_no_room_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor_module, "MAX_GAPS", 3)
    monkeypatch.setattr(cursor_module, "MAX_LEFT_BYTES", 350)
    cursor = Cursor(0)
    for offset in range(1, 20, 2):
        cursor.ack(offset, 1)
    for offset in range(30, 50):
        cursor.ack_some(offset, 1, 8, 0b1)
    assert ([*cursor.spans], [*cursor.left]) == ([(1, 2), (3, 4), (5, 6)], [30, 31, 32])

    cursor.ack(2, 1)  # a gap less
    cursor.ack(30, 1)
    cursor.ack_some(33, 1, 8, 0b1)

    assert ([*cursor.spans], [*cursor.left]) == ([(1, 4), (5, 6), (30, 31)], [31, 32, 33])
    cursor.ack_until(40)
    cursor.ack_some(41, 1, 8, 0b1)
    assert ([*cursor.spans], [*cursor.left], cursor.next_offset) == ([], [41], 40)
