"""Which groups miss, repeat or skip messages: judged by what RocketMQ itself read from a golden store."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.repair.group_effects import Moved, group_effects
from mqtool.engine.repair.plan import Loss
from mqtool.errors import Status
from tests.commands.running import run
from tests.damage import apply_ops
from tests.golden import copy_of, manifest

STORE = "mixed-533-clean"
TOPIC, QUEUE = "OrderEvents", 0
Messages = list[dict[str, Any]]
Row = tuple[str, int, int, int]


@given(
    lost=st.sets(st.integers(0, 40)),
    offset=st.integers(0, 60),
    end=st.integers(0, 50),
    cuts=st.sets(st.integers(0, 40)),
)
def test_what_a_group_misses_is_counted_one_by_one(lost: set[int], offset: int, end: int, cuts: set[int]) -> None:
    losses = _ranges(lost, cuts)

    effects = group_effects({("T", "g", 0): offset, ("T", "g", 1): 0}, losses, {("T", 0): end})

    missed, skipped = sum(one >= offset for one in lost), max(0, offset - end)
    expected = [(missed, 0, skipped)] if missed or skipped else []
    assert [(one.missed, one.repeated, one.skipped) for one in effects] == expected


def _ranges(offsets: set[int], cuts: set[int]) -> list[Loss]:
    """Return the offsets as ranges, some of which touch."""
    ranges: list[list[int]] = []
    for one in sorted(offsets):
        if ranges and ranges[-1][1] == one and one not in cuts:
            ranges[-1][1] += 1
        else:
            ranges.append([one, one + 1])
    return [Loss("T", stop - start, 0, "", 0, start, stop) for start, stop in ranges]


@given(belongs=st.integers(0, 20), lies=st.integers(0, 20), count=st.integers(1, 20), offset=st.integers(0, 45))
def test_messages_at_another_place_are_missed_or_repeated(belongs: int, lies: int, count: int, offset: int) -> None:
    effects = group_effects({("T", "g", 0): offset}, [], {("T", 0): 60}, {("T", 0): [Moved(belongs, lies, count)]})

    # The group has consumed what belongs before its offset, and gets what lies from there on.
    consumed = {number for number in range(count) if belongs + number < offset}
    gets = {number for number in range(count) if lies + number >= offset}
    missed, repeated = len(set(range(count)) - consumed - gets), len(consumed & gets)
    assert [(one.missed, one.repeated) for one in effects] == ([(missed, repeated)] if missed or repeated else [])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store on which three groups have read nothing, half and all of one queue."""
    store = copy_of(STORE, tmp_path)
    count = len(_messages())
    groups = {"none": 0, "half": count // 2, "all": count}
    table = {"offsetTable": {f"{TOPIC}@{name}": {str(QUEUE): offset} for name, offset in groups.items()}}
    (store / "config" / "consumerOffset.json").write_text(json.dumps(table))
    return store


def _messages(are_kept: Callable[[dict[str, Any]], bool] = lambda _: True) -> Messages:
    messages = manifest(STORE)["messages"]
    return [one for one in messages if (one["topic"], one["queue_id"]) == (TOPIC, QUEUE) and are_kept(one)]


def _groups(rows: list[dict[str, Any]], version: str | None = None) -> list[Row]:
    return [
        (row["group"], row["missed"], row["repeated"], row["skipped"])
        for row in rows
        if row["kind"] == "group" and (version is None or version in row["versions"])
    ]


def _expected(lost: Messages, end: int) -> list[Row]:
    count = len(_messages())
    rows = [
        (group, sum(one["queue_offset"] >= offset for one in lost), 0, max(0, offset - end))
        for group, offset in sorted({"none": 0, "half": count // 2, "all": count}.items())
    ]
    return [row for row in rows if any(row[1:])]


def _damage(store: Path, message: dict[str, Any]) -> None:
    """Change the body of a message."""
    segment = message["phy"] // 65536 * 65536
    at = message["phy"] - segment + 100
    apply_ops(store, [{"op": "write", "file": f"commitlog/{segment:020}", "at": at, "hex": "00ff"}])


def test_a_start_that_cuts_the_log_hits_the_groups_that_have_not_read_on(store: Path) -> None:
    damaged = _messages()[len(_messages()) // 3]
    _damage(store, damaged)
    apply_ops(store, [{"op": "create", "file": "abort", "size": 0}, {"op": "delete", "path": "checkpoint"}])

    lost = _messages(lambda one: one["phy"] >= damaged["phy"])
    expected = _expected(lost, damaged["queue_offset"])

    assert _groups(run("doctor", "-s", store).rows, "5.3") == expected
    assert _groups(run("recover", "--as-broker", "5.3", "-s", store, "--dry-run").rows) == expected
    assert len(expected) == 3


def test_a_repair_that_bridges_a_message_hits_the_groups_that_have_not_read_it(store: Path) -> None:
    damaged = _messages()[len(_messages()) * 2 // 3]
    _damage(store, damaged)

    rows = run("recover", "--abnormal", "-s", store, "--dry-run").rows

    assert _groups(rows) == _expected([damaged], len(_messages())) == [("half", 1, 0, 0), ("none", 1, 0, 0)]


def test_the_command_that_is_told_keeps_a_group_from_skipping_what_comes(store: Path) -> None:
    segments = sorted((store / "commitlog").iterdir())
    segments[-1].unlink()
    lost = _messages(lambda one: one["phy"] >= int(segments[-1].name))
    end = lost[0]["queue_offset"]

    rows = run("recover", "--abnormal", "-s", store, "--yes").rows
    commands = [row["next"] for row in rows if row["kind"] == "group" and row["next"]]

    assert _groups(rows) == _expected(lost, end)
    assert len(commands) == 1
    assert f"--offset {end}" in commands[0]
    before = run("doctor", "-s", store).rows
    assert [(row["skipped"], row["next"]) for row in before if row["kind"] == "group"] == [(len(lost), commands[0])]
    assert run(*shlex.split(commands[0])[1:], "--yes").status == Status.OK
    assert _groups(run("doctor", "-s", store).rows) == []


def test_nobody_is_hit_on_a_sound_store(store: Path) -> None:
    assert _groups(run("doctor", "-s", store).rows) == []
    assert _groups(run("recover", "--abnormal", "-s", store, "--dry-run").rows) == []


def test_an_offset_of_a_queue_with_a_negative_id_is_nobodys(store: Path) -> None:
    """Advice about it could not be followed: no queue has such an id."""
    table = {"offsetTable": {f"{TOPIC}@none": {"-1": 5, str(QUEUE): 0}}}
    (store / "config" / "consumerOffset.json").write_text(json.dumps(table))

    assert [row for row in run("verify", "-s", store).rows if row.get("queue_id") == -1] == []
    assert [row for row in run("doctor", "-s", store).rows if "--queue -1" in str(row)] == []
    assert _groups(run("recover", "--abnormal", "-s", store, "--dry-run").rows) == []


def test_offsets_that_cannot_be_read_are_said_not_to_be_known(store: Path) -> None:
    for path in (store / "config").glob("consumerOffset.json*"):
        path.write_text("{")

    ran = run("recover", "--abnormal", "-s", store, "--dry-run")

    assert "cannot tell which groups miss or repeat messages" in ran.remarks
