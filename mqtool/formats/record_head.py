"""Numbers in the head of one message record, read by a ``struct`` where a schema would take fifty times as long.

Tables of records are read by ``scan``, whole records by ``stored_message`` and ``message``. Whoever has the bytes of
one record, or of its beginning, and wants a number of its head reads it here.
"""

import struct

from mqtool.formats import commit_log

Buffer = bytes | bytearray | memoryview

HEADS = tuple(head.packer for head in commit_log.HEADS)
"""What packs and unpacks a whole head in each form, at ``head_form(sys_flag)``."""

STORE_TIMESTAMP_AT = tuple(head.offset_of("store_timestamp") for head in commit_log.HEADS)
"""Where it stands in each form."""
STORE_TIMESTAMP_END = max(STORE_TIMESTAMP_AT) + 8

_BLANK = commit_log.BLANK.packer
_BODY_CRC_AT = commit_log.offset_in_head("body_crc")
_QUEUE_OFFSET_AT = commit_log.offset_in_head("queue_offset")
_PHYSICAL_OFFSET_AT = commit_log.offset_in_head("physical_offset")
_SYS_FLAG_AT = commit_log.offset_in_head("sys_flag")
_INT32, _INT64 = struct.Struct(">i").unpack_from, struct.Struct(">q").unpack_from


def read_start(data: Buffer, at: int = 0) -> tuple[int, int]:
    """Return size and magic code of the record, or blank, that starts at a place; zeros where the bytes end before.

    >>> read_start(bytes.fromhex("000000 5b daa320a7"))
    (91, -626843481)
    >>> read_start(b"")
    (0, 0)
    """
    return _BLANK.unpack_from(data, at) if len(data) - at >= _BLANK.size else (0, 0)


def blank(size: int) -> bytes:
    """Return the start of a blank record for the last ``size`` bytes of a segment."""
    return _BLANK.pack(size, commit_log.MAGIC_BLANK)


def body_crc(data: Buffer, at: int = 0) -> int:
    """Return the CRC-32 of the body."""
    number: int = _INT32(data, at + _BODY_CRC_AT)[0]
    return number


def queue_offset(data: Buffer, at: int = 0) -> int:
    """Return the number of the message in its queue."""
    number: int = _INT64(data, at + _QUEUE_OFFSET_AT)[0]
    return number


def physical_offset(data: Buffer, at: int = 0) -> int:
    """Return the address that the record claims."""
    number: int = _INT64(data, at + _PHYSICAL_OFFSET_AT)[0]
    return number


def sys_flag(data: Buffer, at: int = 0) -> int:
    """Return the flags."""
    number: int = _INT32(data, at + _SYS_FLAG_AT)[0]
    return number


def store_timestamp(data: Buffer, at: int = 0) -> int:
    """Return when the message was stored (ms)."""
    number: int = _INT64(data, at + STORE_TIMESTAMP_AT[commit_log.head_form(sys_flag(data, at))])[0]
    return number
