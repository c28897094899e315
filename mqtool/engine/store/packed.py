"""Compressed copies of stores: segments as ``.gz`` and ``.zst`` files, ``.tar``, ``.tar.gz`` and ``.tar.zst`` archives.

A ``PackedPath`` is a compressed segment, an ``ArchivePath`` a file or folder in one. Both act as a ``RemotePath``,
so readers need no special cases. Compressed data is read as a stream, which starts from the beginning again
if earlier data is needed than what is kept. A ``.tar`` is read in place.

Cost: linear in the contents, for each time that reading starts from the beginning.
"""

from __future__ import annotations

import bisect
import collections
import errno
import io
import os
import re
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from mqtool.engine.store.disk import write_all, writing
from mqtool.engine.store.file_kinds import COMMIT_LOG, KINDS, STORE_NAMES
from mqtool.engine.store.mapping import Bytes, map_file, reading
from mqtool.engine.store.remote import Content, ListedFile, RemotePath, place, stamp_of
from mqtool.errors import BadDataError, MqtoolError, NotFoundError, UsageError
from mqtool.late import np

if TYPE_CHECKING:
    import tarfile

READ_PACKED = "only info, dump, stats, verify (of the log) and find --scan read compressed copies"
_SEGMENT = re.compile(r"[0-9]{20}")
_PACKED = re.compile(r"([0-9]{20})\.(gz|zst)")
_ARCHIVE = re.compile(r".\.(tar|tar\.gz|tgz|tar\.zst|tzst)$", re.IGNORECASE)
_OTHER_ADDRESSES = {kind.name for kind in KINDS if kind.has_addresses and kind is not COMMIT_LOG}
_NO_LOG = _OTHER_ADDRESSES | {"compactionLog", "compactionCq"}
"""Folders with files named by addresses that are not of the log."""

_PIECE = 1 << 20
_REMOTE_PIECE = 4 << 20
_AHEAD = 4
_LEAST_GZ = 18
"""Bytes of a ``.gz`` file: a shorter one has no length."""
_GZ_PIECE = 16 << 10
_ZST_PIECE = 2 << 10
"""Compressed bytes that are unpacked at once: four of them may yield 128 KiB of zeros."""
_LARGEST_WINDOW = 1 << 31
_BLOCK = 512
_PAGE = 64 << 10
_LARGEST_HEAD = 16 << 20
"""Most bytes of an archive that are read at once: the name and other metadata of a file."""
_OF_ANOTHER_VOLUME = b"M"
MAX_KEPT = 2 << 30
"""Bytes that are kept of a streamed archive: queues, index, tables and everything else but the log."""
_ALWAYS = 4 << 30
_PASSES = 8
"""How many times an archive is read at most, unless it is small."""


def plain_name(name: str) -> str:
    """Return the name of a segment without the suffix of a compressed one."""
    match = _PACKED.fullmatch(name)
    return match[1] if match else name


def is_packed_name(name: str) -> bool:
    """Return whether a file of this name is a compressed segment."""
    return _PACKED.fullmatch(name) is not None


def is_archive(path: Path) -> bool:
    """Return whether a path has the name of an archive, and is a file."""
    return _ARCHIVE.search(path.name) is not None and path.is_file()


# Streams


