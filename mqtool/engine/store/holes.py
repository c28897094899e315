"""Holes of a log: addresses between two of its segments that no file holds.

Retention deletes the oldest segments, so what is missing before the first one is not a hole.
"""

from pathlib import Path
from typing import NamedTuple

from mqtool.engine.store.file_queue import FileQueue


class LogHole(NamedTuple):
    """Addresses that no file holds, though there are files before and after them."""

    start_offset: int
    end_offset: int
    path: Path  # of the first file after them

    def __str__(self) -> str:
        return f"no file holds the bytes from {self.start_offset:,} to {self.end_offset:,}"

    @property
    def size(self) -> int:
        """How many bytes are missing."""
        return self.end_offset - self.start_offset


def runs_of(log: FileQueue) -> list[tuple[int, int]]:
    """Return the ranges of addresses that files of a log hold, in order; files may overlap where one was renamed.

    Cost: linear in the number of segments.
    """
    runs: list[tuple[int, int]] = []
    for segment in log.segments:
        if runs and segment.start_offset <= runs[-1][1]:
            runs[-1] = runs[-1][0], max(runs[-1][1], segment.end_offset)
        else:
            runs.append((segment.start_offset, segment.end_offset))
    return runs


def holes_of(log: FileQueue, start_offset: int = 0, stop_offset: int | None = None) -> list[LogHole]:
    """Return the holes of a log within a range of addresses, by the names and lengths of its files.

    Cost: linear in the number of segments.
    """
    stop_offset = log.end_offset if stop_offset is None else stop_offset
    holes = []
    reached = log.min_offset
    for segment in log.segments:
        hole = LogHole(max(reached, start_offset), min(segment.start_offset, stop_offset), segment.path)
        if hole.start_offset < hole.end_offset:
            holes.append(hole)
        reached = max(reached, segment.end_offset)
    return holes
