"""Checks of a record's contents beyond sizes and CRC: what makes brokers or consumers fail.

Cost: linear in the records of a table.
"""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mqtool.engine.repair.findings import Finding
from mqtool.engine.repair.row_findings import FindingsOfRows
from mqtool.engine.store.dispatch import Dispatch, Properties
from mqtool.errors import FormatError
from mqtool.formats import commit_log, dledger, record_schemas
from mqtool.formats import kernels as plain
from mqtool.formats.properties import (
    CRC_SIZE,
    NAME_SEPARATOR,
    PAIR_SEPARATOR,
    are_readable,
    build_properties,
)
from mqtool.formats.property_names import CRC32, DELAY, INNER_BASE, INNER_NUM
from mqtool.formats.record_edits import with_new_crc
from mqtool.formats.scan import Envelope, Ints, MessageTable
from mqtool.formats.topics import SCHEDULE_TOPIC

NO_CRC = "the record has no CRC property, although those around it have one"
_NUMBER = "its DLedger entry is not numbered consecutively after the one before it"
_ENOUGH_SIGNS = 2
_MAX_OF_CRC = 15
"""How many of the twenty bytes of a CRC property must agree for one with a damaged name to be recognized."""
_CRC_NAME_SIZE = len(CRC32) + 1  # with the separator
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_KNOWN_FLAGS = 0x7FF
_COMPRESSION_SHIFT = 8
_DIGITS = 19  # numbers with fewer digits fit into 63 bits
_ZLIB = (3, 0)  # old producers do not state a type
_MAGICS = {1: 0x04224D18, 2: 0x28B52FFD}  # LZ4 frame, zstd frame
_BATCH = commit_log.INNER_BATCH | commit_log.NEED_UNWRAP
_INDEX_AT, _POSITION_AT, _BODY_SIZE_AT = (
    dledger.ENTRY_HEAD.offset_of(name) for name in ("index", "position", "body_size")
)


class Edges(NamedTuple):
    """What checks of a record against its neighbours need about the first and the last of some records."""

    has_crc: tuple[bool, bool]  # of the first, of the last
    alone: bool  # whether there is only one
    first_lacks: Finding | None  # the first has no CRC property
    first_signs: int  # how many of the signs that are known say that it should: its end, the next record
    last_lacks: Finding | None  # the last, if there are several
    last_signs: int  # likewise: its end, the previous record
    numbers: tuple[int, int] | None  # of DLedger entries, the first and the last
    first_number: Finding | None  # for the first entry, if it is wrong; ``expected`` will be set
    second_number: Finding | None  # the second entry is not numbered after the first
    last_differs: bool  # the last is not numbered after the one before it


class Beside:
    """Checks records against their neighbours across runs, so that it does not matter where a log is split.

    A record without a CRC property should have one if it ends in a damaged one whose name is intact, or if two of three
    signs say so: it ends in a damaged one, the previous record has one, the next one has one. ``join`` takes runs in
    the order of the log; ``part`` is called if something is between two.
    """

    def __init__(self) -> None:
        self.part()

    def part(self) -> None:
        """Forget the previous record."""
        self._has_crc = False
        self._lacks: Finding | None = None
        self._signs = 0
        self._number: int | None = None
        self._differs = False

    def join(self, edges: Edges) -> Iterator[Finding]:
        """Yield findings on the first and last records of a run, or on the last one of the previous run."""
        if self._lacks and self._signs + edges.has_crc[0] >= _ENOUGH_SIGNS:
            yield self._lacks
        self._lacks, self._signs = edges.last_lacks, edges.last_signs
        if edges.first_lacks:
            signs = edges.first_signs + self._has_crc
            if signs >= _ENOUGH_SIGNS:
                yield edges.first_lacks
            elif edges.alone:
                self._lacks, self._signs = edges.first_lacks, signs
        self._has_crc = edges.has_crc[1]
        if edges.numbers and edges.first_number:
            first, last = edges.numbers
            differs = self._number is not None and first != self._number + 1
            if differs and not self._differs and self._number is not None:
                yield dataclasses.replace(edges.first_number, expected=self._number + 1)
            if edges.second_number and not differs:
                yield edges.second_number
            self._number, self._differs = last, differs if edges.alone else edges.last_differs


