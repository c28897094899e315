import collections
import contextlib
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.cli import COMMANDS
from mqtool.engine.repair import checks
from mqtool.engine.repair.checks import CHECKS
from mqtool.engine.repair.doctor.pages import PAGES
from mqtool.engine.repair.findings import Finding, Severity
from mqtool.engine.repair.verify import store as verify
from mqtool.engine.repair.verify.queues import IntervalSet
from mqtool.engine.repair.verify.store import Level, verify_store
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import MqtoolError, NotPermittedError
from mqtool.formats import consume_queue, scan, timer
from tests import builders, damage
from tests.campaigns.damage import campaign, is_excused
from tests.commands.running import run
from tests.engine.repair.recipes import RECIPES
from tests.golden import GOLDEN_NAMES, copy_of, golden_store, manifest

Change = Callable[[Path], object]

SEGMENT = 65536
FIRST, SECOND, THIRD, FOURTH, LAST = (f"commitlog/{number * SEGMENT:020}" for number in range(5))
"""The segments of mixed-533-clean."""


def found_in(store: Path, level: Level = Level.FULL, **options: Any) -> list[Finding]:
    return list(verify_store(StoreReader(store), level, **options))


def problems_in(store: Path, level: Level = Level.FULL, **options: Any) -> list[Finding]:
    return [found for found in found_in(store, level, **options) if found.severity is not Severity.NOTE]


def places(found: list[Finding]) -> set[tuple[str, str | None, int | None]]:
    return {(one.code, one.file, one.offset) for one in found}


# The table of checks.


def test_every_code_in_the_sources_is_in_the_table_and_the_other_way_round() -> None:
    families = "|".join(sorted({code.partition("-")[0] for code in CHECKS}))
    sources = (Path(checks.__file__).parent / "verify").glob("*.py")
    emitted = {code for path in sources for code in re.findall(rf'"((?:{families})-[A-Z-]+)"', path.read_text())}

    assert emitted == set(CHECKS)


@pytest.mark.parametrize("code", CHECKS | PAGES)
def test_every_check_is_explained(code: str) -> None:
    check = (CHECKS | PAGES)[code]

    assert 15 < len(check.title) < 100
    for text in (check.title, check.cause, check.remedy):
        assert text.endswith((".", ")", "`")), text
        assert "  " not in text
        assert text.count("`") % 2 == 0
    assert set(re.findall(r"`mqtool (\w+)", check.cause + check.remedy)) <= set(COMMANDS)
    assert set(re.findall(r"\b[A-Z]+-[A-Z-]+[A-Z]\b", check.cause + check.remedy)) - {"UTF-8", "CRC-32"} <= set(CHECKS)


# Sound stores.


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_a_golden_store_has_neither_errors_nor_warnings(name: str) -> None:
    found = found_in(golden_store(name))

    notes = collections.Counter(one.code for one in found)
    expected = {"CONFIG-NO-QUEUE"}  # brokers make topics named after cluster and broker
    if not (golden_store(name) / "config").exists():
        expected = {"CONFIG-MISSING"}  # written through the store API: there is no broker
    if manifest(name)["abort"]:
        expected |= {"ABORT-FILE"}
    if name == "ext-497-kill":
        expected |= {"CHECKPOINT-ZERO"}
    assert {one.severity for one in found} == {Severity.NOTE}
    assert set(notes) == expected
    assert max(notes.values()) == 1


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_the_quick_level_finds_no_more_than_the_full_one(name: str) -> None:
    store = golden_store(name)

    assert {one.code for one in found_in(store, Level.QUICK)} <= {one.code for one in found_in(store)}


# The recorded damage.


def test_the_table_of_recipes_is_complete() -> None:
    assert sorted(RECIPES) == sorted(case.name for case in damage.cases())
    assert len(RECIPES) == 88


@pytest.mark.parametrize("case", damage.cases(), ids=lambda case: case.name)
def test_recorded_damage_is_found_where_it_is(case: damage.DamageCase, tmp_path: Path) -> None:
    store = case.store(tmp_path)
    before = damage.snapshot(store)
    recipe = RECIPES[case.name]

    found = problems_in(store)

    assert damage.snapshot(store) == before
    assert places([one for one in found if one.code not in recipe.also]) == set(recipe.places)
    assert {one.code for one in found} == {code for code, _, _ in recipe.places} | recipe.also
    assert {one.code for one in problems_in(store, Level.QUICK)} == recipe.quick
    assert all(one.severity is CHECKS[one.code].severity for one in found)


