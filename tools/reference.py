"""Write docs/reference/commands.md and checks.md from the program: ``python -m tools.reference``.

Of each command: usage, options, statuses of its own, and an example, which is run where it needs no broker.
"""

import contextlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from mqtool import cli
from mqtool.engine.repair.checks import CHECKS
from mqtool.engine.repair.doctor.pages import PAGES
from tools import sessions

COMMANDS_PAGE = sessions.ROOT / "docs" / "reference" / "commands.md"
CHECKS_PAGE = COMMANDS_PAGE.with_name("checks.md")

EXAMPLES = {
    "info": "mqtool info -s store",
    "dump": "mqtool dump index -s store --limit 2",
    "get": "mqtool get -s store OrderEvents 0 4 --body none",
    "find": "mqtool find -s store --topic 'Order*' --tag TagB --limit 2",
    "pull": "mqtool pull -s store --topic OrderEvents --queue 0 --offset 20",
    "stats": "mqtool stats -s store --by topic",
    "verify": "mqtool verify -s sick --level quick",
    "doctor": "mqtool doctor -s sick",
    "compare": "mqtool compare store sick",
    "recover": "mqtool recover -s sick --dry-run",
    "rebuild": "mqtool rebuild queues -s sick --dry-run",
    "salvage": "mqtool salvage -s sick --into rescued --dry-run",
    "export": "mqtool export -s store --topic pay_events --limit 1 --into one.jsonl",
    "import": "mqtool import one.jsonl --into imported",
    "explain": "mqtool explain QUEUE-MISSING",
    "apply": "mqtool apply plan.json --dry-run",
    "undo": "mqtool undo -s store --list",
    "serve": "mqtool serve --port 0 --namesrv-port 0",
    "trace": "mqtool trace -n localhost:9876 --key order-1",
    "send": "mqtool send -n localhost:9876 --topic Orders --tag new --key order-1 '{\"price\": 5}'",
    "consume": "mqtool consume -n localhost:9876 --topic Orders --group billing --limit 10",
    "bench": "mqtool bench -n localhost:9876 --rate 300 --size 4KiB --seconds 10",
    "mirror": "mqtool mirror --from ns-a:9876 --to ns-b:9876 --topic 'Order*'",
    "topic": "mqtool topic show -s store OrderEvents",
    "group": "mqtool group show -n localhost:9876 billing",
    "offset": "mqtool offset reset -s store --group billing --topic OrderEvents --latest --dry-run",
    "dlq": "mqtool dlq resend -n localhost:9876 --group billing",
    "cluster": "mqtool cluster show -n localhost:9876",
    "promote": "mqtool promote -n localhost:9876 --broker broker-a --dry-run",
    "spark": "mqtool spark verify -s '/brokers/*/store'",
}
"""A command line for each command; those of a store are run in the folder of ``sessions``."""

STATUSES = {
    "verify": "3 errors; 4 only warnings",
    "doctor": "3 a broker does not start or loses data; 4 only warnings",
    "compare": "3 messages differ; 4 only queues or tables differ, or bytes that neither store has whole",
    "dump": "3 something could not be read",
    "find": "3 something could not be read",
    "pull": "3 something could not be read",
    "stats": "3 something could not be read",
    "get": "65 the message is damaged; 66 there is no such message",
    "recover": "3 with `--dry-run`, if there is something to do, or if it was declined; 5 something had to be given up",
    "rebuild": "3 with `--dry-run`, if there is something to do, or if it was declined; 5 something had to be given up",
    "salvage": "3 with `--dry-run`, or if it was declined; 5 something had to be given up",
    "import": "5 messages were left out",
    "apply": "3 declined; 5 something had to be given up; 75 the store has changed since the plan was made",
    "undo": "3 declined",
    "export": "3 something could not be read",
    "send": "69 no broker took the message",
    "mirror": "5 something could not be copied",
    "dlq": "5 some letters could not be copied",
    "cluster": "4 with `--max-lag`, if a slave is farther behind; 69 a broker does not answer",
    "promote": "3 with `--dry-run`, or if it was declined",
    "spark": "those of the command of the same name; 69 without pyspark, Java or an answer of the master",
}
"""What statuses mean for a command, beside those of all commands."""