def edges_of(findings: FindingsOfRows, derived: Dispatch, envelope: Envelope) -> Edges:
    """Check sound records against their neighbours; return what remains to be checked of the outermost."""
    table = findings.table
    has = has_crc_property(table, derived.properties)
    alone = len(table) == 1
    last = len(table) - 1
    signs = np.r_[False, has[:-1]].astype(np.int64) + np.r_[has[1:], False]
    looked = signs > 0
    looked[[0, last]] = True
    looked |= states_crc_property(derived.properties)
    rows = np.flatnonzero(looked & ~has)
    signs[rows] += _signs_of_end(table.where(rows))
    enough = ~has & (signs >= _ENOUGH_SIGNS)
    enough[0] = False  # the record before it counts, too
    findings.rows("LOG-PROPERTY-CRC", enough, NO_CRC)

    def lacking(row: int) -> Finding | None:
        return None if has[row] or enough[row] else findings.finding("LOG-PROPERTY-CRC", row, NO_CRC)

    edges = Edges(
        (bool(has[0]), bool(has[-1])),
        alone,
        lacking(0),
        int(signs[0]),
        None if alone else lacking(last),
        int(signs[last]),
        None,
        None,
        None,
        False,
    )
    if not envelope.size:
        return edges
    numbers = _numbers_at(table, table.starts - envelope.size + _INDEX_AT, 8)
    follows = np.r_[numbers[:1], numbers[:-1] + 1]
    differs = numbers != follows
    # The number after a wrong one seems wrong, too: report the first.
    wrong = differs & ~np.r_[False, differs[:-1]]
    wrong[:2] = False
    findings.rows("LOG-ENTRY", wrong, _NUMBER, follows, numbers)

    def numbered(row: int) -> Finding:
        return findings.finding("LOG-ENTRY", row, _NUMBER, int(follows[row]), int(numbers[row]))

    return edges._replace(
        numbers=(int(numbers[0]), int(numbers[-1])),
        first_number=numbered(0),
        second_number=numbered(1) if not alone and differs[1] else None,
        last_differs=bool(differs[-1]),
    )


def check_records(findings: FindingsOfRows, derived: Dispatch) -> None:
    """Check flags, and the properties that a broker must be able to read, of sound records."""
    _check_compression(findings)
    _check_transactions(findings)
    _check_batches(findings, derived)
    _check_numbers(findings, derived)


def right_flags(table: MessageTable, derived: Dispatch) -> dict[int, int]:
    """Return the correct system flags of sound records, by row, as far as the records show them.

    A body shows its compression, and whether it is a batch.
    """
    flags = table.column("sys_flag")
    right = {}
    for row, kind in zip(*(column.tolist() for column in _packed_otherwise(table)), strict=True):
        bits = commit_log.COMPRESSED | kind << _COMPRESSION_SHIFT if kind >= 0 else 0
        right[row] = int(flags[row]) & ~(commit_log.COMPRESSED | commit_log.COMPRESSION_MASK) | bits
    for row in np.flatnonzero(_batch_differs(table, derived)).tolist():
        stated = derived.properties.text(table, INNER_NUM, row)
        count = batch_count(table.bytes_of(plain.BODY, row))
        if stated and stated == str(count):
            right[row] = right.get(row, int(flags[row])) | _BATCH
        elif not stated and not count:
            right[row] = right.get(row, int(flags[row])) & ~_BATCH
    return right


def right_offsets(table: MessageTable, derived: Dispatch) -> dict[int, int]:
    """Return the queue offsets in the properties of inner batches, by row, if they differ from the heads."""
    if not (derived.properties.at(INNER_BASE)[1] > 0).any():
        return {}
    offsets = table.column("queue_offset")
    right = {}
    for row in np.flatnonzero(table.column("sys_flag") & commit_log.INNER_BATCH).tolist():
        base = derived.properties.text(table, INNER_BASE, row)
        if base.isascii() and base.isdecimal() and len(base) < _DIGITS and int(base) != offsets[row]:
            right[row] = int(base)
    return right


def right_delay_levels(table: MessageTable, derived: Dispatch) -> dict[int, int]:
    """Return the delay levels of the queues of delayed messages, by row, whose own level is not a number."""
    topic_ids, topics = table.topics()
    if SCHEDULE_TOPIC.encode() not in topics:
        return {}
    delayed = (topic_ids == topics.index(SCHEDULE_TOPIC.encode())) & (derived.properties.at(DELAY)[1] > 0)
    rows = np.flatnonzero(delayed & (table.column("queue_id") >= 0)).tolist()
    wrong = [row for row in rows if _number(derived.properties.text(table, DELAY, row), (1 << 31) - 1) is None]
    return {row: int(table.column("queue_id")[row]) + 1 for row in wrong}


