"""The scanner: a buffer of commit log in, a ``MessageTable`` out, column by column.

A walk hops from record to record by their sizes, then every other field of all records is gathered at once. Nothing is
trusted: a record whose parts do not add up is a row marked in ``faults``, and a walk ends where no record can be.
A walk may start anywhere in a segment, after ``resync``.

Cost: linear in the records; only their heads are read, unless bodies are checked.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from mqtool.formats import commit_log, dledger
from mqtool.formats import kernels as plain
from mqtool.formats.layout import I32, I64
from mqtool.formats.topics import is_possible
from mqtool.late import np, npt

Ints: TypeAlias = "npt.NDArray[np.int64]"

COMPILE_FROM = 16 << 20
"""Bytes from which on compiled kernels are worth the seconds that they take the first time ever."""
LOAD_FROM = 1 << 20
"""Bytes from which on they are worth the twentieth of a second that they take from then on."""

_HEAD = commit_log.HEADS[0]
NARROW = tuple(name for name, code in _HEAD.fields.items() if code == I32)
WIDE = tuple(name for name, code in _HEAD.fields.items() if code == I64)
HOSTS = ("born", "store")
_ADDRESSES = tuple(f"{host}_address" for host in HOSTS)


@functools.cache
def _positions(names: tuple[str, ...]) -> Ints:
    """Return where fields are in each form of the head, by (form, field)."""
    return np.array([[head.offset_of(name) for name in names] for head in commit_log.HEADS])


def address_positions() -> Ints:
    """Return where the addresses of hosts are, by (form of the head, number in ``HOSTS``)."""
    return _positions(_ADDRESSES)


_HEAD_SIZES = tuple(head.size for head in commit_log.HEADS)
_FIXED_AT = tuple(_HEAD.offset_of(name) for name in ("size", "magic_code", "sys_flag"))
_PHYSICAL_OFFSET_AT = _HEAD.offset_of("physical_offset")
_MAGIC_AT = _FIXED_AT[1]

MAGICS = (*commit_log.MESSAGE_MAGICS, commit_log.MAGIC_BLANK)
_MAGIC_CODES = frozenset(magic.to_bytes(4, "big", signed=True) for magic in commit_log.MESSAGE_MAGICS)
_MAGIC_PREFIX = commit_log.MAGIC_V1.to_bytes(4, "big", signed=True)[:3]


class Stop(enum.IntEnum):
    """Why a walk ended."""

    PART = plain.STOPPED_FULL
    """The part that was asked for is done."""
    END = plain.STOPPED_END
    """Too few bytes are left for any record."""
    BLANK = plain.STOPPED_BLANK
    """A blank record: the rest of the segment is filler."""
    MAGIC = plain.STOPPED_MAGIC
    """No record: zeros at the end of the log, or damage."""
    SIZE = plain.STOPPED_SIZE
    """A size that cannot be true."""


class Fault(enum.IntEnum):
    """What is wrong with a row of a table."""

    NONE = plain.SOUND
    BODY_SIZE = plain.BODY_SIZE
    TOPIC_SIZE = plain.TOPIC_SIZE
    PROPERTIES_SIZE = plain.PROPERTIES_SIZE
    TOTAL_SIZE = plain.TOTAL_SIZE


class Envelope(NamedTuple):
    """What precedes each record: nothing, or the head of a DLedger entry."""

    size: int = 0
    magic_code: int = 0


BARE = Envelope()
DLEDGER = Envelope(dledger.ENTRY_HEAD_SIZE, dledger.MAGIC)


def compiled_kernels() -> Any:
    """Return the kernels as numba compiles them."""
    from mqtool.formats import kernel_cache

    return kernel_cache.kernels()


def compiles_first_time() -> bool:
    """Return whether the compiled kernels have yet to be made, which takes some seconds."""
    from mqtool.formats import kernel_cache

    return not kernel_cache.is_stored()


def why_compiled_again() -> str | None:
    """Return why the next run too has to compile the kernels, and what to do; None if it does not."""
    from mqtool.formats import kernel_cache

    return kernel_cache.why_not_kept()


def kernels_for(byte_count: int) -> Any:
    """Return the kernels to use for this many bytes in total: plain for few, compiled for many."""
    if byte_count >= COMPILE_FROM or (byte_count >= LOAD_FROM and not compiles_first_time()):
        return compiled_kernels()
    return plain


@dataclasses.dataclass(frozen=True)
class MessageTable:
    """Messages as columns, in the order of the log.

    Columns are arrays in native byte order, with one value per message: every number of the head under its schema's
    name (``table.column("queue_offset")``), and ``position``, the actual address of the record.
    Body, topic, properties and addresses are not copied; ``offsets`` and ``sizes`` say where they are in ``buffer``.
    """

    kernels: Any
    buffer: Any
    base: int  # address of the first byte of the buffer
    starts: Ints  # position of each record in the buffer
    narrow: npt.NDArray[np.int32]
    wide: Ints
    extents: Ints
    faults: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.starts)

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column by the schema's name.

        Raises:
            KeyError: there is no such column.
        """
        if name in NARROW:
            return cast("npt.NDArray[Any]", self.narrow[NARROW.index(name)])
        if name in WIDE:
            return cast("npt.NDArray[Any]", self.wide[WIDE.index(name)])
        if name == "position":
            return self.starts + self.base
        raise KeyError(name)

    def offsets(self, part: int) -> Ints:
        """Return where ``kernels.BODY``, ``TOPIC`` or ``PROPERTIES`` of each message starts in the buffer."""
        column: Ints = self.extents[2 * part]
        return column

    def sizes(self, part: int) -> Ints:
        """Return the length of that part."""
        column: Ints = self.extents[2 * part + 1]
        return column

    def bytes_of(self, part: int, row: int) -> bytes:
        """Return the body, topic or properties of one message."""
        offset = int(self.extents[2 * part, row])
        return bytes(self.buffer[offset : offset + int(self.extents[2 * part + 1, row])])

    def address(self, host: int, row: int) -> bytes:
        """Return the address in ``HOSTS[host]`` of one message: 4 or 16 bytes."""
        form = commit_log.head_form(int(self.narrow[NARROW.index("sys_flag"), row]))
        start = int(self.starts[row] + address_positions()[form, host])
        return bytes(self.buffer[start : start + (16 if form >> host & 1 else 4)])

    def record(self, row: int) -> bytes:
        """Return the whole record of one message."""
        start = int(self.starts[row])
        return bytes(self.buffer[start : start + int(self.narrow[0, row])])

    def where(self, mask: npt.NDArray[Any] | slice) -> MessageTable:
        """Return the messages that a mask, a list of rows or a slice selects."""
        return dataclasses.replace(
            self,
            starts=self.starts[mask],
            narrow=self.narrow[:, mask],
            wide=self.wide[:, mask],
            extents=self.extents[:, mask],
            faults=self.faults[mask],
        )

    def topics(self) -> tuple[npt.NDArray[np.int32], list[bytes]]:
        """Return the number of each message's topic, and the topics by number."""
        offsets, sizes = self.offsets(plain.TOPIC), self.sizes(plain.TOPIC)
        ids = np.empty(len(self), np.int32)
        room = 1024
        while True:
            firsts = np.empty(room, np.int64)
            slots = np.full(4 * room, -1, np.int32)
            count = self.kernels.intern(self.buffer, offsets, sizes, slots, ids, firsts)
            if count >= 0:
                return ids, [self.bytes_of(plain.TOPIC, int(row)) for row in firsts[:count]]
            room *= 16

    def properties(self, names: Sequence[str]) -> tuple[Ints, Ints]:
        """Return where the values of the named properties are: offsets and sizes by (name, message).

        ``names`` must be in order.
        """
        return self.checked_properties(names)[:2]

    def checked_properties(self, names: Sequence[str]) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
        """Return the same, and for each message whether its properties are damaged (``properties.are_readable``)."""
        joined, ends, by_letter = _name_table(tuple(names))
        shape = (len(names), len(self))
        offsets, sizes, damaged = np.empty(shape, np.int64), np.empty(shape, np.int64), np.empty(len(self), np.bool_)
        self.kernels.find_properties(
            self.buffer,
            self.offsets(plain.PROPERTIES),
            self.sizes(plain.PROPERTIES),
            joined if self.kernels is plain else np.frombuffer(joined, np.uint8),
            ends,
            by_letter,
            offsets,
            sizes,
            damaged,
        )
        return offsets, sizes, damaged

    def broken(self) -> npt.NDArray[np.bool_]:
        """Return which messages are visibly not what was stored.

        The body does not match its CRC, or topic or properties, which that CRC does not cover, are damaged.
        """
        wrong = (self.sizes(plain.BODY) > 0) & (self.body_crcs() != self.column("body_crc"))
        return cast("npt.NDArray[np.bool_]", wrong | self.checked_properties(())[2] | self.nameless())

    def nameless(self) -> npt.NDArray[np.bool_]:
        """Return which messages have a topic that no broker can have."""
        ids, names = self.topics()
        wrong = [number for number, name in enumerate(names) if not is_possible(name)]
        return np.isin(ids, wrong) if wrong else np.zeros(len(self), np.bool_)

    def body_crcs(self) -> npt.NDArray[np.int32]:
        """Return the CRC that each stored body should have; 0 for an empty one."""
        return self.crcs(self.offsets(plain.BODY), self.sizes(plain.BODY))

    def crcs(self, offsets: Ints, sizes: Ints) -> npt.NDArray[np.int32]:
        """Return the CRC-32, without its top bit, of ranges of the buffer."""
        out = np.empty(len(offsets), np.uint32)
        self.kernels.body_crcs(self.buffer, np.ascontiguousarray(offsets), np.ascontiguousarray(sizes), out)
        return (out & 0x7FFFFFFF).astype(np.int32)


