"""The JSON tables that a running broker keeps below ``config/``.

As in RocketMQ, the previous version is kept as ``NAME.bak`` and used if the file is missing, is
empty or malformed. Unlike there, an unreadable file without a backup ends the
start: its contents would be lost with the next change.
(Rules: store.md 10.1. RocketMQ: ``ConfigManager``, ``MixAll.string2File``.)
"""

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from mqtool.engine.store.disk import writing
from mqtool.errors import FormatError, WriteError
from mqtool.formats.config_tables import Table, data_version, parse_table

log = logging.getLogger(__name__)

Parsed = TypeVar("Parsed")


def load_table(path: Path, parse: Callable[[Table], Parsed]) -> tuple[Table, Parsed]:
    """Return the table of a file, or of its backup, and its parsed contents; empty if there is none.

    If the backup is used, that is logged, and it is written again; the file itself is moved to
    ``NAME.damaged``, as it would become the backup at the next change.

    Args:
        path: of the file.
        parse: returns the contents of a table, and raises ``FormatError`` if they are malformed.

    Raises:
        FormatError: neither can be read.
    """
    damage: FormatError | None = None
    before = path.with_name(f"{path.name}.bak")
    for file in (path, before):
        with contextlib.suppress(FileNotFoundError):
            data = file.read_bytes()
            if not data:  # a crash between creating and writing it
                continue
            try:
                table = parse_table(data)
                data_version(table)  # checks what every table has
                parsed = parse(table)
            except FormatError as error:
                damage = damage or FormatError(f"{file}: {error.reason}", error.offset)
                continue
            if file == before:
                _restore(path, data, damage)
            return table, parsed
    if damage is not None:
        raise damage
    if path.exists():
        log.warning("%s is empty and has no backup: starting without its contents", path)
    return {}, parse({})


def _restore(path: Path, data: bytes, damage: FormatError | None) -> None:
    if path.exists():
        aside = path.with_name(f"{path.name}.damaged")
        path.replace(aside)
        log.warning(
            "%s: restored from its backup; the file was renamed to %s", damage or f"{path} is empty", aside.name
        )
    else:
        log.warning("%s was missing: restored from its backup", path)
    with contextlib.suppress(WriteError):  # then there is only the backup, which suffices
        save_data(path, data)


def save_data(path: Path, data: bytes) -> None:
    """Replace the table in a file, which becomes the backup.

    At any moment one of the two is intact, even if the machine crashes; the new one is on disk on return.

    Raises:
        WriteError: the disk is full or fails; the file is unchanged.
    """
    beside = path.with_name(f"{path.name}.tmp")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fdatasync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            path.replace(path.with_name(f"{path.name}.bak"))
        beside.replace(path)
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Sync the names in a folder."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
