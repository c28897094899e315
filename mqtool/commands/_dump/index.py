"""``dump index`` and ``dump indexheader``: what finds messages by key."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from mqtool.commands._dump.request import DumpRequest, between, fields_of, records, single_segment
from mqtool.commands._output import Row
from mqtool.engine.store.index_file import IndexFile, Shape, infer_shape
from mqtool.errors import BadDataError, NotFoundError
from mqtool.formats import index_file as layout

_AT_ONCE = 1 << 18


def entries(ask: DumpRequest) -> Iterator[Row]:
    """Yield the entries of the index files, oldest first."""
    unreadable = []
    for file in _files(ask):
        name = ask.place(file.path)
        if file.shape is None:
            if file.header.entry_count > 1 or file.size != layout.HEADER_SIZE:
                unreadable.append(name)
            continue
        if file.size < file.entries_at + layout.ENTRY_SIZE:
            ask.damage(f"{name} has {file.size:,} bytes: it ends before its entries")
            continue
        array = file.entries()
        _remark_rest(ask, file)
        for first in range(0, len(array), _AT_ONCE):
            part = array[first : first + _AT_ONCE]
            mask = ask.in_range(part["physical_offset"]) & _in_time(ask, file, part["seconds_since_begin"], first)
            if first == 0:
                mask[:1] = False  # entry 0 is never used
            for number, entry in records(part, mask):
                ask.reached = f"entry {first + number:,} of {name}"
                slot = entry["key_hash"] % file.shape.slots
                yield {"file": name, "entry": first + number, "slot": slot, **entry}
    if unreadable:
        raise BadDataError(
            f"{', '.join(unreadable)}: the number of slots cannot be determined from the files; give --set "
            "maxHashSlotNum=N and --set maxIndexNum=N with the broker's values"
        )


def headers(ask: DumpRequest) -> Iterator[Row]:
    """Yield the header of each index file, oldest first."""
    for file in _files(ask):
        if file.size < layout.HEADER_SIZE:
            ask.damage(f"{ask.place(file.path)} has {file.size} bytes, less than a header")
        yield {"file": ask.place(file.path), **fields_of(file.header, layout.HEADER)}


def _files(ask: DumpRequest) -> list[IndexFile]:
    single = ask.store.paths.single
    if single:
        file = IndexFile(single, single_segment(single).size)
        slots, entry_count = ask.store.config.size("maxHashSlotNum"), ask.store.config.size("maxIndexNum")
        file.shape = Shape(slots, entry_count) if slots and entry_count else infer_shape([file])
        return [file]
    files = ask.store.hold_index()
    if not files and not ask.store.paths.index.is_dir():
        raise NotFoundError(f"{ask.store.root} has no index")
    return files


def _in_time(ask: DumpRequest, file: IndexFile, seconds: npt.NDArray[np.int32], first: int) -> npt.NDArray[np.bool_]:
    """Return which entries may be of messages in the span that is asked for: they know the second only."""
    if ask.since is None and ask.until is None:
        return np.ones(len(seconds), np.bool_)
    stored = file.header.begin_timestamp + seconds.astype(np.int64) * 1000
    if first == 0:
        stored[1:2] = file.header.begin_timestamp  # a broker counts the first entry's seconds from the file before
    since = None if ask.since is None else ask.since - 999
    return between(stored, since, ask.until)


def _remark_rest(ask: DumpRequest, file: IndexFile) -> None:
    """Say what the header and the file do not agree on."""
    name, count = ask.place(file.path), file.header.entry_count
    behind = file.entries_at + max(1, count) * layout.ENTRY_SIZE
    if count > file.entry_stop:
        ask.damage(f"{name} has no room for the {count - 1:,} entries that its header counts")
    elif not ask.store.is_live and any(file.read(behind, layout.ENTRY_SIZE)):
        ask.damage(
            f"{name} has more than the {max(0, count - 1):,} entries that its header counts: the rest is left out"
        )
