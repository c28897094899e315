"""What was read of a remote file: kept in a file of the temporary folder that has no name, and mapped.

Only blocks that were asked for are fetched, several at once, and a walk's next ones before it asks. At most
``MAX_SPOOLED`` bytes are kept; of what was let go is fetched again when somebody looks. Who reads a file once, and
alone, has it in memory instead, and forgets what is behind: that takes half of the system's time.
"""

import collections
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from mqtool.engine.store.disk import write_pieces, writing
from mqtool.engine.store.mapping import HUGE_PAGE, Bytes, map_file, memory_for, reading, release
from mqtool.engine.store.remote import RemotePath

BLOCK = 1 << 20
_REQUEST = 8
"""Blocks that one request fetches at most."""
_AHEAD = 96
"""Blocks that are fetched before a walk asks for them, at most: little is fetched for little."""
_AHEAD_IN_MEMORY = 48
_LONG = 16
"""Who reads more blocks than this in a row is on a walk."""
_BLOCKS_A_PAGE = HUGE_PAGE // BLOCK
_WORKERS = 12
_LOOKED_AT = 64
MAX_SPOOLED = 2 << 30
"""Bytes that are kept of all files of a process, except for the one that is read."""
_MAX_FILES = 200

_ABSENT, _FETCHED, _CHECKED = range(3)