@functools.cache
def _name_table(names: tuple[str, ...]) -> tuple[bytes, Ints, Ints]:
    encoded = [name.encode() for name in names]
    if encoded != sorted(encoded):
        raise ValueError("names of properties must be in order")
    by_letter = np.zeros((256, 2), np.int64)
    for number, name in enumerate(encoded):
        if not by_letter[name[0], 1]:
            by_letter[name[0], 0] = number
        by_letter[name[0], 1] = number + 1
    return b"".join(encoded), np.cumsum([len(name) for name in encoded]), by_letter


class Scan(NamedTuple):
    """One walk: the messages it met, where it ended (position in the buffer) and why."""

    table: MessageTable
    end: int
    stop: Stop


def scan(
    buffer: Any,
    base: int,
    start: int = 0,
    stop: int | None = None,
    envelope: Envelope = BARE,
    kernels: Any = plain,
    limit: int | None = None,
) -> Scan:
    """Walk over records from ``start`` and gather what they say.

    Args:
        buffer: bytes of one segment, or of the rest of one; a memoryview, or an array of ``u1`` for compiled kernels.
        base: address of its first byte.
        start: position in the buffer of the first record.
        stop: records that start here or later are left to others; by default the end of the buffer.
        envelope: what precedes each record.
        kernels: ``kernels_for(..)``.
        limit: take no more records than this.
    """
    end = len(buffer)
    stop = end if stop is None else min(stop, end)
    room = max(0, stop - start) // (commit_log.MIN_SIZE + envelope.size) + 1
    starts = np.empty(room if limit is None else min(limit, room), np.int64)
    count, at, why = kernels.hop(
        buffer, start, stop, end, MAGICS, commit_log.MIN_SIZE, (envelope.size, envelope.magic_code), starts
    )
    return Scan(gather(buffer, base, starts[:count], kernels), int(at), Stop(why))


