"""The RocksDB databases of a store: consume queues and tables, read through the optional extra ``rocksdict``.

A database is opened read-only, its write-ahead log included, in a temporary folder of links to its files: whatever
RocksDB and rocksdict want to note beside them stays out of the store.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mqtool.engine.store.mapping import reading
from mqtool.engine.store.remote import RemotePath
from mqtool.errors import BadDataError, MissingExtraError, NotFoundError
from mqtool.late import np, npt

# What a store without RocksDB does not need is loaded when it is used: every command imports this module.
if TYPE_CHECKING:
    from mqtool.formats import rocksdb
    from mqtool.formats.config_tables import Table

CONFIG_DATABASES = ("topics", "subscriptionGroups", "consumerOffsets", "metadata", "rdb")
"""Folders under ``config/`` that may hold tables; which ones a broker uses is a matter of its settings."""

_FILES = ("CURRENT", "MANIFEST-*", "*.sst", "*.log", "*.blob")
_OPEN_FILES = 256  # RocksDB would keep all of them open
_BATCH = 1 << 16


class QueueUnits(NamedTuple):
    """Consecutive units of one queue: ``queue_offset, physical_offset, size, tags_code, store_timestamp``."""

    topic: str
    queue_id: int
    units: npt.NDArray[np.void]


class OpenedQueue:
    """One queue in an open database: its units are looked up by queue offset, other queues are not read."""

    def __init__(self, units: Any, topic: str, queue_id: int) -> None:
        self._units = units
        self._topic = topic
        self._queue_id = queue_id

    def units(self, start: int, stop: int, limit: int) -> npt.NDArray[np.void]:
        """Return up to ``limit`` units of a range of queue offsets, with the fields of ``QueueUnits``."""
        from mqtool.formats import rocksdb

        low, high = (rocksdb.unit_key(self._topic, self._queue_id, max(0, offset)) for offset in (start, stop))
        pairs = itertools.takewhile(lambda pair: pair[0] < high, _pairs(self._units, low))
        return rocksdb.scan_units(list(itertools.islice(pairs, limit)))


def is_rocksdb(directory: Path) -> bool:
    """Return whether a folder holds a RocksDB database; needs no extra."""
    with reading(directory):
        return (directory / "CURRENT").is_file()


def read_units(directory: Path) -> Iterator[QueueUnits]:
    """Yield the units queue by queue, in queue order; a long queue comes in several pieces.

    Units outside the ends that ``read_ends`` tells are left over from before: a broker overwrites or drops them.

    Raises:
        MissingExtraError: rocksdict is not installed.
        MqtoolError: the database cannot be read.
    """
    from mqtool.formats import rocksdb

    with _opened(directory) as families:
        pairs = _pairs(families["default"])
        for _, queue in itertools.groupby(pairs, lambda pair: pair[0][: -rocksdb.QUEUE_OFFSET_SIZE]):
            while batch := list(itertools.islice(queue, _BATCH)):
                topic, queue_id = rocksdb.parse_queue(batch[0][0])
                yield QueueUnits(topic, queue_id, rocksdb.scan_units(batch))


def read_ends(directory: Path) -> rocksdb.OffsetFamily:
    """Return the first and last queue offsets of every queue; raises like ``read_units``."""
    from mqtool.formats import rocksdb

    with _opened(directory) as families:
        return rocksdb.parse_ends(_pairs(families["offset"]) if "offset" in families else ())


def read_queue_ends(directory: Path, topic: str, queue_id: int) -> rocksdb.StoredQueueEnds | None:
    """Return the ends of one queue, None if no queue has this name; raises like ``read_units``."""
    from mqtool.formats import rocksdb

    with _opened(directory) as families:
        values = {key: families["offset"].get(key) for key in rocksdb.end_keys(topic, queue_id) if "offset" in families}
        ends = rocksdb.parse_ends((key, value) for key, value in values.items() if value is not None)
    return ends.queues.get((topic, queue_id))


@contextlib.contextmanager
def opened_queue(directory: Path, topic: str, queue_id: int) -> Iterator[OpenedQueue]:
    """Open a database to look up units of one queue that ``read_queue_ends`` knows; raises like ``read_units``."""
    with _opened(directory) as families:
        yield OpenedQueue(families["default"], topic, queue_id)


def read_config(directory: Path) -> dict[str, Table]:
    """Return the tables kept in RocksDB under ``config/``, each by the name of the JSON file that it replaces.

    A table in several databases is taken from the one with the newest data version. Raises like ``read_units``.
    """
    from mqtool.formats import rocksdb
    from mqtool.formats.config_tables import data_version

    tables_by_file: dict[str, Table] = {}
    for name in CONFIG_DATABASES:
        if is_rocksdb(directory / name):
            with _opened(directory / name) as families:
                tables = rocksdb.parse_config(name, {family: _pairs(db) for family, db in families.items()})
            for file, table in tables.items():
                if file not in tables_by_file or data_version(tables_by_file[file]) <= data_version(table):
                    tables_by_file[file] = table
    return tables_by_file


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[dict[str, Any]]:
    """Open a database for reading; gives its column families by name."""
    import tempfile

    if not is_rocksdb(directory):
        raise NotFoundError(f"{directory} is not a RocksDB database")
    try:
        from rocksdict import AccessType, Options, Rdict
    except ImportError as error:
        raise MissingExtraError("reading RocksDB databases", "rocksdb") from error

    options = Options(raw_mode=True)
    options.set_max_open_files(_OPEN_FILES)
    with tempfile.TemporaryDirectory(prefix="mqtool-rocksdb-") as folder:
        _link_files(directory, Path(folder))
        try:
            names = Rdict.list_cf(folder, options)
            column_families = {name: Options(raw_mode=True) for name in names}
            with Rdict(folder, options, column_families, AccessType.read_only()) as database:
                yield {name: database.get_column_family(name) for name in names}
        except Exception as error:
            if type(error) is not Exception:  # rocksdict raises nothing more special
                raise
            reason = str(error).replace(folder, str(directory))
            raise BadDataError(f"cannot read {directory} as a RocksDB database: {reason}") from error


def _link_files(directory: Path, folder: Path) -> None:
    with reading(directory):
        for path in itertools.chain.from_iterable(directory.glob(pattern) for pattern in _FILES):
            if path.is_file():
                if isinstance(path, RemotePath):
                    (folder / path.name).write_bytes(path.read_bytes())
                    continue
                path.open("rb").close()  # RocksDB would call a file that this user may not read damaged
                (folder / path.name).symlink_to(path.resolve())


def _pairs(family: Any, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values in order, from the first key that is not below ``start``."""
    # Not items(): it ends at a damaged block as if that were the end of the database.
    position = family.iter()
    position.seek(start)
    while position.valid():
        yield position.key(), position.value()
        position.next()
    position.status()
