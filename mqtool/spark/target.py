"""Where executors put the queues and index files that they create: a folder that all of them see, or object storage.

A task writes into a folder of its own, which no other task sees. Complete files are moved into place from there: in a
folder by renaming, in object storage by uploading. So running a task twice does no harm, whichever run finishes first.
"""

import contextlib
import dataclasses
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from mqtool.engine.repair.salvage.new_store import making
from mqtool.engine.store import uploads
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.file_kinds import ABORT
from mqtool.engine.store.remote import RemotePath, is_remote, place
from mqtool.errors import MqtoolError, UsageError, WriteError

_NEW = ".new"  # where in the target what is unfinished lies
_MARK = b"mqtool is making this: it is not whole\n"


def target_of(into: Path | str, store: str) -> "Folder | Storage":
    """Return the target for a folder, or for a URL of object storage or HDFS.

    Raises:
        UsageError: it is inside the store.
    """
    path = place(into)
    if path.resolve().is_relative_to(place(store).resolve()):
        raise UsageError(f"{path} is inside the store: choose another place")
    return Storage(str(path)) if is_remote(path) else Folder(str(path))


@dataclasses.dataclass(frozen=True)
class Folder:
    """A folder that all executors see."""

    path: str

    @contextlib.contextmanager
    def making(self, kinds: Sequence[str]) -> Iterator[None]:
        """Make it, and have it whole and synced in the end, or as it was; ``kinds`` are the folders that it may get.

        Raises:
            UsageError: there is something in it already.
        """
        into, disk = Path(self.path), Disk()
        with making(into, disk):
            disk.make_folder(into / _NEW)  # of two tasks that make it, one would fail
            yield
            disk.remove_tree(into / _NEW)
            for kind in kinds:
                if (into / kind).exists():
                    disk.sync_folder(into / kind)

    @contextlib.contextmanager
    def attempt(self) -> Iterator[Path]:
        """Yield a folder for what a task creates; what is left there is removed in the end."""
        disk, folder = Disk(), Path(self.path, _NEW, uuid.uuid4().hex)
        disk.make_folder(folder)
        yield folder
        disk.remove_tree(folder)

    def take(self, attempt: Path, names: Sequence[str]) -> None:
        """Put folders that are whole in their places, where no other run of the same task was first."""
        disk, targets = Disk(), [Path(self.path, name) for name in names]
        for name, target in zip(names, targets, strict=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                disk.rename(attempt / name, target)
            except WriteError:
                if not target.exists():
                    raise
        for folder in {target.parent for target in targets}:
            disk.sync_folder(folder)

    def keep(self, source: Path) -> str:
        """Keep a file that is whole until it is known what it is called; return what ``name`` takes."""
        name = f"{_NEW}/{uuid.uuid4().hex}.kept"
        Disk().rename(source, Path(self.path, name))
        return name

    def name(self, kept: str, name: str) -> None:
        """Put a file that was kept in its place."""
        target = Path(self.path, name)
        target.parent.mkdir(exist_ok=True)
        Disk().rename(Path(self.path, kept), target)


@dataclasses.dataclass(frozen=True)
class Storage:
    """A place in object storage or HDFS."""

    url: str

    @property
    def _root(self) -> RemotePath:
        root = place(self.url)
        assert isinstance(root, RemotePath)
        return root

    @contextlib.contextmanager
    def making(self, kinds: Sequence[str]) -> Iterator[None]:  # noqa: ARG002 - storages need no sync
        """Keep an object ``abort`` there until everything is complete; what was put there is removed if anything fails.

        Raises:
            UsageError: there is something already; what a lost driver has left is told apart, and stays: nothing
                shows that no other is at work.
            WriteError: it cannot be written.
        """
        root = self._root.fresh()
        if (root / ABORT.name).exists() and (root / ABORT.name).opened().read_all() == _MARK:
            raise UsageError(
                f"{root} contains the unfinished output of another run: if none is still running, remove it and try "
                "again"
            )
        if root.exists():
            raise UsageError(f"{root} is not empty: choose a place where there is nothing yet")
        abort = root / ABORT.name
        uploads.put_bytes(_MARK, abort)
        try:
            yield
            uploads.remove_tree(root / _NEW)
            uploads.remove_tree(abort)
        except BaseException as error:
            try:
                uploads.remove_tree(root)
            except MqtoolError as second:
                raise WriteError(
                    f"{error}; the incomplete output in {root} could not be removed ({second}): remove it"
                ) from error
            raise

    @contextlib.contextmanager
    def attempt(self) -> Iterator[Path]:
        """Yield a folder for what a task creates, on this machine; what is left there is removed in the end."""
        with tempfile.TemporaryDirectory(prefix="mqtool-") as folder:
            yield Path(folder)

    def take(self, attempt: Path, names: Sequence[str]) -> None:
        """Put the files of folders in their places; another run of the same task puts the same there."""
        for name in names:
            uploads.put_tree(attempt / name, self._root / name)

    def keep(self, source: Path) -> str:
        """Keep a file until it is known what it is called; return what ``name`` takes."""
        name = f"{_NEW}/{uuid.uuid4().hex}.kept"
        uploads.put_file(source, self._root / name)
        source.unlink()
        return name

    def name(self, kept: str, name: str) -> None:
        """Put a file that was kept in its place."""
        uploads.move(self._root / kept, self._root / name)