def hits(case: damage.DamageCase) -> tuple[set[int], dict[str, int]]:
    """Return the addresses of records that operations hit in the middle, and the first unit hit by queue file."""
    hit = set()
    ends: dict[str, int] = {}
    for op in case.ops:
        file = op.get("file", "")
        if file.startswith("commitlog/") and op["op"] in ("write", "zero"):
            at = int(file.rpartition("/")[2]) + op["at"]
            starts = [message["phy"] for message in manifest(case.base)["messages"]]
            starts += [blank for blank, _ in manifest(case.base)["blanks"]]
            start = max(one for one in starts if one <= at)
            if start < at:  # a record whose first byte is zeroed too is gone without a trace in the log
                hit.add(start)
        elif file.startswith("consumequeue/") and op["op"] in ("write", "zero"):
            ends[file] = min(ends.get(file, op["at"]), op["at"] // consume_queue.UNIT_SIZE * consume_queue.UNIT_SIZE)
    return hit, ends


@pytest.mark.parametrize("case", [case for case in damage.cases() if any(hits(case))], ids=lambda case: case.name)
def test_places_of_recorded_damage_are_the_records_and_units_that_were_hit(
    case: damage.DamageCase, tmp_path: Path
) -> None:
    """Hold the table against where RocketMQ's own classes see records, so that nobody copied wrong places into it."""
    hit, ends = hits(case)

    found = problems_in(case.store(tmp_path))

    named = {one.physical_offset for one in found if one.physical_offset is not None}
    in_queues = {(one.topic, one.queue_id): one for one in found if (one.file or "").startswith("consumequeue/")}
    if "half-log" in case.name:  # segments behind the first that was hit are zero as a whole
        hit = {min(hit)}
    assert hit <= named
    for file, at in ends.items():
        _, topic, queue_id, _ = file.split("/")
        first = in_queues[topic, int(queue_id)]
        assert first.file is not None
        # Of several files of a queue the first finding names the first.
        assert (first.file, first.offset) <= (file, at)


def test_a_queue_offset_far_below_zero_takes_no_longer(tmp_path: Path) -> None:
    store = copy_of("timer-533-clean", tmp_path)
    damage.apply_ops(store, [{"op": "write", "file": FIRST, "at": 12899, "hex": "80"}])

    codes = {one.code for one in problems_in(store)}

    assert {"LOG-QUEUE-ORDER", "QUEUE-DANGLING"} <= codes


# The same findings however the work is shared.


def _as_recorded(name: str) -> Change:
    (case,) = (case for case in damage.cases() if case.name == name)
    return lambda store: damage.apply_ops(store, case.ops)


DAMAGED = [
    "mixed-533-clean/magic-blank",
    "mixed-533-clean/body-byte-first-segment",
    "mixed-533-clean/zero-page-second-segment-no-checkpoint-abort",
    "mixed-533-clean/middle-segment-missing",
    "mixed-533-clean/cq-ahead-of-log-abort",
    "mixed-533-clean/stale-records-after-end-abort",
    "mixed-533-clean/queue-offset-ahead-full-scan",
    "mixed-497-clean/zero-page-last-segment",
]


def _sorted(found: list[Finding]) -> list[str]:
    return sorted(map(str, found))


@pytest.mark.parametrize("name", DAMAGED)
def test_findings_do_not_depend_on_how_the_work_is_shared(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = copy_of(name.split("/")[0], tmp_path)
    _as_recorded(name)(store)
    alone = found_in(store)

    assert found_in(store, jobs=2) == alone
    for part, jobs in ((300, 1), (5000, 3), (40_000, 2)):
        monkeypatch.setattr(verify, "PART", part)
        assert _sorted(found_in(store, jobs=jobs)) == _sorted(alone)


@pytest.mark.parametrize("name", [*DAMAGED, "txn-533-clean/", "special-550-kill/", "batchcq-533-kill/"])
def test_compiled_and_plain_kernels_find_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = copy_of(name.split("/")[0], tmp_path)
    if not name.endswith("/"):
        _as_recorded(name)(store)
    monkeypatch.setattr(scan, "COMPILE_FROM", 0)
    compiled = found_in(store)
    monkeypatch.undo()

    monkeypatch.setattr(scan, "LOAD_FROM", scan.COMPILE_FROM)

    assert found_in(store) == compiled


# Queues of inner batches.


def _batch_file(number: int) -> str:
    return f"batchconsumequeue/Inner/0/{number * 460:020}"


@pytest.mark.parametrize(
    ("at", "raw", "expected"),
    [
        (46 * 3, struct.pack(">q", 1), {("QUEUE-POSITION", 46 * 3)}),
        (46 * 3 + 8, struct.pack(">i", 77), {("QUEUE-LENGTH", 46 * 3)}),
        (46 * 3 + 12, struct.pack(">q", 77), {("QUEUE-TAGS", 46 * 3)}),
        (46 * 3 + 20, struct.pack(">q", 77), {("QUEUE-TIME", 46 * 3)}),
        (46 * 3 + 28, struct.pack(">q", 1 << 50), {("QUEUE-MISSING", 46 * 3), ("QUEUE-DANGLING", 46 * 3)}),
        (46 * 3 + 28, struct.pack(">q", 0), {("QUEUE-MISSING", 46 * 3), ("QUEUE-DANGLING", 46 * 3)}),
        (46 * 0 + 28, struct.pack(">q", 99), {("QUEUE-MISSING", 0), ("QUEUE-DANGLING", 0)}),
        (46 * 1 + 28, struct.pack(">q", 0), {("QUEUE-MISSING", 46), ("QUEUE-DANGLING", 46)}),
        (46 * 1 + 28, struct.pack(">q", -1), {("QUEUE-MISSING", 46), ("QUEUE-DANGLING", 46)}),
        (46 * 3 + 36, struct.pack(">h", 77), {("QUEUE-BATCH", 46 * 3)}),
        (46 * 0 + 36, struct.pack(">h", -1), {("QUEUE-BATCH", 0)}),
        (46 * 3, bytes(46), {("QUEUE-MISSING", 46 * 3)}),
    ],
)
def test_a_damaged_batch_unit_is_found_and_no_other_is_blamed(
    at: int, raw: bytes, expected: set[tuple[str, int]], tmp_path: Path
) -> None:
    store = copy_of("batchcq-533-clean", tmp_path)
    _write(_batch_file(0), at, raw)(store)

    found = problems_in(store)

    assert places(found) == {(code, _batch_file(0), offset) for code, offset in expected}
    assert len(found) == len(expected)


def test_batch_units_that_a_file_lacks_are_missed_where_it_ends(tmp_path: Path) -> None:
    store = copy_of("batchcq-533-clean", tmp_path)
    units = manifest("batchcq-533-clean")["load"]["after_load"]["queues"]["Inner"]["0"]["units"]
    os.truncate(store / _batch_file(0), 46 * 7 + 11)

    found = problems_in(store)

    assert places(found) == {
        ("QUEUE-FILE-SIZE", _batch_file(0), 46 * 7 + 11),
        ("QUEUE-MISSING", _batch_file(0), 46 * 7),
    }
    missing = [one.queue_offset for one in found if one.code == "QUEUE-MISSING"]
    assert missing == [unit[0] for unit in units[7:10]]


@pytest.mark.parametrize("per_file", [1, 3, 7])
def test_batch_queues_in_shorter_files_are_as_sound(per_file: int, tmp_path: Path) -> None:
    store = copy_of("batchcq-533-clean", tmp_path)
    for first in sorted(store.glob(f"batchconsumequeue/*/*/{0:020}")):
        files = sorted(first.parent.iterdir())
        data = b"".join(path.read_bytes() for path in files)
        for path in files:
            path.unlink()
        builders.write_files(first.parent, data, 46 * per_file)

    assert problems_in(store) == []
    assert problems_in(store, jobs=2) == []


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)), max_size=20))
def test_ranges_are_the_set_of_their_numbers(added: list[tuple[int, int]]) -> None:
    ranges, numbers = IntervalSet(), set[int]()
    for start, count in added:
        ranges.add(start, start + count)
        numbers.update(range(start, start + count))

    assert ranges.has(2, 50).tolist() == [number in numbers for number in range(2, 50)]


