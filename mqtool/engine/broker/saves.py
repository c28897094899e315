"""Changed tables that have to be written, and requests that wait until they are on disk.

The rules note changes of tables. The owner of the broker takes all changed tables (``take``), writes them in a thread
and reports when that is done (``finished``); changes in the meantime are written together after that, so a thousand new
topics need only a few writes. Without an owner (``on_wanted`` is None) each table is written when it changes.
"""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from mqtool.engine.broker.config_files import save_data
from mqtool.engine.broker.sessions import Session
from mqtool.engine.broker.waiting_room import SAVES, Waiting, WaitingRoom
from mqtool.engine.intervals import is_time
from mqtool.errors import MqtoolError

log = logging.getLogger(__name__)

_KEY = "save"
_AGAIN_MS = 1000
"""How long to wait after a disk was full."""

Write = Callable[[Path, bytes], None]
"""Replaces a file by a text and syncs it; called in a thread, so it must not access the rules."""


class Save(NamedTuple):
    """A file that must be written."""

    path: Path
    pieces: Callable[[], Iterable[bytes]]
    """Yields the current text, in pieces of about a millisecond, between which the table may change."""
    write: Write
    in_any_order: bool = False
    """Whether it may be written at the same time as its neighbours of which that is true."""

    def run(self) -> None:
        """Write it immediately."""
        self.write(self.path, b"".join(self.pieces()))


class Round(NamedTuple):
    """Files that are written together, in this order."""

    changes: int  # number of changes when it began
    saves: list[Save]


class Saves:
    """A ticker; ``on_wanted`` is called when there is something to take."""

    def __init__(self, room: WaitingRoom | None = None) -> None:
        self._room = room or WaitingRoom()
        self.on_wanted: Callable[[], None] | None = None
        self.changes = 0
        """Number of changes."""
        self._changes_before = 0
        self._saved = 0  # number of changes on disk
        self._wanted: dict[Path, Save] = {}
        self._is_taken = False
        self._not_before: int | None = None  # ms
        self._is_failing = False

    def want(
        self,
        path: Path,
        pieces: Callable[[], Iterable[bytes]],
        write: Write = save_data,
        *,
        in_any_order: bool = False,
    ) -> None:
        """Write a file soon, or immediately if nobody takes saves.

        Raises:
            WriteError: it is written immediately, and the disk is full, or fails.
        """
        save = Save(path, pieces, write, in_any_order)
        if self.on_wanted is None:
            save.run()
            return
        self.changes += 1
        self._wanted[path] = save
        self._tell()

    def _tell(self) -> None:
        if self._wanted and not self._is_taken and self._not_before is None and self.on_wanted is not None:
            self.on_wanted()

    def take(self) -> Round | None:
        """Return what has to be written, None for nothing now; call ``finished`` before taking more."""
        if not self._wanted or self._is_taken or self._not_before is not None:
            return None
        saves, self._wanted = [*self._wanted.values()], {}
        self._is_taken = True
        return Round(self.changes, saves)

    def finished(self, done: Round, failed: dict[Path, MqtoolError], now: int) -> None:
        """Answer the requests that have waited for a round; if files failed, with the first error."""
        self._is_taken = False
        if failed:
            self._wanted = {save.path: save for save in done.saves if save.path in failed} | self._wanted
            self._not_before = now + _AGAIN_MS
            if not self._is_failing:
                log.warning("%s; retrying", next(iter(failed.values())))
        else:
            self._saved = done.changes
        self._is_failing = bool(failed)
        self._room.release(_KEY, done.changes, next(iter(failed.values()), None), now)
        self._tell()

    def begin_request(self) -> int:
        """Note that later changes belong to one request; return the number of changes before it."""
        self._changes_before = changes = self.changes
        return changes

    @property
    def changes_of_request(self) -> int:
        """The number of changes that the answer to the current request waits for, 0 for none."""
        return self.changes if self.changes != self._changes_before else 0

    def wait(self, changes: int, session: Session, then: Callable[[MqtoolError | None, int], None], now: int) -> None:
        """Call ``then`` when the first ``changes`` are on disk, or with the error."""
        if changes <= self._saved or self.on_wanted is None:
            then(None, now)
        else:
            self._room.add(Waiting(SAVES, _KEY, session, None, _wait_on, then, offset=changes))

    def finish(self) -> None:
        """Write pending changes; from now on everything is written immediately.

        Raises:
            WriteError: the disk is full, or fails.
        """
        self.on_wanted = None
        while self._wanted:
            save = next(iter(self._wanted.values()))
            save.run()
            del self._wanted[save.path]

    def tick(self, now: int) -> None:
        """Retry what has failed."""
        if self._not_before is not None and is_time(self._not_before, _AGAIN_MS, now):
            self._not_before = None
            self._tell()

    def next_tick(self, now: int) -> int | None:  # noqa: ARG002
        """Return when something has to be retried."""
        return self._not_before


def _wait_on(is_due: bool, now: int) -> None:
    """Return None: there is no result before everything is written."""
