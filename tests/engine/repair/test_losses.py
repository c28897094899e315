"""Losses are told once each, in rows of queue offsets that follow each other."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.repair.losses import LossCollector
from mqtool.engine.repair.plan import Loss

ranges = st.tuples(st.integers(0, 30), st.integers(1, 5), st.sampled_from(["gone", "behind"]))


@given(st.lists(ranges))
def test_rows_hold_every_offset_that_was_added_once(added: list[tuple[int, int, str]]) -> None:
    losses = LossCollector()
    for start, count, reason in added:
        losses.add(("T", 0), start, start + count, 10 * count, reason)

    told = [offset for row in losses.rows() for offset in range(row.queue_offset or 0, row.end_queue_offset or 0)]

    assert told == sorted({start + i for start, count, _ in added for i in range(count)})
    assert sum(row.messages for row in losses.rows()) == len(told)


def test_what_follows_each_other_is_one_row() -> None:
    losses = LossCollector()
    losses.add(("T", 1), 7, 8, 50, "gone")
    offsets = np.arange(4, 7)
    losses.add_many(("T", 1), offsets, offsets + 1, np.full(3, 100), "gone")
    losses.add(("T", 0), 4, 5, 9, "gone")
    losses.add_elsewhere(None, 0, 99, "unknown")

    assert losses.rows() == (
        Loss("T", 1, 9, "gone", 0, 4, 5),
        Loss("T", 4, 350, "gone", 1, 4, 8),
        Loss(None, 0, 99, "unknown"),
    )
