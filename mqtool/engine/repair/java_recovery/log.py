"""The log as a starting broker reads it: what it accepts as a sound record, and its walks (spec 3 and 7).

A broker compares neither a record's physical offset with its position nor its queue offset with anything.
Its verdict on one record is implemented once, in ``check_record``; walks use the scanner, and that function
only where the scanner finds something odd.

Cost: linear in the bytes of the segments that the broker would read.
"""

import dataclasses
import enum
import re
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mqtool.engine.repair.java_recovery.files import EndlessError, StartRefusedError, VersionRules
from mqtool.engine.store.commit_log import ROWS, STEP
from mqtool.engine.store.dispatch import properties_of, property_crcs
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.formats import commit_log, scan
from mqtool.formats import kernels as plain
from mqtool.formats.properties import parse_properties
from mqtool.formats.property_names import CRC32, DELAY, DUP_INFO, INNER_BASE, INNER_NUM
from mqtool.formats.record_head import HEADS, STORE_TIMESTAMP_AT
from mqtool.formats.scan import MessageTable
from mqtool.formats.topics import SCHEDULE_TOPIC

MAX_ARRAY = 0x7FFFFFFE
"""Too long for a Java array: 4.9 allocates one of a record's size before it checks anything else, and fails."""

_MUCH = 64 << 20
_CRC_ROOM = 20
_NUMBER = re.compile(r"[+-]?[0-9]{1,30}")
_SYS_FLAG = commit_log.offset_in_head("sys_flag")
_PHYSICAL_OFFSET = commit_log.offset_in_head("physical_offset")
_BODY_CRC = commit_log.offset_in_head("body_crc")


class Checks(NamedTuple):
    """Which checks a walk makes."""

    crc: bool = True  # of bodies, or of whole records with ``property_crc``
    property_crc: bool = False  # forceVerifyPropCRC
    duplicates: bool = False  # duplicationEnable: DUP_INFO must be there


class Outcome(enum.Enum):
    """A broker's verdict on the bytes at a place."""

    RECORD = "a record"
    BLANK = "the rest of its segment is blank"
    MISMATCH = "its lengths do not add up to its size"
    NOTHING = "no record"
    BAD_CRC = "its body does not match its checksum"
    OVERFLOW = "its size is more than a Java array can have"


@dataclasses.dataclass(frozen=True)
class CheckedRecord:
    """One verdict of the validator; numbers and parts are set only for a record."""

    outcome: Outcome
    size: int = 0
    end: int = 0  # position after what was read
    physical_offset: int = 0
    store_timestamp: int = 0
    extents: tuple[int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0)


_NOTHING = CheckedRecord(Outcome.NOTHING)


def check_record(buffer: Any, at: int, rules: VersionRules, checks: Checks) -> CheckedRecord:
    """Return a broker's verdict on the bytes at a position of a segment (or of the part of it that it may read)."""
    room = len(buffer) - at
    if room < commit_log.BLANK_SIZE:
        return _NOTHING
    size, magic = plain.int32(buffer, at), plain.int32(buffer, at + 4)
    if rules.measures_first and room < size:
        return _NOTHING
    if magic == commit_log.MAGIC_BLANK:
        return CheckedRecord(Outcome.BLANK)
    if magic != commit_log.MAGIC_V1 and not (rules.reads_v2 and magic == commit_log.MAGIC_V2):
        return _NOTHING
    if not rules.measures_first and size >= MAX_ARRAY:
        return CheckedRecord(Outcome.OVERFLOW)
    try:
        return _check_parts(buffer, at, size, magic, rules, checks)
    except (IndexError, ValueError):  # read beyond the end of the buffer, or text that is not a number
        return _NOTHING


