"""The default clock of broker, name server and clients; tests may use another."""

import time


def wall_clock() -> int:
    """Return the time in ms since 1970."""
    return time.time_ns() // 1_000_000
