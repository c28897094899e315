"""``mqtool rebuild``: what it asks, what it makes, and how it ends."""

import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mqtool.engine.store.reader import StoreReader
from mqtool.errors import Status
from tests.commands.running import as_options, run
from tests.damage import cases, snapshot
from tests.golden import copy_of, golden_store, manifest


def files_below(folder: Path, kind: str) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in (folder / kind).rglob("*") if path.is_file()}


def settings_of(name: str) -> list[str]:
    return as_options({key: value for key, value in manifest(name)["config"].items() if key.startswith(("m", "e"))})


def test_queues_that_were_deleted_come_back_with_yes(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    shutil.rmtree(store / "consumequeue")

    ran = run("rebuild", "queues", "-s", store, "--yes", *settings_of("mixed-533-clean"))

    assert ran.status == Status.OK
    assert files_below(store, "consumequeue") == files_below(golden_store("mixed-533-clean"), "consumequeue")
    assert [(row["what"], row["file"]) for row in ran.rows] == [("create", "consumequeue")]
    assert "undo" in ran.remarks


def test_without_an_answer_nothing_is_changed(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    was = snapshot(tmp_path)

    asked, dry = run("rebuild", "all", "-s", store), run("rebuild", "all", "-s", store, "--dry-run")

    assert asked.status == dry.status == Status.DAMAGE
    assert snapshot(tmp_path) == was


@pytest.mark.parametrize("target", ["config", "all"])
def test_tables_that_are_not_rebuilt_and_cannot_be_read_are_told(target: str, tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    for path in (store / "config").glob("consumerFilter.json*"):
        path.write_text("{")

    planned = run("rebuild", target, "-s", store, "--dry-run")

    assert planned.status == (Status.OK if target == "config" else Status.DAMAGE)
    assert "left unchanged (CONFIG-UNREADABLE): config/consumerFilter.json: " in planned.remarks


def test_sound_tables_need_no_repair(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)

    ran = run("rebuild", "config", "-s", store, "--yes")

    assert ran.status == Status.OK
    assert "nothing to repair" in ran.remarks


def test_undo_brings_the_old_files_back(tmp_path: Path) -> None:
    store = copy_of("mixed-550-kill", tmp_path)
    was = snapshot(store)

    assert run("rebuild", "all", "-s", store, "--yes").status == Status.OK
    assert snapshot(store) != was
    assert run("undo", "-s", store, "--yes").status == Status.OK

    assert snapshot(store) == was


def test_into_leaves_the_store_alone_and_lists_the_queues(tmp_path: Path) -> None:
    store = golden_store("many-533-clean")

    ran = run("rebuild", "all", "-s", store, "--into", tmp_path / "new")

    assert ran.status == Status.OK
    assert files_below(tmp_path / "new", "consumequeue") == files_below(store, "consumequeue")
    assert sum(row["units"] for row in ran.rows) == len(manifest("many-533-clean")["messages"])
    assert len(list((tmp_path / "new" / "index").iterdir())) == 5


def test_into_of_a_log_that_lacks_messages_tells_each_and_ends_as_the_rebuild_in_place_does(tmp_path: Path) -> None:
    case = next(case for case in cases() if case.name == "mixed-533-clean/middle-segment-missing")
    store, settings = case.store(tmp_path), settings_of("mixed-533-clean")

    into = run("rebuild", "queues", "-s", store, "--into", tmp_path / "new", *settings)
    repaired = run("rebuild", "queues", "-s", store, "--yes", "--survey", *settings)
    index = run("rebuild", "index", "-s", store, "--into", tmp_path / "index", *settings)

    losses = [row for row in into.rows if row.get("kind") == "loss"]
    assert losses == [row for row in repaired.rows if row["kind"] == "loss"]
    assert all(row["queue_offset"] is not None for row in losses)
    segments = {one.start_offset for one in StoreReader(store).commit_log.segments}
    whole = StoreReader(golden_store("mixed-533-clean"))
    gone = [one for one in whole.messages() if one.position // 65536 * 65536 not in segments]
    assert sum(row["messages"] for row in losses) == len(gone) > 0
    assert into.status == repaired.status == Status.GIVEN_UP
    assert index.status == Status.OK


def test_a_rebuild_foretells_the_offsets_that_lie_behind_the_ends_of_new_queues(tmp_path: Path) -> None:
    store, settings = copy_of("retry-533-clean", tmp_path), settings_of("retry-533-clean")
    log = store / "commitlog" / f"{0:020}"
    log.write_bytes(log.read_bytes()[:12000].ljust(log.stat().st_size, b"\0"))
    was = snapshot(store)

    planned = run("rebuild", "all", "-s", store, "--dry-run", *settings)
    run("rebuild", "all", "-s", store, "--yes", "--survey", *settings)

    changed = {path for path, state in snapshot(store).items() if path.startswith("config/") and was.get(path) != state}
    assert "config/consumerOffset.json" in changed
    assert changed == {row["file"] for row in planned.rows if (row.get("file") or "").startswith("config/")}


def test_of_a_store_that_a_broker_writes_to_what_is_made_has_an_end_that_is_told(tmp_path: Path) -> None:
    source, store = golden_store("mixed-533-clean"), copy_of("mixed-533-clean", tmp_path)
    for folder in ("commitlog", "consumequeue", "index"):
        shutil.rmtree(store / folder)
    (store / "commitlog").mkdir()
    (store / "commitlog" / f"{0:020}").write_bytes(bytes(65536))
    whole = {key: queue.units(0, queue.max_offset()) for key, queue in StoreReader(source).consume_queues.items()}
    ends: list[int] = []
    command = [sys.executable, "-m", "tests.engine.repair.broker_at_work", str(source), str(store)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        assert broker.stdout
        assert broker.stdin
        broker.stdout.readline()
        done = threading.Thread(target=broker.stdout.readline)
        done.start()
        while done.is_alive():
            into = tmp_path / str(len(ends))
            ran = run("rebuild", "all", "-s", store, "--into", into, *settings_of("mixed-533-clean"))
            assert ran.status == Status.OK
            assert "damaged" not in ran.remarks
            (end,) = re.findall(r"a broker is running on this store: messages from ([\d,]+) on", ran.remarks)
            ends.append(int(end.replace(",", "")))
            made = {(row["topic"], row["queue_id"]): row["max_offset"] for row in ran.rows}
            assert made == {
                key: count
                for key, units in whole.items()
                if (count := int((units["physical_offset"] < ends[-1]).sum()))
            }
        broker.stdin.close()

    assert ends == sorted(ends)
    assert len(set(ends)) > 3


def test_an_index_for_5_5_has_entries_by_tag(tmp_path: Path) -> None:
    store = golden_store("mixed-533-clean")
    for version in ("5.3", "5.5"):
        run("rebuild", "index", "-s", store, "--into", tmp_path / version, "--for", version)

    assert len(list((tmp_path / "5.3" / "index").iterdir())) < len(list((tmp_path / "5.5" / "index").iterdir()))


def test_a_message_that_cannot_be_placed_is_told_and_has_its_status(tmp_path: Path) -> None:
    case = next(case for case in cases() if case.name == "mixed-533-clean/queue-id-full-scan")
    store, settings = case.store(tmp_path), settings_of("mixed-533-clean")

    refused = run("rebuild", "queues", "-s", store, "--yes", *settings)
    into = run("rebuild", "queues", "-s", store, "--into", tmp_path / "new", *settings)
    repaired = run("rebuild", "queues", "-s", store, "--yes", "--survey", *settings)

    assert refused.status == Status.BAD_DATA
    assert "as before" in refused.remarks
    assert into.status == repaired.status == Status.GIVEN_UP
    told = [(row["messages"], row["queue_id"] is None) for row in repaired.rows if row["kind"] == "loss"]
    assert told == [(1, True), (1, False)]  # the message, and the place in its queue that it has left


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["all", "--topic", "OrderEvents"], Status.USAGE),
        (["config", "--into", "new"], Status.USAGE),
        (["queues", "--into", "new", "--dry-run"], Status.USAGE),
        (["queues", "--into", "new", "--save-plan", "plan"], Status.USAGE),
        (["queues", "--topic", "OrderEvent"], Status.NO_INPUT),
        (["nothing"], Status.USAGE),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], status: Status) -> None:
    assert run("rebuild", *arguments, "-s", golden_store("mixed-533-clean")).status == status


def test_a_folder_in_use_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    store = copy_of("mixed-533-clean", tmp_path / "stores")

    assert run("rebuild", "all", "-s", store, "--into", tmp_path).status == Status.USAGE
    assert run("rebuild", "all", "-s", store, "--into", store / "new").status == Status.USAGE
