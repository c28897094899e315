"""Index file: finds messages by key, a hash table of fixed size on disk.

Header, then slots, then entries. A slot holds the number of its newest entry, each entry the number of the
next older one of its slot. Entry 0 is never used. (RocketMQ: ``IndexHeader``, ``IndexFile``.)
"""

from construct import Int32sb, Int64sb, Struct

from mqtool.formats.layout import dtype_of

HEADER = Struct(
    "begin_timestamp" / Int64sb,  # store time of the first entry
    "end_timestamp" / Int64sb,  # store time of the last entry
    "begin_physical_offset" / Int64sb,
    "end_physical_offset" / Int64sb,
    "slot_count" / Int32sb,  # how many slots are in use
    "entry_count" / Int32sb,  # number of the next entry; starts at 1
)
HEADER_SIZE = HEADER.sizeof()
HEADER_DTYPE = dtype_of(HEADER)

SLOT = Struct("entry" / Int32sb)  # the newest entry of the slot, 0 for none
SLOT_SIZE = SLOT.sizeof()
SLOT_DTYPE = dtype_of(SLOT)

ENTRY = Struct(
    "key_hash" / Int32sb,
    "physical_offset" / Int64sb,
    "seconds_since_begin" / Int32sb,
    "previous_entry" / Int32sb,  # the next older entry of the slot, 0 for none
)
ENTRY_SIZE = ENTRY.sizeof()
ENTRY_DTYPE = dtype_of(ENTRY)

DEFAULT_SLOT_COUNT = 5_000_000
DEFAULT_ENTRY_COUNT = 20_000_000


def file_size(slots: int, entries: int) -> int:
    """Return the bytes of a file with room for ``entries`` (``maxIndexNum``), the unused entry 0 included."""
    return int(HEADER_SIZE + SLOT_SIZE * slots + ENTRY_SIZE * entries)
