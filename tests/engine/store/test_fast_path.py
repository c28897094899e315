"""Messages taken in one pass: what a table and its dispatch give, up to the first that needs a closer look."""

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from mqtool.engine.store import fast_path as express_room
from mqtool.engine.store.commit_log import CommitLog, Gap
from mqtool.engine.store.dispatch import Dispatch, dispatch
from mqtool.engine.store.fast_path import take_fast_path
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import commit_log, scan
from mqtool.formats import kernels as plain
from mqtool.formats.message import message_at
from mqtool.formats.topics import SCHEDULE_TOPIC
from tests import builders
from tests.engine.store.test_dispatch import entries_of, queues_of
from tests.formats.guard import Guarded
from tests.golden import GOLDEN_NAMES, golden_store

GUARDED = Guarded()
BARE_NAMES = [name for name in GOLDEN_NAMES if not name.startswith("dledger")]


@pytest.fixture(scope="module", params=["plain", "compiled"])
def kernels(request: pytest.FixtureRequest) -> Any:
    return plain if request.param == "plain" else scan.compiled_kernels()


def tables(log: CommitLog, kernels: Any) -> Iterator[tuple[MappedFile, scan.MessageTable]]:
    for segment in log.segments:
        for table in log.walk(segment, 0, segment.size, kernels):
            if not isinstance(table, Gap):
                yield segment, table


def asks_for_a_closer_look(table: scan.MessageTable, row: int) -> bool:
    message = message_at(table, row)
    committed = message.sys_flag & commit_log.TRANSACTION_MASK in (0, commit_log.TRANSACTION_COMMIT)
    v6 = message.sys_flag & (commit_log.BORN_HOST_V6 | commit_log.STORE_HOST_V6)
    named = any(name.startswith(("INNER_", "__CRC32#", "I", "_")) for name in message.properties)
    return bool(not committed or v6 or named or message.topic == SCHEDULE_TOPIC)


@pytest.mark.parametrize("with_tags", [False, True])
@pytest.mark.parametrize("name", BARE_NAMES)
def test_golden_messages_give_what_their_tables_give(kernels: Any, name: str, with_tags: bool) -> None:
    store = StoreReader(golden_store(name))
    log, taken = store.commit_log, 0

    for segment, table in tables(log, kernels):
        row = 0
        while row < len(table):
            start = int(table.starts[row])
            for found in take_fast_path(log, segment, start, segment.size, kernels, True, with_tags):
                stop = row + found.count
                derived = dispatch(table.where(slice(row, stop)), store.delay_levels, with_tags)
                got = Dispatch(derived.properties, found.units, found.entries)
                assert queues_of(got) == queues_of(derived)
                assert entries_of(got) == entries_of(derived)
                assert got.entries.is_tag.tolist() == derived.entries.is_tag.tolist()
                assert got.entries.rows.tolist() == derived.entries.rows.tolist()
                assert got.units.store_timestamp.tolist() == derived.units.store_timestamp.tolist()
                row, taken = stop, taken + found.count
            if row < len(table):
                with_schedule = SCHEDULE_TOPIC in {message_at(table, later).topic for later in range(row, len(table))}
                assert with_schedule or asks_for_a_closer_look(table, row)
                row += 1
    if name.startswith(("mixed", "many", "retry")):
        assert taken > 0


def test_bodies_that_do_not_match_their_crc_are_listed_and_the_walk_goes_on(kernels: Any, tmp_path: Any) -> None:
    records = builders.at_home([builders.fields(body=b"x" * 50, topic=b"T") for _ in range(8)])
    starts = [sum(map(len, records[:row])) for row in range(len(records) + 1)]
    log = bytearray(b"".join(records))
    for row in (3, 5, 7):
        log[starts[row] + 100] ^= 1
    builders.write_files(tmp_path / "commitlog", bytes(log), 1 << 12)
    reader = StoreReader(tmp_path)
    segment = reader.commit_log.segments[0]

    def taken(with_bodies: bool) -> list[tuple[int, int, list[int], list[int]]]:
        found = take_fast_path(reader.commit_log, segment, 0, segment.size, kernels, with_bodies, False)
        return [(one.start, one.end, one.positions.tolist(), one.unsound.tolist()) for one in found]

    assert taken(True) == [
        (0, starts[3], starts[:3], []),
        (starts[3], starts[8], [starts[4], starts[6]], [starts[3], starts[5], starts[7]]),
    ]
    assert taken(False) == [(0, starts[8], starts[:8], [])]


