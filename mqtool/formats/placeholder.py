"""Placeholders: well-formed records in place of a lost message, and fillers where none is known to have been.

A placeholder has the topic, queue and queue offset of the lost message, so that a broker walks over the place and every
other message keeps its queue offset. A filler is a prepared transaction, which gets no unit in any queue. Both say in
the property ``MQTOOL_LOST`` what was lost and why; their bodies are zeros.
"""

from __future__ import annotations

import functools
import threading
import zlib
from collections.abc import Collection
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from mqtool.formats import commit_log, record_schemas
from mqtool.formats import kernels as plain
from mqtool.formats.properties import (
    CRC_SIZE,
    NAME_SEPARATOR,
    PAIR_SEPARATOR,
    build_properties,
    crc_digits,
)
from mqtool.formats.property_names import (
    CRC32,
    DELAY,
    INNER_BASE,
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    INNER_NUM,
    REAL_QID,
    REAL_TOPIC,
)
from mqtool.formats.record_head import HEADS
from mqtool.formats.scan import Ints, MessageTable
from mqtool.formats.topics import SCHEDULE_TOPIC

LOST = "MQTOOL_LOST"
FILLER_TOPIC = "MQTOOL_LOST"
MAX_SIZE = 4 << 20
"""Size of a filler at most: as large as a message may be where a broker's configuration says nothing."""
_SMALL_TOPIC = 127
ELEMENT_SIZE = 22
"""Bytes of a message of an inner batch that has neither body nor properties."""


