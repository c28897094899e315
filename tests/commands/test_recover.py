"""``mqtool recover``, from the plan to undo."""

from pathlib import Path

from mqtool.errors import Status
from tests.commands.running import run
from tests.damage import cases, snapshot
from tests.golden import copy_of

DAMAGED = {case.name: case for case in cases()}["mixed-497-clean/body-byte-abort"]


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


def test_a_killed_brokers_store_is_mended_found_sound_and_given_back_as_it_was(tmp_path: Path) -> None:
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
    assert sum(row["messages"] or 0 for row in ran.rows if row["kind"] == "loss") == 286 - 246


def test_options_that_contradict_each_other_are_wrong_usage(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)

    assert run("recover", "--as-broker", "5.3", "--cut", "-s", store).status == Status.USAGE
