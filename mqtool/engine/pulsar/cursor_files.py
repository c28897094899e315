"""Cursors on disk: a small file for each subscription of a queue, below ``config/pulsarCursors``.

Changed cursors are written every ``pulsarSaveInterval``, together with the offsets of groups, outside the event loop: a
kill loses the acknowledgements since then, and their messages are delivered again. A file is bounded: acknowledgements
after the first 10,000 gaps are not saved.
"""

import itertools
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mqtool.engine.broker.config_files import save_data
from mqtool.engine.broker.saves import Saves
from mqtool.engine.pulsar.cursor import Cursor
from mqtool.errors import WriteError

log = logging.getLogger(__name__)

FOLDER = "pulsarCursors"
MAX_SPANS = 10_000
_NO_END = 1 << 63


class CursorKey(NamedTuple):
    """Topic and group by their RocketMQ names, and a queue."""

    topic: str
    queue_id: int
    group: str


class Kept(NamedTuple):
    """A cursor as it was saved."""

    cursor: Cursor
    subscription: str
    generation: int
    saved_at: int  # ms
    log_end: int
    """Where the commit log ended: the messages that it acknowledges lie before."""


def load_cursors(config: Path) -> Iterator[tuple[CursorKey, Kept]]:
    """Yield the cursors below the folder ``config`` of a store; those that cannot be read are logged."""
    folder = config / FOLDER  # a kill may come after a file became its backup, and before the new one is renamed
    for path in sorted({folder / file.name.removesuffix(".bak") for file in folder.glob("*.json*")}):
        if path.suffix != ".json":
            continue
        for file in (path, path.with_name(f"{path.name}.bak")):
            try:
                row = json.loads(file.read_bytes())
                key = CursorKey(str(row["topic"]), int(row["queueId"]), str(row["group"]))
                cursor = Cursor(
                    int(row["nextOffset"]),
                    [(int(start), int(end)) for start, end in row["acked"]],
                    [(int(offset), int(bits, 16)) for offset, bits in row["left"]],
                )
                name, generation = str(row["subscription"]), int(row["generation"])
                kept = Kept(cursor, name, generation, int(row["savedAt"]), int(row.get("logEnd", _NO_END)))
            except FileNotFoundError:
                continue
            except (OSError, ValueError, KeyError, TypeError) as error:
                log.warning("%s cannot be read (%s)", file, error)
                continue
            yield key, kept
            break


class CursorFiles:
    """The files of cursors below the folder ``config`` of a store."""

    def __init__(self, folder: Path, saves: Saves, log_end: Callable[[], int]) -> None:
        """Make one; ``log_end`` returns where the commit log ends."""
        self._folder = folder / FOLDER
        self._saves = saves
        self._log_end = log_end

    def load(self) -> Iterator[tuple[CursorKey, Kept]]:
        """Yield the cursors that can be read; the others are logged: their messages are delivered again."""
        return load_cursors(self._folder.parent)

    def save(self, key: CursorKey, subscription: str, generation: int, cursor: Cursor, now: int) -> None:
        """Queue a cursor to be written soon."""
        cursor.is_changed = False
        path = self._path(key)

        def pieces() -> list[bytes]:
            row: dict[str, Any] = {
                "topic": key.topic,
                "queueId": key.queue_id,
                "group": key.group,
                "subscription": subscription,
                "generation": generation,
                "savedAt": now,
                "logEnd": self._log_end(),
                "nextOffset": cursor.next_offset,
                "acked": [*itertools.islice(cursor.spans, MAX_SPANS)],
                "left": [(offset, f"{bits:x}") for offset, bits in itertools.islice(cursor.left.items(), MAX_SPANS)],
            }
            return [json.dumps(row, separators=(",", ":")).encode()]

        self._want(path, pieces, save_data)

    def delete(self, key: CursorKey) -> None:
        """Queue the file of a cursor to be removed soon."""
        self._want(self._path(key), list, lambda path, _: remove_table(path))

    def _want(self, path: Path, pieces: Callable[[], list[bytes]], write: Callable[[Path, bytes], None]) -> None:
        try:
            self._saves.want(path, pieces, write, in_any_order=True)
        except WriteError as error:
            log.warning("%s", error)

    def _path(self, key: CursorKey) -> Path:
        return self._folder / f"{file_name(key.topic)}@{key.queue_id}@{file_name(key.group)}.json"


def file_name(text: str) -> str:
    """Return a text as part of a file name; RocketMQ names contain no ``@`` or ``/``, and their length is limited."""
    if len(text) <= 100:
        return text
    import hashlib

    return "h|" + hashlib.sha1(text.encode()).hexdigest()


def remove_table(path: Path) -> None:
    """Remove a table, and its backup first, which would be loaded if it were left alone."""
    for file in (path.with_name(f"{path.name}.bak"), path):
        file.unlink(missing_ok=True)
