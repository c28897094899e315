"""Stores for the benchmark: as a broker lays them out, of any size, made in seconds."""

import struct
import zlib
from pathlib import Path

import numpy as np

from mqtool.engine.store.commit_log import Gap
from mqtool.engine.store.dispatch import IndexEntries, QueueKey, Units, dispatch
from mqtool.engine.store.file_queue import segment_name
from mqtool.engine.store.index_file import DEFAULT_SHAPE
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import checkpoint, commit_log, consume_queue, index_file, scan

SEGMENT = 1 << 30
QUEUE_FILE = 300_000 * consume_queue.UNIT_SIZE
TOPICS = 4
QUEUES = 8
START_MS = 1_700_000_000_000

_HEAD = struct.Struct(">iiiiiqqiq4siq4siiqi")
_HOST = bytes([127, 0, 0, 1])


def make_store(root: Path, body_size: int, log_size: int, span_ms: int | None = None) -> Path:
    """Write a store with bodies of one size; queues and index agree with its log.

    Messages are stored fifty in a millisecond, or, all of them, in ``span_ms``.
    """
    (root / "commitlog").mkdir(parents=True)
    _write_log(root / "commitlog", body_size, log_size, span_ms)
    return _derive(root)


def make_part(root: Path, whole: Path, segment_count: int) -> Path:
    """Write the store that another one was after so many segments, which they share: memory has them once."""
    (root / "commitlog").mkdir(parents=True)
    for segment in sorted((whole / "commitlog").iterdir())[:segment_count]:
        (root / "commitlog" / segment.name).hardlink_to(segment)
    return _derive(root)


def _derive(root: Path) -> Path:
    """Write what a broker makes of the log."""
    reader = StoreReader(root)
    kernels = scan.compiled_kernels()
    units: list[Units] = []
    entries: list[IndexEntries] = []
    for table in reader.tables(kernels=kernels):
        if isinstance(table, Gap):  # the unused end
            continue
        derived = dispatch(table, reader.config.delay_levels())
        units.append(derived.units)
        entries.append(derived.entries)
    _write_queues(root / "consumequeue", units)
    _write_index(root / "index", entries)
    last = int(entries[-1].store_timestamp[-1])
    note = dict.fromkeys(("physical_timestamp", "logics_timestamp"), last)
    rest = dict.fromkeys(
        ("index_timestamp", "master_flushed_offset", "confirm_physical_offset", "logics_physical_offset"), 0
    )
    page = checkpoint.CHECKPOINT.schema.build({**note, **rest, "rest": bytes(4096 - 48)})
    (root / "checkpoint").write_bytes(page)
    return root


def _write_log(folder: Path, body_size: int, log_size: int, span_ms: int | None) -> None:
    position = number = 0
    pending = bytearray()
    bodies = [bytes([letter]) * body_size for letter in range(256)]
    crcs = [zlib.crc32(body) & 0x7FFFFFFF for body in bodies]
    while position < log_size:
        topic = b"bench-topic-%d" % (number % TOPICS)
        queue_id = number // TOPICS % QUEUES
        properties = (
            b"UNIQ_KEY\x017F000001%024X\x02TAGS\x01Tag%d\x02KEYS\x01order-%d\x02WAIT\x01true\x02CLUSTER\x01Default\x02"
            % (number, number % 5, number)
        )
        body, crc = bodies[number % 256], crcs[number % 256]
        size = _HEAD.size + body_size + 1 + len(topic) + 2 + len(properties)
        left = SEGMENT - position % SEGMENT
        if size + commit_log.BLANK_SIZE > left:
            pending += struct.pack(">ii", left, commit_log.MAGIC_BLANK) + bytes(left - commit_log.BLANK_SIZE)
            position += left
        else:
            moment = START_MS + (number // 50 if span_ms is None else position * span_ms // log_size)
            pending += _HEAD.pack(
                size, commit_log.MAGIC_V1, crc, queue_id, 0, number // (TOPICS * QUEUES), position, 0,
                moment, _HOST, 40000, moment, _HOST, 10911, 0, 0, body_size,
            )  # fmt: skip
            pending += body
            pending += bytes([len(topic)]) + topic + struct.pack(">h", len(properties)) + properties
            position += size
            number += 1
        if len(pending) >= 1 << 24 or position >= log_size:
            _append(folder, position - len(pending), pending)
            pending.clear()
    for segment in folder.iterdir():
        with segment.open("r+b") as file:
            file.truncate(SEGMENT)


def _append(folder: Path, position: int, data: bytearray) -> None:
    while data:
        start = position // SEGMENT * SEGMENT
        piece = data[: start + SEGMENT - position]
        with (folder / segment_name(start)).open("ab") as file:
            file.write(piece)
        position += len(piece)
        del data[: len(piece)]


def _write_queues(folder: Path, groups: list[Units]) -> None:
    units: dict[QueueKey, bytearray] = {}
    for group in groups:
        for queue, first, last in group.stretches:
            units.setdefault(queue, bytearray()).extend(group.packed[first:last].tobytes())
    for (topic, queue_id), data in units.items():
        place = folder / topic / str(queue_id)
        place.mkdir(parents=True)
        for start in range(0, len(data), QUEUE_FILE):
            (place / segment_name(start)).write_bytes(data[start : start + QUEUE_FILE].ljust(QUEUE_FILE, b"\0"))


def _write_index(folder: Path, parts: list[IndexEntries]) -> None:
    folder.mkdir()
    hashes = np.concatenate([part.key_hash for part in parts])
    offsets = np.concatenate([part.physical_offset for part in parts])
    times = np.concatenate([part.store_timestamp for part in parts])
    shape = DEFAULT_SHAPE
    for number, start in enumerate(range(0, len(hashes), shape.entries - 1)):
        chosen = slice(start, start + shape.entries - 1)
        count = len(hashes[chosen])
        slots = hashes[chosen] % shape.slots
        order = np.argsort(slots, kind="stable")
        same = np.r_[False, slots[order][1:] == slots[order][:-1]]
        previous = np.zeros(count, np.int64)
        previous[order] = np.where(same, np.r_[0, order[:-1]] + 1, 0)
        heads = np.zeros(shape.slots, index_file.SLOT.dtype)
        heads["entry"][slots] = np.arange(1, count + 1)
        entries = np.zeros(count + 1, index_file.ENTRY.dtype)
        entries["key_hash"][1:] = hashes[chosen]
        entries["physical_offset"][1:] = offsets[chosen]
        entries["seconds_since_begin"][1:] = (times[chosen] - times[start]) // 1000
        entries["previous_entry"][1:] = previous
        header = index_file.HEADER.schema.build(
            {
                "begin_timestamp": int(times[start]),
                "end_timestamp": int(times[chosen][-1]),
                "begin_physical_offset": int(offsets[start]),
                "end_physical_offset": int(offsets[chosen][-1]),
                "slot_count": int(np.count_nonzero(heads["entry"])),
                "entry_count": count + 1,
            }
        )
        with (folder / f"{20231114221320000 + number}").open("wb") as file:
            file.write(header + heads.tobytes() + entries.tobytes())
            file.truncate(shape.file_size)