# Damage anywhere.


@pytest.mark.parametrize(
    ("name", "only"),
    [
        ("txn-533-kill", ""),
        ("ext-533-clean", "flip"),
        ("batchcq-533-clean", "flip"),
        ("propcrc-533-clean", "flip"),
        ("dledger-497-clean", "flip"),
    ],
)
def test_a_change_to_a_field_is_found_unless_nothing_can_be_held_against_it(name: str, only: str) -> None:
    """The short form of ``tests.campaigns.damage``, which lists the fields that are excused."""
    tallies, crashes = campaign(name, each=1, seed=0, only=only)

    assert crashes == []
    missed = {key: tally.examples for key, tally in tallies.items() if tally.missed and not is_excused(key[1])}
    assert missed == {}
    assert sum(tally.tried for tally in tallies.values()) > 50


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield copy_of("txn-533-clean", tmp_path_factory.mktemp("victim"))


@given(st.data())
def test_any_flips_and_cuts_end_in_findings_or_in_a_sentence(victim: Path, data: st.DataObject) -> None:
    ops = data.draw(st.lists(damage.flips(victim) | damage.cuts(victim), min_size=1, max_size=3))

    with damage.damaged(victim):
        try:
            paths = {victim / op["file"]: (victim / op["file"]).read_bytes() for op in ops}
            for op in ops:
                if op["op"] == "resize" or op["at"] < (victim / op["file"]).stat().st_size:
                    damage.apply_ops(victim, [op])
            for level in Level:
                assert all(one.message for one in found_in(victim, level))
        except MqtoolError as error:
            assert str(error)
        finally:
            for path, content in paths.items():
                path.write_bytes(content)


@given(st.integers(0, 3), st.binary(min_size=1, max_size=2000), st.integers(0, SEGMENT - 2000))
def test_any_bytes_in_the_log_end_in_findings(victim: Path, level: int, noise: bytes, at: int) -> None:
    op = {"op": "write", "file": FIRST, "at": at, "hex": noise.hex()}

    with damage.damaged(victim, op):
        found_in(victim, Level.FULL if level else Level.QUICK)


# Noise: one cause is one finding, or few.


def test_many_findings_of_one_code_are_counted_in_a_last_one(tmp_path: Path) -> None:
    store = copy_of("many-533-clean", tmp_path)
    for path in (store / "consumequeue").glob("*/*/*"):
        with path.open("r+b") as file:
            file.seek(8)
            file.write(struct.pack(">i", 7))

    some, everything = problems_in(store, most=10), problems_in(store, most=None)

    assert [one.code for one in everything] == ["QUEUE-LENGTH"] * 40
    assert some[:10] == everything[:10]
    assert some[10].message == "30 more of these in 30 files or folders"
    assert len(some) == 11


