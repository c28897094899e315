"""Which segments a broker deletes when, and whether its disk is too full to write.

(Rules: store.md 9. RocketMQ: ``CleanCommitLogService``.)
"""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from mqtool.engine.intervals import is_time
from mqtool.errors import UsageError

if TYPE_CHECKING:
    from mqtool.engine.store.live_log import LiveLog
    from mqtool.engine.store.paths import StoreConfig

DiskUsage = Callable[[Path], float]
"""Tells how much of the file system that a folder is on is in use, from 0 to 1."""
_MAX_AT_ONCE = 10
_HOUR_MS = 3_600_000
_LOOKS_WHEN_ASKED = 20
"""For how many looks it is time to delete after somebody has asked for that."""


def disk_usage(folder: Path) -> float:
    """Return how much of a file system is in use, as ``df`` tells it, in whole per cents rounded up."""
    status = os.statvfs(folder)
    used = status.f_blocks - status.f_bfree
    total = used + status.f_bavail
    return -(-used * 100 // total) / 100 if total else 0.0


class Retention:
    """When to delete what.

    It asks for the use of the disk at intervals only. Deleting is left to its owner.
    """

    def __init__(self, config: "StoreConfig", folders: Iterable[Path], usage: DiskUsage) -> None:
        """Take the rules from a broker's settings.

        Raises:
            UsageError: a setting makes no sense.
        """
        self.is_full = False
        """Whether so much of the disk is in use that nothing may be written."""
        self.configure(config)
        self._folders = list(folders)
        self._usage = usage
        self._next_look = 0
        self._next_deletion = 0
        self._left = 0  # of what may be deleted before the next look
        self._is_forced = False
        self._is_due = False
        self._asked = 0

    def configure(self, config: "StoreConfig") -> None:
        """Go by other rules from the next look on.

        Raises:
            UsageError: a setting makes no sense.
        """
        hours = _hours(config.settings.get("deleteWhen", "04"))
        reserved_hours = config.number("fileReservedTime", 72)
        self.most_used = config.number("diskMaxUsedSpaceRatio", 75, 10, 95) / 100
        self.forced = config.number("diskSpaceCleanForciblyRatio", 85, 30, 85) / 100
        self.warning = config.number("diskSpaceWarningLevelRatio", 90, 35, 90) / 100
        self._reserved_ms = reserved_hours * _HOUR_MS
        self._hours = hours
        self._waits_for_readers = config.flag("retentionWaitsForReaders")
        self._forcibly = config.flag("cleanFileForciblyEnable", True)
        self._clean_interval = config.number("cleanResourceInterval", 10_000)
        self._delete_interval = config.number("deleteCommitLogFilesInterval", 100)

    def ask(self) -> None:
        """Have what is old enough deleted soon, whatever hour it is."""
        self._asked = _LOOKS_WHEN_ASKED

    def look(self, now: int) -> None:
        """Take a look at clock and disk, when it is time for that; ``now`` in ms."""
        if not is_time(self._next_look, self._clean_interval, now):
            return
        self._next_look = now + self._clean_interval
        used = [self._usage(folder) for folder in self._folders]
        self.is_full = min(used) > self.warning
        self._is_forced = self._forcibly and min(used) > self.forced
        is_hour = time.localtime(now / 1000).tm_hour in self._hours
        self._is_due = is_hour or max(used) > self.most_used or self._asked > 0
        self._asked = max(self._asked - 1, 0)
        self._left = _MAX_AT_ONCE

    def may_delete(self, log: "LiveLog", now: int) -> bool:
        """Return whether the oldest segment is to be deleted now; the last never is."""
        is_due = self._is_due or self._is_forced
        if not self._left or not is_due or not is_time(self._next_deletion, self._delete_interval, now):
            return False
        segment = log.first_segment()
        if segment is None or segment.start_offset + log.file_size > log.flushed_offset:
            return False
        try:
            modified_ms = segment.path.stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:  # somebody has removed it
            modified_ms = 0
        if not self._is_forced and modified_ms + self._reserved_ms > now:
            return False
        if self._waits_for_readers and not self._is_forced:
            end = segment.start_offset + log.file_size
            if any(reader.wanted_offset < end for reader in log.readers):
                return False
        self._left -= 1
        self._next_deletion = now + self._delete_interval
        return True


def _hours(text: str) -> set[int]:
    try:
        hours = {int(hour) for hour in text.split(";") if hour.strip()}
    except ValueError:
        hours = {-1}
    if not hours <= set(range(24)):
        raise UsageError(f"deleteWhen={text} is not a list of hours such as 04 or 04;16")
    return hours
