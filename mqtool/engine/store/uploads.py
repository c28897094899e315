"""Files that are put into object storage and HDFS: the one room that writes there.

A file is put whole, and is there when it is whole (HDFS shows it while it grows). Nothing is renamed but by ``move``,
for which object storage copies. What a storage refuses for a moment is tried again, as ``remote`` does it.
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from mqtool.engine.store.remote import EXTRAS, RemotePath
from mqtool.errors import MqtoolError, NotPermittedError, WriteError

_TRIES = 5
_FIRST_WAIT = 0.2


def put_file(source: Path, target: RemotePath) -> None:
    """Put a file of this machine there; one of that name is replaced.

    Raises:
        WriteError: the storage does not take it.
        NotPermittedError: these credentials do not suffice.
    """
    tree = target.tree
    _tried(lambda: tree.storage.put_file(str(source), tree.name_of(target.key)), target)


def put_tree(source: Path, target: RemotePath) -> None:
    """Put all files below a folder there; raises like ``put_file``."""
    for path in sorted(source.rglob("*")):
        if path.is_file():
            put_file(path, target / path.relative_to(source))


def put_bytes(data: bytes, target: RemotePath) -> None:
    """Put a small file there; raises like ``put_file``."""
    tree = target.tree
    _tried(lambda: tree.storage.pipe_file(tree.name_of(target.key), data), target)


def move(source: RemotePath, target: RemotePath) -> None:
    """Give a file of the same storage another name; raises like ``put_file``."""
    tree = target.tree

    def ask() -> None:
        if EXTRAS[tree.scheme] == "hdfs":  # others have no folders
            tree.storage.makedirs(tree.name_of(target.parent.key), exist_ok=True)
        tree.storage.mv(tree.name_of(source.key), tree.name_of(target.key))

    _tried(ask, target)


def remove_tree(target: RemotePath) -> None:
    """Remove all that is below a name, if there is anything; raises like ``put_file``."""
    tree = target.tree

    def ask() -> None:
        with contextlib.suppress(FileNotFoundError):
            tree.storage.rm(tree.name_of(target.key), recursive=True)

    _tried(ask, target)


def _tried(ask: Callable[[], object], shown: object) -> None:
    for number in range(_TRIES):
        try:
            ask()
            return
        except MqtoolError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            if isinstance(error, PermissionError) or "Credential" in type(error).__name__:
                raise NotPermittedError(f"no permission to write {shown} with these credentials: {reason}") from error
            if isinstance(error, FileNotFoundError):  # no such bucket
                raise WriteError(f"cannot write {shown}: {reason}") from error
            if number == _TRIES - 1:
                raise WriteError(f"cannot write {shown} after {_TRIES} attempts: {reason}") from error
        time.sleep(_FIRST_WAIT * 2**number)