def batch_count(body: bytes) -> int:
    """Return how many messages a batch holds, 0 if the body is not a batch."""
    try:
        return len(record_schemas.parse_client_batch(body))
    except FormatError:
        return 0


def _packed_otherwise(table: MessageTable) -> tuple[Ints, Ints]:
    """Return the rows whose compression differs from their flags, and the actual one, -1 for none."""
    flags = table.column("sys_flag")
    packed = np.flatnonzero((flags & commit_log.COMPRESSED != 0) & (table.sizes(plain.BODY) > 0))
    if not len(packed):
        return packed, packed
    heads = _numbers_at(table, table.offsets(plain.BODY)[packed], 4) & 0xFFFFFFFF
    stated = (flags[packed] & commit_log.COMPRESSION_MASK) >> _COMPRESSION_SHIFT
    zlib = (heads >> 24 & 0x0F == 8) & ((heads >> 16) % 31 == 0)
    kinds = np.where(zlib, _ZLIB[0], -1)
    for kind, magic in _MAGICS.items():
        kinds[heads == magic] = kind
    wrong = (stated != kinds) & ~(zlib & np.isin(stated, _ZLIB))
    return packed[wrong], kinds[wrong]


def _check_compression(findings: FindingsOfRows) -> None:
    """Check whether the compression of bodies agrees with the flags, which no CRC covers."""
    wrong = np.zeros(len(findings.table), np.bool_)
    wrong[_packed_otherwise(findings.table)[0]] = True
    text = "the body is not compressed as its system flag says: consumers cannot decompress it"
    findings.rows("LOG-FLAG", wrong, text, None, findings.table.column("sys_flag"))


def _check_transactions(findings: FindingsOfRows) -> None:
    """Check the queue offset of records that have no place in a queue."""
    table = findings.table
    kind = table.column("sys_flag") & commit_log.TRANSACTION_MASK
    aside = (kind == commit_log.TRANSACTION_PREPARED) | (kind == commit_log.TRANSACTION_ROLLBACK)
    if aside.any():
        offsets = table.column("queue_offset")
        text = "a prepared or rolled back transaction has a queue offset, although it has no place in a queue"
        findings.rows("LOG-FLAG", aside & (offsets != 0), text, np.zeros_like(offsets), offsets)


def _check_batches(findings: FindingsOfRows, derived: Dispatch) -> None:
    """Check whether records with several messages are flagged as such, and undefined bits."""
    flags = findings.table.column("sys_flag")
    strange = flags & ~_KNOWN_FLAGS != 0
    text = "the system flag has bits that no known version sets"
    findings.rows("LOG-FLAG-BITS", strange, text, flags & _KNOWN_FLAGS, flags)
    differs = _batch_differs(findings.table, derived) & ~derived.properties.damaged
    text = "the system flag and the property INNER_NUM disagree on whether the record contains several messages"
    findings.rows("LOG-FLAG", differs, text, None, flags)


def _batch_differs(table: MessageTable, derived: Dispatch) -> npt.NDArray[np.bool_]:
    """Return which records are flagged as batches and have no count, or the other way round."""
    differs: npt.NDArray[np.bool_] = (table.column("sys_flag") & commit_log.INNER_BATCH != 0) != (
        derived.properties.at(INNER_NUM)[1] > 0
    )
    return differs


def _check_numbers(findings: FindingsOfRows, derived: Dispatch) -> None:
    """Check the numbers in properties that a broker parses: where it cannot, it ends the log."""
    table = findings.table
    names = []
    if (derived.properties.at(INNER_NUM)[1] > 0).any():
        both = (derived.properties.at(INNER_NUM)[1] > 0) & (derived.properties.at(INNER_BASE)[1] > 0)
        names += [(INNER_NUM, both, (1 << 15) - 1), (INNER_BASE, both, (1 << 63) - 1)]
    delayed = derived.properties.at(DELAY)[1] > 0
    if delayed.any():
        topic_ids, topics = table.topics()
        if SCHEDULE_TOPIC.encode() in topics:
            delayed &= topic_ids == topics.index(SCHEDULE_TOPIC.encode())
            names.append((DELAY, delayed, (1 << 31) - 1))
    for name, mask, most in names:
        wrong, differs = np.zeros(len(table), np.bool_), np.zeros(len(table), np.bool_)
        bases = table.column("queue_offset").copy()
        for row in np.flatnonzero(mask).tolist():
            value = _number(derived.properties.text(table, name, row), most)
            wrong[row] = value is None
            if name == INNER_BASE and value is not None:
                differs[row] = value != bases[row]
                bases[row] = value
        findings.rows("LOG-PROPERTIES", wrong, f"its property {name} is invalid: a broker ends the log here")
        text = "its property INNER_BASE is not its queue offset"
        findings.rows("LOG-PROPERTIES", differs, text, table.column("queue_offset"), bases)


