"""One direction of a connection: bytes in, commands out."""

import struct
from collections.abc import Generator

from mqtool.errors import FormatError
from mqtool.formats.remoting import MAX_FRAME, MAX_HEADER, RemotingCommand, parse_command

_HEAD = struct.Struct(">II")
_HEAD_SIZE = _HEAD.size
_PULSAR_CONNECT = b"\x08\x02"  # its first field, the kind of command: CONNECT


def other_protocol(data: bytes | bytearray) -> str | None:
    """Return what a connection speaks that began with these bytes, which are not a frame; None if that is not known.

    >>> other_protocol(b"PRI * HTTP/2.0"), other_protocol(b"nonsense")
    ('HTTP/2, like gRPC clients: they need the proxy of RocketMQ', None)
    """
    if data.startswith(b"PRI * HT"):
        return "HTTP/2, like gRPC clients: they need the proxy of RocketMQ"
    if data.startswith((b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"CONN", b"DELE", b"PATC", b"TRAC")):
        return "HTTP"
    if data.startswith((b"PROXY ", b"\r\n\r\n\0\r\nQ")):
        return "the PROXY protocol of load balancers, which has to be turned off there"
    if data.startswith(b"\x16\x03"):
        return "TLS, which is not enabled here: see tls.server.mode, certPath and keyPath"
    if len(data) >= _HEAD_SIZE + len(_PULSAR_CONNECT):
        size, command_size = _HEAD.unpack_from(data)
        if size >= command_size + 4 and data.startswith(_PULSAR_CONNECT, _HEAD_SIZE):
            return "the Pulsar protocol"
    return None


class Connection:
    """Splits a byte stream into commands.

    Bytes may arrive in any pieces; a command is returned as soon as its last byte has arrived. At most an incomplete
    frame is kept between two pieces, and no memory is reserved for an announced length. The owner of the socket feeds
    this class, and closes the connection if it raises: data after a broken frame cannot be parsed.
    """

    __slots__ = ("_data", "_wanted")

    def __init__(self) -> None:
        self._data: bytes | bytearray = b""
        self._wanted = _HEAD_SIZE  # bytes needed for the next command

    @property
    def pending(self) -> bytes | bytearray:
        """Received bytes of an incomplete command."""
        return self._data

    @property
    def pending_size(self) -> int:
        """The number of bytes of an incomplete frame."""
        return len(self._data)

    def receive(self, data: bytes) -> None:
        """Add received bytes."""
        if not self._data:
            self._data = data
        elif type(self._data) is bytearray:
            self._data += data
        else:
            self._data = bytearray(self._data)
            self._data += data

    def commands(self) -> Generator[RemotingCommand, None, None]:
        """Yield complete commands, each once; if the iterator is closed early the rest comes with the next call.

        Raises:
            FormatError: a frame is longer than ``MAX_FRAME``, its header than ``MAX_HEADER``, or it is none.
        """
        data = self._data
        size = len(data)
        if size < self._wanted:
            return
        at = 0
        self._wanted = _HEAD_SIZE
        try:
            while size - at >= _HEAD_SIZE:
                length, header_size = _HEAD.unpack_from(data, at)
                end = at + 4 + length
                header_end = at + 8 + (header_size & 0xFFFFFF)
                if end - at > MAX_FRAME or header_end > end or header_end - at > MAX_HEADER:
                    raise FormatError(f"a frame of {end - at:,} bytes with a header of {header_end - at - 8:,}", at)
                if end > size:
                    self._wanted = end - at
                    return
                command = parse_command(header_size >> 24, data[at + 8 : header_end], bytes(data[header_end:end]))
                at = end
                yield command
        finally:
            if at:
                self._data = data[at:]
