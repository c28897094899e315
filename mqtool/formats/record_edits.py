"""Single fields of a message record rewritten; its CRC property, if it ends in one, is adjusted."""

import zlib

import numpy as np

from mqtool.formats import commit_log
from mqtool.formats.properties import CRC_SIZE, NAME_SEPARATOR, PAIR_SEPARATOR, crc_digits
from mqtool.formats.property_names import CRC32
from mqtool.formats.record_head import STORE_TIMESTAMP_AT
from mqtool.formats.record_head import sys_flag as sys_flag_of

_CRC_HEAD = f"{CRC32}{NAME_SEPARATOR}".encode()
_AT = {name: commit_log.offset_in_head(name) for name in ("queue_id", "queue_offset", "physical_offset", "sys_flag")}


def ends_in_crc(record: bytes | bytearray) -> bool:
    """Return whether a record, or its properties, end in a CRC property."""
    return bytes(record[-CRC_SIZE:]).startswith(_CRC_HEAD)


def with_crc(record: bytes | bytearray) -> bytes:
    """Return a record whose CRC property fits, if it ends in one."""
    if ends_in_crc(record):
        digits = crc_digits(zlib.crc32(record[:-CRC_SIZE]) & 0x7FFFFFFF)
        return bytes(record[: len(_CRC_HEAD) - CRC_SIZE]) + digits + bytes(record[-1:])
    return bytes(record)


def with_new_crc(record: bytes, properties_size: int) -> bytes:
    """Return a record whose properties end in a CRC property that fits, whatever their last bytes are."""
    separator = PAIR_SEPARATOR.encode()
    rest, tail = record[:-CRC_SIZE], record[len(_CRC_HEAD) - CRC_SIZE : -1]
    if properties_size > CRC_SIZE:
        rest = rest[:-1] + separator
    return with_crc(rest + _CRC_HEAD + tail + separator)


def with_address(record: bytes, position: int) -> bytes:
    """Return a record that claims to be at an address."""
    changed = bytearray(record)
    changed[_AT["physical_offset"] : _AT["physical_offset"] + 8] = position.to_bytes(8, "big")
    return with_crc(changed)


def with_queue_offset(record: bytes, queue_offset: int) -> bytes:
    """Return a record that has another queue offset."""
    return _with_number(record, _AT["queue_offset"], 8, queue_offset)


def with_place(record: bytes, topic_at: int, topic: bytes, queue_id: int, queue_offset: int, sys_flag: int) -> bytes:
    """Return a record with another place in queues.

    Args:
        record: the whole record.
        topic_at: position of its topic in it.
        topic: as long as the one it has.
        queue_id: its queue.
        queue_offset: its queue offset.
        sys_flag: its flags.
    """
    changed = bytearray(record)
    changed[topic_at : topic_at + len(topic)] = topic
    for name, size, value in (("queue_id", 4, queue_id), ("queue_offset", 8, queue_offset), ("sys_flag", 4, sys_flag)):
        changed[_AT[name] : _AT[name] + size] = value.to_bytes(size, "big", signed=True)
    return with_crc(changed)


def with_time(record: bytes, store_timestamp: int) -> bytes:
    """Return a record that was stored at another time (ms)."""
    at = STORE_TIMESTAMP_AT[commit_log.head_form(sys_flag_of(record))]
    return _with_number(record, at, 8, store_timestamp)


def with_flag(record: bytes, sys_flag: int) -> bytes:
    """Return a record with other system flags, except for those of its hosts."""
    return _with_number(record, _AT["sys_flag"], 4, sys_flag)


def _with_number(record: bytes, at: int, size: int, value: int) -> bytes:
    return with_crc(record[:at] + value.to_bytes(size, "big", signed=True) + record[at + size :])


def with_pair(properties: bytes, name: str, value: str) -> bytes | None:
    r"""Return properties with a pair in place of something similar, with the same length; None if there is nothing.

    >>> with_pair(b"TAGS\x01a\x02INNER_OUM\x013\x02", "INNER_NUM", "3")
    b'TAGS\x01a\x02INNER_NUM\x013\x02'
    """
    wanted = f"{PAIR_SEPARATOR}{name}{NAME_SEPARATOR}{value}{PAIR_SEPARATOR}".encode()
    padded = PAIR_SEPARATOR.encode() + properties + PAIR_SEPARATOR.encode()
    if len(padded) < len(wanted):
        return None
    places = np.lib.stride_tricks.sliding_window_view(np.frombuffer(padded, np.uint8), len(wanted))
    differing = (places != np.frombuffer(wanted, np.uint8)).sum(axis=1)
    at = int(differing.argmin())
    if int(differing[at]) > len(wanted) // 3:  # as another name of RocketMQ's
        return None
    return (padded[:at] + wanted + padded[at + len(wanted) :])[1:-1]


def with_properties(record: bytes, size: int, properties: bytes) -> bytes:
    """Return a record whose last ``size`` bytes, its properties, are as many others."""
    if len(properties) != size:
        raise ValueError(f"{len(properties)} bytes of properties, expected {size}")
    return with_crc(record[: len(record) - size] + properties)
