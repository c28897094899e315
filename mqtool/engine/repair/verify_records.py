"""Checks of what a record says about itself, beyond sizes and CRC: what brokers or consumers trip over."""

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from mqtool.engine.store.dispatch import CRC_PROPERTY, Dispatch
from mqtool.formats import commit_log, dledger
from mqtool.formats import kernels as plain
from mqtool.formats.scan import Envelope, Ints, MessageTable
from mqtool.formats.topics import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from mqtool.engine.repair.verify_log import FindingsOfRows

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_KNOWN_FLAGS = 0x7FF
_COMPRESSION_SHIFT = 8
_ZLIB = (0, 3)  # old producers name no type
_MAGICS = {1: 0x04224D18, 2: 0x28B52FFD}  # LZ4 frame, zstd frame
_INDEX_AT, _POSITION_AT, _BODY_SIZE_AT = (
    int(dledger.ENTRY_HEAD_DTYPE.fields[name][1])  # type: ignore[index]
    for name in ("index", "position", "body_size")
)


def check_records(found: "FindingsOfRows", derived: Dispatch) -> None:
    """Judge flags, and the properties that a broker must be able to read, of sound records."""
    _check_compression(found)
    _check_transactions(found)
    _check_batches(found, derived)
    _check_numbers(found, derived)
    _check_crc_is_there(found, derived)


def _check_compression(found: "FindingsOfRows") -> None:
    """Judge whether a body is packed as its flag says: the body's CRC does not cover the flag."""
    table = found.table
    flags = table.column("sys_flag")
    packed = np.flatnonzero((flags & commit_log.COMPRESSED != 0) & (table.sizes(plain.BODY) > 0))
    if not len(packed):
        return
    heads = _numbers_at(table, table.offsets(plain.BODY)[packed], 4) & 0xFFFFFFFF
    kinds = (flags[packed] & commit_log.COMPRESSION_MASK) >> _COMPRESSION_SHIFT
    fits = np.zeros(len(packed), np.bool_)
    zlib = (heads >> 24 & 0x0F == 8) & ((heads >> 16) % 31 == 0)
    for kind in _ZLIB:
        fits |= (kinds == kind) & zlib
    for kind, magic in _MAGICS.items():
        fits |= (kinds == kind) & (heads == magic)
    wrong = np.zeros(len(table), np.bool_)
    wrong[packed] = ~fits
    text = "the body is not packed as its system flag says: consumers cannot unpack it"
    found.rows("LOG-FLAG", wrong, text, None, flags)


def _check_transactions(found: "FindingsOfRows") -> None:
    """Judge the queue offset of records that have no place in a queue."""
    table = found.table
    kind = table.column("sys_flag") & commit_log.TRANSACTION_MASK
    aside = (kind == commit_log.TRANSACTION_PREPARED) | (kind == commit_log.TRANSACTION_ROLLBACK)
    if aside.any():
        offsets = table.column("queue_offset")
        text = "a prepared or rolled back transaction has a queue offset, though it has no place in a queue"
        found.rows("LOG-FLAG", aside & (offsets != 0), text, np.zeros_like(offsets), offsets)


def _check_batches(found: "FindingsOfRows", derived: Dispatch) -> None:
    """Judge whether records with several messages are flagged as such, and bits that mean nothing."""
    flags = found.table.column("sys_flag")
    strange = flags & ~_KNOWN_FLAGS != 0
    text = "the system flag has bits that no known version sets"
    found.rows("LOG-FLAG-BITS", strange, text, flags & _KNOWN_FLAGS, flags)
    differs = (flags & commit_log.INNER_BATCH != 0) != (derived.properties.at("INNER_NUM")[1] > 0)
    text = "the system flag and the property INNER_NUM differ on whether the record holds several messages"
    found.rows("LOG-FLAG", differs, text, None, flags)


def _check_numbers(found: "FindingsOfRows", derived: Dispatch) -> None:
    """Judge the numbers in properties that a broker parses: a record where it cannot ends the log for it."""
    table = found.table
    names = []
    if (derived.properties.at("INNER_NUM")[1] > 0).any():
        both = (derived.properties.at("INNER_NUM")[1] > 0) & (derived.properties.at("INNER_BASE")[1] > 0)
        names += [("INNER_NUM", both, (1 << 15) - 1), ("INNER_BASE", both, (1 << 63) - 1)]
    delayed = derived.properties.at("DELAY")[1] > 0
    if delayed.any():
        topic_ids, topics = table.topics()
        if SCHEDULE_TOPIC.encode() in topics:
            delayed &= topic_ids == topics.index(SCHEDULE_TOPIC.encode())
            names.append(("DELAY", delayed, (1 << 31) - 1))
    for name, mask, most in names:
        wrong, differs = np.zeros(len(table), np.bool_), np.zeros(len(table), np.bool_)
        bases = table.column("queue_offset").copy()
        for row in np.flatnonzero(mask).tolist():
            value = _number(derived.properties.text(table, name, row), most)
            wrong[row] = value is None
            if name == "INNER_BASE" and value is not None:
                differs[row] = value != bases[row]
                bases[row] = value
        found.rows("LOG-PROPERTIES", wrong, f"its property {name} is no number: a broker takes the log to end here")
        text = "its property INNER_BASE is not its queue offset"
        found.rows("LOG-PROPERTIES", differs, text, table.column("queue_offset"), bases)


def _number(text: str, most: int) -> int | None:
    if not _INTEGER.fullmatch(text):
        return None
    value = int(text)
    return value if -most - 1 <= value <= most else None


def _check_crc_is_there(found: "FindingsOfRows", derived: Dispatch) -> None:
    """Judge records without a CRC property between records that have one: damage may hide there."""
    table = found.table
    offsets, sizes = derived.properties.at(CRC_PROPERTY)
    if not sizes.any():
        return
    has = (sizes == 10) & (offsets + sizes + 1 == table.starts + table.column("size"))
    between = np.zeros(len(table), np.bool_)
    between[1:-1] = ~has[1:-1] & has[:-2] & has[2:]
    found.rows("LOG-PROPERTY-CRC", between, "the record has no CRC property, though those around it have one")


def check_entries(found: "FindingsOfRows", envelope: Envelope, base: int) -> None:
    """Judge the heads of DLedger's entries: where they lie, how long they are, and their numbers."""
    if not envelope.size:
        return
    table = found.table
    heads = table.starts - envelope.size
    text = "its DLedger entry says that it lies elsewhere"
    positions = _numbers_at(table, heads + _POSITION_AT, 8)
    found.rows("LOG-ENTRY", positions != heads + base, text, heads + base, positions)
    sizes = _numbers_at(table, heads + _BODY_SIZE_AT, 4)
    expected = table.column("size").astype(np.int64)
    found.rows("LOG-ENTRY", sizes != expected, "its DLedger entry gives another size", expected, sizes)
    numbers = _numbers_at(table, heads + _INDEX_AT, 8)
    follows = np.r_[numbers[:1], numbers[:-1] + 1]
    # The number after a wrong one seems wrong too: tell of the first.
    wrong = (numbers != follows) & ~np.r_[False, (numbers != follows)[:-1]]
    found.rows("LOG-ENTRY", wrong, "its DLedger entry is not numbered after the one before it", follows, numbers)


def _numbers_at(table: MessageTable, at: Ints, width: int) -> Ints:
    raw: Any = np.frombuffer(table.buffer, np.uint8)
    columns = raw[at[:, None] + np.arange(width)]
    return np.ascontiguousarray(columns).view(f">i{width}")[:, 0].astype(np.int64)
