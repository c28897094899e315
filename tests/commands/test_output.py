"""What all outputs have in common."""

import csv
import json
import shutil
from pathlib import Path

import pytest

from mqtool.errors import Status
from tests.builders import Draft, write_store
from tests.commands.running import Ran, run
from tests.golden import copy_of, golden_store

BIG = -9_999_999_999_999_999_999


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return copy_of("mixed-533-clean", tmp_path)


def every_output(*arguments: object) -> dict[str, Ran]:
    return {form: run(*arguments, "-o", form) for form in ("table", "jsonl", "csv")}


def test_what_is_true_or_false_is_written_alike_everywhere() -> None:
    path = golden_store("mixed-533-clean")

    for kind in ("abort", "lock", "config topics"):
        for ran in every_output("dump", *kind.split(), "-s", path).values():
            assert "false" in ran.output
            assert "False" not in ran.output
            assert "True" not in ran.output


def test_a_csv_is_utf_8_with_plain_line_ends() -> None:
    ran = run("dump", "commitlog", "-s", golden_store("mixed-533-clean"), "-o", "csv")

    assert "\r" not in ran.output
    assert len(list(csv.DictReader(ran.output.splitlines(keepends=True)))) > 200


def test_an_integer_of_more_than_64_bits_is_written_as_it_is(store: Path) -> None:
    (store / "config/delayOffset.json").write_text(f'{{"offsetTable":{{1:{BIG},{BIG}:2}}}}')

    for ran in every_output("dump", "config", "delayOffset", "-s", store).values():
        assert ran.status == Status.DAMAGE
        assert ran.output.count(str(BIG)) == 2
    (row,) = run("dump", "config", "delayOffset", "-s", store).rows
    assert row["file"] == "config/delayOffset.json"


def test_a_json_body_keeps_its_integers_and_may_be_deep(tmp_path: Path) -> None:
    bodies = [b'{"small": 1, "id": 123456789012345678901234567890}', b"[" * 1024 + b"]" * 1024]
    write_store(tmp_path, [Draft(body=body) for body in bodies])

    for form in ("jsonl", "csv", "table"):
        assert "123456789012345678901234567890" in run("get", 0, "--body", "json", "-o", form, "-s", tmp_path).output
        assert run("dump", "commitlog", "--body", "json", "-o", form, "-s", tmp_path).status == Status.OK
    one, deep = run("dump", "commitlog", "-s", tmp_path, "--body", "json").output.splitlines()
    assert json.loads(one)["body"] == json.loads(bodies[0])
    assert f'"body":{bodies[1].decode()},' in deep


def test_a_name_that_is_no_text_is_shown_all_the_same(store: Path) -> None:
    odd = store.parent / "odd\udcff"
    shutil.move(store, odd)
    (odd / "commitlog" / "stray\udcfe").touch()

    for ran in every_output("info", "-s", odd).values():
        assert (ran.status, "\\udcff" in ran.output) == (Status.OK, True)
    for ran in every_output("verify", "-s", odd).values():
        assert "LOG-STRAY" in ran.output
        assert "\\udcfe" in ran.output
