"""The scanner against the schemas, each kernel against a twin in plain Python, and both against any bytes at all.

Compiled kernels get their bytes between two pages that cannot be read: a read outside ends the tests at once.
"""

import itertools
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mqtool.formats import commit_log, index_file, record_schemas, scan
from mqtool.formats import kernels as plain
from mqtool.formats.commit_log import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from mqtool.formats.hashing import java_hash
from mqtool.formats.properties import are_readable, parse_properties
from mqtool.formats.scan import BARE, DLEDGER, NARROW, WIDE, Fault, Stop
from tests import builders
from tests.damage import cut, flipped
from tests.formats.golden_bytes import log, records
from tests.formats.guard import Guarded
from tests.golden import GOLDEN_NAMES, manifest

GUARDED = Guarded()
Lay = Callable[[bytes], Any]


@pytest.fixture(scope="module", params=["plain", "compiled"])
def either(request: pytest.FixtureRequest) -> Any:
    return plain if request.param == "plain" else scan.compiled_kernels()


@pytest.fixture(scope="module", params=["plain", "compiled, at the end", "compiled, at the start"])
def bench(request: pytest.FixtureRequest) -> tuple[Any, Lay]:
    """Kernels, and what puts bytes where they can read them and nothing beside them."""
    if request.param == "plain":
        return plain, memoryview
    return scan.compiled_kernels(), GUARDED.at_end if request.param.endswith("end") else GUARDED.at_start


@pytest.fixture(scope="module")
def kernels(bench: tuple[Any, Lay]) -> Any:
    return bench[0]


@pytest.fixture(scope="module")
def lay(bench: tuple[Any, Lay]) -> Lay:
    return bench[1]


# Scanner and schema.


def starts_of(parts: Sequence[bytes]) -> list[int]:
    return [0, *itertools.accumulate(map(len, parts))][: len(parts)]


def unlike_schema(table: scan.MessageTable, whole: Sequence[bytes]) -> list[str]:
    """Return the fields in which rows differ from what the schema reads in their records."""
    parsed = [record_schemas.parse_message(record) for record in whole]
    rows = range(len(table))
    read = {name: table.column(name).tolist() for name in NARROW + WIDE}
    for part, name in ((plain.BODY, "body"), (plain.TOPIC, "topic"), (plain.PROPERTIES, "properties")):
        read[name] = [table.bytes_of(part, row) for row in rows]
    for host, name in enumerate(scan.HOSTS):
        read[f"{name}_address"] = [table.address(host, row) for row in rows]
    unlike = [name for name, values in read.items() if values != [message[name] for message in parsed]]
    return unlike + ["record"] * ([table.record(row) for row in rows] != list(whole))


@given(whole=builders.logs(base=4096))
def test_scanner_and_schema_read_the_same_messages(kernels: Any, lay: Lay, whole: list[bytes]) -> None:
    result = scan.scan(lay(b"".join(whole)), 4096, kernels=kernels)

    assert not result.table.faults.any()
    assert unlike_schema(result.table, whole) == []
    assert result.table.column("position").tolist() == [4096 + start for start in starts_of(whole)]
    assert (result.end, result.stop) == (sum(map(len, whole)), Stop.PART)


@given(entries=builders.dledger_logs)
def test_entries_of_a_dledger_log_are_read_like_bare_records(kernels: Any, lay: Lay, entries: list[bytes]) -> None:
    result = scan.scan(lay(b"".join(entries)), 0, envelope=DLEDGER, kernels=kernels)

    assert unlike_schema(result.table, [entry[DLEDGER.size :] for entry in entries]) == []
    assert result.table.column("position").tolist() == [start + DLEDGER.size for start in starts_of(entries)]
    assert result.table.column("position").tolist() == result.table.column("physical_offset").tolist()


@given(whole=builders.logs(), data=st.data())
def test_a_cut_log_keeps_every_message_before_the_cut(
    kernels: Any, lay: Lay, whole: list[bytes], data: st.DataObject
) -> None:
    joined = b"".join(whole)
    size = data.draw(st.integers(0, len(joined)))

    result = scan.scan(lay(joined[:size]), 0, kernels=kernels)

    ends = list(itertools.accumulate(map(len, whole)))
    assert len(result.table) == sum(end <= size for end in ends)
    assert result.stop is (Stop.PART if size in (0, *ends) else result.stop)
    assert result.stop in (Stop.PART, Stop.END, Stop.SIZE)


@given(whole=builders.logs(min_size=0), size=st.integers(8, 300), rest=st.binary(max_size=40))
def test_a_walk_ends_at_a_blank_record(kernels: Any, lay: Lay, whole: list[bytes], size: int, rest: bytes) -> None:
    joined = b"".join(whole)

    result = scan.scan(lay(joined + builders.blank(size) + rest), 0, kernels=kernels)

    assert len(result.table) == len(whole)
    assert (result.end, result.stop) == (len(joined), Stop.BLANK)


