"""Batch consume queue (5.x): one 46-byte unit per record, which may hold several messages.

The number of a unit is not a queue offset: offsets are found by ``queue_offset``. Topics with the attribute
``queue.type=BatchCQ`` and compacted topics have such queues.
"""

from mqtool.formats.layout import I16, I32, I64, Layout

UNIT = Layout(
    physical_offset=I64,
    size=I32,
    tags_code=I64,
    store_timestamp=I64,
    queue_offset=I64,  # of the first message in the record
    batch_size=I16,  # how many messages the record holds
    compacted_offset=I32,  # -1
    reserved=I32,  # 0
)
UNIT_SIZE: int = UNIT.size
MAX_BATCH_SIZE = 32767
"""Most messages of a record: its unit cannot state more."""
