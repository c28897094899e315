"""Run a command in this process and see what it wrote."""

import io
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from mqtool import cli


@dataclass(frozen=True)
class Ran:
    """What a command came to: status, standard output, standard error."""

    status: int
    output: str
    remarks: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The JSON lines of the output."""
        return [orjson.loads(line) for line in self.output.splitlines()]


def as_options(settings: Mapping[str, object]) -> list[str]:
    """Return the options of a command for these settings."""
    return [f"--set={name}={value}" for name, value in settings.items()]


def run(*arguments: object) -> Ran:
    """Run ``mqtool`` with these arguments, its output going to a pipe."""
    output, remarks = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    before = sys.stdout, sys.stderr
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    sys.stdout, sys.stderr = output, remarks
    try:
        status = cli.run([str(argument) for argument in arguments])
    finally:
        sys.stdout, sys.stderr = before
        # A command that is done ignores them, as its program ends then; only in the main thread can it have done so.
        for number, handler in handlers.items() if threading.current_thread() is threading.main_thread() else ():
            signal.signal(number, handler)
    return Ran(int(status), _text(output), _text(remarks))


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    stream.seek(0)
    return stream.read()