@given(whole=builders.logs(min_size=0), zeros=st.integers(8, 300))
def test_a_walk_ends_at_the_unused_end(kernels: Any, lay: Lay, whole: list[bytes], zeros: int) -> None:
    joined = b"".join(whole)

    result = scan.scan(lay(joined + bytes(zeros)), 0, kernels=kernels)

    assert len(result.table) == len(whole)
    assert (result.end, result.stop) == (len(joined), Stop.MAGIC)


@given(whole=builders.logs(), limit=st.integers(0, 9))
def test_a_walk_takes_no_more_than_it_is_asked_for_and_goes_on_from_there(
    kernels: Any, lay: Lay, whole: list[bytes], limit: int
) -> None:
    buffer = lay(b"".join(whole))

    first = scan.scan(buffer, 0, limit=limit, kernels=kernels)
    rest = scan.scan(buffer, 0, first.end, kernels=kernels)

    assert len(first.table) == min(limit, len(whole))
    assert len(first.table) + len(rest.table) == len(whole)
    assert first.stop is Stop.PART


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_golden_segment_is_scanned_as_java_reads_it(either: Any, name: str) -> None:
    envelope = DLEDGER if name.startswith("dledger") else BARE
    expected = iter(records(name))
    blanks = []
    for base, content in zip(*log(name), strict=True):
        buffer = memoryview(content) if either is plain else np.frombuffer(content, np.uint8)

        result = scan.scan(buffer, base, envelope=envelope, kernels=either)

        assert not result.table.faults.any()
        told = list(itertools.islice(expected, len(result.table)))
        assert result.table.column("position").tolist() == [message["phy"] for message, _ in told]
        assert unlike_schema(result.table, [raw for _, raw in told]) == []
        assert result.table.body_crcs().tolist() == [message["body_crc"] for message, _ in told]
        if result.stop is Stop.BLANK:
            blanks.append([base + result.end, len(content) - result.end])
    assert not list(expected)
    if envelope is BARE:
        assert blanks == manifest(name)["blanks"]


@given(whole=builders.logs(), data=st.data())
def test_rows_can_be_selected(either: Any, whole: list[bytes], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(whole) - 1)))
    joined = b"".join(whole)
    buffer = memoryview(joined) if either is plain else np.frombuffer(joined, np.uint8)
    table = scan.scan(buffer, 0, kernels=either).table

    selected = table.where(np.array(rows, np.int64))

    assert unlike_schema(selected, [whole[row] for row in rows]) == []
    assert [len(selected.topics()[1])] == [len({table.bytes_of(plain.TOPIC, row) for row in rows})]


def test_a_column_that_does_not_exist_is_a_key_error() -> None:
    table = scan.scan(memoryview(b""), 0).table

    with pytest.raises(KeyError):
        table.column("body")


# Faults.


FIELDS_AT = {name: commit_log.HEADS[0].offset_of(name) for name in ("size", "magic_code", "sys_flag")}


def with_number(raw: bytes, at: int, value: int, width: int = 4) -> bytes:
    return raw[:at] + (value & (1 << 8 * width) - 1).to_bytes(width, "big") + raw[at + width :]


def expected_fault(raw: bytes) -> Fault:
    """Tell by the description what is wrong with a record whose size is that of ``raw``."""
    (sys_flag,) = struct.unpack_from(">i", raw, FIELDS_AT["sys_flag"])
    head = 88 + (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)
    if len(raw) < head + 3:
        return Fault.TOTAL_SIZE
    (body,) = struct.unpack_from(">i", raw, head - 4)
    if body < 0 or body + 3 > len(raw) - head:
        return Fault.BODY_SIZE
    two_bytes = struct.unpack_from(">i", raw, 4)[0] == MAGIC_V2
    (topic,) = struct.unpack_from(">h" if two_bytes else ">b", raw, head + body)
    at = head + body + 1 + two_bytes
    if topic < 0 or topic + 2 > len(raw) - at:
        return Fault.TOPIC_SIZE
    (size,) = struct.unpack_from(">h", raw, at + topic)
    at += topic + 2
    if size < 0 or size > len(raw) - at:
        return Fault.PROPERTIES_SIZE
    return Fault.NONE if size == len(raw) - at else Fault.TOTAL_SIZE


@st.composite
def wrong_records(draw: st.DrawFn) -> bytes:
    """Draw a record of true size whose other sizes may be anything."""
    fields = draw(builders.message_fields)
    wanted = draw(st.sampled_from(["body_size", "topic_size", "properties_size", "sys_flag", "size", "magic_code"]))
    raw = bytes(record_schemas.MESSAGE.build(fields))
    form = commit_log.head_form(fields["sys_flag"])
    head = commit_log.HEADS[form].size
    value = draw(builders.odd_sizes | st.integers(0, 400)) * draw(st.sampled_from([1, -1]))
    if wanted == "body_size":
        return with_number(raw, head - 4, value)
    if wanted == "topic_size":
        return with_number(raw, head + fields["body_size"], value, 2 if fields["magic_code"] == MAGIC_V2 else 1)
    if wanted == "properties_size":
        return with_number(raw, len(raw) - fields["properties_size"] - 2, value, 2)
    if wanted == "sys_flag":
        return with_number(raw, FIELDS_AT["sys_flag"], fields["sys_flag"] ^ draw(st.sampled_from([16, 32, 48])))
    if wanted == "magic_code":
        other = MAGIC_V1 if fields["magic_code"] == MAGIC_V2 else MAGIC_V2
        return with_number(raw, FIELDS_AT["magic_code"], other)
    size = draw(st.integers(commit_log.MIN_SIZE, len(raw) + 20))
    return with_number(raw, 0, size)[:size].ljust(size, b"\0")


