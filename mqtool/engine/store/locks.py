"""Whether another process holds a file's lock, asked without taking it."""

import fcntl
import os
import struct
from pathlib import Path

# struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")


def is_locked(path: Path) -> bool:
    """Tell whether some process holds a lock on the first byte of ``path``; False where that cannot be known."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, question))[0]
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return bool(kind != fcntl.F_UNLCK)
