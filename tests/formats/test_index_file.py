"""Index files: every header, slot and entry of the golden stores, and the puts of the format's description."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.formats import index_file
from mqtool.formats.hashing import key_hash
from tests import builders
from tests.golden import GOLDEN_NAMES, golden_store, manifest


def files_of(name: str) -> list[tuple[str, bytes, int, int]]:
    """Return name and bytes of each index file of a golden store, and its numbers of slots and entries."""
    config = manifest(name)["config"]
    return [
        (file.name, file.read_bytes(), config["maxHashSlotNum"], config["maxIndexNum"])
        for file in sorted((golden_store(name) / "index").iterdir())
    ]


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_golden_header_slot_and_entry_is_parsed_and_built_back(name: str) -> None:
    for _, data, slots, entries in files_of(name):
        assert len(data) == index_file.file_size(slots, entries)
        at = 0
        for layout, count in ((index_file.HEADER, 1), (index_file.SLOT, slots), (index_file.ENTRY, entries)):
            for _ in range(count):
                raw = data[at : at + layout.size]
                assert layout.schema.build(layout.schema.parse(raw)) == raw
                at += layout.size
        assert at == len(data)


@pytest.mark.parametrize("name", [name for name in GOLDEN_NAMES if manifest(name)["end"] == "clean"])
def test_golden_headers_say_what_java_reads_in_them(name: str) -> None:
    told = {row["file"]: row for row in manifest(name)["load"]["after_load"]["index"]}
    assert told
    for file, data, _, _ in files_of(name):
        header = index_file.HEADER.schema.parse(data)

        assert {
            "file": file,
            "beginTimestamp": header.begin_timestamp,
            "endTimestamp": header.end_timestamp,
            "beginPhyOffset": header.begin_physical_offset,
            "endPhyOffset": header.end_physical_offset,
            "hashSlotCount": header.slot_count,
            "indexCount": header.entry_count,
        } == told[file]


TIME = 1700000000123
PUTS = [
    ("TopicTest#7F00000100002A9F1B6D000000000001", 1 << 30, TIME),
    ("TopicTest#k1", 1 << 30, TIME),
    ("TopicTest#k2", 1 << 30, TIME),
    ("TopicTest#k1", 1073742324, 1700000062122),
    ("TopicTest#C0A80101000118B4AAC200000001", 5, 1700000062123),
]
HASHES = [2016030638, 2746024, 2746025, 2746024, 306615950]
SLOTS_AT = [4122592, 10984136, 10984140, 10984136, 6463840]
ENTRIES = [
    "782a2fae 0000000040000000 00000000 00000000",
    "0029e6a8 0000000040000000 00000000 00000000",
    "0029e6a9 0000000040000000 00000000 00000000",
    "0029e6a8 00000000400001f4 0000003d 00000002",
    "1246968e 0000000000000005 0000003e 00000000",
]
HEADERS = {
    4: "0000018bcfe5687b 0000018bcfe65aaa 0000000040000000 00000000400001f4 00000003 00000005",
    5: "0000018bcfe5687b 0000018bcfe65aab 0000000040000000 0000000000000005 00000004 00000006",
}


def test_keys_have_the_hashes_of_the_description() -> None:
    assert [key_hash(*text.split("#", 1)) for text, _, _ in PUTS] == HASHES


def test_puts_lie_where_the_description_says() -> None:
    slots = index_file.DEFAULT_SLOT_COUNT
    (data,) = builders.index_bytes(PUTS, slots, 10)

    for number, (hashed, slot_at, entry) in enumerate(zip(HASHES, SLOTS_AT, ENTRIES, strict=True), 1):
        raw = bytes.fromhex(entry)
        at = 20_000_040 + 20 * number
        assert at == index_file.HEADER_SIZE + index_file.SLOT_SIZE * slots + index_file.ENTRY_SIZE * number
        assert slot_at == index_file.HEADER_SIZE + index_file.SLOT_SIZE * (hashed % slots)
        assert data[at : at + 20] == raw
        assert index_file.ENTRY.schema.build(index_file.ENTRY.schema.parse(raw)) == raw
    newest = dict(zip(SLOTS_AT, (1, 2, 3, 4, 5), strict=True))
    assert {at: struct.unpack_from(">i", data, at)[0] for at in newest} == newest
    assert index_file.file_size(slots, index_file.DEFAULT_ENTRY_COUNT) == 420_000_040


@pytest.mark.parametrize("count", HEADERS)
def test_headers_after_puts_are_those_of_the_description(count: int) -> None:
    raw = bytes.fromhex(HEADERS[count])

    assert builders.index_bytes(PUTS[:count], 100, 10)[0][:40] == raw
    assert index_file.HEADER.schema.build(index_file.HEADER.schema.parse(raw)) == raw
    assert index_file.HEADER_SIZE == 40


keys = st.tuples(st.text("abc", max_size=2).map("TopicTest#{}".format), builders.i32.map(abs), st.integers(0, 10_000))


@given(st.lists(keys, min_size=1, max_size=30), st.integers(1, 7), st.integers(2, 12))
def test_every_key_that_is_put_is_found_in_its_chain(
    puts: list[tuple[str, int, int]], slots: int, entries: int
) -> None:
    files = builders.index_bytes(puts, slots, entries)

    left = list(puts)
    for data in files:
        header = index_file.HEADER.schema.parse(data)
        here, left = left[: header.entry_count - 1], left[header.entry_count - 1 :]
        for text in {text for text, _, _ in here}:
            found = []
            number = index_file.SLOT.schema.parse(data[40 + 4 * (builders.key_hash(text) % slots) :]).entry
            while number:
                entry = index_file.ENTRY.schema.parse(data[40 + 4 * slots + 20 * number :])
                if entry.key_hash == builders.key_hash(text):
                    found.append(entry.physical_offset)
                number = entry.previous_entry
            assert found == [offset for other, offset, _ in reversed(here) if other == text]
    assert not left
