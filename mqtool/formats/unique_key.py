"""The unique key that a client gives a message: who made it and when, and a counter, in 32 hexadecimal digits.

    4 bytes  IPv4 address of the maker
    2 bytes  its process
    4 bytes  distinguish makers in one process
    4 bytes  ms since the month began
    2 bytes  counter

(RocketMQ: ``MessageClientIDSetter``, which takes the month of its own time zone.)
"""

import datetime
import functools
import struct

_MAKER = struct.Struct(">4sHI")
_DAY = 86_400_000


def build_unique_key(address: bytes, process: int, maker: int, now: int, count: int) -> str:
    """Return a unique key; ``now`` is in ms since 1970, of the other numbers the low bits count.

    >>> build_unique_key(bytes([127, 0, 0, 1]), 7, 0x18B4AAC2, 1_700_000_000_000, 3)
    '7F000001000718B4AAC247B760000003'
    """
    return maker_part(address, process, maker) + message_part(now, count)


def key_start(address: bytes, process: int, maker: int, now: int) -> bytes:
    """Return the first 28 digits, which all keys of a maker share that it makes at a time."""
    return f"{maker_part(address, process, maker)}{_time_part(now)}".encode()


@functools.lru_cache(256)
def maker_part(address: bytes, process: int, maker: int) -> str:
    """Return the first 20 digits, which all keys of a maker share."""
    return _MAKER.pack(address[:4], process & 0xFFFF, maker & 0xFFFFFFFF).hex().upper()


def message_part(now: int, count: int) -> str:
    """Return the other 12."""
    return f"{_time_part(now)}{count & 0xFFFF:04X}"


@functools.lru_cache(2)
def _time_part(now: int) -> str:
    return f"{now - _month(now // _DAY) & 0xFFFFFFFF:08X}"


@functools.lru_cache(2)
def _month(day: int) -> int:
    """Return when the month of a day since 1970 began."""
    moment = datetime.datetime.fromtimestamp(day * _DAY // 1000, datetime.UTC)
    return int(datetime.datetime(moment.year, moment.month, 1, tzinfo=datetime.UTC).timestamp()) * 1000
