"""The files of queues and index of an open store: some stay open, and those that were written to wait for a sync.

Files are made where they are needed, or aside: then what must be written keeps waiting until another thread has made
them (``make_wanted``).
"""

import collections
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mqtool.errors import MqtoolError, WriteError

if TYPE_CHECKING:
    from mqtool.engine.store.disk import Disk, OpenFile

_MAX_OPEN = 64


class QueueFiles:
    """The files of all queues: some stay open, and those that were written to are known until they are synced."""

    def __init__(self, disk: "Disk", queue_size: int, batch_queue_size: int) -> None:
        self.disk = disk
        self.queue_size = queue_size
        self.batch_queue_size = batch_queue_size
        self.makes_aside = False
        """Whether somebody else calls ``make_wanted`` when ``is_any_wanted``; else ``make`` makes all."""
        self.has_made = False
        """Whether there are files that were made aside and not written to since."""
        self._wanted: dict[Path, int] = {}  # sizes of files that must be made
        self._made: dict[Path, MqtoolError | None] = {}  # those that are, or why not, until somebody asks
        self._making = threading.Lock()
        self._unsynced: set[Path] = set()  # files and folders
        self._open: collections.OrderedDict[Path, OpenFile] = collections.OrderedDict()

    def get(self, path: Path) -> "OpenFile":
        """Return an open file."""
        file = self._open.get(path)
        if file is None:
            file = self._open[path] = self.disk.open(path)
            if len(self._open) > _MAX_OPEN:
                _, oldest = self._open.popitem(last=False)
                oldest.close()
        else:
            self._open.move_to_end(path)
        return file

    def make(self, path: Path, size: int, *, at_once: bool = False) -> bool:
        """Make a new file, unless it is made aside, and return whether it is there; ``at_once`` it always is.

        Raises:
            WriteError: the disk is full, or fails.
        """
        if path not in self._made and self.makes_aside and not at_once:
            self._wanted[path] = size
            return False
        with self._making:  # if it is just being created it exists then
            self._wanted.pop(path, None)
            if path not in self._made:
                self._create(path, size)
            elif failure := self._made.pop(path):
                raise failure
        return True

    @property
    def is_any_wanted(self) -> bool:
        """Whether there is something for ``make_wanted``."""
        return bool(self._wanted)

    def make_wanted(self) -> None:
        """Make the files that are wanted; any thread may call this. Whoever wants one is told of a failure."""
        for path, size in list(self._wanted.items()):
            with self._making:
                if path not in self._wanted:  # it is there, or nobody wants it any more
                    continue
                failure = None
                try:
                    self._create(path, size)
                except MqtoolError as error:
                    failure = error
                self._made[path] = failure
                self._wanted.pop(path, None)
        self.has_made = True

    def _create(self, path: Path, size: int) -> None:
        """Make a file, and the folders that it is in."""
        missing = []
        folder = path.parent
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for new_folder in reversed(missing):
            self.disk.make_folder(new_folder)
            self._unsynced.add(new_folder.parent)
        self.disk.create(path, size)
        self._unsynced.add(path.parent)

    def note_write(self, path: Path) -> None:
        """Know that a file was written to just now: not before, or a ``sync`` of another thread might miss it."""
        self._unsynced.add(path)

    def sync(self) -> None:
        """Return when all that was written before the call is on the disk; another thread may write in the meantime.

        Raises:
            WriteError: the disk failed.
        """
        paths: set[Path] = set()
        with contextlib.suppress(KeyError):
            while True:
                paths.add(self._unsynced.pop())
        for path in sorted(paths):
            try:
                if path.exists():
                    (self.disk.sync_folder if path.is_dir() else self.disk.sync)(path)
            except WriteError:
                if path.exists():  # not removed in the meantime
                    raise

    def remove(self, path: Path) -> None:
        """Remove a file."""
        self.let_go(path)()

    def let_go(self, path: Path) -> Callable[[], None]:
        """Release a file, and return what removes it, in any thread."""
        file = self._open.pop(path, None)
        self._unsynced.discard(path)
        self._wanted.pop(path, None)

        def remove() -> None:
            with self._making:
                self._made.pop(path, None)
                self.disk.remove_tree(path)  # if it is there still, or was made in the meantime
            if file is not None:
                file.close()

        return remove

    def close(self) -> None:
        """Release all files."""
        for file in self._open.values():
            file.close()
        self._open.clear()
