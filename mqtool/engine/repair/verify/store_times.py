"""Impossible store times: those of a few messages that stand out from their neighbours.

A broker stores one message after the other, so store times follow the order of the log. Where they step back by more
than ``CLOCK_STEP_MS``, some are damaged or the clock was set. A few messages between others that agree are damaged;
with many on both sides of the step the clock was set, and their times stay.

Cost: linear in the messages; what is kept of them is a few at each step and at both ends.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from mqtool.engine.store.reader import CLOCK_STEP_MS
from mqtool.formats.scan import Ints

MAX_WRONG = 4
"""How many messages in a row may have damaged times; if more stand out the clock was set."""
CONTEXT = 2 * MAX_WRONG
"""How many messages on each side of a step decide which of them stand out."""
_FAR = 1 << 62
_NONE = np.empty(0, np.int64)


class Corrections(NamedTuple):
    """Corrections for backward steps of store times."""

    times: dict[int, int]  # by row: the new time of a message
    left: list[int]  # rows that stay too early relative to the previous one


def steps_back(times: Ints) -> Ints:
    """Return the rows that were stored too long before the previous row."""
    times = np.clip(times, -_FAR, _FAR)
    rows: Ints = np.flatnonzero(times[1:] < times[:-1] - CLOCK_STEP_MS) + 1
    return rows


def corrections(times: Ints, steps: Sequence[int] | None = None, first: int = 0, more: bool = False) -> Corrections:
    """Decide which store times are damaged; they are replaced by that of the previous message.

    Args:
        times: in the order of the log.
        steps: rows to examine; None: all backward steps.
        first: rows before it cannot be changed any more.
        more: other messages follow.
    """
    corrected: dict[int, int] = {}
    left = []

    def at(row: int) -> int:
        return corrected.get(row, int(times[row]))

    def follows(row: int, before: int) -> bool:
        return at(row) >= at(before) - CLOCK_STEP_MS

    if not first and len(times) and times[0] < -CLOCK_STEP_MS:  # nothing was stored before 1970
        stop = next((row for row in range(1, min(MAX_WRONG + 1, len(times))) if times[row] >= -CLOCK_STEP_MS), 0)
        corrected.update(dict.fromkeys(range(stop), int(times[stop])))
        left += [] if stop else [0]
    for row in steps_back(times).tolist() if steps is None else steps:
        if follows(row, row - 1):
            continue
        choices = _between(row, len(times), follows)
        if not choices:  # at an end of the log nothing is beyond; the fewer are wrong
            choices = [range(row, len(times))] * (not more and len(times) - row <= MAX_WRONG)
            choices += [range(row)] * (row <= MAX_WRONG)
        if len(choices) > 1:
            middle = float(np.median(times[max(0, row - CONTEXT) : row + CONTEXT]))
            choices.sort(key=lambda rows: (len(rows), -max(abs(at(row) - middle) for row in rows)))
        if not choices or choices[0].start < first:
            left.append(row)
            continue
        rows = choices[0]
        value = at(rows.start - 1) if rows.start else at(rows.stop)
        corrected.update(dict.fromkeys(rows, value))
    return Corrections(corrected, left)


def _between(row: int, count: int, follows: Callable[[int, int], bool]) -> list[range]:
    """Return the smallest sets of rows around a step without which there is no step."""
    for size in range(1, MAX_WRONG + 1):
        choices = [range(start, start + size) for start in range(max(1, row - size), row + 1)]
        valid = [rows for rows in choices if rows.stop < count and follows(rows.stop, rows.start - 1)]
        if valid:
            return valid
    return []


class Samples(NamedTuple):
    """Consecutive messages, without those that are irrelevant for damaged times."""

    positions: Ints
    times: Ints
    steps: Ints  # rows, of these

    @classmethod
    def of(cls, positions: Ints, times: Ints, joints: Ints = _NONE) -> "Samples":
        """Keep the messages at both ends, around each step back, and around rows before which others may belong."""
        steps = steps_back(times)
        if len(times) <= 2 * CONTEXT:
            return cls(positions, times, steps)
        near = np.zeros(len(times), np.bool_)
        near[:CONTEXT] = near[-CONTEXT:] = True
        around = np.union1d(steps, joints)[:, None] + np.arange(-CONTEXT, CONTEXT)
        near[np.clip(around, 0, len(times) - 1)] = True
        rows = np.flatnonzero(near)
        return cls(positions[rows], times[rows], np.searchsorted(rows, steps))


@dataclasses.dataclass
class TimeOrder:
    """The store times of a log, taken piece by piece."""

    _samples: list[Samples] = dataclasses.field(default_factory=list)

    def take(self, samples: Samples) -> None:
        """Take the next messages of the log."""
        if len(samples.times):
            self._samples.append(samples)

    def finish(self, positions_between: Ints = _NONE, times_between: Ints = _NONE) -> tuple[dict[int, int], list[int]]:
        """Return, by address, the time that each message with a damaged one gets, and the messages that stay.

        Args:
            positions_between: addresses of more messages, between those that were taken.
            times_between: their store times.
        """
        if not self._samples:
            return {}, []
        positions, times = (np.concatenate([sample[column] for sample in self._samples]) for column in (0, 1))
        starts = np.cumsum([0, *(len(sample.times) for sample in self._samples)])
        steps = {
            int(start) + row
            for start, sample in zip(starts, self._samples, strict=False)
            for row in sample.steps.tolist()
        }
        steps |= {int(row) for row in starts[1:-1] if steps_back(times[row - 1 : row + 1]).size}
        if len(positions_between):
            at = np.searchsorted(positions, positions_between)
            steps = {row + int(np.searchsorted(at, row, "right")) for row in steps}
            positions, times = np.insert(positions, at, positions_between), np.insert(times, at, times_between)
            rows = np.unique(at[:, None] + np.arange(len(at))[:, None] + [0, 1])
            rows = rows[(rows > 0) & (rows < len(times))]
            steps |= set(rows[times[rows] < times[rows - 1] - CLOCK_STEP_MS].tolist())
        decided = corrections(times, sorted(steps))
        by_address = {int(positions[row]): time for row, time in decided.times.items()}
        return by_address, [int(positions[row]) for row in decided.left]
