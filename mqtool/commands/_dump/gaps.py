"""Stretches of a log that hold no messages."""

from mqtool.commands._dump.request import DumpRequest
from mqtool.engine.store.commit_log import CommitLog, Gap
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.formats import commit_log, scan

_STOPS = {
    scan.Stop.MAGIC: "no record starts there",
    scan.Stop.SIZE: "a size there is impossible",
    scan.Stop.BLANK: "a blank record there does not fill its segment",
}


def begins(log: CommitLog, segment: MappedFile, at: int) -> bool:
    """Tell whether a message or a blank record begins at a position."""
    head = segment.read(at, log.envelope.size + commit_log.BLANK_SIZE)[log.envelope.size :]
    return len(head) == commit_log.BLANK_SIZE and commit_log.BLANK.parse(head).magic_code in scan.MAGICS


def tell_gap(ask: DumpRequest, gap: Gap) -> None:
    """Say that a stretch was skipped."""
    reason = _STOPS.get(gap.stop, "no record fits there")
    place = ask.place(gap.segment.path, gap.start)
    ask.damage(f"{gap.end - gap.start:,} bytes at {gap.start_offset:,} ({place}) are skipped: {reason}")