@pytest.mark.parametrize("text", [b"TAGS\x01a\x02KEYS", b"TAGS\x01a\x02\x01b", b"TAGS\x01a\0KEYS\x01b", b"TAGS\x01a\0"])
def test_damaged_properties_end_it(kernels: Any, tmp_path: Any, text: bytes) -> None:
    texts = [b"TAGS\x01a", b"TAGS\x01", b"TAGS\x01a\x02", text, b"TAGS\x01a"]
    records = builders.at_home([builders.fields(properties=one, topic=b"T") for one in texts])
    builders.write_files(tmp_path / "commitlog", b"".join(records), 1 << 12)
    reader = StoreReader(tmp_path)
    segment = reader.commit_log.segments[0]

    found = take_fast_path(reader.commit_log, segment, 0, segment.size, kernels, True, False)

    assert [one.count for one in found] == [3]


def run(
    kernels: Any, raw: bytes, with_bodies: bool, room: int, entry_room: int, topic_room: int, unsound_room: int
) -> list[Any]:
    """Return everything that the kernel gives."""
    out: list[Any] = [
        np.full(16, -1, np.int32),
        np.zeros((2, topic_room), np.int64),
        np.zeros(topic_room, np.int64),
        np.zeros((3, room), np.int32),
        np.zeros((4, room), np.int64),
        np.zeros(entry_room, np.int64),
        np.zeros(entry_room, np.int32),
        np.zeros(entry_room, np.bool_),
        np.zeros(unsound_room, np.int64),
    ]
    buffer: Any = memoryview(raw) if kernels is plain else GUARDED.at_end(raw)
    rules = (express_room._AT, express_room._NO_FLAGS, express_room._NAMES)
    ends = kernels.fast_path(buffer, 0, len(raw), 0, commit_log.MESSAGE_MAGICS, *rules, with_bodies, True, *out)
    count, _, entries, topics, unsound = ends
    shown = (
        out[1][:, :topics],
        out[2][:topics],
        out[3][:, :count],
        out[4][:, :count],
        *(one[:entries] for one in out[5:8]),
        out[8][:unsound],
    )
    return [tuple(map(int, ends)), *(one.tolist() for one in shown)]


def common(drawn: list[dict[str, Any]]) -> bytes:
    """Return records that need no closer look, but where their properties ask for it."""
    told = [one | {"sys_flag": 0, "body_crc": zlib.crc32(one["body"]) & 0x7FFFFFFF} for one in drawn]
    plain_hosts = {"born_address": bytes(4), "store_address": bytes(4)}
    return b"".join(builders.at_home(one | plain_hosts for one in told))


raw_logs = st.lists(builders.message_fields, min_size=1, max_size=8).map(common) | builders.logs().map(b"".join)


@given(
    raw=raw_logs,
    change=st.tuples(st.integers(0, 2000), st.integers(0, 255)) | st.none(),
    with_bodies=st.booleans(),
    rooms=st.tuples(st.integers(1, 9), st.integers(0, 20), st.integers(1, 7), st.integers(0, 3)),
)
def test_compiled_and_plain_kernels_agree_on_anything(
    raw: bytes, change: tuple[int, int] | None, with_bodies: bool, rooms: tuple[int, int, int, int]
) -> None:
    changed = bytearray(raw)
    if change:
        changed[change[0] % len(raw)] = change[1]
    raw = bytes(changed)

    compiled = run(scan.compiled_kernels(), raw, with_bodies, *rooms)

    event(f"{compiled[0][0]} messages")
    assert compiled == run(plain, raw, with_bodies, *rooms)


@given(drawn=st.lists(builders.message_fields, min_size=1, max_size=8), by_tag=st.booleans())
def test_any_common_message_gives_what_its_table_gives(
    kernels: Any, tmp_path_factory: pytest.TempPathFactory, drawn: list[dict[str, Any]], by_tag: bool
) -> None:
    folder = tmp_path_factory.mktemp("store")
    builders.write_files(folder / "commitlog", common(drawn), 1 << 16)
    reader = StoreReader(folder)
    segment = reader.commit_log.segments[0]

    for found in take_fast_path(reader.commit_log, segment, 0, segment.size, kernels, True, by_tag):
        table = next(table for _, table in tables(reader.commit_log, kernels))
        derived = dispatch(table.where(table.starts < found.end), reader.delay_levels, by_tag)
        assert queues_of(Dispatch(derived.properties, found.units, found.entries)) == queues_of(derived)
        assert entries_of(Dispatch(derived.properties, found.units, found.entries)) == entries_of(derived)
