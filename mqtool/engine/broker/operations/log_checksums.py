"""Checksums of ranges of the log: with them a slave finds where its log diverges from its master's.

Cost: linear in the bytes, which are limited.
"""

from typing import TYPE_CHECKING

from mqtool.engine.broker.operations.refusal import OperationRefusedError, Reason

if TYPE_CHECKING:
    from mqtool.engine.store.message_store import MessageStore

MAX_BYTES = 16 << 20
MAX_BLOCKS = 64


def log_checksums(store: "MessageStore", start: int, end: int, size: int) -> list[int]:
    """Return the CRC-32 of each block of ``size`` bytes of the log from ``start`` to ``end``; the last may be shorter.

    Raises:
        OperationRefusedError: the log does not cover the range, or the range is too large.
    """
    if not store.log.min_offset <= start < end <= store.end_offset:
        text = f"the log covers {store.log.min_offset} to {store.end_offset}, not {start} to {end}"
        raise OperationRefusedError(Reason.BAD_ARGUMENT, text)
    if not 0 < size <= MAX_BYTES or end - start > MAX_BYTES or end - start > size * MAX_BLOCKS:
        raise OperationRefusedError(Reason.BAD_ARGUMENT, f"at most {MAX_BLOCKS} blocks and {MAX_BYTES} bytes at once")
    return [store.checksum(at, min(size, end - at)) for at in range(start, end, size)]