class Spool:
    """The bytes of one remote file, as far as they were asked for.

    ``array`` is as long as the file; a range of it can be examined when ``have`` has returned.

    Raises:
        NotFoundError: the file is not there.
        StoreChangedError: it is shorter than it was.
    """

    def __init__(
        self, path: RemotePath, size: int, drop: Callable[[], None] | None = None, in_memory: bool = False
    ) -> None:
        """Make one.

        Args:
            path: of the file.
            size: that it had when it was listed.
            drop: lets go of it; with that, it counts among those of which the oldest go.
            in_memory: whoever reads it forgets what is behind.
        """
        with reading(path):
            self._file = path.opened(size)
        self.size = size
        self._states = bytearray(-(-size // BLOCK))
        self.array: Bytes
        self._memory: Bytes | None = None
        if self._file.array is not None:
            self.array, self._states = self._file.array, bytearray([_CHECKED]) * len(self._states)
        elif in_memory and not self._file.onward:
            self._memory = memory_for(size)
            self.array = self._memory.view()
            self.array.flags.writeable = False
        else:
            self._descriptor = nameless_file()
            weakref.finalize(self, os.close, self._descriptor).atexit = False
            os.ftruncate(self._descriptor, size)
            self.array = map_file(self._descriptor, size)
        if self._file.onward:
            this = weakref.ref(self)

            def finish() -> None:
                if spool := this():
                    spool._read_onward(len(spool._states))

            self._file.finish = finish
        self._waiting: dict[int, Future[None]] = {}
        self._lock = threading.Lock()
        self._next = -1  # the block after those of a walk
        self._in_a_row = 0  # blocks of it
        self.end_ahead = size
        """Up to where bytes are fetched before they are asked for."""
        self._drop = drop

    def expect(self, stamp: str) -> None:
        """Raise ``StoreChangedError`` where the file has another stamp than it had elsewhere."""
        self._file.expect(stamp)

    def have(self, start: int, stop: int) -> int:
        """Make sure that a range of ``array`` can be examined; return up to where it can.

        Raises:
            NotFoundError: the file is gone.
            StoreChangedError: it is another one by now.
            ReadError: the storage does not give it.
        """
        first, last = max(0, start) // BLOCK, -(-min(stop, self.size) // BLOCK)
        self._have([(first, last)], self._ahead_of(first, last))
        return min(last * BLOCK, self.size)

    def _ahead_of(self, first: int, last: int) -> int:
        """Return how many blocks to fetch behind some that are asked for: as many as a walk has read in a row."""
        if last <= self._next and last - first <= _LONG:  # who walks looks back
            return 0
        goes_on = first <= self._next < last
        self._in_a_row = self._in_a_row + last - self._next if goes_on else last - first
        self._next = last
        most = _AHEAD if self._memory is None else _AHEAD_IN_MEMORY
        return min(self._in_a_row, most) if self._in_a_row > _LONG else 0

    def have_all(self, stretches: Iterable[tuple[int, int]]) -> None:
        """Do what ``have`` does, for many ranges at once."""
        blocks = sorted(
            {n for start, stop in stretches for n in range(start // BLOCK, -(-min(stop, self.size) // BLOCK))}
        )
        runs: list[tuple[int, int]] = []
        for number in blocks:
            runs[-1:] = (
                [(runs[-1][0], number + 1)] if runs and runs[-1][1] == number else [*runs[-1:], (number, number + 1)]
            )
        self._have(runs)

    def _have(self, runs: list[tuple[int, int]], ahead: int = 0) -> None:
        if all(self._states.count(_CHECKED, first, last) == last - first for first, last in runs) and not ahead:
            return
        if self._file.onward:
            self._read_onward(max(last for _, last in runs))
            self._note_use()
            return
        with self._lock:
            waiting = [future for first, last in runs for future in self._begin(first, last)]
            if ahead:
                last = runs[-1][1]
                self._begin(last, min(last + ahead, -(-self.end_ahead // BLOCK)))
        for future in waiting:
            future.result()
        if any(self._states.find(_FETCHED, first, last) >= 0 for first, last in runs):
            fetched = [number for number, state in enumerate(self._states) if state == _FETCHED]
            self._file.check()  # it holds for all that was fetched before
            with self._lock:
                for number in fetched:
                    if self._states[number] == _FETCHED:  # it may have been released
                        self._states[number] = _CHECKED
        self._note_use()

    def _note_use(self) -> None:
        if self._drop:
            _used(self)

    def _read_onward(self, last: int) -> None:
        """Read all blocks up to one that is wanted."""
        with self._file.onward:
            while 0 <= (first := self._states.find(_ABSENT)) < last:
                self._fetch(first, min(first + _REQUEST, last))

    def _begin(self, first: int, last: int) -> list["Future[None]"]:
        """Have blocks fetched that are neither there nor on their way; return what to wait for."""
        futures, number = [], first
        while number < last:
            if self._states[number] != _ABSENT:
                number += 1
            elif number in self._waiting:
                futures.append(self._waiting[number])
                number += 1
            else:
                stop = number + 1
                while stop < min(last, number + _REQUEST) and not self._states[stop] and stop not in self._waiting:
                    stop += 1
                future = _pool().submit(self._fetch, number, stop)
                self._waiting.update(dict.fromkeys(range(number, stop), future))
                futures.append(future)
                number = stop
        return futures

    def _fetch(self, first: int, last: int) -> None:
        state = _ABSENT
        try:
            at = first * BLOCK
            pieces = self._file.pieces(at, min(last * BLOCK, self.size) - at)
            for start, content in _with_content(pieces):
                self._keep(at + start, content)
            state = _CHECKED if self._file.is_checked else _FETCHED
        finally:
            with self._lock:  # at once: a block is on its way, or it is there
                self._states[first:last] = bytes([state]) * (last - first)
                for number in range(first, last):
                    self._waiting.pop(number, None)

    def _keep(self, at: int, pieces: list[memoryview]) -> None:
        if self._memory is None:
            with writing(Path(tempfile.gettempdir())):
                write_pieces(self._descriptor, at, pieces)
            return
        for piece in pieces:
            self._memory[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)

    def forget_before(self, position: int) -> None:
        """Release what is before a position, if it is in memory; it is fetched again when somebody asks for it."""
        with self._lock:
            last = min(position // BLOCK, len(self._states), *self._waiting)  # those on their way are being written
            last -= last % _BLOCKS_A_PAGE
            first = len(self._states) - len(self._states.lstrip(bytes([_ABSENT])))
            if self._memory is not None and first < last:
                self._states[first:last] = bytes(last - first)
                release(self._memory, first * BLOCK, last * BLOCK)

    @property
    def reads_onward(self) -> bool:
        """Whether a range can be had only by reading everything before it."""
        return self._file.onward is not None

    @property
    def kept(self) -> int:
        """Bytes that were put here."""
        if self._file.array is not None:
            return 0
        return (len(self._states) - self._states.count(_ABSENT)) * BLOCK

    def let_go(self) -> None:
        """Have its owner forget it."""
        if self._drop:
            self._drop()


def _with_content(pieces: Iterable[bytes]) -> Iterator[tuple[int, list[memoryview]]]:
    """Yield what is more than zeros: where it starts, and pieces that follow one another, as many as can be."""
    start, run = 0, list[memoryview]()
    for piece in pieces:
        for at in range(0, len(piece), BLOCK):
            part = memoryview(piece)[at : at + BLOCK]
            if any(part[:_LOOKED_AT]) or np.frombuffer(part, np.uint8).any():
                run.append(part)
                continue
            if run:
                yield start, run
            start, run = start + sum(map(len, run)) + len(part), []
    if run:
        yield start, run


def nameless_file() -> int:
    """Return the descriptor of a new file of the temporary folder that has no name."""
    folder = Path(tempfile.gettempdir())
    with writing(folder):
        descriptor, name = tempfile.mkstemp(prefix="mqtool-", dir=folder)
        Path(name).unlink()
    return descriptor


_spools: "collections.OrderedDict[int, weakref.ref[Spool]]" = collections.OrderedDict()
_spools_lock = threading.Lock()
_workers: ThreadPoolExecutor | None = None


def _used(spool: Spool) -> None:
    """Note that a file was read, and release those not read for long if too much is kept."""
    with _spools_lock:
        _spools[id(spool)] = weakref.ref(spool)
        _spools.move_to_end(id(spool))
        spools = {number: candidate for number, ref in _spools.items() if (candidate := ref()) is not None}
        for number in [number for number in _spools if number not in spools]:
            del _spools[number]
        kept = sum(spool.kept for spool in spools.values()) if len(spools) > 1 else 0
        gone = []
        for number, candidate in list(spools.items())[:-1]:
            if kept <= MAX_SPOOLED and len(_spools) <= _MAX_FILES:
                break
            kept -= candidate.kept
            del _spools[number]
            gone.append(candidate)
    for candidate in gone:
        candidate.let_go()


def _pool() -> ThreadPoolExecutor:
    global _workers
    with _spools_lock:
        if _workers is None:
            _workers = ThreadPoolExecutor(_WORKERS, "fetch")
        return _workers


def _forget() -> None:
    global _workers, _spools_lock
    _workers, _spools_lock = None, threading.Lock()
    _spools.clear()


os.register_at_fork(after_in_child=_forget)
