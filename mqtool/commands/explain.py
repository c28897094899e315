"""``mqtool explain``."""

import textwrap

import click
from click.shell_completion import CompletionItem

from mqtool.commands._options import matching, output_option
from mqtool.commands._output import Output
from mqtool.engine.repair.checks import CHECKS
from mqtool.engine.repair.doctor.pages import PAGES

_ALL = CHECKS | PAGES


def _complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(code, help=_ALL[code].title) for code in _ALL if code.startswith(incomplete.upper())]


@click.command(short_help="Explain a check and what to do about it.")
@click.argument("codes", metavar="[CODE]...", nargs=-1, shell_complete=_complete)
@output_option
def command(codes: tuple[str, ...], output: Output) -> int:
    """Explain a code of `verify` or `doctor`: what it means, its causes, and what to do; without CODE, list all."""
    chosen = [code for code in _ALL if code in matching((code.upper() for code in codes), _ALL, "check")]
    for code in chosen or _ALL:
        check = _ALL[code]
        if not chosen:
            output.columns = ("code", "severity", "title")
            output.row({"code": code, "severity": check.severity, "title": check.title})
        elif not output.is_table:
            output.row(
                {"code": code, **{name: getattr(check, name) for name in ("severity", "title", "cause", "remedy")}}
            )
        else:
            output.text(click.style(f"{code} ({check.severity})", bold=True))
            width = min(output.width, 100)
            for name, text in (
                ("", check.title),
                ("Cause: ", check.cause),
                ("What to do: ", check.remedy),
            ):
                output.text(textwrap.fill(name + text, width, initial_indent="  ", subsequent_indent="  "))
            output.text()
    return 0
