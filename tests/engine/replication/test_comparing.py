"""Whether a slave's log fits its master's, and where two logs part."""

from hypothesis import given, settings
from hypothesis import strategies as st

from mqtool.engine.broker.operations.log_checksums import MAX_BLOCKS
from mqtool.engine.replication import comparing
from mqtool.engine.replication.comparing import (
    MAX_COMPARED,
    ComparedRange,
    Extent,
    RecordPrefix,
    find_fork,
    misfit_of_extents,
    misfit_of_piece,
)


def fork_of(ours: bytes, theirs: bytes, start: int) -> tuple[int, list[ComparedRange]]:
    """Return where two logs part that begin at an address, and what was compared for that."""
    search = find_fork(start, min(len(ours), len(theirs)))
    compared: list[ComparedRange] = []
    same: list[bool] | None = None
    try:
        while True:
            compared.append(search.send(same))  # type: ignore[arg-type]
            same = [ours[at : at + size] == theirs[at : at + size] for at, size in compared[-1].places()]
    except StopIteration as stop:
        return stop.value, compared


@settings(max_examples=10)
@given(
    st.integers(0, 5 << 20), st.integers(0, 40 << 20), st.integers(1, 1 << 20), st.booleans(), st.sampled_from([0, 7])
)
def test_the_first_byte_in_which_logs_differ_is_found_and_little_is_compared_before_it(
    start: int, same_size: int, more: int, is_longer: bool, gap: int
) -> None:
    same = bytes(start + same_size)
    # Behind the fork nothing is equal for long: each record has its own address and time.
    ours, theirs = same + b"\1" * more, same + b"\2" * (more + is_longer * gap)

    fork, compared = fork_of(ours, theirs, start)

    assert fork == len(same)
    for one in compared:
        assert start <= one.start_offset < one.end_offset <= min(len(ours), len(theirs))
        assert one.end_offset - one.start_offset <= MAX_COMPARED
        assert len([*one.places()]) <= MAX_BLOCKS
    assert sum(one.end_offset - one.start_offset for one in compared) <= more + 2 * MAX_COMPARED


@settings(max_examples=10)
@given(st.integers(0, 3 << 20), st.integers(0, 3 << 20))
def test_of_logs_that_do_not_differ_one_goes_on_behind_the_other(start: int, size: int) -> None:
    log = bytes(start + size)
    assert fork_of(log, log + b"more", start)[0] == len(log)


def test_a_difference_in_the_very_first_byte_is_found() -> None:
    assert fork_of(b"abc", b"xbc", 0)[0] == 0


def test_a_log_fits_whose_end_lies_within_the_masters() -> None:
    masters = Extent(100, 500, 50)
    assert misfit_of_extents(Extent(0, 100, 50), masters) is None
    assert misfit_of_extents(Extent(200, 500, 50), masters) is None
    assert misfit_of_extents(Extent(0, 0, 50), masters) is None  # an empty one begins anywhere
    assert "after the end" in (misfit_of_extents(Extent(0, 501, 50), masters) or "")
    assert "before the start of the master's log" in (misfit_of_extents(Extent(0, 99, 50), masters) or "")
    assert "mappedFileSizeCommitLog" in (misfit_of_extents(Extent(0, 0, 51), masters) or "")
    assert misfit_of_extents(Extent(0, 300, 51), Extent(0, 400, 0)) is None  # whose size is not known


def test_records_are_compared_as_far_as_they_have_come() -> None:
    assert misfit_of_piece(RecordPrefix(7, b"record"), b"record") is None
    assert misfit_of_piece(RecordPrefix(7, b"rec"), b"record") is None
    assert "a different message" in (misfit_of_piece(RecordPrefix(7, b"record"), b"recorD") or "")
    assert "where the master has none" in (misfit_of_piece(RecordPrefix(7, b"record"), None) or "")
    assert comparing.to_compare([RecordPrefix(3, b"a"), RecordPrefix(7, b"b")], Extent(5, 9, 1)) == [
        RecordPrefix(7, b"b")
    ]
