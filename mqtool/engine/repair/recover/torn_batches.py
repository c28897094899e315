"""Inner batches with wrong numbers: they are read, and rewritten, according to their bodies.

The number of messages and the first queue offset are in the properties of a batch, which no CRC covers. The number
is that of the elements of its body; the offset is that of the unit which leads to it, else that of the property.
(Rules: store.md 2.8, 4.9.)

Cost: linear in the records that are examined.
"""

import re

import numpy as np
import numpy.typing as npt

from mqtool.engine.repair.recover.record_editor import with_pairs
from mqtool.engine.store.dispatch import Properties
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import FormatError
from mqtool.formats import commit_log as layout
from mqtool.formats import kernels as plain
from mqtool.formats import record_edits, scan
from mqtool.formats.inner_batch import count_elements
from mqtool.formats.message import Message, message_at
from mqtool.formats.properties import PAIR_SEPARATOR
from mqtool.formats.property_names import CRC32, INNER_BASE, INNER_NUM
from mqtool.formats.scan import Ints, MessageTable

_DIGITS = 19
"""Numbers of fewer fit into 8 bytes."""
_NUMBERS = re.compile(rb"(?<![^\x02])INNER_(?:NUM|BASE)\x01[^\x02]*(?:\x02|\Z)")


def repaired_batches(reader: StoreReader, table: MessageTable, properties: Properties) -> dict[int, bytes]:
    """Return, by row, the inner batches whose numbers are wrong, with the right ones; linear in all inner batches.

    Also messages that have numbers of a batch but are not batches, without these numbers.

    Args:
        reader: of the store.
        table: of sound records.
        properties: of these.
    """
    is_batch = table.column("sys_flag") & layout.INNER_BATCH != 0
    has_crc = bool((properties.at(CRC32)[1] > 0).any())
    repaired = without_numbers(table, properties)
    for row in np.flatnonzero(is_batch).tolist():
        stated = tuple(properties.text(table, name, row) for name in (INNER_NUM, INNER_BASE))
        is_packed = int(table.column("sys_flag")[row]) & layout.COMPRESSED
        count = 0 if is_packed else count_elements(table.bytes_of(plain.BODY, row))
        if stated != (str(count), str(int(table.column("queue_offset")[row]))):
            record = _repaired(reader, table.record(row), message_at(table, row), stated, has_crc)
            if record is not None:
                repaired[row] = record
    return repaired


def without_numbers(table: MessageTable, properties: Properties) -> dict[int, bytes]:
    """Return, by row, the messages that have numbers of a batch but are not batches, without these numbers."""
    is_batch = table.column("sys_flag") & layout.INNER_BATCH != 0
    cleared = {}
    for row in np.flatnonzero(~is_batch & (properties.at(INNER_NUM)[1] > 0)).tolist():
        message = message_at(table, row)
        if not _count(message):
            raw = _NUMBERS.sub(lambda match: PAIR_SEPARATOR.encode() * len(match[0]), message.raw_properties)
            cleared[row] = record_edits.with_properties(table.record(row), len(raw), raw)
    return cleared


def _repaired(
    reader: StoreReader, record: bytes, message: Message, stated: tuple[str, ...], has_crc: bool
) -> bytes | None:
    """Return a record with correct numbers, None if it has them or they are not known."""
    count = _count(message)
    offset = _told_by_unit(reader, message)
    if offset is None:  # brokers go by the property
        is_number = stated[1].isascii() and stated[1].isdecimal() and len(stated[1]) < _DIGITS
        offset = int(stated[1]) if is_number else message.queue_offset
    pairs = {INNER_NUM: str(count), INNER_BASE: str(offset)}
    if not count or (stated == tuple(pairs.values()) and offset == message.queue_offset):
        return None
    properties = with_pairs(message, pairs, has_crc)
    if properties is None:
        return None
    record = record_edits.with_queue_offset(record, offset)
    return record_edits.with_properties(record, len(properties), properties)


def _count(message: Message) -> int:
    """Return how many messages a body holds as a batch, 0 if it is not a batch."""
    try:
        return count_elements(message.plain_body())
    except FormatError:
        return 0


def _told_by_unit(reader: StoreReader, message: Message) -> int | None:
    """Return the queue offset of the unit that leads to a record, None if there is none."""
    queue = reader.batch_consume_queues.get((message.topic, message.queue_id))
    return queue.offset_at(message.position, message.size) if queue else None


def renumbered(table: MessageTable, queue_offsets: Ints) -> MessageTable:
    """Return a table whose inner batches state their new queue offsets.

    Those whose properties have no room for them stay unchanged.
    """
    is_batch = table.column("sys_flag") & layout.INNER_BATCH != 0
    records = {}
    for row in np.flatnonzero(is_batch & (queue_offsets != table.column("queue_offset"))).tolist():
        message, offset = message_at(table, row), int(queue_offsets[row])
        properties = with_pairs(message, {INNER_BASE: str(offset)}, CRC32 in message.properties)
        if INNER_BASE in message.properties and properties is not None:
            record = record_edits.with_queue_offset(table.record(row), offset)
            records[row] = record_edits.with_properties(record, len(properties), properties)
    return with_records(table, records) if records else table


def with_addresses(table: MessageTable) -> MessageTable:
    """Return a table whose records state where they are; their CRC properties stay as they are."""
    at, width = layout.offset_in_head("physical_offset"), 8
    start = int(table.starts[0])
    stop = int(table.starts[-1]) + int(table.column("size")[-1])
    data = np.array(table.buffer[start:stop], np.uint8)
    positions = table.column("position").astype(f">i{width}")
    data[(table.starts - start + at)[:, None] + np.arange(width)] = positions.view(np.uint8).reshape(-1, width)
    return _gathered(table, data, start)


def with_records(table: MessageTable, records: dict[int, bytes]) -> MessageTable:
    """Return a table with other records, as long as before, in some of its rows."""
    start = int(table.starts[0])
    stop = int(table.starts[-1]) + int(table.column("size")[-1])
    data = np.array(table.buffer[start:stop], np.uint8)
    for row, record in records.items():
        at = int(table.starts[row]) - start
        data[at : at + len(record)] = np.frombuffer(record, np.uint8)
    return _gathered(table, data, start)


def _gathered(table: MessageTable, data: npt.NDArray[np.uint8], start: int) -> MessageTable:
    """Return the records of a table as they are in ``data``, a copy of its bytes from ``start`` on."""
    buffer = memoryview(data) if table.kernels is plain else data
    return scan.gather(buffer, int(table.column("position")[0]), table.starts - start, table.kernels)
