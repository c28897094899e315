"""What ``doctor`` advises is run, command by command, until it is content: no step that fails, and no circle.

Here a few of the recorded recipes of damage; ``python -m tests.campaigns.laws`` does the same to generated damage, and
``python -m tests.engine.repair.test_advice`` to all recipes.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from mqtool.errors import Status
from tests.commands.running import run
from tests.damage import DamageCase, Operation, cases
from tests.engine.repair.recorded import config_of
from tests.golden import copy_of, manifest
from tests.laws.advice import follow

FOLLOWED = (
    "mixed-497-clean/last-file-empty",
    "mixed-497-clean/total-size-huge",
    "mixed-533-clean/body-byte-first-segment-no-checkpoint-abort",
    "mixed-533-clean/cq-torn-last-unit",
    "mixed-533-clean/last-file-short",
    "mixed-533-clean/one-queue-deleted",
    "mixed-533-clean/queue-id-full-scan",
    "many-533-clean/half-log-zeros-abort",
    "many-533-clean/middle-segment-missing-no-checkpoint-abort",
)
OF_THE_MACHINE = {"DISK-FULL", "CLOCK-AHEAD"}
EXT = "consumequeue_ext/Ext/0/00000000000000000000"
CASES = {case.name: case for case in cases()}


def _contradictions(case: DamageCase, into: Path) -> list[str]:
    """Return what doctor, brokers and verify say differently of a damaged store, and where advice leads nowhere."""
    store, broken = case.store(into), []
    follow(store, config_of(case.base), lambda *told: broken.append(": ".join(told)))
    rows = run("doctor", "-s", store, "-c", store.with_name("broker.conf")).rows
    left = {row["code"] for row in rows if row["kind"] == "cause" and row["severity"] != "note"} - OF_THE_MACHINE
    return broken or [f"doctor is not content in the end: {code}" for code in left]


@pytest.mark.parametrize("name", FOLLOWED)
def test_advice_leads_to_a_store_that_doctor_is_content_with(name: str, tmp_path: Path) -> None:
    assert _contradictions(CASES[name], tmp_path) == []


def test_damage_that_only_a_start_reads_is_repaired_by_the_command_that_is_told(tmp_path: Path) -> None:
    place = {"file": "commitlog/00000000000000131072", "at": 300}
    case = DamageCase("body-byte-third-segment", "mixed-533-kill", [{"op": "write", "hex": "000102", **place}], {})

    assert _contradictions(case, tmp_path) == []


@pytest.mark.parametrize(
    ("base", "ops"),
    [
        ("mixed-533-clean", [{"op": "resize", "file": "checkpoint", "size": 4097}]),
        ("mixed-533-clean", [{"op": "write", "file": "checkpoint", "at": 16, "hex": "2b7099fd92c74166"}]),
        ("mixed-533-clean", [{"op": "mkdir", "path": "index/20260101000000000"}]),
        ("ext-533-clean", [{"op": "write", "file": EXT, "at": 0, "hex": "7fff"}]),
        ("retry-497-clean", [{"op": "zero", "file": "config/delayOffset.json", "at": 17, "len": 4}]),
    ],
    ids=["a checkpoint too long", "an index time ahead", "a folder in the index", "an extension", "no delay offsets"],
)
def test_advice_leads_on_from_damage_beside_log_and_queues(base: str, ops: list[Operation], tmp_path: Path) -> None:
    assert _contradictions(DamageCase("made", base, ops, {}), tmp_path) == []


@pytest.mark.parametrize("has_plain_queues", [False, True])
def test_batch_topics_get_their_type_back_and_the_log_decides_between_queues_of_both_types(
    has_plain_queues: bool, tmp_path: Path
) -> None:
    store = copy_of("batchcq-533-clean", tmp_path)
    for name in ("topics.json", "topics.json.bak"):
        path = store / "config" / name
        path.write_text(path.read_text().replace('"queue.type":"BatchCQ"', ""))
    if has_plain_queues:
        shutil.copytree(store / "consumequeue" / "Plain", store / "consumequeue" / "Inner")
    broken: list[str] = []

    follow(store, config_of("batchcq-533-clean"), lambda *told: broken.append(": ".join(told)))

    assert broken == []
    assert {row["code"] for row in run("verify", "-s", store).rows if row["severity"] != "note"} == set()


def test_offsets_of_queues_that_are_gone_are_put_right_one_by_one(tmp_path: Path) -> None:
    store = copy_of("retry-533-clean", tmp_path)
    count = sum((one["topic"], one["queue_id"]) == ("Retries", 0) for one in manifest("retry-533-clean")["messages"])
    path = store / "config" / "consumerOffset.json"
    table = path.read_text().replace('"offsetTable":{', '"offsetTable":{"Gone@g":{0:5,1:7},"Retries@g":{0:99,7:3},', 1)
    path.write_text(table)
    done = []

    while found := [row for row in run("doctor", "-s", store).rows if row.get("code") == "CONFIG-OFFSET"]:
        command = found[0]["next"][0]
        assert command not in done
        done.append(command)
        assert run(*command.split()[1:], "--yes").status == Status.OK

    offsets = ("Gone", 0, 0), ("Gone", 1, 0), ("Retries", 0, count), ("Retries", 7, 0)
    assert done == [
        f"mqtool offset set --group g --topic {topic} --queue {queue_id} --offset {offset} -s {store}"
        for topic, queue_id, offset in offsets
    ]


def test_a_log_that_ends_in_empty_segments_is_looked_at_where_it_ends(tmp_path: Path) -> None:
    store = CASES["many-533-clean/half-log-zeros-abort"].store(tmp_path)
    assert run("recover", "-s", store, "--yes").status == Status.GIVEN_UP

    found = run("verify", "--level", "quick", "-s", store).rows

    assert [row for row in found if row["severity"] != "note"] == []


if __name__ == "__main__":
    found = []
    for one in CASES.values():
        with tempfile.TemporaryDirectory() as folder:
            found += [f"{one.name}: {line}" for line in _contradictions(one, Path(folder))]
    sys.exit("\n".join(found))
