"""A clock that a test moves, so that what takes a broker an hour takes the test no time at all."""

import threading
from collections.abc import Callable

from mqtool.engine.remoting.clock import wall_clock


class VirtualClock:
    """A clock that only moves when told to; give one to every broker that should use it.

    >>> clock = VirtualClock(now=1_700_000_000_000)
    >>> clock.advance(1.5)
    >>> clock()
    1700000001500
    """

    def __init__(self, now: int | None = None) -> None:
        """Start at ``now``, in ms since 1970, or at the current time."""
        self._now = wall_clock() if now is None else now
        self._lock = threading.Lock()
        self.on_advance: list[Callable[[], None]] = []

    def __call__(self) -> int:
        """Return the time, in ms since 1970."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the time forward; returns when every broker with this clock has done what is due by then.

        It is a single jump: what would be due several times in between happens once, at its end. Any thread may call
        this.
        """
        if seconds < 0:
            raise ValueError(f"time cannot go back: {seconds} seconds")
        with self._lock:
            self._now += round(seconds * 1000)
            for catch_up in [*self.on_advance]:
                catch_up()