@given(whole=st.lists(wrong_records(), min_size=1, max_size=5))
def test_a_record_whose_parts_do_not_add_up_is_marked_by_its_first_wrong_size(
    kernels: Any, lay: Lay, whole: list[bytes]
) -> None:
    table = scan.scan(lay(b"".join(whole)), 0, kernels=kernels).table

    assert table.starts.tolist() == starts_of(whole)
    assert table.faults.tolist() == [expected_fault(raw) for raw in whole]
    for row, raw in enumerate(whole):
        parts = [table.bytes_of(part, row) for part in (plain.BODY, plain.TOPIC, plain.PROPERTIES)]
        assert sum(map(len, parts)) < len(raw)
        if table.faults[row] in (Fault.NONE, Fault.TOTAL_SIZE) and any(parts):
            message = record_schemas.parse_message(raw)
            assert parts == [message.body, message.topic, message.properties]


impossible_sizes = st.integers(-(1 << 31), commit_log.MIN_SIZE - 1) | st.sampled_from(
    [-1, 0, 1, 8, 48, 90, (1 << 31) - 1]
)


@given(whole=builders.logs(max_size=4), size=impossible_sizes, data=st.data())
def test_a_walk_ends_at_a_size_that_cannot_be_true(
    kernels: Any, lay: Lay, whole: list[bytes], size: int, data: st.DataObject
) -> None:
    row = data.draw(st.integers(0, len(whole) - 1))
    at = starts_of(whole)[row]

    result = scan.scan(lay(with_number(b"".join(whole), at, size)), 0, kernels=kernels)

    assert (len(result.table), result.end, result.stop) == (row, at, Stop.SIZE)


# Any bytes.

hostile_numbers = st.integers(-(1 << 31), (1 << 31) - 1) | builders.odd_sizes | builders.odd_sizes.map(lambda n: -n)


@st.composite
def hostile_logs(draw: st.DrawFn) -> bytes:
    """Draw logs with wild numbers written over them anywhere, most of all where sizes and magic codes lie."""
    whole = draw(builders.logs(max_size=4))
    joined = bytearray(b"".join(whole) + draw(st.binary(max_size=30)))
    starts = starts_of(whole)
    for _ in range(draw(st.integers(0, 5))):
        at = draw(st.sampled_from(starts)) + draw(st.sampled_from([0, 4, 36, 84, 96, 108]) | st.integers(0, 120))
        number = draw(hostile_numbers | st.sampled_from([MAGIC_V1, MAGIC_V2, MAGIC_BLANK]))
        joined[at : at + 4] = (number & 0xFFFFFFFF).to_bytes(4, "big")
    return bytes(joined)


any_logs = (
    hostile_logs()
    | st.binary(max_size=400)
    | builders.logs(max_size=3).map(b"".join).flatmap(lambda raw: flipped(raw) | cut(raw))
)


@given(raw=any_logs, data=st.data())
def test_no_bytes_make_a_scan_read_outside_of_them_or_loop(
    kernels: Any, lay: Lay, raw: bytes, data: st.DataObject
) -> None:
    start, stop = data.draw(st.integers(0, len(raw))), data.draw(st.integers(0, len(raw) + 10))
    envelope = data.draw(st.sampled_from([BARE, DLEDGER]))
    buffer = lay(raw)

    result = scan.scan(buffer, 1 << 40, start, stop, envelope, kernels)

    table = result.table
    assert start <= result.end <= max(start, len(raw))
    assert len(table) <= max(0, min(stop, len(raw)) - start)
    ends = table.starts + table.column("size")
    assert (table.starts >= start).all()
    assert (ends <= len(raw)).all()
    for part in (plain.BODY, plain.TOPIC, plain.PROPERTIES):
        inside = (table.offsets(part) >= table.starts) & (table.offsets(part) + table.sizes(part) <= ends)
        assert (inside | (table.offsets(part) == 0) & (table.sizes(part) == 0)).all()
    for row in range(len(table)):
        assert Fault(table.faults[row]) is expected_fault(table.record(row))
    # What follows a scan: none of it may read outside either.
    table.body_crcs()
    table.topics()
    table.properties(["KEYS", "TAGS", "UNIQ_KEY"])


@given(raw=any_logs, data=st.data())
def test_plain_and_compiled_kernels_read_any_bytes_alike(raw: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(raw)))
    envelope = data.draw(st.sampled_from([BARE, DLEDGER]))

    one = scan.scan(memoryview(raw), 0, start, None, envelope, plain)
    other = scan.scan(GUARDED.at_end(raw), 0, start, None, envelope, scan.compiled_kernels())

    assert (one.end, one.stop) == (other.end, other.stop)
    for name in ("starts", "narrow", "wide", "extents", "faults"):
        assert getattr(one.table, name).tolist() == getattr(other.table, name).tolist(), name


