"""The end of the log of a store that is being opened.

A log that was closed ends where its queues say, with zeros after that. One that was not is read further, by records,
from the checkpoint on; an incomplete record at the end is cut. (Rules: store.md 7. RocketMQ:
``CommitLog.recoverNormally``, ``recoverAbnormally``.)
"""

import functools
import struct
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mqtool.engine.store.disk import chunks
from mqtool.engine.store.live_log import LiveLog, Segment
from mqtool.engine.store.loaded_file import LoadedFile
from mqtool.errors import FormatError, RecoveryNeededError
from mqtool.formats import commit_log, scan
from mqtool.formats.record_head import HEADS, body_crc, physical_offset, read_start, sys_flag
from mqtool.formats.stored_message import parse_stored

if TYPE_CHECKING:
    from mqtool.engine.store.disk import Disk

_ROOM = commit_log.BLANK_SIZE
_MAX_AGAIN = 256 << 20
"""Bytes that are examined record by record after a kill; the checkpoint is written every second."""
_READ_AT_ONCE = 64 << 10
_LOOK_BACK = 64 << 10
"""Bytes that are first searched for the last records."""

LogMessage = tuple[str, int, int, bytes, int, int, int, int]
"""What the dispatch of a message in the log needs: topic, queue id, ``sys_flag``, properties, queue offset, address,
size and store time. Without a topic it is a blank record. (A named tuple takes as long to make as to read it.)"""
_unpack_numbers = struct.Struct(">iiii4xqqi8x4x4xq4x4x4x8xi").unpack_from
"""Of a head with IPv4 addresses: those numbers, the magic code, the CRC and the size of the body."""
_HEAD_SIZE = HEADS[0].size
_unpack_short = struct.Struct(">h").unpack_from
_MAGIC_V1 = commit_log.MAGIC_V1
_V6_HOSTS = commit_log.BORN_HOST_V6 | commit_log.STORE_HOST_V6


def find_end(log: LiveLog, start: int, noted: int = -1) -> None:
    """Set the end of a log that was closed after its last record; it must be zero from there on.

    Args:
        log: as found.
        start: of the last record with a unit in a queue, -1 if there is none; the last non-empty segment
            is walked from its first byte if it starts after that.
        noted: start of the last record when the log was closed, -1 if unknown: it may have no unit,
            as its topic was deleted.

    Raises:
        RecoveryNeededError: the log ends in something else.
    """
    begins = sorted(log.segments)
    while len(begins) > 1 and not any(_start_at(log, begins[-1])):
        begins.pop()
    start = max(start, noted)
    end, last_start = log.min_offset, -1
    if begins:
        end, last_start = _walk(log, start, max(start, begins[-1]), begins[-1] + log.file_size)
    if last_start < 0 <= start:
        raise RecoveryNeededError(f"a queue refers to a message at {start:,}, where the log has none")
    for segment in log.segments.values():
        if segment.start_offset + log.file_size > end:
            _check_unused(log, segment, max(0, end - segment.start_offset))
    log.take_up(end, last_start, end, last_start)


def find_end_again(log: LiveLog, start: int) -> None:
    """Set the end of a log that was not closed after its last record, starting at one that is on the disk.

    A record that was being written when the broker was killed is left out: it was not acknowledged.

    Args:
        log: as found.
        start: of that record, -1 to start with the first of the log; ``flushed_offset`` is after it.

    Raises:
        RecoveryNeededError: messages follow unreadable bytes, or there are too many.
    """
    begin = end = max(start, log.min_offset)
    last_start, flushed_offset = -1, -1 if start >= 0 else log.min_offset
    while True:
        size, magic = _start_at(log, end)
        if magic == commit_log.MAGIC_BLANK and end % log.file_size + size == log.file_size:
            end += size
        elif sound_record(log, end):
            last_start = end
            end += size
            if last_start == start:
                flushed_offset = end
        else:
            break
        if end - begin > _MAX_AGAIN:
            raise RecoveryNeededError(f"more than {_MAX_AGAIN:,} bytes of the log are not covered by a checkpoint")
    if flushed_offset < 0:
        raise RecoveryNeededError(f"the checkpoint refers to a message at {start:,}, where the log has none")
    for segment in log.segments.values():
        if segment.start_offset + log.file_size > end:
            _check_behind(log, segment, end)
    log.take_up(end, last_start, flushed_offset, start)


