"""Signals while something is being changed: the first has it taken back, and none leaves it half done.

Python raises ``KeyboardInterrupt`` between any two of its instructions, where it may be lost, or hit what cleans up. So
a signal is only noted here, and raised by the next call of the disk, like a failure of that.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from mqtool.commands._parent import end_with_parent
from mqtool.engine.store.disk import Disk

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CALLS = (
    *("create", "write", "write_many", "clear", "erase", "open", "truncate", "rename", "remove", "make_folder"),
    *("set_times", "sync", "sync_folder"),
)


class Interrupts:
    """The signals that ask to end while something is being changed."""

    def __init__(self) -> None:
        # Who has them ignored, as nohup does, does not want to be asked.
        self._asked = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.getsignal(number) for number in self._asked}
        self._number: int | None = None
        self._is_settled = False

    def note(self, number: int, _: object) -> None:
        """Note the first signal; those behind it are ignored."""
        self._number = number
        self._ignore()

    def check(self) -> None:
        """Raise ``KeyboardInterrupt`` with the number of the signal, once, if one has come."""
        number, self._number = self._number, None
        if number is not None and not self._is_settled:
            raise KeyboardInterrupt(number)

    def settle(self) -> None:
        """Let nothing be interrupted any more.

        Signals stay ignored to the end of the program: what was done must not end with a status that says it was not.
        """
        self._is_settled = True
        self._ignore()

    def disk(self) -> Disk:
        """Return a disk whose calls check."""
        return _CheckedDisk(self.check)

    def progress(self, advance: Callable[[int], None]) -> Callable[[int], None]:
        """Return a function that checks, then tells another one how far the work has come."""

        def checked(done: int) -> None:
            self.check()
            advance(done)

        return checked

    def begin(self) -> None:
        """Take signals."""
        for number in self._asked:
            signal.signal(number, self.note)

    def end(self) -> None:
        """Let signals do what they did before, unless nothing may be interrupted any more."""
        for number in () if self._is_settled else self._asked:
            signal.signal(number, self._before[number])

    def _ignore(self) -> None:
        for number in self._asked if threading.current_thread() is threading.main_thread() else ():
            signal.signal(number, signal.SIG_IGN)


class _CheckedDisk(Disk):
    def __init__(self, check: Callable[[], None]) -> None:
        self.check = check


def _checked(name: str) -> Callable[..., Any]:
    def method(self: _CheckedDisk, *arguments: Any) -> Any:
        self.check()
        return getattr(Disk, name)(self, *arguments)

    return method


for _name in _CALLS:
    setattr(_CheckedDisk, _name, _checked(_name))


@contextlib.contextmanager
def changing() -> Iterator[Interrupts]:
    """Take signals while something is being changed, through the disk that ``Interrupts`` gives."""
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    interrupts.begin()
    end_with_parent()
    try:
        yield interrupts
    finally:
        interrupts.end()