def _check_parts(buffer: Any, at: int, size: int, magic: int, rules: VersionRules, checks: Checks) -> CheckedRecord:
    form = commit_log.head_form(plain.int32(buffer, at + _SYS_FLAG))
    if size < (20 if form else 8):  # a host is read into an array of the record's size
        return _NOTHING
    body_at = at + HEADS[form].size
    body_size = max(0, plain.int32(buffer, body_at - 4))
    topic_at = body_at + body_size
    _need(buffer, topic_at)
    crc = plain.int32(buffer, at + _BODY_CRC)
    if checks.crc and not checks.property_crc and body_size and _crc(buffer, body_at, body_size) != crc:
        return CheckedRecord(Outcome.BAD_CRC)
    wide = magic == commit_log.MAGIC_V2
    topic_size = plain.int16(buffer, topic_at) if wide else plain.int8(buffer, topic_at)
    topic_at += 2 if wide else 1
    _need(buffer, topic_at + topic_size)
    properties_at = topic_at + topic_size + 2
    properties_size = max(0, plain.int16(buffer, properties_at - 2))
    end = properties_at + properties_size
    _need(buffer, end)
    if topic_size < 0 or max(topic_size, properties_size) > size:
        return _NOTHING
    properties = parse_properties(bytes(buffer[properties_at:end]))
    topic = bytes(buffer[topic_at : topic_at + topic_size]).decode("utf-8", "replace")
    if properties_size and not _are_sound(topic, properties, rules, checks):
        return _NOTHING
    if checks.crc and checks.property_crc and not _property_crc_fits(buffer, end, size, properties):
        return CheckedRecord(Outcome.BAD_CRC)
    if end - at != size:
        return CheckedRecord(Outcome.MISMATCH, size, end)
    return CheckedRecord(
        Outcome.RECORD,
        size,
        end,
        plain.int64(buffer, at + _PHYSICAL_OFFSET),
        plain.int64(buffer, at + STORE_TIMESTAMP_AT[form]),
        (body_at, body_size, topic_at, topic_size, properties_at, properties_size),
    )


def _need(buffer: Any, end: int) -> None:
    if end > len(buffer):
        raise IndexError


def _crc(buffer: Any, at: int, size: int) -> int:
    return zlib.crc32(buffer[at : at + size]) & 0x7FFFFFFF


def _are_sound(topic: str, properties: dict[str, str], rules: VersionRules, checks: Checks) -> bool:
    if checks.duplicates and len(properties.get(DUP_INFO, "").split("_")) != 2:
        return False
    if topic == SCHEDULE_TOPIC and DELAY in properties and not _is_number(properties[DELAY], 32):
        return False
    base, count = properties.get(INNER_BASE), properties.get(INNER_NUM)
    return not rules.batch_queues or base is None or count is None or (_is_number(base, 64) and _is_number(count, 16))


def _is_number(text: str, bits: int) -> bool:
    return bool(_NUMBER.fullmatch(text)) and -1 << bits - 1 <= int(text) < 1 << bits - 1


def _property_crc_fits(buffer: Any, end: int, size: int, properties: dict[str, str]) -> bool:
    digits = properties.get(CRC32, "")
    start = end - size
    if not digits.isdigit() or start < 0 or size < _CRC_ROOM:
        return False
    return _crc(buffer, start, size - _CRC_ROOM) == int(digits[::-1])


class Walk:
    """One walk over the segments in the order of their names, from one of them to the first invalid record.

    Then ``end_offset`` is the end of the log as the broker sees it, ``why`` what it found there, and
    ``last_offset`` the start of its last record, if any. ``array_size`` is what 4.9 then requests from its heap, if
    that is much.
    """

    def __init__(self, segments: list[MappedFile], start: int, rules: VersionRules, checks: Checks) -> None:
        self.end_offset = segments[start].start_offset
        self.why = Outcome.NOTHING
        self.last_offset: int | None = None
        self.array_size = 0
        self._segments = segments[start:]
        self._rules = rules
        self._checks = checks
        self._kernels = scan.kernels_for(sum(segment.size for segment in self._segments))

    def tables(self) -> Iterator[MessageTable]:
        """Yield the records that the broker accepts.

        Raises:
            StartRefusedError: the broker fails here.
        """
        for segment in self._segments:
            self.end_offset = segment.start_offset
            buffer = memoryview(segment.bytes) if self._kernels is plain else segment.bytes
            at = 0
            while True:
                table, end, self.why = sound_rows(
                    buffer, segment.start_offset, at, self._rules, self._checks, self._kernels
                )
                if len(table):
                    self.last_offset = segment.start_offset + int(table.starts[-1])
                    yield table
                segment.release(at, end)
                at = end
                if self.why is not Outcome.RECORD:
                    break
            self.end_offset = segment.start_offset + at
            if self.why is Outcome.OVERFLOW:
                raise StartRefusedError(
                    f"the record at {self.end_offset:,} claims to have 2 GiB, which crashes the broker"
                )
            if self.why is not Outcome.BLANK:
                if not self._rules.measures_first and segment.size - at >= commit_log.BLANK_SIZE:
                    view = memoryview(segment.bytes)
                    size, magic = plain.int32(view, at), plain.int32(view, at + 4)
                    self.array_size = size if magic == commit_log.MAGIC_V1 and size >= _MUCH else 0
                return


