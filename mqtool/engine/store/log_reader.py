"""The raw bytes of the log, read from an address: what a master sends to a slave."""

from typing import Protocol

from mqtool.errors import NotFoundError


class ReadableLog(Protocol):
    """The log that is read: a ``LiveLog``."""

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
    """Reads on where it has ended; what it may still want holds retention back, if ``retentionWaitsForReaders``."""

    def __init__(self, log: ReadableLog, offset: int) -> None:
        """Begin at an address."""
        self.offset = offset
        """Address of the next byte."""
        self.held_offset: int | None = None
        """From where on bytes may be wanted once more; None: what is read is never wanted again."""
        self._log = log
        log.readers.add(self)

    @property
    def wanted_offset(self) -> int:
        """Address of the first byte that it may still want."""
        return self.offset if self.held_offset is None else self.held_offset

    def read(self, most: int) -> memoryview:
        """Return the next bytes, up to ``most`` and not beyond the end of a segment; none at the end of the log.

        Raises:
            NotFoundError: they are not in the log any more.
            MqtoolError: the disk fails, or a file has become shorter.
        """
        log = self._log
        if self.offset < log.min_offset:
            raise NotFoundError(f"the log starts at {log.min_offset:,}: there is nothing at {self.offset:,} any more")
        data = log.read(self.offset, max(0, min(most, log.end_offset - self.offset)))
        self.offset += len(data)
        return data

    def close(self) -> None:
        """Hold nothing back any more."""
        self._log.readers.discard(self)
