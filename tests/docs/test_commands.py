"""Every command line of README.md and docs/: those that can run here do, and write what the page shows."""

import contextlib
import itertools
import re
import shlex
from pathlib import Path

import click
import pytest

from mqtool import cli
from tools import picture, sessions

NEEDS = {"a cluster", "a clock", "root", "Spark", "storage", "a terminal"}
"""What commands may need that a test does not have."""


@pytest.mark.parametrize("page", sessions.pages(), ids=lambda path: str(path.relative_to(sessions.ROOT)))
def test_the_commands_of_a_page_write_what_it_shows(page: Path, tmp_path: Path) -> None:
    found = [*sessions.commands(page.read_text())]
    assert {command.needs for command in found} <= {"", *NEEDS}
    if not any(not command.needs for command in found):
        return
    sessions.prepare(tmp_path)
    with contextlib.chdir(tmp_path):
        for command in found:
            if not command.needs:
                assert sessions.settled(sessions.run(command.line)) == sessions.settled(command.shown), command.line


@pytest.mark.parametrize("page", sessions.pages(), ids=lambda path: str(path.relative_to(sessions.ROOT)))
def test_every_command_line_of_a_page_names_commands_and_options_that_exist(page: Path) -> None:
    for words in command_lines(page.read_text()):
        assert unknown_words(words) == [], words


def test_a_command_line_with_a_wrong_option_or_command_is_noticed() -> None:
    page = "    mqtool offset reset -n NS --earliest  # text\n    seq 9 | mqtool send --jsonl 'a | b' > mqtool.txt\n"
    assert command_lines(page) == [["offset", "reset", "-n", "NS", "--earliest"], ["send", "--jsonl", "a | b"]]
    assert [unknown_words(words) for words in command_lines(page)] == [[], []]
    for line, word in {"verfy": "verfy", "verify --levl 1": "--levl", "offset rest": "rest", "dump -x": "-x"}.items():
        assert unknown_words(line.split()) == [word]


def test_the_picture_of_the_readme_shows_what_the_commands_write_now() -> None:
    svg = picture.PICTURE.read_text()
    assert "http" not in re.sub(r"http://www\.w3\.org/2000/svg|<!-- .*? -->", "", svg)
    now = picture.picture(picture.shown())
    assert sessions.settled(" ".join(picture.words(svg))) == sessions.settled(" ".join(picture.words(now)))


def command_lines(page: str) -> list[list[str]]:
    """Return the words of each call of mqtool in the blocks of code of a page, without its redirections."""
    blocks = re.findall(r"^```\w*\n(.*?)^```|((?:^ {4}.*\n)+)", page, re.DOTALL | re.MULTILINE)
    lines = [line.strip() for fenced, indented in blocks for line in (fenced or indented).splitlines()]
    calls: list[list[str]] = []
    for line in lines:
        if "mqtool " not in line:
            continue
        try:
            words = [*_words(line.removeprefix("$ "))]
        except ValueError:  # no line of a shell
            continue
        call: list[str] | None = None
        for before, word in itertools.pairwise(["|", *words]):
            if word == "mqtool" and set(before) <= {*"|&;"}:
                call = []
                calls.append(call)
            elif set(word) <= {*"|&;<>"}:
                call = None
            elif call is not None:
                call.append(word)
    return calls


def _words(line: str) -> shlex.shlex:
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    return words


def unknown_words(words: list[str]) -> list[str]:
    """Return the commands and options of a command line that do not exist."""
    command: click.Command = cli.cli
    left = words
    while left and isinstance(command, click.Group) and not left[0].startswith("-"):
        found = command.get_command(click.Context(command), left[0])
        if found is None:
            return left[:1]
        command, left = found, left[1:]
    names = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    names |= {"-h", "--help", "-V", "--version"}
    options = [word.partition("=")[0] for word in left if re.match(r"--?[a-z]", word)]
    return [word for word in options if word not in names and (word.startswith("--") or word[:2] not in names)]
