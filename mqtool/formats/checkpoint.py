"""Checkpoint: the timestamps and offsets a broker notes while it runs, in one page of 4096 bytes.

Fields that a version does not know stay zero. (RocketMQ: ``StoreCheckpoint``.)
"""

from mqtool.formats.layout import I64, Layout, raw

CHECKPOINT = Layout(
    physical_timestamp=I64,  # store time of the last flushed message
    logics_timestamp=I64,  # the same of the consume queues
    index_timestamp=I64,  # end of the last full index file
    master_flushed_offset=I64,  # 5.0
    confirm_physical_offset=I64,  # 5.1.1
    logics_physical_offset=I64,  # 5.5: last message whose queue units are on disk
    rest=raw(4096 - 6 * 8),
)
CHECKPOINT_SIZE = CHECKPOINT.size
