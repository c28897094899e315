"""Segments under wrong names, of wrong lengths and with pages of others: nothing of them is lost.

What is lost and what is reachable is told by ``tests.judge``, which shares no code with what is tested.
"""

import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mqtool.engine.repair import journal
from mqtool.engine.repair.plan import Plan, carry_out, plan_repair
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.file_queue import segment_name
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from tests.damage import snapshot
from tests.golden import copy_of, golden_store, manifest
from tests.judge.store import JudgedStore

Change = Callable[[Path], object]
"""Damages the store in a folder."""
SIZE = 65536


def segment(store: Path, number: int) -> Path:
    """Return the path that a segment of a store has, in whichever folder it lies."""
    name = segment_name(number * SIZE)
    found = next(iter(sorted(store.glob(f"commitlog*/{name}"))), None)
    return found or next(iter(sorted(store.glob("commitlog*")))) / name


def renamed(*numbers: tuple[int, int | str]) -> Change:
    """Give segments other names at once: numbers of segments, or any name."""

    def change(store: Path) -> None:
        moved = []
        for number, to in numbers:
            source = segment(store, number)
            target = source.with_name(to) if isinstance(to, str) else source.with_name(segment_name(to * SIZE))
            moved.append((source.rename(source.with_name(f"on the way {number}")), target))
        for between, target in moved:
            between.rename(target)

    return change


def copied(number: int, to: int | str) -> Change:
    """Copy a segment to a second name."""

    def change(store: Path) -> None:
        source = segment(store, number)
        shutil.copy2(source, source.with_name(to if isinstance(to, str) else segment_name(to * SIZE)))

    return change


def into_folder(number: int, folder: str, keep: bool = False) -> Change:
    """Move or copy a segment to another folder of the log."""

    def change(store: Path) -> None:
        (shutil.copy2 if keep else shutil.move)(segment(store, number), store / folder)

    return change


def as_long_as(number: int, size: int, content: int | None = None) -> Change:
    """Make a segment shorter or longer, with zeros or with the content of another segment."""

    def change(store: Path) -> None:
        path = segment(store, number)
        data = path.read_bytes() + (b"" if content is None else segment(store, content).read_bytes())
        path.write_bytes(data[:size].ljust(size, b"\0"))

    return change


def removed(number: int) -> Change:
    return lambda store: segment(store, number).unlink()


def all_of(*changes: Change) -> Change:
    def change(store: Path) -> None:
        for one in changes:
            one(store)

    return change


def zeroed(number: int) -> Change:
    return lambda store: segment(store, number).write_bytes(bytes(SIZE))


