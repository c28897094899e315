"""Commit log: message records one after another, each segment ended by a blank record.

A segment is named by the address of its first byte. A record whose successor does not fit is followed by
a blank record, whose size is all that is left of the segment; only its first eight bytes are defined.
Hosts take 4 or 16 address bytes, selected by two bits of ``sys_flag``: the head has four forms, made here from one
list of fields. (RocketMQ: ``MessageExtEncoder``, ``MessageDecoder``.)
"""

from mqtool.formats.layout import I32, I64, Layout, raw

MAGIC_V1 = -626843481
MAGIC_V2 = -626843477  # 5.1 on: two bytes for the length of the topic
MAGIC_BLANK = -875286124
MESSAGE_MAGICS = (MAGIC_V1, MAGIC_V2)

COMPRESSED = 0x1
MULTI_TAGS = 0x2
TRANSACTION_MASK = 0xC
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
NEED_UNWRAP = 0x40
INNER_BATCH = 0x80
COMPRESSION_MASK = 0x700


def _head(born_address: str, store_address: str) -> Layout:
    return Layout(
        size=I32,  # the whole record
        magic_code=I32,
        body_crc=I32,  # CRC-32 of the stored body without its top bit
        queue_id=I32,
        flag=I32,  # the application's own
        queue_offset=I64,  # 0 for prepared and rolled back transactions
        physical_offset=I64,
        sys_flag=I32,
        born_timestamp=I64,
        born_address=born_address,
        born_port=I32,
        store_timestamp=I64,
        store_address=store_address,
        store_port=I32,
        reconsume_times=I32,
        prepared_transaction_offset=I64,
        body_size=I32,
    )


HEADS = tuple(_head(raw(born), raw(store)) for store in (4, 16) for born in (4, 16))
"""The four heads, at ``head_form(sys_flag)``."""


def offset_in_head(name: str) -> int:
    """Return where a field stands in a record that has one place in all forms of the head."""
    return HEADS[0].offset_of(name)


BLANK = Layout(
    size=I32,  # up to the end of the segment
    magic_code=I32,
)
BLANK_SIZE = BLANK.size

MIN_SIZE = HEADS[0].size + 1 + 2  # the lengths of topic and properties


def head_form(sys_flag: int) -> int:
    """Return which of ``HEADS`` a record with this ``sys_flag`` has."""
    return sys_flag >> 4 & 3
