"""Walks over a log on disk: every message in an address range, and on behind any damage."""

import ctypes
import itertools
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mqtool.engine.store.commit_log import STEP, CommitLog, Gap, heads_in
from mqtool.engine.store.file_queue import segment_name
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.mapping import map_file
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import StoreChangedError
from mqtool.formats import kernels as plain
from mqtool.formats import scan
from tests import builders
from tests.builders import Draft
from tests.golden import copy_of, manifest

SEGMENT = 2048

drafts = st.lists(
    st.builds(
        Draft,
        topic=st.sampled_from(["TopicTest", "OrderEvents"]),
        body=st.binary(max_size=200) | st.sampled_from([28, 156, 284]).map(bytes),  # records of a power of two
    ),
    min_size=1,
    max_size=30,
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A new folder at each turn."""
    home = tmp_path_factory.mktemp("logs")
    return (home / str(number) for number in itertools.count())


def write_log(folder: Path, pieces: list[Any], start_offset: int = 0) -> CommitLog:
    raw = b"".join(piece[1] if isinstance(piece, tuple) else piece.record for piece in pieces)
    builders.write_files(folder, raw, SEGMENT, start_offset)
    return CommitLog([folder], SEGMENT)


def positions(pieces: list[Any]) -> list[int]:
    return [piece.physical_offset for piece in pieces if not isinstance(piece, tuple)]


def walked(log: CommitLog, start: int = 0, stop: int = 1 << 62) -> tuple[list[int], list[Gap]]:
    """Return the positions of the sound messages of an address range, and the gaps."""
    found, gaps = [], []
    for piece in log.tables(start, stop, plain):
        if isinstance(piece, Gap):
            gaps.append(piece)
        else:
            found += piece.where(piece.faults == 0).column("position").tolist()
    return found, gaps


@given(drafts, st.data())
def test_a_range_of_addresses_has_the_messages_that_begin_in_it(
    folders: Iterator[Path], drawn: list[Draft], data: st.DataObject
) -> None:
    base = data.draw(st.sampled_from([0, SEGMENT * 5]))
    pieces = list(builders.lay_out(drawn, SEGMENT, base))
    log = write_log(next(folders), pieces, base)
    edges = sorted(data.draw(st.lists(st.integers(base, log.end_offset), min_size=2, max_size=2)))

    found, gaps = walked(log, *edges)

    assert found == [position for position in positions(pieces) if edges[0] <= position < edges[1]]
    assert all(gap.stop is scan.Stop.MAGIC for gap in gaps)  # the unused end
    assert all(gap.start_offset >= positions(pieces)[-1] for gap in gaps)


@given(drafts, st.integers(1, 7), st.data())
def test_a_walk_gives_no_more_messages_at_once_than_it_is_asked_for(
    folders: Iterator[Path], drawn: list[Draft], limit: int, data: st.DataObject
) -> None:
    pieces = list(builders.lay_out(drawn, SEGMENT))
    log = write_log(next(folders), pieces)
    segment = data.draw(st.sampled_from(log.segments))

    tables = [
        piece for piece in log.walk(segment, 0, segment.size, plain, limit) if isinstance(piece, scan.MessageTable)
    ]

    assert all(len(table) <= limit for table in tables)
    inside = [position for position in positions(pieces) if segment.start_offset <= position < segment.end_offset]
    assert [position for table in tables for position in table.column("position").tolist()] == inside


damage = (
    st.binary(min_size=1, max_size=16)
    | builders.odd_sizes.map(lambda size: size.to_bytes(8, "big")[4:])
    | st.sampled_from([128, 256, 384, 512, 768, 1024]).map(lambda size: size.to_bytes(4, "big"))
)


@given(drafts, damage, st.data())
@example([Draft(body=bytes(156))] * 8, (768).to_bytes(4, "big"), None)
def test_damage_hides_no_message_that_it_does_not_touch(
    folders: Iterator[Path], drawn: list[Draft], written: bytes, data: st.DataObject | None
) -> None:
    pieces = list(builders.lay_out(drawn, SEGMENT))
    log = write_log(next(folders), pieces)
    stored = {piece.physical_offset: piece for piece in pieces if not isinstance(piece, tuple)}
    victim = data.draw(st.sampled_from(sorted(stored))) if data else sorted(stored)[2]
    at = victim + (data.draw(st.sampled_from([0, 4, 36, 84]) | st.integers(0, 90)) if data else 0)
    segment = log.segment_at(at)
    assert segment is not None
    with segment.path.open("r+b") as file:
        file.seek(at - segment.start_offset)
        file.write(written[: segment.end_offset - at])

    found, gaps = walked(log)

    ends = at + len(written)
    untouched = [
        position for position, piece in stored.items() if position + len(piece.record) <= at or position >= ends
    ]
    assert set(untouched) <= set(found)
    assert found == sorted(set(found))
    for gap in gaps:
        assert not any(gap.start_offset <= position < gap.segment.start_offset + gap.end for position in untouched)


def test_a_record_that_claims_its_neighbours_does_not_hide_them(folders: Iterator[Path]) -> None:
    # Eight records of 256 bytes; the third says that it has 768.
    pieces = list(builders.lay_out([Draft(body=bytes(156))] * 8, SEGMENT * 2))
    assert positions(pieces)[1] == 256
    log = write_log(next(folders), pieces)
    with log.segments[0].path.open("r+b") as file:
        file.seek(512)
        file.write((768).to_bytes(4, "big"))

    found, gaps = walked(log)

    assert [position // 256 for position in found] == [0, 1, 3, 4, 5, 6, 7]
    assert [(gap.start, gap.end, gap.stop) for gap in gaps if gap.start < 2048] == [(512, 768, scan.Stop.SIZE)]


def test_a_gap_begins_with_the_record_that_misled_the_walk(folders: Iterator[Path]) -> None:
    # It says that it has 200 bytes, and the walk loses its way in its body.
    pieces = list(builders.lay_out([Draft(body=bytes(156))] * 7, SEGMENT))
    log = write_log(next(folders), pieces)
    with log.segments[0].path.open("r+b") as file:
        file.seek(512)
        file.write((200).to_bytes(4, "big"))

    found, gaps = walked(log)

    assert [position // 256 for position in found] == [0, 1, 3, 4, 5, 6]
    assert (gaps[0].start, gaps[0].end) == (512, 768)


@pytest.mark.parametrize("reach", ["the blank record", "the end"])
def test_a_record_that_claims_the_rest_of_its_segment_does_not_hide_it(folders: Iterator[Path], reach: str) -> None:
    pieces = list(builders.lay_out([Draft(body=bytes(156))] * 10, SEGMENT))
    (blank,) = [piece[0] for piece in pieces if isinstance(piece, tuple)]
    log = write_log(next(folders), pieces)
    with log.segments[0].path.open("r+b") as file:
        file.seek(256)
        file.write((blank - 256 if reach == "the blank record" else SEGMENT - 256).to_bytes(4, "big"))

    found, gaps = walked(log)

    assert set(positions(pieces)) - set(found) == {256}
    assert [gap.start_offset for gap in gaps][:1] == [256]


def test_many_records_that_mislead_are_walked_in_reasonable_time(folders: Iterator[Path]) -> None:
    # Every second of 2000 claims the next.
    size = 128
    raw = bytearray()
    for number in range(2000):
        record = bytearray(builders.record(number * size, body=bytes(28)))
        assert len(record) == size
        if number % 2 == 0:
            record[:4] = (2 * size).to_bytes(4, "big")
        raw += record
    folder = next(folders)
    builders.write_files(folder, bytes(raw), 1 << 20)

    found, gaps = walked(CommitLog([folder], 1 << 20))

    assert found == list(range(size, 2000 * size, 2 * size))
    assert len(gaps) >= 1000


@given(st.binary(max_size=600), st.sampled_from([scan.BARE, scan.DLEDGER]))
def test_any_bytes_can_be_walked(folders: Iterator[Path], raw: bytes, envelope: scan.Envelope) -> None:
    folder = next(folders)
    builders.write_files(folder, raw or b"\0", 256)
    log = CommitLog([folder], 256)
    log.envelope = envelope

    _, gaps = walked(log)

    assert len(gaps) <= len(raw) + 1


def test_messages_at_some_addresses_are_gathered_and_wrong_addresses_left_out(folders: Iterator[Path]) -> None:

    pieces = list(builders.lay_out([Draft(body=bytes(n * 10)) for n in range(30)], SEGMENT))
    log = write_log(next(folders), pieces)
    all_positions = positions(pieces)
    asked = [-1, *all_positions[::3], all_positions[0] + 1, all_positions[-1] + 1, log.end_offset, 1 << 60]

    tables = list(log.tables_at(np.array(asked), plain))

    assert [offset for table in tables for offset in table.column("position").tolist()] == all_positions[::3]


def test_a_segment_in_the_middle_that_goes_while_it_is_read_is_no_retention(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    segments = sorted((store / "commitlog").iterdir())
    reader = StoreReader(store)
    expected = len(reader.commit_log.segments)

    segments[2].unlink()

    assert expected == 5
    with pytest.raises(StoreChangedError, match=segments[2].name):
        list(reader.messages())


def test_what_retention_takes_while_a_log_is_read_is_left_out_and_told(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    segments = sorted((store / "commitlog").iterdir())
    reader = StoreReader(store)
    messages = reader.messages()
    first = next(messages)

    for path in segments[:3]:
        path.unlink()
    rest = [message.physical_offset for message in messages]

    known = [one["phy"] for one in manifest("mixed-533-clean")["messages"]]
    assert [first.physical_offset, *rest] == [at for at in known if at < 65536 or at >= 3 * 65536]
    assert sum("was deleted by retention" in remark for remark in reader.remarks) == 2


def cached(path: Path) -> int:
    """Return how many bytes of a file the system holds in memory."""
    size = path.stat().st_size
    with path.open("rb") as file:
        bytes_of_file = map_file(file.fileno(), size)
    pages = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
    place = ctypes.c_void_p(bytes_of_file.ctypes.data)
    assert ctypes.CDLL(None).mincore(place, ctypes.c_size_t(size), pages) == 0
    return mmap.PAGESIZE * int((np.frombuffer(pages, np.uint8) & 1).sum())


def test_heads_are_found_between_holes_and_no_hole_is_looked_at(tmp_path: Path) -> None:
    page = 4096
    heads = [0, 300 * page - 2, (256 << 20) - 1, 512 << 20, (1 << 30) - 5 * page]  # the first bytes of two lie in holes
    path = tmp_path / segment_name(0)
    with path.open("wb") as file:
        file.truncate(1 << 30)
        for at in heads:
            whole = builders.record(at, body=b"body")
            zeroes = -at % page if 0 < -at % page < 3 else 0
            assert not any(whole[:zeroes])
            file.seek(at + zeroes)
            file.write(whole[zeroes:])
    file_size = path.stat().st_size
    found = list(heads_in(MappedFile(path, 0, file_size), 0, file_size))

    assert found == heads
    assert cached(path) < len(heads) * 2 * STEP
