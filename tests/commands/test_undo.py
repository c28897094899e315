"""How a command that changes a store shows its plan, asks and ends; ``apply`` and ``undo``."""

import io
import json
import sys
import types
from pathlib import Path

import click
import pytest

from mqtool import cli
from mqtool.commands._output import Output
from mqtool.commands._repair import RepairCommand, repair_options
from mqtool.engine.repair.journal import State, home_of, journals
from mqtool.engine.repair.plan import REPAIRS, Change, Loss, Plan, Repair, carry_out, plan_repair
from mqtool.engine.store.paths import StoreConfig
from mqtool.errors import Status, WriteError
from tests.commands.running import run
from tests.crash import EVERYTHING, DyingDisk, KilledError
from tests.damage import snapshot
from tests.golden import copy_of

LOSS = Loss("Orders", 3, 1234, "the body is damaged", 7, 20, 23)


OF_GROUPS = {"group", "missed", "repeated", "skipped", "next"}
"""Fields of a plan's rows that only those of consumer groups fill."""


class TypedInput(io.StringIO):
    """Standard input of somebody who types."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store, and a command ``everything`` that repairs it in every way."""

    @click.command()
    @click.option("--level", type=int)
    @repair_options
    def command(level: int | None, repair: RepairCommand) -> int:
        """Do everything."""
        return repair.run("everything", {"level": level})

    module = types.ModuleType("mqtool.commands.everything")
    module.command = command  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(cli.COMMANDS, "everything", cli.CommandEntry("everything", "Do everything."))
    monkeypatch.setitem(REPAIRS, "everything", EVERYTHING)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    return copy_of("txn-533-kill", tmp_path)


def planned(monkeypatch: pytest.MonkeyPatch, *changes: Change, losses: tuple[Loss, ...] = ()) -> None:
    """Have the repair foretell these."""
    repair = Repair(
        lambda _, options, *__: Plan("everything", options, changes, losses, ("mind the gap",)), EVERYTHING.apply
    )
    monkeypatch.setitem(REPAIRS, "everything", repair)


# The plan and the question.


def test_with_yes_the_repair_is_done_and_undone_byte_for_byte(store: Path) -> None:
    before = snapshot(store)

    done = run("everything", "-s", store, "--yes")

    assert done.status == Status.OK
    assert done.rows[0]["kind"] == "change"
    assert f"done; `mqtool undo -s {store}` undoes it" in done.remarks
    assert (store / "repaired").exists()
    undone = run("undo", "-s", store, "--yes")
    assert undone.status == Status.OK
    assert "the store is as it was before, in every name, size and time" in undone.remarks
    assert snapshot(store) == before


@pytest.mark.parametrize("arguments", [["--dry-run"], []])
def test_without_an_answer_nothing_is_changed(store: Path, arguments: list[str]) -> None:
    before = snapshot(store)

    ran = run("everything", "-s", store, *arguments)

    assert ran.status == Status.DAMAGE
    assert "nothing was changed" in ran.remarks
    assert ran.rows
    assert snapshot(store) == before
    assert not home_of(store).exists()


@pytest.mark.parametrize(("answer", "status"), [("y\n", Status.OK), ("n\n", Status.DAMAGE), ("", Status.INTERRUPTED)])
def test_a_terminal_is_asked(store: Path, monkeypatch: pytest.MonkeyPatch, answer: str, status: Status) -> None:
    monkeypatch.setattr(sys, "stdin", TypedInput(answer))
    before = snapshot(store)

    ran = run("everything", "-s", store)

    assert ran.status == status
    assert "Proceed? [y/N]" in ran.remarks
    assert (snapshot(store) == before) == (status is not Status.OK)


