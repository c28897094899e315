"""The process that waits for this one, in which the command works: what to do when that is killed."""

import contextlib
import os
import signal

_PR_SET_PDEATHSIG = 1
_waiting: int | None = None


def be_child_of(process: int) -> None:
    """Note which process waits for this one."""
    global _waiting
    _waiting = process


def end_with_parent() -> None:
    """Have this process asked to end when the one that waits for it is killed."""
    if _waiting is None:
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):  # only Linux has it
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != _waiting:  # it was killed before
        os.kill(os.getpid(), signal.SIGTERM)
