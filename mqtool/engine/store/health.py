"""Whether a store can be written: not for now, where its disk is full, or never again."""

from collections.abc import Callable
from typing import TypeVar

from mqtool.engine.store.disk import DiskFullError
from mqtool.errors import MqtoolError

Result = TypeVar("Result")

DISK_IS_FULL = "the broker's disk is full"


class Health:
    """What the parts of an open store know of failures of its disk.

    A disk that fails is fatal: what was not flushed then may be lost though a later flush does not fail, so nothing is
    stored any more.
    """

    def __init__(self) -> None:
        self.failure: MqtoolError | None = None
        """Why nothing can be stored any more, for good."""
        self.is_held_up = False
        """Whether a write failed: nothing is appended before the next tick, a full disk may have room then."""

    def hold_up(self, error: MqtoolError) -> None:
        """Take nothing more before the next tick, or never where the disk is not only full."""
        self.is_held_up = True
        if not isinstance(error, DiskFullError):
            self.failure = error

    def fatal(self, call: Callable[[], Result]) -> Result:
        """Return what a call does whose failure is for good.

        Raises:
            MqtoolError: it failed now, or another did before.
        """
        if self.failure is not None:
            raise self.failure
        try:
            return call()
        except MqtoolError as error:
            self.failure = error
            raise
