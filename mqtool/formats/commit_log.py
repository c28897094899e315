"""Commit log: message records one after another, each segment ended by a blank record.

A segment is named by the address of its first byte. A record whose successor does not fit is followed by
a blank record, whose size is all that is left of the segment; only its first eight bytes are defined.
Hosts take 4 or 16 address bytes, selected by two bits of ``sys_flag``: the head has four forms, made here from one
list of fields. (RocketMQ: ``MessageExtEncoder``, ``MessageDecoder``.)
"""

from typing import Any

from construct import (
    Bytes,
    Construct,
    FocusedSeq,
    GreedyRange,
    IfThenElse,
    Int8sb,
    Int16sb,
    Int32sb,
    Int64sb,
    Struct,
    Terminated,
    this,
)

from mqtool.formats.layout import dtype_of, offset_of, parse

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


def _head(born_address: Construct, store_address: Construct) -> Struct:
    return Struct(
        "size" / Int32sb,  # the whole record
        "magic_code" / Int32sb,
        "body_crc" / Int32sb,  # CRC-32 of the stored body without its top bit
        "queue_id" / Int32sb,
        "flag" / Int32sb,  # the application's own
        "queue_offset" / Int64sb,  # 0 for prepared and rolled back transactions
        "physical_offset" / Int64sb,
        "sys_flag" / Int32sb,
        "born_timestamp" / Int64sb,
        "born_address" / born_address,
        "born_port" / Int32sb,
        "store_timestamp" / Int64sb,
        "store_address" / store_address,
        "store_port" / Int32sb,
        "reconsume_times" / Int32sb,
        "prepared_transaction_offset" / Int64sb,
        "body_size" / Int32sb,
    )


def _address_size(bit: int) -> Any:
    return lambda context: 16 if context.sys_flag & bit else 4


HEADS = tuple(_head(Bytes(born), Bytes(store)) for store in (4, 16) for born in (4, 16))
"""The four heads, at ``head_form(sys_flag)``."""
HEAD_DTYPES = tuple(dtype_of(head) for head in HEADS)


def offset_in_head(name: str) -> int:
    """Return where a field stands in a record that has one place in all forms of the head."""
    return offset_of(HEAD_DTYPES[0], name)


MESSAGE = Struct(
    *_head(Bytes(_address_size(BORN_HOST_V6)), Bytes(_address_size(STORE_HOST_V6))).subcons,
    "body" / Bytes(this.body_size),
    "topic_size" / IfThenElse(this.magic_code == MAGIC_V2, Int16sb, Int8sb),
    "topic" / Bytes(this.topic_size),
    "properties_size" / Int16sb,
    "properties" / Bytes(this.properties_size),
)

BLANK = Struct(
    "size" / Int32sb,  # up to the end of the segment
    "magic_code" / Int32sb,
)
BLANK_SIZE: int = BLANK.sizeof()
BLANK_DTYPE = dtype_of(BLANK)

MIN_SIZE: int = HEADS[0].sizeof() + Int8sb.sizeof() + Int16sb.sizeof()

CLIENT_BATCH_ELEMENT = Struct(
    "size" / Int32sb,
    "magic_code" / Int32sb,  # 0
    "body_crc" / Int32sb,  # 0
    "flag" / Int32sb,
    "body_size" / Int32sb,
    "body" / Bytes(this.body_size),
    "properties_size" / Int16sb,
    "properties" / Bytes(this.properties_size),
)
"""One message in the body of a batch as a client sends it, and as an inner batch keeps it (5.x)."""

CLIENT_BATCH = FocusedSeq("elements", "elements" / GreedyRange(CLIENT_BATCH_ELEMENT), Terminated)
"""That body."""


def head_form(sys_flag: int) -> int:
    """Return which of ``HEADS`` a record with this ``sys_flag`` has."""
    return sys_flag >> 4 & 3


def parse_message(record: bytes | memoryview) -> Any:
    """Parse one whole record.

    Raises:
        FormatError: the bytes are not a message record.
    """
    return parse(MESSAGE, record, "a message record")


def parse_client_batch(body: bytes) -> list[Any]:
    """Return the messages of a batch body (``CLIENT_BATCH_ELEMENT`` each).

    Raises:
        FormatError: the bytes are not a batch.
    """
    return list(parse(CLIENT_BATCH, body, "the body of a batch"))
