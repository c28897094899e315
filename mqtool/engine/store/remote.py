"""Files in object storage and HDFS, named by URLs, for all who read stores: nothing here writes.

``place`` makes a path of what a user gave: an ordinary ``Path``, or a ``RemotePath``, which answers the same questions
(``is_dir``, ``iterdir``, ``stat``, ``open`` ...) from listings. What is in large files is read in ranges
(``RemoteFile``), a few megabytes at once, tried again a bounded number of times, and refused when the object is no
longer the one that was listed. The libraries that speak to a storage are found by fsspec, and imported for such a URL.

``str`` of a ``RemotePath`` is its URL, so what knows ordinary files alone finds nothing, and never reads others.
"""

import contextlib
import dataclasses
import datetime
import fnmatch
import io
import os
import re
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from mqtool.errors import (
    MissingExtraError,
    MqtoolError,
    NotFoundError,
    NotPermittedError,
    ReadError,
    StoreChangedError,
    UnavailableError,
    UsageError,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

EXTRAS = {
    "s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "abfs": "abfs", "abfss": "abfs", "az": "abfs", "hdfs": "hdfs",
}  # fmt: skip
"""Schemes of URLs, and the extra of mqtool that each needs."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/+)(.*)", re.DOTALL)
_TRIES = 5
_FIRST_WAIT = 0.2
_TIMEOUT = 30
_NO_MATCH = 412
_STAMPS = ("generation", "ETag", "etag", "md5Hash", "checksum")
_TIMES = ("LastModified", "last_modified", "mtime", "modification_time", "updated", "modified", "created")
_Found = TypeVar("_Found")


def place(name: "str | os.PathLike[str]") -> Path:
    """Return the path that a user means: of a file that is mounted here, or a ``RemotePath``.

    Raises:
        UsageError: it is a URL of something that no store is read from, or one without a name of the storage.
    """
    if isinstance(name, RemotePath):
        return name
    text = os.fspath(name)
    match = _URL.match(text)
    if match is None:
        return Path(text)
    scheme, slashes, rest = match[1].lower(), match[2], match[3]
    if scheme == "file":
        return Path("/" + rest)
    if scheme in EXTRAS:
        if len(slashes) > 2 or not rest:
            raise UsageError(f"{text} names no place: give {scheme}://NAME/PATH, with the bucket, container or host")
        return RemotePath(f"{scheme}://{rest}")
    if len(slashes) == 1:
        return Path(text)
    known = ", ".join(f"{name}://" for name in ("s3", "gs", "abfs", "hdfs", "file"))
    raise UsageError(f"{text}: stores cannot be read from {scheme}://: give {known}, or a path")


def matches(pattern: str) -> list[str]:
    """Return the URLs that a URL with ``*``, ``?`` or ``[`` matches, folder by folder, in order; raises like ``place``.

    The storage itself is not part of the pattern.
    """
    first, _, rest = str(place(pattern)).partition("://")[2].partition("/")
    scheme = pattern.partition(":")[0].lower()
    root = RemotePath(f"{scheme}://{first}")
    root.tree.forget_lists()
    return sorted(str(path) for path in root.glob(rest))


def is_remote(path: "str | os.PathLike[str]") -> bool:
    """Return whether a path is a URL of another file system than the one that is mounted here."""
    if isinstance(path, RemotePath):
        return True
    match = _URL.match(os.fspath(path))
    return match is not None and match[1].lower() in EXTRAS


def refuse_remote(path: "str | os.PathLike[str] | None", action: str) -> None:
    """Raise ``UsageError`` where ``action``, which changes files, would run in object storage or HDFS."""
    if path is not None and is_remote(path):
        raise UsageError(
            f"{action} changes files, and {place(path)} is read-only: copy the store to this machine first, or make a "
            f"sound copy here with `mqtool salvage -s {place(path)} --into DIR`"
        )


@dataclasses.dataclass(frozen=True)
class ListedFile:
    """What a listing says of a file or folder. ``stamp`` is another one when the content is."""

    name: str
    size: int
    time_ns: int
    stamp: str
    is_folder: bool


class RemoteEntry:
    """What ``os.scandir`` would yield of a file or folder."""

    def __init__(self, folder: "RemotePath", entry: ListedFile) -> None:
        self.name = entry.name
        self.path = str(folder / entry.name)
        self._entry = entry

    def is_dir(self) -> bool:
        """Return whether it is a folder."""
        return self._entry.is_folder

    def is_file(self) -> bool:
        """Return whether it is a file."""
        return not self._entry.is_folder

    def is_symlink(self) -> bool:
        """Return False: storage has no links."""
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:  # noqa: ARG002 - as os.DirEntry has it
        """Return size and time."""
        return _status(self._entry)


def stamp_of(path: Path) -> str:
    """Return what is another when a remote file is, as it was listed; of other files nothing."""
    return path.entry().stamp if isinstance(path, RemotePath) else ""


@contextlib.contextmanager
def scandir(folder: Path) -> Iterator[Iterator["os.DirEntry[str] | RemoteEntry"]]:
    """Do what ``os.scandir`` does, of remote folders too."""
    if isinstance(folder, RemotePath):
        yield iter([RemoteEntry(folder, entry) for entry in folder.listed().values()])
    else:
        with os.scandir(folder) as entries:
            yield iter(entries)


def is_there(path: Path) -> bool:
    """Return whether a name is taken, be it by a link that leads nowhere."""
    return path.exists() if isinstance(path, RemotePath) else os.path.lexists(path)


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder; a name that is longer than any file system takes is none."""
    return path.is_dir() if isinstance(path, RemotePath) else os.path.isdir(path)  # noqa: PTH112


class RemotePath(PosixPath):
    """A file or folder in a storage; only what reads is there. Listings are kept until ``fresh``."""

    def __str__(self) -> str:
        first, *others = self.parts or ("",)
        return f"{first}//{'/'.join(others)}" if first.endswith(":") else "/".join(self.parts) or "."

    def __fspath__(self) -> str:
        return str(self)

    def fresh(self) -> "RemotePath":
        """Forget what was listed below this path, which is taken for the root of a store from now on."""
        self.tree.forget(self.key)
        return self

    @property
    def tree(self) -> "_Tree":
        """The storage that it is in."""
        return _tree(self.parts[0][:-1], self.parts[1])

    @property
    def key(self) -> str:
        """How the storage's listings name it."""
        return "/".join(self.parts[1:])

    def entry(self) -> ListedFile:
        """Return what a listing says of it.

        Raises:
            FileNotFoundError: it is not there.
            MqtoolError: the storage does not say.
        """
        entry = self.tree.entry(self.key)
        if entry is None:
            raise FileNotFoundError(2, "No such file or directory", str(self))
        return entry

    def listed(self) -> dict[str, ListedFile]:
        """Return what is in this folder, by name; raises like ``entry``."""
        children = self.tree.children(self.key)
        if children is None:
            raise FileNotFoundError(2, "No such file or directory", str(self))
        return children

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:  # noqa: ARG002
        """Return size and time."""
        return _status(self.entry())

    def lstat(self) -> os.stat_result:
        """Return size and time."""
        return self.stat()

    def exists(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        """Return whether it is there."""
        return self.tree.entry(self.key) is not None

    def is_file(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        """Return whether it is a file."""
        entry = self.tree.entry(self.key)
        return entry is not None and not entry.is_folder

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        """Return whether it is a folder."""
        entry = self.tree.entry(self.key)
        return entry is not None and entry.is_folder

    def is_symlink(self) -> bool:
        """Return False: storage has no links."""
        return False

    def absolute(self) -> "RemotePath":
        """Return itself."""
        return self

    def resolve(self, strict: bool = False) -> "RemotePath":  # noqa: ARG002
        """Return itself."""
        return self

    def iterdir(self) -> Iterator["RemotePath"]:  # type: ignore[override]
        """Yield what is in this folder."""
        for name in self.listed():
            yield self / name

    def glob(self, pattern: str, **_: Any) -> Iterator["RemotePath"]:  # type: ignore[override]
        """Yield what is below this folder and matches a pattern, part by part."""
        first, _slash, rest = str(pattern).partition("/")
        for name, entry in sorted((self.tree.children(self.key) or {}).items()):
            if fnmatch.fnmatchcase(name, first):
                if rest and entry.is_folder:
                    yield from (self / name).glob(rest)
                elif not rest:
                    yield self / name

    def opened(self, size: int | None = None) -> "Content":
        """Return what is in it; raises like ``RemoteFile``."""
        return RemoteFile(self, size)

    def open(self, mode: str = "r", *_: Any, **__: Any) -> Any:
        """Open a small file, which is read whole."""
        if set(mode) & set("wax+"):
            raise UsageError(f"{self} is read-only")
        data = self.opened().read_all()
        return io.BytesIO(data) if "b" in mode else io.StringIO(data.decode("utf-8"))


class Content:
    """The bytes of a file that is not mapped from where it is.

    ``array`` has all of them where they are at hand. With ``onward``, a lock, they are read from the first to the last,
    by one thread at a time.
    """

    size = 0
    array: "npt.NDArray[np.uint8] | None" = None
    onward: Any = None
    finish: Callable[[], None]
    """Set by who keeps what was read: reads the rest of what is read onward."""
    is_checked = True
    """Whether ``fetch`` sees that the file is still the one that was listed; else ``check`` does."""

    def fetch(self, at: int, size: int) -> bytes:
        """Return a range of it."""
        raise NotImplementedError

    def pieces(self, at: int, size: int) -> list[bytes]:
        """Return a range of it in the pieces in which it came: those who write it need not have it as one."""
        return [self.fetch(at, size)]

    def check(self) -> None:
        """Raise ``StoreChangedError`` where this is no longer what was listed, ``NotFoundError`` where it is gone."""

    def expect(self, stamp: str) -> None:
        """Raise ``StoreChangedError`` where the object has another stamp."""

    def read_all(self) -> bytes:
        """Return all of it."""
        data = self.fetch(0, self.size) if self.size else b""
        if self.size and not self.is_checked:
            self.check()
        return data


class RemoteFile(Content):
    """One file of a storage, as it was listed."""

    def __init__(self, path: RemotePath, size: int | None = None) -> None:
        """Take it as the listing has it.

        Raises:
            FileNotFoundError: it is not there.
            StoreChangedError: it is not as long as ``size``, with which it was found before.
        """
        self.path = path
        self._entry = path.entry()
        self.size = self._entry.size
        self.is_checked = path.tree.reader is not None
        if size is not None and size > self.size:
            raise self._changed()

    def fetch(self, at: int, size: int) -> bytes:
        """Return bytes of the file; raises like ``pieces``."""
        return b"".join(self.pieces(at, size))

    def pieces(self, at: int, size: int) -> list[bytes]:
        """Return bytes of the file, by one request, tried again a few times.

        Raises:
            NotFoundError: it is gone.
            StoreChangedError: it is another one than was listed.
            ReadError: the storage does not give them.
        """
        tree = self.path.tree
        name, read, stamp = tree.name_of(self.path.key), tree.reader, self._entry.stamp

        def ask() -> list[bytes]:
            if read:
                chunks = read(name, at, size, stamp)
            else:
                chunks = [bytes(tree.storage.cat_file(name, start=at, end=at + size))]
            if (came := sum(map(len, chunks))) != size:
                raise OSError(f"got {came:,} of {size:,} bytes")
            return chunks

        try:
            return _tried(ask, self.path)
        except _OtherObjectError as error:
            self.check()  # it may be gone
            raise self._changed() from error
        except FileNotFoundError as error:
            raise NotFoundError(f"{self.path} does not exist") from error
        except ReadError:
            self.check()  # a shorter object, say, from which no such range can be had
            raise

    def check(self) -> None:
        """Raise ``StoreChangedError`` where this is no longer what was listed, ``NotFoundError`` where it is gone."""
        current = self.path.tree.ask(self.path.key)
        if current is None:
            raise NotFoundError(f"{self.path} does not exist")
        if (current.stamp, current.size) != (self._entry.stamp, self._entry.size):
            raise self._changed()

    def expect(self, stamp: str) -> None:
        """Raise ``StoreChangedError`` where the object has another stamp."""
        if stamp != self._entry.stamp:
            raise self._changed()

    def _changed(self) -> MqtoolError:
        return StoreChangedError(
            f"{self.path} was replaced or grew while it was being read: another process is changing it; try again"
        )


class _Tree:
    """A storage, and what was listed of it.

    A folder right below the root of a store is listed with all that is in it, by as few requests as the storage takes.
    """

    def __init__(self, scheme: str, name: str) -> None:
        self.scheme = scheme
        self._url = f"{scheme}://{name}"
        self._lock = threading.RLock()
        self._storage: Any = None
        self._prefix = ""
        self._roots: set[str] = set()
        self._deep: set[str] = set()
        self._folders: dict[str, dict[str, ListedFile] | None] = {}
        self._entries: dict[str, ListedFile | None] = {}

    @property
    def storage(self) -> Any:
        """The file system of fsspec."""
        with self._lock:
            if self._storage is None:
                self._storage, self._prefix = _opened(self.scheme, self._url)
        return self._storage

    @property
    def reader(self) -> "_Reader | None":
        """What reads a range of an object and sees by the answer itself whether it is the one that was listed."""
        storage = self.storage
        make = _READERS.get(EXTRAS[self.scheme])
        return make(storage) if make else None

    def name_of(self, key: str) -> str:
        """Return how fsspec names a path."""
        _ = self.storage
        return self._prefix + key.partition("/")[2] if self._prefix else key

    def _key_of(self, name: str) -> str:
        _ = self.storage
        name = name.rstrip("/")
        host = self._url.partition("://")[2]
        return f"{host}/{name.removeprefix(self._prefix).lstrip('/')}" if self._prefix else name

    def forget(self, root: str) -> None:
        """Have what is below a path listed again."""
        with self._lock:
            self._roots.add(root)
            for known in (self._folders, self._entries):
                for key in [key for key in known if key == root or key.startswith(f"{root}/")]:
                    del known[key]
            self._deep = {key for key in self._deep if not key.startswith(f"{root}/")}

    def forget_lists(self) -> None:
        """Have every folder listed again, for itself."""
        with self._lock:
            for known in (self._folders, self._entries, self._roots, self._deep):
                known.clear()

    def entry(self, key: str) -> ListedFile | None:
        """Return what a listing says of a path, None if nothing is there."""
        folder, _, name = key.rpartition("/")
        with self._lock:
            if any(folder == root or folder.startswith(f"{root}/") for root in self._roots):
                return (self.children(folder) or {}).get(name)
            if key not in self._entries:
                self._entries[key] = self.ask(key)
            return self._entries[key]

    def children(self, key: str) -> dict[str, ListedFile] | None:
        """Return the contents of a folder, None if it does not exist."""
        with self._lock:
            if key not in self._folders:
                if any(key.startswith(f"{deep}/") for deep in self._deep):
                    return None
                if key.rpartition("/")[0] in self._roots and key not in self._roots:
                    self._list_deep(key)
                else:
                    self._folders[key] = self._listed(key)
            return self._folders[key]

    def ask(self, key: str) -> ListedFile | None:
        """Ask the storage about a path, whatever was listed."""
        with contextlib.suppress(FileNotFoundError):
            return _entry_of(key, _tried(lambda: self.storage.info(self.name_of(key)), self._shown(key)))
        return None

    def _listed(self, key: str) -> dict[str, ListedFile] | None:
        try:
            infos = _tried(lambda: self.storage.ls(self.name_of(key), detail=True), self._shown(key))
        except (FileNotFoundError, NotADirectoryError):
            return None
        entries = {path: _entry_of(path, info) for info in infos for path in (self._key_of(info["name"]),)}
        itself = entries.pop(key, None)
        if itself and not itself.is_folder and not entries:
            return None
        return {entry.name: entry for entry in entries.values() if entry.name}

    def _list_deep(self, key: str) -> None:
        try:
            infos = _tried(lambda: self.storage.find(self.name_of(key), detail=True, withdirs=True), self._shown(key))
        except (FileNotFoundError, NotADirectoryError):
            infos = {}
        self._deep.add(key)
        folders: dict[str, dict[str, ListedFile] | None] = {}
        for name, info in infos.items():
            path = self._key_of(name)
            entry = _entry_of(path, info)
            if path == key and not entry.is_folder:
                infos = {}
                break
            if entry.is_folder:
                folders.setdefault(path, {})
            while path != key:
                path, _, _ = path.rpartition("/")
                siblings = folders.setdefault(path, {})
                assert siblings is not None
                siblings.setdefault(entry.name, entry)
                entry = ListedFile(path.rpartition("/")[2], 0, 0, "", True)
        self._folders[key] = folders.pop(key, None) if infos else None
        if infos:
            self._folders.update(folders)

    def _shown(self, key: str) -> str:
        return f"{self.scheme}://{key}"


_Reader = Callable[[str, int, int, str], list[bytes]]
"""Takes a name, where to start, how much to read, and the stamp that the object was listed with; returns pieces."""


class _OtherObjectError(MqtoolError):
    """An object is not the one that was listed."""


def _s3_reader(storage: Any) -> _Reader:
    """Return what reads from S3: the request names the ETag, and so does the answer."""
    from fsspec.asyn import sync

    async def get(name: str, at: int, size: int, stamp: str) -> list[bytes]:
        bucket, key, _ = storage.split_path(name)
        try:
            answer = await storage._call_s3(
                "get_object", Bucket=bucket, Key=key, Range=f"bytes={at}-{at + size - 1}", IfMatch=f'"{stamp}"'
            )
        except Exception as error:
            cause = error.__cause__ or error
            if getattr(cause, "response", {}).get("ResponseMetadata", {}).get("HTTPStatusCode") == _NO_MATCH:
                raise _OtherObjectError from error
            raise
        async with answer["Body"] as body:
            if answer["ETag"].strip('"') != stamp:
                raise _OtherObjectError
            chunks = []
            while data := await body.read(size):  # what has come by now: nobody needs it as one
                chunks.append(bytes(data))
            return chunks

    return lambda *asked: list(sync(storage.loop, get, *asked))


def _gs_reader(storage: Any) -> _Reader:
    """Return what reads from Google Cloud Storage: the request names the generation, and the answer tells it."""
    from fsspec.asyn import sync

    async def get(name: str, at: int, size: int, stamp: str) -> list[bytes]:
        asked = {"Range": f"bytes={at}-{at + size - 1}"}
        try:
            headers, data = await storage._call("GET", storage.url(name), ifGenerationMatch=stamp, headers=asked)
        except FileExistsError as error:  # as its library calls what does not match
            raise _OtherObjectError from error
        generation = headers.get("x-goog-generation")
        if generation is None:  # not from Google's own servers
            generation = _entry_of(name, await storage._info(name)).stamp
        if generation != stamp:
            raise _OtherObjectError
        return [bytes(data)]

    return lambda *asked: list(sync(storage.loop, get, *asked))


def _abfs_reader(storage: Any) -> _Reader:
    """Return what reads from Azure: the request names the ETag."""
    from azure.core import MatchConditions
    from azure.core.exceptions import ResourceModifiedError
    from fsspec.asyn import sync

    async def get(name: str, at: int, size: int, stamp: str) -> list[bytes]:
        container, path, _ = storage.split_path(name)
        async with storage.service_client.get_blob_client(container, path) as client:
            try:
                stream = await client.download_blob(
                    offset=at, length=size, etag=f'"{stamp}"', match_condition=MatchConditions.IfNotModified
                )
            except ResourceModifiedError as error:
                raise _OtherObjectError from error
            return [bytes(await stream.readall())]

    return lambda *asked: list(sync(storage.loop, get, *asked))


_READERS: dict[str, Callable[[Any], _Reader]] = {"s3": _s3_reader, "gs": _gs_reader, "abfs": _abfs_reader}

_TREES: dict[tuple[int, str, str], _Tree] = {}
_LOCK = threading.Lock()


def _tree(scheme: str, name: str) -> _Tree:
    with _LOCK:  # a fork takes no connections along
        return _TREES.setdefault((os.getpid(), scheme, name), _Tree(scheme, name))


def _opened(scheme: str, url: str) -> tuple[Any, str]:
    """Return the file system of fsspec, and what its names start with in place of the host, if they do not name it."""
    extra = EXTRAS[scheme]
    options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
    try:
        import fsspec

        if extra == "hdfs":
            from hdfs_native.fsspec import HdfsFileSystem

            host, _, port = url.partition("://")[2].partition(":")
            if port:  # the library would try for minutes
                socket.create_connection((host, int(port)), _TIMEOUT).close()
            # fsspec drops in a forked child what it keeps, and this library then waits for threads that are not there.
            return HdfsFileSystem(host=host, port=int(port) if port else None, skip_instance_cache=True), "/"
        if extra == "s3":
            options["config_kwargs"] = {
                "max_pool_connections": 64, "connect_timeout": _TIMEOUT, "read_timeout": _TIMEOUT,
                "retries": {"total_max_attempts": 1},
            }  # fmt: skip
        storage, _ = fsspec.core.url_to_fs(url, **options)
        if extra == "s3":
            storage.retries = 1  # they are counted here, as for all
        return storage, ""
    except ImportError as error:
        raise MissingExtraError(url, extra) from error
    except (OSError, ValueError) as error:
        raise UnavailableError(f"cannot reach {url}: {_cause(error)}") from error
    except Exception as error:
        raise ReadError(f"cannot open {url}: {_cause(error)}") from error


def _tried(ask: Callable[[], _Found], shown: object) -> _Found:
    """Return what a call returns, tried again while the storage fails.

    Raises:
        FileNotFoundError, NotADirectoryError: as the call raises them.
        NotPermittedError: the credentials are none, or do not suffice.
        UnavailableError: nobody answers.
        ReadError: it fails each time.
    """
    for number in range(_TRIES):
        try:
            return ask()
        except (FileNotFoundError, NotADirectoryError, MqtoolError):
            raise
        except Exception as error:
            if _is_refusal(error):
                raise NotPermittedError(
                    f"no permission to read {shown} with these credentials: {_cause(error)}"
                ) from error
            if number == _TRIES - 1:
                _give_up(error, shown)
        time.sleep(_FIRST_WAIT * 2**number)
    raise AssertionError


def _give_up(error: Exception, shown: object) -> NoReturn:
    if any(word in type(error).__name__ for word in ("EndpointConnection", "ConnectTimeout", "ConnectorError")):
        raise UnavailableError(f"cannot reach {shown}: {_cause(error)}") from error
    raise ReadError(f"cannot read {shown} after {_TRIES} attempts: {_cause(error)}") from error


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, PermissionError) or "Credential" in type(error).__name__


def _cause(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _entry_of(key: str, info: dict[str, Any]) -> ListedFile:
    when = next((_time_ns(info[name]) for name in _TIMES if info.get(name)), 0)
    stamp = next((str(info[name]).strip('"') for name in _STAMPS if info.get(name)), str(when))
    # Consoles and programs that copy mark a folder by an empty object whose name ends with a slash.
    is_folder = info.get("type") == "directory" or str(info.get("name")).endswith("/")
    return ListedFile(key.rstrip("/").rpartition("/")[2], int(info.get("size") or 0), when, stamp, is_folder)


def _time_ns(value: Any) -> int:
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = datetime.datetime.fromisoformat(value)
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1e9)
    if isinstance(value, int | float):
        return int(value * (1_000_000 if value > 1 << 33 else 1_000_000_000))  # milliseconds, as HDFS has them
    return 0


def _status(entry: ListedFile) -> os.stat_result:
    mode = (stat.S_IFDIR | 0o555) if entry.is_folder else (stat.S_IFREG | 0o444)
    seconds = entry.time_ns // 1_000_000_000
    return os.stat_result(
        (mode, 0, 0, 1, 0, 0, entry.size, seconds, seconds, seconds),
        {
            "st_mtime": entry.time_ns / 1e9, "st_mtime_ns": entry.time_ns, "st_blocks": -(-entry.size // 512),
            "st_blksize": 1 << 20,
        },
    )  # fmt: skip


def forget_storages() -> None:
    """Have every storage opened and listed again."""
    _TREES.clear()


def _renew_lock() -> None:
    """Make the lock again in a child. What its parent opened stays: libraries wait in vain where they release it."""
    global _LOCK
    _LOCK = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
