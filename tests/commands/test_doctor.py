"""``mqtool doctor``: rows, page and statuses."""

import csv
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.cells import cell_len

from mqtool.commands._output import Output
from mqtool.engine.repair.java_recovery.plan import BEHIND
from mqtool.errors import Status
from tests.commands.running import Ran, run
from tests.damage import snapshot
from tests.golden import copy_of, golden_store
from tests.machine import NOBODY, run_as

OF_THE_MACHINE = {"DISK-FULL", "CLOCK-AHEAD"}
"""Causes that may be found on the machine that runs this, whatever the store."""


def causes(ran: Ran) -> list[dict[str, Any]]:
    return [row for row in ran.rows if row["kind"] == "cause"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return copy_of("mixed-533-kill", tmp_path)


def test_nothing_stands_in_the_way_of_a_sound_store(store: Path) -> None:
    before = snapshot(store)

    ran = run("doctor", "-s", store)

    codes = [row["code"] for row in causes(ran) if row["code"] not in OF_THE_MACHINE]
    assert codes == ["ABORT-FILE"]
    assert snapshot(store) == before
    if len(causes(ran)) == 1:
        assert ran.status == Status.OK
        assert "nothing prevents a 5.3 or 5.5 broker from working" in ran.remarks


def test_what_a_start_would_delete_is_told_first_and_is_what_as_broker_foretells(store: Path) -> None:
    with (store / "commitlog" / "00000000000000131072").open("r+b") as segment:
        segment.seek(300)
        segment.write(b"\0\0\0")

    ran = run("doctor", "-s", store)

    five_three, five_five = ran.rows[:2]
    plan = run("recover", "--as-broker", "5.3", "-s", store, "--dry-run").rows
    behind = [row for row in plan if row["kind"] == "loss" and row["reason"] == BEHIND]
    assert ran.status == Status.DAMAGE
    assert (five_three["kind"], five_three["versions"], five_three["starts"]) == ("start", ["5.3"], True)
    assert five_three["deleted"] == sum(row["messages"] for row in behind) == 202
    assert len(five_three["removed_segments"]) == 3
    assert (five_five["versions"], five_five["deleted"]) == (["5.5"], 0)
    assert (causes(ran)[0]["code"], causes(ran)[0]["versions"]) == ("LOG-DAMAGED", ["5.3"])
    assert causes(ran)[0]["seen"][0]["physical_offset"] == 131_072


def test_a_broker_that_does_not_start_ends_with_3(store: Path) -> None:
    (store / "commitlog" / ".swp").write_bytes(b"x")

    ran = run("doctor", "-s", store)

    first = causes(ran)[0]
    assert ran.status == Status.DAMAGE
    assert (first["code"], first["severity"], first["effect"]) == ("LOG-STRAY", "error", "does not start")
    assert first["versions"] == ["5.3", "5.5"]
    assert first["count"] == 1
    assert first["seen"][0]["file"] == "commitlog/.swp"
    assert first["next"] == [f"mkdir -p {store}.aside && mv --backup=numbered -- {store}/commitlog/.swp {store}.aside/"]


def test_warnings_alone_end_with_4(store: Path) -> None:
    (store / "checkpoint").unlink()

    ran = run("doctor", "-s", store)

    if OF_THE_MACHINE.isdisjoint(row["code"] for row in causes(ran)):
        assert ran.status == Status.WARNINGS
        assert causes(ran)[0]["code"] == "CHECKPOINT-MISSING"


def test_databases_that_were_not_read_are_a_warning_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)

    ran = run("doctor", "-s", golden_store("rocksdb-533-clean"))

    unread = {row["code"]: (row["severity"], row["next"]) for row in causes(ran) if row["code"] not in OF_THE_MACHINE}
    install = ("warning", ["pip install 'mqtool[rocksdb]'"])
    assert unread == {"QUEUE-ROCKSDB": install, "CONFIG-ROCKSDB": install}
    assert ran.status == Status.WARNINGS


def test_the_version_that_is_asked_for_is_the_one_judged() -> None:
    ran = run("doctor", "-s", golden_store("retry-533-clean"), "--for", "4.9", "-u", "0")

    found = {row["code"]: row for row in causes(ran)}
    assert ran.status == Status.DAMAGE
    assert found["LOG-SECOND-KIND"]["severity"] == "error"
    assert found["LOG-SECOND-KIND"]["versions"] == ["4.9"]


