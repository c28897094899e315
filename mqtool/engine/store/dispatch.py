"""What a broker derives from messages: consume queue units and index entries, for all messages of a table at once.

The rules are those of RocketMQ's dispatcher: prepared and rolled back transactions get no unit, rolled back ones no
index entry; a delayed message carries its delivery time in place of a tags code; an inner batch takes as many queue
offsets as it holds messages; a message for several light queues gets a unit in each.
"""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from mqtool.formats import commit_log
from mqtool.formats import kernels as plain
from mqtool.formats.hashing import java_hash
from mqtool.formats.scan import Ints, MessageTable
from mqtool.formats.topics import LIGHT_QUEUE_PREFIX, SCHEDULE_TOPIC

CRC_PROPERTY = "__CRC32#"

_NAMES = [
    "UNIQ_KEY",
    "KEYS",
    "TAGS",
    "DELAY",
    "INNER_NUM",
    "INNER_BASE",
    "INNER_MULTI_DISPATCH",
    "INNER_MULTI_QUEUE_OFFSET",
    CRC_PROPERTY,
]

QueueKey = tuple[str, int]
_UNKNOWN_LEVEL_MS = 1000


@dataclasses.dataclass(frozen=True)
class Units:
    """The units of one queue, in the order of the log; columns of equal length."""

    queue: QueueKey
    rows: Ints  # of the table
    queue_offset: Ints
    physical_offset: Ints
    size: Ints
    tags_code: Ints
    store_timestamp: Ints
    batch_size: Ints

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def next_offset(self) -> Ints:
        """The queue offset that follows each unit."""
        return self.queue_offset + self.batch_size


@dataclasses.dataclass(frozen=True)
class IndexEntries:
    """Index entries in the order a broker writes them; columns of equal length."""

    rows: Ints
    key_hash: npt.NDArray[np.int32]
    physical_offset: Ints
    store_timestamp: Ints
    is_tag: npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Properties:
    """Where the properties that matter here lie: (name, message) arrays with names as rows."""

    offsets: Ints
    sizes: Ints

    def at(self, name: str) -> tuple[Ints, Ints]:
        """Return offsets and sizes of one property; size 0 where a message lacks it."""
        number = _NAMES.index(name)
        return self.offsets[number], self.sizes[number]

    def text(self, table: MessageTable, name: str, row: int) -> str:
        """Return the value for one message, empty where it lacks it."""
        offsets, sizes = self.at(name)
        offset = int(offsets[row])
        return bytes(table.buffer[offset : offset + int(sizes[row])]).decode("utf-8", "replace")


@dataclasses.dataclass(frozen=True)
class Dispatch:
    """Everything derived from one table."""

    properties: Properties
    units: list[Units]
    entries: IndexEntries


def dispatch(table: MessageTable, delay_levels: list[int], tags_in_index: bool = False) -> Dispatch:
    """Derive queue units and index entries.

    Args:
        table: sound messages only.
        delay_levels: delay of each level in ms, level 1 first.
        tags_in_index: also make the entries by tag that RocketMQ 5.4 and later write.
    """
    properties = Properties(*table.properties(_NAMES))
    topic_ids, raw_topics = table.topics()
    topics = [raw.decode("utf-8", "replace") for raw in raw_topics]
    units = _units(table, properties, topic_ids, topics, delay_levels)
    return Dispatch(properties, units, _entries(table, properties, topic_ids, topics, tags_in_index))


def _numbers(table: MessageTable, properties: Properties, name: str, rows: Ints, otherwise: Ints) -> Ints:
    """Return a decimal property of some rows, ``otherwise`` where it is missing or no number."""
    values = otherwise.copy()
    for i, row in enumerate(rows):
        text = properties.text(table, name, int(row))
        if text.lstrip("-").isascii() and text.lstrip("-").isdigit() and len(text) < 19:
            values[i] = int(text)
    return values


def _tags_codes(
    table: MessageTable, properties: Properties, topic_ids: Any, topics: list[str], delay_levels: list[int]
) -> Ints:
    offsets, sizes = properties.at("TAGS")
    codes = np.empty(len(table), np.int64)
    table.kernels.hashes(table.buffer, offsets, sizes, codes)
    if SCHEDULE_TOPIC in topics:
        _, delay_sizes = properties.at("DELAY")
        rows = np.flatnonzero((topic_ids == topics.index(SCHEDULE_TOPIC)) & (delay_sizes > 0))
        levels = np.minimum(_numbers(table, properties, "DELAY", rows, np.zeros(len(rows), np.int64)), len(delay_levels))
        delays = np.array([_UNKNOWN_LEVEL_MS, *delay_levels])[np.maximum(levels, 0)]
        delayed = levels > 0
        codes[rows[delayed]] = table.column("store_timestamp")[rows[delayed]] + delays[delayed]
    return codes