LOSSLESS: dict[str, tuple[str, Change]] = {
    "two names are swapped": ("mixed-497-kill", renamed((0, 1), (1, 0))),
    "two names behind the first are swapped": ("mixed-533-clean", renamed((1, 2), (2, 1))),
    "the last two names are swapped": ("mixed-533-clean", renamed((3, 4), (4, 3))),
    "all names are rotated": ("mixed-533-clean", renamed((0, 1), (1, 2), (2, 3), (3, 4), (4, 0))),
    "all names are one too high": ("mixed-497-clean", renamed((0, 1), (1, 2), (2, 3), (3, 4))),
    "a segment is named behind the end": ("mixed-533-clean", renamed((1, 5))),
    "a segment is named far behind the end": ("mixed-533-kill", renamed((2, 99))),
    "the first segment is named behind the end": ("mixed-533-clean", renamed((0, 9))),
    "the last segment is named behind the end": ("mixed-533-clean", renamed((4, 7))),
    "a segment is named before the start": (
        "mixed-533-clean",
        lambda store: segment(store, 3).rename(segment(store, 3).with_name(segment_name(100))),
    ),
    "a segment's name is no multiple": (
        "mixed-533-clean",
        lambda store: segment(store, 2).rename(segment(store, 2).with_name(segment_name(2 * SIZE + 7))),
    ),
    "a segment's name is not padded": ("mixed-533-clean", renamed((1, "65536"))),
    "a segment has a name of an editor": ("mixed-533-clean", renamed((2, ".00000000000000131072.swp"))),
    "the first segment has a name of an editor": ("mixed-533-clean", renamed((0, "00000000000000000000~"))),
    "the last two segments have no names of segments": ("mixed-533-clean", renamed((3, "a"), (4, "b"))),
    "a segment is there twice": ("mixed-533-clean", copied(1, 5)),
    "the last segment is there twice": ("mixed-533-clean", copied(4, 5)),
    "a segment is there three times": ("mixed-533-clean", all_of(copied(1, 5), copied(1, "copy"))),
    "a segment is renamed and another has its name": (
        "mixed-533-clean",
        all_of(renamed((1, 7)), copied(2, 1)),
    ),
    "a segment made ahead has the name of one that is used": ("mixed-497-kill", renamed((3, 4), (4, 3))),
    "a segment is in the other folder": ("multipath-533-clean", into_folder(1, "commitlog-a")),
    "a segment is in both folders": ("multipath-533-clean", into_folder(1, "commitlog-a", keep=True)),
    "a segment is renamed and in the other folder": (
        "multipath-497-kill",
        all_of(into_folder(1, "commitlog-a"), lambda store: renamed((1, 3), (3, 1))(store)),
    ),
    "the first segment is too long": ("mixed-533-clean", as_long_as(0, 2 * SIZE)),
    "the second segment is too long": ("mixed-497-clean", as_long_as(1, 2 * SIZE)),
    "a segment is a byte too long": ("mixed-497-clean", as_long_as(1, SIZE + 1)),
    "the last segment is too long": ("mixed-533-clean", as_long_as(4, 3 * SIZE)),
    "several segments are too long": (
        "mixed-533-clean",
        all_of(as_long_as(0, SIZE + 1), as_long_as(1, 2 * SIZE), as_long_as(2, SIZE + 4096)),
    ),
    "a segment is too long by the next one": ("mixed-533-clean", as_long_as(1, 2 * SIZE, content=2)),
    "a segment is too long by the first one": ("mixed-533-clean", as_long_as(2, 2 * SIZE, content=0)),
    "a segment is too long by itself": ("mixed-533-clean", as_long_as(1, 3 * SIZE, content=1)),
    "two segments are swapped and too long": (
        "mixed-533-clean",
        all_of(as_long_as(1, SIZE + 9), as_long_as(2, 2 * SIZE), renamed((1, 2), (2, 1))),
    ),
    "the last segment is too short and the first too long": (
        "mixed-533-clean",
        all_of(as_long_as(4, 40000), as_long_as(0, SIZE + 100)),
    ),
    "an empty file is behind the end": ("mixed-533-clean", lambda store: segment(store, 5).touch()),
}


def pages(*moves: tuple[int, int, int]) -> Change:
    """Copy stretches of the log at once: from an address, to an address, so many bytes."""

    def change(store: Path) -> None:
        paths = sorted(store.glob("commitlog/*"), key=lambda path: path.name)
        log = bytearray().join(path.read_bytes() for path in paths)
        before = bytes(log)
        for at, to, length in moves:
            log[to : to + length] = before[at : at + length]
        size = len(log) // len(paths)
        for number, path in enumerate(paths):
            path.write_bytes(log[number * size : (number + 1) * size])

    return change


def swapped(one: int, other: int, size: int = 4096) -> Change:
    return pages((one, other, size), (other, one, size))


