"""``mqtool export`` and ``mqtool import``: there and back."""

import base64
import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mqtool.engine.repair.salvage import transfer
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import Status, WriteError
from mqtool.formats import commit_log
from mqtool.formats.message import message_of
from mqtool.formats.properties import are_readable
from tests import builders, damage
from tests.commands.running import Ran, run
from tests.crash import STEP, FailingDisk, WatchedDisk
from tests.damage import snapshot
from tests.engine.repair.test_salvage import fields_of, messages_of
from tests.golden import GOLDEN_NAMES, copy_of, golden_store, manifest

SETTINGS = ("--set", "mappedFileSizeCommitLog=65536", "--set", "maxHashSlotNum=100", "--set", "maxIndexNum=250")


def exported(store: Path, into: Path, *more: object) -> Ran:
    ran = run("export", "-s", store, "--into", into, *more)
    assert ran.status == Status.OK
    return ran


def imported(into: Path, *files: object) -> Ran:
    return run("import", "--into", into, *files, *SETTINGS)


def wrong_in(store: Path, **settings: str) -> list[str]:
    found = verify_store(StoreReader(store, StoreConfig(settings)))
    return [str(one) for one in found if one.severity != "note"]


def delays_of(name: str) -> str:
    levels = StoreReader(golden_store(name)).delay_levels
    return " ".join(f"{ms // 1000}s" for ms in levels)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_message_comes_back_as_it_was(name: str, form: str, tmp_path: Path) -> None:
    file, delays = tmp_path / f"messages.{form}", delays_of(name)

    exported(golden_store(name), file)
    ran = run("import", "--into", tmp_path / "new", file, *SETTINGS, "--set", f"messageDelayLevel={delays}")

    assert ran.status == Status.OK
    assert "placeholder" not in ran.remarks
    assert messages_of(tmp_path / "new") == messages_of(golden_store(name))
    assert wrong_in(tmp_path / "new", messageDelayLevel=delays) == []


def test_without_settings_a_store_has_the_sizes_of_a_broker_without_settings(tmp_path: Path) -> None:
    exported(golden_store("txn-533-kill"), tmp_path / "messages.jsonl")

    ran = run("import", "--into", tmp_path / "new", tmp_path / "messages.jsonl")

    assert ran.status == Status.OK
    (segment,) = (tmp_path / "new" / "commitlog").iterdir()
    assert segment.stat().st_size == 1 << 30
    assert messages_of(tmp_path / "new") == messages_of(golden_store("txn-533-kill"))


def test_filters_choose_what_is_exported() -> None:
    store = golden_store("mixed-533-clean")
    every = list(StoreReader(store).messages())

    def offsets(*options: object) -> list[int]:
        ran = run("export", "-s", store, *options)
        assert ran.status == Status.OK
        return [row["physical_offset"] for row in ran.rows]

    assert offsets() == [one.position for one in every]
    assert offsets("--topic", "pay*") == [one.position for one in every if one.topic == "pay_events"]
    assert offsets("--queue", 1, "--limit", 3) == [one.position for one in every if one.queue_id == 1][:3]
    assert offsets("--from", 1000, "--to", "64KiB") == [o for o in offsets() if 1000 <= o < 65536]
    assert offsets("--tag", "TagD") == [one.position for one in every if one.tags == "TagD"]
    assert offsets("--since", every[50].store_timestamp) == [
        one.position for one in every if one.store_timestamp >= every[50].store_timestamp
    ]


def test_a_pattern_that_selects_nothing_lists_near_names() -> None:
    ran = run("export", "-s", golden_store("mixed-533-clean"), "--topic", "pay_event")

    assert (ran.status, ran.output) == (Status.NO_INPUT, "")
    assert "similar: pay_events" in ran.remarks


def test_a_row_says_everything_and_what_is_raw_is_in_base64() -> None:
    store = golden_store("mixed-533-clean")
    message = next(StoreReader(store).messages())

    (row,) = run("export", "-s", store, "--limit", 1).rows

    assert base64.b64decode(row["body"]) == message.body
    assert base64.b64decode(row["raw_properties"]) == message.raw_properties
    assert row["properties"] == message.properties
    assert (row["tags"], row["message_id"]) == (message.tags, message.message_id)