def test_the_settings_name_the_store(store: Path, tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text(f"storePathRootDir={store}\nmappedFileSizeCommitLog=1048576\n")

    ran = run("doctor", "-c", config)

    first = causes(ran)[0]
    assert first["code"] == "SETTING-FILE-SIZE"
    sizes = [sign["expected"] for sign in first["seen"]]
    assert sizes[0] == "mappedFileSizeCommitLog=65536"
    assert "mappedFileSizeConsumeQueue=400" in sizes
    assert first["next"][0].startswith("sed -i ")
    assert first["next"][0].endswith(str(config))


@pytest.mark.parametrize("width", [80, 200])
def test_a_page_keeps_its_width_but_for_commands(store: Path, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Output, "width", width)
    (store / "commitlog" / ".swp").write_bytes(b"x")
    os.truncate(min((store / "commitlog").glob("0*")), 1000)

    ran = run("doctor", "-s", store, "-o", "table")

    lines = ran.output.splitlines()
    commands = [line for line in lines if str(store) in line]
    assert any("1. LOG-STRAY error: a 5.3 or 5.5 broker does not start" in line for line in lines)
    assert [line for line in lines if cell_len(line) > width and line not in commands] == []
    assert any("mv --backup=numbered" in line for line in commands)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away, and become another user")
@pytest.mark.parametrize("place", ["commitlog/0*65536", "consumequeue/OrderEvents/0", "config", "."])
def test_what_the_broker_may_not_read_is_told_to_whoever_may_not_read_it_either(place: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        store = copy_of("mixed-533-clean", Path(folder))
        for path in [store, *store.rglob("*")]:
            os.chown(path, NOBODY, NOBODY)
        refused = min(store.glob(place)) if place != "." else store
        refused.chmod(0)

        ran = run_as(NOBODY, "doctor", "-s", store)

    rows = [orjson.loads(line) for line in ran.output.splitlines()]
    cause = next(row for row in rows if row["kind"] == "cause")
    assert ran.status == Status.DAMAGE
    assert [row["starts"] for row in rows if row["kind"] == "start"] == [False]
    assert cause["code"] == "NOT-PERMITTED"
    assert cause["seen"][0]["file"] == str(refused.relative_to(store))
    assert cause["next"] == [f"chmod -R u+rwX -- {store}"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_what_this_user_may_not_read_is_a_warning_even_if_the_broker_may() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        store = copy_of("mixed-533-clean", Path(folder))
        (store / "commitlog" / f"{65_536:020}").chmod(0)

        ran = run_as(NOBODY, "doctor", "-s", store, "-u", "root")

    assert ran.status == Status.WARNINGS
    assert "not checked: no permission to read" in ran.remarks
    assert "but not everything could be examined" in ran.remarks


def test_who_names_no_store_or_no_user_is_told(store: Path, tmp_path: Path) -> None:
    assert run("doctor", "-s", tmp_path / "nowhere").status == Status.NO_INPUT
    assert run("doctor", "-s", store, "-u", "nobody-of-this-name").status == Status.NO_INPUT
    assert run("doctor", "-s", next((store / "commitlog").iterdir())).status == Status.USAGE


def test_what_cannot_be_looked_at_is_told(store: Path) -> None:
    (store / "checkpoint").unlink()
    (store / "checkpoint").mkdir()

    ran = run("doctor", "-s", store)

    assert ran.rows
    assert ran.status in (Status.DAMAGE, Status.WARNINGS)


def test_csv_has_every_field_of_starts_and_causes(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    (store / "checkpoint").unlink()

    start, cause = csv.DictReader(io.StringIO(run("doctor", "-s", store, "-o", "csv").output))

    assert (start["kind"], start["starts"], json.loads(start["versions"])) == ("start", "true", ["5.3", "5.5"])
    assert (cause["kind"], cause["code"]) == ("cause", "CHECKPOINT-MISSING")
    assert json.loads(cause["next"]) == [f"mqtool recover -s {store}"]
