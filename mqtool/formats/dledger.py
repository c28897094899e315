"""DLedger log: each record inside an entry of the Raft log, which has a head of 48 bytes.

The physical offset of a message is that of the record, after its entry's head.
"""

from construct import Int32sb, Int64sb, Struct

from mqtool.formats.layout import dtype_of

ENTRY_HEAD = Struct(
    "magic_code" / Int32sb,  # MAGIC
    "size" / Int32sb,  # the whole entry
    "index" / Int64sb,
    "term" / Int64sb,
    "position" / Int64sb,  # of this entry in the log
    "channel" / Int32sb,
    "chain_crc" / Int32sb,
    "body_crc" / Int32sb,
    "body_size" / Int32sb,
)
ENTRY_HEAD_SIZE = ENTRY_HEAD.sizeof()
ENTRY_HEAD_DTYPE = dtype_of(ENTRY_HEAD)
MAGIC = 1
MAGIC_BLANK = -1  # fills the rest of a file

INDEX_UNIT = Struct(
    "magic_code" / Int32sb,
    "position" / Int64sb,
    "size" / Int32sb,
    "index" / Int64sb,
    "term" / Int64sb,
)
INDEX_UNIT_SIZE = INDEX_UNIT.sizeof()
INDEX_UNIT_DTYPE = dtype_of(INDEX_UNIT)