def gather(buffer: Any, base: int, starts: Ints, kernels: Any = plain) -> MessageTable:
    """Return the table of the records that start at ``starts``, as ``hop`` or ``resync`` found them."""
    count = len(starts)
    table = MessageTable(
        kernels=kernels,
        buffer=buffer,
        base=base,
        starts=starts,
        narrow=np.empty((len(NARROW), count), np.int32),
        wide=np.empty((len(WIDE), count), np.int64),
        extents=np.empty((6, count), np.int64),
        faults=np.empty(count, np.uint8),
    )
    kernels.gather(
        buffer,
        starts,
        _positions(NARROW),
        _positions(WIDE),
        _HEAD_SIZES,
        commit_log.MAGIC_V2,
        _FIXED_AT,
        table.narrow,
        table.wide,
        table.extents,
        table.faults,
    )
    return table


_SHORT = 1 << 16


def may_begin_records(buffer: Any, start: int, stop: int) -> bool:
    """Return, at a glance, whether message records may start in a short range: whether it contains a magic code."""
    return _MAGIC_PREFIX in bytes(memoryview(buffer)[start + _MAGIC_AT : stop + _MAGIC_AT + len(_MAGIC_PREFIX) - 1])


def candidates(buffer: Any, base: int | None, start: int, stop: int) -> Iterator[int]:
    """Yield each position from which a message record that belongs there may start.

    That is: one of the two magic codes is at its place, the record fits its buffer,
    and its physical offset is its own address; without ``base`` any address will do.
    """
    view = memoryview(buffer)
    for window, step in _windows(start, stop):
        # Magic codes of records that begin in this window are in [window + 4, window + step + 7).
        reach = min(window + step, stop) + _MAGIC_AT + 3
        # Most of what is searched is the unused end of a log.
        if reach - window > _SHORT and not np.frombuffer(view[window + _MAGIC_AT : reach], np.uint8).any():
            continue
        chunk = bytes(view[window + _MAGIC_AT : reach])
        at = chunk.find(_MAGIC_PREFIX)
        while 0 <= at < min(step, stop - window):
            position = window + at
            head = bytes(view[position : position + _HEAD_SIZES[0]])
            if (
                len(head) == _HEAD_SIZES[0]
                and head[_MAGIC_AT : _MAGIC_AT + 4] in _MAGIC_CODES
                and (base is None or plain.int64(head, _PHYSICAL_OFFSET_AT) == base + position)
                and commit_log.MIN_SIZE <= plain.int32(head, 0) <= len(view) - position
            ):
                yield position
            at = chunk.find(_MAGIC_PREFIX, at + 1)


def _windows(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield where windows start and how long they are: short at first, since most searches end soon."""
    step = 1 << 12
    while start < stop:
        yield start, step
        start, step = start + step, min(4 * step, 1 << 20)


def resync(buffer: Any, base: int, start: int, stop: int | None = None, envelope: Envelope = BARE) -> int | None:
    """Return the first position from ``start`` on where a walk can start (again), None if there is none.

    Position of the record, or of its envelope.
    """
    stop = len(buffer) if stop is None else min(stop, len(buffer))
    for position in candidates(buffer, base, start + envelope.size, min(stop + envelope.size, len(buffer))):
        return position - envelope.size
    return None
