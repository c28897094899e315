"""What all outputs have in common."""

import csv
import io
import json
import re
import shutil
from pathlib import Path

import pytest

from mqtool.commands._output import Output, progress
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


class Terminal(io.StringIO):
    """Shows what is written as a terminal does that knows the control characters of the bar."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        shown = [""]
        column = 0
        for part in re.split(r"(\x1b\[[0-9;]*[mK]|\r|\n)", self.getvalue()):
            if part == "\n":
                shown.append("")
            elif part == "\x1b[K":
                shown[-1] = shown[-1][:column]
            elif not part.startswith("\x1b") and part != "\r":
                shown[-1] = shown[-1][:column] + part + shown[-1][column + len(part) :]
            column = 0 if part in ("\r", "\n") else column if part.startswith("\x1b") else column + len(part)
        return shown


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_row_never_stands_behind_the_progress_bar(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, now = Terminal(), 0.0
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("time.monotonic", lambda: now)
    output = Output("table")

    with progress(8 << 30, "verify") as advance:
        now = 2.0
        advance(3 << 30)
        bar = terminal.lines()[-1]
        output.line({}, "LOG-CRC error the first finding")
        now = 3.0
        advance(4 << 30)
        output.remark("a remark")
        now = 4.0
        advance(5 << 30)

    assert terminal.lines() == ["LOG-CRC error the first finding", "mqtool: a remark", ""]
    assert len(bar) < columns
    assert re.fullmatch(r"verify +━* *3\.0 GiB of 8\.0 GiB( +1\.5 GiB/s +0:00:03 left)?", bar) or columns == 40


@pytest.mark.parametrize("columns", range(40, 241, 20))
def test_an_id_is_shown_whole_or_not_at_all(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Output, "width", columns)
    for size in range(10, 100, 7):
        output = Output("table")
        output.columns, output.always = ("topic", "store_time", "body", "keys", "unique_key", "message_id"), ("body",)
        for number in range(3):
            output.row({"topic": "T" * (size // 3), "store_time": "2026-11-23T17:07:11.469Z", "body": "x" * size,
                        "keys": "k", "unique_key": f"{number:032}", "message_id": f"{number:032X}"})  # fmt: skip
        output.close()
        names, *rows = capsys.readouterr().out.splitlines()
        ids = sum(name in names.split() for name in ("unique_key", "message_id"))
        assert [sum(len(word) == 32 and word.endswith(str(number)) for word in row.split())
                for number, row in enumerate(rows)] == [ids] * 3  # fmt: skip
        assert max(map(len, rows)) <= columns