def sound_rows(
    buffer: Any, base: int, at: int, rules: VersionRules, checks: Checks, kernels: Any
) -> tuple[MessageTable, int, Outcome]:
    """Return the next records that a broker accepts, where they end, and what is there.

    ``Outcome.RECORD`` means that more may follow.
    """
    result = scan.scan(buffer, base, at, min(at + STEP, len(buffer)), scan.BARE, kernels, ROWS)
    table = result.table
    view = memoryview(buffer)
    for row in np.flatnonzero(_odd_rows(table, rules, checks)).tolist():
        checked = check_record(view, int(table.starts[row]), rules, checks)
        if checked.outcome is not Outcome.RECORD:
            return table.where(slice(row)), int(table.starts[row]), checked.outcome
        table.extents[:, row] = checked.extents
        table.faults[row] = plain.SOUND
    if result.stop is scan.Stop.PART and result.end < len(buffer):
        return table, result.end, Outcome.RECORD
    return table, result.end, check_record(view, result.end, rules, checks).outcome


def _odd_rows(table: MessageTable, rules: VersionRules, checks: Checks) -> npt.NDArray[np.bool_]:
    """Return which records need a closer look: all that are not sound, and a few that are."""
    odd: npt.NDArray[np.bool_] = table.faults != plain.SOUND
    if not rules.reads_v2:
        odd |= table.column("magic_code") == commit_log.MAGIC_V2
    if checks.duplicates:
        odd[:] = True
    properties = properties_of(table)
    if checks.crc and checks.property_crc:
        rows, stored, computed = property_crcs(table, properties)
        fits = np.zeros(len(table), np.bool_)
        fits[rows[stored == computed]] = True
        odd |= ~fits
    elif checks.crc:
        odd |= (table.sizes(plain.BODY) > 0) & (table.body_crcs() != table.column("body_crc"))
    for name in (DELAY, INNER_BASE, INNER_NUM):
        odd |= ~_are_short_numbers(table, *properties.at(name))
    return odd


def _are_short_numbers(table: MessageTable, offsets: scan.Ints, sizes: scan.Ints) -> npt.NDArray[np.bool_]:
    """Return which values are missing or have up to four digits: valid numbers for every reader."""
    good = sizes <= 4
    present = np.flatnonzero(good & (sizes > 0))
    data = np.frombuffer(table.buffer, np.uint8)
    for number in range(4):
        rows = present[sizes[present] > number]
        letters = data[offsets[rows] + number]
        good[rows] &= (letters >= ord("0")) & (letters <= ord("9"))
    return good


class Times(NamedTuple):
    """The times in the checkpoint, which decide where a broker begins."""

    physical_timestamp: int = 0
    logics_timestamp: int = 0
    index_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0
    logics_physical_offset: int = 0

    @property
    def min_timestamp(self) -> int:
        """Three seconds before everything was on disk."""
        return max(0, min(self.physical_timestamp, self.logics_timestamp) - 3000)


def start_normally(
    segments: list[MappedFile],
    rules: VersionRules,
    checks: Checks,
    max_physical_offset: int,
    index_timestamp: int | None,
) -> tuple[int, str]:
    """Return the segment with which recovery begins after a clean stop, and why.

    Args:
        segments: at least one.
        rules: of the version.
        checks: of a recovery.
        max_physical_offset: the end of the queues' messages.
        index_timestamp: end of the last full index file, if that counts (``messageIndexSafe``, from 5.5 on).
    """
    last = len(segments) - 1
    if not rules.measures_first:
        return max(0, last - 2), "the third from last"
    if rules.looks_back is None:
        for index in range(last, 0, -1):
            if segments[index].start_offset <= max_physical_offset:
                return index, "the last one that starts before the end of the queues"
        return 0, "the first: no later one starts before the end of the queues"
    for index in range(last, max(0, last - rules.looks_back + 1), -1):
        first = check_record(memoryview(segments[index].bytes), 0, rules, checks)
        if _is_started(first, index_timestamp) and first.physical_offset <= max_physical_offset:
            return index, "the last one whose first record is sound and before the end of the queues"
    return _furthest(last, rules)