def test_reading_outside_of_guarded_memory_ends_a_process() -> None:
    # What makes the tests above a proof.
    program = (
        "import ctypes, faulthandler, sys; from tests.formats.guard import Guarded\n"
        "faulthandler.disable(); placed = getattr(Guarded(), sys.argv[1])(b'12345678')\n"
        "ctypes.string_at(placed.ctypes.data + int(sys.argv[2]), 8)\n"
    )

    def run(*arguments: str) -> int:
        return subprocess.run([sys.executable, "-c", program, *arguments], check=False).returncode

    assert [run("at_end", "0"), run("at_end", "1"), run("at_start", "0"), run("at_start", "-1")] == [0, -11, 0, -11]


# Parts of a segment.


def walk_parts(raw: bytes, base: int, cuts: Sequence[int], envelope: scan.Envelope = BARE) -> list[list[int]]:
    """Return the starts of the records of each part: the first begins at 0, the others find their first record."""
    found: list[list[int]] = []
    edges = [0, *sorted(set(cuts)), len(raw)]
    view = memoryview(raw)
    for start, stop in itertools.pairwise(edges):
        first = 0 if start == 0 else scan.resync(view, base, start, stop, envelope)
        if first is None:
            found.append([])
            continue
        assert start <= first < stop
        found.append(scan.scan(view, base, first, stop, envelope).table.starts.tolist())
    return found


@given(whole=builders.logs(base=1 << 30, max_size=6), tail=st.integers(0, 200), data=st.data())
def test_parts_of_a_segment_have_each_record_exactly_once(whole: list[bytes], tail: int, data: st.DataObject) -> None:
    raw = b"".join(whole) + bytes(tail)
    cuts = data.draw(st.lists(st.integers(1, len(raw) - 1), max_size=5))

    parts = walk_parts(raw, 1 << 30, cuts)

    assert list(itertools.chain(*parts)) == starts_of(whole)
    edges = [0, *sorted(set(cuts)), len(raw)]
    for (start, stop), found in zip(itertools.pairwise(edges), parts, strict=True):
        assert found == [position for position in starts_of(whole) if start <= position < stop]


@given(entries=builders.dledger_logs, data=st.data())
def test_parts_of_a_dledger_segment_have_each_record_exactly_once(entries: list[bytes], data: st.DataObject) -> None:
    raw = b"".join(entries)
    cuts = data.draw(st.lists(st.integers(1, len(raw) - 1), max_size=4))

    parts = walk_parts(raw, 0, cuts, DLEDGER)

    assert list(itertools.chain(*parts)) == [start + DLEDGER.size for start in starts_of(entries)]


@pytest.mark.parametrize("step", [512, 4096, 10_007])
@pytest.mark.parametrize("name", ["mixed-550-kill", "special-533-clean", "many-533-clean", "batchcq-533-clean"])
def test_parts_of_golden_segments_have_each_record_exactly_once(name: str, step: int) -> None:
    expected = [message["phy"] for message in manifest(name)["messages"]]

    found = []
    for base, content in zip(*log(name), strict=True):
        for part in walk_parts(content, base, range(step, len(content), step)):
            found += [base + start for start in part]

    assert found == expected


@pytest.mark.parametrize("before", range(8))
def test_a_record_at_the_edge_of_a_window_of_zeros_is_found(before: int) -> None:
    # A search looks at a mebibyte at a time, and passes over one that is empty.
    position = (1 << 20) - before
    raw = bytes(position) + builders.record(position, body=b"found") + bytes(100)

    assert list(scan.candidates(memoryview(raw), 0, 0, len(raw))) == [position]
    assert scan.resync(memoryview(raw), 0, 1) == position


def fake(body_of: bytes, base: int, start: int) -> bytes:
    """Return a record at ``start`` whose body is a record that says that it lies where it does."""
    head = commit_log.HEADS[0].size
    inner = builders.record(base + start + head, body=body_of)
    return builders.record(base + start, body=inner)


def test_candidates_are_all_places_where_a_record_that_belongs_there_may_begin() -> None:
    first = fake(b"inner", 4096, 0)
    second = builders.record(4096 + len(first), body=b"second", version=2, topic="t" * 200)
    # Another's records and magic codes are none.
    stray = builders.record(0, body=b"moved") + struct.pack(">ii", 100, MAGIC_V1)
    third_at = len(first) + len(second) + len(stray)
    third = builders.record(4096 + third_at)
    torn = builders.record(4096 + third_at + len(third), body=bytes(50))[:-1]
    raw = first + second + stray + third + torn

    found = list(scan.candidates(memoryview(raw), 4096, 0, len(raw)))

    assert found == [0, commit_log.HEADS[0].size, len(first), third_at]
    assert scan.resync(memoryview(raw), 4096, len(first) + 1) == third_at
    assert scan.resync(memoryview(raw), 4096, len(first) + 1, third_at) is None
    assert scan.resync(memoryview(raw), 4096, third_at + 1) is None