def test_what_a_hole_in_the_log_swallowed_is_told_once(tmp_path: Path) -> None:
    store = copy_of("many-533-clean", tmp_path)
    (store / "commitlog/00000000000000131072").unlink()

    found = [one for one in problems_in(store) if one.code.startswith("LOG-")]

    lost = [one for one in manifest("many-533-clean")["messages"] if 131072 <= one["phy"] < 147456]
    queues = {(one["topic"], one["queue_id"]) for one in lost}
    assert places(found) == {
        ("LOG-GAP", "commitlog/00000000000000147456", 0),
        ("LOG-QUEUE-ORDER", "commitlog/00000000000000147456", 0),
    }
    assert found[-1].message == f"{len(lost)} messages of {len(queues)} queues were lost here"


def test_a_missing_index_file_is_one_finding_a_stretch(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    sorted((store / "index").iterdir())[1].unlink()

    found = problems_in(store)

    assert {one.code for one in found} == {"INDEX-MISSING"}
    assert len(found) < 6


def test_a_queue_begun_with_filler_is_one_finding(tmp_path: Path) -> None:
    """RocketMQ 5.4 and later do this to stores of more than ten segments."""
    store = copy_of("mixed-533-clean", tmp_path)
    path = store / "consumequeue/log-x/0/00000000000000000000"
    path.write_bytes(struct.pack(">qiq", 0, consume_queue.PRE_BLANK_SIZE, 0) * 20)

    (found,) = problems_in(store)

    assert (found.code, found.offset) == ("QUEUE-MISSING", 0)
    assert "20 messages" in found.message
    assert "filler" in found.message


def test_units_at_the_wrong_index_are_one_finding(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    path = store / "consumequeue/log-x/0/00000000000000000000"
    data = path.read_bytes()
    path.write_bytes(data[20:] + data[:20])

    (found,) = problems_in(store)

    assert found.code == "QUEUE-POSITION"
    assert "20 units" in found.message


# What the campaign showed to be missed once.


def _write(file: str, at: int, data: bytes) -> Change:
    return lambda store: damage.apply_ops(store, [{"op": "write", "file": file, "at": at, "hex": data.hex()}])


def _record(name: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    return next(message for message in manifest(name)["messages"] if wanted(message))


def _flip_flag(store: Path, name: str, wanted: Callable[[dict[str, Any]], bool], bit: int) -> int:
    message = _record(name, wanted)
    segment = StoreReader(store).commit_log.segment_at(message["phy"])
    assert segment
    at = message["phy"] - segment.start_offset + 36
    flag = struct.unpack_from(">i", segment.path.read_bytes(), at)[0] ^ bit
    _write(str(segment.path.relative_to(store)), at, struct.pack(">i", flag))(store)
    return int(message["phy"])


def test_a_body_that_is_not_packed_as_its_flag_says_is_found(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    plain = _flip_flag(store, "mixed-533-clean", lambda one: not one["sys_flag"] and one["body_len"] > 8, 1)
    lz4 = _flip_flag(store, "mixed-533-clean", lambda one: one["sys_flag"] & 0x701 == 0x101, 0x300)

    found = problems_in(store)

    assert [(one.code, one.physical_offset) for one in found] == [("LOG-FLAG", at) for at in sorted((plain, lz4))]


def test_a_flag_of_several_messages_without_them_is_found(tmp_path: Path) -> None:
    store = copy_of("batchcq-533-clean", tmp_path)
    batch = _flip_flag(store, "batchcq-533-clean", lambda one: bool(one["sys_flag"] & 0x80), 0x80)

    found = problems_in(store)

    assert [(one.code, one.physical_offset) for one in found] == [("LOG-FLAG", batch)]


def test_bits_that_mean_nothing_are_noted(tmp_path: Path) -> None:
    store = copy_of("batchcq-533-clean", tmp_path)
    _flip_flag(store, "batchcq-533-clean", lambda _: True, 0x4000)

    assert problems_in(store) == []
    assert "LOG-FLAG-BITS" in {one.code for one in found_in(store)}


def test_a_number_that_brokers_cannot_parse_is_found(tmp_path: Path) -> None:
    store = copy_of("txn-533-clean", tmp_path)
    data = (store / FIRST).read_bytes()
    message = _record("txn-533-clean", lambda one: bool(one["topic"] == "SCHEDULE_TOPIC_XXXX"))
    at = data.index(b"DELAY\x01", message["phy"]) + 6
    _write(FIRST, at, b"x")(store)

    found = {one.code: one for one in problems_in(store)}

    assert found["LOG-PROPERTIES"].physical_offset == message["phy"]
    assert set(found) <= {"LOG-PROPERTIES", "QUEUE-TAGS"}


@pytest.mark.parametrize("damage", [b"\0", b"\n", b"/", b"\x7f", b"\xff", "\ufffd".encode()])
def test_a_topic_that_no_broker_can_have_is_found_and_no_queue_is_due_for_it(damage: bytes, tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    message = _record("mixed-533-clean", lambda one: bool(one["queue_offset"] == 1))
    topic = message["topic"].encode()
    at = (store / FIRST).read_bytes().index(topic, message["phy"] + 88 + message["body_len"])
    _write(FIRST, at + 3, damage)(store)

    found = [(one.code, one.physical_offset) for one in problems_in(store) if one.code.startswith(("LOG", "QUEUE"))]

    place = message["phy"]
    assert sorted(found) == [("LOG-QUEUE-ORDER", place), ("LOG-TOPIC", place), ("QUEUE-DANGLING", place)]


def test_properties_that_no_broker_writes_are_found(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    data = (store / FIRST).read_bytes()
    texts: dict[int, Callable[[bytes], bytes]] = {
        1: lambda text: text.replace(b"\x01", b"x", 1),  # no separator
        4: lambda text: b"\x01" + text[1:],  # no name
        7: lambda text: bytes(len(text)),
        10: lambda text: text[:-9] + bytes(9),  # a page of zeros begins there
        13: lambda text: data[2:][: len(text)],  # another record's
        16: lambda text: text.replace(b"\x02", b"\0", 1),  # zeros over an end and a name
        19: lambda text: text.replace(b"\x02", b"x", 1),  # two pairs are one, as long as a value may hold anything
        22: lambda text: text[:9] + b"\xff\0" + text[11:],  # a value that is no text
    }
    messages = manifest("mixed-533-clean")["messages"]
    for number, change in texts.items():
        start, end = _properties(data, messages[number])
        _write(FIRST, start, change(data[start:end]))(store)

    found = [one for one in problems_in(store) if one.code == "LOG-PROPERTY-TEXT"]

    assert [one.physical_offset for one in found] == [messages[number]["phy"] for number in (1, 4, 7, 10, 13, 16)]


def _properties(data: bytes, message: dict[str, Any]) -> tuple[int, int]:
    """Return where the properties of a message of the first segment begin and end."""
    end = message["phy"] + message["size"]
    names = (name.encode() + b"\x01" for name in message["properties"])
    return min(data.index(name, message["phy"], end) for name in names), end


@pytest.mark.parametrize("at", [0, 8])
def test_times_of_an_index_header_are_held_against_the_messages(at: int, tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    index = sorted((store / "index").iterdir())[1]
    file = str(index.relative_to(store))
    time = struct.unpack_from(">q", index.read_bytes(), at)[0]
    _write(file, at, struct.pack(">q", time + 1))(store)

    assert ("INDEX-HEADER", file, at) in places(problems_in(store))


@pytest.mark.parametrize(("at", "value"), [(0, 35), (18, 0), (68, -1), (34, 0)])
def test_an_extension_that_cannot_be_walked_is_found(at: int, value: int, tmp_path: Path) -> None:
    store = copy_of("ext-533-clean", tmp_path)
    file = "consumequeue_ext/Ext/1/00000000000000000000"
    _write(file, at, struct.pack(">h", value))(store)

    assert ("QUEUE-EXT", file, at // 34 * 34) in places(problems_in(store))


@pytest.mark.parametrize("size", [0, 34, 35])
def test_an_extension_whose_first_file_is_too_short_cannot_be_walked_and_recover_says_what_it_leaves(
    size: int, tmp_path: Path
) -> None:
    store = copy_of("ext-533-clean", tmp_path)
    file = "consumequeue_ext/Ext/1/00000000000000000000"
    os.truncate(store / file, size)

    found = places(problems_in(store))
    recovered = run("recover", "--abnormal", "--yes", "-s", store)

    assert ("QUEUE-EXT", file, 0) in found
    assert f"left unchanged (QUEUE-EXT): {file}" in recovered.remarks


@pytest.mark.parametrize(("field", "at"), [("index", 15), ("position", 31), ("body_size", 47)])
def test_the_head_of_a_dledger_entry_is_checked(field: str, at: int, tmp_path: Path) -> None:
    store = copy_of("dledger-497-clean", tmp_path)
    file = "dledger-n0/data/00000000000000000000"
    _write(file, at, b"\x7f")(store)

    assert field
    assert {one.code for one in problems_in(store)} == {"LOG-ENTRY"}


@pytest.mark.parametrize("number", [0, 1, -1], ids=["first", "second", "last"])
@pytest.mark.parametrize("rows", [1, 2, 60_000])
def test_a_record_that_lost_its_crc_property_is_found(
    number: int, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqtool.engine.store.commit_log.ROWS", rows)  # of a table: neighbors may be in another one
    store = copy_of("propcrc-533-clean", tmp_path)
    message = manifest("propcrc-533-clean")["messages"][number]
    file = f"commitlog/{message['phy'] // 32_768 * 32_768:020}"
    at = (store / file).read_bytes().index(b"__CRC32#", message["phy"] % 32_768)
    _write(file, at, b"_-")(store)

    (found,) = problems_in(store)

    assert (found.code, found.physical_offset) == ("LOG-PROPERTY-CRC", message["phy"])


def _timer_units(store: Path) -> dict[int, np.void]:
    reader = StoreReader(store)
    assert reader.timer_log
    raw = b"".join(reader.timer_log.read(at, timer.LOG_UNIT_SIZE) for at in (504, 556, 608, 660, 712))
    return dict(zip((504, 556, 608, 660, 712), np.frombuffer(raw, timer.LOG_UNIT.dtype), strict=True))


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ("previous_position", "TIMER-CHAIN"),
        ("magic_code", "TIMER-UNIT"),
        ("enqueue_timestamp", "TIMER-UNIT"),
        ("delay_ms", "TIMER-UNIT"),
        ("physical_offset", "TIMER-MESSAGE"),
        ("message_size", "TIMER-MESSAGE"),
        ("topic_hash", "TIMER-UNIT"),
    ],
)
def test_each_field_of_a_unit_of_the_timer_log_is_checked(field: str, code: str, tmp_path: Path) -> None:
    store = copy_of("timer-533-clean", tmp_path)
    place = timer.LOG_UNIT.dtype.fields
    assert place
    kind, offset = place[field][:2]
    at = 608 - 400 + offset + kind.itemsize - 1
    value = (store / "timerlog/00000000000000000400").read_bytes()[at] ^ 8
    _write("timerlog/00000000000000000400", at, bytes([value]))(store)

    assert (code, "timerlog/00000000000000000400", 208) in places(problems_in(store))


@pytest.mark.parametrize("field", ["time", "first_position", "last_position", "count", "magic_code"])
def test_each_field_of_a_slot_to_come_is_checked(field: str, tmp_path: Path) -> None:
    store = copy_of("timer-533-clean", tmp_path)
    unit = _timer_units(store)[660]
    slot = (int(unit["enqueue_timestamp"]) + int(unit["delay_ms"])) // 1000 % timer.WHEEL_SLOT_COUNT * timer.SLOT_SIZE
    place = timer.SLOT.dtype.fields
    assert place
    kind, offset = place[field][:2]
    at = slot + offset + kind.itemsize - 1
    value = MappedFile(store / "timerwheel", 0, timer.WHEEL_SIZE).read(at, 1)[0] ^ 4
    _write("timerwheel", at, bytes([value]))(store)

    assert ("TIMER-SLOT", "timerwheel", slot) in places(problems_in(store))


@pytest.mark.parametrize("name", ["timerwheel", "timerlog", "config/timercheck"])
def test_a_missing_file_of_the_timer_is_found(name: str, tmp_path: Path) -> None:
    store = copy_of("timer-533-clean", tmp_path)
    damage.apply_ops(store, [{"op": "delete", "path": name}])

    assert ("TIMER-MISSING", name, None) in places(problems_in(store))


def test_a_timer_that_reads_beyond_its_queue_is_found(tmp_path: Path) -> None:
    store = copy_of("timer-533-clean", tmp_path)
    _write("config/timercheck", 23, b"\x0f")(store)

    assert places(problems_in(store)) == {("TIMER-CHECK", "config/timercheck", 16)}


def test_an_unreadable_backup_of_a_table_is_noted(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    (store / "config/topics.json.bak").write_bytes(b"{")

    assert problems_in(store) == []
    assert ("CONFIG-BACKUP", "config/topics.json.bak", None) in places(found_in(store))


def test_a_table_that_means_nothing_is_named(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    (store / "config/delayOffset.json").write_bytes(b'{"offsetTable":{"x":[]}}')

    assert places(problems_in(store)) == {("CONFIG-FROM-BACKUP", "config/delayOffset.json", None)}

    (store / "config/delayOffset.json.bak").unlink()

    assert places(problems_in(store)) == {("CONFIG-UNREADABLE", "config/delayOffset.json", None)}


def test_consumer_offsets_behind_the_end_are_one_finding_a_group_and_topic(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    text = '{"offsetTable":{"OrderEvents@G":{0:3,1:999,2:999,3:999},"log-x@G":{0:91}}}'
    (store / "config/consumerOffset.json").write_text(text)

    (found,) = problems_in(store)

    assert (found.code, found.topic, found.queue_id, found.expected, found.found) == (
        "CONFIG-OFFSET", "OrderEvents", 1, 24, 999,
    )  # fmt: skip
    assert "3 queues" in found.message


@pytest.mark.parametrize(("units", "codes"), [(0, set()), (1, {"CONFIG-QUEUE-COUNT"})])
def test_a_queue_above_the_count_of_its_topic_is_missed_by_consumers_only_if_it_holds_something(
    units: int, codes: set[str], tmp_path: Path
) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    first = store / "consumequeue/OrderEvents/0" / ("0" * 20)
    above = store / "consumequeue/OrderEvents/4" / ("0" * 20)
    above.parent.mkdir()
    above.write_bytes(first.read_bytes()[: 20 * units].ljust(first.stat().st_size, b"\0"))

    found = [one for one in found_in(store) if one.code.startswith("CONFIG-") and one.severity is not Severity.NOTE]

    assert {one.code for one in found} == codes
    assert {one.queue_id for one in found} == ({4} if codes else set())


def test_an_index_that_is_switched_off_is_not_missed(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    shutil.rmtree(store / "index")
    reader = StoreReader(store, StoreConfig({"messageIndexEnable": "false"}))

    for level in Level:
        assert {one.severity for one in verify_store(reader, level)} == {Severity.NOTE}


# Stores after retention, and others that are sound.


def _retain(store: Path, start_offset: int) -> None:
    """Delete what retention deletes when the log begins at ``start_offset``."""
    for segment in (store / "commitlog").iterdir():
        if int(segment.name) < start_offset:
            segment.unlink()
    for queue in (store / "consumequeue").glob("*/*"):
        for path in sorted(queue.iterdir())[:-1]:
            if struct.unpack(">q", path.read_bytes()[-20:-12])[0] >= start_offset:
                break
            path.unlink()
    for path in sorted((store / "index").iterdir())[:-1]:
        if struct.unpack_from(">q", path.read_bytes(), 24)[0] < start_offset:
            path.unlink()


@pytest.mark.parametrize("segments", [1, 2, 3, 4])
def test_a_store_after_retention_is_sound(segments: int, tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    _retain(store, segments * SEGMENT)

    for level in Level:
        assert {one.code for one in found_in(store, level)} == {"CONFIG-NO-QUEUE"}


def test_an_index_that_holds_many_expired_entries_is_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest index file stays while it has one entry that is of use, and holds millions."""
    monkeypatch.setattr("mqtool.engine.repair.verify.index._LOOK_AHEAD", 2)
    monkeypatch.setattr("mqtool.engine.repair.verify.store.PART", 4096)
    store = copy_of("mixed-533-clean", tmp_path)
    _retain(store, 2 * SEGMENT)
    (first, *_) = sorted((store / "index").iterdir())
    shutil.copy(next(path for path in sorted((golden_store("mixed-533-clean") / "index").iterdir())), first.parent)

    assert problems_in(store) == []


def test_a_beginning_that_went_without_retention_is_noted(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    for segment in (FIRST, SECOND, THIRD):
        (store / segment).unlink()

    assert problems_in(store) == []
    assert ("LOG-START", FOURTH, 0) in places(found_in(store))


def test_an_index_that_began_late_is_one_warning(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    min((store / "index").iterdir()).unlink()

    found = problems_in(store)

    assert {one.code for one in found} == {"INDEX-MISSING"}
    assert len(found) <= 2


def test_a_message_indexed_twice_is_noted(tmp_path: Path) -> None:
    """A clean start without queues dispatches the last message again."""
    store = copy_of("txn-533-kill", tmp_path)
    reader = StoreReader(store)
    (file,) = reader.index_files
    assert file.shape
    entry = file.entries()[-1].copy()
    number, slot = file.entry_stop, int(entry["key_hash"]) % file.shape.slots
    entry["previous_entry"] = number - 1
    with file.path.open("r+b") as stream:
        os.pwrite(stream.fileno(), entry.tobytes(), file.entries_at + 20 * number)
        os.pwrite(stream.fileno(), struct.pack(">i", number), 40 + 4 * slot)
        os.pwrite(stream.fileno(), struct.pack(">i", number + 1), 36)

    assert problems_in(store) == []
    assert "INDEX-DUPLICATE" in {one.code for one in found_in(store)}


# Things that are no files, and files that may not be read.


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nowhere/at/all")


FILES = [
    (FIRST, "LOG-"),
    (THIRD, "LOG-"),
    ("consumequeue/OrderEvents/2/00000000000000000000", "QUEUE-"),
    ("checkpoint", "CHECKPOINT-"),
    ("config/topics.json", "CONFIG-"),
    ("config/consumerOffset.json", "CONFIG-"),
]


@pytest.mark.parametrize(("file", "family"), FILES)
def test_a_folder_in_place_of_a_file_is_a_finding(file: str, family: str, tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    _folder(store / file)

    assert any(one.code.startswith(family) and one.file == file for one in problems_in(store))


@pytest.mark.parametrize(("file", "family"), FILES)
def test_a_link_that_leads_nowhere_is_a_finding(file: str, family: str, tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    _link(store / file)

    assert any(one.code.startswith(family) and one.file == file for one in problems_in(store))


@pytest.mark.parametrize("file", ["checkpoint", "config/topics.json", "config/consumerOffset.json.bak", "abort"])
def test_a_pipe_in_place_of_a_file_does_not_stop_anything(file: str, tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    (store / file).unlink(missing_ok=True)
    os.mkfifo(store / file)
    worker = threading.Thread(target=found_in, args=(store,), daemon=True)

    worker.start()
    worker.join(20)

    assert not worker.is_alive()


@pytest.mark.parametrize("name", ["config/timercheck", "timerwheel"])
def test_a_pipe_in_place_of_a_file_of_the_timer_is_a_finding(name: str, tmp_path: Path) -> None:
    store = copy_of("timer-533-clean", tmp_path)
    (store / name).unlink()
    os.mkfifo(store / name)

    assert ("TIMER-FILE-SIZE", name, None) in places(problems_in(store))


def test_a_file_that_may_not_be_read_ends_in_a_sentence() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = copy_of("txn-533-kill", Path(folder))
        (store / FIRST).chmod(0)
        Path(folder).chmod(0o755)
        was = os.geteuid()
        if was == 0:
            os.seteuid(65534)
        try:
            with pytest.raises(NotPermittedError, match=FIRST):
                found_in(store)
        finally:
            os.seteuid(was)


def test_strange_names_are_findings_or_ignored(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    for name in ("abc", "0000000000000006553x", "٠" * 20):
        (store / "commitlog" / name).touch()
    for name in ("abc", "-1", "٢"):
        (store / "consumequeue/OrderEvents" / name).mkdir()
    (store / "consumequeue/OrderEvents/2/abc").touch()
    (store / "index/abc").touch()
    (store / "consumequeue" / os.fsdecode(b"\xff\xfe")).mkdir()
    (store / "config/unknown.json").write_text("{")

    found = collections.Counter(one.code for one in found_in(store))

    assert found == {"LOG-STRAY": 3, "QUEUE-STRAY": 1, "INDEX-STRAY": 1, "CONFIG-NO-QUEUE": 1}


# A store in use.


@pytest.mark.parametrize("name", ["mixed-533-clean", "many-533-clean"])
def test_nothing_is_wrong_while_a_broker_writes(name: str, tmp_path: Path) -> None:
    source, store = golden_store(name), copy_of(name, tmp_path)
    for folder in ("commitlog", "consumequeue", "index"):
        shutil.rmtree(store / folder)
    (store / "commitlog").mkdir()
    (store / FIRST).write_bytes(bytes((source / FIRST).stat().st_size))
    (store / "abort").touch()
    command = [sys.executable, "-m", "tests.engine.repair.broker_at_work", str(source), str(store)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        assert broker.stdout
        assert broker.stdin
        broker.stdout.readline()
        done = threading.Thread(target=broker.stdout.readline)
        done.start()
        wrong: list[Finding] = []
        rounds = 0
        while done.is_alive():
            for level in Level:
                found = found_in(store, level)
                assert found[0].code == "STORE-LIVE"
                wrong += [one for one in found if one.severity is not Severity.NOTE]
            rounds += 1
        broker.stdin.close()
    (store / "abort").unlink()

    assert rounds > 3
    assert wrong == []
    assert problems_in(store) == []


def test_damage_below_what_a_broker_is_writing_is_found(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    _as_recorded("mixed-533-clean/body-byte-first-segment")(store)
    program = (
        "import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX, 1); "
        "print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(store / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        assert broker.stdout
        assert broker.stdin
        broker.stdout.readline()
        found = problems_in(store)
        broker.stdin.close()

    assert places(found) == {("LOG-CRC", FIRST, 15746)}


# What cannot be looked at.

CLOSED = {
    "mixed-533-clean": [
        "consumequeue",
        "consumequeue/OrderEvents",
        "consumequeue/OrderEvents/2",
        "consumequeue/OrderEvents/2/00000000000000000000",
        "index",
        "config",
        "config/topics.json",
        "config/consumerOffset.json.bak",
        "checkpoint",
    ],
    "ext-533-clean": ["consumequeue_ext"],
    "batchcq-533-clean": ["batchconsumequeue"],
    "timer-533-clean": ["timerlog", "timerlog/00000000000000000000", "timerwheel", "config/timercheck"],
    "rocksdb-533-clean": ["consumequeue", "consumequeue/CURRENT"],
    "rocksdb-550-clean": ["consumequeue", "config/topics", "config/topics/CURRENT"],
}


@contextlib.contextmanager
def somebody_else(*closed: Path) -> Iterator[None]:
    """Be a user who may not read some files and folders."""
    modes = [path.stat().st_mode for path in closed]
    for path in closed:
        path.chmod(0)
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(was)
        for path, mode in zip(closed, modes, strict=True):
            path.chmod(mode)


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize(("name", "closed"), [(name, one) for name, all_ in CLOSED.items() for one in all_])
def test_what_may_not_be_read_is_told_and_nothing_else_is_blamed(name: str, closed: str, level: Level) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = copy_of(name, Path(folder))
        Path(folder).chmod(0o755)

        with somebody_else(store / closed):
            found = problems_in(store, level)

        assert {(one.code, one.severity) for one in found} == {("STORE-UNREAD", Severity.WARNING)}
        assert [one.file for one in found] == [closed]


@pytest.mark.parametrize(
    "link", ["config", "consumequeue/OrderEvents", "index", "checkpoint", "rocksdbstore", "config/topics.json"]
)
def test_a_link_to_a_disk_that_is_not_mounted_is_a_problem(link: str, tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    for path in (store / link, store / f"{link}.bak"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    (store / link).symlink_to("/nowhere/at/all")

    assert link in {one.file for one in problems_in(store)}


@pytest.mark.parametrize("name", ["rocksdb-533-clean", "rocksdb-550-clean"])
def test_rocksdb_without_the_extra_is_no_sound_store(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = copy_of(name, tmp_path)
    for path in [*store.glob("consumequeue*/*"), *store.glob("config/*/*")]:
        if path.name != "CURRENT":
            path.write_bytes(b"\xaa" * path.stat().st_size)
    monkeypatch.setitem(sys.modules, "rocksdict", None)

    found = problems_in(store)

    assert ("QUEUE-ROCKSDB", "consumequeue") in {(one.code, one.file) for one in found}
    if name == "rocksdb-550-clean":
        assert ("CONFIG-ROCKSDB", "config") in {(one.code, one.file) for one in found}


def test_what_brokers_keep_in_a_database_that_is_not_read_is_told(tmp_path: Path) -> None:
    store = copy_of("mixed-550-clean", tmp_path)
    (store / "rocksdbstore/000009.sst").write_bytes(b"entries")

    assert places(problems_in(store)) == {("STORE-UNREAD", "rocksdbstore", None)}


@pytest.mark.parametrize("gone", ["batchconsumequeue", "batchconsumequeue/Inner", "batchconsumequeue/Inner/0"])
def test_a_batch_queue_that_is_gone_is_told_by_its_own_folder(gone: str, tmp_path: Path) -> None:
    store = copy_of("batchcq-533-clean", tmp_path)
    shutil.rmtree(store / gone)

    found = [one for one in problems_in(store) if one.code == "QUEUE-MISSING"]

    assert {one.file for one in found} == {gone}
