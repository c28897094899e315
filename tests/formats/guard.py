"""Memory that nobody may read outside of: whoever does is ended by SIGSEGV."""

import ctypes
import mmap
from typing import Any

import numpy as np

PAGE = mmap.PAGESIZE
ROOM = 64 * PAGE


class Guarded:
    """Pages between two that cannot be read; bytes are laid against either end of them."""

    def __init__(self, room: int = ROOM) -> None:
        self._memory = mmap.mmap(-1, room + 2 * PAGE)
        self._bytes = np.frombuffer(self._memory, np.uint8)
        self._room = room
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        for page in (0, room + PAGE):
            address = ctypes.c_void_p(self._bytes.ctypes.data + page)
            if protect(address, ctypes.c_size_t(PAGE), 0):  # PROT_NONE
                raise OSError(ctypes.get_errno(), "mprotect")

    def at_end(self, data: bytes) -> Any:
        """Return an array of these bytes that ends where reading ends."""
        return self._place(PAGE + self._room - len(data), data)

    def at_start(self, data: bytes) -> Any:
        """Return an array of these bytes that begins where reading begins."""
        return self._place(PAGE, data)

    def _place(self, at: int, data: bytes) -> Any:
        if len(data) > self._room:
            raise ValueError(f"{len(data):,} bytes do not fit")
        self._memory[at : at + len(data)] = data
        array = self._bytes[at : at + len(data)]
        array.flags.writeable = False  # as a mapped file: another type to compile for, otherwise
        return array
