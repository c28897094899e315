"""Stretches of a log that hold no messages."""

from mqtool.commands._dump.request import DumpRequest
from mqtool.engine.store.commit_log import Gap
from mqtool.formats import scan

_STOPS = {
    scan.Stop.MAGIC: "no record starts there",
    scan.Stop.SIZE: "a size there is impossible",
    scan.Stop.BLANK: "a blank record there does not fill its segment",
}


def tell_gap(ask: DumpRequest, gap: Gap) -> None:
    """Say that a stretch was skipped."""
    reason = _STOPS.get(gap.stop, "no record fits there")
    place = ask.place(gap.segment.path, gap.start)
    ask.damage(f"{gap.end - gap.start:,} bytes at {gap.start_offset:,} ({place}) are skipped: {reason}")
