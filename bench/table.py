"""What all measurements share: how a command is called, and the lines of the table."""

import sys
from typing import NamedTuple

HELPER = [sys.executable, "-m", "mqtool"]


class Row(NamedTuple):
    """One line of the table."""

    what: str
    store: str
    figure: str
    ratio: str
    goal: str


def rate(size: int, seconds: float) -> str:
    """Return bytes by second, for people."""
    return f"{size / seconds / 1e9:.2f} GB/s"
