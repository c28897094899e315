"""What a broker derives from messages: consume queue units and index entries, for all messages of a table at once.

The rules are those of RocketMQ's dispatcher: prepared and rolled back transactions get no unit, rolled back ones no
index entry; a delayed message carries its delivery time in place of a tags code; an inner batch takes as many queue
offsets as it holds messages; a message for several light queues gets a unit in each.

Cost: linear in the messages of a table.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from mqtool.formats import commit_log, consume_queue
from mqtool.formats import kernels as plain
from mqtool.formats.hashing import java_hash
from mqtool.formats.property_names import (
    CRC32,
    DELAY,
    INNER_BASE,
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    INNER_NUM,
    KEYS,
    TAGS,
    UNIQ_KEY,
)
from mqtool.formats.scan import Ints, MessageTable
from mqtool.formats.topics import LIGHT_QUEUE_PREFIX, SCHEDULE_TOPIC, is_possible
from mqtool.late import np, npt

_NAMES = sorted(
    [
        UNIQ_KEY,
        KEYS,
        TAGS,
        DELAY,
        INNER_NUM,
        INNER_BASE,
        INNER_MULTI_DISPATCH,
        INNER_MULTI_QUEUE_OFFSET,
        CRC32,
    ]
)

_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")

QueueKey = tuple[str, int]


class UnitRange(NamedTuple):
    """Consecutive units of one queue: those from ``first`` to ``last`` (excluded) of ``Units``."""

    queue: QueueKey
    first: int
    last: int


@dataclasses.dataclass(frozen=True)
class Units:
    """The units of all queues, queue by queue, in each the order of the log; columns of equal length."""

    stretches: list[UnitRange]
    rows: Ints  # of the table
    queue_offset: Ints
    physical_offset: Ints
    size: Ints
    tags_code: Ints
    store_timestamp: Ints
    batch_size: Ints

    def __len__(self) -> int:
        return len(self.rows)

    def after(self, number: int) -> int:
        """Return the queue offset that follows a unit, at most one past the largest 8-byte number."""
        return int(self.queue_offset[number]) + int(self.batch_size[number])

    def of_possible(self) -> Units:
        """Return the units of possible queues: damage may produce impossible topics and light queues."""
        names = {queue[0] for queue, _, _ in self.stretches}
        possible = {name for name in names if name and is_possible(name.encode())}
        if names == possible:
            return self
        kept = np.zeros(len(self), np.bool_)
        for queue, first, last in self.stretches:
            kept[first:last] = queue[0] in possible
        return self.where(kept)

    def without(self, odd: Mapping[str, Ints]) -> Iterator[UnitRange]:
        """Yield the ranges without some messages, which are given by topic as ascending addresses."""
        for stretch in self.stretches:
            addresses = odd.get(stretch.queue[0])
            if addresses is None:
                yield stretch
                continue
            physical_offsets = self.physical_offset[stretch.first : stretch.last]
            low, high = addresses.searchsorted((physical_offsets[0], physical_offsets[-1] + 1))
            start = stretch.first
            for row in (stretch.first + np.flatnonzero(np.isin(physical_offsets, addresses[low:high]))).tolist():
                if start < row:
                    yield stretch._replace(first=start, last=row)
                start = row + 1
            if start < stretch.last:
                yield stretch._replace(first=start)

    def where(self, mask: npt.NDArray[np.bool_]) -> Units:
        """Return the units that a mask selects; it must not remove any from the middle of a range."""
        ends = np.r_[0, np.cumsum(mask)]
        ranges = [UnitRange(queue, int(ends[first]), int(ends[last])) for queue, first, last in self.stretches]
        columns = (getattr(self, field.name)[mask] for field in dataclasses.fields(self)[1:])
        return Units([kept for kept in ranges if kept.first < kept.last], *columns)

    @functools.cached_property
    def packed(self) -> npt.NDArray[np.void]:
        """The units in the format of ordinary queues."""
        units = np.empty(len(self), consume_queue.UNIT.dtype)
        units["physical_offset"] = self.physical_offset
        units["size"] = self.size
        units["tags_code"] = self.tags_code
        return units


def by_topic(odd: Iterable[tuple[str, int]]) -> dict[str, Ints]:
    """Return addresses in order by topic, as ``Units.without`` takes them."""
    addresses_by_topic: dict[str, list[int]] = {}
    for topic, address in sorted(odd):
        addresses_by_topic.setdefault(topic, []).append(address)
    return {topic: np.array(addresses, np.int64) for topic, addresses in addresses_by_topic.items()}


@dataclasses.dataclass(frozen=True)
class IndexEntries:
    """Index entries in the order in which a broker writes them; columns of equal length."""

    rows: Ints
    key_hash: npt.NDArray[np.int32]
    physical_offset: Ints
    store_timestamp: Ints
    is_tag: npt.NDArray[np.bool_]


@functools.cache
def no_entries() -> IndexEntries:
    """Return the entries of no message."""
    none = np.empty(0, np.int64)
    return IndexEntries(none, none.astype(np.int32), none, none, none.astype(np.bool_))


@dataclasses.dataclass(frozen=True)
class Properties:
    """Places of the relevant properties: (name, message) arrays with names as rows."""

    offsets: Ints
    sizes: Ints
    damaged: npt.NDArray[np.bool_]
    """Whether the properties of a message are damaged, by message."""

    def at(self, name: str) -> tuple[Ints, Ints]:
        """Return offsets and sizes of one property; size 0 if a message lacks it."""
        number = _NAMES.index(name)
        return self.offsets[number], self.sizes[number]

    def text(self, table: MessageTable, name: str, row: int) -> str:
        """Return the value for one message, empty if it lacks it."""
        offsets, sizes = self.at(name)
        offset = int(offsets[row])
        return bytes(table.buffer[offset : offset + int(sizes[row])]).decode("utf-8", "replace")


@dataclasses.dataclass(frozen=True)
class Dispatch:
    """Everything derived from one table."""

    properties: Properties
    units: Units
    entries: IndexEntries


def dispatch(
    table: MessageTable, delay_levels: list[int], tags_in_index: bool = False, with_entries: bool = True
) -> Dispatch:
    """Derive queue units and index entries.

    Args:
        table: sound messages only.
        delay_levels: delay of each level in ms, level 1 first.
        tags_in_index: also derive the entries by tag that RocketMQ 5.4 and later write.
        with_entries: whether to derive entries.
    """
    properties = properties_of(table)
    topic_ids, raw_topics = table.topics()
    topics = [raw.decode("utf-8", "replace") for raw in raw_topics]
    units = _units(table, properties, topic_ids, topics, delay_levels)
    entries = _entries(table, properties, topic_ids, topics, tags_in_index) if with_entries else no_entries()
    return Dispatch(properties, units, entries)


def properties_of(table: MessageTable) -> Properties:
    """Return the places of the properties from which units and entries are derived."""
    return Properties(*table.checked_properties(_NAMES))


def _numbers(table: MessageTable, properties: Properties, name: str, rows: Ints, otherwise: Ints) -> Ints:
    """Return a decimal property of some rows, ``otherwise`` if it is missing or not a number."""
    values = otherwise.copy()
    for i, row in enumerate(rows):
        text = properties.text(table, name, int(row))
        if _NUMBER.fullmatch(text):
            values[i] = int(text)
    return values


def _tags_codes(
    table: MessageTable,
    properties: Properties,
    topic_ids: Ints,
    rows: Ints,
    topics: list[str],
    delay_levels: list[int],
) -> Ints:
    offsets, sizes = properties.at(TAGS)
    codes = np.empty(len(rows), np.int64)
    table.kernels.hashes(table.buffer, offsets[rows], sizes[rows], codes)
    if SCHEDULE_TOPIC in topics:
        _, delay_sizes = properties.at(DELAY)
        waiting = np.flatnonzero((topic_ids == topics.index(SCHEDULE_TOPIC)) & (delay_sizes[rows] > 0))
        none = np.zeros(len(waiting), np.int64)
        levels = np.minimum(_numbers(table, properties, DELAY, rows[waiting], none), len(delay_levels))
        delays = np.array([0, *delay_levels])[np.maximum(levels, 0)]
        delayed = levels > 0
        codes[waiting[delayed]] = table.column("store_timestamp")[rows[waiting[delayed]]] + delays[delayed]
    return codes


def _units(
    table: MessageTable, properties: Properties, topic_ids: Any, topics: list[str], delay_levels: list[int]
) -> Units:
    transaction = table.column("sys_flag") & commit_log.TRANSACTION_MASK
    rows = np.flatnonzero((transaction == 0) | (transaction == commit_log.TRANSACTION_COMMIT))
    offsets = table.column("queue_offset")[rows]
    batch_sizes = np.ones(len(rows), np.int64)
    _, inner_sizes = properties.at(INNER_NUM)
    if inner_sizes.any():
        _, base_sizes = properties.at(INNER_BASE)
        inner = np.flatnonzero((inner_sizes[rows] > 0) & (base_sizes[rows] > 0))
        batch_sizes[inner] = _numbers(table, properties, INNER_NUM, rows[inner], batch_sizes[inner])
        offsets[inner] = _numbers(table, properties, INNER_BASE, rows[inner], offsets[inner])
    queue_ids = table.column("queue_id")[rows].astype(np.int64)
    topic_ids = topic_ids[rows].astype(np.int64)
    tags_codes = _tags_codes(table, properties, topic_ids, rows, topics, delay_levels)

    names, light = _light_units(table, properties, rows, queue_ids)
    if names:
        at = light[0]
        numbers = {name: number for number, name in enumerate(topics)}
        ids = np.array([numbers.setdefault(name, len(topics) + i) for i, name in enumerate(names)])
        topics = topics + names
        rows = np.concatenate([rows, rows[at]])
        order = np.argsort(rows, kind="stable")  # a placeholder may have a light queue as its own one
        rows = rows[order]
        topic_ids = np.concatenate([topic_ids, ids[light[1]]])[order]
        queue_ids = np.concatenate([queue_ids, light[2]])[order]
        offsets = np.concatenate([offsets, light[3]])[order]
        batch_sizes = np.concatenate([batch_sizes, np.ones(len(at), np.int64)])[order]
        tags_codes = np.concatenate([tags_codes, tags_codes[at]])[order]

    return units_of(
        topics,
        topic_ids,
        queue_ids,
        rows,
        offsets,
        batch_sizes,
        tags_codes,
        table.column("position"),
        table.column("size"),
        table.column("store_timestamp"),
    )


def units_of(
    topics: list[str],
    topic_ids: Ints,
    queue_ids: Ints,
    rows: Ints,
    offsets: Ints,
    batch_sizes: Ints,
    tags_codes: Ints,
    positions: Ints,
    sizes: npt.NDArray[Any],
    timestamps: Ints,
) -> Units:
    """Group units by queue.

    Args:
        topics: by number.
        topic_ids: number of each unit's topic.
        queue_ids: its queue.
        rows: its message.
        offsets: its queue offset.
        batch_sizes: number of its messages.
        tags_codes: its tags code.
        positions: of each message, its address.
        sizes: of each message.
        timestamps: of each message, when it was stored.
    """
    order, codes = _grouped(topic_ids, queue_ids, len(topics))
    rows, offsets, batch_sizes = rows[order], offsets[order], batch_sizes[order]
    edges = np.flatnonzero((codes[1:] != codes[:-1]) | (offsets[1:] != offsets[:-1] + batch_sizes[:-1])) + 1
    bounds = [0, *edges.tolist(), len(rows)] if len(rows) else []
    first = order[bounds[:-1]]
    queues = zip(topic_ids[first].tolist(), queue_ids[first].tolist(), strict=True)
    return Units(
        [
            UnitRange((topics[topic], queue_id), start, stop)
            for (topic, queue_id), start, stop in zip(queues, bounds[:-1], bounds[1:], strict=True)
        ],
        rows,
        offsets,
        positions[rows],
        sizes[rows].astype(np.int64),
        tags_codes[order],
        timestamps[rows],
        batch_sizes,
    )


def _grouped(topic_ids: Ints, queue_ids: Ints, topic_count: int) -> tuple[Ints, npt.NDArray[Any]]:
    """Return the order that groups units by queue, and the number of its queue for each unit in that order."""
    codes: npt.NDArray[Any] = topic_ids << 32 | (queue_ids & 0xFFFFFFFF)
    if len(codes):
        spread = int(queue_ids.max()) + 1
        if queue_ids.min() >= 0 and spread * topic_count <= 1 << 16:
            # Sixteen bits are sorted by radix, several times faster.
            codes = (topic_ids * spread + queue_ids).astype(np.uint16)
    order = np.argsort(codes, kind="stable")
    return order, codes[order]


def _light_units(
    table: MessageTable, properties: Properties, rows: Ints, queue_ids: Ints
) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return the names of light queues, and the units that messages add: place in ``rows``, name, queue, offset."""
    names: dict[str, int] = {}
    light_units: list[tuple[int, int, int, int]] = []
    _, sizes = properties.at(INNER_MULTI_DISPATCH)
    for i in np.flatnonzero(sizes[rows]).tolist() if sizes.any() else ():
        row = int(rows[i])
        queues = properties.text(table, INNER_MULTI_DISPATCH, row).split(",")
        offsets = properties.text(table, INNER_MULTI_QUEUE_OFFSET, row).split(",")
        for name, offset in zip(queues, offsets, strict=False):
            if name and offset.isascii() and offset.isdigit() and len(offset) < 19:
                queue_id = 0 if name.startswith(LIGHT_QUEUE_PREFIX) else int(queue_ids[i])
                light_units.append((i, names.setdefault(name, len(names)), queue_id, int(offset)))
    return list(names), np.array(light_units, np.int64).reshape(-1, 4).T