def test_messages_whose_checks_fail_are_left_out(tmp_path: Path) -> None:
    cases = {case.name: case for case in damage.cases()}
    store = cases["mixed-533-clean/body-byte-first-segment"].store(tmp_path)
    end_of_properties = manifest("mixed-533-clean")["messages"][3]["phy"]
    damage.apply_ops(store, [{"op": "zero", "file": f"commitlog/{0:020}", "at": end_of_properties - 20, "len": 20}])
    before = snapshot(store)

    ran = run("export", "-s", store)

    assert ran.status == Status.DAMAGE
    assert len(ran.rows) == 285
    assert "is left out: its checks fail" in ran.remarks
    assert snapshot(store) == before


def test_a_message_whose_properties_are_damaged_is_left_out_as_recover_gives_it_up(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    one = manifest("mixed-533-clean")["messages"][20]
    with (store / "commitlog" / f"{one['phy'] // 65536 * 65536:020}").open("r+b") as log:
        log.seek(one["phy"] % 65536 + one["size"] - 30)
        log.write(bytes(30))

    ran = run("export", "-s", store)

    assert ran.status == Status.DAMAGE
    assert len(ran.rows) == 286
    assert f"{one['phy']:,} is left out: its checks fail" in ran.remarks


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_message_that_contradicts_its_crc_property_is_exported_and_told(form: str, tmp_path: Path) -> None:
    store = copy_of("propcrc-533-clean", tmp_path)
    messages = manifest("propcrc-533-clean")["messages"]
    message = next(one for one in messages[3:] if "UNIQ_KEY" in one["properties"])
    segment = store / "commitlog" / f"{0:020}"
    content = bytearray(segment.read_bytes())
    at = content.index(b"UNIQ_KEY\1", message["phy"]) + 20
    content[at] ^= 1
    segment.write_bytes(content)

    ran = run("export", "-s", store, "--into", tmp_path / f"messages.{form}")

    assert ran.status == Status.DAMAGE
    assert f"the message at {message['phy']:,} contradicts its CRC property" in ran.remarks
    assert f"{len(messages):,} messages exported" in ran.remarks


def test_a_missing_segment_is_told(tmp_path: Path) -> None:
    cases = {case.name: case for case in damage.cases()}

    ran = run("export", "-s", cases["mixed-533-clean/middle-segment-missing"].store(tmp_path))

    assert ran.status == Status.DAMAGE
    assert "no file holds the bytes from 131,072 to 196,608" in ran.remarks


def test_a_segment_that_is_missing_elsewhere_is_not_told(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    (store / "commitlog" / f"{65_536:020}").unlink()

    within, elsewhere = run("export", "-s", store, "--to", 70_000), run("export", "-s", store, "--from", 140_000)

    assert within.status == Status.DAMAGE
    assert "no file holds the bytes from 65,536 to 70,000" in within.remarks
    assert elsewhere.rows
    assert (elsewhere.status, "no file" in elsewhere.remarks) == (Status.OK, False)


def test_a_missing_last_segment_is_told(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    (store / "commitlog" / f"{262_144:020}").unlink()

    ran = run("export", "-s", store)
    first = run("export", "-s", store, "--to", 131_072)

    assert ran.status == Status.DAMAGE
    assert "queues lead up to 289,894, beyond the end of the log: messages are lost" in ran.remarks
    assert first.status == Status.OK


def test_what_a_filter_left_out_gets_placeholders_or_new_numbers(tmp_path: Path) -> None:
    file = tmp_path / "messages.jsonl"
    exported(golden_store("mixed-533-clean"), file, "--tag", "TagD")
    rows = [orjson.loads(line) for line in file.read_bytes().splitlines()]
    places = {(row["topic"], row["queue_id"], row["queue_offset"]) for row in rows}

    filled, closed = imported(tmp_path / "filled", file), imported(tmp_path / "closed", file, "--renumber")

    assert filled.status == closed.status == Status.OK
    assert "placeholder" in filled.remarks
    assert "placeholder" not in closed.remarks
    kept = [one for one in StoreReader(tmp_path / "filled").messages() if "MQTOOL_LOST" not in one.properties]
    assert {(one.topic, one.queue_id, one.queue_offset) for one in kept} == places
    numbers: dict[tuple[str, int], list[int]] = {}
    for one in StoreReader(tmp_path / "closed").messages():
        numbers.setdefault((one.topic, one.queue_id), []).append(one.queue_offset)
    assert all(offsets == list(range(len(offsets))) for offsets in numbers.values())
    assert sum(map(len, numbers.values())) == len(rows)
    assert wrong_in(tmp_path / "filled") == wrong_in(tmp_path / "closed") == []


def test_files_are_taken_one_behind_the_other_and_may_differ_in_format(tmp_path: Path) -> None:
    store = golden_store("mixed-533-clean")
    exported(store, tmp_path / "1.parquet", "--to", 100_000)
    exported(store, tmp_path / "2.jsonl", "--from", 100_000)

    ran = imported(tmp_path / "new", tmp_path / "1.parquet", tmp_path / "2.jsonl")

    assert ran.status == Status.OK
    assert messages_of(tmp_path / "new") == messages_of(store)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda row: row.pop("topic"), "'topic' is missing"),
        (lambda row: row.pop("body"), "'body'"),
        (lambda row: row.update(body="!"), "line 2"),
        (lambda row: row.update(body=base64.b64encode(b"other").decode()), "does not match body_crc"),
        (lambda row: row.update(queue_id="0"), "line 2"),
        (lambda row: row.update(queue_offset=1 << 70), "line 2"),
        (lambda row: row.update(born_host="nowhere"), "line 2"),
        (lambda row: row.update(sys_flag=0x30), "sys_flag does not fit"),
        (lambda row: row.update(magic_code=1), "magic_code is not valid"),
        (lambda row: row.update(topic="t" * 200), "magic_code is not valid"),
        (lambda row: row.update(topic=None), "line 2"),
        (lambda row: row.update(raw_properties="AAAA" * 20_000), "line 2"),
        (lambda row: row.update(raw_properties="AAAA"), "raw_properties are not pairs"),
        (lambda row: row.clear(), "line 2"),
    ],
)
def test_a_line_that_is_no_message_is_refused_and_nothing_is_left_behind(
    change: Any, said: str, tmp_path: Path
) -> None:
    rows = run("export", "-s", golden_store("mixed-533-clean"), "--limit", 3).rows
    change(rows[1])
    file = tmp_path / "messages.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    ran = imported(tmp_path / "new", file)

    assert (ran.status, ran.output) == (Status.BAD_DATA, "")
    assert said in ran.remarks
    assert "line 2" in ran.remarks
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("content", [b"", b"\n\n", b"PAR1 is not all", b"{", b"\xff\xfe", b"[1]"])
def test_a_file_that_is_no_export_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)

    ran = imported(tmp_path / "new", tmp_path / "file")

    assert (ran.status, ran.output) == (Status.BAD_DATA, "")
    assert not (tmp_path / "new").exists()