def _number(text: str, most: int) -> int | None:
    if not _INTEGER.fullmatch(text):
        return None
    value = int(text)
    return value if -most - 1 <= value <= most else None


def has_crc_property(table: MessageTable, properties: Properties) -> npt.NDArray[np.bool_]:
    """Return, for each record, whether it ends with a CRC property; one without, among others with, may be damaged."""
    offsets, sizes = properties.at(CRC32)
    has: npt.NDArray[np.bool_] = (sizes == 10) & (offsets + sizes + 1 == table.starts + table.column("size"))
    return has


def states_crc_property(properties: Properties) -> npt.NDArray[np.bool_]:
    """Return which records have a CRC property, intact or not, whose name is intact; few others end like one."""
    mask: npt.NDArray[np.bool_] = properties.at(CRC32)[1] > 0
    return mask


def ends_like_crc(table: MessageTable) -> npt.NDArray[np.bool_]:
    """Return which records end in a CRC property, intact or with some bytes changed."""
    return _signs_of_end(table) > 0


def _signs_of_end(table: MessageTable) -> Ints:
    """Return how many signs the end of each record is that it should have a CRC property; its name is enough."""
    ends = table.starts + table.column("size")
    raw: Any = np.frombuffer(table.buffer, np.uint8)
    tails = raw[(ends - CRC_SIZE)[:, None] + np.arange(CRC_SIZE)]
    pattern = np.frombuffer(build_properties({CRC32: "0" * 10}), np.uint8)
    is_digit = (tails >= ord("0")) & (tails <= ord("9"))
    agree = np.where(pattern == ord("0"), is_digit, tails == pattern)
    is_named = agree[:, :_CRC_NAME_SIZE].all(axis=1)
    signs = np.where(is_named, _ENOUGH_SIGNS, agree.sum(axis=1) >= _MAX_OF_CRC)
    return np.where(table.sizes(plain.PROPERTIES) >= CRC_SIZE, signs, 0)


def is_repairable_crc(table: MessageTable) -> npt.NDArray[np.bool_]:
    """Return which records end in a damaged CRC property and can be read once it is rewritten, over no other one."""
    mask = ends_like_crc(table)
    for row in np.flatnonzero(mask).tolist():
        properties = table.bytes_of(plain.PROPERTIES, row)
        anew = with_new_crc(table.record(row), len(properties))[-len(properties) :]
        mask[row] = are_readable(anew) and not _ends_within_crc(properties)
    return mask


def _ends_within_crc(properties: bytes) -> bool:
    """Return whether a property ends where the CRC property belongs, which would overwrite its end."""
    separator, edge = PAIR_SEPARATOR.encode(), len(properties) - CRC_SIZE
    start = properties.rfind(separator, 0, edge) + 1
    end = properties.find(separator, edge)
    return start < edge < end < len(properties) - 1 and NAME_SEPARATOR.encode() in properties[start:end]


def check_entries(findings: FindingsOfRows, envelope: Envelope, base: int) -> None:
    """Check position and length in the heads of DLedger's entries."""
    if not envelope.size:
        return
    table = findings.table
    heads = table.starts - envelope.size
    text = "its DLedger entry claims another address"
    positions = _numbers_at(table, heads + _POSITION_AT, 8)
    findings.rows("LOG-ENTRY", positions != heads + base, text, heads + base, positions)
    sizes = _numbers_at(table, heads + _BODY_SIZE_AT, 4)
    expected = table.column("size").astype(np.int64)
    findings.rows("LOG-ENTRY", sizes != expected, "its DLedger entry has another size", expected, sizes)


def _numbers_at(table: MessageTable, at: Ints, width: int) -> Ints:
    raw: Any = np.frombuffer(table.buffer, np.uint8)
    columns = raw[at[:, None] + np.arange(width)]
    return np.ascontiguousarray(columns).view(f">i{width}")[:, 0].astype(np.int64)
