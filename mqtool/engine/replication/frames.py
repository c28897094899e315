"""Parsers for both directions of the replication stream: reports and frames.

Bytes may arrive in any pieces. If they do not belong to such a stream, the error says which protocol they are, if
that is known. (Rules: replication.md 2.1, 2.2, 10.)
"""

from collections.abc import Generator, Iterator
from typing import NamedTuple

from mqtool.errors import FormatError
from mqtool.formats.replication import (
    FRAME_HEAD_SIZE,
    PACK_FRAME_HEAD,
    PACK_REPORT,
    REPORT_SIZE,
)

MAX_BODY = (4 << 20) - FRAME_HEAD_SIZE
"""Bytes of a frame's body: a RocketMQ slave has a buffer of 4 MiB and can never complete a larger frame."""
_MAX_OFFSET = (1 << 56) - 1
"""No log is longer, so the first byte of a report is 0."""
_HANDSHAKES = frozenset(1 << 32 | first << 16 | second for first in (0, 1) for second in (0, 1))
"""The first 8 bytes of an auto-switch slave, read as a report."""
_BELOW_HANDSHAKE = 1 << 32

AUTO_SWITCH = "the protocol of an auto-switch slave (enableControllerMode), which is not supported here"


class FrameHead(NamedTuple):
    """The head of a frame, before its body; a size of 0 is a heartbeat."""

    physical_offset: int
    size: int


class Frame(NamedTuple):
    """A whole frame."""

    physical_offset: int
    body: bytes | memoryview


def build_report(max_offset: int) -> bytes:
    """Return a report of where a slave's log ends.

    >>> build_report(258).hex()
    '0000000000000102'
    """
    return PACK_REPORT.pack(max_offset)


def build_frame_head(physical_offset: int, size: int) -> bytes:
    """Return the head of a frame whose body has ``size`` bytes; 0 makes it a heartbeat.

    >>> build_frame_head(258, 3).hex()
    '000000000000010200000003'
    """
    return PACK_FRAME_HEAD.pack(physical_offset, size)


class ReportParser:
    """Parses what a master receives from one slave: bytes in, reports out.

    Reports are counted from the first byte of the connection. If several arrive together, only the last one counts.
    """

    __slots__ = ("_data", "_first")

    def __init__(self) -> None:
        self._data = b""
        self._first: int | None = None

    @property
    def pending(self) -> bytes:
        """Received bytes that are not a complete report, or not a report at all."""
        return self._data

    @property
    def pending_size(self) -> int:
        """Their number."""
        return len(self._data)

    def receive(self, data: bytes) -> None:
        """Add received bytes."""
        self._data = self._data + data if self._data else bytes(data)

    def commands(self) -> Generator[int, None, None]:
        """Yield the last report that is complete, if there is a new one.

        Raises:
            FormatError: the bytes are not a report: the connection must be closed.
        """
        data, whole = self._data, len(self._data) // REPORT_SIZE * REPORT_SIZE
        if not whole:
            return
        report = 0
        for (report,) in PACK_REPORT.iter_unpack(data[:whole]):
            if not 0 <= report <= _MAX_OFFSET:
                raise FormatError(f"{report:,} is not an offset of a log", 0)
            if self._first in _HANDSHAKES and report < _BELOW_HANDSHAKE:
                raise FormatError(AUTO_SWITCH, 0)
            self._first = report if self._first is None else -1  # only the second is examined together with the first
        self._data = data[whole:]
        yield report


class FrameParser:
    """Parses what a slave receives from its master: bytes in, heads and frames out.

    A head is yielded as soon as its 12 bytes have arrived, so that it can be checked before its body arrives; the frame
    follows when it is complete. Less than a frame is kept between two pieces.

    Cost: only the bytes of an item that arrives in several pieces are copied.
    """

    __slots__ = ("_begun", "_data", "_head")

    def __init__(self) -> None:
        self._begun = bytearray()  # an item that is not complete
        self._data = memoryview(b"")  # what was received after it
        self._head: FrameHead | None = None

    @property
    def pending_size(self) -> int:
        """How many received bytes are not part of a complete frame yet, without those of a head."""
        return len(self._begun) + len(self._data)

    def receive(self, data: bytes | memoryview) -> None:
        """Add received bytes, which may change once ``commands`` has yielded all of their items."""
        self._data = memoryview(b"".join((self._data, data)) if self._data else data)

    def commands(self) -> Iterator[FrameHead | Frame]:
        """Yield complete items, each once: a head, then its frame. A caller that stops in between can continue later.

        Raises:
            FormatError: it is not a valid head of a frame: the connection must be closed.
        """
        while True:
            if self._head is None:
                start = self._take(FRAME_HEAD_SIZE)
                if start is None:
                    return
                head = FrameHead(*PACK_FRAME_HEAD.unpack(start))
                if not (0 <= head.physical_offset <= _MAX_OFFSET and 0 <= head.size <= MAX_BODY):
                    raise FormatError(f"a frame of {head.size:,} bytes for {head.physical_offset:,}", 0)
                self._head = head
                yield head
            else:
                body = self._take(self._head.size)
                if body is None:
                    return
                offset, self._head = self._head.physical_offset, None
                yield Frame(offset, body)

    def _take(self, size: int) -> memoryview | None:
        """Take the next bytes, None as long as there are fewer."""
        begun, missing = self._begun, size - len(self._begun)
        item, self._data = self._data[:missing], self._data[missing:]
        if len(item) == size:
            return item
        begun += item
        if len(begun) < size:
            return None
        self._begun = bytearray()
        return memoryview(begun)


def other_protocol(data: bytes | bytearray) -> str | None:
    """Return the protocol of a connection that began with these bytes, which are not a report; None if unknown.

    >>> other_protocol(b"GET / HTTP/1.1")
    'HTTP'
    """
    if data.startswith((b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"CONN", b"DELE", b"PRI ")):
        return "HTTP"
    if data.startswith(b"\x16\x03"):
        return "TLS, which the replication stream does not have"
    if data[8:16].startswith(b'{"'):
        return "the remoting protocol: clients are served on listenPort"
    if data[:8] in {PACK_REPORT.pack(handshake) for handshake in _HANDSHAKES}:
        return AUTO_SWITCH
    return None