def test_messages_given_twice_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "messages.jsonl"
    exported(golden_store("mixed-533-clean"), file)

    ran = imported(tmp_path / "new", file, file)

    assert ran.status == Status.BAD_DATA
    assert "give each message once, the oldest first, or use --renumber" in ran.remarks
    assert imported(tmp_path / "new", file, file, "--renumber").status == Status.OK
    assert sum(1 for _ in StoreReader(tmp_path / "new").messages()) == 2 * 287


def with_changed_row(tmp_path: Path, name: str, number: int, **values: object) -> tuple[Path, dict[str, Any]]:
    """Export a golden store and change a row; return the file, and the row as it was."""
    rows = run("export", "-s", golden_store(name)).rows
    was = {**rows[number]}
    rows[number] |= values
    file = tmp_path / "messages.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file, was


@pytest.mark.parametrize("number", [0, 100, 286], ids=["first", "middle", "last"])
@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"queue_id": -1}, "no topic has a queue with this id"),
        ({"queue_id": (1 << 31) - 1}, "no topic has a queue with this id"),
        ({"queue_offset": -1}, "no queue has this offset"),
        ({"queue_offset": (1 << 63) - 1}, "no queue has this offset"),
        ({"queue_offset": (1 << 63) // 20}, "no queue has this offset"),
        ({"queue_id": 625428804, "queue_offset": 8248626744878255199}, "no queue has this offset"),
    ],
)
def test_a_message_that_no_queue_can_have_is_left_out_and_told(
    number: int, values: dict[str, int], reason: str, tmp_path: Path
) -> None:
    file, was = with_changed_row(tmp_path, "mixed-533-clean", number, **values)
    now = {**was, **values}

    ran = imported(tmp_path / "new", file)

    assert ran.status == Status.GIVEN_UP
    assert [(row["kind"], row["topic"], row["queue_id"], row["queue_offset"], row["reason"]) for row in ran.rows] == [
        ("loss", was["topic"], now["queue_id"], now["queue_offset"], reason)
    ]
    assert ran.rows[0]["end_queue_offset"] == now["queue_offset"] + 1
    assert f"{file} line {number + 1}: {was['topic']} {now['queue_id']} {now['queue_offset']:,}: " in ran.remarks
    kept = [one for one in StoreReader(tmp_path / "new").messages() if "MQTOOL_LOST" not in one.properties]
    assert len(kept) == 286
    assert wrong_in(tmp_path / "new") == []


