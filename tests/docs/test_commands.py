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
        check(words)


def test_a_command_line_with_a_wrong_option_or_command_is_noticed() -> None:
    page = "    mqtool offset reset -n NS --earliest  # text\n    seq 9 | mqtool send --jsonl 'a | b' > mqtool.txt\n"
    assert command_lines(page) == [["offset", "reset", "-n", "NS", "--earliest"], ["send", "--jsonl", "a | b"]]
    for words in command_lines(page):
        check(words)
    for line in ("verfy", "verify --levl quick", "offset rest", "dump --topic A -x"):
        with pytest.raises(AssertionError):
            check(line.split())


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


def check(words: list[str]) -> None:
    """Fail where a command line names a command or an option that there is not."""
    command: click.Command = cli.cli
    left = words
    while left and isinstance(command, click.Group) and not left[0].startswith("-"):
        found = command.get_command(click.Context(command), left[0])
        assert found is not None, words
        command, left = found, left[1:]
    names = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    names |= {"-h", "--help", "-V", "--version"}
    for word in left:
        if re.match(r"--?[a-z]", word):
            name = word.partition("=")[0]
            assert name in names or (not name.startswith("--") and name[:2] in names), words
