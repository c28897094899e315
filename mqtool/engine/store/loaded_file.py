"""One file of a store of which ranges are read into memory, for processes that a truncated file must not kill."""

from __future__ import annotations

import builtins
import functools
import os
from pathlib import Path

from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.mapping import HUGE_PAGE, Bytes, data_of, memory_for, reading
from mqtool.late import np

_STEP = 1 << 20


class LoadedFile(MappedFile):
    """A file that is read, not mapped: if it is truncated meanwhile, that is an error, not the end of the process.

    ``bytes`` is as long as the file, but takes memory only for about the range that ``load`` has read. The file stays
    open, so ranges can be read even after its name was removed. To be used in a ``with`` block.

    Raises:
        NotFoundError: it is not there.
    """

    _is_in_memory = True

    def __init__(self, path: Path, start_offset: int, size: int) -> None:
        super().__init__(path, start_offset, size)
        self._start = self._stop = 0  # the loaded range
        self._descriptor = -1
        if not self.spool:
            with reading(path):
                self._descriptor = os.open(path, os.O_RDONLY)

    def __enter__(self) -> LoadedFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        vars(self).pop("spool", None)

    @functools.cached_property
    def bytes(self) -> Bytes:
        """As many bytes as the file has; see ``load``."""
        if not self.size:
            return np.empty(0, np.uint8)
        if self.spool:
            return self.spool.array
        return memory_for(self.size)

    def load(self, start: int, stop: int) -> None:
        """Load a range of the file into ``bytes``; what is before it may be released.

        Raises:
            StoreChangedError: the file has become shorter.
        """
        stop = min(stop, self.size)
        if self.spool:
            self.spool.forget_before(start)
            self.spool.have(start, stop)
            joins = self._start <= start <= self._stop
            self._start, self._stop = (self._start, max(stop, self._stop)) if joins else (start, stop)
            return
        if start < self._start or start > self._stop:
            super().release(self._start, self._stop)
            self._start = self._stop = start
        self.release(self._start, start)
        view = memoryview(self.bytes)
        while self._stop < stop:
            with reading(self.path):
                count = os.preadv(self._descriptor, [view[self._stop : stop]], self._stop)
            if not count:
                raise self._shrunk()
            self._stop += count

    @property
    def loaded_stop(self) -> int:
        """The end of the loaded range."""
        return self._stop

    def release(self, start: int, stop: int) -> None:
        """Release the memory of a range, as far as it fills huge pages."""
        stop = stop // HUGE_PAGE * HUGE_PAGE if stop < self.size else stop
        super().release(start // HUGE_PAGE * HUGE_PAGE, stop)
        if start <= self._start:
            self._start = max(self._start, min(stop, self._stop))

    def let_go(self, start: int, stop: int) -> None:
        """Keep everything: released bytes are not read again."""

    def reach(self, start: int, stop: int) -> tuple[Bytes, int]:  # noqa: ARG002
        """Return ``bytes``, of which only the loaded range can be examined: the caller loads it."""
        return self.bytes, self.size

    def read(self, at: int, size: int) -> builtins.bytes:
        """Return ``size`` bytes at position ``at`` of the file, fewer at its end."""
        if self.spool:
            return super().read(at, size)
        wanted = max(0, min(size, self.size - at))
        with reading(self.path):
            data = os.pread(self._descriptor, wanted, at)
        if len(data) < wanted:
            raise self._shrunk()
        return data

    def data_from(self, start: int, stop: int) -> int | None:
        """Return where the first data of a range may start, None if all of it is a hole of the file."""
        return start if self.spool else data_of(self._descriptor, start, stop)

    def first_content(self, start: int, stop: int) -> int | None:
        """Return the position of the first byte of a range that is not zero; holes of the file are not read."""
        at = start
        while at < min(stop, self.size):
            data_at = self.data_from(at, stop)
            if data_at is None:
                return None
            at = data_at
            data = np.frombuffer(self.read(at, min(_STEP, stop - at)), np.uint8)
            if data.any():
                return at + int(data.nonzero()[0][0])
            at += _STEP
        return None