def test_renumber_gives_a_message_with_an_impossible_offset_another(tmp_path: Path) -> None:
    file, was = with_changed_row(tmp_path, "mixed-533-clean", 100, queue_offset=-1)

    ran = imported(tmp_path / "new", file, "--renumber")

    assert (ran.status, ran.rows) == (Status.OK, [])
    of_queue = [
        one
        for one in StoreReader(tmp_path / "new").messages()
        if (one.topic, one.queue_id) == (was["topic"], was["queue_id"])
    ]
    assert [one.queue_offset for one in of_queue] == list(range(len(of_queue)))
    assert wrong_in(tmp_path / "new") == []


def test_many_messages_that_are_left_out_have_a_row_each(tmp_path: Path) -> None:
    rows = run("export", "-s", golden_store("mixed-533-clean"), "--limit", 40).rows
    for row in rows[1:]:
        row["queue_id"] = -row["queue_id"] - 1
    (tmp_path / "messages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    ran = imported(tmp_path / "new", tmp_path / "messages.jsonl")

    assert ran.status == Status.GIVEN_UP
    assert sorted((row["topic"], row["queue_id"], row["queue_offset"]) for row in ran.rows) == sorted(
        (row["topic"], row["queue_id"], row["queue_offset"]) for row in rows[1:]
    )
    assert "29 more messages are left out" in ran.remarks
    assert "1 messages imported" in ran.remarks


def test_nothing_is_made_of_messages_that_no_queue_can_have(tmp_path: Path) -> None:
    row = run("export", "-s", golden_store("mixed-533-clean"), "--limit", 1).rows[0]
    (tmp_path / "messages.jsonl").write_text(json.dumps({**row, "queue_id": -7}) + "\n")

    ran = imported(tmp_path / "new", tmp_path / "messages.jsonl")

    assert (ran.status, ran.output) == (Status.BAD_DATA, "")
    assert "no topic has a queue with this id: there is nothing to import" in ran.remarks
    assert not (tmp_path / "new").exists()


def test_a_message_that_is_left_out_is_told_in_its_light_queues(tmp_path: Path) -> None:
    rows = run("export", "-s", golden_store("special-533-clean")).rows
    number = next(at for at, row in enumerate(rows) if "INNER_MULTI_DISPATCH" in row["properties"])
    names = rows[number]["properties"]["INNER_MULTI_DISPATCH"].split(",")
    file, was = with_changed_row(tmp_path, "special-533-clean", number, queue_offset=-1)

    ran = imported(tmp_path / "new", file)

    assert ran.status == Status.GIVEN_UP
    assert sorted(row["topic"] for row in ran.rows) == sorted([was["topic"], *names])
    assert wrong_in(tmp_path / "new") == []


def test_a_gap_beyond_reason_is_refused(tmp_path: Path) -> None:
    rows = run("export", "-s", golden_store("mixed-533-clean"), "--topic", "log-x", "--limit", 2).rows
    rows[1]["queue_offset"] = 1 << 40
    (tmp_path / "messages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    ran = imported(tmp_path / "new", tmp_path / "messages.jsonl")

    assert ran.status == Status.BAD_DATA
    assert "--renumber closes such gaps" in ran.remarks


def test_messages_with_offsets_in_their_properties_are_not_renumbered(tmp_path: Path) -> None:
    file = tmp_path / "messages.jsonl"
    exported(golden_store("batchcq-533-clean"), file)

    ran = imported(tmp_path / "new", file, "--renumber")

    assert ran.status == Status.BAD_DATA
    assert "--renumber cannot change them" in ran.remarks


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "messages.jsonl").write_text("mine")

    ran = run("export", "-s", golden_store("mixed-533-clean"), "--into", tmp_path / "messages.jsonl")

    assert ran.status == Status.USAGE
    assert (tmp_path / "messages.jsonl").read_text() == "mine"


def test_nothing_is_exported_into_the_store(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    before = snapshot(store)

    ran = run("export", "-s", store, "--into", store / "commitlog" / "messages.jsonl")

    assert ran.status == Status.USAGE
    assert "is inside the store" in ran.remarks
    assert snapshot(store) == before


def test_parquet_needs_a_file() -> None:
    ran = run("export", "-s", golden_store("mixed-533-clean"), "-o", "parquet")

    assert (ran.status, ran.output) == (Status.USAGE, "")


def test_a_folder_that_holds_something_is_not_imported_into(tmp_path: Path) -> None:
    exported(golden_store("mixed-533-clean"), tmp_path / "messages.jsonl")
    store = copy_of("mixed-497-clean", tmp_path)
    before = snapshot(store)

    assert imported(store, tmp_path / "messages.jsonl").status == Status.USAGE
    assert snapshot(store) == before


def test_a_message_larger_than_a_segment_is_refused(tmp_path: Path) -> None:
    exported(golden_store("mixed-533-clean"), tmp_path / "messages.jsonl")

    ran = run("import", "--into", tmp_path / "new", tmp_path / "messages.jsonl", "--set", "mappedFileSizeCommitLog=999")

    assert ran.status == Status.BAD_DATA
    assert (
        "does not fit into a segment of 999: set larger segments with --set mappedFileSizeCommitLog=BYTES"
        in ran.remarks
    )
    assert not (tmp_path / "new").exists()


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    exported(golden_store("txn-533-kill"), tmp_path / "messages.jsonl")
    config = StoreConfig({"mappedFileSizeCommitLog": "65536", "maxHashSlotNum": "100", "maxIndexNum": "250"})
    watched = WatchedDisk()
    transfer.import_files([tmp_path / "messages.jsonl"], tmp_path / "whole", config, watched)

    for number in range(1, watched.count + 1, STEP):
        with pytest.raises(WriteError):
            transfer.import_files([tmp_path / "messages.jsonl"], tmp_path / "new", config, FailingDisk(number))
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_an_export_to_a_full_disk_leaves_no_file(form: str, tmp_path: Path) -> None:
    messages = list(StoreReader(golden_store("txn-533-kill")).messages())

    def write(disk: WatchedDisk, path: Path) -> None:
        with transfer.writing_file(disk, path) as file:
            sink = transfer.Parquet(file) if form == "parquet" else transfer.JsonLines(file.write)
            transfer.export(messages, sink)

    watched = WatchedDisk()
    write(watched, tmp_path / "whole")
    for number in range(1, watched.count + 1):
        with pytest.raises(WriteError):
            write(FailingDisk(number), tmp_path / "file")
        assert not (tmp_path / "file").exists()


@given(builders.message_fields, st.integers(0, 1 << 40))
def test_a_row_makes_the_record_again(fields: dict[str, Any], position: int) -> None:
    assume(are_readable(fields["properties"]) and fields["queue_id"] >= 0)
    fields |= {"physical_offset": position, "topic": b"Topic", "topic_size": 5}
    record = builders.record(
        position,
        **{name: fields[name] for name in fields if name not in _MADE},
        born_host=(fields["born_address"], fields["born_port"]),
        store_host=(fields["store_address"], fields["store_port"]),
        version=1 if fields["magic_code"] == commit_log.MAGIC_V1 else 2,
    )

    message = message_of(record, position)
    again = message_of(transfer.record_of(transfer.row_of(message)), position)

    assert fields_of(again) == fields_of(message)


_MADE = {
    "size", "magic_code", "body_crc", "physical_offset", "body_size", "topic_size", "properties_size", "born_address",
    "born_port", "store_address", "store_port",
}  # fmt: skip
