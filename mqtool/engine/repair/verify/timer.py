"""Checks of the timer's files: the wheel, its log, and the messages that they refer to.

A unit of the log belongs to one second; the slot of that second names the first and the last of its units and counts
the messages to come. Past entries stay in wheel and log until their place is needed, so only their
structure is checked.

Cost: linear in the units of the timer log and the slots of the wheel.
"""

import bisect
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mqtool.engine.repair.checks import finding
from mqtool.engine.repair.findings import Finding
from mqtool.engine.repair.row_findings import MAX_LISTED
from mqtool.engine.store.dispatch import QueueKey
from mqtool.engine.store.file_queue import FileQueue
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import FormatError, NotFoundError
from mqtool.formats import timer
from mqtool.formats.commit_log import MAGIC_BLANK
from mqtool.formats.hashing import java_hash
from mqtool.formats.kernels import int32
from mqtool.formats.message import Message
from mqtool.formats.placeholder import LOST
from mqtool.formats.property_names import REAL_TOPIC, TIMER_DEL_UNIQKEY, TIMER_OUT_MS
from mqtool.formats.topics import TIMER_TOPIC

_KNOWN_MAGIC = timer.MAGIC_DEFAULT | timer.MAGIC_ROLL | timer.MAGIC_DELETE
_CHECK = "config/timercheck"
_SECOND = 1000
"""``timerPrecisionMs``: a slot is a second."""


@dataclasses.dataclass(slots=True)
class _Second:
    """The units of the log for one second."""

    first: int
    last: int
    count: int = 0


def check_files(reader: StoreReader) -> Iterator[Finding]:
    """Check which files there are, their lengths and names."""
    paths = reader.paths
    names = ("timerwheel", "timerlog", _CHECK)
    files = (paths.timer_wheel, paths.timer_log, paths.timer_check)
    if any(map(reader.is_left_out, files)):
        return
    existing = [path.exists() for path in files]
    snapshot = any(reader.root.glob("timerwheel.*"))
    # A broker creates the log with its first timer message.
    used = any(existing) and (TIMER_TOPIC, 0) in reader.consume_queues
    for name, is_there in zip(names, existing, strict=True):
        if used and not is_there and not (name == "timerwheel" and snapshot):
            existing_names = " and ".join(other for other, its in zip(names, existing, strict=True) if its)
            yield finding("TIMER-MISSING", f"{name} is missing, although there is {existing_names}", file=name)
    yield from _check_size(paths.timer_wheel, "timerwheel", timer.WHEEL_SIZE, timer.SLOT_SIZE)
    yield from _check_size(paths.timer_check, _CHECK, timer.TIMER_CHECK_SIZE, timer.TIMER_CHECK_SIZE)
    log = reader.timer_log
    if paths.timer_log.exists() and log is None:
        yield finding("TIMER-FILE-SIZE", "timerlog is not a folder", file="timerlog")
    for stray in log.strays if log else ():
        text = "its name is not that of a timer log file: brokers refuse to start"
        yield finding("TIMER-FILE-SIZE", text, file=reader.paths.relative(stray.path))
    previous: MappedFile | None = None
    for segment in log.hold().segments if log else ():
        file = reader.paths.relative(segment.path)
        if not segment.size and log and segment is log.segments[-1] and reader.is_live:
            continue  # just made
        if log and segment.size != log.file_size:
            text = f"a timer log file of {segment.size:,} bytes, expected {log.file_size:,}"
            yield finding("TIMER-FILE-SIZE", text, file=file, expected=log.file_size, found=segment.size)
        if previous and log and previous.start_offset + log.file_size != segment.start_offset:
            missing = segment.start_offset - previous.start_offset - log.file_size
            text = f"{missing:,} bytes of the timer log are missing before this file"
            expected = previous.start_offset + log.file_size
            yield finding("TIMER-FILE-SIZE", text, file=file, expected=expected, found=segment.start_offset)
        previous = segment


def _check_size(path: Path, file: str, size: int, unit: int) -> Iterator[Finding]:
    if not path.exists():
        return
    if not path.is_file():
        yield finding("TIMER-FILE-SIZE", f"{file} is not a file", file=file)
        return
    actual_size = path.stat().st_size
    if not actual_size or actual_size % unit or size == unit != actual_size:
        text = f"{actual_size:,} bytes, expected {size:,}"
        yield finding(
            "TIMER-FILE-SIZE", text, file=file, offset=min(actual_size, size), expected=size, found=actual_size
        )


