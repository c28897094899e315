"""A stand-in for a running broker: writes a golden store again, piece by piece, while others read it.

``python -m tests.engine.repair.broker_at_work SOURCE TARGET`` takes the lock of ``TARGET``, prints a line, and appends
each record of ``SOURCE`` in two halves, then its units and its index entries, their parts in the order in which a
broker writes them. It prints another line when everything is there, and keeps the lock until its standard input ends.
"""

import collections
import fcntl
import os
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from mqtool.engine.store.commit_log import Gap
from mqtool.engine.store.index_file import IndexFile
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import commit_log, consume_queue, index_file, kernels

PAUSE = 0.0002


class CopyingBroker:
    """Writes what ``source`` holds to ``target``."""

    def __init__(self, source: Path, target: Path) -> None:
        self.source = StoreReader(source)
        self.target = target
        self.units: dict[int, list[tuple[Path, int, bytes, int]]] = collections.defaultdict(list)
        for queue in self.source.consume_queues.values():
            for offset in range(queue.first_offset, queue.max_offset()):
                unit = queue.units(offset, offset + 1)
                folder = queue.folders[0].relative_to(source)
                place = (folder, offset * consume_queue.UNIT_SIZE, unit.tobytes(), queue.file_size)
                self.units[int(unit["physical_offset"][0])].append(place)
        self.entries: dict[int, list[tuple[IndexFile, int]]] = collections.defaultdict(list)
        for file in self.source.index_files:
            for number in range(1, file.entry_stop):
                self.entries[int(file.entries()["physical_offset"][number])].append((file, number))

    def work(self) -> None:
        """Write everything."""
        before: tuple[MappedFile, int] | None = None
        for segment, start, record in self._records():
            path = self.target / segment.path.relative_to(self.source.root)
            if before and before[0] is not segment:
                blank = commit_log.BLANK.schema.build(
                    {"size": before[0].size - before[1], "magic_code": commit_log.MAGIC_BLANK}
                )
                self._put(self.target / before[0].path.relative_to(self.source.root), 0, before[1], blank)
            self._put(path, segment.size, start, record[: len(record) // 2])
            self._put(path, segment.size, start + len(record) // 2, record[len(record) // 2 :])
            before = segment, start + len(record)
            self._dispatch(segment.start_offset + start)

    def _records(self) -> Iterator[tuple[MappedFile, int, bytes]]:
        for segment in self.source.commit_log.segments:
            for table in self.source.commit_log.walk(segment, 0, segment.size, kernels):
                if not isinstance(table, Gap):
                    for row, start in enumerate(table.starts.tolist()):
                        yield segment, start, table.record(row)

    def _dispatch(self, physical_offset: int) -> None:
        for folder, at, unit, size in self.units[physical_offset]:
            path = self.target / folder / f"{at // size * size:020}"
            self._put(path, size, at % size, unit[:8])
            self._put(path, size, at % size + 8, unit[8:])
        timestamp = self.source.message_at(physical_offset).store_timestamp
        for file, number in self.entries[physical_offset]:
            self._put_key(file, number, physical_offset, timestamp)

    def _put_key(self, file: IndexFile, number: int, physical_offset: int, timestamp: int) -> None:
        path = self.target / "index" / file.path.name
        assert file.shape
        entry = file.entries()[number]
        slot_at = index_file.HEADER_SIZE + index_file.SLOT_SIZE * (int(entry["key_hash"]) % file.shape.slots)
        self._put(path, file.size, file.entries_at + number * index_file.ENTRY_SIZE, entry.tobytes())
        data = path.read_bytes()
        old, header = struct.unpack_from(">i", data, slot_at)[0], struct.unpack_from(">qqqqii", data)
        self._put(path, file.size, slot_at, struct.pack(">i", number))
        if number == 1:
            self._put(path, file.size, 16, struct.pack(">q", physical_offset))
            self._put(path, file.size, 0, struct.pack(">q", timestamp))
        if old == 0:
            self._put(path, file.size, 32, struct.pack(">i", header[4] + 1))
        self._put(path, file.size, 36, struct.pack(">i", number + 1))
        self._put(path, file.size, 24, struct.pack(">q", physical_offset))
        self._put(path, file.size, 8, struct.pack(">q", timestamp))

    def _put(self, path: Path, size: int, at: int, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        if size and os.fstat(descriptor).st_size < size:
            os.ftruncate(descriptor, size)
        os.pwrite(descriptor, data, at)
        os.close(descriptor)
        time.sleep(PAUSE)


def main() -> None:
    """Work while holding the lock."""
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    broker = CopyingBroker(source, target)
    with (target / "lock").open("r+b") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        print("locked", flush=True)  # noqa: T201
        broker.work()
        print("done", flush=True)  # noqa: T201
        sys.stdin.read()


if __name__ == "__main__":
    main()
