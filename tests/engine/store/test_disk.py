"""Changes to files: what each call does, and in which words it fails."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mqtool.engine.store.disk import CHUNK, CrossDeviceError, Disk, chunks, scraps
from mqtool.errors import MqtoolError, NotPermittedError, Status, WriteError
from tests.damage import snapshot


def test_a_file_is_made_of_zeros_and_takes_no_space(tmp_path: Path) -> None:
    Disk().create(tmp_path / "file", 10 << 20)

    status = (tmp_path / "file").stat()
    assert (status.st_size, status.st_blocks) == (10 << 20, 0)
    assert not any((tmp_path / "file").read_bytes())


def fail_once(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """Have the next call of the system of that name fail, and those that follow go well."""
    real = getattr(os, name)

    def fail(*_: object) -> None:
        monkeypatch.setattr(os, name, real)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, name, fail)


def test_a_file_that_could_not_be_made_is_not_there_and_can_be_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(monkeypatch, "ftruncate", errno.ENOSPC)

    with pytest.raises(WriteError, match="no space left"):
        Disk().create(tmp_path / "file", 10)

    assert not list(tmp_path.iterdir())
    Disk().create(tmp_path / "file", 10)
    assert (tmp_path / "file").stat().st_size == 10


def test_a_write_changes_its_bytes_and_may_make_the_file_longer(tmp_path: Path) -> None:
    disk, path = Disk(), tmp_path / "file"
    disk.create(path, 10)

    disk.write(path, 2, b"abc")
    disk.write(path, 12, b"end")

    assert path.read_bytes() == b"\0\0abc\0\0\0\0\0\0\0end"


def test_many_writes_are_made_one_after_another(tmp_path: Path) -> None:
    disk, path = Disk(), tmp_path / "file"
    disk.create(path, 10)

    disk.write_many(path, iter([(2, b"abc"), (3, b"XY"), (12, b"end")]))

    assert path.read_bytes() == b"\0\0aXY\0\0\0\0\0\0\0end"
    with pytest.raises(WriteError):
        disk.write_many(tmp_path / "none", [(0, b"x")])


@pytest.mark.parametrize("has_holes", [True, False])
def test_a_stretch_that_is_cleared_is_zeros_with_or_without_holes(
    has_holes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (3 << 20))
    before = path.stat().st_blocks
    if not has_holes:
        monkeypatch.setattr("mqtool.engine.store.disk._FALLOCATE", lambda *_: -1)

    Disk().clear(path, 1000, 2 << 20)

    assert path.read_bytes() == b"x" * 1000 + bytes(2 << 20) + b"x" * ((1 << 20) - 1000)
    assert has_holes == (path.stat().st_blocks < before - 4000)


@pytest.mark.parametrize("can_erase", [True, False])
def test_a_stretch_that_is_erased_is_zeros_and_keeps_its_room(
    can_erase: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (3 << 20))
    before = path.stat().st_blocks
    if not can_erase:
        monkeypatch.setattr("mqtool.engine.store.disk._FALLOCATE", lambda *_: -1)

    Disk().erase(path, 1000, 2 << 20)

    assert path.read_bytes() == b"x" * 1000 + bytes(2 << 20) + b"x" * ((1 << 20) - 1000)
    assert path.stat().st_blocks >= before


def test_a_file_becomes_shorter_or_longer(tmp_path: Path) -> None:
    disk, path = Disk(), tmp_path / "file"
    path.write_bytes(b"abcdef")

    disk.truncate(path, 3)
    disk.truncate(path, 5)

    assert path.read_bytes() == b"abc\0\0"


def test_names_come_and_go(tmp_path: Path) -> None:
    disk = Disk()
    disk.make_folder(tmp_path / "one")
    disk.create(tmp_path / "one" / "file")
    disk.rename(tmp_path / "one", tmp_path / "two")
    disk.set_times(tmp_path / "two" / "file", (5, 123456789))
    disk.sync(tmp_path / "two" / "file")
    disk.sync_folder(tmp_path)
    assert (tmp_path / "two" / "file").stat().st_mtime_ns == 123456789

    disk.remove(tmp_path / "two" / "file")
    disk.remove_folder(tmp_path / "two")

    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten_by_a_name(tmp_path: Path) -> None:
    disk = Disk()
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)

    changes: list[Callable[[], None]] = [
        lambda: disk.create(tmp_path / "two"),
        lambda: disk.rename(tmp_path / "one", tmp_path / "two"),
        lambda: disk.make_folder(tmp_path / "two"),
    ]
    for change in changes:
        with pytest.raises(WriteError, match=r"cannot change .*two: File exists"):
            change()

    assert (tmp_path / "two").read_text() == "two"


def test_what_is_not_there_cannot_be_changed(tmp_path: Path) -> None:
    disk, path = Disk(), tmp_path / "gone"

    changes: list[Callable[[], None]] = [
        lambda: disk.write(path, 0, b"x"),
        lambda: disk.truncate(path, 0),
        lambda: disk.remove(path),
        lambda: disk.remove_folder(path),
        lambda: disk.sync(path),
        lambda: disk.rename(path, tmp_path / "new"),
    ]
    for change in changes:
        with pytest.raises(WriteError, match="No such file"):
            change()


@pytest.mark.parametrize(
    ("number", "kind", "status", "said"),
    [
        (errno.ENOSPC, WriteError, Status.IO_ERROR, "no space left for .*file: free some space there"),
        (errno.EDQUOT, WriteError, Status.IO_ERROR, "no space left for .*file: free some space there"),
        (errno.EIO, WriteError, Status.IO_ERROR, "cannot change .*file: Input/output error"),
        (errno.EROFS, NotPermittedError, Status.NOT_PERMITTED, "file is on a read-only file system"),
        (errno.EACCES, NotPermittedError, Status.NOT_PERMITTED, "no permission to change"),
        (errno.EPERM, NotPermittedError, Status.NOT_PERMITTED, "no permission to change"),
        (errno.EXDEV, CrossDeviceError, Status.IO_ERROR, "another file system"),
    ],
)
def test_what_the_system_says_becomes_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[MqtoolError], status: Status, said: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "pwrite", fail)

    with pytest.raises(kind, match=said) as caught:
        Disk().write(tmp_path / "file", 0, b"x")

    assert caught.value.exit_code is status


def test_a_write_that_the_system_takes_in_pieces_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: plain(file, data[:3], at))
    (tmp_path / "file").touch()

    Disk().write(tmp_path / "file", 1, b"0123456789")

    assert (tmp_path / "file").read_bytes() == b"\x000123456789"


class _Apart(Disk):
    """A disk to which every folder of the first level is a file system of its own."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def rename(self, source: Path, target: Path) -> None:
        if source.relative_to(self.base).parts[0] != target.relative_to(self.base).parts[0]:
            raise CrossDeviceError("another file system")
        super().rename(source, target)


