"""``mqtool recover``, from the plan to undo."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from mqtool.commands._output import Output
from mqtool.commands._repair import show, tell_cost
from mqtool.engine.repair.java_recovery.plan import BEHIND, GONE
from mqtool.engine.repair.plan import Plan, plan_repair
from mqtool.engine.store.paths import StoreConfig
from mqtool.errors import Status
from tests.commands.running import run
from tests.damage import cases, snapshot
from tests.golden import copy_of, golden_store

CASES = {case.name: case for case in cases()}
DAMAGED = CASES["mixed-497-clean/body-byte-abort"]


def test_the_plan_tells_what_is_done_and_what_is_lost(tmp_path: Path) -> None:
    store = DAMAGED.store(tmp_path)
    was = snapshot(tmp_path)

    ran = run("recover", "-s", store, "--dry-run")

    assert ran.status == Status.DAMAGE
    assert snapshot(tmp_path) == was
    assert [(row["kind"], row["what"], row["file"]) for row in ran.rows] == [
        ("change", "write", "commitlog/00000000000000196608"),
        ("change", "write", "consumequeue/OrderEvents/3"),
        ("change", "replace", "index"),
        ("change", "remove", "abort"),
        ("loss", None, None),
    ]
    assert (ran.rows[-1]["topic"], ran.rows[-1]["messages"]) == ("OrderEvents", 1)


def test_the_plan_tells_a_time_that_grows_with_what_is_written_noted_and_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_repair(DAMAGED.store(tmp_path), StoreConfig(), "recover", {"mode": "abnormal"})

    def seconds(rate: float = 1 << 30, **sizes: int) -> int:
        told: dict[str, Any] = {"write_size": 0, "journal_size": 0, "read_size": 0} | sizes
        tell_cost(dataclasses.replace(plan, **told), Output("jsonl"), rate)
        found = re.search(r"in about ([0-9,]+ s|a second)$", capsys.readouterr().err, re.MULTILINE)
        assert found
        return 1 if found[1] == "a second" else int(found[1].removesuffix(" s").replace(",", ""))

    small, size = seconds(write_size=1000), 20 << 30
    assert small == 1
    assert 20 <= seconds(write_size=size) <= 400  # disks write 50 MB to 1 GB a second
    assert seconds(write_size=2 * size) == pytest.approx(2 * seconds(write_size=size), abs=1)
    assert seconds(journal_size=size) == seconds(write_size=size)
    assert seconds(read_size=size) == 20
    assert seconds(read_size=size, rate=1 << 29) == 40


@pytest.mark.parametrize("kind", ["table", "jsonl"])
def test_people_see_a_few_of_many_remarks_of_one_kind_and_programs_all(
    kind: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    copies = [f"the message at {number:,} is kept: a copy of it is not" for number in range(100_000)]
    single = "one file is left out"

    show(Plan("recover", {}, remarks=(*copies, single)), Output(kind))

    remarks = capsys.readouterr().err
    if kind == "jsonl":
        assert all(copy in remarks for copy in (copies[0], copies[-1]))
        assert remarks.count("is kept") == len(copies)
    else:
        assert remarks.count("is kept") == 5
        assert "the same applies to 99,995 more places" in remarks
    assert single in remarks


def test_a_killed_brokers_store_is_repaired_found_sound_and_given_back_as_it_was(tmp_path: Path) -> None:
    store = DAMAGED.store(tmp_path)
    was = snapshot(store)

    assert run("recover", "--abnormal", "-s", store, "--yes").status == Status.GIVEN_UP
    assert run("verify", "-s", store).status == Status.OK
    assert run("recover", "--abnormal", "-s", store, "--yes").status == Status.OK
    assert run("undo", "-s", store, "--yes").status == Status.OK
    assert snapshot(store) == was


def test_a_saved_plan_is_applied_to_the_store_it_was_made_for_and_to_no_other(tmp_path: Path) -> None:
    store = DAMAGED.store(tmp_path)
    plan = tmp_path / "plan.json"

    assert run("recover", "-s", store, "--save-plan", plan).status == Status.DAMAGE
    (store / "abort").write_text("1")
    changed = run("apply", plan, "--yes")
    (store / "abort").unlink()

    assert changed.status == Status.BUSY
    assert "plan again" in changed.remarks
    assert run("recover", "-s", store, "--save-plan", plan).status == Status.DAMAGE
    assert run("apply", plan, "--yes").status == Status.GIVEN_UP
    assert run("verify", "-s", store).status == Status.OK


def test_what_a_broker_would_do_is_told_in_sentences(tmp_path: Path) -> None:
    ran = run("recover", "--as-broker", "5.3", "-s", DAMAGED.store(tmp_path), "--dry-run")

    assert ran.status == Status.DAMAGE
    assert "recovers after a crash" in ran.remarks
    lost = [row for row in ran.rows if row["kind"] == "loss"]
    assert sum(row["messages"] for row in lost if row["reason"] == BEHIND) == 286 - 246
    assert sum(row["messages"] for row in lost if row["reason"] == GONE) == 1


def test_options_that_contradict_each_other_are_wrong_usage(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)

    assert run("recover", "--as-broker", "5.3", "--cut", "-s", store).status == Status.USAGE


@pytest.mark.parametrize("answer", ["--yes", "--dry-run"])
def test_a_broker_that_does_not_start_changes_nothing_and_ends_3(answer: str, tmp_path: Path) -> None:
    store = CASES["mixed-533-clean/commitlog-stray-file"].store(tmp_path)
    was = snapshot(store)

    ran = run("recover", "--as-broker", "5.3", "-s", store, answer)

    assert ran.status == Status.DAMAGE
    assert "refuses to start" in ran.remarks
    assert snapshot(store) == was


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3", "5.5.0", "5.3"])
def test_as_broker_abnormal_is_what_it_does_where_the_abort_file_lies(version: str, tmp_path: Path) -> None:
    store, crashed = (copy_of("mixed-533-clean", tmp_path / name) for name in ("clean", "crashed"))
    (crashed / "abort").touch()

    told = run("recover", "--as-broker", version, "--abnormal", "-s", store, "--yes")
    there = run("recover", "--as-broker", version[:3], "-s", crashed, "--yes")

    def told_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Leave out the abort file, and the names of new index files, which are those of the clock."""
        clock = ("create", "index")
        return [
            row | {"file": None} if (row["what"], str(row["file"])[:5]) == clock else row
            for row in rows
            if row["file"] != "abort"
        ]

    assert told.status == there.status
    assert "after a crash" in told.remarks
    assert told_of(told.rows) == told_of(there.rows)
    names = sorted(
        path.relative_to(crashed) for path in crashed.rglob("*") if path.is_file() and path.parent.name != "index"
    )
    assert all((store / name).read_bytes() == (crashed / name).read_bytes() for name in names)


@pytest.mark.parametrize("command", ["doctor --for", "recover --dry-run --as-broker"])
def test_a_release_that_was_not_tried_is_said_to_be_taken_for_one_that_was(command: str, tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)

    other, tried, line = (run(*command.split(), version, "-s", store) for version in ("5.3.99", "5.3.3", "5.3"))

    assert "treating 5.3.99 as 5.3.3" in other.remarks
    assert (other.status, other.output) == (tried.status, tried.output) == (line.status, line.output)
    assert "treating" not in tried.remarks + line.remarks


@pytest.mark.parametrize("command", ["doctor --for", "recover --as-broker"])
@pytest.mark.parametrize("version", ["5.4", "5.4.0", "6.0", "five", "5.3.x", "5"])
def test_a_version_whose_start_is_not_known_is_refused_with_those_that_are(version: str, command: str) -> None:
    ran = run(*command.split(), version, "-s", golden_store("mixed-533-clean"))

    assert ran.status == Status.USAGE
    assert "4.9, 5.3 and 5.5" in ran.remarks
