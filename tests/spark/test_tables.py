"""The tables of the Spark source, read as its workers do, against what ``dump`` and ``verify`` show of a store."""

import base64
from pathlib import Path
from typing import Any

import pytest

from mqtool.errors import Status
from tests.builders import Draft, StoreSizes, write_store
from tests.commands.running import run
from tests.damage import DamageCase, cases
from tests.golden import GOLDEN_NAMES, golden_store, manifest
from tests.spark.reading import read, reader


def dump(kind: str, store: Path, *arguments: object) -> list[dict[str, Any]]:
    ran = run("dump", kind, "-s", store, *arguments)
    assert ran.status in (Status.OK, Status.DAMAGE, Status.NO_INPUT), ran.remarks
    return ran.rows


def as_json(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as ``dump`` shows it."""
    shown = {name: value for name, value in row.items() if name not in ("store", "_corrupt_record")}
    for name, value in row.items():
        if name.endswith("_time") and value is not None:
            shown[name] = value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if "properties" in row:
        shown["properties"] = dict(row["properties"])
    if "body" in row:
        shown["body"] = base64.b64encode(row["body"]).decode()
    return shown


def messages(store: Path) -> list[dict[str, Any]]:
    found = dump("commitlog", store, "--body", "base64")
    return [{name: value for name, value in row.items() if name != "body_encoding"} for row in found]


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_messages_are_those_that_dump_shows(name: str) -> None:
    store = golden_store(name)

    rows = read(store)

    assert [as_json(row) for row in rows] == messages(store)
    assert [row["physical_offset"] for row in rows] == [one["phy"] for one in manifest(name)["messages"]]
    assert {row["store"] for row in rows} == {str(store)}
    assert {row["_corrupt_record"] for row in rows} == {None}


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_units_and_entries_are_those_that_dump_shows(name: str) -> None:
    store = golden_store(name)

    for table, kind in (("consume_queue", "consumequeue"), ("index", "index"), ("timer", "timerlog")):
        columns = reader(store, table=table).schema.names  # type: ignore[attr-defined]
        shown = [{key: row[key] for key in row if key in columns} for row in dump(kind, store)]
        rows = [as_json(row) for row in read(store, table=table)]
        if table == "timer":
            rows = [{key: value for key, value in row.items() if key != "file"} for row in rows]
        assert rows == shown


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_a_damaged_store_has_the_messages_that_dump_shows_and_the_findings_of_verify(
    case: DamageCase, tmp_path: Path
) -> None:
    store = case.store(tmp_path)

    rows = read(store)
    findings = read(store, table="findings")

    sound = [as_json(row) for row in rows if row["topic"] is not None]
    assert sound == messages(store)
    found = run("verify", "-s", store, "-o", "jsonl").rows
    assert [(row["code"], row["file"], row["offset"]) for row in findings] == [
        (row["code"], row["file"], row["offset"]) for row in found
    ]
    # What is wrong with a record itself is told beside it, under the code that verify has for it.
    told = {(row["_corrupt_record"]["code"], row["_corrupt_record"]["file"]) for row in rows if row["_corrupt_record"]}
    stale = {
        ("LOG-POSITION", row["file"]) for row in found if row["code"] == "LOG-STALE"
    }  # only the whole log shows it
    assert told <= {(row["code"], row["file"]) for row in found} | stale
    of_records = ("LOG-SIZES", "LOG-POSITION", "LOG-CRC", "LOG-MAGIC", "LOG-TORN", "LOG-NOISE")
    assert {row["code"] for row in found} & set(of_records) <= {code for code, _ in told}


def test_segments_without_a_readable_first_message_or_a_possible_time_are_rows(tmp_path: Path) -> None:
    write_store(
        tmp_path, [Draft(body=b"x" * 900), Draft(body=b"x" * 3500, store_timestamp=1 << 62)], StoreSizes(segment=4096)
    )
    first, second = sorted((tmp_path / "commitlog").iterdir())
    first.write_bytes(bytes(4096))

    rows = read(tmp_path, table="segments")

    assert [row["file"] for row in rows] == [f"commitlog/{one.name}" for one in (first, second)]
    assert [row["allocated_size"] for row in rows] == [512 * one.stat().st_blocks for one in (first, second)]
    assert [row["first_store_timestamp"] for row in rows] == [None, 1 << 62]
    assert [row["first_store_time"] for row in rows] == [None, None]
