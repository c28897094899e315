"""Joined reports of consecutive segments, and of such groups: a tree over a log of any size.

A queue has a span in each stretch with a message of it. If nothing is between, one span replaces all of
them, so a group has about one span per queue, and the check of the whole log takes few groups. The result is
that of ``LogVerifier`` for the stretches themselves, which does not depend on where a log is split.

Spans are not joined over what may separate them: a gap, or an unreadable or displaced record. Messages after
a gap may not belong to the log, which only the check of the whole decides, by the spans of each segment: a group that
was joined as if it followed sound messages, but follows a gap, is checked again, and so is one of which retention
has deleted a segment in the meantime.

Cost: linear in the spans that are joined.
"""

import contextlib
import functools
import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from mqtool.engine.repair.parts import PART, Part, PartReport, Span, joined, parts_below
from mqtool.engine.repair.verify.distributed import FIELDS, DistributedReport, DistributedRun, report_of
from mqtool.engine.repair.verify.index import Claim
from mqtool.engine.repair.verify.log import Run, VerifyRules, check_part
from mqtool.engine.store.commit_log import CommitLog, Gap
from mqtool.engine.store.dispatch import QueueKey, no_entries
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.errors import StoreChangedError
from mqtool.formats import scan

Piece = tuple[int, dict[str, Any] | tuple[int, int, scan.Stop]]
"""Address of its segment, and of a run or gap its fields, without the segment."""


class Group(NamedTuple):
    """The serialized contents of consecutive segments."""

    first: int  # addresses of the first segment and the last
    last: int
    stop: int  # one past the last address that was examined
    pieces: list[Piece]


class _Doubt:
    """Whether messages may be left over from before a truncation: whether a relevant gap is before them.

    Those after a gap that were stored later than those before it are not. Everything else only ``LogVerifier`` knows.
    """

    def __init__(self) -> None:
        self.is_there = False
        self._is_lasting = False
        self._last_timestamp: int | None = None

    def take(self, piece: Run | Gap) -> None:
        if isinstance(piece, Gap):
            self.is_there = True
        elif piece.in_place and not self._is_lasting:
            if self.is_there and (self._last_timestamp is None or piece.first_timestamp < self._last_timestamp):
                self._is_lasting = True
            else:
                self.is_there = False
                self._last_timestamp = piece.last_timestamp


class _Spans:
    """Joins the spans of runs if they continue where the previous one of their queue ends."""

    def __init__(self) -> None:
        self._open: dict[QueueKey, tuple[list[Span], int]] = {}
        self._last: Run | None = None

    def take(self, run: Run, in_doubt: bool) -> None:
        """Take the next run, and join its spans to previous ones where possible."""
        if run.lost or not run.in_place:
            self.part()
            return
        if not self._follows(run, in_doubt):
            self._open.clear()
        self._last = run
        spans, run.spans = run.spans, []
        for span in spans:
            place = self._open.get(span.queue)
            before = place[0][place[1]] if place else None
            if place and before and before.stop == span.start:
                place[0][place[1]] = before._replace(stop=span.stop, last_physical_offset=span.last_physical_offset)
            else:
                self._open[span.queue] = run.spans, len(run.spans)
                run.spans.append(span)

    def _follows(self, run: Run, in_doubt: bool) -> bool:
        last = self._last
        if last is None:
            return False
        if last.segment is run.segment:
            return last.end == run.start
        return not in_doubt and last.segment.end_offset == run.segment.start_offset

    def part(self) -> None:
        """Start again after something that is certainly not a message of the log."""
        self._last = None
        self._open.clear()


def groups_of(rules: VerifyRules, claim: Callable[[Run], Claim], reports: Iterable[bytes]) -> Iterator[Group]:
    """Join reports of all stretches of some segments, and groups of them; yields one group, several if damaged.

    Args:
        rules: of the store.
        claim: searches for the index entries of a run that had to be checked again.
        reports: what ``verify_distributed`` and this made, pickled, in the order of the log.

    Raises:
        StoreChangedError: a segment is deleted in the meantime, but not by retention.
    """
    log = rules.reader.commit_log
    growing = _Growing(claim)
    for group, stretches in _in_turn(reports):
        if group is None:
            for report in _joined(rules, stretches):
                address = report.part.segment.start_offset
                growing.add(address, address, address + report.part.stop, report.runs)
        elif growing.in_doubt or (segments := _segments_of(log, group)) is None:
            # Its parts may be needed: the check of the whole log handles that.
            yield from growing.made()
            yield group
            growing = _Growing(claim)
        else:
            growing.add(group.first, group.last, group.stop, _unpacked(group, segments))
    yield from growing.made()


