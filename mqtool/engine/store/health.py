"""Whether a store can be written: temporarily not if its disk is full, or never again."""

from collections.abc import Callable
from typing import TypeVar

from mqtool.engine.store.disk import DiskFullError
from mqtool.errors import MqtoolError

Result = TypeVar("Result")

DISK_IS_FULL = "the broker's disk is full"


class Health:
    """Failures of the disk of an open store, shared by its parts.

    A failing disk is fatal: what was not flushed then may be lost even if a later flush succeeds, so nothing is
    stored any more.
    """

    def __init__(self) -> None:
        self.failure: MqtoolError | None = None
        """Why nothing can be stored any more, permanently."""
        self.is_held_up = False
        """Whether a write failed: nothing is appended before the next tick, when a full disk may have space."""

    def hold_up(self, error: MqtoolError) -> None:
        """Accept nothing more before the next tick, or never if the disk is not only full."""
        self.is_held_up = True
        if not isinstance(error, DiskFullError):
            self.failure = error

    def fatal(self, call: Callable[[], Result]) -> Result:
        """Return the result of a call whose failure is permanent.

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
