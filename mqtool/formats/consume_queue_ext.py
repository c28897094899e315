"""Extension of a consume queue: a unit of any length for each message, with the bits of SQL filters.

With ``enableConsumeQueueExt`` the tags code of a queue's unit is an address in these files: the position of a unit,
counted from the lowest 64-bit number. A unit leaves four bytes at the end of its file; where it would not,
``END`` is written there and the next file is used. (RocketMQ: ``ConsumeQueueExt``.)
"""

from typing import Any

from mqtool.formats.layout import I16, I64, Layout

HEAD = Layout(
    size=I16,  # the whole unit
    tags_code=I64,
    store_timestamp=I64,
    bit_map_size=I16,
)
MIN_SIZE = HEAD.size
"""A unit is its head and a Bloom filter of the groups whose SQL expression matches (``record_schemas.EXT_UNIT``)."""

END = -1
"""Stands in place of a size where the rest of the file is unused."""
END_SIZE = 4

_FIRST_ADDRESS = -(2**63)
_LAST_ADDRESS = -(2**31) - 1


def is_address(tags_code: Any) -> Any:
    """Return whether a tags code, or each of a column, is an address in the extension: no hash of a tag is so low."""
    return tags_code <= _LAST_ADDRESS


def position_of(tags_code: int) -> int:
    """Return the position in the extension files that an address means."""
    return tags_code - _FIRST_ADDRESS


def address_of(position: int) -> int:
    """Return the tags code that means a position in the extension files."""
    return position + _FIRST_ADDRESS
