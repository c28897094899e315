"""Files named by the address of their first byte, as one address space."""

import bisect
import collections
import copy
import itertools
import operator
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Self

from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.mapping import reading, refuse_special
from mqtool.engine.store.remote import RemotePath, scandir
from mqtool.errors import MqtoolError, NotFoundError, StoreChangedError

NAME_WIDTH = 20
_PAGE = 4096
_LETTING_GO = threading.Lock()
"""Stretches are read in parallel, and several may notice that a file is gone."""
_start_of = operator.attrgetter("start_offset")


class Stray(NamedTuple):
    """An entry of a folder of segments that is not a segment."""

    path: Path
    size: int
    is_folder: bool
    leads_nowhere: bool = False  # a link whose target is not there


def segment_name(start_offset: int) -> str:
    """Return the file name of the segment that starts at ``start_offset``."""
    return f"{start_offset:0{NAME_WIDTH}}"


def is_segment_name(name: str) -> bool:
    """Return whether a file of this name is a segment."""
    return len(name) == NAME_WIDTH and name.isascii() and name.isdigit() and int(name) < 1 << 63


class FileQueue:
    """The segments of one or more folders, in order of their addresses.

    ``file_size`` is configured, or inferred: the usual distance of names, else the usual length of files;
    ``total_size`` is the bytes of all segments.
    A segment may be shorter or longer than it should be; other entries of the folders are in ``strays``. With ``only``
    only that one file is examined. What retention deletes meanwhile is left out, and noted in ``remarks``;
    ``gone_until`` is one past its last address.
    """

    may_go_whole = False
    """Whether all of it may be deleted while it is read, as with a topic."""

    def __init__(self, folders: Iterable[Path], file_size: int | None = None, only: Path | None = None) -> None:
        self.folders = list(folders)
        self.remarks: list[str] = []
        segments, self.strays = self._listed(only)
        while len(self.folders) > 1:  # retention may have deleted files in between
            names = {segment.path for segment in segments}
            segments, self.strays = self._listed(only)
            if names == {segment.path for segment in segments}:
                break
        self._take(segments)
        self.inferred = file_size is None
        self.file_size = file_size or self._inferred_size()
        self.gone_until = 0
        self._is_held = False

    def _listed(self, only: Path | None) -> tuple[list[MappedFile], list[Stray]]:
        segments: list[MappedFile] = []
        strays: list[Stray] = []
        for folder in self.folders:
            with reading(folder), scandir(folder) as entries:
                for entry in entries:
                    if only and entry.name != only.name:
                        continue
                    is_folder = entry.is_dir()
                    try:
                        status = entry.stat()
                    except FileNotFoundError:
                        if entry.is_symlink():  # anything else was deleted just now
                            strays.append(Stray(folder / entry.name, 0, is_folder, leads_nowhere=True))
                        continue
                    refuse_special(folder / entry.name, status)
                    size = 0 if is_folder else status.st_size
                    if not is_folder and is_segment_name(entry.name):
                        segments.append(MappedFile(folder / entry.name, int(entry.name), size))
                    else:
                        strays.append(Stray(folder / entry.name, size, is_folder))
        return segments, strays

    def _take(self, segments: Iterable[MappedFile]) -> None:
        self.segments = sorted(segments, key=_start_of)
        self._longest = max((segment.size for segment in self.segments), default=0)
        self.total_size = sum(segment.size for segment in self.segments)

    def with_segments(self, segments: Iterable[MappedFile]) -> Self:
        """Return these folders as if they held just these segments, and no strays."""
        other = copy.copy(self)
        other._take(segments)
        other.strays = []
        return other

    def let_go(self, segment: MappedFile) -> None:
        """Leave out a deleted segment, as retention deletes the oldest ones while they are read; adds a remark.

        Raises:
            StoreChangedError: older ones exist, or none would be left, so it was not retention.
        """
        with _LETTING_GO:
            self._let_go(segment)

    def _let_go(self, segment: MappedFile) -> None:
        paths = [other.path for other in self.segments]
        if segment.path not in paths:
            return  # already noted
        number = paths.index(segment.path)
        if self.may_go_whole and not any(segment.path.exists() for segment in self.segments):
            number = len(self.segments) - 1
            gone = [f"{segment.path.parent} was deleted"]
        elif number == len(self.segments) - 1 or any(segment.path.exists() for segment in self.segments[:number]):
            raise StoreChangedError(
                f"{segment.path} is gone, and retention did not delete it: find out what did, then try again"
            )
        else:
            older = [older_segment for older_segment in self.segments[:number] if not older_segment.is_mapped]
            gone = [f"{segment.path} was deleted by retention" for segment in (*older, segment)]
        self.gone_until = self.segments[number].end_offset
        self._take(self.segments[number + 1 :])
        self.remarks += [f"{remark} while the store was being read: its contents are left out" for remark in gone]

    def hold(self) -> Self:
        """Map all files: files deleted from now on stay readable, files deleted before are released."""
        if not self._is_held:
            for segment in self.segments:
                if isinstance(segment.path, RemotePath):
                    break  # they are fetched piece by piece
                try:
                    _ = segment.bytes
                except NotFoundError:
                    self.let_go(segment)
                except MqtoolError:
                    continue  # raised when this file is needed
            self._is_held = True
        return self

    def _inferred_size(self) -> int:
        starts = sorted({segment.start_offset for segment in self.segments})
        gaps = collections.Counter(after - before for before, after in itertools.pairwise(starts))
        lengths = collections.Counter(segment.size for segment in self.segments if segment.size)
        length, count = max(lengths.items(), key=lambda item: item[1], default=(0, 0))
        is_of_all = count == lengths.total()  # then a name that does not fit is wrong
        if 1 < count > lengths.total() / 2 and (is_of_all or not any(start % length for start in starts)):
            return length  # the names may be further apart, with files missing in between
        longest = max(lengths, default=0)
        are_missing = bool(gaps) and 0 < longest < min(gaps) and (len(gaps) > 1 or gaps.total() == 1)
        if are_missing and not any(start % longest for start in starts) and not longest % _PAGE:
            return longest  # names at equal distances are those of files that were all cut off
        # A wrong name produces a distance that is not a length.
        likely = collections.Counter({size: count for size, count in gaps.items() if not size % _PAGE})
        for counted in (likely, lengths, gaps) if any(not size % _PAGE for size in lengths) else (gaps, lengths):
            if counted:
                return max(counted, key=lambda size: (counted[size], lengths[size]))
        return 0

    @property
    def min_offset(self) -> int:
        """Address of the first byte, 0 if there is no segment."""
        return next(map(_start_of, self.segments), 0)

    @property
    def end_offset(self) -> int:
        """One past the address of the last byte."""
        return self.segments[-1].end_offset if self.segments else 0

    def segment_at(self, offset: int) -> MappedFile | None:
        """Return the segment that holds the byte at ``offset``."""
        segments = self.segments  # others may release some in the meantime
        number = bisect.bisect_right(segments, offset, key=_start_of) - 1
        if number < 0 or offset >= segments[number].end_offset:
            return None
        return segments[number]

    def segments_between(self, start: int, stop: int) -> list[MappedFile]:
        """Return the segments that may hold bytes of a range, in order. Cost: linear in these."""
        return [segment for _, segment in self.numbered_between(start, stop)]

    def numbered_between(self, start: int, stop: int) -> list[tuple[int, MappedFile]]:
        """Return the same, each with its number among all segments."""
        segments = self.segments  # others may release some in the meantime
        first = bisect.bisect_right(segments, start - self._longest, key=_start_of)
        return [*enumerate(segments[first : bisect.bisect_left(segments, stop, key=_start_of)], first)]

    def read(self, offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes at an address: fewer at the end of a segment, none without a segment."""
        segment = self.segment_at(offset)
        try:
            return segment.read(offset - segment.start_offset, size) if segment else b""
        except NotFoundError:
            assert segment
            self.let_go(segment)
            return b""
