"""Units of queues: 20 bytes in a consume queue, 46 in a batch queue, and the extension's of any size."""

import struct
from pathlib import Path
from typing import NamedTuple

PRE_BLANK = 0x7FFFFFFF
"""The size in units that stand before the first message of a queue that does not begin with its segment."""
EXT = -(1 << 63)
"""What is added to the place of a unit in the extension; a tags code below -2**31 - 1 is such a place."""

_UNIT = struct.Struct(">qiq")
_BATCH = struct.Struct(">qiqqqhii")
_EXT = struct.Struct(">hqqh")

Queue = tuple[str, int]


class JudgedUnit(NamedTuple):
    """Where a message lies; ``offsets`` is how many queue offsets it takes."""

    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int
    offsets: int = 1


class ExtUnit(NamedTuple):
    """What the extension keeps of a message."""

    tags_code: int
    store_timestamp: int
    bit_map: bytes


def read_queues(folder: Path) -> dict[Queue, dict[int, JudgedUnit]]:
    """Return the units of each queue by queue offset: all that could be one, ahead of the log or not.

    Units that stand for nothing (zeros, pre-blank) are left out; so are files whose name is no number.
    """
    queues = {}
    for topic, queue_id, files in _queues(folder):
        units = {}
        for start, data in files:
            for at in range(0, len(data.rstrip(b"\0")), _UNIT.size):
                chunk = data[at : at + _UNIT.size].ljust(_UNIT.size, b"\0")
                physical, size, tags = _UNIT.unpack(chunk)
                if physical >= 0 and 0 < size < PRE_BLANK:
                    number = (start + at) // _UNIT.size
                    units[number] = JudgedUnit(number, physical, size, tags)
        queues[topic, queue_id] = units
    return queues


def read_batch_queues(folder: Path) -> dict[Queue, list[JudgedUnit]]:
    """Return the units of each batch queue in their order: two may have the same queue offset."""
    queues = {}
    for topic, queue_id, files in _queues(folder):
        units = []
        for _, data in files:
            for at in range(0, len(data) - _BATCH.size + 1, _BATCH.size):
                physical, size, tags, _, base, count, _, _ = _BATCH.unpack_from(data, at)
                if physical >= 0 and size > 0 and base >= 0 and count > 0:
                    units.append(JudgedUnit(base, physical, size, tags, count))
        queues[topic, queue_id] = units
    return queues


def read_ext(folder: Path, topic: str, queue_id: int, tags_code: int) -> ExtUnit | None:
    """Return the unit of the extension that a tags code leads to; None where it is none, or leads to nothing."""
    if tags_code > -(1 << 31) - 2:
        return None
    place = tags_code - EXT
    for start, data in _files(folder / topic / str(queue_id)):
        if start <= place < start + len(data) - _EXT.size:
            size, tags, stored, bits = _EXT.unpack_from(data, place - start)
            if size != _EXT.size + bits or bits < 0:
                return None
            first = place - start + _EXT.size
            return ExtUnit(tags, stored, data[first : first + bits])
    return None


def _queues(folder: Path) -> list[tuple[str, int, list[tuple[int, bytes]]]]:
    if not folder.is_dir():
        return []
    return [
        (topic.name, int(queue.name), _files(queue))
        for topic in sorted(folder.iterdir())
        if topic.is_dir()
        for queue in sorted(topic.iterdir())
        if queue.is_dir() and queue.name.removeprefix("-").isdecimal()
    ]


def _files(folder: Path) -> list[tuple[int, bytes]]:
    """Return first byte and content of each file of a queue, in order."""
    if not folder.is_dir():
        return []
    return sorted((int(path.name), path.read_bytes()) for path in folder.iterdir() if path.name.isdecimal())