def _entries(
    table: MessageTable, properties: Properties, topic_ids: Any, topics: list[str], tags_in_index: bool
) -> IndexEntries:
    rolled_back = (table.column("sys_flag") & commit_log.TRANSACTION_MASK) == commit_log.TRANSACTION_ROLLBACK
    seeds = np.array([java_hash(f"{topic}#") & 0xFFFFFFFF for topic in topics], np.int64)
    tag_seeds = np.array([java_hash(f"{topic}#T#") & 0xFFFFFFFF for topic in topics], np.int64)
    tag_offsets, tag_sizes = properties.at(TAGS)
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
            *properties.at(UNIQ_KEY),
            *properties.at(KEYS),
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


def inner_batch_topics(table: MessageTable, properties: Properties) -> set[str]:
    """Return the topics of inner batches by flag and properties, as one of these may be damaged."""
    sizes = np.minimum(*(properties.at(name)[1] for name in (INNER_NUM, INNER_BASE)))
    rows = np.flatnonzero((table.column("sys_flag") & commit_log.INNER_BATCH != 0) & (sizes > 0))
    return {table.bytes_of(plain.TOPIC, row).decode("utf-8", "replace") for row in rows.tolist()}


def property_crcs(table: MessageTable, properties: Properties) -> tuple[Ints, Ints, Ints]:
    """Return which messages end in a CRC property, its value, and the correct value."""
    offsets, sizes = properties.at(CRC32)
    ends = table.starts + table.column("size")
    whole = plain.PROPERTIES
    rows = np.flatnonzero(sizes > 0)
    at_end = offsets[rows] + sizes[rows] + 1 == ends[rows]
    rows = rows[at_end & (sizes[rows] == 10) & (table.sizes(whole)[rows] >= 20)]
    stored = np.array([_crc_value(properties.text(table, CRC32, int(row))) for row in rows], np.int64)
    starts = table.starts[rows]
    computed = table.crcs(starts, table.column("size")[rows].astype(np.int64) - 20)
    return rows, stored, computed.astype(np.int64)


def _crc_value(digits: str) -> int:
    return int(digits[::-1]) if digits.isascii() and digits.isdigit() else -1
