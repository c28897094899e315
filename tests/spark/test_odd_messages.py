"""Messages that only damage or a foreign program writes: jobs pass them over, or give numbers that columns hold."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.store.stats import By, Selection, count_messages
from mqtool.errors import FormatError
from mqtool.formats import pop
from mqtool.spark import offsets, stats
from mqtool.spark.stores import Store
from tests.builders import Draft, StoreSizes, write_store

REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
MOST = (1 << 63) - 1
CHECK_POINT = {"bm": 0, "c": "G", "t": "T", "q": 0, "so": 5, "d": [0], "pt": 1, "it": 1, "bn": "b", "n": 1}
ACK = {"ao": 7, "so": 0, "c": "G", "t": "T", "q": 0, "pt": 1, "bn": "b"}


def shown(root: Path, members: dict[str, Any], tag: str) -> list[int]:
    """Return the offsets of groups that a message of the revive log shows, by the tasks of ``offsets``."""
    write_store(root, [Draft(topic=REVIVE, body=json.dumps(members).encode(), pairs={"TAGS": tag})])
    items = offsets.tasks([Store(str(root))], 1 << 20)
    rows = [row for item in items for batch in offsets.find(item) for row in batch.to_pylist()]
    return [row["offset"] for row in rows if row["group"] is not None]


@pytest.mark.parametrize(
    ("change", "offset"),
    [
        ({}, 6), ({"so": MOST - 1}, MOST), ({"so": MOST}, None), ({"so": MOST, "d": [5]}, None),
        ({"so": 1 << 70}, None),
        ({"q": 1 << 70}, None), ({"q": 1 << 40}, None), ({"q": "0"}, None), ({"c": 5}, None), ({"c": [1]}, None),
        ({"so": 1.5}, None), ({"t": None}, None), ({"d": ["x"]}, None), ({"d": [], "n": -1}, 5), ({"bm": "1"}, None),
        ({"so": True}, None), ({"d": {"a": 1}}, None),
    ],
)  # fmt: skip
def test_a_check_point_that_no_broker_writes_shows_nothing(
    change: dict[str, Any], offset: int | None, tmp_path: Path
) -> None:
    assert shown(tmp_path, CHECK_POINT | change, pop.CHECK_POINT_TAG) == ([] if offset is None else [offset])


@pytest.mark.parametrize(
    ("change", "offset"),
    [
        ({}, 8), ({"aol": [3, 9]}, 10), ({"ao": MOST}, None), ({"aol": [MOST - 1, MOST]}, None), ({"ao": "x"}, None),
        ({"aol": ["x", 1]}, None), ({"aol": {"a": 1}}, None), ({"t": 5}, None), ({"so": None}, None),
    ],
)  # fmt: skip
def test_an_acknowledgement_that_no_broker_writes_shows_nothing(
    change: dict[str, Any], offset: int | None, tmp_path: Path
) -> None:
    assert shown(tmp_path, ACK | change, pop.BATCH_ACK_TAG) == ([] if offset is None else [offset])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


@given(
    whole=st.sampled_from([CHECK_POINT, ACK]),
    change=st.dictionaries(st.sampled_from([*CHECK_POINT, "ao", "aol"]), VALUES),
)
def test_a_body_of_the_revive_log_is_one_or_a_format_error(whole: dict[str, Any], change: dict[str, Any]) -> None:
    body = json.dumps(whole | change).encode()
    for parse in (pop.parse_check_point, pop.parse_ack):
        try:
            parsed = parse(body)
        except FormatError:
            continue
        assert isinstance(parsed.group, str)
        assert isinstance(parsed.topic, str)
        assert all(type(number) is int for number in (parsed.queue_id, parsed.start_offset, *parsed.offsets))


@pytest.mark.parametrize("raw", ["7fffffffffffffff", "8000000000000000", "ffffffffffffffff"])
def test_a_queue_offset_at_the_bounds_of_its_type_is_counted(raw: str, tmp_path: Path) -> None:
    stored = write_store(tmp_path, [Draft(queue_id=0)] * 5)
    log = min((tmp_path / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    at = stored[2].physical_offset + 20
    data[at : at + 8] = bytes.fromhex(raw)
    log.write_bytes(data)
    store = Store(str(tmp_path))

    tasks = [stats.StatsTask(parts, By.QUEUE, Selection()) for parts in stats._ranges(store, Selection(), 1 << 20)]
    joined = stats._queues(batch for task in tasks for batch in stats.count(task))
    (row,) = [row for batch in joined for row in batch.to_pylist()]

    assert row["messages"] == 5
    assert 0 <= row["missing"] <= MOST


def test_damage_before_a_segment_whose_beginning_is_damaged_too_is_counted_as_by_the_command(tmp_path: Path) -> None:
    write_store(tmp_path, [Draft(body=b"x" * 900)] * 8, StoreSizes(segment=4096))
    first, second = sorted((tmp_path / "commitlog").iterdir())
    first.write_bytes(first.read_bytes()[:4000] + b"\xff" * 96)
    second.write_bytes(bytes(8) + second.read_bytes()[8:])
    store = Store(str(tmp_path))

    for size in (900, 5000, 1 << 30):
        tasks = [stats.StatsTask(parts, By.TOPIC, Selection()) for parts in stats._ranges(store, Selection(), size)]
        rows = [row for task in tasks for batch in stats.count(task) for row in batch.to_pylist()]
        told = [sum(row[name] or 0 for row in rows) for name in ("messages", "lost", "noise")]
        reader = store.open()
        counted = count_messages(reader, By.TOPIC, Selection(), 0, reader.commit_log.end_offset)
        assert told == [counted.tally.total().messages, len(counted.gaps), 0]
        assert told[1] == 2