def clear_behind(log: LiveLog, disk: "Disk") -> int:
    """Clear what is after the end of a log that was not closed, and return the number of bytes."""
    count = 0
    for segment in log.segments.values():
        for at, data in chunks(segment.path, max(0, log.end_offset - segment.start_offset), log.file_size):
            if data.count(0) != len(data):
                count += len(data.rstrip(b"\0"))
                disk.write(segment.path, at, bytes(len(data)))
    return count


# Records


def sound_record(log: LiveLog, at: int) -> bytes:
    """Return the record that starts at an address, empty if there is no complete one."""
    size, magic = _start_at(log, at)
    fits = commit_log.MIN_SIZE <= size <= log.file_size - at % log.file_size - _ROOM
    if at < 0 or magic not in commit_log.MESSAGE_MAGICS or not fits:
        return b""
    record = log.read_bytes(at, size)
    return record if _message(record, at) else b""


def _message(record: bytes, at: int) -> LogMessage | None:
    """Return the message of the record of an address, None if it is incomplete."""
    try:
        stored = parse_stored(record)
    except FormatError:
        return None
    if stored.physical_offset != at:
        return None
    message = stored.message
    crc = body_crc(record)
    # The rest of an incomplete record is zero, and its body may be complete.
    is_whole = (
        (not message.body or crc == zlib.crc32(message.body) & 0x7FFFFFFF)
        and bool(message.topic)
        and "\0" not in message.topic
        and message.properties[-1:] != b"\0"
    )
    if not is_whole:
        return None
    numbers = message.queue_id, message.sys_flag
    return message.topic, *numbers, message.properties, stored.queue_offset, at, stored.size, stored.store_timestamp


def read_whole(log: LiveLog, at: int) -> Iterator[LogMessage]:
    """Yield the messages and blank records from an address on, up to an incomplete one.

    Cost: linear in the bytes; they are read in large pieces.

    Raises:
        RecoveryNeededError: no record starts where the one before ends.
    """
    least = _READ_AT_ONCE
    while log.end_offset - at >= _ROOM:
        data = log.read_bytes(at, min(least, log.end_offset - at))
        begin, least = at, _READ_AT_ONCE
        stop = min(len(data), log.file_size - begin % log.file_size - _ROOM)
        while (place := at - begin) + _ROOM <= len(data):
            message = _usual_message(data, place, stop, at)
            if message is None:
                size, magic = read_start(data, place)
                room = log.file_size - at % log.file_size
                if magic == commit_log.MAGIC_BLANK and size == room:
                    message = "", 0, 0, b"", 0, at, size, 0
                elif magic in commit_log.MESSAGE_MAGICS and commit_log.MIN_SIZE <= size <= room - _ROOM:
                    if log.end_offset - at < size:
                        return
                    if len(data) < place + size:
                        least = max(least, size)
                        break
                    message = _message(data[place : place + size], at)
                if message is None:
                    raise RecoveryNeededError(f"no message starts at {at:,}, where the one before ends")
            yield message
            at += message[6]  # its size


def _usual_message(data: bytes, place: int, stop: int, at: int) -> LogMessage | None:
    """Return the message of the record at a place of some bytes, None if it is not sound, not whole, or an unusual one.

    Nearly all have a short topic and IPv4 hosts, and are read here in a fraction of the time of ``_message``.
    """
    head_end = place + _HEAD_SIZE
    if head_end >= stop:
        return None
    size, magic, crc, queue_id, queue_offset, physical_offset, sys_flag, timestamp, body_size = _unpack_numbers(
        data, place
    )
    topic_at = head_end + body_size + 1
    end = place + size
    if magic != _MAGIC_V1 or sys_flag & _V6_HOSTS or physical_offset != at or not head_end < topic_at < end <= stop:
        return None
    topic_end = topic_at + data[topic_at - 1]
    properties_at = topic_end + 2
    if properties_at > end or properties_at + _unpack_short(data, topic_end)[0] != end or topic_at == topic_end:
        return None
    if body_size and crc != zlib.crc32(data[head_end : topic_at - 1]) & 0x7FFFFFFF:
        return None
    topic, properties = _topic_of(data[topic_at:topic_end]), data[properties_at:end]
    if "\0" in topic or (properties and not properties[-1]):
        return None
    return topic, queue_id, sys_flag, properties, queue_offset, at, size, timestamp


