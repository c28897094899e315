"""Index file: finds messages by key, a hash table of fixed size on disk.

Header, then slots, then entries. A slot holds the number of its newest entry, each entry the number of the
next older one of its slot. Entry 0 is never used. (RocketMQ: ``IndexHeader``, ``IndexFile``.)
"""

from mqtool.formats.layout import I32, I64, Layout

HEADER = Layout(
    begin_timestamp=I64,  # store time of the first entry
    end_timestamp=I64,  # store time of the last entry
    begin_physical_offset=I64,
    end_physical_offset=I64,
    slot_count=I32,  # how many slots are in use
    entry_count=I32,  # number of the next entry; starts at 1
)
HEADER_SIZE = HEADER.size

SLOT = Layout(entry=I32)  # the newest entry of the slot, 0 for none
SLOT_SIZE = SLOT.size

ENTRY = Layout(
    key_hash=I32,
    physical_offset=I64,
    seconds_since_begin=I32,
    previous_entry=I32,  # the next older entry of the slot, 0 for none
)
ENTRY_SIZE = ENTRY.size

DEFAULT_SLOT_COUNT = 5_000_000
DEFAULT_ENTRY_COUNT = 20_000_000


def file_size(slots: int, entries: int) -> int:
    """Return the bytes of a file with room for ``entries`` (``maxIndexNum``), the unused entry 0 included."""
    return int(HEADER_SIZE + SLOT_SIZE * slots + ENTRY_SIZE * entries)
