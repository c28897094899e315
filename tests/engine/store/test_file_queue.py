"""Files named by their start address, seen as one long address space: gaps, strays and sizes that nobody tells."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.store.file_queue import FileQueue, Stray, is_segment_name, segment_name
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import NotFoundError
from tests.golden import GOLDEN_NAMES, golden_store, manifest


def make(folder: Path, segments: dict[int, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for start, content in segments.items():
        (folder / f"{start:020}").write_bytes(content)
    return folder


def test_segments_are_one_address_space(tmp_path: Path) -> None:
    queue = FileQueue([make(tmp_path / "log", {8: b"abcd", 4: b"ABCD", 12: b"1234"})])

    assert [segment.start_offset for segment in queue.segments] == [4, 8, 12]
    assert (queue.min_offset, queue.end_offset, queue.total_size) == (4, 16, 12)
    assert [queue.read(offset, 3) for offset in (3, 4, 6, 8, 15, 16)] == [b"", b"ABC", b"CD", b"abc", b"4", b""]
    segment = queue.segment_at(11)
    assert segment is not None
    assert (segment.start_offset, segment.end_offset, segment.size) == (8, 12, 4)
    assert queue.segment_at(16) is None


@given(st.dictionaries(st.integers(0, 30), st.binary(max_size=3), max_size=5), st.integers(-5, 150), st.integers(0, 9))
def test_reading_takes_what_the_file_of_an_address_has(
    tmp_path_factory: pytest.TempPathFactory, files: dict[int, bytes], offset: int, size: int
) -> None:
    segments = {number * 4: content for number, content in files.items()}
    folder = make(tmp_path_factory.mktemp("log"), segments)

    queue = FileQueue([folder], 4)

    expected = [
        content[offset - start :][:size]
        for start, content in segments.items()
        if start <= offset < start + len(content)
    ]
    assert queue.read(offset, size) == (expected[0] if expected else b"")
    assert queue.total_size == sum(map(len, segments.values()))
    assert queue.end_offset == (max(segments) + len(segments[max(segments)]) if segments else 0)


def test_without_segments_there_is_nothing(tmp_path: Path) -> None:
    queue = FileQueue([tmp_path])

    assert (queue.min_offset, queue.end_offset, queue.total_size, queue.file_size) == (0, 0, 0, 0)
    assert queue.read(0, 9) == b""
    assert queue.segment_at(0) is None


def test_what_is_no_segment_is_a_stray(tmp_path: Path) -> None:
    folder = make(tmp_path / "log", {0: b"1234"})
    (folder / "00000000000000000004.swp").write_bytes(b"123")
    (folder / "4").touch()
    (folder / "99999999999999999999").write_bytes(b"beyond what an address can be")
    (folder / f"{8:020}").mkdir()

    queue = FileQueue([folder])

    assert [segment.start_offset for segment in queue.segments] == [0]
    assert sorted(queue.strays, key=lambda stray: stray.path.name) == [
        Stray(folder / f"{4:020}.swp", 3, False),
        Stray(folder / f"{8:020}", 0, True),
        Stray(folder / "4", 0, False),
        Stray(folder / ("9" * 20), 29, False),
    ]


@pytest.mark.parametrize(
    ("name", "is_segment"),
    [
        ("0" * 20, True),
        (f"{(1 << 63) - 1:020}", True),
        (f"{1 << 63:020}", False),
        ("9" * 20, False),
        ("0" * 19, False),
        ("0" * 21, False),
        ("0" * 19 + "a", False),
        ("٠" * 20, False),
        ("-" + "0" * 19, False),
        ("+" + "0" * 19, False),
        ("", False),
    ],
)
def test_a_segment_is_named_by_an_address_of_twenty_digits(name: str, is_segment: bool) -> None:
    assert is_segment_name(name) == is_segment


@given(st.integers(0, (1 << 63) - 1))
def test_the_name_of_a_segment_is_its_address(start: int) -> None:
    assert int(segment_name(start)) == start
    assert is_segment_name(segment_name(start))


def test_a_link_that_leads_nowhere_is_a_stray(tmp_path: Path) -> None:
    folder = make(tmp_path / "log", {0: b"1234"})
    (folder / f"{4:020}").symlink_to(tmp_path / "gone")

    queue = FileQueue([folder])

    assert [segment.start_offset for segment in queue.segments] == [0]
    assert [stray.path.name for stray in queue.strays] == [f"{4:020}"]


def test_a_link_to_a_segment_is_that_segment(tmp_path: Path) -> None:
    make(tmp_path / "elsewhere", {4: b"abcd"})
    folder = make(tmp_path / "log", {0: b"1234"})
    (folder / f"{4:020}").symlink_to(tmp_path / "elsewhere" / f"{4:020}")

    assert FileQueue([folder]).read(5, 9) == b"bcd"


def test_several_folders_are_one_queue(tmp_path: Path) -> None:
    first = make(tmp_path / "a", {0: b"1234", 8: b"abcd"})
    second = make(tmp_path / "b", {4: b"5678"})

    queue = FileQueue([first, second])

    assert [queue.read(offset, 4) for offset in (0, 4, 8)] == [b"1234", b"5678", b"abcd"]


def test_of_a_single_file_nothing_else_is_looked_at(tmp_path: Path) -> None:
    folder = make(tmp_path / "log", {0: b"1234", 4: b"5678"})
    (folder / "stray").touch()

    queue = FileQueue([folder], only=folder / f"{4:020}")

    assert (queue.min_offset, queue.end_offset, queue.strays) == (4, 8, [])


def test_a_folder_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        FileQueue([tmp_path / "gone"])


@pytest.mark.parametrize(
    ("sizes", "size"),
    [
        ({}, 0),
        ({0: 100}, 100),
        ({300: 100}, 100),
        ({0: 100, 100: 100, 200: 100}, 100),
        ({0: 100, 100: 70}, 100),  # the last was cut
        ({0: 30, 100: 100, 200: 100}, 100),  # the first was cut
        ({0: 100, 100: 100, 300: 100, 400: 100}, 100),  # one is missing
        ({0: 100, 200: 100}, 100),  # the one between them is missing
        ({0: 100, 200: 100, 400: 1}, 100),  # so are others, and the last was cut
        ({0: 8192, 16384: 5000}, 8192),  # one is missing, and the last was cut
        ({0: 8192, 16384: 4096, 40960: 5000}, 8192),
        ({0: 4096, 8192: 2048, 16384: 3000}, 8192),  # all were cut
        ({0: 100, 100: 100, 200: 5000}, 100),  # the last was extended
        ({0: 70, 100: 70, 200: 70, 270: 100}, 100),  # cut, all but one
        ({0: 100, 150: 100, 200: 100}, 100),  # one is renamed
        ({0: 100, 100: 0}, 100),
        ({0: 0}, 0),
    ],
)
def test_the_size_of_files_is_what_most_names_are_apart(sizes: dict[int, int], size: int, tmp_path: Path) -> None:
    folder = make(tmp_path / "log", {start: bytes(length) for start, length in sizes.items()})

    queue = FileQueue([folder])

    assert queue.file_size == size
    assert queue.inferred


def test_a_size_that_is_told_is_taken(tmp_path: Path) -> None:
    queue = FileQueue([make(tmp_path / "log", {0: bytes(100)})], 4096)

    assert (queue.file_size, queue.inferred) == (4096, False)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_sizes_of_golden_files_are_those_of_the_manifest(name: str) -> None:
    store, config = StoreReader(golden_store(name)), manifest(name)["config"]

    assert store.commit_log.file_size == config["mappedFileSizeCommitLog"]
    assert {queue.file_size for queue in store.consume_queues.values()} <= {config["mappedFileSizeConsumeQueue"]}
    assert {queue.file_size for queue in store.batch_consume_queues.values()} <= {
        config.get("mapperFileSizeBatchConsumeQueue")
    }
    assert {queue.file_size for queue in store.consume_queue_exts.values()} <= {
        config.get("mappedFileSizeConsumeQueueExt")
    }
    if store.timer_log:
        assert store.timer_log.file_size == config["mappedFileSizeTimerLog"]


def test_looking_at_a_folder_opens_no_file(tmp_path: Path) -> None:
    folder = make(tmp_path / "log", {0: b"1234"})
    os.utime(folder / f"{0:020}", ns=(0, 0))

    FileQueue([folder])

    assert (folder / f"{0:020}").stat().st_atime_ns == 0


def test_a_segment_is_found_while_older_ones_are_let_go(tmp_path: Path) -> None:
    for number in range(1500):
        (tmp_path / segment_name(number * 8)).write_bytes(bytes(8))
    queue = FileQueue([tmp_path])
    last, found, is_over = queue.segments[-1], set(), threading.Event()

    def look() -> None:
        while not is_over.is_set():
            found.add(queue.segment_at(last.start_offset))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as pool:
            looking = pool.submit(look)
            try:
                for segment in queue.segments[:-1]:
                    segment.path.unlink()
                    queue.let_go(segment)
            finally:
                is_over.set()
            looking.result()
    finally:
        sys.setswitchinterval(interval)

    assert found == {last}


def test_all_segments_are_told_that_went_by_retention(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / segment_name(number * 8)).write_bytes(bytes(8))
    queue = FileQueue([tmp_path])
    first, second, _ = queue.segments

    for segment in (first, second):
        segment.path.unlink()
    queue.let_go(second)
    queue.let_go(first)

    assert [remark.split()[0] for remark in queue.remarks] == [str(first.path), str(second.path)]
