"""The index of a running broker, as a loss of power leaves it."""

from pathlib import Path

import numpy as np

from mqtool.engine.store.disk import Disk
from mqtool.engine.store.index_file import IndexFile, Shape
from mqtool.engine.store.live_index import LiveIndex
from mqtool.engine.store.queue_files import QueueFiles
from mqtool.formats import index_file as layout
from mqtool.formats.layout import offset_of

SHAPE = Shape(50, 100)
SIZE, NOW = 200, 1_700_000_000_000


def index_at(folder: Path) -> LiveIndex:
    return LiveIndex(folder, QueueFiles(Disk(), 6000, 6000), SHAPE, has_tags=False)


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
        file.seek(at + offset_of(layout.ENTRY_DTYPE, "physical_offset"))
        file.write(bytes(8))

    again = index_at(tmp_path / "index")
    again.keep_until(82 * SIZE, lambda at: NOW + at // SIZE)

    assert [*(tmp_path / "index").iterdir()] == [first]
    entries = np.fromfile(first, layout.ENTRY_DTYPE, offset=at)["physical_offset"]
    assert entries[:83].tolist() == [number * SIZE for number in range(83)]
    assert not entries[83:].any()
    assert IndexFile(first, first.stat().st_size, SHAPE).header.entry_count == 84
    assert [again.find("T", f"key-{number}", 0, NOW * 2, 1) for number in (0, 82, 83, 119)] == [
        [0],
        [82 * SIZE],
        [],
        [],
    ]
