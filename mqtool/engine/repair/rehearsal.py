"""What a repair costs, foretold: the same changes, on a disk that writes nothing and counts.

Cost: as the changes themselves, except for what they would write.
"""

import bisect
import dataclasses
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from mqtool.engine.repair.journal import Journal
from mqtool.engine.repair.plan import Plan, further_folders
from mqtool.engine.store.disk import Disk, allocated
from mqtool.engine.store.mapping import open_file
from mqtool.engine.store.reader import StoreReader


class CountingDisk(Disk):
    """A disk on which nothing is written.

    ``written`` counts the bytes of all writes, ``growth`` those of them for which there is no room yet: a hole of a
    file, or what would be made. Those below ``apart`` are counted in ``noted`` alone.
    """

    def __init__(self) -> None:
        self.apart: Path | None = None
        self.written = self.growth = self.noted = 0
        self._extents: dict[Path, list[tuple[int, int]]] = {}
        self._places: dict[Path, bool] = {}

    def write(self, path: Path, at: int, data: bytes) -> None:
        """Count bytes."""
        if self._is_apart(path):
            self.noted += len(data)
            return
        self.write_many(path, [(at, data)])

    def write_many(self, path: Path, pieces: Iterable[tuple[int, bytes]]) -> None:
        """Count bytes that are written into the store."""
        extents = self._extents_of(path)
        for at, data in pieces:
            self.written += len(data)
            self.growth += len(data) - _taken(extents, at, at + len(data))

    def copy(self, source: Path, target: Path) -> None:  # noqa: ARG002
        """Count what a file or folder takes."""
        size = allocated(source)
        self.written += size
        self.growth += size

    def _is_apart(self, path: Path) -> bool:
        is_apart = self._places.get(path)
        if is_apart is None:
            is_apart = path.parent == self.apart
            if self.apart is not None:
                self._places[path] = is_apart
        return is_apart

    def _extents_of(self, path: Path) -> list[tuple[int, int]]:
        extents = self._extents.get(path)
        if extents is None:
            extents = self._extents[path] = _extents(path) if path.exists() else []
        return extents


def _nothing(*_: object) -> None:
    pass


for _name in (
    *("create", "clear", "erase", "truncate", "rename", "remove", "make_folder", "remove_folder", "set_times", "sync"),
    *("sync_folder", "remove_tree", "sync_tree"),
):
    setattr(CountingDisk, _name, _nothing)


def _extents(path: Path) -> list[tuple[int, int]]:
    """Return where a file has bytes on the disk, first and one past the last of each stretch."""
    extents = []
    descriptor = open_file(path)
    try:
        at, size = 0, os.fstat(descriptor).st_size
        while at < size:
            try:
                low = os.lseek(descriptor, at, os.SEEK_DATA)
            except OSError:  # nothing but a hole up to the end
                break
            at = os.lseek(descriptor, low, os.SEEK_HOLE)
            extents.append((low, at))
    finally:
        os.close(descriptor)
    return extents


def _taken(extents: list[tuple[int, int]], start: int, stop: int) -> int:
    """Return how many bytes of a stretch of a file have room on the disk."""
    number = max(0, bisect.bisect_right(extents, (start, start)) - 1)
    covered = 0
    while number < len(extents) and extents[number][0] < stop:
        low, high = extents[number]
        covered += max(0, min(high, stop) - max(low, start))
        number += 1
    return covered


def rehearsed(reader: StoreReader, plan: Plan, change: Callable[[Journal], None]) -> Plan:
    """Return a plan with what its changes cost.

    Args:
        reader: of the store.
        plan: to which the cost is added.
        change: makes the changes through a journal; they find the store as it was before all of them.
    """
    disk = CountingDisk()
    journal = Journal.begin(reader.root, plan.command, plan.options, disk, further_folders(reader))
    disk.apart = journal.home
    disk.noted, disk.written, disk.growth = disk.written, 0, 0  # the journal's beginning
    change(journal)
    return dataclasses.replace(
        plan,
        journal_size=plan.journal_size + disk.noted + journal.waiting_size,
        write_size=plan.write_size + disk.written,
        growth=plan.growth + disk.growth,
    )
