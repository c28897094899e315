"""The clock that broker, name server and clients are given, unless a test moves another."""

import time


def wall_clock() -> int:
    """Return the time in ms since 1970."""
    return time.time_ns() // 1_000_000
