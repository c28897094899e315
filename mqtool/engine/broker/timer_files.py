"""The timer wheel and the timer log, as a stopping broker leaves them for the next broker.

At runtime mqtool keeps waiting messages in memory and uses neither. RocketMQ reads a wheel second by second, in
order, but overdue messages in the queue of the timer topic are delivered by three threads in any order: an
acknowledgement may then precede its check point, so that an acknowledged message is delivered again.
(Rules: store.md 11.3. RocketMQ: ``TimerMessageStore.doEnqueue``, ``TimerWheel``, ``TimerLog``.)
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from mqtool.engine.store.disk import writing
from mqtool.engine.store.file_kinds import TIMER_LOG, TIMER_WHEEL
from mqtool.formats import timer
from mqtool.formats.commit_log import MAGIC_BLANK
from mqtool.formats.hashing import java_hash

PRECISION_MS = 1000

_ROLL_WINDOW_MS = 172_800 * PRECISION_MS
"""``timerRollWindowSlot``: a message further ahead waits in the wheel for this long, then it is put again."""
_FILE_SIZE = 104_857_600
_UNIT, _END, _SLOT = timer.LOG_UNIT.packer, timer.LOG_END.packer, timer.SLOT.packer
_NONE = -1


class Timed(NamedTuple):
    """A message of the timer topic."""

    out: int  # its second, ms
    physical_offset: int
    size: int
    real_topic: str
    is_recall: bool


def write_timer_files(root: Path, file_size: int | None, messages: Iterable[Timed], now: int) -> int:
    """Replace wheel and log of a store by new ones with these messages.

    Args:
        root: the store.
        file_size: ``mappedFileSizeTimerLog``; None for the size of existing files, or RocketMQ's default.
        messages: in the order of their queue.
        now: the time, in ms.

    Returns:
        The position after the log's last unit; everything is on disk.

    Raises:
        WriteError: the disk is full, or fails.
    """
    folder, beside = root / TIMER_LOG.name, root / "timer-tmp"
    with writing(folder):
        folder.mkdir(exist_ok=True)
        before = sorted(folder.iterdir())
        file_size = file_size or (before[0].stat().st_size if before else _FILE_SIZE)
        for path in (*before, *root.glob("timerwheel.*")):  # snapshots of the wheel, too
            path.unlink()
    files, slots, end = _laid_out(messages, now, file_size)
    for number, data in enumerate(files if end else ()):
        replace_file(folder / f"{number * file_size:020d}", beside, file_size, {0: data})
    wheel = {number * _SLOT.size: slot for number, slot in slots.items()}
    replace_file(root / TIMER_WHEEL.name, beside, timer.WHEEL_SIZE, wheel)
    return end


def _laid_out(messages: Iterable[Timed], now: int, file_size: int) -> tuple[list[bytearray], dict[int, bytes], int]:
    """Return the files of the log, the slots of the wheel by number, and the end of the log."""
    files = [bytearray()]
    seconds: dict[int, tuple[int, int, int]] = {}  # first position, last position, count
    enqueued = now // PRECISION_MS * PRECISION_MS
    for message in messages:
        if len(files[-1]) + _UNIT.size + _END.size > file_size:
            files[-1] += _END.pack(file_size - len(files[-1]), 0, MAGIC_BLANK)
            files.append(bytearray())
        position = (len(files) - 1) * file_size + len(files[-1])
        delay, kind = _placed(message.out - enqueued)
        second = (enqueued + delay) // PRECISION_MS
        first, last, count = seconds.get(second, (position, _NONE, 0))
        if message.is_recall:
            kind |= timer.MAGIC_DELETE
        seconds[second] = first, position, count + (-1 if message.is_recall else 1)
        place, topic_hash = message.physical_offset, java_hash(message.real_topic)
        files[-1] += _UNIT.pack(_UNIT.size, last, kind, enqueued, delay, place, message.size, topic_hash, 0)
    slots = {second % timer.WHEEL_SLOT_COUNT: _SLOT.pack(second, *places, 0) for second, places in seconds.items()}
    return files, slots, (len(files) - 1) * file_size + len(files[-1])


def _placed(delay: int) -> tuple[int, int]:
    """Return after how many ms the wheel reaches a message, and the kind of its unit."""
    beyond = delay - _ROLL_WINDOW_MS
    if beyond < 0:
        return delay, timer.MAGIC_DEFAULT
    # Half a window if the rest would be short: enough time to be put again.
    window = _ROLL_WINDOW_MS // 2 if beyond < _ROLL_WINDOW_MS // 3 else _ROLL_WINDOW_MS
    return window, timer.MAGIC_DEFAULT | timer.MAGIC_ROLL


def replace_file(path: Path, beside: Path, size: int, pieces: Mapping[int, bytes | bytearray]) -> None:
    """Replace a file by one with zeros around the given pieces, and sync its bytes.

    Args:
        path: of the file.
        beside: where it is created; in another folder if brokers read every file of its folder.
        size: of the file.
        pieces: by their positions.

    Raises:
        WriteError: the disk is full, or fails; the file is unchanged.
    """
    with writing(path):
        with beside.open("wb") as file:
            file.truncate(size)
            for at, piece in pieces.items():
                file.seek(at)
                file.write(piece)
            file.flush()
            os.fdatasync(file.fileno())
        beside.replace(path)