class _ZeroCrcs:
    """The body CRCs of bodies that are zeros, by size, computed when first asked for."""

    def __init__(self) -> None:
        self._known = np.full(1, 0, np.int64)
        self._growing = threading.Lock()

    def of(self, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the CRC for each size; of one above ``MAX_SIZE`` -1."""
        sizes = np.minimum(sizes, MAX_SIZE + 1)
        with self._growing:
            if len(sizes) and int(sizes.max()) >= len(self._known):
                more = np.full(int(sizes.max()) + 1, -1, np.int64)
                more[: len(self._known)] = self._known
                self._known = more
            known = self._known
            for size in np.unique(sizes[known[sizes] < 0]).tolist():
                if size <= MAX_SIZE:
                    known[size] = zlib.crc32(bytes(size)) & 0x7FFFFFFF
        return known[sizes]


_zero_crcs = _ZeroCrcs()


def placeholders(table: MessageTable) -> npt.NDArray[np.bool_]:
    """Return for each message of a table whether it is a placeholder or a filler.

    Properties are examined only if the body may be zeros, by its CRC, or contains several messages.
    """
    sizes = table.sizes(plain.BODY)
    may_be = (table.column("body_crc") == _zero_crcs.of(sizes)) | (sizes > MAX_SIZE)
    may_be |= table.column("sys_flag") & commit_log.INNER_BATCH != 0
    are_placeholders = np.zeros(len(table), np.bool_)
    rows = np.flatnonzero(may_be)
    if len(rows):
        are_placeholders[rows] = table.where(rows).properties([LOST])[1][0] > 0
    return are_placeholders


class RecordTemplate(NamedTuple):
    """What a placeholder takes from the sound messages around it."""

    sys_flag: int  # only the bits of the hosts count
    born_timestamp: int
    born_address: bytes
    born_port: int
    store_timestamp: int
    store_address: bytes
    store_port: int
    has_crc: bool  # records end in a CRC property

    @classmethod
    def of(cls, table: MessageTable, row: int, has_crc: bool) -> Self:
        """Return what a placeholder beside this message takes from it."""
        return cls(
            int(table.column("sys_flag")[row]),
            int(table.column("born_timestamp")[row]),
            table.address(0, row),
            int(table.column("born_port")[row]),
            int(table.column("store_timestamp")[row]),
            table.address(1, row),
            int(table.column("store_port")[row]),
            has_crc,
        )


PLAIN = RecordTemplate(0, 0, bytes(4), 0, 0, bytes(4), 0, has_crc=False)


def min_size(topic: bytes, like: RecordTemplate) -> int:
    """Return the size of the smallest placeholder: one that says no more than that something was lost."""
    return _fixed_size(topic, like) + len(_text("", 0)) + CRC_SIZE * like.has_crc


def needed(
    topic: str, queue_id: int, queue_offset: int, batch_size: int = 1, light: Collection[tuple[str, int]] = ()
) -> bytes:
    """Return the properties by which a broker puts the placeholder where the message was.

    Args:
        topic: of the lost message.
        queue_id: of the lost message.
        queue_offset: of the lost message, of the first one of an inner batch.
        batch_size: how many messages an inner batch held.
        light: further queues, with the offset in each.
    """
    pairs: dict[str, str] = {}
    if batch_size > 1:
        pairs = {INNER_NUM: str(batch_size), INNER_BASE: str(queue_offset)}
    elif topic == SCHEDULE_TOPIC:
        # A broker delivers it like any delayed message: to a topic that nobody reads.
        pairs = {DELAY: str(queue_id + 1), REAL_TOPIC: FILLER_TOPIC, REAL_QID: "0"}
    if light:
        names, offsets = zip(*light, strict=True)
        pairs[INNER_MULTI_DISPATCH] = ",".join(names)
        pairs[INNER_MULTI_QUEUE_OFFSET] = ",".join(map(str, offsets))
    return build_properties(pairs)


def build(
    size: int,
    position: int,
    topic: bytes,
    queue_id: int,
    queue_offset: int,
    why: str,
    like: RecordTemplate,
    transaction: int = 0,
    properties: bytes = b"",
    batch_size: int = 1,
) -> bytes:
    """Return a placeholder.

    Args:
        size: bytes of the record; below ``min_size`` it says nothing about the loss, and leaves out what has no room:
            hosts, then properties, then the CRC property.
        position: its address.
        topic: of the lost message.
        queue_id: of the lost message.
        queue_offset: of the lost message.
        why: what was lost and why; cut where there is no room.
        like: sound messages around it.
        transaction: bits of ``sys_flag`` for the kind of transaction.
        properties: pairs that the dispatch of the lost message needs, each with its separator.
        batch_size: how many messages an inner batch held.

    Raises:
        ValueError: no record is so small.
    """
    if size < _fixed_size(topic, like) + CRC_SIZE * like.has_crc + len(properties):
        like = _without_hosts(like)
    fixed = _fixed_size(topic, like)
    has_crc = like.has_crc and size >= fixed + CRC_SIZE
    if size < fixed + CRC_SIZE * has_crc + len(properties):
        properties = b""
    room = size - fixed - CRC_SIZE * has_crc - len(properties)
    if room < 0:
        raise ValueError(f"a placeholder in {topic!r} needs {fixed} bytes, not {size}")
    least = len(_text("", 0))
    # The words may be cut short, the elements of a batch not: without all of them it is none.
    spare = room - batch_size * ELEMENT_SIZE if batch_size > 1 else room
    text = properties + _text(why, spare if spare >= least else room) if room >= least else properties
    body = bytes(size - fixed - len(text) - CRC_SIZE * has_crc)
    sys_flag = like.sys_flag & (commit_log.BORN_HOST_V6 | commit_log.STORE_HOST_V6) | transaction
    if batch_size > 1 and len(body) >= batch_size * ELEMENT_SIZE:
        body, sys_flag = _batch(batch_size, len(body)), sys_flag | commit_log.INNER_BATCH | commit_log.NEED_UNWRAP
    if has_crc:
        text += f"{CRC32}{NAME_SEPARATOR}{0:010}{PAIR_SEPARATOR}".encode()
    large = len(topic) > _SMALL_TOPIC
    head = HEADS[commit_log.head_form(sys_flag)].pack(
        size,
        commit_log.MAGIC_V2 if large else commit_log.MAGIC_V1,
        zlib.crc32(body) & 0x7FFFFFFF if body else 0,
        queue_id,
        0,  # flag
        queue_offset,
        position,
        sys_flag,
        like.born_timestamp,
        like.born_address,
        like.born_port,
        like.store_timestamp,
        like.store_address,
        like.store_port,
        0,  # reconsume_times
        0,  # prepared_transaction_offset
        len(body),
    )
    topic_size = len(topic).to_bytes(2 if large else 1, "big")
    record = b"".join((head, body, topic_size, topic, len(text).to_bytes(2, "big"), text))
    if has_crc:
        value = zlib.crc32(record[:-CRC_SIZE]) & 0x7FFFFFFF
        record = record[:-11] + crc_digits(value) + PAIR_SEPARATOR.encode()
    return record


class Stamp:
    """Makes many placeholders of one queue that say the same.

    Args:
        topic: of the lost messages.
        queue_id: of the lost messages.
        why: what was lost and why.
        like: sound messages around them.
        transaction: bits of ``sys_flag`` that tell the kind of transaction.
        properties: pairs that the dispatch of each needs.
    """

    def __init__(
        self, topic: bytes, queue_id: int, why: str, like: RecordTemplate, transaction: int = 0, properties: bytes = b""
    ) -> None:
        self._build = functools.partial(
            build,
            topic=topic,
            queue_id=queue_id,
            why=why,
            transaction=transaction,
            properties=properties,
        )
        self._like = like
        size = _fixed_size(topic, like) + len(_text(why, 1024)) + CRC_SIZE * like.has_crc + len(properties)
        record = self._build(size=size, position=0, queue_offset=0, like=like)
        head = commit_log.HEADS[commit_log.head_form(like.sys_flag)].dtype
        self._head = np.frombuffer(record[: head.itemsize], head)
        self._tail = np.frombuffer(record[head.itemsize :], np.uint8)

    def write(
        self,
        out: npt.NDArray[np.uint8],
        at: Ints,
        sizes: Ints,
        positions: Ints,
        queue_offsets: Ints,
        timestamps: Ints | None = None,
    ) -> None:
        """Write some into a buffer of zeros.

        Args:
            out: the buffer.
            at: where each starts in it.
            sizes: bytes of each record.
            positions: their addresses.
            queue_offsets: of the lost messages.
            timestamps: when each was stored, where not all at the same time.
        """
        body_sizes = sizes - self._head.nbytes - len(self._tail)
        fits = (body_sizes >= 0) & (sizes <= MAX_SIZE)
        for row in np.flatnonzero(~fits).tolist():
            size, start = int(sizes[row]), int(at[row])
            like = self._like
            if timestamps is not None:
                like = like._replace(store_timestamp=int(timestamps[row]))
            position, queue_offset = int(positions[row]), int(queue_offsets[row])
            record = self._build(size=size, position=position, queue_offset=queue_offset, like=like)
            out[start : start + size] = np.frombuffer(record, np.uint8)
        at, sizes, body_sizes = at[fits], sizes[fits], body_sizes[fits]
        heads = np.repeat(self._head, len(at))
        heads["size"] = sizes
        heads["body_crc"] = _zero_crcs.of(body_sizes)
        heads["queue_offset"] = queue_offsets[fits]
        heads["physical_offset"] = positions[fits]
        heads["body_size"] = body_sizes
        if timestamps is not None:
            heads["store_timestamp"] = timestamps[fits]
        _put(out, at, heads.view(np.uint8).reshape(len(at), self._head.nbytes))
        _put(out, at + sizes - len(self._tail), self._tail)
        if self._like.has_crc:
            for start, end in zip(at.tolist(), (at + sizes).tolist(), strict=True):
                digits = crc_digits(zlib.crc32(out[start : end - CRC_SIZE]) & 0x7FFFFFFF)
                out[end - 11 : end - 1] = np.frombuffer(digits, np.uint8)


def _put(out: npt.NDArray[np.uint8], at: Ints, data: npt.NDArray[np.uint8]) -> None:
    """Write data of one length at several positions: a row for each, or the same at all."""
    if len(at):
        np.lib.stride_tricks.sliding_window_view(out, data.shape[-1], writeable=True)[at] = data


def _batch(count: int, size: int) -> bytes:
    """Return the body of an inner batch: empty messages, except for the zeros of the last."""
    left = size - count * ELEMENT_SIZE
    elements = []
    for rest in (*[0] * (count - 1), left):
        fields = dict.fromkeys(("magic_code", "body_crc", "flag", "properties_size"), 0)
        fields |= {"size": ELEMENT_SIZE + rest, "body_size": rest}
        elements.append(record_schemas.CLIENT_BATCH_ELEMENT.build(fields | {"body": bytes(rest), "properties": b""}))
    return b"".join(elements)


def filler(size: int, position: int, why: str, like: RecordTemplate) -> bytes:
    """Return a record of the prepared type: walked over, in no queue; of at least ``least_size`` of no topic.

    Where there is little room the CRC property comes first: brokers may be set to end the log at a record without.
    """
    like = _without_hosts(like)
    room = size - least_size(b"")
    topic = FILLER_TOPIC.encode()[: room - CRC_SIZE if like.has_crc and room >= CRC_SIZE else room]
    return build(size, position, topic, 0, 0, why, like, commit_log.TRANSACTION_PREPARED)


def least_size(topic: bytes) -> int:
    """Return the size of the smallest record of a topic that ``build`` can make."""
    return _fixed_size(topic, PLAIN)


def _without_hosts(like: RecordTemplate) -> RecordTemplate:
    """Return a template without hosts, which take space, especially IPv6 ones."""
    none = bytes(4)
    return like._replace(sys_flag=0, born_address=none, born_port=0, store_address=none, store_port=0)


def _fixed_size(topic: bytes, like: RecordTemplate) -> int:
    head = commit_log.HEADS[commit_log.head_form(like.sys_flag)].dtype.itemsize
    return head + (2 if len(topic) > _SMALL_TOPIC else 1) + len(topic) + 2


def _text(why: str, room: int) -> bytes:
    kept = why[: max(1, min(room, 1024) - len(LOST) - 2)] or "?"
    return f"{LOST}{NAME_SEPARATOR}{kept}{PAIR_SEPARATOR}".encode("ascii", "replace")