def test_a_store_with_nothing_to_repair_ends_with_0(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned(monkeypatch)

    ran = run("everything", "-s", store, "--dry-run")

    assert (ran.status, ran.output) == (Status.OK, "")
    assert "there is nothing to repair" in ran.remarks
    assert "mind the gap" in ran.remarks


def test_a_repair_that_gives_something_up_ends_with_5(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned(monkeypatch, Change("cut", "commitlog/0", "torn", 5, 7), losses=(LOSS,))

    ran = run("everything", "-s", store, "--yes")

    assert ran.status == Status.GIVEN_UP
    assert [{name: row[name] for name in row if name not in OF_GROUPS} for row in ran.rows] == [
        {
            "kind": "change",
            "what": "cut",
            "file": "commitlog/0",
            "offset": 5,
            "size": 7,
            "topic": None,
            "messages": None,
            "bytes": None,
            "reason": "torn",
            "queue_id": None,
            "queue_offset": None,
            "end_queue_offset": None,
        },
        {
            "kind": "loss",
            "what": None,
            "file": None,
            "offset": None,
            "size": None,
            "topic": "Orders",
            "messages": 3,
            "bytes": 1234,
            "reason": "the body is damaged",
            "queue_id": 7,
            "queue_offset": 20,
            "end_queue_offset": 23,
        },
    ]


def test_people_see_many_changes_summed_up_and_what_is_lost(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [Change("write", f"consumequeue/T/{i}", "units are missing", 20, 40) for i in range(1200)]
    planned(monkeypatch, *many, Change("remove", "abort", "it stopped"), losses=(LOSS, Loss(None, 1, 5, "unreadable")))

    shown = run("everything", "-s", store, "--dry-run", "-o", "table").output.splitlines()

    assert shown == [
        "remove  abort: it stopped",
        "write   1,200 places in consumequeue, 48,000 bytes: units are missing",
        "",
        "Lost:",
        "messages  bytes  topic      queue  offsets  reason",
        "       3   1234  Orders     7      20-22    the body is damaged",
        "       1      5  (unknown)                  unreadable",
        "",
    ]


def test_people_see_losses_of_many_queues_summed_up_by_topic(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = [Loss("Orders", 2, 100, "damaged", queue, 5, 7) for queue in range(100)]
    planned(monkeypatch, Change("remove", "abort", "it stopped"), losses=tuple(losses))

    ran = run("everything", "-s", store, "--dry-run", "-o", "table")

    assert ran.output.splitlines()[-3:] == [
        "messages  bytes  topic   queues  reason",
        "     200  10000  Orders     100  damaged",
        "",
    ]
    assert "-o jsonl" in ran.remarks


def test_changes_whose_reasons_differ_in_numbers_alone_are_summed_up_too(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [Change("cut", f"consumequeue/T/{i}", f"units from {i:,} on have no message") for i in range(1000, 1020)]
    few = [Change("cut", f"commitlog/{i}", f"message {i} is torn", i, 5) for i in (3, 2)]
    planned(monkeypatch, *many, *few)

    shown = run("everything", "-s", store, "--dry-run", "-o", "table").output.splitlines()

    assert shown == [
        "cut     commitlog/2@2, 5 bytes: message 2 is torn",
        "cut     commitlog/3@3, 5 bytes: message 3 is torn",
        "cut     20 places in consumequeue: units from .. on have no message",
        "No message is lost.",
    ]


def test_a_plan_keeps_the_width_of_the_terminal(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Output, "width", 40)
    planned(monkeypatch, Change("write", "commitlog/0", "a reason that takes more than one line", 10, 20))

    shown = run("everything", "-s", store, "--dry-run", "-o", "table").output.splitlines()

    assert shown[:2] == ["write   commitlog/0@10, 20 bytes: a", "        reason that takes more than one"]


def test_people_are_told_that_nothing_is_lost(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned(monkeypatch, Change("write", "checkpoint", "it is late", 0, 40))

    shown = run("everything", "-s", store, "--dry-run", "-o", "table").output.splitlines()

    assert shown == ["write   checkpoint@0, 40 bytes: it is late", "No message is lost."]


def test_yes_and_dry_run_cannot_both_be_meant(store: Path) -> None:
    assert run("everything", "-s", store, "--yes", "--dry-run").status == Status.USAGE


def test_a_single_file_is_refused(store: Path) -> None:
    ran = run("everything", "-s", next((store / "commitlog").iterdir()), "--yes")

    assert ran.status == Status.USAGE
    assert "only a whole store can be repaired" in ran.remarks


def test_a_failure_is_a_sentence_with_its_status_and_the_store_is_as_before(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def apply(*arguments: object) -> None:
        EVERYTHING.apply(*arguments)  # type: ignore[arg-type]
        raise WriteError("no space left for it: free some space there, then try again")

    monkeypatch.setitem(REPAIRS, "everything", Repair(EVERYTHING.plan, apply))
    before = snapshot(store)

    ran = run("everything", "-s", store, "--yes")

    assert ran.status == Status.IO_ERROR
    assert "no space left for it: free some space there, then try again; everything was undone" in ran.remarks
    assert snapshot(store) == before


def test_ctrl_c_takes_everything_back_and_says_so(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def apply(*arguments: object) -> None:
        EVERYTHING.apply(*arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setitem(REPAIRS, "everything", Repair(EVERYTHING.plan, apply))
    before = snapshot(store)

    ran = run("everything", "-s", store, "--yes")

    assert ran.status == Status.INTERRUPTED
    assert "everything was undone, the store is as before" in ran.remarks
    assert snapshot(store) == before


# A repair that was cut off.


def kill(store: Path) -> None:
    """Kill a repair of the store in its middle."""
    plan = plan_repair(store, StoreConfig(), "everything", {})
    with pytest.raises(KilledError):
        carry_out(store, StoreConfig(), plan, DyingDisk(90))


def test_a_repair_after_one_that_was_cut_off_takes_that_back_first(store: Path) -> None:
    before = snapshot(store)
    kill(store)

    waiting = run("everything", "-s", store)
    assert waiting.status == Status.DAMAGE
    assert "was interrupted; it is undone before another one starts" in waiting.remarks
    assert [info.state for info in journals(store)] == [State.CUT_OFF]

    done = run("everything", "-s", store, "--yes")
    assert done.status == Status.OK
    assert "was undone" in done.remarks
    assert [info.state for info in journals(store)] == [State.UNDONE, State.DONE]
    assert run("undo", "-s", store, "--yes").status == Status.OK
    assert snapshot(store) == before


def test_undo_takes_back_what_was_cut_off(store: Path) -> None:
    before = snapshot(store)
    kill(store)

    ran = run("undo", "-s", store, "--yes")

    assert ran.status == Status.OK
    assert "(cut off)" in ran.remarks
    assert snapshot(store) == before


# A plan that is saved.


def test_a_saved_plan_is_applied_again_after_it_was_cut_off(store: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    run("everything", "-s", store, "--save-plan", plan)
    kill(store)

    done = run("apply", plan, "--yes")

    assert done.status == Status.OK
    assert "was undone" in done.remarks
    assert [info.state for info in journals(store)] == [State.UNDONE, State.DONE]


def test_a_saved_plan_is_applied_later(store: Path, tmp_path: Path) -> None:
    before, plan = snapshot(store), tmp_path / "plan.json"

    saved = run("everything", "-s", store, "--level", 3, "--set", "maxIndexNum=7", "--save-plan", plan)

    assert saved.status == Status.DAMAGE
    assert f"`mqtool apply {plan}` applies the plan" in saved.remarks
    assert json.loads(plan.read_text())["options"] == {"level": 3}
    assert json.loads(plan.read_text())["settings"] == {"maxIndexNum": "7"}
    assert snapshot(store) == before
    assert run("apply", plan).status == Status.DAMAGE
    assert snapshot(store) == before
    assert run("apply", plan, "--yes").status == Status.OK
    assert (store / "repaired").exists()


def test_a_plan_may_be_saved_and_carried_out_at_once(store: Path, tmp_path: Path) -> None:
    assert run("everything", "-s", store, "--save-plan", tmp_path / "plan.json", "--yes").status == Status.OK
    assert (tmp_path / "plan.json").exists()
    assert (store / "repaired").exists()


def test_a_plan_for_a_store_that_has_changed_is_refused(store: Path, tmp_path: Path) -> None:
    run("everything", "-s", store, "--save-plan", tmp_path / "plan.json")
    (store / "abort").touch()
    (store / "more").touch()
    before = snapshot(store)

    ran = run("apply", tmp_path / "plan.json", "--yes")

    assert ran.status == Status.BUSY
    assert "the store has changed since the plan was made" in ran.remarks
    assert snapshot(store) == before


def test_a_plan_follows_a_store_that_was_moved(store: Path, tmp_path: Path) -> None:
    run("everything", "-s", store, "--save-plan", tmp_path / "plan.json")
    store.rename(tmp_path / "moved")

    assert run("apply", tmp_path / "plan.json", "--yes").status == Status.NO_INPUT
    assert run("apply", tmp_path / "plan.json", "--yes", "-s", tmp_path / "moved").status == Status.OK


def test_a_plan_is_not_saved_in_the_store_nor_where_nothing_can_be_written(store: Path, tmp_path: Path) -> None:
    inside = run("everything", "-s", store, "--save-plan", store / "plan.json")
    nowhere = run("everything", "-s", store, "--save-plan", tmp_path / "gone" / "plan.json")

    assert (inside.status, nowhere.status) == (Status.USAGE, Status.IO_ERROR)
    assert "save it elsewhere" in inside.remarks


def test_what_is_no_plan_is_bad_data(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(b"\xff{}")

    assert run("apply", tmp_path / "plan.json").status == Status.BAD_DATA
    assert run("apply", tmp_path / "gone.json").status == Status.NO_INPUT


# Undo.


def test_undo_lists_repairs_and_what_became_of_them(store: Path) -> None:
    assert run("undo", "-s", store, "--list").rows == []
    run("everything", "-s", store, "--yes")
    run("undo", "-s", store, "--yes")
    run("everything", "-s", store, "--yes")

    rows = run("undo", "-s", store, "--list").rows

    assert [row["state"] for row in rows] == ["undone", "done"]
    assert [row["command"] for row in rows] == ["everything"] * 2
    assert rows[0]["name"] < rows[1]["name"]
    assert rows[0]["size"] < rows[1]["size"]
    assert rows[1]["time"].endswith("Z")
    assert (home_of(store) / rows[1]["name"] / "notes").exists()


def test_undo_asks_and_a_no_changes_nothing(store: Path) -> None:
    run("everything", "-s", store, "--yes")
    after = snapshot(store)

    for arguments in ([], ["--dry-run"]):
        ran = run("undo", "-s", store, *arguments)
        assert ran.status == Status.DAMAGE
        assert "would be undone" in ran.remarks
    assert snapshot(store) == after


def test_the_log_of_a_store_alone_is_refused_and_the_store_named(store: Path) -> None:
    assert run("topic", "create", "Neu", "-s", store, "--yes").status == Status.OK
    after = snapshot(store)

    ran = run("undo", "-s", store / "commitlog", "--yes")

    assert (ran.status, f"give {store}" in ran.remarks) == (Status.USAGE, True)
    assert snapshot(store) == after


def test_without_a_repair_there_is_nothing_to_undo(store: Path, tmp_path: Path) -> None:
    ran = run("undo", "-s", store, "--yes")
    nowhere = [run("undo", "-s", tmp_path / "nowhere", option) for option in ("--yes", "--list")]

    assert (ran.status, "there is no repair of" in ran.remarks) == (Status.NO_INPUT, True)
    assert [(one.status, "nowhere is not a directory" in one.remarks) for one in nowhere] == [(66, True)] * 2
    assert not home_of(store).exists()


def test_a_store_that_has_changed_since_is_taken_back_only_by_force(store: Path) -> None:
    run("everything", "-s", store, "--yes")
    (store / "later").touch()

    refused = run("undo", "-s", store, "--yes")
    planned = run("undo", "-s", store, "--dry-run")
    forced = run("undo", "-s", store, "--yes", "--force")

    assert (refused.status, planned.status, forced.status) == (Status.BUSY, Status.BUSY, Status.WARNINGS)
    assert "--force does it anyway" in refused.remarks
    assert planned.remarks == refused.remarks
    assert "other files of the store have changed since" in forced.remarks
