"""Ordinary messages, converted directly from the bytes of the log to units and entries.

Nearly all messages of nearly all stores are of this kind: intact, in their place, with properties irrelevant for
the dispatcher except unique key, keys and tags. They need one pass instead of the six of a table and its dispatch, with
the same result; the first one that differs ends it, except for bodies that do not match their CRC, which are listed.

Cost: linear in the bytes of the records.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from mqtool.engine.store.commit_log import ROWS, CommitLog
from mqtool.engine.store.dispatch import IndexEntries, Units, units_of
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.formats import commit_log as layout
from mqtool.formats import scan
from mqtool.formats.property_names import KEYS, TAGS, UNIQ_KEY
from mqtool.formats.scan import Ints
from mqtool.formats.topics import SCHEDULE_TOPIC, is_possible

_TOPICS = 1024  # at once
_ENTRIES = 4  # for each message, where they are all in use
_FIELDS = (
    "size",
    "magic_code",
    "body_crc",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "sys_flag",
    "store_timestamp",
    "body_size",
)
_FORM = layout.HEADS[0]
_AT = (*(_FORM.offset_of(name) for name in _FIELDS), _FORM.size)
# Prepared and rolled back transactions share a bit, which committed ones do not have.
_NO_FLAGS = (
    layout.TRANSACTION_PREPARED | layout.BORN_HOST_V6 | layout.STORE_HOST_V6 | layout.INNER_BATCH | layout.NEED_UNWRAP
)
_NAMES = (*(int.from_bytes(name.encode(), "big") for name in (UNIQ_KEY, KEYS, TAGS)), *b"I_")
"""The two letters start ``INNER_..`` and ``__CRC32#``."""


@dataclasses.dataclass(frozen=True)
class FastPath:
    """Consecutive messages, except for what is unsound among and after them."""

    start: int  # positions in the segment
    end: int
    last_start: int
    count: int
    first_timestamp: int
    last_timestamp: int
    topics: dict[str, int]  # how many messages each has
    units: Units
    entries: IndexEntries
    positions: Ints  # addresses
    timestamps: Ints
    unsound: Ints
    """Positions of records whose bodies do not match their CRC; a ``FastPath`` ends before the first."""


def take_fast_path(
    log: CommitLog, segment: MappedFile, start: int, stop: int, kernels: Any, with_bodies: bool, with_tags: bool
) -> Iterator[FastPath]:
    """Yield the messages from a position on, up to the first that needs a closer look.

    Args:
        log: that the segment is of.
        segment: where they are.
        start: position of the first record.
        stop: no record that starts here or later is taken.
        kernels: ``scan.kernels_for(..)``.
        with_bodies: check the CRC of bodies.
        with_tags: also derive the entries by tag.
    """
    if log.envelope is not scan.BARE:
        return
    buffer = log.buffer(segment, kernels)
    while start < stop:
        room = min(ROWS, (stop - start) // layout.MIN_SIZE + 1)
        narrow, wide = np.empty((3, room), np.int32), np.empty((4, room), np.int64)
        topics, seeds = np.empty((2, _TOPICS), np.int64), np.empty(_TOPICS, np.int64)
        rows = np.empty(_ENTRIES * room + 64, np.int64)
        hashes, is_tag = np.empty(len(rows), np.int32), np.empty(len(rows), np.bool_)
        unsound = np.empty(room, np.int64)
        count, end, entry_count, topic_count, unsound_count = kernels.fast_path(
            buffer,
            start,
            stop,
            segment.start_offset,
            layout.MESSAGE_MAGICS,
            _AT,
            _NO_FLAGS,
            _NAMES,
            with_bodies,
            with_tags,
            np.full(4 * _TOPICS, -1, np.int32),
            topics,
            seeds,
            narrow,
            wide,
            rows,
            hashes,
            is_tag,
            unsound,
        )
        raw = [bytes(buffer[at : at + size]) for at, size in topics[:, :topic_count].T]
        names = [name.decode("utf-8", "replace") for name in raw]
        is_strange = any("\ufffd" in name for name in names) or not all(map(is_possible, raw))
        if not count or SCHEDULE_TOPIC in names or is_strange:
            return
        sizes, topic_ids, queue_ids = narrow[:, :count]
        positions, offsets, tags_codes, timestamps = wide[:, :count]
        addresses = positions + segment.start_offset
        units = units_of(
            names,
            topic_ids.astype(np.int64),
            queue_ids.astype(np.int64),
            np.arange(count),
            offsets,
            np.ones(count, np.int64),
            tags_codes,
            addresses,
            sizes,
            timestamps,
        )
        rows = rows[:entry_count]
        counts = np.bincount(topic_ids, minlength=len(names)).tolist()
        yield FastPath(
            start,
            end,
            int(positions[-1]),
            count,
            int(timestamps[0]),
            int(timestamps[-1]),
            {name: number for name, number in zip(names, counts, strict=True) if number},
            units,
            IndexEntries(rows, hashes[:entry_count], addresses[rows], timestamps[rows], is_tag[:entry_count]),
            addresses,
            timestamps,
            unsound[:unsound_count],
        )
        start = end