@functools.lru_cache(1024)
def _topic_of(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def whole_at(log: LiveLog, at: int) -> tuple[int, bytes] | None:
    """Return size and bytes of the record at an address, no bytes for a blank one; None for an incomplete one.

    Raises:
        RecoveryNeededError: no record starts there.
    """
    left = log.end_offset - at
    if left < _ROOM:
        return None
    size, magic = _start_at(log, at)
    room = log.file_size - at % log.file_size
    if magic == commit_log.MAGIC_BLANK and size == room:
        return size, b""
    if magic in commit_log.MESSAGE_MAGICS and left < size <= room - _ROOM:
        return None
    if record := sound_record(log, at):
        return size, record
    raise RecoveryNeededError(f"no message starts at {at:,}, where the one before ends")


def records_before(log: LiveLog, end: int, count: int) -> list[tuple[int, bytes]]:
    """Return address and bytes of the last records before an address, in order; fewer if the log has no more.

    Args:
        log: of a store that is open.
        end: where a record, or a blank one, ends.
        count: how many records at most.
    """
    records: list[tuple[int, bytes]] = []
    while len(records) < count and end > log.min_offset:
        start = max((end - 1) // log.file_size * log.file_size, log.min_offset)
        size, begin = _LOOK_BACK, end
        chain: list[tuple[int, bytes]] = []
        while len(chain) < count - len(records) and begin > start:
            begin = max(start, end - size)
            chain, size = _chain(log, begin, end), size * 8
        records[:0] = chain[len(records) - count :]
        end = start
    return records


def _chain(log: LiveLog, begin: int, end: int) -> list[tuple[int, bytes]]:
    """Return the consecutive records of one segment up to an address."""
    view = log.read(begin, end - begin)
    for position in scan.candidates(view, begin, 0, len(view)):
        records, at = [], begin + position
        while at < end:
            size, magic = _start_at(log, at)
            if magic == commit_log.MAGIC_BLANK and at % log.file_size + size == log.file_size:
                at = end
            elif record := sound_record(log, at):
                records.append((at, record))
                at += size
            else:
                break
        if at == end:
            return records
    return []


def _start_at(log: LiveLog, at: int) -> tuple[int, int]:
    return read_start(log.read(at, min(_ROOM, log.file_size - at % log.file_size)))


# Checks of the end


def _walk(log: LiveLog, start: int, end: int, stop: int) -> tuple[int, int]:
    """Go from record to record; return where they end, and where the last of them starts."""
    last_start = -1
    while end < stop:
        size, magic = _start_at(log, end)
        if magic in commit_log.MESSAGE_MAGICS:
            _check_record(log, end, size, has_unit=end == start)
            last_start = end
        elif magic != commit_log.MAGIC_BLANK or end % log.file_size + size != log.file_size:
            break
        end += size
    return end, last_start


def _check_record(log: LiveLog, at: int, size: int, has_unit: bool) -> None:
    if size < commit_log.MIN_SIZE or at % log.file_size + size + _ROOM > log.file_size:
        raise RecoveryNeededError(f"the record at {at:,} does not fit its segment")
    view = log.read(at, size)
    if physical_offset(view) != at:
        raise RecoveryNeededError(f"the record at {at:,} says that it is at another address")
    transaction = sys_flag(view) & commit_log.TRANSACTION_MASK
    if not has_unit and transaction not in (commit_log.TRANSACTION_PREPARED, commit_log.TRANSACTION_ROLLBACK):
        raise RecoveryNeededError(f"the message at {at:,} is in no queue")


def _check_unused(log: LiveLog, segment: Segment, start: int) -> None:
    for _, data in chunks(segment.path, start, log.file_size):
        if data.count(0) != len(data):
            raise RecoveryNeededError(f"there is data after the last message in {segment.path}")


def _check_behind(log: LiveLog, segment: Segment, end: int) -> None:
    """Check that no message starts after the end of the log."""
    start = max(0, end - segment.start_offset)
    ends = [at + len(data) for at, data in chunks(segment.path, start, log.file_size) if data.count(0) != len(data)]
    if not ends:
        return
    with LoadedFile(segment.path, segment.start_offset, log.file_size) as file:
        file.load(start, max(ends))
        for position in scan.candidates(file.bytes, segment.start_offset, start, max(ends)):
            at = segment.start_offset + position
            if at > end and sound_record(log, at):
                raise RecoveryNeededError(
                    f"the log cannot be read from {end:,} on, but there is a message after that, at {at:,}"
                )
