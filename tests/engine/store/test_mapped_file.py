"""One file: reading it, mapping it, and what the system may say."""

import collections
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.repair.recover.displaced import PatchedFile
from mqtool.engine.store import mapped_file
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.mapping import read_file, reading
from mqtool.errors import NotFoundError, NotPermittedError, ReadError, Status, StoreChangedError


def file_of(path: Path, content: bytes) -> MappedFile:
    path.write_bytes(content)
    return MappedFile(path, 1000, len(content))


@given(st.binary(max_size=40), st.integers(0, 50), st.integers(0, 50))
def test_reading_and_mapping_give_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, at: int, size: int
) -> None:
    file = file_of(tmp_path_factory.mktemp("file") / "file", content)

    assert file.read(at, size) == content[at : at + size]
    assert file.map().tobytes() == file.bytes.tobytes() == content
    assert file.end_offset == 1000 + len(content)


def test_a_mapped_file_cannot_be_written_through(tmp_path: Path) -> None:
    file = file_of(tmp_path / "file", b"content")

    with pytest.raises(ValueError, match="read-only"):
        file.bytes[0] = 1


def test_a_file_that_became_shorter_is_a_store_that_changed(tmp_path: Path) -> None:
    file = file_of(tmp_path / "file", bytes(100))
    os.truncate(file.path, 50)

    assert file.read(0, 50) == bytes(50)
    with pytest.raises(StoreChangedError, match="was truncated") as caught:
        file.read(40, 20)
    assert caught.value.exit_code is Status.BUSY
    with pytest.raises(StoreChangedError):
        file.map()


def test_of_a_file_that_grew_only_what_was_there_is_read(tmp_path: Path) -> None:
    file = file_of(tmp_path / "file", b"before")
    with file.path.open("ab") as appended:
        appended.write(b"after")

    assert file.read(0, 100) == file.map().tobytes() == b"before"


def test_a_file_that_has_gone_is_not_found(tmp_path: Path) -> None:
    file = file_of(tmp_path / "file", b"content")
    file.path.unlink()

    for read in (lambda: file.read(0, 1), file.map, lambda: read_file(file.path)):
        with pytest.raises(NotFoundError, match="does not exist"):
            read()


def test_what_the_system_says_becomes_a_sentence() -> None:
    path = Path("some/file")
    for error, expected in (
        (PermissionError(13, "Permission denied"), NotPermittedError),
        (FileNotFoundError(2, "No such file"), NotFoundError),
        (OSError(5, "Input/output error"), ReadError),
    ):
        with pytest.raises(expected, match="some/file"), reading(path):
            raise error


def test_a_folder_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"cannot read .*: Is a directory"):
        read_file(tmp_path)


def test_a_small_file_has_a_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(11))

    assert len(read_file(tmp_path / "file", 11)) == 11
    with pytest.raises(ReadError, match="file is larger than 10 bytes"):
        read_file(tmp_path / "file", 10)


def test_many_mapped_files_take_no_descriptors(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    before = len(list(Path("/proc/self/fd").iterdir()))

    files = [MappedFile(path, 0, 7) for _ in range(50)]

    assert {file.bytes.tobytes() for file in files} == {b"content"}
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_more_files_than_a_process_may_map_are_mapped_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_file, "MAX_MAPPED", 5)
    monkeypatch.setattr(mapped_file, "_mapped", collections.deque())
    files = [file_of(tmp_path / f"file-{number}", bytes([number]) * 10) for number in range(20)]
    kept = files[0].bytes
    patched = PatchedFile(files[0], 10)
    patched.bytes[:] = 77  # nothing else holds this

    for _ in range(2):
        assert [file.bytes.tobytes() for file in files] == [bytes([number]) * 10 for number in range(20)]
    assert (kept.tobytes(), patched.bytes.tobytes()) == (bytes(10), bytes([77]) * 10)
    del kept, patched
    assert Path("/proc/self/maps").read_text().count(f"{tmp_path}/file-") == 5


def test_what_is_mapped_can_be_read_as_long_as_anything_refers_to_it_and_not_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)) * 100)
    maps = Path("/proc/self/maps")

    part = memoryview(MappedFile(path, 0, 10_000).bytes[50:60])
    path.unlink()

    assert bytes(part) == bytes(range(50, 60))
    assert part.readonly
    assert str(path) in maps.read_text()
    del part
    assert str(path) not in maps.read_text()
