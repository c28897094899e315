"""The index of a running broker, as a loss of power leaves it."""

import struct
from pathlib import Path

import numpy as np

from mqtool.engine.store.disk import Disk
from mqtool.engine.store.index_file import IndexFile, Shape
from mqtool.engine.store.live_index import LiveIndex
from mqtool.engine.store.queue_files import QueueFiles
from mqtool.formats import index_file as layout
from tests.judge.index import key_hash, read_index

SHAPE = Shape(50, 100)
SIZE, NOW = 200, 1_700_000_000_000


def index_at(folder: Path, shape: Shape = SHAPE) -> LiveIndex:
    return LiveIndex(folder, QueueFiles(Disk(), 6000, 6000), shape, has_tags=False)


def place_of_slot(key: bytes, slots: int) -> int:
    return 40 + 4 * (key_hash("T", key.decode()) % slots)


def test_a_file_that_follows_one_with_holes_goes_though_its_first_entry_points_to_the_first_message(
    tmp_path: Path,
) -> None:
    # Of the second file's first entry the hash came to the disk, the address did not, which is then that of the first
    # message; in the first file the last entries are missing.
    index = index_at(tmp_path / "index")
    for number in range(120):
        index.waiting.append(("T", 0, (b"key-%d" % number, None, None), number * SIZE, NOW + number))
        index.write(at_once=True)
    first, second = sorted((tmp_path / "index").iterdir())
    at = layout.HEADER_SIZE + SHAPE.slots * layout.SLOT_SIZE + layout.ENTRY_SIZE
    with first.open("r+b") as file:
        file.seek(at + 84 * layout.ENTRY_SIZE)
        file.write(bytes(10 * layout.ENTRY_SIZE))
    with second.open("r+b") as file:
        file.seek(at + layout.ENTRY.offset_of("physical_offset"))
        file.write(bytes(8))

    again = index_at(tmp_path / "index")
    again.keep_until(82 * SIZE, lambda at: NOW + at // SIZE)

    assert [*(tmp_path / "index").iterdir()] == [first]
    entries = np.fromfile(first, layout.ENTRY.dtype, offset=at)["physical_offset"]
    assert entries[:83].tolist() == [number * SIZE for number in range(83)]
    assert not entries[83:].any()
    assert IndexFile(first, first.stat().st_size, SHAPE).header.entry_count == 84
    assert [again.find("T", f"key-{number}", 0, NOW * 2, 1) for number in (0, 82, 83, 119)] == [
        [0],
        [82 * SIZE],
        [],
        [],
    ]


def test_slots_hold_numbers_of_entries_that_need_more_than_three_bytes_as_those_of_a_nearly_full_file_do(
    tmp_path: Path,
) -> None:
    shape, first = Shape(5_000_000, 20_000_000), (1 << 24) - 3
    path = tmp_path / "index" / "20231114221320000"
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(shape.file_size)
        file.write(struct.pack(">qqqqii", NOW, NOW, 0, first * SIZE, 3, first))
        for key, number in (b"old", 7), (b"negative", -5), (b"not there yet", first + 2):
            file.seek(place_of_slot(key, shape.slots))
            file.write(struct.pack(">i", number))

    index = index_at(tmp_path / "index", shape)
    keys = [b"old", b"key-1", b"key-2", b"negative", b"not there yet", b"old", b"key-1"]
    for number, key in enumerate(keys, first):
        index.waiting.append(("T", 0, (key, None, None), number * SIZE, NOW + number))
        if number in (first + 1, first + 4):
            index.write(at_once=True)
    index.write(at_once=True)

    data = np.memmap(path, np.uint8, "r")
    at = 40 + 4 * shape.slots + 20 * first
    before = [struct.unpack(">i", data[at + 20 * i + 16 : at + 20 * i + 20])[0] for i in range(len(keys))]
    assert before == [7, 0, 0, 0, 0, first, first + 1]
    newest = [struct.unpack_from(">i", data, place_of_slot(key, shape.slots))[0] for key in dict.fromkeys(keys)]
    assert newest == [first + 5, first + 6, first + 2, first + 3, first + 4]


def test_thousands_of_keys_that_waited_for_a_new_file_have_the_places_that_they_would_have_one_after_the_other(
    tmp_path: Path,
) -> None:
    shape, count = Shape(500, 6000), 5500
    index = index_at(tmp_path / "index", shape)
    keys = [f"key-{number * 7919 % 900}" for number in range(count)]
    for number, key in enumerate(keys):
        index.waiting.append(("T", 0, (key.encode(), None, None), number * SIZE, NOW + number))

    assert index.write(at_once=True)

    [file] = read_index(tmp_path / "index", shape.slots, shape.entries)
    newest: dict[int, int] = {}
    for number, (key, entry) in enumerate(zip(keys, file.entries, strict=True), 1):
        slot = (hashed := key_hash("T", key)) % shape.slots
        assert (entry.key_hash, entry.physical_offset) == (hashed, (number - 1) * SIZE)
        assert entry.previous == newest.get(slot, 0)
        newest[slot] = number
    assert [*file.slots] == [newest.get(slot, 0) for slot in range(shape.slots)]
