"""Files in which an open store records its progress, and that it is open: ``checkpoint`` and ``abort``.

(Rules: store.md 6. RocketMQ: ``StoreCheckpoint``.)
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mqtool.engine.store.file_kinds import ABORT, CHECKPOINT
from mqtool.errors import RecoveryNeededError
from mqtool.formats import checkpoint

if TYPE_CHECKING:
    from mqtool.engine.store.disk import Disk

_CHECKPOINT = checkpoint.CHECKPOINT.packer
_OURS = b" mqtool\n"
"""Follows the process id in ``abort``: RocketMQ only checks whether the file exists."""
_REST = bytes(checkpoint.CHECKPOINT.size_of("rest"))


class Reached(NamedTuple):
    """The progress of queues and index: up to the message that starts at an address."""

    timestamp: int  # ms, when it was stored
    last_start: int  # -1 before the first


def was_left_by_us(root: Path) -> bool:
    """Return whether a process of mqtool that had the store open was killed; then its checkpoint is reliable.

    Raises:
        RecoveryNeededError: another broker was killed.
    """
    abort = root / ABORT.name
    if not abort.exists():
        return False
    if abort.read_bytes().endswith(_OURS):
        return True
    raise RecoveryNeededError(f"the broker that used {root} did not close it: recover it first")


class LiveCheckpoint:
    """The two files of an open store."""

    def __init__(self, root: Path, disk: "Disk", stored: Any | None) -> None:
        """Start with the values of ``stored``, the existing checkpoint."""
        self._path = root / CHECKPOINT.name
        self._abort = root / ABORT.name
        self._disk = disk
        self._index_timestamp = stored.index_timestamp if stored else 0
        self._master_flushed_offset = stored.master_flushed_offset if stored else 0
        self._has_logics_offset = bool(stored and stored.logics_physical_offset)

    def begin(self, reached: Reached | None, flushed_timestamp: int) -> None:
        """Record that the store is open, before anything else, and its progress; None leaves that unchanged."""
        if not self._path.exists():
            self._disk.create(self._path, checkpoint.CHECKPOINT_SIZE)
            self._disk.sync(self._path)
        if reached is not None:
            self.write(reached, flushed_timestamp, 0)
        if not self._abort.exists():
            self._disk.create(self._abort)
        self._disk.write(self._abort, 0, b"%-10d" % os.getpid() + _OURS)
        self._disk.sync(self._abort)
        self._disk.sync_folder(self._abort.parent)

    def write(self, reached: Reached, flushed_timestamp: int, index_timestamp: int) -> None:
        """Record how far log, queues and index are on the disk.

        Args:
            reached: of queues and index.
            flushed_timestamp: of the log; no time is later than this, as the clock may have been set back.
            index_timestamp: of the full files of the index; never decreases.
        """
        self._index_timestamp = max(self._index_timestamp, index_timestamp)
        last_start = max(0, reached.last_start)
        fields = (
            flushed_timestamp,
            min(reached.timestamp, flushed_timestamp),
            min(self._index_timestamp, flushed_timestamp),
            self._master_flushed_offset,
            last_start,
            last_start if self._has_logics_offset else 0,
        )
        self._disk.write(self._path, 0, _CHECKPOINT.pack(*fields, _REST))
        self._disk.sync(self._path)

    def end(self) -> None:
        """Record that the store is closed."""
        self._disk.remove_tree(self._abort)  # unless somebody else has
        self._disk.sync_folder(self._abort.parent)
