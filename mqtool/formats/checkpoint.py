"""Checkpoint: the timestamps and offsets a broker notes while it runs, in one page of 4096 bytes.

Fields that a version does not know stay zero. (RocketMQ: ``StoreCheckpoint``.)
"""

from construct import Bytes, Int64sb, Struct

from mqtool.formats.layout import dtype_of

CHECKPOINT = Struct(
    "physical_timestamp" / Int64sb,  # store time of the last flushed message
    "logics_timestamp" / Int64sb,  # the same of the consume queues
    "index_timestamp" / Int64sb,  # end of the last full index file
    "master_flushed_offset" / Int64sb,  # 5.0
    "confirm_physical_offset" / Int64sb,  # 5.1.1
    "logics_physical_offset" / Int64sb,  # 5.5: last message whose queue units are on disk
    "rest" / Bytes(4096 - 6 * 8),
)
CHECKPOINT_SIZE = CHECKPOINT.sizeof()
CHECKPOINT_DTYPE = dtype_of(CHECKPOINT)
