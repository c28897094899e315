"""The generated reference: commands and checks are those of the program, and rows keep their schemas."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from mqtool import cli
from tests.commands.running import run
from tests.golden import golden_store
from tools import reference, row_schemas, sessions

MADE_HERE = ("NS", "lost", "queueless", "--into")
"""What commands name that only the tool makes."""


def test_the_page_of_commands_is_what_the_program_says() -> None:
    page = sessions.settled(reference.COMMANDS_PAGE.read_text())
    assert page == sessions.settled(reference.commands_page()), "run python -m tools.reference"


def test_the_page_of_checks_is_what_explain_says() -> None:
    assert reference.CHECKS_PAGE.read_text() == reference.checks_page(), "run python -m tools.reference"


def test_every_command_has_an_example() -> None:
    assert reference.EXAMPLES.keys() == cli.COMMANDS.keys()
    assert reference.STATUSES.keys() <= cli.COMMANDS.keys()


def test_the_page_of_rows_lists_every_schema() -> None:
    schemas = {name: schema_of(name) for name in row_schemas.ROWS}
    assert {path.stem for path in row_schemas.FOLDER.iterdir()} == schemas.keys()
    assert row_schemas.PAGE.read_text() == row_schemas.page(schemas), "run python -m tools.row_schemas"


@pytest.mark.parametrize("name", row_schemas.ROWS)
def test_rows_have_the_fields_of_their_schema_and_no_others(name: str, tmp_path: Path) -> None:
    schema = schema_of(name)
    assert schema["$id"] == f"urn:mqtool:row:{name}:{row_schemas.VERSION}"
    lines = [line for line in row_schemas.ROWS[name].commands if not any(word in line for word in MADE_HERE)]
    if any("sick" in line for line in lines):
        sessions.prepare(tmp_path)
    with contextlib.chdir(tmp_path):
        for line in lines[:3]:
            for row in rows_of(line, row_schemas.ROWS[name].kind):
                assert [*row_schemas.faults(schema, row)] == [], line


def test_a_row_that_has_another_field_or_type_is_noticed() -> None:
    schema = row_schemas._of_values(
        [{"a": 1, "b": [{"c": None}]}, {"a": 2, "b": [{"c": "x"}], "d_time": "t", "d_timestamp": 1}]
    )
    assert schema["required"] == ["a", "b"]
    assert [*row_schemas.faults(schema, {"a": 1, "b": [], "d_time": None})] == []
    assert [*row_schemas.faults(schema, {"a": "1", "b": [{"c": 1, "e": 2}]})] == [
        "row.a is string, not integer",
        "row.b[].c is integer, not null or string",
        "row.b[] has e",
    ]
    assert [*row_schemas.faults(schema, {"a": 1})] == ["row has no b"]


def schema_of(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((row_schemas.FOLDER / f"{name}.json").read_text())
    return schema


def rows_of(line: str, kind: str | None) -> list[dict[str, Any]]:
    words = [str(golden_store(word)) if word in row_schemas.STORES else word for word in line.split()]
    return [row for row in run(*words, "-o", "jsonl").rows if kind is None or row.get("kind") == kind]