@given(raw=any_logs, data=st.data())
def test_every_candidate_is_a_record_that_fits_and_belongs_there(raw: bytes, data: st.DataObject) -> None:
    start, stop = data.draw(st.integers(0, len(raw))), data.draw(st.integers(0, len(raw)))
    head = commit_log.HEADS[0].size

    found = list(scan.candidates(memoryview(raw), 0, start, stop))

    def fits(at: int) -> bool:
        size, magic = struct.unpack_from(">ii", raw, at)
        (offset,) = struct.unpack_from(">q", raw, at + 28)
        return magic in (MAGIC_V1, MAGIC_V2) and offset == at and 91 <= size <= len(raw) - at

    assert found == [at for at in range(start, stop) if at + head <= len(raw) and fits(at)]


# Kernels against twins. Texts lie somewhere in a buffer, each told by offset and size.

Pieces = tuple[bytes, Any, Any]


def pieces_of(texts: Sequence[bytes]) -> Pieces:
    """Lay texts out with a little room between them: the buffer, their offsets, their sizes."""
    joined = b""
    offsets = []
    for number, text in enumerate(texts):
        joined += bytes([number % 3] * (number % 2))
        offsets.append(len(joined))
        joined += text
    return joined, np.array(offsets, np.int64), np.array([len(text) for text in texts], np.int64)


def property_values(text: bytes) -> dict[bytes, bytes]:
    found = {}
    for chunk in text.split(b"\x02"):
        name, separator, value = chunk.partition(b"\x01")
        if separator and name and value:
            found[name] = value
    return found


NAMES = sorted(["KEYS", "TAGS", "UNIQ_KEY", "TAG", "TAGSX", "INNER_NUM", "INNER_BASE", "__CRC32#", "K", "DELAY", "名"])


def table_of(joined: bytes, offsets: Any, sizes: Any, part: int, kernels: Any, lay: Lay) -> scan.MessageTable:
    """Return a table whose messages have these texts as one of their parts."""
    count = len(offsets)
    extents = np.zeros((6, count), np.int64)
    extents[2 * part], extents[2 * part + 1] = offsets, sizes
    return scan.MessageTable(
        kernels,
        lay(joined),
        base=0,
        starts=np.zeros(count, np.int64),
        narrow=np.zeros((len(NARROW), count), np.int32),
        wide=np.zeros((len(WIDE), count), np.int64),
        extents=extents,
        faults=np.zeros(count, np.uint8),
    )


@given(texts=st.lists(builders.properties_texts | builders.odd_properties, max_size=6))
@example([b"TAGS\x01a\x02", b"TAGS\x01a", b"TAGS\x01\x02", b"\x01a\x02", b"TAGS\x02\x01a", b"TAGS\x01b\x02TAGS\x01"])
@example([b"TAGS\x01first\x02KEYS\x01k\x02TAGS\x01last\x02"])
@example([b"KEYS\x01" + b"k" * 40 + b"\x01\x02TAGS\x01x"])
def test_properties_are_found_as_split_finds_them(kernels: Any, lay: Lay, texts: list[bytes]) -> None:
    pieces = pieces_of(texts)
    table = table_of(*pieces, plain.PROPERTIES, kernels, lay)

    offsets, sizes = table.properties(NAMES)

    for row, text in enumerate(texts):
        expected = property_values(text)
        found = {
            name.encode(): bytes(table.buffer[offsets[i, row] : offsets[i, row] + sizes[i, row]])
            for i, name in enumerate(NAMES)
            if sizes[i, row]
        }
        assert found == {name: value for name, value in expected.items() if name.decode("utf-8", "replace") in NAMES}
        if text.isascii():
            assert {name.decode(): value.decode() for name, value in expected.items()} == parse_properties(text)


def is_pair(piece: bytes) -> bool:
    """Tell whether nothing but a pair as a broker writes it can be these bytes: no zeros where a name may lie."""
    fields = piece.split(b"\x01")
    return len(fields) > 1 and fields[0] != b"" and not any(b"\0" in field for field in fields[:-1])


@given(texts=st.lists(builders.properties_texts | builders.odd_properties, max_size=6))
@example([b"", b"TAGS\x01", b"TAGS\x01\x02", b"\x02TAGS\x01a\x02\x02", b"TAGS\x01a\0b\x02", b"K\x01v\x01w"])
@example([b"TAGS", b"\x01a", b"TAGS\x01a\x02\x01b", b"TA\0GS\x01a", b"K\x01v\0\0S\x01w\x02", b"TAGS\x01a\0", b"\0"])
@example([b"TAGS\x01" + b"a" * 27 + b"\0", b"TAGS\x01" + b"a" * 10 + b"\0", bytes(16), bytes(17), b"a" * 16])
def test_damaged_properties_are_those_that_no_broker_writes(kernels: Any, lay: Lay, texts: list[bytes]) -> None:
    table = table_of(*pieces_of(texts), plain.PROPERTIES, kernels, lay)

    damaged = table.checked_properties(NAMES)[2].tolist()

    assert damaged == [
        text.endswith(b"\0") or not all(is_pair(piece) for piece in text.split(b"\x02") if piece) for text in texts
    ]
    assert damaged == [not are_readable(text) for text in texts]


