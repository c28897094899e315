"""One file of a store, mapped into memory for bulk reads."""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from mqtool.engine.store.mapping import Bytes, data_of, map_file, open_file, reading, release
from mqtool.engine.store.remote import RemotePath
from mqtool.errors import MqtoolError, StoreChangedError
from mqtool.late import np

if TYPE_CHECKING:
    from mqtool.engine.store.spool import Spool

MAX_MAPPED = 32_768
"""Files that are mapped at a time: Linux grants a process 65,530 mappings, and a store may have more files."""
_MAKING = threading.Lock()
_mapped: collections.deque[weakref.ref[MappedFile]] = collections.deque()


class MappedFile:
    """A file with a known start address; ``size`` is its length when it was listed.

    ``read`` copies; ``map`` maps all of it. A mapped file that is truncated kills the process with SIGBUS, so
    the length is checked at each ``map``; stores that others may truncate are read in a child process (``cli``).
    """

    _is_in_memory = False
    """Whether what is fetched of a remote file lies in memory: then whoever reads it releases what is behind."""

    def __init__(self, path: Path, start_offset: int, size: int) -> None:
        self.path = path
        self.start_offset = start_offset
        self.size = size

    def __repr__(self) -> str:
        return f"MappedFile({self.path.name}, {self.size:,} bytes)"

    @property
    def end_offset(self) -> int:
        """One past the address of the last byte."""
        return self.start_offset + self.size

    def read(self, at: int, size: int) -> bytes:
        """Return ``size`` bytes at position ``at`` of the file, fewer at its end."""
        if spool := self.spool:
            spool.have(at, at + size)
            return spool.array[at : at + max(0, size)].tobytes()
        mapped: Bytes | None = vars(self).get("bytes")
        if mapped is not None:  # the file may be deleted
            return mapped[at : at + max(0, size)].tobytes()
        with reading(self.path):
            descriptor = open_file(self.path)
            try:
                data = os.pread(descriptor, max(0, min(size, self.size - at)), at)
            finally:
                os.close(descriptor)
        if len(data) < min(size, self.size - at):
            raise self._shrunk()
        return data

    def map(self) -> Bytes:
        """Return the whole file as bytes in memory."""
        if not self.size:
            return np.empty(0, np.uint8)
        if spool := self.spool:
            spool.have(0, self.size)
            return spool.array
        with reading(self.path):
            descriptor = open_file(self.path)
            try:
                if os.fstat(descriptor).st_size < self.size:
                    raise self._shrunk()
                return map_file(descriptor, self.size)
            finally:
                os.close(descriptor)

    @functools.cached_property
    def spool(self) -> Spool | None:
        """What was fetched of a remote file; None if it is mounted here."""
        if not self.size or not isinstance(self.path, RemotePath):
            return None
        from mqtool.engine.store.spool import Spool

        owner = weakref.ref(self)

        def drop() -> None:
            file = owner()
            for name in ("spool", "bytes") if file else ():
                vars(file).pop(name, None)

        with _MAKING:  # two threads would fetch the same bytes twice: a cached property has no lock since Python 3.12
            if (made := vars(self).get("spool")) is None:
                dropped = None if self._is_in_memory else drop
                made = vars(self)["spool"] = Spool(self.path, self.size, dropped, self._is_in_memory)
            return cast("Spool", made)

    def reach(self, start: int, stop: int) -> tuple[Bytes, int]:
        """Return ``bytes`` with at least a range loaded (for remote files), and up to where it is."""
        if spool := self.spool:  # another thread may drop it in the meantime
            until = spool.have(start, stop)
            return spool.array, until
        return self.bytes, self.size

    def reach_all(self, starts: Sequence[int], sizes: Sequence[int]) -> Bytes:
        """Return ``bytes`` with at least these ranges loaded."""
        if spool := self.spool:
            spool.have_all((start, start + size) for start, size in zip(starts, sizes, strict=True))
            return spool.array
        return self.bytes

    def stretch(self, start: int, stop: int) -> Bytes:
        """Return a part of ``bytes``: of remote files only that is fetched."""
        return self.reach(start, stop)[0][start:stop]

    def data_from(self, start: int, stop: int) -> int | None:
        """Return where the first data of a range may start, None if all of it is a hole of the file."""
        if isinstance(self.path, RemotePath):
            return start
        with contextlib.suppress(OSError), self.path.open("rb", buffering=0) as file:  # it may be deleted
            return data_of(file.fileno(), start, stop)
        return start

    @property
    def is_mapped(self) -> bool:
        """Whether it is mapped: then it stays readable after it is deleted."""
        return "bytes" in vars(self)

    @functools.cached_property
    def bytes(self) -> Bytes:
        """The file mapped once and kept; the first of very many files is mapped again when it is needed again."""
        data = self.map()
        _mapped.append(weakref.ref(self))
        if len(_mapped) > MAX_MAPPED and (first := _mapped.popleft()()):
            first.unmap()
        return data

    def release(self, start: int, stop: int) -> None:
        """Release the memory of a range of ``bytes``; it is loaded again when it is accessed."""
        data: Bytes | None
        if isinstance(self.path, RemotePath):
            spool: Spool | None = vars(self).get("spool")
            data = spool.array if spool else None  # what was fetched stays in its file
        else:
            data = self.bytes
        if data is not None:
            release(data, start, stop)

    def unmap(self) -> None:
        """Release the whole mapping: a process may have some ten thousand, and each takes page tables.

        The file is mapped again when it is accessed, if it still exists.
        """
        vars(self).pop("bytes", None)

    def forget(self) -> None:
        """Drop what was fetched of a remote file, which makes room for the next: it is fetched again when needed.

        A compressed file, which would have to be read from its beginning again, is kept.
        """
        spool: Spool | None = vars(self).get("spool")
        if spool is not None and not spool.reads_onward:
            for name in ("spool", "bytes"):
                vars(self).pop(name, None)

    def to_walk(self) -> MappedFile:
        """Return this file for a thread that reads it once, alone, and from its beginning to its end."""
        return WalkedFile(self.path, self.start_offset, self.size) if type(self.path) is RemotePath else self

    def to_walk_in_parts(self) -> WalkedInParts | None:
        """Return this file for threads that read it once, each a part; None if it is mounted here, or compressed."""
        return WalkedInParts(self.path, self.start_offset, self.size) if type(self.path) is RemotePath else None

    def let_go(self, start: int, stop: int) -> None:
        """Do the same if the bytes can be fetched again: for files that may be needed again."""
        self.release(start, stop)

    def _shrunk(self) -> MqtoolError:
        return StoreChangedError(
            f"{self.path} was truncated while it was being read: another process is changing it; try again"
        )


class WalkedFile(MappedFile):
    """A remote file that is read once, by one thread."""

    _is_in_memory = True

    def let_go(self, start: int, stop: int) -> None:  # noqa: ARG002
        """Release all that is before the end of a range: what was found there must not be looked at any more."""
        if self.spool:
            self.spool.forget_before(stop)


class WalkedInParts(WalkedFile):
    """A remote file of which several threads read a part each; what is behind is released by ``leave`` alone.

    A thread does not know what others need: a record that begins in its part may end in the next.
    """

    def let_go(self, start: int, stop: int) -> None:
        """Keep everything."""

    def release(self, start: int, stop: int) -> None:
        """Keep everything."""

    def leave(self, position: int) -> None:
        """Release what is before a position, from which on all threads read; at the end of the file everything."""
        if position >= self.size:
            self.forget()
        elif self.spool:
            self.spool.forget_before(position)