def test_a_move_to_another_file_system_copies_everything(tmp_path: Path) -> None:
    source, target = tmp_path / "one" / "tree", tmp_path / "two" / "tree"
    (source / "deep" / "empty").mkdir(parents=True)
    (tmp_path / "two").mkdir()
    (source / "deep" / "file").write_bytes(b"abc" * 1000)
    with (source / "sparse").open("wb") as file:
        file.truncate(50 << 20)
        os.pwrite(file.fileno(), b"middle", 20 << 20)
    (source / "sparse").chmod(0o640)
    os.utime(source / "deep" / "empty", ns=(1, 2))
    before = snapshot(source)

    _Apart(tmp_path).move(source, target)

    assert snapshot(target) == before
    assert (target / "sparse").stat().st_blocks * 512 < 10 << 20
    assert (target / "sparse").stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.rglob("*") if "mqtool" in path.name] == []
    assert not source.exists()


@pytest.mark.parametrize("name", ["file", "n" * 255, "\u00e4" * 127])
def test_what_an_earlier_move_left_behind_does_not_hinder(tmp_path: Path, name: str) -> None:
    source, target = tmp_path / "one" / name, tmp_path / "two" / name
    for path, text in ((source, "whole"), (scraps(target)[0], "hal"), (scraps(source)[1], "old")):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    _Apart(tmp_path).move(source, target)

    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [name]
    assert target.read_text() == "whole"


def test_a_link_is_removed_and_not_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "file").touch()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "far")

    Disk().remove_tree(tmp_path / "tree")

    assert (tmp_path / "far" / "file").exists()
    assert not (tmp_path / "tree").exists()


def test_holes_are_left_out_where_the_file_system_knows_them(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(8 * CHUNK)
        os.pwrite(file.fileno(), b"x" * (CHUNK + 10), 3 * CHUNK)

    found = list(chunks(path, 0, 8 * CHUNK))

    assert sum(len(data) for _, data in found) < 3 * CHUNK
    assert max(len(data) for _, data in found) <= CHUNK
    assert b"".join(data for _, data in found).count(b"x") == CHUNK + 10
    assert list(chunks(path, 3 * CHUNK + 5, 3 * CHUNK + 7)) == [(3 * CHUNK + 5, b"xx")]
    assert list(chunks(path, 9 * CHUNK, 10 * CHUNK)) == []


if os.geteuid() == 0:  # only root gives files away

    def test_what_root_makes_belongs_to_the_owner_of_its_folder(tmp_path: Path) -> None:
        os.chown(tmp_path, 1234, 2345)

        Disk().make_folder(tmp_path / "folder")
        Disk().create(tmp_path / "folder" / "file")

        status = (tmp_path / "folder" / "file").stat()
        assert (status.st_uid, status.st_gid) == (1234, 2345)
