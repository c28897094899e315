"""The small and the rare files: checkpoint, abort, lock, timer, DLedger."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mqtool.commands._dump.request import DumpRequest, fields_of, page, records, single_segment
from mqtool.commands._output import Row
from mqtool.engine.store.file_queue import FileQueue
from mqtool.engine.store.locks import is_locked
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.mapping import read_file
from mqtool.errors import BadDataError, NotFoundError
from mqtool.formats import checkpoint, commit_log, dledger, scan, timer
from mqtool.formats import kernels as plain
from mqtool.formats.layout import Layout


def checkpoint_page(ask: DumpRequest) -> Iterator[Row]:
    """Yield the checkpoint."""
    yield from _page(ask, ask.store.paths.checkpoint, checkpoint.CHECKPOINT)


def timer_check_page(ask: DumpRequest) -> Iterator[Row]:
    """Yield how far the timer has come."""
    yield from _page(ask, ask.store.paths.timer_check, timer.TIMER_CHECK)


def _page(ask: DumpRequest, usual: Path, layout: Layout) -> Iterator[Row]:
    path = ask.path(usual)
    data = read_file(path)
    size, head = layout.size, layout.offset_of("rest")
    if len(data) < head:
        raise BadDataError(f"{path} has {len(data):,} bytes instead of {size:,}")
    if len(data) != size:
        ask.damage(f"{ask.place(path)} has {len(data):,} bytes instead of {size:,}")
    yield from page(ask, fields_of(layout.schema.parse(data[:size].ljust(size, b"\0")), layout))


def abort(ask: DumpRequest) -> Iterator[Row]:
    """Yield whether a broker runs or did not stop cleanly; 5.x notes its process id."""
    path = ask.store.paths.single or ask.store.paths.abort
    text = read_file(path, 4096).decode("utf-8", "replace").strip() if path.exists() else ""
    yield from page(
        ask, {"file": ask.place(path), "present": path.exists(), "process_id": int(text) if text.isdecimal() else None}
    )


def lock(ask: DumpRequest) -> Iterator[Row]:
    """Yield whether a broker holds the lock of the store."""
    path = ask.path(ask.store.paths.lock)
    text = read_file(path, 4096).decode("utf-8", "replace")
    yield from page(ask, {"file": ask.place(path), "locked": is_locked(path), "content": text})


def timer_wheel(ask: DumpRequest) -> Iterator[Row]:
    """Yield the slots of the timer wheel that were ever used."""
    path = ask.path(ask.store.paths.timer_wheel)
    file = single_segment(path)
    count = file.size // timer.SLOT_SIZE
    if file.size % timer.SLOT_SIZE:
        ask.damage(f"{ask.place(path)} ends with {file.size % timer.SLOT_SIZE} bytes that are not a whole slot")
    slots = file.bytes[: count * timer.SLOT_SIZE].view(timer.SLOT.dtype)
    used = np.zeros(count, np.bool_)
    for name in timer.SLOT.names:
        used |= slots[name] != 0
    for number, slot in records(slots, used):
        yield {"slot": number, **slot}


def timer_log(ask: DumpRequest) -> Iterator[Row]:
    """Yield the units of the timer log."""
    single = ask.store.paths.single
    log = None if single else ask.store.timer_log
    if log is None and single is None:
        raise NotFoundError(f"{ask.store.root} has no timerlog")
    segments = log.hold().segments if log else [single_segment(single)] if single else []
    for segment in segments:
        for at, unit in _timer_units(ask, segment):
            position = segment.start_offset + at
            if ask.has(position):
                ask.reached = f"position {position:,}"
                yield {"position": position, **unit}


def _timer_units(ask: DumpRequest, segment: MappedFile) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield position and fields of the units of a file, up to the first that is none."""
    names = timer.LOG_UNIT.names
    data: Any = memoryview(segment.bytes)
    at = 0
    while at + timer.LOG_UNIT_SIZE <= len(data) and plain.int32(data, at) == timer.LOG_UNIT_SIZE:
        unit = np.frombuffer(data[at : at + timer.LOG_UNIT_SIZE], timer.LOG_UNIT.dtype)
        yield at, dict(zip(names, unit[0].tolist(), strict=True))
        at += timer.LOG_UNIT_SIZE
    if at + timer.LOG_END_SIZE <= len(data):
        end = timer.LOG_END.schema.parse(bytes(data[at : at + timer.LOG_END_SIZE]))
        if end.magic_code == commit_log.MAGIC_BLANK:
            return
    if segment.bytes[at:].any():
        ask.damage(f"{len(data) - at:,} bytes at {ask.place(segment.path, at)} are skipped: no unit starts there")


def dledger_entries(ask: DumpRequest) -> Iterator[Row]:
    """Yield the heads of the entries of a DLedger log."""
    names = dledger.ENTRY_HEAD.names
    for segment in _dledger(ask, "data"):
        data: Any = memoryview(segment.bytes)
        at = 0
        while at + dledger.ENTRY_HEAD_SIZE <= len(data):
            head = np.frombuffer(data[at : at + dledger.ENTRY_HEAD_SIZE], dledger.ENTRY_HEAD.dtype)
            entry = dict(zip(names, head[0].tolist(), strict=True))
            size = entry["size"]
            if entry["magic_code"] == dledger.MAGIC_BLANK:
                break
            if entry["magic_code"] != dledger.MAGIC or not dledger.ENTRY_HEAD_SIZE <= size <= len(data) - at:
                again = scan.resync(data, segment.start_offset, at + 1, None, scan.DLEDGER)
                end = len(data) if again is None else again
                if segment.bytes[at:end].any():
                    ask.damage(
                        f"{end - at:,} bytes at {ask.place(segment.path, at)} are skipped: no entry starts there"
                    )
                at = end
                continue
            if ask.has(segment.start_offset + at):
                ask.reached = f"position {segment.start_offset + at:,}"
                yield entry
            at += size


def dledger_index(ask: DumpRequest) -> Iterator[Row]:
    """Yield the units of the index of a DLedger log."""
    for segment in _dledger(ask, "index"):
        count = segment.size // dledger.INDEX_UNIT_SIZE
        array = segment.bytes[: count * dledger.INDEX_UNIT_SIZE].view(dledger.INDEX_UNIT.dtype)
        for _, unit in records(array, (array["magic_code"] == dledger.MAGIC) & ask.in_range(array["position"])):
            yield unit


def _dledger(ask: DumpRequest, folder: str) -> list[MappedFile]:
    if ask.store.paths.single:
        return [single_segment(ask.store.paths.single)]
    if ask.store.paths.dledger is None:
        raise NotFoundError(f"{ask.store.root} has no DLedger log")
    return FileQueue([ask.store.paths.dledger / folder]).segments