def start_abnormally(
    segments: list[MappedFile], rules: VersionRules, checks: Checks, times: Times, index_timestamp: int | None
) -> tuple[int, str]:
    """Return the segment with which recovery begins after a crash, and why; arguments as for ``start_normally``."""
    last = len(segments) - 1
    limit = times.min_timestamp if index_timestamp is None else min(times.min_timestamp, index_timestamp)
    stop = -1 if rules.looks_back is None else max(-1, last - rules.looks_back + 1)
    for index in range(last, stop, -1):
        data = memoryview(segments[index].bytes)
        if rules.looks_back is None:
            if 0 < _stored_at(data, rules) <= limit:
                return index, "the last one that starts before the times of the checkpoint"
            continue
        first = check_record(data, 0, rules, checks)
        if _is_started(first, index_timestamp):
            if times.logics_physical_offset > 0:
                is_covered = first.physical_offset <= times.logics_physical_offset
            else:
                is_covered = first.store_timestamp <= times.logics_timestamp
            if is_covered:
                return (
                    index,
                    "the last one whose first record is sound and older than the checkpoint's time of the queues",
                )
    return _furthest(last, rules)


def _furthest(last: int, rules: VersionRules) -> tuple[int, str]:
    if rules.looks_back is not None and last >= rules.looks_back:
        return last - rules.looks_back + 1, f"because it looks only at the last {rules.looks_back} segments"
    return 0, "the first: no later one qualifies"


def _is_started(first: CheckedRecord, index_timestamp: int | None) -> bool:
    if first.outcome is not Outcome.RECORD or not first.store_timestamp:
        return False
    return index_timestamp is None or first.store_timestamp <= index_timestamp


def _stored_at(data: memoryview, rules: VersionRules) -> int:
    """Return the bytes at the store time of a segment's first record, unchecked; 0 if there is no message."""
    magic = plain.int32(data, 4)
    if magic != commit_log.MAGIC_V1 and not (rules.reads_v2 and magic == commit_log.MAGIC_V2):
        return 0
    return plain.int64(data, STORE_TIMESTAMP_AT[commit_log.head_form(plain.int32(data, _SYS_FLAG)) & 1])


def catch_up(
    segments: list[MappedFile], used: int, file_size: int, start_offset: int, rules: VersionRules
) -> Iterator[MessageTable]:
    """Yield what the dispatcher of 4.9 reads in ``start()``: without checksums, and beyond invalid records.

    Args:
        segments: those of the log.
        used: write position in the last of them, in bytes.
        file_size: of a segment.
        start_offset: address to begin with.
        rules: of the version.

    Raises:
        EndlessError: the dispatcher is stuck, and ``start()`` waits for it.
    """
    offset = start_offset
    if segments:
        offset = max(offset, segments[0].start_offset)
    while segments and offset < segments[-1].start_offset + used:
        segment = next(
            (
                candidate
                for candidate in segments
                if candidate.start_offset <= offset < candidate.start_offset + file_size
            ),
            None,
        )
        readable = used if segment is segments[-1] else file_size
        if segment is None or offset % file_size >= readable:
            raise EndlessError(f"start() waits forever: there is no segment for offset {offset:,}")
        dispatcher = _Slice(segment, offset % file_size, readable, rules)
        yield from dispatcher.tables()
        offset = dispatcher.next_offset(file_size)


class _Slice:
    """What one round of the dispatcher reads; like the broker, it counts and reads at separate places."""

    def __init__(self, segment: MappedFile, start: int, stop: int, rules: VersionRules) -> None:
        self._segment = segment
        self._kernels = scan.kernels_for(stop - start)
        whole = segment.bytes[:stop]
        self._buffer: Any = memoryview(whole) if self._kernels is plain else whole
        self._start = start
        self._rules = rules
        self._offset = segment.start_offset + start
        self._rolls = False

    def tables(self) -> Iterator[MessageTable]:
        at, read, size = self._start, 0, len(self._buffer) - self._start
        checks = Checks(crc=False)
        while read < size:
            table, end, outcome = sound_rows(
                self._buffer, self._segment.start_offset, at, self._rules, checks, self._kernels
            )
            if len(table):
                yield table
            self._offset += end - at
            read += end - at
            at = end
            if outcome is Outcome.BLANK:
                self._rolls = True
                return
            if outcome is Outcome.MISMATCH:
                checked = check_record(self._buffer, at, self._rules, checks)
                self._offset += checked.size
                at = checked.end
            elif outcome is not Outcome.RECORD:
                self._offset += size - read
                return

    def next_offset(self, file_size: int) -> int:
        return self._offset - self._offset % file_size + file_size if self._rolls else self._offset