class _Growing:
    """A group under construction."""

    def __init__(self, claim: Callable[[Run], Claim]) -> None:
        self._claim = claim
        self._doubt, self._spans = _Doubt(), _Spans()
        self._pieces: list[Piece] = []
        self._ends: tuple[int, int, int] | None = None

    @property
    def in_doubt(self) -> bool:
        """Whether the next messages may be left over from before a truncation."""
        return self._doubt.is_there

    def add(self, first: int, last: int, stop: int, pieces: Iterable[Run | Gap]) -> None:
        """Take the contents of the next segments, or of a part of one."""
        ends = self._ends or (first, last, stop)
        self._ends = min(first, ends[0]), max(last, ends[1]), max(stop, ends[2])
        for piece in pieces:
            self._doubt.take(piece)
            if isinstance(piece, Gap):
                self._spans.part()
            else:
                self._spans.take(piece, self.in_doubt)
            self._pieces.append(_packed(piece, self._claim))

    def made(self) -> Iterator[Group]:
        """Yield it, unless it is empty."""
        if self._ends:
            yield Group(*self._ends, self._pieces)


def reports_of(rules: VerifyRules, reports: Iterable[bytes], in_doubt: Callable[[], bool]) -> Iterator[PartReport[Run]]:
    """Yield the reports of ``verify_distributed`` and ``groups_of``, for the check of the whole log.

    Args:
        rules: of the store.
        reports: pickled, in the order of the log.
        in_doubt: returns whether the next messages may not belong to the log, by what was yielded so far.
    """
    for group, stretches in _in_turn(reports):
        if group is None:
            yield from _joined(rules, stretches)
            continue
        segments = _segments_of(rules.reader.commit_log, group)
        if in_doubt() or segments is None:
            yield from _verified_again(rules, group)
            continue
        for piece in _unpacked(group, segments):
            yield PartReport(Part(piece.segment, piece.start, piece.end), piece.start, piece.end, [piece])


def _in_turn(reports: Iterable[bytes]) -> Iterator[tuple[Group | None, Iterable[DistributedReport]]]:
    """Yield each group, and between them the reports of consecutive stretches."""
    known = map(pickle.loads, reports)
    for is_group, items in itertools.groupby(known, key=lambda item: isinstance(item, Group)):
        if is_group:
            yield from ((group, ()) for group in items)
        else:
            yield None, items


def _joined(rules: VerifyRules, stretches: Iterable[DistributedReport]) -> Iterator[PartReport[Run]]:
    return joined(_there(rules.reader.commit_log, stretches), functools.partial(check_part, rules))


def _there(log: CommitLog, stretches: Iterable[DistributedReport]) -> Iterator[PartReport[Run]]:
    for far in stretches:
        with contextlib.suppress(StoreChangedError):  # retention deleted its segment in the meantime
            yield report_of(log, far)


def _segments_of(log: CommitLog, group: Group) -> dict[int, MappedFile] | None:
    """Return the segments of a group by their addresses, None if one is gone or shorter."""
    ends = {address: piece["end"] if isinstance(piece, dict) else piece[1] for address, piece in group.pieces}
    segments = {
        segment.start_offset: segment
        for segment in log.segments_between(group.first, group.last + 1)
        if segment.size >= ends.get(segment.start_offset, segment.size + 1)
    }
    return segments if len(segments) == len(ends) else None


def _verified_again(rules: VerifyRules, group: Group) -> Iterator[PartReport[Run]]:
    between = rules.reader.commit_log.segments_between(group.first, group.last + 1)
    segments = [segment for segment in between if group.first <= segment.start_offset]
    parts = [
        Part(segment, start, min(start + PART, segment.size))
        for segment in segments
        for start in range(0, segment.size, PART)
    ]
    check = functools.partial(check_part, rules)
    return joined(map(check, parts_below(parts, group.stop)), check)


def _packed(piece: Run | Gap, claim: Callable[[Run], Claim]) -> Piece:
    if isinstance(piece, Gap):
        return piece.segment.start_offset, (piece.start, piece.end, piece.stop)
    if not isinstance(piece, DistributedRun):
        piece = DistributedRun(**{**vars(piece), "entries": no_entries()}, claim=claim(piece))
    return piece.segment.start_offset, {name: getattr(piece, name) for name in FIELDS}


def _unpacked(group: Group, segments: dict[int, MappedFile]) -> Iterator[Run | Gap]:
    for address, piece in group.pieces:
        if isinstance(piece, dict):
            yield DistributedRun(segment=segments[address], entries=no_entries(), **piece)
        else:
            yield Gap(segments[address], *piece)