@given(
    topics=st.lists(st.binary(max_size=9) | st.text(max_size=9).map(str.encode) | st.just(b"%RETRY%g_1"), max_size=6)
)
@example(
    [b"a", b"a\0", b"a\x1f", b"a\x7f", b"a/b", b"..", b"\xff", "\ufffd".encode(), "gr\u00fc\u00df".encode(), b"x" * 255]
)
def test_topics_that_no_broker_can_have_are_told(kernels: Any, lay: Lay, topics: list[bytes]) -> None:
    table = table_of(*pieces_of(topics), plain.TOPIC, kernels, lay)

    nameless = table.nameless().tolist()

    assert nameless == [
        topic in (b".", b"..") or re.fullmatch("[^\0-\x1f\x7f/\ufffd]*", topic.decode("utf-8", "replace")) is None
        for topic in topics
    ]


@given(text=builders.properties_texts)
def test_no_text_of_a_broker_counts_as_damaged(text: bytes) -> None:
    assert are_readable(text)


@given(texts=st.lists(builders.properties_texts | builders.odd_properties, max_size=6), room=st.integers(0, 40))
@example(texts=[b"TAGS\x01first\x02KEYS\x01k\x02TAGS\x01last\x02", b"a\x01b\x01c"], room=9)
@example(texts=[b"KEYS\x01" + b"k" * 10 + b"\x02", b"KEYS\x01" + b"k" * 11], room=9)
def test_properties_are_listed_as_split_lists_them(kernels: Any, lay: Lay, texts: list[bytes], room: int) -> None:
    table = table_of(*pieces_of(texts), plain.PROPERTIES, kernels, lay)
    offsets, sizes = np.ascontiguousarray(table.extents[4]), np.ascontiguousarray(table.extents[5])
    ends = np.zeros(len(texts), np.int32)
    found = [np.zeros(room, np.int64) for _ in range(4)]

    count = kernels.list_properties(table.buffer, offsets, sizes, ends, *found)

    expected = [list(property_values(text).items()) for text in texts]
    assert count >= sum(map(len, expected))
    if count > room:
        return
    listed = [
        (bytes(table.buffer[name : name + name_size]), bytes(table.buffer[value : value + value_size]))
        for name, name_size, value, value_size in zip(*(one[:count].tolist() for one in found), strict=True)
    ]
    starts = [0, *ends.tolist()]
    assert [listed[start:end] for start, end in itertools.pairwise(starts)] == expected


@given(texts=st.lists(st.binary(max_size=80), max_size=6))
def test_byte_strings_are_packed_end_to_end(kernels: Any, lay: Lay, texts: list[bytes]) -> None:
    joined, offsets, sizes = pieces_of(texts)
    ends, out = np.zeros(len(texts), np.int32), np.zeros(int(sizes.sum()), np.uint8)

    kernels.pack(lay(joined), offsets, sizes, ends, out)

    assert out.tobytes() == b"".join(texts)
    assert ends.tolist() == list(itertools.accumulate(map(len, texts)))


def test_names_of_properties_must_be_in_order() -> None:
    with pytest.raises(ValueError, match="in order"):
        scan.scan(memoryview(b""), 0).table.properties(["TAGS", "KEYS"])


@given(
    texts=st.lists(st.sampled_from([b"", b"a", b"b", b"TopicTest", b"TopicTess"]) | st.binary(max_size=20), max_size=30)
)
def test_equal_topics_get_equal_numbers_in_order_of_appearance(kernels: Any, lay: Lay, texts: list[bytes]) -> None:
    table = table_of(*pieces_of(texts), plain.TOPIC, kernels, lay)

    ids, names = table.topics()

    numbers: dict[bytes, int] = {}
    assert ids.tolist() == [numbers.setdefault(text, len(numbers)) for text in texts]
    assert names == list(numbers)


def test_topics_that_begin_alike_are_told_apart(either: Any) -> None:
    texts = [b"t" * size for size in range(500, 0, -1)]
    lay: Lay = memoryview if either is plain else lambda raw: np.frombuffer(raw, np.uint8)

    ids, names = table_of(*pieces_of(texts), plain.TOPIC, either, lay).topics()

    assert ids.tolist() == list(range(500))
    assert names == texts


def test_there_may_be_more_topics_than_were_thought_of(either: Any) -> None:
    texts = [b"topic-%d" % (number % 3000) for number in range(4000)]
    lay: Lay = memoryview if either is plain else lambda raw: np.frombuffer(raw, np.uint8)
    table = table_of(*pieces_of(texts), plain.TOPIC, either, lay)

    ids, names = table.topics()

    assert ids.tolist() == [number % 3000 for number in range(4000)]
    assert names == texts[:3000]


@given(texts=st.lists(st.text(max_size=30), max_size=8))
@example(["polygenelubricants", "中文", "\U0001f600", "a" * 8, "a" * 17 + "é", "é" * 8 + "aaaaaaaa"])
def test_hashes_of_utf_8_are_those_of_the_text(kernels: Any, lay: Lay, texts: list[str]) -> None:
    joined, offsets, sizes = pieces_of([text.encode() for text in texts])
    out = np.zeros(len(texts), np.int64)

    kernels.hashes(lay(joined), offsets, sizes, out)

    assert out.tolist() == [builders.java_hash(text) for text in texts]


