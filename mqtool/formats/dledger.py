"""DLedger log: each record inside an entry of the Raft log, which has a head of 48 bytes.

The physical offset of a message is that of the record, after its entry's head.
"""

from mqtool.formats.layout import I32, I64, Layout

ENTRY_HEAD = Layout(
    magic_code=I32,  # MAGIC
    size=I32,  # the whole entry
    index=I64,
    term=I64,
    position=I64,  # of this entry in the log
    channel=I32,
    chain_crc=I32,
    body_crc=I32,
    body_size=I32,
)
ENTRY_HEAD_SIZE = ENTRY_HEAD.size
MAGIC = 1
MAGIC_BLANK = -1  # fills the rest of a file

INDEX_UNIT = Layout(
    magic_code=I32,
    position=I64,
    size=I32,
    index=I64,
    term=I64,
)
INDEX_UNIT_SIZE = INDEX_UNIT.size
