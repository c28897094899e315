"""Processes that must not outlive the one that made them."""

import contextlib
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the system kill this process, a child, as soon as its parent has ended; at once where it already has.

    To be called first thing in the child, with the id of the process that made it.
    """
    import ctypes  # which most of those who import this module do not need

    with contextlib.suppress(OSError, AttributeError):  # only Linux has it
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
