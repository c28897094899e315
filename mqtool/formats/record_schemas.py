"""Schemas of records whose size the record itself tells: messages, batches of them, units of the queue extension.

Whatever walks a store scans (``scan``), and a broker reads with ``struct`` (``record_head``, ``stored_message``). These
show single records, build them for tests and say what the faster readers have to find.
"""

from typing import Any

from construct import (
    Bytes,
    FocusedSeq,
    GreedyRange,
    IfThenElse,
    Int8sb,
    Int16sb,
    Int32sb,
    Struct,
    Terminated,
    this,
)

from mqtool.formats import commit_log, consume_queue_ext
from mqtool.formats.layout import parse


def _address(bit: int) -> Bytes:
    return Bytes(lambda context: 16 if context.sys_flag & bit else 4)


_ADDRESSES = {
    "born_address": _address(commit_log.BORN_HOST_V6),
    "store_address": _address(commit_log.STORE_HOST_V6),
}

MESSAGE = Struct(
    *(
        field.name / _ADDRESSES.get(field.name, field.subcon)  # the head in whichever form
        for field in commit_log.HEADS[0].schema.subcons
    ),
    "body" / Bytes(this.body_size),
    "topic_size" / IfThenElse(this.magic_code == commit_log.MAGIC_V2, Int16sb, Int8sb),
    "topic" / Bytes(this.topic_size),
    "properties_size" / Int16sb,
    "properties" / Bytes(this.properties_size),
)

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

EXT_UNIT = Struct(
    *consume_queue_ext.HEAD.schema.subcons,
    "bit_map" / Bytes(this.bit_map_size),  # Bloom filter of the groups whose SQL expression matches
)


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
