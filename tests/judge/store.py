"""One store as the judge sees it: its messages, and the queue offsets that there were."""

import collections
import itertools
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.judge.index import JudgedIndex, read_index
from tests.judge.log import JudgedRecord, JudgedSegment, record_at
from tests.judge.queues import JudgedUnit, Queue, read_batch_queues, read_queues

Key = tuple[str, int, int]
"""Topic, queue and queue offset."""

_DEFAULTS = {"mappedFileSizeCommitLog": 1 << 30, "maxHashSlotNum": 5_000_000, "maxIndexNum": 20_000_000}


class JudgedStore:
    """A store on the disk; what is asked for is read then, once.

    ``config`` is that of a golden store's manifest. Files in the log's folders whose names are no numbers are read too:
    a segment that somebody renamed still has its messages.
    """

    def __init__(self, root: Path, config: Mapping[str, Any]) -> None:
        self.root = root
        self.folders = [root / name for name in config.get("commitLogPaths", ["commitlog"])]
        sizes = {name: int(config.get(name, value)) for name, value in _DEFAULTS.items()}
        self.segment_size = sizes["mappedFileSizeCommitLog"]
        self._slots, self._entries = sizes["maxHashSlotNum"], sizes["maxIndexNum"]

    @cached_property
    def segments(self) -> list[JudgedSegment]:
        """Every file of the log, in the order of addresses; files without one come last."""
        paths = [path for folder in self.folders if folder.is_dir() for path in folder.iterdir() if path.is_file()]
        found = [self._segment(path) for path in paths]
        return sorted(found, key=lambda one: (one.start is None, one.start or 0, one.path))

    def _segment(self, path: Path) -> JudgedSegment:
        is_named = path.name.isdecimal() and len(path.name) == 20
        start = int(path.name) if is_named else None
        return JudgedSegment(str(path.relative_to(self.root)), start, path.read_bytes(), self.segment_size)

    def bytes_at(self, address: int, size: int) -> bytes:
        """Return the bytes of the log at an address, fewer at the end of a file."""
        for segment in self.segments:
            if segment.start is not None and segment.covers(address):
                return segment.data[address - segment.start :][:size]
        return b""

    @cached_property
    def queues(self) -> dict[Queue, dict[int, JudgedUnit]]:
        return read_queues(self.root / "consumequeue")

    @cached_property
    def batch_queues(self) -> dict[Queue, list[JudgedUnit]]:
        return read_batch_queues(self.root / "batchconsumequeue")

    @cached_property
    def index(self) -> list[JudgedIndex]:
        return read_index(self.root / "index", self._slots, self._entries)

    @cached_property
    def records(self) -> dict[int, JudgedRecord]:
        """Every sound record that lies where it says, by address."""
        return {one.position: one for segment in self.segments for one in segment.in_place}

    @cached_property
    def misplaced(self) -> list[JudgedRecord]:
        """Sound records that lie elsewhere, and of which none lies where they say: nothing, or another message."""
        found = itertools.chain.from_iterable(segment.records for segment in self.segments)
        there = {position: (record.keys, record.digest()) for position, record in self.records.items()}
        return [
            one
            for one in found
            if not one.in_place and one.stated >= 0 and there.get(one.stated) != (one.keys, one.digest())
        ]

    @cached_property
    def min_offset(self) -> int:
        """The first address of the log; what lies before it has gone by age."""
        return min((one.start for one in self.segments if one.start is not None), default=0)

    @cached_property
    def end_offset(self) -> int:
        """One past the last sound record."""
        return max((one.position + one.size for one in self.records.values()), default=self.min_offset)

    def messages(self, misplaced: bool = False) -> "dict[Key, set[bytes]]":
        """Return digests of the messages at each place of a queue; placeholders are none.

        There are several where two stores were mixed.

        Args:
            misplaced: count sound records, too, that do not lie where they say.
        """
        found: dict[Key, set[bytes]] = collections.defaultdict(set)
        for record in itertools.chain(self.records.values(), self.misplaced if misplaced else ()):
            if not record.is_placeholder:
                for key in record.keys:
                    found[key].add(record.digest())
        return dict(found)

    def unqueued(self) -> "collections.Counter[tuple[str, bytes]]":
        """Count topic and digest of records that lie in no queue: prepared and rolled back ones."""
        rows = (one for one in self.records.values() if not one.is_queued and not one.is_placeholder)
        return collections.Counter((one.topic, one.digest()) for one in rows)

    def placeholders(self) -> set[Key]:
        """Return the places of queues that have a placeholder."""
        return {key for one in self.records.values() if one.is_placeholder for key in one.keys}

    def inside_batches(self) -> set[Key]:
        """Return the places behind the first of each inner batch that its queue's unit leads to."""
        return {
            (*queue, offset)
            for queue, units in self.batch_queues.items()
            for unit in units
            if (record := self.leads_to(queue, unit)) is not None
            for offset in range(unit.queue_offset + 1, unit.queue_offset + record.batch_size)
        }

    def units(self) -> Iterator[tuple[Queue, JudgedUnit]]:
        """Yield the units of all queues."""
        for queue, units in self.queues.items():
            for unit in units.values():
                yield queue, unit
        for queue, batches in self.batch_queues.items():
            for unit in batches:
                yield queue, unit

    def leads_to(
        self, queue: Queue, unit: JudgedUnit, with_doubtful: bool = False, with_bad_body: bool = False
    ) -> JudgedRecord | None:
        """Return the record that a unit leads to, None where there is none of this place."""
        record = self.records.get(unit.physical_offset)
        if record is None and (with_doubtful or with_bad_body):
            record = self._doubtful_at(unit.physical_offset, with_bad_body)
        if record is None or record.size != unit.size or (*queue, unit.queue_offset) not in record.keys:
            return None
        return record

    def _doubtful_at(self, address: int, with_bad_body: bool) -> JudgedRecord | None:
        segment = next((one for one in self.segments if one.covers(address)), None)
        if segment is None or segment.start is None:
            return None
        return record_at(segment.data, address - segment.start, segment.start, True, with_bad_body)

    def reachable(self, with_doubtful: bool = False, with_bad_body: bool = False) -> set[Key]:
        """Return the places whose unit leads to their message, or to its placeholder.

        ``with_doubtful``: also to messages of which only the properties cannot be read, or match no CRC.
        ``with_bad_body``: also to those of which, besides, the body does not match its CRC.
        """
        return {
            (*queue, unit.queue_offset)
            for queue, unit in self.units()
            if self.leads_to(queue, unit, with_doubtful, with_bad_body) is not None
        }
