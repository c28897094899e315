"""A program of mqtool whose event loop is watched: how long it does nothing else, and what it is at meanwhile.

Every other millisecond the loop is to run a callback; how much later that runs is a pause. Of each the system tells how
long the thread had a processor (to the microsecond, unlike ``schedstat``, which is 4 ms behind): so much is the
program's own doing; for the rest it waits, for a disk or, on a busy machine, for its turn. A thread looks at what the
loop is at when a pause has lasted for a while::

    python -m tests.campaigns.pauses FILE serve -s store       # mqtool serve -s store
    python -m tests.campaigns.pauses FILE idle                 # a loop that does nothing else
    python -m tests.campaigns.pauses FILE steady               # one that does the same half a millisecond of work
                                                               # again and again: it varies with the machine alone

At the end FILE has one JSON object: ``Pauses``. SIGUSR1 has it begin anew, so that the start does not count.
"""

import asyncio
import contextlib
import dataclasses
import gc
import json
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

_EVERY_SECONDS = 0.002
_LONG_SECONDS = 0.008
_MAX_CAUSES = 5
_STEPS = {"idle": 0, "steady": 10_000}
_GRAIN = 1e-5
"""To how many seconds pauses are told apart."""


@dataclasses.dataclass
class Pauses:
    """Pauses of a loop, in seconds: as the clock tells, and how much of that it worked."""

    count: int
    p9999: float
    longest: float
    own_p9999: float
    own_longest: float
    causes: list[tuple[float, str]]
    """The longest by the second measure, and what the loop was at; nothing where that was over too soon."""

    @classmethod
    def read(cls, path: Path) -> "Pauses":
        """Return what a watched program has written."""
        return cls(**json.loads(path.read_text()))

    def __str__(self) -> str:
        return (
            f"{self.count:,} looks, p99.99 {self.p9999 * 1000:.1f} ms, longest {self.longest * 1000:.1f} ms; "
            f"at work meanwhile p99.99 {self.own_p9999 * 1000:.1f} ms, longest {self.own_longest * 1000:.1f} ms"
        )


class _Spread:
    """How often there was a pause of each length: an hour of them takes no more memory than a minute."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.longest = 0.0

    def add(self, seconds: float) -> None:
        """Count a pause."""
        self._counts[int(seconds / _GRAIN)] += 1
        self.longest = max(self.longest, seconds)

    @property
    def count(self) -> int:
        """How many there were."""
        return self._counts.total()

    def at(self, share: float) -> float:
        """Return the pause (s) that so many of all, from 0 to 1, are no longer than."""
        left = int(self.count * (1 - share))
        for grains in sorted(self._counts, reverse=True):
            left -= self._counts[grains]
            if left < 0:
                return min(self.longest, (grains + 1) * _GRAIN)
        return 0.0


class _LoopWatch:
    """Watches the loop of the thread that makes it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._by_clock, self._own = _Spread(), _Spread()
        self._causes: list[tuple[float, str]] = []
        self._seen = ""
        self._collecting = 0.0
        self._last, self._worked = time.perf_counter(), time.thread_time()
        self._is_over = False
        gc.callbacks.append(self._collects)
        self._loop.add_signal_handler(signal.SIGUSR1, self._begin)
        threading.Thread(target=self._look, daemon=True).start()
        self._loop.call_later(_EVERY_SECONDS, self._tick)

    def _begin(self) -> None:
        """Begin anew: what there was belongs to the start."""
        self._by_clock, self._own = _Spread(), _Spread()
        self._causes.clear()
        self._last, self._worked = time.perf_counter(), time.thread_time()

    def _collects(self, phase: str, about: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.perf_counter()
        elif (took := time.perf_counter() - self._collecting) > _LONG_SECONDS / 2:
            self._seen = f"garbage of generation {about['generation']} is collected, {took * 1000:.1f} ms"

    def _tick(self) -> None:
        now, worked = time.perf_counter(), time.thread_time()
        pause = max(0.0, now - self._last - _EVERY_SECONDS)
        own = min(pause, worked - self._worked)
        self._by_clock.add(pause)
        self._own.add(own)
        seen, self._seen = self._seen, ""
        if own > _LONG_SECONDS:
            self._causes = sorted([*self._causes, (own, seen)], reverse=True)[:_MAX_CAUSES]
        self._last, self._worked = now, worked
        if not self._is_over:
            self._loop.call_later(_EVERY_SECONDS, self._tick)

    def _look(self) -> None:
        while not self._is_over:
            time.sleep(_EVERY_SECONDS)
            if not self._seen and time.perf_counter() - self._last > _LONG_SECONDS + _EVERY_SECONDS:
                frame = sys._current_frames().get(self._thread)
                calls = [f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in traceback.extract_stack(frame)]
                self._seen = " < ".join(reversed(calls[-8:]))

    def end(self) -> Pauses:
        """Return what there was to see."""
        self._is_over = True
        by_clock, own = self._by_clock, self._own
        return Pauses(own.count, by_clock.at(0.9999), by_clock.longest, own.at(0.9999), own.longest, self._causes)


async def watched(main: Coroutine[Any, Any, Any], path: Path) -> Any:
    """Do something in a loop that is watched, and write what there was to see."""
    watch = _LoopWatch()
    try:
        return await main
    finally:
        path.write_text(json.dumps(dataclasses.asdict(watch.end())))


async def _idle(steps: int) -> None:
    """Do so much work every other millisecond until SIGTERM."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    while steps and not told.is_set():
        for number in range(steps):
            number * number
        await asyncio.sleep(_EVERY_SECONDS)
    await told.wait()


def main() -> None:
    """Run a program of mqtool, or a loop that does nothing."""
    from mqtool import cli
    from mqtool.engine import cluster

    path, run = Path(sys.argv[1]), cluster.run
    del sys.argv[1]
    if sys.argv[1] in _STEPS:
        with contextlib.suppress(KeyboardInterrupt):
            run(watched(_idle(_STEPS[sys.argv[1]]), path))
        return
    cluster.run = lambda main: run(watched(main, path))
    cli.main()


if __name__ == "__main__":
    main()