odd_bytes = st.sampled_from(
    [
        b"a",
        b"\xb0",
        b"\xc1",
        b"\xc3",
        b"\xe0",
        b"\xe4",
        b"\xed",
        b"\xf0",
        b"\xf4",
        b"\xf5",
        b"\x80",
        b"\x9f",
        b"\xa0",
        b"\xff",
    ]
)
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
"""Which Java takes for one letter that it does not know, Python for three."""


@given(texts=st.lists(st.lists(odd_bytes, max_size=12).map(b"".join) | st.binary(max_size=12), max_size=4))
@example(
    [b"\xb0key", b"k\xe4\xb8y", b"\xf0\x9f\x98", b"\xed\xa0\x80\xed\xb0\x80", b"\xf4\x90\x80\x80", b"\xe0\x80\x80"]
)
def test_what_is_no_utf_8_is_hashed_as_java_reads_it(kernels: Any, lay: Lay, texts: list[bytes]) -> None:
    joined, offsets, sizes = pieces_of(texts)
    out = np.zeros(len(texts), np.int64)

    kernels.hashes(lay(joined), offsets, sizes, out)

    read = [_SURROGATE.sub("\ufffd".encode(), text).decode("utf-8", "replace") for text in texts]
    assert out.tolist() == [builders.java_hash(text) for text in read]


@given(raw=st.binary(max_size=20), tail=st.sampled_from([b"", b"\xc3", b"\xe4\xb8", b"\xf0\x9f\x98", b"\xf0", b"\xff"]))
def test_no_bytes_make_a_hash_read_outside_of_them(kernels: Any, lay: Lay, raw: bytes, tail: bytes) -> None:
    offsets, sizes = np.array([0, len(raw)], np.int64), np.array([len(raw + tail), len(tail)], np.int64)
    out, other = np.zeros(2, np.int64), np.zeros(2, np.int64)

    kernels.hashes(lay(raw + tail), offsets, sizes, out)
    plain.hashes(memoryview(raw + tail), offsets, sizes, other)

    assert out.tolist() == other.tolist()
    assert (abs(out) <= 1 << 31).all()


@given(start=st.text(max_size=12), text=st.text(max_size=40))
def test_a_hash_is_continued_from_what_stands_before(kernels: Any, lay: Lay, start: str, text: str) -> None:
    raw = text.encode()
    seed = builders.java_hash(start) & 0xFFFFFFFF

    hashed = int(kernels.java_hash(lay(raw), 0, len(raw), seed)) & 0xFFFFFFFF

    assert hashed == builders.java_hash(start + text) & 0xFFFFFFFF


keyed = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["TopicTest", "订单", "b" * 30]),
        "UNIQ_KEY": st.sampled_from(["", "7F00000100002A9F1B6D000000000001"]) | st.text("ab中", max_size=12),
        "KEYS": st.lists(st.sampled_from(["", "k1", "k2", "order-created", "中文"]), max_size=4).map(" ".join),
        "TAGS": st.sampled_from(["", "TagA", "polygenelubricants"]),
        "skip": st.booleans(),
    }
)


@given(drawn=st.lists(keyed, max_size=6), room=st.integers(0, 30), by_tag=st.booleans())
def test_key_hashes_are_those_of_each_key_in_order(
    kernels: Any, lay: Lay, drawn: list[dict[str, Any]], room: int, by_tag: bool
) -> None:
    topics = sorted({one["topic"] for one in drawn})
    texts = [one[name].encode() for one in drawn for name in ("UNIQ_KEY", "KEYS", "TAGS")]
    joined, offsets, sizes = pieces_of(texts)
    seeds = [np.array([java_hash(topic + end) & 0xFFFFFFFF for topic in topics], np.int64) for end in ("#", "#T#")]
    if not by_tag:
        sizes[2::3] = 0
    columns = [np.ascontiguousarray(array[i::3]) for i in range(3) for array in (offsets, sizes)]
    rows, out, is_tag = np.full(room, -1, np.int64), np.zeros(room, np.int32), np.zeros(room, np.bool_)

    count = kernels.key_hashes(
        lay(joined),
        np.array([topics.index(one["topic"]) for one in drawn], np.int32),
        *seeds,
        *columns,
        np.array([one["skip"] for one in drawn], np.bool_),
        rows,
        out,
        is_tag,
    )

    expected = []
    for row, one in enumerate(drawn):
        if not one["skip"]:
            keys = [one["UNIQ_KEY"], *one["KEYS"].split(" ")]
            expected += [(row, builders.key_hash(f"{one['topic']}#{key}"), False) for key in keys if key]
            if by_tag and one["TAGS"]:
                expected.append((row, builders.key_hash(f"{one['topic']}#T#{one['TAGS']}"), True))
    assert count == len(expected)
    assert list(zip(rows.tolist(), out.tolist(), is_tag.tolist(), strict=True))[:count] == expected[:room]
    assert rows.tolist()[count:] == [-1] * max(0, room - count)


HASH_AT, PREVIOUS_AT = (index_file.ENTRY.offset_of(name) for name in ("key_hash", "previous_entry"))


