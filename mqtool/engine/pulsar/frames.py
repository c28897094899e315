"""Frames of Pulsar's binary protocol: splits a stream into commands, and builds frames from commands and payloads.

A frame consists of its size, the size of its command, the command, and for SEND and MESSAGE a payload: optionally a
magic number and a CRC-32C, then the size of the metadata, the metadata and the body. (Rules: pulsar.md 1.)
"""

import functools
import re
import struct
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from mqtool.engine.pulsar.wire import classes, parse
from mqtool.engine.pulsar.wire_messages import NAMES, TEXTS
from mqtool.errors import FormatError
from mqtool.late import LateModule

if TYPE_CHECKING:
    import crc32c as _checksums
else:
    _checksums = LateModule("crc32c")

_SIZE = struct.Struct(">I")
_SIZES = struct.Struct(">II")
CHECKSUM_MARK = b"\x0e\x01"
_BROKER_MARK = b"\x0e\x02"
PADDING = 10 * 1024
"""How much longer a frame may be than the longest message."""
_PLAIN = re.compile(rb"\x18([\x80-\xff]{0,3}[\0-\x7f])((?:[\x28\x40][\x80-\xff]{0,8}[\0-\x7f]){0,2})")
"""Metadata of most messages of batches: ``payload_size``, perhaps followed by ``event_time`` and ``sequence_id``.

Without a limit of their number, megabytes of such numbers would take hundreds of megabytes to match."""
_REQUIRED_OF_SEND = frozenset(("producer_id", "sequence_id"))
_PLAIN_SEND = re.compile(rb"\x08\x06\x32(.)\x08([\x80-\xff]{0,8}[\0-\x7f])\x10([\x80-\xff]{0,8}[\0-\x7f])", re.DOTALL)
"""A SEND with its two required fields, as all are outside batches and chunks."""
_IDS_AT_ONCE = 100
"""Ids of an acknowledgement: for each of them a message may have to be read."""
_new_tuple = tuple.__new__  # creates a named tuple in a third of the time


def crc32c(data: bytes | memoryview) -> int:
    """Return the CRC-32C of some bytes."""
    return int(_checksums.crc32c(data))


class Command(NamedTuple):
    """A command of a client."""

    name: str
    body: Any
    payload: bytes | None


class PlainSend(NamedTuple):
    """A SEND command with nothing else, read without protobuf; it has the interface of one that was parsed."""

    producer_id: int
    sequence_id: int
    is_chunk: bool = False
    highest_sequence_id: int = 0

    def HasField(self, name: str) -> bool:  # noqa: N802
        """Return whether it has a field."""
        return name in _REQUIRED_OF_SEND


class PulsarFrameDecoder:
    """Splits the stream of one connection into commands."""

    def __init__(self, most: int) -> None:
        """Make a decoder whose frames have at most ``most`` bytes."""
        self.pending = bytearray()
        self._most = most
        self._parts: Iterator[Command] = iter(())  # of the last frame

    @property
    def pending_size(self) -> int:
        """How many received bytes are not a complete command yet."""
        return len(self.pending)

    def receive(self, data: bytes) -> None:
        """Add received bytes."""
        self.pending += data

    def commands(self) -> Generator[Command, None, None]:
        """Yield the commands that are complete, each once; a long acknowledgement in parts, so that others have a turn.

        Raises:
            FormatError: the received bytes are not a command that clients send.
        """
        at, pending = 0, self.pending
        try:
            while True:
                while (part := next(self._parts, None)) is not None:  # the caller may leave some to the next call
                    yield part
                if len(pending) - at < _SIZE.size:
                    return
                (size,) = _SIZE.unpack_from(pending, at)
                if size > self._most:
                    raise FormatError(f"a frame of {size:,} bytes", at)
                end = at + _SIZE.size + size
                if len(pending) < end:
                    return
                frame = bytes(pending[at + _SIZE.size : end])
                at = end
                command = parse_frame(frame)
                if command.name == "ack" and len(command.body.message_id) > _IDS_AT_ONCE:
                    self._parts = _parts_of(command)
                else:
                    yield command
        finally:
            del pending[:at]


def _parts_of(acknowledgement: Command) -> Iterator[Command]:
    """Yield acknowledgements that together mean the same as a long one; the last one asks for the answer."""
    body = acknowledgement.body
    ids, count = body.message_id, len(body.message_id)
    if body.ack_type:  # a cumulative one has one id, or no effect
        yield acknowledgement
        return
    for start in range(0, count, _IDS_AT_ONCE):
        part = type(body)(consumer_id=body.consumer_id, ack_type=body.ack_type)
        part.message_id.extend(ids[start : start + _IDS_AT_ONCE])
        if start + _IDS_AT_ONCE >= count and body.HasField("request_id"):
            part.request_id = body.request_id
        yield acknowledgement._replace(body=part)


