"""Index files whose shape nobody tells: found on every golden store, and never a crash or a circle on broken ones."""

import itertools
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.store.index_file import DEFAULT_SHAPE, IndexFile, Shape, infer_shape
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import index_file as layout
from mqtool.formats.hashing import key_hash
from tests import builders
from tests.damage import cut, flipped
from tests.golden import GOLDEN_NAMES, golden_store, manifest

puts = st.lists(
    st.tuples(
        st.text("ab", min_size=1, max_size=3).map("TopicTest#{}".format),
        st.sampled_from([0, 1, 4096]) | st.integers(0, 1 << 40),
        st.integers(builders.STORED, builders.STORED + 100_000),
    ),
    min_size=1,
    max_size=60,
).map(lambda drawn: sorted(drawn, key=lambda put: put[1]))
shapes = st.builds(Shape, st.integers(1, 40), st.integers(2, 40))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("index")


def write(folder: Path, *contents: bytes) -> list[IndexFile]:
    files = []
    for content in contents:
        path = folder / f"{len(list(folder.iterdir())):017}"
        path.write_bytes(content)
        files.append(IndexFile(path, len(content)))
    return files


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_the_shape_of_golden_index_files_is_that_of_the_manifest(name: str) -> None:
    config = manifest(name)["config"]
    expected = Shape(config["maxHashSlotNum"], config["maxIndexNum"])

    store = StoreReader(golden_store(name))

    assert {file.shape for file in store.index_files} == {expected}
    assert any("assuming index files with" in remark for remark in store.remarks)
    for file in store.index_files:  # each tells it alone
        assert infer_shape([IndexFile(file.path, file.size)]) == expected


@given(puts=puts, shape=shapes)
def test_the_shape_of_made_up_index_files_is_found(
    folder: Path, puts: list[tuple[str, int, int]], shape: Shape
) -> None:
    contents = builders.index_bytes(puts, shape.slots, shape.entries)

    found = infer_shape(write(folder, *contents))

    assert found is not None
    assert found.file_size == shape.file_size
    if len(puts) > 3:  # of very few entries another shape may make sense as well
        assert found == shape


def test_the_only_message_of_a_log_is_enough(folder: Path) -> None:
    # All of its entry but the hash is zero, as is most of the file.
    for key, (slots, entries) in itertools.product("abcdefgh", [(10, 20), (100, 250), (97, 300)]):
        (content,) = builders.index_bytes([(f"TopicTest#{key}", 0, builders.STORED)], slots, entries)
        assert infer_shape(write(folder, content)) == Shape(slots, entries)


