"""``tools/strings.py`` lists what users read: held against what click and the table of checks show."""

import re
from collections.abc import Iterator

import click
import pytest

from mqtool import cli
from mqtool.engine.repair.checks import CHECKS
from tools import strings


@pytest.fixture(scope="module")
def listed() -> set[str]:
    read = ("mqtool.cli", "mqtool.commands", "mqtool.engine.repair.checks")
    sources = {name: source for name, source in strings.modules().items() if name.startswith(read)}
    return {_plain(shown.text) for name, source in sources.items() for shown in strings.strings(name, source)}


def test_every_help_text_is_listed(listed: set[str]) -> None:
    texts = [_plain(text) for command in commands(cli.cli) for text in texts_of(command)]
    assert len(texts) > 400
    built = re.compile("|".join(".*".join(map(re.escape, text.split("{..}"))) for text in listed if "{..}; " in text))
    assert [text for text in texts if text not in listed and not built.fullmatch(text)] == []


def test_every_text_of_a_check_is_listed(listed: set[str]) -> None:
    for check in CHECKS.values():
        assert _plain(check.title) in listed
        assert any(text in _plain(check.remedy) for text in listed if len(text) > 20)


def test_strings_are_told_by_kind_and_values_are_left_out() -> None:
    source = (
        'def f(a):\n    """No."""\n    out.remark(f"{a + 1} files of {b}")\n    raise Bad("so bad " + "or worse")\n'
    )
    assert [*strings.strings("mqtool.x", source)] == [
        strings.Shown("mqtool.x", 3, "remark", "{..} files of {..}"),
        strings.Shown("mqtool.x", 4, "error", "or worse"),
        strings.Shown("mqtool.x", 4, "error", "so bad "),
    ]


def commands(command: click.Command) -> Iterator[click.Command]:
    """Yield a command and all below it."""
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found
            yield from commands(found)


def texts_of(command: click.Command) -> Iterator[str]:
    """Yield what ``--help`` shows of a command that somebody wrote."""
    yield from (text for text in (command.help, command.short_help) if text)
    yield from (one.help for one in command.params if isinstance(one, click.Option) and one.help)


def _plain(text: str) -> str:
    return " ".join(text.replace("\b", "").split())
