"""The JSON tables that a broker keeps below ``config/`` while it runs.

As RocketMQ does it, the table before is kept beside as ``NAME.bak`` and taken where the file itself cannot be read.
(Rules: store.md 10.1. RocketMQ: ``ConfigManager``, ``MixAll.string2File``.)
"""

import contextlib
import os
from pathlib import Path

from mqtool.engine.store.disk import writing
from mqtool.errors import FormatError
from mqtool.formats.config_tables import Dialect, Table, build_table, parse_table


def load_table(path: Path) -> Table:
    """Return the table of a file, or of the one before it; empty where there is none.

    Raises:
        FormatError: neither can be read.
    """
    damage: FormatError | None = None
    for file in (path, _before(path)):
        with contextlib.suppress(FileNotFoundError):
            data = file.read_bytes()
            try:
                return parse_table(data)
            except FormatError as error:  # empty after a crash, perhaps
                damage = damage or FormatError(f"{file}: {error.reason}", error.offset)
    if damage is not None:
        raise damage
    return {}


def save_table(path: Path, table: Table) -> None:
    """Put a table in the place of the one in a file, which becomes the one before.

    Raises:
        WriteError: the disk is full or fails; the table in the file is as it was.
    """
    save_data(path, build_table(table, Dialect.FASTJSON_1))


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
            path.replace(_before(path))
        beside.replace(path)
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Have the names in a folder on the disk on return."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _before(path: Path) -> Path:
    return path.with_name(f"{path.name}.bak")