@given(puts=puts.filter(lambda puts: len(puts) > 8), data=st.data())
def test_damage_to_one_entry_or_slot_does_not_hide_the_shape(
    folder: Path, puts: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    slots, entries = 17, 80
    (content,) = builders.index_bytes(puts, slots, entries)
    last = layout.HEADER.schema.parse(content).entry_count - 1
    number = data.draw(st.integers(0, last - 1))
    at = data.draw(st.sampled_from([40 + 4 * (number % slots), 40 + 4 * slots + 20 * number]))
    damaged = content[:at] + data.draw(st.binary(min_size=4, max_size=4)) + content[at + 4 :]

    assert infer_shape(write(folder, damaged)) == Shape(slots, entries)


@given(puts=puts.filter(lambda puts: len(puts) > 8), wrong=st.integers(-5, 5))
def test_a_header_that_counts_wrongly_makes_no_wrong_shape(
    folder: Path, puts: list[tuple[str, int, int]], wrong: int
) -> None:
    # Another number of the last entry means another place for the first.
    slots, entries = 97, 80
    (content,) = builders.index_bytes(puts, slots, entries)
    count = layout.HEADER.schema.parse(content).entry_count + wrong

    found = infer_shape(write(folder, content[:36] + struct.pack(">i", count) + content[40:]))

    assert found in ([Shape(slots, entries)] if wrong == 0 else [Shape(slots, entries), None])


def test_a_file_of_the_default_size_has_the_default_shape(folder: Path) -> None:
    (file,) = write(folder, b"")
    with file.path.open("r+b") as opened:
        opened.truncate(DEFAULT_SHAPE.file_size)

    assert infer_shape([IndexFile(file.path, DEFAULT_SHAPE.file_size)]) == DEFAULT_SHAPE
    assert Shape(5_000_000, 20_000_000) == DEFAULT_SHAPE


def test_files_without_an_entry_tell_nothing(folder: Path) -> None:
    empty = bytes(36) + struct.pack(">i", 1) + bytes(5400)

    assert infer_shape([]) is None
    assert infer_shape(write(folder, empty, bytes(5440), b"")) is None


def test_one_sound_file_tells_the_shape_of_all(folder: Path) -> None:
    (sound,) = builders.index_bytes([("T#a", 5, 9), ("T#b", 77, 9)], 100, 250)

    assert infer_shape(write(folder, bytes(len(sound)), b"\xff" * len(sound), sound)) == Shape(100, 250)


@given(puts=puts, shape=shapes, data=st.data())
def test_any_file_has_a_shape_or_none_and_can_be_asked(
    folder: Path, puts: list[tuple[str, int, int]], shape: Shape, data: st.DataObject
) -> None:
    content = data.draw(
        st.just(builders.index_bytes(puts, shape.slots, shape.entries)[0]).flatmap(
            lambda raw: flipped(raw) | cut(raw) | st.binary(max_size=300)
        )
    )
    (file,) = write(folder, content)

    inferred = infer_shape([file])

    if inferred:
        assert inferred.file_size == file.size
    for tried in (inferred, shape, Shape(1 << 30, 1 << 30)):
        file.shape = tried
        offsets = list(itertools.islice(file.find(key_hash("TopicTest", "a")), 1000))
        assert len(offsets) < 1000
        assert file.entry_stop >= 1
        if tried:
            assert len(file.slots()) <= tried.slots
            assert len(file.entries()) <= max(1, file.entry_stop)


def test_a_large_file_of_hostile_zeros_is_given_up_soon(folder: Path) -> None:
    # Its header ends with offset 0, which stands everywhere in a hole of 400 MB.
    header = layout.HEADER.schema.build(
        {
            "begin_timestamp": 1,
            "end_timestamp": 1,
            "begin_physical_offset": 0,
            "end_physical_offset": 0,
            "slot_count": 1,
            "entry_count": 200,
        }
    )
    (file,) = write(folder, header)
    size = layout.file_size(5_000_000, 19_000_000)
    with file.path.open("r+b") as opened:
        opened.truncate(size)
        opened.seek(size - 1)
        opened.write(b"\1")

    assert infer_shape([IndexFile(file.path, size)]) is None


@given(puts=puts, slots=st.integers(1, 9))
def test_a_key_is_found_newest_first(folder: Path, puts: list[tuple[str, int, int]], slots: int) -> None:
    (content,) = builders.index_bytes(puts, slots, 100)
    (file,) = write(folder, content)
    file.shape = Shape(slots, 100)

    for text in {text for text, _, _ in puts}:
        found = list(file.find(builders.key_hash(text)))
        assert found == [offset for other, offset, _ in reversed(puts) if other == text]
    assert list(file.find(builders.key_hash("TopicTest#never"))) == []


def test_a_chain_that_runs_in_a_circle_ends(folder: Path) -> None:
    (content,) = builders.index_bytes([("T#a", 1, 9), ("T#a", 2, 9), ("T#a", 3, 9)], 1, 10)
    at = 40 + 4 + 20 * 1 + 16  # the entry before the first
    (file,) = write(folder, content[:at] + struct.pack(">i", 3) + content[at + 4 :])
    file.shape = Shape(1, 10)

    assert list(itertools.islice(file.find(builders.key_hash("T#a")), 9)) == [3, 2, 1]


@pytest.mark.parametrize("name", [name for name in GOLDEN_NAMES if not name.startswith("rocksdb")])
def test_what_java_finds_by_key_is_found(name: str) -> None:
    store = StoreReader(golden_store(name))
    told = {message["phy"]: message for message in manifest(name)["messages"]}
    queries = manifest(name)["index_queries"]
    assert queries

    for topic, key, offsets in queries:
        hits = [
            offset
            for file in reversed(store.index_files)
            for offset in file.find(key_hash(topic, key))
            if told[offset]["topic"] == topic
        ]

        # Java was asked after recovery, which may index a message of a killed broker twice.
        assert hits == offsets or (manifest(name)["abort"] and hits == list(dict.fromkeys(offsets)))
