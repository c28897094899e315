"""The JSON tables that a broker keeps below ``config/`` while it runs.

As RocketMQ does it, the table before is kept beside as ``NAME.bak`` and taken where the file itself is not there, is
empty or does not hold what it should. Otherwise than there, a file that cannot be read and has no backup ends the
start: what it held would be lost with the next change.
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
    """Return the table of a file, or of the one before it, and what it holds; empty where there is none.

    Where the one before is taken, a line says so, and it is written again; the file itself is put aside as
    ``NAME.damaged``, as it would become the one before at the next change.

    Args:
        path: of the file.
        parse: returns what a table holds, and raises ``FormatError`` where that is not what it should be.

    Raises:
        FormatError: neither can be read.
    """
    damage: FormatError | None = None
    before = path.with_name(f"{path.name}.bak")
    for file in (path, before):
        with contextlib.suppress(FileNotFoundError):
            data = file.read_bytes()
            if not data:  # a crash came between making and writing it
                continue
            try:
                table = parse_table(data)
                data_version(table)  # of what every table holds
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
    with contextlib.suppress(WriteError):  # then there is the backup alone, which is enough
        save_data(path, data)


def save_data(path: Path, data: bytes) -> None:
    """Put the text of a table in the place of the one in a file, which becomes the one before.

    At any moment one of the two is whole, if the machine stops as well; the new one is on the disk on return.

    Raises:
        WriteError: the disk is full or fails; the table in the file is as it was.
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
    """Have the names in a folder on the disk on return."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
