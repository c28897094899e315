"""The standard streams: one may be closed, know few characters, or lose its reader."""

import errno
import io
import os
import sys
from typing import Any

_GONE = (errno.EPIPE, errno.ECONNRESET, errno.EIO)  # of a pipe, a socket, a terminal


class _StandardStream(io.BufferedWriter):
    """A standard stream. Once it ``outlasts`` its reader, what is written after that has gone is thrown away.

    An interrupt may end any method here, behind what the buffer did: bytes that are written are never written again.
    """

    outlasts = False

    def write(self, data: Any) -> int:
        """Write some bytes, and say how many."""
        try:
            return super().write(data)
        except OSError as error:
            self._pass_over(error)
            return memoryview(data).nbytes

    def flush(self) -> None:
        """Write what is held back."""
        try:
            super().flush()
        except OSError as error:
            self._pass_over(error)
            super().flush()

    def _pass_over(self, error: OSError) -> None:
        # What standard error cannot tell must not end anything: the status tells.
        if not self.outlasts or (error.errno not in _GONE and self.fileno() != 2):
            raise error
        _forget(self.fileno())


def repair_streams() -> None:
    """Make the standard streams take whatever is written; only a reader of standard output may end a command."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            # The lowest free number is this one. Else a file of the store would take it.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "w" if number else "r"))
        elif number:
            buffer = _StandardStream(io.FileIO(number, "w", closefd=False))
            buffer.outlasts = number == 2
            wrapper = io.TextIOWrapper(
                buffer,
                stream.encoding,
                "backslashreplace",
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            setattr(sys, name, wrapper)


def outlast_readers() -> None:
    """From now on go on to the end though nobody reads the output any more: something is about to be changed."""
    buffer = getattr(sys.stdout, "buffer", None)
    if isinstance(buffer, _StandardStream):
        buffer.outlasts = True


def forget_output() -> None:
    """Let go of standard output: its reader has gone, or its disk is full, and a buffer must not complain later."""
    _forget(sys.stdout.fileno())


def _forget(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