def _units(
    table: MessageTable, properties: Properties, topic_ids: Any, topics: list[str], delay_levels: list[int]
) -> list[Units]:
    sys_flag = table.column("sys_flag")
    transaction = sys_flag & commit_log.TRANSACTION_MASK
    rows = np.flatnonzero((transaction == 0) | (transaction == commit_log.TRANSACTION_COMMIT))
    if not len(rows):
        return []
    queue_ids = table.column("queue_id")[rows].astype(np.int64)
    codes = topic_ids[rows].astype(np.int64) << 32 | (queue_ids & 0xFFFFFFFF)
    spread = int(queue_ids.max()) + 1
    if queue_ids.min() >= 0 and spread * len(topics) <= 1 << 16:
        # Sixteen bits are sorted by radix, several times faster.
        codes = (topic_ids[rows] * spread + queue_ids).astype(np.uint16)
    order = np.argsort(codes, kind="stable")
    rows, codes = rows[order], codes[order]

    base = table.column("queue_offset")[rows]
    batch = np.ones(len(rows), np.int64)
    _, inner_sizes = properties.at("INNER_NUM")
    _, base_sizes = properties.at("INNER_BASE")
    inner = np.flatnonzero((inner_sizes[rows] > 0) & (base_sizes[rows] > 0))
    if len(inner):
        batch[inner] = _numbers(table, properties, "INNER_NUM", rows[inner], batch[inner])
        base[inner] = _numbers(table, properties, "INNER_BASE", rows[inner], base[inner])

    columns = (
        rows,
        base,
        table.column("position")[rows],
        table.column("size")[rows].astype(np.int64),
        _tags_codes(table, properties, topic_ids, topics, delay_levels)[rows],
        table.column("store_timestamp")[rows],
        batch,
    )
    edges = [0, *(np.flatnonzero(codes[1:] != codes[:-1]) + 1), len(rows)]
    units = []
    for start, stop in zip(edges, edges[1:], strict=False):
        first = rows[start]
        queue = (topics[topic_ids[first]], int(table.column("queue_id")[first]))
        units.append(Units(queue, *(column[start:stop] for column in columns)))
    return units + _light_units(table, properties, units)


def _light_units(table: MessageTable, properties: Properties, units: list[Units]) -> list[Units]:
    """Return the units that messages for several light queues get there."""
    _, sizes = properties.at("INNER_MULTI_DISPATCH")
    if not sizes.any():
        return []
    found: dict[QueueKey, list[tuple[int, ...]]] = {}
    for group in units:
        for i in np.flatnonzero(sizes[group.rows]):
            row = int(group.rows[i])
            names = properties.text(table, "INNER_MULTI_DISPATCH", row).split(",")
            offsets = properties.text(table, "INNER_MULTI_QUEUE_OFFSET", row).split(",")
            for name, offset in zip(names, offsets, strict=False):
                if name and offset.isascii() and offset.isdigit():
                    queue_id = 0 if name.startswith(LIGHT_QUEUE_PREFIX) else group.queue[1]
                    found.setdefault((name, queue_id), []).append(
                        (
                            row,
                            int(offset),
                            int(group.physical_offset[i]),
                            int(group.size[i]),
                            int(group.tags_code[i]),
                            int(group.store_timestamp[i]),
                            1,
                        )
                    )
    return [Units(queue, *np.array(sorted(values), np.int64).T) for queue, values in sorted(found.items())]


def _entries(
    table: MessageTable, properties: Properties, topic_ids: Any, topics: list[str], tags_in_index: bool
) -> IndexEntries:
    rolled_back = (table.column("sys_flag") & commit_log.TRANSACTION_MASK) == commit_log.TRANSACTION_ROLLBACK
    seeds = np.array([java_hash(f"{topic}#") & 0xFFFFFFFF for topic in topics], np.int64)
    tag_seeds = np.array([java_hash(f"{topic}#T#") & 0xFFFFFFFF for topic in topics], np.int64)
    tag_offsets, tag_sizes = properties.at("TAGS")
    if not tags_in_index:
        tag_sizes = np.zeros_like(tag_sizes)
    room = 4 * len(table) + 64
    while True:
        rows, hashes, is_tag = np.empty(room, np.int64), np.empty(room, np.int32), np.empty(room, np.bool_)
        count = table.kernels.key_hashes(
            table.buffer,
            topic_ids,
            seeds,
            tag_seeds,
            *properties.at("UNIQ_KEY"),
            *properties.at("KEYS"),
            tag_offsets,
            tag_sizes,
            rolled_back,
            rows,
            hashes,
            is_tag,
        )
        if count <= room:
            rows = rows[:count]
            return IndexEntries(
                rows,
                hashes[:count],
                table.column("position")[rows],
                table.column("store_timestamp")[rows],
                is_tag[:count],
            )
        room = int(count)


def property_crcs(table: MessageTable, properties: Properties) -> tuple[Ints, Ints, Ints]:
    """Return which messages end in a CRC property, what it says, and what it should say."""
    offsets, sizes = properties.at(CRC_PROPERTY)
    ends = table.starts + table.column("size")
    whole = plain.PROPERTIES
    rows = np.flatnonzero(sizes > 0)
    at_end = offsets[rows] + sizes[rows] + 1 == ends[rows]
    rows = rows[at_end & (sizes[rows] == 10) & (table.sizes(whole)[rows] >= 20)]
    stored = np.array([_crc_value(properties.text(table, CRC_PROPERTY, int(row))) for row in rows], np.int64)
    starts = table.starts[rows]
    computed = table.crcs(starts, table.column("size")[rows].astype(np.int64) - 20)
    return rows, stored, computed.astype(np.int64)


def _crc_value(digits: str) -> int:
    return int(digits[::-1]) if digits.isascii() and digits.isdigit() else -1