def units_of(log: FileQueue) -> Iterator[tuple[MappedFile, int, np.void]]:
    """Yield each unit of a timer log with file and position; a file ends at the first place without one."""
    for segment in log.segments:
        at = 0
        while at + timer.LOG_UNIT_SIZE <= segment.size:
            raw = segment.bytes[at : at + timer.LOG_UNIT_SIZE]
            if int32(memoryview(raw), 0) != timer.LOG_UNIT_SIZE:
                break
            yield segment, at, raw.view(timer.LOG_UNIT.dtype)[0]
            at += timer.LOG_UNIT_SIZE


def check_messages(
    reader: StoreReader,
    log_end: int,
    ends: Mapping[QueueKey, int] | None = None,
    bridged: Sequence[tuple[int, int]] = (),
) -> Iterator[Finding]:
    """Check each unit against its message and its chain, and each slot of the wheel against the log.

    Args:
        reader: of the store.
        log_end: of its log.
        ends: one past the last queue offset of each queue; None: as the files have it.
        bridged: where placeholders will stand in the log, from and to, in order.
    """
    log = reader.timer_log
    check = reader.paths.timer_check
    if log is None or reader.is_live:
        return
    end = 0
    for segment in log.hold().segments:
        end = segment.start_offset + _units_end(segment)
        yield from _check_end(reader, segment)
    whole = not reader.is_left_out(check) and check.is_file() and check.stat().st_size >= timer.TIMER_CHECK_SIZE
    values = reader.timer_check if whole else None
    seconds: dict[int, _Second] = {}
    yield from _check_units(reader, log, log_end, values, seconds, bridged)
    if values is None:
        return
    yield from _check_wheel(reader, log, values, seconds)
    yield from _check_progress(reader, values, end, ends)


def _units_end(segment: MappedFile) -> int:
    """Return where the units of a file end: after its end mark, if there is one."""
    at = 0
    while at + 4 <= segment.size and int32(memoryview(segment.bytes), at) == timer.LOG_UNIT_SIZE:
        at += timer.LOG_UNIT_SIZE
    return segment.size if segment.bytes[at : at + 4].any() else at


def _check_progress(
    reader: StoreReader, values: Any, end: int, ends: Mapping[QueueKey, int] | None
) -> Iterator[Finding]:
    """Check the timer's progress in ``timercheck``."""
    key = (TIMER_TOPIC, 0)
    queue = reader.consume_queues.get(key)
    queue_end = (queue.max_offset() if queue else 0) if ends is None else ends.get(key, 0)
    bounds = [("last_timer_log_flushed_position", end, "the timer log is written")]
    if reader.rocksdb_queues is None and not reader.lacks_queue(key):
        text = "the timer's queue has messages"
        bounds += [("last_timer_queue_offset", queue_end, text), ("master_timer_queue_offset", queue_end, text)]
    for name, bound, subject in bounds:
        if not 0 <= values[name] <= bound:
            text = f"its {name.replace('_', ' ')} does not match how far {subject}"
            offset = timer.TIMER_CHECK.offset_of(name)
            yield finding("TIMER-CHECK", text, file=_CHECK, offset=offset, expected=bound, found=values[name])


def _check_end(reader: StoreReader, segment: MappedFile) -> Iterator[Finding]:
    """Check the end of the units of a file: nothing yet, or the end mark."""
    at = 0
    while at + 4 <= segment.size and int32(memoryview(segment.bytes), at) == timer.LOG_UNIT_SIZE:
        at += timer.LOG_UNIT_SIZE
    rest = segment.bytes[at:]
    if len(rest) < timer.LOG_END_SIZE or not rest.any():
        return
    end = timer.LOG_END.schema.parse(rest[: timer.LOG_END_SIZE].tobytes())
    if end.magic_code != MAGIC_BLANK or end.size != len(rest):
        text = "neither a unit nor the end-of-file mark"
        yield finding("TIMER-UNIT", text, file=reader.paths.relative(segment.path), offset=at)