def check_chains(kernels: Any, entries: Any, slots: int, room: int) -> tuple[int, list[int], list[int], list[int]]:
    last = np.zeros(slots, np.int32)
    expected, bad = np.full(room, -1, np.int64), np.full(room, -1, np.int64)
    stop = len(entries) // index_file.ENTRY_SIZE
    count = kernels.check_chains(entries, 1, stop, index_file.ENTRY_SIZE, HASH_AT, PREVIOUS_AT, last, expected, bad)
    return int(count), last.tolist(), expected.tolist(), bad.tolist()


@given(
    drawn=st.lists(st.tuples(builders.i32 | st.integers(0, 6), st.integers(-1, 4)), max_size=20),
    slots=st.integers(1, 9),
    room=st.integers(0, 6),
)
def test_chains_are_judged_as_a_dict_of_the_newest_entries_judges_them(
    kernels: Any, lay: Lay, drawn: list[tuple[int, int]], slots: int, room: int
) -> None:
    raw = bytes(20) + b"".join(struct.pack(">iqii", hashed, 0, 0, previous) for hashed, previous in drawn)

    count, last, expected, bad = check_chains(kernels, lay(raw), slots, room)

    newest: dict[int, int] = {}
    wrong = []
    for number, (hashed, previous) in enumerate(drawn, 1):
        slot = max(0, hashed) % slots
        if hashed < 0 or previous != newest.get(slot, 0):
            wrong.append((number, newest.get(slot, 0)))
        newest[slot] = number
    assert count == len(wrong)
    assert list(zip(bad, expected, strict=True))[:count] == wrong[:room]
    assert last == [newest.get(slot, 0) for slot in range(slots)]


@given(puts=st.lists(st.tuples(st.text("ab", max_size=3), builders.i32, st.integers(1, 99)), min_size=1, max_size=30))
def test_chains_that_a_broker_makes_are_sound(kernels: Any, lay: Lay, puts: list[tuple[str, int, int]]) -> None:
    slots = 5
    (data,) = builders.index_bytes(puts, slots, len(puts) + 1)

    count, last, _, _ = check_chains(kernels, lay(data[40 + 4 * slots :]), slots, 1)

    assert count == 0
    assert last == list(struct.unpack_from(f">{slots}i", data, 40))


@given(bodies=st.lists(st.binary(max_size=300), max_size=6))
def test_body_crcs_are_those_of_zlib(kernels: Any, lay: Lay, bodies: list[bytes]) -> None:
    table = table_of(*pieces_of(bodies), plain.BODY, kernels, lay)

    assert table.body_crcs().tolist() == [zlib.crc32(body) & 0x7FFFFFFF for body in bodies]


@given(one=st.binary(max_size=30), other=st.binary(max_size=30), data=st.data())
def test_stretches_are_equal_where_slices_are(either: Any, one: bytes, other: bytes, data: st.DataObject) -> None:
    if data.draw(st.booleans()):
        other = other[:5] + one
    at, other_at = data.draw(st.integers(0, len(one))), data.draw(st.integers(0, len(other)))
    size = data.draw(st.integers(0, min(len(one) - at, len(other) - other_at)))
    if either is plain:
        buffers: tuple[Any, Any] = memoryview(one), memoryview(other)
    else:
        buffers = GUARDED.at_end(one), GUARDED.at_start(other)

    assert either.equal(buffers[0], at, buffers[1], other_at, size) == (one[at:][:size] == other[other_at:][:size])


@given(raw=st.lists(st.integers(0, 4), max_size=40).map(bytes), data=st.data())
def test_separators_are_the_bytes_zero_one_and_two(kernels: Any, lay: Lay, raw: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, len(raw)))

    marks = int(kernels.separators(lay(raw), start, end))

    window = raw[start : min(end, start + 16)]
    assert marks == sum(1 << i for i, byte in enumerate(window) if byte <= 2)


@given(width=st.sampled_from([8, 16, 32, 64]), raw=st.binary(min_size=8, max_size=20), data=st.data())
def test_numbers_are_signed_and_big_endian(width: int, raw: bytes, data: st.DataObject) -> None:
    # Compiled, they can only be called by other kernels.
    at = data.draw(st.integers(0, len(raw) - width // 8))

    value = getattr(plain, f"int{width}")(memoryview(raw), at)

    assert value == int.from_bytes(raw[at : at + width // 8], "big", signed=True)


# Which kernels, and when.


def test_little_is_scanned_without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "LOAD_FROM", 1 << 20)  # as it is but for tests

    for is_first_time, least in ((False, scan.LOAD_FROM), (True, scan.COMPILE_FROM)):
        monkeypatch.setattr(scan, "compiles_first_time", lambda is_first_time=is_first_time: is_first_time)

        assert scan.kernels_for(least - 1) is plain
        assert scan.kernels_for(least) is scan.compiled_kernels()


@settings(max_examples=10)
@given(whole=builders.logs(max_size=3))
def test_a_scan_changes_nothing_in_its_input(whole: list[bytes]) -> None:
    writable = bytearray(b"".join(whole))

    scan.scan(memoryview(writable), 0).table.properties(["KEYS"])

    assert writable == b"".join(whole)
