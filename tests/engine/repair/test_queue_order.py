"""Which queue offsets messages get when some are lost or damaged."""

from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.repair.salvage.queue_order import Missing, OffsetRun, Order, arrange

A, B = ("Orders", 0), ("Orders", 1)


def arranged(queues: dict[tuple[str, int], list[OffsetRun]], most_missing: int = 100, fixed: bool = False) -> Order:
    return arrange(queues, lambda _: most_missing, lambda _: fixed)


def test_queues_without_gaps_stay_as_they_are() -> None:
    order = arranged({A: [OffsetRun(0, 5, 20)], B: [OffsetRun(100, 0, 3)]})

    assert (order.moves, order.missing, order.ranges) == ({}, {}, {A: (5, 20), B: (0, 3)})


def test_what_is_lost_between_messages_is_missing_before_the_next() -> None:
    order = arranged({A: [OffsetRun(0, 0, 10), OffsetRun(500, 12, 20)]})

    assert order.missing == {500: [Missing(A, 10, 12)]}
    assert not order.moves


def test_a_damaged_offset_is_put_right() -> None:
    order = arranged({A: [OffsetRun(0, 0, 10), OffsetRun(500, 77, 78), OffsetRun(600, 11, 20)]})

    assert order.moved == [(A, OffsetRun(500, 77, 78), A, 10)]
    assert order.moves[A].shifts.tolist() == [0, -67, 0]
    assert not order.missing


def test_a_damaged_queue_is_put_right() -> None:
    order = arranged(
        {
            A: [OffsetRun(0, 0, 10), OffsetRun(600, 11, 20)],
            B: [OffsetRun(50, 0, 30), OffsetRun(500, 10, 11), OffsetRun(700, 30, 40)],
        }
    )

    assert order.moved == [(B, OffsetRun(500, 10, 11), A, 10)]
    assert order.moves[B].queue_ids.tolist() == [1, 0, 1]
    assert not order.missing


def test_numbers_that_begin_anew_go_on_at_the_end() -> None:
    order = arranged({A: [OffsetRun(0, 0, 10), OffsetRun(500, 0, 4), OffsetRun(600, 4, 5)]})

    assert [(run.position, offset) for _, run, _, offset in order.moved] == [(500, 10), (600, 14)]
    assert not order.has_late
    assert order.ranges == {A: (0, 15)}


def test_the_shorter_life_of_a_queue_goes_behind_the_longer() -> None:
    order = arranged({A: [OffsetRun(0, 0, 4), OffsetRun(500, 0, 10)]})

    assert order.moves[A].late.tolist() == [True, False]
    assert order.moves[A].shifts.tolist() == [10, 0]


def test_a_jump_that_no_loss_explains_takes_no_placeholders() -> None:
    order = arranged({A: [OffsetRun(0, 0, 10), OffsetRun(500, 1 << 40, (1 << 40) + 1)]})

    assert order.moved == [(A, OffsetRun(500, 1 << 40, (1 << 40) + 1), A, 10)]
    assert not order.missing


def test_a_misplaced_record_counts_where_its_queue_lacks_it() -> None:
    order = arranged(
        {A: [OffsetRun(0, 0, 10), OffsetRun(500, 10, 11, True), OffsetRun(600, 11, 20), OffsetRun(900, 3, 4, True)]}
    )

    assert order.found == {500}
    assert not order.missing
    assert not order.moves


def test_offsets_that_stand_in_properties_are_left_alone() -> None:
    order = arranged({A: [OffsetRun(0, 0, 10), OffsetRun(500, 0, 4), OffsetRun(600, 12, 20)]}, fixed=True)

    assert not order.moves
    assert order.missing == {600: [Missing(A, 10, 12)]}


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6)), min_size=1, max_size=12))
def test_every_message_gets_an_offset_of_its_own(parts: list[tuple[int, int]]) -> None:
    runs = [OffsetRun(100 * number, start, start + length) for number, (start, length) in enumerate(parts)]

    order = arranged({A: runs})

    shifts = order.moves[A].shifts.tolist() if A in order.moves else [0] * len(runs)
    taken = [run.start + shift + i for run, shift in zip(runs, shifts, strict=True) for i in range(run.length)]
    missing = [offset for many in order.missing.values() for one in many for offset in range(one.start, one.stop)]
    first, stop = order.ranges[A]
    assert sorted(taken + missing) == list(range(first, stop))
