"""Consume queue: one fixed-size unit per message, in queue order.

Lay the files of one queue end to end and unit *n* starts at byte ``n * UNIT_SIZE``:
the queue offset of a message is its position here and is not stored. A queue whose first file begins before its
first message is filled up to there with pre-blank units (offset 0, ``PRE_BLANK_SIZE``, 0).
"""

from mqtool.formats.layout import I32, I64, Layout

UNIT = Layout(
    physical_offset=I64,  # first byte of the message in the commit log
    size=I32,  # its whole length
    tags_code=I64,  # Java hash of its tag; the delivery time of a delayed message; an address in the ext file
)
UNIT_SIZE: int = UNIT.size

OFFSET_END = (1 << 63) // UNIT_SIZE
"""No queue offset is so large: the place of its unit is a number of 64 bits."""
PRE_BLANK_SIZE = 0x7FFFFFFF
