"""The extension of a queue in a starting broker (spec 4.8): each dispatched message gets a unit in it.

Even a message that the queue already has, so an abnormal recovery leaves units to which nothing points.

Cost: linear in the units that the broker would read or write.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from mqtool.engine.repair.java_recovery.files import DraftSegment, Scratch, StartRefusedError, cut_segments
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.formats import consume_queue_ext as layout
from mqtool.formats.scan import Ints

_SIZE_BYTES = 2
_END = layout.END.to_bytes(_SIZE_BYTES, "big", signed=True)


class BrokerExt:
    """The extension of one queue; its units have no filter bits, which a store alone cannot provide."""

    def __init__(self, folder: Path, file_size: int, scratch: Scratch) -> None:
        self.segments: list[DraftSegment] = []
        self.removed: list[DraftSegment] = []
        self.file_size = file_size
        self._folder = folder
        self._scratch = scratch

    def load(self, files: list[MappedFile]) -> None:
        """Load the existing files."""
        self.segments = [DraftSegment(file.path, file.start_offset, file.size, file, self._scratch) for file in files]

    def recover(self, last_address: int | None) -> None:
        """Find the end, then drop what follows the unit at the last address in the queue.

        Raises:
            StartRefusedError: the sizes of units lead out of a file.
        """
        for number, segment in enumerate(self.segments):
            end = self._end_of(segment)
            if number == len(self.segments) - 1:
                self.removed += cut_segments(self.segments, segment.start_offset + end, self.file_size)
        if last_address is not None:
            self._cut_behind(layout.position_of(last_address))

    def drop_before(self, address: int) -> None:
        """Drop the files that end before the unit at an address."""
        position = layout.position_of(address)
        gone = [segment for segment in self.segments if segment.start_offset + self.file_size < position]
        self.removed += gone
        self.segments = [segment for segment in self.segments if segment not in gone]

    def clear(self) -> None:
        """Drop everything."""
        self.removed += self.segments
        self.segments = []

    def put(self, tags_codes: Ints, times: Ints) -> Ints:
        """Add units and return their addresses, which the queue keeps instead of the tags codes."""
        units = np.zeros(len(tags_codes), layout.HEAD.dtype)
        units["size"], units["tags_code"], units["store_timestamp"] = layout.MIN_SIZE, tags_codes, times
        codes = tags_codes.copy()
        done = 0
        while done < len(units):
            segment = self._last()
            room = (self.file_size - segment.used - layout.END_SIZE) // layout.MIN_SIZE
            if room <= 0:
                if segment.used + _SIZE_BYTES > self.file_size:
                    break  # its code fails here, and the queue keeps plain tags codes
                segment.write(segment.used, _END)
                segment.used = self.file_size
                continue
            part = units[done : done + room]
            codes[done : done + room] = (
                layout.address_of(segment.used_offset) + np.arange(len(part), dtype=np.int64) * layout.MIN_SIZE
            )
            segment.write(segment.used, part.tobytes())
            segment.used += len(part) * layout.MIN_SIZE
            done += len(part)
        return codes

    def _last(self) -> DraftSegment:
        if not self.segments or self.segments[-1].used == self.file_size:
            start = self.segments[-1].start_offset + self.file_size if self.segments else 0
            self.segments.append(DraftSegment.new(self._folder, start, self.file_size, self._scratch))
        return self.segments[-1]

    def _end_of(self, segment: DraftSegment) -> int:
        """Return where the sizes of units lead."""
        data = np.frombuffer(segment.read(0, segment.size), np.uint8)
        at = 0
        while at + _SIZE_BYTES <= len(data):
            size = _size_at(data, at)
            if size <= 0:
                return at
            if at + size > len(data):
                break
            # Most units are as long as the one before.
            alike = data[at : at + (len(data) - at) // size * size].reshape(-1, size)[:, :_SIZE_BYTES]
            same = (alike == alike[0]).all(axis=1)
            at += size * (len(same) if same.all() else int(np.argmin(same)))
        raise StartRefusedError(f"the unit sizes in {segment.path.name} of {self._folder} lead beyond the file", True)

    def _cut_behind(self, position: int) -> None:
        for segment in self.segments:
            if segment.start_offset <= position < segment.used_offset:
                size = _size_at(np.frombuffer(segment.read(position - segment.start_offset, _SIZE_BYTES), np.uint8), 0)
                if size > 0:
                    self.removed += cut_segments(self.segments, position + size, self.file_size)
                return


def _size_at(data: npt.NDArray[np.uint8], at: int) -> int:
    return int.from_bytes(data[at : at + _SIZE_BYTES].tobytes(), "big", signed=True)
