"""The files of queues and index of an open store: some stay open, and those that were written to wait for a sync."""

import collections
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mqtool.errors import WriteError

if TYPE_CHECKING:
    from mqtool.engine.store.disk import Disk, OpenFile

_MOST_OPEN = 64


class QueueFiles:
    """The files of all queues: some stay open, and those that were written to are known until they are synced."""

    def __init__(self, disk: "Disk", queue_size: int, batch_queue_size: int) -> None:
        self.disk = disk
        self.queue_size = queue_size
        self.batch_queue_size = batch_queue_size
        self._unsynced: set[Path] = set()  # files and folders
        self._open: collections.OrderedDict[Path, OpenFile] = collections.OrderedDict()

    def get(self, path: Path) -> "OpenFile":
        """Return an open file."""
        file = self._open.get(path)
        if file is None:
            file = self._open[path] = self.disk.open(path)
            if len(self._open) > _MOST_OPEN:
                _, oldest = self._open.popitem(last=False)
                oldest.close()
        else:
            self._open.move_to_end(path)
        return file

    def create(self, path: Path, size: int) -> None:
        """Make a file, and the folders that it lies in."""
        missing = []
        folder = path.parent
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for one in reversed(missing):
            self.disk.make_folder(one)
            self._unsynced.add(one.parent)
        self.disk.create(path, size)
        self._unsynced.add(path.parent)

    def note_write(self, path: Path) -> None:
        """Know that a file was written to just now: not before, or a ``sync`` of another thread might miss it."""
        self._unsynced.add(path)

    def sync(self) -> None:
        """Return when all that was written before the call is on the disk; another thread may write meanwhile.

        Raises:
            WriteError: the disk failed.
        """
        taken: set[Path] = set()
        with contextlib.suppress(KeyError):
            while True:
                taken.add(self._unsynced.pop())
        for path in sorted(taken):
            try:
                if path.exists():
                    (self.disk.sync_folder if path.is_dir() else self.disk.sync)(path)
            except WriteError:
                if path.exists():  # not removed meanwhile
                    raise

    def remove(self, path: Path) -> None:
        """Remove a file."""
        self.let_go(path)()

    def let_go(self, path: Path) -> Callable[[], None]:
        """Let go of a file, and return what removes it, in any thread."""
        file = self._open.pop(path, None)
        self._unsynced.discard(path)

        def remove() -> None:
            self.disk.remove_tree(path)  # if it is there still
            if file is not None:
                file.close()

        return remove

    def close(self) -> None:
        """Let go of all files."""
        for file in self._open.values():
            file.close()
        self._open.clear()
