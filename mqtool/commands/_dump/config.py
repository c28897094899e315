"""``dump config``: the tables under ``config/``, from JSON files and from RocksDB."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click

from mqtool.commands._dump.request import DumpRequest
from mqtool.commands._options import matching
from mqtool.commands._output import Format, Row, printable
from mqtool.engine.store import rocksdb
from mqtool.engine.store.file_kinds import COMPACTION
from mqtool.engine.store.mapping import read_file
from mqtool.errors import BadDataError, FormatError, MissingExtraError, NotFoundError, UsageError
from mqtool.formats import config_tables
from mqtool.formats.config_tables import TABLES, Table

_BACKUP = ".bak"


def _topics(table: Table) -> list[Row]:
    return [dataclasses.asdict(topic) for topic in config_tables.topics(table).values()]


def _groups(table: Table) -> list[Row]:
    return [dataclasses.asdict(group) for group in config_tables.subscription_groups(table).values()]


def _consumer_offsets(table: Table) -> list[Row]:
    return [
        {"topic": topic, "group": group, "queue_id": queue_id, "consumer_offset": offset}
        for (topic, group, queue_id), offset in config_tables.consumer_offsets(table).items()
    ]


def _delay_offsets(table: Table) -> list[Row]:
    return [
        {"delay_level": level, "queue_offset": offset} for level, offset in config_tables.delay_offsets(table).items()
    ]


class _Shown(NamedTuple):
    rows: Callable[[Table], list[Row]]
    fields: tuple[str, ...]  # those that patterns select by
    columns: tuple[str, ...]  # the first of a table; the other fields follow


_OFFSET_COLUMNS = ("topic", "queue_id", "consumer_offset", "group")
_ROWS = {
    "topics.json": _Shown(_topics, ("topic",), ("topic", "perm", "read_queue_count")),
    "subscriptionGroup.json": _Shown(_groups, ("group",), ("group", "retry_max_times", "consume_enabled")),
    "consumerOffset.json": _Shown(_consumer_offsets, ("topic", "group", "queue_id"), _OFFSET_COLUMNS),
    "lmqConsumerOffset.json": _Shown(_consumer_offsets, ("topic", "group", "queue_id"), _OFFSET_COLUMNS),
    "delayOffset.json": _Shown(_delay_offsets, (), ()),
}


class _TableSource(NamedTuple):
    """One table: where it was read and what it holds."""

    place: str
    kind: str  # the usual name of its JSON file
    table: Table


def tables(ask: DumpRequest) -> Iterator[Row]:
    """Yield the rows of the tables, one after another; a table without rows of its own as one value."""
    if ask.output.format is Format.CSV and ask.file is None and ask.store.paths.single is None:
        raise UsageError("tables have different columns: with -o csv give one, as in mqtool dump config topics.json")
    missing: MissingExtraError | None = None
    kept: list[tuple[_TableSource, list[Row] | None]] = []
    try:
        for source in _sources(ask):
            kept.append((source, _rows_of(ask, source)))  # noqa: PERF401 - what was read before an error is shown
    except MissingExtraError as error:
        missing = error
    for source, rows in _selected(ask, kept):
        if rows is None:
            yield from _value(ask, source)
            continue
        _begin(ask, source, rows)
        for row in rows:
            yield {"file": source.place, **row}
    if missing:
        raise missing


def _selected(
    ask: DumpRequest, sources: list[tuple[_TableSource, list[Row] | None]]
) -> list[tuple[_TableSource, list[Row] | None]]:
    """Return the tables that have what patterns select by, and of each the rows that they select."""
    asked = {"topic": ask.topics, "group": ask.groups, "queue_id": ask.queues}
    asked = {name: patterns for name, patterns in asked.items() if patterns}
    if not asked:
        return sources
    kept = [
        (source, rows)
        for source, rows in sources
        if rows is not None and asked.keys() <= set(_ROWS[source.kind].fields)
    ]
    if sources and not kept:
        names = " and ".join(source.place for source, _ in sources) if ask.file else "the tables"
        raise UsageError(f"{names} cannot be filtered by {' and '.join(name.replace('_', ' ') for name in asked)}")
    chosen = {
        name: matching(patterns, {str(row[name]) for _, rows in kept for row in rows or ()}, name.replace("_", " "))
        for name, patterns in asked.items()
    }
    return [
        (source, [row for row in rows or () if all(str(row[name]) in names for name, names in chosen.items())])
        for source, rows in kept
    ]


def _rows_of(ask: DumpRequest, source: _TableSource) -> list[Row] | None:
    shown = _ROWS.get(source.kind)
    if shown is None:
        return None
    try:
        return shown.rows(source.table)
    except FormatError as error:
        ask.damage(f"{source.place} is shown as is: {error.reason}")
        return None


def _begin(ask: DumpRequest, source: _TableSource, rows: list[Row]) -> None:
    """Put a heading over the next table."""
    if ask.output.is_table:
        content = TABLES[source.kind].content if source.kind in TABLES else "table"
        ask.output.text(click.style(f"{printable(source.place)} ({content}: {len(rows):,})", bold=True))
        ask.output.new_table(tuple(dict.fromkeys((*_ROWS[source.kind].columns, *rows[0]))) if rows else ())


def _value(ask: DumpRequest, source: _TableSource) -> Iterator[Row]:
    if not ask.output.is_table:
        yield {"file": source.place, "value": source.table}
        return
    ask.output.text(click.style(printable(source.place), bold=True))
    for line in json.dumps(source.table, ensure_ascii=False, indent=2).splitlines():
        ask.output.text(printable(line))


def _sources(ask: DumpRequest) -> Iterator[_TableSource]:
    """Yield the tables that are asked for: those in files, then those in RocksDB.

    Raises:
        NotFoundError: there is no table, or none of this name.
        MissingExtraError: it is in RocksDB, and what reads that is not installed.
    """
    paths = ask.store.paths
    if paths.single:
        yield _read(ask, paths.single)
        return
    files = {path.name: path for path in (*_files(paths.config), *_files(paths.root / COMPACTION.name))}
    databases = [name for name in rocksdb.CONFIG_DATABASES if rocksdb.is_rocksdb(paths.config / name)]
    if not files and not databases:
        raise NotFoundError(f"{paths.root} has no tables under config/")
    names = [name for name in files if not name.endswith(_BACKUP)]
    if ask.file is not None:
        names = [name for name in files if name in (ask.file, f"{ask.file}.json")]
    for name in names:
        yield from _read_or_backup(ask, files[name], files.get(name + _BACKUP))
    stored_tables = rocksdb.read_config(paths.config) if databases else {}
    for name, table in stored_tables.items():
        if ask.file is None or name in (ask.file, f"{ask.file}.json"):
            names.append(name)
            yield _TableSource(f"{ask.place(paths.config)}/{name} (RocksDB)", name, table)
    if not names and ask.file is not None:
        known = files.keys() | stored_tables.keys()
        raise NotFoundError(f"there is no table {ask.file}; the tables are {', '.join(sorted(known))}")


def _files(folder: Path) -> list[Path]:
    """Return the tables of a folder and their backups, in the order of ``TABLES``."""
    names = [name + suffix for name in TABLES for suffix in ("", _BACKUP)]
    return [path for name in names if (path := folder / name).is_file()]


def _read(ask: DumpRequest, path: Path) -> _TableSource:
    try:
        table = config_tables.parse_table(read_file(path))
    except FormatError as error:
        raise BadDataError(f"{ask.place(path)} cannot be read as a table: {error}") from error
    return _TableSource(ask.place(path), path.name.removesuffix(_BACKUP), table)


def _read_or_backup(ask: DumpRequest, path: Path, backup: Path | None) -> Iterator[_TableSource]:
    try:
        yield _read(ask, path)
    except BadDataError as error:
        source = None
        if backup is not None:
            with contextlib.suppress(BadDataError):
                source = _read(ask, backup)
        if source is None and ask.file is not None:
            raise
        ask.damage(f"{error}; showing {source.place} instead" if source else str(error))
        if source is not None:
            yield source