def _chunks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file from its beginning; pieces of a remote one are fetched ahead."""
    if not isinstance(path, RemotePath):
        with reading(path), path.open("rb", buffering=0) as file:
            while chunk := file.read(_PIECE):
                yield chunk
        return
    remote = path.opened()
    if remote.onward:
        for at in range(0, remote.size, _PIECE):
            yield remote.fetch(at, min(_PIECE, remote.size - at))
        return

    def piece(at: int) -> bytes:
        data = remote.fetch(at, min(_REMOTE_PIECE, remote.size - at))
        if not remote.is_checked:
            remote.check()
        return data

    waiting: collections.deque[Future[bytes]] = collections.deque()
    with ThreadPoolExecutor(_AHEAD, "unpack") as pool:
        for at in range(0, remote.size, _REMOTE_PIECE):
            waiting.append(pool.submit(piece, at))
            if len(waiting) == _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _pieces(path: Path, size: int) -> Iterator[bytes]:
    """Yield the same in pieces to unpack at once; what is left of one is copied where one of many parts ends."""
    for chunk in _chunks(path):
        for at in range(0, len(chunk), size):
            yield chunk[at : at + size]


def _unpacked(path: Path) -> Iterator[bytes]:
    """Yield the unpacked contents of a file, in pieces of a bounded size.

    Raises:
        BadDataError: it is damaged or truncated.
    """
    name = path.name.lower()
    if name.endswith((".gz", ".tgz")):
        yield from _gunzipped(path)
    elif name.endswith((".zst", ".tzst")):
        yield from _unzstd(path)
    else:
        yield from _chunks(path)


def _gunzipped(path: Path) -> Iterator[bytes]:
    error_of_zlib = zlib.error  # by a name of its own: modules are emptied before what a program has read in part ends
    machine = None
    is_first = True
    try:
        for rest in _pieces(path, _GZ_PIECE):
            while rest:
                if machine is None:
                    if not is_first and not rest.strip(b"\0"):
                        break  # a file may be padded with zeros
                    machine, is_first = zlib.decompressobj(31), False
                yield machine.decompress(rest, _PIECE)
                rest = machine.unconsumed_tail
                if machine.eof:
                    rest, machine = machine.unused_data, None
    except error_of_zlib as error:
        raise _damaged(path) from error
    if machine is not None or is_first:
        raise _torn(path)


def _unzstd(path: Path) -> Iterator[bytes]:
    from zstandard import ZstdDecompressor, ZstdError

    machine = None
    is_first = True
    try:
        for rest in _pieces(path, _ZST_PIECE):
            while rest:
                if machine is None:
                    machine = ZstdDecompressor(max_window_size=_LARGEST_WINDOW).decompressobj()
                    is_first = False
                yield machine.decompress(rest)
                rest = b""
                if machine.eof:
                    rest, machine = machine.unused_data, None
    except ZstdError as error:
        raise _damaged(path) from error
    if machine is not None or is_first:
        raise _torn(path)


def _damaged(path: Path) -> MqtoolError:
    return BadDataError(f"cannot unpack {path}: its contents are damaged; read another copy")


def _torn(path: Path) -> MqtoolError:
    return BadDataError(
        f"{path} is truncated: it ends in the middle of its contents; copy it again, or read another copy"
    )


class _UnpackedStream:
    """The unpacked contents of a file, read sequentially; ``position`` is how far it was read."""

    def __init__(self, path: Path) -> None:
        self._pieces = _unpacked(path)
        self._left = memoryview(b"")
        self.position = 0

    def read(self, size: int) -> bytes:
        """Return the next bytes, fewer at the end."""
        parts = []
        while size and self._fill():
            part = self._left[:size]
            self._left = self._left[len(part) :]
            parts.append(part)
            size -= len(part)
            self.position += len(part)
        return b"".join(parts)

    def skip_to(self, position: int) -> None:
        """Skip bytes, to the end at most."""
        while self.position < position and self._fill():
            count = min(len(self._left), position - self.position)
            self._left = self._left[count:]
            self.position += count

    def close(self) -> None:
        """Release the file."""
        self._pieces.close()  # type: ignore[attr-defined]

    def _fill(self) -> bool:
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return False
            self._left = memoryview(piece)
        return True


# Segments


class PackedPath(RemotePath):
    """A compressed segment, with the length of its contents."""

    def __str__(self) -> str:
        return _shown(self)

    @classmethod
    def of(cls, path: Path) -> PackedPath:
        """Return one for the path of a file."""
        packed = cls(*path.parts)
        vars(packed)["_of"] = path
        return packed

    @property
    def _path(self) -> Path:
        path: Path = vars(self).get("_of") or place(str(self))
        return path

    def entry(self) -> ListedFile:
        """Return its name and the length of its contents.

        Raises:
            BadDataError: it is damaged.
        """
        entry: ListedFile | None = vars(self).get("_entry")
        if entry is None:
            status = self._path.stat()
            stamp = stamp_of(self._path) or str(status.st_mtime_ns)
            entry = ListedFile(self.name, _content_size(self._path, status.st_size), status.st_mtime_ns, stamp, False)
            vars(self)["_entry"] = entry
        return entry

    def exists(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        """Return whether it is there."""
        return self._path.exists()

    def is_file(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        """Return whether it is a file."""
        return self._path.is_file()

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        """Return False: it is a file."""
        return False

    def opened(self, size: int | None = None) -> Content:
        """Return its contents, to be read sequentially; ``size``: its expected length."""
        return _PackedFile(self._path, self.entry().size if size is None else size)


def _content_size(path: Path, size: int) -> int:
    """Return the length of the contents of a compressed file: as it states, else counted.

    The stated length is verified when it is read to its end.
    """
    declared = _said_size(path, size)
    return declared if declared is not None else sum(map(len, _unpacked(path)))


def _said_size(path: Path, size: int) -> int | None:
    if path.name.endswith(".gz"):
        tail = _bytes_at(path, size - 4, 4) if size >= _LEAST_GZ else b""
        return int.from_bytes(tail, "little") or None
    from zstandard import ZstdError, frame_content_size

    head = _bytes_at(path, 0, min(size, 18))
    try:
        declared = frame_content_size(head)
    except ZstdError as error:
        raise (_damaged(path) if size else _torn(path)) from error
    return declared if declared > 0 else None


def _bytes_at(path: Path, at: int, size: int) -> bytes:
    if isinstance(path, RemotePath):
        return path.opened().fetch(at, size) if size else b""
    with reading(path), path.open("rb") as file:
        file.seek(at)
        return file.read(size)


class _PackedFile(Content):
    """The contents of a compressed file."""

    def __init__(self, path: Path, size: int) -> None:
        self.size = size
        self.onward = threading.RLock()
        self._path = path
        self._stream = _UnpackedStream(path)

    def fetch(self, at: int, size: int) -> bytes:
        """Return the next bytes.

        Raises:
            BadDataError: it is damaged, or longer or shorter than it states.
        """
        assert at == self._stream.position
        data = self._stream.read(size)
        is_longer = at + size == self.size and bool(self._stream.read(1))
        if len(data) < size or is_longer:
            held = f"more than {self.size:,}" if is_longer else f"{at + len(data):,}"
            raise BadDataError(
                f"{self._path} should contain {self.size:,} bytes but contains {held}: unpack it and check what it is"
            )
        return data


# Archives


class _Member(NamedTuple):
    """A file of an archive: its length, and where each range of it that is not a hole is."""

    entry: ListedFile
    stretches: tuple[tuple[int, int, int], ...]
    """Position in the file, position in the archive, length; in order."""
    kept_at: int | None
    """Its position in the file of kept bytes."""


class ArchivePath(RemotePath):
    """A file or folder in an open archive."""

    def __str__(self) -> str:
        return _shown(self)

    @property
    def tree(self) -> Any:
        """The archive."""
        return self._place()[0]

    @property
    def key(self) -> str:
        """Its name in the archive."""
        return self._place()[1]

    def _place(self) -> tuple[Archive, str]:
        text = str(self)
        above = text
        while above not in _archives:
            above = above.rpartition("/")[0]
            if not above:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text)
        return _archives[above], text[len(above) + 1 :]

    def opened(self, size: int | None = None) -> Content:  # noqa: ARG002
        """Return its contents."""
        archive, key = self._place()
        with reading(self):
            self.entry()
        return _MemberFile(archive, archive.members[key])


_archives: dict[str, Archive] = {}


def _nobody() -> None:
    return None


def opened_archive(path: Path, remarks: list[str]) -> ArchivePath:
    """List an archive and return the store in it: the only folder with a log, else parts of a store.

    Raises:
        BadDataError: it is damaged or truncated, or has a duplicate name, a link, or a name outside of itself.
        NotFoundError: it has no store.
        UsageError: it has several.
    """
    archive = Archive(path)
    _archives[str(path)] = archive
    roots = archive.roots()
    if not roots:
        raise NotFoundError(f"{path} contains no RocketMQ store")
    if len(roots) > 1:
        listed = ", ".join(root or "." for root in roots[:5])
        raise UsageError(f"{path} contains several stores ({listed}): unpack it, and give one of them")
    if roots[0]:
        remarks.append(f"using the store in {roots[0]} of {path} (inferred)")
    if archive.kept_size:
        import tempfile

        remarks.append(
            f"{path} is read as a stream: {archive.kept_size:,} bytes of it, everything but the log, are temporarily "
            f"unpacked into {tempfile.gettempdir()}"
        )
    return ArchivePath(*path.parts, *roots[0].split("/")) if roots[0] else ArchivePath(*path.parts)


class Archive:
    """The files of an archive by name, like a listing of a storage."""

    def __init__(self, path: Path) -> None:
        """Read its heads; a compressed archive is read completely, and everything but the log is kept."""
        import tarfile

        self.path = path
        self.is_stream = not path.name.lower().endswith(".tar")
        self.members: dict[str, _Member] = {}
        self.kept_size = 0
        self.onward = threading.RLock()
        self._kept = -1
        self._kept_end = 0
        self._folders: dict[str, dict[str, ListedFile]] = {"": {}}
        self._stream: _UnpackedStream | None = None
        self._reader: Callable[[], _MemberFile | None] = _nobody
        self._read_before = 0
        source = _Onward(_UnpackedStream(path)) if self.is_stream else _in_place(path)
        try:
            self._list(source)
        except (tarfile.TarError, ValueError, OverflowError) as error:  # the latter of what it says of a file
            is_torn = "unexpected end" in str(error) or "truncated" in str(error)
            raise (_torn if is_torn else _damaged)(path) from error
        finally:
            source.close()
        self.size = source.end
        if self.is_stream:
            self._check_order()

    # Listing

    def _list(self, source: _ArchiveSource) -> None:
        import tarfile

        with tarfile.open(fileobj=source, mode="r:") as tar:
            while (info := tar.next()) is not None:
                self._add(info, source)
                vars(tar)["members"].clear()  # it would keep all of them
            source.seek(tar.offset)
            mark = source.read(_BLOCK)
            if len(mark) < _BLOCK:
                raise _torn(self.path)
            if any(mark):
                raise _damaged(self.path)
            source.finish()

    def _add(self, info: tarfile.TarInfo, source: _ArchiveSource) -> None:
        parts = [part for part in info.name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise BadDataError(
                f"{self.path} contains a file with a path outside the archive ({info.name}): unpack it with care"
            )
        key = "/".join(parts)
        if info.isdir():
            self._folder(key)
            return
        if info.type == _OF_ANOTHER_VOLUME:
            raise BadDataError(
                f"{self.path} is one of several volumes, and {key} starts in the one before: unpack them"
            )
        if info.issym() or info.islnk():
            raise BadDataError(
                f"{self.path} contains a link ({info.name}): unpack it first, in a place where the link leads somewhere"
            )
        if info.size < 0:
            raise _damaged(self.path)
        if not info.isreg() or not key:
            return
        if key in self.members or key in self._folders:
            raise self._twice(key)
        stretches, at, end = [], info.offset_data, 0
        parts_there: Any = ((0, info.size),) if info.sparse is None else info.sparse
        for position, length in parts_there:
            if not length:
                continue
            if not end <= position < (end := position + length) <= info.size:
                raise _damaged(self.path)
            stretches.append((position, at, length))
            at += length
        entry = ListedFile(parts[-1], info.size, int(info.mtime * 1e9), str(info.mtime), False)
        is_kept = self.is_stream and not _is_of_log(parts)
        kept_at = self._keep(info.size, stretches, source) if is_kept else None
        self.members[key] = _Member(entry, tuple(stretches), kept_at)
        self._folder("/".join(parts[:-1]))[parts[-1]] = entry

    def _folder(self, key: str) -> dict[str, ListedFile]:
        folder, below = key, ""
        while folder not in self._folders:
            if folder in self.members:
                raise self._twice(folder)
            self._folders[folder] = {below: ListedFile(below, 0, 0, "", True)} if below else {}
            folder, _, below = folder.rpartition("/")
        if below:
            self._folders[folder][below] = ListedFile(below, 0, 0, "", True)
        return self._folders[key]

    def _twice(self, key: str) -> MqtoolError:
        return BadDataError(f"{self.path} contains {key} twice: unpack it first (tar takes the last one)")

    def _keep(self, size: int, stretches: list[tuple[int, int, int]], source: _ArchiveSource) -> int:
        """Store a file among those that are kept; zeros become holes."""
        import tempfile

        if self._kept < 0:
            from mqtool.engine.store.spool import nameless_file

            self._kept = nameless_file()
        start, self._kept_end = self._kept_end, self._kept_end + -(-size // _PAGE) * _PAGE
        with writing(Path(tempfile.gettempdir())):
            os.ftruncate(self._kept, self._kept_end)
            for position, at, length in stretches:
                source.seek(at)
                for done in range(0, length, _PAGE):
                    data = source.read(min(_PAGE, length - done))
                    if np.frombuffer(data, np.uint8).any():
                        self.kept_size += len(data)
                        if self.kept_size > MAX_KEPT:
                            raise UsageError(
                                f"{self.path} contains more than {MAX_KEPT:,} bytes besides the log, too many to "
                                "keep while it is read as a stream: unpack it first"
                            )
                        write_all(self._kept, start + position + done, memoryview(data))
        return start

    def _check_order(self) -> None:
        """Raise ``UsageError`` if reading the log in order would require reading the archive too many times."""
        at = cost = 0
        log = [member for key, member in sorted(self.members.items()) if member.kept_at is None and member.stretches]
        for member in log:
            start, end = member.stretches[0][1], member.stretches[-1][1] + member.stretches[-1][2]
            cost += end - (at if at <= start else 0)
            at = end
        self._allow(cost)

    def _allow(self, size: int) -> None:
        if size > max(_ALWAYS, _PASSES * self.size):
            raise UsageError(
                f"{self.path} does not contain the segments of the log in the order of their addresses, so it would "
                "have to be read again and again: unpack it first (tar --sort=name packs them in order)"
            )

    def roots(self) -> list[str]:
        """Return the folders with a log, or else the topmost ones with other parts of a store."""
        roots = {_root_of(key) for key in self.members if _is_of_log(key.split("/"))}
        if not roots:
            holding = [key for key, entries in self._folders.items() if not STORE_NAMES.isdisjoint(entries)]
            depths = {key: len(key.split("/")) if key else 0 for key in holding}
            least = min(depths.values(), default=0)
            roots = {key for key, depth in depths.items() if depth == least}
        return sorted(roots)

    # The interface of a tree of a storage

    def entry(self, key: str) -> ListedFile | None:
        """Return the entry of a path, None if it does not exist."""
        if key in self._folders:
            return ListedFile(key.rpartition("/")[2], 0, 0, "", True)
        member = self.members.get(key)
        return member.entry if member else None

    def children(self, key: str) -> dict[str, ListedFile] | None:
        """Return the contents of a folder, None if it does not exist."""
        return self._folders.get(key)

    def forget(self, _: str) -> None:
        """Do nothing: an archive is listed once."""

    # Bytes

    def mapped(self, member: _Member) -> Bytes | None:
        """Return the bytes of a file that is kept, or that is contiguous in an archive on this machine."""
        size = member.entry.size
        if not size:
            return np.empty(0, np.uint8)
        if member.kept_at is not None:
            return map_file(self._kept, self._kept_end)[member.kept_at : member.kept_at + size]
        if (
            self.is_stream
            or isinstance(self.path, RemotePath)
            or [stretch[2] for stretch in member.stretches] != [size]
        ):
            return None
        with reading(self.path):
            descriptor = os.open(self.path, os.O_RDONLY)
            try:
                if os.fstat(descriptor).st_size < self.size:
                    raise _torn(self.path)
                return map_file(descriptor, self.size)[member.stretches[0][1] :][:size]
            finally:
                os.close(descriptor)

    def fetch(self, member: _Member, at: int, size: int, read: Callable[[int, int], bytes]) -> bytes:
        """Return bytes of a file, with zeros in its holes."""
        data = bytearray(size)
        first = bisect.bisect_right(member.stretches, at, key=lambda stretch: stretch[0] + stretch[2])
        for number in range(first, len(member.stretches)):
            position, start, length = member.stretches[number]
            if position >= at + size:
                break
            low, high = max(at, position), min(at + size, position + length)
            data[low - at : high - at] = read(start + low - position, high - low)
        return bytes(data)

    def read_onward(self, at: int, size: int, reader: _MemberFile) -> bytes:
        """Return bytes of the stream, which is restarted if it is already past them.

        First the rest of the previously read file is kept, as it may still be in use.
        """
        with self.onward:
            before, self._reader = self._reader(), _nobody
            if before is not None and before is not reader:
                before.finish()
            self._reader = weakref.ref(reader)
            if self._stream is None or at < self._stream.position:
                if self._stream:
                    self._read_before += self._stream.position
                    self._stream.close()
                self._allow(self._read_before)
                self._stream = _UnpackedStream(self.path)
            self._stream.skip_to(at)
            data = self._stream.read(size)
        if len(data) < size:
            raise _torn(self.path)
        return data


class _MemberFile(Content):
    """A file of an archive."""

    def __init__(self, archive: Archive, member: _Member) -> None:
        self.size = member.entry.size
        self.array = archive.mapped(member)
        self.onward = archive.onward if archive.is_stream and self.array is None else None
        self.finish: Callable[[], None] = _nobody
        """Reads the rest of it; set when it is kept."""
        self._archive = archive
        self._member = member
        path = archive.path
        self._remote = path.opened() if isinstance(path, RemotePath) and not self.onward else None
        if self._remote:
            self.is_checked = self._remote.is_checked

    def check(self) -> None:
        """Raise like the archive, which is the object that may change."""
        if self._remote:
            self._remote.check()

    def fetch(self, at: int, size: int) -> bytes:
        """Return bytes of it."""
        if self.array is not None:
            return self.array[at : at + size].tobytes()
        return self._archive.fetch(self._member, at, size, self._read)

    def _read(self, at: int, size: int) -> bytes:
        if self.onward:
            return self._archive.read_onward(at, size, self)
        return self._remote.fetch(at, size) if self._remote else _bytes_at(self._archive.path, at, size)


class _ArchiveSource(io.RawIOBase):
    """An archive in the form that ``tarfile`` reads; ``end`` is its length."""

    end = 0
    _at = 0

    def tell(self) -> int:
        return self._at

    def seek(self, position: int, whence: int = 0) -> int:
        assert whence == 0
        self._at = position
        return position

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _LARGEST_HEAD:
            import tarfile

            raise tarfile.ReadError(f"a header of {size:,} bytes")
        data = self._next(size)
        self._at += len(data)
        return data

    def _next(self, size: int) -> bytes:
        """Return the next bytes, fewer at the end."""
        raise NotImplementedError

    def finish(self) -> None:
        """Read what follows the end mark."""


class _Onward(_ArchiveSource):
    """A stream that is never rewound by more than a block."""

    def __init__(self, stream: _UnpackedStream) -> None:
        self._stream = stream
        self._tail = b""

    def _next(self, size: int) -> bytes:
        done = self._stream.position
        again = self._tail[len(self._tail) - (done - self._at) :][:size] if self._at < done else b""
        self._stream.skip_to(self._at)
        data = again + self._stream.read(size - len(again))
        self._tail = (self._tail + data)[-2 * _BLOCK :] if len(data) < _BLOCK else data[-2 * _BLOCK :]
        return data

    def finish(self) -> None:
        self._stream.skip_to(1 << 62)  # a copy that is damaged after the last file is damaged
        self.end = self._stream.position

    def close(self) -> None:
        self._stream.close()
        super().close()


class _InPlace(_ArchiveSource):
    """An archive in a storage: heads are fetched separately."""

    def __init__(self, file: Content) -> None:
        self._file = file
        self.end = file.size
        self._start = 0
        self._data = b""

    def _next(self, size: int) -> bytes:
        size = max(0, min(size, self.end - self._at))
        if not self._start <= self._at <= self._at + size <= self._start + len(self._data):
            self._start = self._at
            self._data = self._file.fetch(self._at, min(max(size, _PAGE), self.end - self._at)) if size else b""
        return self._data[self._at - self._start :][:size]


def _in_place(path: Path) -> _ArchiveSource:
    return _InPlace(path.opened() if isinstance(path, RemotePath) else _LocalFile(path))


class _LocalFile(Content):
    """An ordinary file."""

    def __init__(self, path: Path) -> None:
        with reading(path):
            self.size = path.stat().st_size
        self._path = path

    def fetch(self, at: int, size: int) -> bytes:
        """Return bytes of it."""
        return _bytes_at(self._path, at, size)


def _is_of_log(parts: list[str]) -> bool:
    if parts[-2:-1] == ["index"]:  # of DLedger
        return False
    return _SEGMENT.fullmatch(plain_name(parts[-1])) is not None and _NO_LOG.isdisjoint(parts)


def _root_of(segment: str) -> str:
    """Return the folder of the store of a segment: that of the log if there is only a log."""
    folders = segment.split("/")[:-1]
    if folders and folders[-1].startswith("commitlog"):
        return "/".join(folders[:-1])
    if folders[-1:] == ["data"] and "".join(folders[-2:-1]).startswith("dledger-"):
        return "/".join(folders[:-2])
    return "/".join(folders)


def _shown(path: RemotePath) -> str:
    return RemotePath.__str__(path) if path.parts and path.parts[0].endswith(":") else PosixPath.__str__(path)
