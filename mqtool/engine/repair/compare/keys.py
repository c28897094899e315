"""The messages of two stores as multisets, by identity (``formats.identity``), wherever they lie.

Each message is 32 bytes: identity, address, topic. Those of many messages wait in temporary files, cut into shares by
their identity, and one share of both stores is sorted at a time. Cost: linear in the messages except for the sorting;
memory holds ``_MAX_HELD`` bytes or a share, whichever is more, temporary files 32 bytes a message.
"""

import collections
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mqtool.engine.repair.compare.aligned import SIDES, Records, walk
from mqtool.engine.repair.parts import Progress
from mqtool.engine.store.holes import holes_of
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import WriteError
from mqtool.formats.identity import record_identities

_ENTRY = np.dtype([("first", "<u8"), ("second", "<u8"), ("position", "<i8"), ("topic", "<i4"), ("side", "<i4")])
_SHARES = 64
_MAX_HELD = 256 << 20
Entries = npt.NDArray[np.void]


@dataclasses.dataclass
class Difference:
    """Messages with one identity of which one store has more."""

    side: str  # which has more
    left_count: int
    right_count: int
    physical_offset: int  # of the last of them there
    topic: str


@dataclasses.dataclass
class Messages:
    """The result of a comparison of messages; counts are by topic."""

    left: "collections.Counter[str]" = dataclasses.field(default_factory=collections.Counter)
    right: "collections.Counter[str]" = dataclasses.field(default_factory=collections.Counter)
    only_left: "collections.Counter[str]" = dataclasses.field(default_factory=collections.Counter)
    only_right: "collections.Counter[str]" = dataclasses.field(default_factory=collections.Counter)
    unreadable: list[int] = dataclasses.field(default_factory=lambda: [0, 0])
    """Ranges of addresses in each log, before its last message, that hold no sound record."""

    @property
    def is_equal(self) -> bool:
        """Whether both hold the same messages, equally often."""
        return not self.only_left and not self.only_right


def compare_keys(
    left: StoreReader,
    right: StoreReader,
    messages: Messages,
    jobs: int = 1,
    progress: Progress = lambda _: None,
) -> Iterator[Difference]:
    """Yield the messages of which one store has more than the other.

    Args:
        left: one store; it may be damaged, or in use.
        right: the other.
        messages: collects the totals.
        jobs: threads.
        progress: called with the number of bytes of both logs done so far.
    """
    with tempfile.TemporaryDirectory(prefix="mqtool-compare-") as folder:
        shares = _Shares(Path(folder))
        names: dict[str, int] = {}
        before = 0
        for side, (reader, counts) in enumerate(((left, messages.left), (right, messages.right))):
            done = 0

            def told(now: int, before: int = before) -> None:
                nonlocal done
                done = now
                progress(before + now)

            messages.unreadable[side] = _collect(reader, side, shares, names, counts, jobs, told)
            before += done
        topics = list(names)
        for entries in shares.taken():
            yield from _differences(entries, topics, messages)


def _collect(
    reader: StoreReader,
    side: int,
    shares: "_Shares",
    names: dict[str, int],
    counts: "collections.Counter[str]",
    jobs: int,
    progress: Progress,
) -> int:
    """Put the messages of a store into shares; return how many ranges within its log cannot be read."""
    unreadable, in_range, pending = 0, False, 0
    for piece in walk(reader, jobs, progress):
        if not isinstance(piece, Records):
            pending += not in_range
            in_range = True
            continue
        edges = np.flatnonzero(np.diff(np.r_[in_range, ~piece.sound].astype(np.int8)) == 1)
        if piece.sound.any():
            last = int(np.flatnonzero(piece.sound)[-1])
            unreadable += pending + int((edges <= last).sum())
            pending = int((edges > last).sum())
        else:
            pending += len(edges)
        in_range = not piece.sound[-1]
        table = piece.table if piece.sound.all() else piece.table.where(np.flatnonzero(piece.sound))
        if not len(table):
            continue
        ids, raw = table.topics()
        texts = [name.decode("utf-8", "replace") for name in raw]
        numbers = np.array([names.setdefault(text, len(names)) for text in texts], np.int32)
        for text, count in zip(texts, np.bincount(ids, minlength=len(texts)).tolist(), strict=True):
            counts[text] += count
        entries = np.empty(len(table), _ENTRY)
        identities = record_identities(table)
        entries["first"], entries["second"] = identities[:, 0], identities[:, 1]
        entries["position"] = table.column("position")
        entries["topic"], entries["side"] = numbers[ids], side
        shares.add(entries)
        piece.segment.release(int(piece.table.starts[0]), piece.end)
    return unreadable + len(holes_of(reader.commit_log))


class _Shares:
    """Entries, those with one identity together; in files when there are many."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: list[Entries] = []
        self._size = 0
        self._is_spilled = False

    def add(self, entries: Entries) -> None:
        """Take entries.

        Raises:
            WriteError: there is no room for them among the temporary files.
        """
        self._held.append(entries)
        self._size += entries.nbytes
        if self._size > _MAX_HELD:
            self._spill()

    def _spill(self) -> None:
        entries = np.concatenate([np.empty(0, _ENTRY), *self._held])
        share = (entries["first"] >> np.uint64(58)).astype(np.int64)
        order = np.argsort(share, kind="stable")
        entries, edges = entries[order], np.searchsorted(share[order], np.arange(_SHARES + 1))
        try:
            for number in range(_SHARES):
                with (self._folder / str(number)).open("ab") as file:
                    file.write(entries[edges[number] : edges[number + 1]].tobytes())
        except OSError as error:
            why = f"{self._folder}: {error.strerror or error}"
            raise WriteError(
                f"{why}; temporary files need 32 bytes per message, in the folder that TMPDIR sets"
            ) from error
        self._held, self._size, self._is_spilled = [], 0, True

    def taken(self) -> Iterator[Entries]:
        """Yield everything, a share at a time."""
        if not self._is_spilled:
            yield np.concatenate([np.empty(0, _ENTRY), *self._held])
            return
        self._spill()
        for number in range(_SHARES):
            yield np.fromfile(self._folder / str(number), _ENTRY)


def _differences(entries: Entries, topics: list[str], messages: Messages) -> Iterator[Difference]:
    order = np.lexsort((entries["position"], entries["side"], entries["second"], entries["first"]))
    entries = entries[order]
    if not len(entries):
        return
    same = (entries["first"][1:] == entries["first"][:-1]) & (entries["second"][1:] == entries["second"][:-1])
    starts = np.flatnonzero(np.r_[True, ~same])
    ends = np.r_[starts[1:], len(entries)]
    rights = np.add.reduceat(entries["side"], starts).astype(np.int64)
    lefts = ends - starts - rights
    numbers = np.flatnonzero(lefts != rights)
    is_right = rights[numbers] > lefts[numbers]
    rows = np.where(is_right, ends[numbers] - 1, starts[numbers] + lefts[numbers] - 1)
    for at in np.lexsort((entries["position"][rows], is_right)).tolist():
        left, right = int(lefts[numbers[at]]), int(rights[numbers[at]])
        topic = topics[int(entries["topic"][rows[at]])]
        (messages.only_right if right > left else messages.only_left)[topic] += abs(left - right)
        yield Difference(SIDES[right > left], left, right, int(entries["position"][rows[at]]), topic)
