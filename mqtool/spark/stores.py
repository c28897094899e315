"""The stores that a path selects: one, several, or all that a pattern matches; and the settings to read them with."""

import contextlib
import contextvars
import dataclasses
import fnmatch
import functools
import glob
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import orjson

from mqtool.engine.store.file_queue import is_segment_name
from mqtool.engine.store.packed import is_archive, plain_name
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.engine.store.remote import is_remote, matches, place
from mqtool.errors import NotFoundError, UsageError
from mqtool.spark.spread import Common

_WILD = "*?["
_ARCHIVES = "unpack it, or use the command of the same name without Spark"


@dataclasses.dataclass(frozen=True)
class Store(Common):
    """One store: where it is, on every machine that reads it, and settings of its broker."""

    path: str
    settings: tuple[tuple[str, str], ...] = ()
    in_use: bool = False
    unpacks: bool = False
    """Whether compressed segments are read."""

    @property
    def config(self) -> StoreConfig:
        """The settings as a reader takes them."""
        return StoreConfig(dict(self.settings), self.in_use, self.unpacks)

    def open(self) -> StoreReader:
        """Open it, or return the reader that is kept; raises what ``StoreReader`` raises.

        No part of a job needs many of its queues at a time.
        """
        kept = _KEPT.get()
        reader = None if kept is None else kept.get(self)
        if reader is None:
            reader = StoreReader(self.path, self.config)
            if not reader.is_live:
                reader.open_queues_on_demand()
            if kept is not None:
                kept[self] = reader
        return reader


@functools.lru_cache(maxsize=2)
def reader_of(_job: str, store: Store) -> StoreReader:
    """Return a reader of a store that this process keeps for the tasks of a job."""
    return store.open()


_KEPT: contextvars.ContextVar[dict[Store, StoreReader] | None] = contextvars.ContextVar("_KEPT", default=None)


@contextlib.contextmanager
def opened_once() -> Iterator[None]:
    """Have each store opened, and its files listed, once while the block runs: a job asks for its stores several times.

    What is asked for in the block is what was there at first. Executors open stores themselves.
    """
    token = _KEPT.set({})
    try:
        yield
    finally:
        _KEPT.reset(token)


ConfigOf = Sequence[tuple[str, Path]]
"""Patterns of stores' paths, each with the ``broker.conf`` of those that it matches; the first that does counts."""


def find_stores(
    paths: Iterable[str],
    settings: Mapping[str, str],
    is_gone_fine: bool = False,
    config_of: ConfigOf = (),
    in_use: bool = False,
    unpacks: bool = False,
) -> list[Store]:
    """Return the stores that paths and patterns name, each once, in order, also where links lead to one twice.

    A name with commas in it is several, unless something is called so. What a pattern matches besides stores is left
    out; with ``is_gone_fine`` also a path where no store is. ``settings`` lie over those in the file of a store: that
    which ``config_of`` names, else ``broker.conf`` beside it. With ``in_use`` their ends are checked as of stores that
    brokers write to; with ``unpacks`` compressed segments are read.

    Raises:
        NotFoundError: a path is not a store, or no store matches a pattern.
        UsageError: no path is given, or it is not a file's, or an archive, which one task would have to read.
    """
    stores_by_place: dict[str, Store] = {}
    names = list(itertools.chain.from_iterable(_split(path) for path in paths))
    if not names:
        raise UsageError(
            "no store given: call .load(PATH) with the directory that contains commitlog and the other folders"
        )
    for name in names:
        is_pattern = any(letter in name for letter in _WILD) and not place(name).exists()
        matched = _matches(name) if is_pattern else [name]
        stores = [
            _with_settings(str(place(match).absolute()), settings, config_of, in_use, unpacks) for match in matched
        ]
        if is_pattern or is_gone_fine:
            stores = [store for store in stores if _is_store(store)]
            if not stores and not is_gone_fine:
                raise NotFoundError(f"no store matches {name}")
        for store in stores:
            if unpacks and is_archive(place(store.path)):
                raise UsageError(f"{store.path} is an archive, which a single task would have to read: {_ARCHIVES}")
            store.open()
            stores_by_place.setdefault(store.path if is_remote(store.path) else os.path.realpath(store.path), store)
    return list(stores_by_place.values())


def config_beside(path: str) -> Path | None:
    """Return the file ``broker.conf`` in the folder that contains a store, None if there is none."""
    file = Path(path).parent / "broker.conf"
    return file if not is_remote(path) and file.is_file() else None


def matches_of(pattern: str, stores: Iterable[Store]) -> list[Store]:
    """Return the stores whose paths a pattern matches."""
    return [store for store in stores if fnmatch.fnmatchcase(store.path, pattern)]


def _with_settings(path: str, settings: Mapping[str, str], config_of: ConfigOf, in_use: bool, unpacks: bool) -> Store:
    file = next((file for pattern, file in config_of if fnmatch.fnmatchcase(path, pattern)), config_beside(path))
    return Store(path, tuple(sorted(StoreConfig.load(file, settings).settings.items())), in_use, unpacks)


def _matches(pattern: str) -> list[str]:
    if is_remote(pattern):
        return matches(pattern)
    return sorted(glob.glob(str(place(pattern))))  # noqa: PTH207 - a pattern may be absolute


def path_options(options: Mapping[str, str]) -> list[str]:
    """Return the paths that Spark's options hold: ``path`` is one, ``paths`` a JSON list of several.

    Raises:
        UsageError: ``paths`` is something else.
    """
    try:
        several = orjson.loads(options.get("paths") or "[]")
    except orjson.JSONDecodeError:
        several = None
    if not isinstance(several, list) or not all(isinstance(path, str) and path for path in several):
        raise UsageError(f'paths={options["paths"]} is not a JSON list of paths such as ["/brokers/a/store"]')
    return [*([options["path"]] if options.get("path") else []), *several]


def _split(path: str) -> list[str]:
    return (
        [path]
        if "," not in path or place(path).exists()
        else [name.strip() for name in path.split(",") if name.strip()]
    )


def plain_path(name: str) -> str:
    """Return a path without ``file:``.

    Raises:
        UsageError: it is of another file system than the executors see.
    """
    if is_remote(name):
        raise UsageError(
            f"{name}: stores are written as files, so give a path that is the same on every executor (a local disk "
            "or a mounted file system)"
        )
    return str(place(name))


def _is_store(store: Store) -> bool:
    """Return whether it is a store, or a segment of a log alone; any other file beside stores is not."""
    path = place(store.path)
    if path.is_file() and not is_segment_name(plain_name(path.name) if store.unpacks else path.name):
        return False
    try:
        store.open()
    except NotFoundError:
        return False
    return True