def inserted(at: int, data: bytes) -> Change:
    """Shift what lies behind an address in its segment; the end of the segment is lost."""

    def change(store: Path) -> None:
        path = segment(store, at // SIZE)
        content = path.read_bytes()
        path.write_bytes((content[: at % SIZE] + data + content[at % SIZE :])[:SIZE])

    return change


def changed(address: int, data: bytes) -> Change:
    def change(store: Path) -> None:
        with segment(store, address // SIZE).open("r+b") as file:
            file.seek(address % SIZE)
            file.write(data)

    return change


def lost_pages(number: int) -> Change:
    """Write zeros over two pages of a segment."""

    def change(store: Path) -> None:
        with segment(store, number).open("r+b") as file:
            file.seek(4096)
            file.write(bytes(8192))

    return change


SMALL = 16384
"""A segment of the store with many small messages: every page has some."""
PAGES: dict[str, tuple[str, Change]] = {
    "two pages of two segments are swapped": ("many-533-clean", swapped(4096, 5 * SMALL + 8192)),
    "two pages of one segment are swapped": ("many-533-clean", swapped(4 * SMALL + 4096, 4 * SMALL + 12288)),
    "neighbouring pages are swapped": ("many-533-clean", swapped(4 * SMALL + 4096, 4 * SMALL + 8192)),
    "first pages are swapped": ("many-533-clean", swapped(0, 2 * SMALL)),
    "last pages are swapped": ("many-533-clean", swapped(2 * SMALL - 4096, 3 * SMALL - 4096)),
    "a last page and a first one are swapped": ("many-533-clean", swapped(SMALL - 4096, 7 * SMALL)),
    "a page and one behind the end are swapped": ("many-533-clean", swapped(SMALL + 8192, 16 * SMALL - 4096)),
    "sectors are swapped": ("many-533-clean", swapped(SMALL + 512 * 9, 3 * SMALL + 512 * 20, 2048)),
    "pages are swapped in large messages": ("mixed-533-clean", swapped(12288, SIZE + 20480)),
    "large messages share the pages that are swapped": ("mixed-533-clean", swapped(SIZE + 4096, SIZE + 8192)),
    "12 KiB are swapped": ("many-533-clean", swapped(8192, 9 * SMALL + 12288, 12288)),
    "all pages of a segment are in another order": (
        "many-533-clean",
        pages(*((2 * SMALL + 4096 * page, 2 * SMALL + 4096 * (page * 3 + 2) % SMALL, 4096) for page in range(4))),
    ),
    "pages are in the place of each other": (
        "many-533-clean",
        pages((4096, 9 * SMALL, 4096), (9 * SMALL, 6 * SMALL + 8192, 4096), (6 * SMALL + 8192, 4096, 4096)),
    ),
    "pages are swapped and so are names": (
        "mixed-533-clean",
        all_of(swapped(12288, SIZE + 20480), renamed((0, 1), (1, 0))),
    ),
    "the next segment lies behind one that is too long, and nowhere else": (
        "mixed-533-clean",
        all_of(as_long_as(1, 2 * SIZE, content=2), removed(2)),
    ),
    "the last segment lies behind the first, and nowhere else": (
        "mixed-533-clean",
        all_of(as_long_as(0, 2 * SIZE, content=4), removed(4)),
    ),
    "the first segment lies behind another, and nowhere else": (
        "mixed-533-clean",
        all_of(as_long_as(2, 2 * SIZE, content=0), removed(0)),
    ),
    "a segment lost pages that a copy of it has": (
        "mixed-533-clean",
        all_of(copied(1, "old"), lost_pages(1)),
    ),
    "a segment is zeros, and a copy of it has another name": ("mixed-533-clean", all_of(copied(1, 5), zeroed(1))),
    "a record states an address beyond the end": ("mixed-533-clean", changed(4246 + 28, (292_000).to_bytes(8))),
    "a record states an address beyond the end, and no queue says where it is": (
        "mixed-533-clean",
        all_of(changed(4246 + 28, (330_000).to_bytes(8)), lambda store: shutil.rmtree(store / "consumequeue")),
    ),
    "bytes are inserted where the segment has room": ("mixed-533-clean", inserted(4 * SIZE, b"\1" * 100)),
}


def of_another_store(number: int, to: int | str) -> Change:
    """Copy a segment of another store into this one."""

    def change(store: Path) -> None:
        source = segment(golden_store("mixed-550-kill"), number)
        target = segment(store, 0).with_name(to if isinstance(to, str) else segment_name(to * SIZE))
        target.write_bytes(source.read_bytes())

    return change


LOSSY: dict[str, tuple[str, Change]] = {
    "records are copied over others": ("mixed-533-clean", pages((0, 2 * SIZE + 40000, 3000))),
    "pages are copied over others": ("many-533-clean", pages((4096, 5 * SMALL, 8192))),
    "records are copied behind the end": ("mixed-533-clean", pages((0, 5 * SIZE - 20000, 3000))),
    "records are copied right behind the end": ("mixed-533-clean", pages((0, 4 * SIZE + 28150, 3000))),
    "most of a segment is copied over another": ("mixed-533-clean", pages((0, 2 * SIZE, 60000))),
    "a segment is copied over another": ("mixed-533-clean", pages((SIZE, 2 * SIZE, SIZE))),
    "a segment of another store is behind the end": ("mixed-533-clean", of_another_store(4, 5)),
    "a segment of another store is in the place of one": ("mixed-533-clean", of_another_store(2, 1)),
    "a segment of another store has a name that is none": ("mixed-533-clean", of_another_store(1, "backup")),
    "names are swapped and a body is another": (
        "mixed-533-clean",
        all_of(changed(SIZE + 20000, b"another"), renamed((1, 2), (2, 1))),
    ),
    "a segment of zeros has the name of another": ("mixed-533-clean", all_of(zeroed(2), renamed((1, 2), (2, 1)))),
    "pages are swapped and one has a changed byte": (
        "many-533-clean",
        all_of(changed(4096 + 900, b"?"), swapped(4096, 5 * SMALL + 8192)),
    ),
    "bytes are inserted": ("mixed-533-clean", inserted(2 * SIZE + 30000, b"\1" * 100)),
    "two records have a wrong address": (
        "many-533-clean",
        all_of(changed(369 * 10 + 28, bytes(8)), changed(369 * 11 + 28, bytes(8))),
    ),
    "the first segment is gone and the second has its name": ("mixed-533-clean", all_of(removed(0), renamed((1, 0)))),
    "segments are gone and one is renamed": ("mixed-533-clean", all_of(removed(1), removed(2), renamed((3, 1)))),
}


def plan_of(store: Path, **options: object) -> Plan:
    return plan_repair(store, StoreConfig(), "recover", options)


def recover(store: Path, **options: object) -> Plan:
    plan = plan_of(store, **options)
    carry_out(store, StoreConfig(), plan, Disk())
    return plan


def wrong_in(store: Path) -> list[str]:
    return [str(found) for found in verify_store(StoreReader(store)) if found.severity != "note"]


def judged(name: str, store: Path) -> JudgedStore:
    return JudgedStore(store, manifest(name)["config"])


@functools.cache
def sound_store(name: str) -> JudgedStore:
    return judged(name, golden_store(name))


@pytest.mark.parametrize("damage", PAGES)
def test_records_in_a_wrong_place_come_to_their_own(damage: str, memory_path: Path) -> None:
    name, change = PAGES[damage]
    sound = sound_store(name)
    store = copy_of(name, memory_path)
    change(store)
    before = snapshot(store)

    plan = recover(store, mode="abnormal")

    after = judged(name, store)
    assert after.messages() == sound.messages()
    assert after.reachable() == sound.reachable()
    assert plan.losses == ()
    assert not after.placeholders()
    assert wrong_in(store) == []
    assert plan_of(store, mode="abnormal").changes == ()
    journal.undo(store, Disk())
    assert snapshot(store) == before


@pytest.mark.parametrize(
    ("damage", "cut"), [*((one, False) for one in LOSSY), *((one, True) for one in [*LOSSY][9:12])]
)
def test_what_cannot_be_kept_is_told(damage: str, cut: bool, memory_path: Path) -> None:
    name, change = LOSSY[damage]
    store = copy_of(name, memory_path)
    change(store)
    before = snapshot(store)
    damaged = judged(name, store)
    sound = damaged.messages(misplaced=True)

    plan = recover(store, mode="abnormal", cut=cut)

    after = judged(name, store)
    told = {
        (loss.topic, loss.queue_id, offset)
        for loss in plan.losses
        if loss.queue_offset is not None and loss.end_queue_offset is not None
        for offset in range(loss.queue_offset, loss.end_queue_offset)
    }
    kept = after.messages()
    assert {key for key, digests in sound.items() if not digests & kept.get(key, set())} <= told
    assert cut or damaged.reachable() <= after.reachable()
    assert wrong_in(store) == []
    assert plan_of(store, mode="abnormal").changes == ()
    journal.undo(store, Disk())
    assert snapshot(store) == before


@pytest.mark.parametrize(
    ("damage", "mode"), [*((one, "abnormal") for one in LOSSLESS), *((one, "normal") for one in [*LOSSLESS][:10:2])]
)
def test_a_misplaced_segment_comes_to_its_place(damage: str, mode: str, memory_path: Path) -> None:
    name, change = LOSSLESS[damage]
    sound = sound_store(name)
    store = copy_of(name, memory_path)
    change(store)
    before = snapshot(store)

    plan = recover(store, mode=mode)

    after = judged(name, store)
    assert after.messages() == sound.messages()
    assert after.unqueued() == sound.unqueued()
    assert after.reachable() == sound.reachable()
    assert plan.losses == ()
    assert not after.placeholders()
    assert wrong_in(store) == []
    assert plan_of(store, mode=mode).changes == ()
    journal.undo(store, Disk())
    assert snapshot(store) == before


@pytest.mark.parametrize("names", [((0, 4), (4, 0)), ((0, 9),), ((0, "0"),), ((0, 1), (1, 0))])
def test_after_a_clean_stop_a_segment_that_is_renamed_is_examined(
    names: tuple[tuple[int, int | str], ...], memory_path: Path
) -> None:
    sound = sound_store("mixed-533-clean")
    store = copy_of("mixed-533-clean", memory_path)
    all_of(swapped(12288, SIZE + 20480), renamed(*names))(store)
    before = snapshot(store)

    plan = recover(store, mode="normal")

    after = judged("mixed-533-clean", store)
    assert after.messages() == sound.messages()
    assert after.reachable() == sound.reachable()
    assert plan.losses == ()
    assert wrong_in(store) == []
    assert plan_of(store, mode="normal").changes == ()
    journal.undo(store, Disk())
    assert snapshot(store) == before


def test_of_a_segment_without_records_nobody_claims_what_its_records_say(memory_path: Path) -> None:
    store = copy_of("mixed-533-clean", memory_path)
    segment(store, 5).write_bytes(bytes(SIZE))  # created ahead
    renamed((1, 5), (5, 1))(store)

    told = {finding.found: finding.message for finding in verify_store(StoreReader(store)) if finding.expected}
    plan = plan_of(store)
    reasons = {Path(change.file).name: change.reason for change in plan.changes if change.what == "rename"}

    by_records, without = segment_name(5 * SIZE), segment_name(SIZE)
    assert "its records say" in told[by_records]
    assert told[without].startswith("it has no records")
    assert "its records say" in reasons[by_records]
    assert reasons[without].startswith("without records")


def test_what_a_file_system_keeps_among_segments_is_a_note(memory_path: Path) -> None:
    store = copy_of("mixed-533-clean", memory_path)
    (store / "commitlog" / "lost+found").mkdir()

    found = [one for one in verify_store(StoreReader(store)) if one.code == "LOG-STRAY"]

    assert [one.severity for one in found] == ["note"]
    assert plan_of(store).changes == ()
    assert "commitlog/lost+found: a folder among the segments: 4.9 does not start" in " ".join(plan_of(store).remarks)


@pytest.mark.parametrize("more", [1, 4096, -1])
@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("mixed-533-clean", "consumequeue/OrderEvents/0/*"),
        ("mixed-533-clean", "index/*"),
        ("ext-533-clean", "consumequeue_ext/*/*/*"),
        ("batchcq-533-clean", "batchconsumequeue/*/*/*"),
    ],
)
def test_one_run_gives_files_of_queues_and_index_their_length(
    name: str, pattern: str, more: int, memory_path: Path
) -> None:
    sound = sound_store(name)
    store = copy_of(name, memory_path)
    path = min(store.glob(pattern))
    os.truncate(path, path.stat().st_size + more)
    before = snapshot(store)

    plan = recover(store, mode="abnormal")

    assert plan.losses == ()
    assert judged(name, store).reachable() == sound.reachable()
    assert wrong_in(store) == []
    assert plan_of(store, mode="abnormal").changes == ()
    journal.undo(store, Disk())
    assert snapshot(store) == before