def parse_frame(frame: bytes) -> Command:
    """Return the command of a frame, given without its size.

    Raises:
        FormatError: it is not a valid command.
    """
    if len(frame) < _SIZE.size:
        raise FormatError(f"a frame of {len(frame)} bytes", 0)
    (size,) = _SIZE.unpack_from(frame)
    body_at = _SIZE.size + size
    if body_at > len(frame):
        raise FormatError("a command longer than its frame", 0)
    plain = _PLAIN_SEND.fullmatch(frame, _SIZE.size, body_at)
    if plain and plain[1][0] == len(plain[2]) + len(plain[3]) + 2:
        send = _new_tuple(PlainSend, (varint(plain[2]), _number(plain[3]), False, 0))
        return _new_tuple(Command, ("send", send, frame[body_at:] if body_at < len(frame) else None))
    base = parse(classes.BaseCommand, frame[_SIZE.size : body_at])
    name = NAMES.get(base.type)
    if name is None or not base.HasField(name):
        raise FormatError(f"a command of type {base.type}", 0)
    body = getattr(base, name)
    if (texts := TEXTS[name]) and any(isinstance(getattr(body, field), bytes) for field in texts):
        raise FormatError(f"{name} with a text that is not UTF-8", 0)
    return Command(name, body, frame[body_at:] if body_at < len(frame) else None)


def build_frame(base: Any) -> bytes:
    """Return the frame of a command without a payload."""
    data: bytes = base.SerializeToString()
    return _SIZES.pack(_SIZE.size + len(data), len(data)) + data


def build_message_frame(base: Any, payload: bytes) -> list[bytes]:
    """Return the frame of a command with a payload, in pieces."""
    data = base.SerializeToString()
    return [_SIZES.pack(_SIZE.size + len(data) + len(payload), len(data)) + data, payload]


class Payload(NamedTuple):
    """Metadata and body after a command."""

    metadata: bytes
    body: bytes


class ChecksumError(FormatError):
    """A payload that does not match its checksum."""


def split_payload(payload: bytes) -> Payload:
    """Return metadata and body of a payload.

    Raises:
        ChecksumError: the checksum is wrong.
        FormatError: it is not a payload.
    """
    at = 0
    if payload.startswith(_BROKER_MARK) and len(payload) >= 6:
        at = 6 + _SIZE.unpack_from(payload, 2)[0]
    if payload.startswith(CHECKSUM_MARK, at):
        if len(payload) < at + 6:
            raise FormatError("a payload without its metadata", at)
        (expected,) = _SIZE.unpack_from(payload, at + 2)
        at += 6
        if crc32c(memoryview(payload)[at:]) != expected:
            raise ChecksumError("a payload with a wrong checksum", at)
    if len(payload) < at + _SIZE.size:
        raise FormatError("a payload without its metadata", at)
    (size,) = _SIZE.unpack_from(payload, at)
    at += _SIZE.size
    if at + size > len(payload):
        raise FormatError("metadata longer than its payload", at)
    return _new_tuple(Payload, (payload[at : at + size], payload[at + size :]))


def build_payload(metadata: bytes, body: bytes) -> bytes:
    """Return a payload with its checksum."""
    rest = b"".join((_SIZE.pack(len(metadata)), metadata, body))
    return b"".join((CHECKSUM_MARK, _SIZE.pack(crc32c(rest)), rest))


def split_batch_body(body: bytes, count: int) -> list[Payload]:
    """Return metadata and body of each message of a batch, uncompressed.

    Raises:
        FormatError: it does not contain exactly ``count`` messages.
    """
    payloads, at = [], 0
    for _ in range(count):
        if at + _SIZE.size > len(body):
            raise FormatError("a batch with fewer messages than it declares", at)
        (size,) = _SIZE.unpack_from(body, at)
        at += _SIZE.size
        metadata = body[at : at + size]
        at += size
        if plain := _PLAIN.fullmatch(metadata):
            payload_size = varint(plain[1])
        else:
            payload_size = parse(classes.SingleMetadata, metadata).payload_size
        end = at + payload_size
        if payload_size < 0 or end > len(body):
            raise FormatError("a message of a batch that is longer than the batch", at)
        payloads.append(Payload(metadata, body[at:end]))
        at = end
    if at != len(body):
        raise FormatError("a batch with data after its messages", at)
    return payloads


def without_size(metadata: bytes) -> bytes | None:
    """Return the metadata of a message of a batch with a ``payload_size`` of 0; None if it has a key or properties.

    That takes a tenth of the time of parsing it.
    """
    plain = _PLAIN.fullmatch(metadata)
    return b"\x18\0" + plain[2] if plain else None


def with_size(metadata: bytes, size: int) -> bytes | None:
    """Return metadata that ``without_size`` has returned with a ``payload_size`` again; None for others."""
    plain = _PLAIN.fullmatch(metadata)
    return b"\x18" + _varint(size) + plain[2] if plain else None


@functools.lru_cache(4096)
def _varint(number: int) -> bytes:
    text = bytearray()
    while number > 0x7F:
        text.append(number & 0x7F | 0x80)
        number >>= 7
    text.append(number)
    return bytes(text)


def _number(text: bytes) -> int:
    if len(text) == 2:  # most numbers of messages
        return text[0] & 0x7F | text[1] << 7
    number = shift = 0
    for byte in text:
        number |= (byte & 0x7F) << shift
        shift += 7
    return number


varint = functools.lru_cache(4096)(_number)
"""Returns the number of a protobuf varint that is likely to come again."""


def build_batch_body(messages: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the body of a batch, of the metadata and the body of each message."""
    return b"".join([part for metadata, body in messages for part in (_SIZE.pack(len(metadata)), metadata, body)])
