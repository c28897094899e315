"""Checks of the timer's files: the wheel, its log, and the messages they stand for."""

from collections.abc import Iterator

import numpy as np

from mqtool.engine.repair.checks import finding
from mqtool.engine.repair.findings import Finding
from mqtool.engine.repair.verify_log import MOST_LISTED
from mqtool.engine.store.file_queue import FileQueue
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import FormatError, NotFoundError
from mqtool.formats import timer
from mqtool.formats.commit_log import MAGIC_BLANK
from mqtool.formats.kernels import int32
from mqtool.formats.topics import TIMER_TOPIC

_KNOWN_MAGIC = timer.MAGIC_DEFAULT | timer.MAGIC_ROLL | timer.MAGIC_DELETE


def check_files(reader: StoreReader) -> Iterator[Finding]:
    """Judge lengths and names."""
    wheel = reader.paths.timer_wheel
    if wheel.exists() and (wheel.stat().st_size % timer.SLOT_SIZE or wheel.stat().st_size == 0):
        size = wheel.stat().st_size
        text = f"a timer wheel of {size:,} bytes: brokers refuse to start"
        yield finding("TIMER-FILE-SIZE", text, file="timerwheel", expected=timer.WHEEL_SIZE, found=size)
    log = reader.timer_log
    previous: MappedFile | None = None
    for segment in log.segments if log else ():
        file = reader.paths.relative(segment.path)
        if log and segment.size != log.file_size:
            text = f"a file of the timer log of {segment.size:,} bytes where {log.file_size:,} are due"
            yield finding("TIMER-FILE-SIZE", text, file=file, expected=log.file_size, found=segment.size)
        if previous and previous.end_offset != segment.start_offset:
            text = f"{segment.start_offset - previous.end_offset:,} bytes of the timer log are missing before this file"
            yield finding("TIMER-FILE-SIZE", text, file=file, expected=previous.end_offset, found=segment.start_offset)
        previous = segment
    check = reader.paths.timer_check
    if check.exists() and check.stat().st_size != timer.TIMER_CHECK_SIZE:
        text = f"a timercheck of {check.stat().st_size:,} bytes"
        yield finding(
            "TIMER-FILE-SIZE", text, file="config/timercheck", expected=timer.TIMER_CHECK_SIZE, found=check.stat().st_size
        )


def units_of(log: FileQueue) -> Iterator[tuple[MappedFile, int, np.void]]:
    """Yield each unit of a timer log with its file and position there; a file ends at the first place that is none."""
    for segment in log.segments:
        at = 0
        while at + timer.LOG_UNIT_SIZE <= segment.size:
            raw = segment.bytes[at : at + timer.LOG_UNIT_SIZE]
            if int32(memoryview(raw), 0) != timer.LOG_UNIT_SIZE:
                break
            yield segment, at, raw.view(timer.LOG_UNIT_DTYPE)[0]
            at += timer.LOG_UNIT_SIZE


def check_messages(reader: StoreReader, log_end: int) -> Iterator[Finding]:
    """Judge each unit against its message and its chain, and each slot of the wheel against the log."""
    log = reader.timer_log
    if log is None or reader.is_live:
        return
    for segment in log.segments:
        yield from _check_end(reader, segment)
    yield from _check_units(reader, log, log_end)
    yield from _check_wheel(reader, log)
    values = reader.timer_check
    if values is not None and values.last_timer_log_flushed_position > log.end_offset:
        text = "it says that more of the timer log was written than is there"
        yield finding(
            "TIMER-CHECK", text, file="config/timercheck", offset=8,
            expected=log.end_offset, found=values.last_timer_log_flushed_position,
        )


def _check_end(reader: StoreReader, segment: MappedFile) -> Iterator[Finding]:
    """Judge what ends the units of a file: nothing yet, or the mark of its end."""
    at = 0
    while at + 4 <= segment.size and int32(memoryview(segment.bytes), at) == timer.LOG_UNIT_SIZE:
        at += timer.LOG_UNIT_SIZE
    rest = segment.bytes[at:]
    if len(rest) < timer.LOG_END_SIZE or not rest.any():
        return
    end = timer.LOG_END.parse(rest[: timer.LOG_END_SIZE].tobytes())
    if end.magic_code != MAGIC_BLANK or end.size != len(rest):
        text = "neither a unit nor the mark of the file's end"
        yield finding("TIMER-UNIT", text, file=reader.paths.relative(segment.path), offset=at)


def _check_units(reader: StoreReader, log: FileQueue, log_end: int) -> Iterator[Finding]:
    listed = 0
    for segment, at, unit in units_of(log):
        position = segment.start_offset + at
        file = reader.paths.relative(segment.path)
        previous = int(unit["previous_position"])
        if previous != -1 and not (previous < position and (previous < log.min_offset or _is_unit(log, previous))):
            text = "the unit before it in its slot is not where it says"
            yield finding("TIMER-CHAIN", text, file=file, offset=at, found=previous)
            listed += 1
        if int(unit["magic_code"]) & ~_KNOWN_MAGIC:
            yield finding("TIMER-UNIT", "an unknown kind of unit", file=file, offset=at, found=int(unit["magic_code"]))
            listed += 1
        offset = int(unit["physical_offset"])
        problem = None if offset < reader.commit_log.min_offset else _message_problem(reader, unit, log_end)
        if problem:
            yield finding("TIMER-MESSAGE", problem, file=file, offset=at, physical_offset=offset)
            listed += 1
        if listed >= MOST_LISTED:
            return


def _message_problem(reader: StoreReader, unit: np.void, log_end: int) -> str | None:
    offset = int(unit["physical_offset"])
    if offset >= log_end:
        return "the unit points behind the end of the log: its message is lost"
    try:
        message = reader.message_at(offset)
    except (FormatError, NotFoundError):
        return "no message begins where the unit points"
    if message.topic != TIMER_TOPIC or message.size != int(unit["message_size"]):
        return "the message is not the one that the unit tells of"
    return None


def _is_unit(log: FileQueue, position: int) -> bool:
    head = log.read(position, 4)
    return len(head) == 4 and int32(head, 0) == timer.LOG_UNIT_SIZE


def _check_wheel(reader: StoreReader, log: FileQueue) -> Iterator[Finding]:
    wheel = reader.paths.timer_wheel
    if not wheel.exists():
        return
    size = wheel.stat().st_size
    file = MappedFile(wheel, 0, size)
    slots = file.bytes[: size // timer.SLOT_SIZE * timer.SLOT_SIZE].view(timer.SLOT_DTYPE)
    values = reader.timer_check
    if values is None:
        return
    # What has run out stays in the wheel until its place is needed; its part of the log may be gone.
    due = (slots["time"] > values.last_read_timestamp // 1000) & (slots["count"] > 0)
    for number in np.flatnonzero(due)[:MOST_LISTED].tolist():
        position = int(slots["last_position"][number])
        if not _is_unit(log, position):
            text = "the slot names a place in the timer log where no unit is"
            yield finding("TIMER-SLOT", text, file="timerwheel", offset=number * timer.SLOT_SIZE, found=position)