def _check_units(
    reader: StoreReader,
    log: FileQueue,
    log_end: int,
    values: Any,
    seconds: dict[int, _Second],
    bridged: Sequence[tuple[int, int]],
) -> Iterator[Finding]:
    """Check each unit on its own, against its message and against the previous unit; fills ``seconds``."""
    now = values.last_read_timestamp if values is not None else None
    for segment, at, unit in units_of(log):
        place = {"file": reader.paths.relative(segment.path), "offset": at}
        due = int(unit["enqueue_timestamp"]) + int(unit["delay_ms"])
        second = seconds.get(due // _SECOND)
        findings = [*_check_chain(log, segment, at, unit, second, now is not None and due > now, place)]
        magic = int(unit["magic_code"])
        if magic & ~_KNOWN_MAGIC or not magic & timer.MAGIC_DEFAULT:
            findings.append(finding("TIMER-UNIT", "an unknown kind of unit", found=magic, **place))
        offset = int(unit["physical_offset"])
        if offset >= reader.commit_log.min_offset or offset < 0:
            number = bisect.bisect_right(bridged, offset, key=lambda stretch: stretch[0]) - 1
            is_bridged = number >= 0 and offset < bridged[number][1]
            findings += _check_message(reader, unit, due, log_end, is_bridged, place)
        position = segment.start_offset + at
        if second is None:
            second = seconds[due // _SECOND] = _Second(position, position)
        second.last = position
        second.count += -1 if magic & timer.MAGIC_DELETE else 1
        yield from findings


def _check_chain(
    log: FileQueue, segment: MappedFile, at: int, unit: np.void, second: _Second | None, is_due: bool, place: Any
) -> Iterator[Finding]:
    """Check whether a unit names the previous unit of its second."""
    previous = int(unit["previous_position"])
    expected = second.last if second else -1
    if previous == expected:
        return
    # The previous unit may have been in a deleted file of the log; past units are not followed.
    is_gone = second is None and 0 <= previous < log.min_offset
    is_unit = 0 <= previous < segment.start_offset + at and _is_unit(log, previous)
    if is_due and not is_gone:
        text = "it does not refer to the unit before it in its second: a broker would not find that one"
    elif previous != -1 and not is_gone and not is_unit:
        text = "the unit before it in its second is not where it says"
    else:
        return
    yield finding("TIMER-CHAIN", text, expected=expected, found=previous, **place)


def _check_message(
    reader: StoreReader, unit: np.void, due: int, log_end: int, is_bridged: bool, place: Any
) -> Iterator[Finding]:
    """Check a unit against its message."""
    offset = int(unit["physical_offset"])
    problem = None
    message: Message | None = None
    if offset >= log_end:
        problem = "the unit points beyond the end of the log: its message is lost"
    else:
        try:
            message = reader.message_at(offset)
        except (FormatError, NotFoundError):
            problem = "no message starts where the unit points"
    if message and (message.topic != TIMER_TOPIC or message.size != int(unit["message_size"])):
        problem = "the message is not the one that the unit refers to"
    elif message and int(unit["magic_code"]) & timer.MAGIC_DELETE and (is_bridged or LOST in message.properties):
        problem = "the message is lost: a placeholder is there instead"  # which cancels nothing
    if problem or message is None:
        yield finding("TIMER-MESSAGE", problem or "", physical_offset=offset, **place)
        return
    properties = message.properties
    place = {**place, "physical_offset": offset}
    magic = int(unit["magic_code"])
    if bool(magic & timer.MAGIC_DELETE) != bool(properties.get(TIMER_DEL_UNIQKEY)):
        yield finding("TIMER-UNIT", "its message is of the other kind: one to deliver, one to cancel another", **place)
    time = properties.get(TIMER_OUT_MS, "")
    if time.isascii() and time.isdigit() and len(time) < 19:
        if magic & timer.MAGIC_ROLL and due >= int(time):
            text = "it is to be put off again, although it reaches the time of its message"
            yield finding("TIMER-UNIT", text, expected=int(time), found=due, **place)
        elif not magic & timer.MAGIC_ROLL and due != int(time):
            text = "its due time is not that of its message"
            yield finding("TIMER-UNIT", text, expected=int(time), found=due, **place)
    topic = properties.get(REAL_TOPIC)
    if topic is not None and java_hash(topic) != int(unit["topic_hash"]):
        text = "its hash is not that of its message's topic"
        yield finding("TIMER-UNIT", text, expected=java_hash(topic), found=int(unit["topic_hash"]), **place)


def _is_unit(log: FileQueue, position: int) -> bool:
    return _unit_at(log, position) is not None


def _unit_at(log: FileQueue, position: int) -> np.void | None:
    segment = log.segment_at(position)
    if segment is None or position + timer.LOG_UNIT_SIZE > segment.end_offset:
        return None
    raw = segment.bytes[position - segment.start_offset :][: timer.LOG_UNIT_SIZE]
    unit: np.void = raw.view(timer.LOG_UNIT.dtype)[0]
    return unit if unit["size"] == timer.LOG_UNIT_SIZE else None


def _check_wheel(reader: StoreReader, log: FileQueue, values: Any, seconds: dict[int, _Second]) -> Iterator[Finding]:
    wheel = reader.paths.timer_wheel
    if reader.is_left_out(wheel) or not wheel.is_file():
        return
    size = wheel.stat().st_size // timer.SLOT_SIZE * timer.SLOT_SIZE
    slots = MappedFile(wheel, 0, size).bytes.view(timer.SLOT.dtype)
    if not len(slots):
        return
    times = slots["time"].astype(np.int64)
    misplaced = (times != 0) & (times % len(slots) != np.arange(len(slots)))
    for number in np.flatnonzero(misplaced)[:MAX_LISTED].tolist():
        text = "the slot is not where its second belongs"
        facts = {"expected": int(times[number] % len(slots)), "found": number}
        yield finding("TIMER-SLOT", text, file="timerwheel", offset=number * timer.SLOT_SIZE, **facts)
    now = max(0, values.last_read_timestamp // _SECOND)
    listed = 0
    for number in np.flatnonzero((times > now) & ~misplaced).tolist():
        if listed >= MAX_LISTED:
            break
        for found_one in _check_slot(reader, log, slots, number, seconds.get(int(times[number]))):
            listed += 1
            if listed <= MAX_LISTED:
                yield found_one
    if reader.has_abort_file:
        return  # the wheel may be a second older than the log
    for time in sorted(time for time in seconds if now < time):
        number = time % len(slots)
        if times[number] != time and listed < MAX_LISTED:
            listed += 1
            text = (
                "the slot belongs to another second: the timer log has units for this one that a broker would not find"
            )
            place = {"file": "timerwheel", "offset": number * timer.SLOT_SIZE}
            yield finding("TIMER-SLOT", text, expected=time, found=int(times[number]), **place)


def _check_slot(
    reader: StoreReader, log: FileQueue, slots: npt.NDArray[np.void], number: int, second: _Second | None
) -> Iterator[Finding]:
    """Check a slot in the future."""
    slot = slots[number]
    place = {"file": "timerwheel", "offset": number * timer.SLOT_SIZE}
    last = int(slot["last_position"])
    if last == -1 and int(slot["count"]) == 0:
        return
    unit = _unit_at(log, last)
    if unit is None:
        text = "the slot refers to a place in the timer log where there is no unit"
        yield finding("TIMER-SLOT", text, found=last, **place)
    elif (time := (int(unit["enqueue_timestamp"]) + int(unit["delay_ms"])) // _SECOND) != int(slot["time"]):
        text = "the slot refers to a unit of another second"
        yield finding("TIMER-SLOT", text, expected=int(slot["time"]), found=time, **place)
    elif not reader.has_abort_file and second:
        expected = {"last_position": second.last}
        if not 0 <= int(slot["first_position"]) < log.min_offset:
            expected |= {"first_position": second.first, "count": second.count}
        for name, value in expected.items():
            if int(slot[name]) != value:
                text = f"the slot's {name.replace('_', ' ')} is not what the timer log has for its second"
                yield finding("TIMER-SLOT", text, expected=value, found=int(slot[name]), **place)
    if int(slot["magic_code"]) != 0:
        text = "the slot's magic code is not 0"
        yield finding("TIMER-SLOT", text, expected=0, found=int(slot["magic_code"]), **place)
