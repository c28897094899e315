"""The address up to which slaves have acknowledged the log of a store: nothing below is cut off automatically.

It is noted before it takes effect: on a slave before each report, on a master with each report. The note is written in
place and survives a kill of the broker; after a crash of the machine it may be older than the log, and then all of the
log counts as acknowledged.
"""

import json
import logging
import os
from pathlib import Path

from mqtool.engine.broker.config_files import save_data
from mqtool.engine.store.disk import writing
from mqtool.engine.store.file_kinds import CONFIG
from mqtool.errors import WriteError

log = logging.getLogger(__name__)

_FILE = "mqtoolAcknowledged.json"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Acknowledged:
    """The note of one store with a running broker."""

    def __init__(self, root: Path, end_offset: int, *, was_left: bool) -> None:
        """Read it.

        Args:
            root: folder of the store.
            end_offset: of its log.
            was_left: whether the store had not been closed.
        """
        self._path = root / CONFIG.name / _FILE
        self._descriptor = -1
        self._boot_id = _boot_id()
        self._before_offset = json.dumps({"bootId": self._boot_id, "offset": 0}).removesuffix("0}").encode()
        noted, boot_id = _read(self._path)
        self.is_any = self._path.exists()
        """Whether this store has ever been replicated."""
        self.is_in_doubt = was_left and not (boot_id and boot_id == self._boot_id)
        """Whether the machine has crashed, as far as is known: log and note may lack their ends."""
        self.is_log_short = self.is_any and (self.is_in_doubt or (noted is not None and noted > end_offset))
        """Whether the log probably lacks something that slaves have acknowledged."""
        self.offset = end_offset if noted is None or self.is_in_doubt else min(noted, end_offset)

    def note(self, offset: int) -> None:
        """Note that a slave has the log up to an address.

        Raises:
            WriteError: the disk is full, or fails.
        """
        if offset <= self.offset and self._descriptor >= 0:
            return
        highest = max(offset, self.offset)
        text = self._before_offset + b"%19d}\n" % highest
        try:
            if self._descriptor < 0:
                save_data(self._path, text)
                self._descriptor = os.open(self._path, os.O_WRONLY)
            else:
                os.pwrite(self._descriptor, text, 0)
        except OSError:  # entering ``writing`` for each message takes longer than the write
            with writing(self._path):
                raise
        self.offset = highest

    def close(self) -> None:
        """Sync and close the file."""
        if self._descriptor >= 0:
            try:
                with writing(self._path):
                    os.fdatasync(self._descriptor)
            except WriteError as error:
                log.warning("%s", error)
            os.close(self._descriptor)
            self._descriptor = -1


def _read(path: Path) -> tuple[int | None, str]:
    try:
        members = json.loads(path.read_bytes())
        return int(members["offset"]), str(members["bootId"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, ""


def _boot_id() -> str:
    """Return an id of this boot of the machine, empty if there is none."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""
