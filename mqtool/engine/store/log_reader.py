"""The raw bytes of the log, read from an address: what a master sends to a slave."""

from typing import Protocol

from mqtool.errors import NotFoundError


class ReadableLog(Protocol):
    """The log to be read: a ``LiveLog``."""

    readers: "set[LogReader]"

    @property
    def min_offset(self) -> int:
        """Where it starts."""
        ...

    @property
    def end_offset(self) -> int:
        """Where it ends."""
        ...

    def read(self, offset: int, size: int) -> memoryview:
        """Return bytes at an address."""
        ...


class LogReader:
    """Reads sequentially; retention waits for what it may still need, if ``retentionWaitsForReaders`` is set."""

    def __init__(self, log: ReadableLog, offset: int) -> None:
        """Begin at an address."""
        self.offset = offset
        """Address of the next byte."""
        self.held_offset: int | None = None
        """Address from which on bytes may be needed again; None: never."""
        self._log = log
        log.readers.add(self)

    @property
    def wanted_offset(self) -> int:
        """Address of the first byte that it may still need."""
        return self.offset if self.held_offset is None else self.held_offset

    def read(self, most: int) -> memoryview:
        """Return the next bytes, up to ``most`` and not beyond the end of a segment; none at the end of the log.

        Raises:
            NotFoundError: they are no longer in the log.
            MqtoolError: the disk fails, or a file has become shorter.
        """
        log = self._log
        if self.offset < log.min_offset:
            raise NotFoundError(f"the log starts at {log.min_offset:,}: {self.offset:,} is no longer in it")
        data = log.read(self.offset, max(0, min(most, log.end_offset - self.offset)))
        self.offset += len(data)
        return data

    def close(self) -> None:
        """Stop delaying retention."""
        self._log.readers.discard(self)
