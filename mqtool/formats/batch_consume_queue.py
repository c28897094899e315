"""Batch consume queue (5.x): one 46-byte unit per record, which may hold several messages.

The number of a unit is not a queue offset: offsets are found by ``queue_offset``. Topics with the attribute
``queue.type=BatchCQ`` and compacted topics have such queues.
"""

from construct import Int16sb, Int32sb, Int64sb, Struct

from mqtool.formats.layout import dtype_of

UNIT = Struct(
    "physical_offset" / Int64sb,
    "size" / Int32sb,
    "tags_code" / Int64sb,
    "store_timestamp" / Int64sb,
    "queue_offset" / Int64sb,  # of the first message in the record
    "batch_size" / Int16sb,  # how many messages the record holds
    "compacted_offset" / Int32sb,  # -1
    "reserved" / Int32sb,  # 0
)
UNIT_SIZE: int = UNIT.sizeof()
UNIT_DTYPE = dtype_of(UNIT)
MAX_BATCH_SIZE = 32767
"""Most messages of a record: its unit cannot state more."""
