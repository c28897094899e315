"""``--follow``: what a broker appends, as soon as it is whole."""

import contextlib
import select
import sys
import time
from collections.abc import Iterator

import numpy as np

from mqtool.commands._dump.gaps import tell_gap
from mqtool.commands._dump.request import DumpRequest
from mqtool.engine.store.commit_log import CommitLog, Gap, is_whole
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import commit_log, scan
from mqtool.formats import kernels as plain
from mqtool.formats.record_head import read_start
from mqtool.formats.scan import MessageTable

_POLL = 0.05
_PATIENCE = 1.0
"""Seconds that a broker may take to write one record; from then on it may be damage."""


class FollowWait:
    """Waits for a broker, and notices when nobody reads any more."""

    def __init__(self, ask: DumpRequest) -> None:
        self.ask = ask
        self._hangup = select.poll()
        with contextlib.suppress(OSError, ValueError):  # where standard output is not a file: a test's
            self._hangup.register(sys.stdout.fileno(), select.POLLERR)

    def pause(self, took: float = 0.0) -> None:
        """Show all rows there are and wait a little; longer after a look that took long."""
        self.ask.remark_inferred()
        self.ask.output.flush()
        if any(events & select.POLLERR for _, events in self._hangup.poll(0)):
            raise BrokenPipeError
        time.sleep(max(_POLL, 5 * took))


def reopened(store: StoreReader) -> StoreReader:
    """Return the same store with the files that are there now."""
    return StoreReader(store.paths.single or store.root, store.config)


def follow_log(ask: DumpRequest, at: int) -> Iterator[MessageTable]:
    """Yield each message that is appended at an address and behind it; never returns."""
    waiting = FollowWait(ask)
    follower = _LogFollower(ask, at)
    while True:
        yield from follower.tables()
        waiting.pause()
        follower.log = reopened(ask.store).commit_log


class _LogFollower:
    """Reads a log record by record, without mapping what may yet change."""

    def __init__(self, ask: DumpRequest, at: int) -> None:
        self.ask = ask
        self.at = at
        self.log: CommitLog = ask.store.commit_log
        self._stuck_at = -1
        self._stuck_since = 0.0

    def tables(self) -> Iterator[MessageTable]:
        """Yield the messages that are whole by now."""
        while True:
            segment = self.log.segment_at(self.at)
            if segment is None:
                if not self._enter_next():
                    return
                continue
            table = self._next(segment)
            if table is None:
                if not self._is_filled(segment) and not self._skip(segment):
                    return
                continue
            yield table
            self.at += self.log.envelope.size + int(table.column("size")[0])

    def _enter_next(self) -> bool:
        """Go to the first segment behind the place that is reached."""
        behind = [segment for segment in self.log.segments if segment.start_offset > self.at]
        if not behind:
            return False
        size = behind[0].start_offset - self.at
        self.ask.damage(f"the {size:,} bytes at {self.at:,} are no longer in any file: they are skipped")
        self.at = behind[0].start_offset
        return True

    def _next(self, segment: MappedFile) -> MessageTable | None:
        """Return the record at the place that is reached, None while it is not whole."""
        at = self.at - segment.start_offset
        table = _record_at(self.log, segment, at)
        if table is None or is_whole(table, 0):
            return table
        # A record may be odd and yet all that there will be: what stands behind it tells.
        behind = at + self.log.envelope.size + int(table.column("size")[0])
        if self._is_stuck() and not table.faults[0] and self.log.begins(segment, behind):
            return table
        return None

    def _is_filled(self, segment: MappedFile) -> bool:
        """Go behind a segment that has no room left."""
        at = self.at - segment.start_offset
        head = segment.read(at, self.log.envelope.size + commit_log.BLANK_SIZE)
        if len(head) == self.log.envelope.size + commit_log.BLANK_SIZE:
            if self.log.envelope is scan.BARE:
                if read_start(head) != (segment.size - at, commit_log.MAGIC_BLANK):
                    return False
            elif plain.int32(head, 0) != -self.log.envelope.magic_code:
                return False
        elif segment.size < self.log.file_size:
            return False  # it may yet grow
        if not any(other.start_offset >= segment.end_offset for other in self.log.segments):
            return False
        self.at = segment.end_offset
        return True

    def _skip(self, segment: MappedFile) -> bool:
        """Go on behind a place where nothing whole will come any more, since something came behind it."""
        at = self.at - segment.start_offset
        after = self.log.segment_at(segment.end_offset)
        in_next = after is not None and self.log.begins(after, 0)
        if not in_next and not any(segment.read(at, self.log.envelope.size + commit_log.BLANK_SIZE)):
            self._stuck_at = -1  # nothing yet: an idle broker
            return False
        if self._stuck_at != self.at:
            self._stuck_at, self._stuck_since = self.at, time.monotonic()
        if not self._is_stuck():
            return False
        again = scan.resync(self.log.buffer(segment, plain), segment.start_offset, at + 1, None, self.log.envelope)
        next_record = None if again is None else _record_at(self.log, segment, again)
        if self._next(segment) is not None:
            return True  # it was finished in the meantime
        if next_record is None or not is_whole(next_record, 0):
            if not in_next:
                self._stuck_since = time.monotonic()  # look again, but not at once: this was a long way
                return False
            again = None
        end = segment.size if again is None else again
        tell_gap(self.ask, Gap(segment, at, end, scan.Stop.MAGIC))
        self.at = segment.start_offset + end
        return True

    def _is_stuck(self) -> bool:
        return self._stuck_at == self.at and time.monotonic() - self._stuck_since >= _PATIENCE


def _record_at(log: CommitLog, segment: MappedFile, at: int) -> MessageTable | None:
    """Return the record at a position as a table of one, None where its head or its end is not there."""
    room = log.envelope.size
    head = segment.read(at, room + commit_log.BLANK_SIZE)
    if len(head) < room + commit_log.BLANK_SIZE or (room and plain.int32(head, 0) != log.envelope.magic_code):
        return None
    size, magic = read_start(head, room)
    if magic not in commit_log.MESSAGE_MAGICS or size < commit_log.MIN_SIZE or at + room + size > segment.size:
        return None
    data = segment.read(at, room + size)
    if len(data) < room + size:
        return None
    return scan.gather(memoryview(data), segment.start_offset + at, np.array([room]))