_HEAD = """\
# Commands

Made from the program by `python -m tools.reference`. What holds for all commands, exit statuses included, is in
[command_line.md](../command_line.md). Examples that need no broker were run: `store` is the store of
[inspect.md](../inspect.md), and `sick` its damaged copy of [check.md](../check.md).

"""
_CHECKS_HEAD = """\
# Checks

What `mqtool explain` says about each code, made from the program by `python -m tools.reference`.
[check.md](../check.md) says how they fit together.

| Code | Severity | |
|---|---|---|
"""


def commands_page() -> str:
    """Return the page of commands."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        sessions.prepare(Path())
        return _HEAD + "\n".join(_commands())


def _commands() -> Iterator[str]:
    context = click.Context(cli.cli, info_name="mqtool")
    yield from (f"- [{name}](#{name}): {entry.help}" for name, entry in cli.COMMANDS.items())
    for name in cli.COMMANDS:
        command = cli.cli.get_command(context, name)
        assert command
        below = click.Context(command, parent=context, info_name=name, **command.context_settings)
        yield f"\n## {name}\n"
        yield from _of_command(command, below)
        if name in STATUSES:
            yield f"\nStatuses: {STATUSES[name]}."
        yield f"\n{_example(EXAMPLES[name])}"
        if isinstance(command, click.Group):
            for one in command.list_commands(below):
                part = command.get_command(below, one)
                assert part
                yield f"\n### {name} {one}\n"
                yield from _of_command(part, click.Context(part, parent=below, info_name=one))


def _of_command(command: click.Command, context: click.Context) -> Iterator[str]:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield f"    {usage}\n"
    yield _text(command.help or "")
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    if options:
        yield "\n| Option | |\n|---|---|"
        for option in options:
            record = option.get_help_record(context)
            if record:
                yield f"| `{record[0].replace('|', '｜')}` | {_cell(record[1])} |"


def _text(text: str) -> str:
    """Return a help text as Markdown: what is not to be wrapped is an indented block."""
    paragraphs = []
    for paragraph in text.split("\n\n"):
        if "\b" in paragraph:
            paragraphs.append(
                "\n".join(f"    {line.strip()}" for line in paragraph.replace("\b", "").strip().splitlines())
            )
        else:
            paragraphs.append(" ".join(paragraph.split()))
    return "\n\n".join(paragraphs)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")


def _example(line: str) -> str:
    runs = "-n " not in line and not re.match(r"mqtool (info|serve|spark|mirror|apply|cluster)\b", line)
    return f"```sh\n{line}\n```" if not runs else f"```text\n$ {line}\n{sessions.run(line)}\n```"


def checks_page() -> str:
    """Return the page of checks: a table, then what is said of each."""
    every = {**CHECKS, **PAGES}
    rows = [f"| [{code}](#{code.lower()}) | {check.severity} | {check.title} |\n" for code, check in every.items()]
    texts = [
        f"\n## {code}\n\n**{check.severity}**: {check.title}\n\n- Cause: {check.cause}\n- What to do: {check.remedy}\n"
        for code, check in every.items()
    ]
    return _CHECKS_HEAD + "".join(rows) + "".join(texts)


def main() -> None:
    """Write both pages."""
    COMMANDS_PAGE.parent.mkdir(parents=True, exist_ok=True)
    page = commands_page()
    if not COMMANDS_PAGE.exists() or sessions.settled(page) != sessions.settled(COMMANDS_PAGE.read_text()):
        COMMANDS_PAGE.write_text(page)
    CHECKS_PAGE.write_text(checks_page())


if __name__ == "__main__":
    main()
