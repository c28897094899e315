"""Commands of the documentation, run as on a terminal: for the tests of its pages, its reference and its pictures.

A block marked as ``console`` holds commands and what they write; tests run them and compare. A comment in front of it
says that they need what a test does not have: ``<!-- needs: Spark -->``. ``python -m tools.sessions`` writes what they
write now into the pages, ``--not-run`` lists those that are not run.
"""

import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mqtool import cli

ROOT = Path(__file__).parent.parent
WIDTH = 100
_STORE = ROOT / "fixtures" / "golden" / "mixed-533-kill.tar.xz"
_BLOCK = re.compile(r"(?:<!-- needs: ([^>]+?) -->\n)?^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class SessionCommand(NamedTuple):
    """A command line of a page, with what the page shows below it."""

    line: str
    shown: str
    needs: str
    """What has to be there that a test does not have: a broker, Spark, ..; empty where the test runs it."""


def commands(page: str) -> Iterator[SessionCommand]:
    """Yield the commands of all blocks of a page that are marked as ``console``.

    A line that begins with ``$`` is a command, and what follows is what it wrote.
    """
    for needs, block in _BLOCK.findall(page):
        for part in _parts(block):
            line, _, shown = part.partition("\n")
            yield SessionCommand(line, shown.rstrip("\n"), needs)


def settled(text: str) -> str:
    """Return what a command writes without the time that a repair may take, which is by the speed of the disk."""
    return re.sub(r"in about (?:a second|\d+ s|\d+ min)", "in about ..", text)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive; Python 3.11.0 to 3.11.3 have no filters for its members."""
    with tarfile.open(archive) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(folder)


def prepare(folder: Path) -> None:
    """Make the stores of the documentation in a folder.

    ``store`` is what a 5.3.3 broker left that was killed; ``sick`` is a copy of it in which a page of the log was
    zeroed and the folder of a queue deleted.
    """
    for name in ("store", "sick"):
        unpack(_STORE, folder / name)
    with (folder / "sick" / "commitlog" / "00000000000000065536").open("r+b") as segment:
        segment.seek(8192)
        segment.write(bytes(4096))
    queue = folder / "sick" / "consumequeue" / "OrderEvents" / "2"
    for path in queue.iterdir():
        path.unlink()
    queue.rmdir()


def run(line: str, color: bool = False) -> str:
    """Run a command in the present folder and return what a terminal of 100 columns shows, without blanks at ends.

    A pipeline runs in a shell, where ``mqtool`` is that of this interpreter.
    """
    with _environment(color):
        if re.search(r"[|>&;]", re.sub(r"'[^']*'", "", line)):
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            done = subprocess.run(
                ["sh", "-c", line], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
            )
            text = done.stdout + done.stderr
        else:
            program, *arguments = shlex.split(line)
            assert program == "mqtool", line
            text = _in_this_process(arguments)
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip("\n")


class _Terminal(io.TextIOWrapper):
    """A stream that is a terminal, or looks like one."""

    def __init__(self, screen: io.BytesIO, is_terminal: bool) -> None:
        super().__init__(screen, "utf-8", write_through=True)
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        """Tell what was asked for."""
        return self._is_terminal

    def close(self) -> None:
        """Leave the screen open: the other stream writes there too."""


def _in_this_process(arguments: list[str]) -> str:
    screen = io.BytesIO()
    before = sys.stdout, sys.stderr
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    sys.stdout, sys.stderr = _Terminal(screen, True), _Terminal(screen, False)
    try:
        cli.run(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        return screen.getvalue().decode()
    finally:
        sys.stdout, sys.stderr = before
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _environment(color: bool) -> Iterator[None]:
    wanted = {"COLUMNS": str(WIDTH), "LINES": "50", "NO_COLOR": "" if color else "1", "TERM": "xterm"}
    others = {name for name in os.environ if name.startswith("MQTOOL_")} | {"NAMESRV_ADDR"}
    before = {name: os.environ.get(name) for name in {*wanted, *others}}
    try:
        for name in others:
            os.environ.pop(name, None)
        os.environ.update(wanted)
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def pages() -> list[Path]:
    """Return the pages whose commands are run."""
    docs = ROOT / "docs"
    made = (docs / "reports", docs / "reference")  # by programs
    return [ROOT / "README.md", *sorted(path for path in docs.rglob("*.md") if not {*made} & {*path.parents})]


def renewed(page: str) -> str:
    """Return a page with what its commands write now; those that need what is not there stay as they are."""

    def again(found: re.Match[str]) -> str:
        if found[1]:
            return found[0]
        lines = [part.partition("\n")[0] for part in _parts(found[2])]
        now = "\n".join(["```console", *(f"$ {line}\n{run(line)}".rstrip("\n") for line in lines), "```"])
        return found[0] if settled(now) == settled(found[0]) else now

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        prepare(Path())
        return _BLOCK.sub(again, page)


def _parts(block: str) -> list[str]:
    return re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]


def not_run() -> Iterator[str]:
    """Yield the commands that no test runs, with what they need."""
    for path in pages():
        for command in commands(path.read_text()):
            if command.needs:
                yield f"{path.relative_to(ROOT)}: {command.line} (needs {command.needs})"


if __name__ == "__main__":
    if sys.argv[1:] == ["--not-run"]:
        print(*not_run(), sep="\n")  # noqa: T201
        sys.exit()
    for path in pages():
        text = path.read_text()
        if (new := renewed(text)) != text:
            path.write_text(new)
